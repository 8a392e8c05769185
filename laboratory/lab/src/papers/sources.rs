//! Hashes of the files on which a result depends.
//!
//! The compiler lists the source files of each program beside it (`hawser.d`, `hawser-lab.d`).
//! Results on real packets depend on the daemons' files and on the testbed; simulated results on
//! the levels below the daemons, the simulator and the experiments. Lines that hold only a comment
//! do not count, and neither do files that only present results. Without the compiler's lists, the
//! bytes of the programs are hashed.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::{Context, anyhow};

use super::journal::Stamp;
use crate::daemon;

/// The files that results depend on.
#[derive(Debug, Default)]
pub(super) struct Sources {
    /// Hash of the files behind results on real packets, without the evaluations.
    real: String,
    /// Hash of the files behind simulated results, without the experiments.
    simulated: String,
    /// Hash of the experiments of each paper, by directory.
    experiments: BTreeMap<String, String>,
}

impl Sources {
    /// Reads the files of the programs in use.
    ///
    /// # Errors
    /// When a file cannot be read, or is newer than the program built from it.
    pub(super) fn read() -> anyhow::Result<Self> {
        let daemons = daemon::program()?;
        let own = std::env::current_exe().context("cannot find this program")?;
        let (Some(of_daemons), Some(of_own)) = (files(&daemons)?, files(&own)?) else {
            let both = hash([bytes(&daemons)?, bytes(&own)?]);
            return Ok(Self {
                real: both.clone(),
                simulated: both,
                experiments: BTreeMap::new(),
            });
        };
        let root = root(&of_own).context("cannot find the sources of this program")?;
        let in_root = |files: &[PathBuf]| {
            let inside = files.iter().filter_map(|file| file.strip_prefix(&root).ok());
            let mut inside: Vec<PathBuf> = inside.map(Path::to_owned).collect();
            inside.sort();
            inside
        };
        let (of_daemons, of_own) = (in_root(&of_daemons), in_root(&of_own));
        let lists = |file: &&PathBuf, of: &[&str]| of.iter().any(|start| file.starts_with(start));
        let shown = |file: &&PathBuf| {
            let text = file.to_string_lossy();
            !text.ends_with(".rs") || PRESENTATION.iter().any(|start| text.starts_with(start))
        };
        let measured = of_daemons.iter().filter(|file| !shown(file));
        let measuring = of_own.iter().filter(|file| lists(file, &TESTBED));
        let scripts = SCRIPTS.map(PathBuf::from);
        let real = measured.chain(measuring).chain(&scripts);
        let below = of_own.iter().filter(|file| lists(file, &SIMULATOR));
        let mut papers: BTreeMap<String, Vec<&PathBuf>> = BTreeMap::new();
        for file in &of_own {
            let paper = file.strip_prefix(PAPERS).ok().and_then(|rest| rest.parent());
            let paper = paper.map(|paper| paper.to_string_lossy().into_owned());
            if let Some(paper) = paper.filter(|paper| !paper.is_empty()) {
                papers.entry(paper).or_default().push(file);
            }
        }
        let experiments = papers.into_iter().map(|(paper, files)| {
            let files = files.into_iter();
            Ok((paper, hash_files(&root, files)?))
        });
        Ok(Self {
            real: hash_files(&root, real)?,
            simulated: hash_files(&root, below)?,
            experiments: experiments.collect::<anyhow::Result<_>>()?,
        })
    }

    /// Returns the stamp of an evaluation on real packets with these source texts.
    pub(super) fn of_real(&self, evaluation: &[&str]) -> Stamp {
        let texts = evaluation.iter().map(|text| without_comments(text).into_bytes());
        Stamp {
            program: self.real.clone(),
            row: hash(texts),
        }
    }

    /// Returns the stamp of a simulated experiment of a paper.
    pub(super) fn of_simulated(&self, paper: &str) -> Stamp {
        let directory = paper.replace('-', "_");
        Stamp {
            program: self.simulated.clone(),
            row: self.experiments.get(&directory).cloned().unwrap_or_default(),
        }
    }
}

/// Returns the source files of a program according to the compiler; `None` without its list.
fn files(program: &Path) -> anyhow::Result<Option<Vec<PathBuf>>> {
    hawser_testing::current_sources(program).map_err(|problem| {
        let program = program.display();
        anyhow!("{program}: {problem}; build both programs first (cargo build -p hawser -p hawser-lab)")
    })
}

fn bytes(file: &Path) -> anyhow::Result<Vec<u8>> {
    std::fs::read(file).with_context(|| format!("cannot read {}", file.display()))
}

/// Returns the directory of the workspace.
fn root(files: &[PathBuf]) -> Option<PathBuf> {
    let mut above = files.iter().flat_map(|file| file.ancestors());
    above
        .find(|dir| dir.join("Cargo.lock").is_file())
        .map(Path::to_owned)
}

fn hash_files<'a>(root: &Path, files: impl Iterator<Item = &'a PathBuf>) -> anyhow::Result<String> {
    let texts = files.map(|file| {
        let text = bytes(&root.join(file))?;
        anyhow::Ok(if file.extension().is_some_and(|extension| extension == "rs") {
            without_comments(&String::from_utf8_lossy(&text)).into_bytes()
        } else {
            text
        })
    });
    Ok(hash(texts.collect::<anyhow::Result<Vec<_>>>()?))
}

fn without_comments(text: &str) -> String {
    let lines = text.lines().map(str::trim);
    let lines = lines.filter(|line| !line.is_empty() && !line.starts_with("//"));
    lines.collect::<Vec<_>>().join("\n")
}

/// Returns the FNV-1a hash, 64 bit: it detects changes, not forgery.
fn hash(texts: impl IntoIterator<Item = Vec<u8>>) -> String {
    let step = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    let bytes = texts.into_iter().flat_map(|text| text.into_iter().chain([0]));
    format!("{:016x}", bytes.fold(0xcbf2_9ce4_8422_2325, step))
}

/// Files of the daemons that do not affect measurements.
const PRESENTATION: [&str; 4] = [
    "program/hawser/src/cli_",
    "system/host/src/dashboard",
    "system/recording/",
    "system/terminal/",
];
/// Directories of the emulated networks.
const TESTBED: [&str; 2] = ["laboratory/netem", "laboratory/testbed"];
/// Scripts that start kernels for evaluations, and the versions of libraries.
const SCRIPTS: [&str; 5] = [
    "Cargo.lock",
    "scripts/radio-world",
    "scripts/uml",
    "scripts/uml-kernel",
    "scripts/uml.d/kernel.config",
];
/// Directories that simulated results depend on.
const SIMULATOR: [&str; 3] = ["core", "laboratory/netem", "laboratory/sim"];
/// Directory of the experiments, with one directory for each paper.
const PAPERS: &str = "laboratory/experiments/src/papers";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_do_not_make_a_result_stale() {
        let before = "//! Module.\nfn a() {\n    // Why.\n    b();\n}\n";
        let after = "//! Another module.\n\nfn a() {\n    b();\n}\n";
        assert_eq!(without_comments(before), without_comments(after));
        assert_ne!(
            without_comments(before),
            without_comments("fn a() {\n    c();\n}\n")
        );
    }

    #[test]
    fn texts_are_not_run_together() {
        let texts = |all: &[&str]| hash(all.iter().map(|text| text.as_bytes().to_vec()));
        assert_ne!(texts(&["ab", "c"]), texts(&["a", "bc"]));
        assert_eq!(texts(&["ab", "c"]).len(), 16);
    }
}
