//! What was measured of a claim, and how it stands beside the paper.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::path::PathBuf;

use anyhow::Context;
use hawser_experiments::reproduce::{Claim, Expected, OnRealPackets};
use hawser_netem::report::Spread;
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
    /// Of all numbers; of a relation, what it says.
    pub(crate) unit: String,
    /// What is asked.
    asked: Asked,
    /// Each time that it was measured.
    runs: Vec<Run>,
}

/// What makes a result as good as the paper's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Asked {
    /// More.
    AtLeast,
    /// Less.
    AtMost,
    /// As much as in the paper, not more nor less.
    Within,
    /// A relation between numbers.
    Relation,
    /// What the paper found of its disciplines, as it stands.
    Ranking,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
struct Run {
    /// What the paper's number would be with the headers that packets have here.
    needed: Option<f64>,
    /// `None` for a relation between numbers.
    measured: Option<f64>,
    /// The part of a frame that is payload here.
    framing: f64,
    /// Whether it is at least as good as the paper's.
    is_as_good: bool,
    /// The numbers behind it.
    evidence: Vec<(String, f64)>,
}

/// What an evaluation says of a claim.
pub(super) struct Measured {
    pub(super) claim: String,
    pub(super) outcome: Outcome,
    /// The part of a frame that is payload here.
    pub(super) framing: f64,
    /// The numbers behind it.
    pub(super) evidence: Vec<(String, f64)>,
}

pub(super) enum Outcome {
    /// More is better. `scale`: what this header share makes of the paper's number.
    Rate { value: f64, scale: f64 },
    /// Less is better. `floor`: what is lost because the links cannot carry it with these headers.
    Loss { value: f64, floor: f64 },
    /// More is better, and no header takes anything from it.
    AtLeast(f64),
    /// Less is better.
    AtMost(f64),
    /// What the paper finds in others' systems and not in its own: it is found here too.
    Within(f64),
    /// A relation between numbers.
    Holds(bool),
    /// What the paper found of its disciplines.
    Ranking(bool),
}

impl Measured {
    pub(super) fn rate(claim: impl Display, value: f64, framing: f64, of_paper: f64) -> Self {
        let scale = framing / of_paper;
        Self::new(claim, Outcome::Rate { value, scale }, framing)
    }

    pub(super) fn loss(claim: impl Display, value: f64, framing: f64, floor: f64) -> Self {
        Self::new(claim, Outcome::Loss { value, floor }, framing)
    }

    pub(super) fn holds(
        claim: impl Display,
        holds: bool,
        framing: f64,
        evidence: Vec<(String, f64)>,
    ) -> Self {
        Self::new(claim, Outcome::Holds(holds), framing).with(evidence)
    }

    pub(super) fn ranking(
        claim: impl Display,
        holds: bool,
        framing: f64,
        evidence: Vec<(String, f64)>,
    ) -> Self {
        Self::new(claim, Outcome::Ranking(holds), framing).with(evidence)
    }

    pub(super) fn at_least(claim: impl Display, value: f64) -> Self {
        Self::new(claim, Outcome::AtLeast(value), 1.0)
    }

    pub(super) fn at_most(claim: impl Display, value: f64) -> Self {
        Self::new(claim, Outcome::AtMost(value), 1.0)
    }

    pub(super) fn within(claim: impl Display, value: f64) -> Self {
        Self::new(claim, Outcome::Within(value), 1.0)
    }

    fn new(claim: impl Display, outcome: Outcome, framing: f64) -> Self {
        Self {
            claim: claim.to_string(),
            outcome,
            framing,
            evidence: Vec::new(),
        }
    }

    /// With these numbers behind it.
    pub(super) fn with(self, evidence: Vec<(String, f64)>) -> Self {
        Self { evidence, ..self }
    }

    pub(super) fn judge(self, claim: &Claim) -> Found {
        let (paper, bound, unit) = match &claim.expected {
            Expected::Interval {
                paper,
                low,
                high,
                unit,
            } => {
                // Where the paper says a range only, its better end counts, unless that is nothing.
                let range = if *low > 0.0 { *low } else { *high };
                (*paper, paper.or(Some(range)), unit.symbol().to_owned())
            }
            Expected::Shape { check } => (None, None, check.clone()),
            Expected::Lost => (None, None, String::new()),
        };
        let range = match &claim.expected {
            Expected::Interval { low, high, .. } => Some((*low, *high)),
            Expected::Shape { .. } | Expected::Lost => None,
        };
        let (asked, needed, measured, is_as_good) = match self.outcome {
            Outcome::Rate { value, scale } => {
                let needed = bound.map(|bound| bound * scale);
                let is_as_good = needed.is_none_or(|needed| value >= needed * (1.0 - TOLERANCE));
                (Asked::AtLeast, needed, Some(value), is_as_good)
            }
            Outcome::Loss { value, floor } => {
                let needed = bound.map(|bound| bound.max(floor));
                let is_as_good = needed.is_none_or(|needed| value <= needed + 100.0 * TOLERANCE);
                (Asked::AtMost, needed, Some(value), is_as_good)
            }
            Outcome::AtLeast(value) => {
                let needed = paper.or(range.map(|(low, _)| low));
                let is_as_good = needed.is_none_or(|needed| value >= needed * (1.0 - TOLERANCE));
                (Asked::AtLeast, needed, Some(value), is_as_good)
            }
            Outcome::AtMost(value) => {
                let needed = paper.or(range.map(|(_, high)| high));
                let is_as_good = needed.is_none_or(|needed| value <= needed * (1.0 + TOLERANCE));
                (Asked::AtMost, needed, Some(value), is_as_good)
            }
            Outcome::Within(value) => {
                let is_as_good = range.is_none_or(|(low, high)| (low..=high).contains(&value));
                let needed = paper.or(range.map(|(_, high)| high));
                (Asked::Within, needed, Some(value), is_as_good)
            }
            Outcome::Holds(holds) => (Asked::Relation, None, None, holds),
            Outcome::Ranking(holds) => (Asked::Ranking, None, None, holds),
        };
        Found {
            claim: self.claim,
            metric: claim.metric.clone(),
            paper,
            unit,
            asked,
            runs: vec![Run {
                needed,
                measured,
                framing: self.framing,
                is_as_good,
                evidence: self.evidence,
            }],
        }
    }
}

impl Found {
    /// Adds what was measured of the same claim at another time.
    pub(super) fn add(&mut self, other: Self) {
        self.runs.extend(other.runs);
    }

    /// Whether more than half of the runs are at least as good as the paper.
    pub(crate) fn is_as_good(&self) -> bool {
        self.good_runs() * 2 > self.runs.len()
    }

    fn good_runs(&self) -> usize {
        self.runs.iter().filter(|run| run.is_as_good).count()
    }

    pub(super) fn verdict(&self) -> &'static str {
        let [not_as_good, not_as_there, not_so_here] = OnRealPackets::WORSE;
        match (self.asked, self.is_as_good()) {
            (Asked::Ranking, true) => "so here, too",
            (Asked::Ranking, false) => not_so_here,
            (Asked::Within, true) => "as there",
            (Asked::Within, false) => not_as_there,
            (Asked::AtLeast | Asked::AtMost | Asked::Relation, true) => "as good",
            (Asked::AtLeast | Asked::AtMost | Asked::Relation, false) => not_as_good,
        }
    }

    pub(super) fn needed_in_words(&self) -> String {
        let needed = self.spread(|run| run.needed);
        needed.map_or_else(|| "-".to_owned(), |needed| number(needed.median))
    }

    pub(super) fn measured_in_words(&self) -> String {
        let measured = self.spread(|run| run.measured);
        measured.map_or_else(|| "-".to_owned(), with_range)
    }

    pub(super) fn framing_in_words(&self) -> String {
        let framing = self.spread(|run| Some(run.framing));
        framing.map_or_else(|| "-".to_owned(), |framing| format!("{:.3}", framing.median))
    }

    /// The numbers behind it: the median of all runs, and their range.
    pub(super) fn numbers(&self) -> String {
        let names = self.runs.first().map_or(&[][..], |run| &run.evidence).iter();
        let of = |name: &String| {
            let in_run = |run: &Run| run.evidence.iter().find(|(n, _)| n == name).map(|(_, v)| *v);
            self.spread(in_run).map_or_else(String::new, with_range)
        };
        let numbers = names.map(|(name, _)| format!("{name} {}", of(name)));
        numbers.collect::<Vec<_>>().join(", ")
    }

    fn spread(&self, of: impl Fn(&Run) -> Option<f64>) -> Option<Spread> {
        Spread::of(self.runs.iter().filter_map(of).collect())
    }

    fn in_words(&self) -> OnRealPackets {
        let runs = self.runs.len();
        let text = match self.asked {
            Asked::AtLeast | Asked::AtMost | Asked::Within => {
                let bound = match self.asked {
                    Asked::AtLeast => "at least",
                    Asked::AtMost => "at most",
                    Asked::Within | Asked::Relation | Asked::Ranking => "about",
                };
                let numbers = self.numbers();
                let numbers = if numbers.is_empty() {
                    numbers
                } else {
                    format!(" ({numbers})")
                };
                format!(
                    "{} {}, {bound} {} needed at framing {}, {runs} runs: {}{numbers}",
                    self.measured_in_words(),
                    self.unit,
                    self.needed_in_words(),
                    self.framing_in_words(),
                    self.verdict()
                )
            }
            Asked::Relation | Asked::Ranking => format!(
                "{} in {} of {runs} runs ({})",
                self.verdict(),
                if self.is_as_good() {
                    self.good_runs()
                } else {
                    runs - self.good_runs()
                },
                self.numbers()
            ),
        };
        OnRealPackets {
            text,
            is_as_good: self.is_as_good(),
        }
    }
}

/// What was measured earlier and written as JSON, in words, by claim. What several files have of
/// a claim counts as runs of it.
///
/// # Errors
/// A file cannot be read, or is something else.
pub(crate) fn read(paths: &[PathBuf]) -> anyhow::Result<BTreeMap<String, OnRealPackets>> {
    let mut all: BTreeMap<String, Found> = BTreeMap::new();
    for path in paths {
        let place = || path.display().to_string();
        let text = std::fs::read_to_string(path).with_context(place)?;
        let found: Vec<Found> = serde_json::from_str(&text).with_context(place)?;
        merge(&mut all, found);
    }
    let words = |(claim, found): (String, Found)| (claim, found.in_words());
    Ok(all.into_iter().map(words).collect())
}

/// Adds runs of claims.
pub(super) fn merge(all: &mut BTreeMap<String, Found>, more: Vec<Found>) {
    for found in more {
        match all.get_mut(&found.claim) {
            Some(before) => before.add(found),
            None => drop(all.insert(found.claim.clone(), found)),
        }
    }
}

/// A number as the table has it: more digits where it is small.
pub(super) fn number(value: f64) -> String {
    if value.abs() < 10.0 {
        format!("{value:.2}")
    } else {
        format!("{value:.1}")
    }
}

fn with_range(spread: Spread) -> String {
    if spread.min == spread.max {
        return number(spread.median);
    }
    format!(
        "{} [{} .. {}]",
        number(spread.median),
        number(spread.min),
        number(spread.max)
    )
}

/// What two runs of the same differ by.
const TOLERANCE: f64 = 0.01;

#[cfg(test)]
mod tests {
    use super::*;
    use hawser_experiments::reproduce::papers;

    fn claim(id: &str) -> &'static Claim {
        let setups = papers().iter().flat_map(|paper| &paper.setups);
        let mut claims = setups.flat_map(|setup| &setup.claims);
        claims.find(|claim| claim.id == id).expect("a claim of the list")
    }

    #[test]
    fn a_rate_is_held_against_what_the_headers_leave_of_the_papers() {
        // 103.2 kb/s at a framing of 0.9: 91.7 kb/s at 0.8.
        let judged = |kbps| {
            let measured = Measured::rate("H.fig3.single", kbps, 0.8, 0.9);
            measured.judge(claim("H.fig3.single"))
        };
        assert!(judged(91.0).is_as_good());
        assert!(!judged(90.0).is_as_good());
        // A page that is written anew in part reads that again.
        let is_worse = |found: &Found| {
            OnRealPackets::WORSE
                .iter()
                .any(|words| found.in_words().text.contains(words))
        };
        assert!(!is_worse(&judged(91.0)) && is_worse(&judged(90.0)));
    }

    #[test]
    fn a_loss_is_held_against_the_paper_or_what_cannot_be_carried() {
        let judged = |loss, floor| {
            let measured = Measured::loss("H.tab2.n8.rr", loss, 0.8, floor);
            measured.judge(claim("H.tab2.n8.rr")).is_as_good()
        };
        assert!(judged(1.5, 0.0) && !judged(1.7, 0.0));
        assert!(judged(8.9, 8.0) && !judged(9.1, 8.0));
    }

    #[test]
    fn a_range_is_held_at_its_better_end_unless_that_is_nothing() {
        let judged = |id, loss| Measured::loss(id, loss, 0.8, 0.0).judge(claim(id)).is_as_good();
        assert!(judged("H.fig13.onehigh", 70.0) && !judged("H.fig13.onehigh", 72.0));
        assert!(judged("H.fig13.two128", 0.1) && !judged("H.fig13.two128", 1.2));
    }

    #[test]
    fn most_of_the_runs_decide_and_their_range_is_told() {
        let found = |kbps| {
            let measured = Measured::rate("H.fig3.single", kbps, 0.9, 0.9);
            measured.judge(claim("H.fig3.single"))
        };
        let mut all = BTreeMap::new();
        merge(&mut all, vec![found(100.0)]);
        merge(&mut all, vec![found(104.0)]);
        let both = all.get("H.fig3.single").expect("it was merged").in_words();
        assert!(!both.is_as_good, "{both:?}");
        assert!(
            both.text
                .starts_with("102.0 [100.0 .. 104.0] kb/s, at least 103.2 needed")
        );
        merge(&mut all, vec![found(103.0)]);
        let text = serde_json::to_string(&all.into_values().collect::<Vec<_>>()).expect("plain data");
        let again: Vec<Found> = serde_json::from_str(&text).expect("what was written");
        assert!(again[0].is_as_good());
    }

    #[test]
    fn a_ranking_says_whether_it_is_so_here() {
        let judged = |holds| {
            let measured = Measured::ranking("H.fig3.random", holds, 0.8, vec![("n=2".to_owned(), 150.0)]);
            measured.judge(claim("H.fig3.random")).in_words().text
        };
        assert_eq!(judged(true), "so here, too in 1 of 1 runs (n=2 150.0)");
        assert_eq!(judged(false), "not so here in 1 of 1 runs (n=2 150.0)");
    }
}
