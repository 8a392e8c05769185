//! Routing rules of other programs that match traffic before the tunnel's rules.

use super::Desired;
use super::near::{is_everything, uplinks};
use super::{LOCAL_TABLE, MAIN_TABLE, Object, Observed, ObservedRule};

/// Effect of another program's rule on traffic for the tunnel.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Capture {
    /// Sends all of it out of an interface that is not a tunnel, unencrypted.
    InClear,
    /// Sends all of it into another VPN, whose own packets use the tunnel: the VPNs are nested.
    Nested {
        /// The interface of the other VPN.
        device: String,
    },
}

/// Returns the first rule that matches all traffic before the last of our rules, with its effect.
/// `InClear` takes precedence over `Nested`.
pub(crate) fn capture<'a>(
    desired: &Desired,
    observed: &'a Observed,
    ipv6: bool,
) -> Option<(&'a ObservedRule, Capture)> {
    let rules = desired.objects().filter_map(|(object, _)| {
        if let Object::Rule(rule) = object {
            Some(*rule)
        } else {
            None
        }
    });
    // The last rule catches the tunnel's traffic; rules by mark and source come before it.
    let last = rules.filter(|rule| rule.ipv6 == ipv6 && rule.is_inverted).max()?;
    let at = desired.at_present_priority(last);
    let of_family = |found: &&ObservedRule| found.rule.ipv6 == ipv6;
    let all: Vec<_> = observed.rules.iter().filter(of_family).collect();
    let end = all
        .iter()
        .position(|found| found.is_ours && found.rule == at)
        .unwrap_or_else(|| {
            all.iter()
                .filter(|found| found.rule.priority <= at.priority)
                .count()
        });
    let before = all.into_iter().take(end).filter(|found| !found.is_ours);
    let found: Vec<_> = before
        .filter_map(|found| Some((found, effect(desired, observed, found)?)))
        .collect();
    let in_clear = found.iter().find(|(_, effect)| *effect == Capture::InClear);
    in_clear.or(found.first()).cloned()
}

/// Returns the effect of a rule on traffic that matches all its conditions.
fn effect(desired: &Desired, observed: &Observed, found: &ObservedRule) -> Option<Capture> {
    let rule = &found.rule;
    let is_for_all = !found.is_selective
        && rule.source.is_none()
        && rule.ports.is_none()
        && (rule.mark.is_none() || rule.is_inverted);
    if !found.is_lookup || !is_for_all || rule.table == LOCAL_TABLE || desired.owns(rule.table) {
        return None;
    }
    let device = everything(observed, rule.table, rule.ipv6, rule.suppress)?;
    let is_tunnel = observed.links.get(&device).is_some_and(|link| link.is_tunnel);
    if is_tunnel && !uplinks(observed).contains(&device) {
        let device = observed.name(Some(device)).to_owned();
        Some(Capture::Nested { device })
    } else {
        Some(Capture::InClear)
    }
}

/// Returns the interface to which a table sends all traffic.
fn everything(observed: &Observed, table: u32, ipv6: bool, suppress: Option<u32>) -> Option<u32> {
    let mut routes = observed.routes.iter().filter(|route| {
        let prefix = u32::from(route.key.to.prefix);
        route.key.table == table
            && route.key.to.address.is_ipv6() == ipv6
            && route.hop.is_unicast()
            && is_everything(route.key.to)
            && suppress.is_none_or(|suppress| prefix > suppress)
    });
    routes.find_map(|route| route.hop.device)
}

/// Returns the interface of another VPN that takes all traffic of this machine: by its own rule and
/// table, or by routes to both halves of the address space in the main table.
pub(crate) fn full_tunnel(observed: &Observed, own: &str) -> Option<String> {
    let uplinks = uplinks(observed);
    let is_foreign = |device: &u32| {
        let link = observed.links.get(device);
        link.is_some_and(|link| link.is_tunnel && link.name != own) && !uplinks.contains(device)
    };
    let by_rule = observed.rules.iter().filter(|found| {
        let is_for_all = !found.is_selective && (found.rule.mark.is_none() || found.rule.is_inverted);
        found.is_lookup && is_for_all && !found.is_ours && found.rule.table != LOCAL_TABLE
    });
    let tables = by_rule.map(|found| (found.rule.table, found.rule.ipv6));
    let mut found = tables.filter_map(|(table, ipv6)| {
        let suppress = (table == MAIN_TABLE).then_some(0);
        everything(observed, table, ipv6, suppress)
    });
    let device = found.find(is_foreign)?;
    Some(observed.name(Some(device)).to_owned())
}
