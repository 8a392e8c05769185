//! `client.toml`, machines behind this one: `forward` and `[[port_forward]]`.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::str::FromStr;

use hawser_linux::gateway::PortForward;
use hawser_units::Service;
use serde::Deserialize;
use serde::de::{self, Deserializer};

use super::reach::HubService;
use super::values::InterfaceName;

/// Machines for which this one forwards.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum Forward {
    /// None.
    #[default]
    Off,
    /// Machines behind every interface that is not a network in use.
    All,
    /// Machines behind these interfaces.
    Lans(Vec<InterfaceName>),
}

impl Forward {
    /// Returns whether forwarding is on.
    #[must_use]
    pub fn is_on(&self) -> bool {
        *self != Self::Off
    }

    /// Returns the listed interfaces.
    #[must_use]
    pub fn lans(&self) -> Vec<String> {
        match self {
            Self::Off | Self::All => Vec::new(),
            Self::Lans(names) => names.iter().map(|name| name.0.clone()).collect(),
        }
    }
}

impl<'de> Deserialize<'de> for Forward {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Either;
        impl<'de> de::Visitor<'de> for Either {
            type Value = Forward;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("true, false, or the interfaces of the LANs, such as [\"br-lan\"]")
            }

            fn visit_bool<E: de::Error>(self, is_on: bool) -> Result<Forward, E> {
                Ok(if is_on { Forward::All } else { Forward::Off })
            }

            fn visit_seq<A: de::SeqAccess<'de>>(self, mut list: A) -> Result<Forward, A::Error> {
                let mut names = Vec::new();
                while let Some(name) = list.next_element()? {
                    names.push(name);
                }
                if names.is_empty() {
                    return Err(de::Error::custom(
                        "no LAN is listed: expected forward = [\"br-lan\"], or false",
                    ));
                }
                Ok(Forward::Lans(names))
            }
        }
        deserializer.deserialize_any(Either)
    }
}

/// Table `[[port_forward]]`: connections that the hub forwards to this client at a port are
/// forwarded to a machine behind it.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(try_from = "RawPort")]
pub struct PortForwardConfig(pub PortForward);

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawPort {
    port: HubService,
    to: Machine,
}

impl TryFrom<RawPort> for PortForwardConfig {
    type Error = String;

    fn try_from(raw: RawPort) -> Result<Self, String> {
        if raw.port.0 == Service::All && raw.to.port.is_some() {
            return Err(
                "all ports cannot be forwarded to one port: remove the port from `to`, or set a number in `port`".to_owned(),
            );
        }
        Ok(Self(PortForward {
            service: raw.port.0,
            to: raw.to.address,
            port: raw.to.port,
        }))
    }
}

/// Machine behind a gateway, with a port: `"192.168.50.7:80"`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Machine {
    address: IpAddr,
    port: Option<u16>,
}

impl FromStr for Machine {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let machine = match text.parse::<SocketAddr>() {
            Ok(both) => Self {
                address: both.ip(),
                port: Some(both.port()).filter(|port| *port > 0),
            },
            Err(_) => Self {
                address: text.parse().map_err(|_| ())?,
                port: None,
            },
        };
        let is_host = !machine.address.is_unspecified() && !machine.address.is_multicast();
        is_host.then_some(machine).ok_or(())
    }
}

from_text!(
    Machine,
    "an address with or without a port, such as \"192.168.50.7:80\" or \"[fd00:50::7]:80\""
);
