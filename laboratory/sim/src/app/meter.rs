use hawser_netem::report::{BIN, GAP_WORTH_KEEPING, Gap};
use hawser_units::{Duration, Instant};

/// Bytes delivered to one receiver, in bins, and the pauses between deliveries.
///
/// Cost: O(1) per record; one number per bin up to the last record.
#[derive(Clone, Debug)]
pub struct Meter {
    bin: Duration,
    bins: Vec<u64>,
    total: u64,
    first: Option<Instant>,
    last: Option<Instant>,
    gaps: Vec<Gap>,
}

impl Default for Meter {
    fn default() -> Self {
        Self::new(BIN)
    }
}

impl Meter {
    /// Creates an empty meter with bins of this length.
    #[must_use]
    pub fn new(bin: Duration) -> Self {
        Self {
            bin,
            bins: Vec::new(),
            total: 0,
            first: None,
            last: None,
            gaps: Vec::new(),
        }
    }

    /// Adds bytes delivered at `now`.
    pub fn record(&mut self, now: Instant, bytes: u64) {
        if bytes == 0 {
            return;
        }
        let bin = (now.as_nanos() / self.bin.as_nanos() as u64) as usize;
        if bin >= self.bins.len() {
            self.bins.resize(bin + 1, 0);
        }
        self.bins[bin] += bytes;
        self.total += bytes;
        self.first.get_or_insert(now);
        if let Some(from) = self.last {
            let length = now.since(from);
            if length >= GAP_WORTH_KEEPING {
                self.gaps.push(Gap { from, length });
            }
        }
        self.last = Some(now);
    }

    /// Returns the bytes in each bin since time zero.
    #[must_use]
    pub fn bins(&self) -> &[u64] {
        &self.bins
    }

    /// Returns the sum of all bytes.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.total
    }

    /// Returns the pauses of at least ten milliseconds, in order.
    #[must_use]
    pub fn gaps(&self) -> &[Gap] {
        &self.gaps
    }

    /// Returns the time of the last delivery.
    #[must_use]
    pub fn last(&self) -> Option<Instant> {
        self.last
    }

    /// Returns the mean rate between two times, to the resolution of the bins. Units: bit/s of
    /// payload.
    #[must_use]
    pub fn rate(&self, from: Instant, to: Instant) -> f64 {
        let bin = self.bin.as_nanos() as u64;
        let range = (from.as_nanos() / bin) as usize..(to.as_nanos() / bin) as usize;
        let bytes: u64 = self.bins.iter().take(range.end).skip(range.start).sum();
        bytes as f64 * 8.0 / to.since(from).as_secs_f64()
    }
}
