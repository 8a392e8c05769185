//! Allocation of channels to flows: the most reliable channels for the most important sub-flows.
//!
//! A flow is an ordered list of sub-flows, the most important first. Channels are ordered by
//! reliability. Each sub-flow in turn gets as many of the first channels as it needs. If the
//! channels are not sufficient, the least important sub-flows get nothing instead of a part of what
//! they need, because a part is useless. The result depends on the present channels only: if a
//! more reliable channel appears, all sub-flows move up; if the best one disappears, all move down.

use hawser_units::{Duration, PathId, Rate};

use super::requirement::Requirement;

/// Properties of a channel that allocation uses.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Channel {
    /// Id of the channel.
    pub id: PathId,
    /// Rate of the channel.
    pub rate: Rate,
    /// Share of packets lost, 0 to 1.
    pub loss: f64,
    /// Delay in one direction.
    pub delay: Duration,
}

impl Channel {
    /// Returns the rate that remains after losses.
    ///
    /// Source: Piconet section III-C.1 (effective bandwidth).
    #[must_use]
    pub fn effective(&self) -> Rate {
        self.rate.scale((1.0 - self.loss).clamp(0.0, 1.0))
    }
}

/// Sorts channels by reliability: lowest loss first, then lowest delay, then by id so that equal
/// ones keep their order.
pub fn sort_by_reliability(channels: &mut [Channel]) {
    channels.sort_by(|a, b| {
        a.loss
            .total_cmp(&b.loss)
            .then(a.delay.cmp(&b.delay))
            .then(a.id.cmp(&b.id))
    });
}

/// Requirement of one sub-flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Need {
    /// Traffic of the sub-flow.
    pub traffic: Requirement,
    /// Time after arrival during which its packets are useful; channels with a longer delay are
    /// unsuitable.
    pub deadline: Option<Duration>,
}

/// Use of the bandwidth that a sub-flow leaves of its last channel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Remainder {
    /// The next sub-flow takes it first: the fewest and most reliable channels for each.
    ///
    /// Source: Piconet section III-C.1.
    #[default]
    Shared,
    /// The next sub-flow takes channels of its own while there are enough, and remainders only
    /// then: no sub-flow delays another, and no sub-flow is spread over more channels than it
    /// needs.
    ///
    /// Source: Piconet tables VI to IX, where each layer shows the loss of one channel alone.
    LastResort,
}

/// A part of a channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Share {
    /// Id of the channel.
    pub channel: PathId,
    /// Assigned part of the channel's effective rate: the weight in a weighted round robin over the
    /// sub-flow's channels and, on the channel, among the sub-flows that share it.
    pub rate: Rate,
}

/// The channels of one sub-flow, most reliable first; empty if the sub-flow is dropped.
pub type Shares = Vec<Share>;

/// Allocates channels to the sub-flows of one flow; returns one [`Shares`] for each, in their
/// order.
///
/// The first sub-flow is never let go: when all channels together are too little for it, it gets
/// all of them. Once a sub-flow is dropped, so are those after it, which are useless without it.
/// `channels` may be in any order.
///
/// Source: Piconet section III-C.1.
/// Cost: O(sub-flows x channels).
#[must_use]
pub fn allocate(needs: &[Need], channels: &[Channel], remainder: Remainder) -> Vec<Shares> {
    let mut pool = Pool::new(channels, remainder);
    let mut all: Vec<Shares> = Vec::with_capacity(needs.len());
    for (index, need) in needs.iter().enumerate() {
        let shares = match pool.take(need) {
            Some(shares) => shares,
            None if index == 0 => pool.take_everything(need),
            None => break,
        };
        all.push(shares);
    }
    all.resize(needs.len(), Shares::new());
    all
}

/// Requirements of one of several flows.
#[derive(Clone, Debug, PartialEq)]
pub struct FlowNeed {
    /// Flows of higher importance are served first; flows of equal importance share.
    pub importance: u8,
    /// Sub-flows, most important first.
    pub subflows: Vec<Need>,
}

/// Allocates channels to many flows; returns one list of [`Shares`] for each flow, in the given
/// order.
///
/// The more important flow takes its channels first, all its sub-flows before the next flow's
/// first. Flows of equal importance are served level by level, the first sub-flows of all, then the
/// second ones; each share of a channel is in proportion to the needs of those on it. A sub-flow
/// that does not fit is let go, and those of its flow after it.
///
/// Source: Piconet section III-C.2.
/// Cost: O(sub-flows x channels).
#[must_use]
pub fn allocate_flows(flows: &[FlowNeed], channels: &[Channel], remainder: Remainder) -> Vec<Vec<Shares>> {
    let mut pool = Pool::new(channels, remainder);
    let mut result: Vec<Vec<Shares>> = flows
        .iter()
        .map(|flow| vec![Shares::new(); flow.subflows.len()])
        .collect();
    let mut ranks: Vec<u8> = flows.iter().map(|flow| flow.importance).collect();
    ranks.sort_unstable_by(|a, b| b.cmp(a));
    ranks.dedup();
    for rank in ranks {
        let mut group: Vec<usize> = (0..flows.len())
            .filter(|&flow| flows[flow].importance == rank)
            .collect();
        let mut level = 0;
        loop {
            group.retain(|&flow| flows[flow].subflows.len() > level);
            if group.is_empty() {
                break;
            }
            let needs: Vec<Need> = group.iter().map(|&flow| flows[flow].subflows[level]).collect();
            let taken = pool.take_together(&needs);
            for (&flow, shares) in group.iter().zip(&taken) {
                result[flow][level].clone_from(shares);
            }
            let mut carried = taken.iter().map(|shares| !shares.is_empty());
            group.retain(|_| carried.next().unwrap_or(false));
            level += 1;
        }
    }
    result
}

/// Reason why a flow is not admitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Rejected {
    /// No channel delivers within the deadline of the first sub-flow.
    #[error("no channel delivers within the deadline of the first sub-flow")]
    TooLate,
    /// Remaining capacity below the requirement of the first sub-flow.
    #[error("the channels do not have the rate of the first sub-flow")]
    TooLittle,
    /// Displacement of a sub-flow of a flow with the same or more importance.
    #[error("flow {0} of no less importance would lose a sub-flow")]
    Displaces(usize),
}

/// Returns whether `flow` may join `flows`: its first sub-flow is satisfied, and no flow of the
/// same or higher importance gets less.
///
/// # Errors
/// [`Rejected`]: nothing is changed in either case.
pub fn admit(
    flow: &FlowNeed,
    flows: &[FlowNeed],
    channels: &[Channel],
    remainder: Remainder,
) -> Result<(), Rejected> {
    let before = allocate_flows(flows, channels, remainder);
    let all: Vec<FlowNeed> = flows.iter().chain([flow]).cloned().collect();
    let after = allocate_flows(&all, channels, remainder);
    if after
        .last()
        .and_then(|shares| shares.first())
        .is_none_or(Vec::is_empty)
    {
        let deadline = flow.subflows.first().and_then(|need| need.deadline);
        let is_late = |channel: &Channel| deadline.is_some_and(|deadline| channel.delay >= deadline);
        return Err(if !channels.is_empty() && channels.iter().all(is_late) {
            Rejected::TooLate
        } else {
            Rejected::TooLittle
        });
    }
    let carried = |shares: &[Shares]| shares.iter().filter(|shares| !shares.is_empty()).count();
    let loser = (0..flows.len()).find(|&other| {
        flows[other].importance >= flow.importance && carried(&after[other]) < carried(&before[other])
    });
    loser.map_or(Ok(()), |other| Err(Rejected::Displaces(other)))
}

/// Remaining capacity of the channels during an allocation.
struct Pool {
    channels: Vec<Channel>,
    left: Vec<Rate>,
    remainder: Remainder,
}

impl Pool {
    fn new(channels: &[Channel], remainder: Remainder) -> Self {
        let mut channels = channels.to_vec();
        sort_by_reliability(&mut channels);
        let left = channels.iter().map(Channel::effective).collect();
        Self {
            channels,
            left,
            remainder,
        }
    }

    /// Takes what a sub-flow needs, or nothing.
    fn take(&mut self, need: &Need) -> Option<Shares> {
        let plan = match self.remainder {
            Remainder::Shared => self.plan(need, |_| true),
            Remainder::LastResort => {
                let untouched: Vec<bool> = (0..self.left.len())
                    .map(|at| self.left[at] == self.channels[at].effective())
                    .collect();
                self.plan(need, |at| untouched[at])
                    .or_else(|| self.plan(need, |_| true))
            }
        }?;
        Some(self.commit(&plan))
    }

    /// Plans which channels to use and how much of each: the topmost that `may` accepts, until they
    /// suffice.
    fn plan(&self, need: &Need, may: impl Fn(usize) -> bool) -> Option<Vec<(usize, Rate)>> {
        let mut plan: Vec<(usize, Rate)> = Vec::new();
        let (mut got, mut longest) = (0u64, Duration::ZERO);
        for (at, channel) in self.channels.iter().enumerate() {
            let in_time = need.deadline.is_none_or(|deadline| channel.delay < deadline);
            if !in_time || self.left[at] == Rate::ZERO || !may(at) {
                continue;
            }
            longest = longest.max(channel.delay);
            let wanted = wanted(need, longest).as_bps();
            let part = self.left[at].as_bps().min(wanted.saturating_sub(got));
            plan.push((at, Rate::from_bps(part)));
            got = got.saturating_add(part);
            if got >= wanted {
                return Some(plan);
            }
        }
        // A sub-flow that sends nothing needs nothing, but it has to know where to send its first
        // packet.
        None
    }

    fn commit(&mut self, plan: &[(usize, Rate)]) -> Shares {
        plan.iter()
            .map(|&(at, rate)| {
                self.left[at] = Rate::from_bps(self.left[at].as_bps() - rate.as_bps());
                Share {
                    channel: self.channels[at].id,
                    rate,
                }
            })
            .collect()
    }

    fn take_everything(&mut self, need: &Need) -> Shares {
        let in_time = |at: &usize| {
            need.deadline
                .is_none_or(|deadline| self.channels[*at].delay < deadline)
        };
        let plan: Vec<_> = (0..self.channels.len())
            .filter(in_time)
            .map(|at| (at, self.left[at]))
            .filter(|&(_, rate)| rate != Rate::ZERO)
            .collect();
        self.commit(&plan)
    }

    /// Takes for several sub-flows of one importance together if all fit, or else for as many as
    /// fit, each alone.
    fn take_together(&mut self, needs: &[Need]) -> Vec<Shares> {
        let alike = needs.windows(2).all(|pair| pair[0].deadline == pair[1].deadline);
        let total: u64 = needs.iter().map(|need| need.traffic.rate().as_bps()).sum();
        let burst: u64 = needs.iter().map(|need| need.traffic.burst().0).sum();
        let sum = Need {
            traffic: Requirement::TokenBucket {
                rate: Rate::from_bps(total),
                burst: hawser_units::Bytes(burst),
            },
            deadline: needs.first().and_then(|need| need.deadline),
        };
        let together = (alike && needs.len() > 1 && total > 0)
            .then(|| self.take(&sum))
            .flatten();
        let Some(shares) = together else {
            return needs
                .iter()
                .map(|need| self.take(need).unwrap_or_default())
                .collect();
        };
        let part = |need: &Need| {
            let scaled = |share: &Share| {
                let bps = u128::from(share.rate.as_bps()) * u128::from(need.traffic.rate().as_bps())
                    / u128::from(total);
                Share {
                    rate: Rate::from_bps(u64::try_from(bps).unwrap_or(u64::MAX)),
                    ..*share
                }
            };
            shares.iter().map(scaled).collect()
        };
        needs.iter().map(part).collect()
    }
}

/// The rate that a sub-flow needs over channels of which the slowest takes `delay`.
fn wanted(need: &Need, delay: Duration) -> Rate {
    let wait = need.deadline.map(|deadline| deadline.saturating_sub(delay));
    need.traffic.rate_for(wait)
}

#[cfg(test)]
mod tests;
