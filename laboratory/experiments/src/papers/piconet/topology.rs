//! Topology of the paper's figure 2: source, proxy, channels, members, LAN, receiver.

use hawser_netem::{Capacity, Change, LinkConfig, Loss, QueueBound, Random, State};
use hawser_proto::scheduler::{Choice, Demand, PathView, Scheduler};
use hawser_units::{Bytes, Duration, InnerBytes, Instant, PathId, PredictedRate, Rate};
use hawser_wire::layer::Layer;

use crate::reproduce::ExperimentError;
use hawser_sim::Router;
use hawser_sim::app::TcpSink;
use hawser_sim::host::{Application, End, Host, Route, SocketId, join};
use hawser_sim::network::{Context, LinkId, Network, Node, NodeId};
use hawser_sim::packet::{Address, Body, Datagram, Ecn, FlowId, Packet};

/// Properties of a channel.
#[derive(Clone, Copy, Debug)]
pub(super) struct Channel {
    /// Bits per second, including the framing that the set-up counts.
    pub(super) bps: u64,
    /// Share of packets lost on the air.
    pub(super) loss: f64,
    /// Delay in each direction.
    pub(super) delay: Duration,
}

/// Configuration of a piconet.
pub(super) struct Plan {
    pub(super) seed: u64,
    pub(super) channels: Vec<Channel>,
    /// Bytes that a channel carries beyond the sender's payload (datagrams) or packet (TCP).
    pub(super) framing: u16,
    /// Payload of the senders, for queues that hold a number of packets.
    pub(super) payload: u16,
    /// Queue before a channel. Units: packets.
    pub(super) queue: u16,
    pub(super) scheduler: Box<dyn Scheduler>,
    /// Set if datagrams are striped: their headers of 28 bytes are then part of the framing.
    pub(super) is_datagram: bool,
    /// Largest packet that the proxy assumes, from which it derives the quantum of surplus round
    /// robin. Units: bytes.
    pub(super) mtu: u16,
}

/// Simulated piconet.
pub(super) struct Piconet {
    pub(super) network: Network,
    pub(super) channels: Vec<LinkId>,
    members: Vec<NodeId>,
    proxy: NodeId,
    source: (NodeId, LinkId, Address),
    receiver: (NodeId, LinkId, Address),
}

impl Plan {
    /// # Panics
    /// Never: all nodes were added before.
    pub(super) fn build(self) -> Piconet {
        let mut network = Network::new(self.seed);
        let source = network.add(Host::default());
        let receiver = network.add(Host::default());
        let gateway = network.add(Router::default());
        let shift = i32::from(self.framing) - if self.is_datagram { 28 } else { 0 } - FRAME;
        let lan = network.connect_shared("lan", gateway, rate(11_000_000, Duration::from_millis(1)));
        let members: Vec<NodeId> = self
            .channels
            .iter()
            .map(|_| {
                network.add(Member {
                    lan,
                    shift,
                    transit: None,
                    change: 0.0,
                    count: 0,
                })
            })
            .collect();
        let proxy = network.add(Proxy {
            scheduler: self.scheduler,
            lanes: Vec::new(),
            views: Vec::new(),
            shift,
            background: None,
            let_go: 0,
        });
        let addresses = (network.address(source), network.address(receiver));
        let in_packets = u64::from(self.payload) + u64::from(self.framing);
        let mut links = Vec::new();
        for (index, (channel, member)) in self.channels.iter().zip(&members).enumerate() {
            let config = LinkConfig {
                queue: QueueBound::Bytes(Bytes(in_packets * u64::from(self.queue + 1))),
                loss: Loss::Uniform(channel.loss),
                ..rate(channel.bps, channel.delay)
            };
            links.push(network.connect(&format!("wan{index}"), proxy, *member, config));
        }
        let out = network.connect(
            "source",
            source,
            proxy,
            rate(100_000_000, Duration::from_millis(1)),
        );
        // Upstream packets use the LAN to the first member and its own uplink, without a tunnel.
        let first = self.channels[0];
        let up = network.connect(
            "lan-up",
            receiver,
            gateway,
            rate(11_000_000, Duration::from_millis(1)),
        );
        let slow = LinkConfig {
            queue: QueueBound::Bytes(Bytes(60 * u64::from(self.queue + 1))),
            ..rate(first.bps, first.delay)
        };
        let back = network.connect("wan-up", gateway, source, slow);
        let router: &mut Router = network.node_mut(gateway).expect("it was added as a router");
        router.route_default(back);
        let built: &mut Proxy = network.node_mut(proxy).expect("it was added as a proxy");
        built.lanes = links
            .iter()
            .zip(&self.channels)
            .enumerate()
            .map(|(index, (&link, channel))| Lane {
                link,
                is_up: true,
                view: PathView {
                    id: PathId(index as u16),
                    window: InnerBytes(u64::MAX),
                    ready_at: Instant::ZERO,
                    soon: PredictedRate::steady(Rate::from_bps(channel.bps)),
                    later: PredictedRate::steady(Rate::from_bps(channel.bps)),
                    packets_in_flight: 0,
                    delay: channel.delay,
                    round_trip: channel.delay * 2,
                    mtu: self.mtu,
                    loss: channel.loss,
                    late: 0.0,
                    retransmitted_after: Duration::ZERO,
                    is_growing: false,
                },
            })
            .collect();
        Piconet {
            network,
            channels: links,
            members,
            proxy,
            source: (source, out, addresses.0),
            receiver: (receiver, up, addresses.1),
        }
    }
}

impl Piconet {
    /// Runs until a transfer ends. Returns its duration.
    pub(super) fn finish(
        &mut self,
        sink: SocketId,
        limit: Duration,
        setup: &str,
    ) -> Result<Duration, ExperimentError> {
        let mut until = Instant::ZERO;
        while until < Instant::ZERO + limit {
            until += Duration::from_secs(10);
            self.network.run(until);
            if let Some(done) = self.at_receiver::<TcpSink>(sink).done() {
                return Ok(done.since(Instant::ZERO));
            }
        }
        Err(ExperimentError::Unfinished {
            setup: setup.to_owned(),
            what: "the transfer".to_owned(),
        })
    }

    /// Connects an application of the source to one of the receiver.
    pub(super) fn join(
        &mut self,
        flow: u32,
        near: impl Application,
        far: impl Application,
    ) -> (SocketId, SocketId) {
        let ((source, out, here), (receiver, up, there)) = (self.source, self.receiver);
        let near = End {
            host: source,
            application: Box::new(near),
            routes: &[Route {
                link: out,
                local: here,
                remote: there,
            }],
        };
        let far = End {
            host: receiver,
            application: Box::new(far),
            routes: &[Route {
                link: up,
                local: there,
                remote: here,
            }],
        };
        join(&mut self.network, FlowId(flow), near, far)
    }

    /// Adds background traffic to every channel: packets of `size` bytes on the channel, at a mean
    /// rate of `rate`.
    pub(super) fn background(&mut self, rate: Rate, size: u16) {
        let random = self.network.streams().get("background");
        let proxy: &mut Proxy = self
            .network
            .node_mut(self.proxy)
            .expect("it was added as a proxy");
        proxy.background = Some(Background {
            mean_gap: rate.time_for(Bytes(u64::from(size))),
            size,
            random,
        });
    }

    /// Returns an application of the source.
    pub(super) fn at_source<T: Application>(&self, socket: SocketId) -> &T {
        let host: &Host = self.network.node(self.source.0).expect("it was added as a host");
        host.application(socket).expect("the caller opened it as this")
    }

    /// Returns an application of the receiver.
    pub(super) fn at_receiver<T: Application>(&self, socket: SocketId) -> &T {
        let host: &Host = self
            .network
            .node(self.receiver.0)
            .expect("it was added as a host");
        host.application(socket).expect("the caller opened it as this")
    }

    /// Lets a channel join or leave (its queued packets are lost); the proxy is informed
    /// immediately.
    pub(super) fn set_member(&mut self, channel: usize, is_there: bool, at: Instant) {
        let change = Change {
            state: Some(if is_there { State::Up } else { State::Down }),
            ..Change::default()
        };
        self.network.change_at(at, self.channels[channel], change);
    }

    /// Lets channels join and leave in turn from time zero until `end`: present for `up`, then
    /// absent for `down`.
    pub(super) fn alternate(&mut self, channels: &[usize], times: (Duration, Duration), end: Instant) {
        self.alternate_from(channels, times, Duration::ZERO, end);
    }

    /// Lets channels join and leave as [`Self::alternate`] does, with time zero `into` the first
    /// turn.
    pub(super) fn alternate_from(
        &mut self,
        channels: &[usize],
        (up, down): (Duration, Duration),
        into: Duration,
        end: Instant,
    ) {
        if down.is_zero() {
            return;
        }
        let period = up + down;
        for turn in 0.. {
            let begin = period * turn;
            if Instant::ZERO + begin >= end + into {
                return;
            }
            let ends = [(begin + up, false), (begin + period, true)];
            for (at, is_there) in ends {
                if (up.is_zero() && is_there) || at + period < into {
                    continue;
                }
                let at = Instant::ZERO + at.saturating_sub(into);
                for &channel in channels {
                    self.set_member(channel, is_there, at);
                }
            }
        }
    }

    /// Sets the loss of a channel from now on and reports it to the proxy.
    pub(super) fn set_loss(&mut self, channel: usize, loss: f64) {
        let change = Change {
            loss: Some(Loss::Uniform(loss)),
            ..Change::default()
        };
        let now = self.network.now();
        self.network.change_at(now, self.channels[channel], change);
        let proxy: &mut Proxy = self
            .network
            .node_mut(self.proxy)
            .expect("it was added as a proxy");
        proxy.lanes[channel].view.loss = loss;
    }

    /// Returns the share of a channel's offered packets that were not delivered. Units: percent.
    pub(super) fn lost_on(&self, channel: usize) -> f64 {
        let counters = self.network.counters(self.channels[channel]);
        100.0 * counters.lost() as f64 / (counters.lost() + counters.packets).max(1) as f64
    }
}

impl Piconet {
    /// Returns the mean change of the transit time from one packet to the next on the same channel,
    /// over all channels. Units: milliseconds.
    pub(super) fn change_on_channels(&self) -> f64 {
        let members = self
            .members
            .iter()
            .filter_map(|&member| self.network.node::<Member>(member));
        let (change, count) = members.fold((0.0, 0), |(change, count), member| {
            (change + member.change, count + member.count)
        });
        change / f64::from(count.max(1))
    }
}

/// Destination of background traffic. Source: the largest address.
const NOBODY: Address = Address(u32::MAX);

/// Framing bytes that a link counts in addition to a packet; a set-up's own framing replaces them.
/// Source: [`hawser_netem::FRAME_OVERHEAD`].
const FRAME: i32 = hawser_netem::FRAME_OVERHEAD as i32;

fn rate(bps: u64, delay: Duration) -> LinkConfig {
    LinkConfig {
        capacity: Capacity::Rate(Rate::from_bps(bps)),
        delay,
        queue: QueueBound::Time(Duration::from_secs(1)),
        ..LinkConfig::default()
    }
}

fn shifted(size: u16, by: i32) -> u16 {
    u16::try_from(i32::from(size) + by).unwrap_or(0)
}

/// Proxy that sends every packet on the channel that the scheduler selects. A channel queues or
/// drops packets; the proxy does not wait.
struct Proxy {
    scheduler: Box<dyn Scheduler>,
    lanes: Vec<Lane>,
    views: Vec<PathView>,
    shift: i32,
    background: Option<Background>,
    let_go: u64,
}

/// Background traffic: packets of one size on every channel, at independent random times.
struct Background {
    mean_gap: Duration,
    size: u16,
    random: Random,
}

impl Background {
    /// Returns the time until the next packet: exponentially distributed.
    fn gap(&mut self) -> Duration {
        self.mean_gap.mul_f64(-(1.0 - self.random.uniform()).ln())
    }
}

struct Lane {
    link: LinkId,
    is_up: bool,
    view: PathView,
}

impl Node for Proxy {
    fn handle_start(&mut self, context: &mut Context<'_>) {
        if let Some(background) = &mut self.background {
            for lane in 0..self.lanes.len() {
                let gap = background.gap();
                context.after(gap, lane as u32);
            }
        }
    }

    fn handle_timer(&mut self, lane: u32, context: &mut Context<'_>) {
        let Some(background) = &mut self.background else {
            return;
        };
        // To an address that the member does not have, so that it drops the packet.
        let packet = Packet {
            source: NOBODY,
            destination: NOBODY,
            source_port: 0,
            destination_port: 0,
            flow: FlowId(u32::MAX),
            size: shifted(background.size, -FRAME),
            ecn: Ecn::NotCapable,
            sent: context.now(),
            body: Body::Datagram(Datagram::default()),
        };
        context.send(self.lanes[lane as usize].link, packet);
        let gap = background.gap();
        context.after(gap, lane);
    }

    fn handle_packet(&mut self, mut packet: Packet, _link: LinkId, context: &mut Context<'_>) {
        packet.size = shifted(packet.size, self.shift);
        self.views.clear();
        self.views
            .extend(self.lanes.iter().filter(|lane| lane.is_up).map(|lane| lane.view));
        let layer = match packet.body {
            Body::Datagram(datagram) => Some(Layer(datagram.mark as u8)),
            Body::Tcp(_) | Body::Tunnel(_) => None,
        };
        let len = u32::from(packet.size) + FRAME as u32;
        let demand = Demand {
            flow: 0,
            len,
            packets: 1,
            sustained: false,
            backlog: InnerBytes(len.into()),
            throughput: Rate::ZERO,
            layer,
            is_call: false,
        };
        match self.scheduler.choose(&demand, &self.views, context.now()) {
            Choice::Send { path, .. } => {
                let link = self.lanes[usize::from(self.views[path].id.0)].link;
                context.send(link, packet);
            }
            Choice::Drop | Choice::Duplicate(_) | Choice::Wait(_) => self.let_go += 1,
        }
    }

    fn handle_link(&mut self, link: LinkId, is_up: bool, _context: &mut Context<'_>) {
        for lane in self.lanes.iter_mut().filter(|lane| lane.link == link) {
            lane.is_up = is_up;
        }
    }
}

/// Forwards from its channel to the LAN.
struct Member {
    lan: LinkId,
    shift: i32,
    /// Transit time of the previous packet. Units: milliseconds.
    transit: Option<f64>,
    change: f64,
    count: u32,
}

impl Node for Member {
    fn handle_packet(&mut self, mut packet: Packet, _link: LinkId, context: &mut Context<'_>) {
        if packet.destination == NOBODY {
            return;
        }
        packet.size = shifted(packet.size, -self.shift);
        let transit = context.now().since(packet.sent).as_secs_f64() * 1e3;
        if let Some(before) = self.transit.replace(transit) {
            self.change += (transit - before).abs();
            self.count += 1;
        }
        context.send(self.lan, packet);
    }
}
