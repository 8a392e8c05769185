//! Saved hubs of a client: `hub-joined.toml` next to its key, the first choice first.

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
use super::nat64::with_own_addresses;

/// Hub that a client has joined.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Membership {
    /// Name of the client at the hub.
    pub(super) name: String,
    /// Addresses of the hub.
    pub(super) endpoints: Vec<HubAddress>,
    /// Key of the hub.
    pub(super) hub_key: KeyHash,
    /// Last known addresses: names may not resolve while the tunnel is down.
    pub(super) addresses: Vec<SocketAddr>,
    /// Token for the first enrolment.
    pub(super) token: Option<Token>,
    /// Hub of the same fleet that invited this client, if it is another one.
    pub(super) fleet: Option<KeyHash>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct MembershipFile {
    name: String,
    endpoints: Vec<String>,
    hub_key: String,
    #[serde(default)]
    addresses: Vec<SocketAddr>,
    /// Token of an invitation that has not been used yet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    token: Option<String>,
    /// Hub of the invitation, for one that was named by another hub.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    fleet: Option<String>,
    /// Hubs after the first one.
    #[serde(default, rename = "hub", skip_serializing_if = "Vec::is_empty")]
    others: Vec<Self>,
}

impl Membership {
    /// Converts an invitation to its hub, and others of its fleet.
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

    /// Converts a hub's message about another one of its fleet; `None` for an invalid address.
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

    /// Returns its fleet, named by the hub of this client's invitation.
    pub(super) fn fleet(&self) -> KeyHash {
        self.fleet.unwrap_or(self.hub_key)
    }

    /// Reads the saved hubs; empty if the client has never joined a hub.
    ///
    /// # Errors
    /// If the file cannot be read or is damaged.
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
        let mut first: MembershipFile = hawser_config::parse(&path, &text).with_context(damaged)?;
        let others = std::mem::take(&mut first.others);
        let all = std::iter::once(first).chain(others).map(Self::from_file);
        all.collect::<anyhow::Result<_>>().with_context(damaged)
    }

    fn from_file(file: MembershipFile) -> anyhow::Result<Self> {
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

    fn to_file(&self) -> MembershipFile {
        MembershipFile {
            name: self.name.clone(),
            endpoints: self.endpoints.iter().map(ToString::to_string).collect(),
            hub_key: self.hub_key.to_string(),
            addresses: self.addresses.clone(),
            token: self.token.as_ref().map(Token::text),
            fleet: self.fleet.map(|key| key.to_string()),
            others: Vec::new(),
        }
    }

    /// Saves the hubs, the first choice first.
    ///
    /// # Errors
    /// If the file cannot be written; the previous file remains.
    pub(super) fn save(all: &[Self], directory: &Path) -> anyhow::Result<()> {
        let path = directory.join(FILE);
        let Some((first, others)) = all.split_first() else {
            return std::fs::remove_file(&path).with_context(|| format!("cannot remove {}", path.display()));
        };
        let mut file = first.to_file();
        file.others = others.iter().map(Self::to_file).collect();
        atomic_file::write(&path, toml::to_string(&file)?.as_bytes(), 0o600)
    }

    /// Returns whether a user's word names this hub: its host or endpoint.
    pub(super) fn is_called(&self, word: &str) -> bool {
        let mut endpoints = self.endpoints.iter();
        endpoints.any(|endpoint| endpoint.host == word || endpoint.to_string() == word)
    }

    /// Returns its first endpoint, for display.
    pub(super) fn label(&self) -> String {
        self.endpoints
            .first()
            .map(ToString::to_string)
            .unwrap_or_default()
    }

    /// Returns the parameters of a connection to the hub at an address by TLS on TCP, over a
    /// network. `remote` is that address on the network, which may translate it.
    pub(super) fn by_tls(&self, device: &str, [remote, hub]: [IpAddr; 2], config: &ClientConfig) -> Plan {
        Plan {
            device: device.to_owned(),
            remote: SocketAddr::new(remote, config.tls.port.get()),
            host: self.called(hub, config),
            proxy: config.network(device).proxy,
            hub: self.hub_key,
        }
    }

    /// Returns the name of the hub at an address in TLS and HTTP, and for proxies.
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

    /// Resolves the hub's names with all resolvers; returns nothing for a hub without a name.
    pub(super) async fn resolve_again(&self, config: &ClientConfig) -> Vec<SocketAddr> {
        let is_name = |endpoint: &HubAddress| endpoint.host.parse::<IpAddr>().is_err();
        if !self.endpoints.iter().any(is_name) {
            return Vec::new();
        }
        let lookups = self
            .endpoints
            .iter()
            .map(|endpoint| lookup::again(endpoint, config));
        with_own_addresses(futures_util::future::join_all(lookups).await.concat())
    }

    /// Resolves the hub's names. Keeps the known addresses of a name that does not resolve.
    pub(super) async fn resolve(&mut self, config: &ClientConfig) {
        let mut found = Vec::new();
        for endpoint in &self.endpoints {
            match lookup::addresses(endpoint, config).await {
                Ok(addresses) => found.extend(addresses),
                Err(error) => {
                    tracing::warn!(hub = endpoint.host, %error, "cannot resolve the name of the hub")
                }
            }
        }
        if !found.is_empty() {
            self.addresses = with_own_addresses(found);
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
        assert_eq!(Membership::load(dir.path()).unwrap(), []);
        let mut joined = Membership {
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
        let second = Membership {
            hub_key: KeyHash([2; 32]),
            token: Some(Token([7; 16])),
            fleet: Some(KeyHash([3; 32])),
            ..joined.clone()
        };
        for all in [vec![joined.clone()], vec![joined, second]] {
            Membership::save(&all, dir.path()).unwrap();
            assert_eq!(Membership::load(dir.path()).unwrap(), all);
        }
        Membership::save(&[], dir.path()).unwrap();
        assert_eq!(Membership::load(dir.path()).unwrap(), []);
    }
}
