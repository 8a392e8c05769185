//! Logs of the two boxes, with timestamps of the medium's clock.

use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::Context;
use hawser_linux::clock;
use serde_json::Value;

use super::super::air::Lab;

/// Log entry of the access point's box.
pub(super) struct Entry {
    /// Time on the clock that interfering stations use. Units: seconds.
    pub(super) at: f64,
    /// The message.
    pub(super) said: String,
    /// Fields of the entry.
    pub(super) fields: Value,
}

/// Returns the log of the access point's box in the last run.
pub(super) fn of_access_point(lab: &Lab<'_>) -> anyhow::Result<Vec<Entry>> {
    let directory = lab.options().run_dir.latest("repeater")?;
    let path = directory.context("no repeater was started")?.join("ap.log");
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

/// Returns the seconds since midnight of an RFC 3339 timestamp in UTC.
fn seconds_of_day(stamp: &str) -> Option<f64> {
    let (_, time) = stamp.split_once('T')?;
    let mut parts = time.trim_end_matches('Z').split(':');
    let mut next = || parts.next()?.parse::<f64>().ok();
    Some(next()? * 3600.0 + next()? * 60.0 + next()?)
}

/// Length of a day. Source: definition of the unit. Units: seconds.
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
