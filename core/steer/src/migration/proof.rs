//! Proof of ownership of a UDP flow: only its real mover receives the packets that the follower
//! sends over the flow's present route.
//!
//! TCP has sequence numbers that only its ends know. UDP has none, and other hosts behind the same
//! translator can claim the same port. So the mover claims a flow over the control channel. The
//! follower sends a different secret over the route of each flow that could be meant (translators
//! change ports, so there may be several). The secret that returns over the channel identifies the
//! flow. A flow is proven once, before its first move, because a failed network would not deliver
//! the secret.
//!
//! ```text
//!   mover:     Asking -- challenge arrives ----> Answering -- Proven --> Proven
//!                |  \-- repeats with backoff         |  \-- answers again
//!                +---- too often, or Unproven -------+--> Failed
//!
//!   follower:  (nothing) -- Claim --> Waiting -- the right secret --> (the flow is the mover's)
//!                                       +------- timeout ------------> (nothing)
//! ```
//!
//! Limitations: an attacker who can read the packets on the flow's route can claim the flow; such
//! an attacker could also answer in its place.

use hawser_units::{Duration, Instant};

use super::Route;
use super::opening::{MAX_DOUBLINGS, RETRY};

/// Message of the mover.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Say {
    /// Claim that the flow is the sender's own.
    Claim,
    /// Secret that arrived over the flow's route.
    Proof(u64),
}

/// Mover's side of one flow.
///
/// Cost: O(1) time and memory.
#[derive(Debug)]
pub struct Claimant {
    secret: Option<u64>,
    is_proven: Option<bool>,
    tries: u32,
    due: Instant,
}

impl Claimant {
    /// Creates a proof that claims a flow from now on.
    #[must_use]
    pub fn new(now: Instant) -> Self {
        Self {
            secret: None,
            is_proven: None,
            tries: 0,
            due: now,
        }
    }

    /// Returns whether the flow is proven; `None` while undecided.
    #[must_use]
    pub fn is_proven(&self) -> Option<bool> {
        self.is_proven
    }

    /// Handles a challenge for the flow that arrived over its route.
    pub fn handle_challenge(&mut self, secret: u64, now: Instant) {
        if self.is_proven.is_none() && self.secret != Some(secret) {
            (self.secret, self.due) = (Some(secret), now);
        }
    }

    /// Handles the follower's decision.
    pub fn handle_verdict(&mut self, is_proven: bool) {
        self.is_proven.get_or_insert(is_proven);
    }

    /// Returns the next message.
    pub fn poll_transmit(&mut self, now: Instant) -> Option<Say> {
        if self.is_proven.is_some() || now < self.due {
            return None;
        }
        if self.tries >= TRIES {
            self.is_proven = Some(false);
            return None;
        }
        self.due = now + RETRY * (1 << self.tries.min(MAX_DOUBLINGS));
        self.tries += 1;
        Some(self.secret.map_or(Say::Claim, Say::Proof))
    }

    /// Returns when [`Self::poll_transmit`] has an output.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.is_proven.is_none().then_some(self.due)
    }
}

/// The follower's side of one claim: the flows that could be meant, each with its secret.
///
/// Cost: memory bounded by [`MAX_MEANT`].
#[derive(Debug)]
pub struct Challenger {
    meant: Vec<(Route, u64)>,
    until: Instant,
}

impl Challenger {
    /// Creates challenges for the flows that a claim could mean, by their routes; `secret` returns
    /// unpredictable numbers. Returns `None` for no route, or for more than [`MAX_MEANT`].
    #[must_use]
    pub fn new(routes: &[Route], mut secret: impl FnMut() -> u64, now: Instant) -> Option<Self> {
        let is_clear = (1..=MAX_MEANT).contains(&routes.len());
        is_clear.then(|| Self {
            meant: routes.iter().map(|route| (*route, secret())).collect(),
            until: now + WAIT,
        })
    }

    /// Returns the secret for each route; the caller sends all of them at each claim of the mover.
    pub fn challenges(&self) -> impl Iterator<Item = (Route, u64)> {
        self.meant.iter().copied()
    }

    /// Returns the route over which the secret was sent; `None` for an unknown or late secret. Any
    /// secret, right or wrong, ends the claim, so that a second guess is impossible.
    pub fn handle_proof(&mut self, secret: u64, now: Instant) -> Option<Route> {
        let meant = std::mem::take(&mut self.meant);
        let found = meant.iter().find(|(_, own)| *own == secret);
        found.filter(|_| now < self.until).map(|(route, _)| *route)
    }

    /// Returns whether the proof can no longer succeed.
    #[must_use]
    pub fn is_over(&self, now: Instant) -> bool {
        now >= self.until || self.meant.is_empty()
    }
}

/// Maximum number of flows from one translator's address to one port of the follower: each of them
/// receives a datagram per claim. Source: our choice, a bound on what a claim may cause; programs
/// rarely open more flows to one port of one host.
pub const MAX_MEANT: usize = 16;
/// Maximum number of attempts, claims and proofs together, which take 0.15, 0.3, 0.6 and four times
/// 1.2 s, 5.9 s in all. Source: our choice, one more than of an opening, since a claim needs two
/// exchanges.
const TRIES: u32 = 7;
/// Lifetime of a secret: longer than a claimant tries. Source: our choice; a longer one only takes
/// memory.
const WAIT: Duration = Duration::from_secs(10);

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn at(ms: u64) -> Instant {
        Instant::from_nanos(ms * 1_000_000)
    }

    fn route(port: u16) -> Route {
        Route {
            near: "203.0.113.2:80".parse().expect("an address"),
            far: ([192, 0, 2, 1], port).into(),
        }
    }

    fn challenger(ports: std::ops::Range<u16>) -> Option<Challenger> {
        let routes: Vec<_> = ports.map(route).collect();
        let mut secret = 1_000;
        let draw = || {
            secret += 1;
            secret
        };
        Challenger::new(&routes, draw, at(0))
    }

    #[test]
    fn what_comes_over_the_flows_own_route_proves_it_and_says_which_it_is() {
        let mut challenger = challenger(1..4).expect("three are clear");
        let mut claimant = Claimant::new(at(0));
        assert_eq!(claimant.poll_transmit(at(0)), Some(Say::Claim));
        assert_eq!(claimant.poll_transmit(at(1)), None);
        let (_, secret) = challenger
            .challenges()
            .find(|(over, _)| *over == route(2))
            .expect("it is one of them");
        claimant.handle_challenge(secret, at(20));
        assert_eq!(claimant.poll_transmit(at(20)), Some(Say::Proof(secret)));
        assert_eq!(challenger.handle_proof(secret, at(40)), Some(route(2)));
        claimant.handle_verdict(true);
        assert_eq!(
            (claimant.is_proven(), claimant.poll_timeout()),
            (Some(true), None)
        );
    }

    #[test]
    fn a_lost_datagram_is_asked_for_again_and_a_dead_route_is_given_up() {
        let mut claimant = Claimant::new(at(0));
        let mut said = Vec::new();
        while let Some(due) = claimant.poll_timeout() {
            said.extend(claimant.poll_transmit(due));
        }
        assert_eq!(said, [Say::Claim; TRIES as usize]);
        assert_eq!(claimant.is_proven(), Some(false));
        claimant.handle_challenge(7, at(9_000));
        assert_eq!(claimant.poll_transmit(at(9_000)), None);
    }

    #[test]
    fn a_guess_ends_the_claim_and_so_does_time() {
        let mut guessed = challenger(1..2).expect("one is clear");
        assert_eq!(guessed.handle_proof(5, at(1)), None);
        assert!(guessed.is_over(at(1)));
        assert_eq!(guessed.handle_proof(1_001, at(2)), None, "no second guess");
        let mut late = challenger(1..2).expect("one is clear");
        assert_eq!(late.handle_proof(1_001, at(10_000)), None);
        assert!(challenger(0..0).is_none() && challenger(0..17).is_none());
    }

    proptest! {
        /// A host behind the same address that receives none of the flow's packets cannot claim the
        /// flow with any message.
        #[test]
        fn who_sees_nothing_proves_nothing(secrets in prop::collection::vec(any::<u64>(), 1..16), guesses in prop::collection::vec(any::<u64>(), 0..50)) {
            let routes: Vec<_> = (0..secrets.len() as u16).map(route).collect();
            let mut drawn = secrets.iter().copied();
            let mut challenger = Challenger::new(&routes, || drawn.next().expect("one each"), at(0)).expect("few");
            for (number, guess) in guesses.iter().filter(|guess| !secrets.contains(guess)).enumerate() {
                prop_assert_eq!(challenger.handle_proof(*guess, at(number as u64)), None);
            }
        }
    }
}
