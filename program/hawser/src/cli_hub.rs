//! `hawser hub ...`.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::bail;
use hawser_config::invitation::HubAddress;
use hawser_config::{
    self as config, AnyNet, ClientNames, HubConfig, Net4, Net6, Span, StoreConfig, StoreUrl,
};
use hawser_control::enrolment::{MonthSum, Standing, Subnet};
use hawser_host::finding::Finding;
use hawser_host::run_dir::{self, Role};
use hawser_hub::{self as hub, HubInit, HubOptions, Spread};
use hawser_linux::confine::Duty;
use hawser_terminal::{columns, complain, say, show};
use hawser_units::Service;
use serde_json::{Value, json};

use crate::amounts::{bytes, cap_of, quota_of};
use crate::cli_limit::{self, LimitArgs};
use crate::cli_policy::{self, PolicyArgs};
use crate::cli_setup::{self, SetupArgs};
use crate::directories::{Directories, confine};
use crate::guests::{LIFETIME, ListArgs, NameArgs, address, print, span};
use crate::logs::LogArgs;
use crate::qr;
use crate::runtime::runtime;
use crate::secrets::Secret;

/// Sets up and runs a hub, invites and revokes clients.
///
/// A hub is a machine with a public address: clients' traffic surfaces there. `setup` does
/// everything on a fresh server; or first `init`, then `run` (or the systemd unit hawser-hub), then
/// `invite` each client.
#[derive(Debug, clap::Args)]
pub(crate) struct HubArgs {
    #[command(subcommand)]
    command: HubCommand,
}

#[derive(Debug, clap::Subcommand)]
enum HubCommand {
    Setup(SetupArgs),
    /// Makes the hub's key and configuration, and says what to open in a firewall.
    Init(InitArgs),
    /// Prints an invitation: one line to give to one client. It works once.
    Invite(InviteArgs),
    /// Takes a client's enrolment or invitation back; its session ends at once.
    Revoke(NameArgs),
    /// Lists the clients, and the hubs that share them.
    List(ListArgs),
    /// Shows what has been carried for each client, by month, over all hubs of the fleet.
    ///
    /// Counted are bytes of the tunnel, towards the client (down) and from it (up), as they pass
    /// the networks around it: UDP payload, with what was sent twice. The last five seconds may be
    /// missing. With a quota, what is left of it in this month.
    Usage(HubUsageArgs),
    /// Finds what keeps the hub from forwarding for its clients, and says what to do about it.
    ///
    /// It examines the running hub, the kernel's forwarding, other firewalls, resolvers and the
    /// table of connections, and changes nothing. Fails when something is not as it should be.
    Doctor(ListArgs),
    /// Moves clients from this machine's files into the database that hub.toml names.
    ///
    /// Everybody stays enrolled. The hub reads the database from its next start on; the files stay
    /// where they are, and are not read any more.
    Migrate(ListArgs),
    /// Sends the clients to other hubs, before this one is taken down.
    ///
    /// Clients that know another hub go there while this one still serves them, so packets pass all
    /// the time; connections of their applications end, because they surface elsewhere. Nobody else
    /// comes in. Clients that know no other hub stay. Waits until all are gone.
    Drain(DrainArgs),
    /// Leads a port of the hub to a client, so that it is reached from outside.
    ///
    /// TCP connections and UDP packets that come to the hub's public addresses at that port go to
    /// the same port of the client. A client that is a gateway hands them on to a machine behind it
    /// by a table [[port_forward]] of its client.toml.
    Forward(ForwardArgs),
    /// Leads a subnet behind a client to it: its machines keep their addresses in the tunnel.
    ///
    /// The client names the subnet too, as subnets = ["192.168.50.0/24"] in its client.toml. Its
    /// machines are reached from this hub, from networks that [reach], from in hub.toml names, and
    /// by clients named with --for, and those behind them.
    Subnet(SubnetArgs),
    Limit(LimitArgs),
    Policy(PolicyArgs),
    /// Runs the hub in the foreground.
    Run(RunArgs),
}

#[derive(Debug, clap::Args)]
struct InitArgs {
    /// Where clients reach this hub: public name or address, and UDP port. May be repeated, the
    /// likeliest first.
    #[arg(long, value_name = "HOST:PORT", required = true, value_parser = address)]
    endpoint: Vec<HubAddress>,
    /// Inner IPv4 addresses: one for the hub and each client; 100.96.0.0/16 unless given, or what
    /// the other hubs of the database have.
    #[arg(long, value_name = "NET", value_parser = net4)]
    pool: Option<Net4>,
    /// Inner IPv6 addresses; a random private prefix unless given, or what the other hubs have.
    #[arg(long, value_name = "NET", value_parser = net6)]
    pool6: Option<Net6>,
    /// The PostgreSQL database that keeps the clients of several hubs, such as
    /// postgresql://hawser:PASSWORD@db.example.org/hawser; - reads it from the terminal or standard
    /// input, @FILE from a file. Files of this machine unless given.
    #[arg(long, value_name = "URL", value_parser = store_url)]
    store: Option<Secret>,
    /// Who signed the certificate of that database, a file of PEM.
    #[arg(long, value_name = "FILE", requires = "store")]
    ca: Option<PathBuf>,
    /// Does not hide clients behind the hub's address: the network around it has routes back to the
    /// pools.
    #[arg(long)]
    no_nat: bool,
    /// Prints the result as JSON.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    directories: Directories,
}

#[derive(Debug, clap::Args)]
struct InviteArgs {
    /// The client's name: 1 to 32 of a-z, 0-9, - and _.
    name: String,
    /// How long the invitation may be used.
    #[arg(long, value_name = "TIME", default_value = LIFETIME, value_parser = span)]
    expires: Span,
    /// Shows it as a QR code, too.
    #[arg(long, conflicts_with = "json")]
    qr: bool,
    /// Prints the result as JSON.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    directories: Directories,
}

#[derive(Debug, clap::Args)]
struct DrainArgs {
    /// How long to wait for connections to end and for clients to go.
    #[arg(long, value_name = "TIME", default_value = "1min", value_parser = span)]
    within: Span,
    /// Serves clients as before.
    #[arg(long)]
    off: bool,
    /// Prints the result as JSON.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    directories: Directories,
}

#[derive(Debug, clap::Args)]
struct HubUsageArgs {
    /// Only clients of these names.
    client: Vec<String>,
    /// What this machine has carried, where several hubs share a database.
    #[arg(long)]
    here: bool,
    /// Prints the result as JSON.
    #[arg(long)]
    json: bool,
    /// Prints comma-separated values: client, month, bytes towards the client and from it.
    #[arg(long, conflicts_with = "json")]
    csv: bool,
    #[command(flatten)]
    directories: Directories,
}

#[derive(Debug, clap::Args)]
struct ForwardArgs {
    /// The client's name.
    name: String,
    /// tcp or udp.
    protocol: String,
    /// The port.
    port: String,
    /// Takes it away again.
    #[arg(long)]
    off: bool,
    /// Prints the result as JSON.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    directories: Directories,
}

#[derive(Debug, clap::Args)]
struct SubnetArgs {
    /// The client's name.
    name: String,
    /// The subnet, such as 192.168.50.0/24 or fd00:50::/64.
    #[arg(value_name = "SUBNET", value_parser = subnet_of)]
    subnet: AnyNet,
    /// A client that begins connections to it, or * for all. May be repeated; replaces those
    /// before.
    #[arg(long = "for", value_name = "NAME")]
    guests: Vec<String>,
    /// Takes it away again.
    #[arg(long, conflicts_with = "guests")]
    off: bool,
    /// Prints the result as JSON.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    directories: Directories,
}

#[derive(Debug, clap::Args)]
struct RunArgs {
    #[command(flatten)]
    directories: Directories,
    #[command(flatten)]
    logs: LogArgs,
}

fn net4(text: &str) -> Result<Net4, String> {
    text.parse().map_err(|()| {
        "an IPv4 network of prefix length 8 to 29 without host bits, such as 100.96.0.0/16".to_owned()
    })
}

fn net6(text: &str) -> Result<Net6, String> {
    text.parse().map_err(|()| {
        "an IPv6 network of prefix length 16 to 96 without host bits, such as fd12:3456:789a::/64".to_owned()
    })
}

fn subnet_of(text: &str) -> Result<AnyNet, String> {
    text.parse()
        .map_err(|()| "a subnet without host bits, such as 192.168.50.0/24 or fd00:50::/64".to_owned())
}

fn store_url(text: &str) -> Result<Secret, String> {
    let secret = text.parse().unwrap_or(Secret::Input);
    if let Secret::Written(url) = &secret {
        url_of(url)?;
    }
    Ok(secret)
}

fn url_of(text: &str) -> Result<StoreUrl, String> {
    text.parse()
        .map_err(|()| "expected postgresql://USER:PASSWORD@HOST/DATABASE".to_owned())
}

/// The database of `--store`, and where its URL was read.
fn store_of(store: Option<&Secret>, ca: Option<PathBuf>) -> anyhow::Result<Option<StoreConfig>> {
    let Some(secret) = store else { return Ok(None) };
    let url = url_of(&secret.read("URL of the database")?).map_err(anyhow::Error::msg)?;
    if url.is_secret() {
        secret.warn_if_written("a database's password");
    }
    StoreConfig::new(url, ca).map(Some).map_err(anyhow::Error::msg)
}

pub(crate) fn run(args: HubArgs) -> anyhow::Result<ExitCode> {
    match args.command {
        HubCommand::Setup(args) => cli_setup::run(&args)?,
        HubCommand::Init(args) => init(args)?,
        HubCommand::Invite(args) => {
            let invitation = hub::invite(&args.directories.dir, &args.name, args.expires.0)?.to_string();
            print(
                args.json,
                || json!({ "version": 1, "name": args.name, "invitation": invitation }),
                &invitation,
            )?;
            if args.qr {
                say!("{}", qr::code(&invitation)?)?;
            }
        }
        HubCommand::Revoke(args) => {
            let silent = hub::revoke(&args.directories.dir, &args.name)?;
            let hubs: Vec<_> = silent.iter().map(|hub| hub.endpoints.join(" ")).collect();
            print(
                args.json,
                || json!({ "version": 1, "revoked": args.name, "unconfirmed": hubs }),
                &format!("{} is revoked", args.name),
            )?;
            if !silent.is_empty() {
                let warning = hub::not_confirmed(&args.name, &silent);
                complain(format_args!("warning: {warning}"));
            }
        }
        HubCommand::Drain(args) => drain(&args)?,
        HubCommand::Forward(args) => forward(&args)?,
        HubCommand::Subnet(args) => subnet(args)?,
        HubCommand::Limit(args) => cli_limit::run(&args)?,
        HubCommand::Policy(args) => return cli_policy::run(&args),
        HubCommand::Usage(args) => usage(&args)?,
        HubCommand::List(args) => {
            let list = hub::list(&args.directories.dir)?;
            print(args.json, || list.clone(), &table(&list))?;
        }
        HubCommand::Doctor(args) => {
            let socket = run_dir::socket(&args.directories.run_dir(Role::Hub));
            let found = runtime()?.block_on(hub::doctor::examine(&args.directories.dir, &socket))?;
            let lines: Vec<_> = found.iter().flat_map(Finding::lines).collect();
            print(
                args.json,
                || json!({ "version": 1, "findings": found }),
                &lines.join("\n"),
            )?;
            if !found.iter().all(|finding| finding.good) {
                return Ok(ExitCode::FAILURE);
            }
        }
        HubCommand::Migrate(args) => {
            let count = hub::migrate(&args.directories.dir)?;
            print(
                args.json,
                || json!({ "version": 1, "clients": count }),
                &format!("{count} clients are in the database now: restart the hub"),
            )?;
        }
        HubCommand::Run(args) => {
            let config: HubConfig = load(&args.directories)?;
            if !hawser_linux::process::is_root() {
                bail!("needs root to make an interface and routes: sudo hawser hub run");
            }
            let log = args.logs.start_with(config.log.as_ref())?;
            let run_dir = args.directories.run_dir(Role::Hub);
            let spread = Spread::prepare(&config);
            confine(Duty::Hub, &args.directories.dir, &run_dir)?;
            let options = HubOptions {
                spread,
                run_dir,
                dir: args.directories.dir,
                log,
            };
            runtime()?.block_on(hub::run(options))?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn drain(args: &DrainArgs) -> anyhow::Result<()> {
    let dir = &args.directories.dir;
    hub::drain(dir, !args.off)?;
    let begun = Instant::now();
    let mut left = hub::connected(dir)?;
    let first = left;
    while !args.off && left > 0 && begun.elapsed() < args.within.0 {
        std::thread::sleep(Duration::from_millis(200));
        let now = hub::connected(dir)?;
        if now != left && !args.json {
            say!("{now} of {first} clients are left")?;
        }
        left = now;
    }
    let text = match left {
        _ if args.off => "clients are served as before".to_owned(),
        0 => "the hub is empty: it may be taken down".to_owned(),
        left => format!(
            "{left} clients stay: connections of theirs go on here until they end or the hub does, \
             or they know no other hub, or reach none"
        ),
    };
    print(
        args.json,
        || json!({ "version": 1, "draining": !args.off, "connected": left }),
        &text,
    )
}

fn forward(args: &ForwardArgs) -> anyhow::Result<()> {
    let text = format!("{} {}", args.protocol, args.port);
    let Ok(port) = text.parse::<Service>() else {
        bail!("{text:?} is no port: expected tcp or udp and 1 to 65535, such as tcp 8080");
    };
    hub::forward(&args.directories.dir, &args.name, port, !args.off)?;
    let (name, to) = (&args.name, if args.off { "nobody" } else { &args.name });
    print(
        args.json,
        || json!({ "version": 1, "client": name, "port": port.to_string(), "on": !args.off }),
        &format!("{port} of this hub leads to {to}"),
    )
}

fn subnet(args: SubnetArgs) -> anyhow::Result<()> {
    let subnet = Subnet {
        net: args.subnet.0,
        guests: ClientNames::new(args.guests).map_err(anyhow::Error::msg)?,
    };
    let (name, net) = (&args.name, subnet.net);
    runtime()?.block_on(hub::subnet(&args.directories.dir, name, &subnet, !args.off))?;
    let to = if args.off { "nobody" } else { name };
    let next = if args.off {
        String::new()
    } else {
        format!("\nnext: on {name}, in client.toml: forward = true and subnets = [\"{net}\"]")
    };
    print(
        args.json,
        || json!({ "version": 1, "client": name, "subnet": subnet.to_string(), "on": !args.off }),
        &format!("{net} leads to {to}{next}"),
    )
}

fn load(directories: &Directories) -> anyhow::Result<HubConfig> {
    let path = directories.dir.join("hub.toml");
    if !path.exists() {
        bail!(
            "there is no hub in {}: `hawser hub init --endpoint HOST:PORT` makes one",
            directories.dir.display()
        );
    }
    Ok(config::load(&path)?)
}

fn init(args: InitArgs) -> anyhow::Result<()> {
    let port = args.endpoint[0].port;
    let store = store_of(args.store.as_ref(), args.ca)?;
    let init = HubInit {
        endpoints: args.endpoint,
        pool: args.pool,
        pool6: args.pool6,
        nat: !args.no_nat,
        store,
    };
    let path = hub::init(&args.directories.dir, &init)?;
    let text = format!(
        "wrote {path}\n\
         firewall: let UDP port {port} and TCP port 443 (for clients whose network blocks UDP) in from everywhere, and let this machine forward packets to and from hawserhub0\n\
         next: hawser hub run, then hawser hub invite NAME",
        path = path.display(),
    );
    print(
        args.json,
        || json!({ "version": 1, "config": path, "udp_port": port }),
        &text,
    )?;
    Ok(())
}

fn table(list: &Value) -> String {
    let rows: Vec<_> = list["clients"]
        .as_array()
        .into_iter()
        .flatten()
        .map(|client| {
            let inner: Vec<_> = client["inner"]
                .as_array()
                .into_iter()
                .flatten()
                .filter_map(Value::as_str)
                .collect();
            let state = if client["connected"] == true {
                "connected"
            } else {
                client["state"].as_str().unwrap_or("?")
            };
            let words = |of: &Value| {
                let words = of.as_array().into_iter().flatten().filter_map(Value::as_str);
                words.collect::<Vec<_>>().join(", ")
            };
            vec![
                client["name"].as_str().unwrap_or("?").to_owned(),
                state.to_owned(),
                cap_of(&client["limits"]),
                quota_of(&client["limits"]),
                inner.join(" "),
                words(&client["subnets"]),
            ]
        })
        .collect();
    let clients = if rows.is_empty() {
        "no clients yet: `hawser hub invite NAME` prints an invitation".to_owned()
    } else {
        columns(
            &["client", "state", "cap", "quota", "inner addresses", "subnets"],
            &rows,
            "",
        )
    };
    match list["hubs"].as_array() {
        Some(hubs) => format!("{clients}\n\n{}", table_of_hubs(hubs)),
        None => clients,
    }
}

/// The hubs that share the clients.
fn table_of_hubs(hubs: &[Value]) -> String {
    let row = |hub: &Value| {
        let endpoints = hub["endpoints"].as_array().into_iter().flatten();
        let endpoints: Vec<_> = endpoints.filter_map(Value::as_str).collect();
        let state = match hub["seen_s"].as_u64() {
            _ if hub["own"] == true => "this one".to_owned(),
            Some(seen) if seen < SILENT_S => "there".to_owned(),
            Some(seen) => format!("silent for {seen} s"),
            None => "?".to_owned(),
        };
        vec![endpoints.join(" "), state]
    };
    let rows: Vec<_> = hubs.iter().map(row).collect();
    columns(&["hub", "state"], &rows, "")
}

fn usage(args: &HubUsageArgs) -> anyhow::Result<()> {
    let mut months = hub::usage(&args.directories.dir, args.here)?;
    months.retain(|month| args.client.is_empty() || args.client.contains(&month.client));
    if args.csv {
        return show!("{}", hub::to_csv(&months));
    }
    let months = hub::with_limits(&args.directories.dir, months)?;
    let row = |(month, limits): &(MonthSum, Option<Standing>)| {
        let (down, up) = (month.down_bytes, month.up_bytes);
        let counts = [down, up, down + up].map(bytes);
        let left = quota_of(&json!(limits));
        let who = [month.client.clone(), month.month.clone()];
        who.into_iter().chain(counts).chain([left]).collect::<Vec<_>>()
    };
    let text = if months.is_empty() {
        "nothing has been counted yet: a hub that runs counts".to_owned()
    } else {
        let rows: Vec<_> = months.iter().map(row).collect();
        columns(&["client", "month", "down", "up", "total", "quota"], &rows, "")
    };
    print(args.json, || usage_json(&months), &text)
}

/// The months, those that have limits with what is left.
fn usage_json(months: &[(MonthSum, Option<Standing>)]) -> Value {
    let month = |(sum, limits): &(MonthSum, Option<Standing>)| {
        let mut month = json!(sum);
        if let Some(limits) = limits {
            month["limits"] = json!(limits);
        }
        month
    };
    json!({ "version": 1, "months": months.iter().map(month).collect::<Vec<_>>() })
}

/// A hub says every second that it is there.
const SILENT_S: u64 = 5;
