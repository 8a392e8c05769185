//! A phone: a client with WireGuard's own program, without Hawser.

use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::Stdio;
use std::time::Duration;

use hawser_linux::netns::Namespace;
use serde_json::Value;

use super::world::{Daemon, World, good};

/// Port of listeners on the hub and on the server.
const PORT: u16 = 2222;
/// Time after which an unanswered connection counts as refused.
const TIMEOUT: Duration = Duration::from_millis(400);

/// Namespace `p` with a WireGuard app that has imported an invitation.
struct Phone {
    interface: String,
    namespace: Namespace,
    _app: Daemon,
}

impl Phone {
    fn new(world: &World) -> Self {
        let namespace = world.add_client("p", 12);
        let file = world.place("h").join("phone.conf");
        let name = file.to_str().unwrap();
        good(world.hawser("h", &["hub", "invite", "phone", "--wireguard", "--out", name]));
        let text = std::fs::read_to_string(&file).unwrap();
        // Socket names of the program are the same in all namespaces.
        let interface = format!("wg{}", std::process::id());
        let mut app = world.inside("p", "wireguard-go");
        app.args(["-f", &interface])
            .stdin(Stdio::null())
            .stdout(Stdio::null());
        let app = Daemon(app.stderr(Stdio::null()).spawn().unwrap());
        let phone = Self {
            interface,
            namespace,
            _app: app,
        };
        let is_for_apps = |line: &&str| line.starts_with("Address") || line.starts_with("DNS");
        let address = text
            .lines()
            .find_map(|line| line.strip_prefix("Address = "))
            .unwrap();
        let v4 = address.split(',').next().unwrap();
        let rest: Vec<_> = text.lines().filter(|line| !is_for_apps(line)).collect();
        let device = world.place("h").join("device.conf");
        std::fs::write(&device, rest.join("\n")).unwrap();
        let (interface, device) = (&phone.interface, device.to_str().unwrap());
        world.wait("an interface", |world| {
            let set = world
                .inside("p", "wg")
                .args(["setconf", interface, device])
                .output();
            set.unwrap().status.success()
        });
        let name = world.namespace("p");
        for step in [
            format!("addr add {v4} dev {interface}"),
            format!("link set {interface} mtu 1420 up"),
            "route add 198.51.100.1/32 via 10.0.12.1".to_owned(),
            format!("route replace default dev {interface}"),
        ] {
            world.ip(&name, &step);
        }
        phone
    }

    fn reaches(&self, address: &str) -> bool {
        let to = SocketAddr::new(address.parse().unwrap(), PORT);
        let connected = self.namespace.run(|| TcpStream::connect_timeout(&to, TIMEOUT));
        connected.is_ok()
    }
}

impl Drop for Phone {
    fn drop(&mut self) {
        // The program has no time to remove its socket.
        let _ = std::fs::remove_file(format!("/var/run/wireguard/{}.sock", self.interface));
    }
}

/// Entry of the phone in `hawser hub list`; null without one, or while the hub starts.
fn listed(world: &World) -> Value {
    let output = world.hawser("h", &["hub", "list", "--json"]).output().unwrap();
    let list: Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
    let mut clients = list["clients"].as_array().into_iter().flatten();
    let phone = clients.find(|client| client["name"] == "phone");
    phone.cloned().unwrap_or_default()
}

const SERVER: &str = "203.0.113.2";

#[test]
fn a_phone_uses_the_hub_as_other_clients_do_until_it_is_revoked() {
    if !hawser_testing::require_program(&["wireguard-go"]) {
        return;
    }
    let Some(world) = World::new("wg") else { return };
    let server = world.add_server();
    world.ip(&world.namespace("h"), "addr add 10.50.0.1/24 dev lan");
    world.ip(&world.namespace("s"), "addr add 10.50.0.2/24 dev lan");
    world.init();
    let config = world.place("h").join("hub.toml");
    let refused = world
        .hawser("h", &["hub", "invite", "phone", "--wireguard"])
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(
        !refused.status.success() && said.contains("[wireguard]"),
        "{said}"
    );
    let text = std::fs::read_to_string(&config).unwrap();
    let text = format!("{text}\n[wireguard]\nlisten = \"0.0.0.0:51820\"\n[limits]\nwhen_used = \"stop\"\n");
    std::fs::write(&config, text).unwrap();
    let mut hub = world.start("h", &["hub", "run"]);
    world.wait("a hub", |world| world.status("h")["state"] == "up");
    let phone = Phone::new(&world);
    world.wait("through", |world| world.ping_from("p", SERVER));

    // The same rules as for clients with Hawser.
    let listening = [&world.open("h"), &server];
    let _listening = listening.map(|namespace| namespace.run(|| TcpListener::bind(("::", PORT))).unwrap());
    assert!(phone.reaches(SERVER), "a public address");
    assert!(world.ping_from("p", "100.96.0.1"), "the hub answers a ping");
    for private in ["100.96.0.1", "203.0.113.1", "10.50.0.2", "10.0.10.2"] {
        assert!(!phone.reaches(private), "{private}");
    }
    let status = listed(&world);
    assert_eq!(status["connected"], true, "{status}");
    assert!(status["wireguard"]["last_handshake_s"].is_u64(), "{status}");
    assert!(
        status["wireguard"]["received_bytes"].as_u64() > Some(0),
        "{status}"
    );
    let counters = world.status("h")["counters"].clone();
    assert!(counters["wireguard_filtered"].as_u64() > Some(0), "{counters}");

    // The next process greets the phone, which sends nothing by itself.
    hub.signal("-TERM");
    let _hub = world.start("h", &["hub", "run"]);
    world.wait("connected again", |world| listed(world)["connected"] == true);
    assert!(world.ping_from("p", SERVER), "after a restart of the hub");

    // A quota counts its bytes, and stops it.
    let limit = |with: &[&str]| good(world.hawser("h", &[&["hub", "limit", "phone"], with].concat()));
    limit(&["--quota", "1kB"]);
    world.wait("stopped", |world| {
        world.ping_from("p", SERVER);
        listed(world)["limits"]["state"] == "stopped"
    });
    world.wait("silent", |world| !world.ping_from("p", SERVER));
    limit(&["--no-quota"]);
    world.wait("going on", |world| world.ping_from("p", SERVER));

    // Its key expires, and is renewed.
    limit(&["--expires", "2s"]);
    world.wait("expired", |world| listed(world)["state"] == "key expired");
    world.wait("silent", |world| !world.ping_from("p", SERVER));
    assert_eq!(listed(&world)["connected"], false);
    limit(&["--no-expiry"]);
    world.wait("back", |world| world.ping_from("p", SERVER));
    assert!(listed(&world)["key_expires_unix_s"].is_null());

    good(world.hawser("h", &["hub", "revoke", "phone"]));
    assert!(!world.ping_from("p", SERVER), "revoked");
    assert_eq!(listed(&world), Value::Null);
    let tables = world.inside("p", "wg").args(["show", &phone.interface]).output();
    assert!(tables.unwrap().status.success(), "the app runs on");
    assert!(!world.ping_from("p", SERVER), "revoked for ever");
}
