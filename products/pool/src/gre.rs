//! Members without Hawser: an uplink for each member in the configuration, through the kernel's own
//! GRE on the member.
//!
//! Such a member does not announce itself, so only a path shows whether it works. Its uplink is
//! therefore offered repeatedly to the registry of neighbours, for [`TRIED_FOR`] each time and
//! while it works; an unresponsive uplink is excluded for a time, like a neighbour's.
//!
//! Each member has its own address of the hub inside GRE, by which the kernel selects the
//! member's route.

use std::collections::{BTreeMap, VecDeque};
use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use hawser_config::{GreMember, ports};
use hawser_control::client::neighbour_uplinks::{Gateway, NeighbourUplink, Wish};
use hawser_proto::path;
use hawser_proto::pool::monitor::{Beacon, Event, Measured, MemberId, Offer, Registry, Say, State, UNCAPPED};
use hawser_units::{Instant, NetworkId, PathId};
use serde_json::{Value, json};

use crate::{measured_status, merge};

/// State of members without Hawser.
pub(crate) struct GreMembers {
    routes: BTreeMap<MemberId, MemberRoute>,
    /// Networks of uplinks that are no longer configured.
    leaving: VecDeque<NetworkId>,
    next: u64,
    sequence: u64,
    registry: Registry,
    hub: Option<SocketAddr>,
}

struct MemberRoute {
    member: GreMember,
    /// Address of the hub through this member.
    at: Ipv4Addr,
    network: Option<NetworkId>,
    has_worked: bool,
}

impl GreMembers {
    pub(crate) fn new() -> Self {
        Self {
            routes: BTreeMap::new(),
            leaving: VecDeque::new(),
            next: FIRST,
            sequence: 0,
            registry: Registry::new(),
            hub: None,
        }
    }

    /// Sets the configured members.
    pub(crate) fn configure(&mut self, members: &[GreMember]) {
        let leaving = &mut self.leaving;
        self.routes.retain(|_, route| {
            let stays = members.contains(&route.member);
            if !stays {
                leaving.extend(route.network.take());
            }
            stays
        });
        for member in members.iter().take(MAX) {
            if self.routes.values().any(|route| route.member == *member) {
                continue;
            }
            let used: Vec<_> = self.routes.values().map(|route| route.at).collect();
            let Some(at) = free(member, &used) else {
                tracing::warn!(
                    network = member.name,
                    "its network under [[pool.gre]] has no free address"
                );
                continue;
            };
            let route = MemberRoute {
                member: member.clone(),
                at,
                network: None,
                has_worked: false,
            };
            self.routes.insert(MemberId(self.next), route);
            self.next += 1;
        }
    }

    /// Returns whether members are configured.
    pub(crate) fn is_used(&self) -> bool {
        !self.routes.is_empty()
    }

    /// Offers the uplinks that are to be tried, and those that work.
    pub(crate) fn handle_timeout(&mut self, hubs: &[SocketAddr], now: Instant) {
        self.hub = hubs.iter().find(|hub| hub.is_ipv4()).or(hubs.first()).copied();
        if self.hub.is_some() {
            for member in self.routes.keys() {
                let is_tried = self.registry.state(*member) == Some(State::Offered);
                if !is_tried {
                    self.sequence += 1;
                    let beacon = Beacon {
                        member: *member,
                        sequence: self.sequence,
                        say: Say::Announce(OFFER, TRIED_FOR),
                    };
                    self.registry.handle_beacon(&beacon, now);
                }
            }
        }
        self.registry.handle_timeout(now);
    }

    pub(crate) fn poll(&mut self) -> Option<Wish> {
        if let Some(network) = self.leaving.pop_front() {
            return Some(Wish::Leave(network));
        }
        while let Some(event) = self.registry.poll_event() {
            let wish = match event {
                Event::Offered(member) => self.take(member),
                Event::Left(member, _) => {
                    let route = self.routes.get_mut(&member);
                    route.and_then(|route| route.network.take()).map(Wish::Leave)
                }
                Event::Joined(member) => {
                    if let Some(route) = self.routes.get_mut(&member) {
                        route.has_worked = true;
                        tracing::info!(network = route.member.name, "a member's network is in use");
                    }
                    None
                }
                Event::Changed(_) => None,
            };
            if wish.is_some() {
                return wish;
            }
        }
        None
    }

    fn take(&self, member: MemberId) -> Option<Wish> {
        let (route, hub) = (self.routes.get(&member)?, self.hub?);
        Some(Wish::Take(NeighbourUplink {
            member,
            label: route.member.name.clone(),
            relay: (route.at, ports::GRE).into(),
            hub,
            mtu: MTU,
            cap_bps: 0,
            gateway: Some(Gateway {
                member: route.member.member,
                network: (route.member.network.0, route.member.network.1),
            }),
        }))
    }

    pub(crate) fn handle_taken(&mut self, member: MemberId, network: NetworkId) {
        if let Some(route) = self.routes.get_mut(&member) {
            route.network = Some(network);
        }
    }

    pub(crate) fn handle_path(&mut self, network: NetworkId, path: PathId, state: path::State, now: Instant) {
        let mut routes = self.routes.iter();
        if let Some((member, _)) = routes.find(|(_, route)| route.network == Some(network)) {
            self.registry.handle_path(*member, path, state, now);
        }
    }

    /// Records measurements of the path to that address of the hub inside GRE.
    pub(crate) fn handle_measured(&mut self, remote: SocketAddr, measured: Measured, now: Instant) {
        let mut routes = self.routes.iter();
        let is_it = |route: &MemberRoute| remote == (route.at, ports::GRE).into();
        if let Some((member, _)) = routes.find(|(_, route)| is_it(route)) {
            self.registry.handle_measured(*member, measured, now);
        }
    }

    /// Returns whether an uplink is in use.
    pub(crate) fn is_taken(&self) -> bool {
        self.routes.values().any(|route| route.network.is_some())
    }

    /// Ends all uplinks, which relay to the former hub.
    pub(crate) fn handle_hub_changed(&mut self) {
        self.registry = Registry::new();
        let networks = self.routes.values_mut().filter_map(|route| route.network.take());
        self.leaving.extend(networks);
    }

    pub(crate) fn status(&self) -> Vec<Value> {
        let routes = self.routes.iter().map(|(member, route)| {
            let state = self.registry.state(*member);
            let why = match (state, route.has_worked) {
                (Some(State::Active | State::Suspect), _) => None,
                (_, true) => Some(SILENT),
                (_, false) => Some(NEVER),
            };
            let mut status = measured_status(self.registry.measured(*member));
            let known = json!({
                "name": route.member.name,
                "at": route.member.member,
                "state": state.map_or("gone", crate::state_text),
                "why": why,
                "hub": route.at,
            });
            merge(&mut status, known);
            status
        });
        routes.collect()
    }
}

/// Returns the first address of the network that is not in use.
fn free(member: &GreMember, used: &[Ipv4Addr]) -> Option<Ipv4Addr> {
    let first = member.network.0.to_bits();
    let last = first | (u32::MAX >> member.network.1);
    let mut hosts = (first + 1..last).map(Ipv4Addr::from_bits).take(MAX + 1);
    hosts.find(|at| !used.contains(at))
}

/// First number of these members, above those of all neighbours. Source: our choice; neighbours'
/// numbers count from 0, so the upper 16 bits stay free.
const FIRST: u64 = 1 << 48;
/// Members without Hawser. Source: our choice; each needs an address, a route and a path.
const MAX: usize = 16;
/// MTU inside GRE: 1,500 bytes (RFC 894) less an IPv4 header and a GRE header with key, for an
/// ordinary route to the member. Units: bytes.
const MTU: u16 = 1_500 - 20 - 8;
/// Offer of a member without announcements.
const OFFER: Offer = Offer {
    rate: UNCAPPED,
    cost: 0,
};
/// Time that a path needs to open or to be declared dead, after which the routes are set again.
/// Source: our choice, longer than `VALIDATE_FOR` of `core/proto/src/path` and several attempts; a
/// shorter one removes members on slow lines.
const TRIED_FOR: Duration = Duration::from_secs(20);
const SILENT: &str = "it no longer answers";
const NEVER: &str = "no answer: its address may be behind NAT, it may be missing under [gre] in hub.toml, or GRE (IP protocol 47) may be blocked";

#[cfg(test)]
mod tests {
    use super::*;

    fn member(name: &str, last: u8) -> GreMember {
        let text = format!("name = {name:?}\nmember = \"192.168.1.{last}\"\nnetwork = \"10.47.47.0/29\"");
        toml::from_str(&text).unwrap()
    }

    const PATH: PathId = PathId(1);

    fn taken(members: &mut GreMembers, network: u32) -> Option<SocketAddr> {
        match members.poll()? {
            Wish::Take(route) => {
                members.handle_taken(route.member, NetworkId(network));
                Some(route.relay)
            }
            Wish::Leave(_) | Wish::HaveSigned { .. } => None,
        }
    }

    #[test]
    fn each_has_an_address_of_its_own_and_a_network_has_no_more_than_it_has() {
        let mut members = GreMembers::new();
        let all: Vec<_> = (0..8).map(|last| member(&format!("m{last}"), last)).collect();
        members.configure(&all);
        let at = |members: &GreMembers| -> Vec<u8> {
            members
                .routes
                .values()
                .map(|route| route.at.octets()[3])
                .collect()
        };
        assert_eq!(at(&members), [1, 2, 3, 4, 5, 6]);
        // Remaining members keep their address, and free addresses are reused.
        members.configure(&all[1..3]);
        members.configure(&all[1..4]);
        assert_eq!(at(&members), [2, 3, 1]);
    }

    #[test]
    fn one_that_does_not_answer_is_tried_anew_and_one_that_falls_silent_stays_out() {
        let mut members = GreMembers::new();
        members.configure(&[member("bob", 7)]);
        let hub = [([203, 0, 113, 1], 443).into()];
        let at = |seconds| Instant::ZERO + Duration::from_secs(seconds);
        members.handle_timeout(&[], at(0));
        assert!(members.poll().is_none(), "no hub is known");
        members.handle_timeout(&hub, at(0));
        assert_eq!(taken(&mut members, 1), Some(([10, 47, 47, 1], ports::GRE).into()));
        assert!(
            members.status()[0]["why"]
                .as_str()
                .unwrap()
                .contains("behind NAT")
        );
        members.handle_timeout(&hub, at(19));
        assert!(members.poll().is_none());
        members.handle_timeout(&hub, at(20));
        assert_eq!(members.poll(), Some(Wish::Leave(NetworkId(1))));
        members.handle_timeout(&hub, at(21));
        assert!(taken(&mut members, 2).is_some());
        members.handle_path(NetworkId(2), PATH, path::State::Active, at(22));
        assert!(members.poll().is_none());
        assert_eq!(members.status()[0]["why"], Value::Null);
        // The member works for longer than the time of an attempt.
        for seconds in 22..60 {
            members.handle_timeout(&hub, at(seconds));
            assert!(members.poll().is_none(), "{seconds}");
        }
        members.handle_path(NetworkId(2), PATH, path::State::Dead, at(60));
        assert_eq!(members.poll(), Some(Wish::Leave(NetworkId(2))));
        members.handle_timeout(&hub, at(61));
        assert!(members.poll().is_none(), "it stays out");
        members.handle_timeout(&hub, at(63));
        assert!(taken(&mut members, 3).is_some());
        members.configure(&[]);
        assert_eq!(members.poll(), Some(Wish::Leave(NetworkId(3))));
    }
}
