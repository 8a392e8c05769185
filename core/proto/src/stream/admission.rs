//! Limits of a hub beyond one session: memory of the streams of all its clients, and the rate of
//! new connections of each client.
//!
//! A request beyond a limit is answered with [`Outcome::Exhausted`](hawser_wire::stream::Outcome),
//! as a kernel without resources returns `EAGAIN`. The client then sends the connection as packets.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use hawser_units::{Duration, Instant};

/// Memory for bytes that peers may send, of all sessions together.
///
/// Sessions take from it before they grant credit, so credit never exceeds it. Clones share one
/// bound, also between threads. Units: bytes.
#[derive(Clone, Debug)]
pub struct Reserve {
    free: Arc<AtomicU64>,
}

impl Reserve {
    /// Creates a reserve of `bytes`.
    #[must_use]
    pub fn new(bytes: u64) -> Self {
        Self {
            free: Arc::new(AtomicU64::new(bytes)),
        }
    }

    /// Creates a reserve without a limit, if each session has its own limit.
    #[must_use]
    pub fn unbounded() -> Self {
        Self::new(u64::MAX)
    }

    /// Returns the number of free bytes.
    #[must_use]
    pub fn free(&self) -> u64 {
        self.free.load(Ordering::Relaxed)
    }

    /// Takes bytes; returns false and takes none where fewer are free.
    fn take(&self, bytes: u64) -> bool {
        let less = |free: u64| free.checked_sub(bytes);
        self.free
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, less)
            .is_ok()
    }

    fn give_back(&self, bytes: u64) {
        self.free.fetch_add(bytes, Ordering::Relaxed);
    }
}

/// Part of a [`Reserve`] that a session has taken; it is returned when the session ends.
#[derive(Debug)]
pub(super) struct Reserved {
    reserve: Reserve,
    bytes: u64,
}

impl Reserved {
    pub(super) fn none_of(reserve: Reserve) -> Self {
        Self { reserve, bytes: 0 }
    }

    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Changes the number of taken bytes. Returns false, and changes nothing, if the reserve does
    /// not have enough.
    pub(super) fn set(&mut self, bytes: u64) -> bool {
        if bytes > self.bytes && !self.reserve.take(bytes - self.bytes) {
            return false;
        }
        self.reserve.give_back(self.bytes.saturating_sub(bytes));
        self.bytes = bytes;
        true
    }
}

impl Drop for Reserved {
    fn drop(&mut self) {
        self.reserve.give_back(self.bytes);
    }
}

/// Rate of connections that a peer may open: a token bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnectRate {
    /// Connections per second, in the long run; at least 1.
    pub per_second: u32,
    /// Maximum number of connections at once.
    pub burst: u32,
}

/// A token bucket of a [`ConnectRate`].
#[derive(Debug)]
pub(super) struct Connects {
    rate: Option<ConnectRate>,
    /// Time at which the bucket is full again.
    full_at: Instant,
}

impl Connects {
    /// Creates a full bucket; without a rate it is unlimited.
    pub(super) fn new(rate: Option<ConnectRate>) -> Self {
        Self {
            rate,
            full_at: Instant::ZERO,
        }
    }

    /// Takes a token; returns false if there is none.
    ///
    /// Source: the generic cell rate algorithm (ITU-T I.371 annex A), a token bucket by one time.
    pub(super) fn take(&mut self, now: Instant) -> bool {
        let Some(ConnectRate { per_second, burst }) = self.rate else {
            return true;
        };
        let each = Duration::from_secs(1) / per_second.max(1);
        let full_at = self.full_at.max(now) + each;
        if full_at > now + each * burst.max(1) {
            return false;
        }
        self.full_at = full_at;
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reserve_is_never_passed_and_has_all_back() {
        let reserve = Reserve::new(1_000);
        let mut first = Reserved::none_of(reserve.clone());
        let mut second = Reserved::none_of(reserve.clone());
        assert!(first.set(700) && !second.set(400), "too much together");
        assert_eq!((second.bytes(), reserve.free()), (0, 300));
        assert!(second.set(300) && !second.set(301));
        assert!(first.set(100) && second.set(900));
        drop(first);
        drop(second);
        assert_eq!(reserve.free(), 1_000);
    }

    #[test]
    fn connections_beyond_the_burst_wait_for_the_rate() {
        let mut now = Instant::ZERO + Duration::from_secs(100);
        let mut connects = Connects::new(Some(ConnectRate {
            per_second: 10,
            burst: 5,
        }));
        let mut taken = |now, tries: u32| (0..tries).filter(|_| connects.take(now)).count();
        assert_eq!(taken(now, 20), 5, "the burst");
        now += Duration::from_millis(99);
        assert_eq!(taken(now, 20), 0);
        now += Duration::from_millis(1);
        assert_eq!(taken(now, 20), 1, "the rate");
        let steps = (0..100).map(|_| {
            now += Duration::from_millis(50);
            taken(now, 3)
        });
        assert_eq!(steps.sum::<usize>(), 50);
        now += Duration::from_secs(3_600);
        assert_eq!(taken(now, 20), 5, "no more than the burst after any time");
        let mut any = Connects::new(None);
        assert!((0..10_000).all(|_| any.take(now)));
    }
}
