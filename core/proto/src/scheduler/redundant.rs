use hawser_units::Instant;

use super::{Choice, Demand, PathView, Scheduler, wait};

/// Sends a copy of every packet on every ready path: the first to arrive counts.
///
/// For flows where a person waits for each packet; costs the sum of the paths for the rate of one.
/// A path that is not ready is left out: waiting for it would make the fastest as slow as the
/// slowest.
///
/// Cost: O(paths) a packet.
#[derive(Clone, Debug, Default)]
pub struct Redundant;

impl Redundant {
    /// Creates a scheduler, which has no state.
    #[must_use]
    pub fn new() -> Self {
        Self
    }
}

impl Scheduler for Redundant {
    fn name(&self) -> &'static str {
        "redundant"
    }

    fn choose(&mut self, _demand: &Demand, paths: &[PathView], now: Instant) -> Choice {
        let ready = paths
            .iter()
            .take(64)
            .enumerate()
            .filter(|(_, path)| path.is_ready(now));
        match ready.fold(0, |mask, (index, _)| mask | 1 << index) {
            0 => wait(paths, now),
            mask => Choice::Duplicate(mask),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{demand, open};
    use super::*;
    use hawser_units::InnerBytes;

    #[test]
    fn copies_to_every_ready_path() {
        let mut paths = [open(1, 1, 30), open(2, 100, 5), open(3, 10, 10)];
        paths[1].window = InnerBytes(0);
        let choose = |paths: &[PathView]| Redundant::new().choose(&demand(100, 1), paths, Instant::ZERO);
        assert_eq!(choose(&paths), Choice::Duplicate(0b101));
        paths[0].ready_at = Instant::from_nanos(5);
        paths[2].window = InnerBytes(0);
        assert_eq!(choose(&paths), Choice::Wait(Instant::from_nanos(5)));
    }
}
