//! Decisions about radios: which networks one radio serves and when, how much each access point
//! transfers, and when a link moves to another channel.
//!
//! Level 1 of the architecture: no clock, socket, thread or randomness of the operating system. The
//! same machines control modelled radios in the simulator and real ones in the daemon.
#![forbid(unsafe_code)]

pub mod delivery;
pub mod slots;
pub mod stations;
pub mod striping;
