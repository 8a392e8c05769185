//! The sending half of a session: turns inner packets into numbered packets on paths.
//!
//! It joins the flow table, the schedulers and the paths. The driver offers packets with
//! [`Egress::enqueue`], passes observations of the receiving half with the `handle_*` methods, and
//! sends what [`Egress::poll_transmit`] returns. The driver adds headers and encrypts. The
//! receiving half is [`crate::ingress`]: the two share no state, so each may have its own thread.

mod air;
mod bundling;
mod checkpoint;
mod choosing;
mod covering;
mod deadline;
mod declared;
mod intake;
mod lanes;
mod outlook;
mod preferring;
mod reporting;
mod retransmission_buffer;
mod retransmitting;
mod sharing;
mod shedding;
mod splitting;
mod streaming;
mod throughput;
mod transmit;
mod turns;

use std::collections::VecDeque;

use hawser_units::{Bytes, Duration, Instant, PathId, Rate};
use hawser_wire::data::{Class, FRAMING, Feedback};
use hawser_wire::deadline::DeadlineRule;
use hawser_wire::frame::Format;
use hawser_wire::layer;
use hawser_wire::preference::Preference;

use crate::fec;
use crate::flow::Flows;
use crate::limit::Limit;
use crate::path::control::{Competitors, Control};
use crate::path::{Path, State, policing};
use crate::scheduler::{self, PathView, Scheduler, UnknownScheduler};
use declared::Declared;
use lanes::spend;
use retransmission_buffer::{MAX_BUFFERING, RetransmissionBuffer, keeping_time};
use sharing::Sharing;
use throughput::Throughput;

pub use declared::{Declaration, MAX_DECLARED};
pub use intake::Refused;
pub use splitting::Piece;
pub use transmit::{Body, Transmit};

/// Bytes of a probe's body. Source: the token of a probe is an integer of 64 bits.
pub const PROBE_LEN: usize = 8;
/// Backlog below which a flow is sparse: the window does not delay its packets. Half and twice of
/// it change goodput by at most 0.3 %, and the share beside CUBIC by -3 and -5 %
/// (docs/notebook/path-model.md, "Sensitivity"). Units: bytes.
const SPARSE: u64 = 3_000;
/// Rate from which a session keeps no packets for retransmission: packets that leave the caches of
/// the processor cost more than a rare loss. Units: bit/s. Source: our choice, the rate at which
/// the 100 ms that are stored at a minimum are 12 MB, more than the second-level cache of common
/// processors; half and twice of it change no suite of docs/notebook/path-model.md, "Sensitivity",
/// by more than 3 %, but its networks are slower.
const KEEPS_BELOW: u64 = 1_000_000_000;
/// Up to 32 retransmissions per 100 ms may exceed the congestion window, because losses are random.
/// With twice as many the longest pauses of a failed path last 563 and 599 ms instead of 331 and
/// 354; half changes nothing (docs/notebook/path-model.md, "Sensitivity").
const EXCESS_RETRANSMISSIONS: usize = 32;
const EXCESS_INTERVAL: Duration = Duration::from_millis(100);
/// Minimum interval between two attempts to send waiting retransmissions. Source: timers of the
/// driver have a resolution of 1 ms.
const RETRANSMISSION_RETRY: Duration = Duration::from_millis(1);
/// Packets of one report that are taken for missing. Source: twice `OUTAGE` of
/// `ingress/missing.rs`, the longest hole that a receiver reports. What a report costs is bounded
/// by this: a step for each of these packets at most, seven for each byte of the report.
const MAX_MISSING: u64 = 1024;
/// Maximum number of flows examined for one transmission: the first in turn, and some of the others
/// in rotation. More flows wait only where an attacker fills the table, and each would add its cost
/// to every packet. Source: our choice, a bound on work that only an attacker reaches; more would
/// cost a full table's packets as much more time, with fewer, flows that wait for a better path
/// hide others that could be sent.
const EXAMINED: usize = 128;
const EXAMINED_BEYOND: usize = 32;

/// Event counters of an [`Egress`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Segments dropped by a flow's queue discipline as a congestion signal.
    pub policed: u64,
    /// Packets dropped because they are now too large for every path.
    pub too_large: u64,
    /// Packets that were sent in pieces.
    pub split: u64,
    /// Packets that were sent in one datagram with others.
    pub bundled: u64,
    /// Packets retransmitted because they were reported missing.
    pub retransmitted: u64,
    /// Packets of a layered stream's higher layers dropped because of a lack of capacity.
    pub let_go: u64,
    /// Packets of real-time flows dropped because they would have arrived too late.
    pub late: u64,
    /// Packets dropped because no path could send them within [`crate::flow::LONGEST_WAIT`].
    pub expired: u64,
    /// Packets dropped, the oldest first, because the driver ran out of buffers.
    pub shed: u64,
    /// Buffers of sent packets released for the same reason: these packets are not retransmitted if
    /// they are lost.
    pub unkept: u64,
    /// Number of records and flows examined: the work that is not proportional to packets.
    pub steps: u64,
    /// Packets followed by parity.
    pub covered: u64,
    /// Parity packets sent.
    pub parity: u64,
    /// Bytes of the UDP payload of parity packets.
    pub parity_bytes: u64,
    /// Parity packets that no path could send in time, or for which there was no space.
    pub parity_late: u64,
}

/// A state change of a path, for the driver to report.
pub type StateChange = (PathId, State);

struct Lane {
    path: Path,
    /// The peer's address is known.
    reachable: bool,
    /// Bytes that may still go to an unproven address; `None` once it is proven.
    budget: Option<u64>,
    /// Share of a radio channel that several paths use.
    air: Option<air::Part>,
    /// Purpose of the path.
    preference: Preference,
    /// The peer has reported that the network polices what it sends here.
    peer_is_policed: bool,
    /// A report that waits.
    delayed: reporting::Delayed,
    /// Owner of the queue in which a call waits.
    owner: deadline::QueueOwner,
    /// UDP payload of real-time flows and their parity.
    realtime: Throughput,
    /// State of both directions in the last change that was reported to the driver.
    told_policed: bool,
}

impl Lane {
    /// Returns whether the network polices what this side sends.
    fn is_policed(&self) -> bool {
        matches!(self.path.model().policing(), policing::State::Policed(_))
    }

    /// Returns whether the path may send anything.
    fn is_open(&self) -> bool {
        self.reachable && !self.path.is_exhausted()
    }
}

/// A change of policing on a path, in either direction, for the driver to report.
pub type PolicedChange = (PathId, bool);

/// The sending half of a session.
///
/// Cost: O(paths) a run of packets; no allocation once the tables have grown.
pub struct Egress<B> {
    lanes: Vec<Lane>,
    flows: Flows<B>,
    schedulers: [Box<dyn Scheduler>; 4],
    control: Control,
    sharing: Sharing,
    views: Vec<PathView>,
    view_lanes: Vec<usize>,
    urgent: VecDeque<Transmit<B>>,
    copies: VecDeque<Transmit<B>>,
    throughput: Throughput,
    /// Real-time flows that are active.
    realtime_use: deadline::RealtimeUse,
    outlook: outlook::Outlook,
    /// Rate limit of the session, independent of the capacity of its paths.
    limit: Option<Limit>,
    /// Limit of a flow's queue; `None`: as much as the paths need.
    buffer: Option<Bytes>,
    freed: Vec<B>,
    kept: RetransmissionBuffer<B>,
    /// Time for which packets sent from now on stay in the retransmission buffer; `None`: no
    /// buffering.
    keeping: Option<Duration>,
    changes: VecDeque<StateChange>,
    policed_changes: VecDeque<PolicedChange>,
    used: Instant,
    wait: Instant,
    /// Time at which waiting retransmissions may be sent; far in the future if none waits.
    retransmission_wait: Instant,
    /// Packets sent again beyond a path's window, and since when they are counted.
    excess: usize,
    excess_since: Instant,
    fec: fec::Encoder,
    /// The symbol of the parity packet that was handed out last.
    symbol: Vec<u8>,
    /// Earliest time to try again a parity packet that found no path.
    parity_wait: Instant,
    /// The peer has reported that it understands parity packets.
    peer_takes_parity: bool,
    /// The peer has reported that it understands fragments.
    peer_takes_fragments: bool,
    bundling: bundling::Bundling<B>,
    /// Path MTU to report to the sender of the last received packet.
    advice: Option<u16>,
    /// Packets that may have caused such advice.
    split_at_intake: u64,
    counters: Counters,
    layer_rules: Vec<layer::Rule>,
    /// Flows whose programs have declared what they send.
    declared: Declared,
    /// Format of the inner packets.
    format: Format,
    streaming: streaming::Streaming,
    /// Position of the rotation among the flows behind the first in turn.
    rotation: usize,
    seed: u64,
}

impl<B: Copy> Egress<B> {
    /// Creates an egress without paths, with the default scheduler for every class.
    #[must_use]
    pub fn new(seed: u64, now: Instant) -> Self {
        Self {
            lanes: Vec::new(),
            flows: Flows::new(seed, now),
            schedulers: Class::ALL.map(|class| default_scheduler(class, seed)),
            control: Control::default(),
            sharing: Sharing::default(),
            views: Vec::new(),
            view_lanes: Vec::new(),
            urgent: VecDeque::new(),
            copies: VecDeque::new(),
            throughput: Throughput::default(),
            realtime_use: deadline::RealtimeUse::default(),
            outlook: outlook::Outlook::default(),
            limit: None,
            buffer: None,
            freed: Vec::new(),
            kept: RetransmissionBuffer::new(),
            keeping: Some(MAX_BUFFERING),
            changes: VecDeque::new(),
            policed_changes: VecDeque::new(),
            used: now,
            wait: Instant::FAR_FUTURE,
            retransmission_wait: Instant::FAR_FUTURE,
            excess: 0,
            excess_since: now,
            fec: fec::Encoder::default(),
            symbol: Vec::new(),
            parity_wait: Instant::ZERO,
            peer_takes_parity: false,
            peer_takes_fragments: false,
            bundling: bundling::Bundling::default(),
            advice: None,
            split_at_intake: 0,
            counters: Counters::default(),
            layer_rules: Vec::new(),
            declared: Declared::default(),
            format: Format::Ip,
            streaming: streaming::Streaming::default(),
            rotation: 0,
            seed,
        }
    }

    /// Returns the event counters.
    #[must_use]
    pub fn counters(&self) -> Counters {
        Counters {
            steps: self.counters.steps + self.kept.steps,
            ..self.counters
        }
    }

    /// The flows.
    #[must_use]
    pub fn flows(&self) -> &Flows<B> {
        &self.flows
    }

    /// The paths, by id.
    pub fn paths(&self) -> impl Iterator<Item = &Path> {
        self.lanes.iter().map(|lane| &lane.path)
    }

    /// The name of the scheduler of a class.
    #[must_use]
    pub fn scheduler(&self, class: Class) -> &'static str {
        self.schedulers[class as usize].name()
    }

    /// Changes the scheduler of a class at once; queued packets are chosen for by the new one.
    ///
    /// # Errors
    /// [`UnknownScheduler`]: nothing was changed.
    pub fn set_scheduler(&mut self, class: Class, name: &str) -> Result<(), UnknownScheduler> {
        self.schedulers[class as usize] = scheduler::by_name(name, self.seed)?;
        Ok(())
    }

    /// Returns the congestion controller of all paths.
    pub fn control(&self) -> Control {
        self.control
    }

    /// Controls all paths, including later ones, by this congestion controller. A path whose
    /// controller changes is measured from the start.
    pub fn set_control(&mut self, control: Control, now: Instant) {
        self.control = control;
        for lane in &mut self.lanes {
            lane.path.set_control(control, now);
        }
    }

    /// Bounds the buffers that are kept for retransmission: a driver whose buffers hold single
    /// packets needs more of them.
    pub fn limit_retransmission_buffers(&mut self, buffers: usize) {
        self.kept.limit = buffers;
    }

    /// Bounds the queue of a flow, to measure the effect of a queue; `None`: as much as the paths
    /// need. One packet may always wait, and it may be one that is split into many datagrams.
    pub fn set_buffer(&mut self, buffer: Option<Bytes>) {
        self.buffer = buffer;
    }

    /// Sets the format of inner packets; must be called before the first arrives.
    pub fn set_format(&mut self, format: Format) {
        self.format = format;
    }

    /// Sets the rules that recognise packets of layered flows; they apply to packets that arrive
    /// from now on. A flow in which a rule finds a mark is of class [`Class::Layered`] from then
    /// on.
    pub fn set_layer_rules(&mut self, rules: Vec<layer::Rule>) {
        self.layer_rules = rules;
    }

    /// Sets rules of how long packets are of use; `is_from_client`: this side is the client.
    pub fn set_deadlines(&mut self, rules: Vec<DeadlineRule>, is_from_client: bool) {
        self.flows.set_deadlines(rules, is_from_client);
    }

    /// Limits everything that the session sends to a rate; zero sends nothing, `None` removes the
    /// limit. Excess packets wait in the queues of their flows, as for slow paths. Retransmissions
    /// count, and do not wait.
    pub fn set_limit(&mut self, rate: Option<Rate>) {
        if rate != self.limit.as_ref().map(Limit::rate) {
            self.limit = rate.map(Limit::new);
        }
    }

    /// Records `bytes` of a packet that went.
    fn charge(&mut self, bytes: u64, now: Instant) {
        if let Some(limit) = &mut self.limit {
            limit.on_sent(bytes, now);
        }
    }

    /// Processes the peer's report on one of our paths. A report that arrived by another path than
    /// its own overtakes later reports on its path: it gives missing packets and the time without
    /// packets, but no delays.
    pub fn handle_feedback(&mut self, came_by: PathId, report: &Feedback, now: Instant) {
        let id = report.path;
        self.peer_takes_parity |= report.takes_parity;
        self.peer_takes_fragments |= report.takes_fragments;
        self.bundling.peer_takes_bundles |= report.takes_bundles;
        self.streaming.peer_takes_streams |= report.takes_streams;
        let mut changed = false;
        if let Some(lane) = self.lane(id) {
            if came_by == id {
                changed = lane.path.handle_feedback(report, now);
                lane.peer_is_policed = report.is_policed;
                self.sharing
                    .on_report(id, report.received_us, report.delay_us.cast_signed());
                self.couple(id, now);
            } else {
                let late = lane.path.handle_silence(report);
                self.kept.on_late(id, late.clone(), now);
                self.on_missing_streams(id, late, now);
            }
        }
        self.note_policed(id);
        self.on_missing(report, now);
        let rate: u64 = self.paths().map(|path| path.model().rate().as_bps()).sum();
        let longest = self.paths().map(keeping_time).max().unwrap_or_default();
        self.keeping = (rate < KEEPS_BELOW).then_some(longest);
        self.note_outlook(now);
        self.note(id, changed);
    }

    /// Informs a path of the other paths that compete in the same queue, so that all together act
    /// as one sender.
    fn couple(&mut self, id: PathId, now: Instant) {
        let mut company = Competitors::default();
        for other in self.sharing.with(id) {
            let lane = self.lanes.iter().find(|lane| lane.path.id == other);
            if let Some(stake) = lane.and_then(|lane| lane.path.model().queue_share()) {
                company.add(stake);
            }
        }
        if let Some(lane) = self.lane(id) {
            lane.path.set_competitors(company, now);
        }
    }

    /// Processes the reply to a probe of this side.
    pub fn handle_probe_reply(&mut self, id: PathId, token: u64, now: Instant) {
        let changed = self
            .lane(id)
            .is_some_and(|lane| lane.path.handle_probe_reply(token, now));
        self.note(id, changed);
    }

    /// Sets a known slow rate of the links of all paths.
    #[cfg(test)]
    pub(crate) fn set_slow_links(&mut self, rate: Rate, now: Instant) {
        for lane in &mut self.lanes {
            lane.path.set_slow_link(rate, now);
        }
    }

    /// Paths that transfer packets.
    fn active(&self) -> impl Iterator<Item = &Path> {
        self.paths().filter(|path| path.state() == State::Active)
    }

    /// The next thing to send, in this order: answers and reports, probes, packets to be sent
    /// again, parity packets, packets by flow.
    pub fn poll_transmit(&mut self, now: Instant) -> Option<Transmit<B>> {
        let transmit = self.next_transmit(now)?;
        self.note_sent_on_air(transmit.path, now);
        Some(transmit)
    }

    fn next_transmit(&mut self, now: Instant) -> Option<Transmit<B>> {
        if let Some(copy) = self.copies.pop_front() {
            return Some(copy);
        }
        self.release_reports(now);
        while let Some(transmit) = self.urgent.pop_front() {
            if let Some(transmit) = self.number(transmit, now) {
                return Some(transmit);
            }
        }
        self.kept.release(now, &mut self.freed);
        let urgent = self.poll_probe(now).or_else(|| self.poll_retransmission(now));
        let urgent = urgent.or_else(|| self.poll_parity(now));
        let urgent = urgent.or_else(|| self.poll_stream_frames(now));
        let packets = urgent.or_else(|| self.poll_packets(now));
        packets.or_else(|| self.poll_copy(now))
    }

    /// Assigns a packet number to an answer or report; `None` if its path cannot send it.
    fn number(&mut self, mut transmit: Transmit<B>, now: Instant) -> Option<Transmit<B>> {
        let lane = self.lane(transmit.path).filter(|lane| lane.is_open())?;
        let body = match transmit.body {
            Body::Report(report) => report.emitted_len(),
            Body::Packets { .. }
            | Body::Stream { .. }
            | Body::StreamFrames
            | Body::Bundle { .. }
            | Body::Probe(_)
            | Body::Reply(_)
            | Body::Parity { .. } => PROBE_LEN,
        };
        let bytes = (body + FRAMING) as u64;
        if !spend(lane, bytes) {
            return None;
        }
        transmit.packet_number = lane.path.on_sent(bytes, false, now);
        Some(transmit)
    }

    fn poll_probe(&mut self, now: Instant) -> Option<Transmit<B>> {
        let (used, has_other) = (self.used, self.has_no_need_of_backups());
        for lane in self.lanes.iter_mut().filter(|lane| lane.is_open()) {
            let used = Self::used_since(used, lane, has_other);
            let Some(probe) = lane.path.poll_probe(used, now) else {
                continue;
            };
            let bytes = (FRAMING + PROBE_LEN).max(usize::from(probe.outer_len)) as u64;
            if !spend(lane, bytes) {
                continue;
            }
            // A large probe that is lost says nothing about the path's life: it elicits a reply,
            // not a report that is waited for; nor does one that tests ECN.
            let is_awaited = probe.outer_len == 0 && !probe.ect;
            let packet_number = lane.path.on_sent(bytes, is_awaited, now);
            return Some(Transmit {
                path: lane.path.id,
                packet_number,
                body: Body::Probe(probe),
            });
        }
        None
    }

    fn free(&mut self, buffer: Option<B>, now: Instant) {
        let freed = buffer.and_then(|buffer| self.kept.retire(buffer, now));
        self.freed.extend(freed);
    }

    /// Processes timers at `now`.
    pub fn handle_timeout(&mut self, now: Instant) {
        let has_choice = self.active().count() > 1;
        for at in 0..self.lanes.len() {
            let path = &mut self.lanes[at].path;
            let late = path.poll_late(now);
            if has_choice && !late.is_empty() {
                let id = path.id;
                self.kept.on_late(id, late.clone(), now);
                self.on_missing_streams(id, late, now);
            }
            if !self.lanes[at].path.handle_timeout(now) {
                continue;
            }
            let path = &self.lanes[at].path;
            let (id, state) = (path.id, path.state());
            if state == State::Suspect {
                let time = keeping_time(path) + self.time_for(path.in_flight());
                let heard_of = path.heard_of();
                self.kept.on_silence(id, heard_of, time, now);
                self.on_missing_streams(id, heard_of + 1..u64::MAX, now);
            }
            self.changes.push_back((id, state));
        }
        self.counters.parity_late += self.fec.handle_timeout(now);
        self.handle_stream_timeout(now);
        while let Some(slot) = self.flows.overdue(now) {
            self.counters.expired += self.drop_packet(slot, now);
        }
        let is_stuck = !self.has_working_path();
        self.flows.sweep(is_stuck, now);
    }

    /// Returns when to call [`Self::handle_timeout`] and [`Self::poll_transmit`] again if no other
    /// event occurs before.
    #[must_use]
    pub fn poll_timeout(&self, now: Instant) -> Instant {
        let has_other = self.has_no_need_of_backups();
        let used = |lane: &Lane| Self::used_since(self.used, lane, has_other);
        self.lanes
            .iter()
            .filter(|lane| lane.is_open())
            .map(|lane| lane.path.poll_timeout(used(lane), now).min(lane.delayed.due()))
            .min()
            .unwrap_or(Instant::FAR_FUTURE)
            .min(self.wait)
            .min(self.retransmission_wait)
            .min(self.fec.due())
            .min(self.stream_due())
            .min(self.fec.next_at().max(self.parity_wait))
            .min(self.kept.due().unwrap_or(Instant::FAR_FUTURE))
            .min(self.flows.due())
    }

    /// Returns a state change that the driver has to report.
    pub fn poll_change(&mut self) -> Option<StateChange> {
        self.changes.pop_front()
    }

    /// Returns a change of policing that the driver has to report.
    pub fn poll_policed(&mut self) -> Option<PolicedChange> {
        self.policed_changes.pop_front()
    }

    /// Returns a buffer that is no longer needed.
    pub fn poll_freed(&mut self) -> Option<B> {
        self.freed.pop()
    }

    /// Ends the session and returns all buffers.
    pub fn close(&mut self) -> Vec<B> {
        let mut buffers = self.flows.drain();
        buffers.extend(self.copies.drain(..).filter_map(|copy| match copy.body {
            Body::Packets { run, last: true, .. } => Some(run.buffer),
            Body::Packets { .. }
            | Body::Stream { .. }
            | Body::StreamFrames
            | Body::Bundle { .. }
            | Body::Report(_)
            | Body::Probe(_)
            | Body::Reply(_)
            | Body::Parity { .. } => None,
        }));
        buffers.append(&mut self.freed);
        buffers.extend(self.kept.drain());
        buffers
    }
}

fn default_scheduler(class: Class, seed: u64) -> Box<dyn Scheduler> {
    scheduler::by_name(scheduler::default_of(class), seed).expect("the default schedulers have names")
}

#[cfg(test)]
mod tests;
