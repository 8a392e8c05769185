//! OpenMPTCProuter as `client.toml` of a client: its networks with their roles, checks and rates.
//!
//! A hub replaces its server, so settings of servers, proxies and VPNs are not converted. Notes
//! name options, and never values: some are secrets.

use std::collections::{BTreeMap, BTreeSet};

use toml::Value;

use super::devices::Devices;
use super::mwan3::is_device;
use super::tracker::MAX_SECONDS;
use super::uci::Section;
use super::written::{Written, quoted};
use crate::check::{MAX_COUNT, MAX_TARGETS};

/// Converts the sections; `None` if no network is used.
pub(super) fn convert(sections: &[Section]) -> Option<Written> {
    let mut out = Written::default();
    let devices = Devices::of(sections);
    let of = |package: &'static str, kind: &'static str| {
        let all = sections.iter();
        all.filter(move |section| section.package == package && section.kind == kind)
    };
    // Its own file repeats the role of each network; the role in `network` is the effective one.
    let mut parts: BTreeMap<&str, &str> = BTreeMap::new();
    for section in of("openmptcprouter", "interface").chain(of("network", "interface")) {
        if let Some(part) = section.get("multipath") {
            parts.insert(&section.name, part);
        }
    }
    let mut used = BTreeMap::new();
    for (name, part) in parts {
        let device = devices.device(name);
        match part {
            "off" | "" => continue,
            _ if !is_device(&device) => {
                out.note(format!(
                    "interface {name}: {} is not a device name",
                    quoted(&device)
                ));
                continue;
            }
            "backup" => out.set_network(&device, "use", "backup"),
            "on" | "master" | "handover" => {}
            other => out.note(format!(
                "interface {name}: multipath {}, so it is used like the others",
                quoted(other)
            )),
        }
        used.insert(name, device);
    }
    if used.is_empty() {
        return None;
    }
    let distinct: BTreeSet<_> = used.values().map(String::as_str).collect();
    let include: Vec<_> = distinct.into_iter().map(Value::from).collect();
    out.set("include", include);
    let lan = devices.device("lan");
    let is_behind =
        devices.subnet("lan").is_some() && is_device(&lan) && !used.values().any(|one| *one == lan);
    match is_behind {
        true => out.set("forward", vec![Value::from(lan)]),
        false => out.set("forward", true),
    }
    for section in of("sqm", "queue") {
        write_caps(section, &used, &mut out);
    }
    write_checks(sections, &used, &mut out);
    note_rest(sections, &used, &mut out);
    Some(out)
}

/// Converts the rate limits of SQM queues, which are in kbit/s in that configuration.
fn write_caps(section: &Section, used: &BTreeMap<&str, String>, out: &mut Written) {
    let names = [
        section.name.as_str(),
        section.get("interface").unwrap_or_default(),
    ];
    let device = used
        .iter()
        .find(|(name, device)| names.contains(name) || names.contains(&device.as_str()));
    let (Some((_, device)), true) = (device, section.is_on("enabled")) else {
        return;
    };
    for (option, key) in [("upload", "cap_up"), ("download", "cap_down")] {
        let rate: Option<u32> = section.get(option).and_then(|text| text.parse().ok());
        if let Some(rate) = rate.filter(|rate| *rate > 0) {
            out.set_network(device, key, format!("{rate}kbit"));
        }
    }
}

/// Writes the checks of its tracker; the section of defaults supplies missing values.
fn write_checks(sections: &[Section], used: &BTreeMap<&str, String>, out: &mut Written) {
    let tracker = || sections.iter().filter(|section| section.package == "omr-tracker");
    let defaults = tracker().find(|section| section.kind == "defaults");
    for (name, device) in used {
        let own = tracker().find(|section| section.kind == "interface" && section.name == *name);
        let get = |option: &str| {
            let own = own.and_then(|section| section.get(option));
            own.or_else(|| defaults.and_then(|section| section.get(option)))
        };
        let is_off = get("enabled") == Some("0") || get("type") == Some("none");
        let own_hosts: Vec<_> = own
            .into_iter()
            .flat_map(|section| section.words("hosts"))
            .collect();
        let hosts = match own_hosts.is_empty() {
            true => defaults
                .into_iter()
                .flat_map(|section| section.words("hosts"))
                .collect(),
            false => own_hosts,
        };
        let (method, port) = match get("type").unwrap_or("ping") {
            "ping" => ("ping", ""),
            "httping" => ("tcp", ":80"),
            "dns" => ("dns", ""),
            other => {
                if !is_off {
                    out.note(format!("interface {name}: type {} of its tracker", quoted(other)));
                }
                continue;
            }
        };
        let targets: Vec<_> = hosts
            .iter()
            .filter(|host| {
                host.parse::<std::net::Ipv4Addr>()
                    .is_ok_and(|host| !host.is_unspecified())
            })
            .take(MAX_TARGETS)
            .map(|host| quoted(&format!("{host}{port}")))
            .collect();
        if is_off || targets.is_empty() {
            continue;
        }
        let number = |option: &str, default: u64, most: u64| {
            let value: Option<u64> = get(option).and_then(|text| text.parse().ok());
            value.unwrap_or(default).clamp(1, most)
        };
        out.set_check(
            device,
            format!(
                "target = [{}]\nmethod = {}\ntimeout = \"{}s\"\nevery = \"{}s\"\ndown = {}\nup = {}\n",
                targets.join(", "),
                quoted(method),
                number("timeout", 2, MAX_SECONDS),
                number("interval", 2, MAX_SECONDS),
                number("tries", 4, MAX_COUNT.into()),
                number("tries_up", 2, MAX_COUNT.into()),
            ),
        );
    }
}

fn note_rest(sections: &[Section], used: &BTreeMap<&str, String>, out: &mut Written) {
    let has = |package: &str, kind: &str| {
        sections
            .iter()
            .any(|section| section.package == package && section.kind == kind)
    };
    if has("openmptcprouter", "server") {
        out.note("its server: run `hawser hub setup` on a server, and `hawser up` here with the invitation");
    }
    for package in [
        "shadowsocks-libev",
        "shadowsocks-rust",
        "glorytun",
        "openvpn",
        "mlvpn",
        "v2ray",
        "xray",
    ] {
        if sections.iter().any(|section| section.package == package) {
            out.note(format!("{package}: the tunnel to the hub replaces it"));
        }
    }
    let bypassed = sections.iter().filter(|section| section.package == "omr-bypass");
    let kinds: BTreeSet<_> = bypassed.map(|section| section.kind.as_str()).collect();
    if !kinds.is_empty() {
        let kinds = kinds.into_iter().collect::<Vec<_>>().join(", ");
        out.note(format!("omr-bypass ({kinds}): write rules with via = \"direct\""));
    }
    let read = ["multipath", "device", "ifname", "proto", "type"];
    let of_network = sections.iter().filter(|section| section.package == "network");
    for section in of_network.filter(|section| used.contains_key(section.name.as_str())) {
        for option in section.options.iter().map(|(option, _)| option.as_str()) {
            let is_systems = [
                "ipaddr", "netmask", "gateway", "ip6addr", "ip6gw", "dns", "metric", "macaddr", "mtu",
            ];
            if !read.contains(&option) && !is_systems.contains(&option) {
                out.note_unused(&section.kind, option, &section.name);
            }
        }
    }
}
