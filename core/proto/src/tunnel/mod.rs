//! The one driver of a session's tunnel: joins both machines of a session with headers, keys,
//! parity, header compression and addresses.
//!
//! [`Sending`] turns inner packets into datagrams, [`Receiving`] turns datagrams into inner
//! packets. The two share no state, so each may have its own thread. The receiving half passes
//! observations that concern sending as [`Relay`]s. [`Tunnel`] joins both halves if one thread
//! drives them (the simulator, tests), with the delay of relays between threads as a parameter.
//!
//! Bytes, keys and addresses belong to the driver. The halves reach them through small traits:
//! [`Buffers`] and [`Items`] (where packets are), [`Seal`] and [`Open`] (keys), [`Source`] (origin
//! of a datagram). So a daemon encrypts in the buffer from which the kernel sends, and the
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
//! Failure: a datagram of another sender is rejected with a [`Refusal`]. A lost relay is repeated
//! if the sending half depends on it (addresses, keys); otherwise the information only arrives
//! later.

mod burst;
mod keys;
mod receiving;
mod relay;
mod sending;
mod single_thread;

use hawser_units::PathId;
use hawser_wire::data::Inner;

use crate::flow::Run;
use crate::path::Probing;
use crate::stream::Accepted;

pub use burst::{Burst, Datagram, StreamBytes};
pub use keys::{OLD_KEY, ReceivingKey};
pub use receiving::{Arrival, Opened, Receiving, Refusal, Restored, Taken};
pub use relay::{Relay, RelayIntervals};
pub use sending::{Event, Sending};
pub use single_thread::{Handoff, Tunnel};

/// Side of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Sends with a new key as soon as the key is installed, and probes its paths by itself.
    Client,
    /// Sends with a new key once the client has used it, and learns each path's far address from
    /// what arrives.
    Hub,
}

impl Role {
    /// Returns when this side probes its paths.
    #[must_use]
    pub fn probing(self) -> Probing {
        match self {
            Self::Client => Probing::Eager,
            Self::Hub => Probing::OnHearing,
        }
    }
}

/// Encrypts the datagrams of one direction and epoch.
pub trait Seal {
    /// Encrypts a datagram in place: outer header, body, room for the tag.
    ///
    /// A packet number is never used twice on a path of one epoch, so it may be the nonce.
    fn seal(&self, path: PathId, number: u64, datagram: &mut [u8]);
}

/// Decrypts the datagrams of one direction and epoch.
pub trait Open {
    /// Decrypts a datagram in place; gives the body without the tag, or `None` when it is forged.
    fn open<'a>(&self, path: PathId, number: u64, datagram: &'a mut [u8]) -> Option<&'a mut [u8]>;
}

/// Storage of inner packets until they have been sent. `B` is the handle of a packet.
pub trait Buffers<B> {
    /// The bytes of the inner packet that a run is cut from.
    fn packet(&mut self, run: &Run<B>) -> &[u8];

    /// Releases a buffer that is no longer needed.
    fn release(&mut self, buffer: B);
}

/// Storage of received packets until they are delivered. `T` is the handle of a packet.
pub trait Items<T> {
    /// The bytes of what was received, behind its inner header.
    fn body(&self, item: &T) -> &[u8];

    /// Stores a packet that parity has rebuilt; `None` drops it.
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

/// Origin of a datagram: a hub answers over the same route.
pub trait Source: Copy + PartialEq {
    /// Bytes between an inner packet and the outer IP packet that answers to here.
    fn overhead(&self) -> u16;
}

#[cfg(test)]
mod tests;
