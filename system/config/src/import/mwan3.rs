//! mwan3 as `client.toml`.
//!
//! mwan3 assigns a network to each connection by a policy: the members with the lowest working
//! metric, distributed by weight. With a hub, all packets use all members of the default policy,
//! and members of a higher metric are backups; rules with another policy send their connections
//! past the hub. In direct mode, policies become rules over networks in order of their metric.

use std::collections::{BTreeMap, BTreeSet};

use toml::Value;

use crate::InterfaceName;

use super::ImportMode;
use super::devices::{Devices, net};
use super::tracker::check;
use super::uci::Section;
use super::written::{Written, quoted};

/// Members of a policy by metric, the preferred ones first: devices and their weights.
type Groups = Vec<Vec<(String, u16)>>;

/// Policy of a rule.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Policy {
    groups: Groups,
    /// Set if connections are rejected while no member works.
    strict: bool,
}

impl Policy {
    fn devices(&self) -> impl Iterator<Item = &str> {
        self.groups.iter().flatten().map(|(device, _)| device.as_str())
    }
}

/// Conversion of one configuration.
struct Conversion<'a> {
    sections: Vec<&'a Section>,
    devices: Devices,
    /// Devices of the interfaces that are enabled, by interface.
    enabled: BTreeMap<&'a str, String>,
    mode: ImportMode,
    out: Written,
}

/// Converts the sections; `None` if no interface is enabled.
pub(super) fn convert(sections: &[Section], mode: ImportMode) -> Option<Written> {
    let others = ["network", "firewall", "dhcp", "wireless", "system"];
    let own = sections
        .iter()
        .filter(|section| !others.contains(&section.package.as_str()));
    let mut conversion = Conversion {
        sections: own.collect(),
        devices: Devices::of(sections),
        enabled: BTreeMap::new(),
        mode,
        out: Written::default(),
    };
    conversion.find_interfaces();
    if conversion.enabled.is_empty() {
        return None;
    }
    conversion.write();
    Some(conversion.out)
}

impl<'a> Conversion<'a> {
    fn of_kind(&self, kind: &'static str) -> Vec<&'a Section> {
        let all = self.sections.iter().copied();
        all.filter(|section| section.kind == kind).collect()
    }

    fn find_interfaces(&mut self) {
        for section in self.of_kind("interface") {
            if !section.is_on("enabled") {
                continue;
            }
            let device = self.devices.device(&section.name);
            if is_device(&device) {
                self.enabled.insert(&section.name, device);
            } else {
                self.out.note(format!(
                    "interface {}: {} is not a device name",
                    section.name,
                    quoted(&device)
                ));
            }
        }
    }

    fn write(&mut self) {
        if self.devices.is_empty() {
            self.out.note(
                "names of devices: replaced by the names of mwan3's interfaces; add /etc/config/network after the file to convert them",
            );
        }
        let rules = self.of_kind("rule");
        let default = self.default_policy(&rules);
        let mut used: BTreeSet<String> = BTreeSet::new();
        match &default {
            Some(policy) => used.extend(policy.devices().map(str::to_owned)),
            None => used.extend(self.enabled.values().cloned()),
        }
        self.write_rules(&rules, default.as_ref(), &mut used);
        self.write_default(default.as_ref(), &used);
        self.write_checks(&used);
        self.note_rest();
        let include: Vec<_> = used.iter().map(|device| Value::from(device.as_str())).collect();
        self.out.set("include", include);
        // mwan3 runs on routers.
        self.out.set("forward", true);
    }

    /// Finds the policy of all connections without a rule.
    fn default_policy(&mut self, rules: &[&Section]) -> Option<Policy> {
        let all = rules.iter().filter(|rule| is_for_all(rule));
        let last = all.clone().find(|rule| rule.get("family") != Some("ipv6"));
        let policy = last.or_else(|| rules.iter().find(|rule| is_for_all(rule)));
        let name = policy?.get("use_policy")?;
        let found = self.policy(name);
        if found.is_none() {
            self.out.note(format!(
                "the default policy {}: all networks are used",
                quoted(name)
            ));
        }
        found
    }

    /// Returns a policy by its name; `None` if no member of it is enabled, and for built-in
    /// policies.
    fn policy(&mut self, name: &str) -> Option<Policy> {
        let policies = self.of_kind("policy");
        let policy = policies.into_iter().find(|policy| policy.name == name)?;
        let members = self.of_kind("member");
        let mut by_metric: BTreeMap<u16, Vec<(String, u16)>> = BTreeMap::new();
        for wanted in policy.words("use_member") {
            let Some(member) = members.iter().find(|member| member.name == wanted) else {
                self.out
                    .note(format!("policy {name}: there is no member {}", quoted(wanted)));
                continue;
            };
            let number = |option| member.get(option).and_then(|text| text.parse().ok());
            let interface = member.get("interface").unwrap_or_default();
            let Some(device) = self.enabled.get(interface) else {
                continue;
            };
            let group = by_metric.entry(number("metric").unwrap_or(1)).or_default();
            if !group.iter().any(|(known, _)| known == device) {
                group.push((device.clone(), number("weight").unwrap_or(1).max(1)));
            }
        }
        let mut seen = BTreeSet::new();
        let mut groups: Groups = by_metric.into_values().collect();
        // The interfaces of both families may have one device.
        for group in &mut groups {
            group.retain(|(device, _)| seen.insert(device.clone()));
        }
        groups.retain(|group| !group.is_empty());
        let strict = policy.get("last_resort") != Some("default");
        (!groups.is_empty()).then_some(Policy { groups, strict })
    }

    /// Writes the settings for connections without a rule.
    fn write_default(&mut self, default: Option<&Policy>, used: &BTreeSet<String>) {
        let Some(policy) = default else { return };
        match self.mode {
            ImportMode::Hub => {
                let preferred: BTreeSet<_> = policy.groups[0].iter().map(|(device, _)| device).collect();
                for device in used.iter().filter(|device| !preferred.contains(device)) {
                    self.out.set_network(device, "use", "backup");
                }
                if policy.groups.len() > 2 {
                    self.out.note(
                        "the order of several backups: they are used together while no other network works",
                    );
                }
                if is_weighted(&policy.groups[0]) {
                    self.out
                        .note("weight: with a hub, each packet uses the network that delivers it first");
                }
            }
            ImportMode::Direct => {
                if let [group] = &policy.groups[..]
                    && *used == group.iter().map(|(device, _)| device.clone()).collect()
                {
                    let spread = if is_weighted(group) { "capacity" } else { "even" };
                    self.out.set_direct("spread", spread);
                } else {
                    self.add_rules("all other connections", &[], policy);
                }
                self.write_weights(policy);
            }
        }
    }

    fn write_weights(&mut self, policy: &Policy) {
        for group in policy.groups.iter().filter(|group| is_weighted(group)) {
            for (device, weight) in group {
                self.out.set_network(device, "weight", i64::from(*weight));
            }
        }
    }

    fn write_rules(&mut self, rules: &[&Section], default: Option<&Policy>, used: &mut BTreeSet<String>) {
        let mut is_v6_for_all = false;
        for (index, rule) in rules.iter().enumerate() {
            let (name, policy) = (rule.name.as_str(), rule.get("use_policy").unwrap_or_default());
            if is_for_all(rule) && rule.get("family") != Some("ipv6") {
                let left = rules[index + 1..].iter().filter(|rule| !is_for_all(rule));
                for rule in left {
                    self.out.note(format!(
                        "rule {}: it follows a rule for all connections, so it has no effect",
                        rule.name
                    ));
                }
                return;
            }
            is_v6_for_all |= is_for_all(rule);
            let found = self.policy(policy);
            if found.is_none() {
                self.out.note(format!(
                    "rule {name}: its policy {} has no member that is enabled",
                    quoted(policy)
                ));
                continue;
            }
            let is_default = found.as_ref() == default;
            let is_exception = rules[index + 1..].iter().any(|rule| {
                let mut others = self
                    .policy(rule.get("use_policy").unwrap_or_default())
                    .into_iter();
                !is_for_all(rule) && others.any(|other| Some(&other) != default)
            });
            if is_default && (!is_exception || is_for_all(rule)) {
                continue;
            }
            let Some(keys) = self.flows(rule) else { continue };
            let Some(policy) = found else { continue };
            used.extend(policy.devices().map(str::to_owned));
            match self.mode {
                ImportMode::Hub if is_default => {
                    let via = [("via", Value::from("hub"))];
                    self.out.add_rule(&comment(name), &[&keys[..], &via].concat());
                }
                ImportMode::Hub | ImportMode::Direct => self.add_rules(&comment(name), &keys, &policy),
            }
        }
        if default.is_none() && !is_v6_for_all {
            self.out
                .note("the main routing table for connections that match no rule: they use all networks");
        }
    }

    /// Writes the rules of a policy: one for each group of members, in their order.
    fn add_rules(&mut self, comment: &str, keys: &[(&'static str, Value)], policy: &Policy) {
        let via = match self.mode {
            ImportMode::Hub => vec![("via", Value::from("direct"))],
            ImportMode::Direct => Vec::new(),
        };
        let names = |groups: &[Vec<(String, u16)>]| {
            let devices = groups
                .iter()
                .flatten()
                .map(|(device, _)| Value::from(device.as_str()));
            Value::from(devices.collect::<Vec<_>>())
        };
        let steps: Vec<(Value, Option<&str>)> = match policy.groups.iter().all(|group| group.len() == 1) {
            true => vec![(names(&policy.groups), None)],
            false => policy
                .groups
                .iter()
                .map(|group| {
                    let spread = if is_weighted(group) { "capacity" } else { "even" };
                    (names(std::slice::from_ref(group)), Some(spread))
                })
                .collect(),
        };
        let last = steps.len() - 1;
        for (step, (networks, spread)) in steps.into_iter().enumerate() {
            let mut all = [keys, &via[..]].concat();
            all.push(("network", networks));
            all.extend(spread.map(|spread| ("spread", Value::from(spread))));
            if policy.strict && step == last {
                all.push(("strict", Value::from(true)));
            }
            self.out.add_rule(comment, &all);
        }
    }

    /// Returns the keys that select a rule's connections; `None`, with a note, if the keys cannot
    /// express the selection, because a rule for more connections would differ.
    fn flows(&mut self, rule: &Section) -> Option<Vec<(&'static str, Value)>> {
        match flows(rule, &self.devices) {
            Ok(keys) => Some(keys),
            Err(option) => {
                let value = quoted(rule.get(option).unwrap_or_default());
                self.out.note(format!(
                    "rule {}: its {option} {value} has no counterpart, so the rule is omitted",
                    rule.name
                ));
                None
            }
        }
    }

    fn write_checks(&mut self, used: &BTreeSet<String>) {
        for section in self.of_kind("interface") {
            let Some(device) = self.enabled.get(section.name.as_str()).cloned() else {
                continue;
            };
            if !used.contains(&device) {
                self.out.note(format!(
                    "interface {}: no policy in use names it, so it is not used",
                    section.name
                ));
                continue;
            }
            let Some(check) = check(section, &mut self.out) else {
                continue;
            };
            if !self.out.set_check(&device, check) {
                self.out.note(format!(
                    "interface {}: its check, because {device} has that of another interface",
                    section.name
                ));
            }
        }
    }

    /// Adds notes about unread options.
    fn note_rest(&mut self) {
        for section in self.sections.clone() {
            let read: &[&str] = match section.kind.as_str() {
                "interface" if !section.is_on("enabled") => continue,
                "interface" => INTERFACE,
                "member" => &["interface", "metric", "weight"],
                "policy" => &["use_member", "last_resort"],
                "rule" => RULE,
                "globals" => GLOBALS,
                other => {
                    self.out
                        .note(format!("section {} of type {}", section.name, quoted(other)));
                    continue;
                }
            };
            for (option, _) in &section.options {
                if !read.contains(&option.as_str()) {
                    self.out.note_unused(&section.kind, option, &section.name);
                }
            }
            if section.kind == "rule" && section.is_on("sticky") {
                self.out.note(
                    "sticky: a connection keeps its network; connections of one address may use several",
                );
            }
        }
    }
}

fn comment(name: &str) -> String {
    format!("Rule {}", quoted(name))
}

fn is_weighted(group: &[(String, u16)]) -> bool {
    group.iter().any(|(_, weight)| *weight != group[0].1)
}

/// Returns whether a rule applies to all connections, of one family or both.
fn is_for_all(rule: &Section) -> bool {
    let narrows = ["src_ip", "src_port", "dest_port", "src_iface", "ipset"];
    let is_whole = |option: &str| {
        let value = rule.get(option).unwrap_or_default();
        ["", "0.0.0.0/0", "::/0"].contains(&value)
    };
    let protocol = rule.get("proto").unwrap_or("all");
    protocol == "all" && is_whole("dest_ip") && narrows.iter().all(|option| is_whole(option))
}

/// Returns the keys of a rule, or the option that has no counterpart.
fn flows(rule: &Section, devices: &Devices) -> Result<Vec<(&'static str, Value)>, &'static str> {
    for option in ["src_port", "ipset"] {
        if rule.get(option).is_some_and(|value| !value.is_empty()) {
            return Err(option);
        }
    }
    let mut keys = Vec::new();
    match rule.get("proto").unwrap_or("all") {
        "all" | "" => {}
        protocol @ ("tcp" | "udp" | "icmp") => keys.push(("protocol", Value::from(protocol))),
        "icmpv6" | "ipv6-icmp" => keys.push(("protocol", Value::from("icmp"))),
        _ => return Err("proto"),
    }
    let mut from = subnets(rule, "src_ip")?;
    if let Some(interface) = rule.get("src_iface").filter(|name| !name.is_empty()) {
        from.push(devices.subnet(interface).ok_or("src_iface")?);
    }
    let mut to = subnets(rule, "dest_ip")?;
    if rule.get("family") == Some("ipv6") && to.is_empty() && from.is_empty() {
        // All addresses that are routed in the Internet (RFC 4291 section 2.4).
        to.extend(net("2000::/3"));
    }
    let is_icmp = keys.iter().any(|(_, value)| value.as_str() == Some("icmp"));
    // mwan3 ignores ports of protocols without ports.
    let ports = if is_icmp { Vec::new() } else { ports(rule)? };
    for (name, values) in [("port", ports), ("from", texts(&from)), ("to", texts(&to))] {
        if !values.is_empty() {
            keys.push((name, Value::from(values)));
        }
    }
    Ok(keys)
}

fn texts(nets: &[hawser_units::Net]) -> Vec<Value> {
    let text = |net: &hawser_units::Net| format!("{}/{}", net.first(), net.prefix);
    nets.iter().map(|net| Value::from(text(net))).collect()
}

/// Parses addresses separated by commas or spaces; empty if all are meant.
fn subnets(rule: &Section, option: &'static str) -> Result<Vec<hawser_units::Net>, &'static str> {
    let parts = rule.words(option).flat_map(|word| word.split(','));
    let parts = parts.filter(|part| !part.is_empty());
    let nets: Vec<_> = parts
        .map(|part| net(part).ok_or(option))
        .collect::<Result<_, _>>()?;
    match nets.iter().any(|net| net.prefix == 0) {
        true => Ok(Vec::new()),
        false => Ok(nets),
    }
}

/// Parses ports separated by commas or spaces, and ranges with `:` or `-`.
fn ports(rule: &Section) -> Result<Vec<Value>, &'static str> {
    let parts = rule.words("dest_port").flat_map(|word| word.split(','));
    let parts = parts.filter(|part| !part.is_empty());
    let port = |part: &str| {
        let (first, last) = part.split_once([':', '-']).unwrap_or((part, part));
        let (first, last): (u16, u16) = (first.parse().ok()?, last.parse().ok()?);
        let first = first.max(1);
        match first.cmp(&last) {
            std::cmp::Ordering::Equal => Some(Value::from(i64::from(first))),
            std::cmp::Ordering::Less => Some(Value::from(format!("{first}-{last}"))),
            std::cmp::Ordering::Greater => None,
        }
    };
    parts.map(|part| port(part).ok_or("dest_port")).collect()
}

/// Returns whether that may be the name of a device.
pub(super) fn is_device(name: &str) -> bool {
    name.parse::<InterfaceName>().is_ok()
}

/// Options of an interface that are read, or have no effect here.
const INTERFACE: &[&str] = &[
    "enabled",
    "family",
    "track_ip",
    "track_method",
    "httping_ssl",
    "reliability",
    "count",
    "timeout",
    "interval",
    "failure_interval",
    "recovery_interval",
    "down",
    "up",
    "check_quality",
    "failure_latency",
    "recovery_latency",
    "failure_loss",
    "recovery_loss",
];
/// Options of a rule that are read.
const RULE: &[&str] = &[
    "family",
    "src_ip",
    "src_port",
    "dest_ip",
    "dest_port",
    "src_iface",
    "ipset",
    "proto",
    "use_policy",
    "sticky",
];
/// Global options that Hawser does not need.
const GLOBALS: &[&str] = &["mmx_mask", "rtmon_interval", "local_source", "enabled"];
