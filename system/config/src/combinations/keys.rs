//! Keys of `client.toml` and the modes in which they work.

use hawser_proto::pool::selection::DEFAULT_UPLINKS;
use hawser_steer::endpoints::Part;

use super::relations::{DASHBOARD, LAN_DEVICES, WITHOUT_HUB};
use super::{Key, has_via};
use crate::{
    ClientConfig, ControllerName, Dataplane, DirectConfig, DnsMode, Forward, HubUse, Inbound, Moves,
    NetworkConfig, QuotaAction, RadioConfig, RoamingUse, RuleConfig, Schedulers, TcpMode, TlsConfig, TlsUse,
    Uses, Via, WhenEnded,
};

/// Works in all modes. Source: one entry for each mode.
const EVERYWHERE: [Option<&str>; 3] = [None; 3];

/// Needs a hub.
const fn of_hubs(reason: &'static str) -> [Option<&'static str>; 3] {
    [Some(reason), None, None]
}

/// Needs direct mode, alone or with a hub.
const fn of_direct(reason: &'static str) -> [Option<&'static str>; 3] {
    [None, Some(reason), None]
}

/// Needs direct mode without a hub.
const fn of_direct_alone(reason: &'static str) -> [Option<&'static str>; 3] {
    [None, Some(reason), Some(reason)]
}

/// Returns whether the settings of any network satisfy a condition.
fn of_network(config: &ClientConfig, says: fn(&NetworkConfig) -> bool) -> bool {
    config.networks.values().any(says)
}

fn of_rule(config: &ClientConfig, says: fn(&RuleConfig) -> bool) -> bool {
    config.rules.iter().any(says)
}

fn differs<T: PartialEq>(config: &ClientConfig, of: fn(&ClientConfig) -> &T) -> bool {
    of(config) != of(&ClientConfig::default())
}

fn direct_differs<T: PartialEq>(config: &ClientConfig, of: fn(&DirectConfig) -> &T) -> bool {
    of(&config.direct) != of(&DirectConfig::default())
}

/// Keys in the order in which a rejection names them.
pub(super) const KEYS: &[Key] = &[
    Key {
        name: "include",
        example: "include = [\"eth*\"]",
        is_set: |config| differs(config, |config| &config.include),
        refused: EVERYWHERE,
    },
    Key {
        name: "exclude",
        example: "exclude = [\"docker*\"]",
        is_set: |config| !config.exclude.is_empty(),
        refused: EVERYWHERE,
    },
    Key {
        name: "interface",
        example: "interface = \"hawser7\"",
        is_set: |config| differs(config, |config| &config.interface),
        refused: EVERYWHERE,
    },
    Key {
        name: "mtu",
        example: "mtu = 1400",
        is_set: |config| differs(config, |config| &config.mtu),
        refused: of_hubs(
            "mtu applies to the tunnel to a hub, and direct mode uses the MTU of each network: remove mtu, or start without --direct",
        ),
    },
    Key {
        name: "dns = \"hub\"",
        example: "dns = \"hub\"",
        is_set: |config| config.dns == DnsMode::Hub,
        refused: of_hubs(
            "dns = \"hub\" needs a hub: write dns = \"networks\" or \"keep\", or start without --direct",
        ),
    },
    Key {
        name: "dns = \"networks\"",
        example: "dns = \"networks\"",
        is_set: |config| config.dns == DnsMode::Networks,
        refused: of_direct(
            "dns = \"networks\" applies to flows outside the tunnel, and no rule has such flows: write dns = \"hub\" or \"keep\", or add a rule with via = \"direct\"",
        ),
    },
    Key {
        name: "kill_switch",
        example: "kill_switch = true",
        is_set: |config| config.kill_switch,
        refused: of_hubs("kill_switch = true needs a hub: remove it, or start without --direct"),
    },
    Key {
        name: "when_ended",
        example: "when_ended = \"open\"",
        is_set: |config| config.when_ended != WhenEnded::Block,
        refused: of_hubs("when_ended needs a hub: remove it, or start without --direct"),
    },
    Key {
        name: WITHOUT_HUB,
        example: "without_hub = \"direct\"",
        is_set: |config| config.may_bypass_hub(),
        refused: of_hubs(
            "without_hub needs a hub: remove it, or start without --direct (direct mode never uses a hub)",
        ),
    },
    Key {
        name: "without_hub_after",
        example: "without_hub_after = \"30s\"",
        is_set: |config| differs(config, |config| &config.without_hub_after),
        refused: of_hubs("without_hub_after needs a hub: remove it, or start without --direct"),
    },
    Key {
        name: "local",
        example: "local = [\"10.0.0.0/8\"]",
        is_set: |config| !config.local.is_empty(),
        refused: of_hubs(
            "local lists destinations outside the tunnel to a hub: remove it, or start without --direct",
        ),
    },
    Key {
        name: "inbound",
        example: "inbound = [\"tcp 22\"]",
        is_set: |config| config.inbound != Inbound::Closed,
        refused: of_hubs(
            "inbound applies to connections that arrive through a hub, and direct mode blocks none: remove it, or start without --direct",
        ),
    },
    Key {
        name: "forward = true",
        example: "forward = true",
        is_set: |config| config.forward == Forward::All,
        refused: EVERYWHERE,
    },
    Key {
        name: "forward = [\"br-lan\"]",
        example: "forward = [\"br-lan\"]",
        is_set: |config| matches!(config.forward, Forward::Lans(_)),
        refused: EVERYWHERE,
    },
    Key {
        name: "[[port_forward]]",
        example: "[[port_forward]]\nport = \"tcp 8080\"\nto = \"192.168.50.7:80\"",
        is_set: |config| !config.port_forwards.is_empty(),
        refused: of_hubs("[[port_forward]] needs a hub: remove it, or start without --direct"),
    },
    Key {
        name: "subnets",
        example: "subnets = [\"192.168.50.0/24\"]",
        is_set: |config| !config.subnets.is_empty(),
        refused: of_hubs("subnets needs a hub: remove it, or start without --direct"),
    },
    Key {
        name: DASHBOARD,
        example: "dashboard = { listen = \"lan\", password = true }",
        is_set: |config| config.dashboard.is_some(),
        refused: of_hubs(
            "dashboard serves a page to the LAN of a client of a hub, and direct mode has none yet: remove it, or start without --direct; `hawser dashboard` shows the page on this machine",
        ),
    },
    Key {
        name: LAN_DEVICES,
        example: "[lan_devices.\"02:00:00:00:00:07\"]\npaused = true",
        is_set: |config| !config.lan_devices.0.is_empty(),
        refused: of_hubs(
            "[lan_devices] applies to the LAN of a client of a hub: remove it, or start without --direct",
        ),
    },
    Key {
        name: "tcp = \"stream\"",
        example: "tcp = \"stream\"",
        is_set: |config| config.tcp == Some(TcpMode::Stream),
        refused: of_hubs(SPLIT_BY_HUB),
    },
    Key {
        name: "tcp = \"end-to-end\"",
        example: "tcp = \"end-to-end\"",
        is_set: |config| config.tcp == Some(TcpMode::EndToEnd),
        refused: of_hubs(SPLIT_BY_HUB),
    },
    Key {
        name: "[schedulers]",
        example: "[schedulers]\nbulk = \"min-rtt\"",
        is_set: |config| config.schedulers != Schedulers::default(),
        refused: of_hubs(
            "[schedulers] select a path for each packet of a tunnel, and direct mode has no tunnel: remove them, or start without --direct",
        ),
    },
    Key {
        name: "controller",
        example: "controller = \"cubic\"",
        is_set: |config| config.controller != ControllerName::default(),
        refused: of_hubs(
            "controller applies to the paths of a tunnel, and direct mode has no tunnel: remove it, or start without --direct",
        ),
    },
    Key {
        name: "[[layer]]",
        example: "[[layer]]\nport = 5004\nlayer = 0",
        is_set: |config| !config.layers.is_empty(),
        refused: of_hubs(
            "[[layer]] applies to packets in a tunnel, and direct mode has no tunnel: remove it, or start without --direct",
        ),
    },
    Key {
        name: "[tls]",
        example: "[tls]\nport = 8443",
        is_set: |config| {
            config.tls
                != TlsConfig {
                    when: config.tls.when,
                    ..TlsConfig::default()
                }
        },
        refused: of_hubs(TLS),
    },
    Key {
        name: "[tls] use = \"always\"",
        example: "[tls]\nuse = \"always\"",
        is_set: |config| config.tls.when == TlsUse::Always,
        refused: of_hubs(TLS),
    },
    Key {
        name: "[tls] use = \"never\"",
        example: "[tls]\nuse = \"never\"",
        is_set: |config| config.tls.when == TlsUse::Never,
        refused: of_hubs(TLS),
    },
    Key {
        name: "hub = \"stay\"",
        example: "hub = \"stay\"",
        is_set: |config| config.hub == HubUse::Stay,
        refused: of_hubs("hub = \"stay\" needs a hub: remove it, or start without --direct"),
    },
    Key {
        name: "hub = \"faster\"",
        example: "hub = \"faster\"",
        is_set: |config| config.hub == HubUse::Faster,
        refused: of_hubs("hub = \"faster\" needs a hub: remove it, or start without --direct"),
    },
    Key {
        name: "[pool] neighbours",
        example: "[pool]\nneighbours = true",
        is_set: |config| config.pool.neighbours,
        refused: of_hubs(POOL),
    },
    Key {
        name: "[pool] members",
        example: "[pool]\nmembers = [\"192.168.1.7:47473\"]",
        is_set: |config| !config.pool.members.is_empty(),
        refused: of_hubs(POOL),
    },
    Key {
        name: "[pool] receipts",
        example: "[pool]\nreceipts = false",
        is_set: |config| !config.pool.receipts,
        refused: of_hubs(POOL),
    },
    Key {
        name: "[pool] uplinks",
        example: "[pool]\nuplinks = 3",
        is_set: |config| config.pool.uplinks != DEFAULT_UPLINKS,
        refused: of_hubs(POOL),
    },
    Key {
        name: "[pool] cost_below",
        example: "[pool]\ncost_below = 5",
        is_set: |config| config.pool.cost_below.is_some(),
        refused: of_hubs(POOL),
    },
    Key {
        name: "[[pool.gre]]",
        example: "[[pool.gre]]\nname = \"bob's router\"\nmember = \"192.168.1.7\"\nnetwork = \"10.47.47.0/24\"",
        is_set: |config| !config.pool.gre.is_empty(),
        refused: of_hubs(POOL),
    },
    Key {
        name: "rekey_after",
        example: "rekey_after = \"2h\"",
        is_set: |config| differs(config, |config| &config.rekey_after),
        refused: of_hubs(
            "rekey_after applies to the keys of a tunnel, and direct mode has no tunnel: remove it, or start without --direct",
        ),
    },
    Key {
        name: "metrics",
        example: "metrics = \"127.0.0.1:9469\"",
        is_set: |config| config.metrics.is_some(),
        refused: EVERYWHERE,
    },
    Key {
        name: "otlp",
        example: "otlp = { to = \"http://127.0.0.1:4318\", every = \"60s\" }",
        is_set: |config| config.otlp.is_some(),
        refused: EVERYWHERE,
    },
    Key {
        name: "history",
        example: "history = false",
        is_set: |config| !config.history,
        refused: EVERYWHERE,
    },
    Key {
        name: "log",
        example: "log = \"debug\"",
        is_set: |config| config.log.is_some(),
        refused: EVERYWHERE,
    },
    Key {
        name: "[radio]",
        example: "[radio]\nslots = true",
        is_set: |config| config.radio != RadioConfig::default(),
        refused: EVERYWHERE,
    },
    Key {
        name: "[networks.NAME] device",
        example: "[networks.wwan0]\ndevice = \"00:16:3e:12:34:56\"",
        is_set: |config| of_network(config, |set| set.device.is_some()),
        refused: EVERYWHERE,
    },
    Key {
        name: "[networks.NAME] roaming",
        example: "[networks.wwan0]\nroaming = \"never\"",
        is_set: |config| of_network(config, |set| set.roaming != RoamingUse::Allow),
        refused: EVERYWHERE,
    },
    Key {
        name: "[networks.NAME] cap_up",
        example: "[networks.wwan0]\ncap_up = \"10mbit\"",
        is_set: |config| of_network(config, |set| set.cap_up.is_some()),
        refused: of_hubs(
            "cap_up of a network limits the tunnel to a hub, and direct mode does not limit rates: remove it, or start without --direct",
        ),
    },
    Key {
        name: "[networks.NAME] cap_down",
        example: "[networks.wwan0]\ncap_down = \"40mbit\"",
        is_set: |config| of_network(config, |set| set.cap_down.is_some()),
        refused: EVERYWHERE,
    },
    Key {
        name: "[networks.NAME] use",
        example: "[networks.wwan0]\nuse = \"backup\"",
        is_set: |config| of_network(config, |set| set.uses != Uses::default()),
        refused: of_hubs(PREFERENCE),
    },
    Key {
        name: "[networks.NAME] bulk",
        example: "[networks.wwan0]\nbulk = false",
        is_set: |config| of_network(config, |set| !set.bulk),
        refused: of_hubs(PREFERENCE),
    },
    Key {
        name: "[networks.NAME] weight",
        example: "[networks.wwan0]\nweight = 2",
        is_set: |config| of_network(config, |set| set.weight.is_some()),
        refused: of_direct(
            "weight of a network is its share of flows outside the tunnel, and no rule has such flows: remove it (use, bulk and caps control the use of a network in the tunnel), or add a rule with via = \"direct\"",
        ),
    },
    Key {
        name: "[networks.NAME] cost",
        example: "[networks.wwan0]\ncost = 3",
        is_set: |config| of_network(config, |set| set.cost != 0),
        refused: of_direct(
            "cost of a network applies to rules for flows outside the tunnel, and there is none: remove it (use = \"backup\" reduces the use of a network in the tunnel), or add a rule with via = \"direct\"",
        ),
    },
    Key {
        name: "[networks.NAME] probe",
        example: "[networks.wwan0]\nprobe = \"192.0.2.1\"",
        is_set: |config| of_network(config, |set| set.probe.is_some()),
        refused: of_direct(
            "probe of a network applies to flows outside the tunnel, and no rule has such flows (the tunnel tests a network by its own packets): remove it, or add a rule with via = \"direct\"",
        ),
    },
    Key {
        name: "[networks.NAME] check",
        example: "[networks.wwan0.check]\ntarget = [\"192.0.2.1\"]",
        is_set: |config| of_network(config, |set| set.check.is_some()),
        refused: EVERYWHERE,
    },
    Key {
        name: "[networks.NAME] mptcp",
        example: "[networks.wwan0]\nmptcp = \"backup\"",
        is_set: |config| of_network(config, |set| set.mptcp.0 != Part::Equal),
        refused: of_direct_alone(
            "mptcp of a network applies to connections without a hub (the tunnel uses all networks for every connection): remove it, or run `hawser up --direct`",
        ),
    },
    Key {
        name: "[networks.NAME] dns",
        example: "[networks.wwan0]\ndns = [\"192.0.2.53\"]",
        is_set: |config| of_network(config, |set| !set.dns.is_empty()),
        refused: EVERYWHERE,
    },
    Key {
        name: "[networks.NAME] dhcp",
        example: "[networks.wwan0]\ndhcp = \"auto\"",
        is_set: |config| of_network(config, |set| set.dhcp != NetworkConfig::default().dhcp),
        refused: EVERYWHERE,
    },
    Key {
        name: "[networks.NAME] tls",
        example: "[networks.wwan0]\ntls = \"always\"",
        is_set: |config| of_network(config, |set| set.tls.is_some()),
        refused: of_hubs(TLS),
    },
    Key {
        name: "[networks.NAME] proxy",
        example: "[networks.wwan0]\nproxy = \"http://192.0.2.8:3128\"",
        is_set: |config| of_network(config, |set| set.proxy.is_some()),
        refused: of_hubs(
            "proxy of a network applies to TLS on TCP to a hub: remove it, or start without --direct",
        ),
    },
    Key {
        name: "[networks.NAME] quota",
        example: "[networks.wwan0]\nquota = \"10GB\"",
        is_set: |config| of_network(config, |set| set.quota.is_some()),
        refused: EVERYWHERE,
    },
    Key {
        name: "[networks.NAME] reset_day",
        example: "[networks.wwan0]\nreset_day = 5",
        is_set: |config| of_network(config, |set| set.reset_day != NetworkConfig::default().reset_day),
        refused: EVERYWHERE,
    },
    Key {
        name: "[networks.NAME] quota_action",
        example: "[networks.wwan0]\nquota_action = \"warn\"",
        is_set: |config| of_network(config, |set| set.quota_action != QuotaAction::default()),
        refused: EVERYWHERE,
    },
    Key {
        name: "[direct] spread",
        example: "[direct]\nspread = \"even\"",
        is_set: |config| direct_differs(config, |direct| &direct.spread),
        refused: of_direct(
            "spread of [direct] distributes flows outside the tunnel, and no rule has such flows: remove it, or add a rule with via = \"direct\"",
        ),
    },
    Key {
        name: "[direct] forward",
        example: "[direct]\nforward = true",
        is_set: |config| config.direct.forward,
        refused: of_direct(
            "forward of [direct] applies to flows outside the tunnel, and no rule has such flows: write forward = true above all tables",
        ),
    },
    Key {
        name: "[direct] dataplane = \"openvswitch\"",
        example: "[direct]\ndataplane = \"openvswitch\"",
        is_set: |config| config.direct.dataplane == Dataplane::OpenVSwitch,
        refused: of_direct_alone(
            "dataplane = \"openvswitch\" works without a hub only: remove it, or run `hawser up --direct`",
        ),
    },
    Key {
        name: "[direct] mptcp",
        example: "[direct]\nmptcp = false",
        is_set: |config| !config.direct.mptcp,
        refused: EVERYWHERE,
    },
    Key {
        name: "[direct] portal_check",
        example: "[direct]\nportal_check = \"off\"",
        is_set: |config| direct_differs(config, |direct| &direct.portal_check),
        refused: EVERYWHERE,
    },
    Key {
        name: "[direct] probe_every",
        example: "[direct]\nprobe_every = \"1s\"",
        is_set: |config| direct_differs(config, |direct| &direct.probe_every),
        refused: of_direct(
            "probe_every applies to flows outside the tunnel, and no rule has such flows: remove it, or add a rule with via = \"direct\"",
        ),
    },
    Key {
        name: "[direct] peer_port",
        example: "[direct]\npeer_port = 4444",
        is_set: |config| config.direct.peer_port.is_some(),
        refused: of_direct_alone(
            "peer_port is the port for peers that move flows without a hub: remove it, or run `hawser up --direct`",
        ),
    },
    Key {
        name: "[direct] move",
        example: "[direct]\nmove = \"asked\"",
        is_set: |config| config.direct.moves != Moves::Auto,
        refused: of_direct_alone(
            "move applies to flows without a hub (flows in the tunnel survive the failure of a network): remove it, or run `hawser up --direct`",
        ),
    },
    Key {
        name: "[direct] keep_flows",
        example: "[direct]\nkeep_flows = \"5s\"",
        is_set: |config| direct_differs(config, |direct| &direct.keep_flows),
        refused: of_direct(
            "keep_flows applies to flows outside the tunnel, and no rule has such flows: remove it, or add a rule with via = \"direct\"",
        ),
    },
    Key {
        name: "[direct] address",
        example: "[direct]\naddress = \"100.64.0.9\"\naddress6 = \"fd00:7::9\"",
        is_set: |config| config.direct.own() != DirectConfig::default().own(),
        refused: of_direct(
            "address and address6 of [direct] apply to flows outside the tunnel, and no rule has such flows: remove them, or add a rule with via = \"direct\"",
        ),
    },
    Key {
        name: "[[rule]] via = \"direct\"",
        example: "[[rule]]\nport = 22\nvia = \"direct\"",
        is_set: |config| has_via(config, Via::Direct),
        refused: EVERYWHERE,
    },
    Key {
        name: "[[rule]] via = \"hub\"",
        example: "[[rule]]\nport = 23\nvia = \"hub\"",
        is_set: |config| has_via(config, Via::Hub),
        refused: of_hubs("a rule with via = \"hub\" needs a hub: remove it, or start without --direct"),
    },
    Key {
        name: "[[rule]] via = \"faster\"",
        example: "[[rule]]\nport = 24\nvia = \"faster\"",
        is_set: |config| has_via(config, Via::Faster),
        refused: of_hubs("a rule with via = \"faster\" needs a hub: remove it, or start without --direct"),
    },
    Key {
        name: "[[rule]] without via",
        example: "[[rule]]\nport = 25\nnetwork = \"eth0\"",
        is_set: |config| {
            of_rule(config, |rule| {
                let says = [Via::Direct, Via::Hub, Via::Faster]
                    .iter()
                    .any(|via| rule.is_via(*via));
                !says && rule.hub.is_none() && rule.deadline.is_none() && rule.tcp.is_none()
            })
        },
        refused: EVERYWHERE,
    },
    Key {
        name: "[[rule]] deadline",
        example: "[[rule]]\nport = 5004\ndeadline = \"150ms\"",
        is_set: |config| of_rule(config, |rule| rule.deadline.is_some()),
        refused: of_hubs(
            "a deadline applies to packets in a tunnel, and direct mode has no tunnel: remove it, or start without --direct",
        ),
    },
    Key {
        name: "[[rule]] deadline and from",
        example: "[[rule]]\nfrom = \"192.168.50.8\"\ndeadline = \"150ms\"",
        is_set: |config| {
            of_rule(config, |rule| {
                rule.deadline.is_some() && !rule.flows.from.is_empty()
            })
        },
        refused: of_hubs(
            "a deadline applies to packets in a tunnel, and direct mode has no tunnel: remove it, or start without --direct",
        ),
    },
    Key {
        name: "[[rule]] tcp = \"stream\"",
        example: "[[rule]]\nport = 27\ntcp = \"stream\"",
        is_set: |config| of_rule(config, |rule| rule.tcp == Some(TcpMode::Stream)),
        refused: of_hubs(SPLIT_BY_HUB),
    },
    Key {
        name: "[[rule]] tcp = \"end-to-end\"",
        example: "[[rule]]\nport = 28\ntcp = \"end-to-end\"",
        is_set: |config| of_rule(config, |rule| rule.tcp == Some(TcpMode::EndToEnd)),
        refused: of_hubs(SPLIT_BY_HUB),
    },
    Key {
        name: "[[rule]] hub",
        example: "[[rule]]\nto = \"203.0.113.0/24\"\nhub = \"hub2.example.org\"",
        is_set: |config| of_rule(config, |rule| rule.hub.is_some()),
        refused: of_hubs("a rule with hub needs a fleet: remove it, or start without --direct"),
    },
    Key {
        name: "[[rule]] domain",
        example: "[[rule]]\ndomain = \"*.example.org\"\nvia = \"direct\"",
        is_set: |config| of_rule(config, |rule| !rule.domains.is_empty()),
        refused: EVERYWHERE,
    },
    Key {
        name: "[[rule]] from",
        example: "[[rule]]\nfrom = \"192.168.50.7\"\nvia = \"direct\"",
        is_set: |config| of_rule(config, |rule| !rule.flows.from.is_empty()),
        refused: EVERYWHERE,
    },
    Key {
        name: "[[rule]] cgroup",
        example: "[[rule]]\ncgroup = \"system.slice/backup.service\"\nvia = \"direct\"",
        is_set: |config| of_rule(config, |rule| rule.flows.cgroup.is_some()),
        refused: EVERYWHERE,
    },
];

const TLS: &str =
    "[tls] and tls of a network apply to the tunnel to a hub: remove them, or start without --direct";
const SPLIT_BY_HUB: &str = "tcp applies to connections that a hub splits, and direct mode has no hub: remove it, or start without --direct";
const POOL: &str = "[pool] uses neighbours' networks to reach a hub: remove it, or start without --direct";
const PREFERENCE: &str = "use and bulk of a network need a hub (in direct mode, rules select the networks of flows): remove them, or start without --direct";
