//! Selection of the members' uplinks that are used, among the reachable ones.
//!
//! Each uplink in use needs a path, and a change costs the windows of the flows that use it. So at
//! most [`Limits::uplinks`] are used at a time, and only those whose cost is below a limit. The
//! machine uses the group for which a bulk transfer has the highest bound ([`super::choice`]), and
//! among groups that differ by less than [`MARGIN`] the one with the lowest cost.
//!
//! ```text
//!              reachable                       in the best group
//!   (absent) -------------> Candidate -----------------------------------> In use
//!       ^                     |   ^       another group promises more        |
//!       +---- unreachable ----+   +-- or costs less, and SETTLED has passed --+
//! ```
//!
//! Start: the first uplinks are used as soon as they are reachable. Steady state: free positions
//! are filled at once; an uplink gives its position to another only if the group's bound grows by
//! [`MARGIN`], and at most once in [`SETTLED`], because each change costs the transports a window.
//! Failure: an uplink that is no longer reachable leaves the group at once, and the next best one
//! takes its position.
//!
//! A member's offer is a claim. An uplink whose path has been filled counts with the measured rate,
//! never with more than the offer. Before, it counts with its offer, but at most with the highest
//! measured rate, so that a false claim only causes a trial.
//!
//! Source: Piconet appendix. Deviates: groups are extended one uplink at a time instead of being
//! compared completely (`the_greedy_group_is_within_a_factor_of_the_best_one` bounds the
//! difference); costs do not occur in the equations of the paper.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt;

use hawser_units::{Duration, Instant, Rate};

use super::choice::{Estimate, best_group, group_bounds};
use super::monitor::{MemberId, Reachable};

/// Limits of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Maximum number of uplinks, at most [`MAX_UPLINKS`].
    pub uplinks: usize,
    /// Uplinks are used only below this cost, if it is set.
    pub cost_below: Option<u8>,
}

/// Change of the group in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// Use the uplink.
    Use(MemberId),
    /// Stop using the uplink.
    Release(MemberId),
}

/// Reason for which an uplink is or is not in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// Used as part of the group with the highest bound.
    Best,
    /// Used to measure its rate.
    Trial,
    /// Used although another group has a higher bound: the difference is too small, or the last
    /// change too recent.
    Settled,
    /// Excluded because its cost is at or above the limit.
    Cost,
    /// Unused because uplinks of lower cost promise about the same.
    CheaperSuffice,
    /// Unused because the maximum number of uplinks is used, and they promise more.
    Full,
}

impl Reason {
    /// Returns whether the uplink is in use.
    #[must_use]
    pub fn is_in_use(self) -> bool {
        matches!(self, Self::Best | Self::Trial | Self::Settled)
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Best => "in the best group",
            Self::Trial => "on trial: its rate is not measured yet",
            Self::Settled => "in use: another group does not promise enough more to change",
            Self::Cost => "its cost is not below cost_below",
            Self::CheaperSuffice => "uplinks of lower cost promise about the same",
            Self::Full => "the uplinks in use promise more",
        })
    }
}

/// Decides which reachable uplinks are used.
///
/// Methods: [`Self::handle_reachable`] after each event; then [`Self::poll_change`] until it
/// returns `None`; [`Self::poll_timeout`] is the time of the next decision without an event.
/// Cost: O(n) a call while nothing has changed; O(costs x uplinks^2 x n) a decision.
#[derive(Debug)]
pub struct Selection {
    limits: Limits,
    group: BTreeSet<MemberId>,
    reasons: BTreeMap<MemberId, Reason>,
    /// Members and costs of the last decision.
    considered: Vec<(MemberId, u8)>,
    promise: Rate,
    changes: VecDeque<Change>,
    /// Time of the last change that was not forced.
    changed_at: Option<Instant>,
    decide_at: Option<Instant>,
}

impl Selection {
    /// Creates a selection that uses no uplink yet.
    #[must_use]
    pub fn new(limits: Limits) -> Self {
        Self {
            limits,
            group: BTreeSet::new(),
            reasons: BTreeMap::new(),
            considered: Vec::new(),
            promise: Rate::ZERO,
            changes: VecDeque::new(),
            changed_at: None,
            decide_at: None,
        }
    }

    /// Sets the limits from the next call of [`Self::handle_reachable`] on.
    pub fn handle_limits(&mut self, limits: Limits) {
        if limits != self.limits {
            self.limits = limits;
            self.considered.clear();
        }
    }

    /// Returns the limits.
    #[must_use]
    pub fn limits(&self) -> Limits {
        self.limits
    }

    /// Returns why an uplink is or is not in use; `None` if it is unknown.
    #[must_use]
    pub fn reason(&self, member: MemberId) -> Option<Reason> {
        self.reasons.get(&member).copied()
    }

    /// Returns the bound of a bulk transfer over the group in use, at the last decision.
    #[must_use]
    pub fn promise(&self) -> Rate {
        self.promise
    }

    /// Returns the next change of the group.
    pub fn poll_change(&mut self) -> Option<Change> {
        self.changes.pop_front()
    }

    /// Returns when measurements are compared again; `None` without a reachable uplink.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.decide_at
    }

    /// Handles the reachable uplinks: decides at once if others are reachable than before, or have
    /// other costs, and otherwise once per [`DECIDE_EVERY`].
    pub fn handle_reachable(&mut self, reachable: &[Reachable], now: Instant) {
        let all = reachable.iter().take(MAX_CONSIDERED);
        let is_same = all
            .clone()
            .map(|one| (one.member, one.offer.cost))
            .eq(self.considered.iter().copied());
        if is_same && self.decide_at.is_none_or(|at| now < at) {
            return;
        }
        self.considered = all.clone().map(|one| (one.member, one.offer.cost)).collect();
        self.decide_at = (!self.considered.is_empty()).then(|| now + DECIDE_EVERY);
        let candidates = Candidates::new(all, self.limits);
        self.decide(&candidates, now);
    }

    fn decide(&mut self, candidates: &Candidates, now: Instant) {
        let before: Vec<usize> = candidates.positions(&self.group);
        let is_forced = before.len() < self.group.len() || before.len() > candidates.limit;
        let extended = if before.len() > candidates.limit {
            candidates.cheapest_near_the_best(&[])
        } else {
            candidates.cheapest_near_the_best(&before)
        };
        let best = candidates.cheapest_near_the_best(&[]);
        let has_settled = self.changed_at.is_none_or(|at| now.since(at) >= SETTLED);
        let is_better = candidates.is_better(&best, &extended);
        let group = if is_better && has_settled {
            self.changed_at = Some(now);
            &best
        } else {
            &extended
        };
        // Uplinks that have just come into use are measured before they are compared.
        let has_new = group.iter().any(|at| !before.contains(at));
        if has_new && !is_forced {
            self.changed_at = Some(now);
        }
        self.promise = candidates.promise(group);
        self.reasons = candidates.reasons(group, &best);
        let group: BTreeSet<MemberId> = group.iter().map(|at| candidates.all[*at].member).collect();
        let released = self
            .group
            .difference(&group)
            .map(|member| Change::Release(*member));
        self.changes.extend(released);
        let used = group.difference(&self.group).map(|member| Change::Use(*member));
        self.changes.extend(used);
        self.group = group;
    }
}

/// Reachable uplinks with their estimates, in the order of their costs.
struct Candidates {
    all: Vec<Candidate>,
    /// Members whose cost is too high.
    excluded: Vec<MemberId>,
    limit: usize,
}

struct Candidate {
    member: MemberId,
    cost: u8,
    is_known: bool,
    estimate: Estimate,
}

impl Candidates {
    fn new<'a>(reachable: impl Iterator<Item = &'a Reachable> + Clone, limits: Limits) -> Self {
        let is_below = |one: &&Reachable| limits.cost_below.is_none_or(|below| one.offer.cost < below);
        let known = |one: &Reachable| one.measured.filter(|measured| measured.is_filled);
        let rates = reachable.clone().filter_map(known).map(|measured| measured.rate);
        let fastest = rates.max().unwrap_or(ASSUMED_RATE);
        let delays = reachable.clone().filter_map(|one| one.measured);
        let nearest = delays
            .map(|measured| measured.delay)
            .min()
            .unwrap_or(ASSUMED_DELAY);
        let candidate = |one: &Reachable| {
            let assumed = one.offer.rate.min(fastest);
            let lower_bound = one.measured.map_or(Rate::ZERO, |measured| measured.rate);
            let rate = known(one).map_or(assumed.max(lower_bound), |measured| measured.rate);
            let delay = one.measured.map_or(nearest, |measured| measured.delay);
            Candidate {
                member: one.member,
                cost: one.offer.cost,
                is_known: known(one).is_some(),
                estimate: Estimate {
                    rate: rate.min(one.offer.rate).as_bps() as f64,
                    round_trip: 2.0 * delay.max(SHORTEST_DELAY).as_secs_f64(),
                    loss: known(one).map_or(0.0, |measured| measured.loss.clamp(0.0, 1.0)),
                },
            }
        };
        let mut all: Vec<Candidate> = reachable.clone().filter(is_below).map(candidate).collect();
        all.sort_by_key(|one| one.cost);
        let excluded = reachable.filter(|one| !is_below(one)).map(|one| one.member);
        Self {
            all,
            excluded: excluded.collect(),
            limit: limits.uplinks.clamp(1, MAX_UPLINKS),
        }
    }

    fn positions(&self, members: &BTreeSet<MemberId>) -> Vec<usize> {
        (0..self.all.len())
            .filter(|at| members.contains(&self.all[*at].member))
            .collect()
    }

    fn estimates(&self, group: &[usize]) -> Vec<Estimate> {
        group.iter().map(|at| self.all[*at].estimate).collect()
    }

    fn highest_cost(&self, group: &[usize]) -> u8 {
        group.iter().map(|at| self.all[*at].cost).max().unwrap_or(0)
    }

    /// Returns the group of the lowest cost whose bound is at most [`MARGIN`] below that of the
    /// best group, where each contains the uplinks of `first`.
    fn cheapest_near_the_best(&self, first: &[usize]) -> Vec<usize> {
        let mut costs: Vec<u8> = self.all.iter().map(|one| one.cost).collect();
        costs.retain(|cost| *cost >= self.highest_cost(first));
        costs.dedup();
        let mut groups: Vec<Vec<usize>> = costs.iter().map(|cost| self.extend(first, *cost)).collect();
        let estimates: Vec<_> = groups.iter().map(|group| self.estimates(group)).collect();
        let bounds = group_bounds(&estimates, PACKET_BITS);
        let highest = bounds.iter().copied().fold(0.0, f64::max);
        let near = bounds.iter().position(|bound| bound * MARGIN >= highest);
        near.map_or_else(Vec::new, |at| groups.swap_remove(at))
    }

    /// Adds to a group the uplinks up to a cost, the best one first, while its bound grows and
    /// there is room.
    fn extend(&self, first: &[usize], cost: u8) -> Vec<usize> {
        let mut group = first.to_vec();
        while group.len() < self.limit {
            let free = (0..self.all.len()).filter(|at| self.all[*at].cost <= cost && !group.contains(at));
            let options: Vec<Vec<usize>> = std::iter::once(group.clone())
                .chain(free.map(|at| group.iter().copied().chain([at]).collect()))
                .collect();
            let estimates: Vec<_> = options.iter().map(|option| self.estimates(option)).collect();
            match best_group(&estimates, PACKET_BITS) {
                None | Some(0) => break,
                Some(best) => group.clone_from(&options[best]),
            }
        }
        group.sort_unstable();
        group
    }

    /// Returns whether `first` promises more than `second` by [`MARGIN`], or about the same at a
    /// lower cost.
    fn is_better(&self, first: &[usize], second: &[usize]) -> bool {
        let bounds = group_bounds(&[self.estimates(first), self.estimates(second)], PACKET_BITS);
        bounds[0] > bounds[1] * MARGIN
            || self.highest_cost(first) < self.highest_cost(second) && bounds[0] * MARGIN >= bounds[1]
    }

    fn promise(&self, group: &[usize]) -> Rate {
        let bound = group_bounds(&[self.estimates(group)], PACKET_BITS)[0];
        Rate::from_bps(bound as u64)
    }

    fn reasons(&self, group: &[usize], best: &[usize]) -> BTreeMap<MemberId, Reason> {
        let reason = |at: usize| match (group.contains(&at), best.contains(&at)) {
            (true, _) if !self.all[at].is_known => Reason::Trial,
            (true, true) => Reason::Best,
            (true, false) => Reason::Settled,
            (false, _) if group.len() < self.limit => Reason::CheaperSuffice,
            (false, _) => Reason::Full,
        };
        let excluded = self.excluded.iter().map(|member| (*member, Reason::Cost));
        let all = (0..self.all.len()).map(|at| (self.all[at].member, reason(at)));
        excluded.chain(all).collect()
    }
}

/// Maximum number of uplinks in use. Source: a bound on the work of a decision, and a quarter of
/// the paths of a session (`session::hub::MAX_PATHS`).
pub const MAX_UPLINKS: usize = 16;

/// Number of uplinks in use unless configured. Source: Piconet figure 3, in which TCP's throughput
/// is nearly linear up to six links and then bounded by its window; two more replace those that
/// leave.
pub const DEFAULT_UPLINKS: usize = 8;

/// Maximum number of considered uplinks. Source: that of the registry.
const MAX_CONSIDERED: usize = super::monitor::MAX_MEMBERS;

/// Ratio of bounds that is worth a change, or a higher cost. Source: our choice; rates of the path
/// model differ by about a tenth between rounds (docs/notebook/path-model.md).
const MARGIN: f64 = 1.1;

/// Minimum time between two changes that nothing forces. Source: our choice, several times the ten
/// round trips in which a path is filled, and Piconet figure 6, in which stays of seconds cost TCP
/// throughput.
const SETTLED: Duration = Duration::from_secs(30);

/// Interval in which measurements are compared. Source: our choice, a sixth of [`SETTLED`].
const DECIDE_EVERY: Duration = Duration::from_secs(5);

/// Rate of an uplink if none is measured. Source: our choice; it matters only among uplinks of
/// which nothing is known, where offers below it count less.
const ASSUMED_RATE: Rate = Rate::from_mbps(10);

/// Delay of an uplink if none is measured. Source: our choice, that of a modem.
const ASSUMED_DELAY: Duration = Duration::from_millis(50);

/// Minimum delay in a bound, which would otherwise divide by zero. Source: our choice, below the
/// delay of a wireless local network.
const SHORTEST_DELAY: Duration = Duration::from_micros(100);

/// Packet size of a bulk transfer. Source: 1,500 bytes (RFC 894). Units: bits.
const PACKET_BITS: f64 = 12_000.0;

#[cfg(test)]
mod tests;
