//! Delivered bytes over time.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use hawser_netem::report::{BIN, GAP_WORTH_KEEPING, Gap};
use hawser_units::{Duration, Instant};

/// Bytes delivered to the receiver of one workload, in bins, and the pauses between deliveries.
///
/// Several threads may record concurrently. Cost: three atomic operations per record.
#[derive(Debug)]
pub(crate) struct Recorder {
    start: Instant,
    end: Instant,
    bins: Vec<AtomicU64>,
    last: AtomicU64,
    gaps: Mutex<Vec<Gap>>,
}

impl Recorder {
    pub(crate) fn new(start: Instant, duration: Duration) -> Self {
        let bins = duration.as_nanos().div_ceil(BIN.as_nanos());
        Self {
            start,
            end: start + duration,
            bins: (0..bins).map(|_| AtomicU64::new(0)).collect(),
            last: AtomicU64::new(0),
            gaps: Mutex::new(Vec::new()),
        }
    }

    /// Adds `bytes` delivered at `now`; ignores them after the end of the run.
    pub(crate) fn record(&self, now: Instant, bytes: u64) {
        let bin = now.since(self.start).as_nanos() / BIN.as_nanos();
        let Some(bin) = usize::try_from(bin).ok().and_then(|bin| self.bins.get(bin)) else {
            return;
        };
        bin.fetch_add(bytes, Ordering::Relaxed);
        let before = self.last.swap(now.as_nanos(), Ordering::Relaxed);
        if before > 0 {
            self.keep_gap(Instant::from_nanos(before), now);
        }
    }

    /// Returns the bytes so far.
    pub(crate) fn total(&self) -> u64 {
        self.bins.iter().map(|bin| bin.load(Ordering::Relaxed)).sum()
    }

    pub(crate) fn bins(&self) -> Vec<u64> {
        self.bins.iter().map(|bin| bin.load(Ordering::Relaxed)).collect()
    }

    /// Returns the pauses, including one that lasts until the end.
    pub(crate) fn gaps(&self) -> Vec<Gap> {
        let mut gaps = self.lock().clone();
        let last = Instant::from_nanos(self.last.load(Ordering::Relaxed));
        let length = self.end.since(last);
        if last > Instant::ZERO && length >= GAP_WORTH_KEEPING {
            gaps.push(Gap { from: last, length });
        }
        gaps.sort_by_key(|gap| gap.from);
        gaps
    }

    /// Marks the end of the expected data: a pause from here on is not a gap.
    pub(crate) fn finish(&self) {
        self.last.store(0, Ordering::Relaxed);
    }

    fn keep_gap(&self, from: Instant, to: Instant) {
        let length = to.since(from);
        if length >= GAP_WORTH_KEEPING {
            self.lock().push(Gap { from, length });
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Vec<Gap>> {
        self.gaps
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(n: u64) -> Instant {
        Instant::from_nanos(n * 1_000_000)
    }

    #[test]
    fn keeps_bins_and_gaps_up_to_the_end() {
        let recorder = Recorder::new(ms(1000), Duration::from_millis(100));
        recorder.record(ms(1005), 10);
        recorder.record(ms(1009), 10);
        recorder.record(ms(1040), 5);
        recorder.record(ms(1100), 99);
        assert_eq!(recorder.bins()[..5], [20, 0, 0, 0, 5]);
        assert_eq!(recorder.total(), 25);
        let gaps: Vec<_> = recorder
            .gaps()
            .iter()
            .map(|gap| (gap.from, gap.length.as_millis()))
            .collect();
        assert_eq!(gaps, [(ms(1009), 31), (ms(1040), 60)]);
    }

    #[test]
    fn a_finished_download_leaves_no_gap() {
        let recorder = Recorder::new(ms(0), Duration::from_millis(100));
        recorder.record(ms(5), 10);
        recorder.finish();
        assert_eq!(recorder.gaps(), []);
    }
}
