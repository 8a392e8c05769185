//! Sends each packet on the path on which it arrives first, and waits for a fast path if a slow one
//! would delay the flow.
//!
//! ```text
//!                            the earliest path is not ready, and a slow one would finish last
//!   sending on the earliest -----------------------------------------------------------------> waiting
//!          ^                                                                                       |
//!          |    the earliest path is ready, or the backlog would keep the faster ones busy         |
//!          +---- longer than the slow one takes (by a quarter more, once waiting) <----------------+
//! ```

use hawser_units::{Duration, InnerBytes, Instant, Rate};

use super::{Choice, Demand, PathView, Scheduler, wait};

/// Sends on the path that delivers the packet first; the default.
///
/// The arrival over a path is when it may send, plus its delay, plus the packet's time at its rate,
/// and, of a transfer, the wait for retransmissions of what the path loses. When the earliest path
/// is ready, it is taken. When it is not, the earliest *ready* path is taken only if the faster
/// ones together need longer for the whole backlog than it needs for one packet; otherwise the
/// queue waits. So a saturating flow uses every path, and a short burst is never held up by its
/// last packet on a slow one.
///
/// Source: Lim, Nahum, Towsley, Gibbens, "ECF: an MPTCP path scheduler to manage heterogeneous
/// paths", CoNEXT 2017 section 4.
/// Deviates: works with rates and one-way delays where ECF has windows and round trips, for any
/// number of paths, and in bytes; see `a_saturating_backlog_uses_both_paths`,
/// `a_short_burst_stays_on_the_fast_path`.
/// Cost: O(paths) a run.
#[derive(Clone, Debug, Default)]
pub struct EarliestDelivery {
    waiting: bool,
}

impl EarliestDelivery {
    /// Creates a scheduler that does not wait.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Returns how many packets may use the `slow` path: as many as the faster paths cannot deliver
    /// before it, and 0 if it gains nothing.
    fn worth(&mut self, slow: &PathView, demand: &Demand, paths: &[PathView], now: Instant) -> u64 {
        let limit = in_order(slow, demand, now);
        let faster = || paths.iter().filter(|path| in_order(path, demand, now) < limit);
        let is_growing = faster().any(|path| path.is_growing);
        let rate = faster().fold(0u64, |sum, path| sum.saturating_add(path.later.rate().as_bps()));
        let first = faster().map(|path| start(path, demand, now) + path.delay).min();
        let (Some(first), true) = (first, rate > 0 && slow.later.is_known()) else {
            // Nothing is faster, or a rate is still to be learnt, which takes packets.
            return u64::MAX;
        };
        let needs_more = demand.throughput.as_bps() >= rate;
        // A flow that the faster ones might not carry alone takes what is there, retransmissions
        // and all.
        let is_bounded = demand.throughput.scale(ABLE).as_bps() < rate;
        let limit = if is_bounded {
            limit
        } else {
            arrival(slow, demand, now)
        };
        let mut timeout = limit.since(first);
        if demand.sustained && needs_more && !is_growing && timeout <= SUSTAINED_SPREAD {
            return u64::MAX;
        }
        if self.waiting {
            timeout += limit.since(now) / HYSTERESIS;
        }
        let busy = Rate::from_bps(rate).bytes_in(timeout).0;
        let worth = demand
            .backlog
            .unframed()
            .0
            .saturating_add(u64::from(demand.len))
            .saturating_sub(busy)
            / u64::from(demand.len.max(1));
        self.waiting = worth == 0;
        worth
    }
}

impl Scheduler for EarliestDelivery {
    fn name(&self) -> &'static str {
        "earliest-delivery"
    }

    fn choose(&mut self, demand: &Demand, paths: &[PathView], now: Instant) -> Choice {
        let ready = || paths.iter().enumerate().filter(|(_, path)| path.is_ready(now));
        let Some((path, view)) = ready().min_by_key(|(_, path)| in_order(path, demand, now)) else {
            return wait(paths, now);
        };
        let worth = self.worth(view, demand, paths, now);
        if worth == 0 {
            return wait(paths, now);
        }
        let other = ready()
            .filter(|&(index, _)| index != path)
            .map(|(_, other)| in_order(other, demand, now))
            .min();
        let packets = u64::from(view.run(demand))
            .min(worth)
            .min(until_overtaken(view, demand, other, now));
        Choice::Send {
            path,
            packets: u16::try_from(packets).unwrap_or(u16::MAX),
        }
    }
}

/// Returns when the path may send: by its pacing or, with its window closed, at the next report,
/// which arrives at the path's rate.
fn start(path: &PathView, demand: &Demand, now: Instant) -> Instant {
    let paced = path.ready_at.max(now);
    if path.window > InnerBytes(0) {
        return paced;
    }
    let report = match path.transmission(InnerBytes(demand.len.into())) {
        Duration::ZERO => path.round_trip,
        time => time,
    };
    paced.max(now + report)
}

/// Returns when a packet arrives that is sent as soon as the path may send.
pub(super) fn arrival(path: &PathView, demand: &Demand, now: Instant) -> Instant {
    start(path, demand, now) + path.delay + path.transmission(InnerBytes(demand.len.into()))
}

/// Returns when a packet and all before it have arrived.
///
/// A transfer that its own window bounds gets a window in the time until all of it is there. So it
/// does not take the nearer of two paths when that one nearly always has something to retransmit: a
/// packet waits for the retransmission of those before it as likely as one of those that go
/// meanwhile is lost.
fn in_order(path: &PathView, demand: &Demand, now: Instant) -> Instant {
    let arrival = arrival(path, demand, now);
    if !demand.sustained {
        return arrival;
    }
    let packets =
        demand.throughput.bytes_in(path.retransmitted_after).0 as f64 / f64::from(demand.len.max(1));
    arrival + path.retransmitted_after.mul_f64((path.loss * packets).min(1.0))
}

/// The run after which another ready path would deliver first; short runs are not cut, they are
/// what offloads live on.
fn until_overtaken(path: &PathView, demand: &Demand, other: Option<Instant>, now: Instant) -> u64 {
    let each = path.transmission(InnerBytes(demand.len.into())).as_nanos();
    let (Some(other), true) = (other, each > 0) else {
        return u64::MAX;
    };
    let lead = other.since(arrival(path, demand, now)).max(SHORT_RUN).as_nanos();
    u64::try_from(lead / each).unwrap_or(u64::MAX).saturating_add(1)
}

/// Difference of delays up to which a sustained flow uses a slower path without a backlog: a sender
/// that paces itself (BBR) never builds one, and would be left with the fastest path alone. It does
/// not apply while a faster path still grows: the longer delay would increase the round trips of a
/// young flow, whose sender mistakes that for a full path and ends its slow start. Nor does it
/// apply while the throughput is what the faster paths could transfer alone: such a flow is limited
/// by its own window, and a slower path would only delay it. Source: our choice, between a
/// difference of 50 ms, which costs 3 % of the goodput, and one of 100 ms, which costs a quarter
/// (docs/design/earliest-delivery.md, "Conclusions").
const SUSTAINED_SPREAD: Duration = Duration::from_millis(80);

/// Capacity of the faster paths, relative to the present throughput, that gives the flow room to
/// grow there. Source: our choice, the gain with which BBR probes for more (`UP_PACING` of
/// `path/control/bbr.rs`), so that such a flow finds that room.
const ABLE: f64 = 1.25;

/// Advantage by which a slow path must win once the flow waits: a quarter of its delivery time.
/// Source: beta = 0.25 in section 4 of ECF (CoNEXT 2017).
const HYSTERESIS: u32 = 4;

/// Transmission time of a run that may go out in one piece even if another path would deliver its
/// end sooner; 90 packets at 1 Gbit/s. Source: half of the resequencer's margin
/// ([`crate::resequencer::Config`]).
const SHORT_RUN: Duration = Duration::from_millis(1);

#[cfg(test)]
mod tests {
    use super::super::tests::{Server, demand, open, saturate};
    use super::*;
    use hawser_units::{MeasuredRate, PredictedRate};

    fn backlog(packets: u16) -> Demand {
        demand(1380, packets)
    }

    fn choose(paths: &[PathView], demand: Demand) -> Choice {
        EarliestDelivery::new().choose(&demand, paths, Instant::ZERO)
    }

    fn busy_fast_path() -> [PathView; 2] {
        let mut paths = [open(1, 20, 5), open(2, 20, 30)];
        paths[0].ready_at = Instant::from_nanos(500_000);
        paths
    }

    #[test]
    fn a_saturating_backlog_uses_both_paths() {
        let Choice::Send { path: 1, packets } = choose(&busy_fast_path(), backlog(200)) else {
            panic!("does not use the slow path")
        };
        // 25 ms of the fast path's rate stay for it: 45 packets.
        assert!((150..=160).contains(&packets), "{packets}");
    }

    #[test]
    fn a_short_burst_stays_on_the_fast_path() {
        let wait = Choice::Wait(Instant::from_nanos(500_000));
        assert_eq!(choose(&busy_fast_path(), backlog(5)), wait);
        assert_eq!(choose(&busy_fast_path(), backlog(1)), wait);
    }

    /// Of a flow that takes more than the fast path carries.
    fn sustained() -> Demand {
        Demand {
            sustained: true,
            throughput: Rate::from_mbps(25),
            ..backlog(1)
        }
    }

    #[test]
    fn a_sustained_flow_uses_every_path_that_is_near_enough() {
        let sustained = sustained();
        assert!(matches!(
            choose(&busy_fast_path(), sustained),
            Choice::Send { path: 1, .. }
        ));
        let mut far = busy_fast_path();
        far[1].delay = Duration::from_millis(200);
        assert!(matches!(choose(&far, sustained), Choice::Wait(_)));
    }

    #[test]
    fn a_flow_that_the_faster_path_could_carry_alone_is_held_back_by_its_window_and_waits_for_it() {
        let bounded = Demand {
            throughput: Rate::from_mbps(19),
            ..sustained()
        };
        assert!(matches!(choose(&busy_fast_path(), bounded), Choice::Wait(_)));
        let saturating = Demand {
            backlog: InnerBytes(200 * 1380),
            ..bounded
        };
        assert!(matches!(
            choose(&busy_fast_path(), saturating),
            Choice::Send { path: 1, .. }
        ));
    }

    #[test]
    fn a_flow_that_one_path_could_carry_does_not_take_the_nearer_one_that_loses() {
        let mut paths = [open(1, 100, 50), open(2, 100, 40)];
        paths[1].loss = 0.01;
        paths[1].retransmitted_after = Duration::from_millis(80);
        let taken = |mbps, paths: &[PathView]| {
            let demand = Demand {
                throughput: Rate::from_mbps(mbps),
                ..sustained()
            };
            let Choice::Send { path, .. } = choose(paths, demand) else {
                panic!("waits")
            };
            path
        };
        assert_eq!(taken(50, &paths), 0, "a packet is lost in most round trips");
        assert_eq!(taken(0, &paths), 1, "little is under way: hardly one is lost");
        assert_eq!(
            taken(1, &paths),
            1,
            "a tenth of the round trips lose one: 8 ms for 10"
        );
        paths[1].loss = 0.0;
        assert_eq!(taken(50, &paths), 1);
        // Packets beyond the steady path's window wait for it, unless it cannot carry all of them.
        paths[1].loss = 0.01;
        paths[0].ready_at = Instant::from_nanos(500_000);
        let demand = |mbps| Demand {
            throughput: Rate::from_mbps(mbps),
            ..sustained()
        };
        assert!(matches!(choose(&paths, demand(50)), Choice::Wait(_)));
        assert!(matches!(
            choose(&paths, demand(110)),
            Choice::Send { path: 1, .. }
        ));
    }

    #[test]
    fn a_sustained_flow_leaves_a_fast_path_that_grows_to_grow() {
        let sustained = sustained();
        let mut paths = busy_fast_path();
        paths[0].is_growing = true;
        paths[0].later = PredictedRate::grown(MeasuredRate::new(paths[0].later.rate()), 4.0);
        assert!(matches!(choose(&paths, sustained), Choice::Wait(_)));
        let backlog = Demand {
            sustained: true,
            ..backlog(300)
        };
        assert!(matches!(choose(&paths, backlog), Choice::Send { path: 1, .. }));
    }

    #[test]
    fn a_closed_window_of_a_fast_path_is_waited_for_without_a_timer() {
        let mut paths = busy_fast_path();
        paths[0].ready_at = Instant::ZERO;
        paths[0].window = InnerBytes(0);
        assert_eq!(choose(&paths, backlog(5)), Choice::Wait(Instant::FAR_FUTURE));
        assert!(matches!(
            choose(&paths, backlog(200)),
            Choice::Send { path: 1, .. }
        ));
    }

    #[test]
    fn a_path_that_may_send_later_than_another_delivers_is_not_waited_for() {
        let mut paths = busy_fast_path();
        paths[0].ready_at = Instant::from_nanos(30_000_000);
        assert!(matches!(choose(&paths, backlog(1)), Choice::Send { path: 1, .. }));
        // A closed window opens with the next report, after a packet's time of 0.6 ms.
        let mut paths = [open(1, 20, 5), open(2, 20, 5)];
        paths[0].window = InnerBytes(0);
        paths[1].delay += Duration::from_micros(300);
        assert!(matches!(choose(&paths, backlog(1)), Choice::Send { path: 1, .. }));
        paths[1].delay += Duration::from_micros(600);
        assert!(matches!(choose(&paths, backlog(1)), Choice::Wait(_)));
    }

    #[test]
    fn the_rates_of_all_faster_paths_count() {
        let mut paths = [open(1, 20, 5), open(2, 20, 6), open(3, 20, 30)];
        paths[0].ready_at = Instant::from_nanos(500_000);
        paths[1].ready_at = Instant::from_nanos(500_000);
        assert!(matches!(choose(&paths, backlog(80)), Choice::Wait(_)));
        assert!(matches!(
            choose(&paths[1..], backlog(80)),
            Choice::Send { path: 1, .. }
        ));
    }

    #[test]
    fn an_unknown_rate_neither_blocks_nor_is_waited_for() {
        let mut paths = busy_fast_path();
        paths[1].later = PredictedRate::default();
        assert!(matches!(choose(&paths, backlog(1)), Choice::Send { path: 1, .. }));
        let mut paths = busy_fast_path();
        paths[0].later = PredictedRate::default();
        assert!(matches!(choose(&paths, backlog(1)), Choice::Send { path: 1, .. }));
    }

    #[test]
    fn one_path_is_used_whenever_it_is_ready() {
        for rate in [0, 20] {
            let mut paths = [open(1, rate, 5)];
            paths[0].window = InnerBytes(3 * 1380);
            assert_eq!(choose(&paths, backlog(9)), Choice::Send { path: 0, packets: 3 });
            paths[0].window = InnerBytes(10);
            assert_eq!(choose(&paths, backlog(9)), Choice::Send { path: 0, packets: 1 });
        }
        assert_eq!(choose(&[], backlog(9)), Choice::Wait(Instant::FAR_FUTURE));
    }

    #[test]
    fn equal_paths_do_not_wait_for_each_other() {
        let paths = [open(1, 20, 5), open(2, 20, 5)];
        assert_eq!(choose(&paths, backlog(1)), Choice::Send { path: 0, packets: 1 });
    }

    #[test]
    fn of_two_paths_of_one_delay_the_one_with_the_higher_rate_delivers_first() {
        let paths = [open(1, 1, 10), open(2, 100, 10)];
        assert!(matches!(choose(&paths, backlog(1)), Choice::Send { path: 1, .. }));
    }

    #[test]
    fn a_run_ends_where_another_path_would_deliver_first() {
        // A packet takes 0.552 ms.
        let run = |delay| choose(&[open(1, 20, 5), open(2, 20, delay)], backlog(200));
        assert_eq!(run(8), Choice::Send { path: 0, packets: 6 });
        assert_eq!(
            run(5),
            Choice::Send { path: 0, packets: 2 },
            "short runs are not cut"
        );
    }

    #[test]
    fn waiting_is_not_left_at_the_first_excuse() {
        let mut scheduler = EarliestDelivery::new();
        let mut at = |packets| scheduler.choose(&backlog(packets), &busy_fast_path(), Instant::ZERO);
        assert!(matches!(at(50), Choice::Send { .. }));
        assert!(matches!(at(40), Choice::Wait(_)));
        assert!(matches!(at(50), Choice::Wait(_)));
        assert!(matches!(at(70), Choice::Send { .. }));
        assert!(matches!(at(50), Choice::Send { .. }));
    }

    #[test]
    fn a_saturating_flow_fills_unequal_paths() {
        for paths in [
            [(20, 5), (20, 30)],
            [(20, 5), (5, 30)],
            [(50, 10), (10, 10)],
            [(100, 5), (1, 100)],
        ] {
            let servers = paths.map(|(mbps, delay)| Server::new(mbps, delay));
            for share in saturate(&mut EarliestDelivery::new(), servers.to_vec(), 2_000) {
                assert!(share > 0.97, "{paths:?}: {share}");
            }
        }
    }
}
