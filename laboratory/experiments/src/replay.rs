//! Conversion of a recording of `hawser record` into a scenario, with optional changes.
//!
//! The rates of a network become traces; its outages, delays and losses become events. The capacity
//! of an idle network is unknown, and assumed to equal its rate when busy.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::io;
use std::path::Path;

use hawser_netem::scenario::{Scenario, ScenarioError};
use hawser_recording::{FRAMES_OVER_PAYLOAD, NetworkSample, Recording, Seen};

/// A scenario made from a recording: its text, and the traces that the text names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Replay {
    /// Text of the scenario.
    pub scenario: String,
    /// Traces, by their names in the scenario.
    pub traces: BTreeMap<String, String>,
    /// Notes for the user about parts that could not be replayed.
    pub notes: Vec<String>,
}

/// Reason why a recording cannot be replayed.
#[derive(Clone, Copy, Debug, thiserror::Error, PartialEq, Eq)]
#[error("no network carried anything in this recording; record while the networks are in use")]
pub struct NoTraffic;

/// Samples of one network; `None` while the network was absent.
type Series<'a> = Vec<Option<&'a Seen>>;

impl Replay {
    /// Creates the scenario of a recording: one bulk download over Hawser and a hub, and a ping.
    ///
    /// # Errors
    /// [`NoTraffic`].
    pub fn of(recording: &Recording) -> Result<Self, NoTraffic> {
        let first = recording.samples.first().map_or(0, |sample| sample.t_ms);
        let times: Vec<u64> = recording
            .samples
            .iter()
            .map(|sample| sample.t_ms - first)
            .collect();
        let duration = times.last().unwrap_or(&0) + recording.interval_ms;
        let recorded: BTreeSet<&String> = recording
            .samples
            .iter()
            .flat_map(|sample| sample.networks.keys())
            .collect();
        let mut replay = Self {
            scenario: format!(
                "name = \"a recording\"\nseed = 1\nduration = \"{duration}ms\"\nvia = \"hub\"\ntcp = \"stream\"\n"
            ),
            traces: BTreeMap::new(),
            notes: Vec::new(),
        };
        let mut events = String::new();
        let mut taken = BTreeSet::new();
        for name in recorded {
            let series: Series<'_> = recording
                .samples
                .iter()
                .map(|sample: &NetworkSample| sample.networks.get(name))
                .collect();
            let device = device(name, &mut taken);
            let (down, up) = (
                rates(recording, &series, down_bps),
                rates(recording, &series, up_bps),
            );
            let Some((down, up)) = down.zip(up) else {
                replay
                    .notes
                    .push(format!("{name} never carried anything and is left out"));
                continue;
            };
            replay.add_network(&device, &times, (&down, &up), &series);
            add_events(&mut events, &device, &times, &series);
        }
        if replay.traces.is_empty() {
            return Err(NoTraffic);
        }
        replay.scenario += "\n[[workload]]\nkind = \"tcp\"\n\n[[workload]]\nkind = \"ping\"\n";
        replay.scenario += &events;
        Ok(replay)
    }

    fn add_network(
        &mut self,
        device: &str,
        times: &[u64],
        (down, up): (&[u64], &[u64]),
        series: &Series<'_>,
    ) {
        let start = steady(series).next().unwrap_or((0.0, 0.0));
        // Writing to a string cannot fail.
        let _ = write!(self.scenario, "\n[[network]]\nname = \"{device}\"\n");
        for (direction, rates) in [("down", down), ("up", up)] {
            let name = format!("{device}-{direction}.csv");
            let _ = writeln!(
                self.scenario,
                "{direction} = {{ trace = \"{name}\", delay = \"{}\", loss = {:?} }}",
                half_of(start.0),
                start.1
            );
            let mut trace = "seconds,bytes_per_second\n".to_owned();
            for (time, bps) in times.iter().zip(rates) {
                let frames = *bps as f64 * FRAMES_OVER_PAYLOAD / 8.0;
                let _ = writeln!(trace, "{:.3},{frames:.0}", *time as f64 / 1e3);
            }
            self.traces.insert(name, trace);
        }
    }

    /// Adds the `[[network]]` tables of `text`, which was read from `path`.
    ///
    /// # Errors
    /// [`ScenarioError`] with file and line of an error in `text`.
    pub fn add_networks(
        &mut self,
        text: &str,
        path: &Path,
        read: &mut dyn FnMut(&Path) -> io::Result<Vec<u8>>,
    ) -> Result<(), ScenarioError> {
        let alone = "name = \"a\"\nduration = \"1s\"\nvia = \"hub\"\n";
        Scenario::parse(&format!("{alone}{text}"), path, &[], read).map_err(|mut error| {
            if let ScenarioError::Invalid { line, .. } = &mut error {
                *line = line.saturating_sub(alone.lines().count()).max(1);
            }
            error
        })?;
        self.scenario += "\n";
        self.scenario += text;
        Ok(())
    }

    /// Returns the scenario with `field=value` replacements. `read` reads traces outside the
    /// recording, relative to `path`.
    ///
    /// # Errors
    /// [`ScenarioError`] if a replacement or an added network is invalid.
    pub fn parse(
        &self,
        path: &Path,
        settings: &[String],
        read: &mut dyn FnMut(&Path) -> io::Result<Vec<u8>>,
    ) -> Result<Scenario, ScenarioError> {
        Scenario::parse(&self.scenario, path, settings, &mut |trace| {
            let name = trace
                .file_name()
                .and_then(|name| name.to_str())
                .unwrap_or_default();
            match self.traces.get(name) {
                Some(text) => Ok(text.clone().into_bytes()),
                None => read(trace),
            }
        })
    }
}

/// Returns the maximum rate around each sample; unknown rates are the median of the known ones.
/// `None` if no rate is known.
fn rates(recording: &Recording, series: &Series<'_>, rate: fn(&Seen) -> u64) -> Option<Vec<u64>> {
    let reach = (WINDOW_MS / recording.interval_ms).max(1) as usize;
    let best: Vec<u64> = (0..series.len())
        .map(|n| {
            let around = &series[n.saturating_sub(reach)..series.len().min(n + reach + 1)];
            around.iter().flatten().map(|seen| rate(seen)).max().unwrap_or(0)
        })
        .collect();
    let mut known: Vec<u64> = best.iter().copied().filter(|bps| *bps >= MIN_BPS).collect();
    known.sort_unstable();
    let median = *known.get(known.len() / 2)?;
    let filled = best
        .into_iter()
        .map(|bps| if bps < MIN_BPS { median } else { bps });
    Some(filled.collect())
}

/// Returns events for a network that appears or disappears, or whose delay or loss changes.
fn add_events(events: &mut String, device: &str, times: &[u64], series: &Series<'_>) {
    let mut event = |time: u64, set: &str| {
        let _ = write!(
            events,
            "\n[[event]]\nat = \"{time}ms\"\nnetwork = \"{device}\"\nset = {set}\n"
        );
    };
    let mut state = "up";
    let mut now = steady(series).next().unwrap_or((0.0, 0.0));
    for (time, seen) in times.iter().zip(series) {
        let next = match seen {
            None => "down",
            Some(seen) if seen.state == "dead" || seen.state == "suspect" => "blackhole",
            Some(_) => "up",
        };
        if next != state {
            event(*time, &format!("\"{next}\""));
            state = next;
        }
        let Some(found) = seen.and_then(condition) else {
            continue;
        };
        if differs(found.0, now.0, MIN_DELAY_CHANGE_MS) || differs(found.1, now.1, MIN_LOSS_CHANGE) {
            event(
                *time,
                &format!("{{ delay = \"{}\", loss = {:?} }}", half_of(found.0), found.1),
            );
            now = found;
        }
    }
}

/// Yields minimum round-trip time and loss of the active samples.
fn steady<'a>(series: &'a Series<'_>) -> impl Iterator<Item = (f64, f64)> + 'a {
    series.iter().flatten().filter_map(|seen| condition(seen))
}

fn condition(seen: &Seen) -> Option<(f64, f64)> {
    (seen.state == "active" && seen.min_rtt_ms > 0.0).then_some((seen.min_rtt_ms, seen.loss))
}

/// Returns whether two values differ by more than a quarter, and by more than `least`.
fn differs(a: f64, b: f64, least: f64) -> bool {
    let by = (a - b).abs();
    by > least && by > 0.25 * a.max(b)
}

fn half_of(rtt_ms: f64) -> String {
    format!("{:.0}us", rtt_ms * 500.0)
}

fn down_bps(seen: &Seen) -> u64 {
    seen.receive_bps
}

fn up_bps(seen: &Seen) -> u64 {
    seen.rate_bps.max(seen.send_bps)
}

/// Returns a valid and unique name in a scenario.
fn device(name: &str, taken: &mut BTreeSet<String>) -> String {
    let plain = |c: char| {
        if c.is_ascii_alphanumeric() || c == '_' {
            c
        } else {
            '-'
        }
    };
    let mut device: String = name.chars().map(plain).take(15).collect();
    if device.is_empty() || device == "lo" || device.starts_with("hawser") {
        device = format!("n-{}", device.chars().take(13).collect::<String>());
    }
    let mut n = 2;
    while !taken.insert(device.clone()) {
        device = format!("{}-{n}", device.chars().take(11).collect::<String>());
        n += 1;
    }
    device
}

/// Minimum rate of a busy path; a lower rate shows no capacity. Source: our choice; probes and
/// pings stay below it, and each usable network exceeds it in a download.
const MIN_BPS: u64 = 50_000;
/// Time around a sample for its maximum rate, longer than the pauses of a download. Source: our
/// choice; a longer one hides dips of a cellular network's rate.
const WINDOW_MS: u64 = 5_000;
/// Minimum change of delay that affects a scheduler. Source: our choice; smaller ones only lengthen
/// the scenario.
const MIN_DELAY_CHANGE_MS: f64 = 2.0;
/// Minimum change of loss; the smoothing of the estimate causes smaller ones. Source: our choice;
/// smaller ones only lengthen the scenario.
const MIN_LOSS_CHANGE: f64 = 0.002;

#[cfg(test)]
mod tests;
