//! `hawser pool`.

use std::process::ExitCode;

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

/// Shows neighbours: who is there, what they offer, what has been carried for whom.
///
/// To take a neighbour's networks: `hawser pool trust NAME CODE` with the code that `hawser share`
/// prints there, `neighbours = true` under [pool] in client.toml, and `hawser up` (or
/// `hawser reload`). The neighbour allows this machine once, by the code that `hawser pool` shows
/// here.
///
/// A member without Hawser, which forwards into GRE, is named by [[pool.gre]] in client.toml:
/// docs/manual/neighbours.md says what to type there, and at the hub.
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
    /// Trusts a device that gives: its name here, and the code that `hawser share` shows there.
    Trust(TrustArgs),
    /// Takes nothing more of a device, at once.
    Forget(NameArgs),
    /// Shows what hubs have signed of what was carried.
    Receipts(ReceiptsArgs),
    /// Says whether hubs have signed the receipts of a file.
    Verify(VerifyArgs),
}

#[derive(Debug, clap::Args)]
struct TrustArgs {
    /// What to call it here: 1 to 32 of a-z, 0-9, - and _.
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
            Trust::update(&args.directories.dir, |trust| {
                trust.trust_member(&args.name, args.code)
            })?;
            let own = own_code(&args.directories)?;
            let name = &args.name;
            print(
                args.json,
                || json!({ "version": 1, "trusted": name, "code": own }),
                &format!("{name} is trusted; it lets this machine take with `hawser share allow NAME {own}`"),
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
                &format!("nothing more is taken of {name}"),
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
    // With --run-dir, that of a client is meant.
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
    let mut out = format!("this machine's code is {}\n", text(&all["code"]));
    let pool = &all["pool"];
    let trusted = list(&all["trusted"]);
    let gre = list(&pool["gre"]);
    if trusted.is_empty() && gre.is_empty() {
        out += "nobody is trusted yet: `hawser pool trust NAME CODE`, with the code that `hawser share` shows there\n";
    } else if pool.is_null() && !trusted.is_empty() {
        out += "nothing is taken: `neighbours = true` under [pool] in client.toml, and `hawser up`\n";
    }
    match number(&pool["strangers"]) {
        0 => {}
        1 => out += "one device nearby shares and is not trusted\n",
        more => out += &format!("{more} devices nearby share and are not trusted\n"),
    }
    let members = list(&pool["members"]);
    let rows = members.iter().flat_map(member_rows);
    let rows: Vec<_> = rows.chain(gre.iter().map(gre_row)).collect();
    if !rows.is_empty() {
        out += &columns(&["takes of", "state", "cap", "up", "down"], &rows, "\n");
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

/// A member without Hawser.
fn gre_row(way: &Value) -> Vec<String> {
    let state = text(&way["state"]);
    let state = match way["why"].as_str() {
        Some(why) => format!("{state}: {why}"),
        None => state.to_owned(),
    };
    vec![text(&way["name"]).to_owned(), state]
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
        vec![
            text(&way["label"]).to_owned(),
            text(&way["state"]).to_owned(),
            way["cap_bps"].as_u64().map_or_else(|| "-".to_owned(), rate),
            bytes(number(&way["up_bytes"])),
            bytes(number(&way["down_bytes"])),
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
            "pool": { "strangers": 1, "members": [
                { "name": "bob", "at": "192.168.1.7:47473", "state": "gives", "why": null, "ways": [
                    { "label": "bob's modem", "state": "active", "cap_bps": 5_000_000, "up_bytes": 1_000, "down_bytes": 9 } ] },
                { "name": null, "at": "192.168.1.8:47473", "state": "out of reach", "why": "no answer", "ways": [] },
            ], "gre": [
                { "name": "carol's router", "at": "192.168.1.9", "state": "offered", "why": "no answer", "hub": "10.47.47.1" },
            ] },
        }));
        assert!(shown.contains("carol's router     offered: no answer"), "{shown}");
        assert!(
            shown.contains("one device nearby shares and is not trusted\n"),
            "{shown}"
        );
        assert!(
            shown.contains("bob's modem        active                   5.0 Mbit/s  1.0 kB  9 B"),
            "{shown}"
        );
        assert!(
            shown.contains("192.168.1.8:47473  out of reach: no answer"),
            "{shown}"
        );
    }
}
