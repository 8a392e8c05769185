//! Events of networks whose neighbour leaves and returns.

use super::{Event, Hop, Network, NetworkChange};
use crate::{Change, State};

/// Returns the movements of members: they leave and return without notice.
pub(super) fn movements(networks: &[Network]) -> Vec<Event> {
    let mut events = Vec::new();
    for (network, described) in networks.iter().enumerate() {
        let Some(member) = &described.member else { continue };
        for (from, to) in &member.away {
            for (at, state) in [(*from, State::Blackhole), (*to, State::Up)] {
                events.push(Event {
                    at,
                    network,
                    hop: Hop::Local,
                    direction: None,
                    change: Change {
                        state: Some(state),
                        ..Change::default()
                    },
                    network_change: NetworkChange::default(),
                });
            }
        }
    }
    events
}
