//! A page of the manual: every claim, with what shows it.

use std::collections::BTreeMap;
use std::fmt::Write;

use super::super::runner::{Reproduced, Reproduction};
use super::super::verdict::Verdict;
use super::{accepted, evidence, measured, paper};

/// What was measured of a claim on real packets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OnRealPackets {
    /// In words.
    pub text: String,
    /// Whether it is at least as good as the paper.
    pub is_as_good: bool,
}

impl OnRealPackets {
    /// How [`Self::text`] says that something is not as good.
    pub const WORSE: [&str; 3] = ["not as good", "not as there", "not so here"];

    /// What a page has of it; `None` when it has nothing.
    fn of_page(cell: &str) -> Option<Self> {
        (!cell.is_empty()).then(|| Self {
            text: cell.replace("\\|", "|"),
            is_as_good: !Self::WORSE.iter().any(|words| cell.contains(words)),
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
    let (mut all, mut simulated, mut on_real, mut as_good) = (0, 0, 0, 0);
    for (id, is_simulated) in claims {
        let measured = real.get(id);
        all += 1;
        on_real += usize::from(measured.is_some());
        as_good += usize::from(measured.is_some_and(|measured| measured.is_as_good));
        simulated += usize::from(is_simulated && measured.is_none());
    }
    format!(
        "# The five papers, claim by claim\n\n\
         Of {all} claims only the simulator shows {simulated}: they are **not** real. {on_real} were measured on real\n\
         packets, {as_good} of them with a result at least as good as the paper's, and {} by nothing.\n\n\
         The simulator's column holds the {SEEDS}{seeds} seeds and the range. The last column holds the\n\
         median of the runs on real packets, their range, and what is needed to be as good as the paper\n\
         with the headers that packets have here ([reproducing the papers](reproduce.md)). A row again:\n\n    \
         hawser-lab reproduce CLAIM\n    sudo hawser-lab reproduce CLAIM --real\n\n\
         The whole page again, and only what `--real --json` has written anew:\n\n    \
         hawser-lab reproduce --markdown docs/five-papers.md --with real.json\n    \
         hawser-lab reproduce --markdown docs/five-papers.md --with real.json --only-real\n",
        all - simulated - on_real,
    )
}

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
