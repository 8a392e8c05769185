//! Random values of one feature, each feature with its own stream.

use hawser_netem::Random;
use toml::{Table, Value};

/// Random values of one feature of one world.
///
/// A feature that is added later has another name and thus another stream, so the values of other
/// features do not change.
pub(super) struct Draw(Random);

impl Draw {
    pub(super) fn new(seed: u64, feature: &str) -> Self {
        Self(Random::new(seed, &format!("world:{feature}")))
    }

    /// Returns the stream of a feature that each network has.
    pub(super) fn of_network(seed: u64, feature: &str, network: usize) -> Self {
        Self::new(seed, &format!("{feature}:{network}"))
    }

    pub(super) fn chance(&mut self, probability: f64) -> bool {
        // The number is drawn in any case, so that a changed probability changes one decision only.
        self.0.uniform() < probability
    }

    pub(super) fn uniform(&mut self, from: f64, to: f64) -> f64 {
        from + (to - from) * self.0.uniform()
    }

    /// Draws from a log-uniform distribution: as many values between 1 and 10 as between 10 and
    /// 100.
    pub(super) fn log_uniform(&mut self, from: f64, to: f64) -> f64 {
        self.uniform(from.ln(), to.ln()).exp()
    }

    pub(super) fn normal(&mut self) -> f64 {
        self.0.normal()
    }

    pub(super) fn index(&mut self, count: usize) -> usize {
        ((self.0.uniform() * count as f64) as usize).min(count.saturating_sub(1))
    }

    pub(super) fn pick<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.index(of.len())]
    }

    /// Returns the first value with this cumulated weight.
    pub(super) fn weighted<T: Copy>(&mut self, of: &[(T, f64)]) -> T {
        let all: f64 = of.iter().map(|(_, weight)| weight).sum();
        let mut left = self.0.uniform() * all;
        for (value, weight) in of {
            left -= weight;
            if left < 0.0 {
                return *value;
            }
        }
        of[of.len() - 1].0
    }
}

/// Rounds a number to few digits, as a person would type it.
pub(super) fn rounded(value: f64) -> f64 {
    if value <= 0.0 {
        return 0.0;
    }
    let unit = 10f64.powf(value.log10().floor() - 1.0);
    (value / unit).round() * unit
}

pub(super) fn rate(bps: f64) -> Value {
    Value::String(format!("{}kbit", (rounded(bps) / 1e3).round().max(1.0) as u64))
}

pub(super) fn millis(ms: f64) -> Value {
    let tenths = (rounded(ms) * 10.0).round() as u64;
    Value::String(match tenths % 10 {
        0 => format!("{}ms", tenths / 10),
        tenth => format!("{}.{tenth}ms", tenths / 10),
    })
}

pub(super) fn kibibytes(kib: f64) -> Value {
    Value::String(format!("{}KiB", rounded(kib).round() as u64))
}

pub(super) fn text(text: &str) -> Value {
    Value::String(text.to_owned())
}

pub(super) fn table<const N: usize>(entries: [(&str, Value); N]) -> Table {
    let entries = entries.into_iter().map(|(key, value)| (key.to_owned(), value));
    entries.collect()
}
