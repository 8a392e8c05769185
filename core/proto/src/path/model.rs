//! What a path can carry: its rate, its delay, and how much to keep in flight.
//!
//! A model joins what is known of a path's delays ([`Times`]) with a controller
//! ([`super::control`]), which follows what the reports say, and with the user's limit.
//!
//! Source: delivery rate estimation after draft-cheng-iccrg-delivery-rate-estimation.
//! Units: rates and windows count UDP payload bytes.

use hawser_units::{Bytes, Duration, Instant, MeasuredRate, PredictedRate, Rate};

use super::FULL_PACKET;
use super::control::{Company, Control, Controller, GROWTH, MIN_WINDOW, Sample, Stake, TRAIN};
use super::delay::Delay;
use super::policing::{self, Policing};
use super::saturation::{self, Saturation};
use super::times::{BUSY_REPORT_DELAY, Times};

/// A path is paced no slower, whatever is measured or configured: at a rate of zero the next packet
/// would never come.
const LEAST: Rate = Rate::from_bps(64_000);

/// Bytes of headers that a link carries with each datagram. Source: IPv4, UDP and Ethernet, as the
/// rates of scenarios count; what a modem adds is not known, and less than that.
pub(crate) const LINK_HEADERS: u64 = 42;

/// Lifetime of the minimum delay of a slow link; afterwards a new one is measured, as the route may
/// have changed. Source: six times as long as on other links.
const MIN_DELAY_LIFETIME: Duration = Duration::from_secs(60);

/// What a path is filled to for the sake of its pauses: the 64 packets that access points keep for
/// a station (mac80211 `STA_MAX_TX_BUFFER`), less the first ones that are handed over.
const KEPT: u64 = 60 * FULL_PACKET;
/// The longest pause that is made up for: less than the one after which a receiver takes a path for
/// silent (350 ms, [`crate::resequencer`]).
const LONGEST_PAUSE: Duration = Duration::from_millis(250);

/// Time without a sample after which a rate that is far below what the path has carried is
/// forgotten; doubled each time that it was right. Reason: a rate is sampled in each round trip
/// while a path is used, and the first packets on a slow path wait for up to a second.
///
/// Source: docs/design/path-model.md, rates that nothing samples.
const FIRST_STALE: Duration = Duration::from_secs(5);
/// Longest of these times. Reason: four doublings.
///
/// Source: docs/design/path-model.md, rates that nothing samples.
const MAX_STALE: Duration = Duration::from_secs(80);
/// Share of what the path has carried below which a rate is doubted. Reason: schedulers use a path
/// beside others at more than that, and so sample it.
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
    /// Packets wait for so long before the path hands them over together.
    pause: Duration,
}

impl Model {
    /// A model that knows nothing yet. `cap`: the user's limit.
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

    /// The rate to reckon with; see [`Controller::expected_rate`].
    pub(super) fn expected_rate(&self) -> Rate {
        self.policed(self.controller.expected_rate(&self.times))
    }

    /// The highest rate of late, which a link that swings may carry again soon.
    #[must_use]
    pub fn peak_rate(&self) -> Rate {
        self.policed(self.controller.peak_rate().max(self.controller.rate()))
    }

    /// What the path is expected to carry in two round trips: four times the rate to reckon with
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
        let expected = self.expected_rate();
        let growth = match self.slow_link() {
            Some(link) if expected != Rate::ZERO => {
                growth.min((link.as_bps() as f64 / expected.as_bps() as f64).max(1.0))
            }
            _ => growth,
        };
        PredictedRate::grown(MeasuredRate::new(expected), growth)
    }

    /// Whether the path's capacity is still being found by sending ever more: it carried more in
    /// the last round than before.
    #[must_use]
    pub fn is_growing(&self) -> bool {
        self.controller.is_growing() && self.policing.limit().is_none()
    }

    /// What the controller does at present, in its own words.
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

    /// The round trip without a queue on the way forward; zero when nothing is known.
    #[must_use]
    pub fn base_round_trip(&self) -> Duration {
        self.times.base_round_trip()
    }

    /// What the link is known to carry by what packets take because of their size, or what
    /// [`Self::soon`] says where that is more; `None` where size makes no difference.
    pub(crate) fn link(&self) -> Option<Rate> {
        let link = self.slow_link()?;
        // What a standing queue shows is measured, and more than any expectation.
        let soon = self.soon().rate();
        Some(if self.saturation.rate().is_some() {
            link
        } else {
            link.max(soon)
        })
    }

    /// Lets the link be known to be slow.
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

    /// How long a report may take before the path is suspected.
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
        match (
            paced.map(|rate| rate.max(LEAST)),
            self.cap.map(|cap| cap.max(LEAST)),
        ) {
            (Some(paced), Some(cap)) => Some(paced.min(cap)),
            (paced, cap) => paced.or(cap),
        }
    }

    /// Bytes that may be in flight.
    #[must_use]
    pub fn window(&self) -> u64 {
        let window = self.controller.window(&self.times).min(self.policed_window());
        let kept = self.controller.rate().bytes_in(self.pause).0;
        window + kept.min(KEPT.saturating_sub(window))
    }

    /// Bytes in flight that a policer lets pass in a round trip and a half.
    fn policed_window(&self) -> u64 {
        self.policing.limit().map_or(u64::MAX, |limit| {
            let time = self.times.round_trip() * 3 / 2 + BUSY_REPORT_DELAY;
            limit.bytes_in(time).0.max(MIN_WINDOW)
        })
    }

    /// Packets wait for so long before the path hands them over together, as an access point keeps
    /// them for a station that is on another channel. A path that makes them wait for longer gets
    /// no more on its way for that: what waits there holds up what comes over others.
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

    /// Takes in one report.
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
            self.times.keep_least(now);
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

    /// Forgets a rate that is far below what the path has carried and that nothing has sampled for
    /// some time: schedulers give a slow path nothing beside others, so it would never be sampled
    /// again. A path without a rate is given data, which finds it by slow start.
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

    /// What it has of a queue that others fill too; `None` while it competes with nobody.
    pub(crate) fn stake(&self) -> Option<Stake> {
        self.controller.stake()
    }

    /// Begins with what is known of the path from before: the round trip, and half of the window
    /// that it filled then.
    ///
    /// Source: draft-ietf-tsvwg-careful-resume section 3.2 (the unvalidated phase jumps to half of
    /// the saved window).
    pub fn resume(&mut self, round_trip: Duration, rate: Rate) {
        self.on_round_trip(round_trip);
        self.controller.resume(rate.bytes_in(round_trip).0 / 2);
    }

    /// Others of the session compete in the same queue.
    pub(super) fn set_company(&mut self, company: Company, packet_numbers: (u64, u64), now: Instant) {
        self.controller.set_company(company, packet_numbers, now);
    }

    /// Takes in a round trip; one of a probe comes without anything else.
    pub fn on_round_trip(&mut self, rtt: Duration) {
        self.times.on_round_trip(rtt);
    }
}

/// Lets packets out at a rate, in small bursts.
#[derive(Debug)]
pub struct Pacer {
    next: Instant,
    catch_up: Duration,
}

impl Default for Pacer {
    /// That of a path.
    fn default() -> Self {
        Self::new(CATCH_UP)
    }
}

/// How far ahead of its time a packet may go: what batching needs at high rates, half a millisecond
/// of queue at most.
const LEAD: Duration = Duration::from_micros(500);
/// How much lateness of the driver a path makes up for: a machine that sleeps longer has lost
/// the link time.
const CATCH_UP: Duration = Duration::from_millis(8);
/// How long packets that did not wait their turn hold back those that do.
const DEBT: Duration = Duration::from_millis(50);

impl Pacer {
    /// One that makes up for so much lateness of the driver.
    #[must_use]
    pub fn new(catch_up: Duration) -> Self {
        Self {
            next: Instant::ZERO,
            catch_up,
        }
    }

    /// Bytes that may go now; at least `packet` when anything may go.
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
            self.next = (self.next.max(now - self.catch_up) + time).min(now + time.max(DEBT));
        }
    }
}

#[cfg(test)]
mod tests;
