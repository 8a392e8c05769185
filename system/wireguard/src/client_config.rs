//! Configuration of a client, in the format that all WireGuard apps import.

use std::fmt::Write;
use std::net::IpAddr;

use hawser_config::WireGuardKey;
use hawser_config::invitation::HubAddress;
use zeroize::Zeroizing;

use crate::keys::PrivateKey;

/// Contents of a configuration.
#[derive(Debug)]
pub struct ClientConfig {
    /// Private key of the client, which is stored only until it is printed.
    pub key: PrivateKey,
    /// Inner addresses of the client.
    pub inner: Vec<IpAddr>,
    /// Resolvers that the client reaches through the hub.
    pub dns: Vec<IpAddr>,
    /// Key of the hub.
    pub hub: WireGuardKey,
    /// Address of the hub.
    pub endpoint: HubAddress,
}

impl ClientConfig {
    /// Returns the text of the configuration. It sends all traffic through the hub; without IPv6 at
    /// the hub, IPv6 is blocked, so that no traffic passes outside the tunnel.
    ///
    /// Source: wg(8) and wg-quick(8), "configuration file format".
    #[must_use]
    pub fn text(&self) -> Zeroizing<String> {
        let list = |addresses: &[IpAddr], suffix: fn(&IpAddr) -> &'static str| {
            let each = addresses
                .iter()
                .map(|address| format!("{address}{}", suffix(address)));
            each.collect::<Vec<_>>().join(", ")
        };
        let host = |address: &IpAddr| if address.is_ipv4() { "/32" } else { "/128" };
        let mut text = Zeroizing::new(String::with_capacity(512));
        let _ = writeln!(text, "[Interface]\nPrivateKey = {}", *self.key.text());
        let _ = writeln!(text, "Address = {}", list(&self.inner, host));
        if !self.dns.is_empty() {
            let _ = writeln!(text, "DNS = {}", list(&self.dns, |_| ""));
        }
        let _ = write!(
            text,
            "\n[Peer]\nPublicKey = {}\nEndpoint = {}\nAllowedIPs = 0.0.0.0/0, ::/0\nPersistentKeepalive = {KEEPALIVE_S}\n",
            self.hub, self.endpoint
        );
        text
    }
}

/// Interval of the packets that keep a client reachable behind NAT, seconds.
///
/// Source: wg(8), `PersistentKeepalive`: "a sensible interval that works with a wide variety of
/// firewalls".
const KEEPALIVE_S: u16 = 25;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_text_has_every_line_that_apps_need() {
        let key = PrivateKey::generate();
        let mut config = ClientConfig {
            key: key.clone(),
            inner: vec!["100.96.0.7".parse().unwrap(), "fd00:1::7".parse().unwrap()],
            dns: vec!["100.96.0.1".parse().unwrap()],
            hub: WireGuardKey([7; 32]),
            endpoint: "[2001:db8::1]:51820".parse().unwrap(),
        };
        let text = config.text();
        for line in [
            &format!("PrivateKey = {}", *key.text()),
            "Address = 100.96.0.7/32, fd00:1::7/128",
            "DNS = 100.96.0.1",
            &format!("PublicKey = {}", WireGuardKey([7; 32])),
            "Endpoint = [2001:db8::1]:51820",
            "AllowedIPs = 0.0.0.0/0, ::/0",
        ] {
            assert!(text.lines().any(|found| found == line), "{line}: {}", *text);
        }
        config.dns.clear();
        assert!(!config.text().contains("DNS"));
    }
}
