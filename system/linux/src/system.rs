//! Changes to the system: addresses, routes, rules, nftables, sysctls and resolvers, each recorded
//! in the journal and undone.

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
pub(crate) mod nft_tables;
mod observe;
pub(crate) mod program;
mod resolvers;
mod settings;
mod stations;
pub mod switch;
mod tunnel;

use std::collections::BTreeMap;
use std::ffi::CString;
use std::net::IpAddr;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use futures_util::TryStreamExt;
use rtnetlink::packet_route::address::{AddressAttribute, AddressHeaderFlags, AddressMessage};
use rtnetlink::{Handle, LinkMessageBuilder, LinkUnspec};

use crate::desired::{Desired, FIRST_PRIORITY, Object, Rule as RoutingRule, Wanted};
use crate::ethtool;
use crate::journal::{Entry, Journal};
pub use error::{SystemError, with_sources};
pub use keeper::Keeper;
pub use kill_switch::KillSwitch;
pub use lease::LeasedAddress;
pub use member_routes::MemberRoute;
pub use nft_tables::drop_nft_table;
use nft_tables::drop_table;
use program::run;
use settings::undo_setting;
use tunnel::{closed_tunnel, value_of};

/// The system and the changes made to it. Copies share one journal, so undoing through one undoes
/// the changes of all.
#[derive(Clone)]
pub struct System {
    handle: Handle,
    ledger: Arc<Mutex<Ledger>>,
    /// Lock for changes by netlink, so that the reconciler does not repair objects that are being
    /// removed.
    turn: Arc<tokio::sync::Mutex<()>>,
    journal_path: String,
}

struct Ledger {
    journal: Journal,
    /// Entries left by a crash that were not requested again.
    left: Vec<Entry>,
    /// Desired state of the kernel.
    desired: Desired,
    /// Notices for the operator about other programs and networks.
    notices: Vec<String>,
    /// Count of reinstallations of each table.
    reinstalled: BTreeMap<String, u64>,
}

impl System {
    /// Opens the journal. Changes left by a crash stay until [`undo_left`](Self::undo_left); tables
    /// and settings that are requested again before that are taken over. Must be called within a
    /// tokio runtime.
    ///
    /// # Errors
    /// No netlink socket is available, or the journal cannot be read.
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
                "the journal contains changes that this version of Hawser does not know: they are not undone; undo them with the version that made them"
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

    /// Undoes changes left by a crash that were not requested again.
    pub async fn undo_left(&mut self) {
        let left = std::mem::take(&mut self.ledger().left);
        if !left.is_empty() {
            self.undo_all(&left).await;
            tracing::info!(
                changes = left.len(),
                "undid the changes that an earlier run had left"
            );
        }
    }

    /// Restores the resolvers after a crash: while they are those of a tunnel that has ended, no
    /// name can be resolved.
    pub async fn undo_left_resolvers(&mut self) {
        self.undo_of_left(|entry| matches!(entry, Entry::Resolvers { .. }))
            .await;
    }

    /// Undoes the entries left by a crash that `is_meant` selects.
    async fn undo_of_left(&mut self, is_meant: impl Fn(&Entry) -> bool) {
        let meant: Vec<_> = {
            let mut ledger = self.ledger();
            let (meant, others) = ledger.left.drain(..).partition(is_meant);
            ledger.left = others;
            meant
        };
        self.undo_all(&meant).await;
    }

    /// Undoes all changes. Changes that cannot be undone are logged and stay in the journal.
    pub async fn undo(&mut self) {
        self.ledger().left.clear();
        self.forget_all().await;
        let entries = self.entries();
        self.undo_all(&entries).await;
    }

    /// Clears the desired state.
    async fn forget_all(&self) {
        self.ledger().desired.clear();
        self.wait_for_keeper().await;
    }

    /// Waits until no repair of the previous desired state is in progress.
    async fn wait_for_keeper(&self) {
        drop(self.turn.lock().await);
    }

    fn want(&self, object: Object, wanted: Wanted) {
        self.ledger().desired.want(object, wanted);
    }

    fn forget(&self, object: &Object) {
        self.ledger().desired.forget(object);
    }

    /// Undoes the entries, latest first.
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

    /// Sets an interface up.
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

    /// Sets the MTU of one of Hawser's own interfaces, which no other program may change.
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

    /// Adds an address to an interface; not an error if it exists already.
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
        // No other host can have the address, and it would be unusable until duplicate address
        // detection ends.
        request.message_mut().header.flags |= AddressHeaderFlags::Nodad;
        let result = request.execute().await;
        let what = || format!("add the address {address}/{prefix} to the interface");
        result.map_err(|source| refused(what(), source))
    }

    /// Removes all addresses of an interface except these.
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
        let failed = |source| refused(format!("remove the addresses of {interface}"), source);
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

    /// Records a change in place of the entries selected by `is_meant`.
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
            // A bridge that another program created in its place is not removed.
            Entry::Bridge { name } => match switch::remove(name) {
                Err(SystemError::NotOurs(_)) => Ok(()),
                other => other,
            },
            Entry::FramesApart { device } => {
                // The device and its settings may have been removed.
                let _ = ethtool::set_joins_packets(device, true);
                Ok(())
            }
            Entry::Sysctl { key, old, new } => {
                self.forget(&Object::Setting(key.clone()));
                undo_setting(key, old, new)
            }
            Entry::Resolvers { interface } => {
                self.forget(&Object::Resolvers(interface.clone()));
                // Either program may have been used, and the interface and its resolvers may have
                // been removed.
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

    /// Removes a rule at its current priority.
    async fn remove_rule(&self, rule: RoutingRule) -> Result<(), SystemError> {
        let _turn = self.turn.lock().await;
        let moved = {
            let mut ledger = self.ledger();
            ledger.desired.forget(&Object::Rule(rule));
            ledger.desired.at_present_priority(rule)
        };
        let mut places = vec![rule, moved];
        places.extend(self.rules_like(rule).await);
        places.sort_unstable();
        places.dedup();
        // Another desired rule may have the same conditions.
        places.retain(|place| !self.ledger().desired.has_rule(*place));
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

    /// Locks the shared state. The lock is never held across an await.
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

/// Returns the index of an interface; `None` if it does not exist.
fn index_of(interface: &str) -> Option<u32> {
    let name = CString::new(interface).ok()?;
    // SAFETY: the name is a terminated string that outlives the call.
    let index = unsafe { libc::if_nametoindex(name.as_ptr()) };
    (index != 0).then_some(index)
}

fn refused(what: String, source: rtnetlink::Error) -> SystemError {
    SystemError::Netlink { what, source }
}

/// Returns whether the kernel reports that the rule or the family does not exist.
fn is_absent(error: &rtnetlink::Error) -> bool {
    says(error, &[libc::ENOENT, libc::EAFNOSUPPORT])
}

/// Returns whether the kernel reports that the added object exists already.
fn is_there(error: &rtnetlink::Error) -> bool {
    says(error, &[libc::EEXIST])
}

fn says(error: &rtnetlink::Error, codes: &[libc::c_int]) -> bool {
    let rtnetlink::Error::NetlinkError(message) = error else {
        return false;
    };
    message.code.is_some_and(|code| codes.contains(&-code.get()))
}
/// Priority of the rule for near destinations; the tunnel's follows it. Source: three rules precede
/// it.
const PRIORITY: u32 = FIRST_PRIORITY + 3;
