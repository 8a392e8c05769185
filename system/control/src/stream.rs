//! Messages over the control stream.

use std::marker::PhantomData;

use hawser_wire::control::{Hello, MAX_FRAME, Message, ParseError};
use hawser_wire::peer::{PeerHello, PeerMessage, is_peers};
use hawser_wire::pool::PoolMessage;
use quinn::{ReadError, RecvStream, SendStream, WriteError};
use thiserror::Error;

/// Reason why the stream cannot continue.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum StreamError {
    /// The peer sent an invalid message.
    #[error("the peer broke the protocol")]
    Parse(#[from] ParseError),
    /// The connection failed while reading.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// The connection failed while writing.
    #[error(transparent)]
    Write(#[from] WriteError),
    /// The peer ended the stream.
    #[error("the peer ended the stream")]
    Ended,
    /// The peer does not read.
    #[error("the peer does not read its messages")]
    Unread,
}

/// Message of a stream.
pub trait Framed: Sized {
    /// Parses one frame at the front of the bytes. Returns the message and its length; `Ok(None)`
    /// if more bytes are needed.
    ///
    /// # Errors
    /// If the bytes are not a frame.
    fn parse(bytes: &[u8]) -> Result<Option<(Self, usize)>, ParseError>;

    /// Appends the frame.
    fn emit(&self, out: &mut Vec<u8>);
}

impl Framed for Message {
    fn parse(bytes: &[u8]) -> Result<Option<(Self, usize)>, ParseError> {
        Self::parse(bytes)
    }

    fn emit(&self, out: &mut Vec<u8>) {
        self.emit(out);
    }
}

impl Framed for PeerMessage {
    fn parse(bytes: &[u8]) -> Result<Option<(Self, usize)>, ParseError> {
        Self::parse(bytes)
    }

    fn emit(&self, out: &mut Vec<u8>) {
        self.emit(out);
    }
}

impl Framed for PoolMessage {
    fn parse(bytes: &[u8]) -> Result<Option<(Self, usize)>, ParseError> {
        Self::parse(bytes)
    }

    fn emit(&self, out: &mut Vec<u8>) {
        self.emit(out);
    }
}

/// The first message of a connection, which states the protocol.
#[derive(Clone, Debug)]
pub enum First {
    /// A client of a hub.
    Client(Hello),
    /// A host that moves flows.
    Peer(PeerHello),
}

impl Framed for First {
    fn parse(bytes: &[u8]) -> Result<Option<(Self, usize)>, ParseError> {
        let unexpected = ParseError::Field("first message");
        if is_peers(bytes) {
            return match PeerMessage::parse(bytes)? {
                Some((PeerMessage::Hello(hello), used)) => Ok(Some((Self::Peer(hello), used))),
                Some(_) => Err(unexpected),
                None => Ok(None),
            };
        }
        match Message::parse(bytes)? {
            Some((Message::Hello(hello), used)) => Ok(Some((Self::Client(hello), used))),
            Some(_) => Err(unexpected),
            None => Ok(None),
        }
    }

    fn emit(&self, out: &mut Vec<u8>) {
        match self {
            Self::Client(hello) => Message::Hello(hello.clone()).emit(out),
            Self::Peer(hello) => PeerMessage::Hello(hello.clone()).emit(out),
        }
    }
}

/// Stream of a control connection, which has only one.
pub struct ControlStream<M = Message> {
    send: SendStream,
    receive: RecvStream,
    /// Received bytes of the next frame.
    pending: Vec<u8>,
    messages: PhantomData<fn() -> M>,
}

impl<M: Framed> ControlStream<M> {
    /// Creates the message stream of a newly opened or accepted stream.
    #[must_use]
    pub fn new(send: SendStream, receive: RecvStream) -> Self {
        Self {
            send,
            receive,
            pending: Vec::with_capacity(MAX_FRAME),
            messages: PhantomData,
        }
    }

    /// Waits for the next message. Cancel safe: nothing is lost.
    ///
    /// # Errors
    /// [`StreamError`]; the connection must be closed.
    pub async fn next(&mut self) -> Result<M, StreamError> {
        loop {
            if let Some((message, used)) = M::parse(&self.pending)? {
                self.pending.drain(..used);
                return Ok(message);
            }
            // A frame is never longer than the buffer, so there is room for at least one byte.
            let mut chunk = [0; MAX_FRAME];
            let room = MAX_FRAME - self.pending.len();
            match self.receive.read(&mut chunk[..room]).await? {
                Some(len) => self.pending.extend_from_slice(&chunk[..len]),
                None => return Err(StreamError::Ended),
            }
        }
    }

    /// Converts the stream to one with other messages.
    #[must_use]
    pub fn speak<N: Framed>(self) -> ControlStream<N> {
        ControlStream {
            send: self.send,
            receive: self.receive,
            pending: self.pending,
            messages: PhantomData,
        }
    }

    /// Passes a message to the connection, and waits while the peer has not read earlier ones.
    ///
    /// # Errors
    /// [`StreamError::Write`], [`StreamError::Unread`]; the connection must be closed.
    pub async fn send(&mut self, message: &M) -> Result<(), StreamError> {
        let mut frame = Vec::with_capacity(64);
        message.emit(&mut frame);
        let sent = tokio::time::timeout(UNREAD, self.send.write_all(&frame)).await;
        Ok(sent.map_err(|_| StreamError::Unread)??)
    }

    /// Sends a last message and waits a moment until the peer has it.
    pub async fn finish(mut self, message: &M) {
        if self.send(message).await.is_ok() && self.send.finish().is_ok() {
            let _ = tokio::time::timeout(LINGER, self.send.stopped()).await;
        }
    }
}

/// Time without reading after which a peer is disconnected. Source: our choice; a peer that reads
/// nothing for ten round trips of 1 s has ended or is hostile, and its messages take memory.
const UNREAD: std::time::Duration = std::time::Duration::from_secs(10);
/// Maximum time for a last message to arrive. Source: our choice, a round trip on most networks;
/// the message is only an explanation.
const LINGER: std::time::Duration = std::time::Duration::from_millis(500);
