//! Effect of a varied constant, suite by suite.

use std::fmt::Write as _;

use crate::sweep::Table;

/// Key figures of a suite: higher is better, except for pauses.
const FIGURES: [&str; 2] = ["goodput_bps.total", PAUSE];
const PAUSE: &str = "longest_gap_since_event_ms";
/// Key figures of the first workload.
const SHARED: [&str; 2] = ["goodput_bps.workloads.0", "goodput_bps.workloads.1"];
/// Largest allowed change of a suite when a constant is varied by two. Source:
/// docs/notebook/path-model.md, "Sensitivity". Units: percent.
const MAX: f64 = 3.0;

/// Results of a suite with unchanged constants.
#[derive(Clone, Debug, PartialEq)]
pub struct Suite {
    /// Name.
    pub name: String,
    /// Figures, with their value in each run.
    figures: Vec<(String, Vec<Option<f64>>)>,
}

impl Suite {
    /// Returns the key figures of a sweep's table.
    #[must_use]
    pub fn of(name: &str, table: &Table) -> Self {
        let column = |name: &str| {
            let at = table.columns.iter().position(|(known, _)| known == name)?;
            let values = table.rows.iter().map(|row| row[at].number());
            Some((name.to_owned(), values.collect()))
        };
        let is_shared = column(SHARED[1]).is_some();
        let names = if is_shared { &SHARED[..1] } else { &FIGURES };
        Self {
            name: name.to_owned(),
            figures: names.iter().filter_map(|name| column(name)).collect(),
        }
    }

    /// Returns the change of each figure against `base`, as the geometric mean over the runs. Runs
    /// that failed or lack the figure are left out. Units: percent.
    #[must_use]
    pub fn against(&self, base: &Self) -> Vec<f64> {
        let change = |(name, values): &(String, Vec<Option<f64>>)| {
            let known = base.figures.iter().find(|(known, _)| known == name);
            let pairs = known.into_iter().flat_map(|(_, known)| values.iter().zip(known));
            let ratios: Vec<f64> = pairs
                .filter_map(|(own, base)| Some((*own)? / (*base)?))
                .filter(|ratio| ratio.is_finite() && *ratio > 0.0)
                .map(f64::ln)
                .collect();
            let mean = ratios.iter().sum::<f64>() / (ratios.len().max(1)) as f64;
            (mean.exp() - 1.0) * 100.0
        };
        self.figures.iter().map(change).collect()
    }

    /// Returns the headings of the suite's figures.
    #[must_use]
    pub fn headings(&self) -> Vec<String> {
        let word = |name: &str| match name {
            PAUSE => "pause",
            name if name == SHARED[0] => "share",
            _ => "goodput",
        };
        self.figures
            .iter()
            .map(|(name, _)| format!("{}, {}", self.name, word(name)))
            .collect()
    }
}

/// A constant, its value, and the change of each figure at half and at twice the value; `None` if
/// it could not be measured. Units: percent.
pub type Varied = (String, String, [Option<Vec<f64>>; 2]);

/// Results for the constants that were varied.
#[derive(Clone, Debug, Default)]
pub struct Changes {
    /// Figures, in the order of the suites.
    pub headings: Vec<String>,
    /// The constants, in the order in which they were found.
    pub rows: Vec<Varied>,
}

impl Changes {
    /// Returns the largest change of a constant.
    fn largest(ways: &[Option<Vec<f64>>; 2]) -> f64 {
        let changes = ways.iter().flatten().flatten();
        changes.fold(0.0, |largest, change| change.abs().max(largest))
    }

    /// Returns the number of constants that change a figure by more than allowed.
    #[must_use]
    pub fn marked(&self) -> usize {
        self.rows
            .iter()
            .filter(|(_, _, ways)| Self::largest(ways) > MAX)
            .count()
    }

    /// Returns the table of a page: largest changes first; changes of more than 3 % are bold.
    #[must_use]
    pub fn to_markdown(&self) -> String {
        let mut text = "| constant | value |".to_owned();
        for heading in &self.headings {
            // Writing to a string cannot fail.
            let _ = write!(text, " {heading} |");
        }
        text.push_str("\n|---|---|");
        text.push_str(&"---|".repeat(self.headings.len()));
        text.push('\n');
        let mut rows: Vec<_> = self.rows.iter().collect();
        rows.sort_by(|a, b| {
            Self::largest(&b.2)
                .total_cmp(&Self::largest(&a.2))
                .then(a.0.cmp(&b.0))
        });
        for (name, value, ways) in rows {
            let _ = write!(text, "| `{name}` | `{}` |", value.replace('|', "/"));
            for figure in 0..self.headings.len() {
                let [half, twice] = [0, 1].map(|way| said(ways[way].as_deref(), figure));
                let _ = write!(text, " {half} {twice} |");
            }
            text.push('\n');
        }
        text
    }
}

fn said(changes: Option<&[f64]>, figure: usize) -> String {
    let Some(change) = changes.and_then(|changes| changes.get(figure)) else {
        return "failed".to_owned();
    };
    // Avoids negative zero.
    let change = (change * 10.0).round() / 10.0 + 0.0;
    if change.abs() > MAX {
        format!("**{change:+.1}**")
    } else {
        format!("{change:+.1}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sweep::{Cell, Row};

    fn suite(name: &str, columns: &[(&str, &[f64])]) -> Suite {
        let count = columns[0].1.len();
        let rows: Vec<Row> = (0..count)
            .map(|n| {
                let mut row = Row::default();
                for (name, values) in columns {
                    row.push(*name, Cell::Float(values[n]));
                }
                row
            })
            .collect();
        Suite::of(name, &Table::of(rows.iter()))
    }

    #[test]
    fn changes_are_geometric_means_over_the_runs() {
        let base = suite(
            "kinds",
            &[("goodput_bps.total", &[1e6, 4e6]), (PAUSE, &[100.0, 100.0])],
        );
        let other = suite(
            "kinds",
            &[("goodput_bps.total", &[2e6, 2e6]), (PAUSE, &[110.0, 100.0])],
        );
        let changes = other.against(&base);
        assert!(changes[0].abs() < 1e-9, "{changes:?}");
        assert!((changes[1] - 4.88).abs() < 0.01, "{changes:?}");
        assert_eq!(base.headings(), ["kinds, goodput", "kinds, pause"]);
        let shared = suite(
            "fair",
            &[
                ("goodput_bps.total", &[1e6]),
                (SHARED[0], &[5e5]),
                (SHARED[1], &[5e5]),
            ],
        );
        assert_eq!(shared.headings(), ["fair, share"]);
    }

    #[test]
    fn the_table_begins_with_what_matters_most_and_marks_it() {
        let changes = Changes {
            headings: vec!["kinds, goodput".to_owned()],
            rows: vec![
                (
                    "a:A".to_owned(),
                    "1".to_owned(),
                    [Some(vec![-0.04]), Some(vec![1.0])],
                ),
                ("b:B".to_owned(), "2".to_owned(), [Some(vec![-7.25]), None]),
            ],
        };
        assert_eq!(changes.marked(), 1);
        let text = changes.to_markdown();
        let lines: Vec<&str> = text.lines().skip(2).collect();
        assert_eq!(
            lines,
            ["| `b:B` | `2` | **-7.3** failed |", "| `a:A` | `1` | +0.0 +1.0 |"]
        );
    }
}
