//! Pair of hosts with links between them.
#![allow(dead_code, unreachable_pub, reason = "each test program uses a part of it")]

use hawser_netem::{Capacity, Jitter, LinkConfig, Loss, QueueBound};
use hawser_sim::app::{TcpSink, TcpSource};
use hawser_sim::host::{Application, End, Host, Route, SocketId, join};
use hawser_sim::tcp::Config;
use hawser_sim::{FlowId, LinkId, Network, NodeId};
use hawser_units::{Bytes, Duration, Instant, Rate};

pub fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

pub fn at(seconds: f64) -> Instant {
    Instant::ZERO + Duration::from_secs_f64(seconds)
}

/// Returns a link of this rate and delay.
pub fn link(mbps: f64, delay: Duration) -> LinkConfig {
    LinkConfig {
        capacity: Capacity::Rate(Rate::from_bps((mbps * 1e6) as u64)),
        delay,
        ..LinkConfig::default()
    }
}

pub fn lossy(config: LinkConfig, loss: f64) -> LinkConfig {
    LinkConfig {
        loss: Loss::Uniform(loss),
        ..config
    }
}

pub fn jittery(config: LinkConfig, sd: Duration) -> LinkConfig {
    LinkConfig {
        jitter: Jitter { sd, reorder: true },
        ..config
    }
}

pub fn queue(config: LinkConfig, bytes: u64) -> LinkConfig {
    LinkConfig {
        queue: QueueBound::Bytes(Bytes(bytes)),
        ..config
    }
}

/// Two hosts with a path between them for each pair of links.
pub struct Pair {
    pub network: Network,
    pub server: NodeId,
    pub client: NodeId,
    pub down: Vec<LinkId>,
    pub up: Vec<LinkId>,
    from_server: Vec<Route>,
    from_client: Vec<Route>,
    flows: u32,
}

impl Pair {
    /// Creates the hosts; `links` are the downlink and the uplink of each path.
    pub fn new(seed: u64, links: &[(LinkConfig, LinkConfig)]) -> Self {
        let mut network = Network::new(seed);
        let (server, client) = (network.add(Host::default()), network.add(Host::default()));
        let mut pair = Self {
            server,
            client,
            down: Vec::new(),
            up: Vec::new(),
            from_server: Vec::new(),
            from_client: Vec::new(),
            flows: 0,
            network: Network::new(seed),
        };
        for (index, (down, up)) in links.iter().enumerate() {
            let (far, near) = (network.address(server), network.address(client));
            let down = network.connect(&format!("down{index}"), server, client, down.clone());
            let up = network.connect(&format!("up{index}"), client, server, up.clone());
            pair.down.push(down);
            pair.up.push(up);
            pair.from_server.push(Route {
                link: down,
                local: far,
                remote: near,
            });
            pair.from_client.push(Route {
                link: up,
                local: near,
                remote: far,
            });
        }
        pair.network = network;
        pair
    }

    /// Connects the server to the client over the first `ways` paths.
    pub fn join(
        &mut self,
        source: impl Application,
        sink: impl Application,
        ways: std::ops::Range<usize>,
    ) -> (SocketId, SocketId) {
        self.flows += 1;
        let near = End {
            host: self.server,
            application: Box::new(source),
            routes: &self.from_server[ways.clone()],
        };
        let far = End {
            host: self.client,
            application: Box::new(sink),
            routes: &self.from_client[ways],
        };
        join(&mut self.network, FlowId(self.flows), near, far)
    }

    /// Connects the server to the client with two subflows that both use the first path.
    pub fn join_doubled(&mut self, source: impl Application, sink: impl Application) -> (SocketId, SocketId) {
        self.flows += 1;
        let near = End {
            host: self.server,
            application: Box::new(source),
            routes: &[self.from_server[0]; 2],
        };
        let far = End {
            host: self.client,
            application: Box::new(sink),
            routes: &[self.from_client[0]; 2],
        };
        join(&mut self.network, FlowId(self.flows), near, far)
    }

    /// Starts a download over the first path.
    pub fn tcp(&mut self, config: Config, total: Option<u64>) -> (SocketId, SocketId) {
        let start = Instant::ZERO;
        self.join(
            TcpSource::new(config, total, start),
            TcpSink::new(config, total, start),
            0..1,
        )
    }

    pub fn run(&mut self, seconds: f64) {
        self.network.run(at(seconds));
    }

    pub fn at_server<T: Application>(&self, socket: SocketId) -> &T {
        let host: &Host = self.network.node(self.server).expect("a host");
        host.application(socket).expect("of this type")
    }

    pub fn at_client<T: Application>(&self, socket: SocketId) -> &T {
        let host: &Host = self.network.node(self.client).expect("a host");
        host.application(socket).expect("of this type")
    }
}
