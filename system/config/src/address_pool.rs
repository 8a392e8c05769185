//! Inner addresses that a hub assigns.

use std::net::{Ipv4Addr, Ipv6Addr};

/// Inner address pools of a hub.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pool {
    /// IPv4 network address and prefix length.
    pub v4: (Ipv4Addr, u8),
    /// IPv6 network address and prefix length.
    pub v6: Option<(Ipv6Addr, u8)>,
}

impl Pool {
    /// Returns the hub's own addresses, the first of each pool.
    #[must_use]
    pub fn hub(&self) -> (Ipv4Addr, Option<Ipv6Addr>) {
        self.host(1)
    }

    /// Returns the addresses of the host with that number.
    #[must_use]
    pub fn host(&self, number: u32) -> (Ipv4Addr, Option<Ipv6Addr>) {
        let v4 = Ipv4Addr::from_bits(self.v4.0.to_bits() | number);
        let v6 = self
            .v6
            .map(|(net, _)| Ipv6Addr::from_bits(net.to_bits() | u128::from(number)));
        (v4, v6)
    }

    /// Returns the host numbers that clients may have: all except the network, the hub and the
    /// broadcast address.
    #[must_use]
    pub fn numbers(&self) -> std::ops::Range<u32> {
        2..(1_u32 << (32 - u32::from(self.v4.1))) - 1
    }

    /// Returns whether a client may have this IPv4 address.
    #[must_use]
    pub fn has_client(&self, address: Ipv4Addr) -> bool {
        let number = address.to_bits().checked_sub(self.v4.0.to_bits());
        number.is_some_and(|number| self.numbers().contains(&number))
    }
}
