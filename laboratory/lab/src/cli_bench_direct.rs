//! `hawser-lab bench direct`: the cost of direct mode for a flow, compared with the same flow
//! without Hawser in the same minute.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::path::Path;
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use hawser_host::control_socket::{Request, ask};
use hawser_host::run_dir;
use hawser_linux::netns::Namespace;
use hawser_linux::process::stay_on_processor;
use hawser_netem::scenario::{Scenario, Via};
use hawser_terminal::say;
use hawser_testbed::world::{SERVER, World};
use hawser_testbed::{Options, read_file};
use serde_json::json;

use crate::systems::lab_options;

#[derive(Debug, clap::Args)]
#[command(after_help = HELP)]
pub(crate) struct DirectArgs {
    /// Number of UDP flows that begin in each round.
    #[arg(long, default_value_t = 10_000, value_parser = clap::value_parser!(u16).range(100..=50_000))]
    flows: u16,
    /// Duration of a TCP download in each round, seconds.
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u64).range(1..=600))]
    seconds: u64,
    /// Number of rounds, each measured without Hawser and with it.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1000))]
    runs: u32,
    /// Prints the result as JSON.
    #[arg(long)]
    json: bool,
}

const HELP: &str = "\
Runs in network namespaces over one cable without limits; needs root. Prints medians of the \
rounds, and medians of the ratios within each round. The processor time is that of both ends of \
the connection, which share this process. Each end is pinned to a processor of its own. The thread \
that begins flows is pinned to the server's processor.";

/// Result of one half of a round.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Half {
    /// Median round-trip times of a flow's first packet and of its second. Units: microseconds.
    first_us: f64,
    pub(crate) later_us: f64,
    flows_per_second: f64,
    pub(crate) goodput_bps: f64,
    pub(crate) cpu_s_per_gigabyte: f64,
}

/// Results of all rounds.
pub(crate) struct Rounds {
    /// Measurements without Hawser, one per round; `with` holds those with it.
    pub(crate) without: Vec<Half>,
    pub(crate) with: Vec<Half>,
    /// Memory of the daemon before and after the flows of the last round. Units: bytes.
    memory: (u64, u64),
}

/// Runs the command.
///
/// # Errors
/// When the lab cannot be built or a flow breaks.
pub(crate) fn run(args: &DirectArgs) -> anyhow::Result<ExitCode> {
    let options = lab_options(None)?;
    let on_round = |round: u32, [without, with]: [&Half; 2]| {
        if args.json {
            return Ok(());
        }
        say!("round {}: {}", round + 1, line(without, with))
    };
    let load = Load {
        flows: args.flows,
        seconds: args.seconds,
    };
    let rounds = rounds(&options, args.runs, load, on_round)?;
    print(args, &rounds.without, &rounds.with, rounds.memory)?;
    Ok(ExitCode::SUCCESS)
}

/// Load of a half of a round.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Load {
    /// Number of UDP flows to open.
    pub(crate) flows: u16,
    /// Duration of the download. Units: seconds.
    pub(crate) seconds: u64,
}

/// Runs rounds, each without Hawser and with it.
///
/// # Errors
/// When the lab cannot be built or a flow breaks.
pub(crate) fn rounds(
    options: &Options,
    runs: u32,
    load: Load,
    on_round: impl Fn(u32, [&Half; 2]) -> anyhow::Result<()>,
) -> anyhow::Result<Rounds> {
    let directory = options.run_dir.subdirectory("direct")?;
    let scenario = Scenario::parse(SCENARIO, Path::new("bench.toml"), &[], &mut read_file)?;
    let world = World::build(&scenario, &Via::Single("wire".to_owned()))?;
    serve(&world.server)?;
    let (mut without, mut with, mut memory) = (Vec::new(), Vec::new(), (0, 0));
    for round in 0..runs {
        without.push(measure(&world.client, load, FIRST_PORT)?);
        let daemon = Daemon::start(&options.program, &world.client, &directory)?;
        let before = daemon.memory()?;
        with.push(measure(&world.client, load, FIRST_PORT)?);
        memory = (before, daemon.memory()?);
        on_round(round, [&without[without.len() - 1], &with[with.len() - 1]])?;
    }
    Ok(Rounds {
        without,
        with,
        memory,
    })
}

fn line(without: &Half, with: &Half) -> String {
    format!(
        "{:.2} Gbit/s without, {:.2} with; first packet {:.0} us, {:.0} us; later {:.0} us, {:.0} us",
        without.goodput_bps / 1e9,
        with.goodput_bps / 1e9,
        without.first_us,
        with.first_us,
        without.later_us,
        with.later_us
    )
}

fn print(args: &DirectArgs, without: &[Half], with: &[Half], memory: (u64, u64)) -> anyhow::Result<()> {
    let ratio = |value: fn(&Half) -> f64| median(with.iter().zip(without).map(|(w, o)| value(w) / value(o)));
    let added = |value: fn(&Half) -> f64| median(with.iter().zip(without).map(|(w, o)| value(w) - value(o)));
    let result = json!({
        "version": 1,
        "flows": args.flows,
        "goodput_ratio": ratio(|half| half.goodput_bps),
        "cpu_ratio": ratio(|half| half.cpu_s_per_gigabyte),
        "first_packet_added_us": added(|half| half.first_us),
        "later_packet_added_us": added(|half| half.later_us),
        "flows_per_second": median(with.iter().map(|half| half.flows_per_second)),
        "daemon_memory_bytes": memory.1,
        "daemon_memory_per_flow_bytes": memory.1.saturating_sub(memory.0) / u64::from(args.flows),
        "kernel_memory_per_flow_bytes": connection_size(),
    });
    if args.json {
        return say!("{result}");
    }
    let number = |key: &str| result[key].as_f64().unwrap_or(0.0);
    say!(
        "with Hawser: {:.3} of the goodput, {:.3} of the processor time a byte\n\
         the first packet of a flow takes {:.1} us more, later ones {:.1} us; {:.0} new flows a second, one after the other\n\
         daemon {:.1} MB after {} flows, {} bytes a flow; the kernel's entry for a flow has {} bytes",
        number("goodput_ratio"),
        number("cpu_ratio"),
        number("first_packet_added_us"),
        number("later_packet_added_us"),
        number("flows_per_second"),
        number("daemon_memory_bytes") / 1e6,
        args.flows,
        result["daemon_memory_per_flow_bytes"],
        result["kernel_memory_per_flow_bytes"],
    )
}

fn measure(client: &Namespace, load: Load, first_port: u16) -> anyhow::Result<Half> {
    let flows = client.run(|| {
        // Runs on the server's processor: waking another processor takes ten times as long as the
        // round trip.
        stay_on_processor(SERVER_PROCESSOR)?;
        begin_flows(load.flows, first_port)
    });
    let (first_us, later_us, flows_per_second) = flows.context("a flow failed")?;
    let download = client.run(|| {
        stay_on_processor(SERVER_PROCESSOR + 1)?;
        download(Duration::from_secs(load.seconds))
    });
    let (goodput_bps, cpu_s_per_gigabyte) = download.context("the download failed")?;
    Ok(Half {
        first_us,
        later_us,
        flows_per_second,
        goodput_bps,
        cpu_s_per_gigabyte,
    })
}

/// Exchanges two requests and replies on each of `count` UDP flows, all of which stay in connection
/// tracking. Returns the median round-trip times of both in microseconds, and flows per second.
fn begin_flows(count: u16, first_port: u16) -> std::io::Result<(f64, f64, f64)> {
    let (mut first, mut later) = (Vec::new(), Vec::new());
    let begun = Instant::now();
    for port in first_port..first_port + count {
        let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, port))?;
        socket.set_read_timeout(Some(Duration::from_secs(5)))?;
        socket.connect((SERVER, PORT))?;
        for trips in [&mut first, &mut later] {
            let asked = Instant::now();
            socket.send(&[0; 64])?;
            socket.recv(&mut [0; 64])?;
            trips.push(asked.elapsed().as_secs_f64() * 1e6);
        }
    }
    let rate = f64::from(count) / begun.elapsed().as_secs_f64();
    Ok((median(first.into_iter()), median(later.into_iter()), rate))
}

/// Returns the payload rate in bit/s, and processor seconds per gigabyte.
fn download(time: Duration) -> std::io::Result<(f64, f64)> {
    let mut stream = TcpStream::connect((SERVER, PORT))?;
    let mut block = vec![0; 256 * 1024];
    let (begun, cpu) = (Instant::now(), cpu_seconds());
    let mut bytes = 0_u64;
    while begun.elapsed() < time {
        bytes += stream.read(&mut block)? as u64;
    }
    let bps = bytes as f64 * 8.0 / begun.elapsed().as_secs_f64();
    Ok((bps, (cpu_seconds() - cpu) / (bytes as f64 / 1e9)))
}

/// Answers datagrams, and sends as fast as possible on each connection.
fn serve(server: &Namespace) -> anyhow::Result<()> {
    let any = SocketAddr::from((Ipv4Addr::UNSPECIFIED, PORT));
    let (listener, socket) = server.run(|| Ok((TcpListener::bind(any)?, UdpSocket::bind(any)?)))?;
    std::thread::spawn(move || {
        let _ = stay_on_processor(SERVER_PROCESSOR);
        let mut buffer = [0; 64];
        while let Ok((length, from)) = socket.recv_from(&mut buffer) {
            let _ = socket.send_to(&buffer[..length], from);
        }
    });
    std::thread::spawn(move || {
        let _ = stay_on_processor(SERVER_PROCESSOR);
        while let Ok((mut stream, _)) = listener.accept() {
            std::thread::spawn(move || {
                let block = vec![0; 256 * 1024];
                while stream.write_all(&block).is_ok() {}
            });
        }
    });
    Ok(())
}

/// Hawser in direct mode; dropping the value stops it, so that the next round starts without it.
struct Daemon<'a> {
    child: Child,
    program: &'a Path,
    client: &'a Namespace,
    run_dir: std::path::PathBuf,
}

impl<'a> Daemon<'a> {
    fn start(program: &'a Path, client: &'a Namespace, directory: &Path) -> anyhow::Result<Self> {
        let run_dir = directory.join("run");
        let mut command = client.command(program);
        command
            .args(["up", "--direct", "--foreground", "--log", "error", "--dir"])
            .arg(directory);
        command.arg("--run-dir").arg(&run_dir).stdin(Stdio::null());
        let daemon = Self {
            child: command.spawn().context("cannot start the daemon")?,
            program,
            client,
            run_dir,
        };
        let socket = run_dir::socket(&daemon.run_dir);
        let deadline = Instant::now() + Duration::from_secs(10);
        while !ask(&socket, &Request::Status).is_ok_and(|status| status["state"] == "up") {
            ensure!(Instant::now() < deadline, "the daemon does not come up");
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(daemon)
    }

    fn memory(&self) -> anyhow::Result<u64> {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id()))?;
        let resident = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        let kilobytes = resident.and_then(|text| text.split_whitespace().next()?.parse::<u64>().ok());
        match kilobytes {
            Some(kilobytes) => Ok(kilobytes * 1024),
            None => bail!("cannot read the daemon's memory usage from /proc"),
        }
    }
}

impl Drop for Daemon<'_> {
    fn drop(&mut self) {
        let mut down: Command = self.client.command(self.program);
        let down = down
            .arg("down")
            .arg("--run-dir")
            .arg(&self.run_dir)
            .stdout(Stdio::null())
            .status();
        if !down.is_ok_and(|status| status.success()) {
            let _ = self.child.kill();
        }
        let _ = self.child.wait();
    }
}

/// Returns the processor time that this process has used. Units: seconds.
fn cpu_seconds() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let fields = stat.rsplit(") ").next().unwrap_or_default().split(' ');
    // utime and stime are fields 14 and 15 of /proc/self/stat; these fields start at field 3, the
    // state.
    let ticks: u64 = fields
        .skip(11)
        .take(2)
        .filter_map(|field| field.parse::<u64>().ok())
        .sum();
    ticks as f64 / hawser_linux::process::ticks_per_second() as f64
}

/// Returns the kernel's memory of a connection, if it is known.
fn connection_size() -> Option<u64> {
    let slabs = std::fs::read_to_string("/proc/slabinfo").ok()?;
    let line = slabs.lines().find(|line| line.starts_with("nf_conntrack "))?;
    line.split_whitespace().nth(3)?.parse().ok()
}

pub(crate) fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<_> = values.collect();
    values.sort_unstable_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(0.0)
}

/// Port of the server in its own namespace. Source: our choice, any number.
const PORT: u16 = 8000;
/// Processor of the server, fixed so that every round runs on the same processors. Source: our
/// choice, the one that every machine has.
const SERVER_PROCESSOR: usize = 0;
/// First local port of the flows. Source: 10,000 flows end below the ephemeral ports of ip(7),
/// 32768 to 60999.
const FIRST_PORT: u16 = 10_000;
const SCENARIO: &str = "name = \"one cable\"\nduration = \"1s\"\nvia = \"direct\"\n[[network]]\nname = \"wire\"\n[[workload]]\nkind = \"ping\"\ninterval = \"1s\"\n";
