//! Captive portals of networks: schedules checks, and stores results and login pages.
//!
//! A check queries the network's API, or requests a known page, over one network's device and
//! resolvers only ([`check_portal`]); `hawser_steer::portal` decides when a check is due.

use std::collections::BTreeMap;
use std::net::IpAddr;

use hawser_linux::netlink::{Network, NextHop};
use hawser_steer::portal::{Outcome, Portal, State};
use hawser_units::Instant;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use crate::notification;
use crate::portal::{Found, Left, PortalCheckInputs, check_portal};

/// Result of a check.
#[derive(Debug)]
pub struct PortalCheckResult<K> {
    /// The network.
    pub key: K,
    serial: u64,
    found: Found,
}

/// A monitored network; its checks end when it is dropped.
#[derive(Debug)]
struct Watched {
    machine: Portal,
    identity: NetworkIdentity,
    serial: u64,
    look: Option<JoinHandle<()>>,
    /// API of the last check.
    api: Option<String>,
    /// Login page, or the page that extends the login.
    login: Option<String>,
    /// Remaining validity of the login, and the time of its report.
    left: (Left, Instant),
    /// Set if users were notified of a portal.
    is_told: bool,
}

impl Drop for Watched {
    fn drop(&mut self) {
        if let Some(look) = &self.look {
            look.abort();
        }
    }
}

/// Identity of a network: its name and its gateways.
pub type NetworkIdentity = (String, [Option<IpAddr>; 2]);

/// Returns the identity of a network.
#[must_use]
pub fn identity_of(network: &Network) -> NetworkIdentity {
    let gateway = |hop| match hop {
        Some(NextHop::Gateway(gateway)) => Some(gateway),
        Some(NextHop::Device) | None => None,
    };
    (network.name.clone(), [network.v4, network.v6].map(gateway))
}

/// Watched networks, by their owner's keys.
#[derive(Debug)]
pub struct Portals<K> {
    watched: BTreeMap<K, Watched>,
    /// States of networks at their removal: a network that was open is not blocked again.
    seen: BTreeMap<NetworkIdentity, State>,
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
    /// Returns when an action is due: a check, or the end of a block.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Instant> {
        let timeouts = self
            .watched
            .values()
            .map(|watched| watched.machine.poll_timeout());
        timeouts.flatten().min()
    }

    /// Returns whether flows may use the network: true for one that is not monitored.
    #[must_use]
    pub fn may_carry(&self, key: &K) -> bool {
        self.watched
            .get(key)
            .is_none_or(|watched| watched.machine.may_carry())
    }

    /// Returns the name of a network's state, and its login page.
    #[must_use]
    pub fn summary(&self, key: &K) -> Option<(&'static str, Option<&str>)> {
        let watched = self.watched.get(key)?;
        match (watched.machine.state(), watched.machine.may_carry()) {
            (State::Captive, _) => Some(("portal", watched.login.as_deref())),
            (_, false) => Some(("checking", None)),
            _ => None,
        }
    }

    /// Returns the login page of a network, or the page that extends a login.
    #[must_use]
    pub fn login(&self, key: &K) -> Option<&str> {
        self.watched.get(key)?.login.as_deref()
    }

    /// Returns the remaining validity of a network's login, if the network reports it.
    #[must_use]
    pub fn left(&self, key: &K, now: Instant) -> Option<Left> {
        let (left, said) = self.watched.get(key)?.left;
        left.is_said().then(|| left.after(now.since(said)))
    }

    /// Networks that appear from now on are not used until their first check has ended.
    pub fn begin(&mut self) {
        self.has_begun = true;
    }

    /// Monitors a network on its current route; `None` stops checking it.
    pub fn follow(&mut self, key: &K, identity: Option<NetworkIdentity>, now: Instant) {
        if self.watched.get(key).map(|watched| &watched.identity) == identity.as_ref() {
            return;
        }
        self.forget(key);
        if let Some(identity) = identity {
            let before = self.seen.get(&identity);
            // A network that existed at the start already carries flows.
            let is_held = before == Some(&State::Captive) || (before.is_none() && self.has_begun);
            self.serials += 1;
            let watched = Watched {
                machine: Portal::new(is_held, now),
                identity,
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

    /// Stops monitoring all other networks: a removed network is not checked.
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
            let name = std::mem::take(&mut watched.identity.0);
            if self.seen.len() >= MAX_SEEN {
                self.seen.pop_first();
            }
            self.seen
                .insert((name, watched.identity.1), watched.machine.state());
        }
    }

    /// Advances the time for a network, and starts a check if one is due; its result is sent to the
    /// channel.
    pub fn check_if_due<T: From<PortalCheckResult<K>> + Send + 'static>(
        &mut self,
        key: &K,
        look: Option<PortalCheckInputs>,
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
                let found = check_portal(&look).await;
                let _ = tell.send(PortalCheckResult { key, serial, found }.into()).await;
            }));
        }
    }

    /// Processes the end of a check of the network with that name.
    pub fn on_checked(&mut self, name: &str, looked: PortalCheckResult<K>, now: Instant) {
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
                tracing::info!(network = name, "its captive portal is open now");
            }
            (State::Unknown | State::Open, State::Captive) => {
                tracing::warn!(
                    network = name,
                    login = watched.login,
                    "a captive portal blocks it until a user logs in"
                );
                if !std::mem::replace(&mut watched.is_told, true) {
                    hawser_linux::tasks::spawn(notification::ask_for_login(name.to_owned()));
                }
            }
            _ => tracing::debug!(network = name, ?outcome, "tested for a captive portal"),
        }
    }
}

/// Maximum number of remembered networks. Source: our choice, a bound on memory; for a forgotten
/// network its portal is only reported once more.
const MAX_SEEN: usize = 256;

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
            let looked = PortalCheckResult {
                key: 1,
                serial: 1,
                found,
            };
            portals.on_checked("wlan0", looked, at(now));
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
        assert_eq!(portals.summary(&1), Some(("portal", Some("https://x/"))));
    }
}
