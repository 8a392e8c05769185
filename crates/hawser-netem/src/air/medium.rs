//! The shared medium: every station's queue, contention and radio, and what they do to each other.
//!
//! A station with a frame waits until it has heard nothing for an interval, counts down slots drawn at random, and sends; an answer that does not
//! come doubles the window it draws from. Frames that overlap at a receiver spoil each other there, unless one is much stronger. It starts silent.
//! It fails as radio does: a frame is given up after its last attempt, and a station that is tuned elsewhere or asleep hears nothing.
//!
//! ```text
//!            frame, medium idle for DIFS + backoff            answer
//!   contending ------------------------------> sending ------> (ACK) --+--> delivered: window reset
//!       ^  ^                                      |                    |
//!       |  +---- window doubled <-- no answer in time --> last attempt: given up, window reset
//!       +---------------------------- next frame --------------------------------------------+
//! ```
//!
//! Source: IEEE 802.11-2016 section 10.3 (DCF), 10.24 (block acknowledgement), 9.7 (aggregation). Deviates: a failed sender waits a DIFS from its
//! timeout on before it counts down, as ns-3 does; waves need no time to travel; EDCA is one class.
//! Units: power in dBm; lengths of frames include the MAC header and check sequence.
//! Cost: O(stations) an event, with no allocation once buffers have grown.

use std::collections::VecDeque;

use hawser_units::{Duration, Instant};

use super::phy::{ACK_LEN, BLOCK_ACK_LEN, CW_MAX, PhyRate, RTS_LEN, Standard};
use super::rate_control::RateControl;
use super::signal::{Signal, SignalProcess};
use super::station::{Exchange, Queued, Station};
use crate::Random;

/// Names a station of one medium.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StationId(pub u16);

/// What a station is like.
#[derive(Clone, Debug)]
pub struct StationConfig {
    /// Its generation.
    pub standard: Standard,
    /// The channel it is tuned to at first. Channels of different numbers do not hear each other.
    pub channel: u16,
    /// How often a frame is tried in all.
    pub attempts: u8,
    /// Frames that may wait; one more is refused.
    pub queue: usize,
    /// How it chooses rates.
    pub rate: RateControl,
    /// Frames of at least this many bytes are announced by RTS and CTS.
    pub rts_threshold: u32,
    /// Frames in one transmission, with block acknowledgement when more than one.
    pub aggregate: u16,
    /// Whether it reports every frame that it can read, also others' and repeated ones.
    pub monitor: bool,
}

impl StationConfig {
    /// A station of `standard` that sends at one rate: seven attempts, 400 frames of queue, no RTS, no aggregation.
    #[must_use]
    pub fn fixed(standard: Standard, channel: u16, rate: PhyRate) -> Self {
        Self {
            standard,
            channel,
            attempts: 7,
            queue: 400,
            rate: RateControl::fixed(rate),
            rts_threshold: u32::MAX,
            aggregate: 1,
            monitor: false,
        }
    }
}

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

/// A frame to send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outgoing<B> {
    /// To whom; `None` to everybody.
    pub to: Option<StationId>,
    /// What it carries.
    pub body: B,
    /// Bytes on the air, MAC header and check sequence included.
    pub len: u32,
    /// Whether it goes before all that have not been tried yet, and in spite of a full queue.
    pub urgent: bool,
}

/// A frame that a station could read.
#[derive(Clone, Debug, PartialEq)]
pub struct Reception<B> {
    /// Who sent it.
    pub from: StationId,
    /// To whom; `None` to everybody.
    pub to: Option<StationId>,
    /// What it carried.
    pub body: B,
    /// Counts the sender's frames to this destination; repeated with the frame.
    pub sequence: u16,
    /// It is not the first attempt.
    pub retry: bool,
    /// Its modulation.
    pub rate: PhyRate,
}

/// What the medium tells.
#[derive(Clone, Debug, PartialEq)]
pub enum AirEvent<B> {
    /// A frame arrived where it was meant to, once, and in the order of sending as far as block acknowledgement keeps it.
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
    /// It does not follow it: it is sending, asleep, elsewhere or busy with another one, or could not recognise the preamble.
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
/// Drive it as every machine of this level: [`Self::handle_packet`], [`Self::handle_timeout`], then drain [`Self::poll_event`] and sleep until
/// [`Self::poll_timeout`].
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

    /// Tunes a station to a channel; it is deaf and mute for `takes`. An exchange under way is broken off: its frames count an attempt more.
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

    /// Everything of one instant: ends before starts, and stations whose countdown ends now start together.
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

    /// A station takes what it sends next, and sends or announces it.
    fn begin(&mut self, at: usize, now: Instant) {
        let station = &mut self.stations[at];
        station.backoff = 0;
        let Some(first) = station.queue.front() else {
            return;
        };
        let (to, attempts) = (first.to, first.attempts);
        if let Some(to) = to {
            let template = &station.config.rate;
            let control = station.rates.entry(to).or_insert_with(|| template.clone());
            station.rate = control.choose(attempts, &mut self.random);
        }
        station.gather();
        let bytes: u32 = station.head.iter().map(|frame| frame.len).sum();
        match to {
            Some(to) if bytes >= station.config.rts_threshold => {
                let standard = station.config.standard;
                let rate = station.rate.response();
                let cts = rate.airtime(standard, ACK_LEN);
                station.exchange = Exchange::Sending;
                let sent = Transmission {
                    from: at,
                    to: Some(usize::from(to.0)),
                    kind: Kind::Rts,
                    channel: station.channel,
                    start: now,
                    end: now + rate.airtime(standard, RTS_LEN),
                    rate,
                    reserves: standard.sifs() * 3 + cts + station.burst() + station.answer_time(),
                    arrived: 0,
                    clarity: Vec::new(),
                };
                self.transmit(sent, now);
            }
            _ => self.send_head(at, now),
        }
    }

    fn send_head(&mut self, at: usize, now: Instant) {
        let station = &mut self.stations[at];
        station.exchange = Exchange::Sending;
        let to = station.head.first().and_then(|frame| frame.to);
        let sent = Transmission {
            from: at,
            to: to.map(|to| usize::from(to.0)),
            kind: if to.is_some() { Kind::Data } else { Kind::Broadcast },
            channel: station.channel,
            start: now,
            end: now + station.burst(),
            rate: station.rate_of_head(),
            reserves: match to {
                Some(_) => station.config.standard.sifs() + station.answer_time(),
                None => Duration::ZERO,
            },
            arrived: 0,
            clarity: Vec::new(),
        };
        self.transmit(sent, now);
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
        };
        self.transmit(sent, now);
    }

    /// Whether a transmission keeps a station from sending: one that it senses, or its own.
    fn senses(&self, at: usize, sent: &Transmission) -> bool {
        at == sent.from
            || self.stations[at].channel == sent.channel && self.signals[sent.from][at].is_sensed()
    }

    /// Puts a transmission on the air: whoever senses it stops counting, and what overlaps with it at a receiver suffers.
    fn transmit(&mut self, mut sent: Transmission, now: Instant) {
        let from = sent.from;
        sent.clarity = self.spare.pop().unwrap_or_default();
        sent.clarity.clear();
        sent.clarity.resize(self.stations.len(), Clarity::Clear);
        for at in 0..self.stations.len() {
            sent.clarity[at] = Clarity::Missed;
            if !self.senses(at, &sent) {
                continue;
            }
            let station = &mut self.stations[at];
            if station.sensed == 0 {
                station.settle(now);
            }
            station.sensed += 1;
            if at == from || station.away_until > now || self.active.iter().any(|other| other.from == at) {
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

    /// A transmission reaches a station that listens: the station follows it, or goes on with what it was following.
    fn meet(&mut self, sent: &mut Transmission, at: usize, now: Instant) {
        let power = self.signals[sent.from][at].power();
        sent.clarity[at] = Clarity::Clear;
        for other in &mut self.active {
            if other.channel != sent.channel || !self.signals[other.from][at].is_sensed() {
                continue;
            }
            let margin = power - self.signals[other.from][at].power();
            let outlasts = other.end > now + PREAMBLE;
            let was_followed = other.clarity[at] != Clarity::Missed;
            if margin >= CAPTURE {
                // So much stronger that the station turns to it.
                other.clarity[at] = Clarity::Missed;
            } else if was_followed && -margin < CAPTURE && now < other.start + PREAMBLE {
                // Two preambles at once: neither is recognised.
                other.clarity[at] = Clarity::Missed;
                sent.clarity[at] = Clarity::Missed;
            } else if was_followed {
                if -margin < CAPTURE {
                    other.clarity[at] = Clarity::Spoiled;
                }
                sent.clarity[at] = Clarity::Missed;
            } else if outlasts {
                sent.clarity[at] = Clarity::Missed;
            }
        }
    }

    /// A transmission ends: stations sense it no longer, and those it was clear for read it.
    fn on_end(&mut self, mut sent: Transmission, now: Instant) {
        let mut is_read = sent.to.is_none();
        for at in 0..self.stations.len() {
            if !self.senses(at, &sent) {
                continue;
            }
            let station = &mut self.stations[at];
            station.sensed = station.sensed.saturating_sub(1);
            station.idle_since = now;
            if sent.clarity[at] == Clarity::Missed {
                continue;
            }
            let is_for_me = sent.to == Some(at);
            let is_clear = sent.clarity[at] == Clarity::Clear
                && (sent.kind == Kind::Data || !self.is_lost(&sent, at, 1));
            self.stations[at].is_confused = !is_clear;
            if is_clear && is_for_me {
                is_read = self.on_received(&sent, at, now);
                self.stations[at].is_confused = !is_read;
            } else if is_clear {
                let station = &mut self.stations[at];
                station.reserved_until = station.reserved_until.max(now + sent.reserves);
                self.on_overheard(&sent, at);
            }
        }
        if let Some(log) = &mut self.log {
            log.push(Transmitted {
                from: StationId(sent.from as u16),
                to: sent.to.map(|to| StationId(to as u16)),
                kind: sent.kind,
                channel: sent.channel,
                start: sent.start,
                end: sent.end,
                read: is_read,
            });
        }
        self.on_sent(sent.from, sent.kind, now);
        self.spare.push(std::mem::take(&mut sent.clarity));
    }

    /// What the sender does when its own transmission has ended.
    fn on_sent(&mut self, from: usize, kind: Kind, now: Instant) {
        let station = &mut self.stations[from];
        match kind {
            Kind::Data | Kind::Rts => {
                station.exchange = Exchange::Awaiting(now + station.config.standard.answer_timeout());
            }
            Kind::Broadcast => {
                for frame in std::mem::take(&mut station.head) {
                    self.events.push_back(AirEvent::Finished {
                        by: StationId(from as u16),
                        to: None,
                        body: frame.body,
                        attempts: 1,
                        acknowledged: true,
                    });
                }
                self.end_exchange(from, true, now);
            }
            Kind::Ack | Kind::BlockAck | Kind::Cts => {}
        }
    }

    /// Whether an attempt is lost to noise.
    fn is_lost(&mut self, sent: &Transmission, at: usize, bytes: u32) -> bool {
        let is_data = sent.kind == Kind::Data;
        let loss = self.signals[sent.from][at].loss(sent.rate, bytes, is_data);
        self.random.chance(loss)
    }

    /// A station has read what was meant for it. Returns whether anything of it was readable.
    fn on_received(&mut self, sent: &Transmission, at: usize, now: Instant) -> bool {
        let sifs = self.stations[at].config.standard.sifs();
        let answer = |kind, arrived| Answer {
            at: now + sifs,
            from: at,
            to: sent.from,
            kind,
            rate: sent.rate.response(),
            arrived,
        };
        match sent.kind {
            Kind::Data => {
                let arrived = self.receive_frames(sent, at);
                let count = self.stations[sent.from].head.len();
                if arrived != 0 {
                    let kind = if count > 1 { Kind::BlockAck } else { Kind::Ack };
                    self.answers.push(answer(kind, arrived));
                    self.extend_wait(sent.from, kind, sent.rate, now);
                }
                arrived != 0
            }
            Kind::Rts => {
                if self.stations[at].reserved_until <= now {
                    self.answers.push(answer(Kind::Cts, 0));
                    self.extend_wait(sent.from, Kind::Cts, sent.rate, now);
                }
                true
            }
            Kind::Cts => {
                self.stations[at].exchange = Exchange::Cleared(now + sifs);
                true
            }
            Kind::Ack | Kind::BlockAck => {
                self.on_acknowledged(at, sent.arrived, now);
                true
            }
            Kind::Broadcast => true,
        }
    }

    /// The frames of a transmission one by one: which of them are readable.
    fn receive_frames(&mut self, sent: &Transmission, at: usize) -> u64 {
        let count = self.stations[sent.from].head.len();
        let oldest = self.stations[sent.from]
            .head
            .first()
            .and_then(|frame| frame.sequence);
        let mut arrived = 0;
        for index in 0..count {
            let bytes = self.stations[sent.from].head[index].len;
            if self.is_lost(sent, at, bytes) {
                continue;
            }
            arrived |= 1 << index;
            let frame = self.reception(sent, index);
            let station = &mut self.stations[at];
            let id = StationId(at as u16);
            if station.config.monitor {
                self.events.push_back(AirEvent::Heard {
                    at: id,
                    frame: frame.clone(),
                });
            }
            station.accept(frame, oldest.unwrap_or_default(), self.now, &mut self.released);
            self.pass_on(at);
        }
        arrived
    }

    fn pass_on(&mut self, at: usize) {
        let at = StationId(at as u16);
        let released = self.released.drain(..);
        self.events
            .extend(released.map(|frame| AirEvent::Delivered { at, frame }));
    }

    fn reception(&self, sent: &Transmission, index: usize) -> Reception<B> {
        let frame = &self.stations[sent.from].head[index];
        Reception {
            from: StationId(sent.from as u16),
            to: sent.to.map(|to| StationId(to as u16)),
            body: frame.body.clone(),
            sequence: frame.sequence.unwrap_or_default(),
            retry: frame.attempts > 0,
            rate: sent.rate,
        }
    }

    /// Broadcasts are for everybody; a monitor reads others' frames too.
    fn on_overheard(&mut self, sent: &Transmission, at: usize) {
        let id = StationId(at as u16);
        let monitor = self.stations[at].config.monitor;
        match sent.kind {
            Kind::Broadcast => {
                let frame = self.reception(sent, 0);
                self.events.push_back(AirEvent::Delivered { at: id, frame });
            }
            Kind::Data if monitor => {
                for index in 0..self.stations[sent.from].head.len() {
                    let bytes = self.stations[sent.from].head[index].len;
                    if !self.is_lost(sent, at, bytes) {
                        let frame = self.reception(sent, index);
                        self.events.push_back(AirEvent::Heard { at: id, frame });
                    }
                }
            }
            Kind::Data | Kind::Ack | Kind::BlockAck | Kind::Rts | Kind::Cts => {}
        }
    }

    /// The sender will notice that an answer has begun: it waits for its end.
    fn extend_wait(&mut self, sender: usize, kind: Kind, rate: PhyRate, now: Instant) {
        let standard = self.stations[sender].config.standard;
        let bytes = if kind == Kind::BlockAck {
            BLOCK_ACK_LEN
        } else {
            ACK_LEN
        };
        let end = now + standard.sifs() + rate.response().airtime(standard, bytes);
        self.stations[sender].answer_ends = Some(end + Duration::from_nanos(1));
    }

    fn on_acknowledged(&mut self, at: usize, arrived: u64, now: Instant) {
        let station = &mut self.stations[at];
        if station.head.is_empty() {
            return;
        }
        self.settle_frames(at, arrived, now);
        self.end_exchange(at, true, now);
    }

    /// No answer came.
    fn on_silence(&mut self, at: usize, now: Instant) {
        self.stations[at].hold_until = now;
        self.settle_frames(at, 0, now);
        self.end_exchange(at, false, now);
    }

    /// Reports the frames of an exchange that are done with; the others go back to the queue.
    fn settle_frames(&mut self, at: usize, arrived: u64, now: Instant) {
        let station = &mut self.stations[at];
        let (rate, tried) = (station.rate, station.head.len() as u32);
        if let Some(control) = station.head[0].to.and_then(|to| station.rates.get_mut(&to)) {
            control.on_outcome(rate, tried, arrived.count_ones(), now);
        }
        let mut kept = Vec::new();
        for (index, mut frame) in station.head.drain(..).enumerate() {
            frame.attempts += 1;
            let acknowledged = arrived & (1 << index) != 0;
            if acknowledged || frame.attempts >= station.config.attempts {
                self.events.push_back(AirEvent::Finished {
                    by: StationId(at as u16),
                    to: frame.to,
                    attempts: frame.attempts,
                    acknowledged,
                    body: frame.body,
                });
            } else {
                kept.push(frame);
            }
        }
        station.has_given_up = kept.is_empty();
        station.head = kept;
        station.put_back();
    }

    /// An exchange is over: the next backoff is drawn.
    fn end_exchange(&mut self, at: usize, has_succeeded: bool, now: Instant) {
        let station = &mut self.stations[at];
        let smallest = station.config.standard.cw_min();
        station.exchange = Exchange::None;
        station.answer_ends = None;
        station.window = if has_succeeded || station.has_given_up {
            smallest
        } else {
            (station.window * 2 + 1).min(CW_MAX)
        };
        station.draw(&mut self.random);
        station.wanted_at = now;
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

/// A frame this much stronger than all that overlaps with it is read all the same. Units: dB.
///
/// Source: Lee et al. 2007 (message-in-message capture needs about 10 dB on OFDM receivers).
const CAPTURE: f32 = 10.0;
/// How long a receiver needs to recognise a preamble, during which an overlap may end without harm.
///
/// Source: IEEE 802.11-2016 section 17.3.10.6 (4 us).
const PREAMBLE: Duration = Duration::from_micros(4);

#[cfg(test)]
mod tests;
