//! Comparison of the hub with the best network alone, at each point of a sweep.

use std::collections::BTreeMap;
use std::fmt;

use hawser_netem::report::Spread;

use super::table::Table;

/// Compared column.
const COLUMN: &str = "goodput_bps.total";
/// Share below which a result is worse than the best network alone; shares between it and one are
/// within the variation of runs. Source: docs/notebook/path-model.md, "What was asked of it, and
/// what it reaches".
const WORSE: f64 = 0.98;

/// Goodput of the hub as a share of that of the best single network, for each combination of the
/// other axes.
#[derive(Clone, Debug, PartialEq)]
pub struct Versus {
    /// Medians over the seeds, with the fields of the combination; the smallest first.
    pub shares: Vec<(f64, String)>,
}

impl Versus {
    /// Compares if the sweep has an axis `via` with `hub` and at least one `single:NETWORK`.
    #[must_use]
    pub fn of(table: &Table, axes: &[&str]) -> Option<Self> {
        let place = |name: &str| table.columns.iter().position(|(known, _)| known == name);
        let (via, goodput) = (place("via")?, place(COLUMN)?);
        let others = axes.iter().filter(|name| **name != "via");
        let others: Vec<_> = others.filter_map(|name| Some((*name, place(name)?))).collect();
        let mut points: BTreeMap<String, BTreeMap<String, Vec<f64>>> = BTreeMap::new();
        for row in &table.rows {
            let Some(value) = row[goodput].number() else {
                continue;
            };
            let fields = others
                .iter()
                .map(|(name, at)| format!("{name}={}", row[*at].text()));
            let point = fields.collect::<Vec<_>>().join(" ");
            let ways = points.entry(point).or_default();
            ways.entry(row[via].text()).or_default().push(value);
        }
        let mut shares: Vec<_> = points
            .into_iter()
            .filter_map(|(point, ways)| Some((share(ways)?, point)))
            .collect();
        shares.sort_by(|a, b| a.0.total_cmp(&b.0));
        (!shares.is_empty()).then_some(Self { shares })
    }

    /// Returns the number of points worse than the best network alone.
    #[must_use]
    pub fn worse(&self) -> usize {
        self.shares.iter().filter(|(share, _)| *share < WORSE).count()
    }

    /// Returns the median share.
    #[must_use]
    pub fn median(&self) -> f64 {
        self.shares[self.shares.len() / 2].0
    }
}

/// Returns the share of the medians over the seeds.
fn share(ways: BTreeMap<String, Vec<f64>>) -> Option<f64> {
    let (mut hub, mut best) = (None, None::<f64>);
    for (way, values) in ways {
        let median = Spread::of(values)?.median;
        if way == "hub" {
            hub = Some(median);
        } else if way.starts_with("single:") {
            best = Some(best.map_or(median, |best| best.max(median)));
        }
    }
    best.filter(|best| *best > 0.0).and_then(|best| Some(hub? / best))
}

impl fmt::Display for Versus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "hub against the best network alone at {} points: median {:.2}, below {WORSE} at {}",
            self.shares.len(),
            self.median(),
            self.worse()
        )?;
        for (share, point) in self.shares.iter().take(5).filter(|(share, _)| *share < WORSE) {
            write!(f, "\n  {share:.2}  {point}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::row::{Cell, Row};
    use super::*;

    #[test]
    fn each_point_is_held_against_its_best_network_alone() {
        let row = |delay: &str, via: &str, bps: f64| {
            let mut row = Row::default();
            row.push("network.1.delay", Cell::Text(delay.to_owned()));
            row.push("via", Cell::Text(via.to_owned()));
            row.push(COLUMN, Cell::Float(bps));
            row
        };
        let mut rows = vec![
            row("5ms", "hub", 9e6),
            row("5ms", "hub", 8e6),
            row("5ms", "hub", 1e6),
            row("5ms", "single:a", 4e6),
            row("5ms", "single:b", 5e6),
            row("5ms", "mptcp", 20e6),
            row("80ms", "hub", 3e6),
            row("80ms", "single:a", 4e6),
        ];
        let axes = ["network.1.delay", "via"];
        let versus = Versus::of(&Table::of(rows.iter()), &axes).expect("comparable");
        let expected = [(0.75, "network.1.delay=80ms"), (1.6, "network.1.delay=5ms")];
        assert_eq!(
            versus.shares,
            expected.map(|(share, point)| (share, point.to_owned()))
        );
        assert_eq!((versus.worse(), versus.median()), (1, 1.6));
        assert!(
            versus
                .to_string()
                .ends_with("below 0.98 at 1\n  0.75  network.1.delay=80ms"),
            "{versus}"
        );
        rows.retain(|row| row.0[1].1 == Cell::Text("hub".to_owned()));
        assert_eq!(Versus::of(&Table::of(rows.iter()), &axes), None);
    }
}
