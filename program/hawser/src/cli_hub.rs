//! `hawser hub ...`.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context, bail};
use hawser_config::atomic_file;
use hawser_config::invitation::HubAddress;
use hawser_config::{
    self as config, AnyNet, ClientNames, HubConfig, Net4, Net6, Span, StoreConfig, StoreUrl,
};
use hawser_control::enrolment::{LogEntry, MonthSum, Standing, Subnet};
use hawser_host::finding::Finding;
use hawser_host::run_dir::{self, Role};
use hawser_hub::{self as hub, HubInit, HubOptions, Spread};
use hawser_linux::confine::Duty;
use hawser_terminal::{columns, complain, say, show};
use hawser_units::Service;
use hawser_wire::control::KeyExpiry;
use serde_json::{Value, json};

use crate::amounts::{bytes, cap_of, expiry_text, quota_of, wireguard_of};
use crate::cli_history::dated_clock;
use crate::cli_limit::{self, LimitArgs, expiry_of};
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
/// A hub is a machine with a public address that forwards its clients' traffic to the Internet. On
/// a fresh server, `setup` does everything. Otherwise run `init`, then `run` (or start the systemd
/// unit hawser-hub), then `invite` for each client.
#[derive(Debug, clap::Args)]
pub(crate) struct HubArgs {
    #[command(subcommand)]
    command: HubCommand,
}

#[derive(Debug, clap::Subcommand)]
enum HubCommand {
    Setup(SetupArgs),
    /// Creates the hub's key and configuration, and prints the ports to open in a firewall.
    Init(InitArgs),
    /// Prints an invitation: one line for one client. It can be used once.
    ///
    /// With --wireguard, prints a QR code for WireGuard's app on a phone, or with --out its
    /// configuration for other devices. The client is enrolled at once. The configuration contains
    /// the private key of the client, which is stored nowhere else. If it is lost, revoke the
    /// client and invite it again.
    Invite(InviteArgs),
    /// Revokes a client's enrolment or invitation; its session ends at once.
    Revoke(NameArgs),
    /// Lists the clients, and the hubs that share them.
    List(ListArgs),
    /// Shows the changes of clients: invitations, enrolments, revocations, limits, expired keys,
    /// ports and subnets.
    ///
    /// Each change has its time, its author and the machine. The author is the user of the command,
    /// behind sudo too, for an enrolment the code of the client's key, and for the expiry of a key
    /// the hub. Hubs that share a database have one log. The newest 8,000 entries are kept at
    /// least.
    Log(LogOfChanges),
    /// Shows the traffic of each client, by month, over all hubs of the fleet.
    ///
    /// Counts bytes of the tunnel, towards the client (down) and from it (up): UDP payload,
    /// including retransmissions. The last 5 s may be missing. With a quota, shows its remainder in
    /// this month.
    Usage(HubUsageArgs),
    /// Finds problems that prevent the hub from forwarding for its clients, and prints remedies.
    ///
    /// It examines the running hub, the kernel's forwarding, other firewalls, resolvers and the
    /// table of connections, and changes nothing. Fails if there is a problem.
    Doctor(ListArgs),
    /// Moves clients from this machine's files into the database that hub.toml names.
    ///
    /// All clients stay enrolled. The hub uses the database from its next start; the files stay in
    /// place, and are no longer read.
    Migrate(ListArgs),
    /// Moves the clients to other hubs, before this hub is stopped.
    ///
    /// A client that knows another hub changes to it while this hub still serves it, so packets
    /// pass without a pause. Existing connections continue through this hub until they end. New
    /// clients are refused. Clients that know no other hub stay. Waits until all clients have left.
    Drain(DrainArgs),
    /// Forwards a port of the hub to a client, which makes it reachable from outside.
    ///
    /// TCP connections and UDP packets to that port of the hub's public addresses are forwarded to
    /// the same port of the client. A client that is a gateway forwards them to a machine behind
    /// it, if its client.toml has a [[port_forward]] table.
    Forward(ForwardArgs),
    /// Routes a subnet behind a client to that client; its machines keep their addresses in the
    /// tunnel.
    ///
    /// The client must name the subnet too: subnets = ["192.168.50.0/24"] in its client.toml. Its
    /// machines can then be reached from this hub, from the networks in `from` under [reach] in
    /// hub.toml, from the clients named with --for, and from machines behind these clients.
    Subnet(SubnetArgs),
    Limit(LimitArgs),
    Policy(PolicyArgs),
    /// Runs the hub in the foreground.
    Run(RunArgs),
}

#[derive(Debug, clap::Args)]
struct InitArgs {
    /// Address of this hub for clients: public name or address, and UDP port. May be repeated; the
    /// address most likely to work first.
    #[arg(long, value_name = "HOST:PORT", required = true, value_parser = address)]
    endpoint: Vec<HubAddress>,
    /// Inner IPv4 addresses, one for the hub and each client [default: those of the other hubs of
    /// the database, or 100.96.0.0/16].
    #[arg(long, value_name = "NET", value_parser = net4)]
    pool: Option<Net4>,
    /// Inner IPv6 addresses [default: those of the other hubs of the database, or a random private
    /// prefix].
    #[arg(long, value_name = "NET", value_parser = net6)]
    pool6: Option<Net6>,
    /// PostgreSQL database with the clients of several hubs, such as
    /// postgresql://hawser:PASSWORD@db.example.org/hawser; - reads the URL from the terminal or
    /// standard input, @FILE from a file [default: files of this machine].
    #[arg(long, value_name = "URL", value_parser = store_url)]
    store: Option<Secret>,
    /// Certificate of the authority that signed the database's certificate, a PEM file.
    #[arg(long, value_name = "FILE", requires = "store")]
    ca: Option<PathBuf>,
    /// Disables NAT: clients keep their inner addresses, so the surrounding network needs routes to
    /// the pools.
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
    /// Time for which the invitation is valid.
    #[arg(long, value_name = "TIME", default_value = LIFETIME, value_parser = span)]
    expires: Span,
    /// Time from now until the key that is enrolled with the invitation expires, such as 90d, or
    /// the day (UTC) at whose beginning it expires, such as 2027-03-01 [default: never].
    #[arg(long, value_name = "TIME|DATE")]
    key_expires: Option<String>,
    /// Also shows the invitation as a QR code.
    #[arg(long, conflicts_with = "json")]
    qr: bool,
    /// Invites a device without Hawser that uses WireGuard's own app, and shows a QR code for the
    /// app.
    #[arg(long, conflicts_with_all = ["expires", "qr"])]
    wireguard: bool,
    /// Writes the configuration for WireGuard into a file that only its owner can read, or with -
    /// to standard output.
    #[arg(long, value_name = "FILE", requires = "wireguard", conflicts_with = "json")]
    out: Option<PathBuf>,
    /// Prints the result as JSON.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    directories: Directories,
}

#[derive(Debug, clap::Args)]
struct DrainArgs {
    /// Time to wait for connections to end and for clients to leave.
    #[arg(long, value_name = "TIME", default_value = "1min", value_parser = span)]
    within: Span,
    /// Ends the drain: the hub serves clients again.
    #[arg(long)]
    off: bool,
    /// Prints the result as JSON.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    directories: Directories,
}

#[derive(Debug, clap::Args)]
struct LogOfChanges {
    /// Shows only the client of this name.
    client: Option<String>,
    /// Time span to show, up to now: 1h, 7d, 365d.
    #[arg(long, value_name = "TIME", default_value = "365d", value_parser = span)]
    last: Span,
    /// Prints the result as JSON.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    directories: Directories,
}

#[derive(Debug, clap::Args)]
struct HubUsageArgs {
    /// Shows only clients of these names.
    client: Vec<String>,
    /// Shows the usage of this machine, where several hubs share a database.
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
    /// Port number.
    port: String,
    /// Removes the forwarding.
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
    /// Client that may open connections to the subnet, or * for all. May be repeated; replaces the
    /// previous list.
    #[arg(long = "for", value_name = "NAME")]
    guests: Vec<String>,
    /// Removes the route.
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

/// Returns the database of `--store`, whose URL is read from its source.
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
        HubCommand::Invite(args) if args.wireguard => invite_wireguard(&args)?,
        HubCommand::Invite(args) => {
            let (dir, expiry) = (&args.directories.dir, key_expiry(&args)?);
            let invitation = hub::invite(dir, &args.name, args.expires.0, expiry)?.to_string();
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
        HubCommand::Log(args) => log(&args)?,
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
                &format!("{count} clients are in the database now; restart the hub to use it"),
            )?;
        }
        HubCommand::Run(args) => {
            let config: HubConfig = load(&args.directories)?;
            if !hawser_linux::process::is_root() {
                bail!("needs root to create an interface and routes: run `sudo hawser hub run`");
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

/// Returns the expiry of an invited client's key.
fn key_expiry(args: &InviteArgs) -> anyhow::Result<Option<KeyExpiry>> {
    let expiry = args.key_expires.as_deref();
    expiry.map(|text| expiry_of(text, SystemTime::now())).transpose()
}

fn invite_wireguard(args: &InviteArgs) -> anyhow::Result<()> {
    if let Some(out) = args.out.as_ref().filter(|out| out.exists()) {
        bail!("{} exists: remove it, or choose another file", out.display());
    }
    let invitation = hub::invite_wireguard(&args.directories.dir, &args.name, key_expiry(args)?);
    let invitation = runtime()?.block_on(invitation)?;
    let text = invitation.text.trim_end();
    match &args.out {
        Some(out) if out.as_os_str() == "-" => say!("{text}")?,
        Some(out) => {
            let name = &args.name;
            atomic_file::write(out, invitation.text.as_bytes(), 0o600).with_context(|| {
                format!(
                    "{name} is enrolled, but its key is lost: run `hawser hub revoke {name}`, then invite it again"
                )
            })?;
            say!(
                "wrote {}: import it into WireGuard, then remove it",
                out.display()
            )?;
        }
        None if args.json => {
            say!(
                "{}",
                json!({ "version": 1, "name": args.name, "configuration": text })
            )?;
        }
        None => say!(
            "{}\nscan it in WireGuard's app: Add tunnel, Scan from QR code",
            qr::code(text)?
        )?,
    }
    for warning in invitation.warnings {
        complain(format_args!("warning: {warning}"));
    }
    Ok(())
}

fn drain(args: &DrainArgs) -> anyhow::Result<()> {
    let dir = &args.directories.dir;
    hub::drain(dir, !args.off)?;
    let begun = Instant::now();
    let mut left = hub::remaining(dir)?;
    let first = left.sessions;
    while !args.off && left.sessions > 0 && begun.elapsed() < args.within.0 {
        std::thread::sleep(Duration::from_millis(200));
        let now = hub::remaining(dir)?;
        if now.sessions != left.sessions && !args.json {
            say!("{} of {first} clients are left", now.sessions)?;
        }
        left = now;
    }
    let hub::Remaining { sessions, away } = left;
    let text = match sessions {
        _ if args.off => "clients are served as before".to_owned(),
        0 => "no clients are left: the hub can be stopped".to_owned(),
        _ => format!(
            "{sessions} clients stay ({away} of them are disconnected): they have connections that continue through \
             this hub until they end, or they know or reach no other hub"
        ),
    };
    print(
        args.json,
        || json!({ "version": 1, "draining": !args.off, "sessions": sessions, "away": away }),
        &text,
    )
}

fn forward(args: &ForwardArgs) -> anyhow::Result<()> {
    let text = format!("{} {}", args.protocol, args.port);
    let Ok(port) = text.parse::<Service>() else {
        bail!("{text:?} is not a port: expected tcp or udp and a number from 1 to 65535, such as tcp 8080");
    };
    hub::forward(&args.directories.dir, &args.name, port, !args.off)?;
    let (name, to) = (&args.name, if args.off { "no client" } else { &args.name });
    print(
        args.json,
        || json!({ "version": 1, "client": name, "port": port.to_string(), "on": !args.off }),
        &format!("{port} of this hub is forwarded to {to}"),
    )
}

fn subnet(args: SubnetArgs) -> anyhow::Result<()> {
    let subnet = Subnet {
        net: args.subnet.0,
        guests: ClientNames::new(args.guests).map_err(anyhow::Error::msg)?,
    };
    let (name, net) = (&args.name, subnet.net);
    runtime()?.block_on(hub::subnet(&args.directories.dir, name, &subnet, !args.off))?;
    let to = if args.off { "no client" } else { name };
    let next = if args.off {
        String::new()
    } else {
        format!("\nnext: on {name}, in client.toml: forward = true and subnets = [\"{net}\"]")
    };
    print(
        args.json,
        || json!({ "version": 1, "client": name, "subnet": subnet.to_string(), "on": !args.off }),
        &format!("{net} is routed to {to}{next}"),
    )
}

fn load(directories: &Directories) -> anyhow::Result<HubConfig> {
    let path = directories.dir.join("hub.toml");
    if !path.exists() {
        bail!(
            "there is no hub in {}: `hawser hub init --endpoint HOST:PORT` creates one",
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
         firewall: admit UDP port {port}, and TCP port 443 for clients whose networks block UDP, and permit forwarding of packets from and to hawserhub0\n\
         next: run `sudo hawser hub run`, then `sudo hawser hub invite NAME`",
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
    let clients = list["clients"].as_array().into_iter().flatten();
    let has_expiry = clients.clone().any(|client| expiry_text(client).is_some());
    let mut heads = vec!["client", "state", "cap", "quota"];
    heads.extend(has_expiry.then_some("key expires"));
    heads.extend(["inner addresses", "subnets"]);
    let rows: Vec<_> = clients
        .map(|client| {
            let inner: Vec<_> = client["inner"]
                .as_array()
                .into_iter()
                .flatten()
                .filter_map(Value::as_str)
                .collect();
            let state = if client["state"] == "key expired" {
                "key expired".to_owned()
            } else if !client["wireguard"].is_null() {
                wireguard_of(client)
            } else if client["connected"] == true {
                "connected".to_owned()
            } else {
                client["state"].as_str().unwrap_or("?").to_owned()
            };
            let words = |of: &Value| {
                let words = of.as_array().into_iter().flatten().filter_map(Value::as_str);
                words.collect::<Vec<_>>().join(", ")
            };
            let mut row = vec![
                client["name"].as_str().unwrap_or("?").to_owned(),
                state,
                cap_of(&client["limits"]),
                quota_of(&client["limits"]),
            ];
            row.extend(has_expiry.then(|| expiry_text(client).unwrap_or_else(|| "-".to_owned())));
            row.extend([inner.join(" "), words(&client["subnets"])]);
            row
        })
        .collect();
    let clients = if rows.is_empty() {
        "no clients yet: `hawser hub invite NAME` prints an invitation".to_owned()
    } else {
        columns(&heads, &rows, "")
    };
    match list["hubs"].as_array() {
        Some(hubs) => format!("{clients}\n\n{}", table_of_hubs(hubs)),
        None => clients,
    }
}

/// Returns a table of the hubs that share the clients.
fn table_of_hubs(hubs: &[Value]) -> String {
    let row = |hub: &Value| {
        let endpoints = hub["endpoints"].as_array().into_iter().flatten();
        let endpoints: Vec<_> = endpoints.filter_map(Value::as_str).collect();
        let state = match hub["seen_s"].as_u64() {
            _ if hub["own"] == true => "this hub".to_owned(),
            Some(seen) if seen < SILENT_S => "running".to_owned(),
            Some(seen) => format!("no announcement for {seen} s"),
            None => "?".to_owned(),
        };
        vec![endpoints.join(" "), state]
    };
    let rows: Vec<_> = hubs.iter().map(row).collect();
    columns(&["hub", "state"], &rows, "")
}

fn log(args: &LogOfChanges) -> anyhow::Result<()> {
    let since = SystemTime::now().checked_sub(args.last.0).unwrap_or(UNIX_EPOCH);
    let log = hub::log(&args.directories.dir, args.client.as_deref(), since)?;
    let row = |entry: &LogEntry| {
        let time = dated_clock(entry.at_unix_s);
        let by = format!("{} on {}", entry.by, entry.host);
        vec![time, entry.client.clone(), entry.change.clone(), by]
    };
    let text = if log.is_empty() {
        "no change was logged in this time".to_owned()
    } else {
        let rows: Vec<_> = log.iter().map(row).collect();
        columns(&["time", "client", "change", "by"], &rows, "")
    };
    print(args.json, || json!({ "version": 1, "changes": log }), &text)
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
        "nothing has been counted yet: a hub counts while it is running".to_owned()
    } else {
        let rows: Vec<_> = months.iter().map(row).collect();
        columns(&["client", "month", "down", "up", "total", "quota"], &rows, "")
    };
    print(args.json, || usage_json(&months), &text)
}

/// Returns the months as JSON, with the remainders of limits.
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

/// Time without an announcement after which a hub counts as absent. Source: five announcements, one
/// each second (`BETWEEN_MEETINGS` of `system/control/src/enrolment/fleet.rs`).
const SILENT_S: u64 = 5;
