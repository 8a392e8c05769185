//! Selection of the next packet and its path: the scheduler's input, and the execution of its
//! answer.

use hawser_units::{Bytes, Duration, InnerBytes, Instant, PredictedRate, Rate, UdpBytes};
use hawser_wire::data::{Class, FRAMING};

use super::preferring::in_use;
use super::{Egress, SPARSE};
use crate::flow::{Flow, layer_bit};
use crate::path::{FULL_PACKET, Path, State};
use crate::scheduler::{Choice, Demand, PathView};

/// Excess of the congestion window that sparse flows may use, unless a quarter of the window is
/// more: a flood of single packets is limited like any other flow. No suite of
/// docs/notebook/path-model.md, "Sensitivity", changes by more than 3 % with half or twice of it.
const SPARSE_EXTRA: u64 = 8 * FULL_PACKET;
/// Time for which sparse flows may exceed the congestion window on a link that is known to be slow:
/// the transmission time of [`SPARSE_EXTRA`] at 3 Mbit/s, the highest rate of such a link. Source:
/// docs/notebook/path-model.md, "A packet's own time on a slow link", has the losses of layered
/// streams with and without it.
const SPARSE_TIME: Duration = Duration::from_millis(31);
/// Share of a path's rate from which real-time flows fill it. Source: 0.1 and 0.8 compared over 17
/// drawn worlds (docs/notebook/worlds.md): with 0.1, transfers get less in four of them.
const FILLED: f64 = 0.8;
/// Share of a path's rate that is assumed to remain for other flows, at least. Source: our choice:
/// the rate of a path that only real-time flows use is known as what they take, so nothing would
/// remain.
const LEFT_MIN: f64 = 0.05;
/// Bounds of one flow's queue, independent of the rate. No suite of docs/notebook/path-model.md,
/// "Sensitivity", changes by more than 3 % with half or twice of either.
const QUEUE_MIN: u64 = 512 * 1024;
const QUEUE_MAX: u64 = 16 * 1024 * 1024;
/// Maximum wait of a packet for a session's rate limit: a lowered limit leaves no queue of the old
/// rate behind, which would delay everything for many seconds. Source: our choice, more than any
/// queue that a limit that stays the same builds; half and twice of it change no suite of
/// docs/notebook/path-model.md, "Sensitivity", by more than 3 %.
const LIMITED_WAIT: Duration = Duration::from_millis(1_500);
/// Queue of a flow on slow links that causes no congestion signal. Units: bytes. Source: RFC 8289
/// has a packet at least, and a transfer needs four to recover from a loss without a timeout (RFC
/// 5681 section 3.2): with fewer, retransmissions were dropped again, for minutes.
const SLOW_BACKLOG: u64 = 4 * FULL_PACKET;
/// Largest packet that arrives for segmentation. Source: the total length of an IPv4 packet has 16
/// bits (RFC 791 section 3.1).
const LARGE: Bytes = Bytes(64 << 10);

/// Decision about the head of a flow's queue.
pub(super) enum Decision {
    Again,
    Wait(Instant),
    Send { lane: usize, count: u16 },
    Duplicate(u64),
}

/// Permission of packets to exceed the window and the pacing of a path by a little.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Excess {
    /// Permits nothing.
    None,
    /// Permits it while real-time flows do not exceed the cap of the path: they could take several
    /// times the cap.
    WithinCap,
    /// Permits it beyond a cap too: acknowledgements and requests are few bytes.
    Any,
}

impl<B: Copy> Egress<B> {
    /// Returns how long a packet may wait at the entrance before its flow receives a congestion
    /// signal: long enough for one flow to fill every path while its window recovers, and to bridge
    /// the difference of the paths' delays.
    pub(super) fn target(&self) -> Duration {
        let round_trip = self
            .active()
            .map(|path| path.model().round_trip())
            .max()
            .unwrap_or_default();
        let delays = || self.active().filter_map(|path| path.relative_delay_us());
        let spread = match (delays().max(), delays().min()) {
            (Some(most), Some(least)) => {
                Duration::from_micros(u64::from(most.wrapping_sub(least).unsigned_abs()))
            }
            _ => Duration::ZERO,
        };
        // The delay by a limit is not part of any path's round trip, and its packets are large: the
        // target of a queue is at least the time of one of its packets (RFC 8289 section 4.3).
        let limit = self.limit.as_ref();
        let large = limit.map_or(Duration::ZERO, |limit| limit.rate().time_for(LARGE));
        // CUBIC falls to 0.7 of its window: 0.43 of a round trip keep the paths busy meanwhile.
        (round_trip * 2)
            .max(large)
            .clamp(Duration::from_millis(5), Duration::from_millis(100))
            .max(round_trip / 2)
            + spread.min(Duration::from_millis(200))
    }

    /// Returns whether a flow's queue is as short as possible where every path is slow: a transfer
    /// that reduced its rate for less would have nothing left to send.
    fn is_short_on_slow_links(&self, backlog: u64) -> bool {
        let mut links = self.active().map(|path| path.model().link());
        backlog <= SLOW_BACKLOG && links.all(|link| link.is_some())
    }

    /// Returns how many bytes may wait at the entrance in all before any flow receives a congestion
    /// signal: what the paths transfer at their peak rate in the target, plus the present deficit
    /// against that rate. Where a modem's rate falls to a tenth for one second, or a network is
    /// away for two, a queue that is long in time is what fills the link on its return; and a
    /// packet dropped from such a queue is missing until all packets behind it have been sent.
    ///
    /// Units: bytes.
    fn exempt(&self, target: Duration, now: Instant) -> u64 {
        let rate = |path: &Path| {
            let carries = if path.state() == State::Active {
                path.model().rate().as_bps()
            } else {
                0
            };
            (2 * path.recent_peak(now).as_bps()).saturating_sub(carries)
        };
        let rate = self.paths().map(rate).sum();
        self.limited(Rate::from_bps(rate)).bytes_in(target).0
    }

    /// A rate of the paths, or the session's limit where that is less.
    pub(super) fn limited(&self, rate: Rate) -> Rate {
        let limit = self.limit.as_ref();
        limit.map_or(rate, |limit| rate.min(limit.rate()))
    }

    pub(super) fn queue_limit(&self) -> u64 {
        if let Some(buffer) = self.buffer {
            return buffer.0;
        }
        let rate = self
            .lanes
            .iter()
            .map(|lane| lane.path.model().rate().as_bps())
            .sum();
        let time = self.target() * 3 + Duration::from_millis(20);
        let rate = self.limited(Rate::from_bps(rate));
        rate.bytes_in(time).0.clamp(QUEUE_MIN, QUEUE_MAX)
    }

    /// Decides about the head of a flow or, if the head waits and belongs to a layered stream,
    /// about the next packet of another layer, which then becomes the head.
    pub(super) fn choose(&mut self, slot: u16, target: Duration, now: Instant) -> Decision {
        let mut layers = 0;
        let mut earliest = Instant::FAR_FUTURE;
        loop {
            let head = self.flows.get(slot).and_then(Flow::head);
            let layer = head.and_then(|run| run.layer);
            let decision = self.choose_for_head(slot, target, now);
            let (Decision::Wait(until), Some(layer)) = (&decision, layer) else {
                return decision;
            };
            earliest = earliest.min(*until);
            layers |= layer_bit(layer);
            if !self.flows.bring_forward(slot, layers) {
                self.flows.bring_oldest_forward(slot);
                return Decision::Wait(earliest);
            }
        }
    }

    fn choose_for_head(&mut self, slot: u16, target: Duration, now: Instant) -> Decision {
        let Some(flow) = self.flows.get(slot) else {
            return Decision::Again;
        };
        let Some(run) = flow.head().copied() else {
            return Decision::Again;
        };
        let (class, backlog) = (flow.class, flow.backlog());
        let is_last = backlog <= u64::from(run.cut.packet_len());
        if self.limit.is_some() && !is_last && now.since(run.since) > LIMITED_WAIT {
            self.counters.expired += self.drop_packet(slot, now);
            return Decision::Again;
        }
        let declared = self.keeps_to_declared(slot, now);
        // A transfer without a backlog is held back by its own window, not by ours.
        let sparse = (backlog < SPARSE && class != Class::Bulk) || declared.is_some();
        let len = run.len_of(run.next) as u32;
        let excess = match (sparse, class) {
            (false, _) => Excess::None,
            (true, Class::Realtime) => Excess::WithinCap,
            (true, _) => Excess::Any,
        };
        let usable = self.build_views_for(len, excess, now);
        if class == Class::Bulk {
            self.leave_out_expensive(u64::from(len) + FRAMING as u64, now);
        }
        self.leave_to_realtime(class, now);
        self.spare_sooner_flows(slot, class, now);
        if class == Class::Layered {
            self.limit_layered_queue(now);
        }
        self.hold_for_bundle(slot, now);
        let more_at = self.leave_out_unwanted(class, run.since, target, now);
        // The layers of a stream have paths of their own.
        if let Some(at) = declared.filter(|_| class != Class::Layered) {
            self.leave_out_unallocated(at, now);
        }
        if self.views.is_empty() {
            if usable && self.fits_nowhere(len) {
                // Its size was right when it came in, but the path that took it is gone, or takes
                // less than was hoped, and the peer does not know fragments.
                self.counters.too_large += u64::from(run.left());
                self.drop_head(slot, run.left(), now);
                return Decision::Again;
            }
            return Decision::Wait(Instant::FAR_FUTURE);
        }
        if self.drop_late(slot, now) {
            return Decision::Again;
        }
        let is_exempt = now.since(run.since) >= target
            && (self.flows.backlog() <= self.exempt(target, now) || self.is_short_on_slow_links(backlog));
        let (freed, dropped) = self.flows.police(slot, target, is_exempt, now);
        self.free(freed, now);
        if dropped {
            self.counters.policed += 1;
            return Decision::Again;
        }
        let whole = self
            .views
            .iter()
            .map(|view| u32::from(view.mtu))
            .min()
            .unwrap_or(len);
        let is_split = len > whole;
        let len = len.min(whole);
        let demand = Demand {
            flow: slot,
            len,
            packets: run.left(),
            sustained: class == Class::Bulk,
            backlog: InnerBytes(self.flows.backlog_until(slot)),
            throughput: self.throughput.rate(now),
            layer: run.layer,
            is_call: self.flows.get(slot).is_some_and(Flow::is_call),
        };
        match self.schedulers[class as usize].choose(&demand, &self.views, now) {
            Choice::Wait(until) => Decision::Wait(until.min(more_at.unwrap_or(until))),
            Choice::Drop => {
                self.counters.let_go += 1;
                self.drop_head(slot, 1, now);
                Decision::Again
            }
            Choice::Duplicate(mask) if mask != 0 => Decision::Duplicate(mask),
            Choice::Duplicate(_) => Decision::Wait(Instant::FAR_FUTURE),
            Choice::Send { path, packets } => {
                let Some(view) = self.views.get(path) else {
                    return Decision::Wait(Instant::FAR_FUTURE);
                };
                let fits = (view.window.0 / u64::from(len.max(1))).clamp(1, 64) as u16;
                // The mark is for one packet alone.
                let most = if run.mark || is_split { 1 } else { run.left() };
                let count = packets.min(most).min(fits).max(1);
                Decision::Send {
                    lane: self.view_lanes[path],
                    count,
                }
            }
        }
    }

    /// Reduces the rates of paths that real-time flows fill by what they take, for flows of another
    /// class: real-time packets are sent first, so such a path is not worth waiting for, however
    /// near it is.
    pub(super) fn leave_to_realtime(&mut self, class: Class, now: Instant) {
        if matches!(class, Class::Realtime | Class::Layered) || !self.has_realtime(now) {
            return;
        }
        for (view, lane) in self.views.iter_mut().zip(&self.view_lanes) {
            let lane = &self.lanes[*lane];
            let taken = lane.realtime.rate(now).as_bps() as f64;
            let rate = view.later.rate();
            let rate = lane.path.cap().map_or(rate, |cap| rate.min(cap)).as_bps() as f64;
            if taken < FILLED * rate || rate == 0.0 {
                continue;
            }
            let left = (1.0 - taken / rate).max(LEFT_MIN);
            view.soon = view.soon.scale(left);
            view.later = view.later.scale(left);
        }
    }

    /// Returns the throughput of real-time flows over all paths.
    pub(super) fn realtime_rate(&self, now: Instant) -> Rate {
        let rates = self.lanes.iter().map(|lane| lane.realtime.rate(now).as_bps());
        Rate::from_bps(rates.sum())
    }

    /// Removes the views of unwanted lanes, by the index of the lane.
    pub(super) fn leave_out(&mut self, is_unwanted: impl Fn(&Self, usize) -> bool) {
        for view in (0..self.views.len()).rev() {
            if is_unwanted(self, self.view_lanes[view]) {
                self.views.remove(view);
                self.view_lanes.remove(view);
            }
        }
    }

    /// Fills `views` with the paths that may transfer a packet of `len` bytes. Returns whether any
    /// path is usable at all.
    pub(super) fn build_views(&mut self, len: u32, excess: Excess, now: Instant) -> bool {
        self.views.clear();
        self.view_lanes.clear();
        let nearest = nearest(in_use(&self.lanes).map(|(_, lane)| &lane.path));
        let udp = u64::from(len) + FRAMING as u64;
        let mut any = false;
        for (at, lane) in in_use(&self.lanes).take(64) {
            any = true;
            if u32::from(lane.path.mtu()) < len {
                continue;
            }
            let path = &lane.path;
            let window = path.model().window();
            let link = path.model().link();
            let extra = link.map_or(SPARSE_EXTRA, |link| {
                link.bytes_in(SPARSE_TIME).0.min(SPARSE_EXTRA)
            });
            let is_permitted = match excess {
                Excess::None => false,
                Excess::WithinCap => path.cap().is_none_or(|cap| lane.realtime.rate(now) <= cap),
                Excess::Any => true,
            };
            let sparse = is_permitted && path.in_flight() < window.saturating_add((window / 4).max(extra));
            let half = path.model().base_round_trip() / 2;
            let delay = match (nearest, path.relative_delay_us()) {
                (Some((nearest, least)), Some(own)) => {
                    let base = nearest.model().base_round_trip() / 2;
                    base + Duration::from_micros(u64::from(own.wrapping_sub(least).unsigned_abs()))
                }
                _ => half,
            };
            let link = link.filter(|_| sparse).map(PredictedRate::steady);
            let credit = path.credit(udp, now);
            let window = UdpBytes(credit).inner(UdpBytes(udp), FRAMING as u64);
            self.views.push(PathView {
                id: path.id,
                window: if sparse {
                    window.max(InnerBytes(u64::from(len)))
                } else {
                    window
                },
                ready_at: self
                    .air_free_at(at, now)
                    .max(if sparse { now } else { path.ready_at(udp, now) }),
                soon: link.unwrap_or(path.model().soon()),
                later: link.unwrap_or(path.model().later()),
                packets_in_flight: path.packets_in_flight(),
                delay: delay + path.queueing(now),
                round_trip: path.model().round_trip(),
                mtu: path.mtu(),
                loss: path.loss(),
                late: path.late_share(),
                retransmitted_after: path.retransmitted_after(),
                is_growing: path.model().is_growing(),
            });
            self.view_lanes.push(at);
        }
        any
    }
}

/// The path of the least one-way delay, and that delay up to the constant that all share; none
/// before delays are known.
pub(super) fn nearest<'a>(paths: impl Iterator<Item = &'a Path>) -> Option<(&'a Path, i32)> {
    // Delays are between two clocks, and wrap.
    paths
        .filter_map(|path| Some((path, path.relative_delay_us()?)))
        .reduce(|least, own| {
            if own.1.wrapping_sub(least.1) < 0 {
                own
            } else {
                least
            }
        })
}
