//! Monotonic clock, local time, and the precision of timers.

use hawser_units::Instant;

/// Returns the time of the monotonic clock since boot.
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

/// Local date and time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LocalTime {
    /// The year, such as 2026.
    pub year: i32,
    /// Month, from 1.
    pub month: u8,
    /// Day of the month, from 1.
    pub day: u8,
    /// Weekday from Monday, 0, to Sunday, 6.
    pub weekday: u8,
    /// Minute of the day, from 0 to 1439.
    pub minute: u16,
}

/// Returns the time in this machine's time zone (`TZ`, or /etc/localtime).
#[must_use]
pub fn local_time() -> LocalTime {
    // SAFETY: no place is given where the time is to be put.
    local_time_at(unsafe { libc::time(std::ptr::null_mut()) })
}

/// Returns the local time at this number of seconds after the beginning of 1970.
#[must_use]
pub fn local_time_at(seconds: i64) -> LocalTime {
    // SAFETY: all zero is a valid `tm`: numbers, and a name of the zone that may be null.
    let mut parts = unsafe { std::mem::zeroed::<libc::tm>() };
    // SAFETY: both point to valid values that outlive the call.
    unsafe { libc::localtime_r(&raw const seconds, &raw mut parts) };
    let small = |value: libc::c_int| u8::try_from(value).unwrap_or_default();
    LocalTime {
        year: parts.tm_year + 1900,
        month: small(parts.tm_mon) + 1,
        day: small(parts.tm_mday),
        weekday: (small(parts.tm_wday) + 6) % 7,
        minute: u16::from(small(parts.tm_hour)) * 60 + u16::from(small(parts.tm_min)),
    }
}

/// Makes this thread's timers fire when they are due instead of up to 50 us later, as pacing
/// requires.
pub fn use_precise_timers() {
    // SAFETY: this prctl takes one value, in nanoseconds, and touches no memory.
    unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, 1_000_u64) };
}
