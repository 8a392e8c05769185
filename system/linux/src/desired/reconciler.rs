//! When differences are repaired, and what is reported of them.
//!
//! The machine asks for a dump of the kernel at its start, after notifications and once per poll
//! interval. Each dump yields repairs, and each repair is followed by another dump until nothing
//! differs.
//!
//! ```text
//!            notification, poll interval, end of a back-off
//!          +-----------------------------------------------+
//!          v                                               |
//!       Dump asked --handle_dump--> differences? --no--> Quiet
//!          ^                            |
//!          |                            yes: repairs, each no sooner than its back-off allows
//!          +------ after SETTLE --------+
//! ```
//!
//! Back-off: an object that is broken again and again right after its repair belongs to a program
//! that insists. From the [`PATIENCE`]th time on, the delay doubles from 1 s to [`MAX_DELAY`].
//! Objects that keep traffic in ([`Difference::is_guard`]) are repaired at most once per
//! [`SETTLE`] and otherwise without a delay: backing off must never open anything.
//!
//! Failure: a repair that the kernel rejects is reported once and tried again as if another program
//! insisted.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use hawser_units::Instant;

use super::capture::{Capture, capture};
use super::difference::{Cause, Difference, Repair, difference};
use super::near::{Refused, near};
use super::{Desired, Object, Observed};

/// What the shell has to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    /// Read the kernel, then call [`Reconciler::handle_dump`].
    Dump,
    /// Repair an object.
    Repair(Object, Repair),
}

/// What an operator should know.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Event {
    /// An object was not as desired and is being restored.
    Restored(Object, Cause),
    /// Another program breaks the object again and again, so repairs become rarer.
    Insists(Object),
    /// A route of a network would have led past the tunnel.
    Refused(Refused),
    /// All traffic enters another VPN first.
    Nested(String),
    /// The kernel rejects a repair.
    Failed(Object, String),
}

/// Which deadline is meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reason {
    /// The kernel is read although nothing was notified.
    Poll,
    /// Notifications or repairs have settled.
    Settle,
    /// A delayed repair is due.
    BackOff,
}

/// State of repairs of one object.
#[derive(Clone, Copy, Debug)]
struct Attempts {
    /// Times that the object was broken right after its repair.
    count: u32,
    /// Start of the latest repair.
    at: Instant,
    /// Earliest time of the next one.
    next: Instant,
}

/// The machine.
#[derive(Debug)]
pub(crate) struct Reconciler {
    due: (Instant, Reason),
    is_dump_wanted: bool,
    attempts: BTreeMap<Object, Attempts>,
    actions: VecDeque<Action>,
    events: VecDeque<Event>,
    /// What was reported, with the time when it was last seen.
    reported: BTreeMap<(Object, Cause), Instant>,
    refused: BTreeSet<Refused>,
    nested: Option<String>,
    failed: BTreeSet<Object>,
}

impl Reconciler {
    /// A machine that asks for a dump at once.
    pub(crate) fn new(now: Instant) -> Self {
        Self {
            due: (now, Reason::Settle),
            is_dump_wanted: true,
            attempts: BTreeMap::new(),
            actions: VecDeque::new(),
            events: VecDeque::new(),
            reported: BTreeMap::new(),
            refused: BTreeSet::new(),
            nested: None,
            failed: BTreeSet::new(),
        }
    }

    /// Takes notice that something changed in the kernel.
    pub(crate) fn handle_notification(&mut self, now: Instant) {
        self.wake(now + DEBOUNCE, Reason::Settle);
    }

    /// Compares what is desired with what the kernel holds.
    pub(crate) fn handle_dump(&mut self, desired: &Desired, observed: &Observed, now: Instant) {
        self.due = (now + POLL_INTERVAL, Reason::Poll);
        self.report_policy(desired, observed);
        self.forget_old(now);
        for difference in difference(desired, observed) {
            self.on_difference(difference, now);
        }
        if !self.actions.is_empty() {
            self.wake(now + SETTLE, Reason::Settle);
        }
    }

    /// Takes notice that the kernel could not be read.
    pub(crate) fn handle_no_dump(&mut self, now: Instant) {
        self.due = (now + POLL_INTERVAL, Reason::Poll);
    }

    /// Takes notice that the kernel rejected a repair.
    pub(crate) fn handle_failure(&mut self, object: Object, error: String, now: Instant) {
        let attempts = self.attempts.entry(object.clone()).or_insert(Attempts {
            count: 1,
            at: now,
            next: now,
        });
        attempts.next = attempts.next.max(now + FIRST_DELAY);
        if self.failed.insert(object.clone()) {
            self.events.push_back(Event::Failed(object, error));
        }
    }

    /// Lets time pass.
    pub(crate) fn handle_timeout(&mut self, now: Instant) {
        if now >= self.due.0 {
            self.is_dump_wanted = true;
        }
    }

    /// Returns what the shell has to do next.
    pub(crate) fn poll_transmit(&mut self) -> Option<Action> {
        if let Some(action) = self.actions.pop_front() {
            return Some(action);
        }
        std::mem::take(&mut self.is_dump_wanted).then_some(Action::Dump)
    }

    /// Returns what an operator should know next.
    pub(crate) fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// Returns when [`handle_timeout`](Self::handle_timeout) is due.
    pub(crate) fn poll_timeout(&self) -> Option<(Instant, Reason)> {
        Some(self.due)
    }

    fn wake(&mut self, at: Instant, reason: Reason) {
        if at < self.due.0 {
            self.due = (at, reason);
        }
    }

    fn on_difference(&mut self, difference: Difference, now: Instant) {
        let Difference {
            object,
            cause,
            repair,
            is_guard,
        } = difference;
        let attempts = self.attempts.get(&object).copied();
        if let Some(attempts) = attempts
            && attempts.next > now
        {
            self.wake(attempts.next, Reason::BackOff);
            return;
        }
        if cause != Cause::Own {
            self.on_attempt(&object, attempts, is_guard, now);
            self.report(&object, cause, now);
        }
        self.actions.push_back(Action::Repair(object, repair));
    }

    fn on_attempt(&mut self, object: &Object, before: Option<Attempts>, is_guard: bool, now: Instant) {
        let is_again = before.is_some_and(|before| now <= before.next.max(before.at) + INSISTENCE);
        let count = if is_again {
            before.map_or(0, |before| before.count) + 1
        } else {
            1
        };
        if count == PATIENCE {
            self.events.push_back(Event::Insists(object.clone()));
        }
        let delay = match count.checked_sub(PATIENCE) {
            Some(over) if !is_guard => (FIRST_DELAY * 2_u32.pow(over.min(8))).min(MAX_DELAY),
            _ => SETTLE,
        };
        let attempts = Attempts {
            count,
            at: now,
            next: now + delay,
        };
        self.attempts.insert(object.clone(), attempts);
    }

    /// Reports a cause unless it was reported and has gone on since.
    fn report(&mut self, object: &Object, cause: Cause, now: Instant) {
        let seen = self.reported.insert((object.clone(), cause.clone()), now);
        if seen.is_none() {
            self.events.push_back(Event::Restored(object.clone(), cause));
        }
    }

    /// Reports refused routes and other VPNs when they appear.
    fn report_policy(&mut self, desired: &Desired, observed: &Observed) {
        let Some(policy) = desired.near() else { return };
        let refused = near(policy, observed).1;
        let fresh = refused.difference(&self.refused).cloned().map(Event::Refused);
        self.events.extend(fresh.collect::<Vec<_>>());
        self.refused = refused;
        let nested = [false, true]
            .into_iter()
            .find_map(|ipv6| match capture(desired, observed, ipv6) {
                Some((_, Capture::Nested { device })) => Some(device),
                _ => None,
            });
        if nested != self.nested {
            self.events.extend(nested.clone().map(Event::Nested));
            self.nested = nested;
        }
    }

    /// Bounds the memory: what has been quiet for [`MEMORY`] is reported again when it returns.
    fn forget_old(&mut self, now: Instant) {
        self.reported.retain(|_, seen| now <= *seen + MEMORY);
        self.attempts.retain(|_, attempts| now <= attempts.next + MEMORY);
        if self.attempts.is_empty() {
            self.failed.clear();
        }
    }

    /// Routes that are refused now.
    pub(crate) fn refused(&self) -> &BTreeSet<Refused> {
        &self.refused
    }

    /// The other VPN that all traffic enters first.
    pub(crate) fn nested(&self) -> Option<&str> {
        self.nested.as_deref()
    }
}

/// One change of another program is a burst of notifications, which mostly ends within this time.
const DEBOUNCE: Duration = Duration::from_millis(5);
/// Time between a repair and the check of it, and between two repairs of one object: at most 20
/// repairs of an object per second.
pub(crate) const SETTLE: Duration = Duration::from_millis(50);
/// Interval of dumps without a notification: half of the second in which a change must be restored.
pub(crate) const POLL_INTERVAL: Duration = Duration::from_millis(500);
/// An object that is broken again within this time after its repair was possible is broken by a
/// program that watches it: such a program answers a notification of the kernel, while services
/// that restart, and timers, take longer.
const INSISTENCE: Duration = Duration::from_millis(200);
/// Times that an object is repaired at once before another program counts as one that insists.
/// A start of systemd-networkd or firewalld takes objects away up to three times.
pub(crate) const PATIENCE: u32 = 8;
/// First delay of a repair that another program opposes.
const FIRST_DELAY: Duration = Duration::from_secs(1);
/// Longest delay of a repair that another program opposes.
pub(crate) const MAX_DELAY: Duration = Duration::from_secs(32);
/// A cause is reported once, and again when it returns after this time.
const MEMORY: Duration = Duration::from_secs(600);
