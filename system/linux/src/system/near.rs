//! Table of near destinations, and the blocking routes of the kill switch.
//!
//! Both are a second layer in addition to nftables: flushing the rules of one opens nothing,
//! because the other still blocks.

use super::observe::{self, route_message};
use super::{PRIORITY, System, SystemError, is_absent, refused};
use crate::desired::near::near;
use crate::desired::{
    Hop, KILL_TABLE, MAIN_TABLE, NEAR_TABLE, NearPolicy, Object, RouteKey, Rule, UNICAST, UPLINK_TABLE,
    capture,
};
use crate::direct::NETWORK_MASK;
use crate::journal::Entry;
use crate::udp::OUTER_MARK;

impl System {
    /// Keeps routes of the main table outside the tunnel that the policy permits.
    ///
    /// # Errors
    /// The kernel refuses; what was added stays in the journal.
    pub async fn stay_near(&mut self, policy: NearPolicy) -> Result<(), SystemError> {
        self.enter(Entry::NearTable)?;
        self.ledger().desired.set_near(Some(policy.clone()));
        self.copy_near(&policy).await?;
        for ipv6 in [false, true] {
            self.enter(Entry::UplinkRule { ipv6 })?;
            for rule in uplink_rules(ipv6) {
                self.put_rule(rule).await?;
            }
            self.enter_rule(Entry::NearRule { ipv6 }, rule(ipv6)).await?;
        }
        Ok(())
    }

    /// Fills the table before its rule exists; afterwards the keeper follows the main table.
    async fn copy_near(&self, policy: &NearPolicy) -> Result<(), SystemError> {
        let (handle, connection) = connection()?;
        let desired = self.ledger().desired.clone();
        let dump = observe::dump(&handle, &desired).await;
        connection.abort();
        let dump = dump?;
        let _turn = self.turn.lock().await;
        let copies = near(policy, &dump.observed).0;
        for (key, hop) in &copies {
            let request = self.handle.route().add(route_message(key, hop)).replace();
            if let Err(error) = request.execute().await {
                // The interface may have gone down meanwhile.
                tracing::debug!(%error, to = %key.to, "a near destination is not copied");
            }
        }
        for route in &dump.observed.routes {
            let is_kept = copies.iter().any(|(key, _)| *key == route.key);
            let is_copied = [NEAR_TABLE, UPLINK_TABLE].contains(&route.key.table);
            if is_copied && !is_kept {
                self.delete_route(dump.routes[route.id].clone()).await?;
            }
        }
        Ok(())
    }

    pub(super) async fn undo_near(&self) -> Result<(), SystemError> {
        self.ledger().desired.set_near(None);
        self.wait_for_keeper().await;
        self.empty(UPLINK_TABLE).await?;
        self.empty(NEAR_TABLE).await
    }

    /// Adds the rules and the unreachable route that block traffic outside the tunnel, even without
    /// nftables.
    pub(super) async fn block(&mut self) -> Result<(), SystemError> {
        self.ledger().desired.own(KILL_TABLE, true);
        // Early at boot, and in a new namespace, it may be down, and then accepts no routes.
        self.link_up("lo").await?;
        for ipv6 in [false, true] {
            self.enter(Entry::Block { ipv6 })?;
            let (key, hop) = self.nowhere(ipv6)?;
            match self.put_route(route_message(&key, &hop)).await {
                // The address family is not supported here.
                Err(error) if is_absent(&error) => continue,
                other => other.map_err(|source| refused("block all routes".to_owned(), source))?,
            }
            for rule in block_rules(ipv6) {
                self.put_rule(rule).await?;
            }
        }
        Ok(())
    }

    pub(super) async fn undo_block(&self, ipv6: bool) -> Result<(), SystemError> {
        for rule in block_rules(ipv6) {
            self.remove_rule(rule).await?;
        }
        let (key, hop) = self.nowhere(ipv6)?;
        self.forget(&Object::Route(key));
        self.wait_for_keeper().await;
        self.delete_route(route_message(&key, &hop)).await
    }

    pub(super) fn block_entries(&self) -> Vec<Entry> {
        let mut entries = self.entries();
        entries.retain(|entry| matches!(entry, Entry::Block { .. }));
        entries
    }

    /// Returns the blocking route. An unreachable IPv4 route would also make reverse path filtering
    /// reject all received packets and ARP requests (loose mode of RFC 3704 requires some route to
    /// the source), so IPv4 is routed to the loopback interface, where packets are dropped.
    fn nowhere(&self, ipv6: bool) -> Result<(RouteKey, Hop), SystemError> {
        let any: std::net::IpAddr = if ipv6 {
            std::net::Ipv6Addr::UNSPECIFIED.into()
        } else {
            std::net::Ipv4Addr::UNSPECIFIED.into()
        };
        let key = RouteKey {
            table: KILL_TABLE,
            to: hawser_units::Net::new(any, 0),
            metric: if ipv6 { IPV6_METRIC } else { 0 },
        };
        let hop = Hop {
            kind: if ipv6 { UNREACHABLE } else { UNICAST },
            device: (!ipv6).then_some(self.index("lo")?),
            gateway: None,
            source: None,
        };
        Ok((key, hop))
    }

    /// Returns the interface of another VPN that already takes all traffic of this machine.
    ///
    /// # Errors
    /// The kernel does not answer.
    pub async fn full_tunnel(&self, own: &str) -> Result<Option<String>, SystemError> {
        let (handle, connection) = connection()?;
        let desired = self.ledger().desired.clone();
        let dump = observe::dump(&handle, &desired).await;
        connection.abort();
        Ok(capture::full_tunnel(&dump?.observed, own))
    }

    /// Returns our rules with the conditions of `wanted`, at any priority.
    pub(super) async fn rules_like(&self, wanted: Rule) -> Vec<Rule> {
        let Ok((handle, connection)) = connection() else {
            return Vec::new();
        };
        let found = observe::own_rules(&handle, wanted.ipv6).await;
        connection.abort();
        let found = found.into_iter();
        found.filter(|rule| rule.at(wanted.priority) == wanted).collect()
    }

    async fn empty(&self, table: u32) -> Result<(), SystemError> {
        for route in self.table_routes(table).await? {
            self.delete_route(route).await?;
        }
        Ok(())
    }
}

/// Opens a separate connection, because each supports one dump at a time.
fn connection() -> Result<(rtnetlink::Handle, tokio::task::JoinHandle<()>), SystemError> {
    let (connection, handle, _) = rtnetlink::new_connection()?;
    Ok((handle, crate::tasks::spawn(connection)))
}

/// Returns the rule for near destinations, which precedes the tunnel's.
pub(super) fn rule(ipv6: bool) -> Rule {
    Rule::new(ipv6, PRIORITY, NEAR_TABLE)
}

/// Returns the rules for uplinks whose default routes are not in the main table: these are used by
/// outer packets and by renewals of leases, for which the main table has no route.
pub(super) fn uplink_rules(ipv6: bool) -> [Rule; 2] {
    let outer = Rule {
        mark: Some((OUTER_MARK, NETWORK_MASK)),
        ..Rule::new(ipv6, PRIORITY - 1, UPLINK_TABLE)
    };
    let renewals = Rule {
        table: UPLINK_TABLE,
        ..lease_rule(ipv6, PRIORITY - 2)
    };
    [outer, renewals]
}

/// Returns the rule that routes renewals of leases by the main table, before the tunnel's rule: a
/// DHCP client that is not bound to the interface would otherwise send them into the tunnel, with
/// the interface's hardware address (RFC 2131 section 4.4.5, RFC 8415 section 18.2.4).
pub(super) fn lease_rule(ipv6: bool, priority: u32) -> Rule {
    let (from, to) = if ipv6 { (546, 547) } else { (68, 67) };
    Rule {
        ports: Some((UDP, from, to)),
        ..Rule::new(ipv6, priority, MAIN_TABLE)
    }
}

/// Returns the rules after the tunnel's: the first permits packets with which an interface keeps
/// its address, the last blocks all others.
fn block_rules(ipv6: bool) -> [Rule; 2] {
    [
        lease_rule(ipv6, PRIORITY + 2),
        Rule {
            mark: Some((OUTER_MARK, NETWORK_MASK)),
            is_inverted: true,
            ..Rule::new(ipv6, PRIORITY + 3, KILL_TABLE)
        },
    ]
}

/// Number of UDP in IP headers: `IPPROTO_UDP` of linux/in.h.
const UDP: u8 = 17;
/// The kernel's number of unreachable routes: `RTN_UNREACHABLE` of linux/rtnetlink.h.
const UNREACHABLE: u8 = 7;
/// Metric that the kernel gives to IPv6 routes without one: `IP6_RT_PRIO_USER` of
/// linux/ipv6_route.h.
const IPV6_METRIC: u32 = 1024;
