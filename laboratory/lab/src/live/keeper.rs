//! The keeper: the process that holds a running laboratory.

use std::io::IsTerminal;
use std::os::fd::AsFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::process::{Child, ExitCode, ExitStatus};
use std::time::Duration;

use anyhow::Context;
use hawser_linux::shutdown;
use hawser_linux::wait::wait_readable;
use hawser_terminal::{complain, refuse, say, show};
use hawser_testbed::{Live, Options, Role, RunDir, prepare_process, read_scenario};

use super::args::LiveArgs;
use super::control::{self, Reply, Request};
use super::instance::{self, Instance};
use super::page;
use crate::{daemon, progress};

/// Starts a laboratory and keeps it until the end; exit code 64 for a scenario that cannot be run.
///
/// # Errors
/// When the name is in use, or the lab cannot be built.
pub(super) fn run(args: LiveArgs) -> anyhow::Result<ExitCode> {
    let path = args.scenario.as_deref().context("no scenario was given")?;
    let scenario = match read_scenario(path, &args.settings) {
        Ok(scenario) => scenario,
        Err(error) => return Ok(refuse(error)),
    };
    let program = daemon::program()?;
    let stem = path.file_stem().map(|stem| stem.to_string_lossy().into_owned());
    let name = args.which.name.clone().or(stem).unwrap_or_default();
    let base = instance::base(args.which.run_dir.as_deref());
    let instance = Instance::take(&base, &name)?;
    let listener = UnixListener::bind(instance.socket());
    prepare_process()?;
    let keep = args.keep.clone().unwrap_or_else(|| instance.files());
    let options = Options {
        program,
        run_dir: RunDir::new(Some(&keep))?,
        tools: Vec::new(),
    };
    let via = scenario.via.clone();
    let mut on_step = |step: &str| progress::note(&format!("{name}: {step}"));
    let live = Live::start(scenario, via, options, &mut on_step)?;
    let listener = listener.context("cannot listen for commands")?;
    listener.set_nonblocking(true)?;
    let status = live.status()?;
    if args.which.json {
        say!("{}", page::json(&status)?)?;
    } else {
        show!("{}", page::welcome(&instance.name, &status))?;
    }
    let keeper = Keeper {
        child: child(&live, &args)?,
        live,
        listener,
        next_event: args.events.then_some(0),
        is_over: false,
    };
    let ended = keeper.until_the_end();
    drop(instance);
    ended
}

/// Starts the shell or command in the client's namespace; `None` if standard input is no terminal.
fn child(live: &Live, args: &LiveArgs) -> anyhow::Result<Option<Child>> {
    let shell = || std::env::var("SHELL").unwrap_or_else(|_| "/bin/sh".to_owned());
    let mut command = match args.command.split_first() {
        Some((program, arguments)) => {
            let mut command = live.command(Role::Client, program);
            command.args(arguments);
            command
        }
        None if args.no_shell || !std::io::stdin().is_terminal() => return Ok(None),
        None => live.command(Role::Client, shell()),
    };
    let program = command.get_program().to_owned();
    let spawned = command.spawn();
    let child = spawned.with_context(|| format!("cannot run {}", program.display()))?;
    Ok(Some(child))
}

struct Keeper {
    live: Live,
    listener: UnixListener,
    child: Option<Child>,
    /// Index of the next event; `None` without `--events`.
    next_event: Option<usize>,
    is_over: bool,
}

impl Keeper {
    fn until_the_end(mut self) -> anyhow::Result<ExitCode> {
        while !self.is_over && !shutdown::is_requested() {
            let mut ready = [false];
            wait_readable(&[self.listener.as_fd()], Some(TURN), &mut ready)?;
            if ready[0]
                && let Ok((stream, _)) = self.listener.accept()
            {
                self.serve(&stream);
            }
            self.trigger_due();
            if let Some(trouble) = self.live.check() {
                progress::note(&format!("a daemon has ended: {trouble}"));
            }
            if let Some(child) = &mut self.child
                && let Some(status) = child.try_wait()?
            {
                return Ok(code_of(status));
            }
        }
        if let Some(child) = &mut self.child {
            let _ = child.kill();
            let _ = child.wait();
        }
        Ok(ExitCode::SUCCESS)
    }

    /// Answers one request; ignores a connection that sends none, or an invalid one.
    fn serve(&mut self, stream: &UnixStream) {
        let is_ready =
            stream.set_nonblocking(false).is_ok() && stream.set_read_timeout(Some(REQUEST_TIMEOUT)).is_ok();
        let Some(request) = is_ready.then(|| control::read(stream).ok()).flatten() else {
            return;
        };
        let done = match request {
            Request::Set {
                network,
                direction,
                settings,
            } => self.live.order(&network, direction.as_deref(), &settings),
            Request::Event { number } => self.live.trigger(number),
            Request::Status => Ok(()),
            Request::Stop => {
                self.is_over = true;
                Ok(())
            }
        };
        let reply = match done.and_then(|()| self.live.status()) {
            Ok(status) => Reply::Done(Box::new(status)),
            Err(problem) => Reply::Refused(format!("{problem:#}")),
        };
        // The requesting process may have ended.
        let _ = control::write(stream, &reply);
    }

    fn trigger_due(&mut self) {
        while let Some(index) = self.next_event
            && self.live.due(index).is_some_and(|due| due <= self.live.elapsed())
        {
            self.next_event = Some(index + 1);
            if let Err(error) = self.live.trigger(index + 1) {
                complain(format_args!("event {}: {error:#}", index + 1));
            }
        }
    }
}

fn code_of(status: ExitStatus) -> ExitCode {
    let code = status.code().and_then(|code| u8::try_from(code).ok());
    code.map_or(ExitCode::FAILURE, ExitCode::from)
}

/// Poll interval for events, the end of a shell and Ctrl-C: half of the delay that a person
/// perceives as immediate.
///
/// Source: Nielsen 1993, Usability Engineering, section 5.5.
const TURN: Duration = Duration::from_millis(50);
/// Timeout for a request, which a command line sends as soon as it has connected.
///
/// Source: Nielsen 1993, Usability Engineering, section 5.5: a longer delay is noticed.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(1);
