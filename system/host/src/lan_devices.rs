//! Usage of a gateway by devices of its LAN: current rates, and sums of each month.
//!
//! A state machine ([`Accounts`]) attributes the kernel's counters, which are per address, to
//! devices; a task reads the counters once a minute, and on request. Sums of days are stored in
//! `lan-usage.sqlite`, like those of networks. A crash loses at most a minute.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use hawser_config::LanDevices;
use hawser_linux::clock::now;
use hawser_linux::lan_devices::{DeviceCounters, read_counters};
use hawser_linux::netlink::HardwareAddress;
use hawser_steer::quota::Used;
use hawser_units::Instant;
use serde_json::{Value, json};
use tokio::sync::oneshot;

use crate::usage::Usage;

/// Usage of devices, from the kernel's counters.
#[derive(Debug, Default)]
pub struct Accounts {
    before: DeviceCounters,
    devices: BTreeMap<HardwareAddress, Device>,
    /// Device that last used each address.
    owners: BTreeMap<IpAddr, HardwareAddress>,
    read_at: Option<Instant>,
}

/// Last known state of a device.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Device {
    /// Addresses of the device, in the order of their use.
    pub addresses: Vec<IpAddr>,
    /// Rate from it, bit/s.
    pub send_bps: u64,
    /// Rate to it, bit/s.
    pub receive_bps: u64,
    /// Time of its last packet.
    seen: Option<Instant>,
}

impl Accounts {
    /// Processes the counters. Returns the usage of each device since the last call.
    pub fn handle_counters(
        &mut self,
        counters: DeviceCounters,
        now: Instant,
    ) -> Vec<(HardwareAddress, Used)> {
        let passed = self.read_at.map(|at| now.since(at).as_secs_f64());
        let mut used: BTreeMap<HardwareAddress, Used> = BTreeMap::new();
        for ((device, address), bytes) in &counters.up {
            let sent = more(self.before.up.get(&(*device, *address)), *bytes);
            let known = self.devices.entry(*device).or_default();
            if !known.addresses.contains(address) {
                known.addresses.push(*address);
            }
            let is_owner = self.owners.contains_key(address);
            if sent > 0 || !is_owner {
                known.seen = Some(now);
                self.owners.insert(*address, *device);
                used.entry(*device).or_default().sent += sent;
            }
        }
        for (address, bytes) in &counters.down {
            let received = more(self.before.down.get(address), *bytes);
            if let Some(device) = self.owners.get(address) {
                used.entry(*device).or_default().received += received;
            }
        }
        self.before = counters;
        self.read_at = Some(now);
        for (device, known) in &mut self.devices {
            let used = used.get(device).copied().unwrap_or_default();
            let rate = |bytes: u64| match passed {
                Some(passed) if passed > 0.1 => (bytes as f64 * 8.0 / passed) as u64,
                Some(_) | None => 0,
            };
            (known.send_bps, known.receive_bps) = (rate(used.sent), rate(used.received));
        }
        self.devices
            .retain(|_, device| device.seen.is_some_and(|seen| now.since(seen) < FORGOTTEN));
        let devices = &self.devices;
        self.owners.retain(|_, device| devices.contains_key(device));
        used.retain(|_, used| used.total() > 0);
        used.into_iter().collect()
    }

    /// Returns the devices.
    #[must_use]
    pub fn devices(&self) -> &BTreeMap<HardwareAddress, Device> {
        &self.devices
    }
}

/// Returns the increase of a counter; one that has restarted counts from zero.
fn more(before: Option<&u64>, now: u64) -> u64 {
    let before = before.copied().unwrap_or(0);
    now.checked_sub(before).unwrap_or(now)
}

/// Counts the usage for as long as it exists.
#[derive(Debug)]
pub struct LanUsage {
    state: Arc<Mutex<State>>,
    task: tokio::task::JoinHandle<()>,
}

#[derive(Debug)]
struct State {
    accounts: Accounts,
    usage: Usage,
}

impl LanUsage {
    /// Starts counting; sums are stored in the directory.
    #[must_use]
    pub fn start(dir: &Path) -> Self {
        let state = Arc::new(Mutex::new(State {
            accounts: Accounts::default(),
            usage: Usage::open_file(&dir.join("lan-usage.sqlite")),
        }));
        let counted = Arc::clone(&state);
        let task = hawser_linux::tasks::spawn(async move {
            loop {
                tokio::time::sleep(EVERY).await;
                let counted = Arc::clone(&counted);
                let _ = tokio::task::spawn_blocking(move || count(&counted)).await;
            }
        });
        Self { state, task }
    }

    /// Counts the usage up to now, before the kernel's table is replaced. Blocks for about 5 ms.
    pub fn count_now(&self) {
        count(&self.state);
    }

    /// Answers with the devices, the usage of each, and their settings in `config`.
    pub fn answer(&self, config: &LanDevices, answer: oneshot::Sender<anyhow::Result<Value>>) {
        let (state, config) = (Arc::clone(&self.state), config.clone());
        hawser_linux::tasks::spawn(async move {
            let listed = tokio::task::spawn_blocking(move || {
                count(&state);
                list(&lock(&state), &config)
            });
            let _ = answer.send(listed.await.map_err(Into::into));
        });
    }
}

impl Drop for LanUsage {
    fn drop(&mut self) {
        self.task.abort();
    }
}

fn lock(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

fn count(state: &Mutex<State>) {
    let mut state = lock(state);
    let now = now();
    let is_recent = |at: Instant| now.since(at) < RECENT;
    if state.accounts.read_at.is_some_and(is_recent) {
        return;
    }
    match read_counters() {
        Ok(counters) => {
            for (device, used) in state.accounts.handle_counters(counters, now) {
                state.usage.handle_transferred(&device.to_string(), used);
            }
            state.usage.write_if_due(now);
        }
        Err(error) => tracing::debug!(%error, "cannot read the usage of devices"),
    }
}

fn list(state: &State, config: &LanDevices) -> Value {
    let month: BTreeMap<_, _> = state.usage.of_month().collect();
    let now = now();
    let mut all: BTreeMap<HardwareAddress, Option<&Device>> = BTreeMap::new();
    all.extend(config.0.keys().map(|address| (*address, None)));
    let parsed = month.keys().filter_map(|name| name.parse().ok());
    all.extend(parsed.map(|address: HardwareAddress| (address, None)));
    let devices = state.accounts.devices.iter();
    all.extend(devices.map(|(address, device)| (*address, Some(device))));
    let devices = all.into_iter().map(|(address, device)| {
        let text = address.to_string();
        let used = month.get(text.as_str()).copied().unwrap_or_default();
        let set = config.0.get(&address).cloned().unwrap_or_default();
        let seen = device.and_then(|device| device.seen);
        json!({
            "address": text,
            "addresses": device.map(|device| &device.addresses),
            "name": set.name,
            "send_bps": device.map_or(0, |device| device.send_bps),
            "receive_bps": device.map_or(0, |device| device.receive_bps),
            "seen_s": seen.map(|seen| now.since(seen).as_secs()),
            "month_sent": used.sent,
            "month_received": used.received,
            "paused": set.paused,
            "limit_up_bps": set.limit_up.map(|speed| speed.0.as_bps()),
            "limit_down_bps": set.limit_down.map(|speed| speed.0.as_bps()),
        })
    });
    json!({ "month": state.usage.month(), "devices": devices.collect::<Vec<_>>() })
}

/// Interval of readings without requests. Source: each starts a program of 5 ms.
const EVERY: Duration = Duration::from_secs(60);
/// Readings that are this recent are not repeated for another person. Source: a rate over less
/// than a second shows single bursts.
const RECENT: Duration = Duration::from_secs(1);
/// A device that was not seen for this time is listed by its month alone. Source: the kernel
/// forgets its address then (`FORGOTTEN` of the table).
const FORGOTTEN: Duration = Duration::from_secs(86_400);

#[cfg(test)]
mod tests {
    use super::*;

    const PHONE: HardwareAddress = HardwareAddress([2, 0, 0, 0, 0, 7]);
    const TELEVISION: HardwareAddress = HardwareAddress([2, 0, 0, 0, 0, 8]);

    fn at(seconds: u64) -> Instant {
        Instant::from_nanos(1_000_000_000 * (1 + seconds))
    }

    fn host(last: u8) -> IpAddr {
        [192, 168, 50, last].into()
    }

    fn counters(up: &[(HardwareAddress, u8, u64)], down: &[(u8, u64)]) -> DeviceCounters {
        DeviceCounters {
            up: up
                .iter()
                .map(|(device, last, bytes)| ((*device, host(*last)), *bytes))
                .collect(),
            down: down.iter().map(|(last, bytes)| (host(*last), *bytes)).collect(),
        }
    }

    fn used(received: u64, sent: u64) -> Used {
        Used { received, sent }
    }

    #[test]
    fn bytes_to_an_address_are_those_of_its_device() {
        let mut accounts = Accounts::default();
        let first = accounts.handle_counters(counters(&[(PHONE, 7, 100)], &[(7, 1000), (9, 5)]), at(0));
        assert_eq!(first, [(PHONE, used(1000, 100))]);
        let next = counters(&[(PHONE, 7, 300), (TELEVISION, 8, 10)], &[(7, 6000), (8, 20)]);
        let next = accounts.handle_counters(next, at(10));
        assert_eq!(next, [(PHONE, used(5000, 200)), (TELEVISION, used(20, 10))]);
        let phone = &accounts.devices()[&PHONE];
        assert_eq!((phone.send_bps, phone.receive_bps), (160, 4000));
        assert_eq!(phone.addresses, [host(7)]);
    }

    #[test]
    fn an_address_goes_to_the_device_that_uses_it_now() {
        let mut accounts = Accounts::default();
        accounts.handle_counters(counters(&[(PHONE, 7, 100)], &[(7, 1000)]), at(0));
        let both = counters(&[(PHONE, 7, 100), (TELEVISION, 7, 50)], &[(7, 3000)]);
        let next = accounts.handle_counters(both, at(10));
        assert_eq!(next, [(TELEVISION, used(2000, 50))]);
    }

    #[test]
    fn counters_that_begin_again_lose_nothing_and_count_nothing_twice() {
        let mut accounts = Accounts::default();
        accounts.handle_counters(counters(&[(PHONE, 7, 100)], &[(7, 1000)]), at(0));
        let fresh = accounts.handle_counters(counters(&[(PHONE, 7, 30)], &[(7, 40)]), at(10));
        assert_eq!(fresh, [(PHONE, used(40, 30))]);
        assert_eq!(accounts.handle_counters(DeviceCounters::default(), at(20)), []);
        assert_eq!(accounts.devices()[&PHONE].receive_bps, 0);
    }

    #[test]
    fn a_device_is_forgotten_after_a_day() {
        let mut accounts = Accounts::default();
        let same = || counters(&[(PHONE, 7, 100)], &[(7, 1000)]);
        accounts.handle_counters(same(), at(0));
        accounts.handle_counters(same(), at(80_000));
        assert_eq!(accounts.devices().len(), 1);
        accounts.handle_counters(DeviceCounters::default(), at(90_000));
        assert_eq!(accounts.devices().len(), 0);
    }
}
