//! The hub: one UDP port, many clients.
//!
//! It starts by making the inner interface, its addresses, forwarding and NAT, each journalled.
//! Then one task waits for what happens next: the data plane's reports, questions over the control
//! socket, signals. Connections have tasks of their own. At the end clients are told, and the
//! system is put back.
//!
//! | question | file |
//! |---|---|
//! | how a hub starts, the event loop | this one ([`run`]) |
//! | commands about a hub that runs or does not: `init`, `invite`, `revoke` | `commands.rs` |
//! | ports and subnets that lead to clients | `reach.rs` |
//! | the resolvers that clients are given | `resolvers.rs` |
//! | names of clients | `names.rs`, `zone.rs` |
//! | what the rules say of a connection | `access.rs` |
//! | what was carried for whom | `accounts.rs` |
//! | how full the kernel's table of connections is | `connections.rs` |
//! | what clients may use: `limit` | `limits.rs` |
//! | connections of clients that were revoked | `departed.rs` |
//! | whether sessions are left to a successor | `parting.rs` |
//! | over how many threads sessions are spread | `spread.rs` |
//! | flows that peers send by way of the hub | `waypoint.rs` |
//!
//! Who is let in and what a session is are in `hawser_control::enrolment` and
//! `hawser_control::hub`. A newcomer starts with [`run`].
#![forbid(unsafe_code)]

mod access;
mod accounts;
mod commands;
mod connections;
mod departed;
pub mod doctor;
mod limits;
mod names;
mod parting;
mod reach;
mod resolvers;
mod spread;
mod waypoint;
mod zone;

use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, anyhow};
use hawser_config::identity::{Identity, random};
use hawser_config::{self as config, HubConfig, Nat, differing, log_reload};
use hawser_control::enrolment::{ClientStore, LOOK, SharedStore};
use hawser_control::handover::{self, HubSessionCheckpoint, Inherited};
use hawser_control::hub::{HUB_SOCKET, HubControl, HubSettings, PATH_MTU};
use hawser_control::over_gre::listen::Listening as OverGre;
use hawser_control::over_tls::acme::Acme;
use hawser_control::over_tls::listen::{Listening, Shown};
use hawser_control::peer::{Guests, guest_news};
use hawser_control::quic_socket::{Ports, SharedSocket};
use hawser_control::report::{self, PLANE_ENDED};
use hawser_control::tls;
use hawser_dataplane::checkpoint::SessionCheckpoint;
use hawser_dataplane::{
    Change, Command, DataPlane, DataPlaneConfig, Event, Orders, Pairs, PathSnapshot, StreamUse, Trial,
};
use hawser_host::control_socket::{Asked, ControlSocket, NO_REPEATER, Request};
use hawser_host::logging::LogLevel;
use hawser_host::run_dir::{HubClaim, Role, RunDir};
use hawser_host::signals::Signals;
use hawser_host::{history, metrics};
use hawser_linux::direct::moving::RELAY_TABLE;
use hawser_linux::firewalls::forward_drops;
use hawser_linux::isolation::{ISOLATION_TABLE, Isolation, masquerade};
use hawser_linux::netlink::{self, Watch};
use hawser_linux::outer_port::{OUTER_PORT_TABLE, untracked};
use hawser_linux::service;
use hawser_linux::stream_sockets::raise_file_limit;
use hawser_linux::system::{System, drop_nft_table};
use hawser_linux::tun::Tun;
use hawser_linux::udp::DataSocket;
use hawser_proto::client_filter::Policy as ClientPolicy;
use hawser_units::{Net, is_private};
use hawser_wire::frame::Format;
use serde_json::{Value, json};
use tokio::sync::{mpsc, watch};

use crate::waypoint::{Done, Policy, Waypoint};
use accounts::Accounts;
use connections::Connections;
use departed::Departed;
use names::Terms;
use parting::Parting;
use reach::{Leading, Reach, client_policy};

pub use access::{Verdict, test_policy};
pub use accounts::{to_csv, usage};
pub use commands::{
    HubInit, WaysIn, connected, drain, init, invite, list, migrate, not_confirmed, revoke, ways_in,
};
pub use limits::{limit, with_limits};
pub use reach::{forward, subnet};
pub use spread::Spread;

/// How to run a hub.
pub struct HubOptions {
    /// Where key, configuration and clients are.
    pub dir: PathBuf,
    /// Where lock, socket and journal are.
    pub run_dir: PathBuf,
    /// Changes the log filter while running.
    pub log: LogLevel,
    /// Over how many pairs of threads sessions are spread.
    pub spread: Spread,
}

/// Runs a hub until it is asked to end.
///
/// # Errors
/// What keeps it from working, in one line; the system is as it was before.
pub async fn run(options: HubOptions) -> anyhow::Result<()> {
    let mut config = load(&options.dir)?;
    let run_dir = RunDir::take(&options.run_dir)?;
    let _claim = HubClaim::take(&options.dir, &options.run_dir)?;
    let identity = Identity::load_or_create(&options.dir.join(KEY))?;
    let store = share_store(&options.dir, &config, &identity).await?;
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
    let policy = client_policy(&isolation, &local);
    let carrying = Carrying::start((&config, policy), &options.spread, store, queues, inherited);
    let mut prepared = prepare(&mut system, &config, &isolation).await;
    if prepared.is_ok() {
        // What a crash left is in the way of nobody and goes with the rest below.
        prepared = system.expect_nft_table(RELAY_TABLE).map_err(Into::into);
        drop_nft_table(RELAY_TABLE);
    }
    // Only now: between taking NAT away and setting it up again the kernel would reset the clients'
    // connections.
    system.undo_left().await;
    let result = match (carrying, prepared) {
        (Ok(carrying), Ok(())) => {
            serve(
                options,
                ((config, terms), (isolation, local), system.clone()),
                &identity,
                carrying,
                &run_dir,
            )
            .await
        }
        (Err(error), _) | (_, Err(error)) => Err(error),
    };
    if matches!(result, Ok(Ended::HandedOver)) {
        // The successor takes over what was changed in the system, as after a crash.
        tracing::info!("handed over");
        return Ok(());
    }
    system.undo().await;
    tracing::info!("down");
    result.map(drop)
}

/// How a hub has ended.
enum Ended {
    /// For good: clients were told.
    Stopped,
    /// Another process goes on.
    HandedOver,
}

/// The data plane of a hub, with the sessions of the process before: it carries their packets while
/// the rest of the hub starts.
struct Carrying {
    plane: DataPlane,
    control: HubControl,
    store: SharedStore,
    socket: Arc<UdpSocket>,
    /// Sessions of the process before that go on, and that do not.
    restored: usize,
    lost: usize,
}

impl Carrying {
    fn start(
        (config, policy): (&HubConfig, ClientPolicy),
        spread: &Spread,
        store: SharedStore,
        queues: Vec<Tun>,
        inherited: Inherited,
    ) -> anyhow::Result<Self> {
        let sockets = spread.sockets(config.listen_address(), inherited.sockets)?;
        let sockets: Vec<_> = sockets.into_iter().map(Arc::new).collect();
        handover::keep_open(&queues, &sockets);
        let seed = u64::from_be_bytes(random());
        raise_file_limit();
        let plane = hawser_dataplane::start(DataPlaneConfig {
            queues,
            pairs: spread.pairs(),
            format: Format::Ip,
            client_policy: Some(Arc::new(policy)),
            streams: stream_use(config),
            trial: Trial::default(),
            seed,
        })?;
        let control = HubControl::new(
            store.clone(),
            settings(config, spread.pairs()),
            plane.orders.clone(),
        );
        let all = inherited.sessions.len();
        let restored = inherited.sessions.into_iter().map(|saved| control.restore(saved));
        let restored = restored.filter(|is_restored| *is_restored).count();
        // Only now: what has queued in the socket since the process before must find its session.
        for (pair, socket) in (0..).zip(&sockets) {
            let socket = DataSocket::new(socket.clone()).context("the hub's socket cannot be used")?;
            (plane.orders)(
                Change::AddSocket {
                    id: HUB_SOCKET,
                    socket: Arc::new(socket),
                    pair,
                }
                .into(),
            );
        }
        Ok(Self {
            plane,
            control,
            store,
            // What is no data packet comes to the first, and its answers leave by it.
            socket: sockets[0].clone(),
            restored,
            lost: all - restored,
        })
    }
}

async fn serve(
    options: HubOptions,
    ((config, terms), (isolation, local), system): ((HubConfig, Terms), (Isolation, Vec<Net>), System),
    identity: &Identity,
    carrying: Carrying,
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
        control = control.with_relays(tls.listening.places().clone());
    }
    if let Some(gre) = &gre {
        control = control.with_relays(gre.places().clone());
    }
    let (policy, given) = watch::channel(Policy::new(isolation.clone(), &config));
    let reach = Reach::new(
        (store.clone(), system.clone()),
        (config.nat, options.spread.pairs(), config.reach.clone()),
        (isolation, local),
        orders.clone(),
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
    if let Err(error) = service::ready() {
        tracing::warn!(%error, "the service manager does not hear that the hub is up");
    }
    tracing::info!(%listen, interface = config.interface.0, sessions = restored, lost, "hub is up");
    let hub = Hub {
        options,
        config,
        control,
        orders,
        policy,
        reach,
        relayed,
        store,
        tls,
        gre,
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
    config: HubConfig,
    control: HubControl,
    orders: Orders,
    policy: watch::Sender<Policy>,
    reach: Reach,
    relayed: Arc<Done>,
    store: SharedStore,
    /// Where clients come in whose networks block UDP.
    tls: Option<OverTls>,
    /// Where they come in through members without Hawser.
    gre: Option<OverGre>,
    identity: Identity,
    /// Firewalls of others that drop what the hub forwards.
    firewalls: Vec<String>,
    connections: connections::Watched,
    /// Terms of the resolver for names.
    terms: watch::Sender<Terms>,
    started: Instant,
}

/// The listener for TLS on TCP, and what it shows.
struct OverTls {
    listening: Listening,
    shown: Shown,
    /// Sees to the certificate.
    acme: Option<Acme>,
}

impl OverTls {
    fn status(&self) -> Value {
        let mut status = self.listening.status();
        status["acme"] = json!(self.acme.as_ref().map(Acme::status));
        status
    }
}

/// Listens for TLS on TCP, unless the configuration says otherwise. A port that nobody has asked
/// for may be taken: by a web server, for example.
fn over_tls(
    config: &HubConfig,
    udp: SocketAddr,
    identity: &Identity,
    dir: &Path,
) -> anyhow::Result<Option<OverTls>> {
    let Some(at) = config.tls_address() else {
        return Ok(None);
    };
    let shown = Shown::new(identity, config.tls.certificate.as_ref()).context("hub.toml, [tls]")?;
    match Listening::start(at, udp, shown.clone()) {
        Ok(listening) => Ok(Some(OverTls {
            acme: certificate_of(config, dir, &shown),
            listening,
            shown,
        })),
        Err(error) if config.tls.listen.is_none() => {
            let error = format!("{error:#}");
            tracing::warn!(
                error,
                "clients whose network blocks UDP do not get in: name another port in hub.toml, [tls], listen, or \"off\""
            );
            Ok(None)
        }
        Err(error) => Err(error.context("hub.toml, [tls], listen")),
    }
}

/// Sees to a certificate from an authority, where the configuration asks for one.
fn certificate_of(config: &HubConfig, dir: &Path, shown: &Shown) -> Option<Acme> {
    let acme = config.tls.acme.clone()?;
    Some(Acme::start(acme, dir, shown.clone()))
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
        let mut departed = Departed::default();
        let (carries, mut carried) = mpsc::channel(1);
        self.control.hold_against_store();
        let mut counts_quotas = self.see_to_quotas(&accounts);
        let mut addresses = Watch::addresses()?;
        let mut look = tokio::time::interval(LOOK);
        look.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                event = plane.events.recv() => self.on_event(&event.context(PLANE_ENDED)?),
                local = addresses.next() => self.reach.set_local(local?),
                Some(asked) = socket.requests.recv() => if self.on_asked(asked).await { break },
                _ = look.tick() => {
                    self.control.hold_against_store();
                    self.see_to_reach().await;
                    departed.follow(&self.store);
                    if self.control.has_quotas() != counts_quotas {
                        counts_quotas = self.see_to_quotas(&accounts);
                    }
                }
                _ = sweep.tick() => {
                    self.control.sweep(Instant::now());
                    self.look_for_firewalls();
                    if let Some(said) = self.connections.handle_seen(Connections::read()) {
                        tracing::warn!("{said}");
                    }
                }
                _ = meter.tick() => {
                    let carries = carries.clone();
                    let places = self.tls.as_ref().map(|tls| tls.listening.places().clone());
                    (self.orders)(Command::Snapshot(Box::new(move |snapshot| {
                        if let Some(places) = &places {
                            let at = |(session, path): (u64, &PathSnapshot)| Some((session, path.remote?));
                            places.claim(snapshot.paths().filter_map(at));
                        }
                        // Where one waits, the next second's has this one's too.
                        let _ = carries.try_send(accounts::carried(&snapshot));
                    })));
                }
                Some(carried) = carried.recv() => {
                    let ways = carried.iter().map(|(path, used)| (*path, [used.received, used.sent]));
                    self.control.handle_carried(ways);
                    let names = self.control.names();
                    let client = |session| names.get(&session).map(String::as_str);
                    accounts.handle_carried(carried, client, self.now());
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
                            self.hand_over(&plane, to).await;
                            return Ok(Ended::HandedOver);
                        }
                    }
                }
            }
        }
        self.control.shut_down();
        // The goodbyes go out before the socket does.
        tokio::time::sleep(GOODBYE).await;
        endpoint.close(0_u8.into(), b"");
        let _ = tokio::time::timeout(GOODBYE, endpoint.wait_idle()).await;
        serving.abort();
        Ok(Ended::Stopped)
    }

    /// Holds clients to their quotas, by what they have used so far; whether any has one.
    fn see_to_quotas(&self, accounts: &Accounts) -> bool {
        let counts = self.control.has_quotas();
        if counts {
            self.control.set_used(accounts.used());
        }
        counts
    }

    /// Leaves the sessions to the process that is started next.
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

    /// The time since the start.
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

    /// Answers; true: the hub shall end.
    async fn on_asked(&mut self, asked: Asked) -> bool {
        let Asked { request, answer } = asked;
        let result = match request {
            Request::Status => {
                let mut status = self.status();
                let tls = self
                    .tls
                    .as_ref()
                    .map(|tls| ("tls", tls.listening.places().clone()));
                let gre = self.gre.as_ref().map(|gre| ("gre", gre.places().clone()));
                let relays: Vec<_> = tls.into_iter().chain(gre).collect();
                report::with_snapshot(&self.orders, answer, move |mut snapshot| {
                    let mut relayed = Vec::new();
                    for session in &mut snapshot.sessions {
                        for path in &mut session.paths {
                            let Some(remote) = path.remote else { continue };
                            for (over, places) in &relays {
                                if places.is_relayed(remote) {
                                    path.remote = Some(places.origin(remote));
                                    relayed.push((session.session, path.path, *over));
                                }
                            }
                        }
                    }
                    status["thread_pairs"] = json!(snapshot.pairs);
                    report::add_snapshot(&mut status, snapshot);
                    name_relayed(&mut status, &relayed);
                    name_sessions(&mut status);
                    status
                });
                return false;
            }
            Request::Explain { flow } => {
                report::with_snapshot(&self.orders, answer, move |snapshot| {
                    report::explain(&snapshot, &flow)
                });
                return false;
            }
            Request::Reload => self
                .reload()
                .await
                .map(|restart| json!({ "needs_restart": restart })),
            Request::Move { .. } => Err(anyhow!(
                "this is a hub: flows are moved where `hawser up --direct` runs"
            )),
            Request::Weight { .. }
            | Request::Pause { .. }
            | Request::Cap { .. }
            | Request::Use { .. }
            | Request::Scheduler { .. }
            | Request::AddRule { .. }
            | Request::RemoveRule { .. } => Err(anyhow!("this is a hub: ask where `hawser up` runs")),
            Request::Migrate { .. } => Err(anyhow!("this is a hub: {NO_REPEATER}")),
            Request::Drain { is_on } => {
                self.control.drain(is_on);
                Ok(json!({ "draining": is_on }))
            }
            Request::Revoke { name } => {
                let control = self.control.clone();
                hawser_linux::tasks::spawn(async move {
                    let revoked = control.revoke(&name).await;
                    let _ = answer.send(revoked.map(|()| json!({ "revoked": name })));
                });
                return false;
            }
            Request::Down => {
                let _ = answer.send(Ok(json!({ "state": "down" })));
                return true;
            }
        };
        let _ = answer.send(result);
        false
    }

    fn status(&self) -> Value {
        let counters = self.control.counters().into_iter();
        let counters: serde_json::Map<_, _> = counters
            .map(|(reason, count)| (reason.to_owned(), json!(count)))
            .collect();
        json!({
            "role": "hub",
            "state": if self.control.is_draining() { "draining" } else { "up" },
            "endpoints": self.config.addresses().iter().map(ToString::to_string).collect::<Vec<_>>(),
            "interface": self.config.interface.0,
            "uptime_s": self.started.elapsed().as_secs(),
            "clients": self.control.clients(),
            "waypoint": self.relayed.status(),
            "tls": self.tls.as_ref().map(OverTls::status),
            "gre": self.gre.as_ref().map(|gre| gre.status()),
            "counters": counters,
            "store": self.store.fleet_status(),
            "notice": self.notice(),
        })
    }

    /// What an operator should know.
    fn notice(&self) -> Option<String> {
        let drops = |chain: &String| {
            format!(
                "{chain} drops what is forwarded: let it accept {}",
                self.config.interface.0
            )
        };
        let mut all: Vec<_> = self.firewalls.iter().map(drops).collect();
        all.extend(self.connections.notice());
        all.extend(self.reach.notices());
        all.extend(self.store.trouble());
        (!all.is_empty()).then(|| all.join("; "))
    }

    /// Reports firewalls of others that have begun to drop what the hub forwards.
    fn look_for_firewalls(&mut self) {
        let interface = &self.config.interface.0;
        let found = forward_drops(interface);
        for chain in found.iter().filter(|chain| !self.firewalls.contains(chain)) {
            tracing::warn!(
                chain,
                "another firewall drops what clients send: let it accept packets that come in or leave by {interface}"
            );
        }
        self.firewalls = found;
    }

    async fn reload(&mut self) -> anyhow::Result<Vec<&'static str>> {
        let mut fresh = load(&self.options.dir)?;
        let wants_names = std::mem::replace(&mut fresh.names, self.config.names);
        self.terms.send_replace(Terms::take_over(&mut fresh));
        if fresh.dns.is_empty() {
            resolvers::complete_and_log(&mut fresh, &own_addresses().await?);
        }
        if let Some(tls) = &mut self.tls {
            let is_got_already = tls.acme.is_some() && fresh.tls.acme == self.config.tls.acme;
            if !is_got_already {
                // The files may have changed under the same names.
                let files = fresh.tls.certificate.as_ref();
                tls.shown
                    .renew(&self.identity, files)
                    .context("hub.toml, [tls]")?;
                tls.acme = certificate_of(&fresh, &self.options.dir, &tls.shown);
            }
        }
        let old = std::mem::replace(&mut self.config, fresh);
        let new = &self.config;
        let fixed = [
            (
                "endpoints (for new invitations: at once; port: after a restart)",
                old.listen_address() != new.listen_address(),
            ),
            ("pool", old.pool != new.pool),
            ("pool6", old.pool6 != new.pool6),
            ("interface", old.interface != new.interface),
            ("mtu", old.mtu != new.mtu),
            ("nat", old.nat != new.nat),
            ("names", old.names != wants_names),
            ("nat_addresses", old.nat_addresses != new.nat_addresses),
            ("thread_pairs", old.thread_pairs != new.thread_pairs),
            ("metrics", old.metrics != new.metrics),
            ("otlp", old.otlp != new.otlp),
            ("history", old.history != new.history),
            ("store", old.store != new.store),
            ("streams", old.streams != new.streams),
            ("tls.listen", old.tls.listen != new.tls.listen),
            (
                "gre (whether it is there)",
                old.gre.is_some() != new.gre.is_some(),
            ),
        ];
        let restart = differing(&fixed);
        if let (Some(gre), Some(config)) = (&self.gre, &new.gre) {
            gre.set(config.clone());
        }
        self.options.log.set(new.log.as_ref())?;
        // What stays until a restart, stays in the rules too.
        let isolation = HubConfig {
            pool: old.pool,
            pool6: old.pool6,
            interface: old.interface.clone(),
            nat_addresses: old.nat_addresses.clone(),
            ..new.clone()
        };
        self.reach.set_allowed(&new.reach);
        let isolation = self.reach.leading().isolation(&isolation);
        self.reach.enforce(isolation.clone()).await?;
        self.policy.send_replace(Policy::new(isolation, new));
        let mut settings = settings(new, self.options.spread.pairs());
        (settings.pool, settings.mtu) = (old.pools(), old.mtu.0);
        self.control.apply(settings);
        self.store.set_endpoints(&new.addresses());
        Ok(restart)
    }
}

/// Says of each path whether it comes by UDP, by TLS or inside GRE.
fn name_relayed(status: &mut Value, relayed: &[(u64, u16, &str)]) {
    for session in status["sessions"].as_array_mut().into_iter().flatten() {
        let number = session["session"].as_u64();
        for path in session["paths"].as_array_mut().into_iter().flatten() {
            let is_it = |(session, id, _): &&(u64, u16, &str)| {
                Some(*session) == number && Some(u64::from(*id)) == path["path"].as_u64()
            };
            path["over"] = json!(relayed.iter().find(is_it).map_or("udp", |(_, _, over)| over));
        }
    }
}

/// Says which client a session of the snapshot belongs to.
fn name_sessions(status: &mut Value) {
    let clients = status["clients"].as_array().cloned().unwrap_or_default();
    let Some(sessions) = status["sessions"].as_array_mut() else {
        return;
    };
    for session in sessions {
        let owner = clients
            .iter()
            .find(|client| client["session"] == session["session"]);
        session["client"] = owner.map_or(Value::Null, |client| client["name"].clone());
    }
}

fn load(dir: &Path) -> anyhow::Result<HubConfig> {
    let path = dir.join(CONFIG);
    if !path.exists() {
        return Err(anyhow!(
            "there is no hub in {}: `hawser hub init --endpoint HOST:PORT` makes one",
            dir.display()
        ));
    }
    let config = config::load(&path)?;
    config::check_hub_secrecy(&path, &config)?;
    Ok(config)
}

/// The clients of a hub, for a command.
fn open_store(dir: &Path, config: &HubConfig) -> anyhow::Result<ClientStore> {
    let store = open_damaged_store(dir, config)?;
    store.refuse_damage()?;
    Ok(store)
}

/// The same, but records may be damaged.
fn open_damaged_store(dir: &Path, config: &HubConfig) -> anyhow::Result<ClientStore> {
    match &config.store {
        Some(store) => ClientStore::in_database(store, config.pools()),
        None => ClientStore::open_damaged(&dir.join(CLIENTS), config.pools()),
    }
}

/// The clients of a hub, for one that runs.
async fn share_store(dir: &Path, config: &HubConfig, identity: &Identity) -> anyhow::Result<SharedStore> {
    let Some(store) = config.store.clone() else {
        return Ok(SharedStore::new(open_store(dir, config)?));
    };
    let (pools, own, endpoints) = (config.pools(), identity.hash(), config.addresses());
    let opened = tokio::task::spawn_blocking(move || SharedStore::of_fleet(&store, pools, own, &endpoints));
    opened.await.expect("opening does not panic")
}

fn settings(config: &HubConfig, pairs: Pairs) -> HubSettings {
    HubSettings {
        pool: config.pools(),
        dns: config.dns.clone(),
        mtu: config.mtu.0,
        schedulers: config.schedulers.chosen(),
        layer_rules: config.layer_rules(),
        format: Format::Ip,
        path_mtu: PATH_MTU,
        limits: config.limits.clone(),
        pairs,
    }
}

async fn prepare(system: &mut System, config: &HubConfig, isolation: &Isolation) -> anyhow::Result<()> {
    let interface = &config.interface.0;
    let (v4, v6) = config.pools().hub();
    // Before anything is forwarded.
    system
        .nft_table(ISOLATION_TABLE, &isolation.body())
        .context("cannot keep clients apart")?;
    leave_untracked(system, config.listen_address().port());
    system.ignore_routers(interface)?;
    system.set_mtu(interface, config.mtu.0).await?;
    system.link_up(interface).await?;
    // The prefix length makes the route of the pool.
    system.add_address(interface, v4.into(), config.pool.1).await?;
    system.sysctl("net/ipv4/ip_forward", "1")?;
    let mut pools = vec![Net::new(config.pool.0, config.pool.1)];
    if let (Some(v6), Some(pool6)) = (v6, &config.pool6) {
        match system.add_address(interface, v6.into(), pool6.1).await {
            Ok(()) => {
                system.forward_ipv6()?;
                pools.push(Net::new(pool6.0, pool6.1));
            }
            Err(error) => tracing::warn!(%error, "no IPv6 for clients: this machine has it switched off"),
        }
    }
    pools.retain(|pool| masks(config.nat, is_private(pool.address)));
    if !pools.is_empty() {
        let body = masquerade(interface, &pools, &config.nat_addresses.0);
        system
            .nft_table("hawser_hub", &body)
            .context("cannot set up NAT (or set nat = false in hub.toml)")?;
    }
    Ok(())
}

/// Leaves the outer port out of the kernel's table of connections, which works without that too.
fn leave_untracked(system: &mut System, port: u16) {
    let Some(body) = untracked(port) else {
        tracing::info!(
            port,
            "a rule of this machine translates packets of the port: they are tracked"
        );
        return;
    };
    if let Err(error) = system.nft_table(OUTER_PORT_TABLE, &body) {
        tracing::warn!(%error, "the kernel's table of connections has entries for clients' packets");
    }
}

/// Lists the machine's addresses, each with its prefix length.
async fn own_addresses() -> anyhow::Result<Vec<Net>> {
    let listed = netlink::addresses().await;
    listed.context("cannot list the addresses of this machine")
}

/// The use of streams: none where clients do not appear under the hub's address, which is that of
/// the connections that it opens.
fn stream_use(config: &HubConfig) -> Option<StreamUse> {
    let has_nat_addresses = !config.nat_addresses.0.is_empty();
    let max_per_client = config.streams.max_per_client(has_nat_addresses);
    let pool6 = config.pool6.iter().map(|net| IpAddr::from(net.0));
    let mut pools = std::iter::once(IpAddr::from(config.pool.0)).chain(pool6);
    let is_translated = pools.all(|pool| masks(config.nat, is_private(pool)));
    (max_per_client > 0 && is_translated).then_some(StreamUse::Hub {
        max_per_client,
        connects: config.streams.connects(),
        memory: config.streams.memory.0,
    })
}

fn masks(nat: Nat, private: bool) -> bool {
    match nat {
        Nat::Auto => private,
        Nat::On => true,
        Nat::Off => false,
    }
}

const CONFIG: &str = "hub.toml";
const KEY: &str = "hub.key";
const CLIENTS: &str = "clients";
const SWEEP: Duration = Duration::from_secs(15);
/// How often is counted what paths have carried: as much as is lost of one that goes.
const METER: Duration = Duration::from_secs(1);
const GOODBYE: Duration = Duration::from_millis(300);
