//! State of one flow that this host moves: its proof, its attempt, its migration.

use std::net::SocketAddr;

use hawser_linux::direct::moving::Moved;
use hawser_linux::direct::{mark, reason};
use hawser_steer::migration::opening::{Opener, Outcome};
use hawser_steer::migration::proof::{Claimant, Say};
use hawser_steer::migration::{Event, Route};
use hawser_units::{Duration, Instant};
use hawser_wire::peer::{Expect, PeerMessage};

use super::{Around, Attempt, Finished, Flow, FlowPath, Stage, TCP, unrelay};
use crate::moving::tracked::Tracked;
use crate::moving::{Out, ends};

impl Flow {
    pub(super) fn is_of(&self, tracked: &Tracked) -> bool {
        (self.tracked.protocol, self.tracked.inside) == (tracked.protocol, tracked.inside)
    }

    /// Returns whether the peer accepts that the flow belongs to this host; `None` while undecided.
    /// TCP needs no proof in advance.
    pub(super) fn is_proven(&self) -> Option<bool> {
        if self.tracked.protocol == TCP {
            return Some(true);
        }
        self.claim.as_ref().and_then(Claimant::is_proven)
    }

    pub(super) fn is_claiming(&self) -> bool {
        self.claim
            .as_ref()
            .is_some_and(|claim| claim.is_proven().is_none())
    }

    pub(super) fn claim_on(&mut self, id: u32, around: &Around<'_>, out: &mut Out) {
        if self.claim.is_none() && self.attempt.is_some() && self.tracked.protocol != TCP {
            self.claim = Some(Claimant::new(around.now));
        }
        let (near, far) = (self.tracked.first.near, self.tracked.first.far);
        let network = self.tracked.network;
        let Some(claim) = &mut self.claim else { return };
        while let Some(say) = claim.poll_transmit(around.now) {
            let message = match say {
                Say::Claim => PeerMessage::Claim { flow: id, near, far },
                Say::Proof(secret) => PeerMessage::Proof { flow: id, secret },
            };
            if let Some(up) = around.link(&self.peer, network) {
                out.say(up, message);
            }
        }
    }

    /// Returns the first stage of an attempt whose flow is proven.
    pub(super) fn begun(&self, attempt: &Attempt, around: &Around<'_>) -> Option<Stage> {
        if attempt.path.through.is_some() {
            return Some(Stage::Asking {
                tries: 0,
                due: around.now,
            });
        }
        let port = around.link(&self.peer, attempt.path.network)?.port;
        let far = SocketAddr::new(self.tracked.first.far.ip(), port);
        Some(self.opening(attempt, far, far, around))
    }

    /// Continues an attempt once the peer has accepted the proof.
    pub(super) fn prove_on(&mut self, around: &Around<'_>, finished: &mut Vec<Finished>) {
        let Some(mut attempt) = self
            .attempt
            .take_if(|attempt| matches!(attempt.stage, Stage::Proving))
        else {
            return;
        };
        let begun = match self.is_proven() {
            None => Ok(Stage::Proving),
            Some(true) => self
                .begun(&attempt, around)
                .ok_or_else(|| format!("{} is not connected", self.peer)),
            Some(false) => Err(format!(
                "{} has not received the proof that the flow belongs to this machine (does its old network still work?)",
                self.peer
            )),
        };
        match begun {
            Ok(stage) => {
                attempt.stage = stage;
                self.attempt = Some(attempt);
            }
            Err(why) => {
                self.attempt = Some(attempt);
                finished.extend(self.fail(why, around.now));
            }
        }
    }

    pub(super) fn is_busy(&self) -> bool {
        self.attempt.is_some() || self.machine.is_busy()
    }

    /// Returns the present route.
    pub(super) fn route_now(&self) -> FlowPath {
        self.route_on(self.machine.route())
    }

    pub(super) fn route_on(&self, route: Route) -> FlowPath {
        let known = self.paths.iter().find(|(known, ..)| *known == route);
        known.map_or(
            FlowPath {
                network: self.tracked.network,
                through: None,
            },
            |(_, path, _)| path.clone(),
        )
    }

    pub(super) fn opening(
        &self,
        attempt: &Attempt,
        far: SocketAddr,
        follower: SocketAddr,
        around: &Around<'_>,
    ) -> Stage {
        let sent = around.numbers.of(&self.machine.accepted()).map(|(sent, _)| sent);
        let route = Route {
            near: attempt.near,
            far,
        };
        let sent = sent.filter(|_| self.tracked.protocol == TCP);
        let protocol = self.tracked.protocol;
        Stage::Opening(Box::new(Opener::new(
            protocol,
            route,
            follower,
            attempt.nonce,
            sent,
            around.now,
        )))
    }

    pub(super) fn fail(&mut self, why: String, now: Instant) -> Option<Finished> {
        let attempt = self.attempt.take()?;
        Some(self.finish(attempt.path, Err(why), now))
    }

    pub(super) fn finish(&mut self, path: FlowPath, result: Result<(), String>, now: Instant) -> Finished {
        Finished {
            tracked: self.tracked.clone(),
            path,
            request: self.request.take(),
            result,
            took: now.since(self.started),
        }
    }

    pub(super) fn attempt_on(
        &mut self,
        id: u32,
        around: &Around<'_>,
        out: &mut Out,
        finished: &mut Vec<Finished>,
    ) {
        self.prove_on(around, finished);
        let Some(attempt) = &mut self.attempt else { return };
        let (path, nonce) = (attempt.path.clone(), attempt.nonce);
        match &mut attempt.stage {
            Stage::Proving => {}
            Stage::Asking { tries, due } => {
                if *due > around.now {
                    return;
                }
                if *tries >= RELAY_TRIES {
                    let through = path.through.as_deref().unwrap_or_default();
                    let why = format!("the waypoint {through} does not answer");
                    finished.extend(self.fail(why, around.now));
                    return;
                }
                (*tries, *due) = (*tries + 1, around.now + RELAY_RETRY);
                let to = around.link(&self.peer, path.network).map(|up| up.port);
                let waypoint = path
                    .through
                    .as_deref()
                    .and_then(|through| around.link(through, path.network));
                if let (Some(port), Some(waypoint)) = (to, waypoint) {
                    let to = SocketAddr::new(self.tracked.first.far.ip(), port);
                    let protocol = self.tracked.protocol;
                    out.say(waypoint, PeerMessage::Relay { nonce, protocol, to });
                }
            }
            Stage::Opening(opener) => {
                let mut is_asked = false;
                while let Some(packet) = opener.poll_transmit(around.now) {
                    is_asked |= packet.step == hawser_wire::opening::Step::Ask;
                    out.send(around.networks.name(path.network), packet);
                }
                let outcome = opener.outcome();
                let route = opener.route();
                if is_asked && let Some(up) = around.link(&self.peer, path.network) {
                    out.say(up, PeerMessage::Expect(self.expect(id, nonce, around)));
                }
                match outcome {
                    None => {}
                    Some(Outcome::Open(peer)) => {
                        self.attempt = None;
                        self.paths.push((route, path, nonce));
                        let begun = self.machine.migrate(route, peer, around.now);
                        debug_assert!(begun.is_ok(), "an attempt begins only while the machine is idle");
                    }
                    Some(Outcome::NoAnswer) => {
                        let name = around.networks.name(path.network);
                        let why = format!(
                            "no opening passes {name} (does the firewall of the peer admit its port for TCP and UDP?)"
                        );
                        finished.extend(self.fail(why, around.now));
                    }
                    Some(Outcome::Unheard) => {
                        let why = format!("{} does not answer", self.peer);
                        finished.extend(self.fail(why, around.now));
                    }
                }
            }
        }
    }

    pub(super) fn expect(&self, id: u32, nonce: u32, around: &Around<'_>) -> Expect {
        Expect {
            flow: id,
            nonce,
            protocol: self.tracked.protocol,
            near: self.tracked.first.near,
            far: self.tracked.first.far,
            numbers: around
                .numbers
                .of(&self.machine.accepted())
                .filter(|_| self.tracked.protocol == TCP),
        }
    }

    pub(super) fn migrate_on(
        &mut self,
        id: u32,
        around: &Around<'_>,
        out: &mut Out,
        finished: &mut Vec<Finished>,
    ) {
        self.machine.handle_timeout(around.now);
        while let Some((order, by)) = self.machine.poll_transmit(around.now) {
            if let Some(up) = around.link(&self.peer, self.route_on(by).network) {
                let message = PeerMessage::Order {
                    flow: id,
                    generation: order.generation,
                    is_switch: order.is_switch,
                    route: ends(order.route),
                    keep: ends(order.keep),
                };
                out.say(up, message);
            }
        }
        while let Some(event) = self.machine.poll_event() {
            let latest = self
                .paths
                .last()
                .map_or_else(|| self.route_now(), |(_, path, _)| path.clone());
            match event {
                Event::Rerouted => {}
                Event::Moved => {
                    self.moved += 1;
                    finished.push(self.finish(latest, Ok(()), around.now));
                }
                Event::Failed => {
                    let why = format!("{} has not confirmed it", self.peer);
                    finished.push(self.finish(latest, Err(why), around.now));
                }
            }
        }
        let accepted = self.machine.accepted();
        let (kept, over): (Vec<_>, Vec<_>) = self
            .paths
            .drain(..)
            .partition(|(route, ..)| accepted.contains(route));
        self.paths = kept;
        for (_, path, nonce) in &over {
            unrelay(path, *nonce, around, out);
        }
    }

    pub(super) fn nonces(&self) -> Vec<u32> {
        self.paths.iter().map(|(.., nonce)| *nonce).collect()
    }

    pub(super) fn opener(&self) -> Option<(&Opener, u32)> {
        let attempt = self.attempt.as_ref()?;
        match &attempt.stage {
            Stage::Opening(opener) => Some((opener, attempt.nonce)),
            Stage::Proving | Stage::Asking { .. } => None,
        }
    }

    pub(super) fn rewriting(&self, accepted: &[Route], openings: Vec<u32>) -> Moved {
        let route = self.machine.route();
        let is_first = self.moved == 0 && route == self.tracked.first;
        Moved {
            protocol: self.tracked.protocol,
            inside: ends(self.tracked.inside),
            first: ends(self.tracked.first),
            route: ends(route),
            accepted: accepted.iter().copied().map(ends).collect(),
            openings,
            mark: (!is_first).then(|| mark(reason::MOVED, self.route_now().network)),
            zone: self.tracked.zone,
        }
    }
}

/// Retry interval of a request to a waypoint, which answers within a round trip. Source: our
/// choice, longer than round trips of most networks; a shorter one repeats requests that are being
/// answered.
const RELAY_RETRY: Duration = Duration::from_millis(500);
/// Number of attempts, 3 s in total. Source: our choice; fewer fail at a burst of losses, more keep
/// a flow on a failed network.
const RELAY_TRIES: u32 = 6;
