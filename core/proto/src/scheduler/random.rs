use hawser_units::{Instant, split_mix};

use super::{Choice, Demand, PathView, Scheduler, wait};

/// Draws a path for each packet, each ready path with equal probability.
///
/// Baseline of every comparison: equal shares regardless of the rates, and the most reordering.
///
/// Source: Piconet section IV (the "random" policy).
/// Cost: O(paths) a packet.
#[derive(Clone, Debug)]
pub struct Random {
    state: u64,
}

impl Random {
    /// Creates a scheduler with a seed for its random numbers.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self { state: seed }
    }

    fn draw(&mut self) -> u64 {
        split_mix(&mut self.state)
    }
}

impl Scheduler for Random {
    fn name(&self) -> &'static str {
        "random"
    }

    fn choose(&mut self, _demand: &Demand, paths: &[PathView], now: Instant) -> Choice {
        let ready = || paths.iter().enumerate().filter(|(_, path)| path.is_ready(now));
        let count = ready().count() as u64;
        if count == 0 {
            return wait(paths, now);
        }
        // Multiply and shift: the bias is below 2^-57 for 64 paths.
        let drawn = (u128::from(self.draw()) * u128::from(count)) >> 64;
        match ready().nth(drawn as usize) {
            Some((path, _)) => Choice::Send { path, packets: 1 },
            None => wait(paths, now),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{demand, open, shares};
    use super::*;

    #[test]
    fn shares_are_even_whatever_the_rates() {
        let paths = [open(1, 1, 5), open(2, 100, 5), open(3, 10, 50)];
        for share in shares(&mut Random::new(1), &paths, |_| 1000, 30_000) {
            assert!((share - 1.0 / 3.0).abs() < 0.02, "{share}");
        }
    }

    #[test]
    fn equal_seeds_draw_alike() {
        let paths = [open(1, 1, 5), open(2, 1, 5)];
        let (mut a, mut b) = (Random::new(7), Random::new(7));
        for _ in 0..100 {
            let now = Instant::ZERO;
            assert_eq!(
                a.choose(&demand(1000, 1), &paths, now),
                b.choose(&demand(1000, 1), &paths, now)
            );
        }
    }
}
