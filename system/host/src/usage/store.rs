//! Usage by day on the disk, in an SQLite file that only root can read.

use std::collections::BTreeMap;
use std::path::Path;

use hawser_linux::netlink::HardwareAddress;
use hawser_steer::quota::{Date, Ledger, Used};
use rusqlite::params;

use super::devices::Moved;
use crate::database::{Database, Format, StoreError, signed};

/// Usage by network and day since the last write.
pub(super) type Pending = BTreeMap<(String, Date), Used>;

/// The open file.
#[derive(Debug)]
pub(super) struct Store {
    database: Database,
}

impl Store {
    /// Opens the file for writing; creates it if necessary.
    pub(super) fn open(path: &Path) -> Result<Self, StoreError> {
        let database = Database::open(path, &FORMAT)?;
        Ok(Self { database })
    }

    /// Opens the file for reading; `None` if there is none.
    pub(super) fn open_to_read(path: &Path) -> Result<Option<Self>, StoreError> {
        let database = Database::open_to_read(path, &FORMAT)?;
        Ok(database.map(|database| Self { database }))
    }

    /// Returns everything stored, by network.
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

    /// Returns the devices whose usage is stored, by name.
    pub(super) fn devices(&self) -> Result<BTreeMap<String, HardwareAddress>, StoreError> {
        self.database.run(|connection| {
            connection.execute_batch(DEVICES)?;
            let mut rows = connection.prepare("SELECT network, address FROM device")?;
            let mut rows = rows.query([])?;
            let mut found = BTreeMap::new();
            while let Some(row) = rows.next()? {
                if let Ok(address) = <[u8; 6]>::try_from(row.get::<_, Vec<u8>>(1)?) {
                    found.insert(row.get(0)?, HardwareAddress(address));
                }
            }
            Ok(found)
        })
    }

    /// Moves the usage of devices to their new names, and stores their addresses, in one
    /// transaction.
    pub(super) fn rename(
        &mut self,
        moved: &[Moved],
        addresses: &BTreeMap<String, HardwareAddress>,
    ) -> Result<(), StoreError> {
        self.database.change(|transaction| {
            let mut copy = transaction.prepare(COPY)?;
            let mut delete = transaction.prepare("DELETE FROM usage WHERE network = ?1")?;
            let mut rename = |from: &str, to: &str| -> rusqlite::Result<()> {
                copy.execute(params![from, to])?;
                delete.execute([from]).map(drop)
            };
            // Use temporary names, because two devices may exchange their names.
            for Moved { from, to } in moved {
                rename(from, &format!("/{to}"))?;
            }
            for Moved { to, .. } in moved {
                rename(&format!("/{to}"), to)?;
            }
            transaction.execute("DELETE FROM device", [])?;
            let mut add = transaction.prepare("INSERT INTO device VALUES (?1, ?2)")?;
            for (name, address) in addresses {
                add.execute(params![name, address.0])?;
            }
            Ok(())
        })
    }

    /// Returns the name of this file, which was chosen at random once, so that a file that replaces
    /// it has another.
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

    /// Adds counted traffic in one transaction.
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

/// Format of this file.
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
/// Devices to which usage belongs. A version of Hawser that does not know this table uses names.
const DEVICES: &str = "CREATE TABLE IF NOT EXISTS device (
    network TEXT NOT NULL PRIMARY KEY,
    address BLOB NOT NULL
) WITHOUT ROWID;";
/// Usage already stored under the new name is from before devices were identified.
const COPY: &str = "INSERT INTO usage SELECT ?2, day, received, sent FROM usage WHERE network = ?1
    ON CONFLICT DO UPDATE SET received = received + excluded.received, sent = sent + excluded.sent";
const ADD: &str = "INSERT INTO usage VALUES (?1, ?2, ?3, ?4)
    ON CONFLICT DO UPDATE SET received = received + excluded.received, sent = sent + excluded.sent";
