//! A scenario's networks, daemons and server, kept running for interactive use.
//!
//! It starts with all parts running. Steady state: orders change links and devices as a scenario's
//! events do; the user runs the workloads. It ends when the value is dropped; namespaces and
//! daemons end with the process in any case.

use std::ffi::OsStr;
use std::net::TcpListener;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use anyhow::{Context, ensure};
use hawser_linux::clock;
use hawser_linux::netns::Namespace;
use hawser_netem::State;
use hawser_netem::report::Traffic;
use hawser_netem::scenario::{Direction, Event, Scenario, Via};
use hawser_units::{Duration, Instant};
use serde::{Deserialize, Serialize};

use crate::arm::{Options, check_in_lab, start_daemons};
use crate::daemons::Daemons;
use crate::on_air::OnAir;
use crate::read_file;
use crate::workload::http;
use crate::world::{SERVER, World};

/// A running laboratory.
#[derive(Debug)]
pub struct Live {
    scenario: Scenario,
    via: Via,
    started: Instant,
    states: Vec<State>,
    /// Orders of each network since the start.
    orders: Vec<Vec<String>>,
    /// Reason why the first daemon ended, if one has.
    trouble: Option<String>,
    options: Options,
    // Dropped in this order: daemons and servers before the devices that they use.
    daemons: Option<Daemons>,
    servers: Servers,
    world: World,
}

/// A namespace of a laboratory by its role.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// Host of the applications.
    Client,
    /// Host of the hub.
    Hub,
    /// The server of the applications.
    Server,
    /// The router between networks, hub and server.
    Net,
}

/// State of a laboratory.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct LiveStatus {
    /// Name of the scenario.
    pub scenario: String,
    /// System that transfers the traffic, as `via` in a scenario.
    pub via: String,
    /// Process that keeps the laboratory.
    pub pid: u32,
    /// Time since the end of the start-up. Units: seconds.
    pub up_s: f64,
    /// Address of the server.
    pub server: String,
    /// URL of a page whose size in bytes is its name.
    pub download: String,
    /// Port of `iperf3 -s` on the server; `None` where `iperf3` is not installed.
    pub iperf3_port: Option<u16>,
    /// Logs of the daemons, by name.
    pub logs: Vec<(String, PathBuf)>,
    /// Run directory of the client's daemon, for `hawser status --run-dir`; `None` without one.
    pub client_run_dir: Option<PathBuf>,
    /// Reason why the first daemon ended, if one has.
    pub trouble: Option<String>,
    /// Paths of the namespaces of client, hub, server and net, for `nsenter --net=`.
    pub namespaces: Vec<(Role, String)>,
    /// Networks, in the scenario's order.
    pub networks: Vec<LiveNetwork>,
    /// The scenario's events, which `live event` triggers by number, from 1.
    pub events: Vec<String>,
}

/// State of one network.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct LiveNetwork {
    /// Name in the scenario.
    pub name: String,
    /// `up`, `down`, `no-carrier` or `blackhole`.
    pub state: String,
    /// Orders since the start, the latest last.
    pub orders: Vec<String>,
    /// Bytes of frames towards the client.
    pub down_bytes: u64,
    /// Bytes of frames from the client.
    pub up_bytes: u64,
    /// Packets that were dropped in both directions.
    pub lost: u64,
}

impl Live {
    /// Builds the networks and starts daemons and servers; returns when they forward traffic.
    /// `on_step` receives a description of each step.
    ///
    /// Must be called on a thread that lives as long as this value; the daemons end with the
    /// thread.
    ///
    /// # Errors
    /// When the lab cannot be built, a daemon does not start, or a signal interrupts.
    pub fn start(
        scenario: Scenario,
        via: Via,
        options: Options,
        on_step: &mut dyn FnMut(&str),
    ) -> anyhow::Result<Self> {
        check_in_lab(&scenario)?;
        on_step("building the networks");
        let world = World::build(&scenario, &via)?;
        on_step("starting the servers");
        let servers = Servers::start(&world.server)?;
        on_step("starting the daemons");
        let daemons = start_daemons((&scenario, &via), &world, &options, &OnAir::default())?;
        for event in scenario.trace_starts() {
            world.apply(&event)?;
        }
        let networks = scenario.networks.len();
        let mut live = Self {
            scenario,
            via,
            started: clock::now(),
            states: vec![State::Up; networks],
            orders: vec![Vec::new(); networks],
            trouble: None,
            options,
            daemons,
            servers,
            world,
        };
        let at_first: Vec<Event> = live.scenario.events.clone();
        for event in at_first.iter().filter(|event| event.at.is_zero()) {
            live.note(event, "at the start".to_owned());
        }
        Ok(live)
    }

    /// Changes a network as an event of a scenario does; a refused order changes nothing.
    ///
    /// # Errors
    /// Description of an invalid order in one line, or the kernel's error.
    pub fn order(
        &mut self,
        network: &str,
        direction: Option<&str>,
        settings: &[String],
    ) -> anyhow::Result<()> {
        let event = self
            .scenario
            .order(network, direction, settings, &mut read_file)
            .map_err(anyhow::Error::msg)?;
        let only = direction.map_or(String::new(), |direction| format!("{direction}: "));
        self.apply(&event, format!("{only}{}", settings.join(" ")))
    }

    /// Triggers event `number` of the scenario, counted from 1 in order of time.
    ///
    /// # Errors
    /// When there is no such event, or the kernel refuses the change.
    pub fn trigger(&mut self, number: usize) -> anyhow::Result<()> {
        let count = self.scenario.events.len();
        ensure!(count > 0, "the scenario has no [[event]]; write `set` instead");
        let event = number
            .checked_sub(1)
            .and_then(|index| self.scenario.events.get(index));
        let event =
            event.with_context(|| format!("there is no event {number}: give a number from 1 to {count}"))?;
        let event = event.clone();
        self.apply(&event, format!("event {number}"))
    }

    /// Returns the time of event `index`, counted from 0; `None` after the last one.
    #[must_use]
    pub fn due(&self, index: usize) -> Option<Duration> {
        self.scenario.events.get(index).map(|event| event.at)
    }

    fn apply(&mut self, event: &Event, order: String) -> anyhow::Result<()> {
        self.world.apply(event)?;
        self.note(event, order);
        Ok(())
    }

    fn note(&mut self, event: &Event, order: String) {
        if let Some(state) = event.change.state
            && event.direction.is_none()
        {
            self.states[event.network] = state;
        }
        self.orders[event.network].push(order);
    }

    /// Returns the reason why a daemon has ended, once and for the first daemon only.
    pub fn check(&mut self) -> Option<String> {
        if self.trouble.is_some() {
            return None;
        }
        let error = self.daemons.as_mut()?.check().err()?;
        self.trouble = Some(format!("{error:#}"));
        self.trouble.clone()
    }

    /// Returns the time since the end of the start-up.
    #[must_use]
    pub fn elapsed(&self) -> Duration {
        clock::now().since(self.started)
    }

    /// Returns a command that runs in a namespace.
    #[must_use]
    pub fn command(&self, role: Role, program: impl AsRef<OsStr>) -> Command {
        self.namespace(role).command(program)
    }

    fn namespace(&self, role: Role) -> &Namespace {
        match role {
            Role::Client => &self.world.applications,
            Role::Hub => &self.world.hub,
            Role::Server => &self.world.server,
            Role::Net => &self.world.net,
        }
    }

    /// Returns the present state.
    ///
    /// # Errors
    /// When the kernel's counters cannot be read.
    pub fn status(&self) -> anyhow::Result<LiveStatus> {
        let daemons = self.daemons.as_ref();
        let roles = [Role::Client, Role::Hub, Role::Server, Role::Net];
        let described = self.scenario.events.iter().zip(1..);
        Ok(LiveStatus {
            scenario: self.scenario.name.clone(),
            via: self.via.label(),
            pid: std::process::id(),
            up_s: self.elapsed().as_secs_f64(),
            server: SERVER.to_string(),
            download: format!("http://{SERVER}:{HTTP_PORT}/100000000"),
            iperf3_port: self.servers.iperf3.is_some().then_some(IPERF3_PORT),
            logs: daemons.map_or(Vec::new(), Daemons::logs),
            client_run_dir: daemons.and_then(Daemons::client_run_dir).map(Into::into),
            trouble: self.trouble.clone(),
            namespaces: roles.map(|role| (role, self.namespace(role).path())).to_vec(),
            networks: self.networks()?,
            events: described
                .map(|(event, number)| self.describe(number, event))
                .collect(),
        })
    }

    fn networks(&self) -> anyhow::Result<Vec<LiveNetwork>> {
        let traffic = self.world.traffic()?;
        let names = self.scenario.networks.iter().map(|network| network.name.clone());
        let states = self.states.iter().zip(&self.orders);
        let all = names.zip(states).zip(traffic);
        let network = |((name, (state, orders)), traffic): (
            (String, (&State, &Vec<String>)),
            crate::report::NetworkTraffic,
        )| {
            let Traffic { bytes, lost, .. } = traffic.down;
            LiveNetwork {
                name,
                state: state_name(*state).to_owned(),
                orders: orders.clone(),
                down_bytes: bytes,
                up_bytes: traffic.up.bytes,
                lost: lost + traffic.up.lost,
            }
        };
        Ok(all.map(network).collect())
    }

    fn describe(&self, number: usize, event: &Event) -> String {
        let network = &self.scenario.networks[event.network].name;
        let direction = match event.direction {
            None => "",
            Some(Direction::Down) => " down",
            Some(Direction::Up) => " up",
        };
        let change = match (event.change.state, event.network_change.flush_nat) {
            (Some(state), _) => state_name(state),
            (None, true) => "nat-flush",
            (None, false) => "fields change",
        };
        let at = event.at.as_secs_f64();
        format!("{number}: at {at} s, {network}{direction}: {change}")
    }

    /// Returns the daemons' program and the directory of their files.
    #[must_use]
    pub fn options(&self) -> &Options {
        &self.options
    }
}

fn state_name(state: State) -> &'static str {
    match state {
        State::Up => "up",
        State::Down => "down",
        State::NoCarrier => "no-carrier",
        State::Blackhole => "blackhole",
    }
}

/// Servers for the user's programs.
#[derive(Debug)]
struct Servers {
    is_over: Arc<AtomicBool>,
    http: Option<JoinHandle<anyhow::Result<()>>>,
    iperf3: Option<Child>,
}

impl Servers {
    fn start(place: &Namespace) -> anyhow::Result<Self> {
        let listener = place
            .run(|| TcpListener::bind((SERVER, HTTP_PORT)))
            .context("the server cannot listen")?;
        let is_over = Arc::new(AtomicBool::new(false));
        let over = Arc::clone(&is_over);
        let http = std::thread::Builder::new().name("live-http".to_owned());
        let http = http.spawn(move || http::serve(&listener, &|| over.load(Ordering::Relaxed)))?;
        let mut iperf3 = place.command("iperf3");
        iperf3.args(["-s", "-p", &IPERF3_PORT.to_string()]);
        let quiet = iperf3
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        Ok(Self {
            is_over,
            http: Some(http),
            // iperf3 may be missing; the page is always available.
            iperf3: quiet.spawn().ok(),
        })
    }
}

impl Drop for Servers {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        if let Some(http) = self.http.take() {
            let _ = http.join();
        }
        if let Some(mut iperf3) = self.iperf3.take() {
            let _ = iperf3.kill();
            let _ = iperf3.wait();
        }
    }
}

/// Port of the page: `http-alt` of the registry that RFC 6335 describes.
const HTTP_PORT: u16 = 8080;
/// Default port of iperf3.
///
/// Source: iperf3(1), option `-p`.
const IPERF3_PORT: u16 = 5201;
