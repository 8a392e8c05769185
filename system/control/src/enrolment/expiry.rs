//! Expiry of clients' keys at a hub.
//!
//! ```text
//!              `hub limit --expires`               the time has come
//!   unlimited ----------------------> valid until -----------------> expired
//!       ^                              |    ^                           |
//!       +------- `--no-expiry` --------+    +------ `--expires` --------+
//! ```
//!
//! A client whose key has expired stays enrolled with its addresses and limits, but its hub ends
//! its sessions and accepts no new ones. The hub's wall clock decides, so a clock that is set back
//! makes a key valid again. A read of the store that finds an expired key counts as a change of the
//! store; whoever follows the store then checks its clients, as after a revocation.

use std::time::{SystemTime, UNIX_EPOCH};

use hawser_wire::control::{KeyExpiry, Refusal};
use hawser_wire::key_expiry::KeyState;

use super::records::{Edit, Known};
use super::{Client, ClientStore, LimitChange};

/// Times between which no key expires, which find the keys that have expired since.
#[derive(Debug, Default)]
pub(super) struct Expiries {
    /// Generation of the store for which the times are valid.
    generation: u64,
    /// Time of the last check of all clients. Units: seconds since the beginning of 1970.
    checked_unix_s: u64,
    /// Latest expiry that had passed then.
    last: Option<KeyExpiry>,
    /// First expiry that had not passed then.
    next: Option<KeyExpiry>,
}

impl Expiries {
    /// Handles a time, for the clients as of a generation of the store. Returns whether a key has
    /// expired since the last call, or has become valid because the clock was set back.
    ///
    /// Cost: O(1) while nothing has changed, otherwise O(clients).
    pub(super) fn handle_time(&mut self, known: &Known, generation: u64, now_unix_s: u64) -> bool {
        let is_over = |expiry: KeyExpiry| expiry.state(now_unix_s) == KeyState::Expired;
        let is_same = generation == self.generation;
        if is_same && self.last.is_none_or(is_over) && !self.next.is_some_and(is_over) {
            return false;
        }
        let before = std::mem::replace(&mut self.checked_unix_s, now_unix_s);
        let was_over = |expiry: KeyExpiry| expiry.state(before) == KeyState::Expired;
        let all = || known.clients.values().filter_map(|client| client.expiry);
        self.generation = generation;
        self.last = all().filter(|expiry| is_over(*expiry)).max();
        self.next = all().filter(|expiry| !is_over(*expiry)).min();
        all().any(|expiry| is_over(expiry) != was_over(expiry))
    }
}

impl Client {
    /// Returns whether the key of the client has expired.
    #[must_use]
    pub fn is_expired(&self, now: SystemTime) -> bool {
        self.key_state(now) == KeyState::Expired
    }

    /// Returns the state of the client's key.
    #[must_use]
    pub fn key_state(&self, now: SystemTime) -> KeyState {
        self.expiry
            .map_or(KeyState::Valid, |expiry| expiry.state(unix_s(now)))
    }

    /// Returns the client if its key has not expired.
    ///
    /// # Errors
    /// The rejection for the client.
    pub(super) fn unexpired(self, now: SystemTime) -> Result<Self, Refusal> {
        if self.is_expired(now) {
            Err(Refusal::ExpiredKey)
        } else {
            Ok(self)
        }
    }

    /// Returns whether the key has expired and the log does not have it.
    pub(super) fn owes_expiry(&self, now: SystemTime) -> bool {
        self.is_expired(now) && !self.is_expiry_logged
    }

    /// Applies a change of limits and expiry.
    pub(super) fn apply(&mut self, change: LimitChange) {
        self.limits.apply(change);
        if let Some(expiry) = change.expiry {
            self.is_expiry_logged &= expiry == self.expiry;
            self.expiry = expiry;
        }
    }
}

impl ClientStore {
    /// Writes the expiry of keys into the log, unless it has them.
    pub(super) fn log_expiries(&mut self, now: SystemTime) -> anyhow::Result<()> {
        self.change(|known| {
            let owed = known.clients.values().filter(|client| client.owes_expiry(now));
            let logged = owed.map(|client| {
                Edit::Put(Box::new(Client {
                    is_expiry_logged: true,
                    ..client.clone()
                }))
            });
            Ok((logged.collect(), ()))
        })
    }
}

/// Returns the seconds since the beginning of 1970; zero for an earlier time.
pub(super) fn unix_s(now: SystemTime) -> u64 {
    now.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}
