//! Switches of hosts as simulated nodes: a switch with a flow table and one end of a migration, and
//! a stitching switch.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::rc::Rc;

use hawser_steer::flow_table::{EntryId, FlowTable, Output, Rule};
use hawser_steer::migration::{self, Answer, Event, Follower, Mover, Order, Route, View};
use hawser_steer::stitch::{Moved, Network as Stitched, Stitch};
use hawser_units::{Duration, Instant, NetworkId};
use hawser_wire::inner::{Ecn as InnerEcn, FlowKey, Summary, protocol};

use hawser_sim::network::{Context, LinkId, Node};
use hawser_sim::packet::{Address, Body, Ecn, FlowId, Packet};

/// Message between the two ends of a migration.
#[derive(Clone, Copy, Debug)]
pub(super) enum Message {
    Order(Order),
    Answer(Answer),
}

/// Messages in flight, indexed by the number in their packets.
pub(super) type Post = Rc<RefCell<Vec<Message>>>;

/// Role of a switch in a migration.
pub(super) enum End {
    /// A waypoint, which has no role of its own in the migration.
    Waypoint,
    Mover(Box<Mover>),
    Follower(Box<Follower>),
}

/// A switch.
pub(super) struct Switch {
    pub(super) table: FlowTable,
    pub(super) end: End,
    /// The flow as the host's application sees it.
    pub(super) view: View,
    pub(super) post: Post,
    pub(super) links: BTreeMap<NetworkId, LinkId>,
    /// Network of each route.
    pub(super) networks: BTreeMap<Route, NetworkId>,
    /// Link to the host's applications.
    pub(super) inside: Option<LinkId>,
    /// Entries that are in the table for the flow.
    installed: Vec<(Rule, EntryId)>,
    /// Time of the flow's first packet on each network.
    pub(super) first: BTreeMap<NetworkId, Instant>,
    pub(super) events: Vec<(Instant, Event)>,
    pub(super) refused: u64,
}

impl Switch {
    pub(super) fn new(end: End, view: View, post: Post) -> Self {
        Self {
            table: FlowTable::new(),
            end,
            view,
            post,
            links: BTreeMap::new(),
            networks: BTreeMap::new(),
            inside: None,
            installed: Vec::new(),
            first: BTreeMap::new(),
            events: Vec::new(),
            refused: 0,
        }
    }

    /// Starts the migration of the flow.
    pub(super) fn migrate(&mut self, route: Route, peer: Route, context: &mut Context<'_>) {
        if let End::Mover(mover) = &mut self.end {
            // During a migration the machine remembers the latest target.
            let _busy = mover.migrate(route, peer, context.now());
        }
        self.pump(context);
    }

    /// Sends due messages and updates the flow table.
    fn pump(&mut self, context: &mut Context<'_>) {
        let now = context.now();
        let mut messages = Vec::new();
        let due = match &mut self.end {
            End::Waypoint => return,
            End::Mover(mover) => {
                mover.handle_timeout(now);
                while let Some((order, by)) = mover.poll_transmit(now) {
                    messages.push((Message::Order(order), by));
                }
                while let Some(event) = mover.poll_event() {
                    self.events.push((now, event));
                }
                mover.poll_timeout()
            }
            End::Follower(follower) => {
                follower.handle_timeout(now);
                follower.poll_timeout()
            }
        };
        for (message, by) in messages {
            self.say(message, by, context);
        }
        self.install(now);
        if let Some(due) = due {
            context.after(due.since(now).max(Duration::from_millis(1)), 0);
        }
    }

    fn say(&self, message: Message, by: Route, context: &mut Context<'_>) {
        let number = {
            let mut post = self.post.borrow_mut();
            post.push(message);
            post.len() as u32 - 1
        };
        let Some(link) = self.networks.get(&by).and_then(|network| self.links.get(network)) else {
            return;
        };
        let packet = Packet {
            source: Address::default(),
            destination: Address::default(),
            source_port: 0,
            destination_port: 0,
            flow: FlowId(u32::MAX),
            size: 80,
            ecn: Ecn::NotCapable,
            sent: context.now(),
            body: Body::Tunnel(number),
        };
        context.send(*link, packet);
    }

    fn install(&mut self, now: Instant) {
        let (route, accepted) = match &self.end {
            End::Waypoint => return,
            End::Mover(mover) => (mover.route(), mover.accepted()),
            End::Follower(follower) => (follower.route(), follower.accepted()),
        };
        let Some(&network) = self.networks.get(&route) else {
            return;
        };
        let wanted = migration::rules(self.view, route, network, &accepted, PRIORITY);
        let (kept, old): (Vec<_>, Vec<_>) = self
            .installed
            .drain(..)
            .partition(|(rule, _)| wanted.contains(rule));
        for (_, id) in old {
            self.table.remove(id);
        }
        self.installed = kept;
        for rule in wanted {
            if !self.installed.iter().any(|(known, _)| *known == rule)
                && let Ok(id) = self.table.insert(rule, now)
            {
                self.installed.push((rule, id));
            }
        }
    }

    fn handle_message(&mut self, number: u32, context: &mut Context<'_>) {
        let message = self.post.borrow().get(number as usize).copied();
        let now = context.now();
        match (&mut self.end, message) {
            (End::Mover(mover), Some(Message::Answer(answer))) => mover.handle_answer(answer, now),
            (End::Follower(follower), Some(Message::Order(order))) => {
                let answer = follower.handle_order(&order, now);
                let by = follower.route();
                if let Some(answer) = answer {
                    self.say(Message::Answer(answer), by, context);
                }
            }
            (End::Waypoint | End::Mover(_) | End::Follower(_), _) => {}
        }
        self.pump(context);
    }
}

/// Priority of the flow's entries, above those of a host's other traffic. Source: our choice, any
/// number above zero, the priority of the table-miss entry (OpenFlow Switch Specification 1.3
/// section 5.4).
const PRIORITY: u16 = 100;

impl Node for Switch {
    fn handle_start(&mut self, context: &mut Context<'_>) {
        self.pump(context);
    }

    fn handle_packet(&mut self, mut packet: Packet, link: LinkId, context: &mut Context<'_>) {
        let now = context.now();
        if let Body::Tunnel(number) = packet.body {
            if matches!(self.end, End::Waypoint) {
                // A waypoint forwards the messages of one end to the other.
                let other = self.links.values().find(|known| !is_pair(**known, link));
                if let Some(&other) = other {
                    context.send(other, packet);
                }
            } else {
                self.handle_message(number, context);
            }
            return;
        }
        let summary = summary(&packet);
        if let End::Follower(follower) = &mut self.end {
            let (near, far) = ends(&summary);
            if follower.handle_packet(Route { near: far, far: near }, now) {
                self.pump(context);
            }
        }
        let Some((_, action)) = self
            .table
            .handle_packet(&summary, None, u64::from(packet.size), now)
        else {
            self.refused += 1;
            return;
        };
        if let Some(rewrite) = action.rewrite {
            let (source, destination) = rewrite.outcome(&summary);
            (packet.source, packet.source_port) = address(source);
            (packet.destination, packet.destination_port) = address(destination);
        }
        let out = match action.output {
            Output::Local => self.inside,
            Output::Direct(network) => {
                self.first.entry(network).or_insert(now);
                self.links.get(&network).copied()
            }
            Output::Stripe(_) | Output::Duplicate(_) | Output::Drop => None,
        };
        if let Some(out) = out {
            context.send(out, packet);
        }
    }

    fn handle_timer(&mut self, _tag: u32, context: &mut Context<'_>) {
        self.pump(context);
    }
}

/// Returns whether two links are the two directions of one network: their ids are consecutive.
fn is_pair(one: LinkId, other: LinkId) -> bool {
    one.index() / 2 == other.index() / 2
}

/// Converts an address of the simulator to an Internet socket address.
pub(super) fn socket(address: Address, port: u16) -> SocketAddr {
    SocketAddr::from((Ipv4Addr::from_bits(0x0a00_0000 | address.0), port))
}

fn address(socket: SocketAddr) -> (Address, u16) {
    let bits = match socket {
        SocketAddr::V4(v4) => v4.ip().to_bits() & 0x00ff_ffff,
        SocketAddr::V6(_) => 0,
    };
    (Address(bits), socket.port())
}

fn summary(packet: &Packet) -> Summary {
    let (source, destination) = (
        socket(packet.source, packet.source_port),
        socket(packet.destination, packet.destination_port),
    );
    Summary {
        key: FlowKey {
            source: source.ip(),
            destination: destination.ip(),
            protocol: protocol::TCP,
            source_port: source.port(),
            destination_port: destination.port(),
        },
        ip_at: 0,
        ip_len: 20,
        headers_len: 40,
        tcp_flags: 0,
        dscp: 0,
        ecn: InnerEcn::NotEct,
        signature: None,
    }
}

fn ends(summary: &Summary) -> (SocketAddr, SocketAddr) {
    let key = &summary.key;
    (
        SocketAddr::new(key.source, key.source_port),
        SocketAddr::new(key.destination, key.destination_port),
    )
}

/// Stitching switch at one end: each flow uses one network, the same in both directions.
pub(super) struct Stitcher {
    pub(super) stitch: Rc<RefCell<Stitch>>,
    pub(super) networks: Vec<(LinkId, Stitched)>,
    pub(super) inside: Option<LinkId>,
    /// Set if this end observes its networks and informs the stitching machine.
    pub(super) is_client: bool,
    pub(super) moved: Vec<Moved>,
}

impl Stitcher {
    /// Reports to the stitching machine that a network became available or unavailable.
    pub(super) fn set(&mut self, network: usize, is_up: bool) {
        let id = NetworkId(network as u32);
        let mut stitch = self.stitch.borrow_mut();
        let moved = if is_up {
            let mut moved = stitch.handle_up(id, self.networks[network].1);
            moved.extend(stitch.rebalance());
            moved
        } else {
            stitch.handle_down(id)
        };
        self.moved.extend(moved);
    }
}

impl Node for Stitcher {
    fn handle_packet(&mut self, packet: Packet, link: LinkId, context: &mut Context<'_>) {
        let is_from_network = self.networks.iter().any(|(known, _)| is_pair(*known, link));
        if is_from_network {
            if let Some(inside) = self.inside {
                context.send(inside, packet);
            }
            return;
        }
        // Both directions belong to one flow, so the flow's number replaces the five-tuple.
        let key = FlowKey {
            source_port: packet.flow.0 as u16,
            destination_port: 0,
            ..summary(&Packet {
                source: Address(0),
                destination: Address(1),
                ..packet
            })
            .key
        };
        let network = self.stitch.borrow_mut().assign(key);
        if let Some(network) = network {
            context.send(self.networks[network.0 as usize].0, packet);
        }
    }

    fn handle_link(&mut self, link: LinkId, is_up: bool, _context: &mut Context<'_>) {
        if !self.is_client {
            return;
        }
        if let Some(network) = self.networks.iter().position(|(known, _)| *known == link) {
            self.set(network, is_up);
        }
    }
}
