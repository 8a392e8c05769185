//! Log filter, which can change while a daemon runs.

use std::fmt;
use std::sync::Arc;

use hawser_config::LogFilter;

/// Changes the log filter of the process.
#[derive(Clone, Default)]
pub struct LogLevel(Option<Arc<Set>>);

type Set = dyn Fn(&str) -> anyhow::Result<()> + Send + Sync;

impl fmt::Debug for LogLevel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("LogLevel")
    }
}

impl LogLevel {
    /// Changes the filter through `set`.
    #[must_use]
    pub fn new(set: impl Fn(&str) -> anyhow::Result<()> + Send + Sync + 'static) -> Self {
        Self(Some(Arc::new(set)))
    }

    /// Applies the filter of a configuration; `info` without one.
    ///
    /// # Errors
    /// The filter is invalid.
    pub fn set(&self, filter: Option<&LogFilter>) -> anyhow::Result<()> {
        match &self.0 {
            Some(set) => set(filter.map_or("info", |filter| &filter.0)),
            None => Ok(()),
        }
    }
}
