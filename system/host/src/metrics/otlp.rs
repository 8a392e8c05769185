//! Metrics for OTLP collectors, over HTTP in JSON (OpenTelemetry protocol 1.3, "OTLP/HTTP").
//!
//! Names are those of Prometheus, so that one dashboard serves both.

use std::path::PathBuf;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::ensure;
use hawser_config::OtlpConfig;
use hawser_linux::process::host_name;
use hyper::Request;
use hyper::body::Bytes;
use hyper::header::CONTENT_TYPE;
use serde_json::{Value, json};
use tokio::task::spawn_blocking;
use tokio::time::{MissedTickBehavior, interval, timeout};
use tokio_rustls::TlsConnector;

use super::families::Kind;
use super::{Families, Sample};
use crate::{authorities, control_socket, http_client};

/// Sends the metrics of the daemon behind `socket` periodically, until the runtime ends.
///
/// Requests that a collector rejects are not repeated: counters are sums since the start, so the
/// next request includes them.
pub(super) async fn export(config: OtlpConfig, socket: PathBuf) {
    let started = SystemTime::now();
    let host = host_name();
    let mut tls = None;
    let mut ticks = interval(config.every.0);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut is_heard = true;
    loop {
        ticks.tick().await;
        // A daemon that is ending no longer answers.
        let Ok(status) = control_socket::status(&socket).await else {
            continue;
        };
        let figures = request(&status, &host, (started, SystemTime::now()));
        let sent = timeout(ANSWERED_IN, send(&config, &mut tls, figures)).await;
        let sent = sent.unwrap_or_else(|_| Err(anyhow::anyhow!("it does not answer")));
        let was_heard = std::mem::replace(&mut is_heard, sent.is_ok());
        match sent {
            Ok(()) if !was_heard => tracing::info!(to = %config.to, "the collector accepts metrics again"),
            Err(error) if was_heard => {
                tracing::warn!(to = %config.to, error = format!("{error:#}"), "the collector rejects metrics");
            }
            Ok(()) | Err(_) => {}
        }
    }
}

async fn send(config: &OtlpConfig, tls: &mut Option<TlsConnector>, figures: Value) -> anyhow::Result<()> {
    if config.to.is_secure() && tls.is_none() {
        *tls = Some(spawn_blocking(authorities::of_system).await??);
    }
    let request = Request::post(format!("{}/v1/metrics", config.to))
        .header(CONTENT_TYPE, "application/json")
        .body(Bytes::from(serde_json::to_vec(&figures)?))?;
    let answer = http_client::ask(tls.as_ref(), request, LONGEST).await?;
    ensure!(answer.status().is_success(), "it answers {}", answer.status());
    let said: Value = serde_json::from_slice(answer.body()).unwrap_or_default();
    let refused = &said["partialSuccess"]["rejectedDataPoints"];
    // 64-bit numbers are strings in this JSON, but some servers write numbers.
    let refused = refused.as_u64().or_else(|| refused.as_str()?.parse().ok());
    let why = said["partialSuccess"]["errorMessage"]
        .as_str()
        .unwrap_or("no reason");
    ensure!(refused.unwrap_or(0) == 0, "it rejects some of them: {why:?}");
    Ok(())
}

/// Returns an `ExportMetricsServiceRequest` of a status; counters start at the first of the two
/// times, and the values are those of the second.
fn request(status: &Value, host: &str, (started, now): (SystemTime, SystemTime)) -> Value {
    let metrics: Vec<Value> = Families::of(status)
        .0
        .into_iter()
        .map(|(name, family)| {
            let points = family.samples.iter().map(|Sample { labels, value }| {
                let attributes = labels.iter().map(|(key, value)| attribute(key, value));
                json!({
                    "attributes": attributes.collect::<Vec<_>>(),
                    "startTimeUnixNano": nanos(started),
                    "timeUnixNano": nanos(now),
                    "asDouble": value,
                })
            });
            let points: Vec<_> = points.collect();
            let mut metric = json!({ "name": name, "description": family.help, "unit": unit(name) });
            match family.kind {
                Kind::Gauge => metric["gauge"] = json!({ "dataPoints": points }),
                Kind::Counter => {
                    metric["sum"] = json!({
                        "dataPoints": points,
                        "aggregationTemporality": CUMULATIVE,
                        "isMonotonic": true,
                    });
                }
            }
            metric
        })
        .collect();
    let version = env!("CARGO_PKG_VERSION");
    let of = [
        attribute("service.name", "hawser"),
        attribute("service.version", version),
        attribute("host.name", host),
    ];
    json!({ "resourceMetrics": [{
        "resource": { "attributes": of },
        "scopeMetrics": [{ "scope": { "name": "hawser", "version": version }, "metrics": metrics }],
    }]})
}

fn attribute(key: &str, value: &str) -> Value {
    json!({ "key": key, "value": { "stringValue": value } })
}

/// Returns nanoseconds since 1970 as text, because JSON's numbers lack the precision.
fn nanos(at: SystemTime) -> String {
    let since = at.duration_since(UNIX_EPOCH).unwrap_or_default();
    since.as_nanos().to_string()
}

/// Returns the unit in a metric's name, by UCUM.
fn unit(name: &str) -> &'static str {
    let name = name.strip_suffix("_total").unwrap_or(name);
    UNITS
        .iter()
        .find(|(end, _)| name.ends_with(end))
        .map_or("1", |(_, unit)| unit)
}

/// Units by the ending of a name; the first match decides.
const UNITS: [(&str, &str); 5] = [
    ("_bits_per_second", "bit/s"),
    ("_seconds", "s"),
    ("_bytes", "By"),
    ("_datagrams", "{datagram}"),
    ("_events", "{event}"),
];
/// `AGGREGATION_TEMPORALITY_CUMULATIVE`. Source: opentelemetry/proto/metrics/v1/metrics.proto.
const CUMULATIVE: u32 = 2;
/// Timeout of a connection and an answer. Source: the default of `OTEL_EXPORTER_OTLP_TIMEOUT` in
/// the specification of OpenTelemetry's protocol exporter.
const ANSWERED_IN: Duration = Duration::from_secs(10);
/// Maximum size of an answer, which is empty or a message. Units: bytes. Source: our choice, a
/// bound on memory against a collector that is faulty.
const LONGEST: usize = 64 << 10;

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;

    fn figures() -> Value {
        let status = json!({
            "state": "up",
            "sessions": [{ "paths": [
                { "path": 0, "name": "lte", "state": "active", "rtt_ms": 20.0, "sent_bytes": 7, "rate_bps": 8e6 },
                { "path": 1, "name": "wlan", "state": "dead", "rtt_ms": 1.0, "sent_bytes": 8 },
            ]}],
            "counters": { "replayed": 3 },
        });
        let at = |seconds| UNIX_EPOCH + Duration::from_secs(seconds);
        request(&status, "van", (at(1_000), at(1_700_000_000)))
    }

    #[test]
    fn counters_are_sums_since_the_start_and_the_rest_are_gauges() {
        let figures = figures();
        let metrics = figures["resourceMetrics"][0]["scopeMetrics"][0]["metrics"]
            .as_array()
            .unwrap();
        let of = |name: &str| metrics.iter().find(|metric| metric["name"] == name).unwrap();
        let sent = of("hawser_path_sent_bytes_total");
        assert_eq!(sent["unit"], "By");
        assert_eq!(sent["sum"]["isMonotonic"], true);
        assert_eq!(sent["sum"]["aggregationTemporality"], 2);
        let points = sent["sum"]["dataPoints"].as_array().unwrap();
        assert_eq!(points.len(), 2);
        assert_eq!(points[1]["asDouble"], 8.0);
        assert_eq!(points[1]["startTimeUnixNano"], "1000000000000");
        assert_eq!(points[1]["timeUnixNano"], "1700000000000000000");
        let network = json!({ "key": "network", "value": { "stringValue": "wlan" } });
        assert!(points[1]["attributes"].as_array().unwrap().contains(&network));
        let trip = of("hawser_path_rtt_seconds");
        assert_eq!((&trip["unit"], &trip["sum"]), (&json!("s"), &Value::Null));
        assert_eq!(trip["gauge"]["dataPoints"][0]["asDouble"], 0.02);
        assert_eq!(of("hawser_path_rate_bits_per_second")["unit"], "bit/s");
        assert_eq!(of("hawser_events_total")["unit"], "{event}");
        assert_eq!(of("hawser_up")["unit"], "1");
    }

    /// Runs an export against a collector that answers with `status` and `body`; returns the result
    /// and the received request.
    async fn collector(status: &str, body: &str) -> (anyhow::Result<()>, Vec<u8>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let to = format!("http://{}/up/", listener.local_addr().unwrap());
        let answer = format!(
            "HTTP/1.1 {status}\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        );
        let server = hawser_linux::tasks::spawn(async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut asked = Vec::new();
            while !asked.ends_with(b"]}]}") {
                assert_ne!(stream.read_buf(&mut asked).await.unwrap(), 0);
            }
            stream.write_all(answer.as_bytes()).await.unwrap();
            asked
        });
        let config = OtlpConfig {
            to: to.parse().unwrap(),
            every: hawser_config::Span(Duration::from_secs(60)),
        };
        let said = send(&config, &mut None, figures()).await;
        (said, server.await.unwrap())
    }

    #[tokio::test]
    async fn figures_arrive_and_what_a_collector_refuses_is_an_error() {
        let (said, asked) = collector("200 OK", "{}").await;
        said.unwrap();
        let asked = String::from_utf8(asked).unwrap();
        assert!(asked.starts_with("POST /up/v1/metrics HTTP/1.1\r\n"), "{asked}");
        let (head, body) = asked.split_once("\r\n\r\n").unwrap();
        assert!(
            head.to_lowercase().contains("content-type: application/json"),
            "{head}"
        );
        assert_eq!(serde_json::from_str::<Value>(body).unwrap(), figures());

        let partly = r#"{"partialSuccess":{"rejectedDataPoints":"2","errorMessage":"too old"}}"#;
        for (status, body, error) in [
            ("200 OK", partly, "it rejects some of them: \"too old\""),
            ("503 Busy", "", "it answers 503 Service Unavailable"),
        ] {
            let (said, _) = collector(status, body).await;
            assert_eq!(said.unwrap_err().to_string(), error);
        }
    }
}
