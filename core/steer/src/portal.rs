//! Whether a captive portal stands before a network: decides from what the network says itself, or
//! what a known page looks like there, and when to look again.
//!
//! It starts without an opinion; a network that nobody knows may be held back until the first look,
//! but not for long, because the page may be out of reach for other reasons. A look finds the page
//! (nothing is in between), something else in its place (a portal), or nothing. Only the page
//! itself ends captivity. Where the network says itself whether it has a portal, its word is the
//! page, or something else.
//!
//! ```text
//!              page                      something else
//!   Unknown ---------> Open ----------------------------> Captive
//!      |  ^              ^                                   |
//!      +--+ nothing      +------------- page ----------------+
//!      +------------------ something else -------------------^
//! ```
//!
//! Source: RFC 8952 section 2 (captive portals), appendix A (looking for a known page); RFC 8908
//! (the network's word).
//! Limitations: portals of networks that say nothing and let the page through, or answer over TLS
//! alone, are not found.

use hawser_units::{Duration, Instant};

/// What is known of a network.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum State {
    /// Nothing yet.
    #[default]
    Unknown,
    /// Nothing stands before it.
    Open,
    /// A portal does.
    Captive,
}

/// What a look found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The page, or the network's word that there is no portal.
    Page,
    /// Something else in its place, or the network's word that there is one.
    Other,
    /// Nothing that says anything.
    Nothing,
}

/// Watches one network.
///
/// Cost: O(1) a look.
#[derive(Debug)]
pub struct Portal {
    state: State,
    next: Instant,
    /// A look is under way.
    is_looking: bool,
    /// Nothing was found so often in a row.
    nothing: u32,
    held_until: Option<Instant>,
}

impl Portal {
    /// Looks at once. `is_held`: the network carries nothing before the first look is over, or
    /// [`TIMEOUT`] is.
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

    /// What is known now.
    #[must_use]
    pub fn state(&self) -> State {
        self.state
    }

    /// Whether the network may carry flows.
    #[must_use]
    pub fn may_carry(&self) -> bool {
        self.state != State::Captive && self.held_until.is_none()
    }

    /// Whether to look now; the caller does, and says what it found.
    pub fn poll_transmit(&mut self, now: Instant) -> bool {
        let is_due = !self.is_looking && now >= self.next;
        self.is_looking |= is_due;
        is_due
    }

    /// A look is over.
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

    /// What a look goes by is something else now: looks at once, or after the look under way.
    pub fn handle_change(&mut self, now: Instant) {
        self.next = now;
    }

    /// Lets time pass.
    pub fn handle_timeout(&mut self, now: Instant) {
        if self.held_until.is_some_and(|until| until <= now) {
            self.held_until = None;
        }
    }

    /// When a look is due, or the network is held no longer.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Instant> {
        let next = (!self.is_looking).then_some(self.next);
        next.into_iter().chain(self.held_until).min()
    }
}

/// A page is there within a round trip or three; who waits longer asks whether the network is
/// broken.
pub const TIMEOUT: Duration = Duration::from_secs(2);
/// Somebody who logs in waits for it.
const WHILE_CAPTIVE: Duration = Duration::from_secs(3);
/// A portal may come back after a night, and the page is somebody's server.
const WHILE_OPEN: Duration = Duration::from_secs(300);
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
        assert!(!portal.may_carry(), "nothing is no page");
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
        assert!(!portal.poll_transmit(at(1)), "one look at a time");
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

    // The page alone opens, something else alone closes, and looks come with pauses and for ever.
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
