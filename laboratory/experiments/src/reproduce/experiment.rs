//! What an experiment of a paper is to the runner.

use super::quantity::{Quantity, Unit};

/// One evaluation of a paper: everything needed to run it again at a seed.
///
/// An experiment holds what the paper says of its set-up and nothing of what the paper found: the
/// accepted intervals are in the claims data, which experiments do not see. It runs on any thread,
/// many at once, so it keeps nothing between runs; all its randomness comes from the seed.
pub trait Experiment: Sync {
    /// The set-ups of the claims data that it re-creates, like `H-tab2`.
    fn setups(&self) -> &'static [&'static str];

    /// The claims it measures, like `H.tab2.n2.random`. The runner asks for it when one of them is
    /// selected.
    fn claims(&self) -> Vec<String>;

    /// Runs it once.
    ///
    /// The same seed gives the same findings, bit for bit.
    ///
    /// # Errors
    /// [`ExperimentError`] when the set-up cannot be built or does not come to an end; its claims
    /// are `outside` then.
    fn run(&self, seed: u64) -> Result<Findings, ExperimentError>;

    /// A picture of the air during a second of its most telling run
    /// ([`hawser_sim::radio::Timeline`]); `None` when it is not on the air, or has none.
    fn timeline(&self, seed: u64) -> Option<String> {
        let _ = seed;
        None
    }
}

/// What one run of an experiment found.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Findings {
    /// At most one for each claim.
    pub measured: Vec<Measured>,
    /// What the report draws.
    pub plots: Vec<Plot>,
}

/// What one run found of one claim.
#[derive(Clone, Debug, PartialEq)]
pub struct Measured {
    /// The claim, like `H.tab2.n2.random`.
    pub claim: String,
    /// What was found.
    pub outcome: Outcome,
}

/// A number, or whether a shape holds.
#[derive(Clone, Debug, PartialEq)]
pub enum Outcome {
    /// For claims with an interval. In any unit of the claim's dimension.
    Value(Quantity),
    /// For claims with a `check`.
    Shape {
        /// Whether the check holds in this run.
        holds: bool,
        /// The numbers that say so, by name, for a reader who doubts.
        evidence: Vec<(String, Quantity)>,
    },
}

/// A figure as measured in one run. The runner joins the runs: curves of one name show their median
/// and extremes.
#[derive(Clone, Debug, PartialEq)]
pub struct Plot {
    /// The set-up it belongs to, like `H-fig3`.
    pub setup: String,
    /// What it shows; with the set-up, it tells plots apart.
    pub title: String,
    /// What runs along the bottom, like `links` or `extra delay`.
    pub x: Axis,
    /// What runs up the side.
    pub y: Axis,
    /// What is drawn.
    pub curves: Vec<Curve>,
}

impl Plot {
    /// A plot; an axis is its label and its unit.
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

/// What an axis counts.
#[derive(Clone, Debug, PartialEq)]
pub struct Axis {
    /// Its name.
    pub label: String,
    /// Its unit, which every point of it has.
    pub unit: Unit,
}

/// One line of a plot.
#[derive(Clone, Debug, PartialEq)]
pub struct Curve {
    /// As in the legend.
    pub name: String,
    /// In order of x.
    pub points: Vec<(f64, f64)>,
}

impl Curve {
    /// A line through these points, in order of x.
    #[must_use]
    pub fn new(name: &str, points: Vec<(f64, f64)>) -> Self {
        Self {
            name: name.to_owned(),
            points,
        }
    }
}

/// Why a run found nothing.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ExperimentError {
    /// The set-up cannot be built.
    #[error("set-up {setup}: {reason}")]
    Setup {
        /// Like `H-tab2`.
        setup: String,
        /// What is wrong.
        reason: String,
    },
    /// What should end did not, within the virtual time given.
    #[error("set-up {setup}: {what} did not end")]
    Unfinished {
        /// Like `H-tab2`.
        setup: String,
        /// What was waited for.
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

    /// Adds whether a shape holds, with the numbers that say so.
    pub fn shape(&mut self, claim: impl Into<String>, holds: bool, evidence: Vec<(String, Quantity)>) {
        self.measured.push(Measured {
            claim: claim.into(),
            outcome: Outcome::Shape { holds, evidence },
        });
    }
}

impl Axis {
    /// An axis of this name and unit.
    #[must_use]
    pub fn new(label: &str, unit: Unit) -> Self {
        Self {
            label: label.to_owned(),
            unit,
        }
    }
}
