//! Juggler's evaluation.
//!
//! Values that the paper does not state, chosen here for all experiments: access points buffer 64
//! packets for a sleeping client, as common Linux ones do; gateways queue up to a sender's window,
//! because NIST Net drops nothing by default; the laboratory's round-trip time is 8 ms, 5 ms of it
//! on the wire; 802.11g at 54 Mbit/s; all hosts run Linux 2.6.22, as the laptop does. The undo of
//! spurious timeouts, which that Linux has, was added after a first run of figure 8. Where two
//! connections share the queue of a slow gateway, delays grow to ten seconds faster than timeouts
//! adapt; without undo the single access point retransmits a twentieth of the file.
//!
//! Source: Juggler sections 3 to 6.

pub(crate) mod lab;
mod radio;
mod side_channel;
mod striping;
mod swarm;
mod video;

pub use radio::{Background, Switching};
pub use side_channel::SideChannel;
pub use striping::Striping;
pub use swarm::Swarm;
pub use video::Video;
