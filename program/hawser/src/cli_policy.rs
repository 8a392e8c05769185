//! `hawser hub policy`.

use std::net::SocketAddr;
use std::process::ExitCode;

use hawser_hub::{self as hub, Verdict};
use serde_json::json;

use crate::directories::Directories;
use crate::guests::print;
use crate::runtime::runtime;

/// Evaluates the access rules of this hub for clients.
#[derive(Debug, clap::Args)]
pub(crate) struct PolicyArgs {
    #[command(subcommand)]
    command: PolicyCommand,
}

#[derive(Debug, clap::Subcommand)]
enum PolicyCommand {
    /// Shows whether a client may open a connection, and the rule that decides.
    ///
    /// The result follows from hub.toml and the enrolled clients at this time. No packet is sent.
    /// Fails if the connection is refused.
    Test(TestArgs),
}

#[derive(Debug, clap::Args)]
struct TestArgs {
    /// The client's name.
    name: String,
    /// Address and port, such as 10.0.0.1:22 or [fd00:7::1]:443.
    #[arg(value_name = "ADDRESS:PORT", value_parser = destination)]
    to: SocketAddr,
    /// Tests UDP instead of TCP.
    #[arg(long)]
    udp: bool,
    /// Prints the result as JSON.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    directories: Directories,
}

fn destination(text: &str) -> Result<SocketAddr, String> {
    text.parse()
        .map_err(|_| "an address and a port, such as 10.0.0.1:22 or [fd00:7::1]:443".to_owned())
}

pub(crate) fn run(args: &PolicyArgs) -> anyhow::Result<ExitCode> {
    let PolicyCommand::Test(args) = &args.command;
    let dir = &args.directories.dir;
    let found = runtime()?.block_on(hub::test_policy(dir, &args.name, args.to, args.udp))?;
    let Verdict { is_allowed, why } = &found;
    let (name, to) = (&args.name, args.to);
    let protocol = if args.udp { "udp" } else { "tcp" };
    let word = if *is_allowed { "allowed" } else { "refused" };
    print(
        args.json,
        || json!({ "version": 1, "client": name, "protocol": protocol, "to": to, "allowed": is_allowed, "why": why }),
        &format!("{name} to {protocol} {to}: {word}; {why}"),
    )?;
    Ok(if *is_allowed {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}
