//! Shared 802.11 medium as a node: stations with machines above the medium, and their wires.
//!
//! A [`Radio`] owns one [`Air`] with all its channels. Each station belongs to a [`Machine`]: an
//! access point ([`ApMachine`]), a plain client ([`ClientMachine`], of one or several access
//! points), or a type of your own, which may own several stations. Wired links end in the radio as
//! in any node: a packet that a link delivers is passed to the machine to which the link is wired.
//!
//! Scope: everything that [`hawser_netem::air`] models; several access points and clients on any
//! channels; signals that change over time.
//! Limitations: an address belongs to one station; no ARP, no encryption.
//!
//! ```text
//!   host -- link --> ( machine | station ~~~ air ~~~ station | machine ) -- link --> host
//!                    \---------------------- Radio ------------------/
//!   packet of a link -> handle_packet     frame of the air -> handle_frame, handle_heard     done with own frame -> handle_finished
//! ```
//!
//! # Usage
//! A download through one access point:
//! ```
//! use hawser_netem::LinkConfig;
//! use hawser_netem::air::phy::{PhyRate, Standard};
//! use hawser_netem::air::{AccessPointConfig, Signal, StationConfig};
//! use hawser_sim::app::{TcpSink, TcpSource};
//! use hawser_sim::host::{End, Host, Route, join};
//! use hawser_sim::radio::{ApMachine, ClientMachine, Radio, wire};
//! use hawser_sim::tcp::Config;
//! use hawser_sim::{FlowId, Network};
//! use hawser_units::{Duration, Instant};
//!
//! let mut network = Network::new(1);
//! let (server, laptop) = (network.add(Host::default()), network.add(Host::default()));
//! let (far, near) = (network.address(server), network.address(laptop));
//! let mut radio = Radio::new(network.streams().seed("air"));
//! let config = StationConfig::fixed(Standard::A, 36, PhyRate::Ofdm(54));
//! let ap = radio.add_access_point(config.clone(), AccessPointConfig::default());
//! let client = radio.add_client(config, ap);
//! radio.set_signals(ap, client, &Signal::clear());
//! radio.assign(near, client);
//! let air = network.add(radio);
//! let backhaul = wire(&mut network, "backhaul", air, ap, server, LinkConfig::default());
//! let bus = wire(&mut network, "bus", air, client, laptop, LinkConfig::default());
//! let start = Instant::ZERO + Duration::from_millis(100); // when the client has joined
//! let (_, sink) = join(
//!     &mut network,
//!     FlowId(1),
//!     End {
//!         host: server,
//!         application: Box::new(TcpSource::new(Config::linux(), None, start)),
//!         routes: &[Route { link: backhaul.to_radio, local: far, remote: near }],
//!     },
//!     End {
//!         host: laptop,
//!         application: Box::new(TcpSink::new(Config::linux(), None, Instant::ZERO)),
//!         routes: &[Route { link: bus.to_radio, local: near, remote: far }],
//!     },
//! );
//! let end = Instant::ZERO + Duration::from_secs(2);
//! network.run(end);
//! let laptop: &Host = network.node(laptop).unwrap();
//! let rate = laptop.application::<TcpSink>(sink).unwrap().meter().rate(start, end);
//! assert!(rate > 22e6, "{rate}");
//! ```

mod access_point;
mod client;
mod context;
mod juggler;
mod marking;
mod multifacet;
mod peer;
#[cfg(test)]
mod tests;
mod timeline;

use std::any::Any;

use hawser_netem::LinkConfig;
use hawser_netem::air::{
    AccessPointConfig, Air, AirEvent, Frame, Reception, Signal, StationConfig, StationId, Transmitted,
};
use hawser_units::{Duration, Instant};

use crate::engine::TimerId;
use crate::network::{Context, LinkId, Network, Node, NodeId};
use crate::packet::{Address, Packet};

pub use access_point::{ApCounters, ApMachine};
pub use client::ClientMachine;
pub use context::{AirContext, Finished};
pub use juggler::{JugglerMachine, Note, dhcp_message, dhcp_packet};
pub use marking::Marking;
pub use multifacet::{RepeaterConfig, RepeaterMachine, SearchPlan, StripingMachine, Waiting};
pub use peer::PeerMachine;
pub use timeline::{Slot, Timeline};

/// Frame as received by a station of the simulator.
pub type Heard = Reception<Frame<Packet>>;

/// Machine above the medium on one or several stations.
pub trait Machine: Any {
    /// Handles the start, before any other event.
    fn handle_start(&mut self, air: &mut AirContext<'_, '_>) {
        let _ = air;
    }

    /// Handles a packet from a link that is wired to this machine.
    fn handle_packet(&mut self, packet: Packet, link: LinkId, air: &mut AirContext<'_, '_>);

    /// Handles a frame for the station `at`, or a broadcast: once, in order.
    fn handle_frame(&mut self, at: StationId, frame: &Heard, air: &mut AirContext<'_, '_>);

    /// Handles a frame that a monitoring station received: its own, another station's or a
    /// retransmitted one. Frames for the station are passed to [`Self::handle_frame`] as well.
    fn handle_heard(&mut self, at: StationId, frame: &Heard, air: &mut AirContext<'_, '_>) {
        let _ = (at, frame, air);
    }

    /// Handles the end of a transmission of the station `at`.
    fn handle_finished(&mut self, at: StationId, sent: &Finished, air: &mut AirContext<'_, '_>) {
        let _ = (at, sent, air);
    }

    /// Handles a timer; `tag` is the tag of its creation.
    fn handle_timer(&mut self, tag: u16, air: &mut AirContext<'_, '_>) {
        let _ = (tag, air);
    }

    /// Returns the past slots of the machine's radio, the last one until the present, for
    /// [`Timeline`].
    fn slots(&self, until: Instant) -> Vec<Slot> {
        let _ = until;
        Vec::new()
    }
}

/// Filter that sees the packets of a machine, may mark or drop them, and sees the frames that its
/// station receives.
///
/// On an access point, packets pass on their way to the air; on a client, on their way from the air
/// to IP.
pub trait Gate: Any {
    /// Handles a packet. Returns whether it may pass.
    fn handle_packet(&mut self, packet: &mut Packet, sample: HopSample) -> bool {
        let _ = (packet, sample);
        true
    }

    /// Handles a frame that a monitoring station received.
    fn handle_heard(&mut self, at: StationId, frame: &Heard, now: Instant) {
        let _ = (at, frame, now);
    }
}

/// State that a [`Gate`] receives with a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HopSample {
    /// Present time.
    pub now: Instant,
    /// Station that the packet passes.
    pub at: StationId,
    /// Station on the other side of the air.
    pub peer: StationId,
    /// Frames that wait at the station.
    pub queued: usize,
    /// Packets buffered for the sleeping peer; zero on a client.
    pub kept: usize,
}

/// Node of the medium and its stations.
pub struct Radio {
    air: Air<Frame<Packet>>,
    machines: Vec<Box<dyn Machine>>,
    /// Machine of each station.
    owners: Vec<usize>,
    /// Machine of each link, by the link's index.
    wired: Vec<Option<usize>>,
    tables: Tables,
    motion: Option<Motion>,
    timer: Option<TimerId>,
    armed: Option<Instant>,
    /// Changes of queues, while recording.
    queues: Option<Vec<(StationId, Instant, usize)>>,
    queued: Vec<usize>,
}

/// Tables that all machines use.
#[derive(Default)]
struct Tables {
    /// Station of each address.
    stations: Vec<Option<StationId>>,
    /// Link from each station to its wire, by station.
    wires: Vec<Option<LinkId>>,
}

type Move = dyn FnMut(Instant, &mut Air<Frame<Packet>>);

struct Motion {
    step: Duration,
    act: Box<Move>,
}

/// Pair of links between a station and a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wire {
    /// Link from the node to the station.
    pub to_radio: LinkId,
    /// Link from the station to the node.
    pub from_radio: LinkId,
}

/// Connects a station of the radio node `radio` to another node, with equal links in both
/// directions, named `<name>-in` and `<name>-out`.
///
/// # Panics
/// When `radio` is no [`Radio`].
pub fn wire(
    network: &mut Network,
    name: &str,
    radio: NodeId,
    station: StationId,
    other: NodeId,
    config: LinkConfig,
) -> Wire {
    wire_both(network, name, (radio, station), other, (config.clone(), config))
}

/// Creates a wire with a separate link in each direction: the first is to the radio.
///
/// # Panics
/// When `radio` is no [`Radio`].
pub fn wire_both(
    network: &mut Network,
    name: &str,
    (radio, station): (NodeId, StationId),
    other: NodeId,
    (inward, outward): (LinkConfig, LinkConfig),
) -> Wire {
    let to_radio = network.connect(&format!("{name}-in"), other, radio, inward);
    let from_radio = network.connect(&format!("{name}-out"), radio, other, outward);
    let node: &mut Radio = network.node_mut(radio).expect("it is a radio");
    let place = to_radio.index();
    if node.wired.len() <= place {
        node.wired.resize(place + 1, None);
    }
    node.wired[place] = Some(node.owners[usize::from(station.0)]);
    node.tables.wires[usize::from(station.0)] = Some(from_radio);
    Wire { to_radio, from_radio }
}

impl Radio {
    /// Creates a medium without stations.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self {
            air: Air::new(seed, Instant::ZERO),
            machines: Vec::new(),
            owners: Vec::new(),
            wired: Vec::new(),
            tables: Tables::default(),
            motion: None,
            timer: None,
            armed: None,
            queues: None,
            queued: Vec::new(),
        }
    }

    /// Adds a machine with its stations; `make` creates it from the stations' ids.
    pub fn add_machine<M: Machine>(
        &mut self,
        stations: Vec<StationConfig>,
        make: impl FnOnce(&[StationId]) -> M,
    ) -> Vec<StationId> {
        let owner = self.machines.len();
        let mut ids = Vec::new();
        for config in stations {
            ids.push(self.air.add_station(config));
            self.owners.push(owner);
            self.tables.wires.push(None);
        }
        self.machines.push(Box::new(make(&ids)));
        ids
    }

    /// Adds an access point. Its first beacon is at a random time within the first interval.
    pub fn add_access_point(&mut self, station: StationConfig, config: AccessPointConfig) -> StationId {
        self.add_machine(vec![station], |ids| ApMachine::new(ids[0], config))[0]
    }

    /// Adds a client that stays with one access point, and never sleeps.
    pub fn add_client(&mut self, station: StationConfig, access_point: StationId) -> StationId {
        self.add_machine(vec![station], |ids| ClientMachine::new(ids[0], access_point))[0]
    }

    /// Routes an address to a station.
    pub fn assign(&mut self, address: Address, station: StationId) {
        let place = address.0 as usize;
        if self.tables.stations.len() <= place {
            self.tables.stations.resize(place + 1, None);
        }
        self.tables.stations[place] = Some(station);
    }

    /// Sets the signal between two stations. Stations without a signal do not receive each other.
    pub fn set_signals(&mut self, a: StationId, b: StationId, signal: &Signal) {
        self.air.set_signals(a, b, signal);
    }

    /// Sets the signal between each two of these stations.
    pub fn set_all_signals(&mut self, stations: &[StationId], signal: &Signal) {
        for (index, a) in stations.iter().enumerate() {
            for b in &stations[index + 1..] {
                self.air.set_signals(*a, *b, signal);
            }
        }
    }

    /// Lets `act` change signals, now and after each `step`, to model motion.
    pub fn set_motion(
        &mut self,
        step: Duration,
        act: impl FnMut(Instant, &mut Air<Frame<Packet>>) + 'static,
    ) {
        self.motion = Some(Motion {
            step,
            act: Box::new(act),
        });
    }

    /// Returns the medium.
    #[must_use]
    pub fn air(&self) -> &Air<Frame<Packet>> {
        &self.air
    }

    /// Returns the medium, to change it before the run.
    pub fn air_mut(&mut self) -> &mut Air<Frame<Packet>> {
        &mut self.air
    }

    /// Records transmissions and queues from now on, for [`Self::timeline`].
    pub fn record(&mut self) {
        self.air.record();
        self.queues.get_or_insert_default();
    }

    /// Returns the recording as a page; `names` are the stations' in order of creation.
    #[must_use]
    pub fn timeline(&self, title: &str, names: Vec<String>) -> String {
        self.timeline_since(title, names, Instant::ZERO)
    }

    /// Returns the recording as a page, with transmissions after `since` only.
    #[must_use]
    pub fn timeline_since(&self, title: &str, names: Vec<String>, since: Instant) -> String {
        let log = self.log();
        let log = &log[log.partition_point(|sent| sent.start < since)..];
        let from = log.first().map_or(Instant::ZERO, |sent| sent.start);
        let until = log.last().map_or(Instant::ZERO, |sent| sent.end);
        let slots = self.machines.iter().flat_map(|machine| machine.slots(until));
        let timeline = Timeline {
            title: title.to_owned(),
            stations: names,
            slots: slots.filter(|(.., end)| *end > from).collect(),
            queues: self.queues.clone().unwrap_or_default(),
        };
        timeline.html(log)
    }

    fn record_queues(&mut self, now: Instant) {
        let Some(queues) = &mut self.queues else { return };
        self.queued.resize(self.owners.len(), 0);
        for (index, known) in self.queued.iter_mut().enumerate() {
            let station = StationId(index as u16);
            let queued = self.air.queued(station);
            if queued != *known {
                *known = queued;
                queues.push((station, now, queued));
            }
        }
    }

    /// Returns the recorded transmissions.
    #[must_use]
    pub fn log(&self) -> &[Transmitted] {
        self.air.log()
    }

    /// Returns the machine of a station; `None` if its type is not `M`.
    #[must_use]
    pub fn machine<M: Machine>(&self, station: StationId) -> Option<&M> {
        let machine: &dyn Any = self.machines[self.owners[usize::from(station.0)]].as_ref();
        machine.downcast_ref()
    }

    /// Returns the machine of a station, to change it before the run; `None` if its type is not
    /// `M`.
    pub fn machine_mut<M: Machine>(&mut self, station: StationId) -> Option<&mut M> {
        let machine: &mut dyn Any = self.machines[self.owners[usize::from(station.0)]].as_mut();
        machine.downcast_mut()
    }

    /// Runs `act` on a machine between two runs; `None` if its type is not `M`.
    pub fn with_machine<M: Machine, R>(
        &mut self,
        station: StationId,
        context: &mut Context<'_>,
        act: impl FnOnce(&mut M, &mut AirContext<'_, '_>) -> R,
    ) -> Option<R> {
        let owner = self.owners[usize::from(station.0)];
        let result = self.with(owner, context, |machine, air| {
            let machine: &mut dyn Any = machine;
            machine.downcast_mut().map(|machine| act(machine, air))
        });
        self.pump(context);
        result
    }

    fn with<R>(
        &mut self,
        owner: usize,
        context: &mut Context<'_>,
        act: impl FnOnce(&mut dyn Machine, &mut AirContext<'_, '_>) -> R,
    ) -> R {
        let mut air = AirContext::new(&mut self.air, &self.tables, context, owner);
        act(self.machines[owner].as_mut(), &mut air)
    }

    /// Passes the medium's events to the machines until no event remains at this instant.
    fn pump(&mut self, context: &mut Context<'_>) {
        self.air.handle_timeout(context.now());
        while let Some(event) = self.air.poll_event() {
            match event {
                AirEvent::Delivered { at, frame } => {
                    let owner = self.owners[usize::from(at.0)];
                    self.with(owner, context, |machine, air| {
                        machine.handle_frame(at, &frame, air)
                    });
                }
                AirEvent::Heard { at, frame } => {
                    let owner = self.owners[usize::from(at.0)];
                    self.with(owner, context, |machine, air| {
                        machine.handle_heard(at, &frame, air)
                    });
                }
                AirEvent::Finished {
                    by,
                    to,
                    body,
                    attempts,
                    acknowledged,
                    rate: _,
                } => {
                    let sent = Finished {
                        to,
                        body,
                        attempts,
                        acknowledged,
                    };
                    let owner = self.owners[usize::from(by.0)];
                    self.with(owner, context, |machine, air| {
                        machine.handle_finished(by, &sent, air);
                    });
                }
            }
        }
        self.record_queues(context.now());
        let due = self.air.poll_timeout();
        if due != self.armed {
            self.armed = due;
            let timer = *self.timer.get_or_insert_with(|| context.timer(AIR_TAG));
            match due {
                Some(at) => context.arm(timer, at),
                None => context.cancel(timer),
            }
        }
    }

    fn move_on(&mut self, context: &mut Context<'_>) {
        if let Some(motion) = &mut self.motion {
            (motion.act)(context.now(), &mut self.air);
            context.after(motion.step, MOTION_TAG);
        }
    }
}

impl Node for Radio {
    fn handle_start(&mut self, context: &mut Context<'_>) {
        self.move_on(context);
        for owner in 0..self.machines.len() {
            self.with(owner, context, |machine, air| machine.handle_start(air));
        }
        self.pump(context);
    }

    fn handle_packet(&mut self, packet: Packet, link: LinkId, context: &mut Context<'_>) {
        if let Some(owner) = self.wired.get(link.index()).copied().flatten() {
            self.with(owner, context, |machine, air| {
                machine.handle_packet(packet, link, air);
            });
            self.pump(context);
        }
    }

    fn handle_timer(&mut self, tag: u32, context: &mut Context<'_>) {
        self.air.handle_timeout(context.now());
        match tag {
            AIR_TAG => self.armed = None,
            MOTION_TAG => self.move_on(context),
            _ => {
                let (owner, tag) = ((tag >> 16) as usize, tag as u16);
                self.with(owner, context, |machine, air| machine.handle_timer(tag, air));
            }
        }
        self.pump(context);
    }
}

impl core::fmt::Debug for Radio {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Radio")
            .field("stations", &self.owners.len())
            .field("machines", &self.machines.len())
            .finish_non_exhaustive()
    }
}

/// Tag of the medium's timer; tags of machines have the machine's index in the upper half. Source:
/// the largest numbers.
const AIR_TAG: u32 = u32::MAX;
const MOTION_TAG: u32 = u32::MAX - 1;
