//! Multifacet: an access point and its repeater with two radio links between them, one of which is
//! on the client's channel.
//!
//! # Scope
//! Constants and channel migration use the machines of [`hawser_radio::striping`]. All other
//! experiments use the medium of [`hawser_sim::radio`] with TCP, except for figure 14's striping
//! under interference, which models packets in two queues.

mod aggregation;
mod bottlenecks;
mod estimate;
pub(crate) mod floor;
pub(crate) mod hops;
pub(crate) mod others;
mod reaction;
mod rivals;
mod searching;
mod streaming;
mod striping;
mod uncontrolled;
mod video;
mod wide;

pub use hawser_radio::striping::access_point::{OWN, SHARED};
pub use hawser_radio::striping::{BUFFER_PACKETS, Hops};

pub use aggregation::{
    Buffering, Fastest, Order, OverTheAir, adapted, buffering_hops, mean_and_deviation, order_hops, variable,
};
pub use bottlenecks::{Bottlenecks, Case, PARTS};
pub use estimate::Estimate;
pub use floor::{FAR, Hop, ht};
pub use hops::{five, forty_five, sixty, thirty, twenty};
pub use others::{COMPETING_LEN, Competitor, Who};
pub use reaction::{Reaction, interferer};
pub use rivals::{Delays, Overhearing, Routing};
pub use searching::{Constants, Searching};
pub use streaming::Streaming;
pub use striping::Interfered;
pub use uncontrolled::{Placements, SeveralClients, nineteen, placements};
pub use wide::{WIDE_LOADS, WIDE_OVERLAPS, WideChannel, adjacent_interferers, wide_hop};
