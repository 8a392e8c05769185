//! The signals that end or reload a daemon.

use tokio::signal::unix::{Signal, SignalKind, signal};

/// The signals that end or reload a daemon.
pub struct Signals {
    end: [Signal; 2],
    reload: Signal,
    is_interrupted: bool,
}

impl Signals {
    /// Handles signals from now on.
    ///
    /// # Errors
    /// The runtime cannot handle signals.
    pub fn new() -> std::io::Result<Self> {
        Ok(Self {
            end: [signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?],
            reload: signal(SignalKind::hangup())?,
            is_interrupted: false,
        })
    }

    /// Waits for a signal to end.
    pub async fn end(&mut self) {
        while self.next().await {}
    }

    /// Returns whether the signal to end came from a person's keyboard.
    #[must_use]
    pub fn is_interrupted(&self) -> bool {
        self.is_interrupted
    }

    /// Waits for a signal; true: reload, false: end.
    pub async fn next(&mut self) -> bool {
        let [terminate, interrupt] = &mut self.end;
        tokio::select! {
            _ = terminate.recv() => false,
            _ = interrupt.recv() => {
                self.is_interrupted = true;
                false
            }
            _ = self.reload.recv() => true,
        }
    }
}
