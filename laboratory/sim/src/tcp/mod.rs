//! TCP without payload bytes: a sender and a receiver, each a machine that is driven by segments
//! and time.
//!
//! Scope: opening, slow start, NewReno and CUBIC, five ways to find and retransmit losses (see
//! [`Recovery`]), delayed and selective acknowledgements, tail-loss probe, retransmission timeout,
//! a bounded receive window, ECN, undo of needless reductions. Limitations: one direction of data
//! for each pair, no Nagle, no urgent data, sequence numbers do not wrap.
//!
//! ```text
//!   sender:    opening -> open <-> fast recovery
//!                           \--> after timeout --/       (both end when what was sent before the loss is acknowledged)
//! ```

mod congestion;
mod generation;
mod ranges;
mod receiver;
mod rtt;
mod sender;

use hawser_units::Duration;

pub use congestion::Congestion;
pub use receiver::Receiver;
pub use rtt::RtoBounds;
pub use sender::{Sender, Statistics};

pub(crate) use ranges::Ranges;

/// Loss detection and retransmission of a sender.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Recovery {
    /// Slow start after three duplicate acknowledgements. Source: Jacobson 1988.
    Tahoe,
    /// Fast recovery, until the first new acknowledgement. Source: RFC 2581.
    Reno,
    /// Fast recovery, until everything is retransmitted. Source: RFC 6582.
    NewReno,
    /// Selective acknowledgements; a loss is detected after three later segments. Source: RFC 6675.
    Sack,
    /// Like [`Self::Sack`], but with the observed reordering distance, up to 127 segments, as the
    /// threshold; spurious reductions are undone. A timeout resets the threshold.
    ///
    /// Source: Linux before RACK, `tcp_update_reordering`, `tcp_enter_loss`; RFC 3522, RFC 2883.
    SackAdaptive,
    /// Selective acknowledgements and time: a segment is lost if a later one was delivered and a
    /// part of a round trip has passed, which grows with observed reordering; spurious reductions
    /// are undone. Source: RFC 8985, RFC 3522, RFC 2883, as in Linux.
    Rack,
}

impl Recovery {
    /// Returns whether spurious reductions are undone.
    pub(crate) const fn undoes(self) -> bool {
        matches!(self, Self::SackAdaptive | Self::Rack)
    }

    /// Returns whether selective acknowledgements are used.
    #[must_use]
    pub const fn is_selective(self) -> bool {
        matches!(self, Self::Sack | Self::SackAdaptive | Self::Rack)
    }
}

/// Opening of a connection by both ends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Opening {
    /// The connection is open from the start.
    Open,
    /// The sender of the data opens the connection.
    #[default]
    BySender,
    /// The receiver of the data opens the connection, as for a download.
    ByReceiver,
}

/// Parameters of TCP at both ends.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Config {
    /// Payload of a full segment. Units: bytes.
    pub segment: u16,
    /// Headers of IP and TCP in every packet. Units: bytes.
    pub header: u16,
    /// Initial window. Units: segments.
    pub initial_window: f64,
    /// Threshold at which slow start ends without a loss. Units: segments.
    pub initial_threshold: f64,
    /// Minimum window after a loss. Units: segments.
    pub least_window: f64,
    /// Growth of the window.
    pub congestion: Congestion,
    /// Set if slow start ends when round-trip times grow.
    pub hystart: bool,
    /// Loss detection and retransmission.
    pub recovery: Recovery,
    /// Set if windows grow by acknowledged bytes (RFC 3465) instead of by acknowledgements.
    pub counts_bytes: bool,
    /// Set if the first two duplicate acknowledgements permit a new segment. Source: RFC 3042.
    pub limited_transmit: bool,
    /// Minimum number of segments in a burst: if the window permits fewer, the sender waits for the
    /// next acknowledgement, unless it has sent nothing since the last one.
    ///
    /// Source: Linux `tcp_tso_should_defer`, `net.ipv4.tcp_min_tso_segs`.
    pub least_burst: u16,
    /// Set to send a tail-loss probe before the retransmission timeout. Source: RFC 8985 section 7.
    pub tail_probe: bool,
    /// Set if the window restarts after an idle timeout.
    pub restarts_after_idle: bool,
    /// Bounds of the retransmission timeout.
    pub rto: RtoBounds,
    /// Maximum delay of an acknowledgement, until a second segment arrives; `None`: each segment is
    /// acknowledged.
    pub delayed_ack: Option<Duration>,
    /// Number of initial acknowledgements without delay.
    pub quick_acks: u32,
    /// Receive window. Units: bytes.
    pub receive_window: u32,
    /// Set if the connection uses ECN.
    pub ecn: bool,
    /// Opening of the connection.
    pub opening: Opening,
}

/// Headers of a QUIC packet: IP, UDP, a short header with a connection id of eight bytes (RFC 9000
/// section 17.3.1), a STREAM frame's header (section 19.8) and the AEAD tag. Units: bytes.
pub const QUIC_HEADER: u16 = 65;

impl Config {
    /// Current Linux, on a path with an MTU of 1500 bytes.
    ///
    /// Source: Linux 6 defaults: SACK, RACK, timestamps, CUBIC with HyStart, ten initial segments,
    /// 6 MB of `tcp_rmem` of which about half is window.
    #[must_use]
    pub const fn linux() -> Self {
        Self {
            segment: 1448,
            header: 52,
            initial_window: 10.0,
            initial_threshold: f64::INFINITY,
            least_window: 2.0,
            congestion: Congestion::Cubic,
            hystart: true,
            recovery: Recovery::Rack,
            counts_bytes: true,
            limited_transmit: true,
            least_burst: 2,
            tail_probe: true,
            restarts_after_idle: true,
            rto: RtoBounds::LINUX,
            delayed_ack: Some(Duration::from_millis(40)),
            quick_acks: 16,
            receive_window: 3 << 20,
            ecn: false,
            opening: Opening::BySender,
        }
    }

    /// Transfer of one QUIC stream, as far as this machine can model it: the standard's fixed
    /// packet threshold of three, slow start until a loss, no undo of spurious reductions.
    ///
    /// Source: RFC 9002 sections 6.1.1 and 7.2, RFC 9000 section 13.2 (acknowledgements of every
    /// second packet, after 25 ms at most); packet sizes and windows of quinn 0.11. Deviates: there
    /// is no time threshold, and acknowledgements have TCP's size.
    #[must_use]
    pub const fn quic() -> Self {
        Self {
            segment: 1415,
            header: QUIC_HEADER,
            hystart: false,
            recovery: Recovery::Sack,
            least_burst: 1,
            delayed_ack: Some(Duration::from_millis(25)),
            quick_acks: 0,
            receive_window: 32 << 20,
            ..Self::linux()
        }
    }

    /// A one-way agent of ns-2 with `recovery`: packets of 1000 bytes and 40 of header, a window of
    /// 20 packets, an initial window of two, every packet acknowledged, open from the beginning.
    ///
    /// Source: ns-2.35 `tcl/lib/ns-default.tcl` (`window_ 20`, `windowInit_ 2`, `packetSize_ 1000`,
    /// `tcpip_base_hdr_size_ 40`, `minrto_ 0.2`, `maxrto_ 60`). Deviates: no clock ticks; a
    /// receiver bounds the window instead of the sender, which is the same.
    #[must_use]
    pub const fn ns2(recovery: Recovery) -> Self {
        Self {
            segment: 1000,
            header: 40,
            initial_window: 2.0,
            initial_threshold: 20.0,
            least_window: 2.0,
            congestion: Congestion::NewReno,
            hystart: false,
            recovery,
            counts_bytes: false,
            limited_transmit: true,
            least_burst: 1,
            tail_probe: false,
            restarts_after_idle: false,
            rto: RtoBounds {
                initial: Duration::from_secs(3),
                min: Duration::from_millis(200),
                max: Duration::from_secs(60),
                variation: Duration::from_millis(10),
            },
            delayed_ack: None,
            quick_acks: 0,
            receive_window: 20_000,
            ecn: false,
            opening: Opening::Open,
        }
    }

    /// Returns the IP bytes of a packet with `payload` bytes.
    #[must_use]
    pub const fn packet_size(&self, payload: u16) -> u16 {
        self.header + payload
    }
}

impl Default for Config {
    fn default() -> Self {
        Self::linux()
    }
}
