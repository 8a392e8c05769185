//! Losses of a path, according to its reports, and the time of their detection.

use hawser_units::Duration;
use hawser_wire::data::Feedback;

use crate::smoothed::Smoothed;

/// Bounds of the number of packets over which loss is smoothed; between them it is the number of
/// packets so far. No suite of docs/notebook/path-model.md, "Sensitivity", changes by more than 3 %
/// with half or twice of either.
const FEW: f64 = 64.0;
const MAX_WEIGHTED: f64 = 256.0;

/// The losses of one path.
#[derive(Debug, Default)]
pub(super) struct Losses {
    /// Packets received by the last report.
    received: u32,
    /// Marks that packets in flight at the forgiveness may be among the next reports; they are not
    /// counted.
    is_forgiven: bool,
    /// Packets before the newest one reported that have neither come nor been counted lost; below
    /// zero, those that came after that.
    balance: i64,
    share: f64,
    usual: f64,
    /// Time from sending a packet to the report that it is missing; `None` before the first.
    missed_after: Option<Smoothed>,
}

impl Losses {
    /// The share of packets lost, smoothed over some hundred packets.
    pub(super) fn share(&self) -> f64 {
        self.share
    }

    /// Returns the expected share of lost packets: the larger of [`Self::share`] and the same
    /// average over eight times as many packets.
    pub(super) fn expected(&self) -> f64 {
        self.share.max(self.usual)
    }

    /// Processes a report after the one whose highest packet number was `previous`; `excused`
    /// packets before the highest are neither expected nor lost. Returns how many packets came
    /// since, and how many this report shows lost.
    pub(super) fn on_report(&mut self, report: &Feedback, previous: Option<u64>, excused: u64) -> (u32, u64) {
        let came = report.packets.wrapping_sub(self.received);
        self.received = report.packets;
        let is_forgiven = std::mem::take(&mut self.is_forgiven);
        let Some(previous) = previous.filter(|_| !is_forgiven) else {
            return (came, 0);
        };
        let sent = (report.highest - previous).saturating_sub(excused);
        // Packets that are open now were sent before, or arrive later than those sent since: only
        // the balance over time reveals a loss.
        self.balance = self.balance.saturating_add(sent.cast_signed() - i64::from(came));
        let lost = (self.balance - i64::from(report.open)).max(0).cast_unsigned();
        self.balance -= lost.cast_signed();
        let share = (lost as f64 / sent.max(1) as f64).min(1.0);
        // At first the mean of all, so that a loss of one in fifty is known after a hundred
        // packets.
        let weight = (sent as f64 / f64::from(report.packets).clamp(FEW, MAX_WEIGHTED)).min(1.0);
        self.share += (share - self.share) * weight;
        self.usual += (share - self.usual) * weight / 8.0;
        (came, lost)
    }

    /// Records that a packet was reported missing this long after it was sent.
    pub(super) fn on_missing(&mut self, after: Duration) {
        self.missed_after = Some(Smoothed::after(self.missed_after, after));
    }

    /// The mean time from sending a packet to the report that it is missing; `None` before the
    /// first.
    pub(super) fn missed_after(&self) -> Option<Duration> {
        self.missed_after.map(|known| known.mean)
    }

    /// The number of packets that the last report counted.
    pub(super) fn received(&self) -> u32 {
        self.received
    }

    /// Continues after a report that counted this many packets; packets in flight at that time are
    /// not expected.
    pub(super) fn restore(&mut self, received: u32) {
        self.received = received;
        self.forgive();
    }

    /// Excludes the packets in flight, which count neither as lost nor as expected.
    pub(super) fn forgive(&mut self) {
        self.balance = 0;
        self.is_forgiven = true;
    }

    /// Discards the measured times, because the path's delays have changed.
    pub(super) fn forget_times(&mut self) {
        self.missed_after = None;
    }
}
