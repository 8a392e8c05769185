//! Names in direct mode: connects the machine that stores them with the resolver, with the services
//! that report resolvers, and with the rules.

use std::collections::BTreeMap;
use std::net::IpAddr;

use anyhow::anyhow;
use hawser_config::{ClientConfig, DnsMode, Page};
use hawser_host::dhcp;
use hawser_host::dns::{self, NameServers, NetworkAccess, Servers};
use hawser_host::portal::PortalCheckInputs;
use hawser_linux::direct::{Elements, TABLE, TUNNEL};
use hawser_steer::names::{Choices, Learned, Names, Reason, normal};
use hawser_units::{Duration, Instant, NetworkId};
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use super::networks::Known;
use super::notices::TaskResult;
use super::probe::Probe;
use super::resolver::Resolver;
use super::rules::{THROUGH_HUB, set_name};
use super::{Direct, tunnel_access};

/// Names, and their resolvers.
pub(super) struct Naming {
    names: Names,
    servers: NameServers,
    leases: dhcp::View,
    resolver: Option<Resolver>,
    watch: Option<JoinHandle<()>>,
    tell: mpsc::Sender<TaskResult>,
    pub(super) told: mpsc::Receiver<TaskResult>,
}

impl Drop for Naming {
    fn drop(&mut self) {
        if let Some(watch) = &self.watch {
            watch.abort();
        }
    }
}

impl Naming {
    /// Creates the state. With `has_hub`, networks must not decide which flows leave the tunnel, so
    /// only answers of the hub's resolvers are added to the sets of rules.
    pub(super) fn new(config: &ClientConfig, has_hub: bool, leases: dhcp::View) -> Self {
        let (tell, told) = mpsc::channel(MAX_WAITING);
        let names = Names::new(patterns(config), MAX_NAMES);
        let names = match has_hub {
            true => names.trusting(THROUGH_HUB),
            false => names,
        };
        Self {
            names,
            servers: NameServers::default(),
            leases,
            resolver: None,
            watch: None,
            tell,
            told,
        }
    }

    /// Starts to monitor the resolvers of networks.
    pub(super) fn watch_servers(&mut self, config: &ClientConfig) {
        let own = config.direct.own().into();
        self.watch = Some(hawser_linux::tasks::spawn(dns::watch(own, self.tell.clone())));
    }

    pub(super) fn handle_config(&mut self, config: &ClientConfig) {
        self.names.handle_rules(patterns(config));
    }

    /// Returns whether programs can send queries.
    pub(super) fn is_on(&self) -> bool {
        self.resolver.is_some()
    }

    /// Returns the ports of the networks' resolvers.
    pub(super) fn ports(&self) -> &BTreeMap<u8, u16> {
        static NONE: BTreeMap<u8, u16> = BTreeMap::new();
        self.resolver.as_ref().map_or(&NONE, Resolver::ports)
    }

    /// Returns the present contents of all sets.
    pub(super) fn elements(&mut self, now: Instant) -> Elements {
        grouped(self.names.elements(now))
    }

    /// Returns the access to a network, with its resolvers.
    pub(super) fn access_to(
        &self,
        number: u8,
        known: &Known,
        config: &ClientConfig,
    ) -> Option<NetworkAccess> {
        let network = known.network.as_ref()?;
        let mut servers = self.known_of(&known.name, network.index, config).addresses;
        servers.retain(|server| network.carries(server.is_ipv6()));
        Some(NetworkAccess {
            number,
            device: known.name.clone(),
            index: network.index,
            servers,
        })
    }

    /// Returns the resolvers of a network and its other advertised settings.
    fn known_of(&self, name: &str, index: u32, config: &ClientConfig) -> Servers {
        let set = config.network(name).dns;
        dhcp::known(set, Some(&self.leases), &self.servers, (name, index))
    }

    /// Returns the inputs of a network's portal check.
    pub(super) fn portal_check_inputs(
        &self,
        (number, known): (u8, &Known),
        config: &ClientConfig,
        page: &Page,
    ) -> Option<PortalCheckInputs> {
        let access = self.access_to(number, known, config)?;
        Some(PortalCheckInputs {
            api: self.known_of(&known.name, access.index, config).portal_api,
            access,
            page: page.clone(),
        })
    }

    /// Returns the sender for results of tasks.
    pub(super) fn teller(&self) -> mpsc::Sender<TaskResult> {
        self.tell.clone()
    }

    /// Returns the name of an address, for display.
    pub(super) fn name_of(&self, address: IpAddr, now: Instant) -> Option<&str> {
        self.names.name_of(address, now)
    }
}

impl Direct {
    /// Registers Hawser as the resolver of programs, if the configuration requires it.
    pub(super) async fn start_resolver(&mut self) {
        if self.config.dns != DnsMode::Networks {
            return;
        }
        let own = self.config.direct.own();
        let resolver = match Resolver::start(&own, self.naming.tell.clone()).await {
            Ok(resolver) => resolver,
            Err(error) => {
                tracing::warn!(%error, "names are not resolved by network, and rules with a domain have no effect: another resolver uses port 53 of all addresses");
                self.notice = Some(format!("no resolver: {error}"));
                return;
            }
        };
        self.naming.resolver = Some(resolver);
        if let Err(error) = self.system.resolvers(&self.config.interface.0, &own) {
            let error = format!("{:#}", anyhow!(error));
            tracing::warn!(error, "the system's resolvers are not changed");
            self.notice = Some(format!(
                "programs do not use Hawser's resolver: write `nameserver {}` to /etc/resolv.conf, and the resolvers of each network (dns) to client.toml",
                own[0]
            ));
        }
    }

    pub(super) fn on_task_result(&mut self, told: TaskResult) {
        let now = self.now();
        match told {
            TaskResult::Servers(servers) => self.naming.servers = servers.or_those_of(&self.naming.servers),
            TaskResult::PortalCheckResult(looked) => self.on_checked(looked),
            TaskResult::Tried(probe, took) => self.faster.machine.handle_connect(probe, took, now),
            TaskResult::Question { name, chosen, reply } => {
                let chosen = chosen.map(|number| NetworkId(u32::from(number)));
                let _ = reply.send(self.resolvers_for(&name, chosen).0);
            }
            TaskResult::Answer {
                name,
                number,
                addresses,
                done,
            } => {
                let seconds = |(address, ttl): (IpAddr, u32)| (address, Duration::from_secs(ttl.into()));
                let addresses: Vec<_> = addresses.into_iter().map(seconds).collect();
                let network = NetworkId(u32::from(number));
                self.naming.names.handle_answer(&name, network, &addresses, now);
                self.update_sets();
                let _ = done.send(());
            }
        }
    }

    /// Adds new addresses to the kernel's sets, before the program that sent the query receives the
    /// answer.
    fn update_sets(&mut self) {
        let mut learned = Vec::new();
        while let Some(event) = self.naming.names.poll_event() {
            learned.push(event);
        }
        let mut elements = grouped(learned);
        elements.retain(|set, _| self.rules.has_set(set));
        if !elements.is_empty()
            && let Err(error) = self.system.change_elements(TABLE, &[], &elements)
        {
            tracing::warn!(
                error = format!("{:#}", anyhow!(error)),
                "some addresses of domains are missing in the rules"
            );
        }
    }

    /// Returns the resolvers for a name, in order, and the reason.
    fn resolvers_for(&self, name: &str, chosen: Option<NetworkId>) -> (Vec<NetworkAccess>, Reason) {
        let has_hub = self.tunnel_access.has_hub() && !self.rules.bypasses();
        let mut default: Vec<_> = self
            .networks
            .all()
            .filter(|(_, known)| known.is_alive() && !has_hub)
            .map(|(number, known)| {
                let trip = known.probe.as_ref().and_then(Probe::round_trip);
                (trip.unwrap_or(Duration::MAX), number)
            })
            .collect();
        default.sort_unstable();
        if has_hub {
            default = vec![(Duration::ZERO, TUNNEL)];
        }
        // With a hub, a network must not decide which names are resolved outside the tunnel.
        let domains = self
            .networks
            .present()
            .filter(|_| !has_hub)
            .flat_map(|(number, network)| {
                let known = self.naming.known_of(&network.name, network.index, &self.config);
                let own = known.domains.into_iter();
                own.map(move |pattern| (NetworkId(u32::from(number)), pattern))
            });
        let choices = Choices {
            rules: self.rules.networks_of_rules(&self.config),
            domains: domains.collect(),
            default: default
                .into_iter()
                .map(|(_, number)| NetworkId(u32::from(number)))
                .collect(),
        };
        let (order, reason) = self.naming.names.order(name, chosen, &choices);
        (
            order.iter().filter_map(|id| self.access_by_id(*id)).collect(),
            reason,
        )
    }

    /// Returns the access to one network, or to the tunnel.
    pub(super) fn access_by_id(&self, id: NetworkId) -> Option<NetworkAccess> {
        let number = u8::try_from(id.0).ok()?;
        if number == TUNNEL {
            return Some(tunnel_access::tunnel_resolvers(
                self.tunnel()?,
                &self.config.interface.0,
            ));
        }
        let (_, known) = self.networks.all().find(|(other, _)| *other == number)?;
        self.naming
            .access_to(number, known, &self.config)
            .filter(|_| !known.is_shut)
    }

    /// Returns the state of names that contain the text, and the resolvers for the text itself, if
    /// it is a name.
    pub(super) fn explain_names(&self, wanted: &str) -> Value {
        if !self.naming.is_on() || wanted.is_empty() {
            return json!([]);
        }
        let now = self.now();
        let known = self.naming.names.all(now);
        let mut known: Vec<_> = known
            .filter(|(name, ..)| name.contains(wanted))
            .take(MAX_REPORTED)
            .map(|(name, address, heard)| {
                let (_, reason) = self.resolvers_for(name, None);
                json!({
                    "name": name,
                    "address": address,
                    "network": self.name_of_network(u8::try_from(heard.network.0).unwrap_or(0)),
                    "seconds": heard.until.since(now).as_secs(),
                    "why": self.why_asked(reason),
                })
            })
            .collect();
        let is_name = wanted.contains('.') && wanted.parse::<IpAddr>().is_err();
        if let Some(name) = normal(wanted).filter(|_| known.is_empty() && is_name) {
            let (all, reason) = self.resolvers_for(&name, None);
            known.push(json!({
                "name": name,
                "address": null,
                "network": all.first().map(|access| &access.device),
                "seconds": null,
                "why": self.why_asked(reason),
            }));
        }
        json!(known)
    }

    fn name_of_network(&self, number: u8) -> &str {
        match number {
            TUNNEL => &self.config.interface.0,
            _ => self.networks.name(number),
        }
    }

    fn why_asked(&self, reason: Reason) -> String {
        match reason {
            Reason::Chosen => "its program selected this network".to_owned(),
            Reason::Rule(index) => {
                let rule = self.config.rules.get(index).map(ToString::to_string);
                format!("the rule for {}", rule.unwrap_or_default())
            }
            Reason::Domain => "its domain is this network's own".to_owned(),
            Reason::Default if self.tunnel_access.has_hub() => "no rule matches it".to_owned(),
            Reason::Default => "no rule matches it, and this network answers first".to_owned(),
        }
    }
}

fn patterns(config: &ClientConfig) -> Vec<Vec<hawser_steer::names::Pattern>> {
    config.rules.iter().map(|rule| rule.domains.clone()).collect()
}

fn grouped(learned: Vec<Learned>) -> Elements {
    let mut elements = Elements::new();
    for Learned { set, address, lasts } in learned {
        elements.entry(set_name(set)).or_default().push((address, lasts));
    }
    elements
}

/// Maximum number of names and addresses together; beyond it, those with the shortest lifetime are
/// removed. Source: our choice, a bound on memory and on the kernel's sets; a household looks up
/// fewer in a day.
const MAX_NAMES: usize = 4096;
/// Maximum number of queries that wait for the event loop. Source: our choice; further queries
/// wait, which programs notice as a slow resolver.
const MAX_WAITING: usize = 64;
/// Maximum number of names in status, more than a user reads. Source: our choice; a filter shows
/// the others.
const MAX_REPORTED: usize = 100;
