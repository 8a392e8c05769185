//! Neighbours: devices near each other that use each other's uplinks.
//!
//! A *member* gives: `hawser share` ([`share`]) relays the datagrams between a *taker*'s tunnel and
//! its hub, over the member's own networks. The taker's data plane has an additional path for each
//! of them (`take.rs`), whose remote address is a port of the member; the hub only sees datagrams
//! from an additional address. The relayed packets are encrypted between taker and hub.
//!
//! ```text
//!    taker                      member                                hub
//!   data plane -- UDP, LAN --> [port | socket bound to the modem] -- UDP --> data plane
//!   client    -- QUIC, LAN --> share: who may, what is offered
//! ```
//!
//! The two know each other's keys by their codes ([`Code`](hawser_config::identity::Code)), which
//! their owners have exchanged ([`Trust`]); QUIC and the proofs of keys are those of hub and client
//! (`hawser_control::tls`). A member is found by its daily tag in multicast DNS (`discovery.rs`),
//! or at a configured address.
//!
//! A relayed datagram is sent only to the hub that the taker has named and the member's owner has
//! approved, and never to another member, because the sockets are bound to networks of the machine
//! itself. So relays cannot form loops, and two devices that would use each other are rejected
//! (`in_use.rs`).
//!
//! | question | file |
//! |---|---|
//! | a member's side | [`share`], its relays: `share/relay.rs` |
//! | a taker's side | `take.rs` ([`open_uplinks`]); of members without Hawser: `gre.rs` |
//! | trusted devices | `trust.rs`; their discovery: `discovery.rs`, `tag.rs` |
//! | relayed traffic | `accounts.rs`; signed by hubs: `receipts.rs` |
//!
//! The decisions of both sides are in `hawser_proto::pool`. A newcomer starts with [`share`].
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
pub use take::open_uplinks;
pub use trust::{Known, Trust, forget};

use hawser_config::identity::Identity;
use hawser_proto::pool::monitor::{Measured, State};
use hawser_units::Rate;
use serde_json::{Value, json};

/// Returns the key of this device for neighbours, and creates it if there is none. It differs from
/// the key for a hub, so neighbours cannot learn the hub of a device.
///
/// # Errors
/// If the file cannot be read or written.
pub fn identity(dir: &Path) -> anyhow::Result<Identity> {
    hawser_config::atomic_file::private_directory(dir)?;
    Identity::load_or_create(&dir.join("neighbour.key"))
}

/// Returns a word for the state of an uplink.
fn state_text(state: State) -> &'static str {
    match state {
        State::Offered => "offered",
        State::Active => "active",
        State::Suspect => "suspect",
        State::Barred => "gone",
    }
}

/// Returns the measurements of an uplink for status; null where nothing is known.
fn measured_status(measured: Option<Measured>) -> Value {
    let known = measured.filter(|measured| measured.rate != Rate::ZERO);
    json!({
        "rate_bps": known.map(|measured| measured.rate.as_bps()),
        "rate_is_lower_bound": known.map(|measured| !measured.is_filled),
        "loss": measured.map(|measured| measured.loss),
        "delay_ms": measured.map(|measured| measured.delay.as_secs_f64() * 1e3),
    })
}

/// Adds the entries of an object to another one.
fn merge(to: &mut Value, from: Value) {
    if let (Value::Object(to), Value::Object(from)) = (to, from) {
        to.extend(from);
    }
}
