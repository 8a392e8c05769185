//! The demonstration of neighbours: one file, downloaded over the own modem alone, then with the
//! modems of two neighbours beside it, of whom one comes meanwhile and the other leaves without a
//! word.

use std::sync::Arc;

use hawser_netem::report::IDEAL_SHARE;
use hawser_netem::scenario::{Member, Scenario, Via};
use hawser_netem::{Capacity, Trace};
use hawser_units::{Duration, Rate};

use super::{Demo, DemoProgress, Download, SAMPLE_MS, SEED, Story, lte, network, run_all, scenario_of};
use crate::arm::Options;

/// Rate of a download without events of its networks.
#[derive(Clone, Copy, Debug)]
pub struct Steady {
    /// Seconds since the start of the download.
    pub from: f64,
    /// Seconds since the start of the download.
    pub to: f64,
    /// Rate that curl received. Units: bit/s of the body.
    pub rate_bps: f64,
    /// Combined capacity of the networks in that time. Units: bit/s of frames.
    pub sum_bps: f64,
    /// The longest round trip of an empty path, from end to end.
    pub round_trip_ms: f64,
}

impl Steady {
    /// The part of the networks' sum that reached curl, all headers against it.
    #[must_use]
    pub fn share(&self) -> f64 {
        self.rate_bps / self.sum_bps.max(1.0)
    }

    pub(super) fn lines(&self) -> Vec<String> {
        vec![
            format!(
                "  With all three, from {:.0} s to {:.0} s: {:.2} Mbit/s, {:.3} of the {:.2} Mbit/s that the modems \
                 could carry in frames, {:.3} of what full packets hold of that.",
                self.from,
                self.to,
                self.rate_bps / 1e6,
                self.share(),
                self.sum_bps / 1e6,
                self.share() / IDEAL_SHARE
            ),
            format!(
                "  Three of the longest round trips and 20 ms are {:.0} ms.",
                3.0 * self.round_trip_ms + 20.0
            ),
        ]
    }
}

/// Properties of the modems.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Modems {
    /// Their rates wander as those of moving LTE users do.
    Wandering,
    /// Their rates stay.
    Constant,
}

/// Downloads `size` bytes with and without neighbours.
///
/// Must be called on a thread that lives as long as the process: clients and daemons die with it.
///
/// # Errors
/// As [`super::run`], or the download ends before the events that it must experience.
pub fn run(
    size: u64,
    modems: Modems,
    options: &Options,
    on_progress: &mut dyn FnMut(&DemoProgress<'_>),
) -> anyhow::Result<Demo> {
    let scenario = scenario(modems)?;
    let networks: Vec<&'static str> = MODEMS.iter().map(|modem| modem.title).collect();
    let ways = [
        (
            Via::Single(MODEMS[0].name.to_owned()),
            "Own modem alone".to_owned(),
        ),
        (Via::Hub, "With neighbours".to_owned()),
    ];
    let downloads = run_all(&ways, (&scenario, None), (&networks, size), options, on_progress)?;
    let steady = downloads.last().and_then(|all| steady(&scenario, all));
    Ok(Demo {
        networks,
        size,
        downloads,
        steady,
        story: STORY,
    })
}

/// Returns the rate while all three were there: `None` when the download did not last as long.
fn steady(scenario: &Scenario, all: &Download) -> Option<Steady> {
    let (from, to) = (ARRIVES + SETTLED, LEAVES);
    let bins = |at: Duration| usize::try_from(at.as_millis() / u128::from(SAMPLE_MS)).unwrap_or(usize::MAX);
    let delivered: u64 = all.delivered.get(bins(from)..bins(to))?.iter().sum();
    let links = || {
        scenario
            .networks
            .iter()
            .filter_map(|network| network.links.as_ref())
    };
    let carried = |capacity: &Capacity| match capacity {
        Capacity::Trace(trace) => trace.mean_between(from, to),
        Capacity::Rate(rate) => *rate,
        Capacity::Unlimited => Rate::ZERO,
    };
    let sum: u64 = links().map(|links| carried(&links.down.capacity).as_bps()).sum();
    let round_trips = links().map(|links| links.down.delay + links.up.delay + 2 * LOCAL_DELAY);
    Some(Steady {
        from: from.as_secs_f64(),
        to: to.as_secs_f64(),
        rate_bps: delivered as f64 * 8.0 / (to - from).as_secs_f64(),
        sum_bps: sum as f64,
        round_trip_ms: round_trips.max()?.as_secs_f64() * 1e3,
    })
}

fn scenario(modems: Modems) -> anyhow::Result<Scenario> {
    let mut networks = Vec::new();
    for (number, modem) in (0..).zip(&MODEMS) {
        let down = match modems {
            Modems::Wandering => {
                let walk = lte::walk(SEED + number, modem.mbps);
                Capacity::Trace(Arc::new(Trace::parse(&walk)?))
            }
            Modems::Constant => Capacity::Rate(Rate::from_bps((modem.mbps * 1e6) as u64)),
        };
        let up = Capacity::Rate(Rate::from_bps((modem.mbps * UP * 1e6) as u64));
        let mut network = network(modem.name, (down, up), modem.delay_ms, 0);
        network.member = (number > 0).then(|| Member {
            away: modem.away.to_vec(),
            ..Member::default()
        });
        if let Some(member) = &mut network.member {
            (member.local.down.delay, member.local.up.delay) = (LOCAL_DELAY, LOCAL_DELAY);
        }
        networks.push(network);
    }
    let mut scenario = scenario_of("neighbours", networks);
    scenario.events = scenario.movements();
    Ok(scenario)
}

struct Modem {
    name: &'static str,
    title: &'static str,
    /// Middle rate.
    mbps: f64,
    delay_ms: u64,
    away: &'static [(Duration, Duration)],
}

/// Size of a download. Source: a minute over the modem of 8 Mbit/s. Units: bytes.
pub const SIZE: u64 = 60_000_000;

const MODEMS: [Modem; 3] = [
    Modem {
        name: "own",
        title: "Own modem",
        mbps: 8.0,
        delay_ms: 25,
        away: &[],
    },
    Modem {
        name: "bob",
        title: "Bob's modem",
        mbps: 5.0,
        delay_ms: 30,
        away: &[(LEAVES, NEVER)],
    },
    Modem {
        name: "carol",
        title: "Carol's modem",
        mbps: 3.0,
        delay_ms: 35,
        away: &[(Duration::ZERO, ARRIVES)],
    },
];

/// Times at which Carol arrives and Bob leaves. Source: our choice, so that each state lasts long
/// enough to be seen; the third time never comes.
const ARRIVES: Duration = Duration::from_secs(6);
const LEAVES: Duration = Duration::from_secs(26);
const NEVER: Duration = Duration::from_secs(100_000);
/// Time from which Carol's modem counts as fully used; she is discovered within a few seconds.
/// Source: our choice; a shorter one counts the start of her path.
const SETTLED: Duration = Duration::from_secs(8);
/// Delay of a local network in one direction. Source: our choice, that of an idle Wi-Fi network.
const LOCAL_DELAY: Duration = Duration::from_millis(1);
/// Ratio of a modem's uplink rate to its downlink rate. Source: our choice, as common tariffs of
/// modems have.
const UP: f64 = 0.5;

const STORY: Story = Story {
    subtitle: "The same file with curl: over the own modem, then with those of two neighbours. Carol \
               comes, and Bob leaves without a word.",
    silent: "has left",
    what: "Neighbours give each other their modems. Each modem is one more network of the tunnel: what \
           passes through a neighbour is encrypted between this machine and its own hub, which puts the \
           packets back in order and passes them on.",
    how: "Client, two neighbours, hub and server ran on this machine, each in a network namespace of its \
          own, with the kernel's own TCP, the real Hawser programs and curl. The modems were emulated, \
          with 8, 5 and 3 Mbit/s and 25, 30 and 35 ms, between the devices 1 ms, each delay one way and \
          each queue 100 ms long. The networks' rates include the headers of every layer, which is why \
          they stand above what curl received.",
};

#[cfg(test)]
mod tests {
    use super::*;
    use hawser_netem::State;

    #[test]
    fn one_comes_and_one_leaves_and_the_time_between_is_measured() {
        let scenario = scenario(Modems::Constant).expect("a scenario");
        assert_eq!(scenario.sum_of_rates(), Some(Rate::from_mbps(16)));
        let moves: Vec<_> = scenario
            .events
            .iter()
            .map(|event| (event.at, event.network, event.change.state))
            .collect();
        assert_eq!(moves[0], (Duration::ZERO, 2, Some(State::Blackhole)));
        assert_eq!(moves[1], (ARRIVES, 2, Some(State::Up)));
        assert_eq!(moves[2], (LEAVES, 1, Some(State::Blackhole)));
        // 15 Mbit/s of body in bins of 100 ms.
        let mut download = Download {
            title: String::new(),
            seconds: 30.0,
            delivered: vec![187_500; 300],
            networks: Vec::new(),
            longest_gap_ms: 0.0,
            outage: None,
        };
        let found = steady(&scenario, &download).expect("it lasted");
        assert!((found.share() - 15.0 / 16.0).abs() < 1e-6, "{found:?}");
        assert!((found.round_trip_ms - 72.0).abs() < 1.0, "{found:?}");
        download.delivered.truncate(200);
        assert!(
            steady(&scenario, &download).is_none(),
            "it was over before Bob left"
        );
    }

    #[test]
    fn wandering_modems_stay_around_their_rates() {
        let scenario = scenario(Modems::Wandering).expect("a scenario");
        let sum = scenario.sum_of_rates().expect("traces have means").as_bps();
        assert!((10_000_000..24_000_000).contains(&sum), "{sum}");
    }
}
