//! Competition with other senders in a path's queue: detection, and the window that takes the share
//! of a CUBIC sender.
//!
//! The window grows by RFC 9438's function of the time since the last overflow, in bytes. From time
//! to time the path reduces its window for one round. If it is alone in the queue, the queue
//! becomes shorter by the whole reduction; with competitors, by the path's share of it. A path with
//! less than half grows faster, one with more grows more slowly: two CUBIC senders need minutes to
//! share a deep queue evenly when one of them has filled it first.
//!
//! Source: RFC 9438 sections 4.2 to 4.7; Copa (Arun and Balakrishnan, NSDI 2018) section 2.2 for
//! competing only while it is necessary.

use hawser_units::{Bytes, Duration, Instant, Rate};

use super::{Competitors, QueueShare};
use crate::path::FULL_PACKET;

/// Segment size in the sense of RFC 9438. Units: bytes.
const SEGMENT: f64 = FULL_PACKET as f64;
const MIN_WINDOW: f64 = 4.0 * SEGMENT;
/// RFC 9438 section 4.6.
const BETA: f64 = 0.7;
/// RFC 9438 section 5.1. Units: segments over seconds cubed.
const C: f64 = 0.4;
/// RFC 9438 section 4.3.
const ALPHA: f64 = 3.0 * (1.0 - BETA) / (1.0 + BETA);
/// Growth in a round trip before the first overflow. Source: Linux `bictcp_update`: a segment for
/// at most 20 acknowledged ones.
const FIRST_GROWTH: f64 = 1.05;
/// Share of the window that has to be in use for it to grow. With 0.95 and 0.8 goodput changes by
/// at most 0.2 %, and the share beside CUBIC by -5 and 4 % (docs/notebook/path-model.md,
/// "Sensitivity").
const IN_USE: f64 = 0.9;
/// Rounds between two samples of the own share. Source: a sweep of 8, 12 and 16 over the networks
/// of docs/notebook/fairness.md, of which none did better than 12.
const SAMPLE_ROUNDS: u32 = 12;
/// Share of the data in flight that remains during a sample of the own share. With 0.85 and 0.4
/// goodput does not change, and the share beside CUBIC changes by 5 and -10 %
/// (docs/notebook/path-model.md, "Sensitivity").
const SAMPLE_WINDOW: f64 = 0.7;
/// Minimum decrease of a queue, as a share of the bytes that were held back, that shows that the
/// queue is the path's own. No suite of docs/notebook/path-model.md, "Sensitivity", changes by more
/// than 3 % with half or twice of it.
const OWN: f64 = 0.8;
/// Share that is the aim. Source: half of a queue for each of two senders, as
/// docs/notebook/fairness.md asks for.
const FAIR: f64 = 0.5;
/// Maximum share, as a number of CUBIC senders: among many senders, half of the queue is too much.
/// Source: a sweep of two and four over the networks of docs/notebook/fairness.md, of which four
/// did no better.
const MAX_SENDERS: f64 = 2.0;
/// Weight of the newest sample of the path's share, against the samples before. With 0.25 and 1
/// goodput does not change, and the share beside CUBIC changes by -7 and 2 %
/// (docs/notebook/path-model.md, "Sensitivity").
const SHARE_WEIGHT: f64 = 0.5;
/// Rounds without a queue after which competition counts as ended: more than a CUBIC sender needs
/// to fill a short queue again. No suite of docs/notebook/path-model.md, "Sensitivity", changes by
/// more than 3 % with half or twice of it.
const UNQUEUED: u32 = 32;

/// Rounds in a row in which sending less did not shorten the queue, after which other senders fill
/// it. Half and twice of it change goodput by at most 0.1 %, and the share beside CUBIC by 4 and
/// -10 % (docs/notebook/path-model.md, "Sensitivity").
const IN_VAIN: u32 = 3;
/// Minimum reduction of a yielding queue per round, in rounds: a reduction of the window by three
/// tenths shortens the path's own queue by three. Source: docs/notebook/fairness.md, where a
/// reduction by a twentieth of the queue left four of 81 networks below a share of 0.3 instead of
/// three, and 0.21 of one instead of 0.26.
const YIELDING: f64 = 0.1;
/// Ratio of the rates of two rounds below which other senders take over: without them, rounds
/// differ by less. With 0.985 and 0.94 goodput does not change, and the share beside CUBIC changes
/// by 0 and -4 % (docs/notebook/path-model.md, "Sensitivity").
const FALLING: f64 = 0.97;
/// Thresholds of unusual loss: multiples of the loss without a queue, and standard deviations
/// beyond that, since random losses of few packets come in clusters. No suite of
/// docs/notebook/path-model.md, "Sensitivity", changes by more than 3 % with half or twice of
/// either.
const UNUSUAL: f64 = 3.0;
const DEVIATIONS: f64 = 4.0;
/// Number of additional losses without significance: the loss without a queue is not well known on
/// a path that rarely has none. Source: docs/notebook/fairness.md, where a single loss as an
/// overflow left one network with a share of 0.09.
const CHANCE: f64 = 2.0;

/// Measurements of one round.
#[derive(Clone, Copy, Debug)]
pub(super) struct Seen {
    /// The shortest queue, if there was a queue during the whole round.
    pub(super) queue: Option<Duration>,
    /// Duration of the round.
    pub(super) round: Duration,
    /// The delivery rate.
    pub(super) rate: Rate,
    /// Bytes in flight at its end.
    pub(super) in_flight: u64,
    /// Set if less was sent than the path delivered.
    pub(super) holds_back: bool,
}

/// Evidence of other senders on a path.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Rivals {
    /// Rounds of holding back in vain.
    in_vain: u32,
    /// Maximum of the data recently in flight before the first of them.
    flight: u64,
    last_queue: Duration,
    last_rate: Rate,
    usual_loss: f64,
}

impl Rivals {
    /// Processes a round; returns the previous bytes in flight if a queue does not shrink although
    /// the path sends less and delivers less and less. Alone, a path delivers at the link's rate as
    /// long as there is a queue, and a queue that gets less than that shortens.
    pub(super) fn on_round(&mut self, seen: &Seen) -> Option<u64> {
        if self.in_vain == 0 && !seen.holds_back {
            self.flight = seen.in_flight.max(self.flight - self.flight / 8);
        }
        match seen.queue {
            None => self.in_vain = 0,
            Some(queue) => {
                let yields = queue + seen.round.mul_f64(YIELDING) < self.last_queue;
                let falls = seen.rate < self.last_rate.scale(FALLING);
                self.in_vain += u32::from(seen.holds_back && !yields && falls);
            }
        }
        self.last_queue = seen.queue.unwrap_or_default();
        self.last_rate = seen.rate;
        if self.in_vain < IN_VAIN {
            return None;
        }
        self.in_vain = 0;
        Some(self.flight)
    }

    /// Records that `lost` of the `sent` packets of a round without a queue were lost.
    pub(super) fn on_usual_loss(&mut self, lost: u64, sent: f64) {
        if sent > 0.0 {
            self.usual_loss += (lost as f64 / sent - self.usual_loss) / 8.0;
        }
    }

    /// Returns whether this many lost packets exceed chance, a Poisson distribution.
    pub(super) fn is_unusual(&self, lost: u64, sent: f64) -> bool {
        let usual = self.usual_loss * sent;
        lost as f64 > (UNUSUAL * usual).max(usual + DEVIATIONS * usual.sqrt() + CHANCE)
    }
}

/// The window.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Competing {
    window: f64,
    /// The window before the last overflow.
    max: f64,
    /// The window of a Reno sender with the same average.
    reno: f64,
    has_overflowed: bool,
    since: Instant,
    /// Seconds until the window is `max` again.
    k: f64,
    /// Packet number up to which losses belong to the same overflow.
    cut_until: u64,
    rounds: u32,
    unqueued: u32,
    look: Option<Sample>,
    /// Share of the queue that is the path's own, by its samples. 0 to 1.
    share: f64,
    company: Competitors,
    /// Overflows that the path itself observed.
    overflows: u32,
    last_queue: Duration,
}

/// A round of holding back, and the next, in which that shows.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Sample {
    /// The queue before it.
    before: Duration,
    /// Expected queue without the reduction.
    expected: Duration,
    /// Window during a sample.
    window: u64,
    held_back: Bytes,
    /// Queue and rate in the round with the reduced window, after its end.
    held: Option<(Duration, Rate)>,
}

impl Competing {
    /// Creates a window of `flight` bytes.
    pub(super) fn new(flight: u64, now: Instant) -> Self {
        let window = (flight as f64).max(MIN_WINDOW);
        Self {
            window,
            max: window,
            reno: window,
            has_overflowed: false,
            since: now,
            k: 0.0,
            cut_until: 0,
            rounds: 0,
            unqueued: 0,
            look: None,
            share: FAIR,
            company: Competitors::default(),
            overflows: 0,
            last_queue: Duration::ZERO,
        }
    }

    /// Returns how many CUBIC senders the path's share equals; of one sender, its part among the
    /// competitors.
    fn senders(&self) -> f64 {
        let share = (self.share + self.company.stake.share).max(f64::EPSILON);
        (FAIR / share).clamp(1.0 / MAX_SENDERS, MAX_SENDERS) / self.company.paths()
    }

    /// Returns the path's share of the queue, by its samples.
    pub(super) fn queue_share(&self) -> QueueShare {
        QueueShare {
            share: self.share,
            is_looking: self.look.is_some(),
            overflows: self.overflows,
        }
    }

    /// Sets the other paths of the session that compete in the same queue: together they act as one
    /// sender.
    ///
    /// Source: RFC 6356 section 1, the second goal, for the aim: no more is taken than one flow
    /// would on the best path. A drop of the queue that they share meets one of them by chance: it
    /// is an overflow for all, as it would be for one sender.
    pub(super) fn set_competitors(&mut self, company: Competitors, packet_numbers: (u64, u64), now: Instant) {
        let before = std::mem::replace(&mut self.company, company);
        if company.others == before.others && company.stake.overflows != before.stake.overflows {
            self.cut(packet_numbers, now);
        }
    }

    /// RFC 9438's C. Its rate goes with the fourth root (section 5.1).
    fn c(&self) -> f64 {
        C * self.senders().powi(4)
    }

    /// The sample that reduces the data in flight at present.
    fn holding_back(&self) -> Option<&Sample> {
        self.look.as_ref().filter(|look| look.held.is_none())
    }

    /// Bytes that may be in flight.
    pub(super) fn window(&self) -> u64 {
        self.holding_back().map_or(self.window as u64, |look| look.window)
    }

    /// Processes `reported` bytes that were delivered, with `in_flight` bytes still in flight.
    pub(super) fn on_reported(&mut self, reported: u64, in_flight: u64, round_trip: Duration, now: Instant) {
        let reported = reported as f64;
        let is_in_use = in_flight as f64 + reported >= self.window * IN_USE;
        if !is_in_use || self.holding_back().is_some() {
            return;
        }
        let t = (now.since(self.since) + round_trip).as_secs_f64() - self.k;
        let cubic = self.max + self.c() * t.powi(3) * SEGMENT;
        // A Reno sender's rate is proportional to the square root of its increase.
        self.reno += ALPHA * self.senders().powi(2) * SEGMENT * reported / self.window;
        let least = if self.has_overflowed { 1.0 } else { FIRST_GROWTH };
        let target = cubic.max(self.reno).clamp(self.window * least, self.window * 1.5);
        self.window += (target - self.window) * (reported / self.window).min(1.0);
    }

    /// Handles an overflow of the queue; `packet_numbers` are the newest one reported and the next
    /// one to be sent.
    pub(super) fn on_overflow(&mut self, packet_numbers: (u64, u64), now: Instant) {
        if self.cut(packet_numbers, now) {
            self.overflows = self.overflows.wrapping_add(1);
        }
    }

    /// Reduces the window once for each overflow. Returns whether it did.
    fn cut(&mut self, packet_numbers: (u64, u64), now: Instant) -> bool {
        if packet_numbers.0 < self.cut_until {
            return false;
        }
        // Fast convergence, RFC 9438 section 4.7.
        self.max = if self.window < self.max {
            self.window * f64::midpoint(1.0, BETA)
        } else {
            self.window
        };
        self.window = (self.window * BETA).max(MIN_WINDOW);
        self.reno = self.window;
        self.k = ((self.max - self.window).max(0.0) / SEGMENT / self.c()).cbrt();
        self.since = now;
        self.cut_until = packet_numbers.1;
        self.has_overflowed = true;
        self.rounds = 0;
        self.look = None;
        true
    }

    /// Processes a round. Returns whether no other sender is present.
    pub(super) fn is_alone(&mut self, seen: &Seen) -> bool {
        self.rounds += 1;
        self.unqueued = if seen.queue.is_some() {
            0
        } else {
            self.unqueued + 1
        };
        let queue = seen.queue.unwrap_or_default();
        let last_queue = std::mem::replace(&mut self.last_queue, queue);
        match self.look.take() {
            Some(look @ Sample { held: None, .. }) => {
                self.look = Some(Sample {
                    held: Some((queue, seen.rate)),
                    ..look
                });
            }
            Some(Sample {
                before,
                expected,
                held_back,
                held: Some((held, rate)),
                ..
            }) if rate != Rate::ZERO => {
                let queue = queue.min(held);
                let own = rate.time_for(held_back);
                let share = expected.saturating_sub(queue).as_secs_f64() / own.as_secs_f64();
                self.share += (share.min(1.0) - self.share) * SHARE_WEIGHT;
                let shorter = before.saturating_sub(queue) + rate.time_for(Bytes(FULL_PACKET));
                // The packets of coupled paths in the queue were not reduced.
                let own = OWN * (1.0 - self.company.stake.share).max(0.0) * own.min(before).as_secs_f64();
                return shorter.as_secs_f64() > own;
            }
            // Two concurrent samples would each count the other's reduction as their own.
            None if self.rounds >= SAMPLE_ROUNDS
                && seen.queue.is_some()
                && !self.company.stake.is_looking =>
            {
                self.rounds = 0;
                // After an overflow more may be in flight than the window.
                let window = ((seen.in_flight as f64).min(self.window) * SAMPLE_WINDOW) as u64;
                // The last reported amount will soon be in flight again.
                let in_flight = (seen.in_flight as f64 / IN_USE).min(self.window) as u64;
                self.look = Some(Sample {
                    before: queue,
                    expected: queue + queue.saturating_sub(last_queue),
                    window,
                    held_back: Bytes(in_flight - window),
                    held: None,
                });
            }
            // Nothing was delivered while holding back: that says nothing.
            Some(_) | None => {}
        }
        self.unqueued >= UNQUEUED
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The window eight seconds after an overflow, where holding back shortens the queue by this
    /// share of it.
    fn grown(share: f64) -> f64 {
        let (rate, round_trip) = (Rate::from_mbps(10), Duration::from_millis(50));
        let mut now = Instant::ZERO;
        let mut competing = Competing::new(200_000, now);
        competing.on_overflow((0, 1), now);
        for _ in 0..160 {
            now += round_trip;
            let window = competing.window();
            competing.on_reported(window, window, round_trip, now);
            let shorter = rate.time_for(Bytes((competing.window as u64).saturating_sub(window)));
            let seen = Seen {
                queue: Some(Duration::from_millis(100) - shorter.mul_f64(share)),
                round: round_trip,
                rate,
                in_flight: window,
                holds_back: false,
            };
            assert!(!competing.is_alone(&seen), "{share}");
        }
        competing.window
    }

    /// Whether others are noticed while a queue of 60 ms shortens by this share of each round, and
    /// the rate by a tenth.
    fn notices(shortens: f64) -> bool {
        let mut rivals = Rivals::default();
        let round = Duration::from_millis(50);
        (0..8).any(|n: i32| {
            let queue = Duration::from_millis(60).saturating_sub(round.mul_f64(shortens * f64::from(n)));
            let seen = Seen {
                queue: (queue > Duration::ZERO).then_some(queue),
                round,
                rate: Rate::from_mbps(20).scale(0.9f64.powi(n)),
                in_flight: 50_000,
                holds_back: n > 0,
            };
            rivals.on_round(&seen).is_some()
        })
    }

    #[test]
    fn a_queue_that_shortens_by_less_than_was_held_back_is_kept_up_by_others() {
        assert!(notices(0.0));
        assert!(notices(0.08), "a little of it was one's own");
        assert!(!notices(0.3));
    }

    fn before_a_look(in_flight: u64) -> Seen {
        Seen {
            queue: Some(Duration::from_millis(100)),
            round: Duration::from_millis(50),
            rate: Rate::from_mbps(10),
            in_flight,
            holds_back: false,
        }
    }

    #[test]
    fn a_look_during_which_nothing_came_says_nothing() {
        let mut competing = Competing::new(200_000, Instant::ZERO);
        let mut seen = before_a_look(200_000);
        for _ in 0..SAMPLE_ROUNDS {
            assert!(!competing.is_alone(&seen));
        }
        assert!(competing.window() < 200_000, "it looks");
        seen.rate = Rate::ZERO;
        for _ in 0..2 {
            assert!(!competing.is_alone(&seen));
        }
        assert_eq!((competing.window(), competing.share), (200_000, FAIR));
    }

    #[test]
    fn a_look_holds_back_of_the_window_where_more_is_in_flight() {
        let mut competing = Competing::new(100_000, Instant::ZERO);
        let seen = before_a_look(300_000);
        for _ in 0..SAMPLE_ROUNDS {
            competing.is_alone(&seen);
        }
        assert_eq!(competing.window(), 70_000);
    }

    #[test]
    fn who_has_less_grows_faster() {
        let [little, half, much] = [0.2, 0.5, 0.7].map(grown);
        assert!(
            little > 1.2 * half && half > 1.02 * much,
            "{little} {half} {much}"
        );
    }

    #[test]
    fn those_that_share_a_queue_grow_as_parts_of_one_and_meet_its_overflows_together() {
        let mut now = Instant::ZERO;
        let mut competing = Competing::new(200_000, now);
        competing.share = FAIR / 2.0;
        let mut company = Competitors::default();
        company.add(competing.queue_share());
        competing.set_competitors(company, (0, 10), now);
        // Together they have their half, so each is half of a sender.
        assert!(
            (competing.senders() - 0.5).abs() < 1e-9,
            "{}",
            competing.senders()
        );
        assert!((competing.c() - C / 16.0).abs() < 1e-9, "{}", competing.c());
        let overflow = |times| Competitors {
            stake: QueueShare {
                overflows: times,
                ..company.stake
            },
            ..company
        };
        now += Duration::from_millis(50);
        competing.set_competitors(overflow(1), (10, 20), now);
        assert_eq!(competing.window(), 140_000);
        assert_eq!(competing.queue_share().overflows, 0, "it was not its own");
        // Its own sign of the same one, and the other's next one a round later.
        competing.on_overflow((15, 30), now);
        assert_eq!(
            (competing.window(), competing.queue_share().overflows),
            (140_000, 0)
        );
        competing.set_competitors(overflow(2), (20, 40), now);
        assert_eq!(competing.window(), 98_000);
        // One who comes or goes is no overflow.
        competing.set_competitors(Competitors::default(), (50, 60), now);
        assert_eq!(competing.window(), 98_000);
    }

    #[test]
    fn of_two_only_one_looks() {
        let mut competing = Competing::new(200_000, Instant::ZERO);
        let mut company = Competitors::default();
        company.add(QueueShare {
            is_looking: true,
            ..QueueShare::default()
        });
        competing.set_competitors(company, (0, 1), Instant::ZERO);
        let seen = before_a_look(200_000);
        for _ in 0..2 * SAMPLE_ROUNDS {
            assert!(!competing.is_alone(&seen));
        }
        assert_eq!(competing.window(), 200_000, "it waits");
        company.stake.is_looking = false;
        competing.set_competitors(company, (0, 1), Instant::ZERO);
        competing.is_alone(&seen);
        assert!(competing.window() < 200_000, "it looks");
    }
}
