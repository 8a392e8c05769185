//! Comparison of a client's access points, below IP.

use std::cell::RefCell;
use std::rc::Rc;

use hawser_netem::air::phy::DATA_OVERHEAD;
use hawser_netem::air::{Frame, StationId};
use hawser_radio::delivery::AccessPoints;
use hawser_units::Instant;

use super::{Gate, Heard, HopSample};
use crate::packet::{Body, Ecn, Packet};

/// Marks packets of an access point while another one makes clearly better use of the airtime, so
/// that the sender's windows move there.
///
/// The gates of one client share one [`AccessPoints`]; they need stations that monitor.
///
/// Source: All-APs section 5.
pub struct Marking {
    comparison: Rc<RefCell<AccessPoints>>,
    /// Index among the client's access points.
    index: usize,
    access_point: StationId,
    station: StationId,
    /// Stations of the client and its access points; `None`: traffic of others is not counted.
    own: Option<Vec<StationId>>,
}

impl Marking {
    /// Adds an access point to the comparison, as received by the client's `station`.
    pub fn join(comparison: &Rc<RefCell<AccessPoints>>, access_point: StationId, station: StationId) -> Self {
        let index = comparison.borrow_mut().join();
        Self {
            comparison: comparison.clone(),
            index,
            access_point,
            station,
            own: None,
        }
    }

    /// Also counts frames of all other stations. One gate of a comparison does so, since all gates
    /// receive the same frames.
    #[must_use]
    pub fn counting_all_but(self, own: Vec<StationId>) -> Self {
        let own = Some(own);
        Self { own, ..self }
    }

    /// Returns the access point's index in the comparison.
    #[must_use]
    pub fn index(&self) -> usize {
        self.index
    }
}

impl Gate for Marking {
    fn handle_packet(&mut self, packet: &mut Packet, sample: HopSample) -> bool {
        let mut comparison = self.comparison.borrow_mut();
        if let Body::Tcp(segment) = &packet.body
            && segment.echo != Instant::ZERO
        {
            comparison.handle_round_trip(self.index, sample.now.since(segment.echo));
        }
        if packet.ecn == Ecn::Capable && comparison.handle_packet(self.index, sample.now) {
            packet.ecn = Ecn::Marked;
        }
        true
    }

    fn handle_heard(&mut self, _at: StationId, frame: &Heard, now: Instant) {
        if frame.from == self.access_point && frame.to == Some(self.station) {
            let rate = frame.rate.as_bps() as f64;
            let mut comparison = self.comparison.borrow_mut();
            comparison.handle_frame(self.index, frame.sequence, frame.retry, rate, now);
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
