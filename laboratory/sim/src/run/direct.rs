//! Which network a conversation gets without a hub: whose turn the daemon's own machine says it is,
//! taken as the kernel does.
//!
//! Scope: conversations that begin together on networks that stay. Limitations: nobody's connection
//! begins anew when its network goes, so scenarios where one does are refused. Addresses are
//! translated at no cost.

use std::collections::BTreeMap;

use hawser_netem::scenario::{Scenario, Workload};
use hawser_steer::assignment::{Assignment, Measure, Network, Way, Wish};
use hawser_steer::policy::Kind;
use hawser_steer::policy::conditions::{Conditions, NetworkFacts};
use hawser_units::{Instant, NetworkId};

use super::RunError;

/// Whose turn it is; counted for TCP, UDP and the rest by themselves.
pub(super) struct Turns {
    order: Vec<usize>,
    taken: [usize; 3],
}

impl Turns {
    /// With the default of direct mode and networks of which nothing is known, as when it has just
    /// begun.
    ///
    /// # Errors
    /// A network of the scenario goes or swallows packets.
    pub(super) fn new(scenario: &Scenario) -> Result<Self, RunError> {
        if scenario.events.iter().any(|event| event.change.state.is_some()) {
            return Err(RunError::DirectEvents);
        }
        let default = Wish {
            when: Conditions::default(),
            way: Way::Spread(Vec::new(), Measure::Capacity),
            strict: false,
        };
        let network = |index| {
            let unknown = Network {
                kind: Kind::Wired,
                carries: [true, false],
                weight: None,
                capacity: None,
                round_trip: None,
                facts: NetworkFacts::default(),
            };
            (NetworkId(index), unknown)
        };
        let networks: BTreeMap<_, _> = (0..).take(scenario.networks.len()).map(network).collect();
        let mut machine = Assignment::new(vec![default]);
        machine.handle_networks(networks, Instant::ZERO);
        let decided = machine.decisions().iter().flat_map(|decision| &decision.turns[0]);
        Ok(Self {
            order: decided.map(|id| id.0 as usize).collect(),
            taken: [0; 3],
        })
    }

    /// The network of the next conversation, by its place in the scenario.
    pub(super) fn next(&mut self, workload: &Workload) -> usize {
        let taken = &mut self.taken[match workload {
            Workload::Tcp { .. } | Workload::Http { .. } => 0,
            Workload::Udp { .. } | Workload::Quic { .. } | Workload::Video { .. } => 1,
            Workload::Ping { .. } => 2,
        }];
        let turn = self.order[*taken % self.order.len()];
        *taken += 1;
        turn
    }
}
