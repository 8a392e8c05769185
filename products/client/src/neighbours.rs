//! Uplinks of neighbours, taken into use and released: each is a network of the session like any
//! other, whose remote address is a port of the neighbour. The owner of the neighbours
//! ([`NeighbourUplinks`](hawser_control::client::neighbour_uplinks::NeighbourUplinks)) decides
//! which are taken.

use std::net::IpAddr;

use hawser_control::client::driver::fresh_index;
use hawser_control::client::neighbour_uplinks::{NeighbourUplink, Wish};
use hawser_linux::system::MemberRoute;
use hawser_wire::control::Message;

use super::Client;

impl Client {
    /// Searches members, and takes and releases uplinks. Must be called after each event.
    pub(super) async fn see_to_pool(&mut self) {
        let now = self.now();
        let hubs = &self.hubs.current().addresses;
        self.pool
            .handle_timeout(&self.config.pool, hubs, &self.driver.orders, now);
        while let Some(wish) = self.pool.poll() {
            match wish {
                Wish::Take(way) => {
                    self.lead_to(&way).await;
                    self.take_uplink(&way);
                }
                Wish::HaveSigned { path, member, taker } => {
                    self.driver.send(Message::Through { path, member, taker })
                }
                Wish::Leave(network) => {
                    self.remove_network(network);
                    self.forget_unused_routes().await;
                }
            }
        }
    }

    /// Creates the route to a hub inside GRE, before the first packet.
    async fn lead_to(&mut self, way: &NeighbourUplink) {
        let (Some(gateway), IpAddr::V4(to)) = (way.gateway, way.relay.ip()) else {
            return;
        };
        self.member_routes.retain(|route| route.to != to);
        self.member_routes.push(MemberRoute {
            to,
            member: gateway.member,
            network: gateway.network,
        });
        self.set_member_routes().await;
    }

    /// Removes the routes of unused members.
    async fn forget_unused_routes(&mut self) {
        let attached = &self.driver.networks.attached;
        let is_used = |route: &MemberRoute| {
            attached
                .values()
                .any(|one| one.remote.ip() == IpAddr::from(route.to))
        };
        let before = self.member_routes.len();
        self.member_routes.retain(is_used);
        if self.member_routes.len() != before {
            self.set_member_routes().await;
        }
    }

    async fn set_member_routes(&mut self) {
        let routes = self.member_routes.clone();
        if let Err(error) = self.tunnel.system().member_routes(&routes).await {
            tracing::warn!(%error, "members without Hawser cannot be used");
        }
    }

    fn take_uplink(&mut self, way: &NeighbourUplink) {
        let networks = &mut self.driver.networks;
        match networks.attach_member(&way.label, (way.relay, way.hub), way.mtu, way.cap_bps) {
            Ok(id) => {
                self.pool.handle_taken(way.member, id);
                tracing::info!(network = way.label, at = %way.relay, "a neighbour offers a network");
                self.driver.machine.handle_network_added(id, fresh_index());
                if self.driver.line.is_none() {
                    self.seek_also(id);
                }
            }
            Err(error) => {
                tracing::warn!(network = way.label, error = format!("{error:#}"), "not usable");
            }
        }
    }
}
