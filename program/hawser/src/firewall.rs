//! Admits a hub in the firewall of its machine, with the tool that manages it.

use std::process::Command;

use anyhow::{Context, bail};
use hawser_hub::AdmittedPorts;
use serde_json::Value;

/// Opens the ports in each active firewall; returns descriptions of the changes.
///
/// # Errors
/// A tool fails; the error contains its message.
pub(crate) fn open(admitted: &AdmittedPorts) -> anyhow::Result<Vec<String>> {
    if say("ufw", &["status"]).is_ok_and(|said| said.contains("Status: active")) {
        return ufw(admitted);
    }
    if say("firewall-cmd", &["--state"]).is_ok_and(|said| said.trim() == "running") {
        return firewalld(admitted);
    }
    nftables(admitted)
}

/// `443/udp`, `443/tcp`.
fn ports(admitted: &AdmittedPorts) -> Vec<String> {
    let udp = std::iter::once(admitted.udp).chain(admitted.wireguard);
    let udp = udp.map(|port| format!("{port}/udp"));
    udp.chain(admitted.tcp.map(|port| format!("{port}/tcp")))
        .collect()
}

fn ufw(admitted: &AdmittedPorts) -> anyhow::Result<Vec<String>> {
    let (ports, interface) = (ports(admitted), admitted.interface.as_str());
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
        "ufw admits {} and forwards packets of {interface}",
        ports.join(" and ")
    )])
}

fn firewalld(admitted: &AdmittedPorts) -> anyhow::Result<Vec<String>> {
    let (ports, interface) = (ports(admitted), &admitted.interface);
    for port in &ports {
        say("firewall-cmd", &["--permanent", &format!("--add-port={port}")])?;
    }
    let add = format!("--add-interface={interface}");
    say("firewall-cmd", &["--permanent", "--zone=trusted", &add])?;
    say("firewall-cmd", &["--reload"])?;
    Ok(vec![format!(
        "firewalld admits {} and trusts {interface}",
        ports.join(" and ")
    )])
}

/// Inserts a rule into other programs' chains with the policy drop.
fn nftables(admitted: &AdmittedPorts) -> anyhow::Result<Vec<String>> {
    let chains = say("nft", &["-j", "list", "chains"]).context("cannot list the rules of the firewall")?;
    let chains: Value = serde_json::from_str(&chains).context("cannot parse the output of nft")?;
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
                let udp = |port| Some(format!("udp dport {port}"));
                let tcp = admitted.tcp.map(|port| format!("tcp dport {port}"));
                [udp(admitted.udp), admitted.wireguard.and_then(udp), tcp]
            }
            Some("forward") => {
                let rule = |side: &str| Some(format!("{side} {}", admitted.interface));
                [rule("iifname"), rule("oifname"), None]
            }
            _ => continue,
        };
        let there = say("nft", &["list", "chain", family, table, name])?;
        for rule in rules.into_iter().flatten() {
            // The form in which nft lists the rule.
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
            "these rules are lost when the firewall is reloaded: add them to /etc/nftables.conf".to_owned(),
        );
    }
    Ok(done)
}

/// Runs a program, and returns its output if it succeeds.
pub(crate) fn say(program: &str, arguments: &[&str]) -> anyhow::Result<String> {
    let mut path = std::env::var_os("PATH").unwrap_or_default();
    path.push(":/usr/sbin:/sbin");
    let output = Command::new(program)
        .args(arguments)
        .env("PATH", path)
        // Their output is parsed here.
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
