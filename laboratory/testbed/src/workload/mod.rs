//! What uses the networks during a run.
//!
//! Every workload has a server side and a client side, each on threads in its own namespace. All of
//! them stop at the end of the run by themselves, at most [`TIMEOUT`] late.

mod datagrams;
pub(crate) mod http;
mod ping;
mod quic;
mod tcp;
mod udp;
mod video;

use std::net::{Ipv4Addr, SocketAddrV4, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use anyhow::{Context as _, anyhow, bail};
use hawser_linux::clock;
use hawser_linux::netns::Namespace;
use hawser_netem::report::{quantile_ms as quantile, settling_time};
use hawser_netem::scenario::{Beside, Via, Workload};
use hawser_units::{Duration, Instant};
use socket2::{Domain, Protocol, Socket, Type};

pub(crate) use hawser_netem::report::{Finding, RoundTrips};

use crate::recorder::Recorder;
use crate::world::{SERVER, World};

/// How long a thread may block before it looks whether the run is over.
const TIMEOUT: Duration = Duration::from_millis(50);

/// The port of the first workload; each has its own.
const FIRST_PORT: u16 = 5201;

/// Of datagram sockets.
const RECEIVE_BUFFER: usize = 4 << 20;

/// When the run is over.
#[derive(Debug)]
pub(crate) struct Period {
    pub(crate) start: Instant,
    pub(crate) end: Instant,
    /// Datagrams sent before are asked for at the end.
    settled: Instant,
    is_stopped: AtomicBool,
}

impl Period {
    pub(crate) fn new(start: Instant, duration: Duration) -> Self {
        Self {
            start,
            end: start + duration,
            settled: start + duration - settling_time(duration),
            is_stopped: AtomicBool::new(false),
        }
    }

    pub(crate) fn is_over(&self) -> bool {
        self.is_stopped.load(Ordering::Relaxed) || clock::now() >= self.end
    }

    pub(crate) fn stop(&self) {
        self.is_stopped.store(true, Ordering::Relaxed);
    }
}

/// What a workload needs to run.
#[derive(Clone, Debug)]
struct Context {
    client: Namespace,
    server: Namespace,
    is_multipath: bool,
    /// The only device that the client's side uses, where it is not left to the routes.
    device: Option<String>,
    /// A connection that ends with its network is opened again, as programs do that load in
    /// parallel.
    is_reopened: bool,
    port: u16,
    period: Arc<Period>,
    recorder: Arc<Recorder>,
}

/// A workload whose threads run.
#[derive(Debug)]
pub(crate) struct Running {
    pub(crate) recorder: Arc<Recorder>,
    label: String,
    client: JoinHandle<anyhow::Result<Finding>>,
    server: JoinHandle<anyhow::Result<()>>,
}

/// Starts workload `index`; traffic flows from `period.start` on.
pub(crate) fn start(
    (index, workload, beside): (usize, &Workload, Option<&Beside>),
    world: &World,
    via: &Via,
    period: &Arc<Period>,
) -> anyhow::Result<Running> {
    let recorder = Arc::new(Recorder::new(period.start, period.end.since(period.start)));
    let guest = world.guest(index);
    let context = Context {
        client: guest.map_or_else(|| whose(beside, world), |guest| Ok(guest.clone()))?,
        server: world.server.clone(),
        is_multipath: matches!(via, Via::Mptcp | Via::DirectMptcp) && beside.is_none() && guest.is_none(),
        device: device(workload, beside)?,
        is_reopened: *via == Via::Direct,
        port: FIRST_PORT + u16::try_from(index).context("too many workloads")?,
        period: Arc::clone(period),
        recorder: Arc::clone(&recorder),
    };
    let (label, (client, server)) = match workload {
        Workload::Tcp {
            direction,
            streams,
            congestion,
        } => ("tcp", tcp::start(context, *direction, *streams, congestion)?),
        Workload::Quic { direction, streams } => ("quic", quic::start(context, *direction, *streams)?),
        Workload::Udp {
            direction,
            rate,
            size,
            layers,
        } => {
            let stream = udp::Stream {
                gap: rate.time_for(*size),
                size: *size,
                layers: *layers,
                asked_for: 0,
            };
            ("udp", datagrams::start(context, *direction, stream)?)
        }
        Workload::Ping { interval } => ("ping", ping::start(context, *interval)?),
        Workload::Http { size } => ("http", http::start(context, *size)?),
        Workload::Video { direction, .. } => {
            let video = workload.video((period.start, period.end));
            let video = video.context("a video without pictures")?;
            ("video", datagrams::start(context, *direction, video)?)
        }
    };
    Ok(Running {
        recorder,
        label: format!("workload {index} ({label})"),
        client,
        server,
    })
}

/// Where the client's side of a workload runs.
fn whose(beside: Option<&Beside>, world: &World) -> anyhow::Result<Namespace> {
    let Some(Beside::Member(name)) = beside else {
        return Ok(world.applications.clone());
    };
    let member = world.member(name);
    Ok(member
        .with_context(|| format!("no member is called {name}"))?
        .place
        .clone())
}

fn device(workload: &Workload, beside: Option<&Beside>) -> anyhow::Result<Option<String>> {
    match beside {
        None | Some(Beside::Member(_)) => Ok(None),
        Some(Beside::Single(name)) if matches!(workload, Workload::Tcp { .. }) => Ok(Some(name.clone())),
        Some(Beside::Single(_)) => {
            bail!("in the lab only a tcp workload has a via of its own; use hawser-lab sim")
        }
        Some(Beside::OtherClient) => bail!("the lab has one client; use hawser-lab sim"),
    }
}

impl Running {
    /// Whether the client side has nothing more to do.
    pub(crate) fn is_done(&self) -> bool {
        self.client.is_finished()
    }

    /// Waits for both sides.
    pub(crate) fn finish(self) -> anyhow::Result<Finding> {
        let panicked = |_| anyhow!("{}: a thread panicked", self.label);
        let client = self.client.join().map_err(panicked)?;
        let server = self.server.join().map_err(panicked)?;
        let finding = client.with_context(|| self.label.clone())?;
        server.with_context(|| format!("{}, server side", self.label))?;
        Ok(finding)
    }
}

type Threads = (
    JoinHandle<anyhow::Result<Finding>>,
    JoinHandle<anyhow::Result<()>>,
);

/// Starts a thread inside a namespace.
fn spawn<T: Send + 'static>(
    namespace: &Namespace,
    name: &str,
    work: impl FnOnce() -> anyhow::Result<T> + Send + 'static,
) -> anyhow::Result<JoinHandle<anyhow::Result<T>>> {
    let namespace = namespace.clone();
    let thread = std::thread::Builder::new().name(name.into()).spawn(move || {
        namespace.enter()?;
        clock::use_precise_timers();
        work()
    })?;
    Ok(thread)
}

/// A TCP or MPTCP socket in the present namespace that never blocks for long.
fn stream_socket(is_multipath: bool) -> anyhow::Result<Socket> {
    let protocol = if is_multipath {
        Protocol::MPTCP
    } else {
        Protocol::TCP
    };
    let socket = Socket::new(Domain::IPV4, Type::STREAM, Some(protocol)).context("cannot make a socket")?;
    socket.set_read_timeout(Some(TIMEOUT))?;
    socket.set_write_timeout(Some(TIMEOUT))?;
    Ok(socket)
}

/// A UDP socket in the present namespace that never blocks for long; port 0 is any.
fn datagram_socket(port: u16) -> anyhow::Result<UdpSocket> {
    let socket =
        Socket::new(Domain::IPV4, Type::DGRAM, Some(Protocol::UDP)).context("cannot make a socket")?;
    // As large as the system permits: a burst waits here while this thread does not run.
    socket.set_recv_buffer_size(RECEIVE_BUFFER)?;
    socket.bind(&any_address(port).into())?;
    socket.set_read_timeout(Some(TIMEOUT))?;
    socket.set_write_timeout(Some(TIMEOUT))?;
    Ok(socket.into())
}

fn server_address(port: u16) -> SocketAddrV4 {
    SocketAddrV4::new(SERVER, port)
}

fn any_address(port: u16) -> SocketAddrV4 {
    SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, port)
}

fn wait_for(start: Instant) {
    let left = start.since(clock::now());
    if !left.is_zero() {
        std::thread::sleep(left);
    }
}

/// Whether an error only says that nothing happened within [`TIMEOUT`].
fn is_timeout(error: &std::io::Error) -> bool {
    matches!(
        error.kind(),
        std::io::ErrorKind::WouldBlock | std::io::ErrorKind::TimedOut | std::io::ErrorKind::Interrupted
    )
}
