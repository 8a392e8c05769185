//! Rates, amounts and limits, as tables show them.

use hawser_config::Speed;
use hawser_wire::control::KeyExpiry;
use serde_json::Value;

/// Formats a rate, such as `20.0 Mbit/s`.
pub(crate) fn rate(bps: u64) -> String {
    let value = bps as f64;
    match bps {
        0..1_000 => format!("{bps} bit/s"),
        1_000..1_000_000 => format!("{:.0} kbit/s", value / 1e3),
        1_000_000..1_000_000_000 => format!("{:.1} Mbit/s", value / 1e6),
        _ => format!("{:.2} Gbit/s", value / 1e9),
    }
}

/// Parses a rate from the command line.
pub(crate) fn speed(text: &str) -> Result<Speed, String> {
    text.parse()
        .map_err(|()| "a rate with its unit (bit, kbit, mbit, gbit), such as 5mbit".to_owned())
}

/// Formats an amount, such as `1.5 MB`.
pub(crate) fn bytes(count: u64) -> String {
    let value = count as f64;
    match count {
        0..1_000 => format!("{count} B"),
        1_000..1_000_000 => format!("{:.1} kB", value / 1e3),
        1_000_000..1_000_000_000 => format!("{:.1} MB", value / 1e6),
        _ => format!("{:.2} GB", value / 1e9),
    }
}

/// Describes a client that uses WireGuard: the age of its last handshake, which every client
/// repeats after two minutes while it sends, and its traffic since the hub's start.
pub(crate) fn wireguard_of(client: &Value) -> String {
    let peer = &client["wireguard"];
    let Some(age) = peer["last_handshake_s"].as_u64() else {
        return "WireGuard, not seen".to_owned();
    };
    let [received, sent] = ["received_bytes", "sent_bytes"].map(|key| bytes(peer[key].as_u64().unwrap_or(0)));
    let state = if client["connected"] == true {
        "connected"
    } else {
        "away"
    };
    format!("WireGuard, {state}, handshake {age} s ago, {received} up, {sent} down")
}

/// Returns the cap of a client's limits in a status, such as `20.0 Mbit/s`, or `-`.
pub(crate) fn cap_of(limits: &Value) -> String {
    limits["cap_bps"].as_u64().map_or("-".to_owned(), rate)
}

/// Returns the remainder of a client's quota, such as `12.3 GB of 100.00 GB left`, or `-`.
pub(crate) fn quota_of(limits: &Value) -> String {
    let Some(quota) = limits["quota_bytes"].as_u64() else {
        return "-".to_owned();
    };
    match limits["state"].as_str() {
        Some("stopped") => format!("{} used up: stopped", bytes(quota)),
        Some("slowed") => {
            let to = limits["rate_bps"].as_u64().unwrap_or_default();
            format!("{} used up: {}", bytes(quota), rate(to))
        }
        _ => {
            let left = limits["left_bytes"].as_u64().unwrap_or_default();
            format!("{} of {} left", bytes(left), bytes(quota))
        }
    }
}

/// Returns the expiry of a client's key in a status, such as `2027-03-01 00:00 UTC`; `None` if the
/// key does not expire.
pub(crate) fn expiry_text(client: &Value) -> Option<String> {
    let unix_s = client["key_expires_unix_s"].as_u64()?;
    Some(KeyExpiry(unix_s).to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn limits_read_as_two_columns() {
        let shown = |limits: Value| (cap_of(&limits), quota_of(&limits));
        assert_eq!(shown(Value::Null), ("-".to_owned(), "-".to_owned()));
        let limits =
            json!({ "state": "capped", "cap_bps": 20_000_000, "quota_bytes": 1_000_000, "left_bytes": 5 });
        assert_eq!(
            shown(limits),
            ("20.0 Mbit/s".to_owned(), "5 B of 1.0 MB left".to_owned())
        );
        let limits =
            json!({ "state": "slowed", "rate_bps": 256_000, "quota_bytes": 1_000_000, "left_bytes": 0 });
        assert_eq!(shown(limits).1, "1.0 MB used up: 256 kbit/s");
        let limits = json!({ "state": "stopped", "rate_bps": 0, "quota_bytes": 1_000_000, "left_bytes": 0 });
        assert_eq!(shown(limits).1, "1.0 MB used up: stopped");
    }
}
