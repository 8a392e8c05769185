//! CoDel: when a queue drops or marks a packet as a congestion signal to its flow. Source: RFC
//! 8289.

use hawser_units::{Duration, Instant};

/// CoDel's interval beyond the round trip. Source: RFC 8289 section 4.2.
pub(super) const INTERVAL: Duration = Duration::from_millis(100);

/// CoDel's state of one queue.
///
/// Source: RFC 8289.
#[derive(Clone, Copy, Debug, Default)]
pub struct Codel {
    above_since: Option<Instant>,
    dropping: bool,
    drop_next: Instant,
    count: u32,
}

impl Codel {
    /// Records that the queue is short enough: the next packet above the target starts a new
    /// interval.
    pub(super) fn pardon(&mut self) {
        self.above_since = None;
        self.dropping = false;
    }

    /// Returns whether to drop or mark a packet that waited for `sojourn`; the interval is 100 ms
    /// and `target`.
    pub fn on_dequeue(&mut self, sojourn: Duration, target: Duration, now: Instant) -> bool {
        let interval = INTERVAL + target;
        if sojourn < target {
            self.pardon();
            return false;
        }
        let since = *self.above_since.get_or_insert(now);
        if self.dropping {
            if now < self.drop_next {
                return false;
            }
            self.count += 1;
            self.drop_next += interval.div_f64(f64::from(self.count).sqrt());
            return true;
        }
        if now.since(since) < interval {
            return false;
        }
        self.dropping = true;
        // Coming back soon after: resume near the rate that was needed (RFC 8289 section 4.2).
        let recent = now.since(self.drop_next) < interval * 8;
        self.count = if recent && self.count > 2 {
            self.count - 2
        } else {
            1
        };
        self.drop_next = now + interval.div_f64(f64::from(self.count).sqrt());
        true
    }
}
