//! `hawser rule`: temporary rules for flows.

use std::collections::BTreeMap;
use std::process::ExitCode;

use hawser_host::control_socket::{Request, ask};
use hawser_terminal::say;
use serde_json::Value;

use crate::cli_status::{list, text};
use crate::directories::Directories;

/// Lists the rules, adds one before all others, or removes an added one.
///
/// Works with `up --direct`, and with a hub if client.toml contained a rule with via = "direct" or
/// "faster" at the start of the daemon. An added rule applies to new connections until the daemon
/// ends. For a permanent rule, write a [[rule]] table into client.toml.
#[derive(Debug, clap::Args)]
pub(crate) struct RuleArgs {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, clap::Subcommand)]
enum What {
    /// Shows the rules in order: the first that matches a connection decides.
    List(Common),
    /// Adds a rule before all others; commas separate several values of an option.
    Add(AddArgs),
    /// Removes an added rule.
    Remove {
        /// Number of the rule in `hawser rule list`.
        number: u32,
        #[command(flatten)]
        common: Common,
    },
}

#[derive(Debug, clap::Args)]
struct AddArgs {
    /// Connections of this protocol: tcp, udp or icmp.
    #[arg(long)]
    protocol: Option<String>,
    /// Destination port, or a range such as 8000-8100.
    #[arg(long)]
    port: Option<String>,
    /// Source: the address or subnet of machines behind this one.
    #[arg(long, value_name = "SUBNET")]
    from: Option<String>,
    /// Destination address or subnet.
    #[arg(long, value_name = "SUBNET")]
    to: Option<String>,
    /// Destination name (needs dns = "networks").
    #[arg(long)]
    domain: Option<String>,
    /// Uses this network, or the first of these that is present.
    #[arg(long)]
    network: Option<String>,
    /// Distributes connections: even, capacity, round-trip or cost.
    #[arg(long)]
    spread: Option<String>,
    /// Route at a client of a hub: direct (outside the tunnel), hub or faster.
    #[arg(long)]
    via: Option<String>,
    #[command(flatten)]
    common: Common,
}

#[derive(Debug, clap::Args)]
struct Common {
    /// Prints the result as JSON.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    directories: Directories,
}

pub(crate) fn run(args: &RuleArgs) -> anyhow::Result<ExitCode> {
    let (common, request) = match &args.what {
        What::List(common) => (common, Request::Status),
        What::Add(args) => (&args.common, Request::AddRule { rule: words(args) }),
        What::Remove { number, common } => (common, Request::RemoveRule { number: *number }),
    };
    let answer = ask(&common.directories.client_socket(), &request)?;
    match &args.what {
        What::List(_) => show(common, &answer)?,
        _ if common.json => say!("{answer}")?,
        What::Add(_) => say!("{}: for {}", answer["number"], text(&answer["rule"]))?,
        What::Remove { number, .. } => say!("{number}: removed")?,
    }
    Ok(ExitCode::SUCCESS)
}

fn words(args: &AddArgs) -> BTreeMap<String, String> {
    let all = [
        ("protocol", &args.protocol),
        ("port", &args.port),
        ("from", &args.from),
        ("to", &args.to),
        ("domain", &args.domain),
        ("network", &args.network),
        ("spread", &args.spread),
        ("via", &args.via),
    ];
    let given = all
        .into_iter()
        .filter_map(|(key, value)| Some((key.to_owned(), value.clone()?)));
    given.collect()
}

fn show(common: &Common, status: &Value) -> anyhow::Result<()> {
    let of_direct = if status["role"] == "direct" {
        status
    } else {
        &status["direct"]
    };
    let rules = &of_direct["rules"];
    if common.json {
        say!("{}", serde_json::json!({ "version": 1, "rules": list(rules) }))?;
        return Ok(());
    }
    for rule in list(rules) {
        let number = rule["number"]
            .as_u64()
            .map_or("-".to_owned(), |number| number.to_string());
        let rest = if rule["holds"] == false { " (not now)" } else { "" };
        say!(
            "{number:>3}  {}: {}{rest}",
            text(&rule["rule"]),
            text(&rule["way"])
        )?;
    }
    if list(rules).is_empty() {
        say!("there are no rules")?;
    }
    Ok(())
}
