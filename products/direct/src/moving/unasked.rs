//! Automatic migrations: flows of a failed network, and those on a wrong network since another
//! returned or a rule prefers it.

use std::collections::BTreeSet;
use std::net::IpAddr;

use hawser_linux::conntrack::{self, Connection};
use hawser_linux::direct::{Choice, MARK, MARK_MASK, NETWORK_MASK, reason};
use hawser_steer::assignment::balance::{Placed, moves};
use hawser_units::{Duration, Instant, NetworkId};
use hawser_wire::inner::protocol;

use super::mover::{Around, FlowPath};
use super::tracked::Tracked;
use super::{Moving, label_of};
use crate::networks::Networks;

/// Network whose flows are to be moved as soon as possible.
pub(super) struct Stranded {
    why: String,
    until: Instant,
}

/// State of a flow between two checks of the balance.
#[derive(Clone, Copy)]
pub(super) struct Watched {
    /// TCP position of the flow.
    numbers: Option<(u32, u32)>,
    /// Time from which the flow may be moved again.
    rests_until: Instant,
}

impl Moving {
    /// Moves long-lived flows to peers from a network that was removed or has another address.
    /// Flows that cannot be moved yet are retried for `keep`, or for the time that a connection to
    /// a peer may take.
    pub(crate) fn rescue(
        &mut self,
        number: u8,
        why: &str,
        keep: Duration,
        networks: &Networks,
        now: Instant,
    ) {
        if !self.has_peers() {
            return;
        }
        let stranded = Stranded {
            why: why.to_owned(),
            until: now + keep.max(RESCUE_FOR),
        };
        self.stranded.insert(number, stranded);
        self.try_rescue(number, networks, now);
    }

    /// Sets the present rules for new flows, which automatic migrations follow.
    pub(crate) fn know_rules(&mut self, choices: Vec<Choice>) {
        self.choices = choices;
    }

    /// Returns whether flows wait to be moved.
    pub(crate) fn is_waiting(&self) -> bool {
        !self.stranded.is_empty()
    }

    /// Returns whether it is time to check the networks of flows to peers ([`Self::balance`]).
    pub(crate) fn is_balance_due(&self, now: Instant) -> bool {
        self.has_peers() && now >= self.next_balance
    }

    /// Handles the return of a network: its flows remain.
    pub(crate) fn relieve(&mut self, number: u8) {
        self.stranded.remove(&number);
    }

    /// Returns the networks whose flows have waited for the maximum time.
    pub(crate) fn take_abandoned(&mut self, now: Instant) -> Vec<u8> {
        let over: Vec<u8> = self
            .stranded
            .iter()
            .filter(|(_, stranded)| stranded.until <= now)
            .map(|(number, _)| *number)
            .collect();
        over.iter().for_each(|number| self.relieve(*number));
        over
    }

    pub(super) fn try_rescue(&mut self, number: u8, networks: &Networks, now: Instant) {
        let Some(why) = self.stranded.get(&number).map(|stranded| stranded.why.clone()) else {
            return;
        };
        let Ok(connections) = conntrack::list(MARK | u32::from(number), NETWORK_MASK) else {
            return;
        };
        let own = addresses(number, networks);
        for connection in connections.iter().filter(|connection| is_long_lived(connection)) {
            let Some(tracked) = self.track(connection) else {
                continue;
            };
            // An idle flow keeps the old mark until its next packet.
            let is_elsewhere = self.movers.network_of(&tracked).is_some_and(|now| now != number);
            if is_elsewhere
                || self.movers.is_busy(&tracked)
                || own.contains(&self.movers.route_of(&tracked).near.ip())
            {
                continue;
            }
            let Some(peer) = self.links.owner(tracked.first.far.ip()) else {
                continue;
            };
            let reached: Vec<u8> = possible_networks(&self.choices, &tracked)
                .into_iter()
                .filter(|place| self.is_reached(peer, *place, networks))
                .collect();
            let Some(to) = reached.get(self.next_turn % reached.len().max(1)) else {
                continue;
            };
            self.next_turn += 1;
            if let Err(why) = self.go(&tracked, *to, &why, networks, now) {
                tracing::info!(flow = label_of(&tracked), why, "flow not moved");
            }
        }
    }

    /// Moves flows to peers to the networks that the rules would assign now: a network that is back
    /// gets its share, and a flow leaves a network that replaced the one of its rule. Flows that
    /// were moved by hand stay.
    pub(crate) fn balance(&mut self, networks: &Networks, now: Instant) {
        self.next_balance = now + BALANCE_EVERY;
        let Ok(connections) = conntrack::list(MARK, MARK_MASK) else {
            return;
        };
        let before = std::mem::take(&mut self.watched);
        let (mut flows, mut placed) = (Vec::new(), Vec::new());
        for connection in connections.iter().filter(|connection| is_long_lived(connection)) {
            let Some(tracked) = self.track(connection) else {
                continue;
            };
            let Some(peer) = self.links.owner(tracked.first.far.ip()) else {
                continue;
            };
            // After the failure of its network the flow can no longer be proven.
            self.movers.claim(&tracked, peer, now);
            let at = self.movers.network_of(&tracked).unwrap_or(tracked.network);
            let numbers = self.movers.numbers_of(&tracked, &self.numbers);
            let known = before.get(&tracked.inside);
            let rests_until = known.map_or(now, |watched| watched.rests_until);
            let was = known.and_then(|watched| watched.numbers);
            let is_heavy = was
                .zip(numbers)
                .is_some_and(|(was, is)| is.0.wrapping_sub(was.0).max(is.1.wrapping_sub(was.1)) >= HEAVY);
            let watched = Watched { numbers, rests_until };
            self.watched.insert(tracked.inside, watched);
            let is_tcp = tracked.protocol == protocol::TCP;
            placed.push(Placed {
                at: NetworkId(u32::from(at)),
                turns: turns(&self.choices, &tracked)
                    .iter()
                    .filter(|to| self.is_reached(peer, **to, networks))
                    .map(|to| NetworkId(u32::from(*to)))
                    .collect(),
                is_heavy,
                is_movable: networks.is_alive(at)
                    && rests_until <= now
                    && (numbers.is_some() || !is_tcp)
                    && !self.movers.is_busy(&tracked)
                    && !self.movers.was_asked_for(&tracked),
            });
            flows.push(tracked);
        }
        for (index, to) in moves(&placed) {
            let tracked = &flows[index];
            if let Some(watched) = self.watched.get_mut(&tracked.inside) {
                watched.rests_until = now + REST;
            }
            let to = u8::try_from(to.0).expect("it was one");
            if let Err(why) = self.go(
                tracked,
                to,
                "this network has more capacity for it",
                networks,
                now,
            ) {
                tracing::debug!(flow = label_of(tracked), why, "flow not moved");
            }
        }
    }

    /// Returns whether a flow to the peer could be moved to the network.
    fn is_reached(&self, peer: &str, network: u8, networks: &Networks) -> bool {
        networks.is_alive(network) && self.links.up(peer, network).is_some()
    }

    fn go(
        &mut self,
        tracked: &Tracked,
        network: u8,
        why: &str,
        networks: &Networks,
        now: Instant,
    ) -> Result<(), String> {
        let around = Around {
            links: &self.links,
            numbers: &self.numbers,
            networks,
            now,
        };
        let path = FlowPath {
            network,
            through: None,
        };
        self.movers.start(tracked, path, (None, why.to_owned()), &around)
    }

    /// Returns whether a connection must not be released with the network: it has been moved, is
    /// being moved, or waits to be moved.
    pub(crate) fn holds(&self, connection: &Connection, network: u8, networks: &Networks) -> bool {
        let Some(tracked) = self.track(connection) else {
            return false;
        };
        let waits = || {
            self.stranded.contains_key(&network)
                && is_long_lived(connection)
                && self.links.owner(tracked.first.far.ip()).is_some()
        };
        self.movers.is_busy(&tracked)
            || self.movers.network_of(&tracked).is_some_and(|now| now != network)
            || addresses(network, networks).contains(&self.movers.route_of(&tracked).near.ip())
            || waits()
    }
}

/// Returns the networks that a flow's rule would use in turn for a new flow; empty if its program
/// has chosen.
fn turns<'a>(choices: &'a [Choice], tracked: &Tracked) -> &'a [u8] {
    if tracked.reason == reason::PROGRAM {
        return &[];
    }
    let family = usize::from(tracked.first.far.is_ipv6());
    let own = choices.iter().find(|choice| choice.reason == tracked.reason);
    let own = own.filter(|choice| choice.strict || !choice.turns[family].is_empty());
    let choice = own.or(choices.last());
    choice.map_or(&[], |choice| &choice.turns[family])
}

/// Returns the networks to which a flow may be moved automatically.
fn possible_networks(choices: &[Choice], tracked: &Tracked) -> Vec<u8> {
    let mut possible_networks = turns(choices, tracked).to_vec();
    possible_networks.sort_unstable();
    possible_networks.dedup();
    possible_networks
}

/// Addresses of a network to which flows may move; none of a network that does not work.
fn addresses(number: u8, networks: &Networks) -> BTreeSet<IpAddr> {
    let known = networks
        .all()
        .find(|(other, known)| *other == number && known.is_alive());
    let network = known.and_then(|(_, known)| known.network.as_ref());
    let addresses = network.into_iter().flat_map(|network| &network.addresses);
    let mut all = BTreeSet::new();
    all.extend(addresses.map(|(address, _)| *address));
    all
}

fn is_long_lived(connection: &Connection) -> bool {
    connection.is_assured && matches!(connection.protocol, protocol::TCP | protocol::UDP)
}

/// Time for which flows of a failed network wait until the peer is reached over another: a few
/// attempts. Source: our choice; a longer one keeps connections that programs have given up.
const RESCUE_FOR: Duration = Duration::from_secs(10);
/// Interval of comparisons of the networks' load. Source: our choice; each reads the kernel's
/// connections, and a rate needs two of them.
const BALANCE_EVERY: Duration = Duration::from_secs(2);
/// Minimum traffic of a flow between two checks of the balance, more than interactive programs
/// send. Source: half a Mbit/s over [`BALANCE_EVERY`]. Units: bytes.
const HEAVY: u32 = 1 << 17;
/// Time between two moves of a flow, longer than a TCP connection needs to fill its new network.
/// Source: our choice; a shorter one moves a flow before its rate on the new network is known, a
/// longer one leaves networks unused for as long.
const REST: Duration = Duration::from_secs(10);

#[cfg(test)]
mod tests {
    use hawser_steer::migration::Route;

    use super::*;

    fn tracked(reason: u8) -> Tracked {
        let route = Route {
            near: "10.0.0.1:4000".parse().unwrap(),
            far: "203.0.113.2:80".parse().unwrap(),
        };
        Tracked {
            protocol: protocol::TCP,
            inside: route,
            first: route,
            zone: None,
            network: 2,
            reason,
        }
    }

    fn choice(reason: u8, turns: &[u8], strict: bool) -> Choice {
        Choice {
            reason,
            turns: [turns.to_vec(), Vec::new()],
            strict,
            ..Choice::default()
        }
    }

    #[test]
    fn flows_keep_to_their_rule_and_to_what_their_program_chose() {
        let choices = [
            choice(reason::FIRST_RULE, &[4], false),
            choice(reason::FIRST_RULE + 1, &[], true),
            choice(reason::FIRST_RULE + 2, &[], false),
            choice(reason::DEFAULT, &[3, 2, 3], false),
        ];
        let possible_networks = |reason| possible_networks(&choices, &tracked(reason));
        assert_eq!(possible_networks(reason::FIRST_RULE), [4]);
        assert_eq!(possible_networks(reason::FIRST_RULE + 1), [] as [u8; 0], "strict");
        assert_eq!(
            possible_networks(reason::FIRST_RULE + 2),
            [2, 3],
            "its networks are not there"
        );
        assert_eq!(possible_networks(reason::DEFAULT), [2, 3]);
        assert_eq!(possible_networks(reason::CAME_IN), [2, 3]);
        assert_eq!(possible_networks(reason::PROGRAM), [] as [u8; 0]);
    }
}
