//! Frames of real 802.11 stacks on the emulated medium: addresses, channels, and reports to a stack
//! about its frames.
//!
//! A stack passes each frame once; the medium makes the attempts, sets the retry bit of all but the
//! first, and finally reports the number of attempts and whether the frame was acknowledged. Radios
//! and addresses are added when they first send. It fails as radio does: a frame to an unknown
//! address has as many attempts as any other, and is then given up.
//!
//! Scope: the medium chooses the rate of each radio, as cards do whose firmware has rate control.
//! Limitations: a radio is on one channel, that of its last frame or of
//! [`FrameMedium::handle_tuned`]; a queued frame of a radio that changes channel is sent on the new
//! channel. Frames carry no rate, so a stack's own rate control has no effect.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use hawser_units::{Duration, Instant};

use super::medium::{Air, AirEvent};
use super::on_air::{Reception, StationConfig};
use super::phy::PhyRate;
use super::signal::{FrameLoss, Signal};
use super::{Outgoing, StationId};

/// Address of the link layer.
pub type Address = [u8; 6];

/// A frame passed by a stack.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StackFrame {
    /// Sending radio, by its stack's name for it.
    pub radio: Address,
    /// Frequency. Units: MHz.
    pub frequency: u32,
    /// Frame without check sequence.
    pub bytes: Vec<u8>,
    /// Cookie of the stack.
    pub cookie: u64,
    /// Set if the frame is to be acknowledged.
    pub wants_ack: bool,
}

/// Report for stacks.
#[derive(Clone, Debug, PartialEq)]
pub enum MediumEvent {
    /// A radio has received a frame.
    Read {
        /// Receiving radio.
        radio: Address,
        /// Frequency. Units: MHz.
        frequency: u32,
        /// The frame, with the retry bit of this attempt.
        bytes: Vec<u8>,
        /// Modulation.
        rate: PhyRate,
        /// Received power. Units: dBm.
        power: i32,
        /// Set if the medium believes that the radio is on another channel. If its stack accepts
        /// the frame, the radio is on this channel: [`FrameMedium::handle_tuned`].
        is_elsewhere: bool,
    },
    /// A radio has finished with a frame.
    Done {
        /// Radio that sent the frame.
        radio: Address,
        /// Cookie of its stack.
        cookie: u64,
        /// Modulation of the last attempt, or the intended one.
        rate: PhyRate,
        /// Number of attempts; 0 if the queue was full.
        attempts: u8,
        /// Set if the frame was acknowledged.
        acknowledged: bool,
    },
}

/// Properties of radios, and of the signals between them.
#[derive(Clone, Debug)]
pub struct MediumConfig {
    /// Default properties of radios.
    pub station: StationConfig,
    /// Properties of individual radios.
    pub stations: BTreeMap<Address, StationConfig>,
    /// Default signal between radios.
    pub signal: Signal,
    /// Signals between pairs of radios, in both directions.
    pub signals: Vec<(Address, Address, Signal)>,
    /// Signals from the first to the second radio only; they override `signals`.
    pub towards: Vec<(Address, Address, Signal)>,
    /// Set if every radio also receives data frames for others, as monitor interfaces require.
    pub overhear: bool,
    /// Additional stations without a stack.
    pub strangers: Vec<Stranger>,
    /// Pairs of channels that are noise to each other. Units: MHz.
    pub overlaps: Vec<(u32, u32)>,
}

/// Pair of stations without a stack, of which one sends to the other.
#[derive(Clone, Debug)]
pub struct Stranger {
    /// Properties of both stations.
    pub station: StationConfig,
    /// Frequency. Units: MHz.
    pub frequency: u32,
    /// Interval between frames.
    pub every: Duration,
    /// Length of a frame, with its header and check sequence. Units: bytes.
    pub len: u32,
    /// Period, in whose second half the station sends; `None`: it always sends.
    pub period: Option<Duration>,
    /// Radios of the channel that the stations hear and that hear them, with their signals; empty:
    /// all radios, with a good signal.
    pub heard_by: Vec<(Address, Signal)>,
}

/// Medium for the frames of real stacks.
#[derive(Debug)]
pub struct FrameMedium {
    air: Air<Arc<FrameBody>>,
    config: MediumConfig,
    /// Radios by number of the station, strangers included.
    radios: Vec<Radio>,
    owners: BTreeMap<Address, StationId>,
    /// Traffic of strangers, in the order of the configuration.
    talks: Vec<Talk>,
    events: VecDeque<MediumEvent>,
}

#[derive(Debug)]
struct Radio {
    name: Address,
    frequency: u32,
    owner: Owner,
}

/// Owner of a radio.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Owner {
    /// Unused: it neither receives nor is received.
    Nobody,
    Stack,
    /// A stranger, by number.
    Stranger(usize),
}

/// Stations of a pair without a stack, and the time of its next frame.
#[derive(Debug)]
struct Talk {
    from: StationId,
    to: StationId,
    next: Instant,
}

#[derive(Debug, Default)]
struct FrameBody {
    cookie: u64,
    frequency: u32,
    bytes: Vec<u8>,
}

impl FrameMedium {
    /// Creates an idle medium.
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

    /// Adds an address to which a radio answers.
    pub fn handle_address(&mut self, radio: Address, address: Address) {
        let station = self.station(radio);
        self.owners.insert(address, station);
    }

    /// Reports the channel of a radio.
    pub fn handle_tuned(&mut self, radio: Address, frequency: u32, now: Instant) {
        let station = self.station(radio);
        self.tune(station, frequency, now);
    }

    /// Handles a frame of a stack; a frame that is too short is reported as done at once.
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
            // Beacons have a queue of their own, and other management frames are sent as AC_VO.
            urgent: frame.bytes[0] & TYPE == MANAGEMENT,
            body: Arc::new(FrameBody {
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

    /// Returns when the next event is due; `None` without one.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Instant> {
        let talks = self.talks.iter().map(|talk| talk.next);
        talks.chain(self.air.poll_timeout()).min()
    }

    /// Handles all events until `now`.
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
            // A full queue drops the frame, as it does with a stack's frame.
            let _ = self.air.handle_packet(talk.from, outgoing, at);
        }
        self.air.handle_timeout(now);
        self.take_events();
    }

    /// Returns the next report for stacks.
    pub fn poll_event(&mut self) -> Option<MediumEvent> {
        self.events.pop_front()
    }

    /// Returns the station of a radio; adds the radio if it is new.
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
            // Spreads the first frames over time.
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
                // The destination receives the frame by its own event.
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
                        self.offer_off_channel(by, &body);
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

    fn on_read(&mut self, at: StationId, frame: &Reception<Arc<FrameBody>>) {
        let [sender, reader] = [frame.from, at].map(|id| &self.radios[usize::from(id.0)]);
        // A stack cannot parse the frame of a station without a stack.
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

    /// Sends a radio on an unknown channel a frame that stacks ignore, whose acceptance reveals the
    /// channel: a radio that has followed its access point to another channel acknowledges frames
    /// there, but sends nothing before it has received a beacon.
    fn ask_where(&mut self, from: StationId, to: StationId, receiver: Address, frequency: u32) {
        let [sender, radio] = [from, to].map(|id| &self.radios[usize::from(id.0)]);
        if radio.owner != Owner::Stack || radio.frequency == frequency {
            return;
        }
        let signal = self.config.between(sender.name, radio.name);
        let mut bytes = vec![0; MIN_FRAME];
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

    /// Offers a broadcast to radios that the medium believes to be on other channels; acceptance
    /// reveals the channel. A radio that scans or follows its access point may send nothing there.
    fn offer_off_channel(&mut self, by: StationId, body: &FrameBody) {
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
    /// Returns whether the pair sends at that time.
    fn is_on(&self, at: Instant) -> bool {
        self.period.is_none_or(|period| {
            let into = u128::from(at.as_nanos()) % period.as_nanos().max(1);
            into * 2 >= period.as_nanos()
        })
    }

    /// Returns the signal between the pair and a radio, in both directions.
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

/// Returns the number of a channel on the medium, which is its frequency.
fn channel_of(frequency: u32) -> u16 {
    u16::try_from(frequency).unwrap_or(u16::MAX)
}

fn address_at(frame: &[u8], at: usize) -> Option<Address> {
    frame.get(at..)?.first_chunk().copied()
}

fn power_of(signal: &Signal) -> i32 {
    signal.power.round() as i32
}

/// Station that represents unknown addresses. Source: the first number.
const STRANGER: StationId = StationId(0);
/// Power below every sensitivity. Units: dBm. Source: our choice, far below the noise floor of -95
/// dBm (`signal.rs`).
const OUT_OF_RANGE: f32 = -150.0;
/// Length of the check sequence (IEEE 802.11-2016 section 9.2.4.8). Units: bytes.
const CHECK_SEQUENCE: u32 = 4;
/// Minimum interval between frames of a pair; above the medium's capacity, its queue drops frames.
/// Source: our choice, less than any frame takes.
const SHORTEST: Duration = Duration::from_micros(10);
/// Frame types in the first byte of frame control (IEEE 802.11-2016 section 9.2.4.1); management
/// frames are sent as AC_VO (section 10.2.4.2).
const TYPE: u8 = 0x0c;
const MANAGEMENT: u8 = 0x00;
/// Control frame of subtype 12, in the same byte (IEEE 802.11-2016 section 9.2.4.1).
const CLEAR_TO_SEND: u8 = 0xc4;
/// Minimum length of a frame that simulated cards accept, with three addresses (IEEE 802.11-2016
/// section 9.2.3). Units: bytes.
const MIN_FRAME: usize = 24;
/// Retry bit in the second byte of frame control (IEEE 802.11-2016 section 9.2.4.1).
const RETRY: u8 = 0x08;

#[cfg(test)]
mod tests;
