//! How the allocator of the C library treats memory that is free again.

/// Large blocks are mapped one by one, so that what a session held goes back to the system when it
/// ends.
///
/// By default glibc raises the size from which it does so to that of the largest block that was
/// freed (mallopt(3), `M_MMAP_THRESHOLD`). Tables of sessions then lie between small blocks that
/// stay: 700 sessions one after another, with 17 MB in use, left a hub with 60 MB, and with this
/// 38 MB. No block is allocated for a packet, so the calls to the kernel cost nothing on its way.
pub fn return_large_blocks() {
    #[cfg(target_env = "gnu")]
    // SAFETY: a parameter that mallopt knows, with a value in its range. A refusal changes nothing.
    unsafe {
        libc::mallopt(libc::M_MMAP_THRESHOLD, LARGE_BYTES);
    }
}

/// From here on a block is large. Half of glibc's default.
#[cfg(target_env = "gnu")]
const LARGE_BYTES: libc::c_int = 64 * 1024;

/// Gives what lies free between blocks in use back to the system, on a thread of its own.
///
/// The C library keeps it otherwise: a client that had carried 200 flows over lines of 20 and 10
/// Mbit/s kept 9.6 MB of its own, and keeps 4.2 MB with this (`malloc_trim(3)`; musl gives free
/// memory back by itself). A walk took 9 ms for a heap of 80 MB of which little was in use: too
/// long for a thread that carries packets. A call while another walks does nothing.
pub fn give_back() {
    #[cfg(target_env = "gnu")]
    {
        use std::sync::atomic::{AtomicBool, Ordering};
        static WALKING: AtomicBool = AtomicBool::new(false);
        if WALKING.swap(true, Ordering::AcqRel) {
            return;
        }
        let walk = || {
            // SAFETY: the call takes the allocator's own locks and moves no block in use.
            unsafe { libc::malloc_trim(0) };
            WALKING.store(false, Ordering::Release);
        };
        let thread = std::thread::Builder::new()
            .name("memory".into())
            .stack_size(STACK);
        if thread.spawn(walk).is_err() {
            WALKING.store(false, Ordering::Release);
        }
    }
}

/// Of the thread that walks over the heap: four times the least that a thread may have
/// (`PTHREAD_STACK_MIN` on x86-64), of which the walk touches a page or two. Units: bytes.
#[cfg(target_env = "gnu")]
const STACK: usize = 64 * 1024;
