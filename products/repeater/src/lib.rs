//! Repeater: two boxes that combine their bridges into one, over several links between them.
//!
//! The access point's box has the role of a hub, the joining box that of a client: the same
//! sessions, keys, paths and data plane transfer Ethernet frames of a TAP device instead of IP
//! packets of a TUN device. The links need no configuration, because both boxes use link-local
//! addresses of IPv6; they find each other with [`hawser_proto::discovery`].
//!
//! ```text
//!   hosts -- bridge -- TAP == session ==[ link 1, link 2 ]== session == TAP -- bridge -- hosts
//! ```
//!
//! Failures are handled as in clients and hubs: a box waits for an unavailable one, and the packets
//! of a failed link move to the others. The TAP device, and with it the bridge port, ends with the
//! process.
//!
//! | question | file |
//! |---|---|
//! | how either side starts | this one ([`run`]) |
//! | the side of the access point, a hub | `ap.rs` |
//! | the joining side, a client | `join.rs`, over `hawser_control::client::driver` |
//! | the links between the boxes | `links.rs` |
//! | rate limit of a link on the channel of the joining box's clients | `clients.rs` |
//! | channels of the links, and moves to better ones | `channels.rs` |
//! | moves of the clients' access point with the link | `companion.rs` |
//! | trusted boxes | [`trust`] |
//! | contents of `status` | `report.rs` |
//!
//! A newcomer starts with [`run`].
#![forbid(unsafe_code)]

mod ap;
mod channels;
mod clients;
mod companion;
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
use hawser_config::atomic_file;
use hawser_config::identity::{Identity, random};
use hawser_control::enrolment::SharedStore;
use hawser_control::peers;
use hawser_dataplane::{DataPlane, DataPlaneConfig, Orders, Pairs, Trial};
use hawser_host::control_socket::ControlSocket;
use hawser_host::run_dir::RunDir;
use hawser_host::signals::Signals;
use hawser_linux::links::{Interface, Interfaces};
use hawser_linux::system::System;
use hawser_linux::tun::Tun;
use hawser_linux::wireless::cards::Wireless;
use hawser_proto::discovery;
use hawser_units::Bytes;
use hawser_wire::frame::Format;

use channels::Channels;
use companion::Companion;
use links::Links;

pub use channels::Moving;
pub use hawser_radio::striping::migration::Search;

/// Role of a box in a repeater.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// Box with the uplink: it waits for the other.
    AccessPoint,
    /// Box that joins the access point's box.
    Joining,
}

/// Parameters of running one side of a repeater.
pub struct Options {
    /// Directory of key and trusted codes.
    pub dir: PathBuf,
    /// Directory of lock, socket and journal.
    pub run_dir: PathBuf,
    /// Role of this box.
    pub side: Side,
    /// Bridge whose hosts are connected to those of the other box.
    pub bridge: String,
    /// Interfaces between the boxes.
    pub links: Vec<String>,
    /// Link-local address of the other box on a link, if multicast does not find it.
    pub neighbours: BTreeMap<String, Ipv6Addr>,
    /// Interface in the bridge with which the joining box serves its clients; `None` for the access
    /// point that is found on the card or the channel of a link.
    pub clients: Option<String>,
    /// Link that shares the clients' channel; `None` for the one on that card or channel.
    pub shared: Option<String>,
    /// Directory of hostapd's control sockets, with which the access point of the joining box's
    /// clients follows the station on its card; `None` disables this.
    pub along: Option<PathBuf>,
    /// Moves of the access point's radios to better channels, if enabled.
    pub moving: Option<Moving>,
    /// Set if frames of the other box are delivered in order of arrival, to measure the effect of
    /// reordering.
    pub any_order: bool,
    /// Maximum number of waiting packets of a flow, for measurements; `None` for the number that
    /// the links need.
    pub buffer: Option<u64>,
}

impl Options {
    /// Checks whether the options can work, without changes. Returns the bridge.
    ///
    /// # Errors
    /// One line with the error and its remedy.
    fn check(&self, all: &[Interface]) -> anyhow::Result<Interface> {
        let find = |name: &str| all.iter().find(|one| one.name == name);
        let name = &self.bridge;
        let bridge = find(name).with_context(|| {
            format!("there is no bridge {name}: `ip link add {name} type bridge` creates one")
        })?;
        if bridge.bridge.is_none() {
            bail!("{name} is not a bridge: give the bridge whose hosts are connected with the other box");
        }
        for (at, name) in self.links.iter().enumerate() {
            let link = find(name)
                .with_context(|| format!("there is no interface {name}: `ip link` shows the interfaces"))?;
            if link.index == bridge.index {
                bail!("{name} is the bridge itself: links must be other interfaces");
            }
            if let Some(index) = link.controller {
                let other = all.iter().find(|one| one.index == index);
                let other = other.map_or("another interface", |other| other.name.as_str());
                bail!(
                    "{name} is a port of {other}: frames would loop; `ip link set {name} nomaster` removes it from the bridge"
                );
            }
            if self.links[..at].contains(name) {
                bail!("{name} is given twice");
            }
        }
        if let Some(name) = self.neighbours.keys().find(|name| !self.links.contains(name)) {
            bail!("--neighbour names {name}, which is not one of the links");
        }
        if let Some(name) = self.shared.as_ref().filter(|name| !self.links.contains(name)) {
            bail!("--shared names {name}, which is not one of the links");
        }
        if let (Some(name), None, false) = (&self.clients, &self.shared, Wireless::is_there()) {
            bail!("{name} is not a radio: give the link that shares a channel with it, --shared LINK");
        }
        // A missing interface is awaited, because hostapd creates some.
        if let Some(clients) = self.clients.as_deref().and_then(find)
            && clients.controller != Some(bridge.index)
        {
            let name = &clients.name;
            bail!(
                "{name} is not a port of {0}: `ip link set {name} master {0}` adds it",
                bridge.name
            );
        }
        Ok(bridge.clone())
    }
}

/// Common state of both sides.
struct Node {
    options: Options,
    identity: Identity,
    store: SharedStore,
    orders: Orders,
    links: Links,
    interfaces: Interfaces,
    channels: Channels,
    started: Instant,
    /// Maximum MTU of the links at the start. Units: bytes of IP packet.
    largest_mtu: u16,
}

/// Runs one side of a repeater until it is asked to end.
///
/// # Errors
/// The reason why it cannot work, in one line; the system is restored.
pub async fn run(options: Options) -> anyhow::Result<()> {
    let interfaces = Interfaces::open().context("cannot examine the interfaces")?;
    let all = interfaces.list().await.context("cannot list the interfaces")?;
    let bridge = options.check(&all)?;
    atomic_file::private_directory(&options.dir)?;
    let run_dir = RunDir::take(&options.run_dir)?;
    let identity = peers::identity(&options.dir)?;
    let store = SharedStore::new(trust::open(&options.dir)?);
    let signals = Signals::new()?;
    let mut system = System::open(&run_dir.journal())
        .await
        .context("cannot prepare the system (are you root?)")?;
    system.undo_left().await;
    let _keeper = system.keep().context("cannot watch the system")?;
    // A bridge has the smallest MTU of its ports and silently drops longer frames. With the
    // bridge's own MTU, such frames arrive here, and their sender is notified of the permitted
    // size.
    let mtu = u16::try_from(bridge.mtu).unwrap_or(u16::MAX);
    let tun = Tun::create_ethernet(INTERFACE, mtu)?;
    let plane = hawser_dataplane::start(DataPlaneConfig {
        queues: vec![tun],
        pairs: Pairs::ONE,
        format: Format::Ethernet,
        client_policy: None,
        streams: None,
        trial: Trial {
            any_order: options.any_order,
            buffer: options.buffer.map(|packets| Bytes(packets * PACKET)),
        },
        seed: u64::from_be_bytes(random()),
    })?;
    let socket = ControlSocket::listen(run_dir.socket())?;
    system
        .put_into_bridge(INTERFACE, own_address(), &options.bridge)
        .await?;
    if bridge.bridge == Some(false) {
        tracing::info!(
            bridge = options.bridge,
            "the bridge runs no spanning tree protocol: make sure that the two bridges have no other connection, or frames will loop"
        );
    }
    let mtus = all
        .iter()
        .filter(|one| options.links.contains(&one.name))
        .map(|one| one.mtu);
    let largest_mtu = u16::try_from(mtus.max().unwrap_or(0)).unwrap_or(u16::MAX);
    let side = match options.side {
        Side::AccessPoint => discovery::Side::AccessPoint(PORT),
        Side::Joining => discovery::Side::Joining,
    };
    tracing::info!(
        code = %identity.hash().code(),
        bridge = options.bridge,
        "repeater is up"
    );
    let this = Node {
        links: Links::new(&options, side, identity.hash(), interfaces.clone())?,
        interfaces,
        channels: Channels::watch(&options.links, options.moving.clone(), &plane.orders),
        options,
        identity,
        store,
        orders: Arc::clone(&plane.orders),
        started: Instant::now(),
        largest_mtu,
    };
    let along = this.options.along.clone();
    let along = along.map(|hostapd| Companion::watch(this.options.links.clone(), hostapd));
    let _along = along
        .transpose()
        .context("cannot monitor the radios: this machine may have no Wi-Fi")?;
    let all = (plane, socket, signals);
    let result = match this.options.side {
        Side::AccessPoint => ap::run(this, all).await,
        Side::Joining => join::run(this, all).await,
    };
    system.undo().await;
    tracing::info!("down");
    result
}

/// Event sources of an event loop.
type Sources = (DataPlane, ControlSocket, Signals);

/// Returns a unique address for the interface that a bridge does not adopt as its own: locally
/// administered (IEEE 802c), and higher than those of hardware.
fn own_address() -> [u8; 6] {
    let drawn: [u8; 5] = random();
    [0xfe, drawn[0], drawn[1], drawn[2], drawn[3], drawn[4]]
}

/// Size of a full packet, in which the queue is counted. Source: the payload of Ethernet (RFC 894).
/// Units: bytes.
const PACKET: u64 = 1_500;
/// Name of the interface in the bridge.
pub const INTERFACE: &str = "hawserport0";
/// UDP port of sessions on each link, a number that no registry names. Source: the upper half of
/// the mark of outer packets ([`hawser_linux::udp::OUTER_MARK`]).
pub const PORT: u16 = (hawser_linux::udp::OUTER_MARK >> 16) as u16;
/// UDP port of hellos. Source: the number after [`PORT`].
pub const HELLO_PORT: u16 = PORT + 1;
