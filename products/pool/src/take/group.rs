//! The group of members' uplinks in use: measurements of their paths, and changes of the group.

use std::net::SocketAddr;
use std::time::{Duration, Instant as Clock};

use hawser_config::PoolConfig;
use hawser_control::client::neighbour_uplinks::Wish;
use hawser_dataplane::Snapshot;
use hawser_linux::udp::plain;
use hawser_proto::pool::monitor::{Measured, MemberId, Reachable};
use hawser_proto::pool::selection::{Change, Limits};
use hawser_units::{Instant, Rate};
use serde_json::{Value, json};

use super::{Channel, Pool};
use crate::{measured_status, merge, state_text};

/// Sample of a path.
pub(super) struct PathSample {
    /// Session and number.
    pub(super) path: (u64, u16),
    pub(super) remote: SocketAddr,
    /// UDP payload in all, up and down. Unit: bytes.
    pub(super) bytes: [u64; 2],
    measured: Measured,
    /// Rate of the last second from the hub.
    received: Rate,
}

/// Returns a sample of every path of a snapshot.
pub(super) fn samples(snapshot: &Snapshot) -> Vec<PathSample> {
    let samples = snapshot.paths().filter_map(|(session, path)| {
        let is_full = path.in_flight_bytes >= path.window_bytes / 2;
        Some(PathSample {
            path: (session, path.path),
            remote: plain(path.remote?),
            bytes: [path.sent_bytes, path.received_bytes],
            measured: Measured {
                rate: Rate::from_bps(path.rate_bps),
                is_filled: is_full && !path.starting,
                loss: path.loss,
                delay: Duration::from_secs_f64((path.rtt_ms / 2e3).max(0.0)),
            },
            received: Rate::from_bps(path.receive_bps),
        })
    });
    samples.collect()
}

/// Returns the limits of the configuration.
pub(super) fn limits(config: &PoolConfig) -> Limits {
    Limits {
        uplinks: config.uplinks,
        cost_below: config.cost_below.map(std::num::NonZeroU8::get),
    }
}

/// Highest rate from the hub of the last [`PEAK_TIME`] to twice that: a lower bound of what the
/// uplink delivers, since only the hub knows whether it fills the path.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Delivered {
    /// Peaks of the current and of the previous period.
    peaks: [Rate; 2],
    since: Option<Clock>,
}

impl Delivered {
    fn handle_rate(&mut self, rate: Rate, now: Clock) {
        let since = *self.since.get_or_insert(now);
        if now.duration_since(since) >= PEAK_TIME {
            self.peaks = [Rate::ZERO, self.peaks[0]];
            self.since = Some(now);
        }
        self.peaks[0] = self.peaks[0].max(rate);
    }

    fn rate(&self) -> Rate {
        self.peaks[0].max(self.peaks[1])
    }
}

impl Pool {
    /// Records the measurements of members' paths in the registry. The rate of a path is the larger
    /// one of both directions.
    pub(super) fn measure(&mut self, samples: &[PathSample], now: Instant) {
        for sample in samples {
            let mut channels = self.channels.iter_mut();
            let Some((member, channel)) = channels.find(|(_, channel)| channel.relay() == sample.remote)
            else {
                self.gre.handle_measured(sample.remote, sample.measured, now);
                continue;
            };
            channel.delivered.handle_rate(sample.received, Clock::now());
            let measured = Measured {
                rate: sample.measured.rate.max(channel.delivered.rate()),
                ..sample.measured
            };
            self.registry.handle_measured(*member, measured, now);
        }
    }

    /// Passes the reachable uplinks to the selection. An offer for an unknown hub is not usable.
    pub(super) fn select(&mut self, now: Instant) {
        let is_usable = |one: &Reachable| {
            let channel = self.channels.get(&one.member);
            channel.is_some_and(|channel| channel.hub.is_some())
        };
        let reachable: Vec<_> = self.registry.reachable().filter(is_usable).collect();
        self.selection.handle_reachable(&reachable, now);
    }

    /// Applies a change of the group.
    pub(super) fn apply(&mut self, change: Change) -> Option<Wish> {
        match change {
            Change::Use(member) => self.take_channel(member),
            Change::Release(member) => {
                let channel = self.channels.get_mut(&member)?;
                let network = channel.network.take()?;
                self.registry.handle_released(member);
                tracing::info!(network = channel.label, "a neighbour's uplink is no longer used");
                Some(Wish::Leave(network))
            }
        }
    }

    /// Returns the entry of an uplink in status.
    pub(super) fn uplink_status(&self, member: MemberId, channel: &Channel) -> Value {
        let state = self.registry.state(member);
        let reason = self.selection.reason(member);
        let mut status = json!({
            "label": channel.label,
            "state": state.map_or("gone", state_text),
            "cap_bps": Some(channel.offer.cap_bps).filter(|cap| *cap > 0),
            "cost": channel.offer.cost,
            "quota_left_bytes": channel.offer.quota_left,
            "in_use": reason.is_some_and(|reason| reason.is_in_use()),
            "why": reason.map(|reason| reason.to_string()),
            "up_bytes": channel.offer.carried[0],
            "down_bytes": channel.offer.carried[1],
        });
        merge(&mut status, measured_status(self.registry.measured(member)));
        status
    }

    /// Returns the entry of the group in status.
    pub(super) fn group_status(&self) -> Value {
        let Limits { uplinks, cost_below } = self.selection.limits();
        let used = self.channels.iter().filter(|(member, _)| {
            let reason = self.selection.reason(**member);
            reason.is_some_and(|reason| reason.is_in_use())
        });
        json!({
            "uplinks": used.map(|(_, channel)| &channel.label).collect::<Vec<_>>(),
            "max_uplinks": uplinks,
            "cost_below": cost_below,
            "promise_bps": self.selection.promise().as_bps(),
        })
    }
}

/// Period of a peak. Source: our choice, the time for which the group settles
/// (`hawser_proto::pool::selection`).
const PEAK_TIME: Duration = Duration::from_secs(30);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_peak_is_remembered_for_one_to_two_periods() {
        let mut delivered = Delivered::default();
        let start = Clock::now();
        let mut after = |seconds, mbps| {
            delivered.handle_rate(Rate::from_mbps(mbps), start + Duration::from_secs(seconds));
            delivered.rate()
        };
        assert_eq!(after(0, 5), Rate::from_mbps(5));
        assert_eq!(after(29, 1), Rate::from_mbps(5));
        assert_eq!(after(30, 1), Rate::from_mbps(5));
        assert_eq!(after(59, 2), Rate::from_mbps(5));
        assert_eq!(after(60, 1), Rate::from_mbps(2));
    }
}
