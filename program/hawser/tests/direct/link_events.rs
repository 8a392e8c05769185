//! Five hundred random events of two networks during traffic: no state remains, and no flow uses a
//! wrong network.

use std::io::Read;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use hawser_linux::direct::mark;

use crate::world::{Daemon, SERVER, SERVER6, World, connect, nft, plugging, read_peer, try_ip, way_of};

const EVENTS: usize = 500;

/// Pseudo-random numbers that are identical in every run (Marsaglia's xorshift).
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % sides
    }
}

struct SetAtTheEnd<'a>(&'a AtomicBool);

impl Drop for SetAtTheEnd<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn five_hundred_link_events_leave_nothing_behind_and_no_flow_goes_astray() {
    let Some(world) = World::new() else { return };
    world.write_config("[direct]\nprobe_every = \"100ms\"\nkeep_flows = \"200ms\"\n");
    let before = world.system();
    let mut daemon = world.up();
    for gateway in &world.gateways {
        nft(gateway, WATCH);
    }
    let (is_over, good, astray) = (AtomicBool::new(false), AtomicU64::new(0), AtomicU64::new(0));
    std::thread::scope(|scope| {
        for way in [0_usize, 1, 2] {
            let (world, is_over, good, astray) = (&world, &is_over, &good, &astray);
            scope.spawn(move || {
                while !is_over.load(Ordering::Relaxed) {
                    match try_way(world, way) {
                        Some(true) => good.fetch_add(1, Ordering::Relaxed),
                        Some(false) => astray.fetch_add(1, Ordering::Relaxed),
                        None => 0,
                    };
                }
            });
        }
        // The other threads end however this thread ends.
        let _over = SetAtTheEnd(&is_over);
        let mut dice = Dice(0x1234_5678_9abc_def1);
        for _ in 0..EVENTS {
            happen(&world, &mut dice);
            std::thread::sleep(Duration::from_millis(dice.roll(40)));
        }
    });
    check_still_works(&world, &mut daemon);
    assert!(good.load(Ordering::Relaxed) > 50, "{good:?} connections");
    assert_eq!(astray.load(Ordering::Relaxed), 0, "of {good:?}");
    for gateway in &world.gateways {
        let listed = gateway
            .command("nft")
            .args(["list", "table", "inet", "watch"])
            .output()
            .expect("nft runs");
        let listed = String::from_utf8_lossy(&listed.stdout).into_owned();
        assert_eq!(
            listed.matches("packets 0 ").count(),
            2,
            "an inner address got out: {listed}"
        );
    }
    world.down();
    assert_eq!(world.system(), before);
}

/// nftables rules that count packets with an inner address in a gateway.
const WATCH: &str = "table inet watch {\n chain in {\n type filter hook prerouting priority -350;\n ip saddr 100.64.0.2 counter\n \
     ip6 saddr fd48:4157:5345:5200::2 counter\n }\n}";

/// Opens a connection over the given network, or any for 0. Returns whether it used the requested
/// network.
fn try_way(world: &World, way: usize) -> Option<bool> {
    // Networks are numbered in the order in which they were found.
    let asked = (way > 0).then(|| mark(0, way as u8 + 1));
    let server = if way == 0 { SERVER6 } else { SERVER };
    let mut stream = connect(&world.client, server, asked).ok()?;
    let seen = read_peer(&mut stream).ok().filter(|seen| !seen.is_empty())?;
    let _ = stream.set_read_timeout(Some(Duration::from_millis(1)));
    let _ = stream.read(&mut [0]);
    Some(way == 0 || way_of(&seen) == way)
}

fn happen(world: &World, dice: &mut Dice) {
    let n = dice.roll(2) as usize + 1;
    let other = dice.roll(3) + 2;
    let commands = match dice.roll(7) {
        0 => format!("link set net{n} down"),
        1 => format!("addr flush dev net{n} scope global"),
        2 => format!(
            "addr flush dev net{n} scope global\naddr add 192.168.0.1{other}/24 dev net{n}\nroute replace default via 192.168.0.1 dev net{n} metric 10{n}"
        ),
        3 => format!("route replace default via 192.168.0.5 dev net{n} metric 10{n}"),
        4 => format!("route del default dev net{n}"),
        5 => format!("link set net{n} mtu 1{}00", other + 1),
        _ => plugging(n),
    };
    // Some events have no object to act on.
    try_ip(&world.client, &commands);
}

/// Checks that both networks carry flows after all events.
fn check_still_works(world: &World, daemon: &mut Daemon) {
    assert!(
        daemon.0.try_wait().expect("a child").is_none(),
        "the daemon has ended"
    );
    for n in [1, 2] {
        try_ip(
            &world.client,
            &format!("addr flush dev net{n} scope global\nlink set net{n} mtu 1500"),
        );
        try_ip(&world.client, &format!("addr add 192.168.0.2/24 dev net{n}"));
        world.plug(n);
    }
    world.wait_until("both are active again", |world| {
        ["net1", "net2"].iter().all(|name| world.state(name) == "active")
    });
    world.wait_until("both take flows", |world| {
        let ways: Vec<_> = (0..4)
            .filter_map(|_| world.way(&world.client, SERVER, None).ok())
            .collect();
        ways.contains(&1) && ways.contains(&2)
    });
}
