//! Choice of the path for the next bytes of a stream with many waiting bytes.

use hawser_units::{Duration, Instant};

use crate::scheduler::PathView;

/// Assumed remaining time of a transfer.
///
/// A path that adds a share of the rate delays all bytes behind its own once; it is worth using if
/// its share of this time is longer than the delay.
///
/// Source: a sweep of 3, 10 and 30 s. With 3 s a far network of 200 Mbit/s that reorders grows more
/// slowly (0.19 of the oracle in place of 0.32), with 30 s a stream waits up to 4.6 s for a network
/// that fails behind a deep queue.
const WORTH: Duration = Duration::from_secs(10);

/// Chooses the ready path that delivers first, by its index in `views`. A far path does not wait
/// for a near one, because the receiver stores early bytes without a hold time, limited by credit.
/// But a path with a small share of the rate is left out while it would delay the stream by more
/// than that share is [worth](WORTH): bytes that others wait for must not enter a queue of seconds
/// before a slow network. A path that grows has no share yet.
///
/// Source: the work-conserving form of ECF (CoNEXT 2017, section 4), for a backlog of [`WORTH`].
/// Compared in the simulator with bytes further ahead in the stream on far paths (OTIAS, WAINA
/// 2014): the same rate over far networks, and pieces of some bytes where networks reorder.
pub(crate) fn choose(views: &[PathView], now: Instant) -> Option<usize> {
    let first = views.iter().map(|view| view.arrival(now)).min()?;
    let sum: u64 = views.iter().map(|view| view.later.rate().as_bps()).sum();
    let is_worth = |view: &PathView| {
        let share = view.later.rate().as_bps() as f64 / sum.max(1) as f64;
        view.is_growing || !view.later.is_known() || view.arrival(now) <= first + WORTH.mul_f64(share)
    };
    let views = views.iter().enumerate();
    let ready = views.filter(|(_, view)| view.is_ready(now) && is_worth(view));
    ready.min_by_key(|(_, view)| view.arrival(now)).map(|(at, _)| at)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scheduler::tests::open;
    use hawser_units::{PredictedRate, Rate};

    const NOW: Instant = Instant::from_nanos(1_000_000_000);

    fn selected_secondary(rates_and_delays: &[(u64, u64)]) -> Option<usize> {
        let views: Vec<_> = rates_and_delays
            .iter()
            .enumerate()
            .map(|(at, (kbps, delay))| PathView {
                later: PredictedRate::steady(Rate::from_bps(kbps * 1_000)),
                window: hawser_units::InnerBytes(if at == 0 { 0 } else { 3_000 }),
                ..open(at as u16, 1, *delay)
            })
            .collect();
        choose(&views, NOW)
    }

    #[test]
    fn a_queue_before_a_slow_network_is_not_for_bytes_that_others_wait_for() {
        // The first is the fast one, whose window is closed.
        for (slow, delay, is_used) in [
            (50_000, 320, true),
            (10_000, 900, true),
            (4_000, 600, true),
            (270, 40, true),
            (270, 2_200, false),
            (1_000, 600, false),
            (10, 100, false),
        ] {
            let found = selected_secondary(&[(39_000, 16), (slow, delay)]);
            assert_eq!(found.is_some(), is_used, "{slow} kbit/s after {delay} ms");
        }
        assert_eq!(
            selected_secondary(&[(1, 2_000), (270, 2_200)]),
            Some(1),
            "one is all there is"
        );
    }
}
