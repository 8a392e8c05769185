//! Kernel stations on a card in slots: each network has a simulated card of the kernel
//! (`mac80211_hwsim`), for which the real card is the medium.
//!
//! wpa_supplicant joins with the simulated card's station as with any other, so all encryption
//! (WPA2, WPA3, 802.1X) and all keys stay in the kernel and in wpa_supplicant. The station's frames
//! are already encrypted; they leave on the monitor interface in the network's slot, and the result
//! of each is reported to the kernel. Frames of the access point are passed to the station. The
//! station has the monitor's address, so the real card acknowledges for it. `hawser_radio::slots`
//! notifies the access point when the card is absent. The station does not know this; while its
//! network sleeps, it receives repetitions of the last beacon.
//!
//! Limitations: the station uses 802.11a and g with quality of service (802.11n is disabled),
//! because a card acknowledges aggregates only for stations that its own driver knows.

use std::time::{Duration, Instant as Clock};

use hawser_linux::hwsim::{Card, Cards, FromCards, RATES, Received, first_rate};
use hawser_radio::slots::bytes::{self, Envelope, Heard, Notices, Radiotap, Sort};
use hawser_radio::stations::frequency;

use super::packets::{Origin, Packet};
use super::{Driver, Surface, UNHEARD};

/// Simulated card of a network.
pub(super) struct Relay {
    card: Card,
    /// Last beacon of the access point without a channel switch announcement, and its last probe
    /// response.
    beacon: Vec<u8>,
    answer: Vec<u8>,
    /// Signal of the access point. Units: dBm.
    signal: i8,
    /// Time when the station last received a beacon.
    given_at: Clock,
}

impl Relay {
    pub(super) fn new(card: Card) -> Self {
        Self {
            card,
            beacon: Vec::new(),
            answer: Vec::new(),
            signal: UNKNOWN_SIGNAL,
            given_at: Clock::now(),
        }
    }
}

impl Driver {
    /// Reads the frames that the stations send.
    pub(super) fn read_medium(&mut self) {
        for _ in 0..super::AT_ONCE {
            // Frames that exceed the buffer are lost, as on any medium.
            let told = match self.medium.as_ref().map(Cards::receive) {
                Some(Ok(told)) if !told.is_empty() => told,
                _ => return,
            };
            for one in told {
                if let FromCards::Frame {
                    card,
                    bytes,
                    cookie,
                    rate,
                    ..
                } = one
                {
                    self.on_station_frame(card, bytes, Origin { cookie, rate });
                }
            }
        }
    }

    /// Queues a frame of a station for its network.
    fn on_station_frame(&mut self, card: Card, mut frame: Vec<u8>, origin: Origin) {
        let Some(place) = self.members.iter().position(|member| member.is_of(card)) else {
            return;
        };
        let id = self.members[place].id;
        let Some(envelope) = bytes::envelope(&frame) else {
            self.report_to_station(place, origin, (1, false));
            return;
        };
        match envelope.sort {
            // The station announces sleep while it scans; this thread controls the network's sleep,
            // so the frame is dropped.
            Sort::Sleep => {
                self.report_to_station(place, origin, (1, true));
                return;
            }
            Sort::ProbeRequest => self.give_known(place),
            Sort::Authentication => self.schedule.set_association(id, None),
            Sort::Beacon | Sort::ProbeResponse | Sort::Leave | Sort::Data | Sort::Other => {}
        }
        bytes::clear_power_save(&mut frame);
        let packet = self.packets.put_from(&frame, origin);
        let length = u32::try_from(frame.len()).unwrap_or(u32::MAX);
        if let Err(packet) = self.schedule.handle_packet_on(id, packet, length) {
            self.packets.release(packet);
            self.report_to_station(place, origin, (1, false));
        }
    }

    /// Returns the rate that a station requests for a frame, in units of 500 kbit/s.
    pub(super) fn rate_of(&self, packet: Packet) -> Option<u8> {
        let origin = self.packets.origin(packet)?;
        u8::try_from(RATES.get(origin.rate)? / 5).ok()
    }

    /// Reports the result of a station's frame to the kernel.
    pub(super) fn sent_for_station(&mut self, place: usize, packet: Packet, tries: (u8, bool)) {
        let Some(origin) = self.packets.origin(packet) else {
            return;
        };
        let is_leave = |envelope: Envelope| envelope.sort == Sort::Leave;
        if bytes::envelope(self.packets.get(packet)).is_some_and(is_leave) {
            self.schedule.set_association(self.members[place].id, None);
        }
        self.report_to_station(place, origin, tries);
    }

    fn report_to_station(&self, place: usize, origin: Origin, (attempts, is_acknowledged): (u8, bool)) {
        let (Surface::Station(relay), Some(medium)) = (&self.members[place].surface, &self.medium) else {
            return;
        };
        let rate = origin.rate.saturating_sub(first_rate(self.frequency_of(place)));
        // The station may have been removed in the meantime, with its frames.
        let _ = medium.done(relay.card, origin.cookie, (rate, attempts), is_acknowledged);
    }

    fn frequency_of(&self, place: usize) -> u32 {
        let network = self.schedule.network(self.members[place].id);
        network.map_or(0, |network| frequency(network.config().channel.into()))
    }

    /// Passes a frame of an access point to its station, if it is the receiver.
    pub(super) fn hand_to_station(&mut self, place: usize, envelope: Envelope, frame: &[u8], said: Radiotap) {
        let is_for_all = envelope.to[0] & 1 != 0;
        if !is_for_all && envelope.to != self.own {
            return;
        }
        let id = self.members[place].id;
        let rate = said.rate.map_or(0, |rate| u16::from(rate) * 5);
        let rate = RATES.iter().position(|one| *one == rate).unwrap_or(0);
        let Surface::Station(relay) = &mut self.members[place].surface else {
            return;
        };
        relay.signal = said.signal.unwrap_or(relay.signal);
        match (envelope.sort, bytes::parse(frame).map(|frame| frame.heard)) {
            (Sort::Beacon, Some(Heard::Beacon { elements, .. })) => {
                if Notices::parse(elements).moves.is_none() {
                    relay.beacon = frame.to_vec();
                }
                relay.given_at = Clock::now();
            }
            (Sort::ProbeResponse, _) => relay.answer = frame.to_vec(),
            (_, Some(Heard::Associated { status: 0, aid })) if !is_for_all => {
                // The machine reads the first 63 entries of the traffic indication map. A station
                // with a higher number wakes with entry 63, which costs a frame.
                let aid = u8::try_from(aid.clamp(1, 63)).unwrap_or(63);
                self.schedule.set_association(id, Some(aid));
            }
            _ => {}
        }
        self.hand_over(place, frame, rate);
    }

    fn hand_over(&self, place: usize, frame: &[u8], rate: usize) {
        let (Surface::Station(relay), Some(medium)) = (&self.members[place].surface, &self.medium) else {
            return;
        };
        let received = Received {
            card: relay.card,
            frequency: self.frequency_of(place),
            bytes: frame,
            rate: rate.max(first_rate(self.frequency_of(place))),
            power: relay.signal.into(),
        };
        // A station that is down receives nothing.
        let _ = medium.hand_over(&received, None);
    }

    /// Passes the known frames of the access point to a station that scans for it.
    fn give_known(&mut self, place: usize) {
        let Surface::Station(relay) = &mut self.members[place].surface else {
            return;
        };
        relay.given_at = Clock::now();
        let known = [relay.beacon.clone(), relay.answer.clone()];
        for frame in known.iter().filter(|frame| !frame.is_empty()) {
            self.hand_over(place, frame, 0);
        }
    }

    /// Repeats the beacons of sleeping networks. If a network's access point is not received in its
    /// own slot, its beacons are not repeated, so the station detects the loss.
    pub(super) fn repeat_beacons(&mut self) {
        for place in 0..self.members.len() {
            let member = &self.members[place];
            let Surface::Station(relay) = &member.surface else {
                continue;
            };
            let is_due = relay.given_at.elapsed() > REPEAT && member.heard_at.elapsed() < UNHEARD;
            if is_due && !relay.beacon.is_empty() {
                let beacon = relay.beacon.clone();
                self.hand_over(place, &beacon, 0);
                if let Surface::Station(relay) = &mut self.members[place].surface {
                    relay.given_at = Clock::now();
                }
            }
        }
    }
}

impl super::Member {
    fn is_of(&self, card: Card) -> bool {
        matches!(&self.surface, Surface::Station(relay) if relay.card == card)
    }

    /// Returns whether the access point of its station has been heard.
    pub(super) fn is_found(&self) -> bool {
        matches!(&self.surface, Surface::Station(relay) if !relay.beacon.is_empty())
    }
}

/// Interval of repetitions. Source: two of them fit into the seven beacon intervals of 102 ms after
/// which mac80211 considers an access point lost (`beacon_loss_count` of net/mac80211/mlme.c).
const REPEAT: Duration = Duration::from_millis(250);
/// Signal before the first frame. Units: dBm. Source: our choice, a usable signal, so that the
/// first frame is not rejected by its signal.
const UNKNOWN_SIGNAL: i8 = -70;
