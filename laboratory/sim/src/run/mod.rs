//! A scenario in virtual time, with the lab's report.
//!
//! Topology: one client and one server, joined by the scenario's networks, each a pair of links;
//! routes behind the networks take no time, as in the lab. `single:<network>`, `direct` and `mptcp`
//! run modelled TCP over them (`direct`: one network per conversation, see `run/direct.rs`); `hub`
//! inserts both halves of the tunnel, the daemon's own machines of `hawser-proto` (see
//! `run/tunnel.rs`).
//!
//! Scope: every workload and event of a scenario, and networks whose last hop is an 802.11 link
//! (`run/air.rs`). Limitations: events of such a network change the links behind its access point;
//! processing takes no time, so rates beyond the capacity of a machine are reached here and not in
//! the lab; a network without emulation is a 10 Gbit/s cable of 20 us; members relay without a
//! registry, so one that leaves is a path that becomes unresponsive (`run/member.rs`).

mod air;
mod direct;
mod log;
mod member;
mod offload;
mod split;
mod tunnel;
mod workload;

use hawser_netem::air::StationId;
use hawser_netem::report::{CpuSeconds, NetworkTraffic, Observed, Report, SAMPLE_MS, Traffic};
use hawser_netem::scenario::{
    CompetingSystem, Direction, Event, Hop as Part, Links, Network as Described, Scenario, Shares, Tcp, Via,
};
use hawser_netem::{Capacity, Change, LinkConfig, Policer, Protocol};
use hawser_proto::path::control::{Control, UnknownController};
use hawser_units::{Bytes, Duration, Instant, Rate};

use air::Air;
pub use log::Log;

use crate::host::{Host, Route};
use crate::network::{LinkId, Network, NodeId, Tap};
use crate::packet::{Address, FlowId};
use crate::tcp;
use tunnel::{Layering, Tunnel};
use workload::Running;

/// Reason why a scenario cannot be simulated.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum RunError {
    /// No workload to measure.
    #[error("the scenario has no workload; write at least one [[workload]]")]
    NoWorkload,
    /// No network to measure on.
    #[error("the scenario has no network; write at least one [[network]]")]
    NoNetwork,
    /// The system is not simulated.
    #[error("via {0:?} is not simulated yet; use hub, direct, mptcp or single:<network>")]
    Via(String),
    /// No congestion controller of paths has this name.
    #[error("controller: {0}")]
    Controller(#[from] UnknownController),
    /// The hop behind a repeater is not modelled.
    #[error("a client_hop is emulated with real packets only; use hawser-lab lab")]
    ClientHop,
    /// Interfaces have no MTU of their own in the simulator.
    #[error(
        "the MTU of an interface is changed with real packets only; use hawser-lab lab, or `mtu` for the path's"
    )]
    DeviceMtu,
    /// A connection ends when its port changes, and workloads do not open another one here.
    #[error("a nat with change_ports is simulated for via = \"hub\" only; use hawser-lab lab")]
    ChangedPorts,
    /// Connections do not restart in the simulator.
    #[error(
        "via direct is simulated for networks that stay: take the events that set down, up or blackhole out, or use hawser-lab lab"
    )]
    DirectEvents,
    /// The network of `single:<network>` is not in the scenario.
    #[error("via single:{0}: the scenario has no such network")]
    Network(String),
    /// The tunnel supports one coding of videos at a time.
    #[error(
        "the videos and layered streams of a scenario share one coding where via is hub; write one scenario for each"
    )]
    Codings,
    /// Multipath TCP transfers TCP only.
    #[error("via mptcp carries tcp and http, not quic")]
    QuicOverMptcp,
    /// Stations are known by the scenario's own routes only.
    #[error("a workload with a via of its own needs networks without wifi")]
    BesideOnAir,
    /// A member's links serve one client only.
    #[error("a workload with a via of its own needs networks without members; use hawser-lab lab")]
    Members,
    /// A timeline is requested, but the scenario has no 802.11 links.
    #[error("no network of the scenario has wifi = {{ .. }}: there is no air to draw")]
    NoAir,
    /// A log of paths is requested, but there is no tunnel.
    #[error("only a tunnel has paths to follow; use via = \"hub\"")]
    NoTunnel,
    /// Networks of a shared radio are inconsistent.
    #[error(
        "networks whose wifi has slots share one radio: give all the same standard and slots, and none marks"
    )]
    Slots,
    /// The congestion control is not modelled.
    #[error("congestion control {name:?} is not modelled; use {known}")]
    Congestion {
        /// Name in the scenario.
        name: String,
        /// Known names.
        known: &'static str,
    },
}

/// Results of a run.
#[derive(Debug)]
pub struct Outcome {
    /// Report, in the lab's form.
    pub report: Report,
    /// Number of packets that links delivered.
    pub packet_events: u64,
    /// The network at the end of the run, with its tap.
    pub network: Network,
    /// Page requested by [`Watch::air`].
    pub timeline: Option<String>,
    /// Log requested by [`Watch::paths`].
    pub log: Option<Log>,
}

/// Creates a tap, given the names of all links.
pub type TapMaker<'a> = &'a mut dyn FnMut(&[String]) -> Box<dyn Tap>;

/// Options for observing a run.
#[derive(Default)]
pub struct Watch<'a> {
    /// Creates a tap that sees every packet.
    pub tap: Option<TapMaker<'a>>,
    /// Set to record and draw the 802.11 channels ([`crate::radio::Timeline`]).
    pub air: bool,
    /// Set to log the paths of the tunnel, at the end that sends the bulk traffic.
    pub paths: bool,
}

/// Runs `scenario` over `via` with the observers of `watch`; `on_progress` receives the elapsed
/// virtual time ten times per virtual second.
///
/// # Errors
/// [`RunError`], before anything runs.
pub fn run(
    scenario: &Scenario,
    via: &Via,
    watch: Watch<'_>,
    on_progress: &mut dyn FnMut(Duration),
) -> Result<Outcome, RunError> {
    if scenario.workloads.is_empty() {
        return Err(RunError::NoWorkload);
    }
    if scenario.networks.is_empty() {
        return Err(RunError::NoNetwork);
    }
    if scenario.client_hop.is_some() {
        return Err(RunError::ClientHop);
    }
    if scenario
        .events
        .iter()
        .any(|event| event.network_change.device_mtu.is_some())
    {
        return Err(RunError::DeviceMtu);
    }
    let changes_ports = |network: &Described| network.nat.is_some_and(|nat| nat.change_ports);
    if *via != Via::Hub && scenario.networks.iter().any(changes_ports) {
        return Err(RunError::ChangedPorts);
    }
    let mut world = World::build(scenario, via)?;
    let running = workload::start(scenario, via, &mut world)?;
    if let Some(make) = watch.tap {
        world.network.set_boxed_tap(make(world.network.link_names()));
    }
    if watch.air {
        let air = world.air.as_ref().ok_or(RunError::NoAir)?;
        air.record(&mut world.network);
    }
    let mut log = world.log(scenario, watch.paths)?;
    world.schedule_events(scenario);
    world.network.run(world.start);
    let before = world.traffic();
    let mut samples = vec![before.clone()];
    let end = world.start + scenario.duration;
    let step = Duration::from_millis(SAMPLE_MS);
    while world.network.now() < end && !workload::is_everything_done(&running, &world) {
        let next = (world.network.now() + step).min(end);
        world.run(next, scenario.bulk_direction(), &mut log);
        samples.push(world.traffic());
        on_progress(world.network.now().since(world.start));
    }
    let observed = world.observe(&before, samples, &running);
    let drawn = world.air.as_ref().filter(|_| watch.air);
    Ok(Outcome {
        timeline: drawn.and_then(|air| air.timeline(&scenario.name, &world.network)),
        report: Report::new(scenario, via, observed),
        packet_events: world.network.packet_events(),
        network: world.network,
        log,
    })
}

/// The nodes and links of a scenario.
struct World {
    network: Network,
    client: NodeId,
    server: NodeId,
    /// Start of the workloads: by then, a tunnel has joined its paths, and stations are associated.
    start: Instant,
    hops: Vec<Hop>,
    air: Option<Air>,
    /// The scenario's own tunnel.
    tunnel: Option<NodeId>,
    /// Tunnel of a second client, if a workload uses one.
    other: Option<(Route, Route)>,
    /// Set if senders must react to ECN marks.
    marks: bool,
    /// Set if all TCP connections negotiate ECN.
    tcp_ecn: bool,
    /// Form in which its tunnel transfers TCP.
    tcp: Tcp,
    /// Routes to the server, from the client's and from the server's side.
    routes: Vec<(Route, Route)>,
}

/// Network as links, each pair down and up.
#[derive(Clone, Copy)]
struct Hop {
    /// Links that the scenario describes.
    carries: [LinkId; 2],
    /// Links on which its ends send.
    sends: [LinkId; 2],
    /// Links from which packets arrive.
    arrives: [LinkId; 2],
    /// Station of the client, if it has one.
    station: Option<StationId>,
    /// Links between the client and a member.
    local: Option<[LinkId; 2]>,
    /// True if its addresses are translated.
    is_translated: bool,
}

impl World {
    fn build(scenario: &Scenario, via: &Via) -> Result<Self, RunError> {
        let mut network = Network::new(scenario.seed);
        let (client, server) = (network.add(Host::default()), network.add(Host::default()));
        let is_tunnelled = *via == Via::Hub;
        let is_shared = !scenario.competing.is_empty();
        let ends = if is_tunnelled {
            let tunnel = network.add(new_tunnel(scenario, scenario.seed, is_shared)?);
            (tunnel, tunnel)
        } else {
            (client, server)
        };
        let air = Air::build(scenario, &mut network)?;
        if is_shared && air.is_some() {
            return Err(RunError::BesideOnAir);
        }
        let mut hops = Vec::new();
        for (index, described) in scenario.networks.iter().enumerate() {
            if let Some(Shares::Links(of)) = described.shares {
                hops.push(hops[of]);
                continue;
            }
            let mut both = described.links.clone().unwrap_or_else(cable);
            if described.blocks_udp {
                both.down.middlebox.policer = Some(BLOCK);
                both.up.middlebox.policer = Some(BLOCK);
            }
            let name = &described.name;
            if let Some(air) = &air
                && let Some(hop) = air.wire(
                    index,
                    name,
                    ends,
                    (both.down.clone(), both.up.clone()),
                    &mut network,
                )
            {
                hops.push(hop);
                continue;
            }
            if let Some(member) = &described.member {
                if is_shared {
                    return Err(RunError::Members);
                }
                let hop = member::connect(&mut network, name, ends, (both.clone(), member));
                if may_hang(&both, index, scenario) {
                    network.pair((hop.carries[1], hop.carries[0]), None);
                }
                if let Some([down, up]) = hop.local.filter(|_| may_hang(&member.local, index, scenario)) {
                    network.pair((up, down), None);
                }
                hops.push(hop);
                continue;
            }
            let mut connect = |way: &str, from, to, link| match is_shared {
                true => network.connect_shared(&format!("{name}:{way}"), from, link),
                false => network.connect(&format!("{name}:{way}"), from, to, link),
            };
            let needs_pair = described.nat.is_some() || may_hang(&both, index, scenario);
            let down = connect("down", ends.1, ends.0, both.down);
            let up = connect("up", ends.0, ends.1, both.up);
            if needs_pair {
                network.pair((up, down), described.nat);
            }
            hops.push(Hop {
                carries: [down, up],
                sends: [down, up],
                arrives: [down, up],
                station: None,
                local: None,
                is_translated: described.nat.is_some(),
            });
        }
        let has_other = scenario
            .competing
            .values()
            .any(|way| *way == CompetingSystem::OtherClient);
        let start = if is_tunnelled || has_other || air.is_some() {
            Instant::ZERO + LEAD
        } else {
            Instant::ZERO
        };
        if let Some(air) = &air {
            air.start_strangers(&mut network, (start, start + scenario.duration));
        }
        let mut world = Self {
            network,
            client,
            server,
            start,
            hops,
            air,
            tunnel: None,
            other: None,
            marks: Air::marks(scenario),
            tcp_ecn: scenario.tcp_ecn,
            tcp: scenario.tcp,
            routes: Vec::new(),
        };
        match via {
            Via::Hub => {
                world.add_tunnel(ends.0);
                world.tunnel = Some(ends.0);
            }
            Via::Mptcp | Via::Direct => world.add_routes(0..scenario.networks.len()),
            Via::Single(name) => {
                let index = network_named(scenario, name)?;
                world.add_routes(index..index + 1);
            }
            Via::DirectMptcp | Via::Peer | Via::Repeater | Via::Tool(_) => {
                return Err(RunError::Via(via.label()));
            }
        }
        if has_other {
            let seed = scenario.seed.wrapping_add(OTHER_SEED);
            let tunnel = new_tunnel(scenario, seed, is_shared)?;
            let tunnel = world.network.add(tunnel);
            world.add_tunnel(tunnel);
            world.other = world.routes.pop();
        }
        Ok(world)
    }

    /// Returns an empty log of the tunnel's paths, if one is requested.
    fn log(&self, scenario: &Scenario, is_wanted: bool) -> Result<Option<Log>, RunError> {
        if is_wanted && self.tunnel.is_none() {
            return Err(RunError::NoTunnel);
        }
        let names = scenario.networks.iter().map(|network| network.name.clone());
        Ok(is_wanted.then(|| Log::new(&scenario.name, names.collect())))
    }

    /// Runs until a time, and samples the tunnel if there is a log.
    fn run(&mut self, until: Instant, direction: Direction, log: &mut Option<Log>) {
        while let (Some(log), Some(tunnel)) = (log.as_mut(), self.tunnel)
            && self.network.now() < until
        {
            self.network.run((self.network.now() + log::STEP).min(until));
            let at = self.network.now().since(self.start);
            let tunnel: &Tunnel = self.network.node(tunnel).expect("it was added as a tunnel");
            tunnel.sample(direction, at, log);
        }
        self.network.run(until);
    }

    /// Returns the routes of a workload: the scenario's, or its own.
    fn routes_of(&mut self, scenario: &Scenario, workload: usize) -> Result<Vec<(Route, Route)>, RunError> {
        match scenario.competing.get(&workload) {
            None => Ok(self.routes.clone()),
            Some(CompetingSystem::OtherClient) => Ok(self.other.into_iter().collect()),
            Some(CompetingSystem::Member(_)) => Err(RunError::Members),
            Some(CompetingSystem::Single(name)) => {
                let index = network_named(scenario, name)?;
                self.add_routes(index..index + 1);
                Ok(self.routes.pop().into_iter().collect())
            }
        }
    }

    fn add_routes(&mut self, networks: std::ops::Range<usize>) {
        for network in networks {
            let [down, up] = self.hops[network].sends;
            let near = self.add_route(up, down);
            self.assign_address(near, network);
        }
    }

    /// Assigns an address of the client's end to a network.
    fn assign_address(&mut self, near: Address, network: usize) {
        if let (Some(air), Some(station)) = (&self.air, self.hops[network].station) {
            air.assign(near, station, &mut self.network);
        }
    }

    fn add_route(&mut self, up: LinkId, down: LinkId) -> Address {
        let near = self.network.address(self.client);
        let far = self.network.address(self.server);
        let route = |link, local, remote| Route { link, local, remote };
        self.routes.push((route(up, near, far), route(down, far, near)));
        near
    }

    /// Splits a connection at both ends of the scenario's tunnel, if that is how it transfers TCP.
    fn split(&mut self, flow: FlowId, direction: Direction, (config, total): (tcp::Config, Option<u64>)) {
        if self.tcp != Tcp::Stream {
            return;
        }
        let tunnel = self
            .tunnel
            .and_then(|tunnel| self.network.node_mut::<Tunnel>(tunnel));
        if let Some(tunnel) = tunnel {
            tunnel.split(flow, direction, (config, total));
        }
    }

    /// Connects both hosts to the tunnel by cables without delay.
    fn add_tunnel(&mut self, tunnel: NodeId) {
        let mut cable = |name: &str, from, to| {
            self.network
                .connect(&format!("tunnel:{name}"), from, to, LinkConfig::default())
        };
        let (client_in, client_out) = (
            cable("client in", self.client, tunnel),
            cable("client out", tunnel, self.client),
        );
        let (server_in, server_out) = (
            cable("server in", self.server, tunnel),
            cable("server out", tunnel, self.server),
        );
        self.add_route(client_in, server_in);
        let mut outer = Vec::new();
        for network in 0..self.hops.len() {
            outer.push(self.network.address(tunnel));
            self.assign_address(outer[network], network);
        }
        let tunnel: &mut Tunnel = self.network.node_mut(tunnel).expect("it was added as a tunnel");
        tunnel.attach(
            &self.hops,
            outer,
            [client_in, server_in],
            [client_out, server_out],
        );
        if let Some(air) = &self.air {
            tunnel.attach_air(air.heard().to_vec());
        }
    }

    fn schedule_events(&mut self, scenario: &Scenario) {
        for event in scenario.trace_starts().iter().chain(&scenario.events) {
            let hop = &self.hops[event.network];
            let [down, up] = match event.hop {
                Part::WayOut => hop.carries,
                Part::Local => hop.local.unwrap_or(hop.carries),
            };
            let links = match event.direction {
                Some(Direction::Down) => &[down][..],
                Some(Direction::Up) => &[up][..],
                None => &[down, up][..],
            };
            let at = self.start + event.at;
            if event.network_change.flush_nat {
                self.network.flush_nat_at(at, up);
            }
            for link in links.iter().filter(|_| event.change != Change::default()) {
                self.network.change_at(at, *link, event.change.clone());
            }
        }
    }

    fn traffic(&self) -> Vec<NetworkTraffic> {
        let traffic = |link| Traffic::from(self.network.counters(link));
        let counters = |hop: &Hop| NetworkTraffic {
            down: traffic(hop.carries[0]),
            up: traffic(hop.carries[1]),
        };
        self.hops.iter().map(counters).collect()
    }

    fn observe(
        &self,
        before: &[NetworkTraffic],
        samples: Vec<Vec<NetworkTraffic>>,
        running: &[Running],
    ) -> Observed {
        let ran = self.network.now().since(self.start);
        let counters = self.traffic();
        let results: Vec<_> = running
            .iter()
            .map(|running| running.result(self, self.network.now()))
            .collect();
        let mut tcp = (0, 0);
        for result in &results {
            tcp.0 += result.out_of_order;
            tcp.1 += result.retransmitted;
        }
        Observed {
            start: self.start,
            ran,
            traffic: counters
                .iter()
                .zip(before)
                .map(|(after, before)| after.since(*before))
                .collect(),
            samples,
            out_of_order: tcp.0,
            retransmitted: tcp.1,
            cpu_seconds: CpuSeconds::default(),
            gaps: results.iter().flat_map(|result| result.gaps.clone()).collect(),
            bins: results.iter().map(|result| result.bins.clone()).collect(),
            findings: results.into_iter().map(|result| result.finding).collect(),
        }
    }
}

fn network_named(scenario: &Scenario, name: &str) -> Result<usize, RunError> {
    let mut networks = scenario.networks.iter();
    let index = networks.position(|network| network.name == name);
    index.ok_or_else(|| RunError::Network(name.to_owned()))
}

/// Returns whether a direction of a network may hang, from the beginning or after an event.
fn may_hang(links: &Links, network: usize, scenario: &Scenario) -> bool {
    let hangs = |link: &LinkConfig| link.middlebox.hang.is_some();
    let mut events = scenario.events.iter();
    let sets = |event: &Event| event.network == network && event.change.middlebox.hang.is_some();
    hangs(&links.down) || hangs(&links.up) || events.any(sets)
}

fn new_tunnel(scenario: &Scenario, seed: u64, is_shared: bool) -> Result<Tunnel, RunError> {
    let tunnel = Tunnel::new(seed, layering(scenario)?, is_shared);
    let control = scenario.controller.as_deref().map(Control::by_name);
    let tunnel = if scenario.tcp == Tcp::Stream {
        tunnel.with_streams()
    } else {
        tunnel
    };
    let usages = scenario.networks.iter().map(|network| network.usage);
    Ok(tunnel
        .with_usages(usages.collect())
        .with_schedulers(scenario.schedulers.clone())
        .with_control(control.transpose()?.unwrap_or_default()))
}

/// Returns the layers of the videos and streams of a scenario.
fn layering(scenario: &Scenario) -> Result<Option<Layering>, RunError> {
    let mut all = scenario.workloads.iter().filter_map(Layering::of);
    let first = all.next();
    if all.any(|other| Some(other) != first) {
        return Err(RunError::Codings);
    }
    Ok(first)
}

fn cable() -> Links {
    let link = LinkConfig {
        capacity: Capacity::Rate(Rate::from_mbps(10_000)),
        delay: Duration::from_micros(20),
        ..LinkConfig::default()
    };
    Links {
        down: link.clone(),
        up: link,
    }
}

/// Policer to which no packet conforms: the smallest frame exceeds its bucket.
const BLOCK: Policer = Policer {
    rate: Rate::from_bps(1),
    burst: Bytes(1),
    protocol: Protocol::Udp,
    from: Duration::ZERO,
};

/// Offset of the second client's seed; seeds of runs are smaller. Source: our choice; an equal seed
/// would correlate both clients.
const OTHER_SEED: u64 = 1 << 32;

/// Time in which every path of a tunnel is validated and probed, and stations are associated.
/// Source: our choice; a second for each.
const LEAD: Duration = Duration::from_secs(3);
