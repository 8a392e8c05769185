//! Listener of a client for connections of the machine that the hub has established.

use std::collections::HashMap;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use hawser_linux::stream_sockets::{Connection, Listener};
use hawser_proto::stream::{Form, Forms};
use hawser_units::Instant;
use hawser_wire::inner::{self, FlowKey};
use hawser_wire::offload::VIRTIO_LEN;
use hawser_wire::stream::Outcome;

use super::StreamName;
use super::checkpoint::NearTable;
use super::near::{Answered, Near};
use crate::SessionId;

/// Reasons that are remembered.
///
/// Source: twice a session's flows (`MAX_FLOWS`, `core/proto/src/flow.rs`), of which `explain`
/// shows some.
const MAX_REASONS: usize = 2 * hawser_proto::flow::MAX_FLOWS;

/// Acceptor of connections that become streams.
pub(crate) struct Accepting {
    listener: Arc<Listener>,
    pub(crate) near: Near,
    /// Rules for the connections that become streams.
    pub(crate) forms: Forms,
    /// Reasons for the forms of connections.
    reasons: HashMap<FlowKey, &'static str>,
    /// Connections that were left to packets.
    pub(crate) left: u64,
}

impl Accepting {
    /// Listens on the interface of the tunnel.
    pub(crate) fn on_interface(name: &str, now: Instant) -> std::io::Result<Self> {
        let listener = Listener::on_interface(name)?;
        let near = Near::new(listener.port(), now);
        Ok(Self {
            listener: Arc::new(listener),
            near,
            forms: Forms::default(),
            reasons: HashMap::new(),
            left: 0,
        })
    }

    /// Returns the state of a session's streams for a successor.
    pub(crate) fn checkpoint(&self, session: SessionId) -> NearTable {
        NearTable {
            listener: Some(Arc::clone(&self.listener)),
            ..self.near.checkpoint(session)
        }
    }

    /// Continues with the listener and the connections of the previous process, instead of the own
    /// listener, which has accepted none.
    pub(crate) fn restore(&mut self, session: SessionId, saved: &NearTable, now: Instant) {
        if let Some(listener) = &saved.listener {
            self.listener = Arc::clone(listener);
            self.near = Near::restore(listener.port(), session, saved, now);
        }
    }

    /// Accepts waiting connections.
    pub(crate) fn accept(&mut self) -> Vec<(StreamName, Arc<Connection>)> {
        let mut accepted = Vec::new();
        loop {
            match self.listener.accept() {
                Ok(Some((socket, from))) => {
                    // Other connections are reset.
                    if let Some(name) = self.near.handle_accepted(from) {
                        accepted.push((name, Arc::new(socket)));
                    }
                }
                Ok(None) => return accepted,
                Err(error) => {
                    tracing::debug!(%error, "a connection cannot be accepted");
                    return accepted;
                }
            }
        }
    }

    /// Decides the form of a new connection.
    ///
    /// # Errors
    /// The reason why the connection is transferred as packets.
    pub(crate) fn decide(&mut self, key: &FlowKey, dscp: u8) -> Result<(), &'static str> {
        match self.forms.form(key, dscp) {
            (Form::Stream, reason) => {
                self.note_reason(*key, reason);
                Ok(())
            }
            (Form::EndToEnd, reason) => Err(reason),
        }
    }

    /// Handles the peer's answer to a request.
    pub(crate) fn handle_answer(&mut self, name: StreamName, outcome: Outcome, now: Instant) -> Answered {
        let answered = self.near.handle_answer(name, outcome, now);
        if let Answered::Packet(packet) = &answered
            && let Some(summary) = packet.get(VIRTIO_LEN..).and_then(inner::parse)
        {
            let reason = match outcome {
                Outcome::Exhausted => "the hub has reached its limit of streams ([streams] in hub.toml)",
                Outcome::Connected
                | Outcome::Refused
                | Outcome::Unreachable
                | Outcome::TimedOut
                | Outcome::Forbidden => "the hub opens no stream to this destination",
            };
            self.note(summary.key, reason);
        }
        answered
    }

    /// Records the reason why a connection is transferred as packets.
    pub(crate) fn note(&mut self, key: FlowKey, reason: &'static str) {
        self.left += 1;
        self.note_reason(key, reason);
    }

    fn note_reason(&mut self, key: FlowKey, reason: &'static str) {
        if self.reasons.len() >= MAX_REASONS {
            self.reasons.clear();
        }
        self.reasons.insert(key, reason);
    }

    /// Returns the reason for the form of a connection.
    pub(crate) fn reason(&self, key: &FlowKey) -> Option<&'static str> {
        self.reasons.get(key).copied()
    }
}

impl AsFd for Accepting {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.listener.as_fd()
    }
}
