//! A client that stays associated with one access point, or with several on one channel.

use std::any::Any;
use std::collections::{BTreeMap, VecDeque};

use hawser_netem::air::{Frame, MANAGEMENT_LEN, StationId};
use hawser_units::Duration;

use super::{AirContext, Finished, Gate, Heard, HopSample, Machine};
use crate::network::LinkId;
use crate::packet::{Address, Packet};

/// Associates with its access points, and again after a deauthentication, then sends and receives.
/// It is always awake.
///
/// Several access points are several interfaces of one radio, with one queue and one contention. A
/// packet's source address selects its interface.
///
/// For each access point:
/// ```text
///   out -- authenticate --> authenticating -- associate --> associating --> in
///    ^ ^------- no answer: again -----+---------------------------+          |
///    +----------------------- deauthenticated -------------------------------+
/// ```
pub struct ClientMachine {
    at: StationId,
    interfaces: Vec<Interface>,
    addresses: BTreeMap<Address, usize>,
    lost: u64,
    received: u64,
}

/// Association with one access point.
struct Interface {
    access_point: StationId,
    state: State,
    attempt: u8,
    waiting: VecDeque<Packet>,
    gate: Option<Box<dyn Gate>>,
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
    /// Creates a client on the station `at`, which is tuned to the access point's channel.
    #[must_use]
    pub fn new(at: StationId, access_point: StationId) -> Self {
        Self {
            at,
            interfaces: vec![Interface::new(access_point)],
            addresses: BTreeMap::new(),
            lost: 0,
            received: 0,
        }
    }

    /// Adds an access point before the run; returns the interface's index.
    ///
    /// # Panics
    /// With more than 256 access points.
    pub fn add(&mut self, access_point: StationId) -> usize {
        assert!(
            self.interfaces.len() < 256,
            "an interface fits into a timer's tag"
        );
        self.interfaces.push(Interface::new(access_point));
        self.interfaces.len() - 1
    }

    /// Selects the interface for packets from an address; the default is the first one.
    pub fn assign(&mut self, address: Address, interface: usize) {
        self.addresses.insert(address, interface);
    }

    /// Sets an interface's gate, which sees every received packet before IP, and frames that a
    /// monitoring station receives.
    pub fn set_gate(&mut self, interface: usize, gate: impl Gate) {
        self.interfaces[interface].gate = Some(Box::new(gate));
    }

    /// Returns the gate of an interface as type `T`.
    #[must_use]
    pub fn gate<G: Gate>(&self, interface: usize) -> Option<&G> {
        let gate: &dyn Any = self.interfaces[interface].gate.as_ref()?.as_ref();
        gate.downcast_ref()
    }

    /// Returns whether the client is associated with all its access points.
    #[must_use]
    pub fn is_associated(&self) -> bool {
        self.interfaces
            .iter()
            .all(|interface| interface.state == State::In)
    }

    /// Returns the packets received from the medium, and the packets lost before or on it.
    #[must_use]
    pub fn counters(&self) -> (u64, u64) {
        (self.received, self.lost)
    }

    /// Returns the number of beacons received from each access point.
    #[must_use]
    pub fn beacons(&self) -> Vec<u64> {
        self.interfaces
            .iter()
            .map(|interface| interface.beacons)
            .collect()
    }

    fn join(&mut self, index: usize, air: &mut AirContext<'_, '_>) {
        let interface = &mut self.interfaces[index];
        interface.state = State::Authenticating;
        interface.attempt = interface.attempt.wrapping_add(1);
        let to = Some(interface.access_point);
        air.send_urgent(self.at, to, Frame::Authenticate, MANAGEMENT_LEN);
        air.after(JOIN_TIMEOUT, (index as u16) << 8 | u16::from(interface.attempt));
    }

    fn pass(&mut self, index: usize, packet: Packet, air: &mut AirContext<'_, '_>) {
        if !air.send_packet(self.at, self.interfaces[index].access_point, packet) {
            self.lost += 1;
        }
    }
}

impl Interface {
    fn new(access_point: StationId) -> Self {
        Self {
            access_point,
            state: State::Out,
            attempt: 0,
            waiting: VecDeque::new(),
            gate: None,
            beacons: 0,
        }
    }
}

impl Machine for ClientMachine {
    fn handle_start(&mut self, air: &mut AirContext<'_, '_>) {
        for index in 0..self.interfaces.len() {
            self.join(index, air);
        }
    }

    fn handle_packet(&mut self, packet: Packet, _link: LinkId, air: &mut AirContext<'_, '_>) {
        let index = self.addresses.get(&packet.source).copied().unwrap_or_default();
        let interface = &mut self.interfaces[index];
        if interface.state == State::In {
            self.pass(index, packet, air);
        } else if interface.waiting.len() < WAITING {
            interface.waiting.push_back(packet);
        } else {
            self.lost += 1;
        }
    }

    fn handle_frame(&mut self, at: StationId, frame: &Heard, air: &mut AirContext<'_, '_>) {
        let from = |interface: &Interface| interface.access_point == frame.from;
        let Some(index) = self.interfaces.iter().position(from) else {
            return;
        };
        let interface = &mut self.interfaces[index];
        match frame.body {
            Frame::Authenticated if interface.state == State::Authenticating => {
                interface.state = State::Associating;
                air.send_urgent(at, Some(frame.from), Frame::Associate, MANAGEMENT_LEN);
            }
            Frame::Associated { .. } => {
                interface.state = State::In;
                for packet in std::mem::take(&mut interface.waiting) {
                    self.pass(index, packet, air);
                }
            }
            Frame::Deauthenticate if interface.state == State::In => self.join(index, air),
            Frame::Beacon(_) => interface.beacons += 1,
            Frame::Data { mut packet, .. } => {
                let sample = HopSample {
                    now: air.now(),
                    at,
                    peer: frame.from,
                    queued: air.queued(at),
                    kept: 0,
                };
                let passes = match &mut interface.gate {
                    Some(gate) => gate.handle_packet(&mut packet, sample),
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
        for gate in self
            .interfaces
            .iter_mut()
            .filter_map(|interface| interface.gate.as_mut())
        {
            gate.handle_heard(at, frame, air.now());
        }
    }

    fn handle_finished(&mut self, _at: StationId, sent: &Finished, _air: &mut AirContext<'_, '_>) {
        if matches!(sent.body, Frame::Data { .. }) && !sent.acknowledged {
            self.lost += 1;
        }
    }

    fn handle_timer(&mut self, tag: u16, air: &mut AirContext<'_, '_>) {
        let [index, attempt] = tag.to_be_bytes();
        let interface = &self.interfaces[usize::from(index)];
        if interface.state != State::In && interface.attempt == attempt {
            self.join(usize::from(index), air);
        }
    }
}

impl core::fmt::Debug for ClientMachine {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("ClientMachine")
            .field("at", &self.at)
            .field("is_associated", &self.is_associated())
            .finish_non_exhaustive()
    }
}

/// Timeout of a step of the association. Source: `IEEE80211_AUTH_TIMEOUT` of net/mac80211/mlme.c of
/// Linux.
const JOIN_TIMEOUT: Duration = Duration::from_millis(200);
/// Maximum number of packets that wait for the association. Source: our choice; a smaller one drops
/// packets during an association.
const WAITING: usize = 400;
