//! Client of a fleet: its machine, and its attempts at hubs.

use std::collections::BTreeMap;

use hawser_netem::Random;
use hawser_proto::session::{Before, HubChoice, Sight, Standing, Step};
use hawser_units::{Duration, Instant};

use super::{ClientId, Event, HubId, NOTICE, World};

/// State of one client.
pub(super) struct Client {
    pub(super) region: u16,
    choice: HubChoice<HubId>,
    /// Set if the hub in use has accepted the client.
    has_session: bool,
    /// Set if a path to the hub in use works, as far as the client knows.
    is_alive: bool,
    before: Option<Before<HubId>>,
    /// Number of the previous hub, which distinguishes it from earlier ones.
    before_number: u32,
    /// Other hubs with attempts in progress.
    asking: Vec<HubId>,
    seeking: bool,
    /// Number of the current attempts; those with another number are obsolete.
    number: u32,
    found: BTreeMap<HubId, Duration>,
    due: Instant,
    /// Time since which its packets are not transferred.
    pub(super) unserved: Option<Instant>,
}

/// An attempt at a hub.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Attempt {
    pub(super) client: ClientId,
    pub(super) hub: HubId,
    pub(super) kind: Kind,
    pub(super) begun: Instant,
    /// Time for which the hub waits before the client is presented to it.
    wait: Option<Duration>,
    number: u32,
}

/// Phase of an attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Kind {
    Handshake,
    Hello,
    /// Measurement: a handshake without a session.
    Measurement,
}

/// Outcome of an attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Outcome {
    /// The handshake is complete.
    Answered,
    Welcomed,
    /// The hub is overloaded.
    Busy,
    NoAnswer,
}

impl Client {
    /// Creates a client at `now` in a region, which knows `hubs` hubs and begins with the hub of
    /// its invitation.
    pub(super) fn new(id: ClientId, (region, first): (u16, HubId), hubs: HubId, now: Instant) -> Self {
        let mut choice = HubChoice::new(first, now);
        let standing = |hub| {
            let standing = Standing {
                fleet: 0,
                is_new: false,
                rank: Random::new(u64::from(id) << 16 | u64::from(hub), "rank").next_u64(),
            };
            (hub, standing)
        };
        choice.set_known((0..hubs).map(standing).collect());
        Self {
            region,
            choice,
            has_session: false,
            is_alive: false,
            before: None,
            before_number: 0,
            asking: Vec::new(),
            seeking: false,
            number: 0,
            found: BTreeMap::new(),
            due: Instant::FAR_FUTURE,
            unserved: None,
        }
    }

    /// Returns the hub in use if it has accepted the client.
    pub(super) fn hub(&self) -> Option<HubId> {
        self.has_session.then(|| self.choice.current())
    }

    pub(super) fn has_session_with(&self, hub: HubId) -> bool {
        self.hub() == Some(hub) || self.before.is_some_and(|before| before.hub == hub)
    }

    pub(super) fn has_before(&self) -> bool {
        self.before.is_some()
    }

    /// Returns whether an attempt is still relevant.
    pub(super) fn is_waiting_for(&self, attempt: &Attempt) -> bool {
        match attempt.kind {
            Kind::Measurement => true,
            Kind::Handshake | Kind::Hello => self.number == attempt.number,
        }
    }

    fn sight(&self) -> Sight<HubId> {
        Sight {
            before: self.before,
            has_network: true,
            has_control: self.has_session && self.is_alive,
        }
    }

    /// Cancels all attempts at sessions.
    fn stop(&mut self) {
        self.number += 1;
        self.asking.clear();
        self.seeking = false;
    }
}

impl World<'_> {
    fn client(&mut self, id: ClientId) -> &mut Client {
        &mut self.clients[id as usize]
    }

    pub(super) fn on_started(&mut self, id: ClientId) {
        self.later(self.config.starts, Event::Started(id));
        let (now, hubs) = (self.now, self.config.hubs);
        let client = self.client(id);
        let (region, last) = (client.region, client.choice.current());
        let (number, before_number) = (client.number, client.before_number);
        *client = Client {
            number: number + 1,
            before_number: before_number + 1,
            unserved: client.unserved,
            ..Client::new(id, (region, last), hubs, now)
        };
        self.report.starts += 1;
        self.seek(id);
        self.see_to(id);
    }

    /// Starts an attempt.
    fn attempt(&mut self, client: ClientId, hub: HubId, kind: Kind, wait: Option<Duration>) {
        let attempt = Attempt {
            client,
            hub,
            kind,
            begun: self.now,
            wait,
            number: self.client(client).number,
        };
        self.send(attempt, 0);
    }

    /// Tries the hub in use.
    fn seek(&mut self, id: ClientId) {
        let client = self.client(id);
        client.seeking = true;
        let hub = client.choice.current();
        self.attempt(id, hub, Kind::Handshake, None);
    }

    pub(super) fn on_moved(&mut self, id: ClientId) {
        self.later(self.config.moves, Event::Moved(id));
        let region = self.below(u64::from(self.config.regions)) as u16;
        let now = self.now;
        let client = self.client(id);
        client.region = region;
        client.choice.handle_networks(now);
        self.see_to(id);
    }

    pub(super) fn on_due(&mut self, id: ClientId) {
        if self.clients[id as usize].due <= self.now {
            self.see_to(id);
        }
    }

    pub(super) fn on_noticed(&mut self, id: ClientId, hub: HubId, is_alive: bool) {
        // The state may have changed again in the meantime.
        let is_alive = is_alive && self.is_up(hub);
        let now = self.now;
        let client = self.client(id);
        if client.hub() == Some(hub) {
            client.is_alive = is_alive;
            client.choice.handle_alive(is_alive, now);
        } else if let Some(before) = client.before.as_mut().filter(|before| before.hub == hub) {
            before.is_well = is_alive;
            if !is_alive {
                let number = client.before_number;
                self.after(GIVEN_UP, Event::Forgotten(id, number));
            }
        }
        self.see_to(id);
    }

    pub(super) fn on_asked_to_leave(&mut self, id: ClientId, hub: HubId) {
        let now = self.now;
        let client = self.client(id);
        if client.hub() == Some(hub) {
            client.choice.handle_leave(now);
        } else if let Some(before) = client.before.as_mut().filter(|before| before.hub == hub) {
            before.is_leaving = true;
        }
        self.see_to(id);
    }

    pub(super) fn on_forgotten(&mut self, id: ClientId, number: u32) {
        let client = self.client(id);
        if client.before_number == number {
            client.before = None;
            self.see_to(id);
        }
    }

    pub(super) fn on_ended(&mut self, attempt: Attempt, outcome: Outcome) {
        let id = attempt.client;
        if !self.clients[id as usize].is_waiting_for(&attempt) {
            return;
        }
        let (now, way) = (self.now, self.round_trip_to(id, attempt.hub));
        let client = self.client(id);
        let is_current = client.choice.current() == attempt.hub;
        match (outcome, attempt.kind) {
            (Outcome::Answered, Kind::Measurement) => {
                let taken = now.since(attempt.begun);
                client.found.insert(attempt.hub, taken);
            }
            (_, Kind::Measurement) => {}
            (Outcome::Answered, _) => {
                // The daemon waits for three round trips.
                let wait = attempt.wait.map_or(Duration::ZERO, |wait| wait.max(way * 3));
                let hello = Attempt {
                    kind: Kind::Hello,
                    begun: now + wait,
                    ..attempt
                };
                self.after(wait + way / 2, Event::Arrived(hello, 0));
            }
            (Outcome::Welcomed, _) if is_current => {
                client.has_session = true;
                client.is_alive = true;
                client.stop();
                client.choice.handle_reached(now);
                self.probe(id, attempt.hub);
            }
            (Outcome::Welcomed, _) => self.on_welcomed(id, attempt.hub),
            (Outcome::Busy | Outcome::NoAnswer, _) if is_current => {
                client.seeking = false;
            }
            (Outcome::Busy | Outcome::NoAnswer, _) => {
                client.asking.retain(|hub| *hub != attempt.hub);
                let is_asking = !client.asking.is_empty();
                client.choice.handle_failed(attempt.hub, false, is_asking, now);
            }
        }
        self.see_to(id);
    }

    /// Handles acceptance by another hub.
    fn on_welcomed(&mut self, id: ClientId, hub: HubId) {
        let now = self.now;
        let client = self.client(id);
        client.stop();
        if !client.choice.handle_welcomed(hub, now) {
            return;
        }
        let had_session = std::mem::replace(&mut client.has_session, true);
        let left = client.choice.go_over(hub);
        client.before = had_session.then_some(Before {
            hub: left.hub,
            is_well: client.is_alive,
            is_leaving: left.is_leaving,
        });
        client.is_alive = true;
        client.choice.handle_reached(now);
        self.probe(id, hub);
        self.keep_before(id, left.silent_since.is_some());
    }

    /// Keeps the session with the previous hub until its timeout.
    fn keep_before(&mut self, id: ClientId, is_silent: bool) {
        self.report.changes += 1;
        let client = self.client(id);
        client.before_number += 1;
        let number = client.before_number;
        let before = client.before.map(|before| before.hub);
        let time = if is_silent { GIVEN_UP } else { QUIET };
        self.after(time, Event::Forgotten(id, number));
        if let Some(hub) = before {
            self.probe(id, hub);
        }
    }

    /// Probes a path to a hub, including events before the last check.
    fn probe(&mut self, id: ClientId, hub: HubId) {
        let is_up = self.is_up(hub);
        self.after(NOTICE, Event::Noticed(id, hub, is_up));
    }

    pub(super) fn on_measured(&mut self, id: ClientId) {
        let now = self.now;
        let client = self.client(id);
        let found = std::mem::take(&mut client.found);
        client.choice.handle_measured(found, now);
        self.see_to(id);
    }

    /// Executes the pending actions of a client.
    pub(super) fn see_to(&mut self, id: ClientId) {
        let now = self.now;
        let client = self.client(id);
        if !client.has_session {
            client.choice.handle_absent(now);
            if !client.seeking {
                self.seek(id);
            }
        }
        loop {
            let client = self.client(id);
            let sight = client.sight();
            match client.choice.poll(&sight, now) {
                Some(Step::Ask(hubs)) => self.ask(id, &hubs),
                Some(Step::Return) => self.go_back(id),
                Some(Step::Measure(hubs)) => self.measure(id, &hubs),
                None => break,
            }
        }
        let client = self.client(id);
        let due = client.choice.poll_timeout(&client.sight());
        if let Some(due) = due {
            let due = due.max(now);
            if due != client.due || due == now {
                client.due = due;
                self.after(due.since(now), Event::Due(id));
            }
        }
        self.see_to_outage(id);
    }

    fn ask(&mut self, id: ClientId, hubs: &[(HubId, Option<Duration>)]) {
        for (hub, wait) in hubs {
            self.client(id).asking.push(*hub);
            self.attempt(id, *hub, Kind::Handshake, *wait);
        }
    }

    fn go_back(&mut self, id: ClientId) {
        let now = self.now;
        let client = self.client(id);
        client.stop();
        let Some(before) = client.before else { return };
        let is_alive = std::mem::replace(&mut client.is_alive, before.is_well);
        let left = client.choice.go_over(before.hub);
        client.before = Some(Before {
            hub: left.hub,
            is_well: is_alive,
            is_leaving: left.is_leaving,
        });
        if before.is_leaving {
            client.choice.handle_leave(now);
        }
        client.choice.handle_reached(now);
        self.keep_before(id, left.silent_since.is_some());
    }

    fn measure(&mut self, id: ClientId, hubs: &[HubId]) {
        self.report.measurements += 1;
        for hub in hubs {
            self.attempt(id, *hub, Kind::Measurement, None);
        }
        self.after(MEASURED, Event::Measured(id));
    }

    /// Updates whether the packets of a client are transferred now, and records outages.
    pub(super) fn see_to_outage(&mut self, id: ClientId) {
        let (is_served, is_possible) = {
            let client = &self.clients[id as usize];
            let hub = client.hub();
            let is_served = hub.is_some_and(|hub| self.is_up(hub));
            let is_possible = (0..self.config.hubs).any(|hub| self.is_open(hub));
            (is_served, is_possible)
        };
        let now = self.now;
        let client = self.client(id);
        if is_served || !is_possible {
            if let Some(since) = client.unserved.take() {
                self.report.note_outage(now.since(since));
            }
        } else {
            client.unserved.get_or_insert(now);
        }
    }

    /// Updates all clients after hubs have changed, as [`Self::see_to_outage`] does.
    pub(super) fn see_to_outages(&mut self) {
        for id in 0..self.config.clients {
            let client = &self.clients[id as usize];
            if client.has_session || client.unserved.is_some() {
                self.see_to_outage(id);
            }
        }
    }
}

/// Time without a working path, and time without an open flow, after which a session ends. Source:
/// those of the daemon (`products/client/src/second.rs`).
const GIVEN_UP: Duration = Duration::from_secs(10);
const QUIET: Duration = Duration::from_secs(900);
/// Timeout of a measurement's handshake. Source: `TIMEOUT` of `system/control/src/client.rs`.
const MEASURED: Duration = Duration::from_secs(8);
