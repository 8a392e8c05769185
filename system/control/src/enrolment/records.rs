//! Where the clients of a hub are kept: a directory of files, or a database that several hubs
//! share.

use std::collections::BTreeMap;
use std::fmt;
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use super::Client;

/// What is known of the clients.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Known {
    /// By name.
    pub(super) clients: Arc<BTreeMap<String, Client>>,
    /// What is wrong with a record, in words with the remedy.
    pub(super) damage: Option<String>,
    /// Inner addresses of clients that were removed, and when; read for a change alone.
    pub(super) freed: Freed,
}

/// Addresses of removed clients, with the time of the removal.
pub(super) type Freed = BTreeMap<Ipv4Addr, SystemTime>;

/// Time for which the addresses of a removed client stay unused while the pool has others: packets
/// that others still send there must not reach another client. Source: resolvers keep a name for a
/// day at most, as a rule (RFC 1035 section 3.2.1 leaves it to the zone), and most servers end
/// connections without a sign of life sooner.
pub(super) const QUARANTINE: Duration = Duration::from_secs(86_400);

impl Known {
    pub(super) fn apply(&mut self, edit: Edit) {
        let clients = Arc::make_mut(&mut self.clients);
        match edit {
            Edit::Put(client) => drop(clients.insert(client.name.clone(), *client)),
            Edit::Remove(name) => drop(clients.remove(&name)),
        }
    }
}

/// A part of a change.
#[derive(Clone, Debug)]
pub(super) enum Edit {
    /// The client is as this says.
    Put(Box<Client>),
    /// Nobody is called this any more; an error where nobody was.
    Remove(String),
}

/// What says, of the clients as they are, how they change.
pub(super) type Decide<'a> = &'a mut dyn FnMut(&Known) -> anyhow::Result<Vec<Edit>>;

/// Where the clients of a hub are kept, so that several processes may read and change them.
pub(super) trait Records: fmt::Debug + Send {
    /// Number of the change that was read last, among those of a database; zero of files.
    fn change_number(&self) -> i64 {
        0
    }

    /// Makes `known` what is there now; false: it was that already.
    ///
    /// # Errors
    /// What is there cannot be told; `known` stays.
    fn read(&mut self, known: &mut Known) -> anyhow::Result<bool>;

    /// Carries out what `decide` says of the clients as they are, and makes `known` the outcome;
    /// false: it was that already. Nobody else changes anything meanwhile. `decide` may be asked
    /// again, when what it said could not be carried out because of others.
    ///
    /// # Errors
    /// What `decide` says, and then nothing changes; or the storage refuses.
    fn change(&mut self, known: &mut Known, decide: Decide<'_>) -> anyhow::Result<bool>;
}

/// What is said of a client that nobody knows.
pub(super) fn unknown(name: &str) -> anyhow::Error {
    anyhow::anyhow!("no client is called {name}: `hawser hub list` shows who there is")
}
