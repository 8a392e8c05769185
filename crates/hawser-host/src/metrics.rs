//! Figures for Prometheus, in its text format.
//!
//! The figures are those of `status`, asked over the control socket like anybody does, so there is
//! one source of truth.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::net::SocketAddr;
use std::path::PathBuf;

use anyhow::Context;
use serde_json::Value;
use tokio::net::TcpStream;

use crate::control_socket;
use crate::http::{self, Answer, Asked};

/// Serves the figures of the daemon behind `socket` at `address`, until the runtime ends.
///
/// # Errors
/// The address is not to be had.
pub async fn serve(address: SocketAddr, socket: PathBuf) -> anyhow::Result<()> {
    let listening = http::listen(address, move |asked, stream| {
        answer(asked, stream, socket.clone())
    })
    .await;
    listening.map(drop).context("metrics")
}

async fn answer(asked: Asked, mut stream: TcpStream, socket: PathBuf) -> std::io::Result<()> {
    let answer = if asked.path == "/metrics" && !asked.is_change {
        match control_socket::status(&socket).await {
            Ok(status) => Answer {
                status: "200 OK",
                kind: "text/plain; version=0.0.4",
                fields: "",
                body: render(&status).into_bytes(),
            },
            Err(_) => Answer::line("503 Service Unavailable", "the daemon does not answer"),
        }
    } else {
        Answer::line("404 Not Found", "GET /metrics is all there is")
    };
    answer.send(&mut stream).await
}

/// The text format of a status (Prometheus exposition format 0.0.4).
#[must_use]
pub fn render(status: &Value) -> String {
    let mut families = Families::default();
    let is_up = ["up", "draining"].contains(&text(&status["state"]));
    let up = f64::from(u8::from(is_up));
    families.add("hawser_up", "gauge", "Whether traffic can flow.", &[], up);
    for session in array(&status["sessions"]) {
        let client = text(&session["client"]);
        for path in array(&session["paths"]) {
            let labels = [
                ("client", client),
                ("network", text(&path["name"])),
                ("path", &number(&path["path"])),
            ];
            families.add_all(&PATH_FIGURES, path, &labels);
            let active = f64::from(u8::from(path["state"] == "active"));
            families.add(
                "hawser_path_active",
                "gauge",
                "Whether the path carries packets.",
                &labels,
                active,
            );
        }
    }
    for network in array(&status["networks"]) {
        families.add_all(&NETWORK_FIGURES, network, &[("network", text(&network["name"]))]);
    }
    families.add_all(&STORE_FIGURES, &status["store"], &[]);
    for hub in array(&status["store"]["hubs"]) {
        let endpoint = text(&hub["endpoints"][0]);
        families.add_all(&HUB_FIGURES, hub, &[("hub", endpoint)]);
    }
    if let Some(counters) = status["counters"].as_object() {
        for (reason, count) in counters {
            let labels = [("reason", reason.as_str())];
            let count = count.as_f64().unwrap_or(0.0);
            families.add(
                "hawser_events_total",
                "counter",
                "Packets dropped and connections refused.",
                &labels,
                count,
            );
        }
    }
    for client in array(&status["clients"]) {
        let labels = [("client", text(&client["name"]))];
        families.add_all(&CLIENT_FIGURES, &client["limits"], &labels);
    }
    let connected = array(&status["clients"])
        .iter()
        .filter(|client| client["connected"] == true)
        .count();
    if !status["clients"].is_null() {
        families.add(
            "hawser_clients_connected",
            "gauge",
            "Clients with a control connection.",
            &[],
            connected as f64,
        );
    }
    families.text()
}

#[derive(Default)]
struct Families(BTreeMap<&'static str, (&'static str, &'static str, String)>);

impl Families {
    fn add(
        &mut self,
        name: &'static str,
        kind: &'static str,
        help: &'static str,
        labels: &[(&str, &str)],
        value: f64,
    ) {
        let (_, _, lines) = self.0.entry(name).or_insert_with(|| (kind, help, String::new()));
        lines.push_str(name);
        let labels: Vec<_> = labels
            .iter()
            .filter(|(_, value)| !value.is_empty())
            .map(|(key, value)| format!("{key}=\"{}\"", escape(value)))
            .collect();
        if !labels.is_empty() {
            let _ = write!(lines, "{{{}}}", labels.join(","));
        }
        let _ = writeln!(lines, " {value}");
    }

    /// The figures that `of` has.
    fn add_all(&mut self, figures: &[Figure], of: &Value, labels: &[(&str, &str)]) {
        for (name, kind, field, scale, help) in figures {
            if let Some(value) = of[field].as_f64() {
                self.add(name, kind, help, labels, value * scale);
            }
        }
    }

    fn text(self) -> String {
        let mut out = String::new();
        for (name, (kind, help, lines)) in self.0 {
            let _ = write!(out, "# HELP {name} {help}\n# TYPE {name} {kind}\n{lines}");
        }
        out
    }
}

fn escape(label: &str) -> String {
    label
        .replace('\\', "\\\\")
        .replace('"', "\\\"")
        .replace('\n', "\\n")
}

fn array(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or("")
}

fn number(value: &Value) -> String {
    value.as_u64().map(|n| n.to_string()).unwrap_or_default()
}

/// Name, type, field in `status`, factor to Prometheus' base units, help.
type Figure = (&'static str, &'static str, &'static str, f64, &'static str);

/// Of a network, as direct mode and sensors see it.
const NETWORK_FIGURES: [Figure; 5] = [
    (
        "hawser_network_rtt_seconds",
        "gauge",
        "rtt_ms",
        1e-3,
        "Round trip to what answers on the network.",
    ),
    (
        "hawser_network_receive_bits_per_second",
        "gauge",
        "receive_bps",
        1.0,
        "What the network receives now.",
    ),
    (
        "hawser_network_send_bits_per_second",
        "gauge",
        "send_bps",
        1.0,
        "What the network sends now.",
    ),
    (
        "hawser_network_flows",
        "gauge",
        "flows",
        1.0,
        "Connections on the network.",
    ),
    (
        "hawser_network_share_ratio",
        "gauge",
        "share_v4",
        1.0,
        "Share of new IPv4 connections.",
    ),
];

/// Of the database of a fleet.
const STORE_FIGURES: [Figure; 1] = [(
    "hawser_store_age_seconds",
    "gauge",
    "age_s",
    1.0,
    "Since the store of clients was read last.",
)];

/// Of each hub of a fleet.
const HUB_FIGURES: [Figure; 1] = [(
    "hawser_hub_silent_seconds",
    "gauge",
    "seen_s",
    1.0,
    "Since the hub said that it is there.",
)];

/// Of a client of a hub that is held to something.
const CLIENT_FIGURES: [Figure; 3] = [
    (
        "hawser_client_limit_bits_per_second",
        "gauge",
        "rate_bps",
        1.0,
        "What the client is held to in each direction.",
    ),
    (
        "hawser_client_quota_bytes",
        "gauge",
        "quota_bytes",
        1.0,
        "What the client may carry in a month.",
    ),
    (
        "hawser_client_quota_used_bytes",
        "gauge",
        "used_bytes",
        1.0,
        "What it has carried this month, by all hubs.",
    ),
];

/// Of a path.
const PATH_FIGURES: [Figure; 6] = [
    (
        "hawser_path_sent_bytes_total",
        "counter",
        "sent_bytes",
        1.0,
        "UDP payload sent.",
    ),
    (
        "hawser_path_received_bytes_total",
        "counter",
        "received_bytes",
        1.0,
        "UDP payload received.",
    ),
    (
        "hawser_path_rtt_seconds",
        "gauge",
        "rtt_ms",
        1e-3,
        "Smoothed round trip.",
    ),
    (
        "hawser_path_loss_ratio",
        "gauge",
        "loss",
        1.0,
        "Share of packets lost.",
    ),
    (
        "hawser_path_rate_bits_per_second",
        "gauge",
        "rate_bps",
        1.0,
        "Estimated delivery rate.",
    ),
    (
        "hawser_path_pmtu_bytes",
        "gauge",
        "pmtu",
        1.0,
        "Largest outer packet known to pass.",
    ),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn renders_families_with_escaped_labels() {
        let status = serde_json::json!({
            "state": "up",
            "sessions": [{ "paths": [
                { "path": 0, "name": "a\"b", "state": "active", "rtt_ms": 20.0, "sent_bytes": 7 },
                { "path": 1, "name": "c", "state": "dead", "rtt_ms": 1.0, "sent_bytes": 8 },
            ]}],
            "networks": [{ "name": "lte", "rtt_ms": 40.0, "flows": 3, "state": "used" }],
            "store": { "age_s": 0.2, "hubs": [{ "endpoints": ["a:1"], "seen_s": 4 }] },
            "counters": { "replayed": 3 },
            "clients": [
                { "name": "alice", "connected": true, "limits": { "state": "unlimited" } },
                { "name": "bob", "connected": false, "limits": {
                    "state": "capped", "rate_bps": 8_000_000, "quota_bytes": 1_000, "used_bytes": 600 } },
            ],
        });
        let text = render(&status);
        assert!(text.contains("hawser_up 1\n"), "{text}");
        assert!(
            text.contains("hawser_path_rtt_seconds{network=\"a\\\"b\",path=\"0\"} 0.02\n"),
            "{text}"
        );
        assert!(
            text.contains("hawser_path_active{network=\"c\",path=\"1\"} 0\n"),
            "{text}"
        );
        assert!(
            text.contains("hawser_events_total{reason=\"replayed\"} 3\n"),
            "{text}"
        );
        for line in [
            "hawser_network_rtt_seconds{network=\"lte\"} 0.04\n",
            "hawser_network_flows{network=\"lte\"} 3\n",
            "hawser_store_age_seconds 0.2\n",
            "hawser_hub_silent_seconds{hub=\"a:1\"} 4\n",
            "hawser_clients_connected 1\n",
            "hawser_client_limit_bits_per_second{client=\"bob\"} 8000000\n",
            "hawser_client_quota_used_bytes{client=\"bob\"} 600\n",
        ] {
            assert!(text.contains(line), "{text}");
        }
        assert!(
            !text.contains("alice"),
            "who is held to nothing has no figures: {text}"
        );
        assert_eq!(
            text.matches("# TYPE hawser_path_sent_bytes_total counter")
                .count(),
            1
        );
    }
}
