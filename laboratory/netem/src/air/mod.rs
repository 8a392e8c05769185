//! An 802.11 medium that stations share, without I/O.
//!
//! Scope: DCF with slots, backoff, retry limit and acknowledgements; carrier sense by received
//! power, hidden terminals, capture; loss by rate and signal-to-noise ratio, fading; RTS/CTS;
//! aggregation with block acknowledgement; retuning and sleep. Limitations: one access category, no
//! propagation delay, no adjacent-channel interference (only [`Air::set_overlap`]), no
//! fragmentation. Usage: [`Air`], or [`FrameMedium`] for frames of real stacks.
//! Validation: `tests/saturation.rs` against rows of an independent simulator (ns-3.37),
//! `medium/tests.rs` for behaviours.

mod access_point;
mod frame_medium;
mod medium;
mod on_air;
mod rate_control;
mod signal;
mod station;

pub use access_point::{AccessPoint, AccessPointConfig, AccessPointCounters};
pub use frame_medium::{Address, FrameMedium, MediumConfig, MediumEvent, StackFrame, Stranger};
pub use hawser_wire::air::{
    BEACON_LEN, Beacon, Frame, MANAGEMENT_LEN, NULL_LEN, Outgoing, PS_POLL_LEN, StationId, channel, phy,
};
pub use medium::{Air, AirEvent, Kind, Transmitted};
pub use on_air::{Reception, StationConfig};
pub use rate_control::RateControl;
pub use signal::{Fading, FrameLoss, Signal, loss_at};
