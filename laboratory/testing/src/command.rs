//! Commands that must succeed, and daemons that do not outlive their test.

use std::process::{Child, Command, Output, Stdio};

/// Runs a program that must succeed.
///
/// # Panics
/// If it cannot be started, or fails.
pub fn run(program: &str, arguments: &[&str]) {
    let mut command = Command::new(program);
    command.args(arguments);
    good(command);
}

/// Runs a command that must succeed, and returns its output.
///
/// # Panics
/// If it cannot be started, or fails.
pub fn good(mut command: Command) -> Output {
    let output = command.output().expect("it starts");
    assert!(
        output.status.success(),
        "{command:?}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    output
}

/// Daemon that is killed at the end of the test. If `ip netns exec` starts it, the process becomes
/// the daemon.
#[derive(Debug)]
pub struct Daemon(pub Child);

impl Daemon {
    /// Sends a signal that ends the daemon, and waits for its end.
    ///
    /// # Panics
    /// If the daemon has already ended.
    pub fn signal(&mut self, signal: &str) {
        self.send_signal(signal);
        self.0.wait().expect("it ends");
    }

    /// Sends a signal that does not end the daemon.
    ///
    /// # Panics
    /// If the daemon has already ended.
    pub fn send_signal(&self, signal: &str) {
        run("kill", &[signal, &self.0.id().to_string()]);
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Pings that run concurrently with a test.
#[derive(Debug)]
pub struct Pings(Child);

impl Pings {
    /// Starts a `ping` with the caller's interval, destination and other options.
    ///
    /// # Panics
    /// If it cannot be started.
    #[must_use]
    pub fn start(mut ping: Command) -> Self {
        ping.arg("-q").stdout(Stdio::piped()).stderr(Stdio::null());
        Self(ping.spawn().expect("it starts"))
    }

    /// Ends the pings. Returns the numbers of lost and of sent ones.
    ///
    /// # Panics
    /// If the output cannot be parsed.
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
