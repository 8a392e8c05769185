//! Simulated run as a row of a sweep.

use hawser_netem::scenario::Scenario;
use hawser_sim::run::{self, Watch};

use super::pauses::allow;
use super::row::Row;

/// Runs a scenario over its own system; returns the columns of its report without series, and the
/// pause that its events allow.
///
/// # Errors
/// One line with the reason why the scenario cannot be run.
pub fn simulated(scenario: &Scenario) -> Result<Row, String> {
    let outcome = run::run(scenario, &scenario.via, Watch::default(), &mut |_| {});
    let report = outcome.map_err(|error| error.to_string())?.report;
    let report = serde_json::to_value(report).map_err(|error| error.to_string())?;
    let mut row = Row::from_json(&report);
    allow(scenario, &mut row);
    Ok(row)
}
