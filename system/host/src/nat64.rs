//! Translators of networks with IPv6 only (NAT64): receives the announcements of their routers, and
//! asks their resolvers. [`Discovery`] decides when.
//!
//! Limitation: announcements are received only where the kernel processes router advertisements
//! (`accept_ra`); where a service does that instead, the resolvers are the only source.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::{IpAddr, Ipv6Addr};

use hawser_linux::advertised::{Advertised, RouterOption, solicit};
use hawser_linux::netlink::Network;
use hawser_steer::nat64::{Discovery, Request};
use hawser_units::{Instant, Net};
use hawser_wire::nat64::{Announced, KNOWN_NAME, Prefix, prefixes_of};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use crate::dhcp;
use crate::dns::{NameServers, NetworkAccess};

/// Prefixes of all followed networks.
pub struct Nat64 {
    /// Interfaces by their index: a router may announce a prefix before the network has an address.
    interfaces: BTreeMap<u32, Interface>,
    advertised: Option<Advertised>,
    answers: mpsc::Sender<Answered>,
    incoming: mpsc::Receiver<Answered>,
}

/// An interface, and the network in which it is.
#[derive(Default)]
struct Interface {
    discovery: Discovery,
    network: Option<Network>,
    query: Option<JoinHandle<()>>,
}

impl Drop for Interface {
    fn drop(&mut self) {
        self.end_query();
    }
}

impl Interface {
    fn end_query(&mut self) {
        if let Some(query) = self.query.take() {
            query.abort();
        }
    }
}

/// End of a query: the addresses with their lifetimes in seconds, or `None` without an answer.
struct Answered {
    index: u32,
    query: u64,
    addresses: Option<Vec<(Ipv6Addr, u32)>>,
}

/// Event of [`Nat64::next`].
pub struct News(Heard);

enum Heard {
    Options(Vec<(u32, Vec<u8>)>),
    Answer(Answered),
}

impl Nat64 {
    /// Starts to listen; must be called within a tokio runtime.
    #[must_use]
    pub fn start() -> Self {
        let listening = Advertised::listen(RouterOption::Pref64);
        let advertised = listening
            .inspect_err(|error| tracing::debug!(%error, "prefixes of translators are not received"))
            .ok();
        let (answers, incoming) = mpsc::channel(ANSWERS);
        Self {
            interfaces: BTreeMap::new(),
            advertised,
            answers,
            incoming,
        }
    }

    /// Waits for the next event. Cancel safe.
    pub async fn next(&mut self) -> News {
        tokio::select! {
            options = hear(&mut self.advertised) => News(Heard::Options(options)),
            // This value holds a sender, so the channel never closes.
            Some(answered) = self.incoming.recv() => News(Heard::Answer(answered)),
        }
    }

    /// Handles an event.
    pub fn handle_news(&mut self, news: News, now: Instant) {
        match news.0 {
            Heard::Options(options) => {
                for (index, value) in options {
                    let Some(announced) = Announced::parse(&value) else {
                        tracing::debug!(index, "a router announces an impossible translator");
                        continue;
                    };
                    let interface = self.interfaces.entry(index).or_default();
                    interface.discovery.handle_announced(announced, now);
                }
            }
            Heard::Answer(answered) => {
                if let Some(interface) = self.interfaces.get_mut(&answered.index) {
                    let addresses = answered.addresses.as_deref();
                    interface.discovery.handle_answer(answered.query, addresses, now);
                }
            }
        }
    }

    /// Searches the prefixes of these networks, and of no others.
    pub fn follow<'a>(&mut self, networks: impl Iterator<Item = &'a Network> + Clone, now: Instant) {
        for (index, interface) in &mut self.interfaces {
            let is_left = networks.clone().all(|network| network.index != *index);
            if is_left && interface.network.take().is_some() {
                interface.end_query();
                interface.discovery.handle_detached();
            }
            interface.discovery.handle_timeout(now);
        }
        self.interfaces
            .retain(|_, interface| !interface.discovery.is_idle());
        for network in networks {
            let interface = self.interfaces.entry(network.index).or_default();
            let before = interface.network.replace(network.clone());
            if before.is_none_or(|before| !is_same(&before, network)) {
                interface.end_query();
                interface.discovery.handle_attached(now);
            }
        }
    }

    /// Executes due actions. `settings` returns the resolvers that the configuration names for a
    /// network, and the leases.
    pub fn poll(&mut self, settings: impl Fn(&str) -> (Vec<IpAddr>, Option<dhcp::View>), now: Instant) {
        for (index, interface) in &mut self.interfaces {
            let Some(network) = &interface.network else {
                continue;
            };
            while let Some(request) = interface.discovery.poll_transmit(now) {
                match request {
                    Request::Solicit => {
                        if let Err(error) = solicit(&network.name, *index) {
                            tracing::debug!(network = network.name, %error, "its routers are not asked");
                        }
                    }
                    Request::Resolve(query) => {
                        let (name, answers) = (network.name.clone(), self.answers.clone());
                        let ((set, leases), index) = (settings(&name), *index);
                        interface.query = Some(hawser_linux::tasks::spawn(async move {
                            let services = NameServers::read().await;
                            let known = dhcp::known(set, leases.as_ref(), &services, (&name, index));
                            let access = NetworkAccess {
                                number: 0,
                                device: name,
                                index,
                                servers: known.addresses,
                            };
                            let addresses = known_addresses(&access).await.ok();
                            let answered = Answered {
                                index,
                                query,
                                addresses,
                            };
                            let _ = answers.send(answered).await;
                        }));
                    }
                }
            }
        }
    }

    /// Returns when [`Self::follow`] or [`Self::poll`] has an effect without another event.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Instant> {
        let all = self.interfaces.values();
        all.filter_map(|interface| interface.discovery.poll_timeout())
            .min()
    }

    /// Returns the prefixes of a network, the preferred one first.
    #[must_use]
    pub fn prefixes(&self, index: u32) -> Vec<Prefix> {
        let interface = self.interfaces.get(&index);
        interface.map_or_else(Vec::new, |interface| interface.discovery.prefixes())
    }
}

/// Asks the resolvers of a network once for its prefixes.
///
/// # Errors
/// None of them answers.
pub async fn resolve_once(access: &NetworkAccess) -> io::Result<Vec<Prefix>> {
    let addresses = known_addresses(access).await?.into_iter();
    let addresses: Vec<_> = addresses.map(|(address, _)| address).collect();
    Ok(prefixes_of(&addresses))
}

/// Returns the IPv6 addresses of the known name with their lifetimes in seconds.
async fn known_addresses(access: &NetworkAccess) -> io::Result<Vec<(Ipv6Addr, u32)>> {
    let answer = access.resolve(KNOWN_NAME, true).await?;
    let addresses = answer.addresses.into_iter();
    let addresses = addresses.filter_map(|(address, seconds)| match address {
        IpAddr::V6(v6) => Some((v6, seconds)),
        IpAddr::V4(_) => None,
    });
    Ok(addresses.collect())
}

/// Returns whether the interface is still in the same network: it has the same router, and an
/// address of the same subnet. Temporary addresses (RFC 8981) change within the subnet.
fn is_same(before: &Network, now: &Network) -> bool {
    let (old, new) = (subnets(before), subnets(now));
    before.v6 == now.v6 && (old == new || !old.is_disjoint(&new))
}

fn subnets(network: &Network) -> BTreeSet<IpAddr> {
    let v6 = network.addresses.iter().filter(|(address, _)| address.is_ipv6());
    v6.map(|(address, prefix)| Net::new(*address, *prefix).first())
        .collect()
}

/// Waits for the next announcements; forever if they cannot be received.
async fn hear(advertised: &mut Option<Advertised>) -> Vec<(u32, Vec<u8>)> {
    if let Some(listening) = advertised {
        match listening.next().await {
            Ok(heard) => return heard,
            Err(error) => {
                tracing::debug!(%error, "prefixes of translators are not received any more");
                *advertised = None;
            }
        }
    }
    std::future::pending().await
}

/// Capacity of the queue of answers; others wait. Source: one query runs for each network, and a
/// machine has fewer networks.
const ANSWERS: usize = 16;

#[cfg(test)]
mod tests {
    use hawser_linux::netlink::NextHop;

    use super::*;

    fn network(addresses: &[&str], router: &str) -> Network {
        let address = |text: &&str| (text.parse().expect("an address"), 64);
        Network {
            name: "wlan0".to_owned(),
            index: 3,
            mtu: 1500,
            addresses: addresses.iter().map(address).collect(),
            v4: None,
            v6: Some(NextHop::Gateway(router.parse().expect("an address"))),
        }
    }

    #[tokio::test]
    async fn prefixes_are_those_of_the_network_in_which_the_interface_is() {
        let mut nat64 = Nat64::start();
        let at = |seconds| Instant::ZERO + std::time::Duration::from_secs(seconds);
        let value = [&[7, 8, 0, 0x64, 0xff, 0x9b][..], &[0; 8]].concat();
        let options = |value: &[u8]| News(Heard::Options(vec![(3, value.to_vec())]));
        nat64.handle_news(options(&value), at(0));
        nat64.handle_news(options(b"short"), at(0));
        let home = network(&["2001:db8::7"], "fe80::1");
        nat64.follow([&home].into_iter(), at(1));
        let well_known = || {
            nat64
                .prefixes(3)
                .iter()
                .map(ToString::to_string)
                .collect::<Vec<_>>()
        };
        assert_eq!(well_known(), ["64:ff9b::/96"]);
        // Another temporary address.
        let home = network(&["2001:db8::8", "2001:db8::7"], "fe80::1");
        nat64.follow([&home].into_iter(), at(600));
        assert_eq!(nat64.prefixes(3).len(), 1);
        for other in [
            network(&["2001:db8:1::7"], "fe80::1"),
            network(&["2001:db8:1::7"], "fe80::2"),
        ] {
            nat64.handle_news(options(&value), at(600));
            nat64.follow([&other].into_iter(), at(610));
            assert_eq!(nat64.prefixes(3), [], "{other:?}");
        }
        nat64.handle_news(options(&value), at(611));
        nat64.follow([].into_iter(), at(612));
        assert!(nat64.prefixes(3).is_empty() && nat64.poll_timeout().is_none());
    }
}
