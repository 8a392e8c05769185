//! Properties of all worlds in one table: reason, tolerance and coverage.

use serde::{Deserialize, Serialize};

/// A property of a world.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Property {
    /// The run ends without a panic.
    Runs,
    /// Transfers are as fast as over the best network alone.
    GoodputAlone,
    /// Transfers are as fast as with round robin over all networks.
    GoodputRoundRobin,
    /// TCP is as fast as the kernel's MPTCP.
    GoodputMptcp,
    /// Downloads of a fixed size finish as early as over the best network alone.
    Pages,
    /// Datagrams of calls, games and video arrive in time as often as over the best network alone.
    Timely,
    /// Datagrams of a fast flow arrive as often as over the best network alone.
    BulkDatagrams,
    /// Requests are answered as often as over the best network alone.
    Answers,
    /// No connection stops permanently while a network works.
    Alive,
    /// No transfer pauses for longer than detection plus one second while a network works.
    Pauses,
    /// Datagrams of all sizes pass while a network works.
    Sizes,
    /// No network transfers more than its cap, and a backup nothing while another network works.
    Settings,
    /// The reorder buffer stays within its bound.
    ReorderMemory,
    /// The queue at the tunnel's entrance stays within its bound.
    EntranceQueue,
}

/// Description of a property, for a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Description {
    /// Reason why a user wants it.
    pub reason: &'static str,
    /// Tolerance, and its source.
    pub tolerance: &'static str,
    /// Covered modes and workloads.
    pub covers: &'static str,
}

impl Property {
    /// Properties in the order of reports.
    pub const ALL: [Self; 14] = [
        Self::Runs,
        Self::Alive,
        Self::Pauses,
        Self::Sizes,
        Self::Answers,
        Self::Settings,
        Self::ReorderMemory,
        Self::EntranceQueue,
        Self::GoodputAlone,
        Self::GoodputRoundRobin,
        Self::GoodputMptcp,
        Self::Pages,
        Self::BulkDatagrams,
        Self::Timely,
    ];

    /// Returns the name in files and reports.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Runs => "runs",
            Self::GoodputAlone => "goodput-alone",
            Self::GoodputRoundRobin => "goodput-round-robin",
            Self::GoodputMptcp => "goodput-mptcp",
            Self::Pages => "pages",
            Self::Timely => "timely",
            Self::BulkDatagrams => "bulk-datagrams",
            Self::Answers => "answers",
            Self::Alive => "alive",
            Self::Pauses => "pauses",
            Self::Sizes => "sizes",
            Self::Settings => "settings",
            Self::ReorderMemory => "reorder-memory",
            Self::EntranceQueue => "entrance-queue",
        }
    }

    /// Returns the property with this name.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|property| property.name() == name)
    }

    /// Returns true for properties whose violation is a functional defect, and false for those
    /// whose distribution measures quality.
    #[must_use]
    pub const fn is_functional(self) -> bool {
        match self {
            Self::Runs
            | Self::Alive
            | Self::Pauses
            | Self::Sizes
            | Self::Answers
            | Self::Settings
            | Self::ReorderMemory
            | Self::EntranceQueue => true,
            Self::GoodputAlone
            | Self::GoodputRoundRobin
            | Self::GoodputMptcp
            | Self::Pages
            | Self::Timely
            | Self::BulkDatagrams => false,
        }
    }

    /// Returns reason, tolerance and coverage.
    #[must_use]
    pub const fn description(self) -> Description {
        match self {
            Self::Runs => Description {
                reason: "a panic ends all connections",
                tolerance: "none",
                covers: "all worlds",
            },
            Self::GoodputAlone => Description {
                reason: "a network more must never make a transfer slower",
                tolerance: "0.98 of the best network alone, after headers: 1380 bytes of payload in a \
                            packet that carries 1448 without a tunnel, 1430 as a stream",
                covers: "tcp workloads in both forms; tcp, all directions together",
            },
            Self::GoodputRoundRobin => Description {
                reason: "the simplest bonding must not be better",
                tolerance: "0.98 of the same tunnel with packets in turn",
                covers: "tcp workloads in both forms, two networks and more",
            },
            Self::GoodputMptcp => Description {
                reason: "the kernel has MPTCP without any program",
                tolerance: "0.98 of MPTCP, after headers as above",
                covers: "tcp workloads in both forms, two networks and more",
            },
            Self::Pages => Description {
                reason: "most that people load is small and ends in slow start",
                tolerance: "1.1 times the best network alone and two of its round trips, at most 100 ms",
                covers: "http workloads: time to the end of the last",
            },
            Self::Timely => Description {
                reason: "a call that gets worse with a second network is worse than none",
                tolerance: "within 150 ms (up to 500 kbit/s) or 400 ms (up to 5 Mbit/s) of the earliest \
                            possible arrival, at least as often as over the best network alone less 0.5 % and 400 ms \
                            (SUSPECT_FOR) for each end and begin of a failure",
                covers: "udp workloads up to 5 Mbit/s",
            },
            Self::BulkDatagrams => Description {
                reason: "QUIC, VPNs and games' downloads are datagrams",
                tolerance: "0.98 of the datagrams that arrive over the best network alone",
                covers: "udp workloads above 5 Mbit/s",
            },
            Self::Answers => Description {
                reason: "DNS and idle connections send one packet and wait",
                tolerance: "as many as over the best network alone, less 2 %, one request, and one second \
                            of requests for each failure",
                covers: "ping workloads",
            },
            Self::Alive => Description {
                reason: "no connection may fail while any network works",
                tolerance: "a byte in the last third of the world",
                covers: "tcp and http workloads, while one network works throughout that third",
            },
            Self::Pauses => Description {
                reason: "people notice a second without data",
                tolerance: "400 ms of suspicion (SUSPECT_FOR of hawser-proto), three of the slowest round \
                            trips and one second; or the longest pause over the network that pauses least",
                covers: "tcp workloads, pauses throughout which one network works",
            },
            Self::Sizes => Description {
                reason: "a size that never passes breaks VPNs and DNS over UDP",
                tolerance: "half of the datagrams of the second half, or of those over the best network alone",
                covers: "udp workloads from 1,252 bytes up to 500 kbit/s, while one network works",
            },
            Self::Settings => Description {
                reason: "traffic over a network that costs money is a bill",
                tolerance: "1.05 of a cap and 64 KiB over the whole world; 2 % of what the others carry and \
                            64 KiB over a backup while another network works throughout",
                covers: "networks with `cap_up`, `cap_down` or `use = \"backup\"`, without rivals",
            },
            Self::ReorderMemory => Description {
                reason: "memory that a peer can cause is bounded",
                tolerance: "16,384 packets (`capacity` of the resequencer)",
                covers: "all worlds",
            },
            Self::EntranceQueue => Description {
                reason: "memory that a program can cause is bounded",
                tolerance: "16,384 packets of 1,500 bytes, as many as a session has buffers",
                covers: "all worlds",
            },
        }
    }
}

/// Violation of a property by a world.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Violation {
    /// Violated property.
    pub property: Property,
    /// Measured value.
    pub value: f64,
    /// Limit of the value, a minimum or a maximum.
    pub limit: f64,
    /// Unit and workload, in words.
    pub detail: String,
}

impl Violation {
    /// Returns the distance of the value from its limit, as a share of the limit.
    #[must_use]
    pub fn severity(&self) -> f64 {
        (self.value - self.limit).abs() / self.limit.abs().max(f64::MIN_POSITIVE)
    }
}

/// Payload shares and limits of the properties.
pub(super) mod tolerance {
    use hawser_units::Duration;

    /// Source: the tolerance that `docs/notebook/traces.md` asks for.
    pub(in super::super) const GOODPUT: f64 = 0.98;
    /// Source: 1500 bytes less 68 of tunnel and 52 of TCP and IP, over 1448 of plain TCP with time
    /// stamps.
    pub(in super::super) const PACKET_SHARE: f64 = 1380.0 / 1448.0;
    /// Source: 1500 bytes less 28 of UDP and IP and 42 of framing, over 1448.
    pub(in super::super) const STREAM_SHARE: f64 = 1430.0 / 1448.0;
    /// Source: a tenth is what conformance allows between the simulator and real packets.
    pub(in super::super) const PAGE_FACTOR: f64 = 1.1;
    /// Source: Nielsen, 1993: below 100 ms an answer seems immediate.
    pub(in super::super) const PAGE_EXTRA_S: f64 = 0.1;
    /// Source: ITU-T G.114, the delay that most conversations do not notice. Units: nanoseconds.
    pub(in super::super) const CALL_NS: u64 = 150_000_000;
    /// Source: ITU-T G.114, the longest delay that any conversation permits. Units: nanoseconds.
    pub(in super::super) const VIDEO_NS: u64 = 400_000_000;
    /// Source: half of the 1 % of loss that a call conceals (ITU-T G.113 appendix I).
    pub(in super::super) const TIMELY: f64 = 0.005;
    /// Source: a call and its headers; video calls begin at 600 kbit/s. Units: bit/s.
    pub(in super::super) const CALL_BPS: u64 = 500_000;
    /// Source: a video of 4 Mbit/s and a quarter. Units: bit/s.
    pub(in super::super) const VIDEO_BPS: u64 = 5_000_000;
    /// Source: share of queries that resolvers repeat without a noticeable effect.
    pub(in super::super) const ANSWERS: f64 = 0.02;
    /// Source: `SUSPECT_FOR` of `hawser-proto`.
    pub(in super::super) const SUSPICION: Duration = Duration::from_millis(400);
    /// Source: the second that the property grants.
    pub(in super::super) const GRACE: Duration = Duration::from_secs(1);
    /// Source: the accuracy of an operator's meter, plus the probes.
    pub(in super::super) const CAP: f64 = 1.05;
    /// Source: a probe of 100 bytes every 100 ms is 8 kbit/s, 1 % of a slow network; twice that.
    pub(in super::super) const BACKUP: f64 = 0.02;
    /// Source: probes of the path MTU and ECN at the beginning, some 40 packets. Units: bytes.
    pub(in super::super) const CONTROL: f64 = 65_536.0;
    /// Source: a datagram that a QUIC handshake pads is 1,200 bytes; above it sizes depend on the
    /// path MTU. Units: bytes of UDP payload.
    pub(in super::super) const LARGE: u64 = 1252;
    /// Source: `capacity` of the resequencer's default configuration. Units: packets.
    pub(in super::super) const REORDER: f64 = 16_384.0;
    /// Source: `RETRANSMISSION_BUFFERS` of a session. Units: bytes.
    pub(in super::super) const ENTRANCE: f64 = 16_384.0 * 1500.0;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique_and_lead_back() {
        for property in Property::ALL {
            assert_eq!(Property::from_name(property.name()), Some(property));
            let name = serde_json::to_string(&property).expect("a unit variant");
            assert_eq!(name, format!("{:?}", property.name()));
        }
    }
}
