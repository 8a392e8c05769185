//! The hub: one UDP port, many clients.
//!
//! It starts by making the inner interface, its addresses, forwarding and NAT, each journalled. Then one task waits for what
//! happens next: the data plane's reports, questions over the control socket, signals. Connections have tasks of their own.
//! At the end clients are told, and the system is put back.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, anyhow, bail};
use hawser_linux::direct::moving::RELAY_TABLE;
use hawser_linux::system::{System, drop_nft_table, masquerade};
use hawser_linux::tun::Tun;
use serde_json::{Value, json};
use socket2::{Domain, Protocol, Socket, Type};

use crate::atomic_file;
use crate::client::{PLANE_ENDED, Signals, report};
use crate::config::{self, HubConfig, Nat, Net4, Net6, differing, log_reload};
use crate::control::hub::{HUB_SOCKET, HubControl, HubSettings};
use crate::control::peer::Guests;
use crate::control::quic_socket::SharedSocket;
use crate::control::tls;
use crate::control_socket::{Asked, ControlSocket, Request, ask, is_alive};
use crate::dataplane::{self, Command, DataPlane, DataPlaneConfig, Event, Orders};
use crate::enrolment::ClientStore;
use crate::identity::{Identity, random};
use crate::invitation::{HubAddress, Invitation};
use crate::logging::LogLevel;
use crate::metrics;
use crate::run_dir::{self, RunDir};
use crate::waypoint::Waypoint;

/// What `hawser hub init` is told.
#[derive(Clone, Debug)]
pub struct HubInit {
    /// Where clients reach the hub.
    pub endpoints: Vec<HubAddress>,
    /// Inner IPv4 pool.
    pub pool: Net4,
    /// Inner IPv6 pool; drawn at random when absent.
    pub pool6: Option<Net6>,
    /// Whether to hide clients behind the hub's address.
    pub nat: bool,
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
/// There is a configuration already, or the directory cannot be written.
pub fn init(dir: &Path, init: &HubInit) -> anyhow::Result<PathBuf> {
    atomic_file::private_directory(dir)?;
    let path = dir.join(CONFIG);
    if path.exists() {
        bail!(
            "{} exists: edit it, or remove it to begin anew (clients stay enrolled while hub.key stays)",
            path.display()
        );
    }
    Identity::load_or_create(&dir.join(KEY))?;
    let pool6 = init.pool6.unwrap_or_else(random_ula);
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
         nat = {nat}\n",
        init.pool.0,
        init.pool.1,
        pool6.0,
        pool6.1,
        path = path.display(),
        endpoints = endpoints.join(", "),
    );
    atomic_file::write(&path, text.as_bytes(), 0o644)?;
    Ok(path)
}

/// Invites a client; the result is the line to give to it.
///
/// # Errors
/// The hub has not been initialised, the name is taken, or the disk refuses.
pub fn invite(dir: &Path, name: &str, lifetime: Duration) -> anyhow::Result<Invitation> {
    let config = load(dir)?;
    let identity = Identity::load_or_create(&dir.join(KEY))?;
    let mut store = ClientStore::open(&dir.join(CLIENTS), config.pools())?;
    let token = store.invite(name, lifetime, std::time::SystemTime::now())?;
    Ok(Invitation {
        endpoints: config.addresses(),
        name: name.to_owned(),
        hub_key: identity.hash(),
        token,
    })
}

/// Takes a client's enrolment back: through the hub when it runs, so that it takes effect at once.
///
/// # Errors
/// No such client, or the disk refuses.
pub fn revoke(dir: &Path, run_dir: &Path, name: &str) -> anyhow::Result<()> {
    let socket = run_dir::socket(run_dir);
    if is_alive(&socket) {
        return ask(
            &socket,
            &Request::Revoke {
                name: name.to_owned(),
            },
        )
        .map(|_| ());
    }
    let config = load(dir)?;
    ClientStore::open(&dir.join(CLIENTS), config.pools())?
        .revoke(name)
        .map(|_| ())
}

/// The clients of a hub: with what the hub knows of them when it runs.
///
/// # Errors
/// The hub has not been initialised, or its store is damaged.
pub fn list(dir: &Path, run_dir: &Path) -> anyhow::Result<Value> {
    let socket = run_dir::socket(run_dir);
    if is_alive(&socket) {
        let mut status = ask(&socket, &Request::Status)?;
        if status["role"] == "hub" {
            return Ok(json!({ "version": 1, "clients": status["clients"].take() }));
        }
    }
    let config = load(dir)?;
    let store = ClientStore::open(&dir.join(CLIENTS), config.pools())?;
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
    let identity = Identity::load_or_create(&options.dir.join(KEY))?;
    let store = ClientStore::open(&options.dir.join(CLIENTS), config.pools())?;
    let mut system = System::open(&run_dir.journal())
        .await
        .context("cannot prepare the system (are you root?)")?;
    let tun = Tun::create(&config.interface.0, config.mtu.0)?;
    let mut prepared = prepare(&mut system, &config).await;
    if prepared.is_ok() {
        // What a crash left is in the way of nobody and goes with the rest below.
        prepared = system.expect_nft_table(RELAY_TABLE).map_err(Into::into);
        drop_nft_table(RELAY_TABLE);
    }
    // Only now: between taking NAT away and setting it up again the kernel would reset the clients' connections.
    system.undo_left().await;
    let result = match prepared {
        Ok(()) => serve(options, config, &identity, store, tun, &run_dir).await,
        Err(error) => Err(error),
    };
    system.undo().await;
    tracing::info!("down");
    result
}

async fn serve(
    options: HubOptions,
    config: HubConfig,
    identity: &Identity,
    store: ClientStore,
    tun: Tun,
    run_dir: &RunDir,
) -> anyhow::Result<()> {
    let listen = listen_address(&config);
    let udp = Arc::new(open(listen).with_context(|| format!("cannot listen on UDP {listen}"))?);
    let mut plane = dataplane::start(DataPlaneConfig {
        tun,
        seed: u64::from_be_bytes(random()),
    })?;
    let orders = Arc::clone(&plane.orders);
    orders(Command::AddSocket {
        id: HUB_SOCKET,
        socket: udp.clone(),
    });
    let (_, nothing) = tokio::sync::mpsc::channel(1);
    let datagrams = std::mem::replace(&mut plane.control, nothing);
    let endpoint = quinn::Endpoint::new_with_abstract_socket(
        tls::hub_endpoint_config(identity),
        Some(tls::server_config(identity)?),
        Arc::new(SharedSocket::new(udp, datagrams)?),
        Arc::new(quinn::TokioRuntime),
    )?;
    let (tell, guests) = tokio::sync::mpsc::unbounded_channel();
    let movers = ClientStore::open(&options.dir.join(CLIENTS), config.pools())?;
    let movers = Guests::new(movers, listen.port(), tell);
    let control = HubControl::new(store, settings(&config), orders.clone()).with_movers(movers);
    tokio::spawn(Waypoint::new(guests).run());
    let socket = ControlSocket::listen(run_dir.socket())?;
    if let Some(address) = config.metrics {
        metrics::serve(address, run_dir.socket()).await?;
    }
    tracing::info!(%listen, interface = config.interface.0, "hub is up");
    let hub = Hub {
        options,
        config,
        control,
        orders,
        started: Instant::now(),
    };
    hub.run(plane, socket, endpoint).await
}

struct Hub {
    options: HubOptions,
    config: HubConfig,
    control: HubControl,
    orders: Orders,
    started: Instant,
}

impl Hub {
    async fn run(
        mut self,
        mut plane: DataPlane,
        mut socket: ControlSocket,
        endpoint: quinn::Endpoint,
    ) -> anyhow::Result<()> {
        let mut signals = Signals::new()?;
        let serving = tokio::spawn({
            let (control, endpoint) = (self.control.clone(), endpoint.clone());
            async move { control.serve(&endpoint).await }
        });
        let mut sweep = tokio::time::interval(SWEEP);
        loop {
            tokio::select! {
                event = plane.events.recv() => self.on_event(&event.context(PLANE_ENDED)?),
                Some(asked) = socket.requests.recv() => if self.on_asked(asked) { break },
                _ = sweep.tick() => self.control.sweep(Instant::now()),
                reload = signals.next() => {
                    if !reload {
                        break;
                    }
                    log_reload(self.reload());
                }
            }
        }
        self.control.shut_down();
        // The goodbyes go out before the socket does.
        tokio::time::sleep(GOODBYE).await;
        endpoint.close(0_u8.into(), b"");
        let _ = tokio::time::timeout(GOODBYE, endpoint.wait_idle()).await;
        serving.abort();
        Ok(())
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
                report::with_snapshot(&self.orders, answer, move |snapshot| {
                    report::add_snapshot(&mut status, snapshot);
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
            Request::Revoke { name } => self.control.revoke(&name).map(|()| json!({ "revoked": name })),
            Request::Down => {
                let _ = answer.send(Ok(json!({ "state": "down" })));
                return true;
            }
        };
        let _ = answer.send(result);
        false
    }

    fn status(&self) -> Value {
        let refusals = self.control.refusals();
        let counters: serde_json::Map<_, _> = refusals
            .iter()
            .map(|(reason, count)| ((*reason).to_owned(), json!(count)))
            .collect();
        json!({
            "role": "hub",
            "state": "up",
            "endpoints": self.config.addresses().iter().map(ToString::to_string).collect::<Vec<_>>(),
            "interface": self.config.interface.0,
            "uptime_s": self.started.elapsed().as_secs(),
            "clients": self.control.clients(),
            "counters": counters,
        })
    }

    fn reload(&mut self) -> anyhow::Result<Vec<&'static str>> {
        let fresh = load(&self.options.dir)?;
        let old = std::mem::replace(&mut self.config, fresh);
        let new = &self.config;
        let fixed = [
            (
                "endpoints (for new invitations: at once; port: after a restart)",
                listen_address(&old) != listen_address(new),
            ),
            ("pool", old.pool != new.pool),
            ("pool6", old.pool6 != new.pool6),
            ("interface", old.interface != new.interface),
            ("mtu", old.mtu != new.mtu),
            ("nat", old.nat != new.nat),
            ("metrics", old.metrics != new.metrics),
        ];
        let restart = differing(&fixed);
        self.options.log.set(new.log.as_ref())?;
        let mut settings = settings(new);
        (settings.pool, settings.mtu) = (old.pools(), old.mtu.0);
        self.control.apply(settings);
        Ok(restart)
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
    Ok(config::load(&path)?)
}

fn settings(config: &HubConfig) -> HubSettings {
    HubSettings {
        pool: config.pools(),
        dns: config.dns.clone(),
        mtu: config.mtu.0,
        schedulers: config.schedulers.chosen(),
    }
}

async fn prepare(system: &mut System, config: &HubConfig) -> anyhow::Result<()> {
    let interface = &config.interface.0;
    let (v4, v6) = config.pools().hub();
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

fn listen_address(config: &HubConfig) -> SocketAddr {
    let port = config
        .endpoints
        .first()
        .map_or(DEFAULT_PORT, |endpoint| endpoint.0.port);
    config
        .listen
        .unwrap_or_else(|| (Ipv6Addr::UNSPECIFIED, port).into())
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
const DEFAULT_PORT: u16 = 443;
const SWEEP: Duration = Duration::from_secs(60);
const GOODBYE: Duration = Duration::from_millis(300);

#[cfg(test)]
mod tests {
    use super::*;

    fn example() -> HubInit {
        HubInit {
            endpoints: vec!["hub.example.org:443".parse().unwrap()],
            pool: "100.96.0.0/16".parse().unwrap(),
            pool6: None,
            nat: true,
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
        let clients = list(dir.path(), dir.path()).unwrap();
        assert_eq!(clients["clients"][0]["state"], "invited");
        revoke(dir.path(), dir.path(), "alice").unwrap();
        assert!(revoke(dir.path(), dir.path(), "alice").is_err());
    }
}
