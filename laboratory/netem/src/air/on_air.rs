//! Parameters of stations, and received frames.

use super::StationId;
use super::phy::{PhyRate, Standard};
use super::rate_control::RateControl;

/// Parameters of a station.
#[derive(Clone, Debug)]
pub struct StationConfig {
    /// Generation of 802.11.
    pub standard: Standard,
    /// Initial channel. Channels of different numbers do not hear each other.
    pub channel: u16,
    /// Maximum number of attempts of a frame.
    pub attempts: u8,
    /// Maximum number of waiting frames; further frames are refused.
    pub queue: usize,
    /// Rate control.
    pub rate: RateControl,
    /// Minimum length of a frame that is announced by RTS and CTS. Units: bytes.
    pub rts_threshold: u32,
    /// Maximum number of frames in one transmission; more than one use block acknowledgement.
    pub aggregate: u16,
    /// Set to report every readable frame, including frames for others and repeated ones.
    pub monitor: bool,
}

impl StationConfig {
    /// Creates a station of `standard` with one rate: seven attempts, a queue of 400 frames, no
    /// RTS, no aggregation.
    #[must_use]
    pub fn fixed(standard: Standard, channel: u16, rate: PhyRate) -> Self {
        Self {
            standard,
            channel,
            attempts: 7,
            queue: 400,
            rate: RateControl::fixed(rate),
            rts_threshold: u32::MAX,
            aggregate: 1,
            monitor: false,
        }
    }
}

/// A frame that a station has received.
#[derive(Clone, Debug, PartialEq)]
pub struct Reception<B> {
    /// Sending station.
    pub from: StationId,
    /// Destination; `None` for a broadcast.
    pub to: Option<StationId>,
    /// Contents.
    pub body: B,
    /// Sequence number of the frame towards this destination; attempts of one frame share it.
    pub sequence: u16,
    /// Retry bit.
    pub retry: bool,
    /// Modulation.
    pub rate: PhyRate,
}
