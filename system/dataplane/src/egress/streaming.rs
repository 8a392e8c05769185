//! Streams on the sending thread: packets of the machine that belong to them, and their sockets.

use std::collections::VecDeque;
use std::io::IoSlice;
use std::os::fd::AsFd;
use std::sync::Arc;

use hawser_linux::clock::now;
use hawser_linux::stream_sockets::{Connection, Interest};
use hawser_proto::stream::Forms;
use hawser_units::Instant;
use hawser_wire::inner::FlowKey;
use hawser_wire::stream::{Open, Outcome, StreamId, reason};

use super::{Sender, TELL_AGAIN};
use crate::SessionId;
use crate::streams::accepting::Accepting;
use crate::streams::near::{Answered, Found};
use crate::streams::{Relays, Sockets, StreamName, StreamRelay, StreamUse, ToReceiving, ToSending};

/// Notices that wait for room in the receiving thread's queue before no new stream is opened.
///
/// Source: as many as that queue holds ([`crate::streams::RELAYS`]).
const MAX_UNSENT: usize = crate::streams::RELAYS;

/// Streams of all sessions of a sending thread.
pub(crate) struct Streams {
    purpose: StreamUse,
    pub(super) sockets: Sockets,
    /// Listener of a client.
    pub(super) accepting: Option<Accepting>,
    ingress: Box<dyn Relays>,
    /// Notices that the receiving thread had no room for.
    unsent: VecDeque<StreamRelay>,
}

impl Streams {
    /// `interface`: that of the tunnel.
    pub(crate) fn new(
        purpose: StreamUse,
        interface: &str,
        ingress: Box<dyn Relays>,
    ) -> std::io::Result<Self> {
        let sockets = Sockets::new(Interest::Read)?;
        let accepting = match purpose {
            StreamUse::Client => Some(Accepting::on_interface(interface, now())?),
            StreamUse::Hub { .. } => None,
        };
        if let Some(accepting) = &accepting {
            sockets.add_listener(accepting.as_fd())?;
        }
        Ok(Self {
            purpose,
            sockets,
            accepting,
            ingress,
            unsent: VecDeque::new(),
        })
    }

    /// Time at which there is something to do, if no packet comes.
    pub(super) fn due(&self) -> Instant {
        let near = self.accepting.as_ref().map(|accepting| accepting.near.due());
        let unsent = (!self.unsent.is_empty()).then(|| now() + TELL_AGAIN);
        near.into_iter()
            .chain(unsent)
            .min()
            .unwrap_or(Instant::FAR_FUTURE)
    }

    fn notify(&mut self, session: SessionId, notice: ToReceiving) {
        self.unsent.push_back(StreamRelay { session, notice });
        self.flush_notices();
    }

    fn flush_notices(&mut self) {
        let mut is_told = false;
        while let Some(relay) = self.unsent.pop_front() {
            if let Err(relay) = self.ingress.hand(relay) {
                self.unsent.push_front(relay);
                break;
            }
            is_told = true;
        }
        if is_told {
            self.ingress.wake();
        }
    }
}

impl Sender {
    /// Takes the packet of `len` bytes that was read, if it belongs to a stream. Returns whether it
    /// was taken.
    pub(super) fn take_for_stream(&mut self, len: usize) -> bool {
        let Some(accepting) = self
            .streams
            .as_mut()
            .and_then(|streams| streams.accepting.as_mut())
        else {
            return false;
        };
        let at = now();
        let bytes = &mut self.sessions.reading()[..len];
        match accepting.near.handle_packet(bytes, at) {
            Found::Packet(reason) => {
                if let Some((key, reason)) = reason {
                    accepting.note(key, reason);
                }
                false
            }
            Found::Back => {
                // A packet that the kernel has no room for is lost, as on any network.
                if let Err(error) = self.tun.write(&[IoSlice::new(bytes)]) {
                    tracing::trace!(%error, "TUN refused a packet of a stream");
                }
                true
            }
            Found::Dropped => true,
            Found::Asks(key, dscp) => match self.ask(key, dscp, len, at) {
                Ok(()) => true,
                Err(reason) => {
                    let accepting = self
                        .streams
                        .as_mut()
                        .and_then(|streams| streams.accepting.as_mut());
                    if let Some(accepting) = accepting {
                        accepting.note(key, reason);
                    }
                    false
                }
            },
        }
    }

    /// Asks the hub for the connection that the packet which was read begins.
    fn ask(&mut self, key: FlowKey, dscp: u8, len: usize, at: Instant) -> Result<(), &'static str> {
        let accepting = self
            .streams
            .as_mut()
            .and_then(|streams| streams.accepting.as_mut());
        accepting.map_or(Ok(()), |accepting| accepting.decide(&key, dscp))?;
        let session = self.sessions.of_streams()?;
        let Some(streams) = &mut self.streams else {
            return Ok(());
        };
        if streams.unsent.len() >= MAX_UNSENT {
            // The program asks again.
            return Ok(());
        }
        let mut id = None;
        self.sessions.with(session, |state| id = state.streams.open());
        let id = id.ok_or("this session has no number left for a stream")?;
        let bytes = &self.sessions.reading()[..len];
        let accepting = streams
            .accepting
            .as_mut()
            .expect("packets of a client are asked for");
        if !accepting.near.hold(key, (session, id), bytes, at) {
            return Err("no port is left for a stream");
        }
        // The receiving thread takes this before any datagram that follows.
        streams.notify(session, ToReceiving::Open(id));
        let credit = streams.purpose.config().window;
        let open = Open {
            id,
            source: (key.source, key.source_port).into(),
            destination: (key.destination, key.destination_port).into(),
            dscp,
            credit,
        };
        self.sessions.with(session, |state| {
            state.tunnel.egress_mut().open_stream(open, at);
        });
        Ok(())
    }

    /// Lets connections that begin have other forms; those that are there stay as they are.
    pub(super) fn set_forms(&mut self, forms: &Forms) {
        let accepting = self
            .streams
            .as_mut()
            .and_then(|streams| streams.accepting.as_mut());
        if let Some(accepting) = accepting {
            accepting.forms = forms.clone();
        }
    }

    /// Carries out what the receiving thread did.
    pub(super) fn handle_stream(&mut self, session: SessionId, order: ToSending) {
        let Some(streams) = &mut self.streams else { return };
        let credit = streams.purpose.config().window;
        let mut connected = None;
        self.sessions.with(session, |state| {
            connected = state
                .streams
                .handle(order, credit, state.tunnel.egress_mut(), now());
        });
        if let Some((id, socket)) = connected {
            streams.sockets.add((session, id), &socket);
        }
    }

    /// Takes note of sockets that have bytes, and accepts connections.
    pub(super) fn poll_sockets(&mut self) {
        let Some(streams) = &mut self.streams else { return };
        let mut accepts = false;
        let sessions = &mut self.sessions;
        streams.sockets.poll(|name| match name {
            Some((session, id)) => sessions.with(session, |state| state.streams.handle_readable(id)),
            None => accepts = true,
        });
        let accepted = match &mut streams.accepting {
            Some(accepting) if accepts => accepting.accept(),
            Some(_) | None => Vec::new(),
        };
        for ((session, id), socket) in accepted {
            self.connect((session, id), socket);
        }
    }

    fn connect(&mut self, (session, id): StreamName, socket: Arc<Connection>) {
        let Some(streams) = &mut self.streams else { return };
        streams.sockets.add((session, id), &socket);
        streams.notify(session, ToReceiving::Accepted(id, Arc::clone(&socket)));
        self.sessions
            .with(session, |state| state.streams.connect(id, socket));
    }

    /// Passes on what sessions have to say of streams.
    pub(super) fn settle_streams(&mut self) {
        let at = now();
        for session in self.sessions.poll_streamed() {
            let Some(said) = self.sessions.poll_said(session) else {
                continue;
            };
            let Some(streams) = &mut self.streams else { return };
            for notice in said.notices {
                streams.notify(session, notice);
            }
            for id in said.closed {
                streams.sockets.remove((session, id));
                if let Some(accepting) = &mut streams.accepting {
                    accepting.near.handle_closed((session, id));
                }
            }
            for (id, outcome) in said.answers {
                self.answer_program((session, id), outcome, at);
            }
        }
        self.sweep_streams(at);
    }

    fn answer_program(&mut self, name: StreamName, outcome: Outcome, at: Instant) {
        let accepting = self
            .streams
            .as_mut()
            .and_then(|streams| streams.accepting.as_mut());
        let Some(accepting) = accepting else { return };
        match accepting.handle_answer(name, outcome, at) {
            Answered::Back(packet) => {
                if let Err(error) = self.tun.write(&[IoSlice::new(&packet)]) {
                    tracing::debug!(%error, "a program does not hear of its connection");
                }
            }
            Answered::Packet(packet) => {
                self.sessions.reading()[..packet.len()].copy_from_slice(&packet);
                self.take_packet(packet.len());
            }
            Answered::Nothing => {}
        }
    }

    fn sweep_streams(&mut self, at: Instant) {
        let Some(streams) = &mut self.streams else { return };
        streams.flush_notices();
        let Some(accepting) = &mut streams.accepting else {
            return;
        };
        for (session, id) in accepting.near.sweep(at) {
            self.sessions.with(session, |state| {
                state.streams.abandon(id, state.tunnel.egress_mut(), at);
            });
        }
    }

    /// Connections that could have been streams and go as packets.
    pub(super) fn left_to_packets(&self) -> u64 {
        let accepting = self
            .streams
            .as_ref()
            .and_then(|streams| streams.accepting.as_ref());
        accepting.map_or(0, |accepting| accepting.left)
    }

    /// A session is gone: its connections are reset.
    pub(super) fn forget_streams(&mut self, session: SessionId, ids: &[StreamId]) {
        let Some(streams) = &mut self.streams else { return };
        for id in ids {
            streams.sockets.remove((session, *id));
        }
        if let Some(accepting) = &mut streams.accepting {
            accepting.near.handle_session_closed(session);
        }
    }

    /// Ends all streams before the sessions go to a successor, which does not know them.
    pub(super) fn end_streams(&mut self) {
        let at = now();
        let names: Vec<_> = self.sessions.iter_mut().map(|(name, _)| name).collect();
        for name in names {
            self.sessions.with(name, |state| {
                let egress = state.tunnel.egress_mut();
                state.streams.abort_all(reason::UNKNOWN, egress, at);
            });
        }
    }
}
