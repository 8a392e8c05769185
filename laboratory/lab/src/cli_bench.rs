//! `hawser-lab bench ...`: measurements of this machine, and of Hawser in comparison with
//! alternatives.

use std::net::{SocketAddr, UdpSocket};
use std::path::{Path, PathBuf};
use std::process::{Child, ExitCode, Stdio};
use std::time::{Duration, Instant, SystemTime};

use anyhow::{Context, bail, ensure};
use hawser_config::identity::Identity;
use hawser_config::invitation::{Invitation, InvitedTo};
use hawser_config::{self as config, HubConfig};
use hawser_control::enrolment::ClientStore;
use hawser_control::idle_clients::IdleClients;
use hawser_host::control_socket::{Request, ask, is_alive};
use hawser_host::run_dir;
use hawser_hub::{self as hub, HubInit};
use hawser_linux::netns::Namespace;
use hawser_sim::bench::{WiredMultipath, measure};
use hawser_terminal::say;
use serde_json::json;

use crate::cli_bench_direct::{self, DirectArgs};
use crate::cli_bench_faster::{self, FasterArgs};
use crate::cli_bench_networks::{self, NetworksArgs};
use crate::cli_bench_traces::{self, TracesArgs};
use crate::daemon;

/// Measures parts of Hawser on this machine.
#[derive(Debug, clap::Args)]
pub(crate) struct BenchArgs {
    #[command(subcommand)]
    command: BenchCommand,
}

#[derive(Debug, clap::Subcommand)]
enum BenchCommand {
    /// Compares Hawser with each network alone and with the kernel's MPTCP, in interleaved runs on
    /// real packets.
    Networks(NetworksArgs),
    /// Simulates pairs of recorded networks: each network alone, and both together.
    Traces(TracesArgs),
    /// Measures the cost of direct mode for a flow, in comparison with the same flow without
    /// Hawser. Uses network namespaces; needs root.
    Direct(DirectArgs),
    /// Compares rules with `via = "faster"` in random topologies with routing all flows through the
    /// hub, and with routing none through it. Uses network namespaces; needs root.
    Faster(FasterArgs),
    /// Measures memory and CPU time of a hub for enrolled clients that send no traffic. Uses a
    /// network namespace; needs root.
    IdleClients(IdleArgs),
    /// Measures packet events per second of the simulator on one core, by network size: wired
    /// multipath TCP.
    Sim(SimArgs),
    /// Measures the simulated seconds per second of the 802.11 model on one core: saturated access
    /// points of 54 Mbit/s on one channel.
    Air(AirArgs),
}

#[derive(Debug, clap::Args)]
struct AirArgs {
    /// Numbers of access points; each number is measured separately, e.g. `1 2 10`.
    #[arg(default_values_t = [1, 2, 10])]
    access_points: Vec<u16>,
    /// Simulated time of each measurement, in seconds.
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u64).range(1..))]
    seconds: u64,
    /// Prints the result as JSON.
    #[arg(long)]
    json: bool,
}

#[derive(Debug, clap::Args)]
struct SimArgs {
    /// Numbers of nodes, separated by commas; each number is measured, e.g. `10,100,1000`.
    #[arg(long, value_delimiter = ',', default_values_t = [10, 100, 1000])]
    nodes: Vec<usize>,
    /// Leaves the groups of five nodes unconnected, instead of joining them into a ring whose links
    /// have a delay of 20 ms.
    #[arg(long)]
    alone: bool,
    /// Prints the result as JSON.
    #[arg(long)]
    json: bool,
}

#[derive(Debug, clap::Args)]
struct IdleArgs {
    /// Number of clients.
    #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..=60_000))]
    count: u32,
    /// Number of paths of each client.
    #[arg(long, default_value_t = 2)]
    paths: u32,
    /// Time for which the enrolled clients stay idle while the hub is measured, in seconds.
    #[arg(long, default_value_t = 60)]
    seconds: u64,
    /// Prints the result as JSON.
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: BenchArgs) -> anyhow::Result<ExitCode> {
    match args.command {
        BenchCommand::Networks(args) => cli_bench_networks::run(&args),
        BenchCommand::Traces(args) => cli_bench_traces::run(&args),
        BenchCommand::Direct(args) => cli_bench_direct::run(&args),
        BenchCommand::Faster(args) => cli_bench_faster::run(&args),
        BenchCommand::IdleClients(args) => idle_clients(&args),
        BenchCommand::Air(args) => air(&args),
        BenchCommand::Sim(args) => sim(&args),
    }
}

/// Measures two loads: the same load per node at each size, and the same total load at each size,
/// by higher rates where there are fewer nodes.
fn sim(args: &SimArgs) -> anyhow::Result<ExitCode> {
    ensure!(
        !args.nodes.contains(&0),
        "--nodes: a network has at least one node"
    );
    let largest = args.nodes.iter().copied().max().unwrap_or(1);
    let load = |is_equal: bool| {
        move |nodes: &usize| WiredMultipath {
            nodes: *nodes,
            factor: if is_equal { (largest / nodes) as u64 } else { 1 },
            backbone: (!args.alone).then_some(WiredMultipath::BACKBONE),
        }
    };
    let began = Instant::now();
    let mut rows = Vec::new();
    for (name, is_equal) in [("load by node", false), ("equal loads", true)] {
        let loads: Vec<_> = args.nodes.iter().map(load(is_equal)).collect();
        for (load, speed) in loads.iter().zip(measure(&loads, || began.elapsed())) {
            let (nodes, cost) = (load.nodes, speed.ns_per_event);
            if !args.json {
                say!(
                    "{name}, {nodes:>5} nodes: {:5.2} million packet events a second, {cost:.0} ns each",
                    1e3 / cost
                )?;
            }
            rows.push(json!({
                "nodes": nodes,
                "load": if is_equal { "equal" } else { "by-node" },
                "packet_events": speed.packet_events,
                "events_per_second": 1e9 / cost,
                "ns_per_event": cost,
            }));
        }
    }
    let peak = peak_memory()?;
    if args.json {
        say!(
            "{}",
            json!({ "version": 1, "sizes": rows, "peak_memory_bytes": peak })
        )?;
    } else {
        say!("peak memory {:.1} MB", peak as f64 / 1e6)?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Returns the peak resident memory of this process. Units: bytes.
fn peak_memory() -> anyhow::Result<u64> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kilobytes: u64 = peak
        .and_then(|text| text.split_whitespace().next()?.parse().ok())
        .context("cannot read this process's memory usage from /proc")?;
    Ok(kilobytes * 1024)
}

fn air(args: &AirArgs) -> anyhow::Result<ExitCode> {
    let mut rows = Vec::new();
    for count in &args.access_points {
        ensure!(*count > 0, "there is at least one access point");
        let end = hawser_units::Instant::ZERO + Duration::from_secs(args.seconds);
        let mut network = hawser_sim::bench::saturated_air(usize::from(*count), 1, end);
        let began = Instant::now();
        network.run(end);
        let speed = args.seconds as f64 / began.elapsed().as_secs_f64();
        if !args.json {
            say!("{count:3} access points: {speed:7.1} simulated seconds per second")?;
        }
        rows.push(json!({ "access_points": count, "simulated_seconds_per_second": speed }));
    }
    if args.json {
        say!("{}", serde_json::Value::from(rows))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn idle_clients(args: &IdleArgs) -> anyhow::Result<ExitCode> {
    if !hawser_linux::process::is_root() {
        bail!("creating a network namespace needs root: sudo hawser-lab bench idle-clients");
    }
    let directory = HubDirectory::new()?;
    let invitations = directory.invite(args.count)?;
    let namespace = Namespace::new().context("cannot create a network namespace")?;
    let up = namespace
        .command("ip")
        .args(["link", "set", "lo", "up"])
        .status()?;
    ensure!(up.success(), "cannot set up the loopback interface");
    let hub = Hub::start(&directory, &namespace)?;
    let socket = namespace.run(|| UdpSocket::bind("127.0.0.1:0"))?;
    let empty = hub.usage()?;
    let measuring = async {
        let begun = Instant::now();
        let mut clients = IdleClients::enrol(socket, HUB, invitations, args.paths).await?;
        let enrolling = begun.elapsed();
        clients.idle(SETTLE).await?;
        let enrolled = hub.usage()?;
        clients.idle(Duration::from_secs(args.seconds)).await?;
        // The status query itself costs the hub CPU time, so it follows the measurement.
        let idle = hub.usage()?;
        ensure!(
            hub.connected()? == args.count as usize,
            "not all clients are connected"
        );
        anyhow::Ok((enrolled, enrolling, idle))
    };
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("cannot start the event loop")?;
    let (enrolled, enrolling, idle) = runtime.block_on(async {
        tokio::select! {
            result = measuring => result,
            _ = tokio::signal::ctrl_c() => bail!("interrupted"),
        }
    })?;
    let per_client = (idle.memory.saturating_sub(empty.memory)) / u64::from(args.count);
    let cpu_s_per_minute = (idle.cpu - enrolled.cpu).as_secs_f64() * 60.0 / args.seconds.max(1) as f64;
    let result = json!({
        "version": 1,
        "clients": args.count,
        "paths": args.paths,
        "enrolling_s": enrolling.as_secs_f64(),
        "enrolling_cpu_s": (enrolled.cpu - empty.cpu).as_secs_f64(),
        "memory_empty_bytes": empty.memory,
        "memory_bytes": idle.memory,
        "memory_per_client_bytes": per_client,
        "cpu_s_per_minute": cpu_s_per_minute,
    });
    if args.json {
        say!("{result}")?;
    } else {
        say!(
            "{} clients with {} paths each, enrolled in {:.1} s ({:.1} s of CPU)\n\
             hub: {:.1} MB, {:.1} MB before: {:.1} kB a client\n\
             idle: {cpu_s_per_minute:.2} s of CPU a minute, {:.3} ms a client",
            args.count,
            args.paths,
            enrolling.as_secs_f64(),
            (enrolled.cpu - empty.cpu).as_secs_f64(),
            idle.memory as f64 / 1e6,
            empty.memory as f64 / 1e6,
            per_client as f64 / 1e3,
            cpu_s_per_minute * 1e3 / f64::from(args.count),
        )?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Directory of the hub's files, which exists as long as this value.
struct HubDirectory(PathBuf);

impl HubDirectory {
    fn new() -> anyhow::Result<Self> {
        let path = std::env::temp_dir().join(format!("hawser-bench-{}", std::process::id()));
        std::fs::create_dir(&path).with_context(|| format!("cannot create {}", path.display()))?;
        Ok(Self(path))
    }

    fn hub(&self) -> PathBuf {
        self.0.join("hub")
    }

    fn run_dir(&self) -> PathBuf {
        self.0.join("run")
    }

    /// Creates the hub's files and `count` invitations.
    fn invite(&self, count: u32) -> anyhow::Result<Vec<Invitation>> {
        let endpoint = HUB.to_string().parse()?;
        let init = HubInit {
            endpoints: vec![endpoint],
            pool: Some(POOL.parse().ok().context("the pool must be a network")?),
            store: None,
            pool6: None,
            nat: false,
        };
        let config: HubConfig = config::load(&hub::init(&self.hub(), &init)?)?;
        let hub_key = Identity::load_or_create(&self.hub().join("hub.key"))?.hash();
        let mut store = ClientStore::open(&self.hub().join("clients"), config.pools())?;
        (0..count)
            .map(|number| {
                let name = format!("client-{number}");
                let token = store.invite(&name, Duration::from_secs(3600), SystemTime::now())?;
                Ok(Invitation {
                    hub: InvitedTo {
                        endpoints: config.addresses(),
                        key: hub_key,
                    },
                    others: Vec::new(),
                    name,
                    token,
                })
            })
            .collect()
    }
}

impl Drop for HubDirectory {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// A hub in a process of its own.
struct Hub {
    process: Child,
    socket: PathBuf,
}

/// Resources that a process has used since its start.
struct Usage {
    memory: u64,
    cpu: Duration,
}

impl Hub {
    fn start(directory: &HubDirectory, namespace: &Namespace) -> anyhow::Result<Self> {
        let process = namespace
            .command(daemon::program()?)
            .args(["hub", "run", "--log", "error", "--dir"])
            .arg(directory.hub())
            .arg("--run-dir")
            .arg(directory.run_dir())
            .stdin(Stdio::null())
            .spawn()?;
        let socket = run_dir::socket(&directory.run_dir());
        let mut hub = Self { process, socket };
        while !is_alive(&hub.socket) {
            if let Some(status) = hub.process.try_wait()? {
                bail!("the hub ended: {status}");
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        Ok(hub)
    }

    fn usage(&self) -> anyhow::Result<Usage> {
        let process = Path::new("/proc").join(self.process.id().to_string());
        let status = std::fs::read_to_string(process.join("status"))?;
        let memory = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        let kilobytes: u64 = memory
            .and_then(|text| text.split_whitespace().next()?.parse().ok())
            .context("cannot read the hub's memory usage from /proc")?;
        let mut nanos = 0;
        for thread in std::fs::read_dir(process.join("task"))? {
            let text = std::fs::read_to_string(thread?.path().join("schedstat"))?;
            let run: u64 = text.split(' ').next().context("schedstat is empty")?.parse()?;
            nanos += run;
        }
        Ok(Usage {
            memory: kilobytes * 1024,
            cpu: Duration::from_nanos(nanos),
        })
    }

    fn connected(&self) -> anyhow::Result<usize> {
        let status = ask(&self.socket, &Request::Status)?;
        let clients = status["clients"]
            .as_array()
            .map(Vec::as_slice)
            .unwrap_or_default();
        Ok(clients
            .iter()
            .filter(|client| client["connected"] == true)
            .count())
    }
}

impl Drop for Hub {
    fn drop(&mut self) {
        if ask(&self.socket, &Request::Down).is_err() {
            let _ = self.process.kill();
        }
        let _ = self.process.wait();
    }
}

/// Address of the measured hub. Source: our choice, any free port.
const HUB: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), 4430);
const POOL: &str = "100.96.0.0/16";
/// Time after which the start-up traffic of connections (path MTU discovery, key updates) has
/// ended. Source: our choice; path MTU discovery and key updates take some probe timeouts.
const SETTLE: Duration = Duration::from_secs(5);
