//! The session machine: client and hub agree over the control channel on the paths of a session.
//!
//! A session survives its control connections. It starts with the first
//! [`Welcome`](hawser_wire::control::Welcome), keeps its paths while connections begin and end,
//! gets new keys with each of them, and ends when the hub no longer knows it (the client then
//! starts another and opens its paths again) or one side closes it.
//!
//! ```text
//!                  welcome                      dead, closed, replaced
//!   +---------+ -------------> +---------+ ------------------------> +----------+
//!   |  Idle   |                |   Up    |                           | Detached |
//!   +---------+                +---------+ <------------------------ +----------+
//!                               |       ^    welcome, same session: paths announced again
//!                 welcome, other session: paths of the old one gone
//!
//!   a path (client's view):
//!
//!    network added, up       PathOpened            network removed
//!   o -------------> Opening ----------> Open ----------------------> closed (its id is never used again)
//!                       |                 |
//!                       +-- PathClose ----+--> closed; tried again on the next connection
//! ```
//!
//! Failure: a [`Violation`] ends the connection, not the session; a ping without an answer does the
//! same. Neither half uses sockets, clocks or randomness: the driver provides indices, which are
//! unique in its process.

mod client;
mod hub;
mod hub_choice;
mod nearest;
#[cfg(test)]
mod tests;

use thiserror::Error;

pub use client::{ClientAction, ClientSession, SessionConfig, Timer};
pub use hub::{HubAction, HubSession, MAX_PATHS};
pub use hub_choice::{Before, HubChoice, Left, Sight, Standing, Step};

/// Violation of the protocol by a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum Violation {
    /// A message that this side never receives, or not now.
    #[error("unexpected message {0}")]
    Unexpected(&'static str),
    /// A path id that was used before, with other keys in view: a nonce would repeat.
    #[error("path {0} was used before")]
    PathReused(u16),
    /// A message about a path that never was.
    #[error("path {0} is unknown")]
    PathUnknown(u16),
}
