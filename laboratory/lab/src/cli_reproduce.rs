//! `hawser-lab reproduce`: the papers' evaluations, paper beside measured.

use std::collections::BTreeMap;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context;
use hawser_experiments::parallel;
use hawser_experiments::registry::EXPERIMENTS;
use hawser_experiments::reproduce::{self, OnRealPackets, Plan, Progress, Reproduction, Selected, Verdict};

use crate::progress;
use crate::real;
use crate::ways::lab_options;
use hawser_terminal::{columns, complain, say, show, unknown};

/// Runs the evaluations of the papers again and holds them against what the papers print.
///
/// Exits with 0 when nothing that was selected is outside of its interval, with 1 otherwise.
#[derive(Debug, clap::Args)]
pub(crate) struct ReproduceArgs {
    /// Papers (piconet), set-ups (H-tab2), claims (H.tab2.n2.rr) or starts of claims (H.tab2); by
    /// default all.
    #[arg(value_name = "PAPER|SETUP|CLAIM")]
    selection: Vec<String>,
    /// At how many seeds each experiment runs; fewer than 5 say little.
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    seeds: u32,
    /// Prints the result as JSON.
    #[arg(long)]
    json: bool,
    /// Writes a report with plots to this file.
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// Writes every selected claim, with what shows it, as a page of the manual to this file.
    #[arg(long, value_name = "FILE")]
    markdown: Option<PathBuf>,
    /// Shows in that page what `--real --json` has written to this file; may be given several
    /// times, also for runs of the same claims.
    #[arg(long, value_name = "FILE", requires = "markdown")]
    with: Vec<PathBuf>,
    /// Writes only what these files have anew in that page, where all else stays, and simulates
    /// nothing.
    #[arg(long, requires_all = ["markdown", "with"], conflicts_with_all = ["selection", "seeds", "json", "html", "list"])]
    only_real: bool,
    /// Writes a picture of the air of the first selected experiment that has one, at seed 1, to
    /// this file, and measures nothing.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["json", "html", "markdown", "list"])]
    timeline: Option<PathBuf>,
    /// Lists the selected claims and whether an experiment measures them, and runs nothing.
    #[arg(long)]
    list: bool,
    /// How many runs at once; by default one for each core.
    #[arg(long, value_name = "N")]
    jobs: Option<NonZeroUsize>,
    /// Measures with real packets and daemons, and asks whether Hawser does at least as well as the
    /// paper after its own headers (some two hours for each run of all; --list says of what);
    /// juggler, all-aps and multifacet on real 802.11 stacks in a kernel of their own, once each.
    #[arg(long, conflicts_with_all = ["seeds", "html", "markdown", "timeline", "jobs"])]
    real: bool,
    /// How many times each is measured.
    #[arg(long, value_name = "N", default_value_t = 2, requires = "real", value_parser = clap::value_parser!(u32).range(1..=1_000))]
    runs: u32,
    /// Runs those of piconet and flow-switch in a kernel of their own as well, in virtual time: no
    /// root, nothing that runs beside it matters, and the same seed gives the same result.
    #[arg(long, requires = "real")]
    virtual_time: bool,
    /// Keeps configurations and logs of the daemons there.
    #[arg(long, value_name = "DIR", requires = "real")]
    keep: Option<PathBuf>,
}

/// Runs the command; 0 nothing is outside, 1 something is, 2 nothing has that name.
///
/// # Errors
/// When the report cannot be written.
pub(crate) fn run(args: &ReproduceArgs) -> anyhow::Result<ExitCode> {
    let selected = match reproduce::select(&args.selection) {
        Ok(selected) => selected,
        Err(problem) => return Ok(unknown(problem)),
    };
    if args.real {
        return measure_really(&selected, args);
    }
    if args.list {
        list(&selected, args.json)?;
        return Ok(ExitCode::SUCCESS);
    }
    if let Some(path) = &args.timeline {
        return draw(&selected, path);
    }
    let real = real::read(&args.with)?;
    if let (true, Some(path)) = (args.only_real, &args.markdown) {
        return rewrite(path, &real);
    }
    let reproduction = measure(&selected, args);
    if let Some(path) = &args.markdown {
        std::fs::write(path, reproduction.to_markdown(&real))
            .with_context(|| format!("cannot write {}", path.display()))?;
    }
    if let Some(path) = &args.html {
        std::fs::write(path, reproduction.to_html())
            .with_context(|| format!("cannot write {}", path.display()))?;
    }
    if args.json {
        say!("{}", serde_json::to_string(&reproduction.to_report())?)?;
    } else {
        show!("{}", reproduction.to_text())?;
    }
    Ok(if reproduction.count(Verdict::Outside) == 0 {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

/// The exit codes of [`run`].
fn measure_really(selected: &[Selected], args: &ReproduceArgs) -> anyhow::Result<ExitCode> {
    let has_any = |claim: &String| selected.iter().any(|(_, _, known)| known.id == *claim);
    let claims: Vec<String> = real::claims().into_iter().filter(has_any).collect();
    if claims.is_empty() {
        return Ok(unknown(
            "none of the selected claims is measured on real packets; try piconet, juggler, all-aps or multifacet",
        ));
    }
    if args.list {
        say!("{}", claims.join("\n"))?;
        return Ok(ExitCode::SUCCESS);
    }
    let options = lab_options(args.keep.as_deref())?;
    let mut on_progress = |what: &str, now: &hawser_testbed::Progress<'_>| {
        progress::line(|| {
            format!(
                "{what}: {:.0} s, {:.0} kb/s",
                now.elapsed.as_secs_f64(),
                now.goodput_bps / 1e3
            )
        });
    };
    let mut failures = 0;
    let mut on_failure = |error: anyhow::Error| {
        failures += 1;
        progress::clear_line();
        complain(format_args!("{error:#}"));
    };
    let plan = real::Plan {
        runs: args.runs,
        is_virtual: args.virtual_time,
    };
    let all = real::run(selected, plan, &options, &mut on_progress, &mut on_failure);
    progress::clear_line();
    if args.json {
        say!("{}", serde_json::to_string(&all)?)?;
    } else {
        say!("{}", real::table(&all))?;
    }
    let is_as_good = failures == 0 && all.iter().all(real::Found::is_as_good);
    Ok(if is_as_good {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

/// The exit codes of [`run`].
fn rewrite(path: &Path, real: &BTreeMap<String, OnRealPackets>) -> anyhow::Result<ExitCode> {
    let place = || path.display().to_string();
    let page = std::fs::read_to_string(path).with_context(place)?;
    let page = reproduce::with_real_packets(&page, real).with_context(place)?;
    std::fs::write(path, page).with_context(|| format!("cannot write {}", path.display()))?;
    Ok(ExitCode::SUCCESS)
}

/// The exit codes of [`run`].
fn draw(selected: &[Selected], path: &Path) -> anyhow::Result<ExitCode> {
    let Some((setup, page)) = reproduce::timeline(selected, EXPERIMENTS, 1) else {
        return Ok(unknown(
            "none of the selected experiments draws the air; try multifacet",
        ));
    };
    std::fs::write(path, page).with_context(|| format!("cannot write {}", path.display()))?;
    say!("{setup} drawn to {}", path.display())?;
    Ok(ExitCode::SUCCESS)
}

fn measure(selected: &[Selected], args: &ReproduceArgs) -> Reproduction {
    let plan = Plan {
        experiments: EXPERIMENTS,
        seeds: args.seeds,
        jobs: args.jobs.unwrap_or_else(parallel::cores),
    };
    let bar = progress::bar(0);
    let reproduction = reproduce::run(selected, &plan, &|now: Progress<'_>| {
        bar.set_length(now.total as u64);
        bar.inc(1);
        bar.set_message(now.setup.to_owned());
    });
    bar.finish_and_clear();
    reproduction
}

fn list(selected: &[Selected], as_json: bool) -> anyhow::Result<()> {
    // Nothing runs without experiments: what has none is pending, or can never be measured here.
    let plan = Plan {
        experiments: &[],
        seeds: 0,
        jobs: NonZeroUsize::MIN,
    };
    let listed = reproduce::run(selected, &plan, &|_| {});
    let measured: Vec<String> = EXPERIMENTS
        .iter()
        .flat_map(|experiment| experiment.claims())
        .collect();
    if as_json {
        let mut report = serde_json::to_value(listed.to_report())?;
        for claim in report["claims"].as_array_mut().into_iter().flatten() {
            let is_measured = measured.iter().any(|id| claim["id"] == id.as_str());
            claim["experiment"] = is_measured.into();
        }
        say!("{report}")?;
        return Ok(());
    }
    let rows: Vec<Vec<String>> = listed
        .claims
        .iter()
        .map(|claim| {
            let state = if measured.contains(&claim.claim.id) {
                "experiment"
            } else {
                claim.judgement.verdict.label()
            };
            vec![
                claim.claim.id.clone(),
                state.to_owned(),
                format!("{} {}", claim.paper.id, claim.setup.place),
                claim.claim.metric.clone(),
            ]
        })
        .collect();
    say!("{}", columns(&["claim", "state", "place", "what"], &rows, ""))?;
    say!(
        "\n{} claims, {} with an experiment",
        rows.len(),
        measured_of(&listed, &measured)
    )?;
    Ok(())
}

fn measured_of(listed: &Reproduction, measured: &[String]) -> usize {
    let has_experiment = |id: &String| measured.contains(id);
    listed
        .claims
        .iter()
        .filter(|claim| has_experiment(&claim.claim.id))
        .count()
}
