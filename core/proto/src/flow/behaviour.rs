//! Classification of UDP flows by their rate, because the protocol does not distinguish a call from
//! a backup.
//!
//! Rates are measured at arrival, over windows of [`WINDOW`]. A flow has no classification until
//! its first window has ended, so none of its packets is dropped because of its age before that
//! time. Each later window may change the result, except that a transfer stays a transfer.

use hawser_units::{Bytes, Duration, Instant, Rate};

/// A flow's rate is measured over this time, so that one key frame is not taken for it.
/// Source: live encoders are set to one key frame in one or two seconds (`hawser-lab video`: 12
/// pictures).
const WINDOW: Duration = Duration::from_secs(1);
/// Slower flows are calls and games. Source: audio takes 6 to 510 kbit/s (RFC 6716 section 2), and
/// a flow of this rate may be sent twice at little cost.
const CALL_BELOW: Rate = Rate::from_bps(500_000);
/// Faster flows are transfers. Source: live video is contributed at up to 30 Mbit/s (CellFusion),
/// with a third more for its parity and retransmissions.
const TRANSFER_ABOVE: Rate = Rate::from_mbps(40);
/// A packet of a call may arrive this much after the delay of the nearest path. Source: ITU-T G.114
/// asks for 150 ms from mouth to ear; a far path would leave nothing of them.
pub(crate) const CALL_BUDGET: Duration = Duration::from_millis(150);
/// A packet of live video may arrive this much later. Source: 400 ms is the limit of ITU-T G.114
/// for any conversation, and players of live video buffer more than that.
pub(crate) const VIDEO_BUDGET: Duration = Duration::from_millis(400);

/// The kind of sender that a flow's rate shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Behaviour {
    /// Sends little, steadily: a call, a game, a remote desktop.
    Call,
    /// Sends as much as live video does.
    Video,
    /// Sends more than anything live.
    Transfer,
}

/// The rate of a flow, and what follows from it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Meter {
    since: Instant,
    bytes: u64,
    behaviour: Option<Behaviour>,
    /// Rate in the last window that has ended.
    rate: Rate,
}

impl Meter {
    pub(super) fn new(now: Instant) -> Self {
        Self {
            since: now,
            bytes: 0,
            behaviour: None,
            rate: Rate::ZERO,
        }
    }

    /// Records inner bytes that arrived; returns the kind of sender, once it is known.
    pub(super) fn on_bytes(&mut self, bytes: u64, now: Instant) -> Option<Behaviour> {
        self.bytes += bytes;
        let elapsed = now.since(self.since);
        // A window's worth of a transfer is one, however little of the window is over.
        if self.bytes > TRANSFER_ABOVE.bytes_in(WINDOW).0 {
            self.behaviour = Some(Behaviour::Transfer);
        }
        if elapsed < WINDOW || self.behaviour == Some(Behaviour::Transfer) {
            return self.behaviour;
        }
        self.rate = Rate::of(Bytes(self.bytes), elapsed).unwrap_or_default();
        let is_call = self.rate <= CALL_BELOW;
        self.behaviour = Some(if is_call {
            Behaviour::Call
        } else {
            Behaviour::Video
        });
        (self.since, self.bytes) = (now, 0);
        self.behaviour
    }
}

impl Meter {
    /// Returns whether the first window has not ended yet.
    pub(super) fn is_new(&self) -> bool {
        self.behaviour.is_none()
    }

    pub(super) fn rate(&self) -> Rate {
        self.rate
    }
}

impl Behaviour {
    /// Description of the reason for the flow's class.
    pub(super) fn why(self) -> &'static str {
        match self {
            Self::Call => "UDP at the rate of a call",
            Self::Video => "UDP at the rate of live video",
            Self::Transfer => "UDP faster than live video",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the classification of a flow that sends packets of this many bytes at a rate, for
    /// three seconds.
    fn at_rate(rate: Rate, bytes: u64) -> Behaviour {
        let mut now = Instant::from_nanos(1_000_000_000);
        let end = now + Duration::from_secs(3);
        let mut meter = Meter::new(now);
        let mut last = None;
        while now < end {
            last = meter.on_bytes(bytes, now);
            now += rate.time_for(Bytes(bytes));
        }
        last.expect("three windows have passed")
    }

    #[test]
    fn a_flow_is_known_by_its_rate() {
        assert_eq!(at_rate(Rate::from_bps(80_000), 200), Behaviour::Call);
        assert_eq!(at_rate(Rate::from_mbps(4), 1200), Behaviour::Video);
        assert_eq!(at_rate(Rate::from_mbps(30), 1200), Behaviour::Video);
        assert_eq!(at_rate(Rate::from_mbps(70), 1400), Behaviour::Transfer);
    }

    #[test]
    fn a_transfer_is_known_before_its_first_second_is_over_and_stays_one() {
        let now = Instant::from_nanos(1_000_000_000);
        let mut meter = Meter::new(now);
        let second = TRANSFER_ABOVE.bytes_in(WINDOW).0;
        assert_eq!(meter.on_bytes(second, now), None);
        assert_eq!(meter.on_bytes(1, now), Some(Behaviour::Transfer));
        let later = now + Duration::from_secs(100);
        assert_eq!(meter.on_bytes(1, later), Some(Behaviour::Transfer));
    }

    #[test]
    fn a_call_that_becomes_a_video_is_one_within_a_window() {
        let now = Instant::from_nanos(1_000_000_000);
        let mut meter = Meter::new(now);
        assert_eq!(meter.on_bytes(200, now + WINDOW), Some(Behaviour::Call));
        assert_eq!(
            meter.on_bytes(1_000_000, now + WINDOW * 2),
            Some(Behaviour::Video)
        );
        assert_eq!(meter.on_bytes(200, now + WINDOW * 3), Some(Behaviour::Call));
    }
}
