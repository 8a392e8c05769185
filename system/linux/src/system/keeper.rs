//! Keeps the kernel in the desired state: dumps, notifications and repairs around
//! [`Reconciler`](crate::desired::reconciler::Reconciler).
//!
//! One task per process, started by [`System::keep`]. It reads the kernel's state after netlink
//! notifications of rules, routes, addresses, links, settings or nftables, and twice a second.
//! Tables of nftables are printed only when the generation of the ruleset has changed. After each
//! dump it pauses four times the dump's duration (long on a router with a full routing table), so
//! the task uses at most 20 % of a processor.

use std::io;
use std::time::Duration;

use hawser_units::Instant;
use netlink_sys::{AsyncSocket, AsyncSocketExt, Socket, SocketAddr, TokioSocket};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use super::error::with_sources;
use super::nft_tables::replace_table;
use super::observe::{self, Dump, print_table, print_tables, route_message, rule_message};
use super::settings::{read_sysctl, sysctl_path};
use super::{System, SystemError, is_absent, is_there, refused};
use crate::clock;
use crate::desired::difference::{Cause, Repair};
use crate::desired::reconciler::{Action, Event, Reconciler};
use crate::desired::{Desired, Object, ObservedMultipath, Wanted};
use crate::journal::Entry;
use crate::mptcp::{Endpoint, PathManager};

/// Task that keeps the kernel in the desired state until it is dropped.
pub struct Keeper(JoinHandle<()>);

impl Drop for Keeper {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl System {
    /// Starts a task that keeps the kernel in the desired state. Must be called within a tokio
    /// runtime.
    ///
    /// # Errors
    /// No netlink socket is available.
    pub fn keep(&self) -> Result<Keeper, SystemError> {
        let (asking, handle, _) = rtnetlink::new_connection()?;
        crate::tasks::spawn(asking);
        let (tell, notified) = mpsc::channel(1);
        crate::tasks::spawn(forward(listen(ROUTE, &GROUPS)?, tell.clone()));
        match listen(NETFILTER, &[TABLES_GROUP]) {
            Ok(socket) => drop(crate::tasks::spawn(forward(socket, tell))),
            Err(error) => tracing::debug!(%error, "nftables does not notify: its tables are polled"),
        }
        let generations = Socket::new(NETFILTER).ok();
        let shell = Shell {
            system: self.clone(),
            handle,
            machine: Reconciler::new(clock::now()),
            dump: Dump::default(),
            generations,
            multipath: None,
            generation: None,
            took: Duration::ZERO,
        };
        Ok(Keeper(crate::tasks::spawn(shell.run(notified))))
    }

    /// Returns notices for the operator about other programs and networks, for `status`.
    #[must_use]
    pub fn notices(&self) -> Vec<String> {
        self.ledger().notices.clone()
    }

    /// Returns how often a table was reinstalled because another program removed or changed it. The
    /// owner of its sets must then fill them again.
    #[must_use]
    pub fn reinstalled(&self, table: &str) -> u64 {
        self.ledger().reinstalled.get(table).copied().unwrap_or(0)
    }
}

/// Opens a socket that receives notifications of changes. Their contents are not read, because a
/// dump follows.
fn listen(protocol: isize, groups: &[u32]) -> io::Result<TokioSocket> {
    let mut socket = TokioSocket::new(protocol)?;
    socket.socket_mut().bind(&SocketAddr::new(0, 0))?;
    for group in groups {
        socket.socket_mut().add_membership(*group)?;
    }
    Ok(socket)
}

async fn forward(socket: TokioSocket, tell: mpsc::Sender<()>) {
    loop {
        let mut buffer = Vec::with_capacity(NOTIFICATION);
        // An overrun (ENOBUFS) is a notification, too.
        let _ = socket.recv_from(&mut buffer).await;
        if matches!(tell.try_send(()), Err(mpsc::error::TrySendError::Closed(()))) {
            return;
        }
        tokio::task::yield_now().await;
    }
}

struct Shell {
    system: System,
    handle: rtnetlink::Handle,
    machine: Reconciler,
    dump: Dump,
    generations: Option<Socket>,
    /// Path manager of MPTCP, opened when one of its objects is desired.
    multipath: Option<PathManager>,
    /// Generation of the ruleset when its tables were printed.
    generation: Option<u32>,
    /// Duration of the latest dump.
    took: Duration,
}

impl Shell {
    async fn run(mut self, mut notified: mpsc::Receiver<()>) {
        loop {
            self.work().await;
            // Limit the share of processor time.
            tokio::time::sleep((self.took * PAUSE).min(MAX_PAUSE)).await;
            let now = clock::now();
            let due = self.machine.poll_timeout().map_or(now, |(at, _)| at);
            let wait = Duration::from_nanos(due.as_nanos().saturating_sub(clock::now().as_nanos()));
            tokio::select! {
                heard = notified.recv() => {
                    if heard.is_none() {
                        return;
                    }
                    self.machine.handle_notification(clock::now());
                }
                () = tokio::time::sleep(wait) => {}
            }
            self.machine.handle_timeout(clock::now());
        }
    }

    /// Executes the machine's outputs.
    async fn work(&mut self) {
        // No other task changes the system between a dump and the resulting repairs.
        let turn = self.system.turn.clone();
        let _turn = turn.lock().await;
        while let Some(action) = self.machine.poll_transmit() {
            match action {
                Action::Dump => self.read(clock::now()).await,
                Action::Repair(object, repair) => {
                    if let Err(error) = self.repair(&object, repair).await {
                        let error = with_sources(&error);
                        self.machine.handle_failure(object, error, clock::now());
                    }
                }
            }
        }
        while let Some(event) = self.machine.poll_event() {
            log(&event);
        }
    }

    async fn read(&mut self, now: Instant) {
        let desired = self.system.ledger().desired.clone();
        match observe::dump(&self.handle, &desired).await {
            Ok(mut dump) => {
                dump.observed.multipath = self.read_multipath(&desired);
                self.took = Duration::from_nanos(clock::now().as_nanos().saturating_sub(now.as_nanos()));
                let tables = self.dump.observed.tables.take();
                self.dump = dump;
                let generation = self.generations.as_ref().and_then(observe::generation);
                let is_known = tables
                    .as_ref()
                    .is_some_and(|known| desired.tables().all(|table| known.contains_key(table)));
                if is_known && generation.is_some() && generation == self.generation {
                    self.dump.observed.tables = tables;
                } else {
                    self.dump.observed.tables = Some(print_tables(&desired));
                    self.generation = generation;
                }
                self.machine.handle_dump(&desired, &self.dump.observed, now);
                self.note();
            }
            Err(error) => {
                tracing::debug!(error = with_sources(&error), "the kernel cannot be read");
                self.machine.handle_no_dump(now);
            }
        }
    }

    async fn repair(&mut self, object: &Object, repair: Repair) -> Result<(), SystemError> {
        match repair {
            Repair::Install(table) => self.install(&table),
            Repair::Write(key, value) => self.write(&key, &value),
            Repair::Up(name) => self.system.set_up(&name).await,
            Repair::SetMtu(name, mtu) => self.system.put_mtu(&name, mtu).await,
            Repair::Attach(name, bridge) => self.system.attach(&name, bridge).await,
            Repair::PutEndpoint(endpoint) => self.put_endpoint(&endpoint),
            Repair::RaiseSubflows(least) => self.raise_subflows(least),
            Repair::SetResolvers(name) => self.system.restore_resolvers(&name),
            Repair::AddAddress(index, address, prefix) => {
                self.system.put_address(index, address, prefix).await
            }
            Repair::ReplaceRoute(key, hop) => {
                let request = self.handle.route().add(route_message(&key, &hop)).replace();
                match request.execute().await {
                    Err(error) if is_absent(&error) => Ok(()),
                    other => other.map_err(|source| refused(format!("restore a {object}"), source)),
                }
            }
            Repair::RemoveRoute(id) => {
                let route = self.dump.routes.get(id).cloned();
                match route {
                    Some(route) => self.system.delete_route(route).await,
                    None => Ok(()),
                }
            }
            Repair::AddRule(rule) => {
                let mut request = self.handle.rule().add();
                *request.message_mut() = rule_message(&rule);
                match request.execute().await {
                    Err(error) if is_absent(&error) || is_there(&error) => Ok(()),
                    other => other.map_err(|source| refused(format!("restore a {object}"), source)),
                }
            }
            Repair::RemoveRule(id) => {
                let Some(rule) = self.dump.rules.get(id).cloned() else {
                    return Ok(());
                };
                match self.handle.rule().del(rule).execute().await {
                    Err(error) if is_absent(&error) => Ok(()),
                    other => other.map_err(|source| refused("remove a routing rule".to_owned(), source)),
                }
            }
            Repair::MoveBefore(priority) => {
                self.system.ledger().desired.move_before(priority);
                Ok(())
            }
        }
    }

    /// Installs a table again, if it is still desired.
    fn install(&mut self, table: &str) -> Result<(), SystemError> {
        let mut ledger = self.system.ledger();
        let object = Object::Table(table.to_owned());
        let Some(Wanted::Table { body, .. }) = ledger.desired.value(&object).cloned() else {
            return Ok(());
        };
        replace_table(table, &body)?;
        let printed = print_table(table).unwrap_or_default();
        ledger.desired.want(object, Wanted::Table { body, printed });
        *ledger.reinstalled.entry(table.to_owned()).or_default() += 1;
        Ok(())
    }

    /// Writes a setting again. The value set by another program is the one restored at the end.
    fn write(&mut self, key: &str, value: &str) -> Result<(), SystemError> {
        let failed = |source| SystemError::Sysctl {
            key: key.to_owned(),
            source,
        };
        let object = Object::Setting(key.to_owned());
        let is_wanted = self.system.ledger().desired.value(&object).is_some();
        let old = read_sysctl(key).map_err(failed)?;
        if !is_wanted || old == value {
            return Ok(());
        }
        let entry = Entry::Sysctl {
            key: key.to_owned(),
            old,
            new: value.to_owned(),
        };
        self.system.replace_entry(
            entry,
            |known| matches!(known, Entry::Sysctl { key: known, .. } if known == key),
        )?;
        std::fs::write(sysctl_path(key), value).map_err(failed)
    }

    /// Reads MPTCP's path manager, if one of its objects is desired.
    fn read_multipath(&mut self, desired: &Desired) -> Option<ObservedMultipath> {
        if !desired.has_multipath() {
            return None;
        }
        if self.multipath.is_none() {
            self.multipath = PathManager::open().ok();
        }
        let manager = self.multipath.as_ref()?;
        Some(ObservedMultipath {
            endpoints: manager.endpoints().ok()?,
            subflows: manager.limits().ok()?.subflows,
        })
    }

    /// Adds an endpoint again, if it is still desired.
    fn put_endpoint(&self, endpoint: &Endpoint) -> Result<(), SystemError> {
        // Locked until the endpoint exists, so that no other task removes it meanwhile.
        let ledger = self.system.ledger();
        let wanted = ledger.desired.value(&Object::Endpoint(endpoint.address));
        let Some(manager) = self
            .multipath
            .as_ref()
            .filter(|_| wanted == Some(&Wanted::Endpoint(*endpoint)))
        else {
            return Ok(());
        };
        manager
            .remove(endpoint.address)
            .and_then(|()| manager.add(endpoint))
            .map_err(SystemError::Multipath)
    }

    fn raise_subflows(&mut self, least: u32) -> Result<(), SystemError> {
        match &self.multipath {
            Some(manager) => self.system.raise_subflows(manager, least),
            None => Ok(()),
        }
    }

    /// Publishes the state for `status`.
    fn note(&self) {
        let routes = self.machine.refused().iter().map(|route| {
            format!(
                "{} has a route to {} that bypasses the tunnel; it is ignored (the key `local` permits it)",
                route.device, route.to
            )
        });
        let nested = self.machine.nested().map(nested);
        self.system.ledger().notices = routes.chain(nested).collect();
    }
}

fn log(event: &Event) {
    match event {
        Event::Restored(object, cause @ Cause::Captured { .. }) => {
            tracing::warn!("{cause} ({object}): the tunnel's rules now precede it");
        }
        Event::Restored(object, cause @ Cause::Added) => {
            tracing::warn!("{object} is removed: {cause}");
        }
        Event::Restored(object, cause) => tracing::warn!("{object} is restored: {cause}"),
        Event::Insists(object) => tracing::error!(
            "another program changes {object} repeatedly: stop it, or change its configuration"
        ),
        Event::Refused(route) => tracing::warn!(
            network = route.device,
            to = %route.to,
            gateway = route.gateway.map(tracing::field::display),
            "a route of this network would bypass the tunnel: it is ignored (the key `local` permits it)"
        ),
        Event::Nested(device) => tracing::warn!("{}", nested(device)),
        Event::Failed(object, error) => tracing::error!(error, "{object} cannot be restored"),
    }
}

fn nested(device: &str) -> String {
    format!("another VPN ({device}) routes all traffic first: its packets use the tunnel")
}

/// `NETLINK_ROUTE` of `linux/netlink.h`.
const ROUTE: isize = 0;
/// Links, addresses, routes, rules and settings of both families: `RTNLGRP_LINK`, `_IPV4_IFADDR`,
/// `_IPV4_ROUTE`, `_IPV4_RULE`, `_IPV6_IFADDR`, `_IPV6_ROUTE`, `_IPV6_RULE`, `_IPV4_NETCONF` and
/// `_IPV6_NETCONF` of `linux/rtnetlink.h`.
const GROUPS: [u32; 9] = [1, 5, 7, 8, 9, 11, 19, 24, 25];
/// `NETLINK_NETFILTER` of `linux/netlink.h`.
const NETFILTER: isize = 12;
/// `NFNLGRP_NFTABLES` of `linux/netfilter/nfnetlink.h`.
const TABLES_GROUP: u32 = 7;
/// Room for one datagram of notifications; the rest of a larger one is not needed. Source: the
/// example of netlink(7), whose buffer has this size so that messages are not truncated.
const NOTIFICATION: usize = 8192;
/// Pause after a dump, in times that the dump took. Source: our choice, so that dumps take at most
/// a fifth of a processor.
const PAUSE: u32 = 4;
/// Longest pause after a dump. Source: our choice; it bounds the time for which a change without a
/// notification stays, on a machine whose dumps take more than 2 s.
const MAX_PAUSE: Duration = Duration::from_secs(10);
