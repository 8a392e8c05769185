//! Which further hub of a fleet a client has a session with, beside the one in use: the one through
//! which destinations would gain most.
//!
//! A client has one such session at a time, and a connection through a hub can be tried within a
//! session only. So of a hub where that has not been done it is believed what would be best: that a
//! destination is as near as the hub itself. The hub that promises most gets the session; what is
//! tried there takes the place of the belief, and another hub may promise more then. Where nothing
//! promises anything, there is no session.
//!
//! What a hub promises is the time that the next transfers would take less, one of each
//! destination, as [`super`] expects it, beside the best way that is there without it.

use std::collections::BTreeMap;

use hawser_units::{Duration, Instant, NetworkId};

use super::{Destination, Destinations, LEAST_GAIN, TAKEN_BELOW, estimate};

/// A hub keeps the session for so long at first: as long as it takes to try all that was wanted of
/// late, some hundred destinations at sixteen a second, and to see the first transfers.
const HELD: Duration = Duration::from_secs(10);
/// That is doubled up to this at each change that comes within twice the time, so that hubs which
/// promise the same do not change places for ever: each change is a handshake.
const HELD_AT_MOST: Duration = Duration::from_secs(600);
/// A hub takes the place of another when it promises so many times as much: what is measured with a
/// quarter of the newest value ([`super::NEWEST`]) differs by as much from one time to the next.
const PROMISES_MORE: f64 = 1.25;
/// Without a promise, the session ends after so long.
const KEPT: Duration = Duration::from_secs(600);

/// The hub that has the session, or is to have it.
#[derive(Debug, Default)]
pub(super) struct Further {
    wanted: Option<Wanted>,
    changes: u32,
}

#[derive(Clone, Copy, Debug)]
struct Wanted {
    hub: NetworkId,
    since: Instant,
    /// It promised something last.
    good: Instant,
}

impl Destinations {
    /// The further hub that is to have a session. `near`: those that may, and how long each takes
    /// to answer. Ways through them are given to [`Self::handle_ways`] as all others, and carry
    /// nothing while there is no session.
    ///
    /// Cost: O(destinations * (ways + hubs)).
    pub fn choose_further(
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
                let held = (HELD * (1 << further.changes.min(MOST_DOUBLINGS))).min(HELD_AT_MOST);
                let lasted = now.since(wanted.since);
                if most > own * PROMISES_MORE && lasted >= held {
                    *wanted = begin(best);
                    further.changes = if lasted < 2 * held { further.changes + 1 } else { 0 };
                } else if now.since(wanted.good) >= KEPT {
                    further.wanted = None;
                }
            }
        }
        further.wanted.map(|wanted| wanted.hub)
    }

    /// What each of these hubs promises, in seconds.
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
                *promise += (without * TAKEN_BELOW - LEAST_GAIN - with).max(0.0);
            }
        }
        all
    }
}

impl Destination {
    /// How long the next transfer would take through a hub, in seconds, whether there is a session
    /// or not.
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

/// Ten minutes are ten seconds, doubled six times.
const MOST_DOUBLINGS: u32 = 6;
