//! `hawser-lab sweep`: runs many variants of a scenario and writes one table.

use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, anyhow};
use hawser_experiments::parallel;
use hawser_experiments::sweep::{self, Pauses, Progress, Shard, Summary, Sweep, SweepError, Versus};
use hawser_terminal::{refuse, say};
use hawser_testbed::read_file;
use serde_json::json;

use crate::progress;

/// Runs variants of a scenario in virtual time on all cores, and writes one table of results.
#[derive(Debug, clap::Args)]
pub(crate) struct SweepArgs {
    /// Sweep file, TOML (docs/manual/sweeps.md); every combination of its axes runs. An interrupted
    /// sweep resumes.
    #[arg(required_unless_present = "merge")]
    sweep: Option<PathBuf>,
    /// Runs only every N-th combination, starting at the I-th, counted from 0, e.g. `0/4`.
    #[arg(long, value_name = "I/N", requires = "sweep")]
    shard: Option<Shard>,
    /// Output directory of rows and tables [default: the sweep file's name with the extension
    /// `results`].
    #[arg(long, value_name = "DIR", requires = "sweep")]
    out: Option<PathBuf>,
    /// Maximum number of concurrent runs [default: number of cores].
    #[arg(long, value_name = "N", requires = "sweep")]
    jobs: Option<NonZeroUsize>,
    /// Plots a column over the sweep's first axis to this file (SVG): medians, one curve per
    /// combination of the other axes.
    #[arg(long, value_name = "FILE", requires = "sweep")]
    plot: Option<PathBuf>,
    /// Column that `--plot` draws.
    #[arg(
        long,
        value_name = "NAME",
        requires = "plot",
        default_value = "goodput_bps.total"
    )]
    plot_column: String,
    /// Merges the shards of a sweep in this directory, and runs nothing.
    #[arg(long, value_name = "DIR", conflicts_with = "sweep")]
    merge: Option<PathBuf>,
    /// Prints the result as JSON.
    #[arg(long)]
    json: bool,
}

/// Runs the command; exit code 0 success, 1 a run or the file system failed, 64 an invalid sweep,
/// reported before anything runs.
///
/// # Errors
/// When a journal cannot be used.
pub(crate) fn run(args: &SweepArgs) -> anyhow::Result<ExitCode> {
    let (summary, versus, pauses) = match (&args.sweep, &args.merge) {
        (Some(file), _) => match Sweep::read(file, &read_file) {
            Ok(sweep) => {
                let summary = execute(&sweep, args, file)?;
                draw(&sweep, args, &summary)?;
                let versus = Versus::of(&summary.table, &sweep.axes());
                let pauses = Pauses::of(&summary.table, &sweep.axes());
                (summary, versus, pauses)
            }
            Err(error) => return Ok(refuse(error)),
        },
        (None, Some(directory)) => (sweep::merge(directory)?, None, None),
        (None, None) => return Err(anyhow!("the file contains no sweep")),
    };
    print(&summary, versus.as_ref(), pauses.as_ref(), args.json)?;
    Ok(if summary.failed == 0 {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

fn execute(sweep: &Sweep, args: &SweepArgs, file: &Path) -> Result<Summary, SweepError> {
    let out = args.out.clone().unwrap_or_else(|| file.with_extension("results"));
    let bar = progress::bar(0);
    let on_progress = |now: Progress| {
        bar.set_length(now.total);
        bar.set_position(now.done);
    };
    let summary = sweep::run(
        sweep,
        args.shard.unwrap_or(Shard::ALL),
        args.jobs.unwrap_or_else(parallel::cores),
        &out,
        &sweep::simulated,
        &on_progress,
    );
    bar.finish_and_clear();
    summary
}

fn draw(sweep: &Sweep, args: &SweepArgs, summary: &Summary) -> anyhow::Result<()> {
    let Some(file) = &args.plot else { return Ok(()) };
    let plot = sweep::plot(&summary.table, &sweep.name, &sweep.axes(), &args.plot_column);
    let plot = plot.map_err(|problem| anyhow!("--plot-column: {problem}"))?;
    std::fs::write(file, plot.to_svg()).with_context(|| format!("cannot write {}", file.display()))
}

fn print(
    summary: &Summary,
    versus: Option<&Versus>,
    pauses: Option<&Pauses>,
    as_json: bool,
) -> anyhow::Result<()> {
    let [csv, parquet] = &summary.files;
    if as_json {
        say!(
            "{}",
            json!({ "version": 1, "rows": summary.rows, "resumed": summary.resumed, "failed": summary.failed,
                "csv": csv, "parquet": parquet,
                "against_best": versus.map(|versus| json!({ "points": versus.shares.len(), "median": versus.median(),
                    "worse": versus.worse(), "least": versus.shares[0].0 })),
                "pauses": pauses.map(|pauses| json!({ "points": pauses.points.len(), "median": pauses.median(),
                    "longer": pauses.longer(), "most": pauses.points[0].0 })) })
        )?;
        return Ok(());
    }
    say!(
        "{} rows ({} were there, {} failed) in {} and {}",
        summary.rows,
        summary.resumed,
        summary.failed,
        csv.display(),
        parquet.display()
    )?;
    versus.map_or(Ok(()), |versus| say!("{versus}"))?;
    pauses.map_or(Ok(()), |pauses| say!("{pauses}"))
}
