//! Multipath TCP: one stream of data over several TCP subflows.
//!
//! Scope: coupled and uncoupled windows, backup subflows, subflows that join and leave, a
//! scheduler, data sequence numbers with reassembly and one receive window for the connection,
//! retransmission by idle subflows, and reinjection of a failed subflow's data. Limitations: no key
//! exchange, no fallback; the receiver also accepts data out of the order of a subflow, where Linux
//! waits for the subflow.
//!
//! ```text
//!   source: data -> scheduler -> subflow 0: tcp::Sender ==> tcp::Receiver \
//!                            \-> subflow 1: tcp::Sender ==> tcp::Receiver --> order of data -> sink
//! ```

mod coupling;
mod sink;
mod source;

pub use coupling::{Coupling, Response, View, lia_alpha, olia_alpha};
pub use sink::MptcpSink;
pub use source::MptcpSource;

use crate::tcp;

/// Parameters of a multipath connection.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Config {
    /// Parameters of every subflow; its receive window is that of the connection.
    pub tcp: tcp::Config,
    /// Coupling of the windows.
    pub coupling: Coupling,
    /// Scheduler of new data.
    pub scheduler: Scheduler,
    /// Treatment of the data of a subflow in trouble.
    pub relief: Relief,
    /// Set if the receiver's buffer grows with the bytes per round trip, instead of being the whole
    /// receive window from the beginning.
    pub grows_buffer: bool,
}

/// Treatment of the unacknowledged data of a subflow in trouble.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Relief {
    /// Idle subflows repeat the data, one fragment per expiry of the connection's timer, or all of
    /// it when the subflow is stale.
    ///
    /// Source: Linux 6, `__mptcp_retrans`, `mptcp_pm_subflow_chk_stale`.
    #[default]
    ByTurns,
    /// Each retransmission timeout assigns all the data to the others, and the subflow gets no new
    /// data until it has recovered. When the receive window is full, a faster subflow repeats the
    /// data that the receiver waits for.
    ///
    /// Source: MPTCP v0.8x outside the kernel, `mptcp_reinject_data`, `mptcp_is_available`.
    AtTimeout,
    /// The data stay with their subflow.
    None,
}

/// Scheduler: choice among the subflows with room for the next data.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Scheduler {
    /// Subflow with the shortest round-trip time. Source: Paasch et al. 2014; Linux's default.
    #[default]
    MinRtt,
    /// Subflows in turn (round robin).
    RoundRobin,
}

impl Config {
    /// Linux's configuration: every subflow is an uncoupled TCP, with 20 bytes of options for the
    /// data sequence.
    #[must_use]
    pub const fn linux() -> Self {
        let tcp = tcp::Config {
            segment: 1428,
            header: 72,
            ..tcp::Config::linux()
        };
        Self {
            tcp,
            coupling: Coupling::Uncoupled(tcp::Congestion::Cubic),
            scheduler: Scheduler::MinRtt,
            relief: Relief::ByTurns,
            grows_buffer: true,
        }
    }

    /// Returns the configuration of 2012 to 2014, outside mainline Linux, on hosts with Linux
    /// 3.5.
    ///
    /// Source: MPTCP v0.89. Deviates: the receiver's buffer is whole from the beginning.
    #[must_use]
    pub const fn v0_89(coupling: Coupling) -> Self {
        let config = Self::coupled(coupling);
        Self {
            tcp: tcp::Config {
                segment: config.tcp.segment,
                header: config.tcp.header,
                congestion: config.tcp.congestion,
                hystart: false,
                ..tcp::Config::linux_3_5()
            },
            relief: Relief::AtTimeout,
            grows_buffer: false,
            ..config
        }
    }

    /// Returns the configuration of htsim: subflows that share only the growth of their windows.
    ///
    /// Source: htsim `mtcp.cpp`.
    #[must_use]
    pub const fn htsim(coupling: Coupling) -> Self {
        let config = Self::coupled(coupling);
        Self {
            tcp: tcp::Config {
                congestion: config.tcp.congestion,
                least_window: 1.0,
                ..tcp::Config::htsim()
            },
            relief: Relief::None,
            grows_buffer: false,
            ..config
        }
    }

    /// Returns the configuration with coupled windows.
    #[must_use]
    pub const fn coupled(coupling: Coupling) -> Self {
        let config = Self::linux();
        let congestion = match coupling {
            Coupling::Uncoupled(congestion) => congestion,
            Coupling::Lia | Coupling::Olia | Coupling::Balia => tcp::Congestion::Coupled,
        };
        Self {
            tcp: tcp::Config {
                congestion,
                ..config.tcp
            },
            coupling,
            ..config
        }
    }
}

/// Maximum number of subflows: their state is copied to the stack. Source: our choice; scenarios
/// have fewer networks.
pub const MAX_SUBFLOWS: usize = 16;
