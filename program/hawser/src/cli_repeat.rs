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

/// Joins two bridges by several links at once: a repeater, or two sites as one network.
///
/// On the box with the way out: `sudo hawser repeat ap --bridge br0 --links eth1,eth2`. On the
/// other box: `sudo hawser repeat join --bridge br0 --links eth1,eth2`. Both show a code; on each,
/// type the code of the other once: `sudo hawser repeat trust CODE`. From then on the hosts of both
/// bridges are in one network, over all links together. `hawser status` shows the links.
#[derive(Debug, clap::Args)]
pub(crate) struct RepeatArgs {
    #[command(subcommand)]
    command: RepeatCommand,
}

#[derive(Debug, clap::Subcommand)]
enum RepeatCommand {
    /// Runs the side of the access point, in the foreground: it waits for the other box.
    Ap(ApArgs),
    /// Runs the side that joins, in the foreground: it finds the other box on the links.
    ///
    /// Where a radio of this box serves clients and a link to the other box on the same channel,
    /// the other box is asked to hold that link to the air that the clients leave: `hawser status`
    /// shows it. Such an access point is found by itself once it is in the bridge.
    Join(JoinArgs),
    /// Looks for a better channel now, and says what was found: on the box of the access points,
    /// where `hawser repeat ap --migrate` runs.
    Migrate(MigrateArgs),
    /// Shows the code of this box: type it on the other one.
    Code(ListArgs),
    /// Trusts the box with this code, from now on. Works while the repeater runs, too.
    Trust(CodeArgs),
    /// Takes the trust back; a session with that box ends at once.
    Distrust(CodeArgs),
    /// Lists the codes that are trusted here.
    List(ListArgs),
}

#[derive(Debug, clap::Args)]
struct SideArgs {
    /// The bridge whose hosts are joined to those of the other box.
    #[arg(long, value_name = "BRIDGE")]
    bridge: String,
    /// The interfaces that lead to the other box, such as eth1,eth2: up, and in no bridge. They
    /// need no addresses.
    #[arg(
        long,
        alias = "radios",
        value_name = "LINK,...",
        value_delimiter = ',',
        required = true
    )]
    links: Vec<String>,
    /// The other box's link-local address on a link, such as fe80::1%eth1, where multicast does not
    /// find it. May be repeated.
    #[arg(long, value_name = "ADDRESS%LINK", value_parser = neighbour)]
    neighbour: Vec<(Ipv6Addr, String)>,
    /// Hands frames of the other box over as they come, and not in the order in which they were
    /// sent: to measure what order is worth.
    #[arg(long)]
    any_order: bool,
    /// Lets so many packets of a flow wait here while no link can take one, and drops what comes
    /// then: to measure what waiting is worth. Without it as many wait as the links need.
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
    /// Moves links that are access points of this box to another channel when theirs has become
    /// poor, and the other box follows: to the first that is better, or with =best to the best.
    ///
    /// A link is tested for 20 ms each 10 s while it carries something; twice in a row below half
    /// of what it brought here, and a search begins. Channels with radar, or with another link of
    /// this box, are left out, and so is the link on which the other box serves its clients. A
    /// minute at least lies between two searches. Needs hostapd's control socket
    /// (ctrl_interface=/run/hostapd).
    #[arg(
        long,
        value_name = "SEARCH",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "adequate",
        value_parser = search
    )]
    migrate: Option<Search>,
    /// Where hostapd's control sockets are: its ctrl_interface.
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
    /// The link, as `hawser status` calls it; all that may be moved, where none is named.
    link: Option<String>,
    /// Prints what was found as JSON.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    directories: Directories,
}

#[derive(Debug, clap::Args)]
struct JoinArgs {
    #[command(flatten)]
    side: SideArgs,
    /// The interface in the bridge by which clients are served, such as wlan0-ap. Without it, the
    /// access point on the card, or on the channel, of a link.
    #[arg(long, value_name = "INTERFACE")]
    clients: Option<String>,
    /// The link that shares its air with the clients, where that is not seen by itself: radios that
    /// are bridged in by a wire, for example.
    #[arg(long, value_name = "LINK", requires = "clients")]
    shared: Option<String>,
    /// Where hostapd's control sockets are: its ctrl_interface, such as /run/hostapd. The access
    /// point by which clients are served then goes along when the other box's access point, whose
    /// station is on the same card, goes to another channel. Without it the kernel drops that link
    /// then.
    #[arg(long, value_name = "DIR")]
    hostapd: Option<PathBuf>,
}

#[derive(Debug, clap::Args)]
struct CodeArgs {
    /// What the other box shows, such as abcd-efgh-ijkl-mnop.
    code: String,
    /// Prints the result as JSON.
    #[arg(long)]
    json: bool,
    /// Key and trusted codes.
    #[arg(long, value_name = "DIR", default_value = "/etc/hawser")]
    dir: PathBuf,
    /// Takes no part here: the running repeater sees the change by itself.
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
        _ => Err("write adequate or best".to_owned()),
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
                &format!("{code} is trusted; on the other box: hawser repeat trust {own}"),
            )?;
        }
        RepeatCommand::Distrust(args) => {
            let code = trust::distrust(&args.dir, &args.code)?;
            print(
                args.json,
                || json!({ "version": 1, "distrusted": code }),
                &format!("{code} is not trusted any more"),
            )?;
        }
        RepeatCommand::List(args) => {
            let all = trust::list(&args.directories.dir)?;
            print(args.json, || all.clone(), &table(&all))?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Runs a side, whose options are those of the access point but for what `set` does.
fn serve(args: SideArgs, set: impl FnOnce(&mut Options)) -> anyhow::Result<()> {
    let run_dir = args.directories.run_dir(Role::Repeater);
    let mut neighbours = BTreeMap::new();
    for (address, link) in args.neighbour {
        neighbours.insert(link, address);
    }
    if !hawser_linux::process::is_root() {
        bail!("needs root to make an interface: sudo hawser repeat ...");
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

/// Asks for a search, and waits until it is over.
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
        if begun.elapsed() > PATIENCE {
            bail!(
                "no result within {} s: see the log of `hawser repeat ap`",
                PATIENCE.as_secs()
            );
        }
    };
    print(
        args.json,
        || json!({ "version": 1, "links": found }),
        channels(&found).trim_end(),
    )
}

/// How long searches take at most: ten channels and the way back, of each of some links.
const PATIENCE: Duration = Duration::from_secs(30);

fn table(all: &Value) -> String {
    let own = format!("this box: {}", text(&all["code"]));
    let rows: Vec<_> = list(&all["trusted"])
        .iter()
        .map(|one| {
            let state = if one["met"] == true {
                "has been here"
            } else {
                "not met yet"
            };
            vec![text(&one["code"]).to_owned(), state.to_owned()]
        })
        .collect();
    if rows.is_empty() {
        return format!("{own}\nnobody is trusted yet: `hawser repeat trust CODE`");
    }
    format!("{own}\n{}", columns(&["trusted", "state"], &rows, ""))
}
