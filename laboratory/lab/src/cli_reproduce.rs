//! `hawser-lab reproduce`: evaluations of the papers, published numbers against measured ones.

use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context;
use hawser_experiments::parallel;
use hawser_experiments::registry::EXPERIMENTS;
use hawser_experiments::reproduce::{self, Plan, Progress, Reproduction, Selected, Verdict};

use crate::systems::lab_options;
use crate::{papers, progress, real};
use hawser_terminal::{columns, complain, say, show, unknown};
use hawser_units::text::{TIME_UNITS, quantity};

/// Repeats the evaluations of the papers, and compares the results with the published numbers.
///
/// Exits with 0 if no selected result is outside its interval, with 1 otherwise.
#[derive(Debug, clap::Args)]
pub(crate) struct ReproduceArgs {
    /// Papers (piconet), set-ups (H-tab2), claims (H.tab2.n2.rr) or prefixes of claims (H.tab2)
    /// [default: all].
    #[arg(value_name = "PAPER|SETUP|CLAIM")]
    selection: Vec<String>,
    /// Number of seeds of each experiment; fewer than 5 are weak evidence.
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    seeds: u32,
    /// Prints the result as JSON.
    #[arg(long)]
    json: bool,
    /// Writes a report with plots to this file.
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// Writes the page of all claims to this file. Uses the results of earlier runs, and first runs
    /// what is missing or stale: --seeds runs of each evaluation, in the simulator and on real
    /// packets.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["json", "html", "list", "real", "timeline"])]
    page: Option<PathBuf>,
    /// Journal of the runs for that page [default: FILE.jsonl beside the page].
    #[arg(long, value_name = "FILE")]
    results: Option<PathBuf>,
    /// Time limit for the runs of --page or --again, e.g. 60min or 8h; 0s runs nothing and only
    /// writes the page [default: no limit; 4min for --again].
    #[arg(long, value_name = "TIME", value_parser = span)]
    budget: Option<Duration>,
    /// Restricts the runs for the page to the simulator or to real packets.
    #[arg(long, value_name = "WORLD", requires = "page")]
    world: Option<papers::World>,
    /// Repeats a tenth of the good rows of --results, drawn at random with seed N, and fails when
    /// one of these rows is no longer good.
    #[arg(long, value_name = "N", requires = "results", conflicts_with_all = ["page", "json", "html", "list", "real", "timeline", "selection"])]
    again: Option<u64>,
    /// Draws the timeline of the 802.11 channel to this file, for the first selected experiment
    /// that has one, with seed 1; measures nothing.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["json", "html", "list"])]
    timeline: Option<PathBuf>,
    /// Lists the selected claims and whether an experiment measures each, and runs nothing.
    #[arg(long)]
    list: bool,
    /// Maximum number of concurrent runs [default: number of cores].
    #[arg(long, value_name = "N")]
    jobs: Option<NonZeroUsize>,
    /// Measures with real packets and daemons, and tests whether Hawser does at least as well as
    /// the paper. About two hours per run of all claims; --list shows which are measured. Juggler,
    /// All-APs and Multifacet run on real 802.11 stacks in a separate kernel.
    #[arg(long, conflicts_with_all = ["seeds", "html", "timeline", "jobs"])]
    real: bool,
    /// Number of runs of each evaluation.
    #[arg(long, value_name = "N", default_value_t = 2, requires = "real", value_parser = clap::value_parser!(u32).range(1..=1_000))]
    runs: u32,
    /// Seed of the first run; each further run uses the next seed.
    #[arg(long, value_name = "N", default_value_t = 1, requires = "real", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    first_seed: u32,
    /// Prints the measurements of one run, for the program that started this one.
    #[arg(long, hide = true, requires = "real", conflicts_with = "json")]
    raw: bool,
    /// Also runs Piconet and Flow switch in a separate kernel in virtual time: without root,
    /// unaffected by other load, and reproducible by seed.
    #[arg(long, requires = "real")]
    virtual_time: bool,
    /// Keeps the daemons' configurations and logs in this directory.
    #[arg(long, value_name = "DIR", requires = "real")]
    keep: Option<PathBuf>,
}

/// Runs the command; exit code 0 no result is outside its interval, 1 some are, 2 an unknown name.
///
/// # Errors
/// When the report cannot be written.
pub(crate) fn run(args: &ReproduceArgs) -> anyhow::Result<ExitCode> {
    let selected = match reproduce::select(&args.selection) {
        Ok(selected) => selected,
        Err(problem) => return Ok(unknown(problem)),
    };
    if let Some(problem) = unused(args) {
        return Ok(unknown(problem));
    }
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
    if let Some(page) = &args.page {
        papers::run(&papers::Order {
            page,
            results: args.results.as_deref(),
            seeds: args.seeds,
            jobs: args.jobs.unwrap_or_else(parallel::cores),
            budget: args.budget,
            selected: &selected,
            world: args.world,
        })?;
        return Ok(ExitCode::SUCCESS);
    }
    if let (Some(seed), Some(results)) = (args.again, &args.results) {
        return papers::again(&papers::Again {
            results,
            seed,
            seeds: args.seeds,
            budget: args.budget.unwrap_or(AGAIN_LENGTH),
        });
    }
    let reproduction = measure(&selected, args);
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

/// Measures on real packets, with the exit codes of [`run`].
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
    let mut failures: Vec<String> = Vec::new();
    let mut on_failure = |error: anyhow::Error| {
        failures.push(format!("{error:#}"));
        progress::clear_line();
        complain(format_args!("{error:#}"));
    };
    let plan = real::Plan {
        first_seed: args.first_seed,
        runs: args.runs,
        is_virtual: args.virtual_time,
    };
    let measured = real::run(selected, plan, &options, &mut on_progress, &mut on_failure);
    progress::clear_line();
    if args.raw {
        let raw = real::Raw { measured, failures };
        say!("{}", serde_json::to_string(&raw)?)?;
        return Ok(ExitCode::SUCCESS);
    }
    let all: Vec<real::Found> = real::by_claim(measured).into_values().collect();
    if args.json {
        let all: Vec<serde_json::Value> = all.iter().map(real::Found::to_json).collect();
        say!("{}", serde_json::to_string(&all)?)?;
    } else {
        say!("{}", real::table(&all))?;
    }
    let is_as_good = failures.is_empty() && all.iter().all(real::Found::is_as_good);
    Ok(if is_as_good {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

/// Returns an error message for an option that has no effect without another one.
fn unused(args: &ReproduceArgs) -> Option<&'static str> {
    if args.page.is_some() || args.again.is_some() {
        return None;
    }
    match (args.results.is_some(), args.budget.is_some()) {
        (true, _) => {
            Some("--results is where --page keeps its results, and what --again repeats; name one of them")
        }
        (_, true) => Some("--budget bounds the runs of --page and --again; name one of them"),
        (false, false) => None,
    }
}

fn span(text: &str) -> Result<Duration, String> {
    let nanos = quantity(text, &TIME_UNITS).filter(|nanos| (0.0..=MAX_SPAN_NS).contains(nanos));
    let nanos = nanos.ok_or("a time with its unit (s, min, h), such as \"60min\"")?;
    Ok(Duration::from_nanos(nanos as u64))
}

/// Maximum budget. Source: 30 days, far beyond all runs together.
const MAX_SPAN_NS: f64 = 30.0 * 86_400e9;
/// Default budget of `--again`. Source: time that the slow checks of a change may take together.
const AGAIN_LENGTH: Duration = Duration::from_secs(240);

/// Draws the timeline, with the exit codes of [`run`].
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
    // Without experiments nothing runs: every claim is pending or cannot be measured here.
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
