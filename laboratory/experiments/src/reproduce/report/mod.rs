//! What was reproduced, for a person, for a program, and as one page with plots.

mod chart;
mod figure;
mod json;
mod markdown;
mod page;
mod table;

pub use chart::{Bars, escape};
pub use figure::page;
pub use json::{ClaimReport, ReproductionReport, SpreadReport};
pub use markdown::{OnRealPackets, PageError, Standing};

use std::collections::BTreeMap;

use super::claims::{Expected, papers};
use super::runner::Reproduction;
use super::verdict::Judgement;
use hawser_netem::report::Spread;

impl Reproduction {
    /// A table with a line for each claim, and a summary.
    #[must_use]
    pub fn to_text(&self) -> String {
        table::write(self)
    }

    /// What becomes JSON.
    #[must_use]
    pub fn to_report(&self) -> ReproductionReport {
        json::report(self)
    }

    /// A page of the manual, with what was measured on `real` packets, by claim.
    #[must_use]
    pub fn to_markdown(&self, real: &BTreeMap<String, OnRealPackets>) -> String {
        markdown::write(self, real)
    }

    /// One HTML page that loads nothing: every set-up with its claims, and a plot of what was
    /// measured.
    #[must_use]
    pub fn to_html(&self) -> String {
        page::write(self)
    }
}

/// A page of the manual that [`Reproduction::to_markdown`] wrote of all claims, with what was
/// measured on `real` packets in the place of what it has of them. What was simulated, and what is
/// not measured anew, stays.
///
/// # Errors
/// The page is another one, or lacks a claim.
pub fn with_real_packets(page: &str, real: &BTreeMap<String, OnRealPackets>) -> Result<String, PageError> {
    let setups = papers().iter().flat_map(|paper| &paper.setups);
    let claims = setups.flat_map(|setup| &setup.claims);
    let ids: Vec<&str> = claims.map(|claim| claim.id.as_str()).collect();
    markdown::rewrite(page, &ids, real)
}

/// A number with as many digits as a reader wants: four that count, no zeros at the end.
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

/// The paper's number, with its unit.
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

fn measured(expected: &Expected, spread: Option<Spread>, seeds: u32) -> String {
    match (expected, spread) {
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

/// The numbers behind a verdict; empty when there are none.
fn evidence(judgement: &Judgement) -> String {
    let evidence = judgement.evidence.iter();
    let evidence: Vec<String> = evidence
        .map(|(name, value, unit)| format!("{name} = {} {unit}", number(*value)))
        .collect();
    evidence.join(", ")
}

#[cfg(test)]
mod tests;
