//! Ways out of neighbours, as a client's session takes them: what the client asks of whoever knows
//! the neighbours (`hawser-pool`), and what is asked of the client.

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

/// Knows neighbours and what they offer.
///
/// The client waits for [`Self::next`] beside everything else. After whatever has happened it calls
/// [`Self::handle_timeout`], then [`Self::poll`] until that has nothing more to ask.
pub trait WaysOut {
    /// Waits until something has happened, which [`Self::handle_news`] takes in. May be dropped
    /// while it waits.
    fn next(&mut self) -> Pin<Box<dyn Future<Output = ()> + '_>>;

    /// Takes in what [`Self::next`] has waited for.
    fn handle_news(&mut self, now: Instant);

    /// When [`Self::handle_timeout`] has something to do, if nothing else happens.
    fn poll_timeout(&self) -> Option<std::time::Instant>;

    /// Looks for neighbours, as the configuration says, that lead to one of these addresses of the
    /// hub. `orders` reach the data plane.
    fn handle_timeout(&mut self, config: &PoolConfig, hubs: &[SocketAddr], orders: &Orders, now: Instant);

    /// What the client is to do.
    fn poll(&mut self) -> Option<Wish>;

    /// The client has taken a way out into use, under this number.
    fn handle_taken(&mut self, member: MemberId, network: NetworkId);

    /// What the data plane says of a path.
    fn handle_path(&mut self, network: NetworkId, path: u16, state: PathState, now: Instant);

    /// The hub has signed what a neighbour has carried.
    fn handle_receipt(&mut self, receipt: &Receipt);

    /// Another hub is in use.
    fn handle_hub_changed(&mut self);

    /// For `status`; nothing where nobody is asked.
    fn status(&self) -> Value;
}

/// What a client is to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Wish {
    /// Take a way out into use, and say so ([`WaysOut::handle_taken`]).
    Take(WayOut),
    /// Take it no more.
    Leave(NetworkId),
    /// Ask the hub to sign what the neighbour carries on the path
    /// ([`WaysOut::handle_receipt`]).
    HaveSigned {
        /// The path.
        path: u16,
        /// The code of the neighbour.
        member: [u8; CODE_LEN],
        /// The code of this device, as the neighbour knows it.
        taker: [u8; CODE_LEN],
    },
}

/// A neighbour's way out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WayOut {
    /// Whose it is.
    pub member: MemberId,
    /// What it is called.
    pub label: String,
    /// The neighbour's port, which stands in place of the hub; of a member without Hawser the hub
    /// itself, inside of GRE.
    pub relay: SocketAddr,
    /// Where the neighbour relays to.
    pub hub: SocketAddr,
    /// The largest packet, in bytes.
    pub mtu: u16,
    /// In bits a second of IP packets; 0 for no cap.
    pub cap_bps: u64,
    /// How `relay` is reached, where no route leads there yet.
    pub gateway: Option<Gateway>,
}

/// A member without Hawser, which forwards into GRE.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gateway {
    /// Its address in the local network.
    pub member: Ipv4Addr,
    /// The hub's addresses inside of GRE: network and prefix length.
    pub network: (Ipv4Addr, u8),
}

/// Makes what knows the neighbours; keys and trust are in the directory.
pub type OpenWaysOut = fn(PathBuf) -> Box<dyn WaysOut>;
