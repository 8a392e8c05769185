//! What a client remembers of its hubs: `hub-joined.toml` beside its key, the first choice first.

use std::net::{IpAddr, SocketAddr};
use std::path::Path;

use anyhow::Context;
use hawser_config::ClientConfig;
use hawser_config::atomic_file;
use hawser_config::identity::KeyHash;
use hawser_config::invitation::{HubAddress, Invitation, InvitedTo, Token};
use hawser_control::over_tls::dial::Plan;
use hawser_wire::control::OtherHub;
use serde::{Deserialize, Serialize};

use super::lookup;

/// A hub that a client belongs to.
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
    /// What lets the client in for the first time.
    pub(super) token: Option<Token>,
    /// The hub of the same fleet that this client was invited to, where it was not this one.
    pub(super) fleet: Option<KeyHash>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct JoinedFile {
    name: String,
    endpoints: Vec<String>,
    hub_key: String,
    #[serde(default)]
    addresses: Vec<SocketAddr>,
    /// Of an invitation that has not been used yet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    token: Option<String>,
    /// Of a hub that was named by others: the one that this machine was invited to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    fleet: Option<String>,
    /// The hubs that come after the first.
    #[serde(default, rename = "hub", skip_serializing_if = "Vec::is_empty")]
    others: Vec<Self>,
}

impl Joined {
    /// What an invitation says of the hub, and of others of its fleet.
    #[must_use]
    pub(super) fn from_invitation(invitation: &Invitation) -> Vec<Self> {
        let joined = |hub: &InvitedTo, fleet: Option<KeyHash>| Self {
            name: invitation.name.clone(),
            endpoints: hub.endpoints.clone(),
            hub_key: hub.key,
            addresses: Vec::new(),
            token: Some(invitation.token.clone()),
            fleet,
        };
        let others = invitation.others.iter();
        let others = others.map(|hub| joined(hub, Some(invitation.hub.key)));
        std::iter::once(joined(&invitation.hub, None))
            .chain(others)
            .collect()
    }

    /// What a hub says of another one of its fleet; `None` where that is no place.
    pub(super) fn fleet_mate(&self, other: &OtherHub) -> Option<Self> {
        let endpoints = other.endpoints.iter().map(|endpoint| endpoint.parse());
        let endpoints: Vec<_> = endpoints.collect::<Result<_, _>>().ok()?;
        (!endpoints.is_empty()).then(|| Self {
            name: self.name.clone(),
            endpoints,
            hub_key: KeyHash(other.key),
            addresses: Vec::new(),
            token: None,
            fleet: Some(self.fleet()),
        })
    }

    /// Its fleet, called by the hub that this client was invited to.
    pub(super) fn fleet(&self) -> KeyHash {
        self.fleet.unwrap_or(self.hub_key)
    }

    /// Reads what was saved; nothing when the client has never joined a hub.
    ///
    /// # Errors
    /// The file cannot be read or is damaged.
    pub(super) fn load(directory: &Path) -> anyhow::Result<Vec<Self>> {
        let path = directory.join(FILE);
        let text = match std::fs::read_to_string(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(error).with_context(|| format!("cannot read {}", path.display())),
        };
        let damaged = || {
            format!(
                "{} is damaged: remove it and use a new invitation",
                path.display()
            )
        };
        let mut first: JoinedFile = toml::from_str(&text).with_context(damaged)?;
        let others = std::mem::take(&mut first.others);
        let all = std::iter::once(first).chain(others).map(Self::from_file);
        all.collect::<anyhow::Result<_>>().with_context(damaged)
    }

    fn from_file(file: JoinedFile) -> anyhow::Result<Self> {
        let endpoints = file.endpoints.iter().map(|endpoint| endpoint.parse());
        Ok(Self {
            endpoints: endpoints.collect::<Result<_, _>>()?,
            name: file.name,
            hub_key: file.hub_key.parse()?,
            addresses: file.addresses,
            token: file.token.map(|token| token.parse()).transpose()?,
            fleet: file.fleet.map(|key| key.parse()).transpose()?,
        })
    }

    fn to_file(&self) -> JoinedFile {
        JoinedFile {
            name: self.name.clone(),
            endpoints: self.endpoints.iter().map(ToString::to_string).collect(),
            hub_key: self.hub_key.to_string(),
            addresses: self.addresses.clone(),
            token: self.token.as_ref().map(Token::text),
            fleet: self.fleet.map(|key| key.to_string()),
            others: Vec::new(),
        }
    }

    /// Saves them, the first choice first.
    ///
    /// # Errors
    /// The disk refuses; what was there stays.
    pub(super) fn save(all: &[Self], directory: &Path) -> anyhow::Result<()> {
        let path = directory.join(FILE);
        let Some((first, others)) = all.split_first() else {
            return std::fs::remove_file(&path).with_context(|| format!("cannot remove {}", path.display()));
        };
        let mut file = first.to_file();
        file.others = others.iter().map(Self::to_file).collect();
        atomic_file::write(&path, toml::to_string(&file)?.as_bytes(), 0o600)
    }

    /// Whether a person means it by that word: a host or an endpoint of it.
    pub(super) fn is_called(&self, word: &str) -> bool {
        let mut endpoints = self.endpoints.iter();
        endpoints.any(|endpoint| endpoint.host == word || endpoint.to_string() == word)
    }

    /// Its first endpoint, as people know it.
    pub(super) fn place(&self) -> String {
        self.endpoints
            .first()
            .map(ToString::to_string)
            .unwrap_or_default()
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

    /// Looks the hub's names up at all resolvers there are; returns nothing for a hub without a
    /// name.
    pub(super) async fn resolve_again(&self, config: &ClientConfig) -> Vec<SocketAddr> {
        let is_name = |endpoint: &HubAddress| endpoint.host.parse::<IpAddr>().is_err();
        if !self.endpoints.iter().any(is_name) {
            return Vec::new();
        }
        let lookups = self
            .endpoints
            .iter()
            .map(|endpoint| lookup::again(endpoint, config));
        futures_util::future::join_all(lookups).await.concat()
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
        assert_eq!(Joined::load(dir.path()).unwrap(), []);
        let mut joined = Joined {
            name: "alice".into(),
            endpoints: vec!["127.0.0.1:443".parse().unwrap(), "[::1]:443".parse().unwrap()],
            hub_key: KeyHash([1; 32]),
            addresses: vec![],
            token: None,
            fleet: None,
        };
        joined.resolve(&ClientConfig::default()).await;
        assert_eq!(
            joined.addresses,
            ["127.0.0.1:443".parse().unwrap(), "[::1]:443".parse().unwrap()]
        );
        let second = Joined {
            hub_key: KeyHash([2; 32]),
            token: Some(Token([7; 16])),
            fleet: Some(KeyHash([3; 32])),
            ..joined.clone()
        };
        for all in [vec![joined.clone()], vec![joined, second]] {
            Joined::save(&all, dir.path()).unwrap();
            assert_eq!(Joined::load(dir.path()).unwrap(), all);
        }
        Joined::save(&[], dir.path()).unwrap();
        assert_eq!(Joined::load(dir.path()).unwrap(), []);
    }
}
