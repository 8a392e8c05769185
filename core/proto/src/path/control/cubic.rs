//! CUBIC: a window that fills the path's queue until it overflows.
//!
//! ```text
//!            round trips grow        five rounds, or a loss
//!  Slow start ---------> Conservative ------------------> Congestion avoidance --+
//!      ^  |              slow start                          ^                   | a loss, once
//!      |  | a loss            | round trips were a burst's   | x 0.7             | a round trip
//!      |  +-------------------+----------------------------->+<------------------+
//!      +----------------------+
//! ```
//!
//! Adaptations to striping: the window counts the bytes of one path's datagrams. Packets are lost
//! when the receiver counts them as missing, so there is no number of duplicate acknowledgements.
//! Packets are paced, also in slow start. A path that had a window before begins with half of it.
//!
//! Source: RFC 9438; RFC 9406 (HyStart++); draft-ietf-tsvwg-careful-resume (by
//! [`Model::resume`](crate::path::model::Model::resume)). Deviates: no undo of a spurious reduction
//! (RFC 9438 section 4.9), because nothing reports that a packet that counted as lost has arrived;
//! no response to ECN, which is not reported.

use hawser_units::{Bytes, Duration, Instant, Rate};

use super::rates::Rates;
use super::{
    Competitors, Controller, INITIAL_WINDOW, MIN_WINDOW, Mark, QueueShare, Sample, window_per_round_trip,
};
use crate::path::FULL_PACKET;
use crate::path::times::{Times, own};

/// Segment size in the sense of RFC 9438. Units: bytes.
const SEGMENT: f64 = FULL_PACKET as f64;
/// Multiplicative decrease of the window at a congestion event. Source: RFC 9438 section 4.6.
const BETA: f64 = 0.7;
/// Growth constant of the window. Source: RFC 9438 section 5.1. Units: segments over seconds cubed.
const C: f64 = 0.4;
/// The increase of a Reno sender with the same average. Source: RFC 9438 section 4.3.
const ALPHA: f64 = 3.0 * (1.0 - BETA) / (1.0 + BETA);
/// Pacing gain over one window per round trip. Source: RFC 9002 section 7.7.
const PACING_GAIN: f64 = 1.25;
/// Pacing gain in slow start, when the window doubles in a round trip. Source: Linux,
/// `tcp_pacing_ss_ratio`.
const STARTING_GAIN: f64 = 2.0;
/// Share of the window that has to be in use for it to grow. Source: RFC 9002 section 7.8, which
/// leaves the share open.
const IN_USE: f64 = 0.9;
/// The increase of a round trip that may end a start, at least. Source: RFC 9406 section 4.3,
/// `MIN_RTT_THRESH`.
const MIN_INCREASE: Duration = Duration::from_millis(4);
/// Maximum of the round trip's increase that may end slow start. Source: RFC 9406 section 4.3,
/// `MAX_RTT_THRESH`.
const MAX_INCREASE: Duration = Duration::from_millis(16);
/// Divisor of the round trip between these bounds. Source: RFC 9406 section 4.3, `MIN_RTT_DIVISOR`.
const INCREASE_DIVISOR: u32 = 8;
/// Minimum number of packets in a round for its round trips to count. Source: RFC 9406 section 4.3,
/// `N_RTT_SAMPLE`.
const FEWEST_SAMPLES: u32 = 8;
/// Growth divisor of conservative slow start. Source: RFC 9406 section 4.3, `CSS_GROWTH_DIVISOR`.
const CONSERVATIVE_DIVISOR: f64 = 4.0;
/// Rounds of it. Source: RFC 9406 section 4.3, `CSS_ROUNDS`.
const CONSERVATIVE_ROUNDS: u32 = 5;

#[derive(Clone, Copy, Debug, PartialEq)]
enum Phase {
    SlowStart,
    /// RFC 9406 section 4.2: `rounds` so far, and the round trip at which it began.
    Conservative {
        rounds: u32,
        baseline: Duration,
    },
    Avoidance(Epoch),
}

/// Since the last congestion event.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Epoch {
    /// RFC 9438 section 4.2: `t_epoch`.
    since: Instant,
    /// Seconds until the window is `W_max` again: `K`.
    k: f64,
    /// The window of a Reno sender: `W_est`. Units: bytes.
    reno: f64,
    /// The last report.
    reported_at: Instant,
}

/// The least round trips of this round and the last. Source: RFC 9406 section 4.2.
#[derive(Clone, Copy, Debug)]
struct RoundTrips {
    last: Option<Duration>,
    current: Option<Duration>,
    samples: u32,
}

/// The controller.
#[derive(Debug)]
pub(super) struct Cubic {
    phase: Phase,
    /// Congestion window, `cwnd` of RFC 9438. Units: bytes.
    window: f64,
    /// `W_max`: the window before the last congestion event. Units: bytes.
    max: f64,
    /// Packet number up to which losses belong to the last congestion event.
    cut_until: u64,
    round: Mark,
    trips: RoundTrips,
    rates: Rates,
    company: Competitors,
    /// The delivery rate at the last round's end, and whether it rose in that round.
    last_rate: Rate,
    grew: bool,
}

impl Cubic {
    pub(super) fn new(now: Instant) -> Self {
        Self {
            phase: Phase::SlowStart,
            window: INITIAL_WINDOW as f64,
            max: 0.0,
            cut_until: 0,
            round: Mark {
                packet_number: 0,
                since: now,
            },
            trips: RoundTrips {
                last: None,
                current: None,
                samples: 0,
            },
            rates: Rates::new(now),
            company: Competitors::default(),
            last_rate: Rate::ZERO,
            grew: true,
        }
    }

    fn is_starting(&self) -> bool {
        !matches!(self.phase, Phase::Avoidance(_))
    }

    /// RFC 9406 section 4.2, for each acknowledgement.
    fn on_round_trip(&mut self, sample: &Sample) {
        let round_trip = sample.delay.round_trip();
        let trips = &mut self.trips;
        trips.current = Some(trips.current.map_or(round_trip, |least| least.min(round_trip)));
        trips.samples = trips.samples.saturating_add(sample.delay.packets);
        let (Some(last), Some(current), true) = (trips.last, trips.current, trips.samples >= FEWEST_SAMPLES)
        else {
            return;
        };
        match self.phase {
            Phase::SlowStart => {
                let increase = (last / INCREASE_DIVISOR).clamp(MIN_INCREASE, MAX_INCREASE);
                if current >= last + increase {
                    self.phase = Phase::Conservative {
                        rounds: 0,
                        baseline: current,
                    };
                }
            }
            Phase::Conservative { baseline, .. } => {
                if current < baseline {
                    self.phase = Phase::SlowStart;
                }
            }
            Phase::Avoidance(_) => {}
        }
    }

    fn on_round(&mut self, now: Instant) {
        self.grew = self.rates.measured() >= self.last_rate.scale(1.1);
        self.last_rate = self.rates.measured();
        self.rates.on_round();
        self.trips = RoundTrips {
            last: self.trips.current.or(self.trips.last),
            current: None,
            samples: 0,
        };
        if let Phase::Conservative { rounds, .. } = &mut self.phase {
            *rounds += 1;
            if *rounds >= CONSERVATIVE_ROUNDS {
                // RFC 9406 section 4.2: ssthresh = cwnd. RFC 9438 section 4.8: the epoch begins
                // with W_max = cwnd and K = 0.
                self.max = self.window;
                self.begin(0.0, now);
            }
        }
    }

    fn begin(&mut self, k: f64, now: Instant) {
        self.phase = Phase::Avoidance(Epoch {
            since: now,
            k,
            reno: self.window,
            reported_at: now,
        });
    }

    /// RFC 9438 sections 4.6 and 4.7.
    fn on_congestion(&mut self, sample: &Sample, now: Instant) {
        if sample.newest < self.cut_until {
            return;
        }
        self.cut_until = sample.next_packet_number;
        // Fast convergence: a window that has not come back to what it was leaves room.
        self.max = if self.window < self.max {
            self.window * f64::midpoint(1.0, BETA)
        } else {
            self.window
        };
        self.window = (self.window * BETA).max(MIN_WINDOW as f64);
        let k = ((self.max - self.window).max(0.0) / SEGMENT / self.c()).cbrt();
        self.begin(k, now);
    }

    /// Returns the growth constant of one of several coupled paths: a sender's rate is proportional
    /// to the fourth root of its growth constant (RFC 9438 section 5.1), so all paths together
    /// compete as one sender.
    fn c(&self) -> f64 {
        C / self.company.paths().powi(4)
    }

    fn grow(&mut self, sample: &Sample, round_trip: Duration, now: Instant) {
        let reported = sample.reported as f64;
        // RFC 9002 section 7.8: a window that is not used says nothing.
        let is_used = sample.in_flight as f64 + reported >= self.window * IN_USE;
        if let Phase::Avoidance(epoch) = &mut self.phase {
            let unused = now.since(std::mem::replace(&mut epoch.reported_at, now));
            if !is_used {
                // RFC 9438 section 5.8: time without use does not count.
                epoch.since += unused;
            }
        }
        if !is_used {
            return;
        }
        let (c, paths) = (self.c(), self.company.paths());
        match &mut self.phase {
            // RFC 9406 section 4.2, with L = infinity, as packets are paced.
            Phase::SlowStart => self.window += reported,
            Phase::Conservative { .. } => self.window += reported / CONSERVATIVE_DIVISOR,
            Phase::Avoidance(epoch) => {
                // RFC 9438 section 4.2: W_cubic(t + RTT), within these bounds of cwnd.
                let t = (now.since(epoch.since) + round_trip).as_secs_f64() - epoch.k;
                let cubic = self.max + c * t.powi(3) * SEGMENT;
                let target = cubic.clamp(self.window, self.window * 1.5);
                // Section 4.3: W_est.
                let alpha = if epoch.reno >= self.max { 1.0 } else { ALPHA };
                epoch.reno += alpha / paths.powi(2) * SEGMENT * reported / self.window;
                // Sections 4.4 and 4.5, a step for each acknowledged segment.
                let share = (reported / self.window).min(1.0);
                self.window = (self.window + (target - self.window) * share).max(epoch.reno);
            }
        }
    }
}

impl Controller for Cubic {
    fn state(&self) -> &'static str {
        match self.phase {
            Phase::SlowStart => "slow-start",
            Phase::Conservative { .. } => "conservative-slow-start",
            Phase::Avoidance(_) => "avoidance",
        }
    }

    fn on_report(&mut self, sample: &Sample, times: &mut Times, now: Instant) {
        self.rates.on_report(sample, times.round_trip(), now);
        self.on_round_trip(sample);
        if self.round.is_past(sample, now) {
            times.on_round(!self.is_starting(), own(self.rates.peak()) * 2);
            self.on_round(now);
            self.round = Mark::next(sample, now);
        }
        if sample.lost > 0 {
            self.on_congestion(sample, now);
        } else {
            self.grow(sample, times.round_trip(), now);
        }
    }

    fn resume(&mut self, window: u64) {
        self.window = self.window.max(window as f64);
    }

    fn window(&self, _: &Times) -> u64 {
        self.window as u64
    }

    fn pacing(&self, times: &Times) -> Option<Rate> {
        if self.rates.measured() == Rate::ZERO {
            return None;
        }
        let gain = if self.is_starting() {
            STARTING_GAIN
        } else {
            PACING_GAIN
        };
        Rate::of(Bytes(self.window as u64), times.round_trip()).map(|rate| rate.scale(gain))
    }

    fn rate(&self) -> Rate {
        self.rates.measured()
    }

    fn expected_rate(&self, times: &Times) -> Rate {
        if self.is_starting() {
            window_per_round_trip(self.rates.measured(), self.window as u64, times)
        } else {
            self.rates.measured()
        }
    }

    fn peak_rate(&self) -> Rate {
        self.rates.peak()
    }

    fn queue_share(&self) -> Option<QueueShare> {
        (!self.is_starting()).then_some(QueueShare::default())
    }

    fn set_competitors(&mut self, company: Competitors, _: (u64, u64), _: Instant) {
        self.company = company;
    }

    fn is_growing(&self) -> bool {
        self.phase == Phase::SlowStart && self.grew
    }
}

#[cfg(test)]
mod tests;
