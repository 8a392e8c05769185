//! How much of a hub (or a host that lets peers in) strangers and clients may take up before they
//! are known, and how many connections each may have.
//!
//! A source is an IPv4 address or an IPv6 network of 64 bits. A few handshakes of one that has not
//! proven its address go on at once; more are asked for the proof (RFC 9000 section 8.1.2), which
//! who borrows somebody's address cannot give. So nobody is kept out by another who uses their
//! address.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Arc, Mutex, MutexGuard};

use hawser_config::identity::KeyHash;

/// Counts what is under way. Copies share the counts.
#[derive(Clone, Debug, Default)]
pub struct Admission(Arc<Mutex<Counts>>);

#[derive(Debug, Default)]
struct Counts {
    /// By source: handshakes up to the decision about their hello.
    handshakes: BTreeMap<IpAddr, usize>,
    all_handshakes: usize,
    connections: BTreeMap<KeyHash, usize>,
    /// Handshakes that were asked for a proof, and those that were not answered.
    asked: u64,
    ignored: u64,
    /// Connections over the bound of their key.
    crowded: u64,
}

/// What becomes of a handshake that begins.
#[derive(Debug)]
pub enum Verdict {
    /// It goes on; the permit is held until it is decided.
    Go(Permit),
    /// Its source is to prove its address.
    Prove,
    /// It is not answered.
    Ignore,
}

/// One that is counted until this is dropped.
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
    /// Whether a handshake may begin that comes from this address; `is_proven`: the source has
    /// shown that it receives there.
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

    /// For one more connection of a key that was proven; none when it has enough.
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

    /// Name and count of what was kept out.
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

/// Whoever has one address of an IPv6 network of 64 bits has all of them.
pub fn source(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(v6) => Ipv6Addr::from_bits(v6.to_bits() & !u128::from(u64::MAX)).into(),
        v4 @ IpAddr::V4(_) => v4,
    }
}

/// Of one source that has not proven its address: a client tries each of its networks once.
const UNPROVEN_OF_ONE: usize = 16;
/// Of all, before proofs are asked for: they cost a round trip.
const UNPROVEN: usize = 1_000;
/// Of one source: many clients may be behind one address, and each is decided within a few round
/// trips.
const OF_ONE: usize = 64;
/// Of all: some 50 KB of memory each, for ten seconds at most.
const OF_ALL: usize = 4_096;
/// A client tries every network at once, and its old connection lingers for some seconds when it
/// takes a new one.
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
