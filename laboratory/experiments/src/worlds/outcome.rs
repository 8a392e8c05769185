//! Results of worlds as JSON lines, with which an interrupted run resumes.

use std::collections::BTreeMap;
use std::fs::OpenOptions;
use std::io::{self, Write};
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::judge::Judgement;

/// Result of one world.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Outcome {
    /// Seed of the world.
    pub seed: u64,
    /// Features of the world.
    pub features: Vec<String>,
    /// Measures and violations.
    #[serde(flatten)]
    pub judgement: Judgement,
    /// Approximate processor time of the world. Units: seconds.
    pub seconds: f64,
}

/// Appends a result in one write.
///
/// # Errors
/// When the file system fails.
pub fn append(path: &Path, outcome: &Outcome) -> io::Result<()> {
    let line = serde_json::to_string(outcome)? + "\n";
    let mut file = OpenOptions::new().create(true).append(true).open(path)?;
    file.write_all(line.as_bytes())
}

/// Reads the results of a file by seed, the last of each; an incomplete line is skipped.
///
/// # Errors
/// When the file system fails; a missing file contains no results.
pub fn read(path: &Path) -> io::Result<BTreeMap<u64, Outcome>> {
    let text = match std::fs::read_to_string(path) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(BTreeMap::new()),
        Err(error) => return Err(error),
    };
    let outcomes = text
        .lines()
        .filter_map(|line| serde_json::from_str::<Outcome>(line).ok());
    Ok(outcomes.map(|outcome| (outcome.seed, outcome)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_are_read_back_but_for_a_line_cut_short() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("worlds.jsonl");
        assert!(read(&path).expect("no file is no result").is_empty());
        for seed in [3, 1] {
            let outcome = Outcome {
                seed,
                features: vec!["nat".to_owned()],
                judgement: Judgement::default(),
                seconds: 1.5,
            };
            append(&path, &outcome).expect("writable");
        }
        let mut file = OpenOptions::new().append(true).open(&path).expect("there");
        file.write_all(b"{\"seed\":9,\"feat").expect("writable");
        let seeds: Vec<u64> = read(&path).expect("readable").into_keys().collect();
        assert_eq!(seeds, [1, 3]);
    }
}
