//! SQLite files that a daemon keeps, and commands read: only root may.

use std::fs::OpenOptions;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rusqlite::{Connection, OpenFlags, Transaction};
use thiserror::Error;

/// Why something is not kept, or cannot be read.
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

/// What a file holds.
pub struct Format {
    /// Which it is, from 1 on.
    pub version: i64,
    /// What makes the tables.
    pub schema: &'static str,
}

/// The open file.
#[derive(Debug)]
pub struct Database {
    path: PathBuf,
    connection: Connection,
}

impl Database {
    /// Opens the file to write to it; makes it if need be.
    ///
    /// # Errors
    /// It cannot be made or read, or a newer Hawser wrote it.
    pub fn open(path: &Path, format: &Format) -> Result<Self, StoreError> {
        OpenOptions::new()
            .append(true)
            .create(true)
            .mode(0o600)
            .open(path)
            .map_err(|source| StoreError::Make {
                path: path.to_owned(),
                source,
            })?;
        let database = Self::connect(path, OpenFlags::SQLITE_OPEN_READ_WRITE, format)?;
        if database.version()? == 0 {
            let Format { version, schema } = format;
            let all = format!("BEGIN; {schema} PRAGMA user_version = {version}; COMMIT;");
            database.run(|connection| connection.execute_batch(&all))?;
        }
        Ok(database)
    }

    /// Opens the file to read it; `None` when there is none.
    ///
    /// # Errors
    /// It cannot be read, or a newer Hawser wrote it.
    pub fn open_to_read(path: &Path, format: &Format) -> Result<Option<Self>, StoreError> {
        if !path.exists() {
            return Ok(None);
        }
        let database = Self::connect(path, OpenFlags::SQLITE_OPEN_READ_ONLY, format)?;
        let is_written = database.version()? > 0;
        Ok(is_written.then_some(database))
    }

    fn connect(path: &Path, flags: OpenFlags, format: &Format) -> Result<Self, StoreError> {
        let flags = flags | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let connection = Connection::open_with_flags(path, flags).map_err(|source| StoreError::Database {
            path: path.to_owned(),
            source,
        })?;
        let database = Self {
            path: path.to_owned(),
            connection,
        };
        // One writes and another reads: neither keeps the file for longer than a moment.
        database.run(|connection| connection.busy_timeout(TIMEOUT))?;
        database.run(|connection| connection.pragma_update(None, "cache_size", CACHE))?;
        let version = database.version()?;
        if version > format.version {
            return Err(StoreError::Newer {
                path: database.path,
                version,
            });
        }
        Ok(database)
    }

    fn version(&self) -> Result<i64, StoreError> {
        self.run(|connection| connection.query_row("PRAGMA user_version", [], |row| row.get(0)))
    }

    /// Reads, or changes a single thing.
    ///
    /// # Errors
    /// What the database says.
    pub fn run<T>(&self, what: impl FnOnce(&Connection) -> rusqlite::Result<T>) -> Result<T, StoreError> {
        what(&self.connection).map_err(|source| self.said(source))
    }

    /// Changes all of it or nothing.
    ///
    /// # Errors
    /// What the database says.
    pub fn change(
        &mut self,
        what: impl FnOnce(&Transaction<'_>) -> rusqlite::Result<()>,
    ) -> Result<(), StoreError> {
        let result = self.connection.transaction().and_then(|transaction| {
            what(&transaction)?;
            transaction.commit()
        });
        result.map_err(|source| self.said(source))
    }

    fn said(&self, source: rusqlite::Error) -> StoreError {
        StoreError::Database {
            path: self.path.clone(),
            source,
        }
    }
}

/// A count as SQLite keeps it, whose integers have a sign; one that is too large is the largest.
#[must_use]
pub fn signed(count: u64) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}

/// Pages of a file that are kept in memory, as SQLite wants it: below zero, in KiB (by default 2
/// MiB). A daemon writes once in some seconds, and reads hardly ever.
const CACHE: i64 = -128;

/// A write takes as long as the disk needs to keep it.
const TIMEOUT: Duration = Duration::from_secs(2);
