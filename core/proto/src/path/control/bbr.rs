//! BBR version 3: paces at the delivery rate, and limits the data in flight by this rate, the
//! minimum round trip and losses.
//!
//! ```text
//!   Startup --> Drain --> Down --> Cruise --> Refill --> Up --+      from any, every 5 s without
//!               rate has   ^  2 to 3 s, or 63 round trips     |      a lower round trip:
//!               stopped    |  rate has stopped growing, or    |      ProbeRtt, for 200 ms
//!               growing    +------- 2 % are lost <------------+
//! ```
//!
//! Adaptations to striping: the minimum round trip is the base delay of the path, which is a mean
//! where single packets deviate ([`Times::base_round_trip`]). The delay of acknowledgements is that
//! of reports ([`BUSY_REPORT_DELAY`]) in place of `BBR.extra_acked`. Losses come from reports, as
//! packets of the mean size, per round trip.
//!
//! Source: draft-ietf-ccwg-bbr, whose functions are named beside the code. Not implemented: undo of
//! a spurious reduction (`HandleSpuriousLossDetection`), because nothing reports that a packet that
//! counted as lost has arrived; `BBR.offload_budget`, because packets leave one by one; ECN, which
//! is not reported; recovery, because nothing is retransmitted on its own path (`OnEnterRTO`: a
//! path whose reports stop is suspect and transfers nothing). `RS.tx_in_flight` is the data that
//! was delivered or lost while the packet was in flight.

use hawser_units::{Duration, Instant, Rate};

use super::{Controller, INITIAL_WINDOW, MIN_WINDOW, Mark, Sample, window_per_round_trip};
use crate::path::FULL_PACKET;
use crate::path::times::{BUSY_REPORT_DELAY, Times, own};

/// `BBR.StartupPacingGain`. Source: draft-ietf-ccwg-bbr section 2.4.
const STARTUP_PACING: f64 = 2.77;
/// `BBR.DefaultCwndGain`. Source: draft-ietf-ccwg-bbr section 2.5.
const WINDOW: f64 = 2.0;
/// `BBR.DrainPacingGain`. Source: draft-ietf-ccwg-bbr, the table of control behaviour.
const DRAIN_PACING: f64 = 0.5;
/// Pacing in `ProbeBW_DOWN`. Source: draft-ietf-ccwg-bbr, the table of control behaviour.
const DOWN_PACING: f64 = 0.9;
/// Pacing in `ProbeBW_UP`. Source: draft-ietf-ccwg-bbr, the table of control behaviour.
const UP_PACING: f64 = 1.25;
/// The window's gain in `ProbeBW_UP`. Source: draft-ietf-ccwg-bbr, the table of control behaviour.
const UP_WINDOW: f64 = 2.25;
/// `BBR.ProbeRTTCwndGain`. Source: draft-ietf-ccwg-bbr, parameters for scheduling ProbeRTT.
const PROBE_RTT_WINDOW: f64 = 0.5;
/// `BBR.ProbeRTTDuration`. Source: draft-ietf-ccwg-bbr, parameters for scheduling ProbeRTT.
const PROBE_RTT_FOR: Duration = Duration::from_millis(200);
/// `BBR.ProbeRTTInterval`. Source: draft-ietf-ccwg-bbr, parameters for scheduling ProbeRTT.
const PROBE_RTT_AFTER: Duration = Duration::from_secs(5);
/// `BBR.PacingMarginPercent`, of what is left. Source: draft-ietf-ccwg-bbr, pacing parameters.
const PACING_MARGIN: f64 = 0.99;
/// `BBR.LossThresh`. Source: draft-ietf-ccwg-bbr, core algorithm design parameters.
const LOSS_THRESHOLD: f64 = 0.02;
/// `BBR.Beta`. Source: draft-ietf-ccwg-bbr, core algorithm design parameters.
const BETA: f64 = 0.7;
/// `BBR.Headroom`. Source: draft-ietf-ccwg-bbr, core algorithm design parameters.
const HEADROOM: f64 = 0.15;
/// `BBRStartupFullLossCnt`, in packets. Source: draft-ietf-ccwg-bbr, exiting Startup by loss.
const STARTUP_LOST: u64 = 6;
/// A rate that grows by less does not grow. Source: draft-ietf-ccwg-bbr, `CheckFullBWReached`.
const GROWS: f64 = 1.25;
/// Round trips of no growth that end it. Source: draft-ietf-ccwg-bbr, `CheckFullBWReached`.
const FULL_ROUNDS: u32 = 3;
/// Round trips of `Drain` at most. Source: draft-ietf-ccwg-bbr, `CheckDrainDone`.
const DRAIN_ROUNDS: u32 = 3;
/// Round trips after which a Reno sender would have grown by as much, at most. Source:
/// draft-ietf-ccwg-bbr, `IsRenoCoexistenceProbeTime`.
const MAX_WAIT_ROUNDS: u64 = 63;
/// The shortest time between two probes; up to a second more. Source: draft-ietf-ccwg-bbr,
/// `PickProbeWait`.
const MIN_WAIT: Duration = Duration::from_secs(2);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Startup,
    Drain,
    Down,
    Cruise,
    Refill,
    Up,
    /// Time until which the probe lasts, once the window is small enough.
    ProbeRtt(Option<Instant>),
}

/// Meaning of reports during a probe. Source: draft-ietf-ccwg-bbr, `BBR.ack_phase`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Answers {
    Init,
    Refilling,
    Starting,
    Feedback,
    Stopping,
}

/// The controller.
#[derive(Debug)]
pub(super) struct Bbr {
    state: State,
    answers: Answers,
    /// `BBR.max_bw_filter`: the rates of this cycle and the last.
    rates: [Rate; 2],
    /// `BBR.bw_shortterm`, `BBR.inflight_shortterm`: infinite unless something was lost.
    short_rate: Option<Rate>,
    short_flight: Option<u64>,
    /// `BBR.inflight_longterm`: infinite until a probe lost too much. Units: bytes.
    long_flight: Option<u64>,
    /// `C.cwnd`. Units: bytes.
    window: u64,
    /// `BBR.prior_cwnd`.
    window_before: u64,
    pacing: Option<Rate>,
    round: Mark,
    rounds: u64,
    /// `BBR.drain_start_round`.
    drain_since: u64,
    /// Packets lost in this round.
    lost: u64,
    /// `BBR.bw_latest`, `BBR.inflight_latest`.
    latest: (Rate, u64),
    /// `BBR.full_bw`, `BBR.full_bw_count`, `BBR.full_bw_now`, `BBR.full_bw_reached`.
    full_rate: Rate,
    full_rounds: u32,
    is_full_now: bool,
    is_full: bool,
    /// `BBR.is_bw_probe_sample`.
    is_probe_sample: bool,
    /// `BBR.prev_probe_too_high`, `BBR.prev_probe_precautionary`.
    was_too_high: bool,
    was_precautionary: bool,
    /// `BBR.cycle_stamp`, `BBR.bw_probe_wait`, `BBR.rounds_since_probe_up`.
    cycle_since: Instant,
    wait: Duration,
    rounds_since_probe: u64,
    /// `BBR.bw_probe_up_rounds`, `BBR.bw_probe_up_acked`, `BBR.probe_up_acked_per_inc`.
    up_rounds: u32,
    up_reported: u64,
    up_step: u64,
    /// `BBR.probe_rtt_min_delay`, `BBR.probe_rtt_min_stamp`.
    least: Duration,
    least_since: Instant,
}

impl Bbr {
    /// `OnInit`.
    pub(super) fn new(now: Instant) -> Self {
        Self {
            state: State::Startup,
            answers: Answers::Init,
            rates: [Rate::ZERO; 2],
            short_rate: None,
            short_flight: None,
            long_flight: None,
            window: INITIAL_WINDOW,
            window_before: 0,
            pacing: None,
            round: Mark {
                packet_number: 0,
                since: now,
            },
            rounds: 0,
            drain_since: 0,
            lost: 0,
            latest: (Rate::ZERO, 0),
            full_rate: Rate::ZERO,
            full_rounds: 0,
            is_full_now: false,
            is_full: false,
            is_probe_sample: false,
            was_too_high: false,
            was_precautionary: false,
            cycle_since: now,
            wait: Duration::ZERO,
            rounds_since_probe: 0,
            up_rounds: 0,
            up_reported: 0,
            up_step: u64::MAX,
            least: Duration::MAX,
            least_since: now,
        }
    }

    fn max_rate(&self) -> Rate {
        self.rates[0].max(self.rates[1])
    }

    /// `BoundBWForModel`.
    fn bounded_rate(&self) -> Rate {
        let rate = self.max_rate();
        self.short_rate.map_or(rate, |short| rate.min(short))
    }

    /// `BDPMultiple`.
    fn product(&self, times: &Times, gain: f64) -> u64 {
        let product = self.bounded_rate().bytes_in(times.base_round_trip()).0;
        (product as f64 * gain) as u64
    }

    /// `Inflight`, and what reports wait.
    fn flight(&self, times: &Times, gain: f64) -> u64 {
        let reports = self.bounded_rate().bytes_in(BUSY_REPORT_DELAY).0;
        let more = if self.state == State::Up {
            2 * FULL_PACKET
        } else {
            0
        };
        (self.product(times, gain).saturating_add(reports)).max(MIN_WINDOW) + more
    }

    /// `InflightWithHeadroom`; `None`: infinite.
    fn with_headroom(&self) -> Option<u64> {
        let long = self.long_flight?;
        let room = FULL_PACKET.max((HEADROOM * long as f64) as u64);
        Some(long.saturating_sub(room).max(MIN_WINDOW))
    }

    fn is_probing_rate(&self) -> bool {
        matches!(self.state, State::Startup | State::Refill | State::Up)
    }

    fn is_in_probe_bw(&self) -> bool {
        matches!(
            self.state,
            State::Down | State::Cruise | State::Refill | State::Up
        )
    }

    /// `ResetFullBW`, with the baseline of `StartProbeBW_UP` or none.
    fn reset_full(&mut self, baseline: Rate) {
        self.full_rate = baseline;
        self.full_rounds = 0;
        self.is_full_now = false;
    }

    /// `ResetShortTermModel`.
    fn reset_short(&mut self) {
        self.short_rate = None;
        self.short_flight = None;
    }

    /// `CheckFullBWReached`, at a round's end.
    fn check_full(&mut self, sample: &Sample) {
        if self.is_full_now || sample.app_limited {
            return;
        }
        let rate = sample.rate.unwrap_or_default();
        if rate >= self.full_rate.scale(GROWS) {
            self.reset_full(rate);
            return;
        }
        self.full_rounds += 1;
        self.is_full_now = self.full_rounds >= FULL_ROUNDS;
        self.is_full |= self.is_full_now;
    }

    /// `AdaptLowerBoundsFromCongestion`, at a round's end.
    fn adapt_lower_bounds(&mut self) {
        if self.is_probing_rate() || self.lost == 0 {
            return;
        }
        let (rate, flight) = self.latest;
        let short_rate = self.short_rate.unwrap_or(self.max_rate());
        let short_flight = self.short_flight.unwrap_or(self.window);
        self.short_rate = Some(rate.max(short_rate.scale(BETA)));
        self.short_flight = Some(flight.max((short_flight as f64 * BETA) as u64));
    }

    /// `IsInflightTooHigh`.
    fn is_too_high(&self, tx_in_flight: u64) -> bool {
        (self.lost * FULL_PACKET) as f64 > tx_in_flight as f64 * LOSS_THRESHOLD
    }

    /// Reduces the limit of data in flight after excessive loss: `HandleInflightTooHigh`.
    fn on_too_high(&mut self, sample: &Sample, times: &Times, now: Instant) {
        self.was_too_high = true;
        self.is_probe_sample = false;
        if !sample.app_limited {
            let target = self.product(times, 1.0).min(self.window);
            let safe = (target as f64 * BETA) as u64;
            self.long_flight = Some(sample.delivered.max(safe).max(MIN_WINDOW));
        }
        if self.state == State::Up {
            self.start_down(sample, now);
        }
    }

    /// `StartProbeBW_DOWN`.
    fn start_down(&mut self, sample: &Sample, now: Instant) {
        self.lost = 0;
        self.latest = (Rate::ZERO, 0);
        self.up_step = u64::MAX;
        // `PickProbeWait`: lots that are the same in every run.
        let lot = lot(sample.next_packet_number);
        self.rounds_since_probe = lot & 1;
        self.wait = MIN_WAIT + Duration::from_millis((lot >> 1) % 1_000);
        self.cycle_since = now;
        self.answers = Answers::Stopping;
        self.round = Mark::next(sample, now);
        self.state = State::Down;
    }

    /// `StartProbeBW_REFILL`.
    fn start_refill(&mut self, sample: &Sample, now: Instant) {
        self.reset_short();
        self.up_rounds = 0;
        self.up_reported = 0;
        self.was_precautionary = false;
        self.answers = Answers::Refilling;
        self.round = Mark::next(sample, now);
        self.state = State::Refill;
    }

    /// `StartProbeBW_UP`.
    fn start_up(&mut self, sample: &Sample, now: Instant) {
        self.is_probe_sample = true;
        self.answers = Answers::Starting;
        self.round = Mark::next(sample, now);
        self.reset_full(sample.rate.unwrap_or(self.max_rate()));
        self.state = State::Up;
        self.raise_slope();
    }

    /// `RaiseInflightLongtermSlope`.
    fn raise_slope(&mut self) {
        self.up_step = (self.window >> self.up_rounds.min(30)).max(FULL_PACKET);
        self.up_rounds = (self.up_rounds + 1).min(30);
    }

    /// `AdaptLongTermModel`; returns whether it decided a transition.
    fn adapt_long(&mut self, sample: &Sample, is_round: bool, now: Instant) -> bool {
        if is_round && self.answers == Answers::Starting {
            self.answers = Answers::Feedback;
        }
        if is_round && self.answers == Answers::Stopping {
            self.is_probe_sample = false;
            self.answers = Answers::Init;
            if self.is_in_probe_bw() && !sample.app_limited {
                // `AdvanceMaxBwFilter`.
                self.rates = [Rate::ZERO, self.rates[0]];
                self.rates[0] = sample.rate.unwrap_or_default();
            }
            if self.is_in_probe_bw() && self.was_precautionary && !self.was_too_high {
                self.start_refill(sample, now);
                return true;
            }
        }
        if self.is_too_high(sample.delivered) {
            return false;
        }
        let Some(long) = self.long_flight else {
            return false;
        };
        self.long_flight = Some(long.max(sample.delivered));
        if self.state == State::Up {
            self.probe_upward(sample, is_round);
        }
        false
    }

    /// `C.is_cwnd_limited`.
    fn is_window_limited(&self, sample: &Sample) -> bool {
        sample.in_flight + sample.reported + FULL_PACKET >= self.window
    }

    /// `ProbeInflightLongtermUpward`.
    fn probe_upward(&mut self, sample: &Sample, is_round: bool) {
        let Some(long) = self.long_flight else { return };
        if !self.is_window_limited(sample) || self.window < long {
            return;
        }
        self.up_reported += sample.reported;
        if self.up_reported >= self.up_step {
            let steps = self.up_reported / self.up_step;
            self.up_reported -= steps * self.up_step;
            self.long_flight = Some(long + steps * FULL_PACKET);
        }
        if is_round {
            self.raise_slope();
        }
    }

    /// `UpdateProbeBWCyclePhase`.
    fn advance(&mut self, sample: &Sample, times: &Times, is_round: bool, now: Instant) {
        if !self.is_full || self.adapt_long(sample, is_round, now) {
            return;
        }
        match self.state {
            State::Down | State::Cruise => {
                let rounds = (self.product(times, 1.0).min(self.window) / FULL_PACKET).min(MAX_WAIT_ROUNDS);
                if now > self.cycle_since + self.wait || self.rounds_since_probe >= rounds.max(1) {
                    self.start_refill(sample, now);
                } else if self.state == State::Down && self.has_drained(sample, times) {
                    self.state = State::Cruise;
                }
            }
            State::Refill if is_round => self.start_up(sample, now),
            State::Up => {
                if self.is_time_to_go_down(sample) {
                    self.was_too_high = false;
                    self.start_down(sample, now);
                }
            }
            State::Startup | State::Drain | State::Refill | State::ProbeRtt(_) => {}
        }
    }

    /// `IsTimeToCruise`.
    fn has_drained(&self, sample: &Sample, times: &Times) -> bool {
        sample.in_flight <= self.flight(times, 1.0)
            && self.with_headroom().is_none_or(|most| sample.in_flight <= most)
    }

    /// `IsTimeToGoDown`.
    fn is_time_to_go_down(&mut self, sample: &Sample) -> bool {
        if let Some(long) = self.long_flight {
            if self.was_too_high && sample.in_flight >= long {
                self.was_precautionary = true;
                return true;
            }
            if self.is_window_limited(sample) && self.window >= long {
                self.reset_full(sample.rate.unwrap_or_default());
                return false;
            }
        }
        self.is_full_now
    }

    /// `UpdateMinRTT` and `CheckProbeRTT`.
    fn probe_round_trip(&mut self, sample: &Sample, times: &Times, is_round: bool, now: Instant) {
        let round_trip = sample.delay.round_trip();
        let is_expired = now > self.least_since + PROBE_RTT_AFTER;
        if round_trip < self.least || is_expired {
            self.least = round_trip;
            self.least_since = now;
        }
        match self.state {
            State::ProbeRtt(None) => {
                if sample.in_flight <= self.probe_rtt_window(times) {
                    self.state = State::ProbeRtt(Some(now + PROBE_RTT_FOR));
                    self.round = Mark::next(sample, now);
                }
            }
            State::ProbeRtt(Some(until)) => {
                if is_round && now > until {
                    self.least_since = now;
                    self.window = self.window.max(self.window_before);
                    self.reset_short();
                    if self.is_full {
                        self.start_down(sample, now);
                        self.state = State::Cruise;
                    } else {
                        self.state = State::Startup;
                    }
                }
            }
            // A sender of small amounts (app-limited) causes no queue of its own.
            _ if is_expired && !sample.app_limited => {
                self.window_before = self.window;
                self.state = State::ProbeRtt(None);
                self.answers = Answers::Stopping;
                self.round = Mark::next(sample, now);
            }
            State::Startup | State::Drain | State::Down | State::Cruise | State::Refill | State::Up => {}
        }
    }

    /// `ProbeRTTCwnd`.
    fn probe_rtt_window(&self, times: &Times) -> u64 {
        self.product(times, PROBE_RTT_WINDOW).max(MIN_WINDOW)
    }

    /// `SetCwnd`.
    fn set_window(&mut self, sample: &Sample, times: &Times) {
        let gain = if self.state == State::Up {
            UP_WINDOW
        } else {
            WINDOW
        };
        let most = self.flight(times, gain);
        let grown = self.window + sample.reported;
        if self.is_full {
            self.window = grown.min(most);
        } else if self.window < most || sample.next_packet_number < INITIAL_WINDOW / FULL_PACKET {
            self.window = grown;
        }
        self.window = self.window.max(MIN_WINDOW);
        // `BoundCwndForProbeRTT` and `BoundCwndForModel`.
        let bound = match self.state {
            State::ProbeRtt(_) => {
                self.window = self.window.min(self.probe_rtt_window(times));
                self.with_headroom()
            }
            State::Cruise => self.with_headroom(),
            State::Down | State::Refill | State::Up => self.long_flight,
            State::Startup | State::Drain => None,
        };
        for bound in [bound, self.short_flight].into_iter().flatten() {
            self.window = self.window.min(bound.max(MIN_WINDOW));
        }
    }

    /// `SetPacingRate`.
    fn set_pacing(&mut self) {
        let gain = match self.state {
            State::Startup => STARTUP_PACING,
            State::Drain => DRAIN_PACING,
            State::Down => DOWN_PACING,
            State::Cruise | State::Refill | State::ProbeRtt(_) => 1.0,
            State::Up => UP_PACING,
        };
        let rate = self.bounded_rate().scale(gain * PACING_MARGIN);
        if rate != Rate::ZERO && (self.is_full || self.pacing.is_none_or(|pacing| rate > pacing)) {
            self.pacing = Some(rate);
        }
    }

    /// `UpdateLatestDeliverySignals` and `UpdateMaxBw`.
    fn on_rate(&mut self, sample: &Sample) {
        let Some(rate) = sample.rate else { return };
        self.latest = (self.latest.0.max(rate), self.latest.1.max(sample.delivered));
        // While round trips are probed, less is sent than the path can carry
        // (`MarkConnectionAppLimited`).
        let is_limited = sample.app_limited || matches!(self.state, State::ProbeRtt(_));
        if rate >= self.max_rate() || !is_limited {
            self.rates[0] = self.rates[0].max(rate);
        }
    }

    /// `CheckStartupHighLoss`, at a round's end.
    fn check_startup_loss(&mut self, sample: &Sample, times: &Times) {
        let is_high = self.lost >= STARTUP_LOST && self.is_too_high(sample.delivered);
        if self.state == State::Startup && is_high {
            self.is_full = true;
            self.long_flight = Some(self.product(times, 1.0).max(self.latest.1).max(MIN_WINDOW));
        }
    }
}

impl Controller for Bbr {
    fn state(&self) -> &'static str {
        match self.state {
            State::Startup => "startup",
            State::Drain => "drain",
            State::Down => "probe-bw-down",
            State::Cruise => "probe-bw-cruise",
            State::Refill => "probe-bw-refill",
            State::Up => "probe-bw-up",
            State::ProbeRtt(_) => "probe-rtt",
        }
    }

    /// `UpdateOnACK`.
    fn on_report(&mut self, sample: &Sample, times: &mut Times, now: Instant) {
        let is_round = self.round.is_past(sample, now);
        self.on_rate(sample);
        self.lost = self.lost.saturating_add(sample.lost);
        if is_round {
            times.on_round(self.state == State::Cruise, own(self.max_rate()) * 2);
            self.rounds += 1;
            self.rounds_since_probe += 1;
            self.round = Mark::next(sample, now);
            self.adapt_lower_bounds();
            self.check_full(sample);
            self.check_startup_loss(sample, times);
        }
        if sample.lost > 0 && self.is_probe_sample && self.is_too_high(sample.delivered) {
            self.on_too_high(sample, times, now);
        }
        if self.state == State::Startup && self.is_full {
            self.state = State::Drain;
            self.drain_since = self.rounds;
        }
        if self.state == State::Drain
            && (sample.in_flight <= self.flight(times, 1.0)
                || self.rounds > self.drain_since + u64::from(DRAIN_ROUNDS))
        {
            self.start_down(sample, now);
        }
        self.advance(sample, times, is_round, now);
        self.probe_round_trip(sample, times, is_round, now);
        if is_round {
            self.lost = 0;
            self.latest = (sample.rate.unwrap_or_default(), sample.delivered);
        }
        self.set_pacing();
        self.set_window(sample, times);
    }

    fn resume(&mut self, window: u64) {
        self.window = self.window.max(window);
    }

    fn window(&self, _: &Times) -> u64 {
        self.window
    }

    fn pacing(&self, _: &Times) -> Option<Rate> {
        self.pacing
    }

    fn rate(&self) -> Rate {
        self.bounded_rate()
    }

    fn expected_rate(&self, times: &Times) -> Rate {
        if self.state == State::Startup {
            window_per_round_trip(self.bounded_rate(), self.window, times)
        } else {
            self.bounded_rate()
        }
    }

    fn peak_rate(&self) -> Rate {
        self.max_rate()
    }

    fn is_growing(&self) -> bool {
        self.state == State::Startup && self.full_rounds == 0
    }
}

/// Returns a pseudorandom 64-bit number. Source: splitmix64.
fn lot(seed: u64) -> u64 {
    let mut z = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z ^ (z >> 27)
}

#[cfg(test)]
mod tests;
