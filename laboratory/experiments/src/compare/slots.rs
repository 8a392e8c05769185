//! Comparison of slots sized by each network's demand with slots sized by each channel's throughput
//! (All-APs eq. 6), constant slots (Juggler section 3.4), and the faster access point without
//! slots.

use hawser_radio::delivery::slots::Config;
use hawser_radio::slots::SharesConfig;
use hawser_units::{Duration, Instant};

use super::{Comparison, Measure};
use crate::papers::juggler::lab::{Behind, Lab, Laptop, Plan, Transfer};
use crate::reproduce::Unit;

/// Comparison of one radio over two access points on two channels, with a download over each and a
/// cycle of 200 ms; the channel changes are real ones of the simulated radio.
#[derive(Clone, Copy, Debug)]
pub(super) struct Slots;

/// Rates of the access points' backhauls. Units: KB/s of 1024 bytes.
const BACKHAULS: [[f64; 2]; 7] = [
    [500.0, 500.0],
    [1500.0, 1500.0],
    [700.0, 350.0],
    [1000.0, 250.0],
    [1500.0, 500.0],
    [2000.0, 200.0],
    [2500.0, 50.0],
];
/// Factors of the neighbouring conditions, applied to both backhauls or to one of them. Source:
/// docs/notebook/slots.md, "Set-up".
const NEARBY: [f64; 3] = [0.5, 1.0, 2.0];
/// Index of the contender without slots. Source: the last of four.
const ALONE: usize = 3;
/// Time before the measurement, and its length. Source: docs/notebook/slots.md, "Set-up".
const WARM_UP: Duration = Duration::from_secs(10);
const LENGTH: Duration = Duration::from_secs(40);

impl Comparison for Slots {
    fn name(&self) -> &'static str {
        "slots"
    }

    fn question(&self) -> &'static str {
        "One radio, two access points with unequal backhauls: slots by what each needs, by what each channel gave, equal slots, or only the faster one?"
    }

    fn contenders(&self) -> &'static [&'static str] {
        &["measured", "adaptive", "fixed", "alone"]
    }

    fn measures(&self) -> &'static [Measure] {
        &[
            Measure {
                name: "both downloads",
                unit: Unit::KilobytesPerSecond,
                is_more_better: true,
            },
            Measure {
                name: "the download over the slower backhaul",
                unit: Unit::KilobytesPerSecond,
                is_more_better: true,
            },
        ]
    }

    fn conditions(&self) -> Vec<String> {
        let name = |[first, second]: [f64; 2]| format!("{first} + {second} KB/s");
        backhauls().into_iter().map(name).collect()
    }

    fn run(&self, condition: usize, contender: usize, seed: u64) -> Vec<f64> {
        if contender == ALONE {
            return vec![alone(backhauls()[condition][0], seed), 0.0];
        }
        let config = Config::default();
        let half = (config.cycle / 2).as_millis() as u32;
        let mut lab = Plan {
            seed,
            laptop: Laptop::Juggler {
                weights: vec![half; 2],
                scan: None,
                slot: MILLISECOND,
            },
            networks: [1, 11]
                .map(Behind::AccessPoint)
                .into_iter()
                .zip(backhauls()[condition])
                .collect(),
        }
        .build();
        if contender == 0 {
            lab.machine_mut().set_measured(SharesConfig {
                cycle: config.cycle,
                ..SharesConfig::default()
            });
        }
        let start = lab.start();
        let transfers = [0, 1].map(|network| lab.download(network, None, start));
        let from = start + WARM_UP;
        let end = from + LENGTH;
        let mut slots = vec![config.cycle / 2; 2];
        let mut before = [0; 2];
        while lab.network.now() < end {
            let next = lab.network.now() + config.cycle;
            lab.network.run(next);
            if contender == 1 && next > start {
                adapt(&mut lab, transfers, &mut slots, &mut before);
            }
        }
        let rate = |transfer| lab.sink(transfer).meter().rate(from, end) / 8192.0;
        let rates = transfers.map(rate);
        vec![rates[0] + rates[1], rates[1]]
    }
}

/// Returns the rate of a card with only one access point.
fn alone(backhaul: f64, seed: u64) -> f64 {
    let mut lab = Plan {
        seed,
        laptop: Laptop::Cards,
        networks: vec![(Behind::AccessPoint(1), backhaul)],
    }
    .build();
    let start = lab.start();
    let transfer = lab.download(0, None, start);
    let from = start + WARM_UP;
    let end = from + LENGTH;
    lab.network.run(end);
    lab.sink(transfer).meter().rate(from, end) / 8192.0
}

/// Returns the backhauls of the table, then those around them, each once.
fn backhauls() -> Vec<[f64; 2]> {
    let mut all = BACKHAULS.to_vec();
    for [first, second] in BACKHAULS {
        for (one, other) in NEARBY
            .into_iter()
            .flat_map(|one| NEARBY.map(|other| (one, other)))
        {
            let near = [first * one, second * other];
            // The slower access point is second, as in the table.
            let near = [near[0].max(near[1]), near[0].min(near[1])];
            if !all.contains(&near) {
                all.push(near);
            }
        }
    }
    all
}

/// Slot of weight one. Source: definition of the unit.
const MILLISECOND: Duration = Duration::from_millis(1);

/// Sets the slots of the next cycle from the data received in those of the last cycle.
fn adapt(lab: &mut Lab, transfers: [Transfer; 2], slots: &mut Vec<Duration>, before: &mut [u64; 2]) {
    let now: Instant = lab.network.now();
    let came = transfers.map(|transfer| lab.sink(transfer).meter().total());
    let seen = |network: usize| (came[network] - before[network]) as f64 / slots[network].as_secs_f64();
    *slots = Config::default().slots(&[seen(0), seen(1)]);
    *before = came;
    for (id, slot) in lab.ids.clone().into_iter().zip(slots) {
        let weight = slot.as_millis() as u32;
        lab.machine_mut().parts().0.set_weight(id, weight, now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_by_need_bring_at_least_what_the_better_of_both_rules_brings() {
        for condition in [3, 5] {
            let both = |contender| Slots.run(condition, contender, 1)[0];
            let [measured, adaptive, fixed] = [0, 1, 2].map(both);
            let name = &Slots.conditions()[condition];
            assert!(
                measured > 1.1 * adaptive.max(fixed),
                "{name}: {measured}, {adaptive} and {fixed} KB/s"
            );
        }
    }

    #[test]
    fn every_condition_is_there_once() {
        let names = Slots.conditions();
        assert_eq!(names.len(), 52);
        assert!(
            names
                .iter()
                .all(|name| names.iter().filter(|one| *one == name).count() == 1)
        );
    }
}
