//! Streams: TCP connections that are split at both ends of the tunnel.
//!
//! The bytes of a connection that enters the tunnel are sent as a stream over all paths, and the
//! far end of the tunnel has a TCP connection of its own with the destination. So no inner TCP
//! mistakes the tunnel's retransmissions and the differences of its paths for congestion, and no
//! inner window limits the rate.
//!
//! [`Sending`] is part of [`crate::egress`], [`Receiving`] of [`crate::ingress`]: streams take
//! turns with flows, and have their paths, windows and loss detection. Neither half stores bytes.
//! The bytes of a stream are identified by the number of the stream and their offset. They are in
//! the driver's memory: on the sending side those that were written and not yet released, on the
//! receiving side those within the credit. docs/manual/streams.md describes formats and states.

mod admission;
mod form;
mod in_flight;
mod outgoing;
mod ranges;
mod receiving;
mod sending;
mod spread;
#[cfg(test)]
mod tests;

pub use admission::{ConnectRate, Reserve};
pub use form::{Form, FormRule, Forms, INTERACTIVE_PORTS, MAX_FORM_RULES, is_interactive};
pub use receiving::{Accepted, Config, Counters, Event, Notice, Receiving};
pub use sending::{Chunk, Sending, SendingNotice};
pub(crate) use spread::choose;
