//! The control channel and who is on it: QUIC between a client and its hub, mutually authenticated
//! by pinned keys, and the store of clients.
//!
//! Level 3 of the house. Both ends of a session are here, so that every product that has one side
//! of it (clients, hubs, both sides of a repeater) runs the same code, and none depends on another
//! product.
//!
//! | question | module |
//! |---|---|
//! | how a client's session is kept | [`client`]: `driver.rs`, `reach.rs`, `networks.rs` |
//! | what a hub does with its sessions | [`hub`]: `core.rs` |
//! | what outlives a hub's process | [`handover`] |
//! | who is let in: stores of clients, on disk or in a database | [`enrolment`] |
//! | what strangers may take up | [`admission`], [`budget`] |
//! | keys and TLS, the stream of messages, sockets | [`tls`], [`stream`], [`quic_socket`] |
//! | where UDP is blocked | [`over_tls`], with threads of [`relays`] |
//! | members without Hawser | [`over_gre`]; who comes by way of relays: [`places`] |
//! | peers, and the conversation by which flows move | [`peers`], [`peer`] |
//! | what status says of the data plane | [`report`] |
//! | clients that only hold a session, for measurements | [`idle_clients`] |
//!
//! A newcomer starts with [`client::connect`] (how a client gets in) and `hub/core.rs` (what the
//! hub then keeps).
#![forbid(unsafe_code)]

pub mod admission;
pub mod budget;
pub mod client;
pub mod enrolment;
pub mod event_thread;
pub mod handover;
pub mod hub;
pub mod idle_clients;
pub mod over_gre;
pub mod over_tls;
pub mod peer;
pub mod peers;
pub mod places;
pub mod quic_socket;
pub mod relays;
pub mod report;
pub mod stream;
pub mod tls;
