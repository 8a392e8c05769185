use std::net::{IpAddr, Ipv4Addr};

use proptest::prelude::*;

use super::*;

fn flow(port: u16) -> FlowKey {
    FlowKey {
        source: IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1)),
        destination: IpAddr::V4(Ipv4Addr::new(10, 0, 0, 2)),
        protocol: 6,
        source_port: port,
        destination_port: 80,
    }
}

fn network(weight: f64) -> Network {
    Network { weight, mtu: 1500 }
}

fn with(method: Method, weights: &[f64]) -> Stitch {
    let mut stitch = Stitch::new(method, 7);
    for (id, &weight) in weights.iter().enumerate() {
        stitch.handle_up(NetworkId(id as u32), network(weight));
    }
    stitch
}

#[test]
fn shares_follow_the_weights() {
    for method in [Method::WeightedHash, Method::LeastLoaded] {
        let mut stitch = with(method, &[1.0, 3.0]);
        for port in 0..4_000 {
            stitch.assign(flow(port));
        }
        let load = stitch.load(NetworkId(1));
        assert!(load.abs_diff(3_000) < 100, "{method:?} {load}");
    }
}

/// Flow switch note 4: 3G supports 1400 bytes, Ethernet 1500.
#[test]
fn the_packet_size_is_the_least() {
    let mut stitch = with(Method::LeastLoaded, &[1.0]);
    stitch.handle_up(
        NetworkId(5),
        Network {
            weight: 1.0,
            mtu: 1400,
        },
    );
    assert_eq!(stitch.mtu(), Some(1400));
    stitch.handle_down(NetworkId(5));
    assert_eq!(stitch.mtu(), Some(1500));
    stitch.handle_down(NetworkId(0));
    assert_eq!(stitch.mtu(), None);
}

#[test]
fn a_network_that_comes_back_gets_its_flows_back_on_request() {
    for method in [Method::WeightedHash, Method::LeastLoaded] {
        let mut stitch = with(method, &[1.0, 1.0]);
        for port in 0..100 {
            stitch.assign(flow(port));
        }
        let before = stitch.load(NetworkId(1));
        assert_eq!(stitch.handle_down(NetworkId(1)).len(), before);
        assert_eq!(stitch.load(NetworkId(0)), 100);
        assert_eq!(stitch.handle_up(NetworkId(1), network(1.0)), []);
        assert_eq!(stitch.rebalance().len(), before, "{method:?}");
        assert_eq!(stitch.load(NetworkId(1)), before);
        assert_eq!(stitch.rebalance(), []);
    }
}

#[derive(Clone, Debug)]
enum Op {
    Up(u32, u8),
    Down(u32),
    Assign(u16),
    Close(u16),
    Rebalance,
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        2 => (0u32..10, 0u8..20).prop_map(|(id, weight)| Op::Up(id, weight)),
        2 => (0u32..10).prop_map(Op::Down),
        6 => (0u16..60).prop_map(Op::Assign),
        1 => (0u16..60).prop_map(Op::Close),
        1 => Just(Op::Rebalance),
    ]
}

proptest! {
    #[test]
    fn only_flows_without_a_network_move_and_loads_are_right(hashed: bool, ops in prop::collection::vec(op(), 1..120)) {
        let method = if hashed { Method::WeightedHash } else { Method::LeastLoaded };
        let mut stitch = Stitch::new(method, 3);
        let mut naive: BTreeMap<FlowKey, Option<NetworkId>> = BTreeMap::new();
        for op in ops {
            let moved = match op {
                Op::Up(id, weight) => {
                    let moved = stitch.handle_up(NetworkId(id), network(weight.into()));
                    prop_assert!(moved.iter().all(|moved| moved.from.is_none()));
                    moved
                }
                Op::Down(id) => {
                    let moved = stitch.handle_down(NetworkId(id));
                    prop_assert!(moved.iter().all(|moved| moved.from == Some(NetworkId(id)) && moved.to != moved.from));
                    moved
                }
                Op::Assign(port) => {
                    let before = naive.get(&flow(port)).copied().flatten();
                    let to = stitch.assign(flow(port));
                    prop_assert!(before.is_none() || before == to);
                    naive.insert(flow(port), to);
                    Vec::new()
                }
                Op::Close(port) => {
                    stitch.handle_closed(&flow(port));
                    naive.remove(&flow(port));
                    Vec::new()
                }
                Op::Rebalance => {
                    let moved = stitch.rebalance();
                    prop_assert_eq!(stitch.rebalance(), Vec::new(), "not even yet");
                    moved
                }
            };
            for moved in moved {
                prop_assert_eq!(naive.insert(moved.flow, moved.to), Some(moved.from));
            }
            prop_assert_eq!(&stitch.flows, &naive);
            for (&id, &(_, load)) in &stitch.networks {
                prop_assert_eq!(load, naive.values().filter(|network| **network == Some(id)).count());
            }
            let stranded = naive.values().any(Option::is_none);
            prop_assert!(!stranded || stitch.networks.is_empty());
        }
    }
}
