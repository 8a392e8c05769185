//! Uplinks of neighbours for a client's session: interface between the client and the owner of the
//! neighbours (`hawser-pool`), in both directions.

use std::future::Future;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::pin::Pin;

use hawser_config::PoolConfig;
use hawser_dataplane::{Orders, PathState};
use hawser_proto::pool::monitor::MemberId;
use hawser_units::{Instant, NetworkId};
use hawser_wire::receipt::{CODE_LEN, Receipt};
use serde_json::Value;

/// Owner of the neighbours and their offers.
///
/// The client waits for [`Self::next`] in its event loop. After each event it calls
/// [`Self::handle_timeout`], then [`Self::poll`] until it returns `None`.
pub trait NeighbourUplinks {
    /// Waits for an event for [`Self::handle_news`]. Cancel safe.
    fn next(&mut self) -> Pin<Box<dyn Future<Output = ()> + '_>>;

    /// Handles the event of [`Self::next`].
    fn handle_news(&mut self, now: Instant);

    /// Returns when [`Self::handle_timeout`] has an effect, if no other event occurs.
    fn poll_timeout(&self) -> Option<std::time::Instant>;

    /// Searches neighbours, according to the configuration, that reach one of these addresses of
    /// the hub. `orders` is the queue to the data plane.
    fn handle_timeout(&mut self, config: &PoolConfig, hubs: &[SocketAddr], orders: &Orders, now: Instant);

    /// Returns the next request to the client.
    fn poll(&mut self) -> Option<Wish>;

    /// Handles the client's confirmation that it uses an uplink, under this number.
    fn handle_taken(&mut self, member: MemberId, network: NetworkId);

    /// Handles the data plane's report of a path's state.
    fn handle_path(&mut self, network: NetworkId, path: u16, state: PathState, now: Instant);

    /// Handles a receipt that the hub has signed for traffic that a neighbour relayed.
    fn handle_receipt(&mut self, receipt: &Receipt);

    /// Handles a change of the hub in use.
    fn handle_hub_changed(&mut self);

    /// Returns the entry of `status`; null if no neighbours are used.
    fn status(&self) -> Value;
}

/// Request to a client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Wish {
    /// Use an uplink, and confirm it ([`NeighbourUplinks::handle_taken`]).
    Take(NeighbourUplink),
    /// Stop using an uplink.
    Leave(NetworkId),
    /// Ask the hub to sign receipts for traffic that the neighbour relays on the path
    /// ([`NeighbourUplinks::handle_receipt`]).
    HaveSigned {
        /// The path.
        path: u16,
        /// Code of the neighbour.
        member: [u8; CODE_LEN],
        /// Code of this device that the neighbour knows.
        taker: [u8; CODE_LEN],
    },
}

/// Uplink of a neighbour.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NeighbourUplink {
    /// Owner of the uplink.
    pub member: MemberId,
    /// Name of the uplink.
    pub label: String,
    /// Port of the neighbour, which replaces the hub's address; for a member without Hawser the hub
    /// itself, inside GRE.
    pub relay: SocketAddr,
    /// Address of the hub to which the neighbour relays.
    pub hub: SocketAddr,
    /// Maximum packet size, bytes.
    pub mtu: u16,
    /// Rate limit in bit/s of IP packets; 0 for no cap.
    pub cap_bps: u64,
    /// Gateway to `relay`, if there is no route yet.
    pub gateway: Option<Gateway>,
}

/// Member without Hawser, which forwards to GRE.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gateway {
    /// Address in the local network.
    pub member: Ipv4Addr,
    /// Addresses of the hub inside GRE: network and prefix length.
    pub network: (Ipv4Addr, u8),
}

/// Function that creates the owner of the neighbours; keys and trust are in the directory.
pub type OpenNeighbourUplinks = fn(PathBuf) -> Box<dyn NeighbourUplinks>;
