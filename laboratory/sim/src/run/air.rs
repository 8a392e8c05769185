//! The air of a scenario: an access point and a station for each network that has one, and
//! strangers beside them.
//!
//! ```text
//!   server -- down --> access point ~~~ station -- bus --> client        (and back: bus, air, up)
//! ```
//! Every station hears every other one of its channel; how well a network's own two read each other
//! is what the scenario says. Networks with slots have one station of the client together, which
//! visits their channels in turn.

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
use crate::host::{End, Host, Way, join};
use crate::network::{Network, NodeId};
use crate::packet::{Address, FlowId};
use crate::radio::{ClientMachine, JugglerMachine, Marking, Radio, wire, wire_both};

/// The radio node of a scenario, with what belongs to whom.
pub(super) struct Air {
    pub(super) node: NodeId,
    stations: Stations,
    heard: Vec<Option<Heard>>,
}

/// A network's access point as the client hears it.
#[derive(Clone)]
pub(super) struct Heard {
    channel: u16,
    /// With all others of the channel.
    comparison: Rc<RefCell<AccessPoints>>,
    place: usize,
}

impl Heard {
    /// What its packets take of the air; `None` while that is not known.
    pub(super) fn airtime(&self, now: Instant) -> Option<Airtime> {
        self.comparison.borrow().airtime(self.place, self.channel, now)
    }
}

#[derive(Default)]
struct Stations {
    /// Of every station, in their order.
    names: Vec<String>,
    /// Access point and client of each network that has them.
    pairs: Vec<Option<(StationId, StationId)>>,
    /// What a network is to the radio that it shares.
    slots: Vec<Option<NetworkId>>,
    /// The same of each stranger, with the load.
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

    /// Joins the stations of network `index` to its two ends; `None` when it has none.
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

    /// Says that `address` is at a station.
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
            let way = |link, local, remote| [Way { link, local, remote }];
            let source = End {
                host: server,
                application: Box::new(Cbr::new(*rate, STRANGE_DATAGRAM, (start, end))),
                ways: &way(down.to_radio, far, near),
            };
            let sink = End {
                host: laptop,
                application: Box::new(DatagramSink::default()),
                ways: &way(up.to_radio, near, far),
            };
            join(network, FlowId(FIRST_STRANGER + index as u32), source, sink);
        }
    }

    /// The access point of each network whose air is to be reckoned with.
    pub(super) fn heard(&self) -> &[Option<Heard>] {
        &self.heard
    }

    /// Whether a client marks packets.
    pub(super) fn marks(scenario: &Scenario) -> bool {
        let wifi = |network: &hawser_netem::scenario::Network| network.wifi.as_ref().map(|wifi| wifi.marks);
        scenario.networks.iter().filter_map(wifi).any(|marks| marks)
    }

    pub(super) fn record(&self, network: &mut Network) {
        let radio: &mut Radio = network.node_mut(self.node).expect("it was added as a radio");
        radio.record();
    }

    /// What was recorded, as a page.
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

/// The networks that share a radio, by their places, and how their slots are made.
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

/// Adds the access points of networks with slots, and the one radio that visits them; gives the
/// stations of each.
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

/// Lets the client compare its access points on a channel, where the scenario says so: it marks
/// what comes from the worse ones, or gives what is to be told.
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
        if wifi.tells && gate.place() == 0 {
            gate = gate.counting_all_but(own.clone());
        }
        let heard = Heard {
            channel: wifi.channel,
            comparison: comparison.clone(),
            place: gate.place(),
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

/// The slot of weight one.
const MILLISECOND: Duration = Duration::from_millis(1);
/// Full datagrams. Units: bytes of UDP payload.
const STRANGE_DATAGRAM: u16 = 1472;
/// Flows of workloads are numbered from 1.
const FIRST_STRANGER: u32 = 1 << 16;
/// Frames in one transmission of 802.11n: what 4 ms hold at the middle rates.
const AGGREGATE: u16 = 16;
