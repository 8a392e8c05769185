//! Frames of 802.11 as the machines of a radio and an emulated medium exchange them: fields, and
//! lengths on the air, not bytes.
//!
//! Source: IEEE 802.11-2016 clauses 9 and 15 to 19. The bytes of real frames are written and read
//! by `hawser-radio`.

pub mod channel;
pub mod phy;

use hawser_units::Instant;

/// Names a station of one medium.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StationId(pub u16);

/// A frame to send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outgoing<B> {
    /// To whom; `None` to everybody.
    pub to: Option<StationId>,
    /// What it carries.
    pub body: B,
    /// Bytes on the air, MAC header and check sequence included.
    pub len: u32,
    /// Whether it goes before all that have not been tried yet, and in spite of a full queue.
    pub urgent: bool,
}

/// What a frame carries above the medium.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Frame<P> {
    /// A packet.
    Data {
        /// The packet.
        packet: P,
        /// From an access point: it keeps more for this station. From a station: unused.
        more: bool,
        /// From a station: it sleeps from now on. From an access point: unused.
        power_save: bool,
    },
    /// A packet of a link that is several radios' together.
    Striped {
        /// The packet.
        packet: P,
        /// Counts the packets of all of them.
        number: u32,
    },
    /// Only says whether a station sleeps from now on.
    Null {
        /// Whether it does.
        power_save: bool,
    },
    /// A sleeping station asks for one packet that is kept for it.
    PsPoll,
    /// An access point says that it is there.
    Beacon(Beacon),
    /// A station asks who is there.
    ProbeRequest,
    /// An access point answers that it is.
    ProbeResponse {
        /// Which network.
        network: u32,
    },
    /// First step of joining.
    Authenticate,
    /// Its answer.
    Authenticated,
    /// Second step of joining.
    Associate,
    /// Its answer.
    Associated {
        /// The association id, 1 to 63.
        aid: u8,
    },
    /// The station is out, and has to join again.
    Deauthenticate,
}

impl<P> Frame<P> {
    /// The packet of a data frame.
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

/// What a beacon says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Beacon {
    /// Which network.
    pub network: u32,
    /// When it was due, which its timestamp tells however long it waited for the channel.
    pub due: Instant,
    /// The traffic indication map: bit n says that something is kept for association id n.
    pub traffic: u64,
    /// The access point moves to this channel after so many beacons.
    pub moves: Option<(u16, u8)>,
}

/// Bytes of a beacon or probe response with a short name and the mandatory elements, MAC header and
/// check sequence included.
pub const BEACON_LEN: u32 = 80;
/// Bytes of a frame of joining or leaving.
pub const MANAGEMENT_LEN: u32 = 60;
/// Bytes of a null frame.
pub const NULL_LEN: u32 = 28;
/// Bytes of a PS-Poll.
pub const PS_POLL_LEN: u32 = 20;
