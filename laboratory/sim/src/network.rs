//! Nodes and the directed links between them.
//!
//! A network is built, then run for some time, then asked. A [`Node`] gets packets and its own
//! timers, and answers through the [`Context`] that is handed in; it knows no other node. Every
//! link is a [`hawser_netem::Link`], the same emulator as the lab's, and delivers to one node, or,
//! as a shared medium, to the node that has the packet's destination.
//!
//! ```text
//!   add, connect -> [ built ] -- run --> handle_start of every node, then per event:
//!                                        link due -> handle_packet | timer -> handle_timer | change -> handle_link
//! ```
//!
//! A large network is run in parts ([`partition`]) where its nodes allow it.

use std::any::Any;

use hawser_netem::{Change, Counters, Link, LinkConfig, NatConfig, Random};
use hawser_units::{Duration, Instant};

use crate::engine::{EventQueue, TimerId};
use crate::packet::{Address, Packet};
use crate::streams::Streams;

mod middlebox;
mod partition;

use middlebox::{Pair, TooBig};
use partition::Partition;

/// Names a node of one [`Network`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeId(u32);

/// Names a directed link of one [`Network`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LinkId(u32);

impl LinkId {
    /// Its place in the order in which links were made.
    #[must_use]
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

/// Something that sends and receives packets.
pub trait Node: Any {
    /// Called once, before anything else, at the time at which the network begins.
    fn handle_start(&mut self, context: &mut Context<'_>) {
        let _ = context;
    }

    /// A packet came out of `link`.
    fn handle_packet(&mut self, packet: Packet, link: LinkId, context: &mut Context<'_>);

    /// A timer fired; `tag` is what it was made with.
    fn handle_timer(&mut self, tag: u32, context: &mut Context<'_>) {
        let _ = (tag, context);
    }

    /// A link from or to this node went down or came up where its device shows it (not when it is
    /// blackholed).
    fn handle_link(&mut self, link: LinkId, is_up: bool, context: &mut Context<'_>) {
        let _ = (link, is_up, context);
    }

    /// A packet that this node sent on `link` was dropped because it exceeds the path MTU, and the
    /// network names that: ICMP "fragmentation needed" (RFC 1191) or "packet too big" (RFC 4443).
    fn handle_too_big(&mut self, packet: Packet, link: LinkId, mtu: u16, context: &mut Context<'_>) {
        let _ = (packet, link, mtu, context);
    }

    /// The links it sends on, if it changes none, asks after no other, and shares nothing with
    /// other nodes; `None` where that cannot be said. A network of which every node can say it may
    /// be run in parts.
    fn links(&self) -> Option<Vec<LinkId>> {
        None
    }
}

/// What became of a packet on a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// It was offered to the link.
    Sent,
    /// It came out.
    Delivered,
    /// It found the queue full, or the link down.
    Refused,
    /// It was lost on the way.
    Lost,
}

/// Sees every packet of every link.
pub trait Tap: Any {
    /// Called for each thing that happens to a packet.
    fn handle(&mut self, now: Instant, link: LinkId, packet: &Packet, fate: Fate);
}

/// Nodes, links and the time.
pub struct Network {
    core: Core,
    nodes: Vec<Box<dyn Node>>,
    partition: Partition,
    has_started: bool,
    /// Something may have become different since the parts were found.
    is_changed: bool,
}

/// Everything but the nodes, so that a node and its surroundings can be borrowed at once.
struct Core {
    now: Instant,
    events: EventQueue<Event>,
    links: Vec<Wire>,
    names: Vec<String>,
    /// Who has an address, by address.
    owners: Vec<NodeId>,
    changes: Vec<(LinkId, Change)>,
    streams: Streams,
    tap: Option<Box<dyn Tap>>,
    /// Both directions of networks whose middleboxes need each other.
    pairs: Vec<Pair>,
    too_big: Vec<TooBig>,
    packet_events: u64,
    /// The part that is running.
    part: u16,
}

struct Wire {
    link: Link<Packet>,
    timer: TimerId,
    due: Instant,
    from: NodeId,
    /// `None` on a shared medium.
    to: Option<NodeId>,
    /// The part that sends.
    part: u16,
    /// Whether another part receives.
    is_cut: bool,
    /// Pair of both directions, and true for the direction towards its outside.
    pair: Option<(u32, bool)>,
}

#[derive(Clone, Copy, Debug)]
enum Event {
    Link(LinkId),
    Timer(NodeId, u32),
    Change(u32),
    FlushNat(u32),
    TooBig(u32),
}

/// What a node can do while it handles something.
pub struct Context<'a> {
    core: &'a mut Core,
    node: NodeId,
}

impl Network {
    /// A network without nodes, at time zero.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        let core = Core {
            now: Instant::ZERO,
            events: EventQueue::default(),
            links: Vec::new(),
            names: Vec::new(),
            owners: Vec::new(),
            changes: Vec::new(),
            streams: Streams::new(seed),
            tap: None,
            pairs: Vec::new(),
            too_big: Vec::new(),
            packet_events: 0,
            part: 0,
        };
        Self {
            core,
            nodes: Vec::new(),
            partition: Partition::default(),
            has_started: false,
            is_changed: true,
        }
    }

    /// Adds a node.
    pub fn add(&mut self, node: impl Node) -> NodeId {
        self.is_changed = true;
        self.nodes.push(Box::new(node));
        NodeId(u32::try_from(self.nodes.len() - 1).expect("fewer than 2^32 nodes"))
    }

    /// Gives a node one more address.
    pub fn address(&mut self, node: NodeId) -> Address {
        self.core.owners.push(node);
        Address(u32::try_from(self.core.owners.len() - 1).expect("fewer than 2^32 addresses"))
    }

    /// Makes a link from one node to another. Its random numbers are those of the stream
    /// `link:<name>`.
    pub fn connect(&mut self, name: &str, from: NodeId, to: NodeId, config: LinkConfig) -> LinkId {
        self.add_link(name, (from, Some(to)), config)
    }

    /// Makes a link that delivers to whichever node has a packet's destination: one direction of a
    /// shared medium, such as a LAN. Any node may send on it; `owner` is told of its changes.
    pub fn connect_shared(&mut self, name: &str, owner: NodeId, config: LinkConfig) -> LinkId {
        self.add_link(name, (owner, None), config)
    }

    fn add_link(&mut self, name: &str, (from, to): (NodeId, Option<NodeId>), config: LinkConfig) -> LinkId {
        let id = LinkId(u32::try_from(self.core.links.len()).expect("fewer than 2^32 links"));
        let seed = self.core.streams.seed(&format!("link:{name}"));
        self.is_changed = true;
        self.core.links.push(Wire {
            link: Link::new(config, seed, self.core.now),
            timer: self.core.events.register(Event::Link(id)),
            due: Instant::FAR_FUTURE,
            from,
            to,
            part: 0,
            is_cut: false,
            pair: None,
        });
        self.core.names.push(name.to_owned());
        id
    }

    /// Lets a link change at `at`.
    pub fn change_at(&mut self, at: Instant, link: LinkId, change: Change) {
        self.is_changed = true;
        self.core.change(at, link, change);
    }

    /// Makes two links the directions of one network: one that hangs stops the other, and with
    /// `nat` addresses are translated between the sender of `up`, which is inside, and that of
    /// `down`.
    pub fn pair(&mut self, (up, down): (LinkId, LinkId), nat: Option<NatConfig>) {
        self.is_changed = true;
        self.core.pair((up, down), nat);
    }

    /// Lets the translator of the pair of `link` forget all mappings at `at`; nothing without one.
    pub fn flush_nat_at(&mut self, at: Instant, link: LinkId) {
        self.is_changed = true;
        self.core.flush_nat(at, link);
    }

    /// Shows every packet to `tap` from now on.
    pub fn set_tap(&mut self, tap: impl Tap) {
        self.set_boxed_tap(Box::new(tap));
    }

    /// The same with a tap whose type is not known here.
    pub fn set_boxed_tap(&mut self, tap: Box<dyn Tap>) {
        self.is_changed = true;
        self.core.tap = Some(tap);
    }

    /// Takes the tap off; `None` when there is none of this type.
    pub fn take_tap<T: Tap>(&mut self) -> Option<Box<T>> {
        let tap: Box<dyn Any> = self.core.tap.take()?;
        tap.downcast().ok()
    }

    /// Lets time pass until `until`, which then is the present.
    pub fn run(&mut self, until: Instant) {
        if std::mem::take(&mut self.is_changed) {
            self.divide();
        }
        if !self.has_started {
            self.has_started = true;
            for index in 0..self.nodes.len() {
                let node = NodeId(index as u32);
                self.core.enter(self.partition.of(node));
                self.with(node, |node, context| node.handle_start(context));
            }
        }
        self.run_parts(until);
        self.core.now = self.core.now.max(until);
    }

    /// Lets the events of the present part happen that are due by `until`.
    fn run_part(&mut self, until: Instant) {
        while let Some((at, event)) = self.core.events.pop(until) {
            self.core.now = at;
            match event {
                Event::Link(link) => self.on_link(link),
                Event::Timer(node, tag) => self.with(node, |node, context| node.handle_timer(tag, context)),
                Event::Change(index) => self.on_change(index as usize),
                Event::FlushNat(pair) => self.core.pairs[pair as usize].flush(),
                Event::TooBig(index) => self.on_too_big(index as usize),
            }
        }
    }

    /// The present.
    #[must_use]
    pub fn now(&self) -> Instant {
        self.core.now
    }

    /// Packets that came out of links so far: the simulator's unit of work.
    #[must_use]
    pub fn packet_events(&self) -> u64 {
        self.core.packet_events
    }

    /// What a link has carried and lost.
    #[must_use]
    pub fn counters(&self, link: LinkId) -> Counters {
        self.core.links[link.index()].link.counters()
    }

    /// The names of all links, in the order in which they were made.
    #[must_use]
    pub fn link_names(&self) -> &[String] {
        &self.core.names
    }

    /// The random numbers of the run.
    #[must_use]
    pub fn streams(&self) -> Streams {
        self.core.streams
    }

    /// A node as what it is; `None` when it is something else.
    #[must_use]
    pub fn node<T: Node>(&self, node: NodeId) -> Option<&T> {
        let node: &dyn Any = self.nodes[node.0 as usize].as_ref();
        node.downcast_ref()
    }

    /// The same, to change it before the run. A change that must arm timers belongs into
    /// [`Self::with_node`].
    pub fn node_mut<T: Node>(&mut self, node: NodeId) -> Option<&mut T> {
        self.is_changed = true;
        let node: &mut dyn Any = self.nodes[node.0 as usize].as_mut();
        node.downcast_mut()
    }

    /// Lets a node do something between two runs; `None` when it is not a `T`.
    pub fn with_node<T: Node, R>(
        &mut self,
        node: NodeId,
        act: impl FnOnce(&mut T, &mut Context<'_>) -> R,
    ) -> Option<R> {
        let known: &mut dyn Any = self.nodes[node.0 as usize].as_mut();
        let known = known.downcast_mut::<T>()?;
        self.is_changed = true;
        let core = &mut self.core;
        core.enter(self.partition.of(node));
        Some(act(known, &mut Context { core, node }))
    }

    fn with(&mut self, node: NodeId, act: impl FnOnce(&mut dyn Node, &mut Context<'_>)) {
        let core = &mut self.core;
        act(self.nodes[node.0 as usize].as_mut(), &mut Context { core, node });
    }

    fn on_link(&mut self, id: LinkId) {
        self.core.links[id.index()].due = Instant::FAR_FUTURE;
        while let Some(packet) = self.core.poll_link(id) {
            self.core.packet_events += 1;
            self.core.show(id, &packet, Fate::Delivered);
            let to = self.core.links[id.index()].to;
            let owner = || self.core.owners.get(packet.destination.0 as usize).copied();
            if let Some(to) = to.or_else(owner) {
                self.with(to, |node, context| node.handle_packet(packet, id, context));
            }
        }
        self.core.settle(id);
    }

    fn on_change(&mut self, index: usize) {
        let (id, change) = self.core.changes[index].clone();
        let wire = &mut self.core.links[id.index()];
        let before = wire.link.state();
        wire.link.set(change, self.core.now);
        let after = wire.link.state();
        let (from, to) = (wire.from, wire.to);
        self.core.settle(id);
        if before.shows_up() != after.shows_up() {
            for node in [Some(from), to].into_iter().flatten() {
                self.with(node, |node, context| {
                    node.handle_link(id, after.shows_up(), context);
                });
            }
        }
    }
}

impl Core {
    fn enter(&mut self, part: u16) {
        self.part = part;
        self.events.enter(part);
    }

    fn change(&mut self, at: Instant, link: LinkId, change: Change) {
        let index = u32::try_from(self.changes.len()).expect("fewer than 2^32 changes");
        self.changes.push((link, change));
        self.events.schedule(at, Event::Change(index));
    }

    fn poll_link(&mut self, id: LinkId) -> Option<Packet> {
        let wire = &mut self.links[id.index()];
        if wire.is_cut {
            wire.link.poll_arrived(self.now)
        } else {
            wire.link.poll_transmit(self.now)
        }
    }

    fn send(&mut self, id: LinkId, mut packet: Packet, from: NodeId) {
        self.show(id, &packet, Fate::Sent);
        let wire = &self.links[id.index()];
        assert_eq!(wire.part, self.part, "a node sends on the links that it names");
        if (wire.pair.is_some() || wire.link.has_middlebox()) && !self.pass(id, &mut packet, from) {
            self.show(id, &packet, Fate::Refused);
            self.settle(id);
            return;
        }
        let wire = &mut self.links[id.index()];
        let refused = wire.link.handle_packet(packet, u64::from(packet.size), self.now);
        if let Some(packet) = refused {
            self.show(id, &packet, Fate::Refused);
        }
        self.settle(id);
    }

    /// Takes back what was lost, and arms the link's timer.
    fn settle(&mut self, id: LinkId) {
        while let Some(packet) = self.links[id.index()].link.poll_lost() {
            self.show(id, &packet, Fate::Lost);
        }
        let wire = &mut self.links[id.index()];
        let due = wire.link.poll_timeout().unwrap_or(Instant::FAR_FUTURE);
        if due == wire.due {
            return;
        }
        wire.due = due;
        if due == Instant::FAR_FUTURE {
            self.events.cancel(wire.timer);
        } else {
            self.events.arm(wire.timer, due);
        }
    }

    fn show(&mut self, link: LinkId, packet: &Packet, fate: Fate) {
        if let Some(tap) = &mut self.tap {
            tap.handle(self.now, link, packet, fate);
        }
    }
}

impl Context<'_> {
    /// The present.
    #[must_use]
    pub fn now(&self) -> Instant {
        self.core.now
    }

    /// This node's own name.
    #[must_use]
    pub fn node(&self) -> NodeId {
        self.node
    }

    /// Sends a packet on a link; a full queue or an outage loses it silently.
    pub fn send(&mut self, link: LinkId, packet: Packet) {
        self.core.send(link, packet, self.node);
    }

    /// A new timer of this node, not armed; `tag` tells it apart in [`Node::handle_timer`].
    pub fn timer(&mut self, tag: u32) -> TimerId {
        self.core.events.register(Event::Timer(self.node, tag))
    }

    /// Sets a timer, armed or not, to fire at `at`; a time that is past means at once.
    pub fn arm(&mut self, timer: TimerId, at: Instant) {
        self.core.events.arm(timer, at.max(self.core.now));
    }

    /// Disarms a timer.
    pub fn cancel(&mut self, timer: TimerId) {
        self.core.events.cancel(timer);
    }

    /// Calls [`Node::handle_timer`] once, `after` from now.
    pub fn after(&mut self, after: Duration, tag: u32) -> TimerId {
        let at = self.core.now + after;
        self.core.events.schedule(at, Event::Timer(self.node, tag))
    }

    /// Changes a link now; its nodes are told afterwards.
    pub fn change(&mut self, link: LinkId, change: Change) {
        self.core.change(self.core.now, link, change);
    }

    /// Bytes of frames that wait before a link, the one in transmission included. Up to date as of
    /// the link's last event.
    #[must_use]
    pub fn queued(&self, link: LinkId) -> u64 {
        self.core.links[link.index()].link.queued().0
    }

    /// The random numbers of one stream of the run.
    #[must_use]
    pub fn random(&self, stream: &str) -> Random {
        self.core.streams.get(stream)
    }
}

impl core::fmt::Debug for Network {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Network")
            .field("now", &self.core.now)
            .field("nodes", &self.nodes.len())
            .field("links", &self.core.names)
            .finish_non_exhaustive()
    }
}

impl core::fmt::Debug for Context<'_> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Context")
            .field("now", &self.core.now)
            .field("node", &self.node)
            .finish_non_exhaustive()
    }
}
