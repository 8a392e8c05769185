//! One end: its tunnel, and what its receivers have observed.

use std::collections::{BTreeMap, BTreeSet};

use hawser_proto::egress::Egress;
use hawser_proto::ingress::Ingress;
use hawser_proto::path::{self, State};
use hawser_proto::tunnel::{Handoff, Role, Tunnel};
use hawser_units::{Duration, Instant, PathId};
use hawser_wire::inner::protocol;
use hawser_wire::offload::Offload;

use super::datagram::{Label, Lent, Way, packet};
use super::{OVERHEAD, START};

/// Observations of one flow's receiver.
#[derive(Debug, Default)]
pub struct Sink {
    pub seen: BTreeSet<u64>,
    pub duplicates: u64,
    pub inversions: u64,
    pub newest: Option<u64>,
    pub marked: u64,
    /// Time, bytes and delay of each delivery.
    pub deliveries: Vec<(Instant, u64, Duration)>,
}

impl Sink {
    pub(super) fn take(&mut self, label: &Label, now: Instant) {
        self.duplicates += u64::from(!self.seen.insert(label.number));
        self.inversions += u64::from(self.newest > Some(label.number));
        self.newest = self.newest.max(Some(label.number));
        self.marked += u64::from(label.marked);
        self.deliveries.push((now, label.len, now.since(label.since)));
    }

    /// Inner Mbit/s delivered between two times.
    pub fn mbps(&self, from: Duration, to: Duration) -> f64 {
        let within = self.within(from, to).map(|(_, len, _)| len).sum::<u64>();
        within as f64 * 8.0 / 1e6 / (to - from).as_secs_f64()
    }

    fn within(&self, from: Duration, to: Duration) -> impl Iterator<Item = &(Instant, u64, Duration)> {
        let range = START + from..START + to;
        self.deliveries
            .iter()
            .filter(move |(at, _, _)| range.contains(at))
    }

    /// Returns the longest time without a delivery between two times.
    pub fn longest_gap(&self, from: Duration, to: Duration) -> Duration {
        let times = self.within(from, to).map(|(at, _, _)| *at).chain([START + to]);
        let mut last = START + from;
        let mut longest = Duration::ZERO;
        for at in times {
            longest = longest.max(at.since(last));
            last = at;
        }
        longest
    }

    /// Returns the quantile of the delay of the packets in an interval.
    pub fn delay(&self, share: f64, from: Duration, to: Duration) -> Duration {
        let mut delays: Vec<_> = self.within(from, to).map(|(_, _, delay)| *delay).collect();
        delays.sort();
        delays[((delays.len() - 1) as f64 * share) as usize]
    }
}

pub struct End {
    pub(super) tunnel: Tunnel<usize, Label, (), Way>,
    pub(super) clock: Duration,
    pub(super) lent: Lent,
    pub states: Vec<(Instant, PathId, State)>,
    pub sinks: BTreeMap<u16, Sink>,
    pub offered: BTreeMap<u16, u64>,
    pub refused: u64,
}

impl End {
    pub(super) fn new(at: usize, seed: u64, clock: Duration) -> Self {
        Self {
            tunnel: Tunnel::new(ROLES[at], seed, Handoff::NONE, START + clock),
            clock,
            lent: Lent::default(),
            states: Vec::new(),
            sinks: BTreeMap::new(),
            offered: BTreeMap::new(),
            refused: 0,
        }
    }

    pub fn egress(&self) -> &Egress<usize> {
        self.tunnel.sending().egress()
    }

    pub fn egress_mut(&mut self) -> &mut Egress<usize> {
        self.tunnel.sending_mut().egress_mut()
    }

    pub fn ingress(&self) -> &Ingress<Label> {
        self.tunnel.receiving().ingress()
    }

    pub fn state(&self, path: u16) -> State {
        let mut paths = self.egress().paths();
        paths
            .find(|known| known.id == PathId(path))
            .expect("the path is open")
            .state()
    }

    /// Returns when the path entered a state at or after a time.
    pub fn entered(&self, path: u16, state: State, after: Duration) -> Option<Duration> {
        self.states
            .iter()
            .find(|(at, id, to)| (*id, *to) == (PathId(path), state) && *at >= START + after)
            .map(|(at, _, _)| at.since(START))
    }

    /// Returns the number of buffers lent to the egress and not returned.
    pub fn lent(&self) -> usize {
        self.lent.labels.iter().flatten().count()
    }

    pub fn sink(&self, flow: u16) -> &Sink {
        &self.sinks[&flow]
    }

    /// Offers `segments` packets of `len` bytes in one buffer.
    pub fn offer(&mut self, kind: u8, label: Label, segments: u16, now: Instant) -> bool {
        let headers = if kind == protocol::TCP { 40 } else { 28 };
        let payload = label.len as usize - headers;
        let mut packet = packet(kind, label.flow, headers + payload * usize::from(segments));
        if label.marked {
            packet[1] |= 2;
        }
        let id = self.lent.take();
        let offload = Offload {
            checksum_partial: true,
            segment: payload as u16,
        };
        let label = Label {
            marked: false,
            ..label
        };
        match self
            .tunnel
            .handle_inner(&mut packet, offload, id, now + self.clock)
        {
            Ok(()) => {
                self.lent.labels[id] = Some(label);
                *self.offered.entry(label.flow).or_default() += u64::from(segments);
                true
            }
            Err(_) => {
                self.lent.free.push(id);
                self.refused += u64::from(segments);
                false
            }
        }
    }
}

/// One side of each end.
pub(super) const ROLES: [Role; 2] = [Role::Client, Role::Hub];

pub(super) fn config(at: usize, id: PathId, mtu: u16) -> path::Config {
    path::Config {
        id,
        probing: ROLES[at].probing(),
        cap: None,
        mtu,
        overhead: OVERHEAD,
    }
}
