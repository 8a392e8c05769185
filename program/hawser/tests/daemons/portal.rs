//! A captive portal on one of a client's two networks, as seen by its user: with the kill switch
//! closed, and a hub that is reachable over the other network.

use std::io::{Read, Write};
use std::net::{IpAddr, TcpListener};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

use data_encoding::BASE64;
use hawser_testing::good;
use rustls::pki_types::PrivatePkcs8KeyDer;
use rustls::{ServerConfig, ServerConnection, StreamOwned};

use crate::dhcp::serve_on;
use crate::world::{World, active, is_up};

/// Address of the page for the detection of portals, on the hub's machine.
const CHECKED: &str = "203.0.113.80";
const LOGIN: &str = "http://10.0.11.1:8081/login";

/// Starts a server that gives every client the same answer and records the clients' addresses.
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

/// Starts the captive portal API of a network. Returns its variable answer, the count of answers,
/// and the file of its certificate.
fn serve_api(world: &World, says: &str) -> (Arc<Mutex<String>>, Arc<AtomicU32>, std::path::PathBuf) {
    let made = rcgen::generate_simple_self_signed(["10.0.11.1".to_owned()]).unwrap();
    let certificate = made.cert.der().clone();
    let file = world.place("api.pem");
    let pem = BASE64.encode(&certificate);
    let pem = format!("-----BEGIN CERTIFICATE-----\n{pem}\n-----END CERTIFICATE-----\n");
    std::fs::write(&file, pem).unwrap();
    let key = PrivatePkcs8KeyDer::from(made.signing_key.serialize_der());
    let config = ServerConfig::builder().with_no_client_auth();
    let config = Arc::new(config.with_single_cert(vec![certificate], key.into()).unwrap());
    let listener = world
        .open("h")
        .run(|| TcpListener::bind("10.0.11.1:8443"))
        .unwrap();
    let said = Arc::new(Mutex::new(says.to_owned()));
    let says = Arc::clone(&said);
    let answers = Arc::new(AtomicU32::new(0));
    let count = Arc::clone(&answers);
    std::thread::spawn(move || {
        while let Ok((stream, _)) = listener.accept() {
            let tls = ServerConnection::new(Arc::clone(&config)).unwrap();
            let mut stream = StreamOwned::new(tls, stream);
            let mut request = [0; 1000];
            let length = stream.read(&mut request).unwrap_or(0);
            let request = String::from_utf8_lossy(&request[..length]).into_owned();
            let is_asked = request.starts_with("GET /captive/api HTTP/1")
                && request.contains("\r\nAccept: application/captive+json\r\n");
            if is_asked {
                let _ = write!(stream, "HTTP/1.1 200 OK\r\n\r\n{}", says.lock().unwrap());
                stream.conn.send_close_notify();
                let _ = stream.flush();
                count.fetch_add(1, Ordering::Relaxed);
            }
        }
    });
    (said, answers, file)
}

/// Drops all packets over `lte` except requests for pages.
fn shut(world: &World) {
    let mut nft = world.inside("h", "nft");
    nft.arg(
        "add table inet portal; \
         add chain inet portal shut { type filter hook prerouting priority -300; }; \
         add rule inet portal shut iifname lte udp dport != 67 drop; \
         add rule inet portal shut iifname lte tcp dport 443 drop",
    );
    good(nft);
}

/// Redirects requests for pages over `lte` to the portal.
fn capture(world: &World) {
    let mut nft = world.inside("h", "nft");
    nft.arg(
        "add chain inet portal catch { type nat hook prerouting priority dstnat; }; \
         add rule inet portal catch iifname lte tcp dport 80 redirect to :8080",
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
    if !hawser_testing::require_root_of_machine("a command past the tunnel (eBPF)") {
        return;
    }
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
    shut(&world);
    capture(&world);
    let config =
        format!("kill_switch = true\n[direct]\nportal_check = \"http://{CHECKED}/check all is well\"\n");
    world.configure("c", config);
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
    // A network with a working path has no portal, so no check was made there.
    assert!(checked.lock().unwrap().is_empty());
    let over_lte: IpAddr = "10.0.11.2".parse().unwrap();
    assert!(redirect.lock().unwrap().iter().all(|from| *from == over_lte));

    let mut login = world.hawser("c", &["login"]);
    login.args(["--", "curl", "-s", "-m", "5"]);
    let shown = good(login);
    let shown = String::from_utf8_lossy(&shown.stdout).into_owned();
    assert!(shown.contains("room number, please"), "{shown}");
    assert_eq!(*page.lock().unwrap(), [over_lte]);
    // Processes that the program leaves are ended with it, because their sockets would pass the
    // kill switch permanently.
    let mut login = world.hawser("c", &["login"]);
    login.args(["--", "sh", "-c", "sleep 300 > /dev/null 2>&1 & echo $!"]);
    let left = good(login);
    let left = String::from_utf8_lossy(&left.stdout).trim().to_owned();
    let left: u32 = left.parse().expect("the number of the process");
    // A zombie process no longer has a command line.
    let words = std::fs::read(format!("/proc/{left}/cmdline")).unwrap_or_default();
    assert!(words.is_empty(), "{left} has outlived the login");
    // Other programs cannot bypass the switch.
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

#[test]
fn what_a_network_says_of_its_portal_counts_before_the_page() {
    if !hawser_testing::require_dnsmasq() || !hawser_testing::require_program(&["udhcpc"]) {
        return;
    }
    let Some(world) = World::new("api") else { return };
    world.ip(&world.namespace("h"), &format!("addr add {CHECKED}/32 dev lo"));
    world.ip(&world.namespace("c"), "addr flush dev lte");
    world.init();
    let _hub = world.start("h", &["hub", "run"]);
    serve(
        &world,
        8080,
        format!("HTTP/1.1 302 Found\r\nLocation: {LOGIN}\r\n\r\n"),
    );
    let checked = serve(&world, 80, "HTTP/1.0 200 OK\r\n\r\nall is well\n".to_owned());
    std::fs::create_dir_all(world.place("c")).unwrap();
    let url = "https://10.0.11.1/login";
    let (said, answers, certificate) = serve_api(
        &world,
        &format!(r#"{{"captive":true,"user-portal-url":"{url}"}}"#),
    );
    let option = "--dhcp-option=114,https://10.0.11.1:8443/captive/api";
    let _dhcp = serve_on(&world, &[("lte", 11)], &[option]);
    shut(&world);
    let config = format!(
        "[networks.lte]\ndhcp = \"auto\"\n[direct]\nportal_check = \"http://{CHECKED}/check all is well\"\n"
    );
    world.configure("c", config);
    let invitation = world.invite();
    let mut up = world.hawser("c", &["up", &invitation, "--foreground"]);
    up.env("DBUS_SYSTEM_BUS_ADDRESS", "unix:path=/nonexistent");
    up.env("SSL_CERT_FILE", &certificate);
    let _client = world.run_daemon("c", up);

    // By the page there is no portal.
    world.wait("a portal", |world| network(world, "lte")["state"] == "portal");
    assert_eq!(network(&world, "lte")["portal"], url);
    // A busy machine may request the page once because the API does not answer in time.
    world.wait("the page is not requested when the API answers", |world| {
        let before = answers.load(Ordering::Relaxed);
        checked.lock().unwrap().clear();
        world.wait("an answer", |_| answers.load(Ordering::Relaxed) > before);
        checked.lock().unwrap().is_empty()
    });

    // The page now leads to a login. It would be a portal by the page, and is none by the API.
    capture(&world);
    *said.lock().unwrap() = r#"{"captive":false}"#.to_owned();
    world.wait("no portal", |world| network(world, "lte")["state"] != "portal");
    assert!(network(&world, "lte")["portal"].is_null());
    assert!(!active(&world).contains(&"lte".to_owned()));
}
