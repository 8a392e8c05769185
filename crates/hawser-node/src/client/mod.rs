//! The client: joins networks, control channel, session machine, data plane and system.
//!
//! One task owns everything and waits for whatever happens next: a network comes or goes, an
//! attempt to reach the hub ends, the hub says something, the data plane reports, a deadline
//! passes, somebody asks over the control socket, a signal arrives.
//!
//! It starts without a session and tries the hub over all networks at once. The first answer brings
//! the session; every network then gets a path. When the control connection dies, packets flow on,
//! and the hub is sought again with the session's id. It fails for good only when the hub refuses
//! for good; everything changed in the system is undone at the end.

pub mod doctor;
mod fallback;
mod gateway;
pub mod hubs;
mod joined;
mod kill_switch;
mod lookup;
pub(crate) mod networks;
mod pool;
mod quotas;
pub(crate) mod reach;
mod reload;
pub(crate) mod report;
mod seeking;
mod tunnel;

use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant as Clock};

use anyhow::{Context, anyhow, bail};
use hawser_linux::netlink::{Change, Network, Watch, changes};
use hawser_linux::tun::Tun;
use hawser_proto::session::{ClientAction, ClientSession, NetworkId, SessionConfig};
use hawser_units::{Instant, PathId};
use hawser_wire::control::{CloseReason, Message};
use hawser_wire::frame::Format;
use tokio::sync::mpsc;

use crate::config::{self, ClientConfig, Via};
use crate::control_socket::{Asked, ControlSocket, Request};
use crate::dhcp::Dhcp;
use crate::direct;
use crate::identity::{Identity, random};
use crate::invitation::Invitation;
use crate::logging::LogLevel;
use crate::metrics;
use crate::radio::Radio;
use crate::run_dir::RunDir;
use fallback::Fallback;
use hawser_dataplane::{DataPlane, DataPlaneConfig, Event, Orders, PathState, Role, SessionId};
use hubs::Hubs;
use kill_switch::{Asker, closed, prepare, undo};
use networks::Networks;
use pool::Pool;
use quotas::Quotas;
use reach::{Line, News, Reach};
use tunnel::Tunnel;

pub use kill_switch::close_at_boot;
pub(crate) use reload::Signals;
pub(crate) use tunnel::overlap;

/// How to run a client.
pub struct ClientOptions {
    /// Where key and configuration are.
    pub dir: PathBuf,
    /// Where lock, socket and journal are.
    pub run_dir: PathBuf,
    /// The invitation, the first time.
    pub invitation: Option<Invitation>,
    /// Patterns that take the place of the configuration's.
    pub include: Vec<config::Pattern>,
    /// Patterns beside the configuration's.
    pub exclude: Vec<config::Pattern>,
    /// Changes the log filter while running.
    pub log: LogLevel,
}

impl ClientOptions {
    pub(crate) fn load_config(&self) -> anyhow::Result<ClientConfig> {
        let path = self.dir.join("client.toml");
        let mut config: ClientConfig = config::load_or_default(&path)?;
        if !self.include.is_empty() {
            config.include.clone_from(&self.include);
        }
        config.exclude.extend(self.exclude.iter().cloned());
        config::check_secrecy(&path, &config)?;
        Ok(config)
    }
}

/// Runs a client until it is asked to end.
///
/// # Errors
/// What keeps it from working, in one line; the system is as it was before.
pub async fn run(options: ClientOptions) -> anyhow::Result<()> {
    let config = options.load_config()?;
    if let Some(problem) = config.unfit_for_hub() {
        bail!("client.toml: {problem}");
    }
    for rule in config.rules.iter().filter(|rule| !rule.networks.is_empty()) {
        if rule.via(true) == Via::Hub {
            tracing::warn!(%rule, "its flows go through the hub: via = \"direct\" sends them past it, over the networks that it names");
        }
    }
    crate::atomic_file::private_directory(&options.dir)?;
    let run_dir = RunDir::take(&options.run_dir)?;
    let identity = Identity::load_or_create(&options.dir.join("identity.key"))?;
    let mut hubs = Hubs::load(&options.dir, options.invitation.as_ref(), &identity)?;
    let mut signals = Signals::new()?;
    let mut system = prepare(&run_dir, &config).await?;
    let closed = closed(&config);
    tokio::select! {
        () = hubs.resolve(&config) => {}
        () = signals.end() => {
            undo(&mut system, &config, Some(Asker::Signal)).await;
            return Ok(());
        }
    }
    if !hubs.choose() {
        bail!("the hub's name does not resolve: check the network, or the name in the invitation{closed}");
    }
    let tun = Tun::create(&config.interface.0, config.mtu.0)?;
    let share = || tun.try_clone().context("cannot share the interface");
    let mut tunnel = Tunnel::new(system.clone(), share()?);
    let quotas = Quotas::open(&options.dir);
    let dhcp = Dhcp::start(system.clone(), run_dir.dhcp(), &config);
    let radio = Radio::start(
        system.clone(),
        (&options.dir, run_dir.radio()),
        &config,
        dhcp.stations(),
    );
    let mut direct = None;
    if config.is_mixed() {
        let usage = Rc::clone(&quotas.usage);
        let (beside, run) = direct::beside(
            &options,
            config.clone(),
            (system, share()?),
            usage,
            dhcp.view().clone(),
        );
        tunnel.share(beside);
        direct = Some(run);
    }
    let plane = hawser_dataplane::start(DataPlaneConfig {
        tun,
        format: Format::Ip,
        seed: u64::from_be_bytes(random()),
    })?;
    let socket = ControlSocket::listen(run_dir.socket())?;
    if let Some(address) = config.metrics {
        metrics::serve(address, run_dir.socket()).await?;
    }
    let mut client = Client::new(options, config, hubs, (tunnel, quotas), &plane);
    client.dhcp = Some(dhcp);
    client.radio = Some(radio);
    let direct = async {
        match direct {
            Some(run) => run.await,
            None => std::future::pending().await,
        }
    };
    let result = tokio::select! {
        result = client.run(plane, socket, signals) => result,
        result = direct => result.map(|()| Asker::Signal),
    };
    client.end(result.as_ref().ok().copied()).await;
    result.map(drop).map_err(|error| anyhow!("{error:#}{closed}"))
}

struct Client {
    options: ClientOptions,
    config: ClientConfig,
    hubs: Hubs,
    orders: Orders,
    tunnel: Tunnel,
    machine: ClientSession,
    networks: Networks,
    /// What the kernel shows, used or not.
    seen: Vec<Network>,
    quotas: Quotas,
    /// Addresses by DHCP.
    dhcp: Option<Dhcp>,
    /// Access points.
    radio: Option<Radio>,
    reach: Reach,
    /// TLS on TCP, where UDP is blocked.
    fallback: Fallback,
    /// Neighbours' ways out.
    pool: Pool,
    line: Option<Line>,
    news: mpsc::UnboundedSender<(u64, News)>,
    incoming: mpsc::UnboundedReceiver<(u64, News)>,
    lines: u64,
    epoch: u8,
    started: Clock,
    retry_at: Option<tokio::time::Instant>,
    /// What a user should know; shown by `status`.
    notice: Option<String>,
    /// The machine asked for a session of its own.
    renew: bool,
}

/// How the event loop goes on.
enum Next {
    Continue,
    End(Asker),
}

impl Client {
    fn new(
        options: ClientOptions,
        config: ClientConfig,
        hubs: Hubs,
        (tunnel, quotas): (Tunnel, Quotas),
        plane: &DataPlane,
    ) -> Self {
        let orders = Arc::clone(&plane.orders);
        let (news, incoming) = mpsc::unbounded_channel();
        let pool = Pool::new(options.dir.clone());
        let session = SessionConfig {
            rekey_after: config.rekey_after.0,
            ..SessionConfig::default()
        };
        Self {
            hubs,
            networks: Networks::new(orders.clone()),
            quotas,
            dhcp: None,
            radio: None,
            options,
            config,
            orders,
            tunnel,
            machine: ClientSession::new(session),
            seen: Vec::new(),
            reach: Reach::new(),
            fallback: Fallback::new(),
            pool,
            line: None,
            news,
            incoming,
            lines: 0,
            epoch: 0,
            started: Clock::now(),
            retry_at: None,
            notice: None,
            renew: false,
        }
    }

    async fn run(
        &mut self,
        mut plane: DataPlane,
        mut socket: ControlSocket,
        mut signals: Signals,
    ) -> anyhow::Result<Asker> {
        let mut watch = Watch::start()?;
        loop {
            let deadline = self.deadline();
            let next = tokio::select! {
                networks = watch.next() => self.on_networks(networks?),
                outcome = self.reach.next() => self.on_outcome(outcome).await?,
                Some((line, news)) = self.incoming.recv() => self.on_news(line, news)?,
                event = plane.events.recv() => self.on_event(&event.context(PLANE_ENDED)?),
                Some(asked) = socket.requests.recv() => self.on_asked(asked).await,
                news = self.hubs.next() => {
                    self.on_elsewhere(news).await?;
                    Next::Continue
                }
                (number, way) = self.fallback.next() => {
                    self.on_way(number, way);
                    Next::Continue
                }
                happened = self.pool.next() => {
                    self.on_pool(happened);
                    Next::Continue
                }
                () = tokio::time::sleep_until(deadline) => self.on_deadline(),
                reload = signals.next() => if reload { self.reload_and_log() } else { Next::End(Asker::Signal) },
            };
            self.keep_quotas();
            self.see_to_fallback();
            self.see_to_hubs();
            self.see_to_pool();
            self.carry_out();
            if let Next::End(asker) = next {
                return Ok(asker);
            }
        }
    }

    /// Says goodbye and puts the system back.
    async fn end(&mut self, asker: Option<Asker>) {
        if let Some(line) = self.line.take() {
            let _ = tokio::time::timeout(GOODBYE, line.close(CloseReason::Shutdown)).await;
        }
        if let Some(radio) = self.radio.take() {
            radio.end().await;
        }
        if let Some(dhcp) = self.dhcp.take() {
            dhcp.end().await;
        }
        undo(self.tunnel.system(), &self.config, asker).await;
    }

    fn now(&self) -> Instant {
        Instant::from_nanos(u64::try_from(self.started.elapsed().as_nanos()).unwrap_or(u64::MAX))
    }

    fn deadline(&self) -> tokio::time::Instant {
        let machine = self.machine.poll_timeout().map(|(at, _)| {
            tokio::time::Instant::from_std(self.started + Duration::from_nanos(at.as_nanos()))
        });
        let count = Duration::from_nanos(self.quotas.poll_timeout().as_nanos());
        let count = Some(tokio::time::Instant::from_std(self.started + count));
        let far = tokio::time::Instant::now() + Duration::from_secs(60);
        let fallback = self.fallback.poll_timeout().map(tokio::time::Instant::from_std);
        let pool = self.pool.poll_timeout().map(tokio::time::Instant::from_std);
        [
            machine,
            self.retry_at,
            count,
            fallback,
            pool,
            self.hubs.poll_timeout(),
        ]
        .into_iter()
        .flatten()
        .fold(far, std::cmp::Ord::min)
    }

    fn on_deadline(&mut self) -> Next {
        let now = self.now();
        self.machine.handle_timeout(now);
        if self.retry_at.is_some_and(|at| at <= tokio::time::Instant::now()) {
            self.seek(None);
        }
        Next::Continue
    }

    fn on_networks(&mut self, now: Vec<Network>) -> Next {
        let before = std::mem::replace(&mut self.seen, now);
        let now = self.seen.clone();
        self.apply_networks(&before, &now);
        self.see_to_gateway();
        Next::Continue
    }

    fn apply_networks(&mut self, before: &[Network], now: &[Network]) {
        let used = |list: &[Network]| -> Vec<Network> {
            list.iter().filter(|n| self.uses(&n.name)).cloned().collect()
        };
        for change in changes(&used(before), &used(now)) {
            let name = match &change {
                Change::Added(network) | Change::Changed(network) => network.name.clone(),
                Change::Removed(name) => name.clone(),
            };
            if let Err(error) = self.on_change(change) {
                tracing::warn!(network = name, error = format!("{error:#}"), "network not usable");
            }
        }
    }

    fn on_change(&mut self, change: Change) -> anyhow::Result<()> {
        match change {
            Change::Added(network) => self.add_network(network),
            Change::Removed(name) => {
                if let Some(id) = self.networks.by_name(&name) {
                    tracing::info!(network = name, "network gone");
                    self.remove_network(id);
                }
                Ok(())
            }
            Change::Changed(network) => match self.networks.by_name(&network.name) {
                Some(id) if network.carries(self.networks.attached[&id].remote.is_ipv6()) => {
                    self.refresh_network(id, network)
                }
                Some(id) => {
                    self.remove_network(id);
                    self.add_network(network)
                }
                None => self.add_network(network),
            },
        }
    }

    fn add_network(&mut self, network: Network) -> anyhow::Result<()> {
        let name = network.name.clone();
        self.tunnel.meet(&network);
        let Some(id) = self.networks.attach(network, &self.hubs.current().addresses)? else {
            tracing::info!(network = name, "not used: the hub has no address of its family");
            return Ok(());
        };
        tracing::info!(network = name, hub = %self.networks.attached[&id].remote, "network found");
        self.machine.handle_network_added(id, fresh_index());
        if self.line.is_none() {
            self.seek(None);
        }
        Ok(())
    }

    fn remove_network(&mut self, id: NetworkId) {
        self.machine.handle_network_removed(id);
        self.carry_out();
        self.networks.detach(id);
        self.tell_radio();
        if self.line.as_ref().is_some_and(|line| line.network == id) {
            self.lose_line("its network is gone");
        }
    }

    fn refresh_network(&mut self, id: NetworkId, network: Network) -> anyhow::Result<()> {
        let name = network.name.clone();
        self.tunnel.warn_of_overlap(&network);
        let Some(old) = self.networks.refresh(id, network)? else {
            return Ok(());
        };
        tracing::info!(network = name, "network changed: moved to new sockets");
        self.end_fallback(id);
        if self.machine.handle_network_moved(id) {
            self.carry_out();
        } else if let (Some(session), Some(path)) = (self.machine.session(), self.machine.path(id)) {
            let socket = self.networks.attached[&id].socket;
            (self.orders)(
                hawser_dataplane::Change::RebindPath {
                    session: SessionId(session),
                    path: PathId(path),
                    socket,
                }
                .into(),
            );
        }
        (self.orders)(hawser_dataplane::Change::RemoveSocket { id: old }.into());
        if self.line.as_ref().is_some_and(|line| line.network == id) {
            let now = self.now();
            self.machine.handle_doubt(now);
        }
        Ok(())
    }

    fn on_event(&mut self, event: &Event) -> Next {
        let now = self.now();
        match *event {
            Event::Path { session, path, state } if self.machine.session() == Some(session.0) => {
                if let Some(id) = self.machine.network(path.0) {
                    self.on_path_state(id, state, now);
                }
            }
            Event::Alive { session, alive } if self.machine.session() == Some(session.0) => {
                self.hubs.handle_alive(alive);
                if !alive {
                    self.machine.handle_doubt(now);
                }
            }
            Event::RekeyWanted { session } if self.machine.session() == Some(session.0) => self.rekey(),
            Event::Path { .. } | Event::Alive { .. } | Event::RekeyWanted { .. } => {}
        }
        Next::Continue
    }

    fn on_path_state(&mut self, id: NetworkId, state: PathState, now: Instant) {
        if let Some(attached) = self.networks.attached.get_mut(&id) {
            attached.state = Some(state);
            tracing::debug!(network = attached.network.name, ?state, "path");
        }
        if let Some(path) = self.machine.path(id) {
            self.pool.handle_path(id, path, state, now);
        }
        self.tell_radio();
        let doubtful = matches!(state, PathState::Suspect | PathState::Dead);
        if doubtful && self.line.as_ref().is_some_and(|line| line.network == id) {
            self.machine.handle_doubt(now);
        }
    }

    /// Over which networks the hub answers.
    fn tell_radio(&self) {
        let Some(radio) = &self.radio else { return };
        let attached = self.networks.attached.values();
        let own = attached.filter(|one| !matches!(one.way, networks::Way::Member { .. }));
        let live = own.filter(|one| one.state == Some(PathState::Active));
        radio.handle_live(live.map(|one| one.network.name.clone()).collect());
    }

    async fn on_asked(&mut self, asked: Asked) -> Next {
        let mut next = Next::Continue;
        match asked.request {
            Request::Status => self.report(asked.answer),
            Request::Explain { flow } => self.explain(flow, asked.answer),
            Request::Reload => self.reload_and_answer(asked.answer),
            Request::Down => {
                let _ = asked.answer.send(Ok(serde_json::json!({ "state": "down" })));
                next = Next::End(Asker::Command);
            }
            Request::Move { .. } => {
                let _ = asked.answer.send(Err(anyhow!(
                    "hawser runs with a hub here: flows are moved in direct mode alone (hawser up --direct)"
                )));
            }
            Request::Weight { network, weight } => match &self.radio {
                Some(radio) => radio.set_weight(network, weight, asked.answer),
                None => drop(asked.answer.send(Err(anyhow!("there is no Wi-Fi here")))),
            },
            Request::Revoke { .. } => {
                let _ = asked
                    .answer
                    .send(Err(anyhow!("this is a client: revoke on the hub")));
            }
        }
        next
    }

    fn tell(&self, message: Message) {
        if let Some(line) = &self.line {
            line.send(message);
        }
    }

    /// Carries out what the machine wants.
    fn carry_out(&mut self) {
        while let Some(action) = self.machine.poll_action() {
            self.act(action);
        }
        while let Some(message) = self.machine.poll_transmit() {
            self.tell(message);
        }
    }

    fn act(&mut self, action: ClientAction) {
        match action {
            ClientAction::Start { session } => {
                (self.orders)(
                    hawser_dataplane::Change::AddSession {
                        session: SessionId(session),
                        role: Role::Client,
                        inner: Vec::new(),
                    }
                    .into(),
                );
                for (class, scheduler) in self.config.schedulers.chosen() {
                    (self.orders)(
                        hawser_dataplane::Change::SetScheduler {
                            session: SessionId(session),
                            class,
                            scheduler,
                        }
                        .into(),
                    );
                }
                let rules = self.config.layer_rules();
                let session = SessionId(session);
                (self.orders)(hawser_dataplane::Change::SetLayerRules { session, rules }.into());
            }
            ClientAction::End { session } => {
                (self.orders)(
                    hawser_dataplane::Change::RemoveSession {
                        session: SessionId(session),
                    }
                    .into(),
                );
                self.networks
                    .attached
                    .values_mut()
                    .for_each(|attached| attached.state = None);
            }
            ClientAction::OpenPath {
                network,
                path,
                local_index,
                peer_index,
            } => {
                self.open_path(network, path, local_index, peer_index);
                self.machine.prepare_move(fresh_index());
            }
            ClientAction::ClosePath { network, path } => {
                if let Some(session) = self.machine.session() {
                    (self.orders)(
                        hawser_dataplane::Change::ClosePath {
                            session: SessionId(session),
                            path: PathId(path),
                        }
                        .into(),
                    );
                }
                if let Some(attached) = self.networks.attached.get_mut(&network) {
                    attached.state = None;
                }
            }
            ClientAction::Reconnect => self.lose_line("no answer from the hub"),
            ClientAction::Rekey => self.rekey(),
            ClientAction::Renew => {
                self.renew = true;
                self.seek(None);
            }
            ClientAction::Closed(reason) => self.on_closed(reason),
        }
    }

    fn open_path(&mut self, network: NetworkId, path: u16, local_index: u32, peer_index: u32) {
        let (Some(session), Some(attached)) = (self.machine.session(), self.networks.attached.get(&network))
        else {
            return;
        };
        let [cap, cap_down] = attached.caps(&self.config);
        let name = attached.path_name();
        (self.orders)(
            hawser_dataplane::Change::OpenPath {
                session: SessionId(session),
                path: PathId(path),
                socket: attached.socket,
                remote: Some(attached.remote),
                peer_index,
                local_index,
                name,
                mtu: u16::try_from(attached.network.mtu).unwrap_or(u16::MAX),
                cap,
            }
            .into(),
        );
        if let Some(rate) = cap_down {
            self.tell(Message::Cap {
                path,
                rate_bps: rate.as_bps(),
            });
        }
    }
}

fn fresh_index() -> u32 {
    u32::from_be_bytes(random())
}

/// Nothing can be done without it.
pub(crate) const PLANE_ENDED: &str = "the data plane stopped: see the log";
/// How long a goodbye may take.
const GOODBYE: Duration = Duration::from_secs(1);
