//! The page of a gateway in a browser, with sample data: at the sizes of a phone and of a desktop,
//! light and dark, without violations of accessibility rules, horizontal scrolling and errors.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::Command;

use serde_json::{Value, json};

use crate::browser::Browser;

/// Files of the page, below the crate of hosts.
const FILES: [(&str, &str, &str); 6] = [
    ("/", "administration/page/index.html", "text/html; charset=utf-8"),
    ("/style.css", "administration/page/style.css", "text/css"),
    ("/chart.js", "dashboard/chart.js", "text/javascript"),
    ("/views.js", "administration/page/views.js", "text/javascript"),
    ("/page.js", "administration/page/page.js", "text/javascript"),
    ("/icon.svg", "administration/page/icon.svg", "image/svg+xml"),
];
/// Content security policy as sent by the page's server.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; \
    connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

fn source(file: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .join("../../system/host/src")
        .join(file)
}

/// Returns the text of axe-core, which `scripts/needs test` downloads.
fn axe() -> Option<String> {
    let cache = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from);
    let cache = cache.or_else(|| Some(PathBuf::from(std::env::var_os("HOME")?).join(".cache")))?;
    std::fs::read_to_string(cache.join("hawser/axe/package/axe.min.js")).ok()
}

fn state() -> Value {
    let network = |name: &str, path: u64, use_: &str, ssid: Option<&str>| {
        json!({
            "name": name, "index": path + 1, "used": true, "path": path, "state": "active",
            "cap_bps": { "up": 5_000_000, "down": null }, "use": { "up": use_, "down": use_, "bulk": true },
            "wifi": ssid.map(|ssid| json!({ "ssid": ssid, "signal_dbm": -58 })),
            "usage": { "total_bytes": 61_200_000_000_u64, "quota_bytes": 75_000_000_000_u64, "from": "2026-11-15" },
        })
    };
    let path = |name: &str, path: u64, bps: u64| {
        json!({
            "name": name, "path": path, "state": "active", "send_bps": bps / 6, "receive_bps": bps,
            "rtt_ms": 38.2, "loss": 0.012,
        })
    };
    json!({
        "role": "client", "state": "up", "interface": "hawser0", "inner": ["100.96.0.2"], "uptime_s": 93_412,
        "networks": [
            network("starlink0", 0, "always", None),
            network("wwan0", 1, "overflow", None),
            network("wlan0", 2, "backup", Some("<b>Camping</b> with a very long name of its own")),
            { "name": "wlan1", "index": 9, "used": true, "path": null, "state": "portal", "portal": "http://10.0.0.1/login",
              "use": { "up": "always", "down": "always", "bulk": true }, "wifi": { "ssid": "Hotel" } },
        ],
        "sessions": [{ "paths": [
            path("starlink0", 0, 48_000_000), path("wwan0", 1, 19_000_000), path("wlan0", 2, 200_000),
        ] }],
        "hubs": [{ "name": "alice", "endpoints": ["hub.example.org:443"], "in_use": true, "round_trip_ms": 31.0 }],
        "notice": "wlan1: log in at http://10.0.0.1/login (sudo hawser login wlan1)",
    })
}

fn answer(path: &str) -> Option<Value> {
    let device = |name: Option<&str>, last: u8, paused: bool| {
        json!({
            "name": name, "address": format!("02:00:00:00:00:{last:02x}"), "addresses": [format!("192.168.50.{last}")],
            "receive_bps": 11_200_000, "send_bps": 900_000, "seen_s": 2, "month_sent": 1_000_000_000_u64,
            "month_received": 20_000_000_000_u64 * u64::from(last), "paused": paused,
            "limit_up_bps": null, "limit_down_bps": 25_000_000,
        })
    };
    let event = |kind: &str, text: &str, by: Option<&str>| json!({ "at": 1_795_900_000, "kind": kind, "text": text, "by": by });
    Some(match path {
        "/api/session" => {
            json!({ "signed_in": true, "token": "t", "is_new": false, "machine": "van", "version": "1.2.3" })
        }
        "/api/state" => state(),
        "/api/devices" => json!({ "month": "2026-11", "devices": [
            device(Some("Ann's phone"), 1, false), device(Some("<i>television</i>"), 2, true), device(None, 3, false),
        ] }),
        "/api/events" => json!({ "events": [
            event("bad", "wwan0 does not answer", None), event("change", "wwan0: cap_up = 5mbit", Some("Ann's phone")),
        ] }),
        "/api/settings" => json!({
            "networks": { "wwan0": { "quota": "75GB", "reset_day": 15 } }, "exclude": null,
            "rules": [{ "port": 22, "via": "direct" }, { "from": "192.168.50.1", "via": "direct", "network": "starlink0" }],
            "wifi": ["Camping"], "kill_switch": null, "without_hub": null,
        }),
        _ if path.starts_with("/api/history") => json!({ "until": 1_795_900_000, "step_s": 10, "networks": {
            "starlink0": (0..30).map(|step| json!([1_795_899_700 + 10 * step, 4e7, 6e6])).collect::<Vec<_>>(),
        } }),
        _ => return None,
    })
}

fn converse(mut stream: TcpStream) {
    let mut head = Vec::new();
    let mut more = [0; 4096];
    while !head.windows(4).any(|bytes| bytes == b"\r\n\r\n") {
        match stream.read(&mut more) {
            Ok(length @ 1..) => head.extend_from_slice(&more[..length]),
            Ok(0) | Err(_) => return,
        }
    }
    let head = String::from_utf8_lossy(&head).into_owned();
    let path = head.split(' ').nth(1).unwrap_or_default();
    let file = FILES.iter().find(|(name, _, _)| *name == path);
    let (status, kind, body) = match (file, answer(path)) {
        (Some((_, file, kind)), _) => ("200 OK", *kind, std::fs::read(source(file)).unwrap()),
        (None, Some(answer)) => ("200 OK", "application/json", answer.to_string().into_bytes()),
        (None, None) => ("404 Not Found", "text/plain", Vec::new()),
    };
    let length = body.len();
    let _ = write!(
        stream,
        "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {length}\r\nConnection: close\r\nContent-Security-Policy: {POLICY}\r\n\r\n"
    );
    let _ = stream.write_all(&body);
}

/// Serves the page and sample data until the test ends.
fn serve() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            std::thread::spawn(move || converse(stream));
        }
    });
    address
}

#[test]
fn the_page_is_accessible_and_fits_phones_and_desks() {
    let has_browser = Command::new("chromium").arg("--version").output().is_ok();
    if !hawser_testing::require(has_browser, "no chromium") {
        return;
    }
    let axe = axe();
    if !hawser_testing::require(axe.is_some(), "no axe-core (scripts/needs test fetches it)") {
        return;
    }
    let axe = axe.unwrap();
    let page = serve();
    let profile = tempfile::tempdir().unwrap();
    let mut browser = Browser::open(Command::new("sh"), &profile, &format!("http://{page}/"));
    // The check is an additional script, which the policy would block.
    browser.tell("Page.setBypassCSP", &json!({ "enabled": true }));
    let all: &[&str] = &["now", "networks", "devices", "wifi", "more"];
    // Each view is checked at the sizes of a phone and of a desktop, in light and dark.
    for (width, scheme, views) in [
        (360, "light", all),
        (1280, "dark", all),
        (360, "dark", &["now"]),
        (1280, "light", &["now"]),
    ] {
        let screen = json!({ "width": width, "height": 800, "deviceScaleFactor": 1, "mobile": width < 600 });
        browser.tell("Emulation.setDeviceMetricsOverride", &screen);
        let media = json!({ "features": [{ "name": "prefers-color-scheme", "value": scheme }] });
        browser.tell("Emulation.setEmulatedMedia", &media);
        for view in views {
            browser.tell("Page.navigate", &json!({ "url": "about:blank" }));
            browser.tell(
                "Page.navigate",
                &json!({ "url": format!("http://{page}/#{view}") }),
            );
            browser.wait(&format!(
                "document.readyState === 'complete' && document.getElementById('{view}')?.hidden === false"
            ));
            browser.wait("document.getElementById('state').textContent === '3 networks'");
            let overflow = browser.value("document.documentElement.scrollWidth - window.innerWidth");
            assert!(
                overflow.as_i64() <= Some(0),
                "{view} at {width} px scrolls sideways"
            );
            // Names from unknown devices are shown as text, never as markup.
            let markup = browser.value("document.querySelectorAll('h3 b, b b, b i').length");
            assert_eq!(markup, 0, "{view}");
            browser.value(&format!(
                "{axe}; window.found = undefined; axe.run().then((r) => {{ window.found = r; }}); 0"
            ));
            browser.wait("window.found !== undefined");
            let violations = browser.value(
                "JSON.stringify(window.found.violations.map((v) => [v.id, v.nodes.map((n) => n.html.slice(0, 200))]))",
            );
            assert_eq!(violations, "[]", "{view} at {width} px, {scheme}");
        }
    }
    assert_eq!(browser.complaints, [""; 0]);
    browser.tell(
        "Page.navigate",
        &json!({ "url": format!("http://{page}/#networks") }),
    );
    browser.wait("document.querySelector('button[aria-label=\"Settings of wwan0\"]') !== null");
    browser.value("document.querySelector('button[aria-label=\"Settings of wwan0\"]').click()");
    browser.wait("document.getElementById('network-dialog').open");
    let shown = browser
        .value("['quota', 'reset-day', 'cap-up'].map((id) => document.getElementById(id).value).join(' ')");
    assert_eq!(shown, "75 15 5");
    assert_eq!(
        browser.value("document.getElementById('use-overflow').checked"),
        true
    );
}
