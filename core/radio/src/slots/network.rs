//! One network among those that share a radio: what is configured, what is known of it, and what
//! waits for it.

use std::collections::{BTreeMap, VecDeque};

use hawser_units::Instant;
use hawser_wire::air::StationId;

/// Names a virtual network of one radio. Never used twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NetworkId(pub u16);

/// What kind of network it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Mode {
    /// An access point, which keeps packets while the radio is away.
    Infrastructure,
    /// An access point that another station joins through this radio, the kernel's with its keys
    /// for one: in its slot all that it sends passes. [`SlotSchedule::set_association`] says when
    /// it has joined; from then on the access point is told when the radio is away.
    ///
    /// [`SlotSchedule::set_association`]: super::SlotSchedule::set_association
    Relayed,
    /// A neighbour, which does not.
    AdHoc,
    /// None: the slot listens for access points, on another channel each time.
    Scan {
        /// The channels, in turn.
        channels: Vec<u16>,
        /// Whether it asks who is there instead of only listening.
        active: bool,
    },
}

/// What is needed at the network layer before a flow may use a network.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IpConfig {
    /// The radio's own address there.
    pub address: u32,
    /// Bits of the network's part.
    pub prefix: u8,
    /// Who leads out.
    pub gateway: u32,
    /// Who resolves names.
    pub dns: Vec<u32>,
}

/// A network to be added.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NetworkConfig {
    /// Its name (SSID), as a number.
    pub name: u32,
    /// The access point (BSSID) or neighbour.
    pub peer: StationId,
    /// Where it is.
    pub channel: u16,
    /// What it is.
    pub mode: Mode,
    /// Its slot, in multiples of the default slot.
    pub weight: u32,
    /// Its addresses, when they are known already.
    pub ip: Option<IpConfig>,
}

impl NetworkConfig {
    /// An access point with the default slot and no addresses yet.
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

    /// An access point that another station joins.
    #[must_use]
    pub fn relayed(name: u32, peer: StationId, channel: u16) -> Self {
        Self {
            mode: Mode::Relayed,
            ..Self::access_point(name, peer, channel)
        }
    }

    /// A neighbour in ad hoc mode.
    #[must_use]
    pub fn ad_hoc(peer: StationId, channel: u16) -> Self {
        Self {
            mode: Mode::AdHoc,
            ..Self::access_point(0, peer, channel)
        }
    }

    /// A slot that listens on these channels in turn.
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

    /// The same with a weight.
    #[must_use]
    pub fn weight(self, weight: u32) -> Self {
        Self { weight, ..self }
    }

    /// The same with addresses.
    #[must_use]
    pub fn ip(self, ip: IpConfig) -> Self {
        Self { ip: Some(ip), ..self }
    }
}

/// Where a network stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// Not associated.
    Out,
    /// The first step of joining has been sent.
    Authenticating,
    /// The second one.
    Associating,
    /// Associated; the access point keeps packets.
    Asleep,
    /// The access point is being told that the radio is back.
    Waking,
    /// Packets may pass. Ad hoc networks, scanning slots and relayed networks that are not joined
    /// are always in this state.
    Awake,
}

/// A virtual network.
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
    /// When a step that got no answer is tried again.
    pub(super) retry_at: Option<Instant>,
    /// Of a scanning slot: which channel is next.
    pub(super) next_channel: usize,
    /// Smoothed quality as reported. Units: bit/s.
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

    /// What was configured, as it is now.
    #[must_use]
    pub fn config(&self) -> &NetworkConfig {
        &self.config
    }

    /// Where it stands.
    #[must_use]
    pub fn state(&self) -> State {
        self.state
    }

    /// Its association id.
    #[must_use]
    pub fn aid(&self) -> Option<u8> {
        self.aid
    }

    /// Packets that wait for it.
    #[must_use]
    pub fn queued(&self) -> usize {
        self.queue.len()
    }

    /// Its quality as probed. Units: bit/s.
    #[must_use]
    pub fn quality(&self) -> Option<f64> {
        self.quality
    }

    /// Remembers which hardware address has an IP address there.
    ///
    /// Kept by network: two networks may use the same private addresses for different machines.
    /// Source: Juggler section 3.2.
    pub fn learn_neighbour(&mut self, address: u32, hardware: u64) {
        self.neighbours.insert(address, hardware);
    }

    /// The hardware address to send to for a destination: its own within the subnet, otherwise the
    /// gateway's. `None`: ask for the address in `Err` first.
    ///
    /// # Errors
    /// The IP address whose hardware address is not known; the network's own gateway or the
    /// destination.
    pub fn next_hop(&self, destination: u32) -> Result<u64, Option<u32>> {
        let ip = self.config.ip.as_ref().ok_or(None)?;
        let mask = u32::MAX.checked_shl(32 - u32::from(ip.prefix)).unwrap_or(0);
        let is_inside = destination & mask == ip.address & mask;
        let hop = if is_inside { destination } else { ip.gateway };
        self.neighbours.get(&hop).copied().ok_or(Some(hop))
    }

    /// Whether flows may be given to it.
    pub(super) fn takes_flows(&self) -> bool {
        !self.is_scan() && self.config.ip.is_some()
    }

    pub(super) fn is_scan(&self) -> bool {
        matches!(self.config.mode, Mode::Scan { .. })
    }

    pub(super) fn is_infrastructure(&self) -> bool {
        self.config.mode == Mode::Infrastructure
    }

    /// Whether there is an access point that has to know when the radio is away.
    pub(super) fn keeps_packets(&self) -> bool {
        self.is_infrastructure() || (self.config.mode == Mode::Relayed && self.aid.is_some())
    }
}
