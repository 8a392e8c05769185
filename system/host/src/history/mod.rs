//! How networks were over a day and a year: what they carried, their round trips and loss.
//!
//! Every ten seconds the daemon's own status is asked, as anybody asks it, and what its [lines] say
//! is added to two tables: one of ten seconds, kept for a day, and one of five minutes, kept for a
//! year. Once a minute (in the first one, each time) that goes to the disk in one transaction; a
//! crash loses at most that minute. The file has 64 MiB at most; what is oldest goes first where it
//! is full. Of flows and of who was talked to it holds nothing.
//!
//! Limitations: of a hub with many clients, the 32 paths that carry most in ten seconds are kept.
//! Bytes are those of the tunnel's datagrams (UDP payload), in direct mode what the last second's
//! rate comes to.
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

/// Where the history of a daemon of that role is that has this configuration directory.
#[must_use]
pub fn file(dir: &Path, role: Role) -> PathBuf {
    dir.join(match role {
        Role::Hub => "hub-history.sqlite",
        Role::Client | Role::Repeater | Role::Share => "history.sqlite",
    })
}

/// Keeps the history of the daemon behind `socket` in `file` until the runtime ends; where that
/// cannot be, it says so once.
pub fn keep(file: PathBuf, socket: PathBuf) {
    hawser_linux::tasks::spawn(async move {
        let opened = tokio::task::spawn_blocking(move || Store::open(&file)).await;
        let Ok(opened) = opened else { return };
        let mut store = match opened {
            Ok(store) => store,
            Err(error) => {
                tracing::warn!(%error, "history is not kept");
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
                // The disk may take its time.
                let written = tokio::task::spawn_blocking(move || {
                    let result = store.add(&batch, seconds_now());
                    (store, result)
                });
                let Ok((back, result)) = written.await else { return };
                store = back;
                if let Err(error) = result {
                    tracing::warn!(%error, "a minute of history is lost");
                }
            }
        }
    });
}

/// What a file holds of the last `span`, in at most 360 steps.
///
/// `{"step_s": 60, "until": UNIX_SECONDS, "networks": {NAME: [[AT, DOWN_BPS, UP_BPS, RTT_MS,
/// RTT_MIN_MS, RTT_MAX_MS, LOSS], ...]}}`; round trips and loss (0 to 1) are null where they are
/// not known; AT is the beginning of a step. Nothing is known of steps that are missing.
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

/// What counters showed last.
#[derive(Default)]
struct Meters {
    last: BTreeMap<String, [u64; 2]>,
    ticks: usize,
}

impl Meters {
    /// What the lines of `status` have carried since the last, at most [`MOST`] of them.
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
        samples.truncate(MOST);
        samples
    }

    fn sample(&mut self, line: &Line<'_>, figures: &Value, at: u64) -> Sample {
        let fields = ["received_bytes", "sent_bytes"].map(|field| figures[field].as_u64());
        let [down, up] = if let [Some(down), Some(up)] = fields {
            // Paths count from their beginning, which this has not missed; one that shows less
            // than before began anew.
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

    /// Who has just started it may look at once.
    fn is_write_due(&self) -> bool {
        self.ticks < PER_WRITE || self.ticks.is_multiple_of(PER_WRITE)
    }
}

fn seconds_now() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| since.as_secs())
}

/// Between two samples: the shorter step.
const EVERY: Duration = Duration::from_secs(store::FINE_STEP);
/// Samples of a minute are written at once.
const PER_WRITE: usize = 6;
/// Networks, links or clients' paths of one sample.
const MOST: usize = 32;

#[cfg(test)]
mod tests;
