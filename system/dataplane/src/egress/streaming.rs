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
use hawser_wire::stream::{Open, Outcome, StreamId};

use super::{RETRY_INTERVAL, Sender};
use crate::SessionId;
use crate::checkpoint::SessionCheckpoint;
use crate::streams::accepting::Accepting;
use crate::streams::checkpoint::NearTable;
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
    /// Notices for which the receiving thread had no space.
    unsent: VecDeque<StreamRelay>,
}

impl Streams {
    /// Creates the state; `interface` is the tunnel's interface.
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

    /// Returns the time of the next action without further packets.
    pub(super) fn due(&self) -> Instant {
        let near = self.accepting.as_ref().map(|accepting| accepting.near.due());
        let unsent = (!self.unsent.is_empty()).then(|| now() + RETRY_INTERVAL);
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
    /// Handles the read packet of `len` bytes if it belongs to a stream. Returns whether it does.
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
                // A packet for which the kernel has no room is lost, as on any network.
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

    /// Requests the connection that the read packet opens from the hub.
    fn ask(&mut self, key: FlowKey, dscp: u8, len: usize, at: Instant) -> Result<(), &'static str> {
        let accepting = self
            .streams
            .as_mut()
            .and_then(|streams| streams.accepting.as_mut());
        accepting.map_or(Ok(()), |accepting| accepting.decide(&key, dscp))?;
        let session = self.sessions.of_streams(len)?;
        let Some(streams) = &mut self.streams else {
            return Ok(());
        };
        if streams.unsent.len() >= MAX_UNSENT {
            // The program will retransmit the SYN.
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
        // The receiving thread handles this before any following datagram.
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

    /// Requests the connections that another hub has not answered from the hub of `session`. None
    /// of them has transferred a byte yet.
    pub(super) fn ask_again(&mut self, session: SessionId) {
        let Some(streams) = &mut self.streams else { return };
        let Some(accepting) = &mut streams.accepting else {
            return;
        };
        let at = now();
        for ((session, id), syn) in accepting.near.take_asking_elsewhere(session) {
            self.sessions.with(session, |state| {
                state.streams.abandon(id, state.tunnel.egress_mut(), at);
            });
            self.sessions.reading()[..syn.len()].copy_from_slice(&syn);
            if !self.take_for_stream(syn.len()) {
                self.take_packet(syn.len());
            }
        }
    }

    /// Sets the forms of new connections; existing ones remain unchanged.
    pub(super) fn set_forms(&mut self, forms: &Forms) {
        let accepting = self
            .streams
            .as_mut()
            .and_then(|streams| streams.accepting.as_mut());
        if let Some(accepting) = accepting {
            accepting.forms = forms.clone();
        }
    }

    /// Handles a message of the receiving thread.
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

    /// Records sockets that have bytes, and accepts connections.
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

    /// Passes on events of streams.
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
                    tracing::debug!(%error, "cannot notify a program about its connection");
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

    /// Returns the number of connections that could have been streams but are transferred as
    /// packets.
    pub(super) fn left_to_packets(&self) -> u64 {
        let accepting = self
            .streams
            .as_ref()
            .and_then(|streams| streams.accepting.as_ref());
        accepting.map_or(0, |accepting| accepting.left)
    }

    /// Resets the connections of a removed session.
    pub(super) fn forget_streams(&mut self, session: SessionId, ids: &[StreamId]) {
        let Some(streams) = &mut self.streams else { return };
        for id in ids {
            streams.sockets.remove((session, *id));
        }
        if let Some(accepting) = &mut streams.accepting {
            accepting.near.handle_session_closed(session);
        }
    }

    /// Adds the connections of this machine to the checkpoints of their sessions.
    pub(super) fn save_near(&mut self, sessions: &mut [SessionCheckpoint]) {
        let accepting = self
            .streams
            .as_mut()
            .and_then(|streams| streams.accepting.as_mut());
        let Some(accepting) = accepting else { return };
        for saved in sessions {
            saved.sending.streams.near = Some(accepting.checkpoint(SessionId(saved.session)));
        }
    }

    /// Continues the streams of the previous process's session, with these sockets.
    pub(super) fn restore_streams(
        &mut self,
        session: SessionId,
        sockets: Vec<(StreamId, Arc<Connection>)>,
        near: Option<&NearTable>,
    ) {
        let Some(streams) = &mut self.streams else { return };
        for (id, socket) in sockets {
            streams.sockets.add((session, id), &socket);
        }
        let (Some(accepting), Some(saved)) = (&mut streams.accepting, near) else {
            return;
        };
        if saved.listener.is_none() {
            return;
        }
        accepting.restore(session, saved, now());
        if let Err(error) = streams.sockets.add_listener(accepting.as_fd()) {
            tracing::warn!(%error, "new connections are not split into streams");
        }
    }
}
