//! Comparison of systems: the same scenario over each of them, round by round.

use std::collections::BTreeMap;

use hawser_netem::report::{Series, Spread};
use hawser_netem::scenario::{Scenario, Via};
use hawser_units::Duration;
use serde::Serialize;

use crate::arm::{self, Options, Progress};
use crate::report::{Report, mbps};

/// Runs of several systems, interleaved so that changes of the machine's load affect all of them.
#[derive(Clone, Debug, Serialize)]
pub struct Comparison {
    /// Run with the median goodput of the scenario's own system.
    #[serde(flatten)]
    pub main: Report,
    /// Results of every system, in the order of the request.
    pub arms: Vec<Arm>,
    /// Single network with the highest median goodput, if single networks were run.
    pub best_single: Option<String>,
    /// Median goodput of the scenario's own system over that of `best_single`.
    pub over_best_single: Option<f64>,
}

/// Runs of one system.
#[derive(Clone, Debug, Serialize)]
pub struct Arm {
    /// System that transferred the traffic.
    pub via: String,
    /// Medians over the runs, with the extremes.
    pub summary: BTreeMap<&'static str, Spread>,
    /// Goodput of the median run, in bins of [`OVER_TIME`]. Units: bit/s.
    pub over_time_bps: Vec<f64>,
    /// Runs in order, without their series.
    pub runs: Vec<Report>,
}

/// Runs `scenario` `rounds` times over each of `ways`, the first of which is the scenario's own.
///
/// # Errors
/// When a run fails; the first failure ends the comparison.
pub fn compare(
    scenario: &Scenario,
    ways: &[Via],
    rounds: u32,
    options: &Options,
    on_progress: &mut dyn FnMut(&Progress<'_>),
) -> anyhow::Result<Comparison> {
    let mut runs: Vec<Vec<Report>> = ways.iter().map(|_| Vec::new()).collect();
    for round in 0..rounds.max(1) {
        let mut scenario = scenario.clone();
        scenario.seed = scenario.seed.wrapping_add(u64::from(round));
        for (via, runs) in ways.iter().zip(&mut runs) {
            let report = arm::run(&scenario, via, options, on_progress)
                .map_err(|error| error.context(format!("via {}", via.label())))?;
            runs.push(report);
        }
    }
    Ok(Comparison::of(runs))
}

impl Comparison {
    /// Summarizes the runs of each system, the scenario's own first.
    ///
    /// # Panics
    /// When there is no system, or a system without runs.
    #[must_use]
    pub fn of(runs: Vec<Vec<Report>>) -> Self {
        let main = median_run(&runs[0]).clone();
        let arms: Vec<Arm> = runs.into_iter().map(Arm::new).collect();
        let best = arms
            .iter()
            .filter(|arm| arm.via.starts_with("single:"))
            .max_by(|a, b| a.goodput().total_cmp(&b.goodput()));
        let best_single = best
            .and_then(|arm| arm.via.strip_prefix("single:"))
            .map(str::to_owned);
        let over_best_single = best
            .map(|best| arms[0].goodput() / best.goodput())
            .filter(|ratio| ratio.is_finite());
        Self {
            main,
            best_single,
            over_best_single,
            arms,
        }
    }
}

impl Arm {
    fn new(mut runs: Vec<Report>) -> Self {
        let via = runs.first().map_or(String::new(), |run| run.via.clone());
        let mut summary = BTreeMap::new();
        let mut add = |name, value: &dyn Fn(&Report) -> Option<f64>| {
            if let Some(spread) = Spread::of(runs.iter().filter_map(value).collect()) {
                summary.insert(name, spread);
            }
        };
        add("goodput_bps", &|run| Some(run.goodput_bps.total));
        add("share_of_ideal", &|run| run.share_of_ideal);
        add("share_of_sum", &|run| run.share_of_sum);
        add("share_of_oracle", &|run| run.share_of_oracle);
        add("share_of_stream_oracle", &|run| run.share_of_stream_oracle);
        add("longest_gap_ms", &|run| Some(run.longest_gap_ms));
        add("longest_gap_after_events_ms", &|run| {
            run.longest_gap_after_events_ms
        });
        add("rtt_p50_ms", &|run| run.rtt_ms.map(|rtt| rtt.p50));
        add("rtt_p99_ms", &|run| run.rtt_ms.map(|rtt| rtt.p99));
        add("retransmitted", &|run| Some(run.retransmitted as f64));
        add("cpu_seconds_per_gigabyte", &|run| {
            let seconds = run.cpu_seconds.client + run.cpu_seconds.hub;
            let gigabytes = run.delivered_bytes() as f64 / 1e9;
            (seconds > 0.0 && gigabytes > 0.0).then(|| seconds / gigabytes)
        });
        let over_time_bps = if runs.is_empty() {
            Vec::new()
        } else {
            over_time(&median_run(&runs).series)
        };
        for run in &mut runs {
            run.series.bytes.clear();
            run.series.workloads.clear();
            run.series.networks.clear();
        }
        Self {
            via,
            summary,
            over_time_bps,
            runs,
        }
    }

    fn goodput(&self) -> f64 {
        self.summary
            .get("goodput_bps")
            .map_or(0.0, |spread| spread.median)
    }
}

impl Comparison {
    /// Returns a table for a terminal.
    #[must_use]
    pub fn to_text(&self) -> String {
        let rounds = self.arms.first().map_or(0, |arm| arm.runs.len());
        let mut lines = vec![
            format!("{}: medians of {rounds}, min..max in brackets", self.main.name),
            format!(
                "  {:<18} {:>14} {:<18} {:>8} {:>8} {:>9} {:>9} {:>8} {:>8}",
                "via", "goodput", "", "of ideal", "of sum", "of oracle", "gap ms", "rtt ms", "cpu s/GB"
            ),
        ];
        for arm in &self.arms {
            let value = |name: &str, digits: usize| {
                arm.summary
                    .get(name)
                    .map_or("-".into(), |spread| format!("{:.digits$}", spread.median))
            };
            let spread = arm.summary.get("goodput_bps");
            lines.push(format!(
                "  {:<18} {:>14} {:<18} {:>8} {:>8} {:>9} {:>9} {:>8} {:>8}",
                arm.via,
                mbps(arm.goodput()),
                spread.map_or(String::new(), |s| format!(
                    "[{:.2}..{:.2}]",
                    s.min / 1e6,
                    s.max / 1e6
                )),
                value("share_of_ideal", 3),
                value("share_of_sum", 3),
                value("share_of_oracle", 3),
                value("longest_gap_ms", 0),
                value("rtt_p50_ms", 1),
                value("cpu_seconds_per_gigabyte", 2),
            ));
        }
        if let (Some(best), Some(ratio)) = (&self.best_single, self.over_best_single) {
            lines.push(format!("  {:.2} times the best single network ({best})", ratio));
        }
        lines.join("\n") + "\n"
    }
}

fn over_time(series: &Series) -> Vec<f64> {
    let together = (OVER_TIME.as_millis() as u64 / series.bin_ms.max(1)).max(1) as usize;
    // An incomplete last bin would show too low a rate, and is left out.
    let bins = series.bytes.chunks_exact(together);
    bins.map(|bins| bins.iter().sum::<u64>() as f64 * 8.0 / OVER_TIME.as_secs_f64())
        .collect()
}

fn median_run(runs: &[Report]) -> &Report {
    let mut order: Vec<&Report> = runs.iter().collect();
    order.sort_by(|a, b| a.goodput_bps.total.total_cmp(&b.goodput_bps.total));
    order[order.len() / 2]
}

/// Bin of a series, long enough to hold more than one burst of a slow network. Source: our choice;
/// a longer one hides pauses, a shorter one shows each burst.
pub const OVER_TIME: Duration = Duration::from_millis(200);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_spread_has_a_true_median() {
        let spread = |values: &[f64]| Spread::of(values.to_vec()).map(|s| (s.min, s.median, s.max));
        assert_eq!(spread(&[3.0, 1.0, 2.0]), Some((1.0, 2.0, 3.0)));
        assert_eq!(spread(&[4.0, 1.0]), Some((1.0, 2.5, 4.0)));
        assert_eq!(spread(&[]), None);
    }
}
