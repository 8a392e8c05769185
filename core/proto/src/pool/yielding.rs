//! Share of an uplink that takers may use, by the delay of its queue.
//!
//! The owner of a member and its takers share a modem, whose queue cannot be observed directly.
//! Echoes through the modem show the length of the queue. While the owner has traffic of its own
//! and the queue is short, takers may send faster. When the queue grows, regardless of who fills
//! it, takers slow down to the rate that the owner leaves. While the owner has no traffic, takers
//! are not limited.
//!
//! | symbol | meaning | unit |
//! |---|---|---|
//! | b | base: the shortest echo of the last [`HISTORY`] minutes | time |
//! | q | queueing delay: the shortest of the last [`FILTER`] echoes, less b | time |
//! | T | [`TARGET`], or two full packets at the highest rate sent, if that is longer | time |
//! | p | rate of the takers' datagrams in a direction, mean over [`MEAN_OVER`] | bit/s |
//! | o | rate of all other packets of the device in the direction, same mean | bit/s |
//! | r | maximum rate of relayed datagrams in the direction | bit/s |
//!
//! ```text
//!   o > p/100 + OWN in either direction within OWN_HOLD:
//!     q <= T:  r grows by GROWTH (1 - q/T) each echo, up to 2 p
//!     q >  T:  r = min(r, (p + o) (1 - q/DRAIN) - o), once in FALL_INTERVAL, where p is at least a
//!              quarter of the other direction's: acknowledgements fill no queue
//!     echoes missing, three in a row: as q = 2 T
//!   otherwise: no limit
//! ```
//!
//! While there is a queue, p + o is the capacity of the uplink. So r is what the owner leaves of
//! it, less a part that empties the queue within [`DRAIN`].
//!
//! Assumptions: echoes take the same route as datagrams, and without load their delay varies by
//! less than T within [`FILTER`] echoes. Echoes measure both directions together: if takers send
//! much in both, both slow down. Failure: without answers, nothing is limited. A route that becomes
//! longer is mistaken for a queue until the base is discarded, for at most [`HISTORY`] minutes.
//!
//! Source: RFC 6817 sections 2.4 and 2.5 (base history, current filter). Deviates: a rate in place
//! of a window, because the datagrams' acknowledgements are encrypted; a decrease to the rate that
//! is left in place of a constant factor, because the device's packet counts show what the owner
//! uses; T is 5 ms in place of 100 ms, so that calls of the owner wait no longer than that.

use std::collections::VecDeque;

use hawser_units::{Bytes, Duration, Instant, Rate};

use super::giving::Direction;

/// Decides the rate at which takers may send over one uplink.
///
/// Cost: O([`FILTER`] + [`HISTORY`]) an echo.
#[derive(Debug)]
pub struct Yielding {
    /// The shortest echo of each minute, the newest last.
    minutes: VecDeque<(Instant, Duration)>,
    recent: VecDeque<Duration>,
    missing: u32,
    lanes: [Lane; 2],
    fell_at: Instant,
    /// Time of the owner's last traffic.
    own_at: Option<Instant>,
}

#[derive(Debug, Default)]
struct Lane {
    /// Permitted rate; `None` if the owner has no traffic, or if the queue has been short since its
    /// traffic began.
    allowed: Option<Rate>,
    /// Mean rates of the takers' datagrams and of all traffic of the device, and the bytes since
    /// the last echo.
    sent: f64,
    carried: f64,
    sent_bytes: u64,
    carried_bytes: u64,
    most: f64,
}

impl Default for Yielding {
    fn default() -> Self {
        Self::new()
    }
}

impl Yielding {
    /// Creates a state without echoes and without limits.
    #[must_use]
    pub fn new() -> Self {
        Self {
            minutes: VecDeque::new(),
            recent: VecDeque::new(),
            missing: 0,
            lanes: [Lane::default(), Lane::default()],
            fell_at: Instant::ZERO,
            own_at: None,
        }
    }

    /// Counts takers' datagrams that were sent over the uplink since the last echo, including those
    /// dropped later. Unit: bytes of IP packets.
    pub fn handle_sent(&mut self, direction: Direction, bytes: Bytes) {
        self.lanes[direction as usize].sent_bytes += bytes.0;
    }

    /// Counts bytes that the device of the uplink has transferred since the last echo, including
    /// takers' datagrams. Unit: bytes.
    pub fn handle_transferred(&mut self, direction: Direction, bytes: Bytes) {
        self.lanes[direction as usize].carried_bytes += bytes.0;
    }

    /// Processes an echo that arrived after `round_trip`, or a missing one; `interval`: time since
    /// the previous echo.
    pub fn handle_echo(&mut self, round_trip: Option<Duration>, interval: Duration, now: Instant) {
        for lane in &mut self.lanes {
            lane.average(interval);
        }
        match round_trip {
            Some(round_trip) => {
                self.missing = 0;
                self.remember(round_trip, now);
            }
            // Where nothing has answered yet, silence says nothing.
            None if self.minutes.is_empty() => return,
            None => self.missing += 1,
        }
        let Some(queueing) = self.queueing() else { return };
        if self.lanes.iter().any(Lane::has_owner) {
            self.own_at = Some(now);
        }
        if self.own_at.is_none_or(|at| now > at + OWN_HOLD) {
            for lane in &mut self.lanes {
                lane.allowed = None;
            }
            return;
        }
        let over = queueing.as_secs_f64() / self.target().as_secs_f64() - 1.0;
        if over <= 0.0 {
            for lane in &mut self.lanes {
                lane.grow(-over);
            }
        } else if now >= self.fell_at + FALL_INTERVAL {
            self.fell_at = now;
            let most = self.lanes.iter().map(|lane| lane.sent).fold(MIN_BPS, f64::max);
            for lane in self.lanes.iter_mut().filter(|lane| lane.sent >= most * CAUSE) {
                lane.fall(queueing);
            }
        }
    }

    /// Returns the rate at which takers may send; `None` without a limit.
    #[must_use]
    pub fn allowed(&self, direction: Direction) -> Option<Rate> {
        self.lanes[direction as usize].allowed
    }

    /// Returns how long packets wait on the uplink; `None` before the first echo.
    #[must_use]
    pub fn queueing(&self) -> Option<Duration> {
        if self.missing >= MISSING {
            return Some(self.target() * 2);
        }
        let base = self.minutes.iter().map(|(_, least)| *least).min()?;
        Some(self.recent.iter().min()?.saturating_sub(base))
    }

    /// Returns the target delay of echoes. On a slow uplink a single packet before an echo takes
    /// longer than [`TARGET`].
    fn target(&self) -> Duration {
        let most = self.lanes.iter().map(|lane| lane.most).fold(MIN_BPS, f64::max);
        TARGET.max(Rate::from_bps(most as u64).time_for(Bytes(2 * FULL_PACKET)))
    }

    fn remember(&mut self, round_trip: Duration, now: Instant) {
        self.recent.push_back(round_trip);
        if self.recent.len() > FILTER {
            self.recent.pop_front();
        }
        match self.minutes.back_mut() {
            Some((since, least)) if now < *since + MINUTE => *least = (*least).min(round_trip),
            Some(_) | None => self.minutes.push_back((now, round_trip)),
        }
        if self.minutes.len() > HISTORY {
            self.minutes.pop_front();
        }
    }
}

impl Lane {
    fn average(&mut self, interval: Duration) {
        let seconds = interval.as_secs_f64();
        if seconds <= 0.0 {
            return;
        }
        let weight = (seconds / MEAN_OVER.as_secs_f64()).min(1.0);
        let mean = |mean: f64, bytes: u64| mean + (bytes as f64 * 8.0 / seconds - mean) * weight;
        self.sent = mean(self.sent, self.sent_bytes);
        self.carried = mean(self.carried, self.carried_bytes);
        self.most = self.most.max(self.sent);
        (self.sent_bytes, self.carried_bytes) = (0, 0);
    }

    /// Returns what the device transferred for its owner.
    fn own(&self) -> f64 {
        (self.carried - self.sent).max(0.0)
    }

    /// Returns whether the owner's bytes exceed what devices count beyond IP packets and echoes.
    fn has_owner(&self) -> bool {
        self.own() > self.sent * FRAMING + OWN_BPS
    }

    fn grow(&mut self, by: f64) {
        let Some(allowed) = self.allowed else { return };
        let bps = allowed.as_bps() as f64;
        // An unused allowance provides no information about the available rate.
        if bps < self.sent.max(self.min_rate()) * 2.0 {
            self.allowed = Some(Rate::from_bps((bps * (1.0 + GROWTH * by)) as u64));
        }
    }

    fn fall(&mut self, queueing: Duration) {
        let emptying = (1.0 - queueing.as_secs_f64() / DRAIN.as_secs_f64()).max(0.0);
        let left = (self.sent + self.own()) * emptying - self.own();
        let before = self
            .allowed
            .map_or(f64::INFINITY, |allowed| allowed.as_bps() as f64);
        self.allowed = Some(Rate::from_bps(left.min(before).max(self.min_rate()) as u64));
    }

    /// Returns the minimum rate that remains, so that a path is not taken for failed.
    fn min_rate(&self) -> f64 {
        (self.most * MIN).max(MIN_BPS)
    }
}

/// Target of the queueing delay, which is what a call of the owner may wait. Source: the `TARGET`
/// of CoDel, RFC 8289 section 4.3.
pub const TARGET: Duration = Duration::from_millis(5);
/// Minimum interval between two echoes: several within a round trip of a cellular modem. Source: 20
/// echoes of 58 bytes a second take less than 1 % of 1 Mbit/s.
pub const ECHO_INTERVAL: Duration = Duration::from_millis(50);
/// Minutes that a base holds (RFC 6817 section 2.4: BASE_HISTORY).
const HISTORY: usize = 10;
const MINUTE: Duration = Duration::from_secs(60);
/// Echoes of which the shortest counts (RFC 6817 section 2.4: CURRENT_FILTER).
const FILTER: usize = 3;
/// Number of consecutive missing echoes that count as drops of the queue. Source: three losses in a
/// row at 10 % are one in a thousand; fewer would take radio losses for a queue, more leave the
/// owner's packets in a full queue for longer.
const MISSING: u32 = 3;
/// Averaging time of the rates of takers and owner. Source: our choice, four of [`ECHO_INTERVAL`];
/// a shorter one takes single packets for the owner's traffic.
const MEAN_OVER: Duration = Duration::from_millis(200);
/// Growth of the rate per echo: doubles within 2.3 s. Source: a sweep of 0.015 and 0.03 with the
/// tests below, whose mean queue is 7 and 10 ms; takers get 0.99 of the rest with either.
const GROWTH: f64 = 0.015;
/// Time after which a queue is to be empty. Source: [`FALL_INTERVAL`] and 50 ms, a round trip over
/// cellular networks.
const DRAIN: Duration = Duration::from_millis(250);
/// Framing overhead of takers' traffic. Source: an Ethernet header of 14 bytes (RFC 894) for each
/// packet of 1400.
const FRAMING: f64 = 0.01;
/// Rate of echoes (13 kbit/s) and of what idle devices send. A call has some 100 kbit/s. Source:
/// our choice, the sum of both with a margin; a lower value makes takers yield to a machine that
/// only synchronises its clock, a higher one misses a call with a slow codec.
const OWN_BPS: f64 = 40_000.0;
/// Time without packets after which the owner counts as inactive. Source: our choice, longer than
/// the pauses of a web page's requests; a longer one leaves the uplink idle after the owner's last
/// packet.
const OWN_HOLD: Duration = Duration::from_secs(2);
/// Minimum share of the busier direction that counts as the cause of a queue. Acknowledgements are
/// some 2 %. Source: our choice, between those 2 % and a direction that is half as busy.
const CAUSE: f64 = 0.25;
/// Minimum interval between two reductions of the rate: a reduction shows after a round trip and
/// [`FILTER`] echoes. Source: three times [`ECHO_INTERVAL`], and 50 ms, a round trip over cellular
/// networks.
const FALL_INTERVAL: Duration = Duration::from_millis(200);
/// Minimum share of the highest rate that remains. Source: our choice, 100 kbit/s of 10 Mbit/s,
/// enough for probes and reports; more would delay the owner, less lets the path count as failed.
const MIN: f64 = 0.01;
/// Unit: bytes (RFC 894).
const FULL_PACKET: u64 = 1_500;
/// Minimum rate that remains. Source: a packet of [`FULL_PACKET`] a second.
const MIN_BPS: f64 = 12_000.0;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Of a modem. Units: bit/s.
    const CAPACITY: f64 = 5e6;
    const BASE: Duration = Duration::from_millis(60);

    /// An uplink with a queue of 100 ms, which takers and the owner fill. Returns the rate of the
    /// takers in the last ten seconds, and the mean queue. Units: bit/s, seconds.
    fn drive(wanted: f64, owner: impl Fn(f64) -> f64) -> (f64, f64) {
        let mut yielding = Yielding::new();
        let (mut queue, mut sent, mut queued) = (0.0_f64, 0.0, 0.0);
        let step = ECHO_INTERVAL.as_secs_f64();
        for tick in 0..800_u32 {
            let allowed = yielding.allowed(Direction::Down);
            let taker = wanted.min(allowed.map_or(f64::INFINITY, |rate| rate.as_bps() as f64));
            // The first echoes meet an idle way.
            let (taker, owner) = if tick < 10 {
                (0.0, 0.0)
            } else {
                (taker, owner(queue))
            };
            queue = (queue + (taker + owner - CAPACITY) / CAPACITY * step).clamp(0.0, 0.1);
            let carried = taker.min(CAPACITY);
            let bytes = |rate: f64| Bytes((rate * step / 8.0) as u64);
            yielding.handle_sent(Direction::Down, bytes(carried));
            yielding.handle_transferred(Direction::Down, bytes(carried + owner));
            let now = Instant::ZERO + ECHO_INTERVAL * tick;
            let echo = BASE + Duration::from_secs_f64(queue);
            yielding.handle_echo(Some(echo), ECHO_INTERVAL, now);
            if tick >= 600 {
                (sent, queued) = (sent + carried, queued + queue);
            }
        }
        (sent / 200.0, queued / 200.0)
    }

    #[test]
    fn takers_get_what_is_left_and_the_queue_stays_short() {
        for own in [1e5, 1e6, 3e6] {
            let (sent, queued) = drive(20e6, |_| own);
            let left = CAPACITY - own;
            assert!(
                sent > 0.8 * left && sent <= left * 1.01,
                "{own}: {sent} of {left}"
            );
            assert!(queued < 2.0 * TARGET.as_secs_f64(), "{own}: {queued}");
        }
    }

    #[test]
    fn an_owner_that_takes_everything_gets_it() {
        // CUBIC keeps a drop-tail queue between some 70 and 100 %.
        let (sent, _) = drive(20e6, |queue| {
            if queue < 0.09 {
                CAPACITY * 1.1
            } else {
                CAPACITY * 0.97
            }
        });
        assert!(sent < 0.05 * CAPACITY, "{sent}");
    }

    #[test]
    fn on_a_slow_way_the_time_of_a_packet_is_no_queue() {
        let mut yielding = Yielding::new();
        for tick in 0..400_u32 {
            // A full packet at 115 kbit/s takes 104 ms; each second echo waits for one.
            let wait = if tick < 10 { 0 } else { 104 };
            let sent = if tick < 10 { 0 } else { 115_200 / 8 / 20 };
            yielding.handle_sent(Direction::Down, Bytes(sent));
            yielding.handle_transferred(Direction::Down, Bytes(sent + 700));
            let echo = BASE + Duration::from_millis(wait);
            yielding.handle_echo(Some(echo), ECHO_INTERVAL, Instant::ZERO + ECHO_INTERVAL * tick);
        }
        let allowed = yielding.allowed(Direction::Down);
        assert!(
            allowed.is_none_or(|rate| rate > Rate::from_bps(110_000)),
            "{allowed:?}"
        );
    }

    #[test]
    fn without_a_queue_or_an_owner_nothing_is_limited() {
        assert_eq!(drive(20e6, |_| 0.0).0, CAPACITY);
        let (sent, queued) = drive(2e6, |_| 1e6);
        assert_eq!((sent, queued), (2e6, 0.0));
        let mut yielding = Yielding::new();
        for tick in 0..100_u64 {
            yielding.handle_sent(Direction::Up, Bytes(10_000));
            yielding.handle_echo(None, ECHO_INTERVAL, Instant::from_nanos(tick * 50_000_000));
        }
        assert_eq!(yielding.allowed(Direction::Up), None, "nothing has ever answered");
    }

    proptest! {
        #[test]
        fn a_limit_is_never_zero_and_never_absurd(
            echoes in prop::collection::vec((prop::option::of(0..2_000_u64), 0..1_000_000_u64, 0..500_u64), 1..300)
        ) {
            let mut yielding = Yielding::new();
            let mut now = Instant::ZERO;
            for (echo, bytes, interval) in echoes {
                let interval = Duration::from_millis(interval);
                now += interval;
                yielding.handle_sent(Direction::Up, Bytes(bytes));
                yielding.handle_transferred(Direction::Up, Bytes(bytes * 2));
                yielding.handle_echo(echo.map(Duration::from_millis), interval, now);
                if let Some(rate) = yielding.allowed(Direction::Up) {
                    prop_assert!(rate.as_bps() >= MIN_BPS as u64);
                    prop_assert!(rate.as_bps() < 1 << 50);
                }
            }
        }
    }
}
