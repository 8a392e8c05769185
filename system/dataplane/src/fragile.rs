//! Networks that failed after a packet that was too large, stored beyond the lifetime of their
//! paths.
//!
//! A path stores such a size while it is open (`hawser-proto`'s `path/pmtu`). When the network
//! disappears and returns, or the session restarts, the path is new and receives the size from
//! here. The sizes are only in memory, so a restart of the daemon discards them.

use std::collections::BTreeMap;

use hawser_proto::path::pmtu::Barred;
use hawser_proto::tunnel::Role;
use hawser_units::Instant;

use super::lane::Lane;
use super::sessions::Session;

/// Maximum number of remembered networks: of a client a handful, of a hub those of clients with
/// such modems. Source: our choice, a bound on memory; beyond it, a forgotten modem stops once more
/// for a minute.
const NETWORKS: usize = 1024;

/// Sizes that made networks fail, by network.
#[derive(Default)]
pub(super) struct Fragile {
    known: BTreeMap<String, Barred>,
}

impl Fragile {
    /// Records the sizes that the paths of a session found.
    pub(super) fn note(&mut self, session: &Session) {
        for path in session.tunnel.paths() {
            let lane = session.lanes.get(&path.id);
            let network = lane.and_then(|lane| network(session.tunnel.role(), lane));
            if let (Some(network), Some(barred)) = (network, path.pmtu().barred()) {
                self.insert(network, barred);
            }
        }
    }

    fn insert(&mut self, network: String, barred: Barred) {
        if self.known.len() >= NETWORKS && !self.known.contains_key(&network) {
            let soonest = self.known.iter().min_by_key(|(_, barred)| barred.until());
            if let Some(soonest) = soonest.map(|(network, _)| network.clone()) {
                self.known.remove(&soonest);
            }
        }
        self.known.insert(network, barred);
    }

    /// Applies the known size of its network to a newly opened path, or to one whose far address
    /// has become known.
    pub(super) fn apply(&self, session: &mut Session, path: hawser_units::PathId, now: Instant) {
        let role = session.tunnel.role();
        let network = session.lanes.get(&path).and_then(|lane| network(role, lane));
        if let Some(barred) = network.and_then(|network| self.known.get(&network)) {
            session.tunnel.egress_mut().set_barred(path, *barred, now);
        }
    }
}

/// Returns the identity of a path's network: on a client its interface, on a hub the address of the
/// client.
fn network(role: Role, lane: &Lane) -> Option<String> {
    match role {
        Role::Client => Some(lane.name.clone()),
        Role::Hub => lane.remote.map(|remote| remote.ip().to_string()),
    }
}
