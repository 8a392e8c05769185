//! Using all access points of a channel at once: which of them makes good use of the air, and how a
//! sender far away learns of it.
//!
//! The client has a subflow through every access point. It listens to what each one sends,
//! estimates how long a packet takes there when it is alone, and marks a share of the packets of
//! those that are clearly worse than the best, before IP sees them: the sender's coupled congestion
//! control then moves to the better ones by itself. Of many access points the worst are only
//! backups.
//!
//! It starts knowing nothing, marks nothing and keeps every access point in use. Steady state:
//! estimates follow a window of half a second. It fails towards not marking: an access point
//! without an estimate is neither marked nor the measure of others, and one that is no longer heard
//! loses its estimate after [`Config::memory`].
//!
//! ```text
//!   access point:  unknown -- frames read --> known <--> marked (packet time above threshold * best)
//!                     ^                         |
//!                     +-- not heard for long ---+
//!   subflow:       regular <-- among the best `regular` --> backup
//! ```
//!
//! Source: All-APs section 5. Deviates: an estimate outlives its window for some seconds, because
//! an access point that the sender has left is silent, and needs some frames; a backup becomes
//! regular only when it is better by the threshold. Scope: one channel; for several,
//! [`slots::Config`] divides the radio's time.

#[cfg(test)]
mod air_events;
pub mod efficiency;
pub mod estimator;
pub mod slots;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;

use hawser_units::Random;
use hawser_units::{Duration, Instant};
use hawser_wire::airtime::Airtime as Shared;

use efficiency::{Airtime, marking_rate};
use estimator::Delivery;

/// How access points are compared.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Config {
    /// How delivery is estimated.
    pub delivery: estimator::Config,
    /// What a packet takes besides its bits.
    pub airtime: Airtime,
    /// An access point is marked when its packet time exceeds the best one's by this factor and by
    /// what an estimate from few frames may err.
    ///
    /// Source: All-APs section 5.2 (20 %). Deviates: the error is added; where the round trip is
    /// near the pole of eq. 5 a single wrong mark costs much.
    pub threshold: f64,
    /// How many access points carry data; the others are backups.
    ///
    /// Source: All-APs section 6.2.1 (no more than 3 or 4).
    pub regular: usize,
    /// How long an estimate outlives the last frame.
    pub memory: Duration,
    /// Frames that a window must hold for a new estimate: of fewer, one repeated frame would say
    /// that an access point is worse by the threshold.
    pub least: u32,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            delivery: estimator::Config::default(),
            airtime: Airtime::ofdm(),
            threshold: 1.2,
            regular: 3,
            memory: Duration::from_secs(5),
            least: 20,
        }
    }
}

/// The access points of one channel, as one client hears them.
#[derive(Clone, Debug)]
pub struct AccessPoints {
    config: Config,
    points: Vec<Point>,
    events: VecDeque<Event>,
    random: Random,
    /// The time that others' frames have taken of late, which fades, and when that was looked at.
    /// Units: seconds.
    others: (f64, Instant),
}

/// Names an access point: its place in the order of [`AccessPoints::join`].
pub type Index = usize;

/// What the embedding is to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// Make the subflow through an access point a backup, or regular again.
    Backup {
        /// Which.
        access_point: Index,
        /// Whether it is to be a backup.
        is_backup: bool,
    },
}

/// What became of packets that passed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// All of them.
    pub passed: u64,
    /// Those that were marked.
    pub marked: u64,
}

#[derive(Clone, Debug)]
struct Point {
    delivery: Delivery,
    /// Smoothed. Units: seconds for each bit.
    bit_time: f64,
    heard: Option<Instant>,
    packet_time: Option<f64>,
    /// The same of a packet without bytes.
    empty_time: f64,
    /// Frames behind it.
    frames: u32,
    round_trip: Option<Duration>,
    is_backup: bool,
    is_gone: bool,
    counters: Counters,
}

impl AccessPoints {
    /// Without access points.
    #[must_use]
    pub fn new(config: Config, seed: u64) -> Self {
        Self {
            config,
            points: Vec::new(),
            events: VecDeque::new(),
            others: (0.0, Instant::ZERO),
            random: Random::new(seed, "all-aps"),
        }
    }

    /// Adds an access point, which is regular until a comparison says otherwise.
    pub fn join(&mut self) -> Index {
        self.points.push(Point::new(&self.config));
        self.points.len() - 1
    }

    /// The client left an access point: it is compared no more, and takes nobody's place among the
    /// regular ones.
    pub fn leave(&mut self, access_point: Index) {
        self.points[access_point].is_gone = true;
        self.points[access_point].packet_time = None;
    }

    /// The client is back at an access point that it had left: it is compared anew, with nothing
    /// known.
    pub fn rejoin(&mut self, access_point: Index) {
        let point = &mut self.points[access_point];
        if point.is_gone {
            *point = Point {
                is_backup: point.is_backup,
                counters: point.counters,
                ..Point::new(&self.config)
            };
        }
    }

    /// Whether the client has left an access point; `None`: it never joined.
    #[must_use]
    pub fn has_left(&self, access_point: Index) -> Option<bool> {
        self.points.get(access_point).map(|point| point.is_gone)
    }

    /// A frame of an access point was read, for whomever it was; `rate` in bit/s.
    pub fn handle_frame(&mut self, access_point: Index, sequence: u16, retry: bool, rate: f64, now: Instant) {
        let point = &mut self.points[access_point];
        if point.is_gone || rate <= 0.0 {
            return;
        }
        point.delivery.handle_frame(sequence, retry, now);
        point.bit_time = if point.heard.is_none() {
            1.0 / rate
        } else {
            point.bit_time + (1.0 / rate - point.bit_time) / SMOOTHING
        };
        point.heard = Some(now);
        point.assess(&self.config);
    }

    /// A frame of `bits` at `rate` (bit/s) was read that neither the client nor one of its access
    /// points has sent.
    pub fn handle_others(&mut self, bits: f64, rate: f64, now: Instant) {
        if rate > 0.0 {
            let takes = bits / rate + self.config.airtime.constant;
            self.others = (self.others_left(now) + takes, now);
        }
    }

    fn others_left(&self, now: Instant) -> f64 {
        let (seconds, at) = self.others;
        seconds * (-now.since(at).as_secs_f64() / OTHERS_FADE.as_secs_f64()).exp()
    }

    /// A round trip through an access point, from TCP's timestamps. The smallest one counts.
    pub fn handle_round_trip(&mut self, access_point: Index, sample: Duration) {
        let point = &mut self.points[access_point];
        point.round_trip = Some(point.round_trip.map_or(sample, |least| least.min(sample)));
    }

    /// A packet of an access point is about to go to IP: says whether it is to be marked.
    pub fn handle_packet(&mut self, access_point: Index, now: Instant) -> bool {
        let share = self.marking_rate(access_point, now);
        let is_marked = share > 0.0 && self.random.chance(share);
        let counters = &mut self.points[access_point].counters;
        counters.passed += 1;
        counters.marked += u64::from(is_marked);
        is_marked
    }

    /// Forgets what is old and chooses the backups anew; to be called once a window.
    pub fn handle_timeout(&mut self, now: Instant) {
        let memory = self.config.memory;
        for point in &mut self.points {
            point.delivery.handle_timeout(now);
            if point.heard.is_some_and(|heard| now.since(heard) > memory) {
                point.heard = None;
                point.packet_time = None;
            }
        }
        self.choose_backups();
    }

    /// Changes that are due.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// The estimated time of a packet when its access point is alone. Units: seconds.
    #[must_use]
    pub fn packet_time(&self, access_point: Index) -> Option<f64> {
        self.points[access_point].packet_time
    }

    /// What packets through an access point take of its channel, to be told.
    #[must_use]
    pub fn airtime(&self, access_point: Index, channel: u16, now: Instant) -> Option<Shared> {
        let point = &self.points[access_point];
        let full = Duration::from_secs_f64(point.packet_time?);
        let others = self.others_left(now) / OTHERS_FADE.as_secs_f64();
        Some(Shared {
            channel,
            others: Shared::parts(others),
            empty: Duration::from_secs_f64(point.empty_time),
            full,
        })
    }

    /// How an access point delivers.
    #[must_use]
    pub fn delivery(&self, access_point: Index) -> &Delivery {
        &self.points[access_point].delivery
    }

    /// Whether the subflow of an access point is a backup.
    #[must_use]
    pub fn is_backup(&self, access_point: Index) -> bool {
        self.points[access_point].is_backup
    }

    /// What passed an access point.
    #[must_use]
    pub fn counters(&self, access_point: Index) -> Counters {
        self.points[access_point].counters
    }

    /// The share of an access point's packets that is marked.
    #[must_use]
    pub fn marking_rate(&self, access_point: Index, now: Instant) -> f64 {
        let point = &self.points[access_point];
        let is_fresh = |point: &Point| {
            point
                .heard
                .is_some_and(|heard| now.since(heard) <= self.config.memory)
        };
        let best = self
            .points
            .iter()
            .filter(|point| is_fresh(point))
            .filter_map(|point| point.packet_time)
            .fold(f64::INFINITY, f64::min);
        let (Some(time), Some(round_trip)) = (point.packet_time, point.round_trip) else {
            return 0.0;
        };
        // Three standard deviations of an estimate from so many frames, of which a tenth fail at
        // first.
        let error = f64::from(point.frames.max(1)).sqrt().recip();
        if !is_fresh(point) || time <= (self.config.threshold + error) * best {
            return 0.0;
        }
        marking_rate(time, round_trip.as_secs_f64())
    }

    fn choose_backups(&mut self) {
        // A regular one defends its place by the threshold; an unknown one comes after all that are
        // known, in the order of joining.
        let rank = |point: &Point| {
            let time = point.packet_time.unwrap_or(f64::INFINITY);
            if point.is_backup {
                time * self.config.threshold
            } else {
                time
            }
        };
        let mut order: Vec<Index> = (0..self.points.len())
            .filter(|index| !self.points[*index].is_gone)
            .collect();
        order.sort_by(|a, b| {
            let (a, b) = (&self.points[*a], &self.points[*b]);
            rank(a).total_cmp(&rank(b)).then(a.is_backup.cmp(&b.is_backup))
        });
        for (place, access_point) in order.into_iter().enumerate() {
            let is_backup = place >= self.config.regular;
            if self.points[access_point].is_backup != is_backup {
                self.points[access_point].is_backup = is_backup;
                self.events.push_back(Event::Backup {
                    access_point,
                    is_backup,
                });
            }
        }
    }
}

impl Point {
    /// One of which nothing is known.
    fn new(config: &Config) -> Self {
        Self {
            delivery: Delivery::new(config.delivery),
            bit_time: 0.0,
            heard: None,
            packet_time: None,
            empty_time: 0.0,
            frames: 0,
            round_trip: None,
            is_backup: false,
            is_gone: false,
            counters: Counters::default(),
        }
    }

    fn assess(&mut self, config: &Config) {
        if self.delivery.counts().all() < config.least {
            return;
        }
        let times = self.delivery.estimate().and_then(|delivery| {
            let (rate, loss) = (1.0 / self.bit_time, 1.0 - delivery);
            let full = config.airtime.packet_time(rate, loss)?;
            Some((config.airtime.empty().packet_time(rate, loss)?, full))
        });
        // A window in which no first attempt came through says that the access point is bad, not
        // how bad.
        if let Some((empty, full)) = times {
            (self.packet_time, self.empty_time) = (Some(full), empty);
        }
        self.frames = self.delivery.counts().all();
    }
}

/// How long counts what others sent: as long as a few of the client's messages are apart.
const OTHERS_FADE: Duration = Duration::from_secs(2);
/// Frames over which rates are smoothed.
const SMOOTHING: f64 = 32.0;
