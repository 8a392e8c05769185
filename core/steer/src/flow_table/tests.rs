use std::net::Ipv4Addr;

use hawser_wire::inner::{Ecn, protocol};
use proptest::prelude::*;

use super::*;

fn at(ms: u64) -> Instant {
    Instant::from_nanos(ms * 1_000_000)
}

fn ip(last: u8) -> IpAddr {
    IpAddr::V4(Ipv4Addr::new(10, 0, 0, last))
}

fn packet(source: u8, destination: u8, port: u16, dscp: u8) -> Summary {
    Summary {
        key: FlowKey {
            source: ip(source),
            destination: ip(destination),
            protocol: protocol::TCP,
            source_port: 1000,
            destination_port: port,
        },
        ip_at: 0,
        ip_len: 20,
        headers_len: 40,
        tcp_flags: 0,
        dscp,
        ecn: Ecn::NotEct,
        signature: None,
    }
}

fn rule(priority: u16, pattern: Match, network: u32) -> Rule {
    Rule {
        priority,
        pattern,
        action: Action::to(Output::Direct(NetworkId(network))),
        idle: None,
        hard: None,
    }
}

fn output(table: &mut FlowTable, packet: &Summary, now: u64) -> Option<Output> {
    table
        .handle_packet(packet, None, 100, at(now))
        .map(|(_, action)| action.output)
}

#[test]
fn the_highest_priority_decides_and_the_newest_among_equals() {
    let mut table = FlowTable::new();
    let to = packet(1, 2, 80, 0);
    let insert = |table: &mut FlowTable, rule| table.insert(rule, at(0)).expect("room");
    insert(&mut table, rule(1, Match::default(), 1));
    assert_eq!(output(&mut table, &to, 0), Some(Output::Direct(NetworkId(1))));
    insert(&mut table, rule(5, Match::exactly(&to.key), 2));
    assert_eq!(output(&mut table, &to, 0), Some(Output::Direct(NetworkId(2))));
    let port = Match {
        destination_port: Some(80),
        ..Match::default()
    };
    insert(&mut table, rule(5, port, 3));
    assert_eq!(output(&mut table, &to, 0), Some(Output::Direct(NetworkId(3))));
    insert(
        &mut table,
        rule(
            9,
            Match {
                dscp: Some(46),
                ..port
            },
            4,
        ),
    );
    assert_eq!(output(&mut table, &to, 0), Some(Output::Direct(NetworkId(3))));
    assert_eq!(
        output(&mut table, &packet(1, 2, 80, 46), 0),
        Some(Output::Direct(NetworkId(4)))
    );
}

#[test]
fn a_replaced_entry_keeps_its_counters() {
    let mut table = FlowTable::new();
    let to = packet(1, 2, 80, 0);
    table
        .insert(rule(5, Match::exactly(&to.key), 1), at(0))
        .expect("room");
    output(&mut table, &to, 1);
    let id = table
        .insert(rule(5, Match::exactly(&to.key), 2), at(2))
        .expect("room");
    output(&mut table, &to, 3);
    let (rule, counters) = table.entry(id).expect("there");
    assert_eq!(
        (table.len(), counters),
        (
            1,
            Counters {
                packets: 2,
                bytes: 200
            }
        )
    );
    assert_eq!(rule.action.output, Output::Direct(NetworkId(2)));
}

#[test]
fn prefixes_and_networks() {
    let net = |bits| Match {
        destination: Some(Prefix { base: ip(130), bits }),
        ..Match::default()
    };
    assert!(net(25).matches(&packet(1, 129, 1, 0), None));
    assert!(!net(25).matches(&packet(1, 127, 1, 0), None));
    assert!(net(0).matches(&packet(1, 127, 1, 0), None));
    let from = Match {
        network: Some(NetworkId(3)),
        ..Match::default()
    };
    assert!(from.matches(&packet(1, 2, 1, 0), Some(NetworkId(3))));
    assert!(!from.matches(&packet(1, 2, 1, 0), None));
    assert!(!Prefix::of(IpAddr::V6(std::net::Ipv6Addr::LOCALHOST)).contains(ip(1)));
}

#[test]
fn idle_entries_end_and_used_ones_live_until_their_hard_time_out() {
    let mut table = FlowTable::new();
    let to = packet(1, 2, 80, 0);
    let timed = Rule {
        idle: Some(Duration::from_millis(100)),
        hard: Some(Duration::from_millis(1_000)),
        ..rule(1, Match::exactly(&to.key), 1)
    };
    table.insert(timed, at(0)).expect("room");
    for ms in (0..1_000).step_by(50) {
        table.handle_timeout(at(ms));
        assert!(output(&mut table, &to, ms).is_some(), "{ms}");
    }
    assert_eq!(table.poll_timeout(), Some(at(1_000)));
    assert_eq!(output(&mut table, &to, 1_000), None);
    table.handle_timeout(at(1_000));
    let (_, _, counters, why) = table.poll_event().expect("ended");
    assert_eq!((counters.packets, why), (20, Ended::Hard));
    table.insert(timed, at(2_000)).expect("room");
    table.handle_timeout(at(2_100));
    assert_eq!(table.poll_event().expect("ended").3, Ended::Idle);
}

#[derive(Clone, Debug)]
enum Op {
    Insert(u16, Match, u32, Option<u64>, Option<u64>),
    Remove(usize),
    Packet(u8, u8, u16, u8, Option<u32>),
    Wait(u64),
}

fn pattern() -> impl Strategy<Value = Match> {
    let address = || proptest::option::of((0u8..4, prop_oneof![Just(32u8), Just(31), Just(0)]));
    (
        address(),
        address(),
        proptest::option::of(0u16..3),
        proptest::option::of(0u8..2),
        proptest::option::of(0u32..2),
        any::<bool>(),
    )
        .prop_map(|(source, destination, port, dscp, network, exact)| {
            let prefix = |(last, bits)| Prefix { base: ip(last), bits };
            let wild = Match {
                source: source.map(prefix),
                destination: destination.map(prefix),
                destination_port: port,
                dscp,
                network: network.map(NetworkId),
                ..Match::default()
            };
            if exact {
                let key = packet(
                    source.map_or(0, |s| s.0),
                    destination.map_or(0, |d| d.0),
                    port.unwrap_or(0),
                    0,
                )
                .key;
                Match {
                    dscp,
                    network: wild.network,
                    ..Match::exactly(&key)
                }
            } else {
                wild
            }
        })
}

fn op() -> impl Strategy<Value = Op> {
    let time = || proptest::option::of(1u64..500);
    prop_oneof![
        3 => (0u16..4, pattern(), any::<u32>(), time(), time()).prop_map(|(priority, pattern, network, idle, hard)| Op::Insert(priority, pattern, network, idle, hard)),
        1 => (0usize..40).prop_map(Op::Remove),
        6 => (0u8..4, 0u8..4, 0u16..3, 0u8..2, proptest::option::of(0u32..2)).prop_map(|(source, destination, port, dscp, network)| Op::Packet(source, destination, port, dscp, network)),
        2 => (0u64..200).prop_map(Op::Wait),
    ]
}

/// Reference model: a list of all rules, of which each is evaluated for every packet.
#[derive(Default)]
struct Naive(Vec<(EntryId, Rule, Instant, Instant)>);

impl Naive {
    fn ends(&(_, rule, inserted, used): &(EntryId, Rule, Instant, Instant)) -> Instant {
        let idle = rule.idle.map_or(Instant::FAR_FUTURE, |idle| used + idle);
        idle.min(rule.hard.map_or(Instant::FAR_FUTURE, |hard| inserted + hard))
    }

    fn packet(
        &mut self,
        packet: &Summary,
        network: Option<NetworkId>,
        now: Instant,
    ) -> Option<(EntryId, Action)> {
        let best = self
            .0
            .iter_mut()
            .filter(|entry| Self::ends(entry) > now && entry.1.pattern.matches(packet, network))
            .max_by_key(|entry| (entry.1.priority, entry.0))?;
        best.3 = now;
        Some((best.0, best.1.action))
    }
}

proptest! {
    #[test]
    fn agrees_with_a_list_of_rules(ops in prop::collection::vec(op(), 1..120)) {
        let mut table = FlowTable::new();
        let mut naive = Naive::default();
        let mut now = at(0);
        for op in ops {
            match op {
                Op::Insert(priority, pattern, network, idle, hard) => {
                    let rule = Rule { idle: idle.map(Duration::from_millis), hard: hard.map(Duration::from_millis), ..rule(priority, pattern, network) };
                    let id = table.insert(rule, now).expect("room");
                    naive.0.retain(|entry| entry.1.priority != priority || entry.1.pattern != pattern);
                    naive.0.push((id, rule, now, now));
                }
                Op::Remove(number) => {
                    if let Some(&(id, ..)) = naive.0.get(number) {
                        prop_assert!(table.remove(id).is_some());
                        prop_assert!(table.remove(id).is_none());
                        naive.0.remove(number);
                    }
                }
                Op::Packet(source, destination, port, dscp, network) => {
                    let (packet, network) = (packet(source, destination, port, dscp), network.map(NetworkId));
                    prop_assert_eq!(table.handle_packet(&packet, network, 1, now), naive.packet(&packet, network, now));
                }
                Op::Wait(ms) => now += Duration::from_millis(ms),
            }
            if now.as_nanos().is_multiple_of(3) {
                table.handle_timeout(now);
                naive.0.retain(|entry| Naive::ends(entry) > now);
                prop_assert_eq!(table.len(), naive.0.len());
                prop_assert!(table.poll_timeout().is_none_or(|due| due > now));
            }
            let indexed = table.wild.len() + table.exact.values().map(Vec::len).sum::<usize>();
            prop_assert_eq!(indexed, table.len());
        }
    }
}
