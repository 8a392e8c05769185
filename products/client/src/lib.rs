//! The client: joins networks, control channel, session machine, data plane and system.
//!
//! One task owns everything and waits for the next event: the appearance or loss of a network, the
//! end of an attempt to reach the hub, a message of the hub, a report of the data plane, a
//! deadline, a request over the control socket, a signal.
//!
//! It starts without a session and tries the hub over all networks concurrently. The first answer
//! establishes the session; every network then gets a path. When the control connection fails,
//! packets continue to flow, and the client reconnects to the hub with the session's id. It fails
//! permanently only when the hub permanently rejects it; all changes of the system are undone at
//! the end.
//!
//! | question | file |
//! |---|---|
//! | the event loop | this one (`Client::run`) |
//! | added and removed networks | `networks.rs` |
//! | requests over the control socket | `requests.rs` |
//! | search for the hub, and its answer | `search.rs`, `hawser_control::client` |
//! | the current address of the hub in use | `name_lookups.rs`, `lookup.rs` |
//! | which of several hubs is in use | `hubs.rs`, `memberships.rs`; the nearest: `nearest.rs` |
//! | flows through another hub | `second.rs`; its choice: `selection.rs`, `faster.rs` |
//! | interface, routes, addresses of the tunnel | `tunnel.rs`; the kill switch: `kill_switch.rs` |
//! | connections that are accepted from the tunnel | `inbound.rs` |
//! | new connections while no hub answers | `without_hub.rs` |
//! | TLS on TCP, where UDP is blocked | `fallback.rs` |
//! | machines behind this one | `gateway.rs`; their page: `administration.rs` |
//! | neighbours' uplinks | `neighbours.rs` |
//! | targets that show whether networks work | `checks.rs` |
//! | login pages (captive portals) | `portals.rs` |
//! | which networks may be used: quotas, pauses | `quotas.rs` |
//! | roaming modems, and sections that belong to devices | `roaming.rs`, `hawser_host::devices` |
//! | networks with IPv6 only | `nat64.rs`, `translators.rs` |
//! | rate limits of networks | `caps.rs` |
//! | preferences of networks | `preferences.rs` |
//! | contents of `status`, `explain` and `doctor` | `report.rs`, `doctor.rs` |
//! | a changed configuration | `reload.rs` |
//! | a session that continues in the next process | `handover.rs` |
//!
//! A newcomer starts with [`run`] and `Client::run`.
#![forbid(unsafe_code)]

mod administration;
mod airtimes;
mod caps;
mod checks;
mod declared;
pub mod doctor;
mod fallback;
mod faster;
mod gateway;
mod handover;
pub mod hubs;
mod inbound;
mod kill_switch;
mod lookup;
mod memberships;
mod name_lookups;
mod nat64;
mod nearest;
mod neighbours;
mod networks;
mod pauses;
mod portals;
mod preferences;
mod quotas;
mod reload;
mod report;
mod requests;
mod roaming;
mod schedulers;
mod search;
mod second;
mod selection;
mod translators;
mod tunnel;
mod without_hub;

use std::collections::BTreeSet;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, anyhow, bail};
use hawser_config::identity::{Identity, random};
use hawser_config::{ClientConfig, Schedulers};
use hawser_control::client::driver::{Driver, Notice, Want, fresh_index};
use hawser_control::client::neighbour_uplinks::{NeighbourUplinks, OpenNeighbourUplinks};
use hawser_control::handover::InheritedClient;
use hawser_control::report::PLANE_ENDED;
use hawser_dataplane::{DataPlane, DataPlaneConfig, Event, Pairs, StreamUse, Trial};
use hawser_host::control_socket::ControlSocket;
use hawser_host::devices::Devices;
use hawser_host::dhcp::Dhcp;
use hawser_host::health::Checks;
use hawser_host::options::ClientOptions;
use hawser_host::product_interfaces::{
    AccessPoints, RunDirect, Shared, StartAccessPoints, Stations, direct_mode_channel, finder,
};
use hawser_host::run_dir::{Role, RunDir};
use hawser_host::sensors::Services;
use hawser_host::signals::Signals;
use hawser_host::system_bus::SystemBus;
use hawser_host::{history, metrics};
use hawser_linux::bpf::{Becomes, INTENT, SocketOptions};
use hawser_linux::direct::Intent;
use hawser_linux::netlink::{Network, Watch};
use hawser_linux::stream_sockets::raise_file_limit;
use hawser_linux::system::MemberRoute;
use hawser_linux::tun::Tun;
use hawser_proto::session::SessionConfig;
use hawser_steer::roaming::Roaming;
use hawser_units::{Instant, NetworkId};
use hawser_wire::control::{Message, Welcome};
use hawser_wire::frame::Format;

use administration::Administration;
use caps::Caps;
use declared::Declared;
use fallback::Fallback;
use faster::Leading;
use hubs::Hubs;
use kill_switch::{Asker, closed, prepare, undo};
use name_lookups::NameLookups;
use nat64::Nat64;
use nearest::Measuring;
use pauses::Pauses;
use portals::Portals;
use preferences::Preferences;
use quotas::Quotas;
use second::Second;
use tunnel::Tunnel;
use without_hub::WithoutHubChoice;

pub use kill_switch::{close_after_failure, close_at_boot};

/// Products that run concurrently with a client, which uses them through traits only.
#[derive(Clone, Copy)]
pub struct Parts {
    /// Joins access points.
    pub access_points: StartAccessPoints,
    /// Sends flows past the hub, if rules require it.
    pub direct: RunDirect,
    /// Neighbours' uplinks.
    pub open_uplinks: OpenNeighbourUplinks,
}

/// Answers programs that declare by a socket option what a flow needs: their packets get the
/// corresponding code point at both ends of the tunnel. Must be called before privileges are
/// dropped; `None` if the kernel refuses.
#[must_use]
pub fn answer_intents() -> Option<SocketOptions> {
    let intents = Intent::ALL.map(|intent| (intent.name(), u32::from(intent.code_point()) << 2));
    // The empty name cancels a choice.
    let names = intents.into_iter().chain([("", 0)]);
    let names = names.map(|(name, class)| ((INTENT, name.to_owned()), class));
    let options = SocketOptions::new(Becomes::TrafficClass).and_then(|mut options| {
        options.know(names.collect())?;
        Ok(options)
    });
    options
        .inspect_err(|error| tracing::warn!(%error, "programs cannot declare the needs of flows by socket option (IP_TOS works)"))
        .ok()
}

/// Runs a client until it is asked to end. `intents` is the result of [`answer_intents`].
///
/// # Errors
/// The reason why it cannot work, in one line. The system is as it was before, except that a
/// configured kill switch is closed.
pub async fn run(options: ClientOptions, parts: Parts, intents: Option<SocketOptions>) -> anyhow::Result<()> {
    let mut devices = Devices::new(Services::start(SystemBus::default()));
    let config = options.load_config(&mut devices).await?;
    if let Some(problem) = config.unfit_for_hub() {
        bail!("client.toml: {problem}");
    }
    for rule in config.rules.iter().filter(|rule| rule.chooses_in_vain(true)) {
        tracing::warn!(%rule, "its flows use the tunnel: add via = \"direct\" to send them outside the tunnel, over the networks of the rule");
    }
    hawser_config::atomic_file::private_directory(&options.dir)?;
    let run_dir = RunDir::take(&options.run_dir)?;
    let identity = Identity::load_or_create(&options.dir.join("identity.key"));
    let loaded =
        identity.and_then(|identity| Hubs::load(&options.dir, options.invitation.as_ref(), &identity));
    let mut hubs = match loaded {
        Ok(hubs) => hubs,
        Err(error) if config.kill_switch => {
            prepare(&run_dir, &config, false).await?;
            bail!("{error:#}{}", closed(&config));
        }
        Err(error) => return Err(error),
    };
    let mut signals = Signals::new()?;
    let inherited = InheritedClient::take((config.interface.0.as_str(), config.mtu.0));
    let goes_on = inherited.session.is_some();
    let mut system = prepare(&run_dir, &config, goes_on).await?;
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
    let tun = match inherited.tun {
        Some(tun) => tun,
        None => Tun::create(&config.interface.0, config.mtu.0)?,
    };
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
    if config.runs_direct_with_hub() {
        let (direct_mode, uplink) = direct_mode_channel();
        let (led, finder) = finder();
        leading = Some(Leading::new(led));
        tunnel.share(direct_mode);
        direct = Some((parts.direct)(Shared {
            options: options.without_invitation(),
            config: config.clone(),
            system,
            tun: share()?,
            usage: Rc::clone(&quotas.usage),
            leases: dhcp.view().clone(),
            uplink,
            finder: Some(finder),
        }));
    }
    // Streams of the previous process continue even if new ones are not permitted.
    let splits = config.forms().may_split() || goes_on;
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
    let pool = (parts.open_uplinks)(options.dir.clone());
    let mut client = Client::new(options, config, hubs, (tunnel, quotas, pool, devices), &plane);
    client.dhcp = Some(dhcp);
    client.radio = Some(radio);
    client.leading = leading;
    client.intents = intents;
    client.declared = Declared::listen(client.intents.as_mut());
    client.splits = splits;
    client.owes_undo = goes_on;
    if let Some(session) = inherited.session {
        client.go_on(*session).await;
    }
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
    if matches!(result, Ok(Asker::Manager)) {
        client.leave().await;
        tracing::info!("handed over");
        return Ok(());
    }
    client.end(result.as_ref().ok().copied()).await;
    result.map(drop).map_err(|error| anyhow!("{error:#}{closed}"))
}

struct Client {
    options: ClientOptions,
    config: ClientConfig,
    hubs: Hubs,
    driver: Driver,
    /// Set if connections may become streams.
    splits: bool,
    /// Session with a secondary hub: the previous hub with its remaining connections, or one that
    /// rules choose, or one with a shorter delay to some destinations.
    second: Option<Second>,
    /// Measurements of the delay through other hubs.
    leading: Option<Leading>,
    /// Time from which a session with a hub that rules choose may begin, the number of rejections
    /// since the last one, and the message about an unknown hub.
    second_at: tokio::time::Instant,
    second_refused: u32,
    said_unknown: Option<String>,
    /// Resolution of the hubs' names.
    name_lookups: NameLookups,
    /// Measurement of the hubs' distances.
    measuring: Measuring,
    tunnel: Tunnel,
    /// Networks that the kernel reports, used or not.
    seen: Vec<Network>,
    quotas: Quotas,
    /// Devices of the machine, which sections of the configuration follow.
    devices: Devices,
    /// Modems in networks of other operators, and those that are not used there.
    roaming: Roaming,
    abroad: BTreeSet<String>,
    /// Translators of networks with IPv6 only.
    nat64: Nat64,
    /// Interfaces that translate IPv4 for another network, and are not used in addition to it.
    translators: BTreeSet<String>,
    /// Networks that a user has paused.
    paused: BTreeSet<String>,
    caps: Caps,
    preferences: Preferences,
    /// Schedulers that a user requested, which override the configuration.
    wanted_schedulers: Schedulers,
    /// DHCP client of the networks.
    dhcp: Option<Dhcp>,
    /// Socket options with which programs declare the needs of flows.
    intents: Option<SocketOptions>,
    /// Declarations about single flows.
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
    /// Login pages of networks.
    portals: Portals,
    /// Uplinks of neighbours.
    pool: Box<dyn NeighbourUplinks>,
    /// Routes to hubs inside GRE.
    member_routes: Vec<MemberRoute>,
    /// Notice for the user; shown by `status`.
    notice: Option<String>,
    /// Set if the machine requested a new session.
    renew: bool,
    /// Time of the next airtime report to the hub.
    airtimes_at: Instant,
    /// Pauses of cards in slots that the hub knows.
    pauses: Pauses,
    /// Page for the LAN.
    administration: Administration,
    /// Last welcome of the hub in use.
    assigned: Option<Welcome>,
    /// Set if changes of the previous process must be undone when the hub is reached.
    owes_undo: bool,
}

/// Continuation of the event loop.
enum Next {
    Continue,
    End(Asker),
}

impl Client {
    fn new(
        options: ClientOptions,
        config: ClientConfig,
        hubs: Hubs,
        (tunnel, quotas, pool, devices): (Tunnel, Quotas, Box<dyn NeighbourUplinks>, Devices),
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
            devices,
            roaming: Roaming::default(),
            abroad: BTreeSet::new(),
            nat64: Nat64::start(),
            translators: BTreeSet::new(),
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
            administration: Administration::default(),
            assigned: None,
            owes_undo: false,
        }
    }

    async fn run(
        &mut self,
        mut plane: DataPlane,
        mut socket: ControlSocket,
        mut signals: Signals,
    ) -> anyhow::Result<Asker> {
        let mut watch = Watch::start()?;
        self.follow_devices().await;
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
                () = self.devices.next() => Next::Continue,
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
                news = self.nat64.next() => {
                    self.on_nat64(news);
                    Next::Continue
                }
                (number, way) = self.fallback.next() => {
                    self.on_connection_state(number, way);
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
            self.see_to_roaming();
            self.see_to_nat64();
            self.see_to_translators();
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
            self.see_to_administration().await;
            self.carry_out();
            if let Next::End(asker) = next {
                let is_handed_over = asker == Asker::Signal && self.hand_over(&plane).await;
                if is_handed_over {
                    return Ok(Asker::Manager);
                }
                self.reset_streams(&plane).await;
                return Ok(asker);
            }
        }
    }

    /// Resets the connections of this machine that are streams. The resets pass through the
    /// interface, which ends with the data plane; without them a program that only reads would wait
    /// until its own timeout.
    async fn reset_streams(&mut self, plane: &DataPlane) {
        let second = self.second.as_mut().map(Second::driver_mut);
        for driver in std::iter::once(&mut self.driver).chain(second) {
            driver.end_session();
        }
        plane.settle().await;
        tokio::time::sleep(RESETS_PASS).await;
    }

    /// Sends a goodbye and restores the system.
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
        self.administration.end(self.tunnel.system()).await;
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
        let page = self.administration.poll_timeout().map(|due| self.driver.at(due));
        [
            page,
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
            self.nat64_due(),
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

    fn on_event(&mut self, event: &Event) -> Next {
        match self.driver.handle_event(event) {
            Some(Notice::Path(network, state)) => {
                if let Some(path) = self.driver.machine.path(network) {
                    let now = self.now();
                    self.pool.handle_path(network, path, state, now);
                }
                self.update_radio();
            }
            Some(Notice::Alive(is_alive)) => {
                let now = self.now();
                self.hubs.choice.handle_alive(is_alive, now);
            }
            Some(Notice::Rekey) => self.rekey(),
            // The fall-back is updated after each event.
            Some(Notice::Policed(_)) => {}
            None => self.on_event_of_second(event),
        }
        Next::Continue
    }

    /// Executes the machine's outputs.
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
                tracing::info!("the hub will be stopped: searching for another hub");
                let now = self.now();
                self.hubs.choice.handle_leave(now);
            }
            Want::OtherHubs => self.on_other_hubs(),
            Want::Subnets => self.see_to_gateway(),
            Want::Receipt(receipt) => self.pool.handle_receipt(&receipt),
            Want::Closed(reason) => self.on_closed(reason),
        }
    }

    /// Sends all settings to a hub on a new connection, because changes without a connection, or in
    /// flight when the last one failed, have not arrived.
    fn send_settings(&self, driver: &Driver) {
        self.send_schedulers(driver);
        self.send_deadlines(driver);
        self.send_caps(driver);
        self.send_preferences(driver);
    }

    /// Notifies a hub of a new path's cap and preference.
    fn introduce(&self, driver: &Driver, network: NetworkId, path: u16) {
        let attached = driver.networks.attached.get(&network);
        let caps = attached.map(|attached| self.caps.of(attached, &self.config));
        if let Some([_, Some(rate)]) = caps {
            let rate_bps = rate.as_bps();
            driver.send(Message::Cap { path, rate_bps });
        }
        self.send_preference(driver, path, false);
    }

    /// Returns the drivers of all sessions: with the hub in use, and the second one.
    fn drivers(&self) -> impl Iterator<Item = &Driver> {
        std::iter::once(&self.driver).chain(self.second.as_ref().map(Second::driver))
    }
}

/// Returns the parameters of a session.
fn session_config(config: &ClientConfig) -> SessionConfig {
    SessionConfig {
        rekey_after: config.rekey_after.0,
        ..SessionConfig::default()
    }
}

/// Time for the kernel's resets of connections to pass through the interface. Source: our choice,
/// some tens of turns of the sending thread; a longer time delays the end of the daemon.
const RESETS_PASS: std::time::Duration = std::time::Duration::from_millis(50);
