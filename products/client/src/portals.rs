//! Captive portals of a client's networks.
//!
//! A network is checked only once its path to the hub has not worked for [`GRACE`]: while it works
//! there is no portal, and no server except the hub learns of the machine.

use std::collections::BTreeMap;

use hawser_config::Page;
use hawser_dataplane::PathState;
use hawser_host::dhcp::{self, Dhcp};
use hawser_host::dns::{NameServers, NetworkAccess, Servers};
use hawser_host::portal::PortalCheckInputs;
use hawser_host::portals::{self, PortalCheckResult, identity_of};
use hawser_linux::netlink::Network;
use hawser_units::{Duration, Instant};
use tokio::sync::mpsc;

use super::Client;

/// State of all watched networks, by name.
pub(super) struct Portals {
    watch: portals::Portals<String>,
    /// Networks without a working path, with the time of the failure.
    stuck: BTreeMap<String, Instant>,
    /// Resolvers of each network, as reported by services.
    servers: NameServers,
    news: mpsc::Sender<News>,
    incoming: mpsc::Receiver<News>,
    /// Task that reports the present resolvers, from the first check on.
    servers_watched: Option<tokio::task::JoinHandle<()>>,
}

/// Result of a task.
pub(super) enum News {
    Servers(NameServers),
    PortalCheckResult(PortalCheckResult<String>),
}

impl From<NameServers> for News {
    fn from(servers: NameServers) -> Self {
        Self::Servers(servers)
    }
}

impl From<PortalCheckResult<String>> for News {
    fn from(looked: PortalCheckResult<String>) -> Self {
        Self::PortalCheckResult(looked)
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

    /// Waits for the next result of a task. Cancel safe.
    pub(super) async fn next(&mut self) -> News {
        match self.incoming.recv().await {
            Some(news) => news,
            // This value holds a sender, so the channel never closes.
            None => std::future::pending().await,
        }
    }

    /// Returns the login page of a network behind a portal, with its address if the portal
    /// announces one.
    pub(super) fn login(&self, name: &str) -> Option<Option<&str>> {
        match self.watch.summary(&name.to_owned())? {
            ("portal", login) => Some(login),
            _ => None,
        }
    }

    /// Ends all checks, and the monitoring of services.
    fn rest(&mut self) {
        if let Some(task) = self.servers_watched.take() {
            task.abort();
            self.servers = NameServers::default();
        }
    }
}

impl Client {
    /// Returns the resolvers of a network and its other advertised settings.
    pub(super) fn known_of(&self, network: &Network) -> Servers {
        let (name, index) = (&network.name, network.index);
        let set = self.config.network(name).dns;
        let leases = self.dhcp.as_ref().map(Dhcp::view);
        dhcp::known(set, leases, &self.portals.servers, (name, index))
    }

    /// Returns the inputs of a network's check.
    fn check_inputs(&self, network: &Network, page: &Page) -> PortalCheckInputs {
        let known = self.known_of(network);
        PortalCheckInputs {
            access: NetworkAccess {
                number: 0,
                device: network.name.clone(),
                index: network.index,
                servers: known.addresses,
            },
            page: page.clone(),
            api: known.portal_api,
        }
    }

    /// Checks networks without a working path.
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
            let look = self.check_inputs(network, &page);
            let Portals {
                watch, news, stuck, ..
            } = &mut self.portals;
            let since = *stuck.entry(network.name.clone()).or_insert(now);
            let is_due = since + GRACE <= now;
            is_looking |= is_due;
            watch.follow(&network.name, is_due.then(|| identity_of(network)), now);
            watch.check_if_due(&network.name, is_due.then_some(look), || news.clone(), now);
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
            News::PortalCheckResult(looked) => {
                let name = looked.key.clone();
                self.portals.watch.on_checked(&name, looked, now);
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

    /// Returns notices for the user about portals.
    pub(super) fn portal_notices(&self) -> impl Iterator<Item = String> {
        self.seen.iter().filter_map(|network| {
            let name = &network.name;
            let login = self.portals.login(name)?.unwrap_or("any http:// page");
            Some(format!("{name}: log in at {login} (sudo hawser login {name})"))
        })
    }
}

/// Time for a path before a check: it is validated within a few round trips, and TLS on TCP is
/// tried after 1 s. Source: our choice; a shorter one requests pages over networks that only begin,
/// a longer one delays the notification of a portal.
const GRACE: Duration = Duration::from_secs(2);
/// Capacity of the queue of results. Source: our choice; more only takes memory.
const NEWS: usize = 16;
