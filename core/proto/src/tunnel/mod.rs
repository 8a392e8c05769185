//! The one driver of a session's tunnel: what joins both machines of a session with headers, keys,
//! parity, header compression and addresses.
//!
//! [`Sending`] turns inner packets into datagrams, [`Receiving`] turns datagrams into inner
//! packets. The two share nothing, so each may have its own thread; whatever the receiving half
//! notices that concerns sending is a [`Relay`]. [`Tunnel`] joins both halves where one thread
//! drives them (the simulator, tests), with the delay that relays have between threads as a
//! parameter.
//!
//! Bytes, keys and addresses belong to the driver. The halves reach them through small traits:
//! [`Buffers`] and [`Items`] (where packets lie), [`Seal`] and [`Open`] (keys), [`Source`] (where a
//! datagram came from). So a daemon encrypts in the buffer that the kernel sends from, and the
//! simulator has no payload at all.
//!
//! ```text
//!                 handle_inner               poll_burst
//!   inner packet ------------> [ Sending ] ------------> datagrams of one path
//!                                  ^ handle_relay
//!                                  | relay
//!   inner packets <----------- [ Receiving ] <---------- datagram
//!                 out, restore               open, handle_packet
//! ```
//!
//! How it fails: a datagram that is not ours is refused with a [`Refusal`]; a relay that is lost is
//! told again where the sending half must know it (addresses, keys), and is only late where it need
//! not.

mod burst;
mod joined;
mod keys;
mod receiving;
mod relay;
mod sending;

use hawser_units::PathId;
use hawser_wire::data::Inner;

use crate::flow::Run;
use crate::path::Probing;
use crate::stream::Accepted;

pub use burst::{Burst, Datagram, StreamBytes};
pub use joined::{Handoff, Tunnel};
pub use keys::{OLD_KEY, ReceivingKey};
pub use receiving::{Arrival, Opened, Receiving, Refusal, Restored, Taken};
pub use relay::{Relay, RelayIntervals};
pub use sending::{Event, Sending};

/// Which side of a session this is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Sends with a new key as soon as the key is installed, and probes its paths by itself.
    Client,
    /// Sends with a new key once the client has used it, and learns each path's far address from
    /// what arrives.
    Hub,
}

impl Role {
    /// When this side probes its paths.
    #[must_use]
    pub fn probing(self) -> Probing {
        match self {
            Self::Client => Probing::Eager,
            Self::Hub => Probing::OnHearing,
        }
    }
}

/// Protects the datagrams of one direction and epoch.
pub trait Seal {
    /// Encrypts a datagram in place: outer header, body, room for the tag.
    ///
    /// A packet number is never used twice on a path of one epoch, so it may be the nonce.
    fn seal(&self, path: PathId, number: u64, datagram: &mut [u8]);
}

/// Opens the datagrams of one direction and epoch.
pub trait Open {
    /// Decrypts a datagram in place; gives the body without the tag, or `None` when it is forged.
    fn open<'a>(&self, path: PathId, number: u64, datagram: &'a mut [u8]) -> Option<&'a mut [u8]>;
}

/// Where inner packets lie until they have been sent. `B` is a handle of one.
pub trait Buffers<B> {
    /// The bytes of the inner packet that a run is cut from.
    fn packet(&mut self, run: &Run<B>) -> &[u8];

    /// Takes a buffer back that is not needed any more.
    fn release(&mut self, buffer: B);
}

/// Where received packets lie until they are delivered. `T` is a handle of one.
pub trait Items<T> {
    /// The bytes of what was received, behind its inner header.
    fn body(&self, item: &T) -> &[u8];

    /// Stores a packet that parity brought back; `None` drops it.
    fn store(&mut self, packet: &[u8], inner: &Inner) -> Option<T>;

    /// Stores a packet that arrived in pieces, of which `last` is the handle of the last one;
    /// `None` drops it.
    fn join(&mut self, packet: &[u8], inner: &Inner, last: &T) -> Option<T>;

    /// Stores bytes of a stream that are in the body of `item`. Drivers that take no streams leave
    /// it out.
    fn take_bytes(&mut self, item: &T, accepted: &Accepted) {
        let _ = (item, accepted);
    }

    /// Takes a handle back whose packet is not delivered.
    fn free(&mut self, item: T);
}

/// The way that a datagram came: a hub answers by the same.
pub trait Source: Copy + PartialEq {
    /// Bytes between an inner packet and the outer IP packet that answers to here.
    fn overhead(&self) -> u16;
}

#[cfg(test)]
mod tests;
