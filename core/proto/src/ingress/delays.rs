//! Delays of one path's packets between two reports.

/// Mean and deviation of the packets since the last report, up to the unknown offset between the
/// two ends' clocks.
///
/// Units: microseconds, wrapping at 2^32.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Delays {
    /// Follows the delays, over some sixteen packets.
    smoothed: Option<u32>,
    first: u32,
    /// Sums over the packets since the last report: of differences from `first`, and of distances
    /// from `smoothed`.
    sum: i64,
    distances: u64,
    packets: u32,
    /// Number of further packets without reordering after which the path counts as ordered.
    irregular_for: u32,
}

/// Maximum number of packets of a mean. Source: 2^24 delays of 32 bits have a sum of 56 bits, which
/// an `i64` holds.
const MAX: u32 = 1 << 24;
/// Packets without any overtaken after which a path counts as one that keeps the order. No suite of
/// docs/notebook/path-model.md, "Sensitivity", changes by more than 3 % with half or twice of it.
const REGULAR: u32 = 1_000;

impl Delays {
    /// Records the arrival time of a packet minus its send time; `is_late`: a packet sent later has
    /// arrived earlier.
    pub(super) fn on_packet(&mut self, delay: u32, is_late: bool) {
        self.irregular_for = if is_late {
            REGULAR
        } else {
            self.irregular_for.saturating_sub(1)
        };
        if self.packets == 0 {
            self.first = delay;
        }
        let smoothed = self.smoothed.unwrap_or(delay);
        let error = delay.wrapping_sub(smoothed).cast_signed();
        self.smoothed = Some(smoothed.wrapping_add_signed(error / 16));
        // Of packets that call for no report there may be any number.
        if self.packets < MAX {
            self.sum += i64::from(delay.wrapping_sub(self.first).cast_signed());
            self.distances += u64::from(error.unsigned_abs());
            self.packets += 1;
        }
    }

    /// Returns the mean and the mean deviation since the last call. A path that keeps the order has
    /// no deviation: what differs there is its queue.
    pub(super) fn take(&mut self) -> (u32, u32) {
        let packets = std::mem::take(&mut self.packets);
        let sum = std::mem::take(&mut self.sum);
        let distances = std::mem::take(&mut self.distances);
        if packets == 0 {
            return (self.smoothed.unwrap_or(0), 0);
        }
        let mean = self.first.wrapping_add_signed((sum / i64::from(packets)) as i32);
        let spread = if self.irregular_for > 0 {
            distances / u64::from(packets)
        } else {
            0
        };
        (mean, spread as u32)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mean_survives_the_wrap_of_the_clocks() {
        let mut delays = Delays::default();
        for delay in [u32::MAX - 9, 10, u32::MAX - 9, 10] {
            delays.on_packet(delay, true);
        }
        let (mean, spread) = delays.take();
        assert_eq!(mean, 0);
        assert!((5..=20).contains(&spread), "{spread}");
        delays.on_packet(30, false);
        assert_eq!(delays.take().0, 30, "only what came since");
    }

    #[test]
    fn a_queue_is_no_spread() {
        let mut delays = Delays::default();
        for n in 0..101 {
            delays.on_packet(5_000 + 100 * n, false);
        }
        assert_eq!(delays.take(), (10_000, 0));
    }
}
