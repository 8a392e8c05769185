//! The air of a scenario: an access point and a station for each network that has one, and strangers beside them.
//!
//! ```text
//!   server -- down --> access point ~~~ station -- bus --> client        (and back: bus, air, up)
//! ```
//! Every station hears every other one of its channel; how well a network's own two read each other is what the scenario says.

use hawser_netem::LinkConfig;
use hawser_netem::air::phy::Standard;
use hawser_netem::air::{AccessPointConfig, RateControl, Signal, StationConfig, StationId};
use hawser_netem::scenario::{Scenario, Wifi};
use hawser_units::{Instant, Rate};

use super::Hop;
use crate::app::{Cbr, DatagramSink};
use crate::host::{End, Host, Way, join};
use crate::network::{Network, NodeId};
use crate::packet::{Address, FlowId};
use crate::radio::{Radio, wire, wire_both};

/// The radio node of a scenario, with what belongs to whom.
pub(super) struct Air {
    pub(super) node: NodeId,
    /// Of every station, in their order.
    names: Vec<String>,
    /// Access point and client of each network that has them.
    pairs: Vec<Option<(StationId, StationId)>>,
    /// The same of each stranger, with the load.
    strangers: Vec<(StationId, StationId, Rate)>,
}

impl Air {
    /// Adds a radio with all stations; `None` when the scenario has none.
    pub(super) fn build(scenario: &Scenario, network: &mut Network) -> Option<Self> {
        scenario.networks.iter().find(|network| network.wifi.is_some())?;
        let mut radio = Radio::new(network.streams().seed("air"));
        let (mut names, mut pairs, mut strangers) = (Vec::new(), Vec::new(), Vec::new());
        let mut pair = |radio: &mut Radio, wifi: &Wifi, name: &str| {
            let ap = radio.add_access_point(station(wifi), AccessPointConfig::default());
            let client = radio.add_client(station(wifi), ap);
            names.extend([format!("{name}: access point"), format!("{name}: station")]);
            (ap, client)
        };
        for described in &scenario.networks {
            let Some(wifi) = &described.wifi else {
                pairs.push(None);
                continue;
            };
            pairs.push(Some(pair(&mut radio, wifi, &described.name)));
            for (index, rate) in wifi.neighbours.iter().enumerate() {
                let (ap, client) = pair(&mut radio, wifi, &format!("{} {}", described.name, index + 1));
                strangers.push((ap, client, *rate));
            }
        }
        let all: Vec<StationId> = (0..names.len() as u16).map(StationId).collect();
        radio.set_all_signals(&all, &Signal::clear());
        for (described, pair) in scenario.networks.iter().zip(&pairs) {
            if let (Some(wifi), Some((ap, client))) = (&described.wifi, pair) {
                radio.set_signals(*ap, *client, &wifi.signal);
            }
        }
        Some(Self {
            node: network.add(radio),
            names,
            pairs,
            strangers,
        })
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
        let (ap, client) = self.pairs[index]?;
        let behind = wire_both(network, name, (self.node, ap), far, (down, up));
        let bus = wire(
            network,
            &format!("{name}:bus"),
            self.node,
            client,
            near,
            LinkConfig::default(),
        );
        Some(Hop {
            carries: [behind.to_radio, behind.from_radio],
            sends: [behind.to_radio, bus.to_radio],
            arrives: [bus.from_radio, behind.from_radio],
            station: Some(client),
        })
    }

    /// Says that `address` is at a station.
    pub(super) fn assign(&self, address: Address, station: StationId, network: &mut Network) {
        let radio: &mut Radio = network.node_mut(self.node).expect("it was added as a radio");
        radio.assign(address, station);
    }

    /// Lets the strangers send until `end`.
    pub(super) fn start_strangers(&self, network: &mut Network, (start, end): (Instant, Instant)) {
        for (index, (ap, client, rate)) in self.strangers.iter().enumerate() {
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

    pub(super) fn record(&self, network: &mut Network) {
        let radio: &mut Radio = network.node_mut(self.node).expect("it was added as a radio");
        radio.record();
    }

    /// What was recorded, as a page.
    pub(super) fn timeline(&self, title: &str, network: &Network) -> Option<String> {
        let radio: &Radio = network.node(self.node)?;
        Some(radio.timeline(title, self.names.clone()))
    }
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
        ..StationConfig::fixed(wifi.standard, wifi.channel, lowest)
    }
}

/// Full datagrams. Units: bytes of UDP payload.
const STRANGE_DATAGRAM: u16 = 1472;
/// Flows of workloads are numbered from 1.
const FIRST_STRANGER: u32 = 1 << 16;
/// Frames in one transmission of 802.11n: what 4 ms hold at the middle rates.
const AGGREGATE: u16 = 16;
