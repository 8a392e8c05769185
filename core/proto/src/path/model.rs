//! Model of a path: its rate, its delay, and how much data may be in flight.
//!
//! A model joins the known delays of a path ([`Times`]) with a controller ([`super::control`]),
//! which processes the reports, and with the user's limit.
//!
//! Source: delivery rate estimation after draft-cheng-iccrg-delivery-rate-estimation. Units: rates
//! and windows count UDP payload bytes.

use hawser_units::{Bytes, Duration, Instant, MeasuredRate, PredictedRate, Rate};

use super::FULL_PACKET;
use super::control::{Competitors, Control, Controller, GROWTH, MIN_WINDOW, QueueShare, Sample, TRAIN};
use super::delay::Delay;
use super::policing::{self, Policing};
use super::saturation::{self, Saturation};
use super::times::{BUSY_REPORT_DELAY, Times};

/// Minimum pacing rate, regardless of measurements and configuration: at a rate of zero the next
/// packet would never be sent. docs/design/path-model.md, "Assumptions and how they fail", has its
/// effect on a link of 30 kbit/s.
const MIN: Rate = Rate::from_bps(64_000);

/// Bytes of headers of each datagram on a link. Source: IPv4, UDP and Ethernet, as the rates of
/// scenarios count; the headers of a modem are unknown, and shorter.
pub(crate) const LINK_HEADERS: u64 = 42;

/// Lifetime of the minimum delay of a slow link; afterwards a new one is measured, as the route may
/// have changed. Source: six times as long as on other links.
const MIN_DELAY_LIFETIME: Duration = Duration::from_secs(60);

/// Bytes in flight that bridge a path's pauses. Source: access points buffer 64 packets for a
/// station (`STA_MAX_TX_BUFFER` of linux/net/mac80211/sta_info.h), less the first packets, which
/// are handed over.
const PAUSE_WINDOW: u64 = 60 * FULL_PACKET;
/// The longest pause that is made up for: less than the one after which a receiver takes a path for
/// silent (350 ms, [`crate::resequencer`]). Source: `PAUSE` of `resequencer/mod.rs` less 100 ms.
const LONGEST_PAUSE: Duration = Duration::from_millis(250);

/// Time without a sample after which a rate far below the path's highest rate is discarded; doubled
/// each time that the rate was right. Reason: a rate is sampled in each round trip while a path is
/// used, and the first packets on a slow path wait for up to a second.
///
/// Source: docs/design/path-model.md, rates that nothing samples.
const FIRST_STALE: Duration = Duration::from_secs(5);
/// Maximum time without a sample after which a rate is discarded. Reason: four doublings of
/// [`FIRST_STALE`].
///
/// Source: docs/design/path-model.md, rates that nothing samples.
const MAX_STALE: Duration = Duration::from_secs(80);
/// Share of the path's highest rate below which a rate is doubted. Reason: schedulers use a path
/// with a higher share beside others, and so sample its rate.
///
/// Source: docs/design/path-model.md, rates that nothing samples.
const DOUBTED: f64 = 0.25;

/// The model of one path in the sending direction.
///
/// Cost: O(1) a report, no allocation.
#[derive(Debug)]
pub struct Model {
    times: Times,
    controller: Box<dyn Controller + Send>,
    control: Control,
    /// The highest rate so far, and when one was sampled last.
    best: Rate,
    sampled_at: Instant,
    stale_after: Duration,
    cap: Option<Rate>,
    policing: Policing,
    saturation: Saturation,
    /// The time since which a slow link's least delay has been kept.
    retained_since: Option<Instant>,
    /// Time that packets wait until the path hands them over as one batch.
    pause: Duration,
}

impl Model {
    /// Creates a model without measurements. `cap`: the user's limit.
    #[must_use]
    pub fn new(control: Control, cap: Option<Rate>, now: Instant) -> Self {
        Self {
            times: Times::new(now),
            controller: control.start(now),
            control,
            best: Rate::ZERO,
            sampled_at: now,
            stale_after: FIRST_STALE,
            cap,
            policing: Policing::default(),
            saturation: Saturation::default(),
            retained_since: None,
            pause: Duration::ZERO,
        }
    }

    /// The delivery rate; zero when nothing is known.
    #[must_use]
    pub fn rate(&self) -> MeasuredRate {
        MeasuredRate::new(self.policed(self.controller.rate()))
    }

    /// State of the recognition of a policer in the network.
    #[must_use]
    pub fn policing(&self) -> policing::State {
        self.policing.state()
    }

    /// Returns a rate, or the rate of the network's policer where that is less.
    fn policed(&self, rate: Rate) -> Rate {
        self.policing.limit().map_or(rate, |limit| rate.min(limit))
    }

    /// Returns the expected rate; see [`Controller::expected_rate`].
    pub(super) fn expected_rate(&self) -> Rate {
        self.policed(self.controller.expected_rate(&self.times))
    }

    /// Returns the highest recent rate, which a link with a varying rate may reach again soon.
    #[must_use]
    pub fn peak_rate(&self) -> Rate {
        self.policed(self.controller.peak_rate().max(self.controller.rate()))
    }

    /// Returns the rate expected in two round trips: four times the present rate while it grows,
    /// since it doubles each round trip. Zero while unknown.
    #[must_use]
    pub fn soon(&self) -> PredictedRate {
        self.predicted(GROWTH)
    }

    /// Returns the predicted rate in four round trips: sixteen times the measured rate while the
    /// path grows.
    #[must_use]
    pub fn later(&self) -> PredictedRate {
        self.predicted(GROWTH * GROWTH)
    }

    /// The window in a round trip counts as measured here: it has grown by what was reported.
    fn predicted(&self, growth: f64) -> PredictedRate {
        let growth = if self.is_growing() { growth } else { 1.0 };
        let expected = self.expected_rate();
        let growth = match self.slow_link() {
            Some(link) if expected != Rate::ZERO => {
                growth.min((link.as_bps() as f64 / expected.as_bps() as f64).max(1.0))
            }
            _ => growth,
        };
        PredictedRate::grown(MeasuredRate::new(expected), growth)
    }

    /// Returns whether the controller still searches the path's capacity: the last round delivered
    /// more than the one before.
    #[must_use]
    pub fn is_growing(&self) -> bool {
        self.controller.is_growing() && self.policing.limit().is_none()
    }

    /// Returns the name of the controller's state.
    #[must_use]
    pub fn state(&self) -> &'static str {
        match self.policing.limit() {
            Some(_) => "policed",
            None => self.controller.state(),
        }
    }

    /// Smoothed round trip (RFC 6298); zero when nothing is known.
    #[must_use]
    pub fn round_trip(&self) -> Duration {
        self.times.round_trip()
    }

    /// Returns the round trip without a queue in the forward direction; zero if nothing is known.
    #[must_use]
    pub fn base_round_trip(&self) -> Duration {
        self.times.base_round_trip()
    }

    /// Returns the rate of the link derived from the size-dependent delay of packets, or
    /// [`Self::soon`] if that is more; `None` if the size makes no difference.
    pub(crate) fn link(&self) -> Option<Rate> {
        let link = self.slow_link()?;
        // The rate shown by a standing queue is measured, and takes precedence over a prediction.
        let soon = self.soon().rate();
        Some(if self.saturation.rate().is_some() {
            link
        } else {
            link.max(soon)
        })
    }

    /// Sets the known rate of a slow link.
    #[cfg(test)]
    pub(crate) fn set_slow_link(&mut self, rate: Rate, now: Instant) {
        self.saturation.set(rate, now);
    }

    /// The rate of a link that is known to be slow.
    fn slow_link(&self) -> Option<Rate> {
        let known = [self.times.own_time().rate(), self.saturation.rate()];
        known.into_iter().flatten().min()
    }

    /// The path's delays.
    #[must_use]
    pub fn delay(&self) -> &Delay {
        self.times.delay()
    }

    /// Returns how late a report may be before the path becomes suspect.
    #[must_use]
    pub fn timeout(&self) -> Duration {
        self.times.timeout()
    }

    /// The rate to send at; `None` before the first sample.
    #[must_use]
    pub fn pacing(&self) -> Option<Rate> {
        let paced = self.controller.pacing(&self.times);
        let paced = match (paced, self.policing.limit()) {
            (Some(paced), Some(limit)) => Some(paced.min(limit)),
            (paced, limit) => paced.or(limit),
        };
        match (paced.map(|rate| rate.max(MIN)), self.cap.map(|cap| cap.max(MIN))) {
            (Some(paced), Some(cap)) => Some(paced.min(cap)),
            (paced, cap) => paced.or(cap),
        }
    }

    /// Bytes that may be in flight.
    #[must_use]
    pub fn window(&self) -> u64 {
        let window = self.controller.window(&self.times).min(self.policed_window());
        let kept = self.controller.rate().bytes_in(self.pause).0;
        window + kept.min(PAUSE_WINDOW.saturating_sub(window))
    }

    /// Bytes in flight that a policer lets pass in a round trip and a half.
    fn policed_window(&self) -> u64 {
        self.policing.limit().map_or(u64::MAX, |limit| {
            let time = self.times.round_trip() * 3 / 2 + BUSY_REPORT_DELAY;
            limit.bytes_in(time).0.max(MIN_WINDOW)
        })
    }

    /// Sets for how long packets wait until the path hands them over as one batch, as an access
    /// point buffers them for a station that is on another channel. A path with longer pauses gets
    /// no additional data in flight for them, since waiting data would delay what arrives over
    /// other paths.
    pub fn set_pause(&mut self, pause: Duration) {
        self.pause = if pause <= LONGEST_PAUSE {
            pause
        } else {
            Duration::ZERO
        };
    }

    /// Changes the user's limit.
    pub fn set_cap(&mut self, cap: Option<Rate>) {
        self.cap = cap;
    }

    /// Processes one report.
    pub fn on_sample(&mut self, sample: &Sample, now: Instant) {
        self.times.on_round_trip(sample.delay.round_trip());
        let best = self.peak_rate();
        let delay = self.times.without_size(&sample.delay, best, now);
        let queue = self.times.queue(delay.forward_us);
        let is_busy = self.times.stands(queue, self.controller.peak_rate());
        // A slow link with a queue is busy, however little there was for it. On another, what a few
        // packets meet is not their own queue: a delay that has risen for good looks like one, and
        // the rate of a probe would count.
        let is_own = sample.delivered >= TRAIN || self.slow_link().is_some();
        let sample = &Sample {
            app_limited: sample.app_limited && !(is_busy && is_own),
            delay,
            ..*sample
        };
        if self.controller.never_meets_an_empty_queue() {
            self.times.update_minimum(now);
        } else if self.retains_min_delay(now) {
            self.times.retain_min_delay(now);
        }
        self.times.on_report(&sample.delay, now);
        let seen = policing::Seen {
            bytes: sample.reported,
            packets: u64::from(sample.delay.packets),
            lost: sample.lost,
            is_queued: is_busy,
            round_trip: self.times.round_trip(),
        };
        self.policing.on_report(&seen, now);
        self.controller.on_report(sample, &mut self.times, now);
        let rate = self.peak_rate();
        let queue = if is_busy { queue } else { Duration::ZERO };
        let headers = LINK_HEADERS * u64::from(sample.delay.packets);
        let seen = saturation::Seen {
            queue,
            bytes: sample.reported + headers,
            size: sample.delay.size,
        };
        self.saturation.on_report(seen, rate, now);
        self.doubt(sample, now);
    }

    /// Returns whether the least delay is to grow no older: a call and what is sent beside it keep
    /// a slow link busy, and a queue that stands for longer than the window of the least delay
    /// would be taken for a part of it.
    fn retains_min_delay(&mut self, now: Instant) -> bool {
        if self.slow_link().is_none_or(|link| link > saturation::SLOW) {
            self.retained_since = None;
            return false;
        }
        let age = now.since(*self.retained_since.get_or_insert(now));
        if age >= MIN_DELAY_LIFETIME + super::delay::WINDOW * 2 {
            self.retained_since = None;
        }
        age < MIN_DELAY_LIFETIME
    }

    /// Discards a rate that is far below the path's highest rate and has no sample for some time:
    /// schedulers give a slow path nothing beside others, so it would never be sampled again. A
    /// path without a rate receives data, and slow start measures it.
    fn doubt(&mut self, sample: &Sample, now: Instant) {
        let rate = self.controller.rate();
        self.best = self.best.max(self.controller.peak_rate()).max(rate);
        let link = self.times.own_time().rate();
        let could = link.map_or(self.best, |link| link.min(self.best));
        if rate >= could.scale(DOUBTED) {
            self.stale_after = FIRST_STALE;
        }
        let is_train = sample.delivered >= TRAIN && sample.rate.is_some_and(|sampled| sampled >= rate);
        if rate >= could.scale(DOUBTED) || !sample.app_limited || is_train {
            self.sampled_at = now;
        } else if now.since(self.sampled_at) >= self.stale_after {
            self.controller = self.control.start(now);
            self.sampled_at = now;
            self.stale_after = (self.stale_after * 2).min(MAX_STALE);
        }
    }

    /// Returns the path's share of a queue that other senders also fill; `None` while it has no
    /// competitors.
    pub(crate) fn queue_share(&self) -> Option<QueueShare> {
        self.controller.queue_share()
    }

    /// Begins with earlier measurements of the path: the round trip, and half of the window that it
    /// filled.
    ///
    /// Source: draft-ietf-tsvwg-careful-resume section 3.2 (the unvalidated phase jumps to half of
    /// the saved window).
    pub fn resume(&mut self, round_trip: Duration, rate: Rate) {
        self.on_round_trip(round_trip);
        self.controller.resume(rate.bytes_in(round_trip).0 / 2);
    }

    /// Sets the other paths of the session that compete in the same queue.
    pub(super) fn set_competitors(&mut self, company: Competitors, packet_numbers: (u64, u64), now: Instant) {
        self.controller.set_competitors(company, packet_numbers, now);
    }

    /// Processes a round trip; a probe provides no other measurement.
    pub fn on_round_trip(&mut self, rtt: Duration) {
        self.times.on_round_trip(rtt);
    }
}

/// Paces packets at a rate, in small bursts.
#[derive(Debug)]
pub struct Pacer {
    next: Instant,
    catch_up: Duration,
}

impl Default for Pacer {
    /// Returns the pacer of a path.
    fn default() -> Self {
        Self::new(CATCH_UP)
    }
}

/// Maximum advance of a packet against its time: as much as batching needs at high rates, half a
/// millisecond of queue at most. Half and twice of it change goodput by at most 0.9 %, and the
/// share beside CUBIC by 1 and -2 % (docs/notebook/path-model.md, "Sensitivity").
const LEAD: Duration = Duration::from_micros(500);
/// Lateness of the driver that a path compensates; a machine that sleeps longer has lost the link
/// time. Half and twice of it change goodput by at most 0.7 % (docs/notebook/path-model.md,
/// "Sensitivity").
const CATCH_UP: Duration = Duration::from_millis(8);
/// Maximum delay of paced packets by packets that were not paced. No suite of
/// docs/notebook/path-model.md, "Sensitivity", changes by more than 3 % with half or twice of it.
const DEBT: Duration = Duration::from_millis(50);

impl Pacer {
    /// Creates a pacer that compensates this lateness of the driver.
    #[must_use]
    pub fn new(catch_up: Duration) -> Self {
        Self {
            next: Instant::ZERO,
            catch_up,
        }
    }

    /// Returns the bytes that may be sent now: 0, or at least `packet`.
    #[must_use]
    pub fn credit(&self, rate: Option<Rate>, packet: u64, now: Instant) -> u64 {
        let Some(rate) = rate else { return u64::MAX };
        let from = self.next.max(now - self.catch_up);
        let bytes = rate.bytes_in((now + LEAD).since(from)).0;
        if bytes >= packet {
            bytes
        } else if self.ready_at(Some(rate), packet) <= now {
            packet
        } else {
            0
        }
    }

    /// Returns when a packet of `packet` bytes may be sent.
    #[must_use]
    pub fn ready_at(&self, rate: Option<Rate>, packet: u64) -> Instant {
        let Some(rate) = rate else { return Instant::ZERO };
        self.next.min(self.next + rate.time_for(Bytes(packet)) - LEAD)
    }

    /// Records `bytes` that were sent.
    pub fn on_sent(&mut self, rate: Option<Rate>, bytes: u64, now: Instant) {
        if let Some(rate) = rate {
            let time = rate.time_for(Bytes(bytes));
            self.next = (self.next.max(now - self.catch_up) + time).min(now + time.max(DEBT));
        }
    }
}

#[cfg(test)]
mod tests;
