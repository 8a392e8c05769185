//! A client that stays with one access point.

use std::any::Any;
use std::collections::VecDeque;

use hawser_netem::air::{Frame, MANAGEMENT_LEN, StationId};
use hawser_units::Duration;

use super::{AirContext, Finished, Gate, Heard, Look, Machine};
use crate::network::LinkId;
use crate::packet::Packet;

/// Joins its access point once, again when it is thrown out, and then sends and receives. It is always awake.
///
/// ```text
///   out -- authenticate --> authenticating -- associate --> associating --> in
///    ^ ^------- no answer: again -----+---------------------------+          |
///    +----------------------- deauthenticated -------------------------------+
/// ```
pub struct ClientMachine {
    at: StationId,
    access_point: StationId,
    state: State,
    attempt: u16,
    waiting: VecDeque<Packet>,
    gate: Option<Box<dyn Gate>>,
    lost: u64,
    received: u64,
    beacons: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Out,
    Authenticating,
    Associating,
    In,
}

impl ClientMachine {
    /// A client on the station `at`, which is tuned to the access point's channel.
    #[must_use]
    pub fn new(at: StationId, access_point: StationId) -> Self {
        Self {
            at,
            access_point,
            state: State::Out,
            attempt: 0,
            waiting: VecDeque::new(),
            gate: None,
            lost: 0,
            received: 0,
            beacons: 0,
        }
    }

    /// Shows it every packet that comes from the air, before IP does, and what a monitoring station hears.
    pub fn set_gate(&mut self, gate: impl Gate) {
        self.gate = Some(Box::new(gate));
    }

    /// The gate as what it is.
    #[must_use]
    pub fn gate<G: Gate>(&self) -> Option<&G> {
        let gate: &dyn Any = self.gate.as_ref()?.as_ref();
        gate.downcast_ref()
    }

    /// Whether it is associated.
    #[must_use]
    pub fn is_associated(&self) -> bool {
        self.state == State::In
    }

    /// Packets received from the air, and packets lost before or on it.
    #[must_use]
    pub fn counters(&self) -> (u64, u64) {
        (self.received, self.lost)
    }

    /// Beacons of its access point that it has read.
    #[must_use]
    pub fn beacons(&self) -> u64 {
        self.beacons
    }

    fn join(&mut self, air: &mut AirContext<'_, '_>) {
        self.state = State::Authenticating;
        self.attempt = (self.attempt + 1) % u16::MAX;
        air.send_urgent(
            self.at,
            Some(self.access_point),
            Frame::Authenticate,
            MANAGEMENT_LEN,
        );
        air.after(JOIN_TIMEOUT, self.attempt);
    }

    fn pass(&mut self, packet: Packet, air: &mut AirContext<'_, '_>) {
        if !air.send_packet(self.at, self.access_point, packet) {
            self.lost += 1;
        }
    }
}

impl Machine for ClientMachine {
    fn handle_start(&mut self, air: &mut AirContext<'_, '_>) {
        self.join(air);
    }

    fn handle_packet(&mut self, packet: Packet, _link: LinkId, air: &mut AirContext<'_, '_>) {
        if self.state == State::In {
            self.pass(packet, air);
        } else if self.waiting.len() < WAITING {
            self.waiting.push_back(packet);
        } else {
            self.lost += 1;
        }
    }

    fn handle_frame(&mut self, at: StationId, frame: &Heard, air: &mut AirContext<'_, '_>) {
        if frame.from != self.access_point {
            return;
        }
        match frame.body {
            Frame::Authenticated if self.state == State::Authenticating => {
                self.state = State::Associating;
                air.send_urgent(at, Some(self.access_point), Frame::Associate, MANAGEMENT_LEN);
            }
            Frame::Associated { .. } => {
                self.state = State::In;
                for packet in std::mem::take(&mut self.waiting) {
                    self.pass(packet, air);
                }
            }
            Frame::Deauthenticate if self.state == State::In => self.join(air),
            Frame::Beacon(_) => self.beacons += 1,
            Frame::Data { mut packet, .. } => {
                let look = Look {
                    now: air.now(),
                    at,
                    peer: frame.from,
                    queued: air.queued(at),
                    kept: 0,
                };
                let passes = match &mut self.gate {
                    Some(gate) => gate.handle_packet(&mut packet, look),
                    None => true,
                };
                if passes {
                    self.received += 1;
                    air.forward(at, packet);
                }
            }
            Frame::Striped { .. }
            | Frame::Null { .. }
            | Frame::PsPoll
            | Frame::ProbeRequest
            | Frame::ProbeResponse { .. }
            | Frame::Authenticate
            | Frame::Authenticated
            | Frame::Associate
            | Frame::Deauthenticate => {}
        }
    }

    fn handle_heard(&mut self, at: StationId, frame: &Heard, air: &mut AirContext<'_, '_>) {
        if let Some(gate) = &mut self.gate {
            gate.handle_heard(at, frame, air.now());
        }
    }

    fn handle_finished(&mut self, _at: StationId, sent: &Finished, _air: &mut AirContext<'_, '_>) {
        if matches!(sent.body, Frame::Data { .. }) && !sent.acknowledged {
            self.lost += 1;
        }
    }

    fn handle_timer(&mut self, tag: u16, air: &mut AirContext<'_, '_>) {
        if self.state != State::In && tag == self.attempt {
            self.join(air);
        }
    }
}

impl core::fmt::Debug for ClientMachine {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("ClientMachine")
            .field("at", &self.at)
            .field("state", &self.state)
            .finish_non_exhaustive()
    }
}

/// How long an answer to a step of joining may take, as in Linux's mac80211 (200 ms).
const JOIN_TIMEOUT: Duration = Duration::from_millis(200);
/// Packets that wait until it is associated.
const WAITING: usize = 400;
