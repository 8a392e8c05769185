//! `hawser repeat ...`.

use std::collections::BTreeMap;
use std::net::Ipv6Addr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::bail;
use hawser_host::control_socket::{Request, ask};
use hawser_host::run_dir::{self, Role};
use hawser_linux::confine::Duty;
use hawser_repeater::{self as repeater, Moving, Options, Search, Side, trust};
use hawser_terminal::columns;
use serde_json::{Value, json};

use crate::cli_status::{channels, list, text};
use crate::directories::{Directories, confine};
use crate::guests::{ListArgs, print};
use crate::logs::LogArgs;
use crate::runtime::runtime;

/// Connects two bridges over several links at once: a repeater, or two sites as one network.
///
/// On the box with the uplink: `sudo hawser repeat ap --bridge br0 --links eth1,eth2`. On the other
/// box: `sudo hawser repeat join --bridge br0 --links eth1,eth2`. Both print a code. On each box,
/// enter the code of the other once: `sudo hawser repeat trust CODE`. Then the hosts of both
/// bridges are in one network, connected over all links together. `hawser status` shows the links.
#[derive(Debug, clap::Args)]
pub(crate) struct RepeatArgs {
    #[command(subcommand)]
    command: RepeatCommand,
}

#[derive(Debug, clap::Subcommand)]
enum RepeatCommand {
    /// Runs the access point's side in the foreground: it waits for the other box.
    Ap(ApArgs),
    /// Runs the joining side in the foreground: it finds the other box on the links.
    ///
    /// If a radio of this box serves clients and a link to the other box on the same channel, this
    /// box asks the other box to limit the rate of that link to the airtime that the clients leave.
    /// `hawser status` shows the limit. Such an access point is detected automatically once it is
    /// in the bridge.
    Join(JoinArgs),
    /// Searches for a better channel now, and prints the result. Works on the access point's box,
    /// where `hawser repeat ap --migrate` is running.
    Migrate(MigrateArgs),
    /// Prints the code of this box, which the other box needs for `hawser repeat trust`.
    Code(ListArgs),
    /// Trusts the box with this code from now on, also while the repeater is running.
    Trust(CodeArgs),
    /// Revokes the trust; a session with that box ends at once.
    Distrust(CodeArgs),
    /// Lists the trusted codes.
    List(ListArgs),
}

#[derive(Debug, clap::Args)]
struct SideArgs {
    /// Bridge whose hosts are connected with those of the other box.
    #[arg(long, value_name = "BRIDGE")]
    bridge: String,
    /// Interfaces that are connected to the other box, such as eth1,eth2. They must be up and in no
    /// bridge, and need no addresses.
    #[arg(
        long,
        alias = "radios",
        value_name = "LINK,...",
        value_delimiter = ',',
        required = true
    )]
    links: Vec<String>,
    /// Link-local address of the other box on a link, such as fe80::1%eth1, if multicast does not
    /// find it. May be repeated.
    #[arg(long, value_name = "ADDRESS%LINK", value_parser = neighbour)]
    neighbour: Vec<(Ipv6Addr, String)>,
    /// Delivers frames of the other box in the order of their arrival, not in the order in which
    /// they were sent; for measurements of the effect of reordering.
    #[arg(long)]
    any_order: bool,
    /// Limits the queue of a flow to this many packets while no link can accept one, and drops
    /// further packets; for measurements of the effect of queueing [default: as many as the links
    /// need].
    #[arg(long, value_name = "PACKETS", value_parser = clap::value_parser!(u64).range(..=100_000))]
    buffer: Option<u64>,
    #[command(flatten)]
    directories: Directories,
    #[command(flatten)]
    logs: LogArgs,
}

#[derive(Debug, clap::Args)]
struct ApArgs {
    #[command(flatten)]
    side: SideArgs,
    /// Moves links that are access points of this box to another channel when their channel has
    /// become poor; the other box follows. Moves to the first channel that is better, or with =best
    /// to the best channel.
    ///
    /// A link that transfers packets is tested for 20 ms every 10 s. If two successive tests find
    /// less than half of the best rate on this channel, a search begins. Channels with radar
    /// detection and channels of other links of this box are excluded. A link on which the other
    /// box serves its clients is not moved. Two searches are at least one minute apart. Needs
    /// hostapd's control socket (ctrl_interface=/run/hostapd).
    #[arg(
        long,
        value_name = "SEARCH",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "adequate",
        value_parser = search
    )]
    migrate: Option<Search>,
    /// Directory of hostapd's control sockets (its ctrl_interface).
    #[arg(
        long,
        value_name = "DIR",
        default_value = "/run/hostapd",
        requires = "migrate"
    )]
    hostapd: PathBuf,
}

#[derive(Debug, clap::Args)]
struct MigrateArgs {
    /// Link, as `hawser status` names it [default: all links that may be moved].
    link: Option<String>,
    /// Prints the result as JSON.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    directories: Directories,
}

#[derive(Debug, clap::Args)]
struct JoinArgs {
    #[command(flatten)]
    side: SideArgs,
    /// Interface in the bridge that serves the clients, such as wlan0-ap [default: the access point
    /// on the card, or on the channel, of a link].
    #[arg(long, value_name = "INTERFACE")]
    clients: Option<String>,
    /// Link that shares its channel with the clients, if this is not detected: for example when the
    /// radios are bridged by a cable.
    #[arg(long, value_name = "LINK", requires = "clients")]
    shared: Option<String>,
    /// Directory of hostapd's control sockets (its ctrl_interface), such as /run/hostapd. With it,
    /// the access point that serves the clients changes its channel together with the other box's
    /// access point, whose station is on the same card. Without it, the kernel drops that link at a
    /// channel change.
    #[arg(long, value_name = "DIR")]
    hostapd: Option<PathBuf>,
}

#[derive(Debug, clap::Args)]
struct CodeArgs {
    /// Code that the other box shows, such as abcd-efgh-ijkl-mnop.
    code: String,
    /// Prints the result as JSON.
    #[arg(long)]
    json: bool,
    /// Directory of the key and the trusted codes.
    #[arg(long, value_name = "DIR", default_value = "/etc/hawser")]
    dir: PathBuf,
    /// Has no effect here: the running repeater detects the change itself.
    #[arg(long, value_name = "DIR", hide = true)]
    run_dir: Option<PathBuf>,
}

fn neighbour(text: &str) -> Result<(Ipv6Addr, String), String> {
    let parts = text.split_once('%');
    let parsed = parts.and_then(|(address, link)| Some((address.parse::<Ipv6Addr>().ok()?, link)));
    match parsed {
        Some((address, link)) if address.is_unicast_link_local() && !link.is_empty() => {
            Ok((address, link.to_owned()))
        }
        _ => Err("a link-local address and its link, such as fe80::1%eth1".to_owned()),
    }
}

fn search(text: &str) -> Result<Search, String> {
    match text {
        "adequate" => Ok(Search::Adequate),
        "best" => Ok(Search::Best),
        _ => Err("expected adequate or best".to_owned()),
    }
}

pub(crate) fn run(args: RepeatArgs) -> anyhow::Result<ExitCode> {
    match args.command {
        RepeatCommand::Ap(args) => {
            let hostapd = args.hostapd;
            let moving = args.migrate.map(|search| Moving { search, hostapd });
            serve(args.side, |options| options.moving = moving)?;
        }
        RepeatCommand::Join(args) => serve(args.side, |options| {
            options.side = Side::Joining;
            (options.clients, options.shared) = (args.clients, args.shared);
            options.along = args.hostapd;
        })?,
        RepeatCommand::Migrate(args) => migrate(&args)?,
        RepeatCommand::Code(args) => {
            let code = trust::own_code(&args.directories.dir)?;
            print(args.json, || json!({ "version": 1, "code": code }), &code)?;
        }
        RepeatCommand::Trust(args) => {
            let code = trust::trust(&args.dir, &args.code)?;
            let own = trust::own_code(&args.dir)?;
            print(
                args.json,
                || json!({ "version": 1, "trusted": code }),
                &format!("{code} is trusted; on the other box, run `sudo hawser repeat trust {own}`"),
            )?;
        }
        RepeatCommand::Distrust(args) => {
            let code = trust::distrust(&args.dir, &args.code)?;
            print(
                args.json,
                || json!({ "version": 1, "distrusted": code }),
                &format!("{code} is no longer trusted"),
            )?;
        }
        RepeatCommand::List(args) => {
            let all = trust::list(&args.directories.dir)?;
            print(args.json, || all.clone(), &table(&all))?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Runs a side with the options of the access point, changed by `set`.
fn serve(args: SideArgs, set: impl FnOnce(&mut Options)) -> anyhow::Result<()> {
    let run_dir = args.directories.run_dir(Role::Repeater);
    let mut neighbours = BTreeMap::new();
    for (address, link) in args.neighbour {
        neighbours.insert(link, address);
    }
    if !hawser_linux::process::is_root() {
        bail!("needs root to create an interface: run `sudo hawser repeat ...`");
    }
    args.logs.start()?;
    let mut options = Options {
        dir: args.directories.dir,
        run_dir,
        side: Side::AccessPoint,
        bridge: args.bridge,
        links: args.links,
        neighbours,
        clients: None,
        shared: None,
        along: None,
        moving: None,
        any_order: args.any_order,
        buffer: args.buffer,
    };
    set(&mut options);
    confine(Duty::Hub, &options.dir, &options.run_dir)?;
    runtime()?.block_on(repeater::run(options))
}

/// Requests a search, and waits until its end.
fn migrate(args: &MigrateArgs) -> anyhow::Result<()> {
    let run_dir = args.directories.run_dir(Role::Repeater);
    run_dir::check(&run_dir)?;
    let socket = run_dir::socket(&run_dir);
    let links = || -> anyhow::Result<Vec<Value>> {
        let status = ask(&socket, &Request::Status)?;
        Ok(list(&status["links"]).to_vec())
    };
    let searches = |of: &Value, all: &[Value]| {
        let mut all = all.iter();
        all.find(|link| link["name"] == *of)
            .and_then(|link| link["radio"]["moving"]["searches"].as_u64())
    };
    let before = links()?;
    let link = args.link.clone();
    let asked = ask(&socket, &Request::Migrate { link })?;
    let (asked, begun) = (list(&asked["links"]), Instant::now());
    let found = loop {
        std::thread::sleep(Duration::from_millis(200));
        let mut now = links()?;
        let is_over = |link: &Value| searches(link, &now) > searches(link, &before);
        if asked.iter().all(is_over) {
            now.retain(|link| asked.contains(&link["name"]));
            break json!(now);
        }
        if begun.elapsed() > SEARCH_TIMEOUT {
            bail!(
                "no result within {} s: see the log of `hawser repeat ap`",
                SEARCH_TIMEOUT.as_secs()
            );
        }
    };
    print(
        args.json,
        || json!({ "version": 1, "links": found }),
        channels(&found).trim_end(),
    )
}

/// Timeout of a search: ten channels and the return, for each of several links. Source: our choice;
/// a search takes 2.2 s (Multifacet section 5.4), and links take turns.
const SEARCH_TIMEOUT: Duration = Duration::from_secs(30);

fn table(all: &Value) -> String {
    let own = format!("this box: {}", text(&all["code"]));
    let rows: Vec<_> = list(&all["trusted"])
        .iter()
        .map(|one| {
            let state = if one["met"] == true {
                "has connected"
            } else {
                "not seen yet"
            };
            vec![text(&one["code"]).to_owned(), state.to_owned()]
        })
        .collect();
    if rows.is_empty() {
        return format!("{own}\nno box is trusted yet: run `sudo hawser repeat trust CODE`");
    }
    format!("{own}\n{}", columns(&["trusted", "state"], &rows, ""))
}
