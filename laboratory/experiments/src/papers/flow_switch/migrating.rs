//! Migration of one flow (figure 6) and the choice of its network by policy (figure 10).
//!
//! Values that the paper does not state, chosen here: WiMAX of 4 Mb/s and 40 ms one way; WiFi of 12
//! Mb/s and 10 ms; a waypoint at 15 ms from both ends; one endless flow of a current Linux host.

use std::cell::RefCell;
use std::rc::Rc;

use hawser_steer::migration::{self, Event, Follower, Mover, Route, View};
use hawser_steer::policy::{Fact, Kind, Policy, Rule, Selector};
use hawser_units::{Duration, Instant, NetworkId};
use hawser_wire::data::Class;
use hawser_wire::inner::protocol;

use super::switch::{End, Switch, socket};
use super::{network, wire};
use crate::reproduce::{Curve, Experiment, ExperimentError, Findings, Plot, Quantity, Unit};
use hawser_sim::app::{TcpSink, TcpSource};
use hawser_sim::host::{self, Host, SocketId, join};
use hawser_sim::network::{Network, NodeId};
use hawser_sim::packet::{Address, FlowId};
use hawser_sim::tcp::Config;

/// Figure 6: the flow starts on WiMAX, moves to WiFi after 30 s, and to WiFi through an off-path
/// middlebox after 50 s.
#[derive(Clone, Copy, Debug)]
pub struct Migrating;

/// Figure 10: the flow uses WiMAX while the device moves and WiFi while it stands.
#[derive(Clone, Copy, Debug)]
pub struct ByPolicy;

/// Networks: number, rate in kbit/s, one-way delay in ms. Source: our choice (start of this file),
/// since the paper has no absolute rates.
const WIMAX: (NetworkId, u64, u64) = (NetworkId(0), 4_000, 40);
const WIFI: (NetworkId, u64, u64) = (NetworkId(1), 12_000, 10);
/// WiFi as far as the waypoint, the first part of the indirect route: network, rate in kbit/s,
/// one-way delay in ms. Source: our choice (start of this file).
const DETOUR: (NetworkId, u64, u64) = (NetworkId(2), 12_000, 15);
/// Network from the waypoint on. Source: the next number.
const BEYOND: NetworkId = NetworkId(3);

/// Simulated phone and server, both with switches, connected by two networks and a waypoint.
struct World {
    network: Network,
    phone: NodeId,
    server: NodeId,
    sink: (NodeId, SocketId),
    /// Direct routes over WiMAX and over WiFi, and the route over the waypoint; each as seen by the
    /// phone and by the server.
    routes: [(Route, Route); 3],
}

fn at(seconds: f64) -> Instant {
    Instant::ZERO + Duration::from_secs_f64(seconds)
}

impl World {
    fn new(seed: u64) -> Self {
        let mut world = Network::new(seed);
        let (client, remote) = (world.add(Host::default()), world.add(Host::default()));
        let here = [(); 2].map(|()| world.address(client));
        let there = world.address(remote);
        let boxed = world.address(remote);
        // `join` assigns the first port of each host.
        let end = |address: Address, port: u16| socket(address, port);
        let direct = |address: Address| Route {
            near: end(address, 0),
            far: end(there, 0),
        };
        let detour = (
            Route {
                near: end(here[1], 0),
                far: end(boxed, 1),
            },
            Route {
                near: end(there, 0),
                far: end(boxed, 2),
            },
        );
        let (wimax, wifi) = (direct(here[0]), direct(here[1]));
        let routes = [(wimax, wimax.turned()), (wifi, wifi.turned()), detour];
        let post = Rc::new(RefCell::new(Vec::new()));
        let view = |route| View {
            route,
            protocol: protocol::TCP,
        };
        let mover = End::Mover(Box::new(Mover::new(wimax, wimax.turned())));
        let follower = End::Follower(Box::new(Follower::new(wimax.turned())));
        let phone = world.add(Switch::new(mover, view(wimax), Rc::clone(&post)));
        let server = world.add(Switch::new(follower, view(wimax.turned()), Rc::clone(&post)));
        let waypoint = world.add(Switch::new(End::Waypoint, view(wimax), post));
        let mut pair = |name: &str, a: NodeId, b: NodeId, (_, kbps, ms): (NetworkId, u64, u64)| {
            let config = network(kbps, ms);
            let to = world.connect(&format!("{name}-up"), a, b, config.clone());
            (to, world.connect(&format!("{name}-down"), b, a, config))
        };
        let wimax = pair("wimax", phone, server, WIMAX);
        let wifi = pair("wifi", phone, server, WIFI);
        let detour = pair("detour", phone, waypoint, DETOUR);
        let beyond = pair("beyond", waypoint, server, (BEYOND, 100_000, 15));
        let client_wire = (
            world.connect("client-out", client, phone, wire()),
            world.connect("client-in", phone, client, wire()),
        );
        let server_wire = (
            world.connect("server-out", remote, server, wire()),
            world.connect("server-in", server, remote, wire()),
        );
        let by = [WIMAX.0, WIFI.0, DETOUR.0];
        let switch: &mut Switch = world.node_mut(phone).expect("it was added as a switch");
        switch.links = [(WIMAX.0, wimax.0), (WIFI.0, wifi.0), (DETOUR.0, detour.0)].into();
        switch.networks = routes.iter().map(|(phone, _)| *phone).zip(by).collect();
        switch.inside = Some(client_wire.1);
        let switch: &mut Switch = world.node_mut(server).expect("it was added as a switch");
        switch.links = [(WIMAX.0, wimax.1), (WIFI.0, wifi.1), (DETOUR.0, beyond.1)].into();
        switch.networks = routes.iter().map(|(_, server)| *server).zip(by).collect();
        switch.inside = Some(server_wire.1);
        let switch: &mut Switch = world.node_mut(waypoint).expect("it was added as a switch");
        switch.links = [(DETOUR.0, detour.1), (BEYOND, beyond.0)].into();
        for rule in migration::waypoint(protocol::TCP, [routes[2].0, routes[2].1], [DETOUR.0, BEYOND], 1) {
            switch
                .table
                .insert(rule, Instant::ZERO)
                .expect("the table is empty");
        }
        let config = Config::linux();
        let near = host::End {
            host: remote,
            application: Box::new(TcpSource::new(config, None, Instant::ZERO)),
            routes: &[host::Route {
                link: server_wire.0,
                local: there,
                remote: here[0],
            }],
        };
        let far = host::End {
            host: client,
            application: Box::new(TcpSink::new(config, None, Instant::ZERO)),
            routes: &[host::Route {
                link: client_wire.0,
                local: here[0],
                remote: there,
            }],
        };
        let (_, sink) = join(&mut world, FlowId(1), near, far);
        Self {
            network: world,
            phone,
            server,
            sink: (client, sink),
            routes,
        }
    }

    fn migrate(&mut self, route: usize) {
        let (phone, server) = self.routes[route];
        self.network
            .with_node(self.phone, |switch: &mut Switch, context| {
                switch.migrate(phone, server, context)
            });
    }

    fn switch(&self, node: NodeId) -> &Switch {
        self.network.node(node).expect("it was added as a switch")
    }

    /// Returns the rate between two times. Units: Mbit/s.
    fn rate(&self, from: f64, to: f64) -> f64 {
        let host: &Host = self.network.node(self.sink.0).expect("it was added as a host");
        let sink: &TcpSink = host.application(self.sink.1).expect("it was joined as this");
        sink.meter().rate(at(from), at(to)) / 1e6
    }

    /// Returns whether bytes arrived in every second except the excluded ones.
    fn lives(&self, seconds: u32, spared: &[u32]) -> bool {
        let all = (0..seconds).filter(|second| !spared.contains(second));
        all.into_iter()
            .all(|second| self.rate(f64::from(second), f64::from(second + 1)) > 0.0)
    }

    /// Returns when packets of the server first used a network. Units: seconds.
    fn first(&self, network: NetworkId) -> f64 {
        let first = self.switch(self.server).first.get(&network);
        first.map_or(f64::NAN, |first| first.since(Instant::ZERO).as_secs_f64())
    }

    fn curve(&self, seconds: u32) -> Curve {
        Curve {
            name: "flow".to_owned(),
            points: (0..seconds)
                .map(f64::from)
                .map(|second| (second, self.rate(second, second + 1.0)))
                .collect(),
        }
    }
}

/// Returns the rate of a flow on one network alone, between two times after its start.
fn alone(seed: u64, route: usize, from: f64, to: f64) -> f64 {
    let mut world = World::new(seed);
    if route > 0 {
        world.network.run(at(0.001));
        world.migrate(route);
    }
    world.network.run(at(to));
    world.rate(from, to)
}

fn mbps(name: &str, value: f64) -> (String, Quantity) {
    (name.to_owned(), Quantity::new(value, Unit::Mbps))
}

fn figure(setup: &str, curve: Curve) -> Plot {
    Plot::new(
        setup,
        "Throughput",
        ("time", Unit::Seconds),
        ("throughput", Unit::Mbps),
        vec![curve],
    )
}

impl Experiment for Migrating {
    fn unshipped(&self, _: &str) -> Option<&'static str> {
        Some("flow table")
    }

    fn setups(&self) -> &'static [&'static str] {
        &["A-fig6"]
    }

    fn claims(&self) -> Vec<String> {
        ["alive", "t1", "t2", "level"]
            .map(|claim| format!("A.fig6.{claim}"))
            .to_vec()
    }

    fn run(&self, seed: u64) -> Result<Findings, ExperimentError> {
        let mut world = World::new(seed);
        world.network.run(at(30.0));
        world.migrate(1);
        world.network.run(at(50.0));
        world.migrate(2);
        world.network.run(at(70.0));
        let mut findings = Findings::default();
        let moved = world
            .switch(world.phone)
            .events
            .iter()
            .filter(|(_, event)| *event == Event::Moved)
            .count();
        let refused = world.switch(world.phone).refused + world.switch(world.server).refused;
        let end = world.rate(60.0, 70.0);
        findings.shape(
            "A.fig6.alive",
            moved == 2 && world.lives(70, &[50]) && end > 0.0,
            vec![
                ("migrations".to_owned(), Quantity::new(moved as f64, Unit::Ratio)),
                (
                    "packets refused".to_owned(),
                    Quantity::new(refused as f64, Unit::Packets),
                ),
                mbps("at the end", end),
            ],
        );
        findings.value("A.fig6.t1", world.first(WIFI.0), Unit::Seconds);
        findings.value("A.fig6.t2", world.first(DETOUR.0), Unit::Seconds);
        let (before, after) = (world.rate(2.0, 28.0), world.rate(32.0, 48.0));
        let (wimax, wifi) = (alone(seed, 0, 2.0, 28.0), alone(seed, 1, 2.0, 28.0));
        let about = |rate: f64, reference: f64| (rate / reference - 1.0).abs() <= 0.1;
        findings.shape(
            "A.fig6.level",
            about(before, wimax) && about(after, wifi),
            vec![
                mbps("before", before),
                mbps("WiMAX alone", wimax),
                mbps("after", after),
                mbps("WiFi alone", wifi),
            ],
        );
        findings.plots = vec![figure("A-fig6", world.curve(70))];
        Ok(findings)
    }
}

impl Experiment for ByPolicy {
    fn unshipped(&self, _: &str) -> Option<&'static str> {
        Some("flow table")
    }

    fn setups(&self) -> &'static [&'static str] {
        &["A-fig10"]
    }

    fn claims(&self) -> Vec<String> {
        vec!["A.fig10.move".to_owned()]
    }

    fn run(&self, seed: u64) -> Result<Findings, ExperimentError> {
        let rule = |when: Vec<(Fact, bool)>, kind| Rule {
            when,
            class: None,
            prefer: vec![Selector::Kind(kind), Selector::Any],
        };
        let rules = vec![
            rule(vec![(Fact::Moving, true)], Kind::Cellular),
            rule(vec![], Kind::Wifi),
        ];
        let mut policy = Policy::new(rules, HOLD);
        policy.handle_fact(Fact::Moving, true, Instant::ZERO);
        policy.handle_network(WIMAX.0, Some(Kind::Cellular), Instant::ZERO);
        policy.handle_network(WIFI.0, Some(Kind::Wifi), Instant::ZERO);
        let mut world = World::new(seed);
        world.network.run(at(STOPS));
        policy.handle_fact(Fact::Moving, false, world.network.now());
        while let Some(due) = policy.poll_timeout() {
            world.network.run(due);
            policy.handle_timeout(due);
        }
        if policy.network(Class::Bulk) == Some(WIFI.0) {
            world.migrate(1);
        }
        world.network.run(at(2.0 * STOPS));
        let (before, after) = (world.rate(2.0, STOPS), world.rate(STOPS + 2.0, 2.0 * STOPS));
        let moved = world.first(WIFI.0);
        let within = (STOPS..STOPS + 2.0).contains(&moved);
        let mut findings = Findings::default();
        findings.shape(
            "A.fig10.move",
            within && world.lives(2 * STOPS as u32, &[]) && after > before,
            vec![
                ("moved".to_owned(), Quantity::new(moved, Unit::Seconds)),
                mbps("before", before),
                mbps("after", after),
            ],
        );
        findings.plots = vec![figure("A-fig10", world.curve(2 * STOPS as u32))];
        Ok(findings)
    }
}

/// Time at which the device stops (seconds), and how long it must stand before that counts. Source:
/// our choice; TCP has reached its rate before, and the same time remains for the comparison.
const STOPS: f64 = 30.0;
const HOLD: Duration = Duration::from_secs(1);
