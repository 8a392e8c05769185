//! Results of `hawser-lab bench networks`: one row for each scenario.

use hawser_netem::report::Spread;
use hawser_netem::scenario::Scenario;
use hawser_testbed::{Comparison, Tool};
use serde::Serialize;

#[derive(Debug, Serialize)]
pub(crate) struct Benchmark {
    pub(crate) version: u32,
    pub(crate) runs: u32,
    pub(crate) machine: Machine,
    pub(crate) tools: Vec<Tool>,
    pub(crate) scenarios: Vec<Row>,
}

/// Date and machine of the measurement.
#[derive(Debug, Serialize)]
pub(crate) struct Machine {
    /// Date of the measurement, UTC, as 2026-01-31; empty where `date` is missing.
    pub(crate) date: String,
    pub(crate) kernel: String,
    pub(crate) processor: String,
    pub(crate) processors: usize,
}

impl Machine {
    pub(crate) fn here() -> Self {
        let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
        let processor = read("/proc/cpuinfo").lines().find_map(|line| {
            Some(
                line.strip_prefix("model name")?
                    .split_once(':')?
                    .1
                    .trim()
                    .to_owned(),
            )
        });
        let date = std::process::Command::new("date").args(["-u", "+%F"]).output();
        Self {
            date: date.map_or(String::new(), |date| {
                String::from_utf8_lossy(&date.stdout).trim().to_owned()
            }),
            kernel: read("/proc/sys/kernel/osrelease").trim().to_owned(),
            processor: processor.unwrap_or_default(),
            processors: std::thread::available_parallelism().map_or(1, usize::from),
        }
    }

    pub(crate) fn to_text(&self) -> String {
        format!(
            "{}, Linux {}, {} x {}",
            self.date, self.kernel, self.processors, self.processor
        )
    }
}

/// Results of one scenario over every system. Units: goodput in bit/s, medians.
#[derive(Debug, Serialize)]
pub(crate) struct Row {
    pub(crate) scenario: String,
    hawser_bps: f64,
    best_single_bps: f64,
    mptcp_bps: Option<f64>,
    /// Sum of the networks' rates; mean rate of a trace.
    pub(crate) sum_bps: Option<f64>,
    /// Goodput over `sum_bps`.
    share_of_sum: Option<f64>,
    pub(crate) comparison: Comparison,
}

impl Row {
    pub(crate) fn new(name: String, scenario: &Scenario, comparison: Comparison) -> Self {
        let median = |via: &str, name: &str| spread_of(&comparison, via, name).map(|spread| spread.median);
        let own = comparison.main.via.clone();
        let best = comparison
            .best_single
            .as_ref()
            .map(|name| format!("single:{name}"));
        Self {
            scenario: name,
            sum_bps: scenario.sum_of_rates().map(|sum| sum.as_bps() as f64),
            hawser_bps: median(&own, "goodput_bps").unwrap_or(0.0),
            best_single_bps: best.and_then(|via| median(&via, "goodput_bps")).unwrap_or(0.0),
            mptcp_bps: median("mptcp", "goodput_bps"),
            share_of_sum: median(&own, "share_of_sum"),
            comparison,
        }
    }

    pub(crate) fn to_text(&self, tools: &[Tool]) -> String {
        let goodput = |via: &str| spread_of(&self.comparison, via, "goodput_bps");
        let best = self.comparison.best_single.as_deref().unwrap_or_default();
        let mut line = format!(
            "{:<20}{}{}{}",
            self.scenario,
            cell(goodput(&self.comparison.main.via)),
            cell(goodput(&format!("single:{best}"))),
            cell(goodput("mptcp"))
        );
        for tool in tools {
            line += &cell(goodput(&format!("tool:{}", tool.name)));
        }
        let ratio =
            |value: Option<f64>| value.map_or(String::from("       -"), |value| format!("{value:8.3}"));
        let of_best = (self.best_single_bps > 0.0).then(|| self.hawser_bps / self.best_single_bps);
        line + &format!(" {} {}", ratio(of_best), ratio(self.share_of_sum))
    }
}

/// Returns the spread over all runs of a system; `None` where there are none.
fn spread_of(comparison: &Comparison, via: &str, name: &str) -> Option<Spread> {
    let arm = comparison.arms.iter().find(|arm| arm.via == via)?;
    arm.summary.get(name).copied()
}

/// Formats a median with its extremes. Units: Mbit/s, from bit/s.
pub(crate) fn cell(spread: Option<Spread>) -> String {
    let text = spread.map(|spread| {
        let [median, min, max] = [spread.median, spread.min, spread.max].map(|bps| bps / 1e6);
        format!("{median:.2} {:>16}", format!("({min:.2}..{max:.2})"))
    });
    format!(" {:>25}", text.unwrap_or_else(|| "-".to_owned()))
}
