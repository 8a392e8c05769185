//! The dashboard: access to it, its view in a browser, and changes through it.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Command, Stdio};

use serde_json::json;

use crate::browser::Browser;
use crate::world::{Daemon, World, good, is_up};

const AT: &str = "127.0.0.1:9468";

/// Sends a request with these fields to the dashboard in the client's namespace. Returns the
/// answer.
fn get(world: &World, path: &str, fields: &str) -> String {
    request(world, "GET", path, fields)
}

fn request(world: &World, method: &str, path: &str, fields: &str) -> String {
    let inside = world.open("c");
    let mut stream = inside.run(|| TcpStream::connect(AT)).unwrap();
    stream.set_read_timeout(Some(hawser_testing::GIVE_UP)).unwrap();
    write!(stream, "{method} {path} HTTP/1.1\r\n{fields}\r\n\r\n").unwrap();
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer);
    String::from_utf8_lossy(&answer).into_owned()
}

/// Creates a client with three networks, one with a name that a browser could interpret as markup,
/// and its dashboard. Returns the dashboard's address.
fn shown(name: &str, config: &str) -> Option<(World, String, Vec<Daemon>)> {
    let world = World::new(name)?;
    world.init();
    world.configure("c", config);
    let inside = world.namespace("c");
    world.ip(&inside, "link set lo up");
    world.ip(&inside, "link add <b>0 type veth peer name far0");
    world.ip(&inside, "addr add 192.168.9.2/24 dev <b>0");
    world.ip(&inside, "link set far0 up");
    world.ip(&inside, "link set <b>0 up");
    world.ip(&inside, "route add default via 192.168.9.1 metric 900");
    let hub = world.start("h", &["hub", "run"]);
    let client = world.start("c", &["up", &world.invite(), "--foreground"]);
    world.wait("up", is_up);
    world.wait("through", World::ping_hub);
    let mut dashboard = world.inside("c", env!("CARGO_BIN_EXE_hawser"));
    dashboard
        .args(["dashboard", "--run-dir"])
        .arg(world.run_dir("c"))
        .arg("--dir")
        .arg(world.place("c"))
        .stdout(Stdio::piped());
    let mut dashboard = Daemon(dashboard.spawn().unwrap());
    world.wait("served", |world| {
        world.open("c").run(|| TcpStream::connect(AT)).is_ok()
    });
    let mut line = String::new();
    let mut said = BufReader::new(dashboard.0.stdout.take().unwrap());
    said.read_line(&mut line).unwrap();
    let address = line.split(' ').next().unwrap().to_owned();
    Some((world, address, vec![hub, client, dashboard]))
}

#[test]
fn the_dashboard_is_for_this_machine_alone() {
    let Some((world, address, _daemons)) = shown("dash", "") else {
        return;
    };
    let page = get(&world, "/", "Host: localhost:9468");
    assert!(page.starts_with("HTTP/1.1 200 OK\r\n"), "{page}");
    assert!(
        page.contains("Content-Security-Policy: default-src 'none'"),
        "{page}"
    );
    let status = get(&world, "/status", "Host: localhost:9468");
    let body = status.split_once("\r\n\r\n").unwrap().1;
    let status: serde_json::Value = serde_json::from_str(body).unwrap();
    assert_eq!(
        (&status["role"], &status["state"]),
        (&"client".into(), &"up".into())
    );
    for strange in [
        "Host: example.org:9468",
        "Host: localhost:9468\r\nOrigin: http://example.org",
        "Accept: */*",
    ] {
        let refused = get(&world, "/status", strange);
        assert!(refused.starts_with("HTTP/1.1 403 "), "{strange}: {refused}");
    }
    changes_need_the_token(&world, &address);
    world.wait("something kept", |world| {
        let answer = get(world, "/history/3600", "Host: localhost:9468");
        let body = answer.split_once("\r\n\r\n").unwrap().1;
        let history: serde_json::Value = serde_json::from_str(body).unwrap();
        history["networks"]["fiber"].is_array()
    });
    let mut elsewhere = world.inside("c", env!("CARGO_BIN_EXE_hawser"));
    elsewhere
        .args(["dashboard", "--listen", "0.0.0.0:9469", "--run-dir"])
        .arg(world.run_dir("c"));
    let output = elsewhere.output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success() && said.contains("ssh -L"), "{said}");
}

/// Checks that only requests of this page with the token pause a network.
fn changes_need_the_token(world: &World, address: &str) {
    let token = address.split_once('#').unwrap().1;
    let networks = world.status("c")["networks"].clone();
    let lte = networks
        .as_array()
        .unwrap()
        .iter()
        .find(|network| network["name"] == "lte");
    let index = &lte.unwrap()["index"];
    let is_paused = || {
        let networks = world.status("c")["networks"].clone();
        let all = networks.as_array().unwrap();
        all.iter().find(|network| network["name"] == "lte").unwrap()["paused"] == true
    };
    let post =
        |path: &str, fields: &str| request(world, "POST", path, &format!("Host: localhost:9468\r\n{fields}"));
    let pause = format!("/pause/{index}");
    let with_token = format!("X-Hawser-Token: {token}");
    for refused in [
        post(&pause, "Accept: */*"),
        post(&pause, "X-Hawser-Token: 0123456789abcdef0123456789abcdef"),
        post(&pause, &format!("{with_token}\r\nOrigin: http://example.org")),
    ] {
        assert!(refused.starts_with("HTTP/1.1 403 "), "{refused}");
    }
    // Following a link changes nothing.
    let followed = get(world, &pause, &format!("Host: localhost:9468\r\n{with_token}"));
    assert!(followed.starts_with("HTTP/1.1 404 "), "{followed}");
    assert!(!is_paused());
    let unknown = post("/pause/999999", &with_token);
    assert!(
        unknown.starts_with("HTTP/1.1 409 ") && unknown.contains("no such network"),
        "{unknown}"
    );
    assert!(post(&pause, &with_token).starts_with("HTTP/1.1 200 OK"));
    assert!(is_paused());
    assert!(post(&format!("/resume/{index}"), &with_token).starts_with("HTTP/1.1 200 OK"));
    assert!(!is_paused());
    let cap = format!("/cap/{index}/2000000/0");
    assert!(post(&cap, "Accept: */*").starts_with("HTTP/1.1 403 "));
    assert!(post(&cap, &with_token).starts_with("HTTP/1.1 200 OK"));
    let networks = world.status("c")["networks"].clone();
    let all = networks.as_array().unwrap();
    let lte = all.iter().find(|network| network["name"] == "lte").unwrap();
    assert_eq!(lte["cap_bps"]["up"], 2_000_000);
    assert!(lte["cap_bps"]["down"].is_null());
    let backup = format!("/use/{index}/backup/overflow");
    assert!(post(&backup, "Accept: */*").starts_with("HTTP/1.1 403 "));
    assert!(post(&backup, &with_token).starts_with("HTTP/1.1 200 OK"));
    let networks = world.status("c")["networks"].clone();
    let mut all = networks.as_array().unwrap().iter();
    let lte = all.find(|network| network["name"] == "lte").unwrap();
    assert_eq!(
        lte["use"],
        serde_json::json!({ "up": "backup", "down": "overflow", "bulk": true })
    );
}

#[test]
fn a_browser_shows_networks_by_their_names() {
    let has_browser = Command::new("chromium").arg("--version").output().is_ok();
    if !hawser_testing::require(has_browser, "no chromium") {
        return;
    }
    let Some((world, address, _daemons)) = shown("dashb", "") else {
        return;
    };
    let profile = tempfile::tempdir().unwrap();
    let browser = |what: &str| {
        let mut browser = world.inside("c", "chromium");
        browser
            .args([
                "--headless=new",
                "--no-sandbox",
                "--disable-gpu",
                "--disable-dev-shm-usage",
            ])
            .args([
                "--hide-scrollbars",
                "--window-size=1100,900",
                "--virtual-time-budget=3000",
                what,
            ])
            .arg(format!("--user-data-dir={}", profile.path().display()))
            .arg(&address);
        String::from_utf8_lossy(&good(browser).stdout).into_owned()
    };
    let page = browser("--dump-dom");
    for network in ["fiber", "lte", "&lt;b&gt;0"] {
        let card = format!("</svg> {network} <span");
        assert!(page.contains(&card), "{network} is not in {page}");
        let legend = format!("</svg> {network}</li>");
        assert!(page.contains(&legend), "{network} has no colour in {page}");
    }
    the_chart_stacks_all_networks(&page);
    assert!(page.contains("receives "), "{page}");
    assert!(
        page.contains("aria-label=\"pause fiber\">pause</button>"),
        "{page}"
    );
    assert!(page.contains("aria-label=\"cap lte\">cap</button>"), "{page}");
    assert!(page.contains("aria-label=\"use lte\">use</button>"), "{page}");
    // The screenshot is for the pages of the manual.
    if let Ok(place) = std::env::var("HAWSER_SCREENSHOT") {
        browser(&format!("--screenshot={place}"));
    }
}

/// Checks that the chart has an area for each network and direction, a scale, a time axis and a
/// sentence above it.
fn the_chart_stacks_all_networks(page: &str) {
    let (_, chart) = page.split_once("<svg id=\"chart\"").expect("a chart");
    let (chart, _) = chart.split_once("</svg>").unwrap();
    let areas = chart.matches("class=\"area ").count();
    assert_eq!(areas, 2 * 3, "up and down of three networks: {chart}");
    for label in ["bit/s</text>", ">now</text>", "−4 min</text>", "received ↑"] {
        assert!(chart.contains(label), "{label}: {chart}");
    }
    let (_, sentence) = page.split_once("<p id=\"sentence\">").unwrap();
    let (sentence, _) = sentence.split_once('<').unwrap();
    // The third network has no connection to the hub.
    assert!(
        sentence.contains("&lt;b&gt;0 is") && sentence.contains("fiber"),
        "{sentence}"
    );
}

#[test]
fn a_person_changes_caps_schedulers_and_rules_in_a_browser() {
    let has_browser = Command::new("chromium").arg("--version").output().is_ok();
    if !hawser_testing::require(has_browser, "no chromium") {
        return;
    }
    let config = "[[rule]]\nport = 22\nvia = \"direct\"\n";
    let Some((world, address, _daemons)) = shown("dashp", config) else {
        return;
    };
    let profile = tempfile::tempdir().unwrap();
    let mut browser = Browser::open(world.inside("c", "sh"), &profile, &address);
    let phone = json!({ "width": 390, "height": 800, "deviceScaleFactor": 1, "mobile": true });
    browser.tell("Emulation.setDeviceMetricsOverride", &phone);

    browser.fill_in("cap lte", &[("cap-up", "2.5")]);
    world.wait("a cap", |world| {
        let networks = world.status("c")["networks"].clone();
        let mut networks = networks.as_array().unwrap().iter();
        networks.any(|network| network["name"] == "lte" && network["cap_bps"]["up"] == 2_500_000)
    });

    browser.fill_in(
        "change the scheduler of bulk flows",
        &[("scheduler-name", "weighted-fair")],
    );
    world.wait("another scheduler at both ends", |world| {
        let is_other = |side| world.status(side)["sessions"][0]["schedulers"]["bulk"] == "weighted-fair";
        is_other("c") && is_other("h")
    });
    browser.wait("document.getElementById('schedulers').innerText.includes('weighted-fair')");

    let rules = |world: &World| world.status("c")["direct"]["rules"].clone();
    let own = json!({ "rule": "port 22", "way": "outside the tunnel", "holds": true, "number": null });
    world.wait("the rule of the file", |world| rules(world) == json!([own]));
    let fields = [
        ("rule-protocol", "tcp"),
        ("rule-port", "8080"),
        ("rule-to", "2001:db8::/32"),
        ("rule-network", "lte"),
    ];
    browser.fill_in("add a rule", &fields);
    let added = json!({ "rule": "tcp, port 8080, to 2001:db8::/32", "way": "outside the tunnel over lte", "holds": true, "number": 1 });
    world.wait("a rule before it", |world| rules(world) == json!([added, own]));
    browser
        .wait("document.querySelector('#rules tbody tr').innerText.includes('outside the tunnel over lte')");
    browser.fill_in("add a rule", &[("rule-port", "ssh")]);
    browser.wait("document.getElementById('notice').innerText.includes('a port such as 443')");
    let remove = "document.querySelector('button[aria-label^=\"remove the rule for tcp\"]')";
    browser.value(&format!("{remove}.click()"));
    world.wait("the rule of the file alone", |world| rules(world) == json!([own]));

    let fits = "document.documentElement.scrollWidth <= 390";
    assert_eq!(browser.value(fits), true, "a phone shows all of it");
    let labelled =
        "[...document.querySelectorAll('input, select')].every((field) => field.labels.length > 0)";
    assert_eq!(browser.value(labelled), true);
    // A viewer without the token sees no controls.
    let (open, _) = address.split_once('#').unwrap();
    browser.tell("Page.navigate", &json!({ "url": open }));
    browser.wait(
        "document.getElementById('rules') && document.getElementById('rules').innerText.includes('port 22')",
    );
    let offered = browser.value("document.querySelectorAll('main button').length");
    assert_eq!(offered, 0);
}
