//! Runs a world over the tunnel and over its baselines, and judges each property.
//!
//! Baselines run in the simulator only, with the same settings and events. A network's treatment of
//! UDP alone (a policer, a block) applies to all protocols of a baseline: the daemon reacts to
//! blocked UDP with TLS, which the simulator does not have, so a TCP baseline would measure a
//! network that the tunnel cannot use.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};

use hawser_netem::oracle::delay::{Earliest, bound_delays};
use hawser_netem::report::{Finding, Report};
use hawser_netem::scenario::{CompetingSystem, Direction, Network, Scenario, Tcp, Usage, Via, Workload};
use hawser_netem::{Capacity, Protocol};
use hawser_sim::run::{self, Watch};
use hawser_units::Rate;
use hawser_wire::data::Class;
use hawser_wire::preference::Priority;
use serde::{Deserialize, Serialize};

use super::properties::tolerance as limits;
use super::properties::{Property, Violation};
use super::working::Working;

/// Measures of a world, and the properties that it violates.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Judgement {
    /// Measures by name; shares are of the limit without its tolerance.
    pub measures: BTreeMap<String, f64>,
    /// Violated properties.
    pub violations: Vec<Violation>,
}

/// Judges a scenario by the properties `asked`.
///
/// A panic of the simulated machines is a violation of [`Property::Runs`].
#[must_use]
pub fn judge(scenario: &Scenario, asked: &[Property]) -> Judgement {
    let run = catch_unwind(AssertUnwindSafe(|| Judge::run(scenario, asked)));
    let problem = match run {
        Ok(Ok(judgement)) => return judgement,
        Ok(Err(problem)) => problem,
        Err(panic) => {
            let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
            let text = text.or_else(|| panic.downcast_ref::<String>().cloned());
            format!("panic: {}", text.unwrap_or_default())
        }
    };
    Judgement::failed(problem)
}

impl Judgement {
    /// Returns the judgement of a world that cannot run, with the reason in one line.
    #[must_use]
    pub fn failed(problem: String) -> Self {
        let violation = Violation {
            property: Property::Runs,
            value: 0.0,
            limit: 1.0,
            detail: problem,
        };
        Self {
            measures: BTreeMap::new(),
            violations: vec![violation],
        }
    }
}

/// Peaks of memory of the tunnel's receiving and sending end.
#[derive(Default)]
struct Peaks {
    reordered: f64,
    entrance: f64,
}

struct Judge<'a> {
    scenario: &'a Scenario,
    asked: &'a [Property],
    own: Report,
    peaks: Peaks,
    /// Each network alone.
    alone: Vec<Report>,
    judgement: Judgement,
}

impl<'a> Judge<'a> {
    fn run(scenario: &'a Scenario, asked: &'a [Property]) -> Result<Judgement, String> {
        let watch = Watch {
            paths: true,
            ..Watch::default()
        };
        let outcome = run::run(scenario, &Via::Hub, watch, &mut |_| {}).map_err(|error| error.to_string())?;
        let mut peaks = Peaks::default();
        for sample in outcome.log.iter().flat_map(|log| log.samples()) {
            peaks.reordered = peaks.reordered.max(sample.tunnel.held as f64);
            peaks.entrance = peaks.entrance.max(sample.tunnel.backlog_bytes as f64);
        }
        let mut judge = Self {
            scenario,
            asked,
            own: outcome.report,
            peaks,
            alone: Vec::new(),
            judgement: Judgement::default(),
        };
        judge.all()?;
        Ok(judge.judgement)
    }

    fn is_asked(&self, of: &[Property]) -> bool {
        of.iter().any(|property| self.asked.contains(property))
    }

    fn all(&mut self) -> Result<(), String> {
        self.memory();
        if self.is_asked(&NEEDS_ALONE) {
            let base = baseline(self.scenario);
            for network in usable(self.scenario) {
                self.alone
                    .push(report(&base, &Via::Single(network.name.clone()))?);
            }
        }
        let working = Working::of(self.scenario);
        self.goodput()?;
        self.pages();
        self.datagrams(&working);
        self.answers();
        self.connections(&working);
        self.settings(&working);
        let is_plain = |network: &Network| network.usage == Usage::default();
        if !self.scenario.networks.iter().all(is_plain) {
            return Ok(());
        }
        for (name, share) in [
            ("oracle", self.own.share_of_oracle),
            ("stream-oracle", self.own.share_of_stream_oracle),
        ] {
            if let Some(share) = share {
                self.judgement.measures.insert(name.to_owned(), share);
            }
        }
        Ok(())
    }

    /// Records a measure, and a violation if the value is below the limit.
    fn check_minimum(&mut self, property: Property, (value, base, limit): (f64, f64, f64), detail: String) {
        let share = if base > 0.0 { value / base } else { 1.0 };
        self.note(property, share, f64::min);
        self.check(property, value >= limit, (value, limit), detail);
    }

    fn check_maximum(&mut self, property: Property, (value, limit): (f64, f64), detail: String) {
        self.note(property, value, f64::max);
        self.check(property, value <= limit, (value, limit), detail);
    }

    fn note(&mut self, property: Property, value: f64, worse: fn(f64, f64) -> f64) {
        if self.is_asked(&[property]) {
            let measure = self.judgement.measures.entry(property.name().to_owned());
            measure
                .and_modify(|known| *known = worse(*known, value))
                .or_insert(value);
        }
    }

    fn check(&mut self, property: Property, holds: bool, (value, limit): (f64, f64), detail: String) {
        if !holds && self.is_asked(&[property]) {
            self.judgement.violations.push(Violation {
                property,
                value,
                limit,
                detail,
            });
        }
    }

    fn memory(&mut self) {
        let (reordered, entrance) = (self.peaks.reordered, self.peaks.entrance);
        self.check_maximum(
            Property::ReorderMemory,
            (reordered, limits::REORDER),
            "packets".to_owned(),
        );
        self.check_maximum(
            Property::EntranceQueue,
            (entrance, limits::ENTRANCE),
            "bytes".to_owned(),
        );
    }

    /// Indices of the tunnel's own workloads that `wants` accepts.
    fn workloads(&self, wants: fn(&Workload) -> bool) -> Vec<usize> {
        let all = self.scenario.workloads.iter().enumerate();
        let own =
            all.filter(|(index, workload)| !self.scenario.competing.contains_key(index) && wants(workload));
        own.map(|(index, _)| index).collect()
    }

    fn goodput(&mut self) -> Result<(), String> {
        let bulk =
            self.workloads(|workload| matches!(workload, Workload::Tcp { .. } | Workload::Quic { .. }));
        if bulk.is_empty() {
            return Ok(());
        }
        let sum = |report: &Report| {
            bulk.iter()
                .map(|at| report.goodput_bps.workloads[*at])
                .sum::<f64>()
        };
        let own = sum(&self.own);
        let share = match self.scenario.tcp {
            Tcp::EndToEnd => limits::PACKET_SHARE,
            Tcp::Stream => limits::STREAM_SHARE,
        };
        let best = self.alone.iter().map(sum).enumerate();
        if let Some((network, best)) = best.max_by(|a, b| a.1.total_cmp(&b.1)) {
            let name = &usable(self.scenario)[network].name;
            let detail = format!("bit/s; {name} alone");
            let best = best * share;
            self.check_minimum(
                Property::GoodputAlone,
                (own, best, best * limits::GOODPUT),
                detail,
            );
        }
        if usable(self.scenario).len() < 2 {
            return Ok(());
        }
        if self.is_asked(&[Property::GoodputMptcp]) {
            let mptcp = sum(&report(&only_usable(baseline(self.scenario)), &Via::Mptcp)?) * share;
            let limit = mptcp * limits::GOODPUT;
            self.check_minimum(Property::GoodputMptcp, (own, mptcp, limit), "bit/s".to_owned());
        }
        if self.is_asked(&[Property::GoodputRoundRobin]) {
            let mut in_turn = self.scenario.clone();
            in_turn.schedulers = Class::ALL.map(|class| (class, "round-robin".to_owned())).to_vec();
            let in_turn = sum(&report(&in_turn, &Via::Hub)?);
            let limit = in_turn * limits::GOODPUT;
            self.check_minimum(
                Property::GoodputRoundRobin,
                (own, in_turn, limit),
                "bit/s".to_owned(),
            );
        }
        Ok(())
    }

    /// Returns the completion time of the last page; infinite if one is incomplete.
    fn loaded(&self, report: &Report) -> f64 {
        let times = self
            .workloads(|workload| matches!(workload, Workload::Http { .. }))
            .into_iter()
            .map(|at| match report.workloads[at] {
                Finding::Http { completed_s, .. } => completed_s.unwrap_or(f64::INFINITY),
                Finding::Tcp { .. }
                | Finding::Quic { .. }
                | Finding::Udp { .. }
                | Finding::Ping { .. }
                | Finding::Video { .. }
                | _ => 0.0,
            });
        times.fold(0.0, f64::max)
    }

    fn pages(&mut self) {
        if self
            .workloads(|workload| matches!(workload, Workload::Http { .. }))
            .is_empty()
        {
            return;
        }
        let own = self.loaded(&self.own);
        let best = self
            .alone
            .iter()
            .map(|report| self.loaded(report))
            .fold(f64::INFINITY, f64::min);
        if best.is_infinite() {
            return;
        }
        let limit = best * limits::PAGE_FACTOR + limits::PAGE_EXTRA_S;
        let own = own.min(self.scenario.duration.as_secs_f64());
        self.note(Property::Pages, own / best, f64::max);
        self.check(Property::Pages, own <= limit, (own, limit), "seconds".to_owned());
    }

    fn datagrams(&mut self, working: &Working) {
        let flows = self.workloads(|workload| matches!(workload, Workload::Udp { .. }));
        if flows.is_empty() || !self.is_asked(&NEEDS_DATAGRAMS) {
            return;
        }
        let bounds = bound_delays(self.scenario, &Via::Hub).unwrap_or_default();
        for at in flows {
            let Workload::Udp { rate, size, .. } = self.scenario.workloads[at] else {
                continue;
            };
            if rate.as_bps() > limits::VIDEO_BPS {
                self.bulk_datagrams(at);
                continue;
            }
            if let Some(bound) = bounds.iter().find(|bound| bound.workload == at) {
                let is_call = rate.as_bps() <= limits::CALL_BPS;
                let within = if is_call {
                    limits::CALL_NS
                } else {
                    limits::VIDEO_NS
                };
                self.timely(at, bound, within);
            }
            if rate.as_bps() <= limits::CALL_BPS && size.0 >= limits::LARGE {
                self.sizes(at, size.0, working);
            }
        }
    }

    fn timely(&mut self, at: usize, bound: &Earliest, within: u64) {
        let share = |report: &Report| timely_share(&report.workloads[at], bound, within);
        let Some(own) = share(&self.own) else { return };
        let best = self.alone.iter().filter_map(share).fold(0.0, f64::max);
        let duration = self.scenario.duration.as_secs_f64();
        let in_failures = self.failures() * limits::SUSPICION.as_secs_f64() / duration;
        let values = (own, best, best - limits::TIMELY - in_failures);
        self.check_minimum(Property::Timely, values, format!("workload {at}"));
    }

    fn bulk_datagrams(&mut self, at: usize) {
        let own = arrived(&self.own.workloads[at], 0.0);
        let alone = self
            .alone
            .iter()
            .map(|report| arrived(&report.workloads[at], 0.0));
        let best = alone.fold(0.0, f64::max);
        let values = (own, best, best * limits::GOODPUT);
        self.check_minimum(Property::BulkDatagrams, values, format!("workload {at}"));
    }

    fn sizes(&mut self, at: usize, size: u64, working: &Working) {
        let bins = self.own.series.bytes.len();
        if !working.any_throughout(bins / 2, bins) {
            return;
        }
        let own = arrived(&self.own.workloads[at], 0.5);
        let alone = self
            .alone
            .iter()
            .map(|report| arrived(&report.workloads[at], 0.5));
        let limit = alone.fold(0.0, f64::max).min(0.5);
        let detail = format!("workload {at}, {size} bytes of payload");
        self.check_minimum(Property::Sizes, (own, 1.0, limit), detail);
    }

    /// Returns the number of events that start or end a failure.
    fn failures(&self) -> f64 {
        let events = self.scenario.events.iter();
        events.filter(|event| event.change.state.is_some()).count() as f64
    }

    fn answers(&mut self) {
        for at in self.workloads(|workload| matches!(workload, Workload::Ping { .. })) {
            let Workload::Ping { interval } = self.scenario.workloads[at] else {
                continue;
            };
            let share = |report: &Report| answered(&report.workloads[at]);
            let (own, sent) = share(&self.own);
            let best = self
                .alone
                .iter()
                .map(|report| share(report).0)
                .fold(0.0, f64::max);
            let in_failures = self.failures() * (1.0 / interval.as_secs_f64()).max(1.0);
            let limit = best - limits::ANSWERS - (1.0 + in_failures) / sent.max(1.0);
            self.check_minimum(Property::Answers, (own, best, limit), format!("workload {at}"));
        }
    }

    fn settings(&mut self, working: &Working) {
        let seconds = self.own.duration_s;
        let is_shared: Vec<&CompetingSystem> = self.scenario.competing.values().collect();
        for (number, network) in self.scenario.networks.iter().enumerate() {
            let has_rival = is_shared
                .iter()
                .any(|other| matches!(other, CompetingSystem::Single(name) if *name == network.name));
            if has_rival {
                continue;
            }
            let carried = self.own.networks[&network.name];
            for (way, traffic, cap) in [
                ("down", carried.down, network.usage.cap_down),
                ("up", carried.up, network.usage.cap_up),
            ] {
                let Some(cap) = cap else { continue };
                let limit = cap.as_bps() as f64 / 8.0 * seconds * limits::CAP + limits::CONTROL;
                let detail = format!("{} {way}: bytes of UDP payload over a cap", network.name);
                let payload = traffic.bytes.saturating_sub(traffic.packets * OUTER_FRAME);
                self.holds_setting(payload as f64, limit, detail);
            }
            let bins = self.own.series.bytes.len();
            let is_idle = network.usage.priority == Priority::Backup
                && working.another_throughout(self.scenario, number, 0, bins);
            if is_idle {
                let all: u64 = self.own.networks.values().map(|network| network.both.bytes).sum();
                let bytes = carried.both.bytes as f64;
                let limit = (all as f64 - bytes) * limits::BACKUP + limits::CONTROL;
                let detail = format!("{}: bytes over a backup", network.name);
                self.holds_setting(bytes, limit, detail);
            }
        }
    }

    fn holds_setting(&mut self, bytes: f64, limit: f64, detail: String) {
        self.note(Property::Settings, bytes / limit, f64::max);
        self.check(Property::Settings, bytes <= limit, (bytes, limit), detail);
    }

    fn connections(&mut self, working: &Working) {
        let bin_s = self.own.series.bin_ms as f64 / 1e3;
        let detection = limits::SUSPICION + working.slowest_round_trip() * 3;
        let allowed = (detection + limits::GRACE).as_secs_f64();
        for at in self.workloads(|workload| matches!(workload, Workload::Tcp { .. })) {
            let bins = self.own.series.workloads[at].clone();
            let last_third = bins.len() * 2 / 3;
            if working.any_throughout(last_third, bins.len()) {
                let bytes = bins[last_third..].iter().sum::<u64>() as f64;
                self.check_minimum(
                    Property::Alive,
                    (bytes, bytes, 1.0),
                    format!("workload {at}: bytes"),
                );
            }
            let pauses = pauses(&bins);
            let judged = pauses
                .iter()
                .filter(|(from, to)| working.any_throughout(*from, *to));
            let longest = judged
                .max_by_key(|(from, to)| to - from)
                .copied()
                .unwrap_or_default();
            let alone = self
                .alone
                .iter()
                .map(|report| longest_pause(&report.series.workloads[at]));
            let alone = alone.min().map_or(f64::INFINITY, |bins| bins as f64 * bin_s);
            let limit = if self.alone.is_empty() {
                allowed
            } else {
                allowed.max(alone)
            };
            let seconds = (longest.1 - longest.0) as f64 * bin_s;
            let detail = format!("workload {at}: seconds from {:.2} s on", longest.0 as f64 * bin_s);
            self.check_maximum(Property::Pauses, (seconds, limit), detail);
        }
    }
}

fn report(scenario: &Scenario, via: &Via) -> Result<Report, String> {
    let outcome = run::run(scenario, via, Watch::default(), &mut |_| {});
    let outcome = outcome.map_err(|error| format!("{}: {error}", via.label()))?;
    Ok(outcome.report)
}

/// Returns the networks that a baseline may use: without networks that block UDP, and with backups
/// only if there is no other network.
fn usable(scenario: &Scenario) -> Vec<&Network> {
    let networks = || scenario.networks.iter().filter(|network| !network.blocks_udp);
    let is_backup = |network: &&Network| network.usage.priority == Priority::Backup;
    let always: Vec<&Network> = networks().filter(|network| !is_backup(network)).collect();
    if always.is_empty() {
        networks().collect()
    } else {
        always
    }
}

/// Returns the scenario with its [`usable`] networks, for a baseline that uses all at once.
fn only_usable(scenario: Scenario) -> Scenario {
    let names: Vec<String> = usable(&scenario)
        .iter()
        .map(|network| network.name.clone())
        .collect();
    let mut left = scenario;
    let is_left: Vec<bool> = left
        .networks
        .iter()
        .map(|network| names.contains(&network.name))
        .collect();
    let new = |old: usize| is_left[..old].iter().filter(|is_left| **is_left).count();
    left.events.retain_mut(|event| {
        let stays = is_left[event.network];
        event.network = new(event.network);
        stays
    });
    left.networks.retain(|network| names.contains(&network.name));
    // Competing traffic of a removed network moves to the first network.
    let first = names[0].clone();
    for other in left.competing.values_mut() {
        if matches!(other, CompetingSystem::Single(name) if !names.contains(name)) {
            *other = CompetingSystem::Single(first.clone());
        }
    }
    left
}

/// Returns the scenario of baselines: treatment of UDP applies to all protocols, translators keep
/// ports (a change would end a connection without a tunnel), and a cap is the rate of a link.
fn baseline(scenario: &Scenario) -> Scenario {
    let mut base = scenario.clone();
    for network in &mut base.networks {
        treat_alike(network);
    }
    for event in &mut base.events {
        let usage = scenario.networks[event.network].usage;
        let cap = match event.direction {
            Some(Direction::Down) => usage.cap_down,
            Some(Direction::Up) => usage.cap_up,
            None => usage.cap_down.max(usage.cap_up),
        };
        if let Some(capacity) = &mut event.change.capacity {
            hold_to(capacity, cap);
        }
        if let Some(Some(policer)) = &mut event.change.middlebox.policer {
            policer.protocol = Protocol::All;
        }
    }
    base
}

fn treat_alike(network: &mut Network) {
    if let Some(nat) = &mut network.nat {
        nat.change_ports = false;
    }
    let usage = network.usage;
    if let Some(links) = &mut network.links {
        hold_to(&mut links.down.capacity, usage.cap_down);
        hold_to(&mut links.up.capacity, usage.cap_up);
    }
    let links = network.links.iter_mut();
    for link in links.flat_map(|links| [&mut links.down, &mut links.up]) {
        if let Some(policer) = &mut link.middlebox.policer {
            policer.protocol = Protocol::All;
        }
    }
}

/// Bounds the rate of a link by a cap.
fn hold_to(capacity: &mut Capacity, cap: Option<Rate>) {
    if let (Capacity::Rate(rate), Some(cap)) = (capacity, cap) {
        *rate = (*rate).min(cap.scale(CAPPED_FRAME));
    }
}

/// Returns the share of deliverable datagrams that arrive within `within` of the earliest possible
/// time; `None` if none is deliverable.
fn timely_share(finding: &Finding, bound: &Earliest, within: u64) -> Option<f64> {
    let Finding::Udp { sent, arrivals, .. } = finding else {
        return None;
    };
    let possible = (0..*sent)
        .filter(|number| bound.delay_ns(*number).is_some())
        .count();
    let is_timely = |(number, delay): &&(u64, u64)| {
        let earliest = bound.delay_ns(*number).filter(|_| number < sent);
        earliest.is_some_and(|earliest| *delay <= earliest + within)
    };
    (possible > 0).then(|| arrivals.iter().filter(is_timely).count() as f64 / possible as f64)
}

/// Share of datagrams after this share of all that arrive.
fn arrived(finding: &Finding, after: f64) -> f64 {
    let Finding::Udp { sent, arrivals, .. } = finding else {
        return 0.0;
    };
    let from = (*sent as f64 * after) as u64;
    let received = arrivals
        .iter()
        .filter(|(number, _)| (from..*sent).contains(number))
        .count();
    received as f64 / (sent - from).max(1) as f64
}

/// Returns the share of answered requests, and the number of requests.
fn answered(finding: &Finding) -> (f64, f64) {
    let Finding::Ping { sent, received, .. } = finding else {
        return (1.0, 0.0);
    };
    (*received as f64 / (*sent).max(1) as f64, *sent as f64)
}

/// Returns runs of empty bins, as index of the first and index after the last.
fn pauses(bins: &[u64]) -> Vec<(usize, usize)> {
    let mut pauses = Vec::new();
    let mut from = None;
    for (index, bytes) in bins.iter().chain([&1]).enumerate() {
        match (from, *bytes) {
            (None, 0) => from = Some(index),
            (Some(first), bytes) if bytes > 0 => {
                pauses.push((first, index));
                from = None;
            }
            (None | Some(_), _) => {}
        }
    }
    pauses
}

fn longest_pause(bins: &[u64]) -> usize {
    pauses(bins)
        .into_iter()
        .map(|(from, to)| to - from)
        .max()
        .unwrap_or(0)
}

/// Bytes of a frame around the UDP payload that caps count. Source: Ethernet without check
/// sequence, IPv4 and UDP.
const OUTER_FRAME: u64 = 14 + 28;
/// Bytes of a frame for each byte of UDP payload, which caps count. Source: 14 bytes of Ethernet
/// and 28 of UDP and IP around 1472.
const CAPPED_FRAME: f64 = 1514.0 / 1472.0;
/// Properties that compare with each network alone.
const NEEDS_ALONE: [Property; 7] = [
    Property::GoodputAlone,
    Property::Pages,
    Property::Timely,
    Property::BulkDatagrams,
    Property::Answers,
    Property::Pauses,
    Property::Sizes,
];
/// Properties of datagrams.
const NEEDS_DATAGRAMS: [Property; 3] = [Property::Timely, Property::BulkDatagrams, Property::Sizes];

#[cfg(test)]
mod tests {
    use hawser_netem::Policer;

    use super::super::World;
    use super::*;

    fn scenario(text: &str) -> Scenario {
        World::parse(text).expect("TOML").scenario().expect("legal")
    }

    const TWO: &str = r#"
        name = "two"
        duration = "5s"
        via = "hub"
        [[network]]
        name = "a"
        down = { rate = "4mbit", delay = "10ms", queue = "100ms" }
        up = { rate = "4mbit", delay = "10ms", queue = "100ms" }
        [[network]]
        name = "b"
        down = { rate = "2mbit", delay = "20ms", queue = "100ms" }
        up = { rate = "2mbit", delay = "20ms", queue = "100ms" }
        [[workload]]
        kind = "tcp"
        [[workload]]
        kind = "udp"
        rate = "80kbit"
        size = "1472B"
    "#;

    #[test]
    fn two_clean_networks_have_all_properties() {
        let judgement = judge(&scenario(TWO), &Property::ALL);
        assert_eq!(judgement.violations, [], "{judgement:?}");
        let measured: Vec<&str> = judgement.measures.keys().map(String::as_str).collect();
        for property in [
            "alive",
            "goodput-alone",
            "goodput-mptcp",
            "goodput-round-robin",
            "pauses",
            "sizes",
            "timely",
        ] {
            assert!(measured.contains(&property), "{property}: {measured:?}");
        }
    }

    #[test]
    fn a_scheduler_that_takes_one_network_in_turn_is_found_out() {
        // The slower network limits round robin, and is far slower here. The call is removed, since
        // a transfer would avoid the slow network during a call.
        let mut crippled = scenario(TWO);
        crippled.workloads.truncate(1);
        crippled.schedulers = vec![(Class::Bulk, "round-robin".to_owned())];
        let slow = scenario(&TWO.replace("2mbit", "150kbit"));
        crippled.networks[1] = slow.networks[1].clone();
        let judgement = judge(&crippled, &[Property::GoodputAlone]);
        let found: Vec<Property> = judgement.violations.iter().map(|found| found.property).collect();
        assert_eq!(found, [Property::GoodputAlone], "{judgement:?}");
    }

    #[test]
    fn runs_of_empty_bins_are_pauses() {
        assert_eq!(pauses(&[0, 5, 0, 0, 1, 0]), [(0, 1), (2, 4), (5, 6)]);
        assert_eq!(longest_pause(&[1, 0, 0, 0, 1]), 3);
        assert_eq!(pauses(&[]), []);
    }

    #[test]
    fn baselines_meet_the_treatment_of_udp() {
        let mut world = scenario(TWO);
        let policer = Policer {
            rate: hawser_units::Rate::from_mbps(1),
            burst: hawser_units::Bytes(20_000),
            protocol: Protocol::Udp,
            from: hawser_units::Duration::ZERO,
        };
        let links = world.networks[0].links.as_mut().expect("emulated");
        links.down.middlebox.policer = Some(policer);
        let base = baseline(&world);
        let link = &base.networks[0].links.as_ref().expect("emulated").down;
        assert_eq!(
            link.middlebox.policer.map(|policer| policer.protocol),
            Some(Protocol::All)
        );
    }
}
