//! The hub: one UDP port, many clients.
//!
//! It starts by creating the inner interface, its addresses, forwarding and NAT, each recorded in
//! the journal. Then one task waits for the next event: reports of the data plane, requests over
//! the control socket, signals. Connections have tasks of their own. At the end clients are
//! notified, and the system is restored.
//!
//! | question | file |
//! |---|---|
//! | how a hub starts, the event loop | this one ([`run`]) |
//! | its configuration and its clients, on disk or in a database | `stores.rs` |
//! | changes of the system for it | `preparation.rs` |
//! | the sessions of the previous process | `carrying.rs` |
//! | clients whose networks block UDP | `over_tls.rs` |
//! | requests over the control socket, status | `requests.rs` |
//! | new values of hub.toml | `reload.rs` |
//! | commands about a hub that runs or does not: `init`, `invite`, `revoke` | `commands.rs` |
//! | ports and subnets of clients | `reach.rs` |
//! | the resolvers that are announced to clients | `resolvers.rs` |
//! | names of clients | `names.rs`, `zone.rs` |
//! | the decision of the rules about a connection | `access.rs` |
//! | usage of each client | `accounts.rs` |
//! | usage of the kernel's connection table | `connections.rs` |
//! | limits of clients | `limits.rs` |
//! | connections of clients that were revoked | `departed.rs` |
//! | reports about keys that expire | `expiring.rs` |
//! | whether sessions are passed to a successor | `parting.rs` |
//! | distribution of sessions over threads | `spread.rs` |
//! | flows that peers send through the hub | `waypoint.rs` |
//! | clients that use WireGuard's own apps | `wireguard.rs`, `wireguard_invitation.rs` |
//!
//! Enrolment is in `hawser_control::enrolment`, sessions in `hawser_control::hub`. A newcomer
//! starts with [`run`].
#![forbid(unsafe_code)]

mod access;
mod accounts;
mod carrying;
mod commands;
mod connections;
mod departed;
pub mod doctor;
mod expiring;
mod limits;
mod names;
mod over_tls;
mod parting;
mod preparation;
mod reach;
mod reload;
mod requests;
mod resolvers;
mod spread;
mod stores;
mod waypoint;
mod wireguard;
mod wireguard_invitation;
mod zone;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use anyhow::Context;
use hawser_config::identity::Identity;
use hawser_config::{HubConfig, log_reload};
use hawser_control::enrolment::{POLL_INTERVAL, SharedStore};
use hawser_control::handover::{self, HubSessionCheckpoint, Inherited};
use hawser_control::hub::HubControl;
use hawser_control::over_gre::listen::Listening as OverGre;
use hawser_control::peer::{Guests, guest_news};
use hawser_control::quic_socket::{Ports, SharedSocket};
use hawser_control::report::PLANE_ENDED;
use hawser_control::tls;
use hawser_dataplane::checkpoint::SessionCheckpoint;
use hawser_dataplane::{Change, Command, DataPlane, Event, Orders, PathSnapshot};
use hawser_host::control_socket::ControlSocket;
use hawser_host::logging::LogLevel;
use hawser_host::run_dir::{HubClaim, Role, RunDir};
use hawser_host::signals::Signals;
use hawser_host::{history, metrics};
use hawser_linux::direct::moving::RELAY_TABLE;
use hawser_linux::firewalls::forward_drops;
use hawser_linux::isolation::Isolation;
use hawser_linux::netlink::{self, Watch};
use hawser_linux::service;
use hawser_linux::system::{System, drop_nft_table};
use hawser_units::Net;
use tokio::sync::{mpsc, watch};

use crate::waypoint::{Done, Policy, Waypoint};
use accounts::Accounts;
use carrying::Carrying;
use connections::Connections;
use departed::Departed;
use expiring::Expiring;
use names::Terms;
use over_tls::{OverTls, over_tls};
use parting::Parting;
use preparation::prepare;
use reach::{Leading, Reach, client_policy};
use stores::{KEY, load, share_store};
use wireguard::WireGuardClients;

pub use access::{Verdict, test_policy};
pub use accounts::{to_csv, usage};
pub use commands::{
    AdmittedPorts, HubInit, Remaining, admitted_ports, drain, init, invite, list, log, migrate,
    not_confirmed, remaining, revoke,
};
pub use limits::{limit, with_limits};
pub use reach::{forward, subnet};
pub use spread::Spread;
pub use wireguard_invitation::{WireGuardInvitation, invite_wireguard};

/// Parameters of running a hub.
pub struct HubOptions {
    /// Directory of key, configuration and clients.
    pub dir: PathBuf,
    /// Directory of lock, socket and journal.
    pub run_dir: PathBuf,
    /// Changes the log filter while running.
    pub log: LogLevel,
    /// Number of thread pairs for the sessions.
    pub spread: Spread,
}

/// Runs a hub until it is asked to end.
///
/// # Errors
/// The reason why it cannot work, in one line; the system is restored.
pub async fn run(options: HubOptions) -> anyhow::Result<()> {
    let mut config = load(&options.dir)?;
    let run_dir = RunDir::take(&options.run_dir)?;
    let _claim = HubClaim::take(&options.dir, &options.run_dir)?;
    let identity = Identity::load_or_create(&options.dir.join(KEY))?;
    let store = share_store(&options.dir, &config, &identity).await?;
    for notice in store.notices() {
        tracing::warn!("{notice}");
    }
    let mut system = System::open(&run_dir.journal())
        .await
        .context("cannot prepare the system (are you root?)")?;
    let _keeper = system.keep().context("cannot watch the system")?;
    let pairs = options.spread.pairs();
    let interface = (config.interface.0.as_str(), config.mtu.0);
    let listen = config.listen_address();
    let mut inherited = Inherited::take(interface, listen, pairs.count(), run_dir.path());
    let kept = std::mem::take(&mut inherited.queues);
    let queues = options.spread.queues(&config, kept)?;
    let leading = Leading::of(&store, config.nat, pairs, &config.reach);
    let local = own_addresses().await?;
    let terms = Terms::take_over(&mut config);
    resolvers::complete_and_log(&mut config, &local);
    let isolation = leading.isolation(&config);
    let policy = Arc::new(client_policy(&isolation, &local));
    let wireguard = match &config.wireguard {
        Some(wireguard) => Some(WireGuardClients::start(
            wireguard,
            (&options.dir, run_dir.path()),
            (queues[0].try_clone()?, Arc::clone(&policy)),
        )?),
        None => None,
    };
    let carrying = Carrying::start((&config, policy), &options.spread, store, queues, inherited);
    let mut prepared = prepare(&mut system, &config, &isolation).await;
    if prepared.is_ok() {
        // A table from a crash is harmless and is removed with the rest below.
        prepared = system.expect_nft_table(RELAY_TABLE).map_err(Into::into);
        drop_nft_table(RELAY_TABLE);
    }
    // This is the last step, because between removal and setup of NAT the kernel would reset the
    // clients' connections.
    system.undo_left().await;
    let result = match (carrying, prepared) {
        (Ok(carrying), Ok(())) => {
            serve(
                options,
                ((config, terms), (isolation, local), system.clone()),
                &identity,
                (carrying, wireguard),
                &run_dir,
            )
            .await
        }
        (Err(error), _) | (_, Err(error)) => Err(error),
    };
    if matches!(result, Ok(Ended::HandedOver)) {
        // The successor takes over the changes of the system, as after a crash.
        tracing::info!("handed over");
        return Ok(());
    }
    system.undo().await;
    tracing::info!("down");
    result.map(drop)
}

/// Outcome of running a hub.
enum Ended {
    /// The hub stopped after notifying its clients.
    Stopped,
    /// Another process continues.
    HandedOver,
}

async fn serve(
    options: HubOptions,
    ((config, terms), (isolation, local), system): ((HubConfig, Terms), (Isolation, Vec<Net>), System),
    identity: &Identity,
    (carrying, wireguard): (Carrying, Option<WireGuardClients>),
    run_dir: &RunDir,
) -> anyhow::Result<Ended> {
    let listen = config.listen_address();
    let Carrying {
        mut plane,
        control,
        store,
        socket: udp,
        restored,
        lost,
    } = carrying;
    let orders = Arc::clone(&plane.orders);
    let (_, nothing) = tokio::sync::mpsc::channel(1);
    let datagrams = std::mem::replace(&mut plane.control, nothing);
    let endpoint = quinn::Endpoint::new_with_abstract_socket(
        tls::hub_endpoint_config(identity),
        Some(tls::server_config(identity)?),
        Arc::new(SharedSocket::new(Ports::of(udp)?, datagrams)),
        Arc::new(quinn::TokioRuntime),
    )?;
    let (tell, guests) = guest_news();
    let tls = over_tls(&config, listen, identity, &options.dir)?;
    let control = control.with_receipts(identity.signer()?);
    let mut control = control.with_movers(Guests::new(store.clone(), listen.port(), tell));
    let gre = config.gre.clone().map(|gre| OverGre::start(gre, listen));
    let gre = gre.transpose().context("hub.toml, [gre]")?;
    if let Some(tls) = &tls {
        control = control.with_relays(tls.listening.connections().clone());
    }
    if let Some(gre) = &gre {
        control = control.with_relays(gre.connections().clone());
    }
    let (policy, given) = watch::channel(Policy::new(isolation.clone(), &config));
    let reach = Reach::new(
        (store.clone(), system.clone()),
        (config.nat, options.spread.pairs(), config.reach.clone()),
        (isolation, local),
        (orders.clone(), wireguard.clone()),
    );
    let waypoint = Waypoint::new(system.clone(), guests, store.clone(), given);
    let relayed = waypoint.done();
    hawser_linux::tasks::spawn(waypoint.run());
    let (terms, answered) = watch::channel(terms);
    if config.names {
        names::serve(store.clone(), answered);
    }
    let socket = ControlSocket::listen(run_dir.socket())?;
    metrics::publish(config.metrics, config.otlp.clone(), run_dir.socket()).await?;
    if config.history {
        history::keep(history::file(&options.dir, Role::Hub), run_dir.socket());
    }
    if let Some(wireguard) = &wireguard {
        wireguard.follow(&control, true).await;
        orders(Change::SetOtherClients(wireguard.others()).into());
        wireguard.resume();
    }
    if let Err(error) = service::ready() {
        tracing::warn!(%error, "cannot notify the service manager that the hub is up");
    }
    tracing::info!(%listen, interface = config.interface.0, sessions = restored, lost, "hub is up");
    let hub = Hub {
        options,
        running: config.clone(),
        config,
        control,
        orders,
        policy,
        reach,
        relayed,
        store,
        tls,
        gre,
        wireguard,
        identity: identity.clone(),
        firewalls: Vec::new(),
        connections: connections::Watched::default(),
        terms,
        started: Instant::now(),
    };
    hub.run(plane, socket, endpoint).await
}

struct Hub {
    options: HubOptions,
    /// Configuration at the start: settings that need a restart keep its values.
    running: HubConfig,
    config: HubConfig,
    control: HubControl,
    orders: Orders,
    policy: watch::Sender<Policy>,
    reach: Reach,
    relayed: Arc<Done>,
    store: SharedStore,
    /// Listener for clients whose networks block UDP.
    tls: Option<OverTls>,
    /// Listener for clients through members without Hawser.
    gre: Option<OverGre>,
    /// Clients that use WireGuard.
    wireguard: Option<WireGuardClients>,
    identity: Identity,
    /// Other firewalls that drop packets that the hub forwards.
    firewalls: Vec<String>,
    connections: connections::Watched,
    /// Terms of the resolver for names.
    terms: watch::Sender<Terms>,
    started: Instant,
}

impl Hub {
    async fn run(
        mut self,
        mut plane: DataPlane,
        mut socket: ControlSocket,
        endpoint: quinn::Endpoint,
    ) -> anyhow::Result<Ended> {
        let mut signals = Signals::new()?;
        let serving = hawser_linux::tasks::spawn({
            let (control, endpoint) = (self.control.clone(), endpoint.clone());
            async move { control.serve(&endpoint).await }
        });
        let mut sweep = tokio::time::interval(SWEEP);
        let mut meter = tokio::time::interval(METER);
        meter.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let mut accounts = Accounts::open(&self.options.dir, self.store.clone());
        let (mut departed, mut expiring) = (Departed::default(), Expiring::default());
        let (carries, mut carried) = mpsc::channel(1);
        self.control.hold_against_store();
        let mut counts_quotas = self.see_to_quotas(&accounts);
        let mut addresses = Watch::addresses()?;
        let mut look = tokio::time::interval(POLL_INTERVAL);
        look.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                event = plane.events.recv() => self.on_event(&event.context(PLANE_ENDED)?),
                local = addresses.next() => self.reach.set_local(local?),
                Some(asked) = socket.requests.recv() => if self.on_asked(asked).await { break },
                _ = look.tick() => {
                    self.control.hold_against_store();
                    self.follow_wireguard().await;
                    self.see_to_reach().await;
                    departed.follow(&self.store);
                    if self.control.has_quotas() != counts_quotas {
                        counts_quotas = self.see_to_quotas(&accounts);
                    }
                }
                _ = sweep.tick() => {
                    self.control.sweep(Instant::now());
                    self.save_wireguard().await;
                    self.check_firewalls();
                    if let Some(said) = self.connections.handle_seen(Connections::read()) {
                        tracing::warn!("{said}");
                    }
                }
                _ = meter.tick() => {
                    expiring.follow(&self.store, SystemTime::now());
                    let carries = carries.clone();
                    let places = self.tls.as_ref().map(|tls| tls.listening.connections().clone());
                    (self.orders)(Command::Snapshot(Box::new(move |snapshot| {
                        if let Some(places) = &places {
                            let at = |(session, path): (u64, &PathSnapshot)| Some((session, path.remote?));
                            places.claim(snapshot.paths().filter_map(at));
                        }
                        // If a sample is still waiting, the next one includes this one.
                        let _ = carries.try_send(accounts::path_counters(&snapshot));
                    })));
                }
                Some(mut counters) = carried.recv() => {
                    let transferred = counters.iter();
                    let transferred = transferred.map(|(path, used)| (*path, [used.received, used.sent]));
                    self.control.handle_transferred(transferred);
                    let mut names = self.control.names();
                    if let Some(wireguard) = &self.wireguard {
                        wireguard::count(&wireguard.status().await.peers, &mut counters, &mut names);
                    }
                    let client = |session| names.get(&session).map(String::as_str);
                    accounts.handle_transferred(counters, client, self.now());
                    counts_quotas = self.see_to_quotas(&accounts);
                }
                reload = signals.next() => {
                    if reload {
                        log_reload(self.reload().await);
                        continue;
                    }
                    let (when, is_interrupted) = (self.config.when_stopped, signals.is_interrupted());
                    match Parting::of(when, is_interrupted, &self.options.run_dir) {
                        Parting::End => break,
                        to @ (Parting::ToManager | Parting::ToRunDir) => {
                            self.save_wireguard().await;
                            self.hand_over(&plane, to).await;
                            return Ok(Ended::HandedOver);
                        }
                    }
                }
            }
        }
        self.control.shut_down();
        self.save_wireguard().await;
        // The goodbyes must be sent before the socket is closed.
        tokio::time::sleep(GOODBYE).await;
        endpoint.close(0_u8.into(), b"");
        let _ = tokio::time::timeout(GOODBYE, endpoint.wait_idle()).await;
        serving.abort();
        Ok(Ended::Stopped)
    }

    /// Updates the WireGuard clients from the store.
    async fn follow_wireguard(&self) {
        if let Some(wireguard) = &self.wireguard {
            wireguard.follow(&self.control, false).await;
        }
    }

    /// Saves the endpoints of WireGuard clients for the next process.
    async fn save_wireguard(&self) {
        if let Some(wireguard) = &self.wireguard {
            wireguard.save().await;
        }
    }

    /// Enforces the clients' quotas by their usage. Returns whether any client has a quota.
    fn see_to_quotas(&self, accounts: &Accounts) -> bool {
        let counts = self.control.has_quotas();
        if counts {
            self.control.set_used(accounts.used());
        }
        counts
    }

    /// Passes the sessions to the next process.
    async fn hand_over(&self, plane: &DataPlane, to: Parting) {
        let mut control = self.control.hand_over();
        let planes = plane.hand_over().await;
        let joined = |plane: SessionCheckpoint| {
            let control = control.remove(&plane.session)?;
            Some(HubSessionCheckpoint { control, plane })
        };
        let sessions = planes.into_iter().filter_map(joined).collect();
        let handed_over = if to == Parting::ToRunDir {
            handover::leave(&self.options.run_dir, sessions)
        } else {
            handover::hand_over(sessions)
        };
        if let Err(error) = handed_over {
            let error = format!("{error:#}");
            tracing::warn!(error, "sessions are not handed over: clients begin new ones");
        }
    }

    /// Returns the time since the start.
    fn now(&self) -> hawser_units::Instant {
        hawser_units::Instant::ZERO + self.started.elapsed()
    }

    fn on_event(&self, event: &Event) {
        match *event {
            Event::RekeyWanted { session } => self.control.rekey(session),
            Event::Path { session, path, state } => {
                tracing::debug!(session = session.0, path = path.0, ?state, "path");
            }
            Event::Policed {
                session,
                path,
                is_policed,
            } => tracing::debug!(session = session.0, path = path.0, is_policed, "policing"),
            Event::Alive { session, alive } => tracing::debug!(session = session.0, alive, "session"),
        }
    }

    /// Reports other firewalls that have started to drop packets that the hub forwards.
    fn check_firewalls(&mut self) {
        let interface = &self.running.interface.0;
        let found = forward_drops(interface);
        for chain in found.iter().filter(|chain| !self.firewalls.contains(chain)) {
            tracing::warn!(
                chain,
                "another firewall drops packets of clients: change it to accept packets from and to {interface}"
            );
        }
        self.firewalls = found;
    }
}

/// Lists the machine's addresses, each with its prefix length.
async fn own_addresses() -> anyhow::Result<Vec<Net>> {
    let listed = netlink::addresses().await;
    listed.context("cannot list the addresses of this machine")
}

/// Interval of searches for sessions that are over, and for changes of firewalls. Source: our
/// choice; a longer one reports them later, and sessions that are over take memory.
const SWEEP: Duration = Duration::from_secs(15);
/// Interval of reading paths' counters, and the maximum loss when a path is removed. Source: our
/// choice; a longer one loses more of an account, a shorter one interrupts the threads more often.
const METER: Duration = Duration::from_secs(1);
/// Time for goodbyes before and after the endpoint is closed. Source: our choice, a round trip on
/// most networks; a longer one delays the next hub's start, without a goodbye clients notice by
/// themselves.
const GOODBYE: Duration = Duration::from_millis(300);
