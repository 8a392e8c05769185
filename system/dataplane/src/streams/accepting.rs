//! The listener of a client: connections of the machine that the hub has connected.

use std::collections::HashMap;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use hawser_linux::stream_sockets::{Connection, Listener};
use hawser_units::Instant;
use hawser_wire::inner::FlowKey;

use super::StreamName;
use super::near::Near;

/// Reasons that are remembered.
///
/// Source: twice a session's flows (`MAX_FLOWS`, `core/proto/src/flow.rs`), of which `explain`
/// shows some.
const MAX_REASONS: usize = 2 * hawser_proto::flow::MAX_FLOWS;

/// Accepts connections that become streams.
pub(crate) struct Accepting {
    listener: Listener,
    pub(crate) near: Near,
    /// Reasons for which connections are no streams.
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
            listener,
            near,
            reasons: HashMap::new(),
            left: 0,
        })
    }

    /// Accepts connections that wait.
    pub(crate) fn accept(&mut self) -> Vec<(StreamName, Arc<Connection>)> {
        let mut accepted = Vec::new();
        loop {
            match self.listener.accept() {
                Ok(Some((socket, from))) => {
                    // Whoever else comes by here is reset.
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

    /// Takes note of the reason for which a connection goes as packets.
    pub(crate) fn note(&mut self, key: FlowKey, reason: &'static str) {
        self.left += 1;
        if self.reasons.len() >= MAX_REASONS {
            self.reasons.clear();
        }
        self.reasons.insert(key, reason);
    }

    /// The reason for which a connection goes as packets.
    pub(crate) fn reason(&self, key: &FlowKey) -> Option<&'static str> {
        self.reasons.get(key).copied()
    }
}

impl AsFd for Accepting {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.listener.as_fd()
    }
}
