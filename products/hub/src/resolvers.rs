//! Resolvers that a hub announces to its clients if hub.toml has none: those of its machine that
//! clients can reach.

use std::net::IpAddr;

use hawser_config::HubConfig;
use hawser_host::dns::NameServers;
use hawser_proto::client_filter::Policy;
use hawser_units::Net;
use hawser_wire::inner::protocol;
use hawser_wire::upper_layer::UpperLayer;

use super::reach::client_policy;

/// Remedy if clients receive no resolver.
pub(super) const REMEDY: &str =
    "write dns = [\"9.9.9.9\"] or another resolver that clients can reach to hub.toml";

/// Adds the machine's resolvers to a `config` without resolvers. `local` are the machine's
/// addresses, each with its prefix length. Returns whether it had none.
pub(super) fn complete(config: &mut HubConfig, local: &[Net]) -> bool {
    let names_none = config.dns.is_empty();
    if names_none {
        config.dns = reached(config, local, NameServers::of_machine());
    }
    names_none
}

/// Runs [`complete`] for a hub that starts or whose configuration changed, and logs the clients'
/// resolvers.
pub(super) fn complete_and_log(config: &mut HubConfig, local: &[Net]) {
    if !complete(config, local) {
        return;
    }
    match config.dns.as_slice() {
        [] => tracing::warn!(
            "hub.toml contains no resolver, and clients do not reach those of this machine: clients with dns = \"hub\" cannot resolve names; {REMEDY}"
        ),
        all => {
            tracing::info!(resolvers = ?all, "hub.toml contains no resolver: clients use those of this machine")
        }
    }
}

/// Selects the resolvers that a client may query under the rules of `[reach]`; the selection itself
/// permits nothing.
fn reached(config: &HubConfig, local: &[Net], mut resolvers: Vec<IpAddr>) -> Vec<IpAddr> {
    let policy = client_policy(&config.isolation(Vec::new(), Vec::new()), local);
    let sources: Vec<_> = policy.pools.iter().map(|pool| pool.address).collect();
    resolvers.retain(|resolver| {
        let mut sources = sources.iter();
        let source = sources.find(|source| source.is_ipv4() == resolver.is_ipv4());
        source.is_some_and(|source| may_ask(&policy, *source, *resolver))
    });
    resolvers
}

fn may_ask(policy: &Policy, source: IpAddr, resolver: IpAddr) -> bool {
    let question = UpperLayer {
        source,
        destination: resolver,
        protocol: protocol::UDP,
        ports: Some((FROM, DNS)),
        opens_connection: false,
        icmp_type: None,
    };
    policy.check(&question).is_ok()
}

/// Port of DNS. Source: RFC 1035 section 4.2.
const DNS: u16 = 53;
/// Source port of a query. Source: the first of the dynamic ports, RFC 6335 section 6.
const FROM: u16 = 49_152;

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the resolvers that a hub with this configuration announces, of these resolvers of
    /// its machine.
    fn named(text: &str, resolvers: &[&str]) -> Vec<String> {
        let pool = "endpoints = [\"198.51.100.1:443\"]\npool = \"100.96.0.0/16\"\n";
        let config: HubConfig = toml::from_str(&format!("{pool}{text}")).expect("valid");
        let local = [Net::new([198, 51, 100, 1], 24)];
        let resolvers = resolvers.iter().map(|text| text.parse().unwrap()).collect();
        let found = reached(&config, &local, resolvers);
        found.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn clients_are_given_the_machines_resolvers_that_they_reach() {
        let all = [
            "10.0.0.53",
            "9.9.9.9",
            "198.51.100.1",
            "2620:fe::fe",
            "169.254.169.253",
        ];
        assert_eq!(named("", &all), ["9.9.9.9"]);
        let pool6 = "pool6 = \"fd00:7::/64\"\n";
        assert_eq!(named(pool6, &all), ["9.9.9.9", "2620:fe::fe"]);
        let near = "[reach]\nnetworks = [\"10.0.0.0/8\"]\nhub = [\"udp 53\"]\ndeny = [\"9.9.9.0/24\"]\n";
        assert_eq!(named(near, &all), ["10.0.0.53", "198.51.100.1"]);
        assert_eq!(named("", &["10.0.0.53"]), [""; 0]);
    }

    #[test]
    fn what_the_configuration_names_stays() {
        let text = "endpoints = [\"198.51.100.1:443\"]\npool = \"100.96.0.0/16\"\ndns = [\"10.0.0.53\"]\n";
        let mut config: HubConfig = toml::from_str(text).expect("valid");
        assert!(!complete(&mut config, &[]));
        assert_eq!(config.dns, ["10.0.0.53".parse::<IpAddr>().unwrap()]);
    }
}
