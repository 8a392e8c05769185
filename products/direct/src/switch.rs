//! Open vSwitch instead of nftables: maintains a bridge's ports and flows by the rules, and lists
//! its connections.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::net::{IpAddr, SocketAddr};

use anyhow::Context;
use hawser_linux::conntrack::{self, Connection};
use hawser_linux::direct::openflow::Link;
use hawser_linux::direct::{Ruleset, TABLE};
use hawser_linux::netlink::{Network, NextHop};
use hawser_linux::switch;
use hawser_linux::udp::keep_outside;
use hawser_units::{Duration, Instant};
use socket2::{Domain, Socket, Type};

use super::Direct;

/// Location of connection tracking.
#[derive(Clone, Copy, Debug)]
pub(super) enum Tracking {
    Kernel,
    Switch,
}

impl Tracking {
    /// Lists the connections whose mark has the value `mark` under `mask`.
    pub(super) fn list(self, mark: u32, mask: u32) -> std::io::Result<Vec<Connection>> {
        match self {
            Self::Kernel => conntrack::list(mark, mask),
            Self::Switch => switch::connections(mark, mask),
        }
    }

    pub(super) fn forget(self, connection: &Connection) -> std::io::Result<()> {
        match self {
            Self::Kernel => conntrack::forget(connection),
            Self::Switch => switch::forget(connection),
        }
    }
}

/// State of the bridge.
#[derive(Default)]
pub(super) struct Switch {
    /// Device of each number, and its index, which another device of that name does not have.
    ports: BTreeMap<u8, (String, u32)>,
    links: BTreeMap<u8, Link>,
    flows: String,
    next_look: Instant,
}

impl Switch {
    /// Returns whether frames can be sent to the network's gateway, of any family.
    pub(super) fn reaches(&self, number: u8) -> bool {
        let link = self.links.get(&number);
        link.is_some_and(Link::is_reached)
    }

    pub(super) fn poll_timeout(&self) -> Instant {
        self.next_look
    }
}

impl Direct {
    pub(super) fn tracking(&self) -> Tracking {
        match self.switch {
            Some(_) => Tracking::Switch,
            None => Tracking::Kernel,
        }
    }

    /// Periodically reads the link-layer addresses of the gateways from the kernel, which knows
    /// them because gateways are probed.
    pub(super) async fn follow_links(&mut self) {
        let now = self.now();
        let is_due = self.switch.as_ref().is_some_and(|switch| switch.next_look <= now);
        if !is_due {
            return;
        }
        let neighbours = match self.system.neighbours().await {
            Ok(neighbours) => neighbours,
            Err(error) => {
                tracing::debug!(%error, "cannot read the kernel's neighbours");
                return;
            }
        };
        let mut links = BTreeMap::new();
        for (number, network) in self.networks.present() {
            let Some(own) = switch::ethernet_address(&network.name) else {
                continue;
            };
            let gateways = [network.v4, network.v6].map(|hop| {
                let Some(NextHop::Gateway(gateway)) = hop else {
                    return None;
                };
                let known = neighbours.get(&(network.index, gateway)).copied();
                if known.is_none() {
                    have_found(network, gateway);
                }
                known
            });
            links.insert(number, Link { own, gateways });
        }
        if let Some(switch) = &mut self.switch {
            switch.links = links;
            let mut present = self.networks.present();
            let all_reached = present.all(|(number, _)| switch.reaches(number));
            switch.next_look = now
                + if all_reached {
                    POLL_INTERVAL
                } else {
                    FAST_POLL_INTERVAL
                };
        }
    }

    /// Sets the bridge's ports and flows, if they have changed.
    pub(super) fn set_flows(&mut self, ruleset: &Ruleset) -> anyhow::Result<()> {
        let bridge = &self.config.interface.0;
        let Some(known) = &mut self.switch else {
            return Ok(());
        };
        let present = self.networks.present();
        let linked = present.filter(|(number, _)| known.links.contains_key(number));
        let mut wanted = BTreeMap::new();
        wanted.extend(linked.map(|(number, network)| (number, (network.name.clone(), network.index))));
        for (number, port) in known.ports.clone() {
            if wanted.get(&number) != Some(&port) {
                switch::remove_port(bridge, &port.0)?;
                known.ports.remove(&number);
            }
        }
        for (number, port) in wanted {
            if let Entry::Vacant(vacant) = known.ports.entry(number) {
                self.system.keep_frames_apart(&port.0)?;
                switch::add_port(bridge, &port.0, number)?;
                vacant.insert(port);
            }
        }
        let inside = switch::ethernet_address(bridge).context("the bridge was removed")?;
        let flows = ruleset.bundle(&known.links, inside);
        if known.flows != flows {
            self.system.nft_table(TABLE, &ruleset.guard())?;
            switch::set_flows(bridge, &flows)?;
            known.flows = flows;
        }
        Ok(())
    }
}

/// Makes the kernel resolve a gateway's address, by a datagram to its discard port.
fn have_found(network: &Network, gateway: IpAddr) {
    let mut to = SocketAddr::new(gateway, DISCARD);
    if let SocketAddr::V6(v6) = &mut to {
        v6.set_scope_id(network.index);
    }
    let sent = open_marked(to, &network.name).and_then(|socket| socket.send_to(&[], &to.into()));
    if let Err(error) = sent {
        tracing::debug!(network = network.name, %gateway, %error, "cannot resolve the address of its gateway");
    }
}

fn open_marked(to: SocketAddr, device: &str) -> std::io::Result<Socket> {
    let socket = Socket::new(Domain::for_address(to), Type::DGRAM, None)?;
    keep_outside(&socket, Some(device))?;
    socket.set_nonblocking(true)?;
    Ok(socket)
}

/// RFC 863.
const DISCARD: u16 = 9;
/// Poll interval of gateways' addresses. Source: our choice; a shorter one reads the neighbour
/// table more often, a longer one sends to a gateway that has been replaced for as long.
const POLL_INTERVAL: Duration = Duration::from_secs(1);
/// Poll interval while a gateway's first answer is awaited. Source: our choice, a few round trips
/// of a local network; a longer one delays the first packets.
const FAST_POLL_INTERVAL: Duration = Duration::from_millis(100);
