//! Flows that end at this host and that other hosts move.
//!
//! A guest announces the flow that it will move and the opening that it sends. The kernel must
//! track the flow, with an address from which the guest itself is connected, and the guest must
//! prove its ownership: for TCP it knows the sequence numbers, for UDP it has repeated a challenge
//! that arrived over the flow's route ([`hawser_steer::migration::proof`]). A guest can only use
//! routes whose opening has arrived, so it can redirect a flow only to itself.
//!
//! Bounds: connections are listed at most every 100 ms; messages of a guest with too many errors
//! are ignored for some time.

mod claims;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::{IpAddr, SocketAddr};

use hawser_config::identity::KeyHash;
use hawser_control::budget::Budget;
use hawser_control::peer::{GuestEvent, GuestNews, Outbox};
use hawser_linux::conntrack::Connection;
use hawser_linux::direct::moving::Moved;
use hawser_linux::tap::device_name;
use hawser_steer::migration::opening::{accept, confirm};
use hawser_steer::migration::{Follower, Order, Route};
use hawser_units::{Duration, Instant};
use hawser_wire::inner::protocol;
use hawser_wire::opening::{Opening, Step};
use hawser_wire::peer::{Expect, PeerMessage, Unexpected};

use super::tracked::{Numbers, Tracked, is_same};
use super::{Out, ends};
use claims::Claim;

/// Context of the flows.
pub(super) struct Around<'a> {
    pub(super) numbers: &'a Numbers,
    /// Device of a network.
    pub(super) device: &'a dyn Fn(u8) -> String,
    pub(super) now: Instant,
}

struct Guest {
    key: KeyHash,
    name: String,
    seen: SocketAddr,
    outbox: Outbox,
}

struct Flow {
    tracked: Tracked,
    /// First route as the guest expects it on this host, since the guest does not know its address
    /// translators.
    believed: Route,
    machine: Follower,
    guest: String,
    /// Opened routes, the latest at the end.
    opened: VecDeque<Route>,
    /// Packet to send when the mover has received the answer, and its device.
    confirm: Option<(Opening, u32)>,
    moved: u64,
}

struct Expecting {
    guest: KeyHash,
    flow: u32,
    until: Instant,
    /// Source of the opening, once it has arrived.
    seen: Option<SocketAddr>,
}

/// Opening that arrived before its announcement.
struct Early {
    opening: Opening,
    interface: u32,
    until: Instant,
}

/// Address from which a guest connected until recently: the network that it lost is often the one
/// whose flows it wants to move.
struct Left {
    key: KeyHash,
    seen: IpAddr,
    until: Instant,
}

#[derive(Default)]
pub(super) struct Followers {
    guests: BTreeMap<u64, Guest>,
    left: Vec<Left>,
    flows: BTreeMap<(KeyHash, u32), Flow>,
    expecting: BTreeMap<u32, Expecting>,
    early: VecDeque<Early>,
    claims: BTreeMap<(KeyHash, u32), Claim>,
    /// Remaining errors of each guest.
    patience: BTreeMap<KeyHash, Budget>,
    /// List of the kernel's connections, and its expiry.
    listed: Option<(Instant, Vec<Connection>)>,
}

impl Followers {
    pub(super) fn on_news(&mut self, news: GuestNews, around: &Around<'_>, out: &mut Out) {
        let now = around.now;
        match news.what {
            GuestEvent::Up {
                key,
                name,
                seen,
                outbox,
            } => {
                let guest = Guest {
                    key,
                    name,
                    seen,
                    outbox,
                };
                self.guests.insert(news.id, guest);
            }
            GuestEvent::Down => {
                if let Some(guest) = self.guests.remove(&news.id) {
                    self.left.retain(|left| left.until > now);
                    let until = now + ABSENCE;
                    let (key, seen) = (guest.key, guest.seen.ip());
                    self.left.push(Left { key, seen, until });
                }
            }
            GuestEvent::Message(message) => self.on_message(news.id, &message, around, out),
        }
    }

    fn on_message(&mut self, id: u64, message: &PeerMessage, around: &Around<'_>, out: &mut Out) {
        let (numbers, now) = (around.numbers, around.now);
        let Some(guest) = self.guests.get(&id) else { return };
        let (key, outbox) = (guest.key, guest.outbox.clone());
        match *message {
            PeerMessage::Expect(expect) => {
                if let Err(reason) = self.on_expect(key, &expect, numbers, now) {
                    let nonce = expect.nonce;
                    tracing::debug!(nonce, %reason, "cannot expect an opening");
                    out.reply(&outbox, PeerMessage::Unexpected { nonce, reason });
                    return;
                }
                let nonce = expect.nonce;
                if let Some(at) = self.early.iter().position(|early| early.opening.nonce == nonce)
                    && let Some(early) = self.early.remove(at)
                {
                    self.on_packet(&early.opening, early.interface, numbers, now, out);
                } else if let Some(seen) = self.expecting.get(&nonce).and_then(|expecting| expecting.seen) {
                    out.reply(&outbox, PeerMessage::Opened { nonce, seen });
                }
            }
            PeerMessage::Order {
                flow: number,
                generation,
                is_switch,
                route,
                keep,
            } => {
                let order = Order {
                    generation,
                    is_switch,
                    route: Route {
                        near: route.0,
                        far: route.1,
                    },
                    keep: Route {
                        near: keep.0,
                        far: keep.1,
                    },
                };
                let Some(flow) = self.flows.get_mut(&(key, number)) else {
                    return;
                };
                if let Some(answer) = flow.on_order(&order, now, out) {
                    let message = PeerMessage::Answer {
                        flow: number,
                        generation: answer.generation,
                        is_switch: answer.is_switch,
                    };
                    out.reply(&outbox, message);
                }
            }
            PeerMessage::Claim { flow, near, far } => {
                if let Err(reason) = self.on_claim((key, flow), near, far, around, out) {
                    tracing::debug!(flow, %reason, "claim rejected");
                    out.reply(&outbox, PeerMessage::Unproven { flow, reason });
                } else if self.flows.contains_key(&(key, flow)) {
                    out.reply(&outbox, PeerMessage::Proven { flow });
                }
            }
            PeerMessage::Proof { flow, secret } => {
                let verdict = match self.on_proof((key, flow), secret, now) {
                    Ok(()) => PeerMessage::Proven { flow },
                    Err(reason) => PeerMessage::Unproven { flow, reason },
                };
                out.reply(&outbox, verdict);
            }
            PeerMessage::Forget { flow } => {
                self.flows.remove(&(key, flow));
                self.claims.remove(&(key, flow));
            }
            PeerMessage::Relay { nonce, .. } => {
                let reason = Unexpected::NotHere;
                out.reply(&outbox, PeerMessage::Unexpected { nonce, reason });
            }
            PeerMessage::Hello(_)
            | PeerMessage::Welcome { .. }
            | PeerMessage::Refused(_)
            | PeerMessage::Opened { .. }
            | PeerMessage::Unexpected { .. }
            | PeerMessage::Answer { .. }
            | PeerMessage::Relayed { .. }
            | PeerMessage::Proven { .. }
            | PeerMessage::Unproven { .. }
            | PeerMessage::Unrelay { .. } => tracing::debug!("unexpected message"),
        }
    }

    fn on_expect(
        &mut self,
        key: KeyHash,
        expect: &Expect,
        numbers: &Numbers,
        now: Instant,
    ) -> Result<(), Unexpected> {
        if self.expecting.contains_key(&expect.nonce) {
            return Ok(());
        }
        if !self.flows.contains_key(&(key, expect.flow)) {
            self.has_room(key)?;
            let tracked = self.find(key, expect, numbers, now)?;
            let believed = Route {
                near: expect.far,
                far: expect.near,
            };
            self.follow((key, expect.flow), tracked, believed);
        }
        self.expecting.retain(|_, expecting| expecting.until > now);
        if self.expecting.len() >= MAX_OPENINGS {
            return Err(Unexpected::Busy);
        }
        let expecting = Expecting {
            guest: key,
            flow: expect.flow,
            until: now + WAIT,
            seen: None,
        };
        self.expecting.insert(expect.nonce, expecting);
        Ok(())
    }

    fn has_room(&self, key: KeyHash) -> Result<(), Unexpected> {
        let own = self.flows.range((key, 0)..=(key, u32::MAX)).count();
        if own < MAX_FLOWS {
            Ok(())
        } else {
            Err(Unexpected::Busy)
        }
    }

    fn follow(&mut self, id: (KeyHash, u32), tracked: Tracked, believed: Route) {
        let guest = self.guests.values().find(|guest| guest.key == id.0);
        let flow = Flow {
            machine: Follower::new(tracked.first),
            tracked,
            believed,
            guest: guest.map_or_else(String::new, |guest| guest.name.clone()),
            opened: VecDeque::new(),
            confirm: None,
            moved: 0,
        };
        self.flows.insert(id, flow);
    }

    /// Returns the only TCP flow that a guest can mean.
    fn find(
        &mut self,
        key: KeyHash,
        expect: &Expect,
        numbers: &Numbers,
        now: Instant,
    ) -> Result<Tracked, Unexpected> {
        if expect.protocol != protocol::TCP || expect.numbers.is_none() {
            return Err(Unexpected::UnknownFlow);
        }
        self.is_patient(key)?;
        let seen = self.speaks_from(key, now);
        let possible = candidates(self.connections(now), &seen, protocol::TCP, expect.far);
        choose(possible, expect, |tracked| numbers.of(&[tracked.first])).ok_or_else(|| self.was_wrong(key))
    }

    /// Returns the addresses from which a guest is connected, or was until recently.
    fn speaks_from(&self, key: KeyHash, now: Instant) -> BTreeSet<IpAddr> {
        let speaks = self.guests.values().filter(|guest| guest.key == key);
        let left = self
            .left
            .iter()
            .filter(|left| left.key == key && left.until > now);
        let mut all = BTreeSet::new();
        all.extend(speaks.map(|guest| guest.seen.ip()));
        all.extend(left.map(|left| left.seen));
        all
    }

    /// Handles a packet of an opening.
    pub(super) fn on_packet(
        &mut self,
        packet: &Opening,
        interface: u32,
        numbers: &Numbers,
        now: Instant,
        out: &mut Out,
    ) {
        if packet.step != Step::Ask {
            return;
        }
        let Some(expecting) = self.expecting.get_mut(&packet.nonce) else {
            self.early.retain(|early| early.until > now);
            if self.early.len() < MAX_EARLY {
                let until = now + EARLY;
                self.early.push_back(Early {
                    opening: *packet,
                    interface,
                    until,
                });
            }
            return;
        };
        let guest = expecting.guest;
        let Some(flow) = self.flows.get_mut(&(guest, expecting.flow)) else {
            return;
        };
        if flow.tracked.protocol != packet.protocol {
            return;
        }
        expecting.seen = Some(packet.source);
        let sent = numbers.of(&flow.machine.accepted()).map(|(sent, _)| sent);
        let sent = sent.filter(|_| packet.protocol == protocol::TCP);
        let answer = accept(packet, sent);
        let route = Route {
            near: packet.destination,
            far: packet.source,
        };
        if !flow.opened.contains(&route) {
            flow.opened.push_back(route);
            if flow.opened.len() > MAX_OPENED {
                flow.opened.pop_front();
            }
        }
        flow.confirm = Some((confirm(&answer), interface));
        if let Some(device) = device_name(interface) {
            out.send(&device, answer);
        }
        let message = PeerMessage::Opened {
            nonce: packet.nonce,
            seen: packet.source,
        };
        // All connections of the guest receive the notification, because some may have failed;
        // duplicates are harmless.
        for guest in self.guests.values().filter(|other| other.key == guest) {
            out.reply(&guest.outbox, message.clone());
        }
    }

    pub(super) fn handle_timeout(&mut self, now: Instant) {
        for flow in self.flows.values_mut() {
            flow.machine.handle_timeout(now);
        }
    }

    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        self.flows
            .values()
            .filter_map(|flow| flow.machine.poll_timeout())
            .min()
    }

    /// Adds the rewriting rules for packets.
    pub(super) fn rewriting(&self, flows: &mut Vec<Moved>) {
        for flow in self.flows.values() {
            let (accepted, route) = (flow.machine.accepted(), flow.machine.route());
            if accepted != [flow.tracked.first] || route != flow.tracked.first {
                flows.push(Moved {
                    protocol: flow.tracked.protocol,
                    inside: ends(flow.tracked.inside),
                    first: ends(flow.tracked.first),
                    route: ends(route),
                    accepted: accepted.into_iter().map(ends).collect(),
                    openings: Vec::new(),
                    mark: None,
                    zone: flow.tracked.zone,
                });
            }
        }
    }

    /// Returns the text about a moved flow's route.
    pub(super) fn description(&self, tracked: &Tracked) -> Option<String> {
        let flow = self
            .flows
            .values()
            .find(|flow| flow.moved > 0 && flow.tracked.inside == tracked.inside)?;
        Some(format!(
            "its peer {} has moved it: the peer uses {} now, and the program here still sees {}",
            flow.guest,
            flow.machine.route().far,
            tracked.inside.far
        ))
    }

    /// Removes flows that have ended.
    pub(super) fn sweep(&mut self, live: &BTreeSet<(u8, Route)>) {
        self.flows
            .retain(|_, flow| live.contains(&(flow.tracked.protocol, flow.tracked.inside)));
    }

    /// Yields the addresses from which guests are connected.
    pub(super) fn addresses(&self) -> impl Iterator<Item = IpAddr> {
        self.guests.values().map(|guest| guest.seen.ip())
    }

    pub(super) fn len(&self) -> usize {
        self.flows.values().filter(|flow| flow.moved > 0).count()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.flows.is_empty()
    }
}

impl Flow {
    fn on_order(
        &mut self,
        order: &Order,
        now: Instant,
        out: &mut Out,
    ) -> Option<hawser_steer::migration::Answer> {
        let real = |route| {
            if route == self.believed {
                self.tracked.first
            } else {
                route
            }
        };
        let order = &Order {
            route: real(order.route),
            keep: real(order.keep),
            ..*order
        };
        let accepted = self.machine.accepted();
        let is_known = |route: &Route| {
            *route == self.tracked.first || self.opened.contains(route) || accepted.contains(route)
        };
        if !is_known(&order.route) || !is_known(&order.keep) {
            tracing::debug!(?order, "message for a route that was not opened");
            return None;
        }
        let before = self.machine.route();
        let answer = self.machine.handle_order(order, now);
        self.moved += u64::from(self.machine.route() != before);
        if let Some((packet, interface)) = self.confirm.take()
            && packet.protocol == protocol::TCP
            && let Some(device) = device_name(interface)
        {
            out.send(&device, packet);
        }
        answer
    }
}

/// Returns flows to the destination that the guest names, from an address from which the guest is
/// connected.
fn candidates(
    connections: &[Connection],
    seen: &BTreeSet<IpAddr>,
    protocol: u8,
    far: SocketAddr,
) -> Vec<Tracked> {
    let all = connections.iter().filter_map(Tracked::of);
    all.filter(|tracked| {
        tracked.protocol == protocol && tracked.first.near == far && seen.contains(&tracked.first.far.ip())
    })
    .collect()
}

/// Returns the only TCP connection whose position fits the guest's report, as only a participant
/// knows it. Without a recent observation here, no report is accepted.
fn choose(
    possible: Vec<Tracked>,
    expect: &Expect,
    numbers: impl Fn(&Tracked) -> Option<(u32, u32)>,
) -> Option<Tracked> {
    let is_it = |tracked: &Tracked| {
        let both = numbers(tracked).zip(expect.numbers);
        both.is_some_and(|(ours, theirs)| is_same(ours, theirs))
    };
    let mut list: Vec<_> = possible.into_iter().filter(is_it).collect();
    if list.len() > 1 {
        list.retain(|tracked| tracked.first.far.port() == expect.near.port());
    }
    match list.as_slice() {
        [only] => Some(only.clone()),
        _ => None,
    }
}

/// Maximum number of flows of one guest. Source: our choice, a bound on memory and on the kernel's
/// rules; a machine has some hundred.
const MAX_FLOWS: usize = 4_096;
/// Maximum number of awaited openings of all guests. Source: our choice, as many as the flows of
/// one guest, so that all of them can be moved at once.
const MAX_OPENINGS: usize = 4_096;
/// Maximum number of openings without an announcement. Source: our choice; these come from unknown
/// senders, and are few because both routes have similar delays.
const MAX_EARLY: usize = 64;
/// Maximum number of openings of one flow: the latest ones, in case a request arrives late. Source:
/// our choice, the latest moves within the time of a late request; more let old routes of a flow
/// remain valid.
const MAX_OPENED: usize = 4;
/// Lifetime of an awaited opening, longer than a mover retries. Source: our choice, twice the 4.7 s
/// of an opening (`core/steer/src/migration/opening.rs`).
const WAIT: Duration = Duration::from_secs(10);
/// Time for which a flow may still be moved from an address where its guest is no longer connected:
/// a mover detects a failed network later than its connection does. Source: our choice; the
/// attempts of a mover take 6.2 s (`TRIES` of `core/steer/src/migration/mod.rs`), and a longer time
/// lets a flow be moved from an address that may have another owner.
const ABSENCE: Duration = Duration::from_secs(10);
/// Lifetime of an opening without its announcement, which uses another route. Source: our choice, a
/// round trip of the slowest useful networks; after it the opening is repeated anyway.
const EARLY: Duration = Duration::from_secs(2);

#[cfg(test)]
mod tests;
