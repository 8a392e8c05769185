//! Tests the reconciler with a simulated kernel.

mod interference;
mod world;

use std::time::Duration;

use hawser_units::{Instant, Net};

use super::difference::{Cause, Repair};
use super::near::near;
use super::reconciler::{
    Action, Event, MAX_DELAY, POLL_INTERVAL, REPAIRS_BEFORE_BACKOFF, Reason, Reconciler, SETTLE,
};
use super::*;
use world::{
    DHCP, ETH, Kernel, OWN, STATIC, TUNNEL, World, desired, endpoint, hop, ip, key, lease_rules, net, policy,
};

#[test]
fn everything_desired_is_there_soon_after_the_start() {
    let world = World::new();
    world.assert_as_desired();
    assert_eq!(world.kernel.settings["net/ipv4/conf/eth0/rp_filter"], "2");
    let copied = (key(NEAR_TABLE, "192.168.1.0/24"), hop(ETH, None), OWN);
    assert!(world.kernel.routes.contains(&copied));
}

/// Each kind of change, and the cause with which it is repaired.
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
            &[Cause::Missing, Cause::Missing, Cause::Missing, Cause::Missing],
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

/// Repairs against another program become less frequent, except for objects that keep traffic in
/// the tunnel.
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
        (REPAIRS_BEFORE_BACKOFF as usize..REPAIRS_BEFORE_BACKOFF as usize + 12).contains(&was_forwarding),
        "{was_forwarding}"
    );
    let insists = world
        .events
        .iter()
        .filter(|event| matches!(event, Event::Insists(_)));
    assert_eq!(insists.count(), 5, "four rules and a setting, once each");
    let restored = world
        .events
        .iter()
        .filter(|event| matches!(event, Event::Restored(..)));
    assert_eq!(restored.count(), 5, "each cause once");
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
    // A table with single destinations, like those of mesh VPNs.
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

/// Regression: each was taken for the other at an old priority, so they were removed alternately
/// without an end.
#[test]
fn rules_that_differ_in_their_priorities_only_stay_both() {
    let mut world = World::new();
    let is_there = |world: &World| lease_rules().map(|rule| world.kernel.rules.contains(&(rule, true)));
    assert_eq!(is_there(&world), [true; 2]);
    world.pass(POLL_INTERVAL * 10);
    assert_eq!((world.repairs, is_there(&world)), (0, [true; 2]));
    for removed in lease_rules() {
        world.kernel.rules.retain(|(rule, _)| *rule != removed);
        world.notify();
        world.pass(Duration::from_secs(1));
        assert_eq!(is_there(&world), [true; 2]);
    }
    // After the move, the second rule has the former priority of the first one.
    let full = Rule::new(false, FIRST_PRIORITY - 1, MAIN_TABLE);
    world.kernel.add_rule(full, false);
    world.notify();
    world.pass(Duration::from_secs(1));
    world.assert_as_desired();
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

/// Routes of the main table: destination, router, protocol, and whether the route stays outside the
/// tunnel without and with the kill switch.
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
    // Subnet of an uplink, and the network that is excepted from it.
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

/// A change of another program may be incomplete at the first attempt of its repair.
#[test]
fn a_repair_that_the_kernel_rejects_is_tried_again_soon_and_later_rarely() {
    let (desired, observed) = (desired(), Kernel::new().observe());
    let (mut machine, mut now) = (Reconciler::new(Instant::ZERO), Instant::ZERO);
    let mut tries = Vec::new();
    while now < Instant::ZERO + MAX_DELAY * 8 {
        while let Some(action) = machine.poll_transmit() {
            match action {
                Action::Dump => machine.handle_dump(&desired, &observed, now),
                Action::Repair(object, repair) => {
                    if matches!(repair, Repair::SetMtu(..)) {
                        tries.push(now);
                    }
                    machine.handle_failure(object, "no".to_owned(), now);
                }
            }
        }
        now = machine.poll_timeout().unwrap().0;
        machine.handle_timeout(now);
    }
    let tries_within = |from: Duration, to: Duration| {
        let (from, to) = (Instant::ZERO + from, Instant::ZERO + to);
        tries.iter().filter(|at| (from..to).contains(at)).count()
    };
    let soon = tries_within(Duration::ZERO, Duration::from_secs(1));
    let late = tries_within(MAX_DELAY * 4, MAX_DELAY * 8);
    assert!(soon >= 4 && (1..=4).contains(&late), "{soon}, {late}: {tries:?}");
}
