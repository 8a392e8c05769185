//! `hawser-lab live`: a scenario's networks, daemons and server, kept running for a person.
//!
//! One process keeps everything; other terminals reach it by a control socket in its run directory.
//! It starts by taking a lock there. Steady state: it answers one request after another. It ends at
//! Ctrl-C, at `stop`, or when the shell or command that it runs ends. What a killed one leaves is
//! removed by the next start: its namespaces and daemons end with it.

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
    found.wait_until_ended()?;
    Ok(ExitCode::SUCCESS)
}

/// Becomes a command in one of the namespaces.
fn execute(exec: &ExecArgs) -> anyhow::Result<ExitCode> {
    let Some(status) = ask(&exec.which, &Request::Status)? else {
        return Ok(ExitCode::FAILURE);
    };
    let role = Role::from(exec.role);
    let path = status.namespaces.iter().find(|(name, _)| *name == role);
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
