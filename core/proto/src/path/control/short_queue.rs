//! Hawser's own controller: keeps the path's own queue short, and shares a queue that other senders
//! fill.
//!
//! It follows the delivery rate that the receiver reports and the round trip without a queue, as
//! BBR does. For striping it adds two rules. A standing queue is detected every round and drained
//! before it can delay interactive packets. A rate estimate that the queue contradicts is discarded
//! at once instead of after ten rounds, because rates of mobile links change tenfold within a
//! second.
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
//!                     |   three failed rounds            Compete
//!                     +-------------------------------->   |
//!                    Drain <-------------------------------+
//!                                no other senders   
//! ```
//!
//! The startup doubles the rate each round trip, and quadruples it on a far path while no packet
//! meets a queue.
//!
//! A queue that does not become shorter while the path sends less and its rate falls is filled by
//! other senders. The path then *competes* for its share with a window ([`super::competing`]),
//! until a round with less data in flight shows that the queue is its own.
//!
//! Source: delivery rate estimation after draft-cheng-iccrg-delivery-rate-estimation; gains after
//! draft-cardwell-iccrg-bbr. Units: rates and windows count UDP payload bytes.

use hawser_units::{Bytes, Duration, Instant, Rate};

use super::competing::{Competing, Rivals, Seen};
use super::rates::Rates;
use super::{
    Competitors, Controller, GROWTH, INITIAL_WINDOW, MIN_WINDOW, Mark, QueueShare, Sample, TRAIN,
    window_per_round_trip,
};
use crate::path::times::{BUSY_REPORT_DELAY, Times, own};

/// Pacing gain of the startup: the smallest that doubles the rate each round (4 ln 2). Source:
/// draft-ietf-ccwg-bbr, `BBR.StartupPacingGain`.
const STARTUP_GAIN: f64 = 2.77;
/// Pacing gain of the startup of a far path whose link has shown room: a window is sent in an
/// eighth of the round trip. If it meets no queue there, four times the window fill the link for
/// half a round trip at most, so the next window may be four times as large.
///
/// Source: SUSS (Arghavani et al., SIGCOMM 2024), which quadruples the window where the spacing of
/// acknowledgements shows room. Deviates: the receiver's delays show it.
const FAST_GAIN: f64 = 8.0;
/// Bytes by which the window of such a path grows for each delivered byte: it becomes four times as
/// large in a round trip. Source: [`FAST_GAIN`].
const FAST_GROWTH: u64 = 3;
/// Share of the round trip up to which a queue shows room, as its reciprocal. Source: a quarter of
/// the time in which a window is sent with [`FAST_GAIN`]; a link with less than 0.8 of that rate
/// has a longer queue at its end.
const ROOM: u32 = 32;
/// Parts of a round trip in which the rate of arrivals is measured. Source: one is half of the
/// time in which a window is sent with [`FAST_GAIN`].
const PARTS: u32 = 16;
/// Minimum duration of a part: two reports, which a busy path's receiver sends every 5 ms
/// (`REPORT_INTERVAL` of `ingress.rs`). Below, at a round trip of 160 ms, a path is not far: with
/// faster growth there, a recorded drive reached 0.87 of the bound instead of 0.94
/// (docs/notebook/streams.md, "Far paths").
const SHORTEST_PART: Duration = Duration::from_millis(10);
/// Packets lost in one round that end the startup: a queue too short for its gain shows no standing
/// delay.
///
/// Source: draft-cardwell-iccrg-bbr, `BBRStartupFullLossCnt`.
const STARTUP_LOSS: u64 = 6;
/// Losses in one round, in number and share beyond random loss, that indicate a queue overflow at
/// every delay. No suite of docs/notebook/path-model.md, "Sensitivity", changes by more than 3 %
/// with half or twice of either.
const OVERFLOW_LOST: u64 = 16;
const OVERFLOW_SHARE: f64 = 0.1;
/// Multiplicative decrease of the rate after an overflow.
///
/// Source: draft-ietf-ccwg-bbr, `BBRBeta`.
const OVERFLOW_CUT: f64 = 0.7;
/// Gains of the cruise cycle's rounds: probe, give back; those that follow hold. Source:
/// draft-cardwell-iccrg-bbr, the gain cycle of `ProbeBW`.
const CYCLE: [f64; 2] = [1.25, 0.75];
/// Rounds that hold: few after the rate has changed, twice as many after each probe in vain. Half
/// and twice of either bound change goodput by at most 0.7 % (docs/notebook/path-model.md,
/// "Sensitivity").
const FEWEST_HOLDS: usize = 1;
const MAX_HOLDS: usize = 6;
/// Pacing gain of a competing path over its window per round trip. With 1.125 and 1.5 goodput
/// changes by at most 0.4 %, and the share beside CUBIC by -5 and -3 %
/// (docs/notebook/path-model.md, "Sensitivity").
const COMPETE_GAIN: f64 = 1.25;
/// The gain of a probe after others that found more. Half and twice of it change goodput by at most
/// 0.3 %, and the share beside CUBIC by -5 and 0 % (docs/notebook/path-model.md, "Sensitivity").
const MAX_PROBE_GAIN: f64 = 2.0;
/// Gain while a queue is drained. With 0.85 and 0.4 goodput changes by at most 0.6 %, and the share
/// beside CUBIC by 7 and 0 % (docs/notebook/path-model.md, "Sensitivity").
const DRAIN_GAIN: f64 = 0.7;
/// Ratio of the window to the product of rate and round trip: enough for jitter, small enough that
/// a failing path loses little. With 1.25 and 2 goodput changes by at most 0.3 %, and the share
/// beside CUBIC by -7 and -3 % (docs/notebook/path-model.md, "Sensitivity").
const WINDOW_GAIN: f64 = 1.5;
/// The window's gain while starting: twice the product lets the rate double each round and bounds
/// the overshoot to one product. Source: draft-ietf-ccwg-bbr, `BBR.DefaultCwndGain`.
const STARTUP_WINDOW_GAIN: f64 = 2.0;
/// Reports in a row with a queue that end the start at once: waiting for the round would cost
/// another round's overshoot. Half and twice of it change goodput by at most 0.6 %, and the share
/// beside CUBIC by -3 and -4 % (docs/notebook/path-model.md, "Sensitivity").
const QUEUED_REPORTS: u32 = 4;

#[derive(Clone, Copy, Debug, PartialEq)]
enum Phase {
    Startup,
    Drain,
    Cruise,
    Compete(Competing),
}

/// Measurements since a packet was sent, until it is reported.
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

/// Controller with a short queue; the module documentation describes its states.
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
    /// Marks the first round after a queue was drained.
    is_checking: bool,
    rivals: Rivals,
    /// Window during slow start; it grows by the delivered bytes. Units: bytes. Source: RFC 5681
    /// section 3.1.
    slow_start: u64,
    trains: Trains,
}

/// Rate of arrivals in parts of a round trip, while the sending rate still grows: a round trip as a
/// whole has pauses, so its rate is below that of the link.
#[derive(Clone, Copy, Debug, Default)]
struct Trains {
    /// Units: bytes.
    bytes: u64,
    time: Duration,
    /// The highest rate of this round and of the one before.
    highest: [Rate; 2],
}

impl Trains {
    fn on_report(&mut self, sample: &Sample, round_trip: Duration) {
        self.bytes += sample.reported;
        self.time += sample.interval;
        let Some(part) = Self::part(round_trip) else {
            *self = Self::default();
            return;
        };
        if self.time >= part {
            let rate = Rate::of(Bytes(self.bytes), self.time).unwrap_or_default();
            self.highest[0] = self.highest[0].max(rate);
            (self.bytes, self.time) = (0, Duration::ZERO);
        }
    }

    /// Returns the duration of a part; `None` if it contains too few reports.
    fn part(round_trip: Duration) -> Option<Duration> {
        Some(round_trip / PARTS).filter(|part| *part >= SHORTEST_PART)
    }

    fn on_round(&mut self) {
        self.highest = [Rate::ZERO, self.highest[0]];
    }

    fn rate(&self) -> Rate {
        self.highest[0].max(self.highest[1])
    }
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
            holds: MAX_HOLDS,
            is_checking: false,
            rivals: Rivals::default(),
            slow_start: INITIAL_WINDOW,
            trains: Trains::default(),
        }
    }

    fn measured(&self) -> Rate {
        self.rates.measured()
    }

    /// Processes one report during slow start: the window grows as long as it is used and the rate
    /// follows.
    fn start(&mut self, sample: &Sample, times: &Times) {
        let is_used = sample.in_flight + sample.reported >= self.window(times) / 2;
        // The measured rate is that of a round before.
        let (growth, ahead) = if self.has_room(times) {
            (FAST_GROWTH, GROWTH * GROWTH)
        } else {
            (1, GROWTH)
        };
        let carried = self.measured().scale(ahead).bytes_in(times.base_round_trip()).0;
        if self.phase == Phase::Startup && is_used && self.slow_start < carried.max(INITIAL_WINDOW * 2) {
            self.slow_start += sample.reported * growth;
        }
    }

    /// Ends slow start because the link is full: parts of the last round trip had its rate.
    fn end_start(&mut self) {
        self.rates
            .on_busy(self.trains.rate().min(self.measured().scale(GROWTH)));
        self.enter(Phase::Drain);
    }

    /// Processes one report while other senders fill the queue.
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

    /// Returns whether the link of a far path has shown in this round that it has room for more.
    fn has_room(&self, times: &Times) -> bool {
        let round_trip = times.base_round_trip();
        Trains::part(round_trip).is_some() && self.round.lost == 0 && self.round.peak <= round_trip / ROOM
    }

    fn stands(&self, queue: Duration, times: &Times) -> bool {
        times.stands(queue, self.rates.peak())
    }

    /// Returns whether this round lost more than is lost without a queue, while a queue stood.
    fn loses_to_queue(&self, sample: &Sample, times: &Times) -> bool {
        self.stands(self.round.peak, times)
            && self.rivals.is_unusual(self.round.lost, self.round.sent(sample))
    }

    /// Returns whether a queue overflows, by its losses: the queue of a path that is used in bursts
    /// does not stand, but it loses packets.
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
                if queued || loses {
                    self.end_start();
                } else if self.has_stopped_growing(sample) {
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
                (self.holds * 2).min(MAX_HOLDS)
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
        self.trains.on_report(sample, times.base_round_trip());
        self.start(sample, times);
        self.compete(sample, times, now);
        let stands = is_own(sample) && self.stands(queue, times);
        self.queued_reports = if stands { self.queued_reports + 1 } else { 0 };
        if self.phase == Phase::Startup && self.queued_reports >= QUEUED_REPORTS {
            self.end_start();
        }
        if self.round.end.is_past(sample, now) {
            // A start sends in bursts, and few packets say little; and a round reports what was
            // sent in the one before.
            let is_even = self.phase != Phase::Startup && is_own(sample) && self.is_settled;
            self.is_settled = true;
            times.on_round(is_even, own(self.rates.peak()) * 2);
            self.on_round(sample, times, now);
            self.round = Round::new(sample.newest, Mark::next(sample, now));
            self.trains.on_round();
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
            Phase::Startup if self.has_room(times) => (rate, FAST_GAIN),
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

    /// Returns the expected rate. Until slow start ends it is at least a window per round trip,
    /// because the rate measured with few packets is only a lower bound, and a path that counts as
    /// slow would get no more packets; and because a rate is known one round trip later than an
    /// inner flow in slow start needs it.
    ///
    /// Source: draft-cardwell-iccrg-bbr, `BBRSetPacingRateWithGain`: before the pipe is full the
    /// rate only rises. See `a_trickle_bounds_nothing_until_the_start_is_over`.
    fn expected_rate(&self, times: &Times) -> Rate {
        if self.phase == Phase::Startup {
            window_per_round_trip(self.measured(), self.slow_start, times)
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

    fn queue_share(&self) -> Option<QueueShare> {
        match &self.phase {
            Phase::Compete(competing) => Some(competing.queue_share()),
            Phase::Startup | Phase::Drain | Phase::Cruise => None,
        }
    }

    fn set_competitors(&mut self, company: Competitors, packet_numbers: (u64, u64), now: Instant) {
        if let Phase::Compete(competing) = &mut self.phase {
            competing.set_competitors(company, packet_numbers, now);
        }
    }

    fn never_meets_an_empty_queue(&self) -> bool {
        matches!(self.phase, Phase::Compete(_))
    }
}

/// Returns whether a queue may be the path's own: behind a few packets it is not, and says nothing
/// of the path's rate.
fn is_own(sample: &Sample) -> bool {
    sample.delivered >= TRAIN
}

#[cfg(test)]
mod tests;
