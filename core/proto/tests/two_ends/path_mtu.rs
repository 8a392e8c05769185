//! Path MTU discovery with both ends on virtual time: networks with a smaller MTU than their
//! devices, that change during traffic, and that fail after a packet that is too large.

use hawser_units::Duration;
use hawser_wire::inner::protocol;

use crate::harness::{CLIENT, HUB, Net, Work, World, ms, net};

/// The largest inner packet on a device of 1500 bytes.
const LARGE: u64 = 1432;
const UDP: u8 = protocol::UDP;

/// Large packets at a rate, from both ends, as flows 1 and 2.
fn both_ways(world: &mut World, mbps: f64, len: u64, from: Duration, to: Duration) {
    for (end, flow) in [(CLIENT, 1), (HUB, 2)] {
        world.start(end, flow, Work::Open { mbps, len, kind: UDP }, from, to);
    }
}

/// Asserts that every packet that was offered arrived, in both directions.
fn all_arrived(world: &World, what: &str) {
    for (end, flow) in [(CLIENT, 1), (HUB, 2)] {
        let offered = world.ends[end].offered.get(&flow).copied().unwrap_or_default();
        let seen = world.ends[1 - end]
            .sinks
            .get(&flow)
            .map_or(0, |sink| sink.seen.len() as u64);
        assert!(offered > 0, "{what}: flow {flow} offered nothing");
        assert_eq!(seen, offered, "{what}: flow {flow}");
        assert_eq!(world.ends[end].refused, 0, "{what}: flow {flow}");
    }
}

#[test]
fn packets_larger_than_every_path_arrive_whatever_the_size() {
    for width in 1280..=1500 {
        let mut world = World::new(&[net(20.0, 20), net(20.0, 30)], width);
        world.widths = vec![width; 2];
        both_ways(&mut world, 0.4, LARGE, ms(500), ms(7_000));
        world.run(ms(14_000));
        all_arrived(&world, &format!("path MTU {width}"));
        for path in world.ends.iter().flat_map(|end| end.egress().paths()) {
            let outer = u64::from(path.outer_mtu());
            assert!(
                outer <= width && outer + 8 >= width,
                "path MTU {width} found {outer}"
            );
        }
    }
}

#[test]
fn packets_of_jumbo_frames_arrive_whatever_the_size() {
    let jumbo = Net {
        mtu: 9_000,
        ..net(50.0, 10)
    };
    for width in (1280..=9_000).step_by(193).chain([9_000]) {
        let mut world = World::new(&[jumbo, jumbo], width);
        world.widths = vec![width; 2];
        both_ways(&mut world, 2.0, 8_932, ms(500), ms(12_000));
        world.run(ms(14_000));
        all_arrived(&world, &format!("path MTU {width}"));
    }
}

#[test]
fn a_path_below_the_base_size_transfers_pieces() {
    for width in [576, 700, 1_000, 1_279] {
        let mut world = World::new(&[net(20.0, 20)], width);
        world.widths = vec![width];
        both_ways(&mut world, 0.4, LARGE, ms(6_000), ms(12_000));
        world.run(ms(14_000));
        all_arrived(&world, &format!("path MTU {width}"));
    }
}

#[test]
fn a_path_below_the_base_size_does_not_make_packets_small_for_the_others() {
    let mut world = World::new(&[net(20.0, 20), net(20.0, 20)], 5);
    world.widths = vec![1_500, 800];
    both_ways(&mut world, 2.0, LARGE, ms(6_000), ms(12_000));
    world.run(ms(14_000));
    all_arrived(&world, "one path of 800 bytes");
    assert_eq!(
        world.ends[CLIENT].egress().counters().split,
        0,
        "the other takes them whole"
    );
}

/// Runs a transfer of large packets from the hub, while networks change their MTU. Returns the
/// longest pause after each change.
fn pauses(nets: &[Net], changes: &[(u64, &[u64])]) -> Vec<Duration> {
    let mut world = World::new(nets, 3);
    let end = 4_000 + 12_000 * changes.len() as u64;
    world.start(HUB, 1, Work::Whole(LARGE), ms(500), ms(end));
    for (at, widths) in changes {
        world.run(ms(*at));
        world.widths = widths.to_vec();
    }
    world.run(ms(end));
    let sink = world.ends[CLIENT].sink(1);
    let pauses = changes
        .iter()
        .map(|(at, _)| sink.longest_gap(ms(*at), ms(*at + 11_000)));
    pauses.collect()
}

#[test]
fn a_path_that_shrinks_under_traffic_pauses_for_a_second_at_most() {
    for round_trip in [20, 80, 200] {
        for size in [1_492, 1_400, 1_280, 1_000, 576] {
            let lone = [net(20.0, round_trip / 2)];
            let changes: [(u64, &[u64]); 2] = [(4_000, &[size]), (16_000, &[1_500])];
            let pauses = pauses(&lone, &changes);
            println!("round trip {round_trip} ms, {size} bytes: {pauses:?}");
            let most = ms(1_000 + 4 * round_trip);
            let is_short = pauses.iter().all(|pause| *pause <= most);
            assert!(is_short, "round trip {round_trip} ms, {size} bytes: {pauses:?}");
        }
    }
}

#[test]
fn another_path_goes_on_while_one_shrinks() {
    let changes: [(u64, &[u64]); 3] = [
        (4_000, &[1_400, 1_500]),
        (16_000, &[1_300, 1_500]),
        (28_000, &[1_300, 1_400]),
    ];
    let pauses = pauses(&[net(20.0, 20), net(20.0, 30)], &changes);
    println!("{pauses:?}");
    assert!(pauses.iter().all(|pause| *pause <= ms(500)), "{pauses:?}");
}

#[test]
fn what_fits_only_a_path_that_fails_goes_on_in_pieces() {
    let mut world = World::new(&[net(20.0, 20), net(20.0, 20)], 9);
    world.widths = vec![1_500, 1_300];
    world.start(HUB, 1, Work::Whole(LARGE), ms(500), ms(20_000));
    world.run(ms(10_000));
    assert_eq!(
        world.ends[HUB].egress().counters().split,
        0,
        "one path takes them whole"
    );
    let change = hawser_netem::Change {
        state: Some(hawser_netem::State::Blackhole),
        ..hawser_netem::Change::default()
    };
    world.change(0, None, &change);
    world.run(ms(20_000));
    let sink = world.ends[CLIENT].sink(1);
    let gap = sink.longest_gap(ms(9_900), ms(19_000));
    assert!(gap < ms(1_000), "{gap:?}");
    assert!(world.ends[HUB].egress().counters().split > 100);
}

#[test]
fn an_older_peer_gets_no_fragments_and_small_packets_do_not_wait() {
    let mut world = World::new(&[net(20.0, 20), net(20.0, 20)], 4);
    world.is_older = true;
    world.widths = vec![1_400; 2];
    both_ways(&mut world, 0.4, LARGE, ms(500), ms(30_000));
    world.start(
        HUB,
        3,
        Work::Open {
            mbps: 0.1,
            len: 200,
            kind: UDP,
        },
        ms(500),
        ms(30_000),
    );
    world.run(ms(32_000));
    for end in &world.ends {
        assert_eq!(end.egress().counters().split, 0);
        assert_eq!(
            end.egress().counters().expired,
            0,
            "nothing waits for a size that does not come"
        );
        assert!(end.refused > 100, "the sender hears of it");
    }
    assert_eq!(
        world.ends[CLIENT].sink(3).seen.len() as u64,
        world.ends[HUB].offered[&3]
    );
}

#[test]
fn a_network_that_fails_after_a_large_packet_is_not_probed_again_at_each_recovery() {
    let mut world = World::new(&[net(20.0, 20), net(20.0, 30)], 8);
    world.fragile[0] = Some(1_436);
    both_ways(&mut world, 0.4, 1_000, ms(500), ms(600_000));
    world.run(ms(600_000));
    let (_, times) = world.hung[0];
    println!("failed {times} times");
    assert!((1..=2).contains(&times), "once for each end: {times}");
    let delivered = world.carried(0, CLIENT);
    assert!(delivered.packets > 1_000, "{delivered:?}");
}

/// Returns the goodput of a transfer over two networks once sizes are known, in Mbit/s. `len` is
/// the size of its packets in bytes.
fn goodput(width: u64, len: u64) -> f64 {
    let mut world = World::new(&[net(40.0, 10), net(20.0, 15)], 6);
    world.widths = vec![width; 2];
    world.start(HUB, 1, Work::Whole(len), ms(12_000), ms(25_000));
    world.run(ms(25_000));
    world.ends[CLIENT].sink(1).mbps(ms(14_000), ms(24_000)) * (len - 52) as f64 / len as f64
}

#[test]
fn a_smaller_path_mtu_costs_no_more_than_its_headers() {
    let full = goodput(1_500, LARGE);
    for width in [1_492, 1_480, 1_452, 1_400] {
        // The segment size of the clamped MSS in a SYN, and that of a sender without this
        // information.
        let (told, untold) = (goodput(width, width - 8 - 68), goodput(width, LARGE));
        println!(
            "{width}: {:.3} of {full:.1} Mbit/s, in pieces {:.3}",
            told / full,
            untold / full
        );
        assert!(told > 0.97 * full, "{width}: {told} of {full}");
        assert!(untold > 0.9 * full, "{width}: {untold} of {full}");
    }
}
