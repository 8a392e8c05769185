//! A video through simulated networks.

use hawser_netem::scenario::layer_code_point;
use hawser_netem::video::Video;
use hawser_units::Instant;

use super::datagram::UDP_HEADER;
use crate::host::{Application, Outgoing};
use crate::packet::{Body, Datagram, Ecn, Packet};

/// A datagram's mark is 1 and its layer.
impl Application for Video {
    fn handle_packet(&mut self, _way: usize, _packet: &Packet, _now: Instant) {}

    fn poll_transmit(&mut self, now: Instant) -> Option<Outgoing> {
        let part = Self::poll_transmit(self, now)?;
        Some(Outgoing {
            way: 0,
            size: part.bytes as u16 + UDP_HEADER,
            ecn: Ecn::NotCapable,
            body: Body::Datagram(Datagram {
                number: part.number,
                stamp: now,
                mark: layer_code_point(part.layer).into(),
            }),
        })
    }

    fn poll_timeout(&self) -> Option<Instant> {
        Self::poll_timeout(self)
    }
}
