//! Members without Hawser: a way out for each that the configuration names, through the kernel's
//! own GRE at the member.
//!
//! Nobody says that such a member is there: its path shows it. So a way out is offered again and
//! again to the registry of neighbours, for [`TRIED_FOR`] each time, and while it works; one that
//! falls silent stays out as a neighbour's does.
//!
//! Each has an address of the hub inside of GRE of its own, which tells the kernel whose way it is.

use std::collections::{BTreeMap, VecDeque};
use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use hawser_config::{GreMember, ports};
use hawser_control::client::ways_out::{Gateway, WayOut, Wish};
use hawser_proto::pool::monitor::{Beacon, Event, Measured, MemberId, Offer, Registry, Say, State};
use hawser_units::{Instant, NetworkId, Rate};
use serde_json::{Value, json};

/// What is known of them.
pub(crate) struct GreMembers {
    ways: BTreeMap<MemberId, Way>,
    /// Of ways that are configured no more.
    leaving: VecDeque<NetworkId>,
    next: u64,
    sequence: u64,
    registry: Registry,
    hub: Option<SocketAddr>,
}

struct Way {
    member: GreMember,
    /// The hub, as it is reached through this member.
    at: Ipv4Addr,
    network: Option<NetworkId>,
    has_worked: bool,
}

impl GreMembers {
    pub(crate) fn new() -> Self {
        Self {
            ways: BTreeMap::new(),
            leaving: VecDeque::new(),
            next: FIRST,
            sequence: 0,
            registry: Registry::new(),
            hub: None,
        }
    }

    /// Takes these into use, and no others.
    pub(crate) fn configure(&mut self, members: &[GreMember]) {
        let leaving = &mut self.leaving;
        self.ways.retain(|_, way| {
            let stays = members.contains(&way.member);
            if !stays {
                leaving.extend(way.network.take());
            }
            stays
        });
        for member in members.iter().take(MOST) {
            if self.ways.values().any(|way| way.member == *member) {
                continue;
            }
            let used: Vec<_> = self.ways.values().map(|way| way.at).collect();
            let Some(at) = free(member, &used) else {
                tracing::warn!(
                    network = member.name,
                    "no address is left in its network under [[pool.gre]]"
                );
                continue;
            };
            let way = Way {
                member: member.clone(),
                at,
                network: None,
                has_worked: false,
            };
            self.ways.insert(MemberId(self.next), way);
            self.next += 1;
        }
    }

    /// Whether there are any.
    pub(crate) fn is_used(&self) -> bool {
        !self.ways.is_empty()
    }

    /// Offers what is to be tried and what works.
    pub(crate) fn handle_timeout(&mut self, hubs: &[SocketAddr], now: Instant) {
        self.hub = hubs.iter().find(|hub| hub.is_ipv4()).or(hubs.first()).copied();
        if self.hub.is_some() {
            for member in self.ways.keys() {
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
                    let way = self.ways.get_mut(&member);
                    way.and_then(|way| way.network.take()).map(Wish::Leave)
                }
                Event::Joined(member) => {
                    if let Some(way) = self.ways.get_mut(&member) {
                        way.has_worked = true;
                        tracing::info!(network = way.member.name, "a member's way out carries packets");
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
        let (way, hub) = (self.ways.get(&member)?, self.hub?);
        Some(Wish::Take(WayOut {
            member,
            label: way.member.name.clone(),
            relay: (way.at, ports::GRE).into(),
            hub,
            mtu: MTU,
            cap_bps: 0,
            gateway: Some(Gateway {
                member: way.member.member,
                network: (way.member.network.0, way.member.network.1),
            }),
        }))
    }

    pub(crate) fn handle_taken(&mut self, member: MemberId, network: NetworkId) {
        if let Some(way) = self.ways.get_mut(&member) {
            way.network = Some(network);
        }
    }

    pub(crate) fn handle_path(&mut self, network: NetworkId, measured: Measured, now: Instant) {
        let mut ways = self.ways.iter();
        if let Some((member, _)) = ways.find(|(_, way)| way.network == Some(network)) {
            self.registry.handle_measured(*member, measured, now);
        }
    }

    /// What was in use leads to the hub that was.
    pub(crate) fn handle_hub_changed(&mut self) {
        self.registry = Registry::new();
        let networks = self.ways.values_mut().filter_map(|way| way.network.take());
        self.leaving.extend(networks);
    }

    pub(crate) fn status(&self) -> Vec<Value> {
        let ways = self.ways.iter().map(|(member, way)| {
            let state = self.registry.state(*member);
            let why = match (state, way.has_worked) {
                (Some(State::Active | State::Suspect), _) => None,
                (_, true) => Some(SILENT),
                (_, false) => Some(NEVER),
            };
            json!({
                "name": way.member.name,
                "at": way.member.member,
                "state": state.map_or("gone", crate::shown),
                "why": why,
                "hub": way.at,
            })
        });
        ways.collect()
    }
}

/// The first address of the network that no other way has.
fn free(member: &GreMember, used: &[Ipv4Addr]) -> Option<Ipv4Addr> {
    let first = member.network.0.to_bits();
    let last = first | (u32::MAX >> member.network.1);
    let mut hosts = (first + 1..last).map(Ipv4Addr::from_bits).take(MOST + 1);
    hosts.find(|at| !used.contains(at))
}

/// Their numbers begin behind those of all neighbours.
const FIRST: u64 = 1 << 48;
/// Members without Hawser.
const MOST: usize = 16;
/// 1,500 bytes (RFC 894) less an IPv4 header and a header of GRE with its key: what fits where the
/// way of the member is an ordinary one. Units: bytes.
const MTU: u16 = 1_500 - 20 - 8;
/// Nobody says what a member gives, nor that it goes on.
const OFFER: Offer = Offer {
    rate: Rate::ZERO,
    cost: 0,
};
/// As long as a path needs to come up or to be found dead, after which the routes are set anew.
const TRIED_FOR: Duration = Duration::from_secs(20);
const SILENT: &str = "it has fallen silent";
const NEVER: &str = "no answer: its address may not be reachable without NAT, or not be named under [gre] of the hub, or GRE (protocol 47) may be blocked";

#[cfg(test)]
mod tests {
    use super::*;
    use hawser_proto::path;
    use hawser_units::PathId;

    fn member(name: &str, last: u8) -> GreMember {
        let text = format!("name = {name:?}\nmember = \"192.168.1.{last}\"\nnetwork = \"10.47.47.0/29\"");
        toml::from_str(&text).unwrap()
    }

    fn measured(state: path::State) -> Measured {
        Measured {
            path: PathId(1),
            state,
            rate: Rate::ZERO,
            loss: 0.0,
            delay: Duration::ZERO,
        }
    }

    fn taken(members: &mut GreMembers, network: u32) -> Option<SocketAddr> {
        match members.poll()? {
            Wish::Take(way) => {
                members.handle_taken(way.member, NetworkId(network));
                Some(way.relay)
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
            members.ways.values().map(|way| way.at.octets()[3]).collect()
        };
        assert_eq!(at(&members), [1, 2, 3, 4, 5, 6]);
        // Those that stay keep theirs, and what is free is used again.
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
                .contains("without NAT")
        );
        members.handle_timeout(&hub, at(19));
        assert!(members.poll().is_none());
        members.handle_timeout(&hub, at(20));
        assert_eq!(members.poll(), Some(Wish::Leave(NetworkId(1))));
        members.handle_timeout(&hub, at(21));
        assert!(taken(&mut members, 2).is_some());
        members.handle_path(NetworkId(2), measured(path::State::Active), at(22));
        assert!(members.poll().is_none());
        assert_eq!(members.status()[0]["why"], Value::Null);
        // It works for longer than it was tried.
        for seconds in 22..60 {
            members.handle_timeout(&hub, at(seconds));
            assert!(members.poll().is_none(), "{seconds}");
        }
        members.handle_path(NetworkId(2), measured(path::State::Dead), at(60));
        assert_eq!(members.poll(), Some(Wish::Leave(NetworkId(2))));
        members.handle_timeout(&hub, at(61));
        assert!(members.poll().is_none(), "it stays out");
        members.handle_timeout(&hub, at(63));
        assert!(taken(&mut members, 3).is_some());
        members.configure(&[]);
        assert_eq!(members.poll(), Some(Wish::Leave(NetworkId(3))));
    }
}
