//! Neighbours' ways out, taken into use and left: each is a network of the session like any other,
//! whose remote address is a port of the neighbour. Which are taken is said by whoever knows the
//! neighbours ([`WaysOut`](hawser_control::client::ways_out::WaysOut)).

use std::net::IpAddr;

use hawser_control::client::driver::fresh_index;
use hawser_control::client::ways_out::{WayOut, Wish};
use hawser_linux::system::MemberRoute;
use hawser_wire::control::Message;

use super::Client;

impl Client {
    /// Looks for members, and takes and leaves ways out. To be called after whatever has happened.
    pub(super) async fn see_to_pool(&mut self) {
        let now = self.now();
        let hubs = &self.hubs.current().addresses;
        self.pool
            .handle_timeout(&self.config.pool, hubs, &self.driver.orders, now);
        while let Some(wish) = self.pool.poll() {
            match wish {
                Wish::Take(way) => {
                    self.lead_to(&way).await;
                    self.take_way_out(&way);
                }
                Wish::HaveSigned { path, member, taker } => {
                    self.driver.tell(Message::Through { path, member, taker })
                }
                Wish::Leave(network) => {
                    self.remove_network(network);
                    self.forget_unused_routes().await;
                }
            }
        }
    }

    /// Makes the route to a hub inside of GRE, before the first packet goes there.
    async fn lead_to(&mut self, way: &WayOut) {
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

    /// Drops the routes of members that are not in use.
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
            tracing::warn!(%error, "members without Hawser are not reached");
        }
    }

    fn take_way_out(&mut self, way: &WayOut) {
        let networks = &mut self.driver.networks;
        match networks.attach_member(&way.label, (way.relay, way.hub), way.mtu, way.cap_bps) {
            Ok(id) => {
                self.pool.handle_taken(way.member, id);
                tracing::info!(network = way.label, at = %way.relay, "a neighbour offers a way out");
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
