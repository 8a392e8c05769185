//! A page of the manual: every claim, with what shows it.

use std::collections::BTreeMap;
use std::fmt::Write;

use super::super::runner::{Reproduced, Reproduction};
use super::super::verdict::Verdict;
use super::{accepted, evidence, measured, paper};

pub(super) fn write(reproduction: &Reproduction, real: &BTreeMap<String, String>) -> String {
    let claims = &reproduction.claims;
    let is_real = |claim: &&Reproduced| real.contains_key(&claim.claim.id);
    let is_simulated = |claim: &&Reproduced| claim.judgement.measured.is_some();
    let all = claims.len();
    let on_real = claims.iter().filter(is_real).count();
    let simulated = claims.iter().filter(|c| is_simulated(c) && !is_real(c)).count();
    let mut text = String::from("# The five papers, claim by claim\n\n");
    // Writing to a string cannot fail.
    let _ = writeln!(
        text,
        "Of {all} claims only the simulator shows {simulated}: they are **not** real. {on_real} were measured on real\n\
         packets, once each, and {} by nothing.\n",
        all - simulated - on_real,
    );
    let _ = writeln!(
        text,
        "The simulator's column holds the median over {} seeds and the range. What was measured on real\n\
         packets is held against the paper's number after the headers that packets have here\n\
         ([reproducing the papers](reproduce.md)). A row again:\n\n    \
         hawser-lab reproduce CLAIM\n    sudo hawser-lab reproduce CLAIM --real\n\n\
         The whole page again, with what `--real --json` has written:\n\n    \
         hawser-lab reproduce --markdown docs/five-papers.md --with real.json",
        reproduction.seeds
    );
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
            real.get(&claim.claim.id).cloned().unwrap_or_default(),
        ];
        let cells = cells.map(|cell| cell.replace('|', "\\|").replace('\n', " "));
        let _ = writeln!(text, "| {} |", cells.join(" | "));
    }
    text
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
