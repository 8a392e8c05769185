//! Shared medium without 802.11: each access point has its own packet time, and the next packet is
//! chosen by weight.
//!
//! Source: All-APs section 6.2.1, which added such a queue to htsim. The paper states packet times,
//! weights and round trips. It does not state:
//! - which access point a weight of more than one favours: the worse one, as in its example;
//! - how the choice is fair: here by self-clocked fair queueing (Golestani 1994), which counts
//!   packets and not their length;
//! - the access points' buffers: here 100 packets each, as in its eq. 5;
//! - the congestion control: here LIA in figure 6; the rest of TCP is as in htsim
//!   ([`hawser_sim::tcp::Config::htsim`]);
//! - how acknowledgements return: here without using the medium, since htsim's queues are
//!   unidirectional.

use std::collections::VecDeque;

use hawser_netem::{Capacity, LinkConfig, QueueBound, Random};
use hawser_radio::delivery::efficiency::marking_rate;
use hawser_units::{Bytes, Duration, Instant, Rate};

use hawser_sim::app::{TcpSink, TcpSource};
use hawser_sim::host::{Application, End, Host, Route, SocketId, join};
use hawser_sim::mptcp::{self, Coupling, MptcpSink, MptcpSource};
use hawser_sim::network::{Context, LinkId, Network, Node, NodeId};
use hawser_sim::packet::{Ecn, FlowId, Packet};
use hawser_sim::tcp;

/// Length of the medium's counting intervals. Source: a tenth of a second. Units: nanoseconds.
const BIN_NANOS: u64 = 100_000_000;
/// Number of counting intervals in a second. Source: ten of [`BIN_NANOS`].
const SECOND: usize = 10;
/// Buffer of an access point. Source: All-APs eq. 5, in which half of the buffer is 50 packets.
/// Units: packets.
const BUFFER: usize = 100;

/// Access point of a [`Medium`].
#[derive(Clone, Copy, Debug)]
pub(super) struct Point {
    /// Airtime of its packets. Units: seconds.
    pub(super) packet_time: f64,
    /// Weight with which it is chosen while all access points have packets.
    pub(super) weight: f64,
}

/// Medium, followed by the client's marking.
struct Medium {
    points: Vec<Point>,
    /// Queued packets with their virtual finish times.
    queues: Vec<VecDeque<(f64, Packet)>>,
    /// Tags of the last packet of each access point, and of the packet in transmission.
    tags: Vec<f64>,
    virtual_time: f64,
    sending: Option<usize>,
    /// Access point of each incoming link.
    inward: Vec<(LinkId, usize)>,
    outward: Option<LinkId>,
    /// Marking probability of each access point.
    marking: Vec<f64>,
    /// Time from which the first access point loses packets, and its loss rate.
    worsens: Option<(Instant, f64)>,
    /// Packets that each access point delivered in each [`BIN_NANOS`].
    brought: Vec<Vec<u32>>,
    random: Random,
}

impl Medium {
    /// Queues a packet with its virtual finish time, at its access point's share of the medium.
    fn queue(&mut self, index: usize, packet: Packet) {
        if self.queues[index].len() < BUFFER {
            self.tags[index] = self.tags[index].max(self.virtual_time) + 1.0 / self.points[index].weight;
            self.queues[index].push_back((self.tags[index], packet));
        }
    }

    fn count(&mut self, index: usize, now: Instant) {
        let bin = (now.as_nanos() / BIN_NANOS) as usize;
        if self.brought.len() <= bin {
            self.brought.resize(bin + 1, vec![0; self.points.len()]);
        }
        self.brought[bin][index] += 1;
    }

    fn start(&mut self, context: &mut Context<'_>) {
        if self.sending.is_some() {
            return;
        }
        let first = |index: &usize| self.queues[*index].front().map(|(tag, _)| (*tag, *index));
        let firsts = (0..self.points.len()).filter_map(|index| first(&index));
        if let Some((tag, next)) = firsts.min_by(|a, b| a.0.total_cmp(&b.0)) {
            self.virtual_time = tag;
            self.sending = Some(next);
            context.after(Duration::from_secs_f64(self.points[next].packet_time), 0);
        }
    }
}

impl Node for Medium {
    fn handle_packet(&mut self, packet: Packet, link: LinkId, context: &mut Context<'_>) {
        let place = self.inward.iter().find(|(known, _)| *known == link);
        let Some(&(_, index)) = place else { return };
        self.queue(index, packet);
        self.start(context);
    }

    fn handle_timer(&mut self, _tag: u32, context: &mut Context<'_>) {
        if let Some(index) = self.sending.take()
            && let Some((_, mut packet)) = self.queues[index].pop_front()
            && let Some(link) = self.outward
        {
            if packet.ecn == Ecn::Capable && self.random.chance(self.marking[index]) {
                packet.ecn = Ecn::Marked;
            }
            let loss = self
                .worsens
                .filter(|(from, _)| index == 0 && context.now() >= *from);
            if !self.random.chance(loss.map_or(0.0, |(_, loss)| loss)) {
                self.count(index, context.now());
                context.send(link, packet);
            }
        }
        self.start(context);
    }
}

/// A client behind several access points.
#[derive(Clone, Debug)]
pub(super) struct World {
    pub(super) points: Vec<Point>,
    /// Round-trip time without queues.
    pub(super) round_trip: Duration,
    /// Set if the client marks packets of worse access points.
    pub(super) marks: bool,
    /// Rate of the second access point's uplink, and the number of TCP connections that compete
    /// there.
    pub(super) uplink: Option<(Rate, usize)>,
    /// Time from which the first access point loses packets, and its loss rate.
    pub(super) worsens: Option<(Instant, f64)>,
    pub(super) coupling: Coupling,
    pub(super) seed: u64,
}

/// Access points that the client uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Use {
    All,
    /// Plain TCP through one access point.
    Only(usize),
}

/// Warm-up before the measured time.
pub(super) const WARM_UP: Duration = Duration::from_secs(10);
pub(super) const LENGTH: Duration = Duration::from_secs(30);

impl World {
    /// Returns the client's throughput. Units: Mb/s of whole packets.
    pub(super) fn throughput(&self, which: Use) -> f64 {
        self.run(which).0
    }

    /// Returns the time from the first access point's deterioration until it delivers at most a
    /// tenth of the packets of a second.
    pub(super) fn shift(&self) -> Option<Duration> {
        let brought = self.run(Use::All).1;
        let from = (self.worsens?.0.as_nanos() / BIN_NANOS) as usize;
        let has_shifted = |bins: &[Vec<u32>]| {
            let all: u32 = bins.iter().flatten().sum();
            let first: u32 = bins.iter().map(|bin| bin[0]).sum();
            10 * first <= all
        };
        let after = brought.get(from..)?.windows(SECOND).position(has_shifted)?;
        Some(Duration::from_nanos(BIN_NANOS) * (after + SECOND) as u32)
    }

    fn run(&self, which: Use) -> (f64, Vec<Vec<u32>>) {
        let mut network = Network::new(self.seed);
        let (server, client) = (network.add(Host::default()), network.add(Host::default()));
        let medium = network.add(Medium {
            queues: vec![VecDeque::new(); self.points.len()],
            tags: vec![0.0; self.points.len()],
            virtual_time: 0.0,
            sending: None,
            inward: Vec::new(),
            outward: None,
            marking: self.marking(),
            worsens: self.worsens,
            brought: Vec::new(),
            random: network.streams().get("marks"),
            points: self.points.clone(),
        });
        let outward = network.connect("air", medium, client, wire(Duration::ZERO));
        let back = network.connect("back", client, server, wire(self.round_trip / 2));
        let used: Vec<usize> = match which {
            Use::All => (0..self.points.len()).collect(),
            Use::Only(index) => vec![index],
        };
        let mut routes = Vec::new();
        for index in used {
            let link = match self.uplink {
                Some((rate, competitors)) if index == 1 => {
                    self.congested(&mut network, (server, medium), rate, competitors)
                }
                _ => network.connect(&format!("ap{index}"), server, medium, wire(self.round_trip / 2)),
            };
            let (far, near) = (network.address(server), network.address(client));
            let node: &mut Medium = network.node_mut(medium).expect("it is the medium");
            node.inward.push((link, index));
            node.outward = Some(outward);
            let there = Route {
                link,
                local: far,
                remote: near,
            };
            let here = Route {
                link: back,
                local: near,
                remote: far,
            };
            routes.push((there, here));
        }
        let count = routes.len();
        let (there, here): (Vec<Route>, Vec<Route>) = routes.into_iter().unzip();
        let (source, sink): (Box<dyn Application>, Box<dyn Application>) = match which {
            Use::All => {
                let config = multipath(self.coupling);
                let source = MptcpSource::new(config, count, None, Instant::ZERO);
                (
                    Box::new(source),
                    Box::new(MptcpSink::new(config, count, None, Instant::ZERO)),
                )
            }
            Use::Only(_) => {
                let config = tcp::Config::htsim();
                let source = TcpSource::new(config, None, Instant::ZERO);
                (
                    Box::new(source),
                    Box::new(TcpSink::new(config, None, Instant::ZERO)),
                )
            }
        };
        let near = End {
            host: server,
            application: source,
            routes: &there,
        };
        let far = End {
            host: client,
            application: sink,
            routes: &here,
        };
        let (_, socket) = join(&mut network, FlowId(1), near, far);
        let rate = measure(&mut network, client, socket, which);
        let node: &mut Medium = network.node_mut(medium).expect("it is the medium");
        (rate, std::mem::take(&mut node.brought))
    }

    /// Returns the share of each access point's packets that the client marks.
    fn marking(&self) -> Vec<f64> {
        let times = || self.points.iter().map(|point| point.packet_time);
        let best = times().fold(f64::INFINITY, f64::min);
        let round_trip = self.round_trip.as_secs_f64();
        let rate = |time: f64| {
            let is_marked = self.marks && time > THRESHOLD * best;
            // The smallest round-trip time that TCP can measure includes one packet on the air.
            if is_marked {
                marking_rate(time, round_trip + time)
            } else {
                0.0
            }
        };
        times().map(rate).collect()
    }

    /// Adds an uplink of `rate` with `competitors` TCP connections of the same round-trip time,
    /// which do not use the air.
    fn congested(
        &self,
        network: &mut Network,
        (server, medium): (NodeId, NodeId),
        rate: Rate,
        competitors: usize,
    ) -> LinkId {
        let config = LinkConfig {
            capacity: Capacity::Rate(rate),
            queue: QueueBound::Bytes(Bytes(FRAME * BUFFER as u64)),
            ..LinkConfig::default()
        };
        let fork = network.add(Fork::default());
        let uplink = network.connect("uplink", server, fork, config);
        let others = network.add(Host::default());
        let to_air = network.connect("behind", fork, medium, wire(self.round_trip / 2));
        let to_others = network.connect("others", fork, others, wire(self.round_trip / 2));
        let back = network.connect("others-back", others, server, wire(self.round_trip / 2));
        let node: &mut Fork = network.node_mut(fork).expect("it is the fork");
        (node.to_air, node.to_others) = (Some(to_air), Some(to_others));
        for number in 0..competitors {
            let (far, near) = (network.address(server), network.address(others));
            // Their starts are staggered so that they are not synchronized.
            let start = Instant::ZERO + Duration::from_millis(37 * number as u64);
            let here = [Route {
                link: uplink,
                local: far,
                remote: near,
            }];
            let there = [Route {
                link: back,
                local: near,
                remote: far,
            }];
            let source = Box::new(TcpSource::new(tcp::Config::htsim(), None, start));
            let sink = Box::new(TcpSink::new(tcp::Config::htsim(), None, start));
            let near = End {
                host: server,
                application: source,
                routes: &here,
            };
            let far = End {
                host: others,
                application: sink,
                routes: &there,
            };
            join(network, FlowId(COMPETING + number as u32), near, far);
        }
        let node: &mut Medium = network.node_mut(medium).expect("it is the medium");
        node.inward.push((to_air, 1));
        uplink
    }
}

/// Forwards packets at the end of an uplink to the client's access point or to the competitors.
#[derive(Default)]
struct Fork {
    to_air: Option<LinkId>,
    to_others: Option<LinkId>,
}

impl Node for Fork {
    fn handle_packet(&mut self, packet: Packet, _link: LinkId, context: &mut Context<'_>) {
        let way = if packet.flow.0 >= COMPETING {
            self.to_others
        } else {
            self.to_air
        };
        if let Some(link) = way {
            context.send(link, packet);
        }
    }
}

fn measure(network: &mut Network, client: NodeId, socket: SocketId, which: Use) -> f64 {
    let from = Instant::ZERO + WARM_UP;
    let to = from + LENGTH;
    network.run(to);
    let host: &Host = network.node(client).expect("it is a host");
    let meter = match which {
        Use::All => host.application::<MptcpSink>(socket).map(MptcpSink::meter),
        Use::Only(_) => host.application::<TcpSink>(socket).map(TcpSink::meter),
    };
    meter.expect("it is that sink").rate(from, to) / 1e6
}

/// Returns the configuration of the client's connection.
fn multipath(coupling: Coupling) -> mptcp::Config {
    let config = mptcp::Config::htsim(coupling);
    let tcp = tcp::Config {
        ecn: true,
        ..config.tcp
    };
    mptcp::Config { tcp, ..config }
}

fn wire(delay: Duration) -> LinkConfig {
    LinkConfig {
        delay,
        ..LinkConfig::default()
    }
}

/// Factor of the best packet time from which packets are marked. Source: All-APs section 5.2
/// (20 %).
const THRESHOLD: f64 = 1.2;
/// First number of the competing connections. Source: larger than those of the client.
const COMPETING: u32 = 100;
/// Size of a full packet on the link. Source: 1,500 bytes with the header (14), check sequence (4),
/// preamble (8) and gap (12) of IEEE 802.3. Units: bytes.
const FRAME: u64 = 1538;
