//! `hawser pool receipts` and `hawser pool verify`.

use std::collections::BTreeMap;
use std::io::Read;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, bail};
use hawser_pool::{Signed, Trust, receipts, receipts_to_csv};
use hawser_terminal::{columns, say, show};
use serde_json::{Value, json};

use crate::amounts::bytes;
use crate::cli_history::clock;
use crate::directories::Directories;

/// Shows the receipts of hubs for relayed traffic: sums by neighbour and hub, or each receipt with
/// --csv or --json.
///
/// A receipt states how much one path through a neighbour has transferred between a taker and its
/// hub: UDP payload in bytes, times in seconds of Unix time. The hub counts the bytes and signs a
/// receipt (Ed25519) at most once a second. Both neighbours store the same receipts.
#[derive(Debug, clap::Args)]
pub(crate) struct ReceiptsArgs {
    /// Prints all receipts as JSON, as `hawser pool verify` reads them.
    #[arg(long)]
    json: bool,
    /// Prints all receipts as comma-separated values.
    #[arg(long, conflicts_with = "json")]
    csv: bool,
    #[command(flatten)]
    directories: Directories,
}

/// Checks the hubs' signatures of the receipts in a file.
///
/// The file is the output of `hawser pool receipts --json`, of this machine or another. The exit
/// status is 1 if a receipt is not signed by the hub that it names.
#[derive(Debug, clap::Args)]
pub(crate) struct VerifyArgs {
    /// The file, or - for standard input.
    file: PathBuf,
    /// Prints the result as JSON.
    #[arg(long)]
    json: bool,
}

pub(crate) fn show_all(args: &ReceiptsArgs) -> anyhow::Result<()> {
    let trust = Trust::load(&args.directories.dir)?;
    let all = receipts(&args.directories.dir, &trust)?;
    if args.csv {
        show!("{}", receipts_to_csv(&all))
    } else if args.json {
        say!("{}", json!({ "version": 1, "receipts": all }))
    } else if all.is_empty() {
        say!("no receipts yet: hubs sign them while a neighbour relays traffic (`hawser pool` shows it)")
    } else {
        show!("{}", sums(&all)?)
    }
}

/// Returns sums by side, neighbour and hub.
fn sums(all: &[Signed]) -> anyhow::Result<String> {
    let mut sums: BTreeMap<[String; 3], (u64, u64, u64, u64)> = BTreeMap::new();
    for receipt in all {
        let name = if receipt.name.is_empty() {
            receipt.other().to_string()
        } else {
            receipt.name.clone()
        };
        let hub = receipt.hub()?.code().to_string();
        let sum = sums.entry([receipt.side.clone(), name, hub]).or_default();
        sum.0 += 1;
        sum.1 = sum.1.saturating_add(receipt.up_bytes);
        sum.2 = sum.2.saturating_add(receipt.down_bytes);
        sum.3 = sum.3.max(receipt.until_s);
    }
    let rows = sums
        .into_iter()
        .map(|([side, name, hub], (count, up, down, until_s))| {
            vec![
                side,
                name,
                hub,
                count.to_string(),
                bytes(up),
                bytes(down),
                clock(until_s),
            ]
        });
    let rows: Vec<_> = rows.collect();
    let head = [
        "side",
        "neighbour",
        "hub's key",
        "receipts",
        "up",
        "down",
        "until",
    ];
    Ok(columns(&head, &rows, "\n"))
}

pub(crate) fn verify(args: &VerifyArgs) -> anyhow::Result<ExitCode> {
    let place = args.file.display();
    let mut text = String::new();
    let read = if args.file.as_os_str() == "-" {
        std::io::stdin().read_to_string(&mut text).map(drop)
    } else {
        std::fs::read_to_string(&args.file).map(|all| text = all)
    };
    read.with_context(|| format!("cannot read {place}"))?;
    let all: Value = serde_json::from_str(&text).with_context(|| {
        format!("{place} is not JSON: expected the output of `hawser pool receipts --json`")
    })?;
    let all: Vec<Signed> = serde_json::from_value(all["receipts"].clone()).with_context(|| {
        format!("{place} contains no receipts: expected the output of `hawser pool receipts --json`")
    })?;
    let mut bad = Vec::new();
    for receipt in &all {
        if !receipt
            .is_good()
            .with_context(|| format!("{place}, run {}", receipt.run))?
        {
            bad.push(receipt.run.clone());
        }
    }
    if args.json {
        say!("{}", json!({ "version": 1, "receipts": all.len(), "bad": bad }))?;
    } else if bad.is_empty() {
        say!("{} receipts, all signed by the hubs that they name", all.len())?;
    } else {
        bail!(
            "{place}: {} of {} receipts are not signed by the hub that they name: run {}",
            bad.len(),
            all.len(),
            bad.join(", ")
        );
    }
    Ok(ExitCode::from(u8::from(!bad.is_empty())))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn signed(side: &str, up_bytes: u64) -> Signed {
        serde_json::from_value(json!({
            "side": side, "name": "bob", "taker": "aaaa-bbbb-cccc-dddd", "member": "eeee-ffff-gggg-hhhh",
            "hub_key": "07".repeat(32), "run": "00".repeat(8), "number": 1, "began_s": 1, "until_s": 2,
            "up_bytes": up_bytes, "down_bytes": 2_000, "signature": "00".repeat(64),
        }))
        .expect("a receipt")
    }

    #[test]
    fn receipts_are_summed_by_neighbour() {
        let all = [signed("taken", 1_000), signed("given", 1), signed("taken", 500)];
        let shown = sums(&all).unwrap();
        let lines: Vec<Vec<_>> = shown
            .lines()
            .map(|line| line.split_whitespace().collect())
            .collect();
        assert_eq!(lines[1][..2], ["given", "bob"]);
        assert_eq!(lines[2][3..8], ["2", "1.5", "kB", "4.0", "kB"], "{shown}");
    }

    #[test]
    fn what_is_no_receipt_is_refused_in_one_line() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("file");
        let said = |text: &str| {
            std::fs::write(&file, text).unwrap();
            let args = VerifyArgs {
                file: file.clone(),
                json: false,
            };
            format!("{:#}", verify(&args).unwrap_err())
        };
        assert!(said("nonsense").contains("is not JSON"));
        assert!(said("{}").contains("contains no receipts"));
        let forged = json!({ "receipts": [signed("taken", 1)] }).to_string();
        assert!(said(&forged).contains("1 of 1 receipts are not signed"));
        assert!(said(&forged.replace("000000", "zz")).contains("not hexadecimal"));
    }
}
