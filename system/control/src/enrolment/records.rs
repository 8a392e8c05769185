//! Storage of a hub's clients: a directory of files, or a database that several hubs share.

use std::collections::BTreeMap;
use std::fmt;
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use serde::{Deserialize, Serialize};

use super::Client;

/// Known state of the clients.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Known {
    /// Clients by name.
    pub(super) clients: Arc<BTreeMap<String, Client>>,
    /// Error in a damaged record, with the remedy.
    pub(super) damage: Option<String>,
    /// Inner addresses of removed clients, with the time of removal; read only for a change.
    pub(super) freed: Freed,
}

/// Addresses of removed clients, with the time of the removal.
pub(super) type Freed = BTreeMap<Ipv4Addr, SystemTime>;

/// Time for which the addresses of a removed client stay unused while the pool has others: late
/// packets to them must not reach another client. Source: resolvers usually cache a name for at
/// most a day (RFC 1035 section 3.2.1 leaves it to the zone), and most servers end idle connections
/// sooner.
pub(super) const QUARANTINE: Duration = Duration::from_secs(86_400);

impl Known {
    pub(super) fn apply(&mut self, edit: Edit) {
        let clients = Arc::make_mut(&mut self.clients);
        match edit {
            Edit::Put(client) => drop(clients.insert(client.name.clone(), *client)),
            Edit::Remove { name, .. } => drop(clients.remove(&name)),
        }
    }
}

/// Logged change of a client.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogEntry {
    /// Time, in seconds since the beginning of 1970 (UTC).
    pub at_unix_s: u64,
    /// Name of the client.
    pub client: String,
    /// Description of the change, such as `enrolled` or `cap 5000000 bit/s`.
    pub change: String,
    /// Author: the user of the command, the code of the client's key for an enrolment, or `hub` for
    /// the expiry of a key.
    pub by: String,
    /// Host name of the machine on which it was made.
    pub host: String,
}

/// Part of a change.
#[derive(Clone, Debug)]
pub(super) enum Edit {
    /// Sets the record of the client.
    Put(Box<Client>),
    /// Removal of a name; an error if it does not exist.
    Remove {
        /// The name.
        name: String,
        /// User who requested the removal; `None` for the user of this process.
        by: Option<String>,
    },
}

/// Decision about the changes of the present clients.
pub(super) type Decide<'a> = &'a mut dyn FnMut(&Known) -> anyhow::Result<Vec<Edit>>;

/// Storage of a hub's clients, which several processes may read and change.
pub(super) trait Records: fmt::Debug + Send {
    /// Returns the number of the last read database change; zero for files.
    fn change_number(&self) -> i64 {
        0
    }

    /// Updates `known` to the present state. Returns whether it changed.
    ///
    /// # Errors
    /// If the present state cannot be read; `known` remains unchanged.
    fn read(&mut self, known: &mut Known) -> anyhow::Result<bool>;

    /// Executes the decision of `decide` about the present clients, and updates `known`. Returns
    /// `false` if nothing differs. Other processes are excluded in the meantime. `decide` may be
    /// called again if its decision conflicted with others.
    ///
    /// # Errors
    /// The error of `decide`, with no change, or an error of the storage.
    fn change(&mut self, known: &mut Known, decide: Decide<'_>) -> anyhow::Result<bool>;

    /// Returns the logged changes, the oldest first.
    ///
    /// # Errors
    /// If the log cannot be read.
    fn log(&mut self) -> anyhow::Result<Vec<LogEntry>>;
}

/// Returns the error about an unknown client.
pub(super) fn unknown(name: &str) -> anyhow::Error {
    anyhow::anyhow!("there is no client {name}: `hawser hub list` shows the clients")
}
