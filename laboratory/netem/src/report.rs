//! Report of a scenario's run, as JSON and as text, in the same form for real and for modelled
//! packets.
//!
//! The driver of a run supplies an [`Observed`]; all derived values are computed here.

use std::collections::BTreeMap;

use hawser_units::{Duration, Instant};
use serde::Serialize;

use crate::Counters;
use crate::capture::Origin;
use crate::oracle;
use crate::scenario::{Network, Scenario, Via};
use crate::video::{Playback, TIMEOUT};

/// Measurements of a run, without derived values.
#[derive(Clone, Debug)]
pub struct Observed {
    /// Start of the workloads.
    pub start: Instant,
    /// Duration of the workloads.
    pub ran: Duration,
    /// Payload bytes of each workload in bins of [`BIN`].
    pub bins: Vec<Vec<u64>>,
    /// Pauses of all workloads.
    pub gaps: Vec<Gap>,
    /// Counters of each network, every [`SAMPLE_MS`].
    pub samples: Vec<Vec<NetworkTraffic>>,
    /// Counters of each network while the workloads ran.
    pub traffic: Vec<NetworkTraffic>,
    /// Findings of each workload.
    pub findings: Vec<Finding>,
    /// TCP segments queued out of order at client and server.
    pub out_of_order: u64,
    /// TCP segments retransmitted.
    pub retransmitted: u64,
    /// Processor time of the daemons.
    pub cpu_seconds: CpuSeconds,
}

/// A time without delivered bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gap {
    /// Time of the delivery before the gap.
    pub from: Instant,
    /// Time until the next delivery.
    pub length: Duration,
}

/// Result of one run with one system.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// Version of this format.
    pub version: u32,
    /// Name, as in the scenario.
    pub name: String,
    /// Label of the system, as [`Via::label`] returns it.
    pub via: String,
    /// Seed of the scenario.
    pub seed: u64,
    /// Duration of the workloads.
    pub duration_s: f64,
    /// Warm-up, which the goodput excludes.
    pub warmup_s: f64,
    /// Payload delivered to applications after the warm-up.
    pub goodput_bps: Goodput,
    /// Payload bytes delivered over time.
    pub series: Series,
    /// Traffic of every network while the workloads ran.
    pub networks: BTreeMap<String, NetworkReport>,
    /// Traffic of the hop from a repeater to the client while the workloads ran.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub client_hop: Option<Traffic>,
    /// Longest time without a delivered byte after the first one, over the bulk workloads.
    pub longest_gap_ms: f64,
    /// Longest such gap that overlaps the second after an event.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub longest_gap_after_events_ms: Option<f64>,
    /// Longest such gap that ends after the first event.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub longest_gap_since_event_ms: Option<f64>,
    /// Round-trip times of the first ping workload.
    pub rtt_ms: Option<RoundTrips>,
    /// TCP segments queued out of order at client and server, plus datagrams overtaken.
    pub reordered: u64,
    /// TCP segments retransmitted by client and server.
    pub retransmitted: u64,
    /// Processor time of the daemons while the workloads ran.
    pub cpu_seconds: CpuSeconds,
    /// Sum of the networks' rates, times [`IDEAL_SHARE`]; `None` if a network is unlimited.
    pub ideal_bps: Option<f64>,
    /// Goodput over `ideal_bps`.
    pub share_of_ideal: Option<f64>,
    /// Goodput over the sum of the networks' rates.
    pub share_of_sum: Option<f64>,
    /// Maximum goodput of any scheduler ([`crate::oracle`]); `None` if no bound is known.
    pub oracle_bps: Option<f64>,
    /// Goodput over `oracle_bps`.
    pub share_of_oracle: Option<f64>,
    /// Maximum goodput if the tunnel splits TCP connections ([`crate::oracle::stream_goodput`]);
    /// `None` also without a tunnel.
    pub stream_oracle_bps: Option<f64>,
    /// Goodput over `stream_oracle_bps`.
    pub share_of_stream_oracle: Option<f64>,
    /// Further results of each workload.
    pub workloads: Vec<Finding>,
}

/// Payload per second. Units: bit/s.
#[derive(Clone, Debug, Serialize)]
pub struct Goodput {
    /// Sum of all workloads.
    pub total: f64,
    /// Values of each workload.
    pub workloads: Vec<f64>,
}

/// Payload bytes in each bin.
#[derive(Clone, Debug, Serialize)]
pub struct Series {
    /// Length of a bin. Units: ms.
    pub bin_ms: u64,
    /// Sum of all workloads.
    pub bytes: Vec<u64>,
    /// Values of each workload.
    pub workloads: Vec<Vec<u64>>,
    /// Bytes that each network delivered, both directions, in bins of [`SAMPLE_MS`]. Units: frame
    /// bytes.
    pub networks: BTreeMap<String, Vec<u64>>,
    /// Length of the networks' bins. Units: ms.
    pub networks_bin_ms: u64,
}

/// Traffic of one network.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct NetworkReport {
    /// Both directions together.
    #[serde(flatten)]
    pub both: Traffic,
    /// Towards the client.
    pub down: Traffic,
    /// Direction from the client.
    pub up: Traffic,
}

/// Results of a workload in addition to its delivered bytes.
#[derive(Clone, Debug, Serialize)]
#[serde(tag = "kind", rename_all = "lowercase")]
#[non_exhaustive]
pub enum Finding {
    /// Bulk TCP.
    Tcp {
        /// Number of connections.
        streams: u32,
    },
    /// Bulk QUIC.
    Quic {
        /// Number of connections.
        streams: u32,
    },
    /// Datagrams.
    Udp {
        /// Datagrams sent.
        sent: u64,
        /// Datagrams received.
        received: u64,
        /// Share of datagrams that did not arrive, 0 to 1.
        loss: f64,
        /// Datagrams that arrived after a datagram that was sent later.
        reordered: u64,
        /// Median of the one-way delay.
        delay_p50_ms: f64,
        /// 99th percentile of the one-way delay.
        delay_p99_ms: f64,
        /// Datagrams that arrived later than a conversation tolerates ([`crate::video::TIMEOUT`]).
        late: u64,
        /// Origin of the datagrams, if they were captured.
        #[serde(skip_serializing_if = "Option::is_none")]
        capture: Option<Origin>,
        /// Share of each layer's datagrams that did not arrive; empty without layers.
        #[serde(skip_serializing_if = "Vec::is_empty")]
        layer_loss: Vec<f64>,
        /// Number and one-way delay in nanoseconds of each arrived datagram, in order of arrival.
        #[serde(skip)]
        arrivals: Vec<(u64, u64)>,
    },
    /// Requests and echoes.
    Ping {
        /// Requests sent.
        sent: u64,
        /// Echoes received.
        received: u64,
        /// Round-trip times; `None` if no echo arrived.
        rtt_ms: Option<RoundTrips>,
    },
    /// Video.
    Video {
        /// Pictures sent.
        pictures: u64,
        /// Pictures that arrived in time together with all pictures on which they depend.
        shown: u64,
        /// Share of datagrams that did not arrive in time, by layer: I, P and B pictures, or
        /// descriptions.
        layer_loss: Vec<f64>,
        /// Set for each sent picture that was displayed.
        #[serde(skip)]
        is_shown: Vec<bool>,
    },
    /// Download.
    Http {
        /// Duration; `None` if it did not finish.
        completed_s: Option<f64>,
        /// Body bytes received.
        bytes: u64,
    },
}

/// Summary of round-trip times. Units: ms.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct RoundTrips {
    /// Shortest round-trip time.
    pub min: f64,
    /// The median.
    pub p50: f64,
    /// Value of the 99th percentile.
    pub p99: f64,
}

/// Counters of a network in each direction.
#[derive(Clone, Copy, Debug, Default)]
pub struct NetworkTraffic {
    /// Towards the client.
    pub down: Traffic,
    /// Direction from the client.
    pub up: Traffic,
}

/// Counters of one direction. Units: bytes of Ethernet frames.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct Traffic {
    /// Bytes that were delivered.
    pub bytes: u64,
    /// Packets that were delivered.
    pub packets: u64,
    /// Packets that were lost.
    pub lost: u64,
}

impl Traffic {
    /// Returns the difference to `before`.
    #[must_use]
    pub fn since(self, before: Self) -> Self {
        Self {
            bytes: self.bytes.saturating_sub(before.bytes),
            packets: self.packets.saturating_sub(before.packets),
            lost: self.lost.saturating_sub(before.lost),
        }
    }

    /// Returns the sum of both.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        Self {
            bytes: self.bytes + other.bytes,
            packets: self.packets + other.packets,
            lost: self.lost + other.lost,
        }
    }
}

impl From<Counters> for Traffic {
    fn from(counters: Counters) -> Self {
        Self {
            bytes: counters.bytes,
            packets: counters.packets,
            lost: counters.lost(),
        }
    }
}

/// User and system time of the daemons. Units: seconds.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct CpuSeconds {
    /// Processor time of the client's daemon.
    pub client: f64,
    /// Processor time of the hub.
    pub hub: f64,
}

impl Report {
    /// Computes the report from the measurements of a run.
    #[must_use]
    pub fn new(scenario: &Scenario, via: &Via, observed: Observed) -> Self {
        let counted = observed
            .ran
            .saturating_sub(scenario.warmup)
            .as_secs_f64()
            .max(BIN.as_secs_f64());
        let skipped = (scenario.warmup.as_nanos() / BIN.as_nanos()) as usize;
        let rate = |bins: &Vec<u64>| bins.iter().skip(skipped).sum::<u64>() as f64 * 8.0 / counted;
        let goodputs: Vec<f64> = observed.bins.iter().map(rate).collect();
        let total: f64 = goodputs.iter().sum();
        let sum = scenario.sum_of_rates().map(|rate| rate.as_bps() as f64);
        let oracle = oracle::goodput(scenario, via, None).map(|rate| rate.as_bps() as f64);
        let stream_oracle = oracle::stream_goodput(scenario, None).filter(|_| *via == Via::Hub);
        let stream_oracle = stream_oracle.map(|rate| rate.as_bps() as f64);
        let share_of = |bound: Option<f64>| bound.filter(|bound| *bound > 0.0).map(|bound| total / bound);
        Self {
            version: 1,
            name: scenario.name.clone(),
            via: via.label(),
            seed: scenario.seed,
            duration_s: observed.ran.as_secs_f64(),
            warmup_s: scenario.warmup.as_secs_f64(),
            goodput_bps: Goodput {
                total,
                workloads: goodputs,
            },
            networks: networks(scenario, &observed.traffic),
            client_hop: None,
            longest_gap_ms: longest(observed.gaps.iter()),
            longest_gap_after_events_ms: longest_after_events(scenario, &observed),
            longest_gap_since_event_ms: longest_since_event(scenario, &observed),
            rtt_ms: observed.findings.iter().find_map(Finding::rtt_ms),
            reordered: observed.out_of_order + observed.findings.iter().map(Finding::reordered).sum::<u64>(),
            retransmitted: observed.retransmitted,
            cpu_seconds: observed.cpu_seconds,
            ideal_bps: sum.map(|sum| sum * IDEAL_SHARE),
            share_of_ideal: sum.map(|sum| total / (sum * IDEAL_SHARE)),
            share_of_sum: sum.map(|sum| total / sum),
            oracle_bps: oracle,
            share_of_oracle: share_of(oracle),
            stream_oracle_bps: stream_oracle,
            share_of_stream_oracle: share_of(stream_oracle),
            series: Series::new(scenario, observed.bins, &observed.samples),
            workloads: observed.findings,
        }
    }

    /// Returns a summary of a few lines.
    #[must_use]
    pub fn to_text(&self) -> String {
        let mut lines = vec![format!(
            "{}: {} via {}{}{}{}",
            self.name,
            mbps(self.goodput_bps.total),
            self.via,
            self.share_of_ideal
                .map_or(String::new(), |share| format!(", {share:.3} of ideal")),
            self.share_of_oracle
                .map_or(String::new(), |share| format!(", {share:.3} of the oracle")),
            self.share_of_stream_oracle
                .map_or(String::new(), |share| format!(", {share:.3} of that for streams")),
        )];
        for (name, network) in &self.networks {
            lines.push(format!(
                "  {name:<15} down {:>9.2} MB, up {:>8.2} MB, lost {}",
                network.down.bytes as f64 / 1e6,
                network.up.bytes as f64 / 1e6,
                network.both.lost
            ));
        }
        if let Some(hop) = &self.client_hop {
            let mb = hop.bytes as f64 / 1e6;
            lines.push(format!("  to the client   down {mb:>9.2} MB, lost {}", hop.lost));
        }
        lines.push(format!(
            "  longest gap {:.0} ms, {} segments sent again, {} out of order",
            self.longest_gap_ms, self.retransmitted, self.reordered
        ));
        lines.extend(self.workloads.iter().filter_map(finding_line));
        if self.cpu_seconds.client + self.cpu_seconds.hub > 0.0 {
            lines.push(format!(
                "  processor seconds: client {:.2}, hub {:.2}",
                self.cpu_seconds.client, self.cpu_seconds.hub
            ));
        }
        lines.join("\n") + "\n"
    }

    /// Returns the payload bytes delivered in the whole run.
    #[must_use]
    pub fn delivered_bytes(&self) -> u64 {
        self.series.bytes.iter().sum()
    }
}

impl Series {
    fn new(scenario: &Scenario, per_workload: Vec<Vec<u64>>, samples: &[Vec<NetworkTraffic>]) -> Self {
        let length = per_workload.iter().map(Vec::len).max().unwrap_or(0);
        let at = |bin: usize| per_workload.iter().filter_map(|bins| bins.get(bin)).sum();
        let networks = scenario.networks.iter().enumerate().map(|(n, network)| {
            let bytes = samples.windows(2).map(|w| w[1][n].since(w[0][n]).bytes());
            (network.name.clone(), bytes.collect())
        });
        Self {
            bin_ms: BIN.as_millis() as u64,
            bytes: (0..length).map(at).collect(),
            networks: networks.collect(),
            networks_bin_ms: SAMPLE_MS,
            workloads: per_workload,
        }
    }
}

fn networks(scenario: &Scenario, traffic: &[NetworkTraffic]) -> BTreeMap<String, NetworkReport> {
    let report = |(network, traffic): (&Network, &NetworkTraffic)| {
        let both = traffic.down.plus(traffic.up);
        let (down, up) = (traffic.down, traffic.up);
        (network.name.clone(), NetworkReport { both, down, up })
    };
    scenario.networks.iter().zip(traffic).map(report).collect()
}

fn longest_after_events(scenario: &Scenario, observed: &Observed) -> Option<f64> {
    let is_after_an_event = |gap: &&Gap| {
        scenario.events.iter().any(|event| {
            let at = observed.start + event.at;
            gap.from + gap.length > at && gap.from < at + Duration::from_secs(1)
        })
    };
    (!scenario.events.is_empty()).then(|| longest(observed.gaps.iter().filter(is_after_an_event)))
}

fn longest_since_event(scenario: &Scenario, observed: &Observed) -> Option<f64> {
    let first = observed.start + scenario.events.iter().map(|event| event.at).min()?;
    let ends_after = |gap: &&Gap| gap.from + gap.length > first;
    Some(longest(observed.gaps.iter().filter(ends_after)))
}

fn longest<'a>(gaps: impl Iterator<Item = &'a Gap>) -> f64 {
    gaps.map(|gap| gap.length.as_secs_f64() * 1e3).fold(0.0, f64::max)
}

/// Returns the time before the end of a run of `duration` at which the last counted datagram is
/// sent, so that datagrams in flight do not count as lost.
#[must_use]
pub fn settling_time(duration: Duration) -> Duration {
    (duration / 10).min(Duration::from_secs(1))
}

/// Returns the share of `sent` that was not received, 0 to 1.
#[must_use]
pub fn share_lost(sent: u64, received: u64) -> f64 {
    if sent == 0 {
        0.0
    } else {
        sent.saturating_sub(received) as f64 / sent as f64
    }
}

/// Returns the quantile `share` of `sorted` values in nanoseconds. Units: milliseconds.
#[must_use]
pub fn quantile_ms(sorted: &[u64], share: f64) -> f64 {
    let index = ((sorted.len() as f64 * share) as usize).min(sorted.len().saturating_sub(1));
    sorted.get(index).map_or(0.0, |nanos| *nanos as f64 / 1e6)
}

/// Median with extremes. Units: those of the values.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Spread {
    /// Median of the values.
    pub median: f64,
    /// Smallest value.
    pub min: f64,
    /// Largest value.
    pub max: f64,
}

impl Spread {
    /// Creates the statistics of one value.
    #[must_use]
    pub const fn only(value: f64) -> Self {
        Self {
            median: value,
            min: value,
            max: value,
        }
    }

    /// Creates the statistics of these values; `None` if there are none.
    #[must_use]
    pub fn of(mut values: Vec<f64>) -> Option<Self> {
        values.sort_by(f64::total_cmp);
        let (min, max) = (*values.first()?, *values.last()?);
        let median = f64::midpoint(values[(values.len() - 1) / 2], values[values.len() / 2]);
        Some(Self { median, min, max })
    }
}

impl RoundTrips {
    /// Creates the statistics of some times in nanoseconds; `None` if there are none.
    #[must_use]
    pub fn of(mut trips: Vec<u64>) -> Option<Self> {
        trips.sort_unstable();
        (!trips.is_empty()).then(|| Self {
            min: quantile_ms(&trips, 0.0),
            p50: quantile_ms(&trips, 0.5),
            p99: quantile_ms(&trips, 0.99),
        })
    }
}

impl Finding {
    fn reordered(&self) -> u64 {
        match self {
            Self::Udp { reordered, .. } => *reordered,
            Self::Tcp { .. }
            | Self::Quic { .. }
            | Self::Ping { .. }
            | Self::Http { .. }
            | Self::Video { .. } => 0,
        }
    }

    fn rtt_ms(&self) -> Option<RoundTrips> {
        match self {
            Self::Ping { rtt_ms, .. } => *rtt_ms,
            Self::Tcp { .. }
            | Self::Quic { .. }
            | Self::Udp { .. }
            | Self::Http { .. }
            | Self::Video { .. } => None,
        }
    }
}

impl NetworkTraffic {
    /// Returns the difference to `before`.
    #[must_use]
    pub fn since(self, before: Self) -> Self {
        Self {
            down: self.down.since(before.down),
            up: self.up.since(before.up),
        }
    }

    /// Returns the bytes of both directions.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.down.bytes + self.up.bytes
    }
}

impl Finding {
    /// Creates the results of a captured flow, with the arguments of [`Self::of_datagrams`].
    #[must_use]
    pub fn of_capture(origin: &Origin, sent: u64, arrivals: Vec<(u64, u64)>) -> Self {
        let mut finding = Self::of_datagrams(sent, arrivals, 0);
        if let Self::Udp { capture, .. } = &mut finding {
            *capture = Some(origin.clone());
        }
        finding
    }

    /// Creates the results of a video.
    #[must_use]
    pub fn of_video(playback: Playback) -> Self {
        let lost = |(sent, in_time): &(u64, u64)| share_lost(*sent, *in_time);
        Self::Video {
            pictures: playback.pictures.len() as u64,
            shown: playback.pictures.iter().filter(|is_shown| **is_shown).count() as u64,
            layer_loss: playback.layers.iter().map(lost).collect(),
            is_shown: playback.pictures,
        }
    }

    /// Creates the results of datagrams that are numbered from 0, of which the first `sent` count;
    /// `arrivals` has number and delay of each, in order of arrival. Datagrams belong to the layers
    /// in turn.
    #[must_use]
    pub fn of_datagrams(sent: u64, arrivals: Vec<(u64, u64)>, layers: u8) -> Self {
        let mut delays: Vec<u64> = arrivals.iter().map(|(_, delay)| *delay).collect();
        delays.sort_unstable();
        let numbers = || arrivals.iter().map(|(number, _)| *number);
        let received = numbers().filter(|number| *number < sent).count() as u64;
        let mut highest = 0;
        let is_overtaken = |number: &u64| {
            highest = highest.max(*number);
            *number < highest
        };
        let is_late =
            |(number, delay): &&(u64, u64)| *number < sent && u128::from(*delay) > TIMEOUT.as_nanos();
        let turns = u64::from(layers);
        let lost_of = |layer: u64| {
            let of_layer = |number: &u64| *number < sent && number % turns == layer;
            let asked_for = (sent + turns - 1 - layer) / turns;
            share_lost(asked_for, numbers().filter(of_layer).count() as u64)
        };
        Self::Udp {
            sent,
            received,
            loss: share_lost(sent, received),
            reordered: numbers().filter(is_overtaken).count() as u64,
            delay_p50_ms: quantile_ms(&delays, 0.5),
            delay_p99_ms: quantile_ms(&delays, 0.99),
            late: arrivals.iter().filter(is_late).count() as u64,
            capture: None,
            layer_loss: (0..turns).map(lost_of).collect(),
            arrivals,
        }
    }
}

/// Returns the first words of the line of a datagram workload.
fn datagrams_label(capture: Option<&Origin>) -> String {
    capture.map_or("udp".to_owned(), |origin| {
        let Origin {
            file,
            flow,
            direction,
            ..
        } = origin;
        format!("{file}, {direction}, {flow}")
    })
}

fn finding_line(finding: &Finding) -> Option<String> {
    match finding {
        Finding::Tcp { .. } | Finding::Quic { .. } => None,
        Finding::Udp {
            sent,
            received,
            loss,
            reordered,
            delay_p50_ms,
            delay_p99_ms,
            late,
            capture,
            layer_loss,
            arrivals: _,
        } => Some(format!(
            "  {}: {received} of {sent} datagrams ({:.3} % lost), {reordered} reordered, one-way {delay_p50_ms:.1} ms (99 %: {delay_p99_ms:.1} ms), {late} later than {} ms{}{}",
            datagrams_label(capture.as_ref()),
            loss * 100.0,
            TIMEOUT.as_millis(),
            if layer_loss.is_empty() {
                String::new()
            } else {
                format!("; lost by layer: {} %", percents(layer_loss))
            },
            capture
                .as_ref()
                .and_then(|origin| Some(format!("\n  {}: {}", origin.file, origin.omitted.as_ref()?)))
                .unwrap_or_default()
        )),
        Finding::Ping {
            sent,
            received,
            rtt_ms,
        } => Some(match rtt_ms {
            Some(rtt) => format!(
                "  ping: {received} of {sent} back, {:.1} ms (min {:.1}, 99 %: {:.1})",
                rtt.p50, rtt.min, rtt.p99
            ),
            None => format!("  ping: none of {sent} back"),
        }),
        Finding::Video {
            pictures,
            shown,
            layer_loss,
            ..
        } => {
            let lost = percents(layer_loss);
            Some(format!(
                "  video: {shown} of {pictures} pictures shown; lost by layer: {lost} %"
            ))
        }
        Finding::Http { completed_s, bytes } => Some(match completed_s {
            Some(seconds) => format!("  http: {:.1} MB in {seconds:.2} s", *bytes as f64 / 1e6),
            None => format!("  http: not finished, {:.1} MB", *bytes as f64 / 1e6),
        }),
    }
}

/// Formats shares in percent.
#[must_use]
pub fn percents(shares: &[f64]) -> String {
    let shares = shares.iter().map(|share| format!("{:.2}", share * 100.0));
    shares.collect::<Vec<_>>().join(", ")
}

/// Formats a rate in Mbit/s.
#[must_use]
pub fn mbps(bps: f64) -> String {
    format!("{:.2} Mbit/s", bps / 1e6)
}

/// Maximum payload share of a tunnel that keeps TCP end to end. Source: 1,500 bytes less 28 of
/// outer headers, 40 of framing and 52 of inner headers, over an outer Ethernet frame.
pub const IDEAL_SHARE: f64 = 1380.0 / 1514.0;

/// Sampling interval of the networks during a run. Source: our choice, ten of [`BIN`]; reading the
/// devices' counters more often would load the measured machine.
pub const SAMPLE_MS: u64 = 100;

/// Bin length of a series. Source: docs/notebook/outages.md, "Set-up".
pub const BIN: Duration = Duration::from_millis(10);

/// Minimum length of recorded pauses; shorter ones are within the variation of any network. Source:
/// our choice; shorter ones would only lengthen reports.
pub const GAP_WORTH_KEEPING: Duration = Duration::from_millis(10);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn datagrams_are_counted_by_layer_and_only_those_that_are_asked_for() {
        // Seven are asked for: 0, 3 and 6 of the base, 1 and 4, 2 and 5 of the others.
        let arrivals = [0, 3, 1, 6, 2, 7, 8].map(|number| (number, number * 1_000_000));
        let Finding::Udp {
            sent,
            received,
            reordered,
            layer_loss,
            delay_p50_ms,
            ..
        } = Finding::of_datagrams(7, arrivals.to_vec(), 3)
        else {
            panic!("datagrams are found as datagrams");
        };
        assert_eq!((sent, received, reordered), (7, 5, 2));
        assert_eq!(layer_loss, [0.0, 0.5, 0.5]);
        assert_eq!(delay_p50_ms, 3.0);
        let nothing = Finding::of_datagrams(0, Vec::new(), 0);
        assert!(matches!(nothing, Finding::Udp { loss: 0.0, .. }), "{nothing:?}");
    }
}
