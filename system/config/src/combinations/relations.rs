//! Keys that exclude each other, and keys that need another one.

use super::{Conflict, Need};

/// Pairs of keys of which one cancels the effect of the other.
pub(super) const CONFLICTS: &[Conflict] = &[
    Conflict {
        pair: ["kill_switch", "forward = true"],
        reason: "kill_switch = true needs the names of the LANs: write forward = [\"br-lan\"] with their names",
    },
    Conflict {
        pair: ["kill_switch", "local"],
        reason: "kill_switch = true blocks all packets outside the tunnel, and local would permit some: remove one of them",
    },
    Conflict {
        pair: ["kill_switch", "when_ended"],
        reason: "kill_switch = true blocks all packets when the hub rejects this machine, and when_ended = \"open\" would permit them: remove one of them",
    },
    Conflict {
        pair: ["kill_switch", WITHOUT_HUB],
        reason: "kill_switch = true blocks all packets outside the tunnel, and without_hub = \"direct\" would permit some while no hub answers: remove one of them",
    },
    Conflict {
        pair: ["forward = [\"br-lan\"]", "[direct] forward"],
        reason: "forward = true of [direct] applies to all LANs, and forward above all tables lists some: remove forward from [direct]",
    },
    Conflict {
        pair: ["forward = [\"br-lan\"]", OPEN_VSWITCH],
        reason: "dataplane = \"openvswitch\" cannot distinguish the interfaces of LANs: write forward = true, or remove dataplane",
    },
    Conflict {
        pair: ["dns = \"networks\"", OPEN_VSWITCH],
        reason: UNSEEN,
    },
    Conflict {
        pair: ["[[rule]] domain", OPEN_VSWITCH],
        reason: UNSEEN,
    },
    Conflict {
        pair: ["[[rule]] from", OPEN_VSWITCH],
        reason: UNSEEN,
    },
    Conflict {
        pair: ["[[rule]] cgroup", OPEN_VSWITCH],
        reason: UNSEEN,
    },
    Conflict {
        pair: ["[direct] peer_port", OPEN_VSWITCH],
        reason: MOVED,
    },
    Conflict {
        pair: ["[direct] move", OPEN_VSWITCH],
        reason: MOVED,
    },
    Conflict {
        pair: ["[networks.NAME] mptcp", OPEN_VSWITCH],
        reason: "dataplane = \"openvswitch\" does not configure MPTCP: remove mptcp of the network, or dataplane",
    },
    Conflict {
        pair: ["[networks.NAME] mptcp", "[direct] mptcp"],
        reason: "mptcp = false in [direct] disables the configuration of MPTCP on every network: remove it, or mptcp of the network",
    },
    Conflict {
        pair: ["tcp = \"end-to-end\"", "[[rule]] tcp = \"end-to-end\""],
        reason: "all connections are end-to-end, so tcp = \"end-to-end\" in a rule has no effect: remove one of them (an exception to rules with tcp = \"stream\" is a rule with via = \"hub\" before them)",
    },
    Conflict {
        pair: ["subnets", "[[rule]] hub"],
        reason: "the hub of a rule does not route subnets to this client: remove subnets, or the rule",
    },
    Conflict {
        pair: ["[tls] use = \"always\"", "hub = \"faster\""],
        reason: SECOND_TLS,
    },
    Conflict {
        pair: ["[tls] use = \"always\"", "[[rule]] hub"],
        reason: SECOND_TLS,
    },
    Conflict {
        pair: ["[pool] neighbours", "hub = \"faster\""],
        reason: SECOND_POOL,
    },
    Conflict {
        pair: ["[pool] members", "hub = \"faster\""],
        reason: SECOND_POOL,
    },
    Conflict {
        pair: ["[pool] neighbours", "[[rule]] hub"],
        reason: SECOND_POOL,
    },
    Conflict {
        pair: ["[pool] members", "[[rule]] hub"],
        reason: SECOND_POOL,
    },
    Conflict {
        pair: ["[[pool.gre]]", "hub = \"faster\""],
        reason: SECOND_POOL,
    },
    Conflict {
        pair: ["[[pool.gre]]", "[[rule]] hub"],
        reason: SECOND_POOL,
    },
];

/// Keys that have no effect by themselves.
pub(super) const NEEDS: &[Need] = &[
    Need {
        key: "without_hub_after",
        any_of: &[WITHOUT_HUB],
        reason: "without_hub_after needs without_hub = \"direct\": add it, or remove without_hub_after",
    },
    Need {
        key: "[[port_forward]]",
        any_of: FORWARD,
        reason: "[[port_forward]] needs forward = true, or the names of the LANs: forward = [\"br-lan\"]",
    },
    Need {
        key: "subnets",
        any_of: FORWARD,
        reason: "subnets needs forward = true, or the names of the LANs: forward = [\"br-lan\"]",
    },
    Need {
        key: DASHBOARD,
        any_of: FORWARD,
        reason: "dashboard is the page for devices behind this machine, which does not forward: write forward = true, or the names of the LANs: forward = [\"br-lan\"]; `hawser dashboard` shows a page on this machine without any key",
    },
    Need {
        key: LAN_DEVICES,
        any_of: FORWARD,
        reason: "[lan_devices] applies to devices behind this machine, which does not forward: write forward = true, or the names of the LANs: forward = [\"br-lan\"]",
    },
    Need {
        key: "[[rule]] from",
        any_of: &["forward = true", "forward = [\"br-lan\"]", "[direct] forward"],
        reason: "a rule with from applies to machines behind this one: write forward = true, or the names of the LANs: forward = [\"br-lan\"]",
    },
    Need {
        key: "[[rule]] deadline and from",
        any_of: &["subnets"],
        reason: "machines behind this one have its address in the tunnel, so a rule with a deadline cannot use from: write subnets = [\"192.168.50.0/24\"] and route the subnet here on the hub (`hawser hub subnet`), or use port or dscp (a machine that marks its packets EF needs no rule)",
    },
    Need {
        key: "[[rule]] domain",
        any_of: &["dns = \"networks\""],
        reason: "a rule with a domain needs the answers of resolvers: write dns = \"networks\" above all tables, or remove domain",
    },
    Need {
        key: "[pool] receipts",
        any_of: &["[pool] neighbours", "[pool] members"],
        reason: "receipts applies to members, and none is used: write neighbours = true or members in [pool], or remove it",
    },
    Need {
        key: "[pool] uplinks",
        any_of: &["[pool] neighbours", "[pool] members"],
        reason: "uplinks is the number of members' uplinks in use, and none is used: write neighbours = true or members in [pool], or remove it",
    },
    Need {
        key: "[pool] cost_below",
        any_of: &["[pool] neighbours", "[pool] members"],
        reason: "cost_below applies to members' uplinks, and none is used: write neighbours = true or members in [pool], or remove it",
    },
    Need {
        key: "[networks.NAME] quota_action",
        any_of: &["[networks.NAME] quota"],
        reason: "quota_action needs a quota: add quota = \"10GB\", or remove quota_action",
    },
];

const FORWARD: &[&str] = &["forward = true", "forward = [\"br-lan\"]"];
const OPEN_VSWITCH: &str = "[direct] dataplane = \"openvswitch\"";
pub(super) const DASHBOARD: &str = "dashboard";
pub(super) const LAN_DEVICES: &str = "[lan_devices]";
pub(super) const WITHOUT_HUB: &str = "without_hub = \"direct\"";
const UNSEEN: &str = "dataplane = \"openvswitch\" cannot distinguish programs, names, or machines behind this one: remove cgroup, domain, from and dns = \"networks\", or dataplane";
const MOVED: &str = "dataplane = \"openvswitch\" cannot move flows: remove move and peer_port, or dataplane";
const SECOND_TLS: &str = "the second session of hub = \"faster\" and of rules with hub uses UDP only: write use = \"blocked\" in [tls], or remove the other key";
const SECOND_POOL: &str = "the second session of hub = \"faster\" and of rules with hub does not use neighbours: remove [pool], or the other key";
