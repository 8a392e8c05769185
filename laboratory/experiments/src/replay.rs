//! A recording of `hawser record` as a scenario, with changes.
//!
//! The rates of a network become traces, its outages, delays and losses events. What a path does
//! not show is filled in carefully: an idle network has the rate that it shows when busy.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::io;
use std::path::Path;

use hawser_netem::scenario::{Scenario, ScenarioError};
use hawser_recording::{FRAMES_OVER_PAYLOAD, Look, Recording, Seen};

/// A scenario made of a recording: its text, and the traces that the text names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Replay {
    /// In the format of `docs` and `hawser check`.
    pub scenario: String,
    /// By their names in the scenario.
    pub traces: BTreeMap<String, String>,
    /// What could not be replayed, for a person.
    pub notes: Vec<String>,
}

/// Why a recording cannot be replayed.
#[derive(Clone, Copy, Debug, thiserror::Error, PartialEq, Eq)]
#[error("no network carried anything in this recording; record while the networks are in use")]
pub struct NothingCarried;

/// What is known of one network at one look; `None` when it was gone.
type Series<'a> = Vec<Option<&'a Seen>>;

impl Replay {
    /// The scenario of what was seen: one bulk download over Hawser and a hub, and a ping.
    ///
    /// # Errors
    /// [`NothingCarried`].
    pub fn of(recording: &Recording) -> Result<Self, NothingCarried> {
        let first = recording.looks.first().map_or(0, |look| look.t_ms);
        let times: Vec<u64> = recording.looks.iter().map(|look| look.t_ms - first).collect();
        let duration = times.last().unwrap_or(&0) + recording.interval_ms;
        let recorded: BTreeSet<&String> = recording
            .looks
            .iter()
            .flat_map(|look| look.networks.keys())
            .collect();
        let mut replay = Self {
            scenario: format!(
                "name = \"a recording\"\nseed = 1\nduration = \"{duration}ms\"\nvia = \"hub\"\n"
            ),
            traces: BTreeMap::new(),
            notes: Vec::new(),
        };
        let mut events = String::new();
        let mut taken = BTreeSet::new();
        for name in recorded {
            let series: Series<'_> = recording
                .looks
                .iter()
                .map(|look: &Look| look.networks.get(name))
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
            return Err(NothingCarried);
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
                one_way(start.0),
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

    /// Adds networks: `[[network]]` tables as in a scenario, read from `path`.
    ///
    /// # Errors
    /// [`ScenarioError`] with the file and line of what is wrong in `text`.
    pub fn add_networks(
        &mut self,
        text: &str,
        path: &Path,
        read: &mut dyn FnMut(&Path) -> io::Result<String>,
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

    /// The scenario, with `field=value` replacements. Traces that are not of the recording are read
    /// with `read`, beside `path`.
    ///
    /// # Errors
    /// [`ScenarioError`]: a replacement or an added network does not fit.
    pub fn parse(
        &self,
        path: &Path,
        settings: &[String],
        read: &mut dyn FnMut(&Path) -> io::Result<String>,
    ) -> Result<Scenario, ScenarioError> {
        Scenario::parse(&self.scenario, path, settings, &mut |trace| {
            let name = trace
                .file_name()
                .and_then(|name| name.to_str())
                .unwrap_or_default();
            match self.traces.get(name) {
                Some(text) => Ok(text.clone()),
                None => read(trace),
            }
        })
    }
}

/// The best rate around each look; what is not known is the median of what is. `None` when nothing
/// is.
fn rates(recording: &Recording, series: &Series<'_>, rate: fn(&Seen) -> u64) -> Option<Vec<u64>> {
    let reach = (WINDOW_MS / recording.interval_ms).max(1) as usize;
    let best: Vec<u64> = (0..series.len())
        .map(|n| {
            let around = &series[n.saturating_sub(reach)..series.len().min(n + reach + 1)];
            around.iter().flatten().map(|seen| rate(seen)).max().unwrap_or(0)
        })
        .collect();
    let mut known: Vec<u64> = best.iter().copied().filter(|bps| *bps >= LEAST_BPS).collect();
    known.sort_unstable();
    let median = *known.get(known.len() / 2)?;
    let filled = best
        .into_iter()
        .map(|bps| if bps < LEAST_BPS { median } else { bps });
    Some(filled.collect())
}

/// Events where the network comes and goes, and where its delay or loss is another.
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
        if differs(found.0, now.0, LEAST_DELAY_CHANGE_MS) || differs(found.1, now.1, LEAST_LOSS_CHANGE) {
            event(
                *time,
                &format!("{{ delay = \"{}\", loss = {:?} }}", one_way(found.0), found.1),
            );
            now = found;
        }
    }
}

/// Smallest round trip and loss of the looks that show them.
fn steady<'a>(series: &'a Series<'_>) -> impl Iterator<Item = (f64, f64)> + 'a {
    series.iter().flatten().filter_map(|seen| condition(seen))
}

fn condition(seen: &Seen) -> Option<(f64, f64)> {
    (seen.state == "active" && seen.min_rtt_ms > 0.0).then_some((seen.min_rtt_ms, seen.loss))
}

/// By more than a quarter, and by more than `least`.
fn differs(a: f64, b: f64, least: f64) -> bool {
    let by = (a - b).abs();
    by > least && by > 0.25 * a.max(b)
}

fn one_way(rtt_ms: f64) -> String {
    format!("{:.0}us", rtt_ms * 500.0)
}

fn down_bps(seen: &Seen) -> u64 {
    seen.receive_bps
}

fn up_bps(seen: &Seen) -> u64 {
    seen.rate_bps.max(seen.send_bps)
}

/// A name that a scenario takes, unlike all others.
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

/// A path that carries less says nothing of what it could carry.
const LEAST_BPS: u64 = 50_000;
/// How far around a look its best rate is sought: a download pauses for less.
const WINDOW_MS: u64 = 5_000;
/// Below it, a change of delay does not change what a scheduler does.
const LEAST_DELAY_CHANGE_MS: f64 = 2.0;
/// The smoothing of the loss estimate moves it by as much.
const LEAST_LOSS_CHANGE: f64 = 0.002;

#[cfg(test)]
mod tests;
