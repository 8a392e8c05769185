//! Rate limit of a link whose channel a repeater also needs towards its clients.
//!
//! It connects both halves of [`super::throttle`] in the box next to the clients: the [`Monitor`]
//! judges the queueing delay of frames for the clients, and the [`Throttle`] derives a rate, which
//! the embedding sends to the box at the other end of the link. It starts closed, as a traditional
//! repeater. Steady state: the limit increases while the delay is short and the link uses its
//! limit, and decreases while the delay is long or frames are dropped. It fails towards closed: if
//! the hop sends nothing, the delay of waiting frames is long.
//!
//! ```text
//!   sample: bytes waiting, sent, dropped -------> delay of frames ---------> Monitor --> Feedback
//!   sample: bytes received on the shared link --> its rate --------------> Throttle <-----+
//!                                                                              +--> limit
//! ```
//!
//! Source: Multifacet section 3.2. Deviates: the marks are times, because a hundred packets are 4
//! ms of one radio and 250 ms of another. A frame that the queue drops counts as a delay above the
//! high mark, because queues that drop early (RFC 8290) never grow long. The limit is a rate
//! instead of a number of unacknowledged packets, because the other box controls its own windows.
//! The limit stays near the used rate, as the window of RFC 7661 does, so that a reduction has its
//! effect at once.

use std::collections::VecDeque;

use hawser_units::{Bytes, Duration, Instant, Rate};

use super::throttle::{Feedback, Monitor, MonitorConfig, Throttle, ThrottleConfig};

/// Sample of the system's counters of the hop to the clients and of the shared link.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HopSample {
    /// Bytes that wait for the clients now.
    pub waiting: Bytes,
    /// Bytes sent to the clients so far.
    pub sent: Bytes,
    /// Frames for the clients that were dropped so far.
    pub lost: u64,
    /// Bytes received from the other box over the shared link so far.
    pub brought: Bytes,
}

/// Computes the rate limit of the shared link.
///
/// Driven by [`Self::handle_sample`] each [`POLL_INTERVAL`].
///
/// Cost: O(1) a sample; memory for the samples of one period, at most [`MAX_SAMPLES`].
#[derive(Clone, Debug)]
pub struct ClientHop {
    monitor: Monitor,
    throttle: Throttle,
    before: Option<(Instant, HopSample)>,
    /// Rate of the hop while frames wait, smoothed.
    drains: Option<Rate>,
    waits: Duration,
    lost_at: Option<Instant>,
    /// Received bytes of the shared link at the samples of the last period.
    brought: VecDeque<(Instant, Bytes)>,
    carries: Rate,
    most: Rate,
}

impl ClientHop {
    /// Creates a machine without measurements; the shared link is closed.
    #[must_use]
    pub fn new(now: Instant) -> Self {
        Self {
            monitor: Monitor::new(MONITOR, now),
            throttle: Throttle::new(THROTTLE, now),
            before: None,
            drains: None,
            waits: Duration::ZERO,
            lost_at: None,
            brought: VecDeque::new(),
            carries: Rate::ZERO,
            most: Rate::ZERO,
        }
    }

    /// Handles a sample. A counter that decreased has been restarted.
    pub fn handle_sample(&mut self, look: HopSample, now: Instant) {
        self.on_brought(look.brought, now);
        if let Some((at, before)) = self.before.replace((now, look)) {
            self.on_hop(&look, &before, now.since(at));
            if look.lost > before.lost {
                self.lost_at = Some(now);
            }
        }
        let is_losing = self.lost_at.is_some_and(|at| now.since(at) < PERIOD);
        let waits = if is_losing {
            self.waits.max(TOO_LONG)
        } else {
            self.waits
        };
        self.monitor.handle_queue(micros(waits));
        self.monitor.handle_timeout(now);
        while let Some(feedback) = self.monitor.poll_transmit() {
            self.on_feedback(feedback, now);
        }
    }

    fn on_hop(&mut self, look: &HopSample, before: &HopSample, passed: Duration) {
        let sent = Bytes(look.sent.0.saturating_sub(before.sent.0));
        // With frames waiting at both samples, the bytes sent in between are the hop's capacity.
        if look.waiting.0 > 0
            && before.waiting.0 > 0
            && let Some(rate) = Rate::of(sent, passed)
        {
            let smoothed = |old: Rate| Rate::from_bps(old.as_bps() / 4 * 3 + rate.as_bps() / 4);
            self.drains = Some(self.drains.map_or(rate, smoothed));
        }
        self.waits = match self.drains {
            _ if look.waiting.0 == 0 => Duration::ZERO,
            Some(drains) if drains > Rate::ZERO => drains.time_for(look.waiting).min(LONGEST),
            Some(_) => LONGEST,
            None => self.waits,
        };
    }

    fn on_brought(&mut self, brought: Bytes, now: Instant) {
        if self.brought.back().is_some_and(|(_, last)| brought < *last) {
            self.brought.clear();
        }
        self.brought.push_back((now, brought));
        let is_old = |(at, _): &(Instant, Bytes)| now.since(*at) >= PERIOD;
        // A sample as old as the period is the period's beginning.
        while self.brought.get(1).is_some_and(is_old) || self.brought.len() > MAX_SAMPLES {
            self.brought.pop_front();
        }
        if let Some((at, first)) = self.brought.front()
            && let Some(rate) = Rate::of(Bytes(brought.0 - first.0), now.since(*at))
        {
            self.carries = rate;
            self.most = self.most.max(rate);
        }
    }

    fn on_feedback(&mut self, feedback: Feedback, now: Instant) {
        let carries = self.carries.as_bps() as f64 / UNIT;
        let limit = self.throttle.threshold() as f64;
        let feedback = match feedback {
            Feedback::More if limit > THROTTLE.first && limit > carries * AHEAD => Feedback::Keep,
            Feedback::Less => {
                self.throttle.handle_use(carries);
                Feedback::Less
            }
            Feedback::More | Feedback::Keep => feedback,
        };
        self.throttle.handle_feedback(feedback, now);
    }

    /// Returns the rate limit of the shared link; zero if it is closed.
    #[must_use]
    pub fn limit(&self) -> Rate {
        Rate::from_bps(self.throttle.threshold() as u64 * UNIT as u64)
    }

    /// Returns the queueing delay of frames for the clients.
    #[must_use]
    pub fn waits(&self) -> Duration {
        self.waits
    }

    /// Returns the rate of the shared link over the last period.
    #[must_use]
    pub fn carries(&self) -> Rate {
        self.carries
    }

    /// Returns the maximum rate of the shared link so far.
    #[must_use]
    pub fn max_rate(&self) -> Rate {
        self.most
    }
}

fn micros(time: Duration) -> usize {
    usize::try_from(time.as_micros()).unwrap_or(usize::MAX)
}

/// Interval between reports. Source: Multifacet section 5.4.
pub const PERIOD: Duration = Duration::from_millis(200);
/// Interval between samples: half of the high mark, so that a queue is detected before it is twice
/// as long. Source: docs/notebook/repeater.md, where the throttle reacted to 8 % of the onsets at
/// once with 50 ms and to 44 % with 10 ms.
pub const POLL_INTERVAL: Duration = Duration::from_millis(10);
/// Maximum number of stored samples of one period. Source: our choice, a bound on memory, three
/// times the samples of [`PERIOD`] at [`POLL_INTERVAL`].
pub const MAX_SAMPLES: usize = 64;

/// Marks, in microseconds. The high mark is the target of the CoDel in the kernel's station queues
/// (`net/mac80211/tx.c`): a higher mark is rarely reached, and the paper's 100 packets, 50 ms at 24
/// Mbit/s, were not reached at 24 of 69 onsets. The low mark is the paper's 20 packets at that
/// rate.
const MONITOR: MonitorConfig = MonitorConfig {
    low: 10_000,
    high: 20_000,
    period: PERIOD,
};
/// Delay that is used while frames are dropped. Source: the high mark of [`MONITOR`] and 1 us.
const TOO_LONG: Duration = Duration::from_micros(20_001);
/// Maximum estimated delay, and the estimate for a hop that sends nothing. Source: our choice, far
/// above the high mark, so that it always throttles; it only bounds what is reported.
const LONGEST: Duration = Duration::from_secs(1);

/// Units of the limit: kbit/s. From 1 Mbit/s it takes ten reports (2 s) to 58 Mbit/s; the maximum
/// exceeds the rate of any radio.
const THROTTLE: ThrottleConfig = ThrottleConfig {
    first: 1_000.0,
    most: 10_000_000.0,
    increase: 1.5,
    decrease: 0.8,
    // The monitor is in the same box, and reports at the first sample after each period.
    silence: Duration::from_secs(1),
};
/// Unit of the limit. Source: definition of 1 kbit/s. Units: bit/s.
const UNIT: f64 = 1_000.0;
/// The limit increases only while it is below the used rate times this factor, one step of the
/// throttle.
const AHEAD: f64 = THROTTLE.increase;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Model of a hop with capacity `drains` and a shared link that uses its limit, up to `link`.
    struct Model {
        hop: ClientHop,
        now: Instant,
        look: HopSample,
        drains: Rate,
        own: Rate,
        link: Rate,
        queue: Bytes,
    }

    impl Model {
        fn new(drains: u64, own: u64, link: u64) -> Self {
            Self {
                hop: ClientHop::new(Instant::ZERO),
                now: Instant::ZERO,
                look: HopSample::default(),
                drains: Rate::from_mbps(drains),
                own: Rate::from_mbps(own),
                link: Rate::from_mbps(link),
                queue: Bytes(1 << 30),
            }
        }

        fn pass(&mut self, time: Duration) {
            for _ in 0..time.as_millis() / POLL_INTERVAL.as_millis() {
                self.now += POLL_INTERVAL;
                let shared = self.hop.limit().min(self.link).bytes_in(POLL_INTERVAL).0;
                let arrived = self.look.waiting.0 + shared + self.own.bytes_in(POLL_INTERVAL).0;
                let sent = arrived.min(self.drains.bytes_in(POLL_INTERVAL).0);
                let kept = (arrived - sent).min(self.queue.0);
                self.look.lost += u64::from(kept < arrived - sent);
                self.look.waiting = Bytes(kept);
                self.look.sent.0 += sent;
                self.look.brought.0 += shared;
                self.hop.handle_sample(self.look, self.now);
            }
        }

        fn mbps(&self) -> f64 {
            self.hop.limit().as_bps() as f64 / 1e6
        }
    }

    #[test]
    fn begins_closed_and_opens_as_far_as_the_link_is_used() {
        let mut model = Model::new(100, 20, 20);
        assert_eq!(model.hop.limit(), Rate::ZERO);
        model.pass(Duration::from_secs(3));
        assert!((20.0..46.0).contains(&model.mbps()), "{}", model.mbps());
        let open = model.mbps();
        model.pass(Duration::from_secs(10));
        assert_eq!(model.mbps(), open, "an unused limit does not increase");
        assert_eq!(model.hop.max_rate().as_bps(), 20_000_000);
    }

    #[test]
    fn settles_at_what_the_hop_leaves() {
        let mut model = Model::new(30, 20, 40);
        model.pass(Duration::from_secs(5));
        let (mut sum, mut longest) = (0.0, Duration::ZERO);
        for _ in 0..2_000 {
            model.pass(POLL_INTERVAL);
            sum += model.mbps() / 2_000.0;
            longest = longest.max(model.hop.waits());
        }
        assert!((7.0..13.0).contains(&sum), "{sum} Mbit/s of 10");
        assert!(longest < Duration::from_millis(200), "{longest:?}");
    }

    #[test]
    fn shrinks_within_looks_of_the_mark() {
        let mut model = Model::new(100, 20, 40);
        model.pass(Duration::from_secs(5));
        let open = model.hop.carries();
        model.drains = Rate::from_mbps(30);
        let mut looks = 0;
        while model.hop.limit() >= open {
            model.pass(POLL_INTERVAL);
            looks += 1;
            assert!(looks < 100, "never");
        }
        let waits = model.hop.waits();
        assert!(waits < Duration::from_millis(40), "{waits:?}");
        assert!(looks <= 8, "{looks} looks");
    }

    #[test]
    fn a_short_queue_that_drops_says_less_too() {
        let mut model = Model::new(30, 20, 40);
        model.queue = Bytes(20_000);
        model.pass(Duration::from_secs(5));
        let mut sum = 0.0;
        for _ in 0..2_000 {
            model.pass(POLL_INTERVAL);
            sum += model.mbps() / 2_000.0;
        }
        assert!((5.0..13.0).contains(&sum), "{sum} Mbit/s of 10");
    }

    #[test]
    fn closes_where_the_clients_need_all_the_air_and_opens_again() {
        let mut model = Model::new(15, 20, 20);
        model.pass(Duration::from_secs(10));
        assert_eq!(model.hop.limit(), Rate::ZERO);
        model.own = Rate::from_mbps(5);
        model.pass(Duration::from_secs(200));
        assert!(model.mbps() > 5.0, "{}", model.mbps());
    }

    proptest! {
        /// For any counters of the system, it does not panic and never allows more than twice the
        /// used rate.
        #[test]
        fn bears_any_looks(
            looks in proptest::collection::vec(
                (0_u64..1 << 40, any::<u64>(), any::<u64>(), 0_u64..1 << 40, 0_u64..500),
                1..200,
            ),
        ) {
            let mut hop = ClientHop::new(Instant::ZERO);
            let mut now = Instant::ZERO;
            for (waiting, sent, lost, brought, wait) in looks {
                now += Duration::from_millis(wait);
                let look = HopSample { waiting: Bytes(waiting), sent: Bytes(sent), lost, brought: Bytes(brought) };
                hop.handle_sample(look, now);
                let most = hop.max_rate().as_bps() as f64 * AHEAD * THROTTLE.increase;
                prop_assert!(hop.limit().as_bps() as f64 <= most.max(THROTTLE.first * UNIT * 1.5) + UNIT);
                prop_assert!(hop.waits() <= LONGEST);
                prop_assert!(hop.brought.len() <= MAX_SAMPLES);
            }
        }
    }
}
