//! Text format of Prometheus, and the server that it queries.

use std::fmt::Write as _;
use std::net::SocketAddr;
use std::path::PathBuf;

use anyhow::Context;
use serde_json::Value;
use tokio::net::TcpStream;

use super::families::Kind;
use super::{Families, Sample};
use crate::control_socket;
use crate::http::{self, Answer, Asked};

/// Serves the metrics of the daemon behind `socket` at `address`, until the runtime ends.
pub(super) async fn serve(address: SocketAddr, socket: PathBuf) -> anyhow::Result<()> {
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
        Answer::line("404 Not Found", "only GET /metrics is supported")
    };
    answer.send(&mut stream).await
}

/// Renders a status in the text format (Prometheus exposition format 0.0.4).
#[must_use]
pub fn render(status: &Value) -> String {
    let mut out = String::new();
    for (name, family) in Families::of(status).0 {
        let kind = match family.kind {
            Kind::Gauge => "gauge",
            Kind::Counter => "counter",
        };
        let _ = write!(out, "# HELP {name} {}\n# TYPE {name} {kind}\n", family.help);
        for Sample { labels, value } in family.samples {
            let labels: Vec<_> = labels
                .iter()
                .map(|(key, value)| format!("{key}=\"{}\"", escape(value)))
                .collect();
            let labels = if labels.is_empty() {
                String::new()
            } else {
                format!("{{{}}}", labels.join(","))
            };
            let _ = writeln!(out, "{name}{labels} {value}");
        }
    }
    out
}

fn escape(label: &str) -> String {
    label
        .replace('\\', "\\\\")
        .replace('"', "\\\"")
        .replace('\n', "\\n")
}

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
            "thread_pairs": [{ "sessions": 1, "sent": 2, "received": 3 }, { "sessions": 4, "sent": 5, "received": 6 }],
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
            "hawser_pair_sessions{pair=\"1\"} 4\n",
            "hawser_pair_sent_datagrams_total{pair=\"0\"} 2\n",
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
