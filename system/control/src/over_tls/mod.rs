//! TLS on TCP for networks that block UDP: the same datagrams, on one connection for each network.
//!
//! ```text
//!    data plane, QUIC                                                       data plane, QUIC
//!          | UDP on 127.0.0.1                                UDP on loopback |
//!        [dial] -- TCP bound to the network -- TLS -- WebSocket -- TCP -- [listen]
//! ```
//!
//! A relay on each side replaces the other side's socket, so sessions, keys, replay windows and
//! limits are those of UDP, and the data plane's two threads are unaffected. A datagram is one
//! binary message of a WebSocket (RFC 6455), which proxies permit. The hub's relay forwards only to
//! the hub's own UDP port.
//!
//! TLS only disguises the traffic: the inner QUIC handshake authenticates the hub with the key of
//! the invitation, as over UDP, and data packets are encrypted. An intermediary that terminates
//! this TLS sees as much as every router sees of UDP. So a hub may present any certificate, and
//! proxies that intercept TLS work too. `status` shows whether the certificate is of the hub's own
//! key.
//!
//! TCP in the kernel builds a hidden queue when it retransmits losses. The queue is kept short:
//! unsent data is bounded in the kernel ([`UNSENT`]) and here ([`queue`]), where the oldest
//! datagrams are dropped first.

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

/// Sets socket options that keep the kernel's queue short, and end an unanswered connection.
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

/// Name of the relays' thread.
pub const THREAD: &str = "hawser-tls";
/// Maximum of unsent data in the kernel, 13 ms at 10 Mbit/s. Source: a TLS record (RFC 8446 section
/// 5.1). Units: bytes.
const UNSENT: u32 = 16 << 10;
/// Timeout of a connection without an answer. Without it, TCP would retry for a quarter of an hour
/// (`tcp_retries2`, linux/Documentation/networking/ip-sysctl.rst).
const UNANSWERED: Duration = Duration::from_secs(10);
/// Timeout of the handshakes: TCP, TLS and the upgrade take some five round trips, seven with a
/// proxy. Source: a hub gives unknown clients the same time (`TIMEOUT` of `hub.rs`).
const HANDSHAKE: Duration = Duration::from_secs(10);
/// Maximum bytes from the other side before it uses WebSocket: a head of HTTP. Units: bytes.
/// Source: our choice, twice the limit of common HTTP servers (8 KB); a larger one gives unknown
/// clients more memory.
const HEAD: usize = 16 << 10;
/// Maximum bytes in TLS that the kernel does not accept. Units: bytes. Source: our choice, a TLS
/// record (RFC 8446 section 5.1); more are packets that wait behind each other, fewer pause within
/// a record.
const TLS_BUFFER: usize = 16 << 10;

/// Returns the loopback address with any port.
fn loopback() -> SocketAddr {
    (std::net::Ipv4Addr::LOCALHOST, 0).into()
}

#[cfg(test)]
mod tests;
