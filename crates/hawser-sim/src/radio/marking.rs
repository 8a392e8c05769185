//! A client's comparison of its access points, just before IP.

use std::cell::RefCell;
use std::rc::Rc;

use hawser_netem::air::StationId;
use hawser_radio::all_aps::AccessPoints;
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
        }
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
        }
    }
}
