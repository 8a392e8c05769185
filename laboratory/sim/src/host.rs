//! A node with applications.

use std::any::Any;

use hawser_units::Instant;

use crate::engine::TimerId;
use crate::network::{Context, LinkId, Network, Node, NodeId};
use crate::packet::{Address, Body, Ecn, FlowId, Packet};

/// End of a conversation, driven by a [`Host`]. A conversation may use several routes, numbered in
/// the order in which they were joined.
///
/// The host calls one `handle_*` method, then [`Self::poll_transmit`] until it returns `None`, then
/// [`Self::poll_timeout`]. Applications of different hosts share nothing but packets, so hosts may
/// run at different times ([`Node::links`]).
pub trait Application: Any {
    /// Handles the start of the network.
    fn handle_start(&mut self, now: Instant) {
        let _ = now;
    }

    /// Handles a packet that arrived on route `way`.
    fn handle_packet(&mut self, way: usize, packet: &Packet, now: Instant);

    /// Handles the passing of time; may be called early.
    fn handle_timeout(&mut self, now: Instant) {
        let _ = now;
    }

    /// Handles a visible change of a route's link to up or down.
    fn handle_link(&mut self, way: usize, is_up: bool, now: Instant) {
        let _ = (way, is_up, now);
    }

    /// Handles the report that a packet on route `way` was dropped because it exceeds `mtu` IP
    /// bytes.
    fn handle_too_big(&mut self, way: usize, mtu: u16, now: Instant) {
        let _ = (way, mtu, now);
    }

    /// Returns the next packet to send.
    fn poll_transmit(&mut self, now: Instant) -> Option<Outgoing>;

    /// Returns when to call [`Self::handle_timeout`].
    fn poll_timeout(&self) -> Option<Instant>;
}

/// A packet without its addresses.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Outgoing {
    /// Route of the packet.
    pub way: usize,
    /// Size of the packet. Units: IP bytes.
    pub size: u16,
    /// ECN field.
    pub ecn: Ecn,
    /// Contents.
    pub body: Body,
}

/// Route to the other end of a conversation, as one host sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Route {
    /// Link on which packets are sent.
    pub link: LinkId,
    /// Interface from which packets are sent.
    pub local: Address,
    /// Interface to which packets are sent.
    pub remote: Address,
}

/// Identifies an application of one host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SocketId(usize);

/// A node that runs applications and dispatches packets to them by port.
#[derive(Default)]
pub struct Host {
    sockets: Vec<Socket>,
    /// Socket and route, by port.
    ports: Vec<(u16, u16)>,
    has_started: bool,
}

struct Socket {
    application: Box<dyn Application>,
    flow: FlowId,
    routes: Vec<Bound>,
    timer: Option<TimerId>,
    armed: Instant,
}

#[derive(Clone, Copy)]
struct Bound {
    route: Route,
    local_port: u16,
    remote_port: u16,
}

/// End of a conversation to join: the host, its application, and its routes.
pub struct End<'a> {
    /// Node of a [`Host`].
    pub host: NodeId,
    /// Application of the host.
    pub application: Box<dyn Application>,
    /// Routes, in the same number and order as those of the other end.
    pub routes: &'a [Route],
}

/// Opens a conversation between two hosts before the network runs.
///
/// # Panics
/// When a node is not a [`Host`], or the ends have different numbers of routes.
pub fn join(network: &mut Network, flow: FlowId, near: End<'_>, far: End<'_>) -> (SocketId, SocketId) {
    assert_eq!(
        near.routes.len(),
        far.routes.len(),
        "both ends have the same ways"
    );
    let first_port = |network: &Network, end: &End<'_>| {
        let host: &Host = network.node(end.host).expect("a conversation is between hosts");
        let loopback = if near.host == far.host {
            near.routes.len()
        } else {
            0
        };
        (host.ports.len(), loopback)
    };
    let (near_port, _) = first_port(network, &near);
    let (far_port, shift) = first_port(network, &far);
    let far_port = far_port + shift;
    let mut open = |end: End<'_>, local: usize, remote: usize| {
        let host: &mut Host = network
            .node_mut(end.host)
            .expect("a conversation is between hosts");
        host.open(end, flow, (local, remote))
    };
    (open(near, near_port, far_port), open(far, far_port, near_port))
}

impl Host {
    fn open(&mut self, end: End<'_>, flow: FlowId, (local, remote): (usize, usize)) -> SocketId {
        let socket = self.sockets.len();
        let small = |n: usize| u16::try_from(n).expect("fewer than 65,536 ports");
        let mut routes = Vec::new();
        for (index, route) in end.routes.iter().enumerate() {
            self.ports.push((small(socket), small(index)));
            routes.push(Bound {
                route: *route,
                local_port: small(local + index),
                remote_port: small(remote + index),
            });
        }
        self.sockets.push(Socket {
            application: end.application,
            flow,
            routes,
            timer: None,
            armed: Instant::FAR_FUTURE,
        });
        SocketId(socket)
    }

    /// Returns an application as type `T`; `None` if it has another type.
    #[must_use]
    pub fn application<T: Application>(&self, socket: SocketId) -> Option<&T> {
        let application: &dyn Any = self.sockets[socket.0].application.as_ref();
        application.downcast_ref()
    }

    /// Calls an application and sends the resulting packets; `None` if the application is not a
    /// `T`.
    pub fn with_application<T: Application, R>(
        &mut self,
        socket: SocketId,
        context: &mut Context<'_>,
        act: impl FnOnce(&mut T) -> R,
    ) -> Option<R> {
        let application: &mut dyn Any = self.sockets[socket.0].application.as_mut();
        let result = application.downcast_mut().map(act);
        self.sockets[socket.0].pump(socket.0, context);
        result
    }
}

impl Node for Host {
    fn handle_start(&mut self, context: &mut Context<'_>) {
        self.has_started = true;
        for (index, socket) in self.sockets.iter_mut().enumerate() {
            socket.application.handle_start(context.now());
            socket.pump(index, context);
        }
    }

    fn handle_packet(&mut self, packet: Packet, _link: LinkId, context: &mut Context<'_>) {
        let port = usize::from(packet.destination_port);
        let Some((index, way)) = self.ports.get(port).copied() else {
            return;
        };
        let socket = &mut self.sockets[usize::from(index)];
        socket
            .application
            .handle_packet(usize::from(way), &packet, context.now());
        socket.pump(usize::from(index), context);
    }

    fn handle_timer(&mut self, tag: u32, context: &mut Context<'_>) {
        let socket = &mut self.sockets[tag as usize];
        socket.armed = Instant::FAR_FUTURE;
        let now = context.now();
        if socket.application.poll_timeout().is_some_and(|due| due <= now) {
            socket.application.handle_timeout(now);
        }
        socket.pump(tag as usize, context);
    }

    fn handle_link(&mut self, link: LinkId, is_up: bool, context: &mut Context<'_>) {
        for (index, socket) in self.sockets.iter_mut().enumerate() {
            for way in 0..socket.routes.len() {
                if socket.routes[way].route.link == link {
                    socket.application.handle_link(way, is_up, context.now());
                    socket.pump(index, context);
                }
            }
        }
    }

    fn handle_too_big(&mut self, packet: Packet, _link: LinkId, mtu: u16, context: &mut Context<'_>) {
        let port = usize::from(packet.source_port);
        let Some((index, way)) = self.ports.get(port).copied() else {
            return;
        };
        let socket = &mut self.sockets[usize::from(index)];
        socket
            .application
            .handle_too_big(usize::from(way), mtu, context.now());
        socket.pump(usize::from(index), context);
    }

    fn links(&self) -> Option<Vec<LinkId>> {
        let routes = self.sockets.iter().flat_map(|socket| &socket.routes);
        Some(routes.map(|bound| bound.route.link).collect())
    }
}

impl Socket {
    fn pump(&mut self, index: usize, context: &mut Context<'_>) {
        let now = context.now();
        while let Some(outgoing) = self.application.poll_transmit(now) {
            let bound = self.routes[outgoing.way];
            let packet = Packet {
                source: bound.route.local,
                destination: bound.route.remote,
                source_port: bound.local_port,
                destination_port: bound.remote_port,
                flow: self.flow,
                size: outgoing.size,
                ecn: outgoing.ecn,
                sent: now,
                body: outgoing.body,
            };
            context.send(bound.route.link, packet);
        }
        // A timer that fires early costs less than re-arming it for every packet.
        if let Some(due) = self.application.poll_timeout()
            && due < self.armed
        {
            let timer = *self.timer.get_or_insert_with(|| context.timer(index as u32));
            context.arm(timer, due);
            self.armed = due;
        }
    }
}

impl core::fmt::Debug for Host {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Host")
            .field("sockets", &self.sockets.len())
            .finish_non_exhaustive()
    }
}

impl core::fmt::Debug for End<'_> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("End")
            .field("host", &self.host)
            .field("routes", &self.routes)
            .finish_non_exhaustive()
    }
}
