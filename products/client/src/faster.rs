//! `hub = "faster"`: flows to destinations that are reached sooner through another hub of the fleet
//! begin there. Direct mode beside finds out which ([`hawser_host::beside::Finder`]); the session
//! with that hub is the second one, if rules do not choose another for it (`chosen.rs`).

use std::collections::BTreeSet;
use std::net::IpAddr;

use hawser_config::HubUse;
use hawser_config::identity::KeyHash;
use hawser_dataplane::{Change, Command, SessionId};
use hawser_host::beside::{FIRST_HUB, Fleet, Led, OtherHub, Placing};
use hawser_host::watched::tell_if_new;
use hawser_units::NetworkId;

use super::Client;
use super::hubs::Hubs;
use super::second::Second;

/// What leads flows through further hubs.
pub(super) struct Leading {
    led: Led,
    /// Hubs by their number, from [`FIRST_HUB`].
    numbered: Vec<KeyHash>,
}

impl Leading {
    pub(super) fn new(led: Led) -> Self {
        Self {
            led,
            numbered: Vec::new(),
        }
    }

    fn number(&mut self, key: KeyHash) -> NetworkId {
        let known = self.numbered.iter().position(|known| *known == key);
        let place = known.unwrap_or_else(|| {
            self.numbered.push(key);
            self.numbered.len() - 1
        });
        NetworkId(FIRST_HUB + u32::try_from(place).unwrap_or(u32::MAX - FIRST_HUB))
    }

    fn hub(&self, way: NetworkId) -> Option<KeyHash> {
        let place = way.0.checked_sub(FIRST_HUB)?;
        self.numbered.get(place as usize).copied()
    }

    /// The hub that is to have a session.
    fn wanted(&self) -> Option<KeyHash> {
        self.hub(self.led.found.borrow().wanted?)
    }

    /// What is to go there.
    pub(super) fn through(&self) -> BTreeSet<IpAddr> {
        self.led.found.borrow().through.clone()
    }

    /// Waits for something else to be found out, or for a connection that is to be placed. May be
    /// dropped while it waits.
    async fn next(&mut self) -> Option<Placing> {
        tokio::select! {
            Ok(()) = self.led.found.changed() => None,
            Some(placing) = self.led.placings.recv() => Some(placing),
            // Direct mode has ended, and the client with it.
            else => std::future::pending().await,
        }
    }
}

/// What is next to be done; waits for ever where no hub is found out. May be dropped while it
/// waits.
pub(super) async fn next(leading: &mut Option<Leading>) -> Option<Placing> {
    match leading {
        Some(leading) => leading.next().await,
        None => std::future::pending().await,
    }
}

impl Hubs {
    /// The fleet, as direct mode is told of it. `second`: the hub that is used beside the one in
    /// use.
    fn fleet(&self, leading: &mut Leading, second: Option<&Second>) -> Fleet {
        let choice = &self.choice;
        let mut fleet = Fleet {
            in_use: Some(leading.number(choice.current())),
            ..Fleet::default()
        };
        let others = choice.further().map(|key| {
            let second = second.filter(|second| second.key == key);
            let hub = OtherHub {
                name: self.place(key),
                round_trip: choice.round_trip(key),
                is_open: second.is_some_and(Second::is_open),
            };
            (leading.number(key), hub)
        });
        fleet.others.extend(others);
        fleet
    }
}

impl Client {
    /// The hub that destinations are reached sooner through, as was found out.
    pub(super) fn faster_hub(&self) -> Option<KeyHash> {
        let leading = self.leading.as_ref()?;
        leading.wanted().filter(|_| self.config.hub == HubUse::Faster)
    }

    /// Tells direct mode of hubs. To be called after whatever has happened.
    pub(super) fn see_to_leading(&mut self) {
        let Some(leading) = &mut self.leading else { return };
        let fleet = if self.config.hub == HubUse::Faster {
            self.hubs.fleet(leading, self.second.as_ref())
        } else {
            Fleet::default()
        };
        tell_if_new(&leading.led.fleet, fleet);
    }

    /// Lets a connection begin through one of the hubs.
    pub(super) fn on_placing(&self, placing: Option<Placing>) {
        let (Some(placing), Some(leading)) = (placing, &self.leading) else {
            return;
        };
        let hub = leading.hub(placing.way);
        let driver = if hub == Some(self.hubs.choice.current()) {
            &self.driver
        } else {
            match &self.second {
                Some(second) if Some(second.key) == hub && second.is_open() => second.driver(),
                _ => return,
            }
        };
        let Some(session) = driver.machine.session().map(SessionId) else {
            return;
        };
        let Placing { flow, done, .. } = placing;
        driver.order(Change::Place { session, flow });
        // The answer comes when that has been done.
        (driver.orders)(Command::Snapshot(Box::new(move |_| {
            let _ = done.send(());
        })));
    }
}
