//! Congestion window: growth with acknowledgements, and reduction after losses.

use hawser_units::{Duration, Instant};

/// Growth of the window after slow start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Congestion {
    /// Growth by one segment per round trip; halved after a loss. Source: RFC 5681.
    NewReno,
    /// Cubic function of the time since the last loss. Source: RFC 9438 as in Linux 6
    /// (`tcp_cubic.c`): whole segments, at least a twentieth of the window per round trip before
    /// the first loss, and 0.53 segments per round trip where Reno would be faster, also beyond the
    /// window before the loss.
    #[default]
    Cubic,
    /// Controlled by the coupling of several subflows ([`crate::mptcp::Coupling`]).
    Coupled,
}

impl Congestion {
    /// Returns the algorithm with this Linux name; `None` if it is not modelled.
    #[must_use]
    pub fn by_name(name: &str) -> Option<Self> {
        match name {
            "reno" => Some(Self::NewReno),
            "cubic" => Some(Self::Cubic),
            _ => None,
        }
    }
}

/// A congestion window. Units: segments.
#[derive(Clone, Debug)]
pub(crate) struct Window {
    algorithm: Congestion,
    size: f64,
    threshold: f64,
    cubic: Cubic,
    /// Output of a coupling: growth per acknowledged segment, and the share that remains after a
    /// loss.
    coupled: (f64, f64),
    /// Minimum window after a loss.
    least: f64,
}

/// State that is restored after a spurious loss.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Saved {
    size: f64,
    threshold: f64,
}

#[derive(Clone, Copy, Debug, Default)]
struct Cubic {
    /// Window before the last reduction; zero before the first.
    max: f64,
    epoch: Option<Epoch>,
}

#[derive(Clone, Copy, Debug)]
struct Epoch {
    start: Instant,
    /// Time until the window reaches `origin` again. Units: seconds.
    k: f64,
    origin: f64,
    /// Window of a Reno sender with the same average, RFC 9438 section 4.3, and the segments
    /// acknowledged since its last growth.
    friendly: f64,
    friendly_acked: f64,
    /// Acknowledged segments per growth by one, and those counted so far.
    each: f64,
    acked: f64,
    /// Window and time at which `each` was computed.
    updated: (f64, Instant),
}

impl Window {
    pub(crate) fn new(algorithm: Congestion, initial: f64, threshold: f64) -> Self {
        Self {
            algorithm,
            size: initial,
            threshold,
            cubic: Cubic::default(),
            coupled: (0.0, 0.5),
            least: 2.0,
        }
    }

    pub(crate) fn size(&self) -> f64 {
        self.size
    }

    pub(crate) fn threshold(&self) -> f64 {
        self.threshold
    }

    pub(crate) fn is_in_slow_start(&self) -> bool {
        self.size < self.threshold
    }

    /// Sets the minimum window after a loss.
    pub(crate) fn with_min_window(mut self, least: f64) -> Self {
        self.least = least;
        self
    }

    pub(crate) fn couple(&mut self, increase: f64, left_after_loss: f64) {
        self.coupled = (increase, left_after_loss);
    }

    /// Ends slow start without a loss.
    pub(crate) fn leave_slow_start(&mut self) {
        self.threshold = self.size;
    }

    /// Grows for `acked` acknowledged segments; `round_trip` is the minimum round-trip time.
    pub(crate) fn on_ack(&mut self, mut acked: f64, round_trip: Duration, now: Instant) {
        if self.is_in_slow_start() {
            let step = acked.min(self.threshold - self.size);
            self.size += step;
            acked -= step;
            if acked <= 0.0 {
                return;
            }
        }
        match self.algorithm {
            Congestion::NewReno => self.size += acked / self.size,
            Congestion::Cubic => {
                self.size = self.cubic.grow(self.size, acked, round_trip, now);
            }
            Congestion::Coupled => self.size = (self.size + acked * self.coupled.0).max(1.0),
        }
    }

    /// Reduces the window once for all losses of a round trip.
    pub(crate) fn on_loss(&mut self) {
        let left = match self.algorithm {
            Congestion::NewReno => 0.5,
            Congestion::Cubic => BETA,
            Congestion::Coupled => self.coupled.1,
        };
        self.cubic.shrink(self.size);
        let left = self.size * left;
        self.threshold = match self.algorithm {
            Congestion::Cubic => left.floor().max(self.least),
            Congestion::NewReno | Congestion::Coupled => left.max(self.least),
        };
        self.size = self.threshold;
    }

    /// Restarts at half of the data in flight. `is_first`: the timer has not backed off yet.
    pub(crate) fn on_timeout(&mut self, is_first: bool) {
        if is_first {
            self.on_loss();
        }
        self.size = 1.0;
        self.cubic = Cubic::default();
    }

    /// Restarts after an idle time, with the former threshold. Source: RFC 2861, as in Linux.
    pub(crate) fn on_idle(&mut self, restart: f64) {
        self.threshold = self.threshold.max(self.size * 0.75);
        self.size = self.size.min(restart);
        self.cubic.epoch = None;
    }

    pub(crate) fn save(&self) -> Saved {
        Saved {
            size: self.size,
            threshold: self.threshold,
        }
    }

    pub(crate) fn restore(&mut self, saved: Saved) {
        self.size = self.size.max(saved.size);
        self.threshold = self.threshold.max(saved.threshold);
        self.cubic.epoch = None;
    }
}

impl Cubic {
    fn shrink(&mut self, size: f64) {
        // Fast convergence, RFC 9438 section 4.7.
        self.max = if size < self.max {
            size * f64::midpoint(1.0, BETA)
        } else {
            size
        };
        self.epoch = None;
    }

    fn grow(&mut self, mut size: f64, acked: f64, round_trip: Duration, now: Instant) -> f64 {
        let max = self.max;
        let epoch = self.epoch.get_or_insert_with(|| Epoch::new(size, max, now));
        epoch.friendly_acked += acked;
        let (then, at) = epoch.updated;
        let is_stale = then != size || now.since(at) > UPDATE_AFTER || epoch.each == 0.0;
        if is_stale {
            epoch.updated = (size, now);
            epoch.each = epoch.acks_for_one(size, max == 0.0, round_trip, now);
        }
        // Segments counted at a slower growth yield at most one segment.
        if epoch.acked >= epoch.each {
            epoch.acked = 0.0;
            size += 1.0;
        }
        epoch.acked += acked;
        let steps = (epoch.acked / epoch.each).floor();
        epoch.acked -= steps * epoch.each;
        size + steps
    }
}

impl Epoch {
    fn new(size: f64, max: f64, now: Instant) -> Self {
        let origin = max.max(size);
        Self {
            start: now,
            k: ((origin - size) / C).cbrt(),
            origin,
            friendly: size,
            friendly_acked: 0.0,
            each: 0.0,
            acked: 0.0,
            updated: (size, now),
        }
    }

    /// Returns the number of acknowledged segments per growth of the window by one.
    fn acks_for_one(&mut self, size: f64, has_lost_nothing: bool, round_trip: Duration, now: Instant) -> f64 {
        let t = (now.since(self.start) + round_trip).as_secs_f64();
        // Linux computes the distance to the origin in whole segments, rounded towards the origin.
        let target = self.origin + (C * (t - self.k).powi(3)).trunc();
        let mut each = if target > size {
            (size / (target - size)).floor()
        } else {
            100.0 * size
        };
        if has_lost_nothing {
            each = each.min(FIRST_GROWTH);
        }
        let for_friendly = (size / ALPHA).floor().max(1.0);
        while self.friendly_acked > for_friendly {
            self.friendly_acked -= for_friendly;
            self.friendly += 1.0;
        }
        if self.friendly > size {
            each = each.min((size / (self.friendly - size)).floor());
        }
        each.max(2.0)
    }
}

/// Multiplicative decrease factor, RFC 9438 section 4.6.
const BETA: f64 = 0.7;
/// RFC 9438 section 5.1. Units: segments over seconds cubed.
const C: f64 = 0.4;
/// Additive increase with Reno's average rate, RFC 9438 section 4.3.
const ALPHA: f64 = 3.0 * (1.0 - BETA) / (1.0 + BETA);
/// Maximum number of acknowledged segments per growth by one before the first loss. Source: Linux
/// `bictcp_update`.
const FIRST_GROWTH: f64 = 20.0;
/// Lifetime of a computed growth at constant window. Source: Linux `bictcp_update`, `HZ / 32`.
const UPDATE_AFTER: Duration = Duration::from_micros(31_250);

/// HyStart: ends slow start before the queue is full, when round-trip times grow, or when
/// acknowledgements follow each other closely for half a round trip, because the path is then full
/// half of the time.
///
/// Source: Ha and Rhee 2008, as in Linux 6's `tcp_cubic.c`.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct HyStart {
    round_end: u64,
    samples: u32,
    least: Duration,
    round_start: Instant,
    last_in_train: Instant,
}

/// Round-trip data of one acknowledgement.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Round {
    /// Round-trip time of this acknowledgement.
    pub(crate) sample: Duration,
    /// Minimum round-trip time.
    pub(crate) min: Duration,
    /// Bytes acknowledged so far.
    pub(crate) acked: u64,
    /// Bytes sent so far.
    pub(crate) next: u64,
}

impl HyStart {
    /// Returns whether this acknowledgement shows that the path is full, at a window of this many
    /// segments.
    pub(crate) fn is_enough(&mut self, round: Round, window: f64, now: Instant) -> bool {
        if round.acked >= self.round_end {
            *self = Self {
                round_end: round.next,
                samples: 0,
                least: Duration::MAX,
                round_start: now,
                last_in_train: now,
            };
        }
        if window < HYSTART_LOW_WINDOW {
            return false;
        }
        if now.since(self.last_in_train) <= HYSTART_ACK_DELTA {
            self.last_in_train = now;
            let threshold = (round.min + HYSTART_ACK_DELAY) / 2;
            if now.since(self.round_start) > threshold {
                return true;
            }
        }
        self.least = self.least.min(round.sample);
        if self.samples < HYSTART_SAMPLES {
            self.samples += 1;
            return false;
        }
        let margin = (round.min / 8).clamp(Duration::from_millis(4), Duration::from_millis(16));
        self.least > round.min + margin
    }
}

/// Number of samples of a round, and window in packets, from which HyStart decides. Source:
/// `HYSTART_MIN_SAMPLES` and `hystart_low_window` of net/ipv4/tcp_cubic.c of Linux.
const HYSTART_SAMPLES: u32 = 8;
const HYSTART_LOW_WINDOW: f64 = 16.0;
/// Maximum distance between acknowledgements of one train. Source: Linux `hystart_ack_delta_us`.
const HYSTART_ACK_DELTA: Duration = Duration::from_millis(2);
/// Delay that offloads may add to a train. Source: Linux `hystart_ack_delay`, its bound, which
/// rates below 2 Gbit/s reach.
const HYSTART_ACK_DELAY: Duration = Duration::from_millis(1);

#[cfg(test)]
mod tests {
    use super::*;

    const RTT: Duration = Duration::from_millis(100);

    fn at(seconds: f64) -> Instant {
        Instant::ZERO + Duration::from_secs_f64(seconds)
    }

    #[test]
    fn doubles_each_round_trip_up_to_the_threshold() {
        let mut window = Window::new(Congestion::NewReno, 2.0, 16.0);
        for expected in [4.0, 8.0, 16.0] {
            let size = window.size();
            window.on_ack(size, RTT, at(0.0));
            assert_eq!(window.size(), expected);
        }
        window.on_ack(16.0, RTT, at(0.0));
        assert_eq!(window.size(), 17.0);
    }

    #[test]
    fn reno_halves_and_a_timeout_begins_with_one() {
        let mut window = Window::new(Congestion::NewReno, 20.0, 1.0);
        window.on_loss();
        assert_eq!((window.size(), window.threshold()), (10.0, 10.0));
        window.on_timeout(true);
        assert_eq!((window.size(), window.threshold()), (1.0, 5.0));
        window.on_timeout(false);
        assert_eq!(window.threshold(), 5.0, "once for each loss");
    }

    #[test]
    fn cubic_is_back_after_k_seconds() {
        // RFC 9438 eq. 2: K = cbrt(W_max * (1 - beta) / C) = cbrt(400 * 0.3 / 0.4) = 6.69 s.
        let mut window = Window::new(Congestion::Cubic, 400.0, 1.0);
        window.on_loss();
        assert!((window.size() - 280.0).abs() < 1e-9);
        let (mut time, mut back) = (0.0, None);
        while time < 10.0 {
            let size = window.size();
            window.on_ack(size, RTT, at(time));
            if back.is_none() && window.size() > 399.9 {
                back = Some(time);
            }
            time += RTT.as_secs_f64();
        }
        let back = back.expect("it comes back");
        // Linux rounds towards the origin: back when less than one segment is missing, 1.36 s
        // sooner, and a round trip ahead.
        assert!((4.7..5.7).contains(&back), "{back}");
        assert!(window.size() > 410.0, "and goes beyond");
    }

    #[test]
    fn cubic_grows_by_a_twentieth_before_the_first_loss() {
        let mut window = Window::new(Congestion::Cubic, 100.0, 1.0);
        for n in 0..3 {
            let size = window.size();
            window.on_ack(size, RTT, at(f64::from(n) * 0.1));
            assert_eq!(window.size(), size + 5.0);
        }
        // After a loss the cubic function alone says: 0.4 segments a second cubed, with a plateau.
        window.on_loss();
        let size = window.size();
        assert_eq!(size, 80.0, "whole segments: 115 * 0.7 = 80.5");
        window.on_ack(size, RTT, at(0.4));
        assert!(window.size() <= size + 3.0, "{}", window.size());
    }

    fn round(sample: u64, min: u64, acked: u64, next: u64) -> Round {
        let ms = Duration::from_millis;
        let (sample, min) = (ms(sample), ms(min));
        Round {
            sample,
            min,
            acked,
            next,
        }
    }

    #[test]
    fn hystart_notices_a_growing_round_trip() {
        let mut hystart = HyStart::default();
        let time = |n: u64| at(n as f64 * 0.003);
        for n in 0..20 {
            assert!(!hystart.is_enough(round(40, 40, n, 20), 32.0, time(n)));
        }
        let found = (20..40).find(|n| hystart.is_enough(round(46, 40, *n, 60), 64.0, time(*n)));
        assert_eq!(found, Some(28), "the ninth sample of the round");
    }

    #[test]
    fn hystart_notices_half_a_round_trip_of_close_acknowledgements() {
        let mut hystart = HyStart::default();
        let time = |n: u64| at(n as f64 * 0.001);
        let found = (0..60).find(|n| hystart.is_enough(round(40, 40, *n, 60), 64.0, time(*n)));
        assert_eq!(found, Some(21));
    }
}
