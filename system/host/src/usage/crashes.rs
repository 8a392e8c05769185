//! Tests a crash and a full disk at each database call that changes a file: acknowledged values are
//! counted exactly once, and the file stays readable.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use hawser_steer::quota::{Date, Used};

use super::store::{Pending, Store};

const CALLS: &str = "write,pwrite64,fsync,fdatasync,unlink,ftruncate,openat";
/// Environment variable with the directory for the process that counts until it is killed.
const DIRECTORY_VARIABLE: &str = "HAWSER_TEST_COUNT_IN";
/// Bytes that each addition counts. Source: our choice, any number, so that the sum shows the
/// number of additions.
const EACH: u64 = 1000;

fn day() -> Date {
    "2026-11-23".parse().unwrap()
}

fn counted(path: &Path) -> u64 {
    // Open for writing, as a daemon does after a crash.
    let store = Store::open(path).unwrap();
    let ledgers = store.load().unwrap();
    ledgers
        .get("lte")
        .map_or(0, |ledger| ledger.used(day(), 1).total())
}

/// Process that the test below starts and kills; it is not a test itself.
#[test]
fn counts_until_it_is_killed() {
    let Some(path) = std::env::var_os(DIRECTORY_VARIABLE) else {
        return;
    };
    let Ok(mut store) = Store::open(Path::new(&path)) else {
        return;
    };
    let used = Used {
        received: EACH,
        sent: 0,
    };
    let pending = Pending::from([(("lte".to_owned(), day()), used)]);
    for _ in 0..3 {
        if store.add(&pending).is_ok() {
            eprintln!("acknowledged");
        }
    }
}

#[test]
fn what_was_acknowledged_is_counted_after_a_crash_at_any_step() {
    if Command::new("strace").arg("--version").output().is_err() {
        hawser_testing::skip("no strace (scripts/needs test installs it)");
        return;
    }
    let mut met = 0;
    for fault in ["signal=KILL:when=", "error=ENOSPC:when="] {
        for call in 1..200 {
            let dir = tempfile::tempdir().unwrap();
            let path = dir.path().join("usage.db");
            let log = dir.path().join("strace.log");
            let log = log.to_str().unwrap();
            let end = if fault.starts_with("error") { "+" } else { "" };
            let inject = format!("inject={CALLS}:{fault}{call}{end}");
            let mut command = Command::new("strace");
            // Only files that belong to the database exist.
            for end in ["", "-journal", "-wal", "-shm"] {
                command.arg("-P").arg(format!("{}{end}", path.display()));
            }
            command.args(["-f", "-o", log, "-e", &format!("trace={CALLS}"), "-e", &inject]);
            command.arg(std::env::current_exe().unwrap());
            command.args([
                "--exact",
                "usage::crashes::counts_until_it_is_killed",
                "--nocapture",
            ]);
            let output = command.env(DIRECTORY_VARIABLE, &path).output().unwrap();
            let is_met = std::fs::read_to_string(log).unwrap().contains(if end.is_empty() {
                "killed by SIGKILL"
            } else {
                "(INJECTED)"
            });
            if !is_met {
                break;
            }
            met += 1;
            let said = String::from_utf8_lossy(&output.stderr).into_owned();
            let acknowledged = said.matches("acknowledged").count() as u64;
            for entry in std::fs::read_dir(dir.path()).unwrap().flatten() {
                let name = entry.file_name().to_string_lossy().into_owned();
                let mode = entry.metadata().unwrap().permissions().mode();
                assert!(
                    name == "strace.log" || mode & 0o077 == 0,
                    "{inject}: {name} {mode:o}"
                );
            }
            let counted = counted(&path) / EACH;
            assert!(
                (acknowledged..=acknowledged + 1).contains(&counted),
                "{inject}: {acknowledged} acknowledged, {counted} counted"
            );
        }
    }
    assert!(met > 20, "{met} faults");
}
