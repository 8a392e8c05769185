//! Properties that must hold in situations that no author chose: worlds drawn from seeds.
//!
//! ```text
//!   seed -> [ World::draw ] -> scenario -> [ judge: tunnel, baselines ] -> measures, violations
//!                                 ^                                            |
//!                                 +-- [ shrink ]: less, while it fails ------+-> known failures
//! ```
//!
//! - `fit.rs` fits distributions to recordings; `networks.rs` and `happenings.rs` draw from them.
//! - `properties.rs` lists the properties with reason, tolerance and coverage.
//! - `judge.rs` runs a world and its baselines; `working.rs` determines which networks work at
//!   which time.
//! - `shrink.rs` removes parts of a failing world that its failure does not need.
//! - `known.rs` reads the list of known failures, which may only shrink.
//! - `outcome.rs` and `summary.rs` store and summarize results.
//!
//! Scope: the simulator, tunnels with a hub, TCP as packets and as streams. Limitations: no
//! restarts of programs, no second client, no quotas, no IPv6, no direct mode, no fall-back to TLS
//! when UDP is blocked.

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

/// First reserved seed. Source: lower seeds are for work on defects, so that the reserved ones
/// judge a release that was not tuned to them.
pub const FIRST_ASIDE: u64 = 5_001;
