//! Concurrent use of all access points of a channel: judges their efficiency, and signals it to a
//! remote sender by marks.
//!
//! The client has a subflow through every access point. It receives the frames of each one,
//! estimates the airtime of a packet through each one as the only sender, and marks a share of the
//! packets of access points that are clearly worse than the best, before IP receives them. The
//! sender's coupled congestion control then moves traffic to the better ones. With more than
//! [`Config::regular`] access points, the worst are backups.
//!
//! It starts without estimates, marks nothing and uses every access point. Steady state: estimates
//! follow a window of 500 ms. It fails towards not marking: an access point without an estimate is
//! neither marked nor used as a reference, and an estimate expires [`Config::memory`] after the
//! access point's last frame.
//!
//! ```text
//!   access point:  unknown -- frames read --> known <--> marked (packet time above threshold * best)
//!                     ^                         |
//!                     +-- not heard for long ---+
//!   subflow:       regular <-- among the best `regular` --> backup
//! ```
//!
//! Source: All-APs section 5. Deviates: an estimate outlives its window by some seconds, because an
//! access point that the sender no longer uses sends too few frames; a backup becomes regular only
//! if it is better by the threshold. Scope: one channel; for several, [`slots::Config`] divides the
//! radio's time.

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

/// Parameters of the comparison of access points.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Config {
    /// Parameters of the estimation of delivery.
    pub delivery: estimator::Config,
    /// Airtime of a packet in addition to its bits.
    pub airtime: Airtime,
    /// An access point is marked if its packet time exceeds the best one by this factor plus the
    /// error of an estimate from few frames.
    ///
    /// Source: All-APs section 5.2 (20 %). Deviates: the error is added; where the round trip is
    /// near the pole of eq. 5 a single wrong mark costs much.
    pub threshold: f64,
    /// Number of access points that transfer data; the others are backups.
    ///
    /// Source: All-APs section 6.2.1 (no more than 3 or 4).
    pub regular: usize,
    /// Lifetime of an estimate after the last frame.
    pub memory: Duration,
    /// Minimum number of frames in a window for a new estimate: with fewer, one repeated frame
    /// would make an access point worse by the threshold.
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

/// Access points of one channel, as one client receives them.
#[derive(Clone, Debug)]
pub struct AccessPoints {
    config: Config,
    points: Vec<Point>,
    events: VecDeque<Event>,
    random: Random,
    /// Recent airtime of others' frames, which decays, and the time of its last update. Units:
    /// seconds.
    others: (f64, Instant),
}

/// Index of an access point, in the order of [`AccessPoints::join`].
pub type Index = usize;

/// Action for the embedding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// Make the subflow through an access point a backup, or regular again.
    Backup {
        /// Index of the access point.
        access_point: Index,
        /// Marks the subflow as a backup.
        is_backup: bool,
    },
}

/// Counters of received packets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Total number of packets.
    pub passed: u64,
    /// Marked packets.
    pub marked: u64,
}

#[derive(Clone, Debug)]
struct Point {
    delivery: Delivery,
    /// Smoothed time per bit. Units: s/bit.
    bit_time: f64,
    heard: Option<Instant>,
    packet_time: Option<f64>,
    /// Packet time of a packet without bytes.
    empty_time: f64,
    /// Number of frames in the estimate.
    frames: u32,
    round_trip: Option<Duration>,
    is_backup: bool,
    is_gone: bool,
    counters: Counters,
}

impl AccessPoints {
    /// Creates a comparison without access points.
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

    /// Adds an access point, which is regular until a comparison makes it a backup.
    pub fn join(&mut self) -> Index {
        self.points.push(Point::new(&self.config));
        self.points.len() - 1
    }

    /// Removes an access point: it is no longer compared, and does not count as a regular one.
    pub fn leave(&mut self, access_point: Index) {
        self.points[access_point].is_gone = true;
        self.points[access_point].packet_time = None;
    }

    /// Handles the return to a departed access point: it is compared again, from the start.
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

    /// Returns whether the client has left an access point; `None` if it never joined.
    #[must_use]
    pub fn has_left(&self, access_point: Index) -> Option<bool> {
        self.points.get(access_point).map(|point| point.is_gone)
    }

    /// Handles a received frame of an access point, addressed to any station; `rate` in bit/s.
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

    /// Handles a frame of `bits` at `rate` (bit/s) that neither the client nor one of its access
    /// points sent.
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

    /// Handles a round-trip time through an access point, from TCP's timestamps. The minimum
    /// counts.
    pub fn handle_round_trip(&mut self, access_point: Index, sample: Duration) {
        let point = &mut self.points[access_point];
        point.round_trip = Some(point.round_trip.map_or(sample, |least| least.min(sample)));
    }

    /// Handles a packet of an access point before IP receives it. Returns whether to mark it.
    pub fn handle_packet(&mut self, access_point: Index, now: Instant) -> bool {
        let share = self.marking_rate(access_point, now);
        let is_marked = share > 0.0 && self.random.chance(share);
        let counters = &mut self.points[access_point].counters;
        counters.passed += 1;
        counters.marked += u64::from(is_marked);
        is_marked
    }

    /// Removes old frames and selects the backups again; to be called once per window.
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

    /// Returns the next change of a subflow.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// Returns the estimated airtime of a packet if its access point is the only sender. Units:
    /// seconds.
    #[must_use]
    pub fn packet_time(&self, access_point: Index) -> Option<f64> {
        self.points[access_point].packet_time
    }

    /// Returns the airtime of packets through an access point on its channel, to be reported.
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

    /// Returns the estimate of an access point's delivery.
    #[must_use]
    pub fn delivery(&self, access_point: Index) -> &Delivery {
        &self.points[access_point].delivery
    }

    /// Returns whether the subflow of an access point is a backup.
    #[must_use]
    pub fn is_backup(&self, access_point: Index) -> bool {
        self.points[access_point].is_backup
    }

    /// Returns the counters of an access point.
    #[must_use]
    pub fn counters(&self, access_point: Index) -> Counters {
        self.points[access_point].counters
    }

    /// Returns the share of an access point's packets that are marked.
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
        // Three standard deviations of an estimate from this many frames, of which a tenth fail at
        // the first attempt.
        let error = f64::from(point.frames.max(1)).sqrt().recip();
        if !is_fresh(point) || time <= (self.config.threshold + error) * best {
            return 0.0;
        }
        marking_rate(time, round_trip.as_secs_f64())
    }

    fn choose_backups(&mut self) {
        // A backup replaces a regular access point only if it is better by the threshold. Access
        // points without an estimate follow all others, in the order of joining.
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
    /// Creates the state of an unknown access point.
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
        // A window without a successful first attempt shows that the access point is bad, but not
        // how bad.
        if let Some((empty, full)) = times {
            (self.packet_time, self.empty_time) = (Some(full), empty);
        }
        self.frames = self.delivery.counts().all();
    }
}

/// Decay time of others' airtime: a few intervals of the client's messages. Source: our choice; a
/// longer time keeps a channel's load after a neighbour has ended, a shorter one lets a single
/// message decide.
const OTHERS_FADE: Duration = Duration::from_secs(2);
/// Frames over which rates are smoothed. Source: our choice, one or two aggregates of IEEE 802.11n;
/// fewer follow the rate control's probes, more follow a moving client late.
const SMOOTHING: f64 = 32.0;
