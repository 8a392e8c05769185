//! The page of the papers: every claim with its results.

use std::collections::BTreeMap;
use std::fmt::Write;

use super::super::runner::{Reproduced, Reproduction};
use super::super::verdict::Verdict;
use super::{accepted, evidence, measured, paper};

/// Result of a claim on real packets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OnRealPackets {
    /// Cell of the table.
    pub text: String,
    /// The verdict.
    pub standing: Standing,
    /// Number of runs, failed ones included.
    pub runs: usize,
    /// Set if an earlier program or set-up produced the runs.
    pub is_stale: bool,
    /// Set if the row compares two settings of Hawser.
    pub compares_own: bool,
}

/// Verdict of a claim on real packets in comparison with the paper.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Standing {
    /// Every run is at least as good as the paper's own number.
    Good,
    /// Every run is good only after correction for Hawser's headers.
    GoodExceptHeaders,
    /// The verdicts of the runs differ.
    Undecided,
    /// Every run is worse than the paper, even after correction for Hawser's headers.
    Worse,
}

impl Standing {
    /// Verdicts, best first.
    pub const ALL: [Self; 4] = [Self::Good, Self::GoodExceptHeaders, Self::Undecided, Self::Worse];
}

/// Remark on a simulated result.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SimulatorNote {
    /// Machine of the experiment that no product contains, if any.
    pub unshipped: Option<&'static str>,
    /// Set if an earlier program produced the results.
    pub is_stale: bool,
}

type Real = BTreeMap<String, OnRealPackets>;
type Notes = BTreeMap<String, SimulatorNote>;

pub(super) fn write(reproduction: &Reproduction, real: &Real, notes: &Notes) -> String {
    let mut text = head(reproduction, real, notes);
    let mut last = ("", "");
    for claim in &reproduction.claims {
        if last.0 != claim.paper.id {
            let _ = writeln!(text, "\n## {}: {}", claim.paper.id, claim.paper.title);
        }
        if last.1 != claim.setup.id {
            let setup = claim.setup;
            let _ = writeln!(
                text,
                "\n{}: {} (`{}`)\n\n\
                 | claim | what | paper | accepted | simulator | verdict | real packets |\n\
                 |---|---|---|---|---|---|---|",
                setup.place, setup.title, setup.id
            );
        }
        last = (&claim.paper.id, &claim.setup.id);
        let expected = &claim.claim.expected;
        let cells = [
            format!("`{}`", claim.claim.id),
            claim.claim.metric.clone(),
            paper(expected),
            accepted(expected),
            measured(expected, &claim.judgement),
            verdict(claim, notes),
            real.get(&claim.claim.id)
                .map_or_else(String::new, |measured| measured.text.clone()),
        ];
        let _ = writeln!(text, "| {} |", cells.map(|cell| escaped(&cell)).join(" | "));
    }
    text
}

/// Numbers of rows, of a paper or of all.
#[derive(Clone, Copy, Debug, Default)]
struct Counts {
    claims: usize,
    on_real: usize,
    standings: [usize; Standing::ALL.len()],
    five_runs: usize,
    one_run: usize,
    stale: usize,
    compares_own: usize,
    simulated_only: usize,
    unshipped_only: usize,
}

impl Counts {
    fn of<'a>(claims: impl IntoIterator<Item = &'a Reproduced>, real: &Real, notes: &Notes) -> Self {
        let mut counts = Self::default();
        for claim in claims {
            counts.add(
                claim,
                real.get(&claim.claim.id),
                notes.get(&claim.claim.id).copied(),
            );
        }
        counts
    }

    fn add(&mut self, claim: &Reproduced, real: Option<&OnRealPackets>, note: Option<SimulatorNote>) {
        self.claims += 1;
        let Some(real) = real else {
            let is_simulated = claim.judgement.measured.is_some();
            let is_unshipped = note.is_some_and(|note| note.unshipped.is_some());
            self.simulated_only += usize::from(is_simulated);
            self.unshipped_only += usize::from(is_simulated && is_unshipped);
            return;
        };
        self.on_real += 1;
        for (count, standing) in self.standings.iter_mut().zip(Standing::ALL) {
            *count += usize::from(real.standing == standing);
        }
        self.five_runs += usize::from(real.runs >= FULL);
        self.one_run += usize::from(real.runs == 1);
        self.stale += usize::from(real.is_stale);
        self.compares_own += usize::from(real.compares_own);
    }

    fn row(&self, name: &str) -> String {
        let [good, except_headers, undecided, worse] = self.standings;
        let cells = [
            self.claims,
            self.on_real,
            good,
            except_headers,
            undecided,
            worse,
            self.five_runs,
            self.one_run,
            self.stale,
        ];
        let cells = cells.map(|count| count.to_string()).join(" | ");
        format!("| {name} | {cells} |\n")
    }
}

fn head(reproduction: &Reproduction, real: &Real, notes: &Notes) -> String {
    let all = &reproduction.claims;
    let counts = Counts::of(all, real, notes);
    let papers = all.chunk_by(|a, b| a.paper.id == b.paper.id);
    let papers = papers.map(|claims| Counts::of(claims, real, notes).row(&claims[0].paper.id));
    let [good, except_headers, undecided, worse] = counts.standings;
    format!(
        "# The five papers, claim by claim\n\n\
         Written by `hawser-lab reproduce --page`; do not edit.\n\n\
         Of {} claims {} were measured on real packets. Of these, {good} are at least as good as the paper's\n\
         number in every run; {except_headers} are good except headers (good only without the bytes of Hawser's\n\
         headers); {undecided} are undecided (their runs have different verdicts); {worse} are worse. {} of these\n\
         rows have five runs, {} have **one run**. {} are stale: some of their runs are from an earlier program or\n\
         set-up. {} compare two settings of Hawser. {} claims were measured in the simulator **only**; {} of those\n\
         use a machine that no product contains. {} were not measured.\n\n\
         | paper | claims | on real packets | good | except headers | undecided | worse | five runs | one run | stale |\n\
         |---|---|---|---|---|---|---|---|---|---|\n\
         {}{}\n\
         The column of the simulator has the median over {} seeds and the range. The last column has the\n\
         median of the runs on real packets, their range, the paper's number and, if headers change it, the\n\
         number with Hawser's headers ([reproducing the papers](../manual/reproduce.md)). A packet of a stream\n\
         that arrives after more than 400 ms counts as lost. To repeat a row, or the page:\n\n    \
         hawser-lab reproduce CLAIM\n    \
         hawser-lab reproduce CLAIM --real --virtual-time\n    \
         hawser-lab reproduce --page docs/notebook/five-papers.md --budget 60min\n",
        counts.claims,
        counts.on_real,
        counts.five_runs,
        counts.one_run,
        counts.stale,
        counts.compares_own,
        counts.simulated_only,
        counts.unshipped_only,
        counts.claims - counts.on_real - counts.simulated_only,
        papers.collect::<String>(),
        counts.row("all"),
        reproduction.seeds,
    )
}

/// Number of runs that a full row has. Source: the default of `--seeds`.
const FULL: usize = 5;

fn escaped(cell: &str) -> String {
    cell.replace('|', "\\|").replace('\n', " ")
}

/// Returns the simulator's verdict; if it differs from the paper, also the reason and the result.
fn verdict(claim: &Reproduced, notes: &Notes) -> String {
    let judgement = &claim.judgement;
    let mut text = judgement.verdict.label().to_owned();
    if matches!(judgement.verdict, Verdict::Outside | Verdict::Deviates) {
        if !judgement.reason.is_empty() {
            text += &format!(": {}", judgement.reason);
        }
        if !judgement.evidence.is_empty() {
            text += &format!(" (found: {})", evidence(judgement));
        }
    }
    let note = notes.get(&claim.claim.id).copied().unwrap_or_default();
    if let Some(machine) = note.unshipped {
        text += &format!("; no product contains its {machine}");
    }
    if note.is_stale {
        text += "; stale";
    }
    text
}
