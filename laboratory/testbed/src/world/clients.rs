//! Clients on 802.11 links behind the box with the networks' stations.

use anyhow::{Context, bail};
use hawser_netem::scenario::Via;

use super::{
    BRIDGE, BuiltNetwork, FIRST_GUEST, GUEST, SETTINGS, World, gateway_device, namespace, nft,
    permit_subflows, prepare_kernel, prepare_router,
};
use crate::client_hop::CLIENTS;
use crate::command::ip;
use crate::on_air::Clients;
use crate::wifi;

impl World {
    /// Clients of a network behind the box with its station: in the subnet of both bridges, or,
    /// without a repeater, in one subnet per network, with routes at both ends.
    pub(super) fn build_clients(&mut self, clients: &Clients) -> anyhow::Result<()> {
        let network = self.networks.get(clients.network);
        let wifi = network.and_then(|network| Some((network.name.clone(), network.wifi.clone()?)));
        let (Some((station, wifi)), true) = (wifi, self.air.is_some()) else {
            bail!(
                "clients are on the air of network {}, which has none",
                clients.network
            );
        };
        let is_bridged = self.via == Via::Repeater;
        let subnets = if is_bridged {
            vec![0]
        } else {
            self.route_to_clients()?
        };
        let air = self.air.as_mut().expect("it was seen");
        air.add_access_point_on_card((&self.client, &station), BRIDGE, &wifi)?;
        for number in 0..clients.count {
            let place = if number == 0 {
                self.applications.clone()
            } else {
                namespace()?
            };
            place
                .run(|| prepare_kernel(SETTINGS))
                .context("cannot prepare a client")?;
            let air = self.air.as_mut().expect("it was seen");
            air.add_guest((&place, GUEST))?;
            ip(&place, &[], &format!("link set lo up\nlink set dev {GUEST} up\n"))?;
            wifi::join_network(&place, (GUEST, CLIENTS), &wifi)?;
            let (host, mut commands) = (FIRST_GUEST + number, String::new());
            for subnet in &subnets {
                commands += &format!("addr add 10.78.{subnet}.{host}/24 dev {GUEST}\n");
            }
            let gateway = if is_bridged { 1 } else { 2 };
            commands += &format!("route add default via 10.78.{}.{gateway}\n", subnets[0]);
            ip(&place, &[], &commands)?;
            if self.via == Via::Mptcp {
                permit_subflows(&place)?;
                for subnet in &subnets[1..] {
                    let endpoint = format!("endpoint add 10.78.{subnet}.{host} dev {GUEST} subflow");
                    ip(&place, &["mptcp"], &endpoint)?;
                }
            }
            if number > 0 {
                self.guests.insert(number, place);
            }
        }
        Ok(())
    }

    /// Routes packets from the server over the used network and another one in turn.
    ///
    /// # Errors
    /// When there is no such network, or the kernel fails.
    pub(super) fn take_turns(&self, network: usize) -> anyhow::Result<()> {
        let other = self.networks.get(network).map(|network| network.number);
        let (Some(other), Via::Single(_)) = (other, &self.via) else {
            bail!("packets alternate between a network in use and another one");
        };
        let rules = "table ip lab_turns {\nchain pre {\ntype filter hook prerouting priority mangle;\n\
                     iifname \"server\" meta mark set numgen inc mod 2\n}\n}\n";
        nft(&self.net, rules)?;
        let device = gateway_device(other);
        let commands = format!(
            "rule add fwmark 1 table {TURNS}\n\
             route add default via 10.77.{other}.2 dev {device} table {TURNS}\n"
        );
        ip(&self.net, &[], &commands)
    }

    /// Creates a subnet of clients for each used network, routed over that network; returns the
    /// networks.
    fn route_to_clients(&self) -> anyhow::Result<Vec<usize>> {
        self.client
            .run(prepare_router)
            .context("cannot prepare the clients' box")?;
        let is_used =
            |network: &&BuiltNetwork| !matches!(&self.via, Via::Single(only) if *only != network.name);
        let used = self.networks.iter().filter(is_used);
        let (mut near, mut far) = (String::new(), String::new());
        near += &format!("link add {BRIDGE} type bridge\nlink set {BRIDGE} up\n");
        let mut subnets = Vec::new();
        for BuiltNetwork { name, number, .. } in used {
            near += &format!(
                "addr add 10.78.{number}.2/24 dev {BRIDGE}\n\
                 rule add from 10.78.{number}.0/24 table {table}\n\
                 route replace default via 10.77.{number}.1 dev {name} table {table}\n\
                 route replace 10.78.{number}.0/24 dev {BRIDGE} table {table}\n",
                table = 100 + number
            );
            far += &format!(
                "route add 10.78.{number}.0/24 via 10.77.{number}.2 dev {}\n",
                gateway_device(*number)
            );
            subnets.push(*number);
        }
        ip(&self.client, &[], &near)?;
        ip(&self.net, &[], &far)?;
        Ok(subnets)
    }
}

/// The router's table for every second packet. Source: our choice, any table that the world does
/// not use.
const TURNS: u32 = 91;
