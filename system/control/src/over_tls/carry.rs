//! Transfer of datagrams between a socket on loopback and a WebSocket, in both directions, until
//! one ends.

use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Instant;

use futures_util::{Sink, Stream};
use hawser_linux::udp::{MAX_SEGMENTS, plain};
use hawser_wire::data::is_data;
use thiserror::Error;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_websockets::{Message, WebSocketStream};

use super::queue::Queue;
use crate::budget::{Budget, Pace};
use crate::relays::Port;

/// Reason why a connection has ended.
#[derive(Debug, Error)]
#[non_exhaustive]
pub(super) enum Ended {
    /// The other side has ended the connection.
    #[error("the other side has ended the connection")]
    Closed,
    /// Protocol error, or broken connection.
    #[error("{0}")]
    Broken(#[from] tokio_websockets::Error),
    /// The other side repeatedly sends messages that are not datagrams.
    #[error("the other side sends too much data that is not a datagram")]
    Chatter,
    /// The socket on loopback has failed.
    #[error("the socket on loopback: {0}")]
    Local(io::Error),
}

/// Socket of a relay on loopback, and its peers.
pub(super) struct Local {
    port: Port,
    /// Destination of data packets; at a hub it equals that of QUIC.
    pub(super) data: SocketAddr,
    pub(super) control: SocketAddr,
}

impl Local {
    /// Creates a relay. Must be called on the relays' thread.
    ///
    /// # Errors
    /// If the socket cannot be prepared.
    pub(super) fn new(socket: UdpSocket, data: SocketAddr, control: SocketAddr) -> io::Result<Self> {
        let port = Port::new(socket)?;
        Ok(Self { port, data, control })
    }

    /// Drops the waiting datagrams.
    pub(super) fn drain(&self) {
        while self.port.receive(|_, _| {}).is_ok_and(|count| count > 0) {}
    }

    fn poll_receive(&self, cx: &mut Context<'_>, queue: &mut Queue) -> Poll<io::Result<()>> {
        self.port.poll_receive(cx, |meta, bytes| {
            let (now, from) = (Instant::now(), plain(meta.addr));
            // Any program on this machine can send here.
            if from == self.data || from == self.control {
                let datagrams = bytes.chunks(meta.stride.max(1));
                datagrams.for_each(|datagram| queue.push(now, datagram));
            }
        })
    }

    fn send(&self, run: &mut Run) {
        if run.bytes.is_empty() {
            return;
        }
        let to = if run.is_data { self.data } else { self.control };
        // A full buffer loses datagrams, as on every network.
        if let Err(error) = self.port.send(to, &run.bytes, run.segment, 0) {
            tracing::trace!(%error, "datagrams dropped on loopback");
        }
        run.bytes.clear();
    }
}

/// Datagrams of one size for one destination, which a single call sends.
#[derive(Default)]
struct Run {
    bytes: Vec<u8>,
    segment: usize,
    is_data: bool,
    /// Set if the last datagram was shorter, so that no other may follow.
    is_whole: bool,
}

impl Run {
    fn takes(&self, datagram: &[u8], most: usize) -> bool {
        self.bytes.is_empty()
            || !self.is_whole
                && self.is_data == is_data(datagram)
                && datagram.len() <= self.segment
                && self.bytes.len() + datagram.len() <= LARGEST_RUN
                && self.bytes.len() < self.segment * most
    }

    fn add(&mut self, datagram: &[u8]) {
        if self.bytes.is_empty() {
            (self.segment, self.is_data) = (datagram.len(), is_data(datagram));
            self.is_whole = false;
        }
        self.is_whole |= datagram.len() < self.segment;
        self.bytes.extend_from_slice(datagram);
    }
}

/// Connection and its socket.
pub(super) struct Carrier<'a, S> {
    stream: &'a mut WebSocketStream<S>,
    local: &'a Local,
    queue: Queue,
    run: Run,
    is_sending: bool,
    strange: Budget,
    /// Time of the last data packet from the socket.
    pub(super) data_seen: Option<Instant>,
}

impl<'a, S: AsyncRead + AsyncWrite + Unpin> Carrier<'a, S> {
    pub(super) fn new(stream: &'a mut WebSocketStream<S>, local: &'a Local) -> Self {
        Self {
            stream,
            local,
            queue: Queue::default(),
            run: Run::default(),
            is_sending: false,
            strange: Budget::new(STRANGE, Instant::now()),
            data_seen: None,
        }
    }

    /// Transfers datagrams until the connection ends. May be dropped and called again.
    pub(super) async fn carry(&mut self) -> Ended {
        std::future::poll_fn(|cx| self.poll(cx)).await
    }

    /// Returns the number of datagrams that were dropped because the connection was too slow.
    pub(super) fn dropped(&self) -> u64 {
        self.queue.dropped()
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Ended> {
        for _ in 0..ROUNDS {
            let is_going = match self.round(cx) {
                Ok(is_going) => is_going,
                Err(ended) => return Poll::Ready(ended),
            };
            if !is_going {
                return Poll::Pending;
            }
        }
        // Other tasks on this thread get their turn.
        cx.waker().wake_by_ref();
        Poll::Pending
    }

    /// Transfers some datagrams in each direction. Returns false when both directions wait.
    fn round(&mut self, cx: &mut Context<'_>) -> Result<bool, Ended> {
        let from_here = match self.local.poll_receive(cx, &mut self.queue) {
            Poll::Ready(received) => received.map(|()| true).map_err(Ended::Local)?,
            Poll::Pending => false,
        };
        let to_there = self.send(cx)?;
        let from_there = self.receive(cx)?;
        Ok(from_here || to_there || from_there)
    }

    /// Passes the waiting data to the connection, one TLS record at a time.
    fn send(&mut self, cx: &mut Context<'_>) -> Result<bool, Ended> {
        if self.is_sending {
            match Pin::new(&mut *self.stream).poll_flush(cx) {
                Poll::Ready(flushed) => flushed?,
                Poll::Pending => return Ok(false),
            }
            self.is_sending = false;
        }
        let (now, mut bytes) = (Instant::now(), 0);
        while bytes < RECORD
            && let Some(datagram) = self.queue.pop(now)
        {
            bytes += datagram.len();
            if is_data(&datagram) {
                self.data_seen = Some(now);
            }
            Pin::new(&mut *self.stream).start_send(Message::binary(datagram))?;
            self.is_sending = true;
        }
        Ok(self.is_sending)
    }

    fn receive(&mut self, cx: &mut Context<'_>) -> Result<bool, Ended> {
        let mut received = 0;
        while received < AT_ONCE_FROM_THERE {
            let message = match Pin::new(&mut *self.stream).poll_next(cx) {
                Poll::Ready(Some(message)) => message?,
                Poll::Ready(None) => return Err(Ended::Closed),
                Poll::Pending => break,
            };
            received += 1;
            if message.is_binary() {
                self.pass(message.as_payload());
            } else if message.is_close() {
                return Err(Ended::Closed);
            } else if self.strange.spend(1, Instant::now()) {
                // The answer to a proxy's ping waits to be sent.
                self.is_sending = true;
            } else {
                return Err(Ended::Chatter);
            }
        }
        self.local.send(&mut self.run);
        Ok(received > 0)
    }

    fn pass(&mut self, datagram: &[u8]) {
        if datagram.is_empty() {
            return;
        }
        if !self
            .run
            .takes(datagram, self.local.port.max_segments().min(MAX_SEGMENTS))
        {
            self.local.send(&mut self.run);
        }
        self.run.add(datagram);
    }
}

/// Maximum number of messages before the other direction gets its turn. Source: our choice, some 90
/// KB; more delay the other direction, fewer make smaller batches of datagrams.
const AT_ONCE_FROM_THERE: usize = 64;
/// Maximum number of rounds before other connections get their turn. Source: our choice; more delay
/// other connections of the thread, fewer wake it more often.
const ROUNDS: usize = 16;
/// Maximum size of a TLS record (RFC 8446 section 5.1). Units: bytes.
const RECORD: usize = 16 << 10;
/// Maximum bytes of one call: a UDP datagram of the kernel's own. Units: bytes. Source: our choice,
/// below the 65,507 bytes of a UDP datagram over IPv4 (RFC 791, RFC 768), since the kernel cuts it
/// again.
const LARGEST_RUN: usize = 60_000;
/// Budget of messages other than datagrams: neither side sends any, but an intermediary may send
/// pings.
const STRANGE: Pace = Pace {
    burst: 16,
    per_second: 1,
};
