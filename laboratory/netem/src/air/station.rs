//! State of one station on the medium: its queue, its contention, its sequence numbers.

use std::collections::{BTreeMap, VecDeque};

use hawser_units::{Duration, Instant};

use super::StationId;
use super::on_air::{Reception, StationConfig};
use super::phy::{ACK_LEN, BLOCK_ACK_LEN, PhyRate};
use super::rate_control::RateControl;
use crate::Random;

#[derive(Debug)]
pub(super) struct Queued<B> {
    pub(super) to: Option<StationId>,
    pub(super) body: B,
    pub(super) len: u32,
    pub(super) sequence: Option<u16>,
    pub(super) attempts: u8,
}

/// State of a station's frame exchange.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Exchange {
    /// No exchange.
    None,
    /// Sending its own frame.
    Sending,
    /// Waits for an answer until this time.
    Awaiting(Instant),
    /// Sends the announced frame at this time.
    Cleared(Instant),
}

#[derive(Debug)]
pub(super) struct Station<B> {
    pub(super) config: StationConfig,
    pub(super) channel: u16,
    /// End of a time without sending or receiving, because of retuning or sleep.
    pub(super) away_until: Instant,
    pub(super) queue: VecDeque<Queued<B>>,
    /// Frames of the transmission in progress, taken from the queue.
    pub(super) head: Vec<Queued<B>>,
    pub(super) rate: PhyRate,
    pub(super) exchange: Exchange,
    /// End of the answer in progress.
    pub(super) answer_ends: Option<Instant>,
    /// Set if the last exchange left no frame to repeat.
    pub(super) has_given_up: bool,
    pub(super) window: u32,
    pub(super) backoff: u32,
    /// Number of transmissions that the station senses now.
    pub(super) sensed: usize,
    pub(super) idle_since: Instant,
    /// Set if the last reception was unreadable (EIFS).
    pub(super) is_confused: bool,
    pub(super) reserved_until: Instant,
    pub(super) hold_until: Instant,
    pub(super) wanted_at: Instant,
    pub(super) sequences: BTreeMap<StationId, u16>,
    pub(super) inbound: BTreeMap<StationId, Inbound<B>>,
    /// Time at which waiting frames are delivered without the missing earlier ones.
    pub(super) release_at: Instant,
    pub(super) rates: BTreeMap<StationId, RateControl>,
}

/// A receiver's state for one sender.
#[derive(Debug)]
pub(super) struct Inbound<B> {
    next: u16,
    held: BTreeMap<u16, Reception<B>>,
}

impl<B> Station<B> {
    pub(super) fn new(config: StationConfig, now: Instant) -> Self {
        Self {
            channel: config.channel,
            away_until: now,
            queue: VecDeque::new(),
            head: Vec::new(),
            rate: config.standard.lowest(),
            exchange: Exchange::None,
            answer_ends: None,
            has_given_up: false,
            window: config.standard.cw_min(),
            backoff: 0,
            sensed: 0,
            idle_since: now,
            is_confused: false,
            reserved_until: now,
            hold_until: now,
            wanted_at: now,
            sequences: BTreeMap::new(),
            inbound: BTreeMap::new(),
            release_at: Instant::FAR_FUTURE,
            rates: BTreeMap::new(),
            config,
        }
    }

    /// Returns when the station's slots begin to count if the medium stays idle until then.
    pub(super) fn ready(&self) -> Instant {
        let standard = self.config.standard;
        let quiet = if self.is_confused {
            standard.eifs()
        } else {
            standard.difs()
        };
        let idle = self.idle_since.max(self.away_until) + quiet;
        idle.max(self.reserved_until.max(self.hold_until) + standard.difs())
    }

    /// Returns when the station begins to send if the medium stays idle until then; far in the
    /// future if it has nothing to send or senses a transmission.
    pub(super) fn access(&self) -> Instant {
        let is_waiting = !self.queue.is_empty() && self.exchange == Exchange::None && self.sensed == 0;
        if !is_waiting || self.away_until == Instant::FAR_FUTURE {
            return Instant::FAR_FUTURE;
        }
        let counted = self.ready() + self.config.standard.slot() * self.backoff;
        counted.max(self.wanted_at)
    }

    /// Returns when the station's next event is due.
    pub(super) fn due(&self) -> Instant {
        self.release_at.min(self.exchange_due())
    }

    /// Returns when the station's contention or exchange has its next event.
    pub(super) fn exchange_due(&self) -> Instant {
        match self.exchange {
            Exchange::None => self.access(),
            Exchange::Sending => Instant::FAR_FUTURE,
            Exchange::Awaiting(until) => self.answer_ends.unwrap_or(until),
            Exchange::Cleared(at) => at,
        }
    }

    /// Returns the remaining slots if the medium was idle until now.
    pub(super) fn backoff_left(&self, now: Instant) -> u32 {
        let passed = now.since(self.ready()).as_nanos() / self.config.standard.slot().as_nanos();
        self.backoff
            .saturating_sub(u32::try_from(passed).unwrap_or(u32::MAX))
    }

    /// Subtracts the idle slots, when a transmission is sensed.
    pub(super) fn settle(&mut self, now: Instant) {
        self.backoff = self.backoff_left(now);
    }

    pub(super) fn draw(&mut self, random: &mut Random) {
        self.backoff = (random.uniform() * f64::from(self.window + 1)) as u32;
    }

    /// Takes the frames of the next transmission off the queue: the first one, and later ones to
    /// the same destination.
    pub(super) fn gather(&mut self) {
        let Some(first) = self.queue.front() else { return };
        let to = first.to;
        let most = if to.is_some() {
            usize::from(self.config.aggregate.clamp(1, MAX))
        } else {
            1
        };
        let mut bytes = 0;
        let mut at = 0;
        while at < self.queue.len() && self.head.len() < most {
            let frame = &self.queue[at];
            if frame.to != to {
                at += 1;
                continue;
            }
            bytes += frame.len + DELIMITER;
            let is_too_long = self.rate.airtime(self.config.standard, bytes) > LONGEST || bytes > LARGEST;
            if is_too_long && !self.head.is_empty() {
                break;
            }
            let mut frame = self.queue.remove(at).expect("the index is within the queue");
            if let (None, Some(to)) = (frame.sequence, to) {
                let next = self.sequences.entry(to).or_insert(0);
                frame.sequence = Some(*next);
                *next = (*next + 1) & SEQUENCE_MASK;
            }
            self.head.push(frame);
        }
    }

    /// Returns undelivered frames to their place in the queue.
    pub(super) fn put_back(&mut self) {
        while let Some(frame) = self.head.pop() {
            self.queue.push_front(frame);
        }
    }

    /// Returns the airtime of the frames in transmission.
    pub(super) fn burst(&self) -> Duration {
        let padding = if self.head.len() > 1 { DELIMITER } else { 0 };
        let bytes = self.head.iter().map(|frame| frame.len + padding).sum();
        self.rate_of_head().airtime(self.config.standard, bytes)
    }

    pub(super) fn rate_of_head(&self) -> PhyRate {
        match self.head.first() {
            Some(Queued { to: Some(_), .. }) => self.rate,
            _ => self.config.standard.beacon_rate(),
        }
    }

    /// Returns the airtime of the answer to the frames in transmission.
    pub(super) fn answer_time(&self) -> Duration {
        let bytes = if self.head.len() > 1 {
            BLOCK_ACK_LEN
        } else {
            ACK_LEN
        };
        self.rate.response().airtime(self.config.standard, bytes)
    }

    /// Handles a frame for this station; adds the frames that are deliverable in order to the
    /// output. `oldest`: the sender sends no earlier frame again.
    pub(super) fn accept(
        &mut self,
        frame: Reception<B>,
        oldest: u16,
        now: Instant,
        out: &mut Vec<Reception<B>>,
    ) {
        let inbound = self.inbound.entry(frame.from).or_insert_with(|| Inbound {
            next: oldest,
            held: BTreeMap::new(),
        });
        inbound.release_before(oldest, out);
        // A frame behind the next expected one is a duplicate.
        if distance(inbound.next, frame.sequence) < WINDOW {
            inbound.held.insert(frame.sequence, frame);
        }
        while let Some(frame) = inbound.held.remove(&inbound.next) {
            inbound.next = (inbound.next + 1) & SEQUENCE_MASK;
            out.push(frame);
        }
        let is_waiting = self.inbound.values().any(|inbound| !inbound.held.is_empty());
        self.release_at = match (is_waiting, self.release_at) {
            (false, _) => Instant::FAR_FUTURE,
            (true, Instant::FAR_FUTURE) => now + REORDER,
            (true, since) => since,
        };
    }

    /// Delivers waiting frames without the missing earlier ones.
    pub(super) fn release(&mut self, out: &mut Vec<Reception<B>>) {
        self.release_at = Instant::FAR_FUTURE;
        for inbound in self.inbound.values_mut() {
            if let Some(last) = inbound
                .held
                .values()
                .map(|frame| frame.sequence)
                .max_by_key(|sequence| distance(inbound.next, *sequence))
            {
                inbound.release_before((last + 1) & SEQUENCE_MASK, out);
            }
        }
    }
}

impl<B> Inbound<B> {
    fn release_before(&mut self, oldest: u16, out: &mut Vec<Reception<B>>) {
        if distance(self.next, oldest) >= WINDOW {
            return;
        }
        while self.next != oldest {
            out.extend(self.held.remove(&self.next));
            self.next = (self.next + 1) & SEQUENCE_MASK;
        }
    }
}

/// Returns the distance from `from` to `to`, modulo the sequence space.
fn distance(from: u16, to: u16) -> u16 {
    to.wrapping_sub(from) & SEQUENCE_MASK
}

/// Mask of sequence numbers, which have 12 bits (IEEE 802.11-2016 section 9.2.4.4.2).
const SEQUENCE_MASK: u16 = 0xfff;
/// Distance below which sequence numbers ahead are new. Source: half of the sequence space.
const WINDOW: u16 = 2048;
/// Maximum number of frames in one block acknowledgement (IEEE 802.11-2016 section 9.3.1.9.3).
const MAX: u16 = 64;
/// Overhead of each frame in an aggregate. Source: a delimiter of 4 bytes and 2 bytes of padding on
/// average (IEEE 802.11-2016 section 9.7.1). Units: bytes.
const DELIMITER: u32 = 6;
/// Maximum airtime of an aggregate at every rate. Source: the limit of 4 ms in
/// drivers/net/wireless/ath/ath9k of Linux, a Wi-Fi 4 driver.
const LONGEST: Duration = Duration::from_millis(4);
/// Maximum size of an aggregate in HT (IEEE 802.11-2016 section 9.4.2.56.3). Units: bytes.
const LARGEST: u32 = 65_535;
/// Time for which a receiver waits for a missing frame.
///
/// Source: the reorder timeout of Linux's mac80211.
const REORDER: Duration = Duration::from_millis(100);
