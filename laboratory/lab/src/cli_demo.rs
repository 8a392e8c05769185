//! `hawser-lab demo`: a demonstration of two minutes.

use std::io::{IsTerminal, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context;
use hawser_terminal::{refuse, say, show};
use hawser_testbed::demo::five::{self, Five};
use hawser_testbed::demo::neighbours::{self, Modems};
use hawser_testbed::demo::{self, DemoProgress, simulated};
use hawser_testbed::{Options, check_tun};

use crate::systems::lab_options;
use crate::{five_page, trace_pairs};

/// Downloads a file over three emulated networks with Hawser, and draws a picture of the result.
///
/// With --neighbours, downloads over the own modem alone, and then with the modems of two
/// neighbours. During the download one neighbour joins, and the other leaves without notice.
///
/// If the machine permits no network namespaces or no TUN interface, as in a container, the
/// download is simulated, and the report states this.
///
/// With --five, sends an upload and a call over four modems and a path like Starlink while paths
/// fail and return. The same runs over the kernel's MPTCP and over the best path alone are
/// compared.
#[derive(Debug, clap::Args)]
pub(crate) struct DemoArgs {
    /// Output directory of the picture and the report.
    #[arg(long, value_name = "DIR", default_value = "out")]
    out: PathBuf,
    /// Size of one download, in megabytes [default: 75, with --neighbours 60].
    #[arg(long, value_name = "MB", value_parser = clap::value_parser!(u64).range(1..=100))]
    size: Option<u64>,
    /// Demonstrates the gain from the modems of two neighbours.
    #[arg(long)]
    neighbours: bool,
    /// Keeps the modems' rates constant; by default they vary as those of moving LTE users do.
    #[arg(long, requires = "neighbours")]
    constant: bool,
    /// Demonstrates an upload and a call over five networks; takes three minutes.
    #[arg(long, conflicts_with_all = ["neighbours", "size"])]
    five: bool,
    /// Replaces the synthetic modems by recordings: the first four pairs of X.down and X.up, by
    /// name.
    #[arg(long, value_name = "DIR", requires = "five")]
    recordings: Option<PathBuf>,
    /// Number of runs of each system over the five networks; runs of the systems are interleaved.
    #[arg(long, value_name = "N", requires = "five", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=100))]
    runs: u32,
    /// Simulates the download in virtual time: without root or interfaces, and reproducible.
    #[arg(long, conflicts_with_all = ["neighbours", "five", "keep"])]
    simulated: bool,
    /// Replaces a field of the scenario of `--five`, e.g. `--set duration=20s`. May be repeated.
    #[arg(long = "set", value_name = "FIELD=VALUE", requires = "five")]
    settings: Vec<String>,
    /// Keeps the daemons' configurations and logs in this directory.
    #[arg(long, value_name = "DIR")]
    keep: Option<PathBuf>,
}

/// Runs the command; exit code 0 success, 1 failure while running.
///
/// # Errors
/// When the lab cannot be built, a download fails, or the report cannot be written.
pub(crate) fn run(args: DemoArgs) -> anyhow::Result<ExitCode> {
    if args.five {
        return run_five(&args);
    }
    std::fs::create_dir_all(&args.out).with_context(|| format!("cannot create {}", args.out.display()))?;
    let options = match real_packets(&args) {
        Ok(options) => options,
        Err(error) if args.neighbours || args.keep.is_some() => return Err(error),
        Err(error) => {
            say!("No real packets here ({error:#}): the download is simulated, in virtual time.\n")?;
            None
        }
    };
    let size = args.size.map(|megabytes| megabytes * 1_000_000);
    let mut screen = Screen::new();
    let mut on_progress = |progress: &DemoProgress<'_>| screen.show(progress);
    let (name, demo) = if args.neighbours {
        let size = size.unwrap_or(neighbours::SIZE);
        say!(
            "One file of {} MB over modems of 8, 5 and 3 Mbit/s: the own one, and those of two neighbours.\n\
             First over the own one alone, then over all; Carol comes, and Bob leaves without a word.\n",
            size / 1_000_000
        )?;
        let modems = if args.constant {
            Modems::Constant
        } else {
            Modems::Wandering
        };
        let options = options.context("the demonstration of neighbours runs with real packets only")?;
        (
            "neighbours",
            neighbours::run(size, modems, &options, &mut on_progress)?,
        )
    } else {
        let size = size.unwrap_or(demo::SIZE);
        say!(
            "One file of {} MB over three networks: Wi-Fi 30 Mbit/s, LTE 5 to 40 Mbit/s, DSL 12 Mbit/s.\n\
             First over each of them alone, then over all with Hawser, while Wi-Fi dies and returns.\n",
            size / 1_000_000
        )?;
        let path = args.out.join("lte-like.csv");
        std::fs::write(&path, demo::lte_trace())
            .with_context(|| format!("cannot write {}", path.display()))?;
        let demo = match options {
            Some(options) => demo::run(size, &options, &mut on_progress)?,
            None => simulated::run(size, &mut on_progress)?,
        };
        ("demo", demo)
    };
    screen.leave();
    for (name, content) in [
        (format!("{name}.html"), demo.to_html()),
        (format!("{name}.svg"), demo.to_svg()),
    ] {
        let path = args.out.join(name);
        std::fs::write(&path, content).with_context(|| format!("cannot write {}", path.display()))?;
    }
    say!("\n{}\n\n{}", demo.headline(), demo.to_text())?;
    say!(
        "Open {} to see it.",
        args.out.join(format!("{name}.html")).display()
    )?;
    Ok(ExitCode::SUCCESS)
}

/// Prepares for real packets; returns `None` with `--simulated`.
///
/// # Errors
/// When this machine lacks a permission or a device.
fn real_packets(args: &DemoArgs) -> anyhow::Result<Option<Options>> {
    if args.simulated {
        return Ok(None);
    }
    let options = lab_options(args.keep.as_deref())?;
    check_tun()?;
    Ok(Some(options))
}

fn run_five(args: &DemoArgs) -> anyhow::Result<ExitCode> {
    let recordings = args.recordings.as_deref().map(trace_pairs::modems).transpose();
    let five = match recordings.and_then(|found| Five::read(found.unwrap_or_default(), &args.settings)) {
        Ok(five) => five,
        Err(problem) => return Ok(refuse(format!("{problem:#}"))),
    };
    std::fs::create_dir_all(&args.out).with_context(|| format!("cannot create {}", args.out.display()))?;
    let options = lab_options(args.keep.as_deref())?;
    let best = &five.scenario.networks[five.best()].name;
    say!(
        "One upload and a call over four modems and a Starlink-like path. modem-1 is dead from the start, modem-2\n\
         blocks UDP, others die and return. First with Hawser, then over MPTCP, then over {best} alone: {:.0} s each.\n",
        five.scenario.duration.as_secs_f64()
    )?;
    let mut screen = Screen::new();
    let result = five.run(args.runs, &options, &mut |progress| screen.show(progress))?;
    screen.leave();
    let page = five_page::Page::new(&five, &result, args.recordings.is_some());
    let mut files = vec![
        ("five.html".to_owned(), page.to_html()),
        ("five.json".to_owned(), page.to_json()?),
        ("five.toml".to_owned(), five::TEXT.to_owned()),
    ];
    files.extend(five.traces.clone());
    for (name, content) in files {
        let path = args.out.join(name);
        std::fs::write(&path, content).with_context(|| format!("cannot write {}", path.display()))?;
    }
    say!("\n{}\n\n{}", page.headline(), page.to_text())?;
    say!("Open {} to see it.", args.out.join("five.html").display())?;
    Ok(ExitCode::SUCCESS)
}

/// Progress display: redrawn while a download runs; without a terminal, one line per download.
struct Screen {
    is_terminal: bool,
    lines: usize,
    title: String,
}

impl Screen {
    fn new() -> Self {
        Self {
            is_terminal: std::io::stdout().is_terminal(),
            lines: 0,
            title: String::new(),
        }
    }

    fn show(&mut self, progress: &DemoProgress<'_>) {
        let is_new = self.title != progress.title;
        if is_new {
            self.leave();
            self.title = progress.title.to_owned();
        }
        if self.is_terminal {
            self.draw(&frame(progress));
        } else if is_new {
            // A failed write does not stop the demonstration, because its pages are still wanted.
            let _ = say!(
                "{} of {}: {} ...",
                progress.step.0 + 1,
                progress.step.1,
                progress.title
            );
        }
    }

    fn draw(&mut self, lines: &[String]) {
        let mut out = String::new();
        if self.lines > 0 {
            out += &format!("\x1b[{}A", self.lines);
        }
        for line in lines {
            out += &format!("\r\x1b[K{line}\n");
        }
        self.lines = lines.len();
        let _ = show!("{out}");
        // If the terminal is closed, its signal ends the command.
        let _ = std::io::stdout().flush();
    }

    /// Leaves the last frame on the screen, so that the next lines follow below.
    fn leave(&mut self) {
        self.lines = 0;
    }
}

fn frame(progress: &DemoProgress<'_>) -> Vec<String> {
    let mut lines = vec![format!(
        "\x1b[1m{:<18}\x1b[0m {} {:>3.0} %  {:>5.1} s  \x1b[1m{:>6.1} Mbit/s\x1b[0m",
        progress.title,
        bar(progress.share, "\x1b[37m"),
        progress.share * 100.0,
        progress.elapsed.as_secs_f64(),
        progress.goodput_bps / 1e6
    )];
    for (n, (name, bps)) in progress.networks.iter().enumerate() {
        let note = if progress.dead.contains(name) {
            "  \x1b[31mdead\x1b[0m"
        } else {
            ""
        };
        let colour = ["\x1b[34m", "\x1b[33m", "\x1b[32m", "\x1b[35m", "\x1b[36m"][n % 5];
        lines.push(format!(
            "    {name:<14} {} {:>6.1} Mbit/s{note}",
            bar(bps / FULL_BAR_BPS, colour),
            bps / 1e6
        ));
    }
    lines
}

fn bar(share: f64, colour: &str) -> String {
    let filled = (share.clamp(0.0, 1.0) * BAR as f64).round() as usize;
    format!(
        "{colour}{}\x1b[90m{}\x1b[0m",
        "█".repeat(filled),
        "░".repeat(BAR - filled)
    )
}

/// Width of a bar. Source: our choice, so that a line fits into 80 characters. Units: characters.
const BAR: usize = 30;
/// Rate of a full bar, the highest of a network of the demonstration. Source: the maximum of the
/// LTE-like network (`demo/lte.rs` of `hawser-testbed`). Units: bit/s.
const FULL_BAR_BPS: f64 = 40e6;
