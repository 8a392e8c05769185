//! What MPTCP needs of the system in direct mode: endpoints, a limit, and a way out for the first
//! subflow of a connection.
//!
//! A subflow that the path manager starts has the address of its endpoint, and the rule for that
//! address leads it out. The first one has no address before it is routed: marked as
//! [`MULTIPATH_MARK`], it finds the routes of a table that gives it the address of a network, which
//! is an endpoint too. So the path manager knows that this network has its subflow.

use std::net::IpAddr;

use super::network_tables::{route, table};
use super::{PRIORITY, System, SystemError};
use crate::desired::{Object, Rule, Wanted};
use crate::direct::MULTIPATH_MARK;
use crate::journal::Entry;
use crate::mptcp::{Endpoint, Limits, PathManager};
use crate::netlink::{Network, NextHop};

impl System {
    /// Leads first subflows out of a network with one of its addresses, for each family; where
    /// there is none, they go with all other connections.
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
        // A default route with another source counts as the same and is not replaced.
        self.empty_table(NUMBER).await?;
        self.replace_routes(NUMBER, routes).await?;
        for ipv6 in [false, true] {
            self.enter_rule(Entry::MultipathRule { ipv6 }, rule(ipv6)).await?;
        }
        Ok(())
    }

    /// Lets subflows start from an address, unless somebody else has done so.
    ///
    /// # Errors
    /// The kernel refuses.
    pub fn add_endpoint(&mut self, manager: &PathManager, endpoint: &Endpoint) -> Result<(), SystemError> {
        let entry = Entry::MultipathEndpoint {
            address: endpoint.address,
        };
        if self.has_entered(&entry) {
            // What an earlier run has left may have another device.
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

    /// Takes back what [`add_endpoint`](Self::add_endpoint) has done.
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

    /// Makes an endpoint a backup or an equal; one that somebody else has made stays as it is.
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

    /// Lets connections have that many subflows beside the first.
    ///
    /// # Errors
    /// The kernel refuses.
    pub fn raise_subflows(&mut self, manager: &PathManager, new: u32) -> Result<(), SystemError> {
        self.want(Object::Subflows, Wanted::AtLeast(new));
        let limits = manager.limits().map_err(SystemError::Multipath)?;
        let is_limit = |entry: &Entry| matches!(entry, Entry::MultipathLimit { .. });
        // What was there before an earlier run is still what to go back to.
        self.ledger().left.retain(|entry| !is_limit(entry));
        if limits.subflows >= new {
            return Ok(());
        }
        // A lower limit is the kernel's own, or one that another program has set since.
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

/// Behind what is near, so that connections to neighbours have the address with which these are
/// reached.
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
    // Somebody else has set it since: theirs to keep.
    if limits.subflows != new {
        return Ok(());
    }
    let subflows = old;
    manager
        .set_limits(Limits { subflows, ..limits })
        .map_err(SystemError::Multipath)
}

/// Of the table that first subflows use: below those of networks.
const NUMBER: u8 = 1;
