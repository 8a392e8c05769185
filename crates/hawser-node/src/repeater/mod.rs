//! A repeater: two boxes whose bridges are one, over several links between them.
//!
//! The access point's box has the role of a hub, the joining box that of a client: the same
//! sessions, keys, paths and data plane carry Ethernet frames of a TAP in place of IP packets of a
//! TUN. Nothing has to be configured on the links, because both boxes speak by the link-local
//! addresses of IPv6; they find each other with [`hawser_proto::discovery`].
//!
//! ```text
//!   hosts -- bridge -- TAP == session ==[ link 1, link 2 ]== session == TAP -- bridge -- hosts
//! ```
//!
//! It fails as clients and hubs do: a box that is away is waited for, and a link that is gone leaves
//! its packets to the others. The TAP ends with the process, and so does its place in the bridge.

mod ap;
mod join;
mod links;
mod report;
pub mod trust;

use std::collections::BTreeMap;
use std::net::Ipv6Addr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context, bail};
use hawser_linux::links as link;
use hawser_linux::system::System;
use hawser_linux::tun::Tun;
use hawser_proto::discovery;
use hawser_wire::frame::Format;

use crate::atomic_file;
use crate::client::Signals;
use crate::control_socket::ControlSocket;
use crate::dataplane::{self, DataPlane, DataPlaneConfig, Orders};
use crate::enrolment::SharedStore;
use crate::identity::{Identity, random};
use crate::peers;
use crate::run_dir::RunDir;
use links::Links;

/// Which side of a repeater a box is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// The one with the way out: it waits for the other.
    AccessPoint,
    /// The one that joins it.
    Joining,
}

/// How to run one side of a repeater.
pub struct Options {
    /// Where key and trusted codes are.
    pub dir: PathBuf,
    /// Where lock, socket and journal are.
    pub run_dir: PathBuf,
    /// Which side.
    pub side: Side,
    /// The bridge whose hosts are joined to those of the other box.
    pub bridge: String,
    /// The interfaces between the boxes.
    pub links: Vec<String>,
    /// The other box's link-local address on a link, where multicast does not find it.
    pub neighbours: BTreeMap<String, Ipv6Addr>,
}

impl Options {
    /// Looks whether this can work; nothing has been touched.
    ///
    /// # Errors
    /// One line: what is wrong, and what to do.
    pub fn check(&self) -> anyhow::Result<()> {
        let bridge = &self.bridge;
        if !link::exists(bridge) {
            bail!("there is no bridge {bridge}: `ip link add {bridge} type bridge` makes one");
        }
        if !link::is_bridge(bridge) {
            bail!("{bridge} is no bridge: name the bridge whose hosts the other box is to serve too");
        }
        if self.links.is_empty() {
            bail!("no links are named: --links eth1,eth2 names the interfaces to the other box");
        }
        for (at, name) in self.links.iter().enumerate() {
            if !link::exists(name) {
                bail!("there is no interface {name}: `ip link` shows what there is");
            }
            if name == bridge {
                bail!("{name} is the bridge itself: links lead to the other box beside it");
            }
            if let Some(other) = link::controller(name) {
                bail!(
                    "{name} is a port of {other}: frames would go around in a loop; `ip link set {name} nomaster` takes it out"
                );
            }
            if self.links[..at].contains(name) {
                bail!("{name} is named twice");
            }
        }
        match self.neighbours.keys().find(|name| !self.links.contains(name)) {
            Some(name) => bail!("--neighbour names {name}, which is none of the links"),
            None => Ok(()),
        }
    }
}

/// What both sides have.
struct Node {
    options: Options,
    identity: Identity,
    store: SharedStore,
    orders: Orders,
    links: Links,
    started: Instant,
}

/// Runs one side of a repeater until it is asked to end.
///
/// # Errors
/// What keeps it from working, in one line; the system is as it was before.
pub async fn run(options: Options) -> anyhow::Result<()> {
    options.check()?;
    atomic_file::private_directory(&options.dir)?;
    let run_dir = RunDir::take(&options.run_dir)?;
    let identity = peers::identity(&options.dir)?;
    let store = SharedStore::new(trust::open(&options.dir)?);
    let signals = Signals::new()?;
    let mut system = System::open(&run_dir.journal())
        .await
        .context("cannot prepare the system (are you root?)")?;
    system.undo_left().await;
    // A bridge has the least MTU of its ports, and drops longer frames without a word. With the
    // bridge's own MTU here, they arrive, and their sender hears what fits.
    let mtu = link::mtu(&options.bridge).unwrap_or(ETHERNET_MTU);
    let tun = Tun::create_ethernet(INTERFACE, mtu)?;
    let plane = dataplane::start(DataPlaneConfig {
        tun,
        format: Format::Ethernet,
        seed: u64::from_be_bytes(random()),
    })?;
    let socket = ControlSocket::listen(run_dir.socket())?;
    system
        .put_into_bridge(INTERFACE, own_address(), &options.bridge)
        .await?;
    if !link::has_spanning_tree(&options.bridge) {
        tracing::info!(
            bridge = options.bridge,
            "the bridge runs no spanning tree protocol: see to it that the boxes have no other way to each other's hosts"
        );
    }
    let side = match options.side {
        Side::AccessPoint => discovery::Side::AccessPoint(PORT),
        Side::Joining => discovery::Side::Joining,
    };
    tracing::info!(
        code = identity.hash().code(),
        bridge = options.bridge,
        "repeater is up"
    );
    let this = Node {
        links: Links::new(&options, side, identity.hash())?,
        options,
        identity,
        store,
        orders: Arc::clone(&plane.orders),
        started: Instant::now(),
    };
    let all = (plane, socket, signals);
    let result = match this.options.side {
        Side::AccessPoint => ap::run(this, all).await,
        Side::Joining => join::run(this, all).await,
    };
    system.undo().await;
    tracing::info!("down");
    result
}

/// What an event loop waits for.
type Sources = (DataPlane, ControlSocket, Signals);

/// An address for the interface that no other has, and that a bridge does not take for its own:
/// locally administered (IEEE 802c), and higher than those of hardware.
fn own_address() -> [u8; 6] {
    let drawn: [u8; 5] = random();
    [0xfe, drawn[0], drawn[1], drawn[2], drawn[3], drawn[4]]
}

/// The interface in the bridge.
pub const INTERFACE: &str = "hawserport0";
/// UDP port of sessions on each link: the upper half of the mark of outer packets
/// ([`hawser_linux::udp::OUTER_MARK`]), as a number that no registry names.
pub const PORT: u16 = (hawser_linux::udp::OUTER_MARK >> 16) as u16;
/// UDP port of hellos.
pub const HELLO_PORT: u16 = PORT + 1;
const ETHERNET_MTU: u16 = 1500;
