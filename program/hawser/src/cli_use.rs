//! `hawser use`: when a network is used beside the others, for a while.

use std::process::ExitCode;

use anyhow::bail;
use clap::builder::PossibleValuesParser;
use hawser_host::control_socket::{Request, ask};
use hawser_terminal::say;

use crate::directories::Directories;

/// Uses a network always, for what the others cannot take, or only where no other works, until the
/// daemon ends; connections live on.
///
/// always: beside the others, as if nothing was said. overflow: while packets wait for those that
/// are always used. backup: only while no other network works. What is not named stays as it is.
/// For good, write use = "backup" under [networks.NAME] in client.toml. What rules send past the
/// hub (via = "direct") is not concerned.
#[derive(Debug, clap::Args)]
pub(crate) struct UseArgs {
    /// The network (interface), as `hawser status` names it.
    #[arg(value_name = "NETWORK")]
    network: String,
    /// When it is used, in both directions: always, overflow or backup.
    #[arg(value_name = "WHEN", value_parser = priorities(), hide_possible_values = true)]
    when: Option<String>,
    /// When it is used towards the hub.
    #[arg(long, value_name = "WHEN", value_parser = priorities(), conflicts_with = "when")]
    up: Option<String>,
    /// When it is used from the hub.
    #[arg(long, value_name = "WHEN", value_parser = priorities(), conflicts_with = "when")]
    down: Option<String>,
    /// Whether transfers may use it beside other networks.
    #[arg(long, value_name = "yes|no", value_parser = yes_or_no)]
    bulk: Option<bool>,
    /// What client.toml says, from now on.
    #[arg(long, conflicts_with_all = ["when", "up", "down", "bulk"])]
    default: bool,
    /// Prints the result as JSON.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    directories: Directories,
}

pub(crate) fn run(args: &UseArgs) -> anyhow::Result<ExitCode> {
    let request = Request::Use {
        network: args.network.clone(),
        up: args.up.clone().or_else(|| args.when.clone()),
        down: args.down.clone().or_else(|| args.when.clone()),
        bulk: args.bulk,
        is_default: args.default,
    };
    if let Request::Use {
        up: None,
        down: None,
        bulk: None,
        is_default: false,
        ..
    } = request
    {
        bail!("say when it is used: always, overflow or backup; or --up, --down, --bulk, --default");
    }
    let answer = ask(&args.directories.client_socket(), &request)?;
    if args.json {
        say!("{answer}")?;
    } else {
        let uses = &answer["use"];
        let word = |of: &str| uses[of].as_str().unwrap_or("-");
        let bulk = if uses["bulk"] == false {
            ", no transfers"
        } else {
            ""
        };
        say!("{}: up {}, down {}{bulk}", args.network, word("up"), word("down"))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn priorities() -> PossibleValuesParser {
    ["always", "overflow", "backup"].into()
}

fn yes_or_no(text: &str) -> Result<bool, String> {
    match text {
        "yes" => Ok(true),
        "no" => Ok(false),
        _ => Err("expected yes or no".to_owned()),
    }
}
