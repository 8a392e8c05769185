//! Reachable destinations of a hub's clients in addition to public addresses: `[reach]` of
//! `hub.toml`, and clients for which the hub is a waypoint.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use hawser_units::{Net, Service};
use serde::de::{self, Deserializer};
use serde::{Deserialize, Serialize, Serializer};

use crate::invitation::check_name;
use crate::one_or_more::OneOrMore;

/// Contents of `[reach]`. Only listed destinations are permitted.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ReachConfig {
    /// Permission for connections between clients.
    pub clients: bool,
    /// Services of the hub itself: `"tcp 22"`, `"udp 123"`, `"all"`.
    pub hub: Vec<HubService>,
    /// Private networks that clients may reach: `"192.168.7.0/24"`.
    pub networks: Vec<AnyNet>,
    /// Denied networks, which take precedence over all permissions: `"198.51.100.0/24"`.
    pub deny: Vec<AnyNet>,
    /// IP protocols that clients may send in addition to TCP, UDP and ICMP: `"esp"`, `"gre"`,
    /// `"132"`.
    pub protocols: Vec<Protocol>,
    /// Networks whose hosts may open connections to clients.
    pub from: Vec<AnyNet>,
    /// Groups of clients, for `allow`.
    pub groups: BTreeMap<String, ClientNames>,
    /// Connections that some clients may open in addition to those of all clients.
    pub allow: Vec<AllowConfig>,
}

/// Connections that some clients may begin.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AllowConfig {
    /// Clients and groups by name; `*` for all.
    from: OneOrMore<String>,
    /// Permitted destination.
    pub to: AllowTo,
    /// Permitted services; all if empty.
    #[serde(default)]
    pub ports: Vec<HubService>,
}

/// Destination of [`AllowConfig`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AllowTo {
    /// A network outside the tunnel.
    Net(Net),
    /// A client itself, by name.
    Client(String),
    /// Subnets behind a client, by its name.
    Subnets(String),
}

impl FromStr for AllowTo {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let name = |name: &str| check_name(name).map(|()| name.to_owned()).map_err(drop);
        if let Some(of) = text.strip_prefix("client:") {
            return name(of).map(Self::Client);
        }
        if let Some(of) = text.strip_prefix("subnet:") {
            return name(of).map(Self::Subnets);
        }
        text.parse().map(Self::Net)
    }
}

from_text!(
    AllowTo,
    "a network or address, \"client:NAME\", or \"subnet:NAME\" for the subnets behind a client"
);

impl fmt::Display for AllowTo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Net(net) => net.fmt(f),
            Self::Client(name) => write!(f, "client:{name}"),
            Self::Subnets(name) => write!(f, "subnet:{name}"),
        }
    }
}

impl ReachConfig {
    /// Returns whether a rule applies to the client with that name.
    #[must_use]
    pub fn is_for(&self, allow: &AllowConfig, client: &str) -> bool {
        allow.from.0.iter().any(|name| {
            let group = self.groups.get(name);
            name == ALL || name == client || group.is_some_and(|group| group.allows(client))
        })
    }
}

/// IP protocol by its number (IANA, protocol numbers).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Protocol(pub u8);

impl FromStr for Protocol {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        match text {
            "gre" => Ok(Self(47)),
            "esp" => Ok(Self(50)),
            "ah" => Ok(Self(51)),
            "sctp" => Ok(Self(132)),
            number => number.parse().map(Self).map_err(drop),
        }
    }
}

from_text!(
    Protocol,
    "an IP protocol: gre, esp, ah, sctp or a number up to 255 as text, such as \"89\""
);

/// Service of the hub that clients may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HubService(pub Service);

/// Connections from the tunnel that a client accepts.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(from = "InboundValue")]
pub enum Inbound {
    /// Answers and echo requests only.
    #[default]
    Closed,
    /// Any connection that the hub permits, also to networks behind this machine.
    Open,
    /// Connections to these services.
    Services(Vec<HubService>),
}

#[derive(Deserialize)]
#[serde(
    untagged,
    expecting = "expected \"closed\", \"open\", or services such as [\"tcp 22\"]"
)]
enum InboundValue {
    Word(InboundWord),
    Services(Vec<HubService>),
}

#[derive(Deserialize)]
#[serde(rename_all = "kebab-case")]
enum InboundWord {
    Closed,
    Open,
}

impl From<InboundValue> for Inbound {
    fn from(value: InboundValue) -> Self {
        match value {
            InboundValue::Word(InboundWord::Closed) => Self::Closed,
            InboundValue::Word(InboundWord::Open) => Self::Open,
            InboundValue::Services(services) => Self::Services(services),
        }
    }
}

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

/// Network of either family, or a single address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AnyNet(pub Net);

impl FromStr for AnyNet {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        text.parse().map(Self)
    }
}

from_text!(
    AnyNet,
    "a network without host bits or an address, such as \"192.168.7.0/24\" or \"fd00:7::/64\""
);

/// Clients of a hub with a permission: by name, or `*` for all.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct ClientNames(Vec<String>);

impl ClientNames {
    /// Creates the list of these names.
    ///
    /// # Errors
    /// The first invalid client name, and the permitted form.
    pub fn new(names: Vec<String>) -> Result<Self, String> {
        let wrong = names
            .iter()
            .find(|name| *name != ALL && check_name(name).is_err());
        match wrong {
            Some(name) => Err(format!(
                "{name:?} is not a client name: expected names as `hawser hub list` shows them, or \"*\""
            )),
            None => Ok(Self(names)),
        }
    }

    /// Returns the names as in the file.
    #[must_use]
    pub fn names(&self) -> &[String] {
        &self.0
    }

    /// Yields the names of single clients.
    pub fn named(&self) -> impl Iterator<Item = &str> {
        let names = self.0.iter().map(String::as_str);
        names.filter(|name| *name != ALL)
    }

    /// Returns whether the client with that name is permitted.
    #[must_use]
    pub fn allows(&self, name: &str) -> bool {
        self.0.iter().any(|allowed| allowed == name || allowed == ALL)
    }

    /// Returns whether no client is permitted.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl<'de> Deserialize<'de> for ClientNames {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Self::new(Vec::deserialize(deserializer)?).map_err(de::Error::custom)
    }
}

impl fmt::Display for AnyNet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

const ALL: &str = "*";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_are_for_groups_and_names() {
        let text = r#"
            groups = { crew = ["alice", "bob"] }
            allow = [
                { from = ["crew", "carol"], to = "10.7.0.0/24", ports = ["tcp 443"] },
                { from = "*", to = "subnet:boat" },
                { from = "bob", to = "client:alice" },
            ]
        "#;
        let reach: ReachConfig = toml::from_str(text).expect("rules");
        let whom = |at: usize| {
            let all = ["alice", "bob", "carol", "dave"];
            all.into_iter()
                .filter(|name| reach.is_for(&reach.allow[at], name))
                .collect::<Vec<_>>()
        };
        assert_eq!(whom(0), ["alice", "bob", "carol"]);
        assert_eq!(whom(1).len(), 4);
        assert_eq!(whom(2), ["bob"]);
        assert_eq!(reach.allow[1].to, AllowTo::Subnets("boat".to_owned()));
        assert_eq!(reach.allow[2].to.to_string(), "client:alice");
    }

    #[test]
    fn a_destination_is_a_network_or_names_a_client() {
        for wrong in ["boat", "subnet:", "client:A B", "10.7.0.1/24"] {
            let text = format!("allow = [{{ from = \"*\", to = \"{wrong}\" }}]");
            let error = toml::from_str::<ReachConfig>(&text).expect_err(wrong);
            assert!(
                error.message().contains("subnet:NAME"),
                "{wrong}: {}",
                error.message()
            );
        }
    }
}
