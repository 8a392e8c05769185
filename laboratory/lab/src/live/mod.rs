//! `hawser-lab live`: keeps a scenario's networks, daemons and server running for interactive use.
//!
//! One process, the keeper, holds everything; other terminals reach it over a control socket in its
//! run directory. It starts by locking that directory, then answers one request after another. It
//! ends at Ctrl-C, at `stop`, or when its shell or command ends. Namespaces and daemons of a killed
//! keeper end with it, and the next start removes its directory.

mod args;
mod control;
mod instance;
mod keeper;
mod page;

use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, ExitCode};

use anyhow::Context;
use hawser_linux::netns::Namespace;
use hawser_terminal::{complain, say, show};
use hawser_testbed::{LiveStatus, Role};

pub(crate) use args::LiveArgs;
use args::{Asked, ExecArgs, Which};
use control::{Reply, Request};
use instance::Found;

/// Runs the command; exit code 0 success, 1 failure, 64 a scenario that cannot be run, or the exit
/// code of the command after `--`.
///
/// # Errors
/// When the lab cannot be built, or no laboratory answers.
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

/// Sends a request; prints the state only with `--json`.
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

/// Returns the state after a request; prints the reason and returns `None` if it was refused.
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

/// Returns the selected laboratory; prints the reason and returns `None` if there is none.
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
    found.wait_until_ended()?;
    Ok(ExitCode::SUCCESS)
}

/// Replaces this process by a command in one of the namespaces.
fn execute(exec: &ExecArgs) -> anyhow::Result<ExitCode> {
    let Some(status) = ask(&exec.which, &Request::Status)? else {
        return Ok(ExitCode::FAILURE);
    };
    let role = Role::from(exec.role);
    let path = status.namespaces.iter().find(|(name, _)| *name == role);
    let (_, path) = path.context("the laboratory does not have that namespace")?;
    let (program, arguments) = exec.command.split_first().context("no command was given")?;
    let mut command = if hawser_linux::netns::is_root() {
        Namespace::open(path)
            .and_then(|namespace| namespace.enter())
            .with_context(|| format!("cannot enter {path}"))?;
        Command::new(program)
    } else {
        // Without root, the keeper is root of its own user namespace, which nsenter joins.
        let mut command = Command::new("nsenter");
        let target = status.pid.to_string();
        command.args(["--target", &target, "--user", "--preserve-credentials"]);
        command.arg(format!("--net={path}")).arg("--").arg(program);
        command
    };
    let error = command.args(arguments).exec();
    Err(error).with_context(|| format!("cannot run {}", Path::new(program).display()))
}
