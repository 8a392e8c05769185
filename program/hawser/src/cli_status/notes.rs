//! What `hawser status` says beside its tables: a line for each network, link, peer or certificate
//! of which there is something to say.

use std::fmt::Write as _;

use hawser_linux::clock::local_time_at;
use serde_json::Value;

use super::{list, number, text};
use crate::amounts::{bytes, rate};

/// The networks that are not used for all, a line each.
pub(super) fn preferences(networks: &Value) -> String {
    let line = |network: &Value| {
        let uses = &network["use"];
        let words = match (text(&uses["up"]), text(&uses["down"])) {
            ("-", _) | ("always", "always") => String::new(),
            (up, down) if up == down => format!("{up}, {}", meaning(up)),
            (up, down) => format!("{up} towards the hub, {down} from it"),
        };
        let bulk = if uses["bulk"] == false {
            "transfers keep to others"
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

fn meaning(priority: &str) -> &'static str {
    match priority {
        "overflow" => "used while packets wait for the others",
        "backup" => "used while no other network works",
        _ => "used beside the others",
    }
}

/// The links that are held to a rate: on the joining box by what its clients leave of the air, on
/// the other one because it has been asked to.
pub(super) fn held(clients: &Value, paths: &[&Value]) -> String {
    if let (Some(interface), None) = (clients["interface"].as_str(), clients["link"].as_str()) {
        return format!("clients: waiting for {interface} in the bridge\n");
    }
    if let Some(link) = clients["link"].as_str() {
        let most = number(&clients["most_bps"]);
        let how = match clients["held_bps"].as_u64() {
            None => "not held".to_owned(),
            Some(held) if held < LEAST_HELD => "closed, they need all its air".to_owned(),
            Some(held) if held >= most => "not held".to_owned(),
            Some(held) => format!("held to {} of {}", rate(held), rate(most)),
        };
        return format!("{link}: shared with clients, {how}\n");
    }
    let limits = paths.iter().filter_map(|path| {
        let cap = path["cap_bps"].as_u64()?;
        Some(format!(
            "{}: held to {}, as the other box asks\n",
            text(&path["name"]),
            rate(cap)
        ))
    });
    limits.collect()
}

/// A link that may carry less is closed but for what keeps it known. Units: bit/s.
const LEAST_HELD: u64 = 100_000;

/// Access points by their card, a line each: where it is, and what share of the card's traffic each
/// station carries.
pub(super) fn wifi(radio: &Value) -> String {
    let mut cards: std::collections::BTreeMap<&str, Vec<String>> = std::collections::BTreeMap::new();
    for station in list(radio) {
        let of_one_network = list(radio)
            .iter()
            .filter(|other| other["ssid"] == station["ssid"]);
        // Access points of one network are told apart by their addresses.
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

/// Networks over which the hub does not answer by UDP, a line each.
pub(super) fn over_tls(status: &Value) -> String {
    let mut out = String::new();
    for network in list(&status["networks"]) {
        if let Some(said) = network["tls"]["said"].as_str() {
            let _ = writeln!(out, "{}: {said}", text(&network["name"]));
        }
    }
    out
}

/// Paths that a network polices, or on which marks of congestion mean nothing, a line each.
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
            let _ = writeln!(out, "{name}: ECN is off, the network marks, drops or clears it");
        }
    }
    out
}

/// Networks whose address Hawser sees to, a line each.
pub(super) fn leases(dhcp: &Value) -> String {
    let mut out = String::new();
    for network in list(dhcp) {
        let (name, by) = (text(&network["network"]), text(&network["by"]));
        let how = match (network["state"].as_str(), network["address"].as_str()) {
            (Some("leased"), Some(address)) => match network["seconds_left"].as_u64() {
                Some(seconds) => format!("{address} by DHCP ({by}), for {} min more", seconds.div_ceil(60)),
                None => format!("{address} by DHCP ({by})"),
            },
            // Among the notes.
            (Some("failed"), _) => continue,
            (Some("left"), _) => format!("no address; left to {by}"),
            (Some("waiting"), _) if !by.is_empty() => format!("waits for an address by DHCP ({by})"),
            (Some("waiting"), _) => "waits for an address".to_owned(),
            (state, _) => state.unwrap_or_default().to_owned(),
        };
        let _ = writeln!(out, "{name}: {how}");
    }
    out
}

/// Networks that say how long a login lasts, a line each.
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
                "{}: its login lasts for {} more",
                text(&network["name"]),
                all.join(" or ")
            );
        }
    }
    out
}

/// The subnets behind this machine, a line each: whether their machines keep their addresses.
pub(super) fn subnets(status: &Value) -> String {
    let [named, led, kept] = ["named", "led_here", "kept"].map(|which| list(&status[which]));
    let line = |subnet: &Value| {
        let how = if kept.contains(subnet) {
            "its machines keep their addresses"
        } else {
            "behind this machine's address, as the hub does not lead it here: `hawser hub subnet` there"
        };
        format!("{}: {how}\n", text(subnet))
    };
    let spare = led.iter().filter(|_| named.is_empty());
    let unnamed = spare.map(|subnet| {
        format!(
            "{}: led here by the hub; subnets in client.toml does not name it\n",
            text(subnet)
        )
    });
    named.iter().map(line).chain(unnamed).collect()
}

/// Peers, and the flows that have been moved with them; nothing where there are none.
pub(super) fn moving(moving: &Value) -> String {
    let mut out = String::new();
    for link in list(&moving["links"]) {
        let how = link["trouble"].as_str().unwrap_or("reached");
        let (peer, network) = (text(&link["peer"]), text(&link["network"]));
        let _ = write!(out, "\npeer {peer} over {network}: {how}");
    }
    for (what, said) in [
        ("moved", "moved from here"),
        ("followed", "moved by their other end"),
    ] {
        if number(&moving[what]) > 0 {
            let _ = write!(out, "\n{} connections {said}", number(&moving[what]));
        }
    }
    out
}

/// The certificate that an authority gives a hub.
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
        None => out.push_str(": none yet, the hub shows one of its own key"),
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
            "wlan0: its login lasts for 60 min or 70.0 MB more\nwlan1: its login lasts for 1.0 MB more\n"
        );
    }

    #[test]
    fn subnets_have_a_line_each() {
        let both = json!({
            "named": ["192.168.7.0/24", "fd00:7::/64"], "led_here": ["192.168.0.0/16"], "kept": ["192.168.7.0/24"],
        });
        assert_eq!(
            subnets(&both),
            "192.168.7.0/24: its machines keep their addresses\n\
             fd00:7::/64: behind this machine's address, as the hub does not lead it here: `hawser hub subnet` there\n"
        );
        let unnamed = json!({ "named": [], "led_here": ["192.168.0.0/16"], "kept": [] });
        assert!(subnets(&unnamed).ends_with("subnets in client.toml does not name it\n"));
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
            "lte: backup, used while no other network works; transfers keep to others\n\
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
            "eth1: 192.168.0.7/24 by DHCP (udhcpc), for 2 min more\n"
        );
        assert_eq!(
            dhcp("waiting", "udhcpc", None),
            "eth1: waits for an address by DHCP (udhcpc)\n"
        );
        assert_eq!(dhcp("waiting", "", None), "eth1: waits for an address\n");
        assert_eq!(
            dhcp("left", "NetworkManager", None),
            "eth1: no address; left to NetworkManager\n"
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
            "\npeer files over wlan0: reached\npeer files over lte: no answer\n2 connections moved from here"
        );
    }
}
