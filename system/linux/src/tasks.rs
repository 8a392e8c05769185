//! Tasks of the event loop.

use std::future::Future;
use std::pin::Pin;

use tokio::task::JoinHandle;

/// Runs a task on this thread's event loop, as `tokio::spawn` does.
///
/// The task is boxed, so tokio's generic code is compiled once per result type, and not once per
/// task. With some hundred tasks this saves 0.25 MB of the program.
#[expect(clippy::disallowed_methods, reason = "here it is boxed")]
pub fn spawn<T: Send + 'static>(task: impl Future<Output = T> + Send + 'static) -> JoinHandle<T> {
    let task: Pin<Box<dyn Future<Output = T> + Send>> = Box::pin(task);
    tokio::spawn(task)
}
