//! Retransmission of packets: selection of the packets, their time and their path.

use hawser_units::{Bytes, Duration, Instant, Rate};
use hawser_wire::data::{FRAMING, Feedback};

use super::choosing::Excess;
use super::retransmission_buffer::{MAX_FAILED_PATH_BUFFERING, Parcel, Wanted};
use super::{
    Body, EXCESS_INTERVAL, EXCESS_RETRANSMISSIONS, Egress, MAX_MISSING, RETRANSMISSION_RETRY, Transmit,
};

impl<B: Copy> Egress<B> {
    /// Marks the packets that a report names as missing for retransmission, up to [`MAX_MISSING`]
    /// packets.
    pub(super) fn on_missing(&mut self, report: &Feedback, now: Instant) {
        let Some(lane) = self.lanes.iter_mut().find(|lane| lane.path.id == report.path) else {
            return;
        };
        let mut left = MAX_MISSING;
        for (first, count) in report.missing.ranges(report.highest) {
            let count = u64::from(count).min(left);
            left -= count;
            let path = &mut lane.path;
            self.kept
                .on_missing(report.path, first..first + count, now, |packet_number| {
                    path.on_missing(packet_number, now);
                });
            self.streaming
                .sending
                .on_missing(report.path, first..first + count, |packet_number| {
                    path.on_missing(packet_number, now);
                });
        }
        self.settle_streams(now);
    }

    /// Returns a retransmission on the path where it arrives first. A few may exceed the congestion
    /// windows, since they have left their own path's window; the contents of a failed path obey
    /// them.
    pub(super) fn poll_retransmission(&mut self, now: Instant) -> Option<Transmit<B>> {
        self.retransmission_wait = Instant::FAR_FUTURE;
        if now.since(self.excess_since) >= EXCESS_INTERVAL {
            (self.excess, self.excess_since) = (0, now);
        }
        let is_few = self.kept.wanted() <= EXCESS_RETRANSMISSIONS && self.excess < EXCESS_RETRANSMISSIONS;
        let mut wanted = self.next_that_fits(now)?;
        let len = wanted.parcel.run.body_len(wanted.parcel.piece, 0);
        let is_few = is_few && !self.has_slow_call(now);
        let excess = if is_few { Excess::Any } else { Excess::None };
        self.build_views_for(len as u32, excess, now);
        self.spare_sooner_flows(wanted.parcel.flow, wanted.parcel.class, now);
        let id = |at: &usize| self.lanes[self.view_lanes[*at]].path.id;
        let best = (0..self.views.len()).min_by_key(|at| {
            let is_silent = wanted.silent == Some(id(at));
            (is_silent, self.views[*at].arrival(now))
        });
        let Some(best) = best.filter(|best| is_few || self.views[*best].is_ready(now)) else {
            self.retransmission_wait = best.map_or(now + RETRANSMISSION_RETRY, |best| {
                self.views[best].ready_at.max(now + RETRANSMISSION_RETRY)
            });
            self.kept.put_back(wanted);
            return None;
        };
        let path = &mut self.lanes[self.view_lanes[best]].path;
        let Parcel { run, piece, .. } = &mut wanted.parcel;
        *piece = run.split_on(path, *piece);
        let count = piece.map_or(1, |piece| piece.count());
        let ect = path.may_mark(run.ecn_capable, now);
        let mut numbers = None;
        let mut total = 0;
        for step in 0..count {
            let bytes = (run.body_len(*piece, step) + FRAMING) as u64;
            self.excess += usize::from(path.credit(bytes, now) < bytes);
            let number = path.on_data_sent(bytes, ect, now);
            numbers.get_or_insert(number);
            total += bytes;
        }
        let path = path.id;
        let packet_number = numbers.expect("one datagram at least");
        self.charge(total, now);
        let numbers = packet_number..packet_number + u64::from(count);
        self.kept.keep_again(path, numbers, &wanted);
        self.counters.retransmitted += 1;
        let Parcel {
            run,
            piece,
            flow,
            class,
            unordered,
            sequence,
        } = wanted.parcel;
        let body = Body::Packets {
            run,
            count,
            ect,
            piece,
            flow,
            class,
            unordered,
            backed: true,
            retransmission: true,
            sequence,
            covered: false,
            last: false,
        };
        Some(Transmit {
            path,
            packet_number,
            body,
        })
    }

    /// Returns the next packet to retransmit; drops those that are now too large for every path.
    fn next_that_fits(&mut self, now: Instant) -> Option<Wanted<B>> {
        loop {
            let wanted = self.kept.next(now)?;
            let len = wanted.parcel.run.body_len(wanted.parcel.piece, 0) as u32;
            if !self.has_working_path() || !self.fits_nowhere(len) {
                return Some(wanted);
            }
            self.counters.too_large += 1;
        }
    }

    /// Returns how long the active paths need to transfer `bytes` beside new packets; at most
    /// [`MAX_FAILED_PATH_BUFFERING`].
    pub(super) fn time_for(&self, bytes: u64) -> Duration {
        let rate = self.active().map(|path| path.model().rate().as_bps()).sum();
        Rate::from_bps(rate)
            .time_for(Bytes(2 * bytes))
            .min(MAX_FAILED_PATH_BUFFERING)
    }
}
