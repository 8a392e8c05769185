//! `hawser-lab sensitivity`: influence of each constant of the data path.

use std::fs;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

use anyhow::{Context, ensure};
use hawser_experiments::parallel;
use hawser_experiments::sensitivity::source::{self, Constant};
use hawser_experiments::sensitivity::{Changes, Suite};
use hawser_experiments::sweep;
use hawser_terminal::{refuse, say, show};

use crate::progress;

/// Halves and doubles each constant of the data path, and measures the effect on suites of
/// scenarios.
#[derive(Debug, clap::Args)]
#[command(after_help = HELP)]
pub(crate) struct SensitivityArgs {
    /// Suites: sweep files as for `hawser-lab sweep` [default: all of scenarios/sensitivity].
    suites: Vec<PathBuf>,
    /// Root of Hawser's source tree, which is copied.
    #[arg(long, value_name = "DIR", default_value = ".")]
    sources: PathBuf,
    /// Varies only constants whose label contains this text, e.g. `path/model.rs` or
    /// `scheduler/earliest_delivery.rs:ABLE`. May be repeated.
    #[arg(long = "only", value_name = "TEXT")]
    only: Vec<String>,
    /// Directory of the copied sources, their build and the results; existing results are reused.
    #[arg(long, value_name = "DIR", default_value = "target/sensitivity")]
    out: PathBuf,
    /// Maximum number of concurrent runs [default: number of cores].
    #[arg(long, value_name = "N")]
    jobs: Option<NonZeroUsize>,
    /// Prints the results so far and runs nothing.
    #[arg(long)]
    so_far: bool,
    /// Cargo profile of the build.
    #[arg(long, value_name = "NAME", default_value = "release")]
    profile: String,
}

const HELP: &str = "\
Copies the sources, replaces each constant of the table in docs/design/constants.md by a function, \
and builds the result once. Then runs the suites with half and with twice the value of each \
constant, in one process for each. A constant between 0.5 and 2 is a gain or a remaining share; \
its distance from 1 is halved and doubled. An interrupted run resumes. Prints a table (Markdown) \
with the change of each suite's figure in percent, as the geometric mean over its runs; changes of \
more than 3 % are bold. Needs cargo.

  chrt -i 0 hawser-lab sensitivity --jobs 1
  hawser-lab sensitivity --only path/control/competing.rs scenarios/fairness/shared-sweep.toml
  hawser-lab sensitivity --so-far > sensitivity.md";

/// Factors of a constant. Source: docs/notebook/path-model.md, "Sensitivity".
const FACTORS: [f64; 2] = [0.5, 2.0];
/// Crate of the constants.
const CRATE: &str = "core/proto/src";
/// Files and directories of the source tree that the copy needs.
const COPIED: [&str; 10] = [
    "Cargo.toml",
    "Cargo.lock",
    ".cargo",
    "core",
    "system",
    "products",
    "program",
    "laboratory",
    "scenarios",
    "docs",
];
const SUITES: &str = "scenarios/sensitivity";

/// Runs the command; exit code 0 success, 64 sources without the table of constants.
///
/// # Errors
/// When the copy cannot be built, or the file system fails.
pub(crate) fn run(args: &SensitivityArgs) -> anyhow::Result<ExitCode> {
    let page = args.sources.join("docs/design/constants.md");
    let constants = match fs::read_to_string(&page) {
        Ok(text) => source::constants(&text),
        Err(error) => {
            return Ok(refuse(format!(
                "{}: {error}; name the sources by --sources",
                page.display()
            )));
        }
    };
    let copy = args.out.join("sources");
    let variable = copied(&args.sources, &copy, &constants)?;
    let program = if args.so_far {
        PathBuf::new()
    } else {
        built(&copy, &args.profile)?
    };
    let suites = suites(args)?;
    let asked = |at: &usize| {
        let label = constants[*at].label();
        args.only.is_empty() || args.only.iter().any(|text| label.contains(text.as_str()))
    };
    let varied: Vec<usize> = variable.iter().copied().filter(asked).collect();
    let measured = |name: &str, varied: Option<(usize, f64)>| -> anyhow::Result<Vec<Option<Suite>>> {
        let of = |suite: &PathBuf| one(args, &program, suite, name, varied);
        suites.iter().map(of).collect()
    };
    let base = measured("as-it-is", None)?;
    let mut changes = Changes {
        headings: base.iter().flatten().flat_map(Suite::headings).collect(),
        rows: Vec::new(),
    };
    let bar = progress::bar(varied.len() * FACTORS.len());
    for at in &varied {
        let constant = &constants[*at];
        let mut ways = [None, None];
        for (way, factor) in ways.iter_mut().zip(FACTORS) {
            bar.set_message(constant.label());
            let name = format!("{}-{factor}", constant.label().replace(['/', ':'], "-"));
            *way = compared(&measured(&name, Some((*at, factor)))?, &base);
            bar.inc(1);
        }
        if !args.so_far || ways.iter().any(Option::is_some) {
            changes
                .rows
                .push((constant.label(), constant.value.clone(), ways));
        }
    }
    bar.finish_and_clear();
    say!(
        "{} of {} constants varied ({} can be), {} change a suite by more than 3 %; half, then twice, in percent.\n",
        changes.rows.len(),
        constants.len(),
        variable.len(),
        changes.marked()
    )?;
    show!("{}", changes.to_markdown())?;
    Ok(ExitCode::SUCCESS)
}

/// Returns the changes of all suites; `None` if a suite was not measured.
fn compared(own: &[Option<Suite>], base: &[Option<Suite>]) -> Option<Vec<f64>> {
    let pairs = own.iter().zip(base).filter(|(_, base)| base.is_some());
    let changes: Option<Vec<Vec<f64>>> = pairs
        .map(|(own, base)| Some(own.as_ref()?.against(base.as_ref()?)))
        .collect();
    changes.map(|changes| changes.concat())
}

fn suites(args: &SensitivityArgs) -> anyhow::Result<Vec<PathBuf>> {
    if !args.suites.is_empty() {
        return Ok(args.suites.clone());
    }
    let directory = args.sources.join(SUITES);
    let entries = fs::read_dir(&directory).with_context(|| directory.display().to_string())?;
    let mut found: Vec<PathBuf> = entries
        .map(|entry| entry.map(|entry| entry.path()))
        .collect::<Result<_, _>>()?;
    found.retain(|path| path.extension().is_some_and(|end| end == "toml"));
    found.sort();
    Ok(found)
}

/// Runs a suite with one constant varied unless its results exist; `None` if it fails.
fn one(
    args: &SensitivityArgs,
    program: &Path,
    suite: &Path,
    name: &str,
    varied: Option<(usize, f64)>,
) -> anyhow::Result<Option<Suite>> {
    let title = suite
        .file_stem()
        .unwrap_or_default()
        .to_string_lossy()
        .into_owned();
    let results = args.out.join("results").join(&title).join(name);
    let done = || Some(Suite::of(&title, &sweep::merge(&results).ok()?.table));
    if args.so_far || results.join("results.csv").exists() {
        return Ok(done());
    }
    let jobs = args.jobs.unwrap_or_else(parallel::cores).to_string();
    let mut command = Command::new(program);
    command
        .arg(suite)
        .arg(&results)
        .arg(&jobs)
        .env_remove("HAWSER_VARIED");
    if let Some((constant, factor)) = varied {
        command.env("HAWSER_VARIED", format!("{constant}:{factor}"));
    }
    // With some values the program exits at once or not at all; missing results show both cases.
    let status = command.stdout(Stdio::null()).stderr(Stdio::null()).status();
    status.with_context(|| format!("cannot run {}", program.display()))?;
    Ok(done())
}

/// Copies the sources with constants replaced by functions, and returns the replaced constants.
fn copied(sources: &Path, copy: &Path, constants: &[Constant]) -> anyhow::Result<Vec<usize>> {
    let root = sources.join(CRATE);
    let mut texts = Vec::new();
    for path in files(&root)? {
        let text = fs::read_to_string(&path).with_context(|| path.display().to_string())?;
        let file = path
            .strip_prefix(&root)
            .expect("below it")
            .to_string_lossy()
            .into_owned();
        texts.push((file, text));
    }
    let variable = source::variable(constants, &texts);
    for name in COPIED {
        let path = sources.join(name);
        let all = if path.is_dir() { files(&path)? } else { vec![path] };
        for path in all {
            let below = path.strip_prefix(sources).expect("below it");
            if !below.starts_with(CRATE) {
                let bytes = fs::read(&path).with_context(|| path.display().to_string())?;
                write(&copy.join(below), &bytes)?;
            }
        }
    }
    for (file, text) in &texts {
        let mut varied = source::with_functions(file, text, constants, &variable);
        if file == "lib.rs" {
            varied += "mod varied;\n";
        }
        write(&copy.join(CRATE).join(file), varied.as_bytes())?;
    }
    write(&copy.join(CRATE).join("varied.rs"), source::VARIED.as_bytes())?;
    Ok(variable)
}

/// Writes a file unless its content is unchanged, so that cargo does not rebuild it.
fn write(path: &Path, bytes: &[u8]) -> anyhow::Result<()> {
    if fs::read(path).is_ok_and(|there| there == bytes) {
        return Ok(());
    }
    let directory = path.parent().expect("a file is in a directory");
    fs::create_dir_all(directory)
        .and_then(|()| fs::write(path, bytes))
        .with_context(|| format!("cannot write {}", path.display()))
}

fn files(directory: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    let mut waiting = vec![directory.to_owned()];
    while let Some(directory) = waiting.pop() {
        let entries = fs::read_dir(&directory).with_context(|| directory.display().to_string())?;
        for entry in entries {
            let path = entry?.path();
            if path.is_dir() {
                waiting.push(path);
            } else {
                found.push(path);
            }
        }
    }
    found.sort();
    Ok(found)
}

/// Builds the copy, and returns its program that runs sweeps.
fn built(copy: &Path, profile: &str) -> anyhow::Result<PathBuf> {
    let target = copy.with_file_name("target");
    let status = Command::new("cargo")
        .args(["build", "--locked", "--workspace", "--example", "sweep"])
        .args(["--profile", profile, "--target-dir"])
        .arg(fs::canonicalize(copy)?.with_file_name("target"))
        .current_dir(copy)
        .status()
        .context("cannot run cargo")?;
    ensure!(status.success(), "the copy in {} cannot be built", copy.display());
    let directory = if profile == "dev" { "debug" } else { profile };
    Ok(target.join(directory).join("examples/sweep"))
}
