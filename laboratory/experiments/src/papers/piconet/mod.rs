//! Piconet: neighbours share their uplinks, and an aggregation proxy stripes traffic over them.
//!
//! # Scope
//! The evaluation of sections V (simulation) and VI (testbed). The schedulers and the allocation
//! are those of the daemon ([`hawser_proto::scheduler`], [`hawser_proto::pool`]); source, members
//! and receiver are modelled.
//!
//! # Limitations
//! The LAN is a shared link of its rate, without contention; members forward without delay.

mod bulk;
mod constant;
mod layered;
mod reception;
mod testbed;
mod topology;

pub use bulk::{Joining, Sizes, Unequal};
pub use constant::{JoiningConstant, Members, UnequalConstant};
pub use layered::{Changing, Layers, SpareChannels};
pub use reception::{Reception, mean_change};
pub use testbed::{CAPACITIES, LATE, OneSlow, Streaming, TERMINATED, Testbed, Transient};
