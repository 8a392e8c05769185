//! Emulated links without I/O, the scenario format that configures them, and the report of what a
//! run found.
//!
//! Level 1 of the house: no clock, socket, thread or randomness of the operating system. The same
//! [`Link`] carries real packets in the lab and modelled ones in a simulator; what it does depends
//! on its configuration, its seed and the instants that are handed in, and on nothing else.
//!
//! Scope: one direction of one network, with a rate or a recorded trace, a drop-tail queue, delay,
//! jitter, loss and outages, a middlebox in front of it, and a translator of addresses between both
//! directions. Limitations: no shared medium, no active queue management, no bit
//! errors, no duplication.
#![forbid(unsafe_code)]

pub mod air;
mod capacity;
mod frame_size;
mod link;
mod loss;
mod middlebox;
mod nat;
pub mod oracle;
pub mod report;
pub mod scenario;
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
