//! Congestion control of one path: how much may be in flight, and how fast it is sent.
//!
//! A [`Controller`] receives the content of each report ([`Sample`]) and the path's delays
//! ([`Times`]), and answers with a window, a pacing rate, and the rate that schedulers use.
//! Everything else of a path (states, probes, loss detection) is common to all controllers. The
//! peer's reports do not contain ECN marks: a mark on the route is copied to the inner packet (RFC
//! 6040), whose sender reacts to it.
//!
//! | name | what | source |
//! |---|---|---|
//! | [`short-queue`](short_queue) | short queue; a window while others fill it | the default |
//! | [`cubic`](cubic) | fills the queue until it overflows | RFC 9438, RFC 9406 |
//! | [`bbr`](bbr) | delivery rate and minimum delay, limited by loss | draft-ietf-ccwg-bbr |

mod bbr;
mod competing;
mod cubic;
mod rates;
mod short_queue;

use std::fmt;

use hawser_units::{Bytes, Duration, Instant, Rate};

use super::FULL_PACKET;
use super::delay::Measured;
use super::times::{BUSY_REPORT_DELAY, Times};

/// Minimum number of bytes that show a path's rate even if it was not kept busy: a single packet
/// does not. Half and twice of it change goodput by at most 0.4 % (docs/notebook/path-model.md,
/// "Sensitivity"). Either lengthens the pause of a failed path by 10 to 16 %.
pub(super) const TRAIN: u64 = 4 * FULL_PACKET;
/// The window before anything is known.
///
/// Source: RFC 6928.
const INITIAL_WINDOW: u64 = 10 * FULL_PACKET;
/// Growth of a path's rate in two round trips of slow start, which doubles it in each.
///
/// Source: RFC 5681 section 3.1.
pub(super) const GROWTH: f64 = 4.0;
/// Minimum window: one packet on the wire, one behind it, one being reported. Source:
/// draft-ietf-ccwg-bbr, `BBR.MinPipeCwnd`. Units: bytes.
pub(super) const MIN_WINDOW: u64 = 4 * FULL_PACKET;
/// Minimum duration of a round: on a short path the wait for reports is longer than the round trip.
/// No suite of docs/notebook/path-model.md, "Sensitivity", changes by more than 3 % with half or
/// twice of it.
const MIN_ROUND: Duration = Duration::from_millis(2);

/// Selection of a path's controller.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Control {
    /// `short-queue`.
    #[default]
    ShortQueue,
    /// `cubic`.
    Cubic,
    /// `bbr`.
    Bbr,
}

/// An unknown name of a controller.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unknown controller {name:?}: expected one of {}", Control::NAMES.join(", "))]
pub struct UnknownController {
    /// The requested name.
    pub name: String,
}

impl Control {
    /// The controllers that there are, the default first.
    pub const NAMES: [&str; 3] = ["short-queue", "cubic", "bbr"];

    /// Returns the controller with a name.
    ///
    /// # Errors
    /// [`UnknownController`] when `name` is not in [`Self::NAMES`]; its message lists them.
    pub fn by_name(name: &str) -> Result<Self, UnknownController> {
        [Self::ShortQueue, Self::Cubic, Self::Bbr]
            .into_iter()
            .zip(Self::NAMES)
            .find_map(|(control, known)| (known == name).then_some(control))
            .ok_or_else(|| UnknownController {
                name: name.to_owned(),
            })
    }

    /// Returns the name of the controller.
    #[must_use]
    pub fn name(self) -> &'static str {
        Self::NAMES[self as usize]
    }

    /// Creates a controller of a path without measurements.
    pub(super) fn start(self, now: Instant) -> Box<dyn Controller + Send> {
        match self {
            Self::ShortQueue => Box::new(short_queue::ShortQueue::new(now)),
            Self::Cubic => Box::new(cubic::Cubic::new(now)),
            Self::Bbr => Box::new(bbr::Bbr::new(now)),
        }
    }
}

/// Content of one report, evaluated by the path.
#[derive(Clone, Copy, Debug)]
pub struct Sample {
    /// Delays of the packets reported.
    pub delay: Measured,
    /// Delivery rate over about a round trip; `None` where there was no time between reports.
    pub rate: Option<Rate>,
    /// Bytes delivered in that time.
    pub delivered: u64,
    /// Bytes delivered since the last report.
    pub reported: u64,
    /// Time in which these arrived, by the receiver's clock; zero in the first report.
    pub interval: Duration,
    /// Packets found lost since the last report.
    pub lost: u64,
    /// Set if the sender had nothing to send in that time, so that the rate is only a lower bound.
    pub app_limited: bool,
    /// The packet number of a packet with the mean delay that arrived last.
    pub newest: u64,
    /// The packet number that will be sent next.
    pub next_packet_number: u64,
    /// Bytes in flight after the report.
    pub in_flight: u64,
}

/// Decides how many bytes may be in flight on one path, and at which rate they are sent.
///
/// Cost: O(1) a report and an answer, no allocation.
pub(super) trait Controller: fmt::Debug {
    /// Returns the name of the controller's state.
    fn state(&self) -> &'static str;

    /// Processes one report, which `times` have already processed. Ends rounds of the path
    /// ([`Times::on_round`]).
    fn on_report(&mut self, sample: &Sample, times: &mut Times, now: Instant);

    /// Begins with a window of this many bytes, which the path had before.
    fn resume(&mut self, window: u64);

    /// Bytes that may be in flight.
    fn window(&self, times: &Times) -> u64;

    /// The rate to send at; `None` while nothing is known, when packets go as the window lets them.
    fn pacing(&self, times: &Times) -> Option<Rate>;

    /// The delivery rate; zero when nothing is known.
    fn rate(&self) -> Rate;

    /// Returns the expected rate: the delivery rate, or more while the path is in slow start and
    /// the measured rate is a lower bound. Zero if nothing is known.
    fn expected_rate(&self, times: &Times) -> Rate;

    /// Returns the highest recent rate, as of the end of the last round.
    fn peak_rate(&self) -> Rate;

    /// Returns whether the controller still searches the path's capacity: the last round delivered
    /// more than the one before.
    fn is_growing(&self) -> bool;

    /// Returns the path's share of a queue that other senders also fill; `None` while it has no
    /// competitors.
    fn queue_share(&self) -> Option<QueueShare> {
        None
    }

    /// Others of the session compete in the same queue: together they are to be one sender.
    /// `packet numbers`: the newest one reported and the one to be sent next.
    fn set_competitors(&mut self, _company: Competitors, _counters: (u64, u64), _now: Instant) {}

    /// Returns whether no packet meets an empty queue at present, because other senders fill it.
    fn never_meets_an_empty_queue(&self) -> bool {
        false
    }
}

/// Returns the larger of the rate and a window per round trip: the expected rate of a path in slow
/// start. Zero if nothing is known.
fn window_per_round_trip(rate: Rate, window: u64, times: &Times) -> Rate {
    let round_trip = times.base_round_trip();
    if round_trip == Duration::ZERO {
        return rate;
    }
    let windows = Rate::of(Bytes(window), round_trip + BUSY_REPORT_DELAY).unwrap_or_default();
    let link = times.own_time().rate();
    rate.max(link.map_or(windows, |link| windows.min(link)))
}

/// Share of a path in a queue that other senders also fill.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct QueueShare {
    /// Share of the queue. 0 to 1.
    pub(crate) share: f64,
    /// Marks a path that reduces its window at present, to sample the effect on the queue.
    pub(crate) is_looking: bool,
    /// Number of overflows of the queue that the path observed.
    pub(crate) overflows: u32,
}

/// Other paths of the session that compete in the same queue.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Competitors {
    /// Number of other paths.
    pub(crate) others: u32,
    /// Combined share of the other paths.
    pub(crate) stake: QueueShare,
}

impl Competitors {
    /// Adds another competing path.
    pub(crate) fn add(&mut self, stake: QueueShare) {
        self.others += 1;
        self.stake.share += stake.share;
        self.stake.is_looking |= stake.is_looking;
        self.stake.overflows = self.stake.overflows.wrapping_add(stake.overflows);
    }

    /// Returns the number of paths in all.
    fn paths(&self) -> f64 {
        f64::from(self.others + 1)
    }
}

/// A packet's number, and when it was the next one: what is reported after it was sent since.
#[derive(Clone, Copy, Debug)]
struct Mark {
    packet_number: u64,
    since: Instant,
}

impl Mark {
    fn next(sample: &Sample, now: Instant) -> Self {
        Self {
            packet_number: sample.next_packet_number,
            since: now,
        }
    }

    /// Returns whether a round trip has passed since.
    fn is_past(&self, sample: &Sample, now: Instant) -> bool {
        sample.newest >= self.packet_number && now.since(self.since) >= MIN_ROUND
    }
}

#[cfg(test)]
mod tests;
