//! Flows inside GRE that a hub serves: their owners, limits and lifetimes.
//!
//! A *taker* is an address behind a member. Its flows are unverified until the hub has sent a data
//! packet to one of them, and again after some time without one.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4};
use std::time::{Duration, Instant};

use hawser_wire::gre::Datagram;

use crate::relay_connections::{KNOWN_FOR, RelayConnections, RelaySlot, STRANGE_FOR};

/// Key of a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Flow {
    /// Ends of the tunnel: the member's and the hub's.
    pub(super) outer: (Ipv4Addr, Ipv4Addr),
    /// Address of the taker in its local network.
    pub(super) taker: SocketAddrV4,
    /// Address of the hub that it uses.
    pub(super) hub: SocketAddrV4,
}

impl Flow {
    pub(super) fn of(datagram: &Datagram<'_>) -> Self {
        Self {
            outer: datagram.outer,
            taker: datagram.source,
            hub: datagram.destination,
        }
    }

    /// Returns an answer in this flow.
    pub(super) fn answer<'a>(&self, key: Option<u32>, payload: &'a [u8]) -> Datagram<'a> {
        let (member, hub) = self.outer;
        Datagram {
            outer: (hub, member),
            key,
            source: self.hub,
            destination: self.taker,
            ecn: hawser_wire::inner::Ecn::NotEct,
            payload,
        }
    }

    fn taker(&self) -> Taker {
        (self.outer.0, *self.taker.ip())
    }
}

/// Member, and an address behind it.
type Taker = (Ipv4Addr, Ipv4Addr);

/// Table of all flows, each with its socket `S`.
///
/// Cost: O(log flows) per datagram, O(flows) for the first datagram of a flow.
#[derive(Debug)]
pub(super) struct Flows<S> {
    connections: RelayConnections,
    flows: BTreeMap<Flow, Entry<S>>,
}

#[derive(Debug)]
struct Entry<S> {
    slot: RelaySlot,
    socket: S,
    begun: Instant,
    heard: Instant,
    /// Time of the hub's last data packet.
    data: Option<Instant>,
}

impl<S> Flows<S> {
    pub(super) fn new(connections: RelayConnections) -> Self {
        Self {
            connections,
            flows: BTreeMap::new(),
        }
    }

    /// Records a datagram of a flow. Returns the flow's socket.
    pub(super) fn hear(&mut self, flow: &Flow, now: Instant) -> Option<&S> {
        let entry = self.flows.get_mut(flow)?;
        entry.heard = now;
        Some(&entry.socket)
    }

    /// Starts a flow if the limit permits: a taker has at most [`OF_TAKER`] flows, of which the
    /// longest idle one is replaced. `open` creates the socket and returns its address.
    ///
    /// # Errors
    /// Fails as `open` does; no state has changed.
    pub(super) fn begin<E>(
        &mut self,
        flow: Flow,
        now: Instant,
        open: impl FnOnce(Ipv4Addr) -> Result<(S, SocketAddr), E>,
    ) -> Result<Option<&S>, E> {
        let of_taker = self
            .flows
            .iter()
            .filter(|(other, _)| other.taker() == flow.taker());
        if of_taker.clone().count() >= OF_TAKER
            && let Some((oldest, _)) = of_taker.min_by_key(|(_, entry)| entry.heard)
        {
            let oldest = *oldest;
            self.flows.remove(&oldest);
        }
        let Some(mut slot) = self
            .connections
            .enter(SocketAddr::new(flow.outer.0.into(), flow.taker.port()))
        else {
            return Ok(None);
        };
        let (socket, at) = open(slot.appears_as)?;
        slot.show(at);
        let entry = Entry {
            slot,
            socket,
            begun: now,
            heard: now,
            data: None,
        };
        self.flows.insert(flow, entry);
        Ok(self.flows.get(&flow).map(|entry| &entry.socket))
    }

    /// Records that the hub has sent a data packet in a flow.
    pub(super) fn handle_data(&mut self, flow: &Flow, now: Instant) {
        if let Some(entry) = self.flows.get_mut(flow) {
            entry.data = Some(now);
        }
    }

    /// Ends flows that remain unverified, idle flows, and those that are no longer permitted.
    pub(super) fn handle_timeout(&mut self, now: Instant, is_allowed: impl Fn(&Flow) -> bool) {
        let is_recent = |at: Instant, within: Duration| now.saturating_duration_since(at) < within;
        let known: Vec<Taker> = self
            .flows
            .iter()
            .filter(|(_, entry)| entry.data.is_some_and(|at| is_recent(at, KNOWN_FOR)))
            .map(|(flow, _)| flow.taker())
            .collect();
        self.flows.retain(|flow, entry| {
            let stays = if known.contains(&flow.taker()) {
                is_recent(entry.heard, KNOWN_FOR) && entry.slot.know()
            } else {
                is_recent(entry.begun, STRANGE_FOR)
            };
            stays && is_allowed(flow)
        });
    }
}

/// Maximum number of a taker's flows: a path has one, a control connection another, and the ports
/// change when the taker uses the member again. Source: our choice, two ports of each before and
/// after a change, and as many in reserve; more let one taker use more of the [`RelayConnections`]
/// of all.
const OF_TAKER: usize = 8;

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const MEMBER: Ipv4Addr = Ipv4Addr::new(198, 51, 100, 7);

    fn flow(member: Ipv4Addr, taker: u8, port: u16) -> Flow {
        Flow {
            outer: (member, Ipv4Addr::new(203, 0, 113, 1)),
            taker: SocketAddrV4::new(Ipv4Addr::new(192, 168, 1, taker), port),
            hub: SocketAddrV4::new(Ipv4Addr::new(10, 47, 47, 1), 47_474),
        }
    }

    fn begin(flows: &mut Flows<u16>, flow: Flow, now: Instant) -> bool {
        let open = |own: Ipv4Addr| Ok::<_, ()>((flow.taker.port(), (own, flow.taker.port()).into()));
        flows.begin(flow, now, open).unwrap().is_some()
    }

    #[test]
    fn a_stranger_s_flow_ends_and_a_known_taker_s_stay() {
        let (now, connections) = (Instant::now(), RelayConnections::new(84, 8));
        let mut flows = Flows::new(connections.clone());
        let (data, control, strange) = (flow(MEMBER, 1, 1), flow(MEMBER, 1, 2), flow(MEMBER, 2, 1));
        for flow in [data, control, strange] {
            assert!(begin(&mut flows, flow, now));
        }
        flows.handle_data(&data, now);
        let later = now + STRANGE_FOR;
        for flow in [data, control, strange] {
            assert!(flows.hear(&flow, later).is_some());
        }
        flows.handle_timeout(later, |_| true);
        assert!(flows.hear(&control, later).is_some() && flows.hear(&data, later).is_some());
        assert!(flows.hear(&strange, later).is_none());
        assert_eq!(connections.counts(), (2, 0, 0));
        // Flows that are no longer permitted end immediately.
        flows.handle_timeout(later, |flow| flow.taker.port() == 1);
        assert!(flows.hear(&control, later).is_none() && flows.hear(&data, later).is_some());
        // No datagram arrived for some time.
        flows.handle_data(&data, later + KNOWN_FOR);
        flows.handle_timeout(later + KNOWN_FOR, |_| true);
        assert_eq!(connections.counts(), (0, 0, 0));
    }

    #[test]
    fn the_flow_that_is_silent_for_longest_makes_room() {
        let (now, connections) = (Instant::now(), RelayConnections::new(84, 8));
        let mut flows = Flows::new(connections);
        for port in 0..=OF_TAKER as u16 {
            let at = now + Duration::from_millis(port.into());
            assert!(begin(&mut flows, flow(MEMBER, 1, port), at));
            assert!(flows.hear(&flow(MEMBER, 1, 0), at).is_some());
        }
        assert_eq!(flows.flows.len(), OF_TAKER);
        assert!(flows.hear(&flow(MEMBER, 1, 1), now).is_none());
    }

    proptest! {
        /// For any sequence of flows, a taker, a member and all together do not exceed their
        /// limits, and the counts match the flows.
        #[test]
        fn is_bounded(
            steps in prop::collection::vec((0_u8..2, 0_u8..40, 0_u16..20, any::<bool>(), 0_u64..9), 0..400),
        ) {
            let (mut now, connections) = (Instant::now(), RelayConnections::new(84, 20));
            let mut flows = Flows::new(connections.clone());
            for (member, taker, port, is_answered, seconds) in steps {
                let flow = flow(Ipv4Addr::new(198, 51, 100, member), taker, port);
                if flows.hear(&flow, now).is_none() {
                    begin(&mut flows, flow, now);
                }
                if is_answered {
                    flows.handle_data(&flow, now);
                }
                now += Duration::from_secs(seconds);
                flows.handle_timeout(now, |_| true);
                let of = |flow: &Flow| flows.flows.keys().filter(|other| other.taker() == flow.taker()).count();
                prop_assert!(flows.flows.keys().all(|flow| of(flow) <= OF_TAKER));
                let (known, strangers, _) = connections.counts();
                prop_assert_eq!(known + strangers, flows.flows.len());
                prop_assert!(known <= 20 && strangers <= 64);
            }
        }
    }
}
