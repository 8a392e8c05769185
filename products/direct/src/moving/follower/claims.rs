//! Ownership of flows: claims to UDP flows and their proof, and the number of errors of a guest.

use std::net::SocketAddr;

use hawser_config::identity::{KeyHash, random};
use hawser_control::budget::{Budget, Pace};
use hawser_linux::conntrack::{self, Connection};
use hawser_linux::direct::{MARK, MARK_MASK};
use hawser_steer::migration::Route;
use hawser_steer::migration::proof::Challenger;
use hawser_units::{Duration, Instant};
use hawser_wire::inner::protocol;
use hawser_wire::opening::Challenge;
use hawser_wire::peer::Unexpected;

use super::{Around, Followers, candidates};
use crate::moving::Out;
use crate::moving::tracked::Tracked;

/// Claim to a UDP flow, and the flows that it may mean.
pub(super) struct Claim {
    pub(super) challenger: Challenger,
    pub(super) possible: Vec<Tracked>,
    pub(super) believed: Route,
}

impl Followers {
    /// Sends a secret over each flow that a claim may mean, and repeats it with each claim.
    pub(super) fn on_claim(
        &mut self,
        id: (KeyHash, u32),
        near: SocketAddr,
        far: SocketAddr,
        around: &Around<'_>,
        out: &mut Out,
    ) -> Result<(), Unexpected> {
        let now = around.now;
        if self.flows.contains_key(&id) {
            return Ok(());
        }
        self.has_room(id.0)?;
        self.claims.retain(|_, claim| !claim.challenger.is_over(now));
        if !self.claims.contains_key(&id) {
            let claim = self.claim_of(id.0, near, far, now)?;
            self.claims.insert(id, claim);
        }
        let claim = &self.claims[&id];
        for (route, secret) in claim.challenger.challenges() {
            let own = claim.possible.iter().find(|tracked| tracked.first == route);
            let device = own.map(|tracked| (around.device)(tracked.network));
            let challenge = Challenge {
                source: route.near,
                destination: route.far,
                flow: id.1,
                secret,
            };
            device.iter().for_each(|device| out.challenge(device, &challenge));
        }
        Ok(())
    }

    pub(super) fn claim_of(
        &mut self,
        key: KeyHash,
        near: SocketAddr,
        far: SocketAddr,
        now: Instant,
    ) -> Result<Claim, Unexpected> {
        if self.claims.range((key, 0)..=(key, u32::MAX)).count() >= MAX_CLAIMS {
            return Err(Unexpected::Busy);
        }
        let seen = self.speaks_from(key, now);
        self.is_patient(key)?;
        let mut possible = candidates(self.connections(now), &seen, protocol::UDP, far);
        // A flow with an unchanged port is the most likely one; the others then receive no secret.
        if let Some(own) = possible
            .iter()
            .find(|tracked| tracked.first.far.port() == near.port())
            && seen.contains(&near.ip())
        {
            possible = vec![own.clone()];
        }
        let routes: Vec<_> = possible.iter().map(|tracked| tracked.first).collect();
        let challenger = Challenger::new(&routes, || u64::from_be_bytes(random()), now);
        let believed = Route { near: far, far: near };
        challenger
            .map(|challenger| Claim {
                challenger,
                possible,
                believed,
            })
            .ok_or_else(|| self.was_wrong(key))
    }

    pub(super) fn on_proof(
        &mut self,
        id: (KeyHash, u32),
        secret: u64,
        now: Instant,
    ) -> Result<(), Unexpected> {
        if self.flows.contains_key(&id) {
            return Ok(());
        }
        let mut claim = self.claims.remove(&id).ok_or(Unexpected::UnknownFlow)?;
        let route = claim.challenger.handle_proof(secret, now);
        let proven = claim
            .possible
            .into_iter()
            .find(|tracked| Some(tracked.first) == route);
        let Some(tracked) = proven else {
            return Err(self.was_wrong(id.0));
        };
        self.follow(id, tracked, claim.believed);
        Ok(())
    }

    /// Fails if a guest has made too many errors.
    pub(super) fn is_patient(&mut self, key: KeyHash) -> Result<(), Unexpected> {
        let now = std::time::Instant::now();
        let patience = self
            .patience
            .entry(key)
            .or_insert_with(|| Budget::new(ERROR_BUDGET, now));
        if patience.has(WRONG, now) {
            Ok(())
        } else {
            Err(Unexpected::Busy)
        }
    }

    pub(super) fn was_wrong(&mut self, key: KeyHash) -> Unexpected {
        if let Some(patience) = self.patience.get_mut(&key) {
            let _ = patience.spend(WRONG, std::time::Instant::now());
        }
        Unexpected::UnknownFlow
    }

    /// Returns the connections that the kernel tracks, from a recent list.
    pub(super) fn connections(&mut self, now: Instant) -> &[Connection] {
        if self.listed.as_ref().is_none_or(|(until, _)| *until <= now) {
            let listed = conntrack::list(MARK, MARK_MASK)
                .inspect_err(|error| tracing::warn!(%error, "cannot read the kernel's connections"));
            self.listed = Some((now + LISTED_FOR, listed.unwrap_or_default()));
        }
        self.listed.as_ref().map_or(&[], |(_, listed)| listed)
    }
}

/// Maximum number of a guest's open claims; it claims flows when they begin. Source: our choice,
/// four times what a mover has open; each takes some hundred bytes and a few datagrams.
const MAX_CLAIMS: usize = 256;
/// Budget of wrong claims: 32, and one more every 10 s. A guest that guesses the position of a
/// connection succeeds once in a thousand attempts; an honest guest is wrong when a flow has just
/// ended.
const ERROR_BUDGET: Pace = Pace {
    burst: 320,
    per_second: 1,
};
/// Cost of a wrong claim in units of [`ERROR_BUDGET`]. Source: the budget is that of 32 claims, and
/// of one more every 10 s.
const WRONG: u32 = 10;
/// Lifetime of a list of connections. Source: listing ten thousand takes some ten milliseconds; a
/// mover repeats a claim that was too early.
const LISTED_FOR: Duration = Duration::from_millis(100);
