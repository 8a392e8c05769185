//! Flows that this host moves.
//!
//! Each flow has a machine for its migration and, before that, an attempt to open the new route:
//!
//! ```text
//!   (on a network) -- move --> [UDP: proof] --> [a way at the waypoint] --> opening --> migrating
//! --> (on another)
//!         ^                         |                     |                     |            |
//!         +-------------------------+---------------------+------- failed ------+------------+
//! ```
//!
//! A UDP flow to a peer is claimed, and its ownership proven, as soon as it is seen, because a
//! failed network permits no proof.

mod flow;

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};

use hawser_config::identity::random;
use hawser_linux::direct::UNASSIGNED_PORTS;
use hawser_linux::direct::moving::Moved;
use hawser_steer::migration::opening::Opener;
use hawser_steer::migration::proof::Claimant;
use hawser_steer::migration::{Answer, Mover, Route};
use hawser_units::{Duration, Instant};
use hawser_wire::opening::{Challenge, Opening};
use hawser_wire::peer::{PeerMessage, Unexpected};

use super::links::{Links, Up};
use super::tracked::{Numbers, Tracked};
use super::{Out, ends};
use crate::networks::Networks;

/// Context of the flows.
pub(super) struct Around<'a> {
    pub(super) links: &'a Links,
    pub(super) numbers: &'a Numbers,
    pub(super) networks: &'a Networks,
    pub(super) now: Instant,
}

impl Around<'_> {
    fn alive(&self) -> BTreeSet<u8> {
        let alive = self.networks.all().filter(|(_, known)| known.is_alive());
        let mut numbers = BTreeSet::new();
        numbers.extend(alive.map(|(number, _)| number));
        numbers
    }

    /// Returns the connection to a peer over the network if it works, or over another one.
    fn link(&self, peer: &str, number: u8) -> Option<&Up> {
        let alive = self.alive();
        let direct = self.links.up(peer, number).filter(|_| alive.contains(&number));
        direct.or_else(|| self.links.any(peer, &alive).map(|(_, up)| up))
    }
}

/// Network and waypoint of a flow.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct FlowPath {
    pub(super) network: u8,
    /// Waypoint, if any.
    pub(super) through: Option<String>,
}

/// Outcome of a move.
pub(super) struct Finished {
    pub(super) tracked: Tracked,
    pub(super) path: FlowPath,
    pub(super) request: Option<u64>,
    pub(super) result: Result<(), String>,
    pub(super) took: Duration,
}

struct Attempt {
    path: FlowPath,
    near: SocketAddr,
    nonce: u32,
    stage: Stage,
}

enum Stage {
    /// The peer verifies that the flow belongs to this host.
    Proving,
    /// A relay is requested from the waypoint.
    Asking {
        tries: u32,
        due: Instant,
    },
    Opening(Box<Opener>),
}

struct Flow {
    tracked: Tracked,
    peer: String,
    machine: Mover,
    /// Proof for a UDP flow that it belongs to this host.
    claim: Option<Claimant>,
    /// Time of the next claim, if the peer rejects this one.
    next_claim: Instant,
    /// Networks of the routes, except the first.
    paths: Vec<(Route, FlowPath, u32)>,
    attempt: Option<Attempt>,
    request: Option<u64>,
    started: Instant,
    why: String,
    was_asked_for: bool,
    moved: u64,
}

#[derive(Default)]
pub(super) struct Movers {
    flows: BTreeMap<u32, Flow>,
    next_flow: Option<u32>,
    next_port: u16,
    finished: Vec<Finished>,
}

impl Movers {
    /// Starts to move a flow to another route.
    ///
    /// # Errors
    /// The reason why it cannot be moved, in one line.
    pub(super) fn start(
        &mut self,
        tracked: &Tracked,
        path: FlowPath,
        (request, why): (Option<u64>, String),
        around: &Around<'_>,
    ) -> Result<(), String> {
        let far = tracked.first.far.ip();
        let peer = around
            .links
            .owner(far)
            .ok_or_else(|| format!("no peer has the address {far} (`hawser peer list`)"))?
            .to_owned();
        let name = around.networks.name(path.network);
        let network = around
            .networks
            .present()
            .find(|(number, _)| *number == path.network);
        let address = network.and_then(|(_, network)| {
            let own = network.addresses.iter().map(|(address, _)| *address);
            own.into_iter().find(|address| address.is_ipv6() == far.is_ipv6())
        });
        let address = address.ok_or_else(|| format!("{name} has no address of the flow's family"))?;
        if tracked.protocol == TCP && self.numbers_of(tracked, around.numbers).is_none() {
            return Err("it was idle, so its sequence numbers are not known".to_owned());
        }
        let near = SocketAddr::new(address, self.free_port(address));
        let id = self.id_of(tracked, &peer);
        let flow = self.flows.get_mut(&id).expect("it is there");
        if flow.is_busy() {
            return Err("another migration of this flow is in progress".to_owned());
        }
        let nonce = u32::from_be_bytes(random());
        (flow.request, flow.why, flow.started) = (request, why, around.now);
        flow.was_asked_for = request.is_some();
        let attempt = Attempt {
            path,
            near,
            nonce,
            stage: Stage::Proving,
        };
        if around.link(&peer, attempt.path.network).is_none() {
            return Err(format!("{peer} is not connected"));
        }
        if flow.is_proven() == Some(false) {
            flow.claim = Some(Claimant::new(around.now));
        }
        flow.attempt = Some(attempt);
        Ok(())
    }

    /// Claims a UDP flow at its peer, before it needs to be moved.
    pub(super) fn claim(&mut self, tracked: &Tracked, peer: &str, now: Instant) {
        if tracked.protocol == TCP {
            return;
        }
        let open = self.flows.values().filter(|flow| flow.is_claiming()).count();
        let id = self.id_of(tracked, peer);
        let flow = self.flows.get_mut(&id).expect("it is there");
        let is_wanted = match flow.is_proven() {
            None => flow.claim.is_none(),
            Some(is_proven) => !is_proven,
        };
        if is_wanted && open < MAX_CLAIMS && now >= flow.next_claim {
            (flow.claim, flow.next_claim) = (Some(Claimant::new(now)), now + CLAIM_AGAIN);
        }
    }

    /// Returns whether challenges may arrive: late copies of them also after the verdict.
    pub(super) fn has_claims(&self) -> bool {
        self.flows.values().any(|flow| flow.claim.is_some())
    }

    /// Handles a challenge that arrived over a flow's route.
    pub(super) fn on_challenge(&mut self, challenge: &Challenge, now: Instant) {
        let flow = self.flows.get_mut(&challenge.flow).filter(|flow| {
            let route = flow.tracked.first;
            (route.far, route.near) == (challenge.source, challenge.destination)
        });
        if let Some(claim) = flow.and_then(|flow| flow.claim.as_mut()) {
            claim.handle_challenge(challenge.secret, now);
        }
    }

    fn on_verdict(&mut self, flow: u32, peer: &str, is_proven: bool) {
        let flow = self.flows.get_mut(&flow).filter(|flow| flow.peer == peer);
        if let Some(claim) = flow.and_then(|flow| flow.claim.as_mut()) {
            claim.handle_verdict(is_proven);
        }
    }

    /// Returns a flow with its first mark.
    pub(super) fn original(&self, tracked: &Tracked) -> Option<Tracked> {
        let turned = tracked.inside.turned();
        let mut all = self.flows.values().map(|flow| &flow.tracked);
        all.find(|known| {
            known.protocol == tracked.protocol && (known.inside == tracked.inside || known.inside == turned)
        })
        .cloned()
    }

    /// Returns the position of a TCP flow, if it was observed recently.
    pub(super) fn numbers_of(&self, tracked: &Tracked, numbers: &Numbers) -> Option<(u32, u32)> {
        let flow = self.flows.values().find(|flow| flow.is_of(tracked));
        numbers.of(&flow.map_or_else(|| vec![tracked.first], |flow| flow.machine.accepted()))
    }

    fn id_of(&mut self, tracked: &Tracked, peer: &str) -> u32 {
        if let Some((id, _)) = self.flows.iter().find(|(_, flow)| flow.is_of(tracked)) {
            return *id;
        }
        // The first number is random, because the peer may remember numbers from before a restart.
        let id = self.next_flow.unwrap_or_else(|| u32::from_be_bytes(random()));
        self.next_flow = Some(id.wrapping_add(1));
        let flow = Flow {
            tracked: tracked.clone(),
            peer: peer.to_owned(),
            machine: Mover::new(tracked.first, tracked.first.turned()),
            claim: None,
            next_claim: Instant::from_nanos(0),
            paths: Vec::new(),
            attempt: None,
            request: None,
            started: Instant::from_nanos(0),
            why: String::new(),
            was_asked_for: false,
            moved: 0,
        };
        self.flows.insert(id, flow);
        id
    }

    /// Returns a port that no program of this host uses, above the kernel's range.
    fn free_port(&mut self, address: IpAddr) -> u16 {
        let ends = self.flows.values().flat_map(|flow| {
            let attempt = flow.attempt.iter().map(|attempt| attempt.near);
            flow.paths.iter().map(|(route, ..)| route.near).chain(attempt)
        });
        let ends = ends.filter(|near| near.ip() == address);
        let mut taken = BTreeSet::new();
        taken.extend(ends.map(|near| near.port()));
        let count = UNASSIGNED_PORTS.end() - UNASSIGNED_PORTS.start() + 1;
        for _ in 0..count {
            let port = UNASSIGNED_PORTS.start() + self.next_port % count;
            self.next_port = self.next_port.wrapping_add(1) % count;
            if !taken.contains(&port) {
                return port;
            }
        }
        *UNASSIGNED_PORTS.start()
    }

    /// Processes a message of a peer or a waypoint.
    pub(super) fn on_message(&mut self, peer: &str, message: &PeerMessage, around: &Around<'_>) {
        match *message {
            PeerMessage::Opened { nonce, seen } => {
                if let Some((_, Stage::Opening(opener))) = self.attempt(nonce, peer, false) {
                    opener.handle_opened(seen);
                }
            }
            PeerMessage::Unexpected { nonce, reason } => self.on_unexpected(nonce, peer, reason, around.now),
            PeerMessage::Relayed { nonce, port } => self.on_relayed(nonce, peer, port, around),
            PeerMessage::Answer {
                flow,
                generation,
                is_switch,
            } => {
                if let Some(flow) = self.flows.get_mut(&flow).filter(|flow| flow.peer == peer) {
                    flow.machine.handle_answer(
                        Answer {
                            generation,
                            is_switch,
                        },
                        around.now,
                    );
                }
            }
            PeerMessage::Proven { flow } => self.on_verdict(flow, peer, true),
            PeerMessage::Unproven { flow, .. } => self.on_verdict(flow, peer, false),
            // These messages are not for a mover.
            PeerMessage::Hello(_)
            | PeerMessage::Welcome { .. }
            | PeerMessage::Refused(_)
            | PeerMessage::Expect(_)
            | PeerMessage::Order { .. }
            | PeerMessage::Forget { .. }
            | PeerMessage::Relay { .. }
            | PeerMessage::Claim { .. }
            | PeerMessage::Proof { .. }
            | PeerMessage::Unrelay { .. } => tracing::debug!(peer, "unexpected message"),
        }
    }

    /// Returns the attempt with that number, if it belongs to `peer` as the waypoint or as the
    /// follower.
    fn attempt(&mut self, nonce: u32, peer: &str, as_waypoint: bool) -> Option<(SocketAddr, &mut Stage)> {
        self.flows.values_mut().find_map(|flow| {
            let far = flow.tracked.first.far;
            let follower = flow.peer.as_str();
            let attempt = flow.attempt.as_mut().filter(|attempt| attempt.nonce == nonce)?;
            let speaker = if as_waypoint {
                attempt.path.through.as_deref()?
            } else {
                follower
            };
            (speaker == peer).then_some((far, &mut attempt.stage))
        })
    }

    fn on_unexpected(&mut self, nonce: u32, peer: &str, reason: Unexpected, now: Instant) {
        let flow = self.flows.values_mut().find(|flow| {
            flow.attempt.as_ref().is_some_and(|attempt| {
                attempt.nonce == nonce && (flow.peer == peer || attempt.path.through.as_deref() == Some(peer))
            })
        });
        if let Some(flow) = flow {
            // The peer has forgotten the proof, or has restarted.
            flow.claim = None;
            self.finished
                .extend(flow.fail(format!("{peer} refuses: {reason}"), now));
        }
    }

    fn on_relayed(&mut self, nonce: u32, peer: &str, port: u16, around: &Around<'_>) {
        let flow = self.flows.values_mut().find(|flow| {
            let attempt = flow.attempt.as_ref();
            attempt.is_some_and(|attempt| {
                attempt.nonce == nonce
                    && attempt.path.through.as_deref() == Some(peer)
                    && matches!(attempt.stage, Stage::Asking { .. })
            })
        });
        let Some(flow) = flow else { return };
        let Some(mut attempt) = flow.attempt.take() else {
            return;
        };
        let waypoint = around.link(peer, attempt.path.network).map(|up| up.remote.ip());
        let follower = around.link(&flow.peer, attempt.path.network).map(|up| up.port);
        if let (Some(waypoint), Some(follower)) = (waypoint, follower) {
            let follower = SocketAddr::new(flow.tracked.first.far.ip(), follower);
            attempt.stage = flow.opening(&attempt, SocketAddr::new(waypoint, port), follower, around);
        }
        flow.attempt = Some(attempt);
    }

    /// Handles a packet of an opening.
    pub(super) fn on_packet(&mut self, packet: &Opening) {
        for flow in self.flows.values_mut() {
            if let Some(Attempt {
                stage: Stage::Opening(opener),
                ..
            }) = &mut flow.attempt
                && opener.nonce() == packet.nonce
            {
                opener.handle_packet(packet);
            }
        }
    }

    /// Does what is due.
    pub(super) fn handle_timeout(&mut self, around: &Around<'_>, out: &mut Out) {
        for (id, flow) in &mut self.flows {
            flow.claim_on(*id, around, out);
            flow.attempt_on(*id, around, out, &mut self.finished);
            flow.migrate_on(*id, around, out, &mut self.finished);
        }
    }

    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        let due = |flow: &Flow| {
            let attempt = flow.attempt.as_ref().and_then(|attempt| match &attempt.stage {
                // The stage ends as soon as the proof is decided.
                Stage::Proving if flow.is_proven().is_some() => Some(Instant::from_nanos(0)),
                Stage::Proving => None,
                Stage::Asking { due, .. } => Some(*due),
                Stage::Opening(opener) => opener.poll_timeout(),
            });
            let claim = flow.claim.as_ref().and_then(Claimant::poll_timeout);
            [attempt, claim, flow.machine.poll_timeout()]
                .into_iter()
                .flatten()
                .min()
        };
        self.flows.values().filter_map(due).min()
    }

    /// Returns the moves that have ended since the last call.
    pub(super) fn take_finished(&mut self) -> Vec<Finished> {
        std::mem::take(&mut self.finished)
    }

    /// Returns the rewriting rules for packets, and the routes that are being opened.
    pub(super) fn rewriting(
        &self,
        flows: &mut Vec<Moved>,
        openings: &mut Vec<(u8, (SocketAddr, SocketAddr))>,
    ) {
        for flow in self.flows.values() {
            let (mut accepted, mut nonces) = (flow.machine.accepted(), flow.nonces());
            if let Some((opener, nonce)) = flow.opener() {
                if flow.tracked.protocol == TCP {
                    // Accepted at once, which avoids a later change of the rules: the packets of
                    // the opening itself are distinguished from the flow's.
                    accepted.push(opener.route());
                    nonces.push(nonce);
                } else {
                    openings.push((flow.tracked.protocol, ends(opener.route())));
                }
            }
            accepted.sort_unstable();
            if accepted != [flow.tracked.first] || flow.moved > 0 {
                flows.push(flow.rewriting(&accepted, nonces));
            }
        }
    }

    /// Returns the flow's present network, if a move has been tried.
    pub(super) fn network_of(&self, tracked: &Tracked) -> Option<u8> {
        self.flows
            .values()
            .find(|flow| flow.is_of(tracked))
            .map(|flow| flow.route_now().network)
    }

    /// Returns the route on which the flow is sent.
    pub(super) fn route_of(&self, tracked: &Tracked) -> Route {
        let flow = self.flows.values().find(|flow| flow.is_of(tracked));
        flow.map_or(tracked.first, |flow| flow.machine.route())
    }

    /// Returns whether a user has moved the flow, or tried to.
    pub(super) fn was_asked_for(&self, tracked: &Tracked) -> bool {
        self.flows
            .values()
            .any(|flow| flow.is_of(tracked) && flow.was_asked_for)
    }

    /// Returns whether a move of the flow is in progress.
    pub(super) fn is_busy(&self, tracked: &Tracked) -> bool {
        self.flows
            .values()
            .any(|flow| flow.is_of(tracked) && flow.is_busy())
    }

    /// Returns the text about a moved flow's network and reason.
    pub(super) fn description(&self, tracked: &Tracked, networks: &Networks, now: Instant) -> Option<String> {
        let flow = self
            .flows
            .values()
            .find(|flow| flow.is_of(tracked) && flow.moved > 0)?;
        let path = flow.route_now();
        let through = path
            .through
            .map_or(String::new(), |through| format!(" through {through}"));
        Some(format!(
            "it was moved here{through} {} s ago: {}; it began on {}, its peer is {}, moves so far: {}",
            now.since(flow.started).as_secs(),
            flow.why,
            networks.name(flow.tracked.network),
            flow.peer,
            if flow.moved == 1 {
                "one move".to_owned()
            } else {
                format!("{} moves", flow.moved)
            },
        ))
    }

    /// Removes flows that have ended.
    pub(super) fn sweep(&mut self, live: &BTreeSet<(u8, Route)>, around: &Around<'_>, out: &mut Out) {
        let over: Vec<u32> = self
            .flows
            .iter()
            .filter(|(_, flow)| !live.contains(&(flow.tracked.protocol, flow.tracked.inside)))
            .map(|(id, _)| *id)
            .collect();
        for id in over {
            let Some(mut flow) = self.flows.remove(&id) else {
                continue;
            };
            if let Some(up) = around.link(&flow.peer, flow.route_now().network) {
                out.say(up, PeerMessage::Forget { flow: id });
            }
            self.finished
                .extend(flow.fail("the flow has ended".to_owned(), around.now));
            for (_, path, nonce) in &flow.paths {
                unrelay(path, *nonce, around, out);
            }
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.flows.is_empty()
    }

    pub(super) fn len(&self) -> usize {
        self.flows.values().filter(|flow| flow.moved > 0).count()
    }
}

fn unrelay(path: &FlowPath, nonce: u32, around: &Around<'_>, out: &mut Out) {
    if let Some(through) = &path.through
        && let Some(up) = around.link(through, path.network)
    {
        out.say(up, PeerMessage::Unrelay { nonce });
    }
}

const TCP: u8 = hawser_wire::inner::protocol::TCP;
/// Maximum number of concurrent claims. Source: our choice, a quarter of what a follower accepts of
/// one guest; more send datagrams in bursts.
const MAX_CLAIMS: usize = 64;
/// Retry interval of a claim that a peer has rejected: an immediate retry would fail too. Source:
/// our choice; a rejected claim has a translator on its route, which changes with the network.
const CLAIM_AGAIN: Duration = Duration::from_secs(30);
