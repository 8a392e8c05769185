//! Where UDP is blocked: the same datagrams over TLS on TCP, one connection for each network.
//!
//! ```text
//!    data plane, QUIC                                                       data plane, QUIC
//!          | UDP on 127.0.0.1                                UDP on loopback |
//!        [dial] -- TCP bound to the network -- TLS -- WebSocket -- TCP -- [listen]
//! ```
//!
//! A relay on each side stands in place of the other side's socket, so sessions, keys, replay
//! windows and limits are those of UDP, and the two threads of the data plane know nothing of it.
//! A datagram is one binary message of a WebSocket (RFC 6455), which proxies let through. The hub's
//! relay forwards to the hub's own UDP port and to nowhere else.
//!
//! TLS hides here what is spoken, and proves nothing: who the hub is, the QUIC handshake inside
//! proves with the key of the invitation, as over UDP, and data packets are sealed. Whoever ends
//! this TLS in between sees what everybody on the way sees of UDP. So a hub may show a certificate
//! of anybody, and a proxy that opens TLS is passed too. Whether the certificate is of the hub's
//! own key is shown by `status`.
//!
//! A kernel that retransmits losses of its own makes a queue that nobody sees. It is kept short:
//! what is not sent yet is bounded in the kernel ([`UNSENT`]) and here ([`queue`]), where the
//! oldest datagrams go first.

pub mod acme;
mod bounded;
mod carry;
mod certificate;
pub mod dial;
pub mod listen;
mod proxy;
mod queue;

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use socket2::{SockRef, TcpKeepalive};
use tokio::net::TcpStream;

/// Keeps the kernel's queue short, and lets a connection that nobody answers end.
fn prepare(stream: &TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let socket = SockRef::from(stream);
    socket.set_tcp_notsent_lowat(UNSENT)?;
    socket.set_tcp_user_timeout(Some(UNANSWERED))?;
    socket.set_tcp_keepalive(
        &TcpKeepalive::new()
            .with_time(UNANSWERED)
            .with_interval(UNANSWERED / 4)
            .with_retries(3),
    )
}

/// What the relays' thread is called.
pub const THREAD: &str = "hawser-tls";
/// What the kernel takes that it cannot send yet: a TLS record; 13 ms at 10 Mbit/s. Units: bytes.
const UNSENT: u32 = 16 << 10;
/// A connection without an answer for so long is gone: paths probe each other every 20 s at least,
/// and TCP would try for a quarter of an hour.
const UNANSWERED: Duration = Duration::from_secs(10);
/// TCP, TLS and the upgrade take some five round trips, with a proxy seven; a hub gives strangers
/// no longer either.
const HANDSHAKE: Duration = Duration::from_secs(10);
/// The longest datagram: the largest MTU that a network may have, and room to spare. Units: bytes.
const LONGEST: usize = 16 << 10;
/// What the other side may say before it has spoken WebSocket: a head of HTTP. Units: bytes.
const HEAD: usize = 16 << 10;
/// What TLS may hold back that the kernel does not take. Units: bytes.
const TLS_BUFFER: usize = 16 << 10;

/// Loopback, any port.
fn loopback() -> SocketAddr {
    (std::net::Ipv4Addr::LOCALHOST, 0).into()
}

#[cfg(test)]
mod tests;
