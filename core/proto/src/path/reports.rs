//! Reports of the receiver on a path: rate, delay and loss, the time at which a report is overdue,
//! and late packets.

use hawser_units::{Bytes, Duration, Instant, Rate};
use hawser_wire::data::Feedback;

use super::control::Sample;
use super::delay::Measured;
use super::{BATCHES, DELAYED_REPORTS_UP_TO, FEW_LONE, LONGEST_REPORT_WAIT, Path, State};

impl Path {
    /// Processes a report about this path. Returns whether the state changed.
    pub fn handle_feedback(&mut self, report: &Feedback, now: Instant) -> bool {
        let newer = report.highest > self.reported() && report.highest < self.next_packet_number;
        if !newer {
            return false;
        }
        self.last_heard = Some(now);
        self.note_wait(now);
        let previous = self.reported.replace(report.highest);
        let bytes = (report.bytes.wrapping_sub(self.delivered)) & ((1 << 48) - 1);
        let lost_probes = self.on_marks(report, now);
        let (packets, lost) = self.losses.on_report(report, previous, lost_probes);
        self.on_sizes(report.highest, previous, bytes, now);
        self.open = (bytes / u64::from(packets.max(1))).min(1 << 16) * u64::from(report.open);
        // No peer can have received more than was sent: a false report raises no rate beyond that.
        self.delivered = self.delivered.saturating_add(bytes).min(self.cumulative);
        let reported_us = report.received_us.wrapping_add(report.hold_us);
        let delay = Measured {
            forward_us: report.delay_us.cast_signed(),
            reverse_us: now.as_micros_wrapping().wrapping_sub(reported_us).cast_signed(),
            spread_us: report.spread_us,
            packets,
            size: u32::try_from(bytes / u64::from(packets.max(1))).unwrap_or(u32::MAX),
            is_lone: bytes <= FEW_LONE && self.sent(report.highest).is_lone,
        };
        let arrived_in = match previous {
            Some(_) => report.received_us.wrapping_sub(self.delivered_us),
            None => 0,
        };
        self.delivered_us = report.received_us;
        let hold = Duration::from_micros(u64::from(report.hold_us));
        self.newest = self.sent_by(now - (delay.round_trip() + hold), report.highest);
        let Some(record) = self.remembers(self.newest).then(|| *self.sent(self.newest)) else {
            return false;
        };
        self.acked_sent_at = record.at;
        let receive_time = report.received_us.wrapping_sub(record.delivered_us);
        let send_time = record.at.since(record.acked_sent_at);
        let interval = Duration::from_micros(u64::from(receive_time)).max(send_time);
        let known = previous.is_some() && record.delivered_us != 0 && receive_time < 10_000_000;
        let rate = known
            .then(|| Rate::of(Bytes(self.delivered - record.delivered), interval))
            .flatten()
            .filter(|_| interval >= Duration::from_micros(200));
        let sample = Sample {
            delay,
            rate,
            delivered: self.delivered - record.delivered,
            reported: bytes,
            interval: Duration::from_micros(u64::from(arrived_in)),
            lost,
            app_limited: record.app_limited,
            newest: self.newest,
            next_packet_number: self.next_packet_number,
            in_flight: self.in_flight(),
        };
        self.model.on_sample(&sample, now);
        self.lateness.on_report(self.model.delay().last_queue(), now);
        self.state == State::Suspect && self.enter(State::Active, now)
    }

    /// Processes the counts of marks of a report; returns how many probes of ECN were lost.
    fn on_marks(&mut self, report: &Feedback, now: Instant) -> u64 {
        let sent = if self.remembers(report.highest) {
            self.sent(report.highest).ect
        } else {
            self.ecn.sent()
        };
        self.ecn.on_report(report, sent, now)
    }

    /// Records that a packet is reported missing for the first time.
    pub fn on_missing(&mut self, packet_number: u64, now: Instant) {
        if !self.remembers(packet_number) {
            return;
        }
        let after = now.since(self.sent(packet_number).at);
        self.losses.on_missing(after);
    }

    /// Returns the time from sending a packet that is lost to sending its retransmission.
    #[must_use]
    pub fn retransmitted_after(&self) -> Duration {
        self.losses.missed_after().unwrap_or(self.model.round_trip())
    }

    /// The newest packet sent by `at`, after those reported before and up to `highest`.
    fn sent_by(&self, at: Instant, highest: u64) -> u64 {
        let oldest = self.next_packet_number - self.next_packet_number.min(self.ring.len() as u64);
        let (mut low, mut high) = (self.newest.max(oldest).min(highest), highest);
        // The clocks of both ends count whole microseconds.
        let at = at + Duration::from_micros(3);
        while low < high {
            let middle = high - (high - low) / 2;
            if self.sent(middle).at <= at {
                low = middle;
            } else {
                high = middle - 1;
            }
        }
        low
    }

    /// Returns when the oldest unreported packet that will be reported was sent; `None` if no
    /// report is expected.
    pub(super) fn oldest(&self) -> Option<Instant> {
        let reported = self.reported();
        if self.eliciting_sent <= reported {
            return None;
        }
        let first = (reported + 1..self.next_packet_number)
            .take(64)
            .find(|packet_number| self.sent(*packet_number).eliciting)
            .unwrap_or(self.eliciting_sent);
        self.remembers(first).then(|| self.sent(first).at)
    }

    /// Returns the maximum time until a report: the delay of its packets, and the recent wait of
    /// reports if the peer sends few of them.
    pub(super) fn timeout(&self) -> Duration {
        self.model.timeout() + self.waited
    }

    /// Records how long the report on the oldest packet has waited. On links that are not reports
    /// are not delayed, and a path that is silent is to be noticed soon.
    fn note_wait(&mut self, now: Instant) {
        let is_slow = self
            .model
            .link()
            .is_some_and(|link| link <= DELAYED_REPORTS_UP_TO);
        let taken = self.oldest().map_or(Duration::ZERO, |since| now.since(since));
        let waited = taken
            .saturating_sub(self.model.round_trip())
            .min(LONGEST_REPORT_WAIT);
        self.waited = if is_slow {
            waited.max(self.waited * 7 / 8)
        } else {
            Duration::ZERO
        };
    }

    /// Returns when the report on the oldest unreported packet becomes overdue; `None` if no report
    /// is expected.
    pub(super) fn overdue(&self) -> Option<Instant> {
        let since = self.oldest()?;
        Some(since.max(self.last_heard.unwrap_or(since)) + self.timeout())
    }

    /// Returns the packets, by packet number, whose delay exceeds what the path's delays explain,
    /// each once. The path may still report others, as a very slow network does.
    pub fn poll_late(&mut self, now: Instant) -> std::ops::Range<u64> {
        let timeout = self.timeout();
        self.count_late(|sent_at| sent_at + timeout <= now)
    }

    /// The packets that are late by when they were sent, each once.
    fn count_late(&mut self, is_late: impl Fn(Instant) -> bool) -> std::ops::Range<u64> {
        let begin = self.late.max(self.heard_of() + 1);
        let mut end = begin;
        while self.remembers(end) && is_late(self.sent(end).at) {
            end += 1;
        }
        self.late = end;
        begin..end
    }

    /// Processes a report that arrived on another path: which packets have arrived, and, if none
    /// has for some time, which should have. Returns the packets, by packet number, that are late
    /// for that, each once.
    pub fn handle_silence(&mut self, report: &Feedback) -> std::ops::Range<u64> {
        let newest = report.highest;
        if !self.remembers(newest) || newest < self.heard_of() {
            return 0..0;
        }
        self.heard_of = newest;
        let silent = Duration::from_micros(u64::from(report.hold_us)).saturating_sub(BATCHES);
        let due = self.sent(newest).at + silent;
        self.count_late(|sent_at| sent_at < due)
    }

    /// Returns when [`Self::poll_late`] has an output.
    pub(super) fn late_due(&self) -> Instant {
        let next = self.late.max(self.heard_of() + 1);
        if self.state == State::Active && self.remembers(next) && self.eliciting_sent >= next {
            self.sent(next).at + self.timeout()
        } else {
            Instant::FAR_FUTURE
        }
    }
}
