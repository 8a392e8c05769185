//! Orders of the control side to the data plane.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use hawser_linux::direct::Match;
use hawser_linux::udp::DataSocket;
use hawser_proto::client_filter::Policy;
use hawser_proto::egress::Declaration;
use hawser_proto::path::control::Control;
use hawser_proto::stream::Forms;
use hawser_proto::tunnel::Role;
use hawser_units::{Duration, Net, PathId, Rate};
use hawser_wire::airtime::Airtime;
use hawser_wire::data::Class;
use hawser_wire::deadline::DeadlineRule;
use hawser_wire::inner::FlowKey;
use hawser_wire::layer;
use hawser_wire::preference::Preference;

use super::checkpoint::SessionCheckpoint;
use super::snapshot::Snapshot;
use super::{EpochKeys, SessionId, SocketId};

/// Destinations whose flows begin in the secondary session of a client.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Destinations {
    /// Rules by protocol, port and destination, each with whether its flows begin in that session.
    /// The first matching rule decides.
    pub rules: Vec<(Match, bool)>,
    /// Destinations of flows that begin in that session, unless a rule matches.
    pub hosts: BTreeSet<IpAddr>,
}

/// A change that both threads execute, each for its direction.
pub enum Change {
    /// Adds a UDP socket; on a client it is bound to its network's device.
    AddSocket {
        /// Id of the socket, new in the process.
        id: SocketId,
        /// The socket.
        socket: Arc<DataSocket>,
        /// Pair of threads that uses it; each may have a socket of that id.
        pair: u32,
    },
    /// Removes a socket; its paths must have been closed.
    RemoveSocket {
        /// Id of the socket.
        id: SocketId,
    },
    /// Adds a session. `inner` are the far end's inner addresses, by which a hub routes to the
    /// session. A client leaves it empty: all packets use the first session until
    /// [`Change::BeginWith`].
    AddSession {
        /// Id of the session.
        session: SessionId,
        /// Role of this side.
        role: Role,
        /// The far end's inner addresses.
        inner: Vec<IpAddr>,
    },
    /// Routes these subnets, and no others, to a session of a hub in addition to the far end's
    /// inner addresses, and lets the far end send from them.
    SetSubnets {
        /// Id of the session.
        session: SessionId,
        /// Subnets of the session, which replace the previous ones.
        subnets: Vec<Net>,
    },
    /// Removes a session with its paths and keys.
    RemoveSession {
        /// Id of the session.
        session: SessionId,
    },
    /// Assigns new flows to a session, on a client with two sessions. Flows of the other session
    /// remain there while it exists.
    BeginWith {
        /// Id of the session.
        session: SessionId,
    },
    /// Continues the flows of the previous session, which has ended, in another one with the same
    /// hub, on a client that has two.
    GoOnWith {
        /// Id of the session.
        session: SessionId,
    },
    /// Assigns new flows to some destinations to a session while a path of it works, on a client
    /// that has two sessions. All others begin in the other session.
    SetDestinations {
        /// Id of the session.
        session: SessionId,
        /// Destinations.
        destinations: Destinations,
    },
    /// Assigns a new connection to a session, regardless of its destination, on a client that has
    /// two sessions.
    Assign {
        /// Id of the session.
        session: SessionId,
        /// Connection of which no packet has been sent yet.
        flow: FlowKey,
    },
    /// Adds the keys of an epoch; the previous epoch remains valid for receiving for some time.
    InstallKeys {
        /// Id of the session.
        session: SessionId,
        /// Number of the epoch.
        epoch: u8,
        /// Keys of both directions.
        keys: EpochKeys,
    },
    /// Opens a path. `remote` is the hub's address on a client; `None` on a hub, which learns it
    /// from the first authenticated packet.
    OpenPath {
        /// Id of the session.
        session: SessionId,
        /// Id of the path, new in the epoch.
        path: PathId,
        /// Socket of its network.
        socket: SocketId,
        /// Address of the hub, on a client.
        remote: Option<SocketAddr>,
        /// Receiver index of the peer, contained in sent packets.
        peer_index: u32,
        /// Own receiver index, contained in received packets. Random and unique in the process.
        local_index: u32,
        /// Name of the network, for status and logs.
        name: String,
        /// MTU of the network. Units: bytes of outer IP packets.
        mtu: u16,
        /// Cap of the user, if any.
        cap: Option<Rate>,
    },
    /// Moves an open path to another socket, because the network has a new address or device.
    RebindPath {
        /// Id of the session.
        session: SessionId,
        /// Id of the path.
        path: PathId,
        /// New socket of its network.
        socket: SocketId,
    },
    /// Sets or removes the cap of this side's sending rate on a path.
    SetCap {
        /// Id of the session.
        session: SessionId,
        /// Id of the path.
        path: PathId,
        /// Cap; `None` removes it.
        cap: Option<Rate>,
    },
    /// Sets the preference of a path for this side.
    SetPreference {
        /// Id of the session.
        session: SessionId,
        /// Id of the path.
        path: PathId,
        /// Preference of the path.
        preference: Preference,
    },
    /// Sets the airtime of a path's packets on a radio channel, which other paths may share.
    SetAirtime {
        /// Id of the session.
        session: SessionId,
        /// Id of the path.
        path: PathId,
        /// Airtime of its packets; `None` if unknown.
        airtime: Option<Airtime>,
    },
    /// Sets how long packets wait before a path transfers them together.
    SetPause {
        /// Id of the session.
        session: SessionId,
        /// Id of the path.
        path: PathId,
        /// Duration; zero if packets do not wait.
        pause: Duration,
    },
    /// Sets or removes the rate limit of a session: of sent packets, and on a hub also of received
    /// ones.
    SetLimit {
        /// Id of the session.
        session: SessionId,
        /// Limit in each direction, zero to block all; `None` removes it.
        limit: Option<Rate>,
    },
    /// Closes a path.
    ClosePath {
        /// Id of the session.
        session: SessionId,
        /// Id of the path.
        path: PathId,
    },
    /// Chooses the scheduler of a class of a session by name.
    SetScheduler {
        /// Id of the session.
        session: SessionId,
        /// Class of the flows.
        class: Class,
        /// Name of the scheduler.
        scheduler: String,
    },
    /// Chooses the congestion controller of all paths of a session. A path whose controller changes
    /// is measured from the start.
    SetController {
        /// Id of the session.
        session: SessionId,
        /// Controller of this end's sending direction.
        controller: Control,
    },
    /// Sets the rules with which a session recognises packets of layered flows that it sends.
    SetLayerRules {
        /// Id of the session.
        session: SessionId,
        /// The first that fits decides.
        rules: Vec<layer::Rule>,
    },
    /// Sets the deadlines of packets of some flows that a session sends.
    SetDeadlines {
        /// Id of the session.
        session: SessionId,
        /// The first that fits decides.
        rules: Vec<DeadlineRule>,
        /// Set if this side is the client.
        is_from_client: bool,
    },
    /// Sets the rules by which new connections of a client become streams.
    SetForms(Forms),
    /// Sets the declarations of a session's flows, and removes all others.
    SetDeclared {
        /// Id of the session.
        session: SessionId,
        /// Declarations, of which the first [`hawser_proto::egress::MAX_DECLARED`] are used.
        flows: Vec<Declaration>,
    },
    /// Changes the destinations that clients of a hub may reach.
    SetClientPolicy(Arc<Policy>),
    /// Passes packets from the TUN device that belong to no session to the clients of a hub without
    /// a session.
    SetOtherClients(Arc<dyn OtherClients>),
    /// Continues a session of the previous process. It must have passed
    /// [`SessionCheckpoint::check`], and precedes the socket of its paths.
    RestoreSession {
        /// Id of the session.
        session: SessionId,
        /// Role of this side.
        role: Role,
        /// The far end's inner addresses.
        inner: Vec<IpAddr>,
        /// State of the session.
        checkpoint: Box<SessionCheckpoint>,
    },
}

/// Clients of a hub without sessions, which use another protocol than Hawser's.
pub trait OtherClients: Send + Sync {
    /// Handles a packet from the TUN device for that destination, with its virtio header. Returns
    /// false if none of the clients has the address, or the queue is full. Called on the sending
    /// threads, so it must not block.
    fn handle_packet(&self, to: IpAddr, packet: &[u8]) -> bool;
}

/// Callback for a thread's answer: called on that thread, so it must not block.
pub type Reply<T> = Box<dyn FnOnce(T) + Send>;

/// Order from the control side. Orders are executed in sequence.
pub enum Command {
    /// Applies an order.
    Change(Change),
    /// Ends all sessions for a successor, and the data plane with them.
    HandOver(Reply<Vec<SessionCheckpoint>>),
    /// Requests a snapshot.
    Snapshot(Reply<Snapshot>),
    /// Ends the data plane.
    Stop,
}

impl From<Change> for Command {
    fn from(change: Change) -> Self {
        Self::Change(change)
    }
}

/// Function that sends orders to the data plane, from any thread.
pub type Orders = Arc<dyn Fn(Command) + Send + Sync>;
