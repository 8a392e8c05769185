//! Workloads that use the networks during a run.
//!
//! Every workload has a server side and a client side, each on threads in its own namespace. All
//! threads end by themselves, at most [`TIMEOUT`] after the run.

mod datagrams;
pub(crate) mod http;
mod ping;
mod quic;
mod sender;
mod tcp;
mod udp;

use std::net::{Ipv4Addr, SocketAddrV4, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use anyhow::{Context as _, anyhow, bail};
use hawser_linux::clock;
use hawser_linux::netns::Namespace;
use hawser_netem::capture::Replay;
use hawser_netem::report::{quantile_ms as quantile, settling_time};
use hawser_netem::scenario::{CompetingSystem, Via, Workload};
use hawser_units::{Duration, Instant};
use socket2::{Domain, Protocol, Socket, Type};

pub(crate) use hawser_netem::report::{Finding, RoundTrips};

use crate::recorder::Recorder;
use crate::world::{SERVER, World};
use sender::Captured;

/// Maximum time for which a thread blocks before it checks whether the run has ended. Source: our
/// choice; a longer one delays the end of a run, a shorter one takes processor time.
const TIMEOUT: Duration = Duration::from_millis(50);

/// Port of the first workload; each has its own. Source: the default port of iperf3(1).
const FIRST_PORT: u16 = 5201;

/// Receive buffer of datagram sockets. Source: our choice, a third of a second at 100 Mbit/s; less
/// loses datagrams that the network has delivered.
const RECEIVE_BUFFER: usize = 4 << 20;

/// Start and end of the run.
#[derive(Debug)]
pub(crate) struct Period {
    pub(crate) start: Instant,
    pub(crate) end: Instant,
    /// End of the datagrams that count.
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

/// Context of a workload.
#[derive(Clone, Debug)]
struct Context {
    client: Namespace,
    server: Namespace,
    is_multipath: bool,
    /// The client side's only device; `None`: routes decide.
    device: Option<String>,
    /// Set if a connection that ends with its network is opened again, as programs with parallel
    /// downloads do.
    is_reopened: bool,
    port: u16,
    period: Arc<Period>,
    recorder: Arc<Recorder>,
}

/// A workload with running threads.
#[derive(Debug)]
pub(crate) struct Running {
    pub(crate) recorder: Arc<Recorder>,
    label: String,
    client: JoinHandle<anyhow::Result<Finding>>,
    server: JoinHandle<anyhow::Result<()>>,
}

/// Starts workload `index`; it transfers data from `period.start` on.
pub(crate) fn start(
    (index, workload, competing): (usize, &Workload, Option<&CompetingSystem>),
    world: &World,
    via: &Via,
    period: &Arc<Period>,
) -> anyhow::Result<Running> {
    let recorder = Arc::new(Recorder::new(period.start, period.end.since(period.start)));
    let guest = world.guest(index);
    let context = Context {
        client: guest.map_or_else(|| whose(competing, world), |guest| Ok(guest.clone()))?,
        server: world.server.clone(),
        is_multipath: matches!(via, Via::Mptcp | Via::DirectMptcp) && competing.is_none() && guest.is_none(),
        device: device(workload, competing)?,
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
        Workload::Capture { direction, track } => {
            let replay = Replay::new(Arc::clone(track), (period.start, period.end));
            let origin = track.origin.clone();
            (
                "capture",
                datagrams::start(
                    context,
                    *direction,
                    Captured {
                        replay,
                        origin,
                        settled: period.settled,
                    },
                )?,
            )
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

/// Returns the namespace of the client's side of a workload.
fn whose(competing: Option<&CompetingSystem>, world: &World) -> anyhow::Result<Namespace> {
    let Some(CompetingSystem::Member(name)) = competing else {
        return Ok(world.applications.clone());
    };
    let member = world.member(name);
    Ok(member
        .with_context(|| format!("no member is called {name}"))?
        .place
        .clone())
}

fn device(workload: &Workload, competing: Option<&CompetingSystem>) -> anyhow::Result<Option<String>> {
    match competing {
        None | Some(CompetingSystem::Member(_)) => Ok(None),
        Some(CompetingSystem::Single(name)) if matches!(workload, Workload::Tcp { .. }) => {
            Ok(Some(name.clone()))
        }
        Some(CompetingSystem::Single(_)) => {
            bail!("in the lab only a tcp workload can have a separate via; use hawser-lab sim")
        }
        Some(CompetingSystem::OtherClient) => bail!("the lab has one client; use hawser-lab sim"),
    }
}

impl Running {
    /// Returns whether the client side has finished.
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

/// Creates a TCP or MPTCP socket in the present namespace with a timeout on blocking calls.
fn stream_socket(is_multipath: bool) -> anyhow::Result<Socket> {
    let protocol = if is_multipath {
        Protocol::MPTCP
    } else {
        Protocol::TCP
    };
    let socket = Socket::new(Domain::IPV4, Type::STREAM, Some(protocol)).context("cannot create a socket")?;
    socket.set_read_timeout(Some(TIMEOUT))?;
    socket.set_write_timeout(Some(TIMEOUT))?;
    Ok(socket)
}

/// Creates a UDP socket in the present namespace with a timeout on blocking calls; port 0 is any.
fn datagram_socket(port: u16) -> anyhow::Result<UdpSocket> {
    let socket =
        Socket::new(Domain::IPV4, Type::DGRAM, Some(Protocol::UDP)).context("cannot create a socket")?;
    // As large as the system permits: a burst waits in it while this thread does not run.
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

/// Returns whether an error only means that nothing arrived within [`TIMEOUT`].
fn is_timeout(error: &std::io::Error) -> bool {
    matches!(
        error.kind(),
        std::io::ErrorKind::WouldBlock | std::io::ErrorKind::TimedOut | std::io::ErrorKind::Interrupted
    )
}
