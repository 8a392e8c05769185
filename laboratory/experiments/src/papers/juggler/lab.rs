//! Laboratory of the paper's figure 2: a laptop, two access points on channels 1 and 11, a
//! neighbour, gateways that limit the rate, and a server.

use hawser_netem::air::phy::{PhyRate, Standard};
use hawser_netem::air::{AccessPointConfig, RateControl, Signal, StationConfig, StationId};
use hawser_netem::{Capacity, LinkConfig, QueueBound};
use hawser_radio::slots::{Config, NetworkConfig, NetworkId, SlotSchedule};
use hawser_units::{Bytes, Duration, Instant, Rate};

use hawser_sim::app::{TcpDuplex, TcpSink, TcpSource};
use hawser_sim::host::{Application, End, Host, Route, SocketId, join};
use hawser_sim::network::NodeId;
use hawser_sim::packet::{Address, FlowId};
use hawser_sim::radio::{JugglerMachine, PeerMachine, Radio, Wire, wire, wire_both};
use hawser_sim::tcp;
use hawser_sim::{LinkId, Network};

/// Radios with which the laptop reaches its networks.
#[derive(Clone, Debug)]
pub(crate) enum Laptop {
    /// A permanent card for each network.
    Cards,
    /// A shared radio: a weight for each network, an optional scanning slot, and the duration of a
    /// slot of weight one.
    Juggler {
        weights: Vec<u32>,
        scan: Option<(u32, Vec<u16>)>,
        slot: Duration,
    },
}

/// Device in front of a network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Behind {
    AccessPoint(u16),
    Neighbour(u16),
}

pub(crate) struct Plan {
    pub(crate) seed: u64,
    pub(crate) laptop: Laptop,
    /// Networks, each with the rate limit of its gateway. Units: KB/s of 1024 bytes.
    pub(crate) networks: Vec<(Behind, f64)>,
}

pub(crate) struct Lab {
    pub(crate) network: Network,
    pub(crate) air: NodeId,
    pub(crate) server: NodeId,
    pub(crate) client: NodeId,
    pub(crate) ids: Vec<NetworkId>,
    pub(crate) stations: Vec<StationId>,
    pub(crate) radio: StationId,
    far: Address,
    near: Vec<Address>,
    down: Vec<LinkId>,
    up: Vec<LinkId>,
    flows: u32,
}

/// Both ends of one transfer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Transfer {
    pub(crate) source: (NodeId, SocketId),
    pub(crate) sink: (NodeId, SocketId),
}

impl Plan {
    pub(crate) fn build(self) -> Lab {
        let mut network = Network::new(self.seed);
        let (server, client) = (network.add(Host::default()), network.add(Host::default()));
        let far = network.address(server);
        let near: Vec<Address> = self.networks.iter().map(|_| network.address(client)).collect();
        let mut radio = Radio::new(network.streams().seed("air"));
        let mut stations = Vec::new();
        for (behind, _) in &self.networks {
            let station = match behind {
                Behind::AccessPoint(channel) => {
                    radio.add_access_point(card(*channel), AccessPointConfig::default())
                }
                Behind::Neighbour(channel) => {
                    radio.add_machine(vec![neighbour(*channel)], |ids| PeerMachine::new(ids[0]))[0]
                }
            };
            stations.push(station);
        }
        let mut ids = Vec::new();
        let cards = self.add_laptop(&mut radio, &stations, &near, &mut ids);
        let all: Vec<_> = stations.iter().chain(&cards).copied().collect();
        radio.set_all_signals(&all, &Signal::clear());
        let air = network.add(radio);
        let mut lab = Lab {
            network,
            air,
            server,
            client,
            ids,
            radio: cards[0],
            stations,
            far,
            near,
            down: Vec::new(),
            up: Vec::new(),
            flows: 0,
        };
        lab.wire_up(&self.networks, &cards);
        lab
    }

    /// Adds the laptop's stations: a single one, or one for each network.
    fn add_laptop(
        &self,
        radio: &mut Radio,
        stations: &[StationId],
        near: &[Address],
        ids: &mut Vec<NetworkId>,
    ) -> Vec<StationId> {
        let Laptop::Juggler { weights, scan, slot } = &self.laptop else {
            let networks = self.networks.iter().zip(stations).zip(near);
            return networks
                .map(|(((behind, _), station), near)| {
                    let channel = channel(*behind);
                    let card = radio.add_client(card(channel), *station);
                    radio.assign(*near, card);
                    card
                })
                .collect();
        };
        let config = Config {
            slot: *slot,
            ..Config::default()
        };
        let first = channel(self.networks[0].0);
        let stations_of_laptop = radio.add_machine(vec![card(first)], |own| {
            let mut machine = JugglerMachine::new(own[0], SlotSchedule::new(config, first, Instant::ZERO));
            for (index, (behind, _)) in self.networks.iter().enumerate() {
                let channel = channel(*behind);
                let config = match behind {
                    Behind::AccessPoint(_) => {
                        NetworkConfig::access_point(index as u32, stations[index], channel)
                    }
                    Behind::Neighbour(_) => NetworkConfig::ad_hoc(stations[index], channel),
                };
                let weight = weights[index];
                ids.push(machine.add(config.weight(weight), Some(near[index])));
            }
            if let Some((weight, channels)) = scan {
                let scan = NetworkConfig::scan(channels.clone(), false);
                machine.add(scan.weight(*weight), None);
            }
            machine
        });
        for near in near {
            radio.assign(*near, stations_of_laptop[0]);
        }
        stations_of_laptop
    }
}

impl Lab {
    fn wire_up(&mut self, networks: &[(Behind, f64)], cards: &[StationId]) {
        for (index, (_, rate)) in networks.iter().enumerate() {
            let gateway = gateway(*rate);
            let (air, station, server) = (self.air, self.stations[index], self.server);
            let name = format!("gateway{index}");
            let Wire { to_radio, .. } = wire_both(
                &mut self.network,
                &name,
                (air, station),
                server,
                (gateway.clone(), gateway),
            );
            self.down.push(to_radio);
        }
        for (index, card) in cards.iter().enumerate() {
            let bus = wire(
                &mut self.network,
                &format!("bus{index}"),
                self.air,
                *card,
                self.client,
                LinkConfig::default(),
            );
            self.up.push(bus.to_radio);
        }
        // A shared radio has one bus for all networks.
        let last = *self.up.last().expect("there is a card");
        self.up.resize(networks.len(), last);
    }

    fn routes(&self, network: usize) -> (Route, Route) {
        let server = Route {
            link: self.down[network],
            local: self.far,
            remote: self.near[network],
        };
        let client = Route {
            link: self.up[network],
            local: self.near[network],
            remote: self.far,
        };
        (server, client)
    }

    /// Connects two applications over paths through these networks, in order.
    pub(crate) fn join(
        &mut self,
        server: Box<dyn Application>,
        client: Box<dyn Application>,
        networks: &[usize],
    ) -> (SocketId, SocketId) {
        let (near, far): (Vec<_>, Vec<_>) = networks.iter().map(|network| self.routes(*network)).unzip();
        self.flows += 1;
        join(
            &mut self.network,
            FlowId(self.flows),
            End {
                host: self.server,
                application: server,
                routes: &near,
            },
            End {
                host: self.client,
                application: client,
                routes: &far,
            },
        )
    }

    /// Starts a download over one network, opened by the laptop.
    pub(crate) fn download(&mut self, network: usize, total: Option<u64>, start: Instant) -> Transfer {
        let config = tcp::Config {
            opening: tcp::Opening::ByReceiver,
            ..tcp::Config::linux_2_6()
        };
        let source = Box::new(TcpSource::new(config, total, start));
        let sink = Box::new(TcpSink::new(config, total, start));
        let (source, sink) = self.join(source, sink, &[network]);
        Transfer {
            source: (self.server, source),
            sink: (self.client, sink),
        }
    }

    /// Opens a connection over one network with data in both directions; its source is the laptop's
    /// end.
    pub(crate) fn duplex(&mut self, network: usize, start: Instant) -> Transfer {
        let config = tcp::Config::linux_2_6();
        let near = Box::new(TcpDuplex::asking(config, None, start));
        let far = Box::new(TcpDuplex::answering(config, None));
        let (sink, source) = self.join(far, near, &[network]);
        Transfer {
            source: (self.client, source),
            sink: (self.server, sink),
        }
    }

    /// # Panics
    /// Never: a transfer's sink is a sink.
    pub(crate) fn sink(&self, transfer: Transfer) -> &TcpSink {
        self.application(transfer.sink)
    }

    /// # Panics
    /// Never: a transfer's source is a source.
    pub(crate) fn source(&self, transfer: Transfer) -> &TcpSource {
        self.application(transfer.source)
    }

    pub(crate) fn application<A: Application>(&self, (host, socket): (NodeId, SocketId)) -> &A {
        let host: &Host = self.network.node(host).expect("it is a host");
        host.application(socket).expect("it is such an application")
    }

    /// Runs until `is_done` returns true, checked every 100 ms, or until the limit. Returns whether
    /// it was done.
    pub(crate) fn run_until(&mut self, limit: Duration, is_done: impl Fn(&Self) -> bool) -> bool {
        let end = Instant::ZERO + limit;
        while self.network.now() < end {
            let next = self.network.now() + Duration::from_millis(100);
            self.network.run(next);
            if is_done(self) {
                return true;
            }
        }
        false
    }

    /// Returns the laptop's shared radio.
    pub(crate) fn machine(&self) -> &JugglerMachine {
        let radio: &Radio = self.network.node(self.air).expect("it is a radio");
        radio.machine(self.radio).expect("the laptop juggles")
    }

    /// Returns the laptop's shared radio for configuration.
    pub(crate) fn machine_mut(&mut self) -> &mut JugglerMachine {
        let radio: &mut Radio = self.network.node_mut(self.air).expect("it is a radio");
        radio.machine_mut(self.radio).expect("the laptop juggles")
    }

    /// Returns when the first byte arrived at the far end of a connection with data in both
    /// directions, to a tenth of a millisecond.
    pub(crate) fn first_arrival(&mut self, transfer: Transfer, limit: Duration) -> Option<Duration> {
        while self.network.now().since(Instant::ZERO) < limit {
            let next = self.network.now() + Duration::from_micros(100);
            self.network.run(next);
            let far: &TcpDuplex = self.application(transfer.sink);
            if let Some(at) = far.meter().last() {
                return Some(at.since(Instant::ZERO));
            }
        }
        None
    }

    /// Returns a random time within one cycle of slots after the first second, when all
    /// associations are complete.
    pub(crate) fn start(&self) -> Instant {
        let within = self.network.streams().get("start").uniform();
        Instant::ZERO + Duration::from_secs(1) + Duration::from_millis(500).mul_f64(within)
    }
}

pub(crate) fn channel(behind: Behind) -> u16 {
    match behind {
        Behind::AccessPoint(channel) | Behind::Neighbour(channel) => channel,
    }
}

/// Returns the configuration of a station of the laboratory.
pub(crate) fn card(channel: u16) -> StationConfig {
    StationConfig::fixed(Standard::G, channel, PhyRate::Ofdm(54))
}

/// Returns the configuration with the rate control of a laptop card of that time, which lowers the
/// rate when acknowledgements are missing.
fn neighbour(channel: u16) -> StationConfig {
    StationConfig {
        rate: RateControl::stepping(Standard::G.rates()),
        ..card(channel)
    }
}

/// Returns a gateway that limits each direction to `rate`. Units: KB/s of 1024 bytes.
pub(crate) fn gateway(rate: f64) -> LinkConfig {
    LinkConfig {
        capacity: Capacity::Rate(Rate::from_bps((rate * 8192.0) as u64)),
        queue: QueueBound::Bytes(Bytes(8 << 20)),
        delay: WIRE,
        ..LinkConfig::default()
    }
}

/// Delay of the wire in each direction. Source: the round trip of 8 ms of Juggler section 6.1, of
/// which the rest is on the air.
const WIRE: Duration = Duration::from_micros(2_500);
/// Slot of the laboratory's striping experiments, and the default. Source: Juggler section 3.4.
pub(crate) const SLOT: Duration = Duration::from_millis(100);
/// Size of the file. Source: Juggler section 6.2.1, 10 MB. Units: bytes.
pub(crate) const FILE: u64 = 10 << 20;
/// Returns two access points on the paper's channels.
pub(crate) fn two(rate: f64) -> Vec<(Behind, f64)> {
    vec![(Behind::AccessPoint(1), rate), (Behind::AccessPoint(11), rate)]
}

/// Returns a shared radio with equal weights for two access points.
pub(crate) fn halves() -> Laptop {
    Laptop::Juggler {
        weights: vec![1, 1],
        scan: None,
        slot: SLOT,
    }
}
