//! Addresses of IPv4 hosts behind a translator of the network (NAT64), and the two announcements
//! of the translator's prefix: addresses of a known name, and an option of routers.
//!
//! Source: RFC 6052 section 2 (addresses), RFC 7050 section 3 (name), RFC 8781 section 4 (option).

use core::fmt;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use hawser_units::{Duration, Net, is_private};

/// Name that has only IPv4 addresses, so that each IPv6 address of it is one of a translator.
/// Source: RFC 7050 section 8.1.
pub const KNOWN_NAME: &str = "ipv4only.arpa.";

/// Prefix of a translator: an IPv6 address that consists of the prefix and an IPv4 address reaches
/// the IPv4 host.
///
/// The length is one of [`LENGTHS`], and the network is one that may be a translator's
/// ([`Prefix::new`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Prefix {
    /// Bits of the prefix, followed by zeros.
    bits: u128,
    /// Length, bits.
    length: u8,
}

impl Prefix {
    /// Creates a prefix. Bits of `address` behind `length` are ignored.
    ///
    /// `None` if no translator may have such a prefix: the length is none of [`LENGTHS`], or the
    /// network is neither global unicast nor unique local (RFC 4193) nor one of the two reserved
    /// for translators (RFC 6052 section 2.1, RFC 8215).
    #[must_use]
    pub fn new(address: Ipv6Addr, length: u8) -> Option<Self> {
        let net = Net::new(address, length);
        let is_fit = match length {
            96 if net.first() == WELL_KNOWN => true,
            _ => PERMITTED
                .iter()
                .any(|(first, bits)| Net::new(*first, *bits).covers(net)),
        };
        let host = 128_u32.checked_sub(u32::from(length))?;
        let bits = address.to_bits() & u128::MAX.checked_shl(host)?;
        (LENGTHS.contains(&length) && is_fit).then_some(Self { bits, length })
    }

    /// Returns the address that reaches an IPv4 host. Bits 64 to 71 are zero, and so are the bits
    /// behind the IPv4 address (RFC 6052 section 2.2).
    ///
    /// `None` for an address that no translator forwards to: a multicast address or one of this
    /// machine or link; with the well-known prefix also a private one (RFC 6052 section 3.1).
    #[must_use]
    pub fn address_of(&self, v4: Ipv4Addr) -> Option<Ipv6Addr> {
        let is_unfit = v4.is_unspecified()
            || v4.is_loopback()
            || v4.is_link_local()
            || v4.is_multicast()
            || v4.is_broadcast()
            || (self.bits == WELL_KNOWN.to_bits() && is_private(v4.into()));
        (!is_unfit).then(|| Ipv6Addr::from_bits(self.bits | embed(v4, self.length)))
    }

    /// Returns the IPv4 address in an address with this prefix.
    #[must_use]
    pub fn embedded_in(&self, address: Ipv6Addr) -> Option<Ipv4Addr> {
        let found = extract(address, self.length)?;
        let is_own = Self::new(address, self.length) == Some(*self);
        is_own.then_some(found)
    }

    /// Returns where a port of an IPv4 host is reached; `None` as in [`Self::address_of`], and for
    /// a host with IPv6.
    #[must_use]
    pub fn translate(&self, host: SocketAddr) -> Option<SocketAddr> {
        let IpAddr::V4(v4) = host.ip() else { return None };
        let address = self.address_of(v4)?;
        Some(SocketAddr::new(address.into(), host.port()))
    }

    /// Returns the port of the IPv4 host that is reached there; `None` without this prefix.
    #[must_use]
    pub fn original(&self, translated: SocketAddr) -> Option<SocketAddr> {
        let IpAddr::V6(v6) = translated.ip() else {
            return None;
        };
        let host = self.embedded_in(v6)?;
        Some(SocketAddr::new(host.into(), translated.port()))
    }
}

impl fmt::Display for Prefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", Ipv6Addr::from_bits(self.bits), self.length)
    }
}

/// Returns the bits of an IPv4 address behind a prefix of that length.
fn embed(v4: Ipv4Addr, length: u8) -> u128 {
    let behind = u128::from(v4.to_bits()) << 96 >> length;
    if length == 96 {
        return behind;
    }
    // The octet of bits 64 to 71 is skipped: what would be in it or behind it moves by 8 bits.
    let low = behind & u128::from(u64::MAX);
    behind - low + (low >> 8)
}

/// Returns the IPv4 address behind a prefix of that length; `None` if bits 64 to 71 are not zero.
///
/// With a length of 96 these bits are part of the prefix, and are not checked.
fn extract(address: Ipv6Addr, length: u8) -> Option<Ipv4Addr> {
    let bits = address.to_bits();
    if length == 96 {
        return Some(Ipv4Addr::from_bits(bits as u32));
    }
    let low = bits & u128::from(u64::MAX);
    let joined = bits - low + (low << 8 & u128::from(u64::MAX));
    (low >> 56 == 0).then(|| Ipv4Addr::from_bits((joined << length >> 96) as u32))
}

/// Returns whether an address is in a network that is reserved for translators: it reaches an IPv4
/// host, and on networks with a translator only.
#[must_use]
pub fn is_of_translator(address: Ipv6Addr) -> bool {
    let reserved = [(WELL_KNOWN, 96), LOCAL_USE];
    let mut nets = reserved.iter().map(|(first, bits)| Net::new(*first, *bits));
    nets.any(|net| net.contains(address.into()))
}

/// Returns the prefixes in the addresses of [`KNOWN_NAME`], at most [`MAX_PREFIXES`], in the order
/// of the answer.
///
/// A prefix that occurs before both IPv4 addresses of the name is certain. For an address without
/// such a prefix, the only position of one of the IPv4 addresses counts; if there are several, the
/// address is ignored.
#[must_use]
pub fn prefixes_of(addresses: &[Ipv6Addr]) -> Vec<Prefix> {
    let addresses = &addresses[..addresses.len().min(MAX_ADDRESSES)];
    let is_certain = |prefix: &Prefix| {
        KNOWN_ADDRESSES.iter().all(|v4| {
            addresses
                .iter()
                .any(|address| prefix.embedded_in(*address) == Some(*v4))
        })
    };
    let mut found = Vec::new();
    for address in addresses {
        let positions = LENGTHS
            .iter()
            .filter(|length| extract(*address, **length).is_some_and(|v4| KNOWN_ADDRESSES.contains(&v4)));
        let all: Vec<_> = positions
            .filter_map(|length| Prefix::new(*address, *length))
            .collect();
        let certain = all.iter().find(|prefix| is_certain(prefix));
        let only = all.first().filter(|_| all.len() == 1);
        if let Some(prefix) = certain.or(only)
            && !found.contains(prefix)
            && found.len() < MAX_PREFIXES
        {
            found.push(*prefix);
        }
    }
    found
}

/// Option of a router advertisement that announces the prefix of a translator (PREF64).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Announced {
    /// The prefix.
    pub prefix: Prefix,
    /// Lifetime of the announcement; zero withdraws the prefix.
    pub lifetime: Duration,
}

impl Announced {
    /// Parses the value of the option, without its type and length.
    ///
    /// `None` if it has another size than the standard's, has an unknown code of the prefix's
    /// length, or contains a prefix that no translator may have.
    #[must_use]
    pub fn parse(value: &[u8]) -> Option<Self> {
        let value: &[u8; 14] = value.try_into().ok()?;
        let head = u16::from_be_bytes([value[0], value[1]]);
        let mut octets = [0; 16];
        octets[..12].copy_from_slice(&value[2..]);
        let length = *CODED_LENGTHS.get(usize::from(head & CODE))?;
        Some(Self {
            prefix: Prefix::new(Ipv6Addr::from(octets), length)?,
            lifetime: Duration::from_secs(u64::from(head & !CODE)),
        })
    }

    /// Returns the value of the option; the lifetime is rounded down to multiples of 8 s.
    #[must_use]
    pub fn emit(&self) -> [u8; 14] {
        let code = CODED_LENGTHS
            .iter()
            .position(|length| *length == self.prefix.length);
        let seconds = u16::try_from(self.lifetime.as_secs()).unwrap_or(u16::MAX);
        let head = seconds & !CODE | code.unwrap_or_default() as u16;
        let mut value = [0; 14];
        value[..2].copy_from_slice(&head.to_be_bytes());
        value[2..].copy_from_slice(&self.prefix.bits.to_be_bytes()[..12]);
        value
    }
}

/// Lengths of prefixes. Source: RFC 6052 section 2.2. Units: bits.
pub const LENGTHS: [u8; 6] = [32, 40, 48, 56, 64, 96];
/// Lengths by their code in the option. Source: RFC 8781 section 4.
const CODED_LENGTHS: [u8; 6] = [96, 64, 56, 48, 40, 32];
/// Bits of the code; the others are the lifetime in units of 8 s, so that the code's bits count as
/// zero. Source: RFC 8781 section 4.
const CODE: u16 = 0b111;
/// Well-known prefix. Source: RFC 6052 section 2.1.
pub const WELL_KNOWN_PREFIX: Prefix = Prefix {
    bits: WELL_KNOWN.to_bits(),
    length: 96,
};
/// First address of the well-known prefix. Source: RFC 6052 section 2.1.
const WELL_KNOWN: Ipv6Addr = Ipv6Addr::new(0x64, 0xff9b, 0, 0, 0, 0, 0, 0);
/// Network for translators within a domain. Source: RFC 8215.
const LOCAL_USE: (Ipv6Addr, u8) = (Ipv6Addr::new(0x64, 0xff9b, 1, 0, 0, 0, 0, 0), 48);
/// Networks of which a prefix may be part: global unicast (RFC 4291 section 2.4, as assigned),
/// unique local (RFC 4193), and [`LOCAL_USE`].
const PERMITTED: [(Ipv6Addr, u8); 3] = [
    (Ipv6Addr::new(0x2000, 0, 0, 0, 0, 0, 0, 0), 3),
    (Ipv6Addr::new(0xfc00, 0, 0, 0, 0, 0, 0, 0), 7),
    LOCAL_USE,
];
/// IPv4 addresses of [`KNOWN_NAME`]. Source: RFC 7050 section 8.2.
const KNOWN_ADDRESSES: [Ipv4Addr; 2] = [Ipv4Addr::new(192, 0, 0, 170), Ipv4Addr::new(192, 0, 0, 171)];
/// Maximum number of prefixes of a network. Source: a network has one, or one more while it changes
/// to another; twice that.
pub const MAX_PREFIXES: usize = 4;
/// Maximum number of addresses of the name that are examined. Source: the name has two IPv4
/// addresses (RFC 7050 section 8.2), so two for each prefix.
const MAX_ADDRESSES: usize = 2 * MAX_PREFIXES;

#[cfg(test)]
mod tests;
