//! Settings of the C library's allocator for freed memory.

/// Allocates large blocks as separate mappings, so that the memory of a session returns to the
/// system when it ends.
///
/// By default glibc raises the threshold for separate mappings to the size of the largest freed
/// block (mallopt(3), `M_MMAP_THRESHOLD`). Tables of sessions are then placed between small blocks
/// that stay: after 700 sessions in sequence, with 17 MB in use, a hub occupied 60 MB, and 38 MB
/// with this setting. Packets cause no allocations, so the system calls do not delay packets.
pub fn return_large_blocks() {
    #[cfg(target_env = "gnu")]
    // SAFETY: a parameter that mallopt knows, with a value in its range. A refusal changes nothing.
    unsafe {
        libc::mallopt(libc::M_MMAP_THRESHOLD, LARGE_BYTES);
    }
}

/// Size from which a block is large. Source: mallopt(3), half of the default of `M_MMAP_THRESHOLD`,
/// 128 KiB.
#[cfg(target_env = "gnu")]
const LARGE_BYTES: libc::c_int = 64 * 1024;

/// Returns unused memory between blocks in use to the system, on a separate thread.
///
/// Otherwise the C library retains it: after transferring 200 flows over lines of 20 Mbit/s and 10
/// Mbit/s, a client occupied 9.6 MB, and 4.2 MB with this call (`malloc_trim(3)`; musl returns free
/// memory by itself). A run took 9 ms for a heap of 80 MB of which little was in use, which is too
/// long for a thread that transfers packets. A call while another one is running has no effect.
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

/// Stack of the thread that walks the heap, of which the walk touches a page or two. Source: four
/// times the minimum of a thread, `PTHREAD_STACK_MIN` of 16 KiB on x86-64. Units: bytes.
#[cfg(target_env = "gnu")]
const STACK: usize = 64 * 1024;
