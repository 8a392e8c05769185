//! Clients that use WireGuard's own apps: connection between the store, the thread that transfers
//! their packets, status and accounts.
//!
//! The store contains the peers and their limits, as for all clients. The thread
//! (`hawser_wireguard`) follows its changes. Endpoints are saved in the run directory, so that the
//! next process contacts clients, which do not notice a restart of the hub.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use anyhow::Context;
use hawser_config::{HubWireGuardConfig, WireGuardKey, atomic_file};
use hawser_control::hub::{HubControl, WireGuardClient};
use hawser_dataplane::OtherClients;
use hawser_linux::tun::Tun;
use hawser_linux::udp::open_listening;
use hawser_proto::client_filter::Policy;
use hawser_steer::quota::Used;
use hawser_wireguard::{Config, PeerConfig, PeerStatus, PrivateKey, Status, WireGuard};
use serde_json::{Value, json};

use super::accounts::PathCounters;

/// WireGuard clients of a running hub.
#[derive(Clone)]
pub(super) struct WireGuardClients(Arc<Shared>);

struct Shared {
    plane: WireGuard,
    listen: SocketAddr,
    key: WireGuardKey,
    /// Clients that the thread knows.
    known: Mutex<Vec<WireGuardClient>>,
    /// File of the endpoints, and its contents.
    file: PathBuf,
    saved: Mutex<String>,
}

impl WireGuardClients {
    /// Opens the socket and starts the thread; the peers follow with [`Self::follow`].
    pub(super) fn start(
        config: &HubWireGuardConfig,
        (dir, run_dir): (&Path, &Path),
        (tun, policy): (Tun, Arc<Policy>),
    ) -> anyhow::Result<Self> {
        let listen = config.listen;
        let socket = open_listening(listen).with_context(|| {
            format!("cannot listen on UDP {listen} for WireGuard: choose another address in hub.toml, [wireguard], listen")
        })?;
        let key = PrivateKey::load_or_create(&dir.join(KEY))?;
        let public = key.public();
        let plane = WireGuard::start(Config {
            key,
            socket,
            tun,
            policy,
        })?;
        Ok(Self(Arc::new(Shared {
            plane,
            listen,
            key: public,
            known: Mutex::default(),
            file: run_dir.join(ENDPOINTS),
            saved: Mutex::default(),
        })))
    }

    /// Returns the clients, for the data plane.
    pub(super) fn others(&self) -> Arc<dyn OtherClients> {
        self.0.plane.others()
    }

    /// Changes the destinations that clients may reach.
    pub(super) fn set_policy(&self, policy: &Arc<Policy>) {
        self.0.plane.set_policy(Arc::clone(policy));
    }

    /// Updates the peers from the store. Returns after the sessions of revoked clients have ended.
    /// Does nothing if clients and limits are unchanged, unless `is_forced`.
    ///
    /// Cost: O(clients).
    pub(super) async fn follow(&self, control: &HubControl, is_forced: bool) {
        let answered = {
            let mut known = self.0.known.lock().expect("no holder panics");
            let clients = control.wireguard_clients();
            if *known == clients && !is_forced {
                return;
            }
            known.clone_from(&clients);
            self.0.plane.set_peers(clients.into_iter().map(peer).collect())
        };
        let _ = answered.await;
    }

    /// Contacts the clients of the previous process.
    pub(super) fn resume(&self) {
        let text = std::fs::read_to_string(&self.0.file).unwrap_or_default();
        self.0.plane.resume(endpoints(&text));
    }

    /// Saves the endpoints for the next process.
    pub(super) async fn save(&self) {
        let text = lines(&self.0.plane.status().await.peers);
        let is_same = *self.0.saved.lock().expect("no holder panics") == text;
        if is_same {
            return;
        }
        match atomic_file::write(&self.0.file, text.as_bytes(), 0o600) {
            Ok(()) => *self.0.saved.lock().expect("no holder panics") = text,
            Err(error) => tracing::warn!(
                error = format!("{error:#}"),
                "cannot save the WireGuard clients: they will notice a restart of the hub late"
            ),
        }
    }

    /// Returns the state of all peers.
    pub(super) async fn status(&self) -> Status {
        self.0.plane.status().await
    }

    /// Adds the peers to the status of the hub.
    pub(super) fn add_to(&self, status: &mut Value, seen: &Status) {
        status["wireguard"] = json!({ "listen": self.0.listen, "key": self.0.key.to_string() });
        for (name, count) in &seen.counters {
            status["counters"][*name] = json!(count);
        }
        let mut peers = BTreeMap::new();
        peers.extend(seen.peers.iter().map(|peer| (peer.name.as_str(), peer)));
        for client in status["clients"].as_array_mut().into_iter().flatten() {
            let peer = client["name"].as_str().and_then(|name| peers.get(name));
            if let Some(peer) = peer {
                client["connected"] = json!(peer.is_connected);
                client["wireguard"] = json!({
                    "endpoint": peer.endpoint,
                    "last_handshake_s": peer.handshake_age.map(|age| age.as_secs()),
                    "received_bytes": peer.received_bytes,
                    "sent_bytes": peer.sent_bytes,
                });
            }
        }
    }
}

/// Adds the counters of peers to those of paths, and their names to those of sessions.
pub(super) fn count(peers: &[PeerStatus], counters: &mut PathCounters, names: &mut BTreeMap<u64, String>) {
    for peer in peers {
        let session = session(&peer.key);
        let used = Used {
            received: peer.received_bytes,
            sent: peer.sent_bytes,
        };
        counters.push(((session, 0), used));
        names.insert(session, peer.name.clone());
    }
}

/// Returns the number under which a peer is counted, like the random number of a session.
fn session(key: &WireGuardKey) -> u64 {
    let first = key.0.first_chunk().copied();
    first.map_or(0, u64::from_be_bytes)
}

fn peer(client: WireGuardClient) -> PeerConfig {
    PeerConfig {
        name: client.name,
        key: client.key,
        inner: client.inner,
        limit: client.limit,
    }
}

/// Writes the endpoints of peers that have a session, one in each line.
fn lines(peers: &[PeerStatus]) -> String {
    let mut text = String::new();
    for peer in peers.iter().filter(|peer| peer.is_connected) {
        if let Some(endpoint) = peer.endpoint {
            let _ = writeln!(text, "{} {endpoint}", peer.key);
        }
    }
    text
}

fn endpoints(text: &str) -> Vec<(WireGuardKey, SocketAddr)> {
    let line = |line: &str| {
        let (key, endpoint) = line.split_once(' ')?;
        Some((key.parse().ok()?, endpoint.parse().ok()?))
    };
    text.lines().filter_map(line).collect()
}

/// File of the hub's private key.
pub(super) const KEY: &str = "wireguard.key";
/// File of the clients' endpoints, in the run directory.
const ENDPOINTS: &str = "wireguard";

#[cfg(test)]
mod tests {
    use super::*;

    fn status(key: u8, is_connected: bool) -> PeerStatus {
        PeerStatus {
            name: format!("phone{key}"),
            key: WireGuardKey([key; 32]),
            endpoint: Some(SocketAddr::from(([192, 0, 2, key], 7))),
            is_connected,
            handshake_age: None,
            received_bytes: 3,
            sent_bytes: 5,
        }
    }

    #[test]
    fn endpoints_of_connected_peers_are_read_as_they_were_written() {
        let text = lines(&[status(1, true), status(2, false)]);
        let expected = [(WireGuardKey([1; 32]), "192.0.2.1:7".parse().unwrap())];
        assert_eq!(endpoints(&text), expected);
        assert_eq!(endpoints("\nx 192.0.2.1:7\n").len(), 0);
    }

    #[test]
    fn peers_are_counted_under_their_names() {
        let (mut counters, mut names) = (PathCounters::new(), BTreeMap::new());
        count(&[status(1, true)], &mut counters, &mut names);
        let ((session, _), used) = counters[0];
        assert_eq!((used.received, used.sent), (3, 5));
        assert_eq!(names[&session], "phone1");
    }
}
