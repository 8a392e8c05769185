//! Letting go of the flows of a network that is gone.
//!
//! What can begin again at no loss does so at once: connections that are not established, and
//! everything that is no TCP (a resolver asks again, QUIC moves). The next packet is a new flow and
//! gets another network. Established TCP connections are kept for a while, as the network may come
//! back with the same address; then their sockets are told that they are gone.

use std::collections::BTreeMap;

use hawser_linux::conntrack::{self, Connection};
use hawser_linux::direct::{MARK, NETWORK_MASK};
use hawser_units::{Duration, Instant};

use super::switch::Tracking;

/// Networks whose established connections will be let go, and when.
#[derive(Debug, Default)]
pub(super) struct Releases {
    due: BTreeMap<u8, Instant>,
}

impl Releases {
    /// The network is gone: lets go of what loses nothing, and of the rest after `keep`.
    ///
    /// `holds`: flows that are elsewhere already, or on their way.
    pub(super) fn start(
        &mut self,
        number: u8,
        now: Instant,
        (keep, tracking): (Duration, Tracking),
        holds: impl Fn(&Connection, u8) -> bool,
    ) {
        let let_go = |connection: &Connection| !connection.is_established_tcp() && !holds(connection, number);
        release(number, tracking, let_go);
        self.due.insert(number, now + keep);
    }

    /// The network is back.
    pub(super) fn stop(&mut self, number: u8) {
        self.due.remove(&number);
    }

    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        self.due.values().min().copied()
    }

    pub(super) fn handle_timeout(
        &mut self,
        now: Instant,
        tracking: Tracking,
        holds: impl Fn(&Connection, u8) -> bool,
    ) {
        self.due.retain(|number, due| {
            if *due <= now {
                release(*number, tracking, |connection| !holds(connection, *number));
            }
            *due > now
        });
    }
}

fn release(number: u8, tracking: Tracking, which: impl Fn(&Connection) -> bool) {
    let connections = match tracking.list(MARK | u32::from(number), NETWORK_MASK) {
        Ok(connections) => connections,
        Err(error) => {
            tracing::warn!(%error, "flows of a dead network are not let go");
            return;
        }
    };
    let mut count = 0;
    for connection in connections.iter().filter(|connection| which(connection)) {
        if let Err(error) = tracking.forget(connection) {
            tracing::debug!(%error, ?connection, "a flow is not let go");
        }
        if connection.is_established_tcp() {
            // Its program hears at once what it would find out by waiting. Kernels that cannot do
            // it answer its next packet with a reset.
            let _ = conntrack::abort_socket(connection);
        }
        count += 1;
    }
    tracing::debug!(number, count, "let go of flows");
}
