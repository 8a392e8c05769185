//! Address translators between networks and the internet, if the scenario has them.
//!
//! The kernel's connection tracking translates: each network has an address of its own towards hub
//! and server, and packets without a mapping are dropped. Limitations: IPv4 only, as such routers
//! forward IPv6 untranslated.

use anyhow::Context;
use hawser_linux::conntrack;
use hawser_linux::netns::Namespace;
use hawser_netem::NatConfig;
use hawser_netem::scenario::Scenario;

use super::{gateway_device, nft};

/// Starts to translate the addresses of each network that has a translator.
///
/// # Errors
/// When `nft` is missing or fails.
pub(super) fn begin(net: &Namespace, scenario: &Scenario) -> anyhow::Result<()> {
    let numbered = scenario.networks.iter().zip(1..);
    let translated: Vec<_> = numbered
        .filter_map(|(network, number)| Some((number, network.nat?)))
        .collect();
    if translated.is_empty() {
        return Ok(());
    }
    nft(net, &rules(&translated))
}

/// Removes all mappings of the translator of network `number`.
///
/// # Errors
/// When the kernel has no connection tracking, or fails.
pub(super) fn flush(net: &Namespace, number: usize) -> anyhow::Result<()> {
    let forget = || {
        for connection in conntrack::list(0, 0)? {
            if is_of(number, connection.from.ip()) {
                conntrack::forget(&connection)?;
            }
        }
        Ok(())
    };
    net.run(forget).context("cannot flush the NAT's mappings")
}

/// Returns whether an address is one of network `number`, 10.77.number.0/24.
fn is_of(number: usize, address: std::net::IpAddr) -> bool {
    match address {
        std::net::IpAddr::V4(address) => {
            let [first, second, third, _] = address.octets();
            (first, second, usize::from(third)) == (10, 77, number)
        }
        std::net::IpAddr::V6(_) => false,
    }
}

fn rules(translated: &[(usize, NatConfig)]) -> String {
    let (mut timeouts, mut enter, mut leave) = (String::new(), String::new(), String::new());
    for (number, nat) in translated {
        if let Some(timeout) = nat.timeout {
            let seconds = timeout.as_secs();
            timeouts += &format!(
                "ct timeout udp{number} {{\nprotocol udp\nl3proto ip\npolicy = {{ unreplied: {seconds}, replied: {seconds} }}\n}}\n\
                 ct timeout tcp{number} {{\nprotocol tcp\nl3proto ip\npolicy = {{ established: {seconds} }}\n}}\n"
            );
            let device = gateway_device(*number);
            for protocol in ["udp", "tcp"] {
                enter += &format!(
                    "iifname {device} meta l4proto {protocol} ct timeout set \"{protocol}{number}\"\n"
                );
            }
        }
        let ports = if nat.change_ports { CHANGED_PORTS } else { "" };
        for protocol in ["udp", "tcp"] {
            leave += &format!(
                "oifname {{ \"hub\", \"server\" }} ip saddr 10.77.{number}.0/24 meta l4proto {protocol} \
                 snat to 192.0.2.{number}{ports}\n"
            );
        }
        leave += &format!(
            "oifname {{ \"hub\", \"server\" }} ip saddr 10.77.{number}.0/24 snat to 192.0.2.{number}\n"
        );
        // At this point, connection tracking has already undone the translation of packets with a
        // mapping.
        enter += &format!("ip daddr 192.0.2.{number} drop\n");
    }
    format!(
        "table ip lab_routers {{\n{timeouts}\
         chain enter {{\ntype filter hook prerouting priority 0;\n{enter}}}\n\
         chain leave {{\ntype nat hook postrouting priority srcnat - 1;\n{leave}}}\n}}\n"
    )
}

/// The dynamic ports, RFC 6335 section 6.
const CHANGED_PORTS: &str = ":49152-65535 fully-random";

#[cfg(test)]
mod tests {
    use hawser_units::Duration;

    use super::*;

    #[test]
    fn a_rule_for_each_network_with_its_timeout_and_its_ports() {
        let plain = NatConfig::default();
        let short = NatConfig {
            timeout: Some(Duration::from_secs(30)),
            change_ports: true,
        };
        let rules = rules(&[(1, plain), (3, short)]);
        assert!(rules.contains("ip saddr 10.77.1.0/24 meta l4proto udp snat to 192.0.2.1\n"));
        assert!(rules.contains("udp snat to 192.0.2.3:49152-65535 fully-random\n"));
        assert!(rules.contains("ct timeout udp3") && !rules.contains("ct timeout udp1"));
        assert!(rules.contains("unreplied: 30, replied: 30"));
    }

    #[test]
    fn only_the_networks_own_addresses_are_flushed() {
        let is = |address: &str| is_of(3, address.parse().expect("an address"));
        assert!(is("10.77.3.2"));
        assert!(!is("10.77.30.2") && !is("10.78.3.2") && !is("fd77:3::2"));
    }
}
