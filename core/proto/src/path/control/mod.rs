//! Congestion control of one path: how much may be in flight, and how fast it is sent.
//!
//! A [`Controller`] is told what each report says ([`Sample`]) and what is known of the path's
//! delays ([`Times`]), and answers with a window, a pacing rate, and the rate that schedulers
//! reckon with. Everything else of a path (states, probes, loss detection) is the same for all of
//! them. The peer's reports say nothing of marks (ECN): a mark on the way is copied to the inner
//! packet (RFC 6040), whose sender answers it.
//!
//! | name | what | source |
//! |---|---|---|
//! | [`short-queue`](short_queue) | a short queue, beside others a window | the default |
//! | [`cubic`](cubic) | fills the queue until it overflows | RFC 9438, RFC 9406 |
//! | [`bbr`](bbr) | follows delivery rate and least delay, bounded by loss | draft-ietf-ccwg-bbr |

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

/// Bytes that say something of a path's rate even when it was not kept busy: a lone packet says
/// nothing.
pub(super) const TRAIN: u64 = 4 * FULL_PACKET;
/// The window before anything is known.
///
/// Source: RFC 6928.
const INITIAL_WINDOW: u64 = 10 * FULL_PACKET;
/// Growth of a path's rate in two round trips of slow start, which doubles it in each.
///
/// Source: RFC 5681 section 3.1.
pub(super) const GROWTH: f64 = 4.0;
/// Packets that the window always holds: one on the wire, one behind it, one being reported.
pub(super) const MIN_WINDOW: u64 = 4 * FULL_PACKET;
/// The shortest round: on a short path reports are what is waited for.
const MIN_ROUND: Duration = Duration::from_millis(2);

/// Which controller a path has.
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

/// A name that is no controller's.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unknown controller {name:?}: expected one of {}", Control::NAMES.join(", "))]
pub struct UnknownController {
    /// The name that was asked for.
    pub name: String,
}

impl Control {
    /// The controllers that there are, the default first.
    pub const NAMES: [&str; 3] = ["short-queue", "cubic", "bbr"];

    /// The controller of a name.
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

    /// A controller of a path of which nothing is known.
    pub(super) fn start(self, now: Instant) -> Box<dyn Controller + Send> {
        match self {
            Self::ShortQueue => Box::new(short_queue::ShortQueue::new(now)),
            Self::Cubic => Box::new(cubic::Cubic::new(now)),
            Self::Bbr => Box::new(bbr::Bbr::new(now)),
        }
    }
}

/// What one report says, worked out by the path.
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
    /// Packets found lost since the last report.
    pub lost: u64,
    /// The sender had nothing to send in that time: the rate is a lower bound only.
    pub app_limited: bool,
    /// The packet number of a packet with the mean delay that arrived last.
    pub newest: u64,
    /// The packet number that will be sent next.
    pub next_packet_number: u64,
    /// Bytes in flight after the report.
    pub in_flight: u64,
}

/// Decides how much of one path is used.
///
/// Cost: O(1) a report and an answer, no allocation.
pub(super) trait Controller: fmt::Debug {
    /// What it does at present, in its own words.
    fn state(&self) -> &'static str;

    /// Takes in one report; `times` have it already. It says when a round of the path is over
    /// ([`Times::on_round`]).
    fn on_report(&mut self, sample: &Sample, times: &mut Times, now: Instant);

    /// Begins with a window of so many bytes, which the path is known to carry from before.
    fn resume(&mut self, window: u64);

    /// Bytes that may be in flight.
    fn window(&self, times: &Times) -> u64;

    /// The rate to send at; `None` while nothing is known, when packets go as the window lets them.
    fn pacing(&self, times: &Times) -> Option<Rate>;

    /// The delivery rate; zero when nothing is known.
    fn rate(&self) -> Rate;

    /// The rate to reckon with: the delivery rate, or more while the path is started and what was
    /// measured is a lower bound. Zero when nothing is known.
    fn expected_rate(&self, times: &Times) -> Rate;

    /// The highest rate of late, as of the last round's end.
    fn peak_rate(&self) -> Rate;

    /// Whether the path's capacity is still being found by sending ever more: it carried more in
    /// the last round than before.
    fn is_growing(&self) -> bool;

    /// What it has of a queue that others fill too; `None` while it competes with nobody.
    fn stake(&self) -> Option<Stake> {
        None
    }

    /// Others of the session compete in the same queue: together they are to be one sender.
    /// `packet numbers`: the newest one reported and the one to be sent next.
    fn set_company(&mut self, _company: Company, _counters: (u64, u64), _now: Instant) {}

    /// Whether it knows that no packet meets an empty queue at present: others fill it.
    fn never_meets_an_empty_queue(&self) -> bool {
        false
    }
}

/// The rate, or a window in a round trip where that is more: what a path that is being started is
/// reckoned with. Zero when nothing is known.
fn at_least_a_window(rate: Rate, window: u64, times: &Times) -> Rate {
    let round_trip = times.base_round_trip();
    if round_trip == Duration::ZERO {
        return rate;
    }
    let windows = Rate::of(Bytes(window), round_trip + BUSY_REPORT_DELAY).unwrap_or_default();
    let link = times.own_time().rate();
    rate.max(link.map_or(windows, |link| windows.min(link)))
}

/// What a path has of a queue that others fill too.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Stake {
    /// Its share of what is in the queue. 0 to 1.
    pub(crate) share: f64,
    /// It holds back at present, to see what that shortens.
    pub(crate) is_looking: bool,
    /// How often it has met that the queue overflowed.
    pub(crate) overflows: u32,
}

/// Other paths of the session that compete in the same queue.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Company {
    /// How many.
    pub(crate) others: u32,
    /// What they have of it together.
    pub(crate) stake: Stake,
}

impl Company {
    /// Takes in another one of them.
    pub(crate) fn add(&mut self, stake: Stake) {
        self.others += 1;
        self.stake.share += stake.share;
        self.stake.is_looking |= stake.is_looking;
        self.stake.overflows = self.stake.overflows.wrapping_add(stake.overflows);
    }

    /// How many paths there are in all.
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

    /// Whether a round trip has passed since.
    fn is_past(&self, sample: &Sample, now: Instant) -> bool {
        sample.newest >= self.packet_number && now.since(self.since) >= MIN_ROUND
    }
}

#[cfg(test)]
mod tests;
