//! Text form of a reproduction.

use std::fmt::Write;

use super::super::claims::Expected;
use super::super::runner::{Reproduced, Reproduction};
use super::super::verdict::Verdict;
use super::{accepted, evidence, measured, paper};

pub(super) fn write(reproduction: &Reproduction) -> String {
    let rows: Vec<[String; 5]> = reproduction.claims.iter().map(row).collect();
    let width = |column: usize| {
        let cells = rows.iter().map(|row| row[column].chars().count());
        cells.chain([HEADS[column].len()]).max().unwrap_or(0)
    };
    let widths: [usize; 5] = std::array::from_fn(width);
    let mut text = line(&HEADS.map(str::to_owned), &widths);
    for (row, claim) in rows.iter().zip(&reproduction.claims) {
        text += &line(row, &widths);
        for detail in details(claim) {
            // Writing to a string cannot fail.
            let _ = writeln!(text, "    {detail}");
        }
    }
    let counts: Vec<String> = Verdict::ALL
        .iter()
        .map(|verdict| (reproduction.count(*verdict), verdict.label()))
        .filter(|(count, _)| *count > 0)
        .map(|(count, label)| format!("{count} {label}"))
        .collect();
    let _ = writeln!(
        text,
        "\n{} claims, {} seeds: {}",
        reproduction.claims.len(),
        reproduction.seeds,
        counts.join(", ")
    );
    text
}

fn row(reproduced: &Reproduced) -> [String; 5] {
    let expected = &reproduced.claim.expected;
    [
        reproduced.claim.id.clone(),
        paper(expected),
        accepted(expected),
        measured(expected, &reproduced.judgement),
        reproduced.judgement.verdict.label().to_owned(),
    ]
}

/// Returns the details of a claim that differs from the paper.
fn details(reproduced: &Reproduced) -> Vec<String> {
    let judgement = &reproduced.judgement;
    if !matches!(judgement.verdict, Verdict::Outside | Verdict::Deviates) {
        return Vec::new();
    }
    let mut details = vec![format!("{}: {}", reproduced.setup.place, reproduced.claim.metric)];
    if let Expected::Shape { check } = &reproduced.claim.expected {
        details.push(format!("must hold: {check}"));
    }
    if !judgement.evidence.is_empty() {
        details.push(format!("found: {}", evidence(judgement)));
    }
    if !judgement.reason.is_empty() {
        details.push(format!("because: {}", judgement.reason));
    }
    details
}

fn line(cells: &[String; 5], widths: &[usize; 5]) -> String {
    let padded = cells
        .iter()
        .zip(widths)
        .map(|(cell, width)| format!("{cell:<width$}"));
    format!("{}\n", padded.collect::<Vec<_>>().join("  ").trim_end())
}

const HEADS: [&str; 5] = ["claim", "paper", "accepted", "measured", "verdict"];
