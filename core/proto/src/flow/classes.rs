//! The class of a flow by its first packet: code points, ports and signatures of protocols.

use std::ops::RangeInclusive;

use hawser_wire::data::Class;
use hawser_wire::frame::NOT_IP;
use hawser_wire::inner::{Signature, Summary, protocol};

/// Code points by which a packet states what its flow needs, with class and reason.
///
/// Source: RFC 4594, RFC 8622.
static MARKS: [(RangeInclusive<u8>, Class, &str); 8] = [
    (1..=1, Class::Bulk, LOW_PRIORITY),
    (8..=8, Class::Bulk, LOW_PRIORITY),
    (18..=18, Class::Interactive, LOW_LATENCY),
    (20..=20, Class::Interactive, LOW_LATENCY),
    (22..=22, Class::Interactive, LOW_LATENCY),
    (32..=38, Class::Realtime, CONFERENCING),
    (44..=44, Class::Realtime, TELEPHONY),
    (46..=46, Class::Realtime, TELEPHONY),
];

/// Reasons for the class of a flow by its DSCP. Source: RFC 4594, RFC 8622.
const LOW_PRIORITY: &str = "marked as low priority (DSCP)";

const LOW_LATENCY: &str = "marked as low-latency data (DSCP)";

pub(super) const CONFERENCING: &str = "marked as conferencing (DSCP)";

pub(super) const TELEPHONY: &str = "marked as telephony (DSCP)";

/// The reason for the class of a flow whose rate is not known yet.
pub(super) const BY_BEHAVIOUR: &str = "UDP";

/// Returns the code points by which a packet states what its flow needs.
pub fn code_points() -> impl Iterator<Item = u8> {
    MARKS.iter().flat_map(|(codes, ..)| codes.clone())
}

/// Returns a flow's class by its first packet; the flow's behaviour overrides it later.
pub(super) fn classify(summary: &Summary) -> (Class, &'static str) {
    let key = &summary.key;
    let port = |port: u16| key.source_port == port || key.destination_port == port;
    if let Some((_, class, why)) = MARKS.iter().find(|(codes, ..)| codes.contains(&summary.dscp)) {
        return (*class, why);
    }
    match key.protocol {
        protocol::TCP => (Class::Interactive, "TCP that has sent little so far"),
        protocol::UDP if summary.signature == Some(Signature::Quic) => {
            (Class::Bulk, "opens a QUIC connection")
        }
        protocol::UDP if summary.signature == Some(Signature::WireGuard) => (Class::Bulk, "WireGuard"),
        protocol::UDP if port(443) => (Class::Bulk, "UDP on port 443 (QUIC)"),
        protocol::UDP if port(53) => (Class::Interactive, "DNS"),
        protocol::UDP => (Class::Realtime, BY_BEHAVIOUR),
        _ => (Class::Interactive, "neither TCP nor UDP"),
    }
}

/// Returns whether the flow tolerates reordering: all protocols except TCP, QUIC and WireGuard.
pub(super) fn order_is_free(summary: &Summary) -> bool {
    let key = &summary.key;
    match key.protocol {
        protocol::TCP => false,
        protocol::UDP => summary.signature.is_none() && key.source_port != 443 && key.destination_port != 443,
        NOT_IP => false,
        _ => true,
    }
}
