//! The hub: one UDP port, many clients.
//!
//! It starts by making the inner interface, its addresses, forwarding and NAT, each journalled.
//! Then one task waits for what happens next: the data plane's reports, questions over the control
//! socket, signals. Connections have tasks of their own. At the end clients are told, and the
//! system is put back.

mod ports;

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, anyhow, bail};
use hawser_linux::direct::moving::RELAY_TABLE;
use hawser_linux::isolation::{ISOLATION_TABLE, Isolation};
use hawser_linux::service;
use hawser_linux::system::{System, drop_nft_table, masquerade};
use hawser_linux::tun::Tun;
use hawser_linux::udp::DataSocket;
use hawser_wire::frame::Format;
use serde_json::{Value, json};
use socket2::{Domain, Protocol, Socket, Type};
use tokio::sync::watch;

use crate::atomic_file;
use crate::client::{PLANE_ENDED, Signals, report};
use crate::config::{self, HubConfig, Nat, Net4, Net6, StoreConfig, differing, log_reload};
use crate::control::hub::{HUB_SOCKET, HubControl, HubSettings, LOOK, PATH_MTU};
use crate::control::peer::{Guests, guest_news};
use crate::control::quic_socket::{Ports, SharedSocket};
use crate::control::tls;
use crate::control_socket::{Asked, ControlSocket, Declined, Request, ask};
use crate::enrolment::{ClientStore, SharedStore, pool_of_fleet};
use crate::handover::{self, HubSessionCheckpoint, Inherited};
use crate::identity::{Identity, random};
use crate::invitation::{HubAddress, Invitation};
use crate::logging::LogLevel;
use crate::metrics;
use crate::over_tls::listen::{Listening, Shown};
use crate::run_dir::{self, HubClaim, RunDir};
use crate::waypoint::{Done, Policy, Waypoint};
use hawser_dataplane::checkpoint::SessionCheckpoint;
use hawser_dataplane::{Change, DataPlane, DataPlaneConfig, Event, Orders};
use ports::ClientPorts;

pub use ports::forward;

/// What `hawser hub init` is told.
#[derive(Clone, Debug)]
pub struct HubInit {
    /// Where clients reach the hub.
    pub endpoints: Vec<HubAddress>,
    /// Inner IPv4 pool; as the other hubs of its database have it, or 100.96.0.0/16, when absent.
    pub pool: Option<Net4>,
    /// Inner IPv6 pool; as the other hubs have it, or drawn at random, when absent.
    pub pool6: Option<Net6>,
    /// Whether to hide clients behind the hub's address.
    pub nat: bool,
    /// The database that keeps the clients, for several hubs.
    pub store: Option<StoreConfig>,
}

/// How to run a hub.
pub struct HubOptions {
    /// Where key, configuration and clients are.
    pub dir: PathBuf,
    /// Where lock, socket and journal are.
    pub run_dir: PathBuf,
    /// Changes the log filter while running.
    pub log: LogLevel,
}

/// Makes the key and the configuration of a hub.
///
/// # Errors
/// There is a configuration already, the directory cannot be written, or the database is of no use.
pub fn init(dir: &Path, init: &HubInit) -> anyhow::Result<PathBuf> {
    atomic_file::private_directory(dir)?;
    let path = dir.join(CONFIG);
    if path.exists() {
        bail!(
            "{} exists: edit it, or remove it to begin anew (clients stay enrolled while hub.key stays)",
            path.display()
        );
    }
    let (pool, pool6) = pools(init)?;
    Identity::load_or_create(&dir.join(KEY))?;
    let endpoints: Vec<_> = init
        .endpoints
        .iter()
        .map(|endpoint| format!("\"{endpoint}\""))
        .collect();
    let nat = if init.nat { "\"auto\"" } else { "false" };
    let text = format!(
        "# The hub's configuration. `hawser check {path}` tests a change, `hawser reload` applies it.\n\
         \n\
         # Where clients reach this hub: its public name or address, and a UDP port.\n\
         endpoints = [{endpoints}]\n\
         \n\
         # Inner addresses: one of each for the hub and every client.\n\
         pool = \"{}/{}\"\n\
         pool6 = \"{}/{}\"\n\
         \n\
         # Whether clients appear under the hub's own address: \"auto\" (when the pool is private), true, false.\n\
         nat = {nat}\n\
         \n\
         # What clients reach beside public addresses, and who reaches them: nothing and nobody unless named here.\n\
         # [reach]\n\
         # clients = true                    # each other\n\
         # hub = [\"tcp 22\"]                  # services of this machine\n\
         # networks = [\"192.168.7.0/24\"]     # private networks behind it\n\
         # from = [\"192.168.7.0/24\"]         # whose hosts may begin connections to clients\n\
         \n\
         # Clients whose networks block UDP come by TLS on TCP 443 unless this says something else.\n\
         # [tls]\n\
         # listen = \"[::]:8443\"             # clients say port = 8443; \"off\": nowhere\n",
        pool.0,
        pool.1,
        pool6.0,
        pool6.1,
        path = path.display(),
        endpoints = endpoints.join(", "),
    );
    let (store, mode) = match &init.store {
        Some(store) => (store_table(store), 0o600),
        None => (String::new(), 0o644),
    };
    atomic_file::write(&path, format!("{text}{store}").as_bytes(), mode)?;
    let written = load(dir).and_then(|config| open_store(dir, &config));
    if let Err(error) = written {
        // The next attempt begins anew.
        std::fs::remove_file(&path).ok();
        return Err(error);
    }
    Ok(path)
}

/// The pools that a new hub has.
fn pools(init: &HubInit) -> anyhow::Result<(Net4, Net6)> {
    let theirs = init.store.as_ref().map(pool_of_fleet).transpose()?.flatten();
    let mut theirs = theirs.as_deref().unwrap_or_default().split(' ');
    let pool = theirs.next().and_then(|text| text.parse().ok());
    let pool6 = theirs.next().and_then(|text| text.parse().ok());
    let default = || DEFAULT_POOL.parse().expect("a network");
    Ok((
        init.pool.or(pool).unwrap_or_else(default),
        init.pool6.or(pool6).unwrap_or_else(random_ula),
    ))
}

fn store_table(store: &StoreConfig) -> String {
    let ca = store
        .ca
        .as_ref()
        .map(|ca| format!("ca = {:?}\n", ca.display().to_string()));
    format!(
        "\n# The database that keeps the clients, for all hubs that name it.\n\
         [store]\n\
         url = {:?}\n\
         {}",
        store.url.text(),
        ca.unwrap_or_default()
    )
}

/// Sends the clients of a hub that runs to other hubs, and lets no others in; or, with `is_on`
/// false, serves them as before.
///
/// # Errors
/// The hub does not run or does not answer.
pub fn drain(dir: &Path, is_on: bool) -> anyhow::Result<()> {
    ask_running(dir, &Request::Drain { is_on }).map(drop)
}

/// How many clients are connected to a hub that runs.
///
/// # Errors
/// The hub does not run or does not answer.
pub fn connected(dir: &Path) -> anyhow::Result<usize> {
    let status = ask_running(dir, &Request::Status)?;
    let clients = status["clients"].as_array().into_iter().flatten();
    Ok(clients.filter(|client| client["connected"] == true).count())
}

fn ask_running(dir: &Path, request: &Request) -> anyhow::Result<Value> {
    let hub = run_dir::hub_of(dir)?.context("the hub does not run")?;
    ask(&run_dir::socket(&hub), request)
}

/// Takes the clients in the files of a hub over into its database; how many.
///
/// # Errors
/// The hub has no database, or one of the clients is in it already; nothing changes then.
pub fn migrate(dir: &Path) -> anyhow::Result<usize> {
    let config = load(dir)?;
    let Some(store) = &config.store else {
        bail!("hub.toml names no database: [store], url = \"postgresql://...\"");
    };
    let files = ClientStore::open(&dir.join(CLIENTS), config.pools())?;
    ClientStore::in_database(store, config.pools())?.take_over(&files)
}

/// What a firewall has to let through for a hub.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WaysIn {
    /// The UDP port that clients come in at.
    pub udp: u16,
    /// The TCP port for clients whose networks block UDP.
    pub tcp: Option<u16>,
    /// The interface that their packets come out of.
    pub interface: String,
}

/// What a firewall has to let through for the hub of a directory.
///
/// # Errors
/// The hub has not been initialised.
pub fn ways_in(dir: &Path) -> anyhow::Result<WaysIn> {
    let config = load(dir)?;
    Ok(WaysIn {
        udp: config.listen_address().port(),
        tcp: config.tls_address().map(|at| at.port()),
        interface: config.interface.0.clone(),
    })
}

/// Invites a client; the result is the line to give to it.
///
/// # Errors
/// The hub has not been initialised, the name is taken, or the disk refuses.
pub fn invite(dir: &Path, name: &str, lifetime: Duration) -> anyhow::Result<Invitation> {
    let config = load(dir)?;
    let identity = Identity::load_or_create(&dir.join(KEY))?;
    let mut store = open_store(dir, &config)?;
    let token = store.invite(name, lifetime, std::time::SystemTime::now())?;
    Ok(Invitation {
        endpoints: config.addresses(),
        name: name.to_owned(),
        hub_key: identity.hash(),
        token,
    })
}

/// Takes a client's enrolment back: through the hub when it runs, so that it has taken effect when
/// this returns.
///
/// # Errors
/// No such client, or the disk refuses. Or the hub runs and does not say that the client's session
/// is over: the enrolment is taken back all the same, and the message says what is not known.
pub fn revoke(dir: &Path, name: &str) -> anyhow::Result<()> {
    let hub = run_dir::hub_of(dir);
    let asked = match &hub {
        Ok(None) => None,
        Ok(Some(hub)) => {
            let name = name.to_owned();
            Some(ask(&run_dir::socket(hub), &Request::Revoke { name }))
        }
        Err(_) => None,
    };
    let trouble = match asked {
        Some(Ok(_)) => return Ok(()),
        Some(Err(error)) if error.is::<Declined>() => return Err(error),
        Some(Err(error)) => Some(error),
        None => hub.err(),
    };
    let config = load(dir)?;
    match &config.store {
        Some(store) => ClientStore::in_database(store, config.pools())?,
        None => ClientStore::open_damaged(&dir.join(CLIENTS), config.pools())?,
    }
    .revoke(name)?;
    match trouble {
        None => Ok(()),
        Some(error) => Err(error.context(format!(
            "{name} is not enrolled any more, but it is not known whether the hub has ended its session: restart the hub"
        ))),
    }
}

/// The clients of a hub: with what the hub knows of them when it runs.
///
/// # Errors
/// The hub has not been initialised, its store is damaged, or the hub runs and does not answer.
pub fn list(dir: &Path) -> anyhow::Result<Value> {
    if let Some(hub) = run_dir::hub_of(dir)? {
        let mut status = ask(&run_dir::socket(&hub), &Request::Status)?;
        let hubs = status["store"]["hubs"].take();
        return Ok(json!({ "version": 1, "clients": status["clients"].take(), "hubs": hubs }));
    }
    let config = load(dir)?;
    let store = open_store(dir, &config)?;
    let now = std::time::SystemTime::now();
    let clients: Vec<_> = store
        .iter()
        .map(|c| json!({ "name": c.name, "state": c.state(now), "inner": c.inner(), "connected": false }))
        .collect();
    Ok(json!({ "version": 1, "clients": clients }))
}

/// Runs a hub until it is asked to end.
///
/// # Errors
/// What keeps it from working, in one line; the system is as it was before.
pub async fn run(options: HubOptions) -> anyhow::Result<()> {
    let config = load(&options.dir)?;
    let run_dir = RunDir::take(&options.run_dir)?;
    let _claim = HubClaim::take(&options.dir, &options.run_dir)?;
    let identity = Identity::load_or_create(&options.dir.join(KEY))?;
    let store = share_store(&options.dir, &config, &identity).await?;
    let mut system = System::open(&run_dir.journal())
        .await
        .context("cannot prepare the system (are you root?)")?;
    let mut inherited = Inherited::take((&config.interface.0, config.mtu.0), config.listen_address());
    let tun = match inherited.tun.take() {
        Some(tun) => tun,
        None => Tun::create(&config.interface.0, config.mtu.0)?,
    };
    let isolation = config.isolation(store.lock().ports());
    let carrying = Carrying::start(&config, store, tun, inherited);
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
        (Ok(carrying), Ok(())) => serve(options, (config, isolation), &identity, carrying, &run_dir).await,
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
    fn start(config: &HubConfig, store: SharedStore, tun: Tun, inherited: Inherited) -> anyhow::Result<Self> {
        let listen = config.listen_address();
        let socket = match inherited.socket {
            Some(socket) => socket,
            None => open(listen).with_context(|| format!("cannot listen on UDP {listen}"))?,
        };
        let socket = Arc::new(socket);
        handover::keep_open(&tun, &socket);
        let seed = u64::from_be_bytes(random());
        let plane = hawser_dataplane::start(DataPlaneConfig {
            tun,
            format: Format::Ip,
            seed,
        })?;
        let control = HubControl::new(store.clone(), settings(config), plane.orders.clone());
        let all = inherited.sessions.len();
        let restored = inherited.sessions.into_iter().map(|saved| control.restore(saved));
        let restored = restored.filter(|is_restored| *is_restored).count();
        // Only now: what has queued in the socket since the process before must find its session.
        (plane.orders)(
            Change::AddSocket {
                id: HUB_SOCKET,
                socket: Arc::new(DataSocket::new(socket.clone()).context("the hub's socket cannot be used")?),
            }
            .into(),
        );
        Ok(Self {
            plane,
            control,
            store,
            socket,
            restored,
            lost: all - restored,
        })
    }
}

async fn serve(
    options: HubOptions,
    (config, isolation): (HubConfig, Isolation),
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
    let tls = over_tls(&config, listen, identity)?;
    let mut control = control.with_movers(Guests::new(store.clone(), listen.port(), tell));
    if let Some(tls) = &tls {
        control = control.with_relays(tls.listening.places().clone());
    }
    let (policy, given) = watch::channel(Policy::new(isolation.clone(), &config));
    let ports = ClientPorts::new(store.clone(), isolation);
    let waypoint = Waypoint::new(guests, store.clone(), given);
    let relayed = waypoint.done();
    tokio::spawn(waypoint.run());
    let socket = ControlSocket::listen(run_dir.socket())?;
    if let Some(address) = config.metrics {
        metrics::serve(address, run_dir.socket()).await?;
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
        ports,
        relayed,
        store,
        tls,
        identity: identity.clone(),
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
    ports: ClientPorts,
    relayed: Arc<Done>,
    store: SharedStore,
    /// Where clients come in whose networks block UDP.
    tls: Option<OverTls>,
    identity: Identity,
    started: Instant,
}

/// The listener for TLS on TCP, and what it shows.
struct OverTls {
    listening: Listening,
    shown: Shown,
}

/// Listens for TLS on TCP, unless the configuration says otherwise. A port that nobody has asked
/// for may be taken: by a web server, for example.
fn over_tls(config: &HubConfig, udp: SocketAddr, identity: &Identity) -> anyhow::Result<Option<OverTls>> {
    let Some(at) = config.tls_address() else {
        return Ok(None);
    };
    let shown = Shown::new(identity, config.tls.certificate.as_ref()).context("hub.toml, [tls]")?;
    match Listening::start(at, udp, shown.clone()) {
        Ok(listening) => Ok(Some(OverTls { listening, shown })),
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

impl Hub {
    async fn run(
        mut self,
        mut plane: DataPlane,
        mut socket: ControlSocket,
        endpoint: quinn::Endpoint,
    ) -> anyhow::Result<Ended> {
        let mut signals = Signals::new()?;
        let serving = tokio::spawn({
            let (control, endpoint) = (self.control.clone(), endpoint.clone());
            async move { control.serve(&endpoint).await }
        });
        let mut sweep = tokio::time::interval(SWEEP);
        let mut look = tokio::time::interval(LOOK);
        look.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                event = plane.events.recv() => self.on_event(&event.context(PLANE_ENDED)?),
                Some(asked) = socket.requests.recv() => if self.on_asked(asked) { break },
                _ = look.tick() => {
                    self.control.hold_against_store();
                    self.see_to_ports();
                }
                _ = sweep.tick() => self.control.sweep(Instant::now()),
                reload = signals.next() => {
                    if reload {
                        log_reload(self.reload());
                    } else if service::is_managed() && !service::is_stopped_for_good() {
                        self.hand_over(&plane).await;
                        return Ok(Ended::HandedOver);
                    } else {
                        break;
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

    /// Gives the sessions to the service manager, for the process that it starts next.
    async fn hand_over(&self, plane: &DataPlane) {
        let mut control = self.control.hand_over();
        let planes = plane.hand_over().await;
        let joined = |plane: SessionCheckpoint| {
            let control = control.remove(&plane.session)?;
            Some(HubSessionCheckpoint { control, plane })
        };
        let sessions = planes.into_iter().filter_map(joined).collect();
        if let Err(error) = handover::hand_over(sessions) {
            let error = format!("{error:#}");
            tracing::warn!(error, "sessions are not handed over: clients begin new ones");
        }
    }

    fn on_event(&self, event: &Event) {
        match *event {
            Event::RekeyWanted { session } => self.control.rekey(session),
            Event::Path { session, path, state } => {
                tracing::debug!(session = session.0, path = path.0, ?state, "path");
            }
            Event::Alive { session, alive } => tracing::debug!(session = session.0, alive, "session"),
        }
    }

    /// Answers; true: the hub shall end.
    fn on_asked(&mut self, asked: Asked) -> bool {
        let Asked { request, answer } = asked;
        let result = match request {
            Request::Status => {
                let mut status = self.status();
                let places = self.tls.as_ref().map(|tls| tls.listening.places().clone());
                report::with_snapshot(&self.orders, answer, move |mut snapshot| {
                    let mut relayed = Vec::new();
                    for session in &mut snapshot.sessions {
                        for path in &mut session.paths {
                            if let (Some(places), Some(remote)) = (&places, path.remote)
                                && places.is_relayed(remote)
                            {
                                path.remote = Some(places.origin(remote));
                                relayed.push((session.session, path.path));
                            }
                        }
                    }
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
            Request::Reload => self.reload().map(|restart| json!({ "needs_restart": restart })),
            Request::Move { .. } => Err(anyhow!(
                "this is a hub: flows are moved where `hawser up --direct` runs"
            )),
            Request::Weight { .. } => Err(anyhow!("this is a hub: ask where `hawser up` runs")),
            Request::Drain { is_on } => {
                self.control.drain(is_on);
                Ok(json!({ "draining": is_on }))
            }
            Request::Revoke { name } => {
                let control = self.control.clone();
                tokio::spawn(async move {
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
            "tls": self.tls.as_ref().map(|tls| tls.listening.status()),
            "counters": counters,
            "store": self.store.fleet_status(),
        })
    }

    fn reload(&mut self) -> anyhow::Result<Vec<&'static str>> {
        let fresh = load(&self.options.dir)?;
        if let Some(tls) = &self.tls {
            // The files may have changed under the same names.
            let files = fresh.tls.certificate.as_ref();
            tls.shown
                .renew(&self.identity, files)
                .context("hub.toml, [tls]")?;
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
            ("metrics", old.metrics != new.metrics),
            ("store", old.store != new.store),
            ("tls.listen", old.tls.listen != new.tls.listen),
        ];
        let restart = differing(&fixed);
        self.options.log.set(new.log.as_ref())?;
        let isolation = HubConfig {
            pool: old.pool,
            pool6: old.pool6,
            interface: old.interface.clone(),
            ..new.clone()
        }
        .isolation(self.ports.of_clients());
        self.ports.enforce(isolation.clone())?;
        self.policy.send_replace(Policy::new(isolation, new));
        let mut settings = settings(new);
        (settings.pool, settings.mtu) = (old.pools(), old.mtu.0);
        self.control.apply(settings);
        self.store.set_endpoints(&new.addresses());
        Ok(restart)
    }
}

/// Says of each path whether it comes by UDP or by TLS.
fn name_relayed(status: &mut Value, relayed: &[(u64, u16)]) {
    for session in status["sessions"].as_array_mut().into_iter().flatten() {
        let number = session["session"].as_u64();
        for path in session["paths"].as_array_mut().into_iter().flatten() {
            let is_it = |(session, id): &(u64, u16)| {
                Some(*session) == number && Some(u64::from(*id)) == path["path"].as_u64()
            };
            path["over"] = json!(if relayed.iter().any(is_it) { "tls" } else { "udp" });
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
    match &config.store {
        Some(store) => ClientStore::in_database(store, config.pools()),
        None => ClientStore::open(&dir.join(CLIENTS), config.pools()),
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

fn settings(config: &HubConfig) -> HubSettings {
    HubSettings {
        pool: config.pools(),
        dns: config.dns.clone(),
        mtu: config.mtu.0,
        schedulers: config.schedulers.chosen(),
        layer_rules: config.layer_rules(),
        format: Format::Ip,
        path_mtu: PATH_MTU,
    }
}

async fn prepare(system: &mut System, config: &HubConfig, isolation: &Isolation) -> anyhow::Result<()> {
    let interface = &config.interface.0;
    let (v4, v6) = config.pools().hub();
    // Before anything is forwarded.
    system
        .nft_table(ISOLATION_TABLE, &isolation.body())
        .context("cannot keep clients apart")?;
    system.link_up(interface).await?;
    // The prefix length makes the route of the pool.
    system.add_address(interface, v4.into(), config.pool.1).await?;
    system.sysctl("net/ipv4/ip_forward", "1")?;
    let mut net6 = None;
    if let (Some(v6), Some(pool6)) = (v6, &config.pool6) {
        match system.add_address(interface, v6.into(), pool6.1).await {
            Ok(()) => {
                system.forward_ipv6()?;
                net6 = Some((pool6.0, pool6.1));
            }
            Err(error) => tracing::warn!(%error, "no IPv6 for clients: this machine has it switched off"),
        }
    }
    let (nat4, nat6) = (
        masks(config.nat, is_private_v4(config.pool.0)),
        masks(config.nat, config.pool6.is_some_and(|p| is_ula(p.0))),
    );
    if nat4 || nat6 {
        let v4 = nat4.then_some((config.pool.0, config.pool.1));
        let body = masquerade(interface, v4, net6.filter(|_| nat6));
        system
            .nft_table("hawser_hub", &body)
            .context("cannot set up NAT (or set nat = false in hub.toml)")?;
    }
    Ok(())
}

fn masks(nat: Nat, private: bool) -> bool {
    match nat {
        Nat::Auto => private,
        Nat::On => true,
        Nat::Off => false,
    }
}

fn is_private_v4(net: Ipv4Addr) -> bool {
    // RFC 1918, and RFC 6598 (100.64.0.0/10).
    net.is_private() || (net.octets()[0] == 100 && net.octets()[1] & 0xc0 == 64)
}

fn is_ula(net: Ipv6Addr) -> bool {
    net.octets()[0] & 0xfe == 0xfc
}

/// A unique local prefix (RFC 4193 section 3.2).
fn random_ula() -> Net6 {
    let mut octets = [0; 16];
    octets[0] = 0xfd;
    octets[1..6].copy_from_slice(&random::<5>());
    Net6(Ipv6Addr::from(octets), 64)
}

/// Opens the hub's socket: for both families at once, or for IPv4 alone where there is no IPv6.
pub(crate) fn open(address: SocketAddr) -> std::io::Result<UdpSocket> {
    let bind = |address: SocketAddr| -> std::io::Result<UdpSocket> {
        let socket = Socket::new(Domain::for_address(address), Type::DGRAM, Some(Protocol::UDP))?;
        if address.is_ipv6() {
            socket.set_only_v6(false)?;
        }
        socket.bind(&address.into())?;
        Ok(socket.into())
    };
    match bind(address) {
        Err(error)
            if address.ip() == Ipv6Addr::UNSPECIFIED && error.kind() != std::io::ErrorKind::AddrInUse =>
        {
            bind((Ipv4Addr::UNSPECIFIED, address.port()).into())
        }
        other => other,
    }
}

const CONFIG: &str = "hub.toml";
const KEY: &str = "hub.key";
const CLIENTS: &str = "clients";
const DEFAULT_POOL: &str = "100.96.0.0/16";
/// UDP port of HTTP/3, which few networks block.
pub(crate) const DEFAULT_PORT: u16 = 443;
const SWEEP: Duration = Duration::from_secs(15);
const GOODBYE: Duration = Duration::from_millis(300);

#[cfg(test)]
mod tests {
    use super::*;

    fn example() -> HubInit {
        HubInit {
            endpoints: vec!["hub.example.org:443".parse().unwrap()],
            pool: None,
            pool6: None,
            nat: true,
            store: None,
        }
    }

    #[test]
    fn what_init_writes_can_be_read() {
        let dir = tempfile::tempdir().unwrap();
        let path = init(dir.path(), &example()).unwrap();
        let config = load(dir.path()).unwrap();
        assert_eq!(config.addresses(), example().endpoints);
        assert_eq!(config.nat, Nat::Auto);
        assert!(is_ula(config.pool6.unwrap().0));
        assert!(
            init(dir.path(), &example())
                .unwrap_err()
                .to_string()
                .contains("exists")
        );
        assert_eq!(path, dir.path().join("hub.toml"));
    }

    #[test]
    fn invites_lists_and_revokes_without_a_daemon() {
        let dir = tempfile::tempdir().unwrap();
        assert!(
            invite(dir.path(), "alice", Duration::from_secs(60))
                .unwrap_err()
                .to_string()
                .contains("hub init")
        );
        init(dir.path(), &example()).unwrap();
        let line = invite(dir.path(), "alice", Duration::from_secs(60))
            .unwrap()
            .to_string();
        assert!(line.parse::<Invitation>().is_ok());
        let clients = list(dir.path()).unwrap();
        assert_eq!(clients["clients"][0]["state"], "invited");
        revoke(dir.path(), "alice").unwrap();
        assert!(revoke(dir.path(), "alice").is_err());
    }

    #[test]
    fn a_hub_that_does_not_answer_is_said_and_the_enrolment_is_taken_back_all_the_same() {
        let dir = tempfile::tempdir().unwrap();
        init(dir.path(), &example()).unwrap();
        invite(dir.path(), "alice", Duration::from_secs(60)).unwrap();
        let _claim = HubClaim::take(dir.path(), &dir.path().join("run")).unwrap();
        assert!(list(dir.path()).is_err());
        let said = format!("{:#}", revoke(dir.path(), "alice").unwrap_err());
        assert!(said.contains("not known whether the hub has ended"), "{said}");
        assert!(!dir.path().join("clients/alice.toml").exists());
    }
}
