//! A capacity that wanders as that of a moving LTE user does.

use std::fmt::Write;

use hawser_netem::Random;

/// One minute of `seconds,bytes_per_second`, ten steps a second, around `middle_mbps`.
///
/// The logarithm of the rate follows a random walk that is drawn back to its middle (an
/// Ornstein-Uhlenbeck process): it varies by a factor within seconds and stays between the bounds,
/// as published measurements of LTE do.
pub(super) fn walk(seed: u64, middle_mbps: f64) -> String {
    let mut random = Random::new(seed, "lte");
    let mut text = String::from("# seconds,bytes_per_second: made by a seeded random walk, not recorded\n");
    let middle = middle_mbps.ln();
    let mut log_rate = middle;
    for step in 0..STEPS {
        log_rate += PULL * (middle - log_rate) + SPREAD * random.normal();
        let mbps = log_rate.exp().clamp(LEAST * middle_mbps, MOST * middle_mbps);
        log_rate = mbps.ln();
        // Writing to a string cannot fail.
        let _ = writeln!(text, "{:.1},{:.0}", f64::from(step) / 10.0, mbps * 125_000.0);
    }
    text
}

const STEPS: u32 = 600;
/// Of the middle rate: 5 Mbit/s where that is 18.
const LEAST: f64 = 5.0 / 18.0;
/// Of the middle rate: 40 Mbit/s where that is 18.
const MOST: f64 = 40.0 / 18.0;
/// Half of a deviation is gone after 1.4 s.
const PULL: f64 = 0.05;
/// Gives a standard deviation of half the middle rate.
const SPREAD: f64 = 0.15;
