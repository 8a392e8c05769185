//! Juggler's evaluation.
//!
//! Not stated by the paper and chosen here, for all experiments: access points keep 64 packets for
//! a sleeping client, as common Linux ones do; gateways hold as much as a sender's window, because
//! NIST Net drops nothing unless told to; the laboratory's round trip is 8 ms, of which the wire
//! has 5; 802.11g at 54 Mbit/s; all hosts are Linux 2.6.22 as the laptop is. That needless timeouts
//! are undone (as that Linux does) was added after a look at figure 8: where two connections share
//! the queue of a slow gateway, delays of ten seconds come up faster than timeouts follow, and
//! without it the single access point repeats a twentieth of the file.
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
