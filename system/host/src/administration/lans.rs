//! Chooses the addresses on which the page is served: those of LANs, and never those of uplinks.
//!
//! The daemon's list of LANs is not used unchecked. An interface that was an uplink once is never
//! served afterwards; a new address is served only after it is clear that its interface has no
//! default route; and if no LANs are configured, only private addresses are served.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use hawser_units::{Duration, Instant};
use serde_json::Value;

/// Addresses of interfaces on which the page is served.
pub(super) type Listening = BTreeSet<(String, IpAddr)>;

/// Chooses addresses.
#[derive(Debug, Default)]
pub(super) struct Lans {
    /// Interfaces that are, or were, uplinks.
    led_out: BTreeSet<String>,
    /// Time at which each address appeared.
    since: BTreeMap<(String, IpAddr), Instant>,
}

impl Lans {
    /// Returns the addresses on which the page is served. `addresses` are those of all interfaces,
    /// `said` is the field `lans` of the daemon's status.
    pub(super) fn handle(&mut self, addresses: &[(String, IpAddr)], said: &Value, now: Instant) -> Listening {
        let names = |list: &Value| -> BTreeSet<String> {
            let names = list.as_array().into_iter().flatten().filter_map(Value::as_str);
            names.map(ToOwned::to_owned).collect()
        };
        self.led_out.extend(names(&said["uplinks"]));
        let (only, tunnel) = (names(&said["only"]), said["tunnel"].as_str().unwrap_or_default());
        let all: BTreeSet<_> = addresses.iter().cloned().collect();
        self.since.retain(|place, _| all.contains(place));
        for place in &all {
            self.since.entry(place.clone()).or_insert(now);
        }
        let is_known = said.is_object();
        let is_meant = |(name, address): &(String, IpAddr)| {
            let is_lan = if only.is_empty() {
                said["all"] == true && is_private(*address)
            } else {
                only.contains(name)
            };
            is_known && is_lan && name != "lo" && name != tunnel && is_usual(*address)
        };
        let is_settled = |place: &(String, IpAddr)| {
            let waits = if only.is_empty() { SETTLES } else { Duration::ZERO };
            now.since(self.since[place]) >= waits && !self.led_out.contains(&place.0)
        };
        all.into_iter()
            .filter(|place| is_meant(place) && is_settled(place))
            .take(MAX_LISTENING)
            .collect()
    }
}

/// Returns whether a browser can connect to the address by a URL.
fn is_usual(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(v4) => !v4.is_loopback() && !v4.is_link_local() && !v4.is_unspecified(),
        IpAddr::V6(v6) => !v6.is_loopback() && !v6.is_unicast_link_local() && !v6.is_unspecified(),
    }
}

/// Returns whether an address is private (RFC 1918, RFC 4193).
fn is_private(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(v4) => v4.is_private(),
        IpAddr::V6(v6) => v6.is_unique_local(),
    }
}

/// An address of a network that leads out has its route by then. Source: DHCP clients add both
/// within 1 s, and routers of IPv6 answer within 4 s (RFC 4861 section 10).
const SETTLES: Duration = Duration::from_secs(5);
/// Source: a gateway with more LANs than this names them; each is a socket.
const MAX_LISTENING: usize = 32;

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn at(seconds: u64) -> Instant {
        Instant::from_nanos(seconds * 1_000_000_000)
    }

    fn place(name: &str, address: &str) -> (String, IpAddr) {
        (name.to_owned(), address.parse().unwrap())
    }

    fn all() -> Vec<(String, IpAddr)> {
        vec![
            place("lo", "127.0.0.1"),
            place("hawser0", "100.96.0.2"),
            place("br-lan", "192.168.50.1"),
            place("br-lan", "fe80::1"),
            place("br-lan", "fd00:50::1"),
            place("wlan0", "192.168.1.7"),
            place("eth9", "203.0.113.7"),
        ]
    }

    fn served(lans: &mut Lans, said: &Value, seconds: u64) -> Vec<String> {
        let places = lans.handle(&all(), said, at(seconds)).into_iter();
        places
            .map(|(name, address)| format!("{name} {address}"))
            .collect()
    }

    #[test]
    fn unnamed_lans_are_private_settled_and_lead_nowhere() {
        let mut lans = Lans::default();
        let said = json!({ "all": true, "uplinks": ["wlan0"], "tunnel": "hawser0" });
        assert_eq!(served(&mut lans, &said, 0), [""; 0], "who knows what they are");
        let both = ["br-lan 192.168.50.1", "br-lan fd00:50::1"];
        assert_eq!(served(&mut lans, &said, 5), both);
        // A café's router is down for a moment: this does not make its network a LAN.
        let gone = json!({ "all": true, "uplinks": [], "tunnel": "hawser0" });
        assert_eq!(served(&mut lans, &gone, 60), both);
        let found = json!({ "all": true, "uplinks": ["br-lan"], "tunnel": "hawser0" });
        assert_eq!(served(&mut lans, &found, 61), [""; 0]);
    }

    #[test]
    fn named_lans_are_served_at_once_and_still_never_where_they_lead_out() {
        let mut lans = Lans::default();
        let said = json!({ "only": ["br-lan", "eth9", "lo", "hawser0"], "uplinks": [], "tunnel": "hawser0" });
        let wanted = ["br-lan 192.168.50.1", "br-lan fd00:50::1", "eth9 203.0.113.7"];
        assert_eq!(served(&mut lans, &said, 0), wanted);
        let said = json!({ "only": ["br-lan", "eth9"], "uplinks": ["eth9"], "tunnel": "hawser0" });
        assert_eq!(served(&mut lans, &said, 1), wanted[..2]);
    }

    #[test]
    fn nothing_is_served_without_a_daemon_that_says_where() {
        let mut lans = Lans::default();
        for said in [
            json!(null),
            json!({}),
            json!({ "uplinks": [] }),
            json!({ "only": [] }),
        ] {
            assert_eq!(served(&mut lans, &said, 100), [""; 0], "{said}");
        }
    }
}
