//! What the boxes' logs say, by the clock of the air.

use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::Context;
use hawser_linux::clock;
use serde_json::Value;

use super::super::air::Lab;

/// Something that the access point's box has logged.
pub(super) struct Entry {
    /// By the clock that strangers on the air keep to. Units: seconds.
    pub(super) at: f64,
    /// The message.
    pub(super) said: String,
    /// What belongs to it.
    pub(super) fields: Value,
}

/// What the access point's box of the last run has logged, as JSON.
pub(super) fn of_access_point(lab: &Lab<'_>) -> anyhow::Result<Vec<Entry>> {
    let directory = lab.options().run_dir.latest("repeater")?;
    let path = directory.context("no repeater has run")?.join("ap.log");
    let text = std::fs::read_to_string(&path).with_context(|| path.display().to_string())?;
    let real = SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs_f64();
    let ahead = real - clock::now().as_nanos() as f64 / 1e9;
    let today = ahead.rem_euclid(DAY);
    let entry = |line: &str| {
        let mut line: Value = serde_json::from_str(line).ok()?;
        let at = (seconds_of_day(line["timestamp"].as_str()?)? - today).rem_euclid(DAY);
        let fields = line["fields"].take();
        let said = fields["message"].as_str()?.to_owned();
        Some(Entry { at, said, fields })
    };
    Ok(text.lines().filter_map(entry).collect())
}

/// Of a time stamp of RFC 3339 in UTC.
fn seconds_of_day(stamp: &str) -> Option<f64> {
    let (_, time) = stamp.split_once('T')?;
    let mut parts = time.trim_end_matches('Z').split(':');
    let mut next = || parts.next()?.parse::<f64>().ok();
    Some(next()? * 3600.0 + next()? * 60.0 + next()?)
}

/// Units: seconds.
const DAY: f64 = 86_400.0;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_stamp_is_a_time_of_its_day() {
        let at = seconds_of_day("2026-01-02T03:04:05.250000Z").expect("a time stamp");
        assert!((at - 11_045.25).abs() < 1e-6, "{at}");
        assert_eq!(seconds_of_day("yesterday"), None);
    }
}
