//! Several access points of one network, and stations on a lossy medium.

use std::collections::BTreeSet;
use std::time::Duration;

use hawser_testing::Kernel;
use serde_json::Value;

use crate::CAFES;
use crate::world::{self, World, joined, run, said};

/// Returns a kernel with two access points of one network on one bridge, and one card.
fn office() -> Kernel {
    Kernel::new()
        .access_point("name=office,channel=6,security=wpa2,rate=20mbit,delay=10ms")
        .access_point("name=office,channel=6,security=wpa2,behind=0")
        .virtual_time()
}

const OFFICE: &str = "[radio]\naccess_points = \"all\"\nshare_air = false\n[[radio.network]]\nssid = \"office\"\npassword = \"password of office\"\n";

/// Returns the associated stations.
fn stations(status: &Value) -> Vec<&Value> {
    let all = status["radio"].as_array().expect("stations");
    all.iter().filter(|one| one["state"] == "joined").collect()
}

/// Returns the third word of `ip -brief` of each interface of Hawser's, which is its address.
fn addresses(words: &[&str]) -> BTreeSet<String> {
    let shown = said(run("ip", &["-brief"]).args(words));
    let own = shown.lines().filter(|line| line.starts_with("hawserw"));
    own.filter_map(|line| line.split_whitespace().nth(2).map(str::to_owned))
        .collect()
}

#[test]
#[ignore = "slow: make test-all"]
fn all_access_points_of_one_network_are_used_and_one_may_go() {
    if !office().enter("office::all_access_points_of_one_network_are_used_and_one_may_go") {
        return;
    }
    let mut world = World::with_hub();
    world.up(OFFICE);
    world.until("both are joined", 20, |status| {
        joined(status) == ["office", "office"]
    });
    world.until("both carry the tunnel", 30, |status| world::active(status) == 2);
    let status = world.status();
    let points: BTreeSet<_> = stations(&status)
        .iter()
        .map(|one| one["bssid"].to_string())
        .collect();
    assert_eq!(points.len(), 2, "{status:#}");
    // The network sees two stations and assigns an address to each.
    assert_eq!(addresses(&["link"]).len(), 2);
    assert_eq!(addresses(&["-4", "address"]).len(), 2);
    assert!(world.download(Duration::from_secs(5)) > 1e6);
    let shares = crate::received(&world.status());
    assert!(shares.iter().all(|bytes| *bytes > 10_000), "{shares:?}");
    // Each station answers for its own address only, so the bridge learns its position.
    for station in stations(&status) {
        let interface = station["interface"].as_str().expect("a name");
        let pings = world::pings(interface, "10.60.0.1", Duration::from_millis(50), 40);
        std::thread::sleep(Duration::from_secs(3));
        let (lost, of) = pings.end();
        assert!(lost == 0 && of >= 40, "{interface}: {lost} of {of} pings lost");
    }
    world::access_point_vanishes(1);
    world.until("one is left", 40, |status| world::active(status) == 1);
    assert!(world.download(Duration::from_secs(3)) > 1e6);
    world.down();
}

#[test]
#[ignore = "slow: make test-all"]
fn of_one_network_one_access_point_is_joined_unless_all_are_wanted() {
    if !office().enter("office::of_one_network_one_access_point_is_joined_unless_all_are_wanted") {
        return;
    }
    let mut world = World::with_hub();
    world.up(&OFFICE.replace("\"all\"", "\"one for each network\""));
    world.until("one carries the tunnel", 30, |status| world::active(status) == 1);
    std::thread::sleep(Duration::from_secs(5));
    assert_eq!(joined(&world.status()), ["office"]);
    world.down();
}

/// A stronger access point of the network appears: the station of the weaker one stays until the
/// new one has delivered, and nothing is lost.
#[test]
#[ignore = "slow: make test-all"]
fn the_old_station_stays_until_the_new_one_has_delivered() {
    if !office().enter("office::the_old_station_stays_until_the_new_one_has_delivered") {
        return;
    }
    // Simulated cards receive an access point 50 dB below its transmission power.
    let power = [
        "netns", "exec", "ap0", "iw", "dev", "wlan0", "set", "txpower", "fixed", "0",
    ];
    said(&mut run("ip", &power));
    said(&mut world::access_point(1, &["disable"]));
    let mut world = World::with_hub();
    world.up(&OFFICE.replace("\"all\"", "\"one for each network\""));
    world.until("the first carries the tunnel", 30, |status| {
        world::active(status) == 1
    });
    let point = |status: &Value| stations(status).first().map(|one| one["bssid"].clone());
    let first = point(&world.status());
    let pings = world::pings("hawser0", "203.0.113.2", Duration::from_millis(50), 100_000);
    said(&mut world::access_point(1, &["enable"]));
    world.until("the stronger one carries the tunnel alone", 90, |status| {
        world::active(status) == 1 && joined(status).len() == 1 && point(status) != first
    });
    std::thread::sleep(Duration::from_secs(2));
    let (lost, of) = pings.end();
    // The last ping may be in flight at the end.
    assert!(lost <= 1 && of > 40, "{lost} of {of} pings lost");
    let log = world::log();
    let at = |words: [&str; 2]| {
        let line = log
            .lines()
            .position(|line| words.iter().all(|word| line.contains(word)));
        line.unwrap_or_else(|| panic!("no {words:?} in {log}"))
    };
    assert!(at(["joined", "hawserw1"]) < at(["left", "hawserw0"]), "{log}");
    world.down();
}

/// The station is in user space and the kernel does not number its frames, so an access point could
/// acknowledge and discard frames that arrive by a retry.
#[test]
#[ignore = "slow: make test-all"]
fn in_slots_on_lossy_air_what_is_acknowledged_arrives() {
    let is_inside = Kernel::new()
        .access_point("name=cafe,channel=1,delay=5ms")
        .access_point("name=library,channel=11,delay=5ms")
        .option(&["--air", "--standard g --rate 24 --loss 0.3 --overhear"])
        .virtual_time()
        .enter("office::in_slots_on_lossy_air_what_is_acknowledged_arrives");
    if !is_inside {
        return;
    }
    let mut world = World::with_hub();
    world.up(&format!("[radio]\nslots = true\n{CAFES}"));
    world.until("both carry the tunnel", 60, |status| world::active(status) == 2);
    for (name, gateway) in [("cafe", "10.60.0.1"), ("library", "10.60.1.1")] {
        let station = world::station(&world.status(), name);
        let interface = station["interface"].as_str().expect("a name");
        let pings = world::pings(interface, gateway, Duration::from_millis(50), 100);
        std::thread::sleep(Duration::from_secs(7));
        let (lost, of) = pings.end();
        println!("{name}: {lost} of {of} pings lost");
        // Three of ten attempts are lost, and a frame has seven attempts.
        assert!(of >= 100 && lost * 20 < of, "{name}: {lost} of {of} pings lost");
    }
    world.down();
}

/// Writes a profile of NetworkManager for the 802.1X network of that name, with checks of its
/// server.
fn profile(ssid: &str, checks: &str) {
    let directory = "/etc/NetworkManager/system-connections";
    std::fs::create_dir_all(directory).expect("a directory");
    let text = format!(
        "[connection]\ntype=wifi\n[wifi]\nssid={ssid}\n[wifi-security]\nkey-mgmt=wpa-eap\n[802-1x]\neap=peap;\nidentity=ann\npassword=password of {ssid}\nphase2-auth=mschapv2\n{checks}"
    );
    std::fs::write(format!("{directory}/{ssid}.nmconnection"), text).expect("written");
}

/// A server of another authority or with another name receives no password.
#[test]
#[ignore = "slow: make test-all"]
fn a_network_is_joined_only_by_the_server_that_its_profile_names() {
    let mut kernel = Kernel::new();
    for name in ["right", "authority", "name", "private"] {
        kernel = kernel.access_point(&format!("name={name},channel=6,security=eap"));
    }
    let is_inside = kernel
        .virtual_time()
        .enter("office::a_network_is_joined_only_by_the_server_that_its_profile_names");
    if !is_inside {
        return;
    }
    let domain = "domain-match=radius.example.org\n";
    let (own, other) = (
        "ca-cert=/run/hostapd/ca.pem\n",
        "ca-cert=/run/hostapd/other-ca.pem\n",
    );
    profile("right", &format!("{own}{domain}"));
    profile("authority", &format!("{other}{domain}"));
    profile("name", &format!("{own}domain-match=radius.example.com\n"));
    profile("private", &format!("{own}[connection]\npermissions=user:ann:;\n"));
    let mut world = World::with_hub();
    world.up("");
    world.until("the right one is joined", 30, |status| {
        joined(status) == ["right"]
    });
    // By then the other profiles have been tried, and are tried again.
    std::thread::sleep(Duration::from_secs(25));
    assert_eq!(joined(&world.status()), ["right"]);
    let log = |number: usize| std::fs::read_to_string(format!("/run/hostapd/ap{number}.log")).expect("a log");
    assert!(log(0).contains("CTRL-EVENT-EAP-SUCCESS"), "{}", log(0));
    for number in [1, 2] {
        assert!(
            log(number).contains("CTRL-EVENT-EAP-STARTED"),
            "not tried: {}",
            log(number)
        );
        assert!(!log(number).contains("CTRL-EVENT-EAP-SUCCESS"), "{}", log(number));
    }
    assert!(!log(3).contains("CTRL-EVENT-EAP-STARTED"), "{}", log(3));
    let shown = said(&mut world.hawser(&["status"]));
    assert!(
        shown.contains("private is not joined") && shown.contains("permissions"),
        "{shown}"
    );
    world.down();
}
