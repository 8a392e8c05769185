//! Hostile client with enrolment and valid keys, on real sockets: it sends the packets of the
//! model's hostile peer, malformed datagrams, and control messages.

use std::net::{SocketAddr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use hawser_config::identity::Identity;
use hawser_config::invitation::Invitation;
use hawser_control::client::{Established, Turn, connect};
use hawser_control::tls;
use hawser_dataplane::crypto::DataKey;
use hawser_linux::netns::Namespace;
use hawser_proto::tunnel::Seal;
use hawser_units::{Instant, PathId};
use hawser_wire::control::{Cipher, Hello, Message, VERSION};
use hawser_wire::data::{Class, INNER_LEN, OUTER_LEN, Outer, TAG_LEN};
use hawser_wire::frame::Format;

use crate::packet::Packet;
use crate::peer::{Lots, Peer};

/// Address of the client in its network.
const LOCAL: &str = "10.0.92.2:0";
/// Number of paths of a session.
const PATHS: u16 = 4;

pub(crate) struct Hostile {
    is_over: Arc<AtomicBool>,
    thread: JoinHandle<Sent>,
}

/// Counts of sent packets and messages.
#[derive(Debug, Default)]
pub(crate) struct Sent {
    pub(crate) sessions: u64,
    pub(crate) packets: u64,
    pub(crate) bytes: u64,
}

impl Hostile {
    /// Starts a client that sends `rate_bps` of UDP payload until it is stopped.
    pub(crate) fn start(namespace: Namespace, invitation: &str, rate_bps: u64) -> Self {
        let invitation: Invitation = invitation.parse().unwrap();
        let is_over = Arc::new(AtomicBool::new(false));
        let over = Arc::clone(&is_over);
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .unwrap();
            runtime.block_on(attack(&namespace, &invitation, rate_bps, &over))
        });
        Self { is_over, thread }
    }

    pub(crate) fn end(self) -> Sent {
        self.is_over.store(true, Ordering::Relaxed);
        self.thread.join().unwrap()
    }
}

async fn attack(namespace: &Namespace, invitation: &Invitation, rate_bps: u64, is_over: &AtomicBool) -> Sent {
    let identity = Identity::generate().unwrap();
    let mut sent = Sent::default();
    let mut token = Some(invitation.token.0);
    let mut seed = 1;
    while !is_over.load(Ordering::Relaxed) {
        match session(namespace, invitation, &identity, token).await {
            Some(established) => {
                token = None;
                seed += 1;
                sent.sessions += 1;
                send(namespace, established, seed, rate_bps, is_over, &mut sent).await;
            }
            None => tokio::time::sleep(Duration::from_millis(500)).await,
        }
    }
    sent
}

async fn session(
    namespace: &Namespace,
    invitation: &Invitation,
    identity: &Identity,
    token: Option<[u8; 16]>,
) -> Option<Established> {
    let socket = namespace.run(|| UdpSocket::bind(LOCAL)).unwrap();
    let runtime = Arc::new(quinn::TokioRuntime);
    let endpoint = quinn::Endpoint::new(tls::client_endpoint_config(), None, socket, runtime).unwrap();
    let hello = Hello {
        version: VERSION,
        enrol_token: token,
        resume: None,
        prefers: Cipher::Aes256Gcm,
        format: Format::Ip,
        name_hint: "mallory".to_owned(),
    };
    let config = tls::client_config(identity, invitation.hub.key).unwrap();
    connect(&endpoint, config, hub(invitation), hello, &Turn::default())
        .await
        .ok()
}

fn hub(invitation: &Invitation) -> SocketAddr {
    let endpoint = &invitation.hub.endpoints[0];
    SocketAddr::new(endpoint.host.parse().unwrap(), endpoint.port)
}

/// Sends until the hub ends the session or the session's number of packets is reached.
async fn send(
    namespace: &Namespace,
    mut established: Established,
    seed: u64,
    rate_bps: u64,
    is_over: &AtomicBool,
    sent: &mut Sent,
) {
    let key = DataKey::new(established.keys.cipher, &established.keys.send);
    let epoch = established.welcome.epoch;
    let remote = established.connection.remote_address();
    let sockets: Vec<_> = (0..3)
        .map(|_| namespace.run(|| UdpSocket::bind(LOCAL)).unwrap())
        .collect();
    let mut indices = Vec::new();
    for path in 0..PATHS {
        let receive_index = u32::from(path) + 1;
        let open = Message::PathOpen { path, receive_index };
        if established.stream.send(&open).await.is_err() {
            return;
        }
        while indices.len() <= usize::from(path) {
            match established.stream.next().await {
                Ok(Message::PathOpened { receive_index, .. }) => indices.push(receive_index),
                Ok(_) => {}
                Err(_) => return,
            }
        }
    }
    let (mut peer, mut lots) = (Peer::new(seed), Lots::new(seed));
    let begin = tokio::time::Instant::now();
    let mut bits = 0;
    // It then begins another session, so that the cost of sessions is tested too.
    let packets = super::number("HAWSER_SOAK_SESSION_PACKETS", 200_000);
    for number in 0..packets {
        if is_over.load(Ordering::Relaxed) || established.connection.close_reason().is_some() {
            return;
        }
        if number % 2_000 == 0 && said(&mut established, &mut lots).await.is_none() {
            return;
        }
        let now = Instant::from_nanos(begin.elapsed().as_nanos() as u64);
        let path = PathId(lots.below(u64::from(PATHS)) as u16);
        let packet = peer.next(path, now).1;
        let index = indices[usize::from(packet.path.0) % indices.len()];
        let mut datagram = sealed(&key, epoch, index, &packet);
        if lots.one_in(10) {
            let at = lots.below(datagram.len() as u64) as usize;
            datagram[at] ^= 1 << lots.below(8);
        }
        if lots.one_in(50) {
            datagram.truncate(lots.below(60) as usize);
        }
        let socket = &sockets[lots.below(sockets.len() as u64) as usize];
        if socket.send_to(&datagram, remote).is_ok() {
            sent.packets += 1;
            sent.bytes += datagram.len() as u64;
        }
        bits += datagram.len() as u64 * 8;
        let due = Duration::from_nanos(bits * 1_000_000_000 / rate_bps);
        // A timer has a resolution of one millisecond.
        if due > begin.elapsed() + Duration::from_millis(2) {
            tokio::time::sleep(due.saturating_sub(begin.elapsed())).await;
        }
    }
}

/// Sends a random control message; `None` if the hub has ended the session.
async fn said(established: &mut Established, lots: &mut Lots) -> Option<()> {
    let message = match lots.below(5) {
        0 => Message::PathClose {
            path: PATHS + lots.below(8) as u16,
        },
        1 => Message::Cap {
            path: lots.below(8) as u16,
            rate_bps: lots.any(64),
        },
        2 => Message::SetScheduler {
            class: Class::ALL[lots.below(4) as usize],
            scheduler: ["redundant", "no such", ""][lots.below(3) as usize].to_owned(),
        },
        3 => Message::Ping(lots.any(32) as u32),
        _ => Message::PathOpen {
            path: PATHS + lots.below(80) as u16,
            receive_index: lots.any(32) as u32,
        },
    };
    established.stream.send(&message).await.ok()
}

fn sealed(key: &DataKey, epoch: u8, index: u32, packet: &Packet) -> Vec<u8> {
    let mut datagram = vec![0; OUTER_LEN + INNER_LEN + packet.body.len() + TAG_LEN];
    let outer = Outer {
        epoch,
        index,
        packet_number: packet.packet_number,
    };
    outer.emit((&mut datagram[..OUTER_LEN]).try_into().unwrap());
    packet
        .inner
        .emit((&mut datagram[OUTER_LEN..][..INNER_LEN]).try_into().unwrap());
    datagram[OUTER_LEN + INNER_LEN..][..packet.body.len()].copy_from_slice(&packet.body);
    key.seal(packet.path, packet.packet_number, &mut datagram);
    datagram
}
