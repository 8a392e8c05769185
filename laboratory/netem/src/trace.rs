use hawser_units::{Bytes, Instant, Rate};

use crate::frame_size::FULL_FRAME;

/// A recorded capacity that repeats forever.
///
/// Two forms, distinguished by their text: a Mahimahi file (one line per opportunity to deliver a
/// packet of 1500 bytes, in whole milliseconds), and lines of `seconds,bytes_per_second`. A
/// Mahimahi opportunity at an empty queue is lost, as in the original; the unused rest of an
/// opportunity serves packets that were already waiting.
///
/// Source: Mahimahi, Netravali et al. 2015, `mm-link`. Deviates: an opportunity carries one full
/// Ethernet frame (1514 bytes, an IP packet of 1500), because this crate counts frames.
/// Cost: O(1) amortised a packet.
#[derive(Clone, Debug, PartialEq)]
pub struct Trace {
    form: Form,
    period_ns: u64,
}

#[derive(Clone, Debug, PartialEq)]
enum Form {
    /// Instants of the opportunities, relative to the start, in order.
    Opportunities(Vec<u64>),
    /// Start and rate of each step.
    Steps(Vec<(u64, Rate)>),
}

/// Error in the text of a trace.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum TraceError {
    /// A line contains neither an opportunity nor a step.
    #[error("line {line}: expected milliseconds (Mahimahi) or `seconds,bytes_per_second`, found {found:?}")]
    Line {
        /// Line number, from 1.
        line: usize,
        /// Found text.
        found: String,
    },
    /// Time decreases at a line.
    #[error("line {line}: time goes backwards")]
    Order {
        /// Line number, from 1.
        line: usize,
    },
    /// The trace has no duration or no capacity.
    #[error(
        "the trace is empty: it needs at least one opportunity after 0 ms, or a step with a rate above zero"
    )]
    Empty,
}

/// Position of a link in a Mahimahi trace: the last used opportunity and its rest.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Position {
    next: u64,
    at: Instant,
    left: u64,
}

impl Trace {
    /// Parses a trace of either form.
    ///
    /// # Errors
    /// [`TraceError`] with the line number if the text is not a trace.
    pub fn parse(text: &str) -> Result<Self, TraceError> {
        let lines = || {
            text.lines()
                .enumerate()
                .map(|(n, line)| (n + 1, line.trim()))
                .filter(|(_, line)| !line.is_empty() && !line.starts_with('#'))
        };
        if lines().any(|(_, line)| line.contains(',')) {
            Self::parse_steps(lines())
        } else {
            Self::parse_opportunities(lines())
        }
    }

    fn parse_opportunities<'a>(lines: impl Iterator<Item = (usize, &'a str)>) -> Result<Self, TraceError> {
        let mut at = Vec::new();
        for (line, text) in lines {
            let millis: u64 = text.parse().map_err(|_| bad_line(line, text))?;
            let nanos = millis
                .checked_mul(1_000_000)
                .ok_or_else(|| bad_line(line, text))?;
            if at.last().is_some_and(|last| *last > nanos) {
                return Err(TraceError::Order { line });
            }
            at.push(nanos);
        }
        match at.last() {
            Some(&period_ns) if period_ns > 0 => Ok(Self {
                form: Form::Opportunities(at),
                period_ns,
            }),
            _ => Err(TraceError::Empty),
        }
    }

    fn parse_steps<'a>(lines: impl Iterator<Item = (usize, &'a str)>) -> Result<Self, TraceError> {
        let mut steps: Vec<(u64, Rate)> = Vec::new();
        for (line, text) in lines {
            if steps.is_empty() && text.starts_with(|c: char| c.is_ascii_alphabetic()) {
                continue; // a header
            }
            let (seconds, bytes) = text
                .split_once(',')
                .and_then(|(s, b)| Some((s.trim().parse::<f64>().ok()?, b.trim().parse::<f64>().ok()?)))
                .filter(|(s, b)| (0.0..1e9).contains(s) && (0.0..1e15).contains(b))
                .ok_or_else(|| bad_line(line, text))?;
            let start = (seconds * 1e9) as u64;
            if steps.last().is_some_and(|(last, _)| *last >= start) {
                return Err(TraceError::Order { line });
            }
            steps.push((start, Rate::from_bps((bytes * 8.0) as u64)));
        }
        // The last step lasts as long as the one before it.
        let period_ns = match steps.as_slice() {
            [] => return Err(TraceError::Empty),
            [(only, _)] => only + 1_000_000_000,
            [.., (before, _), (last, _)] => last + (last - before),
        };
        let first = steps[0].0;
        for step in &mut steps {
            step.0 -= first;
        }
        if steps.iter().all(|(_, rate)| *rate == Rate::ZERO) {
            return Err(TraceError::Empty);
        }
        Ok(Self {
            form: Form::Steps(steps),
            period_ns: period_ns - first,
        })
    }

    /// Returns the mean rate over one period, in Ethernet frames.
    #[must_use]
    pub fn mean(&self) -> Rate {
        let bytes = match &self.form {
            Form::Opportunities(at) => at.len() as u64 * FULL_FRAME,
            Form::Steps(steps) => self
                .ends(steps)
                .map(|(from, to, rate)| rate.bytes_in(core::time::Duration::from_nanos(to - from)).0)
                .sum(),
        };
        Rate::of(Bytes(bytes), core::time::Duration::from_nanos(self.period_ns)).unwrap_or(Rate::ZERO)
    }

    /// Returns the period after which the trace repeats.
    #[must_use]
    pub fn period(&self) -> core::time::Duration {
        core::time::Duration::from_nanos(self.period_ns)
    }

    /// Returns the mean rate between two times relative to the start, in Ethernet frames.
    ///
    /// # Panics
    /// When `to` is not after `from`.
    #[must_use]
    pub fn mean_between(&self, from: core::time::Duration, to: core::time::Duration) -> Rate {
        let bytes = self.bytes_until(to) - self.bytes_until(from);
        Rate::of(Bytes(bytes), to - from).expect("some time is between them")
    }

    fn bytes_until(&self, time: core::time::Duration) -> u64 {
        let nanos = time.as_nanos() as u64;
        let (rounds, within) = (nanos / self.period_ns, nanos % self.period_ns);
        let until = |within: u64| match &self.form {
            Form::Opportunities(at) => at.partition_point(|at| *at <= within) as u64 * FULL_FRAME,
            Form::Steps(steps) => self
                .ends(steps)
                .filter(|(from, ..)| *from < within)
                .map(|(from, to, rate)| {
                    let lasts = core::time::Duration::from_nanos(to.min(within) - from);
                    rate.bytes_in(lasts).0
                })
                .sum(),
        };
        rounds * until(self.period_ns) + until(within)
    }

    /// Returns the time at which a frame of `bytes` that starts at `start` has been serialised. A
    /// packet that arrived after the last used opportunity cannot use its rest.
    pub(crate) fn finish(
        &self,
        epoch: Instant,
        start: Instant,
        bytes: u64,
        position: &mut Position,
    ) -> Instant {
        match &self.form {
            Form::Opportunities(at) => self.finish_opportunities(at, epoch, start, bytes, position),
            Form::Steps(steps) => self.finish_steps(steps, epoch, start, bytes),
        }
    }

    fn finish_opportunities(
        &self,
        at: &[u64],
        epoch: Instant,
        start: Instant,
        bytes: u64,
        position: &mut Position,
    ) -> Instant {
        let mut needed = bytes;
        if start <= position.at {
            let used = position.left.min(needed);
            position.left -= used;
            needed -= used;
        }
        if needed == 0 {
            return position.at;
        }
        let offset = start.since(epoch).as_nanos() as u64;
        let (period, within) = (offset / self.period_ns, offset % self.period_ns);
        let first = period * at.len() as u64 + at.partition_point(|t| *t < within) as u64;
        position.next = position.next.max(first);
        let chances = needed.div_ceil(FULL_FRAME);
        let last = position.next + chances - 1;
        let round = last / at.len() as u64;
        let in_round = at[(last % at.len() as u64) as usize];
        position.next = last + 1;
        position.left = chances * FULL_FRAME - needed;
        position.at = epoch + core::time::Duration::from_nanos(round * self.period_ns + in_round);
        position.at
    }

    fn finish_steps(&self, steps: &[(u64, Rate)], epoch: Instant, start: Instant, bytes: u64) -> Instant {
        let mut at = start.since(epoch).as_nanos() as u64;
        let mut left = u128::from(bytes) * 8 * 1_000_000_000; // bit x ns/s, so that `rate * ns` needs no rounding
        loop {
            let (round, within) = (at / self.period_ns, at % self.period_ns);
            let index = step_of(steps, within);
            let end = steps.get(index + 1).map_or(self.period_ns, |(next, _)| *next);
            let rate = u128::from(steps[index].1.as_bps());
            let possible = rate * u128::from(end - within);
            if possible >= left {
                let nanos = (left / rate.max(1)) as u64;
                return epoch + core::time::Duration::from_nanos(at + nanos);
            }
            left -= possible;
            at = round * self.period_ns + end;
        }
    }

    fn ends<'a>(&'a self, steps: &'a [(u64, Rate)]) -> impl Iterator<Item = (u64, u64, Rate)> + 'a {
        steps.iter().enumerate().map(|(i, (from, rate))| {
            (
                *from,
                steps.get(i + 1).map_or(self.period_ns, |(next, _)| *next),
                *rate,
            )
        })
    }
}

fn step_of(steps: &[(u64, Rate)], offset: u64) -> usize {
    steps
        .partition_point(|(start, _)| *start <= offset)
        .saturating_sub(1)
}

fn bad_line(line: usize, text: &str) -> TraceError {
    TraceError::Line {
        line,
        found: text.chars().take(40).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(n: u64) -> Instant {
        Instant::from_nanos(n * 1_000_000)
    }

    #[test]
    fn reads_both_forms_and_names_the_bad_line() {
        let mahimahi = Trace::parse("0\n5\n5\n10\n").expect("a trace");
        assert_eq!(mahimahi.mean(), Rate::from_bps(4 * 1514 * 8 * 100));
        let steps = Trace::parse("# seconds,bytes_per_second\n0,1000000\n1,3000000\n").expect("a trace");
        assert_eq!(steps.mean(), Rate::from_mbps(16));
        assert_eq!(
            Trace::parse("1\nx\n"),
            Err(TraceError::Line {
                line: 2,
                found: "x".into()
            })
        );
        assert_eq!(Trace::parse("7\n3\n"), Err(TraceError::Order { line: 2 }));
        assert_eq!(Trace::parse("\n"), Err(TraceError::Empty));
        assert_eq!(Trace::parse("0,0\n1,0\n"), Err(TraceError::Empty));
    }

    #[test]
    fn a_single_step_lasts_a_second_whenever_it_begins() {
        let at_once = Trace::parse("0,1000").expect("a trace");
        assert_eq!(Trace::parse("4.0,1000"), Ok(at_once));
    }

    #[test]
    fn a_mahimahi_opportunity_serves_who_waits_and_is_lost_otherwise() {
        let trace = Trace::parse("10\n20\n30\n").expect("a trace");
        let mut position = Position::default();
        let mut finish = |start, bytes| trace.finish(Instant::ZERO, start, bytes, &mut position);
        assert_eq!(finish(ms(1), 700), ms(10));
        assert_eq!(finish(ms(10), 700), ms(10), "the rest of the opportunity");
        assert_eq!(finish(ms(21), 1514), ms(30), "the one at 20 ms passed unused");
        assert_eq!(finish(ms(30), 3028), ms(50), "two more, after the loop");
    }

    #[test]
    fn the_mean_of_a_part_counts_what_passes_in_it() {
        let second = core::time::Duration::from_secs;
        let steps = Trace::parse("0,1000\n1,0\n2,2000\n").expect("a trace");
        assert_eq!(steps.mean_between(second(0), second(1)), Rate::from_bps(8000));
        assert_eq!(steps.mean_between(second(2), second(4)), Rate::from_bps(12_000));
        assert_eq!(steps.mean_between(second(0), second(3)), steps.mean());
        let mahimahi = Trace::parse("100\n900\n1000\n").expect("a trace");
        assert_eq!(
            mahimahi.mean_between(second(1), second(2)),
            Rate::from_bps(3 * 1514 * 8)
        );
    }

    #[test]
    fn steps_integrate_over_changes_and_outages() {
        let trace = Trace::parse("0,1000\n1,0\n2,2000\n").expect("a trace");
        let mut position = Position::default();
        let mut finish = |start, bytes| trace.finish(Instant::ZERO, start, bytes, &mut position);
        assert_eq!(finish(ms(500), 500), ms(1000));
        assert_eq!(
            finish(ms(500), 1500),
            ms(2500),
            "nothing passes in the second step"
        );
        assert_eq!(finish(ms(2500), 2000), ms(4000), "into the next round");
    }
}
