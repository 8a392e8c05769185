//! The scenario format: networks, workloads and events of one experiment, as TOML.
//!
//! A scenario contains everything that an experiment depends on, so that a claim, a benchmark and a
//! bug report can each be one file. Rates, times and sizes carry their unit; unknown fields are
//! errors; an error names file, line and remedy. The caller of [`Scenario::parse`] passes a
//! function that reads files.

mod client_hop;
mod events;
mod member;
mod middlebox;
mod movements;
mod ordered;
mod overrides;
mod parse;
mod usage;
mod values;
mod wifi;
mod workloads;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use hawser_units::{Bytes, Duration, Instant, Rate};
use hawser_wire::data::Class;

use crate::capture::Track;
pub use crate::video::Coding;
use crate::video::{Film, Video};
use crate::{Capacity, Change, LinkConfig, NatConfig};

pub use crate::direction::Direction;
pub use client_hop::ClientHop;
pub use member::Member;
pub use usage::Usage;
pub use wifi::{Slots, Wifi};

/// Experiment.
#[derive(Clone, Debug, PartialEq)]
pub struct Scenario {
    /// Name in results.
    pub name: String,
    /// Seed of all random numbers.
    pub seed: u64,
    /// Duration of the workloads.
    pub duration: Duration,
    /// Warm-up that does not count towards goodput.
    pub warmup: Duration,
    /// System that transfers the traffic.
    pub via: Via,
    /// Schedulers of Hawser's tunnel, by flow class; a class that is absent has its default.
    pub schedulers: Vec<(Class, String)>,
    /// Congestion controller of the tunnel's paths; `None`: the default.
    pub controller: Option<String>,
    /// Enables ECN (RFC 3168) in TCP of client and server, as `net.ipv4.tcp_ecn = 1` does.
    pub tcp_ecn: bool,
    /// Form in which the tunnel transfers TCP.
    pub tcp: Tcp,
    /// Networks of the client, in the order of preference in its routing table.
    pub networks: Vec<Network>,
    /// Hop behind a repeater. Lab only.
    pub client_hop: Option<ClientHop>,
    /// Concurrent workloads.
    pub workloads: Vec<Workload>,
    /// Workloads, by index, that use another system than `via`: competing traffic on the networks.
    pub competing: BTreeMap<usize, CompetingSystem>,
    /// Events, in order of time.
    pub events: Vec<Event>,
}

/// Form in which a tunnel transfers TCP.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Tcp {
    /// Packets, from one end of the connection to the other.
    #[default]
    EndToEnd,
    /// Connections split at both ends of the tunnel, with a stream between them.
    Stream,
}

/// System that transfers the traffic of a scenario.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Via {
    /// Hawser, with a hub.
    Hub,
    /// Hawser in direct mode, without a hub.
    Direct,
    /// Hawser between two hosts that run it.
    Peer,
    /// Hawser, through a repeater.
    Repeater,
    /// The kernel's MPTCP over the networks that Hawser provides, without a hub.
    DirectMptcp,
    /// The kernel's MPTCP, without Hawser.
    Mptcp,
    /// The kernel, over the network of this name only.
    Single(String),
    /// Another bonding tool, of this name. It cannot be named in a scenario: the command that runs
    /// it also specifies how to start it.
    Tool(String),
}

/// System of a workload that competes with the measured ones.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CompetingSystem {
    /// The kernel, over the network of this name only.
    Single(String),
    /// Traffic of the member of this name itself, over its uplink and outside the tunnel.
    Member(String),
    /// Second client of Hawser, with a tunnel of its own over the same networks.
    OtherClient,
}

/// Uplink of the client.
#[derive(Clone, Debug, PartialEq)]
pub struct Network {
    /// Name of the network and of its device: 1 to 15 letters, digits, `-` or `_`.
    pub name: String,
    /// Both directions; `None` for a plain cable without emulation.
    pub links: Option<Links>,
    /// Wi-Fi parameters of the network's last hop, if any.
    pub wifi: Option<Wifi>,
    /// Neighbour that provides the network, if any.
    pub member: Option<Member>,
    /// Resource that the network shares with another part of the scenario.
    pub shares: Option<Shares>,
    /// Set to drop every UDP datagram without notice, in both directions.
    pub blocks_udp: bool,
    /// Translator of the client's addresses on this network; `None`: hub and server see the
    /// client's addresses, except where `via` needs a translator.
    pub nat: Option<NatConfig>,
    /// User's settings for the network; used with a hub.
    pub usage: Usage,
}

/// Shared part of a network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shares {
    /// Links of the network with this index: a second route through one bottleneck. Simulator only.
    Links(usize),
    /// Channel of the hop from a repeater to its client, shared by time: each sender may use what
    /// the other leaves, and both transfer equally many bytes where both have more to send. Lab
    /// only.
    ClientHop,
}

/// Both directions of an emulated network.
#[derive(Clone, Debug, PartialEq, Default)]
pub struct Links {
    /// Towards the client.
    pub down: LinkConfig,
    /// Direction from the client.
    pub up: LinkConfig,
}

/// Traffic of an application for the whole duration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Workload {
    /// Bulk TCP connections.
    Tcp {
        /// Direction of the bytes.
        direction: Direction,
        /// Number of concurrent connections.
        streams: u32,
        /// The kernel's name of the congestion control.
        congestion: String,
    },
    /// Bulk QUIC connections, one stream in each.
    Quic {
        /// Direction of the bytes.
        direction: Direction,
        /// Number of concurrent connections.
        streams: u32,
    },
    /// Datagrams at a constant rate.
    Udp {
        /// Direction of the datagrams.
        direction: Direction,
        /// Rate of UDP payload.
        rate: Rate,
        /// UDP payload of each datagram.
        size: Bytes,
        /// Number of layers to which datagrams belong in turn, the base layer first; 0 for
        /// unlayered datagrams. A layer is identified by its code point ([`layer_code_point`]).
        layers: u8,
    },
    /// Repeated requests and echoes.
    Ping {
        /// Interval between requests.
        interval: Duration,
    },
    /// A video as datagrams of different importance.
    Video {
        /// Direction of the video.
        direction: Direction,
        /// Mean rate of UDP payload.
        rate: Rate,
        /// Dependencies of its parts.
        coding: Coding,
        /// Pictures; `None`: a model of this rate.
        film: Option<Arc<Film>>,
    },
    /// Datagrams of one direction of a five-tuple in a capture.
    Capture {
        /// Direction of the datagrams.
        direction: Direction,
        /// Datagrams.
        track: Arc<Track>,
    },
    /// HTTP download of a fixed size.
    Http {
        /// Size of the body.
        size: Bytes,
    },
}

impl Workload {
    /// Returns the number of layers that mark the workload's packets; 0 without marks.
    #[must_use]
    pub const fn layers(&self) -> u8 {
        match self {
            Self::Udp { layers, .. } => *layers,
            Self::Video { coding, .. } => coding.layers(),
            Self::Tcp { .. }
            | Self::Quic { .. }
            | Self::Ping { .. }
            | Self::Capture { .. }
            | Self::Http { .. } => 0,
        }
    }

    /// Returns the sender of this workload's video from `start` until `end`; `None` for another
    /// workload.
    #[must_use]
    pub fn video(&self, (start, end): (Instant, Instant)) -> Option<Video> {
        let Self::Video {
            rate, coding, film, ..
        } = self
        else {
            return None;
        };
        let film = film.as_deref().cloned();
        let film = film.unwrap_or_else(|| Film::modelled(*coding, *rate, end.since(start)));
        Some(Video::new(film, coding.layers(), (start, end)))
    }
}

/// Returns the code point of a layer or description; it differs from that of unmarked traffic.
#[must_use]
pub const fn layer_code_point(layer: u8) -> u8 {
    layer + 1
}

/// A part of a network.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Hop {
    /// Links in `down` and `up`.
    #[default]
    WayOut,
    /// Links between the client and the member whose network it is.
    Local,
}

/// A change at a time.
#[derive(Clone, Debug, PartialEq)]
pub struct Event {
    /// Time since the start of the workloads.
    pub at: Duration,
    /// Index into [`Scenario::networks`].
    pub network: usize,
    /// Part of the network that changes.
    pub hop: Hop,
    /// Direction that changes; `None`: both.
    pub direction: Option<Direction>,
    /// Change.
    pub change: Change,
    /// Changes of the rest of the network.
    pub network_change: NetworkChange,
}

/// Change of a network that does not concern its links.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct NetworkChange {
    /// Removes all mappings of the network's translator.
    pub flush_nat: bool,
    /// New MTU of the client's interface. Lab only. Units: IP bytes.
    pub device_mtu: Option<u16>,
}

/// Error in a scenario. The message states location and remedy in one line.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum ScenarioError {
    /// The file, or one that it names, cannot be read.
    #[error("{}: cannot be read: {reason}", path.display())]
    Read {
        /// File.
        path: PathBuf,
        /// Error of the system.
        reason: String,
    },
    /// Error in the file.
    #[error("{}:{line}: {problem}", path.display())]
    Invalid {
        /// File.
        path: PathBuf,
        /// Line number, from 1.
        line: usize,
        /// Description of the error, and the correct form.
        problem: String,
    },
    /// A `--set` does not fit the scenario.
    #[error("--set {setting}: {problem}")]
    Override {
        /// Setting as given.
        setting: String,
        /// Description of the error, and the correct form.
        problem: String,
    },
}

impl Via {
    /// Returns the form in a scenario.
    #[must_use]
    pub fn label(&self) -> String {
        match self {
            Self::Hub => "hub".into(),
            Self::Direct => "direct".into(),
            Self::DirectMptcp => "direct-mptcp".into(),
            Self::Peer => "peer".into(),
            Self::Repeater => "repeater".into(),
            Self::Mptcp => "mptcp".into(),
            Self::Single(network) => format!("single:{network}"),
            Self::Tool(name) => format!("tool:{name}"),
        }
    }

    /// Returns the system with this label; `None` if there is none.
    #[must_use]
    pub fn from_label(label: &str) -> Option<Self> {
        match label {
            "hub" => Some(Self::Hub),
            "direct" => Some(Self::Direct),
            "direct-mptcp" => Some(Self::DirectMptcp),
            "peer" => Some(Self::Peer),
            "repeater" => Some(Self::Repeater),
            "mptcp" => Some(Self::Mptcp),
            _ => label
                .strip_prefix("single:")
                .map(|network| Self::Single(network.to_owned())),
        }
    }
}

impl Scenario {
    /// Returns the sum of the networks' mean rates in the direction of the first bulk workload;
    /// `None` if a network is unlimited, or if there is another hop behind the networks.
    ///
    /// Units: Ethernet frames without check sequence, as everywhere in a scenario.
    #[must_use]
    pub fn sum_of_rates(&self) -> Option<Rate> {
        let direction = self.bulk_direction();
        let rate = |network: &Network| {
            let links = network.links.as_ref()?;
            let link = match direction {
                Direction::Down => &links.down,
                Direction::Up => &links.up,
            };
            link.capacity.mean()
        };
        if self.client_hop.is_some() {
            return None;
        }
        let own = self.networks.iter().filter(|network| network.shares.is_none());
        let rates: Option<Vec<Rate>> = own.map(rate).collect();
        rates.map(|rates| Rate::from_bps(rates.iter().map(|rate| rate.as_bps()).sum()))
    }

    /// Returns the events that start the traces of the networks together with the workloads, so
    /// that every system of a comparison meets the same part of them.
    #[must_use]
    pub fn trace_starts(&self) -> Vec<Event> {
        let traced = |link: &LinkConfig| matches!(link.capacity, Capacity::Trace(_));
        let networks = self.networks.iter().enumerate();
        networks
            .filter_map(|(network, with)| Some((network, with.links.as_ref()?)))
            .flat_map(|(network, links)| {
                [(Direction::Down, &links.down), (Direction::Up, &links.up)]
                    .into_iter()
                    .filter(|(_, link)| traced(link))
                    .map(move |(direction, link)| Event {
                        at: Duration::ZERO,
                        network,
                        hop: Hop::WayOut,
                        direction: Some(direction),
                        change: Change {
                            capacity: Some(link.capacity.clone()),
                            ..Change::default()
                        },
                        network_change: NetworkChange::default(),
                    })
            })
            .collect()
    }

    /// Returns the movements of members, in order of time: they leave and return without notice. A
    /// parsed scenario contains them as events.
    #[must_use]
    pub fn movements(&self) -> Vec<Event> {
        let mut events = movements::movements(&self.networks);
        events.sort_by_key(|event| event.at);
        events
    }

    /// Returns the direction of the first bulk workload; down without one.
    #[must_use]
    pub fn bulk_direction(&self) -> Direction {
        let direction = |workload: &Workload| match workload {
            Workload::Tcp { direction, .. }
            | Workload::Quic { direction, .. }
            | Workload::Udp { direction, .. }
            | Workload::Video { direction, .. }
            | Workload::Capture { direction, .. } => Some(*direction),
            Workload::Http { .. } => Some(Direction::Down),
            Workload::Ping { .. } => None,
        };
        self.workloads.iter().find_map(direction).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests;
