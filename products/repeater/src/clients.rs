//! Airtime that the joining box needs for its own clients, and the link that shares it.
//!
//! It samples the queue towards the clients a hundred times a second, passes that to
//! [`hawser_radio::striping::client_hop`], and asks the other box to limit the shared link to the
//! result: by [`Message::Cap`], which the hub's side obeys for each path. It starts without an
//! interface, finds the clients' interface when that appears, and restarts when it changes. The
//! link is limited only while another one works; alone it has its full rate.
//!
//! Source: Multifacet section 3.2. Scope: traffic to the clients, not from them.

use std::collections::BTreeMap;
use std::time::{Duration, Instant as Clock};

use hawser_control::client::driver::Driver;
use hawser_dataplane::PathState;
use hawser_linux::links::Interfaces;
use hawser_linux::queues::Queues;
use hawser_linux::wireless::cards::{self, Kind, Wireless};
use hawser_radio::striping::client_hop::{ClientHop, HopSample, POLL_INTERVAL};
use hawser_units::{Bytes, Instant, NetworkId, Rate};
use hawser_wire::control::Message;
use serde_json::{Value, json};

use super::Node;

/// Throttle of the joining box for its clients' airtime.
pub(super) struct Clients {
    bridge: String,
    links: Vec<String>,
    named: (Option<String>, Option<String>),
    interfaces: Interfaces,
    queues: Queues,
    wireless: Option<Wireless>,
    watched: Option<Watched>,
    /// Last request to the other box: the path and its limit.
    told: Option<(u16, Option<Rate>)>,
    is_unsure: bool,
    look_at: tokio::time::Instant,
    find_at: tokio::time::Instant,
    started: Clock,
}

/// Interface to clients, and the link that shares its channel: names and indices.
struct Watched {
    shared: SharedAir,
    hop: ClientHop,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct SharedAir {
    clients: (String, u32),
    link: (String, u32),
}

impl Clients {
    /// Creates a throttle without an interface. Must be called within a tokio runtime.
    pub(super) fn new(node: &Node) -> anyhow::Result<Self> {
        let options = &node.options;
        let wireless = Wireless::is_there().then(Wireless::open).and_then(Result::ok);
        Ok(Self {
            bridge: options.bridge.clone(),
            links: options.links.clone(),
            named: (options.clients.clone(), options.shared.clone()),
            interfaces: node.interfaces.clone(),
            queues: Queues::open()?,
            wireless,
            watched: None,
            told: None,
            is_unsure: false,
            look_at: tokio::time::Instant::now(),
            find_at: tokio::time::Instant::now(),
            started: Clock::now(),
        })
    }

    /// Waits until the next sample is due.
    pub(super) async fn due(&self) {
        let can_be = self.named.1.is_some() || self.wireless.is_some();
        match (&self.watched, can_be) {
            (Some(_), _) => tokio::time::sleep_until(self.look_at).await,
            (None, true) => tokio::time::sleep_until(self.find_at).await,
            (None, false) => std::future::pending().await,
        }
    }

    /// Samples the queue, and sends the resulting limit to the other box.
    pub(super) async fn sample_queue(&mut self, driver: &Driver, attached: &BTreeMap<u32, NetworkId>) {
        let now = tokio::time::Instant::now();
        if self.find_at <= now {
            self.find_at = now + FIND;
            let shared = self.find().await;
            if self.watched.as_ref().map(|watched| &watched.shared) != shared.as_ref() {
                self.watch(shared);
            }
        }
        self.look_at = now + POLL_INTERVAL;
        let at = Instant::ZERO + self.started.elapsed();
        if let Some(Watched { shared, hop }) = &mut self.watched
            // The search detects a removed interface.
            && let Ok(queue) = self.queues.of(shared.clients.1)
            && let Ok(brought) = self.queues.received(shared.link.1)
        {
            let look = HopSample {
                waiting: Bytes(queue.waiting),
                sent: Bytes(queue.sent),
                lost: queue.lost,
                brought: Bytes(brought),
            };
            hop.handle_sample(look, at);
        }
        self.send_limit(driver, attached);
    }

    /// Repeats the limit, since the other box may have missed it.
    pub(super) fn handle_reached(&mut self) {
        self.is_unsure = true;
    }

    fn watch(&mut self, shared: Option<SharedAir>) {
        if let Some(shared) = &shared {
            tracing::info!(
                clients = shared.clients.0,
                link = shared.link.0,
                "the link shares its channel with the clients: it is limited to the airtime that they leave"
            );
        }
        let now = Instant::ZERO + self.started.elapsed();
        self.watched = shared.map(|shared| Watched {
            shared,
            hop: ClientHop::new(now),
        });
    }

    fn send_limit(&mut self, driver: &Driver, attached: &BTreeMap<u32, NetworkId>) {
        if driver.line.is_none() {
            return;
        }
        let wanted = self.wanted(driver, attached);
        if let Some((old, limit)) = self.told
            && wanted.map(|(path, _)| path) != Some(old)
        {
            // A closed path, or one of a previous session, needs no message.
            if limit.is_some() && driver.machine.network(old).is_some() {
                let (path, rate_bps) = (old, 0);
                driver.send(Message::Cap { path, rate_bps });
            }
            self.told = None;
        }
        if let Some((path, limit)) = wanted
            && (self.told != wanted || self.is_unsure)
        {
            let rate_bps = limit.map_or(0, Rate::as_bps);
            tracing::debug!(path, rate_bps, "requesting another limit from the other box");
            driver.send(Message::Cap { path, rate_bps });
            (self.told, self.is_unsure) = (wanted, false);
        }
    }

    /// Returns the path of the shared link, once both boxes know it, and its maximum rate.
    fn wanted(&self, driver: &Driver, attached: &BTreeMap<u32, NetworkId>) -> Option<(u16, Option<Rate>)> {
        let watched = self.watched.as_ref()?;
        let network = attached.get(&watched.shared.link.1)?;
        let path = driver.machine.path(*network)?;
        let works = |other: &NetworkId| {
            let attached = driver.networks.attached.get(other);
            attached.is_some_and(|attached| attached.state == Some(PathState::Active))
        };
        let mut others = attached.values().filter(|other| *other != network);
        Some((path, others.any(works).then(|| watched.hop.limit().max(CLOSED))))
    }

    /// Finds the interface to the clients, and the link that shares its channel.
    async fn find(&self) -> Option<SharedAir> {
        let all = self.interfaces.list().await.ok()?;
        let radios = match &self.wireless {
            Some(wireless) => wireless.interfaces().await.unwrap_or_default(),
            None => Vec::new(),
        };
        let bridge = all.iter().find(|one| one.name == self.bridge)?.index;
        let ports = all.iter().filter(|one| one.controller == Some(bridge));
        let index = |name: &str| all.iter().find(|one| one.name == name).map(|one| one.index);
        for port in ports {
            let radio = radios.iter().find(|radio| radio.index == port.index);
            let is_wanted = match &self.named.0 {
                Some(name) => port.name == *name,
                None => radio.is_some_and(|radio| radio.kind == Kind::AccessPoint),
            };
            if !is_wanted {
                continue;
            }
            let link = self.named.1.clone().or_else(|| {
                let near = |link: &&String| radios.iter().any(|one| one.name == **link && shares(radio, one));
                self.links.iter().find(near).cloned()
            });
            if let Some(link) = link
                && let Some(index) = index(&link)
            {
                return Some(SharedAir {
                    clients: (port.name.clone(), port.index),
                    link: (link, index),
                });
            }
        }
        None
    }

    /// Returns the entry of `status`.
    pub(super) fn report(&self) -> Value {
        let Some(Watched { shared, hop }) = &self.watched else {
            return json!(self.named.0.as_ref().map(|name| json!({ "interface": name })));
        };
        let held = self.told.and_then(|(_, limit)| limit);
        json!({
            "interface": shared.clients.0,
            "link": shared.link.0,
            "waits_ms": hop.waits().as_secs_f64() * 1e3,
            "carries_bps": hop.carries().as_bps(),
            "most_bps": hop.max_rate().as_bps(),
            "held_bps": held.map(Rate::as_bps),
        })
    }
}

/// Returns whether two radios are on one card, or on one channel.
fn shares(clients: Option<&cards::Interface>, link: &cards::Interface) -> bool {
    clients.is_some_and(|clients| {
        let is_on_channel = clients.frequency.is_some() && clients.frequency == link.frequency;
        clients.card == link.card || is_on_channel
    })
}

/// Interval of searches, since access points appear and disappear with hostapd. Source: our choice;
/// hostapd needs some seconds to start, and each search lists all interfaces.
const FIND: Duration = Duration::from_secs(2);
/// Rate of a closed link: a path needs some packets for its measurement. Source: our choice, five
/// full packets a second; less looks like a failed path, more is lost in a hop that is full.
pub(super) const CLOSED: Rate = Rate::from_bps(64_000);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn radios_of_one_card_or_one_channel_share_the_air() {
        let radio = |card, frequency| cards::Interface {
            card,
            name: String::new(),
            index: 1,
            kind: Kind::Station,
            is_up: true,
            address: [0; 6],
            ssid: None,
            frequency,
        };
        let clients = radio(0, Some(2412));
        assert!(shares(Some(&clients), &radio(0, None)));
        assert!(shares(Some(&clients), &radio(1, Some(2412))));
        assert!(!shares(Some(&clients), &radio(1, Some(5180))));
        assert!(!shares(Some(&radio(0, None)), &radio(1, None)));
        assert!(!shares(None, &radio(0, None)));
    }
}
