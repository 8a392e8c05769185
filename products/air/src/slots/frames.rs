//! Frames that a card in slots sends and receives on its monitor interface.

use std::time::{Duration, Instant as Clock};

use hawser_radio::slots::bytes::{self, Notices, Radiotap, Sort};
use hawser_radio::stations::frequency;
use hawser_wire::air::{Beacon, Frame, Outgoing, StationId};

use super::packets::Packet;
use super::rate::Rate;
use super::{Driver, Flying, Surface};

impl Driver {
    pub(super) fn transmit(&mut self, outgoing: Outgoing<Frame<Packet>>) {
        let Some(place) = outgoing.to.map(|to| usize::from(to.0)) else {
            return;
        };
        let Some(member) = self.members.get(place) else {
            return;
        };
        let writer = &member.writer;
        let bytes = match outgoing.body {
            Frame::Data { packet, .. } => match member.surface {
                Surface::Device(_) => writer.data(self.packets.get(packet)),
                Surface::Station(_) => Some(self.packets.get(packet).to_vec()),
            },
            Frame::Null { power_save } => Some(writer.null(power_save)),
            Frame::PsPoll => {
                let aid = self.schedule.network(member.id).and_then(|network| network.aid());
                aid.map(|aid| writer.ps_poll(aid.into()))
            }
            Frame::Authenticate => Some(writer.authenticate()),
            Frame::Associate => Some(writer.associate(&member.ssid, member.is_5ghz)),
            Frame::Striped { .. }
            | Frame::Beacon(_)
            | Frame::ProbeRequest
            | Frame::ProbeResponse { .. }
            | Frame::Authenticated
            | Frame::Associated { .. }
            | Frame::Deauthenticate => None,
        };
        match bytes {
            Some(bytes) => self.send_frame(place, bytes, outgoing),
            None => self.finish(&outgoing, (0, false)),
        }
    }

    fn send_frame(&mut self, place: usize, mut bytes: Vec<u8>, what: Outgoing<Frame<Packet>>) {
        let rate = if let Frame::Data { packet, .. } = what.body {
            self.rate_of(packet).unwrap_or(self.rate.units())
        } else {
            Rate::lowest(self.members[place].is_5ghz)
        };
        if self.tuned.is_none() || self.tuned != self.channel_of(place) {
            // No receiver is on the card's channel, and sending may be forbidden there.
            self.finish(&what, (0, false));
            return;
        }
        // A kernel station does not count the frames that this thread sends.
        self.members[place].numbers.assign(&mut bytes);
        if matches!(self.air.send(&Radiotap::to_send(rate), &bytes), Ok(true)) {
            self.flying.push_back(Flying {
                bytes,
                what,
                at: Clock::now(),
            });
        } else {
            self.finish(&what, (0, false));
        }
    }

    /// Handles the card's report about a frame, after this many attempts.
    fn finish(&mut self, what: &Outgoing<Frame<Packet>>, (attempts, is_acknowledged): (u8, bool)) {
        let now = self.now();
        let place = what.to.map(|to| usize::from(to.0));
        if let Some(member) = place.and_then(|place| self.members.get_mut(place))
            && is_acknowledged
        {
            // The access point is present, even if its beacons fall into other networks' slots.
            member.heard_at = Clock::now();
        }
        if let Frame::Data { packet, .. } = what.body {
            if let Some(place) = place.filter(|_| is_acknowledged) {
                let bytes = self.packets.get(packet).len();
                self.shares
                    .handle_transferred(place, u32::try_from(bytes).unwrap_or(0), now);
            }
            match what.to {
                Some(to) if self.packets.origin(packet).is_some() => {
                    self.sent_for_station(to.0.into(), packet, (attempts, is_acknowledged));
                }
                _ => self.rate.handle(is_acknowledged),
            }
            self.packets.release(packet);
        }
        self.schedule
            .handle_finished(what.to, &what.body, is_acknowledged, now);
    }

    /// Counts frames as lost that the card does not report in time.
    pub(super) fn give_up_silent(&mut self) {
        while let Some(oldest) = self.flying.front() {
            if oldest.at.elapsed() < SILENT {
                return;
            }
            if let Some(flying) = self.flying.pop_front() {
                self.finish(&flying.what, (0, false));
            }
        }
    }

    pub(super) fn on_air(&mut self, bytes: &[u8]) {
        let Some((said, frame)) = Radiotap::parse(bytes) else {
            return;
        };
        if let Some(is_acknowledged) = said.sent {
            let place = self
                .flying
                .iter()
                .position(|flying| bytes::is_same(&flying.bytes, frame));
            if let Some(flying) = place.and_then(|place| self.flying.remove(place)) {
                self.finish(&flying.what, (said.retries.saturating_add(1), is_acknowledged));
                self.carry_out();
            }
            return;
        }
        let now = self.now();
        if said
            .frequency
            .is_some_and(|mhz| self.tuning.handle_heard(mhz, now))
        {
            self.tuned = None;
        }
        if said.is_damaged {
            return;
        }
        if let Some(envelope) = bytes::envelope(frame)
            && let Some(place) = self.index_of(envelope.from)
        {
            if envelope.to == self.own && self.is_duplicate(place, frame) {
                return;
            }
            if envelope.to == self.own && envelope.sort == Sort::Data {
                let bytes = u32::try_from(frame.len()).unwrap_or(0);
                self.shares.handle_transferred(place, bytes, self.now());
            }
            if matches!(self.members[place].surface, Surface::Station(_)) {
                self.members[place].heard_at = Clock::now();
                self.hand_to_station(place, envelope, frame, said);
            }
        }
        // A beacon of the previous channel that is read late does not indicate a move to this
        // channel.
        let is_late = said.frequency.is_some_and(|mhz| Some(mhz) != self.tuned_mhz());
        if let Some(frame) = bytes::parse(frame)
            && !(is_late && matches!(frame.heard, bytes::Heard::Beacon { .. }))
        {
            self.on_frame(&frame, said.signal);
            self.carry_out();
        }
    }

    /// Returns the channel to which the card was tuned. Units: MHz.
    fn tuned_mhz(&self) -> Option<u32> {
        self.tuned.map(|channel| frequency(channel.into()))
    }

    /// Returns whether a frame to this station is a retry of one that was already read. Kernel
    /// stations detect retries themselves.
    fn is_duplicate(&mut self, place: usize, frame: &[u8]) -> bool {
        let member = &mut self.members[place];
        matches!(member.surface, Surface::Device(_)) && member.duplicates.handle_frame(frame)
    }

    fn index_of(&self, access_point: [u8; 6]) -> Option<usize> {
        self.members
            .iter()
            .position(|member| member.writer.bssid == access_point)
    }

    fn on_frame(&mut self, frame: &bytes::Frame<'_>, signal: Option<i8>) {
        let Some(place) = self.index_of(frame.from) else {
            return;
        };
        let (now, own) = (self.now(), self.own);
        let member = &mut self.members[place];
        let peer = StationId(u16::try_from(place).unwrap_or(u16::MAX));
        let is_ours = frame.to == own;
        let is_for_all = frame.to[0] & 1 != 0;
        member.heard_at = Clock::now();
        let body = match frame.heard {
            bytes::Heard::Beacon { elements, .. } => {
                let notices = Notices::parse(elements);
                let id = member.id;
                self.show(id, |shown| shown.signal = signal.or(shown.signal));
                Frame::Beacon(Beacon {
                    network: place as u32,
                    due: now,
                    traffic: notices.traffic,
                    moves: notices.moves,
                })
            }
            // The other frames are handled by the kernel station.
            _ if matches!(member.surface, Surface::Station(_)) => return,
            bytes::Heard::Authenticated(0) if is_ours => Frame::Authenticated,
            bytes::Heard::Associated { status: 0, aid } if is_ours => match u8::try_from(aid) {
                // The machine supports the first 63; a user-space station joins no access point
                // with more stations.
                Ok(aid @ 1..64) => Frame::Associated { aid },
                _ => return,
            },
            bytes::Heard::Deauthenticated if is_ours || is_for_all => Frame::Deauthenticate,
            bytes::Heard::Null if is_ours => Frame::Null { power_save: false },
            bytes::Heard::Data {
                destination,
                source,
                ether: (kind, payload),
                more,
            } if is_ours || (is_for_all && source != own) => {
                let ethernet = [&destination[..], &source, &kind.to_be_bytes(), payload].concat();
                if let Surface::Device(tap) = &member.surface
                    && is_for_all
                {
                    let _ = tap.write(&ethernet);
                    return;
                }
                Frame::Data {
                    packet: self.packets.put(&ethernet),
                    more,
                    power_save: false,
                }
            }
            bytes::Heard::Authenticated(_)
            | bytes::Heard::Associated { .. }
            | bytes::Heard::Deauthenticated
            | bytes::Heard::Null
            | bytes::Heard::Data { .. } => return,
        };
        self.schedule.handle_frame(peer, &body, now);
    }
}

/// Timeout of a frame's report, longer than all retries at 1 Mbit/s take. Source: our choice; a
/// frame of 1,500 bytes takes 12 ms at 1 Mbit/s, and drivers lower the rate after a few attempts at
/// a higher one. A longer one delays the slot's end when a report is lost.
pub(super) const SILENT: Duration = Duration::from_millis(60);
