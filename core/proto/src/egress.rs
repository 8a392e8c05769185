//! The sending half of a session: from inner packets to numbered packets on paths.
//!
//! It joins the flow table, the schedulers and the paths. The driver offers packets with
//! [`Egress::enqueue`], tells what the receiving half heard with the `handle_*` methods, and drains
//! [`Egress::poll_transmit`]; headers and encryption are the driver's. The receiving half is
//! [`crate::ingress`]: the two share nothing, so each may have its own thread.

mod air;
mod bundling;
mod checkpoint;
mod choosing;
mod covering;
mod deadline;
mod declared;
mod intake;
mod kept;
mod lanes;
mod outlook;
mod preferring;
mod reporting;
mod retransmitting;
mod sharing;
mod shedding;
mod splitting;
mod streaming;
mod throughput;
mod transmit;

use std::collections::VecDeque;

use hawser_units::{Bytes, Duration, InnerBytes, Instant, PathId, Rate};
use hawser_wire::data::{Class, FRAMING, Feedback};
use hawser_wire::deadline::DeadlineRule;
use hawser_wire::frame::Format;
use hawser_wire::layer;
use hawser_wire::preference::Preference;

use crate::fec;
use crate::flow::{Flow, Flows};
use crate::limit::Limit;
use crate::path::control::{Company, Control};
use crate::path::{FULL_PACKET, Path, State, policing};
use crate::scheduler::{self, PathView, Scheduler, UnknownScheduler};
use choosing::Decision;
use declared::Declared;
use kept::{Kept, LONGEST_KEPT, Parcel, keeping_time};
use lanes::spend;
use sharing::Sharing;
use throughput::Throughput;

pub use declared::{Declaration, MOST_DECLARED};
pub use intake::Refused;
pub use splitting::Piece;
pub use transmit::{Body, Transmit};

/// Bytes of a probe's body: the token.
pub const PROBE_LEN: usize = 8;
/// Over this it is measured what realtime flows take: some ten packets of a slow one.
const REALTIME_OVER: Duration = Duration::from_millis(500);
/// A flow whose backlog is below this is sparse: the window does not hold its packets back.
const SPARSE: u64 = 3_000;
/// Faster sessions keep nothing for retransmission: what leaves the processor's caches costs more
/// than a rare loss. Units: bit/s.
const KEEPS_BELOW: u64 = 1_000_000_000;
/// So many packets are sent again in so long a time whatever the windows say: losses by chance.
const EXCESS_RETRANSMISSIONS: usize = 32;
const EXCESS_INTERVAL: Duration = Duration::from_millis(100);
/// When packets to be sent again are looked at again, at the soonest.
const RETRANSMISSION_RETRY: Duration = Duration::from_millis(1);
/// Packets of one report that are taken for missing: a hole that a receiver reports has at most
/// half as many. What a report costs is bounded by this: a step for each of them at most, seven for
/// each of its bytes.
const MOST_MISSING: u64 = 1024;
/// Flows that are looked at for one packet to send: the first in turn, and some of the others, in
/// rotation. More wait only where somebody opens flows to fill the table; each would cost a look
/// for each packet that is sent.
const LOOKED_AT: usize = 128;
const LOOKED_AT_BEYOND: usize = 32;

/// What happened in an [`Egress`], by count.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Segments dropped by a flow's queue discipline, to tell its sender of congestion.
    pub policed: u64,
    /// Packets dropped because no path takes their size any more.
    pub too_large: u64,
    /// Packets that were sent in pieces.
    pub split: u64,
    /// Packets that were sent in one datagram with others.
    pub bundled: u64,
    /// Packets sent again because they were reported missing.
    pub retransmitted: u64,
    /// Packets of upper layers let go for want of capacity.
    pub let_go: u64,
    /// Packets of real-time flows dropped because they would have come too late.
    pub late: u64,
    /// Packets dropped because no path took them within [`crate::flow::LONGEST_WAIT`].
    pub expired: u64,
    /// Packets dropped, the oldest first, because the driver ran out of room.
    pub shed: u64,
    /// Buffers of sent packets that were given up for the same reason: a loss among these is not
    /// retransmitted.
    pub unkept: u64,
    /// Records and flows looked at: the work that is not in proportion to packets.
    pub steps: u64,
    /// Packets followed by parity.
    pub covered: u64,
    /// Parity packets sent.
    pub parity: u64,
    /// Bytes of their UDP payload.
    pub parity_bytes: u64,
    /// Parity packets that no path took in time, or for which there was no room.
    pub parity_late: u64,
}

/// A state change of a path, for the driver to tell.
pub type StateChange = (PathId, State);

struct Lane {
    path: Path,
    /// The peer's address is known.
    reachable: bool,
    /// Bytes that may still go to an unproven address; `None` once it is proven.
    budget: Option<u64>,
    /// What it takes of a radio channel that others share.
    air: Option<air::Part>,
    /// For what it is used.
    preference: Preference,
    /// The peer has said that the network polices what it sends here.
    peer_is_policed: bool,
    /// A report that waits.
    delayed: reporting::Delayed,
    /// Whose queue it is that a call waits in.
    owner: deadline::QueueOwner,
    /// State of both directions in the last change that the driver heard of.
    told_policed: bool,
}

impl Lane {
    /// Returns whether the network polices what this side sends.
    fn is_policed(&self) -> bool {
        matches!(self.path.model().policing(), policing::State::Policed(_))
    }

    /// Whether anything may be sent at all.
    fn is_open(&self) -> bool {
        self.reachable && !self.path.is_exhausted()
    }
}

/// A change of policing on a path, in either direction, for the driver to tell.
pub type PolicedChange = (PathId, bool);

/// Whose turn it is: a flow, and its place among those that wait.
#[derive(Clone, Copy)]
struct Turn {
    skip: usize,
    slot: u16,
}

/// How packets are sent.
#[derive(Clone, Copy)]
struct Sending {
    /// Each on several paths, and so to be told from the others.
    copies: bool,
    /// The share that was lost lately, on all of them at once.
    loss: f64,
    /// The share to be reckoned with.
    expected: f64,
}

impl Sending {
    fn on<'a>(paths: impl Iterator<Item = &'a Path> + Clone, copies: bool) -> Self {
        Self {
            copies,
            loss: paths.clone().map(Path::loss).product(),
            expected: paths.map(Path::expected_loss).product(),
        }
    }
}

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
    /// What realtime flows and their parity take.
    realtime: Throughput,
    /// Real-time flows that are active.
    realtime_use: deadline::RealtimeUse,
    outlook: outlook::Outlook,
    /// What the session is held to, whatever its paths carry.
    limit: Option<Limit>,
    /// What may wait of a flow; `None`: what the paths need.
    buffer: Option<Bytes>,
    freed: Vec<B>,
    kept: Kept<B>,
    /// How long packets are kept from now on; `None`: not at all.
    keeping: Option<Duration>,
    changes: VecDeque<StateChange>,
    policed_changes: VecDeque<PolicedChange>,
    used: Instant,
    wait: Instant,
    /// When packets to be sent again may go; far away when none waits.
    retransmission_wait: Instant,
    /// Packets sent again beyond a path's window, and since when they are counted.
    excess: usize,
    excess_since: Instant,
    fec: fec::Encoder,
    /// The symbol of the parity packet that was handed out last.
    symbol: Vec<u8>,
    /// When a parity packet that found no path is to be looked at again, at the soonest.
    parity_wait: Instant,
    /// The peer has said that it understands parity packets.
    peer_takes_parity: bool,
    /// The peer has said that it understands fragments.
    peer_takes_fragments: bool,
    bundling: bundling::Bundling<B>,
    /// For the sender of the packet that came in last: the size that goes whole.
    advice: Option<u16>,
    /// Packets that may have caused such advice.
    split_at_intake: u64,
    counters: Counters,
    layer_rules: Vec<layer::Rule>,
    /// Flows whose programs have declared what they send.
    declared: Declared,
    /// What its inner packets are.
    format: Format,
    streaming: streaming::Streaming,
    /// How far the flows behind the first in turn have been looked at.
    rotation: usize,
    seed: u64,
}

impl<B: Copy> Egress<B> {
    /// An egress without paths, with the default scheduler for every class.
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
            realtime: Throughput::over(REALTIME_OVER),
            realtime_use: deadline::RealtimeUse::default(),
            outlook: outlook::Outlook::default(),
            limit: None,
            buffer: None,
            freed: Vec::new(),
            kept: Kept::new(),
            keeping: Some(LONGEST_KEPT),
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

    /// What happened so far.
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

    /// Controls all paths by this controller, those that are added too. A path whose controller
    /// changes is measured anew.
    pub fn set_control(&mut self, control: Control, now: Instant) {
        self.control = control;
        for lane in &mut self.lanes {
            lane.path.set_control(control, now);
        }
    }

    /// Bounds the buffers that are kept for retransmission: a driver whose buffers hold single
    /// packets needs more of them.
    pub fn keep_at_most(&mut self, buffers: usize) {
        self.kept.limit = buffers;
    }

    /// Bounds what may wait of a flow, to measure what a queue is worth; `None`: what the paths
    /// need. One packet may wait whatever the bound, and it may be one that is cut into many.
    pub fn set_buffer(&mut self, buffer: Option<Bytes>) {
        self.buffer = buffer;
    }

    /// Says what inner packets are; before the first comes in.
    pub fn set_format(&mut self, format: Format) {
        self.format = format;
    }

    /// Changes how packets of layered streams are known; it holds for packets that come in from now
    /// on. A flow in which a rule finds a mark is of class [`Class::Layered`] from then on.
    pub fn set_layer_rules(&mut self, rules: Vec<layer::Rule>) {
        self.layer_rules = rules;
    }

    /// Sets rules of how long packets are of use; `is_from_client`: this side is the client.
    pub fn set_deadlines(&mut self, rules: Vec<DeadlineRule>, is_from_client: bool) {
        self.flows.set_deadlines(rules, is_from_client);
    }

    /// Holds all that the session sends to a rate, zero for nothing at all; `None` lifts that. What
    /// is beyond it waits in the queues of its flows, as where paths carry no more; packets that
    /// are sent again count, and do not wait.
    pub fn set_limit(&mut self, rate: Option<Rate>) {
        if rate != self.limit.as_ref().map(Limit::rate) {
            self.limit = rate.map(Limit::new);
        }
    }

    /// Takes note of `bytes` of a packet that went.
    fn charge(&mut self, bytes: u64, now: Instant) {
        if let Some(limit) = &mut self.limit {
            limit.on_sent(bytes, now);
        }
    }

    /// Takes in the peer's report on one of our paths. What came by another path than the one it is
    /// about is ahead of a report that will: it says what is missing and for how long nothing has
    /// come, and nothing of delays.
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

    /// Lets a path know which others compete in the same queue, so that all together are one
    /// sender.
    fn couple(&mut self, id: PathId, now: Instant) {
        let mut company = Company::default();
        for other in self.sharing.with(id) {
            let lane = self.lanes.iter().find(|lane| lane.path.id == other);
            if let Some(stake) = lane.and_then(|lane| lane.path.model().stake()) {
                company.add(stake);
            }
        }
        if let Some(lane) = self.lane(id) {
            lane.path.set_company(company, now);
        }
    }

    /// Takes in the reply to a probe of ours.
    pub fn handle_probe_reply(&mut self, id: PathId, token: u64, now: Instant) {
        let changed = self
            .lane(id)
            .is_some_and(|lane| lane.path.handle_probe_reply(token, now));
        self.note(id, changed);
    }

    /// Lets the links of all paths be known to be slow.
    #[cfg(test)]
    pub(crate) fn set_slow_links(&mut self, rate: Rate, now: Instant) {
        for lane in &mut self.lanes {
            lane.path.set_slow_link(rate, now);
        }
    }

    /// The paths that carry packets.
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

    /// Gives an answer or report its packet number; `None` when its path cannot take it.
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

    fn poll_packets(&mut self, now: Instant) -> Option<Transmit<B>> {
        self.wait = Instant::FAR_FUTURE;
        if self.flows.waiting() == 0 || !self.has_way() {
            self.note_idle(now);
            return None;
        }
        let allowed = match &self.limit {
            Some(limit) => limit.credit(FULL_PACKET, now),
            None => u64::MAX,
        };
        if allowed == 0 {
            self.wait = self
                .limit
                .as_ref()
                .map_or(now, |limit| limit.ready_at(FULL_PACKET));
            self.note_idle(now);
            return None;
        }
        let target = self.target();
        let ahead = self.poll_declared(target, now);
        if ahead.is_some() {
            return ahead;
        }
        let mut skip = 0;
        let mut waits = 0;
        while let Some(slot) = self.flows.turn(skip) {
            let has_head = self.flows.get(slot).is_some_and(|flow| flow.head().is_some());
            let stream = self.flows.get(slot).and_then(Flow::stream).filter(|_| !has_head);
            if (!has_head && stream.is_none()) || self.flows.is_in_debt(slot) {
                self.flows.end_turn(skip);
                continue;
            }
            self.counters.steps += 1;
            let decision = match stream {
                Some(_) => self.choose_for_stream(slot, target, now),
                None => self.choose(slot, target, now),
            };
            match decision {
                Decision::Again => {}
                Decision::Wait(until) => {
                    self.wait = self.wait.min(until);
                    skip += 1;
                    waits += 1;
                    if waits == LOOKED_AT - LOOKED_AT_BEYOND {
                        skip = self.skip_ahead(skip);
                    } else if waits == LOOKED_AT {
                        self.wait = self.wait.min(now + RETRANSMISSION_RETRY);
                        break;
                    }
                    let bulk = self.flows.get(slot).is_some_and(|flow| flow.backlog() > SPARSE);
                    if bulk && self.views.iter().all(|view| view.window == InnerBytes(0)) && skip > 64 {
                        break;
                    }
                }
                Decision::Send { lane, count } => {
                    let count = self.within(allowed, slot, count);
                    if let Some(id) = stream {
                        match self.emit_stream(Turn { skip, slot }, id, (lane, count), now) {
                            Some(transmit) => return Some(transmit),
                            None => continue,
                        }
                    }
                    let turn = Turn { skip, slot };
                    if let Some(bundle) = self.bundle_at(slot, lane) {
                        return self.emit_bundle(turn, lane, bundle, now);
                    }
                    let sending = Sending::on([&self.lanes[lane].path].into_iter(), false);
                    return Some(self.emit(turn, lane, count, sending, now));
                }
                Decision::Duplicate(mask) => return self.emit_copies(Turn { skip, slot }, mask, now),
            }
        }
        self.note_idle(now);
        None
    }

    /// How many of `count` segments at the head of a flow go for `allowed` bytes; one at least.
    fn within(&self, allowed: u64, slot: u16, count: u16) -> u16 {
        if allowed == u64::MAX {
            return count;
        }
        let head = self.flows.get(slot).and_then(Flow::head);
        let len = head.map_or(FULL_PACKET, |run| (run.len_of(run.next) + FRAMING) as u64);
        let fits = u16::try_from(allowed / len).unwrap_or(u16::MAX);
        count.min(fits).max(1)
    }

    /// Where the rotation among the flows behind `skip` goes on.
    fn skip_ahead(&mut self, skip: usize) -> usize {
        let behind = self.flows.waiting().saturating_sub(skip);
        if behind <= LOOKED_AT_BEYOND {
            return skip;
        }
        self.rotation = (self.rotation + LOOKED_AT_BEYOND) % behind;
        skip + self.rotation
    }

    /// Everything that may go has gone: paths that could take more are not what limits the flows.
    fn note_idle(&mut self, now: Instant) {
        for lane in &mut self.lanes {
            if lane.path.credit(FULL_PACKET, now) > 0 {
                lane.path.on_idle();
            }
        }
    }

    fn free(&mut self, buffer: Option<B>, now: Instant) {
        let freed = buffer.and_then(|buffer| self.kept.retire(buffer, now));
        self.freed.extend(freed);
    }

    fn drop_head(&mut self, slot: u16, count: u16, now: Instant) {
        let freed = self.flows.skip(slot, count);
        self.free(freed, now);
    }

    /// Sends `count` segments. Packets whose order is free have places of their own, unless each
    /// has copies to be told from.
    fn emit(
        &mut self,
        Turn { skip, slot }: Turn,
        lane: usize,
        count: u16,
        Sending {
            copies,
            loss,
            expected,
        }: Sending,
        now: Instant,
    ) -> Transmit<B> {
        let flow = self.flows.get(slot).expect("the flow was chosen");
        let head = flow.head().expect("its head was chosen");
        let class = flow.class;
        let unordered = !copies && (flow.unordered || head.order_free);
        let is_retransmitted = self.keeping.is_some() && !unordered;
        let covered = self.is_to_be_covered(slot, lane, loss, is_retransmitted, now);
        if is_retransmitted && !copies && !covered {
            self.flows.compress(slot);
        }
        let mut run = *self.flows.get(slot).and_then(Flow::head).expect("as before");
        let room = self.piece_room(slot, lane, now);
        let path = &mut self.lanes[lane].path;
        let alone = run.piece_on(path, room);
        let piece = alone.or_else(|| run.split_on(path, None));
        let more_from = alone.and_then(|piece| run.rest_from(piece));
        let segments = if piece.is_some() { 1 } else { count };
        let count = piece.map_or(count, |piece| piece.count());
        self.counters.split += u64::from(piece.is_some());
        let ect = path.may_mark(run.ecn_capable, now);
        let mut packet_number = 0;
        let mut bytes = 0;
        for step in 0..count {
            let len = run.body_len(piece, step) as u64;
            let number = path.on_data_sent(len + FRAMING as u64, ect, now);
            if step == 0 {
                packet_number = number;
            }
            bytes += len;
        }
        let id = path.id;
        if self.gives_way_to_calls(slot) {
            self.lanes[lane]
                .owner
                .on_sent(packet_number + u64::from(count) - 1);
        }
        let udp = bytes + u64::from(count) * FRAMING as u64;
        self.throughput.add(udp, now);
        if class == Class::Realtime {
            self.realtime.add(udp, now);
        }
        if let Some(flow) = self.flows.get(slot) {
            self.realtime_use.on_sent(flow, now);
        }
        self.charge(udp, now);
        // The first piece takes the place of all.
        let places = if run.begun.is_some() { 0 } else { segments };
        let next = self.flows.on_sent(slot, (places, unordered), bytes, id.0, now);
        let sequence = run.begun.map_or(next, |(_, place)| place);
        let cover = fec::Cover {
            loss: expected,
            path: id,
        };
        let covered = covered && piece.is_none() && self.fec.plan(slot, cover, count, now);
        self.account_declared(slot, bytes, now);
        let done = match more_from {
            Some(from) => {
                self.flows.on_piece(slot, from, sequence);
                None
            }
            None => self.flows.advance(slot, segments),
        };
        self.flows.end_turn(skip);
        // Nobody waits for a missing packet of a flow without order, and its receiver could not
        // tell the retransmission from a copy. To TCP an acknowledgement that comes twice does no
        // harm, and one that a dying path swallowed may be the last. A picture is shown some time
        // after it was sent, others build on it, and RTP tells copies by their numbers (RFC 3550).
        let is_wanted = !unordered || run.order_free || class == Class::Layered;
        if let Some(time) = self.keeping.filter(|_| is_wanted) {
            let parcel = Parcel {
                run,
                piece,
                flow: slot,
                class,
                unordered,
                sequence,
            };
            self.kept.keep(
                id,
                packet_number..packet_number + u64::from(count),
                parcel,
                now + time,
            );
        }
        let backed = self.keeping.is_some();
        let last = done.and_then(|buffer| self.kept.retire(buffer, now)).is_some();
        let body = Body::Packets {
            run,
            count,
            ect,
            piece,
            flow: slot,
            class,
            unordered,
            backed,
            retransmission: false,
            sequence,
            covered,
            last,
        };
        Transmit {
            path: id,
            packet_number,
            body,
        }
    }

    /// Sends one segment on several paths; the buffer is freed with the last copy. Copies pass the
    /// receiver's resequencer whatever the flow: it delivers one of them.
    fn emit_copies(&mut self, turn: Turn, mask: u64, now: Instant) -> Option<Transmit<B>> {
        let mut views: Vec<usize> = (0..self.views.len())
            .filter(|bit| mask & (1 << bit) != 0)
            .collect();
        let head = self.flows.get(turn.slot).and_then(Flow::head);
        let len = head.map_or(0, |run| run.len_of(run.next));
        if views.iter().any(|view| len > usize::from(self.views[*view].mtu)) {
            // A packet that is split has no copies, so it goes where it arrives first.
            views.sort_by_key(|view| self.views[*view].arrival(now));
        }
        let lanes: Vec<usize> = views.into_iter().map(|view| self.view_lanes[view]).collect();
        let (first, mut others) = lanes.split_first()?;
        let sending = Sending::on(lanes.iter().map(|lane| &self.lanes[*lane].path), true);
        let mut transmit = self.emit(turn, *first, 1, sending, now);
        let mut copy = transmit.body;
        let Body::Packets {
            run,
            piece,
            class,
            last,
            ..
        } = &mut transmit.body
        else {
            return Some(transmit);
        };
        let is_realtime = *class == Class::Realtime;
        let release = core::mem::take(last);
        if let Body::Packets { covered, last, .. } = &mut copy {
            (*covered, *last) = (false, false);
        }
        let bytes = (run.len_of(run.next) + FRAMING) as u64;
        if piece.is_some() {
            // Pieces of the first path's size may not fit the others.
            others = &[];
        }
        for lane in others {
            let path = &mut self.lanes[*lane].path;
            let may_mark = path.may_mark(run.ecn_capable, now);
            let packet_number = path.on_data_sent(bytes, may_mark, now);
            if let Body::Packets { ect, .. } = &mut copy {
                *ect = may_mark;
            }
            let id = path.id;
            self.charge(bytes, now);
            if is_realtime {
                self.realtime.add(bytes, now);
            }
            self.copies.push_back(Transmit {
                path: id,
                packet_number,
                body: copy,
            });
        }
        let freeing = self.copies.back_mut().unwrap_or(&mut transmit);
        if let Body::Packets { last, .. } = &mut freeing.body {
            *last = release;
        }
        Some(transmit)
    }

    /// Lets time pass.
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
        let is_stuck = !self.has_way();
        self.flows.sweep(is_stuck, now);
    }

    /// When to call [`Self::handle_timeout`] and [`Self::poll_transmit`] again, if nothing else
    /// happens before.
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

    /// A state change to tell.
    pub fn poll_change(&mut self) -> Option<StateChange> {
        self.changes.pop_front()
    }

    /// A change of policing to tell.
    pub fn poll_policed(&mut self) -> Option<PolicedChange> {
        self.policed_changes.pop_front()
    }

    /// A buffer that is not needed any more.
    pub fn poll_freed(&mut self) -> Option<B> {
        self.freed.pop()
    }

    /// Ends the session: gives all buffers back.
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
