//! Access point and repeater connected by two radios, with the machines of
//! [`hawser_radio::striping`].
//!
//! Scope: striping, throttling by the repeater's reports, order; a repeater towards clients on the
//! shared channel or on its wire; the baselines that
//! [`Discipline`](hawser_radio::striping::access_point::Discipline) names, and packets pinned to a
//! link by their address; the search for a better own channel, announced in beacons and followed by
//! the repeater ([`StripingMachine::search`]). Limitations: no association; beacons only for a
//! search; the direction from the repeater to the access point uses one link.
//!
//! ```text
//!   wire --> striping ))) own channel    ))) repeater --> order --> queue ))) shared channel ))) client
//!                     ))) shared channel )))                          |
//!        <-- feedback (((------------------------------------ monitor +
//! ```

mod queue;
mod repeater;
mod searching;

use std::collections::BTreeMap;

use hawser_netem::air::phy::DATA_OVERHEAD;
use hawser_netem::air::{Frame, Outgoing, StationId};
use hawser_radio::striping::access_point::{AccessPoint, OWN, SHARED, Striped};
use hawser_radio::striping::throttle::Feedback;
use hawser_units::Instant;

use super::{AirContext, Finished, Heard, Machine};
use crate::engine::TimerId;
use crate::network::LinkId;
use crate::packet::{Address, Body, Datagram, Ecn, FlowId, Packet};

pub use repeater::{RepeaterConfig, RepeaterMachine, Waiting};
pub use searching::SearchPlan;
use searching::{ANNOUNCE_TAG, BEACON, BEACON_TAG, Searching};

/// Access point that stripes packets from its wire over two links to a repeater.
///
/// The wire belongs to the first station.
#[derive(Debug)]
pub struct StripingMachine {
    stations: [StationId; 2],
    repeater: [StationId; 2],
    inner: AccessPoint<Packet>,
    pinned: BTreeMap<Address, usize>,
    alarm: Alarm,
    reductions: Vec<Instant>,
    refused: u64,
    searching: Option<Searching>,
}

impl StripingMachine {
    /// Creates a machine with the stations of its own and of the repeater's [`OWN`] and [`SHARED`]
    /// links.
    #[must_use]
    pub fn new(stations: [StationId; 2], repeater: [StationId; 2], inner: AccessPoint<Packet>) -> Self {
        Self {
            stations,
            repeater,
            inner,
            pinned: BTreeMap::new(),
            alarm: Alarm::default(),
            reductions: Vec::new(),
            refused: 0,
            searching: None,
        }
    }

    /// Enables the search for a better channel of the own link when that link is poor; the repeater
    /// must follow.
    pub fn search(&mut self, plan: SearchPlan) {
        self.searching = Some(Searching::new(plan, self.stations[OWN], self.repeater[OWN]));
    }

    /// Returns the times and channels of the own link's moves.
    #[must_use]
    pub fn moves(&self) -> &[(Instant, u16)] {
        self.searching.as_ref().map_or(&[], Searching::moves)
    }

    /// Sends all packets to an address on one link, as flow-level routing does.
    pub fn pin(&mut self, address: Address, link: usize) {
        self.pinned.insert(address, link);
    }

    /// Changes the links' shares of an access point that alternates between its links.
    pub fn set_shares(&mut self, shares: [f64; 2]) {
        self.inner.set_shares(shares);
    }

    /// Returns the striping machine.
    #[must_use]
    pub fn inner(&self) -> &AccessPoint<Packet> {
        &self.inner
    }

    /// Returns when the repeater's reports lowered the shared link's threshold.
    #[must_use]
    pub fn reductions(&self) -> &[Instant] {
        &self.reductions
    }

    /// Returns the number of pinned packets dropped because a link's queue was full.
    #[must_use]
    pub fn refused(&self) -> u64 {
        self.refused
    }

    fn drain(&mut self, air: &mut AirContext<'_, '_>) {
        while let Some(step) = self.inner.poll_step() {
            if let Some(searching) = &mut self.searching {
                searching.handle_step(step, &self.inner, air);
            }
        }
        while let Some(Striped { link, number, packet }) = self.inner.poll_transmit() {
            let frame = Outgoing {
                to: Some(self.repeater[link]),
                body: Frame::Striped { packet, number },
                len: u32::from(packet.size) + OPTION + DATA_OVERHEAD,
                urgent: false,
            };
            if !air.send(self.stations[link], frame) {
                self.inner.handle_answer(link, false);
            }
        }
        self.alarm.set(Some(self.inner.poll_timeout()), air);
    }

    fn handle_feedback(&mut self, feedback: Feedback, now: Instant) {
        let before = self.inner.threshold(SHARED);
        self.inner.handle_feedback(feedback, now);
        if self.inner.threshold(SHARED) < before {
            self.reductions.push(now);
        }
    }
}

impl Machine for StripingMachine {
    fn handle_start(&mut self, air: &mut AirContext<'_, '_>) {
        if self.searching.is_some() {
            air.after(BEACON, BEACON_TAG);
        }
        self.drain(air);
    }

    fn handle_packet(&mut self, packet: Packet, _link: LinkId, air: &mut AirContext<'_, '_>) {
        match self.pinned.get(&packet.destination) {
            Some(&link) => {
                let is_taken = air.send_packet(self.stations[link], self.repeater[link], packet);
                self.refused += u64::from(!is_taken);
            }
            None => {
                self.inner.handle_packet(packet);
                self.drain(air);
            }
        }
    }

    fn handle_frame(&mut self, _at: StationId, frame: &Heard, air: &mut AirContext<'_, '_>) {
        let Frame::Data { packet, .. } = frame.body else {
            return;
        };
        match feedback_of(&packet) {
            Some(feedback) => {
                self.handle_feedback(feedback, air.now());
                self.drain(air);
            }
            None => {
                air.forward(self.stations[OWN], packet);
            }
        }
    }

    fn handle_finished(&mut self, at: StationId, sent: &Finished, air: &mut AirContext<'_, '_>) {
        let link = usize::from(at == self.stations[SHARED] && self.stations[OWN] != at);
        match (sent.body, &mut self.searching) {
            (Frame::Striped { packet, .. }, searching) => {
                if let Some(searching) = searching.as_mut().filter(|_| link == OWN && sent.acknowledged) {
                    searching.handle_delivered(u32::from(packet.size));
                }
                self.inner.handle_answer(link, sent.acknowledged);
                self.drain(air);
            }
            (Frame::Null { .. }, Some(searching)) => searching.handle_probe(sent.acknowledged, air),
            _ => {}
        }
    }

    fn handle_timer(&mut self, tag: u16, air: &mut AirContext<'_, '_>) {
        match (tag, &mut self.searching) {
            (BEACON_TAG, Some(searching)) => {
                air.after(BEACON, BEACON_TAG);
                searching.handle_beacon(&mut self.inner, air);
            }
            (ANNOUNCE_TAG, Some(searching)) => searching.send_beacon(air),
            (_, searching) => {
                let measured = searching
                    .as_ref()
                    .and_then(|searching| searching.measured(&self.inner));
                self.inner.handle_timeout(measured, air.now());
            }
        }
        self.drain(air);
    }
}

/// Timer of a machine, which has no other. It may fire early, which costs less than re-arming it
/// for every packet.
#[derive(Debug, Default)]
struct Alarm {
    timer: Option<TimerId>,
    armed: Option<Instant>,
}

impl Alarm {
    fn set(&mut self, due: Option<Instant>, air: &mut AirContext<'_, '_>) {
        let timer = *self.timer.get_or_insert_with(|| air.timer(0));
        let pending = self.armed.filter(|armed| *armed > air.now());
        if let Some(due) = due
            && pending.is_none_or(|pending| due < pending)
        {
            air.arm(timer, due);
            self.armed = Some(due);
        }
    }
}

/// Returns the packet of a feedback report.
fn feedback_packet(feedback: Feedback, now: Instant) -> Packet {
    let mark = match feedback {
        Feedback::Less => 0,
        Feedback::Keep => 1,
        Feedback::More => 2,
    };
    Packet {
        source: Address::default(),
        destination: Address::default(),
        source_port: FEEDBACK,
        destination_port: FEEDBACK,
        flow: FlowId::default(),
        size: FEEDBACK_LEN,
        ecn: Ecn::NotCapable,
        sent: now,
        body: Body::Datagram(Datagram {
            number: 0,
            stamp: now,
            mark,
        }),
    }
}

fn feedback_of(packet: &Packet) -> Option<Feedback> {
    let Body::Datagram(datagram) = packet.body else {
        return None;
    };
    let is_feedback = packet.source_port == FEEDBACK && packet.destination_port == FEEDBACK;
    is_feedback.then_some(match datagram.mark {
        0 => Feedback::Less,
        1 => Feedback::Keep,
        _ => Feedback::More,
    })
}

/// Port of feedback. Source: the largest number, since hosts count from zero.
const FEEDBACK: u16 = u16::MAX;
/// Length of a UDP datagram with four bytes of content (RFC 791, RFC 768). Units: IP bytes.
const FEEDBACK_LEN: u16 = 32;
/// Length of the IP option with number and link. Source: Multifacet section 4. Units: bytes.
const OPTION: u32 = 8;
