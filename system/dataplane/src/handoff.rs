//! Queue to a thread of the data plane: orders of the control side, and relays of the other thread.
//!
//! Both wait in bounded queues. An order must not be lost, so its sender waits while the queue is
//! full: the threads of the data plane take the whole queue each time they wake, and never wait for
//! a sender. A relay may be lost: essential ones (the source of a path's packets, the key that the
//! peer uses) are offered again with the peer's next packet. The request to stop is always
//! accepted.
//!
//! ```text
//!   control side --give--> [ orders: 1,024 ] --+
//!                                              +--take--> the thread      stop: from anybody, at any time
//!   other thread --offer-> [ relays: 16,384 ] -+
//! ```
//!
//! `tests/handoff.rs` runs this file under a model checker, which verifies that nothing is lost and
//! no thread sleeps forever.

use super::sync::{Arc, Condvar, Mutex, MutexGuard};

/// Orders that may wait: opening every path of a hundred sessions. Source: our choice; with less
/// room, the control side waits more often, more only takes memory.
pub(super) const ORDERS: usize = 1024;
/// Relays that may wait, 4 MB. Source: what sixty-four sessions may send at once (`AT_ONCE` of
/// `core/proto/src/ingress/allowance.rs`, 256).
pub(super) const RELAYS: usize = 16_384;

/// Waker of the receiving thread.
pub(super) trait Wake {
    /// Wakes the thread, or prevents its next sleep.
    fn wake(&self);
}

/// Both queues, and the request to stop.
struct State<O, R> {
    orders: Vec<O>,
    relays: Vec<R>,
    refused: u64,
    stopped: bool,
    /// Set when the receiver was dropped.
    closed: bool,
}

struct Shared<O, R, W> {
    state: Mutex<State<O, R>>,
    /// Condition that the queue accepts orders again, or is closed.
    room: Condvar,
    waker: W,
    bounds: (usize, usize),
}

/// Sending end, for any thread.
pub(super) struct Giver<O, R, W>(Arc<Shared<O, R, W>>);

/// Receiving end, which closes the queue when dropped.
pub(super) struct Taker<O, R, W: Wake>(Arc<Shared<O, R, W>>);

/// Guard that stops a thread when dropped, for any reason.
pub(super) struct StopsOther<O, R, W: Wake>(pub(super) Giver<O, R, W>);

/// Creates both ends. `bounds` are the maximum numbers of waiting orders and relays.
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
    /// Sends an order and wakes the thread; waits while the queue is full. After the end of the
    /// thread, orders are dropped.
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

    /// Offers a relay, without waking the thread ([`Self::wake`]). Returns false if it was not
    /// accepted.
    pub(super) fn offer(&self, relay: R) -> bool {
        self.hand(relay).is_ok()
    }

    /// Offers a relay as [`Self::offer`] does, and returns it if it was not accepted.
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

    /// Asks the thread to end.
    pub(super) fn stop(&self) {
        self.0.lock().stopped = true;
        self.0.waker.wake();
    }
}

impl<O, R, W: Wake> Taker<O, R, W> {
    /// Takes all waiting orders and relays, in their order; the lists must be empty. Returns
    /// whether the thread must continue.
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

    /// Returns the number of rejected relays.
    pub(super) fn refused(&self) -> u64 {
        self.0.lock().refused
    }

    /// Returns the waker of the receiver.
    pub(super) fn waker(&self) -> &W {
        &self.0.waker
    }
}

impl<O, R, W: Wake> Drop for Taker<O, R, W> {
    fn drop(&mut self) {
        let mut state = self.0.lock();
        state.closed = true;
        // Orders may contain the senders of awaited answers.
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
