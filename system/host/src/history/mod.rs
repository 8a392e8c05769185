//! History of networks over a day and a year: their traffic, round trips and loss.
//!
//! Every 10 s the daemon's status is queried over the control socket, and the values of its [lines]
//! are added to two tables: one with steps of 10 s, kept for a day, and one with steps of 5 min,
//! kept for a year. They are written to the disk in one transaction per minute (in the first
//! minute, after each sample); a crash loses at most that minute. The file has at most 64 MiB; when
//! it is full, the oldest entries are removed. It contains nothing about flows or their
//! destinations.
//!
//! Limitations: on a hub with many clients, only the 32 paths with the most traffic in each 10 s
//! are kept. Bytes are those of the tunnel's datagrams (UDP payload); in direct mode they are
//! computed from the last second's rate.
//!
//! [lines]: crate::lines

mod store;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};

use crate::control_socket;
use crate::lines::{Line, lines};
use crate::run_dir::Role;
use store::{Sample, Store};

pub use crate::database::StoreError;

/// Returns the history file of a daemon of that role with this configuration directory.
#[must_use]
pub fn file(dir: &Path, role: Role) -> PathBuf {
    dir.join(match role {
        Role::Hub => "hub-history.sqlite",
        Role::Client | Role::Repeater | Role::Share => "history.sqlite",
    })
}

/// Stores the history of the daemon behind `socket` in `file` until the runtime ends; logs once if
/// this is not possible.
pub fn keep(file: PathBuf, socket: PathBuf) {
    hawser_linux::tasks::spawn(async move {
        let opened = tokio::task::spawn_blocking(move || Store::open(&file)).await;
        let Ok(opened) = opened else { return };
        let mut store = match opened {
            Ok(store) => store,
            Err(error) => {
                tracing::warn!(%error, "cannot store the history");
                return;
            }
        };
        let mut meters = Meters::default();
        let mut waiting = Vec::new();
        let mut ticks = tokio::time::interval(EVERY);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            let Ok(status) = control_socket::status(&socket).await else {
                continue;
            };
            waiting.extend(meters.samples(&status, seconds_now()));
            if meters.is_write_due() {
                let batch = std::mem::take(&mut waiting);
                // The disk may be slow.
                let written = tokio::task::spawn_blocking(move || {
                    let result = store.add(&batch, seconds_now());
                    (store, result)
                });
                let Ok((back, result)) = written.await else { return };
                store = back;
                if let Err(error) = result {
                    tracing::warn!(%error, "cannot store a minute of history");
                }
            }
        }
    });
}

/// Returns the contents of a file for the last `span`, in at most 360 steps.
///
/// `{"step_s": 60, "until": UNIX_SECONDS, "networks": {NAME: [[AT, DOWN_BPS, UP_BPS, RTT_MS,
/// RTT_MIN_MS, RTT_MAX_MS, LOSS], ...]}}`; round trips and loss (0 to 1) are null where they are
/// not known; AT is the beginning of a step. Steps without data are omitted.
///
/// # Errors
/// The file cannot be read.
pub fn read(file: &Path, span: Duration) -> Result<Value, StoreError> {
    let until = seconds_now();
    let span = span.as_secs().clamp(EVERY.as_secs(), store::YEAR);
    let step = store::step_of(span);
    let mut networks: BTreeMap<String, Vec<Value>> = BTreeMap::new();
    if let Some(store) = Store::open_to_read(file)? {
        for point in store.points(until.saturating_sub(span), span)? {
            let rate = |bytes: u64| bytes * 8 / step;
            let row = json!([
                point.at,
                rate(point.down),
                rate(point.up),
                point.rtt_ms,
                point.rtt_min_ms,
                point.rtt_max_ms,
                point.loss,
            ]);
            networks.entry(point.name).or_default().push(row);
        }
    }
    Ok(json!({ "step_s": step, "until": until, "networks": networks }))
}

/// Last values of counters.
#[derive(Default)]
struct Meters {
    last: BTreeMap<String, [u64; 2]>,
    ticks: usize,
}

impl Meters {
    /// Returns the traffic of the lines of `status` since the last call, at most [`MAX`] of them.
    fn samples(&mut self, status: &Value, at: u64) -> Vec<Sample> {
        self.ticks += 1;
        let shown = lines(status);
        self.last
            .retain(|name, _| shown.iter().any(|line| line.name == *name));
        let mut samples: Vec<_> = shown
            .iter()
            .filter_map(|line| Some(self.sample(line, line.figures?, at)))
            .collect();
        samples.sort_by_key(|sample| std::cmp::Reverse(sample.down + sample.up));
        samples.truncate(MAX);
        samples
    }

    fn sample(&mut self, line: &Line<'_>, figures: &Value, at: u64) -> Sample {
        let fields = ["received_bytes", "sent_bytes"].map(|field| figures[field].as_u64());
        let [down, up] = if let [Some(down), Some(up)] = fields {
            // Counters of a path start with the path, whose beginning is not missed here; a
            // decreased counter has restarted.
            let before = self
                .last
                .insert(line.name.clone(), [down, up])
                .unwrap_or_default();
            [(down, before[0]), (up, before[1])].map(|(now, before)| now.checked_sub(before).unwrap_or(now))
        } else {
            let rates = ["receive_bps", "send_bps"].map(|field| figures[field].as_u64().unwrap_or(0));
            rates.map(|bps| bps / 8 * EVERY.as_secs())
        };
        let rtt_us = figures["rtt_ms"].as_f64().filter(|rtt| *rtt > 0.0);
        Sample {
            name: line.name.clone(),
            at,
            down,
            up,
            rtt_us: rtt_us.map(|rtt| (rtt * 1e3) as u64),
            loss_ppm: figures["loss"].as_f64().map(|loss| (loss * 1e6) as u64),
        }
    }

    /// Returns whether a write is due; each sample of the first minute is written, because a user
    /// may read it right after the start.
    fn is_write_due(&self) -> bool {
        self.ticks < PER_WRITE || self.ticks.is_multiple_of(PER_WRITE)
    }
}

fn seconds_now() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| since.as_secs())
}

/// Interval of samples: the shorter step.
const EVERY: Duration = Duration::from_secs(store::FINE_STEP);
/// Number of samples that are written at once. Source: a minute of samples, one each 10 s
/// (`FINE_STEP`).
const PER_WRITE: usize = 6;
/// Maximum number of networks, links or clients' paths of one sample. Source: our choice, a bound
/// on the file; a picture of more lines cannot be read.
const MAX: usize = 32;

#[cfg(test)]
mod tests;
