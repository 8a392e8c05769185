//! Sets of scenarios that are compiled into the program, and the lookup of a scenario by name or by
//! file.

use std::path::{Path, PathBuf};

use hawser_netem::scenario::{Scenario, ScenarioError};
use hawser_testbed::read_scenario;

/// A directory of scenarios.
#[derive(Debug)]
pub(crate) struct Set {
    /// Name below `scenarios/`.
    pub(crate) directory: &'static str,
    /// Name and text of each.
    pub(crate) scenarios: &'static [(&'static str, &'static str)],
    /// Trace file for scenarios that refer to one.
    pub(crate) trace: &'static str,
    /// Command that lists the scenarios.
    pub(crate) listed_by: &'static str,
}

/// Builds the `scenarios` of a [`Set`] from their names.
#[macro_export]
macro_rules! committed {
    ($directory:literal: $($name:literal),* $(,)?) => {
        &[$(($name, include_str!(concat!("../../../scenarios/", $directory, "/", $name, ".toml")))),*]
    };
}

impl Set {
    /// Returns the requested scenarios, by name or file, or the whole set if none is requested.
    /// `settings` replace fields of each.
    ///
    /// # Errors
    /// When a scenario is unknown or invalid; the message is one line for the user.
    pub(crate) fn find(
        &self,
        asked: &[String],
        settings: &[String],
    ) -> Result<Vec<(String, Scenario)>, String> {
        if asked.is_empty() {
            return self
                .scenarios
                .iter()
                .map(|found| self.read(found, settings))
                .collect();
        }
        let find = |label: &String| match self.scenarios.iter().find(|(name, _)| name == label) {
            Some(found) => self.read(found, settings),
            None if !Path::new(label).exists() => Err(format!(
                "{label}: neither a file nor a committed scenario; {} prints those",
                self.listed_by
            )),
            None => read_scenario(Path::new(label), settings)
                .map(|scenario| (label.clone(), scenario))
                .map_err(|error| error.to_string()),
        };
        asked.iter().map(find).collect()
    }

    /// Returns a line per scenario: name and description.
    pub(crate) fn list(&self) -> String {
        let line = |(name, text): &(&str, &str)| {
            let about = text.lines().next().unwrap_or_default();
            format!("{name:<22} {}\n", about.trim_start_matches("# "))
        };
        self.scenarios.iter().map(line).collect()
    }

    fn read(&self, (name, text): &(&str, &str), settings: &[String]) -> Result<(String, Scenario), String> {
        let path = PathBuf::from(format!("scenarios/{}/{name}.toml", self.directory));
        let read: Result<Scenario, ScenarioError> =
            Scenario::parse(text, &path, settings, &mut |_| Ok(self.trace.into()));
        read.map(|scenario| ((*name).to_owned(), scenario))
            .map_err(|error| error.to_string())
    }
}

/// Checks that a set holds every file of its directory and that each is legal.
#[cfg(test)]
pub(crate) fn assert_complete(set: &Set) {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../scenarios")
        .join(set.directory);
    let mut files: Vec<String> = std::fs::read_dir(directory)
        .expect("a directory")
        .map(|entry| entry.expect("an entry").path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "toml"))
        .map(|path| path.file_stem().expect("a name").to_string_lossy().into_owned())
        .collect();
    files.sort();
    let mut names: Vec<&str> = set.scenarios.iter().map(|(name, _)| *name).collect();
    names.sort_unstable();
    assert_eq!(files, names);
    assert_eq!(set.find(&[], &[]).expect("all are legal").len(), names.len());
}
