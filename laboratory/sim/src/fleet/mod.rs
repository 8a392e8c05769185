//! Simulation of a fleet of hubs and its clients over days: hubs, regions and the database fail,
//! hubs are drained, clients move and restart. Every client uses the daemon's own machine
//! ([`HubChoice`](hawser_proto::session::HubChoice)).
//!
//! Model: regions have random positions in a square. The round-trip time is [`Config::near`], plus
//! [`Config::far`] for the length of a side. A hub processes handshakes one after the other, at a
//! rate measured on the daemon, and drops those that exceed [`WAITING`]. A lost packet of a
//! handshake is retransmitted as in QUIC (RFC 9002 section 6.2). A client detects an unresponsive
//! hub after [`NOTICE`] and three round trips, and its recovery at the next probe. A hub that
//! recovers has its sessions, as the daemon has after a crash. When the database has failed for
//! more than ten seconds, no session begins.
//!
//! Limitations: a client has one network and no traffic; hubs learn new clients immediately, and a
//! disconnected region is disconnected for all. A client that restarts tries its last hub without
//! the daemon's pauses.

mod client;
mod hub;
mod report;

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use hawser_netem::Random;
use hawser_units::{Duration, Instant};

use client::Client;
use hub::Hub;
pub use report::{Quantiles, Report};

/// Maximum number of handshakes that wait at a hub. Source: the daemon's limit of concurrent ones
/// (`OF_ALL` of `system/control/src/admission.rs`).
const WAITING: f64 = 4_096.0;
/// Time to detect an unresponsive hub, in addition to three round trips: measured on the daemon
/// (`program/hawser/tests/daemons/hubs.rs`).
const NOTICE: Duration = Duration::from_millis(100);
/// Time for which hubs accept clients without the database (`docs/manual/fleet.md`).
const WITHOUT_STORE: Duration = Duration::from_secs(10);

/// Index of a hub.
type HubId = u16;
/// Index of a client.
type ClientId = u32;

/// Configuration of a fleet and its events. Intervals of events are exponentially distributed; a
/// rate of zero disables an event.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// Number of clients.
    pub clients: u32,
    /// Number of hubs, assigned to the regions in turn.
    pub hubs: u16,
    /// Number of regions.
    pub regions: u16,
    /// Simulated time.
    pub duration: Duration,
    /// Shortest round-trip time.
    pub near: Duration,
    /// Additional round-trip time over the length of the square's side.
    pub far: Duration,
    /// Share of lost packets in handshakes.
    pub loss: f64,
    /// Handshakes that a hub processes per second.
    pub handshakes: f64,
    /// Rate at which a client changes its region, per day.
    pub moves: f64,
    /// Rate at which a client restarts, per day.
    pub starts: f64,
    /// Rate at which each hub fails, per day, and the duration.
    pub hub_failures: (f64, Duration),
    /// Rate at which all hubs of a region fail at once, per day, and the duration.
    pub region_failures: (f64, Duration),
    /// Rate at which the database fails, per day, and the duration.
    pub store_failures: (f64, Duration),
    /// Rate at which each hub is drained, per day, and the duration.
    pub drains: (f64, Duration),
}

impl Default for Config {
    fn default() -> Self {
        Self {
            clients: 10_000,
            hubs: 20,
            regions: 5,
            duration: Duration::from_secs(86_400),
            near: Duration::from_millis(10),
            far: Duration::from_millis(150),
            loss: 0.01,
            handshakes: 1_000.0,
            moves: 0.5,
            starts: 2.0,
            hub_failures: (1.0, Duration::from_secs(300)),
            region_failures: (0.2, Duration::from_secs(600)),
            store_failures: (2.0, Duration::from_secs(120)),
            drains: (0.5, Duration::from_secs(600)),
        }
    }
}

/// Part that may fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Part {
    Hub(HubId),
    Region(u16),
    Store,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    /// Failure or return.
    Changed(Part, bool),
    /// Start or end of draining a hub.
    Drained(HubId, bool),
    /// Start or restart of a client.
    Started(ClientId),
    Moved(ClientId),
    /// Timeout of a client's machine.
    Due(ClientId),
    /// Detection by a client of whether its path to a hub works.
    Noticed(ClientId, HubId, bool),
    /// Request of a hub that a client leaves.
    AskedToLeave(ClientId, HubId),
    /// Arrival of an attempt's packet at a hub, after this many lost ones.
    Arrived(client::Attempt, u8),
    /// End of an attempt at the client, with its outcome.
    Ended(client::Attempt, client::Outcome),
    /// Completion of measurements.
    Measured(ClientId),
    /// End of the session with the previous hub.
    Forgotten(ClientId, u32),
    /// Count of all states.
    Counted,
}

/// State of a simulated fleet.
struct World<'a> {
    config: &'a Config,
    now: Instant,
    /// Events in order of their times, then of their creation.
    events: BinaryHeap<Reverse<(Instant, u64, Event)>>,
    set: u64,
    random: Random,
    hubs: Vec<Hub>,
    clients: Vec<Client>,
    regions: Vec<(f64, f64)>,
    region_down: Vec<bool>,
    store_down: Option<Instant>,
    report: Report,
}

/// Simulates a fleet. Equal configurations and seeds give identical reports.
///
/// Cost: O(log n) per event for n pending events, O(clients) per failure.
///
/// # Panics
/// If there are no clients, hubs or regions.
#[must_use]
pub fn run(config: &Config, seed: u64) -> Report {
    assert!(
        config.clients > 0 && config.hubs > 0 && config.regions > 0,
        "a fleet has clients, hubs and regions"
    );
    let mut random = Random::new(seed, "fleet");
    let regions = (0..config.regions).map(|_| (random.uniform(), random.uniform()));
    let regions: Vec<_> = regions.collect();
    let hubs = (0..config.hubs)
        .map(|hub| Hub::new(hub % config.regions))
        .collect();
    let mut world = World {
        config,
        now: Instant::ZERO,
        events: BinaryHeap::new(),
        set: 0,
        random,
        hubs,
        clients: Vec::new(),
        region_down: vec![false; regions.len()],
        regions,
        store_down: None,
        report: Report::new(config),
    };
    world.begin();
    let end = Instant::ZERO + config.duration;
    while let Some(Reverse((at, _, event))) = world.events.pop().filter(|next| next.0.0 <= end) {
        world.now = at;
        world.handle(event);
    }
    world.now = end;
    world.end();
    world.report
}

impl World<'_> {
    fn begin(&mut self) {
        for hub in 0..self.config.hubs {
            self.fail_later(Part::Hub(hub), self.config.hub_failures.0);
            let (rate, _) = self.config.drains;
            self.later(rate, Event::Drained(hub, true));
        }
        for region in 0..self.config.regions {
            self.fail_later(Part::Region(region), self.config.region_failures.0);
        }
        self.fail_later(Part::Store, self.config.store_failures.0);
        for id in 0..self.config.clients {
            let region = self.below(u64::from(self.config.regions)) as u16;
            // The invitation is from a random hub.
            let first = self.below(u64::from(self.config.hubs)) as HubId;
            self.clients
                .push(Client::new(id, (region, first), self.config.hubs, self.now));
            // All clients start within the first ten minutes.
            let at = Duration::from_secs_f64(600.0 * self.random.uniform());
            self.after(at, Event::Started(id));
            self.later(self.config.moves, Event::Moved(id));
        }
        self.after(COUNT_EVERY, Event::Counted);
    }

    fn handle(&mut self, event: Event) {
        match event {
            Event::Changed(part, is_down) => self.on_changed(part, is_down),
            Event::Drained(hub, is_on) => self.on_drained(hub, is_on),
            Event::Counted => {
                self.count();
                self.after(COUNT_EVERY, Event::Counted);
            }
            Event::Arrived(attempt, lost) => self.on_arrived(attempt, lost),
            Event::Started(id) => self.on_started(id),
            Event::Moved(id) => self.on_moved(id),
            Event::Due(id) => self.on_due(id),
            Event::Noticed(id, hub, is_alive) => self.on_noticed(id, hub, is_alive),
            Event::AskedToLeave(id, hub) => self.on_asked_to_leave(id, hub),
            Event::Ended(attempt, outcome) => self.on_ended(attempt, outcome),
            Event::Measured(id) => self.on_measured(id),
            Event::Forgotten(id, number) => self.on_forgotten(id, number),
        }
    }

    fn after(&mut self, time: Duration, event: Event) {
        self.set += 1;
        self.events.push(Reverse((self.now + time, self.set, event)));
    }

    /// Schedules an event with this rate per day.
    fn later(&mut self, rate: f64, event: Event) {
        if rate > 0.0 {
            let time = self.exponential(86_400.0 / rate);
            self.after(time, event);
        }
    }

    fn fail_later(&mut self, part: Part, rate: f64) {
        self.later(rate, Event::Changed(part, true));
    }

    fn exponential(&mut self, mean_s: f64) -> Duration {
        Duration::from_secs_f64(-mean_s * (1.0 - self.random.uniform()).ln())
    }

    fn below(&mut self, count: u64) -> u64 {
        self.random.next_u64() % count
    }

    /// Returns the round-trip time between two regions.
    fn round_trip(&self, a: u16, b: u16) -> Duration {
        let ((ax, ay), (bx, by)) = (self.regions[usize::from(a)], self.regions[usize::from(b)]);
        self.config.near + self.config.far.mul_f64((ax - bx).hypot(ay - by))
    }

    fn round_trip_to(&self, id: ClientId, hub: HubId) -> Duration {
        let region = self.clients[id as usize].region;
        self.round_trip(region, self.hubs[usize::from(hub)].region)
    }

    /// Returns whether a hub answers.
    fn is_up(&self, hub: HubId) -> bool {
        let own = &self.hubs[usize::from(hub)];
        !own.is_down && !self.region_down[usize::from(own.region)]
    }

    /// Returns whether a hub would accept a client.
    fn is_open(&self, hub: HubId) -> bool {
        let is_known = self
            .store_down
            .is_none_or(|since| self.now < since + WITHOUT_STORE);
        self.is_up(hub) && !self.hubs[usize::from(hub)].is_draining && is_known
    }

    fn on_changed(&mut self, part: Part, is_down: bool) {
        let before: Vec<_> = (0..self.config.hubs).map(|hub| self.is_up(hub)).collect();
        let (rate, repair) = match part {
            Part::Hub(hub) => {
                self.hubs[usize::from(hub)].is_down = is_down;
                self.config.hub_failures
            }
            Part::Region(region) => {
                self.region_down[usize::from(region)] = is_down;
                self.config.region_failures
            }
            Part::Store => {
                self.store_down = is_down.then_some(self.now);
                self.config.store_failures
            }
        };
        if is_down {
            self.report.failures += 1;
            let time = self.exponential(repair.as_secs_f64());
            self.after(time, Event::Changed(part, false));
        } else {
            self.fail_later(part, rate);
        }
        for hub in 0..self.config.hubs {
            let is_up = self.is_up(hub);
            if is_up != before[usize::from(hub)] {
                self.on_hub_changed(hub, is_up);
            }
        }
        self.see_to_outages();
    }

    fn on_hub_changed(&mut self, hub: HubId, is_up: bool) {
        self.hubs[usize::from(hub)].busy_until = self.now;
        for id in 0..self.config.clients {
            if self.clients[id as usize].has_session_with(hub) {
                let notice = NOTICE + self.round_trip_to(id, hub) * 3;
                self.after(notice, Event::Noticed(id, hub, is_up));
            }
        }
    }

    fn on_drained(&mut self, hub: HubId, is_on: bool) {
        self.hubs[usize::from(hub)].is_draining = is_on;
        let (rate, time) = self.config.drains;
        if !is_on {
            self.later(rate, Event::Drained(hub, true));
            return self.see_to_outages();
        }
        self.after(time, Event::Drained(hub, false));
        for id in 0..self.config.clients {
            if self.clients[id as usize].has_session_with(hub) {
                let way = self.round_trip_to(id, hub) / 2;
                self.after(way, Event::AskedToLeave(id, hub));
            }
        }
        self.see_to_outages();
    }
}

/// Interval of counting all states. Source: our choice; a shorter one costs time, a longer one
/// misses what happens after a failure.
const COUNT_EVERY: Duration = Duration::from_secs(600);

#[cfg(test)]
mod tests;
