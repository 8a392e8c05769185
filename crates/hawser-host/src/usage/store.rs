//! The days and their bytes on the disk: an SQLite file that only root may read.

use std::collections::BTreeMap;
use std::fs::OpenOptions;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use hawser_steer::quota::{Date, Ledger, Used};
use rusqlite::{Connection, OpenFlags, params};
use thiserror::Error;

/// Why usage is not kept, or cannot be read.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum StoreError {
    /// The file cannot be made.
    #[error("{}: cannot make it: {source}", path.display())]
    Make {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// What is in it cannot be read or written.
    #[error("{}: {source}", path.display())]
    Database {
        /// The file.
        path: PathBuf,
        /// What the database says.
        source: rusqlite::Error,
    },
    /// A newer Hawser wrote it.
    #[error("{}: a newer Hawser wrote it (format {version}): use that one, or move the file away", path.display())]
    Newer {
        /// The file.
        path: PathBuf,
        /// Its format.
        version: i64,
    },
}

/// What has been carried by network and day, since it was last written.
pub(super) type Pending = BTreeMap<(String, Date), Used>;

/// The open file.
#[derive(Debug)]
pub(super) struct Store {
    path: PathBuf,
    connection: Connection,
}

impl Store {
    /// Opens the file to count in it; makes it if need be.
    pub(super) fn open(path: &Path) -> Result<Self, StoreError> {
        OpenOptions::new()
            .append(true)
            .create(true)
            .mode(0o600)
            .open(path)
            .map_err(|source| StoreError::Make {
                path: path.to_owned(),
                source,
            })?;
        let store = Self::connect(path, OpenFlags::SQLITE_OPEN_READ_WRITE)?;
        if store.version()? == 0 {
            store.run(|connection| connection.execute_batch(SCHEMA))?;
        }
        Ok(store)
    }

    /// Opens the file to read it; `None` when there is none.
    pub(super) fn open_to_read(path: &Path) -> Result<Option<Self>, StoreError> {
        if !path.exists() {
            return Ok(None);
        }
        let store = Self::connect(path, OpenFlags::SQLITE_OPEN_READ_ONLY)?;
        let is_written = store.version()? > 0;
        Ok(is_written.then_some(store))
    }

    fn connect(path: &Path, flags: OpenFlags) -> Result<Self, StoreError> {
        let flags = flags | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let connection = Connection::open_with_flags(path, flags).map_err(|source| StoreError::Database {
            path: path.to_owned(),
            source,
        })?;
        let store = Self {
            path: path.to_owned(),
            connection,
        };
        // One writes and another reads: neither keeps the file for longer than a moment.
        store.run(|connection| connection.busy_timeout(TIMEOUT))?;
        let version = store.version()?;
        if version > FORMAT {
            return Err(StoreError::Newer {
                path: store.path,
                version,
            });
        }
        Ok(store)
    }

    fn version(&self) -> Result<i64, StoreError> {
        self.run(|connection| connection.query_row("PRAGMA user_version", [], |row| row.get(0)))
    }

    /// Everything that was kept, by network.
    pub(super) fn load(&self) -> Result<BTreeMap<String, Ledger>, StoreError> {
        self.run(|connection| {
            let mut ledgers: BTreeMap<String, Ledger> = BTreeMap::new();
            let mut rows = connection.prepare("SELECT network, day, received, sent FROM usage")?;
            let mut rows = rows.query([])?;
            while let Some(row) = rows.next()? {
                let network = row.get(0)?;
                let Ok(day) = row.get::<_, String>(1)?.parse() else {
                    continue;
                };
                let count = |column| Ok::<_, rusqlite::Error>(row.get::<_, i64>(column)?.unsigned_abs());
                let used = Used {
                    received: count(2)?,
                    sent: count(3)?,
                };
                ledgers.entry(network).or_default().restore(day, used);
            }
            Ok(ledgers)
        })
    }

    /// The name of this file: drawn at random once, so that a file that replaces it has another.
    pub(super) fn name(&self) -> Result<String, StoreError> {
        self.run(|connection| {
            connection.execute_batch(
                "CREATE TABLE IF NOT EXISTS ledger (id TEXT NOT NULL);
                 INSERT INTO ledger SELECT lower(hex(randomblob(16)))
                     WHERE NOT EXISTS (SELECT 1 FROM ledger);",
            )?;
            connection.query_row("SELECT id FROM ledger", [], |row| row.get(0))
        })
    }

    /// Adds what was carried, all of it or nothing.
    pub(super) fn add(&mut self, pending: &Pending) -> Result<(), StoreError> {
        let result = self.connection.transaction().and_then(|transaction| {
            for ((network, day), used) in pending {
                let signed = |count: u64| i64::try_from(count).unwrap_or(i64::MAX);
                transaction.prepare_cached(ADD)?.execute(params![
                    network,
                    day.to_string(),
                    signed(used.received),
                    signed(used.sent)
                ])?;
            }
            transaction.commit()
        });
        result.map_err(|source| self.said(source))
    }

    fn run<T>(&self, what: impl FnOnce(&Connection) -> rusqlite::Result<T>) -> Result<T, StoreError> {
        what(&self.connection).map_err(|source| self.said(source))
    }

    fn said(&self, source: rusqlite::Error) -> StoreError {
        StoreError::Database {
            path: self.path.clone(),
            source,
        }
    }
}

const SCHEMA: &str = "BEGIN;
    CREATE TABLE usage (
        network TEXT NOT NULL,
        day TEXT NOT NULL,
        received INTEGER NOT NULL,
        sent INTEGER NOT NULL,
        PRIMARY KEY (network, day)
    ) WITHOUT ROWID;
    PRAGMA user_version = 1;
    COMMIT;";
const ADD: &str = "INSERT INTO usage VALUES (?1, ?2, ?3, ?4)
    ON CONFLICT DO UPDATE SET received = received + excluded.received, sent = sent + excluded.sent";
/// Of what this reads and writes.
const FORMAT: i64 = 1;
/// A write takes as long as the disk needs to keep it.
const TIMEOUT: Duration = Duration::from_secs(2);
