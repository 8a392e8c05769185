//! By which way a destination is reached sooner: through the hub in use, through another one of its
//! fleet, or past them over one of the networks.
//!
//! It starts with every destination through the hub in use, until a transfer was seen. The driver
//! shows it the flows whose way is left open, tries a connection over each way when it asks for
//! that, and is told by [`Destinations::poll_event`] which way a destination's next flows should
//! take. A flow that has begun stays where it is.
//!
//! What is expected of a way is the time that the destination's next transfer would take:
//!
//! ```text
//!   T = connect * (2 + log2(1 + size / 10 segments)) + size / rate
//! ```
//!
//! `connect` is the time from a SYN to its answer, the least of the first three, then smoothed;
//! `size` what this destination's transfers have, smoothed. Two round trips are connection and
//! request, the logarithm is slow start (RFC 6928: ten segments, then twice as many in each round
//! trip). `rate` is what transfers over this way reached, their stalls counted in; the logarithm
//! falls away then, because what was measured has slow start in it. Another way is taken when it
//! would take 5 % and 5 ms less.
//!
//! A way that has carried nothing yet is believed to carry any rate, so it is tried; but only where
//! the transfer would not take three times as long, and a second, should the way carry no more than
//! it has been seen to have left.
//!
//! A transfer is what comes without a pause: bytes that come again without a packet of payload
//! before them end a stall, and not a pause. A way that does not answer is left alone for a minute,
//! then for two, up to an hour.
//!
//! Limitations: what an application asks for slowly looks like a slow way, until the other way is
//! as slow; transfers shorter than some 0.3 s tell no rate; stalls of what is sent are not counted.
//! Addresses behind which there are many servers are one destination.

mod further;
mod transfer;

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, VecDeque};
use std::net::{IpAddr, SocketAddr};

use hawser_units::{Duration, Instant, NetworkId, Rate};

use further::Further;
use transfer::Transfers;

/// What a way may carry.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct WayFacts {
    /// IPv4 and IPv6.
    pub carries: [bool; 2],
    /// What it has been seen to carry, or is set to.
    pub capacity: Option<Rate>,
    /// What it carries now.
    pub used: Rate,
}

/// What has been counted of a flow since it began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counted {
    /// Packets.
    pub packets: u64,
    /// Bytes, with the headers of IP.
    pub bytes: u64,
}

/// A flow that a rule leaves to this machine.
#[derive(Clone, Copy, Debug)]
pub struct Flow {
    /// What tells it from all others to the same destination.
    pub key: u64,
    /// The destination.
    pub to: SocketAddr,
    /// The way that it took.
    pub way: NetworkId,
    /// To the destination, and from it.
    pub counted: [Counted; 2],
    /// Whether silence means that the way leads nowhere: so for TCP.
    pub expects_answer: bool,
}

/// The driver shall open a TCP connection, and tell [`Destinations::handle_connect`] how long that
/// took.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Probe {
    /// Whom to connect to.
    pub to: SocketAddr,
    /// By which way.
    pub way: NetworkId,
}

/// The way of a destination's next flows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Change {
    /// The destination.
    pub address: IpAddr,
    /// The way that they take past the hub in use; `None`: through it.
    pub past: Option<NetworkId>,
    /// The same before.
    pub before: Option<NetworkId>,
}

/// What is known of one way to a destination.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Known {
    /// The way.
    pub way: NetworkId,
    /// How long a connection takes.
    pub connect: Option<Duration>,
    /// What transfers reach.
    pub rate: Option<Rate>,
    /// How long the next transfer would take; `None` while the way does not answer.
    pub expected: Option<Duration>,
}

/// All destinations.
///
/// Cost: O(flows) a look; at most [`MOST`] destinations, [`MOST_FLOWS`] flows of each.
#[derive(Debug)]
pub struct Destinations {
    hub: NetworkId,
    ways: BTreeMap<NetworkId, WayFacts>,
    all: BTreeMap<IpAddr, Destination>,
    changes: VecDeque<Change>,
    /// Probes that may begin in this second, and when it began.
    allowed: (u32, Instant),
    further: Further,
    /// Destinations that have just had something to carry, and when one had last.
    busy: usize,
    last_busy: Option<Instant>,
}

#[derive(Debug)]
struct Destination {
    port: u16,
    past: Option<NetworkId>,
    /// When its latest flow began.
    wanted: Instant,
    transfers: Transfers,
    /// Bytes of a transfer.
    size: Option<f64>,
    known: BTreeMap<NetworkId, Way>,
}

#[derive(Debug, Default)]
struct Way {
    connect: Option<Duration>,
    /// When the next probe is due, and how many have been answered. `None`: one is under way.
    probe_at: Option<Instant>,
    answered: u32,
    /// What transfers reach, and when one was seen last.
    rate: Option<(Reached, Instant)>,
    /// It did not answer: left alone until then, and for how long.
    failed: Option<(Instant, Duration)>,
}

impl Destinations {
    /// Nothing is known; `hub`: the way that leads through the hub in use.
    #[must_use]
    pub fn new(hub: NetworkId) -> Self {
        Self {
            hub,
            ways: BTreeMap::new(),
            all: BTreeMap::new(),
            changes: VecDeque::new(),
            further: Further::default(),
            allowed: (PROBES_A_SECOND, Instant::ZERO),
            busy: 0,
            last_busy: None,
        }
    }

    /// These ways are there, and no others.
    pub fn handle_ways(&mut self, ways: BTreeMap<NetworkId, WayFacts>, now: Instant) {
        let is_same = self.ways.keys().eq(ways.keys());
        self.ways = ways;
        if !is_same {
            for destination in self.all.values_mut() {
                destination.know_ways(&self.ways, now);
            }
            self.decide(now);
        }
    }

    /// What is known of all destinations holds no more: another hub is in use.
    pub fn forget(&mut self) {
        for (address, destination) in std::mem::take(&mut self.all) {
            self.changes.extend(destination.end(address));
        }
        self.further = Further::default();
    }

    /// These flows are there. Call it every [`Self::interval`].
    pub fn handle_flows(&mut self, flows: impl IntoIterator<Item = Flow>, now: Instant) {
        let mut shown: BTreeMap<IpAddr, Vec<Flow>> = BTreeMap::new();
        for flow in flows {
            let of_address = shown.entry(flow.to.ip()).or_default();
            if of_address.len() < MOST_FLOWS {
                of_address.push(flow);
            }
        }
        self.busy = 0;
        for (address, flows) in &shown {
            let Some(first) = flows.first() else { continue };
            if !self.all.contains_key(address) && self.make_room() {
                let mut new = Destination::new(first.to.port(), now);
                new.know_ways(&self.ways, now);
                self.all.insert(*address, new);
            }
        }
        for (address, destination) in &mut self.all {
            let flows = shown.get(address).map_or(&[][..], Vec::as_slice);
            self.busy += usize::from(destination.handle_flows(flows, now));
        }
        if self.busy > 0 {
            self.last_busy = Some(now);
        }
        let changes = &mut self.changes;
        self.all.retain(|address, destination| {
            let is_kept = now.since(destination.wanted) < KEPT || destination.transfers.has_flows();
            if !is_kept {
                changes.extend(destination.end(*address));
            }
            is_kept
        });
        self.decide(now);
    }

    /// How long until flows should be shown again.
    #[must_use]
    pub fn interval(&self, now: Instant) -> Duration {
        match self.last_busy {
            Some(last) if now.since(last) < BUSY_FOR => BUSY_LOOK,
            _ => IDLE_LOOK,
        }
    }

    /// A connection took so long; `None`: nobody answered.
    pub fn handle_connect(&mut self, probe: Probe, took: Option<Duration>, now: Instant) {
        let Some(destination) = self.all.get_mut(&probe.to.ip()) else {
            return;
        };
        let Some(way) = destination.known.get_mut(&probe.way) else {
            return;
        };
        match took {
            Some(took) => way.handle_answer(took, now),
            None => {
                way.fail(now);
                way.probe_at = way.failed.map(|(until, _)| until);
            }
        }
        self.decide(now);
    }

    /// The next connection to try.
    pub fn poll_probe(&mut self, now: Instant) -> Option<Probe> {
        if now.since(self.allowed.1) >= Duration::from_secs(1) {
            self.allowed = (PROBES_A_SECOND, now);
        }
        if self.allowed.0 == 0 {
            return None;
        }
        for (address, destination) in &mut self.all {
            if now.since(destination.wanted) >= PROBED_FOR {
                continue;
            }
            let ways = &self.ways;
            let family = usize::from(address.is_ipv6());
            let carries = |id: &NetworkId| ways.get(id).is_some_and(|facts| facts.carries[family]);
            let due = destination
                .known
                .iter_mut()
                .find(|(id, way)| carries(id) && way.probe_at.is_some_and(|at| at <= now));
            if let Some((id, way)) = due {
                way.probe_at = None;
                self.allowed.0 -= 1;
                return Some(Probe {
                    to: SocketAddr::new(*address, destination.port),
                    way: *id,
                });
            }
        }
        None
    }

    /// The next destination whose flows take another way from now on.
    pub fn poll_event(&mut self) -> Option<Change> {
        self.changes.pop_front()
    }

    /// Destinations that are reached past the hub in use, and by which way.
    pub fn past(&self) -> impl Iterator<Item = (IpAddr, NetworkId)> + '_ {
        let all = self.all.iter();
        all.filter_map(|(address, destination)| Some((*address, destination.past?)))
    }

    /// How many destinations are known.
    #[must_use]
    pub fn len(&self) -> usize {
        self.all.len()
    }

    /// Whether none is.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// What is known of the ways to a destination.
    pub fn known(&self, address: IpAddr) -> impl Iterator<Item = Known> + '_ {
        let destination = self.all.get(&address);
        destination.into_iter().flat_map(move |destination| {
            let known = destination.known.iter();
            known.map(move |(id, way)| Known {
                way: *id,
                connect: way.connect,
                rate: way
                    .rate
                    .map(|(rate, _)| Rate::from_bps((rate.bytes_per_second() * 8.0) as u64)),
                expected: self
                    .expected(address, destination, *id)
                    .and_then(|expected| Duration::try_from_secs_f64(expected.seconds).ok()),
            })
        })
    }

    /// Whether there is room for one more; who had flows longest ago makes it, and has none now.
    fn make_room(&mut self) -> bool {
        if self.all.len() < MOST {
            return true;
        }
        let idle = self.all.iter().filter(|(_, one)| !one.transfers.has_flows());
        let oldest = idle
            .min_by_key(|(_, one)| one.wanted)
            .map(|(address, _)| *address);
        let gone = oldest.and_then(|address| Some((address, self.all.remove(&address)?)));
        let Some((address, gone)) = gone else {
            return false;
        };
        self.changes.extend(gone.end(address));
        true
    }

    fn decide(&mut self, now: Instant) {
        let addresses: Vec<_> = self.all.keys().copied().collect();
        for address in addresses {
            let Some(destination) = self.all.get(&address) else {
                continue;
            };
            let best = self.best(address, destination, now);
            let before = destination.past;
            if best != before
                && let Some(destination) = self.all.get_mut(&address)
            {
                destination.past = best;
                self.changes.push_back(Change {
                    address,
                    past: best,
                    before,
                });
            }
        }
    }

    /// The way past the hub in use, if one is sooner there.
    fn best(&self, address: IpAddr, destination: &Destination, now: Instant) -> Option<NetworkId> {
        let answers = |id: &NetworkId| {
            let way = destination.known.get(id);
            way.is_some_and(|way| way.answers(now))
        };
        if destination.size.is_none() && answers(&self.hub) {
            return None;
        }
        let all: Vec<_> = self
            .ways
            .keys()
            .filter(|id| answers(id))
            .filter_map(|id| Some((*id, self.expected(address, destination, *id)?)))
            .collect();
        let of = |id: NetworkId| all.iter().find(|(known, _)| *known == id).map(|(_, one)| *one);
        let least = |some: &mut dyn Iterator<Item = &(NetworkId, Expected)>| {
            some.min_by(|(_, one), (_, other)| one.seconds.total_cmp(&other.seconds))
                .copied()
        };
        // What is not known is measured by what is.
        let known = least(&mut all.iter().filter(|(_, one)| one.is_known))
            .or(of(self.hub).map(|one| (self.hub, one)));
        let bearable = known.map_or(f64::INFINITY, |(_, one)| one.seconds * BEARABLE + BEARABLE_MORE);
        let is_bearable = |one: &Expected| one.is_known || one.at_most <= bearable;
        let current = destination.past.unwrap_or(self.hub);
        let stays = of(current).filter(|one| current == self.hub || is_bearable(one));
        let best = least(&mut all.iter().filter(|(_, one)| is_bearable(one)));
        let taken = match (stays, best) {
            (Some(stays), Some((id, best))) if best.seconds < stays.seconds * TAKEN_BELOW - LEAST_GAIN => id,
            // The hub's way has not been looked at yet.
            (None, Some(_)) if destination.past.is_none() && answers(&self.hub) => self.hub,
            (None, Some((id, _))) => id,
            (Some(_), _) => current,
            (None, None) => self.hub,
        };
        (taken != self.hub).then_some(taken)
    }

    /// How long the next transfer would take.
    fn expected(&self, address: IpAddr, destination: &Destination, id: NetworkId) -> Option<Expected> {
        let facts = self.ways.get(&id)?;
        let way = destination.known.get(&id)?;
        if !facts.carries[usize::from(address.is_ipv6())] {
            return None;
        }
        let size = destination.size.unwrap_or(0.0);
        let rate = way.rate.map(|(rate, _)| rate);
        let seconds = estimate(way.connect?, rate, size);
        let at_most = match rate {
            Some(_) => seconds,
            None => seconds + size / self.left(facts),
        };
        Some(Expected {
            seconds,
            at_most,
            is_known: rate.is_some(),
        })
    }

    /// Bytes a second that a way has left for one more, as far as it has been seen, or its even
    /// share.
    fn left(&self, facts: &WayFacts) -> f64 {
        let all = facts.capacity.map_or(LEAST_CAPACITY, |rate| rate.as_bps() as f64);
        let used = facts.used.as_bps() as f64;
        (all - used).max(all / (self.busy as f64 + 1.0)) / 8.0
    }
}

/// How long a transfer of so many bytes would take, in seconds, at the rate that others reached, if
/// it is known.
fn estimate(connect: Duration, rate: Option<Reached>, size: f64) -> f64 {
    let connect = connect.as_secs_f64();
    match rate {
        Some(rate) => 2.0 * connect + size / rate.bytes_per_second(),
        None => connect * (2.0 + (1.0 + size / INITIAL_WINDOW).log2()),
    }
}

/// How long a transfer would take. Units: seconds.
#[derive(Clone, Copy, Debug)]
struct Expected {
    seconds: f64,
    /// Should the way carry no more than it has been seen to have left.
    at_most: f64,
    /// By a transfer that went there.
    is_known: bool,
}

impl Destination {
    fn new(port: u16, now: Instant) -> Self {
        Self {
            port,
            past: None,
            wanted: now,
            transfers: Transfers::default(),
            size: None,
            known: BTreeMap::new(),
        }
    }

    /// What is to be said when it is forgotten.
    fn end(&self, address: IpAddr) -> Option<Change> {
        self.past.map(|past| Change {
            address,
            past: None,
            before: Some(past),
        })
    }

    /// What was known of a way that is gone is no good when it comes back.
    fn know_ways(&mut self, ways: &BTreeMap<NetworkId, WayFacts>, now: Instant) {
        self.known.retain(|id, _| ways.contains_key(id));
        for id in ways.keys() {
            self.known.entry(*id).or_insert_with(|| Way {
                probe_at: Some(now),
                ..Way::default()
            });
        }
    }

    /// Returns whether something was carried.
    fn handle_flows(&mut self, flows: &[Flow], now: Instant) -> bool {
        let looked = self.transfers.look(flows, now);
        if let Some(port) = looked.began {
            // All ways are looked at again, in case the last time was long ago.
            let was_idle = now.since(self.wanted) >= PROBED_FOR;
            (self.port, self.wanted) = (port, now);
            let due = self
                .known
                .values_mut()
                .filter(|way| was_idle && way.failed.is_none());
            due.for_each(|way| way.probe_at = Some(now));
        }
        for id in looked.unanswered {
            if let Some(way) = self.known.get_mut(&id)
                && way.answers(now)
            {
                way.fail(now);
            }
        }
        for done in looked.done {
            if done.is_over {
                self.size = Some(smoothed(self.size, done.bytes));
            } else if self.size.is_none_or(|size| size < done.bytes) {
                self.size = Some(done.bytes);
            }
            if let (Some((bytes, seconds)), Some(way)) = (done.rate, self.known.get_mut(&done.way)) {
                let before = way.rate.map(|(before, _)| before);
                let reached = Reached {
                    bytes: smoothed(before.map(|before| before.bytes), bytes),
                    seconds: smoothed(before.map(|before| before.seconds), seconds),
                };
                way.rate = Some((reached, now));
            }
        }
        for way in self.known.values_mut() {
            if way
                .rate
                .is_some_and(|(_, measured)| now.since(measured) >= RATE_HOLDS)
            {
                way.rate = None;
            }
        }
        self.transfers.is_busy(now)
    }
}

/// What transfers had and how long they took, each smoothed: the noise of a rate would not be even.
#[derive(Clone, Copy, Debug)]
struct Reached {
    bytes: f64,
    seconds: f64,
}

impl Reached {
    fn bytes_per_second(self) -> f64 {
        self.bytes / self.seconds
    }
}

impl Way {
    fn handle_answer(&mut self, took: Duration, now: Instant) {
        let known = self.connect.map(|known| known.as_secs_f64());
        let took = took.as_secs_f64();
        let seconds = match known {
            Some(known) if self.answered < FIRST_PROBES => known.min(took),
            known => smoothed(known, took),
        };
        self.connect = Duration::try_from_secs_f64(seconds).ok();
        self.answered += 1;
        let pause = if self.answered < FIRST_PROBES {
            FIRST_PAUSE
        } else {
            PROBE_EVERY
        };
        self.probe_at = Some(now + pause);
    }

    /// Whether it is not left alone for want of an answer.
    fn answers(&self, now: Instant) -> bool {
        self.failed.is_none_or(|(until, _)| until <= now)
    }

    fn fail(&mut self, now: Instant) {
        let lasts = self
            .failed
            .map_or(FAILED_FOR, |(_, before)| (before * 2).min(FAILED_AT_MOST));
        self.failed = Some((now + lasts, lasts));
    }
}

fn smoothed(before: Option<f64>, new: f64) -> f64 {
    before.map_or(new, |before| before + (new - before) * NEWEST)
}

/// Destinations at once.
pub const MOST: usize = 1024;
/// Flows of a destination that are looked at, with those that have ended of late: the kernel keeps
/// them for two minutes.
pub const MOST_FLOWS: usize = 4096;
/// Ten segments (RFC 6928).
const INITIAL_WINDOW: f64 = 14_600.0;
/// The part of the newest of several measurements.
const NEWEST: f64 = 0.25;
/// Another way is taken when it takes less than this part of the time.
const TAKEN_BELOW: f64 = 0.95;
/// And by so much: nobody notices less, and connections within a site, or on a busy machine,
/// scatter by as much. The nearest hub of a fleet changes by as much, too. Units: seconds.
const LEAST_GAIN: f64 = 0.005;
/// A way of which no rate is known is tried where that cannot take longer than so many times what
/// it takes now, and so many seconds.
const BEARABLE: f64 = 3.0;
const BEARABLE_MORE: f64 = 1.0;
/// Of a way that has never been seen to carry more. Units: bit/s.
const LEAST_CAPACITY: f64 = 1e6;
/// Often enough to see a transfer of 0.3 s.
const BUSY_LOOK: Duration = Duration::from_millis(100);
const IDLE_LOOK: Duration = Duration::from_millis(300);
/// After a transfer the next one is expected for so long.
const BUSY_FOR: Duration = Duration::from_secs(10);
/// Probes at the start, of which the quickest counts, and their distance: the first finds a way
/// that nobody has used, with addresses to be proven and neighbours to be asked for.
const FIRST_PROBES: u32 = 3;
const FIRST_PAUSE: Duration = Duration::from_secs(1);
/// Conditions of a radio change within minutes.
const PROBE_EVERY: Duration = Duration::from_secs(60);
/// Nobody is asked about destinations that nobody wants.
const PROBED_FOR: Duration = Duration::from_secs(120);
/// What a rate said so long ago is forgotten, so that the way is tried again.
const RATE_HOLDS: Duration = Duration::from_secs(600);
/// A destination without flows is forgotten.
const KEPT: Duration = Duration::from_secs(1800);
const FAILED_FOR: Duration = Duration::from_secs(60);
const FAILED_AT_MOST: Duration = Duration::from_secs(3600);
/// Less than a browser opens for one page: nobody takes them for a search of hosts.
const PROBES_A_SECOND: u32 = 16;
