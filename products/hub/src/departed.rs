//! Removal of former clients' connections from the kernel's connection table.
//!
//! The addresses of a revoked client are later assigned to another one. Tracked connections of the
//! former client would let answers pass to the new one, despite the rule that no host behind the
//! hub may open a connection to a client.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use hawser_config::identity::KeyHash;
use hawser_control::enrolment::{Client, SharedStore};
use hawser_linux::conntrack;

/// Last known owners of addresses.
#[derive(Debug, Default)]
pub(super) struct Departed {
    owners: BTreeMap<IpAddr, (String, KeyHash)>,
    generation: u64,
}

impl Departed {
    /// Follows the store: removes the kernel's connections of addresses whose client is no longer
    /// enrolled or has changed.
    pub(super) fn follow(&mut self, store: &SharedStore) {
        let gone = {
            let store = store.lock();
            if store.generation() == self.generation {
                return;
            }
            self.generation = store.generation();
            self.handle_clients(store.iter())
        };
        if gone.is_empty() {
            return;
        }
        // This reads the kernel's whole table, so it must not block the control thread.
        drop(tokio::task::spawn_blocking(
            move || match conntrack::forget_addresses(&gone) {
                Ok(connections) => tracing::debug!(connections, "removed connections of revoked clients"),
                Err(error) => tracing::warn!(%error, "cannot remove connections of revoked clients"),
            },
        ));
    }

    /// Returns the addresses whose owner is no longer enrolled.
    fn handle_clients<'a>(&mut self, clients: impl Iterator<Item = &'a Client>) -> BTreeSet<IpAddr> {
        let mut owners = BTreeMap::new();
        for client in clients {
            if let Some(key) = client.owner() {
                let owner = || (client.name.clone(), key);
                owners.extend(client.inner().into_iter().map(|address| (address, owner())));
            }
        }
        let before = std::mem::replace(&mut self.owners, owners);
        let gone = before
            .into_iter()
            .filter(|(address, owner)| self.owners.get(address) != Some(owner));
        gone.map(|(address, _)| address).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, SystemTime};

    use hawser_config::Pool;
    use hawser_control::enrolment::ClientStore;

    use super::*;

    #[test]
    fn names_the_addresses_of_those_who_were_enrolled() {
        let dir = tempfile::tempdir().unwrap();
        let pool = Pool {
            v4: ("100.96.0.0".parse().unwrap(), 16),
            v6: Some(("fd00::".parse().unwrap(), 64)),
        };
        let mut store = ClientStore::open(dir.path(), pool).unwrap();
        let (now, day) = (SystemTime::now(), Duration::from_secs(86_400));
        let mut departed = Departed::default();
        for name in ["alice", "bob", "carol"] {
            let token = store.invite(name, day, now).unwrap();
            // Carol has not connected yet.
            if name != "carol" {
                store.enrol(&token.0, KeyHash::of(name.as_bytes()), now).unwrap();
            }
        }
        assert!(departed.handle_clients(store.iter()).is_empty());
        let inner = BTreeSet::from_iter(store.by_name("alice").unwrap().inner());
        for name in ["alice", "carol"] {
            store.revoke(name).unwrap();
        }
        assert_eq!(departed.handle_clients(store.iter()), inner);
        assert_eq!(inner.len(), 2);
        assert!(departed.handle_clients(store.iter()).is_empty());
    }
}
