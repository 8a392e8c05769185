//! `hawser up`, `down`, `reload`.

use std::io::{Read, Write};
use std::path::Path;
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use hawser_linux::confine::Duty;
use hawser_linux::system::System;
use hawser_node::client::{self, ClientOptions};
use hawser_node::config::{self, ClientConfig, Pattern};
use hawser_node::control_socket::{Request, ask, is_alive};
use hawser_node::direct;
use hawser_node::invitation::Invitation;
use hawser_node::run_dir::{self, Role, RunDir};
use hawser_terminal::{refuse, say};
use serde_json::{Value, json};

use crate::logs::LogArgs;
use crate::{Places, Which, confine};

/// Brings the tunnel up: joins a hub with an invitation, or the known one without; or uses all
/// networks without any hub (--direct).
///
/// Needs root. Returns when packets flow; the daemon goes on in the background. After that,
/// `hawser status` shows what it does and `hawser down` ends it. The invitation is needed once: the
/// machine keeps its key in --dir.
///
/// With --direct, each connection travels over one of the networks and keeps it; new ones are
/// shared out, or placed by the rules of client.toml. A single connection is then no faster than
/// its network, and ends with it.
#[derive(Debug, clap::Args)]
pub(crate) struct UpArgs {
    /// The line that `hawser hub invite NAME` printed on the hub; - reads it from standard input.
    #[arg(conflicts_with = "direct")]
    invitation: Option<String>,
    /// Uses no hub: each connection travels over one network, with that network's address.
    #[arg(long)]
    direct: bool,
    /// Stays in the foreground (for systemd, or to watch the log).
    #[arg(long)]
    foreground: bool,
    /// Uses only networks (interfaces) of these names; * and ? are wild. May be repeated.
    #[arg(long, value_name = "PATTERN", value_parser = pattern)]
    include: Vec<Pattern>,
    /// Leaves networks of these names alone. May be repeated.
    #[arg(long, value_name = "PATTERN", value_parser = pattern)]
    exclude: Vec<Pattern>,
    /// Prints the result as JSON.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    places: Places,
    #[command(flatten)]
    logs: LogArgs,
    /// Set by `up` for the daemon that it starts.
    #[arg(long, hide = true)]
    detached: bool,
}

/// Takes the tunnel (or the hub, or the repeater) down and undoes every change to the system, also
/// after a crash.
#[derive(Debug, clap::Args)]
pub(crate) struct DownArgs {
    /// Prints the result as JSON.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    which: Which,
}

/// Applies the changed configuration file to the running daemon; flows go on.
///
/// The same as SIGHUP. Says which changes wait for a restart.
#[derive(Debug, clap::Args)]
pub(crate) struct ReloadArgs {
    /// Prints the result as JSON.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    which: Which,
}

fn pattern(text: &str) -> Result<Pattern, String> {
    text.parse()
        .map_err(|()| "an interface name, in which * and ? are wild, such as wlan*".to_owned())
}

pub(crate) fn up(args: UpArgs) -> anyhow::Result<ExitCode> {
    let line = match args.invitation.as_deref() {
        Some("-") => {
            let mut line = String::new();
            std::io::stdin().take(4096).read_to_string(&mut line)?;
            Some(line)
        }
        other => other.map(ToOwned::to_owned),
    };
    let invitation = line.map(|line| line.parse::<Invitation>()).transpose()?;
    // What is wrong with the configuration is said before anything else.
    let config: ClientConfig = config::load_or_default(&args.places.dir.join("client.toml"))?;
    let problem = if args.direct {
        config.unfit_for_direct()
    } else {
        config.unfit_for_hub()
    };
    if let Some(problem) = problem {
        let file = args.places.dir.join("client.toml");
        return Ok(refuse(format_args!("{}: {problem}", file.display())));
    }
    if !hawser_linux::process::is_root() {
        bail!("needs root to make an interface and routes: sudo hawser up ...");
    }
    if args.foreground {
        run(args, invitation, &config)
    } else {
        detach(&args, invitation.as_ref())
    }
}

fn run(args: UpArgs, invitation: Option<Invitation>, config: &ClientConfig) -> anyhow::Result<ExitCode> {
    if args.detached {
        hawser_linux::process::new_session().context("cannot leave the terminal")?;
    }
    let log = args.logs.start_with(config.log.as_ref())?;
    let duty = if args.direct { Duty::Direct } else { Duty::Client };
    let run_dir = args.places.run_dir(Role::Client);
    confine(duty, &args.places.dir, &run_dir)?;
    let options = ClientOptions {
        run_dir,
        dir: args.places.dir,
        invitation,
        include: args.include,
        exclude: args.exclude,
        log,
    };
    if args.direct {
        runtime()?.block_on(direct::run(options))?;
    } else {
        runtime()?.block_on(client::run(options))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// One thread: packets have threads of their own.
pub(crate) fn runtime() -> anyhow::Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("cannot start the event loop")
}

/// Starts the daemon and waits until packets flow.
fn detach(args: &UpArgs, invitation: Option<&Invitation>) -> anyhow::Result<ExitCode> {
    let run_dir = args.places.run_dir(Role::Client);
    run_dir::prepare(&run_dir)?;
    let socket = run_dir::socket(&run_dir);
    if is_alive(&socket) {
        bail!("hawser already runs: `hawser status` shows it, `hawser down` ends it");
    }
    let log = run_dir.join("hawser.log");
    let mut child = spawn(args, invitation, &run_dir, &log)?;
    let deadline = Instant::now() + PATIENCE;
    let mut last = Value::Null;
    while Instant::now() < deadline {
        if let Some(status) = child.try_wait()? {
            bail!(
                "{}",
                last_words(&log).unwrap_or_else(|| format!("the daemon ended ({status})"))
            );
        }
        if is_alive(&socket)
            && let Ok(status) = ask(&socket, &Request::Status)
        {
            if status["state"] == "up" {
                report_up(&status, args.json)?;
                return Ok(ExitCode::SUCCESS);
            }
            last = status;
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    let notice = last["notice"].as_str().unwrap_or("no network is usable");
    bail!("not up yet, and goes on trying: {notice} (`hawser status` shows more, `hawser down` gives up)")
}

fn spawn(
    args: &UpArgs,
    invitation: Option<&Invitation>,
    run_dir: &Path,
    log: &Path,
) -> anyhow::Result<Child> {
    let file = std::fs::File::create(log).with_context(|| format!("cannot write {}", log.display()))?;
    let mut command = Command::new(std::env::current_exe().context("cannot find this program")?);
    command.args(["up", "--foreground", "--detached"]);
    command
        .arg("--dir")
        .arg(&args.places.dir)
        .arg("--run-dir")
        .arg(run_dir);
    for pattern in &args.include {
        command.args(["--include", &pattern.0]);
    }
    for pattern in &args.exclude {
        command.args(["--exclude", &pattern.0]);
    }
    if args.direct {
        command.arg("--direct");
    }
    command.args(args.logs.arguments());
    if invitation.is_some() {
        // Not as an argument: everybody can read those.
        command.arg("-");
    }
    command.stdin(if invitation.is_some() {
        Stdio::piped()
    } else {
        Stdio::null()
    });
    let mut child = command
        .stdout(file.try_clone()?)
        .stderr(file)
        .spawn()
        .context("cannot start the daemon")?;
    if let (Some(invitation), Some(mut stdin)) = (invitation, child.stdin.take()) {
        stdin
            .write_all(invitation.to_string().as_bytes())
            .context("cannot hand over the invitation")?;
    }
    Ok(child)
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

/// The reason in the daemon's log: the line that the command prints when it fails.
fn last_words(log: &Path) -> Option<String> {
    let text = std::fs::read_to_string(log).ok()?;
    let said = text.lines().rev().find_map(|line| line.strip_prefix("hawser: "));
    said.map(ToOwned::to_owned)
}

pub(crate) fn down(args: &DownArgs) -> anyhow::Result<ExitCode> {
    let place = args.which.run_dir();
    run_dir::check(&place)?;
    let socket = run_dir::socket(&place);
    let message = if is_alive(&socket) {
        ask(&socket, &Request::Down)?;
        wait_for_end(&place)?;
        "down"
    } else if place.join("undo.json").exists() {
        let run_dir = RunDir::take(&place)?;
        LogArgs::warn()?;
        runtime()?.block_on(async {
            System::open(&run_dir.journal()).await?.undo_left().await;
            anyhow::Ok(())
        })?;
        if run_dir.journal().exists() {
            bail!("some changes could not be undone (see above): are you root?");
        }
        "was not running; undid what it had left behind"
    } else if args.which.socket()? != socket {
        "no client runs here; `hawser down --hub` takes the hub down, `hawser down --repeat` the repeater"
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

fn wait_for_end(run_dir: &Path) -> anyhow::Result<()> {
    let deadline = Instant::now() + PATIENCE;
    while Instant::now() < deadline {
        if RunDir::take(run_dir).is_ok() {
            return Ok(());
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    bail!("the daemon does not end: see its log")
}

pub(crate) fn reload(args: &ReloadArgs) -> anyhow::Result<ExitCode> {
    let answer = ask(&args.which.socket()?, &Request::Reload)?;
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
        say!("applied, but for what needs a restart: {}", waiting.join(", "))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// The slowest networks of use need a few seconds for a handshake.
const PATIENCE: Duration = Duration::from_secs(20);
