//! Admission control: the resources of a hub (or a host that accepts peers) that unauthenticated
//! senders may use, and the number of connections of each client.
//!
//! A source is an IPv4 address or an IPv6 network of 64 bits. A few handshakes of a source without
//! a validated address are processed at once; further ones need address validation (RFC 9000
//! section 8.1.2), which a sender with a spoofed address cannot pass. So spoofed packets cannot
//! exclude a source.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Arc, Mutex, MutexGuard};

use hawser_config::identity::KeyHash;

/// Counts of handshakes and connections in progress. Copies share the counts.
#[derive(Clone, Debug, Default)]
pub struct Admission(Arc<Mutex<Counts>>);

#[derive(Debug, Default)]
struct Counts {
    /// Handshakes that wait for a decision about their hello, by source.
    handshakes: BTreeMap<IpAddr, usize>,
    all_handshakes: usize,
    connections: BTreeMap<KeyHash, usize>,
    /// Handshakes that required address validation, and ignored ones.
    asked: u64,
    ignored: u64,
    /// Connections over the bound of their key.
    crowded: u64,
}

/// Decision about a handshake that begins.
#[derive(Debug)]
pub enum Verdict {
    /// Accepted; the permit lasts until the hello is decided.
    Go(Permit),
    /// Address validation required.
    Prove,
    /// Ignored.
    Ignore,
}

/// Permit that is counted until it is dropped.
#[derive(Debug)]
pub struct Permit {
    counts: Admission,
    of: Of,
}

#[derive(Clone, Copy, Debug)]
enum Of {
    Source(IpAddr),
    Key(KeyHash),
}

impl Admission {
    /// Decides whether a handshake from this address may begin; `is_proven` is set if the source's
    /// address is validated.
    pub fn handshake(&self, from: IpAddr, is_proven: bool) -> Verdict {
        let source = source(from);
        let mut counts = self.lock();
        let of_source = counts.handshakes.get(&source).copied().unwrap_or(0);
        if !is_proven && (of_source >= UNPROVEN_OF_ONE || counts.all_handshakes >= UNPROVEN) {
            counts.asked += 1;
            return Verdict::Prove;
        }
        if of_source >= OF_ONE || counts.all_handshakes >= OF_ALL {
            counts.ignored += 1;
            return Verdict::Ignore;
        }
        counts.all_handshakes += 1;
        *counts.handshakes.entry(source).or_default() += 1;
        drop(counts);
        Verdict::Go(self.permit(Of::Source(source)))
    }

    /// Returns a permit for another connection of an authenticated key; `None` if it has the
    /// maximum.
    pub fn connection(&self, key: KeyHash) -> Option<Permit> {
        let mut counts = self.lock();
        let now = counts.connections.entry(key).or_default();
        if *now >= CONNECTIONS_OF_ONE {
            counts.crowded += 1;
            return None;
        }
        *now += 1;
        drop(counts);
        Some(self.permit(Of::Key(key)))
    }

    /// Returns names and counts of rejections.
    pub fn counters(&self) -> [(&'static str, u64); 3] {
        let counts = self.lock();
        [
            ("handshakes_asked_for_proof", counts.asked),
            ("handshakes_ignored", counts.ignored),
            ("connections_too_many", counts.crowded),
        ]
    }

    fn permit(&self, of: Of) -> Permit {
        Permit {
            counts: self.clone(),
            of,
        }
    }

    fn lock(&self) -> MutexGuard<'_, Counts> {
        self.0.lock().expect("no holder panics")
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        let mut counts = self.counts.lock();
        match self.of {
            Of::Source(source) => {
                counts.all_handshakes -= 1;
                one_less(&mut counts.handshakes, source);
            }
            Of::Key(key) => one_less(&mut counts.connections, key),
        }
    }
}

fn one_less<K: Ord>(counts: &mut BTreeMap<K, usize>, of: K) {
    if let Some(count) = counts.get_mut(&of) {
        *count -= 1;
        if *count == 0 {
            counts.remove(&of);
        }
    }
}

/// Returns the source of an address: a host with one address of an IPv6 network of 64 bits can use
/// all of them.
pub fn source(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(v6) => Ipv6Addr::from_bits(v6.to_bits() & !u128::from(u64::MAX)).into(),
        v4 @ IpAddr::V4(_) => v4,
    }
}

/// Maximum for a source without a validated address: a client tries each of its networks once.
/// Source: our choice; a smaller one costs households with many clients a round trip at a hub's
/// restart, a larger one lets a forged address take more of [`UNPROVEN`].
const UNPROVEN_OF_ONE: usize = 16;
/// Maximum of all sources before validation is required, which costs a round trip. Source: our
/// choice, a quarter of [`OF_ALL`], so that forged addresses leave the rest to proven ones.
const UNPROVEN: usize = 1_000;
/// Maximum for a source: many clients may be behind one address, and each is decided within a few
/// round trips. Source: our choice; a smaller one delays the clients behind a carrier's address at
/// a hub's restart, and with a larger one fewer than 64 sources fill [`OF_ALL`].
const OF_ONE: usize = 64;
/// Maximum of all sources. Source: a bound on memory, 200 MB, since each has some 50 KB for at most
/// ten seconds.
const OF_ALL: usize = 4_096;
/// Maximum number of connections of a key: a client tries every network concurrently, and its old
/// connection remains for some seconds after a new one. Source: our choice; more let a single key
/// take more memory, some 50 KB each, fewer reject a client with many networks.
const CONNECTIONS_OF_ONE: usize = 32;

#[cfg(test)]
mod tests {
    use super::*;

    fn address(last: u16) -> IpAddr {
        Ipv6Addr::new(0x2001, 0xdb8, 0, last, 0, 0, 0, 1).into()
    }

    fn take(admission: &Admission, from: IpAddr, is_proven: bool, count: usize) -> Vec<Permit> {
        let all = (0..count).map(|_| admission.handshake(from, is_proven));
        all.filter_map(|verdict| match verdict {
            Verdict::Go(permit) => Some(permit),
            Verdict::Prove | Verdict::Ignore => None,
        })
        .collect()
    }

    #[test]
    fn who_borrows_an_address_does_not_keep_its_owner_out() {
        let admission = Admission::default();
        let borrowed = take(&admission, address(1), false, 1_000);
        assert_eq!(borrowed.len(), UNPROVEN_OF_ONE);
        let proven = take(&admission, address(1), true, 1_000);
        assert_eq!(proven.len(), OF_ONE - UNPROVEN_OF_ONE);
        assert!(matches!(admission.handshake(address(1), true), Verdict::Ignore));
        assert!(matches!(admission.handshake(address(1), false), Verdict::Prove));
        assert_eq!(
            take(&admission, address(2), false, 1).len(),
            1,
            "another is let in"
        );
        drop((borrowed, proven));
        assert_eq!(take(&admission, address(1), true, 1_000).len(), OF_ONE);
        assert!(admission.lock().handshakes.is_empty(), "nothing stays");
    }

    #[test]
    fn all_sources_together_are_bounded() {
        let admission = Admission::default();
        let all: Vec<_> = (0..200)
            .flat_map(|source| take(&admission, address(source), false, UNPROVEN_OF_ONE))
            .collect();
        assert_eq!(all.len(), UNPROVEN);
        let more: Vec<_> = (0..200)
            .flat_map(|source| take(&admission, address(1_000 + source), true, OF_ONE))
            .collect();
        assert_eq!(all.len() + more.len(), OF_ALL);
        let mapped: IpAddr = "::ffff:192.0.2.1".parse().unwrap();
        assert_eq!(source(mapped), source("192.0.2.1".parse().unwrap()));
    }

    #[test]
    fn a_key_has_so_many_connections() {
        let admission = Admission::default();
        let [one, other] = [KeyHash([1; 32]), KeyHash([2; 32])];
        let held: Vec<_> = (0..100).filter_map(|_| admission.connection(one)).collect();
        assert_eq!(held.len(), CONNECTIONS_OF_ONE);
        assert!(admission.connection(other).is_some());
        drop(held);
        assert!(admission.connection(one).is_some());
        assert_eq!(admission.counters()[2].1, (100 - CONNECTIONS_OF_ONE) as u64);
        assert!(admission.lock().connections.is_empty());
    }
}
