//! Answers to probes, and the reports of the receiving half: on which paths they go.

use hawser_units::PathId;
use hawser_wire::data::Feedback;

use super::choosing::nearest;
use super::{Body, Egress, Transmit};

/// A path that has brought nothing for so long may be about to fall silent. Units: microseconds.
const QUIET_US: u32 = 20_000;

impl<B: Copy> Egress<B> {
    /// Answers a probe of the peer on the path it came by.
    pub fn handle_probe(&mut self, id: PathId, token: u64) {
        self.push_urgent(id, Body::Reply(token));
    }

    /// Sends a report of the receiving half on its path, and on the fastest of the others too if
    /// packets are missing and that is faster, or the path brings nothing at the moment: what waits
    /// for them waits the shorter.
    pub fn send_report(&mut self, report: Feedback) {
        let report = self.with_policing(report);
        self.push_urgent(report.path, Body::Report(report));
        let is_quiet = report.hold_us >= QUIET_US;
        if !report.missing.is_empty() && (is_quiet || self.fastest(None) != Some(report.path)) {
            // Its quiet is not more than its delays explain.
            self.push_by_another(Feedback { hold_us: 0, ..report });
        }
    }

    /// Sends a report of the receiving half on a path that has fallen silent, on it and on the
    /// fastest of the others.
    pub fn send_silence(&mut self, report: Feedback) {
        let report = self.with_policing(report);
        self.push_urgent(report.path, Body::Report(report));
        self.push_by_another(report);
    }

    /// Adds what this half knows of the path in the other direction.
    fn with_policing(&self, report: Feedback) -> Feedback {
        let mut lanes = self.lanes.iter();
        let is_policed = lanes.any(|lane| lane.path.id == report.path && lane.is_policed());
        Feedback { is_policed, ..report }
    }

    fn push_by_another(&mut self, report: Feedback) {
        if let Some(other) = self.fastest(Some(report.path)) {
            self.push_urgent(other, Body::Report(report));
        }
    }

    fn fastest(&self, but: Option<PathId>) -> Option<PathId> {
        nearest(self.active().filter(|path| Some(path.id) != but)).map(|(path, _)| path.id)
    }

    fn push_urgent(&mut self, path: PathId, body: Body<B>) {
        // A peer that floods us with probes gets no more than a burst of answers.
        if self.urgent.len() < 1024 {
            self.urgent.push_back(Transmit {
                path,
                packet_number: 0,
                body,
            });
        }
    }
}
