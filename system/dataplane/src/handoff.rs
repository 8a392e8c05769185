//! What is handed to a thread of the data plane: orders of the control side, and relays of the
//! other thread.
//!
//! Both wait in queues with a bound. An order must not be lost, so whoever gives one waits while
//! there are too many: the threads of the data plane take all that there is each time they wake,
//! and never wait for anybody who gives orders. A relay may be lost: what may not (where a path's
//! packets come from, which key the peer uses) is offered again with the peer's next packet. The
//! word to stop is always taken.
//!
//! ```text
//!   control side --give--> [ orders: 1,024 ] --+
//!                                              +--take--> the thread      stop: from anybody, at any time
//!   other thread --offer-> [ relays: 16,384 ] -+
//! ```
//!
//! How it is shown that nothing is lost and nobody sleeps for ever: `tests/handoff.rs` runs this
//! file under a model checker.

use super::sync::{Arc, Condvar, Mutex, MutexGuard};

/// Orders that may wait: opening every path of a hundred sessions.
pub(super) const ORDERS: usize = 1024;
/// Relays that may wait, 4 MB: what sixty sessions may send at once
/// (`hawser_proto::ingress::Ingress`).
pub(super) const RELAYS: usize = 16_384;

/// Lets the thread that takes notice that there is something.
pub(super) trait Wake {
    /// Wakes it, or keeps it from falling asleep.
    fn wake(&self);
}

/// Both queues, and the word to stop.
struct State<O, R> {
    orders: Vec<O>,
    relays: Vec<R>,
    refused: u64,
    stopped: bool,
    /// Nobody will take anything any more.
    closed: bool,
}

struct Shared<O, R, W> {
    state: Mutex<State<O, R>>,
    /// There is room for orders again, or there never will be.
    room: Condvar,
    waker: W,
    bounds: (usize, usize),
}

/// The giving end: for any thread.
pub(super) struct Giver<O, R, W>(Arc<Shared<O, R, W>>);

/// The taking end: closes when it is dropped.
pub(super) struct Taker<O, R, W: Wake>(Arc<Shared<O, R, W>>);

/// Stops a thread when it is dropped, however that comes about.
pub(super) struct StopsOther<O, R, W: Wake>(pub(super) Giver<O, R, W>);

/// Both ends. `bounds`: orders and relays that may wait.
pub(super) fn handoff<O, R, W: Wake>(waker: W, bounds: (usize, usize)) -> (Giver<O, R, W>, Taker<O, R, W>) {
    let state = State {
        orders: Vec::new(),
        relays: Vec::new(),
        refused: 0,
        stopped: false,
        closed: false,
    };
    let shared = Arc::new(Shared {
        state: Mutex::new(state),
        room: Condvar::new(),
        waker,
        bounds,
    });
    (Giver(Arc::clone(&shared)), Taker(shared))
}

impl<O, R, W> Shared<O, R, W> {
    fn lock(&self) -> MutexGuard<'_, State<O, R>> {
        self.state.lock().expect("no thread panics while it holds this")
    }
}

impl<O, R, W> Clone for Giver<O, R, W> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<O, R, W: Wake> Giver<O, R, W> {
    /// Gives an order and wakes the thread; waits while too many wait. After the end of the thread,
    /// orders go nowhere.
    pub(super) fn give(&self, order: O) {
        let mut state = self.0.lock();
        while state.orders.len() >= self.0.bounds.0 && !state.closed {
            state = self
                .0
                .room
                .wait(state)
                .expect("no thread panics while it holds this");
        }
        if state.closed {
            return;
        }
        state.orders.push(order);
        drop(state);
        self.0.waker.wake();
    }

    /// Offers a relay, without waking the thread ([`Self::wake`]); false when it was not taken.
    pub(super) fn offer(&self, relay: R) -> bool {
        self.hand(relay).is_ok()
    }

    /// Offers a relay as [`Self::offer`] does, and gives it back where it was not taken.
    pub(super) fn hand(&self, relay: R) -> Result<(), R> {
        let mut state = self.0.lock();
        if state.relays.len() < self.0.bounds.1 && !state.closed {
            state.relays.push(relay);
            return Ok(());
        }
        state.refused += 1;
        Err(relay)
    }

    /// Wakes the thread, once for many relays.
    pub(super) fn wake(&self) {
        self.0.waker.wake();
    }

    /// Tells the thread to end.
    pub(super) fn stop(&self) {
        self.0.lock().stopped = true;
        self.0.waker.wake();
    }
}

impl<O, R, W: Wake> Taker<O, R, W> {
    /// Takes all that waits, in the order in which it was given; the lists must be empty. Returns
    /// whether the thread is to go on.
    pub(super) fn take(&self, orders: &mut Vec<O>, relays: &mut Vec<R>) -> bool {
        let mut state = self.0.lock();
        std::mem::swap(&mut state.orders, orders);
        std::mem::swap(&mut state.relays, relays);
        let goes_on = !state.stopped;
        drop(state);
        if !orders.is_empty() {
            self.0.room.notify_all();
        }
        goes_on
    }

    /// Relays that were not taken.
    pub(super) fn refused(&self) -> u64 {
        self.0.lock().refused
    }

    /// What the giving end wakes.
    pub(super) fn waker(&self) -> &W {
        &self.0.waker
    }
}

impl<O, R, W: Wake> Drop for Taker<O, R, W> {
    fn drop(&mut self) {
        let mut state = self.0.lock();
        state.closed = true;
        // Orders may hold answers that somebody waits for.
        let left = (
            std::mem::take(&mut state.orders),
            std::mem::take(&mut state.relays),
        );
        drop(state);
        drop(left);
        self.0.room.notify_all();
    }
}

impl<O, R, W: Wake> Drop for StopsOther<O, R, W> {
    fn drop(&mut self) {
        self.0.stop();
    }
}
