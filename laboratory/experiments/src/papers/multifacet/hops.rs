//! Hops whose quality the paper states: each has the slowest rate of one or two streams in 20 MHz
//! whose TCP throughput is about the stated one.
//!
//! Hops whose quality is not stated are in [`super::uncontrolled`]: those of Table 3, with a small
//! loss on the own link.
//!
//! Source: Multifacet section 2 and figure 2. Units: Mb/s of TCP; the experiments measure these
//! rates and do not use the values given here.

use hawser_units::Duration;

use super::floor::{Hop, Load, Scheme, Setup, throughput};

/// Returns a hop of about 20 Mb/s: "till 64 feet" from access point to repeater.
#[must_use]
pub fn twenty() -> Hop {
    Hop::fixed(3, 1, false)
}

/// Returns a hop of about 30 Mb/s.
#[must_use]
pub fn thirty() -> Hop {
    Hop::fixed(4, 1, false)
}

/// Returns a hop of about 45 Mb/s: repeater to client when the repeater is 64 feet from the access
/// point.
#[must_use]
pub fn forty_five() -> Hop {
    Hop::fixed(7, 1, false)
}

/// Returns a hop of about 60 Mb/s, the maximum of figure 2: the repeater is next to the client.
#[must_use]
pub fn sixty() -> Hop {
    Hop::fixed(4, 2, false)
}

/// Returns a hop of about 5 Mb/s: 170 feet between access point and client.
#[must_use]
pub fn five() -> Hop {
    Hop::fixed(0, 1, false)
}

/// Returns the throughput of a hop alone on the own link's channel.
pub(crate) fn alone(hop: Hop, seed: u64) -> f64 {
    let setup = Setup::new(hop, five(), None, Scheme::Traditional);
    throughput(&setup, Load::Tcp, SHORT, seed)
}

/// Returns the throughput of a hop alone on the shared channel.
pub(crate) fn alone_shared(hop: Hop, seed: u64) -> f64 {
    let setup = Setup::new(five(), hop, None, Scheme::OneChannel);
    throughput(&setup, Load::Tcp, SHORT, seed)
}

/// Warm-up and measured time.
pub(crate) const SHORT: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(4));
/// Warm-up and measured time where a throttle has to settle.
pub(crate) const LONG: (Duration, Duration) = (Duration::from_secs(3), Duration::from_secs(7));
