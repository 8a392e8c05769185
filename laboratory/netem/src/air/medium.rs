//! The shared medium: every station's queue, contention and radio, and what they do to each other.
//!
//! A station with a frame waits until it has heard nothing for an interval, counts down slots drawn
//! at random, and sends; an answer that does not come doubles the window it draws from. Frames that
//! overlap at a receiver spoil each other there, unless one is much stronger. It starts silent. It
//! fails as radio does: a frame is given up after its last attempt, and a station that is tuned
//! elsewhere or asleep hears nothing.
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
//! Deviates: a failed sender waits a DIFS from its timeout on before it counts down, as ns-3 does;
//! waves need no time to travel; EDCA is one class.
//! Units: power in dBm; lengths of frames include the MAC header and check sequence.
//! Cost: O(stations) an event, with no allocation once buffers have grown.

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

/// What a transmission carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A unicast frame, or several to one destination.
    Data,
    /// To everybody, unanswered.
    Broadcast,
    /// The answer to one frame.
    Ack,
    /// The answer to several.
    BlockAck,
    /// The announcement of a frame.
    Rts,
    /// Leave to send it.
    Cts,
}

/// What the medium tells.
#[derive(Clone, Debug, PartialEq)]
pub enum AirEvent<B> {
    /// A frame arrived where it was meant to, once, and in the order of sending as far as block
    /// acknowledgement keeps it.
    Delivered {
        /// Where.
        at: StationId,
        /// What.
        frame: Reception<B>,
    },
    /// A monitoring station read a frame, which may be meant for others or repeated.
    Heard {
        /// Where.
        at: StationId,
        /// What.
        frame: Reception<B>,
    },
    /// A station is done with a frame.
    Finished {
        /// Whose.
        by: StationId,
        /// For whom; `None` for everybody.
        to: Option<StationId>,
        /// What.
        body: B,
        /// How the last attempt was modulated.
        rate: PhyRate,
        /// How often it was sent.
        attempts: u8,
        /// Whether an acknowledgement came. A broadcast counts as acknowledged.
        acknowledged: bool,
    },
}

/// One transmission, for a picture of the air.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Transmitted {
    /// Who sent.
    pub from: StationId,
    /// To whom; `None` to everybody.
    pub to: Option<StationId>,
    /// What.
    pub kind: Kind,
    /// On which channel.
    pub channel: u16,
    /// When it began.
    pub start: Instant,
    /// When it ended.
    pub end: Instant,
    /// Whether the receiver could read it.
    pub read: bool,
}

/// What a station makes of a transmission.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Clarity {
    /// It follows it, and can read it so far.
    Clear,
    /// It follows it, but something has overlapped.
    Spoiled,
    /// It does not follow it: it is sending, asleep, elsewhere or busy with another one, or could
    /// not recognise the preamble.
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
    /// How long the medium is reserved after the end.
    reserves: Duration,
    /// Of an answer: which frames of the transmission before it arrived.
    arrived: u64,
    /// By station.
    clarity: Vec<Clarity>,
    /// When something has overlapped with it at its receiver.
    harmed: Option<(Instant, Instant)>,
}

impl Transmission {
    /// Something overlaps with it at a station.
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

/// Radio between stations.
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
    /// Pairs of channels of which each is noise on the other.
    overlaps: Vec<(u16, u16)>,
    random: Random,
    now: Instant,
}

impl<B: Clone> Air<B> {
    /// A silent medium without stations.
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

    /// Adds a station, which hears nobody and is heard by nobody until [`Self::set_signal`].
    pub fn add_station(&mut self, config: StationConfig) -> StationId {
        let id = StationId(self.stations.len() as u16);
        self.stations.push(Station::new(config, self.now));
        for row in &mut self.signals {
            row.push(SignalProcess::default());
        }
        let row = self.stations.iter().map(|_| SignalProcess::default());
        self.signals.push(row.collect());
        // It comes too late for what is on the air already.
        for sent in &mut self.active {
            sent.clarity.push(Clarity::Missed);
        }
        id
    }

    /// Sets how `to` receives what `from` sends, from now on.
    pub fn set_signal(&mut self, from: StationId, to: StationId, signal: Signal) {
        let at = usize::from(to.0);
        self.signals[usize::from(from.0)][at].set(signal);
        // What is on the air may come into reach, or leave it.
        let sensed = self.active.iter().filter(|sent| self.senses(at, sent)).count();
        let station = &mut self.stations[at];
        if station.sensed == 0 && sensed > 0 {
            station.settle(self.now);
        } else if station.sensed > 0 && sensed == 0 {
            station.idle_since = self.now;
        }
        station.sensed = sensed;
    }

    /// Sets it in both directions.
    pub fn set_signals(&mut self, a: StationId, b: StationId, signal: &Signal) {
        self.set_signal(a, b, signal.clone());
        self.set_signal(b, a, signal.clone());
    }

    /// Says that what is sent on either channel is noise on the other, as where a 40 MHz channel
    /// covers part of a neighbour's.
    ///
    /// Noise keeps a station from sending only where it is strong, because nobody can recognise its
    /// preamble, and spoils what it overlaps with.
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

    /// What was recorded so far.
    #[must_use]
    pub fn log(&self) -> &[Transmitted] {
        self.log.as_deref().unwrap_or_default()
    }

    /// The channel a station is tuned to.
    #[must_use]
    pub fn channel(&self, station: StationId) -> u16 {
        self.stations[usize::from(station.0)].channel
    }

    /// Frames that wait at a station, those under way included.
    #[must_use]
    pub fn queued(&self, station: StationId) -> usize {
        let station = &self.stations[usize::from(station.0)];
        station.queue.len() + station.head.len()
    }

    /// Whether a station is in the middle of an exchange: retuning would lose its answer.
    #[must_use]
    pub fn is_engaged(&self, station: StationId) -> bool {
        let at = usize::from(station.0);
        self.stations[at].exchange != Exchange::None
            || self.active.iter().any(|sent| sent.from == at)
            || self.answers.iter().any(|answer| answer.from == at)
    }

    /// Tunes a station to a channel; it is deaf and mute for `takes`. An exchange under way is
    /// broken off: its frames count an attempt more.
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

    /// Takes back what waits at a station for `to`; what is under way stays.
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
    /// The queue is full: the body comes back.
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

    /// When something happens next; `None`: not by itself.
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

    /// Lets time pass.
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

    /// The next thing that happened.
    pub fn poll_event(&mut self) -> Option<AirEvent<B>> {
        self.events.pop_front()
    }

    /// Everything of one instant: ends before starts, and stations whose countdown ends now start
    /// together.
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

    /// Whether a transmission keeps a station from sending: one that it senses, or its own.
    fn senses(&self, at: usize, sent: &Transmission) -> bool {
        let signal = &self.signals[sent.from][at];
        at == sent.from
            || self.stations[at].channel == sent.channel && signal.is_sensed()
            || self.is_noise(at, sent) && signal.is_loud()
    }

    /// Whether a transmission is on a channel that overlaps with a station's.
    fn is_noise(&self, at: usize, sent: &Transmission) -> bool {
        let own = self.stations[at].channel;
        let is_pair =
            |(a, b): &(u16, u16)| (*a, *b) == (own, sent.channel) || (*b, *a) == (own, sent.channel);
        !self.overlaps.is_empty() && self.overlaps.iter().any(is_pair)
    }

    /// Puts a transmission on the air: whoever senses it stops counting, and what overlaps with it
    /// at a receiver suffers.
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

    /// What a station senses changes as its radio does; an exchange that it was in is broken off.
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
