//! The data plane: what the control side asks of it and what it tells back.
//!
//! Two threads carry packets: `egress` (TUN to networks) and `ingress` (networks to TUN). Neither
//! is async. The control side (QUIC, netlink, control socket) talks to them through a [`Command`]
//! channel and hears [`Event`]s. A hub may have several pairs of them, over which its sessions are
//! spread ([`Pairs`]); the control side sees one data plane all the same.

#![forbid(unsafe_code)]

mod batch;
pub mod checkpoint;
pub mod crypto;
mod dispatch;
mod egress;
mod events;
mod fragile;
mod handoff;
mod ingress;
mod lane;
mod overhead;
mod pool;
mod relayed;
mod sessions;
mod share;
mod snapshot;
mod store;
mod streams;

/// What [`handoff`] is built of: the model checker has its own of these.
mod sync {
    pub(super) use std::sync::{Arc, Condvar, Mutex, MutexGuard};
}

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::thread::JoinHandle;

use anyhow::Context as _;
use hawser_linux::direct::Match;
use hawser_linux::tun::Tun;
use hawser_linux::udp::DataSocket;
use hawser_linux::wait::Waker;
pub use hawser_proto::tunnel::Role;
pub use hawser_wire::pairs::Pairs;
pub use streams::StreamUse;

use checkpoint::SessionCheckpoint;
use hawser_proto::client_filter::Policy;
use hawser_proto::egress::Declaration;
use hawser_proto::resequencer;
use hawser_proto::stream::{Forms, Reserve};
use hawser_units::{Bytes, Duration, Net, PathId, Rate};
use hawser_wire::airtime::Airtime;
use hawser_wire::control::Cipher;
use hawser_wire::data::Class;
use hawser_wire::deadline::DeadlineRule;
use hawser_wire::frame::Format;
use hawser_wire::inner::FlowKey;
use hawser_wire::layer;
use hawser_wire::preference::Preference;

use dispatch::{Dispatch, StopsPairs, ToPair};
use handoff::StopsOther;
use share::Share;
use zeroize::Zeroize;

/// Names a session within this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SessionId(pub u64);

/// Names a UDP socket within this process: one a network on a client; on a hub one in all, which
/// each pair of threads has its own part of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SocketId(pub u32);

/// The keys of one epoch and both directions, from the TLS exporter. Wiped when dropped.
pub struct EpochKeys {
    /// What the keys are for.
    pub cipher: Cipher,
    /// Protects what this side sends: 32 bytes of key, then 12 of IV.
    pub send: [u8; 44],
    /// Protects what this side receives.
    pub receive: [u8; 44],
}

impl Drop for EpochKeys {
    fn drop(&mut self) {
        self.send.zeroize();
        self.receive.zeroize();
    }
}

/// The cipher that is faster on this machine.
#[must_use]
pub fn preferred_cipher() -> Cipher {
    #[cfg(any(target_arch = "x86", target_arch = "x86_64"))]
    let has_aes =
        std::arch::is_x86_feature_detected!("aes") && std::arch::is_x86_feature_detected!("pclmulqdq");
    #[cfg(target_arch = "aarch64")]
    let has_aes = std::arch::is_aarch64_feature_detected!("aes");
    #[cfg(not(any(target_arch = "x86", target_arch = "x86_64", target_arch = "aarch64")))]
    let has_aes = false;
    if has_aes {
        Cipher::Aes256Gcm
    } else {
        Cipher::ChaCha20Poly1305
    }
}

/// Where flows begin in the second session of a client.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Destinations {
    /// Flows, by protocol, port and destination, and whether they begin there. The first rule that
    /// matches a flow decides.
    pub rules: Vec<(Match, bool)>,
    /// Destinations of flows that begin there, unless a rule matches.
    pub hosts: BTreeSet<IpAddr>,
}

/// A change that both threads carry out, each for its direction.
pub enum Change {
    /// Adds a UDP socket; on a client it is bound to its network's device.
    AddSocket {
        /// Its number, new in the process.
        id: SocketId,
        /// The socket.
        socket: Arc<DataSocket>,
        /// Which pair of threads uses it; each may have one of that number.
        pair: u32,
    },
    /// Forgets a socket; its paths must have been closed.
    RemoveSocket {
        /// Which.
        id: SocketId,
    },
    /// Adds a session. `inner`: the far end's inner addresses (a hub routes to the session by them;
    /// a client leaves it empty: all goes to the first, up to [`Change::BeginWith`]).
    AddSession {
        /// Its number.
        session: SessionId,
        /// Which side of it this is.
        role: Role,
        /// The far end's inner addresses.
        inner: Vec<IpAddr>,
    },
    /// Routes these subnets to a session of a hub, beside the far end's inner addresses, and lets
    /// the far end send from them; no others any more.
    SetSubnets {
        /// Which.
        session: SessionId,
        /// All of its subnets.
        subnets: Vec<Net>,
    },
    /// Removes a session with its paths and keys.
    RemoveSession {
        /// Which.
        session: SessionId,
    },
    /// Lets flows begin with a session, on a client that has two: those of the other one stay there
    /// as long as it is there.
    BeginWith {
        /// Which.
        session: SessionId,
    },
    /// Lets what went through the session before, which is gone, go on in another one with the same
    /// hub, on a client that has two.
    GoOnWith {
        /// Which.
        session: SessionId,
    },
    /// Lets flows to some destinations begin with a session while a path of it works, beside the
    /// one where all others begin, on a client that has two.
    SetDestinations {
        /// Which.
        session: SessionId,
        /// To these.
        destinations: Destinations,
    },
    /// Lets a connection begin in a session, whatever is said of its destination, on a client that
    /// has two.
    Place {
        /// Which.
        session: SessionId,
        /// The connection, of which no packet has been sent yet.
        flow: FlowKey,
    },
    /// Adds the keys of an epoch; the previous epoch stays valid for receiving for a while.
    InstallKeys {
        /// Of which session.
        session: SessionId,
        /// Its number.
        epoch: u8,
        /// Both directions' keys.
        keys: EpochKeys,
    },
    /// Opens a path. `remote`: the hub's address on a client; `None` on a hub, which learns it from
    /// the first authenticated packet.
    OpenPath {
        /// Of which session.
        session: SessionId,
        /// Its id, new in the epoch.
        path: PathId,
        /// The socket of its network.
        socket: SocketId,
        /// The hub's address, on a client.
        remote: Option<SocketAddr>,
        /// The number the peer gave to the path: goes into what we send.
        peer_index: u32,
        /// The number we gave to the path: found in what we receive. Random, unique in the process.
        local_index: u32,
        /// The network's name, for status and logs.
        name: String,
        /// The network's own MTU (outer IP packet bytes).
        mtu: u16,
        /// The user's cap, if any.
        cap: Option<Rate>,
    },
    /// Moves an open path to another socket (the network got a new address or device).
    RebindPath {
        /// Of which session.
        session: SessionId,
        /// Which path.
        path: PathId,
        /// The socket of its network from now on.
        socket: SocketId,
    },
    /// Caps what this side sends on a path, or lifts the cap.
    SetCap {
        /// Of which session.
        session: SessionId,
        /// Which path.
        path: PathId,
        /// The limit; `None` lifts it.
        cap: Option<Rate>,
    },
    /// Says for what a path is used by this side.
    SetPreference {
        /// Of which session.
        session: SessionId,
        /// Which path.
        path: PathId,
        /// For what.
        preference: Preference,
    },
    /// Says what packets of a path take of a radio channel, which other paths may share.
    SetAirtime {
        /// Of which session.
        session: SessionId,
        /// Which path.
        path: PathId,
        /// What they take; `None`: nothing is known any more.
        airtime: Option<Airtime>,
    },
    /// Says how long packets wait before a path hands them over together.
    SetPause {
        /// Of which session.
        session: SessionId,
        /// Which path.
        path: PathId,
        /// So long; zero where they do not.
        pause: Duration,
    },
    /// Holds a session to a rate, or lifts that: what this side sends, and on a hub also what it
    /// has received.
    SetLimit {
        /// Which session.
        session: SessionId,
        /// In each direction, zero for nothing at all; `None` lifts it.
        limit: Option<Rate>,
    },
    /// Closes a path.
    ClosePath {
        /// Of which session.
        session: SessionId,
        /// Which path.
        path: PathId,
    },
    /// Chooses the scheduler of a class of a session by name.
    SetScheduler {
        /// Of which session.
        session: SessionId,
        /// For which flows.
        class: Class,
        /// The scheduler's name.
        scheduler: String,
    },
    /// Says how a session knows the packets of layered streams that it sends.
    SetLayerRules {
        /// Of which session.
        session: SessionId,
        /// The first that fits decides.
        rules: Vec<layer::Rule>,
    },
    /// Says how long packets of some flows are of use that a session sends.
    SetDeadlines {
        /// Which session.
        session: SessionId,
        /// The first that fits decides.
        rules: Vec<DeadlineRule>,
        /// True where this side is the client.
        is_from_client: bool,
    },
    /// Says which connections of a client become streams from now on.
    SetForms(Forms),
    /// Says which flows of a session have declared what they send; no others any more.
    SetDeclared {
        /// Which session.
        session: SessionId,
        /// All of them, the first [`hawser_proto::egress::MOST_DECLARED`] count.
        flows: Vec<Declaration>,
    },
    /// Changes what the clients of a hub may reach.
    SetClientPolicy(Arc<Policy>),
    /// Goes on with a session of the process before. It must have passed
    /// [`SessionCheckpoint::check`], and comes before the socket that its paths use.
    RestoreSession {
        /// Its number.
        session: SessionId,
        /// The far end's inner addresses.
        inner: Vec<IpAddr>,
        /// What is known of it.
        checkpoint: Box<SessionCheckpoint>,
    },
}

/// What a data plane thread answers with: called on that thread, so it must not block.
pub type Reply<T> = Box<dyn FnOnce(T) + Send>;

/// An order from the control side. Orders are carried out in the order given.
pub enum Command {
    /// Makes a change.
    Change(Change),
    /// Ends all sessions for a successor, and the data plane with them.
    HandOver(Reply<Vec<SessionCheckpoint>>),
    /// Asks for everything there is to show.
    Snapshot(Reply<Snapshot>),
    /// Ends the data plane.
    Stop,
}

impl From<Change> for Command {
    fn from(change: Change) -> Self {
        Self::Change(change)
    }
}

/// Takes orders to the data plane, from any thread.
pub type Orders = Arc<dyn Fn(Command) + Send + Sync>;

/// What the data plane tells the control side.
#[derive(Debug)]
pub enum Event {
    /// A path changed its state.
    Path {
        /// Of which session.
        session: SessionId,
        /// Which path.
        path: PathId,
        /// The state it has now.
        state: PathState,
    },
    /// A network has begun or ceased to police a path.
    Policed {
        /// Session of the path.
        session: SessionId,
        /// The path.
        path: PathId,
        /// True while either direction is policed.
        is_policed: bool,
    },
    /// The session's sending key nears its end: rekey.
    RekeyWanted {
        /// Of which session.
        session: SessionId,
    },
    /// No path of the session is alive (or one is again).
    Alive {
        /// Of which session.
        session: SessionId,
        /// Whether any path is alive.
        alive: bool,
    },
}

/// A QUIC datagram that arrived on a data plane socket (hub only: on a client QUIC has sockets of
/// its own).
#[derive(Debug)]
pub struct ControlDatagram {
    /// Where it came from.
    pub from: SocketAddr,
    /// The address of ours that it was sent to: answers come from there.
    pub to: Option<IpAddr>,
    /// Its ECN bits.
    pub ecn: u8,
    /// Its bytes.
    pub bytes: Vec<u8>,
}

/// How a path stands. See `hawser_proto::path`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum PathState {
    /// Address not yet proven.
    Validating,
    /// Carries packets.
    Active,
    /// Overdue: carries nothing new until it answers.
    Suspect,
    /// Silent: probed only.
    Dead,
}

impl From<hawser_proto::path::State> for PathState {
    fn from(state: hawser_proto::path::State) -> Self {
        use hawser_proto::path::State;
        match state {
            State::Validating => Self::Validating,
            State::Active => Self::Active,
            State::Suspect => Self::Suspect,
            State::Dead => Self::Dead,
        }
    }
}

/// All there is to show.
#[derive(Clone, Debug, Default, serde::Serialize)]
pub struct Snapshot {
    /// By session.
    pub sessions: Vec<SessionSnapshot>,
    /// Every reason for which a packet was refused or dropped, with its count over all pairs.
    pub counters: Vec<(&'static str, u64)>,
    /// What each pair of threads does.
    pub pairs: Vec<PairSnapshot>,
}

/// One pair of threads.
#[derive(Clone, Debug, serde::Serialize)]
pub struct PairSnapshot {
    /// How many sessions it has.
    pub sessions: usize,
    /// Datagrams that it has sent.
    pub sent: u64,
    /// Datagrams that have come to it.
    pub received: u64,
}

impl Snapshot {
    /// The paths of all sessions, with their session.
    pub fn paths(&self) -> impl Iterator<Item = (u64, &PathSnapshot)> {
        let sessions = self.sessions.iter();
        sessions.flat_map(|session| session.paths.iter().map(|path| (session.session, path)))
    }
}

/// One session.
#[derive(Clone, Debug, serde::Serialize)]
pub struct SessionSnapshot {
    /// Which.
    pub session: u64,
    /// Scheduler by class name.
    pub schedulers: Vec<(&'static str, &'static str)>,
    /// Its paths.
    pub paths: Vec<PathSnapshot>,
    /// How many connections go on: those of TCP that this side has not ended, and flows of UDP that
    /// have sent something in the last half minute.
    pub open_flows: usize,
    /// The busiest flows.
    pub flows: Vec<FlowSnapshot>,
}

/// One path. Sending direction unless said otherwise.
#[derive(Clone, Debug, serde::Serialize)]
pub struct PathSnapshot {
    /// Which.
    pub path: u16,
    /// The network's name.
    pub name: String,
    /// The far address.
    pub remote: Option<SocketAddr>,
    /// How it stands.
    pub state: PathState,
    /// Smoothed round trip, ms.
    pub rtt_ms: f64,
    /// Smallest round trip, ms.
    pub min_rtt_ms: f64,
    /// Trend of the one-way delay, ms a second; positive while a queue grows.
    pub delay_trend_ms_s: f64,
    /// Share of packets lost, smoothed, 0 to 1.
    pub loss: f64,
    /// Estimated delivery rate, bit/s.
    pub rate_bps: u64,
    /// Rate at which the network polices what this side sends, bit/s.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub policed_bps: Option<u64>,
    /// The network polices what the other side sends.
    pub peer_is_policed: bool,
    /// State of the validation of ECN: `testing`, `unknown`, `capable` or `failed`.
    pub ecn: &'static str,
    /// The rate is not known yet, and grows.
    pub starting: bool,
    /// Congestion window, bytes.
    pub window_bytes: u64,
    /// Sent but unacknowledged, bytes.
    pub in_flight_bytes: u64,
    /// What this side may send at most, bit/s, where somebody has set a limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cap_bps: Option<u64>,
    /// When this side uses it beside others: `always`, `overflow` or `backup`.
    pub priority: &'static str,
    /// Whether transfers of this side may use it beside others.
    pub takes_bulk: bool,
    /// What its packets take of a radio channel, where the client has said so of late.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub air: Option<AirSnapshot>,
    /// Sent in the last second, bit/s.
    pub send_bps: u64,
    /// Received in the last second, bit/s.
    pub receive_bps: u64,
    /// Sent in all, UDP payload bytes.
    pub sent_bytes: u64,
    /// Received in all, UDP payload bytes.
    pub received_bytes: u64,
    /// Largest outer IP packet known to pass, bytes.
    pub pmtu: u16,
}

/// What a path takes of a radio channel.
#[derive(Clone, Debug, serde::Serialize)]
pub struct AirSnapshot {
    /// The channel, MHz: paths of one channel share it.
    pub frequency_mhz: u16,
    /// What a packet of 1500 bytes takes, ms.
    pub packet_ms: f64,
    /// What others take of the channel, 0 to 1.
    pub others: f64,
}

/// One flow.
#[derive(Clone, Debug, serde::Serialize)]
pub struct FlowSnapshot {
    /// Five-tuple in words: `tcp 100.96.0.2:40000 -> 203.0.113.2:80`.
    pub flow: String,
    /// Its class.
    pub class: &'static str,
    /// Why it has that class.
    pub why: &'static str,
    /// Its scheduler.
    pub scheduler: &'static str,
    /// `stream`, or the reason for which a connection goes as packets where others are streams.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tcp: Option<&'static str>,
    /// The reason for which a connection of a client is a stream.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tcp_why: Option<&'static str>,
    /// What it has declared to send, if it has. Units: bit/s of payload.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub declared_bps: Option<u64>,
    /// The time for which a packet is of use, where a program or a rule says so, ms.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub deadline_ms: Option<u128>,
    /// The rate that will arrive in time during the next second, in nine of ten, bit/s of inner
    /// packets; `None` where its packets are of use however late.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub in_time_bps: Option<u64>,
    /// Share of its packets that were dropped because they would have come too late, 0 to 1; `None`
    /// where they are of use however late.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub late: Option<f64>,
    /// Sent in all, inner bytes.
    pub sent_bytes: u64,
    /// Bytes by path id, of the paths that are open.
    pub by_path: Vec<(u16, u64)>,
}

/// Datagrams of the control channel that may wait for the control side.
const CONTROL_QUEUE: usize = 1024;

/// What the data plane needs to start.
pub struct DataPlaneConfig {
    /// The interface that applications see, already created: a queue for each pair, in which the
    /// kernel puts what is for sessions of that pair.
    pub queues: Vec<Tun>,
    /// How sessions are spread over pairs.
    pub pairs: Pairs,
    /// What it carries: the inner packets of all sessions.
    pub format: Format,
    /// The destinations that clients of a hub may reach; `None` where the far end may send to any
    /// address: on a client, and between the ends of a bond.
    pub client_policy: Option<Arc<Policy>>,
    /// The use of streams; `None`: connections of TCP go as packets.
    pub streams: Option<StreamUse>,
    /// What is different from what serves best, to measure what that is worth.
    pub trial: Trial,
    /// From the operating system's randomness: seeds what must not be guessed but is no secret.
    pub seed: u64,
}

/// What a data plane does otherwise than it would.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Trial {
    /// Packets are handed over as they come, and not in the order of their flow.
    pub any_order: bool,
    /// So much of a flow may wait to be sent; `None`: what the paths need.
    pub buffer: Option<Bytes>,
}

impl Trial {
    fn order(&self) -> resequencer::Config {
        if self.any_order {
            resequencer::Config::none()
        } else {
            resequencer::Config::default()
        }
    }
}

/// A running data plane. Dropping it ends its threads.
pub struct DataPlane {
    /// What it tells.
    pub events: tokio::sync::mpsc::Receiver<Event>,
    /// QUIC datagrams that arrived on its sockets.
    pub control: tokio::sync::mpsc::Receiver<ControlDatagram>,
    /// Takes orders to it.
    pub orders: Orders,
    threads: Vec<JoinHandle<()>>,
}

impl handoff::Wake for Waker {
    fn wake(&self) {
        Waker::wake(self);
    }
}

/// Starts the threads: two for each queue.
///
/// # Errors
/// No descriptor or thread is left, or there is not a queue for each pair.
pub fn start(config: DataPlaneConfig) -> anyhow::Result<DataPlane> {
    let count = config.queues.len();
    anyhow::ensure!(
        count == config.pairs.count() as usize,
        "{count} queues for {} pairs of threads",
        config.pairs.count()
    );
    let waker = || Waker::new().context("cannot make an eventfd");
    let (event_sender, events) = tokio::sync::mpsc::channel(events::EVENTS);
    let (control_sender, control) = tokio::sync::mpsc::channel(CONTROL_QUEUE);
    let (mut all, mut takers) = (Vec::new(), Vec::new());
    for _ in 0..count {
        // What may wait is bounded for all pairs together.
        let (orders, relays) = (handoff::ORDERS / count, handoff::RELAYS / count);
        let (egress, for_egress) = handoff::handoff(waker()?, (orders, relays));
        let (ingress, for_ingress) = handoff::handoff(waker()?, (orders, streams::RELAYS / count));
        all.push(ToPair { egress, ingress });
        takers.push((for_egress, for_ingress));
    }
    let dispatch = Dispatch::new(all.clone(), config.pairs);
    let to_send = Share::divide(sessions::CAPACITY, count).into_iter();
    let (stored, reserve) = config
        .streams
        .map_or((0, Reserve::unbounded()), StreamUse::memory);
    let of_streams = Share::divide(stored, count).into_iter();
    let to_send = to_send.zip(of_streams);
    let received = Share::divide(store::CAPACITY, count).into_iter();
    let mut threads = Vec::new();
    let (format, trial) = (config.format, config.trial);
    let client_policy = config.client_policy;
    for (pair, (((tun, takers), to_send), received)) in config
        .queues
        .into_iter()
        .zip(takers)
        .zip(to_send)
        .zip(received)
        .enumerate()
    {
        let (for_egress, for_ingress) = takers;
        let ToPair { egress, ingress } = all[pair].clone();
        // Each thread ends with the others, however that one ends: a daemon whose other half goes
        // on alone would look alive and carry nothing. The sending threads hold the only senders of
        // events, so whoever listens to them notices.
        let others = || StopsPairs {
            others: (0..count)
                .filter(|at| *at != pair)
                .map(|at| all[at].clone())
                .collect(),
            is_handing_over: Arc::clone(&dispatch.is_handing_over),
        };
        let name = |name: &str| match pair {
            0 => name.to_owned(),
            _ => format!("{name}{}", pair + 1),
        };
        let receiving = tun.try_clone().context("cannot share the TUN")?;
        // An odd multiple: of the pairs each has another.
        let seed = config.seed.wrapping_mul(2 * pair as u64 + 1);
        let (sends, receives) = streams_of((config.streams, &reserve), tun.name(), &ingress)?;
        let (pairs, events) = (others(), event_sender.clone());
        threads.push(spawn(&name("hawser-egress"), move || {
            let (_other, _pairs) = (StopsOther(ingress), pairs);
            let mut sender = egress::Sender::new((tun, format), for_egress, events, (seed, to_send));
            sender.set_buffer(trial.buffer);
            sender.set_streams(sends);
            sender.run();
        })?);
        let (pairs, control) = (others(), control_sender.clone());
        let client_policy = client_policy.clone();
        threads.push(spawn(&name("hawser-ingress"), move || {
            let _pairs = pairs;
            let links = ingress::Links {
                tun: receiving,
                format,
                order: trial.order(),
                orders: for_ingress,
                egress: StopsOther(egress),
                control,
            };
            ingress::Receiving::new(links, client_policy, receives, received).run();
        })?);
    }
    let orders: Orders = Arc::new(move |command| dispatch.send(command));
    Ok(DataPlane {
        events,
        control,
        orders,
        threads,
    })
}

/// Both halves of streams for a pair of threads.
fn streams_of(
    (purpose, reserve): (Option<StreamUse>, &Reserve),
    interface: &str,
    ingress: &dispatch::ToIngress,
) -> anyhow::Result<(
    Option<egress::streaming::Streams>,
    Option<ingress::streaming::Streams>,
)> {
    let Some(purpose) = purpose else {
        return Ok((None, None));
    };
    let sends = egress::streaming::Streams::new(purpose, interface, Box::new(ingress.clone()));
    let receives = ingress::streaming::Streams::new(purpose, reserve.clone());
    let both = sends.and_then(|sends| Ok((Some(sends), Some(receives?))));
    both.context("cannot make the sockets of streams")
}

fn spawn(name: &str, run: impl FnOnce() + Send + 'static) -> anyhow::Result<JoinHandle<()>> {
    std::thread::Builder::new()
        .name(name.to_owned())
        .spawn(run)
        .context("cannot start a thread")
}

impl DataPlane {
    /// Ends all sessions for a successor, and the data plane with them. Empty when it has ended
    /// already.
    pub async fn hand_over(&self) -> Vec<SessionCheckpoint> {
        let (reply, answer) = tokio::sync::oneshot::channel();
        (self.orders)(Command::HandOver(Box::new(|sessions| {
            let _ = reply.send(sessions);
        })));
        answer.await.unwrap_or_default()
    }
}

impl Drop for DataPlane {
    fn drop(&mut self) {
        (self.orders)(Command::Stop);
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use super::*;

    #[test]
    fn a_panic_of_one_thread_stops_the_other_and_wakes_it() {
        let (giver, taker) =
            handoff::handoff::<egress::Order, (), _>(Waker::new().expect("a descriptor"), (1, 1));
        let failing = spawn("a-test", move || {
            let _other = StopsOther(giver);
            std::panic::resume_unwind(Box::new("a fault"));
        });
        assert!(failing.expect("a thread").join().is_err());
        let mut woken = [false];
        let waker = taker.waker().as_fd();
        let wait = hawser_linux::wait::wait_readable(&[waker], Some(std::time::Duration::ZERO), &mut woken);
        assert!(wait.is_ok() && woken[0], "it may be asleep");
        assert!(!taker.take(&mut Vec::new(), &mut Vec::new()));
    }
}
