//! The event loop of a daemon, and of commands that wait.

use anyhow::Context;

/// Creates a runtime with one thread: packets are processed by separate threads.
pub(crate) fn runtime() -> anyhow::Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("cannot start the event loop")
}
