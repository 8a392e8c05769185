//! State of one network that shares a radio: its configuration, its measurements, and its waiting
//! packets.

use std::collections::{BTreeMap, VecDeque};

use hawser_units::Instant;
use hawser_wire::air::StationId;

/// Identifier of a virtual network of one radio. Never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NetworkId(pub u16);

/// Kind of a network.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Access point, which buffers packets while the radio is away.
    Infrastructure,
    /// Access point that another station joins through this radio, e.g. the kernel's station with
    /// its keys: all frames of that station pass in the network's slot.
    /// [`SlotSchedule::set_association`] reports when it has joined; from then on the access point
    /// is notified when the radio is away.
    ///
    /// [`SlotSchedule::set_association`]: super::SlotSchedule::set_association
    Relayed,
    /// Neighbour in ad hoc mode, which buffers nothing.
    AdHoc,
    /// No network: the slot listens for access points, on another channel each time.
    Scan {
        /// The channels, in turn.
        channels: Vec<u16>,
        /// Marks active scanning with probe requests instead of only listening.
        active: bool,
    },
}

/// Network layer parameters that are needed before a flow may use a network.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IpConfig {
    /// Address of the radio in this network.
    pub address: u32,
    /// Prefix length.
    pub prefix: u8,
    /// Default gateway.
    pub gateway: u32,
    /// Resolvers.
    pub dns: Vec<u32>,
}

/// Configuration of a network.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NetworkConfig {
    /// Name of the network (SSID), as a number.
    pub name: u32,
    /// Access point (BSSID) or neighbour.
    pub peer: StationId,
    /// Channel of the network.
    pub channel: u16,
    /// Kind of the network.
    pub mode: Mode,
    /// Weight of its slot, in multiples of the default slot.
    pub weight: u32,
    /// Addresses, if they are known already.
    pub ip: Option<IpConfig>,
}

impl NetworkConfig {
    /// Creates an access point with the default slot and no addresses yet.
    #[must_use]
    pub fn access_point(name: u32, peer: StationId, channel: u16) -> Self {
        Self {
            name,
            peer,
            channel,
            mode: Mode::Infrastructure,
            weight: 1,
            ip: None,
        }
    }

    /// Creates an access point that another station joins.
    #[must_use]
    pub fn relayed(name: u32, peer: StationId, channel: u16) -> Self {
        Self {
            mode: Mode::Relayed,
            ..Self::access_point(name, peer, channel)
        }
    }

    /// Creates a neighbour in ad hoc mode.
    #[must_use]
    pub fn ad_hoc(peer: StationId, channel: u16) -> Self {
        Self {
            mode: Mode::AdHoc,
            ..Self::access_point(0, peer, channel)
        }
    }

    /// Creates a slot that listens on these channels in turn.
    ///
    /// # Panics
    /// Without a channel.
    #[must_use]
    pub fn scan(channels: Vec<u16>, active: bool) -> Self {
        let first = *channels.first().expect("there is a channel to scan");
        Self {
            mode: Mode::Scan { channels, active },
            ..Self::access_point(0, StationId(u16::MAX), first)
        }
    }

    /// Sets the weight.
    #[must_use]
    pub fn weight(self, weight: u32) -> Self {
        Self { weight, ..self }
    }

    /// Sets the addresses.
    #[must_use]
    pub fn ip(self, ip: IpConfig) -> Self {
        Self { ip: Some(ip), ..self }
    }
}

/// State of a network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// No association.
    Out,
    /// Authentication request sent.
    Authenticating,
    /// Association request sent.
    Associating,
    /// Associated; the access point buffers packets.
    Asleep,
    /// The access point is being notified that the radio is back.
    Waking,
    /// Packets may pass. Ad hoc networks, scanning slots, and relayed networks without an
    /// association are always in this state.
    Awake,
}

/// Virtual network.
///
/// Source: Juggler section 3: type, SSID, MAC address, frequency, addresses, outbound queue, ARP
/// cache, share of the radio.
#[derive(Debug)]
pub struct VirtualNetwork<P> {
    pub(super) config: NetworkConfig,
    pub(super) state: State,
    pub(super) aid: Option<u8>,
    pub(super) queue: VecDeque<(P, u32)>,
    pub(super) neighbours: BTreeMap<u32, u64>,
    /// Time to repeat an unanswered step.
    pub(super) retry_at: Option<Instant>,
    /// Next channel of a scanning slot.
    pub(super) next_channel: usize,
    /// Smoothed quality from probes. Units: bit/s.
    pub(super) quality: Option<f64>,
}

impl<P> VirtualNetwork<P> {
    pub(super) fn new(config: NetworkConfig) -> Self {
        let state = match config.mode {
            Mode::Infrastructure => State::Out,
            Mode::Relayed | Mode::AdHoc | Mode::Scan { .. } => State::Awake,
        };
        Self {
            config,
            state,
            aid: None,
            queue: VecDeque::new(),
            neighbours: BTreeMap::new(),
            retry_at: None,
            next_channel: 0,
            quality: None,
        }
    }

    /// Returns the present configuration.
    #[must_use]
    pub fn config(&self) -> &NetworkConfig {
        &self.config
    }

    /// Returns the state.
    #[must_use]
    pub fn state(&self) -> State {
        self.state
    }

    /// Returns the association id.
    #[must_use]
    pub fn aid(&self) -> Option<u8> {
        self.aid
    }

    /// Returns the number of waiting packets.
    #[must_use]
    pub fn queued(&self) -> usize {
        self.queue.len()
    }

    /// Returns the probed quality. Units: bit/s.
    #[must_use]
    pub fn quality(&self) -> Option<f64> {
        self.quality
    }

    /// Stores the hardware address of an IP address in this network.
    ///
    /// Each network has its own table: two networks may use the same private addresses for
    /// different machines.
    /// Source: Juggler section 3.2.
    pub fn learn_neighbour(&mut self, address: u32, hardware: u64) {
        self.neighbours.insert(address, hardware);
    }

    /// Returns the hardware address of the next hop: the destination's within the subnet, otherwise
    /// the gateway's.
    ///
    /// # Errors
    /// The IP address whose hardware address is unknown (the destination or the gateway), to be
    /// resolved first; `None` if the network has no addresses yet.
    pub fn next_hop(&self, destination: u32) -> Result<u64, Option<u32>> {
        let ip = self.config.ip.as_ref().ok_or(None)?;
        let mask = u32::MAX.checked_shl(32 - u32::from(ip.prefix)).unwrap_or(0);
        let is_inside = destination & mask == ip.address & mask;
        let hop = if is_inside { destination } else { ip.gateway };
        self.neighbours.get(&hop).copied().ok_or(Some(hop))
    }

    /// Returns whether flows may use the network.
    pub(super) fn takes_flows(&self) -> bool {
        !self.is_scan() && self.config.ip.is_some()
    }

    pub(super) fn is_scan(&self) -> bool {
        matches!(self.config.mode, Mode::Scan { .. })
    }

    pub(super) fn is_infrastructure(&self) -> bool {
        self.config.mode == Mode::Infrastructure
    }

    /// Returns whether an access point has to be notified when the radio is away.
    pub(super) fn keeps_packets(&self) -> bool {
        self.is_infrastructure() || (self.config.mode == Mode::Relayed && self.aid.is_some())
    }
}
