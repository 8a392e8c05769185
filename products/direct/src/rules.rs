//! Conversion of the configuration's rules to the kernel's, and their present decisions.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::path::Path;

use hawser_config::{ClientConfig, HubUse, NetworkChoice, RuleConfig, Via};
use hawser_host::product_interfaces::Bypass;
use hawser_linux::direct::{Choice, Intent, Match, Port, Ruleset, SECONDARY, TUNNEL, reason};
use hawser_linux::netlink::{self, NextHop};
use hawser_steer::assignment::{Assignment, Decision, Measure, Network, RuleAction, Wish};
use hawser_steer::names::Set;
use hawser_steer::policy::Selector;
use hawser_steer::policy::conditions::{Conditions, Facts};
use hawser_units::{Instant, Net, NetworkId};

use super::bypass;
use super::networks::Networks;

/// Rules in their order: those of the configuration, then intents, then the default.
pub(super) struct Rules {
    lines: Vec<Line>,
    machine: Assignment,
    /// Names of networks for which the machine was created.
    names: Vec<String>,
    /// Descriptions of all present and former rules, by reason, because flows may be older than the
    /// configuration.
    told: Vec<String>,
    applied: Option<Ruleset>,
    /// Set if the tunnel carries all flows without another rule; programs then have no choice.
    has_hub: bool,
    /// Networks over which new connections bypass the hub; `None` while they use the tunnel.
    bypass: Option<Bypass>,
    /// Set while the machine was created for another `bypass`.
    is_stale: bool,
}

struct Line {
    reason: u8,
    flows: Match,
    /// Set if its control group exists; the kernel rejects rules for missing groups.
    is_possible: bool,
    /// Set if the destination decides whether the tunnel or which of its networks carries a flow.
    by_destination: bool,
}

impl Rules {
    pub(super) fn new(config: &ClientConfig, has_hub: bool) -> Self {
        Self::remembering(config, (Vec::new(), None), has_hub, None)
    }

    /// Updates the rules after the configuration has changed.
    pub(super) fn with(&mut self, config: &ClientConfig) -> Self {
        let told = std::mem::take(&mut self.told);
        let known = (told, self.applied.take());
        Self::remembering(config, known, self.has_hub, self.bypass.take())
    }

    fn remembering(
        config: &ClientConfig,
        (told, applied): (Vec<String>, Option<Ruleset>),
        has_hub: bool,
        bypass: Option<Bypass>,
    ) -> Self {
        let mut rules = Self {
            lines: Vec::new(),
            machine: Assignment::new(wishes(config, &[], has_hub, bypass.as_ref())),
            names: Vec::new(),
            told,
            applied,
            has_hub,
            bypass,
            is_stale: false,
        };
        rules.write_lines(config);
        rules
    }

    fn write_lines(&mut self, config: &ClientConfig) {
        for (index, rule) in config.rules.iter().enumerate() {
            let line = Line {
                reason: self.reason(&rule.to_string()),
                flows: Match {
                    sets: (!rule.domains.is_empty())
                        .then(|| set_name(Set::Rule(index)))
                        .into_iter()
                        .collect(),
                    ..rule.flows.clone()
                },
                is_possible: true,
                by_destination: match rule.via(self.has_hub) {
                    Via::Faster => true,
                    Via::Hub => any_hub(config, self.has_hub) && rule.by_hub().is_none(),
                    Via::Direct => false,
                },
            };
            self.lines.push(line);
        }
        for intent in intents(self.has_hub) {
            let flows = Match {
                intent: Some(intent),
                ..Match::default()
            };
            self.lines.push(Line {
                reason: intent.reason(),
                flows,
                is_possible: true,
                by_destination: false,
            });
        }
        for _ in 0..bypass_lines(self.has_hub) {
            self.lines.push(Line {
                reason: reason::WITHOUT_HUB,
                flows: Match::default(),
                is_possible: true,
                by_destination: false,
            });
        }
        self.lines.push(Line {
            reason: reason::DEFAULT,
            flows: Match::default(),
            is_possible: true,
            by_destination: any_hub(config, self.has_hub),
        });
        self.check_cgroups();
    }

    /// Returns the number that flows store for the rule. If all numbers are used, rules share the
    /// last one.
    fn reason(&mut self, told: &str) -> u8 {
        let at = self
            .told
            .iter()
            .position(|known| known == told)
            .unwrap_or_else(|| {
                self.told.push(told.to_owned());
                self.told.len() - 1
            });
        u8::try_from(at + usize::from(reason::FIRST_RULE)).unwrap_or(u8::MAX)
    }

    /// Returns the text about why a flow uses its network.
    pub(super) fn why(&self, reason: u8, config: &ClientConfig) -> String {
        match reason {
            reason::PROGRAM => "its program selected this network".to_owned(),
            reason::CAME_IN => "the connection arrived over this network".to_owned(),
            // The mover has the exact text unless the process has restarted.
            reason::MOVED => "it was moved here".to_owned(),
            reason::NAMED => "this network's resolver gave the private address".to_owned(),
            reason::MULTIPATH => "it is a subflow of an MPTCP connection, which uses all networks".to_owned(),
            reason::WITHOUT_HUB => "it began while no hub answered (without_hub = \"direct\")".to_owned(),
            reason::DEFAULT if self.has_hub => "no rule matches it".to_owned(),
            reason::DEFAULT => format!(
                "no rule matches it, and flows are distributed {}",
                how(config.direct.spread.0)
            ),
            reason::FIRST_RULE.. => {
                let told = self.told.get(usize::from(reason - reason::FIRST_RULE));
                format!(
                    "the rule for {}",
                    told.map_or("a rule that was removed", String::as_str)
                )
            }
            _ => {
                let intent = Intent::ALL.into_iter().find(|intent| intent.reason() == reason);
                format!(
                    "its program's intent is {}",
                    intent.map_or("unknown", Intent::name)
                )
            }
        }
    }

    /// Recreates the machine when names have appeared that rules may contain.
    pub(super) fn know(&mut self, networks: &Networks, config: &ClientConfig) {
        let names: Vec<_> = networks.all().map(|(_, known)| known.name.clone()).collect();
        if names != self.names || std::mem::take(&mut self.is_stale) {
            let numbered: Vec<_> = networks
                .all()
                .map(|(number, known)| (number, known.name.as_str()))
                .collect();
            let wishes = wishes(config, &numbered, self.has_hub, self.bypass.as_ref());
            self.machine = Assignment::new(wishes);
            self.names = names;
        }
    }

    /// Returns whether new connections bypass the hub.
    pub(super) fn bypasses(&self) -> bool {
        self.bypass.is_some()
    }

    /// Sends new connections past the hub (`Some`), or through the tunnel again.
    pub(super) fn handle_bypass(&mut self, bypass: Option<Bypass>) {
        if self.bypass != bypass {
            self.bypass = bypass;
            self.is_stale = true;
        }
    }

    pub(super) fn handle_networks(&mut self, networks: BTreeMap<NetworkId, Network>, now: Instant) {
        self.machine.handle_networks(networks, now);
    }

    /// Returns the networks that may carry new flows, and the tunnel.
    pub(super) fn networks(&self) -> &BTreeMap<NetworkId, Network> {
        self.machine.networks()
    }

    pub(super) fn handle_facts(&mut self, facts: Facts) {
        self.machine.handle_facts(facts);
    }

    /// Yields the configuration's rules, each with its route, and whether it applies at this
    /// moment.
    pub(super) fn holding<'a>(
        &'a self,
        config: &'a ClientConfig,
    ) -> impl Iterator<Item = (&'a RuleConfig, String, bool)> + 'a {
        let rules = config.rules.iter().zip(self.machine.holding());
        rules.map(|(rule, holds)| (rule, route_text(rule, self.has_hub), holds))
    }

    pub(super) fn handle_timeout(&mut self, now: Instant) {
        self.machine.handle_timeout(now);
    }

    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        self.machine.poll_timeout()
    }

    /// Checks which control groups exist, since they are created and removed with their services.
    pub(super) fn check_cgroups(&mut self) {
        let root = Path::new("/sys/fs/cgroup");
        // nft supports groups only in the unified hierarchy, without version 1.
        let is_unified = root.join("cgroup.controllers").exists();
        for line in &mut self.lines {
            if let Some(cgroup) = &line.flows.cgroup {
                line.is_possible = is_unified && root.join(cgroup).is_dir();
            }
        }
    }

    /// Treats all control groups as absent until the next check.
    pub(super) fn leave_out_cgroups(&mut self) {
        for line in &mut self.lines {
            line.is_possible &= line.flows.cgroup.is_none();
        }
    }

    /// Returns the ruleset that the kernel should have now.
    pub(super) fn ruleset(&self, config: &ClientConfig, networks: &Networks, has_names: bool) -> Ruleset {
        let decisions = self.machine.decisions().iter().zip(&self.lines);
        let numbers = |turns: &[NetworkId]| turns.iter().filter_map(|id| u8::try_from(id.0).ok()).collect();
        let choices = |(decision, line): (&Decision, &Line)| {
            let choice = Choice {
                reason: line.reason,
                flows: line.flows.clone(),
                turns: [numbers(&decision.turns[0]), numbers(&decision.turns[1])],
                strict: decision.strict,
            };
            if line.by_destination {
                by_destination(choice)
            } else {
                vec![choice]
            }
        };
        let is_possible = |(_, line): &(&Decision, &Line)| line.is_possible;
        let own = decisions.clone().take(config.rules.len()).filter(is_possible);
        let others = decisions.skip(config.rules.len()).filter(is_possible);
        let named = networks.all().filter(|(_, known)| has_names && known.is_alive());
        let named = named.filter_map(|(number, known)| Some(named_by(number, known.network.as_ref()?)));
        Ruleset {
            interface: config.interface.0.clone(),
            own: config.direct.own().into(),
            networks: networks
                .present()
                .map(|(number, network)| port(number, network, networks.is_shut(number)))
                .collect(),
            choices: own
                .flat_map(choices)
                .chain(named)
                .chain(others.flat_map(choices))
                .collect(),
            lans: config.forward.lans(),
        }
    }

    /// Returns for each rule of the configuration the networks that resolve its names, and whether
    /// no others may. With a hub, only the hub resolves them: a network's answers would decide
    /// which flows leave the tunnel.
    pub(super) fn networks_of_rules(&self, config: &ClientConfig) -> Vec<(Vec<NetworkId>, bool)> {
        let decisions = self.machine.decisions().iter().take(config.rules.len());
        decisions
            .map(|decision| {
                if self.has_hub {
                    return (vec![THROUGH_HUB], decision.strict);
                }
                let mut all = decision.turns.concat();
                all.sort_unstable();
                all.dedup();
                (all, decision.strict)
            })
            .collect()
    }

    /// Returns the reasons of flows whose route depends on the destination, and all networks that
    /// may be that route.
    pub(super) fn by_destination(&self) -> (Vec<u8>, BTreeSet<NetworkId>) {
        let decisions = self.machine.decisions().iter().zip(&self.lines);
        let (mut reasons, mut among) = (Vec::new(), BTreeSet::new());
        for (decision, line) in decisions.filter(|(_, line)| line.by_destination) {
            reasons.push(line.reason);
            among.extend(decision.turns.iter().flatten());
        }
        (reasons, among)
    }

    /// Returns the ruleset that the kernel accepted last.
    pub(super) fn applied(&self) -> Option<&Ruleset> {
        self.applied.as_ref()
    }

    /// Returns whether the kernel has this set.
    pub(super) fn has_set(&self, set: &str) -> bool {
        self.applied.as_ref().is_some_and(|ruleset| ruleset.has_set(set))
    }

    pub(super) fn set_applied(&mut self, ruleset: Ruleset) {
        self.applied = Some(ruleset);
    }
}

/// Returns the kernel's name of a set.
pub(super) fn set_name(set: Set) -> String {
    match set {
        Set::Rule(index) => format!("names_rule_{index}"),
        Set::Network(id) => format!("names_network_{}", id.0),
    }
}

/// Returns the name of the set of destinations with a shorter delay over this network, or through
/// the secondary hub, than through the hub in use.
pub(super) fn past_set(number: u8) -> String {
    format!("past_{number}")
}

/// Returns a choice for each network and the secondary hub with its faster destinations, and one
/// for all others: the hub in use, or the networks in turn without a hub.
fn by_destination(choice: Choice) -> Vec<Choice> {
    let only = |number: u8| {
        let turns = choice.turns.each_ref();
        turns.map(|turns| turns.contains(&number).then_some(number).into_iter().collect())
    };
    let mut numbers = choice.turns.concat();
    numbers.sort_unstable();
    numbers.dedup();
    let networks = numbers.iter().filter(|number| **number != TUNNEL);
    let past = networks.map(|number| {
        let mut flows = choice.flows.clone();
        flows.sets.push(past_set(*number));
        Choice {
            flows,
            turns: only(*number),
            ..choice.clone()
        }
    });
    let mut choices: Vec<_> = past.collect();
    let [v4, v6] = only(TUNNEL);
    let [direct_v4, direct_v6] = choice.turns.clone();
    choices.push(Choice {
        turns: [
            if v4.is_empty() { direct_v4 } else { v4 },
            if v6.is_empty() { direct_v6 } else { v6 },
        ],
        ..choice
    });
    choices
}

/// Returns the choice for flows to private addresses from a network's resolver.
fn named_by(number: u8, network: &netlink::Network) -> Choice {
    let turns = |ipv6| network.carries(ipv6).then_some(number).into_iter().collect();
    Choice {
        reason: reason::NAMED,
        flows: Match {
            sets: vec![set_name(Set::Network(NetworkId(u32::from(number))))],
            ..Match::default()
        },
        turns: [turns(false), turns(true)],
        strict: false,
    }
}

/// Converts a network to a port. A disabled network has no source address: no program can choose
/// it, and its earlier flows stay distinguishable.
pub(super) fn port(number: u8, network: &netlink::Network, is_shut: bool) -> Port {
    let sources = [(network.v4, false), (network.v6, true)];
    Port {
        number,
        device: network.name.clone(),
        addresses: sources
            .into_iter()
            .filter(|_| !is_shut)
            .filter_map(|(hop, ipv6)| source(network, hop?, ipv6))
            .collect(),
    }
}

/// Returns the source address of flows: one of the gateway's subnet, otherwise a global one,
/// otherwise the first.
fn source(network: &netlink::Network, hop: NextHop, ipv6: bool) -> Option<IpAddr> {
    let own = || {
        network
            .addresses
            .iter()
            .filter(|(address, _)| address.is_ipv6() == ipv6)
    };
    let near = own().find(|(address, prefix)| match hop {
        NextHop::Gateway(gateway) => Net::new(*address, *prefix).contains(gateway),
        NextHop::Device => false,
    });
    let is_global = |address: &IpAddr| !matches!(address, IpAddr::V6(v6) if v6.is_unique_local());
    let global = || own().find(|(address, _)| is_global(address));
    near.or_else(global)
        .or_else(|| own().next())
        .map(|(address, _)| *address)
}

fn how(measure: Measure) -> &'static str {
    match measure {
        Measure::Even => "evenly",
        Measure::Capacity => "by capacity",
        Measure::RoundTrip => "by round trip",
        Measure::Cost => "by cost",
    }
}

/// Returns the text about a rule's route.
fn route_text(rule: &RuleConfig, has_hub: bool) -> String {
    let names: Vec<_> = rule.networks.iter().map(ToString::to_string).collect();
    let mut way = match rule.via(has_hub) {
        Via::Hub => return format!("through {}", rule.hub.as_ref().map_or("the hub", |hub| &hub.0)),
        Via::Faster => "through the hub or outside the tunnel, whichever is faster",
        Via::Direct if has_hub => "outside the tunnel",
        Via::Direct => "",
    }
    .to_owned();
    if !names.is_empty() {
        way += &format!(" over {}", names.join(", "));
    }
    if let Some(spread) = rule.spread {
        way += &format!(" distributed {}", how(spread.0));
    }
    way.trim_start().to_owned()
}

/// Returns the rules of the machine, with names converted to networks.
fn wishes(config: &ClientConfig, names: &[(u8, &str)], has_hub: bool, bypass: Option<&Bypass>) -> Vec<Wish> {
    let always = |way| Wish {
        when: Conditions::default(),
        way,
        strict: false,
    };
    let rules = config.rules.iter().map(|rule| Wish {
        when: rule.when.clone(),
        way: match rule.via(has_hub) {
            Via::Hub if rule.by_hub().is_some() => through_hub_in_use(),
            // Later rules apply to its flows, unless it names the hub itself.
            Via::Hub if bypass.is_some() && !rule.is_via(Via::Hub) => RuleAction::Prefer(Vec::new()),
            Via::Hub => through_hub(config, has_hub),
            Via::Direct => over_networks(rule, config, names, has_hub),
            Via::Faster => {
                let mut among = named_networks(rule, names);
                if bypass.is_none() {
                    among.extend(hubs(config, has_hub));
                }
                RuleAction::Spread(among, Measure::Even)
            }
        },
        strict: rule.strict && (bypass.is_none() || rule.via(has_hub) != Via::Hub),
    });
    let without_hub = bypass::wishes(bypass, names, config.direct.spread.0);
    let spread = |measure| RuleAction::Spread(Vec::new(), measure);
    let intents = intents(has_hub).map(|intent| match intent {
        Intent::Bulk => spread(Measure::Capacity),
        // Here a flow has one network and copies need a hub, so redundant flows use the network
        // with the shortest delay.
        Intent::Interactive | Intent::Realtime | Intent::Redundant => spread(Measure::RoundTrip),
        Intent::Cheap => spread(Measure::Cost),
    });
    let default = if has_hub {
        through_hub(config, has_hub)
    } else {
        spread(config.direct.spread.0)
    };
    rules
        .chain(intents.map(always))
        .chain(without_hub.into_iter().take(bypass_lines(has_hub)))
        .chain([always(default)])
        .collect()
}

/// Returns the number of rules for connections that bypass the hub.
fn bypass_lines(has_hub: bool) -> usize {
    if has_hub { bypass::LINES } else { 0 }
}

/// Yields the intents that programs may choose: none with a hub.
fn intents(has_hub: bool) -> impl Iterator<Item = Intent> {
    Intent::ALL.into_iter().filter(move |_| !has_hub)
}

/// Id of the tunnel in the machine. Source: the number of the tunnel in marks.
pub(super) const THROUGH_HUB: NetworkId = NetworkId(TUNNEL as u32);
/// Id of the tunnel to a secondary hub in the machine. Source: the number of that tunnel in marks.
pub(super) const THROUGH_SECONDARY: NetworkId = NetworkId(SECONDARY as u32);

/// Returns whether the destination decides about the hub of a flow.
pub(super) fn any_hub(config: &ClientConfig, has_hub: bool) -> bool {
    has_hub && config.hub == HubUse::Faster
}

/// Yields the hubs that flows without a rule may use.
fn hubs(config: &ClientConfig, has_hub: bool) -> impl Iterator<Item = Selector> {
    let further = any_hub(config, has_hub).then_some(THROUGH_SECONDARY);
    [THROUGH_HUB].into_iter().chain(further).map(Selector::Network)
}

fn through_hub(config: &ClientConfig, has_hub: bool) -> RuleAction {
    RuleAction::Spread(hubs(config, has_hub).collect(), Measure::Even)
}

fn through_hub_in_use() -> RuleAction {
    RuleAction::Prefer(vec![Selector::Network(THROUGH_HUB)])
}

/// Returns the networks of a rule with a hub: all networks if it names none.
fn named_networks(rule: &RuleConfig, names: &[(u8, &str)]) -> Vec<Selector> {
    if rule.networks.is_empty() {
        // The numbers do not include the tunnel.
        let all = names.iter();
        all.map(|(number, _)| Selector::Network(NetworkId(u32::from(*number))))
            .collect()
    } else {
        selectors(&rule.networks, names)
    }
}

fn over_networks(
    rule: &RuleConfig,
    config: &ClientConfig,
    names: &[(u8, &str)],
    has_hub: bool,
) -> RuleAction {
    let is_for_all = rule.networks.is_empty();
    let among = if has_hub {
        named_networks(rule, names)
    } else {
        selectors(&rule.networks, names)
    };
    let spread = rule.spread.or(is_for_all.then_some(config.direct.spread));
    match spread {
        // A rule whose networks have never been present applies to none, rather than to all.
        Some(measure) if !among.is_empty() || is_for_all && !has_hub => RuleAction::Spread(among, measure.0),
        _ => RuleAction::Prefer(among),
    }
}

fn selectors(choices: &[NetworkChoice], names: &[(u8, &str)]) -> Vec<Selector> {
    let mut found = Vec::new();
    for choice in choices {
        match choice {
            NetworkChoice::Kind(kind) => found.push(Selector::Kind(*kind)),
            NetworkChoice::Name(pattern) => {
                let fitting = names.iter().filter(|(_, name)| pattern.matches(name));
                found.extend(fitting.map(|(number, _)| Selector::Network(NetworkId(u32::from(*number)))));
            }
        }
    }
    found
}
