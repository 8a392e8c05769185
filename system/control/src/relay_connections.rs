//! Connections of a hub's relays: their number, sources, and addresses at its UDP port.
//!
//! A connection (over TLS), or a flow (over GRE), is unverified until the hub has sent a data
//! packet to it, since the hub sends those only to clients with an authenticated key and a
//! validated address. Unverified connections have a few separate slots and little time, so they do
//! not exclude known clients.
//!
//! Each source (an IPv4 address, or an IPv6 network of 64 bits) has a separate address on loopback,
//! so that the hub's limits of a source apply as over UDP.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use hawser_linux::udp::plain;
use hawser_proto::session::MAX_PATHS;
use hawser_units::Net;

use crate::admission::source;

/// Counts of present connections. Copies share the counts.
#[derive(Clone, Debug)]
pub struct RelayConnections(Arc<Mutex<Counts>>);

#[derive(Debug)]
struct Counts {
    /// Unverified connections, by source.
    strangers: BTreeMap<IpAddr, usize>,
    all_strangers: usize,
    known: usize,
    /// Known connections, by source.
    known_of: BTreeMap<IpAddr, usize>,
    /// Second byte of addresses on loopback.
    net: u8,
    /// Maximum number of known connections.
    most: usize,
    /// Number of each source's address, and of its connections.
    sources: BTreeMap<IpAddr, (u16, usize)>,
    numbers: BTreeSet<u16>,
    /// Source of a connection, by the address on loopback.
    origins: BTreeMap<SocketAddr, SocketAddr>,
    turned_away: u64,
    /// Set if clients' paths are announced here, so that each remaining connection belongs to a
    /// client.
    has_claims: bool,
    /// Session of the last path at an address on loopback.
    owners: BTreeMap<SocketAddr, u64>,
    /// Connections by session, in the order of their claims.
    of_client: BTreeMap<u64, VecDeque<SocketAddr>>,
    /// Connections that exceed the bound of their client.
    excess: BTreeSet<SocketAddr>,
    crowded: u64,
}

/// Slot of a connection, which is freed when dropped.
#[derive(Debug)]
pub(crate) struct RelaySlot {
    connections: RelayConnections,
    from: SocketAddr,
    source: IpAddr,
    is_known: bool,
    /// Loopback address of the source.
    pub(crate) appears_as: Ipv4Addr,
    shown: Option<SocketAddr>,
}

impl RelayConnections {
    /// Creates slots for this many known connections, with addresses 127.`net`.0.1 and so on.
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

    /// Reserves a slot for a connection, if one is free.
    pub(crate) fn enter(&self, from: SocketAddr) -> Option<RelaySlot> {
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
        Some(RelaySlot {
            connections: self.clone(),
            from,
            source,
            is_known: false,
            appears_as: Ipv4Addr::new(127, net, high, low),
            shown: None,
        })
    }

    /// Handles the paths of clients: session and address of each. A client keeps the [`OF_CLIENT`]
    /// connections that its paths used last; the others end.
    pub fn claim(&self, paths: impl IntoIterator<Item = (u64, SocketAddr)>) {
        let mut counts = self.lock();
        counts.has_claims = true;
        for (session, local) in paths {
            counts.claim(session, plain(local));
        }
    }

    /// Returns the number of connections that were ended because their client had too many.
    pub(crate) fn crowded(&self) -> u64 {
        self.lock().crowded
    }

    /// Returns the real source of an address on loopback; other addresses unchanged.
    pub fn origin(&self, address: SocketAddr) -> SocketAddr {
        self.lock().origins.get(&address).copied().unwrap_or(address)
    }

    /// Returns whether the address is that of a relay.
    pub fn is_relayed(&self, address: SocketAddr) -> bool {
        self.lock().origins.contains_key(&address)
    }

    /// Returns the numbers of known, unverified and rejected connections.
    pub(crate) fn counts(&self) -> (usize, usize, u64) {
        let counts = self.lock();
        (counts.known, counts.all_strangers, counts.turned_away)
    }

    fn lock(&self) -> MutexGuard<'_, Counts> {
        self.0.lock().expect("no holder panics")
    }
}

impl RelaySlot {
    /// Records that the connection appears at the hub's port as `local`.
    pub(crate) fn show(&mut self, local: SocketAddr) {
        self.connections.lock().origins.insert(local, self.from);
        self.shown = Some(local);
    }

    /// Returns whether the connection belongs to a client, as far as paths are announced
    /// ([`RelayConnections::claim`]).
    pub(crate) fn is_claimed(&self) -> bool {
        let counts = self.connections.lock();
        let is_owned = |shown: SocketAddr| counts.owners.contains_key(&shown);
        !counts.has_claims || self.shown.is_some_and(is_owned)
    }

    /// Counts its client as known. Returns false if the total or the source's maximum of known
    /// clients is reached; otherwise an accepted client could use every slot.
    pub(crate) fn know(&mut self) -> bool {
        let mut counts = self.connections.lock();
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
    /// Returns whether the IPv6 network of a site has the maximum of unverified connections.
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

impl Drop for RelaySlot {
    fn drop(&mut self) {
        let mut counts = self.connections.lock();
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

/// Maximum number of unverified connections of a source: all machines of a household that start at
/// once. Source: our choice, an eighth of [`STRANGERS`]; a larger one lets fewer sources exclude
/// others, a smaller one delays large households.
const OF_ONE: usize = 32;
/// Inverse of the share of slots for known connections that one source may use, at least
/// [`OF_ONE`]. Source: 512 of 8,192 are sufficient for the clients behind a carrier's address, and
/// eight such sources leave half of the slots to others.
const SOURCES: usize = 16;
/// Maximum number of connections of a client. Source: two for each path (`MAX_PATHS`), while a path
/// moves from one to the next.
pub(crate) const OF_CLIENT: usize = 2 * MAX_PATHS;
/// Maximum number of unverified connections of an IPv6 site. Source: a quarter of all
/// (`STRANGERS`), so four sites are needed to exclude others.
const OF_SITE: usize = STRANGERS / 4;
/// Prefix length of a site's network (RFC 6177 section 2).
const SITE: u8 = 48;
/// Maximum number of unverified connections. Source: a bound on memory, 26 MB, since each has some
/// 100 KB for at most 15 s.
pub(crate) const STRANGERS: usize = 256;
/// Time after a data packet of a hub during which its client counts as known. Source: our choice,
/// three times the interval of an idle path's probes (`KEEPALIVE_IDLE` of `core/proto/src/path`, 20
/// s), so that a connection in use is not disconnected.
pub(crate) const KNOWN_FOR: Duration = Duration::from_secs(60);
/// Deadline for the first data packet of an accepted client, which follows a few round trips after
/// its hello. Source: our choice, longer than `TIMEOUT` of `hub.rs`, in which a hub accepts a
/// client; a longer one gives unknown clients memory for longer.
pub(crate) const STRANGE_FOR: Duration = Duration::from_secs(if cfg!(test) { 3 } else { 15 });
/// Interval of checks whether the hub knows the client. Source: our choice; with a longer one,
/// connections of clients that are rejected take memory for longer.
pub(crate) const POLL_INTERVAL: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn from(last: u8, port: u16) -> SocketAddr {
        ([192, 0, 2, last], port).into()
    }

    #[test]
    fn one_source_does_not_take_all_places() {
        let connections = RelayConnections::new(83, 8_192);
        let taken: Vec<_> = (0..100)
            .filter_map(|port| connections.enter(from(1, port)))
            .collect();
        assert_eq!(taken.len(), OF_ONE);
        let other = connections.enter(from(2, 1)).unwrap();
        assert_ne!(other.appears_as, taken[0].appears_as);
        assert!(taken.iter().all(|slot| slot.appears_as == taken[0].appears_as));
        assert_eq!(connections.counts(), (0, OF_ONE + 1, 100 - OF_ONE as u64));
    }

    #[test]
    fn who_is_known_leaves_a_stranger_s_place_to_others() {
        let connections = RelayConnections::new(83, 8_192);
        let mut known: Vec<_> = (0..OF_ONE as u16)
            .filter_map(|port| connections.enter(from(1, port)))
            .collect();
        assert!(connections.enter(from(1, 99)).is_none());
        assert!(known.iter_mut().all(RelaySlot::know));
        let of_source = connections.lock().known_of[&source(from(1, 0).ip())];
        assert_eq!(of_source, OF_ONE);
        assert!(connections.enter(from(1, 99)).is_some());
    }

    #[test]
    fn no_more_are_known_than_may_be() {
        let connections = RelayConnections::new(83, 3);
        let mut all: Vec<_> = (0..4)
            .filter_map(|last| connections.enter(from(last, 1)))
            .collect();
        assert_eq!(
            all.iter_mut()
                .filter_map(|slot| slot.know().then_some(()))
                .count(),
            3
        );
    }

    #[test]
    fn one_client_does_not_take_all_places_of_those_who_are_known() {
        let connections = RelayConnections::new(83, 1_024);
        let known = |port| {
            let mut slot = connections.enter(from(1, port))?;
            slot.know().then_some(slot)
        };
        let mut all: Vec<_> = (0..100).filter_map(known).collect();
        assert_eq!(all.len(), 1_024 / SOURCES);
        let mut other = connections.enter(from(2, 1)).unwrap();
        assert!(other.know());
        all.clear();
        drop(other);
        assert!(connections.lock().known_of.is_empty());
    }

    /// A client with many addresses moves its paths from connection to connection.
    #[test]
    fn one_client_with_many_addresses_does_not_take_all_places() {
        let connections = RelayConnections::new(83, 8_192);
        let mut all: Vec<RelaySlot> = Vec::new();
        for number in 0..400_u16 {
            let [high, low] = number.to_be_bytes();
            let mut slot = connections.enter(([198, 18, high, low], 443).into()).unwrap();
            let local: SocketAddr = (slot.appears_as, 40_000).into();
            slot.show(local);
            // The connection is unverified until it has a path.
            assert_eq!(slot.is_claimed(), number == 0);
            connections.claim([(7, local)]);
            assert!(slot.is_claimed() && slot.know());
            all.push(slot);
            all.retain_mut(RelaySlot::know);
        }
        assert_eq!(all.len(), OF_CLIENT);
        assert_eq!(connections.counts().0, OF_CLIENT);
        assert_eq!(connections.crowded(), 400 - OF_CLIENT as u64);
        // Connections that are claimed again remain.
        let first = all[0].shown.unwrap();
        let mut fresh = connections.enter(from(9, 1)).unwrap();
        fresh.show((fresh.appears_as, 40_000).into());
        connections.claim([(7, first), (7, fresh.shown.unwrap())]);
        assert!(all[0].know() && !all[1].know() && fresh.know());
        // Another client has its own.
        let mut other = connections.enter(from(10, 1)).unwrap();
        other.show((other.appears_as, 40_000).into());
        connections.claim([(8, other.shown.unwrap())]);
        assert!(other.know() && all[2].know());
        drop((all, fresh, other));
        let counts = connections.lock();
        assert!(counts.owners.is_empty() && counts.of_client.is_empty() && counts.excess.is_empty());
    }

    #[test]
    fn one_site_does_not_take_all_places_of_strangers() {
        let connections = RelayConnections::new(83, 8_192);
        let from = |site: u16, subnet: u16| {
            let address = std::net::Ipv6Addr::new(0x2001, 0xdb8, site, subnet, 0, 0, 0, 1);
            connections.enter((address, 443).into())
        };
        let taken: Vec<_> = (0..300).filter_map(|subnet| from(1, subnet)).collect();
        assert_eq!(taken.len(), OF_SITE);
        assert!(from(2, 0).is_some());
    }

    #[test]
    fn says_where_somebody_comes_from() {
        let connections = RelayConnections::new(83, 85);
        let mut slot = connections.enter(from(1, 7)).unwrap();
        let local: SocketAddr = (slot.appears_as, 40_000).into();
        slot.show(local);
        assert_eq!(connections.origin(local), from(1, 7));
        assert!(connections.is_relayed(local));
        drop(slot);
        assert_eq!(connections.origin(local), local);
    }

    proptest! {
        /// For any sequence of connections that start, become known and end, the counts match the
        /// present ones.
        #[test]
        fn counts_what_is_there(steps in prop::collection::vec((0_u8..3, 0_u8..6, any::<usize>()), 0..300)) {
            let connections = RelayConnections::new(83, 85);
            let mut there: Vec<RelaySlot> = Vec::new();
            for (what, who, which) in steps {
                match what {
                    0 => there.extend(connections.enter(from(who, 1))),
                    1 if !there.is_empty() => {
                        let at = which % there.len();
                        there[at].know();
                    }
                    _ if !there.is_empty() => drop(there.swap_remove(which % there.len())),
                    _ => {}
                }
                let known = there.iter().filter(|slot| slot.is_known).count();
                let (counted, strangers, _) = connections.counts();
                prop_assert_eq!((counted, strangers), (known, there.len() - known));
                let sources: BTreeSet<_> = there.iter().map(|slot| slot.source).collect();
                let shown: BTreeSet<_> = there.iter().map(|slot| slot.appears_as).collect();
                prop_assert_eq!(sources.len(), shown.len());
                prop_assert_eq!(connections.lock().numbers.len(), sources.len());
            }
        }
    }
}
