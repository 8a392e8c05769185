//! Neighbour in ad hoc mode that forwards to its own wire.

use hawser_netem::air::{Frame, StationId};

use super::{AirContext, Finished, Heard, Machine};
use crate::network::LinkId;
use crate::packet::Packet;

/// Sends packets from its wire immediately, even if the receiver is absent: an ad hoc peer does not
/// buffer for sleeping stations.
#[derive(Debug)]
pub struct PeerMachine {
    at: StationId,
    lost: u64,
}

impl PeerMachine {
    /// Creates a neighbour on the station `at`.
    #[must_use]
    pub fn new(at: StationId) -> Self {
        Self { at, lost: 0 }
    }

    /// Returns the number of packets lost to a full queue or failed transmissions.
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
