//! A capacity that varies as that of a moving LTE user does.

use std::fmt::Write;

use hawser_netem::Random;

/// Returns one minute of `seconds,bytes_per_second`, ten steps per second, around `middle_mbps`.
///
/// The logarithm of the rate follows a mean-reverting random walk (an Ornstein-Uhlenbeck process):
/// it varies by a factor within seconds and stays within bounds, as in published measurements of
/// LTE.
pub(super) fn walk(seed: u64, middle_mbps: f64) -> String {
    let mut random = Random::new(seed, "lte");
    let mut text = String::from("# seconds,bytes_per_second: made by a seeded random walk, not recorded\n");
    let middle = middle_mbps.ln();
    let mut log_rate = middle;
    for step in 0..STEPS {
        log_rate += PULL * (middle - log_rate) + SPREAD * random.normal();
        let mbps = log_rate.exp().clamp(MIN * middle_mbps, MAX * middle_mbps);
        log_rate = mbps.ln();
        // Writing to a string cannot fail.
        let _ = writeln!(text, "{:.1},{:.0}", f64::from(step) / 10.0, mbps * 125_000.0);
    }
    text
}

/// Number of steps of a tenth of a second. Source: our choice, a minute; then the trace repeats.
const STEPS: u32 = 600;
/// Minimum relative to the middle rate: 5 Mbit/s where that is 18. Source: our choice, the range
/// that the demonstration states.
const MIN: f64 = 5.0 / 18.0;
/// Maximum relative to the middle rate: 40 Mbit/s where that is 18. Source: our choice, the range
/// that the demonstration states.
const MAX: f64 = 40.0 / 18.0;
/// Share of a deviation that a step removes: half of the deviation is left after 1.4 s. Source: our
/// choice; a smaller share drifts to the bounds, a larger one hardly varies.
const PULL: f64 = 0.05;
/// Scale of a step, for a standard deviation of half the middle rate. Source: our choice; a larger
/// one stays at the bounds.
const SPREAD: f64 = 0.15;
