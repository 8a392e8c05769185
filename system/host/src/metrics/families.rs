//! Values of `status` that are exported as metrics.

/// Type of a metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// Gauge, which can increase and decrease.
    Gauge,
    /// Counter since the start of its object.
    Counter,
}

/// Name, type, field in `status`, factor to Prometheus' base units, help.
pub(super) type Figure = (&'static str, Kind, &'static str, f64, &'static str);

/// Metrics of a network, as direct mode and sensors see it.
pub(super) const NETWORK_FIGURES: [Figure; 5] = [
    (
        "hawser_network_rtt_seconds",
        Kind::Gauge,
        "rtt_ms",
        1e-3,
        "Round trip to the gateway or probe of the network.",
    ),
    (
        "hawser_network_receive_bits_per_second",
        Kind::Gauge,
        "receive_bps",
        1.0,
        "Present receive rate of the network.",
    ),
    (
        "hawser_network_send_bits_per_second",
        Kind::Gauge,
        "send_bps",
        1.0,
        "Present send rate of the network.",
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

/// Metrics of a fleet's database.
pub(super) const STORE_FIGURES: [Figure; 1] = [(
    "hawser_store_age_seconds",
    Kind::Gauge,
    "age_s",
    1.0,
    "Time since the store of clients was read.",
)];

/// Metrics of each hub of a fleet.
pub(super) const HUB_FIGURES: [Figure; 1] = [(
    "hawser_hub_silent_seconds",
    Kind::Gauge,
    "seen_s",
    1.0,
    "Time since the last announcement of the hub.",
)];

/// Metrics of a hub's client with a limit.
pub(super) const CLIENT_FIGURES: [Figure; 3] = [
    (
        "hawser_client_limit_bits_per_second",
        Kind::Gauge,
        "rate_bps",
        1.0,
        "Rate limit of the client in each direction.",
    ),
    (
        "hawser_client_quota_bytes",
        Kind::Gauge,
        "quota_bytes",
        1.0,
        "Monthly quota of the client.",
    ),
    (
        "hawser_client_quota_used_bytes",
        Kind::Gauge,
        "used_bytes",
        1.0,
        "Bytes transferred this month, over all hubs.",
    ),
];

/// Metrics of a path.
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

/// Metrics of a hub's pair of threads.
pub(super) const PAIR_FIGURES: [Figure; 3] = [
    (
        "hawser_pair_sessions",
        Kind::Gauge,
        "sessions",
        1.0,
        "Sessions of the pair of threads.",
    ),
    (
        "hawser_pair_sent_datagrams_total",
        Kind::Counter,
        "sent",
        1.0,
        "Datagrams sent by the pair of threads.",
    ),
    (
        "hawser_pair_received_datagrams_total",
        Kind::Counter,
        "received",
        1.0,
        "Datagrams received by the pair of threads.",
    ),
];
