//! Tasks of the event loop.

use std::future::Future;
use std::pin::Pin;

use tokio::task::JoinHandle;

/// Runs a task on this thread's event loop, as `tokio::spawn` does.
///
/// It is boxed: what tokio has for each kind of task is compiled once for each kind of result, and
/// not for each task. With some hundred of them that is a quarter of a megabyte of the program.
#[expect(clippy::disallowed_methods, reason = "here it is boxed")]
pub fn spawn<T: Send + 'static>(task: impl Future<Output = T> + Send + 'static) -> JoinHandle<T> {
    let task: Pin<Box<dyn Future<Output = T> + Send>> = Box::pin(task);
    tokio::spawn(task)
}
