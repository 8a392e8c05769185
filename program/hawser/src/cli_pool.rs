//! `hawser pool`.

use std::process::ExitCode;

use anyhow::bail;
use hawser_config::identity::Code;
use hawser_host::control_socket::{Request, ask, is_alive};
use hawser_host::run_dir::{self, Role};
use hawser_pool::{self as neighbours, Trust, forget};
use hawser_terminal::{columns, say, show};
use serde_json::{Value, json};

use crate::amounts::{bytes, rate};
use crate::cli_receipts::{self, ReceiptsArgs, VerifyArgs};
use crate::cli_share::{self, code};
use crate::cli_status::{list, number, text};
use crate::directories::Directories;
use crate::guests::{NameArgs, print};

/// Shows the neighbours, the networks that they share, and the transferred bytes.
///
/// To use the networks of a neighbour: run `hawser pool trust NAME CODE` with the code that `hawser
/// share` prints there, write `neighbours = true` under [pool] in client.toml, and run `hawser up`
/// (or `hawser reload`). The neighbour allows this machine once, by the code that `hawser pool`
/// shows here.
///
/// A neighbour's router without Hawser can forward packets in GRE. It is configured by [[pool.gre]]
/// in client.toml: docs/manual/neighbours.md has the settings of router, client and hub.
#[derive(Debug, clap::Args)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct PoolArgs {
    #[command(subcommand)]
    command: Option<PoolCommand>,
    /// Prints everything as JSON.
    #[arg(long)]
    json: bool,
    /// Prints the accounts as comma-separated values: side, name, code, month, bytes towards the
    /// taker and from it.
    #[arg(long, conflicts_with = "json")]
    csv: bool,
    #[command(flatten)]
    directories: Directories,
}

#[derive(Debug, clap::Subcommand)]
enum PoolCommand {
    /// Trusts a machine that shares its networks: a name for it on this machine, and the code that
    /// `hawser share` shows on that machine.
    Trust(TrustArgs),
    /// Removes a trusted machine; its networks are no longer used.
    Forget(NameArgs),
    Receipts(ReceiptsArgs),
    Verify(VerifyArgs),
}

#[derive(Debug, clap::Args)]
struct TrustArgs {
    /// Name for the machine, used on this machine only: 1 to 32 of a-z, 0-9, - and _.
    name: String,
    /// The code that `hawser share` shows on it.
    #[arg(value_parser = code)]
    code: Code,
    /// Prints the result as JSON.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    directories: Directories,
}

pub(crate) fn run(args: &PoolArgs) -> anyhow::Result<ExitCode> {
    match &args.command {
        None => show(args)?,
        Some(PoolCommand::Trust(args)) => {
            let own = own_code(&args.directories)?;
            if args.code.to_string() == own {
                bail!(
                    "{own} is the code of this machine itself: give the one that `hawser share` shows on {}",
                    args.name
                );
            }
            Trust::update(&args.directories.dir, |trust| {
                trust.trust_member(&args.name, args.code)
            })?;
            let name = &args.name;
            print(
                args.json,
                || json!({ "version": 1, "trusted": name, "code": own }),
                &format!(
                    "{name} is trusted; on {name}, allow this machine with `hawser share allow NAME {own}`"
                ),
            )?;
        }
        Some(PoolCommand::Receipts(args)) => cli_receipts::show_all(args)?,
        Some(PoolCommand::Verify(args)) => return cli_receipts::verify(args),
        Some(PoolCommand::Forget(args)) => {
            Trust::update(&args.directories.dir, |trust| {
                forget(&mut trust.members, &args.name)
            })?;
            let name = &args.name;
            print(
                args.json,
                || json!({ "version": 1, "forgotten": name }),
                &format!("{name} is removed; its networks are no longer used"),
            )?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn own_code(directories: &Directories) -> anyhow::Result<String> {
    Ok(neighbours::identity(&directories.dir)?.hash().code().to_string())
}

fn show(args: &PoolArgs) -> anyhow::Result<()> {
    let trust = Trust::load(&args.directories.dir)?;
    let accounts = neighbours::accounts(&args.directories.dir, &trust)?;
    if args.csv {
        return show!("{}", neighbours::to_csv(&accounts));
    }
    let status = |role: Role| -> anyhow::Result<Value> {
        let run_dir = args.directories.run_dir(role);
        run_dir::check(&run_dir)?;
        let socket = run_dir::socket(&run_dir);
        if is_alive(&socket) {
            ask(&socket, &Request::Status)
        } else {
            Ok(Value::Null)
        }
    };
    let client = status(Role::Client)?;
    // With --run-dir, a client's run directory is meant.
    let share = if args.directories.run_dir.is_none() {
        status(Role::Share)?
    } else {
        Value::Null
    };
    let code = own_code(&args.directories)?;
    let all = json!({
        "version": 1,
        "code": code,
        "pool": client["pool"],
        "declared": declared(&client),
        "share": share,
        "accounts": accounts,
        "trusted": trust.members.iter().map(|known| json!({ "name": known.name, "code": known.code.to_string() })).collect::<Vec<_>>(),
        "allowed": trust.takers.iter().map(|known| json!({ "name": known.name, "code": known.code.to_string() })).collect::<Vec<_>>(),
    });
    if args.json {
        say!("{all}")
    } else {
        say!("{}", render(&all))
    }
}

fn render(all: &Value) -> String {
    let mut out = format!("the code of this machine is {}\n", text(&all["code"]));
    let pool = &all["pool"];
    let trusted = list(&all["trusted"]);
    let gre = list(&pool["gre"]);
    if trusted.is_empty() && gre.is_empty() {
        out += "no machine is trusted yet: run `hawser pool trust NAME CODE`, with the code that `hawser share` shows there\n";
    } else if pool.is_null() && !trusted.is_empty() {
        out += "neighbours' networks are not used: write `neighbours = true` under [pool] in client.toml, and run `hawser up`\n";
    }
    match number(&pool["strangers"]) {
        0 => {}
        1 => out += "one machine nearby shares its networks and is not trusted\n",
        more => out += &format!("{more} machines nearby share their networks and are not trusted\n"),
    }
    let members = list(&pool["members"]);
    let has_uplinks = |member: &Value| !list(&member["ways"]).is_empty();
    // Of a member that gives, the addresses without a connection are of no interest: one suffices.
    let is_spare = |member: &Value| {
        let mut others = members.iter().filter(|other| other["name"] == member["name"]);
        !has_uplinks(member) && !member["name"].is_null() && others.any(has_uplinks)
    };
    let rows = members
        .iter()
        .filter(|member| !is_spare(member))
        .flat_map(member_rows);
    let rows: Vec<_> = rows.chain(gre.iter().map(gre_row)).collect();
    if !rows.is_empty() {
        let heads = [
            "uplink", "state", "rate", "loss", "cost", "cap", "up", "down", "group",
        ];
        out += &columns(&heads, &rows, "\n");
    }
    out += &group(&pool["group"]);
    let rows: Vec<_> = list(&all["declared"]).iter().map(declared_row).collect();
    if !rows.is_empty() {
        out += &columns(&["declared flow", "rate", "admission", "because"], &rows, "\n");
    }
    let rows: Vec<_> = list(&all["accounts"]).iter().map(account_row).collect();
    if !rows.is_empty() {
        out += &columns(&["account", "with", "month", "up", "down"], &rows, "\n");
    }
    if !all["share"].is_null() {
        out += &cli_share::render(&all["share"]);
    }
    out.trim_end().to_owned()
}

fn account_row(account: &Value) -> Vec<String> {
    let name = text(&account["name"]);
    vec![
        text(&account["side"]).to_owned(),
        if name.is_empty() {
            text(&account["code"])
        } else {
            name
        }
        .to_owned(),
        text(&account["month"]).get(..7).unwrap_or_default().to_owned(),
        bytes(number(&account["up_bytes"])),
        bytes(number(&account["down_bytes"])),
    ]
}

/// Returns the declared flows of all sessions of a client.
fn declared(client: &Value) -> Vec<Value> {
    let sessions = list(&client["sessions"]).iter();
    sessions
        .flat_map(|session| list(&session["declared"]))
        .cloned()
        .collect()
}

fn declared_row(flow: &Value) -> Vec<String> {
    vec![
        text(&flow["flow"]).to_owned(),
        rate(number(&flow["declared_bps"])),
        text(&flow["admission"]).to_owned(),
        text(&flow["admission_why"]).to_owned(),
    ]
}

/// Describes the group of uplinks in use.
fn group(group: &Value) -> String {
    let count = list(&group["uplinks"]).len();
    if count == 0 {
        return String::new();
    }
    let below = group["cost_below"].as_u64();
    format!(
        "group in use: {count} of at most {} uplinks{}; bound of a bulk transfer {}\n",
        number(&group["max_uplinks"]),
        below.map_or_else(String::new, |cost| format!(" with a cost below {cost}")),
        rate(number(&group["promise_bps"])),
    )
}

/// Returns the measured rate of an uplink, `>` a lower bound, and its loss.
fn measured(uplink: &Value) -> [String; 2] {
    let bound = if uplink["rate_is_lower_bound"] == true {
        ">"
    } else {
        ""
    };
    let speed = uplink["rate_bps"].as_u64();
    let loss = uplink["loss"].as_f64();
    [
        speed.map_or_else(|| "-".to_owned(), |bps| format!("{bound}{}", rate(bps))),
        loss.map_or_else(|| "-".to_owned(), |loss| format!("{:.1} %", loss * 100.0)),
    ]
}

/// Returns the row of a member without Hawser.
fn gre_row(way: &Value) -> Vec<String> {
    let state = text(&way["state"]);
    let state = match way["why"].as_str() {
        Some(why) => format!("{state}: {why}"),
        None => state.to_owned(),
    };
    let [rate, loss] = measured(way);
    vec![text(&way["name"]).to_owned(), state, rate, loss]
}

fn member_rows(member: &Value) -> Vec<Vec<String>> {
    let ways = list(&member["ways"]);
    let name = member["name"].as_str().unwrap_or(text(&member["at"]));
    if ways.is_empty() {
        let state = match member["why"].as_str() {
            Some(why) => format!("{}: {why}", text(&member["state"])),
            None => text(&member["state"]).to_owned(),
        };
        return vec![vec![name.to_owned(), state]];
    }
    let row = |way: &Value| {
        let [speed, loss] = measured(way);
        vec![
            text(&way["label"]).to_owned(),
            text(&way["state"]).to_owned(),
            speed,
            loss,
            number(&way["cost"]).to_string(),
            way["cap_bps"].as_u64().map_or_else(|| "-".to_owned(), rate),
            bytes(number(&way["up_bytes"])),
            bytes(number(&way["down_bytes"])),
            text(&way["why"]).to_owned(),
        ]
    };
    ways.iter().map(row).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbours_read_as_a_table() {
        let shown = render(&json!({
            "code": "aaaa-bbbb-cccc-dddd", "share": null, "trusted": [{ "name": "bob" }],
            "declared": declared(&json!({ "sessions": [{ "declared": [{ "flow": "udp 10.0.0.1:9 -> 10.0.0.2:9",
                "declared_bps": 8_000_000, "admission": "rejected", "admission_why": "too little" }] }] })),
            "pool": { "strangers": 1,
                "group": { "uplinks": ["bob's modem"], "max_uplinks": 8, "cost_below": 5, "promise_bps": 4_000_000 },
                "members": [
                { "name": "bob", "at": "192.168.1.7:47473", "state": "gives", "why": null, "ways": [
                    { "label": "bob's modem", "state": "active", "cap_bps": 5_000_000, "up_bytes": 1_000, "down_bytes": 9,
                      "rate_bps": 4_000_000, "rate_is_lower_bound": true, "loss": 0.012, "cost": 3, "why": "in the best group" } ] },
                { "name": "bob", "at": "[fe80::7%2]:47473", "state": "out of reach", "why": "connection lost", "ways": [] },
                { "name": null, "at": "192.168.1.8:47473", "state": "out of reach", "why": "no answer", "ways": [] },
            ], "gre": [
                { "name": "carol's router", "at": "192.168.1.9", "state": "offered", "why": "no answer", "hub": "10.47.47.1",
                  "rate_bps": null, "loss": null },
            ] },
        }));
        assert!(shown.contains("carol's router     offered: no answer"), "{shown}");
        assert!(
            shown.contains("one machine nearby shares its networks and is not trusted\n"),
            "{shown}"
        );
        let row = shown.lines().find(|line| line.starts_with("bob's modem"));
        let cells: Vec<_> = row
            .unwrap()
            .split("  ")
            .map(str::trim)
            .filter(|cell| !cell.is_empty())
            .collect();
        let expected = [
            "bob's modem",
            "active",
            ">4.0 Mbit/s",
            "1.2 %",
            "3",
            "5.0 Mbit/s",
            "1.0 kB",
            "9 B",
            "in the best group",
        ];
        assert_eq!(cells, expected, "{shown}");
        let row = "udp 10.0.0.1:9 -> 10.0.0.2:9  8.0 Mbit/s  rejected   too little";
        assert!(shown.contains(row), "{shown}");
        assert!(
            shown.contains("group in use: 1 of at most 8 uplinks with a cost below 5; bound of a bulk transfer 4.0 Mbit/s\n"),
            "{shown}"
        );
        assert!(
            shown.contains("192.168.1.8:47473  out of reach: no answer"),
            "{shown}"
        );
        assert!(!shown.contains("connection lost"), "{shown}");
    }
}
