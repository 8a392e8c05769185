//! Flow switch's evaluation with the daemon: two own networks of the machine, without a hub.
//!
//! Scope: figure 3 without power, the laptop of figure 7, and figure 8, with the networks of the
//! simulated evaluation. Deviates: five greedy connections replace a downloader that divides a
//! file; as the downloader does, a connection that ends with its network is opened again.

use hawser_netem::QueueBound;
use hawser_units::Duration;

use super::found::Measured;
use super::lab::{Carrier, Lab, Link, Stated};
use super::{Evaluation, Group};
use crate::cli_bench_direct::{Half, Load, median, rounds};

pub(super) const GROUP: Group<Evaluation> = Group {
    evaluations: EVALUATIONS,
    sources: &[include_str!("lab.rs"), include_str!("flow_switch.rs")],
};

/// Evaluation of processor time.
pub(super) const COSTS: Group<Evaluation> = Group {
    evaluations: &[Evaluation {
        setup: "A-fig3",
        claims: || ["A.fig3a", "A.fig3b", "A.fig3c"].map(str::to_owned).to_vec(),
        run: costs,
    }],
    sources: &[
        include_str!("../cli_bench_direct.rs"),
        include_str!("flow_switch.rs"),
    ],
};

const EVALUATIONS: &[Evaluation] = &[
    Evaluation {
        setup: "A-fig7",
        claims: || vec!["A.fig7.laptop".to_owned()],
        run: together,
    },
    Evaluation {
        setup: "A-fig8",
        claims: || vec!["A.fig8.alive".to_owned()],
        run: outages,
    },
];

/// Figure 3: cost of the switch for a flow, compared with the same flow without it in the same
/// minute. The processor time includes both ends of the connection.
fn costs(lab: &mut Lab<'_>) -> anyhow::Result<Vec<Measured>> {
    let load = Load {
        flows: 2_000,
        seconds: 3,
    };
    let rounds = rounds(lab.options(), ROUNDS, load, |_, _| Ok(()))?;
    let more = |of: fn(&Half) -> f64| {
        let pairs = rounds.with.iter().zip(&rounds.without);
        100.0 * (median(pairs.map(|(with, without)| of(with) / of(without))) - 1.0)
    };
    let of = |halves: &[Half], of: fn(&Half) -> f64| median(halves.iter().map(of));
    let numbers = |name: &str, value: fn(&Half) -> f64| {
        vec![
            (format!("{name} without"), of(&rounds.without, value)),
            (format!("{name} with"), of(&rounds.with, value)),
        ]
    };
    let gbps = |half: &Half| half.goodput_bps / 1e9;
    Ok(vec![
        Measured::maximum("A.fig3a", -more(gbps)).with(numbers("Gbit/s", gbps)),
        Measured::maximum("A.fig3b", more(|half| half.later_us)).with(numbers("us", |half| half.later_us)),
        Measured::maximum("A.fig3c", more(|half| half.cpu_s_per_gigabyte))
            .with(numbers("s/GB", |half| half.cpu_s_per_gigabyte)),
    ])
}

/// Figure 7: both networks together, compared with the sum of each alone.
fn together(lab: &mut Lab<'_>) -> anyhow::Result<Vec<Measured>> {
    let alone = alone(lab)?;
    let both = lab.bulk(&networks(&[WIFI, WIMAX]).by(Carrier::Direct), CONNECTIONS, LENGTH)?;
    let both = mean(&both, SETTLED, LENGTH.as_secs() as usize);
    let numbers = vec![
        ("WiFi in Mb/s".to_owned(), alone[0]),
        ("WiMAX in Mb/s".to_owned(), alone[1]),
        ("both in Mb/s".to_owned(), both),
    ];
    let share = 100.0 * both / (alone[0] + alone[1]);
    Ok(vec![
        Measured::rate("A.fig7.laptop", share, 1.0, 1.0).with(numbers),
    ])
}

/// Figure 8: WiFi is down from 20 s to 40 s, WiMAX from 60 s to 80 s.
fn outages(lab: &mut Lab<'_>) -> anyhow::Result<Vec<Measured>> {
    let [wifi, wimax] = alone(lab)?;
    let second = Duration::from_secs(1);
    let mut stated = networks(&[WIFI, WIMAX]).by(Carrier::Direct);
    stated.outages = vec![(0, second * 20, second * 40), (1, second * 60, second * 80)];
    let rates = lab.bulk(&stated, CONNECTIONS, second * 90)?;
    let is_alive = rates.iter().all(|rate| *rate > 0.0);
    // Excludes a second or two after each change, which depends on the transports.
    let parts = [
        ("WiFi off", 22, 40, wimax),
        ("WiMAX off", 62, 80, wifi),
        ("both at first", 4, 20, wifi + wimax),
        ("both again", 45, 60, wifi + wimax),
    ];
    let measured = parts.map(|(name, from, to, expected)| (name, mean(&rates, from, to), expected));
    // The rate cannot exceed the sum; a tenth less still counts as about the sum.
    let is_about = measured.iter().all(|(_, rate, expected)| *rate >= 0.9 * expected);
    let numbers = measured.iter().flat_map(|(name, rate, expected)| {
        [
            ((*name).to_owned(), *rate),
            (format!("{name}, expected"), *expected),
        ]
    });
    let silent = rates.iter().filter(|rate| **rate == 0.0).count() as f64;
    let numbers = numbers.chain([("seconds without a byte".to_owned(), silent)]);
    Ok(vec![Measured::holds(
        "A.fig8.alive",
        is_alive && is_about,
        1.0,
        numbers.collect(),
    )])
}

/// Returns the throughput of each network alone, for the same number of kernel connections. Units:
/// Mbit/s.
fn alone(lab: &mut Lab<'_>) -> anyhow::Result<[f64; 2]> {
    let mut of = |network| {
        let stated = networks(&[network]).by(Carrier::Kernel);
        let rates = lab.bulk(&stated, CONNECTIONS, LENGTH)?;
        anyhow::Ok(mean(&rates, SETTLED, LENGTH.as_secs() as usize))
    };
    Ok([of(WIFI)?, of(WIMAX)?])
}

fn networks(all: &[(u64, u64)]) -> Stated {
    let queue = QueueBound::Time(Duration::from_millis(110));
    let mut stated = Stated::equal(0, 0, Duration::ZERO, queue);
    stated.links = all
        .iter()
        .map(|&(bps, ms)| Link {
            bps,
            delay: Duration::from_millis(ms),
            loss: 0.0,
        })
        .collect();
    stated
}

/// Returns the mean from one second to another.
fn mean(rates: &[f64], from: usize, to: usize) -> f64 {
    let part = rates.get(from..to.min(rates.len())).unwrap_or(&[]);
    part.iter().sum::<f64>() / part.len().max(1) as f64
}

/// Number of rounds of figure 3 per run, each without Hawser and with it. Source: a median needs
/// three.
const ROUNDS: u32 = 3;
/// Rate in bit/s, and one-way delay in ms. Source: those of the simulated evaluation
/// (`papers/flow_switch/stitching.rs` of `hawser-experiments`).
const WIFI: (u64, u64) = (8_000_000, 10);
const WIMAX: (u64, u64) = (4_000_000, 40);
/// Number of aria2's connections. Source: Flow switch section 3.2.
const CONNECTIONS: u32 = 5;
const LENGTH: Duration = Duration::from_secs(40);
/// Time after which connections have reached their rates. Units: seconds. Source: our choice; a
/// shorter time counts slow start.
const SETTLED: usize = 5;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mean_is_of_the_seconds_that_there_are() {
        let rates = [0.0, 2.0, 4.0, 9.0];
        assert_eq!(mean(&rates, 1, 3), 3.0);
        assert_eq!(mean(&rates, 3, 9), 9.0);
        assert_eq!(mean(&rates, 5, 9), 0.0);
    }
}
