//! Addresses by DHCP for networks whose configuration says `dhcp = "auto"`.
//!
//! One task monitors the devices. A state machine for each device ([`device`]) decides when a
//! source of its address has to be found: the service that already manages it ([`services`]), or a
//! client started by another program, both of which are left alone, or else a client of our own
//! ([`client`]). A client only negotiates; address and route are set here through the journal, so
//! that they are removed whenever this process ends. Other parts of the daemon recognize the
//! network like all others, by its address and default route.

mod client;
mod device;
mod services;

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::Instant as Clock;

use anyhow::{Context, anyhow};
use hawser_config::atomic_file;
use hawser_config::{ClientConfig, DhcpMode};
use hawser_linux::advertised::{Advertised, RouterOption};
use hawser_linux::netlink::{self, Watch};
use hawser_linux::process::make_pipe;
use hawser_linux::system::System;
use hawser_units::Instant;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, BufReader, Lines};
use tokio::net::unix::pipe::{OpenOptions, Receiver};
use tokio::sync::{oneshot, watch};
use tokio::task::JoinHandle;
use tokio::time::timeout;

use crate::dns::{NameServers, Servers, below};
use crate::portal;
use crate::program::Started;
use crate::system_bus::SystemBus;
use crate::watched::send_if_changed;

pub use client::report;
use client::{Event, Lease, Program};
use device::{Device, Found, State, Wish};

/// Task that runs concurrently with a daemon's event loop.
pub struct Dhcp {
    wanted: watch::Sender<BTreeSet<String>>,
    stations: watch::Sender<BTreeSet<String>>,
    view: View,
    end: oneshot::Sender<()>,
    task: JoinHandle<()>,
}

impl Dhcp {
    /// Starts the task, which first undoes changes left by an earlier run. `directory` is for the
    /// pipe and is created when it is needed.
    pub fn start(system: System, directory: PathBuf, config: &ClientConfig) -> Self {
        let (wanted, wants) = watch::channel(wanted(config));
        let (stations, joined) = watch::channel(BTreeSet::new());
        let (tell, shown) = watch::channel(BTreeMap::new());
        let (apis, routers) = watch::channel(BTreeMap::new());
        let (end, ended) = oneshot::channel();
        let keeper = Keeper {
            system,
            directory,
            tell,
            advertised: Advertised::listen(RouterOption::CaptivePortal).ok(),
            apis,
            started: Clock::now(),
            bus: SystemBus::default(),
            pipe: None,
            served: BTreeMap::new(),
            stations: BTreeSet::new(),
            runs: 0,
        };
        Self {
            wanted,
            stations,
            view: View { shown, routers },
            end,
            task: hawser_linux::tasks::spawn(keeper.run((wants, joined), ended)),
        }
    }

    /// Follows a changed configuration.
    pub fn handle_config(&self, config: &ClientConfig) {
        self.wanted.send_replace(wanted(config));
    }

    /// Returns the sender of the interfaces that need an address regardless of the configuration.
    pub fn stations(&self) -> watch::Sender<BTreeSet<String>> {
        self.stations.clone()
    }

    /// Returns the published state.
    pub fn view(&self) -> &View {
        &self.view
    }

    /// Ends the clients. Their addresses and routes are removed with everything that is undone.
    pub async fn end(self) {
        let _ = self.end.send(());
        if timeout(ENDING, self.task).await.is_err() {
            tracing::warn!("a DHCP client has not ended");
        }
    }
}

/// Returns the devices for which the configuration requests DHCP.
fn wanted(config: &ClientConfig) -> BTreeSet<String> {
    let networks = config.networks.iter();
    let wanted = networks.filter(|(name, set)| set.dhcp == DhcpMode::Auto && config.uses(name));
    let mut names = BTreeSet::new();
    names.extend(wanted.map(|(name, _)| name.clone()));
    names
}

/// Published state.
#[derive(Clone, Debug)]
pub struct View {
    shown: watch::Receiver<BTreeMap<String, LeaseState>>,
    /// Addresses of captive portal APIs in router advertisements, by interface.
    routers: watch::Receiver<BTreeMap<u32, String>>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct LeaseState {
    state: &'static str,
    /// Owner of the device's address, or the reason why there is none.
    by: String,
    lease: Option<Lease>,
    until: Option<Clock>,
}

impl LeaseState {
    fn plain(state: &'static str, by: String) -> Self {
        Self {
            state,
            by,
            lease: None,
            until: None,
        }
    }
}

impl View {
    /// Returns the entry of `status`: each network with `dhcp = "auto"` that has no address from
    /// another source.
    pub fn status(&self) -> Value {
        let all = self.shown.borrow();
        let shown = all.iter().map(|(name, shown)| {
            let lease = shown.lease.as_ref();
            let address = lease.map(|lease| format!("{}/{}", lease.address.address, lease.address.prefix));
            json!({
                "network": name,
                "state": shown.state,
                "by": shown.by,
                "address": address,
                "gateway": lease.and_then(|lease| lease.address.gateway),
                "servers": lease.map(|lease| &lease.servers),
                "seconds_left": shown.until.map(|until| until.saturating_duration_since(Clock::now()).as_secs()),
            })
        });
        shown.collect()
    }

    /// Returns notices for the user.
    pub fn notices(&self) -> Vec<String> {
        let all = self.shown.borrow();
        let failed = all.iter().filter(|(_, shown)| shown.state == "failed");
        failed
            .map(|(name, shown)| format!("{name}: {}", shown.by))
            .collect()
    }

    /// Returns the address of a network's captive portal API (RFC 8910), from its lease or its
    /// router.
    fn portal_api(&self, name: &str, index: u32) -> Option<String> {
        let leased = self.servers(name).and_then(|servers| servers.portal_api);
        leased.or_else(|| self.routers.borrow().get(&index).cloned())
    }

    /// Returns the resolvers, domain and captive portal API of a network's lease.
    fn servers(&self, name: &str) -> Option<Servers> {
        let all = self.shown.borrow();
        let lease = all.get(name)?.lease.as_ref()?;
        Some(Servers {
            addresses: lease.servers.clone(),
            domains: lease.domain.as_deref().and_then(below).into_iter().collect(),
            portal_api: lease.portal_api.clone(),
        })
    }
}

/// Returns the properties of a network. Its resolvers are those that are `set`, else those of
/// Hawser's lease, else those reported by services. The captive portal API comes from a lease, a
/// router or services, in that order.
pub fn known(
    set: Vec<IpAddr>,
    leases: Option<&View>,
    services: &NameServers,
    (name, index): (&str, u32),
) -> Servers {
    let leased = leases.and_then(|leases| leases.servers(name));
    let leased = leased.filter(|leased| !leased.addresses.is_empty());
    let mut known = leased.unwrap_or_else(|| services.of(name, index));
    if !set.is_empty() {
        known.addresses = set;
    }
    let heard = leases.and_then(|leases| leases.portal_api(name, index));
    known.portal_api = heard.or_else(|| services.portal_api(name, index));
    known
}

/// The task.
struct Keeper {
    system: System,
    directory: PathBuf,
    tell: watch::Sender<BTreeMap<String, LeaseState>>,
    advertised: Option<Advertised>,
    apis: watch::Sender<BTreeMap<u32, String>>,
    started: Clock,
    bus: SystemBus,
    pipe: Option<Lines<BufReader<Receiver>>>,
    served: BTreeMap<String, Served>,
    /// Interfaces that Hawser has created.
    stations: BTreeSet<String>,
    /// Number of clients started so far.
    runs: u64,
}

/// A device whose address Hawser manages.
struct Served {
    index: u32,
    machine: Device,
    client: Option<Running>,
    /// End of the lease.
    until: Option<Clock>,
}

struct Running {
    started: Started,
    run: u64,
    name: &'static str,
}

impl Keeper {
    async fn run(
        mut self,
        (mut wanted, mut stations): (
            watch::Receiver<BTreeSet<String>>,
            watch::Receiver<BTreeSet<String>>,
        ),
        mut end: oneshot::Receiver<()>,
    ) {
        self.system.undo_left_leases().await;
        let mut watch = match Watch::devices() {
            Ok(watch) => watch,
            Err(error) => {
                tracing::warn!(error = format!("{:#}", anyhow!(error)), "no DHCP");
                return;
            }
        };
        let mut devices = Vec::new();
        let mut tick = tokio::time::interval(std::time::Duration::from_secs(1));
        loop {
            tokio::select! {
                seen = watch.next() => match seen {
                    Ok(seen) => {
                        self.forget_routers(&devices, &seen);
                        devices = seen;
                    }
                    Err(error) => {
                        tracing::warn!(error = format!("{:#}", anyhow!(error)), "DHCP has ended");
                        break;
                    }
                },
                Ok(()) = wanted.changed() => {}
                Ok(()) = stations.changed() => {}
                line = hear(&mut self.pipe) => self.on_line(&line).await,
                heard = hear_routers(&mut self.advertised) => self.on_advertised(heard),
                _ = tick.tick() => {}
                _ = &mut end => break,
            }
            let mut names = wanted.borrow_and_update().clone();
            self.stations.clone_from(&stations.borrow_and_update());
            names.extend(self.stations.iter().cloned());
            self.follow(&devices, &names).await;
            self.work().await;
            self.show(&names);
        }
        for name in self.served.keys().cloned().collect::<Vec<_>>() {
            self.stop(&name).await;
        }
    }

    fn now(&self) -> Instant {
        Instant::ZERO + self.started.elapsed()
    }

    /// Updates the machines with the kernel's state.
    async fn follow(&mut self, devices: &[netlink::Device], wanted: &BTreeSet<String>) {
        let find = |name: &str| devices.iter().find(|device| device.name == name);
        let is_kept =
            |name: &str, index: u32| wanted.contains(name) && find(name).is_some_and(|d| d.index == index);
        let gone = self
            .served
            .iter()
            .filter(|(name, served)| !is_kept(name, served.index));
        for name in gone.map(|(name, _)| name.clone()).collect::<Vec<_>>() {
            self.carry_out(&name, Some(Wish::Stop)).await;
            self.carry_out(&name, Some(Wish::Withdraw)).await;
            self.served.remove(&name);
        }
        let now = self.now();
        for device in wanted.iter().filter_map(|name| find(name)) {
            let served = self.served.entry(device.name.clone()).or_insert_with(|| Served {
                index: device.index,
                machine: Device::new(self.stations.contains(&device.name)),
                client: None,
                until: None,
            });
            let leased = served.machine.lease().map(|lease| lease.address.address);
            let has_other = device.addresses.iter().any(|address| Some(*address) != leased);
            let wish = served.machine.handle_link(device.has_carrier, has_other, now);
            self.carry_out(&device.name, wish).await;
        }
    }

    /// Executes due actions.
    async fn work(&mut self) {
        for name in self.served.keys().cloned().collect::<Vec<_>>() {
            self.reap(&name);
            let now = self.now();
            let wish = self
                .served
                .get_mut(&name)
                .and_then(|served| served.machine.handle_timeout(now));
            self.carry_out(&name, wish).await;
        }
    }

    fn on_advertised(&self, heard: Vec<(u32, Vec<u8>)>) {
        for (index, option) in heard {
            if let Some(address) = portal::advertised(&option) {
                self.apis.send_modify(|known| drop(known.insert(index, address)));
            }
        }
    }

    /// Router advertisements are forgotten when the link loses its carrier.
    fn forget_routers(&self, before: &[netlink::Device], after: &[netlink::Device]) {
        let has_carrier = |devices: &[netlink::Device], index: u32| {
            let mut devices = devices.iter();
            devices.any(|device| device.index == index && device.has_carrier)
        };
        let is_lost = |index: u32| has_carrier(before, index) && !has_carrier(after, index);
        self.apis
            .send_modify(|known| known.retain(|index, _| !is_lost(*index)));
    }

    async fn on_line(&mut self, line: &str) {
        let Some((run, event)) = client::parse(line) else {
            return;
        };
        let mut all = self.served.iter_mut();
        let is_its = |served: &Served| served.client.as_ref().is_some_and(|client| client.run == run);
        let Some((name, served)) = all.find(|(_, served)| is_its(served)) else {
            return;
        };
        if let Event::Leased(lease) = &event {
            let address = lease.address;
            served.until = address.lasts.map(|lasts| Clock::now() + lasts);
            if served
                .machine
                .lease()
                .is_none_or(|before| before.address.address != address.address)
            {
                tracing::info!(network = name, address = %address.address, prefix = address.prefix, "address by DHCP");
            }
        }
        let (name, wish) = (name.clone(), served.machine.handle_event(event));
        self.carry_out(&name, wish).await;
    }

    async fn carry_out(&mut self, name: &str, wish: Option<Wish>) {
        let result = match wish {
            None => Ok(()),
            Some(Wish::Look) => {
                self.find_source(name).await;
                Ok(())
            }
            Some(Wish::Stop) => {
                self.stop(name).await;
                Ok(())
            }
            Some(Wish::Apply(lease)) => {
                let result = self.system.lease(name, lease.address).await;
                if result.is_err() {
                    self.stop(name).await;
                    let now = self.now();
                    if let Some(served) = self.served.get_mut(name) {
                        served
                            .machine
                            .handle_ended("its address is rejected".to_owned(), now);
                    }
                }
                result
            }
            Some(Wish::Withdraw) => self.system.end_lease(name).await,
        };
        if let Err(error) = result {
            tracing::warn!(network = name, error = format!("{:#}", anyhow!(error)), "DHCP");
        }
    }

    /// Searches a source for the device's address.
    async fn find_source(&mut self, name: &str) {
        let Some(index) = self.served.get(name).map(|served| served.index) else {
            return;
        };
        let found = match self.find_other(name, index).await {
            Some(other) => Found::Other(other),
            None => self
                .start(name)
                .unwrap_or_else(|error| Found::Nobody(format!("{error:#}"))),
        };
        let now = self.now();
        if let Some(served) = self.served.get_mut(name) {
            served.machine.handle_found(found, now);
        }
    }

    /// Returns another owner of the device's address.
    async fn find_other(&mut self, name: &str, index: u32) -> Option<String> {
        let ask = |bus| async move { services::ask_manager(&bus, name, index).await };
        // On most machines without an answer there is no bus.
        let manager = self.bus.ask(ask).await.unwrap_or_default();
        manager.or_else(|| client::other_client(name))
    }

    /// Starts a client of our own.
    fn start(&mut self, name: &str) -> anyhow::Result<Found> {
        let Some(program) = Program::installed() else {
            return Ok(Found::Nobody(NO_CLIENT.to_owned()));
        };
        if self.pipe.is_none() {
            self.pipe = Some(open_pipe(&self.directory).context("no pipe for a DHCP client")?);
        }
        self.runs += 1;
        let pipe = self.directory.join(PIPE);
        let started = program.start(&mut self.system, name, &pipe, self.runs)?;
        tracing::info!(
            network = name,
            client = program.name(),
            "requesting an address by DHCP"
        );
        if let Some(served) = self.served.get_mut(name) {
            served.client = Some(Running {
                started,
                run: self.runs,
                name: program.name(),
            });
        }
        Ok(Found::Started)
    }

    async fn stop(&mut self, name: &str) {
        let Some(client) = self.served.get_mut(name).and_then(|served| served.client.take()) else {
            return;
        };
        if let Err(error) = client.started.end(&mut self.system).await {
            tracing::warn!(network = name, error = format!("{:#}", anyhow!(error)), "DHCP");
        }
    }

    /// Detects a client that has ended by itself.
    fn reap(&mut self, name: &str) {
        let now = self.now();
        let Some(served) = self.served.get_mut(name) else {
            return;
        };
        let ended = served.client.as_mut().and_then(|client| client.started.ended());
        if let Some(status) = ended
            && let Some(client) = served.client.take()
        {
            let how = status.map_or_else(|error| error.to_string(), |status| status.to_string());
            served
                .machine
                .handle_ended(format!("{} has ended ({how})", client.name), now);
            let _ = client.started.forget(&mut self.system);
        }
    }

    fn show(&self, wanted: &BTreeSet<String>) {
        let absent = wanted.iter().filter(|name| !self.served.contains_key(*name));
        let served = self
            .served
            .iter()
            .filter_map(|(name, served)| Some((name, served.lease_state()?)));
        let all = absent
            .map(|name| (name, LeaseState::plain("no such device", String::new())))
            .chain(served);
        let mut shown = BTreeMap::new();
        shown.extend(all.map(|(name, shown)| (name.clone(), shown)));
        for (name, shown) in shown.iter().filter(|(_, shown)| shown.state == "failed") {
            if self
                .tell
                .borrow()
                .get(name)
                .is_none_or(|before| before.by != shown.by)
            {
                tracing::warn!(network = name, "{}", shown.by);
            }
        }
        send_if_changed(&self.tell, shown);
    }
}

impl Served {
    fn lease_state(&self) -> Option<LeaseState> {
        let lease = self.machine.lease().cloned();
        let client = self.client.as_ref().map_or("", |client| client.name);
        let (state, by) = match self.machine.state() {
            State::Served => return None,
            State::NoCarrier => ("no carrier", String::new()),
            State::Failed { why, .. } => ("failed", why.clone()),
            State::Left { to, .. } => ("left", to.clone()),
            State::Waiting { .. } => ("waiting", String::new()),
            State::Running { has_bound: true } => ("leased", client.to_owned()),
            State::Running { has_bound: false } => ("waiting", client.to_owned()),
        };
        Some(LeaseState {
            until: self.until.filter(|_| lease.is_some()),
            lease,
            ..LeaseState::plain(state, by)
        })
    }
}

/// Returns the next line of a client; waits forever without a client.
async fn hear(pipe: &mut Option<Lines<BufReader<Receiver>>>) -> String {
    if let Some(lines) = pipe {
        match lines.next_line().await {
            Ok(Some(line)) => return line,
            // It is also open for writing on this side, so it does not end; invalid text is
            // ignored.
            Ok(None) => *pipe = None,
            Err(error) => {
                tracing::debug!(%error, "unexpected report of a DHCP client");
                return String::new();
            }
        }
    }
    std::future::pending().await
}

/// Waits for the next router advertisements; forever if they cannot be received.
async fn hear_routers(advertised: &mut Option<Advertised>) -> Vec<(u32, Vec<u8>)> {
    if let Some(listening) = advertised {
        match listening.next().await {
            Ok(heard) => return heard,
            Err(error) => {
                tracing::debug!(%error, "router advertisements are no longer monitored");
                *advertised = None;
            }
        }
    }
    std::future::pending().await
}

fn open_pipe(directory: &Path) -> anyhow::Result<Lines<BufReader<Receiver>>> {
    atomic_file::private_directory(directory)?;
    let path = directory.join(PIPE);
    match make_pipe(&path) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error.into()),
        Ok(()) | Err(_) => {}
    }
    let pipe = OpenOptions::new().read_write(true).open_receiver(&path)?;
    Ok(BufReader::new(pipe).lines())
}

/// Name of the named pipe.
const PIPE: &str = "said";
const NO_CLIENT: &str = "no address, no service that configures one, and no DHCP client: install udhcpc or dhcpcd (Debian: udhcpc or dhcpcd-base)";
/// Maximum time for the end of a client, longer than that of a client that does not react. Source:
/// our choice; a longer one delays the end of the daemon, a shorter one leaves a client and its
/// address behind.
const ENDING: std::time::Duration = std::time::Duration::from_secs(5);
