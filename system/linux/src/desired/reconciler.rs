//! Reconciler: schedules repairs of differences, and reports them.
//!
//! The state machine requests a dump of the kernel's state at its start, after notifications and
//! once per poll interval. Each dump yields repairs, and each repair is followed by another dump
//! until there are no differences.
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
//! Back-off: an object that is changed repeatedly right after its repair is managed by another
//! program. From the [`REPAIRS_BEFORE_BACKOFF`]th time on, the delay doubles from 1 s to
//! [`MAX_DELAY`]. Objects that keep traffic in the tunnel ([`Difference::is_guard`]) are repaired
//! without a delay, at most once per [`SETTLE`]: a back-off must never let traffic out.
//!
//! Failure: a repair that the kernel rejects is reported once and retried after [`FAILURE_DELAY`],
//! later with the same back-off.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use hawser_units::Instant;

use super::capture::{Capture, capture};
use super::difference::{Cause, Difference, Repair, difference};
use super::near::{Refused, near};
use super::{Desired, Object, Observed};

/// Action for the shell.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    /// Read the kernel, then call [`Reconciler::handle_dump`].
    Dump,
    /// Repair an object.
    Repair(Object, Repair),
}

/// Event for the operator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Event {
    /// An object differed from the desired state and is being restored.
    Restored(Object, Cause),
    /// Another program changes the object repeatedly, so repairs become less frequent.
    Insists(Object),
    /// A route of a network would bypass the tunnel.
    Refused(Refused),
    /// Another VPN receives all traffic first.
    Nested(String),
    /// The kernel rejects a repair.
    Failed(Object, String),
}

/// Purpose of a deadline.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reason {
    /// The kernel's state is read without a notification.
    Poll,
    /// Notifications or repairs have settled.
    Settle,
    /// A delayed repair is due.
    BackOff,
}

/// State of repairs of one object.
#[derive(Clone, Copy, Debug)]
struct Attempts {
    /// Number of changes right after a repair.
    count: u32,
    /// Start of the latest repair.
    at: Instant,
    /// Earliest time of the next repair.
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
    /// Reported differences, with the time when they were last seen.
    reported: BTreeMap<(Object, Cause), Instant>,
    refused: BTreeSet<Refused>,
    nested: Option<String>,
    failed: BTreeSet<Object>,
}

impl Reconciler {
    /// Creates a machine that requests a dump at once.
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

    /// Processes a notification of a change in the kernel.
    pub(crate) fn handle_notification(&mut self, now: Instant) {
        self.wake(now + DEBOUNCE, Reason::Settle);
    }

    /// Compares the desired with the observed state.
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

    /// Processes that the kernel's state could not be read.
    pub(crate) fn handle_no_dump(&mut self, now: Instant) {
        self.due = (now + POLL_INTERVAL, Reason::Poll);
    }

    /// Processes that the kernel rejected a repair.
    pub(crate) fn handle_failure(&mut self, object: Object, error: String, now: Instant) {
        let attempts = self.attempts.entry(object.clone()).or_insert(Attempts {
            count: 1,
            at: now,
            next: now,
        });
        attempts.next = attempts.next.max(now + FAILURE_DELAY);
        if self.failed.insert(object.clone()) {
            self.events.push_back(Event::Failed(object, error));
        }
    }

    /// Processes expired deadlines.
    pub(crate) fn handle_timeout(&mut self, now: Instant) {
        if now >= self.due.0 {
            self.is_dump_wanted = true;
        }
    }

    /// Returns the next action.
    pub(crate) fn poll_transmit(&mut self) -> Option<Action> {
        if let Some(action) = self.actions.pop_front() {
            return Some(action);
        }
        std::mem::take(&mut self.is_dump_wanted).then_some(Action::Dump)
    }

    /// Returns the next event.
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
        if count == REPAIRS_BEFORE_BACKOFF {
            self.events.push_back(Event::Insists(object.clone()));
        }
        let delay = match count.checked_sub(REPAIRS_BEFORE_BACKOFF) {
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

    /// Reports a cause unless it was reported and has persisted since.
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

    /// Bounds the memory: causes absent for [`MEMORY`] are forgotten, and reported again when they
    /// return.
    fn forget_old(&mut self, now: Instant) {
        self.reported.retain(|_, seen| now <= *seen + MEMORY);
        self.attempts.retain(|_, attempts| now <= attempts.next + MEMORY);
        if self.attempts.is_empty() {
            self.failed.clear();
        }
    }

    /// Returns the currently refused routes.
    pub(crate) fn refused(&self) -> &BTreeSet<Refused> {
        &self.refused
    }

    /// Returns the other VPN that all traffic enters first.
    pub(crate) fn nested(&self) -> Option<&str> {
        self.nested.as_deref()
    }
}

/// Time within which the burst of notifications of one change mostly ends. Source: our choice; a
/// shorter one repairs one change several times, a longer one lets packets leave by a wrong route
/// for as long.
const DEBOUNCE: Duration = Duration::from_millis(5);
/// Time between a repair and the check of it, and between two repairs of one object. Source: at
/// most 20 repairs of an object per second.
pub(crate) const SETTLE: Duration = Duration::from_millis(50);
/// Interval of dumps without a notification. Source: half of the second in which a change must be
/// restored.
pub(crate) const POLL_INTERVAL: Duration = Duration::from_millis(500);
/// An object that is broken again within this time after its repair was possible is broken by a
/// program that watches it: such a program answers a notification of the kernel, while services
/// that restart, and timers, take longer. Source: our choice, four intervals of [`SETTLE`]; a
/// longer one takes services that restart for programs that insist.
const INSISTENCE: Duration = Duration::from_millis(200);
/// Times that an object is repaired at once before another program counts as one that insists. A
/// start of systemd-networkd or firewalld takes objects away up to three times. Source: our choice,
/// more than twice that; more repairs are a contest with another program, in which both take the
/// processor.
pub(crate) const REPAIRS_BEFORE_BACKOFF: u32 = 8;
/// Delay of a repair after the kernel has rejected it, perhaps because the other program's change
/// is not complete yet.
///
/// Source: four tries in the second in which a change must be restored.
const FAILURE_DELAY: Duration = Duration::from_millis(250);
/// First delay of a repair that another program opposes. Source: our choice, the second in which a
/// change must be restored; the next ones are longer, since that program has the last word anyway.
const FIRST_DELAY: Duration = Duration::from_secs(1);
/// Longest delay of a repair that another program opposes. Source: five doublings of
/// [`FIRST_DELAY`].
pub(crate) const MAX_DELAY: Duration = Duration::from_secs(32);
/// A cause is reported once, and again when it returns after this time. Source: our choice; a
/// shorter one fills the log with a cause that returns, a longer one only takes memory.
const MEMORY: Duration = Duration::from_secs(600);
