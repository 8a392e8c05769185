//! A client's comparison of its access points, just before IP.

use std::cell::RefCell;
use std::rc::Rc;

use hawser_netem::air::phy::DATA_OVERHEAD;
use hawser_netem::air::{Frame, StationId};
use hawser_radio::delivery::AccessPoints;
use hawser_units::Instant;

use super::{Gate, Heard, Look};
use crate::packet::{Body, Ecn, Packet};

/// Marks packets of an access point while another one makes clearly better use of the air, so that
/// the sender's windows move there.
///
/// The gates of one client share one [`AccessPoints`]; they need stations that monitor.
///
/// Source: All-APs section 5.
pub struct Marking {
    comparison: Rc<RefCell<AccessPoints>>,
    /// Among the client's access points.
    place: usize,
    access_point: StationId,
    station: StationId,
    /// Those of the client and its access points; `None`: what others send is not counted.
    own: Option<Vec<StationId>>,
}

impl Marking {
    /// Adds an access point to the comparison, as the client's `station` hears it.
    pub fn join(comparison: &Rc<RefCell<AccessPoints>>, access_point: StationId, station: StationId) -> Self {
        let place = comparison.borrow_mut().join();
        Self {
            comparison: comparison.clone(),
            place,
            access_point,
            station,
            own: None,
        }
    }

    /// Counts what all but these send, too: one gate of a comparison does, as all hear the same.
    #[must_use]
    pub fn counting_all_but(self, own: Vec<StationId>) -> Self {
        let own = Some(own);
        Self { own, ..self }
    }

    /// Its access point's place in the comparison.
    #[must_use]
    pub fn place(&self) -> usize {
        self.place
    }
}

impl Gate for Marking {
    fn handle_packet(&mut self, packet: &mut Packet, look: Look) -> bool {
        let mut comparison = self.comparison.borrow_mut();
        if let Body::Tcp(segment) = &packet.body
            && segment.echo != Instant::ZERO
        {
            comparison.handle_round_trip(self.place, look.now.since(segment.echo));
        }
        if packet.ecn == Ecn::Capable && comparison.handle_packet(self.place, look.now) {
            packet.ecn = Ecn::Marked;
        }
        true
    }

    fn handle_heard(&mut self, _at: StationId, frame: &Heard, now: Instant) {
        if frame.from == self.access_point && frame.to == Some(self.station) {
            let rate = frame.rate.as_bps() as f64;
            let mut comparison = self.comparison.borrow_mut();
            comparison.handle_frame(self.place, frame.sequence, frame.retry, rate, now);
            comparison.handle_timeout(now);
        } else if let Some(own) = &self.own
            && !own.contains(&frame.from)
            && let Frame::Data { packet, .. } = frame.body
        {
            let bytes = u32::from(packet.size) + DATA_OVERHEAD;
            let rate = frame.rate.as_bps() as f64;
            self.comparison
                .borrow_mut()
                .handle_others(f64::from(bytes) * 8.0, rate, now);
        }
    }
}
