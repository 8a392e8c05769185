//! `client.toml`, direct mode: the distribution of flows, and rules for some of them.

use std::collections::BTreeMap;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::num::NonZeroU16;
use std::str::FromStr;
use std::time::Duration;

use hawser_linux::direct::{Match, Protocol};
use hawser_steer::assignment::Measure;
use hawser_steer::endpoints::Part;
use hawser_steer::names;
use hawser_steer::policy::Kind;
use hawser_steer::policy::conditions::Conditions;
use hawser_units::Net;
use serde::Deserialize;
use serde::de::{self, Deserializer};
use toml::{Table, Value};

use super::one_or_more::OneOrMore;
use super::values::address_and_prefix;
use super::when::When;
use super::{Deadline, HostName, Pattern, Span, TcpMode};

mod deadline;
mod form;

/// Table `[direct]`.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct DirectConfig {
    /// Distribution of flows without a rule.
    pub spread: Spread,
    /// Forwarding for other machines.
    pub forward: bool,
    /// Implementation of the table of flows.
    pub dataplane: Dataplane,
    /// Use of all networks by MPTCP connections.
    pub mptcp: bool,
    /// Page that shows whether a network has a captive portal.
    pub portal_check: PortalCheck,
    /// Interval of probes to gateways.
    pub probe_every: Span,
    /// Port (UDP and TCP) for peers that move flows which end here.
    pub peer_port: Option<NonZeroU16>,
    /// Migration of flows to known peers when their network fails, or another has more capacity.
    #[serde(rename = "move")]
    pub moves: Moves,
    /// Time for which established connections of an unresponsive network are preserved, in case it
    /// returns.
    pub keep_flows: Span,
    /// IPv4 address that applications see.
    pub address: Ipv4Addr,
    /// IPv6 address that applications see.
    pub address6: Ipv6Addr,
}

impl Default for DirectConfig {
    fn default() -> Self {
        Self {
            spread: Spread(Measure::Capacity),
            forward: false,
            dataplane: Dataplane::Nftables,
            mptcp: true,
            // The page is Debian's own, which its desktops also use.
            portal_check: "http://network-test.debian.org/nm NetworkManager is online"
                .parse()
                .map_or(PortalCheck(None), |page| PortalCheck(Some(page))),
            probe_every: Span(Duration::from_millis(500)),
            peer_port: None,
            moves: Moves::Auto,
            keep_flows: Span(Duration::from_secs(3)),
            // Shared address space (RFC 6598), outside the part that providers use first.
            address: Ipv4Addr::new(100, 64, 0, 2),
            // Unique local (RFC 4193): "HAWSER" is the global id.
            address6: Ipv6Addr::new(0xfd48, 0x4157, 0x5345, 0x5200, 0, 0, 0, 2),
        }
    }
}

impl DirectConfig {
    /// Returns the addresses that applications see.
    #[must_use]
    pub fn own(&self) -> [IpAddr; 2] {
        [self.address.into(), self.address6.into()]
    }
}

/// Table `[[rule]]`: flows and their route. The first matching rule decides.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(try_from = "RawRule")]
pub struct RuleConfig {
    /// Conditions of the rule, and of the networks that it may choose.
    pub when: Conditions,
    /// Flows of the rule.
    pub flows: Match,
    /// Destination names; all when empty.
    pub domains: Vec<names::Pattern>,
    /// The networks, in order of preference; all when empty.
    pub networks: Vec<NetworkChoice>,
    /// Distribution of the flows among the networks, instead of the first present network.
    pub spread: Option<Spread>,
    /// Set if flows are rejected while none of the networks is present.
    pub strict: bool,
    /// Hub of the fleet for its flows, instead of the one in use. The flows are selected by
    /// destination, protocol and port.
    pub hub: Option<HostName>,
    /// Deadline of its flows' packets in the tunnel.
    pub deadline: Option<Deadline>,
    /// Form of its TCP connections in the tunnel.
    pub tcp: Option<TcpMode>,
    /// Route through the hub or outside the tunnel; [`RuleConfig::via`] gives the meaning of
    /// `None`.
    via: Option<Via>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawRule {
    #[serde(default)]
    when: When,
    protocol: Option<ProtocolName>,
    #[serde(default)]
    port: OneOrMore<Ports>,
    #[serde(default)]
    from: OneOrMore<Subnet>,
    #[serde(default)]
    to: OneOrMore<Subnet>,
    #[serde(default)]
    domain: OneOrMore<Domain>,
    dscp: Option<Dscp>,
    cgroup: Option<Cgroup>,
    #[serde(default)]
    network: OneOrMore<NetworkChoice>,
    spread: Option<Spread>,
    #[serde(default)]
    strict: bool,
    hub: Option<HostName>,
    deadline: Option<Deadline>,
    tcp: Option<TcpMode>,
    via: Option<Via>,
}

impl TryFrom<RawRule> for RuleConfig {
    type Error = String;

    fn try_from(raw: RawRule) -> Result<Self, String> {
        let protocol = raw.protocol.map(|name| name.0);
        let is_open = raw.network.0.is_empty() && raw.spread.is_none();
        let says_how = raw.deadline.is_some() || raw.tcp.is_some();
        if is_open && raw.via.is_none() && raw.hub.is_none() && !says_how {
            return Err(
                "the rule has no effect on its flows: add network = \"wlan0\", spread = \"even\", deadline = \"150ms\", tcp = \"end-to-end\", via = \"direct\", via = \"hub\" or via = \"faster\""
                    .to_owned(),
            );
        }
        let chooses = !is_open || raw.when.is_of_networks();
        if raw.via == Some(Via::Hub) && chooses {
            return Err(
                "the tunnel to the hub uses all networks: remove network, spread, cost_below, quota_left_above and signal_above, or write via = \"direct\""
                    .to_owned(),
            );
        }
        let narrows = raw.spread.is_some() || raw.strict || raw.when.is_of_networks();
        if raw.via == Some(Via::Faster) && narrows {
            return Err(
                "via = \"faster\" compares times only: remove spread, strict, cost_below, quota_left_above and signal_above, or write via = \"direct\""
                    .to_owned(),
            );
        }
        if raw.hub.is_some() && raw.via.is_some_and(|via| via != Via::Hub) {
            return Err(
                "hub = \"hub2.example.org\" applies to flows in the tunnel: remove hub or via".to_owned(),
            );
        }
        if protocol == Some(Protocol::Icmp) && !raw.port.0.is_empty() {
            return Err("icmp has no ports: remove port, or write protocol = \"tcp\" or \"udp\"".to_owned());
        }
        let rule = Self {
            when: raw.when.into(),
            flows: Match {
                protocol,
                ports: raw.port.0.iter().map(|ports| (ports.0, ports.1)).collect(),
                from: raw.from.0.iter().map(|subnet| subnet.0).collect(),
                to: raw.to.0.iter().map(|subnet| subnet.0).collect(),
                dscp: raw.dscp.map(|dscp| dscp.0),
                cgroup: raw.cgroup.map(|cgroup| cgroup.0),
                sets: Vec::new(),
                intent: None,
            },
            domains: raw.domain.0.into_iter().map(|domain| domain.0).collect(),
            networks: raw.network.0,
            spread: raw.spread,
            strict: raw.strict,
            hub: raw.hub,
            deadline: raw.deadline,
            tcp: raw.tcp,
            via: raw.via,
        };
        if let Some(reason) = rule.unfit_for_deadline().or(rule.unfit_for_form()) {
            return Err(reason.to_owned());
        }
        if rule.hub.is_some() && (!is_open || rule.strict || !rule.is_by_destination()) {
            return Err(
                "hub = \"hub2.example.org\" needs to, protocol or port, and supports no other condition: add one of them, and remove the others"
                    .to_owned(),
            );
        }
        if rule.strict && !chooses && !rule.is_via(Via::Direct) {
            return Err(
                "strict refuses flows while none of the rule's networks is present: add network = \"wlan0\", or remove strict"
                    .to_owned(),
            );
        }
        Ok(rule)
    }
}

impl RuleConfig {
    /// Parses a rule from the keys of a `[[rule]]` table and their values, as written by a user;
    /// commas separate several values of a key.
    ///
    /// # Errors
    /// The error, and the correct form.
    pub fn of_words(words: &BTreeMap<String, String>) -> Result<Self, String> {
        let value = |text: &String| {
            let parts = text.split(',').map(|part| Value::String(part.trim().to_owned()));
            match parts.collect::<Vec<_>>() {
                parts if parts.len() > 1 => Value::Array(parts),
                _ => Value::String(text.trim().to_owned()),
            }
        };
        let keys = words.iter().map(|(key, text)| (key.clone(), value(text)));
        let table: Table = keys.collect();
        let rule: Self = table
            .try_into()
            .map_err(|error: toml::de::Error| error.message().to_owned())?;
        let is_of_file = [("hub", rule.hub.is_some()), ("tcp", rule.tcp.is_some())];
        match is_of_file.iter().find(|(_, is_set)| *is_set) {
            Some((key, _)) => Err(format!(
                "{key} is for rules in client.toml: add the rule there, then run `hawser reload`"
            )),
            None => Ok(rule),
        }
    }

    /// Returns whether its flows are selected only by destination, protocol or port.
    fn is_by_destination(&self) -> bool {
        let flows = &self.flows;
        let alone = Match {
            to: flows.to.clone(),
            protocol: flows.protocol,
            ports: flows.ports.clone(),
            ..Match::default()
        };
        let is_alone = *flows == alone && self.domains.is_empty();
        let has_any = *flows != Match::default();
        is_alone && has_any && self.when == Conditions::default()
    }

    /// Returns the route of its flows: through the hub if there is one, unless the rule has
    /// another.
    #[must_use]
    pub fn via(&self, has_hub: bool) -> Via {
        self.via.unwrap_or(if has_hub { Via::Hub } else { Via::Direct })
    }

    /// Returns whether the rule chooses networks without effect, because its flows use the hub.
    #[must_use]
    pub fn chooses_in_vain(&self, has_hub: bool) -> bool {
        (!self.networks.is_empty() || self.spread.is_some()) && self.via(has_hub) == Via::Hub
    }

    /// Returns the flows for which the rule names a hub of the fleet, and that hub; `None` instead
    /// of a hub means the one in use (an exception: `via = "hub"` with `to`).
    #[must_use]
    pub fn by_hub(&self) -> Option<(&Match, Option<&HostName>)> {
        let is_exception = self.is_via(Via::Hub) && self.is_by_destination() && !self.flows.to.is_empty();
        (self.hub.is_some() || is_exception).then_some((&self.flows, self.hub.as_ref()))
    }

    /// Returns whether the rule itself requires that route.
    #[must_use]
    pub fn is_via(&self, via: Via) -> bool {
        self.via == Some(via)
    }
}

impl fmt::Display for RuleConfig {
    /// Formats the rule as `explain` prints it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut parts = Vec::new();
        parts.extend(self.flows.protocol_and_ports());
        parts.extend(self.flows.from.iter().map(|net| format!("from {net}")));
        parts.extend(self.flows.to.iter().map(|net| format!("to {net}")));
        parts.extend(self.domains.iter().map(|domain| format!("domain {domain}")));
        parts.extend(self.flows.dscp.map(|dscp| format!("dscp {dscp}")));
        parts.extend(
            self.flows
                .cgroup
                .as_ref()
                .map(|cgroup| format!("cgroup {cgroup}")),
        );
        if parts.is_empty() {
            parts.push("all flows".to_owned());
        }
        f.write_str(&parts.join(", "))?;
        let when = self.when.to_string();
        if when.is_empty() {
            return Ok(());
        }
        write!(f, ", when {when}")
    }
}

/// Route of flows, past the hub or through it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Via {
    /// Over one of the networks, with that network's address.
    Direct,
    /// Through the tunnel.
    Hub,
    /// Faster of both routes to the flow's destination.
    Faster,
}

impl FromStr for Via {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        match text {
            "direct" => Ok(Self::Direct),
            "hub" => Ok(Self::Hub),
            "faster" => Ok(Self::Faster),
            _ => Err(()),
        }
    }
}

from_text!(Via, "\"direct\", \"hub\" or \"faster\"");

/// Distribution of flows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Spread(pub Measure);

impl FromStr for Spread {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let measure = match text {
            "even" => Measure::Even,
            "capacity" => Measure::Capacity,
            "round-trip" => Measure::RoundTrip,
            "cost" => Measure::Cost,
            _ => return Err(()),
        };
        Ok(Self(measure))
    }
}

from_text!(Spread, "\"even\", \"capacity\", \"round-trip\" or \"cost\"");

/// Implementation of the table of flows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dataplane {
    /// The kernel.
    Nftables,
    /// Open vSwitch, by OpenFlow.
    OpenVSwitch,
}

impl FromStr for Dataplane {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        match text {
            "nftables" => Ok(Self::Nftables),
            "openvswitch" => Ok(Self::OpenVSwitch),
            _ => Err(()),
        }
    }
}

from_text!(Dataplane, "\"nftables\" or \"openvswitch\"");

/// Triggers of migrations of flows to known peers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Moves {
    /// Failure of their network, more capacity in another one, and `hawser move`.
    Auto,
    /// `hawser move` only.
    Asked,
}

impl FromStr for Moves {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        match text {
            "auto" => Ok(Self::Auto),
            "asked" => Ok(Self::Asked),
            _ => Err(()),
        }
    }
}

from_text!(Moves, "\"auto\" or \"asked\"");

/// Page and its expected beginning.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Page {
    /// Host of the page, as in a URL.
    pub host: String,
    /// Port of the host.
    pub port: u16,
    /// Path of the page.
    pub path: String,
    /// Expected beginning of the page; an empty answer (204) is accepted too.
    pub expected: String,
}

impl Page {
    /// Parses a URL that begins with `scheme`, such as `http://`; `port` is the default.
    #[must_use]
    pub fn at(url: &str, scheme: &str, port: u16) -> Option<Self> {
        let rest = url.strip_prefix(scheme)?;
        let (place, path) = rest.find('/').map_or((rest, "/"), |slash| rest.split_at(slash));
        let (host, port) = match place.rsplit_once(':') {
            // The colons of an IPv6 address are within brackets.
            Some((host, port)) if !port.ends_with(']') => (host, port.parse().ok()?),
            _ => (place, port),
        };
        let is_address = host.trim_matches(['[', ']']).parse::<IpAddr>().is_ok();
        let is_plain = path.bytes().all(|byte| byte.is_ascii_graphic());
        (is_plain && (is_address || names::normal(host).is_some())).then(|| Self {
            host: host.to_owned(),
            port,
            path: path.to_owned(),
            expected: String::new(),
        })
    }
}

impl FromStr for Page {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let (url, expected) = text.split_once(' ').unwrap_or((text, ""));
        let page = Self::at(url, "http://", 80).ok_or(())?;
        Ok(Self {
            expected: expected.trim().to_owned(),
            ..page
        })
    }
}

/// Page that detects captive portals; `None` disables the detection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortalCheck(pub Option<Page>);

impl FromStr for PortalCheck {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        match text {
            "off" => Ok(Self(None)),
            _ => text.parse().map(|page| Self(Some(page))),
        }
    }
}

from_text!(
    PortalCheck,
    "\"off\", or an http:// page and how it begins, such as \"http://example.org/check all is well\""
);

/// Role of a network for MPTCP connections.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MultipathPart(pub Part);

impl FromStr for MultipathPart {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        match text {
            "yes" => Ok(Self(Part::Equal)),
            "backup" => Ok(Self(Part::Backup)),
            "no" => Ok(Self(Part::None)),
            _ => Err(()),
        }
    }
}

from_text!(MultipathPart, "\"yes\", \"backup\" or \"no\"");

struct ProtocolName(Protocol);

impl FromStr for ProtocolName {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        match text {
            "tcp" => Ok(Self(Protocol::Tcp)),
            "udp" => Ok(Self(Protocol::Udp)),
            "icmp" => Ok(Self(Protocol::Icmp)),
            _ => Err(()),
        }
    }
}

from_text!(ProtocolName, "\"tcp\", \"udp\" or \"icmp\"");

/// Port, or the first and last of a range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Ports(u16, u16);

impl FromStr for Ports {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let (first, last) = text.split_once('-').unwrap_or((text, text));
        let port = |text: &str| text.trim().parse::<u16>().map_err(|_| ());
        let (first, last) = (port(first)?, port(last)?);
        if first <= last {
            Ok(Self(first, last))
        } else {
            Err(())
        }
    }
}

impl<'de> Deserialize<'de> for Ports {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Text;
        impl de::Visitor<'_> for Text {
            type Value = Ports;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a port such as 443, or a range such as \"8000-8100\"")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Ports, E> {
                text.parse()
                    .map_err(|()| E::invalid_value(de::Unexpected::Str(text), &self))
            }

            fn visit_i64<E: de::Error>(self, number: i64) -> Result<Ports, E> {
                u16::try_from(number)
                    .map(|port| Ports(port, port))
                    .map_err(|_| E::invalid_value(de::Unexpected::Signed(number), &self))
            }
        }
        deserializer.deserialize_any(Text)
    }
}

struct Subnet(Net);

impl FromStr for Subnet {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let (address, prefix) = address_and_prefix(text).ok_or(())?;
        let whole = if address.is_ipv6() { 128 } else { 32 };
        let prefix = prefix.unwrap_or(whole);
        if (1..=whole).contains(&prefix) {
            Ok(Self(Net::new(address, prefix)))
        } else {
            Err(())
        }
    }
}

from_text!(Subnet, "an address or a subnet, such as \"198.51.100.0/24\"");

struct Domain(names::Pattern);

impl FromStr for Domain {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        names::Pattern::parse(text).map(Self).ok_or(())
    }
}

from_text!(
    Domain,
    "a name such as \"example.org\", or \"*.example.org\" for all below it (xn--... for letters beyond ASCII)"
);

pub(super) struct Dscp(pub(super) u8);

impl FromStr for Dscp {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let lower = text.to_ascii_lowercase();
        if lower == "ef" {
            return Ok(Self(46));
        }
        let digits = lower.get(2..).unwrap_or_default().as_bytes();
        let digit = |at: usize, range: std::ops::RangeInclusive<u8>| {
            digits
                .get(at)
                .map(|c| c.wrapping_sub(b'0'))
                .filter(|value| range.contains(value))
        };
        let value = match (lower.get(..2), digits.len()) {
            (Some("cs"), 1) => digit(0, 0..=7).map(|class| class * 8),
            (Some("af"), 2) => digit(0, 1..=4)
                .zip(digit(1, 1..=3))
                .map(|(class, drop)| class * 8 + drop * 2),
            _ => text.parse().ok().filter(|value| *value < 64),
        };
        value.map(Self).ok_or(())
    }
}

from_text!(
    Dscp,
    "a code point by name or number, such as \"ef\", \"af41\", \"cs1\" or \"46\""
);

struct Cgroup(String);

impl FromStr for Cgroup {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let path = text.trim_matches('/');
        let fits = |part: &str| {
            !part.is_empty()
                && part != "."
                && part != ".."
                && part.bytes().all(|b| b.is_ascii_graphic() && b != b'"')
        };
        if path.split('/').all(fits) {
            Ok(Self(path.to_owned()))
        } else {
            Err(())
        }
    }
}

from_text!(
    Cgroup,
    "a control group below /sys/fs/cgroup, such as \"system.slice/backup.service\""
);

/// Networks of a rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NetworkChoice {
    /// Interface name.
    Name(Pattern),
    /// Kind of network.
    Kind(Kind),
}

impl fmt::Display for NetworkChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Name(pattern) => f.write_str(&pattern.0),
            Self::Kind(Kind::Wired) => f.write_str("kind:wired"),
            Self::Kind(Kind::Wifi) => f.write_str("kind:wifi"),
            Self::Kind(Kind::Cellular) => f.write_str("kind:cellular"),
            // Rules cannot name this kind.
            Self::Kind(Kind::Neighbour) => f.write_str("neighbours"),
        }
    }
}

impl FromStr for NetworkChoice {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        match text.strip_prefix("kind:") {
            Some("wired") => Ok(Self::Kind(Kind::Wired)),
            Some("wifi") => Ok(Self::Kind(Kind::Wifi)),
            Some("cellular") => Ok(Self::Kind(Kind::Cellular)),
            Some(_) => Err(()),
            None => text.parse().map(Self::Name),
        }
    }
}

from_text!(
    NetworkChoice,
    "an interface name, in which * and ? are wildcards, or kind:wired, kind:wifi, kind:cellular"
);

#[cfg(test)]
mod tests;
