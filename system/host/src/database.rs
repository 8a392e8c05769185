//! SQLite files that a daemon writes and commands read; only root has access.

use std::fs::OpenOptions;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rusqlite::{Connection, OpenFlags, Transaction};
use thiserror::Error;

/// Reason why data cannot be stored or read.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum StoreError {
    /// The file cannot be created.
    #[error("{}: cannot create it: {source}", path.display())]
    Make {
        /// The file.
        path: PathBuf,
        /// Cause of the error.
        source: std::io::Error,
    },
    /// The contents cannot be read or written.
    #[error("{}: {source}", path.display())]
    Database {
        /// The file.
        path: PathBuf,
        /// Error of the database.
        source: rusqlite::Error,
    },
    /// The file was written by a newer Hawser.
    #[error("{}: written by a newer version of Hawser (format {version}): use that version, or move the file away", path.display())]
    Newer {
        /// The file.
        path: PathBuf,
        /// Version of its format.
        version: i64,
    },
}

/// Format of a file.
pub struct Format {
    /// Version, from 1 on.
    pub version: i64,
    /// Statements that create the tables.
    pub schema: &'static str,
}

/// The open file.
#[derive(Debug)]
pub struct Database {
    path: PathBuf,
    connection: Connection,
}

impl Database {
    /// Opens the file for writing; creates it if necessary.
    ///
    /// # Errors
    /// The file cannot be created or read, or was written by a newer Hawser.
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

    /// Opens the file for reading; `None` if there is none.
    ///
    /// # Errors
    /// The file cannot be read, or was written by a newer Hawser.
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
        // A writer and a reader may use the file at once: neither locks it for long.
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

    /// Executes a query or a single change.
    ///
    /// # Errors
    /// The error of the database.
    pub fn run<T>(&self, what: impl FnOnce(&Connection) -> rusqlite::Result<T>) -> Result<T, StoreError> {
        what(&self.connection).map_err(|source| self.said(source))
    }

    /// Executes all changes of `what` in one transaction.
    ///
    /// # Errors
    /// The error of the database.
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

/// Converts a count to SQLite's signed integers; larger values are saturated.
#[must_use]
pub fn signed(count: u64) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}

/// Pages of a file that are kept in memory, as SQLite wants it: below zero, in KiB (by default 2
/// MiB). A daemon writes once in some seconds, and reads hardly ever. Source: our choice, 32 pages,
/// of which a transaction changes a few.
const CACHE: i64 = -128;

/// Maximum wait for the lock of the database, which a write holds for as long as the disk needs.
/// Source: our choice; a longer one lets a query wait for a disk that hangs, a shorter one fails
/// while an SD card erases a block.
const TIMEOUT: Duration = Duration::from_secs(2);
