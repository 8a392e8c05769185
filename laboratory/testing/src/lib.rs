//! Requirements of tests: rights, kernel features and programs, and the handling of missing ones.
//!
//! A skipped test counts as passed for the test runner, which hides that nothing was checked. So a
//! test reports a missing requirement with [`skip`], and [`REQUIRE_ALL`] or [`LIST`] determine the
//! consequence. A test that runs the program of another crate requests it with [`require_sibling`].
#![forbid(unsafe_code)]

mod command;
mod kernel;
pub mod postgres;
mod program;

use std::fmt::Display;
use std::io::Write;
use std::panic::Location;
use std::process::{Child, ExitStatus};
use std::time::{Duration, Instant};

pub use command::{Daemon, Pings, good, run};
pub use kernel::{Kernel, require_kernel};
pub use postgres::Postgres;
pub use program::{current_sources, dhcp_server, require_sibling};

/// Environment variable, set to `1` on a machine that must meet all requirements. A skip then fails
/// its test.
pub const REQUIRE_ALL: &str = "HAWSER_TEST_REQUIRE_ALL";

/// Environment variable with a file to which each skip appends a line, for the list at the end of
/// `scripts/test`.
pub const LIST: &str = "HAWSER_TEST_SKIPS";

/// Time after which a wait in a test fails.
///
/// It does not specify a required speed: it is a hundred times what an idle machine needs, so that
/// tests pass on a busy machine. Rates and times are measured by benchmarks and in virtual time.
pub const GIVE_UP: Duration = Duration::from_secs(120);

/// Waits for the end of a process, and returns how it ended.
///
/// # Panics
/// If it does not end within [`GIVE_UP`], or is not a child of the caller.
#[track_caller]
pub fn wait_for_end(process: &mut Child) -> ExitStatus {
    let deadline = Instant::now() + GIVE_UP;
    loop {
        if let Some(status) = process.try_wait().expect("a child") {
            return status;
        }
        assert!(Instant::now() < deadline, "the process does not end");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Reports that the calling test cannot run here, and the reason; the caller returns after it.
///
/// # Panics
/// If [`REQUIRE_ALL`] is `1`, which promises that the machine meets all requirements.
#[track_caller]
pub fn skip(reason: impl Display) {
    let line = line(&reason, Location::caller());
    assert!(
        std::env::var_os(REQUIRE_ALL).is_none_or(|value| value != "1"),
        "{line} ({REQUIRE_ALL} is set, so everything that tests need must be here)"
    );
    eprintln!("skipped: {line}");
    if let Some(list) = std::env::var_os(LIST)
        && let Err(error) = append(list.as_ref(), &line)
    {
        panic!("cannot note a skip in {}: {error}", list.display());
    }
}

/// Skips the calling test with [`skip`] unless `condition` holds; the result is `condition`.
#[track_caller]
#[must_use = "the test must return where this is false"]
pub fn require(condition: bool, reason: impl Display) -> bool {
    if !condition {
        skip(reason);
    }
    condition
}

/// Skips the calling test with [`skip`] unless `dnsmasq` is installed and can run; returns whether
/// it can.
#[track_caller]
#[must_use = "the test must return where this is false"]
pub fn require_dnsmasq() -> bool {
    require_program(&["dnsmasq"]) && require_users("dnsmasq")
}

/// Skips the calling test with [`skip`] unless processes may become other users; returns whether
/// they may. A user namespace without a range of ids forbids it (user_namespaces(7),
/// `/proc/PID/setgroups`). `what` needs it.
#[track_caller]
#[must_use = "the test must return where this is false"]
pub fn require_users(what: &str) -> bool {
    let groups = std::fs::read_to_string("/proc/self/setgroups").unwrap_or_default();
    require(
        groups.trim() != "deny",
        format!("no right to become another user, which {what} needs (newuidmap and /etc/subuid give it)"),
    )
}

/// Skips the calling test with [`skip`] unless this process is root of the machine, not of a user
/// namespace; returns whether it is. `what` needs it: eBPF programs and modules of the kernel.
#[track_caller]
#[must_use = "the test must return where this is false"]
pub fn require_root_of_machine(what: &str) -> bool {
    // Only the machine's own namespace maps every user.
    let map = std::fs::read_to_string("/proc/self/uid_map").unwrap_or_default();
    let is_machine = map.split_whitespace().eq(["0", "0", "4294967295"]);
    require(is_machine, format!("{what} needs root of the machine"))
}

/// Skips the calling test with [`skip`] unless one of `programs` is installed; returns whether one
/// is.
///
/// Directories of superuser programs are searched in addition to the caller's `PATH`.
#[track_caller]
#[must_use = "the test must return where this is false"]
pub fn require_program(programs: &[&str]) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let directories: Vec<_> = std::env::split_paths(&path)
        .chain(["/usr/sbin".into(), "/sbin".into()])
        .collect();
    let is_installed = |program: &&str| directories.iter().any(|dir| dir.join(program).is_file());
    let names = programs.join(" or ");
    require(
        programs.iter().any(is_installed),
        format!("no {names} (scripts/needs test installs it)"),
    )
}

fn line(reason: &dyn Display, at: &Location<'_>) -> String {
    let reason = reason.to_string().replace('\n', " ");
    format!("{}:{}: {reason}", at.file(), at.line())
}

/// Writes one line at a time, so that the lines of concurrent tests do not mix.
fn append(list: &std::path::Path, line: &str) -> std::io::Result<()> {
    let mut file = std::fs::File::options().append(true).create(true).open(list)?;
    file.write_all(format!("{line}\n").as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Command, Output};

    /// Runs the test below in a separate process with only these variables.
    fn skipping(variables: &[(&str, &std::path::Path)]) -> Output {
        let mut command = Command::new(std::env::current_exe().expect("this program has a path"));
        command.args(["--exact", "tests::skips_when_asked", "--nocapture"]);
        command
            .env_remove(REQUIRE_ALL)
            .env_remove(LIST)
            .env("SKIP_NOW", "1");
        command.envs(variables.iter().copied());
        command.output().expect("this program starts again")
    }

    #[test]
    fn skips_when_asked() {
        if std::env::var_os("SKIP_NOW").is_some() {
            skip("no anchor\nhere");
        }
    }

    #[test]
    fn a_skip_passes_and_is_listed() {
        let dir = tempfile::tempdir().expect("a directory");
        let list = dir.path().join("skips");
        for _ in 0..2 {
            assert!(skipping(&[(LIST, &list)]).status.success());
        }
        let listed = std::fs::read_to_string(&list).expect("the list exists");
        let lines: Vec<_> = listed.lines().collect();
        assert_eq!(lines.len(), 2, "{listed}");
        assert!(lines[0].ends_with("no anchor here"), "{listed}");
        assert!(lines[0].contains("lib.rs:"), "{listed}");
    }

    #[test]
    fn a_skip_fails_where_everything_must_be_there() {
        let output = skipping(&[(REQUIRE_ALL, "1".as_ref())]);
        assert!(!output.status.success());
        assert!(skipping(&[(REQUIRE_ALL, "0".as_ref())]).status.success());
    }
}
