//! What a path can carry: its rate, its delay, and how much to keep in flight.
//!
//! The model follows the delivery rate that the receiver reports and the round trip without a
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

use hawser_units::{Bytes, Duration, Instant, MeasuredRate, PredictedRate, Rate};

use super::FULL_PACKET;
use super::competing::{Competing, Rivals, Seen};
use super::delay::{Delay, Measured};
use crate::smoothed::Smoothed;

/// Grows as fast as slow start: the smallest gain that doubles the rate each round (4 ln 2).
const STARTUP_GAIN: f64 = 2.77;
/// How much more a path that grows carries in two round trips: it doubles each round trip.
const GROWTH: f64 = 4.0;
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
/// Packets that the window always holds: one on the wire, one behind it, one being reported.
const MIN_WINDOW: u64 = 4 * FULL_PACKET;
/// Bytes that say something of a path's rate even when it was not kept busy: a lone packet says
/// nothing.
const TRAIN: u64 = 4 * FULL_PACKET;
/// The window before anything is known.
///
/// Source: RFC 6928.
const INITIAL_WINDOW: u64 = 10 * FULL_PACKET;
/// How long reports of a busy path wait at the receiver: its interval between reports (`ingress`: 5
/// ms) and 1 ms. The window has room for it.
pub(super) const BUSY_REPORT_DELAY: Duration = Duration::from_millis(6);
/// The standing queue that is left alone, beside an eighth of the round trip and the jitter.
const QUEUE_ALLOWANCE: Duration = Duration::from_millis(4);
/// Packets that keep their order wait for the latest before them: a stream takes so many deviations
/// of lone packets longer than they do.
const LONE_DEVIATIONS: u32 = 2;
/// A packet's own time on the link is no queue, as the least delay may be that of small probes; no
/// more than this where the rate is unknown.
const LONGEST_OWN: Duration = Duration::from_millis(50);
/// What a round leaves of the highest rate.
const PEAK_DECAY: f64 = 0.99;
/// Rate buckets: the estimate is the largest of the last eight.
const BUCKETS: usize = 8;
/// The shortest bucket: on a short path a round is too short to measure a rate in.
const BUCKET: Duration = Duration::from_millis(40);
/// A path is paced no slower, whatever is measured or configured: at a rate of zero the next packet
/// would never come.
const LEAST: Rate = Rate::from_bps(64_000);
/// The shortest round, for the same reason.
const MIN_ROUND: Duration = Duration::from_millis(2);

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
    /// The counter of a packet with the mean delay that arrived last.
    pub newest: u64,
    /// The counter that will be sent next.
    pub next_counter: u64,
    /// Bytes in flight after the report.
    pub in_flight: u64,
}

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
    /// The counters at which it began and will end.
    begin: u64,
    end: u64,
    since: Instant,
    /// The shortest and the longest queue.
    queue: Option<Duration>,
    peak: Duration,
    rate: Rate,
    lost: u64,
}

impl Round {
    fn new(begin: u64, end: u64, now: Instant) -> Self {
        Self {
            begin,
            end,
            since: now,
            queue: None,
            peak: Duration::ZERO,
            rate: Rate::ZERO,
            lost: 0,
        }
    }

    fn is_over(&self, sample: &Sample, now: Instant) -> bool {
        sample.newest >= self.end && now.since(self.since) >= MIN_ROUND
    }

    /// Packets sent in it and reported.
    fn sent(&self, sample: &Sample) -> f64 {
        sample.newest.saturating_sub(self.begin) as f64
    }
}

/// The model of one path in the sending direction.
///
/// Cost: O(1) a report, no allocation.
#[derive(Debug)]
pub struct Model {
    phase: Phase,
    cycle: usize,
    buckets: [Rate; BUCKETS],
    bucket_since: Instant,
    delay: Delay,
    /// Smoothed round trip and its variation; `None` before the first.
    smoothed: Option<Smoothed>,
    round: Round,
    queued_rounds: u32,
    queued_reports: u32,
    full_rate: Rate,
    full_rounds: u32,
    /// The highest rate of late: what the link can do, also while others take most of it.
    peak_rate: Rate,
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
    cap: Option<Rate>,
    /// While starting: the window, which grows by what is delivered. Units: bytes. Source: RFC 5681
    /// section 3.1.
    slow_start: u64,
}

impl Model {
    /// A model that knows nothing yet. `cap`: the user's limit.
    #[must_use]
    pub fn new(cap: Option<Rate>, now: Instant) -> Self {
        Self {
            phase: Phase::Startup,
            cycle: 2,
            buckets: [Rate::ZERO; BUCKETS],
            bucket_since: now,
            delay: Delay::new(now),
            smoothed: None,
            round: Round::new(0, 0, now),
            queued_rounds: 0,
            queued_reports: 0,
            full_rate: Rate::ZERO,
            full_rounds: 0,
            peak_rate: Rate::ZERO,
            last_rate: Rate::ZERO,
            grew: true,
            probe_gain: CYCLE[0],
            is_settled: false,
            holds: MOST_HOLDS,
            is_checking: false,
            rivals: Rivals::default(),
            cap,
            slow_start: INITIAL_WINDOW,
        }
    }

    /// The delivery rate; zero when nothing is known.
    #[must_use]
    pub fn rate(&self) -> MeasuredRate {
        MeasuredRate::new(self.measured())
    }

    fn measured(&self) -> Rate {
        self.buckets.iter().copied().max().unwrap_or_default()
    }

    /// The rate to reckon with: until the start is over, at least a window in a round trip, because
    /// what a trickle of packets measures is a lower bound, and a path that counts as slow would
    /// get no more than a trickle; and because a rate is known a round trip later than an inner
    /// flow in slow start needs it. Zero when nothing is known.
    ///
    /// Source: draft-cardwell-iccrg-bbr, `BBRSetPacingRateWithGain`: before the pipe is full the
    /// rate only rises. See `a_trickle_bounds_nothing_until_the_start_is_over`.
    fn expected_rate(&self) -> Rate {
        let rate = self.measured();
        let round_trip = self.base_round_trip();
        if self.phase != Phase::Startup || round_trip == Duration::ZERO {
            return rate;
        }
        rate.max(Rate::of(Bytes(self.slow_start), round_trip + BUSY_REPORT_DELAY).unwrap_or_default())
    }

    /// The highest rate of late, which a link that swings may carry again soon.
    #[must_use]
    pub fn peak_rate(&self) -> Rate {
        self.peak_rate.max(self.measured())
    }

    /// What the path is expected to carry in two round trips: four times [`Self::expected_rate`]
    /// while it grows, as it doubles each round trip. Zero when nothing is known.
    #[must_use]
    pub fn soon(&self) -> PredictedRate {
        self.predicted(GROWTH)
    }

    /// The same in four round trips: sixteen times the rate while the path grows.
    #[must_use]
    pub fn later(&self) -> PredictedRate {
        self.predicted(GROWTH * GROWTH)
    }

    /// The window in a round trip counts as measured here: it has grown by what was reported.
    fn predicted(&self, growth: f64) -> PredictedRate {
        let growth = if self.is_growing() { growth } else { 1.0 };
        PredictedRate::grown(MeasuredRate::new(self.expected_rate()), growth)
    }

    /// Whether the path's capacity is still being found by sending ever more: it carried more in
    /// the last round than before.
    #[must_use]
    pub fn is_growing(&self) -> bool {
        self.phase == Phase::Startup && self.grew
    }

    /// Smoothed round trip (RFC 6298); zero when nothing is known.
    #[must_use]
    pub fn round_trip(&self) -> Duration {
        self.smoothed.map_or(Duration::ZERO, |known| known.mean)
    }

    /// The round trip without a queue on the way forward; zero when nothing is known.
    #[must_use]
    pub fn base_round_trip(&self) -> Duration {
        self.delay.base_round_trip().unwrap_or(self.round_trip())
    }

    /// The path's delays.
    #[must_use]
    pub fn delay(&self) -> &Delay {
        &self.delay
    }

    /// How long a report may take before the path is suspected: two round trips or four deviations,
    /// and what reports wait.
    #[must_use]
    pub fn patience(&self) -> Duration {
        let Some(Smoothed { mean, deviation }) = self.smoothed else {
            return Duration::from_millis(300);
        };
        mean + (deviation * 4).max(mean / 2) + Duration::from_millis(30)
    }

    /// The rate to send at; `None` before the first sample.
    #[must_use]
    pub fn pacing(&self) -> Option<Rate> {
        let rate = if self.measured() == Rate::ZERO {
            Rate::ZERO
        } else {
            self.expected_rate()
        };
        let (rate, gain) = match self.phase {
            Phase::Startup => (rate, STARTUP_GAIN),
            Phase::Drain => (rate, DRAIN_GAIN),
            Phase::Cruise if self.cycle == 0 => (rate, self.probe_gain),
            Phase::Cruise => (rate, CYCLE.get(self.cycle).copied().unwrap_or(1.0)),
            Phase::Compete(competing) => {
                let rate = Rate::of(Bytes(competing.window()), self.round_trip());
                (rate.unwrap_or_default(), COMPETE_GAIN)
            }
        };
        let paced = (rate != Rate::ZERO).then(|| rate.scale(gain).max(LEAST));
        match (paced, self.cap.map(|cap| cap.max(LEAST))) {
            (Some(paced), Some(cap)) => Some(paced.min(cap)),
            (paced, cap) => paced.or(cap),
        }
    }

    /// Bytes that may be in flight.
    #[must_use]
    pub fn window(&self) -> u64 {
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
        let base = self.base_round_trip();
        let irregular = (self.delay.jitter() * 4).min(self.round_trip().saturating_sub(base));
        let round_trip = base + self.delay.spread().max(irregular);
        let product = rate.bytes_in(round_trip).0;
        let window = ((product as f64 * gain) as u64).saturating_add(rate.bytes_in(BUSY_REPORT_DELAY).0);
        let floor = if self.phase == Phase::Startup {
            self.slow_start
        } else {
            MIN_WINDOW
        };
        window.max(floor)
    }

    /// Changes the user's limit.
    pub fn set_cap(&mut self, cap: Option<Rate>) {
        self.cap = cap;
    }

    /// Takes in one report.
    pub fn on_sample(&mut self, sample: &Sample, now: Instant) {
        let sample = &Sample {
            // A link with a queue is busy, however little there was for it.
            app_limited: sample.app_limited && !self.stands(self.delay.queue(sample.delay.forward_us)),
            ..*sample
        };
        self.on_round_trip(sample.delay.round_trip());
        if matches!(self.phase, Phase::Compete(_)) {
            // The queue never empties: the least delay that is seen is not the path's own.
            self.delay.keep_least(now);
        }
        self.delay.on_report(&sample.delay, now);
        self.on_rate(sample, now);
        let queue = self.delay.queue(sample.delay.forward_us);
        let round = &mut self.round;
        round.lost = round.lost.saturating_add(sample.lost);
        round.queue = Some(round.queue.map_or(queue, |least| least.min(queue)));
        round.peak = round.peak.max(queue);
        self.start(sample);
        self.compete(sample, now);
        self.queued_reports = if is_own(sample) && self.stands(queue) {
            self.queued_reports + 1
        } else {
            0
        };
        if self.phase == Phase::Startup && self.queued_reports >= QUEUED_REPORTS {
            self.enter(Phase::Drain);
        }
        if self.round.is_over(sample, now) {
            // A start sends in bursts, and few packets say little; and a round reports what was
            // sent in the one before.
            let is_even = self.phase != Phase::Startup && is_own(sample) && self.is_settled;
            self.is_settled = true;
            self.delay.on_round(is_even, self.own() * 2);
            self.on_round(sample, now);
            self.round = Round::new(sample.newest, sample.next_counter, now);
        }
        if self.phase == Phase::Drain && sample.in_flight <= self.drained() {
            self.enter(Phase::Cruise);
            self.is_checking = true;
        }
    }

    /// One report while starting: the window grows as long as it is used and the rate follows.
    fn start(&mut self, sample: &Sample) {
        let is_used = sample.in_flight + sample.reported >= self.window() / 2;
        let carried = self.measured().scale(GROWTH).bytes_in(self.base_round_trip()).0;
        if self.phase == Phase::Startup && is_used && self.slow_start < carried.max(INITIAL_WINDOW * 2) {
            self.slow_start += sample.reported;
        }
    }

    /// One report while others fill the queue.
    fn compete(&mut self, sample: &Sample, now: Instant) {
        let (round_trip, is_overflow) = (self.round_trip(), sample.lost > 0 && self.loses_to_queue(sample));
        let Phase::Compete(competing) = &mut self.phase else {
            return;
        };
        competing.on_reported(sample.reported, sample.in_flight, round_trip, now);
        if is_overflow {
            competing.on_overflow((sample.newest, sample.next_counter), now);
        }
    }

    /// Begins with what is known of the path from before: the round trip, and half of the window
    /// that it filled then.
    ///
    /// Source: draft-ietf-tsvwg-careful-resume section 3.2 (the unvalidated phase jumps to half of
    /// the saved window).
    pub fn resume(&mut self, round_trip: Duration, rate: Rate) {
        self.on_round_trip(round_trip);
        self.slow_start = self.slow_start.max(rate.bytes_in(round_trip).0 / 2);
    }

    /// Takes in a round trip; one of a probe comes without anything else.
    pub fn on_round_trip(&mut self, rtt: Duration) {
        self.smoothed = Some(Smoothed::after(self.smoothed, rtt));
    }

    fn on_rate(&mut self, sample: &Sample, now: Instant) {
        let Some(rate) = sample.rate else { return };
        if now.since(self.bucket_since) >= BUCKET.max(self.round_trip()) && !sample.app_limited {
            self.buckets.rotate_right(1);
            self.buckets[0] = Rate::ZERO;
            self.bucket_since = now;
        }
        self.round.rate = self.round.rate.max(rate);
        let train = sample.delivered >= TRAIN && rate > self.measured();
        if !sample.app_limited || train {
            self.buckets[0] = self.buckets[0].max(rate);
        }
    }

    /// A full packet's own time on the link.
    fn own(&self) -> Duration {
        self.peak_rate.time_for(Bytes(FULL_PACKET)).min(LONGEST_OWN)
    }

    /// Whether a queue is more than the path's own irregularity.
    fn stands(&self, queue: Duration) -> bool {
        queue
            > QUEUE_ALLOWANCE
                + self.own()
                + self.base_round_trip() / 8
                + self.delay.jitter()
                + self.delay.spread()
                + self.delay.lone_deviation() * LONE_DEVIATIONS
    }

    /// Whether more was lost in this round than is lost without a queue, while one was there.
    fn loses_to_queue(&self, sample: &Sample) -> bool {
        self.stands(self.round.peak) && self.rivals.is_unusual(self.round.lost, self.round.sent(sample))
    }

    /// A queue that overflows is not seen to stand when the path is used in bursts, but it is seen
    /// to lose.
    fn overflows(&self, sample: &Sample) -> bool {
        self.round.lost >= OVERFLOW_LOST && self.round.lost as f64 > OVERFLOW_SHARE * self.round.sent(sample)
    }

    fn on_round(&mut self, sample: &Sample, now: Instant) {
        self.grew = self.measured() >= self.last_rate.scale(1.1);
        self.last_rate = self.measured();
        self.peak_rate = self.peak_rate.scale(PEAK_DECAY).max(self.last_rate);
        let queue = self.round.queue.unwrap_or_default();
        let is_own = self.phase != Phase::Startup || is_own(sample);
        let queued = is_own && self.stands(queue);
        let holds_back = self.phase == Phase::Drain || self.is_checking;
        let seen = Seen {
            queue: queued.then_some(queue),
            round: now.since(self.round.since),
            rate: self.round.rate,
            in_flight: sample.in_flight,
            holds_back,
        };
        if let Some(flight) = self.rivals.on_round(&seen) {
            self.enter(Phase::Compete(Competing::new(flight, now)));
            return;
        }
        let loses_to_queue = self.loses_to_queue(sample);
        if !self.stands(self.round.peak) {
            self.rivals
                .on_usual_loss(self.round.lost, self.round.sent(sample));
        }
        self.queued_rounds = if queued { self.queued_rounds + 1 } else { 0 };
        match &mut self.phase {
            Phase::Startup => {
                // Where packets overtake each other by much, some count as lost before that is
                // known.
                let loses =
                    self.overflows(sample) || (self.round.lost >= STARTUP_LOSS && !self.delay.is_irregular());
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
                    for rate in &mut self.buckets {
                        *rate = rate.scale(OVERFLOW_CUT);
                    }
                    self.enter(Phase::Drain);
                } else if loses_to_queue && !was_checking {
                    let flight = self.measured().bytes_in(self.base_round_trip() + self.round.peak);
                    let mut competing = Competing::new(flight.0, now);
                    competing.on_overflow((sample.newest, sample.next_counter), now);
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
            self.buckets = [Rate::ZERO; BUCKETS];
            self.buckets[0] = seen;
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

    fn drained(&self) -> u64 {
        self.measured()
            .bytes_in(self.base_round_trip() + BUSY_REPORT_DELAY / 2)
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

/// A few packets make no queue: what is seen behind them is not the path's doing, and says nothing
/// of its rate.
fn is_own(sample: &Sample) -> bool {
    sample.delivered >= TRAIN
}

/// Lets packets out at a rate, in small bursts.
#[derive(Debug, Default)]
pub struct Pacer {
    next: Instant,
}

/// How far ahead of its time a packet may go: what batching needs at high rates, half a millisecond
/// of queue at most.
const LEAD: Duration = Duration::from_micros(500);
/// How much lateness of the driver is made up for: a machine that sleeps longer has lost the link
/// time.
const CATCH_UP: Duration = Duration::from_millis(8);
/// How long packets that did not wait their turn hold back those that do.
const DEBT: Duration = Duration::from_millis(50);

impl Pacer {
    /// Bytes that may go now; at least `packet` when anything may go.
    #[must_use]
    pub fn credit(&self, rate: Option<Rate>, packet: u64, now: Instant) -> u64 {
        let Some(rate) = rate else { return u64::MAX };
        let from = self.next.max(now - CATCH_UP);
        let bytes = rate.bytes_in((now + LEAD).since(from)).0;
        if bytes >= packet {
            bytes
        } else if self.ready_at(Some(rate), packet) <= now {
            packet
        } else {
            0
        }
    }

    /// When a packet of `packet` bytes may go.
    #[must_use]
    pub fn ready_at(&self, rate: Option<Rate>, packet: u64) -> Instant {
        let Some(rate) = rate else { return Instant::ZERO };
        self.next.min(self.next + rate.time_for(Bytes(packet)) - LEAD)
    }

    /// Takes note of `bytes` that went.
    pub fn on_sent(&mut self, rate: Option<Rate>, bytes: u64, now: Instant) {
        if let Some(rate) = rate {
            let time = rate.time_for(Bytes(bytes));
            self.next = (self.next.max(now - CATCH_UP) + time).min(now + time.max(DEBT));
        }
    }
}

#[cfg(test)]
mod tests;
