//! Validation of ECN on a path: whether packets that can carry congestion marks pass, and whether a
//! mark means congestion.
//!
//! An outer packet copies the ECN bits of its inner packet on a path that is [`State::Capable`]
//! (RFC 6040 section 4.1, normal mode), and is Not-ECT on every other path (compatibility mode). A
//! network that marks or drops every ECT packet would stop the flows that use ECN otherwise.
//!
//! It starts in `Testing`, and tests when the first ECN-capable packet waits. Steady state is
//! `Capable` or `Failed`. It fails for a network that treats probes and data differently.
//!
//! ```text
//!               10 probes were sent               the last one is reported, and none came as ECT
//!  +-> Testing ----------------------> Unknown ------------------------------------------+
//!  |     |  ^                             |                                              v
//!  |     |  | 64 in a row came as CE      | a probe came as ECT                       Failed
//!  |     |  | or not at all               v                                              |
//!  |     |  +----------------------- Capable                                             |
//!  |     +------------------------------> a probe came as ECT                            |
//!  +-------------------- an ECN-capable packet waits, 10 min later ----------------------+
//! ```
//!
//! Source: RFC 9000 section 13.4.2 and appendix A.4. Deviates: probes are tested, and data waits
//! for the result as Not-ECT, since the inner senders would take each mark for congestion, and the
//! probes that are lost are not losses of the path. It is a failure too if all probes are marked,
//! because a mark on every packet contains no information.

use hawser_units::{Duration, Instant};
use hawser_wire::data::{Feedback, Marks};

/// Probes of one test.
///
/// Source: RFC 9000 appendix A.4 (ten packets).
const PROBES: u8 = 10;
/// Time between probes of a test. Reason: a burst of losses by chance is shorter than ten of them.
///
/// Source: docs/design/path-model.md, marks that mean nothing.
const PROBE_INTERVAL: Duration = Duration::from_millis(10);
/// ECT packets in a row that arrive marked, or not at all, before a capable path is tested again.
///
/// Reason: an honest queue marks fewer, as each mark makes the senders send less in the next round
/// trip; six times the ten of a first congestion window (RFC 6928).
const SUSPICIOUS: u64 = 64;
/// Time until a failed path is tested again. Reason: each test costs ten packets of 76 bytes, and
/// the middlebox of a network seldom changes.
///
/// Source: docs/design/path-model.md, marks that mean nothing.
const RETEST_AFTER: Duration = Duration::from_secs(600);

/// State of the validation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// Probes are being sent, or nothing has asked for ECN yet.
    Testing,
    /// Probes were sent; their report is awaited.
    Unknown,
    /// ECT packets pass, and not all are marked.
    Capable,
    /// ECT packets are dropped, all marked, cleared, or not counted by the peer.
    Failed,
}

impl State {
    /// Returns the name that `hawser status` shows.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Testing => "testing",
            Self::Unknown => "unknown",
            Self::Capable => "capable",
            Self::Failed => "failed",
        }
    }
}

/// Validation of ECN in the sending direction of a path.
///
/// Cost: O(1) a packet and a report.
#[derive(Clone, Debug)]
pub(super) struct Ecn {
    state: State,
    since: Instant,
    /// An ECN-capable packet has asked for the test.
    is_wanted: bool,
    /// Probes of this test, and the number of the last one.
    probes: u8,
    last_probe: u64,
    next_probe: Instant,
    /// ECT packets sent so far, probes included.
    sent: u64,
    /// ECT packets that had been sent before the last one that came as ECT, or was forgotten.
    confirmed: u64,
    /// Counts of the last report.
    counted: Option<Marks>,
    /// ECT packets that had been sent before this test.
    before: u64,
    /// Probes of this test that are reported to have arrived, marked or not, and to be lost.
    arrived: u64,
    lost: u64,
}

impl Ecn {
    /// Creates the validation of a path without measurements.
    pub(super) fn new(now: Instant) -> Self {
        Self {
            state: State::Testing,
            since: now,
            is_wanted: false,
            probes: 0,
            last_probe: 0,
            next_probe: now,
            sent: 0,
            confirmed: 0,
            counted: Some(Marks::default()),
            before: 0,
            arrived: 0,
            lost: 0,
        }
    }

    /// Restarts on another network; packets sent before are not counted.
    pub(super) fn restart(&mut self, now: Instant) {
        *self = Self {
            is_wanted: self.is_wanted,
            sent: self.sent,
            confirmed: self.sent,
            before: self.sent,
            counted: self.counted,
            ..Self::new(now)
        };
    }

    /// Discards the peer's counts, because those of its next report belong to the previous process.
    pub(super) fn forget_counts(&mut self) {
        self.counted = None;
    }

    /// Returns the state.
    pub(super) fn state(&self) -> State {
        self.state
    }

    /// Returns the number of ECT packets sent so far.
    pub(super) fn sent(&self) -> u64 {
        self.sent
    }

    /// Decides whether the outer packet of an ECN-capable inner packet may be ECT.
    pub(super) fn may_mark(&mut self, now: Instant) -> bool {
        let is_due = self.state == State::Failed && now.since(self.since) >= RETEST_AFTER;
        if is_due {
            self.enter(State::Testing, now);
        }
        self.is_wanted = true;
        self.state == State::Capable
    }

    /// Records an ECT packet that is sent.
    pub(super) fn on_sent(&mut self) {
        self.sent += 1;
    }

    /// Returns when the next probe is due.
    pub(super) fn due(&self) -> Instant {
        if self.state == State::Testing && self.is_wanted {
            self.next_probe
        } else {
            Instant::FAR_FUTURE
        }
    }

    /// Records a probe that is sent as `packet_number`.
    pub(super) fn on_probe(&mut self, packet_number: u64, now: Instant) {
        self.sent += 1;
        self.probes += 1;
        self.last_probe = packet_number;
        self.next_probe = now + PROBE_INTERVAL;
        if self.probes == PROBES {
            self.enter(State::Unknown, now);
        }
    }

    /// Processes a report. `sent`: ECT packets that were sent up to the highest packet reported.
    /// Returns how many probes it shows lost, which are no losses of the path.
    pub(super) fn on_report(&mut self, report: &Feedback, sent: u64, now: Instant) -> u64 {
        let marks = report.marks.unwrap_or_default();
        let before = self.counted.replace(marks).unwrap_or(marks);
        let plain = u64::from(marks.ect.wrapping_sub(before.ect));
        let marked = u64::from(marks.ce.wrapping_sub(before.ce));
        if plain > 0 {
            self.confirmed = sent;
        }
        match self.state {
            State::Testing | State::Unknown => {
                self.arrived += plain + marked;
                let lost = self.lost_probes(sent);
                self.judge(report.highest, plain > 0, now);
                if report.marks.is_some() { lost } else { 0 }
            }
            State::Capable => {
                if sent.saturating_sub(self.confirmed) >= SUSPICIOUS {
                    self.enter(State::Testing, now);
                }
                0
            }
            State::Failed => 0,
        }
    }

    /// Returns how many probes are missing that were not before.
    fn lost_probes(&mut self, sent: u64) -> u64 {
        let missing = sent.saturating_sub(self.before).saturating_sub(self.arrived);
        let lost = missing.saturating_sub(self.lost);
        self.lost += lost;
        lost
    }

    fn judge(&mut self, highest: u64, is_plain: bool, now: Instant) {
        if self.probes > 0 && is_plain {
            self.enter(State::Capable, now);
        } else if self.state == State::Unknown && highest >= self.last_probe {
            self.enter(State::Failed, now);
        }
    }

    fn enter(&mut self, state: State, now: Instant) {
        self.state = state;
        self.since = now;
        match state {
            State::Testing => {
                (self.probes, self.arrived, self.lost) = (0, 0, 0);
                self.before = self.sent;
                self.next_probe = now;
            }
            State::Capable => self.confirmed = self.sent,
            State::Unknown | State::Failed => {}
        }
    }
}

#[cfg(test)]
mod tests;
