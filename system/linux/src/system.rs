//! Changes to the system: addresses, routes, rules, nftables, sysctls, resolvers; each journalled
//! and undone.

mod bridge;
mod bridge_port;
pub(crate) mod error;
mod keeper;
mod kill_switch;
mod lease;
mod led_subnets;
mod member_routes;
mod messages;
mod multipath;
mod near;
mod network_tables;
mod observe;
pub(crate) mod program;
mod stations;
pub mod switch;

use std::collections::BTreeMap;
use std::ffi::CString;
use std::io;
use std::net::IpAddr;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use futures_util::TryStreamExt;
use rtnetlink::packet_route::address::{AddressAttribute, AddressHeaderFlags, AddressMessage};
use rtnetlink::packet_route::route::{RouteAttribute, RouteMessage, RouteScope, RouteType};
use rtnetlink::{Handle, LinkMessageBuilder, LinkUnspec};

use crate::desired::{
    Desired, FIRST_PRIORITY, MAIN_TABLE, Object, Rule as RoutingRule, STRICT_FOR_ALL, Setting,
    TUNNEL_TABLE as TABLE, Wanted,
};
use crate::direct::{Elements, NETWORK_MASK, half};
use crate::journal::{Entry, Journal, Rule};
use crate::offload;
use crate::udp::OUTER_MARK;
pub use error::{SystemError, with_sources};
pub use keeper::Keeper;
pub use kill_switch::KillSwitch;
pub use lease::LeasedAddress;
pub use member_routes::MemberRoute;
use program::run;

/// The system and what was changed in it. Copies share one journal, so whoever undoes, undoes what
/// all of them have done.
#[derive(Clone)]
pub struct System {
    handle: Handle,
    ledger: Arc<Mutex<Ledger>>,
    /// Held while something is changed by netlink, so that nobody repairs what is about to go.
    turn: Arc<tokio::sync::Mutex<()>>,
    journal_path: String,
}

struct Ledger {
    journal: Journal,
    /// What a crash left and nobody has asked for again.
    left: Vec<Entry>,
    /// What the kernel should hold now.
    desired: Desired,
    /// What an operator should know of other programs and of networks.
    notices: Vec<String>,
    /// How often each table has been installed again.
    reinstalled: BTreeMap<String, u64>,
}

impl System {
    /// Opens the journal. What a crash left stays until [`undo_left`](Self::undo_left), and tables
    /// and settings that are asked for again by then are taken over as they stand. Must be called
    /// within a tokio runtime.
    ///
    /// # Errors
    /// No netlink socket, or the journal cannot be read.
    pub async fn open(journal: &Path) -> Result<Self, SystemError> {
        let journal_path = journal.display().to_string();
        let opened = Journal::open(journal).map_err(|source| SystemError::Journal {
            path: journal_path.clone(),
            source,
        })?;
        if opened.unknown() > 0 {
            tracing::warn!(
                journal = journal_path,
                lines = opened.unknown(),
                "the journal tells of changes that this version of Hawser does not know: they stay, undo them with the version that made them"
            );
        }
        let (connection, handle, _) = rtnetlink::new_connection()?;
        crate::tasks::spawn(connection);
        Ok(Self {
            handle,
            ledger: Arc::new(Mutex::new(Ledger {
                left: opened.entries().to_vec(),
                journal: opened,
                desired: Desired::default(),
                notices: Vec::new(),
                reinstalled: BTreeMap::new(),
            })),
            turn: Arc::default(),
            journal_path,
        })
    }

    /// Undoes what a crash left and has not been asked for again.
    pub async fn undo_left(&mut self) {
        let left = std::mem::take(&mut self.ledger().left);
        if !left.is_empty() {
            self.undo_all(&left).await;
            tracing::info!(changes = left.len(), "undid what an earlier run had left behind");
        }
    }

    /// Undoes of what a crash left the resolvers: while they are those of a tunnel that is gone, no
    /// name resolves.
    pub async fn undo_left_resolvers(&mut self) {
        self.undo_of_left(|entry| matches!(entry, Entry::Resolvers { .. }))
            .await;
    }

    /// Undoes of what a crash left that which `is_meant`.
    async fn undo_of_left(&mut self, is_meant: impl Fn(&Entry) -> bool) {
        let meant: Vec<_> = {
            let mut ledger = self.ledger();
            let (meant, others) = ledger.left.drain(..).partition(is_meant);
            ledger.left = others;
            meant
        };
        self.undo_all(&meant).await;
    }

    /// Undoes everything. What cannot be undone is logged and stays in the journal.
    pub async fn undo(&mut self) {
        self.ledger().left.clear();
        self.forget_all().await;
        let entries = self.entries();
        self.undo_all(&entries).await;
    }

    /// Nothing is desired any more.
    async fn forget_all(&self) {
        self.ledger().desired.clear();
        self.wait_for_keeper().await;
    }

    /// Waits until no repair is under way that follows from what was desired before.
    async fn wait_for_keeper(&self) {
        drop(self.turn.lock().await);
    }

    fn want(&self, object: Object, wanted: Wanted) {
        self.ledger().desired.want(object, wanted);
    }

    fn forget(&self, object: &Object) {
        self.ledger().desired.forget(object);
    }

    /// The latest first.
    async fn undo_all(&mut self, entries: &[Entry]) {
        for entry in entries.iter().rev() {
            match self.undo_one(entry).await {
                Ok(()) => {
                    if let Err(error) = self.ledger().journal.strike(entry) {
                        tracing::warn!(%error, journal = self.journal_path, "cannot update the journal");
                    }
                }
                Err(error) => {
                    let error: &dyn std::error::Error = &error;
                    tracing::warn!(error, ?entry, "cannot undo a change");
                }
            }
        }
    }

    /// Brings an interface up.
    ///
    /// # Errors
    /// It does not exist or the kernel refuses.
    pub async fn link_up(&self, interface: &str) -> Result<(), SystemError> {
        self.index(interface)?;
        let _turn = self.turn.lock().await;
        self.want(Object::Link(interface.to_owned()), Wanted::Up);
        self.set_up(interface).await
    }

    async fn set_up(&self, interface: &str) -> Result<(), SystemError> {
        let index = self.index(interface)?;
        let up = LinkMessageBuilder::<LinkUnspec>::new().index(index).up().build();
        self.handle
            .link()
            .set(up)
            .execute()
            .await
            .map_err(|source| refused(format!("bring {interface} up"), source))
    }

    /// Sets the MTU of an interface of Hawser's own, which nobody else may change.
    ///
    /// # Errors
    /// It does not exist or the kernel refuses.
    pub async fn set_mtu(&self, interface: &str, mtu: u16) -> Result<(), SystemError> {
        self.index(interface)?;
        let _turn = self.turn.lock().await;
        self.want(Object::Mtu(interface.to_owned()), Wanted::Mtu(mtu.into()));
        self.put_mtu(interface, mtu.into()).await
    }

    async fn put_mtu(&self, interface: &str, mtu: u32) -> Result<(), SystemError> {
        let index = self.index(interface)?;
        let change = LinkMessageBuilder::<LinkUnspec>::new()
            .index(index)
            .mtu(mtu)
            .build();
        self.handle
            .link()
            .set(change)
            .execute()
            .await
            .map_err(|source| refused(format!("set the MTU of {interface} to {mtu} bytes"), source))
    }

    /// Adds an address to an interface; one that is there already is as good.
    ///
    /// # Errors
    /// The interface does not exist or the kernel refuses.
    pub async fn add_address(&self, interface: &str, address: IpAddr, prefix: u8) -> Result<(), SystemError> {
        let index = self.index(interface)?;
        let _turn = self.turn.lock().await;
        let object = Object::Address(interface.to_owned(), address);
        let added = self.put_address(index, address, prefix).await;
        if added.is_ok() {
            self.want(object, Wanted::Prefix(prefix));
        }
        added
    }

    async fn put_address(&self, index: u32, address: IpAddr, prefix: u8) -> Result<(), SystemError> {
        let mut request = self.handle.address().add(index, address, prefix).replace();
        // Nobody else can have it, and until that was asked the address could not be used.
        request.message_mut().header.flags |= AddressHeaderFlags::Nodad;
        let result = request.execute().await;
        let what = || format!("give the interface the address {address}/{prefix}");
        result.map_err(|source| refused(what(), source))
    }

    /// Removes all addresses of an interface but these.
    ///
    /// # Errors
    /// The interface does not exist or the kernel refuses.
    pub async fn keep_addresses(&self, interface: &str, keep: &[IpAddr]) -> Result<(), SystemError> {
        let is_kept = |address: &AddressMessage| {
            let own = |attribute: &AddressAttribute| matches!(attribute, AddressAttribute::Address(address) if keep.contains(address));
            address.attributes.iter().any(own)
        };
        let index = self.index(interface)?;
        let _turn = self.turn.lock().await;
        self.ledger().desired.retain(|object| {
            !matches!(object, Object::Address(name, address) if name == interface && !keep.contains(address))
        });
        let failed = |source| refused(format!("take the addresses of {interface}"), source);
        let mut addresses = self.handle.address().get().set_link_index_filter(index).execute();
        while let Some(address) = addresses.try_next().await.map_err(failed)? {
            if is_kept(&address) {
                continue;
            }
            self.handle
                .address()
                .del(address)
                .execute()
                .await
                .map_err(failed)?;
        }
        Ok(())
    }

    /// Sends what the tunnel's routing table sees into `interface`. Sockets that do not choose get
    /// the address `source`; the interface's first where it is `None`.
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

    /// Says of everything that the tunnel's routing table sees that nothing leads there.
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

    /// Adds the rules that lead everything but outer packets and near destinations into the tunnel.
    ///
    /// # Errors
    /// The kernel refuses; what was added stays in the journal.
    pub async fn tunnel_rules(&mut self, ipv6: bool) -> Result<(), SystemError> {
        // The rule that catches comes last.
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

    /// Sets a kernel setting (`key`: its path below `/proc/sys`), remembering the old value.
    ///
    /// # Errors
    /// There is no such setting or no right to change it.
    pub fn sysctl(&mut self, key: &str, new: &str) -> Result<(), SystemError> {
        let failed = |source| SystemError::Sysctl {
            key: key.to_owned(),
            source,
        };
        let old = read_sysctl(key).map_err(failed)?;
        self.want(
            Object::Setting(key.to_owned()),
            Wanted::Setting(Setting::Is(new.to_owned())),
        );
        if old == new {
            // Set by an earlier run: what was there before that one is still what to go back to.
            self.ledger()
                .left
                .retain(|left| !matches!(left, Entry::Sysctl { key: left, .. } if left == key));
            return Ok(());
        }
        self.enter(Entry::Sysctl {
            key: key.to_owned(),
            old,
            new: new.to_owned(),
        })?;
        std::fs::write(sysctl_path(key), new).map_err(failed)
    }

    /// Enters a change in place of the entries that `is_meant`.
    fn replace_entry(&self, entry: Entry, is_meant: impl Fn(&Entry) -> bool) -> Result<(), SystemError> {
        let mut ledger = self.ledger();
        let before: Vec<_> = ledger
            .journal
            .entries()
            .iter()
            .filter(|known| is_meant(known))
            .cloned()
            .collect();
        let failed = |source| SystemError::Journal {
            path: self.journal_path.clone(),
            source,
        };
        ledger.journal.enter(entry.clone()).map_err(failed)?;
        for known in before.into_iter().filter(|known| *known != entry) {
            ledger.left.retain(|left| *left != known);
            ledger.journal.strike(&known).map_err(failed)?;
        }
        Ok(())
    }

    /// Lets answers of the hub come back through an interface that is not the routing table's first
    /// choice: strict reverse path filtering (RFC 3704) would drop them, so it becomes loose.
    ///
    /// # Errors
    /// The setting cannot be changed.
    pub fn loosen_reverse_path(&mut self, interface: &str) -> Result<(), SystemError> {
        let own = format!("net/ipv4/conf/{interface}/rp_filter");
        let effective = [own.as_str(), STRICT_FOR_ALL]
            .iter()
            .filter_map(|key| read_sysctl(key).ok()?.parse::<u8>().ok())
            .max();
        if effective == Some(1) {
            self.sysctl(&own, "2")?;
        }
        self.want(Object::Setting(own), Wanted::Setting(Setting::NotStrict));
        Ok(())
    }

    /// Prepares an interface by which outer packets leave: answers come in although the routing
    /// table prefers another one ([`loosen_reverse_path`](Self::loosen_reverse_path)), and of two
    /// interfaces in one subnet each answers for its own address alone. Otherwise the router learns
    /// the wrong Ethernet address of one of them.
    ///
    /// # Errors
    /// A setting cannot be changed.
    pub fn prepare_uplink(&mut self, interface: &str) -> Result<(), SystemError> {
        let loosened = self.loosen_reverse_path(interface);
        for (key, value) in [("arp_ignore", "1"), ("arp_announce", "2")] {
            self.sysctl(&format!("net/ipv4/conf/{interface}/{key}"), value)?;
        }
        loosened
    }

    /// Keeps the tunnel's interface from following routers and redirects inside of the tunnel: who
    /// sends them there could put the prefix of a local network on it.
    ///
    /// # Errors
    /// A setting cannot be changed.
    pub fn ignore_routers(&mut self, interface: &str) -> Result<(), SystemError> {
        for (family, key) in [
            ("ipv6", "accept_ra"),
            ("ipv6", "autoconf"),
            ("ipv6", "accept_redirects"),
            ("ipv4", "accept_redirects"),
        ] {
            match self.sysctl(&format!("net/{family}/conf/{interface}/{key}"), "0") {
                // A kernel without IPv6 has no such setting.
                Err(SystemError::Sysctl { source, .. }) if source.kind() == io::ErrorKind::NotFound => {}
                other => other?,
            }
        }
        Ok(())
    }

    /// Lets the machine forward IPv6. A router does not listen to other routers (RFC 4861 section
    /// 6.2.5), so interfaces that got their default route that way are told to go on listening
    /// first.
    ///
    /// # Errors
    /// A setting cannot be changed.
    pub fn forward_ipv6(&mut self) -> Result<(), SystemError> {
        let directory = Path::new("/proc/sys/net/ipv6/conf");
        for entry in std::fs::read_dir(directory)?.flatten() {
            let Some(name) = entry.file_name().to_str().map(ToOwned::to_owned) else {
                continue;
            };
            let key = format!("net/ipv6/conf/{name}/accept_ra");
            if read_sysctl(&key).is_ok_and(|value| value == "1")
                && !["all", "default", "lo"].contains(&name.as_str())
            {
                self.sysctl(&key, "2")?;
            }
        }
        self.sysctl("net/ipv6/conf/all/forwarding", "1")
    }

    /// Installs a table of the `inet` family; `body` is what stands between its braces. A table of
    /// that name is replaced at once.
    ///
    /// # Errors
    /// `nft` is missing or refuses; the table is as before.
    pub fn nft_table(&mut self, table: &str, body: &str) -> Result<(), SystemError> {
        self.enter(Entry::NftTable {
            table: table.to_owned(),
        })?;
        // Nobody repairs the table meanwhile.
        let mut ledger = self.ledger();
        replace_table(table, body)?;
        let wanted = Wanted::Table {
            body: body.to_owned(),
            printed: observe::print_table(table).unwrap_or_default(),
        };
        ledger.desired.want(Object::Table(table.to_owned()), wanted);
        Ok(())
    }

    /// Enters a table in the journal that [`nft_table`](Self::nft_table) will install, perhaps.
    ///
    /// # Errors
    /// The journal cannot be written.
    pub fn expect_nft_table(&mut self, table: &str) -> Result<(), SystemError> {
        self.enter(Entry::NftTable {
            table: table.to_owned(),
        })
    }

    /// Takes addresses out of sets of a table and adds others, each for a while; those that are
    /// there get the new time. `removed` need not be there.
    ///
    /// # Errors
    /// `nft` refuses, or there is no such set.
    pub fn change_elements(
        &self,
        table: &str,
        removed: &[(String, IpAddr)],
        added: &Elements,
    ) -> Result<(), SystemError> {
        let line = |what: &str, set: &str, address: IpAddr, time: &str| {
            let set = half(set, address.is_ipv6());
            format!("{what} element inet {table} {set} {{ {address}{time} }}\n")
        };
        // What is not there cannot be taken out.
        let without = |set: &str, address| line("add", set, address, "") + &line("delete", set, address, "");
        let mut script: String = removed
            .iter()
            .map(|(set, address)| without(set, *address))
            .collect();
        for (set, found) in added {
            for (address, lasts) in found {
                // One that is there keeps its time unless it goes first.
                script += &without(set, *address);
                let time = format!(" timeout {}s", lasts.as_secs().max(1));
                script += &line("add", set, *address, &time);
            }
        }
        nft(&script)
    }

    /// Removes a table that [`nft_table`](Self::nft_table) installed.
    ///
    /// # Errors
    /// `nft` refuses.
    pub fn drop_nft_table(&mut self, table: &str) -> Result<(), SystemError> {
        let entry = Entry::NftTable {
            table: table.to_owned(),
        };
        self.forget(&Object::Table(table.to_owned()));
        if !self.has_entered(&entry) {
            return Ok(());
        }
        drop_table(table)?;
        self.strike(&entry)
    }

    /// Sets the resolvers for everything, through systemd-resolved or resolvconf.
    ///
    /// # Errors
    /// Neither program does it.
    pub fn resolvers(&mut self, interface: &str, addresses: &[IpAddr]) -> Result<(), SystemError> {
        self.enter(Entry::Resolvers {
            interface: interface.to_owned(),
        })?;
        self.set_resolvers(interface, addresses)
    }

    /// Sets the resolvers of an interface again, if they are still desired.
    fn restore_resolvers(&self, interface: &str) -> Result<(), SystemError> {
        let object = Object::Resolvers(interface.to_owned());
        let wanted = self.ledger().desired.value(&object).cloned();
        match wanted {
            Some(Wanted::Resolvers { addresses, .. }) => self.set_resolvers(interface, &addresses),
            _ => Ok(()),
        }
    }

    fn set_resolvers(&self, interface: &str, resolvers: &[IpAddr]) -> Result<(), SystemError> {
        let addresses: Vec<_> = resolvers.iter().map(ToString::to_string).collect();
        let mut dns = vec!["dns", interface];
        dns.extend(addresses.iter().map(String::as_str));
        let by_resolved =
            run("resolvectl", &dns, "").and_then(|_| run("resolvectl", &["domain", interface, "~."], ""));
        let set = by_resolved.or_else(|_| {
            let lines: String = addresses.iter().map(|a| format!("nameserver {a}\n")).collect();
            run("resolvconf", &["-a", interface, "-m", "0", "-x"], &lines)
        });
        set?;
        let recorded = observe::recorded_resolvers(interface, self.index(interface)?);
        let wanted = Wanted::Resolvers {
            addresses: resolvers.to_vec(),
            recorded: recorded.unwrap_or_default(),
        };
        self.want(Object::Resolvers(interface.to_owned()), wanted);
        Ok(())
    }

    async fn undo_one(&self, entry: &Entry) -> Result<(), SystemError> {
        match entry {
            Entry::Rule { rule, ipv6 } => self.remove_rule(value_of(*rule, *ipv6)).await,
            Entry::NearRule { ipv6 } => self.remove_rule(near::rule(*ipv6)).await,
            Entry::UplinkRule { ipv6 } => {
                for rule in near::uplink_rules(*ipv6) {
                    self.remove_rule(rule).await?;
                }
                Ok(())
            }
            Entry::NearTable => self.undo_near().await,
            Entry::Block { ipv6 } => self.undo_block(*ipv6).await,
            Entry::MarkRule { number, ipv6 } => {
                self.remove_rule(network_tables::mark_rule(*number, *ipv6)).await
            }
            Entry::SourceRule { address, number } => {
                self.remove_rule(network_tables::source_rule(*address, *number))
                    .await
            }
            Entry::NetworkTable { number } => self.empty_table(*number).await,
            Entry::MemberRule => self.remove_rule(member_routes::rule()).await,
            Entry::MultipathRule { ipv6 } => self.remove_rule(multipath::rule(*ipv6)).await,
            Entry::MultipathEndpoint { address } => {
                self.forget(&Object::Endpoint(*address));
                multipath::undo_endpoint(*address)
            }
            Entry::MultipathLimit { old, new } => {
                self.forget(&Object::Subflows);
                multipath::undo_limit(*old, *new)
            }
            Entry::ClosedTunnel { ipv6 } => self.delete_wanted(closed_tunnel(*ipv6)).await,
            Entry::NftTable { table } => {
                self.forget(&Object::Table(table.clone()));
                drop_table(table)
            }
            // One that somebody has made in its place is theirs to keep.
            Entry::Bridge { name } => match switch::remove(name) {
                Err(SystemError::NotOurs(_)) => Ok(()),
                other => other,
            },
            Entry::FramesApart { device } => {
                // The device may be gone, and its settings with it.
                let _ = offload::set_joins_packets(device, true);
                Ok(())
            }
            Entry::Sysctl { key, old, new } => {
                self.forget(&Object::Setting(key.clone()));
                undo_setting(key, old, new)
            }
            Entry::Resolvers { interface } => {
                self.forget(&Object::Resolvers(interface.clone()));
                // Either program may be the one, and the interface may be gone with its resolvers.
                let _ = run("resolvectl", &["revert", interface], "");
                let _ = run("resolvconf", &["-f", "-d", interface], "");
                Ok(())
            }
            Entry::Lease {
                interface,
                address,
                prefix,
            } => self.remove_lease(interface, *address, *prefix).await,
            Entry::Station { interface } => stations::remove(interface).await,
            Entry::Process { process } => {
                process.end().await;
                Ok(())
            }
        }
    }

    /// Removes a rule, wherever it stands by now.
    async fn remove_rule(&self, rule: RoutingRule) -> Result<(), SystemError> {
        let _turn = self.turn.lock().await;
        let moved = {
            let mut ledger = self.ledger();
            ledger.desired.forget(&Object::Rule(rule));
            ledger.desired.place(rule)
        };
        let mut places = vec![rule, moved];
        places.extend(self.rules_like(rule).await);
        places.sort_unstable();
        places.dedup();
        for place in places {
            match self
                .handle
                .rule()
                .del(observe::rule_removal(&place))
                .execute()
                .await
            {
                Err(error) if is_absent(&error) => {}
                other => other.map_err(|source| refused("remove a routing rule".to_owned(), source))?,
            }
        }
        Ok(())
    }

    async fn add_rule(&self, rule: &RoutingRule) -> Result<(), SystemError> {
        let mut request = self.handle.rule().add();
        *request.message_mut() = observe::rule_message(rule);
        request
            .execute()
            .await
            .map_err(|source| refused("add a routing rule".to_owned(), source))
    }

    fn enter(&mut self, entry: Entry) -> Result<(), SystemError> {
        let mut ledger = self.ledger();
        ledger.left.retain(|left| *left != entry);
        ledger
            .journal
            .enter(entry)
            .map_err(|source| SystemError::Journal {
                path: self.journal_path.clone(),
                source,
            })
    }

    fn strike(&mut self, entry: &Entry) -> Result<(), SystemError> {
        self.ledger()
            .journal
            .strike(entry)
            .map_err(|source| SystemError::Journal {
                path: self.journal_path.clone(),
                source,
            })
    }

    /// Never held while something is awaited.
    fn ledger(&self) -> MutexGuard<'_, Ledger> {
        self.ledger.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn entries(&self) -> Vec<Entry> {
        self.ledger().journal.entries().to_vec()
    }

    fn has_entered(&self, entry: &Entry) -> bool {
        self.ledger().journal.entries().contains(entry)
    }

    fn index(&self, interface: &str) -> Result<u32, SystemError> {
        index_of(interface).ok_or_else(|| SystemError::NoInterface(interface.to_owned()))
    }
}

/// Replaces a table at once.
pub(crate) fn replace_table(table: &str, body: &str) -> Result<(), SystemError> {
    nft(&format!(
        "table inet {table} {{}}\ndelete table inet {table}\ntable inet {table} {{\n{body}\n}}\n"
    ))
}

/// Deletes a table of the `inet` family, whether or not it is there.
pub fn drop_nft_table(table: &str) {
    if let Err(error) = drop_table(table) {
        tracing::debug!(%error, table, "a table is not deleted");
    }
}

/// The value of a rule of the tunnel.
fn value_of(rule: Rule, ipv6: bool) -> RoutingRule {
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

/// Sets a setting back, unless somebody else has set it since: theirs to keep.
fn undo_setting(key: &str, old: &str, new: &str) -> Result<(), SystemError> {
    let failed = |source| SystemError::Sysctl {
        key: key.to_owned(),
        source,
    };
    match read_sysctl(key) {
        Ok(now) if now != new => Ok(()),
        Ok(_) => std::fs::write(sysctl_path(key), old).map_err(failed),
        // The interface is gone, and its settings with it.
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(source) => Err(failed(source)),
    }
}

/// The route into the tunnel's interface.
fn tunnel_route(index: u32, ipv6: bool) -> RouteMessage {
    let mut route = messages::empty_route(TABLE, ipv6);
    // Of universal scope: the kernel does not take the interface for the link on which a router of
    // another route lies, which it looks up with scope link.
    route.header.scope = RouteScope::Universe;
    route.attributes.push(RouteAttribute::Oif(index));
    route
}

/// The route that says that there is no way, behind the other.
fn closed_tunnel(ipv6: bool) -> RouteMessage {
    let mut route = messages::empty_route(TABLE, ipv6);
    route.header.kind = RouteType::Unreachable;
    route.attributes.push(RouteAttribute::Priority(CLOSED_METRIC));
    route
}

/// The index of an interface; `None` when there is none.
fn index_of(interface: &str) -> Option<u32> {
    let name = CString::new(interface).ok()?;
    // SAFETY: the name is a terminated string that outlives the call.
    let index = unsafe { libc::if_nametoindex(name.as_ptr()) };
    (index != 0).then_some(index)
}

fn refused(what: String, source: rtnetlink::Error) -> SystemError {
    SystemError::Netlink { what, source }
}

/// Whether the kernel says that there is nothing to remove: no such rule, or no such family.
fn is_absent(error: &rtnetlink::Error) -> bool {
    says(error, &[libc::ENOENT, libc::EAFNOSUPPORT])
}

/// Whether the kernel says that what is to be added is there already.
fn is_there(error: &rtnetlink::Error) -> bool {
    says(error, &[libc::EEXIST])
}

fn says(error: &rtnetlink::Error, codes: &[libc::c_int]) -> bool {
    let rtnetlink::Error::NetlinkError(message) = error else {
        return false;
    };
    message.code.is_some_and(|code| codes.contains(&-code.get()))
}

fn sysctl_path(key: &str) -> std::path::PathBuf {
    Path::new("/proc/sys").join(key)
}

fn read_sysctl(key: &str) -> io::Result<String> {
    std::fs::read_to_string(sysctl_path(key)).map(|text| text.trim().to_owned())
}

/// Deletes a table whether or not it is there.
fn drop_table(table: &str) -> Result<(), SystemError> {
    nft(&format!("table inet {table} {{}}\ndelete table inet {table}\n"))
}

fn nft(script: &str) -> Result<(), SystemError> {
    run("nft", &["-f", "-"], script).map(drop)
}

/// More than the kernel gives to IPv6 routes (1024).
const CLOSED_METRIC: u32 = 4096;
/// Priority of the rule for near destinations; the tunnel's follows it.
const PRIORITY: u32 = FIRST_PRIORITY + 3;
