//! A page of the manual: every claim, with what shows it.

use std::collections::BTreeMap;
use std::fmt::Write;

use super::super::runner::{Reproduced, Reproduction};
use super::super::verdict::Verdict;
use super::{accepted, evidence, measured, paper};

/// What was measured of a claim on real packets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OnRealPackets {
    /// In words; its verdict and its number of runs can be read from them.
    pub text: String,
    /// The verdict.
    pub standing: Standing,
    /// How often it was measured.
    pub runs: usize,
}

/// Verdict of a claim on real packets beside the paper.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Standing {
    /// As good as the paper's own number, in each run.
    Good,
    /// Good only where the bytes that our headers take are allowed for, in each run.
    GoodExceptHeaders,
    /// Not as good even then, in any run.
    Worse,
    /// Runs differ in it.
    Undecided,
}

impl Standing {
    /// Words of [`Self::Worse`].
    pub const WORSE: [&str; 3] = ["not as good", "not as there", "not so here"];
    /// Words of [`Self::Undecided`].
    pub const UNDECIDED: &str = "undecided";
    /// Words of [`Self::GoodExceptHeaders`].
    pub const GOOD_EXCEPT_HEADERS: &str = "good except headers";
}

impl OnRealPackets {
    /// Reads a cell of a page; `None` when it is empty.
    #[must_use]
    pub fn of_page(cell: &str) -> Option<Self> {
        if cell.is_empty() {
            return None;
        }
        let standing = if Standing::WORSE.iter().any(|words| cell.contains(words)) {
            Standing::Worse
        } else if cell.contains(Standing::UNDECIDED) {
            Standing::Undecided
        } else if cell.contains(Standing::GOOD_EXCEPT_HEADERS) {
            Standing::GoodExceptHeaders
        } else {
            Standing::Good
        };
        let before = cell.split_once(" run").map_or("", |(before, _)| before);
        let runs = before.rsplit(' ').next().and_then(|runs| runs.parse().ok());
        Some(Self {
            text: cell.replace("\\|", "|"),
            standing,
            runs: runs.unwrap_or(1),
        })
    }
}

type Real = BTreeMap<String, OnRealPackets>;

/// Why the columns of a page cannot be kept.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PageError {
    /// The page does not say at how many seeds the simulator ran.
    #[error("it is not such a page: it names no seeds")]
    NoSeeds,
    /// The page has no row of a claim.
    #[error("it has no row of {0}; write the whole page")]
    NoRow(String),
}

pub(super) fn write(reproduction: &Reproduction, real: &Real) -> String {
    let claims = &reproduction.claims;
    let is_simulated = |claim: &Reproduced| claim.judgement.measured.is_some();
    let counted = claims.iter().map(|c| (c.claim.id.as_str(), is_simulated(c)));
    let mut text = head(counted, real, reproduction.seeds);
    let mut last = ("", "");
    for claim in claims {
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
            measured(expected, claim.judgement.measured, reproduction.seeds),
            verdict(claim),
            in_words(real, &claim.claim.id),
        ];
        let _ = writeln!(text, "| {} |", cells.map(|cell| escaped(&cell)).join(" | "));
    }
    text
}

/// The same page with another last column where there is something new; `ids` are all claims.
pub(super) fn rewrite(page: &str, ids: &[&str], new: &Real) -> Result<String, PageError> {
    let seeds = page.split_once(SEEDS).and_then(|(_, rest)| rest.split_once(' '));
    let seeds = seeds.and_then(|(seeds, _)| seeds.parse().ok());
    let seeds = seeds.ok_or(PageError::NoSeeds)?;
    let mut rows: Vec<(&str, bool)> = Vec::new();
    let mut real = new.clone();
    let mut tables = String::new();
    for line in page.lines().skip_while(|line| !line.starts_with("## ")) {
        let id = line.strip_prefix("| `").and_then(|rest| rest.split_once('`'));
        let kept = line.strip_suffix(" |").and_then(|cells| cells.rsplit_once(" | "));
        let Some(((id, _), (kept, last))) = id.zip(kept) else {
            tables += &format!("{line}\n");
            continue;
        };
        let verdict = kept.rsplit_once(" | ").map_or("", |(_, verdict)| verdict);
        rows.push((id, !NOT_SIMULATED.iter().any(|known| verdict == known.label())));
        if let (false, Some(before)) = (real.contains_key(id), OnRealPackets::of_page(last)) {
            real.insert(id.to_owned(), before);
        }
        tables += &format!("{kept} | {} |\n", escaped(&in_words(&real, id)));
    }
    match ids.iter().find(|id| !rows.iter().any(|(row, _)| row == *id)) {
        Some(missing) => Err(PageError::NoRow((*missing).to_owned())),
        None => Ok(head(rows.into_iter(), &real, seeds) + "\n" + &tables),
    }
}

/// What stands above the tables; the claims come with whether they were simulated.
fn head<'a>(claims: impl Iterator<Item = (&'a str, bool)>, real: &Real, seeds: u32) -> String {
    let (mut all, mut simulated, mut once) = (0, 0, 0);
    let mut standings = BTreeMap::from(ALL_STANDINGS.map(|standing| (standing, 0)));
    for (id, is_simulated) in claims {
        let measured = real.get(id);
        all += 1;
        simulated += usize::from(is_simulated && measured.is_none());
        if let Some(measured) = measured {
            *standings.entry(measured.standing).or_default() += 1;
            once += usize::from(measured.runs == 1);
        }
    }
    let [good, except_headers, worse, undecided] = ALL_STANDINGS.map(|standing| standings[&standing]);
    let on_real: usize = standings.values().sum();
    format!(
        "# The five papers, claim by claim\n\n\
         Of {all} claims {on_real} were measured on real packets: {good} with a result as good as the paper's own\n\
         number, {except_headers} good except headers (as good only where the bytes that our headers take are allowed\n\
         for), {undecided} undecided (their runs differ in it), {worse} worse. {once} of these rest on **one run**. Only\n\
         the simulator shows {simulated}: they are **not** real. Nothing shows {}.\n\n\
         The simulator's column holds the {SEEDS}{seeds} seeds and the range. The last column holds the\n\
         median of the runs on real packets, their range, the paper's number and, where headers change it,\n\
         what it would be with the headers that packets have here ([reproducing the papers](reproduce.md)).\n\
         A packet of a stream that arrives later than 400 ms counts as lost. A row again:\n\n    \
         hawser-lab reproduce CLAIM\n    sudo hawser-lab reproduce CLAIM --real\n\n\
         The whole page again, and only what `--real --json` has written anew:\n\n    \
         hawser-lab reproduce --markdown docs/notebook/five-papers.md --with real.json\n    \
         hawser-lab reproduce --markdown docs/notebook/five-papers.md --with real.json --only-real\n",
        all - simulated - on_real,
    )
}

/// All verdicts, in the order of the page's head.
const ALL_STANDINGS: [Standing; 4] = [
    Standing::Good,
    Standing::GoodExceptHeaders,
    Standing::Worse,
    Standing::Undecided,
];

fn in_words(real: &Real, id: &str) -> String {
    real.get(id)
        .map_or_else(String::new, |measured| measured.text.clone())
}

fn escaped(cell: &str) -> String {
    cell.replace('|', "\\|").replace('\n', " ")
}

/// The verdict; where it is not as the paper says, why, and what was found.
fn verdict(claim: &Reproduced) -> String {
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
    text
}

/// What the page says before the number of seeds.
const SEEDS: &str = "median over ";
const NOT_SIMULATED: [Verdict; 3] = [Verdict::Device, Verdict::Lost, Verdict::Pending];
