use hawser_units::{Instant, PathId};

use super::{Choice, Demand, PathView, Scheduler, wait};

/// Sends one packet on each path in turn; a path that is not ready misses its turn.
///
/// Source: Piconet section IV ("RR"). Cost: O(paths) a packet.
#[derive(Clone, Debug, Default)]
pub struct RoundRobin {
    last: Option<PathId>,
}

impl RoundRobin {
    /// Creates a scheduler that starts with the first path.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Returns the next path in turn for which `eligible` returns true.
    pub(super) fn next(&mut self, paths: &[PathView], eligible: impl Fn(&PathView) -> bool) -> Option<usize> {
        let after = self
            .last
            .map_or(0, |last| paths.partition_point(|path| path.id <= last));
        let turn = (after..paths.len()).chain(0..after.min(paths.len()));
        let path = turn.into_iter().find(|&path| eligible(&paths[path]))?;
        self.last = Some(paths[path].id);
        Some(path)
    }
}

impl Scheduler for RoundRobin {
    fn name(&self) -> &'static str {
        "round-robin"
    }

    fn choose(&mut self, _demand: &Demand, paths: &[PathView], now: Instant) -> Choice {
        match self.next(paths, |path| path.is_ready(now)) {
            Some(path) => Choice::Send { path, packets: 1 },
            None => wait(paths, now),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{demand, open, selected_path};
    use super::*;
    use hawser_units::InnerBytes;

    #[test]
    fn takes_turns_and_keeps_its_place_when_paths_change() {
        let mut scheduler = RoundRobin::new();
        let mut paths = vec![open(1, 1, 5), open(2, 100, 5), open(3, 10, 50)];
        let mut turn = |paths: &[PathView]| {
            paths[selected_path(scheduler.choose(&demand(1000, 9), paths, Instant::ZERO))]
                .id
                .0
        };
        assert_eq!(
            [turn(&paths), turn(&paths), turn(&paths), turn(&paths)],
            [1, 2, 3, 1]
        );
        paths[1].window = InnerBytes(0);
        assert_eq!([turn(&paths), turn(&paths)], [3, 1]);
        paths.remove(0);
        paths[0].window = InnerBytes(1);
        assert_eq!([turn(&paths), turn(&paths), turn(&paths)], [2, 3, 2]);
    }
}
