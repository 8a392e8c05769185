//! Data plane: its start and end. The control side sends it orders (`orders.rs`), and receives
//! events (`events.rs`) and snapshots (`snapshot.rs`).
//!
//! Two threads transfer packets: `egress` (TUN to networks) and `ingress` (networks to TUN).
//! Neither is async. The control side (QUIC, netlink, control socket) sends [`Command`]s to them
//! and receives [`Event`]s. A hub may have several pairs of threads, over which its sessions are
//! distributed ([`Pairs`]); the control side nevertheless sees one data plane.

#![forbid(unsafe_code)]

pub mod batch;
pub mod checkpoint;
pub mod crypto;
mod dispatch;
mod egress;
mod events;
mod fragile;
mod handoff;
mod ingress;
mod lane;
mod orders;
mod overhead;
mod pool;
mod relayed;
mod sessions;
mod share;
mod snapshot;
mod store;
mod streams;
pub mod tun_writer;

/// Synchronisation primitives of [`handoff`]: the model checker substitutes its own.
mod sync {
    pub(super) use std::sync::{Arc, Condvar, Mutex, MutexGuard};
}

use std::sync::Arc;
use std::thread::JoinHandle;

use anyhow::Context as _;
use hawser_linux::tun::Tun;
use hawser_linux::wait::Waker;
pub use hawser_proto::tunnel::Role;
pub use hawser_wire::pairs::Pairs;
pub use streams::StreamUse;

use checkpoint::SessionCheckpoint;
pub use events::{ControlDatagram, Event};
use hawser_proto::client_filter::Policy;
use hawser_proto::resequencer;
use hawser_proto::stream::Reserve;
use hawser_units::Bytes;
use hawser_wire::control::Cipher;
use hawser_wire::frame::Format;
pub use orders::{Change, Command, Destinations, Orders, OtherClients, Reply};
pub use snapshot::{
    AirSnapshot, DeclaredSnapshot, FlowSnapshot, PairSnapshot, PathSnapshot, PathState, SessionSnapshot,
    Snapshot,
};

use dispatch::{Dispatch, StopsPairs, ToPair};
use handoff::StopsOther;
use share::Share;
use zeroize::Zeroize;

/// Id of a session within this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SessionId(pub u64);

/// Id of a UDP socket within this process: a client has one for each network, a hub a single one,
/// of which each thread pair has its own part.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SocketId(pub u32);

/// Keys of one epoch for both directions, from the TLS exporter. Wiped when dropped.
pub struct EpochKeys {
    /// Cipher of the keys.
    pub cipher: Cipher,
    /// Key of the sending direction: 32 bytes of key, then 12 of IV.
    pub send: [u8; 44],
    /// Key of the receiving direction.
    pub receive: [u8; 44],
}

impl Drop for EpochKeys {
    fn drop(&mut self) {
        self.send.zeroize();
        self.receive.zeroize();
    }
}

/// Returns the faster cipher on this machine.
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

/// Datagrams of the control channel that may wait for the control side. Source: our choice, some
/// 1.5 MB of full datagrams; QUIC retransmits what finds no room.
const CONTROL_QUEUE: usize = 1024;

/// Parameters of a data plane at its start.
pub struct DataPlaneConfig {
    /// Queues of the existing interface that applications see: one for each pair, with the packets
    /// for sessions of that pair.
    pub queues: Vec<Tun>,
    /// Assignment of sessions to pairs.
    pub pairs: Pairs,
    /// Format of the inner packets of all sessions.
    pub format: Format,
    /// Destinations that clients of a hub may reach; `None` if the far end may send to any address:
    /// on a client, and between the ends of a bond.
    pub client_policy: Option<Arc<Policy>>,
    /// Use of streams; `None` if TCP connections are transferred as packets.
    pub streams: Option<StreamUse>,
    /// Deviations from the defaults, for measurements.
    pub trial: Trial,
    /// Seed from the operating system's randomness, for values that must be unpredictable but are
    /// not secret.
    pub seed: u64,
}

/// Deviations of a data plane from its defaults.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Trial {
    /// Set if packets are delivered in order of arrival instead of their flow's order.
    pub any_order: bool,
    /// Limit of a flow's queue; `None`: as much as the paths need.
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

/// Running data plane. Dropping it ends its threads.
pub struct DataPlane {
    /// Events.
    pub events: tokio::sync::mpsc::Receiver<Event>,
    /// QUIC datagrams that arrived on its sockets.
    pub control: tokio::sync::mpsc::Receiver<ControlDatagram>,
    /// Queue of orders to it.
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
/// If no descriptor or thread is available, or a queue for a pair is missing.
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
        // The bounds of queues apply to all pairs together.
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
        // Each thread ends with the others, for any reason: a daemon with only one half would seem
        // to work but transfer nothing. The sending threads hold the only senders of events, so the
        // receiver of events detects the end.
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
        // An odd multiple, so that each pair has a different seed.
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

/// Creates both halves of streams for a thread pair.
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
    /// Ends all sessions for a successor, and the data plane with them. Empty if it has already
    /// ended.
    pub async fn hand_over(&self) -> Vec<SessionCheckpoint> {
        let (reply, answer) = tokio::sync::oneshot::channel();
        (self.orders)(Command::HandOver(Box::new(|sessions| {
            let _ = reply.send(sessions);
        })));
        answer.await.unwrap_or_default()
    }

    /// Waits until the threads have executed all orders.
    pub async fn settle(&self) {
        let (reply, answer) = tokio::sync::oneshot::channel();
        (self.orders)(Command::Snapshot(Box::new(|snapshot| {
            let _ = reply.send(snapshot);
        })));
        let _ = answer.await;
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
