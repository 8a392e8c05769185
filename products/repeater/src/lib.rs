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
//! It fails as clients and hubs do: a box that is away is waited for, and a link that is gone
//! leaves its packets to the others. The TAP ends with the process, and so does its place in the
//! bridge.
//!
//! | question | file |
//! |---|---|
//! | how either side starts | this one ([`run`]) |
//! | the side of the access point, a hub | `ap.rs` |
//! | the joining side, a client | `join.rs`, over `hawser_control::client::driver` |
//! | the links between the boxes | `links.rs` |
//! | what a link may carry that shares its air with the clients of the joining box | `clients.rs` |
//! | on which channels the links are, and moving them to better ones | `channels.rs` |
//! | moving the clients' access point along | `along.rs` |
//! | whom a box trusts | [`trust`] |
//! | what `status` says | `report.rs` |
//!
//! A newcomer starts with [`run`].
#![forbid(unsafe_code)]

mod along;
mod ap;
mod channels;
mod clients;
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

use along::Along;
use channels::Channels;
use links::Links;

pub use channels::Moving;
pub use hawser_radio::striping::migration::Search;

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
    /// By which interface in the bridge the joining box serves its clients; none: the access point
    /// that is found on the card, or on the channel, of a link.
    pub clients: Option<String>,
    /// The link that shares its air with them; none: the one on that card or channel.
    pub shared: Option<String>,
    /// Where hostapd's control sockets are, so that the access point of the joining box's clients
    /// moves along with the station on its card; none: it does not.
    pub along: Option<PathBuf>,
    /// Whether the access point's radios are moved to better channels, and how.
    pub moving: Option<Moving>,
    /// Frames of the other box are handed over as they come, to measure what order is worth.
    pub any_order: bool,
    /// So many packets of a flow may wait here, to measure what waiting is worth; none: as many as
    /// the links need.
    pub buffer: Option<u64>,
}

impl Options {
    /// Looks whether this can work; nothing has been touched. Gives the bridge.
    ///
    /// # Errors
    /// One line: what is wrong, and what to do.
    fn check(&self, all: &[Interface]) -> anyhow::Result<Interface> {
        let find = |name: &str| all.iter().find(|one| one.name == name);
        let name = &self.bridge;
        let bridge = find(name).with_context(|| {
            format!("there is no bridge {name}: `ip link add {name} type bridge` makes one")
        })?;
        if bridge.bridge.is_none() {
            bail!("{name} is no bridge: name the bridge whose hosts the other box is to serve too");
        }
        for (at, name) in self.links.iter().enumerate() {
            let link = find(name)
                .with_context(|| format!("there is no interface {name}: `ip link` shows what there is"))?;
            if link.index == bridge.index {
                bail!("{name} is the bridge itself: links lead to the other box beside it");
            }
            if let Some(index) = link.controller {
                let other = all.iter().find(|one| one.index == index);
                let other = other.map_or("another interface", |other| other.name.as_str());
                bail!(
                    "{name} is a port of {other}: frames would go around in a loop; `ip link set {name} nomaster` takes it out"
                );
            }
            if self.links[..at].contains(name) {
                bail!("{name} is named twice");
            }
        }
        if let Some(name) = self.neighbours.keys().find(|name| !self.links.contains(name)) {
            bail!("--neighbour names {name}, which is none of the links");
        }
        if let Some(name) = self.shared.as_ref().filter(|name| !self.links.contains(name)) {
            bail!("--shared names {name}, which is none of the links");
        }
        if let (Some(name), None, false) = (&self.clients, &self.shared, Wireless::is_there()) {
            bail!("{name} is no radio: name the link that shares its air with it, `--shared LINK`");
        }
        // One that is not there yet is waited for: hostapd makes some.
        if let Some(clients) = self.clients.as_deref().and_then(find)
            && clients.controller != Some(bridge.index)
        {
            let name = &clients.name;
            bail!(
                "{name} is no port of {0}: `ip link set {name} master {0}` makes it one",
                bridge.name
            );
        }
        Ok(bridge.clone())
    }
}

/// What both sides have.
struct Node {
    options: Options,
    identity: Identity,
    store: SharedStore,
    orders: Orders,
    links: Links,
    interfaces: Interfaces,
    channels: Channels,
    started: Instant,
    /// Of the links there were at the start. Units: bytes of IP packet.
    largest_mtu: u16,
}

/// Runs one side of a repeater until it is asked to end.
///
/// # Errors
/// What keeps it from working, in one line; the system is as it was before.
pub async fn run(options: Options) -> anyhow::Result<()> {
    let interfaces = Interfaces::open().context("cannot look at the interfaces")?;
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
    // A bridge has the least MTU of its ports, and drops longer frames without a word. With the
    // bridge's own MTU here, they arrive, and their sender hears what fits.
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
            "the bridge runs no spanning tree protocol: see to it that the boxes have no other way to each other's hosts"
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
    let along = along.map(|hostapd| Along::watch(this.options.links.clone(), hostapd));
    let _along = along
        .transpose()
        .context("cannot watch the radios: has this machine Wi-Fi?")?;
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

/// Of a full packet, by which what waits is counted. Units: bytes.
const PACKET: u64 = 1_500;
/// The interface in the bridge.
pub const INTERFACE: &str = "hawserport0";
/// UDP port of sessions on each link: the upper half of the mark of outer packets
/// ([`hawser_linux::udp::OUTER_MARK`]), as a number that no registry names.
pub const PORT: u16 = (hawser_linux::udp::OUTER_MARK >> 16) as u16;
/// UDP port of hellos.
pub const HELLO_PORT: u16 = PORT + 1;
