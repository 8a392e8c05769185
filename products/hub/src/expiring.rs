//! Reports about keys of clients that expire: a warning before, and an entry in the log of changes.
//!
//! `hawser_control` ends the sessions.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::SystemTime;

use hawser_control::enrolment::{Client, SharedStore};
use hawser_wire::control::KeyExpiry;
use hawser_wire::key_expiry::KeyState;

/// Reported expiries.
#[derive(Debug, Default)]
pub(super) struct Expiring {
    /// Clients of which the log has a warning.
    warned: BTreeMap<String, KeyExpiry>,
    /// Set while a task writes into the log of changes.
    is_writing: Arc<AtomicBool>,
}

impl Expiring {
    /// Reports the keys that have expired or soon will. Cost: O(clients).
    pub(super) fn follow(&mut self, store: &SharedStore, now: SystemTime) {
        for (client, expiry) in self.handle_clients(store.lock().iter(), now) {
            tracing::warn!(client, %expiry, "the key of a client expires: `hawser hub limit` renews it");
        }
        if self.is_writing.swap(true, Ordering::Relaxed) {
            return;
        }
        let (store, is_writing) = (store.clone(), Arc::clone(&self.is_writing));
        hawser_linux::tasks::spawn(async move {
            if let Err(error) = store.log_expiries(now).await {
                // The next attempt follows in a second.
                tracing::debug!(error = format!("{error:#}"), "cannot log that a key has expired");
            }
            is_writing.store(false, Ordering::Relaxed);
        });
    }

    /// Returns the clients to warn of: once for each expiry.
    fn handle_clients<'a>(
        &mut self,
        clients: impl Iterator<Item = &'a Client>,
        now: SystemTime,
    ) -> Vec<(String, KeyExpiry)> {
        let mut soon = BTreeMap::new();
        soon.extend(clients.filter_map(|client| {
            let expiry = client
                .expiry
                .filter(|_| client.key_state(now) == KeyState::Expiring);
            Some((client.name.clone(), expiry?))
        }));
        let before = std::mem::replace(&mut self.warned, soon);
        let is_new = |(name, expiry): &(&String, &KeyExpiry)| before.get(*name) != Some(expiry);
        let new = self.warned.iter().filter(is_new);
        new.map(|(name, expiry)| (name.clone(), *expiry)).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, UNIX_EPOCH};

    use hawser_config::Pool;
    use hawser_control::enrolment::{ClientStore, LimitChange};
    use hawser_wire::key_expiry::WARNED_S;

    use super::*;

    #[test]
    fn warns_once_of_each_expiry_a_week_before() {
        let dir = tempfile::tempdir().unwrap();
        let pool = Pool {
            v4: ("100.96.0.0".parse().unwrap(), 16),
            v6: None,
        };
        let mut store = ClientStore::open(dir.path(), pool).unwrap();
        let at = |unix_s| UNIX_EPOCH + Duration::from_secs(unix_s);
        let day = Duration::from_secs(86_400);
        store.invite("bob", day, SystemTime::now()).unwrap();
        let expiry = KeyExpiry(2 * WARNED_S);
        store
            .invite_until("alice", day, Some(expiry), SystemTime::now())
            .unwrap();
        let mut expiring = Expiring::default();
        let mut warned = |store: &ClientStore, now| expiring.handle_clients(store.iter(), at(now));
        assert_eq!(warned(&store, WARNED_S - 1), []);
        assert_eq!(warned(&store, WARNED_S), [("alice".to_owned(), expiry)]);
        assert_eq!(warned(&store, WARNED_S + 1), []);
        let later = KeyExpiry(2 * WARNED_S + 5);
        let change = LimitChange {
            expiry: Some(Some(later)),
            ..LimitChange::default()
        };
        store.set_limits("alice", change).unwrap();
        assert_eq!(warned(&store, WARNED_S + 5), [("alice".to_owned(), later)]);
        assert_eq!(warned(&store, later.0), [], "it has expired");
    }
}
