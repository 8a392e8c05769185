//! Repeater with radio links: hostapd and mac80211 in a separate kernel, in virtual time, on a
//! simulated medium.
//!
//! Device `a` has an access point for each link, device `b` the two stations; the card of the first
//! station also has the access point of the client `hb`. All use 802.11a at 12 Mbit/s.

use std::net::UdpSocket;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use hawser_netem::air::phy::Standard;
use hawser_netem::air::{MediumConfig, Signal, StationConfig, Stranger};
use hawser_testbed::Medium;
use hawser_testing::{Kernel, Pings};
use serde_json::Value;

use crate::world::{LINKS, World, good, run};

/// Simulated medium, with permanent traffic of other stations on some channels.
struct Air {
    is_over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Air {
    fn new(busy: &[u32]) -> Self {
        let rate = Standard::A.rates()[2];
        assert_eq!(rate.as_bps(), 12_000_000);
        let station = StationConfig::fixed(Standard::A, 0, rate);
        // Three other stations leave a quarter of the airtime.
        let strangers = busy.iter().flat_map(|frequency| {
            let stranger = Stranger {
                station: station.clone(),
                frequency: *frequency,
                every: hawser_units::Duration::from_micros(1_200),
                len: 1_536,
                period: None,
                heard_by: Vec::new(),
            };
            vec![stranger; 3]
        });
        let config = MediumConfig {
            strangers: strangers.collect(),
            station,
            stations: std::collections::BTreeMap::new(),
            signal: Signal::clear(),
            signals: Vec::new(),
            towards: Vec::new(),
            overhear: false,
            overlaps: Vec::new(),
        };
        let mut medium = Medium::take_over(config, 1).unwrap();
        let is_over = Arc::new(AtomicBool::new(false));
        let stop = Arc::clone(&is_over);
        let thread = std::thread::spawn(move || {
            medium.carry(&stop).unwrap();
        });
        Self {
            is_over,
            thread: Some(thread),
        }
    }

    /// Moves the traffic of other stations to these channels. Units: MHz.
    fn becomes_busy(&mut self, busy: &[u32]) {
        self.end();
        *self = Self::new(busy);
    }

    fn end(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            thread.join().unwrap();
        }
    }
}

impl Drop for Air {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
    }
}

fn access_point(interface: &str, ssid: &str, channel: u32, more: &str) -> String {
    let path = format!("/run/{ssid}.conf");
    let config = format!(
        "interface={interface}\ndriver=nl80211\nssid={ssid}\nchannel={channel}\nhw_mode=a\ncountry_code=US\nieee80211d=1\nwmm_enabled=1\n{more}\n"
    );
    std::fs::write(&path, config).unwrap();
    path
}

fn join(world: &World, side: &str, (interface, ssid): (&str, &str)) {
    let path = format!("/run/{side}-{ssid}.conf");
    let frequency = if ssid == "own" { 5_220 } else { 5_180 };
    let config = format!("network={{\nssid=\"{ssid}\"\nkey_mgmt=NONE\nscan_freq={frequency}\n}}\n");
    std::fs::write(&path, config).unwrap();
    let mut supplicant = world.inside(side, "wpa_supplicant");
    supplicant.args(["-B", "-i", interface, "-c", &path]);
    good(supplicant);
    world.wait(&format!("joined {ssid}"), |world| {
        let mut link = world.inside(side, "iw");
        link.args(["dev", interface, "link"]);
        String::from_utf8_lossy(&good(link).stdout).contains(ssid)
    });
    let mut awake = world.inside(side, "iw");
    awake.args(["dev", interface, "set", "power_save", "off"]);
    good(awake);
}

/// Creates the devices with their radios on channels 36 and 44, and the client.
fn on_air() -> World {
    run("iw", &["reg", "set", "US"]);
    let world = World::boxes("air", Duration::from_secs(1));
    for (card, (side, name)) in [
        ("a", "eth1"),
        ("a", "eth2"),
        ("b", "eth1"),
        ("b", "eth2"),
        ("hb", "eth0"),
    ]
    .into_iter()
    .enumerate()
    {
        let namespace = world.namespace(side);
        run(
            "iw",
            &["phy", &format!("phy{card}"), "set", "netns", "name", &namespace],
        );
        world.ip(side, &format!("link set wlan{card} name {name}"));
    }
    let control = "ctrl_interface=/run/hostapd";
    let mut both = world.inside("a", "hostapd");
    both.arg("-B");
    both.arg(access_point("eth1", "shared", 36, control));
    both.arg(access_point("eth2", "own", 44, control));
    good(both);
    join(&world, "b", ("eth1", "shared"));
    join(&world, "b", ("eth2", "own"));
    let mut add = world.inside("b", "iw");
    add.args(["dev", "eth1", "interface", "add", "clients", "type", "__ap"]);
    add.args(["addr", "06:00:00:00:02:00"]);
    good(add);
    let mut clients = world.inside("b", "hostapd");
    clients.arg("-B");
    let control = "bridge=br0\nctrl_interface=/run/hostapd-clients";
    clients.arg(access_point("clients", "clients", 36, control));
    good(clients);
    join(&world, "hb", ("eth0", "clients"));
    world.address_hosts();
    world
}

fn radio(world: &World, side: &str, link: usize) -> Value {
    world.status(side)["links"][link]["radio"].clone()
}

/// Starts a load of 1 Mbit/s to the client, whose delivery is not checked.
fn load(world: &World, is_over: &Arc<AtomicBool>) -> JoinHandle<()> {
    let socket = world.open("ha").run(|| UdpSocket::bind("203.0.113.2:0")).unwrap();
    let is_over = Arc::clone(is_over);
    std::thread::spawn(move || {
        while !is_over.load(Ordering::Relaxed) {
            let _ = socket.send_to(&[0; 1_000], "203.0.113.1:7000");
            std::thread::sleep(Duration::from_millis(8));
        }
    })
}

/// Starts pings from the host behind the access point to the client, every 20 ms.
fn pings(world: &World) -> Pings {
    let mut ping = world.inside("ha", "ping");
    ping.args(["-i", "0.02", "203.0.113.1"]);
    Pings::start(ping)
}

#[test]
#[ignore = "in one run of ten the station is left behind, and nothing brings it back in time"]
fn a_link_leaves_a_channel_that_has_become_busy() {
    for program in ["hostapd", "wpa_supplicant", "iw"] {
        if !hawser_testing::require_program(&[program]) {
            return;
        }
    }
    let kernel = Kernel::new().option(&["--radios", "5"]).virtual_time();
    if !kernel.enter("air::a_link_leaves_a_channel_that_has_become_busy") {
        return;
    }
    let mut air = Air::new(&[]);
    let world = on_air();
    world.trust();
    let _boxes = [world.start_with("a", &["--migrate"]), world.start("b")];
    world.wait_for_both_links();
    let is_over = Arc::new(AtomicBool::new(false));
    let load = load(&world, &is_over);
    world.wait("tested, and the shared one left alone", |world| {
        let (shared, own) = (radio(world, "a", 0), radio(world, "a", 1));
        shared["moving"]["stays"] == "the other box serves its clients on it"
            && own["moving"]["carries_bps"].as_u64() > Some(5_000_000)
    });

    // The own channel and the first candidate are busy.
    air.becomes_busy(&[5_220, 5_200]);
    std::thread::sleep(Duration::from_secs(1));
    let meanwhile = pings(&world);
    world.wait("moved", |world| radio(world, "a", 1)["moving"]["moves"] == 1);
    std::thread::sleep(Duration::from_millis(500));
    let (lost, sent) = meanwhile.end();
    let last = radio(&world, "a", 1)["moving"]["last"].clone();
    println!("{lost} of {sent} pings lost, those on the busy channel among them; {last}");
    let to = last["to"].as_u64().unwrap();
    assert!(last["from"] == 44 && ![36, 40, 44].contains(&to), "{last}");
    assert!(last["after_bps"].as_u64() > last["before_bps"].as_u64());
    for side in ["a", "b"] {
        world.wait("seen on both sides", |world| {
            radio(world, side, 1)["channel"] == to
        });
        assert_eq!(radio(&world, side, 0)["channel"], 36);
    }
    assert_eq!(world.active("a"), LINKS);
    let said = world.said("a", &["status"]);
    assert!(
        said.contains(&format!("eth2: channel {to}; moved there from 44")),
        "{said}"
    );
    let searches = || radio(&world, "a", 1)["moving"]["searches"].as_u64();
    let before = searches();
    // A search on request neither waits until the channel is poor nor for the pause between
    // searches.
    let asked = pings(&world);
    let said = world.said("a", &["repeat", "migrate", "eth2"]);
    let (lost, sent) = asked.end();
    println!("{lost} of {sent} pings lost; asked for: {said}");
    assert!(lost < 3, "{lost}");
    assert!(said.starts_with("eth2: channel "), "{said}");
    assert_eq!(searches(), before.map(|before| before + 1));
    let refused = world
        .hawser("a", &["repeat", "migrate", "eth1"])
        .output()
        .unwrap();
    let refused = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(refused.contains("serves its clients on it"), "{refused}");
    is_over.store(true, Ordering::Relaxed);
    load.join().unwrap();
    air.end();
}

#[test]
#[ignore = "10 of 219 pings are lost in three moves, where fewer than 3 in each are wanted"]
fn clients_move_along_where_somebody_else_moves_the_shared_link() {
    for program in ["hostapd", "hostapd_cli", "wpa_supplicant", "iw"] {
        if !hawser_testing::require_program(&[program]) {
            return;
        }
    }
    let kernel = Kernel::new().option(&["--radios", "5"]).virtual_time();
    if !kernel.enter("air::clients_move_along_where_somebody_else_moves_the_shared_link") {
        return;
    }
    let mut air = Air::new(&[]);
    let world = on_air();
    world.trust();
    let along = ["--hostapd", "/run/hostapd-clients"];
    let _boxes = [world.start("a"), world.start_with("b", &along)];
    world.wait_for_both_links();
    let meanwhile = pings(&world);
    for (number, frequency) in [(40, "5200"), (48, "5240"), (36, "5180")] {
        let mut switch = world.inside("a", "hostapd_cli");
        switch.args(["-p", "/run/hostapd", "-i", "eth1", "chan_switch", "3", frequency]);
        good(switch);
        for side in ["a", "b"] {
            world.wait("seen on both sides", |world| {
                radio(world, side, 0)["channel"] == number
            });
        }
        // A station that the kernel had dropped would return only after a scan.
        std::thread::sleep(Duration::from_millis(500));
        for (side, interface) in [("b", "clients"), ("hb", "eth0")] {
            let mut info = world.inside(side, "iw");
            info.args(["dev", interface, "info"]);
            let info = String::from_utf8_lossy(&good(info).stdout).into_owned();
            assert!(info.contains(&format!("({frequency} MHz)")), "{side}: {info}");
        }
        assert_eq!(world.active("a"), LINKS);
    }
    let (lost, sent) = meanwhile.end();
    println!("{lost} of {sent} pings lost in three moves of the clients");
    assert!(lost < 9, "{lost} of {sent}");
    air.end();
}
