//! Kernel state of MPTCP in direct mode: endpoints, a limit, and a route for the first subflow of a
//! connection.
//!
//! A subflow started by the path manager has the address of its endpoint, and is routed by the rule
//! for that address. The first subflow has no source address before it is routed: with the mark
//! [`MULTIPATH_MARK`], it uses a table whose routes give it the address of a network, which is also
//! an endpoint. So the path manager knows that this network has a subflow.

use std::net::IpAddr;

use super::network_tables::{route, table};
use super::{PRIORITY, System, SystemError};
use crate::desired::{Object, Rule, Wanted};
use crate::direct::MULTIPATH_MARK;
use crate::journal::Entry;
use crate::mptcp::{Endpoint, Limits, PathManager};
use crate::netlink::{Network, NextHop};

impl System {
    /// Routes first subflows over a network with one of its addresses, for each family; without
    /// one, they are routed like other connections.
    ///
    /// # Errors
    /// The kernel refuses.
    pub async fn first_subflows(&mut self, ways: &[(&Network, IpAddr)]) -> Result<(), SystemError> {
        self.enter(Entry::NetworkTable { number: NUMBER })?;
        let routes = ways.iter().filter_map(|(network, address)| {
            let ipv6 = address.is_ipv6();
            let gateway = match if ipv6 { network.v6 } else { network.v4 }? {
                NextHop::Gateway(gateway) => Some(gateway),
                NextHop::Device => None,
            };
            Some(route(
                NUMBER,
                network.index,
                None,
                gateway,
                (Some(*address), ipv6),
            ))
        });
        let routes: Vec<_> = routes.collect();
        // The kernel treats a default route with another source as the same and does not replace
        // it.
        self.empty_table(NUMBER).await?;
        self.replace_routes(NUMBER, routes).await?;
        for ipv6 in [false, true] {
            self.enter_rule(Entry::MultipathRule { ipv6 }, rule(ipv6)).await?;
        }
        Ok(())
    }

    /// Lets subflows start from an address, unless another program has done so.
    ///
    /// # Errors
    /// The kernel refuses.
    pub fn add_endpoint(&mut self, manager: &PathManager, endpoint: &Endpoint) -> Result<(), SystemError> {
        let entry = Entry::MultipathEndpoint {
            address: endpoint.address,
        };
        if self.has_entered(&entry) {
            // An endpoint left by an earlier run may have another device.
            manager.remove(endpoint.address).map_err(SystemError::Multipath)?;
        } else if manager
            .endpoints()
            .map_err(SystemError::Multipath)?
            .iter()
            .any(|there| there.address == endpoint.address)
        {
            return Ok(());
        }
        self.enter(entry)?;
        manager.add(endpoint).map_err(SystemError::Multipath)?;
        self.want(Object::Endpoint(endpoint.address), Wanted::Endpoint(*endpoint));
        Ok(())
    }

    /// Removes an endpoint added by [`add_endpoint`](Self::add_endpoint).
    ///
    /// # Errors
    /// The kernel refuses.
    pub fn remove_endpoint(&mut self, manager: &PathManager, address: IpAddr) -> Result<(), SystemError> {
        let entry = Entry::MultipathEndpoint { address };
        if !self.has_entered(&entry) {
            return Ok(());
        }
        self.forget(&Object::Endpoint(address));
        manager.remove(address).map_err(SystemError::Multipath)?;
        self.strike(&entry)
    }

    /// Makes an endpoint a backup or a regular one; another program's endpoint is not changed.
    ///
    /// # Errors
    /// The kernel refuses.
    pub fn set_backup(
        &mut self,
        manager: &PathManager,
        address: IpAddr,
        is_backup: bool,
    ) -> Result<(), SystemError> {
        if self.has_entered(&Entry::MultipathEndpoint { address }) {
            let object = Object::Endpoint(address);
            let wanted = self.ledger().desired.value(&object).cloned();
            if let Some(Wanted::Endpoint(endpoint)) = wanted {
                self.want(
                    object,
                    Wanted::Endpoint(Endpoint {
                        is_backup,
                        ..endpoint
                    }),
                );
            }
            manager
                .set_backup(address, is_backup)
                .map_err(SystemError::Multipath)?;
        }
        Ok(())
    }

    /// Raises the limit of additional subflows of connections.
    ///
    /// # Errors
    /// The kernel refuses.
    pub fn raise_subflows(&mut self, manager: &PathManager, new: u32) -> Result<(), SystemError> {
        self.want(Object::Subflows, Wanted::AtLeast(new));
        let limits = manager.limits().map_err(SystemError::Multipath)?;
        let is_limit = |entry: &Entry| matches!(entry, Entry::MultipathLimit { .. });
        // The value to restore is still the one from before the earlier run.
        self.ledger().left.retain(|entry| !is_limit(entry));
        if limits.subflows >= new {
            return Ok(());
        }
        // A lower limit is the kernel's default, or was set by another program since.
        let entry = Entry::MultipathLimit {
            old: limits.subflows,
            new,
        };
        self.replace_entry(entry, is_limit)?;
        let subflows = new;
        manager
            .set_limits(Limits { subflows, ..limits })
            .map_err(SystemError::Multipath)
    }
}

/// Returns a rule after those of local routes, so that connections to neighbours have the address
/// of their link.
pub(super) fn rule(ipv6: bool) -> Rule {
    Rule {
        mark: Some((MULTIPATH_MARK, u32::MAX)),
        ..Rule::new(ipv6, PRIORITY, table(NUMBER))
    }
}

pub(super) fn undo_endpoint(address: IpAddr) -> Result<(), SystemError> {
    let manager = PathManager::open().map_err(SystemError::Multipath)?;
    manager.remove(address).map_err(SystemError::Multipath)
}

pub(super) fn undo_limit(old: u32, new: u32) -> Result<(), SystemError> {
    let manager = PathManager::open().map_err(SystemError::Multipath)?;
    let limits = manager.limits().map_err(SystemError::Multipath)?;
    // Another program has changed it since, so it is not restored.
    if limits.subflows != new {
        return Ok(());
    }
    let subflows = old;
    manager
        .set_limits(Limits { subflows, ..limits })
        .map_err(SystemError::Multipath)
}

/// Number of the table of first subflows. Source: the number below those of networks, which begin
/// with 2.
const NUMBER: u8 = 1;
