//! Routes to a hub inside GRE: each of its addresses there is reached through one member of the
//! local network.
//!
//! They are in a separate table, whose rule precedes the tunnel's, and in which the other addresses
//! of the hub's network are unreachable. So packets for a removed member never leave over another
//! route.

use std::net::{IpAddr, Ipv4Addr};

use hawser_units::Net;
use rtnetlink::packet_route::route::{RouteAddress, RouteAttribute, RouteType};

use super::messages::empty_route;
use super::network_tables::{route, table};
use super::{System, SystemError, refused};
use crate::desired::{FIRST_PRIORITY, Rule};
use crate::journal::Entry;
use crate::netlink;

/// An address of a hub inside GRE.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemberRoute {
    /// The address.
    pub to: Ipv4Addr,
    /// The member through which it is reached.
    pub member: Ipv4Addr,
    /// Network of the members' addresses at that hub, and its prefix length.
    pub network: (Ipv4Addr, u8),
}

impl System {
    /// Sets exactly these routes. A route whose member is in none of the local networks is
    /// unreachable.
    ///
    /// # Errors
    /// The kernel refuses; what was added stays in the journal.
    pub async fn member_routes(&mut self, wanted: &[MemberRoute]) -> Result<(), SystemError> {
        let table_entry = Entry::NetworkTable { number: NUMBER };
        if wanted.is_empty() {
            if self.has_entered(&table_entry) {
                self.remove_rule(rule()).await?;
                self.strike(&Entry::MemberRule)?;
                self.empty_table(NUMBER).await?;
                self.strike(&table_entry)?;
            }
            return Ok(());
        }
        self.enter(table_entry)?;
        let failed = |source| refused("list addresses".to_owned(), source);
        let subnets = netlink::subnets(&self.handle).await.map_err(failed)?;
        let mut routes = Vec::new();
        for way in wanted {
            let near = |(_, subnet): &&(u32, Net)| subnet.contains(IpAddr::from(way.member));
            let closest = subnets
                .iter()
                .filter(near)
                .max_by_key(|(_, subnet)| subnet.prefix);
            let Some((index, _)) = closest else { continue };
            let (to, member) = (IpAddr::from(way.to), IpAddr::from(way.member));
            routes.push(route(NUMBER, *index, Some((to, 32)), Some(member), (None, false)));
        }
        for way in wanted {
            let mut nowhere = empty_route(table(NUMBER), false);
            nowhere.header.kind = RouteType::Unreachable;
            nowhere.header.destination_prefix_length = way.network.1;
            let network = RouteAddress::Inet(way.network.0);
            nowhere.attributes.push(RouteAttribute::Destination(network));
            if !routes.contains(&nowhere) {
                routes.push(nowhere);
            }
        }
        self.replace_routes(NUMBER, routes).await?;
        self.enter_rule(Entry::MemberRule, rule()).await
    }
}

/// Returns the rule, which precedes all rules with a mark or a source.
pub(super) fn rule() -> Rule {
    Rule::new(false, FIRST_PRIORITY, table(NUMBER))
}

/// Number of the table. Source: 0 and 1 are of no network of direct mode, and 1 is for first
/// subflows.
const NUMBER: u8 = 0;
