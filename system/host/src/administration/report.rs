//! Support report: the information needed to diagnose a problem, as one text without secrets.

use std::path::Path;

use serde_json::Value;

use crate::control_socket;

/// Writes the report. Parts that are not available are listed with the reason.
pub(super) async fn write(socket: &Path, dir: &Path, events: &Value) -> String {
    let mut text = format!(
        "Hawser {}: support report\n\nIt contains names and addresses of networks and devices, but no passwords or keys.\n",
        env!("CARGO_PKG_VERSION")
    );
    let mut add = |title: &str, content: String| text += &format!("\n== {title}\n{}\n", content.trim_end());
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_else(|error| error.to_string());
    add("kernel", read("/proc/version"));
    add("system", read("/etc/os-release"));
    let status = control_socket::status(socket).await;
    add("status", pretty(status.map_err(|error| format!("{error:#}"))));
    let config = hawser_config::load_or_default::<Value>(&dir.join("client.toml"));
    add(
        "client.toml",
        pretty(config.map(redacted).map_err(|error| error.to_string())),
    );
    let events = events.as_array().into_iter().flatten();
    let events: Vec<_> = events
        .map(|event| format!("{} {}", event["at"], event["text"]))
        .collect();
    add("events (seconds since 1970)", events.join("\n"));
    text
}

fn pretty(value: Result<Value, String>) -> String {
    match value {
        Ok(value) => format!("{value:#}"),
        Err(error) => error,
    }
}

/// Redacts values that may be secret: a value is kept only under a key that is known to contain no
/// secret.
fn redacted(value: Value) -> Value {
    match value {
        Value::Object(fields) => {
            let fields = fields.into_iter().map(|(key, value)| {
                let is_secret = SECRET.iter().any(|word| key.contains(word));
                let value = if is_secret { "***".into() } else { redacted(value) };
                (key, value)
            });
            fields.collect()
        }
        Value::Array(list) => list.into_iter().map(redacted).collect(),
        // A URL with user and password.
        Value::String(text) if text.contains('@') && text.contains("://") => "***".into(),
        other @ (Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_)) => other,
    }
}

/// Parts of keys whose values are secrets.
const SECRET: [&str; 7] = ["password", "secret", "proxy", "key", "login", "token", "imei"];

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[tokio::test]
    async fn it_has_no_secrets() {
        let dir = tempfile::tempdir().unwrap();
        let file = "forward = true\n[[radio.network]]\nssid = \"Sol\"\npassword = \"hidden-one\"\n\
                    [networks.eth0]\nproxy = \"socks5://u:hidden-two@proxy:1080\"\ndevice = { imei = \"hidden-four\" }\ncap_up = \"5mbit\"\n\
                    [otlp]\nto = \"https://u:hidden-three@collector:4318\"\n";
        std::fs::write(dir.path().join("client.toml"), file).unwrap();
        let events = json!([{ "at": 7, "text": "eth0 works" }]);
        let text = write(&dir.path().join("none"), dir.path(), &events).await;
        assert!(!text.contains("hidden"), "{text}");
        for wanted in ["Sol", "5mbit", "eth0 works", "is not running"] {
            assert!(text.contains(wanted), "{wanted}: {text}");
        }
    }
}
