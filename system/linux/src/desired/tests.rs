//! The reconciler against a kernel that is a value, and against a program that breaks what it can.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::time::Duration;

use hawser_units::{Instant, Net};
use proptest::prelude::*;

use super::difference::{Cause, Repair, difference};
use super::near::near;
use super::reconciler::{Action, Event, MAX_DELAY, PATIENCE, POLL_INTERVAL, Reason, Reconciler, SETTLE};
use super::*;

const MARK: (u32, u32) = (0x4857_0001, 0xffff_00ff);
const ETH: u32 = 2;
const TUNNEL: u32 = 7;
const PORT: u32 = 8;
const BRIDGE: u32 = 19;
const RECORDED: &str = "SERVERS=100.96.0.1";
const DHCP: u8 = 16;
const STATIC: u8 = 4;
const OWN: u8 = OWN_PROTOCOL;

fn net(text: &str) -> Net {
    text.parse().unwrap()
}

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn hop(device: u32, gateway: Option<&str>) -> Hop {
    Hop {
        kind: UNICAST,
        device: Some(device),
        gateway: gateway.map(ip),
        source: None,
    }
}

fn key(table: u32, to: &str) -> RouteKey {
    RouteKey {
        table,
        to: net(to),
        metric: 0,
    }
}

fn tunnel_rule() -> Rule {
    Rule {
        mark: Some(MARK),
        is_inverted: true,
        ..Rule::new(false, FIRST_PRIORITY + 4, TUNNEL_TABLE)
    }
}

fn endpoint(is_backup: bool) -> Endpoint {
    Endpoint {
        address: ip("192.168.1.2"),
        device: ETH,
        is_backup,
    }
}

/// A kernel that does what it is asked.
#[derive(Clone)]
struct Kernel {
    tables: BTreeMap<String, String>,
    settings: BTreeMap<String, String>,
    links: BTreeMap<u32, ObservedLink>,
    addresses: BTreeSet<(u32, IpAddr, u8)>,
    routes: Vec<(RouteKey, Hop, u8)>,
    rules: Vec<(Rule, bool)>,
    multipath: ObservedMultipath,
    resolvers: BTreeMap<String, String>,
}

impl Kernel {
    /// An uplink with a gateway, a tunnel that is down, and nothing of Hawser's.
    fn new() -> Self {
        let link = |name: &str, is_up, is_tunnel| ObservedLink {
            name: name.to_owned(),
            is_up,
            mtu: 1500,
            controller: None,
            is_tunnel,
        };
        Self {
            tables: BTreeMap::new(),
            settings: BTreeMap::from([
                ("net/ipv4/ip_forward".to_owned(), "0".to_owned()),
                ("net/ipv4/conf/eth0/rp_filter".to_owned(), "1".to_owned()),
                (STRICT_FOR_ALL.to_owned(), "0".to_owned()),
            ]),
            links: BTreeMap::from([
                (ETH, link("eth0", true, false)),
                (TUNNEL, link("hawser0", false, true)),
                (PORT, link("hawserport0", true, false)),
                (BRIDGE, link("br0", true, false)),
            ]),
            addresses: BTreeSet::from([(ETH, ip("192.168.1.2"), 24)]),
            routes: vec![
                (key(MAIN_TABLE, "0.0.0.0/0"), hop(ETH, Some("192.168.1.1")), DHCP),
                (key(MAIN_TABLE, "192.168.1.0/24"), hop(ETH, None), 2),
            ],
            rules: vec![
                (Rule::new(false, 0, LOCAL_TABLE), false),
                (Rule::new(false, 32_766, MAIN_TABLE), false),
            ],
            multipath: ObservedMultipath {
                endpoints: Vec::new(),
                subflows: 2,
            },
            resolvers: BTreeMap::new(),
        }
    }

    fn observe(&self) -> Observed {
        let routes = self.routes.iter().enumerate();
        let rules = self.rules.iter().enumerate();
        Observed {
            tables: Some(self.tables.clone()),
            settings: self.settings.clone(),
            links: self.links.clone(),
            addresses: self.addresses.clone(),
            routes: routes
                .map(|(id, (key, hop, protocol))| ObservedRoute {
                    id,
                    key: *key,
                    hop: *hop,
                    protocol: *protocol,
                    is_complex: false,
                })
                .collect(),
            rules: rules
                .map(|(id, (rule, is_ours))| ObservedRule {
                    id,
                    rule: *rule,
                    is_lookup: true,
                    is_selective: false,
                    is_ours: *is_ours,
                })
                .collect(),
            multipath: Some(self.multipath.clone()),
            resolvers: self.resolvers.clone(),
        }
    }

    /// As the kernel orders rules: a new one stands behind those of its priority.
    fn add_rule(&mut self, rule: Rule, is_ours: bool) {
        if !self.rules.contains(&(rule, is_ours)) {
            let at = self
                .rules
                .partition_point(|(known, _)| known.priority <= rule.priority);
            self.rules.insert(at, (rule, is_ours));
        }
    }

    fn link(&mut self, name: &str) -> &mut ObservedLink {
        let mut links = self.links.values_mut();
        links.find(|link| link.name == name).expect("it is there")
    }

    fn set_down(&mut self, index: u32) {
        self.links.get_mut(&index).unwrap().is_up = false;
        self.routes.retain(|(_, hop, _)| hop.device != Some(index));
    }
}

/// Everything that a client with a kill switch needs, in miniature.
fn desired() -> Desired {
    let mut desired = Desired::default();
    let table = Wanted::Table {
        body: "drop".to_owned(),
        printed: "drop".to_owned(),
    };
    desired.want(Object::Table("hawser_kill".to_owned()), table);
    let setting = |value: &str| Wanted::Setting(Setting::Is(value.to_owned()));
    desired.want(Object::Setting("net/ipv4/ip_forward".to_owned()), setting("1"));
    let strict = Object::Setting("net/ipv4/conf/eth0/rp_filter".to_owned());
    desired.want(strict, Wanted::Setting(Setting::NotStrict));
    desired.want(Object::Link("hawser0".to_owned()), Wanted::Up);
    let address = Object::Address("hawser0".to_owned(), ip("100.96.0.2"));
    desired.want(address, Wanted::Prefix(32));
    desired.want(Object::Mtu("hawser0".to_owned()), Wanted::Mtu(1420));
    let port = Object::Port("hawserport0".to_owned());
    desired.want(port, Wanted::Bridge("br0".to_owned()));
    let endpoint = Object::Endpoint(endpoint(false).address);
    desired.want(endpoint, Wanted::Endpoint(self::endpoint(false)));
    desired.want(Object::Subflows, Wanted::AtLeast(4));
    let resolvers = Wanted::Resolvers {
        addresses: vec![ip("100.96.0.1")],
        recorded: RECORDED.to_owned(),
    };
    desired.want(Object::Resolvers("hawser0".to_owned()), resolvers);
    desired.own(TUNNEL_TABLE, true);
    let route = Object::Route(key(TUNNEL_TABLE, "0.0.0.0/0"));
    desired.want(route, Wanted::Route(hop(TUNNEL, None)));
    desired.want(
        Object::Rule(Rule::new(false, FIRST_PRIORITY + 3, NEAR_TABLE)),
        Wanted::Rule,
    );
    desired.want(Object::Rule(tunnel_rule()), Wanted::Rule);
    desired.set_near(Some(policy()));
    desired
}

fn policy() -> NearPolicy {
    NearPolicy {
        tunnel: "hawser0".to_owned(),
        ..NearPolicy::default()
    }
}

/// The machine, its kernel, and a clock.
struct World {
    kernel: Kernel,
    desired: Desired,
    machine: Reconciler,
    now: Instant,
    events: Vec<Event>,
    repairs: usize,
}

impl World {
    fn new() -> Self {
        let mut world = Self {
            kernel: Kernel::new(),
            desired: desired(),
            machine: Reconciler::new(Instant::ZERO),
            now: Instant::ZERO,
            events: Vec::new(),
            repairs: 0,
        };
        world.pass(Duration::from_secs(1));
        // What the products set up themselves is nobody's interference.
        world.machine = Reconciler::new(world.now);
        world.drain();
        world.events.clear();
        world.repairs = 0;
        world
    }

    fn drain(&mut self) {
        let mut seen = self.kernel.clone();
        while let Some(action) = self.machine.poll_transmit() {
            match action {
                Action::Dump => {
                    seen = self.kernel.clone();
                    let observed = seen.observe();
                    self.machine.handle_dump(&self.desired, &observed, self.now);
                }
                Action::Repair(_, repair) => self.apply(&seen, repair),
            }
        }
        self.events
            .extend(std::iter::from_fn(|| self.machine.poll_event()));
    }

    fn apply(&mut self, seen: &Kernel, repair: Repair) {
        self.repairs += 1;
        let kernel = &mut self.kernel;
        match repair {
            Repair::Install(table) => drop(kernel.tables.insert(table, "drop".to_owned())),
            Repair::Write(key, value) => drop(kernel.settings.insert(key, value)),
            Repair::Up(name) => kernel.link(&name).is_up = true,
            Repair::SetMtu(name, mtu) => kernel.link(&name).mtu = mtu,
            Repair::Attach(name, bridge) => kernel.link(&name).controller = Some(bridge),
            Repair::PutEndpoint(endpoint) => {
                let endpoints = &mut kernel.multipath.endpoints;
                endpoints.retain(|there| there.address != endpoint.address);
                endpoints.push(endpoint);
            }
            Repair::RaiseSubflows(least) => kernel.multipath.subflows = least,
            Repair::SetResolvers(name) => drop(kernel.resolvers.insert(name, RECORDED.to_owned())),
            Repair::AddAddress(index, address, prefix) => {
                kernel.addresses.insert((index, address, prefix));
            }
            Repair::ReplaceRoute(key, hop) => {
                assert!(
                    kernel.links[&hop.device.unwrap()].is_up,
                    "the kernel rejects {key:?}"
                );
                match kernel.routes.iter_mut().find(|(known, ..)| *known == key) {
                    Some(known) => *known = (key, hop, OWN),
                    None => kernel.routes.push((key, hop, OWN)),
                }
            }
            Repair::RemoveRoute(id) => kernel.routes.retain(|route| *route != seen.routes[id]),
            Repair::AddRule(rule) => kernel.add_rule(rule, true),
            Repair::RemoveRule(id) => kernel.rules.retain(|rule| *rule != seen.rules[id]),
            Repair::MoveBefore(priority) => assert!(self.desired.move_before(priority)),
        }
    }

    /// Lets time pass, doing what is due.
    fn pass(&mut self, time: Duration) {
        let end = self.now + time;
        loop {
            self.drain();
            let (at, _) = self.machine.poll_timeout().unwrap();
            if at > end {
                break;
            }
            assert!(at >= self.now, "time goes on");
            self.now = at;
            self.machine.handle_timeout(self.now);
        }
        self.now = end;
    }

    fn notify(&mut self) {
        self.machine.handle_notification(self.now);
    }

    /// Where an unmarked packet to a public address goes first.
    fn leaves_by(&self) -> Option<u32> {
        for (rule, _) in &self.kernel.rules {
            let is_meant = rule.mark.is_none() || rule.is_inverted;
            let routes = self.kernel.routes.iter().filter(|(key, ..)| {
                key.table == rule.table
                    && key.to.contains(ip("203.0.113.1"))
                    && rule
                        .suppress
                        .is_none_or(|shortest| u32::from(key.to.prefix) > shortest)
            });
            let best = routes.max_by_key(|(key, ..)| key.to.prefix);
            if let (true, Some((_, hop, _))) = (is_meant, best) {
                return hop.device;
            }
        }
        None
    }

    fn assert_as_desired(&self) {
        assert_eq!(difference(&self.desired, &self.kernel.observe()), []);
        assert_eq!(self.leaves_by(), Some(TUNNEL));
    }
}

#[test]
fn everything_desired_is_there_soon_after_the_start() {
    let world = World::new();
    world.assert_as_desired();
    assert_eq!(world.kernel.settings["net/ipv4/conf/eth0/rp_filter"], "2");
    let copied = (key(NEAR_TABLE, "192.168.1.0/24"), hop(ETH, None), OWN);
    assert!(world.kernel.routes.contains(&copied));
}

/// What breaks, and with which cause it is restored.
#[test]
fn each_kind_of_object_is_restored_and_reported_once() {
    type Break = fn(&mut Kernel);
    let table: [(&str, Break, &[Cause]); 20] = [
        ("table removed", |k| k.tables.clear(), &[Cause::Missing]),
        (
            "table changed",
            |k| drop(k.tables.insert("hawser_kill".to_owned(), "accept".to_owned())),
            &[Cause::Changed],
        ),
        (
            "strict for all does not count",
            |k| drop(k.settings.insert(STRICT_FOR_ALL.to_owned(), "1".to_owned())),
            &[],
        ),
        (
            "strict for the uplink",
            |k| {
                let key = "net/ipv4/conf/eth0/rp_filter".to_owned();
                k.settings.insert(key, "1".to_owned());
            },
            &[Cause::Changed],
        ),
        (
            "no forwarding",
            |k| {
                drop(
                    k.settings
                        .insert("net/ipv4/ip_forward".to_owned(), "0".to_owned()),
                )
            },
            &[Cause::Changed],
        ),
        (
            "interface down",
            |k| k.set_down(TUNNEL),
            &[Cause::Changed, Cause::Missing],
        ),
        (
            "address removed",
            |k| k.addresses.retain(|(index, ..)| *index != TUNNEL),
            &[Cause::Missing],
        ),
        ("MTU", |k| k.link("hawser0").mtu = 9000, &[Cause::Changed]),
        (
            "port taken out",
            |k| k.link("hawserport0").controller = None,
            &[Cause::Missing],
        ),
        (
            "port of another bridge",
            |k| k.link("hawserport0").controller = Some(ETH),
            &[Cause::Changed],
        ),
        (
            "endpoints flushed, limits set",
            |k| {
                k.multipath.endpoints.clear();
                k.multipath.subflows = 0;
            },
            &[Cause::Missing, Cause::Changed],
        ),
        (
            "endpoint changed",
            |k| k.multipath.endpoints = vec![endpoint(true)],
            &[Cause::Changed],
        ),
        ("more subflows are as good", |k| k.multipath.subflows = 8, &[]),
        ("resolvers", |k| k.resolvers.clear(), &[Cause::Missing]),
        (
            "routes removed",
            |k| k.routes.retain(|(key, ..)| key.table != TUNNEL_TABLE),
            &[Cause::Missing],
        ),
        (
            "route replaced",
            |k| {
                let of_tunnel = k.routes.iter_mut().find(|(key, ..)| key.table == TUNNEL_TABLE);
                of_tunnel.unwrap().1 = hop(ETH, Some("192.168.1.1"));
            },
            &[Cause::Changed],
        ),
        (
            "route inserted before",
            |k| {
                let half = key(TUNNEL_TABLE, "128.0.0.0/1");
                k.routes.push((half, hop(ETH, Some("192.168.1.1")), STATIC));
            },
            &[Cause::Added],
        ),
        (
            "rules removed",
            |k| k.rules.retain(|(_, is_ours)| !is_ours),
            &[Cause::Missing, Cause::Missing],
        ),
        (
            "rule inserted before",
            |k| k.add_rule(Rule::new(false, 100, MAIN_TABLE), false),
            &[Cause::Captured { priority: 100 }],
        ),
        (
            "rule inserted where nothing fits before it",
            |k| k.add_rule(Rule::new(false, 1, MAIN_TABLE), false),
            &[Cause::Captured { priority: 1 }],
        ),
    ];
    for (what, change, causes) in table {
        let mut world = World::new();
        change(&mut world.kernel);
        world.notify();
        world.pass(Duration::from_secs(1));
        world.assert_as_desired();
        let reported = world.events.iter().filter_map(|event| {
            if let Event::Restored(_, cause) = event {
                Some(cause.clone())
            } else {
                None
            }
        });
        assert_eq!(reported.collect::<Vec<_>>(), causes, "{what}: {:?}", world.events);
        let before = world.repairs;
        world.pass(Duration::from_secs(10));
        assert_eq!(world.repairs, before, "{what}: it goes on");
    }
}

#[test]
fn without_a_notification_the_poll_finds_it() {
    let mut world = World::new();
    assert_eq!(world.machine.poll_timeout().unwrap().1, Reason::Poll);
    world.kernel.tables.clear();
    world.pass(POLL_INTERVAL + SETTLE);
    world.assert_as_desired();
}

#[test]
fn of_what_is_no_longer_desired_nothing_is_restored() {
    let mut world = World::new();
    world.desired.forget(&Object::Table("hawser_kill".to_owned()));
    world.desired.disown(TUNNEL_TABLE);
    world.kernel.tables.clear();
    world.kernel.routes.retain(|(key, ..)| key.table != TUNNEL_TABLE);
    world.pass(Duration::from_secs(5));
    assert!(world.kernel.tables.is_empty());
    assert_eq!(world.repairs, 0);
}

/// A program that insists gets its way ever longer, but never with what keeps traffic in.
#[test]
fn backs_off_except_where_that_would_open_something() {
    let mut world = World::new();
    let mut was_forwarding = 0;
    for _ in 0..2000 {
        world
            .kernel
            .settings
            .insert("net/ipv4/ip_forward".to_owned(), "0".to_owned());
        world.kernel.rules.retain(|(_, is_ours)| !is_ours);
        world.notify();
        world.pass(SETTLE * 2);
        assert_eq!(world.leaves_by(), Some(TUNNEL));
        was_forwarding += usize::from(world.kernel.settings["net/ipv4/ip_forward"] == "1");
    }
    // 200 s: the delay doubles from 1 to 32 s.
    assert!(
        (PATIENCE as usize..PATIENCE as usize + 12).contains(&was_forwarding),
        "{was_forwarding}"
    );
    let insists = world
        .events
        .iter()
        .filter(|event| matches!(event, Event::Insists(_)));
    assert_eq!(insists.count(), 3, "two rules and a setting, once each");
    let restored = world
        .events
        .iter()
        .filter(|event| matches!(event, Event::Restored(..)));
    assert_eq!(restored.count(), 3, "each cause once");
    world.pass(MAX_DELAY * 2);
    world.assert_as_desired();
}

#[test]
fn rules_of_others_with_conditions_stay_before_ours() {
    let mut world = World::new();
    let marked = Rule {
        mark: Some((0x8_0000, 0xff_0000)),
        ..Rule::new(false, 5210, MAIN_TABLE)
    };
    let from = Rule {
        source: Some(ip("192.168.1.2")),
        ..Rule::new(false, 100, 100)
    };
    // A table that has single destinations, as those of mesh VPNs.
    world
        .kernel
        .routes
        .push((key(52, "100.100.1.1/32"), hop(ETH, None), STATIC));
    for rule in [marked, from, Rule::new(false, 5270, 52)] {
        world.kernel.add_rule(rule, false);
    }
    world.notify();
    world.pass(Duration::from_secs(1));
    assert_eq!((world.repairs, &world.events[..]), (0, &[][..]));
}

#[test]
fn another_vpn_before_ours_is_reported_and_stays() {
    let mut world = World::new();
    let link = ObservedLink {
        name: "wg0".to_owned(),
        is_up: true,
        mtu: 1500,
        controller: None,
        is_tunnel: true,
    };
    world.kernel.links.insert(9, link);
    world
        .kernel
        .routes
        .push((key(51_820, "0.0.0.0/0"), hop(9, None), 3));
    let full = Rule {
        mark: Some((51_820, u32::MAX)),
        is_inverted: true,
        ..Rule::new(false, 18_517, 51_820)
    };
    world.kernel.add_rule(full, false);
    world.notify();
    world.pass(Duration::from_secs(5));
    assert_eq!(world.events, [Event::Nested("wg0".to_owned())]);
    assert_eq!(world.leaves_by(), Some(9));
    let found = super::capture::full_tunnel(&world.kernel.observe(), "hawser0");
    assert_eq!(found.as_deref(), Some("wg0"), "at the start it would be refused");
}

/// Which routes of the main table stay outside: destination, router, who added it, and whether it
/// stays without and with the kill switch.
#[test]
fn near_destinations_follow_the_policy() {
    let table = [
        ("192.168.1.0/24", None, 2, true),
        ("0.0.0.0/1", Some("192.168.1.1"), DHCP, false),
        ("128.0.0.0/1", Some("192.168.1.1"), 3, false),
        ("128.0.0.0/1", None, DHCP, false),
        ("8.8.8.8/32", Some("192.168.1.1"), DHCP, false),
        ("10.0.0.0/8", Some("192.168.1.1"), DHCP, false),
        ("10.0.0.0/8", Some("192.168.1.1"), STATIC, true),
        ("10.0.0.0/8", Some("192.168.1.1"), 3, true),
        ("203.0.113.0/24", Some("192.168.1.1"), STATIC, false),
        ("198.51.100.0/24", Some("192.168.1.1"), DHCP, true),
    ];
    for (to, gateway, protocol, stays) in table {
        let mut kernel = Kernel::new();
        kernel.routes.truncate(1);
        kernel
            .routes
            .push((key(MAIN_TABLE, to), hop(ETH, gateway), protocol));
        let policy = NearPolicy {
            local: vec![net("198.51.100.0/24")],
            ..policy()
        };
        let (copies, refused) = near(&policy, &kernel.observe());
        assert_eq!(copies.len() == 1, stays, "{to} {gateway:?} {protocol}");
        assert_eq!(refused.len() == 1, !stays, "{to} {gateway:?} {protocol}");
        let closed = NearPolicy {
            kill_switch: true,
            ..policy
        };
        assert_eq!(near(&closed, &kernel.observe()).0, [], "{to}");
        let lan = NearPolicy {
            lans: vec!["eth0".to_owned()],
            ..closed
        };
        let is_subnet = to == "192.168.1.0/24";
        assert_eq!(near(&lan, &kernel.observe()).0.len() == 1, is_subnet, "{to}");
    }
}

#[test]
fn inner_addresses_within_a_subnet_of_an_uplink_are_reached_through_the_tunnel() {
    let inner = [Net::new(ip("100.96.0.2"), 16), Net::new(ip("fddf:ca1::2"), 64)];
    // The subnet of an uplink, and the network that is excepted from it.
    let table = [
        ("100.64.0.0/10", Some("100.96.0.0/16")),
        ("100.96.0.0/16", None),
        ("100.96.7.0/24", None),
        ("192.168.1.0/24", None),
    ];
    for (subnet, excepted) in table {
        let mut kernel = Kernel::new();
        kernel.routes.truncate(1);
        kernel
            .routes
            .push((key(MAIN_TABLE, subnet), hop(ETH, None), STATIC));
        let policy = NearPolicy {
            inner: inner.to_vec(),
            ..policy()
        };
        let (copies, _) = near(&policy, &kernel.observe());
        let copied: Vec<_> = copies.iter().map(|(key, _)| key.to).collect();
        let wanted: Vec<_> = [Some(subnet), excepted].into_iter().flatten().map(net).collect();
        assert_eq!(copied, wanted, "{subnet}");
        let closed = copies.iter().filter(|(_, hop)| !hop.is_unicast()).count();
        assert_eq!(closed == 1, excepted.is_some(), "{subnet}");
    }
}

#[test]
fn outer_packets_find_uplinks_whose_default_routes_are_in_other_tables() {
    const MODEM: u32 = 101;
    let routes = |kernel: &Kernel| {
        let (copies, _) = near(&policy(), &kernel.observe());
        let copies = copies.into_iter().filter(|(key, _)| key.table == UPLINK_TABLE);
        copies.map(|(_, hop)| hop.gateway).collect::<Vec<_>>()
    };
    let mut kernel = Kernel::new();
    assert_eq!(routes(&kernel), [], "all are in the main table");
    let modem = ObservedLink {
        name: "wwan0".to_owned(),
        is_up: true,
        mtu: 1500,
        controller: None,
        is_tunnel: false,
    };
    kernel.links.insert(MODEM, modem);
    kernel.addresses.insert((MODEM, ip("10.5.0.2"), 24));
    let elsewhere = (key(101, "0.0.0.0/0"), hop(MODEM, Some("10.5.0.1")), STATIC);
    kernel.routes.push(elsewhere);
    let found = routes(&kernel);
    assert!(found.contains(&Some(ip("10.5.0.1"))), "{found:?}");
    let of_main = kernel
        .routes
        .iter()
        .find(|(key, ..)| key.table == MAIN_TABLE && key.to.prefix == 0);
    let of_main = of_main.map(|(_, hop, _)| hop.gateway);
    assert!(
        of_main.is_none_or(|gateway| found.contains(&gateway)),
        "{found:?}"
    );
    // Another VPN's router is on the VPN's own link.
    kernel.links.get_mut(&MODEM).expect("it was added").is_tunnel = true;
    assert_eq!(routes(&kernel), []);
}

#[test]
fn a_refused_route_is_reported_when_it_appears() {
    let mut world = World::new();
    let half = (
        key(MAIN_TABLE, "128.0.0.0/1"),
        hop(ETH, Some("192.168.1.1")),
        DHCP,
    );
    world.kernel.routes.push(half);
    world.notify();
    world.pass(Duration::from_secs(5));
    let refused = world
        .events
        .iter()
        .filter(|event| matches!(event, Event::Refused(_)));
    assert_eq!(refused.count(), 1);
    world.assert_as_desired();
}

#[test]
fn a_repair_that_the_kernel_rejects_is_reported_once() {
    let mut machine = Reconciler::new(Instant::ZERO);
    let object = Object::Link("hawser0".to_owned());
    for _ in 0..3 {
        machine.handle_failure(object.clone(), "no".to_owned(), Instant::ZERO);
    }
    assert_eq!(machine.poll_event(), Some(Event::Failed(object, "no".to_owned())));
    assert_eq!(machine.poll_event(), None);
}

/// What the adversary does, with a number that chooses among objects.
#[derive(Clone, Debug)]
enum Op {
    DeleteRule(usize),
    InsertRule(u32, bool),
    DeleteRoute(usize),
    ReplaceRoute(usize),
    InsertRoute(u32, u8),
    Table(bool),
    Setting(usize, u8),
    Down,
    Mtu(u32),
    Detach,
    Endpoints(bool),
    Resolvers,
    FlushAddresses,
    Wait(u16),
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        any::<usize>().prop_map(Op::DeleteRule),
        (1_u32..20_000, any::<bool>()).prop_map(|(at, is_inverted)| Op::InsertRule(at, is_inverted)),
        any::<usize>().prop_map(Op::DeleteRoute),
        any::<usize>().prop_map(Op::ReplaceRoute),
        (KILL_TABLE..=TUNNEL_TABLE, 0_u8..33).prop_map(|(table, prefix)| Op::InsertRoute(table, prefix)),
        any::<bool>().prop_map(Op::Table),
        (any::<usize>(), 0_u8..3).prop_map(|(which, value)| Op::Setting(which, value)),
        Just(Op::Down),
        (1280_u32..9001).prop_map(Op::Mtu),
        Just(Op::Detach),
        any::<bool>().prop_map(Op::Endpoints),
        Just(Op::Resolvers),
        Just(Op::FlushAddresses),
        (0_u16..2000).prop_map(Op::Wait),
    ]
}

fn interfere(world: &mut World, op: &Op) {
    let kernel = &mut world.kernel;
    let is_ours = |(_, (key, ..)): &(usize, &(RouteKey, Hop, u8))| key.table != MAIN_TABLE;
    let routes: Vec<_> = kernel
        .routes
        .iter()
        .enumerate()
        .filter(is_ours)
        .map(|(at, _)| at)
        .collect();
    match op {
        Op::DeleteRule(which) => {
            let ours: Vec<_> = (0..kernel.rules.len()).filter(|at| kernel.rules[*at].1).collect();
            if !ours.is_empty() {
                kernel.rules.remove(ours[which % ours.len()]);
            }
        }
        Op::InsertRule(priority, is_inverted) => {
            let mark = is_inverted.then_some((0xca6c, u32::MAX));
            let rule = Rule {
                mark,
                is_inverted: *is_inverted,
                ..Rule::new(false, *priority, MAIN_TABLE)
            };
            kernel.add_rule(rule, false);
        }
        Op::DeleteRoute(which) if !routes.is_empty() => {
            kernel.routes.remove(routes[which % routes.len()]);
        }
        Op::ReplaceRoute(which) if !routes.is_empty() => {
            kernel.routes[routes[which % routes.len()]].1 = hop(ETH, Some("192.168.1.1"));
        }
        Op::DeleteRoute(_) | Op::ReplaceRoute(_) => {}
        Op::InsertRoute(table, prefix) => {
            let to = Net::new(Net::new(ip("203.0.113.1"), *prefix).first(), *prefix);
            let key = RouteKey {
                table: *table,
                to,
                metric: 0,
            };
            if !kernel.routes.iter().any(|(known, ..)| *known == key) {
                kernel.routes.push((key, hop(ETH, Some("192.168.1.1")), STATIC));
            }
        }
        Op::Table(is_flush) if *is_flush => kernel.tables.clear(),
        Op::Table(_) => drop(
            kernel
                .tables
                .insert("hawser_kill".to_owned(), "accept".to_owned()),
        ),
        Op::Setting(which, value) => {
            let at = which % kernel.settings.len();
            let key = kernel.settings.keys().nth(at).unwrap().clone();
            kernel.settings.insert(key, value.to_string());
        }
        Op::Down => kernel.set_down(TUNNEL),
        Op::Mtu(mtu) => kernel.link("hawser0").mtu = *mtu,
        Op::Detach => kernel.link("hawserport0").controller = None,
        Op::Endpoints(true) => kernel.multipath.endpoints.clear(),
        Op::Endpoints(false) => kernel.multipath.subflows = 0,
        Op::Resolvers => kernel.resolvers.clear(),
        Op::FlushAddresses => kernel.addresses.retain(|(index, ..)| *index != TUNNEL),
        Op::Wait(time) => world.pass(Duration::from_millis(u64::from(*time))),
    }
}

proptest! {
    /// Whatever is done, what keeps traffic in is restored within 0.3 s, and all the rest once the
    /// longest delay is over.
    #[test]
    fn everything_is_restored_whatever_another_program_does(
        ops in proptest::collection::vec(op(), 1..60),
        are_notified: bool,
    ) {
        let mut world = World::new();
        for op in &ops {
            interfere(&mut world, op);
            if are_notified {
                world.notify();
                world.pass(Duration::from_millis(300));
                let observed = world.kernel.observe();
                let open: Vec<_> = difference(&world.desired, &observed)
                    .into_iter()
                    .filter(|difference| difference.is_guard && !matches!(difference.repair, Repair::ReplaceRoute(..)))
                    .collect();
                prop_assert_eq!(open, []);
            }
        }
        world.pass(MAX_DELAY * 2);
        world.assert_as_desired();
        let before = world.repairs;
        world.pass(Duration::from_secs(10));
        prop_assert_eq!(world.repairs, before, "repairs go on");
    }
}
