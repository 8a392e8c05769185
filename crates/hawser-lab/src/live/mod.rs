//! `hawser-lab live`: a scenario's networks, daemons and server, kept running for a person.
//!
//! One process keeps everything; other terminals reach it by a control socket in its run directory.
//! It starts by taking a lock there. Steady state: it answers one request after another. It ends at
//! Ctrl-C, at `stop`, or when the shell or command that it runs ends. What a killed one leaves is
//! removed by the next start: its namespaces and daemons end with it.

mod control;
mod instance;
mod keeper;
mod page;

use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::Context;
use clap::ValueEnum;
use hawser_linux::netns::Namespace;
use hawser_terminal::{complain, say, show};
use hawser_testbed::{LiveStatus, Place};

use control::{Reply, Request};
use instance::Found;

/// Keeps a scenario's networks, daemons and server running, and changes them by command.
#[derive(Debug, clap::Args)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true, after_help = HELP)]
pub(crate) struct LiveArgs {
    #[command(subcommand)]
    asked: Option<Asked>,
    /// The scenario, a TOML file; its workloads do not run.
    #[arg(required = true)]
    scenario: Option<PathBuf>,
    /// Replaces a field, e.g. `--set via=single:lte`.
    #[arg(long = "set", value_name = "FIELD=VALUE")]
    settings: Vec<String>,
    /// Triggers the scenario's events at their times, counted from when everything is up.
    #[arg(long)]
    events: bool,
    /// Opens no shell: runs until Ctrl-C or `hawser-lab live stop`.
    #[arg(long)]
    no_shell: bool,
    /// Keeps configurations and logs of the daemons there.
    #[arg(long, value_name = "DIR")]
    keep: Option<PathBuf>,
    #[command(flatten)]
    which: Which,
    /// Runs this command in the client's namespace in place of a shell, and ends with it.
    #[arg(last = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

/// Which laboratory, and how it answers.
#[derive(Clone, Debug, clap::Args)]
struct Which {
    /// Name of the laboratory; at the start that of the scenario's file, later the only one that
    /// runs.
    #[arg(long, value_name = "NAME")]
    name: Option<String>,
    /// Where control sockets are, in place of /run/hawser-lab (or the user's own run directory).
    #[arg(long, value_name = "DIR")]
    run_dir: Option<PathBuf>,
    /// Prints the state as JSON.
    #[arg(long)]
    json: bool,
}

#[derive(Debug, clap::Subcommand)]
enum Asked {
    /// Changes a network: fields (rate=2mbit delay=80ms), or down, up, blackhole, carrier, nat-flush.
    Set(SetArgs),
    /// Triggers an event of the scenario by its number; without one, lists them.
    Event(EventArgs),
    /// Runs a command in the namespace of the client, the hub, the server or the router between.
    Exec(ExecArgs),
    /// Prints the state of networks and daemons, and how to reach the server.
    Status(Which),
    /// Ends it.
    Stop(Which),
}

#[derive(Debug, clap::Args)]
struct SetArgs {
    /// A network of the scenario.
    network: String,
    /// Fields as in `set = { .. }` of an event, or one word.
    #[arg(required = true, value_name = "FIELD=VALUE|WORD")]
    settings: Vec<String>,
    /// Changes one direction only: down or up.
    #[arg(long)]
    direction: Option<String>,
    #[command(flatten)]
    which: Which,
}

#[derive(Debug, clap::Args)]
struct EventArgs {
    /// Number of the event, from 1.
    number: Option<usize>,
    #[command(flatten)]
    which: Which,
}

#[derive(Debug, clap::Args)]
struct ExecArgs {
    /// Whose namespace.
    place: PlaceName,
    #[command(flatten)]
    which: Which,
    /// The command.
    #[arg(last = true, required = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum PlaceName {
    Client,
    Hub,
    Server,
    Net,
}

impl From<PlaceName> for Place {
    fn from(name: PlaceName) -> Self {
        match name {
            PlaceName::Client => Self::Client,
            PlaceName::Hub => Self::Hub,
            PlaceName::Server => Self::Server,
            PlaceName::Net => Self::Net,
        }
    }
}

/// Runs the command; 0 done, 1 failed, 64 a scenario that cannot be run, or as the command given
/// after `--` ends.
///
/// # Errors
/// The lab cannot be built, or nothing answers.
pub(crate) fn run(args: LiveArgs) -> anyhow::Result<ExitCode> {
    match &args.asked {
        None => keeper::run(args),
        Some(Asked::Set(set)) => {
            let request = Request::Set {
                network: set.network.clone(),
                direction: set.direction.clone(),
                settings: set.settings.clone(),
            };
            quietly(&set.which, &request)
        }
        Some(Asked::Event(event)) => match event.number {
            Some(number) => quietly(&event.which, &Request::Event { number }),
            None => events(&event.which),
        },
        Some(Asked::Exec(exec)) => execute(exec),
        Some(Asked::Status(which)) => {
            let Some(status) = ask(which, &Request::Status)? else {
                return Ok(ExitCode::FAILURE);
            };
            print(which, &status, page::state)
        }
        Some(Asked::Stop(which)) => stop(which),
    }
}

/// Asks, and prints nothing but JSON.
fn quietly(which: &Which, request: &Request) -> anyhow::Result<ExitCode> {
    let Some(status) = ask(which, request)? else {
        return Ok(ExitCode::FAILURE);
    };
    print(which, &status, |_| String::new())
}

fn events(which: &Which) -> anyhow::Result<ExitCode> {
    let Some(status) = ask(which, &Request::Status)? else {
        return Ok(ExitCode::FAILURE);
    };
    print(which, &status, |status| {
        let lines: Vec<&str> = status.events.iter().map(String::as_str).collect();
        if lines.is_empty() {
            return "the scenario has no events\n".to_owned();
        }
        lines.join("\n") + "\n"
    })
}

fn print(
    which: &Which,
    status: &LiveStatus,
    text: impl FnOnce(&LiveStatus) -> String,
) -> anyhow::Result<ExitCode> {
    if which.json {
        say!("{}", page::json(status)?)?;
    } else {
        show!("{}", text(status))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Returns the state after a request; `None` when the request was refused, which is printed.
fn ask(which: &Which, request: &Request) -> anyhow::Result<Option<LiveStatus>> {
    let Some(found) = found(which)? else {
        return Ok(None);
    };
    match control::ask(&found, request)? {
        Reply::Done(status) => Ok(Some(*status)),
        Reply::Refused(problem) => {
            complain(problem);
            Ok(None)
        }
    }
}

/// Returns the laboratory that is meant; `None` when there is none, which is printed.
fn found(which: &Which) -> anyhow::Result<Option<Found>> {
    let base = instance::base(which.run_dir.as_deref());
    match instance::find(&base, which.name.as_deref())? {
        Ok(found) => Ok(Some(found)),
        Err(problem) => {
            complain(problem);
            Ok(None)
        }
    }
}

fn stop(which: &Which) -> anyhow::Result<ExitCode> {
    let Some(found) = found(which)? else {
        return Ok(ExitCode::FAILURE);
    };
    control::ask(&found, &Request::Stop)?;
    found.wait_until_gone()?;
    Ok(ExitCode::SUCCESS)
}

/// Becomes a command in one of the namespaces.
fn execute(exec: &ExecArgs) -> anyhow::Result<ExitCode> {
    let Some(status) = ask(&exec.which, &Request::Status)? else {
        return Ok(ExitCode::FAILURE);
    };
    let place = Place::from(exec.place);
    let path = status.places.iter().find(|(name, _)| *name == place);
    let (_, path) = path.context("the laboratory does not have that namespace")?;
    let (program, arguments) = exec.command.split_first().context("there is no command")?;
    let mut command = if hawser_linux::netns::is_root() {
        Namespace::open(path)
            .and_then(|namespace| namespace.enter())
            .with_context(|| format!("cannot enter {path}"))?;
        Command::new(program)
    } else {
        // The keeper has become root of a user namespace of its own.
        let mut command = Command::new("nsenter");
        let target = status.pid.to_string();
        command.args(["--target", &target, "--user", "--preserve-credentials"]);
        command.arg(format!("--net={path}")).arg("--").arg(program);
        command
    };
    let error = command.args(arguments).exec();
    Err(error).with_context(|| format!("cannot run {}", Path::new(program).display()))
}

const HELP: &str = "\
Two terminals:
  sudo hawser-lab live scenarios/sum-20-20.toml        a shell in the client's namespace
  sudo hawser-lab live set a rate=2mbit delay=80ms     from another terminal, while it runs
  sudo hawser-lab live set a down                      also up, blackhole, carrier (lost), nat-flush
  sudo hawser-lab live exec server -- ip addr
  sudo hawser-lab live status
  sudo hawser-lab live stop
One command, and the end:
  sudo hawser-lab live scenarios/sum-20-20.toml -- curl -o /dev/null http://203.0.113.2:8080/100000000

Exit codes: 0 done, 1 failed or refused, 2 usage, 64 a scenario that cannot be run; with a command after --, its own.";
