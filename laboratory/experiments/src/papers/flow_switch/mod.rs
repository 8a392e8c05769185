//! Flow switch: a programmable switch inside the host, on a phone and a laptop.
//!
//! # Scope
//! Flow migration (figure 6), stitching of two and of ten networks (figures 7 to 9), choice by
//! policy (figure 10) and the packet size. The flow table, the migration, the policy and the
//! stitching are the daemon's machines ([`hawser_steer::flow_table`], [`hawser_steer::migration`],
//! [`hawser_steer::policy`], [`hawser_steer::stitch`]).
//!
//! # Limitations
//! Networks are wired links of constant rate. The paper's rates are lost, so absolute rates here
//! have no meaning; only the real data path can show figure 3's overheads.

mod migrating;
mod stitching;
mod switch;

pub use migrating::{ByPolicy, Migrating};
pub use stitching::{Outages, PacketSize, TenNetworks, TwoNetworks};

use hawser_netem::{Capacity, LinkConfig};
use hawser_units::{Duration, Rate};

/// Creates a network of `kbps` with a one-way delay of `ms`, and a queue of 100 ms or a few
/// packets.
fn network(kbps: u64, ms: u64) -> LinkConfig {
    LinkConfig {
        capacity: Capacity::Rate(Rate::from_bps(kbps * 1_000)),
        delay: Duration::from_millis(ms),
        queue: hawser_netem::QueueBound::Time(Duration::from_millis(100 + 40_000 / kbps.max(1))),
        ..LinkConfig::default()
    }
}

/// Creates a link inside a host or a data centre.
fn wire() -> LinkConfig {
    LinkConfig {
        capacity: Capacity::Rate(Rate::from_mbps(1_000)),
        delay: Duration::from_micros(100),
        ..LinkConfig::default()
    }
}
