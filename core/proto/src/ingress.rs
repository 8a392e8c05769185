//! The receiving half of a session: from authenticated packets to inner packets in order, and
//! reports for the sender.
//!
//! The driver asks [`Ingress::accepts`] before it decrypts, hands what proved authentic to
//! [`Ingress::handle_packet`], calls [`Ingress::flush`] after each batch, and passes [`Event`]s to
//! the sending half ([`crate::egress`]).

use std::collections::VecDeque;

use hawser_units::{Duration, Instant, PathId};
use hawser_wire::bundle::Packets;
use hawser_wire::compression::Form;
use hawser_wire::data::{Class, Feedback, Inner, Kind, Marks, Outer};
use hawser_wire::frame::Format;
use hawser_wire::inner::Ecn;

mod allowance;
mod checkpoint;
mod delays;
mod missing;
mod reassembly;

use allowance::Allowance;
use delays::Delays;
use missing::{Holes, Retransmissions};
use reassembly::Reassembly;
pub use reassembly::Whole;

use crate::fec::{Decoder, Rebuilt};
use crate::replay::ReplayWindow;
use crate::resequencer::{Arrived, Config, Counters, Resequencer};
use crate::stream::{self, Accepted};

/// Packets that make a report due at once: 2 ms at 6 Gbit/s, well within the time that the window
/// allows for reports.
const REPORT_PACKETS: u32 = 1024;
/// Packets that make a report due after [`REPORT_INTERVAL`].
const REPORT_FEW: u32 = 2;
/// Between reports: 200 a second cost the other direction 0.2 Mbit/s at most.
const REPORT_INTERVAL: Duration = Duration::from_millis(5);
/// Packets on a path that are reported sooner: what clocks a young flow inside are
/// acknowledgements, and a path that learns later than they come makes it wait, which it takes for
/// a queue.
const YOUNG: u32 = 512;
/// Between reports while losses are found: 16 of them fit into one.
const REPORT_URGENT: Duration = Duration::from_millis(1);
/// How long a single packet waits for its report.
///
/// Source: RFC 9000 section 13.2.1, `max_ack_delay`.
const LONE_REPORT_DELAY: Duration = Duration::from_millis(25);

/// Between reports of a silent path, and how long it is told of: by then its sender has noticed by
/// itself.
const SILENCE_INTERVAL: Duration = Duration::from_millis(10);
const SILENCE_FOR: Duration = Duration::from_millis(500);
/// Reports of so long before the last packet may be lost with those behind it: a round trip on most
/// networks.
const SWALLOWED: Duration = Duration::from_millis(100);

/// What the receiving half tells the sending half.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// Send this report.
    Report(Feedback),
    /// Send this report by another path as well: its own brings nothing any more, and packets wait
    /// for it.
    Silence(Feedback),
    /// The peer reports on our sending; it came by this path.
    Feedback(PathId, Feedback),
    /// The peer probes the path; the token is to be sent back.
    Probe(PathId, u64),
    /// The peer answers our probe.
    ProbeReply(PathId, u64),
    /// A notice of received streams.
    Stream(stream::Event),
}

/// One path in the receiving direction.
#[derive(Debug)]
struct Receiver {
    id: PathId,
    replay: ReplayWindow,
    highest: u64,
    packets: u32,
    bytes: u64,
    marks: Marks,
    received_at: Instant,
    unreported: u32,
    unreported_since: Instant,
    last_report: Instant,
    delays: Delays,
    holes: Holes,
    /// Its sender keeps what it sends; so it is taken until a packet says otherwise, for the first
    /// one may be lost.
    backed: bool,
    /// A loss has been found that no report has named.
    urgent: bool,
    /// When the oldest packet that was jumped over is lost, if nothing comes.
    overtaken_at: Option<Instant>,
    /// When its silence is to be told of; `None` while it is not silent.
    silent_at: Option<Instant>,
}

/// Whether a packet came on from the newest place on its path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Freshness {
    /// Its packet number is the highest so far: a new source address may be believed.
    Newest,
    /// Late, but not seen before.
    Late,
    /// Seen before or too old: nothing was done with it.
    Replayed,
}

/// The receiving half of a session. `T` is a handle of an inner packet's buffer.
///
/// Cost: O(1) a packet; an idle session holds a few hundred bytes a path.
#[derive(Debug)]
pub struct Ingress<T> {
    receivers: Vec<Receiver>,
    resequencer: Resequencer<T>,
    retransmissions: Retransmissions,
    fec: Decoder,
    rebuilt: u64,
    reassembly: Reassembly,
    /// Packets that were joined from pieces.
    joined: u64,
    /// Packets of the bundle that was handed in last.
    unbundled: VecDeque<Whole>,
    events: VecDeque<Event>,
    /// Of the peer's reports and probes.
    allowance: Allowance,
    refused: u64,
    /// `None`: the driver takes no streams.
    streams: Option<stream::Receiving>,
    accepted: Option<Accepted>,
}

impl<T> Default for Ingress<T> {
    fn default() -> Self {
        Self::new(Config::default())
    }
}

impl<T> Ingress<T> {
    /// One that puts flows in order within these bounds.
    #[must_use]
    pub fn new(order: Config) -> Self {
        Self {
            receivers: Vec::new(),
            resequencer: Resequencer::new(order),
            retransmissions: Retransmissions::default(),
            fec: Decoder::default(),
            rebuilt: 0,
            reassembly: Reassembly::default(),
            joined: 0,
            unbundled: VecDeque::new(),
            events: VecDeque::new(),
            allowance: Allowance::default(),
            refused: 0,
            streams: None,
            accepted: None,
        }
    }

    /// Says what inner packets are; before the first comes.
    pub fn set_format(&mut self, format: Format) {
        self.fec.format = format;
    }

    /// Takes streams from now on, and says so in reports.
    pub fn take_streams(&mut self, config: stream::Config, reserve: stream::Reserve) {
        self.streams = Some(stream::Receiving::with_reserve(config, reserve));
    }

    /// The streams in this direction, where they are taken.
    pub fn streams(&mut self) -> Option<&mut stream::Receiving> {
        self.streams.as_mut()
    }

    /// Bytes of a stream in the datagram that was handed in last, which are to be stored.
    pub fn poll_accepted(&mut self) -> Option<Accepted> {
        self.accepted.take()
    }

    /// Opens a path.
    pub fn open_path(&mut self, id: PathId, now: Instant) {
        self.receivers.push(Receiver::new(id, now));
    }

    /// Closes a path.
    pub fn close_path(&mut self, id: PathId) {
        self.receivers.retain(|receiver| receiver.id != id);
        self.resequencer.forget_path(id);
    }

    /// Packets and bytes (UDP payload) received on a path.
    #[must_use]
    pub fn received(&self, id: PathId) -> Option<(u32, u64)> {
        let receiver = self.receivers.iter().find(|receiver| receiver.id == id)?;
        Some((receiver.packets, receiver.bytes))
    }

    /// What the resequencer has done.
    #[must_use]
    pub fn resequencer(&self) -> Counters {
        self.resequencer.counters()
    }

    /// Packets that were lost and rebuilt from parity.
    #[must_use]
    pub fn rebuilt(&self) -> u64 {
        self.rebuilt
    }

    /// Packets that arrived in pieces and became whole.
    #[must_use]
    pub fn joined(&self) -> u64 {
        self.joined
    }

    /// Reports and probes of the peer that were more than it may send.
    #[must_use]
    pub fn refused(&self) -> u64 {
        self.refused
    }

    /// Holes and waiting flows looked at: the work that is not in proportion to packets.
    #[must_use]
    pub fn steps(&self) -> u64 {
        let holes: u64 = self.receivers.iter().map(|receiver| receiver.holes.steps).sum();
        holes + self.resequencer.steps()
    }

    /// Packets held back now.
    #[must_use]
    pub fn held(&self) -> usize {
        self.resequencer.len()
    }

    /// Gives up the gap that packets have been held for longest, and puts what follows it into
    /// `out`; false when nothing is held. For a driver that runs out of room.
    pub fn relieve(&mut self, now: Instant, out: &mut Vec<T>) -> bool {
        self.resequencer.relieve(now, out)
    }

    /// Whether a packet number is new on its path: asked before the work of decryption.
    #[must_use]
    pub fn accepts(&self, id: PathId, packet_number: u64) -> bool {
        self.receivers
            .iter()
            .any(|receiver| receiver.id == id && receiver.replay.check(packet_number))
    }

    /// Takes in an authentic packet. `body` is what follows its inner header; `udp_len` the bytes
    /// of UDP payload. For an inner packet, `item` is its handle and what can be delivered goes to
    /// `out`; a handle that was not taken is given back. Lost packets that it brings back are for
    /// [`Self::poll_rebuilt`].
    #[must_use = "the item's buffer must be freed if it is given back"]
    pub fn handle_packet(
        &mut self,
        id: PathId,
        packet: Authentic<'_, T>,
        now: Instant,
        out: &mut Vec<T>,
    ) -> (Freshness, Option<T>) {
        let Authentic {
            outer,
            inner,
            body,
            udp_len,
            ecn,
            item,
        } = packet;
        let Some(receiver) = self.receivers.iter_mut().find(|receiver| receiver.id == id) else {
            return (Freshness::Replayed, Some(item));
        };
        if !receiver.replay.accept(outer.packet_number) {
            return (Freshness::Replayed, Some(item));
        }
        let newest = outer.packet_number > receiver.highest;
        receiver
            .holes
            .on_packet(outer.packet_number, receiver.highest, inner.sent_us, now);
        let is_kept = match inner.kind {
            Kind::Packet | Kind::Fragment | Kind::Bundle | Kind::Stream | Kind::StreamControl => true,
            Kind::Feedback | Kind::Probe | Kind::ProbeReply | Kind::Parity => false,
        };
        if is_kept {
            receiver.backed = inner.backed;
            if inner.retransmission {
                self.retransmissions.on_retransmission(now);
            }
        }
        receiver
            .delays
            .on_packet(now.as_micros_wrapping().wrapping_sub(inner.sent_us), !newest);
        receiver.take(&outer, udp_len, newest, now);
        receiver.count_mark(ecn);
        self.resequencer.on_arrival(id, inner.sent_us, now);
        let freshness = if newest {
            Freshness::Newest
        } else {
            Freshness::Late
        };
        let token = || body.first_chunk::<8>().map(|token| u64::from_be_bytes(*token));
        let event = match inner.kind {
            Kind::Packet => {
                receiver.elicit(now);
                let is_new = self.fec.handle_packet(&inner, body, now);
                if inner.unordered && !is_new {
                    return (freshness, Some(item));
                }
                return (freshness, self.order(&inner, item, now, out));
            }
            Kind::Parity => {
                receiver.elicit(now);
                self.fec.handle_parity(&inner, body, now);
                None
            }
            Kind::Fragment => {
                receiver.elicit(now);
                self.reassembly.handle_fragment(&inner, body, now);
                None
            }
            Kind::Bundle => {
                receiver.elicit(now);
                self.unbundle(&inner, body, now);
                None
            }
            Kind::Stream => {
                receiver.elicit(now);
                if let Some(streams) = &mut self.streams {
                    self.accepted = streams.handle_bytes(&inner, body, now);
                }
                None
            }
            Kind::StreamControl => {
                receiver.elicit(now);
                if let Some(streams) = &mut self.streams {
                    for frame in hawser_wire::stream::frames(body) {
                        streams.handle_frame(&frame, now);
                    }
                }
                None
            }
            Kind::Probe => {
                receiver.elicit(now);
                token().map(|token| Event::Probe(id, token))
            }
            Kind::ProbeReply => token().map(|token| Event::ProbeReply(id, token)),
            Kind::Feedback => Feedback::parse(body).map(|report| Event::Feedback(id, report)),
        };
        if event.is_some() && !self.allowance.take(now) {
            self.refused += 1;
            return (freshness, Some(item));
        }
        self.events.extend(event);
        (freshness, Some(item))
    }

    /// A lost packet that parity brought back: to be given a buffer and to
    /// [`Self::handle_rebuilt`].
    pub fn poll_rebuilt(&mut self) -> Option<Rebuilt> {
        self.fec.poll_rebuilt()
    }

    /// Takes in a rebuilt packet as if it had come, with its header and the handle of its buffer,
    /// which is given back if it was not taken.
    #[must_use = "the item's buffer must be freed if it is given back"]
    pub fn handle_rebuilt(&mut self, inner: &Inner, item: T, now: Instant, out: &mut Vec<T>) -> Option<T> {
        let refused = self.order(inner, item, now, out);
        self.rebuilt += u64::from(refused.is_none());
        refused
    }

    /// A packet whose pieces have all arrived: to be given a buffer and to [`Self::handle_joined`].
    pub fn poll_whole(&mut self) -> Option<Whole> {
        self.reassembly.poll_whole()
    }

    /// Takes in a packet that was joined from pieces as if it had arrived whole, with its header
    /// and the handle of its buffer, which is given back if it was not taken.
    #[must_use = "the item's buffer must be freed if it is given back"]
    pub fn handle_joined(&mut self, inner: &Inner, item: T, now: Instant, out: &mut Vec<T>) -> Option<T> {
        self.joined += 1;
        self.order(inner, item, now, out)
    }

    /// Takes in a bundle. Its packets have no order: one that parity has brought back is not taken
    /// twice.
    fn unbundle(&mut self, inner: &Inner, body: &[u8], now: Instant) {
        self.unbundled.clear();
        for (n, packet) in Packets::parse(body).enumerate() {
            let inner = Inner {
                kind: Kind::Packet,
                unordered: true,
                form: Form::Whole,
                sequence: inner.sequence.add(n as u32),
                ..*inner
            };
            if self.fec.handle_packet(&inner, &packet, now) {
                self.unbundled.push_back(Whole { inner, packet });
            }
        }
    }

    /// A packet of the bundle that was handed in last: to be given a buffer and to
    /// [`Self::handle_unbundled`].
    pub fn poll_unbundled(&mut self) -> Option<Whole> {
        self.unbundled.pop_front()
    }

    /// Takes in a packet of a bundle as if it had come by itself, with its header and the handle of
    /// its buffer, which is given back if it was not taken.
    #[must_use = "the item's buffer must be freed if it is given back"]
    pub fn handle_unbundled(&mut self, inner: &Inner, item: T, now: Instant, out: &mut Vec<T>) -> Option<T> {
        self.order(inner, item, now, out)
    }

    /// Delivers a packet at once, or in its flow's order.
    fn order(&mut self, inner: &Inner, item: T, now: Instant, out: &mut Vec<T>) -> Option<T> {
        if inner.unordered {
            out.push(item);
            return None;
        }
        let arrived = Arrived {
            flow: inner.flow,
            sequence: inner.sequence,
            sent_us: inner.sent_us,
            is_bulk: inner.class == Class::Bulk,
            item,
        };
        self.resequencer.insert(arrived, now, out)
    }

    /// Ends a batch: gives up gaps that no path may fill any more, and makes the reports that are
    /// due.
    ///
    /// `heard`: everything that had arrived by then has been handed in. A driver that is behind
    /// with its sockets must not count the time that packets wait there against the paths, or it
    /// would give up gaps whose packets it already has.
    pub fn flush(&mut self, now: Instant, heard: Instant, out: &mut Vec<T>) {
        let heard = heard.min(now);
        self.reassembly.forget(now);
        if let Some(streams) = &mut self.streams {
            streams.flush(now);
            while let Some(event) = streams.poll_event() {
                self.events.push_back(Event::Stream(event));
            }
        }
        let takes_streams = self.streams.is_some();
        for receiver in &mut self.receivers {
            let (id, resequencer) = (receiver.id, &self.resequencer);
            let overtaken_at = |sent_us| resequencer.overtaken_at(id, sent_us, heard);
            let is_overtaken = |sent_us| overtaken_at(sent_us).is_some_and(|at| at <= heard);
            let found = receiver.holes.find(now, is_overtaken);
            receiver.overtaken_at = receiver.holes.oldest_open().and_then(overtaken_at);
            if receiver.backed {
                receiver.urgent |= found > 0;
                self.retransmissions.on_found(found, now);
            } else if found > 0 {
                receiver.holes.forget_losses();
            }
        }
        let retransmissions = self
            .retransmissions
            .until(now)
            .map(|until| (until, self.retransmissions.timeout()));
        self.resequencer.expect_retransmissions(retransmissions);
        self.resequencer.handle_timeout(heard, out);
        // While no path brings anything, it is not a path that is silent.
        let latest = self.receivers.iter().map(|receiver| receiver.received_at).max();
        let latest = latest.unwrap_or(now).min(heard);
        for receiver in &mut self.receivers {
            let is_silent = now.since(receiver.received_at) < SILENCE_FOR
                && self
                    .resequencer
                    .silent_at(receiver.id)
                    .is_some_and(|at| at <= latest);
            if is_silent && receiver.silent_at.is_none() {
                receiver.holes.mention_again(receiver.received_at - SWALLOWED);
            }
            receiver.silent_at = is_silent.then_some(receiver.last_report + SILENCE_INTERVAL);
            if receiver.report_due().is_some_and(|due| due <= now) {
                let report = Feedback {
                    takes_streams,
                    ..receiver.report(now)
                };
                self.events.push_back(if is_silent {
                    Event::Silence(report)
                } else {
                    Event::Report(report)
                });
            }
        }
    }

    /// Ends the session: puts everything held into `out`.
    pub fn drain(&mut self, now: Instant, out: &mut Vec<T>) {
        self.resequencer.drain(now, out);
    }

    /// Something for the sending half.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// When [`Self::flush`] is to be called, if no batch comes before.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Instant> {
        let due = |receiver: &Receiver| [receiver.report_due(), receiver.overtaken_at];
        let due = self.receivers.iter().flat_map(due);
        let streams = self.streams.as_ref().and_then(stream::Receiving::poll_timeout);
        let others = [self.resequencer.poll_timeout(), self.reassembly.due(), streams];
        due.chain(others).flatten().min()
    }
}

/// A packet whose tag was right.
#[derive(Clone, Copy, Debug)]
pub struct Authentic<'a, T> {
    /// Its outer header.
    pub outer: Outer,
    /// Its inner header.
    pub inner: Inner,
    /// What follows the inner header.
    pub body: &'a [u8],
    /// Bytes of its UDP payload.
    pub udp_len: usize,
    /// The ECN bits of its outer packet.
    pub ecn: Ecn,
    /// The handle of its buffer.
    pub item: T,
}

impl Receiver {
    fn new(id: PathId, now: Instant) -> Self {
        Self {
            id,
            replay: ReplayWindow::new(),
            highest: 0,
            packets: 0,
            bytes: 0,
            marks: Marks::default(),
            received_at: now,
            unreported: 0,
            unreported_since: now,
            last_report: now,
            delays: Delays::default(),
            holes: Holes::default(),
            backed: true,
            urgent: false,
            overtaken_at: None,
            silent_at: None,
        }
    }

    fn take(&mut self, outer: &Outer, udp_len: usize, newest: bool, now: Instant) {
        self.packets = self.packets.wrapping_add(1);
        self.bytes += udp_len as u64;
        self.received_at = now;
        if newest {
            self.highest = outer.packet_number;
        }
    }

    fn count_mark(&mut self, ecn: Ecn) {
        let count = match ecn {
            Ecn::NotEct => return,
            Ecn::Ect0 | Ecn::Ect1 => &mut self.marks.ect,
            Ecn::Ce => &mut self.marks.ce,
        };
        *count = count.wrapping_add(1);
    }

    fn elicit(&mut self, now: Instant) {
        if self.unreported == 0 {
            self.unreported_since = now;
        }
        self.unreported = self.unreported.saturating_add(1);
    }

    fn report_due(&self) -> Option<Instant> {
        if self.urgent {
            return Some(self.last_report + REPORT_URGENT);
        }
        let usual = match self.unreported {
            0 => None,
            REPORT_PACKETS.. => Some(Instant::ZERO),
            REPORT_FEW.. => {
                let interval = if self.packets < YOUNG {
                    REPORT_URGENT
                } else {
                    REPORT_INTERVAL
                };
                Some((self.last_report + interval).max(self.unreported_since))
            }
            _ => Some(self.unreported_since + LONE_REPORT_DELAY),
        };
        [usual, self.silent_at].into_iter().flatten().min()
    }

    fn report(&mut self, now: Instant) -> Feedback {
        self.unreported = 0;
        self.urgent = false;
        self.last_report = now;
        let (delay_us, spread_us) = self.delays.take();
        Feedback {
            missing: self.holes.mention(self.highest),
            open: self.holes.open(),
            delay_us,
            spread_us,
            path: self.id,
            highest: self.highest,
            packets: self.packets,
            bytes: self.bytes,
            received_us: self.received_at.as_micros_wrapping(),
            hold_us: u32::try_from(now.since(self.received_at).as_micros()).unwrap_or(u32::MAX),
            takes_parity: true,
            takes_fragments: true,
            marks: Some(self.marks),
            // The sending half knows.
            is_policed: false,
            takes_streams: false,
            takes_bundles: true,
        }
    }
}

#[cfg(test)]
mod tests;
