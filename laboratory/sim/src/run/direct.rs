//! Choice of a conversation's network in direct mode: by the daemon's own machine, in turn as in
//! the kernel.
//!
//! Scope: conversations that start together on permanent networks. Limitations: connections do not
//! restart when their network fails, so scenarios with failures are refused. Address translation
//! takes no time.

use std::collections::BTreeMap;

use hawser_netem::scenario::{Scenario, Workload};
use hawser_steer::assignment::{Assignment, Measure, Network, RuleAction, Wish};
use hawser_steer::policy::Kind;
use hawser_steer::policy::conditions::{Conditions, NetworkFacts};
use hawser_units::{Instant, NetworkId};

use super::RunError;

/// Networks in turn, counted separately for TCP, UDP and the rest.
pub(super) struct Turns {
    order: Vec<usize>,
    taken: [usize; 3],
}

impl Turns {
    /// Creates the turns of direct mode's default, with unmeasured networks, as at the start.
    ///
    /// # Errors
    /// When a network of the scenario goes down or drops all packets.
    pub(super) fn new(scenario: &Scenario) -> Result<Self, RunError> {
        if scenario.events.iter().any(|event| event.change.state.is_some()) {
            return Err(RunError::DirectEvents);
        }
        let default = Wish {
            when: Conditions::default(),
            way: RuleAction::Spread(Vec::new(), Measure::Capacity),
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

    /// Returns the network of the next conversation, by index in the scenario.
    pub(super) fn next(&mut self, workload: &Workload) -> usize {
        let taken = &mut self.taken[match workload {
            Workload::Tcp { .. } | Workload::Http { .. } => 0,
            Workload::Udp { .. }
            | Workload::Quic { .. }
            | Workload::Video { .. }
            | Workload::Capture { .. } => 1,
            Workload::Ping { .. } => 2,
        }];
        let turn = self.order[*taken % self.order.len()];
        *taken += 1;
        turn
    }
}
