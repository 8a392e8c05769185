//! The days and their bytes on the disk: an SQLite file that only root may read.

use std::collections::BTreeMap;
use std::path::Path;

use hawser_steer::quota::{Date, Ledger, Used};
use rusqlite::params;

use crate::database::{Database, Format, StoreError, signed};

/// What has been carried by network and day, since it was last written.
pub(super) type Pending = BTreeMap<(String, Date), Used>;

/// The open file.
#[derive(Debug)]
pub(super) struct Store {
    database: Database,
}

impl Store {
    /// Opens the file to count in it; makes it if need be.
    pub(super) fn open(path: &Path) -> Result<Self, StoreError> {
        let database = Database::open(path, &FORMAT)?;
        Ok(Self { database })
    }

    /// Opens the file to read it; `None` when there is none.
    pub(super) fn open_to_read(path: &Path) -> Result<Option<Self>, StoreError> {
        let database = Database::open_to_read(path, &FORMAT)?;
        Ok(database.map(|database| Self { database }))
    }

    /// Everything that was kept, by network.
    pub(super) fn load(&self) -> Result<BTreeMap<String, Ledger>, StoreError> {
        self.database.run(|connection| {
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
        self.database.run(|connection| {
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
        self.database.change(|transaction| {
            for ((network, day), used) in pending {
                transaction.prepare_cached(ADD)?.execute(params![
                    network,
                    day.to_string(),
                    signed(used.received),
                    signed(used.sent)
                ])?;
            }
            Ok(())
        })
    }
}

/// Of what this reads and writes.
const FORMAT: Format = Format {
    version: 1,
    schema: "CREATE TABLE usage (
        network TEXT NOT NULL,
        day TEXT NOT NULL,
        received INTEGER NOT NULL,
        sent INTEGER NOT NULL,
        PRIMARY KEY (network, day)
    ) WITHOUT ROWID;",
};
const ADD: &str = "INSERT INTO usage VALUES (?1, ?2, ?3, ?4)
    ON CONFLICT DO UPDATE SET received = received + excluded.received, sent = sent + excluded.sent";
