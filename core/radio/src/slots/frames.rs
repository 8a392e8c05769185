//! Inputs from the radio: received frames, completed frames, and returned frames.

use hawser_units::Instant;
use hawser_wire::air::phy::DATA_OVERHEAD;
use hawser_wire::air::{Beacon, Frame, StationId};

use super::{Event, NetworkId, Phase, SlotSchedule, State};

impl<P: Copy> SlotSchedule<P> {
    /// Handles a frame that the radio received.
    pub fn handle_frame(&mut self, from: StationId, frame: &Frame<P>, now: Instant) {
        self.heard.insert(from, now);
        let known = self
            .networks
            .iter()
            .find(|(_, network)| network.config.peer == from && !network.is_scan());
        let Some((&id, _)) = known else {
            self.on_stranger(from, frame);
            return;
        };
        if self.phase == Phase::Active
            && matches!(frame, Frame::Beacon(_))
            && let Some(network) = self.networks.get_mut(&id)
        {
            // An access point is on the channel of its beacons: the radio may have missed the
            // announcement of this channel. Other frames may be read after their slot.
            network.config.channel = self.channel;
        }
        match *frame {
            Frame::Data { packet, more, .. } => {
                self.counters.received += 1;
                self.events.push_back(Event::Received { network: id, packet });
                self.on_polled(id, more, now);
            }
            Frame::Null { .. } => self.on_polled(id, false, now),
            Frame::Authenticated => self.on_joining(id, State::Authenticating, now),
            Frame::Associated { aid } => {
                if let Some(network) = self.networks.get_mut(&id) {
                    network.aid = Some(aid);
                }
                self.on_joining(id, State::Associating, now);
            }
            Frame::Deauthenticate => self.on_deauthenticated(id, now),
            Frame::Beacon(beacon) => self.on_beacon(id, beacon, now),
            Frame::Striped { .. }
            | Frame::PsPoll
            | Frame::ProbeRequest
            | Frame::ProbeResponse { .. }
            | Frame::Authenticate
            | Frame::Associate => {}
        }
    }

    fn on_beacon(&mut self, id: NetworkId, beacon: Beacon, now: Instant) {
        let network = self.networks.get_mut(&id).expect("it was found by its peer");
        if let Some((channel, 0)) = beacon.moves {
            network.config.channel = channel;
            if self.is_active(id) {
                self.slot_ends = now;
                self.retune(id, None, now);
            }
            return;
        }
        let is_kept = network.aid.is_some_and(|aid| beacon.traffic & 1 << aid != 0);
        if is_kept && self.is_active(id) && self.state(id) == State::Awake {
            // The access point assumes that the radio sleeps.
            self.wake(id, now);
        }
    }

    fn on_stranger(&mut self, from: StationId, frame: &Frame<P>) {
        let name = match frame {
            Frame::Beacon(beacon) => beacon.network,
            Frame::ProbeResponse { network } => *network,
            Frame::Data { .. }
            | Frame::Striped { .. }
            | Frame::Null { .. }
            | Frame::PsPoll
            | Frame::ProbeRequest
            | Frame::Authenticate
            | Frame::Authenticated
            | Frame::Associate
            | Frame::Associated { .. }
            | Frame::Deauthenticate => return,
        };
        let channel = self.channel;
        self.events.push_back(Event::Found {
            name,
            peer: from,
            channel,
        });
    }

    /// Returns the time of the last frame from a station.
    #[must_use]
    pub fn last_heard(&self, peer: StationId) -> Option<Instant> {
        self.heard.get(&peer).copied()
    }

    /// Handles a frame that the radio has completed.
    pub fn handle_finished(
        &mut self,
        to: Option<StationId>,
        frame: &Frame<P>,
        acknowledged: bool,
        now: Instant,
    ) {
        if let Frame::Data { .. } = frame {
            self.in_radio = self.in_radio.saturating_sub(1);
            if acknowledged {
                self.counters.delivered += 1;
            } else {
                self.counters.given_up += 1;
            }
            return;
        }
        let Some(id) = self
            .current
            .filter(|id| to == Some(self.networks[id].config.peer))
        else {
            return;
        };
        match (frame, self.phase) {
            (Frame::Null { power_save: true }, Phase::Leaving { tries, .. }) => {
                self.on_goodbye(id, tries, acknowledged, now);
            }
            (Frame::Null { power_save: false }, Phase::Active) if self.state(id) == State::Waking => {
                if acknowledged {
                    self.set_state(id, State::Awake, None);
                } else {
                    self.say_awake(id, now);
                }
            }
            _ => {}
        }
    }

    /// Handles unsent frames that the radio returned, in the order of sending.
    pub fn handle_returned(&mut self, to: StationId, frames: impl IntoIterator<Item = (Frame<P>, u32)>) {
        let mut packets = Vec::new();
        for (frame, len) in frames {
            if let Frame::Data { packet, .. } = frame {
                self.in_radio = self.in_radio.saturating_sub(1);
                packets.push((packet, len - DATA_OVERHEAD));
            }
        }
        let network = self
            .networks
            .values_mut()
            .find(|network| network.config.peer == to);
        match network {
            Some(network) => {
                for packet in packets.into_iter().rev() {
                    network.queue.push_front(packet);
                }
            }
            None => self.counters.abandoned += packets.len() as u64,
        }
    }
}
