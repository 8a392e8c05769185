//! Streams in the data plane: connects the state machine of `hawser_proto::stream` with sockets.
//!
//! ```text
//!   sending thread:   socket --read--> [ Outbox ] --bursts--> paths      until acknowledged
//!   receiving thread: paths --datagrams--> [ Inbox ] --write--> socket   until the socket takes it
//! ```
//!
//! Each thread processes one direction of each stream, so no byte passes between threads. A socket
//! is closed with a reset unless both directions have ended, so an interrupted connection never
//! looks complete, even if the process is killed.
//!
//! | question | file |
//! |---|---|
//! | bytes that wait to be acknowledged, or to be written | `buffers.rs` |
//! | one direction of a session's streams | `sending.rs`, `receiving.rs` |
//! | connections of this machine that become streams | `near.rs` (addresses), `accepting.rs` |
//! | connections that a hub opens for its clients | `opening.rs` |
//! | state for the next process | `checkpoint.rs` |

pub(crate) mod accepting;
pub(crate) mod buffers;
pub(crate) mod checkpoint;
pub(crate) mod near;
pub(crate) mod opening;
pub(crate) mod receiving;
pub(crate) mod sending;

use std::collections::HashMap;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use hawser_linux::stream_sockets::{Connection, Interest, Poller};
use hawser_proto::stream::{self, ConnectRate, Reserve};
use hawser_wire::stream::{Open, Outcome, StreamId};

use crate::SessionId;

/// The use of streams.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StreamUse {
    /// Converts TCP connections that enter the tunnel into streams.
    Client,
    /// Opens connections for clients.
    Hub {
        /// Maximum number of streams of a client.
        max_per_client: usize,
        /// Maximum rate at which a client opens connections.
        connects: ConnectRate,
        /// Maximum memory of all streams; half of it is for each direction.
        memory: u64,
    },
}

impl StreamUse {
    /// Returns the limits of a session's receiving side.
    pub(crate) fn config(self) -> stream::Config {
        let config = stream::Config::default();
        match self {
            Self::Client => config,
            Self::Hub {
                max_per_client,
                connects,
                ..
            } => stream::Config {
                max_streams: max_per_client,
                connects: Some(connects),
                first_capacity: FIRST_CAPACITY,
                ..config
            },
        }
    }

    /// Returns the maximum memory of bytes read from sockets, and the reserve shared by the
    /// receiving sides of all sessions.
    pub(crate) fn memory(self) -> (u64, Reserve) {
        match self {
            Self::Client => (STREAM_CAPACITY, Reserve::unbounded()),
            Self::Hub { memory, .. } => (memory / 2, Reserve::new(memory / 2)),
        }
    }
}

/// Window of all streams of a client whose first stream begins, on a hub.
///
/// Source: two windows of a stream (`Config::window`, `core/proto/src/stream/receiving.rs`); it
/// doubles with them, so the first stream of a client never waits for it.
const FIRST_CAPACITY: u64 = 1 << 20;
/// Maximum memory for bytes that were read from sockets of streams, over all sessions and pairs of
/// threads.
///
/// Source: twice what packets may take (`CAPACITY`, `system/dataplane/src/sessions.rs`); bytes of
/// streams stay until they are acknowledged.
const STREAM_CAPACITY: u64 = 256 << 20;

/// Name of a stream in this process.
pub(crate) type StreamName = (SessionId, StreamId);

/// Message from the receiving thread to the sending one.
#[derive(Debug)]
pub(crate) enum ToSending {
    /// Result of an attempt to connect for a client.
    Answer(Open, Outcome, Option<Arc<Connection>>),
    /// The socket has accepted all bytes of the peer.
    Received(StreamId),
    /// The connection was reset, for this reason.
    Abort(StreamId, u16),
}

/// Relays of the sending thread that wait for the receiving one.
///
/// Source: [`crate::handoff::ORDERS`] for what is as rare, and the requests of one second.
pub(crate) const RELAYS: usize = 4_096;

/// Message of the sending thread about a session.
#[derive(Debug)]
pub(crate) struct StreamRelay {
    pub(crate) session: SessionId,
    pub(crate) notice: ToReceiving,
}

/// Route of relays to the receiving thread.
pub(crate) trait Relays: Send {
    /// Queues a message without waking the thread.
    ///
    /// # Errors
    /// Returns the message if the queue is full.
    fn hand(&self, relay: StreamRelay) -> Result<(), StreamRelay>;

    /// Wakes the thread.
    fn wake(&self);
}

/// Message from the sending thread to the receiving one.
#[derive(Debug)]
pub(crate) enum ToReceiving {
    /// A connection will be requested from the peer.
    Open(StreamId),
    /// The connection of this machine is established.
    Accepted(StreamId, Arc<Connection>),
    /// The connection was reset, for this reason.
    Abort(StreamId, u16),
    /// The stream is closed, or was refused.
    Forget(StreamId),
}

/// Sockets of one direction of streams, by the tokens that a poller reports.
pub(crate) struct Sockets {
    poller: Poller,
    interest: Interest,
    names: HashMap<u64, StreamName>,
    numbers: HashMap<StreamName, u64>,
    last: u64,
    ready: Vec<u64>,
}

impl Sockets {
    /// Makes a poller without sockets.
    pub(crate) fn new(interest: Interest) -> std::io::Result<Self> {
        Ok(Self {
            poller: Poller::new()?,
            interest,
            names: HashMap::new(),
            numbers: HashMap::new(),
            last: 0,
            ready: Vec::new(),
        })
    }

    /// Adds a listener with token 0, which no stream uses.
    pub(crate) fn add_listener(&self, socket: BorrowedFd<'_>) -> std::io::Result<()> {
        self.poller.add(socket, Interest::Read, 0)
    }

    /// Adds the socket of a stream to the poller.
    pub(crate) fn add(&mut self, name: StreamName, socket: &Connection) {
        self.last += 1;
        if let Err(error) = self.poller.add(socket.as_fd(), self.interest, self.last) {
            tracing::debug!(%error, "a stream's socket cannot be polled");
        }
        self.names.insert(self.last, name);
        self.numbers.insert(name, self.last);
    }

    /// Removes the socket of a stream, which may stay open.
    pub(crate) fn remove(&mut self, name: StreamName) {
        if let Some(number) = self.numbers.remove(&name) {
            self.names.remove(&number);
        }
    }

    /// Hands streams that are ready to `take`; `None` stands for the listener.
    pub(crate) fn poll(&mut self, mut take: impl FnMut(Option<StreamName>)) {
        self.ready.clear();
        self.poller.poll(&mut self.ready);
        for number in &self.ready {
            match self.names.get(number) {
                Some(name) => take(Some(*name)),
                None if *number == 0 => take(None),
                None => {}
            }
        }
    }
}

impl AsFd for Sockets {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.poller.as_fd()
    }
}
