//! Deadlines of real-time packets: a packet that cannot arrive in time is not sent.
//!
//! A packet of a call that arrives too late is useless, and its transmission delays the packets
//! behind it. Before a packet of a flow with a delay budget ([`Flow::budget`]) is offered to a
//! scheduler, its arrival over the best path is predicted from the path models. If the arrival
//! exceeds the budget and a newer packet of the flow waits behind it, the packet is dropped.
//!
//! ```text
//!   age + earliest arrival over any path  >  delay of the nearest path + budget   -->  dropped
//! ```
//!
//! While such a flow is active, bulk flows and flows with a larger budget do not use a path whose
//! queue exceeds a part of the budget: packets in flight cannot be withdrawn when the rate of the
//! path falls.
//!
//! The last packet of a queue is sent in any case, because the prediction may be wrong and no newer
//! packet would replace it. If a program has declared a deadline for its packets
//! ([`super::Declaration`]), or a rule sets one ([`Flow::deadline`]), the bound applies to every
//! packet, from its arrival on.

use hawser_units::{Duration, InnerBytes, Instant};
use hawser_wire::data::{Class, FRAMING};

use super::choosing::nearest;
use super::preferring::in_use;
use super::splitting::MIN_PIECE;
use super::{Egress, Lane};
use crate::flow::Flow;
use crate::flow::behaviour::{CALL_BUDGET, VIDEO_BUDGET};
use crate::path::Path;

/// The times at which packets of real-time flows were sent last, by budget.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct RealtimeUse {
    call: Option<Instant>,
    video: Option<Instant>,
    /// Last packet of a flow that is too new to have a budget.
    unknown: Option<Instant>,
}

impl RealtimeUse {
    /// Records a packet of a flow.
    pub(super) fn on_sent<B: Copy>(&mut self, flow: &Flow<B>, now: Instant) {
        match flow.useful_for() {
            Some(budget) => self.on_sent_within(budget, now),
            None if flow.may_be_call() => self.unknown = Some(now),
            None => {}
        }
    }

    fn on_sent_within(&mut self, budget: Duration, now: Instant) {
        if budget <= CALL_BUDGET {
            self.call = Some(now);
        } else {
            self.video = Some(now);
        }
    }

    /// Returns the shortest budget of active flows. A new flow may be a call: on a slow link,
    /// packets that are sent until that is known would delay it for seconds.
    fn budget(&self, is_slow: bool, now: Instant) -> Option<Duration> {
        let is_active = |at: &Instant| now.since(*at) < ACTIVE_FOR;
        let call = self.call.max(self.unknown.filter(|_| is_slow));
        let call = call.filter(is_active).map(|_| CALL_BUDGET);
        call.or_else(|| self.video.filter(is_active).map(|_| VIDEO_BUDGET))
    }
}

/// Evidence about the owner of a path's queue.
///
/// A queue that stands although all that transfers have sent is reported belongs to others, who do
/// not give way: closing the path to transfers would starve them and spare the call nothing.
///
/// ```text
///   own --all reported--> drained --a round trip later, too long still--> foreign
///    ^                       |                                              |
///    +---- a transfer sends -+---------------- FOREIGN_FOR -----------------+
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct QueueOwner {
    /// The packet number of the last datagram of a transfer.
    last: u64,
    /// The time from which all of them were reported.
    drained: Option<Instant>,
    /// Time until which the queue counts as that of other senders.
    foreign_until: Option<Instant>,
}

impl QueueOwner {
    /// Records a datagram of a transfer.
    pub(super) fn on_sent(&mut self, packet_number: u64) {
        self.last = packet_number;
        self.drained = None;
    }

    /// Returns whether the queue of a path is that of others. `is_long`: what the newest report met
    /// is longer than tolerated, and more than what this side has in flight explains.
    fn is_foreign(&mut self, path: &Path, is_long: bool, now: Instant) -> bool {
        if self.foreign_until.is_some_and(|until| now < until) {
            return true;
        }
        if path.heard_of() < self.last || !is_long {
            self.drained = None;
            return false;
        }
        let drained = *self.drained.get_or_insert(now);
        let is_foreign = now.since(drained) >= path.model().round_trip() * DRAINED_FOR;
        if is_foreign {
            self.foreign_until = Some(now + FOREIGN_FOR);
        }
        is_foreign
    }
}

/// Round trips for which a queue stands, all of the transfers reported, before it counts as that of
/// others.
///
/// Source: a sweep of 1, 3 and 6. Calls over 18 recorded drives and walks come at 5.3, 4.9 and 4.8
/// times the bound on drives (4.8 without it); a download beside a call and another user's CUBIC
/// flow gets 1.7, 1.4 and 1.2 of 3.6 Mbit/s (0.01 without it).
const DRAINED_FOR: u32 = 6;
/// A queue of others is taken for one for this time; then transfers pause until it is known again.
///
/// Source: no sweep; some two round trips of a pause in ten seconds cost a transfer at most a fifth
/// over a queue of one second.
const FOREIGN_FOR: Duration = Duration::from_secs(10);
/// A real-time flow that has sent nothing for this time is over: bulk may fill the paths again.
/// Source: 20 packets of the largest common interval, 50 ms, may be missing before.
const ACTIVE_FOR: Duration = Duration::from_secs(1);
/// Part of a real-time flow's budget that bulk may queue on a path while the flow is active, so
/// that a path whose rate falls to a tenth still delivers within the budget.
///
/// Source: a sweep of 0.1, 0.2, 0.3 and 1 of the budget during a download over three pairs of
/// recorded LTE and UMTS drives, both directions. The 99th percentile of a call: 173 to 1,224 ms,
/// 201 to 1,109, 226 to 1,924, 300 to 4,100; the total throughput: 0.88, 0.92, 0.95 and 1 of the
/// last.
const BUDGET_PART: u32 = 10;
/// A far path fills and drains over its round trip: a queue of this part of it is its working
/// range. Source: a sweep of none, 1/10 and 1/5 at 300 ms with 1 % loss: 0.58, 0.64, 0.64 of the
/// rate; nearer than 75 ms nothing changes.
const ROUND_TRIP_PART: u32 = 5;
/// Jitter is no queue, so that many times the measured jitter are allowed in addition. Source: a
/// sweep of 0, 1 and 2 times at a jitter of 20 ms: 0.95, 0.98 and 1.01 of the rate.
const JITTERS: u32 = 2;
/// Maximum transmission time of a transfer's datagram on a slow link beside an active real-time
/// flow, as far as [`SHORTEST_PIECE`] allows. Source: half of 100 ms, since another datagram may be
/// in flight.
const PIECE_TIME: Duration = Duration::from_millis(50);
/// Pieces are no shorter than this, however slow the link. Source: the longest packet is no more
/// pieces than a record of sent packets has bits. Units: bytes of body.
const SHORTEST_PIECE: u64 = 150;
/// Maximum queue of a layered flow on a slow link. Source: a sweep of 0, 15, 30, 50 and 100 ms,
/// with 2 to 4 packets at the entrance, and of no bounds, over 12 kinds each with 1.2 times the
/// rate of the lines: the base loses 11, 13, 13, 13, 20 and 34 % at 28 kbit/s, and 15, 15, 15, 15,
/// 16 and 22 at 64; with 0 some delays grow.
const LAYERED_QUEUE: Duration = Duration::from_millis(30);
/// The shortest time for which a path is closed to a transfer. Source: timers of the driver have a
/// resolution of 1 ms.
const WAIT: Duration = Duration::from_millis(1);

impl<B: Copy> Egress<B> {
    /// Closes paths whose queue is longer than an active real-time flow can bear to a transfer, and
    /// to a flow with a larger budget than that one: a video fills a path as a download does.
    pub(super) fn spare_sooner_flows(&mut self, slot: u16, class: Class, now: Instant) {
        let budgets = [false, true].map(|is_slow| self.realtime_use.budget(is_slow, now));
        let Some(flow) = self.flows.get(slot).filter(|_| budgets[1].is_some()) else {
            return;
        };
        let own = flow.useful_for();
        let occupies = self.occupies_slow_links(flow);
        for (view, lane) in self.views.iter_mut().zip(&self.view_lanes) {
            let Lane { path, owner, .. } = &mut self.lanes[*lane];
            let is_slow = path.model().link().is_some();
            let Some(budget) = budgets[usize::from(is_slow)] else {
                continue;
            };
            if !(is_limited_by(class, own, budget) || is_slow && occupies) {
                continue;
            }
            let queue = path.queueing(now);
            let tolerated = tolerated(path, budget);
            if owner.is_foreign(path, is_unexplained(path, tolerated), now) {
                continue;
            }
            if is_slow && queue > Duration::ZERO {
                // A permanent queue is mistaken for a part of the path's delay. This one is
                // reckoned packet by packet, so it is known when it is empty.
                view.window = InnerBytes(0);
                view.ready_at = view.ready_at.max(now + queue.max(WAIT));
            } else if queue > tolerated {
                view.window = InnerBytes(0);
            }
        }
    }

    /// Returns whether a real-time flow, or a new one that may become one, is active.
    pub(super) fn has_realtime(&self, now: Instant) -> bool {
        self.realtime_use.budget(true, now).is_some()
    }

    /// Returns whether a real-time flow is active and a path is so slow that all other
    /// traffic there must wait for it.
    pub(super) fn has_slow_call(&self, now: Instant) -> bool {
        let is_slow = |lane: &Lane| lane.path.model().link().is_some();
        self.has_realtime(now) && self.lanes.iter().any(is_slow)
    }

    /// Returns whether a flow leaves queues short for calls.
    pub(super) fn yields_to_calls(&self, slot: u16) -> bool {
        let flow = self.flows.get(slot);
        flow.is_some_and(|flow| is_limited_by(flow.class, flow.useful_for(), CALL_BUDGET))
    }

    /// Closes slow paths whose queue is long to a layered stream: upper layers that wait here are
    /// dropped, and the link's own queue knows no layers.
    pub(super) fn limit_layered_queue(&mut self, now: Instant) {
        for (view, lane) in self.views.iter_mut().zip(&self.view_lanes) {
            let path = &self.lanes[*lane].path;
            let queue = path.queueing(now);
            if path.model().link().is_some() && queue > LAYERED_QUEUE {
                view.window = InnerBytes(0);
                view.ready_at = view
                    .ready_at
                    .max(now + (queue.saturating_sub(LAYERED_QUEUE)).max(WAIT));
            }
        }
    }

    /// Returns whether a flow that is not real-time keeps a slow link for long with a packet.
    fn occupies_slow_links(&self, flow: &Flow<B>) -> bool {
        let is_elastic = matches!(flow.class, Class::Interactive | Class::Bulk);
        let len = flow.head().map_or(u32::MAX, |run| run.len_of(run.next) as u32);
        is_elastic && flow.budget().is_none() && len > MIN_PIECE
    }

    /// Returns how long the datagrams of a flow may be on a slow link beside an active real-time
    /// flow; `None` where a packet goes at once. Units: bytes of body.
    pub(super) fn piece_room(&self, slot: u16, lane: usize, now: Instant) -> Option<u16> {
        let link = self.lanes[lane].path.model().link()?;
        let budget = self.realtime_use.budget(true, now)?;
        let flow = self.flows.get(slot)?;
        let own = flow.useful_for();
        let gives_way = is_limited_by(flow.class, own, budget) || self.occupies_slow_links(flow);
        if !gives_way || !self.may_split(0) || flow.class == Class::Layered {
            return None;
        }
        let most = link.bytes_in(PIECE_TIME).0.saturating_sub(FRAMING as u64);
        u16::try_from(most.max(SHORTEST_PIECE)).ok()
    }

    /// Drops the head of a flow if it would come too late over every path in `views`; returns
    /// whether it did.
    pub(super) fn drop_late(&mut self, slot: u16, now: Instant) -> bool {
        let late = self
            .flows
            .get(slot)
            .is_some_and(|flow| self.is_late(slot, flow, now));
        if late {
            // It is active: were it not, what is in its way would stay there.
            if let Some(flow) = self.flows.get(slot) {
                self.realtime_use.on_sent(flow, now);
            }
            let dropped = self.drop_packet(slot, now);
            self.counters.late += dropped;
            self.flows.note_late(slot, dropped);
        }
        late
    }

    /// Returns the time after its arrival for which a packet of a flow is of use, by a program or a
    /// rule.
    #[must_use]
    pub fn deadline(&self, flow: &Flow<B>) -> Option<Duration> {
        let declared = self.declared(&flow.key).and_then(|need| need.deadline);
        declared.or(flow.deadline())
    }

    fn is_late(&self, slot: u16, flow: &Flow<B>, now: Instant) -> bool {
        let Some(head) = flow.head().filter(|_| flow.unordered && !self.views.is_empty()) else {
            return false;
        };
        let is_last = flow.backlog() <= u64::from(head.cut.packet_len());
        let declared = self.declared_deadline(slot, &flow.key).or(flow.deadline());
        let useful_for = match (declared, flow.budget()) {
            (Some(deadline), _) => deadline,
            (None, Some(budget)) if !is_last => self.lowest_delay() + budget,
            _ => return false,
        };
        let arrivals = self.views.iter().map(|view| view.arrival(now).since(now));
        now.since(head.since) + arrivals.min().unwrap_or_default() > useful_for
    }

    /// The one-way delay of the nearest path, without a queue.
    fn lowest_delay(&self) -> Duration {
        let nearest = nearest(in_use(&self.lanes).map(|(_, lane)| &lane.path));
        nearest.map_or(Duration::ZERO, |(path, _)| path.model().base_round_trip() / 2)
    }
}

/// The queue that transfers may build on a path beside a flow with that budget.
fn tolerated(path: &Path, budget: Duration) -> Duration {
    let own = path.model().base_round_trip() / ROUND_TRIP_PART;
    let jitter = path.model().delay().jitter() * JITTERS;
    (budget / BUDGET_PART).max(own) + jitter
}

/// Returns whether the newest report met a queue that is longer than `tolerated`, and, where the
/// link's rate is known, twice what this side has in flight.
fn is_unexplained(path: &Path, tolerated: Duration) -> bool {
    let queue = path.model().delay().last_queue();
    let link = path.model().link();
    queue > tolerated && link.is_none_or(|link| 2 * path.in_flight() < link.bytes_in(queue).0)
}

/// Returns whether a flow leaves queues short for one with `budget`: a transfer does, and one whose
/// own packets may arrive later.
fn is_limited_by(class: Class, own: Option<Duration>, budget: Duration) -> bool {
    class == Class::Bulk || own.is_some_and(|own| own > budget)
}

#[cfg(test)]
mod tests {
    use hawser_units::PathId;
    use hawser_wire::deadline::DeadlineRule;
    use hawser_wire::inner::protocol;
    use hawser_wire::offload::Offload;

    use super::super::Body;
    use super::super::tests::{client, segment};
    use super::*;

    const BEGIN: Instant = Instant::from_nanos(1_000_000_000);
    const EVERY: Duration = Duration::from_millis(20);

    /// The numbers of the packets, of one flow and [`EVERY`] apart, that go when a path becomes
    /// active `after` the first has come in, and how many are dropped.
    fn sent_after(protocol: u8, after: Duration) -> (Vec<u32>, u64) {
        sent_under(Vec::new(), protocol, after)
    }

    fn sent_under(rules: Vec<DeadlineRule>, protocol: u8, after: Duration) -> (Vec<u32>, u64) {
        let mut egress = client(BEGIN);
        egress.set_deadlines(rules, true);
        let mut now = BEGIN;
        let mut number = 0;
        while now < BEGIN + after {
            let packet = &mut segment(0, 100);
            packet[9] = protocol;
            let taken = egress.enqueue(packet, Offload::default(), number, now);
            assert_eq!(taken, Ok(()));
            number += 1;
            now += EVERY;
        }
        // A probe is due then.
        now = now.max(BEGIN + Duration::from_millis(150));
        let path = &mut egress.lanes[0].path;
        let token = path.poll_probe(BEGIN, now).map_or(0, |probe| probe.token);
        egress.handle_probe_reply(PathId(0), token, now);
        let mut sent = Vec::new();
        for _ in 0..1_000 {
            while let Some(transmit) = egress.poll_transmit(now) {
                if let Body::Packets { run, .. } = transmit.body {
                    sent.push(run.buffer);
                }
            }
            egress.handle_timeout(now);
            now += Duration::from_millis(1);
        }
        (sent, egress.counters().late)
    }

    #[test]
    fn packets_of_a_call_that_are_too_old_are_dropped_and_the_newest_go() {
        let (sent, late) = sent_after(protocol::UDP, Duration::from_secs(2));
        assert_eq!(sent.len() as u64 + late, 100, "none is lost without count");
        let oldest = sent.first().map(|number| EVERY * *number);
        let oldest = Duration::from_secs(2) - oldest.expect("some are sent");
        assert!(oldest <= CALL_BUDGET + EVERY, "{oldest:?}");
        assert_eq!(sent.last(), Some(&99));
        let (_, late) = sent_after(protocol::UDP, CALL_BUDGET / 2);
        assert_eq!(late, 0, "none is too old");
    }

    #[test]
    fn the_last_packet_goes_however_old_it_is_and_those_of_tcp_do() {
        assert_eq!(sent_after(protocol::UDP, EVERY).0, [0]);
        let (sent, late) = sent_after(protocol::TCP, Duration::from_secs(2));
        assert_eq!((sent.first(), late), (Some(&0), 0));
    }

    #[test]
    fn a_deadline_that_a_rule_sets_holds_for_the_last_packet_too() {
        let rule = DeadlineRule {
            protocol: Some(protocol::UDP),
            ports: None,
            near: None,
            far: None,
            dscp: None,
            deadline: Some(EVERY * 5),
        };
        let (sent, late) = sent_under(vec![rule.clone()], protocol::UDP, EVERY);
        assert_eq!(
            (sent, late),
            (vec![], 1),
            "it comes in 150 ms before the path is there"
        );
        let (sent, late) = sent_under(vec![rule], protocol::TCP, EVERY);
        assert_eq!((sent.first(), late), (Some(&0), 0));
    }

    fn at(millis: u64) -> Instant {
        Instant::from_nanos(millis * 1_000_000)
    }

    #[test]
    fn transfers_and_videos_give_way_to_a_call_and_nothing_gives_way_to_its_own_kind() {
        let (call, video) = (Some(CALL_BUDGET), Some(VIDEO_BUDGET));
        assert!(is_limited_by(Class::Bulk, None, CALL_BUDGET));
        assert!(is_limited_by(Class::Realtime, video, CALL_BUDGET));
        assert!(!is_limited_by(Class::Realtime, call, CALL_BUDGET));
        assert!(!is_limited_by(Class::Realtime, video, VIDEO_BUDGET));
        assert!(
            !is_limited_by(Class::Interactive, None, CALL_BUDGET),
            "a page is short"
        );
    }

    #[test]
    fn the_shortest_budget_of_active_flows_counts() {
        let mut used = RealtimeUse::default();
        assert_eq!(used.budget(true, at(0)), None);
        used.on_sent_within(VIDEO_BUDGET, at(0));
        used.on_sent_within(CALL_BUDGET, at(100));
        assert_eq!(used.budget(false, at(200)), Some(CALL_BUDGET));
        used.on_sent_within(VIDEO_BUDGET, at(1_050));
        let over = used.budget(false, at(1_101));
        assert_eq!(over, Some(VIDEO_BUDGET), "the call has ended");
        assert_eq!(used.budget(false, at(2_051)), None);
        used.unknown = Some(at(2_000));
        assert_eq!(used.budget(false, at(2_100)), None);
        assert_eq!(used.budget(true, at(2_100)), Some(CALL_BUDGET), "it may be one");
    }
}
