//! Stitching: two networks (figure 7), outages (figure 8), ten networks (figure 9), the packet
//! size.
//!
//! What the paper does not state, and what was taken:
//! - WiFi of 8 Mb/s and 10 ms one way, WiMAX of 4 Mb/s and 40 ms: with both, 100 MB last long
//!   enough for figure 8's outages.
//! - How the downloader divides the file: it gives each of five connections a part, and one that
//!   has its part takes half of another's, down to pieces of 1 MB, as aria2 does. The end of the
//!   file waits for the last piece, which may be on the slower network.
//! - The phone's two radios disturb each other: each loses 23 % of its rate while both are on. That
//!   is the paper's own explanation and the only number for it, so the phone's figure is put in
//!   more than it is found.
//! - Ten networks as in the paper's list of kinds, with rates of the time; their sum decides the
//!   peak. Two connections for each, a network every 10 s.

use std::cell::RefCell;
use std::rc::Rc;

use hawser_netem::{Change, LinkConfig, State};
use hawser_steer::stitch::{Method, Network as Stitched, Stitch};
use hawser_units::{Duration, Instant, NetworkId};

use super::switch::Stitcher;
use super::{network, wire};
use crate::reproduce::{Curve, Experiment, ExperimentError, Findings, Plot, Quantity, Unit};
use hawser_sim::app::{TcpSink, TcpSource};
use hawser_sim::host::{End, Host, SocketId, Way, join};
use hawser_sim::network::{LinkId, Network, NodeId};
use hawser_sim::packet::FlowId;
use hawser_sim::tcp::Config;

/// Figure 7: each network alone, both stitched; on a laptop and on a phone.
#[derive(Clone, Copy, Debug)]
pub struct TwoNetworks;

/// Figure 8: WiFi is off from 20 s to 40 s, WiMAX from 60 s to 80 s.
#[derive(Clone, Copy, Debug)]
pub struct Outages;

/// Figure 9: ten networks, one after the other.
#[derive(Clone, Copy, Debug)]
pub struct TenNetworks;

/// Section 5, note 4: one packet size for all networks.
#[derive(Clone, Copy, Debug)]
pub struct PacketSize;

const FILE: u64 = 100_000_000;
const PIECE: u64 = 1_000_000;
const CONNECTIONS: usize = 5;

/// A client and a server with networks between them.
struct World {
    network: Network,
    client: NodeId,
    switch: NodeId,
    links: Vec<[LinkId; 2]>,
    sinks: Vec<SocketId>,
}

fn at(seconds: f64) -> Instant {
    Instant::ZERO + Duration::from_secs_f64(seconds)
}

impl World {
    fn new(networks: &[LinkConfig], connections: usize, seed: u64) -> Self {
        let mut world = Network::new(seed);
        let (client, server) = (world.add(Host::default()), world.add(Host::default()));
        let stitch = Rc::new(RefCell::new(Stitch::new(Method::LeastLoaded, seed)));
        let side = |is_client| Stitcher {
            stitch: Rc::clone(&stitch),
            networks: Vec::new(),
            inside: None,
            is_client,
            moved: Vec::new(),
        };
        let (here, there) = (world.add(side(true)), world.add(side(false)));
        let links: Vec<[LinkId; 2]> = networks
            .iter()
            .enumerate()
            .map(|(index, config)| {
                let up = world.connect(&format!("up{index}"), here, there, config.clone());
                [
                    up,
                    world.connect(&format!("down{index}"), there, here, config.clone()),
                ]
            })
            .collect();
        let client_wire = (
            world.connect("client-out", client, here, wire()),
            world.connect("client-in", here, client, wire()),
        );
        let server_wire = (
            world.connect("server-out", server, there, wire()),
            world.connect("server-in", there, server, wire()),
        );
        for (node, direction, inside) in [(here, 0, client_wire.1), (there, 1, server_wire.1)] {
            let switch: &mut Stitcher = world.node_mut(node).expect("it was added as a stitcher");
            switch.inside = Some(inside);
            switch.networks = links.iter().map(|pair| (pair[direction], EQUAL)).collect();
        }
        let (local, remote) = (world.address(client), world.address(server));
        let config = Config::linux();
        let sinks = (0..connections)
            .map(|flow| {
                let start = Instant::ZERO + Duration::from_millis(10 * flow as u64);
                let near = End {
                    host: server,
                    application: Box::new(TcpSource::new(config, None, start)),
                    ways: &[Way {
                        link: server_wire.0,
                        local: remote,
                        remote: local,
                    }],
                };
                let far = End {
                    host: client,
                    application: Box::new(TcpSink::new(config, None, start)),
                    ways: &[Way {
                        link: client_wire.0,
                        local,
                        remote,
                    }],
                };
                join(&mut world, FlowId(flow as u32), near, far).1
            })
            .collect();
        Self {
            network: world,
            client,
            switch: here,
            links,
            sinks,
        }
    }

    /// Lets the client's switch know of a network.
    fn set(&mut self, network: usize, is_up: bool) {
        let switch: &mut Stitcher = self
            .network
            .node_mut(self.switch)
            .expect("it was added as a stitcher");
        switch.set(network, is_up);
    }

    /// Takes a network away for a while; the device shows it.
    fn outage(&mut self, network: usize, from: f64, to: f64) {
        for link in self.links[network] {
            for (seconds, state) in [(from, State::Down), (to, State::Up)] {
                let change = Change {
                    state: Some(state),
                    ..Change::default()
                };
                self.network.change_at(at(seconds), link, change);
            }
        }
    }

    fn sink(&self, socket: SocketId) -> &TcpSink {
        let host: &Host = self.network.node(self.client).expect("it was added as a host");
        host.application(socket).expect("it was joined as this")
    }

    /// Mbit/s of all connections between two times.
    fn rate(&self, from: f64, to: f64) -> f64 {
        let rates = self
            .sinks
            .iter()
            .map(|&sink| self.sink(sink).meter().rate(at(from), at(to)));
        rates.sum::<f64>() / 1e6
    }

    /// When [`FILE`] is complete, in seconds, if each connection begins with an equal part and,
    /// when it has that, takes half of what another still has to get, as long as that is two pieces
    /// or more.
    fn complete(&self) -> Option<f64> {
        let bins: Vec<&[u64]> = self
            .sinks
            .iter()
            .map(|&sink| self.sink(sink).meter().bins())
            .collect();
        let mut left = vec![FILE / bins.len() as u64; bins.len()];
        let steps = bins.iter().map(|bins| bins.len()).max()?;
        for step in 0..steps {
            for (connection, bins) in bins.iter().enumerate() {
                let mut bytes = bins.get(step).copied().unwrap_or(0);
                while bytes > 0 && left[connection] > 0 {
                    let taken = bytes.min(left[connection]);
                    bytes -= taken;
                    left[connection] -= taken;
                    let most = (0..left.len()).max_by_key(|&other| left[other])?;
                    if left[connection] == 0 && left[most] >= 2 * PIECE {
                        left[connection] = left[most] / 2;
                        left[most] -= left[connection];
                    }
                }
            }
            if left.iter().all(|left| *left == 0) {
                return Some((step + 1) as f64 / 100.0);
            }
        }
        None
    }
}

const EQUAL: Stitched = Stitched {
    weight: 1.0,
    mtu: 1500,
};
const WIFI: (u64, u64) = (8_000, 10);
const WIMAX: (u64, u64) = (4_000, 40);
/// What the phone's radios lose while both are on.
const DISTURBED: f64 = 0.23;

/// The rate at which the file comes over these networks, in Mbit/s.
fn download(networks: &[(u64, u64)], seed: u64) -> Result<f64, ExperimentError> {
    let configs: Vec<LinkConfig> = networks.iter().map(|&(kbps, ms)| network(kbps, ms)).collect();
    let mut world = World::new(&configs, CONNECTIONS, seed);
    (0..configs.len()).for_each(|network| world.set(network, true));
    world.network.run(at(400.0));
    let seconds = world.complete().ok_or_else(|| ExperimentError::Unfinished {
        setup: "A-fig7".to_owned(),
        what: "the file".to_owned(),
    })?;
    Ok(FILE as f64 * 8.0 / 1e6 / seconds)
}

fn mbps(name: &str, value: f64) -> (String, Quantity) {
    (name.to_owned(), Quantity::new(value, Unit::Mbps))
}

fn figure(setup: &str, points: Vec<(f64, f64)>) -> Plot {
    Plot::new(
        setup,
        "Throughput",
        ("time", Unit::Seconds),
        ("throughput", Unit::Mbps),
        vec![Curve {
            name: "all connections".to_owned(),
            points,
        }],
    )
}

impl Experiment for TwoNetworks {
    fn setups(&self) -> &'static [&'static str] {
        &["A-fig7"]
    }

    fn claims(&self) -> Vec<String> {
        ["A.fig7.laptop", "A.fig7.phone"].map(str::to_owned).to_vec()
    }

    fn run(&self, seed: u64) -> Result<Findings, ExperimentError> {
        let sum = download(&[WIFI], seed)? + download(&[WIMAX], seed)?;
        let disturbed = |(kbps, ms): (u64, u64)| ((kbps as f64 * (1.0 - DISTURBED)) as u64, ms);
        let laptop = download(&[WIFI, WIMAX], seed)?;
        let phone = download(&[disturbed(WIFI), disturbed(WIMAX)], seed)?;
        let mut findings = Findings::default();
        findings.value("A.fig7.laptop", 100.0 * laptop / sum, Unit::Percent);
        findings.value("A.fig7.phone", 100.0 * phone / sum, Unit::Percent);
        Ok(findings)
    }
}

impl Experiment for Outages {
    fn setups(&self) -> &'static [&'static str] {
        &["A-fig8"]
    }

    fn claims(&self) -> Vec<String> {
        vec!["A.fig8.alive".to_owned()]
    }

    fn run(&self, seed: u64) -> Result<Findings, ExperimentError> {
        let configs = [WIFI, WIMAX].map(|(kbps, ms)| network(kbps, ms));
        let mut world = World::new(&configs, CONNECTIONS, seed);
        world.set(0, true);
        world.set(1, true);
        world.outage(0, 20.0, 40.0);
        world.outage(1, 60.0, 80.0);
        world.network.run(at(90.0));
        let alone = |(kbps, ms): (u64, u64)| {
            let mut world = World::new(&[network(kbps, ms)], CONNECTIONS, seed);
            world.set(0, true);
            world.network.run(at(40.0));
            world.rate(5.0, 40.0)
        };
        let (wifi, wimax) = (alone(WIFI), alone(WIMAX));
        let lives = (0..90u32)
            .map(f64::from)
            .all(|second| world.rate(second, second + 1.0) > 0.0);
        // A second or two after each change belongs to the transports.
        let measured = [
            (22.0, 40.0, wimax),
            (62.0, 80.0, wifi),
            (4.0, 20.0, wifi + wimax),
            (45.0, 60.0, wifi + wimax),
        ]
        .map(|(from, to, expected)| (world.rate(from, to), expected));
        let about = measured
            .iter()
            .all(|(rate, expected)| (rate / expected - 1.0).abs() <= 0.1);
        let evidence = ["WiFi off", "WiMAX off", "both at first", "both again"];
        let mut findings = Findings::default();
        findings.shape(
            "A.fig8.alive",
            lives && about,
            evidence
                .iter()
                .zip(&measured)
                .flat_map(|(name, (rate, expected))| {
                    [mbps(name, *rate), mbps(&format!("{name}, expected"), *expected)]
                })
                .collect(),
        );
        let points = (0..90u32)
            .map(f64::from)
            .map(|second| (second, world.rate(second, second + 1.0)));
        findings.plots = vec![figure("A-fig8", points.collect())];
        Ok(findings)
    }
}

/// 3G, 3G, WiMAX, WiMAX, 802.11g (4), 802.11a (2): kbit/s and milliseconds one way.
const TEN: [(u64, u64); 10] = [
    (1_500, 60),
    (2_000, 50),
    (4_000, 40),
    (4_500, 40),
    (6_000, 10),
    (7_000, 10),
    (8_000, 10),
    (9_000, 10),
    (14_000, 10),
    (20_000, 10),
];
const STEP: f64 = 10.0;

impl Experiment for TenNetworks {
    fn setups(&self) -> &'static [&'static str] {
        &["A-fig9"]
    }

    fn claims(&self) -> Vec<String> {
        ["max", "mono", "ratio"]
            .map(|claim| format!("A.fig9.{claim}"))
            .to_vec()
    }

    fn run(&self, seed: u64) -> Result<Findings, ExperimentError> {
        let configs = TEN.map(|(kbps, ms)| network(kbps, ms));
        let mut world = World::new(&configs, 2 * TEN.len(), seed);
        for network in 0..TEN.len() {
            world.set(network, true);
            world.network.run(at(STEP * (network + 1) as f64));
        }
        let steps: Vec<f64> = (0..TEN.len())
            .map(|step| world.rate(STEP * (step as f64 + 0.4), STEP * (step + 1) as f64))
            .collect();
        let peak = steps.iter().copied().fold(0.0, f64::max);
        let fastest = {
            let (kbps, ms) = TEN[TEN.len() - 1];
            let mut world = World::new(&[network(kbps, ms)], 2, seed);
            world.set(0, true);
            world.network.run(at(20.0));
            world.rate(5.0, 20.0)
        };
        let least = steps
            .windows(2)
            .map(|pair| pair[1] / pair[0])
            .fold(f64::INFINITY, f64::min);
        let mut findings = Findings::default();
        findings.value("A.fig9.max", peak, Unit::Mbps);
        let evidence = vec![("least step".to_owned(), Quantity::new(least, Unit::Times))];
        findings.shape("A.fig9.mono", least >= 0.97, evidence);
        findings.value("A.fig9.ratio", peak / fastest, Unit::Times);
        let seconds = (STEP * TEN.len() as f64) as u32;
        let points = (0..seconds)
            .map(f64::from)
            .map(|second| (second, world.rate(second, second + 1.0)));
        findings.plots = vec![figure("A-fig9", points.collect())];
        Ok(findings)
    }
}

impl Experiment for PacketSize {
    fn setups(&self) -> &'static [&'static str] {
        &["A-mtu"]
    }

    fn claims(&self) -> Vec<String> {
        vec!["A.mtu".to_owned()]
    }

    fn run(&self, seed: u64) -> Result<Findings, ExperimentError> {
        let mut stitch = Stitch::new(Method::LeastLoaded, seed);
        for (id, mtu) in [(0, 1500), (1, 1400)] {
            stitch.handle_up(NetworkId(id), Stitched { mtu, ..EQUAL });
        }
        let mut findings = Findings::default();
        findings.value("A.mtu", f64::from(stitch.mtu().unwrap_or(0)), Unit::Bytes);
        Ok(findings)
    }
}
