//! How good the hops are, where the paper says so: the slowest rate of one or two streams in 20 MHz
//! whose TCP throughput is about the stated one.
//!
//! Hops without such words: Table 3's, with a few frames lost on the own link, are in
//! [`super::uncontrolled`].
//!
//! Source: Multifacet section 2 and figure 2. Units: Mb/s of TCP, which the experiments measure and
//! do not take from here.

use hawser_units::Duration;

use super::floor::{Hop, Load, Scheme, Setup, throughput};

/// About 20: "till 64 feet" from access point to repeater.
#[must_use]
pub fn twenty() -> Hop {
    Hop::fixed(3, 1, false)
}

/// About 30.
#[must_use]
pub fn thirty() -> Hop {
    Hop::fixed(4, 1, false)
}

/// About 45: repeater to client when the repeater is 64 feet from the access point.
#[must_use]
pub fn forty_five() -> Hop {
    Hop::fixed(7, 1, false)
}

/// About 60, the most of figure 2: the repeater next to the client.
#[must_use]
pub fn sixty() -> Hop {
    Hop::fixed(4, 2, false)
}

/// About 5: 170 feet between access point and client.
#[must_use]
pub fn five() -> Hop {
    Hop::fixed(0, 1, false)
}

/// What a hop carries alone on the own link's channel.
pub(crate) fn alone(hop: Hop, seed: u64) -> f64 {
    let setup = Setup::new(hop, five(), None, Scheme::Traditional);
    throughput(&setup, Load::Tcp, SHORT, seed)
}

/// What it carries alone on the shared channel.
pub(crate) fn alone_shared(hop: Hop, seed: u64) -> f64 {
    let setup = Setup::new(five(), hop, None, Scheme::OneChannel);
    throughput(&setup, Load::Tcp, SHORT, seed)
}

/// Time to begin in, and to measure. Units: seconds.
pub(crate) const SHORT: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(4));
/// The same where a throttle has to find its place.
pub(crate) const LONG: (Duration, Duration) = (Duration::from_secs(3), Duration::from_secs(7));
