//! The flows that end here and that other hosts move.
//!
//! A guest says which flow it will move and which opening is on its way. The flow must be one that the kernel tracks, with an address from which the guest itself
//! speaks to us, and the guest must know how far it is. A guest can only order routes whose opening has come in, so it can send a flow
//! nowhere but to where it is itself.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::{IpAddr, SocketAddr};

use hawser_linux::conntrack::{self, Connection};
use hawser_linux::direct::moving::Moved;
use hawser_linux::direct::{MARK, MARK_MASK};
use hawser_linux::tap::device_name;
use hawser_proto::migration::opening::{accept, confirm};
use hawser_proto::migration::{Follower, Order, Route};
use hawser_units::{Duration, Instant};
use hawser_wire::inner::protocol;
use hawser_wire::opening::{Opening, Step};
use hawser_wire::peer::{Expect, PeerMessage, Unexpected};
use tokio::sync::mpsc;

use super::tracked::{Numbers, Tracked, is_same};
use super::{Out, ends};
use crate::control::peer::{GuestEvent, GuestNews};
use crate::identity::KeyHash;

struct Guest {
    key: KeyHash,
    name: String,
    seen: SocketAddr,
    outbox: mpsc::UnboundedSender<PeerMessage>,
}

struct Flow {
    tracked: Tracked,
    /// The first route as the guest believes that it is seen here: it does not know its translators.
    believed: Route,
    machine: Follower,
    guest: String,
    /// Routes that have been opened, the latest at the end.
    opened: VecDeque<Route>,
    /// What to send when the mover has our answer, and out of which device.
    confirm: Option<(Opening, u32)>,
    moved: u64,
}

struct Expecting {
    guest: KeyHash,
    flow: u32,
    until: Instant,
    /// Where the opening came from, once it has.
    seen: Option<SocketAddr>,
}

/// An opening that came before its announcement.
struct Early {
    opening: Opening,
    interface: u32,
    until: Instant,
}

/// From where a guest spoke until a moment ago: the network that it lost is often the one whose flows it wants to move.
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
}

impl Followers {
    pub(super) fn on_news(&mut self, news: GuestNews, numbers: &Numbers, now: Instant, out: &mut Out) {
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
            GuestEvent::Message(message) => self.on_message(news.id, &message, numbers, now, out),
        }
    }

    fn on_message(&mut self, id: u64, message: &PeerMessage, numbers: &Numbers, now: Instant, out: &mut Out) {
        let Some(guest) = self.guests.get(&id) else { return };
        let (key, outbox) = (guest.key, guest.outbox.clone());
        match *message {
            PeerMessage::Expect(expect) => {
                if let Err(reason) = self.on_expect(key, &expect, numbers, now) {
                    let nonce = expect.nonce;
                    tracing::debug!(nonce, %reason, "an opening is not waited for");
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
            PeerMessage::Forget { flow } => drop(self.flows.remove(&(key, flow))),
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
            | PeerMessage::Unrelay { .. } => tracing::debug!("a message out of place"),
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
            let own = self.flows.keys().filter(|(guest, _)| *guest == key).count();
            if own >= MOST_FLOWS {
                return Err(Unexpected::Busy);
            }
            let tracked = self
                .find(key, expect, numbers, now)
                .ok_or(Unexpected::UnknownFlow)?;
            let guest = self.guests.values().find(|guest| guest.key == key);
            let flow = Flow {
                machine: Follower::new(tracked.first),
                tracked,
                believed: Route {
                    near: expect.far,
                    far: expect.near,
                },
                guest: guest.map_or_else(String::new, |guest| guest.name.clone()),
                opened: VecDeque::new(),
                confirm: None,
                moved: 0,
            };
            self.flows.insert((key, expect.flow), flow);
        }
        self.expecting.retain(|_, expecting| expecting.until > now);
        if self.expecting.len() >= MOST_OPENINGS {
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

    /// The one flow that a guest can mean.
    fn find(&self, key: KeyHash, expect: &Expect, numbers: &Numbers, now: Instant) -> Option<Tracked> {
        let seen = self.speaks_from(key, now);
        let connections = conntrack::list(MARK, MARK_MASK)
            .inspect_err(|error| tracing::warn!(%error, "cannot read the kernel's connections"))
            .ok()?;
        let possible = candidates(&connections, &seen, expect);
        choose(possible, expect, |tracked| numbers.of(&[tracked.first]))
    }

    /// The addresses from which a guest speaks, or spoke until a moment ago.
    fn speaks_from(&self, key: KeyHash, now: Instant) -> BTreeSet<IpAddr> {
        let speaks = self.guests.values().filter(|guest| guest.key == key);
        let left = self
            .left
            .iter()
            .filter(|left| left.key == key && left.until > now);
        speaks
            .map(|guest| guest.seen.ip())
            .chain(left.map(|left| left.seen))
            .collect()
    }

    /// Takes in a packet of an opening.
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
            if self.early.len() < MOST_EARLY {
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
            if flow.opened.len() > MOST_OPENED {
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
        // Whichever of its connections still lives: it hears of it once more at most.
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

    /// How packets are to be rewritten.
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

    /// In words, where a flow that was moved goes.
    pub(super) fn tell(&self, tracked: &Tracked) -> Option<String> {
        let flow = self
            .flows
            .values()
            .find(|flow| flow.moved > 0 && flow.tracked.inside == tracked.inside)?;
        Some(format!(
            "its other end, {}, has moved it: it is reached at {} now, and the program here still sees {}",
            flow.guest,
            flow.machine.route().far,
            tracked.inside.far
        ))
    }

    /// Forgets flows that are over.
    pub(super) fn sweep(&mut self, live: &BTreeSet<(u8, Route)>) {
        self.flows
            .retain(|_, flow| live.contains(&(flow.tracked.protocol, flow.tracked.inside)));
    }

    /// The addresses from which guests speak.
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
    ) -> Option<hawser_proto::migration::Answer> {
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
            tracing::debug!(?order, "an order for a route that nobody has opened");
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

/// Flows that end where the guest says, with an address from which it speaks.
fn candidates(connections: &[Connection], seen: &BTreeSet<IpAddr>, expect: &Expect) -> Vec<Tracked> {
    let all = connections.iter().filter_map(Tracked::of);
    all.filter(|tracked| {
        tracked.protocol == expect.protocol
            && tracked.first.near == expect.far
            && seen.contains(&tracked.first.far.ip())
    })
    .collect()
}

/// Who takes part in a TCP connection knows how far it is; of what nobody has looked at lately, and of UDP, the port must do: translators keep it where they can.
fn choose(
    possible: Vec<Tracked>,
    expect: &Expect,
    numbers: impl Fn(&Tracked) -> Option<(u32, u32)>,
) -> Option<Tracked> {
    let has_port = |tracked: &Tracked| tracked.first.far.port() == expect.near.port();
    let mut sure = Vec::new();
    let mut likely = Vec::new();
    for tracked in possible {
        let both = numbers(&tracked).zip(expect.numbers);
        let both = both.filter(|_| expect.protocol == protocol::TCP);
        match both.map(|(ours, theirs)| is_same(ours, theirs)) {
            Some(true) => sure.push(tracked),
            None if has_port(&tracked) => likely.push(tracked),
            Some(false) | None => {}
        }
    }
    let mut list = if sure.is_empty() { likely } else { sure };
    if list.len() > 1 {
        list.retain(has_port);
    }
    match list.as_slice() {
        [only] => Some(only.clone()),
        _ => None,
    }
}

/// Of one guest.
const MOST_FLOWS: usize = 4_096;
const MOST_OPENINGS: usize = 4_096;
const MOST_EARLY: usize = 64;
/// Of one flow: the last few, in case an order comes late.
const MOST_OPENED: usize = 4;
/// How long an opening is waited for: longer than a mover tries.
const WAIT: Duration = Duration::from_secs(10);
/// How long a flow may still be moved away from where its guest no longer speaks: a mover notices that a network is gone later than its connection does.
const ABSENCE: Duration = Duration::from_secs(10);
/// How long an opening waits for its announcement, which goes by another way.
const EARLY: Duration = Duration::from_secs(2);

#[cfg(test)]
mod tests {
    use super::*;

    fn tracked(port: u16) -> Tracked {
        let route = Route {
            near: "203.0.113.2:80".parse().unwrap(),
            far: SocketAddr::from(([192, 0, 2, 1], port)),
        };
        Tracked {
            protocol: protocol::TCP,
            inside: route,
            first: route,
            zone: Some(2),
            network: 2,
            reason: 7,
        }
    }

    fn expect(port: u16, numbers: Option<(u32, u32)>) -> Expect {
        Expect {
            flow: 1,
            nonce: 2,
            protocol: protocol::TCP,
            near: SocketAddr::from(([10, 0, 0, 2], port)),
            far: "203.0.113.2:80".parse().unwrap(),
            numbers,
        }
    }

    #[test]
    fn a_flow_is_known_by_how_far_it_is_whatever_its_port_has_become() {
        let far = |tracked: &Tracked| match tracked.first.far.port() {
            5_001 => Some((100, 7_000)),
            _ => Some((900_000_000, 7)),
        };
        let both = vec![tracked(4_000), tracked(5_001)];
        let chosen = choose(both.clone(), &expect(4_000, Some((7_100, 90))), far);
        assert_eq!(chosen, Some(tracked(5_001)));
        assert_eq!(
            choose(both.clone(), &expect(4_000, Some((1 << 30, 1 << 31))), far),
            None
        );
    }

    #[test]
    fn the_port_does_where_nobody_has_looked_and_nothing_where_two_could_be_meant() {
        let both = vec![tracked(4_000), tracked(5_001)];
        let chosen = choose(both.clone(), &expect(4_000, Some((1, 1))), |_| None);
        assert_eq!(chosen, Some(tracked(4_000)));
        assert_eq!(choose(both, &expect(6_000, None), |_| None), None);
        let same = |_: &Tracked| Some((100, 100));
        let twins = vec![tracked(1), tracked(2)];
        assert_eq!(choose(twins, &expect(3, Some((100, 100))), same), None);
    }

    #[test]
    fn a_guest_that_has_just_lost_an_address_still_speaks_from_it_and_nobody_else_does() {
        let (mut followers, mut numbers) = (Followers::default(), Numbers::default());
        numbers.watch(BTreeSet::new());
        let (lost, kept): (SocketAddr, SocketAddr) =
            ("192.0.2.1:7".parse().unwrap(), "198.51.100.1:7".parse().unwrap());
        let (guest, stranger) = (KeyHash([1; 32]), KeyHash([2; 32]));
        let mut tell = |id, what, at| {
            let news = GuestNews { id, what };
            followers.on_news(news, &numbers, Instant::from_nanos(at), &mut Out::default());
        };
        let up = |key, seen| GuestEvent::Up {
            key,
            name: String::new(),
            seen,
            outbox: mpsc::unbounded_channel().0,
        };
        tell(1, up(guest, lost), 0);
        tell(2, up(guest, kept), 0);
        tell(3, up(stranger, kept), 0);
        tell(1, GuestEvent::Down, 1_000);
        let until = Instant::from_nanos(1_000) + ABSENCE;
        let both = BTreeSet::from([lost.ip(), kept.ip()]);
        let soon = until - Duration::from_nanos(1);
        assert_eq!(followers.speaks_from(guest, soon), both);
        assert_eq!(followers.speaks_from(guest, until), BTreeSet::from([kept.ip()]));
        assert_eq!(followers.speaks_from(stranger, soon), BTreeSet::from([kept.ip()]));
    }

    #[test]
    fn an_order_for_a_route_that_was_never_opened_changes_nothing() {
        let mut flow = Flow {
            machine: Follower::new(tracked(4_000).first),
            tracked: tracked(4_000),
            believed: tracked(3_999).first,
            guest: String::new(),
            opened: VecDeque::new(),
            confirm: None,
            moved: 0,
        };
        let victim = Route {
            near: "203.0.113.2:4443".parse().unwrap(),
            far: "198.51.100.9:53".parse().unwrap(),
        };
        let order = Order {
            generation: 1,
            is_switch: true,
            route: victim,
            keep: flow.believed,
        };
        let now = Instant::from_nanos(0);
        assert_eq!(flow.on_order(&order, now, &mut Out::default()), None);
        assert_eq!(flow.machine.route(), flow.tracked.first);
        flow.opened.push_back(victim);
        assert!(flow.on_order(&order, now, &mut Out::default()).is_some());
        assert_eq!((flow.machine.route(), flow.moved), (victim, 1));
    }
}
