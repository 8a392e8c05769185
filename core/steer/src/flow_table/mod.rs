//! Flow table: actions on the packets of a flow, as entries of match and action.
//!
//! It starts empty: nothing matches, and the caller applies its default. Steady state: the matching
//! entry of highest priority counts the packet and gives the action. It fails safe: entries expire
//! by their time-outs, so the rules of a controller that has failed are removed.
//!
//! ```text
//!   (absent) -- insert --> Live -- no packet for the idle time-out, or the hard time-out --> ended (event)
//!                           ^ |
//!                           +-+ a packet matched: the idle time-out starts again
//! ```
//!
//! Source: Flow switch sections 2.1.2 and 3; semantics of priorities and time-outs after OpenFlow
//! 1.0 sections 3.4 and 4.6.

pub mod rewrite;

use std::collections::{BTreeMap, VecDeque};
use std::net::IpAddr;

use hawser_units::{Duration, Instant, NetworkId};
use hawser_wire::inner::{FlowKey, Summary};

use rewrite::Rewrite;

/// Range of addresses: all that share the first `bits` bits with `base`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Prefix {
    /// Any address of the range.
    pub base: IpAddr,
    /// Prefix length: 0 to 32 for IPv4, 0 to 128 for IPv6.
    pub bits: u8,
}

impl Prefix {
    /// Creates a prefix of one address.
    #[must_use]
    pub fn of(address: IpAddr) -> Self {
        let bits = if address.is_ipv4() { 32 } else { 128 };
        Self { base: address, bits }
    }

    /// Returns whether `address` is in the range.
    #[must_use]
    pub fn contains(&self, address: IpAddr) -> bool {
        let (base, address, width) = match (self.base, address) {
            (IpAddr::V4(base), IpAddr::V4(address)) => {
                (u128::from(base.to_bits()), u128::from(address.to_bits()), 32)
            }
            (IpAddr::V6(base), IpAddr::V6(address)) => (base.to_bits(), address.to_bits(), 128),
            (IpAddr::V4(_), IpAddr::V6(_)) | (IpAddr::V6(_), IpAddr::V4(_)) => return false,
        };
        let ignored = width - u32::from(self.bits).min(width);
        (base ^ address).checked_shr(ignored).unwrap_or(0) == 0
    }
}

/// Packets that an entry matches; a field that is `None` matches all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Match {
    /// Source address.
    pub source: Option<Prefix>,
    /// Destination address.
    pub destination: Option<Prefix>,
    /// IP protocol.
    pub protocol: Option<u8>,
    /// Source port.
    pub source_port: Option<u16>,
    /// Destination port.
    pub destination_port: Option<u16>,
    /// Differentiated services code point.
    pub dscp: Option<u8>,
    /// Network on which the packet arrived. Packets of applications arrived on none and match only
    /// `None`.
    pub network: Option<NetworkId>,
}

impl Match {
    /// Creates a match for the packets of one flow, with any code point and network.
    #[must_use]
    pub fn exactly(key: &FlowKey) -> Self {
        Self {
            source: Some(Prefix::of(key.source)),
            destination: Some(Prefix::of(key.destination)),
            protocol: Some(key.protocol),
            source_port: Some(key.source_port),
            destination_port: Some(key.destination_port),
            dscp: None,
            network: None,
        }
    }

    /// Returns whether a packet matches.
    #[must_use]
    pub fn matches(&self, packet: &Summary, network: Option<NetworkId>) -> bool {
        let key = &packet.key;
        let within =
            |range: Option<Prefix>, address| range.is_none_or(|range: Prefix| range.contains(address));
        let is = |wanted: Option<u16>, port| wanted.is_none_or(|wanted| wanted == port);
        within(self.source, key.source)
            && within(self.destination, key.destination)
            && self.protocol.is_none_or(|protocol| protocol == key.protocol)
            && is(self.source_port, key.source_port)
            && is(self.destination_port, key.destination_port)
            && self.dscp.is_none_or(|dscp| dscp == packet.dscp)
            && (self.network.is_none() || self.network == network)
    }

    /// Returns the flow, if the match selects exactly one.
    fn key(&self) -> Option<FlowKey> {
        let single = |range: Option<Prefix>| {
            let range = range?;
            (range == Prefix::of(range.base)).then_some(range.base)
        };
        Some(FlowKey {
            source: single(self.source)?,
            destination: single(self.destination)?,
            protocol: self.protocol?,
            source_port: self.source_port?,
            destination_port: self.destination_port?,
        })
    }
}

/// Destination of matched packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Output {
    /// Sends out of one network.
    Direct(NetworkId),
    /// Stripes over all paths of a session: one path per packet.
    Stripe(u64),
    /// Duplicates over all paths of a session: a copy on each.
    Duplicate(u64),
    /// Delivers to this machine.
    Local,
    /// Drops the packet.
    Drop,
}

/// Action on matched packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Action {
    /// Rewrite of the addresses, before the output.
    pub rewrite: Option<Rewrite>,
    /// Output after the rewrite.
    pub output: Output,
}

impl Action {
    /// Creates an action that sends packets unchanged.
    #[must_use]
    pub fn to(output: Output) -> Self {
        Self {
            rewrite: None,
            output,
        }
    }
}

/// Contents of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rule {
    /// Priority: the highest wins; among equals the entry that was inserted last.
    pub priority: u16,
    /// Packets that the entry matches.
    pub pattern: Match,
    /// Action on these packets.
    pub action: Action,
    /// Idle time-out: the entry ends after this time without a matching packet; `None`: never.
    pub idle: Option<Duration>,
    /// Hard time-out: the entry ends this long after its insertion; `None`: never.
    pub hard: Option<Duration>,
}

/// Identifier of an entry of one table; never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct EntryId(u64);

/// Counters of an entry.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Packets.
    pub packets: u64,
    /// Their bytes.
    pub bytes: u64,
}

/// Reason why an entry ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// No packet matched for its idle time-out.
    Idle,
    /// Hard time-out expired.
    Hard,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    rule: Rule,
    counters: Counters,
    inserted: Instant,
    used: Instant,
}

impl Entry {
    /// Returns when the entry ends and why, if no packet matches until then.
    fn end(&self) -> Option<(Instant, Ended)> {
        let idle = self.rule.idle.map(|idle| (self.used + idle, Ended::Idle));
        let hard = self.rule.hard.map(|hard| (self.inserted + hard, Ended::Hard));
        [hard, idle].into_iter().flatten().min_by_key(|&(at, _)| at)
    }
}

/// The table is full.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the flow table is full: {MAX_ENTRIES} entries")]
pub struct Full;

/// Table of all entries.
///
/// Entries that match one flow are found by its key, the others in order of priority.
///
/// Cost: O(log entries + wildcard entries above the match) a packet, no allocation; memory bounded
/// by [`MAX_ENTRIES`].
#[derive(Debug, Default)]
pub struct FlowTable {
    entries: BTreeMap<EntryId, Entry>,
    exact: BTreeMap<FlowKey, Vec<EntryId>>,
    /// Entries by priority, then by age, in order of evaluation.
    wild: Vec<(u16, EntryId)>,
    next: u64,
    ended: VecDeque<(EntryId, Rule, Counters, Ended)>,
}

impl FlowTable {
    /// Creates an empty table.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Returns the number of entries.
    #[must_use]
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Returns whether the table is empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Returns the rule and counters of an entry; `None` once it has been removed.
    #[must_use]
    pub fn entry(&self, id: EntryId) -> Option<(&Rule, Counters)> {
        self.entries.get(&id).map(|entry| (&entry.rule, entry.counters))
    }

    /// Adds an entry. It replaces an entry with the same pattern and priority and keeps its
    /// counters.
    ///
    /// # Errors
    /// [`Full`]: nothing was changed.
    pub fn insert(&mut self, rule: Rule, now: Instant) -> Result<EntryId, Full> {
        let same = self.find_same(&rule);
        if same.is_none() && self.entries.len() >= MAX_ENTRIES {
            return Err(Full);
        }
        let counters = same
            .and_then(|id| self.remove(id))
            .map_or(Counters::default(), |(_, counters)| counters);
        let id = EntryId(self.next);
        self.next += 1;
        self.entries.insert(
            id,
            Entry {
                rule,
                counters,
                inserted: now,
                used: now,
            },
        );
        match rule.pattern.key() {
            Some(key) => self.exact.entry(key).or_default().push(id),
            None => {
                let at = self
                    .wild
                    .partition_point(|&(priority, _)| priority > rule.priority);
                self.wild.insert(at, (rule.priority, id));
            }
        }
        Ok(id)
    }

    fn find_same(&self, rule: &Rule) -> Option<EntryId> {
        let same = |id: &EntryId| {
            let entry = &self.entries[id].rule;
            entry.priority == rule.priority && entry.pattern == rule.pattern
        };
        match rule.pattern.key() {
            Some(key) => self.exact.get(&key)?.iter().copied().find(same),
            None => self.wild.iter().map(|&(_, id)| id).find(same),
        }
    }

    /// Removes an entry; `None` if it has been removed already.
    pub fn remove(&mut self, id: EntryId) -> Option<(Rule, Counters)> {
        let entry = self.entries.remove(&id)?;
        match entry.rule.pattern.key() {
            Some(key) => {
                if let Some(ids) = self.exact.get_mut(&key) {
                    ids.retain(|&other| other != id);
                    if ids.is_empty() {
                        self.exact.remove(&key);
                    }
                }
            }
            None => self.wild.retain(|&(_, other)| other != id),
        }
        Some((entry.rule, entry.counters))
    }

    /// Counts a packet of `bytes`, and returns the action on it; `None` if no entry matches.
    pub fn handle_packet(
        &mut self,
        packet: &Summary,
        network: Option<NetworkId>,
        bytes: u64,
        now: Instant,
    ) -> Option<(EntryId, Action)> {
        let live = |id: &EntryId| {
            let entry = &self.entries[id];
            entry.end().is_none_or(|(end, _)| end > now) && entry.rule.pattern.matches(packet, network)
        };
        let order = |id: EntryId| (self.entries[&id].rule.priority, id);
        let exact = self
            .exact
            .get(&packet.key)
            .into_iter()
            .flatten()
            .copied()
            .filter(live)
            .map(order)
            .max();
        let wild = self
            .wild
            .iter()
            .take_while(|&&(priority, _)| exact.is_none_or(|(best, _)| priority >= best))
            .find(|(_, id)| live(id))
            .copied();
        let (_, id) = exact.max(wild)?;
        let entry = self.entries.get_mut(&id)?;
        entry.counters.packets += 1;
        entry.counters.bytes += bytes;
        entry.used = entry.used.max(now);
        Some((id, entry.rule.action))
    }

    /// Returns when [`Self::handle_timeout`] has an effect.
    ///
    /// Cost: O(entries).
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.entries
            .values()
            .filter_map(Entry::end)
            .map(|(at, _)| at)
            .min()
    }

    /// Ends the entries whose time-out has expired at `now`.
    pub fn handle_timeout(&mut self, now: Instant) {
        let over: Vec<_> = self
            .entries
            .iter()
            .filter_map(|(&id, entry)| Some((id, entry.end().filter(|&(at, _)| at <= now)?.1)))
            .collect();
        for (id, why) in over {
            if let Some((rule, counters)) = self.remove(id) {
                self.ended.push_back((id, rule, counters, why));
            }
        }
    }

    /// Returns the next entry that expired, with its counters.
    pub fn poll_event(&mut self) -> Option<(EntryId, Rule, Counters, Ended)> {
        self.ended.pop_front()
    }
}

/// Maximum number of entries. Source: two for each flow of a session (`MAX_FLOWS` of
/// `core/proto/src/flow.rs`, 16,384), and as many again for wildcards.
pub const MAX_ENTRIES: usize = 4 * 16_384;

#[cfg(test)]
mod tests;
