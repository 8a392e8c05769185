//! Properties that must hold in situations that no author chose: worlds that are drawn from seeds.
//!
//! ```text
//!   seed -> [ World::draw ] -> scenario -> [ judge: tunnel, baselines ] -> measures, violations
//!                                 ^                                            |
//!                                 +-- [ shrink ]: less, while it fails ------+-> known failures
//! ```
//!
//! - `fit.rs` fits distributions to recordings; `networks.rs` and `happenings.rs` draw from them.
//! - `properties.rs` lists the properties with reason, tolerance and cover.
//! - `judge.rs` runs a world and its baselines; `working.rs` says which networks work when.
//! - `shrink.rs` removes from a failing world what its failure does not need.
//! - `known.rs` reads the list of failures that are known, which may only shrink.
//! - `outcome.rs` and `summary.rs` store results and sum them up.
//!
//! Scope: the simulator, tunnels with a hub, TCP as packets and as streams. Limitations: no
//! restarts of programs, no second client, no quotas, no IPv6, no direct mode; UDP blocks have no
//! fall-back to TLS.

mod draw;
mod fit;
mod happenings;
mod judge;
mod known;
mod networks;
mod outcome;
mod properties;
mod shrink;
mod summary;
mod working;
mod world;

pub use fit::{Deciles, Fit};
pub use judge::{Judgement, judge};
pub use known::{Known, KnownFailure};
pub use outcome::{Outcome, append, read};
pub use properties::{Description, Property, Violation};
pub use shrink::shrink;
pub use summary::Summary;
pub use world::World;

/// First seed that is kept aside. Source: seeds below are for work on defects, so that those above
/// judge a release that was not tuned to them.
pub const FIRST_ASIDE: u64 = 5_001;
