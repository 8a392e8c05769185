//! Programs of the kernel's own virtual machine (eBPF): by which applications say which network
//! they want, and by which packets find their thread.
//!
//! Small ones: one answers `setsockopt(fd, SOL_HAWSER, ...)` ([`SocketOptions`]) and tells what
//! programs declare ([`Declarations`]), one marks every
//! socket that the programs of a control group make ([`MarkedGroup`]), one marks the subflows of
//! MPTCP ([`Subflows`]), one chooses the queue of an interface
//! ([`QueueChoice`]). They are written as instructions right here: a compiler for them would be
//! needed on every machine that builds Hawser, for some four hundred instructions most of which
//! are one line unrolled. They are attached by links, which the kernel removes when the process
//! ends, however it ends.

mod assembly;
mod cgroup;
mod kernel;
mod options;
mod queues;
mod rates;
mod ring;
mod root;
mod setting;
mod subflows;

pub use cgroup::MarkedGroup;
pub use options::{Becomes, INTENT, NETWORK, SocketOptions, choose};
pub use queues::{QueueChoice, queue_mark};
pub use rates::{Declarations, Declared, RATE, Rate, declare};
pub use setting::SOL_HAWSER;
pub use subflows::Subflows;
