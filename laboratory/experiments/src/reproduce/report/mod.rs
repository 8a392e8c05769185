//! Report of a reproduction, for a person, for a program, and as one page with plots.

mod chart;
mod figure;
mod json;
mod markdown;
mod page;
mod table;

pub use chart::{Bars, escape};
pub use figure::page;
pub use json::{ClaimReport, ReproductionReport, SpreadReport};
pub use markdown::{OnRealPackets, SimulatorNote, Standing};

use std::collections::BTreeMap;

use super::claims::Expected;
use super::runner::Reproduction;
use super::verdict::Judgement;

impl Reproduction {
    /// Returns a table with a line per claim, and a summary.
    #[must_use]
    pub fn to_text(&self) -> String {
        table::write(self)
    }

    /// Returns the report for JSON.
    #[must_use]
    pub fn to_report(&self) -> ReproductionReport {
        json::report(self)
    }

    /// Returns the page of all claims, with results on `real` packets and `notes` on simulated
    /// results, both by claim.
    #[must_use]
    pub fn to_markdown(
        &self,
        real: &BTreeMap<String, OnRealPackets>,
        notes: &BTreeMap<String, SimulatorNote>,
    ) -> String {
        markdown::write(self, real, notes)
    }

    /// Returns one HTML page without external resources: every set-up with its claims, and a plot
    /// of the measurements.
    #[must_use]
    pub fn to_html(&self) -> String {
        page::write(self)
    }
}

/// Formats a number with four significant digits, without trailing zeros.
pub(crate) fn number(value: f64) -> String {
    if value == 0.0 {
        return "0".to_owned();
    }
    let digits = (3 - value.abs().log10().floor() as i32).clamp(0, 9) as usize;
    let text = format!("{value:.digits$}");
    if text.contains('.') {
        text.trim_end_matches('0').trim_end_matches('.').to_owned()
    } else {
        text
    }
}

/// Returns the paper's number, with its unit.
fn paper(expected: &Expected) -> String {
    match expected {
        Expected::Interval {
            paper: Some(value),
            unit,
            ..
        } => format!("{} {unit}", number(*value)),
        Expected::Interval { paper: None, .. } | Expected::Shape { .. } | Expected::Lost => "-".to_owned(),
    }
}

fn accepted(expected: &Expected) -> String {
    match expected {
        Expected::Interval { low, high, unit, .. } => format!("{} .. {} {unit}", number(*low), number(*high)),
        Expected::Shape { .. } => "shape".to_owned(),
        Expected::Lost => "-".to_owned(),
    }
}

fn measured(expected: &Expected, judgement: &Judgement) -> String {
    let seeds = judgement.seeds;
    match (expected, judgement.measured) {
        (Expected::Interval { unit, .. }, Some(spread)) => {
            let range = if spread.min == spread.max {
                String::new()
            } else {
                format!(" [{} .. {}]", number(spread.min), number(spread.max))
            };
            format!("{} {unit}{range}", number(spread.median))
        }
        (Expected::Shape { .. }, Some(spread)) => {
            let held = (spread.median * f64::from(seeds)).round();
            format!("holds at {held} of {seeds} seeds")
        }
        (Expected::Lost, _) | (_, None) => "-".to_owned(),
    }
}

/// Returns the supporting numbers of a verdict; empty if there are none.
fn evidence(judgement: &Judgement) -> String {
    let evidence = judgement.evidence.iter();
    let evidence: Vec<String> = evidence
        .map(|(name, value, unit)| format!("{name} = {} {unit}", number(*value)))
        .collect();
    evidence.join(", ")
}

#[cfg(test)]
mod tests;
