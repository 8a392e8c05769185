//! Carries datagrams between a socket on loopback and a WebSocket, both ways, until one ends.

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

/// Why a connection carries nothing any more.
#[derive(Debug, Error)]
#[non_exhaustive]
pub(super) enum Ended {
    /// The other side has ended it.
    #[error("the other side has ended the connection")]
    Closed,
    /// It broke, or the other side broke the protocol.
    #[error("{0}")]
    Broken(#[from] tokio_websockets::Error),
    /// The other side says what is no datagram, again and again.
    #[error("the other side says too much that is no datagram")]
    Chatter,
    /// The socket on loopback is of no use.
    #[error("the socket on loopback: {0}")]
    Local(io::Error),
}

/// A relay's socket on loopback, and who is spoken to there.
pub(super) struct Local {
    port: Port,
    /// Who gets data packets, and who gets QUIC: one and the same at a hub.
    pub(super) data: SocketAddr,
    pub(super) control: SocketAddr,
}

impl Local {
    /// To be called on the relays' thread.
    ///
    /// # Errors
    /// The socket cannot be prepared.
    pub(super) fn new(socket: UdpSocket, data: SocketAddr, control: SocketAddr) -> io::Result<Self> {
        let port = Port::new(socket)?;
        Ok(Self { port, data, control })
    }

    /// Drops what waits.
    pub(super) fn drain(&self) {
        while self.port.receive(|_, _| {}).is_ok_and(|count| count > 0) {}
    }

    fn poll_receive(&self, cx: &mut Context<'_>, queue: &mut Queue) -> Poll<io::Result<()>> {
        self.port.poll_receive(cx, |meta, bytes| {
            let (now, from) = (Instant::now(), plain(meta.addr));
            // Anybody on this machine can write here.
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
        // A full buffer loses datagrams, as on every way.
        if let Err(error) = self.port.send(to, &run.bytes, run.segment, 0) {
            tracing::trace!(%error, "datagrams lost on loopback");
        }
        run.bytes.clear();
    }
}

/// Datagrams of one size for the same, which one call takes.
#[derive(Default)]
struct Run {
    bytes: Vec<u8>,
    segment: usize,
    is_data: bool,
    /// The last one was shorter: no other may follow.
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

/// One connection and its socket.
pub(super) struct Carrier<'a, S> {
    stream: &'a mut WebSocketStream<S>,
    local: &'a Local,
    queue: Queue,
    run: Run,
    is_sending: bool,
    strange: Budget,
    /// When a data packet last came from the socket.
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

    /// Carries until the connection ends. May be dropped and called again.
    pub(super) async fn carry(&mut self) -> Ended {
        std::future::poll_fn(|cx| self.poll(cx)).await
    }

    /// How many datagrams were dropped because the connection was too slow.
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
        // Others on this thread want to go on too.
        cx.waker().wake_by_ref();
        Poll::Pending
    }

    /// Does a little in each direction; false when everything waits.
    fn round(&mut self, cx: &mut Context<'_>) -> Result<bool, Ended> {
        let from_here = match self.local.poll_receive(cx, &mut self.queue) {
            Poll::Ready(received) => received.map(|()| true).map_err(Ended::Local)?,
            Poll::Pending => false,
        };
        let to_there = self.send(cx)?;
        let from_there = self.receive(cx)?;
        Ok(from_here || to_there || from_there)
    }

    /// Hands what waits to the connection, a record of TLS at a time.
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
                // A ping, of somebody in between. Its answer waits to be sent.
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

/// Messages that are taken before the other direction has its turn.
const AT_ONCE_FROM_THERE: usize = 64;
/// Rounds before other connections have their turn.
const ROUNDS: usize = 16;
/// What TLS seals at once. Units: bytes.
const RECORD: usize = 16 << 10;
/// What one call may send: a UDP datagram of the kernel's own. Units: bytes.
const LARGEST_RUN: usize = 60_000;
/// Neither side sends anything but datagrams; who is in between may see whether they are there.
const STRANGE: Pace = Pace {
    burst: 16,
    per_second: 1,
};
