//! Routes and rules of the tunnel.

use std::net::IpAddr;

use rtnetlink::packet_route::route::{RouteAttribute, RouteMessage, RouteScope, RouteType};

use super::{PRIORITY, System, SystemError, messages, near, refused};
use crate::desired::{FIRST_PRIORITY, MAIN_TABLE, Rule as RoutingRule, TUNNEL_TABLE as TABLE};
use crate::direct::NETWORK_MASK;
use crate::journal::{Entry, Rule};
use crate::udp::OUTER_MARK;

impl System {
    /// Routes all packets of the tunnel's routing table to `interface`. Sockets without a chosen
    /// address get the address `source`, or the interface's first if it is `None`.
    ///
    /// # Errors
    /// The interface does not exist or the kernel refuses.
    pub async fn tunnel_route(
        &mut self,
        interface: &str,
        ipv6: bool,
        source: Option<IpAddr>,
    ) -> Result<(), SystemError> {
        let mut route = tunnel_route(self.index(interface)?, ipv6);
        route.attributes.extend(messages::preferred(source));
        self.ledger().desired.own(TABLE, true);
        self.put_route(route)
            .await
            .map_err(|source| refused(format!("route into {interface}"), source))?;
        let entry = Entry::ClosedTunnel { ipv6 };
        if self.has_entered(&entry) {
            self.delete_wanted(closed_tunnel(ipv6)).await?;
            self.ledger().left.retain(|left| *left != entry);
            self.strike(&entry)?;
        }
        Ok(())
    }

    /// Makes all destinations of the tunnel's routing table unreachable.
    ///
    /// # Errors
    /// The kernel refuses.
    pub async fn close_tunnel(&mut self, interface: &str, ipv6: bool) -> Result<(), SystemError> {
        self.enter(Entry::ClosedTunnel { ipv6 })?;
        self.ledger().desired.own(TABLE, true);
        let result = self.put_route(closed_tunnel(ipv6)).await;
        result.map_err(|source| refused("close the tunnel".to_owned(), source))?;
        self.delete_wanted(tunnel_route(self.index(interface)?, ipv6))
            .await
    }

    /// Adds the rules that route all packets into the tunnel, except outer packets and near
    /// destinations.
    ///
    /// # Errors
    /// The kernel refuses; what was added stays in the journal.
    pub async fn tunnel_rules(&mut self, ipv6: bool) -> Result<(), SystemError> {
        // The rule that matches all packets comes last.
        let rule = Rule::Lease;
        self.enter_rule(Entry::Rule { rule, ipv6 }, value_of(rule, ipv6))
            .await?;
        if self.ledger().desired.near().is_none() {
            let rule = Rule::Near;
            self.enter_rule(Entry::Rule { rule, ipv6 }, value_of(rule, ipv6))
                .await?;
        }
        let rule = Rule::Tunnel;
        self.enter_rule(Entry::Rule { rule, ipv6 }, value_of(rule, ipv6))
            .await
    }
}

/// Returns the value of a rule of the tunnel.
pub(super) fn value_of(rule: Rule, ipv6: bool) -> RoutingRule {
    match rule {
        Rule::Lease => near::lease_rule(ipv6, FIRST_PRIORITY),
        Rule::Near => RoutingRule {
            suppress: Some(0),
            ..RoutingRule::new(ipv6, PRIORITY, MAIN_TABLE)
        },
        Rule::Tunnel => RoutingRule {
            mark: Some((OUTER_MARK, NETWORK_MASK)),
            is_inverted: true,
            ..RoutingRule::new(ipv6, PRIORITY + 1, TABLE)
        },
    }
}

/// Returns the route into the tunnel's interface.
fn tunnel_route(index: u32, ipv6: bool) -> RouteMessage {
    let mut route = messages::empty_route(TABLE, ipv6);
    // Universal scope prevents the kernel from using this route when it looks up the link of
    // another route's router with scope link.
    route.header.scope = RouteScope::Universe;
    route.attributes.push(RouteAttribute::Oif(index));
    route
}

/// Returns the unreachable route, with lower priority than the tunnel's.
pub(super) fn closed_tunnel(ipv6: bool) -> RouteMessage {
    let mut route = messages::empty_route(TABLE, ipv6);
    route.header.kind = RouteType::Unreachable;
    route.attributes.push(RouteAttribute::Priority(CLOSED_METRIC));
    route
}

/// Metric of the unreachable routes. Source: four times that of the kernel's IPv6 routes, 1024.
const CLOSED_METRIC: u32 = 4096;
