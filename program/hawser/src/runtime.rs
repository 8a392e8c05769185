//! The event loop of a daemon, and of commands that wait.

use anyhow::Context;

/// One thread: packets have threads of their own.
pub(crate) fn runtime() -> anyhow::Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("cannot start the event loop")
}
