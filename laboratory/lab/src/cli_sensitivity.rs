//! `hawser-lab sensitivity`: how much each constant of the data path matters.

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

/// Varies every constant of the data path by two both ways, over suites of scenarios.
#[derive(Debug, clap::Args)]
#[command(after_help = HELP)]
pub(crate) struct SensitivityArgs {
    /// The suites, sweeps as `hawser-lab sweep` takes; by default those of scenarios/sensitivity.
    suites: Vec<PathBuf>,
    /// The sources of Hawser, which are copied.
    #[arg(long, value_name = "DIR", default_value = ".")]
    sources: PathBuf,
    /// Varies only constants whose file or name has one of these in it, e.g. `path/model.rs` or
    /// `scheduler/earliest_delivery.rs:ABLE`.
    #[arg(long = "only", value_name = "TEXT")]
    only: Vec<String>,
    /// Where the copy, its build and the results go; what is there is gone on with.
    #[arg(long, value_name = "DIR", default_value = "target/sensitivity")]
    out: PathBuf,
    /// How many runs at once; by default one for each core.
    #[arg(long, value_name = "N")]
    jobs: Option<NonZeroUsize>,
    /// Runs nothing: prints what has been measured so far.
    #[arg(long)]
    so_far: bool,
    /// How the copy is built: a profile of cargo.
    #[arg(long, value_name = "NAME", default_value = "release")]
    profile: String,
}

const HELP: &str = "\
Copies the sources, makes a function of each constant of the table in docs/design/constants.md, builds that once, and runs the
suites with half and with twice of each, one process for each. What is between a half and two is a gain, or what is left of
something: its distance from one is varied. Killed, it goes on where it ended. Prints a table (Markdown): by how many
percent each suite's figure changes, in the geometric mean over its runs; more than 3 % is bold. Needs cargo.

  chrt -i 0 hawser-lab sensitivity --jobs 1
  hawser-lab sensitivity --only path/control/competing.rs scenarios/fairness/shared-sweep.toml
  hawser-lab sensitivity --so-far > sensitivity.md";

/// Half and twice.
const WAYS: [f64; 2] = [0.5, 2.0];
/// The crate whose constants they are.
const CRATE: &str = "core/proto/src";
/// What a copy needs of the sources.
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

/// Runs the command; 0 done, 64 sources without the table.
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
    let bar = progress::bar(varied.len() * WAYS.len());
    for at in &varied {
        let constant = &constants[*at];
        let mut ways = [None, None];
        for (way, factor) in ways.iter_mut().zip(WAYS) {
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

/// The changes of all suites; `None` when one was not measured.
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

/// Runs a suite with one constant varied, as far as it has not been run; `None` where it fails.
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
    // A constant may be such that the program does not come to an end, or ends at once: what is
    // missing then tells it.
    let status = command.stdout(Stdio::null()).stderr(Stdio::null()).status();
    status.with_context(|| format!("cannot run {}", program.display()))?;
    Ok(done())
}

/// Copies the sources, with functions in place of constants, and gives those that are.
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

/// Writes a file unless it is so already: what has not changed is not built again.
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

/// The program of the copy that runs sweeps.
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
