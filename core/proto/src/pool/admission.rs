//! Admission of declared flows: the flows for which their declared rate is reserved.
//!
//! Flows are admitted in the order in which they begin. A flow that does not fit in the capacity
//! that the admitted flows leave is rejected, and tried again every [`RETRY`]. An admitted flow is
//! not displaced by a later one of the same importance.
//!
//! ```text
//!                fits                               does not fit for GRACE
//!   Undecided ----------> Admitted ------------------------------------------> Rejected
//!     |    ^                  ^                                                 |   ^
//!     |    +-- rates unknown  +------------------ fits, after RETRY ------------+   |
//!     +------------------------- does not fit, and all rates are measured ----------+
//! ```
//!
//! Steady state: one test of each flow in [`RETRY`]. Failure: if the capacity falls, the flow that
//! was admitted last is rejected first. A rejected flow is not blocked; the owner of this machine
//! decides about its share.
//!
//! Source: Piconet section III-C (flows of equal importance, and the newly arriving flow of the
//! appendix). Deviates: the paper omits the least important sub-flows if the bandwidth is too low;
//! here the whole flow is rejected, and its owner continues it without a reservation.

use std::fmt;

use hawser_units::{Duration, Instant};

use super::allocation::{Channel, FlowNeed, Rejected, Remainder, admit};

/// Decision about a declared flow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Verdict {
    /// No packet of the flow has been seen, or the rates of the channels are not measured.
    #[default]
    Undecided,
    /// The channels have the declared rate beside the flows admitted before.
    Admitted,
    /// The flow does not fit beside the flows admitted before.
    Rejected(Rejected),
}

impl Verdict {
    /// Returns a word for the decision.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Undecided => "undecided",
            Self::Admitted => "admitted",
            Self::Rejected(_) => "rejected",
        }
    }

    /// Returns the reason for the decision.
    #[must_use]
    pub fn reason(self) -> &'static str {
        match self {
            Self::Undecided => "no packet of it has been seen, or a network's rate is not measured",
            Self::Admitted => "the networks have its rate",
            Self::Rejected(Rejected::TooLate) => "no network delivers within its deadline",
            Self::Rejected(Rejected::TooLittle) => {
                "the flows admitted before leave too little of the networks' rates"
            }
            Self::Rejected(Rejected::Displaces(_)) => "a flow admitted before would lose its rate",
        }
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.name(), self.reason())
    }
}

/// State of a flow's admission.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Standing {
    verdict: Verdict,
    /// Position in the order of admissions.
    order: u64,
    /// Last time at which an admitted flow fitted, or a rejected one was tested.
    tested: Option<Instant>,
}

impl Standing {
    /// Returns the decision.
    #[must_use]
    pub fn verdict(&self) -> Verdict {
        self.verdict
    }

    /// Returns whether the flow is admitted.
    #[must_use]
    pub fn is_admitted(&self) -> bool {
        self.verdict == Verdict::Admitted
    }

    fn is_older_than(&self, time: Duration, now: Instant) -> bool {
        self.tested.is_none_or(|at| now.since(at) >= time)
    }
}

/// Tests flows against the channels, of which admitted flows may use the whole rate, and updates
/// their standings: one for each flow, in any order.
///
/// `is_measured` is false while the rate of a channel may be higher than it seems; then no flow is
/// rejected for it.
/// Cost: O(n^2 x channels) for n flows.
pub fn review(
    flows: &[FlowNeed],
    standings: &mut [&mut Standing],
    channels: &[Channel],
    is_measured: bool,
    now: Instant,
) {
    let mut accepted: Vec<FlowNeed> = Vec::with_capacity(flows.len());
    let mut admitted: Vec<usize> = (0..standings.len().min(flows.len()))
        .filter(|at| standings[*at].is_admitted())
        .collect();
    admitted.sort_by_key(|at| standings[*at].order);
    let mut order = admitted.last().map_or(0, |at| standings[*at].order);
    let test = |flow: &FlowNeed, accepted: &[FlowNeed]| admit(flow, accepted, channels, Remainder::Shared);
    for at in &admitted {
        let standing = &mut *standings[*at];
        match test(&flows[*at], &accepted) {
            Ok(()) => standing.tested = Some(now),
            Err(reason) if is_measured && standing.is_older_than(GRACE, now) => {
                standing.verdict = Verdict::Rejected(reason);
                standing.tested = Some(now);
                continue;
            }
            Err(_) => {}
        }
        accepted.push(flows[*at].clone());
    }
    for (at, flow) in flows.iter().enumerate().take(standings.len()) {
        let standing = &mut *standings[at];
        let is_due = standing.verdict == Verdict::Undecided || standing.is_older_than(RETRY, now);
        if admitted.contains(&at) || !is_due {
            continue;
        }
        standing.tested = Some(now);
        standing.verdict = match test(flow, &accepted) {
            Ok(()) => {
                order += 1;
                standing.order = order;
                accepted.push(flow.clone());
                Verdict::Admitted
            }
            Err(Rejected::TooLittle | Rejected::Displaces(_)) if !is_measured => Verdict::Undecided,
            Err(reason) => Verdict::Rejected(reason),
        };
    }
}

/// Time for which an admitted flow need not fit: rates of paths vary between rounds. Source: our
/// choice, two tests.
const GRACE: Duration = Duration::from_secs(2);

/// Interval of tests of a rejected flow. Source: our choice, ten plans of `egress::declared`.
pub const RETRY: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use hawser_units::{Bytes, PathId, Rate};
    use proptest::prelude::*;

    use super::super::allocation::Need;
    use super::super::requirement::Requirement;
    use super::*;

    const NOW: Instant = Instant::from_nanos(1_000_000_000);

    fn flow(kbps: u64, deadline_ms: Option<u64>) -> FlowNeed {
        let traffic = Requirement::TokenBucket {
            rate: Rate::from_bps(kbps * 1_000),
            burst: Bytes(0),
        };
        let deadline = deadline_ms.map(Duration::from_millis);
        FlowNeed {
            importance: 0,
            subflows: vec![Need { traffic, deadline }],
        }
    }

    fn channels(kbps: &[u64]) -> Vec<Channel> {
        let channel = |(id, kbps): (u16, &u64)| Channel {
            id: PathId(id),
            rate: Rate::from_bps(kbps * 1_000),
            loss: 0.0,
            delay: Duration::from_millis(20),
        };
        (0..).zip(kbps).map(channel).collect()
    }

    struct World {
        flows: Vec<FlowNeed>,
        standings: Vec<Standing>,
    }

    impl World {
        fn new(flows: &[FlowNeed]) -> Self {
            Self {
                flows: flows.to_vec(),
                standings: vec![Standing::default(); flows.len()],
            }
        }

        /// Returns the first letters of the verdicts.
        fn review(&mut self, kbps: &[u64], is_measured: bool, ms: u64) -> String {
            let mut standings: Vec<_> = self.standings.iter_mut().collect();
            let now = NOW + Duration::from_millis(ms);
            review(&self.flows, &mut standings, &channels(kbps), is_measured, now);
            let names = self.standings.iter().map(|one| one.verdict().name());
            names.filter_map(|name| name.chars().next()).collect()
        }
    }

    #[test]
    fn later_flows_displace_no_earlier_ones_and_smaller_ones_fit_between() {
        let mut world = World::new(&[flow(600, None), flow(500, None), flow(300, None)]);
        assert_eq!(world.review(&[700, 300], true, 0), "ara");
        assert_eq!(
            world.standings[1].verdict(),
            Verdict::Rejected(Rejected::TooLittle)
        );
        // A place becomes free, and is found at the next test.
        world.flows[0] = flow(100, None);
        assert_eq!(world.review(&[700, 300], true, 500), "ara");
        assert_eq!(world.review(&[700, 300], true, 1_000), "aaa");
    }

    #[test]
    fn the_last_one_goes_first_if_the_capacity_falls_for_long() {
        let mut world = World::new(&[flow(500, None)]);
        world.review(&[1_000], true, 0);
        world.flows.insert(0, flow(400, None));
        world.standings.insert(0, Standing::default());
        assert_eq!(world.review(&[1_000], true, 100), "aa");
        assert_eq!(world.review(&[600], true, 900), "aa", "a moment changes nothing");
        assert_eq!(world.review(&[600], true, 2_100), "ra");
        assert_eq!(world.review(&[300], false, 9_000), "ua", "perhaps there is more");
        assert_eq!(world.review(&[300], true, 9_000), "rr");
        assert_eq!(world.review(&[1_000], true, 10_000), "aa");
    }

    #[test]
    fn nothing_is_rejected_before_rates_are_measured_but_what_would_be_late() {
        let mut world = World::new(&[flow(5_000, None), flow(100, None), flow(100, Some(20))]);
        assert_eq!(world.review(&[1_000], false, 0), "uar");
        assert_eq!(world.standings[2].verdict(), Verdict::Rejected(Rejected::TooLate));
        assert_eq!(world.review(&[1_000], true, 1), "rar");
        assert_eq!(world.review(&[], true, 5_000), "rrr");
    }

    proptest! {
        #[test]
        fn the_admitted_fit_together(
            rates in prop::collection::vec(1u64..2_000, 1..12),
            capacities in prop::collection::vec(prop::collection::vec(0u64..3_000, 0..4), 1..12),
        ) {
            let flows: Vec<_> = rates.iter().map(|kbps| flow(*kbps, None)).collect();
            let mut world = World::new(&flows);
            for (step, capacity) in (0u64..).zip(&capacities) {
                // Each step is later than the grace time.
                world.review(capacity, true, step * 2_000);
                let admitted = world.standings.iter().zip(&rates).filter(|(one, _)| one.is_admitted());
                let sum: u64 = admitted.map(|(_, kbps)| kbps).sum();
                prop_assert!(sum <= capacity.iter().sum());
                // What was rejected does not fit beside them.
                let left = capacity.iter().sum::<u64>() - sum;
                let rejected = world.standings.iter().zip(&rates).filter(|(one, _)| !one.is_admitted());
                for (_, kbps) in rejected {
                    prop_assert!(*kbps > left, "{kbps} of {left}");
                }
            }
        }
    }
}
