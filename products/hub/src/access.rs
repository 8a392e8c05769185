//! `hawser hub policy test`: the decision of a hub's rules about a connection, without opening it.
//!
//! The decision is that of the policy that the hub enforces (`hawser_proto::client_filter`),
//! created from the present hub.toml and store. A hub that runs with an older hub.toml may decide
//! differently until `hawser reload`.

use std::net::{IpAddr, SocketAddr};
use std::path::Path;

use anyhow::{Context, bail};
use hawser_linux::isolation::LedSubnet;
use hawser_proto::client_filter::{Policy, Refusal};
use hawser_units::{Service, is_private};
use hawser_wire::inner::protocol;
use hawser_wire::upper_layer::UpperLayer;

use super::names::Terms;
use super::reach::{Leading, client_policy, grants};
use super::stores::{load, open_store};
use super::{own_addresses, resolvers};

/// Decision about a connection of a client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verdict {
    /// Set if the connection is permitted.
    pub is_allowed: bool,
    /// Text of the deciding rule, with the remedy if the connection is rejected.
    pub why: String,
}

/// Decides about a connection from a client to `to`. Must be called within a tokio runtime.
///
/// # Errors
/// If there is no hub, no such client, or the client has no address of that family.
pub async fn test_policy(dir: &Path, name: &str, to: SocketAddr, is_udp: bool) -> anyhow::Result<Verdict> {
    let mut config = load(dir)?;
    let local = own_addresses().await?;
    Terms::take_over(&mut config);
    resolvers::complete(&mut config, &local);
    let store_dir = dir.to_owned();
    let opened = config.clone();
    let store = tokio::task::spawn_blocking(move || open_store(&store_dir, &opened));
    let store = store.await.expect("no store panics")?;
    let client = store
        .iter()
        .find(|client| client.name == name)
        .with_context(|| format!("there is no client {name}: `sudo hawser hub list` shows the clients"))?;
    let mut inner = client.inner().into_iter();
    let Some(source) = inner.find(|address| address.is_ipv6() == to.is_ipv6()) else {
        bail!("{name} has no IPv6 address: the hub has no pool6");
    };
    // The policy does not depend on translation and queues.
    let subnets = store.subnets().into_iter().map(|led| LedSubnet {
        net: led.net,
        guests: led.guests,
        is_hidden: false,
        queue: None,
    });
    let leading = Leading {
        ports: store.ports(),
        subnets: subnets.collect(),
        grants: grants(&store, &config.reach),
    };
    let isolation = leading.isolation(&config);
    let policy = client_policy(&isolation, &local);
    Ok(verdict(&policy, &opening(source, to, is_udp)))
}

/// Returns the packet that opens the connection.
fn opening(source: IpAddr, to: SocketAddr, is_udp: bool) -> UpperLayer {
    UpperLayer {
        source,
        destination: to.ip(),
        protocol: if is_udp { protocol::UDP } else { protocol::TCP },
        ports: Some((FROM, to.port())),
        opens_connection: !is_udp,
        icmp_type: None,
    }
}

/// Decides about a packet, and names the rule.
fn verdict(policy: &Policy, packet: &UpperLayer) -> Verdict {
    match policy.check(packet) {
        Ok(()) => Verdict {
            is_allowed: true,
            why: allowed(policy, packet),
        },
        Err(refusal) => Verdict {
            is_allowed: false,
            why: refused(policy, packet, refusal),
        },
    }
}

fn allowed(policy: &Policy, packet: &UpperLayer) -> String {
    let to = packet.destination;
    let subnet = policy.subnets.iter().find(|(net, _)| net.contains(to));
    let resolver = policy.resolvers.contains(&to) && packet.ports.is_some_and(|(_, port)| port == DNS);
    if resolver {
        return "it is a resolver of the hub (dns)".to_owned();
    }
    if policy.own.contains(&to) || policy.local.contains(&to) {
        return "it is the hub itself, and hub of [reach] contains the service".to_owned();
    }
    if policy.grants.iter().any(|grant| grant.allows(packet)) {
        return "allow of [reach] contains it".to_owned();
    }
    if let Some((net, _)) = subnet {
        return format!("{net} is a subnet behind a client, and `hawser hub subnet` admits this client");
    }
    if policy.pools.iter().any(|net| net.contains(to)) {
        return "it is another client, and clients = true in [reach]".to_owned();
    }
    match policy.networks.iter().find(|net| net.contains(to)) {
        Some(net) => format!("networks of [reach] contains {net}"),
        None => "it is a public address".to_owned(),
    }
}

fn refused(policy: &Policy, packet: &UpperLayer, refusal: Refusal) -> String {
    let to = packet.destination;
    let port = packet.ports.map_or(0, |(_, port)| port);
    let service = match packet.protocol {
        protocol::UDP => Service::Udp(port),
        _ => Service::Tcp(port),
    };
    match refusal {
        Refusal::Headers | Refusal::Protocol => {
            "its protocol is not allowed (protocols of [reach])".to_owned()
        }
        Refusal::Hub => format!(
            "it is the hub itself, and hub of [reach] does not contain the service: add hub = [\"{service}\"]"
        ),
        Refusal::Client => match policy.subnets.iter().find(|(net, _)| net.contains(to)) {
            Some((net, _)) => format!(
                "{net} is a subnet behind a client, which does not admit this client: run `hawser hub subnet OWNER {net} --for NAME`"
            ),
            None => "it is another client: clients = true in [reach] would admit it".to_owned(),
        },
        Refusal::Destination => match policy.denied.iter().find(|net| net.contains(to)) {
            Some(net) => format!("deny of [reach] contains {net}"),
            None if is_private(to) => format!(
                "it is a private address that [reach] does not contain: add networks = [\"{to}\"], or a subnet that contains it"
            ),
            None => "clients do not reach this destination".to_owned(),
        },
    }
}

/// Source port of the connection. Source: any of the dynamic ports of Linux.
const FROM: u16 = 40_000;
/// Port of DNS. Source: RFC 1035 section 4.2.
const DNS: u16 = 53;

#[cfg(test)]
mod tests {
    use hawser_proto::client_filter::Grant;

    use super::*;

    fn policy() -> Policy {
        let net = |text: &str| text.parse().expect("a network");
        let address = |text: &str| text.parse().expect("an address");
        Policy {
            pools: vec![net("100.96.0.0/16")],
            own: vec![address("100.96.0.1")],
            local: vec![address("203.0.113.1")],
            resolvers: vec![address("10.0.0.53")],
            services: vec![Service::Tcp(22)],
            networks: vec![net("10.0.0.0/24")],
            denied: vec![net("198.51.100.0/24")],
            subnets: vec![(net("192.168.50.0/24"), vec![net("100.96.0.2/32")])],
            grants: vec![Grant {
                from: vec![net("100.96.0.3/32")],
                to: vec![net("10.9.0.0/24")],
                services: vec![Service::Tcp(443)],
            }],
            ..Policy::default()
        }
    }

    #[test]
    fn each_answer_names_its_rule() {
        for (from, to, is_allowed, words) in [
            ("100.96.0.2", "203.0.113.9:443", true, "public"),
            ("100.96.0.2", "10.0.0.1:22", true, "contains 10.0.0.0/24"),
            ("100.96.0.2", "10.0.0.53:53", true, "resolver"),
            ("100.96.0.2", "10.0.1.1:22", false, "networks = [\"10.0.1.1\"]"),
            (
                "100.96.0.2",
                "198.51.100.7:80",
                false,
                "deny of [reach] contains 198.51.100.0/24",
            ),
            ("100.96.0.2", "100.96.0.1:22", true, "contains the service"),
            ("100.96.0.2", "203.0.113.1:80", false, "hub = [\"tcp 80\"]"),
            ("100.96.0.2", "100.96.0.3:80", false, "clients = true"),
            ("100.96.0.2", "192.168.50.7:80", true, "admits this client"),
            ("100.96.0.3", "192.168.50.7:80", false, "--for NAME"),
            ("100.96.0.3", "10.9.0.1:443", true, "allow of [reach]"),
            ("100.96.0.2", "10.9.0.1:443", false, "networks = "),
        ] {
            let packet = opening(
                from.parse().expect("an address"),
                to.parse().expect("an address"),
                false,
            );
            let found = verdict(&policy(), &packet);
            assert_eq!(found.is_allowed, is_allowed, "{to}: {}", found.why);
            assert!(found.why.contains(words), "{to}: {}", found.why);
        }
    }
}
