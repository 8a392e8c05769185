//! The demonstration of five networks: one upload and a call over four modems and a Starlink-like
//! path, while paths fail and recover; then the same over the kernel's MPTCP and over the best path
//! alone.
//!
//! Scope: as for `crate::run`; the scenario is `five.toml`. The rates of the modems come from a
//! seeded random walk, or from the user's recordings.
//!
//! Source of the Starlink-like path: paths change each 15 s (Tanveer et al., "Making Sense of
//! Constellations", CoNEXT Companion 2023; Mohan et al., "A Multifaceted Look at Starlink
//! Performance", WWW 2024). Limitations: its rates, delays and pauses are chosen, not recorded.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context, ensure};
use hawser_linux::shutdown;
use hawser_netem::report::Report;
use hawser_netem::scenario::{Direction, Scenario, Via};
use hawser_netem::{State, oracle};
use hawser_units::Duration;
use serde::Serialize;

use super::{DemoProgress, lte};
use crate::arm::{self, Options, Progress};

/// The networks and events of the demonstration.
#[derive(Clone, Debug)]
pub struct Five {
    /// Parsed scenario.
    pub scenario: Scenario,
    /// Files that the scenario names, with their texts.
    pub traces: BTreeMap<String, String>,
    /// Bytes of the upload that the networks can transfer in each millisecond. Units: frame bytes.
    capacities: Vec<Vec<f64>>,
}

/// A system, and its results in each run.
#[derive(Clone, Debug)]
pub struct SystemResult {
    /// Title.
    pub title: String,
    /// Every run, in order.
    pub runs: Vec<Report>,
}

/// Results of the demonstration.
#[derive(Clone, Debug)]
pub struct FiveResult {
    /// Hawser, MPTCP, and the best path alone.
    pub systems: Vec<SystemResult>,
    /// Error of MPTCP if its first connection uses the first network, which has failed; `None` if
    /// it connected.
    pub mptcp_by_the_dead: Option<String>,
}

/// Key figures of one run.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Figures {
    /// Rate of the upload's payload. Units: bit/s.
    pub upload_bps: f64,
    /// Payload of the upload over the frame bytes that all networks could have transferred.
    pub share_of_sum: f64,
    /// Longest time without a byte of the upload at the server, from its first byte on.
    pub upload_pause_ms: f64,
    /// Longest time without a packet of the call, in the worse direction.
    pub call_pause_ms: f64,
    /// Number of times that a direction of the call was without a packet for more than [`HEARD`].
    pub call_gaps: usize,
    /// Share of the call's packets that did not arrive, both directions together.
    pub call_lost: f64,
    /// 99th percentile of the call's one-way delay in the worse direction.
    pub call_delay_p99_ms: f64,
    /// Processor time of both daemons per gigabyte of the upload; `None` without daemons.
    pub cpu_seconds_per_gigabyte: Option<f64>,
}

impl Five {
    /// Reads the scenario. `recordings`: texts of `down` and `up` that replace the rates of the
    /// first modems.
    ///
    /// # Errors
    /// When a recording is not a trace, or there are more than [`MODEMS`].
    pub fn read(recordings: Vec<(String, String)>, settings: &[String]) -> anyhow::Result<Self> {
        ensure!(
            recordings.len() <= MODEMS.len(),
            "there are {} modems",
            MODEMS.len()
        );
        let mut traces = BTreeMap::new();
        for (n, (down, up)) in (0u64..).zip(MODEMS) {
            let made = |seed, mbps| lte::walk(SEED + seed, mbps);
            let recorded = usize::try_from(n).ok().and_then(|n| recordings.get(n).cloned());
            let (down, up) = recorded.unwrap_or_else(|| (made(2 * n, down), made(2 * n + 1, up)));
            traces.insert(format!("modem-{}.down", n + 1), down);
            traces.insert(format!("modem-{}.up", n + 1), up);
        }
        let read = &mut |path: &Path| {
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            let text = traces.get(name.as_ref()).map(|text| text.clone().into_bytes());
            text.ok_or_else(|| std::io::Error::from(std::io::ErrorKind::NotFound))
        };
        let scenario = Scenario::parse(TEXT, Path::new("five.toml"), settings, read)?;
        let capacity = |network| oracle::capacity(&scenario, network, Direction::Up);
        let capacities: Option<Vec<Vec<f64>>> = (0..scenario.networks.len()).map(capacity).collect();
        Ok(Self {
            capacities: capacities.context("a network of the demonstration has no rate")?,
            scenario,
            traces,
        })
    }

    /// Returns the network that can transfer most of the upload.
    #[must_use]
    pub fn best(&self) -> usize {
        let total = |network: &usize| self.capacities[*network].iter().sum::<f64>();
        let all = 0..self.capacities.len();
        all.max_by(|a, b| total(a).total_cmp(&total(b))).unwrap_or(0)
    }

    /// Returns the rate that the networks can transfer of the upload together, in bins of `bin`.
    /// Units: bit/s.
    #[must_use]
    pub fn sum_over_time(&self, bin: Duration) -> Vec<f64> {
        let length = (bin.as_millis() as usize).max(1);
        let end = self.scenario.duration.as_millis() as usize;
        let step = |step: usize| self.capacities.iter().map(|of| of[step]).sum::<f64>();
        let bins = (0..end / length).map(|bin| (bin * length..(bin + 1) * length).map(step).sum::<f64>());
        bins.map(|bytes| bytes * 8e3 / length as f64).collect()
    }

    /// Returns the periods in which a network transfers nothing. Units: seconds since the start.
    #[must_use]
    pub fn dead(&self, network: usize) -> Vec<(f64, f64)> {
        let mut dead = Vec::new();
        let mut since = None;
        let events = self
            .scenario
            .events
            .iter()
            .filter(|event| event.network == network);
        for event in events {
            match (event.change.state, since) {
                (Some(State::Up), Some(from)) => {
                    dead.push((from, event.at.as_secs_f64()));
                    since = None;
                }
                (Some(State::Down | State::NoCarrier | State::Blackhole), None) => {
                    since = Some(event.at.as_secs_f64())
                }
                (Some(_) | None, _) => {}
            }
        }
        dead.extend(since.map(|from| (from, self.scenario.duration.as_secs_f64())));
        dead
    }

    /// Runs every system `rounds` times, interleaved.
    ///
    /// Must be called on a thread that lives as long as the process; the daemons end with the
    /// thread.
    ///
    /// # Errors
    /// When the lab cannot be built, a daemon ends, or a signal interrupts.
    pub fn run(
        &self,
        rounds: u32,
        options: &Options,
        on_progress: &mut dyn FnMut(&DemoProgress<'_>),
    ) -> anyhow::Result<FiveResult> {
        let best = self.best();
        let name = &self.scenario.networks[best].name;
        let jobs = [
            (Via::Hub, "Hawser".to_owned(), self.scenario.clone()),
            (
                Via::Mptcp,
                format!("MPTCP, {name} first"),
                with_first(&self.scenario, best),
            ),
            (
                Via::Single(name.clone()),
                format!("{name} alone"),
                self.scenario.clone(),
            ),
        ];
        let steps = jobs.len() * rounds as usize;
        let mut step = 0;
        let mut systems = jobs.clone().map(|(_, title, _)| SystemResult {
            title,
            runs: Vec::new(),
        });
        for round in 0..rounds {
            for ((via, title, scenario), system) in jobs.iter().zip(&mut systems) {
                let mut scenario = scenario.clone();
                scenario.seed = scenario.seed.wrapping_add(u64::from(round));
                let mut report = |now: &Progress<'_>| {
                    on_progress(&self.progress((title, &scenario), (step, steps), now));
                };
                let run = arm::run(&scenario, via, options, &mut report);
                system
                    .runs
                    .push(run.with_context(|| format!("via {}", via.label()))?);
                step += 1;
            }
        }
        Ok(FiveResult {
            systems: systems.to_vec(),
            mptcp_by_the_dead: self.connect_by_the_dead(options)?,
        })
    }

    /// Returns the error of MPTCP if the routes are in the order of the networks.
    fn connect_by_the_dead(&self, options: &Options) -> anyhow::Result<Option<String>> {
        let mut short = self.scenario.clone();
        short.duration = short.duration.min(CONNECTS_WITHIN);
        short.workloads.truncate(1);
        let tried = arm::run(&short, &Via::Mptcp, options, &mut |_| {});
        if shutdown::is_requested() {
            tried?;
            return Ok(None);
        }
        Ok(tried.err().map(|error| error.root_cause().to_string()))
    }

    fn progress<'a>(
        &self,
        (title, scenario): (&'a str, &Scenario),
        step: (usize, usize),
        now: &Progress<'_>,
    ) -> DemoProgress<'a> {
        let seconds = now.elapsed.as_secs_f64();
        let is_dead = |network: usize| {
            let dead = self.dead(network);
            dead.iter().any(|(from, to)| (*from..*to).contains(&seconds))
        };
        let place = |name: &str| scenario.networks.iter().position(|network| network.name == name);
        let rate = |name: &str| place(name).and_then(|at| now.networks_bps.get(at).copied());
        DemoProgress {
            title,
            step,
            elapsed: now.elapsed,
            share: seconds / now.duration.as_secs_f64().max(1e-9),
            goodput_bps: now.goodput_bps,
            networks: NAMES.map(|name| (name, rate(name).unwrap_or(0.0))).to_vec(),
            dead: (0..NAMES.len())
                .filter(|n| is_dead(*n))
                .map(|n| NAMES[n])
                .collect(),
        }
    }

    /// Returns the figures of a run.
    #[must_use]
    pub fn figures(&self, run: &Report) -> Figures {
        let bin = Duration::from_millis(run.series.bin_ms);
        let pauses = |workload: usize| pauses(&run.series.workloads[workload], bin);
        let longest =
            |pauses: &[Duration]| pauses.iter().max().map_or(0.0, |pause| pause.as_secs_f64() * 1e3);
        let uploaded = run.series.workloads[0].iter().sum::<u64>() as f64;
        let sum: f64 = self.capacities.iter().flatten().sum();
        let call = [1, 2].map(pauses);
        let heard = call.iter().flatten().filter(|pause| **pause > HEARD);
        let (mut sent, mut received, mut delay) = (0, 0, 0.0_f64);
        for finding in &run.workloads {
            if let hawser_netem::report::Finding::Udp {
                sent: out,
                received: came,
                delay_p99_ms,
                ..
            } = finding
            {
                (sent, received) = (sent + out, received + came);
                delay = delay.max(*delay_p99_ms);
            }
        }
        let cpu = run.cpu_seconds.client + run.cpu_seconds.hub;
        Figures {
            upload_bps: uploaded * 8.0 / run.duration_s.max(0.001),
            share_of_sum: uploaded / sum.max(1.0),
            upload_pause_ms: longest(&pauses(0)),
            call_pause_ms: call.iter().map(|pauses| longest(pauses)).fold(0.0, f64::max),
            call_gaps: heard.count(),
            call_lost: hawser_netem::report::share_lost(sent, received),
            call_delay_p99_ms: delay,
            cpu_seconds_per_gigabyte: (cpu > 0.0 && uploaded > 0.0).then(|| cpu * 1e9 / uploaded),
        }
    }
}

impl SystemResult {
    /// Returns the run with the median upload.
    ///
    /// # Panics
    /// When there is no run.
    #[must_use]
    pub fn median_run(&self) -> &Report {
        let mut order: Vec<&Report> = self.runs.iter().collect();
        order.sort_by_key(|run| run.series.workloads[0].iter().sum::<u64>());
        order[order.len() / 2]
    }
}

/// Returns the periods without a byte, after the first byte and until the end.
fn pauses(bins: &[u64], bin: Duration) -> Vec<Duration> {
    let came = || {
        bins.iter()
            .enumerate()
            .filter(|(_, bytes)| **bytes > 0)
            .map(|(at, _)| at)
    };
    let ends = came().skip(1).chain([bins.len()]);
    came()
        .zip(ends)
        .map(|(at, next)| bin * (next - at) as u32)
        .collect()
}

/// Returns the same networks with one of them first in the routing table.
fn with_first(scenario: &Scenario, first: usize) -> Scenario {
    let mut scenario = scenario.clone();
    scenario.networks[..=first].rotate_right(1);
    for event in &mut scenario.events {
        event.network = match event.network {
            at if at == first => 0,
            at if at < first => at + 1,
            at => at,
        };
    }
    scenario
}

/// The scenario, which `hawser-lab lab` also runs if its traces are in the same directory.
pub const TEXT: &str = include_str!("five.toml");
const NAMES: [&str; 5] = ["modem-1", "modem-2", "modem-3", "modem-4", "leo"];
/// Mean rates of the modems, down and up. Units: Mbit/s. Source: our choice, modems of four
/// operators with different reception.
const MODEMS: [(f64, f64); 4] = [(20.0, 9.0), (15.0, 7.0), (12.0, 6.0), (10.0, 4.0)];
/// First seed of the modems. Source: our choice, any number.
const SEED: u64 = 50;
/// Length of an audible gap in a call: five packets. Source: our choice; a codec conceals shorter
/// gaps.
pub const HEARD: Duration = Duration::from_millis(100);
/// Time for MPTCP to connect over a failed network: two of TCP's attempts (RFC 6298).
pub const CONNECTS_WITHIN: Duration = Duration::from_secs(4);

#[cfg(test)]
mod tests {
    use super::*;

    fn five() -> Five {
        Five::read(Vec::new(), &[]).expect("a scenario")
    }

    #[test]
    fn the_first_is_dead_one_blocks_udp_and_the_sum_follows_both() {
        let five = five();
        let names: Vec<&str> = five
            .scenario
            .networks
            .iter()
            .map(|network| network.name.as_str())
            .collect();
        assert_eq!(names, NAMES);
        assert_eq!(five.dead(0), [(0.0, 30.0)]);
        assert!(five.scenario.networks[1].blocks_udp);
        assert_eq!(five.dead(4).len(), 4, "three hand-overs and a death");
        assert_eq!(five.best(), 4);
        let sum = five.sum_over_time(Duration::from_secs(1));
        assert_eq!(sum.len(), 50);
        // The Starlink-like path is away for four seconds.
        let leo = Five {
            capacities: vec![five.capacities[4].clone()],
            ..five.clone()
        };
        let alone = leo.sum_over_time(Duration::from_secs(1));
        assert!(
            alone[42] < 1e5 && (alone[5] / 14e6 - 1.0).abs() < 0.01,
            "{alone:?}"
        );
        assert!(sum.iter().zip(&alone).all(|(sum, alone)| sum >= alone));
    }

    #[test]
    fn a_network_goes_first_with_its_events() {
        let moved = with_first(&five().scenario, 4);
        let names: Vec<&str> = moved
            .networks
            .iter()
            .map(|network| network.name.as_str())
            .collect();
        assert_eq!(names, ["leo", "modem-1", "modem-2", "modem-3", "modem-4"]);
        assert_eq!(moved.events[0].network, 1, "modem-1 is dead from the start");
        assert_eq!(moved.events.iter().filter(|event| event.network == 0).count(), 14);
    }

    #[test]
    fn pauses_are_between_bytes_and_to_the_end() {
        let bin = Duration::from_millis(10);
        let found: Vec<u128> = pauses(&[0, 0, 5, 5, 0, 0, 1, 0], bin)
            .iter()
            .map(Duration::as_millis)
            .collect();
        assert_eq!(found, [10, 30, 20]);
        assert!(pauses(&[0, 0], bin).is_empty());
    }

    #[test]
    fn recordings_take_the_place_of_made_modems() {
        let steady = || ("0,1000000\n".to_owned(), "0,5000000\n".to_owned());
        let five = Five::read(vec![steady()], &["duration=40s".to_owned()]).expect("a scenario");
        assert_eq!(five.best(), 4, "modem-1 is dead until 30 s");
        let five = Five::read(vec![steady(), steady()], &[]).expect("a scenario");
        assert_eq!(five.best(), 1, "40 Mbit/s");
        assert!(Five::read(vec![steady(); 5], &[]).is_err());
    }
}
