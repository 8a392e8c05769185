//! Frames of real 802.11 stacks on the medium: who is meant by an address, who is on which channel,
//! and what a stack is told of a frame when it is done.
//!
//! A stack hands each frame over once; the medium makes the attempts, sets the retry bit of all but
//! the first, and says at the end how many it took and whether an acknowledgement came. Radios are
//! added when they first speak, and so are their addresses. It fails as radio does: a frame to an
//! address that nobody has is tried as often as any other, and given up.
//!
//! Scope: radios at the medium's own choice of rates, as where a card's firmware chooses.
//! Limitations: a radio is on one channel, the one it sent on last (or that
//! [`FrameMedium::handle_tuned`] says, which is asked of radios that frames are for); a frame that
//! waits while its radio moves is sent on the new channel. Frames carry no rate of their own, so
//! what a stack's own rate control wishes is not asked.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use hawser_units::{Duration, Instant};

use super::medium::{Air, AirEvent};
use super::on_air::{Reception, StationConfig};
use super::phy::PhyRate;
use super::signal::{FrameLoss, Signal};
use super::{Outgoing, StationId};

/// An address of the link layer.
pub type Address = [u8; 6];

/// A frame that a stack hands over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StackFrame {
    /// The radio that sends it, by the name that its stack has for it.
    pub radio: Address,
    /// Where it is sent. Units: MHz.
    pub frequency: u32,
    /// The frame from its header on, without check sequence.
    pub bytes: Vec<u8>,
    /// What the stack calls it.
    pub cookie: u64,
    /// Whether an acknowledgement is waited for.
    pub wants_ack: bool,
}

/// What stacks are told.
#[derive(Clone, Debug, PartialEq)]
pub enum MediumEvent {
    /// A radio reads a frame.
    Read {
        /// Which.
        radio: Address,
        /// Where. Units: MHz.
        frequency: u32,
        /// The frame, with the retry bit of this attempt.
        bytes: Vec<u8>,
        /// Its modulation.
        rate: PhyRate,
        /// Units: dBm.
        power: i32,
        /// The medium takes the radio to be on another channel. A stack that takes the frame
        /// nevertheless is there: [`FrameMedium::handle_tuned`].
        is_elsewhere: bool,
    },
    /// A radio is done with a frame.
    Done {
        /// Which.
        radio: Address,
        /// What its stack called it.
        cookie: u64,
        /// How the last attempt was modulated, or would have been.
        rate: PhyRate,
        /// How often it was sent; 0: the queue was full.
        attempts: u8,
        /// Whether an acknowledgement came.
        acknowledged: bool,
    },
}

/// What there is between radios, and what they are like.
#[derive(Clone, Debug)]
pub struct MediumConfig {
    /// Radios of which nothing else is said.
    pub station: StationConfig,
    /// These.
    pub stations: BTreeMap<Address, StationConfig>,
    /// Between radios of which nothing else is said.
    pub signal: Signal,
    /// Between these, in both directions.
    pub signals: Vec<(Address, Address, Signal)>,
    /// From the first of these to the second only, whatever the others say.
    pub towards: Vec<(Address, Address, Signal)>,
    /// Whether every radio reads the data of others too, as for monitor interfaces.
    pub overhear: bool,
    /// Whoever else is on the air.
    pub strangers: Vec<Stranger>,
    /// Channels of which each is noise on the other. Units: MHz.
    pub overlaps: Vec<(u32, u32)>,
}

/// Two stations without a stack, of which one sends to the other.
#[derive(Clone, Debug)]
pub struct Stranger {
    /// Both of them.
    pub station: StationConfig,
    /// Where they are. Units: MHz.
    pub frequency: u32,
    /// From one frame to the next.
    pub every: Duration,
    /// Of a frame, with its header and check sequence. Units: bytes.
    pub len: u32,
    /// It sends in the second half of each such period; `None`: all the time.
    pub period: Option<Duration>,
    /// Which radios of their channel they hear and are heard by, and how well; none: all, well.
    pub heard_by: Vec<(Address, Signal)>,
}

/// A medium for the frames of real stacks.
#[derive(Debug)]
pub struct FrameMedium {
    air: Air<Arc<Carried>>,
    config: MediumConfig,
    /// By number of the station, the stranger's included.
    radios: Vec<Radio>,
    owners: BTreeMap<Address, StationId>,
    /// In the order of the configuration's strangers.
    talks: Vec<Talk>,
    events: VecDeque<MediumEvent>,
}

#[derive(Debug)]
struct Radio {
    name: Address,
    frequency: u32,
    owner: Owner,
}

/// Who is behind a radio.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Owner {
    /// It hears nothing and is heard by nobody.
    Nobody,
    Stack,
    /// A stranger, by number.
    Stranger(usize),
}

/// A stranger's stations, and when it sends next.
#[derive(Debug)]
struct Talk {
    from: StationId,
    to: StationId,
    next: Instant,
}

#[derive(Debug, Default)]
struct Carried {
    cookie: u64,
    frequency: u32,
    bytes: Vec<u8>,
}

impl FrameMedium {
    /// A silent medium.
    #[must_use]
    pub fn new(mut config: MediumConfig, seed: u64, now: Instant) -> Self {
        let mut air = Air::new(seed, now);
        air.add_station(config.station.clone());
        for (one, other) in &config.overlaps {
            air.set_overlap(channel_of(*one), channel_of(*other));
        }
        let nobody = Radio {
            name: [0; 6],
            frequency: 0,
            owner: Owner::Nobody,
        };
        let strangers = std::mem::take(&mut config.strangers);
        let mut medium = Self {
            air,
            config,
            radios: vec![nobody],
            owners: BTreeMap::new(),
            talks: Vec::new(),
            events: VecDeque::new(),
        };
        for stranger in strangers {
            medium.add_stranger(stranger, now);
        }
        medium
    }

    /// Says that a radio answers to an address too.
    pub fn handle_address(&mut self, radio: Address, address: Address) {
        let station = self.station(radio);
        self.owners.insert(address, station);
    }

    /// Says which channel a radio is on.
    pub fn handle_tuned(&mut self, radio: Address, frequency: u32, now: Instant) {
        let station = self.station(radio);
        self.tune(station, frequency, now);
    }

    /// Takes a frame of a stack; what is too short to be one is done at once.
    pub fn handle_frame(&mut self, frame: StackFrame, now: Instant) {
        let station = self.station(frame.radio);
        let [receiver, transmitter] = [4, 10].map(|at| address_at(&frame.bytes, at));
        let Some(receiver) = receiver else {
            self.refuse(frame.radio, frame.cookie);
            return;
        };
        if let Some(transmitter) = transmitter {
            self.owners.insert(transmitter, station);
        }
        self.tune(station, frame.frequency, now);
        let is_for_all = receiver[0] & 1 == 1 || !frame.wants_ack;
        let to = self.owners.get(&receiver).copied().unwrap_or(STRANGER);
        if !is_for_all {
            self.ask_where(station, to, receiver, frame.frequency);
        }
        let outgoing = Outgoing {
            to: (!is_for_all).then_some(to),
            len: u32::try_from(frame.bytes.len()).unwrap_or(u32::MAX) + CHECK_SEQUENCE,
            // Beacons have a queue of their own, and other management is sent as voice is.
            urgent: frame.bytes[0] & TYPE == MANAGEMENT,
            body: Arc::new(Carried {
                cookie: frame.cookie,
                frequency: frame.frequency,
                bytes: frame.bytes,
            }),
        };
        if self.air.handle_packet(station, outgoing, now).is_err() {
            self.refuse(frame.radio, frame.cookie);
        }
        self.take_events();
    }

    /// When something happens next; `None`: not by itself.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Instant> {
        let talks = self.talks.iter().map(|talk| talk.next);
        talks.chain(self.air.poll_timeout()).min()
    }

    /// Lets time pass.
    pub fn handle_timeout(&mut self, now: Instant) {
        let strangers = &self.config.strangers;
        while let Some((talk, stranger)) = self
            .talks
            .iter_mut()
            .zip(strangers)
            .filter(|(talk, _)| talk.next <= now)
            .min_by_key(|(talk, _)| talk.next)
        {
            let at = talk.next;
            talk.next = at + stranger.every.max(SHORTEST);
            if !stranger.is_on(at) {
                continue;
            }
            let outgoing = Outgoing {
                to: Some(talk.to),
                len: stranger.len,
                urgent: false,
                body: Arc::default(),
            };
            // A full queue loses it, as anybody's.
            let _ = self.air.handle_packet(talk.from, outgoing, at);
        }
        self.air.handle_timeout(now);
        self.take_events();
    }

    /// The next thing that stacks are told.
    pub fn poll_event(&mut self) -> Option<MediumEvent> {
        self.events.pop_front()
    }

    /// The station of a radio, which is added when it is new.
    fn station(&mut self, name: Address) -> StationId {
        let known = self
            .radios
            .iter()
            .position(|radio| radio.owner == Owner::Stack && radio.name == name);
        if let Some(index) = known {
            return StationId(u16::try_from(index).expect("radios are few"));
        }
        let own = self.config.stations.get(&name);
        let mut station = own.unwrap_or(&self.config.station).clone();
        station.monitor |= self.config.overhear;
        let radio = Radio {
            name,
            frequency: 0,
            owner: Owner::Stack,
        };
        self.add(radio, station)
    }

    fn add(&mut self, radio: Radio, station: StationConfig) -> StationId {
        let new = self.air.add_station(station);
        for (index, other) in self.radios.iter().enumerate().skip(1) {
            let other_id = StationId(u16::try_from(index).expect("radios are few"));
            let signal = match (radio.owner, other.owner) {
                (Owner::Stack, Owner::Stack) => self.config.between(radio.name, other.name).clone(),
                (Owner::Stranger(stranger), Owner::Stack) => {
                    self.config.strangers[stranger].received_by(other.name)
                }
                (Owner::Stack, Owner::Stranger(stranger)) => {
                    self.config.strangers[stranger].received_by(radio.name)
                }
                _ => Signal::clear(),
            };
            self.air.set_signals(new, other_id, &signal);
            let ends = [
                (new, other_id, radio.name, other.name),
                (other_id, new, other.name, radio.name),
            ];
            for (from, to, sender, reader) in ends {
                let is_meant = |one: &&(Address, Address, Signal)| (one.0, one.1) == (sender, reader);
                if let Some((_, _, signal)) = self.config.towards.iter().find(is_meant) {
                    self.air.set_signal(from, to, signal.clone());
                }
            }
        }
        self.radios.push(radio);
        new
    }

    fn add_stranger(&mut self, stranger: Stranger, now: Instant) {
        let index = self.config.strangers.len();
        self.config.strangers.push(stranger.clone());
        let [from, to] = [0, 1].map(|_| {
            let radio = Radio {
                name: [0; 6],
                frequency: 0,
                owner: Owner::Stranger(index),
            };
            let station = self.add(radio, stranger.station.clone());
            self.tune(station, stranger.frequency, now);
            station
        });
        self.talks.push(Talk {
            from,
            to,
            // Not all in one instant.
            next: now + stranger.every.mul_f64(1.0 / (index as f64 + 2.0)),
        });
    }

    fn tune(&mut self, station: StationId, frequency: u32, now: Instant) {
        let radio = &mut self.radios[usize::from(station.0)];
        if radio.frequency != frequency {
            radio.frequency = frequency;
            self.air.tune(station, channel_of(frequency), Duration::ZERO, now);
            self.take_events();
        }
    }

    fn refuse(&mut self, radio: Address, cookie: u64) {
        self.events.push_back(MediumEvent::Done {
            radio,
            cookie,
            rate: self.config.station.standard.lowest(),
            attempts: 0,
            acknowledged: false,
        });
    }

    fn take_events(&mut self) {
        while let Some(event) = self.air.poll_event() {
            match event {
                AirEvent::Delivered { at, frame } => self.on_read(at, &frame),
                // To whom it is meant it is delivered too, once.
                AirEvent::Heard { at, frame } if frame.to != Some(at) => self.on_read(at, &frame),
                AirEvent::Heard { .. } => {}
                AirEvent::Finished { by, .. } if self.radios[usize::from(by.0)].owner != Owner::Stack => {}
                AirEvent::Finished {
                    by,
                    to,
                    body,
                    rate,
                    attempts,
                    acknowledged,
                } => {
                    if to.is_none() {
                        self.tell_those_elsewhere(by, &body);
                    }
                    self.events.push_back(MediumEvent::Done {
                        radio: self.radios[usize::from(by.0)].name,
                        cookie: body.cookie,
                        rate,
                        attempts,
                        acknowledged,
                    });
                }
            }
        }
    }

    fn on_read(&mut self, at: StationId, frame: &Reception<Arc<Carried>>) {
        let [sender, reader] = [frame.from, at].map(|id| &self.radios[usize::from(id.0)]);
        // A stranger's frame has nothing that a stack could read.
        if sender.owner != Owner::Stack || reader.owner != Owner::Stack {
            return;
        }
        let (from, to) = (sender.name, reader.name);
        let mut bytes = frame.body.bytes.clone();
        if frame.retry {
            bytes[1] |= RETRY;
        }
        self.events.push_back(MediumEvent::Read {
            radio: to,
            frequency: frame.body.frequency,
            bytes,
            rate: frame.rate,
            power: power_of(self.config.between(from, to)),
            is_elsewhere: false,
        });
    }

    /// A radio that has followed its access point to another channel says nothing there before it
    /// has heard a beacon, and acknowledges frames all the same. So one that is thought to be
    /// elsewhere is asked, by a frame that no stack heeds: that it is taken shows where it is.
    fn ask_where(&mut self, from: StationId, to: StationId, receiver: Address, frequency: u32) {
        let [sender, radio] = [from, to].map(|id| &self.radios[usize::from(id.0)]);
        if radio.owner != Owner::Stack || radio.frequency == frequency {
            return;
        }
        let signal = self.config.between(sender.name, radio.name);
        let mut bytes = vec![0; LEAST_FRAME];
        bytes[0] = CLEAR_TO_SEND;
        bytes[4..10].copy_from_slice(&receiver);
        self.events.push_back(MediumEvent::Read {
            radio: radio.name,
            frequency,
            bytes,
            rate: self.config.station.standard.beacon_rate(),
            power: power_of(signal),
            is_elsewhere: true,
        });
    }

    /// A radio that scans or follows its access point to another channel may say nothing there: a
    /// broadcast that its stack takes shows where it is.
    fn tell_those_elsewhere(&mut self, by: StationId, body: &Carried) {
        let sender = &self.radios[usize::from(by.0)];
        for radio in self.radios.iter().filter(|radio| radio.owner == Owner::Stack) {
            let signal = self.config.between(sender.name, radio.name);
            let is_heard = !matches!(signal.loss, FrameLoss::Noise(floor) if signal.power < floor);
            if radio.frequency != body.frequency && is_heard {
                self.events.push_back(MediumEvent::Read {
                    radio: radio.name,
                    frequency: body.frequency,
                    bytes: body.bytes.clone(),
                    rate: self.config.station.standard.beacon_rate(),
                    power: power_of(signal),
                    is_elsewhere: true,
                });
            }
        }
    }
}

impl Stranger {
    /// Whether it sends at that time.
    fn is_on(&self, at: Instant) -> bool {
        self.period.is_none_or(|period| {
            let into = u128::from(at.as_nanos()) % period.as_nanos().max(1);
            into * 2 >= period.as_nanos()
        })
    }

    /// How a radio and both of them receive each other.
    fn received_by(&self, radio: Address) -> Signal {
        if self.heard_by.is_empty() {
            return Signal::clear();
        }
        let named = self.heard_by.iter().find(|(address, _)| *address == radio);
        named.map_or_else(|| Signal::of_power(OUT_OF_RANGE), |(_, signal)| signal.clone())
    }
}

impl MediumConfig {
    fn between(&self, a: Address, b: Address) -> &Signal {
        let named = self
            .signals
            .iter()
            .find(|(from, to, _)| (*from, *to) == (a, b) || (*from, *to) == (b, a));
        named.map_or(&self.signal, |(_, _, signal)| signal)
    }
}

/// What the air calls a channel here: its frequency.
fn channel_of(frequency: u32) -> u16 {
    u16::try_from(frequency).unwrap_or(u16::MAX)
}

fn address_at(frame: &[u8], at: usize) -> Option<Address> {
    frame.get(at..)?.first_chunk().copied()
}

fn power_of(signal: &Signal) -> i32 {
    signal.power.round() as i32
}

/// The station that unknown addresses stand for.
const STRANGER: StationId = StationId(0);
/// Below what anybody senses. Units: dBm.
const OUT_OF_RANGE: f32 = -150.0;
/// At the end of each frame. Units: bytes.
const CHECK_SEQUENCE: u32 = 4;
/// Strangers send no more often: a rate beyond all of the air's is its queue's to refuse.
const SHORTEST: Duration = Duration::from_micros(10);
/// In the first byte of frame control (IEEE 802.11-2016 section 9.2.4.1): the type, and that of
/// management, which is sent as AC_VO (section 10.2.4.2).
const TYPE: u8 = 0x0c;
const MANAGEMENT: u8 = 0x00;
/// The same byte: control, subtype 12.
const CLEAR_TO_SEND: u8 = 0xc4;
/// Simulated cards take no shorter frame than one with three addresses. Units: bytes.
const LEAST_FRAME: usize = 24;
/// In the second byte of frame control.
const RETRY: u8 = 0x08;

#[cfg(test)]
mod tests;
