//! Lock of state that requests share.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Locks a state, even if a task has panicked while it held the lock.
pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
