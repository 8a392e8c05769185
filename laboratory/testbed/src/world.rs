//! The namespaces of a run, their devices, addresses and routes.

mod clients;
pub(crate) mod far;
mod nat;
mod state;

use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::process::Stdio;
use std::sync::Arc;

use anyhow::{Context, bail};
use hawser_linux::netns::Namespace;
use hawser_linux::tun::Tun;
use hawser_netem::report::Traffic;
use hawser_netem::scenario::{
    ClientHop, Direction, Event, Hop as Part, Links, Member, Network, Scenario, Shares, Via, Wifi,
};
use hawser_netem::{Change, LinkConfig};
use hawser_units::Duration;

use crate::client_hop::Hop;
use crate::command::{ip, run};
use crate::on_air::OnAir;
use crate::pump::{Pump, Remote};
use crate::sample::{self, NetworkTraffic};
use crate::wifi::{self, Air};

/// Address of the hub. Source: a network for examples (RFC 5737 section 3).
pub const HUB: Ipv4Addr = Ipv4Addr::new(198, 51, 100, 2);
/// Address of a secondary hub, if there is one. Source: a network for examples (RFC 5737 section
/// 3).
pub(crate) const SECONDARY_HUB: Ipv4Addr = Ipv4Addr::new(198, 51, 100, 130);
/// Address of the server. Source: a network for examples (RFC 5737 section 3).
pub const SERVER: Ipv4Addr = Ipv4Addr::new(203, 0, 113, 2);

/// Four namespaces and the networks between them, which end with this value.
#[derive(Debug)]
pub struct World {
    /// Namespace at the client's end of the networks.
    pub client: Namespace,
    /// Namespace of the applications: the same, unless there is a hop between.
    pub applications: Namespace,
    /// The internet: the gateway of every network, and the router between them.
    pub net: Namespace,
    /// Namespace of the hub.
    pub hub: Namespace,
    /// Namespace of the server.
    pub server: Namespace,
    networks: Vec<BuiltNetwork>,
    via: Via,
    air: Option<Air>,
    /// Guests on 802.11 networks, by the workload that each one runs.
    guests: BTreeMap<usize, Namespace>,
    hop: Option<Hop>,
    /// Emulated links between the internet and the far ends, if any.
    far: Vec<Pumps>,
    /// Namespace of a secondary hub.
    pub(crate) further_hub: Option<Namespace>,
}

#[derive(Debug)]
struct BuiltNetwork {
    name: String,
    number: usize,
    /// `None` for a plain veth pair.
    pumps: Option<Pumps>,
    /// Wi-Fi of the network's last hop, if any.
    wifi: Option<Wifi>,
    /// Neighbour that provides the network, if any.
    member: Option<BuiltMember>,
}

/// A neighbour: a namespace between the client and the neighbour's network.
#[derive(Debug)]
pub(crate) struct BuiltMember {
    /// Name of the neighbour.
    pub(crate) name: String,
    /// Namespace of the neighbour.
    pub(crate) place: Namespace,
    /// Address that the client uses.
    pub(crate) address: Ipv4Addr,
    /// Description in the scenario.
    pub(crate) described: Member,
    local: Pumps,
}

#[derive(Debug)]
struct Pumps {
    down: Pump,
    up: Pump,
}

impl BuiltNetwork {
    /// Device at the client's end.
    fn end(&self) -> &str {
        if self.member.is_some() { MODEM } else { &self.name }
    }
}

impl Pumps {
    /// Pumps between the client's end and the far end, configured by `links`.
    fn start(
        label: &str,
        (near, far): (Arc<Tun>, Arc<Tun>),
        links: &Links,
        seed: u64,
    ) -> anyhow::Result<Self> {
        let (down, up) = (Remote::new()?, Remote::new()?);
        let start = |way: &str, ends, link: &LinkConfig, seed, remotes| {
            Pump::start(&format!("{label}-{way}"), ends, link.clone(), seed, remotes)
        };
        let towards = (Arc::clone(&far), Arc::clone(&near));
        Ok(Self {
            down: start("down", towards, &links.down, seed, [&down, &up])?,
            up: start("up", (near, far), &links.up, seed.wrapping_add(1), [&up, &down])?,
        })
    }
}

impl World {
    /// Builds the networks of `scenario`, with routes for `via`.
    ///
    /// # Errors
    /// When namespaces or devices are not permitted, or `ip` is missing or fails.
    pub fn build(scenario: &Scenario, via: &Via) -> anyhow::Result<Self> {
        Self::build_on_air(scenario, via, &OnAir::default())
    }

    /// Builds the networks with additional properties of their 802.11 links.
    ///
    /// # Errors
    /// As for [`build`](Self::build).
    pub fn build_on_air(scenario: &Scenario, via: &Via, on_air: &OnAir) -> anyhow::Result<Self> {
        let has_members = scenario.networks.iter().any(|network| network.member.is_some());
        if has_members && !matches!(via, Via::Hub | Via::Single(_)) {
            bail!("via {}: members relay only for a client with a hub", via.label());
        }
        if scenario.client_hop.is_some() && *via != Via::Repeater {
            bail!("via {}: only a repeater has a client_hop", via.label());
        }
        let client = namespace()?;
        let has_hop = scenario.client_hop.is_some() || on_air.clients.is_some();
        let applications = if has_hop { namespace()? } else { client.clone() };
        let mut world = Self {
            client,
            applications,
            net: namespace()?,
            hub: namespace()?,
            server: namespace()?,
            networks: Vec::new(),
            via: via.clone(),
            air: Air::begin(scenario, on_air)?,
            guests: BTreeMap::new(),
            hop: None,
            far: Vec::new(),
            further_hub: None,
        };
        let all = [
            &world.client,
            &world.applications,
            &world.net,
            &world.hub,
            &world.server,
        ];
        for namespace in all {
            namespace
                .run(|| prepare_kernel(SETTINGS))
                .context("cannot prepare a namespace")?;
        }
        if scenario.tcp_ecn {
            for namespace in [&world.client, &world.applications, &world.server] {
                let ask = || prepare_kernel(&[("ipv4/tcp_ecn", "1")]);
                namespace.run(ask).context("cannot enable ECN requests of TCP")?;
            }
        }
        for namespace in [&world.net, &world.hub] {
            namespace
                .run(|| prepare_kernel(ROUTER_SETTINGS))
                .context("cannot enable forwarding")?;
        }
        world.join_far_ends()?;
        for (index, network) in scenario.networks.iter().enumerate() {
            let number = index + 1;
            let mut member = None;
            let pumps = match &network.links {
                Some(links) => {
                    let seed = scenario.seed.wrapping_mul(1000).wrapping_add(number as u64 * 2);
                    let (near, built) = world.near_end((network, number), seed)?;
                    member = built;
                    let far = tun(&world.net, &gateway_device(number))?;
                    Some(Pumps::start(&number.to_string(), (near, far), links, seed)?)
                }
                None => {
                    world.plug(network, number)?;
                    None
                }
            };
            world.networks.push(BuiltNetwork {
                name: network.name.clone(),
                number,
                pumps,
                wifi: network.wifi.clone(),
                member,
            });
        }
        world.configure_networks()?;
        for (workload, guest) in &on_air.guests {
            let place = world.build_guest(guest.network)?;
            world.guests.insert(*workload, place);
        }
        if let Some(described) = &scenario.client_hop {
            world.hop = Some(world.build_hop(scenario, described)?);
        }
        if let Some(clients) = &on_air.clients {
            world.build_clients(clients)?;
        }
        if let Some(network) = on_air.in_turn_with {
            world.take_turns(network)?;
        }
        if !on_air.wire.is_zero() {
            world.delay_server(on_air.wire)?;
        }
        let blocking = world.networks.iter().zip(&scenario.networks);
        for (built, _) in blocking.filter(|(_, network)| network.blocks_udp) {
            block_udp(&world.net, &gateway_device(built.number))?;
        }
        nat::begin(&world.net, scenario)?;
        // Applies initial absences and failures before anything starts.
        for event in scenario.events.iter().filter(|event| event.at.is_zero()) {
            world.apply(event)?;
        }
        Ok(world)
    }

    /// Applies an event of the scenario.
    ///
    /// # Errors
    /// When the kernel refuses to change a device.
    pub fn apply(&self, event: &Event) -> anyhow::Result<()> {
        let network = &self.networks[event.network];
        let member = network.member.as_ref();
        let pumps = match event.hop {
            Part::WayOut => network.pumps.as_ref(),
            Part::Local => member.map(|member| &member.local),
        };
        if let Some(pumps) = pumps {
            if event.direction != Some(Direction::Up) {
                pumps.down.change(event.change.clone());
            }
            if event.direction != Some(Direction::Down) {
                pumps.up.change(event.change.clone());
            }
        }
        if let Some(mtu) = event.network_change.device_mtu {
            let commands = format!("link set dev {} mtu {mtu}\n", network.end());
            ip(self.near_namespace(network), &[], &commands)?;
        }
        if event.network_change.flush_nat {
            nat::flush(&self.net, network.number)?;
        }
        match event.change {
            Change {
                state: Some(state), ..
            } if event.hop == Part::WayOut => self.show_state(network, state),
            _ => Ok(()),
        }
    }

    /// Returns the namespace of a network's near end.
    fn near_namespace<'a>(&'a self, network: &'a BuiltNetwork) -> &'a Namespace {
        let member = network.member.as_ref();
        member.map_or(&self.client, |member| &member.place)
    }

    /// Returns the counters of every network since it was built.
    ///
    /// # Errors
    /// When the kernel's counters cannot be read.
    pub(crate) fn traffic(&self) -> anyhow::Result<Vec<NetworkTraffic>> {
        let is_any_plain = self.networks.iter().any(|network| network.pumps.is_none());
        let devices = if is_any_plain {
            self.net.run(sample::device_counters)?
        } else {
            Vec::new()
        };
        let traffic = |network: &BuiltNetwork| match &network.pumps {
            Some(pumps) => NetworkTraffic {
                down: pumps.down.counters().into(),
                up: pumps.up.counters().into(),
            },
            None => {
                let name = gateway_device(network.number);
                devices
                    .iter()
                    .find(|(device, _)| *device == name)
                    .map(|(_, c)| *c)
                    .unwrap_or_default()
            }
        };
        Ok(self.networks.iter().map(traffic).collect())
    }

    /// Connects the namespaces of hub and server to the router by cables without limits.
    fn join_far_ends(&self) -> anyhow::Result<()> {
        let commands = |peer: &Namespace, device: &str, net: &str, net6: &str| {
            let path = peer.path();
            format!(
                "link add name {device} type veth peer name eth0 netns {path}\n\
                 link set dev {device} up\n\
                 addr add {net}.1/24 dev {device}\n\
                 addr add {net6}::1/64 dev {device} nodad\n"
            )
        };
        let mut router = String::from("link set lo up\n");
        router += &commands(&self.hub, "hub", "198.51.100", "2001:db8:100");
        router += &commands(&self.server, "server", "203.0.113", "2001:db8:113");
        router += &format!("route add {HUB_POOL} via {HUB}\n");
        ip(&self.net, &[], &router)?;
        for (namespace, net, net6) in [
            (&self.hub, "198.51.100", "2001:db8:100"),
            (&self.server, "203.0.113", "2001:db8:113"),
        ] {
            let commands = format!(
                "link set lo up\n\
                 link set eth0 up\n\
                 addr add {net}.2/24 dev eth0\n\
                 addr add {net6}::2/64 dev eth0 nodad\n\
                 route add default via {net}.1\n\
                 route add ::/0 via {net6}::1\n"
            );
            ip(namespace, &[], &commands)?;
        }
        Ok(())
    }

    /// Returns the device at the client's end of an emulated network: the client's own, the cable
    /// of its access point, or the modem of its neighbour.
    fn near_end(
        &mut self,
        (network, number): (&Network, usize),
        seed: u64,
    ) -> anyhow::Result<(Arc<Tun>, Option<BuiltMember>)> {
        let name = &network.name;
        if let Some(described) = &network.member {
            let (modem, member) = self.build_member((name, number), described, seed)?;
            return Ok((modem, Some(member)));
        }
        let (Some(wifi), Some(air)) = (&network.wifi, &mut self.air) else {
            return Ok((tun(&self.client, name)?, None));
        };
        let place = air.add(&self.client, (name, number), wifi)?;
        place
            .run(prepare_router)
            .context("cannot prepare the access point")?;
        let cable = tun(&place, CABLE)?;
        let commands = format!(
            "link set dev {CABLE} mtu 1500 txqueuelen 10000 up\n\
             route add default dev {CABLE}\n\
             route add ::/0 dev {CABLE}\n"
        );
        ip(&place, &[], &commands)?;
        Ok((cable, None))
    }

    /// Creates a neighbour, the client's device to it with addresses, and its modem, which has no
    /// address yet.
    fn build_member(
        &self,
        (name, number): (&str, usize),
        described: &Member,
        seed: u64,
    ) -> anyhow::Result<(Arc<Tun>, BuiltMember)> {
        let place = namespace()?;
        place.run(prepare_router).context("cannot prepare a neighbour")?;
        let (near, far) = (tun(&self.client, name)?, tun(&place, LAN)?);
        let label = format!("{number}-local");
        let local = Pumps::start(
            &label,
            (near, far),
            &described.local,
            seed.wrapping_add(LOCAL_SEED),
        )?;
        let device = |device: &str, last: u8| {
            format!(
                "link set lo up\n\
                 link set dev {device} mtu 1500 txqueuelen 10000\n\
                 addr add 192.168.{number}.{last}/24 dev {device}\n\
                 link set dev {device} up\n"
            )
        };
        ip(&self.client, &[], &device(name, 1))?;
        ip(&place, &[], &device(LAN, 2))?;
        let modem = tun(&place, MODEM)?;
        let number = u8::try_from(number).context("too many networks")?;
        let member = BuiltMember {
            name: name.to_owned(),
            place,
            address: Ipv4Addr::new(192, 168, number, 2),
            described: described.clone(),
            local,
        };
        Ok((modem, member))
    }

    /// Creates another client on the access point of a network.
    fn build_guest(&mut self, network: usize) -> anyhow::Result<Namespace> {
        let place = namespace()?;
        place
            .run(|| prepare_kernel(SETTINGS))
            .context("cannot prepare a guest")?;
        let built = self.networks.get(network);
        let (Some(air), Some(built)) = (&mut self.air, built) else {
            bail!("a guest uses the radio channel of network {network}, which is not a Wi-Fi network");
        };
        let wifi = built.wifi.as_ref().context("a guest requires an access point")?;
        air.add_guest((&place, GUEST))?;
        ip(&place, &[], &format!("link set lo up\nlink set dev {GUEST} up\n"))?;
        wifi::join_network(&place, (GUEST, &built.name), wifi)?;
        let (number, host) = (built.number, FIRST_GUEST + self.guests.len());
        let address = format!(
            "addr add 10.77.{number}.{host}/24 dev {GUEST}\nroute add default via 10.77.{number}.1\n"
        );
        ip(&place, &[], &address)?;
        Ok(place)
    }

    /// Returns the namespace of a guest's workload.
    pub(crate) fn guest(&self, workload: usize) -> Option<&Namespace> {
        self.guests.get(&workload)
    }

    /// Returns the neighbours, in the order of the networks.
    pub(crate) fn members(&self) -> impl Iterator<Item = &BuiltMember> {
        self.networks.iter().filter_map(|network| network.member.as_ref())
    }

    /// Returns the neighbour of that name.
    pub(crate) fn member(&self, name: &str) -> Option<&BuiltMember> {
        self.members().find(|member| member.name == name)
    }

    /// Creates a network without emulated links: a cable or an 802.11 link.
    fn plug(&mut self, Network { name, wifi, .. }: &Network, number: usize) -> anyhow::Result<()> {
        let (far, path) = (gateway_device(number), self.net.path());
        if let (Some(air), Some(wifi)) = (&mut self.air, wifi) {
            return air.add_link((&self.net, &far), (&self.client, name), wifi);
        }
        ip(
            &self.client,
            &[],
            &format!("link add name {name} type veth peer name {far} netns {path}\n"),
        )
    }

    fn configure_networks(&self) -> anyhow::Result<()> {
        let (mut client, mut router) = (String::from("link set lo up\n"), String::new());
        for network in &self.networks {
            let BuiltNetwork {
                name, number, wifi, ..
            } = network;
            let device = gateway_device(*number);
            self.join_air(network)?;
            let near = format!(
                "link set dev {end} mtu 1500 txqueuelen 10000\naddr add 10.77.{number}.2/24 dev {end}\n",
                end = network.end(),
            );
            match &network.member {
                Some(member) => {
                    ip(&member.place, &[], &(near + &self.bring_up(network)))?;
                    if self.via == Via::Single(name.clone()) {
                        client += &format!("route add default via {}\n", member.address);
                    }
                }
                None => client += &(near + &self.bring_up(network)),
            }
            // The queue of a radio is the kernel's own.
            let is_radio = wifi.is_some() && network.pumps.is_none();
            let queue = if is_radio { "" } else { "txqueuelen 10000" };
            router += &format!("link set dev {device} mtu 1500 {queue} up\n");
            // Behind an access point, the access point is the gateway.
            router += &if wifi.is_some() && !is_radio {
                format!(
                    "route add 10.77.{number}.0/24 dev {device}\n\
                     route add fd77:{number:x}::/64 dev {device}\n"
                )
            } else {
                format!(
                    "addr add 10.77.{number}.1/24 dev {device}\n\
                     addr add fd77:{number:x}::1/64 dev {device} nodad\n"
                )
            };
            if network.member.is_some() {
                router += &format!("route add 192.168.{number}.0/24 dev {device}\n");
            }
        }
        ip(&self.client, &[], &client)?;
        ip(&self.net, &[], &router)?;
        match self.via {
            Via::Mptcp => self.configure_mptcp(),
            Via::Direct | Via::Peer => self.translate(),
            Via::DirectMptcp => {
                self.translate()?;
                permit_subflows(&self.server)
            }
            Via::Tool(_) => ip(&self.client, &[], &self.rules_by_source()),
            Via::Repeater => self.bridge(),
            Via::Hub | Via::Single(_) => Ok(()),
        }
    }

    /// Returns the commands that a network manager runs when a device gets its carrier.
    fn bring_up(&self, network: &BuiltNetwork) -> String {
        let (name, number) = (network.end(), network.number);
        let mut commands =
            format!("link set dev {name} up\naddr replace fd77:{number:x}::2/64 dev {name} nodad\n");
        let has_default = match &self.via {
            _ if network.member.is_some() => true,
            Via::Single(only) => only == name,
            Via::Tool(_) | Via::Repeater => false,
            Via::Hub | Via::Direct | Via::DirectMptcp | Via::Peer | Via::Mptcp => true,
        };
        if has_default {
            let metric = 100 + number;
            commands += &format!(
                "route replace default via 10.77.{number}.1 dev {name} metric {metric}\n\
                 route replace ::/0 via fd77:{number:x}::1 dev {name} metric {metric}\n"
            );
        }
        if matches!(self.via, Via::Tool(_)) {
            let metric = 100 + number;
            commands += &format!("route replace {HUB} via 10.77.{number}.1 dev {name} metric {metric}\n");
        }
        if matches!(self.via, Via::Mptcp | Via::Tool(_)) {
            let table = 100 + number;
            commands += &format!("route replace default via 10.77.{number}.1 dev {name} table {table}\n");
        }
        commands
    }

    /// Creates a bridge at each end of the networks, with one subnet; the route to the server uses
    /// it.
    /// it.
    fn bridge(&self) -> anyhow::Result<()> {
        for (namespace, last) in [(&self.net, 1), (&self.client, 2)] {
            let commands = format!(
                "link add {BRIDGE} type bridge\n\
                 addr add 10.78.0.{last}/24 dev {BRIDGE}\n\
                 addr add fd78::{last}/64 dev {BRIDGE} nodad\n\
                 link set {BRIDGE} up\n"
            );
            ip(namespace, &[], &commands)?;
        }
        let routes = "route add default via 10.78.0.1\nroute add ::/0 via fd78::1\n";
        ip(&self.client, &[], routes)
    }

    /// Creates the hop from the bridge of the joining box to the client, which shares the channel
    /// of a network.
    fn build_hop(&self, scenario: &Scenario, described: &ClientHop) -> anyhow::Result<Hop> {
        let far = "link set lo up\n\
             addr add 10.78.0.3/24 dev eth0\n\
             addr add fd78::3/64 dev eth0 nodad\n\
             link set eth0 up\n\
             route add default via 10.78.0.1\n\
             route add ::/0 via fd78::1\n";
        let shared = scenario
            .networks
            .iter()
            .zip(&self.networks)
            .find_map(|(network, built)| {
                let is_shared = network.shares == Some(Shares::ClientHop);
                let (links, pumps) = (network.links.as_ref()?, built.pumps.as_ref()?);
                is_shared.then(|| {
                    let way = |pump: &Pump, link: &LinkConfig| Some((pump.remote(), link.capacity.mean()?));
                    Some([way(&pumps.down, &links.down)?, way(&pumps.up, &links.up)?])
                })?
            });
        let hop = Hop::start((&self.client, BRIDGE, &self.applications), described, shared)?;
        ip(&self.applications, &[], far)?;
        Ok(hop)
    }

    /// Adds a delay to the cable to the server, in each direction.
    fn delay_server(&self, delay: Duration) -> anyhow::Result<()> {
        for (place, device) in [(&self.net, "server"), (&self.server, "eth0")] {
            let mut tc = place.command("tc");
            tc.args([
                "qdisc", "add", "dev", device, "root", "netem", "limit", WIRE_QUEUE,
            ]);
            tc.args(["delay", &format!("{}us", delay.as_micros())]);
            run(tc, "").context("`tc` failed")?;
        }
        Ok(())
    }

    /// Returns the network that shares the channel of the hop to the client, if the joining box is
    /// to consider it.
    pub(crate) fn throttled<'a>(&self, scenario: &'a Scenario) -> Option<&'a str> {
        let is_shared = |network: &&Network| network.shares == Some(Shares::ClientHop);
        let is_wanted = scenario.client_hop.is_some_and(|hop| hop.throttle);
        let shared = scenario.networks.iter().find(is_shared).filter(|_| is_wanted);
        shared.map(|network| network.name.as_str())
    }

    /// Returns the bytes of the hop to the client since it was built; `None` without a hop.
    ///
    /// # Errors
    /// When the hop's emulation has ended.
    pub(crate) fn hop_traffic(&self) -> anyhow::Result<Option<Traffic>> {
        self.hop.as_ref().map(Hop::traffic).transpose()
    }

    /// Returns the devices of all networks: at their far ends, and at the client's end.
    pub(crate) fn link_ends(&self) -> (Vec<String>, Vec<String>) {
        let ends = self.networks.iter();
        ends.map(|network| (gateway_device(network.number), network.name.clone()))
            .unzip()
    }

    /// Translates each network to an address of its own, as the router of a provider or household
    /// does, and drops packets from outside that belong to no known connection.
    fn translate(&self) -> anyhow::Result<()> {
        let mut rules =
            String::from("table ip lab_nat {\nchain out {\ntype nat hook postrouting priority srcnat;\n");
        for BuiltNetwork { number, .. } in &self.networks {
            rules += &format!("oifname \"server\" ip saddr 10.77.{number}.0/24 snat to 192.0.2.{number}\n");
        }
        rules += "}\nchain strict {\ntype filter hook forward priority 0;\nct state invalid drop\n}\n}\n";
        nft(&self.net, &rules)
    }

    /// Configures MPTCP as a user would: each address is an endpoint, and has a routing table.
    fn configure_mptcp(&self) -> anyhow::Result<()> {
        ip(&self.client, &[], &self.rules_by_source())?;
        permit_subflows(&self.client)?;
        for BuiltNetwork { name, number, .. } in &self.networks {
            let endpoint = format!("endpoint add 10.77.{number}.2 dev {name} subflow");
            ip(&self.client, &["mptcp"], &endpoint)?;
        }
        permit_subflows(&self.server)
    }

    /// Returns rules by which packets with a network's address use that network.
    fn rules_by_source(&self) -> String {
        let rule = |network: &BuiltNetwork| {
            let number = network.number;
            format!("rule add from 10.77.{number}.2 table {}\n", 100 + number)
        };
        self.networks.iter().map(rule).collect()
    }

    /// Returns name, address and gateway of each network.
    pub(crate) fn network_addresses(&self) -> Vec<[String; 3]> {
        let addresses = |network: &BuiltNetwork| {
            let number = network.number;
            [
                network.name.clone(),
                format!("10.77.{number}.2"),
                format!("10.77.{number}.1"),
            ]
        };
        self.networks.iter().map(addresses).collect()
    }

    /// Associates the client's device with the access point, if there is one.
    fn join_air(&self, BuiltNetwork { name, wifi, .. }: &BuiltNetwork) -> anyhow::Result<()> {
        let Some(wifi) = wifi else { return Ok(()) };
        ip(&self.client, &[], &format!("link set dev {name} up\n"))?;
        wifi::join(&self.client, name, wifi)
    }
}

/// Sets the MPTCP limits of a namespace so that a connection can use eight networks in addition to
/// its first.
fn permit_subflows(place: &Namespace) -> anyhow::Result<()> {
    ip(place, &["mptcp"], "limits set subflow 8 add_addr_accepted 8")
}

fn namespace() -> anyhow::Result<Namespace> {
    Namespace::new().context("cannot create a network namespace")
}

fn tun(namespace: &Namespace, device: &str) -> anyhow::Result<Arc<Tun>> {
    namespace
        .run(|| Tun::create(device, 1500).map_err(std::io::Error::other))
        .map(Arc::new)
        .with_context(|| format!("cannot create the device {device}"))
}

fn gateway_device(number: usize) -> String {
    format!("gw{number}")
}

/// Drops every UDP datagram at the far end of a network.
fn block_udp(net: &Namespace, device: &str) -> anyhow::Result<()> {
    let chain = "type filter hook forward priority -1;";
    let rules = format!(
        "table inet lab-{device} {{\nchain forward {{\n{chain}\niifname {device} meta l4proto udp drop\n\
         oifname {device} meta l4proto udp drop\n}}\n}}\n"
    );
    nft(net, &rules)
}

fn nft(namespace: &Namespace, rules: &str) -> anyhow::Result<()> {
    let mut command = namespace.command("nft");
    command.args(["-f", "-"]).stdin(Stdio::piped());
    run(command, rules).map(drop).context("`nft` failed")
}

/// Prepares the present namespace for forwarding.
fn prepare_router() -> std::io::Result<()> {
    prepare_kernel(SETTINGS).and_then(|()| prepare_kernel(ROUTER_SETTINGS))
}

fn prepare_kernel(settings: &[(&str, &str)]) -> std::io::Result<()> {
    for (name, value) in settings {
        let path = format!("/proc/sys/net/{name}");
        match std::fs::write(&path, value) {
            // A kernel without IPv6 lacks its settings.
            Err(error) if error.kind() == std::io::ErrorKind::NotFound && name.starts_with("ipv6") => {}
            Err(error) => return Err(std::io::Error::other(format!("{path}: {error}"))),
            Ok(()) => {}
        }
    }
    Ok(())
}

/// Bridge on each side of a repeater.
pub(crate) const BRIDGE: &str = "bridge";
/// Device of a guest, and the last byte of the first guest's address. Source: our choice, above the
/// addresses of the world itself.
const GUEST: &str = "wlan";
const FIRST_GUEST: usize = 10;
/// Queue that holds the packets of the fastest radio during the longest delay. Units: packets.
const WIRE_QUEUE: &str = "20000";
/// Cable from an access point to the internet.
const CABLE: &str = "cable";
/// Devices of a neighbour: towards the client, and its uplink. The latter is named as a modem, so
/// that offers describe it as one.
const LAN: &str = "lan";
const MODEM: &str = "wwan0";
/// Offset of the seeds of local links from those of the networks. Source: our choice, above the
/// number of networks.
const LOCAL_SEED: u64 = 500;

/// Addresses that a hub assigns to its clients.
const HUB_POOL: &str = "100.96.0.0/16";

/// Settings of the kernel: buffers that do not limit TCP (1 Gbit/s for half a second), no metrics
/// of earlier runs, and addresses that are usable at once.
const SETTINGS: &[(&str, &str)] = &[
    ("ipv4/tcp_rmem", "4096 131072 67108864"),
    ("ipv4/tcp_wmem", "4096 65536 67108864"),
    ("ipv4/tcp_no_metrics_save", "1"),
    ("ipv4/conf/all/rp_filter", "0"),
    ("ipv4/conf/default/rp_filter", "0"),
    ("ipv6/conf/all/disable_ipv6", "0"),
    ("ipv6/conf/default/accept_dad", "0"),
    ("ipv6/conf/default/accept_ra", "0"),
];

const ROUTER_SETTINGS: &[(&str, &str)] = &[("ipv4/ip_forward", "1"), ("ipv6/conf/all/forwarding", "1")];
