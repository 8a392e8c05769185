//! Configuration files: `client.toml` and `hub.toml`.
//!
//! Every number has a unit, every key is known, and an error names the file, the line and the remedy, before anything is
//! touched.

use std::collections::BTreeMap;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::num::NonZeroU16;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use hawser_proto::scheduler;
use hawser_units::Rate;
use hawser_wire::data::Class;
use serde::de::{self, DeserializeOwned, Deserializer};
use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::enrolment::Pool;
use crate::invitation::HubAddress;

/// Why a configuration file is of no use. Nothing has been touched when it is reported.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("{}: cannot read it: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// The file says something wrong.
    #[error("{}:{line}: {message}", path.display())]
    Content {
        /// The file.
        path: PathBuf,
        /// The line, from 1.
        line: usize,
        /// What is wrong and what would be right.
        message: String,
    },
}

/// What `client.toml` may say. Everything has a default: an empty file is a good one.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ClientConfig {
    /// Networks to use, by interface name; `*` and `?` are wild.
    pub include: Vec<Pattern>,
    /// Networks to leave alone, even if included.
    pub exclude: Vec<Pattern>,
    /// The interface that applications see.
    pub interface: InterfaceName,
    /// Its MTU in bytes.
    pub mtu: Mtu,
    /// Whether resolvers are set: `keep` (not touched), `hub` (those the hub names).
    pub dns: DnsMode,
    /// Whether nothing may leave outside the tunnel.
    pub kill_switch: bool,
    /// Scheduler by flow class.
    pub schedulers: Schedulers,
    /// Settings of single networks, by interface name.
    pub networks: BTreeMap<String, NetworkConfig>,
    /// Direct mode, without a hub.
    pub direct: DirectConfig,
    /// Which flows go where in direct mode; the first that fits decides.
    #[serde(rename = "rule")]
    pub rules: Vec<RuleConfig>,
    /// Age at which keys are replaced.
    pub rekey_after: Span,
    /// Where Prometheus may ask; off when absent.
    pub metrics: Option<SocketAddr>,
    /// What is logged: `error`, `warn`, `info`, `debug`, `trace`, or a filter such as `info,hawser_node=debug`.
    pub log: Option<LogFilter>,
}

impl Default for ClientConfig {
    fn default() -> Self {
        Self {
            include: vec![Pattern("*".to_owned())],
            exclude: Vec::new(),
            interface: InterfaceName("hawser0".to_owned()),
            mtu: Mtu(DEFAULT_MTU),
            dns: DnsMode::Keep,
            kill_switch: false,
            schedulers: Schedulers::default(),
            networks: BTreeMap::new(),
            direct: DirectConfig::default(),
            rules: Vec::new(),
            rekey_after: Span(Duration::from_secs(3600)),
            metrics: None,
            log: None,
        }
    }
}

impl ClientConfig {
    /// Whether the network of that name is to be used.
    #[must_use]
    pub fn uses(&self, name: &str) -> bool {
        name != self.interface.0
            && self.include.iter().any(|pattern| pattern.matches(name))
            && !self.exclude.iter().any(|pattern| pattern.matches(name))
    }

    /// The settings of a network.
    #[must_use]
    pub fn network(&self, name: &str) -> NetworkConfig {
        self.networks.get(name).cloned().unwrap_or_default()
    }
}

/// What may be set for a single network.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct NetworkConfig {
    /// At most this towards the hub.
    pub cap_up: Option<Speed>,
    /// At most this from the hub; in direct mode, what the network is taken to carry.
    pub cap_down: Option<Speed>,
    /// Direct mode: its share beside the others, in place of what it carries.
    pub weight: Option<NonZeroU16>,
    /// Direct mode: what its use costs, in any unit; smaller is cheaper.
    pub cost: u32,
    /// Direct mode: who is asked whether the network is alive, in place of the gateway.
    pub probe: Option<IpAddr>,
}

/// Scheduler by flow class; what is absent stays at the built-in choice.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Schedulers {
    /// For bulk flows.
    pub bulk: Option<SchedulerName>,
    /// For interactive flows.
    pub interactive: Option<SchedulerName>,
    /// For realtime flows.
    pub realtime: Option<SchedulerName>,
    /// For layered video.
    pub layered: Option<SchedulerName>,
}

impl Schedulers {
    /// The choices that were made.
    #[must_use]
    pub fn chosen(&self) -> Vec<(Class, String)> {
        Class::ALL
            .into_iter()
            .zip([&self.bulk, &self.interactive, &self.realtime, &self.layered])
            .filter_map(|(class, name)| Some((class, name.as_ref()?.0.clone())))
            .collect()
    }
}

/// What `hub.toml` says.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HubConfig {
    /// Where clients reach the hub, as invitations say it: `HOST:PORT`, the likeliest first.
    pub endpoints: Vec<Endpoint>,
    /// The UDP address to listen on; by default every address, at the port of the first endpoint.
    pub listen: Option<SocketAddr>,
    /// Inner IPv4 addresses: `100.96.0.0/16`.
    pub pool: Net4,
    /// Inner IPv6 addresses: `fdXX:...::/64`.
    #[serde(default)]
    pub pool6: Option<Net6>,
    /// The hub's inner interface.
    #[serde(default = "hub_interface")]
    pub interface: InterfaceName,
    /// Its MTU in bytes.
    #[serde(default = "default_mtu")]
    pub mtu: Mtu,
    /// Whether clients appear under the hub's own address: `"auto"` (when the pool is private), `true`, `false`.
    #[serde(default)]
    pub nat: Nat,
    /// Resolvers that clients may use through the tunnel.
    #[serde(default)]
    pub dns: Vec<IpAddr>,
    /// Scheduler by flow class, for what the hub sends, unless a client wants another.
    #[serde(default)]
    pub schedulers: Schedulers,
    /// Where Prometheus may ask; off when absent.
    #[serde(default)]
    pub metrics: Option<SocketAddr>,
    /// What is logged.
    #[serde(default)]
    pub log: Option<LogFilter>,
}

impl HubConfig {
    /// The address pools.
    #[must_use]
    pub fn pools(&self) -> Pool {
        Pool {
            v4: (self.pool.0, self.pool.1),
            v6: self.pool6.as_ref().map(|net| (net.0, net.1)),
        }
    }

    /// The addresses for invitations.
    #[must_use]
    pub fn addresses(&self) -> Vec<HubAddress> {
        self.endpoints.iter().map(|endpoint| endpoint.0.clone()).collect()
    }
}

/// Reads a file.
///
/// # Errors
/// [`ConfigError`] with the line.
pub fn load<T: DeserializeOwned>(path: &Path) -> Result<T, ConfigError> {
    let text = std::fs::read_to_string(path).map_err(|source| ConfigError::Read {
        path: path.to_owned(),
        source,
    })?;
    parse(path, &text)
}

/// Reads a file, or takes the default when there is none.
///
/// # Errors
/// [`ConfigError`] with the line.
pub fn load_or_default<T: DeserializeOwned + Default>(path: &Path) -> Result<T, ConfigError> {
    match std::fs::read_to_string(path) {
        Ok(text) => parse(path, &text),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(T::default()),
        Err(source) => Err(ConfigError::Read {
            path: path.to_owned(),
            source,
        }),
    }
}

/// Reads the text of a file; `path` is named in errors.
///
/// # Errors
/// [`ConfigError`] with the line.
pub fn parse<T: DeserializeOwned>(path: &Path, text: &str) -> Result<T, ConfigError> {
    toml::from_str(text).map_err(|error| {
        let at = error.span().map_or(0, |span| span.start.min(text.len()));
        let line = 1 + text.as_bytes()[..at]
            .iter()
            .filter(|byte| **byte == b'\n')
            .count();
        let message = error.message().lines().collect::<Vec<_>>().join(", ");
        ConfigError::Content {
            path: path.to_owned(),
            line,
            message,
        }
    })
}

fn hub_interface() -> InterfaceName {
    InterfaceName("hawserhub0".to_owned())
}

fn default_mtu() -> Mtu {
    Mtu(DEFAULT_MTU)
}

/// An inner packet of this size fits an outer one of 1500 bytes: IPv4 (20), UDP (8), framing (40).
pub const DEFAULT_MTU: u16 = 1432;

/// Makes `Deserialize` read a string (or a number, to say that it lacks its unit) through `FromStr`.
macro_rules! from_text {
    ($type:ty, $expected:literal) => {
        impl<'de> Deserialize<'de> for $type {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                struct Text;
                impl de::Visitor<'_> for Text {
                    type Value = $type;

                    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                        f.write_str($expected)
                    }

                    fn visit_str<E: de::Error>(self, text: &str) -> Result<$type, E> {
                        text.parse().map_err(|()| {
                            E::custom(format_args!("{text:?} is wrong: expected {}", $expected))
                        })
                    }

                    fn visit_i64<E: de::Error>(self, number: i64) -> Result<$type, E> {
                        Err(E::custom(format_args!(
                            "{number} is not enough: expected {}",
                            $expected
                        )))
                    }
                }
                deserializer.deserialize_any(Text)
            }
        }
    };
}

mod direct;

pub use direct::{DirectConfig, NetworkChoice, RuleConfig, Spread};

/// A data rate: `"10mbit"`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Speed(pub Rate);

impl FromStr for Speed {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let (number, unit) = split_unit(text)?;
        let factor = match unit {
            "bit" => 1.0,
            "kbit" => 1e3,
            "mbit" => 1e6,
            "gbit" => 1e9,
            _ => return Err(()),
        };
        let bps = number * factor;
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
        let (number, unit) = split_unit(text)?;
        let seconds = match unit {
            "ms" => number / 1e3,
            "s" => number,
            "min" => number * 60.0,
            "h" => number * 3_600.0,
            "d" => number * 86_400.0,
            _ => return Err(()),
        };
        if (0.001..=1e9).contains(&seconds) {
            Ok(Self(Duration::from_secs_f64(seconds)))
        } else {
            Err(())
        }
    }
}

from_text!(Span, "a time with its unit (ms, s, min, h, d), such as \"1h\"");

fn split_unit(text: &str) -> Result<(f64, &str), ()> {
    let at = text.find(|c: char| !c.is_ascii_digit() && c != '.').ok_or(())?;
    let (number, unit) = text.split_at(at);
    Ok((number.parse().map_err(|_| ())?, unit.trim_start()))
}

/// A name pattern in which `*` stands for any text and `?` for any letter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pattern(pub String);

impl Pattern {
    /// Whether `name` fits.
    #[must_use]
    pub fn matches(&self, name: &str) -> bool {
        let (pattern, name) = (self.0.as_bytes(), name.as_bytes());
        // Where to go on when the last `*` has to take one letter more.
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
    "an interface name, in which * and ? are wild, such as \"wlan*\""
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

/// One of [`scheduler::NAMES`].
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
    "error, warn, info, debug or trace, or a filter such as \"info,hawser_node=debug\""
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

impl FromStr for Net4 {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let (address, len) = text.split_once('/').ok_or(())?;
        let (address, len) = (
            address.parse::<Ipv4Addr>().map_err(|_| ())?,
            len.parse::<u8>().map_err(|_| ())?,
        );
        let is_network = (8..=29).contains(&len) && address.to_bits() << len == 0;
        if is_network {
            Ok(Self(address, len))
        } else {
            Err(())
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
        let (address, len) = text.split_once('/').ok_or(())?;
        let (address, len) = (
            address.parse::<Ipv6Addr>().map_err(|_| ())?,
            len.parse::<u8>().map_err(|_| ())?,
        );
        let is_network = (16..=96).contains(&len) && address.to_bits() << len == 0;
        if is_network {
            Ok(Self(address, len))
        } else {
            Err(())
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
        // IPv6 demands 1280 (RFC 8200 section 5).
        if (1280..=9000).contains(&mtu) {
            Ok(Self(mtu))
        } else {
            Err(de::Error::custom(format_args!(
                "mtu {mtu} is out of range: 1280 to 9000 bytes"
            )))
        }
    }
}

/// What happens to the system's resolvers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum DnsMode {
    /// Nothing.
    Keep,
    /// Those that the hub names are used while the tunnel is up.
    Hub,
}

/// Whether clients appear under the hub's own address.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub enum Nat {
    /// When the pool is private.
    #[default]
    Auto,
    /// Always.
    On,
    /// Never: the network around the hub has routes back.
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

#[cfg(test)]
mod tests;
