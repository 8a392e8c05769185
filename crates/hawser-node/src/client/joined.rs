//! What a client remembers of its hub: `hub-joined.toml` beside its key.

use std::net::{IpAddr, SocketAddr};
use std::path::Path;

use anyhow::Context;
use serde::{Deserialize, Serialize};

use super::lookup;
use crate::atomic_file;
use crate::config::ClientConfig;
use crate::identity::KeyHash;
use crate::invitation::{HubAddress, Invitation};
use crate::over_tls::dial::Plan;

/// The hub that a client belongs to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Joined {
    /// The client's name there.
    pub(super) name: String,
    /// Where the hub is reached.
    pub(super) endpoints: Vec<HubAddress>,
    /// Its key.
    pub(super) hub_key: KeyHash,
    /// Where it was last: names may not resolve while the tunnel is down.
    pub(super) addresses: Vec<SocketAddr>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct JoinedFile {
    name: String,
    endpoints: Vec<String>,
    hub_key: String,
    #[serde(default)]
    addresses: Vec<SocketAddr>,
}

impl Joined {
    /// What an invitation says of the hub.
    #[must_use]
    pub(super) fn from_invitation(invitation: &Invitation) -> Self {
        Self {
            name: invitation.name.clone(),
            endpoints: invitation.endpoints.clone(),
            hub_key: invitation.hub_key,
            addresses: Vec::new(),
        }
    }

    /// Reads what was saved; `None` when the client has never joined a hub.
    ///
    /// # Errors
    /// The file cannot be read or is damaged.
    pub(super) fn load(directory: &Path) -> anyhow::Result<Option<Self>> {
        let path = directory.join(FILE);
        let text = match std::fs::read_to_string(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error).with_context(|| format!("cannot read {}", path.display())),
        };
        let damaged = || {
            format!(
                "{} is damaged: remove it and use a new invitation",
                path.display()
            )
        };
        let file: JoinedFile = toml::from_str(&text).with_context(damaged)?;
        let endpoints = file
            .endpoints
            .iter()
            .map(|e| e.parse())
            .collect::<Result<_, _>>()
            .with_context(damaged)?;
        Ok(Some(Self {
            name: file.name,
            endpoints,
            hub_key: file.hub_key.parse().with_context(damaged)?,
            addresses: file.addresses,
        }))
    }

    /// Saves it.
    ///
    /// # Errors
    /// The disk refuses; what was there stays.
    pub(super) fn save(&self, directory: &Path) -> anyhow::Result<()> {
        let file = JoinedFile {
            name: self.name.clone(),
            endpoints: self.endpoints.iter().map(ToString::to_string).collect(),
            hub_key: self.hub_key.to_string(),
            addresses: self.addresses.clone(),
        };
        atomic_file::write(&directory.join(FILE), toml::to_string(&file)?.as_bytes(), 0o600)
    }

    /// How the hub at an address is reached by TLS on TCP, over a network.
    pub(super) fn by_tls(&self, device: &str, hub: IpAddr, config: &ClientConfig) -> Plan {
        Plan {
            device: device.to_owned(),
            remote: SocketAddr::new(hub, config.tls.port.get()),
            host: self.called(hub, config),
            proxy: config.network(device).proxy,
            hub: self.hub_key,
        }
    }

    /// What the hub at an address is called in TLS and HTTP, and to proxies.
    fn called(&self, address: IpAddr, config: &ClientConfig) -> String {
        let own = address.to_string();
        let is_name = |host: &&str| host.parse::<IpAddr>().is_err();
        let hosts = || self.endpoints.iter().map(|endpoint| endpoint.host.as_str());
        match &config.tls.name {
            Some(name) => name.0.clone(),
            None if hosts().any(|host| host == own) => own,
            None => hosts().find(is_name).map_or(own, str::to_owned),
        }
    }

    /// Looks the hub's names up. Keeps what was known where a name does not resolve.
    pub(super) async fn resolve(&mut self, config: &ClientConfig) {
        let mut found = Vec::new();
        for endpoint in &self.endpoints {
            match lookup::addresses(endpoint, config).await {
                Ok(addresses) => found.extend(addresses),
                Err(error) => tracing::warn!(hub = endpoint.host, %error, "cannot look the hub's name up"),
            }
        }
        if !found.is_empty() {
            let mut seen = std::collections::BTreeSet::new();
            found.retain(|address| seen.insert(*address));
            self.addresses = found;
        }
    }
}

const FILE: &str = "hub-joined.toml";

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn survives_a_restart() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(Joined::load(dir.path()).unwrap(), None);
        let mut joined = Joined {
            name: "alice".into(),
            endpoints: vec!["127.0.0.1:443".parse().unwrap(), "[::1]:443".parse().unwrap()],
            hub_key: KeyHash([1; 32]),
            addresses: vec![],
        };
        joined.resolve(&ClientConfig::default()).await;
        assert_eq!(
            joined.addresses,
            ["127.0.0.1:443".parse().unwrap(), "[::1]:443".parse().unwrap()]
        );
        joined.save(dir.path()).unwrap();
        assert_eq!(Joined::load(dir.path()).unwrap(), Some(joined));
    }
}
