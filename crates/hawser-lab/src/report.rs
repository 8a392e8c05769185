//! What a run found, as JSON and as text.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::sample::Traffic;
use crate::workload::{Finding, RoundTrips};

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
    /// The longest time without a delivered byte after the first, over the bulk workloads.
    pub longest_gap_ms: f64,
    /// The same, counting only gaps that overlap the second after an event.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub longest_gap_after_events_ms: Option<f64>,
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
    /// What each network handed over, both directions, in bins of [`SAMPLE_MS`]. Units: frame bytes.
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

/// User and system time. Units: seconds.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct CpuSeconds {
    /// Of the client's daemon.
    pub client: f64,
    /// Of the hub.
    pub hub: f64,
}

impl Report {
    /// A few lines for a person.
    #[must_use]
    pub fn to_text(&self) -> String {
        let mut lines = vec![format!(
            "{}: {} via {}{}",
            self.name,
            mbps(self.goodput_bps.total),
            self.via,
            self.share_of_ideal
                .map_or(String::new(), |share| format!(", {share:.3} of ideal")),
        )];
        for (name, network) in &self.networks {
            lines.push(format!(
                "  {name:<15} down {:>9.2} MB, up {:>8.2} MB, lost {}",
                network.down.bytes as f64 / 1e6,
                network.up.bytes as f64 / 1e6,
                network.both.lost
            ));
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

fn finding_line(finding: &Finding) -> Option<String> {
    match finding {
        Finding::Tcp { .. } => None,
        Finding::Udp {
            sent,
            received,
            loss,
            reordered,
            delay_p50_ms,
            delay_p99_ms,
        } => Some(format!(
            "  udp: {received} of {sent} datagrams ({:.3} % lost), {reordered} reordered, one-way {delay_p50_ms:.1} ms (99 %: {delay_p99_ms:.1} ms)",
            loss * 100.0
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
        Finding::Http { completed_s, bytes } => Some(match completed_s {
            Some(seconds) => format!("  http: {:.1} MB in {seconds:.2} s", *bytes as f64 / 1e6),
            None => format!("  http: not finished, {:.1} MB", *bytes as f64 / 1e6),
        }),
    }
}

/// A rate for a person.
#[must_use]
pub fn mbps(bps: f64) -> String {
    format!("{:.2} Mbit/s", bps / 1e6)
}

/// A full inner TCP payload over its outer Ethernet frame, with 40 bytes of framing: the most a tunnel that keeps TCP
/// end to end can show.
pub const IDEAL_SHARE: f64 = 1380.0 / 1514.0;

/// How often the networks are sampled during a run.
pub const SAMPLE_MS: u64 = 100;
