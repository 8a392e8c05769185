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

/// Manages the hosts with which live connections can be moved (with `up --direct`).
///
/// On the host where the connections end (a server): set peer_port = 4443 under [direct] in
/// client.toml, open that port for UDP and TCP in the firewall, and run `hawser peer invite NAME
/// --endpoint HOST:PORT`. On the host that moves them (a laptop): run `hawser peer join`. Then
/// `hawser move FLOW --to NETWORK` works there, and connections to the server survive the failure
/// of their network. An invitation of a hub (`hawser hub invite`) makes the hub a waypoint: `hawser
/// move FLOW --to NETWORK --through NAME`.
#[derive(Debug, clap::Args)]
pub(crate) struct PeerArgs {
    #[command(subcommand)]
    command: PeerCommand,
}

#[derive(Debug, clap::Subcommand)]
enum PeerCommand {
    /// Prints an invitation: one line with which one other host may move flows that end here. It
    /// can be used once.
    Invite(InviteArgs),
    /// Adds the host that issued an invitation as a peer.
    Join(JoinArgs),
    /// Lists the peers that this host has joined, and the hosts that it has invited.
    List(ListArgs),
    /// Revokes the permission of an invited host to move flows.
    Revoke(NameArgs),
    /// Removes a peer that this host has joined.
    Leave(NameArgs),
}

#[derive(Debug, clap::Args)]
struct InviteArgs {
    /// The other host's name: 1 to 32 of a-z, 0-9, - and _.
    name: String,
    /// Address of this host for the peer: public name or address, and `peer_port`. May be repeated;
    /// the address most likely to work first.
    #[arg(long, value_name = "HOST:PORT", required = true, value_parser = address)]
    endpoint: Vec<HubAddress>,
    /// Time for which the invitation is valid.
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
    /// input, @FILE from a file. If it is not given, the command asks for it on the terminal.
    invitation: Option<Secret>,
    /// Name of the peer on this host [default: derived from its address].
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
                &format!("{name} may no longer move flows here"),
            )?;
        }
        PeerCommand::Leave(args) => {
            peers::leave(&args.directories.dir, &args.name)?;
            let name = &args.name;
            print(
                args.json,
                || json!({ "version": 1, "left": name }),
                &format!("{name} is removed"),
            )?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn invite(args: InviteArgs) -> anyhow::Result<()> {
    let config: ClientConfig = config::load_or_default(&args.directories.dir.join("client.toml"))?;
    match config.direct.peer_port {
        None => bail!(
            "peers could not connect: set peer_port = {} under [direct] in {}, then run `hawser reload` or `sudo hawser up --direct`",
            args.endpoint[0].port,
            args.directories.dir.join("client.toml").display()
        ),
        Some(port) if args.endpoint.iter().any(|endpoint| endpoint.port != port.get()) => {
            eprint_note(&format!(
                "peer_port is {port}, and the endpoint of the invitation has another port: peers must reach this host at both"
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
            "{} is a peer now: connections to it can be moved while `hawser up --direct` is running",
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
            "joined".to_owned(),
            endpoints.join(" "),
        ]
    });
    let guests = list(&all["guests"]).iter().map(|guest| {
        let state = format!("invited ({})", text(&guest["state"]));
        vec![text(&guest["name"]).to_owned(), state]
    });
    let rows: Vec<_> = known.chain(guests).collect();
    if rows.is_empty() {
        return "no peers yet: `hawser peer --help` explains how to add one".to_owned();
    }
    columns(&["peer", "state", "endpoints"], &rows, "")
}
