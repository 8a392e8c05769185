//! Observed capacity of a network: the best recent second, slowly decaying.

use hawser_units::{Bytes, Duration, Instant, Rate};

/// Meter of a network.
#[derive(Debug, Default)]
pub(super) struct Meter {
    last: Option<(u64, u64, Instant)>,
    pub(super) received: Rate,
    pub(super) sent: Rate,
    peak: f64,
    /// Reported peak; updated only on a change of 25 %.
    told: Option<Rate>,
}

impl Meter {
    /// Handles the device's counters.
    pub(super) fn handle(&mut self, received: u64, sent: u64, now: Instant) {
        let before = self.last.replace((received, sent, now));
        let Some((old_received, old_sent, then)) = before.filter(|(r, s, _)| *r <= received && *s <= sent)
        else {
            return;
        };
        let passed = now.since(then);
        let rate = |bytes: u64| Rate::of(Bytes(bytes), passed).unwrap_or_default();
        (self.received, self.sent) = (rate(received - old_received), rate(sent - old_sent));
        let best = self.busier().as_bps() as f64;
        let kept = (-passed.as_secs_f64() / HALVED_AFTER.as_secs_f64()).exp2();
        self.peak = best.max(self.peak * kept);
        let told = self.told.map_or(0.0, |rate| rate.as_bps() as f64);
        if self.peak >= MIN && !(0.8 * told..=1.25 * told).contains(&self.peak) {
            self.told = Some(Rate::from_bps(self.peak as u64));
        }
    }

    /// Returns the present rate in the busier direction.
    pub(super) fn busier(&self) -> Rate {
        self.received.max(self.sent)
    }

    /// Returns the best recent rate; `None` if the network had too little traffic.
    pub(super) fn peak(&self) -> Option<Rate> {
        self.told
    }
}

/// Half-life of the peak, because the conditions of a radio change within minutes. Source: our
/// choice; a longer one believes the rate of a place that the machine has left, a shorter one
/// forgets it during a meal.
const HALVED_AFTER: Duration = Duration::from_secs(300);
/// Rate below which the demand, not the network, is the limit. Units: bit/s. Source: our choice,
/// below nearly all networks; a lower one takes a trickle for a network's rate.
const MIN: f64 = 1e6;

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Instant {
        Instant::from_nanos(seconds * 1_000_000_000)
    }

    #[test]
    fn shows_the_best_second_and_forgets_slowly() {
        let mut meter = Meter::default();
        meter.handle(0, 0, at(0));
        meter.handle(10_000, 0, at(1));
        assert_eq!(meter.peak(), None);
        meter.handle(10_000 + 2_500_000, 0, at(2));
        assert_eq!(meter.peak(), Some(Rate::from_mbps(20)));
        meter.handle(2_510_000 + 2_750_000, 0, at(3));
        assert_eq!(meter.peak(), Some(Rate::from_mbps(20)), "within a quarter");
        for second in 4..400 {
            meter.handle(5_260_000, 0, at(second));
        }
        assert!(meter.peak().unwrap() < Rate::from_mbps(16));
    }

    #[test]
    fn a_counter_that_starts_again_is_no_rate() {
        let mut meter = Meter::default();
        meter.handle(1 << 40, 0, at(0));
        meter.handle(5, 0, at(1));
        assert_eq!((meter.peak(), meter.received), (None, Rate::default()));
    }
}
