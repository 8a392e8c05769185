//! `hub = "faster"`: new flows to destinations with a shorter delay through another hub of the
//! fleet use that hub. Concurrent direct mode measures the delays
//! ([`hawser_host::product_interfaces::Finder`]); the session with that hub is the secondary one,
//! unless rules choose another hub for it (`selection.rs`).

use std::collections::BTreeSet;
use std::net::IpAddr;

use hawser_config::HubUse;
use hawser_config::identity::KeyHash;
use hawser_dataplane::{Change, Command, SessionId};
use hawser_host::product_interfaces::{FIRST_HUB, Fleet, Led, OtherHub, Placing};
use hawser_host::watched::send_if_changed;
use hawser_units::NetworkId;

use super::Client;
use super::hubs::Hubs;
use super::second::Second;

/// State of flows through secondary hubs.
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

    /// Returns the hub for the secondary session.
    fn wanted(&self) -> Option<KeyHash> {
        self.hub(self.led.found.borrow().wanted?)
    }

    /// Returns the destinations that use that hub.
    pub(super) fn through(&self) -> BTreeSet<IpAddr> {
        self.led.found.borrow().through.clone()
    }

    /// Waits for a new measurement, or for a connection that needs a hub. Cancel safe.
    async fn next(&mut self) -> Option<Placing> {
        tokio::select! {
            Ok(()) = self.led.found.changed() => None,
            Some(placing) = self.led.placings.recv() => Some(placing),
            // Direct mode has ended, and the client with it.
            else => std::future::pending().await,
        }
    }
}

/// Waits for the next assignment; forever if no hub is measured. Cancel safe.
pub(super) async fn next(leading: &mut Option<Leading>) -> Option<Placing> {
    match leading {
        Some(leading) => leading.next().await,
        None => std::future::pending().await,
    }
}

impl Hubs {
    /// Returns the fleet in the form for direct mode. `second` is the secondary hub.
    fn fleet(&self, leading: &mut Leading, second: Option<&Second>) -> Fleet {
        let choice = &self.choice;
        let mut fleet = Fleet {
            in_use: Some(leading.number(choice.current())),
            ..Fleet::default()
        };
        let others = choice.secondary_hubs().map(|key| {
            let second = second.filter(|second| second.key == key);
            let hub = OtherHub {
                name: self.label(key),
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
    /// Returns the measured hub through which some destinations have a shorter delay.
    pub(super) fn faster_hub(&self) -> Option<KeyHash> {
        let leading = self.leading.as_ref()?;
        leading.wanted().filter(|_| self.config.hub == HubUse::Faster)
    }

    /// Reports the hubs to direct mode. Must be called after each event.
    pub(super) fn see_to_leading(&mut self) {
        let Some(leading) = &mut self.leading else { return };
        let fleet = if self.config.hub == HubUse::Faster {
            self.hubs.fleet(leading, self.second.as_ref())
        } else {
            Fleet::default()
        };
        send_if_changed(&leading.led.fleet, fleet);
    }

    /// Assigns a new connection to one of the hubs.
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
        driver.order(Change::Assign { session, flow });
        // The answer is sent after the execution.
        (driver.orders)(Command::Snapshot(Box::new(move |_| {
            let _ = done.send(());
        })));
    }
}
