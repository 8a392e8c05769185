//! Sending the datagrams of a capture again.

use std::sync::Arc;

use hawser_units::{Duration, Instant};
use serde::Serialize;

use crate::sender::{Part, Sender};

/// A captured datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Datagram {
    /// Time since the first datagram of the capture.
    pub at: Duration,
    /// UDP payload. Units: bytes.
    pub size: u16,
}

/// Origin of a track, for the report.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Origin {
    /// File, as the scenario names it.
    pub file: String,
    /// Source and destination in the capture.
    pub flow: String,
    /// Direction in the scenario: `down` or `up`.
    pub direction: &'static str,
    /// Packets of the capture that are not replayed; at the first track of a capture only.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub omitted: Option<String>,
}

/// Datagrams of one direction of a captured five-tuple, with the times of their replay.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Track {
    /// Origin of the datagrams.
    pub origin: Origin,
    /// Datagrams by time; at least one.
    pub datagrams: Vec<Datagram>,
    /// Time from the start of the workloads to the first datagram of the capture.
    pub start: Duration,
    /// Number of times that the capture is replayed.
    pub repeat: u32,
    /// Time from one replay to the next.
    pub period: Duration,
}

impl Track {
    /// Returns time, since the start of the workloads, and size of datagram `number`, from 0;
    /// `None` after the last one.
    #[must_use]
    pub fn datagram(&self, number: u64) -> Option<Datagram> {
        let length = self.datagrams.len() as u64;
        let replays = u32::try_from(number.checked_div(length)?).ok()?;
        let Datagram { at, size } = *self.datagrams.get((number % length) as usize)?;
        (replays < self.repeat).then(|| Datagram {
            at: self.start + self.period * replays + at,
            size,
        })
    }

    /// Returns the number of datagrams that are due before `time`, since the start of the
    /// workloads.
    #[must_use]
    pub fn count_before(&self, time: Duration) -> u64 {
        let of_replay = |replay: u32| {
            let start = self.start + self.period * replay;
            let is_before = |datagram: &Datagram| start + datagram.at < time;
            self.datagrams.partition_point(is_before) as u64
        };
        (0..self.repeat).map(of_replay).sum()
    }
}

/// Sends the datagrams of a track.
#[derive(Clone, Debug)]
pub struct Replay {
    track: Arc<Track>,
    start: Instant,
    end: Instant,
    sent: u64,
}

impl Replay {
    /// Creates a sender for workloads from `start` until `end`.
    #[must_use]
    pub const fn new(track: Arc<Track>, (start, end): (Instant, Instant)) -> Self {
        Self {
            track,
            start,
            end,
            sent: 0,
        }
    }

    /// Moves the start to `now`, before anything was sent.
    pub fn start_at(&mut self, now: Instant) {
        self.start = now;
    }

    /// Returns the number of datagrams that are due before `time`.
    #[must_use]
    pub fn count_before(&self, time: Instant) -> u64 {
        self.track.count_before(time.min(self.end).since(self.start))
    }
}

impl Sender for Replay {
    fn poll_transmit(&mut self, now: Instant) -> Option<Part> {
        if now < self.poll_timeout()? {
            return None;
        }
        let datagram = self.track.datagram(self.sent)?;
        self.sent += 1;
        Some(Part {
            number: self.sent - 1,
            bytes: datagram.size.into(),
            layer: None,
        })
    }

    fn poll_timeout(&self) -> Option<Instant> {
        let due = self.start + self.track.datagram(self.sent)?.at;
        (due < self.end).then_some(due)
    }
}
