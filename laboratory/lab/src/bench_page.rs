//! `hawser-lab bench networks --html`: the results as one page with plots.

use hawser_experiments::reproduce::{Axis, Bars, MergedCurve, MergedPlot, Unit, escape, page};
use hawser_netem::report::Spread;
use hawser_testbed::OVER_TIME;

use crate::bench_rows::{Benchmark, Row};

/// Returns the self-contained page.
pub(crate) fn write(benchmark: &Benchmark) -> String {
    let lead = format!(
        "<p>Goodput of what runs inside, over each way to carry it; {} runs of each, interleaved. Bars end at medians, whiskers reach from the smallest to the \
         largest, and the line across them is the plain sum of the networks' rates, headers included. Curves show the run with the median, in bins of {} ms.</p>\n<p>Measured on {}.{}</p>\n",
        benchmark.runs,
        OVER_TIME.as_millis(),
        escape(&benchmark.machine.to_text()),
        tools(benchmark)
    );
    let sections = benchmark.scenarios.iter().enumerate();
    let sections: String = sections.map(|(n, row)| section(n, row)).collect();
    page("networks, alone and together", &(lead + &sections))
}

/// Returns the versions of the other tools.
fn tools(benchmark: &Benchmark) -> String {
    let said = benchmark.tools.iter().map(|tool| {
        let version = tool.version.as_deref().unwrap_or("of no known version");
        format!(" {}: {}.", escape(&tool.name), escape(version))
    });
    said.collect()
}

fn section(n: usize, row: &Row) -> String {
    format!(
        "<article>\n{}{}</article>\n",
        bars(row).to_figure(&format!("bars-{n}")),
        over_time(row).to_figure(&format!("time-{n}"))
    )
}

fn bars(row: &Row) -> Bars {
    let bar = |arm: &hawser_testbed::Arm| {
        let Spread { median, min, max } = arm.summary.get("goodput_bps")?;
        let spread = Spread {
            median: median / 1e6,
            min: min / 1e6,
            max: max / 1e6,
        };
        Some((arm.via.clone(), spread))
    };
    Bars {
        title: row.scenario.clone(),
        label: "goodput".to_owned(),
        unit: Unit::Mbps,
        rows: row.comparison.arms.iter().filter_map(bar).collect(),
        sum: row.sum_bps.map(|sum| sum / 1e6),
    }
}

fn over_time(row: &Row) -> MergedPlot {
    let step = OVER_TIME.as_secs_f64();
    let curves = row.comparison.arms.iter().map(|arm| {
        let points = arm.over_time_bps.iter().enumerate().map(|(bin, bps)| {
            let mbps = bps / 1e6;
            let only = Spread {
                median: mbps,
                min: mbps,
                max: mbps,
            };
            ((bin as f64 + 0.5) * step, only)
        });
        MergedCurve {
            name: arm.via.clone(),
            points: points.collect(),
        }
    });
    MergedPlot {
        setup: row.scenario.clone(),
        title: format!("{} over time", row.scenario),
        x: Axis::new("time", Unit::Seconds),
        y: Axis::new("goodput", Unit::Mbps),
        curves: curves.collect(),
    }
}
