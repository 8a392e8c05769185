//! Detection of captive portals, from the network's own announcement or from the content of a known
//! page, and the times to check again.
//!
//! It starts in an unknown state. An unknown network may be blocked until the first check, but only
//! for a short time, because the page may be unreachable for other reasons. A check finds the page
//! (no portal), other content (a portal), or nothing. Only the page itself ends captivity. If the
//! network announces whether it has a portal, the announcement counts as the page or as other
//! content.
//!
//! ```text
//!              page                      something else
//!   Unknown ---------> Open ----------------------------> Captive
//!      |  ^              ^                                   |
//!      +--+ nothing      +------------- page ----------------+
//!      +------------------ something else -------------------^
//! ```
//!
//! Source: RFC 8952 section 2 (captive portals), appendix A (request for a known page); RFC 8908
//! (announcement by the network).
//! Limitations: a portal is not detected if the network announces none and lets the page through,
//! or if it intercepts only TLS.

use hawser_units::{Duration, Instant};

/// State of a network.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum State {
    /// Unknown.
    #[default]
    Unknown,
    /// No portal.
    Open,
    /// Captive: a portal intercepts traffic.
    Captive,
}

/// Result of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The page, or the network's announcement that it has no portal.
    Page,
    /// Another content, or the network's announcement of a portal.
    Other,
    /// No usable result.
    Nothing,
}

/// Portal detector of one network.
///
/// Cost: O(1) a check.
#[derive(Debug)]
pub struct Portal {
    state: State,
    next: Instant,
    /// Set while a check is under way.
    is_looking: bool,
    /// Number of checks in a row without a result.
    nothing: u32,
    held_until: Option<Instant>,
}

impl Portal {
    /// Creates a detector that checks at once. `is_held`: the network transfers nothing before the
    /// first check has ended, or [`TIMEOUT`] has passed.
    #[must_use]
    pub fn new(is_held: bool, now: Instant) -> Self {
        Self {
            state: State::Unknown,
            next: now,
            is_looking: false,
            nothing: 0,
            held_until: is_held.then(|| now + TIMEOUT),
        }
    }

    /// Returns the present state.
    #[must_use]
    pub fn state(&self) -> State {
        self.state
    }

    /// Returns whether the network may be used by flows.
    #[must_use]
    pub fn may_carry(&self) -> bool {
        self.state != State::Captive && self.held_until.is_none()
    }

    /// Returns whether to check now; the caller checks and reports the result.
    pub fn poll_transmit(&mut self, now: Instant) -> bool {
        let is_due = !self.is_looking && now >= self.next;
        self.is_looking |= is_due;
        is_due
    }

    /// Handles the result of a check.
    pub fn handle_outcome(&mut self, outcome: Outcome, now: Instant) {
        self.is_looking = false;
        self.held_until = None;
        self.nothing = if outcome == Outcome::Nothing {
            self.nothing + 1
        } else {
            0
        };
        self.state = match outcome {
            Outcome::Page => State::Open,
            Outcome::Other => State::Captive,
            Outcome::Nothing => self.state,
        };
        let pause = match self.state {
            State::Captive => WHILE_CAPTIVE,
            State::Open => WHILE_OPEN,
            State::Unknown => (FIRST_PAUSE * 2_u32.pow(self.nothing.min(8))).min(WHILE_OPEN),
        };
        self.next = now + pause;
    }

    /// Handles a change of the inputs: checks at once, or after the check under way.
    pub fn handle_change(&mut self, now: Instant) {
        self.next = now;
    }

    /// Unblocks the network if the first check has taken too long at `now`.
    pub fn handle_timeout(&mut self, now: Instant) {
        if self.held_until.is_some_and(|until| until <= now) {
            self.held_until = None;
        }
    }

    /// Returns when a check is due, or when the network is no longer blocked.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Instant> {
        let next = (!self.is_looking).then_some(self.next);
        next.into_iter().chain(self.held_until).min()
    }
}

/// Timeout of a check: the page arrives within one to three round trips, and a user who waits
/// longer assumes a failure. Source: our choice; a shorter one takes slow networks for broken ones,
/// a longer one holds a network back for longer.
pub const TIMEOUT: Duration = Duration::from_secs(2);
/// Interval of checks while captive: the user who logs in waits for the result. Source: our choice;
/// a shorter one costs the portal more requests, a longer one lets the user wait after the login.
const WHILE_CAPTIVE: Duration = Duration::from_secs(3);
/// Interval of checks while open: a portal may reappear after hours, and the page is on another
/// party's server. Source: our choice; 12 requests an hour for each network, and after the end of a
/// paid hour the user waits for 150 s on average.
const WHILE_OPEN: Duration = Duration::from_secs(300);
/// First interval of checks while the page does not answer; doubles up to [`WHILE_OPEN`]. Source:
/// our choice; the cause may be a network that has just begun, and more requests would burden it.
const FIRST_PAUSE: Duration = Duration::from_secs(5);

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn at(seconds: u64) -> Instant {
        Instant::from_nanos(seconds * 1_000_000_000)
    }

    #[test]
    fn a_portal_is_left_when_the_page_is_there() {
        let mut portal = Portal::new(true, at(0));
        assert!(portal.poll_transmit(at(0)) && !portal.poll_transmit(at(0)));
        assert!(!portal.may_carry(), "held");
        portal.handle_outcome(Outcome::Other, at(1));
        assert_eq!((portal.state(), portal.may_carry()), (State::Captive, false));
        assert_eq!(portal.poll_timeout(), Some(at(4)));
        assert!(portal.poll_transmit(at(4)));
        portal.handle_outcome(Outcome::Nothing, at(5));
        assert!(!portal.may_carry(), "no result, no change");
        assert!(portal.poll_transmit(at(8)));
        portal.handle_outcome(Outcome::Page, at(8));
        assert_eq!((portal.state(), portal.may_carry()), (State::Open, true));
        assert_eq!(portal.poll_timeout(), Some(at(308)));
    }

    #[test]
    fn what_is_known_anew_of_a_network_is_looked_at_at_once() {
        let mut portal = Portal::new(false, at(0));
        assert!(portal.poll_transmit(at(0)));
        portal.handle_change(at(1));
        assert!(!portal.poll_transmit(at(1)), "one check at a time");
        portal.handle_outcome(Outcome::Page, at(2));
        assert!(!portal.poll_transmit(at(2)));
        portal.handle_change(at(3));
        assert_eq!(portal.poll_timeout(), Some(at(3)));
        assert!(portal.poll_transmit(at(3)));
    }

    #[test]
    fn who_is_held_is_not_held_for_long() {
        let mut portal = Portal::new(true, at(0));
        assert!(portal.poll_transmit(at(0)));
        assert_eq!(portal.poll_timeout(), Some(at(2)));
        portal.handle_timeout(at(2));
        assert!(portal.may_carry());
        let mut known = Portal::new(false, at(0));
        assert!(known.may_carry());
        known.poll_transmit(at(0));
        known.handle_outcome(Outcome::Other, at(1));
        assert!(!known.may_carry());
    }

    // Only the page opens, only other content closes, and checks continue at intervals.
    proptest! {
        #[test]
        fn looks_go_on(outcomes in prop::collection::vec(0_u8..3, 1..60), is_held: bool) {
            let mut portal = Portal::new(is_held, at(0));
            let mut now = at(0);
            let mut last = State::Unknown;
            for outcome in outcomes {
                while !portal.poll_transmit(now) {
                    let next = portal.poll_timeout().expect("it looks for ever");
                    prop_assert!(next > now && next.since(now) <= WHILE_OPEN);
                    now = next;
                    portal.handle_timeout(now);
                }
                let outcome = [Outcome::Page, Outcome::Other, Outcome::Nothing][usize::from(outcome)];
                portal.handle_outcome(outcome, now);
                last = match outcome {
                    Outcome::Page => State::Open,
                    Outcome::Other => State::Captive,
                    Outcome::Nothing => last,
                };
                prop_assert_eq!(portal.state(), last);
                prop_assert_eq!(portal.may_carry(), last != State::Captive);
            }
        }
    }
}
