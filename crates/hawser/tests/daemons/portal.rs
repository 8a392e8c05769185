//! A captive portal before one of a client's two networks, as its user sees it: with the kill
//! switch closed, and a hub that is reached over the other.

use std::io::{Read, Write};
use std::net::{IpAddr, TcpListener};
use std::sync::{Arc, Mutex};

use hawser_testing::good;

use crate::world::{World, active, is_up};

/// The page by which portals are found, at an address that the hub's machine has.
const CHECKED: &str = "203.0.113.80";
const LOGIN: &str = "http://10.0.11.1:8081/login";

/// Says the same to everybody who asks, and remembers who did.
fn serve(world: &World, port: u16, answer: String) -> Arc<Mutex<Vec<IpAddr>>> {
    let listener = world
        .open("h")
        .run(|| TcpListener::bind(("0.0.0.0", port)))
        .unwrap();
    let asked = Arc::new(Mutex::new(Vec::new()));
    let who = Arc::clone(&asked);
    std::thread::spawn(move || {
        while let Ok((mut stream, from)) = listener.accept() {
            who.lock().unwrap().push(from.ip());
            let _ = stream.read(&mut [0; 1000]);
            let _ = stream.write_all(answer.as_bytes());
        }
    });
    asked
}

/// Whatever comes over `lte` and is no question for a page is dropped, and pages are the portal's.
fn capture(world: &World) {
    let mut nft = world.inside("h", "nft");
    nft.arg(
        "add table inet portal; \
         add chain inet portal catch { type nat hook prerouting priority dstnat; }; \
         add rule inet portal catch iifname lte tcp dport 80 redirect to :8080; \
         add chain inet portal shut { type filter hook prerouting priority -300; }; \
         add rule inet portal shut iifname lte meta l4proto udp drop; \
         add rule inet portal shut iifname lte tcp dport 443 drop",
    );
    good(nft);
}

fn network(world: &World, name: &str) -> serde_json::Value {
    let status = world.status("c");
    let networks = status["networks"].as_array().cloned().unwrap_or_default();
    let found = networks.into_iter().find(|network| network["name"] == name);
    found.unwrap_or_default()
}

#[test]
fn a_login_page_is_found_and_opened_past_a_closed_kill_switch() {
    let Some(world) = World::new("p") else { return };
    world.ip(&world.namespace("h"), &format!("addr add {CHECKED}/32 dev lo"));
    world.init();
    let _hub = world.start("h", &["hub", "run"]);
    let redirect = serve(
        &world,
        8080,
        format!("HTTP/1.1 302 Found\r\nLocation: {LOGIN}\r\n\r\n"),
    );
    let page = serve(
        &world,
        8081,
        "HTTP/1.0 200 OK\r\n\r\nroom number, please\n".to_owned(),
    );
    let checked = serve(&world, 80, "HTTP/1.0 200 OK\r\n\r\nall is well\n".to_owned());
    capture(&world);
    std::fs::create_dir_all(world.place("c")).unwrap();
    let config =
        format!("kill_switch = true\n[direct]\nportal_check = \"http://{CHECKED}/check all is well\"\n");
    std::fs::write(world.place("c").join("client.toml"), config).unwrap();
    let invitation = world.invite();
    let _client = world.start("c", &["up", &invitation, "--foreground"]);
    world.wait("up", is_up);

    world.wait("a portal", |world| network(world, "lte")["state"] == "portal");
    assert_eq!(network(&world, "lte")["portal"], LOGIN);
    assert_eq!(network(&world, "fiber")["state"], "active");
    let notice = world.status("c")["notice"].to_string();
    assert!(
        notice.contains("lte: log in at http://10.0.11.1:8081/login (sudo hawser login lte)"),
        "{notice}"
    );
    // Nothing stands before a network whose path works, so nobody there was asked.
    assert!(checked.lock().unwrap().is_empty());
    let over_lte: IpAddr = "10.0.11.2".parse().unwrap();
    assert!(redirect.lock().unwrap().iter().all(|from| *from == over_lte));

    let mut login = world.hawser("c", &["login"]);
    login.args(["--", "curl", "-s", "-m", "5"]);
    let shown = good(login);
    let shown = String::from_utf8_lossy(&shown.stdout).into_owned();
    assert!(shown.contains("room number, please"), "{shown}");
    assert_eq!(*page.lock().unwrap(), [over_lte]);
    // Other programs have no such way.
    let mut curl = world.inside("c", "curl");
    curl.args(["-s", "-m", "1", "--interface", "lte", LOGIN]);
    assert!(!curl.status().unwrap().success());

    let mut nft = world.inside("h", "nft");
    nft.args(["delete", "table", "inet", "portal"]);
    good(nft);
    world.wait("both networks", |world| active(world) == ["fiber", "lte"]);
    world.wait("no portal any more", |world| {
        network(world, "lte")["portal"].is_null()
    });
    let mut login = world.hawser("c", &["login"]);
    login.args(["--", "curl"]);
    let refused = login.output().unwrap();
    assert!(
        String::from_utf8_lossy(&refused.stderr).contains("no network has a login page now"),
        "{refused:?}"
    );
}
