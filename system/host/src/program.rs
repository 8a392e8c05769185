//! Other programs run by a daemon: finds them, starts them so that they cannot outlive the daemon,
//! and ends them.

use std::ffi::{OsStr, OsString};
use std::io::{self, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};

use anyhow::Context;
use hawser_linux::netns::bind_to_this_thread;
use hawser_linux::process::Process;
use hawser_linux::system::{System, SystemError};

/// Returns the path of a program. A daemon's `PATH` may lack the directories of system programs.
pub fn find(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let own = std::env::split_paths(&path);
    let system = ["/usr/sbin", "/sbin", "/usr/bin", "/bin"].map(PathBuf::from);
    own.chain(system)
        .map(|directory| directory.join(program))
        .find(|path| {
            let found = std::fs::metadata(path);
            found.is_ok_and(|file| file.is_file() && file.permissions().mode() & 0o111 != 0)
        })
}

/// Returns the prefix of a command that runs it with the privileges of a user and group, with these
/// variables (`NAME=value`) and few others.
pub fn as_user(id: u32, group: u32, variables: impl IntoIterator<Item = String>) -> Vec<String> {
    let mut words = ["setpriv", "--init-groups", "--reset-env"]
        .map(str::to_owned)
        .to_vec();
    words.extend([format!("--reuid={id}"), format!("--regid={group}")]);
    words.extend(["--", "env"].map(str::to_owned));
    words.extend(variables);
    words
}

/// A running program, which is recorded in the journal until it has ended.
pub struct Started {
    child: Child,
    process: Process,
}

impl Started {
    /// Starts a program with these arguments, and these variables in addition to the daemon's. It
    /// is recorded in the journal before it runs, and ends with this thread if the kernel supports
    /// that.
    ///
    /// # Errors
    /// The program cannot be started, or the journal cannot be written; then nothing runs.
    pub fn start(
        system: &mut System,
        words: &[OsString],
        variables: &[(&str, String)],
    ) -> anyhow::Result<Self> {
        Self::start_with(system, words, variables, Stdio::null())
    }

    /// Starts Hawser's own program, whose log is part of the daemon's log.
    ///
    /// # Errors
    /// As [`start`](Self::start).
    pub fn start_own(system: &mut System, words: &[OsString]) -> anyhow::Result<Self> {
        Self::start_with(system, words, &[], Stdio::inherit())
    }

    fn start_with(
        system: &mut System,
        words: &[OsString],
        variables: &[(&str, String)],
        log: Stdio,
    ) -> anyhow::Result<Self> {
        let name = words.first().map_or(OsStr::new(""), OsString::as_os_str);
        let cannot = || format!("cannot start {}", name.display());
        let mut command = Command::new("/bin/sh");
        command
            .args(["-c", "read -r go && exec \"$@\" </dev/null", "sh"])
            .args(words)
            .envs(variables.iter().map(|(name, value)| (name, value)))
            .current_dir("/")
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(log)
            // Some programs have child processes, which end with their process group.
            .process_group(0);
        bind_to_this_thread(&mut command);
        let mut child = command.spawn().with_context(cannot)?;
        let begun = Process::of(child.id()).with_context(cannot).and_then(|process| {
            system.note_process(process)?;
            // It also ends if the daemon ends before.
            if let Some(mut stdin) = child.stdin.take() {
                stdin.write_all(b"go\n").with_context(cannot)?;
            }
            Ok(process)
        });
        match begun {
            Ok(process) => Ok(Self { child, process }),
            Err(error) => {
                let _ = child.kill();
                let _ = child.wait();
                Err(error)
            }
        }
    }

    /// Returns the exit status if the program has ended.
    pub fn ended(&mut self) -> Option<io::Result<ExitStatus>> {
        self.child.try_wait().transpose()
    }

    /// Removes a program that has ended by itself from the journal.
    ///
    /// # Errors
    /// The journal cannot be written.
    pub fn forget(self, system: &mut System) -> Result<(), SystemError> {
        system.forget_process(self.process)
    }

    /// Ends the program.
    ///
    /// # Errors
    /// The journal cannot be written.
    pub async fn end(mut self, system: &mut System) -> Result<(), SystemError> {
        let ended = system.end_process(self.process).await;
        let _ = self.child.wait();
        ended
    }
}
