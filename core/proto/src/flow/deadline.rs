//! Deadlines by configuration: the time within which packets of some flows must arrive.
//!
//! A rule applies to a flow from its first packet on, and from a change of the rules on. A datagram
//! flow with a deadline is real-time traffic, QUIC included. TCP has no deadlines.

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
    /// Returns the deadline of a flow, according to one of its packets.
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
    /// Sets the rules; `is_from_client`: this side is the client. Existing flows are matched again
    /// when their next packet arrives.
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
    /// Returns the time after its arrival for which a packet is of use, if a rule sets it.
    #[must_use]
    pub fn deadline(&self) -> Option<Duration> {
        self.deadline
    }

    /// Returns the time for which its packets are of use: by a rule, or else by its class.
    pub(crate) fn useful_for(&self) -> Option<Duration> {
        self.deadline.or(self.budget)
    }

    /// Sets the deadline of the flow by a rule; `None` without one.
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
