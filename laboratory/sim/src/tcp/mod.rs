//! TCP without packets' bytes: a sender and a receiver, each a machine that is driven by segments
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

/// How a sender finds and retransmits losses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Recovery {
    /// Three duplicate acknowledgements begin slow start. Source: Jacobson 1988.
    Tahoe,
    /// Fast recovery that ends with the first new acknowledgement. Source: RFC 2581.
    Reno,
    /// Fast recovery that lasts until everything is retransmitted. Source: RFC 6582.
    NewReno,
    /// Selective acknowledgements; three segments received later mean a loss. Source: RFC 6675.
    Sack,
    /// The same with as many segments, up to 127, as reordering has been seen to need; needless
    /// reductions are undone. A timeout forgets it.
    ///
    /// Source: Linux before RACK, `tcp_update_reordering`, `tcp_enter_loss`; RFC 3522, RFC 2883.
    SackAdaptive,
    /// Selective acknowledgements and time: a segment is lost when one sent later has arrived and a
    /// part of a round trip has passed, which grows where reordering is seen; needless reductions
    /// are undone. Source: RFC 8985, RFC 3522, RFC 2883, as in Linux.
    Rack,
}

impl Recovery {
    /// Whether a reduction is taken back when nothing was lost.
    pub(crate) const fn undoes(self) -> bool {
        matches!(self, Self::SackAdaptive | Self::Rack)
    }

    /// Whether selective acknowledgements are read.
    #[must_use]
    pub const fn is_selective(self) -> bool {
        matches!(self, Self::Sack | Self::SackAdaptive | Self::Rack)
    }
}

/// How both ends open a connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Opening {
    /// It is open from the beginning.
    Open,
    /// The end with the data asks.
    #[default]
    BySender,
    /// The other end asks: a download.
    ByReceiver,
}

/// What a TCP is like, at both ends.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Config {
    /// Payload bytes of a full segment.
    pub segment: u16,
    /// IP and TCP header bytes of every packet.
    pub header: u16,
    /// Units: segments.
    pub initial_window: f64,
    /// Where slow start ends without a loss. Units: segments.
    pub initial_threshold: f64,
    /// What a loss leaves at least of the window. Units: segments.
    pub least_window: f64,
    /// How the window grows.
    pub congestion: Congestion,
    /// Whether slow start ends when round trips grow.
    pub hystart: bool,
    /// How losses are found and retransmitted.
    pub recovery: Recovery,
    /// Whether windows grow by acknowledged bytes (RFC 3465) instead of by acknowledgements.
    pub counts_bytes: bool,
    /// Whether the first two duplicate acknowledgements let a new segment go. Source: RFC 3042.
    pub limited_transmit: bool,
    /// Segments that go together: with room for fewer the sender waits for the next
    /// acknowledgement, unless it has sent nothing since the last.
    ///
    /// Source: Linux `tcp_tso_should_defer`, `net.ipv4.tcp_min_tso_segs`.
    pub least_burst: u16,
    /// Whether silence at the end of what was sent is probed before the retransmission timeout.
    /// Source: RFC 8985 section 7.
    pub tail_probe: bool,
    /// Whether the window begins anew after an idle timeout.
    pub restarts_after_idle: bool,
    /// Bounds of the retransmission timeout.
    pub rto: RtoBounds,
    /// How long an acknowledgement may wait for a second segment; `None` when each segment is
    /// acknowledged.
    pub delayed_ack: Option<Duration>,
    /// Acknowledgements at the beginning that do not wait.
    pub quick_acks: u32,
    /// Bytes the receiver takes.
    pub receive_window: u32,
    /// Whether packets can be marked instead of dropped.
    pub ecn: bool,
    /// Who opens.
    pub opening: Opening,
}

/// IP, UDP, a short header with eight bytes of connection id, a STREAM frame's header and the AEAD
/// tag.
pub const QUIC_HEADER: u16 = 65;

impl Config {
    /// A current Linux host on a path that carries 1500 bytes.
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

    /// QUIC's transfer of one stream, as far as this machine is like it: the standard's fixed
    /// threshold of three packets, slow start until a loss, no memory of needless reductions.
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

    /// The IP bytes of a packet that carries `payload`.
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
