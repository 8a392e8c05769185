//! Output of a comparison: Markdown for people and `docs/notebook`, and JSON.

use std::fmt::Write;

use serde::Serialize;

use super::{Compared, Outcome};
use crate::reproduce::Unit;
use crate::reproduce::number;
use hawser_netem::report::Spread;

/// Comparison as JSON. Numbers are in each measure's `unit`.
#[derive(Clone, Debug, Serialize)]
pub struct ComparisonReport {
    /// Name.
    pub name: &'static str,
    /// Question that it answers.
    pub question: &'static str,
    /// Number of seeds.
    pub seeds: u32,
    /// Measures.
    pub measures: Vec<MeasureReport>,
}

/// Measure of a comparison.
#[derive(Clone, Debug, Serialize)]
pub struct MeasureReport {
    /// Name.
    pub name: &'static str,
    /// Unit.
    pub unit: Unit,
    /// Set if a higher value is better.
    pub is_more_better: bool,
    /// Rows, one for each condition.
    pub rows: Vec<RowReport>,
}

/// Condition of a comparison.
#[derive(Clone, Debug, Serialize)]
pub struct RowReport {
    /// Name.
    pub condition: String,
    /// Contenders in the order of the table, without those that failed.
    pub contenders: Vec<ContenderReport>,
}

/// Contender in a condition, over the seeds.
#[derive(Clone, Debug, Serialize)]
pub struct ContenderReport {
    /// Name.
    pub name: &'static str,
    /// Median.
    pub median: f64,
    /// Smallest value.
    pub min: f64,
    /// Largest value.
    pub max: f64,
}

impl Compared {
    /// Returns a heading, and for each measure a table with the ratios of medians and their
    /// summary.
    #[must_use]
    pub fn to_markdown(&self) -> String {
        let mut text = format!("{}\n", self.comparison.question());
        for measure in 0..self.tables.len() {
            self.write_table(measure, &mut text);
        }
        text
    }

    fn write_table(&self, measure: usize, text: &mut String) {
        let contenders = self.comparison.contenders();
        let about = self.comparison.measures()[measure];
        let better = if about.is_more_better { "more" } else { "less" };
        let rivals = &contenders[1..];
        let ratios: Vec<String> = rivals
            .iter()
            .map(|rival| format!("{} / {rival}", contenders[0]))
            .collect();
        // Writing to a string cannot fail.
        let _ = writeln!(text, "\n{} in {}, {better} is better:\n", about.name, about.unit);
        let _ = writeln!(text, "| | {} | {} |", contenders.join(" | "), ratios.join(" | "));
        let _ = writeln!(text, "|---|{}", "---|".repeat(contenders.len() + rivals.len()));
        for (condition, (name, row)) in self
            .comparison
            .conditions()
            .iter()
            .zip(&self.tables[measure])
            .enumerate()
        {
            let ratio = |other| {
                self.ratio(measure, condition, other)
                    .map_or("-".to_owned(), share)
            };
            let cells = row.iter().map(|spread| cell(*spread));
            let cells: Vec<String> = cells.chain((1..contenders.len()).map(ratio)).collect();
            let _ = writeln!(text, "| {name} | {} |", cells.join(" | "));
        }
        for (other, rival) in rivals.iter().enumerate() {
            if let Some(outcome) = self.outcome(measure, other + 1) {
                let Outcome {
                    better,
                    worse,
                    factor,
                } = outcome;
                let _ = writeln!(
                    text,
                    "\n{} against {rival}: better in {better}, worse in {worse} of {}; on (geometric) average {} times.",
                    contenders[0],
                    self.tables[measure].len(),
                    share(factor),
                );
            }
        }
    }

    /// Returns the comparison for JSON.
    #[must_use]
    pub fn to_report(&self) -> ComparisonReport {
        let contenders = self.comparison.contenders();
        let contender = |(name, spread): (&&'static str, &Option<Spread>)| {
            let spread = (*spread)?;
            Some(ContenderReport {
                name,
                median: spread.median,
                min: spread.min,
                max: spread.max,
            })
        };
        let conditions = self.comparison.conditions();
        let row = |(condition, row): (&String, &Vec<Option<Spread>>)| RowReport {
            condition: condition.clone(),
            contenders: contenders.iter().zip(row).filter_map(contender).collect(),
        };
        let measures = self.comparison.measures().iter().zip(&self.tables);
        ComparisonReport {
            name: self.comparison.name(),
            question: self.comparison.question(),
            seeds: self.seeds,
            measures: measures
                .map(|(measure, table)| MeasureReport {
                    name: measure.name,
                    unit: measure.unit,
                    is_more_better: measure.is_more_better,
                    rows: conditions.iter().zip(table).map(row).collect(),
                })
                .collect(),
        }
    }
}

fn cell(spread: Option<Spread>) -> String {
    let Some(spread) = spread else {
        return "-".to_owned();
    };
    if spread.min == spread.max {
        number(spread.median)
    } else {
        format!(
            "{} [{} .. {}]",
            number(spread.median),
            number(spread.min),
            number(spread.max)
        )
    }
}

/// Formats a ratio with two digits.
fn share(ratio: f64) -> String {
    number((ratio * 100.0).round() / 100.0)
}
