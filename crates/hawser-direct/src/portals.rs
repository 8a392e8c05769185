//! Captive portals: looks for a known page over each network, and keeps a network out while
//! something else is in its place.
//!
//! The page is asked for over the network's device and resolvers alone, past every rule, and over
//! no network that is not used. What comes back is somebody's bytes, of which a few thousand are
//! read ([`portal_page`](hawser_host::portal)).

use std::collections::BTreeMap;
use std::net::IpAddr;

use hawser_config::Page;
use hawser_host::dns::Place;
use hawser_host::portal::look_for_portal;
use hawser_linux::netlink::NextHop;
use hawser_steer::portal::{Portal, State};
use hawser_units::Instant;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use super::Direct;
use super::networks::Known;
use super::told::{Looked, Told};

/// A network under watch; looks end with it.
struct Watched {
    machine: Portal,
    way: Way,
    serial: u64,
    look: Option<JoinHandle<()>>,
    /// Where to log in.
    login: Option<String>,
}

impl Drop for Watched {
    fn drop(&mut self) {
        if let Some(look) = &self.look {
            look.abort();
        }
    }
}

/// What makes a network the same as before: its name and its gateways.
type Way = (String, [Option<IpAddr>; 2]);

/// All networks under watch.
#[derive(Default)]
pub(super) struct Portals {
    watched: BTreeMap<u8, Watched>,
    /// How networks were when they went: who was open is not held back again.
    seen: BTreeMap<Way, State>,
    serials: u64,
    has_begun: bool,
}

impl Portals {
    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        self.watched
            .values()
            .filter_map(|watched| watched.machine.poll_timeout())
            .min()
    }

    /// What stands before a network: state in a word, and where to log in.
    pub(super) fn shown(&self, number: u8) -> Option<(&'static str, Option<&str>)> {
        let watched = self.watched.get(&number)?;
        match (watched.machine.state(), watched.machine.may_carry()) {
            (State::Captive, _) => Some(("portal", watched.login.as_deref())),
            (_, false) => Some(("checking", None)),
            _ => None,
        }
    }

    fn forget(&mut self, number: u8) {
        if let Some(mut watched) = self.watched.remove(&number) {
            let way = std::mem::take(&mut watched.way.0);
            if self.seen.len() >= MOST_SEEN {
                self.seen.pop_first();
            }
            self.seen.insert((way, watched.way.1), watched.machine.state());
        }
    }

    /// Watches what is there, as of now.
    fn follow(&mut self, number: u8, way: Option<Way>, now: Instant) {
        if self.watched.get(&number).map(|watched| &watched.way) == way.as_ref() {
            return;
        }
        self.forget(number);
        if let Some(way) = way {
            let before = self.seen.get(&way);
            // What was there from the beginning carried flows already.
            let is_held = before == Some(&State::Captive) || (before.is_none() && self.has_begun);
            self.serials += 1;
            let watched = Watched {
                machine: Portal::new(is_held, now),
                way,
                serial: self.serials,
                look: None,
                login: None,
            };
            self.watched.insert(number, watched);
        }
    }
}

impl Direct {
    /// Looks where it is time; networks behind a portal take no flows from now on.
    pub(super) fn keep_portals(&mut self, now: Instant) {
        let Some(page) = self.config.direct.portal_check.0.clone() else {
            self.portals = Portals::default();
            self.networks.bar(|_| false);
            return;
        };
        let all: Vec<_> = self
            .networks
            .all()
            .map(|(number, known)| (number, way(known)))
            .collect();
        for (number, way) in all {
            self.portals.follow(number, way, now);
        }
        self.portals.has_begun |= !self.seen.is_empty();
        for (number, watched) in &mut self.portals.watched {
            watched.machine.handle_timeout(now);
            let known = self.networks.all().find(|(other, _)| other == number);
            let place = known.and_then(|(number, known)| self.naming.place(number, known, &self.config));
            if let Some(place) = place
                && watched.machine.poll_transmit(now)
            {
                let (serial, tell, page) = (watched.serial, self.naming.teller(), page.clone());
                watched.look = Some(tokio::spawn(look(place, page, serial, tell)));
            }
        }
        let watched = &self.portals.watched;
        let changed = self
            .networks
            .bar(|number| watched.get(&number).is_some_and(|w| !w.machine.may_carry()));
        for (number, is_barred) in changed {
            if is_barred {
                self.rescue(number, "its network is captive", self.config.direct.keep_flows.0);
                self.release(number, self.config.direct.keep_flows.0);
            } else if self.networks.is_alive(number) {
                self.releases.stop(number);
            }
        }
    }

    pub(super) fn on_looked(&mut self, looked: Looked) {
        let now = self.now();
        let name = self.networks.name(looked.number).to_owned();
        let Some(watched) = self.portals.watched.get_mut(&looked.number) else {
            return;
        };
        if watched.serial != looked.serial {
            return;
        }
        let before = watched.machine.state();
        watched.machine.handle_outcome(looked.outcome, now);
        watched.login = looked.login.or_else(|| watched.login.take());
        match (before, watched.machine.state()) {
            (State::Captive, State::Open) => {
                tracing::info!(network = name, "its portal lets everything through now");
            }
            (State::Unknown | State::Open, State::Captive) => tracing::warn!(
                network = name,
                login = watched.login,
                "a captive portal stands before it: it takes no flows until somebody logs in"
            ),
            _ => tracing::debug!(network = name, outcome = ?looked.outcome, "looked for a portal"),
        }
    }

    /// What a user should do about portals.
    pub(super) fn portal_notices(&self) -> Vec<String> {
        let captive = self.networks.all().filter_map(|(number, known)| {
            let ("portal", login) = self.portals.shown(number)? else {
                return None;
            };
            let name = &known.name;
            let login = login.unwrap_or("any http:// page");
            Some(format!(
                "{name}: log in at {login} (sudo hawser run --network {name} -- a browser)"
            ))
        });
        captive.collect()
    }
}

/// A network that may be looked at.
fn way(known: &Known) -> Option<Way> {
    let network = known.network.as_ref().filter(|_| !known.is_shut)?;
    let gateway = |hop| match hop {
        Some(NextHop::Gateway(gateway)) => Some(gateway),
        Some(NextHop::Device) | None => None,
    };
    Some((known.name.clone(), [network.v4, network.v6].map(gateway)))
}

async fn look(place: Place, page: Page, serial: u64, tell: mpsc::Sender<Told>) {
    let (outcome, login) = look_for_portal(&place, &page).await;
    let looked = Looked {
        number: place.number,
        serial,
        outcome,
        login,
    };
    let _ = tell.send(Told::Looked(looked)).await;
}

/// Networks that are remembered.
const MOST_SEEN: usize = 256;
