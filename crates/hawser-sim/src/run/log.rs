//! What the paths of a tunnel did over time, as a qlog file and as a picture.
//!
//! Scope: the state of the end that sends the scenario's bulk traffic, every [`STEP`]: rate,
//! window, round trip and state of each path, the queue at the entrance, retransmissions, and what
//! the other end holds back. Limitations: what comes and goes between two looks is not seen; single
//! packets are in the file of `--pcap`.
//!
//! Source: draft-ietf-quic-qlog-main-schema (JSON text sequences; `path` of an event) and
//! draft-ietf-quic-qlog-quic-events (`recovery_metrics_updated`, `congestion_state_updated`).
//! Deviates: the protocol is Hawser's, so metrics without a field there have a name of their own in
//! the schema [`SCHEMA`].

use std::fmt::Write as _;

use hawser_proto::egress::{Counters, Egress};
use hawser_proto::path::{Path, State};
use hawser_proto::resequencer;
use hawser_units::Duration;

use crate::page::{self, quoted};

/// How often is looked.
pub(super) const STEP: Duration = Duration::from_millis(10);

/// The schema of the events that qlog has no name for.
const SCHEMA: &str = "urn:hawser:qlog:paths";

/// A path at one time.
#[derive(Clone, Copy, Debug, PartialEq)]
struct PathSample {
    state: State,
    is_starting: bool,
    /// Units: bit/s.
    rate: u64,
    window: u64,
    in_flight: u64,
    round_trip: Duration,
    least_round_trip: Duration,
    loss: f64,
}

/// A tunnel at one time.
#[derive(Clone, Debug)]
struct Sample {
    at: Duration,
    paths: Vec<PathSample>,
    /// Bytes that wait at the entrance.
    backlog: u64,
    /// Packets that the far end holds back.
    held: usize,
    sender: Counters,
    receiver: resequencer::Counters,
}

/// What was seen of a run.
#[derive(Clone, Debug, Default)]
pub struct Log {
    title: String,
    networks: Vec<String>,
    samples: Vec<Sample>,
}

impl Log {
    pub(super) fn new(title: &str, networks: Vec<String>) -> Self {
        Self {
            title: title.to_owned(),
            networks,
            samples: Vec::new(),
        }
    }

    /// Looks at both ends, so long after the workloads began.
    pub(super) fn look<B: Copy>(
        &mut self,
        egress: &Egress<B>,
        (held, receiver): (usize, resequencer::Counters),
        at: Duration,
    ) {
        let path = |path: &Path| {
            let model = path.model();
            PathSample {
                state: path.state(),
                is_starting: model.is_growing(),
                rate: model.rate().rate().as_bps(),
                window: model.window(),
                in_flight: path.in_flight(),
                round_trip: model.round_trip(),
                least_round_trip: model.base_round_trip(),
                loss: path.loss(),
            }
        };
        self.samples.push(Sample {
            at,
            paths: egress.paths().map(path).collect(),
            backlog: egress.flows().backlog(),
            held,
            sender: egress.counters(),
            receiver,
        });
    }

    /// The events as JSON text sequences (RFC 7464): a header, then a record for each change.
    ///
    /// Units: of the drafts: milliseconds, bytes, bit/s.
    #[must_use]
    pub fn qlog(&self) -> String {
        let mut out = String::new();
        let title = quoted(&self.title);
        record(
            &mut out,
            &format!(
                "{{\"file_schema\":\"urn:ietf:params:qlog:file:sequential\",\
                 \"serialization_format\":\"application/qlog+json-seq\",\"title\":{title},\
                 \"trace\":{{\"common_fields\":{{\"time_format\":\"relative_to_epoch\",\
                 \"reference_time\":{{\"clock_type\":\"monotonic\",\"epoch\":\"unknown\"}}}},\
                 \"vantage_point\":{{\"type\":\"server\"}},\
                 \"event_schemas\":[\"urn:ietf:params:qlog:events:quic\",\"{SCHEMA}\"]}}}}"
            ),
        );
        let mut before: Option<&Sample> = None;
        for sample in &self.samples {
            self.write_changes(&mut out, before, sample);
            before = Some(sample);
        }
        out
    }

    fn write_changes(&self, out: &mut String, before: Option<&Sample>, sample: &Sample) {
        let time = millis(sample.at);
        let mut event = |path: Option<usize>, name: &str, data: &str| {
            let path = path
                .and_then(|path| self.networks.get(path))
                .map_or(String::new(), |name| format!("\"path\":{},", quoted(name)));
            record(
                out,
                &format!("{{\"time\":{time:.3},{path}\"name\":\"{name}\",\"data\":{{{data}}}}}"),
            );
        };
        for (index, own) in sample.paths.iter().enumerate() {
            let known = before.and_then(|before| before.paths.get(index));
            if known.is_none_or(|known| known.state != own.state) {
                let data = format!("\"new\":\"{}\"", state_name(own.state));
                event(Some(index), "hawser:path_state_updated", &data);
            }
            if known.is_none_or(|known| known.is_starting != own.is_starting) {
                let phase = if own.is_starting {
                    "slow_start"
                } else {
                    "congestion_avoidance"
                };
                let data = format!("\"new\":\"{phase}\"");
                event(Some(index), "quic:congestion_state_updated", &data);
            }
            if known.is_none_or(|known| known != own) {
                let data = format!(
                    "\"min_rtt\":{:.3},\"smoothed_rtt\":{:.3},\"congestion_window\":{},\"bytes_in_flight\":{},\
                     \"delivery_rate\":{},\"loss\":{:.4}",
                    millis(own.least_round_trip),
                    millis(own.round_trip),
                    own.window,
                    own.in_flight,
                    own.rate,
                    own.loss
                );
                event(Some(index), "quic:recovery_metrics_updated", &data);
            }
        }
        let tunnel = |sample: &Sample| {
            format!(
                "\"backlog\":{},\"held\":{},\"retransmitted\":{},\"policed\":{},\"gaps_given_up\":{},\"late\":{}",
                sample.backlog,
                sample.held,
                sample.sender.retransmitted,
                sample.sender.policed,
                sample.receiver.gaps_given_up,
                sample.receiver.late
            )
        };
        let data = tunnel(sample);
        if before.is_none_or(|before| tunnel(before) != data) {
            event(None, "hawser:tunnel_metrics_updated", &data);
        }
    }

    /// A page with a row for each of rates, windows, round trips, the queue at the entrance, holds
    /// and retransmissions over time; without anything from elsewhere.
    #[must_use]
    pub fn html(&self) -> String {
        let each = |value: &dyn Fn(&PathSample) -> f64| {
            let line = |path: usize| {
                let values = self
                    .samples
                    .iter()
                    .map(|sample| sample.paths.get(path).map_or(0.0, value));
                list(values)
            };
            let lines: Vec<String> = (0..self.networks.len()).map(line).collect();
            lines.join(",")
        };
        let all = |value: &dyn Fn(&Sample) -> f64| list(self.samples.iter().map(value));
        let grown = |count: &dyn Fn(&Sample) -> u64| {
            let before = self.samples.iter().map(count);
            let values = self.samples.iter().skip(1).zip(before);
            list(values.map(|(sample, before)| count(sample).saturating_sub(before) as f64))
        };
        let names: Vec<String> = self.networks.iter().map(|name| quoted(name)).collect();
        let rows = [
            ("delivery rate, Mbit/s", each(&|path| path.rate as f64 / 1e6)),
            ("window, kB", each(&|path| path.window as f64 / 1e3)),
            ("in flight, kB", each(&|path| path.in_flight as f64 / 1e3)),
            ("round trip, ms", each(&|path| millis(path.round_trip))),
            (
                "usable (0: dead, 1: validating, 2: suspect, 3: active)",
                each(&|path| state_level(path.state)),
            ),
            (
                "queue at the entrance, kB",
                all(&|sample| sample.backlog as f64 / 1e3),
            ),
            (
                "held back at the far end, packets",
                all(&|sample| sample.held as f64),
            ),
            ("retransmissions", grown(&|sample| sample.sender.retransmitted)),
            (
                "drops and marks at the entrance",
                grown(&|sample| sample.sender.policed),
            ),
            ("gaps given up", grown(&|sample| sample.receiver.gaps_given_up)),
        ];
        let rows: Vec<String> = rows
            .iter()
            .map(|(name, lines)| format!("[{},[{lines}]]", quoted(name)))
            .collect();
        PAGE.replace("TITLE", &page::plain(&self.title))
            .replace("\"NAMES\"", &format!("[{}]", names.join(",")))
            .replace("\"STEP\"", &format!("{}", STEP.as_secs_f64()))
            .replace("\"ROWS\"", &format!("[{}]", rows.join(",")))
    }
}

fn record(out: &mut String, json: &str) {
    // Writing to a string cannot fail.
    let _ = writeln!(out, "\u{1e}{json}");
}

fn millis(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

fn list(values: impl Iterator<Item = f64>) -> String {
    let values: Vec<String> = values.map(|value| format!("{value:.2}")).collect();
    format!("[{}]", values.join(","))
}

const fn state_name(state: State) -> &'static str {
    match state {
        State::Validating => "validating",
        State::Active => "active",
        State::Suspect => "suspect",
        State::Dead => "dead",
    }
}

const fn state_level(state: State) -> f64 {
    match state {
        State::Dead => 0.0,
        State::Validating => 1.0,
        State::Suspect => 2.0,
        State::Active => 3.0,
    }
}

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
    use super::*;

    fn sample(at_ms: u64, state: State, retransmitted: u64) -> Sample {
        Sample {
            at: Duration::from_millis(at_ms),
            paths: vec![PathSample {
                state,
                is_starting: false,
                rate: 20_000_000,
                window: 75_000,
                in_flight: 50_000,
                round_trip: Duration::from_millis(21),
                least_round_trip: Duration::from_millis(20),
                loss: 0.0,
            }],
            backlog: 0,
            held: 3,
            sender: Counters {
                retransmitted,
                ..Counters::default()
            },
            receiver: resequencer::Counters::default(),
        }
    }

    fn log(samples: Vec<Sample>) -> Log {
        Log {
            samples,
            ..Log::new("a <\"run\">", vec!["lte".to_owned()])
        }
    }

    #[test]
    fn records_are_what_changed_after_a_header() {
        let log = log(vec![
            sample(0, State::Active, 0),
            sample(10, State::Active, 0),
            sample(20, State::Suspect, 7),
        ]);
        let text = log.qlog();
        let records: Vec<serde_json::Value> = text
            .split('\u{1e}')
            .skip(1)
            .map(|record| serde_json::from_str(record).expect("JSON"))
            .collect();
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
        ];
        assert_eq!(names, expected);
        assert_eq!(records[5]["path"], "lte");
        assert_eq!(records[3]["data"]["congestion_window"], 75_000);
        assert_eq!(records[7]["data"]["retransmitted"], 7);
    }

    #[test]
    fn the_page_has_a_row_for_each_measure_and_escapes_names() {
        let log = log(vec![sample(0, State::Active, 2), sample(10, State::Dead, 9)]);
        let page = log.html();
        assert!(page.contains("[\"retransmissions\",[[7.00]]]"));
        assert!(page.contains("[\"round trip, ms\",[[21.00,21.00]]]"));
        assert!(page.contains("<h1>a \"run\"</h1>"));
        assert_eq!(page.matches("</script>").count(), 1);
    }
}
