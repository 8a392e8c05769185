//! Recording of a daemon's networks over time, as text: written by `hawser record`, read by a
//! replay.
//!
//! A recording is JSON with one object per line. The first line contains the version; each other
//! line is one sample of the networks:
//!
//! ```text
//!   {"hawser_recording":1,"interval_ms":1000}
//!   {"t_ms":0,"networks":{"network-1":{"state":"active","rate_bps":9000000,"send_bps":100,"receive_bps":2000,
//!                                      "rtt_ms":41.5,"min_rtt_ms":40.0,"loss":0.01}}}
//! ```
//!
//! It contains no payload, no address, no flow, no date, and by default no name: networks are
//! numbered as they appear. A network that a sample does not list was removed. A last line without
//! its line feed is truncated and ignored; fields may be added at any time.
//!
//! Limitations: a client measures the delivery rate of its paths when sending, but only the
//! arriving traffic of the other direction. So the downward rate is a lower bound, which is close
//! during downloads. Direct mode measures only the traffic of its networks, and the round trips to
//! gateways ([`Recorder::sample`]).
#![forbid(unsafe_code)]

pub mod page;
pub mod trace;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Samples over time.
#[derive(Clone, Debug, PartialEq)]
pub struct Recording {
    /// Interval between samples.
    pub interval_ms: u64,
    /// Samples in order of time.
    pub samples: Vec<NetworkSample>,
}

/// The networks at one time.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct NetworkSample {
    /// Time since the first sample.
    pub t_ms: u64,
    /// Networks that the daemon used.
    pub networks: BTreeMap<String, Seen>,
}

/// State of one network at one time. Rates are UDP payload.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Seen {
    /// `validating`, `active`, `suspect` or `dead`, as in `hawser status`.
    pub state: String,
    /// Estimated delivery rate; 0 if unknown.
    pub rate_bps: u64,
    /// Sent in the last second.
    pub send_bps: u64,
    /// Received in the last second.
    pub receive_bps: u64,
    /// Smoothed round trip.
    pub rtt_ms: f64,
    /// Smallest round trip.
    pub min_rtt_ms: f64,
    /// Share of packets lost.
    pub loss: f64,
}

/// Reason why a recording cannot be read.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum RecordingError {
    /// The file is not a recording.
    #[error("line 1: not a recording; `hawser record --out FILE` creates one")]
    NotARecording,
    /// Unsupported version.
    #[error("line 1: this recording has version {0}; this program reads version {VERSION}")]
    Version(u64),
    /// A line is damaged.
    #[error("line {line}: {problem}; remove the line")]
    Line {
        /// Counted from 1.
        line: usize,
        /// Description of the error.
        problem: String,
    },
}

#[derive(Serialize, Deserialize)]
struct Header {
    hawser_recording: u64,
    interval_ms: u64,
}

/// Converts status answers of a daemon to lines.
#[derive(Debug)]
pub struct Recorder {
    /// Anonymous names by the daemon's name; `None` preserves names.
    numbers: Option<BTreeMap<String, String>>,
    /// Direct mode: the smallest round trip so far, ms, by the daemon's name.
    smallest: BTreeMap<String, f64>,
}

impl Recorder {
    /// Creates a recorder that replaces the names of networks by numbers, or records the names.
    #[must_use]
    pub fn new(keeps_names: bool) -> Self {
        Self {
            numbers: (!keeps_names).then(BTreeMap::new),
            smallest: BTreeMap::new(),
        }
    }

    /// Returns the first line.
    #[must_use]
    pub fn header(interval_ms: u64) -> String {
        to_line(&Header {
            hawser_recording: VERSION,
            interval_ms,
        })
    }

    /// Returns the line of one sample, which contains only the paths of a status answer.
    ///
    /// Direct mode has networks in place of paths. Their rates are those of the devices, less the
    /// headers of full packets. The upstream capacity of a network is the maximum of its recent
    /// rates in either direction. Round trips are those of gateways, and loss is unknown.
    #[must_use]
    pub fn sample(&mut self, t_ms: u64, status: &Value) -> String {
        let mut networks = BTreeMap::new();
        if status["role"] == "direct" {
            for network in list(&status["networks"]) {
                let found = network["name"].as_str().zip(self.seen_directly(network));
                networks.extend(found.map(|(name, seen)| (self.name(name), seen)));
            }
        } else {
            for path in list(&status["sessions"])
                .iter()
                .flat_map(|session| list(&session["paths"]))
            {
                let name = path["name"].as_str();
                networks.extend(name.map(|name| (self.name(name), seen(path))));
            }
        }
        to_line(&NetworkSample { t_ms, networks })
    }

    /// Returns the sample of a network of direct mode; `None` if direct mode does not use it.
    fn seen_directly(&mut self, network: &Value) -> Option<Seen> {
        let state = match network["state"].as_str()? {
            "active" | "unwatched" => "active",
            "silent" | "portal" | "checking" => "dead",
            _ => return None,
        };
        let payload = |field: &str| (count(network, field) as f64 / FRAMES_OVER_PAYLOAD) as u64;
        let (send_bps, receive_bps) = (payload("send_bps"), payload("receive_bps"));
        let rtt_ms = number(network, "rtt_ms");
        let name = network["name"].as_str()?;
        let smallest = self.smallest.entry(name.to_owned()).or_insert(rtt_ms);
        if rtt_ms > 0.0 && (rtt_ms < *smallest || *smallest == 0.0) {
            *smallest = rtt_ms;
        }
        Some(Seen {
            state: state.to_owned(),
            rate_bps: payload("capacity_bps").max(send_bps).max(receive_bps),
            send_bps,
            receive_bps,
            rtt_ms,
            min_rtt_ms: *smallest,
            loss: 0.0,
        })
    }

    fn name(&mut self, name: &str) -> String {
        let Some(numbers) = &mut self.numbers else {
            return name.to_owned();
        };
        let next = format!("network-{}", numbers.len() + 1);
        numbers.entry(name.to_owned()).or_insert(next).clone()
    }
}

impl Recording {
    /// Reads a recording.
    ///
    /// # Errors
    /// [`RecordingError`] with the first damaged line, other than a truncated last one.
    pub fn parse(text: &str) -> Result<Self, RecordingError> {
        let mut lines = text.split_inclusive('\n').enumerate();
        let first = lines.next().map_or("", |(_, line)| line);
        let first: Value = serde_json::from_str(first).map_err(|_| RecordingError::NotARecording)?;
        match first["hawser_recording"].as_u64() {
            Some(VERSION) => {}
            Some(other) => return Err(RecordingError::Version(other)),
            None => return Err(RecordingError::NotARecording),
        }
        let header: Header = serde_json::from_value(first).map_err(|_| RecordingError::NotARecording)?;
        let mut samples: Vec<NetworkSample> = Vec::new();
        for (n, line) in lines.filter(|(_, line)| line.ends_with('\n') && !line.trim().is_empty()) {
            let damaged = |problem: String| RecordingError::Line { line: n + 1, problem };
            let sample: NetworkSample =
                serde_json::from_str(line).map_err(|error| damaged(error.to_string()))?;
            if samples.last().is_some_and(|last| last.t_ms >= sample.t_ms) {
                return Err(damaged("the time decreases".to_owned()));
            }
            if let Some((name, _)) = sample.networks.iter().find(|(_, seen)| !seen.is_sane()) {
                return Err(damaged(format!("{name} has an impossible loss or round trip")));
            }
            samples.push(sample);
        }
        Ok(Self {
            interval_ms: header.interval_ms.max(1),
            samples,
        })
    }

    /// Returns the recording with a quota on a network: the network is missing from the first
    /// sample before which it had transferred more than this many bytes, in both directions
    /// together. Its traffic is not moved to other networks. Returns `None` if no sample lists the
    /// network.
    ///
    /// Units: the quota is bytes of frames, as devices count them.
    #[must_use]
    pub fn with_quota(&self, network: &str, quota: u64) -> Option<Self> {
        let mut limited = self.clone();
        let (mut carried, mut is_there) = (0.0, false);
        let starts = self.samples.iter().map(|sample| sample.t_ms);
        let ends = starts.clone().skip(1).chain([u64::MAX]);
        for (sample, (start, end)) in limited.samples.iter_mut().zip(starts.zip(ends)) {
            let Some(seen) = sample.networks.get(network) else {
                continue;
            };
            is_there = true;
            let bps = (seen.send_bps + seen.receive_bps) as f64 * FRAMES_OVER_PAYLOAD;
            if carried > quota as f64 {
                sample.networks.remove(network);
            }
            carried += bps / 8.0 * (end - start) as f64 / 1e3;
        }
        is_there.then_some(limited)
    }

    /// Returns the mean received rate over all networks. Units: bit/s of UDP payload.
    #[must_use]
    pub fn mean_receive_bps(&self) -> f64 {
        let received = |sample: &NetworkSample| {
            sample
                .networks
                .values()
                .map(|seen| seen.receive_bps as f64)
                .sum::<f64>()
        };
        self.samples.iter().map(received).sum::<f64>() / self.samples.len().max(1) as f64
    }
}

impl Seen {
    fn is_sane(&self) -> bool {
        let is_time = |ms: f64| (0.0..1e7).contains(&ms);
        (0.0..=1.0).contains(&self.loss) && is_time(self.rtt_ms) && is_time(self.min_rtt_ms)
    }
}

fn seen(path: &Value) -> Seen {
    Seen {
        state: path["state"].as_str().unwrap_or("validating").to_owned(),
        rate_bps: count(path, "rate_bps"),
        send_bps: count(path, "send_bps"),
        receive_bps: count(path, "receive_bps"),
        rtt_ms: number(path, "rtt_ms"),
        min_rtt_ms: number(path, "min_rtt_ms"),
        loss: number(path, "loss").clamp(0.0, 1.0),
    }
}

fn list(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

fn count(of: &Value, field: &str) -> u64 {
    of[field].as_u64().unwrap_or(0)
}

fn number(of: &Value, field: &str) -> f64 {
    of[field].as_f64().unwrap_or(0.0)
}

fn to_line(value: &impl Serialize) -> String {
    serde_json::to_string(value).expect("looks are plain data") + "\n"
}

/// Size of a full frame over its payload: 14 bytes of Ethernet (RFC 894), 20 of IPv4 (RFC 791) and
/// 8 of UDP (RFC 768) around 1472 bytes.
pub const FRAMES_OVER_PAYLOAD: f64 = 1514.0 / 1472.0;
/// Version, which changes if an old reader would misinterpret a recording. Source: the first
/// version.
const VERSION: u64 = 1;

#[cfg(test)]
mod tests;
