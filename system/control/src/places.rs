//! How many connections a hub's relays take, of whom, and as whom they appear at its UDP port.
//!
//! A connection (over TLS), or a flow (over GRE), is a stranger's until a data packet of the hub
//! has gone to it: the hub sends those to clients alone that have proven their key and their
//! address. Strangers have few places of their own and little time, so they keep nobody out who is
//! known.
//!
//! Each source (an IPv4 address, or an IPv6 network of 64 bits) has an address of its own on
//! loopback, so that whatever the hub grants a source holds for it as over UDP.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use hawser_linux::udp::plain;
use hawser_proto::session::MAX_PATHS;
use hawser_units::Net;

use crate::admission::source;

/// Counts what is there. Copies share the counts.
#[derive(Clone, Debug)]
pub struct Places(Arc<Mutex<Counts>>);

#[derive(Debug)]
struct Counts {
    /// By source: connections that are not known yet.
    strangers: BTreeMap<IpAddr, usize>,
    all_strangers: usize,
    known: usize,
    /// By source: connections that are known.
    known_of: BTreeMap<IpAddr, usize>,
    /// The second byte of addresses on loopback.
    net: u8,
    /// How many may be known at once.
    most: usize,
    /// By source: the number of its address, and how many connections it has.
    sources: BTreeMap<IpAddr, (u16, usize)>,
    numbers: BTreeSet<u16>,
    /// By the address on loopback: where a connection comes from.
    origins: BTreeMap<SocketAddr, SocketAddr>,
    turned_away: u64,
    /// Paths of clients are announced here, so each connection that stays is some client's.
    has_claims: bool,
    /// Session whose path was there last, by the address on loopback.
    owners: BTreeMap<SocketAddr, u64>,
    /// Connections by session; the ones that were claimed last stand at the end.
    of_client: BTreeMap<u64, VecDeque<SocketAddr>>,
    /// Connections that exceed the bound of their client, and how many there ever were.
    excess: BTreeSet<SocketAddr>,
    crowded: u64,
}

/// One connection's place; it is free when this is dropped.
#[derive(Debug)]
pub(crate) struct Place {
    places: Places,
    from: SocketAddr,
    source: IpAddr,
    is_known: bool,
    /// As whom it appears.
    pub(crate) appears_as: Ipv4Addr,
    shown: Option<SocketAddr>,
}

impl Places {
    /// Room for so many that are known at once, who appear as 127.`net`.0.1 and so on.
    pub(crate) fn new(net: u8, most: usize) -> Self {
        Self(Arc::new(Mutex::new(Counts {
            strangers: BTreeMap::new(),
            all_strangers: 0,
            known: 0,
            known_of: BTreeMap::new(),
            net,
            most,
            sources: BTreeMap::new(),
            numbers: BTreeSet::new(),
            origins: BTreeMap::new(),
            turned_away: 0,
            has_claims: false,
            owners: BTreeMap::new(),
            of_client: BTreeMap::new(),
            excess: BTreeSet::new(),
            crowded: 0,
        })))
    }

    /// A place for a connection, while there is one.
    pub(crate) fn enter(&self, from: SocketAddr) -> Option<Place> {
        let source = source(from.ip());
        let mut counts = self.lock();
        let of_source = counts.strangers.get(&source).copied().unwrap_or(0);
        if of_source >= OF_ONE || counts.all_strangers >= STRANGERS || counts.is_site_full(source) {
            counts.turned_away += 1;
            return None;
        }
        let number = match counts.sources.get(&source) {
            Some((number, _)) => *number,
            None => (1..u16::MAX).find(|number| !counts.numbers.contains(number))?,
        };
        counts.numbers.insert(number);
        counts.sources.entry(source).or_insert((number, 0)).1 += 1;
        *counts.strangers.entry(source).or_default() += 1;
        counts.all_strangers += 1;
        let net = counts.net;
        drop(counts);
        let [high, low] = number.to_be_bytes();
        Some(Place {
            places: self.clone(),
            from,
            source,
            is_known: false,
            appears_as: Ipv4Addr::new(127, net, high, low),
            shown: None,
        })
    }

    /// Takes in the paths of clients: session and address of each. A client keeps the [`OF_CLIENT`]
    /// connections where its paths were last; the others end.
    pub fn claim(&self, paths: impl IntoIterator<Item = (u64, SocketAddr)>) {
        let mut counts = self.lock();
        counts.has_claims = true;
        for (session, local) in paths {
            counts.claim(session, plain(local));
        }
    }

    /// Count of connections that were ended because their client had too many.
    pub(crate) fn crowded(&self) -> u64 {
        self.lock().crowded
    }

    /// Where somebody on loopback really comes from; anybody else as they are.
    pub fn origin(&self, address: SocketAddr) -> SocketAddr {
        self.lock().origins.get(&address).copied().unwrap_or(address)
    }

    /// Whether somebody comes by way of a relay.
    pub fn is_relayed(&self, address: SocketAddr) -> bool {
        self.lock().origins.contains_key(&address)
    }

    /// Connections: known, of strangers, and how many were turned away.
    pub(crate) fn counts(&self) -> (usize, usize, u64) {
        let counts = self.lock();
        (counts.known, counts.all_strangers, counts.turned_away)
    }

    fn lock(&self) -> MutexGuard<'_, Counts> {
        self.0.lock().expect("no holder panics")
    }
}

impl Place {
    /// The connection appears at the hub's port as `local`.
    pub(crate) fn show(&mut self, local: SocketAddr) {
        self.places.lock().origins.insert(local, self.from);
        self.shown = Some(local);
    }

    /// Returns whether the connection belongs to a client, as far as paths are announced
    /// ([`Places::claim`]).
    pub(crate) fn is_claimed(&self) -> bool {
        let counts = self.places.lock();
        let is_owned = |shown: SocketAddr| counts.owners.contains_key(&shown);
        !counts.has_claims || self.shown.is_some_and(is_owned)
    }

    /// Counts its client as known. Returns false where there are as many as there may be, in all or
    /// of this source: a client that is let in could otherwise take every place.
    pub(crate) fn know(&mut self) -> bool {
        let mut counts = self.places.lock();
        if self.shown.is_some_and(|shown| counts.excess.contains(&shown)) {
            return false;
        }
        if self.is_known {
            return true;
        }
        let of_source = counts.known_of.get(&self.source).copied().unwrap_or(0);
        if counts.known >= counts.most || of_source >= (counts.most / SOURCES).max(OF_ONE) {
            counts.turned_away += 1;
            return false;
        }
        counts.known += 1;
        counts.known_of.insert(self.source, of_source + 1);
        counts.forget_stranger(self.source);
        self.is_known = true;
        true
    }
}

impl Counts {
    /// Returns whether the IPv6 network of a site has all the strangers that it may have.
    fn is_site_full(&self, source: IpAddr) -> bool {
        let IpAddr::V6(address) = source else {
            return false;
        };
        let site = Net::new(address, SITE);
        let of_site = self
            .strangers
            .iter()
            .filter(|(source, _)| site.contains(**source));
        of_site.map(|(_, count)| count).sum::<usize>() >= OF_SITE
    }

    fn claim(&mut self, session: u64, local: SocketAddr) {
        if !self.origins.contains_key(&local) || self.excess.contains(&local) {
            return;
        }
        self.disown(local);
        self.owners.insert(local, session);
        let all = self.of_client.entry(session).or_default();
        all.push_back(local);
        if all.len() > OF_CLIENT
            && let Some(oldest) = all.pop_front()
        {
            self.owners.remove(&oldest);
            self.excess.insert(oldest);
            self.crowded += 1;
        }
    }

    fn disown(&mut self, local: SocketAddr) {
        let Some(session) = self.owners.remove(&local) else {
            return;
        };
        if let Some(all) = self.of_client.get_mut(&session) {
            all.retain(|one| *one != local);
            if all.is_empty() {
                self.of_client.remove(&session);
            }
        }
    }

    fn forget_stranger(&mut self, source: IpAddr) {
        self.all_strangers -= 1;
        if let Some(count) = self.strangers.get_mut(&source) {
            *count -= 1;
            if *count == 0 {
                self.strangers.remove(&source);
            }
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut counts = self.places.lock();
        if self.is_known {
            counts.known -= 1;
            if let Some(of_source) = counts.known_of.get_mut(&self.source) {
                *of_source -= 1;
                if *of_source == 0 {
                    counts.known_of.remove(&self.source);
                }
            }
        } else {
            counts.forget_stranger(self.source);
        }
        if let Some(shown) = self.shown {
            counts.origins.remove(&shown);
            counts.excess.remove(&shown);
            counts.disown(shown);
        }
        if let Some((number, users)) = counts.sources.get_mut(&self.source) {
            *users -= 1;
            if *users == 0 {
                let number = *number;
                counts.sources.remove(&self.source);
                counts.numbers.remove(&number);
            }
        }
    }
}

/// Strangers' connections of one source: a household's machines that all begin at once.
const OF_ONE: usize = 32;
/// A source has at most this part of all places for known connections, and at least [`OF_ONE`]: 512
/// of 8,192 are enough for the clients behind a carrier's address, and eight such sources leave
/// half of the places to others.
const SOURCES: usize = 16;
/// Connections of one client. Source: two for each path (`MAX_PATHS`), while a path moves from one
/// to the next.
pub(crate) const OF_CLIENT: usize = 2 * MAX_PATHS;
/// Strangers' connections of one site of IPv6. Source: a quarter of all (`STRANGERS`), so four
/// sites are needed to keep the others out.
const OF_SITE: usize = STRANGERS / 4;
/// Prefix length of what a site gets (RFC 6177 section 2).
const SITE: u8 = 48;
/// Strangers' connections in all: some 100 KB each for a quarter of a minute at most.
pub(crate) const STRANGERS: usize = 256;
/// How long after a data packet from a hub its client counts as known.
pub(crate) const KNOWN_FOR: Duration = Duration::from_secs(60);
/// A client that is let in has its first data packet a few round trips after its hello.
pub(crate) const STRANGE_FOR: Duration = Duration::from_secs(if cfg!(test) { 3 } else { 15 });
/// How often it is seen whether the hub knows who speaks.
pub(crate) const LOOK: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn from(last: u8, port: u16) -> SocketAddr {
        ([192, 0, 2, last], port).into()
    }

    #[test]
    fn one_source_does_not_take_all_places() {
        let places = Places::new(83, 8_192);
        let taken: Vec<_> = (0..100).filter_map(|port| places.enter(from(1, port))).collect();
        assert_eq!(taken.len(), OF_ONE);
        let other = places.enter(from(2, 1)).unwrap();
        assert_ne!(other.appears_as, taken[0].appears_as);
        assert!(taken.iter().all(|place| place.appears_as == taken[0].appears_as));
        assert_eq!(places.counts(), (0, OF_ONE + 1, 100 - OF_ONE as u64));
    }

    #[test]
    fn who_is_known_leaves_a_stranger_s_place_to_others() {
        let places = Places::new(83, 8_192);
        let mut known: Vec<_> = (0..OF_ONE as u16)
            .filter_map(|port| places.enter(from(1, port)))
            .collect();
        assert!(places.enter(from(1, 99)).is_none());
        assert!(known.iter_mut().all(Place::know));
        let of_source = places.lock().known_of[&source(from(1, 0).ip())];
        assert_eq!(of_source, OF_ONE);
        assert!(places.enter(from(1, 99)).is_some());
    }

    #[test]
    fn no_more_are_known_than_may_be() {
        let places = Places::new(83, 3);
        let mut all: Vec<_> = (0..4).filter_map(|last| places.enter(from(last, 1))).collect();
        assert_eq!(
            all.iter_mut()
                .filter_map(|place| place.know().then_some(()))
                .count(),
            3
        );
    }

    #[test]
    fn one_client_does_not_take_all_places_of_those_who_are_known() {
        let places = Places::new(83, 1_024);
        let known = |port| {
            let mut place = places.enter(from(1, port))?;
            place.know().then_some(place)
        };
        let mut all: Vec<_> = (0..100).filter_map(known).collect();
        assert_eq!(all.len(), 1_024 / SOURCES);
        let mut other = places.enter(from(2, 1)).unwrap();
        assert!(other.know());
        all.clear();
        drop(other);
        assert!(places.lock().known_of.is_empty());
    }

    /// A client with very many addresses, which moves its paths from connection to connection.
    #[test]
    fn one_client_with_many_addresses_does_not_take_all_places() {
        let places = Places::new(83, 8_192);
        let mut all: Vec<Place> = Vec::new();
        for number in 0..400_u16 {
            let [high, low] = number.to_be_bytes();
            let mut place = places.enter(([198, 18, high, low], 443).into()).unwrap();
            let local: SocketAddr = (place.appears_as, 40_000).into();
            place.show(local);
            // It stays a stranger until some path is there.
            assert_eq!(place.is_claimed(), number == 0);
            places.claim([(7, local)]);
            assert!(place.is_claimed() && place.know());
            all.push(place);
            all.retain_mut(Place::know);
        }
        assert_eq!(all.len(), OF_CLIENT);
        assert_eq!(places.counts().0, OF_CLIENT);
        assert_eq!(places.crowded(), 400 - OF_CLIENT as u64);
        // What is claimed again stays.
        let first = all[0].shown.unwrap();
        let mut fresh = places.enter(from(9, 1)).unwrap();
        fresh.show((fresh.appears_as, 40_000).into());
        places.claim([(7, first), (7, fresh.shown.unwrap())]);
        assert!(all[0].know() && !all[1].know() && fresh.know());
        // Another client has its own.
        let mut other = places.enter(from(10, 1)).unwrap();
        other.show((other.appears_as, 40_000).into());
        places.claim([(8, other.shown.unwrap())]);
        assert!(other.know() && all[2].know());
        drop((all, fresh, other));
        let counts = places.lock();
        assert!(counts.owners.is_empty() && counts.of_client.is_empty() && counts.excess.is_empty());
    }

    #[test]
    fn one_site_does_not_take_all_places_of_strangers() {
        let places = Places::new(83, 8_192);
        let from = |site: u16, subnet: u16| {
            let address = std::net::Ipv6Addr::new(0x2001, 0xdb8, site, subnet, 0, 0, 0, 1);
            places.enter((address, 443).into())
        };
        let taken: Vec<_> = (0..300).filter_map(|subnet| from(1, subnet)).collect();
        assert_eq!(taken.len(), OF_SITE);
        assert!(from(2, 0).is_some());
    }

    #[test]
    fn says_where_somebody_comes_from() {
        let places = Places::new(83, 85);
        let mut place = places.enter(from(1, 7)).unwrap();
        let local: SocketAddr = (place.appears_as, 40_000).into();
        place.show(local);
        assert_eq!(places.origin(local), from(1, 7));
        assert!(places.is_relayed(local));
        drop(place);
        assert_eq!(places.origin(local), local);
    }

    proptest! {
        /// Whoever comes, becomes known and goes: what is counted is what is there.
        #[test]
        fn counts_what_is_there(steps in prop::collection::vec((0_u8..3, 0_u8..6, any::<usize>()), 0..300)) {
            let places = Places::new(83, 85);
            let mut there: Vec<Place> = Vec::new();
            for (what, who, which) in steps {
                match what {
                    0 => there.extend(places.enter(from(who, 1))),
                    1 if !there.is_empty() => {
                        let at = which % there.len();
                        there[at].know();
                    }
                    _ if !there.is_empty() => drop(there.swap_remove(which % there.len())),
                    _ => {}
                }
                let known = there.iter().filter(|place| place.is_known).count();
                let (counted, strangers, _) = places.counts();
                prop_assert_eq!((counted, strangers), (known, there.len() - known));
                let sources: BTreeSet<_> = there.iter().map(|place| place.source).collect();
                let shown: BTreeSet<_> = there.iter().map(|place| place.appears_as).collect();
                prop_assert_eq!(sources.len(), shown.len());
                prop_assert_eq!(places.lock().numbers.len(), sources.len());
            }
        }
    }
}
