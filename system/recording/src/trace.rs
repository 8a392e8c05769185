//! Trace of a tunnel's paths over time, as a qlog file and as a chart.
//!
//! Scope: samples of one end: rate, window, round trip and state of each path, the queue at the
//! entrance, retransmissions, and packets held back. The simulator takes them from the state
//! machines themselves, those of a daemon come from `hawser status --json`. Limitations: changes
//! that revert between two samples are not seen.
//!
//! Source: draft-ietf-quic-qlog-main-schema (JSON text sequences; `path` of an event) and
//! draft-ietf-quic-qlog-quic-events (`recovery_metrics_updated`, `congestion_state_updated`).
//! Deviations: the protocol is Hawser's, so metrics without a field there have their own name in
//! the schema [`SCHEMA`].

use std::fmt::Write as _;

use serde_json::Value;

use crate::list;
use crate::page::{self, quoted};

/// Schema of events without a name in qlog.
const SCHEMA: &str = "urn:hawser:qlog:paths";

/// States of a path, as named by `hawser status`, from worst to best.
pub const STATES: [&str; 4] = ["dead", "validating", "suspect", "active"];

/// A path at one time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PathSample {
    /// State, one of [`STATES`].
    pub state: &'static str,
    /// Set if the rate is unknown: the path is in slow start.
    pub is_starting: bool,
    /// Delivery rate, bit/s.
    pub rate_bps: u64,
    /// Congestion window, bytes.
    pub window_bytes: u64,
    /// Sent but unacknowledged, bytes.
    pub in_flight_bytes: u64,
    /// Smoothed round trip, ms.
    pub rtt_ms: f64,
    /// Smallest round trip, ms.
    pub min_rtt_ms: f64,
    /// Share of packets lost, 0 to 1.
    pub loss: f64,
}

/// A tunnel at one time; all fields but the first two are counted from its start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TunnelSample {
    /// Queue at the entrance, bytes.
    pub backlog_bytes: u64,
    /// Packets held back until the preceding ones have arrived.
    pub held: u64,
    /// Retransmitted packets.
    pub retransmitted: u64,
    /// Packets dropped or marked at the entrance.
    pub policed: u64,
    /// Gaps that were given up.
    pub gaps_given_up: u64,
    /// Packets that arrived after their gap was given up.
    pub late: u64,
}

/// Sample of all paths at one time, since the start, ms.
#[derive(Clone, Debug, PartialEq)]
pub struct Sample {
    /// Since the start, ms.
    pub at_ms: f64,
    /// Paths by network; `None` for an absent one.
    pub paths: Vec<Option<PathSample>>,
    /// Common values of all paths.
    pub tunnel: TunnelSample,
}

/// Writes samples as JSON text sequences (RFC 7464): a header, then a record for each change.
///
/// Units: of the drafts: milliseconds, bytes, bit/s.
#[derive(Clone, Debug, Default)]
pub struct Qlog {
    before: Option<Sample>,
}

impl Qlog {
    /// Returns the header of a file; `vantage_point` is `client` or `server`.
    #[must_use]
    pub fn header(title: &str, vantage_point: &str) -> String {
        let (title, vantage_point) = (quoted(title), quoted(vantage_point));
        let mut out = String::new();
        record(
            &mut out,
            &format!(
                "{{\"file_schema\":\"urn:ietf:params:qlog:file:sequential\",\
                 \"serialization_format\":\"application/qlog+json-seq\",\"title\":{title},\
                 \"trace\":{{\"common_fields\":{{\"time_format\":\"relative_to_epoch\",\
                 \"reference_time\":{{\"clock_type\":\"monotonic\",\"epoch\":\"unknown\"}}}},\
                 \"vantage_point\":{{\"type\":{vantage_point}}},\
                 \"event_schemas\":[\"urn:ietf:params:qlog:events:quic\",\"{SCHEMA}\"]}}}}"
            ),
        );
        out
    }

    /// Returns the changes since the previous sample.
    pub fn records(&mut self, networks: &[String], sample: &Sample) -> String {
        let mut out = String::new();
        let time = sample.at_ms;
        let mut event = |path: Option<usize>, name: &str, data: &str| {
            let path = path
                .and_then(|path| networks.get(path))
                .map_or(String::new(), |name| format!("\"path\":{},", quoted(name)));
            record(
                &mut out,
                &format!("{{\"time\":{time:.3},{path}\"name\":\"{name}\",\"data\":{{{data}}}}}"),
            );
        };
        for (index, own) in sample.paths.iter().enumerate() {
            let known = self.before.as_ref().and_then(|before| *before.paths.get(index)?);
            let state = own.map_or("gone", |own| own.state);
            if known.map_or("gone", |known| known.state) != state {
                event(
                    Some(index),
                    "hawser:path_state_updated",
                    &format!("\"new\":\"{state}\""),
                );
            }
            let Some(own) = own else { continue };
            if known.is_none_or(|known| known.is_starting != own.is_starting) {
                let phase = if own.is_starting {
                    "slow_start"
                } else {
                    "congestion_avoidance"
                };
                let data = format!("\"new\":\"{phase}\"");
                event(Some(index), "quic:congestion_state_updated", &data);
            }
            if known.as_ref() != Some(own) {
                let data = format!(
                    "\"min_rtt\":{:.3},\"smoothed_rtt\":{:.3},\"congestion_window\":{},\"bytes_in_flight\":{},\
                     \"delivery_rate\":{},\"loss\":{:.4}",
                    own.min_rtt_ms, own.rtt_ms, own.window_bytes, own.in_flight_bytes, own.rate_bps, own.loss
                );
                event(Some(index), "quic:recovery_metrics_updated", &data);
            }
        }
        if self
            .before
            .as_ref()
            .is_none_or(|before| before.tunnel != sample.tunnel)
        {
            let tunnel = sample.tunnel;
            let data = format!(
                "\"backlog\":{},\"held\":{},\"retransmitted\":{},\"policed\":{},\"gaps_given_up\":{},\"late\":{}",
                tunnel.backlog_bytes,
                tunnel.held,
                tunnel.retransmitted,
                tunnel.policed,
                tunnel.gaps_given_up,
                tunnel.late
            );
            event(None, "hawser:tunnel_metrics_updated", &data);
        }
        self.before = Some(sample.clone());
        out
    }
}

/// Takes samples from a daemon's status.
#[derive(Clone, Debug, Default)]
pub struct Sampler {
    networks: Vec<String>,
}

impl Sampler {
    /// Returns the networks seen so far, in the order of [`Sample::paths`].
    #[must_use]
    pub fn networks(&self) -> &[String] {
        &self.networks
    }

    /// Returns the sample of a status that was requested at this time after the start.
    pub fn sample(&mut self, at_ms: f64, status: &Value) -> Sample {
        let mut paths = vec![None; self.networks.len()];
        for session in list(&status["sessions"]) {
            for path in list(&session["paths"]) {
                let network = path["name"].as_str().unwrap_or_default();
                let name = match session["client"].as_str() {
                    Some(client) => format!("{client}: {network}"),
                    None => network.to_owned(),
                };
                let index = match self.networks.iter().position(|known| *known == name) {
                    Some(index) => index,
                    // Names are untrusted: a hub may have many clients.
                    None if self.networks.len() == MAX_NETWORKS => continue,
                    None => {
                        self.networks.push(name);
                        paths.push(None);
                        paths.len() - 1
                    }
                };
                paths[index] = Some(of_path(path));
            }
        }
        let counter = |name: &str| number(&status["counters"][name]);
        Sample {
            at_ms,
            paths,
            tunnel: TunnelSample {
                backlog_bytes: counter("egress_backlog_bytes"),
                held: counter("resequencer_waiting"),
                retransmitted: counter("egress_retransmitted"),
                policed: counter("egress_policed"),
                gaps_given_up: counter("resequencer_gaps_given_up"),
                late: counter("resequencer_late"),
            },
        }
    }
}

fn of_path(path: &Value) -> PathSample {
    let figure = |name: &str| path[name].as_f64().unwrap_or(0.0);
    let state = STATES.into_iter().find(|state| path["state"] == *state);
    PathSample {
        state: state.unwrap_or(STATES[0]),
        is_starting: path["starting"] == true,
        rate_bps: number(&path["rate_bps"]),
        window_bytes: number(&path["window_bytes"]),
        in_flight_bytes: number(&path["in_flight_bytes"]),
        rtt_ms: figure("rtt_ms"),
        min_rtt_ms: figure("min_rtt_ms"),
        loss: figure("loss"),
    }
}

fn number(value: &Value) -> u64 {
    value.as_u64().unwrap_or(0)
}

/// Returns a self-contained page with a row for each of rates, windows, round trips, the queue at
/// the entrance, held packets and retransmissions over time. `step_s` is the interval of samples.
#[must_use]
pub fn picture(title: &str, networks: &[String], step_s: f64, samples: &[Sample]) -> String {
    let each = |value: &dyn Fn(&PathSample) -> f64| {
        let line = |index: usize| {
            let path = |sample: &Sample| *sample.paths.get(index)?;
            list_of(
                samples
                    .iter()
                    .map(|sample| path(sample).as_ref().map_or(0.0, value)),
            )
        };
        let lines: Vec<String> = (0..networks.len()).map(line).collect();
        lines.join(",")
    };
    let all =
        |value: &dyn Fn(&TunnelSample) -> f64| list_of(samples.iter().map(|sample| value(&sample.tunnel)));
    let grown = |count: &dyn Fn(&TunnelSample) -> u64| {
        let before = samples.iter().map(|sample| count(&sample.tunnel));
        let values = samples.iter().skip(1).zip(before);
        list_of(values.map(|(sample, before)| count(&sample.tunnel).saturating_sub(before) as f64))
    };
    let names: Vec<String> = networks.iter().map(|name| quoted(name)).collect();
    let rows = [
        ("delivery rate, Mbit/s", each(&|path| path.rate_bps as f64 / 1e6)),
        ("window, kB", each(&|path| path.window_bytes as f64 / 1e3)),
        ("in flight, kB", each(&|path| path.in_flight_bytes as f64 / 1e3)),
        ("round trip, ms", each(&|path| path.rtt_ms)),
        (
            "usable (0: dead, 1: validating, 2: suspect, 3: active)",
            each(&|path| level(path.state)),
        ),
        (
            "queue at the entrance, kB",
            all(&|tunnel| tunnel.backlog_bytes as f64 / 1e3),
        ),
        (
            "buffered at the receiver, packets",
            all(&|tunnel| tunnel.held as f64),
        ),
        ("retransmissions", grown(&|tunnel| tunnel.retransmitted)),
        ("drops and marks at the entrance", grown(&|tunnel| tunnel.policed)),
        ("abandoned gaps", grown(&|tunnel| tunnel.gaps_given_up)),
    ];
    let rows: Vec<String> = rows
        .iter()
        .map(|(name, lines)| format!("[{},[{lines}]]", quoted(name)))
        .collect();
    PAGE.replace("TITLE", &page::plain(title))
        .replace("\"NAMES\"", &format!("[{}]", names.join(",")))
        .replace("\"STEP\"", &format!("{step_s}"))
        .replace("\"ROWS\"", &format!("[{}]", rows.join(",")))
}

fn record(out: &mut String, json: &str) {
    // Writing to a string cannot fail.
    let _ = writeln!(out, "\u{1e}{json}");
}

fn list_of(values: impl Iterator<Item = f64>) -> String {
    let values: Vec<String> = values.map(|value| format!("{value:.2}")).collect();
    format!("[{}]", values.join(","))
}

fn level(state: &str) -> f64 {
    let place = STATES.into_iter().position(|known| known == state);
    place.unwrap_or(0) as f64
}

/// Networks of one log. Source: our choice, a bound on memory against a damaged log; a page with
/// more lines cannot be read.
const MAX_NETWORKS: usize = 256;

const PAGE: &str = r##"<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><title>TITLE</title>
<style>body{font:14px sans-serif;margin:1em}svg{width:100%;height:110px;border:1px solid #ccc;margin-bottom:.6em}
b{display:inline-block;width:1em;height:.8em;margin:0 .3em 0 1em}h2{font-size:14px;margin:.2em 0}</style></head>
<body><h1>TITLE</h1><p id="k"></p><div id="d"></div>
<script>
const names="NAMES",step="STEP",rows="ROWS",colours=["#27c","#e80","#2a6","#c33","#a6c","#888"];
const colour=n=>colours[n%colours.length];
document.getElementById("k").innerHTML=names.map((s,n)=>`<b style="background:${colour(n)}"></b>${s}`).join("");
let page="";
for(const [name,lines] of rows){const most=Math.max(1e-9,...lines.map(l=>l.reduce((a,b)=>Math.max(a,b),0)));
page+=`<h2>${name}, up to ${most.toFixed(1)}</h2><svg viewBox="0 0 1000 100" preserveAspectRatio="none">`;
lines.forEach((l,n)=>{const at=l.map((v,i)=>`${(i/Math.max(1,l.length-1)*1000).toFixed(1)},${(98-v/most*96).toFixed(1)}`).join(" ");
page+=`<polyline fill="none" stroke="${lines.length>1?colour(n):"#444"}" vector-effect="non-scaling-stroke" points="${at}"/>`});
const all=(lines[0]||[]).length*step;
for(let s=1;s<all;s++)page+=`<path d="M${s/all*1000} 95V100" stroke="#000" vector-effect="non-scaling-stroke"><title>${s} s</title></path>`;
page+="</svg>"}
document.getElementById("d").innerHTML=page+"<p>A tick each second.</p>";
</script></body></html>
"##;

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn sample(at_ms: f64, state: &'static str, retransmitted: u64) -> Sample {
        Sample {
            at_ms,
            paths: vec![Some(PathSample {
                state,
                is_starting: false,
                rate_bps: 20_000_000,
                window_bytes: 75_000,
                in_flight_bytes: 50_000,
                rtt_ms: 21.0,
                min_rtt_ms: 20.0,
                loss: 0.0,
            })],
            tunnel: TunnelSample {
                held: 3,
                retransmitted,
                ..TunnelSample::default()
            },
        }
    }

    fn names() -> Vec<String> {
        vec!["lte".to_owned()]
    }

    fn events(text: &str) -> Vec<Value> {
        let records = text.split('\u{1e}').skip(1);
        records
            .map(|record| serde_json::from_str(record).expect("JSON"))
            .collect()
    }

    #[test]
    fn records_are_what_changed_after_a_header() {
        let mut qlog = Qlog::default();
        let mut text = Qlog::header("a <\"run\">", "server");
        let gone = Sample {
            paths: vec![None],
            ..sample(30.0, "active", 7)
        };
        let samples = [
            sample(0.0, "active", 0),
            sample(10.0, "active", 0),
            sample(20.0, "suspect", 7),
            gone,
        ];
        for sample in &samples {
            text += &qlog.records(&names(), sample);
        }
        let records = events(&text);
        assert!(text.starts_with('\u{1e}') && text.ends_with('\n'));
        assert_eq!(records[0]["trace"]["vantage_point"]["type"], "server");
        let names: Vec<(f64, &str)> = records[1..]
            .iter()
            .map(|record| {
                let time = record["time"].as_f64().expect("a time");
                (time, record["name"].as_str().expect("a name"))
            })
            .collect();
        let expected = [
            (0.0, "hawser:path_state_updated"),
            (0.0, "quic:congestion_state_updated"),
            (0.0, "quic:recovery_metrics_updated"),
            (0.0, "hawser:tunnel_metrics_updated"),
            (20.0, "hawser:path_state_updated"),
            (20.0, "quic:recovery_metrics_updated"),
            (20.0, "hawser:tunnel_metrics_updated"),
            (30.0, "hawser:path_state_updated"),
        ];
        assert_eq!(names, expected);
        assert_eq!(records[5]["path"], "lte");
        assert_eq!(records[3]["data"]["congestion_window"], 75_000);
        assert_eq!(records[7]["data"]["retransmitted"], 7);
        assert_eq!(records[8]["data"]["new"], "gone");
    }

    #[test]
    fn the_page_has_a_row_for_each_measure_and_escapes_names() {
        let samples = [sample(0.0, "active", 2), sample(10.0, "dead", 9)];
        let page = picture("a <\"run\">", &names(), 0.01, &samples);
        assert!(page.contains("[\"retransmissions\",[[7.00]]]"));
        assert!(page.contains("[\"round trip, ms\",[[21.00,21.00]]]"));
        assert!(page.contains("[[3.00,0.00]]"));
        assert!(page.contains("<h1>a \"run\"</h1>"));
        assert_eq!(page.matches("</script>").count(), 1);
    }

    #[test]
    fn a_status_gives_a_sample_and_networks_keep_their_places() {
        let mut sampler = Sampler::default();
        let path = |name: &str, state: &str| json!({ "name": name, "state": state, "rate_bps": 5, "rtt_ms": 1.5, "starting": true });
        let status = |paths: &[Value]| json!({ "sessions": [{ "paths": paths }], "counters": { "egress_retransmitted": 4 } });
        let first = sampler.sample(0.0, &status(&[path("lte", "active")]));
        assert_eq!(first.tunnel.retransmitted, 4);
        let both = sampler.sample(1.0, &status(&[path("wlan", "suspect"), path("lte", "active")]));
        assert_eq!(sampler.networks(), ["lte", "wlan"]);
        assert_eq!(
            both.paths[1].map(|path| (path.state, path.rate_bps)),
            Some(("suspect", 5))
        );
        assert_eq!(both.paths[0], first.paths[0]);
        let one = sampler.sample(2.0, &status(&[path("wlan", "what?")]));
        assert_eq!(
            (one.paths[0], one.paths[1].map(|path| path.state)),
            (None, Some("dead"))
        );
        // Any other JSON is treated as a status without paths.
        assert_eq!(sampler.sample(3.0, &json!([1])).paths, [None, None]);
    }
}
