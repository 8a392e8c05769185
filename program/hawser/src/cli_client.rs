//! `hawser up`, `down`, `reload`.

use std::ffi::OsString;
use std::io::IsTerminal as _;
use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context, bail};
use hawser_client as client;
use hawser_config::invitation::Invitation;
use hawser_config::{self as config, ClientConfig, Pattern};
use hawser_direct as direct;
use hawser_host::control_socket::{Request, ask, is_alive};
use hawser_host::options::ClientOptions;
use hawser_host::run_dir::{self, Role};
use hawser_linux::confine::Duty;
use hawser_terminal::{complain, refuse, say};
use serde_json::{Value, json};

use crate::background;
use crate::directories::{DaemonArgs, Directories, confine};
use crate::logs::LogArgs;
use crate::runtime::runtime;
use crate::secrets::{self, Secret};

/// Products that run beside a client.
const PARTS: client::Parts = client::Parts {
    access_points: hawser_air::start,
    direct: direct::run_with_client,
    open_uplinks: hawser_pool::open_uplinks,
};

/// Starts the tunnel to a hub, or direct mode without a hub (--direct).
///
/// Needs root. Returns when packets pass. The daemon continues in the background: `hawser status`
/// shows its state, `hawser down` ends it. An invitation is needed once, to join a hub: the machine
/// stores its key in --dir.
///
/// With --direct, each connection uses one of the networks. New connections are distributed over
/// the networks, or assigned by the rules of client.toml. A single connection is no faster than its
/// network. It ends when its network fails, unless `hawser move` applies to it.
#[derive(Debug, clap::Args)]
pub(crate) struct UpArgs {
    /// The line that `hawser hub invite NAME` printed on the hub; - reads it from standard input,
    /// @FILE from a file. If it is needed and not given, the command asks for it on the terminal,
    /// so that other users cannot read it.
    #[arg(conflicts_with = "direct")]
    invitation: Option<Secret>,
    /// Uses no hub: each connection uses one network, with that network's address.
    #[arg(long)]
    direct: bool,
    /// Stays in the foreground (for systemd, or to read the log).
    #[arg(long)]
    foreground: bool,
    /// Uses only networks (interfaces) with these names; * and ? are wildcards. May be repeated.
    #[arg(long, value_name = "PATTERN", value_parser = pattern)]
    include: Vec<Pattern>,
    /// Does not use networks with these names. May be repeated.
    #[arg(long, value_name = "PATTERN", value_parser = pattern)]
    exclude: Vec<Pattern>,
    /// Prints the result as JSON.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    directories: Directories,
    #[command(flatten)]
    logs: LogArgs,
    /// Set by `up` for the daemon that it starts.
    #[arg(long, hide = true)]
    detached: bool,
}

/// Stops the client (or the hub, or the repeater) and undoes every change to the system, also after
/// a crash.
#[derive(Debug, clap::Args)]
pub(crate) struct DownArgs {
    /// Prints the result as JSON.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    daemon: DaemonArgs,
}

/// Applies the changed configuration file to the running daemon; flows continue.
///
/// Has the effect of SIGHUP. Prints which changes need a restart.
#[derive(Debug, clap::Args)]
pub(crate) struct ReloadArgs {
    /// Prints the result as JSON.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    daemon: DaemonArgs,
}

pub(crate) fn pattern(text: &str) -> Result<Pattern, String> {
    text.parse()
        .map_err(|()| "an interface name such as wlan*, in which * and ? are wildcards".to_owned())
}

/// Asks for the invitation on a terminal, if it is needed and was not given. It is a secret: this
/// way it is neither an argument, which other users can read, nor in the shell's history.
fn asked(args: &UpArgs) -> anyhow::Result<Option<Invitation>> {
    let is_person = std::io::stdin().is_terminal() && std::io::stderr().is_terminal();
    if !is_person || args.direct || args.detached || client::hubs::has_membership(&args.directories.dir)? {
        return Ok(None);
    }
    eprint!(
        "This machine has not joined a hub yet. `hawser hub invite NAME` on the hub prints an \
         invitation\n(hawser://...); without a hub, use `hawser up --direct`.\n"
    );
    Ok(Some(secrets::ask("Invitation")?.parse()?))
}

fn warn_of_secret(args: &UpArgs) {
    if let Some(given) = &args.invitation {
        given.warn_if_written("an invitation");
    }
}

pub(crate) fn up(args: UpArgs) -> anyhow::Result<ExitCode> {
    let given = args
        .invitation
        .as_ref()
        .map(|given| -> anyhow::Result<Invitation> { Ok(given.read("Invitation")?.parse()?) });
    let given = given.transpose()?;
    // Report errors of the configuration first.
    let file = args.directories.dir.join("client.toml");
    let is_root = hawser_linux::process::is_root();
    let config: ClientConfig = match config::load_or_default(&file) {
        Ok(config) => config,
        Err(error) => {
            if !is_root && std::fs::metadata(&file).is_ok() && std::fs::File::open(&file).is_err() {
                bail!(NEEDS_ROOT);
            }
            keep_closed(&args);
            return Err(error.into());
        }
    };
    let problem = if args.direct {
        config.unfit_for_direct()
    } else {
        config.unfit_for_hub()
    };
    if let Some(problem) = problem {
        keep_closed(&args);
        return Ok(refuse(format_args!("{}: {problem}", file.display())));
    }
    if !is_root {
        bail!(NEEDS_ROOT);
    }
    let invitation = match given {
        Some(invitation) => Some(invitation),
        None => asked(&args)?,
    };
    if args.foreground {
        run(args, invitation, &config)
    } else {
        detach(&args, invitation.as_ref())
    }
}

/// Message for users without the rights of a client.
const NEEDS_ROOT: &str = "needs root to create an interface and routes: run `sudo hawser up ...`";

/// Closes the kill switch after a start with a hub that failed, if client.toml asks for it, so that
/// a mistake in that file does not let traffic out. Direct mode has no kill switch.
fn keep_closed(args: &UpArgs) {
    if args.direct || !hawser_linux::process::is_root() {
        return;
    }
    let run_dir = args.directories.run_dir(Role::Client);
    if is_alive(&run_dir::socket(&run_dir)) {
        return;
    }
    let closed = runtime()
        .and_then(|runtime| runtime.block_on(client::close_after_failure(&args.directories.dir, &run_dir)));
    match closed {
        Ok(true) => complain(
            "kill_switch = true: no packet leaves outside the tunnel until a start succeeds or `hawser down`",
        ),
        Ok(false) => {}
        Err(error) => complain(format_args!("the kill switch could not be enabled: {error:#}")),
    }
}

fn run(args: UpArgs, invitation: Option<Invitation>, config: &ClientConfig) -> anyhow::Result<ExitCode> {
    if args.detached {
        hawser_linux::process::new_session().context("cannot detach from the terminal")?;
    }
    let log = args.logs.start_with(config.log.as_ref())?;
    warn_of_secret(&args);
    let duty = if args.direct { Duty::Direct } else { Duty::Client };
    let run_dir = args.directories.run_dir(Role::Client);
    let intents = if args.direct {
        None
    } else {
        client::answer_intents()
    };
    confine(duty, &args.directories.dir, &run_dir)?;
    let options = ClientOptions {
        run_dir,
        dir: args.directories.dir,
        invitation,
        include: args.include,
        exclude: args.exclude,
        log,
    };
    if args.direct {
        runtime()?.block_on(direct::run(options, hawser_air::start))?;
    } else {
        runtime()?.block_on(client::run(options, PARTS, intents))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Starts the daemon and waits until packets flow.
fn detach(args: &UpArgs, invitation: Option<&Invitation>) -> anyhow::Result<ExitCode> {
    let run_dir = args.directories.run_dir(Role::Client);
    run_dir::prepare(&run_dir)?;
    if is_alive(&run_dir::socket(&run_dir)) {
        let next = if invitation.is_some() {
            ", after which the invitation can be used"
        } else {
            ""
        };
        bail!("hawser is already running: `hawser status` shows it, `hawser down` ends it{next}");
    }
    // Not passed as an argument, because all users can read those.
    let secret = invitation.map(ToString::to_string);
    let mut child = background::start(
        &arguments(args, invitation, &run_dir),
        secret.as_deref(),
        &run_dir,
    )?;
    let (status, is_up) = background::wait(&mut child, &run_dir, |status| status["state"] == "up")?;
    if is_up {
        report_up(&status, args.json)?;
        warn_of_secret(args);
        return Ok(ExitCode::SUCCESS);
    }
    let notice = status["notice"].as_str().unwrap_or("no network is usable");
    bail!("not up yet: {notice}; attempts continue (`hawser status` shows more, `hawser down` ends them)")
}

fn arguments(args: &UpArgs, invitation: Option<&Invitation>, run_dir: &Path) -> Vec<OsString> {
    let mut all: Vec<OsString> = ["up", "--foreground", "--detached", "--dir"]
        .map(Into::into)
        .to_vec();
    all.extend([
        args.directories.dir.clone().into(),
        "--run-dir".into(),
        run_dir.to_owned().into(),
    ]);
    for pattern in &args.include {
        all.extend(["--include".into(), pattern.0.clone().into()]);
    }
    for pattern in &args.exclude {
        all.extend(["--exclude".into(), pattern.0.clone().into()]);
    }
    if args.direct {
        all.push("--direct".into());
    }
    all.extend(args.logs.arguments().into_iter().map(Into::into));
    if invitation.is_some() {
        all.push("-".into());
    }
    all
}

fn report_up(status: &Value, as_json: bool) -> anyhow::Result<()> {
    if as_json {
        return say!("{status}");
    }
    let used: Vec<_> = status["networks"]
        .as_array()
        .into_iter()
        .flatten()
        .filter(|network| network["used"] == true)
        .filter_map(|network| network["name"].as_str())
        .collect();
    let hub = match status["role"].as_str() {
        Some("direct") => String::new(),
        _ => format!(" to {}", status["hub"][0].as_str().unwrap_or("the hub")),
    };
    say!(
        "up: {}{hub} over {}",
        status["interface"].as_str().unwrap_or("hawser0"),
        used.join(", ")
    )
}

pub(crate) fn down(args: &DownArgs) -> anyhow::Result<ExitCode> {
    let place = args.daemon.run_dir();
    run_dir::check(&place)?;
    let socket = run_dir::socket(&place);
    let message = if let Some(message) = background::end(&place)? {
        message
    } else if args.daemon.socket()? != socket {
        "no client is running; `hawser down --hub` stops the hub, `hawser down --repeat` the repeater"
    } else {
        "was not running"
    };
    if args.json {
        say!("{}", json!({ "version": 1, "state": "down", "message": message }))?;
    } else {
        say!("{message}")?;
    }
    Ok(ExitCode::SUCCESS)
}

pub(crate) fn reload(args: &ReloadArgs) -> anyhow::Result<ExitCode> {
    let answer = ask(&args.daemon.socket()?, &Request::Reload)?;
    if args.json {
        say!("{answer}")?;
        return Ok(ExitCode::SUCCESS);
    }
    let waiting: Vec<_> = answer["needs_restart"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(Value::as_str)
        .collect();
    if waiting.is_empty() {
        say!("applied")?;
    } else {
        say!("applied; these changes need a restart: {}", waiting.join(", "))?;
    }
    Ok(ExitCode::SUCCESS)
}
