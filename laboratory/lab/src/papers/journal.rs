//! Results of earlier runs, one line of JSON each.
//!
//! A line is added when a run ends, so an interruption loses only unfinished runs. If several lines
//! describe one run, the last one counts; [`Journal::tidy`] removes the others and sorts the rest,
//! so that the file changes little in a repository. A truncated last line is dropped on opening.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions, TryLockError};
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use hawser_experiments::reproduce;
use serde::{Deserialize, Serialize};

use crate::real;

/// Identity of a run.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(super) struct Key {
    pub(super) world: World,
    /// Name of the evaluation or experiment.
    pub(super) setup: String,
    /// Number of the run, from 1.
    pub(super) seed: u32,
}

/// World of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub(crate) enum World {
    /// The sans-IO machines in virtual time; everything else is a model.
    Simulator,
    /// Daemons, kernel and real packets.
    Real,
}

/// Origin of a result. A result with another stamp is stale.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Stamp {
    /// Hash of the measured programs and of the measuring code.
    pub(super) program: String,
    /// Hash of the evaluation.
    pub(super) row: String,
}

/// A finished run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Entry {
    #[serde(flatten)]
    pub(super) key: Key,
    #[serde(flatten)]
    pub(super) stamp: Stamp,
    /// End of the run. Units: seconds since 1970.
    pub(super) at: u64,
    /// Duration of the run in real time. Units: seconds.
    pub(super) seconds: f64,
    pub(super) found: Found,
}

/// Result of a run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Found {
    Real(Vec<real::Measured>),
    Simulated(Vec<reproduce::Measured>),
    /// Reason why the run ended without a result.
    Failed(String),
}

/// Contents of a journal.
#[derive(Debug, Default)]
pub(super) struct Results(BTreeMap<Key, Entry>);

/// A journal file and its contents.
#[derive(Debug)]
pub(super) struct Journal {
    path: PathBuf,
    results: Results,
    file: File,
    /// Lock of the directory, so that the file itself can be replaced.
    _lock: File,
}

impl Journal {
    /// Opens the file, or creates it.
    ///
    /// # Errors
    /// When another process has the journal open, a line is invalid, or the file system fails.
    pub(super) fn open(path: &Path) -> anyhow::Result<Self> {
        let lock = lock(path)?;
        let text = match std::fs::read_to_string(path) {
            Ok(text) => text,
            Err(error) if error.kind() == ErrorKind::NotFound => String::new(),
            Err(error) => return Err(error).with_context(|| format!("cannot read {}", path.display())),
        };
        let whole = whole_lines(&text);
        if whole.len() < text.len() {
            std::fs::write(path, whole).with_context(|| format!("cannot write {}", path.display()))?;
        }
        Ok(Self {
            path: path.to_owned(),
            results: Results::parse(path, whole)?,
            file: appending(path)?,
            _lock: lock,
        })
    }

    /// Adds the result of a run, and replaces an earlier one.
    ///
    /// # Errors
    /// When the file system fails.
    pub(super) fn add(&mut self, entry: Entry) -> anyhow::Result<()> {
        let line = line(&entry)?;
        self.file
            .write_all(line.as_bytes())
            .with_context(|| format!("cannot write {}", self.path.display()))?;
        self.results.0.insert(entry.key.clone(), entry);
        Ok(())
    }

    /// Rewrites the file, sorted and without replaced results.
    ///
    /// # Errors
    /// When the file system fails; the file is then unchanged.
    pub(super) fn tidy(&mut self) -> anyhow::Result<()> {
        let lines: Vec<String> = self.results.0.values().map(line).collect::<Result<_, _>>()?;
        let new = self.path.with_extension("new");
        std::fs::write(&new, lines.concat())
            .and_then(|()| std::fs::rename(&new, &self.path))
            .with_context(|| format!("cannot write {}", self.path.display()))?;
        self.file = appending(&self.path)?;
        Ok(())
    }

    pub(super) fn results(&self) -> &Results {
        &self.results
    }
}

impl Results {
    /// Reads an existing journal.
    ///
    /// # Errors
    /// When it cannot be read, or a line is invalid.
    pub(super) fn read(path: &Path) -> anyhow::Result<Self> {
        let text =
            std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
        Self::parse(path, whole_lines(&text))
    }

    fn parse(path: &Path, text: &str) -> anyhow::Result<Self> {
        let entries = text.lines().enumerate().map(|(number, line)| {
            let entry: Entry = serde_json::from_str(line).with_context(|| {
                format!(
                    "{}, line {}: no result of a run; remove the line",
                    path.display(),
                    number + 1
                )
            })?;
            anyhow::Ok((entry.key.clone(), entry))
        });
        Ok(Self(entries.collect::<anyhow::Result<_>>()?))
    }

    /// Yields the results of an evaluation, in the order of their seeds.
    pub(super) fn of(&self, world: World, setup: &str) -> impl Iterator<Item = &Entry> {
        let key = |seed| Key {
            world,
            setup: setup.to_owned(),
            seed,
        };
        self.0.range(key(0)..=key(u32::MAX)).map(|(_, entry)| entry)
    }

    pub(super) fn get(&self, key: &Key) -> Option<&Entry> {
        self.0.get(key)
    }
}

/// Returns the complete lines of a file.
fn whole_lines(text: &str) -> &str {
    &text[..text.rfind('\n').map_or(0, |end| end + 1)]
}

fn line(entry: &Entry) -> anyhow::Result<String> {
    Ok(serde_json::to_string(entry)? + "\n")
}

fn appending(path: &Path) -> anyhow::Result<File> {
    OpenOptions::new()
        .create(true)
        .append(true)
        .open(path)
        .with_context(|| format!("cannot write {}", path.display()))
}

fn lock(path: &Path) -> anyhow::Result<File> {
    let directory = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        Some(_) | None => Path::new("."),
    };
    let lock = File::open(directory).with_context(|| format!("cannot open {}", directory.display()))?;
    match lock.try_lock() {
        Ok(()) => Ok(lock),
        Err(TryLockError::WouldBlock) => bail!(
            "another process writes results in {}; wait for it, or choose another --results",
            directory.display()
        ),
        Err(TryLockError::Error(error)) => {
            Err(error).with_context(|| format!("cannot lock {}", directory.display()))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(seed: u32, reason: &str) -> Entry {
        Entry {
            key: Key {
                world: World::Real,
                setup: "H-fig3".to_owned(),
                seed,
            },
            stamp: Stamp::default(),
            at: 1_800_000_000,
            seconds: 12.5,
            found: Found::Failed(reason.to_owned()),
        }
    }

    #[test]
    fn the_last_result_of_a_run_counts_and_a_cut_line_is_dropped() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("results.jsonl");
        let mut journal = Journal::open(&path).expect("new");
        for entry in [entry(2, "first"), entry(1, "only"), entry(2, "second")] {
            journal.add(entry).expect("written");
        }
        drop(journal);
        let mut text = std::fs::read_to_string(&path).expect("a file");
        assert_eq!(text.lines().count(), 3);
        text.push_str("{\"world\":\"re");
        std::fs::write(&path, text).expect("written");
        let mut journal = Journal::open(&path).expect("the same");
        let entries: Vec<Entry> = journal.results().of(World::Real, "H-fig3").cloned().collect();
        assert_eq!(entries, [entry(1, "only"), entry(2, "second")]);
        assert_eq!(journal.results().of(World::Simulator, "H-fig3").count(), 0);
        journal.tidy().expect("written");
        journal.add(entry(3, "third")).expect("written");
        let text = std::fs::read_to_string(&path).expect("a file");
        let seeds: Vec<bool> = ["\"seed\":1", "\"seed\":2", "\"seed\":3"]
            .into_iter()
            .zip(text.lines())
            .map(|(seed, line)| line.contains(seed))
            .collect();
        assert_eq!(seeds, [true; 3], "{text}");
    }

    #[test]
    fn one_process_writes_and_damage_names_its_line() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("results.jsonl");
        let journal = Journal::open(&path).expect("new");
        let problem = Journal::open(&path).expect_err("locked").to_string();
        assert!(problem.contains("another process"), "{problem}");
        drop(journal);
        let good = line(&entry(1, "a")).expect("plain data");
        std::fs::write(&path, format!("{good}nonsense\n{good}")).expect("written");
        let problem = format!("{:#}", Journal::open(&path).expect_err("damaged"));
        assert!(problem.contains("line 2"), "{problem}");
    }
}
