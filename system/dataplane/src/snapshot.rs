//! Snapshot of the data plane, for status and metrics.

use std::net::SocketAddr;

/// State of a path. See `hawser_proto::path`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum PathState {
    /// The address is not yet validated.
    Validating,
    /// The path transfers packets.
    Active,
    /// A report is overdue: the path transfers no new data until it answers.
    Suspect,
    /// The path does not answer and is only probed.
    Dead,
}

impl From<hawser_proto::path::State> for PathState {
    fn from(state: hawser_proto::path::State) -> Self {
        use hawser_proto::path::State;
        match state {
            State::Validating => Self::Validating,
            State::Active => Self::Active,
            State::Suspect => Self::Suspect,
            State::Dead => Self::Dead,
        }
    }
}

/// Snapshot of the data plane.
#[derive(Clone, Debug, Default, serde::Serialize)]
pub struct Snapshot {
    /// Sessions.
    pub sessions: Vec<SessionSnapshot>,
    /// Reasons for which packets were rejected or dropped, with their counts over all pairs.
    pub counters: Vec<(&'static str, u64)>,
    /// Counters of each pair of threads.
    pub pairs: Vec<PairSnapshot>,
}

/// Counters of one pair of threads.
#[derive(Clone, Debug, serde::Serialize)]
pub struct PairSnapshot {
    /// Number of its sessions.
    pub sessions: usize,
    /// Datagrams that it has sent.
    pub sent: u64,
    /// Datagrams that it has received.
    pub received: u64,
}

impl Snapshot {
    /// Yields the paths of all sessions, with their session.
    pub fn paths(&self) -> impl Iterator<Item = (u64, &PathSnapshot)> {
        let sessions = self.sessions.iter();
        sessions.flat_map(|session| session.paths.iter().map(|path| (session.session, path)))
    }
}

/// State of a session.
#[derive(Clone, Debug, serde::Serialize)]
pub struct SessionSnapshot {
    /// Id of the session.
    pub session: u64,
    /// Scheduler by class name.
    pub schedulers: Vec<(&'static str, &'static str)>,
    /// Name of the congestion controller of the session's paths.
    pub controller: &'static str,
    /// Paths of the session.
    pub paths: Vec<PathSnapshot>,
    /// Number of open connections: TCP connections that this side has not ended, and UDP flows that
    /// have sent something in the last 30 s.
    pub open_flows: usize,
    /// Flows that programs have declared, with the decision about each.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub declared: Vec<DeclaredSnapshot>,
    /// Busiest flows.
    pub flows: Vec<FlowSnapshot>,
}

/// State of a path, in the sending direction unless stated otherwise.
#[derive(Clone, Debug, serde::Serialize)]
pub struct PathSnapshot {
    /// Id of the path.
    pub path: u16,
    /// Name of the network.
    pub name: String,
    /// Far address.
    pub remote: Option<SocketAddr>,
    /// State of the path.
    pub state: PathState,
    /// Smoothed round trip, ms.
    pub rtt_ms: f64,
    /// Smallest round trip, ms.
    pub min_rtt_ms: f64,
    /// Trend of the one-way delay, ms per second; positive while a queue grows.
    pub delay_trend_ms_s: f64,
    /// Share of packets lost, smoothed, 0 to 1.
    pub loss: f64,
    /// Estimated delivery rate, bit/s.
    pub rate_bps: u64,
    /// Rate at which the network polices what this side sends, bit/s.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub policed_bps: Option<u64>,
    /// Set if the network polices the other side's packets.
    pub peer_is_policed: bool,
    /// State of the validation of ECN: `testing`, `unknown`, `capable` or `failed`.
    pub ecn: &'static str,
    /// Set while the rate is unknown and increasing.
    pub starting: bool,
    /// Congestion window, bytes.
    pub window_bytes: u64,
    /// Sent but unacknowledged, bytes.
    pub in_flight_bytes: u64,
    /// Maximum rate of this side, bit/s, if a limit is set.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cap_bps: Option<u64>,
    /// Condition of this side's use: `always`, `overflow` or `backup`.
    pub priority: &'static str,
    /// Set if this side's bulk transfers may use it while others work.
    pub takes_bulk: bool,
    /// Airtime of its packets, if the client has reported it recently.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub air: Option<AirSnapshot>,
    /// Sent in the last second, bit/s.
    pub send_bps: u64,
    /// Received in the last second, bit/s.
    pub receive_bps: u64,
    /// Sent in all, UDP payload bytes.
    pub sent_bytes: u64,
    /// Received in all, UDP payload bytes.
    pub received_bytes: u64,
    /// Largest outer IP packet known to pass, bytes.
    pub pmtu: u16,
}

/// State of a flow whose program has declared its rate.
#[derive(Clone, Debug, serde::Serialize)]
pub struct DeclaredSnapshot {
    /// Five-tuple as text.
    pub flow: String,
    /// Declared rate. Units: bit/s of payload.
    pub declared_bps: u64,
    /// Decision: `admitted`, `rejected` or `undecided`.
    pub admission: &'static str,
    /// Reason for the decision.
    pub admission_why: &'static str,
}

/// Airtime of a path on a radio channel.
#[derive(Clone, Debug, serde::Serialize)]
pub struct AirSnapshot {
    /// Frequency of the channel, which paths on it share, MHz.
    pub frequency_mhz: u16,
    /// Airtime of a packet of 1500 bytes, ms.
    pub packet_ms: f64,
    /// Share of the channel that other traffic uses, 0 to 1.
    pub others: f64,
}

/// State of a flow.
#[derive(Clone, Debug, serde::Serialize)]
pub struct FlowSnapshot {
    /// Five-tuple as text: `tcp 100.96.0.2:40000 -> 203.0.113.2:80`.
    pub flow: String,
    /// Class of the flow.
    pub class: &'static str,
    /// Reason for its class.
    pub why: &'static str,
    /// Scheduler of the flow.
    pub scheduler: &'static str,
    /// `stream`, or the reason why a connection is transferred as packets while others are streams.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tcp: Option<&'static str>,
    /// Reason why a connection of a client is a stream.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tcp_why: Option<&'static str>,
    /// Declared rate, if any. Units: bit/s of payload.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub declared_bps: Option<u64>,
    /// Deadline of packets that a program or a rule has set, ms.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub deadline_ms: Option<u128>,
    /// Rate that will arrive in time during the next second with probability 0.9, bit/s of inner
    /// packets; `None` for a flow without a deadline.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub in_time_bps: Option<u64>,
    /// Share of its packets that were dropped because they would have been late, 0 to 1; `None` for
    /// a flow without a deadline.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub late: Option<f64>,
    /// Sent in all, inner bytes.
    pub sent_bytes: u64,
    /// Bytes by path id, of open paths.
    pub by_path: Vec<(u16, u64)>,
}
