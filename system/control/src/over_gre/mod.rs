//! Members without Hawser: the same datagrams inside GRE, between the hub and a member that
//! forwards by its routing table, as in Piconet.
//!
//! ```text
//!  taker               member (any router)                 hub
//!  data plane - UDP -> routing, kernel's GRE == GRE ==> raw socket, relay - UDP -> data plane
//!               LAN                          internet                      loopback
//! ```
//!
//! Inside GRE travel the sealed datagrams of the session, between the taker's address in the local
//! network and an address of the hub that there is inside GRE alone. The relay stands in place of
//! the hub's socket, as that of [`over_tls`](crate::over_tls) does: what a flow carries goes to the
//! hub's own UDP port and nowhere else, from an address on loopback for each member, and answers go
//! back to where the flow came from. So sessions, keys and limits are those of UDP.
//!
//! GRE proves nothing: its packets count as much as UDP packets of anybody. They are taken from the
//! members that the configuration names, so that answers cannot be led to others, and for as many
//! flows as [`flows`] has room for.
//!
//! Source: Piconet section IV (tunnels between proxy and members; members forward what comes out);
//! RFC 2784, RFC 2890. Deviates: the hub's end is in user space, and the way up goes through the
//! member too.

mod flows;
pub mod listen;
