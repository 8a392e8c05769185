//! Migration of a flow: both ends exchange the addresses that its packets carry, and the transports
//! above see none of it.
//!
//! Each end rewrites: packets of its application, which keep the addresses that the flow began
//! with, leave with those of the present *route*, and packets that come in on any *accepted* route
//! get the application's addresses back. One end, the [`Mover`], changes routes; the other, the
//! [`Follower`], does as it is told. The new route is accepted at both ends before either sends on
//! it, and the old one for some time after (make before break), so no packet of the flow is refused
//! at any moment.
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
//!         ^                      | nothing comes of it
//!         +----------------------+
//! ```
//!
//! Every message says all that its receiver needs (a generation, the route to use, the route to
//! keep), so each may be lost, repeated or overtaken: a generation that is not new changes nothing
//! and is answered again. Going back is a switch with a newer generation to the old route. A
//! *waypoint* is a route whose far end is a box that rewrites too ([`waypoint`]).
//!
//! Failure: an old network that is already gone costs nothing, since messages take both routes in
//! turn; a follower that cannot be reached on the new route leaves the flow where it was. Messages
//! are to be authenticated by whoever carries them.
//!
//! Source: Flow switch section 3.1, figures 4 and 5 (the first of its two ways to choose
//! addresses).

pub mod opening;
pub mod proof;

use std::collections::VecDeque;
use std::net::SocketAddr;

use hawser_units::{Duration, Instant, NetworkId};

use crate::flow_table::rewrite::Rewrite;
use crate::flow_table::{Action, Match, Output, Prefix, Rule};

/// What packets of a flow carry between the ends (or between an end and a waypoint), as one end
/// sends them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Route {
    /// This end.
    pub near: SocketAddr,
    /// The other one.
    pub far: SocketAddr,
}

impl Route {
    /// The same route as the other end sees it.
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
    /// Grows with every migration.
    pub generation: u32,
    /// Whether to send on the route now, or only to accept it.
    pub is_switch: bool,
    /// The new route.
    pub route: Route,
    /// The route to go on accepting, should this come to nothing.
    pub keep: Route,
}

/// The follower's answer: the order of this generation is carried out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Answer {
    /// Whose.
    pub generation: u32,
    /// What was asked for.
    pub is_switch: bool,
}

/// What became of a migration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// Packets are sent on another route from now on: the rules are to be made again.
    Rerouted,
    /// Both ends use the new route.
    Moved,
    /// The flow stays where it was.
    Failed,
}

/// Another migration is under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("another migration of this flow is under way")]
pub struct Busy;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Stable,
    Preparing,
    Switching,
    Returning,
}

/// Routes that are still accepted for some time.
#[derive(Clone, Debug, Default)]
struct Retired(Vec<Old>);

#[derive(Clone, Copy, Debug)]
struct Old {
    route: Route,
    until: Instant,
    /// Whether the other end may send on it still.
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

    /// The other end is known to be elsewhere: what it may have sent on the way there drains.
    fn settle(&mut self, now: Instant) {
        for old in self.0.iter_mut().filter(|old| !old.is_certain) {
            (old.until, old.is_certain) = (now + DRAIN, true);
        }
    }

    /// Nothing that the other end may use is given up.
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
    /// Where the flow is, and where it stays when a migration fails.
    home: (Route, Route),
    /// Where it is going; the second is the follower's view.
    target: (Route, Route),
    retired: Retired,
    /// The follower may have switched since it was last known to be at home.
    is_astray: bool,
    tries: u32,
    due: Instant,
    events: VecDeque<Event>,
}

impl Mover {
    /// A flow on `route`, which the follower sees as `peer` (the same turned, or its route to a
    /// waypoint).
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

    /// Begins to move the flow to `route`, which the follower is to use as `peer`. A flow that is
    /// on its way back may be moved again.
    ///
    /// # Errors
    /// [`Busy`]: nothing was changed.
    pub fn migrate(&mut self, route: Route, peer: Route, now: Instant) -> Result<(), Busy> {
        match self.phase {
            Phase::Preparing | Phase::Switching => return Err(Busy),
            Phase::Stable | Phase::Returning => {}
        }
        // The follower may take a packet of an earlier stay there for the switch.
        self.is_astray |= self.retired.0.iter().any(|old| old.route == route);
        self.target = (route, peer);
        self.enter(Phase::Preparing, now);
        Ok(())
    }

    /// Whether [`Self::migrate`] would be refused.
    #[must_use]
    pub fn is_busy(&self) -> bool {
        matches!(self.phase, Phase::Preparing | Phase::Switching)
    }

    /// The route to send on.
    #[must_use]
    pub fn route(&self) -> Route {
        match self.phase {
            Phase::Stable | Phase::Preparing | Phase::Returning => self.home.0,
            Phase::Switching => self.target.0,
        }
    }

    /// All routes on which packets of the flow may arrive.
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

    /// The next message, and the route by which it should go.
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
        self.due = now + (RETRY * (1 << self.tries.min(MOST_DOUBLINGS)));
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
        // The old network may be gone, the new one not yet right: both in turn.
        let by = if self.tries % 2 == 1 {
            self.route()
        } else {
            self.target.0
        };
        Some((order, by))
    }

    /// The migration comes to nothing. The follower may or may not have switched to the target.
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

    /// Takes in an answer. One to an older order changes nothing.
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

    /// When [`Self::poll_transmit`] or [`Self::handle_timeout`] has something to do.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Instant> {
        let due = (self.phase != Phase::Stable).then_some(self.due);
        [due, self.retired.due()].into_iter().flatten().min()
    }

    /// Lets time pass: old routes end.
    pub fn handle_timeout(&mut self, now: Instant) {
        if self.phase != Phase::Stable {
            self.retired.hold(now);
        }
        self.retired.sweep(now);
    }

    /// What happened.
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
    /// A flow on `route`.
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

    /// The route to send on.
    #[must_use]
    pub fn route(&self) -> Route {
        self.route
    }

    /// All routes on which packets of the flow may arrive.
    #[must_use]
    pub fn accepted(&self) -> Vec<Route> {
        let pending = self.pending.map_or(self.route, |(_, route)| route);
        union([self.route, self.keep, pending], &self.retired)
    }

    /// Takes in an order; the answer, if it is one to answer.
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
            // A packet on the new route came before this.
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

    /// Takes note of a packet of the flow that came in on `route`. Returns whether that was the
    /// first on a prepared route, which is then sent on: the switch itself may have been lost.
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

    /// When [`Self::handle_timeout`] has something to do.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Instant> {
        let pending = self.pending.map(|_| self.pending_until);
        [pending, self.retired.due()].into_iter().flatten().min()
    }

    /// Lets time pass: what was prepared and never used ends, and so do old routes.
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

/// A flow as the application on one end sees it: the addresses that it began with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct View {
    /// Its addresses.
    pub route: Route,
    /// IP protocol.
    pub protocol: u8,
}

/// The entries of the flow table that let one end send on `route` by `network` and receive on all
/// of `accepted`.
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

/// The entries of a waypoint's flow table that join two routes: `near` is how one end reaches it,
/// `far` how the other does, each as that end sees it; packets leave by `networks`, towards the
/// first and the second.
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

/// Before a message is repeated the first time; twice as long each further time, up to
/// [`MOST_DOUBLINGS`] times. Longer than the round trip of most networks; a needless repetition
/// costs one small packet.
const RETRY: Duration = Duration::from_millis(200);
const MOST_DOUBLINGS: u32 = 3;

/// Messages without an answer that end a phase: about five seconds, longer than a cellular modem
/// needs to wake.
const TRIES: u32 = 6;

/// How long a route is accepted after nobody should send on it any more: longer than any packet
/// lives in a queue.
const DRAIN: Duration = Duration::from_secs(10);

/// How long a prepared route waits to be used: longer than the mover tries.
const PREPARED_FOR: Duration = Duration::from_secs(20);

#[cfg(test)]
mod tests;
