//! A pool of channels through neighbours: who may use which, how much of it, and since when it is
//! there.
//!
//! A *channel* is a way out of a device nearby, offered by a *member* of the pool. [`monitor`]
//! knows which channels there are and how they do; [`requirement`] says what a flow asks for;
//! [`allocation`] gives channels to flows and to their sub-flows in order of importance, and admits
//! or refuses new ones; [`choice`] compares groups of channels for one bulk transfer; [`giving`] is
//! the member's side: how much of its ways out it relays for whom, and [`yielding`] how much of
//! each its own traffic leaves. What is allocated is striped by [`crate::scheduler::LayerPriority`]
//! and [`crate::scheduler::IndependentPath`].
//!
//! Everything but the monitor, [`giving`] and [`yielding`] is a pure function of its arguments:
//! whoever owns the pool calls it again when a channel or a flow changes.
//!
//! Source: Piconet sections III and IV, appendix.

pub mod allocation;
pub mod choice;
pub mod giving;
pub mod monitor;
pub mod requirement;
pub mod yielding;
