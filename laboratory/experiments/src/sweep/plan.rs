//! Runs of a sweep, from its file.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::{Mutex, PoisonError};

use hawser_netem::scenario::{Scenario, ScenarioError};
use serde::Deserialize;
use toml::Spanned;

use super::row::{Cell, Row};
use crate::parallel;

/// A sweep of which every run is a valid scenario.
///
/// Runs are numbered with the seeds innermost and the first axis outermost.
#[derive(Debug)]
pub struct Sweep {
    /// Name.
    pub name: String,
    path: PathBuf,
    base: PathBuf,
    text: String,
    settings: Vec<String>,
    axes: Vec<Axis>,
    seeds: Vec<u64>,
    /// Every file that the scenarios name, as read with the sweep.
    files: BTreeMap<PathBuf, Vec<u8>>,
}

#[derive(Debug)]
struct Axis {
    /// Fields that change together, with a column each.
    fields: Vec<String>,
    /// Values of the axis; each is for all fields, or an array with one per field.
    values: Vec<(toml::Value, usize)>,
}

/// Selects every `count`-th run, starting at the `index`-th. Written `index/count`, counted from 0
/// as in job arrays.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shard {
    /// Index, from 0.
    pub index: u64,
    /// Number of shards.
    pub count: u64,
}

/// Reason why a sweep cannot be run or merged; states location and remedy in one line.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SweepError {
    /// A file cannot be read or written.
    #[error("{}: {source}", path.display())]
    File {
        /// File.
        path: PathBuf,
        /// Error of the system.
        source: io::Error,
    },
    /// Error in the sweep's file.
    #[error("{}:{line}: {problem}", path.display())]
    Invalid {
        /// File.
        path: PathBuf,
        /// Line number, from 1.
        line: usize,
        /// Error, and the correct form.
        problem: String,
    },
    /// The base scenario is invalid.
    #[error(transparent)]
    Scenario(#[from] ScenarioError),
    /// The journals in a directory are inconsistent.
    #[error("{}: {problem}", path.display())]
    Journal {
        /// File or directory.
        path: PathBuf,
        /// Error, and the remedy.
        problem: String,
    },
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawSweep {
    name: String,
    base: Spanned<PathBuf>,
    #[serde(default)]
    set: Vec<String>,
    seeds: Option<Spanned<Seeds>>,
    #[serde(rename = "axis", default)]
    axes: Vec<RawAxis>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Seeds {
    Count(u64),
    List(Vec<u64>),
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawAxis {
    field: Spanned<OneOrMore>,
    values: Spanned<Vec<Spanned<toml::Value>>>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum OneOrMore {
    One(String),
    More(Vec<String>),
}

impl Axis {
    /// Returns the value for one of the fields.
    fn own<'a>(&self, value: &'a toml::Value, at: usize) -> &'a toml::Value {
        let each = value.as_array().filter(|_| self.fields.len() > 1);
        each.and_then(|each| each.get(at)).unwrap_or(value)
    }

    /// Returns whether the fields have different values, which only together identify a point.
    fn is_mixed(&self) -> bool {
        self.fields.len() > 1 && self.values.iter().any(|(value, _)| value.is_array())
    }
}

impl Sweep {
    /// Returns the columns that identify a point: the first of each axis, or all of an axis whose
    /// fields have different values.
    #[must_use]
    pub fn axes(&self) -> Vec<&str> {
        self.axes
            .iter()
            .flat_map(|axis| {
                let columns = if axis.is_mixed() { axis.fields.len() } else { 1 };
                axis.fields.iter().take(columns).map(String::as_str)
            })
            .collect()
    }

    /// Reads a sweep, its base scenario and the files that it names with `read`, and checks every
    /// combination of its axes.
    ///
    /// # Errors
    /// [`SweepError`] with file, line and remedy of the first error.
    pub fn read(
        path: &Path,
        read: &(dyn Fn(&Path) -> io::Result<Vec<u8>> + Sync),
    ) -> Result<Self, SweepError> {
        let source = |path: &Path| {
            let path = path.to_owned();
            move |source| SweepError::File { path, source }
        };
        let read_text = |path: &Path| {
            let text = String::from_utf8(read(path)?);
            text.map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))
        };
        let own = read_text(path).map_err(source(path))?;
        let at = |span: Range<usize>, problem: String| SweepError::Invalid {
            path: path.to_owned(),
            line: line_of(&own, span.start),
            problem,
        };
        let raw: RawSweep = toml::from_str(&own).map_err(|error| {
            let problem = error.message().split_whitespace().collect::<Vec<_>>().join(" ");
            at(error.span().unwrap_or_default(), problem)
        })?;
        let base = path.parent().unwrap_or(Path::new("")).join(raw.base.get_ref());
        let text = read_text(&base).map_err(|error| {
            let problem = format!(
                "base {}: {error}; it is looked for beside this file",
                base.display()
            );
            at(raw.base.span(), problem)
        })?;
        let mut sweep = Self {
            name: raw.name,
            path: path.to_owned(),
            base,
            text,
            settings: raw.set,
            axes: Vec::new(),
            seeds: seeds(raw.seeds, &at)?,
            files: BTreeMap::new(),
        };
        let mut names = BTreeSet::new();
        for raw in raw.axes {
            sweep.axes.push(axis(raw, &own, &at, &mut names)?);
        }
        if sweep.count().is_none_or(|count| count > MAX_RUNS) {
            return Err(at(
                0..0,
                format!("more than {MAX_RUNS} runs; split the sweep in several"),
            ));
        }
        sweep.check(read)?;
        Ok(sweep)
    }

    /// Parses each combination once, on all cores, and stores the files that it reads.
    fn check(&mut self, read: &(dyn Fn(&Path) -> io::Result<Vec<u8>> + Sync)) -> Result<(), SweepError> {
        let files = Mutex::new(BTreeMap::new());
        let kept = |path: &Path| -> io::Result<Vec<u8>> {
            let lock = || files.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some(bytes) = lock().get(path) {
                return Ok(Vec::clone(bytes));
            }
            let bytes = read(path)?;
            lock().insert(path.to_owned(), bytes.clone());
            Ok(bytes)
        };
        Scenario::parse(&self.text, &self.base, &self.settings, &mut |path| kept(path))?;
        let seeds = self.seeds.len() as u64;
        let combinations = (self.runs() / seeds) as usize;
        let checked = parallel::run(combinations, parallel::cores(), &|| false, |n| {
            self.parse(n as u64 * seeds, &mut |path| kept(path)).map(|_| ())
        });
        for result in checked.into_iter().flatten() {
            result.unwrap_or_else(|problem| {
                Err(SweepError::Invalid {
                    path: self.path.clone(),
                    line: 1,
                    problem,
                })
            })?;
        }
        self.files = files.into_inner().unwrap_or_else(PoisonError::into_inner);
        Ok(())
    }

    /// Returns the number of runs.
    #[must_use]
    pub fn runs(&self) -> u64 {
        self.count().unwrap_or(u64::MAX)
    }

    fn count(&self) -> Option<u64> {
        let lengths = self.axes.iter().map(|axis| axis.values.len() as u64);
        lengths
            .chain([self.seeds.len() as u64])
            .try_fold(1u64, u64::checked_mul)
    }

    /// Returns the scenario of one run, and the columns that identify it.
    ///
    /// # Errors
    /// Never for a run below [`Self::runs`], since all have been checked.
    pub fn scenario(&self, run: u64) -> Result<(Row, Scenario), SweepError> {
        self.parse(run, &mut |path| {
            let kept = self.files.get(path).cloned();
            kept.ok_or_else(|| io::Error::from(io::ErrorKind::NotFound))
        })
    }

    fn parse(
        &self,
        run: u64,
        read: &mut dyn FnMut(&Path) -> io::Result<Vec<u8>>,
    ) -> Result<(Row, Scenario), SweepError> {
        let (chosen, seed) = self.choice(run);
        let mut settings = self.settings.clone();
        let mut row = Row::default();
        row.push("run", run as i64);
        row.push("seed", seed as i64);
        let mut lines = BTreeMap::new();
        for (axis, (value, line)) in self.axes.iter().zip(chosen) {
            for (at, field) in axis.fields.iter().enumerate() {
                let value = axis.own(value, at);
                let setting = format!("{field}={value}");
                lines.insert(setting.clone(), *line);
                settings.push(setting);
                row.push(field.clone(), Cell::from(value));
            }
        }
        settings.push(format!("seed={seed}"));
        let scenario = Scenario::parse(&self.text, &self.base, &settings, read);
        scenario.map(|scenario| (row, scenario)).map_err(|error| {
            if let ScenarioError::Override { setting, problem } = &error
                && let Some(line) = lines.get(setting)
            {
                return SweepError::Invalid {
                    path: self.path.clone(),
                    line: *line,
                    problem: format!("{setting}: {problem}"),
                };
            }
            SweepError::Scenario(error)
        })
    }

    /// Returns one value of each axis, and the seed.
    fn choice(&self, run: u64) -> (Vec<&(toml::Value, usize)>, u64) {
        let seeds = self.seeds.len() as u64;
        let mut rest = run / seeds;
        let mut chosen: Vec<_> = self
            .axes
            .iter()
            .rev()
            .map(|axis| {
                let length = axis.values.len() as u64;
                let value = &axis.values[(rest % length) as usize];
                rest /= length;
                value
            })
            .collect();
        chosen.reverse();
        (chosen, self.seeds[(run % seeds) as usize])
    }

    /// Returns a fingerprint of the sweep's content and this program's version, which identifies
    /// sweeps whose rows must not be mixed.
    #[must_use]
    pub fn fingerprint(&self) -> u64 {
        let axes = self.axes.iter().map(|axis| {
            let values: Vec<String> = axis.values.iter().map(|(value, _)| value.to_string()).collect();
            format!("{:?}{values:?}", axis.fields)
        });
        let files = self
            .files
            .iter()
            .map(|(path, bytes)| format!("{path:?}{}", bytes.escape_ascii()));
        let parts = [
            env!("CARGO_PKG_VERSION").to_owned(),
            self.text.clone(),
            format!("{:?}", self.settings),
            format!("{:?}", self.seeds),
        ];
        let parts: Vec<String> = parts.into_iter().chain(axes).chain(files).collect();
        fingerprint(format!("{parts:?}").as_bytes())
    }
}

type At<'a> = dyn Fn(Range<usize>, String) -> SweepError + 'a;

fn seeds(raw: Option<Spanned<Seeds>>, at: &At<'_>) -> Result<Vec<u64>, SweepError> {
    let Some(raw) = raw else {
        return Ok(vec![1]);
    };
    let span = raw.span();
    let seeds = match raw.into_inner() {
        Seeds::Count(count) if count <= MAX_RUNS => (1..=count).collect(),
        Seeds::Count(_) => Vec::new(),
        Seeds::List(list) => list,
    };
    let is_distinct = seeds.iter().collect::<BTreeSet<_>>().len() == seeds.len();
    let is_signed = seeds.iter().all(|seed| i64::try_from(*seed).is_ok());
    if seeds.is_empty() || !is_distinct || !is_signed {
        let problem = format!("write seeds = 5 (1 to {MAX_RUNS}), or a list of different seeds like [1, 7]");
        return Err(at(span, problem));
    }
    Ok(seeds)
}

fn axis(raw: RawAxis, own: &str, at: &At<'_>, names: &mut BTreeSet<String>) -> Result<Axis, SweepError> {
    let span = raw.field.span();
    let fields = match raw.field.into_inner() {
        OneOrMore::One(field) => vec![field],
        OneOrMore::More(fields) => fields,
    };
    for field in &fields {
        if field == "seed" || field == "run" {
            let problem = format!("{field} cannot be an axis; write seeds = [..] beside name");
            return Err(at(span, problem));
        }
        if field.contains('=') || !names.insert(field.clone()) {
            return Err(at(span, format!("{field:?} is no field, or stands in two axes")));
        }
    }
    let values_span = raw.values.span();
    let values: Vec<(toml::Value, usize)> = raw
        .values
        .into_inner()
        .into_iter()
        .map(|value| {
            let line = line_of(own, value.span().start);
            (value.into_inner(), line)
        })
        .collect();
    if fields.is_empty() || values.is_empty() {
        return Err(at(
            values_span,
            "an axis needs a field and at least one value".to_owned(),
        ));
    }
    for (value, _) in &values {
        if let toml::Value::Array(each) = value
            && fields.len() > 1
            && each.len() != fields.len()
        {
            let problem = format!("{value} has {} values for {} fields", each.len(), fields.len());
            return Err(at(values_span, problem));
        }
    }
    Ok(Axis { fields, values })
}

fn line_of(text: &str, offset: usize) -> usize {
    let before = &text.as_bytes()[..offset.min(text.len())];
    before.iter().filter(|byte| **byte == b'\n').count() + 1
}

impl Shard {
    /// The whole sweep.
    pub const ALL: Self = Self { index: 0, count: 1 };

    /// Returns whether the shard includes this run.
    #[must_use]
    pub fn holds(self, run: u64) -> bool {
        run % self.count == self.index
    }
}

impl FromStr for Shard {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let parts = text.split_once('/');
        parts
            .and_then(|(index, count)| Some((index.parse().ok()?, count.parse().ok()?)))
            .filter(|(index, count)| index < count)
            .map(|(index, count)| Self { index, count })
            .ok_or_else(|| "write index/count, counted from 0: 0/8 to 7/8".to_owned())
    }
}

/// Maximum number of rows; larger tables need a database. Source: our choice; ten million rows take
/// some gigabytes and, at a second each, four months.
const MAX_RUNS: u64 = 10_000_000;

/// FNV-1a, 64 bit: detects incomplete lines and other sweeps, not forgery.
pub(super) fn fingerprint(bytes: &[u8]) -> u64 {
    let step = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, step)
}
