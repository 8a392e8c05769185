//! `hawser-lab compare`: comparison of published algorithms.

use std::num::NonZeroUsize;
use std::process::ExitCode;

use hawser_experiments::compare::{self, COMPARISONS, Comparison};
use hawser_experiments::parallel;

use crate::progress;
use hawser_terminal::{say, unknown};

/// Compares published algorithms and Hawser with each other under the same conditions, in virtual
/// time.
///
/// Prints Markdown: one table per measure with medians over the seeds, extremes and ratios.
/// docs/notebook contains the conclusions.
#[derive(Debug, clap::Args)]
pub(crate) struct CompareArgs {
    /// Names of the comparisons (`--list`) [default: all].
    #[arg(value_name = "NAME")]
    names: Vec<String>,
    /// Number of seeds for each system in each condition.
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    seeds: u32,
    /// Prints the result as JSON.
    #[arg(long)]
    json: bool,
    /// Lists the comparisons and runs nothing.
    #[arg(long)]
    list: bool,
    /// Maximum number of concurrent runs [default: number of cores].
    #[arg(long, value_name = "N")]
    jobs: Option<NonZeroUsize>,
}

/// Runs the command; exit code 0 success, 2 an unknown name.
///
/// # Errors
/// When JSON cannot be written.
pub(crate) fn run(args: &CompareArgs) -> anyhow::Result<ExitCode> {
    let known = |name: &String| COMPARISONS.iter().any(|comparison| comparison.name() == name);
    if let Some(name) = args.names.iter().find(|name| !known(name)) {
        let names: Vec<&str> = COMPARISONS.iter().map(|comparison| comparison.name()).collect();
        return Ok(unknown(format!(
            "no comparison is called {name:?}; there are {}",
            names.join(", ")
        )));
    }
    let is_chosen = |name: &str| args.names.is_empty() || args.names.iter().any(|chosen| chosen == name);
    let chosen = COMPARISONS.iter().copied();
    let chosen: Vec<&'static dyn Comparison> = chosen.filter(|one| is_chosen(one.name())).collect();
    if args.list {
        for comparison in chosen {
            say!("{:10} {}", comparison.name(), comparison.question())?;
        }
        return Ok(ExitCode::SUCCESS);
    }
    let runs = chosen.iter().map(|one| compare::runs(*one, args.seeds)).sum();
    let bar = progress::bar(runs);
    let jobs = args.jobs.unwrap_or_else(parallel::cores);
    let mut reports = Vec::new();
    for comparison in chosen {
        bar.set_message(comparison.name());
        let compared = compare::run(comparison, args.seeds, jobs, &|| bar.inc(1));
        if args.json {
            reports.push(compared.to_report());
        } else {
            bar.suspend(|| say!("# {}\n\n{}", comparison.name(), compared.to_markdown()))?;
        }
    }
    bar.finish_and_clear();
    if args.json {
        say!("{}", serde_json::to_string(&reports)?)?;
    }
    Ok(ExitCode::SUCCESS)
}
