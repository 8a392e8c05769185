//! `hawser peer ...`.

use std::process::ExitCode;

use anyhow::bail;
use hawser_config::invitation::HubAddress;
use hawser_config::{self as config, ClientConfig, Span};
use hawser_control::peers;
use hawser_terminal::{columns, complain};
use serde_json::{Value, json};

use crate::cli_status::{list, text};
use crate::directories::Directories;
use crate::guests::{ListArgs, NameArgs, address, print, span};
use crate::secrets::{self, Secret};

/// Makes hosts known to each other whose flows are to be moved (with `up --direct`).
///
/// Where a connection ends (a server): set peer_port = 4443 in [direct] of client.toml, let that
/// port in for UDP and TCP, and `hawser peer invite NAME --endpoint HOST:PORT`. Where it is to be
/// moved (a laptop): `hawser peer join`. Then `hawser move FLOW --to NETWORK` works
/// there, and connections to that host survive their network. An invitation of a hub
/// (`hawser hub invite`) makes the hub a waypoint: `hawser move FLOW --to NETWORK --through NAME`.
#[derive(Debug, clap::Args)]
pub(crate) struct PeerArgs {
    #[command(subcommand)]
    command: PeerCommand,
}

#[derive(Debug, clap::Subcommand)]
enum PeerCommand {
    /// Prints an invitation: one line for one host, which may then move flows that end here. It
    /// works once.
    Invite(InviteArgs),
    /// Remembers the host that an invitation comes from.
    Join(JoinArgs),
    /// Lists the hosts that this one knows, and those that it has invited.
    List(ListArgs),
    /// Takes a host's leave to move flows back.
    Revoke(NameArgs),
    /// Forgets a host that this one knows.
    Leave(NameArgs),
}

#[derive(Debug, clap::Args)]
struct InviteArgs {
    /// The other host's name: 1 to 32 of a-z, 0-9, - and _.
    name: String,
    /// Where it reaches this host: public name or address, and `peer_port`. May be repeated, the
    /// likeliest first.
    #[arg(long, value_name = "HOST:PORT", required = true, value_parser = address)]
    endpoint: Vec<HubAddress>,
    /// How long the invitation may be used.
    #[arg(long, value_name = "TIME", default_value = "7d", value_parser = span)]
    expires: Span,
    /// Prints the result as JSON.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    directories: Directories,
}

#[derive(Debug, clap::Args)]
struct JoinArgs {
    /// The line that `hawser peer invite` or `hawser hub invite` printed; - reads it from standard
    /// input, @FILE from a file. Where it is not given, a terminal is asked for it.
    invitation: Option<Secret>,
    /// What to call the host here; made from its address unless given.
    #[arg(long)]
    name: Option<String>,
    /// Prints the result as JSON.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    directories: Directories,
}

pub(crate) fn run(args: PeerArgs) -> anyhow::Result<ExitCode> {
    match args.command {
        PeerCommand::Invite(args) => invite(args)?,
        PeerCommand::Join(args) => join(args)?,
        PeerCommand::List(args) => {
            let all = peers::list(&args.directories.dir)?;
            print(args.json, || all.clone(), &table(&all))?;
        }
        PeerCommand::Revoke(args) => {
            peers::revoke(&args.directories.dir, &args.name)?;
            let name = &args.name;
            print(
                args.json,
                || json!({ "version": 1, "revoked": name }),
                &format!("{name} moves nothing here any more"),
            )?;
        }
        PeerCommand::Leave(args) => {
            peers::leave(&args.directories.dir, &args.name)?;
            let name = &args.name;
            print(
                args.json,
                || json!({ "version": 1, "left": name }),
                &format!("{name} is forgotten"),
            )?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn invite(args: InviteArgs) -> anyhow::Result<()> {
    let config: ClientConfig = config::load_or_default(&args.directories.dir.join("client.toml"))?;
    match config.direct.peer_port {
        None => bail!(
            "nobody could come in: set peer_port = {} in [direct] of {}, and `hawser reload` or `sudo hawser up --direct`",
            args.endpoint[0].port,
            args.directories.dir.join("client.toml").display()
        ),
        Some(port) if args.endpoint.iter().any(|endpoint| endpoint.port != port.get()) => {
            eprint_note(&format!(
                "peer_port is {port} and the invitation says another: both must lead here"
            ));
        }
        Some(_) => {}
    }
    let invitation =
        peers::invite(&args.directories.dir, &args.name, args.endpoint, args.expires.0)?.to_string();
    print(
        args.json,
        || json!({ "version": 1, "name": args.name, "invitation": invitation }),
        &invitation,
    )?;
    Ok(())
}

fn eprint_note(note: &str) {
    complain(format_args!("note: {note}"));
}

fn join(args: JoinArgs) -> anyhow::Result<()> {
    let invitation = secrets::invitation(args.invitation.as_ref())?;
    let peer = peers::join(&args.directories.dir, &invitation, args.name.as_deref())?;
    print(
        args.json,
        || json!({ "version": 1, "name": peer.name }),
        &format!(
            "{} is known: connections to it can be moved while `hawser up --direct` runs",
            peer.name
        ),
    )?;
    Ok(())
}

fn table(all: &Value) -> String {
    let known = list(&all["peers"]).iter().map(|peer| {
        let endpoints: Vec<_> = list(&peer["endpoints"])
            .iter()
            .filter_map(Value::as_str)
            .collect();
        vec![
            text(&peer["name"]).to_owned(),
            "known".to_owned(),
            endpoints.join(" "),
        ]
    });
    let guests = list(&all["guests"]).iter().map(|guest| {
        let state = format!("may come in ({})", text(&guest["state"]));
        vec![text(&guest["name"]).to_owned(), state]
    });
    let rows: Vec<_> = known.chain(guests).collect();
    if rows.is_empty() {
        return "no peers yet: `hawser peer --help` says how two hosts get to know each other".to_owned();
    }
    columns(&["peer", "what", "where"], &rows, "")
}
