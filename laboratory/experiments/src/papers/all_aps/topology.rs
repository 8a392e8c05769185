//! Simulated site with access points on one channel, clients that use some of them, and a server
//! behind them.

use std::cell::RefCell;
use std::rc::Rc;

use hawser_netem::LinkConfig;
use hawser_netem::air::{AccessPointConfig, Kind, Signal, StationConfig, StationId, Transmitted};
use hawser_radio::delivery::{AccessPoints, Config as Comparison, Event};
use hawser_units::{Duration, Instant, Rate};

use hawser_sim::app::{Cbr, DatagramSink, Meter, TcpSink, TcpSource};
use hawser_sim::host::{Application, End, Host, Route, SocketId, join};
use hawser_sim::mptcp::{self, Coupling, MptcpSink, MptcpSource};
use hawser_sim::network::{Network, NodeId};
use hawser_sim::packet::{Address, FlowId};
use hawser_sim::radio::{ClientMachine, Marking, Radio, Wire, wire};
use hawser_sim::tcp;

/// Site with access points, clients and a server.
pub(super) struct Topology {
    pub(super) network: Network,
    pub(super) air: NodeId,
    pub(super) access_points: Vec<StationId>,
    configs: Vec<StationConfig>,
    server: NodeId,
    backhauls: Vec<Wire>,
    /// Stations of all clients.
    stations: Vec<StationId>,
    flows: u32,
}

/// Client: a radio with an interface for each access point that it uses.
pub(super) struct Client {
    host: NodeId,
    pub(super) station: StationId,
    access_points: Vec<StationId>,
    routes: Vec<(Route, Route)>,
    comparison: Rc<RefCell<AccessPoints>>,
}

impl Client {
    /// Sets which of its access points are in reach; the others are no longer compared.
    pub(super) fn reach(&self, is_near: &[bool]) {
        let mut comparison = self.comparison.borrow_mut();
        for (index, is_near) in is_near.iter().enumerate() {
            if comparison.has_left(index) == Some(*is_near) {
                if *is_near {
                    comparison.rejoin(index);
                } else {
                    comparison.leave(index);
                }
            }
        }
    }

    /// Returns the client with only this interface.
    pub(super) fn only(&self, interface: usize) -> Self {
        Self {
            host: self.host,
            station: self.station,
            access_points: vec![self.access_points[interface]],
            routes: vec![self.routes[interface]],
            comparison: self.comparison.clone(),
        }
    }
}

/// Traffic that a client downloads.
pub(super) enum Load {
    Tcp(tcp::Congestion),
    Mptcp(Coupling),
    Udp(Rate),
}

/// Download of a client.
#[derive(Clone, Copy)]
pub(super) struct Flow {
    source: SocketId,
    host: NodeId,
    socket: SocketId,
}

impl Topology {
    /// Creates a site whose access points have these configurations and receive each other at the
    /// signal `between`; the server has a one-way delay of `delay`.
    pub(super) fn new(seed: u64, access_points: &[StationConfig], between: &Signal, delay: Duration) -> Self {
        let mut network = Network::new(seed);
        let mut radio = Radio::new(network.streams().seed("air"));
        let ids: Vec<StationId> = access_points
            .iter()
            .map(|config| radio.add_access_point(config.clone(), AccessPointConfig::default()))
            .collect();
        radio.set_all_signals(&ids, between);
        radio.air_mut().record();
        let air = network.add(radio);
        let server = network.add(Host::default());
        let link = LinkConfig {
            delay,
            ..LinkConfig::default()
        };
        let mut backhauls = Vec::new();
        for (index, id) in ids.iter().enumerate() {
            let name = format!("backhaul{index}");
            backhauls.push(wire(&mut network, &name, air, *id, server, link.clone()));
        }
        Self {
            network,
            air,
            access_points: ids,
            configs: access_points.to_vec(),
            server,
            backhauls,
            stations: Vec::new(),
            flows: 0,
        }
    }

    /// Returns the number of frames that a client received from each access point, for each second
    /// after the downloads' start.
    fn seconds(&self, client: &Client, from: Duration, to: Duration) -> Vec<[u32; 2]> {
        let radio: &Radio = self.network.node(self.air).expect("it is a radio");
        let mut counts = vec![[0; 2]; (to - from).as_secs() as usize];
        for sent in radio.log() {
            let index = client.access_points.iter().position(|from| sent.from == *from);
            if let Some(index) = index
                && sent.to == Some(client.station)
                && sent.kind == Kind::Data
                && sent.read
                && sent.end >= START + from
                && let Some(second) = counts.get_mut(sent.end.since(START + from).as_secs() as usize)
            {
                second[index.min(1)] += 1;
            }
        }
        counts
    }

    /// Returns the larger subflow's share of the frames in a second, averaged over the seconds.
    pub(super) fn monopoly(&self, client: &Client, from: Duration, to: Duration) -> f64 {
        let seconds = self.seconds(client, from, to);
        let share = |[a, b]: &[u32; 2]| f64::from(*a.max(b)) / f64::from((a + b).max(1));
        seconds.iter().map(share).sum::<f64>() / seconds.len() as f64
    }

    /// Returns the first subflow's share of all frames.
    pub(super) fn first_share(&self, client: &Client, from: Duration, to: Duration) -> f64 {
        let seconds = self.seconds(client, from, to);
        let (first, second) = seconds
            .iter()
            .fold((0, 0), |(first, second), [a, b]| (first + a, second + b));
        f64::from(first) / f64::from((first + second).max(1))
    }

    pub(super) fn radio(&mut self) -> &mut Radio {
        self.network.node_mut(self.air).expect("it is a radio")
    }

    /// Adds a client that receives the access points at `signals` and uses those in `used`. If
    /// `marks` is set, it marks packets of worse access points.
    pub(super) fn client(&mut self, signals: &[Signal], used: &[usize], marks: bool) -> Client {
        let host = self.network.add(Host::default());
        let comparison = Rc::new(RefCell::new(AccessPoints::new(
            Comparison::default(),
            u64::from(self.flows),
        )));
        let ids = self.access_points.clone();
        let mine: Vec<StationId> = used.iter().map(|index| ids[*index]).collect();
        // The client's card has the capabilities of the best access point.
        let best = used.iter().map(|index| &self.configs[*index]);
        let best = best.max_by_key(|config| config.aggregate);
        let config = StationConfig {
            monitor: true,
            ..best.expect("a client uses an access point").clone()
        };
        let others = self.stations.clone();
        let radio = self.radio();
        let station = radio.add_client(config, mine[0]);
        for (id, signal) in ids.iter().zip(signals) {
            radio.set_signals(*id, station, signal);
        }
        for other in others {
            radio.set_signals(other, station, &Signal::clear());
        }
        let name = format!("bus{}", self.stations.len());
        let bus = wire(
            &mut self.network,
            &name,
            self.air,
            station,
            host,
            LinkConfig::default(),
        );
        let mut routes = Vec::new();
        for (interface, (index, access_point)) in used.iter().zip(&mine).enumerate() {
            let (near, far) = (self.network.address(host), self.network.address(self.server));
            let radio = self.radio();
            radio.assign(near, station);
            let machine: &mut ClientMachine = radio.machine_mut(station).expect("it is a client");
            if interface > 0 {
                machine.add(*access_point);
            }
            machine.assign(near, interface);
            if marks {
                let gate = Marking::join(&comparison, *access_point, station);
                machine.set_gate(interface, gate);
            }
            routes.push(Self::routes(self.backhauls[*index], bus, far, near));
        }
        self.stations.push(station);
        Client {
            host,
            station,
            access_points: mine,
            routes,
            comparison,
        }
    }

    fn routes(backhaul: Wire, bus: Wire, far: Address, near: Address) -> (Route, Route) {
        let there = Route {
            link: backhaul.to_radio,
            local: far,
            remote: near,
        };
        (
            there,
            Route {
                link: bus.to_radio,
                local: near,
                remote: far,
            },
        )
    }

    /// Sends datagrams to a client's first interface between two times.
    pub(super) fn visit(&mut self, client: &Client, rate: Rate, during: (Instant, Instant)) {
        self.flows += 1;
        let (there, here) = client.routes[0];
        let near = End {
            host: self.server,
            application: Box::new(Cbr::new(rate, 1472, during)),
            routes: &[there],
        };
        let far = End {
            host: client.host,
            application: Box::new(DatagramSink::default()),
            routes: &[here],
        };
        let (source, _) = join(&mut self.network, FlowId(self.flows), near, far);
        self.wake(source);
    }

    /// Lets a source that was added during the run set its timers.
    fn wake(&mut self, source: SocketId) {
        if self.network.now() > Instant::ZERO {
            self.network.with_node(self.server, |host: &mut Host, context| {
                host.with_application(source, context, |_: &mut MptcpSource| ());
            });
        }
    }

    /// Returns the number of beacons that a client has received from each of its access points.
    pub(super) fn beacons(&self, client: &Client) -> Vec<u64> {
        let radio: &Radio = self.network.node(self.air).expect("it is a radio");
        let machine = radio.machine::<ClientMachine>(client.station);
        machine.map_or_else(Vec::new, ClientMachine::beacons)
    }

    /// Returns the present time.
    pub(super) fn now(&self) -> Instant {
        self.network.now()
    }

    /// Starts an endless download of a client: through all of its interfaces with MPTCP, otherwise
    /// through the first.
    pub(super) fn download(&mut self, client: &Client, load: &Load) -> Flow {
        let start = START + Duration::from_millis(13 * (u64::from(self.flows) + 1));
        self.fetch(client, load, None, start)
    }

    /// Starts a download of this many bytes at the given time.
    pub(super) fn fetch(&mut self, client: &Client, load: &Load, bytes: Option<u64>, start: Instant) -> Flow {
        self.flows += 1;
        let count = if matches!(load, Load::Mptcp(_)) {
            client.routes.len()
        } else {
            1
        };
        let (source, sink): (Box<dyn Application>, Box<dyn Application>) = match load {
            Load::Tcp(congestion) => {
                let config = tcp::Config {
                    congestion: *congestion,
                    hystart: *congestion == tcp::Congestion::Cubic,
                    ..tcp::Config::linux_3_5()
                };
                (
                    Box::new(TcpSource::new(config, bytes, start)),
                    Box::new(TcpSink::new(config, bytes, start)),
                )
            }
            Load::Mptcp(coupling) => {
                let config = mptcp::Config::v0_89(*coupling);
                let config = mptcp::Config {
                    tcp: tcp::Config {
                        ecn: true,
                        ..config.tcp
                    },
                    ..config
                };
                let source = MptcpSource::new(config, count, bytes, start);
                (
                    Box::new(source),
                    Box::new(MptcpSink::new(config, count, bytes, start)),
                )
            }
            Load::Udp(rate) => {
                let end = Instant::FAR_FUTURE;
                (
                    Box::new(Cbr::new(*rate, 1472, (start, end))),
                    Box::new(DatagramSink::default()),
                )
            }
        };
        let (there, here): (Vec<Route>, Vec<Route>) = client.routes[..count].iter().copied().unzip();
        let near = End {
            host: self.server,
            application: source,
            routes: &there,
        };
        let far = End {
            host: client.host,
            application: sink,
            routes: &here,
        };
        let (source, socket) = join(&mut self.network, FlowId(self.flows), near, far);
        self.wake(source);
        Flow {
            source,
            host: client.host,
            socket,
        }
    }

    /// Runs `act` on the sender of a flow.
    pub(super) fn with_source(&mut self, flow: Flow, act: impl FnOnce(&mut MptcpSource, Instant)) {
        self.network.with_node(self.server, |host: &mut Host, context| {
            let now = context.now();
            host.with_application(flow.source, context, |source: &mut MptcpSource| act(source, now));
        });
    }

    /// Returns the times at which a client received data frames, starting at `from`. Units:
    /// seconds.
    pub(super) fn arrivals(&self, client: &Client, from: Duration) -> Vec<f64> {
        let radio: &Radio = self.network.node(self.air).expect("it is a radio");
        let is_data = |sent: &&Transmitted| sent.kind == Kind::Data && sent.read && sent.end >= START + from;
        let log = radio.log().iter().filter(is_data);
        log.filter(|sent| sent.to == Some(client.station))
            .map(|sent| sent.end.since(START).as_secs_f64())
            .collect()
    }

    /// Applies the client's comparison of its access points: sets which subflows are backups.
    pub(super) fn follow(&mut self, client: &Client, flow: Flow) {
        let events: Vec<Event> = std::iter::from_fn(|| client.comparison.borrow_mut().poll_event()).collect();
        self.with_source(flow, |source, _| {
            for Event::Backup {
                access_point,
                is_backup,
            } in events
            {
                source.set_backup(access_point, is_backup);
            }
        });
    }

    /// Returns the time at which a flow had delivered all its bytes.
    pub(super) fn done(&self, flow: Flow) -> Option<Instant> {
        let host: &Host = self.network.node(flow.host)?;
        let tcp = || host.application::<TcpSink>(flow.socket)?.done();
        host.application::<MptcpSink>(flow.socket)
            .map_or_else(tcp, MptcpSink::done)
    }

    /// Runs the simulation until this long after the downloads' start.
    pub(super) fn run(&mut self, after: Duration) {
        self.network.run(START + after);
    }

    /// Returns a timeline of one second of the air, [`DRAWN_AFTER`] the downloads' start.
    pub(super) fn picture(mut self, title: &str) -> String {
        self.run(DRAWN_AFTER);
        self.radio().record();
        self.run(DRAWN_AFTER + Duration::from_secs(1));
        let numbered = |what: &str, count: usize| -> Vec<String> {
            (1..=count).map(|number| format!("{what} {number}")).collect()
        };
        let mut names = numbered("access point", self.access_points.len());
        names.extend(numbered("client", self.stations.len()));
        self.radio().timeline_since(title, names, START + DRAWN_AFTER)
    }

    fn meter(&self, flow: Flow) -> Option<&Meter> {
        let host: &Host = self.network.node(flow.host)?;
        let tcp = || host.application::<TcpSink>(flow.socket).map(TcpSink::meter);
        host.application::<MptcpSink>(flow.socket)
            .map(MptcpSink::meter)
            .or_else(tcp)
    }

    /// Returns the mean rate between two times after the downloads' start. Units: Mb/s.
    pub(super) fn rate(&self, flow: Flow, from: Duration, to: Duration) -> f64 {
        if let Some(meter) = self.meter(flow) {
            return meter.rate(START + from, START + to) / 1e6;
        }
        let host: &Host = self.network.node(flow.host).expect("it is a host");
        let sink: &DatagramSink = host.application(flow.socket).expect("it is a datagram sink");
        sink.meter().rate(START + from, START + to) / 1e6
    }
}

/// Start of the timeline, after the downloads' start. Source: our choice, when TCP's slow start has
/// ended.
const DRAWN_AFTER: Duration = Duration::from_secs(5);
/// Start of the downloads, when all stations have associated. Source: our choice; an association
/// takes a few frames, and is repeated after 200 ms.
pub(super) const START: Instant = Instant::from_nanos(500_000_000);
