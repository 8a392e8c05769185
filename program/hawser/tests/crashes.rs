//! Crashes at every step of a write, and a full disk at every write: no acknowledged data is lost,
//! no incomplete file causes errors, and files with secrets are readable by their owner only at all
//! times.
//!
//! The real commands are killed before each system call that changes files (by strace), and at each
//! written byte (by a limit of file sizes); the same calls and bytes also fail as on a full disk.
#![allow(clippy::unwrap_used, reason = "a test")]

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use hawser_linux::netns::Namespace;

/// System calls that change files.
const CALLS: &str = "write,pwrite64,fsync,fdatasync,rename,unlink,ftruncate,mkdir,fchmod";
/// Upper bound of the size of truncated files.
const MAX_BYTES: usize = 4000;

/// Injected fault, and its position.
#[derive(Clone, Copy, Debug)]
enum Fault {
    /// The process is killed before this one of its [`CALLS`].
    KilledAtCall(usize),
    /// This one of its calls and all later ones fail because the disk is full.
    FullAtCall(usize),
    /// The process is killed when a file would exceed this length.
    KilledAtByte(usize),
    /// Writes beyond this length of a file fail.
    FullAtByte(usize),
}

/// Directory of a hub.
struct Place(tempfile::TempDir);

impl Place {
    fn new() -> Option<Self> {
        for program in ["strace", "prlimit"] {
            if Command::new(program).arg("--version").output().is_err() {
                hawser_testing::skip(format!("no {program} (scripts/needs test installs it)"));
                return None;
            }
        }
        Some(Self(tempfile::tempdir().unwrap()))
    }

    fn dir(&self) -> PathBuf {
        self.0.path().join("dir")
    }

    fn arguments(&self, words: &[&str]) -> Vec<String> {
        let mut all: Vec<_> = words.iter().map(|word| (*word).to_owned()).collect();
        all.extend(["--dir".to_owned(), self.dir().display().to_string()]);
        all
    }

    /// Runs the command without a fault. Returns its output.
    fn good(&self, words: &[&str]) -> String {
        let mut command = Command::new(env!("CARGO_BIN_EXE_hawser"));
        let output = command.args(self.arguments(words)).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{words:?}: {said}");
        String::from_utf8(output.stdout).unwrap()
    }

    /// Runs the command with a fault; `None` if the command ended before the fault occurred.
    fn with(&self, fault: Fault, words: &[&str]) -> Option<Output> {
        faulty(Command::new("env"), self.0.path(), fault, &self.arguments(words))
    }

    /// Returns all files by their path.
    fn files(&self) -> Vec<PathBuf> {
        let (mut found, mut waiting) = (Vec::new(), vec![self.dir()]);
        while let Some(directory) = waiting.pop() {
            for entry in std::fs::read_dir(directory).into_iter().flatten().flatten() {
                if entry.path().is_dir() {
                    waiting.push(entry.path());
                }
                found.push(entry.path());
            }
        }
        found.sort();
        found
    }

    fn assert_private(&self, when: &str) {
        for path in self.files() {
            let name = path.file_name().unwrap().to_string_lossy().into_owned();
            let holds_nothing = name.starts_with("hub.toml") || name == ".lock";
            let mode = std::fs::metadata(&path).unwrap().permissions().mode();
            assert!(
                holds_nothing || mode & 0o077 == 0,
                "{when}: {name} has mode {mode:o}"
            );
        }
    }

    fn clients(&self) -> Vec<String> {
        let listed: serde_json::Value = serde_json::from_str(&self.good(&["hub", "list", "--json"])).unwrap();
        let clients = listed["clients"].as_array().unwrap();
        clients
            .iter()
            .map(|client| client["name"].as_str().unwrap().to_owned())
            .collect()
    }
}

/// Runs `start hawser WORDS` with a fault.
fn faulty(mut start: Command, place: &Path, fault: Fault, words: &[String]) -> Option<Output> {
    let log = place.join("strace.log");
    let log = log.to_str().unwrap();
    let hawser = env!("CARGO_BIN_EXE_hawser");
    let traced = |what: &str| -> Vec<String> {
        let inject = format!("inject={CALLS}:{what}");
        [
            "strace",
            "-f",
            "-o",
            log,
            "-e",
            &format!("trace={CALLS}"),
            "-e",
            &inject,
            hawser,
        ]
        .map(ToOwned::to_owned)
        .to_vec()
    };
    let limited = |bytes: usize, first: &str| -> Vec<String> {
        let script = format!("{first} exec prlimit --core=0 --fsize={bytes} {hawser} \"$@\"");
        ["sh", "-c", &script, "sh"].map(ToOwned::to_owned).to_vec()
    };
    start.args(match fault {
        Fault::KilledAtCall(call) => traced(&format!("signal=KILL:when={call}")),
        Fault::FullAtCall(call) => traced(&format!("error=ENOSPC:when={call}+")),
        Fault::KilledAtByte(bytes) => limited(bytes, ""),
        Fault::FullAtByte(bytes) => limited(bytes, "trap '' XFSZ;"),
    });
    let output = start.args(words).output().unwrap();
    let is_met = match fault {
        Fault::FullAtCall(_) => std::fs::read_to_string(log).unwrap().contains("(INJECTED)"),
        Fault::KilledAtCall(_) | Fault::KilledAtByte(_) | Fault::FullAtByte(_) => !output.status.success(),
    };
    is_met.then_some(output)
}

/// Injects every fault until one no longer occurs, and calls `check` after each.
///
/// Every sixteenth byte is tried, or all if `HAWSER_EVERY_BYTE` is set, which takes minutes.
fn every_fault(mut run: impl FnMut(Fault) -> Option<Output>, mut check: impl FnMut(Fault, Output)) {
    let is_every = std::env::var_os("HAWSER_EVERY_BYTE").is_some();
    let step = if is_every { 1 } else { 16 };
    for kind in [Fault::KilledAtCall, Fault::FullAtCall] {
        let mut met = 0;
        for call in 1.. {
            assert!(call < 500, "no end of calls");
            let Some(output) = run(kind(call)) else { break };
            check(kind(call), output);
            met += 1;
        }
        assert!(met >= 2, "{met} calls");
    }
    for kind in [Fault::KilledAtByte, Fault::FullAtByte] {
        let mut bytes = 0;
        while let Some(output) = run(kind(bytes)) {
            assert!(bytes < MAX_BYTES, "no end of bytes");
            check(kind(bytes), output);
            bytes += step;
        }
    }
}

#[test]
fn a_hub_is_made_whole_or_can_be_made_again() {
    let Some(place) = Place::new() else { return };
    let init = ["hub", "init", "--endpoint", "198.51.100.1:4430"];
    every_fault(
        |fault| {
            let _ = std::fs::remove_dir_all(place.dir());
            place.with(fault, &init)
        },
        |fault, output| {
            place.assert_private(&format!("{fault:?}"));
            let is_said = output.status.success();
            if !is_said && !place.dir().join("hub.toml").exists() {
                place.good(&init);
            }
            place.good(&["hub", "invite", "alice"]);
            assert_eq!(place.clients(), ["alice"], "{fault:?}");
        },
    );
}

/// Creates a hub with a client, the initial state of each fault.
fn hub_with_alice() -> Option<(Place, Template)> {
    let place = Place::new()?;
    place.good(&["hub", "init", "--endpoint", "198.51.100.1:4430"]);
    place.good(&["hub", "invite", "alice"]);
    let template = Template::of(&place.dir());
    Some((place, template))
}

/// Directory that is copied for each fault.
struct Template {
    kept: tempfile::TempDir,
    dir: PathBuf,
}

impl Template {
    fn of(dir: &Path) -> Self {
        let kept = tempfile::tempdir().unwrap();
        copy(dir, &kept.path().join("kept"));
        Self {
            kept,
            dir: dir.to_owned(),
        }
    }

    fn restore(&self) {
        std::fs::remove_dir_all(&self.dir).unwrap();
        copy(&self.kept.path().join("kept"), &self.dir);
    }
}

fn copy(from: &Path, to: &Path) {
    let copied = Command::new("cp").arg("-a").args([from, to]).status();
    assert!(copied.unwrap().success());
}

#[test]
fn an_invitation_that_was_printed_is_kept_and_no_other_is_lost() {
    let Some((place, template)) = hub_with_alice() else {
        return;
    };
    let key = std::fs::read(place.dir().join("hub.key")).unwrap();
    every_fault(
        |fault| {
            template.restore();
            place.with(fault, &["hub", "invite", "bob"])
        },
        |fault, output| {
            place.assert_private(&format!("{fault:?}"));
            let is_printed = output.stdout.ends_with(b"\n");
            let clients = place.clients();
            assert!(clients.contains(&"alice".to_owned()), "{fault:?}");
            assert!(!is_printed || clients.contains(&"bob".to_owned()), "{fault:?}");
            assert_eq!(std::fs::read(place.dir().join("hub.key")).unwrap(), key);
            // The remaining files do not affect later commands.
            place.good(&["hub", "invite", "carol"]);
        },
    );
}

#[test]
fn a_revocation_that_was_said_is_kept_and_hits_no_other() {
    let Some((place, _)) = hub_with_alice() else {
        return;
    };
    place.good(&["hub", "invite", "bob"]);
    let template = Template::of(&place.dir());
    every_fault(
        |fault| {
            template.restore();
            place.with(fault, &["hub", "revoke", "alice"])
        },
        |fault, output| {
            place.assert_private(&format!("{fault:?}"));
            let clients = place.clients();
            assert!(clients.contains(&"bob".to_owned()), "{fault:?}");
            let is_said = output.status.success();
            assert!(!is_said || !clients.contains(&"alice".to_owned()), "{fault:?}");
            if clients.contains(&"alice".to_owned()) {
                place.good(&["hub", "revoke", "alice"]);
            }
            assert_eq!(place.clients(), ["bob"], "{fault:?}");
        },
    );
}

/// Kill switch in a namespace, with a table of another program.
struct Closed {
    place: Place,
    namespace: Namespace,
}

impl Closed {
    fn new() -> Option<Self> {
        if !hawser_testing::require(hawser_linux::process::is_root(), "needs root") {
            return None;
        }
        let place = Place::new()?;
        std::fs::create_dir_all(place.dir()).unwrap();
        std::fs::write(place.dir().join("client.toml"), "kill_switch = true\n").unwrap();
        let closed = Self {
            place,
            namespace: Namespace::new().unwrap(),
        };
        let mut theirs = closed.namespace.command("nft");
        theirs.arg("add table inet theirs; add chain inet theirs kept");
        assert!(theirs.status().unwrap().success());
        Some(closed)
    }

    fn run_dir(&self) -> PathBuf {
        self.place.0.path().join("run")
    }

    fn arguments(&self, command: &str) -> Vec<String> {
        let mut all = self.place.arguments(&[command]);
        all.extend(["--run-dir".to_owned(), self.run_dir().display().to_string()]);
        all
    }

    fn with(&self, fault: Fault, command: &str) -> Option<Output> {
        let start = self.namespace.command("env");
        faulty(start, self.place.0.path(), fault, &self.arguments(command))
    }

    fn good(&self, command: &str) {
        let mut good = self.namespace.command(env!("CARGO_BIN_EXE_hawser"));
        let output = good.args(self.arguments(command)).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{command}: {said}");
    }

    fn tables(&self) -> String {
        let output = self.namespace.command("nft").args(["list", "tables"]).output();
        String::from_utf8(output.unwrap().stdout).unwrap()
    }

    fn journal(&self) -> String {
        std::fs::read_to_string(self.run_dir().join("undo.json")).unwrap_or_default()
    }

    /// Checks that the closed switch is in the journal, and that `down` removes it and nothing
    /// else.
    fn assert_undone_by_down(&self, fault: Fault) {
        let (tables, journal) = (self.tables(), self.journal());
        let is_closed = tables.contains("hawser_kill");
        assert!(
            !is_closed || journal.contains("hawser_kill"),
            "{fault:?}: {journal}"
        );
        for entry in std::fs::read_dir(self.run_dir()).into_iter().flatten().flatten() {
            let mode = entry.metadata().unwrap().permissions().mode();
            let name = entry.file_name().to_string_lossy().into_owned();
            assert!(
                name == "hawser.lock" || mode & 0o077 == 0,
                "{fault:?}: {name} {mode:o}"
            );
        }
        self.good("down");
        assert_eq!(self.tables(), "table inet theirs\n", "{fault:?}");
        assert_eq!(self.journal(), "", "{fault:?}");
    }
}

#[test]
fn a_change_is_in_the_journal_before_it_is_made() {
    let Some(closed) = Closed::new() else { return };
    every_fault(
        |fault| closed.with(fault, "lockdown"),
        |fault, output| {
            let is_closed = closed.tables().contains("hawser_kill");
            assert!(!output.status.success() || is_closed, "{fault:?}");
            closed.assert_undone_by_down(fault);
        },
    );
}

#[test]
fn undoing_that_is_interrupted_is_taken_up_again() {
    let Some(closed) = Closed::new() else { return };
    every_fault(
        |fault| {
            closed.good("lockdown");
            closed.with(fault, "down")
        },
        |fault, output| {
            let is_closed = closed.tables().contains("hawser_kill");
            assert!(!output.status.success() || !is_closed, "{fault:?}");
            closed.assert_undone_by_down(fault);
        },
    );
}
