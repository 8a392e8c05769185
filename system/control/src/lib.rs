//! Control channel and its participants: QUIC between a client and its hub, mutually authenticated
//! by pinned keys, and the store of clients.
//!
//! Crate of level 3. It contains both ends of a session, so that every product with one of them
//! (clients, hubs, both sides of a repeater) runs the same code, and no product depends on another.
//!
//! | question | module |
//! |---|---|
//! | a client's session | [`client`]: `driver.rs`, `reach.rs`, `networks.rs` |
//! | a hub's sessions | [`hub`]: `core.rs` |
//! | state that is passed to the next process | [`handover`] |
//! | enrolment: stores of clients, on disk or in a database | [`enrolment`] |
//! | resources that unauthenticated senders may use | [`admission`], [`budget`] |
//! | keys and TLS, the stream of messages, sockets | [`tls`], [`stream`], [`quic_socket`] |
//! | networks that block UDP | [`over_tls`], with threads of [`relays`] |
//! | members without Hawser | [`over_gre`]; connections of relays: [`relay_connections`] |
//! | peers, and the messages that move flows | [`peers`], [`peer`] |
//! | status of the data plane | [`report`] |
//! | clients that only hold a session, for measurements | [`idle_clients`] |
//!
//! A newcomer starts with [`client::connect`] (how a client connects) and `hub/core.rs` (the hub's
//! state of a session).
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
pub mod quic_socket;
pub mod relay_connections;
pub mod relays;
pub mod report;
pub mod stream;
pub mod tls;
