//! Two tables of the same format on the disk: steps of 10 s and of 5 min.

use std::path::Path;

use rusqlite::{ErrorCode, Transaction, params};

use crate::database::{Database, Format, StoreError, signed};

/// Values of a network between two samples.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Sample {
    pub(super) name: String,
    /// Seconds since 1970.
    pub(super) at: u64,
    /// Bytes.
    pub(super) down: u64,
    /// Bytes.
    pub(super) up: u64,
    pub(super) rtt_us: Option<u64>,
    pub(super) loss_ppm: Option<u64>,
}

/// A step of a network, as read from the file.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Point {
    pub(super) name: String,
    pub(super) at: u64,
    pub(super) down: u64,
    pub(super) up: u64,
    pub(super) rtt_ms: Option<f64>,
    pub(super) rtt_min_ms: Option<f64>,
    pub(super) rtt_max_ms: Option<f64>,
    pub(super) loss: Option<f64>,
}

/// Table of one resolution.
struct Table {
    name: &'static str,
    /// Units: s.
    step: u64,
    /// Units: s.
    kept: u64,
}

/// The open file.
#[derive(Debug)]
pub(super) struct Store {
    database: Database,
}

impl Store {
    /// Opens the file for writing; creates it if necessary.
    pub(super) fn open(path: &Path) -> Result<Self, StoreError> {
        Self::open_with_limit(path, LARGEST)
    }

    /// Opens the store with a maximum size of the file, in bytes.
    pub(super) fn open_with_limit(path: &Path, largest: u64) -> Result<Self, StoreError> {
        let database = Database::open(path, &FORMAT)?;
        database.run(|connection| {
            connection.pragma_update(None, "max_page_count", largest / PAGE)?;
            connection.execute("DELETE FROM name WHERE id NOT IN (SELECT name FROM coarse)", [])
        })?;
        Ok(Self { database })
    }

    /// Opens the file for reading; `None` if there is none.
    pub(super) fn open_to_read(path: &Path) -> Result<Option<Self>, StoreError> {
        let database = Database::open_to_read(path, &FORMAT)?;
        Ok(database.map(|database| Self { database }))
    }

    /// Adds samples, and removes expired ones. If the file is full, the older half of each table is
    /// removed.
    pub(super) fn add(&mut self, samples: &[Sample], now: u64) -> Result<(), StoreError> {
        match self.try_add(samples, now) {
            Err(StoreError::Database { source, .. })
                if source.sqlite_error_code() == Some(ErrorCode::DiskFull) =>
            {
                self.database.change(|transaction| {
                    for Table { name, .. } in TABLES {
                        transaction.execute(
                            &format!(
                                "DELETE FROM {name} WHERE at < (SELECT (min(at) + max(at)) / 2 FROM {name})"
                            ),
                            [],
                        )?;
                    }
                    Ok(())
                })?;
                self.try_add(samples, now)
            }
            result => result,
        }
    }

    fn try_add(&mut self, samples: &[Sample], now: u64) -> Result<(), StoreError> {
        self.database.change(|transaction| {
            for table in &TABLES {
                for sample in samples {
                    table.add(sample, transaction)?;
                }
                table.forget(now, transaction)?;
            }
            Ok(())
        })
    }

    /// Returns the steps since `from`, of the table that fits the span.
    pub(super) fn points(&self, from: u64, span: u64) -> Result<Vec<Point>, StoreError> {
        let (table, step) = (table_of(span), step_of(span));
        // Include the step that contains `from`.
        let from = from - from % step;
        let query = format!(
            "SELECT name.text, at / ?2 * ?2 AS step, sum(down), sum(up),
                 sum(rtt_sum) / 1e3 / nullif(sum(rtt_count), 0), min(rtt_min) / 1e3, max(rtt_max) / 1e3,
                 sum(loss_sum) / 1e6 / nullif(sum(loss_count), 0)
             FROM {} AS t JOIN name ON name.id = t.name WHERE at >= ?1
             GROUP BY t.name, step ORDER BY t.name, step",
            table.name
        );
        self.database.run(|connection| {
            let mut statement = connection.prepare(&query)?;
            let rows = statement.query_map(params![signed(from), signed(step)], |row| {
                let count = |column| Ok::<_, rusqlite::Error>(row.get::<_, i64>(column)?.unsigned_abs());
                Ok(Point {
                    name: row.get(0)?,
                    at: count(1)?,
                    down: count(2)?,
                    up: count(3)?,
                    rtt_ms: row.get(4)?,
                    rtt_min_ms: row.get(5)?,
                    rtt_max_ms: row.get(6)?,
                    loss: row.get(7)?,
                })
            })?;
            rows.collect()
        })
    }
}

impl Table {
    fn add(&self, sample: &Sample, transaction: &Transaction<'_>) -> rusqlite::Result<()> {
        let add_name = "INSERT INTO name (text) VALUES (?1) ON CONFLICT DO NOTHING";
        transaction.prepare_cached(add_name)?.execute([&sample.name])?;
        let add = format!(
            "INSERT INTO {} VALUES (?1, (SELECT id FROM name WHERE text = ?2), ?3, ?4, ?5, ?6, ?7, ?7, ?8, ?9)
             ON CONFLICT DO UPDATE SET down = down + excluded.down, up = up + excluded.up,
                 rtt_sum = rtt_sum + excluded.rtt_sum, rtt_count = rtt_count + excluded.rtt_count,
                 rtt_min = min(ifnull(rtt_min, excluded.rtt_min), ifnull(excluded.rtt_min, rtt_min)),
                 rtt_max = max(ifnull(rtt_max, excluded.rtt_max), ifnull(excluded.rtt_max, rtt_max)),
                 loss_sum = loss_sum + excluded.loss_sum, loss_count = loss_count + excluded.loss_count",
            self.name
        );
        transaction.prepare_cached(&add)?.execute(params![
            signed(sample.at - sample.at % self.step),
            sample.name,
            signed(sample.down),
            signed(sample.up),
            signed(sample.rtt_us.unwrap_or(0)),
            u8::from(sample.rtt_us.is_some()),
            sample.rtt_us.map(signed),
            signed(sample.loss_ppm.unwrap_or(0)),
            u8::from(sample.loss_ppm.is_some()),
        ])?;
        Ok(())
    }

    fn forget(&self, now: u64, transaction: &Transaction<'_>) -> rusqlite::Result<()> {
        let forget = format!("DELETE FROM {} WHERE at < ?1", self.name);
        transaction
            .prepare_cached(&forget)?
            .execute([signed(now.saturating_sub(self.kept))])?;
        Ok(())
    }
}

fn table_of(span: u64) -> &'static Table {
    if span <= DAY { &TABLES[0] } else { &TABLES[1] }
}

/// Returns the length of the steps for a span: at most [`POINTS`] steps, each a multiple of its
/// table's step.
pub(super) fn step_of(span: u64) -> u64 {
    let of_table = table_of(span).step;
    span.div_ceil(POINTS).next_multiple_of(of_table)
}

/// Format of this file. Keys begin with the time, so that old entries are adjacent.
const FORMAT: Format = Format {
    version: 1,
    schema: "
        CREATE TABLE name (id INTEGER PRIMARY KEY, text TEXT NOT NULL UNIQUE);
        CREATE TABLE fine (at INTEGER, name INTEGER, down INTEGER, up INTEGER,
            rtt_sum INTEGER, rtt_count INTEGER, rtt_min INTEGER, rtt_max INTEGER,
            loss_sum INTEGER, loss_count INTEGER, PRIMARY KEY (at, name)) WITHOUT ROWID;
        CREATE TABLE coarse (at INTEGER, name INTEGER, down INTEGER, up INTEGER,
            rtt_sum INTEGER, rtt_count INTEGER, rtt_min INTEGER, rtt_max INTEGER,
            loss_sum INTEGER, loss_count INTEGER, PRIMARY KEY (at, name)) WITHOUT ROWID;",
};
/// Shorter step: a day of them is 8,640, of which one picture shows [`POINTS`]. Units: s. Source:
/// an hour over [`POINTS`].
pub(super) const FINE_STEP: u64 = 10;
/// Length of a day. Source: definition of the unit. Units: s.
const DAY: u64 = 86_400;
/// Length of the longest period. Source: the days of a leap year. Units: s.
pub(super) const YEAR: u64 = 366 * DAY;
const TABLES: [Table; 2] = [
    Table {
        name: "fine",
        step: FINE_STEP,
        kept: DAY,
    },
    Table {
        name: "coarse",
        step: 300,
        kept: YEAR,
    },
];
/// Number of steps of one answer, about the pixels of a picture on a telephone. Source: our choice,
/// the width of common telephones in CSS pixels; more only makes answers larger.
const POINTS: u64 = 360;
/// Maximum size of the file: a year of ten networks with a margin. Units: bytes. Source: our
/// choice; a larger one takes a router's flash memory, a smaller one removes the oldest days of a
/// machine with many networks.
const LARGEST: u64 = 64 << 20;
/// SQLite's page. Source: https://www.sqlite.org/pgszchng2016.html.
const PAGE: u64 = 4096;
