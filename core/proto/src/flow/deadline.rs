//! Deadlines that the configuration sets: for how long packets of some flows are of use.
//!
//! A rule holds for a flow from its first packet on, and from when the rules change. A datagram
//! flow that a rule is for is real-time traffic, also QUIC. TCP has no deadlines.

use hawser_units::{Duration, Instant};
use hawser_wire::data::Class;
use hawser_wire::deadline::DeadlineRule;
use hawser_wire::inner::{Summary, protocol};

use super::behaviour::Meter;
use super::{Flow, Flows};

/// The rules of a session's sending side.
#[derive(Debug, Default)]
pub(super) struct Deadlines {
    rules: Vec<DeadlineRule>,
    /// Packets come from the client's side.
    is_from_client: bool,
}

impl Deadlines {
    /// Returns the deadline of a flow by a packet of it.
    pub(super) fn of(&self, summary: &Summary) -> Option<Duration> {
        if summary.key.protocol == protocol::TCP {
            return None;
        }
        let mut rules = self.rules.iter();
        let rule = rules.find(|rule| rule.matches(summary, self.is_from_client))?;
        rule.deadline
    }
}

impl<B: Copy> Flows<B> {
    /// Sets the rules; `is_from_client`: this side is the client. Flows that are there are looked
    /// at again when their next packet comes in.
    pub fn set_deadlines(&mut self, rules: Vec<DeadlineRule>, is_from_client: bool) {
        self.deadlines = Deadlines {
            rules,
            is_from_client,
        };
        for flow in self.slots.iter_mut().flatten() {
            flow.is_ruled = false;
        }
    }
}

impl<B> Flow<B> {
    /// Returns how long after it came in a packet is of use, where a rule says so.
    #[must_use]
    pub fn deadline(&self) -> Option<Duration> {
        self.deadline
    }

    /// Returns the time for which its packets are of use: what a rule says, or else what its class
    /// allows.
    pub(crate) fn useful_for(&self) -> Option<Duration> {
        self.deadline.or(self.budget)
    }

    /// Lets a rule hold for the flow, or none any more.
    pub(super) fn set_deadline(&mut self, deadline: Option<Duration>, now: Instant) {
        self.is_ruled = true;
        if deadline.is_some() && self.class != Class::Layered {
            (self.class, self.why) = (Class::Realtime, "a rule sets a deadline");
            self.meter.get_or_insert_with(|| Meter::new(now));
        }
        self.unordered |= deadline.is_some();
        self.deadline = deadline;
    }
}
