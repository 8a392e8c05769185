//! Result of a claim's measurement, and its comparison with the paper.

use std::fmt::Display;

use hawser_experiments::reproduce::{Claim, Expected, OnRealPackets, Standing};
use hawser_netem::report::Spread;
use hawser_terminal::columns;
use serde::{Deserialize, Serialize};

/// Result of one run of an evaluation for a claim.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Measured {
    /// Identifier of the claim, e.g. `H.fig3.single`.
    pub(crate) claim: String,
    pub(crate) outcome: Outcome,
    /// Payload share of a frame in this measurement.
    pub(super) framing: f64,
    /// Supporting numbers.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) evidence: Vec<(String, f64)>,
    /// Set where the claim compares two settings of Hawser.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    compares_own: bool,
}

/// Result of a run, by the question that the paper's number answers.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Outcome {
    /// More is better. `scale`: factor of the paper's number for the header share here.
    Rate { value: f64, scale: f64 },
    /// Less is better. `floor`: loss that is inevitable because the links cannot transfer these
    /// headers in addition.
    Loss { value: f64, floor: f64 },
    /// More is better, independent of headers.
    AtLeast(f64),
    /// Less is better.
    AtMost(f64),
    /// Result of other systems in the paper, which must agree here.
    Within(f64),
    /// A relation between numbers.
    Holds(bool),
    /// Order of the paper's schedulers.
    Ranking(bool),
}

/// Runs of a claim.
#[derive(Clone, Debug)]
pub(crate) struct Found {
    pub(crate) claim: &'static Claim,
    /// Each time that it was measured.
    pub(crate) runs: Vec<Measured>,
    /// Number of runs that ended without a result; these count as worse.
    pub(crate) failed: usize,
    /// Set if an earlier program or set-up produced the runs.
    pub(crate) is_stale: bool,
}

/// Comparison of a run with the paper.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Judged {
    /// The paper's number, or the end of its range that counts; `None` for a relation.
    own: Option<f64>,
    /// `own`, corrected to the headers of packets here.
    needed: Option<f64>,
    /// `None` for a relation.
    measured: Option<f64>,
    /// Set if the result is at least as good as `own`.
    is_as_good: bool,
    /// Set if the result is at least as good as `needed`.
    is_good_except_headers: bool,
}

impl Outcome {
    fn is_finite(&self) -> bool {
        match *self {
            Self::Rate { value, scale: other } | Self::Loss { value, floor: other } => {
                value.is_finite() && other.is_finite()
            }
            Self::AtLeast(value) | Self::AtMost(value) | Self::Within(value) => value.is_finite(),
            Self::Holds(_) | Self::Ranking(_) => true,
        }
    }

    /// Returns the words between a number and its bound.
    fn bound(&self) -> &'static str {
        match self {
            Self::Rate { .. } | Self::AtLeast(_) => "at least",
            Self::Loss { .. } | Self::AtMost(_) => "at most",
            Self::Within(_) | Self::Holds(_) | Self::Ranking(_) => "about",
        }
    }

    fn judge(&self, expected: &Expected) -> Judged {
        let (paper, range) = match *expected {
            Expected::Interval { paper, low, high, .. } => (paper, Some((low, high))),
            Expected::Shape { .. } | Expected::Lost => (None, None),
        };
        let (low, high) = (range.map(|(low, _)| low), range.map(|(_, high)| high));
        let at_least = |bound: Option<f64>, value| bound.is_none_or(|bound| value >= bound - rounding(bound));
        let at_most = |bound: Option<f64>, value| bound.is_none_or(|bound| value <= bound + rounding(bound));
        // Where the paper gives a range only, its lower end counts; for a loss whose lower end is
        // zero, the upper end.
        let least = range.map(|(low, high)| if low > 0.0 { low } else { high });
        match *self {
            Self::Rate { value, scale } => {
                let own = paper.or(low);
                let needed = own.map(|own| own * scale);
                Judged {
                    own,
                    needed,
                    measured: Some(value),
                    is_as_good: at_least(own, value),
                    is_good_except_headers: at_least(own, value) || at_least(needed, value),
                }
            }
            Self::Loss { value, floor } => {
                let own = paper.or(least);
                let needed = own.map(|own| own.max(floor));
                Judged {
                    own,
                    needed,
                    measured: Some(value),
                    is_as_good: at_most(own, value),
                    is_good_except_headers: at_most(needed, value),
                }
            }
            Self::AtLeast(value) => Judged::plain(paper.or(low), value, at_least(paper.or(low), value)),
            Self::AtMost(value) => Judged::plain(paper.or(high), value, at_most(paper.or(high), value)),
            Self::Within(value) => {
                let is_inside = range.is_none_or(|(low, high)| (low..=high).contains(&value));
                Judged::plain(paper.or(high), value, is_inside)
            }
            Self::Holds(holds) | Self::Ranking(holds) => Judged {
                own: None,
                needed: None,
                measured: None,
                is_as_good: holds,
                is_good_except_headers: holds,
            },
        }
    }
}

impl Judged {
    fn plain(own: Option<f64>, value: f64, is_as_good: bool) -> Self {
        Self {
            own,
            needed: own,
            measured: Some(value),
            is_as_good,
            is_good_except_headers: is_as_good,
        }
    }
}

/// Returns the rounding error of a paper's number: half a unit of its last printed digit, at most
/// 0.5 %.
fn rounding(paper: f64) -> f64 {
    let text = paper.to_string();
    let digits = text.split_once('.').map_or(0, |(_, digits)| digits.len());
    let unit = 0.5 * 10f64.powi(-(digits as i32));
    if paper == 0.0 {
        ROUNDED_TO_NOTHING
    } else {
        unit.min(0.005 * paper.abs())
    }
}

/// Largest loss that the papers' tables print as 0. Units: percent. Source: two digits.
const ROUNDED_TO_NOTHING: f64 = 0.005;

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

    pub(super) fn minimum(claim: impl Display, value: f64) -> Self {
        Self::new(claim, Outcome::AtLeast(value), 1.0)
    }

    pub(super) fn maximum(claim: impl Display, value: f64) -> Self {
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
            compares_own: false,
        }
    }

    /// Adds supporting numbers.
    pub(super) fn with(self, evidence: Vec<(String, f64)>) -> Self {
        Self { evidence, ..self }
    }

    /// Marks that the claim compares two settings of Hawser.
    pub(super) fn of_own_settings(self) -> Self {
        Self {
            compares_own: true,
            ..self
        }
    }

    /// Returns the result with rounded evidence, without evidence that is not finite; `None` if the
    /// result itself is not finite.
    pub(super) fn finite(mut self) -> Option<Self> {
        self.evidence.retain(|(_, value)| value.is_finite());
        for (_, value) in &mut self.evidence {
            *value = rounded(*value);
        }
        self.framing = if self.framing.is_finite() {
            rounded(self.framing)
        } else {
            1.0
        };
        self.outcome.is_finite().then_some(self)
    }
}

/// Rounds to six digits, so that a journal of hundreds of runs stays small.
fn rounded(value: f64) -> f64 {
    format!("{value:.5e}").parse().unwrap_or(value)
}

impl Found {
    pub(crate) fn new(claim: &'static Claim) -> Self {
        Self {
            claim,
            runs: Vec::new(),
            failed: 0,
            is_stale: false,
        }
    }

    /// Returns whether all runs are at least as good as the paper's own number.
    pub(crate) fn is_as_good(&self) -> bool {
        self.standing() == Standing::Good
    }

    /// Returns the verdict over all runs: undecided if the runs differ.
    pub(crate) fn standing(&self) -> Standing {
        let runs: Vec<Judged> = self.judged().collect();
        let all = |of: fn(&Judged) -> bool| self.failed == 0 && runs.iter().all(of);
        if all(|run| run.is_as_good) {
            Standing::Good
        } else if all(|run| !run.is_as_good && run.is_good_except_headers) {
            Standing::GoodExceptHeaders
        } else if runs.iter().all(|run| !run.is_good_except_headers) {
            Standing::Worse
        } else {
            Standing::Undecided
        }
    }

    fn judged(&self) -> impl Iterator<Item = Judged> {
        let expected = &self.claim.expected;
        self.runs.iter().map(move |run| run.outcome.judge(expected))
    }

    fn good_runs(&self) -> usize {
        self.judged().filter(|run| run.is_as_good).count()
    }

    fn outcome(&self) -> Option<&Outcome> {
        self.runs.first().map(|run| &run.outcome)
    }

    fn verdict(&self) -> &'static str {
        match (self.standing(), self.outcome()) {
            (Standing::Undecided, _) => "undecided",
            (Standing::GoodExceptHeaders, _) => "good except headers",
            (Standing::Good, Some(Outcome::Ranking(_))) => "so here, too",
            (Standing::Worse, Some(Outcome::Ranking(_))) => "not so here",
            (Standing::Good, Some(Outcome::Within(_))) => "as there",
            (Standing::Worse, Some(Outcome::Within(_))) => "not as there",
            (Standing::Good, _) => "as good",
            (Standing::Worse, _) => "not as good",
        }
    }

    /// Returns the unit of all numbers; of a relation, the relation.
    fn unit(&self) -> &str {
        match &self.claim.expected {
            Expected::Interval { unit, .. } => unit.symbol(),
            Expected::Shape { check } => check,
            Expected::Lost => "",
        }
    }

    fn own(&self) -> Option<f64> {
        self.judged().next().and_then(|run| run.own)
    }

    fn in_words(&self, of: fn(&Judged) -> Option<f64>) -> String {
        let spread = Spread::of(self.judged().filter_map(|run| of(&run)).collect());
        spread.map_or_else(|| "-".to_owned(), with_range)
    }

    fn framing_in_words(&self) -> String {
        let framing = Spread::of(self.runs.iter().map(|run| run.framing).collect());
        framing.map_or_else(|| "-".to_owned(), |framing| format!("{:.3}", framing.median))
    }

    /// Returns the supporting numbers: the median of all runs, and their range.
    fn numbers(&self) -> String {
        let names = self.runs.first().map_or(&[][..], |run| &run.evidence).iter();
        let of = |name: &String| {
            let in_run = |run: &Measured| run.evidence.iter().find(|(n, _)| n == name).map(|(_, v)| *v);
            let spread = Spread::of(self.runs.iter().filter_map(in_run).collect());
            spread.map_or_else(String::new, with_range)
        };
        let numbers = names.map(|(name, _)| format!("{name} {}", of(name)));
        numbers.collect::<Vec<_>>().join(", ")
    }

    fn runs_in_words(&self) -> String {
        let runs = self.runs.len() + self.failed;
        let mut text = format!("{runs} run{}", if runs == 1 { "" } else { "s" });
        if self.failed > 0 {
            text += &format!(", {} failed", self.failed);
        }
        if self.is_stale {
            text += " (stale)";
        }
        text
    }

    /// Returns the last cell of the claim's row on the page.
    pub(crate) fn on_page(&self) -> OnRealPackets {
        let compares_own = self.runs.iter().any(|run| run.compares_own);
        let mut text = match self.outcome() {
            None => format!("no result in {}", self.runs_in_words()),
            Some(Outcome::Holds(_) | Outcome::Ranking(_)) => self.relation(),
            Some(outcome) => self.number(outcome.bound()),
        };
        if compares_own {
            text += "; two settings of ours";
        }
        OnRealPackets {
            text,
            standing: self.standing(),
            runs: self.runs.len() + self.failed,
            is_stale: self.is_stale,
            compares_own,
        }
    }

    fn number(&self, bound: &str) -> String {
        let numbers = self.numbers();
        let numbers = if numbers.is_empty() {
            numbers
        } else {
            format!(" ({numbers})")
        };
        let (own, needed) = (self.own().map(number), self.in_words(|run| run.needed));
        let headers = match &own {
            Some(own) if *own != needed => format!(
                " ({needed} with our headers, framing {})",
                self.framing_in_words()
            ),
            Some(_) | None => String::new(),
        };
        format!(
            "{} {}, {bound} {}{headers}, {}: {}{numbers}",
            self.in_words(|run| run.measured),
            self.unit(),
            own.unwrap_or(needed),
            self.runs_in_words(),
            self.verdict()
        )
    }

    fn relation(&self) -> String {
        let agreeing = match self.standing() {
            Standing::Worse => self.runs.len() + self.failed - self.good_runs(),
            Standing::Good | Standing::GoodExceptHeaders | Standing::Undecided => self.good_runs(),
        };
        let good = if self.standing() == Standing::Undecided {
            ", good"
        } else {
            ""
        };
        format!(
            "{}{good} in {agreeing} of {} ({})",
            self.verdict(),
            self.runs_in_words(),
            self.numbers()
        )
    }

    /// Returns the result as JSON: the verdict, and each run with the number that it is compared
    /// with.
    pub(crate) fn to_json(&self) -> serde_json::Value {
        let runs = self.runs.iter().zip(self.judged()).map(|(run, judged)| {
            serde_json::json!({
                "measured": judged.measured,
                "needed": judged.needed,
                "framing": run.framing,
                "is_as_good": judged.is_as_good,
                "is_good_except_headers": judged.is_good_except_headers,
                "evidence": run.evidence,
            })
        });
        serde_json::json!({
            "claim": self.claim.id,
            "metric": self.claim.metric,
            "paper": self.own(),
            "unit": self.unit(),
            "verdict": self.verdict(),
            "failed": self.failed,
            "runs": runs.collect::<Vec<_>>(),
        })
    }
}

/// Returns a table for a terminal.
pub(crate) fn table(all: &[Found]) -> String {
    let rows = all.iter().map(|found| {
        vec![
            found.claim.id.clone(),
            found.own().map_or_else(|| "-".to_owned(), number),
            found.in_words(|run| run.needed),
            found.in_words(|run| run.measured),
            found.unit().to_owned(),
            found.framing_in_words(),
            found.verdict().to_owned(),
            found.numbers(),
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

/// Formats a number for the table, with more digits if it is small.
fn number(value: f64) -> String {
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

#[cfg(test)]
mod tests {
    use super::*;
    use hawser_experiments::reproduce::papers;

    fn claim(id: &str) -> &'static Claim {
        let setups = papers().iter().flat_map(|paper| &paper.setups);
        let mut claims = setups.flat_map(|setup| &setup.claims);
        claims.find(|claim| claim.id == id).expect("a claim of the list")
    }

    fn found(runs: Vec<Measured>) -> Found {
        Found {
            runs: runs.clone(),
            ..Found::new(claim(&runs[0].claim))
        }
    }

    /// 103.2 kb/s at a framing of 0.9: 91.7 kb/s at 0.8.
    fn single(kbps: &[f64]) -> Found {
        let run = |kbps: &f64| Measured::rate("H.fig3.single", *kbps, 0.8, 0.9);
        found(kbps.iter().map(run).collect())
    }

    #[test]
    fn the_papers_own_number_decides_and_headers_are_named() {
        assert_eq!(single(&[103.2]).standing(), Standing::Good);
        assert_eq!(single(&[103.1]).standing(), Standing::GoodExceptHeaders);
        assert_eq!(single(&[91.0]).standing(), Standing::Worse);
        let text = single(&[92.0]).on_page().text;
        assert_eq!(
            text,
            "92.0 kb/s, at least 103.2 (91.7 with our headers, framing 0.800), 1 run: good except headers"
        );
    }

    #[test]
    fn a_paper_has_rounded_its_numbers() {
        for (paper, by) in [(103.2, 0.05), (13.25, 0.005), (6.0, 0.03), (0.0, 0.005)] {
            assert!(
                (rounding(paper) - by).abs() < 1e-9,
                "{paper}: {}",
                rounding(paper)
            );
        }
    }

    #[test]
    fn a_loss_is_compared_with_the_paper_and_with_what_cannot_be_sent() {
        let judged = |loss, floor| {
            let measured = Measured::loss("H.tab2.n8.rr", loss, 0.8, floor);
            found(vec![measured]).standing()
        };
        assert_eq!(judged(0.61, 0.0), Standing::Good);
        assert_eq!(judged(0.62, 0.0), Standing::Worse);
        assert_eq!(judged(7.9, 8.0), Standing::GoodExceptHeaders);
        assert_eq!(judged(8.1, 8.0), Standing::Worse);
    }

    #[test]
    fn of_a_range_the_better_end_decides_unless_that_is_nothing() {
        let judged = |id, loss| found(vec![Measured::loss(id, loss, 0.8, 0.0)]).is_as_good();
        assert!(judged("H.fig13.onehigh", 70.0) && !judged("H.fig13.onehigh", 72.0));
        assert!(judged("H.fig13.two128", 0.1) && !judged("H.fig13.two128", 1.2));
    }

    #[test]
    fn runs_on_both_sides_of_the_bar_are_undecided() {
        let both = single(&[92.0, 104.0, 103.2]).on_page();
        assert_eq!((both.standing, both.runs), (Standing::Undecided, 3));
        assert_eq!(
            both.text,
            "103.2 [92.0 .. 104.0] kb/s, at least 103.2 (91.7 with our headers, framing 0.800), 3 runs: undecided"
        );
    }

    #[test]
    fn a_run_without_a_result_is_no_good_run() {
        let mut found = single(&[104.0, 104.0]);
        found.failed = 1;
        assert_eq!(found.standing(), Standing::Undecided);
        assert!(found.on_page().text.contains("3 runs, 1 failed: undecided"));
        found.runs.clear();
        assert_eq!(found.on_page().standing, Standing::Worse);
        assert_eq!(found.on_page().text, "no result in 1 run, 1 failed");
    }

    #[test]
    fn a_ranking_says_whether_it_is_so_here_and_that_both_are_ours() {
        let judged = |holds| {
            let evidence = vec![("n=2".to_owned(), 150.0)];
            let measured = Measured::ranking("H.fig3.random", holds, 0.8, evidence);
            found(vec![measured.of_own_settings()]).on_page().text
        };
        assert_eq!(
            judged(true),
            "so here, too in 1 of 1 run (n=2 150.0); two settings of ours"
        );
        assert_eq!(
            judged(false),
            "not so here in 1 of 1 run (n=2 150.0); two settings of ours"
        );
    }

    #[test]
    fn what_is_written_is_read_again() {
        let evidence = vec![("n=2".to_owned(), 1.0 / 3.0), ("none".to_owned(), f64::NAN)];
        let measured = Measured::loss("H.tab2.n8.rr", 0.25, 0.8, 0.0)
            .with(evidence)
            .finite()
            .expect("a number");
        assert_eq!(measured.evidence, [("n=2".to_owned(), 0.333_333)]);
        let text = serde_json::to_string(&measured).expect("plain data");
        assert_eq!(serde_json::from_str::<Measured>(&text).ok(), Some(measured));
        assert_eq!(Measured::maximum("H.tab2.n8.rr", f64::NAN).finite(), None);
    }
}
