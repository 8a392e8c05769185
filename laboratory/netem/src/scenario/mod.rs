//! The scenario format: networks, workloads and events of one experiment, as TOML.
//!
//! A scenario says everything that an experiment depends on, so that a claim, a benchmark and a bug
//! report can each be one file. Rates, times and sizes carry their unit; unknown fields are errors;
//! an error names file, line and remedy. Reading files is the caller's: [`Scenario::parse`] gets a
//! function that does it.

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

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use hawser_units::{Bytes, Duration, Instant, Rate};
use hawser_wire::data::Class;

pub use crate::video::Coding;
use crate::video::{Film, Video};
use crate::{Capacity, Change, LinkConfig, NatConfig};

pub use client_hop::ClientHop;
pub use member::Member;
pub use usage::Usage;
pub use wifi::{Slots, Wifi};

/// One experiment.
#[derive(Clone, Debug, PartialEq)]
pub struct Scenario {
    /// What it is called in results.
    pub name: String,
    /// Where every random number comes from.
    pub seed: u64,
    /// How long the workloads run.
    pub duration: Duration,
    /// How much of the beginning does not count towards goodput.
    pub warmup: Duration,
    /// What carries the traffic.
    pub via: Via,
    /// Schedulers of Hawser's tunnel, by flow class; a class that is absent has its default.
    pub schedulers: Vec<(Class, String)>,
    /// Congestion control of its paths; absent: the default. The simulator has it, the daemon not.
    pub controller: Option<String>,
    /// Lets TCP of client and server ask for ECN (RFC 3168), as with `net.ipv4.tcp_ecn = 1`.
    pub tcp_ecn: bool,
    /// Form in which the tunnel transfers TCP.
    pub tcp: Tcp,
    /// The networks of the client, in the order of preference that its routing table shows.
    pub networks: Vec<Network>,
    /// The hop behind a repeater. Only the lab has it.
    pub client_hop: Option<ClientHop>,
    /// What runs at the same time.
    pub workloads: Vec<Workload>,
    /// Those of them, by index, that go another way than `via`: what shares the networks with it.
    pub beside: BTreeMap<usize, Beside>,
    /// What happens meanwhile, in order of time.
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

/// What carries the traffic of a scenario.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Via {
    /// Hawser, with a hub.
    Hub,
    /// Hawser, without a far end.
    Direct,
    /// Hawser, to another host that runs it.
    Peer,
    /// Hawser, through a repeater.
    Repeater,
    /// The kernel's MPTCP over the networks that Hawser gives it, without a far end.
    DirectMptcp,
    /// The kernel's MPTCP, without Hawser.
    Mptcp,
    /// The kernel, over the network of this name only.
    Single(String),
    /// Another bonding tool, of this name. No scenario says so: the command that runs it also says
    /// how the tool is started.
    Tool(String),
}

/// How a workload goes that shares the networks with what is measured.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Beside {
    /// The kernel, over the network of this name only.
    Single(String),
    /// The own traffic of the member of this name, over its way out and outside of the tunnel.
    Member(String),
    /// A second client of Hawser, with a tunnel of its own over the same networks.
    OtherClient,
}

/// One way out of the client.
#[derive(Clone, Debug, PartialEq)]
pub struct Network {
    /// Its name, and that of its device: 1 to 15 letters, digits, `-` or `_`.
    pub name: String,
    /// Both directions; `None` for a plain cable without emulation.
    pub links: Option<Links>,
    /// Its last hop, where that is the air.
    pub wifi: Option<Wifi>,
    /// Whose it is, where it is a neighbour's.
    pub member: Option<Member>,
    /// What it has in common with another part of the scenario.
    pub shares: Option<Shares>,
    /// It drops every datagram of UDP, both ways, without a word.
    pub blocks_udp: bool,
    /// Translator of the client's addresses on this network; `None`: the hub and the server see
    /// them, except where `via` needs a translator.
    pub nat: Option<NatConfig>,
    /// The user's settings for it, with a hub.
    pub usage: Usage,
}

/// What a network shares.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shares {
    /// It goes over the links of that network, by index, too: a second way through one bottleneck.
    /// Only the simulator has it.
    Links(usize),
    /// The air of the hop from a repeater to its client, by time: each has what the other leaves,
    /// and both have equally many bytes where both want more. Only the lab has it.
    ClientHop,
}

/// Both directions of an emulated network.
#[derive(Clone, Debug, PartialEq, Default)]
pub struct Links {
    /// Towards the client.
    pub down: LinkConfig,
    /// From the client.
    pub up: LinkConfig,
}

/// Which way the bytes of a workload go.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Direction {
    /// Towards the client.
    #[default]
    Down,
    /// From the client.
    Up,
}

/// Something that uses the network for the whole duration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Workload {
    /// Bulk TCP connections.
    Tcp {
        /// Which way the bytes go.
        direction: Direction,
        /// How many connections at once.
        streams: u32,
        /// The kernel's name of the congestion control.
        congestion: String,
    },
    /// Bulk QUIC connections, one stream in each.
    Quic {
        /// Which way the bytes go.
        direction: Direction,
        /// How many connections at once.
        streams: u32,
    },
    /// Datagrams at a constant rate.
    Udp {
        /// Which way they go.
        direction: Direction,
        /// Of UDP payload.
        rate: Rate,
        /// UDP payload of each.
        size: Bytes,
        /// Of how many layers they are in turn, the base first; 0 where they are no layered stream.
        /// A layer is known by its code point ([`layer_code_point`]).
        layers: u8,
    },
    /// A request and its echo, again and again.
    Ping {
        /// Between requests.
        interval: Duration,
    },
    /// A video as datagrams, of which some matter more than others.
    Video {
        /// Which way it goes.
        direction: Direction,
        /// Of UDP payload, mean.
        rate: Rate,
        /// What its parts are to each other.
        coding: Coding,
        /// Its pictures; a model of this rate where there are none.
        film: Option<Arc<Film>>,
    },
    /// One HTTP download of a fixed size.
    Http {
        /// Of the body.
        size: Bytes,
    },
}

impl Workload {
    /// How many layers its packets are marked as; 0 where they have no marks.
    #[must_use]
    pub const fn layers(&self) -> u8 {
        match self {
            Self::Udp { layers, .. } => *layers,
            Self::Video { coding, .. } => coding.layers(),
            Self::Tcp { .. } | Self::Quic { .. } | Self::Ping { .. } | Self::Http { .. } => 0,
        }
    }

    /// What sends the video of this workload from `start` until `end`; `None` where it is none.
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

/// The code point that tells a datagram of this layer, or of this description: no layer has that of
/// traffic without a mark.
#[must_use]
pub const fn layer_code_point(layer: u8) -> u8 {
    layer + 1
}

/// A part of a network.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Hop {
    /// What its `down` and `up` describe.
    #[default]
    WayOut,
    /// What joins the member whose network it is to the client.
    Local,
}

/// A change at a time.
#[derive(Clone, Debug, PartialEq)]
pub struct Event {
    /// Since the start of the workloads.
    pub at: Duration,
    /// Index into [`Scenario::networks`].
    pub network: usize,
    /// Which part of it changes.
    pub hop: Hop,
    /// The direction it changes; both when `None`.
    pub direction: Option<Direction>,
    /// What changes.
    pub change: Change,
    /// Changes of the rest of the network.
    pub beside: NetworkChange,
}

/// A change of a network beside its links.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct NetworkChange {
    /// Removes all mappings of its translator.
    pub flush_nat: bool,
    /// Another MTU of the client's interface. Only the lab has it. Units: IP bytes.
    pub device_mtu: Option<u16>,
}

/// Why a scenario cannot be run. Says where and what to do, in one line.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum ScenarioError {
    /// The file, or one it names, cannot be read.
    #[error("{}: cannot be read: {reason}", path.display())]
    Read {
        /// Which file.
        path: PathBuf,
        /// What the system said.
        reason: String,
    },
    /// Something in the file is wrong.
    #[error("{}:{line}: {problem}", path.display())]
    Invalid {
        /// Which file.
        path: PathBuf,
        /// Counted from 1.
        line: usize,
        /// What is wrong and what to write instead.
        problem: String,
    },
    /// A `--set` does not fit the scenario.
    #[error("--set {setting}: {problem}")]
    Override {
        /// As given.
        setting: String,
        /// What is wrong and what to write instead.
        problem: String,
    },
}

impl Via {
    /// As it is written in a scenario.
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

    /// The way that `label` names; `None` when there is none.
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
    /// The sum of the networks' mean rates in the direction of the first bulk workload; `None` when
    /// one is unlimited, or another hop lies behind them.
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

    /// What starts the traces of the networks together with the workloads, so that every way of a
    /// comparison meets the same stretch of them.
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
                        beside: NetworkChange::default(),
                    })
            })
            .collect()
    }

    /// What members do, in order of time: they leave and come without a word. A scenario that was
    /// read has that among its events.
    #[must_use]
    pub fn movements(&self) -> Vec<Event> {
        let mut events = movements::movements(&self.networks);
        events.sort_by_key(|event| event.at);
        events
    }

    /// The direction of the first workload that moves bulk data; down when there is none.
    #[must_use]
    pub fn bulk_direction(&self) -> Direction {
        let direction = |workload: &Workload| match workload {
            Workload::Tcp { direction, .. }
            | Workload::Quic { direction, .. }
            | Workload::Udp { direction, .. }
            | Workload::Video { direction, .. } => Some(*direction),
            Workload::Http { .. } => Some(Direction::Down),
            Workload::Ping { .. } => None,
        };
        self.workloads.iter().find_map(direction).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests;
