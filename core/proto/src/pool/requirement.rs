//! Requirements of flows: two traffic models, conformance of packets to them, and an estimate for
//! flows that declare none.

use hawser_units::{Bytes, Duration, Instant, Rate};

/// An upper bound of the traffic of a flow.
///
/// Both models promise that in any span `t` no more than `burst + rate * t` is sent; they differ in
/// what is declared.
///
/// Source: Piconet section III-C (token bucket; linear bounded arrival process after its reference
/// 10).
/// Units: bytes of inner packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Requirement {
    /// A bucket of `burst` that fills at `rate`.
    TokenBucket {
        /// Average rate.
        rate: Rate,
        /// Size of the bucket.
        burst: Bytes,
    },
    /// A packet of at most `largest` in each `interval`, and up to `burst` ahead of that.
    LinearBounded {
        /// Least or average time between two packets.
        interval: Duration,
        /// Largest packet.
        largest: Bytes,
        /// Burst that may exceed the long-term bound.
        burst: Bytes,
    },
}

impl Requirement {
    /// The long-term rate; zero for an interval of zero, which is no bound.
    #[must_use]
    pub fn rate(&self) -> Rate {
        match *self {
            Self::TokenBucket { rate, .. } => rate,
            Self::LinearBounded {
                interval, largest, ..
            } => Rate::of(largest, interval).unwrap_or(Rate::ZERO),
        }
    }

    /// Returns the maximum burst.
    #[must_use]
    pub fn burst(&self) -> Bytes {
        match *self {
            Self::TokenBucket { burst, .. } => burst,
            Self::LinearBounded { burst, largest, .. } => burst.max(largest),
        }
    }

    /// Returns the maximum number of bytes sent in any interval of length `time`.
    #[must_use]
    pub fn max_bytes_in(&self, time: Duration) -> Bytes {
        Bytes(self.burst().0.saturating_add(self.rate().bytes_in(time).0))
    }

    /// Returns how long a packet waits at most if the flow alone is served at `capacity`; `None` if
    /// `capacity` is below the flow's rate.
    ///
    /// Source: Cruz, "A calculus for network delay", 1991, part I: burst over capacity.
    #[must_use]
    pub fn wait_at(&self, capacity: Rate) -> Option<Duration> {
        (capacity >= self.rate() && capacity != Rate::ZERO).then(|| capacity.time_for(self.burst()))
    }

    /// Returns the rate with which no packet of the flow waits longer than `wait`: the flow's rate,
    /// or a higher one that sends a burst in time.
    #[must_use]
    pub fn rate_for(&self, wait: Option<Duration>) -> Rate {
        let burst = wait.map_or(Rate::ZERO, |wait| {
            Rate::of(self.burst(), wait).unwrap_or(Rate::from_bps(u64::MAX))
        });
        self.rate().max(burst)
    }
}

/// Distinguishes packets within a [`Requirement`] from those beyond it.
///
/// Cost: O(1) a packet.
#[derive(Clone, Copy, Debug)]
pub struct Policer {
    requirement: Requirement,
    /// Bytes, in 1/1000, so that slow rates lose nothing between packets.
    tokens: u64,
    since: Instant,
}

impl Policer {
    /// Creates a policer with a full bucket.
    #[must_use]
    pub fn new(requirement: Requirement, now: Instant) -> Self {
        Self {
            tokens: full(&requirement),
            requirement,
            since: now,
        }
    }

    /// Changes the requirement; tokens in the bucket remain if they fit.
    pub fn change(&mut self, requirement: Requirement) {
        self.tokens = self.tokens.min(full(&requirement));
        self.requirement = requirement;
    }

    /// Returns whether a packet conforms to the requirement; a non-conforming packet consumes
    /// nothing.
    pub fn handle_packet(&mut self, bytes: u64, now: Instant) -> bool {
        let nanos = u128::from(self.requirement.rate().as_bps()) * now.since(self.since).as_nanos();
        let earned = u64::try_from(nanos / NANOS_A_TOKEN).unwrap_or(u64::MAX);
        if earned > 0 {
            self.tokens = self.tokens.saturating_add(earned).min(full(&self.requirement));
            self.since = self.since.max(now);
        }
        let price = bytes.saturating_mul(1_000);
        let fits = price <= self.tokens;
        if fits {
            self.tokens -= price;
        }
        fits
    }
}

fn full(requirement: &Requirement) -> u64 {
    requirement.burst().0.saturating_mul(1_000)
}

/// Bit-nanoseconds in a token. Source: a token is a thousandth of a byte of 8 bits, and a second
/// has 10^9 ns.
const NANOS_A_TOKEN: u128 = 8 * 1_000_000_000 / 1_000;

/// Estimates the requirement of a flow that declares none.
///
/// The rate is that of the busier of the last two whole windows, or of the running one once that
/// has seen more: a flow that grows is believed at once, one that shrinks after two windows. The
/// burst is the largest packet and what came at the most in [`BURST_SPAN`].
///
/// Source: Piconet section III ("may be inferred by examining the flow itself").
/// Cost: O(1) a packet.
#[derive(Clone, Copy, Debug)]
pub struct Observer {
    since: Instant,
    bytes: u64,
    before: [u64; 2],
    span_since: Instant,
    span_bytes: u64,
    burst: u64,
    seen: bool,
}

impl Observer {
    /// Creates an observer without observations.
    #[must_use]
    pub fn new(now: Instant) -> Self {
        Self {
            since: now,
            bytes: 0,
            before: [0; 2],
            span_since: now,
            span_bytes: 0,
            burst: 0,
            seen: false,
        }
    }

    /// Records a packet.
    pub fn handle_packet(&mut self, bytes: u64, now: Instant) {
        if !self.seen {
            (self.since, self.span_since, self.seen) = (now, now, true);
        }
        self.roll(now);
        self.bytes += bytes;
        if now.since(self.span_since) >= BURST_SPAN {
            (self.span_since, self.span_bytes) = (now, 0);
        }
        self.span_bytes += bytes;
        self.burst = self.burst.max(self.span_bytes);
    }

    /// Returns the observed traffic as a token bucket; `None` before the first packet and after two
    /// windows of silence.
    pub fn requirement(&mut self, now: Instant) -> Option<Requirement> {
        self.roll(now);
        let bytes = self.before[0].max(self.before[1]).max(self.bytes);
        let rate = Rate::of(Bytes(bytes), WINDOW).filter(|&rate| rate != Rate::ZERO)?;
        Some(Requirement::TokenBucket {
            rate,
            burst: Bytes(self.burst),
        })
    }

    fn roll(&mut self, now: Instant) {
        let windows = now.since(self.since).as_nanos() / WINDOW.as_nanos();
        match windows {
            0 => return,
            1 => self.before = [self.bytes, self.before[0]],
            2 => self.before = [0, self.bytes],
            _ => {
                self.before = [0; 2];
                self.burst = 0;
            }
        }
        self.bytes = 0;
        self.since += WINDOW * u32::try_from(windows).unwrap_or(u32::MAX);
    }
}

/// Averaging time of a rate. Source: one second holds the groups of pictures of common encoders, so
/// that an intra-coded picture does not count as the rate (`WINDOW` of `flow/behaviour.rs`).
const WINDOW: Duration = Duration::from_secs(1);

/// Time within which packets count as one burst. Source: our choice, half the interval of the
/// pictures of a video of 25 a second, so a picture is one burst and two are not; a longer one
/// doubles the bursts of a layer and admits fewer layers.
pub const BURST_SPAN: Duration = Duration::from_millis(20);

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const fn at(ms: u64) -> Instant {
        Instant::from_nanos(ms * 1_000_000)
    }

    fn bucket(bps: u64, burst: u64) -> Requirement {
        Requirement::TokenBucket {
            rate: Rate::from_bps(bps),
            burst: Bytes(burst),
        }
    }

    #[test]
    fn both_models_say_rate_burst_and_wait() {
        let linear = Requirement::LinearBounded {
            interval: Duration::from_millis(100),
            largest: Bytes(1_000),
            burst: Bytes(3_000),
        };
        assert_eq!(
            (linear.rate(), linear.burst()),
            (Rate::from_bps(80_000), Bytes(3_000))
        );
        assert_eq!(linear.max_bytes_in(Duration::from_secs(1)), Bytes(13_000));
        assert_eq!(
            linear.wait_at(Rate::from_bps(240_000)),
            Some(Duration::from_millis(100))
        );
        assert_eq!(linear.wait_at(Rate::from_bps(79_999)), None);
        assert_eq!(
            linear.rate_for(Some(Duration::from_millis(50))),
            Rate::from_bps(480_000)
        );
        assert_eq!(bucket(9, 0).rate_for(None), Rate::from_bps(9));
    }

    #[test]
    fn observes_a_steady_stream_and_forgets_it() {
        let mut observer = Observer::new(at(0));
        assert_eq!(observer.requirement(at(10)), None);
        (0..300).for_each(|n| observer.handle_packet(250, at(10 * n)));
        let seen = observer.requirement(at(3_000)).expect("seen");
        assert_eq!(seen, bucket(200_000, 500));
        assert!(observer.requirement(at(3_900)).is_some());
        assert_eq!(observer.requirement(at(6_100)), None);
    }

    #[test]
    fn a_growing_flow_is_believed_at_once() {
        let mut observer = Observer::new(at(0));
        (0..200).for_each(|n| observer.handle_packet(125, at(10 * n)));
        (0..50).for_each(|n| observer.handle_packet(1_250, at(2_000 + 10 * n)));
        assert_eq!(
            observer.requirement(at(2_500)).expect("seen").rate(),
            Rate::from_bps(500_000)
        );
    }

    proptest! {
        /// In no span does more pass than the model allows; and a naive bucket in floating point
        /// agrees but for rounding.
        #[test]
        fn what_passes_keeps_to_the_bound(
            bps in 1_000u64..10_000_000,
            burst in 0u64..10_000,
            packets in prop::collection::vec((0u64..200, 0u64..2_000), 1..100),
        ) {
            let requirement = bucket(bps, burst);
            let mut policer = Policer::new(requirement, at(0));
            let mut naive = burst as f64;
            let (mut now, mut last) = (0, 0);
            let mut passed: Vec<(u64, u64)> = Vec::new();
            for (gap, bytes) in packets {
                now += gap;
                naive = (naive + bps as f64 * (now - last) as f64 / 8e3).min(burst as f64);
                last = now;
                let fits = policer.handle_packet(bytes, at(now));
                prop_assert!(fits == (bytes as f64 <= naive) || (naive - bytes as f64).abs() < 1.0);
                if fits {
                    naive = (naive - bytes as f64).max(0.0);
                    passed.push((now, bytes));
                }
                for from in 0..passed.len() {
                    let sum: u64 = passed[from..].iter().map(|&(_, bytes)| bytes).sum();
                    let span = Duration::from_millis(now - passed[from].0);
                    prop_assert!(sum <= requirement.max_bytes_in(span).0 + 1);
                }
            }
        }
    }
}
