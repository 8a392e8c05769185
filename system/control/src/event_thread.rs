//! Thread with its own event loop.

use std::future::Future;
use std::io;
use std::pin::Pin;

use tokio::runtime::{Builder, Handle};
use tokio::sync::oneshot;

/// Thread that runs tasks until it is dropped. Dropping ends the tasks without waiting, so it may
/// be dropped on another event loop.
#[derive(Debug)]
pub struct EventThread {
    handle: Handle,
    /// Ends the thread when it is dropped.
    _alive: oneshot::Sender<()>,
}

impl EventThread {
    /// Starts the thread.
    ///
    /// # Errors
    /// If no thread or descriptor is available.
    pub fn start(name: &str) -> io::Result<Self> {
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let handle = runtime.handle().clone();
        let (alive, ended) = oneshot::channel::<()>();
        std::thread::Builder::new().name(name.to_owned()).spawn(move || {
            let _ = runtime.block_on(ended);
            runtime.shutdown_background();
        })?;
        Ok(Self {
            handle,
            _alive: alive,
        })
    }

    /// Calls `make` in the context of this thread's event loop.
    pub fn enter<T>(&self, make: impl FnOnce() -> T) -> T {
        let _guard = self.handle.enter();
        make()
    }

    /// Runs a task on the thread until the returned handle is dropped.
    pub fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) -> Task {
        let task: Pin<Box<dyn Future<Output = ()> + Send>> = Box::pin(task);
        Task(self.handle.spawn(task))
    }

    /// Waits for the result of work in the thread's event loop. Must not be called from an event
    /// loop.
    pub fn block_on<T>(&self, work: impl Future<Output = T>) -> T {
        self.handle.block_on(work)
    }
}

/// Task that ends when dropped.
#[derive(Debug)]
pub struct Task(pub tokio::task::JoinHandle<()>);

impl Drop for Task {
    fn drop(&mut self) {
        self.0.abort();
    }
}
