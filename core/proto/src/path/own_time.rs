//! Size-dependent delay of a packet: on a slow link it exceeds all other delays.
//!
//! The delay of a packet without a queue is `b + w l`, where `l` is its size and `w` the time of
//! the link for each byte. Probes and reports give the minimum delay of small packets. The excess
//! delay of a larger packet, divided by its additional bytes, is `w` plus the queue that it met.
//! The minimum of these values in two windows is `w`. The measured delivery rate bounds `w` from
//! above.
//!
//! It fails before a small packet has been measured, and where every larger packet meets a queue of
//! others that small ones do not meet: `w` is then too large until the delivery rate bounds it.
//!
//! Source: Bellovin, "A best-case network performance model" (1992), and Jacobson, "pathchar"
//! (1997): the minimum delay as a function of the size. Units: sizes are UDP payload bytes.

use hawser_units::{Bytes, Duration, Instant, Rate};

use super::FULL_PACKET;
use super::delay::{Measured, Minimum, QUEUE_ALLOWANCE};

/// Maximum size of a small packet: a probe, an answer or a report. Units: bytes. Source: our
/// choice, above a report of 124 bytes; packets are large from twice of it on, so that the two
/// groups differ in transmission time.
const SMALL: u32 = 128;

/// Part of a byte's time that may be jitter. Source: [`QUEUE_ALLOWANCE`], for each byte of a full
/// packet. Units: nanoseconds.
const JITTER: u64 = (QUEUE_ALLOWANCE.as_nanos() / FULL_PACKET as u128) as u64;
/// Maximum decrease of a minimum that does not count as a change. Source: the precision of a mean,
/// `PRECISION_US` of `path/delay.rs`. Units: microseconds.
const PRECISION_US: i32 = 1_000;

/// Time of a link per byte.
///
/// Cost: O(1) a report.
#[derive(Debug, Default)]
pub(super) struct OwnTime {
    /// The least delay of small packets, us, as if they had no size.
    small: Minimum,
    /// Excess time of larger packets per byte, ns.
    per_byte: Minimum,
    /// Marks a value that was taken with a minimum that was too large; it is valid until a better
    /// one is known.
    is_outdated: bool,
    /// The least that a byte takes by the delivery rate, ns; `None` before that is known.
    bound: Option<i32>,
}

impl OwnTime {
    /// Processes a report of packets of a mean size; `rate`: the highest delivery rate of the path.
    pub(super) fn on_report(&mut self, measured: &Measured, rate: Rate, now: Instant) {
        self.bound = (rate != Rate::ZERO).then(|| nanos(rate.time_for(Bytes(1_000))) / 1_000);
        if measured.size <= SMALL {
            self.on_small(measured.forward_us, now);
        } else if measured.size > 2 * SMALL {
            self.on_larger(measured.forward_us, measured.size, now);
        }
    }

    fn on_small(&mut self, forward: i32, now: Instant) {
        let before = self.small.get();
        self.small.add(forward, now);
        let fell = |known: i32| known.wrapping_sub(forward) > PRECISION_US;
        self.is_outdated |= before.is_some_and(fell);
    }

    fn on_larger(&mut self, forward: i32, size: u32, now: Instant) {
        let Some(small) = self.small.get() else { return };
        let beyond = forward.wrapping_sub(small);
        if beyond < 0 {
            // Small ones would have been quicker still.
            self.small.forget();
            self.is_outdated = true;
            return;
        }
        let per_byte = i64::from(beyond) * 1_000 / i64::from(size - SMALL / 2);
        let per_byte = i32::try_from(per_byte).unwrap_or(i32::MAX);
        if core::mem::take(&mut self.is_outdated) {
            self.per_byte.set(per_byte, now);
        } else {
            self.per_byte.add(per_byte, now);
        }
    }

    /// Keeps the known values from expiring.
    pub(super) fn keep(&mut self, now: Instant) {
        self.small.keep(now);
        self.per_byte.keep(now);
    }

    /// Returns the time per byte, ns.
    fn per_byte(&self) -> u64 {
        let known = self.per_byte.get().unwrap_or(0);
        let known = self.bound.map_or(known, |bound| known.min(bound));
        u64::try_from(known).unwrap_or(0)
    }

    /// Returns the size-dependent delay of a packet of this many bytes. The part of a full packet's
    /// delay that may be jitter is subtracted, without a step at its end.
    pub(super) fn of(&self, bytes: u64) -> Duration {
        let per_byte = self.per_byte();
        let clear = 2 * per_byte.saturating_sub(JITTER);
        Duration::from_nanos(per_byte.min(clear).saturating_mul(bytes))
    }

    /// Returns the rate of the link derived from this; `None` if a packet's size makes too little
    /// difference.
    pub(super) fn rate(&self) -> Option<Rate> {
        let per_byte = self.per_byte();
        (per_byte >= 2 * JITTER).then(|| Rate::from_bps(8_000_000_000 / per_byte))
    }
}

fn nanos(time: Duration) -> i32 {
    i32::try_from(time.as_nanos()).unwrap_or(i32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const BEGIN: Instant = Instant::from_nanos(1_000_000_000);
    const SECOND: Duration = Duration::from_secs(1);

    /// Of packets on a link of 100 kbit/s, 35 ms long, behind so long a queue.
    fn measured(size: u32, queue_us: i32) -> Measured {
        Measured {
            forward_us: 35_000 + 80 * size.cast_signed() + queue_us,
            reverse_us: 35_000,
            spread_us: 0,
            packets: 1,
            size,
            is_lone: false,
        }
    }

    fn kbps(own: &OwnTime) -> Option<u64> {
        own.rate().map(|rate| rate.as_bps() / 1_000)
    }

    #[test]
    fn what_a_larger_packet_takes_tells_the_rate_of_a_slow_link() {
        let mut own = OwnTime::default();
        own.on_report(&measured(1_000, 0), Rate::ZERO, BEGIN);
        assert_eq!(own.of(1_000), Duration::ZERO, "no small one is known");
        own.on_report(&measured(64, 0), Rate::ZERO, BEGIN);
        for queue_us in [300_000, 90_000, 0, 200_000] {
            own.on_report(&measured(1_000, queue_us), Rate::ZERO, BEGIN);
        }
        let rate = kbps(&own).expect("it is slow");
        assert!((95..106).contains(&rate), "{rate}");
        let time = own.of(1_000).as_millis();
        assert!((75..85).contains(&time), "{time}");
    }

    #[test]
    fn no_byte_takes_longer_than_the_delivery_rate_says() {
        let mut own = OwnTime::default();
        own.on_report(&measured(64, 0), Rate::ZERO, BEGIN);
        own.on_report(&measured(1_000, 300_000), Rate::ZERO, BEGIN);
        assert!(kbps(&own).is_some_and(|rate| rate < 30));
        own.on_report(&measured(1_000, 300_000), Rate::from_bps(90_000), BEGIN);
        assert_eq!(kbps(&own), Some(90));
        own.on_report(&measured(1_000, 300_000), Rate::from_mbps(50), BEGIN);
        assert_eq!((own.of(1_000), own.rate()), (Duration::ZERO, None));
    }

    #[test]
    fn a_small_packet_that_was_held_up_counts_until_there_is_a_better_one() {
        let mut own = OwnTime::default();
        own.on_report(&measured(64, 60_000), Rate::ZERO, BEGIN);
        own.on_report(&measured(1_000, 0), Rate::ZERO, BEGIN);
        assert!(kbps(&own).is_some_and(|rate| rate > 300), "too little beyond it");
        own.on_report(&measured(64, 0), Rate::ZERO, BEGIN + SECOND);
        assert!(
            kbps(&own).is_some_and(|rate| rate > 300),
            "until a larger one came"
        );
        own.on_report(&measured(1_000, 0), Rate::ZERO, BEGIN + SECOND);
        assert!(kbps(&own).is_some_and(|rate| rate < 106), "{own:?}");
        // A larger packet is never quicker: the route is another one.
        own.on_report(&measured(1_000, -100_000), Rate::ZERO, BEGIN + SECOND);
        own.on_report(&measured(1_000, -100_000), Rate::ZERO, BEGIN + SECOND);
        assert!(kbps(&own).is_some_and(|rate| rate < 106), "{own:?}");
        own.on_report(&measured(64, -100_000), Rate::ZERO, BEGIN + SECOND);
        own.on_report(&measured(1_000, -100_000), Rate::ZERO, BEGIN + SECOND);
        assert!(
            kbps(&own).is_some_and(|rate| (95..106).contains(&rate)),
            "{own:?}"
        );
    }

    #[test]
    fn what_may_be_jitter_says_nothing_of_sizes() {
        let mut own = OwnTime::default();
        let fast = |size: u32, delay_us: i32| Measured {
            forward_us: delay_us,
            ..measured(size, 0)
        };
        own.on_report(&fast(64, 10_000), Rate::ZERO, BEGIN);
        own.on_report(&fast(1_472, 13_500), Rate::ZERO, BEGIN);
        assert_eq!((own.of(1_472), own.rate()), (Duration::ZERO, None));
    }
}
