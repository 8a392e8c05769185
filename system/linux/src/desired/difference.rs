//! Differences between the desired and the observed state, and the repair of each.

use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;

use super::capture::{Capture, capture};
use super::near::near;
use super::{
    Desired, Hop, Object, Observed, ObservedRoute, RouteKey, Rule, STRICT_FOR_ALL, Setting, Wanted,
    has_room_before,
};
use crate::mptcp::Endpoint;

/// A difference between desired and observed state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Difference {
    /// Object that differs.
    pub(crate) object: Object,
    /// Kind of the difference.
    pub(crate) cause: Cause,
    /// Repair of the difference.
    pub(crate) repair: Repair,
    /// Set if traffic may leave outside the tunnel until it is repaired.
    pub(crate) is_guard: bool,
}

/// Kind of a difference.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Cause {
    /// Missing object.
    Missing,
    /// Object with another value.
    Changed,
    /// Undesired object in a table owned by Hawser.
    Added,
    /// A rule of another program matches all traffic first.
    Captured {
        /// The rule's priority.
        priority: u32,
    },
    /// The change is Hawser's own: a copied route appeared or disappeared, or rules were moved.
    Own,
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Missing => f.write_str("another program removed it"),
            Self::Changed => f.write_str("another program changed it"),
            Self::Added => f.write_str("another program added it"),
            Self::Captured { priority } => {
                write!(
                    f,
                    "a rule of another program at priority {priority} matches all traffic first"
                )
            }
            Self::Own => f.write_str("the networks changed"),
        }
    }
}

/// Repair of an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Repair {
    /// Installs a table of nftables.
    Install(String),
    /// Writes a setting.
    Write(String, String),
    /// Sets an interface up.
    Up(String),
    /// Sets the MTU of an interface. Units: bytes.
    SetMtu(String, u32),
    /// Makes an interface a port of the bridge with this index.
    Attach(String, u32),
    /// Adds an address.
    AddAddress(u32, IpAddr, u8),
    /// Adds a route, or replaces the one with the same key.
    ReplaceRoute(RouteKey, Hop),
    /// Removes a route by its number.
    RemoveRoute(usize),
    /// Adds a rule.
    AddRule(Rule),
    /// Removes a rule by its number.
    RemoveRule(usize),
    /// Moves all rules before a priority.
    MoveBefore(u32),
    /// Adds an endpoint of MPTCP, or replaces the one with the same address.
    PutEndpoint(Endpoint),
    /// Raises MPTCP's limit of subflows.
    RaiseSubflows(u32),
    /// Sets the resolvers of an interface again, by its name.
    SetResolvers(String),
}

/// Returns all differences: first those that let traffic bypass the tunnel, then in the order in
/// which they can be repaired.
pub(crate) fn difference(desired: &Desired, observed: &Observed) -> Vec<Difference> {
    let mut found = Vec::new();
    for (object, wanted) in desired.objects() {
        if let Some((cause, repair)) = one(desired, observed, object, wanted) {
            found.push((object.clone(), cause, repair));
        }
    }
    captured(desired, observed, &mut found);
    stale_rules(desired, observed, &mut found);
    routes(desired, observed, &mut found);
    let mut found: Vec<_> = found
        .into_iter()
        .map(|(object, cause, repair)| Difference {
            is_guard: desired.is_guard(&object),
            object,
            cause,
            repair,
        })
        .collect();
    found.sort_by_key(|difference| (!difference.is_guard, rank(&difference.repair)));
    found
}

type Found = (Object, Cause, Repair);

/// Returns the difference of one object other than a route.
fn one(desired: &Desired, observed: &Observed, object: &Object, wanted: &Wanted) -> Option<(Cause, Repair)> {
    match (object, wanted) {
        (Object::Table(name), Wanted::Table { printed, .. }) => {
            let tables = observed.tables.as_ref()?;
            let cause = match tables.get(name) {
                None => Cause::Missing,
                Some(now) if !printed.is_empty() && now != printed => Cause::Changed,
                Some(_) => return None,
            };
            Some((cause, Repair::Install(name.clone())))
        }
        (Object::Setting(key), Wanted::Setting(Setting::Is(value))) => {
            let now = observed.settings.get(key)?;
            let repair = || Repair::Write(key.clone(), value.clone());
            (now != value).then(|| (Cause::Changed, repair()))
        }
        (Object::Setting(key), Wanted::Setting(Setting::NotStrict)) => {
            let read = |key: &str| observed.settings.get(key)?.parse::<u8>().ok();
            let effective = read(key)?.max(read(STRICT_FOR_ALL).unwrap_or(0));
            let repair = || Repair::Write(key.clone(), LOOSE.to_owned());
            (effective == STRICT).then(|| (Cause::Changed, repair()))
        }
        (Object::Link(name), Wanted::Up) => {
            let index = observed.index(name)?;
            (!observed.is_up(index)).then(|| (Cause::Changed, Repair::Up(name.clone())))
        }
        (Object::Address(name, address), Wanted::Prefix(prefix)) => {
            let index = observed.index(name)?;
            if observed.addresses.contains(&(index, *address, *prefix)) {
                return None;
            }
            // An interface that is down has no IPv6 addresses.
            let is_possible = observed.is_up(index) || !address.is_ipv6();
            is_possible.then_some((Cause::Missing, Repair::AddAddress(index, *address, *prefix)))
        }
        (Object::Mtu(name), Wanted::Mtu(mtu)) => {
            let link = observed.link(name)?;
            (link.mtu != *mtu).then(|| (Cause::Changed, Repair::SetMtu(name.clone(), *mtu)))
        }
        (Object::Port(name), Wanted::Bridge(bridge)) => {
            let link = observed.link(name)?;
            // A removed bridge is created again by its owner.
            let index = observed.index(bridge)?;
            let cause = match link.controller {
                Some(controller) if controller == index => return None,
                Some(_) => Cause::Changed,
                None => Cause::Missing,
            };
            Some((cause, Repair::Attach(name.clone(), index)))
        }
        (Object::Endpoint(address), Wanted::Endpoint(endpoint)) => {
            let endpoints = &observed.multipath.as_ref()?.endpoints;
            let cause = match endpoints.iter().find(|there| there.address == *address) {
                None => Cause::Missing,
                Some(there) if there != endpoint => Cause::Changed,
                Some(_) => return None,
            };
            Some((cause, Repair::PutEndpoint(*endpoint)))
        }
        (Object::Subflows, Wanted::AtLeast(least)) => {
            let now = observed.multipath.as_ref()?.subflows;
            (now < *least).then_some((Cause::Changed, Repair::RaiseSubflows(*least)))
        }
        (Object::Resolvers(name), Wanted::Resolvers { recorded, .. }) => {
            let now = observed.resolvers.get(name).map_or("", String::as_str);
            let cause = if now.is_empty() {
                Cause::Missing
            } else {
                Cause::Changed
            };
            let is_known = !recorded.is_empty() && observed.index(name).is_some();
            (is_known && now != recorded).then(|| (cause, Repair::SetResolvers(name.clone())))
        }
        (Object::Rule(rule), _) => {
            let wanted = desired.at_present_priority(*rule);
            let mut rules = observed.rules.iter();
            if rules.any(|found| found.is_lookup && !found.is_selective && found.rule == wanted) {
                return None;
            }
            let is_elsewhere = observed
                .rules
                .iter()
                .any(|found| found.is_ours && found.rule.at(wanted.priority) == wanted);
            let cause = if is_elsewhere { Cause::Own } else { Cause::Missing };
            Some((cause, Repair::AddRule(wanted)))
        }
        _ => None,
    }
}

/// Finds rules of other programs before ours that send all traffic out unencrypted.
fn captured(desired: &Desired, observed: &Observed, found: &mut Vec<Found>) {
    let before = found.len();
    for ipv6 in [false, true] {
        let Some((by, Capture::InClear)) = capture(desired, observed, ipv6) else {
            continue;
        };
        let priority = by.rule.priority;
        let cause = Cause::Captured { priority };
        let repair = if has_room_before(priority) {
            Repair::MoveBefore(priority)
        } else {
            Repair::RemoveRule(by.id)
        };
        let is_known = found[before..].iter().any(|(_, _, known)| *known == repair);
        if !is_known {
            found.push((Object::Rule(by.rule), cause, repair));
        }
    }
}

/// Finds rules of Hawser at old priorities, once they exist at the right ones.
///
/// Two desired rules may differ only in their priorities: neither makes the other stale.
fn stale_rules(desired: &Desired, observed: &Observed, found: &mut Vec<Found>) {
    for (object, _) in desired.objects() {
        let Object::Rule(rule) = object else { continue };
        let wanted = desired.at_present_priority(*rule);
        let is_there = |priority: u32| move |rule: &Rule| *rule == wanted.at(priority);
        if !observed
            .rules
            .iter()
            .any(|there| is_there(wanted.priority)(&there.rule))
        {
            continue;
        }
        let stale = observed.rules.iter().filter(|there| {
            there.is_ours && there.rule.at(wanted.priority) == wanted && !desired.has_rule(there.rule)
        });
        found.extend(stale.map(|there| (object.clone(), Cause::Own, Repair::RemoveRule(there.id))));
    }
}

/// Finds routes that are missing, have another next hop, or were added to our tables by other
/// programs.
fn routes(desired: &Desired, observed: &Observed, found: &mut Vec<Found>) {
    let mut wanted: BTreeMap<RouteKey, (Hop, bool)> = BTreeMap::new();
    for (object, value) in desired.objects() {
        if let (Object::Route(key), Wanted::Route(hop)) = (object, value) {
            wanted.insert(*key, (*hop, false));
        }
    }
    if let Some(policy) = desired.near() {
        let copies = near(policy, observed).0.into_iter();
        for (key, hop) in copies {
            wanted.entry(key).or_insert((hop, true));
        }
    }
    let mut there: BTreeMap<RouteKey, Vec<&ObservedRoute>> = BTreeMap::new();
    for route in &observed.routes {
        let is_meant = desired.owns(route.key.table) || wanted.contains_key(&route.key);
        if is_meant {
            there.entry(route.key).or_default().push(route);
        }
    }
    for (key, (hop, is_copy)) in &wanted {
        let now = there.remove(key).unwrap_or_default();
        let is_right = |route: &&ObservedRoute| !route.is_complex && is_same(&route.hop, hop);
        // The first of several routes of one key is used.
        if !now.first().is_some_and(is_right) && is_possible(observed, hop) {
            let cause = match (now.is_empty(), is_copy) {
                (_, true) => Cause::Own,
                (true, false) => Cause::Missing,
                (false, false) => Cause::Changed,
            };
            found.push((Object::Route(*key), cause, Repair::ReplaceRoute(*key, *hop)));
        } else if desired.owns(key.table) {
            let others = now.into_iter().filter(|route| !is_right(route));
            found.extend(others.map(|route| added(route, *is_copy)));
        }
    }
    // A desired route may be missing while its interface is down; other routes may not exist.
    let copied = [super::NEAR_TABLE, super::UPLINK_TABLE];
    let is_copied = |key: &RouteKey| desired.near().is_some() && copied.contains(&key.table);
    for (key, others) in there {
        found.extend(others.into_iter().map(|route| added(route, is_copied(&key))));
    }
}

fn added(route: &ObservedRoute, is_copy: bool) -> Found {
    // A copy whose original is gone cannot be distinguished from a route that another program
    // added.
    let is_own = is_copy && route.protocol == super::OWN_PROTOCOL;
    let cause = if is_own { Cause::Own } else { Cause::Added };
    (Object::Route(route.key), cause, Repair::RemoveRoute(route.id))
}

/// Returns whether the kernel can accept the route now.
fn is_possible(observed: &Observed, hop: &Hop) -> bool {
    !hop.is_unicast() || hop.device.is_some_and(|device| observed.is_up(device))
}

/// Returns whether two routes with the same key have the same next hop. The kernel assigns an
/// interface to unreachable routes.
fn is_same(a: &Hop, b: &Hop) -> bool {
    let is_alike = a.device == b.device && a.gateway == b.gateway && a.source == b.source;
    a.kind == b.kind && (!a.is_unicast() || is_alike)
}

/// Returns the order of repairs: tables first, because they are effective without routes;
/// interfaces before their addresses, and these before routes that name them.
fn rank(repair: &Repair) -> u8 {
    match repair {
        Repair::Install(_) => 0,
        Repair::MoveBefore(_) => 1,
        Repair::AddRule(_) => 2,
        Repair::Up(_) => 3,
        Repair::AddAddress(..) => 4,
        Repair::ReplaceRoute(..) => 5,
        Repair::RemoveRoute(_) => 6,
        Repair::RemoveRule(_) => 7,
        Repair::Write(..)
        | Repair::SetMtu(..)
        | Repair::Attach(..)
        | Repair::PutEndpoint(_)
        | Repair::RaiseSubflows(_)
        | Repair::SetResolvers(_) => 8,
    }
}

/// Reverse path filtering, strict: the best route to the source must use the same interface (RFC
/// 3704 section 2.2).
const STRICT: u8 = 1;
/// Reverse path filtering, loose: any route to the source suffices (RFC 3704 section 2.4).
const LOOSE: &str = "2";
