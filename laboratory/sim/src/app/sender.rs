//! A video and a replayed capture through simulated networks.

use hawser_netem::capture::Replay;
use hawser_netem::scenario::layer_code_point;
use hawser_netem::sender::{Part, Sender};
use hawser_netem::video::Video;
use hawser_units::Instant;

use super::datagram::UDP_HEADER;
use crate::host::{Application, Outgoing};
use crate::packet::{Body, Datagram, Ecn, Packet};

/// A datagram's mark is 1 and its layer.
impl Application for Video {
    fn handle_packet(&mut self, _way: usize, _packet: &Packet, _now: Instant) {}

    fn poll_transmit(&mut self, now: Instant) -> Option<Outgoing> {
        Sender::poll_transmit(self, now).map(|part| outgoing(part, now))
    }

    fn poll_timeout(&self) -> Option<Instant> {
        Sender::poll_timeout(self)
    }
}

/// A datagram has no mark.
impl Application for Replay {
    fn handle_packet(&mut self, _way: usize, _packet: &Packet, _now: Instant) {}

    fn poll_transmit(&mut self, now: Instant) -> Option<Outgoing> {
        Sender::poll_transmit(self, now).map(|part| outgoing(part, now))
    }

    fn poll_timeout(&self) -> Option<Instant> {
        Sender::poll_timeout(self)
    }
}

fn outgoing(part: Part, now: Instant) -> Outgoing {
    Outgoing {
        way: 0,
        size: part.bytes as u16 + UDP_HEADER,
        ecn: Ecn::NotCapable,
        body: Body::Datagram(Datagram {
            number: part.number,
            stamp: now,
            mark: part.layer.map_or(0, |layer| layer_code_point(layer).into()),
        }),
    }
}
