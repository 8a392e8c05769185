//! Which pair of threads a session belongs to.
//!
//! A session's pair follows from the number of its client among the hub's inner addresses, modulo
//! how many pairs there are. The kernel finds it by itself on both ways in: in the destination of a
//! packet from the TUN, and in the receiver index of a datagram, which is drawn so that it has the
//! same remainder. So nothing has to be looked up or handed over, and a successor finds the same
//! pairs. With one pair an index is as random as can be; with more it tells an onlooker the
//! remainder, which is the same on all paths of a session.

use std::net::IpAddr;

/// The most pairs of threads: more processors than carry 10 Gbit/s, and a bound for the memory that
/// each pair has of its own (buffers of 2 MB, and what the kernel keeps for its socket).
pub const MOST_PAIRS: u32 = 16;

/// How sessions are spread over pairs of threads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pairs {
    count: u32,
    hosts: u32,
}

impl Pairs {
    /// All sessions have the same.
    pub const ONE: Self = Self { count: 1, hosts: 0 };

    /// So many pairs, from 1 to [`MOST_PAIRS`]. `prefix`: the prefix length of the IPv4 pool; what
    /// follows it is the number of a client, in IPv6 too.
    #[must_use]
    pub fn new(count: u32, prefix: u8) -> Self {
        Self {
            count: count.clamp(1, MOST_PAIRS),
            hosts: u32::MAX.checked_shr(prefix.into()).unwrap_or(0),
        }
    }

    /// How many there are.
    #[must_use]
    pub fn count(self) -> u32 {
        self.count
    }

    /// The bits of an inner address that number a client.
    #[must_use]
    pub fn hosts(self) -> u32 {
        self.hosts
    }

    /// The pair of the session with that client: its inner addresses.
    #[must_use]
    pub fn of(self, inner: &[IpAddr]) -> u32 {
        let last = inner.first().map_or(0, |address| match address {
            IpAddr::V4(v4) => v4.to_bits(),
            IpAddr::V6(v6) => v6.to_bits() as u32,
        });
        (last & self.hosts) % self.count
    }

    /// A receiver index of a session of `pair`, from a random number.
    #[must_use]
    pub fn index(self, random: u32, pair: u32) -> u32 {
        if self.count == 1 {
            return random;
        }
        random % (u32::MAX / self.count) * self.count + pair
    }

    /// Whether a datagram with that index comes to `pair`.
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
        assert_eq!(Pairs::new(1_000, 16).count(), MOST_PAIRS);
        assert_eq!(Pairs::new(0, 16).count(), 1);
    }
}
