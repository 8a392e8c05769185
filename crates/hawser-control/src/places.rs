//! How many connections a hub's relays take, of whom, and as whom they appear at its UDP port.
//!
//! A connection (over TLS), or a flow (over GRE), is a stranger's until a data packet of the hub
//! has gone to it: the hub sends those to clients alone that have proven their key and their
//! address. Strangers have few places of their own and little time, so they keep nobody out who is
//! known.
//!
//! Each source (an IPv4 address, or an IPv6 network of 64 bits) has an address of its own on
//! loopback, so that whatever the hub grants a source holds for it as over UDP.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

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
        })))
    }

    /// A place for a connection, while there is one.
    pub(crate) fn enter(&self, from: SocketAddr) -> Option<Place> {
        let source = source(from.ip());
        let mut counts = self.lock();
        let of_source = counts.strangers.get(&source).copied().unwrap_or(0);
        if of_source >= OF_ONE || counts.all_strangers >= STRANGERS {
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

    /// Counts its client as known. Returns false where there are as many as there may be, in all or
    /// of this source: a client that is let in could otherwise take every place.
    pub(crate) fn know(&mut self) -> bool {
        if self.is_known {
            return true;
        }
        let mut counts = self.places.lock();
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
