//! What a run of a scenario found, as JSON and as text: the same for real packets and for modelled
//! ones.
//!
//! Whoever runs a scenario hands in what it [`Observed`]; everything that is computed from it is
//! computed here.

use std::collections::BTreeMap;

use hawser_units::{Duration, Instant};
use serde::Serialize;

use crate::Counters;
use crate::oracle;
use crate::scenario::{Network, Scenario, Via};
use crate::video::Shown;

/// What a run saw, before anything is computed from it.
#[derive(Clone, Debug)]
pub struct Observed {
    /// When the workloads started.
    pub start: Instant,
    /// How long they ran.
    pub ran: Duration,
    /// Payload bytes of each workload in bins of [`BIN`].
    pub bins: Vec<Vec<u64>>,
    /// The pauses of all workloads.
    pub gaps: Vec<Gap>,
    /// What each network had carried, every [`SAMPLE_MS`].
    pub samples: Vec<Vec<Carried>>,
    /// What each network carried while the workloads ran.
    pub carried: Vec<Carried>,
    /// What each workload found.
    pub findings: Vec<Finding>,
    /// TCP segments queued out of order at client and server.
    pub out_of_order: u64,
    /// TCP segments sent again.
    pub retransmitted: u64,
    /// Of the daemons.
    pub cpu_seconds: CpuSeconds,
}

/// A time without a delivered byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gap {
    /// The delivery before it.
    pub from: Instant,
    /// Until the next one.
    pub length: Duration,
}

/// The result of one run of one arm.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// Of this format.
    pub version: u32,
    /// The scenario's.
    pub name: String,
    /// What carried the traffic.
    pub via: String,
    /// The scenario's.
    pub seed: u64,
    /// How long the workloads ran.
    pub duration_s: f64,
    /// How much of the beginning the goodput leaves out.
    pub warmup_s: f64,
    /// Payload delivered to applications, per second, after the warm-up.
    pub goodput_bps: Goodput,
    /// Payload bytes delivered over time.
    pub series: Series,
    /// What every network carried while the workloads ran.
    pub networks: BTreeMap<String, NetworkReport>,
    /// What the hop behind a repeater carried to the client meanwhile.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub client_hop: Option<Traffic>,
    /// The longest time without a delivered byte after the first, over the bulk workloads.
    pub longest_gap_ms: f64,
    /// The same, counting only gaps that overlap the second after an event.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub longest_gap_after_events_ms: Option<f64>,
    /// The same, counting all gaps that end after the first event.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub longest_gap_since_event_ms: Option<f64>,
    /// Of the first ping workload.
    pub rtt_ms: Option<RoundTrips>,
    /// TCP segments queued out of order at client and server, plus datagrams overtaken.
    pub reordered: u64,
    /// TCP segments sent again by client and server.
    pub retransmitted: u64,
    /// Processor time of the daemons while the workloads ran.
    pub cpu_seconds: CpuSeconds,
    /// The sum of the networks' rates, times [`IDEAL_SHARE`]; `None` when one is unlimited.
    pub ideal_bps: Option<f64>,
    /// Goodput over `ideal_bps`.
    pub share_of_ideal: Option<f64>,
    /// Goodput over the sum of the networks' rates.
    pub share_of_sum: Option<f64>,
    /// The most that any scheduler could have delivered ([`crate::oracle`]); `None` where no bound
    /// is known.
    pub oracle_bps: Option<f64>,
    /// Goodput over `oracle_bps`.
    pub share_of_oracle: Option<f64>,
    /// The most that could have been delivered where the tunnel splits TCP connections
    /// ([`crate::oracle::stream_goodput`]); `None` also where there is no tunnel.
    pub stream_oracle_bps: Option<f64>,
    /// Goodput over `stream_oracle_bps`.
    pub share_of_stream_oracle: Option<f64>,
    /// What each workload found beside its bytes.
    pub workloads: Vec<Finding>,
}

/// Payload per second. Units: bit/s.
#[derive(Clone, Debug, Serialize)]
pub struct Goodput {
    /// Of all workloads.
    pub total: f64,
    /// Of each.
    pub workloads: Vec<f64>,
}

/// Payload bytes in each bin.
#[derive(Clone, Debug, Serialize)]
pub struct Series {
    /// Length of a bin.
    pub bin_ms: u64,
    /// Of all workloads.
    pub bytes: Vec<u64>,
    /// Of each.
    pub workloads: Vec<Vec<u64>>,
    /// What each network handed over, both directions, in bins of [`SAMPLE_MS`]. Units: frame
    /// bytes.
    pub networks: BTreeMap<String, Vec<u64>>,
    /// Length of the networks' bins.
    pub networks_bin_ms: u64,
}

/// What one network carried.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct NetworkReport {
    /// Both directions together.
    #[serde(flatten)]
    pub both: Traffic,
    /// Towards the client.
    pub down: Traffic,
    /// From the client.
    pub up: Traffic,
}

/// What a workload found beside the bytes it delivered.
#[derive(Clone, Debug, Serialize)]
#[serde(tag = "kind", rename_all = "lowercase")]
#[non_exhaustive]
pub enum Finding {
    /// Of bulk TCP.
    Tcp {
        /// How many connections ran.
        streams: u32,
    },
    /// Of bulk QUIC.
    Quic {
        /// How many connections ran.
        streams: u32,
    },
    /// Of datagrams.
    Udp {
        /// Datagrams sent.
        sent: u64,
        /// Datagrams received.
        received: u64,
        /// The share that did not arrive.
        loss: f64,
        /// Datagrams that arrived after one sent later.
        reordered: u64,
        /// One-way delay, median.
        delay_p50_ms: f64,
        /// One-way delay that 99 of 100 did not exceed.
        delay_p99_ms: f64,
        /// The share of each layer that did not arrive; empty where there are no layers.
        #[serde(skip_serializing_if = "Vec::is_empty")]
        layer_loss: Vec<f64>,
        /// Number and one-way delay of each that arrived, in order of arrival. Units: nanoseconds.
        #[serde(skip)]
        arrivals: Vec<(u64, u64)>,
    },
    /// Of requests and echoes.
    Ping {
        /// Requests sent.
        sent: u64,
        /// Echoes received.
        received: u64,
        /// Round-trip times; `None` when nothing came back.
        rtt_ms: Option<RoundTrips>,
    },
    /// Of a video.
    Video {
        /// Pictures sent.
        pictures: u64,
        /// Pictures that were there in time with all that they build on.
        shown: u64,
        /// The share of datagrams that were not there in time, by layer: of I, P and B pictures, or
        /// of each description.
        layer_loss: Vec<f64>,
        /// For each picture sent, whether it is one of those shown.
        #[serde(skip)]
        is_shown: Vec<bool>,
    },
    /// Of a download.
    Http {
        /// How long it took; `None` when it did not finish.
        completed_s: Option<f64>,
        /// Body bytes received.
        bytes: u64,
    },
}

/// A summary of round-trip times in milliseconds.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct RoundTrips {
    /// The shortest.
    pub min: f64,
    /// The median.
    pub p50: f64,
    /// What 99 of 100 did not exceed.
    pub p99: f64,
}

/// What a network has carried in each direction.
#[derive(Clone, Copy, Debug, Default)]
pub struct Carried {
    /// Towards the client.
    pub down: Traffic,
    /// From the client.
    pub up: Traffic,
}

/// What one direction has carried. Units: bytes of Ethernet frames.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct Traffic {
    /// Bytes that came out at the other end.
    pub bytes: u64,
    /// Packets that came out at the other end.
    pub packets: u64,
    /// Packets that did not.
    pub lost: u64,
}

impl Traffic {
    /// What came after `before`.
    #[must_use]
    pub fn since(self, before: Self) -> Self {
        Self {
            bytes: self.bytes.saturating_sub(before.bytes),
            packets: self.packets.saturating_sub(before.packets),
            lost: self.lost.saturating_sub(before.lost),
        }
    }

    /// Both together.
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

/// User and system time. Units: seconds.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct CpuSeconds {
    /// Of the client's daemon.
    pub client: f64,
    /// Of the hub.
    pub hub: f64,
}

impl Report {
    /// Computes what follows from what a run saw.
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
            networks: networks(scenario, &observed.carried),
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

    /// A few lines for a person.
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

    /// Payload bytes delivered in the whole run.
    #[must_use]
    pub fn delivered_bytes(&self) -> u64 {
        self.series.bytes.iter().sum()
    }
}

impl Series {
    fn new(scenario: &Scenario, per_workload: Vec<Vec<u64>>, samples: &[Vec<Carried>]) -> Self {
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

fn networks(scenario: &Scenario, carried: &[Carried]) -> BTreeMap<String, NetworkReport> {
    let report = |(network, carried): (&Network, &Carried)| {
        let both = carried.down.plus(carried.up);
        let (down, up) = (carried.down, carried.up);
        (network.name.clone(), NetworkReport { both, down, up })
    };
    scenario.networks.iter().zip(carried).map(report).collect()
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

/// How long before the end of a run of `duration` the last datagram is sent that is asked for: one
/// on its way is not lost.
#[must_use]
pub fn settling_time(duration: Duration) -> Duration {
    (duration / 10).min(Duration::from_secs(1))
}

/// The share of `sent` that was not received.
#[must_use]
pub fn share_lost(sent: u64, received: u64) -> f64 {
    if sent == 0 {
        0.0
    } else {
        sent.saturating_sub(received) as f64 / sent as f64
    }
}

/// The value that `share` of `sorted` nanoseconds do not exceed. Units: milliseconds.
#[must_use]
pub fn quantile_ms(sorted: &[u64], share: f64) -> f64 {
    let index = ((sorted.len() as f64 * share) as usize).min(sorted.len().saturating_sub(1));
    sorted.get(index).map_or(0.0, |nanos| *nanos as f64 / 1e6)
}

/// A median with its extremes. Units: those of the values.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Spread {
    /// The middle value.
    pub median: f64,
    /// The smallest.
    pub min: f64,
    /// The largest.
    pub max: f64,
}

impl Spread {
    /// Of one value.
    #[must_use]
    pub const fn only(value: f64) -> Self {
        Self {
            median: value,
            min: value,
            max: value,
        }
    }

    /// Of these values; `None` when there are none.
    #[must_use]
    pub fn of(mut values: Vec<f64>) -> Option<Self> {
        values.sort_by(f64::total_cmp);
        let (min, max) = (*values.first()?, *values.last()?);
        let median = f64::midpoint(values[(values.len() - 1) / 2], values[values.len() / 2]);
        Some(Self { median, min, max })
    }
}

impl RoundTrips {
    /// Of some times in nanoseconds; `None` when there are none.
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

impl Carried {
    /// What came after `before`.
    #[must_use]
    pub fn since(self, before: Self) -> Self {
        Self {
            down: self.down.since(before.down),
            up: self.up.since(before.up),
        }
    }

    /// Bytes of both directions.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.down.bytes + self.up.bytes
    }
}

impl Finding {
    /// Of a video of which this could be shown.
    #[must_use]
    pub fn of_video(shown: Shown) -> Self {
        let lost = |(sent, in_time): &(u64, u64)| share_lost(*sent, *in_time);
        Self::Video {
            pictures: shown.pictures.len() as u64,
            shown: shown.pictures.iter().filter(|is_shown| **is_shown).count() as u64,
            layer_loss: shown.layers.iter().map(lost).collect(),
            is_shown: shown.pictures,
        }
    }

    /// Of datagrams that were numbered from 0, of which the first `sent` are asked for; `arrivals`
    /// has number and delay of each, in order of arrival. Their layers take turns.
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
            layer_loss: (0..turns).map(lost_of).collect(),
            arrivals,
        }
    }
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
            layer_loss,
            arrivals: _,
        } => Some(format!(
            "  udp: {received} of {sent} datagrams ({:.3} % lost), {reordered} reordered, one-way {delay_p50_ms:.1} ms (99 %: {delay_p99_ms:.1} ms){}",
            loss * 100.0,
            if layer_loss.is_empty() {
                String::new()
            } else {
                format!("; lost by layer: {} %", percents(layer_loss))
            }
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

/// Shares for a person, in percent.
#[must_use]
pub fn percents(shares: &[f64]) -> String {
    let shares = shares.iter().map(|share| format!("{:.2}", share * 100.0));
    shares.collect::<Vec<_>>().join(", ")
}

/// A rate for a person.
#[must_use]
pub fn mbps(bps: f64) -> String {
    format!("{:.2} Mbit/s", bps / 1e6)
}

/// A full inner TCP payload over its outer Ethernet frame, with 40 bytes of framing: the most a
/// tunnel that keeps TCP end to end can show.
pub const IDEAL_SHARE: f64 = 1380.0 / 1514.0;

/// How often the networks are sampled during a run.
pub const SAMPLE_MS: u64 = 100;

/// The resolution of a series.
pub const BIN: Duration = Duration::from_millis(10);

/// Shorter pauses are not worth keeping: they are within the variation of any network.
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
