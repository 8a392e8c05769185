//! Invitations for WireGuard's own apps.

use std::path::Path;

use anyhow::bail;
use hawser_config::HubConfig;
use hawser_host::control_socket::{Request, ask};
use hawser_host::run_dir;
use hawser_wire::control::KeyExpiry;
use hawser_wireguard::{ClientConfig, PrivateKey};
use zeroize::Zeroizing;

use super::names::Terms;
use super::stores::{CONFIG, load, open_store};
use super::wireguard::KEY;
use super::{own_addresses, resolvers};

/// Invitation for a WireGuard app.
#[derive(Debug)]
pub struct WireGuardInvitation {
    /// Configuration with the client's private key, which is stored nowhere else.
    pub text: Zeroizing<String>,
    /// Warnings for the operator: obstacles for the client, with the remedy.
    pub warnings: Vec<String>,
}

/// Enrols a client that uses WireGuard, with a new key; `expiry` is that of the key, `None` for a
/// key that does not expire. Must be called within a tokio runtime.
///
/// # Errors
/// If the hub has not been initialised or has no `[wireguard]`, the name is taken, or writing
/// fails.
pub async fn invite_wireguard(
    dir: &Path,
    name: &str,
    expiry: Option<KeyExpiry>,
) -> anyhow::Result<WireGuardInvitation> {
    let mut config = load(dir)?;
    let Some(endpoint) = config.wireguard_address() else {
        bail!(
            "WireGuard is not enabled on this hub: add a line [wireguard] to {}, open UDP port {} in \
             the firewall, and restart the hub",
            dir.join(CONFIG).display(),
            hawser_config::ports::WIREGUARD
        );
    };
    let hub = PrivateKey::load_or_create(&dir.join(KEY))?.public();
    Terms::take_over(&mut config);
    resolvers::complete(&mut config, &own_addresses().await?);
    let key = PrivateKey::generate();
    let client = open_store(dir, &config)?.enrol_wireguard(name, key.public(), expiry)?;
    let text = ClientConfig {
        key,
        inner: client.inner(),
        dns: config.dns.clone(),
        hub,
        endpoint,
    };
    Ok(WireGuardInvitation {
        text: text.text(),
        warnings: warnings(dir, &config),
    })
}

fn warnings(dir: &Path, config: &HubConfig) -> Vec<String> {
    let mut warnings = Vec::new();
    if config.dns.is_empty() {
        warnings.push(format!(
            "the client has no resolver, so it cannot resolve names: revoke it, {}, and invite it again",
            resolvers::REMEDY
        ));
    }
    let running = run_dir::hub_of(dir).ok().flatten();
    let status = running.and_then(|hub| ask(&run_dir::socket(&hub), &Request::Status).ok());
    if status.is_some_and(|status| status["wireguard"].is_null()) {
        warnings.push("the hub does not use [wireguard] until it is restarted".to_owned());
    }
    warnings
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{HubInit, init};

    #[test]
    fn an_invitation_enrols_at_once_and_only_where_the_hub_has_a_port() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.unwrap();
        let invite = |dir: &Path, name: &str| runtime.block_on(invite_wireguard(dir, name, None));
        let dir = tempfile::tempdir().unwrap();
        let hub = HubInit {
            endpoints: vec!["hub.example.org:443".parse().unwrap()],
            pool: None,
            pool6: None,
            nat: true,
            store: None,
        };
        let path = init(dir.path(), &hub).unwrap();
        let refused = invite(dir.path(), "phone").unwrap_err().to_string();
        assert!(refused.contains("[wireguard]"), "{refused}");
        let text = std::fs::read_to_string(&path).unwrap();
        std::fs::write(&path, format!("{text}\n[wireguard]\n")).unwrap();
        let invitation = invite(dir.path(), "phone").unwrap();
        assert!(invitation.text.contains("Endpoint = hub.example.org:51820"));
        let clients = crate::list(dir.path()).unwrap();
        assert_eq!(clients["clients"][0]["state"], "enrolled");
        // The private key is only in the printed text.
        let private = invitation
            .text
            .lines()
            .find_map(|line| line.strip_prefix("PrivateKey = "));
        let file = std::fs::read_to_string(dir.path().join("clients/phone.toml")).unwrap();
        assert!(file.contains("wireguard") && !file.contains(private.unwrap()));
        let twice = invite(dir.path(), "phone").unwrap_err().to_string();
        assert!(twice.contains("already enrolled"), "{twice}");
        crate::revoke(dir.path(), "phone").unwrap();
        assert!(invite(dir.path(), "phone").is_ok());
    }
}
