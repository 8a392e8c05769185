//! Migration of a flow: both ends rewrite the addresses of its packets; the transport protocols
//! above do not notice.
//!
//! Each end rewrites addresses. Packets of its application keep the flow's original addresses and
//! are sent with those of the present *route*; packets that arrive on any *accepted* route get the
//! application's addresses back. One end, the [`Mover`], changes routes; the other, the
//! [`Follower`], executes its orders. Both ends accept the new route before either sends on it, and
//! the old one for some time after (make before break), so no packet of the flow is rejected.
//!
//! ```text
//!   mover:
//!              migrate               Ready                  Done
//!     Stable ----------> Preparing ---------> Switching -------------> Stable (moved)
//!       ^                  | no answer          | no answer
//!       |<-----------------+ (failed)           v (failed)    Done
//!       |                                    Returning -------------> Stable
//!       |                                       | migrate: Preparing again
//!       sends on:  old        old            new / old in Returning
//!
//!   follower:
//!     Following -- Prepare --> Prepared -- Switch, or a packet on the new route --> Following (there)
//!         ^                      | timeout
//!         +----------------------+
//! ```
//!
//! Every message is complete (a generation, the route to use, the route to keep), so each may be
//! lost, repeated or reordered: a generation that is not new has no effect and is answered again. A
//! return is a switch to the old route with a newer generation. A *waypoint* is a box at the far
//! end of a route that rewrites too ([`waypoint`]).
//!
//! Failure: an old network that has failed causes no delay beyond a repetition, since messages
//! alternate between both routes. If the follower cannot be reached on the new route, the flow
//! stays on the old one. The driver must authenticate messages.
//!
//! Source: Flow switch section 3.1, figures 4 and 5 (the first of its two methods to select
//! addresses).

pub mod opening;
pub mod proof;

use std::collections::VecDeque;
use std::net::SocketAddr;

use hawser_units::{Duration, Instant, NetworkId};

use crate::flow_table::rewrite::Rewrite;
use crate::flow_table::{Action, Match, Output, Prefix, Rule};

/// Addresses of a flow's packets between the ends (or between an end and a waypoint), as one end
/// sends them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Route {
    /// Address of this end.
    pub near: SocketAddr,
    /// Address of the other end.
    pub far: SocketAddr,
}

impl Route {
    /// Returns the same route as the other end sees it.
    #[must_use]
    pub fn turned(self) -> Self {
        Self {
            near: self.far,
            far: self.near,
        }
    }
}

/// A message from the mover. The follower's routes are given as the follower sees them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Order {
    /// Generation, which increases with every migration.
    pub generation: u32,
    /// True: send on the route now; false: only accept it.
    pub is_switch: bool,
    /// The new route.
    pub route: Route,
    /// Route that remains accepted in case the migration fails.
    pub keep: Route,
}

/// Follower's answer: the order of this generation has been executed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Answer {
    /// Generation of the request.
    pub generation: u32,
    /// Kind of the request.
    pub is_switch: bool,
}

/// Outcome of a migration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// Packets use another route from now on; the caller must renew the rules.
    Rerouted,
    /// Both ends use the new route.
    Moved,
    /// The flow stays where it was.
    Failed,
}

/// Another migration is under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("another migration of this flow is in progress")]
pub struct Busy;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Stable,
    Preparing,
    Switching,
    Returning,
}

/// Routes that remain accepted for a limited time.
#[derive(Clone, Debug, Default)]
struct Retired(Vec<Old>);

#[derive(Clone, Copy, Debug)]
struct Old {
    route: Route,
    until: Instant,
    /// Set if the other end may still send on it.
    is_certain: bool,
}

impl Retired {
    fn add(&mut self, route: Route, is_certain: bool, now: Instant) {
        self.0.retain(|old| old.route != route);
        self.0.push(Old {
            route,
            until: now + DRAIN,
            is_certain,
        });
    }

    /// Starts the drain time: the other end no longer uses these routes, but packets may be in
    /// flight.
    fn settle(&mut self, now: Instant) {
        for old in self.0.iter_mut().filter(|old| !old.is_certain) {
            (old.until, old.is_certain) = (now + DRAIN, true);
        }
    }

    /// Extends the lifetime of routes that the other end may use.
    fn hold(&mut self, now: Instant) {
        for old in self.0.iter_mut().filter(|old| !old.is_certain) {
            old.until = old.until.max(now + DRAIN);
        }
    }

    fn sweep(&mut self, now: Instant) {
        self.0.retain(|old| old.until > now);
    }

    fn due(&self) -> Option<Instant> {
        self.0.iter().map(|old| old.until).min()
    }
}

/// The end that moves a flow.
///
/// Cost: O(1) a message; a few routes of memory.
#[derive(Debug)]
pub struct Mover {
    phase: Phase,
    generation: u32,
    /// Route of the flow, which remains when a migration fails.
    home: (Route, Route),
    /// Route after the migration; the second is the follower's view.
    target: (Route, Route),
    retired: Retired,
    /// Set if the follower may have left the home route since its last confirmation.
    is_astray: bool,
    tries: u32,
    due: Instant,
    events: VecDeque<Event>,
}

impl Mover {
    /// Creates a mover of a flow on `route`. `peer` is the follower's view: the same route
    /// reversed, or its route to a waypoint.
    #[must_use]
    pub fn new(route: Route, peer: Route) -> Self {
        Self {
            phase: Phase::Stable,
            generation: 0,
            home: (route, peer),
            target: (route, peer),
            retired: Retired::default(),
            is_astray: false,
            tries: 0,
            due: Instant::FAR_FUTURE,
            events: VecDeque::new(),
        }
    }

    /// Begins to move the flow to `route`; the follower is to use `peer`. A flow that is returning
    /// may be moved again.
    ///
    /// # Errors
    /// [`Busy`]: nothing was changed.
    pub fn migrate(&mut self, route: Route, peer: Route, now: Instant) -> Result<(), Busy> {
        match self.phase {
            Phase::Preparing | Phase::Switching => return Err(Busy),
            Phase::Stable | Phase::Returning => {}
        }
        // The follower may mistake an older packet on this route for the switch.
        self.is_astray |= self.retired.0.iter().any(|old| old.route == route);
        self.target = (route, peer);
        self.enter(Phase::Preparing, now);
        Ok(())
    }

    /// Returns whether [`Self::migrate`] would fail with [`Busy`].
    #[must_use]
    pub fn is_busy(&self) -> bool {
        matches!(self.phase, Phase::Preparing | Phase::Switching)
    }

    /// Returns the route to send on.
    #[must_use]
    pub fn route(&self) -> Route {
        match self.phase {
            Phase::Stable | Phase::Preparing | Phase::Returning => self.home.0,
            Phase::Switching => self.target.0,
        }
    }

    /// Returns all routes on which packets of the flow may arrive.
    #[must_use]
    pub fn accepted(&self) -> Vec<Route> {
        union([self.home.0, self.target.0], &self.retired)
    }

    fn enter(&mut self, phase: Phase, now: Instant) {
        let before = self.route();
        self.phase = phase;
        self.tries = 0;
        self.due = now;
        match phase {
            Phase::Stable => self.due = Instant::FAR_FUTURE,
            Phase::Preparing | Phase::Returning => self.generation += 1,
            Phase::Switching => self.is_astray = true,
        }
        if self.route() != before {
            self.events.push_back(Event::Rerouted);
        }
    }

    /// Returns the next message and the route to send it on.
    pub fn poll_transmit(&mut self, now: Instant) -> Option<(Order, Route)> {
        if self.phase == Phase::Stable || now < self.due {
            return None;
        }
        let give_up = self.tries >= TRIES;
        match self.phase {
            Phase::Stable => return None,
            Phase::Preparing if give_up => {
                self.fail(now);
                return None;
            }
            Phase::Switching if give_up => {
                self.fail(now);
                return self.poll_transmit(now);
            }
            Phase::Preparing | Phase::Switching | Phase::Returning => {}
        }
        self.due = now + (RETRY * (1 << self.tries.min(MAX_DOUBLINGS)));
        self.tries += 1;
        let going = if self.phase == Phase::Returning {
            self.home
        } else {
            self.target
        };
        let order = Order {
            generation: self.generation,
            is_switch: self.phase != Phase::Preparing,
            route: going.1,
            keep: self.home.1,
        };
        // The old network may have failed, the new one may not work yet: alternate between them.
        let by = if self.tries % 2 == 1 {
            self.route()
        } else {
            self.target.0
        };
        Some((order, by))
    }

    /// Ends the migration without success. The follower may have switched to the target.
    fn fail(&mut self, now: Instant) {
        self.events.push_back(Event::Failed);
        let is_certain = self.phase == Phase::Preparing && !self.is_astray;
        self.retired.add(self.target.0, is_certain, now);
        if is_certain {
            self.target = self.home;
            self.enter(Phase::Stable, now);
        } else {
            self.enter(Phase::Returning, now);
        }
    }

    /// Handles an answer. An answer to an older order has no effect.
    pub fn handle_answer(&mut self, answer: Answer, now: Instant) {
        if answer.generation != self.generation {
            return;
        }
        match (self.phase, answer.is_switch) {
            (Phase::Preparing, false) => self.enter(Phase::Switching, now),
            (Phase::Switching, true) => {
                self.retired.add(self.home.0, true, now);
                self.retired.settle(now);
                self.home = self.target;
                self.is_astray = false;
                self.enter(Phase::Stable, now);
                self.events.push_back(Event::Moved);
            }
            (Phase::Returning, true) => {
                self.retired.add(self.target.0, true, now);
                self.retired.settle(now);
                self.target = self.home;
                self.is_astray = false;
                self.enter(Phase::Stable, now);
            }
            (Phase::Stable | Phase::Preparing | Phase::Switching | Phase::Returning, _) => {}
        }
    }

    /// Returns when [`Self::poll_transmit`] or [`Self::handle_timeout`] has an output.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Instant> {
        let due = (self.phase != Phase::Stable).then_some(self.due);
        [due, self.retired.due()].into_iter().flatten().min()
    }

    /// Expires old routes at `now`.
    pub fn handle_timeout(&mut self, now: Instant) {
        if self.phase != Phase::Stable {
            self.retired.hold(now);
        }
        self.retired.sweep(now);
    }

    /// Returns the next event.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }
}

/// The end that follows.
///
/// Cost: O(1) a message; a few routes of memory.
#[derive(Debug)]
pub struct Follower {
    generation: u32,
    route: Route,
    keep: Route,
    pending: Option<(u32, Route)>,
    pending_until: Instant,
    retired: Retired,
}

impl Follower {
    /// Creates a follower of a flow on `route`.
    #[must_use]
    pub fn new(route: Route) -> Self {
        Self {
            generation: 0,
            route,
            keep: route,
            pending: None,
            pending_until: Instant::FAR_FUTURE,
            retired: Retired::default(),
        }
    }

    /// Returns the route to send on.
    #[must_use]
    pub fn route(&self) -> Route {
        self.route
    }

    /// Returns all routes on which packets of the flow may arrive.
    #[must_use]
    pub fn accepted(&self) -> Vec<Route> {
        let pending = self.pending.map_or(self.route, |(_, route)| route);
        union([self.route, self.keep, pending], &self.retired)
    }

    /// Handles an order; returns the answer, if the order requires one.
    pub fn handle_order(&mut self, order: &Order, now: Instant) -> Option<Answer> {
        let answer = Answer {
            generation: order.generation,
            is_switch: order.is_switch,
        };
        let newest = self
            .pending
            .map_or(self.generation, |(generation, _)| generation.max(self.generation));
        if order.generation < newest {
            return None;
        }
        if order.generation == self.generation {
            // A packet on the new route arrived before this order.
            return Some(answer);
        }
        self.retire(self.keep, now);
        self.keep = order.keep;
        if order.is_switch {
            self.switch(order.generation, order.route, now);
        } else {
            if let Some((_, old)) = self.pending.filter(|&(_, old)| old != order.route) {
                self.retire(old, now);
            }
            self.pending = Some((order.generation, order.route));
            self.pending_until = now + PREPARED_FOR;
        }
        Some(answer)
    }

    /// Records a packet of the flow that arrived on `route`. Returns whether it was the first on a
    /// prepared route; the follower then sends on that route, because the switch message may have
    /// been lost.
    pub fn handle_packet(&mut self, route: Route, now: Instant) -> bool {
        match self.pending {
            Some((generation, pending)) if pending == route && route != self.route => {
                self.switch(generation, route, now);
                true
            }
            Some(_) | None => false,
        }
    }

    fn switch(&mut self, generation: u32, route: Route, now: Instant) {
        if let Some((_, old)) = self.pending.take() {
            self.retire(old, now);
        }
        self.retire(self.route, now);
        self.generation = generation;
        self.route = route;
    }

    fn retire(&mut self, route: Route, now: Instant) {
        self.retired.add(route, true, now);
    }

    /// Returns when [`Self::handle_timeout`] has an effect.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Instant> {
        let pending = self.pending.map(|_| self.pending_until);
        [pending, self.retired.due()].into_iter().flatten().min()
    }

    /// Expires unused preparations and old routes at `now`.
    pub fn handle_timeout(&mut self, now: Instant) {
        if self.pending_until <= now
            && let Some((_, route)) = self.pending.take()
        {
            self.retire(route, now);
        }
        self.retired.sweep(now);
    }
}

fn union<const N: usize>(routes: [Route; N], retired: &Retired) -> Vec<Route> {
    let mut all: Vec<Route> = routes
        .into_iter()
        .chain(retired.0.iter().map(|old| old.route))
        .collect();
    all.sort_unstable();
    all.dedup();
    all
}

/// Flow as the application on one end sees it, with its original addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct View {
    /// Addresses of the flow.
    pub route: Route,
    /// IP protocol.
    pub protocol: u8,
}

/// Returns the flow table entries that let one end send on `route` over `network` and receive on
/// all of `accepted`.
///
/// Source: Flow switch figure 5.
#[must_use]
pub fn rules(view: View, route: Route, network: NetworkId, accepted: &[Route], priority: u16) -> Vec<Rule> {
    let rule = |from: SocketAddr, to: SocketAddr, becomes: Route, output| Rule {
        priority,
        pattern: exactly(view.protocol, from, to),
        action: Action {
            rewrite: Some(Rewrite {
                source: Some(becomes.near),
                destination: Some(becomes.far),
            }),
            output,
        },
        idle: None,
        hard: None,
    };
    let out = rule(view.route.near, view.route.far, route, Output::Direct(network));
    let back = view.route.turned();
    let inward = accepted
        .iter()
        .map(|from| rule(from.far, from.near, back, Output::Local));
    [out].into_iter().chain(inward).collect()
}

/// Returns the flow table entries of a waypoint that joins two routes. `near` is the route from one
/// end to the waypoint, `far` from the other, each as that end sees it. Packets leave by
/// `networks`: the first towards `near`, the second towards `far`.
///
/// Source: Flow switch section 3.1 (routing through an off-path middlebox).
#[must_use]
pub fn waypoint(protocol: u8, ends: [Route; 2], networks: [NetworkId; 2], priority: u16) -> [Rule; 2] {
    [0, 1].map(|from| {
        let to = ends[1 - from];
        Rule {
            priority,
            pattern: exactly(protocol, ends[from].near, ends[from].far),
            action: Action {
                rewrite: Some(Rewrite {
                    source: Some(to.far),
                    destination: Some(to.near),
                }),
                output: Output::Direct(networks[1 - from]),
            },
            idle: None,
            hard: None,
        }
    })
}

fn exactly(protocol: u8, source: SocketAddr, destination: SocketAddr) -> Match {
    Match {
        source: Some(Prefix::of(source.ip())),
        destination: Some(Prefix::of(destination.ip())),
        protocol: Some(protocol),
        source_port: Some(source.port()),
        destination_port: Some(destination.port()),
        dscp: None,
        network: None,
    }
}

/// Time before the first repetition of a message; doubles with each later one, up to
/// [`MAX_DOUBLINGS`] times. Longer than the round trip of most networks; an unnecessary repetition
/// costs one small packet. Source: our choice, the minimum timeout of Linux's TCP (`TCP_RTO_MIN` of
/// linux/include/net/tcp.h); three doublings reach one that suits satellites.
const RETRY: Duration = Duration::from_millis(200);
const MAX_DOUBLINGS: u32 = 3;

/// Number of unanswered messages that end a phase, which lasts 0.2, 0.4, 0.8 and three times 1.6 s,
/// 6.2 s in all: longer than a cellular modem needs to wake. Source: our choice; fewer end moves
/// that a sleeping modem only delays, more keep a flow in doubt for longer than its user waits.
const TRIES: u32 = 6;

/// Time for which a route remains accepted after its last use by the other end: longer than the
/// queueing delay of any packet. Source: our choice; a longer one keeps entries in the kernel's
/// tables, a shorter one loses packets of a full queue of a modem.
const DRAIN: Duration = Duration::from_secs(10);

/// Lifetime of an unused prepared route: longer than the mover's attempts. Source: our choice,
/// three phases of 6.2 s; a longer one only keeps a route in the kernel's tables.
const PREPARED_FOR: Duration = Duration::from_secs(20);

#[cfg(test)]
mod tests;
