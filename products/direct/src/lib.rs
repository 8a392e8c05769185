//! Direct mode: one interface over all networks without a hub. The kernel forwards; this only
//! decides.
//!
//! One task owns everything and waits for whatever happens next: a network comes or goes, a gateway
//! answers or is silent, a deadline passes, somebody asks over the control socket, a signal
//! arrives. After each, it compares what the rules say with what the kernel was told, and tells it
//! anew if they differ.
//!
//! It starts with an interface that leads nowhere. Every network that is found gets a number, a
//! routing table and a place in the ruleset. When one goes, new flows avoid it at once and its
//! flows are let go ([`release`]). It fails only when the kernel refuses; everything changed in the
//! system is undone at the end.
//!
//! | question | file |
//! |---|---|
//! | the event loop | this one (`Direct::run`) |
//! | which networks there are, and what they carry | `networks.rs`, `meter.rs` |
//! | whether networks lead anywhere | `probe.rs`, `checks.rs`, `portals.rs` |
//! | what rules say, as the kernel's ruleset | `rules.rs`; on Open vSwitch: `switch.rs` |
//! | names in rules, and programs' questions for names | `naming.rs`, `resolver.rs` |
//! | flows of a network that is gone | `release.rs`; those that move: `moving` |
//! | MPTCP | `multipath.rs` |
//! | quotas | `quotas.rs` |
//! | through a hub or past it, by destination | `faster.rs` |
//! | beside a client of a hub | `beside.rs`; while no hub answers: `bypass.rs` |
//! | what is asked, and who answers | `asked.rs` |
//! | what is said: `status`, `explain` | `report.rs` |
//! | a changed configuration | `reload.rs` |
//! | rules that a user adds for a while | `added.rs` |
//!
//! What decides is in `hawser-steer`; what writes rules is `hawser_linux::direct`. A newcomer
//! starts with [`run`] and `Direct::run`.
#![forbid(unsafe_code)]

mod added;
mod asked;
mod beside;
mod bypass;
mod checks;
mod faster;
mod interface;
mod meter;
mod moving;
mod multipath;
mod naming;
mod networks;
mod portals;
mod probe;
mod quotas;
mod release;
mod reload;
mod report;
mod resolver;
mod rules;
mod switch;
mod told;

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::num::NonZeroU16;
use std::rc::Rc;
use std::time::Instant as Clock;

use anyhow::{Context, anyhow, bail};
use hawser_config::{ClientConfig, Dataplane, Moves};
use hawser_host::beside::{AccessPoints, StartAccessPoints, Stations};
use hawser_host::control_socket::{Asked, ControlSocket};
use hawser_host::dhcp::{self, Dhcp};
use hawser_host::health::Checks;
use hawser_host::options::ClientOptions;
use hawser_host::portals::Portals;
use hawser_host::run_dir::{Role, RunDir};
use hawser_host::sensors::Sensors;
use hawser_host::signals::Signals;
use hawser_host::system_bus::SystemBus;
use hawser_host::usage::Usage;
use hawser_host::{history, metrics};
use hawser_linux::bpf::{self, Becomes, SocketOptions};
use hawser_linux::direct::{Intent, Ruleset, TABLE, mark};
use hawser_linux::netlink::{Network, Watch, counted_devices};
use hawser_linux::switch::set_mtu;
use hawser_linux::system::{System, SystemError};
use hawser_linux::tun::Tun;
use hawser_steer::policy::conditions::NetworkFacts;
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
use rules::{Rules, THROUGH_FURTHER, THROUGH_HUB, any_hub};
use switch::Switch;

use beside::{Alone, Beside};

pub use beside::run_beside;

/// Runs direct mode until it is asked to end.
///
/// # Errors
/// What keeps it from working, in one line; the system is as it was before.
pub async fn run(options: ClientOptions, start: StartAccessPoints) -> anyhow::Result<()> {
    let config = options.load_config()?;
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
    let mut direct = Direct::new(options, config, (system, tun), usage, (Box::new(Alone), leases));
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
    /// Keeps the interface there. Nothing is read from it: what would come is refused before.
    /// Absent where it is a bridge's.
    tun: Option<Tun>,
    /// Open vSwitch, in place of nftables.
    switch: Option<Switch>,
    mtu: u16,
    /// What the kernel shows, used or not.
    seen: Vec<Network>,
    networks: Networks,
    rules: Rules,
    added: Added,
    releases: Releases,
    moving: Moving,
    /// The hub that takes all flows of which no rule says otherwise, or none.
    beside: Box<dyn Beside>,
    usage: Rc<RefCell<Usage>>,
    sensors: Sensors,
    /// Where programs say which network they want; absent where the kernel does not permit it.
    options: Option<SocketOptions>,
    /// What makes MPTCP use all networks; absent where it is off or the kernel lacks it.
    multipath: Option<Multipath>,
    naming: Naming,
    faster: Faster,
    /// Addresses by DHCP, where that is seen to; absent beside a client, which does that itself.
    dhcp: Option<Dhcp>,
    radio: Option<Box<dyn AccessPoints>>,
    portals: Portals<u8>,
    checks: Checks,
    heard: mpsc::UnboundedReceiver<Heard>,
    next_sample: Instant,
    /// When a network that could not be used is tried again.
    retry_at: Option<Instant>,
    /// When rules that the kernel has not taken are tried again.
    rules_wait_until: Option<Instant>,
    /// Whether the interface leads anywhere, for IPv4 and IPv6; nothing before the first look.
    is_open: [Option<bool>; 2],
    /// How often the table of rules had been installed again when it was filled.
    reinstalled: u64,
    started: Clock,
    /// Set until flows without an answer of the hub are let go, as new ones bypass it.
    is_bypass_new: bool,
    /// What a user should know; shown by `status`.
    notice: Option<String>,
}

/// How the event loop goes on.
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
        (beside, leases): (Box<dyn Beside>, dhcp::View),
    ) -> Self {
        let (tell, heard) = mpsc::unbounded_channel();
        Self {
            networks: Networks::new(tell),
            rules: Rules::new(&config, beside.has_hub()),
            added: Added::default(),
            naming: Naming::new(&config, beside.has_hub(), leases),
            faster: Faster::default(),
            dhcp: None,
            radio: None,
            portals: Portals::default(),
            checks: Checks::default(),
            options: (!beside.has_hub() && tun.is_some())
                .then(socket_options)
                .flatten(),
            switch: tun.is_none().then(Switch::default),
            multipath: None,
            usage,
            beside,
            sensors: Sensors::start(asked.run_dir.join("facts"), SystemBus::default),
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

    /// `signals`: absent where somebody else hears them.
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
        // Only now: what came in before the rules were set would be taken for another connection
        // after.
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
                    self.on_told(told);
                    Next::Continue
                }
                Some(asked) = requests.recv() => self.on_asked(asked).await,
                () = self.faster.next() => Next::Continue,
                () = self.checks.next() => Next::Continue,
                () = self.beside.next() => {
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

    /// The interface with its addresses, and the rules that lead into it what has no mark.
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
        if self.beside.has_hub() {
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
                        "no IPv6: this machine has it switched off"
                    );
                }
                other => other.with_context(|| format!("cannot set up {interface}"))?,
            }
        }
        self.start_resolver().await;
        Ok(())
    }

    /// Whether programs choose, and MPTCP and peers take part: not where a tunnel is to be kept to,
    /// nor where a switch has the flows.
    fn is_plain(&self) -> bool {
        !self.beside.has_hub() && self.switch.is_none()
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

    /// Carries out a change of the kernel's networks.
    async fn on_networks(&mut self, now: Vec<Network>) -> anyhow::Result<()> {
        self.seen = now;
        // Names may be those of other devices.
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
            // First of all: a connection that waits for its network waits ever longer.
            self.rescue(gone.number, "its network went", Duration::ZERO);
            // New flows avoid it before those that are on it are let go.
            self.apply();
            self.system.close_network_table(gone.number).await?;
            let keep = if gone.has_kept_address() {
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

    /// Moves what can be moved from a network that is gone, unless only the user is to say so.
    fn rescue(&mut self, number: u8, why: &str, keep: Duration) {
        if self.config.direct.moves == Moves::Asked {
            return;
        }
        let now = self.now();
        self.decide(now);
        self.tell_moving();
        self.moving.rescue(number, why, keep, &self.networks, now);
        self.moving.handle_timeout(&self.networks, now);
        self.moving.apply(&mut self.system);
    }

    fn tell_moving(&mut self) {
        let ruleset = self.ruleset();
        self.moving.know_rules(ruleset.choices);
    }

    /// Lets go of a network's flows, but of those that are moved.
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
            .context("there are too many networks: exclude some")?;
        prepare_interface(&mut self.system, &network.name);
        let own = self.config.direct.own();
        // With a hub, no address leads past it, but rules alone.
        let by_address = !self.beside.has_hub();
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
            tracing::info!(network = network.name, "network has another address");
        }
        self.networks.put(number, network, &self.config, self.now());
        if before.is_some() && !kept_address {
            // Nothing that was sent from the old address gets an answer any more.
            self.rescue(number, "its network got another address", Duration::ZERO);
            self.release(number, Duration::ZERO);
        }
        Ok(())
    }

    /// Applications must not send what a network cannot carry: the smallest counts.
    fn fit_mtu(&mut self) {
        let own = self.beside.has_hub().then_some(self.config.mtu.0);
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
                Err(error) => tracing::warn!(error = format!("{error:#}"), "the interface keeps its MTU"),
            }
        }
    }

    /// Does what is due.
    fn on_time(&mut self) {
        let now = self.now();
        if now >= self.next_sample {
            self.next_sample = now + SAMPLE_EVERY;
            self.sample(now);
            self.sensors.look(self.config.depends_on_motion());
            self.rules.look_at_cgroups();
            // A radio may be at another access point by now.
            self.name_choices();
        }
        for (number, is_alive) in self.networks.handle_timeout(now) {
            let name = self.networks.name(number).to_owned();
            if is_alive {
                tracing::info!(network = name, "its gateway answers again");
                self.releases.stop(number);
                self.moving.relieve(number);
            } else {
                tracing::info!(network = name, "its gateway is silent: new flows avoid it");
                self.rescue(number, "its network was silent", self.config.direct.keep_flows.0);
                self.release(number, self.config.direct.keep_flows.0);
            }
        }
        let balances = self.config.direct.moves == Moves::Auto && self.moving.is_balance_due(now);
        if balances || self.moving.is_waiting() {
            self.tell_moving();
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
        self.choose_ways(now);
    }

    /// Tells the rules all that is known.
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
        let tunnel = self.tunnel().map(beside::candidate);
        if let Some(switch) = &self.switch {
            candidates.retain(|id, _| u8::try_from(id.0).is_ok_and(|number| switch.reaches(number)));
        }
        let hubs = [
            Some(THROUGH_HUB),
            any_hub(config, self.beside.has_hub()).then_some(THROUGH_FURTHER),
        ];
        let hubs = hubs.into_iter().flatten();
        candidates.extend(hubs.filter_map(|way| Some((way, tunnel.clone()?))));
        self.rules.handle_facts(known.device);
        self.rules.handle_networks(candidates, now);
    }

    /// Looks what every network has carried.
    fn sample(&mut self, now: Instant) {
        match counted_devices() {
            Ok(devices) => {
                self.networks.handle_counters(&devices, now);
                self.usage.borrow_mut().handle_devices(&devices, |_| true, now);
            }
            Err(error) => tracing::debug!(%error, "cannot read what networks carry"),
        }
    }

    /// Tells the kernel what the rules say, if that has changed, and lets go of flows that are due.
    fn apply(&mut self) {
        let now = self.now();
        if self.rules_wait_until.is_none_or(|at| at <= now) {
            self.rules_wait_until = None;
            if let Err(error) = self.set_rules() {
                let error = format!("{error:#}");
                tracing::warn!(error, "the rules are as before");
                self.notice = Some(error);
                // A control group may have ended in this moment, and its rule with it.
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

    /// What the kernel should be told now.
    fn ruleset(&self) -> Ruleset {
        let mut ruleset = self
            .rules
            .ruleset(&self.config, &self.networks, self.naming.is_on());
        if let Some(tunnel) = self.tunnel() {
            ruleset.own.extend(&tunnel.addresses);
            ruleset
                .networks
                .push(beside::port(tunnel, &self.config.interface.0));
        }
        ruleset
    }

    fn set_rules(&mut self) -> anyhow::Result<()> {
        let ruleset = self.ruleset();
        if self.switch.is_some() {
            self.set_flows(&ruleset).context("cannot set the flows")?;
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

    /// Programs may name the networks that are there, by interface or access point, and intents.
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
        // The empty name takes a choice back.
        for option in [bpf::NETWORK, bpf::INTENT] {
            names.insert((option, String::new()), 0);
        }
        if let Err(error) = options.know(names) {
            tracing::warn!(%error, "some networks cannot be chosen by socket option");
        }
    }

    /// Leads into the interface what some network can carry; of the rest, programs hear at once
    /// that there is no way.
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

/// Waits for a signal, if this is who hears them; true: reload, false: end.
async fn heard(signals: &mut Option<Signals>) -> bool {
    match signals {
        Some(signals) => signals.next().await,
        None => std::future::pending().await,
    }
}

/// Everything else works without, so this is no reason to fail.
fn socket_options() -> Option<SocketOptions> {
    SocketOptions::new(Becomes::Mark)
        .inspect_err(|error| tracing::warn!(%error, "programs cannot choose by socket option (SO_MARK and SO_BINDTODEVICE work)"))
        .ok()
}

/// Answers may come in over any network, and an address of one network is no business of another's
/// neighbours.
fn prepare_interface(system: &mut System, name: &str) {
    let warn = |error: SystemError| {
        tracing::warn!(
            network = name,
            error = format!("{:#}", anyhow!(error)),
            "answers may be filtered here"
        );
    };
    system.prepare_uplink(name).unwrap_or_else(warn);
}

/// Messages and packets that are taken in before rules are set again.
const AT_ONCE: usize = 1_000;
/// Of the interface until a network is there; what networks have counts then.
const FIRST_MTU: u16 = 1500;
/// What keeps the kernel from taking a route or a rule is over soon, or a person's business.
const RETRY_AFTER: Duration = Duration::from_secs(1);
/// Often enough to see what a download reaches, rarely enough to cost nothing.
const SAMPLE_EVERY: Duration = Duration::from_secs(1);
