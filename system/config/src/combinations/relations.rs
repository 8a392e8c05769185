//! Keys that exclude each other, and keys that need another one.

use super::{Conflict, Need};

/// Pairs of which one has no effect beside the other, or opens what the other closes.
pub(super) const CONFLICTS: &[Conflict] = &[
    Conflict {
        pair: ["kill_switch", "forward = true"],
        reason: "kill_switch = true has to know which interfaces lead to the machines that it forwards for: write forward = [\"br-lan\"] with their names",
    },
    Conflict {
        pair: ["kill_switch", "local"],
        reason: "kill_switch = true lets nothing out beside the tunnel, and local would: take one of them out",
    },
    Conflict {
        pair: ["kill_switch", "when_ended"],
        reason: "kill_switch = true keeps everything in when the hub refuses this machine, and when_ended = \"open\" would let it out: take one of them out",
    },
    Conflict {
        pair: ["kill_switch", WITHOUT_HUB],
        reason: "kill_switch = true lets nothing out beside the tunnel, and without_hub = \"direct\" would while the hub is unreachable: take one of them out",
    },
    Conflict {
        pair: ["forward = [\"br-lan\"]", "[direct] forward"],
        reason: "forward = true of [direct] is for all LANs, and forward above all tables names some: take forward out of [direct]",
    },
    Conflict {
        pair: ["forward = [\"br-lan\"]", OPEN_VSWITCH],
        reason: "dataplane = \"openvswitch\" does not see behind which interface a machine is: write forward = true, or take dataplane out",
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
        reason: "dataplane = \"openvswitch\" leaves MPTCP alone: take mptcp of the network out, or dataplane",
    },
    Conflict {
        pair: ["[networks.NAME] mptcp", "[direct] mptcp"],
        reason: "mptcp = false in [direct] leaves MPTCP alone on every network: take it out, or mptcp of the network",
    },
    Conflict {
        pair: ["subnets", "[[rule]] hub"],
        reason: "a hub that a rule names does not lead subnets here: take subnets out, or the rule",
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
        reason: "without_hub_after is the time after which new connections bypass the hub, and none does: write without_hub = \"direct\" beside it, or take it out",
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
        key: "[[rule]] from",
        any_of: &["forward = true", "forward = [\"br-lan\"]", "[direct] forward"],
        reason: "a rule with from is for machines behind this one: write forward = true, or the names of the LANs: forward = [\"br-lan\"]",
    },
    Need {
        key: "[[rule]] deadline and from",
        any_of: &["subnets"],
        reason: "machines behind this one have its own address in the tunnel, so a deadline cannot go by from: write subnets = [\"192.168.50.0/24\"] and have the hub lead it here, or go by port or dscp (a machine that marks its packets EF needs no rule)",
    },
    Need {
        key: "[[rule]] tcp = \"end-to-end\"",
        any_of: &["tcp = \"stream\"", "[[rule]] tcp = \"stream\""],
        reason: "tcp = \"end-to-end\" in a rule is an exception, and all connections are end-to-end: write tcp = \"stream\" above all tables or in another rule, or take it out",
    },
    Need {
        key: "[[rule]] domain",
        any_of: &["dns = \"networks\""],
        reason: "a rule with a domain needs the answers of resolvers: write dns = \"networks\" above all tables, or take domain out",
    },
    Need {
        key: "[pool] receipts",
        any_of: &["[pool] neighbours", "[pool] members"],
        reason: "receipts are for what members carry, and none is taken: write neighbours = true or members in [pool], or take it out",
    },
    Need {
        key: "[networks.NAME] quota_action",
        any_of: &["[networks.NAME] quota"],
        reason: "quota_action needs a quota: write quota = \"10GB\" beside it, or take it out",
    },
];

const FORWARD: &[&str] = &["forward = true", "forward = [\"br-lan\"]"];
const OPEN_VSWITCH: &str = "[direct] dataplane = \"openvswitch\"";
pub(super) const WITHOUT_HUB: &str = "without_hub = \"direct\"";
const UNSEEN: &str = "dataplane = \"openvswitch\" sees neither programs nor names nor machines behind this one: take cgroup, domain, from and dns = \"networks\" out, or dataplane";
const MOVED: &str = "dataplane = \"openvswitch\" moves no flows: take move and peer_port out, or dataplane";
const SECOND_TLS: &str = "the second session of hub = \"faster\" and of rules with hub uses UDP alone: write use = \"blocked\" in [tls], or take the other out";
const SECOND_POOL: &str = "the second session of hub = \"faster\" and of rules with hub does not use neighbours: take [pool] out, or the other";
