//! The real daemons of a run: a hub and a client, as a user would start them.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Write;
use std::net::{Ipv4Addr, TcpStream};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use anyhow::{Context, bail};
use hawser_linux::netns::Namespace;
use hawser_linux::{clock, shutdown};
use hawser_netem::scenario::{Network, Scenario, Tcp, Usage, Workload, layer_code_point};
use hawser_units::Duration;
use hawser_wire::data::Class;

use crate::client_hop::CLIENTS;
use crate::sample;
use crate::tool::Tool;
use crate::world::{BRIDGE, BuiltMember, FURTHER_HUB, HUB, SERVER, World};

/// A hub and a client that are connected, or a client that needs no hub.
#[derive(Debug)]
pub(crate) struct Daemons {
    hub: Option<Daemon>,
    further_hub: Option<Daemon>,
    /// Neighbours that give.
    members: Vec<Daemon>,
    client: Daemon,
    readiness: Readiness,
}

/// How to find out whether the client is up.
#[derive(Debug)]
enum Readiness {
    Status(StatusQuery),
    /// What the neighbours at these addresses give carries packets.
    Members {
        query: StatusQuery,
        addresses: Vec<String>,
    },
    /// So many links of a repeater carry packets.
    Repeater {
        query: StatusQuery,
        links: usize,
    },
    /// The server, which cannot be reached without the tool, answers.
    Server(Namespace),
}

#[derive(Debug)]
struct Daemon {
    what: String,
    child: Child,
    /// Whether it is a script with children of its own, all in one process group.
    is_group: bool,
    log: PathBuf,
}

#[derive(Clone, Debug)]
struct StatusQuery {
    program: PathBuf,
    namespace: Namespace,
    run_dir: PathBuf,
}

impl Daemons {
    /// Enrols a client at a new hub and starts both; returns when the client is up. Their files are
    /// in `directory`. The schedulers are those of both directions: a client tells its hub.
    /// `rules`: tables of `client.toml` that no scenario has.
    ///
    /// Must be called on a thread that lives as long as the daemons: they die with it.
    ///
    /// # Errors
    /// When a command fails, or the client is not up in time; the end of the log is quoted.
    pub(crate) fn start(
        world: &World,
        program: &Path,
        directory: &Path,
        (scenario, rules): (&Scenario, &str),
    ) -> anyhow::Result<Self> {
        let client_place = Place::new(directory, "client")?;
        let members: Vec<&BuiltMember> = world.members().collect();
        let chosen = schedulers(scenario)
            .into_iter()
            .map(|(class, scheduler)| format!("{} = \"{scheduler}\"\n", class.name()));
        let layers = layer_config(scenario);
        let tells = |network: &Network| network.wifi.as_ref().is_some_and(|wifi| wifi.tells);
        let share_air = scenario.networks.iter().any(tells);
        let tcp = match scenario.tcp {
            Tcp::EndToEnd => "end-to-end",
            Tcp::Stream => "stream",
        };
        let config = format!(
            "tcp = \"{tcp}\"\n[schedulers]\n{}[radio]\nshare_air = {share_air}\n",
            chosen.collect::<String>()
        );
        let config = config + &pool_config(&members) + &layers + &usages(scenario) + rules;
        std::fs::write(client_place.dir.join("client.toml"), config)?;
        let hub = HubPlace::new(program, &world.hub, directory, "hub")?;
        hub.init(HUB, &[])?;
        let mut hub_config = File::options()
            .append(true)
            .create(true)
            .open(hub.own.dir.join("hub.toml"))?;
        hub_config.write_all(layers.as_bytes())?;
        let invitation = hub.invite("lab")?;
        let hub = hub.start()?;
        let sharing = Sharing::new(program, (&world.client, &client_place), directory)?;
        let given: anyhow::Result<Vec<_>> = members.iter().map(|member| sharing.start(member)).collect();
        let mut daemons = Self::start_client(world, program, &client_place, &invitation, Some(hub))?;
        daemons.members = given?;
        let present = members
            .iter()
            .filter(|member| !member.described.is_away_at_start());
        let addresses: Vec<String> = present.map(|member| pool_address(member)).collect();
        if let (false, Readiness::Status(query)) = (addresses.is_empty(), &daemons.readiness) {
            let query = query.clone();
            daemons.readiness = Readiness::Members { query, addresses };
            daemons.wait_until_up()?;
        }
        Ok(daemons)
    }

    /// Starts two hubs with one database, which nobody has used, and a client that is told
    /// `config`; returns when it is up.
    ///
    /// # Errors
    /// As for [`start`](Self::start), and where the database refuses.
    pub(crate) fn start_fleet(
        world: &World,
        program: &Path,
        directory: &Path,
        store: &str,
        config: &str,
    ) -> anyhow::Result<Self> {
        let further = world.further_hub.as_ref().context("there is no further hub")?;
        let hub = HubPlace::new(program, &world.hub, directory, "hub")?;
        let other = HubPlace::new(program, further, directory, "further-hub")?;
        hub.init(HUB, &["--store", store])?;
        other.init(FURTHER_HUB, &["--store", store])?;
        let place = Place::new(directory, "client")?;
        std::fs::write(place.dir.join("client.toml"), config)?;
        let invitation = hub.invite("lab")?;
        let (hub, other) = (hub.start()?, other.start()?);
        let mut daemons = Self::start_client(world, program, &place, &invitation, Some(hub))?;
        daemons.further_hub = Some(other);
        Ok(daemons)
    }

    /// Starts a client without a hub; returns when it is up.
    ///
    /// # Errors
    /// As for [`start`](Self::start).
    pub(crate) fn start_direct(world: &World, program: &Path, directory: &Path) -> anyhow::Result<Self> {
        let place = Place::new(directory, "client")?;
        // Its looks would be traffic that no scenario asks for.
        std::fs::write(
            place.dir.join("client.toml"),
            "[direct]\nportal_check = \"off\"\n",
        )?;
        Self::start_client(world, program, &place, "--direct", None)
    }

    /// Starts direct mode on client and server, known to each other; returns when the client
    /// reaches the server over every network.
    ///
    /// # Errors
    /// As for [`start`](Self::start).
    pub(crate) fn start_peers(world: &World, program: &Path, directory: &Path) -> anyhow::Result<Self> {
        let (server, client) = (Place::new(directory, "server")?, Place::new(directory, "client")?);
        std::fs::write(
            server.dir.join("client.toml"),
            format!("[direct]\npeer_port = {PEER_PORT}\n"),
        )?;
        let mut invite = world.server.command(program);
        invite.args([
            "peer",
            "invite",
            "lab",
            "--endpoint",
            &format!("{SERVER}:{PEER_PORT}"),
            "--dir",
        ]);
        let invitation =
            output_of(invite.arg(&server.dir).arg("--json")).context("`hawser peer invite` failed")?;
        let invitation: serde_json::Value = serde_json::from_str(&invitation)?;
        let invitation = invitation["invitation"]
            .as_str()
            .context("there is no invitation")?;
        let mut join = world.client.command(program);
        join.args(["peer", "join", invitation, "--name", "server", "--dir"]);
        output_of(join.arg(&client.dir)).context("`hawser peer join` failed")?;
        let mut up = world.server.command(program);
        up.args(["up", "--direct", "--foreground"]);
        server.add_to(&mut up);
        let peer = Daemon::start("peer", up, directory)?;
        Self::start_client(world, program, &client, "--direct", Some(peer))
    }

    /// Starts both sides of a repeater, which trust each other: the access point's box where the
    /// networks end, the joining one at the client. Returns when the server answers through them.
    /// `shared`: the network that shares its air with the hop to the client. `more`: what the
    /// access point's box and the joining one are told beside the rest.
    ///
    /// # Errors
    /// As for [`start`](Self::start).
    pub(crate) fn start_repeater(
        world: &World,
        (program, directory): (&Path, &Path),
        shared: Option<&str>,
        more: [&[&str]; 2],
    ) -> anyhow::Result<Self> {
        let (far, near) = (Place::new(directory, "ap")?, Place::new(directory, "join")?);
        let own_code = |place: &Place| {
            let mut command = world.client.command(program);
            command.args(["repeat", "code"]);
            place.add_to(&mut command);
            output(command).context("`hawser repeat code` failed")
        };
        for (place, other) in [(&far, &near), (&near, &far)] {
            let mut command = world.client.command(program);
            command.args(["repeat", "trust", own_code(other)?.trim()]);
            place.add_to(&mut command);
            output(command).context("`hawser repeat trust` failed")?;
        }
        let side = |what: &'static str, namespace: &Namespace, place: &Place, links: Vec<String>| {
            let mut command = namespace.command(program);
            let links = links.join(",");
            command.args(["repeat", what, "--bridge", BRIDGE, "--links", &links]);
            if let (Some(shared), "join") = (shared, what) {
                command.args(["--clients", CLIENTS, "--shared", shared]);
            }
            command.args(more[usize::from(what == "join")]);
            place.add_to(&mut command);
            Daemon::start(what, command, directory)
        };
        let (ap, join) = world.link_ends();
        let mut daemons = Self {
            hub: Some(side("ap", &world.net, &far, ap)?),
            further_hub: None,
            members: Vec::new(),
            client: side("join", &world.client, &near, join.clone())?,
            readiness: Readiness::Repeater {
                query: StatusQuery {
                    program: program.to_owned(),
                    namespace: world.client.clone(),
                    run_dir: near.run_dir.clone(),
                },
                links: join.len(),
            },
        };
        daemons.wait_until_up()?;
        daemons.readiness = Readiness::Server(world.applications.clone());
        daemons.wait_until_up()?;
        Ok(daemons)
    }

    fn start_client(
        world: &World,
        program: &Path,
        place: &Place,
        how: &str,
        hub: Option<Daemon>,
    ) -> anyhow::Result<Self> {
        let mut up = world.client.command(program);
        up.args(["up", how, "--foreground"]);
        place.add_to(&mut up);
        let mut daemons = Self {
            hub,
            further_hub: None,
            members: Vec::new(),
            client: Daemon::start("client", up, place.log_directory())?,
            readiness: Readiness::Status(StatusQuery {
                program: program.to_owned(),
                namespace: world.client.clone(),
                run_dir: place.run_dir.clone(),
            }),
        };
        daemons.wait_until_up()?;
        Ok(daemons)
    }

    /// Starts both sides of another tool; returns when the server answers through it.
    ///
    /// # Errors
    /// As for [`start`](Self::start).
    pub(crate) fn start_tool(
        scenario: &Scenario,
        world: &World,
        tool: &Tool,
        directory: &Path,
    ) -> anyhow::Result<Self> {
        let side = |what: &'static str, namespace: &Namespace| {
            let mut command = namespace.command(Path::new("sh"));
            command
                .args(["-c", &format!("{} {what}", tool.command)])
                .process_group(0);
            command.envs(Tool::environment(scenario, world, directory));
            let mut daemon = Daemon::start(what, command, directory)?;
            daemon.is_group = true;
            anyhow::Ok(daemon)
        };
        let mut daemons = Self {
            hub: Some(side("hub", &world.hub)?),
            further_hub: None,
            members: Vec::new(),
            client: side("client", &world.client)?,
            readiness: Readiness::Server(world.client.clone()),
        };
        daemons.wait_until_up()?;
        Ok(daemons)
    }

    /// Names of the daemons and their logs.
    pub(crate) fn logs(&self) -> Vec<(String, PathBuf)> {
        let hubs = self.hub.iter().chain(&self.further_hub).chain(&self.members);
        let all = hubs.chain([&self.client]);
        all.map(|daemon| (daemon.what.clone(), daemon.log.clone()))
            .collect()
    }

    /// Run directory of the client, where `hawser status` finds it; `None` for other tools.
    pub(crate) fn client_run_dir(&self) -> Option<&Path> {
        match &self.readiness {
            Readiness::Status(query)
            | Readiness::Members { query, .. }
            | Readiness::Repeater { query, .. } => Some(&query.run_dir),
            Readiness::Server(_) => None,
        }
    }

    /// Fails when a daemon has ended, with the end of its log.
    pub(crate) fn check(&mut self) -> anyhow::Result<()> {
        let hubs = self.hub.iter_mut().chain(&mut self.further_hub);
        hubs.chain(&mut self.members).try_for_each(Daemon::check)?;
        self.client.check()
    }

    /// Processor time so far in seconds: client, hub.
    #[must_use]
    pub(crate) fn cpu_seconds(&self) -> (f64, f64) {
        (
            sample::cpu_seconds(self.client.child.id()),
            self.hub
                .as_ref()
                .map_or(0.0, |hub| sample::cpu_seconds(hub.child.id())),
        )
    }

    fn wait_until_up(&mut self) -> anyhow::Result<()> {
        let timeout = self.readiness.timeout();
        let deadline = clock::now() + timeout;
        let mut last = String::new();
        while clock::now() < deadline {
            if shutdown::is_requested() {
                bail!("interrupted");
            }
            self.check()?;
            match self.readiness.ask() {
                Ok(()) => return Ok(()),
                Err(error) => last = format!("{error:#}"),
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        bail!(
            "the client was not up within {} s ({last}); {}{}",
            timeout.as_secs(),
            self.client.log_tail(),
            self.hub
                .as_ref()
                .map(|hub| format!("; {}", hub.log_tail()))
                .unwrap_or_default()
        )
    }
}

/// A hub as a user sets it up.
struct HubPlace<'a> {
    program: &'a Path,
    namespace: &'a Namespace,
    name: &'a str,
    own: Place,
}

impl<'a> HubPlace<'a> {
    fn new(
        program: &'a Path,
        namespace: &'a Namespace,
        directory: &Path,
        name: &'a str,
    ) -> anyhow::Result<Self> {
        Ok(Self {
            program,
            namespace,
            name,
            own: Place::new(directory, name)?,
        })
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = self.namespace.command(self.program);
        command.arg("hub").args(arguments);
        self.own.add_to(&mut command);
        command
    }

    fn init(&self, address: Ipv4Addr, more: &[&str]) -> anyhow::Result<()> {
        let endpoint = format!("{address}:443");
        let mut command = self.command(&["init", "--endpoint", &endpoint]);
        command.args(more);
        output(command).map(drop).context("`hawser hub init` failed")
    }

    fn invite(&self, client: &str) -> anyhow::Result<String> {
        let said = output(self.command(&["invite", client])).context("`hawser hub invite` failed")?;
        let mut lines = said.lines().map(str::trim);
        let invitation = lines.find(|line| line.starts_with("hawser://"));
        let invitation =
            invitation.with_context(|| format!("`hawser hub invite` printed no invitation but {said:?}"))?;
        Ok(invitation.to_owned())
    }

    fn start(&self) -> anyhow::Result<Daemon> {
        Daemon::start(self.name, self.command(&["run"]), self.own.log_directory())
    }
}

/// Lets neighbours and the client know each other, and starts the former.
struct Sharing<'a> {
    program: &'a Path,
    client: (&'a Namespace, &'a Place),
    directory: &'a Path,
    /// Of the client.
    code: String,
}

impl<'a> Sharing<'a> {
    fn new(
        program: &'a Path,
        client: (&'a Namespace, &'a Place),
        directory: &'a Path,
    ) -> anyhow::Result<Self> {
        let mut sharing = Self {
            program,
            client,
            directory,
            code: String::new(),
        };
        sharing.code = sharing.code_of(client.1)?;
        Ok(sharing)
    }

    /// What the devices of a neighbour and of the client are known by.
    fn code_of(&self, place: &Place) -> anyhow::Result<String> {
        let mut command = self.client.0.command(self.program);
        command.args(["pool", "--json"]);
        place.add_to(&mut command);
        let shown = output(command).context("`hawser pool` failed")?;
        let shown: serde_json::Value = serde_json::from_str(&shown)?;
        let code = shown["code"].as_str().context("`hawser pool` shows no code")?;
        Ok(code.to_owned())
    }

    fn start(&self, member: &BuiltMember) -> anyhow::Result<Daemon> {
        let place = Place::new(self.directory, &member.name)?;
        let cap = member.described.cap;
        let cap = cap.map_or(String::new(), |cap| format!("cap = \"{}bit\"\n", cap.as_bps()));
        std::fs::write(place.dir.join("share.toml"), format!("announce = false\n{cap}"))?;
        let mut trust = self.client.0.command(self.program);
        trust.args(["pool", "trust", &member.name, &self.code_of(&place)?]);
        self.client.1.add_to(&mut trust);
        output(trust).context("`hawser pool trust` failed")?;
        let mut command = member.place.command(self.program);
        command.args([
            "share",
            "--foreground",
            "--allow",
            &format!("client={}", self.code),
        ]);
        place.add_to(&mut command);
        Daemon::start(&member.name, command, self.directory)
    }
}

/// Where the client finds the neighbours: nothing announces them here.
fn pool_config(members: &[&BuiltMember]) -> String {
    let addresses = members.iter().map(|member| format!("{:?}", pool_address(member)));
    let addresses: Vec<String> = addresses.collect();
    if addresses.is_empty() {
        return String::new();
    }
    format!("[pool]\nmembers = [{}]\n", addresses.join(", "))
}

/// What stripes which class: what the scenario says, and for a video what suits its coding.
fn schedulers(scenario: &Scenario) -> BTreeMap<Class, &str> {
    let mut schedulers = BTreeMap::new();
    for workload in &scenario.workloads {
        if let Workload::Video { coding, .. } = workload {
            schedulers.insert(Class::Layered, coding.scheduler());
        }
    }
    let said = scenario.schedulers.iter();
    schedulers.extend(said.map(|(class, scheduler)| (*class, scheduler.as_str())));
    schedulers
}

/// The client's settings of networks, as it reads them.
fn usages(scenario: &Scenario) -> String {
    let caps = |usage: Usage| [("cap_up", usage.cap_up), ("cap_down", usage.cap_down)];
    let section = |network: &Network| {
        let lines = caps(network.usage)
            .into_iter()
            .filter_map(|(key, cap)| Some(format!("{key} = \"{}kbit\"\n", cap?.as_bps() as f64 / 1e3)));
        let uses = network.usage.priority.name();
        format!(
            "[networks.{}]\nuse = \"{uses}\"\n{}",
            network.name,
            lines.collect::<String>()
        )
    };
    let networks = scenario.networks.iter();
    let set = networks.filter(|network| network.usage != Usage::default());
    set.map(section).collect()
}

/// How both ends know the layers of streams.
fn layer_config(scenario: &Scenario) -> String {
    let layers = scenario.workloads.iter().map(Workload::layers);
    let rule = |layer| {
        format!(
            "\n[[layer]]\ndscp = \"{}\"\nlayer = {layer}\n",
            layer_code_point(layer)
        )
    };
    (0..layers.max().unwrap_or(0)).map(rule).collect()
}

fn pool_address(member: &BuiltMember) -> String {
    format!("{}:{SHARE_PORT}", member.address)
}

struct Place {
    dir: PathBuf,
    run_dir: PathBuf,
}

impl Place {
    fn new(directory: &Path, name: &str) -> anyhow::Result<Self> {
        let place = Self {
            dir: directory.join(name),
            run_dir: directory.join(format!("{name}-run")),
        };
        std::fs::create_dir_all(&place.dir)?;
        std::fs::create_dir_all(&place.run_dir)?;
        Ok(place)
    }

    fn log_directory(&self) -> &Path {
        self.dir.parent().unwrap_or(&self.dir)
    }

    fn add_to(&self, command: &mut Command) {
        command
            .arg("--dir")
            .arg(&self.dir)
            .arg("--run-dir")
            .arg(&self.run_dir);
    }
}

impl Readiness {
    fn timeout(&self) -> Duration {
        match self {
            Self::Members { .. } => MEMBERS_TIMEOUT,
            Self::Status(_) | Self::Repeater { .. } | Self::Server(_) => UP_TIMEOUT,
        }
    }

    /// # Errors
    /// Why it is not up.
    fn ask(&self) -> anyhow::Result<()> {
        let namespace = match self {
            Self::Status(query) => {
                let status = query.ask()?;
                let is_up = status.get("state").and_then(|state| state.as_str()) == Some("up");
                let links = status["moving"]["links"].as_array();
                if let Some(link) = links
                    .into_iter()
                    .flatten()
                    .find(|link| !link["trouble"].is_null())
                {
                    bail!(
                        "{} is not reached over {}: {}",
                        link["peer"],
                        link["network"],
                        link["trouble"]
                    );
                }
                return if is_up {
                    Ok(())
                } else {
                    bail!("its state is {}", status["state"])
                };
            }
            Self::Members { query, addresses } => {
                let status = query.ask()?;
                let known: Vec<_> = status["pool"]["members"]
                    .as_array()
                    .into_iter()
                    .flatten()
                    .collect();
                for address in addresses {
                    let member = known.iter().find(|member| member["at"] == address.as_str());
                    let member = member.with_context(|| format!("nobody is at {address}"))?;
                    let ways = member["ways"].as_array();
                    if !ways.into_iter().flatten().any(|way| way["state"] == "active") {
                        bail!("the member at {address} gives nothing: {member}");
                    }
                }
                return Ok(());
            }
            Self::Repeater { query, links } => {
                let status = query.ask()?;
                let paths = status["sessions"][0]["paths"].as_array();
                let active = paths
                    .into_iter()
                    .flatten()
                    .filter(|path| path["state"] == "active");
                return match active.count() {
                    count if count == *links => Ok(()),
                    count => bail!("{count} of {links} links carry packets"),
                };
            }
            Self::Server(namespace) => namespace,
        };
        // Nobody listens on that port: the server's refusal is its answer.
        let address = (SERVER, DISCARD).into();
        let answer = namespace.run(|| match TcpStream::connect_timeout(&address, ANSWER_TIMEOUT) {
            Err(error) if error.kind() == std::io::ErrorKind::ConnectionRefused => Ok(()),
            other => other.map(drop),
        });
        answer.context("the server does not answer")
    }
}

impl StatusQuery {
    fn ask(&self) -> anyhow::Result<serde_json::Value> {
        let mut command = self.namespace.command(&self.program);
        command.args(["status", "--json", "--run-dir"]).arg(&self.run_dir);
        let text = output(command)?;
        serde_json::from_str(&text).context("`hawser status --json` printed no JSON")
    }
}

impl Daemon {
    fn start(what: &str, mut command: Command, directory: &Path) -> anyhow::Result<Self> {
        let log = directory.join(format!("{what}.log"));
        let file = File::create(&log).with_context(|| format!("cannot write {}", log.display()))?;
        let child = command
            .stdin(Stdio::null())
            .stdout(file.try_clone()?)
            .stderr(file)
            .spawn()
            .with_context(|| format!("cannot start the {what}"))?;
        Ok(Self {
            what: what.to_owned(),
            child,
            is_group: false,
            log,
        })
    }

    fn check(&mut self) -> anyhow::Result<()> {
        match self.child.try_wait()? {
            Some(status) => bail!("the {} ended ({status}); {}", self.what, self.log_tail()),
            None => Ok(()),
        }
    }

    fn log_tail(&self) -> String {
        let log = std::fs::read_to_string(&self.log).unwrap_or_default();
        let lines: Vec<&str> = log.lines().collect();
        let tail = lines[lines.len().saturating_sub(LOG_TAIL)..].join(" | ");
        if tail.is_empty() {
            format!("the {}'s log is empty", self.what)
        } else {
            format!("the {}'s log ends: {tail}", self.what)
        }
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        if self.is_group {
            let group = format!("kill -9 -{}", self.child.id());
            let _ = Command::new("sh")
                .args(["-c", &group])
                .stderr(Stdio::null())
                .status();
        }
        // Its namespace goes with it, so there is nothing that it would have to put in order.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn output(mut command: Command) -> anyhow::Result<String> {
    output_of(&mut command)
}

fn output_of(command: &mut Command) -> anyhow::Result<String> {
    let output = command.stdin(Stdio::null()).output().context("cannot run it")?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        bail!(
            "{} ({})",
            said.split_whitespace().collect::<Vec<_>>().join(" "),
            output.status
        );
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Enrolment takes a few round trips; on the slowest network of interest a round trip takes a
/// second.
const UP_TIMEOUT: Duration = Duration::from_secs(10);
/// Over the slowest links of published evaluations (16 kbit/s) a few packets take seconds.
const MEMBERS_TIMEOUT: Duration = Duration::from_secs(60);
const ANSWER_TIMEOUT: Duration = Duration::from_secs(1);
const DISCARD: u16 = 9;
/// Where neighbours are asked (`port` of share.toml).
const SHARE_PORT: u16 = 47473;
/// Where the server lets peers in.
const PEER_PORT: u16 = 4443;
/// Lines of a log that an error quotes.
const LOG_TAIL: usize = 5;
