//! Frames of 802.11 as the machines of a radio and an emulated medium exchange them: fields and
//! lengths on the air, without bytes.
//!
//! Source: IEEE 802.11-2016 clauses 9 and 15 to 19. `hawser-radio` builds and parses the bytes of
//! real frames.

pub mod channel;
pub mod phy;

use hawser_units::Instant;

/// Identifier of a station of one medium.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StationId(pub u16);

/// Frame to send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outgoing<B> {
    /// Receiver; `None` for a broadcast.
    pub to: Option<StationId>,
    /// Contents of the frame.
    pub body: B,
    /// Bytes on the air, MAC header and check sequence included.
    pub len: u32,
    /// Set for priority over all frames that have not been transmitted yet, even if the queue is
    /// full.
    pub urgent: bool,
}

/// Contents of a frame above the medium.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Frame<P> {
    /// Packet.
    Data {
        /// Packet of the frame.
        packet: P,
        /// More-data bit of an access point: more packets are buffered for the station.
        more: bool,
        /// Power management bit of a station: set if it sleeps from now on.
        power_save: bool,
    },
    /// Packet of a link that consists of several radios.
    Striped {
        /// Packet of the frame.
        packet: P,
        /// Number of the packet, counted over all radios.
        number: u32,
    },
    /// Null frame, which only reports whether a station sleeps from now on.
    Null {
        /// Power save bit.
        power_save: bool,
    },
    /// Request of a sleeping station for one buffered packet.
    PsPoll,
    /// Beacon of an access point.
    Beacon(Beacon),
    /// Probe request of a station.
    ProbeRequest,
    /// Probe response of an access point.
    ProbeResponse {
        /// Number of the network.
        network: u32,
    },
    /// First step of joining.
    Authenticate,
    /// Answer to the first step of joining.
    Authenticated,
    /// Second step of joining.
    Associate,
    /// Answer to the second step of joining.
    Associated {
        /// The association id, 1 to 63.
        aid: u8,
    },
    /// Deauthentication: the station has to join again.
    Deauthenticate,
}

impl<P> Frame<P> {
    /// Returns the packet of a data frame.
    #[must_use]
    pub fn into_packet(self) -> Option<P> {
        match self {
            Self::Data { packet, .. } | Self::Striped { packet, .. } => Some(packet),
            Self::Null { .. }
            | Self::PsPoll
            | Self::Beacon(_)
            | Self::ProbeRequest
            | Self::ProbeResponse { .. }
            | Self::Authenticate
            | Self::Authenticated
            | Self::Associate
            | Self::Associated { .. }
            | Self::Deauthenticate => None,
        }
    }
}

/// Contents of a beacon.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Beacon {
    /// Number of the network.
    pub network: u32,
    /// Time at which the beacon was due; its timestamp, regardless of the wait for the channel.
    pub due: Instant,
    /// Traffic indication map: bit n is set if packets for association id n are buffered.
    pub traffic: u64,
    /// Channel switch: the new channel, and the number of beacons until the switch.
    pub moves: Option<(u16, u8)>,
}

/// Bytes of a beacon or probe response. Source: IEEE 802.11-2020 section 9.3.3, beacon, with MAC
/// header and check sequence (28), fixed fields (12), a name of ten letters (12), two elements of
/// rates (10 and 6), channel (3), traffic indication map (6) and ERP (3).
pub const BEACON_LEN: u32 = 80;
/// Bytes of a management frame for joining or leaving. Source: IEEE 802.11-2020 section 9.3.3,
/// association request, with MAC header and check sequence (28), fixed fields (4), a name of ten
/// letters (12) and two elements of rates (10 and 6).
pub const MANAGEMENT_LEN: u32 = 60;
/// Bytes of a null frame. Source: IEEE 802.11-2020 section 9.3.2.1, header and check sequence.
pub const NULL_LEN: u32 = 28;
/// Bytes of a PS-Poll. Source: IEEE 802.11-2020 section 9.3.1.5.
pub const PS_POLL_LEN: u32 = 20;
