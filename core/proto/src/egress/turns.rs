//! Transmission of flows' packets: which flow sends next, how much of it, over which path, and the
//! records that a transmission leaves.

use hawser_units::{InnerBytes, Instant};
use hawser_wire::data::{Class, FRAMING};

use super::choosing::Decision;
use super::retransmission_buffer::Parcel;
use super::{Body, EXAMINED, EXAMINED_BEYOND, Egress, RETRANSMISSION_RETRY, SPARSE, Transmit};
use crate::fec;
use crate::flow::Flow;
use crate::path::{FULL_PACKET, Path};

/// Turn of a flow, and its position among the waiting flows.
#[derive(Clone, Copy)]
pub(super) struct Turn {
    pub(super) skip: usize,
    pub(super) slot: u16,
}

/// Forms of transmission.
#[derive(Clone, Copy)]
pub(super) struct Sending {
    /// Each packet is sent on several paths, so the receiver must recognise copies.
    copies: bool,
    /// Share of packets that were recently lost on all of these paths at once.
    loss: f64,
    /// Share of packets to expect as lost on all of these paths at once.
    expected: f64,
}

impl Sending {
    pub(super) fn on<'a>(paths: impl Iterator<Item = &'a Path> + Clone, copies: bool) -> Self {
        Self {
            copies,
            loss: paths.clone().map(Path::loss).product(),
            expected: paths.map(Path::expected_loss).product(),
        }
    }
}

impl<B: Copy> Egress<B> {
    pub(super) fn poll_packets(&mut self, now: Instant) -> Option<Transmit<B>> {
        self.wait = Instant::FAR_FUTURE;
        if self.flows.waiting() == 0 || !self.has_working_path() {
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
                    if waits == EXAMINED - EXAMINED_BEYOND {
                        skip = self.skip_ahead(skip);
                    } else if waits == EXAMINED {
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

    /// Returns how many of `count` segments at the head of a flow fit into `allowed` bytes; at
    /// least one.
    fn within(&self, allowed: u64, slot: u16, count: u16) -> u16 {
        if allowed == u64::MAX {
            return count;
        }
        let head = self.flows.get(slot).and_then(Flow::head);
        let len = head.map_or(FULL_PACKET, |run| (run.len_of(run.next) + FRAMING) as u64);
        let fits = u16::try_from(allowed / len).unwrap_or(u16::MAX);
        count.min(fits).max(1)
    }

    /// Returns the position at which the rotation among the flows behind `skip` continues.
    fn skip_ahead(&mut self, skip: usize) -> usize {
        let behind = self.flows.waiting().saturating_sub(skip);
        if behind <= EXAMINED_BEYOND {
            return skip;
        }
        self.rotation = (self.rotation + EXAMINED_BEYOND) % behind;
        skip + self.rotation
    }

    /// Records that everything that may be sent has been sent, so paths with capacity left do not
    /// limit the flows.
    fn note_idle(&mut self, now: Instant) {
        for lane in &mut self.lanes {
            if lane.path.credit(FULL_PACKET, now) > 0 {
                lane.path.on_idle();
            }
        }
    }

    pub(super) fn drop_head(&mut self, slot: u16, count: u16, now: Instant) {
        let freed = self.flows.skip(slot, count);
        self.free(freed, now);
    }

    /// Sends `count` segments. Unordered packets use their own sequence number space, unless copies
    /// of them are sent: then the receiver recognises copies by the flow's sequence numbers.
    pub(super) fn emit(
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
        if self.yields_to_calls(slot) {
            self.lanes[lane]
                .owner
                .on_sent(packet_number + u64::from(count) - 1);
        }
        let udp = bytes + u64::from(count) * FRAMING as u64;
        self.throughput.add(udp, now);
        if class == Class::Realtime {
            self.lanes[lane].realtime.add(udp, now);
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
        // No receiver waits for a missing packet of an unordered flow, and it could not tell the
        // retransmission from a copy. A duplicate acknowledgement does no harm to TCP, and one that
        // a failing path dropped may be the last. A picture is displayed some time after it was
        // sent, later pictures depend on it, and RTP detects copies by their sequence numbers (RFC
        // 3550).
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

    /// Sends one segment on several paths; the buffer is released with the last copy. The
    /// receiver's resequencer delivers one of the copies, for every flow.
    pub(super) fn emit_copies(&mut self, turn: Turn, mask: u64, now: Instant) -> Option<Transmit<B>> {
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
                self.lanes[*lane].realtime.add(bytes, now);
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
}
