//! The load by which the simulator's speed is measured: wired multipath TCP.

use hawser_netem::{Capacity, LinkConfig};
use hawser_units::{Duration, Instant, Rate};

use crate::host::{End, Host, Way, join};
use crate::mptcp::{Config, Coupling, MptcpSink, MptcpSource};
use crate::network::{Network, NodeId};
use crate::packet::FlowId;
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
