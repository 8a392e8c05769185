//! `hawser use`: temporary conditions of a network's use.

use std::process::ExitCode;

use anyhow::bail;
use clap::builder::PossibleValuesParser;
use hawser_host::control_socket::{Request, ask};
use hawser_terminal::say;

use crate::directories::Directories;

/// Sets when a network is used: always, when the others are full, or only when no other works.
///
/// always: together with the others, the default. overflow: while packets wait for the networks
/// that are always used. backup: only while no other network works. The setting applies until the
/// daemon ends; connections continue. Values that are not given stay unchanged. For a permanent
/// setting, write use = "backup" under [networks.NAME] in client.toml. Flows that rules send
/// outside the tunnel (via = "direct") are not affected.
#[derive(Debug, clap::Args)]
pub(crate) struct UseArgs {
    /// The network (interface), as `hawser status` names it.
    #[arg(value_name = "NETWORK")]
    network: String,
    /// Condition for the use of the network, in both directions: always, overflow or backup.
    #[arg(value_name = "WHEN", value_parser = priorities(), hide_possible_values = true)]
    when: Option<String>,
    /// Condition for its use towards the hub.
    #[arg(long, value_name = "WHEN", value_parser = priorities(), conflicts_with = "when")]
    up: Option<String>,
    /// Condition for its use from the hub.
    #[arg(long, value_name = "WHEN", value_parser = priorities(), conflicts_with = "when")]
    down: Option<String>,
    /// Permission for bulk transfers to use the network while another network is usable.
    #[arg(long, value_name = "yes|no", value_parser = yes_or_no)]
    bulk: Option<bool>,
    /// Returns to the values of client.toml.
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
        bail!("no condition is given: add always, overflow or backup, or --up, --down, --bulk or --default");
    }
    let answer = ask(&args.directories.client_socket(), &request)?;
    if args.json {
        say!("{answer}")?;
    } else {
        let uses = &answer["use"];
        let word = |of: &str| uses[of].as_str().unwrap_or("-");
        let bulk = if uses["bulk"] == false {
            ", no bulk transfers"
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
