//! Hawser's own controller: a queue of its own is kept short, one that others fill is shared.
//!
//! It follows the delivery rate that the receiver reports and the round trip without a
//! queue, as BBR does, and adds what striping needs: the standing queue is watched every round and
//! drained before it can hold up interactive packets, and a rate estimate that the queue
//! contradicts is forgotten at once instead of after ten rounds, because links here swing tenfold
//! within a second.
//!
//! ```text
//!            rate stops growing, a queue stands, or packets are lost
//!  Startup ------------------------------------------> Drain
//!                                                        | in flight <= rate x round trip
//!                                                        v
//!              queue stands, or overflows         +-> Cruise (probe 1.25 to 2, give back 0.75, 1 to 6 rounds at 1)
//!                    Drain <----------------------+      |  |
//!                     | |                                |  | more is lost than usual, with a queue
//!                     | +--------------------------------+  v
//!                     |   three rounds in vain           Compete
//!                     +-------------------------------->   |
//!                    Drain <-------------------------------+
//!                                nobody else is there
//! ```
//!
//! A queue that does not yield while the path holds back and its rate falls is kept full by others:
//! the path *competes* for its share, by a window ([`super::competing`]), until a look shows that
//! the queue is its own.
//!
//! Source: delivery rate estimation after draft-cheng-iccrg-delivery-rate-estimation; gains after
//! draft-cardwell-iccrg-bbr.
//! Units: rates and windows count UDP payload bytes.

use hawser_units::{Bytes, Duration, Instant, Rate};

use super::competing::{Competing, Rivals, Seen};
use super::rates::Rates;
use super::{
    Company, Controller, GROWTH, INITIAL_WINDOW, MIN_WINDOW, Mark, Sample, Stake, TRAIN, at_least_a_window,
};
use crate::path::times::{BUSY_REPORT_DELAY, Times, own};

/// Grows as fast as slow start: the smallest gain that doubles the rate each round (4 ln 2).
const STARTUP_GAIN: f64 = 2.77;
/// Packets lost in one round that end the startup: a queue too short for its gain shows no standing
/// delay.
///
/// Source: draft-cardwell-iccrg-bbr, `BBRStartupFullLossCnt`.
const STARTUP_LOSS: u64 = 6;
/// Losses in one round that say that a queue overflows, whatever its delay: so many, and so large a
/// share, beyond what links lose by chance.
const OVERFLOW_LOST: u64 = 16;
const OVERFLOW_SHARE: f64 = 0.1;
/// What is left of the rate after an overflow.
///
/// Source: draft-ietf-ccwg-bbr, `BBRBeta`.
const OVERFLOW_CUT: f64 = 0.7;
/// Gains of the cruise cycle's rounds: probe, give back; those that follow hold.
const CYCLE: [f64; 2] = [1.25, 0.75];
/// Rounds that hold: few after the rate has changed, twice as many after each probe in vain.
const FEWEST_HOLDS: usize = 1;
const MOST_HOLDS: usize = 6;
/// How much faster than its window and round trip a competing path is paced.
const COMPETE_GAIN: f64 = 1.25;
/// The gain of a probe after others that found more.
const MAX_PROBE_GAIN: f64 = 2.0;
/// Gain while a queue is drained.
const DRAIN_GAIN: f64 = 0.7;
/// How far the window exceeds the product of rate and round trip: room for jitter, small enough
/// that a blackhole swallows little.
const WINDOW_GAIN: f64 = 1.5;
/// The window's gain while starting: twice the product lets the rate double each round and bounds
/// the overshoot to one product.
const STARTUP_WINDOW_GAIN: f64 = 2.0;
/// Reports in a row with a queue that end the start at once: waiting for the round would cost
/// another round's overshoot.
const QUEUED_REPORTS: u32 = 4;

#[derive(Clone, Copy, Debug, PartialEq)]
enum Phase {
    Startup,
    Drain,
    Cruise,
    Compete(Competing),
}

/// What was seen since a packet was sent, until it is reported.
#[derive(Clone, Copy, Debug)]
struct Round {
    /// The packet number at which it began, and the mark at which it ends.
    begin: u64,
    end: Mark,
    /// The shortest and the longest queue.
    queue: Option<Duration>,
    peak: Duration,
    rate: Rate,
    lost: u64,
}

impl Round {
    fn new(begin: u64, end: Mark) -> Self {
        Self {
            begin,
            end,
            queue: None,
            peak: Duration::ZERO,
            rate: Rate::ZERO,
            lost: 0,
        }
    }

    /// Packets sent in it and reported.
    fn sent(&self, sample: &Sample) -> f64 {
        sample.newest.saturating_sub(self.begin) as f64
    }
}

/// The controller.
#[derive(Debug)]
pub(super) struct ShortQueue {
    phase: Phase,
    cycle: usize,
    rates: Rates,
    round: Round,
    queued_rounds: u32,
    queued_reports: u32,
    full_rate: Rate,
    full_rounds: u32,
    /// The rate at the last round's end, and whether it rose in that round.
    last_rate: Rate,
    grew: bool,
    probe_gain: f64,
    /// A round has ended since the phase changed: what the next one reports was sent at one pace.
    is_settled: bool,
    /// Rounds at a gain of 1 in this cycle.
    holds: usize,
    /// This is the first round after a queue was drained.
    is_checking: bool,
    rivals: Rivals,
    /// While starting: the window, which grows by what is delivered. Units: bytes. Source: RFC 5681
    /// section 3.1.
    slow_start: u64,
}

impl ShortQueue {
    pub(super) fn new(now: Instant) -> Self {
        let begin = Mark {
            packet_number: 0,
            since: now,
        };
        Self {
            phase: Phase::Startup,
            cycle: 2,
            rates: Rates::new(now),
            round: Round::new(0, begin),
            queued_rounds: 0,
            queued_reports: 0,
            full_rate: Rate::ZERO,
            full_rounds: 0,
            last_rate: Rate::ZERO,
            grew: true,
            probe_gain: CYCLE[0],
            is_settled: false,
            holds: MOST_HOLDS,
            is_checking: false,
            rivals: Rivals::default(),
            slow_start: INITIAL_WINDOW,
        }
    }

    fn measured(&self) -> Rate {
        self.rates.measured()
    }

    /// One report while starting: the window grows as long as it is used and the rate follows.
    fn start(&mut self, sample: &Sample, times: &Times) {
        let is_used = sample.in_flight + sample.reported >= self.window(times) / 2;
        let carried = self.measured().scale(GROWTH).bytes_in(times.base_round_trip()).0;
        if self.phase == Phase::Startup && is_used && self.slow_start < carried.max(INITIAL_WINDOW * 2) {
            self.slow_start += sample.reported;
        }
    }

    /// One report while others fill the queue.
    fn compete(&mut self, sample: &Sample, times: &Times, now: Instant) {
        let (round_trip, is_overflow) = (
            times.round_trip(),
            sample.lost > 0 && self.loses_to_queue(sample, times),
        );
        let Phase::Compete(competing) = &mut self.phase else {
            return;
        };
        competing.on_reported(sample.reported, sample.in_flight, round_trip, now);
        if is_overflow {
            competing.on_overflow((sample.newest, sample.next_packet_number), now);
        }
    }

    fn stands(&self, queue: Duration, times: &Times) -> bool {
        times.stands(queue, self.rates.peak())
    }

    /// Whether more was lost in this round than is lost without a queue, while one was there.
    fn loses_to_queue(&self, sample: &Sample, times: &Times) -> bool {
        self.stands(self.round.peak, times)
            && self.rivals.is_unusual(self.round.lost, self.round.sent(sample))
    }

    /// A queue that overflows is not seen to stand when the path is used in bursts, but it is seen
    /// to lose.
    fn overflows(&self, sample: &Sample) -> bool {
        self.round.lost >= OVERFLOW_LOST && self.round.lost as f64 > OVERFLOW_SHARE * self.round.sent(sample)
    }

    fn on_round(&mut self, sample: &Sample, times: &Times, now: Instant) {
        self.grew = self.measured() >= self.last_rate.scale(1.1);
        self.last_rate = self.measured();
        self.rates.on_round();
        let queue = self.round.queue.unwrap_or_default();
        let is_own = self.phase != Phase::Startup || is_own(sample);
        let queued = is_own && self.stands(queue, times);
        if queued {
            self.rates.on_queue(self.round.rate);
        }
        let holds_back = self.phase == Phase::Drain || self.is_checking;
        let seen = Seen {
            queue: queued.then_some(queue),
            round: now.since(self.round.end.since),
            rate: self.round.rate,
            in_flight: sample.in_flight,
            holds_back,
        };
        if let Some(flight) = self.rivals.on_round(&seen) {
            self.enter(Phase::Compete(Competing::new(flight, now)));
            return;
        }
        let loses_to_queue = self.loses_to_queue(sample, times);
        if !self.stands(self.round.peak, times) {
            self.rivals
                .on_usual_loss(self.round.lost, self.round.sent(sample));
        }
        self.queued_rounds = if queued { self.queued_rounds + 1 } else { 0 };
        match &mut self.phase {
            Phase::Startup => {
                // Where packets overtake each other by much, some count as lost before that is
                // known.
                let loses = self.overflows(sample)
                    || (self.round.lost >= STARTUP_LOSS && !times.delay().is_irregular());
                if queued || loses || self.has_stopped_growing(sample) {
                    self.enter(Phase::Drain);
                }
            }
            Phase::Drain => {
                if self.queued_rounds >= 2 {
                    self.believe_the_queue();
                } else if !queued {
                    self.enter(Phase::Cruise);
                }
            }
            Phase::Cruise => {
                let was_checking = std::mem::take(&mut self.is_checking);
                if was_checking && queued {
                    self.believe_the_queue();
                }
                if self.overflows(sample) {
                    self.rates.cut(OVERFLOW_CUT);
                    self.enter(Phase::Drain);
                } else if loses_to_queue && !was_checking {
                    let flight = self
                        .measured()
                        .bytes_in(times.base_round_trip() + self.round.peak);
                    let mut competing = Competing::new(flight.0, now);
                    competing.on_overflow((sample.newest, sample.next_packet_number), now);
                    self.enter(Phase::Compete(competing));
                } else if queued {
                    self.enter(Phase::Drain);
                } else {
                    self.advance_cycle(sample);
                }
            }
            Phase::Compete(competing) => {
                if competing.is_alone(&seen) {
                    self.enter(Phase::Drain);
                }
            }
        }
    }

    /// A queue that outlasts draining proves that the estimate is too high: the link got slower.
    fn believe_the_queue(&mut self) {
        let seen = self.round.rate.scale(0.95);
        if seen != Rate::ZERO && seen < self.measured() {
            self.holds = FEWEST_HOLDS;
            self.rates.restart(seen);
        }
        self.queued_rounds = 0;
    }

    fn has_stopped_growing(&mut self, sample: &Sample) -> bool {
        if sample.app_limited {
            return false;
        }
        let rate = self.measured();
        if rate >= self.full_rate.scale(1.25) {
            self.full_rate = rate;
            self.full_rounds = 0;
            return false;
        }
        self.full_rounds += 1;
        self.full_rounds >= 3
    }

    /// A probe that found more is repeated at once, and more boldly: capacity is taken up within a
    /// few rounds. What a round sends is measured in the next.
    fn advance_cycle(&mut self, sample: &Sample) {
        let found = self.cycle <= 1 && !sample.app_limited && self.measured() >= self.full_rate.scale(1.1);
        if self.cycle == 1 {
            self.holds = if found {
                FEWEST_HOLDS
            } else {
                (self.holds * 2).min(MOST_HOLDS)
            };
        }
        self.cycle = if found {
            0
        } else {
            (self.cycle + 1) % (CYCLE.len() + self.holds)
        };
        if self.cycle == 0 {
            self.full_rate = self.measured();
            self.probe_gain = if found {
                (self.probe_gain * 1.25).min(MAX_PROBE_GAIN)
            } else {
                CYCLE[0]
            };
        }
    }

    fn drained(&self, times: &Times) -> u64 {
        self.measured()
            .bytes_in(times.base_round_trip() + BUSY_REPORT_DELAY / 2)
            .0
            .max(MIN_WINDOW)
    }

    fn enter(&mut self, phase: Phase) {
        if phase == Phase::Cruise {
            self.full_rate = self.measured();
            self.cycle = 2;
            self.probe_gain = CYCLE[0];
        }
        self.is_checking = false;
        self.is_settled = false;
        self.phase = phase;
    }
}

impl Controller for ShortQueue {
    fn state(&self) -> &'static str {
        match self.phase {
            Phase::Startup => "startup",
            Phase::Drain => "drain",
            Phase::Cruise => "cruise",
            Phase::Compete(_) => "compete",
        }
    }

    fn on_report(&mut self, sample: &Sample, times: &mut Times, now: Instant) {
        self.rates.on_report(sample, times.round_trip(), now);
        let queue = times.queue(sample.delay.forward_us);
        let round = &mut self.round;
        round.rate = round.rate.max(sample.rate.unwrap_or_default());
        round.lost = round.lost.saturating_add(sample.lost);
        round.queue = Some(round.queue.map_or(queue, |least| least.min(queue)));
        round.peak = round.peak.max(queue);
        self.start(sample, times);
        self.compete(sample, times, now);
        self.queued_reports = if is_own(sample) && self.stands(queue, times) {
            self.queued_reports + 1
        } else {
            0
        };
        if self.phase == Phase::Startup && self.queued_reports >= QUEUED_REPORTS {
            self.enter(Phase::Drain);
        }
        if self.round.end.is_past(sample, now) {
            // A start sends in bursts, and few packets say little; and a round reports what was
            // sent in the one before.
            let is_even = self.phase != Phase::Startup && is_own(sample) && self.is_settled;
            self.is_settled = true;
            times.on_round(is_even, own(self.rates.peak()) * 2);
            self.on_round(sample, times, now);
            self.round = Round::new(sample.newest, Mark::next(sample, now));
        }
        if self.phase == Phase::Drain && sample.in_flight <= self.drained(times) {
            self.enter(Phase::Cruise);
            self.is_checking = true;
        }
    }

    fn resume(&mut self, window: u64) {
        self.slow_start = self.slow_start.max(window);
    }

    fn window(&self, times: &Times) -> u64 {
        let rate = self.measured();
        if rate == Rate::ZERO {
            return self.slow_start;
        }
        if let Phase::Compete(competing) = self.phase {
            return competing.window();
        }
        let gain = if self.phase == Phase::Startup {
            STARTUP_WINDOW_GAIN
        } else {
            WINDOW_GAIN.max(self.probe_gain)
        };
        // Where single packets deviate, reports wait for the slower ones; where all do, round trips
        // are longer than the least. A window for the least alone would be what bounds the rate,
        // and a lower rate would make the next window smaller.
        let base = times.base_round_trip();
        let irregular = (times.delay().jitter() * 4).min(times.round_trip().saturating_sub(base));
        let round_trip = base + times.delay().spread().max(irregular);
        let product = rate.bytes_in(round_trip).0;
        let window = ((product as f64 * gain) as u64).saturating_add(rate.bytes_in(BUSY_REPORT_DELAY).0);
        let floor = if self.phase == Phase::Startup {
            self.slow_start
        } else {
            MIN_WINDOW
        };
        window.max(floor)
    }

    fn pacing(&self, times: &Times) -> Option<Rate> {
        let rate = if self.measured() == Rate::ZERO {
            Rate::ZERO
        } else {
            self.expected_rate(times)
        };
        let (rate, gain) = match self.phase {
            Phase::Startup => (rate, STARTUP_GAIN),
            Phase::Drain => (rate, DRAIN_GAIN),
            Phase::Cruise if self.cycle == 0 => (rate, self.probe_gain),
            Phase::Cruise => (rate, CYCLE.get(self.cycle).copied().unwrap_or(1.0)),
            Phase::Compete(competing) => {
                let rate = Rate::of(Bytes(competing.window()), times.round_trip());
                (rate.unwrap_or_default(), COMPETE_GAIN)
            }
        };
        (rate != Rate::ZERO).then(|| rate.scale(gain))
    }

    fn rate(&self) -> Rate {
        self.measured()
    }

    /// Until the start is over, at least a window in a round trip, because what a trickle of
    /// packets measures is a lower bound, and a path that counts as slow would get no more than a
    /// trickle; and because a rate is known a round trip later than an inner flow in slow start
    /// needs it.
    ///
    /// Source: draft-cardwell-iccrg-bbr, `BBRSetPacingRateWithGain`: before the pipe is full the
    /// rate only rises. See `a_trickle_bounds_nothing_until_the_start_is_over`.
    fn expected_rate(&self, times: &Times) -> Rate {
        if self.phase == Phase::Startup {
            at_least_a_window(self.measured(), self.slow_start, times)
        } else {
            self.measured()
        }
    }

    fn peak_rate(&self) -> Rate {
        self.rates.peak()
    }

    fn is_growing(&self) -> bool {
        self.phase == Phase::Startup && self.grew
    }

    fn stake(&self) -> Option<Stake> {
        match &self.phase {
            Phase::Compete(competing) => Some(competing.stake()),
            Phase::Startup | Phase::Drain | Phase::Cruise => None,
        }
    }

    fn set_company(&mut self, company: Company, packet_numbers: (u64, u64), now: Instant) {
        if let Phase::Compete(competing) = &mut self.phase {
            competing.set_company(company, packet_numbers, now);
        }
    }

    fn never_meets_an_empty_queue(&self) -> bool {
        matches!(self.phase, Phase::Compete(_))
    }
}

/// A few packets make no queue: what is seen behind them is not the path's doing, and says nothing
/// of its rate.
fn is_own(sample: &Sample) -> bool {
    sample.delivered >= TRAIN
}

#[cfg(test)]
mod tests;
