//! `hawser share`.

use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context, bail};
use hawser_config::identity::Code;
use hawser_config::{Pattern, ShareConfig, Size, Speed, TimeOfDay};
use hawser_host::control_socket::{Request, ask, is_alive};
use hawser_host::run_dir::{self, Role};
use hawser_linux::confine::Duty;
use hawser_pool::share::{self, ShareOptions};
use hawser_pool::{Trust, forget};
use hawser_terminal::{columns, say};
use serde_json::{Value, json};

use crate::amounts::{bytes, rate, speed};
use crate::background;
use crate::cli_client::pattern;
use crate::cli_status::{list, number, show, text};
use crate::directories::{Directories, confine};
use crate::guests::{ListArgs, NameArgs, print};
use crate::logs::LogArgs;
use crate::runtime::runtime;

/// Shares this machine's networks with neighbours, who use them in addition to their own.
///
/// Works with and without `hawser up` on this machine. Needs root. Continues in the background
/// until `hawser share stop`. Prints the code of this machine. A neighbour's machine (a taker)
/// needs this code once: run `hawser pool trust NAME CODE` there. Allow each taker once here, by
/// its own code: `hawser share allow NAME CODE` (`hawser share status` shows the requests). Packets
/// of a taker are encrypted for its own hub, and are sent to no other host.
#[derive(Debug, clap::Args)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct ShareArgs {
    #[command(subcommand)]
    command: Option<ShareCommand>,
    #[command(flatten)]
    give: GiveArgs,
}

#[derive(Debug, clap::Subcommand)]
enum ShareCommand {
    /// Shows the shared networks, the takers, their requests, and the transferred bytes.
    Status(StatusArgs),
    /// Allows a taker permanently: a name for it, and its code (shown by `hawser pool` on its
    /// machine).
    Allow(AllowArgs),
    /// Revokes the permission of a taker; its traffic ends at once.
    Revoke(NameArgs),
    /// Stops sharing.
    Stop(ListArgs),
}

#[derive(Debug, clap::Args)]
struct GiveArgs {
    /// Maximum rate in each direction, all takers together, such as 5mbit.
    #[arg(long, value_name = "RATE", value_parser = speed)]
    cap: Option<Speed>,
    /// Maximum bytes in both directions together, such as 2GB.
    #[arg(long, value_name = "AMOUNT", value_parser = size)]
    quota: Option<Size>,
    /// Cost that takers see, 0 to 255 in any unit. Takers prefer lower costs, and may exclude
    /// higher ones.
    #[arg(long, value_name = "COST")]
    cost: Option<u8>,
    /// Time of day at which sharing ends, such as 18:00.
    #[arg(long, value_name = "TIME", value_parser = time)]
    until: Option<TimeOfDay>,
    /// Serves only these of the allowed takers; NAME=CODE allows one. May be repeated.
    #[arg(long, value_name = "NAME", value_parser = taker)]
    allow: Vec<Allowed>,
    /// Shares only networks (interfaces) with these names; * and ? are wildcards. May be repeated.
    #[arg(long, value_name = "PATTERN", value_parser = pattern)]
    networks: Vec<Pattern>,
    /// Stays in the foreground (for systemd, or to read the log).
    #[arg(long)]
    foreground: bool,
    /// Prints the result as JSON.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    directories: Directories,
    #[command(flatten)]
    logs: LogArgs,
    /// Set by `share` for the daemon that it starts.
    #[arg(long, hide = true)]
    detached: bool,
}

#[derive(Debug, clap::Args)]
struct StatusArgs {
    /// Prints everything as JSON (with --watch: one object per line).
    #[arg(long)]
    json: bool,
    /// Repeats the output every half second, until Ctrl-C.
    #[arg(long)]
    watch: bool,
    #[command(flatten)]
    directories: Directories,
}

#[derive(Debug, clap::Args)]
struct AllowArgs {
    /// Name for the machine, used on this machine only: 1 to 32 of a-z, 0-9, - and _.
    name: String,
    /// The code that `hawser pool` shows on it.
    #[arg(value_parser = code)]
    code: Code,
    /// Prints the result as JSON.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    directories: Directories,
}

#[derive(Clone, Debug)]
struct Allowed {
    name: String,
    code: Option<Code>,
}

fn size(text: &str) -> Result<Size, String> {
    text.parse()
        .map_err(|()| "an amount with its unit (B, kB, MB, GB, TB), such as 2GB".to_owned())
}

fn time(text: &str) -> Result<TimeOfDay, String> {
    text.parse()
        .map_err(|()| "a time of the day, such as 18:00".to_owned())
}

pub(crate) fn code(text: &str) -> Result<Code, String> {
    text.parse().map_err(|()| {
        "a code of 16 letters and digits, as `hawser pool` shows it on the other machine".to_owned()
    })
}

fn taker(text: &str) -> Result<Allowed, String> {
    let (name, given) = match text.split_once('=') {
        Some((name, given)) => (name, Some(code(given)?)),
        None => (text, None),
    };
    Ok(Allowed {
        name: name.to_owned(),
        code: given,
    })
}

pub(crate) fn run(args: ShareArgs) -> anyhow::Result<ExitCode> {
    match args.command {
        None => give(args.give),
        Some(ShareCommand::Status(args)) => status(&args),
        Some(ShareCommand::Allow(args)) => allow(&args),
        Some(ShareCommand::Revoke(args)) => revoke(&args),
        Some(ShareCommand::Stop(args)) => stop(&args),
    }
}

fn give(args: GiveArgs) -> anyhow::Result<ExitCode> {
    // Report errors of the configuration first.
    let mut config = share::load_config(&args.directories.dir)?;
    if !hawser_linux::process::is_root() {
        bail!("needs root to bind sockets to networks: run `sudo hawser share ...`");
    }
    let run_dir = args.directories.run_dir(Role::Share);
    if !args.detached {
        Trust::update(&args.directories.dir, |trust| {
            for taker in &args.allow {
                match taker.code {
                    Some(code) => trust.allow(&taker.name, code, Vec::new())?,
                    None if trust.takers.iter().any(|known| known.name == taker.name) => {}
                    None => bail!(
                        "{0} is not an allowed taker: write --allow {0}=CODE, with the code that `hawser pool` shows there",
                        taker.name
                    ),
                }
            }
            Ok(())
        })?;
    }
    if !args.foreground {
        return detach(&args, &run_dir);
    }
    if args.detached {
        hawser_linux::process::new_session().context("cannot detach from the terminal")?;
    }
    apply(&args, &mut config);
    let log = args.logs.start_with(config.log.as_ref())?;
    confine(Duty::Share, &args.directories.dir, &run_dir)?;
    let options = ShareOptions {
        dir: args.directories.dir,
        run_dir,
        config,
        only: args.allow.into_iter().map(|taker| taker.name).collect(),
        log,
    };
    runtime()?.block_on(share::run(options))?;
    Ok(ExitCode::SUCCESS)
}

/// Applies the options of the command line, which override the file.
fn apply(args: &GiveArgs, config: &mut ShareConfig) {
    config.cap = args.cap.or(config.cap);
    config.quota = args.quota.or(config.quota);
    config.cost = args.cost.unwrap_or(config.cost);
    config.until = args.until.or(config.until);
    if !args.networks.is_empty() {
        config.networks.clone_from(&args.networks);
    }
}

fn detach(args: &GiveArgs, run_dir: &Path) -> anyhow::Result<ExitCode> {
    run_dir::prepare(run_dir)?;
    if is_alive(&run_dir::socket(run_dir)) {
        bail!("this machine is already sharing: `hawser share status` shows it, `hawser share stop` ends it");
    }
    let mut child = background::start(&arguments(run_dir), None, run_dir)?;
    let (status, is_up) = background::wait(&mut child, run_dir, |status| status["state"] == "up")?;
    if !is_up {
        bail!(
            "the daemon does not answer: see {}",
            run_dir.join("hawser.log").display()
        );
    }
    if args.json {
        say!("{status}")?;
    } else {
        say!(
            "sharing; the code of this machine is {}\n\
             on a neighbour's machine: `hawser pool trust NAME {0}`; `hawser share status` shows its request",
            text(&status["code"])
        )?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Returns the same arguments again, for the daemon.
fn arguments(run_dir: &Path) -> Vec<OsString> {
    let mut all: Vec<OsString> = std::env::args_os().skip(1).collect();
    all.extend(["--foreground".into(), "--detached".into()]);
    if !all
        .iter()
        .any(|word| word.to_string_lossy().starts_with("--run-dir"))
    {
        all.extend(["--run-dir".into(), run_dir.to_owned().into()]);
    }
    all
}

fn status(args: &StatusArgs) -> anyhow::Result<ExitCode> {
    let socket = run_dir::socket(&args.directories.run_dir(Role::Share));
    let down = "not sharing: `sudo hawser share` starts it";
    show(&socket, (args.json, args.watch), down, render)
}

/// Returns a description of the shared networks and the takers.
pub(crate) fn render(status: &Value) -> String {
    let ways: Vec<_> = list(&status["ways"]).iter().filter_map(Value::as_str).collect();
    let mut out = format!(
        "sharing {}; the code of this machine is {}\n",
        if ways.is_empty() {
            "nothing: no network is up".to_owned()
        } else {
            ways.join(", ")
        },
        text(&status["code"])
    );
    let mut terms = Vec::new();
    terms.extend(
        status["cap_bps"]
            .as_u64()
            .map(|cap| format!("at most {}", rate(cap))),
    );
    terms.extend(
        status["quota_bytes"]
            .as_u64()
            .map(|quota| format!("{} of {}", bytes(number(&status["carried_bytes"])), bytes(quota))),
    );
    terms.extend(
        status["cost"]
            .as_u64()
            .filter(|cost| *cost > 0)
            .map(|cost| format!("cost {cost}")),
    );
    terms.extend(status["until"].as_str().map(|until| format!("until {until}")));
    if !terms.is_empty() {
        out += &format!("{}\n", terms.join(", "));
    }
    if let Some(over) = status["over"].as_str() {
        out += &format!(
            "note: sharing has ended ({over}): run `hawser share stop`, then `hawser share` to start again\n"
        );
    }
    for left in list(&status["left"]) {
        let (down, up) = (left["down_bps"].as_u64(), left["up_bps"].as_u64());
        let shown: Vec<_> = [(down, "down"), (up, "up")]
            .iter()
            .filter_map(|(bps, way)| Some(format!("{} {way}", rate((*bps)?))))
            .collect();
        if !shown.is_empty() {
            out += &format!(
                "{} has {} available for takers\n",
                text(&left["network"]),
                shown.join(" and ")
            );
        }
    }
    let takers = list(&status["takers"]);
    for taker in takers.iter().filter(|taker| taker["state"] == "waiting") {
        let hubs: Vec<_> = list(&taker["hubs"]).iter().filter_map(Value::as_str).collect();
        out += &format!(
            "request: {} (code {}, hub {}), because {}; `sudo hawser share allow NAME {1}` allows it\n",
            text(&taker["machine"]),
            text(&taker["code"]),
            hubs.join(" "),
            text(&taker["why"]),
        );
    }
    let rows: Vec<_> = takers
        .iter()
        .filter(|taker| taker["state"] != "waiting")
        .map(|taker| {
            let name = taker["name"].as_str().unwrap_or(text(&taker["machine"]));
            vec![
                name.to_owned(),
                taker["why"].as_str().unwrap_or("active").to_owned(),
                bytes(number(&taker["up_bytes"])),
                bytes(number(&taker["down_bytes"])),
            ]
        })
        .collect();
    if !rows.is_empty() {
        out += &columns(&["taker", "state", "up", "down"], &rows, "\n");
    }
    out.trim_end().to_owned()
}

fn allow(args: &AllowArgs) -> anyhow::Result<ExitCode> {
    let run_dir = args.directories.run_dir(Role::Share);
    let hubs = asked_hubs(&run_dir, args.code);
    Trust::update(&args.directories.dir, |trust| {
        trust.allow(&args.name, args.code, hubs)
    })?;
    refresh(&run_dir)?;
    let name = &args.name;
    print(
        args.json,
        || json!({ "version": 1, "allowed": name }),
        &format!("{name} is allowed while `hawser share` is running"),
    )?;
    Ok(ExitCode::SUCCESS)
}

/// Returns the hubs that a requesting device currently names: the consent applies to these.
fn asked_hubs(run_dir: &Path, code: Code) -> Vec<SocketAddr> {
    let status = ask(&run_dir::socket(run_dir), &Request::Status).unwrap_or_default();
    let takers = list(&status["takers"]).iter();
    let mut asking = takers.filter(|taker| taker["code"] == code.to_string());
    let hubs = asking
        .next()
        .map(|taker| list(&taker["hubs"]))
        .unwrap_or_default();
    hubs.iter().filter_map(|hub| hub.as_str()?.parse().ok()).collect()
}

fn revoke(args: &NameArgs) -> anyhow::Result<ExitCode> {
    Trust::update(&args.directories.dir, |trust| {
        forget(&mut trust.takers, &args.name)
    })?;
    refresh(&args.directories.run_dir(Role::Share))?;
    let name = &args.name;
    print(
        args.json,
        || json!({ "version": 1, "revoked": name }),
        &format!("{name} is no longer allowed"),
    )?;
    Ok(ExitCode::SUCCESS)
}

fn stop(args: &ListArgs) -> anyhow::Result<ExitCode> {
    let run_dir = args.directories.run_dir(Role::Share);
    run_dir::check(&run_dir)?;
    let message = background::end(&run_dir)?.unwrap_or("was not running");
    print(
        args.json,
        || json!({ "version": 1, "state": "down", "message": message }),
        message,
    )?;
    Ok(ExitCode::SUCCESS)
}

/// Makes the daemon reload the list at once.
fn refresh(run_dir: &Path) -> anyhow::Result<()> {
    let socket = run_dir::socket(run_dir);
    if is_alive(&socket) {
        ask(&socket, &Request::Reload)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_status_says_who_asks_and_what_to_do() {
        let status = json!({
            "code": "aaaa-bbbb-cccc-dddd", "ways": ["wwan0"], "cap_bps": 5_000_000, "quota_bytes": 2_000_000_000_u64,
            "carried_bytes": 1_500, "until": "18:00", "over": null,
            "takers": [
                { "state": "waiting", "why": "its code is not allowed here", "machine": "laptop",
                  "code": "eeee-ffff-gggg-hhhh", "hubs": ["192.0.2.1:443"] },
                { "state": "taking", "name": "alice", "up_bytes": 1_000, "down_bytes": 2_000_000 },
            ],
        });
        let shown = render(&status);
        assert!(
            shown.starts_with("sharing wwan0; the code of this machine is aaaa-bbbb-cccc-dddd\n"),
            "{shown}"
        );
        assert!(
            shown.contains("at most 5.0 Mbit/s, 1.5 kB of 2.00 GB, until 18:00\n"),
            "{shown}"
        );
        assert!(
            shown.contains("`sudo hawser share allow NAME eeee-ffff-gggg-hhhh` allows it\n"),
            "{shown}"
        );
        assert!(shown.contains("alice  active  1.0 kB  2.0 MB"), "{shown}");
    }
}
