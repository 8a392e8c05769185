//! What happens to networks whose neighbour goes away and comes back.

use super::{Event, Hop, Network, NetworkChange};
use crate::{Change, State};

/// What members do: they leave and come without a word.
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
                    beside: NetworkChange::default(),
                });
            }
        }
    }
    events
}
