//! Destination of a path's datagrams.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use hawser_linux::udp::DataSocket;
use hawser_proto::tunnel::Burst;
use hawser_units::{Bytes, Duration, Instant, Rate};
use hawser_wire::frame::Format;

use super::batch::{Batches, Target};
use super::crypto::DataKey;
use super::pool::BufferId;

/// The shortest time that a rate is measured over.
const METER: Duration = Duration::from_millis(500);

/// Destination of a path's datagrams.
pub(super) struct Lane {
    pub(super) socket: Option<Arc<DataSocket>>,
    pub(super) remote: Option<SocketAddr>,
    /// Local address that the peer uses, on a hub.
    pub(super) local: Option<IpAddr>,
    pub(super) peer_index: u32,
    pub(super) name: String,
    pub(super) meter: Meter,
}

impl Lane {
    pub(super) fn new(
        socket: Option<Arc<DataSocket>>,
        remote: Option<SocketAddr>,
        peer_index: u32,
        name: String,
    ) -> Self {
        Self {
            socket,
            remote,
            local: None,
            peer_index,
            name,
            meter: Meter::default(),
        }
    }

    /// Writes and encrypts the datagrams of a burst into the batch of their path. Returns false if
    /// the session has no key. Datagrams without an address or socket are lost.
    pub(super) fn send(
        &self,
        burst: &Burst<'_, BufferId, DataKey>,
        format: Format,
        packet: &[u8],
        batches: &mut Batches,
    ) -> bool {
        let Some(key) = burst.key() else {
            return false;
        };
        let (Some(socket), Some(to)) = (self.socket.clone(), self.remote) else {
            return true;
        };
        let target = Target {
            socket,
            from: self.local,
            to,
            ecn: burst.outer_ecn(format.ecn(packet)).bits(),
        };
        for datagram in burst.datagrams() {
            let room = batches.room(&target, datagram.udp_len());
            datagram.seal(burst.path(), self.peer_index, key, packet, room);
        }
        true
    }
}

/// Meter that computes rates from two byte totals between consecutive samples.
#[derive(Default)]
pub(super) struct Meter {
    since: Option<Instant>,
    sent: u64,
    received: u64,
    rates: (Rate, Rate),
}

impl Meter {
    pub(super) fn read(&mut self, sent: u64, received: u64, at: Instant) -> (Rate, Rate) {
        let elapsed = self.since.map(|since| at.since(since));
        if elapsed.is_some_and(|elapsed| elapsed < METER) {
            return self.rates;
        }
        if let Some(elapsed) = elapsed {
            let rate = |now: u64, then: u64| Rate::of(Bytes(now - then), elapsed).unwrap_or_default();
            self.rates = (rate(sent, self.sent), rate(received, self.received));
        }
        (self.since, self.sent, self.received) = (Some(at), sent, received);
        self.rates
    }
}
