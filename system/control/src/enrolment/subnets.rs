//! Subnets behind clients, which the hub routes to them.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use anyhow::bail;
use hawser_config::{ClientNames, Pool};
use hawser_units::Net;
use hawser_wire::control::MAX_SUBNETS;
use serde::{Deserialize, Serialize};

use super::records::{Edit, Known, unknown};
use super::{Client, ClientStore, check_name};

/// Subnet behind a client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Subnet {
    /// Addresses of the subnet.
    pub net: Net,
    /// Clients that may open connections to it, including machines behind them.
    pub guests: ClientNames,
}

/// Subnet behind a client, in the form for routing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Led {
    /// Addresses of the subnet.
    pub net: Net,
    /// Networks that may open connections to it.
    pub guests: Vec<Net>,
    /// Inner addresses of the client.
    pub to: Vec<IpAddr>,
}

impl fmt::Display for Subnet {
    /// Formats a subnet as `192.168.50.0/24 bob carol`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.net.fmt(f)?;
        self.guests
            .names()
            .iter()
            .try_for_each(|name| write!(f, " {name}"))
    }
}

impl FromStr for Subnet {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut words = text.split_ascii_whitespace();
        let net = words.next().and_then(|word| word.parse().ok());
        Ok(Self {
            net: net.ok_or_else(|| format!("{text:?} does not begin with a subnet"))?,
            guests: ClientNames::new(words.map(str::to_owned).collect())?,
        })
    }
}

impl Serialize for Subnet {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Subnet {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?
            .parse()
            .map_err(serde::de::Error::custom)
    }
}

impl Client {
    /// Returns the subnets behind the client.
    #[must_use]
    pub fn nets(&self) -> Vec<Net> {
        self.subnets.iter().map(|subnet| subnet.net).collect()
    }

    /// Returns all addresses of the client and of its subnets.
    pub fn reach(&self) -> impl Iterator<Item = Net> {
        self.inner().into_iter().map(Net::host).chain(self.nets())
    }
}

impl ClientStore {
    /// Routes a subnet to a client, or ends that. `guests` replace the former ones.
    ///
    /// # Errors
    /// If there is no such client or guest, the subnet is invalid or overlaps the pools or another
    /// one, or writing fails; nothing is changed.
    pub fn set_subnet(&mut self, name: &str, subnet: &Subnet, is_on: bool) -> anyhow::Result<()> {
        check_name(name)?;
        let pool = self.pool;
        self.change(|known| {
            let mut client = known.clients.get(name).cloned().ok_or_else(|| unknown(name))?;
            if client.wireguard.is_some() && is_on {
                bail!("{name} uses WireGuard, which supports only its own address: no subnet can be routed to it");
            }
            let before = client.subnets.len();
            client.subnets.retain(|other| other.net != subnet.net);
            if is_on {
                let mut guests = subnet.guests.named();
                if let Some(nobody) = guests.find(|guest| !known.clients.contains_key(*guest)) {
                    return Err(unknown(nobody));
                }
                known.check_subnet(&client, subnet.net, pool)?;
                client.subnets.push(subnet.clone());
            } else if client.subnets.len() == before {
                bail!(
                    "{} is not routed to {name}: `hawser hub list` shows the subnets",
                    subnet.net
                );
            }
            Ok((vec![Edit::Put(Box::new(client))], ()))
        })
    }

    /// Returns the subnets behind all clients.
    #[must_use]
    pub fn subnets(&self) -> Vec<Led> {
        let led = |client: &Client, subnet: &Subnet| {
            let guests = self.iter().filter(|client| subnet.guests.allows(&client.name));
            Led {
                net: subnet.net,
                guests: guests.flat_map(Client::reach).collect(),
                to: client.inner(),
            }
        };
        let all = self.iter();
        let all = all.flat_map(|client| client.subnets.iter().map(move |subnet| (client, subnet)));
        all.map(|(client, subnet)| led(client, subnet)).collect()
    }
}

impl Known {
    /// Checks whether a client may have this subnet in addition.
    fn check_subnet(&self, client: &Client, net: Net, pool: Pool) -> anyhow::Result<()> {
        let shortest = if net.address.is_ipv6() { 16 } else { 8 };
        let is_of_hosts = match net.address {
            IpAddr::V4(v4) => {
                !(v4.is_loopback()
                    || v4.is_multicast()
                    || v4.is_link_local()
                    || v4.octets()[0] == 0
                    || v4.octets()[0] >= 240)
            }
            IpAddr::V6(v6) => !(v6.is_loopback() || v6.is_multicast() || v6.is_unicast_link_local()),
        };
        if net.prefix < shortest || !is_of_hosts {
            bail!(
                "{net} is not a subnet of hosts: expected one such as 192.168.50.0/24 or fd00:50::/64, with a prefix length of at least {shortest}"
            );
        }
        let pools = [
            Some(Net::new(pool.v4.0, pool.v4.1)),
            pool.v6.map(|(net, prefix)| Net::new(net, prefix)),
        ];
        if let Some(pool) = pools.into_iter().flatten().find(|pool| pool.overlaps(net)) {
            bail!("{net} overlaps {pool}, the pool of the clients' inner addresses");
        }
        for other in self.clients.values() {
            let theirs = if other.name == client.name {
                &client.subnets
            } else {
                &other.subnets
            };
            if let Some(clash) = theirs.iter().find(|theirs| theirs.net.overlaps(net)) {
                let (name, clash) = (&other.name, clash.net);
                bail!(
                    "{net} overlaps {clash}, which is routed to {name}: run `hawser hub subnet {name} {clash} --off` first"
                );
            }
        }
        if client.subnets.len() >= MAX_SUBNETS {
            bail!(
                "{} has {MAX_SUBNETS} subnets, which is the maximum: use a larger subnet",
                client.name
            );
        }
        Ok(())
    }
}
