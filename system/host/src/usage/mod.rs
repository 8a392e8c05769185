//! Usage of networks across restarts, and the remainder of their quotas.
//!
//! The kernel's device counters are read every second; their increase is added to the current day
//! of the device, even if its name has changed (`devices.rs`). Counted bytes are written to the
//! disk in one transaction every few seconds, and at the end: a crash loses at most
//! [`WRITE_EVERY`]. If the disk cannot be written, counting continues in memory, with one warning.
//!
//! Limitations: a device's counters include all its traffic, local traffic too, and traffic is not
//! counted while the daemon is not running. Providers count differently: set a quota a little below
//! the contract's.

mod devices;
mod store;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use data_encoding::HEXLOWER;
use hawser_config::identity::random;
use hawser_config::{ClientConfig, NetworkConfig, QuotaAction};
use hawser_linux::clock::local_time;
use hawser_linux::netlink::{CountedDevice, HardwareAddress};
use hawser_steer::quota::{Date, Ledger, Level, Used};
use hawser_units::{Bytes, Duration, Instant};
use serde_json::{Value, json};

use devices::{Changes, Devices, Moved};
use store::{Pending, Store};

pub use crate::database::StoreError;

/// Usage of a name on a day: the name, the day, the sum.
pub type DaySum = ((String, Date), Used);

/// Usage counters of all networks.
#[derive(Debug)]
pub struct Usage {
    store: Option<Store>,
    ledgers: BTreeMap<String, Ledger>,
    /// Last counters of the devices.
    counters: BTreeMap<String, Used>,
    pending: Pending,
    write_at: Instant,
    levels: BTreeMap<String, Level>,
    /// Devices to which the usage belongs, by name.
    devices: Devices,
    /// Names that another device got in this run, with a message for the user.
    taken: BTreeMap<String, String>,
    /// Set if names of devices have changed since the last query.
    has_other_names: bool,
    /// Current day.
    today: Date,
}

impl Usage {
    /// Continues the usage stored in the directory; counts in memory only if it cannot be read.
    pub fn open(dir: &Path) -> Self {
        Self::open_file(&file(dir))
    }

    /// Opens a usage file other than that of the networks.
    pub fn open_file(path: &Path) -> Self {
        let opened = Store::open(path).and_then(|store| Ok((store.load()?, store.devices()?, store)));
        let (opened, devices) = match opened {
            Ok((ledgers, devices, store)) => (Ok((ledgers, store)), devices),
            Err(error) => (Err(error), BTreeMap::new()),
        };
        let mut usage = Self::new(opened);
        usage.devices = Devices::of(devices);
        usage
    }

    /// Opens a usage file and returns its unique name, which was chosen at random when it was
    /// created, or now if nothing can be stored. Usage stored under another name is not included.
    pub fn open_named(path: &Path) -> (Self, String) {
        let opened = Store::open(path).and_then(|store| Ok((store.name()?, store.load()?, store)));
        match opened {
            Ok((name, ledgers, store)) => (Self::new(Ok((ledgers, store))), name),
            Err(error) => (Self::new(Err(error)), HEXLOWER.encode(&random::<16>())),
        }
    }

    fn new(opened: Result<(BTreeMap<String, Ledger>, Store), StoreError>) -> Self {
        let (ledgers, store) = match opened {
            Ok((ledgers, store)) => (ledgers, Some(store)),
            Err(error) => {
                tracing::warn!(%error, "cannot store usage: counts and quotas start from zero at each start");
                (BTreeMap::new(), None)
            }
        };
        Self {
            store,
            ledgers,
            counters: BTreeMap::new(),
            pending: Pending::new(),
            write_at: Instant::from_nanos(0),
            levels: BTreeMap::new(),
            devices: Devices::default(),
            taken: BTreeMap::new(),
            has_other_names: false,
            today: today(),
        }
    }

    /// Processes the counters of all devices, and counts the traffic of those selected by
    /// `is_counted`. Bytes belong to a device even if its name changes.
    pub fn handle_devices(
        &mut self,
        devices: &[CountedDevice],
        is_counted: impl Fn(&str) -> bool,
        now: Instant,
    ) {
        let before = self.devices.addresses();
        let Changes { moved, taken } = self.devices.handle_seen(devices);
        let after = self.devices.addresses();
        for name in taken {
            let which = after
                .get(&name)
                .map_or_else(String::new, |address| format!(" ({address})"));
            let text = format!(
                "{name} is another device now{which}: settings of {name} in client.toml apply to it, and the counted usage stays with each device"
            );
            tracing::warn!(network = name, "{text}");
            self.taken.insert(name, text);
        }
        if !moved.is_empty() || before != after {
            self.has_other_names = true;
            self.rename(&moved, &after);
        }
        let counted = devices.iter().filter(|device| is_counted(&device.name));
        let counted: Vec<_> = counted
            .map(|device| (device.name.clone(), device.received, device.sent))
            .collect();
        self.handle_counters(&counted, now);
    }

    /// Returns a message for the user for each name that is configured in `client.toml` and now
    /// belongs to another device.
    pub fn notices(&self, config: &ClientConfig) -> Vec<String> {
        let taken = self.taken.iter();
        let is_of_name = |name: &String| {
            let set = config.networks.get(name);
            set.is_some_and(|set| set.device.is_none())
        };
        let meant = taken.filter(|(name, _)| is_of_name(name));
        meant.map(|(_, text)| text.clone()).collect()
    }

    /// Returns whether names of devices have changed since the last call, or devices are new:
    /// settings of devices may then apply to other names.
    pub fn poll_other_names(&mut self) -> bool {
        std::mem::take(&mut self.has_other_names)
    }

    /// Stores the traffic of devices under their new names.
    fn rename(&mut self, moved: &[Moved], addresses: &BTreeMap<String, HardwareAddress>) {
        // Pending values belong to the previous names.
        self.write();
        if let Some(store) = &mut self.store
            && let Err(error) = store.rename(moved, addresses)
        {
            tracing::warn!(%error, "cannot store usage under the devices' new names");
        }
        rename_keys(&mut self.ledgers, moved);
        rename_keys(&mut self.counters, moved);
        rename_keys(&mut self.levels, moved);
        let old = std::mem::take(&mut self.pending);
        for ((name, day), used) in old {
            let to = moved.iter().find(|moved| moved.from == name);
            let name = to.map_or(name, |moved| moved.to.clone());
            self.pending.insert((name, day), used);
        }
    }

    /// Processes the devices' current counters: name, received and sent bytes.
    fn handle_counters(&mut self, counted: &[(String, u64, u64)], now: Instant) {
        self.today = today();
        for (name, received, sent) in counted {
            let shown = Used {
                received: *received,
                sent: *sent,
            };
            let Some(before) = self.counters.insert(name.clone(), shown) else {
                continue;
            };
            self.count(name, since(before, shown));
        }
        self.write_if_due(now);
    }

    /// Counts the traffic of an object without kernel counters, by name. The caller calls
    /// [`Self::write_if_due`].
    pub fn handle_transferred(&mut self, name: &str, used: Used) {
        self.today = today();
        self.count(name, used);
    }

    /// Returns the current calendar month, such as `2026-11`.
    pub fn month(&self) -> String {
        let newest = self.ledgers.values().map(|ledger| ledger.believed(self.today));
        let today = newest.max().unwrap_or(self.today);
        today.to_string()[..7].to_owned()
    }

    /// Returns the usage of that month, by name.
    pub fn of_month(&self) -> impl Iterator<Item = (&str, Used)> {
        let ledgers = self.ledgers.iter();
        ledgers.map(|(name, ledger)| (name.as_str(), ledger.used(self.today, 1)))
    }

    /// Returns the sums of all stored days.
    pub fn days(&self) -> impl Iterator<Item = DaySum> {
        let ledgers = self.ledgers.iter();
        ledgers.flat_map(|(name, ledger)| ledger.days().map(|(day, used)| ((name.clone(), day), used)))
    }

    /// Writes values to the disk that have been pending for [`WRITE_EVERY`], and returns the
    /// updated sums of their days. If nothing is stored on a disk, returns the amounts counted
    /// meanwhile.
    pub fn write_if_due(&mut self, now: Instant) -> Vec<DaySum> {
        if now < self.write_at {
            return Vec::new();
        }
        self.write_at = now + WRITE_EVERY;
        self.write()
    }

    fn count(&mut self, name: &str, used: Used) {
        if used.total() == 0 {
            return;
        }
        let ledger = self.ledgers.entry(name.to_owned()).or_default();
        let day = ledger.handle_bytes(used, self.today);
        self.pending.entry((name.to_owned(), day)).or_default().add(used);
    }

    /// Writes all pending values to the disk, and returns the updated sums of their days.
    pub fn write(&mut self) -> Vec<DaySum> {
        if let Some(store) = &mut self.store
            && !self.pending.is_empty()
            && let Err(error) = store.add(&self.pending)
        {
            // Counted values stay pending until the next attempt.
            tracing::warn!(%error, "cannot store usage");
            return Vec::new();
        }
        let written = std::mem::take(&mut self.pending).into_keys();
        let sum = |(name, day): (String, Date)| {
            let used = self.ledgers.get(&name).map(|ledger| ledger.on(day));
            ((name, day), used.unwrap_or_default())
        };
        written.map(sum).collect()
    }

    /// Returns the level of a network's quota; `Free` without one.
    pub fn level(&self, name: &str, config: &NetworkConfig) -> Level {
        config
            .quota()
            .map_or(Level::Free, |quota| quota.level(self.used(name, config)))
    }

    /// Returns the remainder of its quota; `None` without one.
    pub fn left(&self, name: &str, config: &NetworkConfig) -> Option<Bytes> {
        config.quota().map(|quota| quota.left(self.used(name, config)))
    }

    /// Returns whether new flows avoid the network, regardless of other networks.
    pub fn is_shut(&self, name: &str, config: &NetworkConfig) -> bool {
        let shuts = matches!(config.quota_action, QuotaAction::Stop | QuotaAction::Drain);
        shuts && self.level(name, config) == Level::Spent
    }

    /// Returns whether the network is to be used only while no other works.
    pub fn is_backup(&self, name: &str, config: &NetworkConfig) -> bool {
        config.quota_action == QuotaAction::Backup && self.level(name, config) == Level::Spent
    }

    /// Returns the networks whose level has changed since the last call, with the level.
    pub fn poll_levels<'a>(
        &mut self,
        names: impl Iterator<Item = &'a str>,
        config: &ClientConfig,
    ) -> Vec<(String, Level)> {
        let mut changed = Vec::new();
        for name in names {
            let level = self.level(name, &config.network(name));
            let before = self.levels.insert(name.to_owned(), level).unwrap_or_default();
            if before != level {
                changed.push((name.to_owned(), level));
            }
        }
        changed
    }

    fn used(&self, name: &str, config: &NetworkConfig) -> Used {
        let ledger = self.ledgers.get(name);
        ledger.map_or(Used::default(), |ledger| {
            ledger.used(self.today, config.reset_day.0)
        })
    }

    /// Returns the entry of a network in `status`.
    pub fn report(&self, name: &str, config: &NetworkConfig) -> Value {
        let today = self
            .ledgers
            .get(name)
            .map_or(self.today, |ledger| ledger.believed(self.today));
        period(
            today.period_start(config.reset_day.0),
            self.used(name, config),
            config,
        )
    }
}

impl Drop for Usage {
    fn drop(&mut self) {
        self.write();
    }
}

/// Returns the usage in the directory, by network and period, for `hawser usage`.
///
/// # Errors
/// The file is there and cannot be read.
pub fn read(dir: &Path, config: &ClientConfig) -> Result<Value, StoreError> {
    let ledgers = load(&file(dir))?;
    let networks: Vec<_> = ledgers
        .iter()
        .map(|(name, ledger)| {
            let set = config.network(name);
            let periods = ledger.periods(set.reset_day.0);
            let periods: Vec<_> = periods
                .into_iter()
                .rev()
                .map(|(start, used)| period(start, used, &set))
                .collect();
            json!({ "name": name, "months": periods })
        })
        .collect();
    Ok(json!({ "version": 1, "networks": networks }))
}

/// Returns the usage in a file, by name and calendar month.
///
/// # Errors
/// The file is there and cannot be read.
pub fn months(path: &Path) -> Result<Vec<(String, Date, Used)>, StoreError> {
    let ledgers = load(path)?.into_iter();
    let months = ledgers.flat_map(|(name, ledger)| {
        let periods = ledger.periods(1).into_iter();
        periods.map(move |(month, used)| (name.clone(), month, used))
    });
    Ok(months.collect())
}

/// Moves entries to other names, all at once.
fn rename_keys<T>(entries: &mut BTreeMap<String, T>, moved: &[Moved]) {
    let taken: Vec<_> = moved
        .iter()
        .filter_map(|Moved { from, to }| Some((to.clone(), entries.remove(from)?)))
        .collect();
    entries.extend(taken);
}

fn load(path: &Path) -> Result<BTreeMap<String, Ledger>, StoreError> {
    match Store::open_to_read(path)? {
        Some(store) => store.load(),
        None => Ok(BTreeMap::new()),
    }
}

fn period(start: Date, used: Used, config: &NetworkConfig) -> Value {
    let quota = config.quota();
    json!({
        "from": start.to_string(),
        "until": start.next_reset(config.reset_day.0).to_string(),
        "received_bytes": used.received,
        "sent_bytes": used.sent,
        "total_bytes": used.total(),
        "quota_bytes": quota.map(|quota| quota.limit.0),
        "level": quota.map(|quota| level_name(quota.level(used))),
    })
}

fn level_name(level: Level) -> &'static str {
    match level {
        Level::Free => "free",
        Level::Low => "low",
        Level::Spent => "spent",
    }
}

/// Returns the increase of a counter; one that decreased has restarted.
pub fn since(before: Used, now: Used) -> Used {
    if now.received < before.received || now.sent < before.sent {
        return now;
    }
    Used {
        received: now.received - before.received,
        sent: now.sent - before.sent,
    }
}

fn today() -> Date {
    let time = local_time();
    Date::new(time.year, time.month, time.day).expect("the calendar shows days that it has")
}

fn file(dir: &Path) -> PathBuf {
    dir.join("usage.sqlite")
}

/// Maximum loss in a crash, weighed against how often a disk must wake: a transaction waits for the
/// disk once or twice. Source: our choice; a longer one loses more of a quota's account, a shorter
/// one wears flash memory.
pub const WRITE_EVERY: Duration = Duration::from_secs(5);

#[cfg(test)]
mod crashes;
#[cfg(test)]
mod tests;
