use hawser_units::Instant;

use super::{Choice, Demand, PathView, Scheduler, wait};

/// Sends on the ready path with the lowest round trip.
///
/// Default of multipath TCP in Linux: fills the path with the lowest round trip, then the next.
/// Known weakness, which `earliest-delivery` avoids: the last packets of a burst use whichever slow
/// path is open.
///
/// Source: Paasch, Ferlin, Alay, Bonaventure, CSWS 2014 section 3 ("lowest-RTT-first").
/// Cost: O(paths) a run.
#[derive(Clone, Debug, Default)]
pub struct MinRtt;

impl MinRtt {
    /// Creates a scheduler, which has no state.
    #[must_use]
    pub fn new() -> Self {
        Self
    }
}

impl Scheduler for MinRtt {
    fn name(&self) -> &'static str {
        "min-rtt"
    }

    fn choose(&mut self, demand: &Demand, paths: &[PathView], now: Instant) -> Choice {
        let ready = paths.iter().enumerate().filter(|(_, path)| path.is_ready(now));
        match ready.min_by_key(|(_, path)| path.round_trip) {
            Some((path, view)) => Choice::Send {
                path,
                packets: view.run(demand),
            },
            None => wait(paths, now),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{demand, open};
    use super::*;
    use hawser_units::InnerBytes;

    #[test]
    fn fills_the_quickest_path_then_the_next() {
        let mut paths = [open(1, 1, 30), open(2, 100, 5), open(3, 10, 10)];
        let mut scheduler = MinRtt::new();
        paths[1].window = InnerBytes(4_500);
        let mut choose = |paths: &[PathView]| scheduler.choose(&demand(1000, 9), paths, Instant::ZERO);
        assert_eq!(choose(&paths), Choice::Send { path: 1, packets: 4 });
        paths[1].window = InnerBytes(0);
        assert_eq!(choose(&paths), Choice::Send { path: 2, packets: 9 });
    }
}
