//! Values of keys in a configuration file, each with its unit, and with the correct form in its
//! error.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;
use std::time::Duration;

use hawser_linux::netlink::HardwareAddress;
use hawser_proto::path::control::Control;
use hawser_proto::scheduler;
use hawser_units::Rate;
use hawser_units::text::{RATE_UNITS, SIZE_UNITS, TIME_UNITS, quantity};
use hawser_wire::pairs::MAX_PAIRS;
use serde::de::{self, Deserializer};
use serde::{Deserialize, Serialize};

use crate::invitation::HubAddress;

/// Implements `Deserialize` for a string through `FromStr`; for a number the error names the
/// missing unit.
macro_rules! from_text {
    ($type:ty, $expected:literal) => {
        impl<'de> Deserialize<'de> for $type {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let text = deserializer.deserialize_any(crate::values::Text {
                    expected: $expected,
                    is_right: |text| text.parse::<$type>().is_ok(),
                })?;
                text.parse()
                    .map_err(|()| serde::de::Error::custom(format_args!("expected {}", $expected)))
            }
        }
    };
}

/// Reads a string that satisfies `is_right`; for a number the error names the correct form. All
/// types above share this visitor, because each visitor is compiled for each kind of deserializer.
pub(crate) struct Text {
    pub(crate) expected: &'static str,
    pub(crate) is_right: fn(&str) -> bool,
}

impl de::Visitor<'_> for Text {
    type Value = String;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.expected)
    }

    // An error that is raised here has the line of its value.
    fn visit_str<E: de::Error>(self, text: &str) -> Result<String, E> {
        if (self.is_right)(text) {
            return Ok(text.to_owned());
        }
        let expected = self.expected;
        Err(E::custom(format_args!("{text:?} is wrong: expected {expected}")))
    }

    fn visit_i64<E: de::Error>(self, number: i64) -> Result<String, E> {
        let expected = self.expected;
        Err(E::custom(format_args!(
            "{number} is not enough: expected {expected}"
        )))
    }
}

/// Time for which a hub keeps the session of an absent client: `"12h"`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SessionTimeout(pub Duration);

impl Default for SessionTimeout {
    /// Returns 12 h. Source: 1.5 times a night of 8 h. A session takes some 20 KB, and each client
    /// has at most one.
    fn default() -> Self {
        Self(Duration::from_secs(12 * 3_600))
    }
}

impl FromStr for SessionTimeout {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let Span(time) = text.parse()?;
        // A client that was in a road tunnel, or whose modem restarts, must find its session.
        let bounds = Duration::from_secs(60)..=Duration::from_secs(30 * 86_400);
        bounds.contains(&time).then_some(Self(time)).ok_or(())
    }
}

from_text!(SessionTimeout, "a time of 60s to 30d, like \"12h\"");

/// A data rate: `"10mbit"`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Speed(pub Rate);

impl FromStr for Speed {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let bps = quantity(text, &RATE_UNITS).ok_or(())?;
        if (1.0..=1e12).contains(&bps) {
            Ok(Self(Rate::from_bps(bps as u64)))
        } else {
            Err(())
        }
    }
}

from_text!(
    Speed,
    "a rate with its unit (bit, kbit, mbit, gbit), such as \"10mbit\""
);

/// A span of time: `"1h"`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span(pub Duration);

impl FromStr for Span {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let seconds = quantity(text, &TIME_UNITS).ok_or(())? / 1e9;
        if (0.001..=1e9).contains(&seconds) {
            Ok(Self(Duration::from_secs_f64(seconds)))
        } else {
            Err(())
        }
    }
}

from_text!(
    Span,
    "a time with its unit (us, ms, s, min, h, d), such as \"1h\""
);

/// Time after which a packet is useless.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Deadline(pub Duration);

/// Shortest deadline. Source: five times the resolution of timers, 1 ms, as measured by any probe.
const SHORTEST: Duration = Duration::from_millis(5);
/// Longest deadline. Source: no packet waits longer (`LONGEST_WAIT` of
/// `core/proto/src/flow/waiting.rs`).
const LONGEST: Duration = Duration::from_secs(10);

impl FromStr for Deadline {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let time = text.parse::<Span>().map_err(drop)?.0;
        let is_possible = (SHORTEST..=LONGEST).contains(&time);
        is_possible.then_some(Self(time)).ok_or(())
    }
}

impl Deadline {
    /// Returns the deadline in the tunnel's unit of time.
    #[must_use]
    pub fn time(self) -> hawser_units::Duration {
        let nanos = u64::try_from(self.0.as_nanos()).unwrap_or(u64::MAX);
        hawser_units::Duration::from_nanos(nanos)
    }
}

from_text!(Deadline, "a time of 5ms to 10s, such as \"150ms\"");

/// Share: `"2%"`, from 0 to 50 %.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Share(pub f64);

impl FromStr for Share {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let percent = quantity(text, &[("%", 1.0)]).ok_or(())?;
        if (0.0..=50.0).contains(&percent) {
            Ok(Self(percent / 100.0))
        } else {
            Err(())
        }
    }
}

from_text!(Share, "a share from \"0%\" to \"50%\"");

/// An amount of data in bytes: `"10GB"`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Size(pub u64);

impl FromStr for Size {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let bytes = quantity(text, &SIZE_UNITS).ok_or(())?;
        if (1.0..=1e18).contains(&bytes) {
            Ok(Self(bytes as u64))
        } else {
            Err(())
        }
    }
}

from_text!(
    Size,
    "an amount with its unit (B, kB, MB, GB, TB, KiB, MiB, GiB), such as \"10GB\""
);

/// A name pattern in which `*` stands for any text and `?` for any letter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pattern(pub String);

impl Pattern {
    /// Returns whether `name` matches.
    #[must_use]
    pub fn matches(&self, name: &str) -> bool {
        let (pattern, name) = (self.0.as_bytes(), name.as_bytes());
        // Position to resume when the last `*` must match another letter.
        let mut retry: Option<(usize, usize)> = None;
        let (mut p, mut n) = (0, 0);
        while n < name.len() {
            match pattern.get(p) {
                Some(b'*') => {
                    retry = Some((p + 1, n));
                    p += 1;
                }
                Some(c) if *c == b'?' || *c == name[n] => {
                    p += 1;
                    n += 1;
                }
                Some(_) | None => {
                    let Some((after_star, taken)) = retry else {
                        return false;
                    };
                    retry = Some((after_star, taken + 1));
                    p = after_star;
                    n = taken + 1;
                }
            }
        }
        pattern[p..].iter().all(|c| *c == b'*')
    }
}

impl FromStr for Pattern {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let fits = !text.is_empty() && text.bytes().all(|b| b.is_ascii_graphic() && b != b'/');
        if fits { Ok(Self(text.to_owned())) } else { Err(()) }
    }
}

from_text!(
    Pattern,
    "an interface name, in which * and ? are wildcards, such as \"wlan*\""
);

/// The name of a network interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InterfaceName(pub String);

impl FromStr for InterfaceName {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let fits = (1..=15).contains(&text.len())
            && text != "."
            && text != ".."
            && text
                .bytes()
                .all(|b| b.is_ascii_alphanumeric() || b"-_.".contains(&b));
        if fits { Ok(Self(text.to_owned())) } else { Err(()) }
    }
}

from_text!(
    InterfaceName,
    "an interface name of 1 to 15 letters, digits, - _ and ., such as \"hawser0\""
);

/// Name of one of [`scheduler::NAMES`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SchedulerName(pub String);

impl FromStr for SchedulerName {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        if scheduler::NAMES.contains(&text) {
            Ok(Self(text.to_owned()))
        } else {
            Err(())
        }
    }
}

from_text!(
    SchedulerName,
    "one of random, round-robin, surplus-round-robin, weighted-fair, min-rtt, earliest-delivery, backpressure, redundant, \
     selective-redundant, layer-priority, independent-path"
);

/// A congestion controller, by one of [`Control::NAMES`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ControllerName(pub Control);

impl FromStr for ControllerName {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        Control::by_name(text).map(Self).map_err(|_| ())
    }
}

from_text!(ControllerName, "one of short-queue, cubic, bbr");

/// A filter for logs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogFilter(pub String);

impl FromStr for LogFilter {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let levels = ["off", "error", "warn", "info", "debug", "trace"];
        let fits = text.split(',').all(|part| {
            let level = part.rsplit_once('=').map_or(part, |(_, level)| level);
            levels.contains(&level.trim().to_ascii_lowercase().as_str())
        });
        if fits { Ok(Self(text.to_owned())) } else { Err(()) }
    }
}

from_text!(
    LogFilter,
    "error, warn, info, debug or trace, or a filter such as \"info,hawser_client=debug\""
);

/// A hub address in `hub.toml`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint(pub HubAddress);

impl FromStr for Endpoint {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        text.parse().map(Self).map_err(|_| ())
    }
}

from_text!(Endpoint, "HOST:PORT, such as \"hub.example.org:443\"");

/// An IPv4 network: address and prefix length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Net4(pub Ipv4Addr, pub u8);

/// Parses an address with an optional prefix length.
pub(super) fn address_and_prefix(text: &str) -> Option<(IpAddr, Option<u8>)> {
    let (address, prefix) = match text.split_once('/') {
        Some((address, prefix)) => (address, Some(prefix.parse().ok()?)),
        None => (text, None),
    };
    Some((address.parse().ok()?, prefix))
}

impl FromStr for Net4 {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        match address_and_prefix(text) {
            Some((IpAddr::V4(address), Some(len)))
                if (8..=29).contains(&len) && address.to_bits() << len == 0 =>
            {
                Ok(Self(address, len))
            }
            _ => Err(()),
        }
    }
}

from_text!(
    Net4,
    "an IPv4 network of prefix length 8 to 29 without host bits, such as \"100.96.0.0/16\""
);

/// An IPv6 network: address and prefix length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Net6(pub Ipv6Addr, pub u8);

impl FromStr for Net6 {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        match address_and_prefix(text) {
            Some((IpAddr::V6(address), Some(len)))
                if (16..=96).contains(&len) && address.to_bits() << len == 0 =>
            {
                Ok(Self(address, len))
            }
            _ => Err(()),
        }
    }
}

from_text!(
    Net6,
    "an IPv6 network of prefix length 16 to 96 without host bits, such as \"fd12:3456:789a::/64\""
);

/// An MTU in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mtu(pub u16);

impl<'de> Deserialize<'de> for Mtu {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let mtu = u16::deserialize(deserializer)?;
        // IPv6 requires 1280 (RFC 8200 section 5).
        if (1280..=9000).contains(&mtu) {
            Ok(Self(mtu))
        } else {
            Err(de::Error::custom(format_args!(
                "mtu {mtu} is out of range: 1280 to 9000 bytes"
            )))
        }
    }
}

/// Number of pairs of threads for a hub's packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ThreadPairs(pub u32);

impl<'de> Deserialize<'de> for ThreadPairs {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let count = u32::deserialize(deserializer)?;
        if (1..=MAX_PAIRS).contains(&count) {
            Ok(Self(count))
        } else {
            Err(de::Error::custom(format_args!(
                "thread_pairs {count} is out of range: 1 to {MAX_PAIRS}"
            )))
        }
    }
}

/// The hardware address of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceAddress(pub HardwareAddress);

impl FromStr for DeviceAddress {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let address: HardwareAddress = text.parse()?;
        (address != HardwareAddress([0; 6]))
            .then_some(Self(address))
            .ok_or(())
    }
}

from_text!(
    DeviceAddress,
    "a hardware address, such as \"00:16:3e:12:34:56\" (ip link, link/ether)"
);

/// A day of the month.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Day(pub u8);

impl Default for Day {
    fn default() -> Self {
        Self(1)
    }
}

impl<'de> Deserialize<'de> for Day {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let day = i64::deserialize(deserializer)?;
        u8::try_from(day)
            .ok()
            .filter(|day| (1..=31).contains(day))
            .map(Self)
            .ok_or_else(|| {
                de::Error::custom(format_args!(
                    "{day} is not a day of a month: expected 1 to 31 (in a shorter month, its last day)"
                ))
            })
    }
}

/// Action on a network with an exhausted quota.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum QuotaAction {
    /// No new flows, and present flows are moved away.
    #[default]
    Stop,
    /// No new flows; present flows continue.
    Drain,
    /// Use only while no other network works.
    Backup,
    /// Warning only.
    Warn,
}

/// Use of a modem that is in the network of another operator than its own.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum RoamingUse {
    /// Used like a modem at home.
    #[default]
    Allow,
    /// Excluded until it is at home.
    Never,
}

/// Setting of the system's resolvers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum DnsMode {
    /// Unchanged.
    Keep,
    /// Resolvers that the hub announces, while the tunnel is up.
    Hub,
    /// Hawser queries each network's own resolvers (direct mode).
    Networks,
}

/// Treatment of a client's traffic when its hub rejects it permanently: a revocation, an expired
/// enrolment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum WhenEnded {
    /// Traffic is blocked until the client is stopped or accepted again, because the user did not
    /// request the end.
    #[default]
    Block,
    /// The client ends, and traffic leaves outside the tunnel.
    Open,
}

/// Treatment of new connections while no hub answers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum WithoutHub {
    /// New connections wait for the hub, like existing ones.
    #[default]
    Wait,
    /// New connections use one of the networks directly, with that network's address, outside the
    /// tunnel.
    Direct,
}

/// Reaction of a hub to SIGTERM when no service manager has started it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum WhenStopped {
    /// Acts as `keep` for the first process of a container whose run directory is a volume,
    /// otherwise as `end`.
    #[default]
    Auto,
    /// Leaves its sessions to the process that is started next.
    Keep,
    /// Ends its sessions and undoes its changes to the system.
    End,
}

/// Choice among the hubs of a fleet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum HubUse {
    /// The nearest.
    #[default]
    Nearest,
    /// The hub in use, while it answers.
    Stay,
    /// The nearest hub, and another one for destinations with a shorter delay through it.
    Faster,
}

/// Manager of a network's IPv4 address.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum DhcpMode {
    /// No management by Hawser.
    #[default]
    Off,
    /// Hawser acts if the network has no address after a few seconds: it asks the manager of the
    /// device; without a manager it starts a DHCP client.
    Auto,
}

/// Network address translation of clients to the hub's own address.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub enum Nat {
    /// Enabled if the pool is private.
    #[default]
    Auto,
    /// Always.
    On,
    /// Disabled: the network around the hub has routes to the clients.
    Off,
}

impl<'de> Deserialize<'de> for Nat {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Value;
        impl de::Visitor<'_> for Value {
            type Value = Nat;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("\"auto\", true or false")
            }

            fn visit_bool<E>(self, on: bool) -> Result<Nat, E> {
                Ok(if on { Nat::On } else { Nat::Off })
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Nat, E> {
                match text {
                    "auto" => Ok(Nat::Auto),
                    other => Err(E::custom(format_args!(
                        "{other:?} is wrong: expected \"auto\", true or false"
                    ))),
                }
            }
        }
        deserializer.deserialize_any(Value)
    }
}

/// Addresses under which clients appear: at most one of each family.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NatAddresses(pub Vec<IpAddr>);

impl<'de> Deserialize<'de> for NatAddresses {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let addresses = Vec::<IpAddr>::deserialize(deserializer)?;
        let is_one = |is_it: fn(&IpAddr) -> bool| addresses.iter().filter(|a| is_it(a)).count() <= 1;
        let no_host = |a: &IpAddr| a.is_unspecified() || a.is_loopback() || a.is_multicast();
        if is_one(IpAddr::is_ipv4) && is_one(IpAddr::is_ipv6) && !addresses.iter().any(no_host) {
            return Ok(Self(addresses));
        }
        Err(de::Error::custom(
            "expected one address of each family at most, such as [\"198.51.100.1\", \"2001:db8::1\"]",
        ))
    }
}
