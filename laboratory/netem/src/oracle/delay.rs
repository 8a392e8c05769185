//! Earliest possible arrival of each datagram of a flow: no scheduler delivers it sooner.
//!
//! The flow has strict priority on every network, and the future of all networks is known.
//! Datagrams are processed in the order in which they are sent. Each one uses the emulated link on
//! which it arrives first, either at once or when that link changes next, behind earlier datagrams
//! of the flow only. A datagram that would arrive more than [`USEFUL_FOR`] later uses no link.
//!
//! Limitations: jitter counts as its mean, and random loss is ignored: a scheduler that knows the
//! future avoids both. Middleboxes, other flows of priority and parity are left out.
//!
//! Units: delays in nanoseconds, from the time at which the program sends.

use hawser_units::{Bytes, Duration, Instant};
use hawser_wire::data::FRAMING;

use super::{OUTER_HEADERS, direct_headers};
use crate::scenario::{Direction, Scenario, Via, Workload};
use crate::sender::Sender as _;
use crate::{Change, Jitter, Link, LinkConfig, Loss, MiddleboxConfig, QueueBound};

/// Delay above which a datagram is useless to a live application. Source: five times the 400 ms
/// that ITU-T G.114 permits in any conversation, so that the bound of a slow link is still visible.
const USEFUL_FOR: Duration = Duration::from_secs(2);
/// Headers of IPv4 (RFC 791) and UDP (RFC 768) in a program's datagram. Units: bytes.
const INNER_HEADERS: u64 = 28;

/// Bound of one datagram flow.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Earliest {
    /// Index of the workload in the scenario.
    pub workload: usize,
    /// Datagrams sent.
    pub sent: u64,
    /// Delays of the datagrams that can arrive in time, ascending.
    delays: Vec<u64>,
    /// Delays in the order of sending.
    by_number: Vec<Option<u64>>,
}

impl Earliest {
    /// Returns the delay that this share of all sent datagrams need not exceed; `None` if fewer can
    /// arrive. Units: milliseconds.
    #[must_use]
    pub fn quantile_ms(&self, share: f64) -> Option<f64> {
        let at = (self.sent as f64 * share) as usize;
        self.delays.get(at).map(|nanos| *nanos as f64 / 1e6)
    }

    /// Returns the minimum delay of the datagram with this number, from 0; `None` if it cannot
    /// arrive in time. Units: nanoseconds.
    #[must_use]
    pub fn delay_ns(&self, number: u64) -> Option<u64> {
        self.by_number.get(usize::try_from(number).ok()?).copied()?
    }

    /// Returns the share of datagrams that no scheduler delivers in time, 0 to 1.
    #[must_use]
    pub fn never(&self) -> f64 {
        1.0 - self.delays.len() as f64 / self.sent.max(1) as f64
    }
}

/// Returns the bounds of all UDP, video and captured flows of a scenario, each as if it were alone;
/// `None` if a network is an 802.11 link, a neighbour's, or shared with another.
///
/// Cost: some 2 µs per datagram and network, and the same again per 10 ms of queue.
#[must_use]
pub fn bound_delays(scenario: &Scenario, via: &Via) -> Option<Vec<Earliest>> {
    let is_known = |network: &crate::scenario::Network| {
        network.links.is_some()
            && network.wifi.is_none()
            && network.member.is_none()
            && network.shares.is_none()
    };
    if scenario.client_hop.is_some() || !scenario.networks.iter().all(is_known) {
        return None;
    }
    let workloads = scenario.workloads.iter().enumerate();
    let flows = workloads.filter_map(|(index, workload)| {
        let (direction, datagrams) = datagrams(workload, scenario.duration)?;
        Some(bound_flow(scenario, via, index, direction, &datagrams))
    });
    Some(flows.collect())
}

/// Returns the direction of a flow, and the time and payload size of each datagram.
fn datagrams(workload: &Workload, duration: Duration) -> Option<(Direction, Vec<(Instant, u64)>)> {
    let end = Instant::ZERO + duration;
    match workload {
        Workload::Udp {
            direction,
            rate,
            size,
            ..
        } => {
            let gap = rate.time_for(Bytes(size.0)).max(Duration::from_micros(1));
            let times = core::iter::successors(Some(Instant::ZERO), |last| Some(*last + gap));
            let sent = times.take_while(|at| *at < end).map(|at| (at, size.0));
            Some((*direction, sent.collect()))
        }
        Workload::Video { direction, .. } => {
            let mut video = workload.video((Instant::ZERO, end))?;
            let mut sent = Vec::new();
            while let Some(at) = video.poll_timeout().filter(|at| *at < end) {
                while let Some(part) = video.poll_transmit(at) {
                    sent.push((at, u64::from(part.bytes)));
                }
            }
            Some((*direction, sent))
        }
        Workload::Capture { direction, track } => {
            let datagrams = (0..).map_while(|number| track.datagram(number));
            let sent = datagrams.take_while(|datagram| datagram.at < duration);
            let sent = sent.map(|datagram| (Instant::ZERO + datagram.at, u64::from(datagram.size)));
            Some((*direction, sent.collect()))
        }
        Workload::Tcp { .. } | Workload::Quic { .. } | Workload::Ping { .. } | Workload::Http { .. } => None,
    }
}

fn bound_flow(
    scenario: &Scenario,
    via: &Via,
    workload: usize,
    direction: Direction,
    datagrams: &[(Instant, u64)],
) -> Earliest {
    let changes: Vec<_> = (0..scenario.networks.len())
        .map(|network| changes(scenario, network, direction))
        .collect();
    let mut ways: Vec<FutureLink<'_>> = scenario
        .networks
        .iter()
        .zip(&changes)
        .filter_map(|(network, changes)| {
            let links = network.links.as_ref()?;
            let link = match direction {
                Direction::Down => &links.down,
                Direction::Up => &links.up,
            };
            Some(FutureLink::new(link, changes))
        })
        .collect();
    let framing = direct_headers(via).map_or(OUTER_HEADERS + FRAMING as u64, |_| 0);
    let mut by_number = Vec::with_capacity(datagrams.len());
    for (number, (now, payload)) in datagrams.iter().enumerate() {
        let packet = Datagram {
            number: number as u64,
            bytes: payload + INNER_HEADERS + framing,
            sent: *now,
        };
        for way in &mut ways {
            way.advance(*now);
        }
        let first = (0..ways.len())
            .filter_map(|at| Some((ways[at].first_arrival(packet)?, at)))
            .min();
        by_number.push(first.map(|((arrival, at), way)| {
            ways[way].send(packet, at);
            arrival.since(*now).as_nanos() as u64
        }));
    }
    let mut delays: Vec<u64> = by_number.iter().flatten().copied().collect();
    delays.sort_unstable();
    Earliest {
        workload,
        sent: datagrams.len() as u64,
        delays,
        by_number,
    }
}

/// Returns the changes of a network in one direction, by time.
fn changes(scenario: &Scenario, network: usize, direction: Direction) -> Vec<(Instant, Change)> {
    let is_here = |event: &&crate::scenario::Event| {
        event.network == network && event.direction.is_none_or(|way| way == direction)
    };
    let steady = |change: &Change| Change {
        jitter: None,
        loss: None,
        queue: None,
        ..change.clone()
    };
    let events = scenario.events.iter().filter(is_here);
    let mut changes: Vec<_> = events
        .map(|event| (Instant::ZERO + event.at, steady(&event.change)))
        .collect();
    changes.sort_by_key(|(at, _)| *at);
    changes
}

#[derive(Clone, Copy)]
struct Datagram {
    number: u64,
    /// Length of the datagram's IP packet on the link. Units: bytes.
    bytes: u64,
    sent: Instant,
}

/// A link and its future changes.
#[derive(Clone)]
struct FutureLink<'a> {
    link: Link<u64>,
    changes: &'a [(Instant, Change)],
    /// Time up to which the link has run; ahead after a datagram that waited for a change.
    clock: Instant,
}

impl<'a> FutureLink<'a> {
    fn new(config: &LinkConfig, changes: &'a [(Instant, Change)]) -> Self {
        let steady = LinkConfig {
            queue: QueueBound::Bytes(Bytes(u64::MAX / 2)),
            jitter: Jitter::default(),
            loss: Loss::NONE,
            middlebox: MiddleboxConfig::default(),
            ..config.clone()
        };
        Self {
            link: Link::new(steady, 0, Instant::ZERO),
            changes,
            clock: Instant::ZERO,
        }
    }

    /// Runs the link until `until`; returns when the datagram `number` is delivered, if it is.
    fn run(&mut self, until: Instant, number: Option<u64>) -> Option<Instant> {
        loop {
            let change = self.changes.first().map_or(Instant::FAR_FUTURE, |(at, _)| *at);
            let out = self.link.poll_timeout().unwrap_or(Instant::FAR_FUTURE);
            let next = change.min(out);
            if next > until || next == Instant::FAR_FUTURE {
                return None;
            }
            while let Some(arrived) = self.link.poll_transmit(next) {
                if Some(arrived) == number {
                    return Some(next);
                }
            }
            if let Some(((_, change), rest)) = self.changes.split_first().filter(|_| change == next) {
                self.link.set(change.clone(), next);
                self.changes = rest;
                while let Some(lost) = self.link.poll_lost() {
                    if Some(lost) == number {
                        return None;
                    }
                }
            }
        }
    }

    fn advance(&mut self, until: Instant) {
        self.run(until, None);
        self.clock = self.clock.max(until);
    }

    /// Returns the arrival of a datagram that enters the link at `at`.
    fn arrival(&self, packet: Datagram, at: Instant) -> Option<Instant> {
        let mut ahead = self.clone();
        ahead.advance(at);
        let is_taken = ahead
            .link
            .handle_packet(packet.number, packet.bytes, at)
            .is_none();
        is_taken
            .then(|| ahead.run(packet.sent + USEFUL_FOR, Some(packet.number)))
            .flatten()
    }

    /// Returns the earliest arrival of a datagram, and the time at which it enters the link for
    /// that.
    fn first_arrival(&self, packet: Datagram) -> Option<(Instant, Instant)> {
        let at_changes = self.changes.iter().map(|(at, _)| *at);
        let times = core::iter::once(self.clock).chain(at_changes);
        times
            .take_while(|at| *at <= packet.sent + USEFUL_FOR)
            .filter_map(|at| Some((self.arrival(packet, at)?, at)))
            .min()
    }

    fn send(&mut self, packet: Datagram, at: Instant) {
        self.advance(at);
        let refused = self.link.handle_packet(packet.number, packet.bytes, at);
        debug_assert!(refused.is_none(), "the copy has taken it");
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    /// The bound of a call of 50 packets a second of 200 bytes over these networks, for 10 s.
    fn call(networks: &str, rest: &str) -> Earliest {
        let text = format!(
            "name = \"o\"\nduration = \"10s\"\nwarmup = \"2s\"\nvia = \"hub\"\n{networks}\n[[workload]]\nkind = \
             \"udp\"\ndirection = \"down\"\nrate = \"80kbit\"\nsize = \"200B\"\n{rest}"
        );
        let scenario = Scenario::parse(&text, Path::new("o.toml"), &[], &mut |_| {
            unreachable!("no other file is named")
        });
        let scenario = scenario.expect("legal");
        let mut all = bound_delays(&scenario, &scenario.via).expect("a bound");
        assert_eq!(all.len(), 1);
        all.remove(0)
    }

    fn network(name: &str, down: &str) -> String {
        format!("[[network]]\nname = \"{name}\"\ndown = {{ {down} }}\nup = {{ rate = \"9mbit\" }}\n")
    }

    /// A datagram with all its headers on the link at 1 Mbit/s. Units: milliseconds.
    const ON_LINK: f64 = (200 + 28 + 28 + FRAMING + 14) as f64 * 8e-3;

    fn is_near(found: Option<f64>, wanted: f64) -> bool {
        found.is_some_and(|found| (found - wanted).abs() < 0.01)
    }

    #[test]
    fn a_call_arrives_after_the_delay_of_the_nearest_network() {
        let two = network("a", "rate = \"1mbit\", delay = \"50ms\"")
            + &network(
                "b",
                "rate = \"1mbit\", delay = \"20ms\", jitter = \"5ms\", loss = 0.1",
            );
        let bound = call(&two, "");
        assert_eq!((bound.sent, bound.never()), (500, 0.0));
        assert!(
            is_near(bound.quantile_ms(0.5), 20.0 + ON_LINK),
            "{:?}",
            bound.quantile_ms(0.5)
        );
        assert!(is_near(bound.quantile_ms(0.99), 20.0 + ON_LINK));
    }

    #[test]
    fn what_the_nearest_network_cannot_carry_goes_over_the_other() {
        // 62 of the 124 kbit/s of a call with its headers.
        let near = network("a", "rate = \"62kbit\", delay = \"20ms\"");
        let alone = call(&near, "");
        assert!(
            alone.never() > 0.3,
            "half is more than the link carries: {}",
            alone.never()
        );
        let both = call(&(near + &network("b", "rate = \"1mbit\", delay = \"100ms\"")), "");
        assert_eq!(both.never(), 0.0);
        assert!(
            both.quantile_ms(0.99)
                .is_some_and(|ms| ms < 100.0 + 2.0 * ON_LINK)
        );
    }

    #[test]
    fn a_datagram_waits_for_a_network_that_returns_or_takes_another() {
        let dies = "[[event]]\nat = \"5s\"\nnetwork = \"a\"\nset = \"down\"\n\
                    [[event]]\nat = \"6s\"\nnetwork = \"a\"\nset = \"up\"\n";
        let one = network("a", "rate = \"1mbit\", delay = \"20ms\"");
        let alone = call(&one, dies);
        assert_eq!(alone.never(), 0.0);
        // A tenth waits for up to a second, and what is swallowed is sent when the link is back.
        assert!(is_near(alone.quantile_ms(0.8), 20.0 + ON_LINK));
        assert!(
            alone.quantile_ms(0.99).is_some_and(|ms| ms > 800.0),
            "{:?}",
            alone.quantile_ms(0.99)
        );
        let both = call(&(one + &network("b", "rate = \"1mbit\", delay = \"60ms\"")), dies);
        assert!(
            is_near(both.quantile_ms(0.99), 60.0 + ON_LINK),
            "{:?}",
            both.quantile_ms(0.99)
        );
    }
}
