//! Commands that must succeed, and daemons that do not outlive their test.

use std::process::{Child, Command, Output, Stdio};

/// Runs a program that must succeed.
///
/// # Panics
/// It cannot be started, or fails.
pub fn run(program: &str, arguments: &[&str]) {
    let mut command = Command::new(program);
    command.args(arguments);
    good(command);
}

/// What a command prints that must succeed.
///
/// # Panics
/// It cannot be started, or fails.
pub fn good(mut command: Command) -> Output {
    let output = command.output().expect("it starts");
    assert!(
        output.status.success(),
        "{command:?}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    output
}

/// A daemon that does not outlive the test. Of one that is started by `ip netns exec`, the process
/// has become the daemon.
#[derive(Debug)]
pub struct Daemon(pub Child);

impl Daemon {
    /// Sends a signal that it ends with, and waits for that.
    ///
    /// # Panics
    /// It is gone.
    pub fn signal(&mut self, signal: &str) {
        self.tell(signal);
        self.0.wait().expect("it ends");
    }

    /// Sends a signal that it lives on with.
    ///
    /// # Panics
    /// It is gone.
    pub fn tell(&self, signal: &str) {
        run("kill", &[signal, &self.0.id().to_string()]);
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Pings that run beside a test.
#[derive(Debug)]
pub struct Pings(Child);

impl Pings {
    /// Starts a `ping`, whose interval, destination and the like are the caller's.
    ///
    /// # Panics
    /// It cannot be started.
    #[must_use]
    pub fn start(mut ping: Command) -> Self {
        ping.arg("-q").stdout(Stdio::piped()).stderr(Stdio::null());
        Self(ping.spawn().expect("it starts"))
    }

    /// Ends them: how many were lost, of how many.
    ///
    /// # Panics
    /// They have said something else.
    #[must_use]
    pub fn end(self) -> (u32, u32) {
        run("kill", &["-INT", &self.0.id().to_string()]);
        let output = self.0.wait_with_output().expect("it ends");
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let number = |word: &str| {
            let before = text.split(word).next().unwrap_or_default();
            let last = before.split_whitespace().next_back().unwrap_or_default();
            last.parse::<u32>().unwrap_or_else(|_| panic!("{text}"))
        };
        let (sent, back) = (number(" packets transmitted"), number(" received"));
        (sent.saturating_sub(back), sent)
    }
}
