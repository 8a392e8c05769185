//! Endpoints of multipath TCP: which addresses the kernel's path manager uses when networks appear,
//! disappear, or change their role.
//!
//! It starts empty. Each network offers its addresses and its [`Part`]; one address of each family
//! is used. A removed address ends its subflows; an added address starts subflows in existing
//! connections too. The number of endpoints is limited: first each network gets one address, in the
//! given order, then networks with two families get the second. While no network is alive, the
//! endpoints stay as they are, because a connection without any subflow ends.
//!
//! ```text
//!   offers --> wanted endpoints --> steps: remove, change, add (in this order, so that room is there)
//! ```
//!
//! Source: RFC 8684 sections 3.2 (starting subflows), 3.3.8 (backup), 3.4.2 (removing addresses).

use std::collections::{BTreeMap, VecDeque};
use std::net::IpAddr;

use hawser_units::{Duration, NetworkId};

/// Role of a network for multipath connections.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Part {
    /// Regular: it transfers as much as it can.
    #[default]
    Equal,
    /// Backup: it transfers only while no regular network is left.
    Backup,
    /// Unused.
    None,
}

/// Offer of a network.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Offer {
    /// Network that makes the offer.
    pub network: NetworkId,
    /// Addresses, at most one for each family.
    pub addresses: Vec<IpAddr>,
    /// Role of the network.
    pub part: Part,
    /// Network may take traffic at this moment.
    pub is_alive: bool,
    /// Round-trip time to the network's gateway.
    pub round_trip: Option<Duration>,
}

/// Existing endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Endpoint {
    /// Network of the address.
    pub network: NetworkId,
    /// Backup endpoint.
    pub is_backup: bool,
}

/// Command for the path manager.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Remove the endpoint and end its subflows.
    Remove(IpAddr),
    /// Change the role of the endpoint.
    Change(IpAddr, Endpoint),
    /// Add the endpoint and start subflows from it.
    Add(IpAddr, Endpoint),
}

/// Computes the endpoints and the steps from one set to the next.
///
/// Cost: O(networks) a change; memory bounded by `room`.
#[derive(Debug)]
pub struct Endpoints {
    room: usize,
    present: BTreeMap<IpAddr, Endpoint>,
    steps: VecDeque<Step>,
    /// First endpoints for IPv4 and IPv6.
    firsts: [Option<(NetworkId, IpAddr)>; 2],
}

impl Endpoints {
    /// Creates a machine without endpoints; `room` is the maximum number at once.
    #[must_use]
    pub fn new(room: usize) -> Self {
        Self {
            room,
            present: BTreeMap::new(),
            steps: VecDeque::new(),
            firsts: [None; 2],
        }
    }

    /// Returns the endpoints that exist once all steps are done.
    #[must_use]
    pub fn present(&self) -> &BTreeMap<IpAddr, Endpoint> {
        &self.present
    }

    /// Returns the address for the first subflow of connections, for IPv4 and IPv6: that of the
    /// regular network with the shortest round trip. Another network replaces it only if its round
    /// trip is shorter by a quarter.
    #[must_use]
    pub fn firsts(&self) -> [Option<(NetworkId, IpAddr)>; 2] {
        self.firsts
    }

    /// Sets the present networks, in the order in which they get endpoints.
    pub fn handle_networks(&mut self, offers: &[Offer]) {
        let has_part = |offer: &&Offer| offer.part != Part::None;
        let mut may: Vec<_> = offers
            .iter()
            .filter(has_part)
            .filter(|offer| offer.is_alive)
            .collect();
        if may.is_empty() {
            let is_there = |offer: &&Offer| offer.addresses.iter().any(|a| self.present.contains_key(a));
            may = offers.iter().filter(has_part).filter(is_there).collect();
        }
        let wanted = wanted(&may, self.room);
        for (family, first) in self.firsts.iter_mut().enumerate() {
            *first = choose_first(&may, &wanted, *first, family == 1);
        }
        let gone: Vec<_> = self
            .present
            .keys()
            .filter(|address| !wanted.contains_key(address))
            .copied()
            .collect();
        self.steps.extend(gone.into_iter().map(Step::Remove));
        for (address, endpoint) in &wanted {
            let step = match self.present.get(address) {
                Some(before) if before == endpoint => continue,
                Some(before) if before.network == endpoint.network => Step::Change(*address, *endpoint),
                // The address has moved to another network.
                Some(_) => {
                    self.steps.push_back(Step::Remove(*address));
                    continue;
                }
                None => continue,
            };
            self.steps.push_back(step);
        }
        for (address, endpoint) in &wanted {
            if self
                .present
                .get(address)
                .is_none_or(|before| before.network != endpoint.network)
            {
                self.steps.push_back(Step::Add(*address, *endpoint));
            }
        }
        self.present = wanted;
    }

    /// Handles a rejected step: the address is tried again at the next
    /// [`handle_networks`](Self::handle_networks).
    pub fn handle_refusal(&mut self, address: IpAddr) {
        self.present.remove(&address);
    }

    /// Returns the next command for the path manager.
    pub fn poll_transmit(&mut self) -> Option<Step> {
        self.steps.pop_front()
    }
}

fn choose_first(
    offers: &[&Offer],
    wanted: &BTreeMap<IpAddr, Endpoint>,
    before: Option<(NetworkId, IpAddr)>,
    ipv6: bool,
) -> Option<(NetworkId, IpAddr)> {
    let mut ways = Vec::new();
    for offer in offers {
        let fits = |address: &&IpAddr| {
            address.is_ipv6() == ipv6 && wanted.get(address).is_some_and(|e| e.network == offer.network)
        };
        if let Some(address) = offer.addresses.iter().find(fits) {
            let rank = (
                offer.part == Part::Backup,
                offer.round_trip.unwrap_or(Duration::MAX),
            );
            ways.push((rank, (offer.network, *address)));
        }
    }
    let (best, way) = ways.iter().min_by_key(|(rank, _)| *rank)?;
    let is_good_enough =
        |rank: &(bool, Duration)| rank.0 == best.0 && rank.1 <= best.1.saturating_add(best.1 / 4);
    let kept = ways
        .iter()
        .find(|(rank, way)| Some(*way) == before && is_good_enough(rank));
    Some(kept.map_or(*way, |(_, way)| *way))
}

/// Assigns addresses in rounds: a first one of each network, then a second.
fn wanted(offers: &[&Offer], room: usize) -> BTreeMap<IpAddr, Endpoint> {
    let mut wanted = BTreeMap::new();
    for round in 0..2 {
        for offer in offers {
            let Some(address) = offer.addresses.get(round) else {
                continue;
            };
            // The path manager cannot distinguish two networks with the same address; the first one
            // gets the endpoint.
            if wanted.len() < room {
                wanted.entry(*address).or_insert(Endpoint {
                    network: offer.network,
                    is_backup: offer.part == Part::Backup,
                });
            }
        }
    }
    wanted
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn offer(network: u32, part: Part, is_alive: bool, addresses: &[&str]) -> Offer {
        Offer {
            network: NetworkId(network),
            addresses: addresses.iter().map(|text| text.parse().unwrap()).collect(),
            part,
            is_alive,
            round_trip: None,
        }
    }

    fn steps(endpoints: &mut Endpoints) -> Vec<Step> {
        std::iter::from_fn(|| endpoints.poll_transmit()).collect()
    }

    const A: &str = "192.0.2.1";
    const B: &str = "192.0.2.2";

    #[test]
    fn follows_networks_as_they_come_change_and_go() {
        let (a, b): (IpAddr, IpAddr) = (A.parse().unwrap(), B.parse().unwrap());
        let endpoint = |network, is_backup| Endpoint {
            network: NetworkId(network),
            is_backup,
        };
        let mut endpoints = Endpoints::new(8);
        let both = [
            offer(2, Part::Equal, true, &[A]),
            offer(3, Part::Backup, true, &[B]),
        ];
        endpoints.handle_networks(&both);
        assert_eq!(
            steps(&mut endpoints),
            [Step::Add(a, endpoint(2, false)), Step::Add(b, endpoint(3, true))]
        );
        endpoints.handle_networks(&[
            offer(2, Part::Equal, false, &[A]),
            offer(3, Part::Equal, true, &[B]),
        ]);
        assert_eq!(
            steps(&mut endpoints),
            [Step::Remove(a), Step::Change(b, endpoint(3, false))]
        );
        // No network is alive: the last one stays.
        endpoints.handle_networks(&[
            offer(2, Part::Equal, false, &[A]),
            offer(3, Part::Equal, false, &[B]),
        ]);
        assert_eq!(steps(&mut endpoints), []);
        endpoints.handle_networks(&[offer(2, Part::Equal, true, &[A])]);
        assert_eq!(
            steps(&mut endpoints),
            [Step::Remove(b), Step::Add(a, endpoint(2, false))]
        );
        endpoints.handle_networks(&[offer(2, Part::None, true, &[A])]);
        assert_eq!(steps(&mut endpoints), [Step::Remove(a)]);
    }

    #[test]
    fn where_room_is_short_each_network_gets_one_address_first() {
        let mut endpoints = Endpoints::new(3);
        endpoints.handle_networks(&[
            offer(2, Part::Equal, true, &[A, "2001:db8::1"]),
            offer(3, Part::Equal, true, &[B, "2001:db8::2"]),
        ]);
        let networks: Vec<_> = endpoints.present().values().map(|e| e.network.0).collect();
        assert_eq!(networks, [2, 3, 2]);
    }

    #[test]
    fn the_first_subflow_takes_the_shortest_round_trip_and_does_not_waver() {
        let mut endpoints = Endpoints::new(8);
        let mut first = |a: u64, b: u64, part| {
            let trip = |offer, ms| Offer {
                round_trip: Some(Duration::from_millis(ms)),
                ..offer
            };
            let (left, right) = (offer(2, part, true, &[A]), offer(3, Part::Equal, true, &[B]));
            endpoints.handle_networks(&[trip(left, a), trip(right, b)]);
            endpoints
                .firsts()
                .map(|first| first.map(|(network, _)| network.0))
        };
        assert_eq!(first(10, 11, Part::Equal), [Some(2), None]);
        assert_eq!(first(12, 10, Part::Equal), [Some(2), None]);
        assert_eq!(first(13, 10, Part::Equal), [Some(3), None]);
        assert_eq!(first(9, 10, Part::Equal), [Some(3), None]);
        assert_eq!(first(1, 10, Part::Backup), [Some(3), None]);
    }

    #[test]
    fn what_was_refused_is_tried_again() {
        let mut endpoints = Endpoints::new(8);
        let offers = [offer(2, Part::Equal, true, &[A])];
        endpoints.handle_networks(&offers);
        assert_eq!(steps(&mut endpoints).len(), 1);
        endpoints.handle_refusal(A.parse().unwrap());
        endpoints.handle_networks(&offers);
        assert_eq!(steps(&mut endpoints).len(), 1);
    }

    // A path manager that executes all steps always has the endpoints that the machine assumes, and
    // never more than `room`.
    proptest! {
        #[test]
        fn steps_lead_to_what_is_present(changes in prop::collection::vec(
            prop::collection::vec((2_u32..6, 0_u8..3, any::<bool>(), prop::collection::vec(0_u8..6, 0..2)), 0..5), 1..30,
        )) {
            let mut endpoints = Endpoints::new(4);
            let mut there = BTreeMap::new();
            for change in changes {
                let offers: Vec<_> = change.into_iter().map(|(network, part, is_alive, addresses)| Offer {
                    network: NetworkId(network),
                    addresses: addresses.into_iter().map(|last| IpAddr::from([192, 0, 2, last])).collect(),
                    part: [Part::Equal, Part::Backup, Part::None][usize::from(part)],
                    is_alive,
                    round_trip: None,
                }).collect();
                endpoints.handle_networks(&offers);
                while let Some(step) = endpoints.poll_transmit() {
                    match step {
                        Step::Remove(address) => prop_assert!(there.remove(&address).is_some()),
                        Step::Change(address, endpoint) => {
                            let before = there.insert(address, endpoint);
                            prop_assert_eq!(before.map(|before| before.network), Some(endpoint.network));
                        }
                        Step::Add(address, endpoint) => prop_assert!(there.insert(address, endpoint).is_none()),
                    }
                    prop_assert!(there.len() <= 4);
                }
                prop_assert_eq!(&there, endpoints.present());
                for endpoint in there.values() {
                    prop_assert!(offers.iter().any(|offer| offer.network == endpoint.network && offer.part != Part::None));
                }
            }
        }
    }
}
