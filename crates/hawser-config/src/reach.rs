//! What a hub's clients may reach beside public addresses: `[reach]` of `hub.toml`, and for whom
//! the hub is a waypoint.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use hawser_linux::isolation::{Net, Service};
use serde::de::{self, Deserializer};
use serde::{Deserialize, Serialize, Serializer};

use super::values::address_and_prefix;
use crate::invitation::check_name;

/// `[reach]`. Nothing is allowed unless it is named.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ReachConfig {
    /// Whether clients reach each other.
    pub clients: bool,
    /// What they reach of the hub itself: `"tcp 22"`, `"udp 123"`, `"all"`.
    pub hub: Vec<HubService>,
    /// Private networks that they reach: `"192.168.7.0/24"`.
    pub networks: Vec<AnyNet>,
    /// Networks whose hosts may begin connections to clients.
    pub from: Vec<AnyNet>,
}

/// Something on the hub that clients may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HubService(pub Service);

impl FromStr for HubService {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        text.parse().map(Self)
    }
}

impl Serialize for HubService {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&self.0)
    }
}

from_text!(
    HubService,
    "a service, such as \"tcp 22\" or \"udp 123\", or \"all\""
);

/// A network of either family, or one address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AnyNet(pub Net);

impl FromStr for AnyNet {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let (address, prefix) = address_and_prefix(text).ok_or(())?;
        let whole = if address.is_ipv4() { 32 } else { 128 };
        let prefix = prefix.unwrap_or(whole);
        let has_host_bits = match address {
            IpAddr::V4(v4) => v4.to_bits().checked_shl(prefix.into()).unwrap_or(0) != 0,
            IpAddr::V6(v6) => v6.to_bits().checked_shl(prefix.into()).unwrap_or(0) != 0,
        };
        if prefix > whole || has_host_bits {
            return Err(());
        }
        Ok(Self(Net::new(address, prefix)))
    }
}

from_text!(
    AnyNet,
    "a network without host bits or an address, such as \"192.168.7.0/24\" or \"fd00:7::/64\""
);

/// The clients that may send moved flows through a hub.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WaypointFor {
    names: Vec<String>,
}

impl WaypointFor {
    /// Whether the client of that name may.
    #[must_use]
    pub fn allows(&self, name: &str) -> bool {
        self.names.iter().any(|allowed| allowed == name || allowed == ALL)
    }

    /// Whether anybody may.
    #[must_use]
    pub fn is_used(&self) -> bool {
        !self.names.is_empty()
    }
}

impl<'de> Deserialize<'de> for WaypointFor {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let names = Vec::<String>::deserialize(deserializer)?;
        let wrong = names
            .iter()
            .find(|name| *name != ALL && check_name(name).is_err());
        match wrong {
            Some(name) => Err(de::Error::custom(format_args!(
                "waypoint: {name:?} is no client's name: expected names as `hawser hub list` shows them, or \"*\""
            ))),
            None => Ok(Self { names }),
        }
    }
}

impl fmt::Display for AnyNet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.0.address, self.0.prefix)
    }
}

const ALL: &str = "*";
