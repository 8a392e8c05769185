//! Verdicts from measurements.

use hawser_netem::report::Spread;
use serde::Serialize;

use super::claims::{Claim, Expected};
use super::experiment::Outcome;
use super::quantity::{Quantity, Unit};

/// Verdict on a claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    /// The median lies in the accepted interval, or the shape holds at most seeds.
    Reproduced,
    /// The measurement is outside the interval.
    Outside,
    /// The measurement is outside the interval, for a documented reason.
    Deviates,
    /// The claim needs hardware or the real data path, and was not measured.
    Device,
    /// The paper's number can no longer be read.
    Lost,
    /// The claim has no experiment yet.
    Pending,
}

/// A judged claim.
#[derive(Clone, Debug, PartialEq)]
pub struct Judgement {
    /// Verdict.
    pub verdict: Verdict,
    /// Statistics over the seeds; `None` without a measurement.
    pub measured: Option<Spread>,
    /// Number of seeds of the experiment.
    pub seeds: u32,
    /// Medians of a check's supporting numbers.
    pub evidence: Vec<(String, f64, Unit)>,
    /// Reason why the claim is not simply reproduced; empty if it is.
    pub reason: String,
}

/// Measurements of one claim.
#[derive(Clone, Debug, PartialEq)]
pub enum Evidence {
    /// No experiment measures it.
    None,
    /// Result of each seed, or the reason why it is missing.
    Seeds(Vec<Result<Outcome, String>>),
}

/// Judges one claim.
#[must_use]
pub fn judge(claim: &Claim, evidence: &Evidence) -> Judgement {
    let unmeasured = |verdict, reason: &str| Judgement {
        verdict,
        measured: None,
        seeds: 0,
        evidence: Vec::new(),
        reason: reason.to_owned(),
    };
    let seeds = match (&claim.expected, evidence) {
        (Expected::Lost, _) => return unmeasured(Verdict::Lost, "the paper's number is lost"),
        (_, Evidence::None) if claim.is_device => {
            return unmeasured(
                Verdict::Device,
                "shown by the real data path, not by a simulation",
            );
        }
        (_, Evidence::None) => return unmeasured(Verdict::Pending, "no experiment yet"),
        (_, Evidence::Seeds(seeds)) => seeds,
    };
    match &claim.expected {
        Expected::Interval { low, high, unit, .. } => match collect(seeds, |outcome| value(outcome, *unit)) {
            Ok(values) => {
                let spread = Spread::of(values);
                let is_inside = spread.is_some_and(|s| (*low..=*high).contains(&s.median));
                judged(claim, is_inside, (spread, seeds.len()), Vec::new())
            }
            Err(problem) => unmeasured(Verdict::Outside, &problem),
        },
        Expected::Shape { .. } => match collect(seeds, shape) {
            Ok(runs) => {
                let held = runs.iter().filter(|(holds, _)| *holds).count();
                let share = held as f64 / runs.len().max(1) as f64;
                let spread = (!runs.is_empty()).then_some(Spread {
                    median: share,
                    min: if held == runs.len() { 1.0 } else { 0.0 },
                    max: if held > 0 { 1.0 } else { 0.0 },
                });
                judged(claim, held * 2 > runs.len(), (spread, runs.len()), medians(&runs))
            }
            Err(problem) => unmeasured(Verdict::Outside, &problem),
        },
        Expected::Lost => unmeasured(Verdict::Lost, ""),
    }
}

fn judged(
    claim: &Claim,
    is_inside: bool,
    (measured, seeds): (Option<Spread>, usize),
    evidence: Vec<(String, f64, Unit)>,
) -> Judgement {
    let (verdict, reason) = match (is_inside, &claim.deviates) {
        (true, _) => (Verdict::Reproduced, String::new()),
        (false, Some(reason)) => (Verdict::Deviates, reason.clone()),
        (false, None) => (Verdict::Outside, String::new()),
    };
    Judgement {
        verdict,
        measured,
        seeds: seeds as u32,
        evidence,
        reason,
    }
}

fn collect<T>(
    seeds: &[Result<Outcome, String>],
    read: impl Fn(&Outcome) -> Result<T, String>,
) -> Result<Vec<T>, String> {
    if seeds.is_empty() {
        return Err("no seed was run".to_owned());
    }
    seeds
        .iter()
        .map(|seed| seed.as_ref().map_err(Clone::clone).and_then(&read))
        .collect()
}

fn value(outcome: &Outcome, unit: Unit) -> Result<f64, String> {
    let Outcome::Value(quantity) = outcome else {
        return Err("the experiment gives a shape where a number is due".to_owned());
    };
    quantity
        .value_in(unit)
        .ok_or_else(|| format!("the experiment counts {} where {unit} is due", quantity.unit))
        .and_then(|value| {
            // An infinite value is outside every interval, but a NaN in a median would hide
            // other seeds.
            if value.is_finite() {
                Ok(value)
            } else {
                Err(format!("the experiment gives {value}"))
            }
        })
}

type Shape = (bool, Vec<(String, Quantity)>);

fn shape(outcome: &Outcome) -> Result<Shape, String> {
    match outcome {
        Outcome::Shape { holds, evidence } => Ok((*holds, evidence.clone())),
        Outcome::Value(_) => Err("the experiment gives a number where a shape is due".to_owned()),
    }
}

/// Returns medians by the names of the first run, over those runs that have the name.
fn medians(runs: &[Shape]) -> Vec<(String, f64, Unit)> {
    let Some((_, first)) = runs.first() else {
        return Vec::new();
    };
    let median = |(name, like): &(String, Quantity)| {
        let values = runs.iter().filter_map(|(_, evidence)| {
            let (_, quantity) = evidence.iter().find(|(other, _)| other == name)?;
            quantity.value_in(like.unit)
        });
        Spread::of(values.collect()).map(|spread| (name.clone(), spread.median, like.unit))
    };
    first.iter().filter_map(median).collect()
}

impl Verdict {
    /// Returns the verdict as printed.
    #[must_use]
    pub const fn label(self) -> &'static str {
        match self {
            Self::Reproduced => "reproduced",
            Self::Outside => "outside",
            Self::Deviates => "deviates",
            Self::Device => "device",
            Self::Lost => "lost",
            Self::Pending => "pending",
        }
    }

    /// Verdicts, best first.
    pub const ALL: [Self; 6] = [
        Self::Reproduced,
        Self::Deviates,
        Self::Outside,
        Self::Device,
        Self::Lost,
        Self::Pending,
    ];
}

#[cfg(test)]
mod tests {
    use super::super::claims::Source;
    use super::*;

    fn claim(expected: Expected) -> Claim {
        Claim {
            id: "S.1".into(),
            metric: "m".into(),
            expected,
            source: Source::Table,
            is_device: false,
            note: String::new(),
            deviates: None,
        }
    }

    fn seconds() -> Claim {
        claim(Expected::Interval {
            paper: None,
            low: 1.0,
            high: 2.0,
            unit: Unit::Seconds,
        })
    }

    fn millis(values: &[f64]) -> Evidence {
        let outcome = |ms: &f64| Ok(Outcome::Value(Quantity::new(*ms, Unit::Millis)));
        Evidence::Seeds(values.iter().map(outcome).collect())
    }

    fn shapes(holds: &[bool]) -> Evidence {
        let outcome = |(n, holds): (usize, &bool)| {
            Ok(Outcome::Shape {
                holds: *holds,
                evidence: vec![("rate".to_owned(), Quantity::new(n as f64, Unit::Kbps))],
            })
        };
        Evidence::Seeds(holds.iter().enumerate().map(outcome).collect())
    }

    #[test]
    fn the_median_decides_in_the_unit_of_the_claim_and_bounds_count() {
        let verdict = |values: &[f64]| judge(&seconds(), &millis(values)).verdict;
        assert_eq!(verdict(&[100.0, 1000.0, 9000.0]), Verdict::Reproduced);
        assert_eq!(verdict(&[2000.0]), Verdict::Reproduced);
        assert_eq!(verdict(&[2000.1]), Verdict::Outside);
        assert_eq!(verdict(&[900.0, 999.0, 1500.0]), Verdict::Outside);
        let judged = judge(&seconds(), &millis(&[1000.0, 3000.0]));
        let spread = judged.measured.expect("measured");
        assert_eq!((spread.min, spread.median, spread.max), (1.0, 2.0, 3.0));
    }

    #[test]
    fn a_reason_excuses_only_what_is_outside() {
        let mut claim = seconds();
        claim.deviates = Some("a slip".into());
        assert_eq!(judge(&claim, &millis(&[1500.0])).verdict, Verdict::Reproduced);
        let judged = judge(&claim, &millis(&[5000.0]));
        assert_eq!(
            (judged.verdict, judged.reason.as_str()),
            (Verdict::Deviates, "a slip")
        );
    }

    #[test]
    fn what_cannot_be_measured_says_why() {
        let mut device = seconds();
        device.is_device = true;
        assert_eq!(judge(&seconds(), &Evidence::None).verdict, Verdict::Pending);
        assert_eq!(judge(&device, &Evidence::None).verdict, Verdict::Device);
        assert_eq!(judge(&device, &millis(&[1500.0])).verdict, Verdict::Reproduced);
        assert_eq!(
            judge(&claim(Expected::Lost), &Evidence::None).verdict,
            Verdict::Lost
        );
    }

    #[test]
    fn one_failed_seed_or_a_wrong_kind_of_answer_is_outside_even_with_an_excuse() {
        let mut claim = seconds();
        claim.deviates = Some("a slip".into());
        let good = Ok(Outcome::Value(Quantity::new(1.5, Unit::Seconds)));
        let cases = [
            (Err("the transfer did not end".to_owned()), "did not end"),
            (Ok(Outcome::Value(Quantity::new(1.5, Unit::Kbps))), "counts kb/s"),
            (Ok(Outcome::Value(Quantity::new(f64::NAN, Unit::Seconds))), "NaN"),
            (
                Ok(Outcome::Shape {
                    holds: true,
                    evidence: Vec::new(),
                }),
                "a shape",
            ),
        ];
        for (case, reason) in cases {
            let judged = judge(&claim, &Evidence::Seeds(vec![good.clone(), case]));
            assert_eq!(judged.verdict, Verdict::Outside, "{reason}");
            assert!(judged.reason.contains(reason), "{}", judged.reason);
        }
        assert_eq!(
            judge(&claim, &Evidence::Seeds(Vec::new())).verdict,
            Verdict::Outside
        );
    }

    #[test]
    fn a_shape_needs_most_seeds() {
        let shape = claim(Expected::Shape {
            check: "a < b".into(),
        });
        let judged = judge(&shape, &shapes(&[true, false, true]));
        assert_eq!(judged.verdict, Verdict::Reproduced);
        assert_eq!(judged.evidence, [("rate".to_owned(), 1.0, Unit::Kbps)]);
        assert_eq!(judge(&shape, &shapes(&[true, false])).verdict, Verdict::Outside);
        assert_eq!(judge(&shape, &millis(&[1.0])).verdict, Verdict::Outside);
    }
}
