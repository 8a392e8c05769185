//! Evaluations of a paper again, on real packets: the daemons in namespaces instead of modelled
//! schedulers.
//!
//! What is asked here is another question than that of `hawser_experiments::reproduce`, whose
//! claims these are: not whether a number of the paper comes out again, but whether Hawser does at
//! least as well as the paper with the same links, after its own headers. `framing` is the part of
//! a frame that is payload of the application here. What is on the air runs in a kernel of its own
//! ([`air`]).

mod air;
mod all_aps;
mod juggler;
mod piconet;
mod radio_world;

use std::collections::BTreeMap;
use std::fmt::Display;
use std::path::Path;

use anyhow::Context;
use hawser_experiments::reproduce::{Claim, Expected, Selected};
use hawser_linux::shutdown;
use hawser_terminal::columns;
use hawser_testbed::{Options, Progress};
use serde::{Deserialize, Serialize};

/// What was measured of a claim.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Found {
    /// Its id, like `H.fig3.single`.
    pub(crate) claim: String,
    /// What is claimed.
    pub(crate) metric: String,
    /// What the paper has; `None` for a relation between numbers.
    pub(crate) paper: Option<f64>,
    /// What the paper's number would be with the headers that packets have here.
    pub(crate) needed: Option<f64>,
    /// What was measured, in the paper's unit; `None` for a relation between numbers.
    pub(crate) measured: Option<f64>,
    /// Of all of them.
    pub(crate) unit: String,
    /// The part of a frame that is payload here.
    pub(crate) framing: f64,
    /// Whether it is at least as good as the paper's.
    pub(crate) is_as_good: bool,
    /// The numbers behind it.
    pub(crate) evidence: Vec<(String, f64)>,
}

/// Measures what the selected claims need; what no evaluation here measures is left out. An
/// evaluation that fails is told to `on_failure`, and the others go on.
///
/// Must be called on a thread that lives as long as the process: the daemons of the runs die with
/// it.
pub(crate) fn run(
    selected: &[Selected],
    options: &Options,
    on_progress: &mut dyn FnMut(&str, &Progress<'_>),
    on_failure: &mut dyn FnMut(anyhow::Error),
) -> Vec<Found> {
    let mut all = Vec::new();
    for evaluation in piconet::EVALUATIONS {
        if !is_any_asked(selected, evaluation.claims) {
            continue;
        }
        let mut lab = piconet::Lab::new(evaluation.setup, options, on_progress);
        let found = (evaluation.run)(&mut lab).unwrap_or_else(|error| {
            on_failure(error);
            Vec::new()
        });
        if shutdown::is_requested() {
            break;
        }
        all.extend(judge_all(found, selected));
    }
    for evaluation in air::evaluations() {
        if shutdown::is_requested() {
            break;
        }
        if is_any_asked(selected, evaluation.claims) {
            let found = evaluation.find(selected, options, on_progress);
            all.extend(found.unwrap_or_else(|error| {
                on_failure(error);
                Vec::new()
            }));
        }
    }
    all
}

fn is_any_asked(selected: &[Selected], claims: &[&str]) -> bool {
    let is_asked = |claim: &&str| selected.iter().any(|(_, _, known)| known.id == **claim);
    claims.iter().any(is_asked)
}

/// Those of them that are selected.
fn judge_all(found: Vec<Measured>, selected: &[Selected]) -> Vec<Found> {
    let judge = |measured: Measured| {
        let claim = selected.iter().find(|(_, _, known)| known.id == measured.claim);
        claim.map(|(_, _, claim)| measured.judge(claim))
    };
    found.into_iter().filter_map(judge).collect()
}

/// The claims that are measured on real packets.
pub(crate) fn claims() -> Vec<&'static str> {
    let in_namespaces = piconet::EVALUATIONS.iter().map(|evaluation| evaluation.claims);
    let on_air = air::evaluations().map(|evaluation| evaluation.claims);
    in_namespaces.chain(on_air).flatten().copied().collect()
}

/// What an evaluation says of a claim.
struct Measured {
    claim: String,
    outcome: Outcome,
    framing: f64,
    evidence: Vec<(String, f64)>,
}

enum Outcome {
    /// More is better. `scale`: what this header share makes of the paper's number.
    Rate { value: f64, scale: f64 },
    /// Less is better. `floor`: what is lost because the links cannot carry it with these headers.
    Loss { value: f64, floor: f64 },
    /// A relation between numbers.
    Holds(bool),
    /// More is better, and no header takes anything from it.
    AtLeast(f64),
    /// Less is better.
    AtMost(f64),
    /// What the paper finds in others' systems and not in its own: it is found here too.
    Within(f64),
}

impl Measured {
    fn rate(claim: impl Display, value: f64, framing: f64, of_paper: f64) -> Self {
        Self {
            claim: claim.to_string(),
            outcome: Outcome::Rate {
                value,
                scale: framing / of_paper,
            },
            framing,
            evidence: Vec::new(),
        }
    }

    fn loss(claim: impl Display, value: f64, framing: f64, floor: f64) -> Self {
        Self {
            claim: claim.to_string(),
            outcome: Outcome::Loss { value, floor },
            framing,
            evidence: Vec::new(),
        }
    }

    fn holds(claim: impl Display, holds: bool, framing: f64, evidence: Vec<(String, f64)>) -> Self {
        Self {
            claim: claim.to_string(),
            outcome: Outcome::Holds(holds),
            framing,
            evidence,
        }
    }

    fn at_least(claim: impl Display, value: f64) -> Self {
        Self::plain(claim, Outcome::AtLeast(value))
    }

    fn at_most(claim: impl Display, value: f64) -> Self {
        Self::plain(claim, Outcome::AtMost(value))
    }

    fn within(claim: impl Display, value: f64) -> Self {
        Self::plain(claim, Outcome::Within(value))
    }

    fn plain(claim: impl Display, outcome: Outcome) -> Self {
        Self {
            claim: claim.to_string(),
            outcome,
            framing: 1.0,
            evidence: Vec::new(),
        }
    }

    fn with(self, evidence: Vec<(String, f64)>) -> Self {
        Self { evidence, ..self }
    }

    fn judge(self, claim: &Claim) -> Found {
        let (paper, unit) = match &claim.expected {
            Expected::Interval { paper, unit, .. } => (*paper, unit.symbol().to_owned()),
            Expected::Shape { check } => (None, check.clone()),
            Expected::Lost => (None, String::new()),
        };
        let bounds = match &claim.expected {
            Expected::Interval { low, high, .. } => Some((*low, *high)),
            Expected::Shape { .. } | Expected::Lost => None,
        };
        let (needed, measured, is_as_good) = match self.outcome {
            Outcome::Rate { value, scale } => {
                let needed = paper.map(|paper| paper * scale);
                let is_as_good = needed.is_none_or(|needed| value >= needed * (1.0 - TOLERANCE));
                (needed, Some(value), is_as_good)
            }
            Outcome::Loss { value, floor } => {
                let needed = paper.map(|paper| paper.max(floor));
                let is_as_good = needed.is_none_or(|needed| value <= needed + 100.0 * TOLERANCE);
                (needed, Some(value), is_as_good)
            }
            Outcome::Holds(holds) => (None, None, holds),
            Outcome::AtLeast(value) => {
                let needed = paper.or(bounds.map(|(low, _)| low));
                let is_as_good = needed.is_none_or(|needed| value >= needed * (1.0 - TOLERANCE));
                (needed, Some(value), is_as_good)
            }
            Outcome::AtMost(value) => {
                let needed = paper.or(bounds.map(|(_, high)| high));
                let is_as_good = needed.is_none_or(|needed| value <= needed * (1.0 + TOLERANCE));
                (needed, Some(value), is_as_good)
            }
            Outcome::Within(value) => {
                let is_as_good = bounds.is_none_or(|(low, high)| (low..=high).contains(&value));
                (paper.or(bounds.map(|(_, high)| high)), Some(value), is_as_good)
            }
        };
        Found {
            claim: self.claim,
            metric: claim.metric.clone(),
            paper,
            needed,
            measured,
            unit,
            framing: self.framing,
            is_as_good,
            evidence: self.evidence,
        }
    }
}

/// A table for a terminal.
pub(crate) fn table(all: &[Found]) -> String {
    let number = |value: Option<f64>| value.map_or_else(|| "-".to_owned(), |value| format!("{value:.1}"));
    let rows = all.iter().map(|found| {
        vec![
            found.claim.clone(),
            number(found.paper),
            number(found.needed),
            number(found.measured),
            found.unit.clone(),
            format!("{:.3}", found.framing),
            if found.is_as_good { "yes" } else { "no" }.to_owned(),
            numbers(found),
        ]
    });
    let heads = [
        "claim",
        "paper",
        "framed",
        "measured",
        "unit or relation",
        "framing",
        "as good",
        "numbers",
    ];
    columns(&heads, &rows.collect::<Vec<_>>(), "")
}

/// What was measured earlier and written as JSON, in words, by claim.
///
/// # Errors
/// The file cannot be read, or is something else.
pub(crate) fn read(path: &Path) -> anyhow::Result<BTreeMap<String, String>> {
    let place = || path.display().to_string();
    let text = std::fs::read_to_string(path).with_context(place)?;
    let all: Vec<Found> = serde_json::from_str(&text).with_context(place)?;
    Ok(all
        .into_iter()
        .map(|found| (found.claim.clone(), words(&found)))
        .collect())
}

/// What was measured, and whether it is as good as the paper.
fn words(found: &Found) -> String {
    let judged = if found.is_as_good {
        "as good"
    } else {
        "not as good"
    };
    match (found.measured, found.needed) {
        (Some(measured), Some(needed)) => {
            format!("{measured:.1} of {needed:.1} {}: {judged}", found.unit)
        }
        _ => format!("{judged} ({})", numbers(found)),
    }
}

/// The numbers behind it.
fn numbers(found: &Found) -> String {
    let evidence = found.evidence.iter();
    let evidence = evidence.map(|(name, value)| format!("{name} {value:.1}"));
    evidence.collect::<Vec<_>>().join(", ")
}

/// What two runs of the same differ by.
const TOLERANCE: f64 = 0.01;
