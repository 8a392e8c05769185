//! Repeater of Multifacet.

use hawser_netem::air::phy::DATA_OVERHEAD;
use std::collections::BTreeMap;

use hawser_netem::air::{Frame, Outgoing, StationId};
use hawser_radio::striping::THRESHOLD;
use hawser_radio::striping::access_point::{OWN, SHARED};
use hawser_radio::striping::following::{self, Follower};
use hawser_radio::striping::reorder::{self, Reorder};
use hawser_radio::striping::throttle::{Monitor, MonitorConfig};

use super::queue::FairQueue;
use super::searching::RETUNE;
use super::{Alarm, feedback_packet};
use crate::network::LinkId;
use crate::packet::{Address, Packet};
use crate::radio::{AirContext, Finished, Heard, Machine};

/// Parameters of a repeater.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RepeaterConfig {
    /// Reordering; `None` forwards packets on arrival.
    pub reorder: Option<reorder::Config>,
    /// Monitoring of its queue; `None` sends no reports.
    pub monitor: Option<MonitorConfig>,
    /// Queue of packets for clients.
    pub queue: Waiting,
    /// Link for packets to the access point that are not pinned.
    pub upward: usize,
    /// Set if the own link follows the access point to other channels; in the meantime packets to
    /// the access point use the shared link.
    pub follows: bool,
}

/// Queue of packets for clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Waiting {
    /// First in, first out, with this limit.
    InOrder(usize),
    /// FQ-CoDel (RFC 8290), with two transmissions of packets at the radio.
    Fair,
}

/// Repeater that forwards striped packets of an access point to clients on the shared channel, or
/// to its wire, which belongs to its first station.
#[derive(Debug)]
pub struct RepeaterMachine {
    stations: [StationId; 2],
    access_point: [StationId; 2],
    config: RepeaterConfig,
    pinned: BTreeMap<Address, usize>,
    reorder: Reorder<Packet>,
    monitor: Option<Monitor>,
    alarm: Alarm,
    ready: Vec<Packet>,
    /// Packets for clients at the radio.
    unsent: usize,
    fair: FairQueue,
    overflowed: u64,
    lost: u64,
    follower: Option<Follower>,
}

impl RepeaterMachine {
    /// Creates a repeater with the stations of its own and of the access point's [`OWN`] and
    /// [`SHARED`] links.
    #[must_use]
    pub fn new(stations: [StationId; 2], access_point: [StationId; 2], config: RepeaterConfig) -> Self {
        Self {
            stations,
            access_point,
            reorder: Reorder::new(config.reorder.unwrap_or_default()),
            monitor: None,
            pinned: BTreeMap::new(),
            alarm: Alarm::default(),
            ready: Vec::new(),
            unsent: 0,
            fair: FairQueue::new(),
            overflowed: 0,
            lost: 0,
            follower: None,
            config,
        }
    }

    /// Sends all packets from an address to the access point on one link, as flow-level routing
    /// does.
    pub fn pin(&mut self, address: Address, link: usize) {
        self.pinned.insert(address, link);
    }

    /// Returns the machine that follows the access point to other channels, if enabled.
    #[must_use]
    pub fn follower(&self) -> Option<&Follower> {
        self.follower.as_ref()
    }

    /// Returns the reordering machine.
    #[must_use]
    pub fn reorder(&self) -> &Reorder<Packet> {
        &self.reorder
    }

    /// Returns the number of packets that wait for clients.
    #[must_use]
    pub fn unsent(&self) -> usize {
        self.unsent + self.fair.len()
    }

    /// Returns the numbers of packets for clients that were dropped by the queue, and that failed
    /// on the air.
    #[must_use]
    pub fn lost(&self) -> (u64, u64) {
        (self.overflowed + self.fair.dropped(), self.lost)
    }

    fn pass(&mut self, air: &mut AirContext<'_, '_>) {
        for packet in std::mem::take(&mut self.ready) {
            self.deliver(packet, air);
        }
        self.report(air);
    }

    /// Delivers to the client's station, or to the wire if there is none.
    fn deliver(&mut self, packet: Packet, air: &mut AirContext<'_, '_>) {
        match air.station_of(packet.destination) {
            None => {
                air.forward(self.stations[OWN], packet);
            }
            Some(client) => match self.config.queue {
                Waiting::InOrder(most) if self.unsent >= most => self.overflowed += 1,
                Waiting::InOrder(_) => self.send(client, packet, air),
                Waiting::Fair => {
                    self.fair.push(packet, air.now());
                    self.feed(air);
                }
            },
        }
    }

    fn send_up(&mut self, packet: Packet, air: &mut AirContext<'_, '_>) {
        let pinned = self.pinned.get(&packet.source).copied();
        let is_away = self
            .follower
            .as_ref()
            .is_some_and(|follower| !follower.is_settled());
        let link = pinned.unwrap_or(if is_away { SHARED } else { self.config.upward });
        air.send_packet(self.stations[link], self.access_point[link], packet);
    }

    fn send(&mut self, client: StationId, packet: Packet, air: &mut AirContext<'_, '_>) {
        if air.send_packet(self.stations[SHARED], client, packet) {
            self.unsent += 1;
        } else {
            self.overflowed += 1;
        }
    }

    /// Moves packets from the fair queue to the radio.
    fn feed(&mut self, air: &mut AirContext<'_, '_>) {
        while self.unsent < 2 * THRESHOLD
            && let Some(packet) = self.fair.pop(air.now())
            && let Some(client) = air.station_of(packet.destination)
        {
            self.send(client, packet, air);
        }
    }

    fn report(&mut self, air: &mut AirContext<'_, '_>) {
        let following = self.follower.as_ref().map(Follower::poll_timeout);
        let due = self.reorder.poll_timeout().into_iter().chain(following).min();
        let Some(monitor) = &mut self.monitor else {
            self.alarm.set(due, air);
            return;
        };
        monitor.handle_queue(self.unsent + self.fair.len());
        while let Some(feedback) = monitor.poll_transmit() {
            let frame = Outgoing {
                to: Some(self.access_point[OWN]),
                len: u32::from(super::FEEDBACK_LEN) + DATA_OVERHEAD,
                body: Frame::Data {
                    packet: feedback_packet(feedback, air.now()),
                    more: false,
                    power_save: false,
                },
                urgent: true,
            };
            air.send(self.stations[OWN], frame);
        }
        let report = monitor.poll_timeout();
        self.alarm
            .set(Some(due.map_or(report, |due| due.min(report))), air);
    }

    fn is_access_point(&self, station: StationId) -> bool {
        self.access_point.contains(&station)
    }
}

impl Machine for RepeaterMachine {
    fn handle_start(&mut self, air: &mut AirContext<'_, '_>) {
        // A random phase avoids that reports are synchronized with other repeaters or with events
        // at full seconds.
        self.monitor = self.config.monitor.map(|config| {
            let phase = config.period.mul_f64(air.random("reports").uniform());
            Monitor::new(config, air.now() + phase)
        });
        if self.config.follows {
            let channel = air.channel(self.stations[OWN]);
            self.follower = Some(Follower::new(following::Config::default(), channel, air.now()));
        }
        self.report(air);
    }

    fn handle_packet(&mut self, packet: Packet, _link: LinkId, air: &mut AirContext<'_, '_>) {
        self.send_up(packet, air);
    }

    fn handle_frame(&mut self, _at: StationId, frame: &Heard, air: &mut AirContext<'_, '_>) {
        if frame.from == self.access_point[OWN]
            && let Some(follower) = &mut self.follower
        {
            follower.handle_heard(air.now());
        }
        match frame.body {
            Frame::Beacon(beacon) if frame.from == self.access_point[OWN] => {
                if let (Some((channel, beacons)), Some(follower)) = (beacon.moves, &mut self.follower) {
                    follower.handle_announcement(channel, beacons, beacon.due, air.now());
                    self.report(air);
                }
            }
            Frame::Striped { packet, number } if self.config.reorder.is_some() => {
                self.reorder
                    .handle_packet(number, packet, air.now(), &mut self.ready);
                self.pass(air);
            }
            Frame::Striped { packet, .. } | Frame::Data { packet, .. }
                if self.is_access_point(frame.from) =>
            {
                self.ready.push(packet);
                self.pass(air);
            }
            Frame::Data { packet, .. } => self.send_up(packet, air),
            Frame::Striped { .. }
            | Frame::Null { .. }
            | Frame::PsPoll
            | Frame::Beacon(_)
            | Frame::ProbeRequest
            | Frame::ProbeResponse { .. }
            | Frame::Authenticate
            | Frame::Authenticated
            | Frame::Associate
            | Frame::Associated { .. }
            | Frame::Deauthenticate => {}
        }
    }

    fn handle_finished(&mut self, at: StationId, sent: &Finished, air: &mut AirContext<'_, '_>) {
        let is_for_client = sent.to.is_some_and(|to| !self.is_access_point(to));
        if at == self.stations[SHARED] && is_for_client {
            self.unsent = self.unsent.saturating_sub(1);
            self.lost += u64::from(!sent.acknowledged);
            self.feed(air);
            self.report(air);
        }
    }

    fn handle_timer(&mut self, _tag: u16, air: &mut AirContext<'_, '_>) {
        let now = air.now();
        self.reorder.handle_timeout(now, &mut self.ready);
        if let Some(channel) = self
            .follower
            .as_mut()
            .and_then(|follower| follower.handle_timeout(now))
        {
            air.tune(self.stations[OWN], channel, RETUNE);
        }
        if let Some(monitor) = &mut self.monitor {
            monitor.handle_timeout(now);
        }
        self.pass(air);
    }
}
