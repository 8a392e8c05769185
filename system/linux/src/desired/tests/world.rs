//! A simulated kernel, an example of a desired state, and a clock for the reconciler.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::time::Duration;

use hawser_units::{Instant, Net};

use super::super::difference::{Repair, difference};
use super::super::reconciler::{Action, Event, Reconciler};
use super::super::*;

const MARK: (u32, u32) = (0x4857_0001, 0xffff_00ff);
pub(super) const ETH: u32 = 2;
pub(super) const TUNNEL: u32 = 7;
const PORT: u32 = 8;
const BRIDGE: u32 = 19;
const RECORDED: &str = "SERVERS=100.96.0.1";
pub(super) const DHCP: u8 = 16;
pub(super) const STATIC: u8 = 4;
pub(super) const OWN: u8 = OWN_PROTOCOL;

pub(super) fn net(text: &str) -> Net {
    text.parse().unwrap()
}

pub(super) fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

pub(super) fn hop(device: u32, gateway: Option<&str>) -> Hop {
    Hop {
        kind: UNICAST,
        device: Some(device),
        gateway: gateway.map(ip),
        source: None,
    }
}

pub(super) fn key(table: u32, to: &str) -> RouteKey {
    RouteKey {
        table,
        to: net(to),
        metric: 0,
    }
}

fn tunnel_rule() -> Rule {
    Rule {
        mark: Some(MARK),
        is_inverted: true,
        ..Rule::new(false, FIRST_PRIORITY + 4, TUNNEL_TABLE)
    }
}

/// Two rules that differ only in their priorities, before and after the tunnel's.
pub(super) fn lease_rules() -> [Rule; 2] {
    [0, 5].map(|behind| Rule {
        ports: Some((17, 68, 67)),
        ..Rule::new(false, FIRST_PRIORITY + behind, MAIN_TABLE)
    })
}

pub(super) fn endpoint(is_backup: bool) -> Endpoint {
    Endpoint {
        address: ip("192.168.1.2"),
        device: ETH,
        is_backup,
    }
}

/// A kernel that executes all repairs.
#[derive(Clone)]
pub(super) struct Kernel {
    pub(super) tables: BTreeMap<String, String>,
    pub(super) settings: BTreeMap<String, String>,
    pub(super) links: BTreeMap<u32, ObservedLink>,
    pub(super) addresses: BTreeSet<(u32, IpAddr, u8)>,
    pub(super) routes: Vec<(RouteKey, Hop, u8)>,
    pub(super) rules: Vec<(Rule, bool)>,
    pub(super) multipath: ObservedMultipath,
    pub(super) resolvers: BTreeMap<String, String>,
}

impl Kernel {
    /// An uplink with a gateway, a tunnel that is down, and no object of Hawser.
    pub(super) fn new() -> Self {
        let link = |name: &str, is_up, is_tunnel| ObservedLink {
            name: name.to_owned(),
            is_up,
            mtu: 1500,
            controller: None,
            is_tunnel,
        };
        Self {
            tables: BTreeMap::new(),
            settings: BTreeMap::from([
                ("net/ipv4/ip_forward".to_owned(), "0".to_owned()),
                ("net/ipv4/conf/eth0/rp_filter".to_owned(), "1".to_owned()),
                (STRICT_FOR_ALL.to_owned(), "0".to_owned()),
            ]),
            links: BTreeMap::from([
                (ETH, link("eth0", true, false)),
                (TUNNEL, link("hawser0", false, true)),
                (PORT, link("hawserport0", true, false)),
                (BRIDGE, link("br0", true, false)),
            ]),
            addresses: BTreeSet::from([(ETH, ip("192.168.1.2"), 24)]),
            routes: vec![
                (key(MAIN_TABLE, "0.0.0.0/0"), hop(ETH, Some("192.168.1.1")), DHCP),
                (key(MAIN_TABLE, "192.168.1.0/24"), hop(ETH, None), 2),
            ],
            rules: vec![
                (Rule::new(false, 0, LOCAL_TABLE), false),
                (Rule::new(false, 32_766, MAIN_TABLE), false),
            ],
            multipath: ObservedMultipath {
                endpoints: Vec::new(),
                subflows: 2,
            },
            resolvers: BTreeMap::new(),
        }
    }

    pub(super) fn observe(&self) -> Observed {
        let routes = self.routes.iter().enumerate();
        let rules = self.rules.iter().enumerate();
        Observed {
            tables: Some(self.tables.clone()),
            settings: self.settings.clone(),
            links: self.links.clone(),
            addresses: self.addresses.clone(),
            routes: routes
                .map(|(id, (key, hop, protocol))| ObservedRoute {
                    id,
                    key: *key,
                    hop: *hop,
                    protocol: *protocol,
                    is_complex: false,
                })
                .collect(),
            rules: rules
                .map(|(id, (rule, is_ours))| ObservedRule {
                    id,
                    rule: *rule,
                    is_lookup: true,
                    is_selective: false,
                    is_ours: *is_ours,
                })
                .collect(),
            multipath: Some(self.multipath.clone()),
            resolvers: self.resolvers.clone(),
        }
    }

    /// Orders rules as the kernel does: a new one comes after those with the same priority.
    pub(super) fn add_rule(&mut self, rule: Rule, is_ours: bool) {
        if !self.rules.contains(&(rule, is_ours)) {
            let at = self
                .rules
                .partition_point(|(known, _)| known.priority <= rule.priority);
            self.rules.insert(at, (rule, is_ours));
        }
    }

    pub(super) fn link(&mut self, name: &str) -> &mut ObservedLink {
        let mut links = self.links.values_mut();
        links.find(|link| link.name == name).expect("it is there")
    }

    pub(super) fn set_down(&mut self, index: u32) {
        self.links.get_mut(&index).unwrap().is_up = false;
        self.routes.retain(|(_, hop, _)| hop.device != Some(index));
    }
}

/// Returns a small example of the desired state of a client with a kill switch.
pub(super) fn desired() -> Desired {
    let mut desired = Desired::default();
    let table = Wanted::Table {
        body: "drop".to_owned(),
        printed: "drop".to_owned(),
    };
    desired.want(Object::Table("hawser_kill".to_owned()), table);
    let setting = |value: &str| Wanted::Setting(Setting::Is(value.to_owned()));
    desired.want(Object::Setting("net/ipv4/ip_forward".to_owned()), setting("1"));
    let strict = Object::Setting("net/ipv4/conf/eth0/rp_filter".to_owned());
    desired.want(strict, Wanted::Setting(Setting::NotStrict));
    desired.want(Object::Link("hawser0".to_owned()), Wanted::Up);
    let address = Object::Address("hawser0".to_owned(), ip("100.96.0.2"));
    desired.want(address, Wanted::Prefix(32));
    desired.want(Object::Mtu("hawser0".to_owned()), Wanted::Mtu(1420));
    let port = Object::Port("hawserport0".to_owned());
    desired.want(port, Wanted::Bridge("br0".to_owned()));
    let endpoint = Object::Endpoint(endpoint(false).address);
    desired.want(endpoint, Wanted::Endpoint(self::endpoint(false)));
    desired.want(Object::Subflows, Wanted::AtLeast(4));
    let resolvers = Wanted::Resolvers {
        addresses: vec![ip("100.96.0.1")],
        recorded: RECORDED.to_owned(),
    };
    desired.want(Object::Resolvers("hawser0".to_owned()), resolvers);
    desired.own(TUNNEL_TABLE, true);
    let route = Object::Route(key(TUNNEL_TABLE, "0.0.0.0/0"));
    desired.want(route, Wanted::Route(hop(TUNNEL, None)));
    desired.want(
        Object::Rule(Rule::new(false, FIRST_PRIORITY + 3, NEAR_TABLE)),
        Wanted::Rule,
    );
    desired.want(Object::Rule(tunnel_rule()), Wanted::Rule);
    for rule in lease_rules() {
        desired.want(Object::Rule(rule), Wanted::Rule);
    }
    desired.set_near(Some(policy()));
    desired
}

pub(super) fn policy() -> NearPolicy {
    NearPolicy {
        tunnel: "hawser0".to_owned(),
        ..NearPolicy::default()
    }
}

/// The machine, its kernel, and a clock.
pub(super) struct World {
    pub(super) kernel: Kernel,
    pub(super) desired: Desired,
    pub(super) machine: Reconciler,
    now: Instant,
    pub(super) events: Vec<Event>,
    pub(super) repairs: usize,
}

impl World {
    pub(super) fn new() -> Self {
        let mut world = Self {
            kernel: Kernel::new(),
            desired: desired(),
            machine: Reconciler::new(Instant::ZERO),
            now: Instant::ZERO,
            events: Vec::new(),
            repairs: 0,
        };
        world.pass(Duration::from_secs(1));
        // Objects that the products set up themselves are not changes by other programs.
        world.machine = Reconciler::new(world.now);
        world.drain();
        world.events.clear();
        world.repairs = 0;
        world
    }

    fn drain(&mut self) {
        let mut seen = self.kernel.clone();
        while let Some(action) = self.machine.poll_transmit() {
            match action {
                Action::Dump => {
                    seen = self.kernel.clone();
                    let observed = seen.observe();
                    self.machine.handle_dump(&self.desired, &observed, self.now);
                }
                Action::Repair(_, repair) => self.apply(&seen, repair),
            }
        }
        self.events
            .extend(std::iter::from_fn(|| self.machine.poll_event()));
    }

    fn apply(&mut self, seen: &Kernel, repair: Repair) {
        self.repairs += 1;
        let kernel = &mut self.kernel;
        match repair {
            Repair::Install(table) => drop(kernel.tables.insert(table, "drop".to_owned())),
            Repair::Write(key, value) => drop(kernel.settings.insert(key, value)),
            Repair::Up(name) => kernel.link(&name).is_up = true,
            Repair::SetMtu(name, mtu) => kernel.link(&name).mtu = mtu,
            Repair::Attach(name, bridge) => kernel.link(&name).controller = Some(bridge),
            Repair::PutEndpoint(endpoint) => {
                let endpoints = &mut kernel.multipath.endpoints;
                endpoints.retain(|there| there.address != endpoint.address);
                endpoints.push(endpoint);
            }
            Repair::RaiseSubflows(least) => kernel.multipath.subflows = least,
            Repair::SetResolvers(name) => drop(kernel.resolvers.insert(name, RECORDED.to_owned())),
            Repair::AddAddress(index, address, prefix) => {
                kernel.addresses.insert((index, address, prefix));
            }
            Repair::ReplaceRoute(key, hop) => {
                assert!(
                    kernel.links[&hop.device.unwrap()].is_up,
                    "the kernel rejects {key:?}"
                );
                match kernel.routes.iter_mut().find(|(known, ..)| *known == key) {
                    Some(known) => *known = (key, hop, OWN),
                    None => kernel.routes.push((key, hop, OWN)),
                }
            }
            Repair::RemoveRoute(id) => kernel.routes.retain(|route| *route != seen.routes[id]),
            Repair::AddRule(rule) => kernel.add_rule(rule, true),
            Repair::RemoveRule(id) => kernel.rules.retain(|rule| *rule != seen.rules[id]),
            Repair::MoveBefore(priority) => assert!(self.desired.move_before(priority)),
        }
    }

    /// Advances the time and executes due actions.
    pub(super) fn pass(&mut self, time: Duration) {
        let end = self.now + time;
        loop {
            self.drain();
            let (at, _) = self.machine.poll_timeout().unwrap();
            if at > end {
                break;
            }
            assert!(at >= self.now, "time goes on");
            self.now = at;
            self.machine.handle_timeout(self.now);
        }
        self.now = end;
    }

    pub(super) fn notify(&mut self) {
        self.machine.handle_notification(self.now);
    }

    /// Returns the first interface of an unmarked packet to a public address.
    pub(super) fn leaves_by(&self) -> Option<u32> {
        for (rule, _) in &self.kernel.rules {
            let is_meant = (rule.mark.is_none() || rule.is_inverted) && rule.ports.is_none();
            let routes = self.kernel.routes.iter().filter(|(key, ..)| {
                key.table == rule.table
                    && key.to.contains(ip("203.0.113.1"))
                    && rule
                        .suppress
                        .is_none_or(|shortest| u32::from(key.to.prefix) > shortest)
            });
            let best = routes.max_by_key(|(key, ..)| key.to.prefix);
            if let (true, Some((_, hop, _))) = (is_meant, best) {
                return hop.device;
            }
        }
        None
    }

    pub(super) fn assert_as_desired(&self) {
        assert_eq!(difference(&self.desired, &self.kernel.observe()), []);
        assert_eq!(self.leaves_by(), Some(TUNNEL));
    }
}
