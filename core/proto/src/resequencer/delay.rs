//! Estimate of one path's delay at the receiver, from send times alone.

use hawser_units::{Duration, Instant, PathId};

/// Follows the one-way delay of one path.
///
/// The two ends' clocks are not synchronised, so a delay here has an unknown offset; the offset is
/// the same for every path of a session, and differences between paths are real. All arithmetic
/// wraps at 2^32 us (71 minutes).
///
/// Source: RFC 6298 section 2 (smoothed value and deviation). Deviates: the deviation rises by a
/// half with a packet and falls by an eighth in 100 ms, because a network that pauses does so a few
/// times a second, however many packets come in between; see `remembers_a_spike`.
#[derive(Clone, Debug)]
pub(super) struct PathDelay {
    pub(super) id: PathId,
    /// Smoothed local arrival time less send time, us, wrapping.
    delay: u32,
    /// Smoothed upper side of the deviation, us.
    deviation: u32,
    /// The latest send time that arrived.
    frontier: u32,
    /// Distance behind the frontier at which packets of this path arrive, us; decays.
    extent: u32,
    heard: Instant,
    decayed: Instant,
}

impl PathDelay {
    pub(super) fn new(id: PathId, sent_us: u32, now: Instant) -> Self {
        let delay = now.as_micros_wrapping().wrapping_sub(sent_us);
        Self {
            id,
            delay,
            deviation: INITIAL_DEVIATION_US,
            frontier: sent_us,
            extent: 0,
            heard: now,
            decayed: now,
        }
    }

    /// Records the send time of a packet.
    pub(super) fn on_arrival(&mut self, sent_us: u32, now: Instant) {
        let sample = now.as_micros_wrapping().wrapping_sub(sent_us);
        let error = sample.wrapping_sub(self.delay).cast_signed();
        if !self.is_live(now) || error.unsigned_abs() > ABSURD_US {
            *self = Self::new(self.id, sent_us, now);
            return;
        }
        self.heard = now;
        self.delay = self.delay.wrapping_add_signed(error / 8);
        let error = error.unsigned_abs();
        if error > self.deviation {
            self.deviation += (error - self.deviation) / 2;
        }
        let ahead = sent_us.wrapping_sub(self.frontier).cast_signed();
        if ahead > 0 {
            self.frontier = sent_us;
        } else {
            self.extent = self.extent.max(ahead.unsigned_abs());
        }
        if now.since(self.decayed) >= DECAY_EVERY {
            self.decayed = now;
            self.extent -= self.extent.div_ceil(8);
            self.deviation -= self.deviation.div_ceil(8);
        }
    }

    /// Returns whether the path may still deliver packets.
    pub(super) fn is_live(&self, now: Instant) -> bool {
        now.since(self.heard) < LIVE
    }

    /// Returns when the path counts as silent if it delivers nothing more.
    pub(super) fn silent_at(&self) -> Instant {
        self.heard + SILENCE + Duration::from_micros(u64::from(self.deviation)) * 4
    }

    /// Returns whether packets of this path arrive in the order sent.
    pub(super) fn is_in_order(&self) -> bool {
        self.extent == 0
    }

    /// Returns whether a packet sent at `sent_us` or before would have arrived already, judging by
    /// later packets of the path.
    pub(super) fn has_passed(&self, sent_us: u32) -> bool {
        i64::from(self.frontier.wrapping_sub(sent_us).cast_signed()) > i64::from(self.extent)
    }

    /// Returns when a skipped packet counts as lost: now if the path has passed it, where the
    /// packets of one burst have one time and arrive in order; or, if the path delivers nothing
    /// more, when a packet sent as much later as the path reorders would have arrived.
    pub(super) fn overtaken_at(&self, sent_us: u32, margin: Duration, now: Instant) -> Instant {
        if i64::from(self.frontier.wrapping_sub(sent_us).cast_signed()) >= i64::from(self.extent) {
            return now;
        }
        let due = sent_us
            .wrapping_add(self.delay)
            .wrapping_add(self.extent)
            .wrapping_sub(now.as_micros_wrapping())
            .cast_signed();
        let due = i64::from(due).saturating_add_unsigned(margin.as_micros() as u64);
        now + Duration::from_micros(u64::try_from(due).unwrap_or(0))
    }

    /// Returns how long from `now` a packet sent at `sent_us` may still take; zero if it is
    /// overdue.
    pub(super) fn remaining(&self, sent_us: u32, margin: Duration, now: Instant) -> Duration {
        let allowance = 4 * u64::from(self.deviation) + margin.as_micros() as u64;
        let due = sent_us
            .wrapping_add(self.delay)
            .wrapping_sub(now.as_micros_wrapping())
            .cast_signed();
        let left = i64::from(due).saturating_add_unsigned(allowance);
        Duration::from_micros(u64::try_from(left).unwrap_or(0))
    }
}

/// Time after its last packet for which a path is expected to deliver packets. Source: an idle path
/// is probed each `KEEPALIVE_BUSY` of `path/mod.rs`, 1 s, and two probes in a row may get lost. The
/// sender of a path without packets for a longer time considers it dead too. Until then the
/// deadline limits how long the path delays others.
const LIVE: Duration = Duration::from_secs(3);

/// Maximum pause of a path in use, beyond the deviation of its delays: reports are sent every few
/// milliseconds, and batches of packets as often. Half and twice of it move the shortest pauses of
/// a failed path by 10 ms either way, and change goodput by at most 0.2 %
/// (docs/notebook/path-model.md, "Sensitivity").
const SILENCE: Duration = Duration::from_millis(20);

/// Change of a delay beyond which a clock was set and no queue has grown: the estimate restarts.
/// Source: docs/design/path-model.md, "Assumptions and how they fail".
const ABSURD_US: u32 = 10_000_000;

/// Assumed deviation before the first one is measured: the retries of a Wi-Fi frame. Source: our
/// choice, seven attempts of a frame of some 250 us; a smaller one reports gaps at the first
/// retried frame, a larger one delays the first gaps.
const INITIAL_DEVIATION_US: u32 = 2_000;

/// Interval in which the deviation and the reorder extent decrease by an eighth: half is left after
/// 0.5 s. No suite of docs/notebook/path-model.md, "Sensitivity", changes by more than 3 % with
/// half or twice of it.
const DECAY_EVERY: Duration = Duration::from_millis(100);

#[cfg(test)]
mod tests {
    use super::*;

    fn at(us: u64) -> Instant {
        Instant::from_nanos(us * 1_000)
    }

    fn steady(delay_us: u64, offset: u32) -> (PathDelay, u64) {
        let sent = |us: u64| (us as u32).wrapping_add(offset);
        let mut path = PathDelay::new(PathId(1), sent(0), at(delay_us));
        for n in 1..1_000 {
            path.on_arrival(sent(n * 1_000), at(n * 1_000 + delay_us));
        }
        (path, 999_000 + delay_us)
    }

    #[test]
    fn a_jump_of_ten_seconds_is_followed_and_a_longer_one_is_believed() {
        for (jump, delay) in [(10_000_000, 1_280_000), (10_000_001, 10_030_001)] {
            let (mut path, now) = steady(30_000, 0);
            let sent = (now as u32).wrapping_sub(30_000 + jump);
            path.on_arrival(sent, at(now));
            assert_eq!(path.delay, delay);
        }
    }

    #[test]
    fn settles_on_the_delay_whatever_the_clock_offset() {
        for offset in [0, 1 << 31, u32::MAX - 500_000] {
            let (path, now) = steady(30_000, offset);
            let next = (1_000_000u32).wrapping_add(offset);
            let left = path.remaining(next, Duration::ZERO, at(now)).as_micros();
            // A quarter of the first guess is left after a second.
            assert!((1_000..4_000).contains(&left), "{left}");
        }
    }

    #[test]
    fn remembers_a_spike() {
        let (mut path, now) = steady(5_000, 0);
        path.on_arrival((now - 45_000) as u32, at(now));
        for n in 1..1_000 {
            path.on_arrival((now + n * 100 - 5_000) as u32, at(now + n * 100));
        }
        assert!(path.deviation > 10_000, "{}", path.deviation);
    }

    #[test]
    fn measures_reordering_within_the_path_and_forgets_it() {
        let (mut path, now) = steady(5_000, 0);
        assert!(path.is_in_order());
        let frontier = path.frontier;
        path.on_arrival(frontier - 3_000, at(now));
        assert!(!path.has_passed(frontier - 2_500));
        assert!(path.has_passed(frontier - 3_500));
        for n in 1..5_000 {
            path.on_arrival((now + n * 1_000 - 5_000) as u32, at(now + n * 1_000));
        }
        assert!(path.is_in_order());
    }

    #[test]
    fn starts_anew_when_a_clock_jumps() {
        let (mut path, now) = steady(5_000, 0);
        path.on_arrival(3_000_000_000, at(now + 1_000));
        let left = path
            .remaining(3_000_001_000, Duration::ZERO, at(now + 1_000))
            .as_micros();
        assert_eq!(left, 1_000 + 4 * u128::from(INITIAL_DEVIATION_US));
        assert!(path.has_passed(2_999_999_999));
    }

    #[test]
    fn a_larger_error_moves_the_deviation_halfway_to_it() {
        let mut path = PathDelay::new(PathId(1), 0, at(5_000));
        assert_eq!(path.silent_at(), at(5_000 + 20_000 + 4 * 2_000));
        // 10 ms later than the mean.
        path.on_arrival(10_000, at(25_000));
        assert_eq!(path.silent_at(), at(25_000 + 20_000 + 4 * 6_000));
        // A smaller one changes nothing until it decays.
        path.on_arrival(20_000, at(26_250));
        assert_eq!(path.silent_at(), at(26_250 + 20_000 + 4 * 6_000));
    }

    #[test]
    fn a_path_is_live_for_less_than_three_seconds_after_its_last_packet() {
        let path = PathDelay::new(PathId(1), 0, at(5_000));
        assert!(path.is_live(at(3_004_999)));
        assert!(!path.is_live(at(3_005_000)));
    }

    #[test]
    fn one_packet_that_was_sent_earlier_than_the_last_ends_the_order() {
        let mut path = PathDelay::new(PathId(1), 1_000, at(6_000));
        path.on_arrival(2_000, at(7_000));
        path.on_arrival(2_000, at(7_000));
        assert!(path.is_in_order(), "those of one burst have one time");
        path.on_arrival(1_500, at(7_100));
        assert!(!path.is_in_order());
    }
}
