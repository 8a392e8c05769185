//! Members without Hawser: the datagrams of a session inside GRE, between the hub and a member that
//! forwards by its routing table, as in Piconet.
//!
//! ```text
//!  taker               member (any router)                 hub
//!  data plane - UDP -> routing, kernel's GRE == GRE ==> raw socket, relay - UDP -> data plane
//!               LAN                          internet                      loopback
//! ```
//!
//! GRE contains the encrypted datagrams of the session, between the taker's address in the local
//! network and an address of the hub that exists only inside GRE. The relay replaces the hub's
//! socket, like that of [`over_tls`](crate::over_tls): datagrams of a flow are forwarded only to
//! the hub's own UDP port, from an address on loopback for each member, and answers return to the
//! flow's source. So sessions, keys and limits are those of UDP.
//!
//! GRE authenticates nothing: its packets are as trusted as UDP packets of any sender. They are
//! accepted only from configured members, so that answers cannot be redirected to others, and for
//! at most as many flows as [`flows`] permits.
//!
//! Source: Piconet section IV (tunnels between proxy and members; members forward what comes out);
//! RFC 2784, RFC 2890. Deviates: the hub's end is in user space, and the uplink direction also
//! passes the member.

mod flows;
pub mod listen;
