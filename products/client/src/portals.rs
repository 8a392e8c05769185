//! Captive portals before a client's networks.
//!
//! A network is looked at only once its path to the hub has not worked for [`GRACE`]: as long as it
//! works nothing stands before it, and nobody but the hub hears of the machine.

use std::collections::BTreeMap;

use hawser_config::Page;
use hawser_dataplane::PathState;
use hawser_host::dhcp::{self, Dhcp};
use hawser_host::dns::{NameServers, Place, Servers};
use hawser_host::portal::Look;
use hawser_host::portals::{self, Looked, way};
use hawser_linux::netlink::Network;
use hawser_units::{Duration, Instant};
use tokio::sync::mpsc;

use super::Client;

/// All networks under watch, by name.
pub(super) struct Portals {
    watch: portals::Portals<String>,
    /// Networks without a path that works, and since when.
    stuck: BTreeMap<String, Instant>,
    /// The resolvers of each network, as services say.
    servers: NameServers,
    news: mpsc::Sender<News>,
    incoming: mpsc::Receiver<News>,
    /// Says which resolvers there are, once something is looked at.
    servers_watched: Option<tokio::task::JoinHandle<()>>,
}

/// What tasks tell.
pub(super) enum News {
    Servers(NameServers),
    Looked(Looked<String>),
}

impl From<NameServers> for News {
    fn from(servers: NameServers) -> Self {
        Self::Servers(servers)
    }
}

impl From<Looked<String>> for News {
    fn from(looked: Looked<String>) -> Self {
        Self::Looked(looked)
    }
}

impl Drop for Portals {
    fn drop(&mut self) {
        self.rest();
    }
}

impl Portals {
    pub(super) fn new() -> Self {
        let (news, incoming) = mpsc::channel(NEWS);
        Self {
            watch: portals::Portals::default(),
            stuck: BTreeMap::new(),
            servers: NameServers::default(),
            news,
            incoming,
            servers_watched: None,
        }
    }

    /// What a task has to tell. May be dropped while it waits.
    pub(super) async fn next(&mut self) -> News {
        match self.incoming.recv().await {
            Some(news) => news,
            // This holds a sender.
            None => std::future::pending().await,
        }
    }

    /// The login page of a network behind a portal: the address, where it says one.
    pub(super) fn login(&self, name: &str) -> Option<Option<&str>> {
        match self.watch.shown(&name.to_owned())? {
            ("portal", login) => Some(login),
            _ => None,
        }
    }

    /// Nothing is looked at any more: services are not asked either.
    fn rest(&mut self) {
        if let Some(task) = self.servers_watched.take() {
            task.abort();
            self.servers = NameServers::default();
        }
    }
}

impl Client {
    /// A network's resolvers and what else it says.
    pub(super) fn known_of(&self, network: &Network) -> Servers {
        let (name, index) = (&network.name, network.index);
        let set = self.config.network(name).dns;
        let leases = self.dhcp.as_ref().map(Dhcp::view);
        dhcp::known(set, leases, &self.portals.servers, (name, index))
    }

    /// By what a network is looked at.
    fn look(&self, network: &Network, page: &Page) -> Look {
        let known = self.known_of(network);
        Look {
            place: Place {
                number: 0,
                device: network.name.clone(),
                index: network.index,
                servers: known.addresses,
            },
            page: page.clone(),
            api: known.portal_api,
        }
    }

    /// Looks at networks without a path that works.
    pub(super) fn see_to_portals(&mut self) {
        let now = self.now();
        let Some(page) = self.config.direct.portal_check.0.clone() else {
            self.portals.watch.retain(|_| false);
            self.portals.stuck.clear();
            return;
        };
        let is_stuck = |network: &&Network| self.uses(&network.name) && !self.works(&network.name);
        let stuck: Vec<_> = self.seen.iter().filter(is_stuck).cloned().collect();
        let is_among = |name: &String| stuck.iter().any(|network| network.name == *name);
        self.portals.stuck.retain(|name, _| is_among(name));
        self.portals.watch.retain(is_among);
        let mut is_looking = false;
        for network in &stuck {
            let look = self.look(network, &page);
            let Portals {
                watch, news, stuck, ..
            } = &mut self.portals;
            let since = *stuck.entry(network.name.clone()).or_insert(now);
            let is_due = since + GRACE <= now;
            is_looking |= is_due;
            watch.follow(&network.name, is_due.then(|| way(network)), now);
            watch.look(&network.name, is_due.then_some(look), || news.clone(), now);
        }
        if !is_looking {
            self.portals.rest();
        } else if self.portals.servers_watched.is_none() {
            let (own, news) = (self.tunnel.addresses().to_vec(), self.portals.news.clone());
            self.portals.servers_watched =
                Some(hawser_linux::tasks::spawn(hawser_host::dns::watch(own, news)));
        }
    }

    fn works(&self, name: &str) -> bool {
        let networks = &self.driver.networks;
        let attached = networks.by_name(name).and_then(|id| networks.attached.get(&id));
        attached.is_some_and(|attached| attached.state == Some(PathState::Active))
    }

    pub(super) fn on_portal_news(&mut self, news: News) {
        let now = self.now();
        match news {
            News::Servers(servers) => self.portals.servers = servers,
            News::Looked(looked) => {
                let name = looked.key.clone();
                self.portals.watch.on_looked(&name, looked, now);
            }
        }
    }

    pub(super) fn portals_due(&self) -> Option<tokio::time::Instant> {
        let now = self.now();
        let begins = self.portals.stuck.values().map(|since| *since + GRACE);
        let begins = begins.filter(|begin| *begin > now);
        let due = begins.chain(self.portals.watch.poll_timeout()).min();
        due.map(|at| self.driver.at(at))
    }

    /// What a user should do about portals.
    pub(super) fn portal_notices(&self) -> impl Iterator<Item = String> {
        self.seen.iter().filter_map(|network| {
            let name = &network.name;
            let login = self.portals.login(name)?.unwrap_or("any http:// page");
            Some(format!("{name}: log in at {login} (sudo hawser login {name})"))
        })
    }
}

/// A path is validated within a few round trips, and TLS on TCP is tried after a second.
const GRACE: Duration = Duration::from_secs(2);
/// What is told and waits.
const NEWS: usize = 16;
