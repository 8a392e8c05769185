//! A fleet of hubs and its clients over days: hubs, regions and the database fail, hubs are
//! drained, clients move and start anew. Every client decides with the daemon's own machine
//! ([`HubChoice`](hawser_proto::session::HubChoice)).
//!
//! Model. Regions lie at random in a square; a round trip is [`Config::near`], and [`Config::far`]
//! more from one corner of a side to the other. A hub takes handshakes one after the other, at a
//! rate that is measured on the daemon, and drops what waits beyond [`WAITING`]. A packet of a
//! handshake may be lost, and is sent again as QUIC does (RFC 9002 section 6.2). A client notices
//! that its hub is silent after [`NOTICE`] and three round trips, and that it is back at its next
//! probe. A hub that comes back has its sessions, as the daemon has after a crash. While the
//! database is away for longer than ten seconds, nobody begins a session.
//!
//! Limits: one network a client, no traffic; hubs know clients at once, and regions that are cut
//! off are cut off for everybody. A client that starts anew tries the hub that it used last without
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

/// Handshakes that may wait at a hub: as many as the daemon has under way at once
/// (`system/control/src/admission.rs`, `OF_ALL`).
const WAITING: f64 = 4_096.0;
/// From the silence of a hub to its being noticed, beside three round trips: measured on the
/// daemon (`program/hawser/tests/daemons/hubs.rs`).
const NOTICE: Duration = Duration::from_millis(100);
/// For how long hubs let clients in by what they know while the database is away
/// (`docs/manual/fleet.md`).
const WITHOUT_STORE: Duration = Duration::from_secs(10);

/// A number of a hub.
type HubId = u16;
/// A number of a client.
type ClientId = u32;

/// What happens to a fleet. Rates are of exponential intervals; zero is never.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// How many clients there are.
    pub clients: u32,
    /// How many hubs there are, in turn in each region.
    pub hubs: u16,
    /// How many regions there are.
    pub regions: u16,
    /// For how long.
    pub duration: Duration,
    /// The shortest round trip.
    pub near: Duration,
    /// How much longer it is over the side of the square.
    pub far: Duration,
    /// The share of packets of handshakes that are lost.
    pub loss: f64,
    /// Handshakes that a hub takes in a second.
    pub handshakes: f64,
    /// How often a client goes to another region in a day.
    pub moves: f64,
    /// How often a client starts anew in a day.
    pub starts: f64,
    /// How often each hub fails in a day, and for how long.
    pub hub_failures: (f64, Duration),
    /// The same of all hubs of a region at once.
    pub region_failures: (f64, Duration),
    /// The same of the database.
    pub store_failures: (f64, Duration),
    /// How often each hub is drained in a day, and for how long.
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

/// What may fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Part {
    Hub(HubId),
    Region(u16),
    Store,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    /// It fails or is there again.
    Changed(Part, bool),
    /// A hub is to be taken down, or not any more.
    Drained(HubId, bool),
    /// A client begins, or begins anew.
    Started(ClientId),
    Moved(ClientId),
    /// A client's machine has something to do.
    Due(ClientId),
    /// A client has noticed that its path to a hub works, or does not.
    Noticed(ClientId, HubId, bool),
    /// A hub asks a client to go.
    AskedToLeave(ClientId, HubId),
    /// The packet of an attempt comes to a hub, after so many that were lost.
    Arrived(client::Attempt, u8),
    /// An attempt is over at the client: how it went.
    Ended(client::Attempt, client::Outcome),
    /// Measurements are complete.
    Measured(ClientId),
    /// The session with the hub before is over.
    Forgotten(ClientId, u32),
    /// It is counted who is where.
    Counted,
}

/// A fleet at one time.
struct World<'a> {
    config: &'a Config,
    now: Instant,
    /// In the order of their times, then in that in which they were set.
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

/// Runs a fleet. The same configuration and seed give the same report.
///
/// Cost: O(log n) an event in the number of those to come, O(clients) a failure.
///
/// # Panics
/// Without clients, hubs or regions.
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
            // The invitation is of any hub.
            let first = self.below(u64::from(self.config.hubs)) as HubId;
            self.clients
                .push(Client::new(id, (region, first), self.config.hubs, self.now));
            // As many as a hub takes come within the first ten minutes.
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

    /// Sets an event that happens so many times a day.
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

    /// The round trip between two regions.
    fn round_trip(&self, a: u16, b: u16) -> Duration {
        let ((ax, ay), (bx, by)) = (self.regions[usize::from(a)], self.regions[usize::from(b)]);
        self.config.near + self.config.far.mul_f64((ax - bx).hypot(ay - by))
    }

    fn way_to(&self, id: ClientId, hub: HubId) -> Duration {
        let region = self.clients[id as usize].region;
        self.round_trip(region, self.hubs[usize::from(hub)].region)
    }

    /// Whether a hub answers.
    fn is_up(&self, hub: HubId) -> bool {
        let own = &self.hubs[usize::from(hub)];
        !own.is_down && !self.region_down[usize::from(own.region)]
    }

    /// Whether a hub would let a client in.
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
                let notice = NOTICE + self.way_to(id, hub) * 3;
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
                let way = self.way_to(id, hub) / 2;
                self.after(way, Event::AskedToLeave(id, hub));
            }
        }
        self.see_to_outages();
    }
}

/// From one count of who is where to the next.
const COUNT_EVERY: Duration = Duration::from_secs(600);

#[cfg(test)]
mod tests;
