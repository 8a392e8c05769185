//! Emulated links without I/O, the scenario format that configures them, and the report of a run.
//!
//! Level 1 of ARCHITECTURE.md: no clock, socket, thread or randomness of the operating system. The
//! same [`Link`] transfers real packets in the lab and modelled packets in the simulator; its
//! behaviour depends only on its configuration, its seed and the instants that the driver passes.
//!
//! Scope of [`Link`]: one direction of one network, with a rate or a recorded trace, a drop-tail
//! queue, delay, jitter, loss and outages, a middlebox in front of it, and an address translator
//! between both directions. [`air`] models the shared medium of 802.11. Limitations: no active
//! queue management, no bit errors, no duplication.
#![forbid(unsafe_code)]

pub mod air;
mod capacity;
pub mod capture;
mod direction;
mod frame_size;
mod link;
mod loss;
mod middlebox;
mod nat;
pub mod oracle;
pub mod report;
pub mod scenario;
pub mod sender;
mod trace;
pub mod video;

pub use capacity::Capacity;
pub use frame_size::FRAME_OVERHEAD;
pub use hawser_units::Random;
pub use link::{Change, Counters, Jitter, Link, LinkConfig, QueueBound, State};
pub use loss::{Loss, LossProcess};
pub use middlebox::{
    Codepoint, EcnTreatment, Hang, Header, Middlebox, MiddleboxChange, MiddleboxConfig, PathMtu, Policer,
    Protocol, Verdict,
};
pub use nat::{Nat, NatConfig};
pub use trace::{Trace, TraceError};
