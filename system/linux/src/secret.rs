//! Memory of secrets: overwritten before anybody else gets it.
//!
//! For values whose own type does not wipe itself, such as the keys of the `ring` crate. Scope: the
//! value where it lies, and what making it left on the stack of the thread that made it.
//! Limitations: registers, and pages that were swapped out.

use std::mem::MaybeUninit;
use std::ops::Deref;
use std::sync::atomic::{Ordering, compiler_fence};

/// A value that stays at one place on the heap, which is overwritten with zeros once the value is
/// dropped.
///
/// What lies behind pointers in the value is the value's own affair.
pub struct Wiped<T>(Box<MaybeUninit<T>>);

impl<T> Wiped<T> {
    /// Makes a value, and overwrites the part of the stack that this took.
    #[must_use]
    pub fn new(make: impl FnOnce() -> T) -> Self {
        let wiped = place(make);
        scrub_stack();
        wiped
    }
}

/// In a frame of its own, which [`scrub_stack`] meets again.
#[inline(never)]
fn place<T>(make: impl FnOnce() -> T) -> Wiped<T> {
    Wiped(Box::new(MaybeUninit::new(make())))
}

/// More than the frames of an AEAD's key schedule take.
const SCRUBBED: usize = 16 * 1024;

#[inline(never)]
fn scrub_stack() {
    wipe(&mut MaybeUninit::<[u8; SCRUBBED]>::uninit());
}

/// Overwrites a place with zeros, however useless that looks to the compiler.
fn wipe<T>(place: &mut MaybeUninit<T>) {
    let bytes = place.as_mut_ptr().cast::<u8>();
    for at in 0..size_of::<T>() {
        // SAFETY: `at` is below the size of the place, which is borrowed mutably; no value is
        // expected there any more.
        unsafe { bytes.add(at).write_volatile(0) };
    }
    compiler_fence(Ordering::SeqCst);
}

impl<T> Deref for Wiped<T> {
    type Target = T;

    fn deref(&self) -> &T {
        // SAFETY: `place` put a value there, and only `drop` takes it away.
        unsafe { self.0.assume_init_ref() }
    }
}

impl<T> Drop for Wiped<T> {
    fn drop(&mut self) {
        // SAFETY: the value is there, and nobody sees the place after this.
        unsafe { self.0.assume_init_drop() };
        wipe(&mut self.0);
    }
}

impl<T> std::fmt::Debug for Wiped<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Wiped").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;
    use std::rc::Rc;

    #[test]
    fn a_place_is_all_zeros_afterwards() {
        let mut place = MaybeUninit::new([0x5a_u8; 100]);
        wipe(&mut place);
        // SAFETY: `wipe` wrote every byte.
        assert_eq!(unsafe { place.assume_init() }, [0; 100]);
    }

    /// Says what lies at its place when it is dropped: the value, not zeros, and once.
    struct Watched(u64, Rc<Cell<Vec<u64>>>);

    impl Watched {
        fn number(&self) -> u64 {
            self.0
        }
    }

    impl Drop for Watched {
        fn drop(&mut self) {
            let mut seen = self.1.take();
            seen.push(self.0);
            self.1.set(seen);
        }
    }

    #[test]
    fn a_value_is_dropped_once_and_before_it_is_wiped() {
        let seen = Rc::new(Cell::default());
        let value = Wiped::new(|| Watched(7, Rc::clone(&seen)));
        assert_eq!(Watched::number(&value), 7);
        drop(value);
        assert_eq!(seen.take(), [7]);
    }
}
