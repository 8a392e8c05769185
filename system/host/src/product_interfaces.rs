//! Interfaces between products: traits and channels, so that no product depends on another.
//!
//! The program (`hawser`) combines products: it passes functions to a client that start the
//! products beside it, and the client uses their results only through these traits.
//!
//! - [`AccessPoints`]: joins access points (`hawser-air`), beside a client and direct mode.
//! - [`DirectModeHandle`] and [`Uplink`]: the two ends between a client and direct mode on its
//!   thread (`hawser-direct`). Direct mode treats the tunnel as another uplink, which appears,
//!   changes, and carries all flows without a rule of their own.
//! - [`Led`] and [`Finder`]: the two ends between a client and direct mode for measuring which hub
//!   of a fleet reaches a destination sooner (`hub = "faster"`). The client has the sessions and
//!   routes flows; direct mode observes the traffic of flows, and decides.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::rc::Rc;

use anyhow::Result;
use hawser_config::ClientConfig;
use hawser_linux::system::System;
use hawser_linux::tun::Tun;
use hawser_units::{Duration, Net, NetworkId};
use hawser_wire::airtime::Airtime;
use hawser_wire::inner::FlowKey;
use serde_json::Value;
use tokio::sync::{mpsc, oneshot, watch};

use crate::control_socket::{Asked, Request};
use crate::dhcp;
use crate::options::ClientOptions;
use crate::usage::Usage;
use crate::watched::send_if_changed;

/// A future on the daemon's own thread.
pub type Local<'a, T> = Pin<Box<dyn Future<Output = T> + 'a>>;

/// Interface of a daemon to the product that joins access points for it.
pub trait AccessPoints {
    /// Applies a changed configuration.
    fn handle_config(&self, config: &ClientConfig);

    /// Processes the set of networks over which the hub answers.
    fn handle_live(&self, names: BTreeSet<String>);

    /// Sets the number of consecutive slots of a network, if a card is shared between several.
    fn set_weight(&self, network: String, weight: u32, answer: oneshot::Sender<Result<Value>>);

    /// Returns the entry of `status` for a network, if it is a Wi-Fi one.
    fn of(&self, interface: &str) -> Option<Value>;

    /// Returns the entry of `status` for every Wi-Fi interface.
    fn status(&self) -> Value;

    /// Returns the airtime of packets of each Wi-Fi interface on its channel, where it is known.
    fn airtimes(&self) -> Vec<(String, Airtime)>;

    /// Returns the waiting time of packets for each interface, if a card is shared between several.
    fn pauses(&self) -> Vec<(String, Duration)>;

    /// Returns notices for the user.
    fn notices(&self) -> Vec<String>;

    /// Disconnects from all access points.
    fn end(self: Box<Self>) -> Local<'static, ()>;
}

/// Parameters of joining access points.
pub struct Stations<'a> {
    /// System that records changes and undoes them.
    pub system: System,
    /// Directory of keys.
    pub dir: &'a Path,
    /// Directory of programs' sockets.
    pub run_dir: PathBuf,
    /// Configuration of the access points.
    pub config: &'a ClientConfig,
    /// Set if there is a tunnel, whose connections use all networks, so that none is bound to one
    /// network.
    pub is_tunnel: bool,
    /// Receives the interfaces that need an address.
    pub dhcp: watch::Sender<BTreeSet<String>>,
}

/// Function that starts joining access points.
pub type StartAccessPoints = fn(Stations<'_>) -> Box<dyn AccessPoints>;

/// Parameters of the tunnel, from the hub.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tunnel {
    /// Inner addresses of this machine.
    pub addresses: Vec<IpAddr>,
    /// Networks of these addresses.
    pub networks: Vec<Net>,
    /// The hub's resolvers.
    pub dns: Vec<IpAddr>,
    /// The largest inner packet, in bytes.
    pub mtu: u16,
}

impl Tunnel {
    /// Returns the inner address of a family.
    #[must_use]
    pub fn address(&self, ipv6: bool) -> Option<IpAddr> {
        let mut addresses = self.addresses.iter();
        addresses.find(|address| address.is_ipv6() == ipv6).copied()
    }
}

/// Networks over which new connections bypass a hub that does not answer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Bypass {
    /// Networks that a user has paused, by name: they are not used.
    pub paused: BTreeSet<String>,
    /// Networks that are used only while no other works, by name.
    pub backups: BTreeSet<String>,
}

/// Client's end of the channel to direct mode: reports the tunnel, and sends requests.
pub struct DirectModeHandle {
    requests: mpsc::Sender<Asked>,
    tunnel: watch::Sender<Option<Tunnel>>,
    bypass: watch::Sender<Option<Bypass>>,
}

/// Direct mode's end of the channel to the client: receives the tunnel and requests.
pub struct Uplink {
    news: watch::Receiver<Option<Tunnel>>,
    bypass: watch::Receiver<Option<Bypass>>,
    requests: Option<mpsc::Receiver<Asked>>,
    tunnel: Option<Tunnel>,
}

/// Both ends.
#[must_use]
pub fn direct_mode_channel() -> (DirectModeHandle, Uplink) {
    let (asks, asked) = mpsc::channel(MAX_WAITING);
    let (tunnel, news) = watch::channel(None);
    let (decides, bypass) = watch::channel(None);
    let own = DirectModeHandle {
        requests: asks,
        tunnel,
        bypass: decides,
    };
    let other = Uplink {
        news,
        bypass,
        requests: Some(asked),
        tunnel: None,
    };
    (own, other)
}

impl DirectModeHandle {
    /// Reports the parameters of the tunnel that the hub has set up.
    pub fn handle_tunnel(&self, tunnel: Tunnel) {
        let _ = self.tunnel.send(Some(tunnel));
    }

    /// Routes new connections outside the tunnel (`Some`), or through the tunnel again.
    pub fn handle_bypass(&self, bypass: Option<Bypass>) {
        send_if_changed(&self.bypass, bypass);
    }

    /// Sends a request; the result is delivered to the returned receiver.
    pub fn ask(&self, request: Request) -> oneshot::Receiver<Result<Value>> {
        let (answer, comes) = oneshot::channel();
        // If the queue is full, the receiver reports that there is no answer.
        let _ = self.requests.try_send(Asked { request, answer });
        comes
    }
}

impl Uplink {
    /// Returns the tunnel; `None` until the hub has answered for the first time.
    #[must_use]
    pub fn tunnel(&self) -> Option<&Tunnel> {
        self.tunnel.as_ref()
    }

    /// Networks over which new connections bypass the hub; `None` while they use the tunnel.
    #[must_use]
    pub fn bypass(&self) -> Option<Bypass> {
        self.bypass.borrow().clone()
    }

    /// Waits for a change of tunnel or bypass; forever after the client has ended. Cancel safe.
    pub async fn next(&mut self) {
        tokio::select! {
            Ok(()) = self.news.changed() => self.tunnel = self.news.borrow_and_update().clone(),
            Ok(()) = self.bypass.changed() => {}
            else => std::future::pending().await,
        }
    }

    /// Returns the requests for the event loop; there is one receiver.
    ///
    /// # Panics
    /// On the second call.
    #[must_use]
    pub fn take_requests(&mut self) -> mpsc::Receiver<Asked> {
        self.requests.take().expect("it is taken once")
    }
}

/// Hubs of a fleet, by the number of the route through each (from [`FIRST_HUB`]).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Fleet {
    /// Hub in use, which carries all flows without a better known hub.
    pub in_use: Option<NetworkId>,
    /// Other hubs, which may have a session in addition.
    pub others: BTreeMap<NetworkId, OtherHub>,
}

/// A hub other than the one in use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OtherHub {
    /// Name of the hub.
    pub name: String,
    /// Response time; `None` before it was measured.
    pub round_trip: Option<Duration>,
    /// Set if the hub has a session with a working path, so that flows may begin in it.
    pub is_open: bool,
}

/// Results about hubs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Found {
    /// Hub that should have a session.
    pub wanted: Option<NetworkId>,
    /// Destinations whose flows are to begin at the hub with the additional session.
    pub through: BTreeSet<IpAddr>,
}

/// Request to the client that a connection begin through one of the hubs.
pub struct Placing {
    /// Route through the hub in use, or through another one with a session.
    pub way: NetworkId,
    /// The connection.
    pub flow: FlowKey,
    /// Notified when the request was executed; dropped if it cannot be.
    pub done: oneshot::Sender<()>,
}

/// The client's end.
pub struct Led {
    /// Reports the hubs.
    pub fleet: watch::Sender<Fleet>,
    /// Receives the results.
    pub found: watch::Receiver<Found>,
    /// Receives requests for connections to begin through one of the hubs.
    pub placings: mpsc::Receiver<Placing>,
}

/// Direct mode's end.
pub struct Finder {
    /// Receives the hubs.
    pub fleet: watch::Receiver<Fleet>,
    /// Reports the measurements.
    pub found: watch::Sender<Found>,
    /// Requests that connections begin through one of the hubs.
    pub placings: mpsc::Sender<Placing>,
}

/// Both ends.
#[must_use]
pub fn finder() -> (Led, Finder) {
    let (fleet, hubs) = watch::channel(Fleet::default());
    let (tell, found) = watch::channel(Found::default());
    let (place, placings) = mpsc::channel(MAX_WAITING);
    let led = Led {
        fleet,
        found,
        placings,
    };
    let finder = Finder {
        fleet: hubs,
        found: tell,
        placings: place,
    };
    (led, finder)
}

/// Number of the route through the first hub. Source: the numbers of networks are bytes, and this
/// is the next number.
pub const FIRST_HUB: u32 = 256;

/// State that a client shares with concurrent direct mode.
pub struct Shared {
    /// Options of the client.
    pub options: ClientOptions,
    /// Configuration with the rules.
    pub config: ClientConfig,
    /// System that records changes, which the client undoes.
    pub system: System,
    /// The client's interface.
    pub tun: Tun,
    /// Usage of networks.
    pub usage: Rc<RefCell<Usage>>,
    /// DHCP leases, which the client manages.
    pub leases: dhcp::View,
    /// Direct mode's end.
    pub uplink: Uplink,
    /// Direct mode's end of the channel for measurements of other hubs; `None` if they are not
    /// measured.
    pub finder: Option<Finder>,
}

/// Runs direct mode concurrently with a client, until the client ends.
pub type RunDirect = fn(Shared) -> Local<'static, Result<()>>;

/// Capacity of the queue. Source: that of the control socket (`control_socket.rs`).
const MAX_WAITING: usize = 16;
