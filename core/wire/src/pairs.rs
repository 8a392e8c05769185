//! Assignment of sessions to pairs of threads.
//!
//! The pair of a session is the number of its client among the hub's inner addresses, modulo the
//! number of pairs. The kernel derives the pair in both directions: from the destination of a
//! packet from the TUN, and from the receiver index of a datagram, which is drawn with the same
//! remainder. So neither a lookup nor a hand-off is necessary, and a successor finds the same
//! pairs. With one pair an index is fully random; with more pairs it reveals to an observer the
//! remainder, which is the same on all paths of a session.

use std::net::IpAddr;

/// Maximum number of pairs of threads: more processors than 10 Gbit/s needs, and a bound for the
/// memory of each pair (buffers of 2 MB, and the kernel's socket buffers). Source: our choice; more
/// only take memory, since a session uses one pair.
pub const MAX_PAIRS: u32 = 16;

/// Number of pairs of threads, and the bits that select one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pairs {
    count: u32,
    hosts: u32,
}

impl Pairs {
    /// Single pair for all sessions. Source: definition.
    pub const ONE: Self = Self { count: 1, hosts: 0 };

    /// Creates an assignment to this number of pairs, from 1 to [`MAX_PAIRS`]. `prefix`: prefix
    /// length of the IPv4 pool; the bits after it are the number of a client, in IPv6 too.
    #[must_use]
    pub fn new(count: u32, prefix: u8) -> Self {
        Self {
            count: count.clamp(1, MAX_PAIRS),
            hosts: u32::MAX.checked_shr(prefix.into()).unwrap_or(0),
        }
    }

    /// Returns the number of pairs.
    #[must_use]
    pub fn count(self) -> u32 {
        self.count
    }

    /// Returns the bits of an inner address that contain the number of a client.
    #[must_use]
    pub fn hosts(self) -> u32 {
        self.hosts
    }

    /// Returns the pair of a session by the client's inner addresses.
    #[must_use]
    pub fn of(self, inner: &[IpAddr]) -> u32 {
        let last = inner.first().map_or(0, |address| match address {
            IpAddr::V4(v4) => v4.to_bits(),
            IpAddr::V6(v6) => v6.to_bits() as u32,
        });
        (last & self.hosts) % self.count
    }

    /// Returns a receiver index for a session of `pair`, from a random number.
    #[must_use]
    pub fn index(self, random: u32, pair: u32) -> u32 {
        if self.count == 1 {
            return random;
        }
        random % (u32::MAX / self.count) * self.count + pair
    }

    /// Returns whether a datagram with that index belongs to `pair`.
    #[must_use]
    pub fn has(self, pair: u32, index: u32) -> bool {
        index % self.count == pair
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_families_and_the_index_lead_to_one_pair() {
        for (count, prefix) in [(1, 16), (2, 16), (3, 10), (7, 24), (16, 28), (16, 0)] {
            let pairs = Pairs::new(count, prefix);
            let mut used = std::collections::BTreeSet::new();
            for number in 2..14_u32 {
                let v4 = std::net::Ipv4Addr::from_bits(0x6460_0000 | number);
                let v6 = std::net::Ipv6Addr::from_bits(0xfd00 << 112 | u128::from(number));
                let pair = pairs.of(&[v4.into(), v6.into()]);
                if prefix > 10 {
                    assert_eq!(pairs.of(&[v6.into()]), pair);
                }
                used.insert(pair);
                for random in [0, 1, 4_711, u32::MAX / 2, u32::MAX - 1, u32::MAX] {
                    let index = pairs.index(random, pair);
                    assert!(pairs.has(pair, index));
                    assert!((0..count).all(|other| other == pair || !pairs.has(other, index)));
                }
            }
            assert_eq!(used.len() as u32, count.min(12), "clients are spread");
        }
        assert_eq!(Pairs::ONE.index(4_711, 0), 4_711);
        assert_eq!(Pairs::ONE.of(&[]), 0);
        assert_eq!(Pairs::new(1_000, 16).count(), MAX_PAIRS);
        assert_eq!(Pairs::new(0, 16).count(), 1);
    }
}
