//! Interface between an experiment of a paper and the runner.

use serde::{Deserialize, Serialize};

use super::quantity::{Quantity, Unit};

/// Evaluation of a paper that can be repeated with a seed.
///
/// An experiment contains the paper's set-up, but not its results: the accepted intervals are in
/// the claims data, which experiments do not see. It runs on any thread and several times
/// concurrently, so it keeps no state between runs; all random numbers come from the seed.
pub trait Experiment: Sync {
    /// Returns the set-ups of the claims data that the experiment implements, e.g. `H-tab2`.
    fn setups(&self) -> &'static [&'static str];

    /// Returns the claims that the experiment measures, e.g. `H.tab2.n2.random`. The runner runs it
    /// when one of them is selected.
    fn claims(&self) -> Vec<String>;

    /// Runs the experiment once.
    ///
    /// Equal seeds give identical results.
    ///
    /// # Errors
    /// [`ExperimentError`] if the set-up cannot be built or does not end; its claims are then
    /// `outside`.
    fn run(&self, seed: u64) -> Result<Findings, ExperimentError>;

    /// Returns the machine behind a claim that no product contains; `None` if products contain all.
    ///
    /// The page of the papers marks such results, which do not describe Hawser as installed.
    fn unshipped(&self, claim: &str) -> Option<&'static str> {
        let _ = claim;
        None
    }

    /// Returns a timeline of the 802.11 channels during a second of a typical run
    /// ([`hawser_sim::radio::Timeline`]); `None` without 802.11 links or timeline.
    fn timeline(&self, seed: u64) -> Option<String> {
        let _ = seed;
        None
    }
}

/// Results of one run of an experiment.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Findings {
    /// Measurements, at most one for each claim.
    pub measured: Vec<Measured>,
    /// Plots for the report.
    pub plots: Vec<Plot>,
}

/// Measurement of one claim in one run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Measured {
    /// Claim, e.g. `H.tab2.n2.random`.
    pub claim: String,
    /// Result.
    pub outcome: Outcome,
}

/// A number, or whether a shape holds.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// Value for a claim with an interval, in any unit of the claim's dimension.
    Value(Quantity),
    /// Result for a claim with a `check`.
    Shape {
        /// Set if the check holds in this run.
        holds: bool,
        /// Supporting numbers, by name.
        evidence: Vec<(String, Quantity)>,
    },
}

/// A plot of one run. The runner merges the runs: curves of one name become their median and
/// extremes.
#[derive(Clone, Debug, PartialEq)]
pub struct Plot {
    /// Set-up of the plot, e.g. `H-fig3`.
    pub setup: String,
    /// Title; together with the set-up it identifies the plot.
    pub title: String,
    /// Horizontal axis, e.g. `links` or `extra delay`.
    pub x: Axis,
    /// Vertical axis.
    pub y: Axis,
    /// Curves.
    pub curves: Vec<Curve>,
}

impl Plot {
    /// Creates a plot; an axis is given by label and unit.
    #[must_use]
    pub fn new(setup: &str, title: &str, x: (&str, Unit), y: (&str, Unit), curves: Vec<Curve>) -> Self {
        Self {
            setup: setup.to_owned(),
            title: title.to_owned(),
            x: Axis::new(x.0, x.1),
            y: Axis::new(y.0, y.1),
            curves,
        }
    }
}

/// Axis of a plot.
#[derive(Clone, Debug, PartialEq)]
pub struct Axis {
    /// Name.
    pub label: String,
    /// Unit of every point.
    pub unit: Unit,
}

/// Curve of a plot.
#[derive(Clone, Debug, PartialEq)]
pub struct Curve {
    /// Name in the legend.
    pub name: String,
    /// Points in order of x.
    pub points: Vec<(f64, f64)>,
}

impl Curve {
    /// Creates a curve through these points, in order of x.
    #[must_use]
    pub fn new(name: &str, points: Vec<(f64, f64)>) -> Self {
        Self {
            name: name.to_owned(),
            points,
        }
    }
}

/// Reason why a run has no results.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ExperimentError {
    /// The set-up cannot be built.
    #[error("set-up {setup}: {reason}")]
    Setup {
        /// Identifier, e.g. `H-tab2`.
        setup: String,
        /// Reason.
        reason: String,
    },
    /// An awaited event did not happen within the limit of virtual time.
    #[error("set-up {setup}: {what} did not end")]
    Unfinished {
        /// Identifier, e.g. `H-tab2`.
        setup: String,
        /// Awaited event.
        what: String,
    },
}

impl Findings {
    /// Adds a number.
    pub fn value(&mut self, claim: impl Into<String>, value: f64, unit: Unit) {
        self.measured.push(Measured {
            claim: claim.into(),
            outcome: Outcome::Value(Quantity::new(value, unit)),
        });
    }

    /// Adds the result of a check, with supporting numbers.
    pub fn shape(&mut self, claim: impl Into<String>, holds: bool, evidence: Vec<(String, Quantity)>) {
        self.measured.push(Measured {
            claim: claim.into(),
            outcome: Outcome::Shape { holds, evidence },
        });
    }
}

impl Axis {
    /// Creates an axis with this name and unit.
    #[must_use]
    pub fn new(label: &str, unit: Unit) -> Self {
        Self {
            label: label.to_owned(),
            unit,
        }
    }
}
