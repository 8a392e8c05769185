//! The real daemons of a run: a hub and a client, started as by a user.

use std::collections::BTreeMap;
use std::fs::File;
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
use crate::world::{BRIDGE, BuiltMember, HUB, SECONDARY_HUB, SERVER, World};

/// A connected hub and client, or a client that needs no hub.
#[derive(Debug)]
pub(crate) struct Daemons {
    hub: Option<Daemon>,
    further_hub: Option<Daemon>,
    /// Daemons of members.
    members: Vec<Daemon>,
    client: Daemon,
    readiness: Readiness,
}

/// Condition under which the client is ready.
#[derive(Debug)]
enum Readiness {
    Status(StatusQuery),
    /// The members at these addresses have working uplinks.
    Members {
        query: StatusQuery,
        addresses: Vec<String>,
    },
    /// A repeater has this number of working links.
    Repeater {
        query: StatusQuery,
        links: usize,
    },
    /// The server, which is reachable only through the tool, answers.
    Server(Namespace),
}

#[derive(Debug)]
struct Daemon {
    what: String,
    child: Child,
    /// Set for a script with child processes, all in one process group.
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
    /// Enrols a client at a new hub and starts both; returns when the client is ready. `directory`
    /// holds their files. The schedulers apply to both directions, since a client sends its own to
    /// the hub. `rules`: tables of `client.toml` that a scenario cannot express.
    ///
    /// Must be called on a thread that lives as long as the daemons, which end with it.
    ///
    /// # Errors
    /// When a command fails, or the client is not ready in time; the error quotes the end of the
    /// log.
    pub(crate) fn start(
        world: &World,
        program: &Path,
        directory: &Path,
        (scenario, rules): (&Scenario, &str),
    ) -> anyhow::Result<Self> {
        let client_directories = Directories::new(directory, "client")?;
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
        let named = scenario.controller.iter();
        let controller: String = named.map(|name| format!("controller = \"{name}\"\n")).collect();
        let config = format!(
            "tcp = \"{tcp}\"\n{controller}[schedulers]\n{}[radio]\nshare_air = {share_air}\n",
            chosen.collect::<String>()
        );
        let config = config + &pool_config(&members) + &layers + &usages(scenario) + rules;
        std::fs::write(client_directories.dir.join("client.toml"), config)?;
        let hub = HubSetup::new(program, &world.hub, directory, "hub")?;
        hub.init(HUB, &[])?;
        let hub_config = hub.own.dir.join("hub.toml");
        // A key stands before the tables.
        let written = std::fs::read_to_string(&hub_config).unwrap_or_default();
        std::fs::write(hub_config, controller + &written + &layers)?;
        let invitation = hub.invite("lab")?;
        let hub = hub.start()?;
        let sharing = Sharing::new(program, (&world.client, &client_directories), directory)?;
        let given: anyhow::Result<Vec<_>> = members.iter().map(|member| sharing.start(member)).collect();
        let mut daemons = Self::start_client(world, program, &client_directories, &invitation, Some(hub))?;
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

    /// Starts two hubs with one new database, and a client with `config`; returns when it is ready.
    ///
    /// # Errors
    /// As for [`start`](Self::start), and when the database fails.
    pub(crate) fn start_fleet(
        world: &World,
        program: &Path,
        directory: &Path,
        store: &str,
        config: &str,
    ) -> anyhow::Result<Self> {
        let further = world.further_hub.as_ref().context("there is no other hub")?;
        let hub = HubSetup::new(program, &world.hub, directory, "hub")?;
        let other = HubSetup::new(program, further, directory, "further-hub")?;
        hub.init(HUB, &["--store", store])?;
        other.init(SECONDARY_HUB, &["--store", store])?;
        let directories = Directories::new(directory, "client")?;
        std::fs::write(directories.dir.join("client.toml"), config)?;
        let invitation = hub.invite("lab")?;
        let (hub, other) = (hub.start()?, other.start()?);
        let mut daemons = Self::start_client(world, program, &directories, &invitation, Some(hub))?;
        daemons.further_hub = Some(other);
        Ok(daemons)
    }

    /// Starts a client without a hub; returns when it is ready.
    ///
    /// # Errors
    /// As for [`start`](Self::start).
    pub(crate) fn start_direct(world: &World, program: &Path, directory: &Path) -> anyhow::Result<Self> {
        let directories = Directories::new(directory, "client")?;
        // The captive portal check would be traffic that the scenario does not have.
        std::fs::write(
            directories.dir.join("client.toml"),
            "[direct]\nportal_check = \"off\"\n",
        )?;
        Self::start_client(world, program, &directories, "--direct", None)
    }

    /// Starts direct mode on client and server as known peers; returns when the client reaches the
    /// server over every network.
    ///
    /// # Errors
    /// As for [`start`](Self::start).
    pub(crate) fn start_peers(world: &World, program: &Path, directory: &Path) -> anyhow::Result<Self> {
        let (server, client) = (
            Directories::new(directory, "server")?,
            Directories::new(directory, "client")?,
        );
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
            .context("the output contains no invitation")?;
        let mut join = world.client.command(program);
        join.args(["peer", "join", invitation, "--name", "server", "--dir"]);
        output_of(join.arg(&client.dir)).context("`hawser peer join` failed")?;
        let mut up = world.server.command(program);
        up.args(["up", "--direct", "--foreground"]);
        server.add_to(&mut up);
        let peer = Daemon::start("peer", up, directory)?;
        Self::start_client(world, program, &client, "--direct", Some(peer))
    }

    /// Starts both boxes of a repeater, which trust each other: the access point's box where the
    /// networks end, and the joining box at the client. Returns when the server answers through
    /// them. `shared`: the network that shares its channel with the hop to the client. `more`:
    /// additional arguments of the access point's box and of the joining box.
    ///
    /// # Errors
    /// As for [`start`](Self::start).
    pub(crate) fn start_repeater(
        world: &World,
        (program, directory): (&Path, &Path),
        shared: Option<&str>,
        more: [&[&str]; 2],
    ) -> anyhow::Result<Self> {
        let (far, near) = (
            Directories::new(directory, "ap")?,
            Directories::new(directory, "join")?,
        );
        let own_code = |directories: &Directories| {
            let mut command = world.client.command(program);
            command.args(["repeat", "code"]);
            directories.add_to(&mut command);
            output(command).context("`hawser repeat code` failed")
        };
        for (directories, other) in [(&far, &near), (&near, &far)] {
            let mut command = world.client.command(program);
            command.args(["repeat", "trust", own_code(other)?.trim()]);
            directories.add_to(&mut command);
            output(command).context("`hawser repeat trust` failed")?;
        }
        let side =
            |what: &'static str, namespace: &Namespace, directories: &Directories, links: Vec<String>| {
                let mut command = namespace.command(program);
                let links = links.join(",");
                command.args(["repeat", what, "--bridge", BRIDGE, "--links", &links]);
                if let (Some(shared), "join") = (shared, what) {
                    command.args(["--clients", CLIENTS, "--shared", shared]);
                }
                command.args(more[usize::from(what == "join")]);
                directories.add_to(&mut command);
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
        directories: &Directories,
        how: &str,
        hub: Option<Daemon>,
    ) -> anyhow::Result<Self> {
        let mut up = world.client.command(program);
        up.args(["up", how, "--foreground"]);
        directories.add_to(&mut up);
        let mut daemons = Self {
            hub,
            further_hub: None,
            members: Vec::new(),
            client: Daemon::start("client", up, directories.log_directory())?,
            readiness: Readiness::Status(StatusQuery {
                program: program.to_owned(),
                namespace: world.client.clone(),
                run_dir: directories.run_dir.clone(),
            }),
        };
        daemons.wait_until_up()?;
        Ok(daemons)
    }

    /// Starts both ends of another tool; returns when the server answers through it.
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

    /// Returns the names and logs of the daemons.
    pub(crate) fn logs(&self) -> Vec<(String, PathBuf)> {
        let hubs = self.hub.iter().chain(&self.further_hub).chain(&self.members);
        let all = hubs.chain([&self.client]);
        all.map(|daemon| (daemon.what.clone(), daemon.log.clone()))
            .collect()
    }

    /// Returns the run directory of the client, for `hawser status`; `None` for other tools.
    pub(crate) fn client_run_dir(&self) -> Option<&Path> {
        match &self.readiness {
            Readiness::Status(query)
            | Readiness::Members { query, .. }
            | Readiness::Repeater { query, .. } => Some(&query.run_dir),
            Readiness::Server(_) => None,
        }
    }

    /// Returns an error with the end of the log if a daemon has ended.
    pub(crate) fn check(&mut self) -> anyhow::Result<()> {
        let hubs = self.hub.iter_mut().chain(&mut self.further_hub);
        hubs.chain(&mut self.members).try_for_each(Daemon::check)?;
        self.client.check()
    }

    /// Returns the processor time of client and hub so far. Units: seconds.
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

/// A hub that is set up as by a user.
struct HubSetup<'a> {
    program: &'a Path,
    namespace: &'a Namespace,
    name: &'a str,
    own: Directories,
}

impl<'a> HubSetup<'a> {
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
            own: Directories::new(directory, name)?,
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
            invitation.with_context(|| format!("`hawser hub invite` printed no invitation: {said:?}"))?;
        Ok(invitation.to_owned())
    }

    fn start(&self) -> anyhow::Result<Daemon> {
        Daemon::start(self.name, self.command(&["run"]), self.own.log_directory())
    }
}

/// Pairs the neighbours with the client, and starts the neighbours' daemons.
struct Sharing<'a> {
    program: &'a Path,
    client: (&'a Namespace, &'a Directories),
    directory: &'a Path,
    /// Pairing code of the client.
    code: String,
}

impl<'a> Sharing<'a> {
    fn new(
        program: &'a Path,
        client: (&'a Namespace, &'a Directories),
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

    /// Returns the pairing code of a neighbour's or the client's device.
    fn code_of(&self, directories: &Directories) -> anyhow::Result<String> {
        let mut command = self.client.0.command(self.program);
        command.args(["pool", "--json"]);
        directories.add_to(&mut command);
        let shown = output(command).context("`hawser pool` failed")?;
        let shown: serde_json::Value = serde_json::from_str(&shown)?;
        let code = shown["code"].as_str().context("`hawser pool` shows no code")?;
        Ok(code.to_owned())
    }

    fn start(&self, member: &BuiltMember) -> anyhow::Result<Daemon> {
        let directories = Directories::new(self.directory, &member.name)?;
        let cap = member.described.cap;
        let cap = cap.map_or(String::new(), |cap| format!("cap = \"{}bit\"\n", cap.as_bps()));
        std::fs::write(
            directories.dir.join("share.toml"),
            format!("announce = false\n{cap}"),
        )?;
        let mut trust = self.client.0.command(self.program);
        trust.args(["pool", "trust", &member.name, &self.code_of(&directories)?]);
        self.client.1.add_to(&mut trust);
        output(trust).context("`hawser pool trust` failed")?;
        let mut command = member.place.command(self.program);
        command.args([
            "share",
            "--foreground",
            "--allow",
            &format!("client={}", self.code),
        ]);
        directories.add_to(&mut command);
        Daemon::start(&member.name, command, self.directory)
    }
}

/// Returns the configured addresses of the neighbours, which are not announced here.
fn pool_config(members: &[&BuiltMember]) -> String {
    let addresses = members.iter().map(|member| format!("{:?}", pool_address(member)));
    let addresses: Vec<String> = addresses.collect();
    if addresses.is_empty() {
        return String::new();
    }
    format!("[pool]\nmembers = [{}]\n", addresses.join(", "))
}

/// Returns the scheduler of each class: the scenario's, or for a video that of its coding.
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

/// Returns the client's settings of networks in the syntax of `client.toml`.
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

/// Returns the tables by which both ends recognise the layers of streams.
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

struct Directories {
    dir: PathBuf,
    run_dir: PathBuf,
}

impl Directories {
    fn new(directory: &Path, name: &str) -> anyhow::Result<Self> {
        let directories = Self {
            dir: directory.join(name),
            run_dir: directory.join(format!("{name}-run")),
        };
        std::fs::create_dir_all(&directories.dir)?;
        std::fs::create_dir_all(&directories.run_dir)?;
        Ok(directories)
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
                    let member = member.with_context(|| format!("no device answers at {address}"))?;
                    let ways = member["ways"].as_array();
                    if !ways.into_iter().flatten().any(|way| way["state"] == "active") {
                        bail!("the member at {address} offers no uplink: {member}");
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
                    count => bail!("only {count} of {links} links transfer packets"),
                };
            }
            Self::Server(namespace) => namespace,
        };
        // No program listens on that port: the refusal is the server's answer.
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
        // The namespace ends with the daemon, so a clean shutdown is not needed.
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

/// Time limit of the start: enrolment takes a few round trips, of a second each on the slowest
/// network of interest. Source: our choice, ten of these; a run that takes longer has failed.
const UP_TIMEOUT: Duration = Duration::from_secs(10);
/// Time limit with members: over links of 16 kbit/s, the slowest of published evaluations, a few
/// packets take seconds. Source: our choice; a handshake has 6 kB, which take 3 s at 16 kbit/s, and
/// several precede the start.
const MEMBERS_TIMEOUT: Duration = Duration::from_secs(60);
/// Timeout of the server's answer over a direct network. Source: our choice; it is repeated until
/// [`UP_TIMEOUT`].
const ANSWER_TIMEOUT: Duration = Duration::from_secs(1);
/// Discard port (RFC 863).
const DISCARD: u16 = 9;
/// Port of neighbours (`port` of share.toml). Source: `POOL` of `system/config/src/ports.rs`.
const SHARE_PORT: u16 = 47473;
/// Port on which the server accepts peers. Source: our choice, any free port.
const PEER_PORT: u16 = 4443;
/// Number of log lines that an error quotes. Source: our choice, the cause and what preceded it.
const LOG_TAIL: usize = 5;
