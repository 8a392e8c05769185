//! What `client.toml` says of direct mode: how flows are shared out, and rules for some of them.

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

/// The table `[direct]`.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct DirectConfig {
    /// How flows are shared out that no rule is for.
    pub spread: Spread,
    /// Whether this machine forwards for others.
    pub forward: bool,
    /// What carries the table of flows.
    pub dataplane: Dataplane,
    /// Whether MPTCP connections use all networks.
    pub mptcp: bool,
    /// Which page shows over a network whether a captive portal stands before it.
    pub portal_check: PortalCheck,
    /// How often gateways are asked whether they are there.
    pub probe_every: Span,
    /// The port (UDP and TCP) at which peers come in that move flows which end here.
    pub peer_port: Option<NonZeroU16>,
    /// Whether flows to known peers move by themselves when their network goes, or another has more
    /// room.
    #[serde(rename = "move")]
    pub moves: Moves,
    /// How long established connections of a silent network are kept, in case it comes back.
    pub keep_flows: Span,
    /// The address that applications see.
    pub address: Ipv4Addr,
    /// The same for IPv6.
    pub address6: Ipv6Addr,
}

impl Default for DirectConfig {
    fn default() -> Self {
        Self {
            spread: Spread(Measure::Capacity),
            forward: false,
            dataplane: Dataplane::Nftables,
            mptcp: true,
            // Debian's own, which its desktops ask as well.
            portal_check: "http://network-test.debian.org/nm NetworkManager is online"
                .parse()
                .map_or(PortalCheck(None), |page| PortalCheck(Some(page))),
            probe_every: Span(Duration::from_millis(500)),
            peer_port: None,
            moves: Moves::Auto,
            keep_flows: Span(Duration::from_secs(3)),
            // Shared address space (RFC 6598), away from what providers use first.
            address: Ipv4Addr::new(100, 64, 0, 2),
            // Unique local (RFC 4193): "HAWSER" is the global id.
            address6: Ipv6Addr::new(0xfd48, 0x4157, 0x5345, 0x5200, 0, 0, 0, 2),
        }
    }
}

impl DirectConfig {
    /// The addresses that applications see.
    #[must_use]
    pub fn own(&self) -> [IpAddr; 2] {
        [self.address.into(), self.address6.into()]
    }
}

/// A table `[[rule]]`: which flows, and where they go. The first rule that fits decides.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(try_from = "RawRule")]
pub struct RuleConfig {
    /// When it is for any flow, and which of its networks it may choose.
    pub when: Conditions,
    /// Which flows.
    pub flows: Match,
    /// To names; all when empty.
    pub domains: Vec<names::Pattern>,
    /// The networks, in order of preference; all when empty.
    pub networks: Vec<NetworkChoice>,
    /// Shares the flows out among the networks, in place of the first that is there.
    pub spread: Option<Spread>,
    /// Refuses flows while none of the networks is there.
    pub strict: bool,
    /// The hub of the fleet through which its flows go, in place of the one in use. They are
    /// selected by destination, protocol and port.
    pub hub: Option<HostName>,
    /// The time for which packets of its flows are of use, in the tunnel.
    pub deadline: Option<Deadline>,
    /// Form of its TCP connections in the tunnel.
    pub tcp: Option<TcpMode>,
    /// Through the hub or past it; what it says with `None`, [`RuleConfig::via`] tells.
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
                "the rule says of its flows not where they go: add network = \"wlan0\", spread = \"even\", deadline = \"150ms\", tcp = \"end-to-end\", via = \"direct\", via = \"hub\" or via = \"faster\""
                    .to_owned(),
            );
        }
        let chooses = !is_open || raw.when.is_of_networks();
        if raw.via == Some(Via::Hub) && chooses {
            return Err(
                "the tunnel to the hub uses all networks: take network, spread, cost_below, quota_left_above and signal_above out, or write via = \"direct\""
                    .to_owned(),
            );
        }
        let narrows = raw.spread.is_some() || raw.strict || raw.when.is_of_networks();
        if raw.via == Some(Via::Faster) && narrows {
            return Err(
                "via = \"faster\" goes by time alone: take spread, strict, cost_below, quota_left_above and signal_above out, or write via = \"direct\""
                    .to_owned(),
            );
        }
        if raw.hub.is_some() && raw.via.is_some_and(|via| via != Via::Hub) {
            return Err(
                "hub = \"hub2.example.org\" is for flows through the tunnel: take hub out, or via".to_owned(),
            );
        }
        if protocol == Some(Protocol::Icmp) && !raw.port.0.is_empty() {
            return Err("icmp has no ports: take port out, or name tcp or udp".to_owned());
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
                "hub = \"hub2.example.org\" goes by to, protocol and port: name one of them, and take all else out"
                    .to_owned(),
            );
        }
        Ok(rule)
    }
}

impl RuleConfig {
    /// A rule of the keys of a `[[rule]]` table and their values as a person writes them; commas
    /// part several values of one key.
    ///
    /// # Errors
    /// What is wrong, and what to write instead.
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
                "{key} is for rules in client.toml: write it there, and hawser reload"
            )),
            None => Ok(rule),
        }
    }

    /// Returns whether its flows are selected by destination, protocol or port, and by nothing
    /// else.
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

    /// Which way its flows go: through the hub where there is one, unless the rule says otherwise.
    #[must_use]
    pub fn via(&self, has_hub: bool) -> Via {
        self.via.unwrap_or(if has_hub { Via::Hub } else { Via::Direct })
    }

    /// Returns the flows for which it names a hub of the fleet, and that hub; `None` instead of a
    /// hub: the one in use (an exception: `via = "hub"` with `to`).
    #[must_use]
    pub fn by_hub(&self) -> Option<(&Match, Option<&HostName>)> {
        let is_exception = self.is_via(Via::Hub) && self.is_by_destination() && !self.flows.to.is_empty();
        (self.hub.is_some() || is_exception).then_some((&self.flows, self.hub.as_ref()))
    }

    /// Whether it says so itself.
    #[must_use]
    pub fn is_via(&self, via: Via) -> bool {
        self.via == Some(via)
    }
}

impl fmt::Display for RuleConfig {
    /// As `explain` names it.
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

/// Past the hub or through it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Via {
    /// Over one of the networks, with that network's address.
    Direct,
    /// Through the tunnel.
    Hub,
    /// By whichever of them a flow's destination is reached sooner.
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

/// How flows are shared out.
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

/// What carries the table of flows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dataplane {
    /// The kernel.
    Nftables,
    /// Open vSwitch, told by OpenFlow.
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

/// What moves flows to known peers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Moves {
    /// The end of their network, more room in another, and `hawser move`.
    Auto,
    /// `hawser move` alone.
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

/// A page and how it begins.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Page {
    /// Whose, as a browser would name it.
    pub host: String,
    /// Its port.
    pub port: u16,
    /// What is asked for.
    pub path: String,
    /// How the page begins; an empty answer (204) is as good.
    pub expected: String,
}

impl Page {
    /// Where an address leads that begins with `scheme`, such as `http://`; `port` is meant where it
    /// names none.
    #[must_use]
    pub fn at(url: &str, scheme: &str, port: u16) -> Option<Self> {
        let rest = url.strip_prefix(scheme)?;
        let (place, path) = rest.find('/').map_or((rest, "/"), |slash| rest.split_at(slash));
        let (host, port) = match place.rsplit_once(':') {
            // The colons of an IPv6 address stand between brackets.
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

/// The page by which captive portals are found; none when they are not looked for.
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

/// What a network does for MPTCP connections.
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

/// A port, or the first and last of a range.
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

/// Networks that a rule names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NetworkChoice {
    /// By interface name.
    Name(Pattern),
    /// By what they are.
    Kind(Kind),
}

impl fmt::Display for NetworkChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Name(pattern) => f.write_str(&pattern.0),
            Self::Kind(Kind::Wired) => f.write_str("kind:wired"),
            Self::Kind(Kind::Wifi) => f.write_str("kind:wifi"),
            Self::Kind(Kind::Cellular) => f.write_str("kind:cellular"),
            // No rule can name it.
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
    "an interface name, in which * and ? are wild, or kind:wired, kind:wifi, kind:cellular"
);

#[cfg(test)]
mod tests;
