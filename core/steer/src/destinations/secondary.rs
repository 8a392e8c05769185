//! Choice of a secondary hub of a fleet, with which the client has a concurrent session: the hub
//! through which destinations would gain most.
//!
//! A client has one such session at a time, and a connection through a hub can be probed only
//! within a session. For a hub without probes the best case is assumed: each destination is as near
//! as the hub itself. The hub with the largest predicted gain gets the session; probes then replace
//! the assumption, and another hub may have the largest prediction. If no hub has a positive
//! prediction, there is no session.
//!
//! The predicted gain of a hub is the time that the next transfers would save, one for each
//! destination, as [`super`] expects it, compared with the best other route.

use std::collections::BTreeMap;

use hawser_units::{Duration, Instant, NetworkId};

use super::{Destination, Destinations, MIN_GAIN, TAKEN_BELOW, estimate};

/// Minimum lifetime of a session with a secondary hub at first. Source: some hundred recently used
/// destinations are probed in 6 s (`PROBES_A_SECOND` of `destinations.rs`), and the first transfers
/// are observed after that.
const MIN_LIFETIME: Duration = Duration::from_secs(10);
/// Maximum of that lifetime, which doubles at each change within twice the time, so that hubs with
/// equal predictions do not alternate for ever: each change is a handshake. Source: our choice; six
/// doublings of [`MIN_LIFETIME`] reach it, and after a longer one a hub that has become faster is
/// used late.
const MAX_LIFETIME: Duration = Duration::from_secs(600);
/// Factor by which another hub's prediction must be better: values measured with a quarter of the
/// newest sample ([`super::NEWEST`]) vary by as much.
const PROMISES_MORE: f64 = 1.25;
/// Time without a prediction after which the session ends. Source: our choice, the lifetime of a
/// measured rate (`RATE_HOLDS` of `destinations.rs`), after which predictions have no base.
const PREDICTION_LIFETIME: Duration = Duration::from_secs(600);

/// Hub that has the session, or should get it.
#[derive(Debug, Default)]
pub(super) struct SecondaryChoice {
    wanted: Option<Wanted>,
    changes: u32,
}

#[derive(Clone, Copy, Debug)]
struct Wanted {
    hub: NetworkId,
    since: Instant,
    /// Time of its last prediction.
    good: Instant,
}

impl Destinations {
    /// Returns the secondary hub that should have a session. `near`: the candidates, and their
    /// response times. Routes through candidates are passed to [`Self::handle_routes`] as all
    /// others, without support of IPv4 and IPv6 while there is no session.
    ///
    /// Cost: O(destinations * (ways + hubs)).
    pub fn choose_secondary(
        &mut self,
        near: &BTreeMap<NetworkId, Duration>,
        now: Instant,
    ) -> Option<NetworkId> {
        let promises = self.promises(near, now);
        let most = promises
            .iter()
            .max_by(|(_, one), (_, other)| one.total_cmp(other));
        let most = most.map(|(hub, promise)| (*hub, *promise));
        let further = &mut self.further;
        further.wanted.take_if(|wanted| !near.contains_key(&wanted.hub));
        let (best, most) = most?;
        let begin = |hub| Wanted {
            hub,
            since: now,
            good: now,
        };
        match &mut further.wanted {
            None if most > 0.0 => further.wanted = Some(begin(best)),
            None => {}
            Some(wanted) => {
                let own = promises.get(&wanted.hub).copied().unwrap_or(0.0);
                if own > 0.0 {
                    wanted.good = now;
                }
                let held = (MIN_LIFETIME * (1 << further.changes.min(MAX_DOUBLINGS))).min(MAX_LIFETIME);
                let lasted = now.since(wanted.since);
                if most > own * PROMISES_MORE && lasted >= held {
                    *wanted = begin(best);
                    further.changes = if lasted < 2 * held { further.changes + 1 } else { 0 };
                } else if now.since(wanted.good) >= PREDICTION_LIFETIME {
                    further.wanted = None;
                }
            }
        }
        further.wanted.map(|wanted| wanted.hub)
    }

    /// Returns the predicted gain of each of these hubs, in seconds.
    fn promises(&self, near: &BTreeMap<NetworkId, Duration>, now: Instant) -> BTreeMap<NetworkId, f64> {
        let mut all = BTreeMap::new();
        all.extend(near.keys().map(|hub| (*hub, 0.0)));
        if all.is_empty() {
            return all;
        }
        for (address, destination) in &self.all {
            let others = self.ways.keys().filter(|id| !near.contains_key(id));
            let others = others.filter_map(|id| self.expected(*address, destination, *id));
            let Some(without) = others.map(|one| one.seconds).reduce(f64::min) else {
                continue;
            };
            for (hub, promise) in &mut all {
                let with = destination.through(*hub, near[hub], now);
                *promise += (without * TAKEN_BELOW - MIN_GAIN - with).max(0.0);
            }
        }
        all
    }
}

impl Destination {
    /// Returns the duration of the next transfer through a hub, in seconds, with or without a
    /// session.
    fn through(&self, hub: NetworkId, away: Duration, now: Instant) -> f64 {
        let way = self.known.get(&hub);
        if way.is_some_and(|way| !way.answers(now)) {
            return f64::INFINITY;
        }
        let connect = way.and_then(|way| way.connect).unwrap_or(away);
        let rate = way.and_then(|way| way.rate);
        estimate(connect, rate.map(|(rate, _)| rate), self.size.unwrap_or(0.0))
    }
}

/// Maximum number of doublings. Source: [`MIN_LIFETIME`] doubled six times exceeds
/// [`MAX_LIFETIME`].
const MAX_DOUBLINGS: u32 = 6;
