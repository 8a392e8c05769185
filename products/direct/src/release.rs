//! Release of the flows of a removed network.
//!
//! Flows that can restart without a loss are released immediately: connections that are not
//! established, and all protocols except TCP (a resolver retries, QUIC migrates). The next packet
//! starts a new flow on another network. Established TCP connections are preserved for some time,
//! because the network may return with the same address; then their sockets are reset.

use std::collections::BTreeMap;

use hawser_linux::conntrack::{self, Connection};
use hawser_linux::direct::{MARK, NETWORK_MASK};
use hawser_units::{Duration, Instant};

use super::switch::Tracking;

/// Networks whose established connections will be released, with the time.
#[derive(Debug, Default)]
pub(super) struct Releases {
    due: BTreeMap<u8, Instant>,
}

impl Releases {
    /// Releases the flows of a removed network: immediately those that lose nothing, the others
    /// after `keep`.
    ///
    /// `holds` returns whether a flow already uses another route, or is being moved.
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

    /// Cancels the release of a network that has returned.
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
            tracing::warn!(%error, "flows of a failed network are not released");
            return;
        }
    };
    let mut count = 0;
    for connection in connections.iter().filter(|connection| which(connection)) {
        if let Err(error) = tracking.forget(connection) {
            tracing::debug!(%error, ?connection, "cannot release a flow");
        }
        if connection.is_established_tcp() {
            // The program gets the error immediately instead of after a timeout. Kernels without
            // this function answer its next packet with a reset.
            let _ = conntrack::abort_socket(connection);
        }
        count += 1;
    }
    tracing::debug!(number, count, "released flows");
}
