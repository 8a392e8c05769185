//! Rate control: the modulation of a sender's next attempt.
//!
//! Four kinds, as in the papers: one constant rate; a sampling control that maximises expected
//! throughput and tolerates retries (Minstrel-like); a control that requires delivery first (as
//! 802.11n drivers with block acknowledgement do); and steps by success and failure (ARF-like).
//! Scope: one destination per control. Does not model: multi-rate retry tables of a particular
//! chip.

use hawser_units::{Duration, Instant};

use super::phy::PhyRate;
use crate::Random;

/// Rate control towards one destination.
#[derive(Clone, Debug)]
pub struct RateControl {
    rates: Vec<PhyRate>,
    kind: Kind,
    /// Smoothed share of attempts that were acknowledged, by rate.
    delivery: Vec<f64>,
    tried: Vec<u32>,
    succeeded: Vec<u32>,
    updated: Instant,
    current: usize,
    streak: u32,
    failures: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Fixed,
    Throughput,
    DeliveryFirst,
    Stepping,
}

impl RateControl {
    /// Creates a control with one constant rate.
    #[must_use]
    pub fn fixed(rate: PhyRate) -> Self {
        Self::new(vec![rate], Kind::Fixed)
    }

    /// Creates a control that uses the rate with the highest expected throughput, even if most of
    /// its frames need several attempts; every tenth frame samples another rate.
    ///
    /// Source: the Minstrel algorithm's published description (windows of 100 ms, a weight of 75 %
    /// for the past, 10 % sampling).
    #[must_use]
    pub fn throughput(rates: Vec<PhyRate>) -> Self {
        Self::new(rates, Kind::Throughput)
    }

    /// Creates a control that uses the fastest rate whose delivery is at least 90 % of that of the
    /// most reliable rate, or of 90 % if that is lower; a higher loss may be due to collisions.
    ///
    /// Source: for the tenth that collisions may take, Linux `minstrel_ht_get_tp_avg`, which limits
    /// a rate's share to 90 % for the same reason.
    #[must_use]
    pub fn delivery_first(rates: Vec<PhyRate>) -> Self {
        Self::new(rates, Kind::DeliveryFirst)
    }

    /// Creates a control that steps up after ten successes, and down after two consecutive
    /// failures.
    ///
    /// Source: Kamerman and Monteban 1997 (ARF).
    #[must_use]
    pub fn stepping(rates: Vec<PhyRate>) -> Self {
        Self::new(rates, Kind::Stepping)
    }

    /// Creates a control. `rates`: slowest first, at least one.
    fn new(rates: Vec<PhyRate>, kind: Kind) -> Self {
        assert!(!rates.is_empty(), "a rate control has a rate");
        let count = rates.len();
        Self {
            current: if kind == Kind::Stepping { 0 } else { count - 1 },
            rates,
            kind,
            delivery: vec![0.9; count],
            tried: vec![0; count],
            succeeded: vec![0; count],
            updated: Instant::ZERO,
            streak: 0,
            failures: 0,
        }
    }

    /// Returns the rate of a frame's attempt, counted from 0. Later attempts use slower rates, the
    /// last ones the slowest.
    pub fn choose(&mut self, attempt: u8, random: &mut Random) -> PhyRate {
        let index = match self.kind {
            Kind::Fixed => 0,
            Kind::Stepping => self.current,
            Kind::Throughput => match attempt {
                0 if self.rates.len() > 1 && random.chance(SAMPLING) => {
                    (random.uniform() * self.rates.len() as f64) as usize
                }
                0..=3 => self.current,
                4 | 5 => self.highest_delivery(),
                _ => 0,
            },
            Kind::DeliveryFirst => match attempt {
                0 if self.current + 1 < self.rates.len() && random.chance(SAMPLING / 2.0) => self.current + 1,
                0 | 1 => self.current,
                _ => self.current.saturating_sub(usize::from(attempt) - 1),
            },
        };
        self.rates[index]
    }

    /// Handles the outcome of `tried` frames sent at `rate`, of which `succeeded` were
    /// acknowledged.
    pub fn on_outcome(&mut self, rate: PhyRate, tried: u32, succeeded: u32, now: Instant) {
        let Some(index) = self.rates.iter().position(|known| *known == rate) else {
            return;
        };
        self.tried[index] += tried;
        self.succeeded[index] += succeeded;
        match self.kind {
            Kind::Fixed => {}
            Kind::Stepping => self.step(succeeded > 0),
            Kind::Throughput | Kind::DeliveryFirst => {
                if now.since(self.updated) >= WINDOW {
                    self.updated = now;
                    self.update();
                }
            }
        }
    }

    fn step(&mut self, ok: bool) {
        if ok {
            self.failures = 0;
            self.streak += 1;
            if self.streak >= 10 {
                self.streak = 0;
                self.current = (self.current + 1).min(self.rates.len() - 1);
            }
        } else {
            self.streak = 0;
            self.failures += 1;
            if self.failures >= 2 {
                self.failures = 0;
                self.current = self.current.saturating_sub(1);
            }
        }
    }

    fn update(&mut self) {
        for index in 0..self.rates.len() {
            if self.tried[index] > 0 {
                let share = f64::from(self.succeeded[index]) / f64::from(self.tried[index]);
                self.delivery[index] = PAST * self.delivery[index] + (1.0 - PAST) * share;
            }
            (self.tried[index], self.succeeded[index]) = (0, 0);
        }
        self.current = match self.kind {
            Kind::DeliveryFirst => {
                // Collisions affect all rates alike, so they are no evidence against one; a rate
                // that is seldom sampled may not have met them yet.
                let most = self.delivery[self.highest_delivery()].min(UNDISTURBED);
                let good = |index: &usize| self.delivery[*index] >= RELIABLE * most;
                (0..self.rates.len()).rev().find(good).unwrap_or(0)
            }
            Kind::Fixed | Kind::Stepping | Kind::Throughput => self.best(),
        };
    }

    fn best(&self) -> usize {
        let throughput = |index: &usize| {
            // A rate that delivers less than one in ten attempts is not used.
            let delivery = self.delivery[*index];
            if delivery < 0.1 {
                0.0
            } else {
                delivery * self.rates[*index].as_bps() as f64
            }
        };
        let best = (0..self.rates.len()).max_by(|a, b| throughput(a).total_cmp(&throughput(b)));
        best.unwrap_or(0)
    }

    fn highest_delivery(&self) -> usize {
        let best = (0..self.rates.len()).max_by(|a, b| self.delivery[*a].total_cmp(&self.delivery[*b]));
        best.unwrap_or(0)
    }
}

/// Share of attempts at another rate. Source: `lookaround_rate_mrr` of
/// net/mac80211/rc80211_minstrel.c of Linux.
const SAMPLING: f64 = 0.1;
/// Interval between evaluations of the counters. Source: `update_interval` of Minstrel.
const WINDOW: Duration = Duration::from_millis(100);
/// Weight of the earlier estimate. Source: `EWMA_LEVEL` of Minstrel (96 of 128).
const PAST: f64 = 0.75;
/// Minimum delivery of a rate for delivery-first. Source: our choice; a rate of which a tenth is
/// lost needs one retry in ten frames, which block acknowledgements hide.
const RELIABLE: f64 = 0.9;
/// Maximum delivery that is required of a rate in the presence of other senders. Source: our
/// choice, [`RELIABLE`]: collisions of a tenth are normal on a channel with others.
const UNDISTURBED: f64 = 0.9;

#[cfg(test)]
mod tests {
    use super::super::phy::Standard;
    use super::*;

    /// The share of frames sent at each rate when each is lost with the given probability.
    fn settle(mut control: RateControl, loss: impl Fn(PhyRate) -> f64) -> Vec<(PhyRate, f64)> {
        let mut random = Random::new(1, "rate");
        let mut counts = std::collections::BTreeMap::new();
        let mut now = Instant::ZERO;
        for frame in 0..20_000 {
            for attempt in 0..7 {
                let rate = control.choose(attempt, &mut random);
                let ok = !random.chance(loss(rate));
                now += Duration::from_micros(400);
                control.on_outcome(rate, 1, u32::from(ok), now);
                if frame > 10_000 {
                    *counts.entry(rate).or_insert(0.0) += 1.0;
                }
                if ok {
                    break;
                }
            }
        }
        let all: f64 = counts.values().sum();
        counts
            .into_iter()
            .map(|(rate, count)| (rate, count / all))
            .collect()
    }

    fn share(of: &[(PhyRate, f64)], mbps: u16) -> f64 {
        of.iter()
            .find(|(rate, _)| *rate == PhyRate::Ofdm(mbps))
            .map_or(0.0, |(_, share)| *share)
    }

    #[test]
    fn one_accepts_retries_for_speed_and_one_insists_on_delivery() {
        // 48 is better in throughput (24 against 18 of 18), but loses half of its frames.
        let loss = |rate| match rate {
            PhyRate::Ofdm(54) => 0.95,
            PhyRate::Ofdm(24..=48) => 0.5,
            PhyRate::Ofdm(_) | PhyRate::Dsss(_) | PhyRate::Ht { .. } => 0.0,
        };
        let rates = Standard::A.rates();
        let aggressive = settle(RateControl::throughput(rates.clone()), loss);
        assert!(share(&aggressive, 48) > 0.6, "{aggressive:?}");
        let careful = settle(RateControl::delivery_first(rates), loss);
        assert!(share(&careful, 18) > 0.7, "{careful:?}");
    }

    #[test]
    fn stepping_hunts_around_the_last_good_rate() {
        let loss = |rate: PhyRate| if rate.as_bps() > 24_000_000 { 1.0 } else { 0.0 };
        let shares = settle(RateControl::stepping(Standard::A.rates()), loss);
        assert!(share(&shares, 24) > 0.5 && share(&shares, 36) < 0.3, "{shares:?}");
    }
}
