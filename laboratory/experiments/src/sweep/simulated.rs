//! A run in virtual time as a row.

use hawser_netem::scenario::Scenario;
use hawser_sim::run::{self, Watch};

use super::pauses::allow;
use super::row::Row;

/// Runs a scenario over its own way: the columns of its report, without series, and what its events
/// allow.
///
/// # Errors
/// Why it cannot be run, in one line.
pub fn simulated(scenario: &Scenario) -> Result<Row, String> {
    let outcome = run::run(scenario, &scenario.via, Watch::default(), &mut |_| {});
    let report = outcome.map_err(|error| error.to_string())?.report;
    let report = serde_json::to_value(report).map_err(|error| error.to_string())?;
    let mut row = Row::from_json(&report);
    allow(scenario, &mut row);
    Ok(row)
}
