//! Direct mode: one interface over all networks without a hub. The kernel forwards; this process
//! only decides.
//!
//! One task owns everything and waits for the next event: a change of a network, an answer or a
//! timeout of a gateway, a deadline, a request over the control socket, a signal. After each, it
//! compares the result of the rules with the kernel's state, and updates the kernel if they differ.
//!
//! It starts with an interface without a network. Every network gets a number, a routing table and
//! an entry in the ruleset. When a network disappears, new flows avoid it immediately and its flows
//! are released ([`release`]). It fails only when the kernel refuses; all changes of the system are
//! undone at the end.
//!
//! | question | file |
//! |---|---|
//! | the event loop | this one (`Direct::run`) |
//! | the networks, and their observed capacity | `networks.rs`, `meter.rs` |
//! | whether networks work | `probe.rs`, `checks.rs`, `portals.rs` |
//! | rules as the kernel's ruleset | `rules.rs`; on Open vSwitch: `switch.rs` |
//! | names in rules, and programs' DNS queries | `naming.rs`, `resolver.rs` |
//! | flows of a removed network | `release.rs`; moved flows: `moving` |
//! | MPTCP | `multipath.rs` |
//! | quotas | `quotas.rs` |
//! | route by destination: through a hub, or outside the tunnel | `faster.rs` |
//! | concurrent use with a hub | `tunnel_access.rs`; while no hub answers: `bypass.rs` |
//! | requests over the control socket | `asked.rs` |
//! | contents of `status` and `explain` | `report.rs` |
//! | a changed configuration | `reload.rs` |
//! | temporary rules of a user | `added.rs` |
//!
//! The decisions are in `hawser-steer`; `hawser_linux::direct` writes the rules. A newcomer starts
//! with [`run`] and `Direct::run`.
#![forbid(unsafe_code)]

mod added;
mod asked;
mod bypass;
mod checks;
mod faster;
mod interface;
mod meter;
mod moving;
mod multipath;
mod naming;
mod networks;
mod notices;
mod portals;
mod probe;
mod quotas;
mod release;
mod reload;
mod report;
mod resolver;
mod rules;
mod switch;
mod tunnel_access;

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::num::NonZeroU16;
use std::rc::Rc;
use std::time::Instant as Clock;

use anyhow::{Context, anyhow, bail};
use hawser_config::{ClientConfig, Dataplane, Moves};
use hawser_host::control_socket::{Asked, ControlSocket};
use hawser_host::devices::Devices;
use hawser_host::dhcp::{self, Dhcp};
use hawser_host::health::Checks;
use hawser_host::options::ClientOptions;
use hawser_host::portals::Portals;
use hawser_host::product_interfaces::{AccessPoints, StartAccessPoints, Stations};
use hawser_host::run_dir::{Role, RunDir};
use hawser_host::sensors::{Sensors, Services};
use hawser_host::signals::Signals;
use hawser_host::system_bus::SystemBus;
use hawser_host::usage::Usage;
use hawser_host::{history, metrics};
use hawser_linux::bpf::{self, Becomes, SocketOptions};
use hawser_linux::direct::{Intent, Ruleset, TABLE, mark};
use hawser_linux::netlink::{Network, Watch};
use hawser_linux::switch::set_mtu;
use hawser_linux::system::{System, SystemError};
use hawser_linux::tun::Tun;
use hawser_steer::policy::conditions::NetworkFacts;
use hawser_steer::roaming::Roaming;
use hawser_units::{Duration, Instant};
use tokio::sync::mpsc;

use added::Added;
use faster::Faster;
use moving::Moving;
use multipath::Multipath;
use naming::Naming;
use networks::Networks;
use probe::Heard;
use release::Releases;
use rules::{Rules, THROUGH_HUB, THROUGH_SECONDARY, any_hub};
use switch::Switch;

use tunnel_access::{Alone, TunnelAccess};

pub use tunnel_access::run_with_client;

/// Runs direct mode until it is asked to end.
///
/// # Errors
/// The reason why it cannot work, in one line; the system is as it was before.
pub async fn run(options: ClientOptions, start: StartAccessPoints) -> anyhow::Result<()> {
    let services = Services::start(SystemBus::default());
    let mut devices = Devices::new(services.clone());
    let config = options.load_config(&mut devices).await?;
    if let Some(problem) = config.unfit_for_direct() {
        bail!("client.toml: {problem}");
    }
    hawser_config::atomic_file::private_directory(&options.dir)?;
    let run_dir = RunDir::take(&options.run_dir)?;
    let system = System::open(&run_dir.journal())
        .await
        .context("cannot prepare the system (are you root?)")?;
    let tun = match config.direct.dataplane {
        Dataplane::Nftables => Some(interface::open(&config.interface.0, FIRST_MTU)?),
        Dataplane::OpenVSwitch => None,
    };
    let _keeper = system.keep().context("cannot watch the system")?;
    let mut socket = ControlSocket::listen(run_dir.socket())?;
    metrics::publish(config.metrics, config.otlp.clone(), run_dir.socket()).await?;
    if config.history {
        history::keep(history::file(&options.dir, Role::Client), run_dir.socket());
    }
    let usage = Rc::new(RefCell::new(Usage::open(&options.dir)));
    let signals = Signals::new()?;
    let dhcp = Dhcp::start(system.clone(), run_dir.dhcp(), &config);
    let radio = start(Stations {
        system: system.clone(),
        dir: &options.dir,
        run_dir: run_dir.radio(),
        config: &config,
        is_tunnel: false,
        dhcp: dhcp.stations(),
    });
    let leases = dhcp.view().clone();
    let mut direct = Direct::new(
        options,
        config,
        (system, tun),
        usage,
        (Box::new(Alone), leases),
        (devices, services),
    );
    direct.dhcp = Some(dhcp);
    direct.radio = Some(radio);
    let result = direct.run(&mut socket.requests, Some(signals)).await;
    if let Some(radio) = direct.radio.take() {
        radio.end().await;
    }
    if let Some(dhcp) = direct.dhcp.take() {
        dhcp.end().await;
    }
    direct.system.undo().await;
    tracing::info!("down");
    result
}

struct Direct {
    asked: ClientOptions,
    config: ClientConfig,
    system: System,
    /// Interface, which exists as long as this handle. It is never read, because packets to it are
    /// rejected before. Absent if the interface belongs to a bridge.
    tun: Option<Tun>,
    /// Open vSwitch, used instead of nftables.
    switch: Option<Switch>,
    mtu: u16,
    /// Networks that the kernel reports, used or not.
    seen: Vec<Network>,
    networks: Networks,
    rules: Rules,
    added: Added,
    releases: Releases,
    moving: Moving,
    /// The hub that takes all flows without a rule, or none.
    tunnel_access: Box<dyn TunnelAccess>,
    usage: Rc<RefCell<Usage>>,
    sensors: Sensors,
    /// Devices of the machine, which sections of the configuration follow.
    devices: Devices,
    /// Modems in networks of other operators.
    roaming: Roaming,
    /// Socket options with which programs choose a network; absent if the kernel does not permit
    /// them.
    options: Option<SocketOptions>,
    /// Use of all networks by MPTCP; absent if disabled or missing in the kernel.
    multipath: Option<Multipath>,
    naming: Naming,
    faster: Faster,
    /// DHCP client of the networks; absent with a hub's client, which has its own.
    dhcp: Option<Dhcp>,
    radio: Option<Box<dyn AccessPoints>>,
    portals: Portals<u8>,
    checks: Checks,
    heard: mpsc::UnboundedReceiver<Heard>,
    next_sample: Instant,
    /// Time of the next attempt at an unusable network.
    retry_at: Option<Instant>,
    /// Time of the next attempt at rules that the kernel rejected.
    rules_wait_until: Option<Instant>,
    /// Set if packets are routed into the interface, for IPv4 and IPv6; `None` before the first
    /// check.
    is_open: [Option<bool>; 2],
    /// Count of reinstallations of the table of rules when it was last filled.
    reinstalled: u64,
    started: Clock,
    /// Set until flows without an answer of the hub are released, after new ones have started to
    /// bypass it.
    is_bypass_new: bool,
    /// Notice for the user; shown by `status`.
    notice: Option<String>,
}

/// Continuation of the event loop.
enum Next {
    Continue,
    End,
}

impl Direct {
    fn new(
        asked: ClientOptions,
        config: ClientConfig,
        (system, tun): (System, Option<Tun>),
        usage: Rc<RefCell<Usage>>,
        (tunnel_access, leases): (Box<dyn TunnelAccess>, dhcp::View),
        (devices, services): (Devices, Services),
    ) -> Self {
        let (tell, heard) = mpsc::unbounded_channel();
        Self {
            networks: Networks::new(tell),
            rules: Rules::new(&config, tunnel_access.has_hub()),
            added: Added::default(),
            naming: Naming::new(&config, tunnel_access.has_hub(), leases),
            faster: Faster::default(),
            dhcp: None,
            radio: None,
            portals: Portals::default(),
            checks: Checks::default(),
            options: (!tunnel_access.has_hub() && tun.is_some())
                .then(socket_options)
                .flatten(),
            switch: tun.is_none().then(Switch::default),
            multipath: None,
            usage,
            tunnel_access,
            sensors: Sensors::start(asked.run_dir.join("facts"), services, SystemBus::default()),
            devices,
            roaming: Roaming::default(),
            moving: Moving::new(&asked.dir),
            asked,
            config,
            system,
            tun,
            mtu: FIRST_MTU,
            seen: Vec::new(),
            releases: Releases::default(),
            heard,
            next_sample: Instant::from_nanos(0),
            retry_at: None,
            rules_wait_until: None,
            is_open: [None; 2],
            reinstalled: 0,
            started: Clock::now(),
            is_bypass_new: false,
            notice: None,
        }
    }

    /// Runs the event loop. `signals` is absent if another component receives them.
    async fn run(
        &mut self,
        requests: &mut mpsc::Receiver<Asked>,
        mut signals: Option<Signals>,
    ) -> anyhow::Result<()> {
        self.set_up().await?;
        let mut watch = Watch::start()?;
        self.on_networks(watch.next().await?).await?;
        self.follow_links().await;
        self.on_time();
        self.apply();
        self.open_or_close().await?;
        // This follows the rules, because a connection that arrives before them would count as
        // another one afterwards.
        if self.is_plain() {
            self.moving
                .listen(self.config.direct.peer_port.map(NonZeroU16::get))?;
        }
        self.follow_multipath().await;
        self.system.undo_left().await;
        loop {
            let deadline = self.deadline();
            let next = tokio::select! {
                networks = watch.next() => {
                    self.on_networks(networks?).await?;
                    Next::Continue
                }
                Some(heard) = self.heard.recv() => {
                    self.networks.on_heard(heard, self.now());
                    Next::Continue
                }
                heard = self.moving.next() => {
                    let now = self.now();
                    self.moving.on_heard(heard, &self.networks, now);
                    for _ in 0..AT_ONCE {
                        let Some(heard) = self.moving.try_next() else { break };
                        self.moving.on_heard(heard, &self.networks, now);
                    }
                    Next::Continue
                }
                Some(told) = self.naming.told.recv() => {
                    self.on_task_result(told);
                    Next::Continue
                }
                Some(asked) = requests.recv() => self.on_asked(asked).await,
                () = self.faster.next() => Next::Continue,
                () = self.checks.next() => Next::Continue,
                () = self.devices.next() => Next::Continue,
                () = self.tunnel_access.next() => {
                    self.on_tunnel().await?;
                    Next::Continue
                }
                () = tokio::time::sleep_until(deadline) => Next::Continue,
                reload = heard(&mut signals) => if reload { self.reload_and_log().await } else { Next::End },
            };
            if self.retry_at.is_some_and(|at| at <= self.now()) {
                self.retry_at = None;
                self.on_networks(self.seen.clone()).await?;
            }
            self.follow_links().await;
            if self.now() >= self.next_sample && self.tun.as_ref().is_some_and(Tun::is_detached) {
                bail!("another program has removed {}", self.config.interface.0);
            }
            self.on_time();
            self.follow_devices().await;
            self.apply();
            self.open_or_close().await?;
            self.follow_multipath().await;
            if matches!(next, Next::End) {
                return Ok(());
            }
        }
    }

    /// Sets up the interface with its addresses, and the rules that route unmarked packets into it.
    async fn set_up(&mut self) -> anyhow::Result<()> {
        let interface = self.config.interface.0.clone();
        if self.switch.is_some() {
            match self.system.bridge(&interface).await {
                Err(error @ SystemError::NotOurs(_)) => return Err(error.into()),
                other => other.context("dataplane = \"openvswitch\" needs Open vSwitch (Debian: openvswitch-switch), which has to run")?,
            }
        }
        if self.config.forwards_directly() {
            self.system.sysctl("net/ipv4/ip_forward", "1")?;
            self.system.forward_ipv6()?;
        }
        if self.config.direct.mptcp && self.is_plain() {
            self.multipath = Multipath::start(&mut self.system);
        }
        self.set_rules()?;
        self.naming.watch_servers(&self.config);
        if self.switch.is_none() {
            self.system.ignore_routers(&interface)?;
        }
        self.system.link_up(&interface).await?;
        if self.tunnel_access.has_hub() {
            self.stay_near().await?;
        }
        for address in self.config.direct.own() {
            let ipv6 = address.is_ipv6();
            let whole = if ipv6 { 128 } else { 32 };
            let mut steps = self.system.add_address(&interface, address, whole).await;
            if steps.is_ok() {
                steps = self.system.tunnel_rules(ipv6).await;
            }
            match steps {
                Err(error) if ipv6 => {
                    tracing::warn!(
                        error = format!("{:#}", anyhow!(error)),
                        "no IPv6: it is disabled on this machine"
                    );
                }
                other => other.with_context(|| format!("cannot set up {interface}"))?,
            }
        }
        self.start_resolver().await;
        Ok(())
    }

    /// Returns whether programs' choices, MPTCP and peers are supported: not with a tunnel or with
    /// a switch.
    fn is_plain(&self) -> bool {
        !self.tunnel_access.has_hub() && self.switch.is_none()
    }

    fn now(&self) -> Instant {
        Instant::ZERO + self.started.elapsed()
    }

    fn deadline(&self) -> tokio::time::Instant {
        let soonest = [
            self.networks.poll_timeout(),
            self.rules.poll_timeout(),
            self.releases.poll_timeout(),
            self.moving.poll_timeout(),
            self.portals.poll_timeout(),
            self.retry_at,
            self.rules_wait_until,
            self.faster.poll_timeout(),
            self.switch.as_ref().map(Switch::poll_timeout),
        ]
        .into_iter()
        .flatten()
        .fold(self.next_sample, std::cmp::Ord::min);
        tokio::time::Instant::from_std(self.started + Duration::from_nanos(soonest.as_nanos()))
    }

    /// Handles a change of the kernel's networks.
    async fn on_networks(&mut self, now: Vec<Network>) -> anyhow::Result<()> {
        self.seen = now;
        // Names may belong to other devices now.
        self.devices.read_again();
        self.next_sample = Instant::ZERO;
        let used: Vec<_> = self
            .seen
            .iter()
            .filter(|network| self.config.uses(&network.name))
            .cloned()
            .collect();
        let time = self.now();
        for gone in self.networks.missing(&used) {
            tracing::info!(network = gone.name, "network gone");
            self.networks.remove(gone.number);
            // The migration is first, because a waiting connection backs off exponentially.
            self.rescue(gone.number, "its network was removed", Duration::ZERO);
            // New flows avoid the network before its existing flows are released.
            self.apply();
            self.system.close_network_table(gone.number).await?;
            let keep = if gone.has_same_address() {
                self.config.direct.keep_flows.0
            } else {
                Duration::ZERO
            };
            self.release(gone.number, keep);
        }
        for network in used {
            if let Err(error) = self.use_network(network.clone()).await {
                self.notice = Some(format!("{}: {error:#}", network.name));
                tracing::warn!(
                    network = network.name,
                    error = format!("{error:#}"),
                    "network not usable"
                );
                self.retry_at = Some(time + RETRY_AFTER);
            }
        }
        self.fit_mtu();
        if self.is_plain() {
            self.moving.keep_links(&self.networks);
        }
        Ok(())
    }

    /// Moves the flows that can be moved from a network that was removed, unless only the user may
    /// do so.
    fn rescue(&mut self, number: u8, why: &str, keep: Duration) {
        if self.config.direct.moves == Moves::Asked {
            return;
        }
        let now = self.now();
        self.decide(now);
        self.update_migrations();
        self.moving.rescue(number, why, keep, &self.networks, now);
        self.moving.handle_timeout(&self.networks, now);
        self.moving.apply(&mut self.system);
    }

    fn update_migrations(&mut self) {
        let ruleset = self.ruleset();
        self.moving.know_rules(ruleset.choices);
    }

    /// Releases a network's flows, except those that are moved.
    fn release(&mut self, number: u8, keep: Duration) {
        let now = self.now();
        let (moving, networks) = (&self.moving, &self.networks);
        let how = (keep, self.tracking());
        self.releases.start(number, now, how, |connection, number| {
            moving.holds(connection, number, networks)
        });
    }

    async fn use_network(&mut self, network: Network) -> anyhow::Result<()> {
        let before = self
            .networks
            .by_name(&network.name)
            .and_then(|known| known.network.clone());
        if before.as_ref() == Some(&network) {
            return Ok(());
        }
        let number = self
            .networks
            .number(&network.name)
            .context("too many networks: exclude some in client.toml")?;
        prepare_interface(&mut self.system, &network.name);
        let own = self.config.direct.own();
        // With a hub, only rules bypass it, not source addresses.
        let by_address = !self.tunnel_access.has_hub();
        self.system
            .network_table(number, &network, &own, by_address)
            .await?;
        let kept_address = before.as_ref().is_none_or(|before| {
            before
                .addresses
                .iter()
                .all(|address| network.addresses.contains(address))
        });
        self.releases.stop(number);
        self.moving.relieve(number);
        if before.is_none() {
            tracing::info!(network = network.name, number, "network found");
        } else if !kept_address {
            tracing::info!(network = network.name, "the network has a new address");
        }
        self.networks.put(number, network, &self.config, self.now());
        if before.is_some() && !kept_address {
            // Packets from the old address no longer receive answers.
            self.rescue(number, "its network has a new address", Duration::ZERO);
            self.release(number, Duration::ZERO);
        }
        Ok(())
    }

    /// Sets the MTU of the interface to the smallest MTU of the networks, so that packets fit into
    /// every network.
    fn fit_mtu(&mut self) {
        let own = self.tunnel_access.has_hub().then_some(self.config.mtu.0);
        let tunnel = self.tunnel().map(|tunnel| tunnel.mtu).or(own);
        let networks = self.networks.present().map(|(_, network)| network.mtu);
        let smallest = networks.chain(tunnel.map(u32::from)).min();
        let mtu =
            u16::try_from(smallest.unwrap_or(u32::from(FIRST_MTU)).clamp(1280, 65_535)).unwrap_or(FIRST_MTU);
        if mtu != self.mtu {
            let set = match &self.tun {
                Some(tun) => tun.set_mtu(mtu).map_err(anyhow::Error::new),
                None => set_mtu(&self.config.interface.0, mtu).map_err(anyhow::Error::new),
            };
            match set {
                Ok(()) => self.mtu = mtu,
                Err(error) => tracing::warn!(error = format!("{error:#}"), "cannot change the MTU"),
            }
        }
    }

    /// Executes due actions.
    fn on_time(&mut self) {
        let now = self.now();
        if now >= self.next_sample {
            self.next_sample = now + SAMPLE_EVERY;
            self.sample(now);
            self.sensors.sample(self.config.depends_on_motion());
            self.rules.check_cgroups();
            // A station may have changed its access point.
            self.name_choices();
        }
        for (number, is_alive) in self.networks.handle_timeout(now) {
            let name = self.networks.name(number).to_owned();
            if is_alive {
                tracing::info!(network = name, "its gateway answers again");
                self.releases.stop(number);
                self.moving.relieve(number);
            } else {
                tracing::info!(network = name, "its gateway does not answer: new flows avoid it");
                self.rescue(number, "its network is silent", self.config.direct.keep_flows.0);
                self.release(number, self.config.direct.keep_flows.0);
            }
        }
        let balances = self.config.direct.moves == Moves::Auto && self.moving.is_balance_due(now);
        if balances || self.moving.is_waiting() {
            self.update_migrations();
        }
        if balances {
            self.moving.balance(&self.networks, now);
        }
        self.moving.handle_timeout(&self.networks, now);
        self.keep_quotas();
        self.keep_portals(now);
        self.keep_checks();
        self.follow_bypass();
        self.rules.know(&self.networks, &self.config);
        self.decide(now);
        self.rules.handle_timeout(now);
        self.choose_routes(now);
    }

    /// Passes all facts to the rules.
    fn decide(&mut self, now: Instant) {
        let (usage, config, known) = (self.usage.borrow(), &self.config, self.sensors.known());
        let facts = |name: &str| {
            let set = config.network(name);
            NetworkFacts {
                cost: known.costs.get(name).copied().unwrap_or(set.cost),
                quota_left: usage.left(name, &set),
                signal: known.signals.get(name).copied(),
            }
        };
        let mut candidates = self.networks.candidates(config, facts);
        let tunnel = self.tunnel().map(tunnel_access::candidate);
        if let Some(switch) = &self.switch {
            candidates.retain(|id, _| u8::try_from(id.0).is_ok_and(|number| switch.reaches(number)));
        }
        let hubs = [
            Some(THROUGH_HUB),
            any_hub(config, self.tunnel_access.has_hub()).then_some(THROUGH_SECONDARY),
        ];
        let hubs = hubs.into_iter().flatten();
        candidates.extend(hubs.filter_map(|way| Some((way, tunnel.clone()?))));
        self.rules.handle_facts(known.device);
        self.rules.handle_networks(candidates, now);
    }

    /// Applies changed rules to the kernel, and releases flows that are due.
    fn apply(&mut self) {
        let now = self.now();
        if self.rules_wait_until.is_none_or(|at| at <= now) {
            self.rules_wait_until = None;
            if let Err(error) = self.set_rules() {
                let error = format!("{error:#}");
                tracing::warn!(error, "cannot update the rules");
                self.notice = Some(error);
                // A control group may have ended at this moment, which makes its rule invalid.
                self.rules.leave_out_cgroups();
                self.rules_wait_until = Some(now + RETRY_AFTER);
            }
        }
        self.release_unanswered();
        self.moving.apply(&mut self.system);
        for number in self.moving.take_abandoned(now) {
            self.release(number, Duration::ZERO);
        }
        let (moving, networks) = (&self.moving, &self.networks);
        let tracking = self.tracking();
        self.releases.handle_timeout(now, tracking, |connection, number| {
            moving.holds(connection, number, networks)
        });
    }

    /// Returns the ruleset that the kernel should have now.
    fn ruleset(&self) -> Ruleset {
        let mut ruleset = self
            .rules
            .ruleset(&self.config, &self.networks, self.naming.is_on());
        if let Some(tunnel) = self.tunnel() {
            ruleset.own.extend(&tunnel.addresses);
            ruleset
                .networks
                .push(tunnel_access::port(tunnel, &self.config.interface.0));
        }
        ruleset
    }

    fn set_rules(&mut self) -> anyhow::Result<()> {
        let ruleset = self.ruleset();
        if self.switch.is_some() {
            self.set_flows(&ruleset).context("cannot set flows")?;
            self.rules.set_applied(ruleset);
        } else if self.rules.applied() != Some(&ruleset) || self.refills() {
            let mut elements = self.naming.elements(self.now());
            elements.extend(self.faster.elements());
            self.system
                .nft_table(TABLE, &ruleset.body(&elements, self.naming.ports()))
                .context("cannot set the rules")?;
            tracing::debug!(networks = ruleset.networks.len(), "rules set");
            self.rules.set_applied(ruleset);
            self.name_choices();
        }
        Ok(())
    }

    /// Returns whether another program removed the table, and with it the elements of its sets.
    fn refills(&mut self) -> bool {
        let reinstalled = self.system.reinstalled(TABLE);
        std::mem::replace(&mut self.reinstalled, reinstalled) != reinstalled
    }

    /// Publishes the names that programs may use: present networks, by interface or access point,
    /// and intents.
    fn name_choices(&mut self) {
        let Some(options) = &mut self.options else { return };
        let mut names = BTreeMap::new();
        for (number, known) in self
            .networks
            .all()
            .filter(|(_, known)| known.network.is_some() && !known.is_shut)
        {
            for name in [Some(&known.name), known.bssid.as_ref()].into_iter().flatten() {
                names.insert((bpf::NETWORK, name.clone()), mark(0, number));
            }
        }
        for intent in Intent::ALL {
            names.insert((bpf::INTENT, intent.name().to_owned()), intent.mark());
        }
        // The empty name cancels a choice.
        for option in [bpf::NETWORK, bpf::INTENT] {
            names.insert((option, String::new()), 0);
        }
        if let Err(error) = options.know(names) {
            tracing::warn!(%error, "some networks cannot be selected by socket option");
        }
    }

    /// Routes each address family into the interface if some network or the tunnel transfers it;
    /// otherwise, programs get an error at once.
    async fn open_or_close(&mut self) -> anyhow::Result<()> {
        for ipv6 in [false, true] {
            let address = self.tunnel().and_then(|tunnel| tunnel.address(ipv6));
            let is_open = self.networks.carries(ipv6) || address.is_some();
            if self.is_open[usize::from(ipv6)] == Some(is_open) {
                continue;
            }
            let result = if is_open {
                let interface = &self.config.interface.0;
                self.system.tunnel_route(interface, ipv6, address).await
            } else {
                self.system.close_tunnel(&self.config.interface.0, ipv6).await
            };
            match result {
                Err(error) if ipv6 => {
                    tracing::debug!(error = format!("{:#}", anyhow!(error)), "no IPv6 here")
                }
                other => other?,
            }
            self.is_open[usize::from(ipv6)] = Some(is_open);
        }
        Ok(())
    }
}

/// Waits for a signal, if this process handles signals; returns true for a reload, false for the
/// end.
async fn heard(signals: &mut Option<Signals>) -> bool {
    match signals {
        Some(signals) => signals.next().await,
        None => std::future::pending().await,
    }
}

/// Enables the socket options. Direct mode works without them, so a failure is not an error.
fn socket_options() -> Option<SocketOptions> {
    SocketOptions::new(Becomes::Mark)
        .inspect_err(|error| tracing::warn!(%error, "programs cannot select a network by socket option (SO_MARK and SO_BINDTODEVICE work)"))
        .ok()
}

/// Prepares the interface: answers are accepted over any network, and ARP on one network does not
/// reveal the address of another.
fn prepare_interface(system: &mut System, name: &str) {
    let warn = |error: SystemError| {
        tracing::warn!(
            network = name,
            error = format!("{:#}", anyhow!(error)),
            "packets may be dropped by reverse path filtering"
        );
    };
    system.prepare_uplink(name).unwrap_or_else(warn);
}

/// Maximum number of messages and packets that are handled before rules are set again. Source: our
/// choice; more delay rules that are due, fewer set rules more often than necessary.
const AT_ONCE: usize = 1_000;
/// MTU of the interface until a network is present; then those of networks apply. Source: the
/// payload of Ethernet (RFC 894). Units: bytes.
const FIRST_MTU: u16 = 1500;
/// Retry interval of a rejected route or rule: the cause is temporary or needs the operator.
/// Source: our choice; a shorter one fills the log, a longer one leaves a network unused for
/// longer.
const RETRY_AFTER: Duration = Duration::from_secs(1);
/// Interval of samples: short enough to measure the rate of a download, and long enough to cost
/// almost nothing. Source: our choice; one call of the kernel for all flows and one for all
/// devices.
const SAMPLE_EVERY: Duration = Duration::from_secs(1);
