//! What products ask of each other: traits and channels, so that none has to know another.
//!
//! A program (`hawser`) puts products together: it gives a client the functions that start what
//! runs beside the client, and the client knows what they return by these traits alone.
//!
//! - [`AccessPoints`]: joins access points (`hawser-air`), beside a client and direct mode.
//! - [`Beside`] and [`Uplink`]: the two ends between a client and direct mode on its thread
//!   (`hawser-direct`). To direct mode the tunnel is one more way out, which comes, changes, and
//!   takes all flows of which no rule says otherwise.
//! - [`Led`] and [`Finder`]: the same two, where it is found out through which hub of a fleet
//!   destinations are reached sooner (`hub = "faster"`). The client has the sessions and leads
//!   flows; direct mode sees what flows carry, and decides.

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
use crate::watched::tell_if_new;

/// A future on the daemon's own thread.
pub type Local<'a, T> = Pin<Box<dyn Future<Output = T> + 'a>>;

/// What a daemon asks of whoever joins access points for it.
pub trait AccessPoints {
    /// Follows a changed configuration.
    fn handle_config(&self, config: &ClientConfig);

    /// The networks over which the hub answers.
    fn handle_live(&self, names: BTreeSet<String>);

    /// Serves a network for so many slots in turn, where a card takes turns.
    fn set_weight(&self, network: String, weight: u32, answer: oneshot::Sender<Result<Value>>);

    /// For `status`: what is known of a network, if it is a Wi-Fi one.
    fn of(&self, interface: &str) -> Option<Value>;

    /// For `status`: every Wi-Fi interface.
    fn status(&self) -> Value;

    /// What packets of each Wi-Fi interface take of its channel, where that is known.
    fn airtimes(&self) -> Vec<(String, Airtime)>;

    /// How long packets for each interface wait, where a card takes turns.
    fn pauses(&self) -> Vec<(String, Duration)>;

    /// What a user should know.
    fn notices(&self) -> Vec<String>;

    /// Leaves all access points.
    fn end(self: Box<Self>) -> Local<'static, ()>;
}

/// What is needed to join access points.
pub struct Stations<'a> {
    /// What is changed in the system, and undone.
    pub system: System,
    /// Where keys are kept.
    pub dir: &'a Path,
    /// Where sockets of programs lie.
    pub run_dir: PathBuf,
    /// What is to be joined.
    pub config: &'a ClientConfig,
    /// Connections go over whichever of the networks carries more: none is bound to one.
    pub is_tunnel: bool,
    /// Learns which interfaces want an address.
    pub dhcp: watch::Sender<BTreeSet<String>>,
}

/// Begins to join access points.
pub type StartAccessPoints = fn(Stations<'_>) -> Box<dyn AccessPoints>;

/// The tunnel as the hub wants it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tunnel {
    /// The inner addresses of this machine.
    pub addresses: Vec<IpAddr>,
    /// The networks that these are in.
    pub networks: Vec<Net>,
    /// The hub's resolvers.
    pub dns: Vec<IpAddr>,
    /// The largest inner packet, in bytes.
    pub mtu: u16,
}

impl Tunnel {
    /// The inner address of a family.
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

/// The client's end: tells direct mode of the tunnel, and asks it.
pub struct Beside {
    requests: mpsc::Sender<Asked>,
    tunnel: watch::Sender<Option<Tunnel>>,
    bypass: watch::Sender<Option<Bypass>>,
}

/// Direct mode's end: the tunnel as it was last heard of, and what is asked.
pub struct Uplink {
    news: watch::Receiver<Option<Tunnel>>,
    bypass: watch::Receiver<Option<Bypass>>,
    requests: Option<mpsc::Receiver<Asked>>,
    tunnel: Option<Tunnel>,
}

/// Both ends.
#[must_use]
pub fn beside() -> (Beside, Uplink) {
    let (asks, asked) = mpsc::channel(MOST_WAITING);
    let (tunnel, news) = watch::channel(None);
    let (decides, bypass) = watch::channel(None);
    let own = Beside {
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

impl Beside {
    /// The hub has set up the tunnel like this.
    pub fn handle_tunnel(&self, tunnel: Tunnel) {
        let _ = self.tunnel.send(Some(tunnel));
    }

    /// Sends new connections past the hub (`Some`), or through the tunnel again.
    pub fn handle_bypass(&self, bypass: Option<Bypass>) {
        tell_if_new(&self.bypass, bypass);
    }

    /// Puts a question; the answer comes.
    pub fn ask(&self, request: Request) -> oneshot::Receiver<Result<Value>> {
        let (answer, comes) = oneshot::channel();
        // Where too many wait, the answer is that none comes.
        let _ = self.requests.try_send(Asked { request, answer });
        comes
    }
}

impl Uplink {
    /// The tunnel; nothing until the hub has answered for the first time.
    #[must_use]
    pub fn tunnel(&self) -> Option<&Tunnel> {
        self.tunnel.as_ref()
    }

    /// Networks over which new connections bypass the hub; `None` while they use the tunnel.
    #[must_use]
    pub fn bypass(&self) -> Option<Bypass> {
        self.bypass.borrow().clone()
    }

    /// Waits for another tunnel or another bypass; forever when the client is gone. Cancel safe.
    pub async fn next(&mut self) {
        tokio::select! {
            Ok(()) = self.news.changed() => self.tunnel = self.news.borrow_and_update().clone(),
            Ok(()) = self.bypass.changed() => {}
            else => std::future::pending().await,
        }
    }

    /// What is asked, for the event loop; there is one.
    ///
    /// # Panics
    /// On the second call.
    #[must_use]
    pub fn take_requests(&mut self) -> mpsc::Receiver<Asked> {
        self.requests.take().expect("it is taken once")
    }
}

/// The hubs of a fleet, by the number of the way through each ([`FIRST_HUB`] and up).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Fleet {
    /// The one in use, through which all flows go of which nothing else is known.
    pub in_use: Option<NetworkId>,
    /// Those that may have a session beside it.
    pub others: BTreeMap<NetworkId, OtherHub>,
}

/// A hub beside the one in use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OtherHub {
    /// How it is called.
    pub name: String,
    /// How long it takes to answer; `None` before that was measured.
    pub round_trip: Option<Duration>,
    /// It has a session, and a path of it works: flows may begin there.
    pub is_open: bool,
}

/// What was found out of hubs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Found {
    /// This one should have a session.
    pub wanted: Option<NetworkId>,
    /// Flows to these are to begin at the hub that has one.
    pub through: BTreeSet<IpAddr>,
}

/// A connection of which the client is to see that it begins through one of the hubs.
pub struct Placing {
    /// The way, of the hub in use or of one that has a session.
    pub way: NetworkId,
    /// The connection.
    pub flow: FlowKey,
    /// Told when that has been seen to; dropped where it cannot be.
    pub done: oneshot::Sender<()>,
}

/// The client's end.
pub struct Led {
    /// Says which hubs there are.
    pub fleet: watch::Sender<Fleet>,
    /// Hears what was found out.
    pub found: watch::Receiver<Found>,
    /// Hears of connections that are to begin through one of the hubs.
    pub placings: mpsc::Receiver<Placing>,
}

/// Direct mode's end.
pub struct Finder {
    /// Hears which hubs there are.
    pub fleet: watch::Receiver<Fleet>,
    /// Says what was found out.
    pub found: watch::Sender<Found>,
    /// Asks that connections begin through one of the hubs.
    pub placings: mpsc::Sender<Placing>,
}

/// Both ends.
#[must_use]
pub fn finder() -> (Led, Finder) {
    let (fleet, hubs) = watch::channel(Fleet::default());
    let (tell, found) = watch::channel(Found::default());
    let (place, placings) = mpsc::channel(MOST_WAITING);
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

/// The number of the way through the first hub: beyond those of networks, which are bytes.
pub const FIRST_HUB: u32 = 256;

/// What a client shares with direct mode beside it.
pub struct Shared {
    /// How the client is run.
    pub options: ClientOptions,
    /// What rules say.
    pub config: ClientConfig,
    /// What is changed in the system, and undone by the client.
    pub system: System,
    /// The client's interface.
    pub tun: Tun,
    /// What networks have carried.
    pub usage: Rc<RefCell<Usage>>,
    /// Addresses by DHCP, which the client sees to.
    pub leases: dhcp::View,
    /// Direct mode's end.
    pub uplink: Uplink,
    /// The same of what is found out of hubs, where that is to be.
    pub finder: Option<Finder>,
}

/// Runs direct mode beside a client until that ends.
pub type RunDirect = fn(Shared) -> Local<'static, Result<()>>;

/// As on the control socket.
const MOST_WAITING: usize = 16;
