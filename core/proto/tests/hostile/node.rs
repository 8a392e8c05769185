//! One end of a session with a reference model: invariants after each step, for arbitrary input of
//! the other end.

use std::collections::{BTreeMap, BTreeSet};

use hawser_proto::egress::Egress;
use hawser_proto::fec::Rebuilt;
use hawser_proto::flow::Run;
use hawser_proto::ingress::{Authentic, Freshness, Ingress};
use hawser_proto::path::{self, State};
use hawser_proto::tunnel::{Buffers, Event, Relay, Role, Sending, Source};
use hawser_units::{Duration, Instant, PathId, Sequence};
use hawser_wire::compression::{COMPRESSED_LEN, Compressed, Contexts, Form};
use hawser_wire::data::{FRAMING, Inner, Kind, MAX_PACKET_NUMBER, Outer};
use hawser_wire::offload::Offload;

use super::packet::{Packet, inner_packet};

/// Bytes between an inner packet and its outer IP packet.
pub(crate) const OVERHEAD: u16 = 28 + FRAMING as u16;
/// Number of a flow's packets up to which duplicates are recognised.
const HISTORY: i32 = 8_192;
/// Idle time after which a flow is removed.
const IDLE: Duration = Duration::from_secs(30);
/// Maximum number of held packets.
const CAPACITY: usize = 16_384;
/// Maximum number of flows.
const FLOWS: u64 = 4_096;

/// Object of a handle.
#[derive(Clone, Debug)]
struct Item {
    inner: Inner,
    bytes: Vec<u8>,
}

/// Recent deliveries of one flow.
#[derive(Debug, Default)]
struct Delivered {
    newest: Option<Sequence>,
    sequences: BTreeSet<u32>,
    used: Instant,
    /// The number of the packet that used it last.
    used_by: u64,
}

/// Bytes from and to an unvalidated address.
#[derive(Clone, Copy, Debug, Default)]
struct Budget {
    heard: u64,
    sent: u64,
    is_proven: bool,
}

/// Queued inner packets, by buffer: each is returned once.
#[derive(Debug, Default)]
struct Lent(BTreeMap<usize, Vec<u8>>);

impl Buffers<usize> for Lent {
    fn packet(&mut self, run: &Run<usize>) -> &[u8] {
        &self.0[&run.buffer]
    }

    fn release(&mut self, buffer: usize) {
        assert!(self.0.remove(&buffer).is_some(), "given back twice");
    }
}

/// Source of packets, whose changes are reported by [`Node::moved`].
#[derive(Clone, Copy, PartialEq)]
struct Anywhere;

impl Source for Anywhere {
    fn overhead(&self) -> u16 {
        OVERHEAD
    }
}

/// Counts of inputs and calls, with which the work is compared.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Done {
    pub(crate) packets: u64,
    pub(crate) bytes: u64,
    pub(crate) reports: u64,
    pub(crate) gaps: u64,
    pub(crate) flushes: u64,
    pub(crate) polls: u64,
    pub(crate) sent: u64,
}

pub(crate) struct Node {
    pub(crate) sending: Sending<usize, ()>,
    pub(crate) ingress: Ingress<u64>,
    contexts: Contexts,
    items: BTreeMap<u64, Item>,
    next_item: u64,
    lent: Lent,
    next_buffer: usize,
    out: Vec<u64>,
    flows: BTreeMap<u16, Delivered>,
    touches: u64,
    accepted: BTreeMap<PathId, BTreeSet<u64>>,
    /// Newest packet number sent on each path, including closed ones: ids are not reused.
    counters: BTreeMap<PathId, u64>,
    budgets: BTreeMap<PathId, Budget>,
    /// Inner packets delivered, with their bytes.
    pub(crate) delivered: (u64, u64),
    pub(crate) done: Done,
}

impl Node {
    pub(crate) fn new(role: Role, seed: u64, now: Instant) -> Self {
        Self {
            sending: Sending::new(role, seed, now),
            ingress: Ingress::default(),
            contexts: Contexts::default(),
            items: BTreeMap::new(),
            next_item: 0,
            lent: Lent::default(),
            next_buffer: 0,
            out: Vec::new(),
            flows: BTreeMap::new(),
            touches: 0,
            accepted: BTreeMap::new(),
            counters: BTreeMap::new(),
            budgets: BTreeMap::new(),
            delivered: (0, 0),
            done: Done::default(),
        }
    }

    pub(crate) fn egress(&self) -> &Egress<usize> {
        self.sending.egress()
    }

    fn is_hub(&self) -> bool {
        self.sending.role() == Role::Hub
    }

    pub(crate) fn open(&mut self, id: PathId, now: Instant) {
        let config = path::Config {
            id,
            probing: self.sending.role().probing(),
            cap: None,
            mtu: 1500,
            overhead: OVERHEAD,
        };
        self.sending.open_path(config, !self.is_hub(), now);
        self.ingress.open_path(id, now);
        self.budgets.insert(id, Budget::default());
    }

    pub(crate) fn close(&mut self, id: PathId, now: Instant) {
        self.sending.close_path(id, now);
        self.ingress.close_path(id);
        self.budgets.remove(&id);
    }

    /// The state of an open path.
    pub(crate) fn state(&self, id: PathId) -> Option<State> {
        let mut paths = self.sending.paths();
        paths.find(|path| path.id == id).map(path::Path::state)
    }

    /// Processes a change of the peer's address.
    pub(crate) fn moved(&mut self, id: PathId, now: Instant) {
        self.sending.handle_rebound(id, OVERHEAD, now);
        self.budgets.insert(id, Budget::default());
    }

    /// Offers an inner packet to be sent; returns whether it was queued.
    pub(crate) fn offer(&mut self, kind: u8, flow: u16, len: usize, segment: u16, now: Instant) -> bool {
        let mut packet = inner_packet(kind, flow, len);
        let offload = Offload {
            checksum_partial: true,
            segment,
        };
        self.next_buffer += 1;
        let id = self.next_buffer;
        let is_queued = self.sending.handle_inner(&mut packet, offload, id, now).is_ok();
        if is_queued {
            self.lent.0.insert(id, packet);
        }
        is_queued
    }

    /// Processes an authentic packet, like the daemon.
    pub(crate) fn receive(&mut self, packet: &Packet, now: Instant) {
        let Packet {
            path,
            packet_number,
            inner,
            body,
        } = packet;
        let accepted = self.accepted.entry(*path).or_default();
        if !self.ingress.accepts(*path, *packet_number) {
            return;
        }
        assert!(self.budgets.contains_key(path), "a closed path takes nothing");
        assert!(
            accepted.insert(*packet_number),
            "{path:?} takes {packet_number} again"
        );
        let highest = accepted
            .range(..*packet_number)
            .next_back()
            .copied()
            .unwrap_or(*packet_number);
        if accepted.last() == Some(packet_number) && packet_number - highest <= 512 {
            self.done.gaps += packet_number - highest;
        }
        self.done.packets += 1;
        self.done.bytes += packet.udp_len();
        self.done.reports += u64::from(inner.kind == Kind::Feedback);
        let item = self.store(inner, body);
        let authentic = Authentic {
            outer: Outer {
                epoch: 0,
                index: 0,
                packet_number: *packet_number,
            },
            inner: *inner,
            body,
            udp_len: body.len() + FRAMING,
            ecn: hawser_wire::inner::Ecn::NotEct,
            item,
        };
        self.touch(inner, now);
        let restarts = self.ingress.resequencer().restarts;
        let (freshness, refused) = self.ingress.handle_packet(*path, authentic, now, &mut self.out);
        assert_ne!(freshness, Freshness::Replayed);
        self.refuse(refused);
        self.after(inner, restarts);
        while let Some(Rebuilt { inner, packet }) = self.ingress.poll_rebuilt() {
            self.touch(&inner, now);
            let restarts = self.ingress.resequencer().restarts;
            let item = self.store(&inner, &packet);
            let refused = self.ingress.handle_rebuilt(&inner, item, now, &mut self.out);
            self.refuse(refused);
            self.after(&inner, restarts);
        }
        if self.is_hub() {
            if let Some(budget) = self.budgets.get_mut(path) {
                budget.heard += packet.udp_len();
            }
            self.heard(*path, packet.udp_len(), now);
        }
        assert!(self.ingress.buffered() <= CAPACITY);
        assert_eq!(
            self.ingress.buffered(),
            self.items.len(),
            "each packet is somewhere"
        );
    }

    /// Updates the model after one packet, which had been preceded by `restarts` restarts.
    fn after(&mut self, inner: &Inner, restarts: u64) {
        let is_anew = self.ingress.resequencer().restarts != restarts;
        let flow = self.flows.entry(inner.flow).or_default();
        if is_anew {
            flow.newest = None;
            flow.sequences.clear();
        }
        self.deliver();
        if is_anew {
            // Held packets were delivered before; the flow continues at this packet's position.
            let flow = self.flows.entry(inner.flow).or_default();
            flow.newest = Some(inner.sequence);
            flow.sequences = BTreeSet::from([inner.sequence.0]);
        }
    }

    fn store(&mut self, inner: &Inner, bytes: &[u8]) -> u64 {
        self.next_item += 1;
        let item = Item {
            inner: *inner,
            bytes: bytes.to_vec(),
        };
        self.items.insert(self.next_item, item);
        self.next_item
    }

    fn refuse(&mut self, refused: Option<u64>) {
        if let Some(item) = refused {
            assert!(self.items.remove(&item).is_some(), "given back twice");
        }
    }

    /// Records the use of a flow. It is forgotten after an idle time, or after as many packets of
    /// other flows as there may be flows.
    fn touch(&mut self, inner: &Inner, now: Instant) {
        if inner.kind != Kind::Packet || inner.unordered {
            return;
        }
        self.touches += 1;
        let flow = self.flows.entry(inner.flow).or_default();
        if now.since(flow.used) >= IDLE || self.touches - flow.used_by >= FLOWS {
            *flow = Delivered::default();
        }
        (flow.used, flow.used_by) = (now, self.touches);
    }

    /// Checks packets delivered to the TUN: each packet once, and each position of a flow once as
    /// long as the flow is known.
    fn deliver(&mut self) {
        for id in std::mem::take(&mut self.out) {
            let Item { inner, bytes } = self.items.remove(&id).expect("delivered once, and was sent");
            assert_eq!(inner.kind, Kind::Packet);
            self.rebuild_headers(&inner, &bytes);
            self.delivered.0 += 1;
            self.delivered.1 += bytes.len() as u64;
            if inner.unordered {
                continue;
            }
            let flow = self.flows.entry(inner.flow).or_default();
            let newest = *flow.newest.get_or_insert(inner.sequence);
            if newest.is_before(inner.sequence) {
                flow.newest = Some(inner.sequence);
                if inner.sequence.distance_from(newest) >= HISTORY {
                    flow.sequences.clear();
                }
                let from = inner.sequence;
                flow.sequences
                    .retain(|known| (0..HISTORY).contains(&from.distance_from(Sequence(*known))));
            }
            assert!(
                flow.sequences.insert(inner.sequence.0),
                "flow {} delivers {:?} twice",
                inner.flow,
                inner.sequence
            );
        }
    }

    fn rebuild_headers(&mut self, inner: &Inner, bytes: &[u8]) {
        match inner.form {
            Form::Whole => {}
            Form::Context => {
                self.contexts
                    .remember(inner.flow, inner.sequence, bytes, bytes.len());
            }
            Form::Compressed => {
                let Some((head, payload)) = bytes.split_first_chunk::<COMPRESSED_LEN>() else {
                    return;
                };
                if let Some(compressed) = Compressed::parse(head[0]) {
                    let _ = self
                        .contexts
                        .rebuild(inner.flow, inner.sequence, compressed, payload.len());
                }
            }
        }
    }

    /// Ends a batch: processes gaps and reports, and passes the peer's messages to the sending
    /// half.
    pub(crate) fn flush(&mut self, now: Instant) {
        self.done.flushes += 1;
        self.ingress.flush(now, now, &mut self.out);
        while let Some(event) = self.ingress.poll_event() {
            self.relay(Relay::Machine(event), now);
        }
        self.deliver();
    }

    fn relay(&mut self, relay: Relay<Anywhere>, now: Instant) {
        let moved = self.sending.handle_relay(relay, now);
        assert!(moved.is_none(), "nothing of this kind is relayed here");
    }

    /// Reports received bytes of a path to the sending half.
    pub(crate) fn heard(&mut self, path: PathId, bytes: u64, now: Instant) {
        let heard = Relay::Heard {
            path,
            packets: 1,
            bytes,
        };
        self.relay(heard, now);
    }

    /// Returns the packets that the sending half sends.
    pub(crate) fn transmit(&mut self, now: Instant) -> Vec<Packet> {
        let mut packets = Vec::new();
        self.sending.handle_timeout(now);
        self.note_changes();
        loop {
            self.done.polls += 1;
            let Some(burst) = self.sending.poll_burst(now, &mut self.lent) else {
                break;
            };
            assert!(packets.len() < 50_000, "sends without end");
            let packet = burst
                .run()
                .map_or(&[][..], |run| self.lent.0[&run.buffer].as_slice());
            let before = packets.len();
            packets.extend(burst.datagrams().map(|datagram| {
                let mut body = vec![0; datagram.body_len()];
                datagram.write_body(packet, &mut body);
                Packet {
                    path: burst.path(),
                    packet_number: datagram.number,
                    inner: datagram.inner,
                    body,
                }
            }));
            for packet in &packets[before..] {
                self.check_sent(packet);
            }
        }
        self.note_changes();
        packets
    }

    fn note_changes(&mut self) {
        while let Some(event) = self.sending.poll_event() {
            if let Event::Path(id, State::Active) = event
                && let Some(budget) = self.budgets.get_mut(&id)
            {
                budget.is_proven = true;
            }
        }
    }

    /// Checks that no packet number is used twice on a path, and that no unvalidated address gets
    /// more than three times the bytes received from it.
    fn check_sent(&mut self, packet: &Packet) {
        self.done.sent += 1;
        let newest = self.counters.entry(packet.path).or_default();
        assert!(packet.packet_number > *newest && packet.packet_number <= MAX_PACKET_NUMBER);
        *newest = packet.packet_number;
        let budget = self.budgets.get_mut(&packet.path).expect("the path is open");
        budget.sent += packet.udp_len();
        if self.sending.role() == Role::Hub && !budget.is_proven {
            assert!(
                budget.sent <= 3 * budget.heard,
                "{} bytes to an unproven address that sent {}",
                budget.sent,
                budget.heard
            );
        }
    }

    /// Returns the time of the next action.
    pub(crate) fn due(&self, now: Instant) -> Instant {
        let ingress = self.ingress.poll_timeout().unwrap_or(Instant::FAR_FUTURE);
        self.sending.poll_timeout(now).min(ingress)
    }

    /// Checks that work is in proportion to the input: to skipped packet numbers (at most 511 per
    /// packet), to reports (1,024 packets in each), and to a fixed number of flows per action.
    pub(crate) fn check_work(&self) {
        let Done {
            reports,
            gaps,
            flushes,
            polls,
            sent,
            packets,
            ..
        } = self.done;
        let receiving = self.ingress.steps();
        assert!(
            receiving <= 6 * gaps + 130 * (flushes + packets),
            "{receiving} steps of the receiving half for {:?}",
            self.done
        );
        let sending = self.egress().counters().steps;
        assert!(
            sending <= 1_100 * reports + 130 * polls + 8 * sent,
            "{sending} steps of the sending half for {:?}",
            self.done
        );
    }

    /// Ends the session, and checks that all buffers are returned.
    pub(crate) fn end(mut self, now: Instant) {
        self.ingress.drain(now, &mut self.out);
        self.deliver();
        assert!(self.items.is_empty(), "{} packets are nowhere", self.items.len());
        for buffer in self.sending.close() {
            self.lent.release(buffer);
        }
        let lent = self.lent.0.len();
        assert_eq!(lent, 0, "{lent} buffers are nowhere");
    }
}
