//! The flow table: what happens to the packets of a flow, as match and action.
//!
//! It starts empty: nothing matches, and the caller's default holds. Steady state: the entry of
//! highest priority that matches a packet counts it and says what to do. It fails safe: entries end
//! by their own time-outs, so rules of a controller that is gone do not stay.
//!
//! ```text
//!   (absent) -- insert --> Live -- no packet for the idle time-out, or the hard time-out --> ended (event)
//!                           ^ |
//!                           +-+ a packet matched: the idle time-out begins anew
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

/// A range of addresses: those that share the first `bits` bits with `base`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Prefix {
    /// Any address of the range.
    pub base: IpAddr,
    /// 0 to 32, or to 128.
    pub bits: u8,
}

impl Prefix {
    /// Just one address.
    #[must_use]
    pub fn of(address: IpAddr) -> Self {
        let bits = if address.is_ipv4() { 32 } else { 128 };
        Self { base: address, bits }
    }

    /// Whether `address` is in the range.
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

/// Which packets an entry is for; a field that is `None` matches all.
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
    /// The network by which the packet came in; packets of applications came in by none and match
    /// only `None`.
    pub network: Option<NetworkId>,
}

impl Match {
    /// Just the packets of one flow, whatever their code point and network.
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

    /// Whether a packet is meant.
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

    /// The flow, where this matches one alone.
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

/// Where packets go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Output {
    /// Out of one network as they are.
    Direct(NetworkId),
    /// Over all paths of a session.
    Stripe(u64),
    /// Over every path of a session at once.
    Duplicate(u64),
    /// To the applications of this host.
    Local,
    /// Nowhere.
    Drop,
}

/// What is done to packets that match.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Action {
    /// First, what their addresses become.
    pub rewrite: Option<Rewrite>,
    /// Then, where they go.
    pub output: Output,
}

impl Action {
    /// As they are, there.
    #[must_use]
    pub fn to(output: Output) -> Self {
        Self {
            rewrite: None,
            output,
        }
    }
}

/// What an entry is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rule {
    /// More goes first; among equals the one that was inserted last.
    pub priority: u16,
    /// For which packets.
    pub pattern: Match,
    /// What to do.
    pub action: Action,
    /// Ends when no packet matched for this long; `None` never.
    pub idle: Option<Duration>,
    /// Ends this long after it was inserted; `None` never.
    pub hard: Option<Duration>,
}

/// Names an entry of one table; never used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct EntryId(u64);

/// What an entry has matched.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Packets.
    pub packets: u64,
    /// Their bytes.
    pub bytes: u64,
}

/// Why an entry ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// No packet matched for its idle time-out.
    Idle,
    /// Its hard time-out is over.
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
    /// When it ends and why, if no packet matches until then.
    fn end(&self) -> Option<(Instant, Ended)> {
        let idle = self.rule.idle.map(|idle| (self.used + idle, Ended::Idle));
        let hard = self.rule.hard.map(|hard| (self.inserted + hard, Ended::Hard));
        [hard, idle].into_iter().flatten().min_by_key(|&(at, _)| at)
    }
}

/// The table is full.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the flow table holds {MOST_ENTRIES} entries already")]
pub struct Full;

/// All entries.
///
/// Entries for one flow alone are found by their key, the others in order of priority.
///
/// Cost: O(log entries + wildcard entries above the match) a packet, no allocation; memory bounded
/// by [`MOST_ENTRIES`].
#[derive(Debug, Default)]
pub struct FlowTable {
    entries: BTreeMap<EntryId, Entry>,
    exact: BTreeMap<FlowKey, Vec<EntryId>>,
    /// By priority, then by age, the first to be asked first.
    wild: Vec<(u16, EntryId)>,
    next: u64,
    ended: VecDeque<(EntryId, Rule, Counters, Ended)>,
}

impl FlowTable {
    /// No entries.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// How many entries there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// What an entry does and has done; `None` once it is gone.
    #[must_use]
    pub fn entry(&self, id: EntryId) -> Option<(&Rule, Counters)> {
        self.entries.get(&id).map(|entry| (&entry.rule, entry.counters))
    }

    /// Adds an entry. An entry with the same pattern and priority is replaced; its counters are
    /// taken over.
    ///
    /// # Errors
    /// [`Full`]: nothing was changed.
    pub fn insert(&mut self, rule: Rule, now: Instant) -> Result<EntryId, Full> {
        let same = self.find_same(&rule);
        if same.is_none() && self.entries.len() >= MOST_ENTRIES {
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

    /// Takes an entry out; `None` when it is gone already.
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

    /// What is to be done with a packet of `bytes`; it is counted. `None`: no entry matches.
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

    /// When [`Self::handle_timeout`] has something to do.
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

    /// Ends the entries whose time is over.
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

    /// The next entry that ended by itself, with what it had counted.
    pub fn poll_event(&mut self) -> Option<(EntryId, Rule, Counters, Ended)> {
        self.ended.pop_front()
    }
}

/// Entries at most: two for each of 16,384 flows (as many as a session can have), and as many again
/// for wildcards.
pub const MOST_ENTRIES: usize = 4 * 16_384;

#[cfg(test)]
mod tests;
