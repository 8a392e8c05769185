//! Replaces one end of a session by a process that continues from its checkpoint.

use hawser_proto::checkpoint::{BadCheckpoint, Sending, SendingFlow};
use hawser_proto::egress::Egress;
use hawser_proto::path::State;
use hawser_units::Instant;
use hawser_wire::inner::protocol;

use crate::harness::{CLIENT, HUB, Work, World, ms, net};

const CALL: Work = Work::Open {
    mbps: 1.0,
    len: 1200,
    kind: protocol::UDP,
};

/// A download and a call over two networks; the hub is replaced five times.
fn restarted(at: usize, seed: u64) -> World {
    let mut world = World::new(&[net(20.0, 10), net(20.0, 25)], seed);
    world.start(HUB, 1, Work::Bulk, ms(0), ms(6_000));
    world.start(HUB, 2, CALL, ms(0), ms(6_000));
    for turn in 1..=5 {
        world.run(ms(1_000 * turn));
        world.restart(at);
        for path in [0, 1] {
            assert_eq!(world.ends[at].state(path), State::Active, "at once");
        }
    }
    world.run(ms(7_000));
    world
}

#[test]
fn a_restart_of_either_end_pauses_a_download_for_less_than_three_round_trips() {
    for (at, seed) in [(HUB, 1), (HUB, 2), (HUB, 3), (CLIENT, 4), (CLIENT, 5)] {
        let world = restarted(at, seed);
        let sink = world.ends[CLIENT].sink(1);
        let gap = sink.longest_gap(ms(900), ms(6_000));
        assert!(gap < ms(150), "seed {seed}, end {at}: {gap:?} without data");
        let rate = sink.mbps(ms(900), ms(6_000));
        assert!(rate > 20.0, "seed {seed}, end {at}: {rate} Mbit/s");
        assert_eq!(sink.duplicates, 0, "seed {seed}, end {at}");
    }
}

#[test]
fn a_call_goes_on_over_a_restart_of_the_hub() {
    for seed in 1..6 {
        let world = restarted(HUB, seed);
        let sink = world.ends[CLIENT].sink(2);
        assert_eq!(sink.duplicates, 0);
        let gap = sink.longest_gap(ms(900), ms(6_000));
        assert!(gap < ms(150), "seed {seed}: {gap:?}");
    }
}

#[test]
fn a_checkpoint_of_a_successor_that_did_nothing_is_the_same() {
    let mut world = restarted(HUB, 9);
    let before = world.ends[HUB].egress().checkpoint();
    world.restart(HUB);
    let after = world.ends[HUB].egress().checkpoint();
    for (before, after) in before.paths.iter().zip(&after.paths) {
        assert_eq!(before.next_packet_number, after.next_packet_number);
        assert_eq!((before.sent, before.delivered), (after.sent, after.delivered));
        assert_eq!(before.outer_mtu, after.outer_mtu);
        assert!(after.is_active);
    }
    assert_eq!(before.places, after.places);
    assert_eq!(before.flows, after.flows);
    assert!(!before.flows.is_empty());
}

#[test]
fn a_damaged_checkpoint_is_refused() {
    let flow = SendingFlow {
        number: 0,
        protocol: protocol::TCP,
        source: "10.0.0.1:1".parse().expect("an address"),
        destination: "10.0.0.2:2".parse().expect("an address"),
        class: 0,
        unordered: false,
        sent: 0,
    };
    let sound = Sending {
        places: vec![(5, 0)],
        flows: vec![flow.clone()],
        ..Sending::default()
    };
    let restore = |sending: &Sending| Egress::<u32>::restore(sending, 1, Instant::ZERO).map(drop);
    assert_eq!(restore(&sound), Ok(()));
    let twice = [flow.clone(), flow.clone()].into();
    let far = vec![SendingFlow {
        number: 1,
        ..flow.clone()
    }];
    let unknown = vec![SendingFlow { class: 9, ..flow }];
    for (flows, why) in [
        (twice, BadCheckpoint::Impossible),
        (far, BadCheckpoint::Impossible),
        (unknown, BadCheckpoint::Unknown),
    ] {
        let damaged = Sending {
            flows,
            ..sound.clone()
        };
        assert_eq!(restore(&damaged), Err(why));
    }
    let schedulers = vec!["best".to_owned()];
    let damaged = Sending { schedulers, ..sound };
    assert_eq!(restore(&damaged), Err(BadCheckpoint::Unknown));
}
