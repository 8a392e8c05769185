//! Floor with an access point, a repeater, clients, competing stations, and a server behind a wire.
//!
//! Values that the paper does not state, chosen here for all experiments:
//! - A wire of 1 Gb/s and, unless a delay is stated, 5 ms in each direction. The hosts are of that
//!   time: CUBIC without HyStart, and a loss detection that adapts to reordering, as in Linux 3.2.
//!   This deviates: section 5 names HighSpeed TCP (RFC 3649, without HyStart) for all results but
//!   MPTCP's, and similar ones with BIC, CUBIC and New Reno. RFC 3649's functions instead of CUBIC,
//!   with no other change, were tried in all experiments: no additional claim is reproduced, and
//!   Table 5's gain changes from 16.6 % to 17.6 %, outside its interval, because 802.11n without
//!   the buffer decreases from 77.3 to 75.6 Mb/s. Figure 8a changes from 1.00 and 0.81 (0 and 100
//!   ms) to 1.00 and 0.77, less than the difference between its seeds.
//! - A link that is not throttled may have eight unacknowledged packets, so an 802.11n transmission
//!   aggregates eight frames, on all hops. This was chosen because with 16 or more the delays of
//!   two links differ by more than the 10 ms that the repeater waits, and because with eight a 3x3
//!   link of 40 MHz carries the 210 Mb/s that section 5.5 states as the maximum of one link.
//! - The throttle's marks, factors and largest threshold are
//!   [`hawser_radio::striping::throttle`]'s, chosen by the throughput of one set of hops (20, 30
//!   and 60 Mb/s) and used unchanged in all experiments. The naive baseline does not restore the
//!   order of packets.
//! - Drivers buffer 128 frames per link, as ath9k does; the repeater buffers 200 packets for its
//!   clients.
//! - On each channel five access points of neighbours send beacons (section 5, "Testbed").
//! - All stations on a channel sense each other unless an experiment specifies otherwise. Each hop
//!   has a fixed 802.11n rate; 802.11a and g sample rates.

use hawser_netem::air::phy::{PhyRate, Standard};
use hawser_netem::air::{RateControl, Signal, StationConfig, StationId};
use hawser_netem::{Capacity, LinkConfig};
use hawser_radio::striping::access_point::{AccessPoint, Config, Discipline, OWN, SHARED};
use hawser_radio::striping::migration::{self, Migration, Search};
use hawser_radio::striping::reorder;
use hawser_radio::striping::throttle::{MonitorConfig, ThrottleConfig};
use hawser_radio::striping::{BUFFER_PACKETS, THRESHOLD};
use hawser_units::{Duration, Instant, Rate};

use super::others::{Competitor, DRIVER, add_neighbours};
use hawser_sim::app::{Cbr, DatagramSink, Meter, TcpSink, TcpSource};
use hawser_sim::host::{Application, End, Host, Route, SocketId, join};
use hawser_sim::mptcp::{self, Coupling, MptcpSink, MptcpSource};
use hawser_sim::network::{Network, NodeId};
use hawser_sim::packet::{FlowId, Packet};
use hawser_sim::radio::{
    PeerMachine, Radio, RepeaterConfig, RepeaterMachine, SearchPlan, StripingMachine, Waiting, Wire, wire,
};
use hawser_sim::tcp;

/// Returns a rate of 802.11n; at 40 MHz with the short guard interval, as in drivers.
#[must_use]
pub const fn ht(mcs: u8, streams: u8, wide: bool) -> PhyRate {
    PhyRate::Ht {
        mcs,
        streams,
        wide,
        short_guard: wide,
    }
}

/// Hop over the air, in both directions.
#[derive(Clone, Debug)]
pub struct Hop {
    /// Standard.
    pub standard: Standard,
    /// Rate control of its ends.
    pub rates: RateControl,
    /// Frames in one transmission.
    pub aggregate: u16,
    /// Signal at its ends.
    pub signal: Signal,
}

impl Hop {
    /// Returns an 802.11n hop at one rate: a modulation scheme with this many streams, 40 or 20 MHz
    /// wide.
    #[must_use]
    pub fn fixed(mcs: u8, streams: u8, wide: bool) -> Self {
        Self {
            standard: Standard::N,
            rates: RateControl::fixed(ht(mcs, streams, wide)),
            aggregate: THRESHOLD as u16,
            signal: Signal::clear(),
        }
    }

    /// Returns an 802.11a or g hop at 54 Mb/s, except when the driver samples other rates.
    pub(crate) fn legacy() -> Self {
        Self {
            standard: Standard::A,
            rates: RateControl::throughput(Standard::A.rates()),
            aggregate: 1,
            signal: Signal::clear(),
        }
    }

    /// Returns the hop with this probability of loss for each frame.
    #[must_use]
    pub fn lossy(self, loss: f64) -> Self {
        Self {
            signal: Signal::lossy(loss),
            ..self
        }
    }

    /// Returns the station at each end of the hop.
    #[must_use]
    pub fn station(&self, channel: u16) -> StationConfig {
        StationConfig {
            rate: self.rates.clone(),
            aggregate: self.aggregate,
            queue: DRIVER,
            ..StationConfig::fixed(self.standard, channel, self.standard.lowest())
        }
    }
}

/// Use of the access point's two radios.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Scheme {
    /// Uses the own link only.
    Traditional,
    /// Alternates between both links, without throttling.
    Naive,
    Multifacet,
    /// Stripes by acknowledgements, without throttling: the client is not on the shared channel.
    Aggregate,
    /// Uses the shared channel only.
    OneChannel,
    /// Alternates between both links by shares that the experiment sets.
    Turns,
    /// Uses a link of its own for each of a client's addresses.
    ByAddress,
}

/// Parameters that are the same for all loads.
#[derive(Clone, Debug)]
pub(crate) struct Setup {
    pub(crate) own: Hop,
    pub(crate) shared: Hop,
    /// Hop from the repeater to the clients; `None` if they are wired to it.
    pub(crate) down: Option<Hop>,
    pub(crate) scheme: Scheme,
    pub(crate) clients: usize,
    /// Delay of the wire in each direction.
    pub(crate) delay: Duration,
    pub(crate) reorders: bool,
    /// Buffer of the access point. Units: packets.
    pub(crate) buffer: usize,
    pub(crate) competitors: Vec<Competitor>,
    /// Set if other access points are on the channels.
    pub(crate) neighbours: bool,
    pub(crate) channels: [u16; 2],
    /// The repeater's queue for its clients.
    pub(crate) waiting: Waiting,
    pub(crate) threshold: usize,
    pub(crate) monitor: MonitorConfig,
    pub(crate) throttle: ThrottleConfig,
    /// Channels whose signals interfere although their frames cannot be decoded.
    pub(crate) overlaps: Vec<(u16, u16)>,
    /// Search of the own link for a better channel, if allowed.
    pub(crate) search: Option<(Search, SearchPlan)>,
}

impl Setup {
    pub(crate) fn new(own: Hop, shared: Hop, down: Option<Hop>, scheme: Scheme) -> Self {
        Self {
            own,
            shared,
            down,
            scheme,
            clients: 1,
            delay: Duration::from_millis(5),
            // The naive baseline is a plain bond without a reorder buffer.
            reorders: scheme != Scheme::Naive,
            buffer: BUFFER_PACKETS,
            competitors: Vec::new(),
            neighbours: true,
            channels: [36, 1],
            waiting: Waiting::InOrder(REPEATER),
            threshold: THRESHOLD,
            monitor: MonitorConfig::default(),
            throttle: ThrottleConfig::default(),
            overlaps: Vec::new(),
            search: None,
        }
    }
}

/// Traffic of a client.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Load {
    Tcp,
    Mptcp,
    Udp(Rate),
}

/// Simulated floor with its stations.
pub(crate) struct Floor {
    pub(crate) network: Network,
    pub(crate) air: NodeId,
    /// Stations of the own and the shared link: the access point's and the repeater's.
    access_point: [StationId; 2],
    repeater: [StationId; 2],
    clients: Vec<(NodeId, Vec<(Route, Route)>)>,
    server: NodeId,
    flows: u32,
}

/// Download of a client.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Flow {
    pub(crate) server: (NodeId, SocketId),
    pub(crate) client: (NodeId, SocketId),
}

impl Floor {
    pub(crate) fn new(setup: &Setup, seed: u64) -> Self {
        let mut network = Network::new(seed);
        let mut radio = Radio::new(network.streams().seed("air"));
        let (access_point, repeater) = add_link(&mut radio, setup);
        let mut clients = Vec::new();
        let (near, far) = (repeater[SHARED], access_point[SHARED]);
        for _ in 0..setup.clients {
            let Some(down) = &setup.down else { break };
            let client = radio.add_machine(vec![down.station(setup.channels[SHARED])], |ids| {
                PeerMachine::new(ids[0])
            })[0];
            radio.set_signals(near, client, &down.signal);
            radio.set_signals(
                far,
                client,
                &Signal {
                    power: FAR,
                    ..Signal::clear()
                },
            );
            radio.set_all_signals(&clients, &Signal::clear());
            for other in &clients {
                radio.set_signals(*other, client, &Signal::clear());
            }
            clients.push(client);
        }
        for competitor in &setup.competitors {
            competitor.add(&mut radio, (&access_point, &repeater, &clients));
        }
        if setup.neighbours {
            add_neighbours(&mut radio, (&access_point, &repeater, &clients), setup.channels);
        }
        for (a, b) in &setup.overlaps {
            radio.air_mut().set_overlap(*a, *b);
        }
        let air = network.add(radio);
        let server = network.add(Host::default());
        let link = LinkConfig {
            capacity: Capacity::Rate(Rate::from_mbps(1000)),
            delay: setup.delay,
            ..LinkConfig::default()
        };
        let backhaul = wire(&mut network, "backhaul", air, access_point[OWN], server, link);
        let mut floor = Self {
            network,
            air,
            access_point,
            repeater,
            clients: Vec::new(),
            server,
            flows: 0,
        };
        for index in 0..setup.clients {
            floor.add_client(index, clients.get(index).copied(), backhaul, setup);
        }
        floor
    }

    /// Connects a client's host to its station, or to the repeater's wire.
    fn add_client(&mut self, index: usize, station: Option<StationId>, backhaul: Wire, setup: &Setup) {
        let host = self.network.add(Host::default());
        let config = LinkConfig {
            capacity: Capacity::Rate(Rate::from_mbps(1000)),
            ..LinkConfig::default()
        };
        let at = station.unwrap_or(self.repeater[OWN]);
        let bus = wire(
            &mut self.network,
            &format!("bus{index}"),
            self.air,
            at,
            host,
            config,
        );
        let mut routes = Vec::new();
        for link in [OWN, SHARED] {
            let (far, near) = (self.network.address(self.server), self.network.address(host));
            let (access_point, repeater) = (self.access_point[OWN], self.repeater[SHARED]);
            let radio: &mut Radio = self.network.node_mut(self.air).expect("it is a radio");
            if let Some(station) = station {
                radio.assign(near, station);
                radio.assign(far, repeater);
            }
            if setup.scheme == Scheme::ByAddress {
                let machine: &mut StripingMachine = radio.machine_mut(access_point).expect("it stripes");
                machine.pin(near, link);
                let machine: &mut RepeaterMachine = radio.machine_mut(repeater).expect("it repeats");
                machine.pin(near, link);
            }
            let there = Route {
                link: backhaul.to_radio,
                local: far,
                remote: near,
            };
            let here = Route {
                link: bus.to_radio,
                local: near,
                remote: far,
            };
            routes.push((there, here));
        }
        self.clients.push((host, routes));
    }

    /// Starts an endless download of a client.
    pub(crate) fn download(&mut self, client: usize, load: Load) -> Flow {
        let start = START + Duration::from_millis(13 * u64::from(self.flows + 1));
        let config = tcp_config();
        let (source, sink): (Box<dyn Application>, Box<dyn Application>) = match load {
            Load::Tcp => (
                Box::new(TcpSource::new(config, None, start)),
                Box::new(TcpSink::new(config, None, start)),
            ),
            Load::Mptcp => {
                let config = mptcp_config();
                (
                    Box::new(MptcpSource::new(config, 2, None, start)),
                    Box::new(MptcpSink::new(config, 2, None, start)),
                )
            }
            Load::Udp(rate) => (
                Box::new(Cbr::new(rate, 1472, (start, Instant::FAR_FUTURE))),
                Box::new(DatagramSink::default()),
            ),
        };
        self.join(
            client,
            if matches!(load, Load::Mptcp) { 2 } else { 1 },
            source,
            sink,
        )
    }

    /// Connects two applications over one or both of a client's addresses.
    pub(crate) fn join(
        &mut self,
        client: usize,
        routes: usize,
        source: Box<dyn Application>,
        sink: Box<dyn Application>,
    ) -> Flow {
        self.flows += 1;
        let (host, known) = &self.clients[client];
        let (there, here): (Vec<Route>, Vec<Route>) = known[..routes].iter().copied().unzip();
        let near = End {
            host: self.server,
            application: source,
            routes: &there,
        };
        let far = End {
            host: *host,
            application: sink,
            routes: &here,
        };
        let host = *host;
        let (at_server, at_client) = join(&mut self.network, FlowId(self.flows), near, far);
        Flow {
            server: (self.server, at_server),
            client: (host, at_client),
        }
    }

    /// Returns the meter of received data.
    pub(crate) fn meter(&self, flow: Flow) -> &Meter {
        let (host, socket) = flow.client;
        let host: &Host = self.network.node(host).expect("it is a host");
        let tcp = || host.application::<TcpSink>(socket).map(TcpSink::meter);
        let mptcp = || host.application::<MptcpSink>(socket).map(MptcpSink::meter);
        let udp = || host.application::<DatagramSink>(socket).map(DatagramSink::meter);
        tcp().or_else(mptcp).or_else(udp).expect("it is one of these")
    }

    /// Returns the mean rate between two times after the downloads' start. Units: Mb/s.
    pub(crate) fn rate(&self, flow: Flow, from: Duration, to: Duration) -> f64 {
        self.meter(flow).rate(START + from, START + to) / 1e6
    }

    /// Changes the links' shares at an access point that alternates between them.
    pub(crate) fn set_shares(&mut self, shares: [f64; 2]) {
        let at = self.access_point[OWN];
        let radio: &mut Radio = self.network.node_mut(self.air).expect("it is a radio");
        let machine: &mut StripingMachine = radio.machine_mut(at).expect("it is the access point");
        machine.set_shares(shares);
    }

    /// Starts the record of transmissions that [`Self::busy`] needs.
    pub(crate) fn record(&mut self) {
        let radio: &mut Radio = self.network.node_mut(self.air).expect("it is a radio");
        radio.record();
    }

    /// Returns the share of a period in which stations on a link's channel transmitted.
    pub(crate) fn busy(&self, link: usize, from: Instant, to: Instant) -> f64 {
        let radio: &Radio = self.network.node(self.air).expect("it is a radio");
        let channel = radio.air().channel(self.access_point[link]);
        let sent = radio.log().iter().rev().take_while(|sent| sent.end >= from);
        let held = sent.filter(|sent| sent.channel == channel && sent.end < to);
        held.map(|sent| sent.end.since(sent.start).as_secs_f64())
            .sum::<f64>()
            / to.since(from).as_secs_f64()
    }

    /// Returns the stations of the own link: the access point's and the repeater's.
    #[cfg(test)]
    pub(crate) fn own_stations(&self) -> [StationId; 2] {
        [self.access_point[OWN], self.repeater[OWN]]
    }

    /// The repeater.
    pub(crate) fn repeater(&self) -> &RepeaterMachine {
        let radio: &Radio = self.network.node(self.air).expect("it is a radio");
        radio.machine(self.repeater[OWN]).expect("it is the repeater")
    }

    /// The access point.
    pub(crate) fn access_point(&self) -> &StripingMachine {
        let radio: &Radio = self.network.node(self.air).expect("it is a radio");
        radio
            .machine(self.access_point[OWN])
            .expect("it is the access point")
    }
}

/// Returns the mean throughput of one client with `load`, over `length` after `warm_up`. Units:
/// Mb/s.
pub(crate) fn throughput(
    setup: &Setup,
    load: Load,
    (warm_up, length): (Duration, Duration),
    seed: u64,
) -> f64 {
    let mut floor = Floor::new(setup, seed);
    let flow = floor.download(0, load);
    floor.network.run(START + warm_up + length);
    floor.rate(flow, warm_up, warm_up + length)
}

/// Returns a timeline of one second in which every client downloads, after the throttle has
/// settled.
pub(crate) fn picture(setup: &Setup, load: Load, title: &str, seed: u64) -> Option<String> {
    let mut floor = Floor::new(setup, seed);
    for client in 0..setup.clients {
        floor.download(client, load);
    }
    floor.network.run(START + DRAWN_AFTER);
    floor.record();
    floor.network.run(START + DRAWN_AFTER + Duration::from_secs(1));
    let radio: &Radio = floor.network.node(floor.air)?;
    let on_air = if setup.down.is_some() { setup.clients } else { 0 };
    let links = ["access point", "repeater"]
        .iter()
        .flat_map(|name| ["own", "shared"].map(|link| format!("{name}, {link}")));
    let clients = (0..on_air).map(|client| format!("client {}", client + 1));
    let others = (1..=setup.competitors.len())
        .flat_map(|n| [format!("competitor {n}'s peer"), format!("competitor {n}")]);
    let beacons = setup.channels.iter().filter(|_| setup.neighbours);
    let beacons = beacons.map(|channel| format!("others on channel {channel}"));
    let names = links.chain(clients).chain(others).chain(beacons).collect();
    Some(radio.timeline(title, names))
}

fn add_link(radio: &mut Radio, setup: &Setup) -> ([StationId; 2], [StationId; 2]) {
    let configs = || {
        let hops = [&setup.own, &setup.shared];
        hops.iter()
            .zip(setup.channels)
            .map(|(hop, channel)| hop.station(channel))
            .collect::<Vec<_>>()
    };
    let is_multifacet = setup.scheme == Scheme::Multifacet;
    let repeater_config = RepeaterConfig {
        reorder: setup.reorders.then(reorder::Config::default),
        monitor: is_multifacet.then_some(setup.monitor),
        queue: setup.waiting,
        upward: if setup.scheme == Scheme::OneChannel {
            SHARED
        } else {
            OWN
        },
        follows: setup.search.is_some(),
    };
    // The ids of the next stations are known: each machine has two consecutive ones.
    let repeater_ids = [StationId(2), StationId(3)];
    let mut down = configs();
    if let Some(hop) = &setup.down {
        down[SHARED] = hop.station(setup.channels[SHARED]);
        down[SHARED].queue = REPEATER + DRIVER;
    }
    let access_point = radio.add_machine(configs(), |ids| {
        let mut machine = StripingMachine::new([ids[0], ids[1]], repeater_ids, striping(setup));
        if let Some((_, plan)) = &setup.search {
            machine.search(plan.clone());
        }
        machine
    });
    let repeater = radio.add_machine(down, |ids| {
        RepeaterMachine::new(
            [ids[0], ids[1]],
            [access_point[0], access_point[1]],
            repeater_config,
        )
    });
    radio.set_signals(access_point[OWN], repeater[OWN], &setup.own.signal);
    radio.set_signals(access_point[SHARED], repeater[SHARED], &setup.shared.signal);
    ([access_point[0], access_point[1]], [repeater[0], repeater[1]])
}

fn striping(setup: &Setup) -> AccessPoint<Packet> {
    let discipline = match setup.scheme {
        Scheme::Traditional => Discipline::Shares([1.0, 0.0]),
        Scheme::OneChannel => Discipline::Shares([0.0, 1.0]),
        Scheme::Naive | Scheme::ByAddress => Discipline::Shares([1.0, 1.0]),
        Scheme::Turns => Discipline::Turns,
        Scheme::Multifacet => Discipline::Throttled,
        Scheme::Aggregate => Discipline::Unthrottled,
    };
    let has_feedback = matches!(
        setup.scheme,
        Scheme::Multifacet | Scheme::Aggregate | Scheme::Turns
    );
    let config = Config {
        discipline,
        buffer: setup.buffer,
        threshold: if has_feedback { setup.threshold } else { DRIVER },
        throttle: setup.throttle,
    };
    let kind = setup.search.as_ref().map_or(Search::Adequate, |(kind, _)| *kind);
    let migration = Migration::new(migration::Config::new(kind), setup.channels[OWN]);
    AccessPoint::new(config, migration, Instant::ZERO)
}

/// Returns the TCP of Linux 3.2, which the paper's machines run: the TCP of 3.5 without HyStart.
pub(crate) fn tcp_config() -> tcp::Config {
    tcp::Config {
        recovery: tcp::Recovery::SackAdaptive,
        hystart: false,
        ..tcp::Config::linux_3_5()
    }
}

/// Returns the configuration of the paper's MPTCP.
pub(crate) fn mptcp_config() -> mptcp::Config {
    mptcp::Config::v0_89(Coupling::Lia)
}

/// Start of the timeline, after the downloads' start. Source: our choice, when TCP's slow start has
/// ended.
const DRAWN_AFTER: Duration = Duration::from_secs(3);
/// Start of the downloads. Source: our choice; stations are associated from the beginning, so any
/// time after it would do.
pub(crate) const START: Instant = Instant::from_nanos(100_000_000);
/// Queue of the repeater for its clients. Source: our choice (start of this file), as large as the
/// access point's buffer of Table 5. Units: packets.
const REPEATER: usize = 200;
/// Signal between a client and the access point at which they only sense each other. Units: dBm.
/// Source: our choice, above the -82 dBm at which a station waits (IEEE 802.11-2016 section
/// 17.3.10.6), and 25 dB below a strong signal, so that frames of the nearer sender survive.
pub const FAR: f32 = -75.0;
