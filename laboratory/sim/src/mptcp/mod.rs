//! Multipath TCP: one stream of data over several TCP subflows.
//!
//! Scope: coupled and uncoupled windows, backup subflows, subflows that join and leave, a
//! scheduler, data sequence numbers with reassembly and one receive window for the connection,
//! repetition by idle subflows and reinjection of what a silent one owes. Limitations: no handshake
//! of keys, no fallback; the receiver takes data out of the order of a subflow too, where Linux
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

/// What a multipath connection is like.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Config {
    /// Of every subflow; its receive window is the connection's.
    pub tcp: tcp::Config,
    /// How windows depend on each other.
    pub coupling: Coupling,
    /// Which subflow takes the next data.
    pub scheduler: Scheduler,
    /// What becomes of the data of a subflow in trouble.
    pub relief: Relief,
    /// Whether the receiver's buffer grows with what a round trip brings, instead of being the
    /// whole receive window from the beginning.
    pub grows_buffer: bool,
}

/// What becomes of the data that a subflow in trouble owes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Relief {
    /// Idle subflows repeat it, a fragment at a turn of the connection's timer; all of it when the
    /// subflow stays silent.
    ///
    /// Source: Linux 6, `__mptcp_retrans`, `mptcp_pm_subflow_chk_stale`.
    #[default]
    ByTurns,
    /// Each retransmission timeout hands all of it to the others, and the subflow gets nothing new
    /// until it has recovered. When the receive window is full, a faster subflow repeats what the
    /// receiver waits for.
    ///
    /// Source: MPTCP v0.8x outside of the kernel, `mptcp_reinject_data`, `mptcp_is_available`.
    AtTimeout,
    /// It stays with its subflow.
    None,
}

/// Which of the subflows that have room takes the next data.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Scheduler {
    /// The one with the shortest round trip. Source: Paasch et al. 2014; Linux's default.
    #[default]
    MinRtt,
    /// Each in turn.
    RoundRobin,
}

impl Config {
    /// Linux's: every subflow a TCP of its own, 20 bytes of options for the data sequence.
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

    /// That of 2012 to 2014, which was not yet part of Linux, on hosts with Linux 3.5.
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

    /// That of htsim: subflows that share nothing but their windows' growth.
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

    /// The same with coupled windows.
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

/// Subflows of one connection at most: their views lie on the stack.
pub const MOST_SUBFLOWS: usize = 16;
