//! Diagnosis of a hub: finds reasons why it does not forward for its clients, and their remedies.

use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use hawser_config::HubConfig;
use hawser_host::control_socket;
use hawser_host::finding::Finding;
use hawser_linux::firewalls::forward_drops;
use hawser_wire::control::KeyExpiry;
use hawser_wire::key_expiry::KeyState;
use serde_json::Value;

use super::connections::Connections;
use super::names::Terms;
use super::stores::load;
use super::{own_addresses, resolvers};

/// State of the machine and of the hub.
#[derive(Clone, Debug, Default)]
struct Seen {
    /// Answer of the running hub.
    status: Option<Value>,
    /// `net.ipv4.ip_forward`, and `net.ipv6.conf.all.forwarding` if the machine has IPv6.
    forwarding: (bool, Option<bool>),
    /// Chains of other firewalls that drop forwarded packets.
    drops: Vec<String>,
    /// Used and maximum entries of the kernel's connection table.
    connections: Option<Connections>,
    /// Time of the examination. Units: seconds since the beginning of 1970.
    unix_s: u64,
}

/// Examines the hub on this machine without changes. `socket` is the hub's control socket.
///
/// # Errors
/// If hub.toml is invalid or cannot be read.
pub async fn examine(dir: &Path, socket: &Path) -> anyhow::Result<Vec<Finding>> {
    let mut config = load(dir)?;
    Terms::take_over(&mut config);
    resolvers::complete(&mut config, &own_addresses().await?);
    let setting = |key: &str| std::fs::read_to_string(Path::new("/proc/sys").join(key)).ok();
    let is_on = |key: &str| setting(key).map(|text| text.trim() == "1");
    let seen = Seen {
        status: control_socket::ask(socket, &control_socket::Request::Status).ok(),
        forwarding: (
            is_on("net/ipv4/ip_forward") == Some(true),
            is_on("net/ipv6/conf/all/forwarding"),
        ),
        drops: forward_drops(&config.interface.0),
        connections: Connections::read(),
        unix_s: SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .map_or(0, |since| since.as_secs()),
    };
    Ok(judge(&config, &seen))
}

fn judge(config: &HubConfig, seen: &Seen) -> Vec<Finding> {
    let mut found = vec![running(seen.status.as_ref())];
    found.push(forwarding(config, seen));
    found.push(match seen.drops.as_slice() {
        [] => Finding::good(
            "firewall",
            "no other firewall drops forwarded packets by its policy",
        ),
        drops => Finding::bad(
            "firewall",
            &format!("drops packets of clients: {}", drops.join(", ")),
            &format!("change it to accept packets from and to {}", config.interface.0),
        ),
    });
    found.push(match config.dns.as_slice() {
        [] => Finding::bad(
            "dns",
            "hub.toml contains no resolver, and clients do not reach those of this machine: clients with dns = \"hub\" cannot resolve names",
            resolvers::REMEDY,
        ),
        [one] => Finding::good("dns", &format!("the hub provides the resolver {one} to clients")),
        all => Finding::good("dns", &format!("the hub provides {} resolvers to clients", all.len())),
    });
    found.extend(seen.connections.map(connections));
    found.extend(keys(seen.status.as_ref(), seen.unix_s));
    found
}

fn running(status: Option<&Value>) -> Finding {
    let Some(status) = status else {
        return Finding::bad(
            "hub",
            "is not running",
            "run `sudo systemctl start hawser-hub`; `journalctl -u hawser-hub` shows its log",
        );
    };
    match status["notice"].as_str() {
        Some(notice) => Finding::bad("hub", "is running, with warnings", notice),
        None => Finding::good("hub", status["state"].as_str().unwrap_or("runs")),
    }
}

fn forwarding(config: &HubConfig, seen: &Seen) -> Finding {
    let (v4, v6) = seen.forwarding;
    let is_missing = |key: &str| {
        Finding::bad(
            "forward",
            &format!("{key} is 0: the kernel drops packets of clients"),
            &format!("run `sudo sysctl -w {key}=1`, and find the program that changes the value"),
        )
    };
    if !v4 {
        is_missing("net.ipv4.ip_forward")
    } else if config.pool6.is_some() && v6 == Some(false) {
        is_missing("net.ipv6.conf.all.forwarding")
    } else {
        Finding::good("forward", "the kernel forwards")
    }
}

/// Names the clients whose keys expire soon; nothing if no key expires.
fn keys(status: Option<&Value>, now_unix_s: u64) -> Option<Finding> {
    let clients = status?["clients"].as_array()?.iter();
    let expiring = clients.filter_map(|client| {
        let expiry = KeyExpiry(client["key_expires_unix_s"].as_u64()?);
        Some((client["name"].as_str()?, expiry))
    });
    let expiring: Vec<_> = expiring.collect();
    let mut soon = expiring
        .iter()
        .filter(|(_, expiry)| expiry.state(now_unix_s) == KeyState::Expiring);
    let Some((first, expiry)) = soon.next() else {
        return (!expiring.is_empty())
            .then(|| Finding::good("keys", "no key of a client expires within 7 days"));
    };
    let others = match soon.count() {
        0 => String::new(),
        more => format!(", and of {more} more within 7 days (`hawser hub list`)"),
    };
    Some(Finding::bad(
        "keys",
        &format!("the key of {first} expires on {expiry}{others}"),
        &format!("run `sudo hawser hub limit {first} --expires 90d`, or --no-expiry"),
    ))
}

fn connections(seen: Connections) -> Finding {
    if seen.is_nearly_full() {
        Finding::bad("conntrack", &seen.said(), &seen.remedy())
    } else {
        Finding::good("conntrack", &seen.said())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn config(text: &str) -> HubConfig {
        toml::from_str(text).expect("valid")
    }

    fn healthy() -> Seen {
        Seen {
            status: Some(json!({ "state": "up", "notice": null })),
            forwarding: (true, Some(true)),
            drops: Vec::new(),
            connections: Some(Connections { used: 10, room: 1000 }),
            unix_s: 1_800_000_000,
        }
    }

    /// Returns the subjects with defects.
    fn bad(config: &HubConfig, seen: &Seen) -> Vec<&'static str> {
        let found = judge(config, seen);
        assert!(found.iter().all(|finding| finding.good == finding.next.is_none()));
        let bad = found.iter().filter(|finding| !finding.good);
        bad.map(|finding| finding.what).collect()
    }

    #[test]
    fn each_cause_is_found_alone() {
        let names =
            config("endpoints = [\"198.51.100.1:443\"]\npool = \"100.96.0.0/16\"\ndns = [\"9.9.9.9\"]\n");
        assert_eq!(bad(&names, &healthy()), [""; 0]);
        let seen = Seen {
            status: None,
            ..healthy()
        };
        assert_eq!(bad(&names, &seen), ["hub"]);
        let seen = Seen {
            status: Some(json!({ "state": "up", "notice": "something else" })),
            ..healthy()
        };
        assert_eq!(bad(&names, &seen), ["hub"]);
        let seen = Seen {
            forwarding: (false, Some(true)),
            ..healthy()
        };
        assert_eq!(bad(&names, &seen), ["forward"]);
        let seen = Seen {
            drops: vec!["nftables chain ip filter FORWARD".to_owned()],
            ..healthy()
        };
        assert_eq!(bad(&names, &seen), ["firewall"]);
        let seen = Seen {
            connections: Some(Connections {
                used: 950,
                room: 1000,
            }),
            ..healthy()
        };
        assert_eq!(bad(&names, &seen), ["conntrack"]);
        let none = config("endpoints = [\"198.51.100.1:443\"]\npool = \"100.96.0.0/16\"\n");
        assert_eq!(bad(&none, &healthy()), ["dns"]);
    }

    #[test]
    fn keys_that_expire_soon_are_named() {
        let with = |expiries: &[Option<u64>]| {
            let client = |at: &Option<u64>| json!({ "name": "alice", "key_expires_unix_s": at });
            let clients: Vec<_> = expiries.iter().map(client).collect();
            let found = keys(Some(&json!({ "clients": clients })), 1_800_000_000);
            found.map(|finding| (finding.good, finding.said))
        };
        assert_eq!(with(&[None]), None);
        assert_eq!(with(&[Some(1_799_000_000)]).map(|(good, _)| good), Some(true));
        let (good, said) = with(&[Some(1_900_000_000), Some(1_800_000_060), Some(1_800_000_060)]).unwrap();
        assert!(!good);
        let expected = "the key of alice expires on 2027-01-15 08:01 UTC, and of 1 more within 7 days";
        assert!(said.starts_with(expected), "{said}");
    }

    #[test]
    fn forwarding_of_ipv6_counts_where_clients_have_it() {
        let seen = Seen {
            forwarding: (true, Some(false)),
            ..healthy()
        };
        let text = "endpoints = [\"198.51.100.1:443\"]\npool = \"100.96.0.0/16\"\ndns = [\"9.9.9.9\"]\n";
        assert_eq!(bad(&config(text), &seen), [""; 0]);
        let both = config(&format!("{text}pool6 = \"fd00:1::/64\"\n"));
        assert_eq!(bad(&both, &seen), ["forward"]);
    }
}
