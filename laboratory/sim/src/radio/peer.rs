//! A neighbour in ad hoc mode that forwards to its own wire.

use hawser_netem::air::{Frame, StationId};

use super::{AirContext, Finished, Heard, Machine};
use crate::network::LinkId;
use crate::packet::Packet;

/// Sends what comes from its wire at once, whether or not the other side listens: an ad hoc peer
/// keeps nothing.
#[derive(Debug)]
pub struct PeerMachine {
    at: StationId,
    lost: u64,
}

impl PeerMachine {
    /// A neighbour on the station `at`.
    #[must_use]
    pub fn new(at: StationId) -> Self {
        Self { at, lost: 0 }
    }

    /// Packets that found its queue full or were given up.
    #[must_use]
    pub fn lost(&self) -> u64 {
        self.lost
    }
}

impl Machine for PeerMachine {
    fn handle_packet(&mut self, packet: Packet, _link: LinkId, air: &mut AirContext<'_, '_>) {
        if let Some(to) = air.station_of(packet.destination)
            && !air.send_packet(self.at, to, packet)
        {
            self.lost += 1;
        }
    }

    fn handle_frame(&mut self, at: StationId, frame: &Heard, air: &mut AirContext<'_, '_>) {
        if let Frame::Data { packet, .. } = frame.body {
            air.forward(at, packet);
        }
    }

    fn handle_finished(&mut self, _at: StationId, sent: &Finished, _air: &mut AirContext<'_, '_>) {
        self.lost += u64::from(!sent.acknowledged);
    }
}
