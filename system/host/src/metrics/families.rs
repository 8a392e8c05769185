//! Which figures of `status` are figures for others.

/// What a figure is over time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// It goes up and down.
    Gauge,
    /// It counts from the start of what it counts.
    Counter,
}

/// Name, type, field in `status`, factor to Prometheus' base units, help.
pub(super) type Figure = (&'static str, Kind, &'static str, f64, &'static str);

/// Of a network, as direct mode and sensors see it.
pub(super) const NETWORK_FIGURES: [Figure; 5] = [
    (
        "hawser_network_rtt_seconds",
        Kind::Gauge,
        "rtt_ms",
        1e-3,
        "Round trip to what answers on the network.",
    ),
    (
        "hawser_network_receive_bits_per_second",
        Kind::Gauge,
        "receive_bps",
        1.0,
        "What the network receives now.",
    ),
    (
        "hawser_network_send_bits_per_second",
        Kind::Gauge,
        "send_bps",
        1.0,
        "What the network sends now.",
    ),
    (
        "hawser_network_flows",
        Kind::Gauge,
        "flows",
        1.0,
        "Connections on the network.",
    ),
    (
        "hawser_network_share_ratio",
        Kind::Gauge,
        "share_v4",
        1.0,
        "Share of new IPv4 connections.",
    ),
];

/// Of the database of a fleet.
pub(super) const STORE_FIGURES: [Figure; 1] = [(
    "hawser_store_age_seconds",
    Kind::Gauge,
    "age_s",
    1.0,
    "Since the store of clients was read last.",
)];

/// Of each hub of a fleet.
pub(super) const HUB_FIGURES: [Figure; 1] = [(
    "hawser_hub_silent_seconds",
    Kind::Gauge,
    "seen_s",
    1.0,
    "Since the hub said that it is there.",
)];

/// Of a client of a hub that is held to something.
pub(super) const CLIENT_FIGURES: [Figure; 3] = [
    (
        "hawser_client_limit_bits_per_second",
        Kind::Gauge,
        "rate_bps",
        1.0,
        "What the client is held to in each direction.",
    ),
    (
        "hawser_client_quota_bytes",
        Kind::Gauge,
        "quota_bytes",
        1.0,
        "What the client may carry in a month.",
    ),
    (
        "hawser_client_quota_used_bytes",
        Kind::Gauge,
        "used_bytes",
        1.0,
        "What it has carried this month, by all hubs.",
    ),
];

/// Of a path.
pub(super) const PATH_FIGURES: [Figure; 6] = [
    (
        "hawser_path_sent_bytes_total",
        Kind::Counter,
        "sent_bytes",
        1.0,
        "UDP payload sent.",
    ),
    (
        "hawser_path_received_bytes_total",
        Kind::Counter,
        "received_bytes",
        1.0,
        "UDP payload received.",
    ),
    (
        "hawser_path_rtt_seconds",
        Kind::Gauge,
        "rtt_ms",
        1e-3,
        "Smoothed round trip.",
    ),
    (
        "hawser_path_loss_ratio",
        Kind::Gauge,
        "loss",
        1.0,
        "Share of packets lost.",
    ),
    (
        "hawser_path_rate_bits_per_second",
        Kind::Gauge,
        "rate_bps",
        1.0,
        "Estimated delivery rate.",
    ),
    (
        "hawser_path_pmtu_bytes",
        Kind::Gauge,
        "pmtu",
        1.0,
        "Largest outer packet known to pass.",
    ),
];

/// Of a pair of threads of a hub.
pub(super) const PAIR_FIGURES: [Figure; 3] = [
    (
        "hawser_pair_sessions",
        Kind::Gauge,
        "sessions",
        1.0,
        "Sessions that the pair of threads carries.",
    ),
    (
        "hawser_pair_sent_datagrams_total",
        Kind::Counter,
        "sent",
        1.0,
        "Datagrams that the pair of threads has sent.",
    ),
    (
        "hawser_pair_received_datagrams_total",
        Kind::Counter,
        "received",
        1.0,
        "Datagrams that have come to the pair of threads.",
    ),
];
