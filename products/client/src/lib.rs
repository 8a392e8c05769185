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
//!
//! | question | file |
//! |---|---|
//! | the event loop; what happens when a network comes or goes | this one (`Client::run`) |
//! | how the hub is sought, and what an answer brings | `seeking.rs`, `hawser_control::client` |
//! | where the hub in use is now | `name_lookups.rs`, `lookup.rs` |
//! | which of several hubs is in use | `hubs.rs`, `joined.rs`; the nearest: `nearest.rs` |
//! | what goes through another hub meanwhile | `second.rs`; chosen: `chosen.rs`, `faster.rs` |
//! | interface, routes, addresses of the tunnel | `tunnel.rs`; the kill switch: `kill_switch.rs` |
//! | what may come in from the tunnel | `inbound.rs` |
//! | new connections while no hub answers | `without_hub.rs` |
//! | TLS on TCP, where UDP is blocked | `fallback.rs` |
//! | machines behind this one | `gateway.rs` |
//! | neighbours' ways out | `neighbours.rs` |
//! | targets that show whether networks work | `checks.rs` |
//! | login pages (captive portals) | `portals.rs` |
//! | which networks may be used: quotas, pauses | `quotas.rs` |
//! | what they may carry at most | `caps.rs` |
//! | for what they are used | `preferences.rs` |
//! | what is said: `status`, `explain`, `doctor` | `report.rs`, `doctor.rs` |
//! | a changed configuration | `reload.rs` |
//!
//! A newcomer starts with [`run`] and `Client::run`.
#![forbid(unsafe_code)]

mod airtimes;
mod caps;
mod checks;
mod chosen;
mod declared;
pub mod doctor;
mod fallback;
mod faster;
mod gateway;
pub mod hubs;
mod inbound;
mod joined;
mod kill_switch;
mod lookup;
mod name_lookups;
mod nearest;
mod neighbours;
mod pauses;
mod portals;
mod preferences;
mod quotas;
mod reload;
mod report;
mod schedulers;
mod second;
mod seeking;
mod tunnel;
mod without_hub;

use std::collections::BTreeSet;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, anyhow, bail};
use hawser_config::identity::{Identity, random};
use hawser_config::{ClientConfig, RuleConfig, Schedulers, Via};
use hawser_control::client::driver::{Driver, Told, Want, fresh_index};
use hawser_control::client::networks::Way;
use hawser_control::client::ways_out::{OpenWaysOut, WaysOut};
use hawser_control::report::PLANE_ENDED;
use hawser_dataplane::{DataPlane, DataPlaneConfig, Event, Pairs, PathState, SessionId, StreamUse, Trial};
use hawser_host::beside::{AccessPoints, RunDirect, Shared, StartAccessPoints, Stations, beside, finder};
use hawser_host::control_socket::{Asked, ControlSocket, NO_REPEATER, Request};
use hawser_host::dhcp::Dhcp;
use hawser_host::health::Checks;
use hawser_host::options::ClientOptions;
use hawser_host::run_dir::{Role, RunDir};
use hawser_host::signals::Signals;
use hawser_host::{history, metrics};
use hawser_linux::bpf::{Becomes, INTENT, SocketOptions};
use hawser_linux::direct::Intent;
use hawser_linux::netlink::{Change, Network, Watch, changes};
use hawser_linux::stream_sockets::raise_file_limit;
use hawser_linux::system::MemberRoute;
use hawser_linux::tun::Tun;
use hawser_proto::session::SessionConfig;
use hawser_units::{Instant, NetworkId, PathId};
use hawser_wire::control::Message;
use hawser_wire::frame::Format;

use caps::Caps;
use declared::Declared;
use fallback::Fallback;
use faster::Leading;
use hubs::Hubs;
use kill_switch::{Asker, closed, prepare, undo};
use name_lookups::NameLookups;
use nearest::Measuring;
use pauses::Pauses;
use portals::Portals;
use preferences::Preferences;
use quotas::Quotas;
use second::Second;
use tunnel::Tunnel;
use without_hub::WithoutHubChoice;

pub use kill_switch::close_at_boot;

/// What runs beside a client: products of their own, which the client knows by traits alone.
#[derive(Clone, Copy)]
pub struct Parts {
    /// Joins access points.
    pub access_points: StartAccessPoints,
    /// Sends flows past the hub, where rules say so.
    pub direct: RunDirect,
    /// Takes neighbours' ways out.
    pub ways_out: OpenWaysOut,
}

/// Answers programs that say by a socket option what a flow needs: their packets get the code point
/// that says so at both ends of the tunnel. To be called before rights are given up; `None` where
/// the kernel refuses.
#[must_use]
pub fn answer_intents() -> Option<SocketOptions> {
    let intents = Intent::ALL.map(|intent| (intent.name(), u32::from(intent.code_point()) << 2));
    // The empty name takes a choice back.
    let names = intents.into_iter().chain([("", 0)]);
    let names = names.map(|(name, class)| ((INTENT, name.to_owned()), class));
    let options = SocketOptions::new(Becomes::TrafficClass).and_then(|mut options| {
        options.know(names.collect())?;
        Ok(options)
    });
    options
        .inspect_err(|error| tracing::warn!(%error, "programs cannot say by socket option what flows need (IP_TOS works)"))
        .ok()
}

/// Runs a client until it is asked to end. `intents`: what [`answer_intents`] gave.
///
/// # Errors
/// What keeps it from working, in one line; the system is as it was before.
pub async fn run(options: ClientOptions, parts: Parts, intents: Option<SocketOptions>) -> anyhow::Result<()> {
    let config = options.load_config()?;
    if let Some(problem) = config.unfit_for_hub() {
        bail!("client.toml: {problem}");
    }
    let chooses = |rule: &&RuleConfig| !rule.networks.is_empty() || rule.spread.is_some();
    for rule in config.rules.iter().filter(chooses) {
        if rule.via(true) == Via::Hub {
            tracing::warn!(%rule, "its flows go through the hub: via = \"direct\" sends them past it, over the networks that it names");
        }
    }
    hawser_config::atomic_file::private_directory(&options.dir)?;
    let run_dir = RunDir::take(&options.run_dir)?;
    let identity = Identity::load_or_create(&options.dir.join("identity.key"))?;
    let mut hubs = Hubs::load(&options.dir, options.invitation.as_ref(), &identity)?;
    let mut signals = Signals::new()?;
    let mut system = prepare(&run_dir, &config).await?;
    let _keeper = system.keep().context("cannot watch the system")?;
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
    let radio = (parts.access_points)(Stations {
        system: system.clone(),
        dir: &options.dir,
        run_dir: run_dir.radio(),
        config: &config,
        is_tunnel: !config.is_mixed(),
        dhcp: dhcp.stations(),
    });
    let (mut direct, mut leading) = (None, None);
    if config.runs_direct_beside() {
        let (beside, uplink) = beside();
        let (led, finder) = finder();
        leading = Some(Leading::new(led));
        tunnel.share(beside);
        direct = Some((parts.direct)(Shared {
            options: options.beside(),
            config: config.clone(),
            system,
            tun: share()?,
            usage: Rc::clone(&quotas.usage),
            leases: dhcp.view().clone(),
            uplink,
            finder: Some(finder),
        }));
    }
    let splits = config.forms().may_split();
    if splits {
        raise_file_limit();
    }
    let plane = hawser_dataplane::start(DataPlaneConfig {
        queues: vec![tun],
        pairs: Pairs::ONE,
        format: Format::Ip,
        client_policy: None,
        streams: splits.then_some(StreamUse::Client),
        trial: Trial::default(),
        seed: u64::from_be_bytes(random()),
    })?;
    let socket = ControlSocket::listen(run_dir.socket())?;
    metrics::publish(config.metrics, config.otlp.clone(), run_dir.socket()).await?;
    if config.history {
        history::keep(history::file(&options.dir, Role::Client), run_dir.socket());
    }
    let pool = (parts.ways_out)(options.dir.clone());
    let mut client = Client::new(options, config, hubs, (tunnel, quotas, pool), &plane);
    client.dhcp = Some(dhcp);
    client.radio = Some(radio);
    client.leading = leading;
    client.intents = intents;
    client.declared = Declared::listen(client.intents.as_mut());
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
    driver: Driver,
    /// Connections may become streams.
    splits: bool,
    /// Another hub: the one before, where connections go on that began there, or one that rules
    /// choose, or through which destinations are reached sooner.
    second: Option<Second>,
    /// What is found out of the latter.
    leading: Option<Leading>,
    /// When a session with a hub that rules choose may begin, how often it has refused one since
    /// the last, and what was said of a hub that is not known.
    second_at: tokio::time::Instant,
    second_refused: u32,
    said_unknown: Option<String>,
    /// Look-ups of their names.
    name_lookups: NameLookups,
    /// How near hubs are.
    measuring: Measuring,
    tunnel: Tunnel,
    /// What the kernel shows, used or not.
    seen: Vec<Network>,
    quotas: Quotas,
    /// Networks that a user wants left out for a while.
    paused: BTreeSet<String>,
    caps: Caps,
    preferences: Preferences,
    /// Those that a user wants, in place of the configuration's.
    wanted_schedulers: Schedulers,
    /// Addresses by DHCP.
    dhcp: Option<Dhcp>,
    /// Programs say what flows need.
    intents: Option<SocketOptions>,
    /// What they have declared of some.
    declared: Declared,
    /// Access points.
    radio: Option<Box<dyn AccessPoints>>,
    /// TLS on TCP, where UDP is blocked.
    fallback: Fallback,
    /// New connections while no hub answers.
    without_hub: WithoutHubChoice,
    /// Targets that show whether networks work, and the networks whose check fails.
    checks: Checks,
    left_out: BTreeSet<String>,
    /// Login pages before networks.
    portals: Portals,
    /// Neighbours' ways out.
    pool: Box<dyn WaysOut>,
    /// To hubs inside of GRE.
    member_routes: Vec<MemberRoute>,
    /// What a user should know; shown by `status`.
    notice: Option<String>,
    /// The machine asked for a session of its own.
    renew: bool,
    /// When the hub is told next of the air.
    airtimes_at: Instant,
    /// What it has been told of cards in slots.
    pauses: Pauses,
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
        (tunnel, quotas, pool): (Tunnel, Quotas, Box<dyn WaysOut>),
        plane: &DataPlane,
    ) -> Self {
        let driver = Driver::new(Arc::clone(&plane.orders), session_config(&config));
        let forms = config.forms();
        let splits = forms.may_split();
        driver.order(hawser_dataplane::Change::SetForms(forms));
        Self {
            hubs,
            driver,
            splits,
            second: None,
            leading: None,
            second_at: tokio::time::Instant::now(),
            second_refused: 0,
            said_unknown: None,
            name_lookups: NameLookups::new(),
            measuring: Measuring::default(),
            quotas,
            paused: BTreeSet::new(),
            caps: Caps::default(),
            preferences: Preferences::default(),
            wanted_schedulers: Schedulers::default(),
            dhcp: None,
            radio: None,
            intents: None,
            declared: Declared::default(),
            without_hub: WithoutHubChoice::new(&config, Instant::ZERO),
            options,
            config,
            tunnel,
            seen: Vec::new(),
            fallback: Fallback::new(),
            checks: Checks::default(),
            left_out: BTreeSet::new(),
            portals: Portals::new(),
            pool,
            member_routes: Vec::new(),
            notice: None,
            renew: false,
            airtimes_at: Instant::ZERO,
            pauses: Pauses::default(),
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
                happened = self.driver.next() => self.on_happened(happened).await?,
                event = plane.events.recv() => self.on_event(&event.context(PLANE_ENDED)?),
                Some(asked) = socket.requests.recv() => self.on_asked(asked).await,
                news = self.hubs.next() => {
                    self.on_elsewhere(news).await?;
                    Next::Continue
                }
                () = self.checks.next() => Next::Continue,
                news = self.portals.next() => {
                    self.on_portal_news(news);
                    Next::Continue
                }
                placing = faster::next(&mut self.leading) => {
                    self.on_placing(placing);
                    Next::Continue
                }
                news = second::next(&mut self.second) => {
                    self.on_second(news);
                    Next::Continue
                }
                found = self.name_lookups.next() => {
                    self.on_resolved(found);
                    Next::Continue
                }
                found = self.measuring.next() => {
                    self.on_measured(found);
                    Next::Continue
                }
                (number, way) = self.fallback.next() => {
                    self.on_way(number, way);
                    Next::Continue
                }
                declared = self.declared.next() => {
                    self.on_declared(declared);
                    Next::Continue
                }
                () = self.pool.next() => {
                    let now = self.now();
                    self.pool.handle_news(now);
                    Next::Continue
                }
                () = tokio::time::sleep_until(deadline) => self.on_deadline(),
                reload = signals.next() => if reload { self.reload_and_log().await } else { Next::End(Asker::Signal) },
            };
            self.keep_quotas();
            self.follow_devices().await;
            self.see_to_fallback();
            self.see_to_portals();
            self.see_to_checks();
            self.see_to_second();
            self.see_to_leading();
            self.see_to_hubs();
            self.see_to_without_hub();
            self.poll_name_lookups();
            self.see_to_airtimes();
            self.see_to_pauses();
            self.see_to_declared();
            self.see_to_pool().await;
            self.carry_out();
            if let Next::End(asker) = next {
                return Ok(asker);
            }
        }
    }

    /// Says goodbye and puts the system back.
    async fn end(&mut self, asker: Option<Asker>) {
        self.driver.end().await;
        if let Some(mut second) = self.second.take() {
            second.end().await;
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
        self.driver.now()
    }

    fn deadline(&self) -> tokio::time::Instant {
        let count = Some(self.driver.at(self.quotas.poll_timeout()));
        let far = tokio::time::Instant::now() + Duration::from_secs(60);
        let fallback = self.fallback.poll_timeout().map(tokio::time::Instant::from_std);
        let pool = self.pool.poll_timeout().map(tokio::time::Instant::from_std);
        let (driver, hubs) = (self.driver.poll_timeout(), self.hubs_due());
        let portals = self.portals_due();
        let airtimes = self.airtimes_due().map(|due| self.driver.at(due));
        let pauses = self.pauses_due().map(|due| self.driver.at(due));
        let without_hub = self.without_hub.poll_timeout();
        let without_hub = without_hub.map(|(due, _)| self.driver.at(due));
        let second = match &self.second {
            Some(second) => second.poll_timeout(),
            None => Some(self.second_at).filter(|at| *at > tokio::time::Instant::now()),
        };
        let declared = self.declared.poll_timeout().map(|due| self.driver.at(due));
        [
            driver,
            without_hub,
            second,
            declared,
            count,
            fallback,
            pool,
            hubs,
            portals,
            airtimes,
            pauses,
            self.names_due(),
        ]
        .into_iter()
        .flatten()
        .fold(far, std::cmp::Ord::min)
    }

    fn on_deadline(&mut self) -> Next {
        if self.driver.handle_timeout() {
            self.seek(None);
        }
        Next::Continue
    }

    fn on_networks(&mut self, now: Vec<Network>) -> Next {
        self.quotas.count_now();
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
        self.lead_second(&change);
        let now = self.now();
        self.hubs.choice.handle_networks(now);
        match change {
            Change::Added(network) => self.add_network(network),
            Change::Removed(name) => {
                if let Some(id) = self.driver.networks.by_name(&name) {
                    tracing::info!(network = name, "network gone");
                    self.remove_network(id);
                }
                Ok(())
            }
            Change::Changed(network) => match self.driver.networks.by_name(&network.name) {
                Some(id) if network.carries(self.driver.networks.attached[&id].remote.is_ipv6()) => {
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
        let Some(id) = self
            .driver
            .networks
            .attach(network, &self.hubs.current().addresses)?
        else {
            tracing::info!(network = name, "not used: the hub has no address of its family");
            return Ok(());
        };
        tracing::info!(network = name, hub = %self.driver.networks.attached[&id].remote, "network found");
        self.driver.machine.handle_network_added(id, fresh_index());
        if self.driver.line.is_none() {
            self.seek(None);
        }
        Ok(())
    }

    fn remove_network(&mut self, id: NetworkId) {
        self.driver.machine.handle_network_removed(id);
        self.carry_out();
        self.driver.networks.detach(id);
        self.tell_radio();
        if self.driver.is_line_over(id) {
            self.lose_line("its network is gone");
        }
    }

    fn refresh_network(&mut self, id: NetworkId, network: Network) -> anyhow::Result<()> {
        let name = network.name.clone();
        self.tunnel.warn_of_overlap(&network);
        let Some(old) = self.driver.networks.refresh(id, network)? else {
            return Ok(());
        };
        tracing::info!(network = name, "network changed: moved to new sockets");
        self.end_fallback(id);
        if self.driver.machine.handle_network_moved(id) {
            self.carry_out();
        } else if let (Some(session), Some(path)) =
            (self.driver.machine.session(), self.driver.machine.path(id))
        {
            let socket = self.driver.networks.attached[&id].socket;
            self.driver.order(hawser_dataplane::Change::RebindPath {
                session: SessionId(session),
                path: PathId(path),
                socket,
            });
        }
        self.driver
            .order(hawser_dataplane::Change::RemoveSocket { id: old });
        if self.driver.is_line_over(id) {
            let now = self.now();
            self.driver.machine.handle_doubt(now);
        }
        Ok(())
    }

    fn on_event(&mut self, event: &Event) -> Next {
        match self.driver.handle_event(event) {
            Some(Told::Path(network, state)) => {
                if let Some(path) = self.driver.machine.path(network) {
                    let now = self.now();
                    self.pool.handle_path(network, path, state, now);
                }
                self.tell_radio();
            }
            Some(Told::Alive(is_alive)) => {
                let now = self.now();
                self.hubs.choice.handle_alive(is_alive, now);
            }
            Some(Told::Rekey) => self.rekey(),
            // The fall-back follows after each event.
            Some(Told::Policed(_)) => {}
            None => self.on_event_of_second(event),
        }
        Next::Continue
    }

    /// Over which networks the hub answers.
    fn tell_radio(&self) {
        let Some(radio) = &self.radio else { return };
        let attached = self.driver.networks.attached.values();
        let own = attached.filter(|one| !matches!(one.way, Way::Member { .. }));
        let live = own.filter(|one| one.state == Some(PathState::Active));
        radio.handle_live(live.map(|one| one.network.name.clone()).collect());
    }

    async fn on_asked(&mut self, asked: Asked) -> Next {
        let mut next = Next::Continue;
        match asked.request {
            Request::Status => self.report(asked.answer),
            Request::Explain { flow } => self.explain(flow, asked.answer),
            Request::Pause { network, is_on } => drop(asked.answer.send(self.pause(network, is_on))),
            Request::Cap {
                network,
                up_bps,
                down_bps,
                is_default,
            } => drop(
                asked
                    .answer
                    .send(self.cap(&network, [up_bps, down_bps], is_default)),
            ),
            Request::Use {
                network,
                up,
                down,
                bulk,
                is_default,
            } => drop(
                asked
                    .answer
                    .send(self.prefer(&network, [up, down], bulk, is_default)),
            ),
            Request::Scheduler { class, scheduler } => {
                drop(asked.answer.send(self.choose_scheduler(&class, scheduler)));
            }
            Request::AddRule { .. } | Request::RemoveRule { .. } => self.ask_direct(asked),
            Request::Reload => self.reload_and_answer(asked.answer).await,
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
            Request::Migrate { .. } => {
                let _ = asked.answer.send(Err(anyhow!("this is a client: {NO_REPEATER}")));
            }
            Request::Revoke { .. } | Request::Drain { .. } => {
                let _ = asked
                    .answer
                    .send(Err(anyhow!("this is a client: ask on the hub")));
            }
        }
        next
    }

    /// Carries out what the machine wants.
    fn carry_out(&mut self) {
        loop {
            let (caps, config) = (&self.caps, &self.config);
            let Some(want) = self.driver.poll(|attached| caps.of(attached, config)[0]) else {
                return;
            };
            self.act(want);
        }
    }

    fn act(&mut self, want: Want) {
        match want {
            Want::Begun(session) => self.order_placing(&self.driver, session),
            Want::Opened(network, path) => {
                self.introduce(&self.driver, network, path);
                self.driver.machine.prepare_move(fresh_index());
            }
            Want::Silent => self.lose_line("no answer from the hub"),
            Want::Rekey => self.rekey(),
            Want::Renew => {
                self.renew = true;
                self.seek(None);
            }
            Want::Leave => {
                tracing::info!("the hub will be taken down: another is looked for");
                let now = self.now();
                self.hubs.choice.handle_leave(now);
            }
            Want::OtherHubs => self.on_other_hubs(),
            Want::Subnets => self.see_to_gateway(),
            Want::Receipt(receipt) => self.pool.handle_receipt(&receipt),
            Want::Closed(reason) => self.on_closed(reason),
        }
    }

    /// Tells a hub what it is to heed, on a connection that has just been made: what changed while
    /// there was none, or on its way when the last one broke, was not heard.
    fn send_settings(&self, driver: &Driver) {
        self.send_schedulers(driver);
        self.send_deadlines(driver);
        self.send_caps(driver);
        self.send_preferences(driver);
    }

    /// Tells a hub what a new path may carry at most, and for what it is used.
    fn introduce(&self, driver: &Driver, network: NetworkId, path: u16) {
        let attached = driver.networks.attached.get(&network);
        let caps = attached.map(|attached| self.caps.of(attached, &self.config));
        if let Some([_, Some(rate)]) = caps {
            let rate_bps = rate.as_bps();
            driver.tell(Message::Cap { path, rate_bps });
        }
        self.send_preference(driver, path, false);
    }

    /// All sessions: with the hub in use, and the second one.
    fn drivers(&self) -> impl Iterator<Item = &Driver> {
        std::iter::once(&self.driver).chain(self.second.as_ref().map(Second::driver))
    }
}

/// What a session keeps to.
fn session_config(config: &ClientConfig) -> SessionConfig {
    SessionConfig {
        rekey_after: config.rekey_after.0,
        ..SessionConfig::default()
    }
}
