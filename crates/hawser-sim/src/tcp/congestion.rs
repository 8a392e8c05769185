//! The congestion window: how it grows with acknowledgements and shrinks with losses.

use hawser_units::{Duration, Instant};

/// How the window grows once slow start is over.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Congestion {
    /// By one segment a round trip; half of it is left after a loss. Source: RFC 5681.
    NewReno,
    /// By a cubic function of the time since the last loss. Source: RFC 9438.
    #[default]
    Cubic,
    /// By what a coupling of several subflows says ([`crate::mptcp::Coupling`]).
    Coupled,
}

impl Congestion {
    /// The algorithm of this name as Linux writes it; `None` when the model has none.
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
    /// What a coupling says: growth for each acknowledged segment, and the share that a loss leaves.
    coupled: (f64, f64),
}

/// What can be taken back when a loss turns out to be none.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Saved {
    size: f64,
    threshold: f64,
    cubic: Cubic,
}

#[derive(Clone, Copy, Debug, Default)]
struct Cubic {
    /// The window before the last reduction.
    max: f64,
    epoch: Option<Epoch>,
}

#[derive(Clone, Copy, Debug)]
struct Epoch {
    start: Instant,
    /// Seconds until the window is `origin` again.
    k: f64,
    origin: f64,
    /// The window of a Reno sender with the same average, RFC 9438 section 4.3.
    friendly: f64,
}

impl Window {
    pub(crate) fn new(algorithm: Congestion, initial: f64, threshold: f64) -> Self {
        Self {
            algorithm,
            size: initial,
            threshold,
            cubic: Cubic::default(),
            coupled: (0.0, 0.5),
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

    pub(crate) fn couple(&mut self, increase: f64, left_after_loss: f64) {
        self.coupled = (increase, left_after_loss);
    }

    /// Slow start ends here without a loss.
    pub(crate) fn leave_slow_start(&mut self) {
        self.threshold = self.size;
    }

    /// Grows by `acked` segments that were acknowledged.
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
                self.size = self.cubic.grow(self.size, acked, round_trip.as_secs_f64(), now);
            }
            Congestion::Coupled => self.size = (self.size + acked * self.coupled.0).max(1.0),
        }
    }

    /// Shrinks once for all losses of a round trip.
    pub(crate) fn on_loss(&mut self) {
        let left = match self.algorithm {
            Congestion::NewReno => 0.5,
            Congestion::Cubic => BETA,
            Congestion::Coupled => self.coupled.1,
        };
        self.cubic.shrink(self.size);
        self.threshold = (self.size * left).max(2.0);
        self.size = self.threshold;
    }

    /// Begins anew, at half of what was on its way. `is_first` when the timer has not backed off yet.
    pub(crate) fn on_timeout(&mut self, is_first: bool) {
        if is_first {
            self.on_loss();
        }
        self.size = 1.0;
        self.cubic.epoch = None;
    }

    /// Begins anew after an idle time, with the threshold that was. Source: RFC 2861, as Linux has it.
    pub(crate) fn on_idle(&mut self, restart: f64) {
        self.threshold = self.threshold.max(self.size * 0.75);
        self.size = self.size.min(restart);
        self.cubic.epoch = None;
    }

    pub(crate) fn save(&self) -> Saved {
        Saved {
            size: self.size,
            threshold: self.threshold,
            cubic: self.cubic,
        }
    }

    pub(crate) fn restore(&mut self, saved: Saved) {
        self.size = self.size.max(saved.size);
        self.threshold = self.threshold.max(saved.threshold);
        self.cubic = saved.cubic;
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

    fn grow(&mut self, size: f64, acked: f64, round_trip: f64, now: Instant) -> f64 {
        let max = self.max;
        let epoch = self.epoch.get_or_insert_with(|| {
            let origin = max.max(size);
            Epoch {
                start: now,
                k: ((origin - size) / C).cbrt(),
                origin,
                friendly: size,
            }
        });
        let t = now.since(epoch.start).as_secs_f64();
        let alpha = if epoch.friendly < max { ALPHA } else { 1.0 };
        epoch.friendly += alpha * acked / size;
        let at = |t: f64| C * (t - epoch.k).powi(3) + epoch.origin;
        if at(t) < epoch.friendly {
            return size.max(epoch.friendly);
        }
        let target = at(t + round_trip).clamp(size, 1.5 * size);
        size + (target - size) / size * acked
    }
}

/// Multiplicative decrease, RFC 9438 section 4.6.
const BETA: f64 = 0.7;
/// RFC 9438 section 5.1. Units: segments over seconds cubed.
const C: f64 = 0.4;
/// Additive increase with the average of Reno's, RFC 9438 section 4.3.
const ALPHA: f64 = 3.0 * (1.0 - BETA) / (1.0 + BETA);

/// Ends slow start when round trips grow, before the queue is full.
///
/// Source: Ha and Rhee 2008, the delay part, with the constants of Linux's `tcp_cubic.c`. Deviates: no packet trains.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct HyStart {
    round_end: u64,
    samples: u32,
    least: Duration,
}

impl HyStart {
    /// Whether the round trips of this round, up to sequence number `next`, say that a queue builds.
    pub(crate) fn is_enough(
        &mut self,
        sample: Duration,
        min: Duration,
        window: f64,
        (acked, next): (u64, u64),
    ) -> bool {
        if acked >= self.round_end {
            (self.round_end, self.samples, self.least) = (next, 0, Duration::MAX);
        }
        if self.samples >= HYSTART_SAMPLES || window < HYSTART_LOW_WINDOW {
            return false;
        }
        self.samples += 1;
        self.least = self.least.min(sample);
        let margin = (min / 8).clamp(Duration::from_millis(4), Duration::from_millis(16));
        self.samples == HYSTART_SAMPLES && self.least >= min + margin
    }
}

const HYSTART_SAMPLES: u32 = 8;
const HYSTART_LOW_WINDOW: f64 = 16.0;

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
        assert!((5.5..7.2).contains(&back), "{back}");
        assert!(window.size() > 410.0, "and goes beyond");
    }

    #[test]
    fn hystart_notices_a_growing_round_trip() {
        let mut hystart = HyStart::default();
        let ms = Duration::from_millis;
        for n in 0..20 {
            assert!(!hystart.is_enough(ms(40), ms(40), 32.0, (n, 20)));
        }
        let found = (20..40).filter(|n| hystart.is_enough(ms(46), ms(40), 64.0, (*n, 60)));
        assert_eq!(found.count(), 1);
    }
}
