//! Neighbours: devices near each other that use each other's ways out.
//!
//! A *member* gives: `hawser share` ([`share`]) relays the datagrams that a *taker*'s tunnel sends
//! to its hub, over the member's own networks, and back. The taker's data plane has one path more
//! for each of them (`take.rs`), whose remote address is a port of the member; the hub sees
//! datagrams from one address more, and nothing else changes for it. What passes is sealed between
//! taker and hub.
//!
//! ```text
//!    taker                      member                                hub
//!   data plane -- UDP, LAN --> [port | socket bound to the modem] -- UDP --> data plane
//!   client    -- QUIC, LAN --> share: who may, what is offered
//! ```
//!
//! The two know each other's keys by their codes ([`Code`](hawser_config::identity::Code)), which
//! their owners have told each other ([`Trust`]); QUIC and the keys' proofs are those of hub and
//! client (`hawser_control::tls`). A member is found by its daily tag in multicast DNS
//! (`discovery.rs`), or at an address that is configured.
//!
//! A relayed datagram goes to the one hub that the taker has named and the member's owner has seen,
//! and never to another member: the sockets are bound to networks of the machine itself. So there
//! are no loops of relays; and two devices that would take from each other are told so
//! (`in_use.rs`).
//!
//! | question | file |
//! |---|---|
//! | what a member gives | [`share`], its relays: `share/relay.rs` |
//! | what a taker takes | `take.rs` ([`ways_out`]); of members without Hawser: `gre.rs` |
//! | who trusts whom | `trust.rs`; who is found: `discovery.rs`, `tag.rs` |
//! | what went where | `accounts.rs`; what hubs have signed of it: `receipts.rs` |
//!
//! What decides over both is in `hawser_proto::pool`. A newcomer starts with [`share`].
#![forbid(unsafe_code)]

mod accounts;
mod discovery;
mod gre;
mod in_use;
mod receipts;
pub mod share;
mod tag;
mod take;
mod trust;

use std::path::Path;

pub use accounts::{Account, accounts, to_csv};
pub use receipts::{Signed, receipts, receipts_to_csv};
pub use take::ways_out;
pub use trust::{Known, Trust, forget};

use hawser_config::identity::Identity;
use hawser_proto::pool::monitor::State;

/// The key by which neighbours know this device; made when there is none. It is not the one by
/// which a hub knows it: neighbours cannot tell whose client somebody is.
///
/// # Errors
/// The file cannot be read or written.
pub fn identity(dir: &Path) -> anyhow::Result<Identity> {
    hawser_config::atomic_file::private_directory(dir)?;
    Identity::load_or_create(&dir.join("neighbour.key"))
}

/// How a way out stands, in a word.
fn shown(state: State) -> &'static str {
    match state {
        State::Offered => "offered",
        State::Active => "active",
        State::Suspect => "suspect",
        State::Barred => "gone",
    }
}
