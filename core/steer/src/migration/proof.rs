//! Proof that a UDP flow is its mover's: only who receives the flow's packets can say what the
//! follower sends over its present route.
//!
//! TCP has sequence numbers that only its ends know; UDP has nothing of the kind, and the port is
//! everybody's who is behind the same translator. So the mover claims a flow over the control
//! channel, the follower sends a secret over the route of each flow that could be meant
//! (translators change ports, so there may be several), and the secret that comes back over the
//! channel says which it is. A flow is proven once, ahead of its first move: when its network is
//! dead, nothing comes over it.
//!
//! ```text
//!   mover:     Asking -- the challenge comes --> Answering -- Proven --> Proven
//!                |  \-- asks again, ever later       |  \-- answers again
//!                +---- too often, or Unproven -------+--> Failed
//!
//!   follower:  (nothing) -- Claim --> Waiting -- the right secret --> (the flow is the mover's)
//!                                       +------- time is over ------> (nothing)
//! ```
//!
//! What it does not do: who can read what passes on the flow's route can prove that the flow is
//! theirs; they could as well answer in its place.

use hawser_units::{Duration, Instant};

use super::Route;

/// What the mover says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Say {
    /// That the flow is its own.
    Claim,
    /// What came over the flow's route.
    Proof(u64),
}

/// The mover's side of one flow.
///
/// Cost: O(1); no memory beside itself.
#[derive(Debug)]
pub struct Claimant {
    secret: Option<u64>,
    is_proven: Option<bool>,
    tries: u32,
    due: Instant,
}

impl Claimant {
    /// Claims a flow from now on.
    #[must_use]
    pub fn new(now: Instant) -> Self {
        Self {
            secret: None,
            is_proven: None,
            tries: 0,
            due: now,
        }
    }

    /// Whether the flow is proven; `None` while that is open.
    #[must_use]
    pub fn is_proven(&self) -> Option<bool> {
        self.is_proven
    }

    /// A challenge for the flow has come in over its route.
    pub fn handle_challenge(&mut self, secret: u64, now: Instant) {
        if self.is_proven.is_none() && self.secret != Some(secret) {
            (self.secret, self.due) = (Some(secret), now);
        }
    }

    /// The follower believes it, or does not.
    pub fn handle_verdict(&mut self, is_proven: bool) {
        self.is_proven.get_or_insert(is_proven);
    }

    /// The next thing to say.
    pub fn poll_transmit(&mut self, now: Instant) -> Option<Say> {
        if self.is_proven.is_some() || now < self.due {
            return None;
        }
        if self.tries >= TRIES {
            self.is_proven = Some(false);
            return None;
        }
        self.due = now + RETRY * (1 << self.tries.min(MOST_DOUBLINGS));
        self.tries += 1;
        Some(self.secret.map_or(Say::Claim, Say::Proof))
    }

    /// When [`Self::poll_transmit`] has something to do.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.is_proven.is_none().then_some(self.due)
    }
}

/// The follower's side of one claim: the flows that could be meant, each with its secret.
///
/// Cost: memory bounded by [`MOST_MEANT`].
#[derive(Debug)]
pub struct Challenger {
    meant: Vec<(Route, u64)>,
    until: Instant,
}

impl Challenger {
    /// For flows that could be meant, by their routes; `secret` draws a number that nobody can
    /// guess. More than [`MOST_MEANT`] are too many: none is asked then.
    #[must_use]
    pub fn new(routes: &[Route], mut secret: impl FnMut() -> u64, now: Instant) -> Option<Self> {
        let is_clear = (1..=MOST_MEANT).contains(&routes.len());
        is_clear.then(|| Self {
            meant: routes.iter().map(|route| (*route, secret())).collect(),
            until: now + WAIT,
        })
    }

    /// What to send over which route, as often as the mover claims.
    pub fn challenges(&self) -> impl Iterator<Item = (Route, u64)> {
        self.meant.iter().copied()
    }

    /// The route over which the secret went; none for a secret that went over none, or came too
    /// late. A wrong one ends the claim: nobody guesses twice.
    pub fn handle_proof(&mut self, secret: u64, now: Instant) -> Option<Route> {
        let meant = std::mem::take(&mut self.meant);
        let found = meant.iter().find(|(_, own)| *own == secret);
        found.filter(|_| now < self.until).map(|(route, _)| *route)
    }

    /// Whether nothing can come of it any more.
    #[must_use]
    pub fn is_over(&self, now: Instant) -> bool {
        now >= self.until || self.meant.is_empty()
    }
}

/// Flows of one translator's address to one port of the follower: more are a crowd, to all of which
/// a datagram would go.
pub const MOST_MEANT: usize = 16;
/// Before something is said again the first time; twice as long each further time, up to
/// [`MOST_DOUBLINGS`] times.
const RETRY: Duration = Duration::from_millis(150);
const MOST_DOUBLINGS: u32 = 3;
/// Attempts, claims and proofs together: some four seconds.
const TRIES: u32 = 7;
/// How long a secret is good: longer than a claimant tries.
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
        /// Somebody behind the same address sees none of the flow's packets: whatever they say, the
        /// flow is not theirs.
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
