//! A thread with an event loop of its own.

use std::future::Future;
use std::io;
use std::pin::Pin;

use tokio::runtime::{Builder, Handle};
use tokio::sync::oneshot;

/// Runs tasks until it is dropped, which ends them and does not wait: it may be dropped on another
/// event loop.
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
    /// No thread or descriptor is left.
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

    /// Calls `make`, which makes something of this thread's event loop.
    pub fn enter<T>(&self, make: impl FnOnce() -> T) -> T {
        let _guard = self.handle.enter();
        make()
    }

    /// Runs a task on the thread, until what is returned is dropped.
    pub fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) -> Task {
        let task: Pin<Box<dyn Future<Output = ()> + Send>> = Box::pin(task);
        Task(self.handle.spawn(task))
    }

    /// Waits here for what the thread's event loop brings. Not to be called from an event loop.
    pub fn block_on<T>(&self, work: impl Future<Output = T>) -> T {
        self.handle.block_on(work)
    }
}

/// A task that ends with this.
#[derive(Debug)]
pub struct Task(pub tokio::task::JoinHandle<()>);

impl Drop for Task {
    fn drop(&mut self) {
        self.0.abort();
    }
}
