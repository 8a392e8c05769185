//! How much a link may carry whose air a repeater also needs towards its clients.
//!
//! It joins both halves of [`super::throttle`] in the box that sees the clients' hop: the
//! [`Monitor`] judges how long frames wait for the clients, and the [`Throttle`] turns that into a
//! rate, which the embedding tells the box at the other end of the link. It starts closed, as a
//! traditional repeater. In its steady state the limit grows while frames hardly wait and the link
//! uses what it may, and shrinks while they wait long or are dropped. It fails towards closed: a
//! hop that sends nothing lets frames wait.
//!
//! ```text
//!   look: bytes that wait, were sent, were lost --> how long frames wait --> Monitor --> Feedback
//!   look: bytes that the shared link has brought --> its rate ------------> Throttle <-----+
//!                                                                              +--> limit
//! ```
//!
//! Source: Multifacet section 3.2. Deviates: the marks are times, because a hundred packets are
//! 4 ms of one radio and a quarter of a second of another; a frame that the queue drops counts as
//! one that waits too long, because queues that drop early (RFC 8290) never grow long; the limit
//! is a rate and not a number of unanswered packets, because the other box's windows are its own
//! business; and it stays near what the link carries, as the window of RFC 7661 does, so that a
//! reduction has its effect at once.

use std::collections::VecDeque;

use hawser_units::{Bytes, Duration, Instant, Rate};

use super::throttle::{Feedback, Monitor, MonitorConfig, Throttle, ThrottleConfig};

/// What the system says of the hop to the clients and of the shared link.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Look {
    /// What waits for the clients now.
    pub waiting: Bytes,
    /// What has left for the clients so far.
    pub sent: Bytes,
    /// Frames for the clients that were dropped so far.
    pub lost: u64,
    /// What the shared link has brought from the other box so far.
    pub brought: Bytes,
}

/// Decides how much the shared link may carry.
///
/// Drive it with [`Self::handle_look`] each [`LOOK`].
///
/// Cost: O(1) a look; memory for the looks of one period, at most [`MOST_LOOKS`].
#[derive(Clone, Debug)]
pub struct ClientHop {
    monitor: Monitor,
    throttle: Throttle,
    before: Option<(Instant, Look)>,
    /// What the hop sends while frames wait, smoothed.
    drains: Option<Rate>,
    waits: Duration,
    lost_at: Option<Instant>,
    /// What the shared link had brought at the looks of the last period.
    brought: VecDeque<(Instant, Bytes)>,
    carries: Rate,
    most: Rate,
}

impl ClientHop {
    /// A hop that nothing is known of; the shared link is closed.
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

    /// Takes in what the system says now. Counters that fall have begun anew.
    pub fn handle_look(&mut self, look: Look, now: Instant) {
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

    fn on_hop(&mut self, look: &Look, before: &Look, passed: Duration) {
        let sent = Bytes(look.sent.0.saturating_sub(before.sent.0));
        // What it sent while frames waited all the time is what it can send.
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
        // One that is as old as the period is its beginning.
        while self.brought.get(1).is_some_and(is_old) || self.brought.len() > MOST_LOOKS {
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

    /// What the shared link may carry; zero: it is closed.
    #[must_use]
    pub fn limit(&self) -> Rate {
        Rate::from_bps(self.throttle.threshold() as u64 * UNIT as u64)
    }

    /// How long frames wait for the clients.
    #[must_use]
    pub fn waits(&self) -> Duration {
        self.waits
    }

    /// What the shared link carries, over the last period.
    #[must_use]
    pub fn carries(&self) -> Rate {
        self.carries
    }

    /// The most that it has carried.
    #[must_use]
    pub fn most(&self) -> Rate {
        self.most
    }
}

fn micros(time: Duration) -> usize {
    usize::try_from(time.as_micros()).unwrap_or(usize::MAX)
}

/// Between two reports. Source: Multifacet section 5.4.
pub const PERIOD: Duration = Duration::from_millis(200);
/// Between two looks: half of the high mark, so that a queue is seen before it is twice as long.
pub const LOOK: Duration = Duration::from_millis(10);
/// Looks kept of one period.
pub const MOST_LOOKS: usize = 64;

/// The marks, in microseconds. The high one is what the kernel's queue for a station lets stand
/// before it drops (`net/mac80211/tx.c`, the target of its CoDel): a mark beyond that is hardly
/// ever reached, and the paper's 100 packets, 50 ms at 24 Mbit/s, were not at 24 of 69 onsets. The
/// low one is the paper's 20 packets at that rate.
const MONITOR: MonitorConfig = MonitorConfig {
    low: 10_000,
    high: 20_000,
    period: PERIOD,
};
/// Above the high mark.
const TOO_LONG: Duration = Duration::from_micros(20_001);
/// A hop that does not send says nothing of how long frames wait.
const LONGEST: Duration = Duration::from_secs(1);

/// Units of the limit: kbit/s. From 1 Mbit/s it takes ten reports (2 s) to 58 Mbit/s; the largest
/// is beyond any radio's rate.
const THROTTLE: ThrottleConfig = ThrottleConfig {
    first: 1_000.0,
    most: 10_000_000.0,
    increase: 1.5,
    decrease: 0.8,
    // The monitor is in this box, and speaks at every look that is late enough.
    silence: Duration::from_secs(1),
};
/// Bit/s of one unit.
const UNIT: f64 = 1_000.0;
/// A limit this many times what the link carries is not used up, and does not grow: one step of
/// the throttle.
const AHEAD: f64 = THROTTLE.increase;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// A hop that sends `drains` and a shared link that carries what it may, up to `link`.
    struct Model {
        hop: ClientHop,
        now: Instant,
        look: Look,
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
                look: Look::default(),
                drains: Rate::from_mbps(drains),
                own: Rate::from_mbps(own),
                link: Rate::from_mbps(link),
                queue: Bytes(1 << 30),
            }
        }

        fn pass(&mut self, time: Duration) {
            for _ in 0..time.as_millis() / LOOK.as_millis() {
                self.now += LOOK;
                let shared = self.hop.limit().min(self.link).bytes_in(LOOK).0;
                let arrived = self.look.waiting.0 + shared + self.own.bytes_in(LOOK).0;
                let sent = arrived.min(self.drains.bytes_in(LOOK).0);
                let kept = (arrived - sent).min(self.queue.0);
                self.look.lost += u64::from(kept < arrived - sent);
                self.look.waiting = Bytes(kept);
                self.look.sent.0 += sent;
                self.look.brought.0 += shared;
                self.hop.handle_look(self.look, self.now);
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
        assert_eq!(model.mbps(), open, "what is not used up does not grow");
        assert_eq!(model.hop.most().as_bps(), 20_000_000);
    }

    #[test]
    fn settles_at_what_the_hop_leaves() {
        let mut model = Model::new(30, 20, 40);
        model.pass(Duration::from_secs(5));
        let (mut sum, mut longest) = (0.0, Duration::ZERO);
        for _ in 0..2_000 {
            model.pass(LOOK);
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
            model.pass(LOOK);
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
            model.pass(LOOK);
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
        /// Whatever the system says, it neither panics nor allows more than twice what is carried.
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
                let look = Look { waiting: Bytes(waiting), sent: Bytes(sent), lost, brought: Bytes(brought) };
                hop.handle_look(look, now);
                let most = hop.most().as_bps() as f64 * AHEAD * THROTTLE.increase;
                prop_assert!(hop.limit().as_bps() as f64 <= most.max(THROTTLE.first * UNIT * 1.5) + UNIT);
                prop_assert!(hop.waits() <= LONGEST);
                prop_assert!(hop.brought.len() <= MOST_LOOKS);
            }
        }
    }
}
