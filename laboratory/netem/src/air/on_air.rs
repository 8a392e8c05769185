//! Who is on the air, and what they hear.

use super::StationId;
use super::phy::{PhyRate, Standard};
use super::rate_control::RateControl;

/// What a station is like.
#[derive(Clone, Debug)]
pub struct StationConfig {
    /// Its generation.
    pub standard: Standard,
    /// The channel it is tuned to at first. Channels of different numbers do not hear each other.
    pub channel: u16,
    /// How often a frame is tried in all.
    pub attempts: u8,
    /// Frames that may wait; one more is refused.
    pub queue: usize,
    /// How it chooses rates.
    pub rate: RateControl,
    /// Frames of at least this many bytes are announced by RTS and CTS.
    pub rts_threshold: u32,
    /// Frames in one transmission, with block acknowledgement when more than one.
    pub aggregate: u16,
    /// Whether it reports every frame that it can read, also others' and repeated ones.
    pub monitor: bool,
}

impl StationConfig {
    /// A station of `standard` that sends at one rate: seven attempts, 400 frames of queue, no RTS,
    /// no aggregation.
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

/// A frame that a station could read.
#[derive(Clone, Debug, PartialEq)]
pub struct Reception<B> {
    /// Who sent it.
    pub from: StationId,
    /// To whom; `None` to everybody.
    pub to: Option<StationId>,
    /// What it carried.
    pub body: B,
    /// Counts the sender's frames to this destination; repeated with the frame.
    pub sequence: u16,
    /// It is not the first attempt.
    pub retry: bool,
    /// Its modulation.
    pub rate: PhyRate,
}
