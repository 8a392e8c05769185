//! Configuration files: `client.toml` and `hub.toml`.
//!
//! Every number has a unit, every key is known, and an error names the file, the line and the
//! remedy, before anything is touched.

#[macro_use]
mod values;
mod direct;
mod gateway;
mod layers;
mod pool;
mod radio;
mod reach;
mod reload;
mod store;
mod tls;
mod when;

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::num::NonZeroU16;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use hawser_steer::quota::Quota;
use hawser_units::Bytes;
use hawser_wire::data::Class;
use hawser_wire::layer;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use thiserror::Error;

use crate::enrolment::Pool;
use crate::invitation::HubAddress;
pub use direct::{
    Dataplane, DirectConfig, Moves, MultipathPart, NetworkChoice, Page, PortalCheck, RuleConfig, Spread, Via,
};
pub use gateway::{Forward, PortForwardConfig};
pub use layers::LayerConfig;
pub use pool::{PoolConfig, ShareConfig, TimeOfDay};
pub use radio::{Password, RadioConfig, WifiNetwork};
pub use reach::{AnyNet, HubService, ReachConfig, WaypointFor};
pub(crate) use reload::{differing, log_reload};
pub use store::{StoreConfig, StoreUrl};
pub use tls::{HostName, HubTlsConfig, Login, Proxy, ProxyKind, TlsConfig, TlsListen, TlsUse};
pub use values::{
    Day, DhcpMode, DnsMode, Endpoint, InterfaceName, LogFilter, Mtu, Nat, Net4, Net6, Pattern, QuotaAction,
    SchedulerName, Size, Span, Speed,
};

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
    /// Whether resolvers are set: `keep` (not touched), `hub` (those the hub names), `networks` (by
    /// way of Hawser, each network's own for what is to go over it; without a rule that says
    /// `via = "direct"`, in direct mode alone).
    pub dns: DnsMode,
    /// Whether nothing may leave outside the tunnel.
    pub kill_switch: bool,
    /// Whether this machine forwards for others, and behind which interfaces they are.
    pub forward: Forward,
    /// What comes in from the hub and goes to a machine behind this one.
    #[serde(rename = "port_forward")]
    pub port_forwards: Vec<PortForwardConfig>,
    /// Scheduler by flow class.
    pub schedulers: Schedulers,
    /// How packets of layered streams are known that this machine sends; the first that fits
    /// decides.
    #[serde(rename = "layer")]
    pub layers: Vec<LayerConfig>,
    /// Settings of single networks, by interface name.
    pub networks: BTreeMap<String, NetworkConfig>,
    /// Which Wi-Fi networks are joined.
    pub radio: RadioConfig,
    /// Direct mode, without a hub.
    pub direct: DirectConfig,
    /// Which flows go where in direct mode, and which go past the hub where there is one; the first
    /// that fits decides.
    #[serde(rename = "rule")]
    pub rules: Vec<RuleConfig>,
    /// The way where UDP is blocked.
    pub tls: TlsConfig,
    /// Whose ways out are taken beside this machine's own.
    pub pool: PoolConfig,
    /// Age at which keys are replaced.
    pub rekey_after: Span,
    /// Where Prometheus may ask; off when absent.
    pub metrics: Option<SocketAddr>,
    /// What is logged: `error`, `warn`, `info`, `debug`, `trace`, or a filter such as
    /// `info,hawser_node=debug`.
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
            forward: Forward::Off,
            port_forwards: Vec::new(),
            schedulers: Schedulers::default(),
            layers: Vec::new(),
            networks: BTreeMap::new(),
            radio: RadioConfig::default(),
            direct: DirectConfig::default(),
            rules: Vec::new(),
            tls: TlsConfig::default(),
            pool: PoolConfig::default(),
            rekey_after: Span(Duration::from_secs(3600)),
            metrics: None,
            log: None,
        }
    }
}

impl ClientConfig {
    /// Whether any rule asks if the machine is being carried about.
    #[must_use]
    pub(crate) fn depends_on_motion(&self) -> bool {
        self.rules.iter().any(|rule| rule.when.moving.is_some())
    }

    /// Whether the network of that name is to be used.
    #[must_use]
    pub fn uses(&self, name: &str) -> bool {
        name != self.interface.0
            && self.include.iter().any(|pattern| pattern.matches(name))
            && !self.exclude.iter().any(|pattern| pattern.matches(name))
    }

    /// What direct mode cannot do, in words with the remedy.
    #[must_use]
    pub fn unfit_for_direct(&self) -> Option<&'static str> {
        if self.kill_switch {
            return Some("kill_switch = true needs a hub: take it out, or leave --direct out");
        }
        if !self.port_forwards.is_empty() {
            return Some("[[port_forward]] needs a hub: take it out, or leave --direct out");
        }
        if self.rules.iter().any(|rule| rule.is_via(Via::Hub)) {
            return Some("a rule with via = \"hub\" needs a hub: take it out, or leave --direct out");
        }
        let is_seen = |rule: &RuleConfig| rule.domains.is_empty() && rule.flows.cgroup.is_none();
        let is_plain = self.dns != DnsMode::Networks && self.rules.iter().all(is_seen);
        if self.direct.dataplane == Dataplane::OpenVSwitch && !is_plain {
            return Some(
                "dataplane = \"openvswitch\" sees neither programs nor names: take cgroup, domain and dns = \"networks\" out, or dataplane",
            );
        }
        self.unfit_domains()
    }

    /// What a client of a hub cannot do, in words with the remedy.
    #[must_use]
    pub fn unfit_for_hub(&self) -> Option<&'static str> {
        if self.kill_switch && self.forward == Forward::All {
            return Some(
                "kill_switch = true has to know which interfaces lead to the machines that it forwards for: write forward = [\"br-lan\"] with their names",
            );
        }
        if !self.port_forwards.is_empty() && !self.forward.is_on() {
            return Some(
                "[[port_forward]] needs forward = true, or the names of the LANs: forward = [\"br-lan\"]",
            );
        }
        if !self.port_forwards.is_empty() && self.is_mixed() {
            return Some(
                "[[port_forward]] does not go with rules that say via = \"direct\" yet: take one of them out",
            );
        }
        if !self.is_mixed() {
            return None;
        }
        if self.direct.dataplane == Dataplane::OpenVSwitch {
            return Some(
                "dataplane = \"openvswitch\" is for machines without a hub: take it out, or rules with via = \"direct\"",
            );
        }
        self.unfit_domains()
    }

    fn unfit_domains(&self) -> Option<&'static str> {
        let has_domain = self.rules.iter().any(|rule| !rule.domains.is_empty());
        (has_domain && self.dns != DnsMode::Networks).then_some(
            "a rule with a domain needs the answers of resolvers: write dns = \"networks\" above all tables, or take domain out",
        )
    }

    /// Whether some flows go past the hub, if there is one.
    #[must_use]
    pub fn is_mixed(&self) -> bool {
        self.rules.iter().any(|rule| rule.is_via(Via::Direct))
    }

    /// Whether this machine forwards for others. `[direct]` may say it too, for direct mode and
    /// rules beside a hub.
    #[must_use]
    pub fn forwards_directly(&self) -> bool {
        self.forward.is_on() || self.direct.forward
    }

    /// How packets of layered streams are known.
    #[must_use]
    pub fn layer_rules(&self) -> Vec<layer::Rule> {
        self.layers.iter().map(|layer| layer.0).collect()
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
    /// Direct mode: what it does for MPTCP connections.
    pub mptcp: MultipathPart,
    /// Direct mode: its resolvers, in place of those that the system names.
    pub dns: Vec<IpAddr>,
    /// Who sees to its IPv4 address: `off` (nobody here), `auto` (what manages it already, else a
    /// DHCP client that is installed).
    pub dhcp: DhcpMode,
    /// Whether TLS on TCP is used over it, in place of what `[tls]` says.
    pub tls: Option<TlsUse>,
    /// Its proxy, for TLS on TCP.
    pub proxy: Option<Proxy>,
    /// What it may carry in a month, both ways together.
    pub quota: Option<Size>,
    /// The day of the month on which the quota begins anew.
    pub reset_day: Day,
    /// What happens when the quota is used up.
    pub quota_action: QuotaAction,
}

impl NetworkConfig {
    /// The quota, if there is one.
    #[must_use]
    pub fn quota(&self) -> Option<Quota> {
        self.quota.map(|size| Quota {
            limit: Bytes(size.0),
            reset_day: self.reset_day.0,
        })
    }
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
    /// Whether clients appear under the hub's own address: `"auto"` (when the pool is private),
    /// `true`, `false`.
    #[serde(default)]
    pub nat: Nat,
    /// Resolvers that clients may use through the tunnel.
    #[serde(default)]
    pub dns: Vec<IpAddr>,
    /// What clients reach beside public addresses, and who reaches them.
    #[serde(default)]
    pub reach: ReachConfig,
    /// Where clients come in whose networks block UDP.
    #[serde(default)]
    pub tls: HubTlsConfig,
    /// The database that keeps the clients, for several hubs; files beside this one unless set.
    #[serde(default)]
    pub store: Option<StoreConfig>,
    /// Which clients may send moved flows through this hub, by name; `"*"` for all.
    #[serde(default)]
    pub waypoint: WaypointFor,
    /// Scheduler by flow class, for what the hub sends, unless a client wants another.
    #[serde(default)]
    pub schedulers: Schedulers,
    /// How packets of layered streams are known that the hub sends; the first that fits decides.
    #[serde(default, rename = "layer")]
    pub layers: Vec<LayerConfig>,
    /// Where Prometheus may ask; off when absent.
    #[serde(default)]
    pub metrics: Option<SocketAddr>,
    /// What is logged.
    #[serde(default)]
    pub log: Option<LogFilter>,
}

impl HubConfig {
    /// Where clients come in by UDP.
    pub(crate) fn listen_address(&self) -> SocketAddr {
        let port = self
            .endpoints
            .first()
            .map_or(crate::hub::DEFAULT_PORT, |endpoint| endpoint.0.port);
        self.listen
            .unwrap_or_else(|| (Ipv6Addr::UNSPECIFIED, port).into())
    }

    /// Where they come in by TLS, if they do.
    pub(crate) fn tls_address(&self) -> Option<SocketAddr> {
        match self.tls.listen {
            Some(TlsListen::Off) => None,
            Some(TlsListen::At(at)) => Some(at),
            None => Some((self.listen_address().ip(), crate::over_tls::DEFAULT_PORT).into()),
        }
    }

    /// The address pools.
    #[must_use]
    pub fn pools(&self) -> Pool {
        Pool {
            v4: (self.pool.0, self.pool.1),
            v6: self.pool6.as_ref().map(|net| (net.0, net.1)),
        }
    }

    /// How packets of layered streams are known.
    #[must_use]
    pub fn layer_rules(&self) -> Vec<layer::Rule> {
        self.layers.iter().map(|layer| layer.0).collect()
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

/// Refuses a file with passwords that others than its owner may read.
///
/// # Errors
/// In words, with the remedy.
pub fn check_secrecy(path: &Path, config: &ClientConfig) -> anyhow::Result<()> {
    refuse_readers(path, config.radio.is_secret().then_some("a Wi-Fi password"))
}

/// The same for a hub's.
///
/// # Errors
/// In words, with the remedy.
pub fn check_hub_secrecy(path: &Path, config: &HubConfig) -> anyhow::Result<()> {
    let is_secret = config.store.as_ref().is_some_and(|store| store.url.is_secret());
    refuse_readers(path, is_secret.then_some("a database's password"))
}

fn refuse_readers(path: &Path, secret: Option<&str>) -> anyhow::Result<()> {
    let is_open = || std::fs::metadata(path).is_ok_and(|found| found.permissions().mode() & 0o077 != 0);
    match secret {
        Some(secret) if is_open() => anyhow::bail!(
            "{} holds {secret}, and others may read it: `chmod 600 {0}`",
            path.display()
        ),
        Some(_) | None => Ok(()),
    }
}

fn hub_interface() -> InterfaceName {
    InterfaceName("hawserhub0".to_owned())
}

fn default_mtu() -> Mtu {
    Mtu(DEFAULT_MTU)
}

/// An inner packet of this size fits an outer one of 1500 bytes: IPv4 (20), UDP (8), framing (40).
pub const DEFAULT_MTU: u16 = 1432;

#[cfg(test)]
mod tests;
