//! Duration of a radio's stay on each of several channels.

use hawser_units::Duration;

/// Parameters by which slots follow from the channels' throughput.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Config {
    /// Preference of better channels: 0 is equal slots, 2 the paper's choice.
    pub preference: f64,
    /// Sum of all slots. At most the shortest retransmission timeout of a sender; otherwise the
    /// radio's absence causes timeouts.
    ///
    /// Source: All-APs section 7 (at most 200 ms).
    pub cycle: Duration,
    /// The shortest slot, so that a channel is probed and its access point can send at least one
    /// packet.
    ///
    /// Source: All-APs section 7 (10 ms).
    pub floor: Duration,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            preference: 2.0,
            cycle: Duration::from_millis(200),
            floor: Duration::from_millis(10),
        }
    }
}

impl Config {
    /// Returns the next slots from the throughput of each channel in the last slots, in any unit.
    /// The slots add up to the cycle.
    ///
    /// A slot below the floor is raised to the floor, and the other slots share the rest in
    /// proportion. Without throughput on any channel all slots are equal: a radio that stopped
    /// listening would miss the first channel with traffic. If the floors of all channels exceed
    /// the cycle, each gets the floor, and the sum exceeds the cycle.
    ///
    /// Source: All-APs eq. 6. Deviates: the paper states neither how the floor preserves the sum,
    /// nor the slots without throughput.
    /// Cost: O(channels^2) at worst, once a cycle.
    #[must_use]
    pub fn slots(&self, throughput: &[f64]) -> Vec<Duration> {
        let count = throughput.len();
        if count == 0 {
            return Vec::new();
        }
        let (cycle, floor) = (self.cycle.as_secs_f64(), self.floor.as_secs_f64());
        if floor * count as f64 >= cycle {
            return vec![self.floor; count];
        }
        let best = throughput.iter().copied().filter(|rate| rate.is_finite());
        let best = best.fold(0.0, f64::max);
        let weight = |rate: &f64| {
            // Relative to the best channel, so that the power does not overflow.
            let share = if best > 0.0 {
                (rate / best).clamp(0.0, 1.0)
            } else {
                1.0
            };
            if share.is_nan() {
                0.0
            } else {
                share.powf(self.preference)
            }
        };
        let weights: Vec<f64> = throughput.iter().map(weight).collect();
        let mut is_floored = vec![false; count];
        loop {
            let left = cycle - floor * is_floored.iter().filter(|floored| **floored).count() as f64;
            let total: f64 = weights
                .iter()
                .zip(&is_floored)
                .filter(|(_, floored)| !**floored)
                .map(|(weight, _)| weight)
                .sum();
            let slot = |index: usize| weights[index] / total * left;
            let below = (0..count).find(|index| !is_floored[*index] && slot(*index) < floor);
            if let Some(index) = below {
                is_floored[index] = true;
                continue;
            }
            return (0..count)
                .map(|index| if is_floored[index] { floor } else { slot(index) })
                .map(Duration::from_secs_f64)
                .collect();
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn silence_on_all_channels_gives_equal_slots() {
        let slots = Config::default().slots(&[0.0, 0.0]);
        assert_eq!(slots, vec![Duration::from_millis(100); 2]);
    }

    #[test]
    fn too_many_channels_get_the_floor_each() {
        let slots = Config::default().slots(&[1.0; 30]);
        assert_eq!(slots, vec![Duration::from_millis(10); 30]);
    }

    proptest! {
        #[test]
        fn slots_fill_the_cycle_and_none_is_below_the_floor(
            throughput in proptest::collection::vec(prop_oneof![Just(0.0), 0.0..1e9, Just(f64::NAN)], 1..20),
            preference in 0.0..6.0,
        ) {
            let config = Config { preference, ..Config::default() };
            let slots = config.slots(&throughput);
            let sum: f64 = slots.iter().map(Duration::as_secs_f64).sum();
            prop_assert!((sum - 0.2).abs() < 1e-6, "{sum}");
            prop_assert!(slots.iter().all(|slot| slot.as_secs_f64() > 0.01 - 1e-9));
            for (a, b) in throughput.iter().zip(&slots) {
                for (c, d) in throughput.iter().zip(&slots) {
                    if a > c {
                        prop_assert!(b >= d, "the better channel has the longer slot");
                    }
                }
            }
        }
    }
}
