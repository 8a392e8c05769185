//! Routes of a hub to subnets behind its clients.

use hawser_units::Net;
use rtnetlink::packet_route::route::{RouteAttribute, RouteHeader};

use super::network_tables::route_of;
use super::{System, SystemError, refused};
use crate::netlink;

impl System {
    /// Routes exactly these subnets to an interface. Returns those that are omitted because they
    /// overlap a network of this machine, each with that network. The routes are not in the
    /// journal, because they are removed with the interface.
    ///
    /// # Errors
    /// The interface does not exist, or the kernel refuses.
    pub async fn led_subnets(&self, interface: &str, wanted: &[Net]) -> Result<Vec<(Net, Net)>, SystemError> {
        let index = self.index(interface)?;
        let failed = |source| refused("list addresses".to_owned(), source);
        let near = netlink::subnets(&self.handle).await.map_err(failed)?;
        let mut near = near.into_iter().filter(|(other, _)| *other != index);
        let near: Vec<_> = near.by_ref().map(|(_, net)| net).collect();
        let clash = |net: &Net| near.iter().find(|near| near.overlaps(*net)).copied();
        let main = u32::from(RouteHeader::RT_TABLE_MAIN);
        let fitting = wanted.iter().filter(|net| clash(net).is_none());
        let routes = fitting.map(|net| {
            let to = (net.first(), net.prefix);
            route_of(main, index, Some(to), None, (None, net.address.is_ipv6()))
        });
        let routes: Vec<_> = routes.collect();
        self.forget_routes_but(main, Some(index), &routes);
        let mut before = self.table_routes(main).await?;
        before.retain(|route| route.attributes.contains(&RouteAttribute::Oif(index)));
        self.replace_among(before, routes).await?;
        Ok(wanted
            .iter()
            .filter_map(|net| Some((*net, clash(net)?)))
            .collect())
    }
}
