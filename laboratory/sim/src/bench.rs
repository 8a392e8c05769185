//! Loads for measuring the simulator's speed: wired multipath TCP, and a saturated channel.

use hawser_netem::air::phy::{PhyRate, Standard};
use hawser_netem::air::{AccessPointConfig, Signal, StationConfig};
use hawser_netem::{Capacity, LinkConfig};
use hawser_units::{Duration, Instant, Rate};

use crate::app::{Cbr, DatagramSink};
use crate::host::{End, Host, Route, join};
use crate::mptcp::{Config, Coupling, MptcpSink, MptcpSource};
use crate::network::{LinkId, Network, NodeId};
use crate::packet::{Address, FlowId};
use crate::radio::{Radio, wire};
use crate::router::Router;

/// Wired multipath TCP: groups of five nodes, each a server, a router before it, and a client
/// behind two access routers, 20 and 10 Mbit/s.
///
/// Each group's client has one endless download over both access routers, with coupled windows and
/// drop-tail queues of 100 ms. The numbers of flows, links, packets in flight and packet events per
/// node are independent of the size; only the totals differ (some 35 kB per group: 10 nodes fit
/// into a first-level cache, 1,000 fill 7 MB), and the number of waiting events.
#[derive(Clone, Copy, Debug)]
pub struct WiredMultipath {
    /// Number of nodes, rounded up to whole groups.
    pub nodes: usize,
    /// Factor of the rates, and thus of the packets in flight: it separates the cost of many nodes
    /// from the cost of many packets.
    pub factor: u64,
    /// Delay, one way, of links that join the groups into a ring, in which each client's server is
    /// in the next group. `None` leaves each group unconnected, with its own server.
    pub backbone: Option<Duration>,
}

impl WiredMultipath {
    /// Default delay of the ring's links: the distance between cities. Source: our choice, 4,000 km
    /// of fibre.
    pub const BACKBONE: Duration = Duration::from_millis(20);

    /// Creates the network.
    #[must_use]
    pub fn network(&self, seed: u64) -> Network {
        let mut network = Network::new(seed);
        let count = self.nodes.div_ceil(GROUP);
        let groups: Vec<Group> = (0..count).map(|index| self.group(&mut network, index)).collect();
        for (index, group) in groups.iter().enumerate() {
            let next = &groups[(index + 1) % count];
            let server = match self.backbone {
                Some(delay) => {
                    group.reach(next, delay, &mut network);
                    next
                }
                None => group,
            };
            self.download(server, group, &mut network);
        }
        network
    }

    fn group(&self, network: &mut Network, index: usize) -> Group {
        let (server, client) = (network.add(Host::default()), network.add(Host::default()));
        let edge = network.add(Router::default());
        let far = network.address(server);
        let near = [network.address(client), network.address(client)];
        let (wan, lan) = (1000, Duration::from_micros(100));
        let out = connect(network, (server, edge), wan, lan);
        let back = connect(network, (edge, server), wan, lan);
        route(network, edge, far, back);
        let up = [(20, 5), (10, 15)].map(|(mbps, delay_ms)| {
            let (rate, delay) = (mbps * self.factor, Duration::from_millis(delay_ms));
            let access = network.add(Router::default());
            let to_access = connect(network, (edge, access), wan, lan);
            let down = connect(network, (access, client), rate, delay);
            let up = connect(network, (client, access), rate, delay);
            let to_edge = connect(network, (access, edge), wan, lan);
            let address = near[usize::from(delay_ms != 5)];
            route(network, edge, address, to_access);
            route(network, access, address, down);
            let access: &mut Router = network.node_mut(access).expect("it was added as a router");
            access.route_default(to_edge);
            up
        });
        Group {
            index,
            server,
            client,
            edge,
            far,
            near,
            out,
            up,
        }
    }

    fn download(&self, from: &Group, to: &Group, network: &mut Network) {
        let config = Config::coupled(Coupling::Lia);
        let window = config.tcp.receive_window;
        let config = Config {
            tcp: crate::tcp::Config {
                receive_window: window.saturating_mul(self.factor as u32),
                ..config.tcp
            },
            ..config
        };
        let start = Instant::ZERO + Duration::from_micros(100 * to.index as u64);
        let down = to.near.map(|near| Route {
            link: from.out,
            local: from.far,
            remote: near,
        });
        let up = [0, 1].map(|way| Route {
            link: to.up[way],
            local: to.near[way],
            remote: from.far,
        });
        let source = End {
            host: from.server,
            application: Box::new(MptcpSource::new(config, 2, None, start)),
            routes: &down,
        };
        let sink = End {
            host: to.client,
            application: Box::new(MptcpSink::new(config, 2, None, start)),
            routes: &up,
        };
        join(network, FlowId(to.index as u32), source, sink);
    }
}

/// Cost of a packet event.
#[derive(Clone, Copy, Debug)]
pub struct Speed {
    /// Packet events of one measurement.
    pub packet_events: u64,
    /// Minimum of several measurements, since other load on the machine only adds time.
    pub ns_per_event: f64,
}

/// Measures each load after its windows have settled; rounds alternate between the loads, so that
/// other load on the machine affects all alike. `clock` returns the time since an arbitrary start.
pub fn measure(loads: &[WiredMultipath], clock: impl Fn() -> Duration) -> Vec<Speed> {
    let at = |seconds| Instant::ZERO + Duration::from_secs(seconds);
    let worst = Speed {
        packet_events: 0,
        ns_per_event: f64::INFINITY,
    };
    let mut best = vec![worst; loads.len()];
    for _ in 0..ROUNDS {
        for (load, best) in loads.iter().zip(&mut best) {
            let mut network = load.network(1);
            network.run(at(WARM_UP));
            let (before, began) = (network.packet_events(), clock());
            let length = NODE_SECONDS.div_ceil(load.nodes as u64 * load.factor);
            network.run(at(WARM_UP + length));
            let taken = (clock() - began).as_nanos() as f64;
            best.packet_events = network.packet_events() - before;
            best.ns_per_event = best.ns_per_event.min(taken / best.packet_events.max(1) as f64);
        }
    }
    best
}

/// A group of five nodes, with the data that other groups need.
struct Group {
    index: usize,
    server: NodeId,
    client: NodeId,
    edge: NodeId,
    far: Address,
    near: [Address; 2],
    /// Direction from the server.
    out: LinkId,
    /// Direction from the client.
    up: [LinkId; 2],
}

impl Group {
    /// Joins this group's client to the server of `other`.
    fn reach(&self, other: &Self, delay: Duration, network: &mut Network) {
        let there = connect(network, (self.edge, other.edge), 1000, delay);
        let back = connect(network, (other.edge, self.edge), 1000, delay);
        if self.index != other.index {
            route(network, self.edge, other.far, there);
            for near in self.near {
                route(network, other.edge, near, back);
            }
        }
    }
}

fn connect(network: &mut Network, (from, to): (NodeId, NodeId), mbps: u64, delay: Duration) -> LinkId {
    let config = LinkConfig {
        capacity: Capacity::Rate(Rate::from_mbps(mbps)),
        delay,
        ..LinkConfig::default()
    };
    let name = format!("{from:?}-{to:?}");
    network.connect(&name, from, to, config)
}

/// Creates access points of 54 Mbit/s that share one channel, each with a client and a queue that
/// is never empty until `end`.
///
/// # Panics
/// Never: the node types are those that were added.
#[must_use]
pub fn saturated_air(access_points: usize, seed: u64, end: Instant) -> Network {
    let mut network = Network::new(seed);
    let mut radio = Radio::new(network.streams().seed("air"));
    let (mut all, mut pairs) = (Vec::new(), Vec::new());
    for _ in 0..access_points {
        let config = StationConfig::fixed(Standard::A, 36, PhyRate::Ofdm(54));
        let ap = radio.add_access_point(config.clone(), AccessPointConfig::default());
        let client = radio.add_client(config, ap);
        all.extend([ap, client]);
        pairs.push((ap, client));
    }
    radio.set_all_signals(&all, &Signal::clear());
    let air = network.add(radio);
    // The total is slightly above the capacity of the channel.
    let rate = Rate::from_bps(36_000_000 / access_points as u64);
    for (index, (ap, client)) in pairs.into_iter().enumerate() {
        let (server, laptop) = (network.add(Host::default()), network.add(Host::default()));
        let (far, near) = (network.address(server), network.address(laptop));
        let radio: &mut Radio = network.node_mut(air).expect("it was added as a radio");
        radio.assign(near, client);
        let link = LinkConfig::default;
        let down = wire(&mut network, &format!("wire{index}"), air, ap, server, link());
        let up = wire(&mut network, &format!("bus{index}"), air, client, laptop, link());
        let start = Instant::ZERO + Duration::from_millis(100);
        join(
            &mut network,
            FlowId(index as u32),
            End {
                host: server,
                application: Box::new(Cbr::new(rate, 1472, (start, end))),
                routes: &[Route {
                    link: down.to_radio,
                    local: far,
                    remote: near,
                }],
            },
            End {
                host: laptop,
                application: Box::new(DatagramSink::default()),
                routes: &[Route {
                    link: up.to_radio,
                    local: near,
                    remote: far,
                }],
            },
        );
    }
    network
}

fn route(network: &mut Network, router: NodeId, to: Address, link: LinkId) {
    let router: &mut Router = network.node_mut(router).expect("it was added as a router");
    router.route(to, link);
}

/// Nodes of a group. Source: client, server and three routers, which `group` adds.
const GROUP: usize = 5;
/// Warm-up. Units: virtual seconds. Source: our choice, when all flows have left slow start.
const WARM_UP: u64 = 2;
/// Number of rounds, of which the fastest counts. Source: our choice; of fewer, all may have been
/// disturbed by other programs.
const ROUNDS: u32 = 5;
/// Product of nodes and measured virtual seconds.
const NODE_SECONDS: u64 = 2_000;
