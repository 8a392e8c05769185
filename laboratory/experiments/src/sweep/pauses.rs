//! Pauses of downloads after events, at each point of a sweep, compared with the bound given by the
//! longest round trip.

use std::collections::BTreeMap;
use std::fmt;

use hawser_netem::report::Spread;
use hawser_netem::scenario::Scenario;

use super::row::Row;
use super::table::Table;

/// Column of the measured pause.
const PAUSE: &str = "longest_gap_since_event_ms";
/// Column of the allowed pause, in every run of a scenario with events.
const ALLOWED: &str = "allowed_pause_ms";
/// Axis of the event's time; medians are taken over it and over the seeds.
const WHEN: &str = "event.0.at";
/// Allowed pause: detection, report and recovery of a failure take one round trip each over the
/// farthest network. Source: docs/notebook/path-model.md, "What a death costs, and what lateness
/// has to do with it".
const ROUND_TRIPS: f64 = 3.0;
/// Additional time to distinguish silence from a pause, equal to that of a receiver
/// (`PathDelay::silent_at`). Source: the same page as for the round trips,
/// docs/notebook/path-model.md.
const NOTICED_MS: f64 = 20.0;

/// Longest time without data from the first event on, as a share of the allowed pause: three round
/// trips of the farthest network and 20 ms. All time after the event counts: a queue that is too
/// long for one network often causes a pause only seconds after the other network has failed.
///
/// Units: ratios of medians over the seeds and over the times of the event.
#[derive(Clone, Debug, PartialEq)]
pub struct Pauses {
    /// Share of the allowed pause, median pause in ms and the fields of the combination; the
    /// longest first.
    pub points: Vec<(f64, f64, String)>,
}

/// Adds the allowed pause to a run whose scenario has events.
pub(super) fn allow(scenario: &Scenario, row: &mut Row) {
    let links = scenario
        .networks
        .iter()
        .filter_map(|network| network.links.as_ref());
    let round_trips = links.map(|links| (links.down.delay + links.up.delay).as_secs_f64() * 1e3);
    let longest = round_trips.fold(0.0, f64::max);
    if !scenario.events.is_empty() && longest > 0.0 {
        row.push(ALLOWED, ROUND_TRIPS * longest + NOTICED_MS);
    }
}

impl Pauses {
    /// Compares pauses if the runs have events.
    #[must_use]
    pub fn of(table: &Table, axes: &[&str]) -> Option<Self> {
        let place = |name: &str| table.columns.iter().position(|(known, _)| known == name);
        let (pause, allowed) = (place(PAUSE)?, place(ALLOWED)?);
        let others = axes.iter().filter(|name| **name != WHEN);
        let fields: Vec<_> = others.filter_map(|name| Some((*name, place(name)?))).collect();
        let mut points: BTreeMap<String, (f64, Vec<f64>)> = BTreeMap::new();
        for row in &table.rows {
            let (Some(pause), Some(allowed)) = (row[pause].number(), row[allowed].number()) else {
                continue;
            };
            let fields = fields
                .iter()
                .map(|(name, at)| format!("{name}={}", row[*at].text()));
            let point = fields.collect::<Vec<_>>().join(" ");
            points.entry(point).or_insert((allowed, Vec::new())).1.push(pause);
        }
        let mut points: Vec<_> = points
            .into_iter()
            .filter_map(|(point, (allowed, pauses))| {
                let median = Spread::of(pauses)?.median;
                Some((median / allowed, median, point))
            })
            .collect();
        points.sort_by(|a, b| b.0.total_cmp(&a.0));
        (!points.is_empty()).then_some(Self { points })
    }

    /// Returns the number of pauses longer than allowed.
    #[must_use]
    pub fn longer(&self) -> usize {
        self.points.iter().filter(|(share, ..)| *share > 1.0).count()
    }

    /// Returns the median share.
    #[must_use]
    pub fn median(&self) -> f64 {
        self.points[self.points.len() / 2].0
    }
}

impl fmt::Display for Pauses {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "longest pause from the first event on at {} points, of {ROUND_TRIPS} round trips and {NOTICED_MS} ms: \
             median {:.2}, longer at {}, worst {:.2}",
            self.points.len(),
            self.median(),
            self.longer(),
            self.points[0].0,
        )?;
        for (share, pause, point) in self.points.iter().take(5).filter(|(share, ..)| *share > 1.0) {
            write!(f, "\n  {share:.2}  {pause:.0} ms  {point}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::row::Cell;
    use super::*;

    #[test]
    fn each_point_is_held_against_its_longest_round_trip() {
        let row = |rate: &str, allowed: f64, pause: f64| {
            let mut row = Row::default();
            row.push("rate", Cell::Text(rate.to_owned()));
            row.push(WHEN, Cell::Text(format!("{pause}ms")));
            row.push(PAUSE, pause);
            row.push(ALLOWED, allowed);
            row
        };
        let rows = [
            row("5mbit", 80.0, 60.0),
            row("5mbit", 80.0, 500.0),
            row("5mbit", 80.0, 40.0),
            row("9mbit", 80.0, 120.0),
        ];
        let pauses = Pauses::of(&Table::of(rows.iter()), &["rate", WHEN]).expect("there are events");
        let expected = [(1.5, 120.0, "rate=9mbit"), (0.75, 60.0, "rate=5mbit")];
        assert_eq!(
            pauses.points,
            expected.map(|(share, pause, point)| (share, pause, point.to_owned()))
        );
        assert_eq!((pauses.longer(), pauses.median()), (1, 0.75));
        assert!(
            pauses.to_string().ends_with("1.50  120 ms  rate=9mbit"),
            "{pauses}"
        );
        assert_eq!(Pauses::of(&Table::of([].iter()), &["rate"]), None);
    }

    #[test]
    fn what_is_allowed_follows_the_farthest_network() {
        let text = |event: &str| {
            format!(
                "name = \"a\"\nduration = \"2s\"\nvia = \"hub\"\n[[network]]\nname = \"n\"\n\
                 down = {{ rate = \"9mbit\", delay = \"40ms\" }}\n\
                 up = {{ rate = \"9mbit\", delay = \"10ms\" }}\n[[workload]]\nkind = \"tcp\"\n{event}"
            )
        };
        let allowed = |event: &str| {
            let path = std::path::Path::new("a.toml");
            let scenario = Scenario::parse(&text(event), path, &[], &mut |_| Ok(Vec::new()));
            let mut row = Row::default();
            allow(&scenario.expect("legal"), &mut row);
            row
        };
        let dies = "[[event]]\nat = \"1s\"\nnetwork = \"n\"\nset = \"blackhole\"\n";
        assert_eq!(allowed(dies).0, [(ALLOWED.to_owned(), Cell::Float(170.0))]);
        assert_eq!(allowed("").0, []);
    }
}
