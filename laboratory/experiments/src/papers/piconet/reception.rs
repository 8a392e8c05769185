//! Statistics of a received stream, for the simulated evaluation and the evaluation with real
//! packets.

/// Statistics of a received media stream.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Reception {
    /// Packets that were lost or late. Units: percent.
    pub loss: f64,
    /// Mean of the smoothed interarrival jitter. Units: milliseconds.
    pub jitter: f64,
    /// Maximum of the smoothed interarrival jitter. Units: milliseconds.
    pub most_jitter: f64,
}

impl Reception {
    /// Computes the statistics of `sent` packets, some of which arrived with these `delays`, in
    /// order of arrival. A packet more than `late` after the earliest possible time is lost.
    ///
    /// Source: RFC 1889 section 6.3.1 (the jitter), Piconet section VI-B.2 (late packets).
    /// Units: milliseconds.
    #[must_use]
    pub fn of(sent: u64, delays: &[f64], late: f64) -> Self {
        let earliest = delays.iter().copied().fold(f64::INFINITY, f64::min);
        let in_time = delays.iter().copied().filter(|delay| *delay <= earliest + late);
        let in_time: Vec<f64> = in_time.collect();
        let (mut jitter, mut most_jitter, mut sum) = (0.0, 0.0f64, 0.0);
        for pair in in_time.windows(2) {
            jitter += ((pair[1] - pair[0]).abs() - jitter) / 16.0;
            most_jitter = most_jitter.max(jitter);
            sum += jitter;
        }
        Self {
            loss: 100.0 * (1.0 - in_time.len() as f64 / sent.max(1) as f64),
            jitter: sum / in_time.len().saturating_sub(1).max(1) as f64,
            most_jitter,
        }
    }
}

/// Returns the mean change of the transit time from one arrival to the next, the quantity that RFC
/// 1889's jitter smooths. Units: those of the times.
#[must_use]
pub fn mean_change(transits: &[f64]) -> f64 {
    let changes = transits.windows(2).map(|pair| (pair[1] - pair[0]).abs());
    changes.sum::<f64>() / transits.len().saturating_sub(1).max(1) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn late_packets_are_lost_and_change_no_jitter() {
        let all = Reception::of(5, &[10.0, 10.0, 200.0, 10.0], 70.0);
        assert!((all.loss - 40.0).abs() < 1e-9, "{all:?}");
        assert_eq!((all.jitter, all.most_jitter), (0.0, 0.0));
        let in_time = Reception::of(4, &[10.0, 10.0, 42.0, 10.0], 70.0);
        assert_eq!(in_time.loss, 0.0);
        // A change of 32 ms is smoothed by a sixteenth: 2 and then 2 + (32 - 2) / 16.
        assert_eq!(in_time.most_jitter, 3.875);
    }

    #[test]
    fn the_mean_change_needs_two_arrivals() {
        assert_eq!(mean_change(&[]), 0.0);
        assert_eq!(mean_change(&[7.0]), 0.0);
        assert_eq!(mean_change(&[7.0, 9.0, 5.0]), 3.0);
    }
}
