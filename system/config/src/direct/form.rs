//! Form of TCP connections in `client.toml`: `tcp = "stream"` or `"end-to-end"` of a `[[rule]]`.

use hawser_linux::direct::Protocol;
use hawser_proto::stream::{Form, FormRule, MAX_FORM_RULES};
use hawser_steer::policy::conditions::Conditions;

use super::{RuleConfig, Via};

impl RuleConfig {
    /// Returns the key that a rule with `tcp` does not support, with the remedy.
    pub(crate) fn unfit_for_form(&self) -> Option<&'static str> {
        self.tcp?;
        let is_elsewhere = self.is_via(Via::Direct) || self.is_via(Via::Faster) || self.hub.is_some();
        if is_elsewhere || !self.networks.is_empty() || self.spread.is_some() || self.strict {
            return Some(
                "tcp applies to connections in the tunnel to the hub in use, which uses all networks: remove network, spread, strict, hub and via, or tcp",
            );
        }
        let has_conditions = self.when != Conditions::default();
        if has_conditions || !self.domains.is_empty() || self.flows.cgroup.is_some() {
            return Some(
                "a rule with tcp supports the conditions port, to and dscp: remove when, domain and cgroup, or tcp",
            );
        }
        if !self.flows.from.is_empty() {
            return Some(
                "a rule with tcp does not support from: machines behind this one have its address in the tunnel, and connections of those that keep their own (subnets) are end-to-end: remove from, or tcp",
            );
        }
        if self
            .flows
            .protocol
            .is_some_and(|protocol| protocol != Protocol::Tcp)
        {
            return Some("tcp applies to TCP only: write protocol = \"tcp\", or remove protocol");
        }
        (self.form_rules().len() > MAX_FORM_RULES).then_some(
            "a rule with tcp has at most 64 combinations of port and to: use fewer, or wider ranges",
        )
    }

    /// Returns a form rule for each combination of the rule's values.
    pub(crate) fn form_rules(&self) -> Vec<FormRule> {
        let flows = &self.flows;
        let each_port = match &flows.ports[..] {
            [] => vec![None],
            ports => ports.iter().copied().map(Some).collect(),
        };
        let each_net = match &flows.to[..] {
            [] => vec![None],
            nets => nets.iter().copied().map(Some).collect(),
        };
        let of_port = |ports: &Option<(u16, u16)>| {
            let ports = *ports;
            each_net.iter().map(move |to| FormRule {
                ports,
                to: *to,
                dscp: flows.dscp,
                form: self.tcp.map(Form::from),
            })
        };
        each_port.iter().flat_map(of_port).collect()
    }
}
