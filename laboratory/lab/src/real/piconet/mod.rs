//! Piconet's evaluation with the daemons: every link is a neighbour's modem, and the receiver has
//! none of its own.
//!
//! Scope: sections V (ns-2) and VI (testbed), with the paper's rates, delays, queues and sizes.
//! Results of a scheduler are measured with the daemon's scheduler of that name, which chooses
//! among the links that can accept a packet at that time; where the paper names none, or only its
//! best ones, Hawser's default schedulers replace them. Limitations: the testbed's background
//! traffic, of unknown amount, is left out, and its PPP has an Ethernet header of 14 bytes here. A
//! member whose uplink fails reports this, as the paper's members do; `hawser-lab demo
//! --neighbours` shows members that leave without notice.

mod bulk;
mod constant;
mod layered;
mod testbed;

use hawser_netem::QueueBound;
use hawser_units::{Bytes, Duration};

use super::lab::{Carrier, Stated};
use super::{Evaluation, Group};

pub(super) const GROUPS: &[Group<Evaluation>] = &[
    Group {
        evaluations: bulk::EVALUATIONS,
        sources: &[LAB, HERE, include_str!("bulk.rs"), include_str!("testbed.rs")],
    },
    Group {
        evaluations: constant::EVALUATIONS,
        sources: &[LAB, HERE, include_str!("constant.rs")],
    },
    Group {
        evaluations: layered::EVALUATIONS,
        sources: &[LAB, HERE, include_str!("layered.rs")],
    },
    Group {
        evaluations: testbed::EVALUATIONS,
        sources: &[LAB, HERE, include_str!("testbed.rs")],
    },
];
const LAB: &str = include_str!("../lab.rs");
const HERE: &str = include_str!("mod.rs");

/// The paper's schedulers.
const RANDOM: Carrier = Carrier::Discipline("random");
const ROUND_ROBIN: Carrier = Carrier::Discipline("round-robin");
const WEIGHTED: Carrier = Carrier::Discipline("surplus-round-robin");
/// Schedulers, by their names in the claims.
const DISCIPLINES: [(&str, Carrier); 3] = [("random", RANDOM), ("rr", ROUND_ROBIN), ("wrr", WEIGHTED)];

/// Returns the paper's simulated links of equal rates.
fn simulated(count: usize) -> Stated {
    // ns-2's default queue, of the paper's packets.
    let queue = QueueBound::Bytes(Bytes(50 * 570));
    Stated::equal(count, 115_200, Duration::from_millis(45), queue)
}

/// Returns the paper's simulated links of different rates.
fn simulated_unequal() -> Stated {
    let mut stated = simulated(UNEQUAL.len());
    for (link, kbps) in stated.links.iter_mut().zip(UNEQUAL) {
        link.bps = kbps * 1_000;
    }
    stated
}

/// Returns whether the points increase: a rank correlation of 0.9 permits one exchanged pair of
/// adjacent points.
fn grows(points: &[f64]) -> bool {
    let falls = points.windows(2).filter(|pair| pair[0] >= pair[1]).count();
    falls <= 1 && points.first() < points.last()
}

/// Returns the claims of one set-up by the suffixes of their identifiers.
fn claims(start: &str, ends: &[&str]) -> Vec<String> {
    ends.iter().map(|end| format!("{start}{end}")).collect()
}

/// Size of the paper's transfer by TCP (section V-A). Units: bytes.
const FILE: u64 = 1_000_000;
/// Rates of the unequal links. Source: Piconet section V-A. Units: kb/s.
const UNEQUAL: [u64; 4] = [128, 64, 32, 16];
/// Shares of time for which a transient link is up. Source: Piconet section V-A. Units: percent.
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
