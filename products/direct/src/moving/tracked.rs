//! Flows as tracked by the kernel, and their positions.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};

use hawser_linux::conntrack::Connection;
use hawser_linux::direct::{read_mark, reason};
use hawser_steer::migration::Route;
use hawser_units::Instant;
use hawser_wire::inner::{self, protocol, tcp_flag};
use hawser_wire::opening;

/// Flow that can be moved.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Tracked {
    pub(super) protocol: u8,
    /// Addresses of the sockets, this side first.
    pub(super) inside: Route,
    /// Addresses on the wire at its beginning.
    pub(super) first: Route,
    /// Zone of its original direction.
    pub(super) zone: Option<u16>,
    /// Present network.
    pub(super) network: u8,
    pub(super) reason: u8,
}

impl Tracked {
    /// Converts a connection; `None` if it is neither TCP nor UDP, or has no network.
    pub(super) fn of(connection: &Connection) -> Option<Self> {
        let (network, reason) = read_mark(connection.mark)?;
        if !matches!(connection.protocol, protocol::TCP | protocol::UDP) {
            return None;
        }
        let (inside, first) = if reason == reason::CAME_IN {
            let turned = (connection.to, connection.from);
            (turned, turned)
        } else {
            let (far, near) = connection.answers;
            ((connection.from, connection.to), (near, far))
        };
        let route = |(near, far)| Route { near, far };
        Some(Self {
            protocol: connection.protocol,
            inside: route(inside),
            first: route(first),
            zone: connection.zone(),
            network,
            reason,
        })
    }
}

/// Sequence numbers of TCP connections with selected hosts, as last seen by the tap.
///
/// Cost: memory bounded by twice [`MAX`].
#[derive(Debug, Default)]
pub(super) struct Numbers {
    watched: BTreeSet<IpAddr>,
    recent: BTreeMap<Route, Seen>,
    older: BTreeMap<Route, Seen>,
}

#[derive(Clone, Copy, Debug)]
struct Seen {
    sent: u32,
    received: Option<u32>,
    at: Instant,
}

impl Numbers {
    /// Sets the hosts whose connections are observed.
    pub(super) fn watch(&mut self, hosts: BTreeSet<IpAddr>) {
        self.watched = hosts;
    }

    /// Processes a packet as it is on the wire.
    pub(super) fn note(&mut self, packet: &[u8], is_outgoing: bool, now: Instant) {
        let Some(summary) = inner::parse(packet) else {
            return;
        };
        let key = summary.key;
        let host = if is_outgoing { key.destination } else { key.source };
        if key.protocol != protocol::TCP || !self.watched.contains(&host) {
            return;
        }
        let Some((sequence, acknowledged)) = opening::numbers(&packet[usize::from(summary.ip_len)..]) else {
            return;
        };
        let has_ack = summary.tcp_flags & tcp_flag::ACK != 0;
        let source = SocketAddr::new(key.source, key.source_port);
        let destination = SocketAddr::new(key.destination, key.destination_port);
        let (route, seen) = if is_outgoing {
            let route = Route {
                near: source,
                far: destination,
            };
            let received = has_ack.then_some(acknowledged);
            (
                route,
                Seen {
                    sent: sequence,
                    received,
                    at: now,
                },
            )
        } else if has_ack {
            let route = Route {
                near: destination,
                far: source,
            };
            (
                route,
                Seen {
                    sent: acknowledged,
                    received: Some(sequence),
                    at: now,
                },
            )
        } else {
            return;
        };
        if self.recent.len() >= MAX {
            self.older = std::mem::take(&mut self.recent);
        }
        self.recent.insert(route, seen);
    }

    /// Returns the recent sequence numbers of a flow on any of these routes.
    pub(super) fn of(&self, routes: &[Route]) -> Option<(u32, u32)> {
        let found = routes
            .iter()
            .filter_map(|route| self.recent.get(route).or_else(|| self.older.get(route)));
        let seen = found.max_by_key(|seen| seen.at)?;
        Some((seen.sent, seen.received?))
    }
}

/// Returns whether two hosts describe the same connection: the numbers of one are near the swapped
/// numbers of the other. Between two observations less than [`NEAR`] bytes pass.
pub(super) fn is_same((sent, received): (u32, u32), theirs: (u32, u32)) -> bool {
    let near = |a: u32, b: u32| a.wrapping_sub(b).min(b.wrapping_sub(a)) < NEAR;
    near(sent, theirs.1) && near(received, theirs.0)
}

/// Maximum number of connections in a generation, more than a host has with its peers. Source: our
/// choice, a bound on memory of two generations; a connection that is forgotten is noticed again
/// with its next sample.
const MAX: usize = 16_384;
/// Maximum distance of sequence numbers of the same connection. Source: 67 MB, 0.1 s at 5 Gbit/s;
/// both numbers of unrelated connections are this near in one of 1,024 cases.
const NEAR: u32 = 1 << 26;

#[cfg(test)]
mod tests {
    use super::*;
    use hawser_wire::opening::{Opening, Step};

    fn packet(step: Step) -> Vec<u8> {
        let opening = Opening {
            protocol: protocol::TCP,
            source: "10.0.0.1:4000".parse().unwrap(),
            destination: "10.0.0.9:80".parse().unwrap(),
            step,
            nonce: 1,
            sequence: 70,
            acknowledged: 90,
        };
        opening.emit().unwrap()
    }

    fn route(turned: bool) -> Route {
        let route = Route {
            near: "10.0.0.1:4000".parse().unwrap(),
            far: "10.0.0.9:80".parse().unwrap(),
        };
        if turned { route.turned() } else { route }
    }

    #[test]
    fn both_ends_see_the_same_numbers_turned() {
        let now = Instant::from_nanos(0);
        let (mut here, mut there) = (Numbers::default(), Numbers::default());
        here.watch(BTreeSet::from(["10.0.0.9".parse().unwrap()]));
        there.watch(BTreeSet::from(["10.0.0.1".parse().unwrap()]));
        here.note(&packet(Step::Confirm), true, now);
        there.note(&packet(Step::Confirm), false, now);
        let (ours, theirs) = (
            here.of(&[route(false)]).unwrap(),
            there.of(&[route(true)]).unwrap(),
        );
        assert_eq!((ours, theirs), ((70, 90), (90, 70)));
        assert!(is_same(theirs, ours));
        assert!(!is_same(theirs, (70 + NEAR, 90)));
    }

    #[test]
    fn strangers_and_half_a_beginning_say_nothing() {
        let mut numbers = Numbers::default();
        numbers.note(&packet(Step::Confirm), true, Instant::from_nanos(0));
        assert_eq!(numbers.of(&[route(false)]), None);
        numbers.watch(BTreeSet::from(["10.0.0.9".parse().unwrap()]));
        numbers.note(&packet(Step::Ask), true, Instant::from_nanos(0));
        assert_eq!(numbers.of(&[route(false)]), None);
    }
}
