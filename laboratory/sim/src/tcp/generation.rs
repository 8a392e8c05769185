//! TCP of earlier systems and of other simulators, for experiments that used them.

use hawser_units::Duration;

use super::{Config, Congestion, Recovery, RtoBounds};

impl Config {
    /// Linux of 2007, on a path with an MTU of 1500 bytes.
    ///
    /// Source: Linux 2.6.22: CUBIC without HyStart, SACK without RACK, windows that grow by
    /// acknowledgements (`tcp_abc` 0), three initial segments (RFC 3390), three seconds before the
    /// first timeout, no tail-loss probe; timeouts that time stamps show to have been needless are
    /// undone and reordering is learnt (`tcp_try_undo_loss`, `tcp_update_reordering`). Deviates:
    /// the window falls at once instead of by rate halving.
    #[must_use]
    pub const fn linux_2_6() -> Self {
        Self {
            initial_window: 3.0,
            hystart: false,
            recovery: Recovery::SackAdaptive,
            rto: RtoBounds {
                initial: Duration::from_secs(3),
                ..RtoBounds::LINUX
            },
            ..Self::linux_3_5()
        }
    }

    /// Linux of 2012, on a path with an MTU of 1500 bytes.
    ///
    /// Source: Linux 3.5: CUBIC with HyStart, SACK without RACK, windows that grow by
    /// acknowledgements, ten initial segments, no tail-loss probe (which came with 3.10). Deviates:
    /// the window falls at once instead of by proportional rate reduction.
    #[must_use]
    pub const fn linux_3_5() -> Self {
        Self {
            recovery: Recovery::Sack,
            counts_bytes: false,
            least_burst: 1,
            tail_probe: false,
            ..Self::linux()
        }
    }

    /// Source of htsim: whole packets of 1500 bytes, each acknowledged, NewReno, ten initial
    /// packets and slow start up to a hundred packets.
    ///
    /// Source: htsim `tcp.cpp` (`_cwnd`, `_ssthresh`, `_rto`, `inflate_window`). Deviates: headers
    /// are part of the packet, as its queues count.
    #[must_use]
    pub const fn htsim() -> Self {
        Self {
            segment: 1500,
            header: 0,
            initial_window: 10.0,
            initial_threshold: 100.0,
            congestion: Congestion::NewReno,
            hystart: false,
            recovery: Recovery::NewReno,
            counts_bytes: true,
            limited_transmit: false,
            least_burst: 1,
            tail_probe: false,
            restarts_after_idle: false,
            rto: RtoBounds {
                initial: Duration::from_secs(3),
                min: Duration::from_millis(250),
                max: Duration::from_secs(120),
                variation: Duration::ZERO,
            },
            delayed_ack: None,
            quick_acks: 0,
            ..Self::linux()
        }
    }
}
