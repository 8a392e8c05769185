//! Share of an access point's transmission attempts that succeed, estimated by a receiver that does
//! not receive the failed ones.

use std::collections::VecDeque;

use hawser_units::{Duration, Instant};

/// Passive estimate of the success rate of one access point's attempts.
///
/// A frame without the retry bit succeeded at the first attempt. A frame with the retry bit, or a
/// frame missing from the sequence numbers, failed at the first attempt. With independent losses
/// the success rate of first attempts is that of all attempts, for any retry limit. If the losses
/// of one frame are correlated (a hidden sender), the estimate holds for the first attempt only.
///
/// Source: All-APs section 5.1, eq. 2. Deviates: a frame that arrives after a later one is no
/// longer counted as lost, because block acknowledgement delivers out of order; an empty window has
/// no estimate.
/// Cost: O(1) a frame, amortised; memory bounded by [`Config::capacity`] records of
/// [`RECORD_BYTES`].
#[derive(Clone, Debug)]
pub struct Delivery {
    config: Config,
    records: VecDeque<Record>,
    latest: Option<u16>,
    counts: Counts,
    overflow: u64,
}

/// Averaging parameters of a [`Delivery`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// Lifetime of a frame in the window.
    ///
    /// Source: All-APs section 5.1 (500 ms).
    pub window: Duration,
    /// Maximum number of frames in the window; beyond it the oldest frame is removed early and
    /// counted in [`Delivery::overflow`].
    pub capacity: usize,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            window: Duration::from_millis(500),
            capacity: 20_000,
        }
    }
}

/// Counts of frames in the window.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Received with the retry bit clear.
    pub first: u32,
    /// Received with the retry bit set.
    pub repeated: u32,
    /// Missing from the sequence.
    pub lost: u32,
}

impl Counts {
    /// Returns the sum of all counts.
    #[must_use]
    pub const fn all(self) -> u32 {
        self.first + self.repeated + self.lost
    }

    /// Returns the share of attempts that succeed (eq. 2); `None` without frames.
    #[must_use]
    pub fn delivery(self) -> Option<f64> {
        let all = self.all();
        (all > 0).then(|| f64::from(self.first) / f64::from(all))
    }
}

/// Record of one frame in the window, made of 16-bit words so that it has no padding.
#[derive(Clone, Copy, Debug)]
struct Record {
    /// Time in microseconds, wrapping; high and low half.
    at: [u16; 2],
    sequence: u16,
    /// Number of missing frames directly before it.
    lost: u16,
    retry: u16,
}

/// Bytes of memory for one frame of the window.
///
/// Source: All-APs section 5.1 (10 B).
pub const RECORD_BYTES: usize = size_of::<Record>();

impl Delivery {
    /// Creates an estimate without frames.
    #[must_use]
    pub fn new(config: Config) -> Self {
        Self {
            config,
            records: VecDeque::new(),
            latest: None,
            counts: Counts::default(),
            overflow: 0,
        }
    }

    /// Handles a received frame, which may be a duplicate.
    pub fn handle_frame(&mut self, sequence: u16, retry: bool, now: Instant) {
        self.handle_timeout(now);
        let sequence = sequence % SEQUENCES;
        let lost = match self.latest {
            None => 0,
            Some(latest) => match sequence.wrapping_sub(latest) % SEQUENCES {
                // Duplicate: the acknowledgement was lost.
                0 => return,
                ahead if ahead <= SEQUENCES / 2 => ahead - 1,
                behind => return self.handle_late(sequence, SEQUENCES - behind, retry, now),
            },
        };
        // After an interval longer than the window, the missing numbers are not of this window.
        let lost = if self.records.is_empty() { 0 } else { lost };
        self.latest = Some(sequence);
        self.push(sequence, lost, retry, now);
    }

    /// Handles a frame from before the latest: one that was counted as lost, or a duplicate.
    fn handle_late(&mut self, sequence: u16, behind: u16, retry: bool, now: Instant) {
        if behind > LATE {
            // A number this old means that the sender has restarted.
            self.latest = Some(sequence);
            self.push(sequence, 0, retry, now);
            return;
        }
        let recent = self.records.iter_mut().rev().take(usize::from(LATE));
        for record in recent {
            let before = record.sequence.wrapping_sub(sequence) % SEQUENCES;
            if before == 0 {
                return;
            }
            if before <= SEQUENCES / 2 && before <= record.lost {
                record.lost -= 1;
                self.counts.lost -= 1;
                self.push(sequence, 0, retry, now);
                return;
            }
        }
    }

    fn push(&mut self, sequence: u16, lost: u16, retry: bool, now: Instant) {
        if self.records.len() >= self.config.capacity {
            self.pop();
            self.overflow += 1;
        }
        let micros = now.as_micros_wrapping();
        self.records.push_back(Record {
            at: [(micros >> 16) as u16, micros as u16],
            sequence,
            lost,
            retry: u16::from(retry),
        });
        self.counts.lost += u32::from(lost);
        if retry {
            self.counts.repeated += 1;
        } else {
            self.counts.first += 1;
        }
    }

    fn pop(&mut self) {
        if let Some(record) = self.records.pop_front() {
            self.counts.lost -= u32::from(record.lost);
            if record.retry == 0 {
                self.counts.first -= 1;
            } else {
                self.counts.repeated -= 1;
            }
        }
    }

    /// Removes frames that are older than the window. If the clock goes back, removes nothing.
    pub fn handle_timeout(&mut self, now: Instant) {
        let window = self.config.window.as_micros() as u32;
        while let Some(record) = self.records.front() {
            let age = now.as_micros_wrapping().wrapping_sub(record.micros());
            if age <= window || age > u32::MAX / 2 {
                break;
            }
            self.pop();
        }
    }

    /// Returns when the oldest frame leaves the window.
    #[must_use]
    pub fn poll_timeout(&self, now: Instant) -> Option<Instant> {
        let record = self.records.front()?;
        let age = now.as_micros_wrapping().wrapping_sub(record.micros());
        let left = (self.config.window.as_micros() as u32 + 1).saturating_sub(age);
        Some(now + Duration::from_micros(u64::from(left)))
    }

    /// Returns the contents of the window at the last `handle_*`.
    #[must_use]
    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// Returns the share of attempts that succeed; `None` if the window is empty.
    #[must_use]
    pub fn estimate(&self) -> Option<f64> {
        self.counts.delivery()
    }

    /// Returns the memory of the window's records. Units: bytes.
    #[must_use]
    pub fn memory(&self) -> usize {
        self.records.len() * RECORD_BYTES
    }

    /// Returns the number of frames that were removed early because the window was full.
    #[must_use]
    pub fn overflow(&self) -> u64 {
        self.overflow
    }
}

impl Record {
    fn micros(self) -> u32 {
        u32::from(self.at[0]) << 16 | u32::from(self.at[1])
    }
}

/// Sequence numbers have 12 bits. Source: IEEE 802.11-2016 section 9.2.4.4.2.
const SEQUENCES: u16 = 4096;
/// Maximum reordering by block acknowledgement. Source: IEEE 802.11-2016 section 10.24.7 (a window
/// of 64).
const LATE: u16 = 64;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn at(ms: u64) -> Instant {
        Instant::from_nanos(ms * 1_000_000)
    }

    #[test]
    fn a_record_takes_ten_bytes() {
        assert_eq!(RECORD_BYTES, 10);
    }

    #[test]
    fn counts_gaps_and_retries_across_the_wrap() {
        let mut delivery = Delivery::new(Config::default());
        assert_eq!(delivery.estimate(), None);
        for (sequence, retry) in [(4094, false), (4095, true), (2, false), (2, true)] {
            delivery.handle_frame(sequence, retry, at(1));
        }
        let counts = Counts {
            first: 2,
            repeated: 1,
            lost: 2,
        };
        assert_eq!(delivery.counts(), counts);
        assert_eq!(delivery.estimate(), Some(0.4));
    }

    #[test]
    fn takes_a_late_frame_back_from_the_lost() {
        let mut delivery = Delivery::new(Config::default());
        for (sequence, retry) in [(0, false), (3, false), (1, true), (1, true)] {
            delivery.handle_frame(sequence, retry, at(1));
        }
        let counts = delivery.counts();
        assert_eq!((counts.first, counts.repeated, counts.lost), (2, 1, 1));
    }

    #[test]
    fn forgets_what_is_older_than_the_window() {
        let mut delivery = Delivery::new(Config::default());
        delivery.handle_frame(0, true, at(0));
        delivery.handle_frame(5, false, at(400));
        assert_eq!(
            delivery.poll_timeout(at(400)),
            Some(at(500) + Duration::from_micros(1))
        );
        delivery.handle_timeout(at(501));
        assert_eq!(delivery.counts().repeated, 0);
        assert_eq!(delivery.counts().lost, 4);
        delivery.handle_timeout(at(901));
        assert_eq!(delivery.estimate(), None);
        delivery.handle_frame(100, false, at(2_000));
        assert_eq!(delivery.estimate(), Some(1.0), "a silence is no loss");
    }

    proptest! {
        #[test]
        fn agrees_with_a_recount_of_the_window(
            frames in proptest::collection::vec((0u16..8, any::<bool>(), 0u64..120), 1..300),
        ) {
            let config = Config { capacity: 64, ..Config::default() };
            let mut delivery = Delivery::new(config);
            let (mut now, mut sequence) = (0, 0u16);
            let mut naive: Vec<(u64, u16, bool)> = Vec::new();
            for (step, retry, pause) in frames {
                now += pause;
                sequence = sequence.wrapping_add(step);
                naive.retain(|(then, _, _)| now - then <= 500);
                let last = delivery.latest;
                let is_fresh = last != Some(sequence % 4096);
                let gap = if naive.is_empty() || last.is_none() { 0 } else { step.saturating_sub(1) };
                delivery.handle_frame(sequence, retry, at(now));
                if is_fresh {
                    naive.push((now, gap, retry));
                }
                if delivery.overflow() == 0 {
                    let first = naive.iter().filter(|(_, _, retry)| !retry).count() as u32;
                    let lost: u32 = naive.iter().map(|(_, gap, _)| u32::from(*gap)).sum();
                    prop_assert_eq!(delivery.counts().first, first);
                    prop_assert_eq!(delivery.counts().lost, lost);
                }
                prop_assert!(delivery.memory() <= 640);
            }
        }
    }
}
