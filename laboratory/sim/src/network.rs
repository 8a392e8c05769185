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

/// Identifies a node of one [`Network`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeId(u32);

/// Identifies a directed link of one [`Network`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LinkId(u32);

impl LinkId {
    /// Returns the index of the link in order of creation.
    #[must_use]
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

/// Sender and receiver of packets.
pub trait Node: Any {
    /// Handles the start of the network; called once, before any other event.
    fn handle_start(&mut self, context: &mut Context<'_>) {
        let _ = context;
    }

    /// Handles a packet that `link` delivers.
    fn handle_packet(&mut self, packet: Packet, link: LinkId, context: &mut Context<'_>);

    /// Handles a fired timer; `tag` is the one with which it was created.
    fn handle_timer(&mut self, tag: u32, context: &mut Context<'_>) {
        let _ = (tag, context);
    }

    /// Handles a visible change of a link from or to this node to up or down; a black hole is
    /// invisible.
    fn handle_link(&mut self, link: LinkId, is_up: bool, context: &mut Context<'_>) {
        let _ = (link, is_up, context);
    }

    /// Handles the report that a packet of this node on `link` was dropped because it exceeds the
    /// path MTU: ICMP "fragmentation needed" (RFC 1191) or "packet too big" (RFC 4443).
    fn handle_too_big(&mut self, packet: Packet, link: LinkId, mtu: u16, context: &mut Context<'_>) {
        let _ = (packet, link, mtu, context);
    }

    /// Returns the links on which the node sends, if it changes no link, reads no other link and
    /// shares no state with other nodes; `None` otherwise. A network of which every node returns
    /// its links may run in parts.
    fn links(&self) -> Option<Vec<LinkId>> {
        None
    }
}

/// Event of a packet on a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// Offered to the link.
    Sent,
    /// Delivered.
    Delivered,
    /// Refused: the queue was full, or the link down.
    Refused,
    /// Lost in flight.
    Lost,
}

/// Observer of every packet on every link.
pub trait Tap: Any {
    /// Handles an event of a packet.
    fn handle(&mut self, now: Instant, link: LinkId, packet: &Packet, fate: Fate);
}

/// Nodes, links and virtual time.
pub struct Network {
    core: Core,
    nodes: Vec<Box<dyn Node>>,
    partition: Partition,
    has_started: bool,
    /// Set if the parts may have to be computed again.
    is_changed: bool,
}

/// State without the nodes, so that a node and the rest can be borrowed separately.
struct Core {
    now: Instant,
    events: EventQueue<Event>,
    links: Vec<Wire>,
    names: Vec<String>,
    /// Owner of each address.
    owners: Vec<NodeId>,
    changes: Vec<(LinkId, Change)>,
    streams: Streams,
    tap: Option<Box<dyn Tap>>,
    /// Pairs of directions with middleboxes or translators.
    pairs: Vec<Pair>,
    too_big: Vec<TooBig>,
    packet_events: u64,
    /// Part that runs now.
    part: u16,
}

struct Wire {
    link: Link<Packet>,
    timer: TimerId,
    due: Instant,
    from: NodeId,
    /// `None` on a shared medium.
    to: Option<NodeId>,
    /// Part of the sender.
    part: u16,
    /// Set if the receiver is in another part.
    is_cut: bool,
    /// Index of the pair, and whether this is the direction towards the outside.
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

/// Interface of a node to the network while it handles an event.
pub struct Context<'a> {
    core: &'a mut Core,
    node: NodeId,
}

impl Network {
    /// Creates a network without nodes, at time zero.
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

    /// Assigns another address to a node.
    pub fn address(&mut self, node: NodeId) -> Address {
        self.core.owners.push(node);
        Address(u32::try_from(self.core.owners.len() - 1).expect("fewer than 2^32 addresses"))
    }

    /// Creates a link from one node to another. Its random numbers come from the stream
    /// `link:<name>`.
    pub fn connect(&mut self, name: &str, from: NodeId, to: NodeId, config: LinkConfig) -> LinkId {
        self.add_link(name, (from, Some(to)), config)
    }

    /// Creates a link that delivers to the node with a packet's destination: one direction of a
    /// shared medium, such as a LAN. Any node may send on it; `owner` is notified of its changes.
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

    /// Schedules a change of a link at `at`.
    pub fn change_at(&mut self, at: Instant, link: LinkId, change: Change) {
        self.is_changed = true;
        self.core.change(at, link, change);
    }

    /// Makes two links the directions of one network: a hang of one stops the other. With `nat`,
    /// addresses are translated between the sender of `up`, which is inside, and that of `down`.
    pub fn pair(&mut self, (up, down): (LinkId, LinkId), nat: Option<NatConfig>) {
        self.is_changed = true;
        self.core.pair((up, down), nat);
    }

    /// Schedules the removal of all mappings of the translator of `link`'s pair at `at`, if it has
    /// one.
    pub fn flush_nat_at(&mut self, at: Instant, link: LinkId) {
        self.is_changed = true;
        self.core.flush_nat(at, link);
    }

    /// Reports every packet to `tap` from now on.
    pub fn set_tap(&mut self, tap: impl Tap) {
        self.set_boxed_tap(Box::new(tap));
    }

    /// Reports every packet to a tap of a dynamic type.
    pub fn set_boxed_tap(&mut self, tap: Box<dyn Tap>) {
        self.is_changed = true;
        self.core.tap = Some(tap);
    }

    /// Removes and returns the tap; `None` if there is none of this type.
    pub fn take_tap<T: Tap>(&mut self) -> Option<Box<T>> {
        let tap: Box<dyn Any> = self.core.tap.take()?;
        tap.downcast().ok()
    }

    /// Runs all events until `until`, which is then the present time.
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

    /// Runs the events of the present part that are due by `until`.
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

    /// Returns the present virtual time.
    #[must_use]
    pub fn now(&self) -> Instant {
        self.core.now
    }

    /// Returns the number of packets that links have delivered: the simulator's unit of work.
    #[must_use]
    pub fn packet_events(&self) -> u64 {
        self.core.packet_events
    }

    /// Returns the counters of a link.
    #[must_use]
    pub fn counters(&self, link: LinkId) -> Counters {
        self.core.links[link.index()].link.counters()
    }

    /// Returns the names of all links, in the order of creation.
    #[must_use]
    pub fn link_names(&self) -> &[String] {
        &self.core.names
    }

    /// Returns the random streams of the run.
    #[must_use]
    pub fn streams(&self) -> Streams {
        self.core.streams
    }

    /// Returns a node as type `T`; `None` if it has another type.
    #[must_use]
    pub fn node<T: Node>(&self, node: NodeId) -> Option<&T> {
        let node: &dyn Any = self.nodes[node.0 as usize].as_ref();
        node.downcast_ref()
    }

    /// Returns a node to change it before the run. For a change that arms timers, use
    /// [`Self::with_node`].
    pub fn node_mut<T: Node>(&mut self, node: NodeId) -> Option<&mut T> {
        self.is_changed = true;
        let node: &mut dyn Any = self.nodes[node.0 as usize].as_mut();
        node.downcast_mut()
    }

    /// Calls a node between two runs; `None` if it is not a `T`.
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

    /// Removes lost packets, and arms the link's timer.
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
    /// Returns the present virtual time.
    #[must_use]
    pub fn now(&self) -> Instant {
        self.core.now
    }

    /// Returns the node's own id.
    #[must_use]
    pub fn node(&self) -> NodeId {
        self.node
    }

    /// Sends a packet on a link; a full queue or an outage drops it without notice.
    pub fn send(&mut self, link: LinkId, packet: Packet) {
        self.core.send(link, packet, self.node);
    }

    /// Creates an idle timer of this node; `tag` identifies it in [`Node::handle_timer`].
    pub fn timer(&mut self, tag: u32) -> TimerId {
        self.core.events.register(Event::Timer(self.node, tag))
    }

    /// Arms or re-arms a timer to fire at `at`, at once if `at` is past.
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

    /// Changes a link now; the nodes at its ends are notified afterwards.
    pub fn change(&mut self, link: LinkId, change: Change) {
        self.core.change(self.core.now, link, change);
    }

    /// Returns the bytes of frames that wait for a link, including the one in transmission, as of
    /// the link's last event.
    #[must_use]
    pub fn queued(&self, link: LinkId) -> u64 {
        self.core.links[link.index()].link.queued().0
    }

    /// Returns the random numbers of one stream of the run.
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
