//! Networks of addresses.

use core::fmt;
use core::net::IpAddr;
use core::str::FromStr;

/// A network: address and prefix length.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Net {
    /// First address of the network.
    pub address: IpAddr,
    /// Prefix length, bits.
    pub prefix: u8,
}

impl Net {
    /// The network of that address and prefix length.
    #[must_use]
    pub fn new(address: impl Into<IpAddr>, prefix: u8) -> Self {
        Self {
            address: address.into(),
            prefix,
        }
    }

    /// The network of one address.
    #[must_use]
    pub fn host(address: impl Into<IpAddr>) -> Self {
        let address = address.into();
        Self::new(address, bits_of(address))
    }

    /// Returns whether the network contains the address.
    #[must_use]
    pub fn contains(&self, address: IpAddr) -> bool {
        self.overlaps(Self::host(address))
    }

    /// Returns whether the network contains all of the other.
    #[must_use]
    pub fn covers(&self, other: Self) -> bool {
        self.prefix <= other.prefix && self.overlaps(other)
    }

    /// Returns whether both networks have an address in common.
    #[must_use]
    pub fn overlaps(&self, other: Self) -> bool {
        let prefix = self.prefix.min(other.prefix);
        self.address.is_ipv6() == other.address.is_ipv6()
            && Self::new(self.address, prefix).first() == Self::new(other.address, prefix).first()
    }

    /// The first of its addresses: what it was made of, without host bits.
    #[must_use]
    pub fn first(&self) -> IpAddr {
        let bits = bits_of(self.address);
        let host = u32::from(bits.saturating_sub(self.prefix));
        match self.address {
            IpAddr::V4(v4) => {
                let mask = u32::MAX.checked_shl(host).unwrap_or(0);
                core::net::Ipv4Addr::from_bits(v4.to_bits() & mask).into()
            }
            IpAddr::V6(v6) => {
                let mask = u128::MAX.checked_shl(host).unwrap_or(0);
                core::net::Ipv6Addr::from_bits(v6.to_bits() & mask).into()
            }
        }
    }
}

impl fmt::Display for Net {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.prefix)
    }
}

impl FromStr for Net {
    type Err = ();

    /// `192.168.7.0/24`, or one address; host bits and lengths beyond the family's are refused.
    fn from_str(text: &str) -> Result<Self, ()> {
        let (address, prefix) = match text.split_once('/') {
            Some((address, prefix)) => (address, Some(prefix)),
            None => (text, None),
        };
        let address: IpAddr = address.parse().map_err(drop)?;
        let bits = bits_of(address);
        let prefix = prefix.map_or(Ok(bits), |prefix| prefix.parse().map_err(drop))?;
        let net = Self::new(address, prefix);
        if prefix > bits || net.first() != address {
            return Err(());
        }
        Ok(net)
    }
}

/// Bits of an address of that family.
fn bits_of(address: IpAddr) -> u8 {
    match address {
        IpAddr::V4(_) => 32,
        IpAddr::V6(_) => 128,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn net(text: &str) -> Net {
        text.parse().expect(text)
    }

    #[test]
    fn a_network_knows_its_addresses() {
        let has = |text: &str, address: &str| net(text).contains(address.parse().expect(address));
        assert!(has("0.0.0.0/0", "255.0.0.1"));
        assert!(has("::/0", "ff::"));
        assert!(!has("::/0", "1.2.3.4"));
        assert!(has("10.0.0.7/32", "10.0.0.7"));
        assert!(!has("10.0.0.7", "10.0.0.6"));
        assert!(has("10.20.0.0/16", "10.20.255.255"));
        assert!(!has("fd00:1::/64", "fd00:1:0:1::"));
    }

    #[test]
    fn networks_overlap_where_one_has_the_other() {
        assert!(net("10.0.0.0/8").covers(net("10.1.0.0/16")));
        assert!(!net("10.1.0.0/16").covers(net("10.0.0.0/8")));
        assert!(net("10.1.0.0/16").overlaps(net("10.0.0.0/8")));
        assert!(!net("10.1.0.0/16").overlaps(net("10.2.0.0/16")));
        assert!(!net("0.0.0.0/0").overlaps(net("::/0")));
        assert!(
            Net::new([10, 0, 3, 7], 24).overlaps(net("10.0.3.0/25")),
            "host bits"
        );
    }

    #[test]
    fn what_is_written_is_read_and_nothing_else() {
        for text in ["192.168.7.0/24", "0.0.0.0/0", "fd00:7::/64", "2001:db8::1/128"] {
            assert_eq!(net(text).to_string(), text);
        }
        for wrong in [
            "",
            "10.0.0.1/24",
            "10.0.0.0/33",
            "::1/64",
            "fd00::/129",
            "home",
            "10.0.0.0/",
        ] {
            assert!(wrong.parse::<Net>().is_err(), "{wrong}");
        }
    }
}
