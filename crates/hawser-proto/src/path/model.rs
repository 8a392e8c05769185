//! What a path can carry: its rate, its delay, and how much to keep in flight.
//!
//! The model follows the delivery rate that the receiver reports and the round trip without a queue, as BBR does, and adds what
//! striping needs: the standing queue is watched every round and drained before it can hold up interactive packets, and a rate
//! estimate that the queue contradicts is forgotten at once instead of after ten rounds, because links here swing tenfold
//! within a second.
//!
//! ```text
//!            rate stops growing, a queue stands, or packets are lost
//!  Startup ------------------------------------------> Drain
//!                                                        | in flight <= rate x round trip
//!                                                        v
//!              queue stands, or overflows         +-> Cruise (probe 1.25 to 2, drain 0.75, 6 rounds at 1)
//!                    Drain <----------------------+      |
//!                      +---------------------------------+
//! ```
//!
//! Source: delivery rate estimation after draft-cheng-iccrg-delivery-rate-estimation; gains after draft-cardwell-iccrg-bbr.
//! Units: rates and windows count UDP payload bytes.

use hawser_units::{Bytes, Duration, Instant, Rate};

use super::delay::{Delay, Measured};

/// Grows as fast as slow start: the smallest gain that doubles the rate each round (4 ln 2).
const STARTUP_GAIN: f64 = 2.77;
/// Packets lost in one round that end the startup: a queue too short for its gain shows no standing delay.
///
/// Source: draft-cardwell-iccrg-bbr, `BBRStartupFullLossCnt`.
const STARTUP_LOSS: u64 = 6;
/// Losses in one round that say that a queue overflows, whatever its delay: so many, and so large a share, beyond what links lose by chance.
const OVERFLOW_LOST: u64 = 16;
const OVERFLOW_SHARE: f64 = 0.1;
/// What is left of the rate after an overflow.
///
/// Source: draft-ietf-ccwg-bbr, `BBRBeta`.
const OVERFLOW_CUT: f64 = 0.7;
/// Gains of the cruise cycle, one each round: probe, give back, hold.
const CYCLE: [f64; 8] = [1.25, 0.75, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0];
/// The gain of a probe after others that found more.
const MAX_PROBE_GAIN: f64 = 2.0;
/// Gain while a queue is drained.
const DRAIN_GAIN: f64 = 0.7;
/// How far the window exceeds the product of rate and round trip: room for jitter, small enough that a blackhole swallows little.
const WINDOW_GAIN: f64 = 1.5;
/// The window's gain while starting: twice the product lets the rate double each round and bounds the overshoot to one product.
const STARTUP_WINDOW_GAIN: f64 = 2.0;
/// Reports in a row with a queue that end the start at once: waiting for the round would cost another round's overshoot.
const QUEUED_REPORTS: u32 = 4;
/// Packets that the window always holds: one on the wire, one behind it, one being reported.
const MIN_WINDOW: u64 = 4 * 1472;
/// Bytes that say something of a path's rate even when it was not kept busy: a lone packet says nothing.
const TRAIN: u64 = 4 * 1472;
/// The window before anything is known.
///
/// Source: RFC 6928.
const INITIAL_WINDOW: u64 = 10 * 1472;
/// Room for the time that reports wait at the receiver.
const REPORT_DELAY: Duration = Duration::from_millis(6);
/// The standing queue that is left alone, beside an eighth of the round trip and the jitter.
const QUEUE_ALLOWANCE: Duration = Duration::from_millis(4);
/// Rate buckets: the estimate is the largest of the last eight.
const BUCKETS: usize = 8;
/// The shortest bucket: on a short path a round is too short to measure a rate in.
const BUCKET: Duration = Duration::from_millis(40);
/// A path is paced no slower, whatever is measured or configured: at a rate of zero the next packet would never come.
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

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Startup,
    Drain,
    Cruise,
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
    smoothed: Option<(Duration, Duration)>,
    /// The counters at which this round began and will end.
    round_begin: u64,
    round_end: u64,
    round_since: Instant,
    /// The shortest queue seen in this round.
    round_queue: Option<Duration>,
    round_rate: Rate,
    round_lost: u64,
    queued_rounds: u32,
    queued_reports: u32,
    full_rate: Rate,
    full_rounds: u32,
    /// The rate at the last round's end, and whether it rose in that round.
    last_rate: Rate,
    grew: bool,
    probe_gain: f64,
    cap: Option<Rate>,
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
            round_begin: 0,
            round_end: 0,
            round_since: now,
            round_queue: None,
            round_rate: Rate::ZERO,
            round_lost: 0,
            queued_rounds: 0,
            queued_reports: 0,
            full_rate: Rate::ZERO,
            full_rounds: 0,
            last_rate: Rate::ZERO,
            grew: true,
            probe_gain: CYCLE[0],
            cap,
        }
    }

    /// The delivery rate; zero when nothing is known.
    #[must_use]
    pub fn rate(&self) -> Rate {
        self.buckets.iter().copied().max().unwrap_or_default()
    }

    /// The rate to reckon with: until the start is over, at least that of the first window, because what a trickle of packets
    /// measures is a lower bound, and a path that counts as slow would get no more than a trickle. Zero when nothing is known.
    ///
    /// Source: draft-cardwell-iccrg-bbr, `BBRSetPacingRateWithGain`: before the pipe is full the rate only rises. See
    /// `a_trickle_bounds_nothing_until_the_start_is_over`.
    #[must_use]
    pub fn expected_rate(&self) -> Rate {
        let rate = self.rate();
        if self.phase != Phase::Startup || rate == Rate::ZERO {
            return rate;
        }
        let round_trip = self.base_round_trip() + REPORT_DELAY;
        rate.max(Rate::of(Bytes(INITIAL_WINDOW), round_trip).unwrap_or_default())
    }

    /// Whether the path's capacity is still being found by sending ever more: it carried more in the last round than before.
    #[must_use]
    pub fn is_growing(&self) -> bool {
        self.phase == Phase::Startup && self.grew
    }

    /// Smoothed round trip (RFC 6298); zero when nothing is known.
    #[must_use]
    pub fn round_trip(&self) -> Duration {
        self.smoothed.unwrap_or_default().0
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

    /// How long a report may take before the path is suspected: two round trips or four deviations, and what reports wait.
    #[must_use]
    pub fn patience(&self) -> Duration {
        let Some((smoothed, variation)) = self.smoothed else {
            return Duration::from_millis(300);
        };
        smoothed + (variation * 4).max(smoothed / 2) + Duration::from_millis(30)
    }

    /// The rate to send at; `None` before the first sample.
    #[must_use]
    pub fn pacing(&self) -> Option<Rate> {
        let rate = self.expected_rate();
        let gain = match self.phase {
            Phase::Startup => STARTUP_GAIN,
            Phase::Drain => DRAIN_GAIN,
            Phase::Cruise if self.cycle == 0 => self.probe_gain,
            Phase::Cruise => CYCLE[self.cycle],
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
        let rate = self.rate();
        if rate == Rate::ZERO {
            return INITIAL_WINDOW;
        }
        let gain = if self.phase == Phase::Startup {
            STARTUP_WINDOW_GAIN
        } else {
            WINDOW_GAIN.max(self.probe_gain)
        };
        let product = rate.bytes_in(self.base_round_trip()).0;
        let window = ((product as f64 * gain) as u64).saturating_add(rate.bytes_in(REPORT_DELAY).0);
        let floor = if self.phase == Phase::Startup {
            INITIAL_WINDOW
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
        self.on_round_trip(sample.delay.round_trip());
        self.delay.on_report(&sample.delay, now);
        self.on_rate(sample, now);
        self.round_lost = self.round_lost.saturating_add(sample.lost);
        let queue = self.delay.queue(sample.delay.forward_us);
        self.round_queue = Some(self.round_queue.map_or(queue, |least| least.min(queue)));
        self.queued_reports = if self.stands(queue) {
            self.queued_reports + 1
        } else {
            0
        };
        if self.phase == Phase::Startup && self.queued_reports >= QUEUED_REPORTS {
            self.enter(Phase::Drain);
        }
        let round_over = sample.newest >= self.round_end && now.since(self.round_since) >= MIN_ROUND;
        if round_over {
            self.on_round(sample);
            self.round_begin = sample.newest;
            self.round_end = sample.next_counter;
            self.round_since = now;
            self.round_queue = None;
            self.round_rate = Rate::ZERO;
            self.round_lost = 0;
        }
        if self.phase == Phase::Drain && sample.in_flight <= self.drained() {
            self.enter(Phase::Cruise);
        }
    }

    /// Takes in a round trip; one of a probe comes without anything else.
    pub fn on_round_trip(&mut self, rtt: Duration) {
        self.smoothed = Some(match self.smoothed {
            None => (rtt, rtt / 2),
            Some((smoothed, variation)) => {
                let error = smoothed.abs_diff(rtt);
                ((smoothed * 7 + rtt) / 8, (variation * 3 + error) / 4)
            }
        });
    }

    fn on_rate(&mut self, sample: &Sample, now: Instant) {
        let Some(rate) = sample.rate else { return };
        if now.since(self.bucket_since) >= BUCKET.max(self.round_trip()) && !sample.app_limited {
            self.buckets.rotate_right(1);
            self.buckets[0] = Rate::ZERO;
            self.bucket_since = now;
        }
        self.round_rate = self.round_rate.max(rate);
        let train = sample.delivered >= TRAIN && rate > self.rate();
        if !sample.app_limited || train {
            self.buckets[0] = self.buckets[0].max(rate);
        }
    }

    /// Whether a queue is more than the path's own irregularity.
    fn stands(&self, queue: Duration) -> bool {
        queue > QUEUE_ALLOWANCE + self.base_round_trip() / 8 + self.delay.jitter() + self.delay.spread()
    }

    /// A queue that overflows is not seen to stand when the path is used in bursts, but it is seen to lose.
    fn overflows(&self, sample: &Sample) -> bool {
        let sent = sample.newest.saturating_sub(self.round_begin);
        self.round_lost >= OVERFLOW_LOST && self.round_lost as f64 > OVERFLOW_SHARE * sent as f64
    }

    fn on_round(&mut self, sample: &Sample) {
        self.grew = self.rate() >= self.last_rate.scale(1.1);
        self.last_rate = self.rate();
        let queued = self.round_queue.is_some_and(|queue| self.stands(queue));
        self.queued_rounds = if queued { self.queued_rounds + 1 } else { 0 };
        match self.phase {
            Phase::Startup => {
                if queued || self.round_lost >= STARTUP_LOSS || self.has_stopped_growing(sample) {
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
                if self.overflows(sample) {
                    for rate in &mut self.buckets {
                        *rate = rate.scale(OVERFLOW_CUT);
                    }
                    self.enter(Phase::Drain);
                } else if queued {
                    self.enter(Phase::Drain);
                } else {
                    self.advance_cycle(sample);
                }
            }
        }
    }

    /// A queue that outlasts draining proves that the estimate is too high: the link got slower.
    fn believe_the_queue(&mut self) {
        let seen = self.round_rate.scale(0.95);
        if seen != Rate::ZERO && seen < self.rate() {
            self.buckets = [Rate::ZERO; BUCKETS];
            self.buckets[0] = seen;
        }
        self.queued_rounds = 0;
    }

    fn has_stopped_growing(&mut self, sample: &Sample) -> bool {
        if sample.app_limited {
            return false;
        }
        let rate = self.rate();
        if rate >= self.full_rate.scale(1.25) {
            self.full_rate = rate;
            self.full_rounds = 0;
            return false;
        }
        self.full_rounds += 1;
        self.full_rounds >= 3
    }

    /// A probe that found more is repeated at once, and more boldly: capacity is taken up within a few rounds. What a round sends is
    /// measured in the next.
    fn advance_cycle(&mut self, sample: &Sample) {
        let found = self.cycle <= 1 && !sample.app_limited && self.rate() >= self.full_rate.scale(1.1);
        self.cycle = if found { 0 } else { (self.cycle + 1) % CYCLE.len() };
        if self.cycle == 0 {
            self.full_rate = self.rate();
            self.probe_gain = if found {
                (self.probe_gain * 1.25).min(MAX_PROBE_GAIN)
            } else {
                CYCLE[0]
            };
        }
    }

    fn drained(&self) -> u64 {
        self.rate()
            .bytes_in(self.base_round_trip() + REPORT_DELAY / 2)
            .0
            .max(MIN_WINDOW)
    }

    fn enter(&mut self, phase: Phase) {
        if phase == Phase::Cruise {
            self.full_rate = self.rate();
            self.cycle = 2;
            self.probe_gain = CYCLE[0];
        }
        self.phase = phase;
    }
}

/// Lets packets out at a rate, in small bursts.
#[derive(Debug, Default)]
pub struct Pacer {
    next: Instant,
}

/// How far ahead of its time a packet may go: what batching needs at high rates, half a millisecond of queue at most.
const LEAD: Duration = Duration::from_micros(500);
/// How much lateness of the driver is made up for: a machine that sleeps longer has lost the link time.
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
mod tests {
    use super::*;

    fn measured(round_trip: Duration) -> Measured {
        Measured {
            forward_us: round_trip.as_micros() as i32,
            reverse_us: 0,
            spread_us: 0,
            packets: 1,
        }
    }

    /// A first-in-first-out link in virtual time, reporting every packet.
    fn run(
        model: &mut Model,
        rate_at: impl Fn(u64) -> Rate,
        delay: Duration,
        seconds: u64,
    ) -> (Rate, Duration) {
        const PACKET: u64 = 1472;
        let mut now = Instant::from_nanos(1);
        let mut pacer = Pacer::default();
        let mut link_free = now;
        let mut sent = Vec::<(Instant, u64, Instant)>::new();
        let mut delivered = 0u64;
        let mut delivered_at = now;
        let mut pending = std::collections::VecDeque::new();
        let (mut bytes_last_second, mut worst_queue) = (0, Duration::ZERO);
        let end = now + Duration::from_secs(seconds);
        while now < end {
            while let Some(&(at, counter)) = pending.front() {
                if at > now {
                    break;
                }
                pending.pop_front();
                let (sent_at, delivered_then, delivered_at_then): (Instant, u64, Instant) =
                    sent[counter as usize];
                delivered += PACKET;
                delivered_at = at;
                let elapsed = at.since(delivered_at_then);
                let sample = Sample {
                    delay: measured(at.since(sent_at)),
                    rate: Rate::of(Bytes(delivered - delivered_then), elapsed),
                    delivered: delivered - delivered_then,
                    lost: 0,
                    app_limited: false,
                    newest: counter,
                    next_counter: sent.len() as u64,
                    in_flight: (sent.len() as u64 - counter) * PACKET,
                };
                model.on_sample(&sample, now);
                if now + Duration::from_secs(1) > end {
                    bytes_last_second += PACKET;
                    worst_queue = worst_queue.max(at.since(sent_at).saturating_sub(delay));
                }
            }
            let in_flight = pending.len() as u64 * PACKET;
            let rate = model.pacing();
            if in_flight + PACKET <= model.window() && pacer.credit(rate, PACKET, now) >= PACKET {
                let link = rate_at(now.as_nanos() / 1_000_000_000);
                link_free = link_free.max(now) + link.time_for(Bytes(PACKET));
                pending.push_back((link_free + delay, sent.len() as u64));
                sent.push((now, delivered, delivered_at));
                pacer.on_sent(rate, PACKET, now);
            } else {
                now += Duration::from_micros(50);
            }
        }
        (
            Rate::of(Bytes(bytes_last_second), Duration::from_secs(1)).expect("a second"),
            worst_queue,
        )
    }

    #[test]
    fn fills_a_link_and_keeps_its_queue_short() {
        for (mbps, delay) in [(5, 10), (20, 20), (100, 40), (300, 16), (1, 2)] {
            let mut model = Model::new(None, Instant::ZERO);
            let (rate, queue) = run(
                &mut model,
                |_| Rate::from_mbps(mbps),
                Duration::from_millis(delay),
                6,
            );
            let share = rate.as_bps() as f64 / (mbps as f64 * 1e6);
            assert!(share > 0.96, "{mbps} Mbit/s {delay} ms: share {share}");
            let packet_time = 1472.0 * 8.0 / (mbps as f64 * 1e6);
            let bound = 0.020 + 0.3 * delay as f64 / 1e3 + 3.0 * packet_time;
            assert!(
                queue.as_secs_f64() < bound,
                "{mbps} Mbit/s {delay} ms: queue {queue:?}"
            );
        }
    }

    #[test]
    fn follows_a_link_that_slows_down_and_recovers() {
        for (first, second) in [(50, 5), (5, 50)] {
            let mut model = Model::new(None, Instant::ZERO);
            let rate_at = move |s| Rate::from_mbps(if s < 4 { first } else { second });
            let (rate, queue) = run(&mut model, rate_at, Duration::from_millis(30), 8);
            let share = rate.as_bps() as f64 / (second as f64 * 1e6);
            assert!(share > 0.9, "{first} to {second}: share {share}");
            assert!(
                queue < Duration::from_millis(60),
                "{first} to {second}: queue {queue:?}"
            );
        }
    }

    #[test]
    fn a_trickle_bounds_nothing_until_the_start_is_over() {
        let ms = Duration::from_millis;
        let mut model = Model::new(None, Instant::ZERO);
        let trickle = Sample {
            delay: measured(ms(60)),
            rate: Rate::of(Bytes(TRAIN), ms(180)),
            delivered: TRAIN,
            lost: 0,
            app_limited: true,
            newest: 1,
            next_counter: 2,
            in_flight: 0,
        };
        model.on_sample(&trickle, Instant::ZERO + ms(100));
        assert!(model.rate() < Rate::from_bps(300_000), "{}", model.rate());
        let first_window = Rate::of(Bytes(INITIAL_WINDOW), ms(66)).expect("a rate");
        assert_eq!(model.expected_rate(), first_window);
        assert!(model.pacing() > Some(first_window));
        // A queue says that the path is full: what was measured counts.
        for n in 0..u64::from(QUEUED_REPORTS) {
            let full = Sample {
                delay: measured(ms(120)),
                app_limited: false,
                newest: 2 + n,
                next_counter: 20,
                ..trickle
            };
            model.on_sample(&full, Instant::ZERO + ms(200 + n));
        }
        assert_eq!(model.expected_rate(), model.rate());
    }

    #[test]
    fn obeys_a_cap() {
        let mut model = Model::new(Some(Rate::from_mbps(3)), Instant::ZERO);
        let (rate, _) = run(&mut model, |_| Rate::from_mbps(20), Duration::from_millis(20), 4);
        assert!(rate <= Rate::from_bps(3_100_000), "{rate}");
    }
}
