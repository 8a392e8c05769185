//! Selection of the packets that parity packets protect, and of the paths of parity packets.

use hawser_units::{Bytes, Instant, Rate};
use hawser_wire::data::{Class, FRAMING};

use super::choosing::Excess;
use super::{Body, Egress, RETRANSMISSION_RETRY, Transmit};
use crate::fec::{SPAN, TOLERATED};
use crate::scheduler::LOSS_DETECTION;

/// Share of the paths' rate up to which parity packets are sent (docs/notebook/live.md, "Parity
/// where there is little room").
const ROOM: f64 = 0.9;

impl<B: Copy> Egress<B> {
    /// Returns whether parity follows the head of a flow that is sent on this path, or on several,
    /// and is lost with probability `loss`; `is_retransmitted`: the packet is retransmitted when
    /// reported missing. A packet that waited too long at the entrance belongs to a flow that uses
    /// all capacity, so parity would use what it recovers.
    pub(super) fn is_to_be_covered(
        &self,
        slot: u16,
        lane: usize,
        loss: f64,
        is_retransmitted: bool,
        now: Instant,
    ) -> bool {
        let Some(flow) = self.flows.get(slot).filter(|flow| flow.class == Class::Realtime) else {
            return false;
        };
        let must_wait = flow
            .head()
            .is_none_or(|run| now.since(run.since) > self.target().max(SPAN));
        let comes_again = self.lanes[lane].path.model().round_trip() + LOSS_DETECTION <= SPAN;
        self.peer_takes_parity && loss > TOLERATED && !must_wait && !(is_retransmitted && comes_again)
    }

    /// Adds the packets of a transmit that is to be covered by parity; `packet` is what was queued.
    ///
    /// # Panics
    /// When `packet` is another.
    pub fn cover(&mut self, transmit: &Transmit<B>, packet: &[u8], now: Instant) {
        let Body::Packets {
            run,
            count,
            covered: true,
            ..
        } = transmit.body
        else {
            return;
        };
        let mut segment = Vec::new();
        for step in 0..count {
            let index = run.next + step;
            segment.resize(run.len_of(index), 0);
            run.emit(packet, index, &mut segment);
            self.fec.push(&transmit.body.header(step, now), &segment, now);
        }
        self.counters.covered += u64::from(count);
    }

    /// Returns whether the paths have more capacity than real-time flows and their parity use,
    /// since other flows yield to them. Without spare capacity packets are lost by overload, and
    /// parity would replace the packets that it should recover, or cause their loss.
    fn has_room_for_parity(&self, now: Instant) -> bool {
        let rates = self
            .lanes
            .iter()
            .map(|lane| lane.path.model().soon().rate().as_bps());
        let carried = Rate::from_bps(rates.sum());
        carried == Rate::ZERO || self.realtime_rate(now) < carried.scale(ROOM)
    }

    /// Returns whether a parity packet of this size that is useless when sent after `until` passes
    /// a link at most [`SPAN`] later: on a slow link its own transmission time counts, and the
    /// queue before it, where it would delay the packets that it should recover.
    fn arrives_in_time(&self, lane: usize, bytes: u64, until: Instant, now: Instant) -> bool {
        let path = &self.lanes[lane].path;
        path.model().link().is_none_or(|link| {
            let passed = now + path.queueing(now) + link.time_for(Bytes(bytes));
            passed <= until + SPAN
        })
    }

    /// The symbol of the parity packet that was handed out last.
    #[must_use]
    pub fn symbol(&self) -> &[u8] {
        &self.symbol
    }

    /// A parity packet whose time has come, on another path than what it covers where one is not
    /// much later, or else where it arrives first. Like a packet of a sparse flow it may go a
    /// little beyond the window; it counts like any.
    pub(super) fn poll_parity(&mut self, now: Instant) -> Option<Transmit<B>> {
        if now < self.parity_wait {
            return None;
        }
        let outgoing = self.fec.peek(now)?;
        let (len, covered_on) = (outgoing.len(), outgoing.covered_on);
        let until = outgoing.until;
        self.build_views(len as u32, Excess::WithinCap, now);
        let arrivals = || self.views.iter().map(|view| view.arrival(now));
        let earliest = arrivals().min().filter(|_| self.has_room_for_parity(now));
        let Some(earliest) = earliest else {
            // Too long for any path, or there is none, or no room.
            self.fec.pop();
            self.counters.parity_late += 1;
            return self.poll_parity(now);
        };
        let usable = (0..self.views.len()).filter(|at| {
            let view = &self.views[*at];
            let is_in_time = self.arrives_in_time(self.view_lanes[*at], (len + FRAMING) as u64, until, now);
            view.is_ready(now) && view.arrival(now) <= earliest + SPAN && is_in_time
        });
        let best = usable.min_by_key(|at| {
            let view = &self.views[*at];
            (view.id == covered_on, view.arrival(now))
        });
        let Some(best) = best else {
            self.parity_wait = now + RETRANSMISSION_RETRY;
            return None;
        };
        let outgoing = self.fec.pop()?;
        let udp = (len + FRAMING) as u64;
        let lane = &mut self.lanes[self.view_lanes[best]];
        let packet_number = lane.path.on_sent(udp, true, now);
        let path = lane.path.id;
        lane.realtime.add(udp, now);
        self.charge(udp, now);
        self.counters.parity += 1;
        self.counters.parity_bytes += udp;
        self.symbol = outgoing.symbol;
        let body = Body::Parity {
            inner: outgoing.inner,
            parity: outgoing.parity,
        };
        Some(Transmit {
            path,
            packet_number,
            body,
        })
    }
}
