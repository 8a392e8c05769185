//! Paths with restricted use: both ends over emulated links.

use hawser_netem::{Change, State};
use hawser_units::{Duration, PathId};
use hawser_wire::inner::protocol;
use hawser_wire::preference::{Preference, Priority};

use crate::harness::{CLIENT, HUB, Work, World, ms, net};

const fn when(priority: Priority) -> Preference {
    Preference {
        priority,
        takes_bulk: true,
    }
}

const NO_BULK: Preference = Preference {
    priority: Priority::Always,
    takes_bulk: false,
};

/// Returns two networks of 20 Mbit/s, of which both ends use the second with this preference.
fn world(preference: Preference) -> World {
    let mut world = World::new(&[net(20.0, 10), net(20.0, 15)], 7);
    for end in &mut world.ends {
        end.egress_mut().set_preference(PathId(1), preference);
    }
    world
}

fn sends(mbps: f64) -> Work {
    Work::Open {
        mbps,
        len: 1200,
        kind: protocol::UDP,
    }
}

/// Bytes that the hub has sent over the second network.
fn beside(world: &World) -> u64 {
    world.carried(1, HUB).bytes
}

fn alive(state: State) -> Change {
    Change {
        state: Some(state),
        ..Change::default()
    }
}

#[test]
fn a_backup_carries_probes_alone_until_no_other_path_works() {
    let mut world = world(when(Priority::Backup));
    world.start(HUB, 1, Work::Bulk, ms(0), ms(20_000));
    world.run(ms(8_000));
    let idle = beside(&world);
    assert!(idle < 30_000, "probes and reports alone: {idle} bytes");
    assert!(world.ends[CLIENT].sink(1).mbps(ms(3_000), ms(8_000)) > 17.0);

    world.change(0, None, &alive(State::Blackhole));
    world.run(ms(14_000));
    let flow = world.ends[CLIENT].sink(1);
    assert!(
        flow.mbps(ms(10_000), ms(14_000)) > 17.0,
        "{}",
        flow.mbps(ms(10_000), ms(14_000))
    );
    assert!(flow.longest_gap(ms(7_900), ms(14_000)) < Duration::from_secs(1));

    // The other network has returned, and the backup is unused again.
    world.change(0, None, &alive(State::Up));
    world.run(ms(16_000));
    let before = beside(&world);
    world.run(ms(20_000));
    assert!(beside(&world) - before < 30_000, "{}", beside(&world) - before);
    assert!(world.ends[CLIENT].sink(1).mbps(ms(16_500), ms(20_000)) > 15.0);
}

#[test]
fn overflow_takes_what_the_others_cannot() {
    let mut world = world(when(Priority::Overflow));
    world.start(HUB, 1, sends(12.0), ms(0), ms(8_000));
    world.run(ms(8_000));
    let idle = beside(&world);
    assert!(idle < 60_000, "12 of 20 Mbit/s leave it alone: {idle} bytes");
    world.start(HUB, 2, sends(30.0), ms(8_000), ms(16_000));
    world.run(ms(16_000));
    let both = world.ends[CLIENT].sink(2).mbps(ms(11_000), ms(16_000));
    assert!(both > 27.0, "30 of 40 Mbit/s: {both}");
}

#[test]
fn transfers_keep_out_of_a_path_that_takes_none_while_another_works() {
    let mut world = world(NO_BULK);
    world.start(HUB, 1, Work::Bulk, ms(0), ms(12_000));
    world.run(ms(3_000));
    let before = beside(&world);
    world.run(ms(8_000));
    let during = beside(&world) - before;
    // 5 s of the path would be 12.5 MB.
    assert!(during < 1_000_000, "{during} bytes");
    assert!(world.ends[CLIENT].sink(1).mbps(ms(3_000), ms(8_000)) > 17.0);
    world.change(0, None, &alive(State::Blackhole));
    world.run(ms(12_000));
    assert!(world.ends[CLIENT].sink(1).mbps(ms(10_000), ms(12_000)) > 15.0);
}

#[test]
fn a_direction_has_its_own_preference() {
    let mut world = World::new(&[net(20.0, 10), net(20.0, 15)], 7);
    world.ends[CLIENT]
        .egress_mut()
        .set_preference(PathId(1), when(Priority::Backup));
    world.start(HUB, 1, Work::Bulk, ms(0), ms(8_000));
    world.start(CLIENT, 2, Work::Bulk, ms(0), ms(8_000));
    world.run(ms(8_000));
    assert!(world.ends[CLIENT].sink(1).mbps(ms(3_000), ms(8_000)) > 30.0);
    let up = world.carried(1, CLIENT).bytes;
    // Acknowledgements of the download go over the first network too.
    assert!(up < 500_000, "{up} bytes");
}
