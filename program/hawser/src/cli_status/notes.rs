//! Notes of `hawser status` in addition to its tables: a line for each network, link, peer or
//! certificate with a notice.

use std::fmt::Write as _;

use hawser_linux::clock::local_time_at;
use serde_json::Value;

use super::{list, number, text};
use crate::amounts::{bytes, rate};

/// Networks with restricted use, one per line.
pub(super) fn preferences(networks: &Value) -> String {
    let line = |network: &Value| {
        let uses = &network["use"];
        let words = match (text(&uses["up"]), text(&uses["down"])) {
            ("-", _) | ("always", "always") => String::new(),
            (up, down) if up == down => format!("{up}, {}", meaning(up)),
            (up, down) => format!("{up} towards the hub, {down} from it"),
        };
        let bulk = if uses["bulk"] == false {
            "no bulk transfers while others work"
        } else {
            ""
        };
        let said: Vec<_> = [words.as_str(), bulk]
            .into_iter()
            .filter(|said| !said.is_empty())
            .collect();
        let name = text(&network["name"]);
        (!said.is_empty()).then(|| format!("{name}: {}\n", said.join("; ")))
    };
    list(networks).iter().filter_map(line).collect()
}

/// Devices of networks, one per line, in the form of `device` in `client.toml`; with the section
/// that applies.
pub(super) fn devices(networks: &Value) -> String {
    let line = |network: &Value| {
        let device = &network["device"];
        let of_one_device = ["path", "imei", "ssid"];
        if of_one_device.iter().all(|key| device[*key].is_null()) {
            return None;
        }
        let all = ["mac", "path", "imei", "ssid"].into_iter();
        let all = all.filter(|key| !device[*key].is_null());
        // JSON's strings are also TOML's.
        let all: Vec<_> = all.map(|key| format!("{key} = {}", device[key])).collect();
        let section = device["section"].as_str();
        let section = section.map_or(String::new(), |section| format!(" [networks.{section}]"));
        let name = text(&network["name"]);
        Some(format!("{name}{section}: device = {{ {} }}\n", all.join(", ")))
    };
    list(networks).iter().filter_map(line).collect()
}

/// Modems, one per line: signal, operator, technology, and whether they roam.
pub(super) fn modems(networks: &Value) -> String {
    let line = |network: &Value| {
        let modem = &network["modem"];
        let signal = modem["signal_dbm"].as_i64().map(|signal| format!("{signal} dBm"));
        let words = ["operator", "technology"].map(|key| modem[key].as_str().map(str::to_owned));
        let roaming = modem["roaming"].as_bool();
        let roaming = roaming.map(|is_abroad| if is_abroad { "roaming" } else { "at home" }.to_owned());
        let said = words.into_iter().chain([signal, roaming]).flatten();
        let said: Vec<_> = said.collect();
        (!said.is_empty()).then(|| format!("{}: {}\n", text(&network["name"]), said.join(", ")))
    };
    list(networks).iter().filter_map(line).collect()
}

fn meaning(priority: &str) -> &'static str {
    match priority {
        "overflow" => "used while packets wait for the others",
        "backup" => "used while no other network works",
        _ => "used together with the others",
    }
}

/// Links with a rate limit: on the joining box because of the airtime of its clients, on the other
/// one because the joining box has requested it.
pub(super) fn client_limits(clients: &Value, paths: &[&Value]) -> String {
    if let (Some(interface), None) = (clients["interface"].as_str(), clients["link"].as_str()) {
        return format!("clients: waiting for {interface} in the bridge\n");
    }
    if let Some(link) = clients["link"].as_str() {
        let most = number(&clients["most_bps"]);
        let how = match clients["held_bps"].as_u64() {
            None => "not limited".to_owned(),
            Some(held) if held < MIN_OPEN_RATE => {
                "closed, because the clients need all the airtime".to_owned()
            }
            Some(held) if held >= most => "not limited".to_owned(),
            Some(held) => format!("limited to {} of {}", rate(held), rate(most)),
        };
        return format!("{link}: shares its channel with clients, {how}\n");
    }
    let limits = paths.iter().filter_map(|path| {
        let cap = path["cap_bps"].as_u64()?;
        Some(format!(
            "{}: limited to {} by the other box\n",
            text(&path["name"]),
            rate(cap)
        ))
    });
    limits.collect()
}

/// A link with a lower limit is closed except for keepalives. Units: bit/s. Source: our choice,
/// above the 64 kbit/s of a closed link (`CLOSED` of `products/repeater/src/clients.rs`).
const MIN_OPEN_RATE: u64 = 100_000;

/// Access points by card, one per line, with their channel and the share of the card's traffic of
/// each station.
pub(super) fn wifi(radio: &Value) -> String {
    let mut cards: std::collections::BTreeMap<&str, Vec<String>> = std::collections::BTreeMap::new();
    for station in list(radio) {
        let of_one_network = list(radio)
            .iter()
            .filter(|other| other["ssid"] == station["ssid"]);
        // Access points of one network are distinguished by their addresses.
        let point = match station["bssid"].as_str() {
            Some(bssid) if of_one_network.count() > 1 => format!(" {bssid}"),
            _ => String::new(),
        };
        let place = match (station["ssid"].as_str(), station["channel"].as_u64()) {
            (Some(ssid), Some(channel)) => format!("{ssid}{point} (ch {channel})"),
            (Some(ssid), None) => ssid.to_owned(),
            (None, _) => "no network".to_owned(),
        };
        let how = match station["state"].as_str() {
            Some("joined") if !station["slot_ms"].is_null() => format!(
                "{:.0} of {:.0} ms",
                station["slot_ms"].as_f64().unwrap_or(0.0),
                station["cycle_ms"].as_f64().unwrap_or(0.0)
            ),
            Some("joined") => format!("{:.0} %", station["share"].as_f64().unwrap_or(0.0) * 100.0),
            other => other.unwrap_or_default().to_owned(),
        };
        let name = text(&station["interface"]);
        cards
            .entry(text(&station["card"]))
            .or_default()
            .push(format!("{name} {place} {how}"));
    }
    let line = |(card, stations): (&str, Vec<String>)| format!("{card}: {}\n", stations.join(", "));
    cards.into_iter().map(line).collect()
}

/// Networks with IPv6 only whose translator forwards to the hub, one per line.
pub(super) fn translated(networks: &Value) -> String {
    let line = |network: &Value| {
        let prefix = network["nat64"].as_str()?;
        let name = text(&network["name"]);
        Some(format!(
            "{name}: IPv6 only, to the hub through the network's NAT64 ({prefix})\n"
        ))
    };
    list(networks).iter().filter_map(line).collect()
}

/// Networks over which the hub does not answer by UDP, one per line.
pub(super) fn over_tls(status: &Value) -> String {
    let mut out = String::new();
    for network in list(&status["networks"]) {
        if let Some(said) = network["tls"]["said"].as_str() {
            let _ = writeln!(out, "{}: {said}", text(&network["name"]));
        }
    }
    out
}

/// Paths that a network polices, or on which congestion marks are meaningless, one per line.
pub(super) fn treated(status: &Value) -> String {
    let mut out = String::new();
    let sessions = list(&status["sessions"]);
    for path in sessions.iter().flat_map(|session| list(&session["paths"])) {
        let name = text(&path["name"]);
        if let Some(policed) = path["policed_bps"].as_u64() {
            let _ = writeln!(
                out,
                "{name}: the network polices this direction to {}",
                rate(policed)
            );
        }
        if path["peer_is_policed"] == true {
            let _ = writeln!(out, "{name}: the network polices the other direction");
        }
        if path["ecn"] == "failed" {
            let _ = writeln!(
                out,
                "{name}: ECN is off, because the network marks all packets, or drops or clears ECN"
            );
        }
    }
    out
}

/// Networks whose address Hawser manages, one per line.
pub(super) fn leases(dhcp: &Value) -> String {
    let mut out = String::new();
    for network in list(dhcp) {
        let (name, by) = (text(&network["network"]), text(&network["by"]));
        let how = match (network["state"].as_str(), network["address"].as_str()) {
            (Some("leased"), Some(address)) => match network["seconds_left"].as_u64() {
                Some(seconds) => format!(
                    "{address} by DHCP ({by}), for another {} min",
                    seconds.div_ceil(60)
                ),
                None => format!("{address} by DHCP ({by})"),
            },
            // Among the notes.
            (Some("failed"), _) => continue,
            (Some("left"), _) => format!("no address; managed by {by}"),
            (Some("waiting"), _) if !by.is_empty() => format!("waits for an address by DHCP ({by})"),
            (Some("waiting"), _) => "waits for an address".to_owned(),
            (state, _) => state.unwrap_or_default().to_owned(),
        };
        let _ = writeln!(out, "{name}: {how}");
    }
    out
}

/// Networks that report the remaining validity of a login, one per line.
pub(super) fn logins(networks: &Value) -> String {
    let mut out = String::new();
    for network in list(networks) {
        let left = &network["login_left"];
        let time = left["seconds"].as_u64();
        let time = time.map(|seconds| format!("{} min", seconds.div_ceil(60)));
        let size = left["bytes"].as_u64().map(bytes);
        let all: Vec<_> = time.into_iter().chain(size).collect();
        if !all.is_empty() {
            let _ = writeln!(
                out,
                "{}: its login is valid for another {}",
                text(&network["name"]),
                all.join(" or ")
            );
        }
    }
    out
}

/// Subnets behind this machine, one per line, with whether their machines keep their addresses.
pub(super) fn subnets(status: &Value) -> String {
    let [named, led, kept] = ["named", "led_here", "kept"].map(|which| list(&status[which]));
    let line = |subnet: &Value| {
        let how = if kept.contains(subnet) {
            "its machines keep their addresses"
        } else {
            "translated to this machine's address, because the hub does not route it here: run `hawser hub subnet` on the hub"
        };
        format!("{}: {how}\n", text(subnet))
    };
    let spare = led.iter().filter(|_| named.is_empty());
    let unnamed = spare.map(|subnet| {
        format!(
            "{}: routed here by the hub, but `subnets` in client.toml does not name it\n",
            text(subnet)
        )
    });
    named.iter().map(line).chain(unnamed).collect()
}

/// Peers, and the flows moved with them; empty without peers.
pub(super) fn moving(moving: &Value) -> String {
    let mut out = String::new();
    for link in list(&moving["links"]) {
        let how = link["trouble"].as_str().unwrap_or("connected");
        let (peer, network) = (text(&link["peer"]), text(&link["network"]));
        let _ = write!(out, "\npeer {peer} over {network}: {how}");
    }
    for (what, said) in [("moved", "moved from here"), ("followed", "moved by their peer")] {
        if number(&moving[what]) > 0 {
            let _ = write!(out, "\n{} connections {said}", number(&moving[what]));
        }
    }
    out
}

/// Certificate that an authority has issued to a hub.
pub(super) fn certificate(acme: &Value) -> String {
    let names: Vec<_> = list(&acme["names"]).iter().map(text).collect();
    if names.is_empty() {
        return String::new();
    }
    let mut out = format!("certificate of {}", names.join(", "));
    match acme["until_s"].as_u64() {
        Some(until) => {
            let day = local_time_at(until.cast_signed());
            let _ = write!(out, " until {}-{:02}-{:02}", day.year, day.month, day.day);
        }
        None => out.push_str(": none yet, so the hub uses one of its own key"),
    }
    if let Some(trouble) = acme["trouble"].as_str() {
        let _ = write!(out, "; the last attempt failed: {trouble}");
    }
    out.push('\n');
    out
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn logins_that_end_have_a_line_each() {
        let said = logins(&json!([
            { "name": "wlan0", "login_left": { "seconds": 3_541, "bytes": 70_000_000 } },
            { "name": "wlan1", "login_left": { "seconds": null, "bytes": 1_000_000 } },
            { "name": "fiber", "login_left": null },
        ]));
        assert_eq!(
            said,
            "wlan0: its login is valid for another 60 min or 70.0 MB\nwlan1: its login is valid for another 1.0 MB\n"
        );
    }

    #[test]
    fn devices_have_a_line_for_client_toml_and_modems_one_for_people() {
        let networks = json!([
            {
                "name": "usb0",
                "device": { "mac": "00:16:3e:00:00:01", "path": "pci-0000:00:14.0-usb-0:1.2:1.0", "imei": null,
                            "ssid": "a \"b\"", "section": "van" },
                "modem": { "signal_dbm": -85, "operator": "Sol", "technology": "LTE", "roaming": true },
            },
            { "name": "br0", "device": { "mac": "00:16:3e:00:00:01", "path": null } },
            { "name": "eth0" },
        ]);
        assert_eq!(
            devices(&networks),
            "usb0 [networks.van]: device = { mac = \"00:16:3e:00:00:01\", \
             path = \"pci-0000:00:14.0-usb-0:1.2:1.0\", ssid = \"a \\\"b\\\"\" }\n"
        );
        assert_eq!(modems(&networks), "usb0: Sol, LTE, -85 dBm, roaming\n");
    }

    #[test]
    fn subnets_have_a_line_each() {
        let both = json!({
            "named": ["192.168.7.0/24", "fd00:7::/64"], "led_here": ["192.168.0.0/16"], "kept": ["192.168.7.0/24"],
        });
        assert_eq!(
            subnets(&both),
            "192.168.7.0/24: its machines keep their addresses\n\
             fd00:7::/64: translated to this machine's address, because the hub does not route it here: run `hawser hub subnet` on the hub\n"
        );
        let unnamed = json!({ "named": [], "led_here": ["192.168.0.0/16"], "kept": [] });
        assert!(subnets(&unnamed).ends_with("`subnets` in client.toml does not name it\n"));
        assert_eq!(subnets(&Value::Null), "");
    }

    #[test]
    fn networks_that_are_not_used_for_all_have_a_line_each() {
        let said = preferences(&json!([
            { "name": "fiber", "use": { "up": "always", "down": "always", "bulk": true } },
            { "name": "docker0" },
            { "name": "lte", "use": { "up": "backup", "down": "backup", "bulk": false } },
            { "name": "sat", "use": { "up": "overflow", "down": "always", "bulk": true } },
        ]));
        assert_eq!(
            said,
            "lte: backup, used while no other network works; no bulk transfers while others work\n\
             sat: overflow towards the hub, always from it\n"
        );
    }

    #[test]
    fn leases_have_a_line_each() {
        let dhcp = |state: &str, by: &str, address: Option<&str>| {
            leases(
                &json!([{ "network": "eth1", "state": state, "by": by, "address": address, "seconds_left": 61 }]),
            )
        };
        assert_eq!(leases(&Value::Null), "");
        assert_eq!(
            dhcp("leased", "udhcpc", Some("192.168.0.7/24")),
            "eth1: 192.168.0.7/24 by DHCP (udhcpc), for another 2 min\n"
        );
        assert_eq!(
            dhcp("waiting", "udhcpc", None),
            "eth1: waits for an address by DHCP (udhcpc)\n"
        );
        assert_eq!(dhcp("waiting", "", None), "eth1: waits for an address\n");
        assert_eq!(
            dhcp("left", "NetworkManager", None),
            "eth1: no address; managed by NetworkManager\n"
        );
        assert_eq!(dhcp("no carrier", "", None), "eth1: no carrier\n");
        assert_eq!(dhcp("failed", "said in a note", None), "");
    }

    #[test]
    fn access_points_of_one_network_are_told_apart() {
        let station = |interface: &str, ssid: &str, bssid: &str| {
            json!({
                "card": "phy0", "interface": interface, "ssid": ssid, "bssid": bssid,
                "channel": 6, "state": "joined", "share": 0.5,
            })
        };
        let shown = wifi(&json!([
            station("hawserw0", "office", "02:00:00:00:00:01"),
            station("hawserw1", "office", "02:00:00:00:00:02"),
            station("hawserw2", "cafe", "02:00:00:00:00:03"),
        ]));
        assert_eq!(
            shown,
            "phy0: hawserw0 office 02:00:00:00:00:01 (ch 6) 50 %, hawserw1 office 02:00:00:00:00:02 (ch 6) 50 %, hawserw2 cafe (ch 6) 50 %\n"
        );
    }

    #[test]
    fn peers_are_listed_where_there_are_any() {
        assert_eq!(moving(&json!({ "links": [], "moved": 0 })), "");
        let shown = moving(&json!({
            "links": [{ "peer": "files", "network": "wlan0", "trouble": null }, { "peer": "files", "network": "lte", "trouble": "no answer" }],
            "moved": 2, "followed": 0,
        }));
        assert_eq!(
            shown,
            "\npeer files over wlan0: connected\npeer files over lte: no answer\n2 connections moved from here"
        );
    }
}
