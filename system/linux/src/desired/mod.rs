//! Desired state: all kernel objects that the products need, as one value.
//!
//! Every change by [`System`](crate::system::System) is recorded here, and removed here before it
//! is undone. [`difference`](difference::difference) compares the value with the kernel's state,
//! [`Reconciler`](reconciler::Reconciler) decides when each difference is repaired, and
//! `system/keeper.rs` connects both with netlink, nftables and time. This module does no I/O.
//!
//! ```text
//!   mutators of System --> Desired --+
//!                                    +--> difference --> Reconciler --> repairs --> kernel
//!   kernel --> Observed -------------+                       ^                        |
//!                                                            +---- notifications -----+
//! ```
//!
//! Some state is not described by the value. Its owner restores it:
//!
//! - elements of sets with timeouts (direct mode): `hawser-direct` (`naming.rs`, `faster.rs`), when
//!   [`System::reinstalled`](crate::system::System::reinstalled) counts up;
//! - connection tracking entries: the kernel; they survive a reinstalled table, and flows that
//!   started meanwhile are restarted;
//! - eBPF programs and maps: `bpf/`; the process holds them open, and they end with it only;
//! - leased addresses and their default routes: `system/host/src/dhcp`, on each renewal;
//! - flows of Open vSwitch: `products/direct/src/switch.rs`, once a second;
//! - routes of a hub to subnets of clients: `products/hub/src/reach.rs`, on each change of clients;
//! - queueing disciplines: the products set none.

pub(crate) mod capture;
pub(crate) mod difference;
pub(crate) mod elsewhere;
pub(crate) mod near;
pub(crate) mod reconciler;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::IpAddr;

use hawser_units::Net;

use crate::mptcp::Endpoint;

pub use near::NearPolicy;

/// Name of a kernel object, which has at most one desired value.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Object {
    /// A table of the `inet` family in nftables, by name.
    Table(String),
    /// A setting, by its path below `/proc/sys`.
    Setting(String),
    /// An interface that is up, by name.
    Link(String),
    /// The MTU of an interface, by name.
    Mtu(String),
    /// The bridge of an interface, by name of the interface.
    Port(String),
    /// An address of an interface.
    Address(String, IpAddr),
    /// A route.
    Route(RouteKey),
    /// A routing rule, with its priority before the rules were moved.
    Rule(Rule),
    /// An endpoint of MPTCP's path manager.
    Endpoint(IpAddr),
    /// The limit of subflows of MPTCP's path manager.
    Subflows,
    /// The resolvers that are set for an interface, by its name.
    Resolvers(String),
}

impl fmt::Display for Object {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Table(name) => write!(f, "nftables table inet {name}"),
            Self::Setting(key) => write!(f, "setting {}", key.replace('/', ".")),
            Self::Link(name) => write!(f, "interface {name}"),
            Self::Mtu(name) => write!(f, "MTU of {name}"),
            Self::Port(name) => write!(f, "bridge port {name}"),
            Self::Address(name, address) => write!(f, "address {address} of {name}"),
            Self::Route(key) => write!(f, "route to {} in table {}", key.to, key.table),
            Self::Rule(rule) => {
                let family = if rule.ipv6 { "IPv6" } else { "IPv4" };
                write!(
                    f,
                    "{family} routing rule {} to table {}",
                    rule.priority, rule.table
                )
            }
            Self::Endpoint(address) => write!(f, "MPTCP endpoint {address}"),
            Self::Subflows => f.write_str("MPTCP limit of subflows"),
            Self::Resolvers(name) => write!(f, "resolvers of {name}"),
        }
    }
}

/// Key of a route.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct RouteKey {
    /// Routing table.
    pub(crate) table: u32,
    /// Destination.
    pub(crate) to: Net,
    /// Metric: the route with the lowest is used.
    pub(crate) metric: u32,
}

/// Next hop of a route.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Hop {
    /// The kernel's number of the type of route.
    pub(crate) kind: u8,
    /// The interface by index, of unicast routes.
    pub(crate) device: Option<u32>,
    /// The router; `None` if the destination is on the link.
    pub(crate) gateway: Option<IpAddr>,
    /// The source address of sockets that choose none.
    pub(crate) source: Option<IpAddr>,
}

impl Hop {
    /// Returns whether packets leave through an interface.
    pub(crate) fn is_unicast(&self) -> bool {
        self.kind == UNICAST
    }
}

/// A routing rule that selects a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Rule {
    /// Family: IPv6, otherwise IPv4.
    pub(crate) ipv6: bool,
    /// Priority: rules with lower numbers are evaluated first.
    pub(crate) priority: u32,
    /// The table.
    pub(crate) table: u32,
    /// Mark and mask of the packets.
    pub(crate) mark: Option<(u32, u32)>,
    /// Matches all packets except those with the mark.
    pub(crate) is_inverted: bool,
    /// Source address of the packets.
    pub(crate) source: Option<IpAddr>,
    /// Protocol, source port and destination port of the packets.
    pub(crate) ports: Option<(u8, u16, u16)>,
    /// Routes with this prefix length or a shorter one are ignored.
    pub(crate) suppress: Option<u32>,
}

impl Rule {
    /// Creates the rule of a family that sends all packets to a table.
    pub(crate) fn new(ipv6: bool, priority: u32, table: u32) -> Self {
        Self {
            ipv6,
            priority,
            table,
            mark: None,
            is_inverted: false,
            source: None,
            ports: None,
            suppress: None,
        }
    }

    /// Returns the rule with another priority.
    pub(crate) fn at(self, priority: u32) -> Self {
        Self { priority, ..self }
    }
}

/// Desired value of a setting.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Setting {
    /// Exactly this.
    Is(String),
    /// Reverse path filtering of an interface (RFC 3704) that is not strict. The kernel uses the
    /// larger of its own value and that of all interfaces; 1 is strict.
    NotStrict,
}

/// Desired value of an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Wanted {
    /// A table: its body between the braces, and nft's output right after it was installed (empty:
    /// unknown).
    Table { body: String, printed: String },
    /// A setting.
    Setting(Setting),
    /// An interface that is up.
    Up,
    /// An MTU. Units: bytes.
    Mtu(u32),
    /// The bridge of a port, by name.
    Bridge(String),
    /// Prefix length of an address.
    Prefix(u8),
    /// Next hop of a route.
    Route(Hop),
    /// A rule is its own value.
    Rule,
    /// An endpoint.
    Endpoint(Endpoint),
    /// Minimum value of the limit of further subflows per connection.
    AtLeast(u32),
    /// Resolvers, and the record of the program that stores them, right after they were set (empty:
    /// unknown).
    Resolvers {
        addresses: Vec<IpAddr>,
        recorded: String,
    },
}

/// Desired kernel state of all products of this process.
#[derive(Clone, Debug, Default)]
pub(crate) struct Desired {
    objects: BTreeMap<Object, Wanted>,
    /// Routing tables owned by Hawser.
    owned: BTreeSet<u32>,
    /// Policy for routes of the main table that stay outside the tunnel.
    near: Option<NearPolicy>,
    /// Tables whose routes, if wrong, let traffic bypass the tunnel.
    guarded: BTreeSet<u32>,
    /// Offset by which the rules are before their default priorities, because of rules of other
    /// programs.
    shift: u32,
}

impl Desired {
    /// Records the value of an object.
    pub(crate) fn want(&mut self, object: Object, wanted: Wanted) {
        if let Object::Route(key) = &object
            && is_own_table(key.table)
        {
            self.owned.insert(key.table);
        }
        self.objects.insert(object, wanted);
    }

    /// Records that an object is no longer needed.
    pub(crate) fn forget(&mut self, object: &Object) {
        self.objects.remove(object);
    }

    /// Records that no objects are needed any longer. Rules keep their moved priorities.
    pub(crate) fn clear(&mut self) {
        *self = Self {
            shift: self.shift,
            ..Self::default()
        };
    }

    /// Records that only objects selected by `is_kept` are still needed.
    pub(crate) fn retain(&mut self, mut is_kept: impl FnMut(&Object) -> bool) {
        self.objects.retain(|object, _| is_kept(object));
    }

    /// Records that only routes selected by `is_kept` are still needed.
    pub(crate) fn retain_routes(&mut self, is_kept: impl Fn(&RouteKey, &Hop) -> bool) {
        self.objects.retain(|object, wanted| match (object, wanted) {
            (Object::Route(key), Wanted::Route(hop)) => is_kept(key, hop),
            _ => true,
        });
    }

    /// Records that a table of routes belongs to this process alone, even while it is empty.
    pub(crate) fn own(&mut self, table: u32, is_guarded: bool) {
        self.owned.insert(table);
        if is_guarded {
            self.guarded.insert(table);
        }
    }

    /// Records that a table of routes is no longer owned.
    pub(crate) fn disown(&mut self, table: u32) {
        self.owned.remove(&table);
        self.guarded.remove(&table);
        self.objects
            .retain(|object, _| !matches!(object, Object::Route(key) if key.table == table));
    }

    /// Sets the policy for routes of the main table that stay outside the tunnel; with `None`, the
    /// main table itself is used.
    pub(crate) fn set_near(&mut self, policy: Option<NearPolicy>) {
        if policy.is_some() {
            self.own(NEAR_TABLE, true);
            self.own(UPLINK_TABLE, false);
        } else {
            self.disown(NEAR_TABLE);
            self.disown(UPLINK_TABLE);
        }
        self.near = policy;
    }

    pub(crate) fn near(&self) -> Option<&NearPolicy> {
        self.near.as_ref()
    }

    /// Returns the value of an object.
    pub(crate) fn value(&self, object: &Object) -> Option<&Wanted> {
        self.objects.get(object)
    }

    /// Returns all objects, in order.
    pub(crate) fn objects(&self) -> impl Iterator<Item = (&Object, &Wanted)> {
        self.objects.iter()
    }

    /// Returns whether the object keeps traffic in the tunnel: it is repaired first, and without
    /// back-off.
    pub(crate) fn is_guard(&self, object: &Object) -> bool {
        match object {
            Object::Table(_) | Object::Rule(_) => true,
            Object::Route(key) => self.guarded.contains(&key.table),
            Object::Setting(_)
            | Object::Link(_)
            | Object::Mtu(_)
            | Object::Port(_)
            | Object::Address(..)
            | Object::Endpoint(_)
            | Object::Subflows
            | Object::Resolvers(_) => false,
        }
    }

    /// Returns whether Hawser owns that routing table.
    pub(crate) fn owns(&self, table: u32) -> bool {
        self.owned.contains(&table)
    }

    /// Returns a rule with its current priority.
    pub(crate) fn at_present_priority(&self, rule: Rule) -> Rule {
        rule.at(rule.priority.saturating_sub(self.shift))
    }

    /// Returns whether a rule is desired with its priority.
    pub(crate) fn has_rule(&self, rule: Rule) -> bool {
        let at_first = rule.at(rule.priority.saturating_add(self.shift));
        self.objects.contains_key(&Object::Rule(at_first))
    }

    /// Moves all rules before the priority of another program's rule. Returns false if there is not
    /// enough room.
    pub(crate) fn move_before(&mut self, priority: u32) -> bool {
        if !has_room_before(priority) {
            return false;
        }
        self.shift = self.shift.max(FIRST_PRIORITY - (priority - SPAN));
        true
    }

    /// Returns the names of the nftables tables.
    pub(crate) fn tables(&self) -> impl Iterator<Item = &str> {
        self.objects.keys().filter_map(|object| {
            if let Object::Table(name) = object {
                Some(name.as_str())
            } else {
                None
            }
        })
    }

    /// Returns the names of the interfaces whose resolvers are set.
    pub(crate) fn resolvers(&self) -> impl Iterator<Item = &str> {
        self.objects.keys().filter_map(|object| {
            if let Object::Resolvers(name) = object {
                Some(name.as_str())
            } else {
                None
            }
        })
    }

    /// Returns whether any object of MPTCP's path manager is desired.
    pub(crate) fn has_multipath(&self) -> bool {
        let mut objects = self.objects.keys();
        objects.any(|object| matches!(object, Object::Endpoint(_) | Object::Subflows))
    }

    /// Returns the paths of the settings to read.
    pub(crate) fn settings(&self) -> BTreeSet<String> {
        let mut keys = BTreeSet::new();
        for (object, wanted) in &self.objects {
            if let Object::Setting(key) = object {
                keys.insert(key.clone());
                if *wanted == Wanted::Setting(Setting::NotStrict) {
                    keys.insert(STRICT_FOR_ALL.to_owned());
                }
            }
        }
        keys
    }
}

/// Returns whether all rules fit between the kernel's first rule and that priority.
pub(crate) fn has_room_before(priority: u32) -> bool {
    priority > SPAN
}

/// Observed kernel state.
#[derive(Clone, Debug, Default)]
pub(crate) struct Observed {
    /// Printed form of each requested table; `None` if it could not be read.
    pub(crate) tables: Option<BTreeMap<String, String>>,
    /// Settings by their path.
    pub(crate) settings: BTreeMap<String, String>,
    /// Interfaces by index.
    pub(crate) links: BTreeMap<u32, ObservedLink>,
    /// Index, address and prefix length.
    pub(crate) addresses: BTreeSet<(u32, IpAddr, u8)>,
    /// Routes of the machine.
    pub(crate) routes: Vec<ObservedRoute>,
    /// Routing rules, in order of evaluation.
    pub(crate) rules: Vec<ObservedRule>,
    /// MPTCP's path manager; `None` if it was not queried or is not available.
    pub(crate) multipath: Option<ObservedMultipath>,
    /// Records of the resolvers of each requested interface, by its name.
    pub(crate) resolvers: BTreeMap<String, String>,
}

impl Observed {
    pub(crate) fn index(&self, name: &str) -> Option<u32> {
        let mut links = self.links.iter();
        links.find(|(_, link)| link.name == name).map(|(index, _)| *index)
    }

    pub(crate) fn link(&self, name: &str) -> Option<&ObservedLink> {
        self.links.values().find(|link| link.name == name)
    }

    pub(crate) fn is_up(&self, index: u32) -> bool {
        self.links.get(&index).is_some_and(|link| link.is_up)
    }

    pub(crate) fn name(&self, index: Option<u32>) -> &str {
        let link = index.and_then(|index| self.links.get(&index));
        link.map_or("no interface", |link| &link.name)
    }
}

/// An interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ObservedLink {
    pub(crate) name: String,
    pub(crate) is_up: bool,
    /// MTU. Units: bytes.
    pub(crate) mtu: u32,
    /// Index of the bridge of which it is a port.
    pub(crate) controller: Option<u32>,
    /// Set for interfaces without neighbours, such as those of other VPNs.
    pub(crate) is_tunnel: bool,
}

/// State of MPTCP's path manager.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ObservedMultipath {
    pub(crate) endpoints: Vec<Endpoint>,
    /// The limit of subflows.
    pub(crate) subflows: u32,
}

/// A route; its index identifies the netlink message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ObservedRoute {
    pub(crate) id: usize,
    pub(crate) key: RouteKey,
    pub(crate) hop: Hop,
    /// Kernel's number of the program that added it.
    pub(crate) protocol: u8,
    /// Set for several next hops, or properties that [`Hop`] does not represent.
    pub(crate) is_complex: bool,
}

/// A rule; its index identifies the netlink message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ObservedRule {
    pub(crate) id: usize,
    pub(crate) rule: Rule,
    /// Set if the rule selects a table.
    pub(crate) is_lookup: bool,
    /// Set for conditions that [`Rule`] does not represent.
    pub(crate) is_selective: bool,
    /// Set if Hawser added it.
    pub(crate) is_ours: bool,
}

/// Returns whether the routing table with that number is used by Hawser only.
fn is_own_table(table: u32) -> bool {
    (KILL_TABLE..=LAST_TABLE).contains(&table)
}

/// Protocol number of Hawser's rules, routes and addresses. Source: the code of the letter H, which
/// no other program uses (`/etc/iproute2/rt_protos`).
pub(crate) const OWN_PROTOCOL: u8 = 72;
/// The kernel's number of unicast routes: `RTN_UNICAST` of linux/rtnetlink.h.
pub(crate) const UNICAST: u8 = 1;
/// The kernel's number of its main table of routes: `RT_TABLE_MAIN` of linux/rtnetlink.h.
pub(crate) const MAIN_TABLE: u32 = 254;
/// The kernel's number of its table of own addresses: `RT_TABLE_LOCAL` of linux/rtnetlink.h.
pub(crate) const LOCAL_TABLE: u32 = 255;
/// The routing table of the tunnel. Source: "HW" as a number, 0x4857.
pub(crate) const TUNNEL_TABLE: u32 = 18_519;
/// The table of routes that stay outside the tunnel. Source: the number before the tunnel's.
pub(crate) const NEAR_TABLE: u32 = TUNNEL_TABLE - 1;
/// Table of default routes that outer packets ask first, where uplinks have theirs elsewhere.
/// Source: the number after the tunnel's.
pub(crate) const UPLINK_TABLE: u32 = TUNNEL_TABLE + 1;
/// Table of the kill switch, which contains no usable route. Source: the number before that of
/// [`NEAR_TABLE`].
pub(crate) const KILL_TABLE: u32 = TUNNEL_TABLE - 2;
/// Tables of networks lie between the tunnel's and this one. Source: `FIRST_TABLE` of
/// `system/network_tables.rs`, 18,600, and one table for each number of a byte, rounded up to
/// hundreds.
const LAST_TABLE: u32 = 18_900;
/// Priority of the first rule; the others follow it. Source: three rules precede that for near
/// destinations, and the tunnel's rule has [`TUNNEL_TABLE`] as its priority.
pub(crate) const FIRST_PRIORITY: u32 = TUNNEL_TABLE - 4;
/// Number of priorities that the rules take, from [`FIRST_PRIORITY`] on. Source: the rules of
/// `system/near.rs` take seven, up to that of the kill switch, and one is spare.
pub(crate) const SPAN: u32 = 8;
/// Reverse path filtering for all interfaces.
pub(crate) const STRICT_FOR_ALL: &str = "net/ipv4/conf/all/rp_filter";
