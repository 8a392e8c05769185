//! The receiving half of a session: turns authenticated packets into inner packets in order, and
//! into reports for the sender.
//!
//! The driver asks [`Ingress::accepts`] before it decrypts a packet, passes authenticated packets
//! to [`Ingress::handle_packet`], calls [`Ingress::flush`] after each batch, and passes [`Event`]s
//! to the sending half ([`crate::egress`]).

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

use crate::checkpoint::{BadCheckpoint, ReceivingStreams};
use crate::fec::{Decoder, Rebuilt};
use crate::replay::ReplayWindow;
use crate::resequencer::{Arrived, Config, Counters, Resequencer};
use crate::stream::{self, Accepted};

/// Packets that make a report due at once: 2 ms at 6 Gbit/s, well within the time that the window
/// allows for reports. Source: 1,024 packets of 1,472 bytes are 12 Mbit, which take 2 ms at
/// 6 Gbit/s.
const REPORT_PACKETS: u32 = 1024;
/// Packets that make a report due after [`REPORT_INTERVAL`]. Source: RFC 9000 section 13.2.2, as
/// for the segments of RFC 5681 section 4.2.
const REPORT_FEW: u32 = 2;
/// Interval between reports: 200 a second cost the other direction at most 0.2 Mbit/s. Half and
/// twice of it change goodput by at most 0.5 %, the share beside CUBIC by -7 and -12 %, and
/// lengthen the pause of a failed path by 10 and 22 % (docs/notebook/path-model.md, "Sensitivity").
const REPORT_INTERVAL: Duration = Duration::from_millis(5);
/// Packets on a path that are reported sooner: acknowledgements clock a young flow inside, and a
/// path that learns of its rate later makes the flow wait, which mistakes the wait for a queue.
/// Half and twice of it change goodput by at most 0.4 %, and the share beside CUBIC by -7 and -3 %
/// (docs/notebook/path-model.md, "Sensitivity").
const YOUNG: u32 = 512;
/// Interval between reports while losses are found: a report holds 16 of them. Half and twice of it
/// change goodput by at most 0.6 %, and the share beside CUBIC by -4 and 2 %
/// (docs/notebook/path-model.md, "Sensitivity").
const REPORT_URGENT: Duration = Duration::from_millis(1);
/// Delay of the report about a single packet.
///
/// Source: RFC 9000 section 13.2.1, `max_ack_delay`.
const LONE_REPORT_DELAY: Duration = Duration::from_millis(25);

/// Interval between reports of an unresponsive path, and the time for which they are sent: by then
/// its sender has detected the failure itself. No suite of docs/notebook/path-model.md,
/// "Sensitivity", changes by more than 3 % with half or twice of either.
const SILENCE_INTERVAL: Duration = Duration::from_millis(10);
const SILENCE_FOR: Duration = Duration::from_millis(500);
/// Time before the last packet of a failed path whose reports may be lost with the packets behind
/// it: a round trip on most networks. No suite of docs/notebook/path-model.md, "Sensitivity",
/// changes by more than 3 % with half or twice of it.
const LOST_REPORTS: Duration = Duration::from_millis(100);

/// Output of the receiving half for the sending half.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// Send this report.
    Report(Feedback),
    /// Send this report over another path as well: its own path no longer delivers packets, and
    /// packets wait for it.
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

/// State of one path in the receiving direction.
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
    /// Records that the sender stores its packets for retransmission; assumed until a packet shows
    /// the opposite, since the first packet may be lost.
    backed: bool,
    /// A loss has been found that no report has named.
    urgent: bool,
    /// Time at which the oldest skipped packet counts as lost.
    overtaken_at: Option<Instant>,
    /// Time at which the path's silence is reported; `None` while the path is responsive.
    silent_at: Option<Instant>,
}

/// Position of a packet relative to the newest of its path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Freshness {
    /// Highest packet number so far, so a new source address is credible.
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
    /// Budget of the peer's reports and probes.
    allowance: Allowance,
    refused: u64,
    /// Streams; `None` if the driver accepts none.
    streams: Option<stream::Receiving>,
    accepted: Option<Accepted>,
}

impl<T> Default for Ingress<T> {
    fn default() -> Self {
        Self::new(Config::default())
    }
}

impl<T> Ingress<T> {
    /// Creates a receiving half that reorders flows within these bounds.
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

    /// Sets the format of inner packets; must be called before the first arrives.
    pub fn set_format(&mut self, format: Format) {
        self.fec.format = format;
    }

    /// Accepts streams from now on, and reports that.
    pub fn take_streams(&mut self, config: stream::Config, reserve: stream::Reserve) {
        self.streams = Some(stream::Receiving::with_reserve(config, reserve));
    }

    /// Takes streams as [`Self::take_streams`] does, and continues with those of the previous
    /// process.
    ///
    /// # Errors
    /// The numbers are impossible: no stream is taken.
    pub fn restore_streams(
        &mut self,
        config: stream::Config,
        reserve: stream::Reserve,
        saved: &ReceivingStreams,
        now: Instant,
    ) -> Result<(), BadCheckpoint> {
        self.streams = Some(stream::Receiving::restore(config, reserve, saved, now)?);
        Ok(())
    }

    /// The streams in this direction, if this side accepts streams.
    pub fn streams(&mut self) -> Option<&mut stream::Receiving> {
        self.streams.as_mut()
    }

    /// The streams in this direction, to read.
    #[must_use]
    pub fn peek_streams(&self) -> Option<&stream::Receiving> {
        self.streams.as_ref()
    }

    /// Returns the bytes of a stream in the datagram that was processed last, which are to be
    /// stored.
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

    /// Returns the resequencer's counters.
    #[must_use]
    pub fn resequencer(&self) -> Counters {
        self.resequencer.counters()
    }

    /// Returns the number of packets that were lost and recovered from parity.
    #[must_use]
    pub fn rebuilt(&self) -> u64 {
        self.rebuilt
    }

    /// Returns the number of packets that were reassembled.
    #[must_use]
    pub fn reassembled(&self) -> u64 {
        self.joined
    }

    /// Returns the number of reports and probes of the peer that exceeded its limit.
    #[must_use]
    pub fn refused(&self) -> u64 {
        self.refused
    }

    /// Returns the number of gaps and waiting flows examined: the work that is not proportional to
    /// packets.
    #[must_use]
    pub fn steps(&self) -> u64 {
        let holes: u64 = self.receivers.iter().map(|receiver| receiver.holes.steps).sum();
        holes + self.resequencer.steps()
    }

    /// Returns the number of buffered packets.
    #[must_use]
    pub fn buffered(&self) -> usize {
        self.resequencer.len()
    }

    /// Gives up the gap for which packets have been held longest, and adds the packets after it to
    /// `out`; false if no packet is held. For a driver that runs out of room.
    pub fn relieve(&mut self, now: Instant, out: &mut Vec<T>) -> bool {
        self.resequencer.relieve(now, out)
    }

    /// Returns whether a packet number is new on its path; asked before decryption.
    #[must_use]
    pub fn accepts(&self, id: PathId, packet_number: u64) -> bool {
        self.receivers
            .iter()
            .any(|receiver| receiver.id == id && receiver.replay.check(packet_number))
    }

    /// Processes an authentic packet. `body` follows its inner header; `udp_len` is the number of
    /// bytes of UDP payload. For an inner packet, `item` is its handle. Packets that can be
    /// delivered are added to `out`; a handle that was not accepted is returned.
    /// [`Self::poll_rebuilt`] returns lost packets that the packet rebuilds.
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

    /// Returns a lost packet that was recovered from parity. The driver gives it a buffer and
    /// passes it to [`Self::handle_rebuilt`].
    pub fn poll_rebuilt(&mut self) -> Option<Rebuilt> {
        self.fec.poll_rebuilt()
    }

    /// Processes a recovered packet as if it had arrived, with its header and the handle of its
    /// buffer, which is returned if the packet was refused.
    #[must_use = "the item's buffer must be freed if it is given back"]
    pub fn handle_rebuilt(&mut self, inner: &Inner, item: T, now: Instant, out: &mut Vec<T>) -> Option<T> {
        let refused = self.order(inner, item, now, out);
        self.rebuilt += u64::from(refused.is_none());
        refused
    }

    /// Returns a packet whose pieces have all arrived; the driver stores it in a buffer and calls
    /// [`Self::handle_reassembled`].
    pub fn poll_whole(&mut self) -> Option<Whole> {
        self.reassembly.poll_whole()
    }

    /// Processes a reassembled packet as if it had arrived whole, with its header and the handle of
    /// its buffer, which is returned if the packet was refused.
    #[must_use = "the item's buffer must be freed if it is given back"]
    pub fn handle_reassembled(
        &mut self,
        inner: &Inner,
        item: T,
        now: Instant,
        out: &mut Vec<T>,
    ) -> Option<T> {
        self.joined += 1;
        self.order(inner, item, now, out)
    }

    /// Processes a bundle. Its packets have no order. A packet that parity has already rebuilt is
    /// not accepted twice.
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

    /// Returns a packet of the bundle that was processed last; the driver stores it in a buffer and
    /// calls [`Self::handle_unbundled`].
    pub fn poll_unbundled(&mut self) -> Option<Whole> {
        self.unbundled.pop_front()
    }

    /// Processes a packet of a bundle as if it had arrived by itself, with its header and the
    /// handle of its buffer, which is returned if the packet was refused.
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

    /// Ends a batch: gives up gaps that no path can still fill, and creates the reports that are
    /// due.
    ///
    /// `heard`: time up to which all packets that had arrived have been processed. A driver that is
    /// behind with its sockets must not count the time of packets in them against the paths, or it
    /// would give up gaps whose packets have already arrived.
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
                receiver.holes.mention_again(receiver.received_at - LOST_REPORTS);
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

    /// Ends the session: adds all held packets to `out`.
    pub fn drain(&mut self, now: Instant, out: &mut Vec<T>) {
        self.resequencer.drain(now, out);
    }

    /// Returns the next output for the sending half.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// Returns when to call [`Self::flush`] if no batch arrives before.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Instant> {
        let due = |receiver: &Receiver| [receiver.report_due(), receiver.overtaken_at];
        let due = self.receivers.iter().flat_map(due);
        let streams = self.streams.as_ref().and_then(stream::Receiving::poll_timeout);
        let others = [self.resequencer.poll_timeout(), self.reassembly.due(), streams];
        due.chain(others).flatten().min()
    }
}

/// A packet whose authentication succeeded.
#[derive(Clone, Copy, Debug)]
pub struct Authentic<'a, T> {
    /// Outer header.
    pub outer: Outer,
    /// Inner header.
    pub inner: Inner,
    /// Bytes after the inner header.
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
