//! Memory of secrets, which is overwritten before it is reused.
//!
//! For values whose type does not wipe itself, such as the keys of the `ring` crate. Scope: the
//! value's own memory, and the stack that its creation used. Limitations: registers, and pages that
//! were swapped out.

use std::mem::MaybeUninit;
use std::ops::Deref;
use std::sync::atomic::{Ordering, compiler_fence};

/// A value with a constant address on the heap, which is overwritten with zeros once the value is
/// dropped.
///
/// Memory behind pointers in the value is not overwritten.
pub struct Wiped<T>(Box<MaybeUninit<T>>);

impl<T> Wiped<T> {
    /// Creates a value, and overwrites the part of the stack that this used.
    #[must_use]
    pub fn new(make: impl FnOnce() -> T) -> Self {
        let wiped = in_own_frame(make);
        scrub_stack();
        wiped
    }
}

/// Creates the value in a separate stack frame, which [`scrub_stack`] overwrites.
#[inline(never)]
fn in_own_frame<T>(make: impl FnOnce() -> T) -> Wiped<T> {
    Wiped(Box::new(MaybeUninit::new(make())))
}

/// Bytes of stack that are overwritten, more than the frames of an AEAD's key schedule take.
/// Source: our choice, many times the 240 bytes of a key schedule of AES-256 (FIPS 197 section 5.2:
/// 60 words), for the frames of its callers; more only takes time when a key is made.
const SCRUBBED: usize = 16 * 1024;

#[inline(never)]
fn scrub_stack() {
    wipe(&mut MaybeUninit::<[u8; SCRUBBED]>::uninit());
}

/// Overwrites memory with zeros, even if the compiler considers that useless.
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
        // SAFETY: `in_own_frame` put a value there, and only `drop` takes it away.
        unsafe { self.0.assume_init_ref() }
    }
}

impl<T> Drop for Wiped<T> {
    fn drop(&mut self) {
        // SAFETY: the value is initialised, and no reference to it remains.
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

    /// Records its memory when it is dropped: the value, not zeros, and once.
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
