//! Piconet's evaluation with the daemons: every link is a neighbour's modem, the receiver has none
//! of its own.
//!
//! Scope: sections V (ns-2) and VI (testbed), with the paper's rates, delays, queues and sizes.
//! What the paper measures of a discipline is measured with the daemon's scheduler of that name,
//! which chooses among the links that can take a packet now; where it names none, or only its
//! best ones, Hawser's own schedulers stand in their place. Limitations: the testbed's background
//! traffic of unknown amount is left out, and its PPP has an Ethernet header's 14 bytes here. A
//! member whose way out goes says so here, as the paper's members do; members that leave without
//! a word are `hawser-lab demo --neighbours`.

mod bulk;
mod constant;
mod layered;
mod testbed;

use hawser_netem::QueueBound;
use hawser_units::{Bytes, Duration};

use super::Evaluation;
use super::lab::{Carrier, Stated};

pub(super) fn evaluations() -> impl Iterator<Item = &'static Evaluation> {
    let groups = [
        bulk::EVALUATIONS,
        constant::EVALUATIONS,
        layered::EVALUATIONS,
        testbed::EVALUATIONS,
    ];
    groups.into_iter().flatten()
}

/// The paper's disciplines.
const RANDOM: Carrier = Carrier::Discipline("random");
const ROUND_ROBIN: Carrier = Carrier::Discipline("round-robin");
const WEIGHTED: Carrier = Carrier::Discipline("surplus-round-robin");
/// By the names that the claims have for them.
const DISCIPLINES: [(&str, Carrier); 3] = [("random", RANDOM), ("rr", ROUND_ROBIN), ("wrr", WEIGHTED)];

/// The paper's simulated links, equal ones.
fn simulated(count: usize) -> Stated {
    // ns-2's default queue, of the paper's packets.
    let queue = QueueBound::Bytes(Bytes(50 * 570));
    Stated::equal(count, 115_200, Duration::from_millis(45), queue)
}

/// The paper's simulated links of different rates.
fn simulated_unequal() -> Stated {
    let mut stated = simulated(UNEQUAL.len());
    for (link, kbps) in stated.links.iter_mut().zip(UNEQUAL) {
        link.bps = kbps * 1_000;
    }
    stated
}

/// Whether each of five points stands above the one before: a rank correlation of 0.9 lets one pair
/// of neighbours be the other way round.
fn grows(points: &[f64]) -> bool {
    let falls = points.windows(2).filter(|pair| pair[0] >= pair[1]).count();
    falls <= 1 && points.first() < points.last()
}

/// Claims of one set-up by the ends of their ids.
fn claims(start: &str, ends: &[&str]) -> Vec<String> {
    ends.iter().map(|end| format!("{start}{end}")).collect()
}

/// What the paper transfers by TCP (section V-A). Units: bytes.
const FILE: u64 = 1_000_000;
/// Units: kb/s.
const UNEQUAL: [u64; 4] = [128, 64, 32, 16];
/// Units: percent.
const DUTIES: [u32; 5] = [0, 25, 50, 75, 100];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn growth_permits_one_pair_of_neighbours_the_other_way_round() {
        assert!(grows(&[1.0, 2.0, 3.0, 4.0, 5.0]));
        assert!(grows(&[1.0, 3.0, 2.0, 4.0, 5.0]));
        assert!(!grows(&[3.0, 2.0, 1.0, 4.0, 5.0]));
        assert!(!grows(&[2.0, 3.0, 4.0, 5.0, 1.0]));
        assert!(!grows(&[1.0, 1.0, 1.0, 1.0, 1.0]));
    }
}
