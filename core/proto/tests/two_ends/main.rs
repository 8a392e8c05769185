//! Both ends of a session on virtual time over emulated links.

mod declared;
mod harness;
mod path_mtu;
mod preferences;
mod restart;
mod slow_links;
mod transfers;
