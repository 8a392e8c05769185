//! Lets a hub through the firewall of its machine, by the tool that the machine has for it.

use std::process::Command;

use anyhow::{Context, bail};
use hawser_hub::WaysIn;
use serde_json::Value;

/// Opens what is wanted where a firewall is in the way; what was done, in words.
///
/// # Errors
/// A tool fails: what it said.
pub(crate) fn open(ways: &WaysIn) -> anyhow::Result<Vec<String>> {
    if say("ufw", &["status"]).is_ok_and(|said| said.contains("Status: active")) {
        return ufw(ways);
    }
    if say("firewall-cmd", &["--state"]).is_ok_and(|said| said.trim() == "running") {
        return firewalld(ways);
    }
    nftables(ways)
}

/// `443/udp`, `443/tcp`.
fn ports(ways: &WaysIn) -> Vec<String> {
    let tcp = ways.tcp.map(|port| format!("{port}/tcp"));
    std::iter::once(format!("{}/udp", ways.udp)).chain(tcp).collect()
}

fn ufw(ways: &WaysIn) -> anyhow::Result<Vec<String>> {
    let (ports, interface) = (ports(ways), ways.interface.as_str());
    for port in &ports {
        say("ufw", &["allow", port, "comment", COMMENT])?;
    }
    for direction in ["in", "out"] {
        say(
            "ufw",
            &["route", "allow", direction, "on", interface, "comment", COMMENT],
        )?;
    }
    Ok(vec![format!(
        "ufw lets {} in, and forwards {interface}",
        ports.join(" and ")
    )])
}

fn firewalld(ways: &WaysIn) -> anyhow::Result<Vec<String>> {
    let (ports, interface) = (ports(ways), &ways.interface);
    for port in &ports {
        say("firewall-cmd", &["--permanent", &format!("--add-port={port}")])?;
    }
    let add = format!("--add-interface={interface}");
    say("firewall-cmd", &["--permanent", "--zone=trusted", &add])?;
    say("firewall-cmd", &["--reload"])?;
    Ok(vec![format!(
        "firewalld lets {} in, and trusts {interface}",
        ports.join(" and ")
    )])
}

/// Chains of others that drop what no rule of theirs knows: a rule of ours before theirs.
fn nftables(ways: &WaysIn) -> anyhow::Result<Vec<String>> {
    let chains = say("nft", &["-j", "list", "chains"]).context("cannot see the firewall")?;
    let chains: Value = serde_json::from_str(&chains).context("nft speaks another language")?;
    let mut done = Vec::new();
    for chain in chains["nftables"].as_array().into_iter().flatten() {
        let chain = &chain["chain"];
        let [Some(family), Some(table), Some(name)] =
            ["family", "table", "name"].map(|key| chain[key].as_str())
        else {
            continue;
        };
        if chain["policy"] != "drop" || !["inet", "ip", "ip6"].contains(&family) {
            continue;
        }
        let rules = match chain["hook"].as_str() {
            Some("input") => {
                let tcp = ways.tcp.map(|port| format!("tcp dport {port}"));
                [Some(format!("udp dport {}", ways.udp)), tcp]
            }
            Some("forward") => ["iifname", "oifname"].map(|side| Some(format!("{side} {}", ways.interface))),
            _ => continue,
        };
        let there = say("nft", &["list", "chain", family, table, name])?;
        for rule in rules.into_iter().flatten() {
            // As nft lists what is below.
            let (key, value) = rule.rsplit_once(' ').unwrap_or_default();
            let listed = [format!("{rule} accept"), format!("{key} \"{value}\" accept")];
            if listed.iter().any(|listed| there.contains(listed)) {
                continue;
            }
            let insert = ["insert", "rule", family, table, name];
            let words = rule.split(' ').chain(["accept", "comment", "\"Hawser\""]);
            say("nft", &insert.into_iter().chain(words).collect::<Vec<_>>())?;
            done.push(format!("nft insert rule {family} {table} {name} {rule} accept"));
        }
    }
    if !done.is_empty() {
        done.push(
            "these rules last until the firewall is loaded again: put them into /etc/nftables.conf"
                .to_owned(),
        );
    }
    Ok(done)
}

/// What a program says that succeeds.
pub(crate) fn say(program: &str, arguments: &[&str]) -> anyhow::Result<String> {
    let mut path = std::env::var_os("PATH").unwrap_or_default();
    path.push(":/usr/sbin:/sbin");
    let output = Command::new(program)
        .args(arguments)
        .env("PATH", path)
        // Their words are read here.
        .env("LC_ALL", "C")
        .output()
        .with_context(|| format!("cannot run {program}"))?;
    if !output.status.success() {
        let error = String::from_utf8_lossy(&output.stderr);
        bail!("{program} {}: {}", arguments.join(" "), error.trim());
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

const COMMENT: &str = "Hawser";
