//! Deadlines in `client.toml`: `deadline = "150ms"` of a `[[rule]]`, for packets in the tunnel.

use hawser_linux::direct::Protocol;
use hawser_steer::policy::conditions::Conditions;
use hawser_wire::deadline::{DeadlineRule, MAX_DEADLINE_RULES};
use hawser_wire::inner::protocol;

use super::{Deadline, RuleConfig, Via};

impl RuleConfig {
    /// Returns the key that a rule with a deadline does not support, with the remedy.
    pub(crate) fn unfit_for_deadline(&self) -> Option<&'static str> {
        self.deadline?;
        let is_elsewhere = self.is_via(Via::Direct) || self.is_via(Via::Faster) || self.hub.is_some();
        if is_elsewhere || !self.networks.is_empty() || self.spread.is_some() || self.strict {
            return Some(
                "deadline applies to packets in the tunnel, which uses all networks: remove network, spread, strict, hub and via, or the deadline",
            );
        }
        let has_conditions = self.when != Conditions::default();
        if has_conditions || !self.domains.is_empty() || self.flows.cgroup.is_some() {
            return Some(
                "a rule with a deadline supports the conditions protocol, port, from, to and dscp: remove when, domain and cgroup, or the deadline",
            );
        }
        if self.flows.protocol == Some(Protocol::Tcp) {
            return Some(
                "TCP needs late packets too, so a deadline applies to other protocols only: write protocol = \"udp\"",
            );
        }
        let is_long = self.deadline_rules().count() > usize::from(MAX_DEADLINE_RULES);
        is_long.then_some(
            "a rule with a deadline has at most 64 combinations of port, from and to: use fewer, or wider ranges",
        )
    }

    /// Yields a deadline rule for each combination of the rule's values.
    pub(crate) fn deadline_rules(&self) -> impl Iterator<Item = DeadlineRule> {
        fn each<T: Copy>(all: &[T]) -> Vec<Option<T>> {
            match all {
                [] => vec![None],
                all => all.iter().copied().map(Some).collect(),
            }
        }
        let flows = &self.flows;
        let protocols: &[u8] = match flows.protocol {
            None => &[],
            Some(Protocol::Tcp) => &[protocol::TCP],
            Some(Protocol::Udp) => &[protocol::UDP],
            Some(Protocol::Icmp) => &[protocol::ICMP, protocol::ICMPV6],
        };
        let mut rules = Vec::new();
        for protocol in each(protocols) {
            for ports in each(&flows.ports) {
                for near in each(&flows.from) {
                    rules.extend(each(&flows.to).into_iter().map(|far| DeadlineRule {
                        protocol,
                        ports,
                        near,
                        far,
                        dscp: flows.dscp,
                        deadline: self.deadline.map(Deadline::time),
                    }));
                }
            }
        }
        rules.into_iter()
    }
}
