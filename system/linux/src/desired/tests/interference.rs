//! Another program that changes any of the objects, in any order.

use std::time::Duration;

use hawser_units::Net;
use proptest::prelude::*;

use super::super::difference::{Repair, difference};
use super::super::reconciler::MAX_DELAY;
use super::super::*;
use super::world::{ETH, STATIC, TUNNEL, World, hop, ip};

/// Action of the adversary, with a number that selects an object.
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
    /// After any sequence of changes, objects that keep traffic in the tunnel are restored within
    /// 0.3 s, and all others after the longest delay.
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
