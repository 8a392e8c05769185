//! Configuration of clients that use WireGuard's own apps, and their public keys.

use std::fmt;
use std::net::{Ipv6Addr, SocketAddr};
use std::str::FromStr;

use data_encoding::BASE64;
use serde::Deserialize;

use super::{Endpoint, ports};

/// `[wireguard]` of `hub.toml`: access for phones and other devices without Hawser.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HubWireGuardConfig {
    /// UDP address to listen on for WireGuard.
    #[serde(default = "listen")]
    pub listen: SocketAddr,
    /// Endpoint of the hub in the configurations of clients; by default the host of the first of
    /// `endpoints` at the port of `listen`.
    #[serde(default)]
    pub endpoint: Option<Endpoint>,
}

fn listen() -> SocketAddr {
    (Ipv6Addr::UNSPECIFIED, ports::WIREGUARD).into()
}

/// A public key of WireGuard: an X25519 key, written in base64.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WireGuardKey(pub [u8; 32]);

impl fmt::Display for WireGuardKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&BASE64.encode(&self.0))
    }
}

impl fmt::Debug for WireGuardKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for WireGuardKey {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> anyhow::Result<Self> {
        let bytes = BASE64.decode(text.as_bytes()).ok();
        let bytes = bytes.and_then(|bytes| bytes.try_into().ok());
        bytes
            .map(Self)
            .ok_or_else(|| anyhow::anyhow!("a key of WireGuard has 44 characters of base64"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_survives_its_text() {
        let key = WireGuardKey([7; 32]);
        assert_eq!(key.to_string().parse::<WireGuardKey>().unwrap(), key);
        for text in ["", "BwcH", "not base64"] {
            assert!(text.parse::<WireGuardKey>().is_err(), "{text}");
        }
    }

    #[test]
    fn an_empty_table_listens_at_the_usual_port() {
        let config: HubWireGuardConfig = toml::from_str("").unwrap();
        assert_eq!(config.listen.port(), 51_820);
        assert!(toml::from_str::<HubWireGuardConfig>("port = 1").is_err());
    }

    #[test]
    fn clients_are_given_the_hubs_own_host_unless_another_is_named() {
        let hub = |text: &str| {
            let text = format!("endpoints = [\"hub.example.org:443\"]\npool = \"100.96.0.0/16\"\n{text}");
            toml::from_str::<crate::HubConfig>(&text).unwrap()
        };
        let address = |text: &str| hub(text).wireguard_address().map(|address| address.to_string());
        assert_eq!(address(""), None);
        assert_eq!(address("[wireguard]\n").as_deref(), Some("hub.example.org:51820"));
        assert_eq!(
            address("[wireguard]\nendpoint = \"192.0.2.1:7\"\n").as_deref(),
            Some("192.0.2.1:7")
        );
        let store = "[store]\nurl = \"postgresql://hawser:secret@localhost/hawser\"\n";
        assert_eq!((hub("[wireguard]\n").unfit(), hub(store).unfit()), (None, None));
        assert!(hub(&format!("{store}[wireguard]\n")).unfit().is_some());
    }
}
