//! Answers to probes and reports of the receiving half: selection of their paths.

use hawser_units::{Bytes, Duration, Instant, PathId, Rate};
use hawser_wire::data::{FRAMING, Feedback, MISSING_RANGES};

use super::choosing::nearest;
use super::{Body, Egress, Lane, Transmit};
use crate::path::model::LINK_HEADERS;
use crate::path::{DELAYED_REPORTS_UP_TO, FULL_PACKET};

/// Time without a packet after which a path may have failed. Source: `SILENCE` of
/// `resequencer/delay.rs`, after which the receiver reports the failure. Units: microseconds.
const QUIET_US: u32 = 20_000;
/// Inverse of the share of a slow link that reports take: 5 %. Source: the share of RTCP (RFC 3550
/// section 6.2).
const REPORT_SHARE_INVERSE: u32 = 20;
/// Longest interval of reports. Source: a sender that receives none for longer suspects the path
/// ([`crate::path`]). Below 80 kbit/s reports take more than their share because of it.
const MAX_REPORT_INTERVAL: Duration = Duration::from_millis(250);

/// Bytes from which a report is sent at once. Source: half of a path's smallest window.
const AWAITED_AFTER: u64 = 2 * FULL_PACKET;

/// Report that is delayed until its link may send another one; a later report replaces it.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Delayed {
    waiting: Option<(Feedback, Option<Instant>)>,
    /// The time from which the next may go.
    free_at: Instant,
    /// Bytes that the last one reported.
    reported: u64,
}

impl Delayed {
    /// Replaces the report that waits by a newer one, with the missing packets of both.
    fn replace(&mut self, report: Feedback) {
        let mut report = report;
        if let Some((before, _)) = self.waiting {
            let gone = report.highest.saturating_sub(before.highest);
            for (first, count) in before.missing.ranges(before.highest).take(MISSING_RANGES) {
                let back = before.highest.saturating_sub(first) + gone;
                if let Ok(back) = u16::try_from(back) {
                    report.missing.push(back, count);
                }
            }
        }
        self.waiting = Some((report, None));
    }

    /// Returns the report, once it may be sent.
    fn take(&mut self, link: Option<Rate>, now: Instant) -> Option<Feedback> {
        let (report, since) = self.waiting.as_mut()?;
        let waited = now.since(*since.get_or_insert(now));
        // A peer that sends much waits for reports, and jitter looks like a slow link at first.
        let is_awaited = report.bytes.saturating_sub(self.reported) > AWAITED_AFTER;
        if let Some(link) = link.filter(|_| self.free_at > now && !is_awaited) {
            // The link may be faster than it was.
            self.free_at = self.free_at.min(now + spacing(link));
            return None;
        }
        let waited = u32::try_from(waited.as_micros()).unwrap_or(u32::MAX);
        let report = Feedback {
            hold_us: report.hold_us.saturating_add(waited),
            ..*report
        };
        self.waiting = None;
        self.reported = report.bytes;
        self.free_at = link.map_or(now, |link| now + spacing(link));
        Some(report)
    }

    /// Returns the time at which the delayed report may be sent; far in the future if there is
    /// none.
    pub(super) fn due(&self) -> Instant {
        self.waiting.map_or(Instant::FAR_FUTURE, |_| self.free_at)
    }
}

/// The time between two reports on a link.
fn spacing(link: Rate) -> Duration {
    let report = Feedback::default().emitted_len() + FRAMING;
    (link.time_for(Bytes(report as u64 + LINK_HEADERS)) * REPORT_SHARE_INVERSE).min(MAX_REPORT_INTERVAL)
}

/// Returns the rate of a lane's link, if its reports are delayed.
fn slow_link(lane: &Lane) -> Option<Rate> {
    let link = lane.path.model().link();
    link.filter(|link| *link <= DELAYED_REPORTS_UP_TO)
}

impl<B: Copy> Egress<B> {
    /// Answers a probe of the peer on the path on which it arrived.
    pub fn handle_probe(&mut self, id: PathId, token: u64) {
        self.push_urgent(id, Body::Reply(token));
    }

    /// Sends a report of the receiving half on its path. If packets are missing and another path is
    /// faster, or if the path delivers nothing at the moment, the report is also sent on the
    /// fastest of the others, so that held packets wait for less time.
    pub fn send_report(&mut self, report: Feedback) {
        let report = self.with_policing(report);
        match self.lane(report.path).filter(|lane| slow_link(lane).is_some()) {
            Some(lane) => lane.delayed.replace(report),
            None => self.push_urgent(report.path, Body::Report(report)),
        }
        let is_quiet = report.hold_us >= QUIET_US;
        if !report.missing.is_empty() && (is_quiet || self.fastest(None) != Some(report.path)) {
            // Its quiet is not more than its delays explain.
            self.push_by_another(Feedback { hold_us: 0, ..report });
        }
    }

    /// Sends a report of the receiving half about an unresponsive path, on that path and on the
    /// fastest of the others.
    pub fn send_silence(&mut self, report: Feedback) {
        let report = self.with_policing(report);
        self.push_urgent(report.path, Body::Report(report));
        self.push_by_another(report);
    }

    /// Sends delayed reports that are due.
    pub(super) fn release_reports(&mut self, now: Instant) {
        for at in 0..self.lanes.len() {
            let lane = &mut self.lanes[at];
            let link = slow_link(lane);
            if let Some(report) = lane.delayed.take(link, now) {
                self.push_urgent(report.path, Body::Report(report));
            }
        }
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

#[cfg(test)]
mod tests {
    use super::*;

    const BEGIN: Instant = Instant::from_nanos(1_000_000_000);

    fn report(highest: u64, lost: &[u64]) -> Feedback {
        let mut report = Feedback {
            highest,
            ..Feedback::default()
        };
        for number in lost {
            assert!(report.missing.push((highest - number) as u16, 1));
        }
        report
    }

    #[test]
    fn reports_on_a_slow_link_are_apart_and_the_newest_names_all_that_is_missing() {
        let link = Some(Rate::from_bps(100_000));
        let mut delayed = Delayed::default();
        let mut sent = Vec::new();
        for n in 0..100_u64 {
            let now = BEGIN + Duration::from_millis(10 * n);
            let lost = [n * 10];
            delayed.replace(report(n * 10 + 5, if n % 20 == 1 { &lost } else { &[] }));
            sent.extend(delayed.take(link, now).map(|report| (now, report)));
        }
        let end = BEGIN + Duration::from_secs(2);
        sent.extend(delayed.take(link, end).map(|report| (end, report)));
        let bytes = sent.len() as u64 * (42 + FRAMING as u64 + LINK_HEADERS);
        assert!(
            bytes <= 100_000 / 8 / u64::from(REPORT_SHARE_INVERSE) + 2 * 124,
            "{}",
            sent.len()
        );
        let missing: Vec<u64> = sent
            .iter()
            .flat_map(|(_, report)| report.missing.ranges(report.highest))
            .map(|(first, _)| first)
            .collect();
        assert_eq!(missing, [10, 210, 410, 610, 810]);
    }

    #[test]
    fn a_peer_that_sends_much_hears_of_it_at_once() {
        let link = Some(Rate::from_bps(28_000));
        let mut delayed = Delayed::default();
        let of = |bytes| Feedback {
            bytes,
            ..Feedback::default()
        };
        for (bytes, is_sent) in [(100, true), (1_000, false), (3_200, true), (6_000, false)] {
            delayed.replace(of(bytes));
            assert_eq!(delayed.take(link, BEGIN).is_some(), is_sent, "{bytes}");
        }
    }

    #[test]
    fn a_report_that_waits_says_so_and_one_on_a_fast_link_does_not_wait() {
        let link = Some(Rate::from_bps(100_000));
        let mut delayed = Delayed::default();
        delayed.replace(report(1, &[]));
        assert!(delayed.take(link, BEGIN).is_some());
        assert_eq!(delayed.due(), Instant::FAR_FUTURE);
        delayed.replace(report(2, &[]));
        assert_eq!(delayed.take(link, BEGIN), None);
        let due = delayed.due();
        assert_eq!(due, BEGIN + spacing(Rate::from_bps(100_000)));
        let report = delayed.take(link, due).expect("its time has come");
        assert_eq!(u64::from(report.hold_us), due.since(BEGIN).as_micros() as u64);
        delayed.replace(report);
        assert!(delayed.take(None, due).is_some());
    }
}
