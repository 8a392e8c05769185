//! Names in direct mode: joins the machine that remembers them to the resolver, to the services
//! that know of resolvers, and to the rules.

use std::collections::BTreeMap;
use std::net::IpAddr;

use anyhow::anyhow;
use hawser_config::{ClientConfig, DnsMode, Page};
use hawser_host::dhcp;
use hawser_host::dns::{self, NameServers, Place, Servers};
use hawser_host::portal::Look;
use hawser_linux::direct::{Elements, TABLE, TUNNEL};
use hawser_steer::names::{Choices, Learned, Names, Reason, normal};
use hawser_units::{Duration, Instant, NetworkId};
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use super::networks::Known;
use super::probe::Probe;
use super::resolver::Resolver;
use super::rules::{THROUGH_HUB, set_name};
use super::told::Told;
use super::{Direct, beside};

/// Names, and who is asked for them.
pub(super) struct Naming {
    names: Names,
    servers: NameServers,
    leases: dhcp::View,
    resolver: Option<Resolver>,
    watch: Option<JoinHandle<()>>,
    tell: mpsc::Sender<Told>,
    pub(super) told: mpsc::Receiver<Told>,
}

impl Drop for Naming {
    fn drop(&mut self) {
        if let Some(watch) = &self.watch {
            watch.abort();
        }
    }
}

impl Naming {
    /// `has_hub`: networks must not choose what leaves the tunnel, so only what the hub's resolvers
    /// answer joins the sets of rules.
    pub(super) fn new(config: &ClientConfig, has_hub: bool, leases: dhcp::View) -> Self {
        let (tell, told) = mpsc::channel(MOST_WAITING);
        let names = Names::new(patterns(config), MOST_NAMES);
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

    /// Begins to look for the resolvers of networks.
    pub(super) fn watch_servers(&mut self, config: &ClientConfig) {
        let own = config.direct.own().into();
        self.watch = Some(hawser_linux::tasks::spawn(dns::watch(own, self.tell.clone())));
    }

    pub(super) fn handle_config(&mut self, config: &ClientConfig) {
        self.names.handle_rules(patterns(config));
    }

    /// Whether programs can ask.
    pub(super) fn is_on(&self) -> bool {
        self.resolver.is_some()
    }

    /// Where the resolver of each network answers.
    pub(super) fn ports(&self) -> &BTreeMap<u8, u16> {
        static NONE: BTreeMap<u8, u16> = BTreeMap::new();
        self.resolver.as_ref().map_or(&NONE, Resolver::ports)
    }

    /// What all sets contain now.
    pub(super) fn elements(&mut self, now: Instant) -> Elements {
        grouped(self.names.elements(now))
    }

    /// A network's resolvers.
    pub(super) fn place(&self, number: u8, known: &Known, config: &ClientConfig) -> Option<Place> {
        let network = known.network.as_ref()?;
        let mut servers = self.known_of(&known.name, network.index, config).addresses;
        servers.retain(|server| network.carries(server.is_ipv6()));
        Some(Place {
            number,
            device: known.name.clone(),
            index: network.index,
            servers,
        })
    }

    /// A network's resolvers and what else it says.
    fn known_of(&self, name: &str, index: u32, config: &ClientConfig) -> Servers {
        let set = config.network(name).dns;
        dhcp::known(set, Some(&self.leases), &self.servers, (name, index))
    }

    /// By what a network is looked at for a portal.
    pub(super) fn look(
        &self,
        (number, known): (u8, &Known),
        config: &ClientConfig,
        page: &Page,
    ) -> Option<Look> {
        let place = self.place(number, known, config)?;
        Some(Look {
            api: self.known_of(&known.name, place.index, config).portal_api,
            place,
            page: page.clone(),
        })
    }

    /// Where tasks tell what they found.
    pub(super) fn teller(&self) -> mpsc::Sender<Told> {
        self.tell.clone()
    }

    /// The name behind an address, for people.
    pub(super) fn name_of(&self, address: IpAddr, now: Instant) -> Option<&str> {
        self.names.name_of(address, now)
    }
}

impl Direct {
    /// Has programs ask Hawser for names, where that is wanted.
    pub(super) async fn start_resolver(&mut self) {
        if self.config.dns != DnsMode::Networks {
            return;
        }
        let own = self.config.direct.own();
        let resolver = match Resolver::start(&own, self.naming.tell.clone()).await {
            Ok(resolver) => resolver,
            Err(error) => {
                tracing::warn!(%error, "names are not asked for by network, and rules with a domain are for none: another resolver has port 53 of all addresses");
                self.notice = Some(format!("no resolver: {error}"));
                return;
            }
        };
        self.naming.resolver = Some(resolver);
        if let Err(error) = self.system.resolvers(&self.config.interface.0, &own) {
            let error = format!("{:#}", anyhow!(error));
            tracing::warn!(error, "the system's resolvers are as before");
            self.notice = Some(format!(
                "programs do not ask Hawser for names: write `nameserver {}` to /etc/resolv.conf, and each network's dns to client.toml",
                own[0]
            ));
        }
    }

    pub(super) fn on_told(&mut self, told: Told) {
        let now = self.now();
        match told {
            Told::Servers(servers) => self.naming.servers = servers.or_those_of(&self.naming.servers),
            Told::Looked(looked) => self.on_looked(looked),
            Told::Tried(probe, took) => self.faster.machine.handle_connect(probe, took, now),
            Told::Question { name, chosen, places } => {
                let chosen = chosen.map(|number| NetworkId(u32::from(number)));
                let _ = places.send(self.places(&name, chosen).0);
            }
            Told::Answer {
                name,
                number,
                addresses,
                done,
            } => {
                let seconds = |(address, ttl): (IpAddr, u32)| (address, Duration::from_secs(ttl.into()));
                let addresses: Vec<_> = addresses.into_iter().map(seconds).collect();
                let network = NetworkId(u32::from(number));
                self.naming.names.handle_answer(&name, network, &addresses, now);
                self.tell_sets();
                let _ = done.send(());
            }
        }
    }

    /// The kernel's sets hear of addresses before the program does that asked.
    fn tell_sets(&mut self) {
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
                "rules do not know some addresses of their domains"
            );
        }
    }

    /// Who is asked for a name, in order, and why.
    fn places(&self, name: &str, chosen: Option<NetworkId>) -> (Vec<Place>, Reason) {
        let has_hub = self.beside.has_hub() && !self.rules.bypasses();
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
        // With a hub, it is not for a network to say which names are asked past it.
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
        (order.iter().filter_map(|id| self.place_of(*id)).collect(), reason)
    }

    /// Where to send what is for one network alone, or for the tunnel.
    pub(super) fn place_of(&self, id: NetworkId) -> Option<Place> {
        let number = u8::try_from(id.0).ok()?;
        if number == TUNNEL {
            return Some(beside::place(self.tunnel()?, &self.config.interface.0));
        }
        let (_, known) = self.networks.all().find(|(other, _)| *other == number)?;
        self.naming
            .place(number, known, &self.config)
            .filter(|_| !known.is_shut)
    }

    /// Names that contain the text: what is known of them, and who is asked for the text itself, if
    /// it is a name.
    pub(super) fn explain_names(&self, wanted: &str) -> Value {
        if !self.naming.is_on() || wanted.is_empty() {
            return json!([]);
        }
        let now = self.now();
        let known = self.naming.names.all(now);
        let mut known: Vec<_> = known
            .filter(|(name, ..)| name.contains(wanted))
            .take(MOST_SHOWN)
            .map(|(name, address, heard)| {
                let (_, reason) = self.places(name, None);
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
            let (places, reason) = self.places(&name, None);
            known.push(json!({
                "name": name,
                "address": null,
                "network": places.first().map(|place| &place.device),
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
            Reason::Chosen => "its program chose this network".to_owned(),
            Reason::Rule(index) => {
                let rule = self.config.rules.get(index).map(ToString::to_string);
                format!("the rule for {}", rule.unwrap_or_default())
            }
            Reason::Domain => "its domain is this network's own".to_owned(),
            Reason::Default if self.beside.has_hub() => "no rule is for it".to_owned(),
            Reason::Default => "no rule is for it, and this network answers soonest".to_owned(),
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

/// Of names and addresses together; more are forgotten, the shortest-lived first.
const MOST_NAMES: usize = 4096;
/// Questions that wait for the event loop.
const MOST_WAITING: usize = 64;
/// More than anybody reads.
const MOST_SHOWN: usize = 100;
