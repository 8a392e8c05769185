//! Hosts that move flows together: those that this host knows (`peers/NAME.toml`), and those that
//! it accepts (`guests/`).
//!
//! One host invites, the other joins; both then know each other's keys. The host that joined moves
//! flows, the host that invited follows. A hub's invitation makes the hub a waypoint.

use std::net::Ipv4Addr;
use std::path::Path;
use std::time::{Duration, SystemTime};

use anyhow::{Context, bail};
use hawser_config::Pool;
use hawser_config::atomic_file;
use hawser_config::identity::{Identity, KeyHash};
use hawser_config::invitation::{HubAddress, Invitation, InvitedTo, Token, check_name};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::enrolment::ClientStore;

/// Host that this one knows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Peer {
    /// Name of the peer.
    pub name: String,
    /// Addresses of the peer.
    pub endpoints: Vec<HubAddress>,
    /// Key of the peer.
    pub key: KeyHash,
    /// Token of the invitation, needed until this host is accepted.
    pub token: Token,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct PeerFile {
    endpoints: Vec<String>,
    key: String,
    token: String,
}

/// Loads this host's key, and creates it if necessary.
///
/// # Errors
/// If the key cannot be read or written.
pub fn identity(dir: &Path) -> anyhow::Result<Identity> {
    atomic_file::private_directory(dir)?;
    Identity::load_or_create(&dir.join(KEY))
}

/// Opens the store of hosts that may move flows to this one.
///
/// # Errors
/// The directory cannot be read.
pub fn guests(dir: &Path) -> anyhow::Result<ClientStore> {
    ClientStore::open(&dir.join(GUESTS), NO_ADDRESSES)
}

/// Invites a host to move flows that end here. Returns the invitation, a line of text.
///
/// # Errors
/// If the name is taken, or writing fails.
pub fn invite(
    dir: &Path,
    name: &str,
    endpoints: Vec<HubAddress>,
    lifetime: Duration,
) -> anyhow::Result<Invitation> {
    let identity = identity(dir)?;
    let token = guests(dir)?.invite(name, lifetime, SystemTime::now());
    let token = token.map_err(|error| rephrased(&error, name))?;
    Ok(Invitation {
        hub: InvitedTo {
            endpoints,
            key: identity.hash(),
        },
        others: Vec::new(),
        name: name.to_owned(),
        token,
    })
}

/// Rephrases an error of the store, which mentions hubs.
fn rephrased(error: &anyhow::Error, name: &str) -> anyhow::Error {
    anyhow::anyhow!(
        "{}",
        format!("{error:#}").replace(
            &format!("`hawser hub revoke {name}`"),
            &format!("`hawser peer revoke {name}`"),
        )
    )
}

/// Revokes a host's permission to move flows.
///
/// # Errors
/// There is no such host, or the disk refuses.
pub fn revoke(dir: &Path, name: &str) -> anyhow::Result<()> {
    check_name(name)?;
    let mut store = guests(dir)?;
    if store.by_name(name).is_none() {
        bail!("there is no peer {name}: `hawser peer list` shows the peers");
    }
    store.revoke(name)
}

/// Saves the host of an invitation under a local name.
///
/// # Errors
/// If the name is invalid, or writing fails.
pub fn join(dir: &Path, invitation: &Invitation, name: Option<&str>) -> anyhow::Result<Peer> {
    identity(dir)?;
    let first = invitation
        .hub
        .endpoints
        .first()
        .context("the invitation contains no address")?;
    let name = name.map_or_else(|| default_name(&first.host), ToOwned::to_owned);
    check_name(&name)?;
    let peer = Peer {
        name,
        endpoints: invitation.hub.endpoints.clone(),
        key: invitation.hub.key,
        token: invitation.token.clone(),
    };
    let file = PeerFile {
        endpoints: peer.endpoints.iter().map(ToString::to_string).collect(),
        key: peer.key.to_string(),
        token: data_encoding::HEXLOWER.encode(&peer.token.0),
    };
    let directory = dir.join(PEERS);
    atomic_file::private_directory(&directory)?;
    let path = directory.join(format!("{}.toml", peer.name));
    atomic_file::write(&path, toml::to_string(&file)?.as_bytes(), 0o600)?;
    Ok(peer)
}

/// Returns the default name of a host, without the characters that names may not have.
fn default_name(host: &str) -> String {
    let fit = |c: char| {
        if c.is_ascii_alphanumeric() {
            c.to_ascii_lowercase()
        } else {
            '-'
        }
    };
    host.chars().map(fit).take(32).collect()
}

/// Removes a host.
///
/// # Errors
/// There is no such host, or the disk refuses.
pub fn leave(dir: &Path, name: &str) -> anyhow::Result<()> {
    check_name(name)?;
    let path = dir.join(PEERS).join(format!("{name}.toml"));
    match std::fs::remove_file(&path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            bail!("there is no peer {name}: `hawser peer list` shows the peers")
        }
        other => other.with_context(|| format!("cannot remove {}", path.display())),
    }
}

/// Returns the hosts that this one knows, by name.
///
/// # Errors
/// If a file cannot be read or is damaged; the message names it.
pub fn load(dir: &Path) -> anyhow::Result<Vec<Peer>> {
    let directory = dir.join(PEERS);
    let entries = match std::fs::read_dir(&directory) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        other => other.with_context(|| format!("cannot read the directory {}", directory.display()))?,
    };
    let mut peers = Vec::new();
    for entry in entries {
        let path = entry?.path();
        let name = path
            .file_name()
            .and_then(|name| name.to_str()?.strip_suffix(".toml"));
        if let Some(name) = name.filter(|name| check_name(name).is_ok()) {
            let damaged = || format!("{} is damaged: remove it and join again", path.display());
            peers.push(read(name, &path).with_context(damaged)?);
        }
    }
    peers.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(peers)
}

fn read(name: &str, path: &Path) -> anyhow::Result<Peer> {
    let file: PeerFile = hawser_config::parse(path, &std::fs::read_to_string(path)?)?;
    let endpoints = file.endpoints.iter().map(|endpoint| endpoint.parse());
    let token = data_encoding::HEXLOWER.decode(file.token.as_bytes())?;
    Ok(Peer {
        name: name.to_owned(),
        endpoints: endpoints.collect::<Result<_, _>>()?,
        key: file.key.parse()?,
        token: Token(token.try_into().ok().context("the token has 16 bytes")?),
    })
}

/// Returns the entries of `hawser peer list`.
///
/// # Errors
/// If a file cannot be read.
pub fn list(dir: &Path) -> anyhow::Result<Value> {
    let now = SystemTime::now();
    let known = load(dir)?;
    let known: Vec<_> = known
        .iter()
        .map(|peer| {
            let endpoints: Vec<_> = peer.endpoints.iter().map(ToString::to_string).collect();
            json!({ "name": peer.name, "endpoints": endpoints })
        })
        .collect();
    let store = dir.join(GUESTS).exists().then(|| guests(dir)).transpose()?;
    let guests: Vec<_> = store
        .iter()
        .flat_map(ClientStore::iter)
        .map(|guest| json!({ "name": guest.name, "state": guest.state(now) }))
        .collect();
    Ok(json!({ "version": 1, "peers": known, "guests": guests }))
}

/// File of the key of clients and of direct mode.
const KEY: &str = "identity.key";
const PEERS: &str = "peers";
const GUESTS: &str = "guests";
/// Pool of inner addresses that the store assigns; they are unused here.
pub const NO_ADDRESSES: Pool = Pool {
    v4: (Ipv4Addr::new(100, 64, 0, 0), 16),
    v6: None,
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_invites_and_who_joins_know_each_other() {
        let (here, there) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let endpoint: HubAddress = "files.example.org:4443".parse().unwrap();
        let line = invite(here.path(), "laptop", vec![endpoint], Duration::from_secs(60)).unwrap();
        let peer = join(there.path(), &line, None).unwrap();
        assert_eq!(peer.name, "files-example-org");
        assert_eq!(load(there.path()).unwrap(), [peer]);
        assert_eq!(load(here.path()).unwrap(), []);
        let mut store = guests(here.path()).unwrap();
        let key = identity(there.path()).unwrap().hash();
        assert_eq!(
            store.enrol(&line.token.0, key, SystemTime::now()).unwrap().name,
            "laptop"
        );
        let listed = list(here.path()).unwrap();
        assert_eq!(listed["guests"][0]["state"], "enrolled");
        let again = invite(
            here.path(),
            "laptop",
            vec!["x:1".parse().unwrap()],
            Duration::from_secs(60),
        );
        let said = again.unwrap_err().to_string();
        assert!(said.contains("hawser peer revoke laptop"), "{said}");
        revoke(here.path(), "laptop").unwrap();
        assert!(revoke(here.path(), "laptop").is_err());
        leave(there.path(), "files-example-org").unwrap();
        assert!(
            leave(there.path(), "files-example-org")
                .unwrap_err()
                .to_string()
                .contains("peer list")
        );
    }

    #[test]
    fn a_damaged_file_is_named() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join(PEERS)).unwrap();
        std::fs::write(dir.path().join(PEERS).join("x.toml"), "key = 7").unwrap();
        let error = format!("{:#}", load(dir.path()).unwrap_err());
        assert!(error.contains("x.toml is damaged"), "{error}");
    }
}
