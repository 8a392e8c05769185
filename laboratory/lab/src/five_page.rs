//! `hawser-lab demo --five`: the results as a page, as JSON and as text.

use std::fmt::Write;

use hawser_experiments::reproduce::{Axis, MergedCurve, MergedPlot, Unit, escape, page};
use hawser_netem::report::{Report, Spread};
use hawser_testbed::demo::five::{CONNECTS_WITHIN, Figures, Five, FiveResult, HEARD, SystemResult};
use hawser_units::Duration;

/// Results of a demonstration with their key figures.
pub(crate) struct Page<'a> {
    five: &'a Five,
    result: &'a FiveResult,
    /// Key figures of each run of each system.
    figures: Vec<Vec<Figures>>,
    is_recorded: bool,
}

/// A column of the table: heading, figure of a run, and number of decimals.
type Column = (&'static str, fn(&Figures) -> Option<f64>, usize);

impl<'a> Page<'a> {
    pub(crate) fn new(five: &'a Five, result: &'a FiveResult, is_recorded: bool) -> Self {
        let of = |system: &SystemResult| system.runs.iter().map(|run| five.figures(run)).collect();
        Self {
            five,
            result,
            figures: result.systems.iter().map(of).collect(),
            is_recorded,
        }
    }

    /// Returns the main result in one sentence.
    pub(crate) fn headline(&self) -> String {
        let mbps: Vec<f64> = self
            .figures
            .iter()
            .filter_map(|runs| spread(runs, |run| Some(run.upload_bps / 1e6)).map(|spread| spread.median))
            .collect();
        match mbps.as_slice() {
            [hawser, mptcp, alone] => format!(
                "One upload at {hawser:.1} Mbit/s over five networks, {mptcp:.1} over MPTCP, {alone:.1} over the best alone"
            ),
            _ => String::from("nothing was measured"),
        }
    }

    /// Returns the table for a terminal.
    pub(crate) fn to_text(&self) -> String {
        let mut text = String::new();
        for (heading, figure, digits) in COLUMNS {
            // Writing to a string cannot fail.
            let _ = write!(text, "  {heading:<38}");
            for runs in &self.figures {
                let _ = write!(text, " {:>22}", said(spread(runs, *figure), *digits));
            }
            text.push('\n');
        }
        let titles = self
            .result
            .systems
            .iter()
            .map(|system| format!(" {:>22}", system.title));
        format!(
            "  {:<38}{}\n{text}{}\n",
            "",
            titles.collect::<String>(),
            self.of_the_dead()
        )
    }

    /// Returns the figures of each run as JSON.
    ///
    /// # Errors
    /// Never: every field can be serialized.
    pub(crate) fn to_json(&self) -> serde_json::Result<String> {
        let systems = self.result.systems.iter().zip(&self.figures);
        let systems = systems.map(|(system, runs)| serde_json::json!({ "way": system.title, "runs": runs }));
        serde_json::to_string_pretty(&serde_json::json!({
            "version": 1,
            "duration_s": self.five.scenario.duration.as_secs_f64(),
            "ways": systems.collect::<Vec<_>>(),
            "mptcp_by_the_dead": self.result.mptcp_by_the_dead,
        }))
    }

    /// Returns the self-contained page.
    pub(crate) fn to_html(&self) -> String {
        let rows = COLUMNS.iter().map(|(heading, figure, digits)| {
            let cells = self
                .figures
                .iter()
                .map(|runs| format!("<td class=\"n\">{}</td>", said(spread(runs, *figure), *digits)));
            format!(
                "<tr><th scope=\"row\">{heading}</th>{}</tr>\n",
                cells.collect::<String>()
            )
        });
        let heads = self
            .result
            .systems
            .iter()
            .map(|system| format!("<th scope=\"col\">{}</th>", system.title));
        let table = format!(
            "<article><div class=\"scroll\"><table><thead><tr><th scope=\"col\">{}</th>{}</tr></thead>\n\
             <tbody>\n{}</tbody></table></div></article>\n",
            match self.rounds() {
                1 => String::from("one run"),
                rounds => format!("medians of {rounds} runs (smallest to largest)"),
            },
            heads.collect::<String>(),
            rows.collect::<String>()
        );
        let body = format!(
            "<p>{}.</p>\n{}{}{table}<h2>What happened</h2>\n<p>{WHAT}</p>\n<p>{}</p>\n\
             <h2>How it was measured</h2>\n<p>{HOW} {}</p>\n",
            self.headline(),
            article(&(self.goodput().to_figure("goodput") + &self.states())),
            article(&self.call().to_figure("call")),
            escape(&self.of_the_dead()),
            if self.is_recorded { RECORDED } else { MADE }
        );
        page("five networks, one upload, one call", &body)
    }

    fn rounds(&self) -> usize {
        self.figures.first().map_or(0, Vec::len)
    }

    fn goodput(&self) -> MergedPlot {
        let sum = self.five.sum_over_time(BIN);
        let sum = curve(
            "sum of the networks, frames",
            sum.into_iter().map(|bps| bps / 1e6),
        );
        let systems = self.result.systems.iter().map(|system| {
            let bytes = binned(system.median_run(), 0, |bins| bins.iter().sum::<u64>() as f64);
            curve(
                &system.title,
                bytes
                    .into_iter()
                    .map(|bytes| bytes * 8.0 / BIN.as_secs_f64() / 1e6),
            )
        });
        plot(
            "The upload: what the server received, against what the networks could carry",
            Axis::new("goodput", Unit::Mbps),
            systems.chain([sum]).collect(),
        )
    }

    fn call(&self) -> MergedPlot {
        let systems = self.result.systems.iter().map(|system| {
            let run = system.median_run();
            let both = [1, 2].map(|workload| silences(run, workload));
            let worse = both[0].iter().zip(&both[1]).map(|(up, down)| up.max(*down));
            curve(&system.title, worse)
        });
        plot(
            "The call: the longest time without a packet, in each half second, the worse direction",
            Axis::new("gap", Unit::Millis),
            systems.collect(),
        )
    }

    /// Returns the failures of each network, below the plot and with its time axis.
    fn states(&self) -> String {
        let duration = self.five.scenario.duration.as_secs_f64();
        let names = || self.five.scenario.networks.iter().map(|network| &network.name);
        let mut svg = format!(
            "<svg viewBox=\"0 0 {WIDTH} {}\" role=\"img\" aria-label=\"When each network was dead\">\n",
            (names().count() as f64) * 20.0 + 8.0
        );
        let x = |second: f64| LEFT + (WIDTH - 16.0 - LEFT) * (second / duration).clamp(0.0, 1.0);
        let bar = |from: f64, to: f64, y: f64, fill: &str| {
            format!(
                "<rect x=\"{:.1}\" y=\"{y:.1}\" width=\"{:.1}\" height=\"12\" fill=\"{fill}\"/>\n",
                x(from),
                (x(to) - x(from)).max(1.5)
            )
        };
        for (n, name) in names().enumerate() {
            let y = n as f64 * 20.0 + 4.0;
            let _ = writeln!(
                svg,
                "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{name}</text>",
                LEFT - 8.0,
                y + 10.0
            );
            svg += &bar(0.0, duration, y, "#8fb8a6");
            for (from, to) in self.five.dead(n) {
                svg += &bar(from, to, y, "#b3261e");
            }
        }
        format!(
            "<figure>\n<figcaption>Red: the network carries nothing. {} blocks UDP all the time.</figcaption>\n{svg}</svg>\n</figure>\n",
            self.blocked()
        )
    }

    fn blocked(&self) -> String {
        let networks = self.five.scenario.networks.iter();
        let names = networks
            .filter(|network| network.blocks_udp)
            .map(|network| network.name.as_str());
        names.collect::<Vec<_>>().join(", ")
    }

    fn of_the_dead(&self) -> String {
        let dead = &self.five.scenario.networks[0].name;
        match &self.result.mptcp_by_the_dead {
            Some(said) => format!(
                "  MPTCP with the routes in the order of the networks, {dead} first, does not connect within {:.0} s ({said}); the figures \
                 above are with the best network first.",
                CONNECTS_WITHIN.min(self.five.scenario.duration).as_secs_f64()
            ),
            None => format!("  MPTCP connects with {dead} first, too."),
        }
    }
}

fn article(content: &str) -> String {
    format!("<article>\n{content}</article>\n")
}

fn plot(title: &str, y: Axis, curves: Vec<MergedCurve>) -> MergedPlot {
    MergedPlot {
        setup: String::from("five"),
        title: title.to_owned(),
        x: Axis::new("time", Unit::Seconds),
        y,
        curves,
    }
}

/// Returns a curve with one value for each [`BIN`].
fn curve(name: &str, values: impl Iterator<Item = f64>) -> MergedCurve {
    let points = values
        .enumerate()
        .map(|(n, value)| ((n as f64 + 0.5) * BIN.as_secs_f64(), Spread::only(value)));
    MergedCurve {
        name: name.to_owned(),
        points: points.collect(),
    }
}

fn binned(run: &Report, workload: usize, of: impl Fn(&[u64]) -> f64) -> Vec<f64> {
    let length = (BIN.as_millis() as u64 / run.series.bin_ms.max(1)).max(1) as usize;
    run.series.workloads[workload]
        .chunks_exact(length)
        .map(of)
        .collect()
}

/// Returns, for each [`BIN`], the longest gap between arrivals that overlaps the bin.
///
/// Units: milliseconds.
fn silences(run: &Report, workload: usize) -> Vec<f64> {
    let bin_ms = run.series.bin_ms as f64;
    let silent = std::cell::Cell::new(0.0_f64);
    binned(run, workload, |bins| {
        let mut longest = 0.0_f64;
        for bytes in bins {
            silent.set(if *bytes > 0 { 0.0 } else { silent.get() + bin_ms });
            longest = longest.max(silent.get());
        }
        longest
    })
}

fn spread(runs: &[Figures], figure: impl Fn(&Figures) -> Option<f64>) -> Option<Spread> {
    Spread::of(runs.iter().filter_map(figure).collect())
}

fn said(spread: Option<Spread>, digits: usize) -> String {
    match spread {
        None => String::from("-"),
        Some(Spread { median, min, max }) if min == max => format!("{median:.digits$}"),
        Some(Spread { median, min, max }) => format!("{median:.digits$} ({min:.digits$}..{max:.digits$})"),
    }
}

const COLUMNS: &[Column] = &[
    ("upload, Mbit/s", |run| Some(run.upload_bps / 1e6), 2),
    ("of the networks' sum", |run| Some(run.share_of_sum), 3),
    (
        "longest pause of the upload, ms",
        |run| Some(run.upload_pause_ms),
        0,
    ),
    ("longest gap of the call, ms", |run| Some(run.call_pause_ms), 0),
    (
        "gaps of the call over 100 ms",
        |run| Some(run.call_gaps as f64),
        0,
    ),
    (
        "packets of the call lost, %",
        |run| Some(run.call_lost * 100.0),
        2,
    ),
    (
        "call, one way, 99 of 100 within, ms",
        |run| Some(run.call_delay_p99_ms),
        0,
    ),
    (
        "processor time of daemons, s/GB",
        |run| run.cpu_seconds_per_gigabyte,
        1,
    ),
];

const _: () = assert!(HEARD.as_millis() == 100, "a column says so");

/// Bin of the curves, long enough that a bin holds more than one burst of a slow network. Source:
/// our choice; a longer one hides the outages.
const BIN: Duration = Duration::from_millis(500);
/// Dimensions of the plots, as on other pages. Source: `reproduce/report/chart.rs` of
/// `hawser-experiments`.
const WIDTH: f64 = 760.0;
const LEFT: f64 = 66.0;

const WHAT: &str = "One program sends as much as the network takes over one TCP connection; beside it a call sends 50 packets of \
200 bytes a second each way. modem-1 is dead from the start and returns after 30 s; modem-2 drops all UDP; modem-3 swallows \
everything from 12 s to 20 s without telling anybody; the device of modem-4 goes from 24 s to 31 s; the Starlink-like path loses \
what is on it for 120 ms each 15 s, has another delay and another rate behind that, and is dead from 41 s to 45 s.";
const HOW: &str = "Client, hub and server ran on this machine, each in a network namespace of its own, with the kernel's own TCP, \
UDP and MPTCP and the real Hawser programs. The networks between them were emulated, the same in each run. MPTCP carries the \
upload; a call over plain UDP goes by the first route, which there is the best network. Rates of networks count frames with the \
headers of every layer, the upload's its payload. Processor time is that of Hawser's client and hub; MPTCP has no daemons, and the \
kernel's share is not in it.";
const MADE: &str = "The rates of the modems were made by a seeded random walk, not recorded.";
const RECORDED: &str = "The rates of the modems are recordings that were handed in.";
