//! The monotonic clock, and how exactly timers follow it.

use hawser_units::Instant;

/// The time of the monotonic clock since boot.
#[must_use]
pub fn now() -> Instant {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: `time` is a valid timespec that outlives the call.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut time) };
    Instant::from_nanos(time.tv_sec.cast_unsigned() * 1_000_000_000 + time.tv_nsec.cast_unsigned())
}

/// Lets this thread's timers fire when they are due instead of up to 50 us later: pacing needs it.
pub fn use_precise_timers() {
    // SAFETY: this prctl takes one value, in nanoseconds, and touches no memory.
    unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, 1_000_u64) };
}
