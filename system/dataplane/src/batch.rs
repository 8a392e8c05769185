//! Outgoing datagrams collected into batches that the kernel segments (UDP GSO).

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use hawser_linux::udp::DataSocket;

/// Bytes of one batch. Source: the largest UDP payload over IPv4 (RFC 791 section 3.1 and RFC 768).
const CAPACITY: usize = 65_507;
/// Batches open at once: a few paths of the few sessions that are busy at one moment. Source: our
/// choice, 64 KB each; fewer send small batches where packets of many paths alternate, more only
/// take memory.
const OPEN: usize = 8;

/// Destination of a batch's datagrams.
#[derive(Clone)]
pub struct Target {
    /// Socket to send on.
    pub socket: Arc<DataSocket>,
    /// Source address on this machine, if it matters.
    pub from: Option<IpAddr>,
    /// Destination address.
    pub to: SocketAddr,
    /// ECN field.
    pub ecn: u8,
}

impl Target {
    fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.socket, &other.socket)
            && self.to == other.to
            && self.from == other.from
            && self.ecn == other.ecn
    }
}

struct Batch {
    target: Option<Target>,
    bytes: Box<[u8]>,
    len: usize,
    segment: usize,
    count: usize,
    full: bool,
}

/// Open batches of a sending thread.
pub struct Batches {
    open: Vec<Batch>,
    next: usize,
    /// Number of datagrams that the kernel refused.
    pub refused: u64,
    /// Numbers of sent datagrams, and of calls for them.
    pub sent: (u64, u64),
}

impl Batches {
    /// Creates empty batches.
    #[must_use]
    #[expect(clippy::new_without_default, reason = "it takes half a megabyte")]
    pub fn new() -> Self {
        let batch = || Batch {
            target: None,
            bytes: vec![0; CAPACITY].into_boxed_slice(),
            len: 0,
            segment: 0,
            count: 0,
            full: false,
        };
        Self {
            open: (0..OPEN).map(|_| batch()).collect(),
            next: 0,
            refused: 0,
            sent: (0, 0),
        }
    }

    /// Returns the buffer for a datagram of `len` bytes to `target`, to be filled by the caller.
    pub fn room(&mut self, target: &Target, len: usize) -> &mut [u8] {
        let at = self.find(target);
        if self.open[at].target.is_some() && !self.open[at].takes(len) {
            self.flush_one(at);
        }
        let batch = &mut self.open[at];
        if batch.target.is_none() {
            batch.target = Some(target.clone());
            batch.segment = len;
        }
        let from = batch.len;
        batch.len += len;
        batch.count += 1;
        batch.full = len < batch.segment || batch.count >= target.socket.max_segments();
        &mut batch.bytes[from..from + len]
    }

    fn find(&mut self, target: &Target) -> usize {
        let same = |batch: &Batch| batch.target.as_ref().is_some_and(|open| open.is(target));
        if let Some(at) = self.open.iter().position(same) {
            return at;
        }
        if let Some(at) = self.open.iter().position(|batch| batch.target.is_none()) {
            return at;
        }
        self.next = (self.next + 1) % self.open.len();
        self.flush_one(self.next);
        self.next
    }

    /// Sends everything.
    pub fn flush(&mut self) {
        for at in 0..self.open.len() {
            self.flush_one(at);
        }
    }

    fn flush_one(&mut self, at: usize) {
        let batch = &mut self.open[at];
        let Some(target) = batch.target.take() else { return };
        let bytes = &batch.bytes[..batch.len];
        let result = target
            .socket
            .send(target.from, target.to, bytes, batch.segment, target.ecn);
        if let Err(error) = result {
            self.refused += batch.count as u64;
            tracing::trace!(%error, to = %target.to, datagrams = batch.count, "datagrams refused");
        }
        self.sent.0 += batch.count as u64;
        self.sent.1 += 1;
        batch.len = 0;
        batch.count = 0;
        batch.full = false;
    }
}

impl Batch {
    fn takes(&self, len: usize) -> bool {
        !self.full && len <= self.segment && self.len + len <= CAPACITY
    }
}
