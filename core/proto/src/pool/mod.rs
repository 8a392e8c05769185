//! Pool of channels through neighbours: the available channels, and the shares of their users.
//!
//! A *channel* is an uplink of a device nearby, offered by a *member* of the pool. [`monitor`]
//! stores the channels and their states. [`requirement`] describes what a flow needs.
//! [`allocation`] assigns channels to flows and to their sub-flows in order of importance, and
//! admits or rejects new ones. [`admission`] stores which flows are admitted. [`choice`] compares
//! groups of channels for one bulk transfer, and [`selection`] uses it to decide which of the
//! reachable channels are used. [`giving`] and [`yielding`] are the member's side: how much of its
//! uplinks it relays for each taker, and how much its own traffic leaves.
//! [`crate::scheduler::LayerPriority`] and [`crate::scheduler::IndependentPath`] stripe over the
//! allocated channels.
//!
//! All modules except the monitor, [`admission`], [`selection`], [`giving`] and [`yielding`] are
//! pure functions of their arguments. The owner of the pool calls them again when a channel or a
//! flow changes.
//!
//! Source: Piconet sections III and IV, appendix.

pub mod admission;
pub mod allocation;
pub mod choice;
pub mod giving;
pub mod monitor;
pub mod requirement;
pub mod selection;
pub mod yielding;
