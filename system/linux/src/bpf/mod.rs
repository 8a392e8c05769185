//! eBPF programs with which applications choose a network, and with which packets are assigned to
//! threads.
//!
//! One program handles `setsockopt(fd, SOL_HAWSER, ...)` ([`SocketOptions`]) and reports
//! declarations of applications ([`Declarations`]), one marks every socket created in a control
//! group ([`MarkedGroup`]), one marks the subflows of MPTCP ([`Subflows`]), and one chooses the
//! queue of an interface ([`QueueChoice`]). They are written as instructions in this module: a
//! compiler for them would be needed on every machine that builds Hawser, for about 400
//! instructions, most of which are one unrolled line. They are attached by links, which the kernel
//! removes when the process ends for any reason.

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
