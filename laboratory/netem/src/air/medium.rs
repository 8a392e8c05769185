//! Shared 802.11 medium: queue, contention and radio of every station, and interference.
//!
//! A station with a frame waits until the medium has been idle for an interval, counts down a
//! random number of slots, and sends; without an answer it doubles its contention window. Frames
//! that overlap at a receiver are unreadable there, unless one is much stronger. The medium starts
//! idle. It fails as radio does: a frame is given up after its last attempt, and a station that is
//! on another channel or asleep receives nothing.
//!
//! ```text
//!            frame, medium idle for DIFS + backoff            answer
//!   contending ------------------------------> sending ------> (ACK) --+--> delivered: window reset
//!       ^  ^                                      |                    |
//!       |  +---- window doubled <-- no answer in time --> last attempt: given up, window reset
//!       +---------------------------- next frame --------------------------------------------+
//! ```
//!
//! Source: IEEE 802.11-2016 section 10.3 (DCF), 10.24 (block acknowledgement), 9.7 (aggregation).
//! Deviates: after a failure, a sender waits a DIFS from its timeout before it counts down, as in
//! ns-3; there is no propagation delay; EDCA has one access category.
//! Units: power in dBm; lengths of frames include the MAC header and check sequence.
//! Cost: O(stations) per event, without allocation once buffers have grown.

use std::collections::VecDeque;

use hawser_units::{Duration, Instant};

use super::on_air::{Reception, StationConfig};
use super::phy::{ACK_LEN, BLOCK_ACK_LEN, PhyRate};
use super::signal::{Signal, SignalProcess};
use super::station::{Exchange, Queued, Station};
use super::{Outgoing, StationId};
use crate::Random;

mod exchange;
mod receiving;

/// Kind of a transmission.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Unicast frame, or several to one destination.
    Data,
    /// Broadcast without an answer.
    Broadcast,
    /// Acknowledgement of one frame.
    Ack,
    /// Acknowledgement of several frames.
    BlockAck,
    /// Request to send.
    Rts,
    /// Clear to send.
    Cts,
}

/// Event of the medium.
#[derive(Clone, Debug, PartialEq)]
pub enum AirEvent<B> {
    /// A frame arrived where it was meant to, once, and in the order of sending as far as block
    /// acknowledgement keeps it.
    Delivered {
        /// Receiving station.
        at: StationId,
        /// Frame.
        frame: Reception<B>,
    },
    /// A monitoring station has received a frame, possibly for another station or repeated.
    Heard {
        /// Receiving station.
        at: StationId,
        /// Frame.
        frame: Reception<B>,
    },
    /// A station has finished with a frame.
    Finished {
        /// Sending station.
        by: StationId,
        /// Destination; `None` for a broadcast.
        to: Option<StationId>,
        /// Contents.
        body: B,
        /// Modulation of the last attempt.
        rate: PhyRate,
        /// Number of attempts.
        attempts: u8,
        /// Set if the frame was acknowledged; always set for a broadcast.
        acknowledged: bool,
    },
}

/// A transmission, for a timeline.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Transmitted {
    /// Sending station.
    pub from: StationId,
    /// Destination; `None` for a broadcast.
    pub to: Option<StationId>,
    /// Kind of the transmission.
    pub kind: Kind,
    /// Channel.
    pub channel: u16,
    /// Start of the transmission.
    pub start: Instant,
    /// End of the transmission.
    pub end: Instant,
    /// Set if the receiver could read it.
    pub read: bool,
}

/// Reception of a transmission by a station.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Clarity {
    /// Followed and readable so far.
    Clear,
    /// Followed, but overlapped by another transmission.
    Spoiled,
    /// Missed: the station is sending, asleep, on another channel, receiving another
    /// transmission, or could not detect the preamble.
    Missed,
}

#[derive(Debug)]
struct Transmission {
    from: usize,
    to: Option<usize>,
    kind: Kind,
    channel: u16,
    start: Instant,
    end: Instant,
    rate: PhyRate,
    /// Reservation of the medium after the end of the transmission (NAV).
    reserves: Duration,
    /// Frames of the preceding transmission that this answer acknowledges, as a bitmap.
    arrived: u64,
    /// Reception by each station.
    clarity: Vec<Clarity>,
    /// Time of an overlap at the destination.
    harmed: Option<(Instant, Instant)>,
}

impl Transmission {
    /// Records an overlap at a station.
    fn spoil(&mut self, at: usize, from: Instant, until: Instant) {
        self.clarity[at] = Clarity::Spoiled;
        if self.to == Some(at) {
            let (first, last) = self.harmed.unwrap_or((from, until));
            self.harmed = Some((first.min(from), last.max(until)));
        }
    }
}

/// An answer that is due.
#[derive(Debug)]
struct Answer {
    at: Instant,
    from: usize,
    to: usize,
    kind: Kind,
    rate: PhyRate,
    arrived: u64,
}

/// The shared radio channel between stations.
///
/// Drive it as every machine of this level: [`Self::handle_packet`], [`Self::handle_timeout`], then
/// drain [`Self::poll_event`] and sleep until [`Self::poll_timeout`].
#[derive(Debug)]
pub struct Air<B> {
    stations: Vec<Station<B>>,
    /// `signals[from][to]`.
    signals: Vec<Vec<SignalProcess>>,
    active: Vec<Transmission>,
    answers: Vec<Answer>,
    events: VecDeque<AirEvent<B>>,
    log: Option<Vec<Transmitted>>,
    spare: Vec<Vec<Clarity>>,
    released: Vec<Reception<B>>,
    /// Pairs of channels that are noise to each other.
    overlaps: Vec<(u16, u16)>,
    random: Random,
    now: Instant,
}

impl<B: Clone> Air<B> {
    /// Creates an idle medium without stations.
    #[must_use]
    pub fn new(seed: u64, now: Instant) -> Self {
        Self {
            stations: Vec::new(),
            signals: Vec::new(),
            active: Vec::new(),
            answers: Vec::new(),
            events: VecDeque::new(),
            log: None,
            spare: Vec::new(),
            released: Vec::new(),
            overlaps: Vec::new(),
            random: Random::new(seed, "air"),
            now,
        }
    }

    /// Adds a station, which is isolated until [`Self::set_signal`].
    pub fn add_station(&mut self, config: StationConfig) -> StationId {
        let id = StationId(self.stations.len() as u16);
        self.stations.push(Station::new(config, self.now));
        for row in &mut self.signals {
            row.push(SignalProcess::default());
        }
        let row = self.stations.iter().map(|_| SignalProcess::default());
        self.signals.push(row.collect());
        // A new station cannot follow transmissions in progress.
        for sent in &mut self.active {
            sent.clarity.push(Clarity::Missed);
        }
        id
    }

    /// Sets the signal of `from` at `to`, from now on.
    pub fn set_signal(&mut self, from: StationId, to: StationId, signal: Signal) {
        let at = usize::from(to.0);
        self.signals[usize::from(from.0)][at].set(signal);
        // Transmissions in progress may come into range or leave it.
        let sensed = self.active.iter().filter(|sent| self.senses(at, sent)).count();
        let station = &mut self.stations[at];
        if station.sensed == 0 && sensed > 0 {
            station.settle(self.now);
        } else if station.sensed > 0 && sensed == 0 {
            station.idle_since = self.now;
        }
        station.sensed = sensed;
    }

    /// Sets a signal in both directions.
    pub fn set_signals(&mut self, a: StationId, b: StationId, signal: &Signal) {
        self.set_signal(a, b, signal.clone());
        self.set_signal(b, a, signal.clone());
    }

    /// Declares two channels as noise to each other, as when a 40 MHz channel covers part of
    /// another.
    ///
    /// Only strong noise keeps a station from sending, because its preamble is not detected; noise
    /// makes overlapping transmissions unreadable.
    ///
    /// Source: IEEE 802.11-2016 section 17.3.10.6 (20 dB between the thresholds of preamble and
    /// energy).
    pub fn set_overlap(&mut self, a: u16, b: u16) {
        self.overlaps.push((a, b));
    }

    /// Records transmissions from now on, for [`Self::log`].
    pub fn record(&mut self) {
        self.log.get_or_insert_default();
    }

    /// Returns the recorded transmissions.
    #[must_use]
    pub fn log(&self) -> &[Transmitted] {
        self.log.as_deref().unwrap_or_default()
    }

    /// Returns the channel of a station.
    #[must_use]
    pub fn channel(&self, station: StationId) -> u16 {
        self.stations[usize::from(station.0)].channel
    }

    /// Returns the number of a station's queued frames, including those in transmission.
    #[must_use]
    pub fn queued(&self, station: StationId) -> usize {
        let station = &self.stations[usize::from(station.0)];
        station.queue.len() + station.head.len()
    }

    /// Returns whether a station is in an exchange; retuning would lose its answer.
    #[must_use]
    pub fn is_engaged(&self, station: StationId) -> bool {
        let at = usize::from(station.0);
        self.stations[at].exchange != Exchange::None
            || self.active.iter().any(|sent| sent.from == at)
            || self.answers.iter().any(|answer| answer.from == at)
    }

    /// Tunes a station to a channel; it neither sends nor receives for `takes`. An exchange in
    /// progress is aborted, and its frames count one more attempt.
    pub fn tune(&mut self, station: StationId, channel: u16, takes: Duration, now: Instant) {
        self.handle_timeout(now);
        let at = usize::from(station.0);
        self.stations[at].channel = channel;
        self.stations[at].away_until = now + takes;
        self.on_radio_changed(at, now);
    }

    /// Puts a station's radio to sleep, or wakes it up.
    pub fn set_awake(&mut self, station: StationId, awake: bool, now: Instant) {
        self.handle_timeout(now);
        let at = usize::from(station.0);
        self.stations[at].away_until = if awake { now } else { Instant::FAR_FUTURE };
        self.on_radio_changed(at, now);
    }

    /// Removes and returns a station's queued frames for `to`; frames in transmission stay.
    pub fn take_back(&mut self, station: StationId, to: StationId) -> Vec<B> {
        let queue = &mut self.stations[usize::from(station.0)].queue;
        let (taken, kept): (VecDeque<_>, _) = std::mem::take(queue)
            .into_iter()
            .partition(|frame| frame.to == Some(to));
        *queue = kept;
        taken.into_iter().map(|frame| frame.body).collect()
    }

    /// Queues a frame of a station.
    ///
    /// # Errors
    /// Returns the body if the queue is full.
    pub fn handle_packet(&mut self, from: StationId, frame: Outgoing<B>, now: Instant) -> Result<(), B> {
        self.handle_timeout(now);
        let station = &mut self.stations[usize::from(from.0)];
        if station.queue.len() >= station.config.queue && !frame.urgent {
            return Err(frame.body);
        }
        if station.queue.is_empty() && station.exchange == Exchange::None {
            station.wanted_at = now;
            let has_counted = station.backoff_left(now) == 0;
            if has_counted && (station.sensed > 0 || station.ready() > now) {
                station.draw(&mut self.random);
            }
        }
        let urgent = frame.urgent;
        let frame = Queued {
            to: frame.to,
            body: frame.body,
            len: frame.len,
            sequence: None,
            attempts: 0,
        };
        if urgent {
            let tried = station
                .queue
                .iter()
                .take_while(|frame| frame.attempts > 0)
                .count();
            station.queue.insert(tried, frame);
        } else {
            station.queue.push_back(frame);
        }
        Ok(())
    }

    /// Returns when the next event is due; `None` without one.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Instant> {
        let next = self.next();
        (next != Instant::FAR_FUTURE).then_some(next)
    }

    fn next(&self) -> Instant {
        let ends = self.active.iter().map(|sent| sent.end);
        let answers = self.answers.iter().map(|answer| answer.at);
        let stations = self.stations.iter().map(Station::due);
        let next = ends.chain(answers).chain(stations).min();
        next.unwrap_or(Instant::FAR_FUTURE)
    }

    /// Handles all events until `now`.
    pub fn handle_timeout(&mut self, now: Instant) {
        loop {
            let next = self.next();
            if next > now || next == Instant::FAR_FUTURE {
                break;
            }
            self.now = self.now.max(next);
            self.step(self.now);
        }
        self.now = self.now.max(now);
    }

    /// Returns the next event.
    pub fn poll_event(&mut self) -> Option<AirEvent<B>> {
        self.events.pop_front()
    }

    /// Processes all events of one instant: ends of transmissions before starts; stations whose
    /// countdown ends at this instant start together.
    fn step(&mut self, now: Instant) {
        while let Some(index) = self.active.iter().position(|sent| sent.end <= now) {
            let sent = self.active.remove(index);
            self.on_end(sent, now);
        }
        while let Some(index) = self.answers.iter().position(|answer| answer.at <= now) {
            let answer = self.answers.remove(index);
            self.send_answer(&answer, now);
        }
        for at in 0..self.stations.len() {
            if self.stations[at].release_at <= now {
                self.stations[at].release(&mut self.released);
                self.pass_on(at);
            }
        }
        let starting: Vec<_> = (0..self.stations.len())
            .filter(|at| self.stations[*at].exchange_due() <= now)
            .collect();
        for at in starting {
            match self.stations[at].exchange {
                Exchange::None => self.begin(at, now),
                Exchange::Cleared(_) => self.send_head(at, now),
                Exchange::Awaiting(_) => self.on_silence(at, now),
                Exchange::Sending => {}
            }
        }
    }

    fn send_answer(&mut self, answer: &Answer, now: Instant) {
        let station = &self.stations[answer.from];
        if station.away_until > now || station.exchange == Exchange::Sending {
            return;
        }
        let standard = station.config.standard;
        let bytes = if answer.kind == Kind::BlockAck {
            BLOCK_ACK_LEN
        } else {
            ACK_LEN
        };
        let asker = &self.stations[answer.to];
        let sent = Transmission {
            from: answer.from,
            to: Some(answer.to),
            kind: answer.kind,
            channel: station.channel,
            start: now,
            end: now + answer.rate.airtime(standard, bytes),
            rate: answer.rate,
            reserves: match answer.kind {
                Kind::Cts => standard.sifs() * 2 + asker.burst() + asker.answer_time(),
                Kind::Ack | Kind::BlockAck | Kind::Data | Kind::Broadcast | Kind::Rts => Duration::ZERO,
            },
            arrived: answer.arrived,
            clarity: Vec::new(),
            harmed: None,
        };
        self.transmit(sent, now);
    }

    /// Returns whether a transmission keeps a station from sending: its own, or one that it senses.
    fn senses(&self, at: usize, sent: &Transmission) -> bool {
        let signal = &self.signals[sent.from][at];
        at == sent.from
            || self.stations[at].channel == sent.channel && signal.is_sensed()
            || self.is_noise(at, sent) && signal.is_loud()
    }

    /// Returns whether a transmission is on a channel that overlaps with a station's.
    fn is_noise(&self, at: usize, sent: &Transmission) -> bool {
        let own = self.stations[at].channel;
        let is_pair =
            |(a, b): &(u16, u16)| (*a, *b) == (own, sent.channel) || (*b, *a) == (own, sent.channel);
        !self.overlaps.is_empty() && self.overlaps.iter().any(is_pair)
    }

    /// Starts a transmission: stations that sense it stop their countdown, and overlapping
    /// transmissions interfere.
    fn transmit(&mut self, mut sent: Transmission, now: Instant) {
        let from = sent.from;
        sent.clarity = self.spare.pop().unwrap_or_default();
        sent.clarity.clear();
        sent.clarity.resize(self.stations.len(), Clarity::Clear);
        for at in 0..self.stations.len() {
            sent.clarity[at] = Clarity::Missed;
            let is_noise = self.is_noise(at, &sent);
            if is_noise {
                self.disturb(&sent, at);
            }
            if !self.senses(at, &sent) {
                continue;
            }
            let station = &mut self.stations[at];
            if station.sensed == 0 {
                station.settle(now);
            }
            station.sensed += 1;
            if at == from
                || is_noise
                || station.away_until > now
                || self.active.iter().any(|other| other.from == at)
            {
                continue;
            }
            self.signals[from][at].advance(now, &mut self.random);
            self.meet(&mut sent, at, now);
        }
        for other in &mut self.active {
            other.clarity[from] = Clarity::Missed;
        }
        self.active.push(sent);
    }

    /// Updates what a station senses after a change of its radio; its exchange is aborted.
    fn on_radio_changed(&mut self, at: usize, now: Instant) {
        for sent in &mut self.active {
            sent.clarity[at] = Clarity::Missed;
        }
        self.answers.retain(|answer| answer.from != at);
        let is_sending = self.active.iter().any(|sent| sent.from == at);
        if self.stations[at].exchange != Exchange::None && !is_sending {
            self.on_silence(at, now);
        }
        let sensed = self.active.iter().filter(|sent| self.senses(at, sent)).count();
        let station = &mut self.stations[at];
        station.sensed = sensed;
        station.idle_since = now;
        station.is_confused = false;
    }
}

#[cfg(test)]
mod tests;
