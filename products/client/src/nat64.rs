//! Translators of networks with IPv6 only (NAT64): over such a network, a hub with IPv4 only is
//! reached at an address that the translator forwards.
//!
//! [`hawser_host::nat64`] searches the prefixes. [`Choice`] decides whether a path uses one; this
//! module moves the paths accordingly. Another hub, with a secondary session, is reached at its own
//! IPv6 address if it has one, otherwise with the preferred prefix.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use hawser_control::client::networks::is_made_by_translator;
use hawser_dataplane::PathState;
use hawser_host::dhcp::Dhcp;
use hawser_host::nat64;
use hawser_linux::netlink::{self, Network};
use hawser_steer::nat64::Choice;
use hawser_units::NetworkId;
use hawser_wire::nat64::{Prefix, WELL_KNOWN_PREFIX};

use super::Client;

/// Prefixes of networks, and their use.
pub(super) struct Nat64 {
    search: nat64::Nat64,
    networks: BTreeMap<String, Used>,
}

/// Prefixes of a network with IPv6 only.
#[derive(Default)]
struct Used {
    choice: Choice,
    prefixes: Vec<Prefix>,
    /// Prefix that its path uses, and the preferred one, as of the last change of paths.
    applied: [Option<Prefix>; 2],
}

impl Used {
    fn wanted(&self) -> [Option<Prefix>; 2] {
        [self.choice.prefix(), self.prefixes.first().copied()]
    }
}

impl Nat64 {
    pub(super) fn start() -> Self {
        Self {
            search: nat64::Nat64::start(),
            networks: BTreeMap::new(),
        }
    }

    /// Waits for the next event. Cancel safe.
    pub(super) async fn next(&mut self) -> nat64::News {
        self.search.next().await
    }

    /// Returns whether a network is known to translate.
    pub(super) fn is_translating(&self, name: &str) -> bool {
        let used = self.networks.get(name);
        used.is_some_and(|used| !used.prefixes.is_empty())
    }

    /// Returns the addresses of the hub in use to try over a network, and the prefix for addresses
    /// of IPv4.
    pub(super) fn to_hub(&self, name: &str, addresses: &[SocketAddr]) -> (Vec<SocketAddr>, Option<Prefix>) {
        let Some(used) = self.networks.get(name) else {
            return (addresses.to_vec(), None);
        };
        match used.wanted() {
            [Some(prefix), _] => (of_ipv4(addresses), Some(prefix)),
            [None, preferred] => (addresses.to_vec(), preferred),
        }
    }

    /// Returns the same for a hub that is not in use.
    pub(super) fn to_other_hub(
        &self,
        name: &str,
        addresses: &[SocketAddr],
    ) -> (Vec<SocketAddr>, Option<Prefix>) {
        let used = self.networks.get(name);
        match used.and_then(|used| used.prefixes.first().copied()) {
            Some(prefix) if !has_ipv6(addresses) => (of_ipv4(addresses), Some(prefix)),
            preferred => (addresses.to_vec(), preferred),
        }
    }
}

impl Client {
    /// Follows networks, prefixes and paths. Must be called after each event.
    pub(super) fn see_to_nat64(&mut self) {
        let is_needed = self.hubs.has_ipv4();
        let is_ipv6_only = |network: &&Network| network.carries(true) && !network.carries(false);
        let all = self.seen.iter().filter(is_ipv6_only);
        let searched = all.filter(|network| is_needed && self.uses(&network.name));
        let searched: Vec<_> = searched.cloned().collect();
        self.search_prefixes(&searched);
        let without = self.update_choices(&searched);
        for network in searched {
            self.apply_choice(&network);
        }
        // These networks have IPv4 now, or the hub has no address of IPv4 any more.
        for name in without {
            let network = self.seen.iter().find(|network| network.name == name).cloned();
            if let Some(network) = network.filter(|network| self.uses(&network.name)) {
                self.lead_over(&network);
                self.lead_second_over(&network);
            }
        }
    }

    fn search_prefixes(&mut self, searched: &[Network]) {
        let now = self.now();
        self.nat64.search.follow(searched.iter(), now);
        let (config, leases) = (&self.config, self.dhcp.as_ref().map(Dhcp::view));
        let settings = |name: &str| (config.network(name).dns, leases.cloned());
        self.nat64.search.poll(settings, now);
    }

    /// Updates the choices. Returns the other networks whose path still uses a prefix.
    fn update_choices(&mut self, searched: &[Network]) -> Vec<String> {
        let now = self.now();
        let mut before = std::mem::take(&mut self.nat64.networks);
        let has_ipv6 = has_ipv6(&self.hubs.current().addresses);
        for network in searched {
            let mut used = before.remove(&network.name).unwrap_or_default();
            used.prefixes = self.nat64.search.prefixes(network.index);
            used.choice.set_candidates(has_ipv6, &used.prefixes, now);
            let id = self.driver.networks.by_name(&network.name);
            let works = id.is_some_and(|id| self.answers_over(id));
            used.choice.handle_path(works, now);
            self.nat64.networks.insert(network.name.clone(), used);
        }
        let left = before.into_iter().filter(|(_, used)| used.applied[0].is_some());
        left.map(|(name, _)| name).collect()
    }

    /// Moves a network's paths if the choice has changed.
    fn apply_choice(&mut self, network: &Network) {
        let used = self.nat64.networks.get_mut(&network.name);
        let Some(used) = used.filter(|used| used.wanted() != used.applied) else {
            return;
        };
        let [prefix, preferred] = used.wanted();
        let [before, _] = std::mem::replace(&mut used.applied, [prefix, preferred]);
        if prefix != before {
            self.lead_over(network);
        } else if let Some(id) = self.driver.networks.by_name(&network.name)
            && let Some(attached) = self.driver.networks.attached.get_mut(&id)
            && attached.translation().is_none()
        {
            attached.nat64 = preferred;
        }
        self.lead_second_over(network);
    }

    pub(super) fn on_nat64(&mut self, news: nat64::News) {
        let now = self.now();
        self.nat64.search.handle_news(news, now);
    }

    /// Returns when [`Self::see_to_nat64`] has an effect, if no other event occurs.
    pub(super) fn nat64_due(&self) -> Option<tokio::time::Instant> {
        let choices = self.nat64.networks.values();
        let choices = choices.filter_map(|used| used.choice.poll_timeout());
        let due = choices.chain(self.nat64.search.poll_timeout()).min()?;
        Some(self.driver.at(due))
    }

    /// Returns whether the hub answers over a network, by UDP or by TLS.
    fn answers_over(&self, id: NetworkId) -> bool {
        let is_active = |id: NetworkId| {
            let attached = self.driver.networks.attached.get(&id);
            attached.is_some_and(|attached| attached.state == Some(PathState::Active))
        };
        let mut paths = [Some(id), self.fallback.twin(id)].into_iter().flatten();
        paths.any(|id| is_active(id) || self.driver.is_line_over(id))
    }

    /// Changes a network's path to the address that is chosen now.
    fn lead_over(&mut self, network: &Network) {
        if let Some(id) = self.driver.networks.by_name(&network.name) {
            self.remove_network(id);
        }
        if let Err(error) = self.add_network(network.clone()) {
            let error = format!("{error:#}");
            tracing::warn!(network = network.name, error, "network not usable");
        }
    }

    /// Does the same for the secondary session, unless its hub is reached at its own address.
    fn lead_second_over(&mut self, network: &Network) {
        let Some(second) = &self.second else { return };
        let networks = &second.driver().networks;
        let attached = networks.by_name(&network.name).map(|id| &networks.attached[&id]);
        if attached.is_none_or(|attached| attached.translation().is_some()) {
            self.lead_second(&netlink::Change::Removed(network.name.clone()));
            self.lead_second(&netlink::Change::Added(network.clone()));
        }
    }
}

/// Returns whether a hub has an IPv6 address of its own.
fn has_ipv6(addresses: &[SocketAddr]) -> bool {
    let mut addresses = addresses.iter();
    addresses.any(|address| address.is_ipv6() && !is_made_by_translator(address))
}

fn of_ipv4(addresses: &[SocketAddr]) -> Vec<SocketAddr> {
    let v4 = addresses.iter().filter(|address| address.is_ipv4());
    v4.copied().collect()
}

/// Orders the addresses of a name: addresses that the resolver of one network has made for its
/// translator (DNS64) are the last, and the IPv4 address in them, which other networks need, is
/// before them.
pub(super) fn with_own_addresses(mut found: Vec<SocketAddr>) -> Vec<SocketAddr> {
    let in_them = found
        .iter()
        .filter_map(|address| WELL_KNOWN_PREFIX.original(*address));
    let in_them: Vec<_> = in_them.collect();
    found.extend(in_them);
    found.sort_by_key(is_made_by_translator);
    let mut seen = std::collections::BTreeSet::new();
    found.retain(|address| seen.insert(*address));
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_of_dns64_do_not_hide_those_of_the_hub() {
        let address = |text: &&str| -> SocketAddr { text.parse().expect(text) };
        let of = |texts: &[&str]| {
            let found = with_own_addresses(texts.iter().map(address).collect());
            found.iter().map(ToString::to_string).collect::<Vec<_>>()
        };
        let (v4, made) = ("198.51.100.1:443", "[64:ff9b::c633:6401]:443");
        assert_eq!(of(&[made]), [v4, made], "only IPv6 was asked for");
        assert_eq!(
            of(&[made, v4, "[2001:db8::1]:443"]),
            [v4, "[2001:db8::1]:443", made]
        );
        assert!(!has_ipv6(&[address(&v4), address(&made)]) && has_ipv6(&[address(&"[2001:db8::1]:1")]));
    }
}
