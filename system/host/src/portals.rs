//! Captive portals before networks: which networks are looked at, what was found, where to log in.
//!
//! A look asks the network itself, or for a known page, over one network's device and resolvers
//! alone ([`look_for_portal`]); when it is time, `hawser_steer::portal` decides.

use std::collections::BTreeMap;
use std::net::IpAddr;

use hawser_linux::netlink::{Network, NextHop};
use hawser_steer::portal::{Outcome, Portal, State};
use hawser_units::Instant;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use crate::notification;
use crate::portal::{Found, Left, Look, look_for_portal};

/// What a look brought.
#[derive(Debug)]
pub struct Looked<K> {
    /// The network.
    pub key: K,
    serial: u64,
    found: Found,
}

/// A network under watch; looks end with it.
#[derive(Debug)]
struct Watched {
    machine: Portal,
    way: Way,
    serial: u64,
    look: Option<JoinHandle<()>>,
    /// By which API the last look went.
    api: Option<String>,
    /// Where to log in, or to make the login last longer.
    login: Option<String>,
    /// What was left of the login, and when that was said.
    left: (Left, Instant),
    /// People have been told that a portal is there.
    is_told: bool,
}

impl Drop for Watched {
    fn drop(&mut self) {
        if let Some(look) = &self.look {
            look.abort();
        }
    }
}

/// What makes a network the same as before: its name and its gateways.
pub type Way = (String, [Option<IpAddr>; 2]);

/// The way of a network.
#[must_use]
pub fn way(network: &Network) -> Way {
    let gateway = |hop| match hop {
        Some(NextHop::Gateway(gateway)) => Some(gateway),
        Some(NextHop::Device) | None => None,
    };
    (network.name.clone(), [network.v4, network.v6].map(gateway))
}

/// All networks under watch, by what their owner calls them.
#[derive(Debug)]
pub struct Portals<K> {
    watched: BTreeMap<K, Watched>,
    /// How networks were when they went: who was open is not held back again.
    seen: BTreeMap<Way, State>,
    serials: u64,
    has_begun: bool,
}

impl<K> Default for Portals<K> {
    fn default() -> Self {
        Self {
            watched: BTreeMap::new(),
            seen: BTreeMap::new(),
            serials: 0,
            has_begun: false,
        }
    }
}

impl<K: Ord + Clone + Send + 'static> Portals<K> {
    /// When something is due: a look, or the end of holding a network back.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Instant> {
        let timeouts = self
            .watched
            .values()
            .map(|watched| watched.machine.poll_timeout());
        timeouts.flatten().min()
    }

    /// Whether the network may carry flows: one that is not watched may.
    #[must_use]
    pub fn may_carry(&self, key: &K) -> bool {
        self.watched
            .get(key)
            .is_none_or(|watched| watched.machine.may_carry())
    }

    /// What stands before a network: state in a word, and where to log in.
    #[must_use]
    pub fn shown(&self, key: &K) -> Option<(&'static str, Option<&str>)> {
        let watched = self.watched.get(key)?;
        match (watched.machine.state(), watched.machine.may_carry()) {
            (State::Captive, _) => Some(("portal", watched.login.as_deref())),
            (_, false) => Some(("checking", None)),
            _ => None,
        }
    }

    /// Where to log in at a network, or to make a login last longer.
    #[must_use]
    pub fn login(&self, key: &K) -> Option<&str> {
        self.watched.get(key)?.login.as_deref()
    }

    /// What is left of a network's login, where the network says so.
    #[must_use]
    pub fn left(&self, key: &K, now: Instant) -> Option<Left> {
        let (left, said) = self.watched.get(key)?.left;
        left.is_said().then(|| left.after(now.since(said)))
    }

    /// Networks that come from now on are held back until the first look at them is over.
    pub fn begin(&mut self) {
        self.has_begun = true;
    }

    /// Watches what is there, as of now: `None` for a network that is not to be looked at.
    pub fn follow(&mut self, key: &K, way: Option<Way>, now: Instant) {
        if self.watched.get(key).map(|watched| &watched.way) == way.as_ref() {
            return;
        }
        self.forget(key);
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
                api: None,
                login: None,
                left: (Left::default(), now),
                is_told: false,
            };
            self.watched.insert(key.clone(), watched);
        }
    }

    /// Watches none but these from now on: a network that is gone is not looked at.
    pub fn retain(&mut self, is_there: impl Fn(&K) -> bool) {
        let gone: Vec<K> = self
            .watched
            .keys()
            .filter(|key| !is_there(key))
            .cloned()
            .collect();
        gone.iter().for_each(|key| self.forget(key));
    }

    fn forget(&mut self, key: &K) {
        if let Some(mut watched) = self.watched.remove(key) {
            let way = std::mem::take(&mut watched.way.0);
            if self.seen.len() >= MOST_SEEN {
                self.seen.pop_first();
            }
            self.seen.insert((way, watched.way.1), watched.machine.state());
        }
    }

    /// Lets time pass for a network, and looks at it where that is due; what is found is told.
    pub fn look<T: From<Looked<K>> + Send + 'static>(
        &mut self,
        key: &K,
        look: Option<Look>,
        tell: impl FnOnce() -> mpsc::Sender<T>,
        now: Instant,
    ) {
        let Some(watched) = self.watched.get_mut(key) else {
            return;
        };
        watched.machine.handle_timeout(now);
        let Some(look) = look else {
            return;
        };
        if watched.api != look.api {
            watched.machine.handle_change(now);
        }
        if watched.machine.poll_transmit(now) {
            watched.api.clone_from(&look.api);
            let (key, serial, tell) = (key.clone(), watched.serial, tell());
            watched.look = Some(hawser_linux::tasks::spawn(async move {
                let found = look_for_portal(&look).await;
                let _ = tell.send(Looked { key, serial, found }.into()).await;
            }));
        }
    }

    /// A look at the network of that name is over.
    pub fn on_looked(&mut self, name: &str, looked: Looked<K>, now: Instant) {
        let watched = self.watched.get_mut(&looked.key);
        let Some(watched) = watched.filter(|watched| watched.serial == looked.serial) else {
            return;
        };
        let before = watched.machine.state();
        let Found { outcome, login, left } = looked.found;
        watched.machine.handle_outcome(outcome, now);
        if outcome != Outcome::Nothing {
            watched.left = (left, now);
        }
        let known = watched.login.take().filter(|_| outcome != Outcome::Page);
        watched.login = login.or(known);
        match (before, watched.machine.state()) {
            (State::Captive, State::Open) => {
                tracing::info!(network = name, "its portal lets everything through now");
            }
            (State::Unknown | State::Open, State::Captive) => {
                tracing::warn!(
                    network = name,
                    login = watched.login,
                    "a captive portal stands before it: it carries nothing until somebody logs in"
                );
                if !std::mem::replace(&mut watched.is_told, true) {
                    hawser_linux::tasks::spawn(notification::ask_for_login(name.to_owned()));
                }
            }
            _ => tracing::debug!(network = name, ?outcome, "looked for a portal"),
        }
    }
}

/// Networks that are remembered.
const MOST_SEEN: usize = 256;

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[tokio::test]
    async fn what_is_known_of_a_login_is_what_was_said_last() {
        let mut portals: Portals<u8> = Portals::default();
        let at = |seconds| Instant::ZERO + Duration::from_secs(seconds);
        portals.follow(&1, Some(("wlan0".to_owned(), [None; 2])), at(0));
        let mut look = |outcome, login: Option<&str>, seconds, now| {
            let found = Found {
                outcome,
                login: login.map(str::to_owned),
                left: Left { seconds, bytes: None },
            };
            let looked = Looked {
                key: 1,
                serial: 1,
                found,
            };
            portals.on_looked("wlan0", looked, at(now));
            let left = portals.left(&1, at(now + 10)).and_then(|left| left.seconds);
            (portals.login(&1).map(str::to_owned), left)
        };
        let url = || Some("https://x/".to_owned());
        assert_eq!(
            look(Outcome::Page, Some("https://x/"), Some(60), 0),
            (url(), Some(50))
        );
        assert_eq!(look(Outcome::Nothing, None, None, 5), (url(), Some(45)));
        assert_eq!(look(Outcome::Page, None, None, 10), (None, None));
        assert_eq!(look(Outcome::Page, None, Some(60), 20), (None, Some(50)));
        assert_eq!(look(Outcome::Other, Some("https://x/"), None, 30), (url(), None));
        assert_eq!(look(Outcome::Other, None, None, 33), (url(), None));
        assert_eq!(portals.shown(&1), Some(("portal", Some("https://x/"))));
    }
}
