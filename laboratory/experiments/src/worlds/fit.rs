//! Distributions of networks, fitted to recordings of their rates.
//!
//! A recording is a text in one of the two forms of [`hawser_netem::Trace`]. It yields one rate per
//! second, and if single deliveries are recorded, also the waits between them. Each distribution
//! holds the deciles over all recordings, so that drawn values are those of real networks.
//!
//! Limitations: recordings of rates contain no delay, loss or queue; the ranges of these are
//! chosen, with sources, in `networks.rs`.

use serde::{Deserialize, Serialize};

/// Deciles of a quantity, ascending: its minimum, nine deciles, its maximum.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Deciles(Vec<f64>);

/// Distributions of all quantities that recordings contain.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Fit {
    /// Number of recordings.
    pub recordings: usize,
    /// Mean rate of a recording. Units: Mbit/s.
    pub mean_mbps: Deciles,
    /// Standard deviation of the logarithm of the rates of a recording's seconds.
    pub log_sd: Deciles,
    /// Correlation of the logarithms of the rates of consecutive seconds.
    pub correlation: Deciles,
    /// Share of seconds with less than [`OUTAGE_SHARE`] of the mean rate.
    pub outage_share: Deciles,
    /// Lengths of runs of such seconds, over all recordings. Units: seconds.
    pub outage_s: Deciles,
    /// 99th percentile of the wait between two deliveries minus the mean wait, if single deliveries
    /// are recorded. Units: milliseconds.
    pub wait_ms: Deciles,
}

/// Rate below which a second counts as an outage. Source: 0.01 of the mean carries two full
/// packets a second where the mean is 2 Mbit/s, the median of the slowest recordings.
const OUTAGE_SHARE: f64 = 0.01;

impl Deciles {
    fn of(mut values: Vec<f64>) -> Self {
        values.sort_by(f64::total_cmp);
        let at = |tenth: usize| {
            let position = tenth as f64 / 10.0 * values.len().saturating_sub(1) as f64;
            let (below, above) = (position.floor() as usize, position.ceil() as usize);
            let value = |index| values.get(index).copied().unwrap_or(0.0);
            let share = position - position.floor();
            round(value(below) + (value(above) - value(below)) * share)
        };
        Self((0..=10).map(at).collect())
    }

    /// Returns the value that `share` of all values do not exceed, interpolated between deciles.
    #[must_use]
    pub fn quantile(&self, share: f64) -> f64 {
        let position = share.clamp(0.0, 1.0) * self.0.len().saturating_sub(1) as f64;
        let below = self.0.get(position.floor() as usize).copied().unwrap_or(0.0);
        let above = self.0.get(position.ceil() as usize).copied().unwrap_or(below);
        below + (above - below) * (position - position.floor())
    }
}

impl Fit {
    /// Returns the committed result of [`Self::of`] for the recordings of
    /// `docs/notebook/worlds.md`.
    ///
    /// # Panics
    /// Never: a test reads the committed text.
    #[must_use]
    pub fn committed() -> Self {
        toml::from_str(include_str!("fitted.toml")).expect("the committed table is read by a test")
    }

    /// Fits distributions to recordings.
    ///
    /// # Errors
    /// Index of a recording without rates, and the reason in one line.
    pub fn of(recordings: &[String]) -> Result<Self, (usize, String)> {
        let mut fit = Samples::default();
        for (index, text) in recordings.iter().enumerate() {
            fit.add(text).map_err(|problem| (index, problem))?;
        }
        Ok(Self {
            recordings: recordings.len(),
            mean_mbps: Deciles::of(fit.mean_mbps),
            log_sd: Deciles::of(fit.log_sd),
            correlation: Deciles::of(fit.correlation),
            outage_share: Deciles::of(fit.outage_share),
            outage_s: Deciles::of(fit.outage_s),
            wait_ms: Deciles::of(fit.wait_ms),
        })
    }

    /// Returns the table in its committed form.
    ///
    /// # Panics
    /// Never: numbers and lists of numbers are TOML.
    #[must_use]
    pub fn to_toml(&self) -> String {
        let table = toml::to_string(self).expect("numbers and lists of numbers are TOML");
        format!("# Written by `hawser-lab worlds --fit DIR`: minimum, deciles, maximum.\n{table}")
    }
}

#[derive(Default)]
struct Samples {
    mean_mbps: Vec<f64>,
    log_sd: Vec<f64>,
    correlation: Vec<f64>,
    outage_share: Vec<f64>,
    outage_s: Vec<f64>,
    wait_ms: Vec<f64>,
}

impl Samples {
    fn add(&mut self, text: &str) -> Result<(), String> {
        let lines: Vec<&str> = text.lines().map(str::trim).collect();
        let is_steps = lines.iter().any(|line| line.contains(','));
        let rates = if is_steps {
            steps(&lines)?
        } else {
            let times = deliveries(&lines)?;
            self.wait_ms.push(late_wait(&times));
            counted(&times)
        };
        let mean = rates.iter().sum::<f64>() / rates.len() as f64;
        if rates.len() < MIN_SECONDS || mean <= 0.0 {
            return Err(format!(
                "has rates of {} seconds; {MIN_SECONDS} are needed",
                rates.len()
            ));
        }
        let is_out: Vec<bool> = rates.iter().map(|rate| *rate < OUTAGE_SHARE * mean).collect();
        let logs: Vec<f64> = rates
            .iter()
            .map(|rate| (rate / mean).max(OUTAGE_SHARE).ln())
            .collect();
        let (sd, correlation) = moments(&logs);
        self.mean_mbps.push(mean / 1e6);
        self.log_sd.push(sd);
        self.correlation.push(correlation);
        let outages = is_out.iter().filter(|is_out| **is_out).count();
        self.outage_share.push(outages as f64 / rates.len() as f64);
        let runs = is_out.split(|is_out| !is_out).map(<[bool]>::len);
        self.outage_s
            .extend(runs.filter(|length| *length > 0).map(|length| length as f64));
        Ok(())
    }
}

/// Returns the rate in bit/s of each line `second,bytes_per_second`.
fn steps(lines: &[&str]) -> Result<Vec<f64>, String> {
    let values = lines.iter().filter_map(|line| line.split_once(','));
    let rates = values.filter_map(|(_, bytes)| Some(bytes.trim().parse::<f64>().ok()? * 8.0));
    let rates: Vec<f64> = rates.collect();
    if rates.is_empty() {
        return Err("has no line `second,bytes_per_second`".to_owned());
    }
    Ok(rates)
}

/// Returns the times of all deliveries of a packet of 1500 bytes. Units: ms.
fn deliveries(lines: &[&str]) -> Result<Vec<u64>, String> {
    let lines = lines.iter().filter(|line| !line.is_empty());
    let times: Result<Vec<u64>, _> = lines.map(|line| line.parse::<u64>()).collect();
    times.map_err(|_| "has a line that is neither milliseconds nor `second,bytes_per_second`".to_owned())
}

/// Returns the rate of each whole second. Units: bit/s.
fn counted(times: &[u64]) -> Vec<f64> {
    let seconds = times.last().map_or(0, |last| last / 1000) as usize;
    let mut rates = vec![0.0; seconds];
    for time in times {
        if let Some(rate) = rates.get_mut((time / 1000) as usize) {
            *rate += DELIVERY_BITS;
        }
    }
    rates
}

/// Returns the 99th percentile of waits between deliveries, minus their mean.
fn late_wait(times: &[u64]) -> f64 {
    let mut waits: Vec<u64> = times.windows(2).map(|pair| pair[1] - pair[0]).collect();
    waits.sort_unstable();
    let mean = waits.iter().sum::<u64>() as f64 / waits.len().max(1) as f64;
    let late = waits.get(waits.len() * 99 / 100).copied().unwrap_or(0);
    (late as f64 - mean).max(0.0)
}

/// Returns standard deviation, and correlation of consecutive values.
fn moments(values: &[f64]) -> (f64, f64) {
    let mean = values.iter().sum::<f64>() / values.len() as f64;
    let variance = values.iter().map(|value| (value - mean).powi(2)).sum::<f64>() / values.len() as f64;
    let pairs = values.windows(2).map(|pair| (pair[0] - mean) * (pair[1] - mean));
    let together = pairs.sum::<f64>() / values.len() as f64;
    let correlation = if variance > 0.0 { together / variance } else { 0.0 };
    (variance.sqrt(), correlation)
}

fn round(value: f64) -> f64 {
    (value * 1000.0).round() / 1000.0
}

/// Bits of one delivery, a packet of 1500 bytes. Source: Mahimahi, `mm-link`.
const DELIVERY_BITS: f64 = 12_000.0;
/// Minimum length of a recording for correlations of consecutive seconds. Source: 20 s, less than
/// the shortest recorded walk (26 s).
const MIN_SECONDS: usize = 20;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_committed_table_is_read_and_ascends() {
        let fit = Fit::committed();
        for deciles in [&fit.mean_mbps, &fit.log_sd, &fit.outage_s, &fit.wait_ms] {
            assert_eq!(deciles.0.len(), 11);
            assert!(deciles.0.is_sorted(), "{deciles:?}");
        }
        assert!(fit.mean_mbps.quantile(0.0) > 0.0);
        assert_eq!(
            fit.mean_mbps.quantile(1.0),
            *fit.mean_mbps.0.last().expect("eleven")
        );
    }

    #[test]
    fn both_forms_give_the_rate_that_is_in_them() {
        let steps: String = (0..40).map(|second| format!("{second},125000\n")).collect();
        let times: String = (0..4000).map(|ms| format!("{}\n", ms * 12)).collect();
        let fit = Fit::of(&[steps, times]).expect("legal");
        assert_eq!(fit.recordings, 2);
        for share in [0.0, 1.0] {
            assert!((fit.mean_mbps.quantile(share) - 1.0).abs() < 0.01, "{fit:?}");
        }
        assert_eq!(fit.outage_share.quantile(1.0), 0.0);
        assert_eq!(toml::from_str::<Fit>(&fit.to_toml()).expect("its own text"), fit);
    }

    #[test]
    fn a_text_without_rates_is_refused_by_its_index() {
        assert_eq!(Fit::of(&["no\n".to_owned()]).expect_err("no rates").0, 0);
        assert!(Fit::of(&["0,1\n1,2\n".to_owned()]).is_err(), "two seconds");
    }
}
