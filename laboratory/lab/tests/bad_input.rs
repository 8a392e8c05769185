//! Errors in a scenario are rejected with file, line and remedy; nothing is silently ignored.
//!
//! Each file in `tests/bad` has one error; its first line states the expected position and message.

use std::path::{Path, PathBuf};
use std::process::Command;

fn bad_files() -> Vec<PathBuf> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/bad");
    let entries = std::fs::read_dir(directory).expect("a directory");
    let mut files: Vec<PathBuf> = entries.map(|entry| entry.expect("an entry").path()).collect();
    files.retain(|file| file.extension().is_some_and(|extension| extension == "toml"));
    files.sort();
    files
}

#[test]
fn every_bad_file_is_refused_at_its_line_with_a_remedy() {
    let files = bad_files();
    assert!(files.len() >= 10);
    for file in files {
        let text = std::fs::read_to_string(&file).expect("readable");
        let expected = text.lines().next().expect("a line");
        let expected = expected.strip_prefix("# line ").expect("what must be said");
        let (line, words) = expected.split_once(": ").expect("a line and words");
        let output = Command::new(env!("CARGO_BIN_EXE_hawser-lab"))
            .arg("check")
            .arg(&file)
            .output()
            .expect("the program runs");
        let said = String::from_utf8(output.stderr).expect("text");
        assert_eq!(output.status.code(), Some(64), "{said}");
        let start = format!("hawser-lab: {}:{line}: ", file.display());
        assert!(said.starts_with(&start), "{start}\n{said}");
        assert!(said.contains(words), "{words}\n{said}");
        assert_eq!(said.lines().count(), 1, "{said}");
    }
}

#[test]
fn the_same_file_without_its_mistake_is_good() {
    // Otherwise a test above could pass for the wrong reason.
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/bad/misspelt-field.toml");
    let text = std::fs::read_to_string(file)
        .expect("readable")
        .replace("dealy", "delay");
    let directory = tempfile::tempdir().expect("a directory");
    let good = directory.path().join("good.toml");
    std::fs::write(&good, text).expect("written");
    let output = Command::new(env!("CARGO_BIN_EXE_hawser-lab"))
        .arg("check")
        .arg(&good)
        .output()
        .expect("the program runs");
    assert_eq!(
        output.status.code(),
        Some(0),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
}
