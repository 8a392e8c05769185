//! The page with which devices of a LAN administer their gateway: access to it, and changes through
//! it.

use std::process::Command;

use hawser_linux::netns::Namespace;
use serde_json::{Value, json};

use crate::mixed::add_machine_behind;
use crate::world::{Daemon, World, good, is_up};

const CONFIG: &str =
    "# The van.\nforward = [\"home\"] # everybody\ndashboard = { listen = \"lan\", password = true }\n";
const GATEWAY: &str = "https://192.168.7.1";
const PHONE: &str = "02:00:00:00:07:02";

/// Gateway with the page, a server behind its hub, and a device of its LAN.
struct Van {
    world: World,
    phone: Namespace,
    client: Daemon,
    _hub: Daemon,
}

/// Answer: status, cookie, body.
struct Answer {
    status: String,
    cookie: Option<String>,
    body: String,
}

impl Answer {
    fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {}", self.body))
    }
}

/// Runs `curl` with these arguments. Returns `None` if no server answers.
fn curl(mut command: Command, words: &[&str]) -> Option<Answer> {
    command
        .args(["-sik", "--max-time", "5", "--connect-timeout", "1"])
        .args(words);
    let output = command.output().unwrap();
    if !output.status.success() {
        return None;
    }
    let text = String::from_utf8(output.stdout).unwrap();
    let (head, body) = text.split_once("\r\n\r\n").unwrap();
    let cookie = head.lines().find_map(|line| line.strip_prefix("set-cookie: "));
    Some(Answer {
        status: head.split(' ').nth(1).unwrap_or_default().to_owned(),
        cookie: cookie.map(|cookie| cookie.split(';').next().unwrap().to_owned()),
        body: body.to_owned(),
    })
}

impl Van {
    fn new(name: &str) -> Option<Self> {
        if !hawser_testing::require(Command::new("curl").arg("-V").output().is_ok(), "no curl") {
            return None;
        }
        let world = World::new(name)?;
        world.add_server();
        let phone = add_machine_behind(&world);
        let mut ip = phone.command("ip");
        ip.args(["link", "set", "home", "address", PHONE]);
        good(ip);
        world.init();
        world.configure("c", CONFIG);
        let hub = world.start("h", &["hub", "run"]);
        let client = world.start("c", &["up", &world.invite(), "--foreground"]);
        world.wait("up", is_up);
        let van = Self {
            world,
            phone,
            client,
            _hub: hub,
        };
        van.world.wait("a page", |_| {
            van.get("/api/session", &[])
                .is_some_and(|answer| answer.status == "200")
        });
        Some(van)
    }

    fn get(&self, path: &str, words: &[&str]) -> Option<Answer> {
        let url = format!("{GATEWAY}{path}");
        curl(self.phone.command("curl"), &[&[url.as_str()], words].concat())
    }

    fn post(&self, path: &str, body: &Value, fields: &[&str]) -> Answer {
        let url = format!("{GATEWAY}{path}");
        let body = body.to_string();
        let mut words = vec![url.as_str(), "-d", &body, "-H", "Content-Type: application/json"];
        for field in fields {
            words.extend(["-H", field]);
        }
        curl(self.phone.command("curl"), &words).unwrap()
    }

    /// Returns the first line that a subcommand of `hawser dashboard` prints.
    fn first_line(&self, command: &str) -> String {
        let output = good(self.world.hawser("c", &["dashboard", command]));
        let text = String::from_utf8(output.stdout).unwrap();
        text.lines().next().unwrap().to_owned()
    }

    fn config(&self) -> String {
        std::fs::read_to_string(self.world.place("c").join("client.toml")).unwrap()
    }

    fn reaches_server(&self) -> bool {
        let mut ping = self.phone.command("ping");
        ping.args(["-q", "-c", "1", "-W", "1", "203.0.113.2"]);
        ping.output().unwrap().status.success()
    }
}

/// Returns the request fields of a signed-in page of the gateway.
fn signed_in(answer: &Answer) -> [String; 3] {
    let token = answer.json()["token"].as_str().unwrap().to_owned();
    [
        format!("Origin: {GATEWAY}"),
        format!("Cookie: {}", answer.cookie.as_ref().expect("a cookie")),
        format!("X-Hawser-Token: {token}"),
    ]
}

#[test]
fn a_phone_of_the_lan_administers_its_gateway_and_nobody_else_does() {
    let Some(mut van) = Van::new("admin") else {
        return;
    };
    only_the_lan_reaches_it(&van);
    let page = van.get("/", &[]).unwrap();
    assert!(page.body.contains("<title>Hawser</title>"), "{}", page.body);
    let session = van.get("/api/session", &[]).unwrap().json();
    assert_eq!(
        (&session["signed_in"], &session["is_new"]),
        (&json!(false), &json!(true))
    );
    let refused = [
        van.get("/api/state", &[]),
        van.get("/api/state", &["-H", "Cookie: __Host-hawser=AAAA"]),
        van.get("/api/session", &["-H", "Host: example.org"]),
        van.get("/api/session", &["-H", "Origin: https://example.org"]),
    ];
    let refused = refused.map(|answer| answer.unwrap().status);
    assert_eq!(refused, ["401", "401", "421", "403"]);

    let code = van.first_line("code");
    let origin = format!("Origin: {GATEWAY}");
    let set_up = |code: &str, fields: &[&str]| {
        let body = json!({ "code": code, "password": "correct horse" });
        van.post("/api/setup", &body, fields)
    };
    assert_eq!(set_up(&code, &[]).status, "403", "without an origin");
    assert_eq!(set_up("AAAA-AAAA", &[&origin]).status, "403", "another code");
    let entered = set_up(&code, &[&origin]);
    assert_eq!(entered.status, "200", "{}", entered.body);
    let fields = signed_in(&entered);
    let fields = fields.each_ref().map(String::as_str);
    let wrong = van.post("/api/sign-in", &json!({ "password": "wrong horse" }), &[&origin]);
    assert_eq!(wrong.status, "403");

    changes_apply(&van, fields);
    devices_are_counted_and_paused(&van, fields);

    let other = van.first_line("reset-password");
    assert_ne!(other, code);
    assert_eq!(van.get("/api/state", &["-H", fields[1]]).unwrap().status, "401");
    van.client.signal("-TERM");
    van.world.wait("no page", |_| van.get("/", &[]).is_none());
}

/// Connects from the uplinks to all addresses of the gateway.
fn only_the_lan_reaches_it(van: &Van) {
    let hub = van.world.namespace("h");
    van.world
        .ip(&hub, "route add 192.168.7.0/24 via 10.0.10.2 dev fiber");
    for address in ["10.0.10.2", "10.0.11.2", "192.168.7.1", "100.96.0.2"] {
        for scheme in ["https", "http"] {
            let url = format!("{scheme}://{address}/");
            let answer = curl(van.world.inside("h", "curl"), &[&url]);
            assert!(answer.is_none(), "{url} answers a network that leads out");
        }
    }
    let led = curl(van.phone.command("curl"), &["http://192.168.7.1/"]).unwrap();
    assert_eq!(led.status, "302");
}

fn changes_apply(van: &Van, fields: [&str; 3]) {
    let [origin, cookie, _] = fields;
    let cap = json!({ "edit": "network", "network": "lte", "settings": { "cap_up": "2mbit" } });
    assert_eq!(
        van.post("/api/edit", &cap, &[origin, cookie]).status,
        "403",
        "without a token"
    );
    assert!(!van.config().contains("2mbit"));
    let fast = json!({ "edit": "network", "network": "lte", "settings": { "cap_up": "fast" } });
    let refused = van.post("/api/edit", &fast, &fields);
    assert_eq!(refused.status, "409");
    assert!(refused.body.contains("a rate with its unit"), "{}", refused.body);
    assert_eq!(van.config(), CONFIG);
    let applied = van.post("/api/edit", &cap, &fields);
    assert_eq!(applied.status, "200", "{}", applied.body);
    let wanted = format!("{CONFIG}\n[networks.lte]\ncap_up = \"2mbit\"\n");
    assert_eq!(van.config(), wanted);
    let networks = van.world.status("c")["networks"].clone();
    let lte = networks
        .as_array()
        .unwrap()
        .iter()
        .find(|network| network["name"] == "lte");
    assert_eq!(lte.unwrap()["cap_bps"]["up"], 2_000_000);
    let state = van.get("/api/state", &["-H", cookie]).unwrap().json();
    assert_eq!(state["state"], "up");
    let report = van.get("/api/report", &["-H", cookie]).unwrap();
    assert!(report.body.contains("2mbit"), "{}", report.body);
}

fn devices_are_counted_and_paused(van: &Van, fields: [&str; 3]) {
    let [_, cookie, _] = fields;
    van.world.wait("through", |_| van.reaches_server());
    let set = |settings: Value| {
        let edit = json!({ "edit": "device", "address": PHONE, "settings": settings });
        let answer = van.post("/api/edit", &edit, &fields);
        assert_eq!(answer.status, "200", "{}", answer.body);
    };
    set(json!({ "paused": "true", "name": "Ann's phone" }));
    assert!(!van.reaches_server(), "it is paused");
    set(json!({ "paused": "false", "limit_down": "5mbit" }));
    van.world.wait("through again", |_| van.reaches_server());
    van.world.wait("counted", |_| {
        let devices = van.get("/api/devices", &["-H", cookie]).unwrap().json();
        let devices = devices["devices"].as_array().unwrap();
        let phone = devices.iter().find(|device| device["address"] == PHONE);
        phone.is_some_and(|phone| {
            let used = [&phone["month_sent"], &phone["month_received"]].map(|bytes| bytes.as_u64() > Some(0));
            used == [true; 2]
                && phone["name"] == "Ann's phone"
                && phone["addresses"] == json!(["192.168.7.2"])
        })
    });
    let events = van.get("/api/events", &["-H", cookie]).unwrap().json();
    let texts = events["events"].to_string();
    assert!(
        texts.contains("paused = true") && texts.contains("lte: cap_up = 2mbit"),
        "{texts}"
    );
}
