//! `hawser-lab worlds`: properties that must hold in randomly generated worlds.

use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::str::FromStr;
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use anyhow::Context;
use hawser_experiments::parallel;
use hawser_experiments::worlds::{
    FIRST_ASIDE, Fit, Judgement, Known, Outcome, Property, Summary, World, append, judge, read, shrink,
};
use hawser_terminal::{refuse, say, show};

use crate::progress;

/// Generates one random world per seed, runs it in virtual time, and checks properties that every
/// world must have.
#[derive(Debug, clap::Args)]
#[command(after_help = HELP)]
pub(crate) struct WorldsArgs {
    /// First and last seed, e.g. `1..100`, or a single seed.
    #[arg(long, value_name = "FIRST..LAST", default_value = "1..100")]
    seeds: Seeds,
    /// Permits seeds from 5,001 on. These are reserved for judging a release; do not tune against
    /// them.
    #[arg(long)]
    aside: bool,
    /// Maximum number of concurrent worlds [default: number of cores].
    #[arg(long, value_name = "N")]
    jobs: Option<NonZeroUsize>,
    /// Directory of the results (`worlds.jsonl`); worlds with a result are not run again.
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Checks only this property (`--list`). May be repeated.
    #[arg(long = "property", value_name = "NAME", value_parser = property)]
    properties: Vec<Property>,
    /// List of known failures; only failures outside the list make the command fail.
    #[arg(long, value_name = "FILE")]
    known: Option<PathBuf>,
    /// Prints the world of a seed as a scenario, and runs nothing.
    #[arg(long, value_name = "SEED", conflicts_with_all = ["shrink", "fit", "list", "judge"])]
    draw: Option<u64>,
    /// Reduces the failing world of a seed to a minimal scenario that still fails, and prints it.
    #[arg(long, value_name = "SEED", conflicts_with_all = ["fit", "list", "judge"])]
    shrink: Option<u64>,
    /// Maximum number of runs of `--shrink`.
    #[arg(long, value_name = "N", default_value_t = 400, requires = "shrink")]
    budget: usize,
    /// Checks scenario files instead of generated worlds.
    #[arg(long, value_name = "FILE", num_args = 1.., conflicts_with_all = ["fit", "list"])]
    judge: Vec<PathBuf>,
    /// Fits the distributions of worlds to the recordings (.csv, .down, .up) below a directory, and
    /// prints the table.
    #[arg(long, value_name = "DIR", conflicts_with = "list")]
    fit: Option<PathBuf>,
    /// Lists the properties, each with its reason, tolerance and coverage.
    #[arg(long)]
    list: bool,
    /// Prints the result as JSON.
    #[arg(long)]
    json: bool,
}

/// First and last seed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Seeds {
    first: u64,
    last: u64,
}

impl FromStr for Seeds {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let problem = || format!("{text:?} is no range of seeds; write 1..200, or 7");
        let (first, last) = text.split_once("..").unwrap_or((text, text));
        let first = first.parse().map_err(|_| problem())?;
        let last = last.trim_start_matches('=').parse().map_err(|_| problem())?;
        if first == 0 || first > last {
            return Err(problem());
        }
        Ok(Self { first, last })
    }
}

fn property(name: &str) -> Result<Property, String> {
    Property::from_name(name).ok_or_else(|| {
        let names: Vec<&str> = Property::ALL.iter().map(|property| property.name()).collect();
        format!("there is no property {name:?}; there are {}", names.join(", "))
    })
}

/// Runs the command; exit code 0 success, 1 an unknown failure, 64 an invalid file or seed.
///
/// # Errors
/// When a file cannot be written.
pub(crate) fn run(args: &WorldsArgs) -> anyhow::Result<ExitCode> {
    if args.list {
        return list();
    }
    if let Some(directory) = &args.fit {
        return fit(directory);
    }
    let asked = if args.properties.is_empty() {
        Property::ALL.to_vec()
    } else {
        args.properties.clone()
    };
    if !args.judge.is_empty() {
        return judge_files(&args.judge, &asked);
    }
    let last = args.draw.or(args.shrink).unwrap_or(args.seeds.last);
    if last >= FIRST_ASIDE && !args.aside {
        return Ok(refuse(format!(
            "seed {last}: seeds from {FIRST_ASIDE} on are kept aside; choose another, or write --aside"
        )));
    }
    let fit = Fit::committed();
    if let Some(seed) = args.draw {
        show!("{}", World::draw(seed, &fit).to_toml())?;
        return Ok(ExitCode::SUCCESS);
    }
    if let Some(seed) = args.shrink {
        return shrink_world(seed, &asked, args.budget);
    }
    let known = match &args.known {
        Some(file) => match std::fs::read_to_string(file).map_err(|error| error.to_string()) {
            Ok(text) => Known::parse(&text),
            Err(error) => Err(error),
        }
        .map_err(|problem| format!("{}: {problem}", file.display())),
        None => Ok(Known::default()),
    };
    match known {
        Ok(known) => run_worlds(args, &asked, &known),
        Err(problem) => Ok(refuse(problem)),
    }
}

fn run_worlds(args: &WorldsArgs, asked: &[Property], known: &Known) -> anyhow::Result<ExitCode> {
    let file = args.out.as_ref().map(|directory| directory.join("worlds.jsonl"));
    if let Some(directory) = &args.out {
        std::fs::create_dir_all(directory)
            .with_context(|| format!("cannot create {}", directory.display()))?;
    }
    let there = file
        .as_deref()
        .map(read)
        .transpose()
        .context("cannot read earlier results")?;
    let mut outcomes = there.unwrap_or_default();
    let seeds = args.seeds.first..=args.seeds.last;
    outcomes.retain(|seed, _| seeds.contains(seed));
    let missing: Vec<u64> = seeds.filter(|seed| !outcomes.contains_key(seed)).collect();
    let bar = progress::bar(missing.len());
    let fit = Fit::committed();
    let writing = Mutex::new(());
    let jobs = args.jobs.unwrap_or_else(parallel::cores);
    let results = parallel::run(missing.len(), jobs, &|| false, |index| {
        let outcome = run_world(missing[index], &fit, asked);
        let guard = writing.lock().unwrap_or_else(PoisonError::into_inner);
        let written = file.as_deref().map_or(Ok(()), |file| append(file, &outcome));
        drop(guard);
        bar.inc(1);
        for violation in known.unknown(outcome.seed, &outcome.judgement.violations) {
            let (name, value, limit) = (violation.property.name(), violation.value, violation.limit);
            let line = format!(
                "{}: {name} {value:.4}, asked {limit:.4} ({})",
                outcome.seed, violation.detail
            );
            bar.suspend(|| progress::note(&line));
        }
        written.map(|()| outcome)
    });
    bar.finish_and_clear();
    for result in results.into_iter().flatten() {
        let outcome = result
            .map_err(anyhow::Error::msg)?
            .context("cannot write results")?;
        outcomes.insert(outcome.seed, outcome);
    }
    let all: Vec<&Outcome> = outcomes.values().collect();
    let summary = Summary::of(&all);
    if args.json {
        say!("{}", serde_json::to_string(&summary)?)?;
    } else {
        show!("{}", summary.to_text())?;
    }
    let is_new = |outcome: &Outcome| {
        !known
            .unknown(outcome.seed, &outcome.judgement.violations)
            .is_empty()
    };
    let fails = outcomes.values().any(is_new);
    Ok(if fails {
        ExitCode::FAILURE
    } else {
        ExitCode::SUCCESS
    })
}

fn run_world(seed: u64, fit: &Fit, asked: &[Property]) -> Outcome {
    let begun = Instant::now();
    let world = World::draw(seed, fit);
    Outcome {
        seed,
        features: world.features().into_iter().collect(),
        judgement: judge_world(&world, asked),
        seconds: begun.elapsed().as_secs_f64(),
    }
}

fn judge_world(world: &World, asked: &[Property]) -> Judgement {
    match world.scenario() {
        Ok(scenario) => judge(&scenario, asked),
        Err(error) => Judgement::failed(error.to_string()),
    }
}

fn shrink_world(seed: u64, asked: &[Property], budget: usize) -> anyhow::Result<ExitCode> {
    let world = World::draw(seed, &Fit::committed());
    let found = judge_world(&world, asked).violations;
    let Some(first) = found.first() else {
        return Ok(refuse(format!(
            "the world of seed {seed} has all properties that are asked for"
        )));
    };
    let property = [first.property];
    let mut runs = 0;
    let small = shrink(&world, budget, &mut |world| {
        runs += 1;
        progress::line(|| format!("{runs}/{budget} runs"));
        let violations = judge_world(world, &property).violations;
        let mut violations = violations.iter();
        violations.any(|violation| {
            violation.property == first.property && violation.severity() >= first.severity() / 2.0
        })
    });
    progress::clear_line();
    show!("{}", small.to_toml())?;
    for violation in judge_world(&small, &property).violations {
        let (name, value, limit) = (violation.property.name(), violation.value, violation.limit);
        say!("# {name}: {value:.4}, asked {limit:.4} ({})", violation.detail)?;
    }
    Ok(ExitCode::SUCCESS)
}

fn judge_files(files: &[PathBuf], asked: &[Property]) -> anyhow::Result<ExitCode> {
    let mut fails = false;
    for file in files {
        let scenario = match hawser_testbed::read_scenario(file, &[]) {
            Ok(scenario) => scenario,
            Err(error) => return Ok(refuse(error)),
        };
        let judgement = judge(&scenario, asked);
        for (name, value) in &judgement.measures {
            say!("{}: {name} {value:.4}", file.display())?;
        }
        for violation in &judgement.violations {
            let (name, value, limit) = (violation.property.name(), violation.value, violation.limit);
            say!(
                "{}: FAILS {name}: {value:.4}, asked {limit:.4} ({})",
                file.display(),
                violation.detail
            )?;
        }
        fails |= !judgement.violations.is_empty();
    }
    Ok(if fails {
        ExitCode::FAILURE
    } else {
        ExitCode::SUCCESS
    })
}

fn fit(directory: &Path) -> anyhow::Result<ExitCode> {
    let mut files = Vec::new();
    collect(directory, &mut files).with_context(|| format!("cannot read {}", directory.display()))?;
    files.sort();
    let mut texts = Vec::new();
    for file in &files {
        texts.push(std::fs::read_to_string(file).with_context(|| format!("cannot read {}", file.display()))?);
    }
    match Fit::of(&texts) {
        Ok(fit) if !texts.is_empty() => {
            show!("{}", fit.to_toml())?;
            Ok(ExitCode::SUCCESS)
        }
        Ok(_) => Ok(refuse(format!(
            "{}: no .csv, .down or .up below it",
            directory.display()
        ))),
        Err((index, problem)) => Ok(refuse(format!("{}: {problem}", files[index].display()))),
    }
}

fn collect(directory: &Path, files: &mut Vec<PathBuf>) -> std::io::Result<()> {
    for entry in std::fs::read_dir(directory)? {
        let path = entry?.path();
        if path.is_dir() {
            collect(&path, files)?;
            continue;
        }
        let extension = path.extension().and_then(|extension| extension.to_str());
        if extension.is_some_and(|extension| ["csv", "down", "up"].contains(&extension)) {
            files.push(path);
        }
    }
    Ok(())
}

fn list() -> anyhow::Result<ExitCode> {
    for property in Property::ALL {
        let description = property.description();
        say!("{}: {}", property.name(), description.reason)?;
        say!("  tolerance: {}", description.tolerance)?;
        say!("  covers: {}", description.covers)?;
    }
    Ok(ExitCode::SUCCESS)
}

const HELP: &str = "\
A world has 1 to 6 networks with random rates, delays, loss, queues, path MTUs, policers, address \
translators and competing traffic, with failures, and workloads. Each world runs through the \
tunnel, over each network alone, with the packets distributed in turn, and over MPTCP. The same \
seed gives the same world.

  hawser-lab worlds --seeds 1..1000 --out out/worlds --known scenarios/worlds/known.toml
  hawser-lab worlds --draw 17 > world.toml && hawser-lab sim world.toml --compare --vs mptcp
  hawser-lab worlds --shrink 17 --property pauses

Exit codes: 0 success, 1 a failing world that is not in the list of known failures, 2 usage error, \
64 an invalid file or seed.";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_of_seeds_are_read_in_three_forms() {
        let seeds = |text: &str| text.parse::<Seeds>().map(|seeds| (seeds.first, seeds.last));
        assert_eq!(seeds("1..200"), Ok((1, 200)));
        assert_eq!(seeds("1..=200"), Ok((1, 200)));
        assert_eq!(seeds("7"), Ok((7, 7)));
        for bad in ["", "0..3", "5..3", "a..b", "1..", "-1"] {
            assert!(seeds(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn an_unknown_property_is_answered_with_all_names() {
        assert_eq!(property("pauses"), Ok(Property::Pauses));
        assert!(property("speed").expect_err("none").contains("goodput-alone"));
    }
}
