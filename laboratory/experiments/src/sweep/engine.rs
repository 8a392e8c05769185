//! Runs a shard, and merges shards.

use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

use hawser_netem::scenario::Scenario;

use super::journal::{self, Header, Journal};
use super::plan::{Shard, Sweep, SweepError};
use super::row::Row;
use super::table::Table;
use crate::parallel;

/// Progress of a shard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// Number of the shard's runs in its journal.
    pub done: u64,
    /// Number of the shard's runs.
    pub total: u64,
}

/// Summary of a written shard or merge.
#[derive(Clone, Debug, PartialEq)]
pub struct Summary {
    /// Rows in the tables.
    pub rows: u64,
    /// Rows of an earlier process.
    pub resumed: u64,
    /// Rows of failed runs; their column `error` gives the reason.
    pub failed: u64,
    /// Files of the tables.
    pub files: [PathBuf; 2],
    /// Content of the tables.
    pub table: Table,
}

/// Runs the missing runs of a shard, `jobs` at a time, and writes its tables.
///
/// `run_one` returns the columns of a run, or the reason of its failure, which becomes a row too.
/// Journal and tables are files in `directory`.
///
/// # Errors
/// [`SweepError`] when the journal cannot be used; rows written before stay.
pub fn run(
    sweep: &Sweep,
    shard: Shard,
    jobs: NonZeroUsize,
    directory: &Path,
    run_one: &(dyn Fn(&Scenario) -> Result<Row, String> + Sync),
    on_progress: &(dyn Fn(Progress) + Sync),
) -> Result<Summary, SweepError> {
    std::fs::create_dir_all(directory).map_err(|source| SweepError::File {
        path: directory.to_owned(),
        source,
    })?;
    let path = directory.join(format!("rows-{}-of-{}.journal", shard.index, shard.count));
    let header = Header::new(sweep.fingerprint(), sweep.runs(), shard);
    let (journal, there) = Journal::open(&path, &header)?;
    let resumed = there.len() as u64;
    let there: BTreeSet<u64> = there.into_iter().collect();
    let mine = (0..sweep.runs()).filter(|run| shard.holds(*run));
    let missing: Vec<u64> = mine.filter(|run| !there.contains(run)).collect();
    let total = resumed + missing.len() as u64;
    on_progress(Progress { done: resumed, total });
    run_missing(sweep, &missing, jobs, journal, run_one, &|done| {
        on_progress(Progress {
            done: resumed + done,
            total,
        });
    })?;
    let rows = journal::read(&path)?
        .map(|contents| contents.rows)
        .unwrap_or_default();
    let name = if shard == Shard::ALL {
        "results".to_owned()
    } else {
        format!("results-{}-of-{}", shard.index, shard.count)
    };
    write(&rows, resumed, directory, &name)
}

fn run_missing(
    sweep: &Sweep,
    missing: &[u64],
    jobs: NonZeroUsize,
    journal: Journal,
    run_one: &(dyn Fn(&Scenario) -> Result<Row, String> + Sync),
    on_done: &(dyn Fn(u64) + Sync),
) -> Result<(), SweepError> {
    let stop = AtomicBool::new(false);
    let journal = Mutex::new((journal, 0u64));
    let results = parallel::run(missing.len(), jobs, &|| stop.load(Ordering::Relaxed), |n| {
        let run = missing[n];
        let row = row(sweep, run, run_one);
        let mut guard = journal.lock().unwrap_or_else(PoisonError::into_inner);
        let (journal, done) = &mut *guard;
        let appended = journal.append(run, row);
        // Nothing may be written after an incomplete line.
        stop.fetch_or(appended.is_err(), Ordering::Relaxed);
        *done += 1;
        on_done(*done);
        appended
    });
    for result in results.into_iter().flatten() {
        result.unwrap_or_else(|panic| {
            Err(SweepError::Journal {
                path: PathBuf::from("rows"),
                problem: panic,
            })
        })?;
    }
    let (journal, _) = journal.into_inner().unwrap_or_else(PoisonError::into_inner);
    journal.sync()
}

/// Returns the row of one run; a run that fails or panics has only an error.
fn row(sweep: &Sweep, run: u64, run_one: &(dyn Fn(&Scenario) -> Result<Row, String> + Sync)) -> Row {
    let (mut row, scenario) = match sweep.scenario(run) {
        Ok(parsed) => parsed,
        Err(error) => {
            let mut row = Row::default();
            row.push("run", run as i64);
            row.push(ERROR, error.to_string());
            return row;
        }
    };
    let one = parallel::run(1, NonZeroUsize::MIN, &|| false, |_| run_one(&scenario));
    match one.into_iter().flatten().next() {
        Some(Ok(Ok(results))) => {
            // The report repeats the set fields: the axis has them in the syntax of the sweep.
            let is_new = |name: &String| !row.0.iter().any(|(known, _)| known == name);
            let results = results.0.into_iter().filter(|(name, _)| is_new(name));
            let results: Vec<_> = results.collect();
            row.0.extend(results);
        }
        Some(Ok(Err(problem)) | Err(problem)) => row.push(ERROR, problem),
        None => row.push(ERROR, "not run".to_owned()),
    }
    row
}

/// Merges the journals of all shards in a directory.
///
/// # Errors
/// [`SweepError`] if journals are of different sweeps or contradict each other, or runs are
/// missing.
pub fn merge(directory: &Path) -> Result<Summary, SweepError> {
    let failed = |problem: String| SweepError::Journal {
        path: directory.to_owned(),
        problem,
    };
    let mut sweep: Option<Header> = None;
    let mut rows = BTreeMap::new();
    for path in journals(directory)? {
        let Some(contents) = journal::read(&path)? else {
            continue;
        };
        let first = sweep.get_or_insert_with(|| contents.header.clone());
        if (&first.sweep, first.runs) != (&contents.header.sweep, contents.header.runs) {
            return Err(failed(
                "holds journals of different sweeps; move one elsewhere".to_owned(),
            ));
        }
        for (run, row) in contents.rows {
            if rows.get(&run).is_some_and(|other| *other != row) {
                return Err(failed(format!(
                    "two journals disagree on run {run}; were they made by different programs?"
                )));
            }
            rows.insert(run, row);
        }
    }
    let Some(header) = sweep else {
        return Err(failed(
            "holds no journal of a sweep; give the --out of its shards".to_owned(),
        ));
    };
    let missing: Vec<u64> = (0..header.runs).filter(|run| !rows.contains_key(run)).collect();
    if let Some(first) = missing.first() {
        return Err(failed(format!(
            "{} of {} runs are missing, the first is {first}; run the shards again, they go on where they ended",
            missing.len(),
            header.runs
        )));
    }
    let there = rows.len() as u64;
    write(&rows, there, directory, "results")
}

fn journals(directory: &Path) -> Result<Vec<PathBuf>, SweepError> {
    let failed = |source| SweepError::File {
        path: directory.to_owned(),
        source,
    };
    let mut paths = Vec::new();
    for entry in std::fs::read_dir(directory).map_err(failed)? {
        let path = entry.map_err(failed)?.path();
        if path.extension().is_some_and(|extension| extension == "journal") {
            paths.push(path);
        }
    }
    paths.sort();
    Ok(paths)
}

fn write(
    rows: &BTreeMap<u64, Row>,
    resumed: u64,
    directory: &Path,
    name: &str,
) -> Result<Summary, SweepError> {
    let table = Table::of(rows.values());
    let files = [
        directory.join(format!("{name}.csv")),
        directory.join(format!("{name}.parquet")),
    ];
    let parquet = table.to_parquet().map_err(|problem| SweepError::Journal {
        path: files[1].clone(),
        problem,
    })?;
    for (path, bytes) in files.iter().zip([table.to_csv().into_bytes(), parquet]) {
        // Atomic replacement: another process may read the file as soon as it exists.
        let beside = path.with_extension("part");
        std::fs::write(&beside, bytes)
            .and_then(|()| std::fs::rename(&beside, path))
            .map_err(|source| SweepError::File {
                path: path.clone(),
                source,
            })?;
    }
    let has_failed = |row: &&Row| row.0.iter().any(|(name, _)| name == ERROR);
    Ok(Summary {
        rows: rows.len() as u64,
        resumed,
        failed: rows.values().filter(has_failed).count() as u64,
        files,
        table,
    })
}

/// Column of a failed run's error.
const ERROR: &str = "error";
