//! Choice of the fastest route to a destination: through the hub in use, through another hub of its
//! fleet, or directly over one of the networks.
//!
//! It starts with every destination through the hub in use, until a transfer was observed. The
//! driver reports the flows whose route is not fixed by a rule, opens a connection over each route
//! on request, and receives from [`Destinations::poll_event`] the route of a destination's next
//! flows. A flow that has begun stays on its route.
//!
//! A route is judged by the expected duration of the destination's next transfer:
//!
//! ```text
//!   T = connect * (2 + log2(1 + size / 10 segments)) + size / rate
//! ```
//!
//! `connect` is the time from a SYN to its answer: the minimum of the first three, then smoothed.
//! `size` is the smoothed size of this destination's transfers. Two round trips are connection and
//! request; the logarithm is slow start (RFC 6928: ten segments, doubled in each round trip).
//! `rate` is the rate of earlier transfers over this route, stalls included. With a known rate the
//! logarithm is omitted, because the measured rate includes slow start. The route changes if
//! another one is faster by 5 % and 5 ms.
//!
//! A route without a completed transfer is assumed to have an infinite rate, so that it is tried.
//! It is tried only if the transfer would take at most three times the present duration plus 1 s at
//! the route's observed spare capacity.
//!
//! A transfer is a run of bytes without a pause. Bytes that continue after a pause without a
//! request (a sent packet with payload) end a stall, and belong to the same transfer. A route that
//! does not answer is not used for one minute, then for two, up to an hour.
//!
//! Limitations: a route appears slow when the application requests data slowly, until the other
//! route is as slow; transfers shorter than about 0.3 s give no rate; stalls of sent data are not
//! counted. An address of several servers is one destination.

mod secondary;
mod transfer;

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, VecDeque};
use std::net::{IpAddr, SocketAddr};

use hawser_units::{Duration, Instant, NetworkId, Rate};

use secondary::SecondaryChoice;
use transfer::Transfers;

/// Properties of a route.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct RouteFacts {
    /// Support of IPv4 and IPv6.
    pub carries: [bool; 2],
    /// Capacity, observed or configured.
    pub capacity: Option<Rate>,
    /// Present throughput.
    pub used: Rate,
}

/// Counters of a flow since it began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counted {
    /// Packets.
    pub packets: u64,
    /// Bytes, IP headers included.
    pub bytes: u64,
}

/// Flow whose route no rule fixes.
#[derive(Clone, Copy, Debug)]
pub struct Flow {
    /// Key that is unique among the flows to the destination.
    pub key: u64,
    /// The destination.
    pub to: SocketAddr,
    /// Route that the flow took.
    pub way: NetworkId,
    /// Counters to the destination, and from it.
    pub counted: [Counted; 2],
    /// Set if missing answers mean that the route does not reach the destination, as for TCP.
    pub expects_answer: bool,
}

/// Request to the driver: open a TCP connection and report the duration to
/// [`Destinations::handle_connect`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Probe {
    /// Address and port to connect to.
    pub to: SocketAddr,
    /// Network of the probe.
    pub way: NetworkId,
}

/// Change of the route of a destination's next flows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Change {
    /// The destination.
    pub address: IpAddr,
    /// Route that bypasses the hub in use; `None`: through the hub.
    pub past: Option<NetworkId>,
    /// Previous value of `past`.
    pub before: Option<NetworkId>,
}

/// Properties of one route to a destination.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Known {
    /// Route.
    pub way: NetworkId,
    /// Duration of a connection's handshake.
    pub connect: Option<Duration>,
    /// Rate of transfers.
    pub rate: Option<Rate>,
    /// Expected duration of the next transfer; `None` while the route does not answer.
    pub expected: Option<Duration>,
}

/// State of all destinations.
///
/// Cost: O(flows) a sample; at most [`MAX`] destinations, [`MAX_FLOWS`] flows of each.
#[derive(Debug)]
pub struct Destinations {
    hub: NetworkId,
    ways: BTreeMap<NetworkId, RouteFacts>,
    all: BTreeMap<IpAddr, Destination>,
    changes: VecDeque<Change>,
    /// Probes that may still begin in this second, and the begin of that second.
    allowed: (u32, Instant),
    further: SecondaryChoice,
    /// Number of destinations with a recent transfer, and the time of the last one.
    busy: usize,
    last_busy: Option<Instant>,
}

#[derive(Debug)]
struct Destination {
    port: u16,
    past: Option<NetworkId>,
    /// Begin of the latest flow.
    wanted: Instant,
    transfers: Transfers,
    /// Bytes of a transfer.
    size: Option<f64>,
    known: BTreeMap<NetworkId, Route>,
}

#[derive(Debug, Default)]
struct Route {
    connect: Option<Duration>,
    /// Time of the next probe, and the number of answered ones. `None`: one is under way.
    probe_at: Option<Instant>,
    answered: u32,
    /// Rate of transfers, and the time of the last one.
    rate: Option<(Reached, Instant)>,
    /// Failure of the route: time until which it is not tried again, and the duration of that.
    failed: Option<(Instant, Duration)>,
}

impl Destinations {
    /// Creates a state without measurements; `hub`: the route through the hub in use.
    #[must_use]
    pub fn new(hub: NetworkId) -> Self {
        Self {
            hub,
            ways: BTreeMap::new(),
            all: BTreeMap::new(),
            changes: VecDeque::new(),
            further: SecondaryChoice::default(),
            allowed: (PROBES_A_SECOND, Instant::ZERO),
            busy: 0,
            last_busy: None,
        }
    }

    /// Sets the available routes.
    pub fn handle_routes(&mut self, ways: BTreeMap<NetworkId, RouteFacts>, now: Instant) {
        let is_same = self.ways.keys().eq(ways.keys());
        self.ways = ways;
        if !is_same {
            for destination in self.all.values_mut() {
                destination.update_routes(&self.ways, now);
            }
            self.decide(now);
        }
    }

    /// Forgets all measurements, since another hub is in use.
    pub fn forget(&mut self) {
        for (address, destination) in std::mem::take(&mut self.all) {
            self.changes.extend(destination.end(address));
        }
        self.further = SecondaryChoice::default();
    }

    /// Reports the present flows. Must be called every [`Self::interval`].
    pub fn handle_flows(&mut self, flows: impl IntoIterator<Item = Flow>, now: Instant) {
        let mut shown: BTreeMap<IpAddr, Vec<Flow>> = BTreeMap::new();
        for flow in flows {
            let of_address = shown.entry(flow.to.ip()).or_default();
            if of_address.len() < MAX_FLOWS {
                of_address.push(flow);
            }
        }
        self.busy = 0;
        for (address, flows) in &shown {
            let Some(first) = flows.first() else { continue };
            if !self.all.contains_key(address) && self.make_room() {
                let mut new = Destination::new(first.to.port(), now);
                new.update_routes(&self.ways, now);
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
            let is_kept =
                now.since(destination.wanted) < DESTINATION_LIFETIME || destination.transfers.has_flows();
            if !is_kept {
                changes.extend(destination.end(*address));
            }
            is_kept
        });
        self.decide(now);
    }

    /// Returns the time until the next report of flows.
    #[must_use]
    pub fn interval(&self, now: Instant) -> Duration {
        match self.last_busy {
            Some(last) if now.since(last) < BUSY_FOR => BUSY_INTERVAL,
            _ => IDLE_INTERVAL,
        }
    }

    /// Handles the duration of a connection's handshake; `None`: no answer.
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

    /// Returns the next connection to try.
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

    /// Returns the next destination whose flows take another route from now on.
    pub fn poll_event(&mut self) -> Option<Change> {
        self.changes.pop_front()
    }

    /// Returns the destinations that bypass the hub in use, each with its route.
    pub fn past(&self) -> impl Iterator<Item = (IpAddr, NetworkId)> + '_ {
        let all = self.all.iter();
        all.filter_map(|(address, destination)| Some((*address, destination.past?)))
    }

    /// Returns the number of known destinations.
    #[must_use]
    pub fn len(&self) -> usize {
        self.all.len()
    }

    /// Returns whether no destination is known.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// Returns the measurements of the routes to a destination.
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

    /// Returns whether one more destination fits. If necessary, replaces the destination without
    /// present flows whose last flow is the oldest.
    fn make_room(&mut self) -> bool {
        if self.all.len() < MAX {
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

    /// Returns the route that bypasses the hub in use, if one is faster.
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
        // Unknown routes are bounded by the best known route.
        let known = least(&mut all.iter().filter(|(_, one)| one.is_known))
            .or(of(self.hub).map(|one| (self.hub, one)));
        let bearable = known.map_or(f64::INFINITY, |(_, one)| one.seconds * BEARABLE + BEARABLE_MORE);
        let is_bearable = |one: &Expected| one.is_known || one.at_most <= bearable;
        let current = destination.past.unwrap_or(self.hub);
        let stays = of(current).filter(|one| current == self.hub || is_bearable(one));
        let best = least(&mut all.iter().filter(|(_, one)| is_bearable(one)));
        let taken = match (stays, best) {
            (Some(stays), Some((id, best))) if best.seconds < stays.seconds * TAKEN_BELOW - MIN_GAIN => id,
            // The hub's route has not been probed yet.
            (None, Some(_)) if destination.past.is_none() && answers(&self.hub) => self.hub,
            (None, Some((id, _))) => id,
            (Some(_), _) => current,
            (None, None) => self.hub,
        };
        (taken != self.hub).then_some(taken)
    }

    /// Returns the expected duration of the next transfer.
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

    /// Returns the spare capacity of a route, or its even share if that is larger. Units: bytes/s.
    fn left(&self, facts: &RouteFacts) -> f64 {
        let all = facts.capacity.map_or(MIN_CAPACITY, |rate| rate.as_bps() as f64);
        let used = facts.used.as_bps() as f64;
        (all - used).max(all / (self.busy as f64 + 1.0)) / 8.0
    }
}

/// Returns the duration of a transfer of this size, in seconds, at the rate that other transfers
/// reached, if it is known.
fn estimate(connect: Duration, rate: Option<Reached>, size: f64) -> f64 {
    let connect = connect.as_secs_f64();
    match rate {
        Some(rate) => 2.0 * connect + size / rate.bytes_per_second(),
        None => connect * (2.0 + (1.0 + size / INITIAL_WINDOW).log2()),
    }
}

/// Expected duration of a transfer. Units: seconds.
#[derive(Clone, Copy, Debug)]
struct Expected {
    seconds: f64,
    /// Duration at the route's observed spare capacity.
    at_most: f64,
    /// Set if a transfer over that route measured it.
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

    /// Returns the change to report when it is forgotten.
    fn end(&self, address: IpAddr) -> Option<Change> {
        self.past.map(|past| Change {
            address,
            past: None,
            before: Some(past),
        })
    }

    /// Discards the measurements of removed routes, which are invalid when the route returns.
    fn update_routes(&mut self, ways: &BTreeMap<NetworkId, RouteFacts>, now: Instant) {
        self.known.retain(|id, _| ways.contains_key(id));
        for id in ways.keys() {
            self.known.entry(*id).or_insert_with(|| Route {
                probe_at: Some(now),
                ..Route::default()
            });
        }
    }

    /// Returns whether bytes were transferred.
    fn handle_flows(&mut self, flows: &[Flow], now: Instant) -> bool {
        let looked = self.transfers.sample(flows, now);
        if let Some(port) = looked.began {
            // All routes are probed again, in case the last time was long ago.
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

/// Smoothed bytes and durations of transfers. Both are smoothed apart, because the noise of their
/// quotient would not be symmetric.
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

impl Route {
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

    /// Returns whether the route may be used: it is not excluded for a missing answer.
    fn answers(&self, now: Instant) -> bool {
        self.failed.is_none_or(|(until, _)| until <= now)
    }

    fn fail(&mut self, now: Instant) {
        let lasts = self
            .failed
            .map_or(FAILED_FOR, |(_, before)| (before * 2).min(MAX_FAILED_FOR));
        self.failed = Some((now + lasts, lasts));
    }
}

fn smoothed(before: Option<f64>, new: f64) -> f64 {
    before.map_or(new, |before| before + (new - before) * NEWEST)
}

/// Maximum number of destinations. Source: our choice, a bound on memory and on probes; a user
/// reaches fewer in half an hour, and beyond it the one that was used least recently is measured
/// again at its next use.
pub const MAX: usize = 1024;
/// Maximum number of a destination's flows that are examined, including those that ended recently:
/// the kernel keeps them for two minutes. Source: our choice, a bound on work; the kernel's two
/// minutes (`nf_conntrack_tcp_timeout_time_wait` of
/// linux/Documentation/networking/nf_conntrack-sysctl.rst) hold that many at 34 new connections a
/// second to one address.
pub const MAX_FLOWS: usize = 4096;
/// Initial window of TCP: ten segments (RFC 6928). Units: bytes.
const INITIAL_WINDOW: f64 = 14_600.0;
/// Weight of the newest measurement in a smoothed value. Source: our choice; four measurements
/// replace two thirds of the value. A larger one changes routes for a single slow transfer, a
/// smaller one follows a change of a network after minutes.
const NEWEST: f64 = 0.25;
/// Another route is taken if its expected duration is below this fraction of the present one.
/// Source: our choice; smoothed values vary by some percent, and a change to a route that is
/// equally fast gains nothing.
const TAKEN_BELOW: f64 = 0.95;
/// Minimum absolute gain: a user does not notice less, and connections within a site, or on a busy
/// machine, vary by as much, as does the distance of the nearest hub of a fleet. Units: seconds.
/// Source: our choice, 500 km of fibre; smaller ones change routes by chance, larger ones keep a
/// hub that is farther.
const MIN_GAIN: f64 = 0.005;
/// Bounds of a trial: a route with an unknown rate is tried if the transfer would take at most
/// `BEARABLE` times the present duration plus `BEARABLE_MORE` seconds. Source: our choice; larger
/// bounds let users wait for slow networks that are only tried, smaller ones never find a network
/// that is fast but has not been measured.
const BEARABLE: f64 = 3.0;
const BEARABLE_MORE: f64 = 1.0;
/// Assumed capacity of a route that has never transferred more. Units: bit/s. Source: our choice,
/// the rate that nearly every network reaches; it is replaced by the first transfer.
const MIN_CAPACITY: f64 = 1e6;
/// Sampling interval during transfers: short enough to see a transfer of 0.3 s. Source: our choice;
/// each sample reads the kernel's list of flows, so shorter intervals cost processor time. While
/// nothing is transferred, it is enough to see the start of a transfer within a third of a second.
const BUSY_INTERVAL: Duration = Duration::from_millis(100);
const IDLE_INTERVAL: Duration = Duration::from_millis(300);
/// Time after a transfer during which the next one is expected. Source: our choice, the time in
/// which a reader requests the next page or the next part of a page.
const BUSY_FOR: Duration = Duration::from_secs(10);
/// Number of probes at the start, of which the fastest counts, and their interval: the first one
/// includes address validation and neighbour discovery on an unused route. Source:
/// docs/notebook/fleet.md, where the downloads of one topology took 1.47 of the time over the
/// better hub before, and 1.00 with three probes.
const FIRST_PROBES: u32 = 3;
const FIRST_PAUSE: Duration = Duration::from_secs(1);
/// Interval of later probes: radio conditions change within minutes. Source: our choice; more
/// frequent ones cost the servers connections, rarer ones follow a change after the user has
/// noticed it.
const PROBE_EVERY: Duration = Duration::from_secs(60);
/// Time after the last flow during which a destination is probed. Source: our choice, two intervals
/// of [`PROBE_EVERY`]; a longer time probes servers that the user has left.
const PROBED_FOR: Duration = Duration::from_secs(120);
/// Lifetime of a measured rate; afterwards the route is tried again.
const RATE_HOLDS: Duration = Duration::from_secs(600);
/// Lifetime of a destination without flows. Source: our choice; a longer one only takes memory,
/// with a shorter one routes are measured again when the user returns.
const DESTINATION_LIFETIME: Duration = Duration::from_secs(1800);
/// Time for which a route that does not reach a destination is not used for it; doubles at each
/// further failure, up to an hour. Source: our choice; a shorter one delays a connection every few
/// seconds where a network blocks a destination, a longer one ignores a network that is repaired.
const FAILED_FOR: Duration = Duration::from_secs(60);
const MAX_FAILED_FOR: Duration = Duration::from_secs(3600);
/// Maximum rate of probes: less than a browser opens for one page, so they do not look like a scan.
/// Source: our choice; more would resemble a scan to a network's owner, fewer take longer than
/// `MIN_LIFETIME` of `destinations/secondary.rs` for a hundred destinations.
const PROBES_A_SECOND: u32 = 16;
