//! Configuration of a collector of metrics.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use serde::Deserialize;
use serde::de::Deserializer;

use crate::{Page, Span};

/// `[otlp]`: collector of metrics.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OtlpConfig {
    /// Address of the collector (OTLP by HTTP).
    pub to: Collector,
    /// Interval between exports.
    #[serde(default = "every_minute")]
    pub every: Span,
}

/// Returns the default of the OpenTelemetry SDKs (`OTEL_METRIC_EXPORT_INTERVAL`).
fn every_minute() -> Span {
    Span(Duration::from_secs(60))
}

/// Address of a collector: `http` or `https`, optionally with a path that precedes `/v1/metrics`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Collector(String);

impl Collector {
    /// Returns whether the collector uses TLS.
    #[must_use]
    pub fn is_secure(&self) -> bool {
        self.0.starts_with("https://")
    }
}

impl fmt::Display for Collector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl FromStr for Collector {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        Page::at(text, "http://", 80)
            .or_else(|| Page::at(text, "https://", 443))
            .map(|_| Self(text.trim_end_matches('/').to_owned()))
            .ok_or(())
    }
}

from_text!(
    Collector,
    "the address of a collector, such as \"http://127.0.0.1:4318\""
);
