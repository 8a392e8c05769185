//! Distributions of all measures over many worlds, and the failure rate of each property.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use serde::Serialize;

use super::outcome::Outcome;
use super::properties::Property;

/// Distributions over worlds.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Summary {
    /// Number of worlds.
    pub worlds: usize,
    /// Failures by property, for properties that applied to a world.
    pub properties: BTreeMap<&'static str, Failures>,
    /// Quantiles by measure, and by the form of TCP in worlds that have TCP.
    pub measures: BTreeMap<String, Spread>,
}

/// Failures of a property.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Failures {
    /// Number of worlds to which the property applies.
    pub worlds: usize,
    /// Seeds of the failing worlds.
    pub seeds: Vec<u64>,
    /// Features with the largest excess of their share among failing worlds over that among all
    /// worlds, with the excess.
    pub features: Vec<(String, f64)>,
}

/// Quantiles of a measure.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Spread {
    /// Number of values.
    pub worlds: usize,
    /// Minimum, 1 %, 10 %, median, 90 %, maximum.
    pub quantiles: [f64; 6],
}

/// Quantiles of a distribution. Source: worlds are judged by median and worst percent; 10 and 90 %
/// show the rest.
const QUANTILES: [f64; 6] = [0.0, 0.01, 0.1, 0.5, 0.9, 1.0];

impl Summary {
    /// Summarizes results.
    #[must_use]
    pub fn of(outcomes: &[&Outcome]) -> Self {
        let mut values: BTreeMap<String, Vec<f64>> = BTreeMap::new();
        for outcome in outcomes {
            let has = |feature: &str| outcome.features.iter().any(|known| known == feature);
            let form = match (has("tcp") || has("http"), has("streams")) {
                (true, true) => " (streams)",
                (true, false) => " (packets)",
                (false, _) => "",
            };
            for (name, value) in &outcome.judgement.measures {
                values.entry(format!("{name}{form}")).or_default().push(*value);
            }
        }
        let properties = Property::ALL.into_iter().filter_map(|property| {
            let failures = failures(property, outcomes);
            (failures.worlds > 0).then_some((property.name(), failures))
        });
        Self {
            worlds: outcomes.len(),
            properties: properties.collect(),
            measures: values
                .into_iter()
                .map(|(name, values)| (name, spread(values)))
                .collect(),
        }
    }

    /// Returns two tables in Markdown.
    #[must_use]
    pub fn to_text(&self) -> String {
        let mut text = format!("{} worlds\n\n", self.worlds);
        text += "| property | covers | fail | share | more often with |\n|---|---|---|---|---|\n";
        for property in Property::ALL {
            let Some(found) = self.properties.get(property.name()) else {
                continue;
            };
            let share = found.seeds.len() as f64 / found.worlds as f64 * 100.0;
            let features = found
                .features
                .iter()
                .map(|(name, excess)| format!("{name} {excess:+.2}"));
            let _ = writeln!(
                text,
                "| {} | {} | {} | {share:.1} % | {} |",
                property.name(),
                found.worlds,
                found.seeds.len(),
                features.collect::<Vec<_>>().join(", ")
            );
        }
        text += "\n| measure | worlds | least | 1 % | 10 % | median | 90 % | most |\n|---|---|---|---|---|---|---|---|\n";
        for (name, spread) in &self.measures {
            let quantiles = spread.quantiles.iter().map(|value| legible(*value));
            let quantiles = quantiles.collect::<Vec<_>>().join(" | ");
            let _ = writeln!(text, "| {name} | {} | {quantiles} |", spread.worlds);
        }
        text
    }
}

fn legible(value: f64) -> String {
    if value.abs() >= 1000.0 {
        format!("{value:.0}")
    } else {
        format!("{value:.3}")
    }
}

fn failures(property: Property, outcomes: &[&Outcome]) -> Failures {
    let fails = |outcome: &&&Outcome| {
        let mut violations = outcome.judgement.violations.iter();
        violations.any(|violation| violation.property == property)
    };
    let is_judged = |outcome: &&&Outcome| {
        property == Property::Runs
            || outcome.judgement.measures.contains_key(property.name())
            || fails(outcome)
    };
    let judged: Vec<&&Outcome> = outcomes.iter().filter(is_judged).collect();
    let failing: Vec<&&Outcome> = judged.iter().copied().filter(fails).collect();
    let share = |of: &[&&Outcome]| {
        let mut shares: BTreeMap<String, f64> = BTreeMap::new();
        for feature in of.iter().flat_map(|outcome| &outcome.features) {
            *shares.entry(feature.clone()).or_default() += 1.0 / of.len() as f64;
        }
        shares
    };
    let (all, with) = (share(&judged), share(&failing));
    let excess = |(name, share): (String, f64)| {
        let usual = all.get(&name).copied().unwrap_or(0.0);
        (name, share - usual)
    };
    let mut features: Vec<(String, f64)> = with.into_iter().map(excess).collect();
    features.sort_by(|a, b| b.1.total_cmp(&a.1));
    features.truncate(NAMED_FEATURES);
    Failures {
        worlds: judged.len(),
        seeds: failing.iter().map(|outcome| outcome.seed).collect(),
        features,
    }
}

fn spread(mut values: Vec<f64>) -> Spread {
    values.sort_by(f64::total_cmp);
    let last = values.len().saturating_sub(1) as f64;
    Spread {
        worlds: values.len(),
        quantiles: QUANTILES.map(|share| {
            values
                .get((share * last).round() as usize)
                .copied()
                .unwrap_or(0.0)
        }),
    }
}

/// Maximum number of features in a table. Source: number that fits into a line.
const NAMED_FEATURES: usize = 4;

#[cfg(test)]
mod tests {
    use super::super::judge::Judgement;
    use super::super::properties::Violation;
    use super::*;

    #[test]
    fn failures_are_counted_over_the_worlds_that_a_property_covers() {
        let outcome = |seed: u64, value: Option<f64>, features: &[&str]| {
            let violation = Violation {
                property: Property::Pauses,
                value: 3.0,
                limit: 2.0,
                detail: String::new(),
            };
            let fails = value.is_some_and(|value| value > 2.0);
            Outcome {
                seed,
                features: features.iter().map(|feature| (*feature).to_owned()).collect(),
                judgement: Judgement {
                    measures: value
                        .into_iter()
                        .map(|value| ("pauses".to_owned(), value))
                        .collect(),
                    violations: if fails { vec![violation] } else { Vec::new() },
                },
                seconds: 1.0,
            }
        };
        let outcomes = [
            outcome(1, Some(0.5), &["nat"]),
            outcome(2, Some(3.0), &["nat", "mtu"]),
            outcome(3, None, &["mtu"]),
        ];
        let summary = Summary::of(&outcomes.iter().collect::<Vec<_>>());
        let pauses = &summary.properties["pauses"];
        assert_eq!((pauses.worlds, pauses.seeds.as_slice()), (2, &[2][..]));
        assert_eq!(pauses.features[0], ("mtu".to_owned(), 0.5));
        assert_eq!(
            summary.measures["pauses"].quantiles,
            [0.5, 0.5, 0.5, 3.0, 3.0, 3.0]
        );
        assert!(
            summary.to_text().contains("| pauses | 2 | 1 | 50.0 % |"),
            "{}",
            summary.to_text()
        );
        assert!(!summary.properties.contains_key("alive"));
    }
}
