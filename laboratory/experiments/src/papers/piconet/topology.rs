//! Figure 2 of the paper: source, proxy, channels, members, LAN, receiver.

use hawser_netem::{Capacity, Change, LinkConfig, Loss, QueueBound, Random, State};
use hawser_proto::scheduler::{Choice, Demand, PathView, Scheduler};
use hawser_units::{Bytes, Duration, InnerBytes, Instant, PathId, PredictedRate, Rate};
use hawser_wire::layer::Layer;

use crate::reproduce::ExperimentError;
use hawser_sim::Router;
use hawser_sim::app::TcpSink;
use hawser_sim::host::{Application, End, Host, SocketId, Way, join};
use hawser_sim::network::{Context, LinkId, Network, Node, NodeId};
use hawser_sim::packet::{Address, Body, Datagram, Ecn, FlowId, Packet};

/// What a channel is like.
#[derive(Clone, Copy, Debug)]
pub(super) struct Channel {
    /// Bits per second, of whatever the set-up's framing counts.
    pub(super) bps: u64,
    /// Share of packets lost on the air.
    pub(super) loss: f64,
    /// One way.
    pub(super) delay: Duration,
}

/// A piconet that is to be built.
pub(super) struct Plan {
    pub(super) seed: u64,
    pub(super) channels: Vec<Channel>,
    /// Bytes that a channel carries beyond the sender's payload (datagrams) or packet (TCP).
    pub(super) framing: u16,
    /// What the senders' payload is, for the queues, which hold a number of packets.
    pub(super) payload: u16,
    /// Packets before a channel.
    pub(super) queue: u16,
    pub(super) scheduler: Box<dyn Scheduler>,
    /// Whether datagrams are striped: their headers of 28 bytes are then part of the framing.
    pub(super) is_datagram: bool,
    /// The largest packet that the proxy reckons with: what a turn of the surplus round robin is
    /// made of.
    pub(super) mtu: u16,
}

/// A built one.
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
    /// Never: the nodes are those that were added.
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
        // Upstream: over the LAN to the first member, and its own way out, not through a tunnel.
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
    /// Lets a transfer end, and says how long it took.
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

    /// Opens a conversation from the source to the receiver.
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
            ways: &[Way {
                link: out,
                local: here,
                remote: there,
            }],
        };
        let far = End {
            host: receiver,
            application: Box::new(far),
            ways: &[Way {
                link: up,
                local: there,
                remote: here,
            }],
        };
        join(&mut self.network, FlowId(flow), near, far)
    }

    /// Lets other traffic use every channel: packets of `size` bytes on the channel, at `rate` in
    /// the mean.
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

    /// An application of the source.
    pub(super) fn at_source<T: Application>(&self, socket: SocketId) -> &T {
        let host: &Host = self.network.node(self.source.0).expect("it was added as a host");
        host.application(socket).expect("the caller opened it as this")
    }

    /// An application of the receiver.
    pub(super) fn at_receiver<T: Application>(&self, socket: SocketId) -> &T {
        let host: &Host = self
            .network
            .node(self.receiver.0)
            .expect("it was added as a host");
        host.application(socket).expect("the caller opened it as this")
    }

    /// A channel leaves (with all that waits for it) or joins; the proxy hears of it when it
    /// happens.
    pub(super) fn set_member(&mut self, channel: usize, is_there: bool, at: Instant) {
        let change = Change {
            state: Some(if is_there { State::Up } else { State::Down }),
            ..Change::default()
        };
        self.network.change_at(at, self.channels[channel], change);
    }

    /// Lets channels join and leave in turn from time zero until `end`: there for `up`, then gone
    /// for `down`.
    pub(super) fn alternate(&mut self, channels: &[usize], times: (Duration, Duration), end: Instant) {
        self.alternate_from(channels, times, Duration::ZERO, end);
    }

    /// The same, with time zero `into` the first turn.
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

    /// A channel loses this share from now on, and the proxy knows.
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

    /// Share of the packets offered to a channel that did not come out, in percent.
    pub(super) fn lost_on(&self, channel: usize) -> f64 {
        let counters = self.network.counters(self.channels[channel]);
        100.0 * counters.lost() as f64 / (counters.lost() + counters.packets).max(1) as f64
    }
}

impl Piconet {
    /// The mean change of the transit time from one packet to the next on the same channel, over
    /// all channels. Units: milliseconds.
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

/// Where background traffic goes.
const NOBODY: Address = Address(u32::MAX);

/// Bytes that a link counts beyond a packet's; a set-up's own framing stands in their place.
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

/// Gives every packet to the channel that the scheduler chooses. A channel takes what comes and
/// queues or drops it: the proxy does not wait.
struct Proxy {
    scheduler: Box<dyn Scheduler>,
    lanes: Vec<Lane>,
    views: Vec<PathView>,
    shift: i32,
    background: Option<Background>,
    let_go: u64,
}

/// Other traffic on every channel: packets of one size, each channel's at random times of its own.
struct Background {
    mean_gap: Duration,
    size: u16,
    random: Random,
}

impl Background {
    /// Until the next packet: exponentially distributed.
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
        // For nobody: the member has no such address and lets it go.
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
    /// Transit of the packet before, and how much it changed in all. Units: milliseconds.
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
