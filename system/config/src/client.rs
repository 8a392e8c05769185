//! `client.toml`: what a client of a hub and direct mode are told.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::num::NonZeroU16;
use std::time::Duration;

use hawser_linux::direct::Protocol;
use hawser_linux::netlink::HardwareAddress;
use hawser_proto::stream::{Forms, MAX_FORM_RULES};
use hawser_steer::quota::Quota;
use hawser_units::Bytes;
use hawser_wire::deadline::{DeadlineRule, MAX_DEADLINE_RULES};
use hawser_wire::layer;
use serde::Deserialize;

use crate::{
    AnyNet, CheckConfig, DEFAULT_MTU, Day, DeviceAddress, DhcpMode, DirectConfig, DnsMode, Forward, HubUse,
    Inbound, InterfaceName, LayerConfig, LogFilter, Mtu, MultipathPart, OtlpConfig, Pattern, PoolConfig,
    PortForwardConfig, Proxy, QuotaAction, RadioConfig, RuleConfig, Schedulers, Size, Span, Speed, TcpMode,
    TlsConfig, TlsUse, Uses, Via, WhenEnded, WithoutHub,
};

/// Default time without an answer of the hub after which new connections bypass it.
///
/// Source: resolv.conf(5), a name is given up after two attempts of 5 s. A hub's restart takes at
/// most 0.25 s and a change to another hub 1 to 3 s, so neither lets anything out.
const DIRECT_AFTER: Span = Span(Duration::from_secs(10));

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
    /// What becomes of traffic when the hub refuses this machine for good.
    pub when_ended: WhenEnded,
    /// Treatment of new connections while no hub answers: they wait, or bypass the hub.
    pub without_hub: WithoutHub,
    /// Time without an answer after which they bypass the hub.
    pub without_hub_after: Span,
    /// Destinations that stay outside the tunnel where a route of the machine leads there, whoever
    /// added it. Otherwise only subnets of the machine's own and an administrator's static routes
    /// to private networks do; with `kill_switch` nothing does.
    pub local: Vec<AnyNet>,
    /// Connections from the tunnel to this machine that may begin.
    pub inbound: Inbound,
    /// Whether this machine forwards for others, and behind which interfaces they are.
    pub forward: Forward,
    /// What comes in from the hub and goes to a machine behind this one.
    #[serde(rename = "port_forward")]
    pub port_forwards: Vec<PortForwardConfig>,
    /// Subnets behind this machine whose machines keep their addresses in the tunnel, as far as the
    /// hub leads them here (`hawser hub subnet`).
    pub subnets: Vec<AnyNet>,
    /// Form of TCP connections: `end-to-end` (their packets go through the tunnel) or
    /// `stream` (they are split, and their bytes go over all networks).
    pub tcp: TcpMode,
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
    /// Which hub of a fleet is used: `nearest` by the round trip, the one in use (`stay`), or
    /// beside the nearest another one for destinations that are reached sooner through it
    /// (`faster`).
    pub hub: HubUse,
    /// Whose ways out are taken beside this machine's own.
    pub pool: PoolConfig,
    /// Age at which keys are replaced.
    pub rekey_after: Span,
    /// Where Prometheus may ask; off when absent.
    pub metrics: Option<SocketAddr>,
    /// A collector that figures are sent to; none when absent.
    pub otlp: Option<OtlpConfig>,
    /// Whether it is kept how the networks were over a day and a year.
    pub history: bool,
    /// What is logged: `error`, `warn`, `info`, `debug`, `trace`, or a filter such as
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
            tcp: TcpMode::EndToEnd,
            schedulers: Schedulers::default(),
            layers: Vec::new(),
            networks: BTreeMap::new(),
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
    /// Whether any rule asks if the machine is being carried about.
    #[must_use]
    pub fn depends_on_motion(&self) -> bool {
        self.rules.iter().any(|rule| rule.when.moving.is_some())
    }

    /// Whether the network of that name is to be used.
    #[must_use]
    pub fn uses(&self, name: &str) -> bool {
        name != self.interface.0
            && self.include.iter().any(|pattern| pattern.matches(name))
            && !self.exclude.iter().any(|pattern| pattern.matches(name))
    }

    /// Whether some flows go past the hub, if there is one.
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

    /// Whether direct mode runs beside a client of a hub: it sends flows past the hub, and finds
    /// out by which way destinations are reached sooner.
    #[must_use]
    pub fn runs_direct_beside(&self) -> bool {
        self.is_mixed() || self.hub == HubUse::Faster || self.may_bypass_hub()
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

    /// Lists how long packets of flows are of use in the tunnel; the first rule that fits decides.
    /// A rule before them whose flows use the hub is an exception, unless all that it has is `tcp`.
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

    /// Decides which connections are streams; the first rule that fits decides. A rule before
    /// those with `tcp`, whose flows use the hub, is an exception, unless all that it has is a
    /// deadline: packets of TCP have none.
    #[must_use]
    pub fn forms(&self) -> Forms {
        let unless_ruled = self.tcp.into();
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

    /// Gives settings that are for a device to the name that it has now. Those of a device that is
    /// not there hold for no network. `devices`: the names that there are, and their devices.
    pub fn follow_devices(&mut self, devices: &[(String, Option<HardwareAddress>)]) {
        let mut named = BTreeMap::new();
        let mut following = Vec::new();
        for (name, set) in std::mem::take(&mut self.networks) {
            match set.device {
                Some(device) => following.push((device.0, set)),
                None => drop(named.insert(name, set)),
            }
        }
        for (device, set) in following {
            let mut there = devices.iter();
            let found = there.find(|(_, address)| *address == Some(device));
            // No interface has a name with a space.
            let name = found.map_or_else(|| format!("device {device}"), |(name, _)| name.clone());
            named.insert(name, set);
        }
        self.networks = named;
    }

    /// Returns true where settings of any network are for a device, under any name.
    #[must_use]
    pub fn follows_devices(&self) -> bool {
        self.networks.values().any(|set| set.device.is_some())
    }

    /// The settings of a network.
    #[must_use]
    pub fn network(&self, name: &str) -> NetworkConfig {
        self.networks.get(name).cloned().unwrap_or_default()
    }
}

/// What may be set for a single network.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct NetworkConfig {
    /// At most this towards the hub.
    pub cap_up: Option<Speed>,
    /// At most this from the hub; in direct mode, what the network is taken to carry.
    pub cap_down: Option<Speed>,
    /// When it is used beside the others: `always`, `overflow` (while packets wait for those that
    /// are always used) or `backup` (while no other works); with a hub.
    #[serde(rename = "use")]
    pub uses: Uses,
    /// Whether transfers may use it beside others; with a hub.
    pub bulk: bool,
    /// Direct mode: its share beside the others, in place of what it carries.
    pub weight: Option<NonZeroU16>,
    /// Direct mode: what its use costs, in any unit; smaller is cheaper.
    pub cost: u32,
    /// Direct mode: who is asked whether the network is alive, in place of the gateway.
    pub probe: Option<IpAddr>,
    /// Targets beyond the gateway that show whether it leads anywhere; it is not used while they
    /// do not answer.
    pub check: Option<CheckConfig>,
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
    /// The device for which these settings are, by its hardware address: they follow it when it
    /// gets another name, and hold for no other device that gets this one.
    pub device: Option<DeviceAddress>,
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
            device: None,
        }
    }
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
