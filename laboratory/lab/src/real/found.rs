//! What was measured of a claim, and how it stands beside the paper.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::path::PathBuf;

use anyhow::Context;
use hawser_experiments::reproduce::{Claim, Expected, OnRealPackets, Standing};
use hawser_netem::report::Spread;
use serde::{Deserialize, Serialize};

/// What was measured of a claim.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Found {
    /// Its id, like `H.fig3.single`.
    pub(crate) claim: String,
    /// What is claimed.
    pub(crate) metric: String,
    /// The paper's number, or the better end of its range; `None` for a relation between numbers.
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
    /// At least as good as the paper's own number.
    is_as_good: bool,
    /// At least as good as what the paper's number would be with our headers.
    is_good_except_headers: bool,
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
        let at_least =
            |bound: Option<f64>, value: f64| bound.is_none_or(|bound| value >= bound * (1.0 - TOLERANCE));
        let (asked, bounds, measured, is_as_good, is_good_except_headers) = match self.outcome {
            Outcome::Rate { value, scale } => {
                let needed = bound.map(|bound| bound * scale);
                let (own, with_headers) = (at_least(bound, value), at_least(needed, value));
                (Asked::AtLeast, [bound, needed], Some(value), own, with_headers)
            }
            Outcome::Loss { value, floor } => {
                let at_most =
                    |bound: Option<f64>| bound.is_none_or(|bound| value <= bound + 100.0 * TOLERANCE);
                let needed = bound.map(|bound| bound.max(floor));
                let (own, with_headers) = (at_most(bound), at_most(needed));
                (Asked::AtMost, [bound, needed], Some(value), own, with_headers)
            }
            Outcome::AtLeast(value) => {
                let needed = paper.or(range.map(|(low, _)| low));
                let is_as_good = at_least(needed, value);
                (Asked::AtLeast, [needed; 2], Some(value), is_as_good, is_as_good)
            }
            Outcome::AtMost(value) => {
                let needed = paper.or(range.map(|(_, high)| high));
                let is_as_good = needed.is_none_or(|needed| value <= needed * (1.0 + TOLERANCE));
                (Asked::AtMost, [needed; 2], Some(value), is_as_good, is_as_good)
            }
            Outcome::Within(value) => {
                let is_as_good = range.is_none_or(|(low, high)| (low..=high).contains(&value));
                let needed = paper.or(range.map(|(_, high)| high));
                (Asked::Within, [needed; 2], Some(value), is_as_good, is_as_good)
            }
            Outcome::Holds(holds) => (Asked::Relation, [None; 2], None, holds, holds),
            Outcome::Ranking(holds) => (Asked::Ranking, [None; 2], None, holds, holds),
        };
        let [own, needed] = bounds;
        Found {
            claim: self.claim,
            metric: claim.metric.clone(),
            paper: own,
            unit,
            asked,
            runs: vec![Run {
                needed,
                measured,
                framing: self.framing,
                is_as_good,
                is_good_except_headers,
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

    /// Whether all runs are at least as good as the paper's own number.
    pub(crate) fn is_as_good(&self) -> bool {
        self.standing() == Standing::Good
    }

    /// The verdict over all runs. A row whose runs differ in it is undecided.
    fn standing(&self) -> Standing {
        let all = |of: fn(&Run) -> bool| self.runs.iter().all(of);
        if all(|run| run.is_as_good) {
            Standing::Good
        } else if all(|run| !run.is_as_good && run.is_good_except_headers) {
            Standing::GoodExceptHeaders
        } else if all(|run| !run.is_good_except_headers) {
            Standing::Worse
        } else {
            Standing::Undecided
        }
    }

    fn good_runs(&self) -> usize {
        self.runs.iter().filter(|run| run.is_as_good).count()
    }

    pub(super) fn verdict(&self) -> &'static str {
        let [not_as_good, not_as_there, not_so_here] = Standing::WORSE;
        match (self.asked, self.standing()) {
            (_, Standing::Undecided) => Standing::UNDECIDED,
            (_, Standing::GoodExceptHeaders) => Standing::GOOD_EXCEPT_HEADERS,
            (Asked::Ranking, Standing::Good) => "so here, too",
            (Asked::Ranking, Standing::Worse) => not_so_here,
            (Asked::Within, Standing::Good) => "as there",
            (Asked::Within, Standing::Worse) => not_as_there,
            (Asked::AtLeast | Asked::AtMost | Asked::Relation, Standing::Good) => "as good",
            (Asked::AtLeast | Asked::AtMost | Asked::Relation, Standing::Worse) => not_as_good,
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
        let counted = if runs == 1 {
            "1 run".to_owned()
        } else {
            format!("{runs} runs")
        };
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
                let (own, needed) = (self.paper.map(number), self.needed_in_words());
                let headers = match &own {
                    Some(own) if *own != needed => {
                        format!(
                            " ({needed} with our headers, framing {})",
                            self.framing_in_words()
                        )
                    }
                    Some(_) | None => String::new(),
                };
                format!(
                    "{} {}, {bound} {}{headers}, {counted}: {}{numbers}",
                    self.measured_in_words(),
                    self.unit,
                    own.unwrap_or(needed),
                    self.verdict()
                )
            }
            Asked::Relation | Asked::Ranking => {
                let standing = self.standing();
                let agreeing = match standing {
                    Standing::Worse => runs - self.good_runs(),
                    Standing::Good | Standing::GoodExceptHeaders | Standing::Undecided => self.good_runs(),
                };
                let good = if standing == Standing::Undecided {
                    ", good"
                } else {
                    ""
                };
                format!(
                    "{}{good} in {agreeing} of {counted} ({})",
                    self.verdict(),
                    self.numbers()
                )
            }
        };
        OnRealPackets {
            text,
            standing: self.standing(),
            runs,
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
    fn the_papers_own_number_decides_and_headers_are_named() {
        // 103.2 kb/s at a framing of 0.9: 91.7 kb/s at 0.8.
        let judged = |kbps| {
            let measured = Measured::rate("H.fig3.single", kbps, 0.8, 0.9);
            measured.judge(claim("H.fig3.single"))
        };
        assert_eq!(judged(103.0).standing(), Standing::Good);
        assert_eq!(judged(91.0).standing(), Standing::GoodExceptHeaders);
        assert_eq!(judged(90.0).standing(), Standing::Worse);
        let text = judged(91.0).in_words().text;
        assert_eq!(
            text,
            "91.0 kb/s, at least 103.2 (91.7 with our headers, framing 0.800), 1 run: good except headers"
        );
        // A page that is written anew in part reads that again.
        for kbps in [103.0, 91.0, 90.0] {
            let words = judged(kbps).in_words();
            assert_eq!(OnRealPackets::of_page(&words.text), Some(words));
        }
    }

    #[test]
    fn a_loss_is_compared_with_the_paper_and_with_what_cannot_be_sent() {
        let judged = |loss, floor| {
            let measured = Measured::loss("H.tab2.n8.rr", loss, 0.8, floor);
            measured.judge(claim("H.tab2.n8.rr")).standing()
        };
        assert_eq!(judged(1.5, 0.0), Standing::Good);
        assert_eq!(judged(1.7, 0.0), Standing::Worse);
        assert_eq!(judged(8.9, 8.0), Standing::GoodExceptHeaders);
        assert_eq!(judged(9.1, 8.0), Standing::Worse);
    }

    #[test]
    fn of_a_range_the_better_end_decides_unless_that_is_nothing() {
        let judged = |id, loss| Measured::loss(id, loss, 0.8, 0.0).judge(claim(id)).is_as_good();
        assert!(judged("H.fig13.onehigh", 70.0) && !judged("H.fig13.onehigh", 72.0));
        assert!(judged("H.fig13.two128", 0.1) && !judged("H.fig13.two128", 1.2));
    }

    #[test]
    fn runs_on_both_sides_of_the_bar_are_undecided() {
        let found = |kbps| {
            let measured = Measured::rate("H.fig3.single", kbps, 0.9, 0.9);
            measured.judge(claim("H.fig3.single"))
        };
        let mut all = BTreeMap::new();
        merge(&mut all, vec![found(100.0)]);
        merge(&mut all, vec![found(104.0)]);
        let both = all.get("H.fig3.single").expect("it was merged").in_words();
        assert_eq!(
            both.text,
            "102.0 [100.0 .. 104.0] kb/s, at least 103.2, 2 runs: undecided"
        );
        assert_eq!(OnRealPackets::of_page(&both.text), Some(both));
        let text = serde_json::to_string(&all.into_values().collect::<Vec<_>>()).expect("plain data");
        let again: Vec<Found> = serde_json::from_str(&text).expect("what was written");
        assert_eq!(again[0].standing(), Standing::Undecided);
    }

    #[test]
    fn a_ranking_says_whether_it_is_so_here() {
        let judged = |holds| {
            let measured = Measured::ranking("H.fig3.random", holds, 0.8, vec![("n=2".to_owned(), 150.0)]);
            measured.judge(claim("H.fig3.random")).in_words().text
        };
        assert_eq!(judged(true), "so here, too in 1 of 1 run (n=2 150.0)");
        assert_eq!(judged(false), "not so here in 1 of 1 run (n=2 150.0)");
    }
}
