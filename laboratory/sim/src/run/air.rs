//! 802.11 links of a scenario: an access point and a station for each network with `wifi`, and
//! stations of others.
//!
//! ```text
//!   server -- down --> access point ~~~ station -- bus --> client        (and back: bus, air, up)
//! ```
//! All stations of a channel hear each other; the scenario states the signal between the two
//! stations of a network. Networks with slots share one station of the client, which visits their
//! channels in turn.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use hawser_netem::LinkConfig;
use hawser_netem::air::phy::Standard;
use hawser_netem::air::{AccessPointConfig, RateControl, Signal, StationConfig, StationId};
use hawser_netem::scenario::{Scenario, Slots, Wifi};
use hawser_radio::delivery::{AccessPoints, slots};
use hawser_radio::slots::{Config, NetworkConfig, NetworkId, SlotSchedule};
use hawser_units::{Duration, Instant, Rate};
use hawser_wire::airtime::Airtime;

use super::{Hop, RunError};
use crate::app::{Cbr, DatagramSink};
use crate::host::{End, Host, Route, join};
use crate::network::{Network, NodeId};
use crate::packet::{Address, FlowId};
use crate::radio::{ClientMachine, JugglerMachine, Marking, Radio, wire, wire_both};

/// The radio node of a scenario, and the owners of its stations.
pub(super) struct Air {
    pub(super) node: NodeId,
    stations: Stations,
    heard: Vec<Option<Heard>>,
}

/// Access point of a network, as the client receives it.
#[derive(Clone)]
pub(super) struct Heard {
    channel: u16,
    /// Comparison with the other access points of the channel.
    comparison: Rc<RefCell<AccessPoints>>,
    index: usize,
}

impl Heard {
    /// Returns the airtime per packet; `None` while unknown.
    pub(super) fn airtime(&self, now: Instant) -> Option<Airtime> {
        self.comparison.borrow().airtime(self.index, self.channel, now)
    }
}

#[derive(Default)]
struct Stations {
    /// Names of the stations, in order.
    names: Vec<String>,
    /// Access point and client of each network that has them.
    pairs: Vec<Option<(StationId, StationId)>>,
    /// Network of the shared radio, if any.
    slots: Vec<Option<NetworkId>>,
    /// Stations of each pair of others, with the load.
    strangers: Vec<(StationId, StationId, Rate)>,
}

impl Air {
    /// Adds a radio with all stations; `None` when the scenario has none.
    pub(super) fn build(scenario: &Scenario, network: &mut Network) -> Result<Option<Self>, RunError> {
        if scenario.networks.iter().all(|network| network.wifi.is_none()) {
            return Ok(None);
        }
        let mut radio = Radio::new(network.streams().seed("air"));
        let mut stations = Stations::default();
        let shared = share(scenario, &mut radio, &mut stations)?;
        for (index, described) in scenario.networks.iter().enumerate() {
            let Some(wifi) = &described.wifi else {
                stations.pairs.push(None);
                continue;
            };
            let pair = match shared[index] {
                Some(pair) => pair,
                None => stations.add_pair(&mut radio, wifi, &described.name),
            };
            stations.pairs.push(Some(pair));
            for (number, rate) in wifi.neighbours.iter().enumerate() {
                let name = format!("{} {}", described.name, number + 1);
                let (ap, client) = stations.add_pair(&mut radio, wifi, &name);
                stations.strangers.push((ap, client, *rate));
            }
        }
        let all: Vec<StationId> = (0..stations.names.len() as u16).map(StationId).collect();
        radio.set_all_signals(&all, &Signal::clear());
        for (described, pair) in scenario.networks.iter().zip(&stations.pairs) {
            if let (Some(wifi), Some((ap, client))) = (&described.wifi, pair) {
                radio.set_signals(*ap, *client, &wifi.signal);
            }
        }
        let heard = compare_access_points(scenario, &stations.pairs, &mut radio);
        Ok(Some(Self {
            node: network.add(radio),
            stations,
            heard,
        }))
    }

    /// Connects the stations of network `index` to its two ends; `None` if it has none.
    pub(super) fn wire(
        &self,
        index: usize,
        name: &str,
        (near, far): (NodeId, NodeId),
        (down, up): (LinkConfig, LinkConfig),
        network: &mut Network,
    ) -> Option<Hop> {
        let (ap, client) = self.stations.pairs[index]?;
        let behind = wire_both(network, name, (self.node, ap), far, (down, up));
        let bus = wire(
            network,
            &format!("{name}:bus"),
            self.node,
            client,
            near,
            LinkConfig::default(),
        );
        if let Some(id) = self.stations.slots[index] {
            let radio: &mut Radio = network.node_mut(self.node).expect("it was added as a radio");
            let machine: &mut JugglerMachine = radio.machine_mut(client).expect("it has slots");
            machine.set_wire(id, bus);
        }
        Some(Hop {
            carries: [behind.to_radio, behind.from_radio],
            sends: [behind.to_radio, bus.to_radio],
            arrives: [bus.from_radio, behind.from_radio],
            station: Some(client),
            local: None,
            is_translated: false,
        })
    }

    /// Assigns `address` to a station.
    pub(super) fn assign(&self, address: Address, station: StationId, network: &mut Network) {
        let radio: &mut Radio = network.node_mut(self.node).expect("it was added as a radio");
        radio.assign(address, station);
    }

    /// Lets the strangers send until `end`.
    pub(super) fn start_strangers(&self, network: &mut Network, (start, end): (Instant, Instant)) {
        for (index, (ap, client, rate)) in self.stations.strangers.iter().enumerate() {
            let (server, laptop) = (network.add(Host::default()), network.add(Host::default()));
            let (far, near) = (network.address(server), network.address(laptop));
            self.assign(near, *client, network);
            let cable = LinkConfig::default;
            let down = wire(
                network,
                &format!("stranger {index}"),
                self.node,
                *ap,
                server,
                cable(),
            );
            let up = wire(
                network,
                &format!("stranger {index}:bus"),
                self.node,
                *client,
                laptop,
                cable(),
            );
            let route = |link, local, remote| [Route { link, local, remote }];
            let source = End {
                host: server,
                application: Box::new(Cbr::new(*rate, STRANGE_DATAGRAM, (start, end))),
                routes: &route(down.to_radio, far, near),
            };
            let sink = End {
                host: laptop,
                application: Box::new(DatagramSink::default()),
                routes: &route(up.to_radio, near, far),
            };
            join(network, FlowId(FIRST_STRANGER + index as u32), source, sink);
        }
    }

    /// Returns the access point of each network whose airtime is considered.
    pub(super) fn heard(&self) -> &[Option<Heard>] {
        &self.heard
    }

    /// Returns whether a client marks packets.
    pub(super) fn marks(scenario: &Scenario) -> bool {
        let wifi = |network: &hawser_netem::scenario::Network| network.wifi.as_ref().map(|wifi| wifi.marks);
        scenario.networks.iter().filter_map(wifi).any(|marks| marks)
    }

    pub(super) fn record(&self, network: &mut Network) {
        let radio: &mut Radio = network.node_mut(self.node).expect("it was added as a radio");
        radio.record();
    }

    /// Returns the recording as a page.
    pub(super) fn timeline(&self, title: &str, network: &Network) -> Option<String> {
        let radio: &Radio = network.node(self.node)?;
        Some(radio.timeline(title, self.stations.names.clone()))
    }
}

impl Stations {
    fn add_pair(&mut self, radio: &mut Radio, wifi: &Wifi, name: &str) -> (StationId, StationId) {
        let ap = radio.add_access_point(station(wifi), AccessPointConfig::default());
        let client = radio.add_client(station(wifi), ap);
        self.names
            .extend([format!("{name}: access point"), format!("{name}: station")]);
        (ap, client)
    }
}

/// Networks that share a radio, by index, and the rule of their slots.
struct Sharing<'a> {
    networks: Vec<(usize, &'a str, &'a Wifi)>,
    slots: Slots,
}

/// `None` when no network has slots.
fn with_slots(scenario: &Scenario) -> Result<Option<Sharing<'_>>, RunError> {
    let networks = scenario.networks.iter().enumerate();
    let found = networks.filter_map(|(index, network)| {
        let wifi = network.wifi.as_ref()?;
        Some(((index, network.name.as_str(), wifi), wifi.slots?))
    });
    let (networks, kinds): (Vec<_>, Vec<_>) = found.unzip();
    let (Some((.., first)), Some(&slots)) = (networks.first(), kinds.first()) else {
        return Ok(None);
    };
    let is_alike = |(.., wifi): &(usize, &str, &Wifi)| wifi.standard == first.standard && !wifi.marks;
    if networks.iter().all(is_alike) && kinds.iter().all(|kind| *kind == slots) {
        Ok(Some(Sharing { networks, slots }))
    } else {
        Err(RunError::Slots)
    }
}

/// Adds the access points of networks with slots, and the one radio that visits them; returns the
/// stations of each network.
fn share(
    scenario: &Scenario,
    radio: &mut Radio,
    stations: &mut Stations,
) -> Result<Vec<Option<(StationId, StationId)>>, RunError> {
    let mut pairs = vec![None; scenario.networks.len()];
    stations.slots = vec![None; scenario.networks.len()];
    let Some(Sharing { networks, slots }) = with_slots(scenario)? else {
        return Ok(pairs);
    };
    let mut points = Vec::new();
    for (_, name, wifi) in &networks {
        points.push(radio.add_access_point(station(wifi), AccessPointConfig::default()));
        stations.names.push(format!("{name}: access point"));
    }
    stations.names.push("shared radio".to_owned());
    let first = networks[0].2;
    let client = radio.add_machine(vec![station(first)], |own| {
        let config = Config {
            slot: MILLISECOND,
            ..Config::default()
        };
        let cycle = slots::Config::default();
        let weight = (cycle.cycle / networks.len() as u32).as_millis() as u32;
        let mut machine =
            JugglerMachine::new(own[0], SlotSchedule::new(config, first.channel, Instant::ZERO));
        for ((index, _, wifi), point) in networks.iter().zip(&points) {
            let network = NetworkConfig::access_point(*index as u32, *point, wifi.channel);
            stations.slots[*index] = Some(machine.add(network.weight(weight), None));
        }
        if slots == Slots::Adaptive {
            machine.set_adaptive(cycle);
        }
        machine
    })[0];
    for ((index, ..), point) in networks.iter().zip(points) {
        pairs[*index] = Some((point, client));
    }
    Ok(pairs)
}

/// Makes the client compare its access points on a channel if the scenario requires it: it marks
/// packets of the worse ones, or reports the airtime.
fn compare_access_points(
    scenario: &Scenario,
    pairs: &[Option<(StationId, StationId)>],
    radio: &mut Radio,
) -> Vec<Option<Heard>> {
    let mut channels: BTreeMap<u16, Rc<RefCell<AccessPoints>>> = BTreeMap::new();
    let mut all = Vec::new();
    let own: Vec<StationId> = pairs
        .iter()
        .flatten()
        .flat_map(|(ap, client)| [*ap, *client])
        .collect();
    for (described, pair) in scenario.networks.iter().zip(pairs) {
        // A card in slots has one access point of each channel at a time.
        let compares = |wifi: &&Wifi| wifi.marks || (wifi.tells && wifi.slots.is_none());
        let wifi = described.wifi.as_ref().filter(compares);
        let (Some(wifi), Some((ap, client))) = (wifi, pair) else {
            all.push(None);
            continue;
        };
        let comparison = channels.entry(wifi.channel).or_insert_with(|| {
            let seed = scenario.seed.wrapping_add(u64::from(wifi.channel));
            Rc::new(RefCell::new(AccessPoints::new(Default::default(), seed)))
        });
        let mut gate = Marking::join(comparison, *ap, *client);
        if wifi.tells && gate.index() == 0 {
            gate = gate.counting_all_but(own.clone());
        }
        let heard = Heard {
            channel: wifi.channel,
            comparison: comparison.clone(),
            index: gate.index(),
        };
        all.push(wifi.tells.then_some(heard));
        let machine: &mut ClientMachine = radio.machine_mut(*client).expect("it was added as a client");
        machine.set_gate(0, gate);
    }
    all
}

fn station(wifi: &Wifi) -> StationConfig {
    let rates = wifi.standard.rates();
    let rate = wifi
        .rate
        .map_or_else(|| RateControl::throughput(rates), RateControl::fixed);
    let lowest = wifi.standard.lowest();
    StationConfig {
        rate,
        aggregate: if wifi.standard == Standard::N {
            AGGREGATE
        } else {
            1
        },
        monitor: wifi.marks || wifi.tells,
        ..StationConfig::fixed(wifi.standard, wifi.channel, lowest)
    }
}

/// Slot of weight one. Source: definition of the unit.
const MILLISECOND: Duration = Duration::from_millis(1);
/// Payload of a full datagram (RFC 894, RFC 791, RFC 768). Units: bytes of UDP payload.
const STRANGE_DATAGRAM: u16 = 1472;
/// Number of the first flow of other stations: flows of workloads are numbered from 1. Source: our
/// choice, above all numbers of workloads.
const FIRST_STRANGER: u32 = 1 << 16;
/// Maximum number of frames in one transmission of 802.11n: 4 ms at the middle rates. Source: our
/// choice; drivers limit an aggregate to some 4 ms.
const AGGREGATE: u16 = 16;
