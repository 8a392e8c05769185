//! The loads by which the simulator's speed is measured: wired multipath TCP, and a saturated channel.

use hawser_netem::air::phy::{PhyRate, Standard};
use hawser_netem::air::{AccessPointConfig, Signal, StationConfig};
use hawser_netem::{Capacity, LinkConfig};
use hawser_units::{Duration, Instant, Rate};

use crate::app::{Cbr, DatagramSink};
use crate::host::{End, Host, Way, join};
use crate::mptcp::{Config, Coupling, MptcpSink, MptcpSource};
use crate::network::{Network, NodeId};
use crate::packet::FlowId;
use crate::radio::{Radio, wire};
use crate::router::Router;

/// A network of `nodes` nodes in groups of five: two routers, a router behind both, a server and a client with two access links. Each
/// group carries one endless download over two subflows, 20 and 10 Mbit/s.
#[must_use]
pub fn wired_multipath(nodes: usize, seed: u64) -> Network {
    wired_multipath_at(nodes, seed, 1)
}

/// The same with rates, and so packets on their way, `factor` times as high: what separates the cost of many nodes from the cost of many packets.
#[must_use]
pub fn wired_multipath_at(nodes: usize, seed: u64, factor: u64) -> Network {
    let mut network = Network::new(seed);
    for group in 0..nodes.div_ceil(GROUP) {
        add_group(&mut network, group, factor);
    }
    network
}

/// Access points of 54 Mbit/s that share one channel, each with a client and always something to send until `end`.
///
/// # Panics
/// Never: the nodes are those that were added.
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
    // Together a little more than the channel carries.
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
                ways: &[Way {
                    link: down.to_radio,
                    local: far,
                    remote: near,
                }],
            },
            End {
                host: laptop,
                application: Box::new(DatagramSink::default()),
                ways: &[Way {
                    link: up.to_radio,
                    local: near,
                    remote: far,
                }],
            },
        );
    }
    network
}

fn add_group(network: &mut Network, group: usize, factor: u64) {
    let (server, client) = (network.add(Host::default()), network.add(Host::default()));
    let edge = network.add(Router::default());
    let far = network.address(server);
    let near = [network.address(client), network.address(client)];
    let link = |network: &mut Network, from: NodeId, to: NodeId, mbps, delay_us| {
        let config = LinkConfig {
            capacity: Capacity::Rate(Rate::from_mbps(mbps * factor)),
            delay: Duration::from_micros(delay_us),
            ..LinkConfig::default()
        };
        let name = format!("{group}:{from:?}-{to:?}");
        network.connect(&name, from, to, config)
    };
    let out = link(network, server, edge, 1000, 100);
    let back = link(network, edge, server, 1000, 100);
    route(network, edge, far, back);
    let mut ways = (Vec::new(), Vec::new());
    for (index, (mbps, delay_us)) in [(20, 5_000), (10, 15_000)].into_iter().enumerate() {
        let access = network.add(Router::default());
        let to_access = link(network, edge, access, 1000, 100);
        let down = link(network, access, client, mbps, delay_us);
        let up = link(network, client, access, mbps, delay_us);
        let to_edge = link(network, access, edge, 1000, 100);
        route(network, edge, near[index], to_access);
        route(network, access, near[index], down);
        route(network, access, far, to_edge);
        ways.0.push(Way {
            link: out,
            local: far,
            remote: near[index],
        });
        ways.1.push(Way {
            link: up,
            local: near[index],
            remote: far,
        });
    }
    let config = Config::coupled(Coupling::Lia);
    let config = Config {
        tcp: crate::tcp::Config {
            receive_window: config.tcp.receive_window.saturating_mul(factor as u32),
            ..config.tcp
        },
        ..config
    };
    let start = Instant::ZERO + Duration::from_micros(100 * group as u64);
    join(
        network,
        FlowId(group as u32),
        End {
            host: server,
            application: Box::new(MptcpSource::new(config, 2, None, start)),
            ways: &ways.0,
        },
        End {
            host: client,
            application: Box::new(MptcpSink::new(config, 2, None, start)),
            ways: &ways.1,
        },
    );
}

fn route(network: &mut Network, router: NodeId, to: crate::packet::Address, link: crate::network::LinkId) {
    let router: &mut Router = network.node_mut(router).expect("it was added as a router");
    router.route(to, link);
}

const GROUP: usize = 5;
