//! `client.toml`: configuration of a client of a hub, and of direct mode.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::num::NonZeroU16;
use std::time::Duration;

use hawser_linux::direct::Protocol;
use hawser_proto::stream::{Forms, MAX_FORM_RULES};
use hawser_steer::quota::Quota;
use hawser_units::Bytes;
use hawser_wire::deadline::{DeadlineRule, MAX_DEADLINE_RULES};
use hawser_wire::layer;
use serde::Deserialize;

use crate::device::{Followed, Section, assign};
use crate::{
    AnyNet, CheckConfig, ControllerName, DEFAULT_MTU, DashboardConfig, Day, DeviceConfig, DhcpMode,
    DirectConfig, DnsMode, Forward, HubUse, Inbound, InterfaceName, LanDevices, LayerConfig, LogFilter, Mtu,
    MultipathPart, OtlpConfig, Pattern, PoolConfig, PortForwardConfig, PresentDevice, Proxy, QuotaAction,
    RadioConfig, RoamingUse, RuleConfig, Schedulers, Size, Span, Speed, TcpMode, TlsConfig, TlsUse, Uses,
    Via, WhenEnded, WithoutHub,
};

/// Default time without an answer of the hub after which new connections bypass it.
///
/// Source: resolv.conf(5): a lookup fails after two attempts of 5 s. A hub's restart takes at most
/// 0.25 s and a change to another hub 1 to 3 s, so neither causes a bypass.
const DIRECT_AFTER: Span = Span(Duration::from_secs(10));

/// Contents of `client.toml`. Every key has a default: an empty file is valid.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ClientConfig {
    /// Networks to use, by interface name; `*` and `?` are wild.
    pub include: Vec<Pattern>,
    /// Networks that are not used, even if included.
    pub exclude: Vec<Pattern>,
    /// Interface that applications see.
    pub interface: InterfaceName,
    /// MTU in bytes.
    pub mtu: Mtu,
    /// Setting of the system's resolvers: `keep` (unchanged), `hub` (those that the hub announces),
    /// `networks` (through Hawser, each network's own for its traffic; without a rule that has `via
    /// = "direct"`, in direct mode only).
    pub dns: DnsMode,
    /// Kill switch: no packet leaves outside the tunnel.
    pub kill_switch: bool,
    /// Treatment of traffic when the hub rejects this machine permanently.
    pub when_ended: WhenEnded,
    /// Treatment of new connections while no hub answers: they wait, or bypass the hub.
    pub without_hub: WithoutHub,
    /// Time without an answer after which they bypass the hub.
    pub without_hub_after: Span,
    /// Destinations that remain outside the tunnel if the machine has a route to them, from any
    /// source. Without this key, only the machine's own subnets and an administrator's static
    /// routes to private networks remain outside; with `kill_switch` none do.
    pub local: Vec<AnyNet>,
    /// Permitted new connections from the tunnel to this machine.
    pub inbound: Inbound,
    /// Interfaces for whose machines this one forwards.
    pub forward: Forward,
    /// Ports at the hub that are forwarded to machines behind this one.
    #[serde(rename = "port_forward")]
    pub port_forwards: Vec<PortForwardConfig>,
    /// Subnets behind this machine whose machines keep their addresses in the tunnel, if the hub
    /// routes them here (`hawser hub subnet`).
    pub subnets: Vec<AnyNet>,
    /// Page for devices of the LANs; disabled if absent.
    pub dashboard: Option<DashboardConfig>,
    /// Settings of single devices of the LANs, by hardware address.
    pub lan_devices: LanDevices,
    /// Form of TCP connections: `stream` (they are split, and their bytes use all networks) or
    /// `end-to-end` (their packets pass the tunnel). The default is `stream`.
    pub tcp: Option<TcpMode>,
    /// Scheduler by flow class.
    pub schedulers: Schedulers,
    /// Congestion controller of the paths on which this machine sends.
    pub controller: ControllerName,
    /// Rules that recognise packets of layered streams that this machine sends; the first match
    /// decides.
    #[serde(rename = "layer")]
    pub layers: Vec<LayerConfig>,
    /// Settings of single networks, by interface name.
    #[serde(deserialize_with = "crate::device::networks")]
    pub networks: BTreeMap<String, NetworkConfig>,
    /// Sections of the file, once they have been applied to devices.
    #[serde(skip)]
    pub followed: Followed<NetworkConfig>,
    /// Wi-Fi networks to join.
    pub radio: RadioConfig,
    /// Direct mode, without a hub.
    pub direct: DirectConfig,
    /// Routes of flows in direct mode, and of flows past a hub; the first match decides.
    #[serde(rename = "rule")]
    pub rules: Vec<RuleConfig>,
    /// TLS on TCP for networks that block UDP.
    pub tls: TlsConfig,
    /// Choice among the hubs of a fleet: `nearest` by round-trip time, the one in use (`stay`), or
    /// the nearest and a secondary hub for destinations with a shorter delay through it (`faster`).
    pub hub: HubUse,
    /// Neighbours whose uplinks are used in addition to this machine's own.
    pub pool: PoolConfig,
    /// Age at which keys are replaced.
    pub rekey_after: Span,
    /// Address for requests of Prometheus; disabled if absent.
    pub metrics: Option<SocketAddr>,
    /// Collector of metrics; none if absent.
    pub otlp: Option<OtlpConfig>,
    /// Setting of the record of networks over a day and a year.
    pub history: bool,
    /// Log level: `error`, `warn`, `info`, `debug`, `trace`, or a filter such as
    /// `info,hawser_client=debug`.
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
            when_ended: WhenEnded::Block,
            without_hub: WithoutHub::Wait,
            without_hub_after: DIRECT_AFTER,
            local: Vec::new(),
            inbound: Inbound::Closed,
            forward: Forward::Off,
            port_forwards: Vec::new(),
            subnets: Vec::new(),
            dashboard: None,
            lan_devices: LanDevices::default(),
            tcp: None,
            schedulers: Schedulers::default(),
            controller: ControllerName::default(),
            layers: Vec::new(),
            networks: BTreeMap::new(),
            followed: Followed::default(),
            radio: RadioConfig::default(),
            direct: DirectConfig::default(),
            rules: Vec::new(),
            tls: TlsConfig::default(),
            hub: HubUse::Nearest,
            pool: PoolConfig::default(),
            rekey_after: Span(Duration::from_secs(3600)),
            metrics: None,
            otlp: None,
            history: true,
            log: None,
        }
    }
}

impl ClientConfig {
    /// Returns whether any rule depends on the machine's motion.
    #[must_use]
    pub fn depends_on_motion(&self) -> bool {
        self.rules.iter().any(|rule| rule.when.moving.is_some())
    }

    /// Returns whether the network with that name is used.
    #[must_use]
    pub fn uses(&self, name: &str) -> bool {
        name != self.interface.0
            && self.include.iter().any(|pattern| pattern.matches(name))
            && !self.exclude.iter().any(|pattern| pattern.matches(name))
    }

    /// Returns whether some flows are sent outside the tunnel, if there is a hub.
    #[must_use]
    pub fn is_mixed(&self) -> bool {
        let mut rules = self.rules.iter();
        rules.any(|rule| rule.is_via(Via::Direct) || rule.is_via(Via::Faster))
    }

    /// Returns whether new connections may leave outside the tunnel while no hub answers.
    #[must_use]
    pub fn may_bypass_hub(&self) -> bool {
        self.without_hub == WithoutHub::Direct
    }

    /// Returns whether direct mode runs concurrently with a client of a hub: it sends flows past
    /// the hub, and measures the faster route to a destination.
    #[must_use]
    pub fn runs_direct_with_hub(&self) -> bool {
        self.is_mixed() || self.hub == HubUse::Faster || self.may_bypass_hub()
    }

    /// Returns whether this machine forwards for others. `[direct]` may enable it too, for direct
    /// mode and for rules with a hub.
    #[must_use]
    pub fn forwards_directly(&self) -> bool {
        self.forward.is_on() || self.direct.forward
    }

    /// Returns the rules that recognise packets of layered streams.
    #[must_use]
    pub fn layer_rules(&self) -> Vec<layer::Rule> {
        self.layers.iter().map(|layer| layer.0).collect()
    }

    /// Returns the deadlines of packets in the tunnel; the first matching rule decides. An earlier
    /// rule whose flows use the hub is an exception, unless it only has `tcp`.
    #[must_use]
    pub fn deadline_rules(&self) -> Vec<DeadlineRule> {
        let is_for_tunnel = |rule: &&RuleConfig| {
            let is_form = rule.tcp.is_some() && rule.deadline.is_none();
            let is_known = rule.domains.is_empty() && rule.flows.cgroup.is_none();
            is_known && !is_form && rule.via(true) == Via::Hub
        };
        let Some(last) = self.rules.iter().rposition(|rule| rule.deadline.is_some()) else {
            return Vec::new();
        };
        let rules = self.rules[..=last].iter().filter(is_for_tunnel);
        let most = usize::from(MAX_DEADLINE_RULES);
        rules.flat_map(RuleConfig::deadline_rules).take(most).collect()
    }

    /// Returns the rules for the form of connections; the first matching rule decides. A rule
    /// before those with `tcp`, whose flows use the hub, is an exception, unless it only has a
    /// deadline, which TCP packets do not have.
    #[must_use]
    pub fn forms(&self) -> Forms {
        let unless_ruled = self.tcp.unwrap_or_default().into();
        let Some(last) = self.rules.iter().rposition(|rule| rule.tcp.is_some()) else {
            return Forms {
                unless_ruled,
                rules: Vec::new(),
            };
        };
        let is_for_tcp = |rule: &&RuleConfig| {
            let has_tcp = rule
                .flows
                .protocol
                .is_none_or(|protocol| protocol == Protocol::Tcp);
            let is_known = rule.domains.is_empty() && rule.flows.cgroup.is_none();
            let is_deadline = rule.deadline.is_some() && rule.tcp.is_none();
            has_tcp && is_known && !is_deadline && rule.via(true) == Via::Hub
        };
        let rules = self.rules[..=last].iter().filter(is_for_tcp);
        Forms {
            unless_ruled,
            rules: rules
                .flat_map(RuleConfig::form_rules)
                .take(MAX_FORM_RULES)
                .collect(),
        }
    }

    /// Applies sections of devices to the present names of their devices. A section of a missing
    /// device applies to no network.
    pub fn follow_devices(&mut self, devices: &[PresentDevice]) {
        let written = self.sections().clone();
        let found = assign(&written, devices);
        let mut networks = BTreeMap::new();
        for (section, set) in &written {
            let mut names = found.interfaces(section, set);
            if names.is_empty() {
                // No interface has a name with spaces.
                names.push(format!("device of {section}"));
            }
            networks.extend(names.into_iter().map(|name| (name, set.clone())));
        }
        self.networks = networks;
        self.followed = Followed {
            written,
            assignment: found,
        };
    }

    /// Returns whether any section belongs to a device, under any name.
    #[must_use]
    pub fn follows_devices(&self) -> bool {
        self.networks.values().any(|set| set.device.is_some())
    }

    /// Returns whether any setting depends on the state of modems.
    #[must_use]
    pub fn depends_on_modems(&self) -> bool {
        let has_imei = |set: &NetworkConfig| set.device.as_ref().is_some_and(|device| device.imei.is_some());
        let mut sections = self.networks.values();
        sections.any(|set| set.roaming == RoamingUse::Never || has_imei(set))
    }

    /// Returns whether the sections already apply as these devices require.
    #[must_use]
    pub fn has_followed(&self, devices: &[PresentDevice]) -> bool {
        !self.follows_devices() || assign(self.sections(), devices) == self.followed.assignment
    }

    /// Returns the name of the section that applies to a network, if there is one.
    #[must_use]
    pub fn section<'a>(&'a self, name: &'a str) -> Option<&'a str> {
        self.followed.assignment.section(self.sections(), name)
    }

    /// Returns a line for each section without effect on a present device.
    #[must_use]
    pub fn device_notices(&self) -> &[String] {
        &self.followed.assignment.notices
    }

    /// Returns the sections of the file.
    fn sections(&self) -> &BTreeMap<String, NetworkConfig> {
        match self.followed.written.is_empty() {
            true => &self.networks,
            false => &self.followed.written,
        }
    }

    /// Returns the settings of a network.
    #[must_use]
    pub fn network(&self, name: &str) -> NetworkConfig {
        self.networks.get(name).cloned().unwrap_or_default()
    }
}

/// Settings of a single network.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct NetworkConfig {
    /// Maximum rate towards the hub.
    pub cap_up: Option<Speed>,
    /// Maximum rate from the hub; in direct mode, the assumed capacity of the network.
    pub cap_down: Option<Speed>,
    /// Condition of its use: `always`, `overflow` (while packets wait for those that are always
    /// used) or `backup` (while no other works); with a hub.
    #[serde(rename = "use")]
    pub uses: Uses,
    /// Permission for bulk transfers while other networks work; with a hub.
    pub bulk: bool,
    /// Weight of the network in direct mode, which replaces its measured rate.
    pub weight: Option<NonZeroU16>,
    /// Cost of the network's use in direct mode, in any unit; networks with smaller values are
    /// preferred.
    pub cost: u32,
    /// Address that direct mode probes to detect a failure, instead of the gateway.
    pub probe: Option<IpAddr>,
    /// Targets beyond the gateway that show whether the network works; it is not used while they do
    /// not answer.
    pub check: Option<CheckConfig>,
    /// Role of the network for MPTCP connections in direct mode.
    pub mptcp: MultipathPart,
    /// Resolvers of the network in direct mode, which replace those of the system.
    pub dns: Vec<IpAddr>,
    /// Manager of its IPv4 address: `off` (not Hawser), `auto` (its present manager, otherwise an
    /// installed DHCP client).
    pub dhcp: DhcpMode,
    /// Use of TLS on TCP over the network, which overrides `[tls]`.
    pub tls: Option<TlsUse>,
    /// Proxy for TLS on TCP.
    pub proxy: Option<Proxy>,
    /// Monthly quota, both directions together.
    pub quota: Option<Size>,
    /// Day of the month on which the quota's period begins.
    pub reset_day: Day,
    /// Action when the quota is used up.
    pub quota_action: QuotaAction,
    /// Use of a modem in the network of another operator than its own.
    pub roaming: RoamingUse,
    /// Device for which these settings apply: they follow the device to another name, and do not
    /// apply to another device with this name.
    pub device: Option<DeviceConfig>,
}

impl Default for NetworkConfig {
    fn default() -> Self {
        Self {
            cap_up: None,
            cap_down: None,
            uses: Uses::default(),
            bulk: true,
            weight: None,
            cost: 0,
            probe: None,
            check: None,
            mptcp: MultipathPart::default(),
            dns: Vec::new(),
            dhcp: DhcpMode::default(),
            tls: None,
            proxy: None,
            quota: None,
            reset_day: Day::default(),
            quota_action: QuotaAction::default(),
            roaming: RoamingUse::default(),
            device: None,
        }
    }
}

impl Section for NetworkConfig {
    fn device(&self) -> Option<&DeviceConfig> {
        self.device.as_ref()
    }
}

impl NetworkConfig {
    /// Returns the quota, if there is one.
    #[must_use]
    pub fn quota(&self) -> Option<Quota> {
        self.quota.map(|size| Quota {
            limit: Bytes(size.0),
            reset_day: self.reset_day.0,
        })
    }
}
