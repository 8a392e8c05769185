//! Journal of a shard: one row per line, each with a checksum.
//!
//! A line is 16 hexadecimal digits of its checksum, a space, JSON, and a line feed. The first line
//! identifies the sweep and the shard. Only the holder of the file's lock writes. On opening, lines
//! with a wrong checksum are discarded (after a kill, the incomplete last one): a new file without
//! them atomically replaces the old one.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::plan::{Shard, SweepError, fingerprint};
use super::row::Row;

/// Contents of the first line.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Header {
    version: u32,
    /// [`super::Sweep::fingerprint`], in hexadecimal.
    pub(super) sweep: String,
    /// Number of runs of the whole sweep.
    pub(super) runs: u64,
    shard: [u64; 2],
}

#[derive(Serialize, Deserialize)]
struct Line {
    run: u64,
    row: Row,
}

/// A journal to which rows are added.
#[derive(Debug)]
pub(super) struct Journal {
    path: PathBuf,
    file: File,
    /// Lock, held as long as the journal is open.
    _lock: File,
}

/// Contents of a journal.
#[derive(Debug)]
pub(super) struct Contents {
    pub(super) header: Header,
    pub(super) rows: BTreeMap<u64, Row>,
    is_whole: bool,
}

impl Header {
    pub(super) fn new(fingerprint: u64, runs: u64, shard: Shard) -> Self {
        Self {
            version: VERSION,
            sweep: format!("{fingerprint:016x}"),
            runs,
            shard: [shard.index, shard.count],
        }
    }
}

impl Journal {
    /// Opens or creates the journal of a shard, and returns the runs in it.
    ///
    /// # Errors
    /// [`SweepError`] if it belongs to another sweep, another process writes it, or the file system
    /// fails.
    pub(super) fn open(path: &Path, header: &Header) -> Result<(Self, Vec<u64>), SweepError> {
        let failed = |source| SweepError::File {
            path: path.to_owned(),
            source,
        };
        let lock = lock(path)?;
        let before = read(path)?;
        let (rows, is_whole) = match before {
            Some(before) if before.header == *header => (before.rows, before.is_whole),
            Some(_) => {
                return Err(SweepError::Journal {
                    path: path.to_owned(),
                    problem: "holds rows of another sweep, or of another version of it; choose another --out, or remove it".to_owned(),
                });
            }
            None => (BTreeMap::new(), false),
        };
        if !is_whole {
            rewrite(path, header, &rows).map_err(failed)?;
        }
        let file = OpenOptions::new().append(true).open(path).map_err(failed)?;
        let journal = Self {
            path: path.to_owned(),
            file,
            _lock: lock,
        };
        Ok((journal, rows.into_keys().collect()))
    }

    /// Adds a row, in one write.
    ///
    /// # Errors
    /// When the file system fails; an incomplete row is dropped when the journal is next opened.
    pub(super) fn append(&mut self, run: u64, row: Row) -> Result<(), SweepError> {
        let line = line(&Line { run, row });
        self.file
            .write_all(line.as_bytes())
            .map_err(|source| SweepError::File {
                path: self.path.clone(),
                source,
            })
    }

    /// Waits until the rows are on stable storage.
    ///
    /// # Errors
    /// When the file system fails.
    pub(super) fn sync(&self) -> Result<(), SweepError> {
        self.file.sync_data().map_err(|source| SweepError::File {
            path: self.path.clone(),
            source,
        })
    }
}

/// Reads a journal; `None` if it does not exist, or ends within its first line.
///
/// # Errors
/// When it cannot be read, or is not a journal.
pub(super) fn read(path: &Path) -> Result<Option<Contents>, SweepError> {
    let bytes = match std::fs::read(path) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(source) => {
            return Err(SweepError::File {
                path: path.to_owned(),
                source,
            });
        }
    };
    let mut lines = bytes.split_inclusive(|byte| *byte == b'\n');
    let first = lines.next().unwrap_or_default();
    let Some(header) = payload(first).and_then(|json| serde_json::from_str::<Header>(json).ok()) else {
        if bytes.len() > first.len() || first.ends_with(b"\n") {
            return Err(SweepError::Journal {
                path: path.to_owned(),
                problem: "is no journal of a sweep, or its first line is damaged; remove it".to_owned(),
            });
        }
        return Ok(None);
    };
    if header.version != VERSION {
        return Err(SweepError::Journal {
            path: path.to_owned(),
            problem: format!("has version {}; this program writes {VERSION}", header.version),
        });
    }
    let mut contents = Contents {
        header,
        rows: BTreeMap::new(),
        is_whole: true,
    };
    for bytes in lines {
        let line = payload(bytes).and_then(|json| serde_json::from_str::<Line>(json).ok());
        match line {
            Some(Line { run, row }) if run < contents.header.runs && !contents.rows.contains_key(&run) => {
                contents.rows.insert(run, row);
            }
            Some(_) | None => contents.is_whole = false,
        }
    }
    Ok(Some(contents))
}

fn lock(path: &Path) -> Result<File, SweepError> {
    let lock_path = path.with_extension("lock");
    let failed = |source| SweepError::File {
        path: lock_path.clone(),
        source,
    };
    let lock = OpenOptions::new()
        .create(true)
        .append(true)
        .open(&lock_path)
        .map_err(failed)?;
    match lock.try_lock() {
        Ok(()) => Ok(lock),
        Err(TryLockError::WouldBlock) => Err(SweepError::Journal {
            path: path.to_owned(),
            problem: "another process runs this shard; wait for it, or choose another --out".to_owned(),
        }),
        Err(TryLockError::Error(source)) => Err(failed(source)),
    }
}

fn rewrite(path: &Path, header: &Header, rows: &BTreeMap<u64, Row>) -> io::Result<()> {
    let mut text = line(header);
    for (run, row) in rows {
        text += &line(&Line {
            run: *run,
            row: row.clone(),
        });
    }
    let beside = path.with_extension("new");
    let mut file = File::create(&beside)?;
    file.write_all(text.as_bytes())?;
    file.sync_all()?;
    std::fs::rename(&beside, path)
}

fn line(value: &impl Serialize) -> String {
    let json = serde_json::to_string(value).expect("rows are plain data");
    format!("{:016x} {json}\n", fingerprint(json.as_bytes()))
}

/// Returns the JSON of a line with a correct checksum.
fn payload(line: &[u8]) -> Option<&str> {
    let text = std::str::from_utf8(line.strip_suffix(b"\n")?).ok()?;
    let (sum, json) = text.split_at_checked(16)?;
    let json = json.strip_prefix(' ')?;
    (u64::from_str_radix(sum, 16).ok()? == fingerprint(json.as_bytes())).then_some(json)
}

/// Version of the format. Source: the first version.
const VERSION: u32 = 1;
