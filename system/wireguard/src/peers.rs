//! The peers of a hub by WireGuard: their handshakes, sessions, addresses and endpoints.
//!
//! The library implements the protocol, with one `Tunn` per peer. This state machine finds the peer
//! of a datagram and of a packet, limits handshakes, and restricts peers to their inner addresses.
//! It has no socket; the library reads the clock by itself.
//!
//! ```text
//!   datagram --> handle_datagram --> packet of a peer
//!                       |
//!                       +-----> poll_transmit <-----+--- handle_timeout
//!                                                   | no session: handle_waiting
//!   packet of the TUN --> peer_of, session ---------+--> seal --> datagram
//! ```
//!
//! States of a peer: known, without a session; after a handshake, with a session for at most 180 s,
//! which a new handshake extends. A peer is removed when [`Peers::set`] no longer names it.
//!
//! The endpoint of a peer is the source of its last data packet or handshake response. An
//! initiation does not change it, because it may be a replay of one recorded before the hub's
//! restart.
//!
//! Bounds: the library stores 256 packets for a peer without a session; at most 100 handshakes a
//! second are answered without a cookie, which proves the source address.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use boringtun::noise::errors::WireGuardError;
use boringtun::noise::handshake::parse_handshake_anon;
use boringtun::noise::rate_limiter::RateLimiter;
use boringtun::noise::{Packet, Tunn, TunnResult};
use boringtun::x25519::PublicKey;
use hawser_config::WireGuardKey;
use hawser_units::{Duration, Instant, Rate};

use crate::keys::PrivateKey;

/// Bytes that WireGuard adds to a packet: a header of 16 and a tag of 16.
///
/// Source: WireGuard, "Next Generation Kernel Network Tunnel", section 5.4.6.
pub(crate) const OVERHEAD: usize = 32;
/// Handshakes in a second that are answered without a proof of the source address.
///
/// Source: the library's own device (`HANDSHAKE_RATE_LIMIT`).
pub(crate) const HANDSHAKES_PER_SECOND: u64 = 100;
/// The largest datagram of a handshake.
///
/// Source: section 5.4.2, the initiation.
const HANDSHAKE_LEN: usize = 148;
/// Bound of the packet numbers of a session.
///
/// Source: section 6.1, `Reject-After-Messages`.
const REJECT_AFTER_MESSAGES: u64 = u64::MAX - (1 << 13);
/// Room for the largest packet that waits for a session, a full one of Ethernet (IEEE 802.3).
const SCRATCH: usize = 2048;
/// Bound of the numbers of peers: the upper 24 bits of their receiver indices, of which the library
/// uses the lower 8. Source: `Tunn::new` of the library.
const MAX_PEERS: usize = 1 << 24;

/// Address of a peer, and the address of this machine to which it sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Endpoint {
    /// Address of the peer.
    pub remote: SocketAddr,
    /// Address of this machine, if known.
    pub local: Option<IpAddr>,
}

/// A peer as the hub has enrolled it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerConfig {
    /// Name of the client.
    pub name: String,
    /// Public key of the client.
    pub key: WireGuardKey,
    /// Inner addresses: the only sources that it may use.
    pub inner: Vec<IpAddr>,
    /// Limit in each direction; zero blocks all traffic, `None` means no limit.
    pub limit: Option<Rate>,
}

/// Number of a peer within this process.
pub type PeerId = u32;

/// A datagram to send.
#[derive(Debug, PartialEq, Eq)]
pub struct Transmit {
    /// Destination.
    pub to: Endpoint,
    /// Contents.
    pub bytes: Vec<u8>,
}

/// A packet of a peer, at the beginning of the supplied buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Received {
    /// Sender of the packet.
    pub peer: PeerId,
    /// Length of the packet.
    pub len: usize,
}

/// Reason for which a datagram is dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The format is not that of WireGuard.
    Malformed,
    /// Unknown key or receiver index.
    UnknownPeer,
    /// Forged, or of a session that has ended.
    Forged,
    /// Received before.
    Replayed,
    /// Inner source address that is not the peer's.
    Spoofed,
}

struct Peer {
    config: PeerConfig,
    tunn: Tunn,
    endpoint: Option<Endpoint>,
    /// Set if packets are queued for a session.
    has_waiting: bool,
    handshake_at: Option<Instant>,
    received_bytes: u64,
    sent_bytes: u64,
}

/// State of a peer, for status.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerStatus {
    /// Name of the client.
    pub name: String,
    /// Key of the client.
    pub key: WireGuardKey,
    /// Address of the client, if it has connected.
    pub endpoint: Option<SocketAddr>,
    /// Set while it has a session.
    pub is_connected: bool,
    /// Time since the last handshake.
    pub handshake_age: Option<Duration>,
    /// Bytes received from it. Units: UDP payload.
    pub received_bytes: u64,
    /// Bytes sent to it. Units: UDP payload.
    pub sent_bytes: u64,
}

/// State machine of all peers.
pub struct Peers {
    key: PrivateKey,
    public: PublicKey,
    limiter: RateLimiter,
    /// Limiter of the peers' own state machines, which only see datagrams that the other limiter
    /// has accepted.
    unlimited: Arc<RateLimiter>,
    all: BTreeMap<PeerId, Peer>,
    by_key: HashMap<WireGuardKey, PeerId>,
    by_address: HashMap<IpAddr, PeerId>,
    last: PeerId,
    outbox: VecDeque<Transmit>,
}

impl Peers {
    /// Creates the machine without peers.
    #[must_use]
    pub fn new(key: PrivateKey) -> Self {
        let public = PublicKey::from(&key.0);
        Self {
            key,
            public,
            limiter: RateLimiter::new(&public, HANDSHAKES_PER_SECOND),
            unlimited: Arc::new(RateLimiter::new(&public, u64::MAX)),
            all: BTreeMap::new(),
            by_key: HashMap::new(),
            by_address: HashMap::new(),
            last: 0,
            outbox: VecDeque::new(),
        }
    }

    /// Sets the peers. Sessions of removed peers, and of those with changed addresses, end.
    pub fn set(&mut self, wanted: Vec<PeerConfig>) {
        let same = |peer: &Peer, config: &PeerConfig| {
            peer.config.key == config.key && peer.config.inner == config.inner
        };
        let by_key: HashMap<_, _> = wanted.iter().map(|config| (config.key, config)).collect();
        self.all.retain(|_, peer| {
            let config = by_key.get(&peer.config.key);
            config.is_some_and(|config| same(peer, config))
        });
        drop(by_key);
        self.by_key.clear();
        self.by_key
            .extend(self.all.iter().map(|(id, peer)| (peer.config.key, *id)));
        for config in wanted {
            if let Some(id) = self.by_key.get(&config.key) {
                if let Some(peer) = self.all.get_mut(id) {
                    peer.config = config;
                }
            } else if let Some(id) = self.free_id() {
                self.by_key.insert(config.key, id);
                self.all.insert(id, self.new_peer(id, config));
            }
        }
        self.by_address.clear();
        for (id, peer) in &self.all {
            let inner = peer.config.inner.iter();
            self.by_address.extend(inner.map(|address| (*address, *id)));
        }
    }

    fn free_id(&mut self) -> Option<PeerId> {
        if self.all.len() >= MAX_PEERS - 1 {
            return None;
        }
        loop {
            self.last = (self.last + 1) % MAX_PEERS as u32;
            if !self.all.contains_key(&self.last) {
                return Some(self.last);
            }
        }
    }

    fn new_peer(&self, id: PeerId, config: PeerConfig) -> Peer {
        let limiter = Some(Arc::clone(&self.unlimited));
        let theirs = PublicKey::from(config.key.0);
        Peer {
            tunn: Tunn::new(self.key.0.clone(), theirs, None, None, id, limiter),
            config,
            endpoint: None,
            has_waiting: false,
            handshake_at: None,
            received_bytes: 0,
            sent_bytes: 0,
        }
    }

    /// Returns the peers.
    pub fn iter(&self) -> impl Iterator<Item = (PeerId, &PeerConfig)> {
        self.all.iter().map(|(id, peer)| (*id, &peer.config))
    }

    /// Starts a handshake with peers that had a session with the previous hub process, so that they
    /// need not detect its end by themselves.
    pub fn resume(&mut self, endpoints: impl IntoIterator<Item = (WireGuardKey, SocketAddr)>) {
        for (key, remote) in endpoints {
            let peer = self.by_key.get(&key).and_then(|id| self.all.get_mut(id));
            let Some(peer) = peer.filter(|peer| peer.endpoint.is_none()) else {
                continue;
            };
            let to = Endpoint { remote, local: None };
            peer.endpoint = Some(to);
            let mut room = [0; HANDSHAKE_LEN];
            if let TunnResult::WriteToNetwork(bytes) = peer.tunn.format_handshake_initiation(&mut room, false)
            {
                let bytes = bytes.to_vec();
                self.outbox.push_back(Transmit { to, bytes });
            }
        }
    }

    /// Processes a datagram. `out` must have room for it, and for 148 bytes. Returns the packet in
    /// it, if any.
    ///
    /// # Errors
    /// [`Refusal`]: the datagram is dropped.
    pub fn handle_datagram(
        &mut self,
        from: Endpoint,
        datagram: &[u8],
        out: &mut [u8],
    ) -> Result<Option<Received>, Refusal> {
        let Some((id, proves_address)) = self.peer_of_datagram(from, datagram)? else {
            return Ok(None);
        };
        let peer = self.all.get_mut(&id).ok_or(Refusal::UnknownPeer)?;
        let packet = match peer.tunn.decapsulate(None, datagram, out) {
            TunnResult::Done => None,
            TunnResult::Err(error) => return Err(refusal(&error)),
            TunnResult::WriteToNetwork(bytes) => {
                let bytes = bytes.to_vec();
                peer.sent_bytes += bytes.len() as u64;
                self.outbox.push_back(Transmit { to: from, bytes });
                None
            }
            TunnResult::WriteToTunnelV4(packet, source) => Some((packet.len(), IpAddr::from(source))),
            TunnResult::WriteToTunnelV6(packet, source) => Some((packet.len(), IpAddr::from(source))),
        };
        peer.received_bytes += datagram.len() as u64;
        if proves_address && peer.endpoint != Some(from) {
            tracing::debug!(client = peer.config.name, from = %from.remote, "WireGuard client has a new address");
            peer.endpoint = Some(from);
        }
        if peer.has_waiting && peer.has_session() {
            peer.flush(from, &mut self.outbox);
        }
        let Some((len, source)) = packet else {
            return Ok(None);
        };
        if !peer.config.inner.contains(&source) {
            return Err(Refusal::Spoofed);
        }
        Ok(Some(Received { peer: id, len }))
    }

    /// Returns the peer of a datagram, and whether the datagram, once authenticated, proves the
    /// peer's source address. `None` if the sender has to prove its address first.
    fn peer_of_datagram(
        &mut self,
        from: Endpoint,
        datagram: &[u8],
    ) -> Result<Option<(PeerId, bool)>, Refusal> {
        let packet = Tunn::parse_incoming_packet(datagram).map_err(|_| Refusal::Malformed)?;
        match packet {
            Packet::PacketData(data) => {
                let number = datagram[8..].first_chunk().copied().map(u64::from_le_bytes);
                if number.is_none_or(|number| number >= REJECT_AFTER_MESSAGES) {
                    return Err(Refusal::Forged);
                }
                Ok(Some((data.receiver_idx >> 8, true)))
            }
            Packet::PacketCookieReply(reply) => Ok(Some((reply.receiver_idx >> 8, false))),
            Packet::HandshakeInit(_) | Packet::HandshakeResponse(_) => {
                let mut cookie = [0; HANDSHAKE_LEN];
                let source = Some(from.remote.ip());
                match self.limiter.verify_packet(source, datagram, &mut cookie) {
                    Ok(Packet::HandshakeInit(init)) => {
                        let half = parse_handshake_anon(&self.key.0, &self.public, &init);
                        let theirs = half.map_err(|_| Refusal::Forged)?.peer_static_public;
                        let id = self.by_key.get(&WireGuardKey(theirs));
                        id.map(|id| Some((*id, false))).ok_or(Refusal::UnknownPeer)
                    }
                    Ok(Packet::HandshakeResponse(response)) => Ok(Some((response.receiver_idx >> 8, true))),
                    Err(TunnResult::WriteToNetwork(cookie)) => {
                        let bytes = cookie.to_vec();
                        self.outbox.push_back(Transmit { to: from, bytes });
                        Ok(None)
                    }
                    Ok(_) | Err(_) => Err(Refusal::Forged),
                }
            }
        }
    }

    /// Returns the peer with that inner address.
    #[must_use]
    pub fn peer_of(&self, to: IpAddr) -> Option<PeerId> {
        self.by_address.get(&to).copied()
    }

    /// Returns where datagrams for a peer go, if it has a session.
    #[must_use]
    pub fn session(&self, id: PeerId) -> Option<Endpoint> {
        let peer = self.all.get(&id)?;
        peer.endpoint.filter(|_| peer.has_session())
    }

    /// Encrypts a packet for a peer with a [session](Self::session). `out` must be exactly 32 bytes
    /// longer than the packet. Returns false if the peer has no session.
    pub fn seal(&mut self, id: PeerId, packet: &[u8], out: &mut [u8]) -> bool {
        let Some(peer) = self.all.get_mut(&id).filter(|peer| peer.has_session()) else {
            return false;
        };
        peer.sent_bytes += out.len() as u64;
        matches!(peer.tunn.encapsulate(packet, out), TunnResult::WriteToNetwork(_))
    }

    /// Queues a packet of at most 1500 bytes for a peer without a session, and starts a handshake
    /// if its endpoint is known. Returns false if the packet is dropped.
    pub fn handle_waiting(&mut self, id: PeerId, packet: &[u8]) -> bool {
        let mut room = [0; SCRATCH];
        let peer = self.all.get_mut(&id);
        let Some((peer, to)) = peer.and_then(|peer| peer.endpoint.map(|to| (peer, to))) else {
            return false;
        };
        if packet.len() + OVERHEAD > room.len() {
            return false;
        }
        peer.has_waiting = true;
        if let TunnResult::WriteToNetwork(bytes) = peer.tunn.encapsulate(packet, &mut room) {
            peer.sent_bytes += bytes.len() as u64;
            let bytes = bytes.to_vec();
            self.outbox.push_back(Transmit { to, bytes });
        }
        true
    }

    /// Processes timeouts of all peers: handshakes, keepalive packets, and the end of sessions.
    /// Must be called every 250 ms.
    pub fn handle_timeout(&mut self, now: Instant) {
        self.limiter.reset_count();
        let mut room = [0; SCRATCH];
        for peer in self.all.values_mut() {
            if let Some(age) = peer.tunn.time_since_last_handshake() {
                let at = now.as_nanos().saturating_sub(age.as_nanos() as u64);
                peer.handshake_at = Some(Instant::from_nanos(at));
            }
            let result = peer.tunn.update_timers(&mut room);
            if let (TunnResult::WriteToNetwork(bytes), Some(to)) = (result, peer.endpoint) {
                peer.sent_bytes += bytes.len() as u64;
                let bytes = bytes.to_vec();
                self.outbox.push_back(Transmit { to, bytes });
            }
        }
    }

    /// Returns the next datagram of a handshake, or one that was queued for it.
    pub fn poll_transmit(&mut self) -> Option<Transmit> {
        self.outbox.pop_front()
    }

    /// Returns the state of all peers.
    #[must_use]
    pub fn status(&self, now: Instant) -> Vec<PeerStatus> {
        let status = |peer: &Peer| PeerStatus {
            name: peer.config.name.clone(),
            key: peer.config.key,
            endpoint: peer.endpoint.map(|endpoint| endpoint.remote),
            is_connected: peer.has_session(),
            handshake_age: peer.handshake_at.map(|at| now.since(at)),
            received_bytes: peer.received_bytes,
            sent_bytes: peer.sent_bytes,
        };
        self.all.values().map(status).collect()
    }
}

/// Interval of [`Peers::handle_timeout`]. Source: the library's own device; its timers have steps
/// of seconds.
pub(crate) const INTERVAL: Duration = Duration::from_millis(250);

impl Peer {
    fn has_session(&self) -> bool {
        self.tunn.time_since_last_handshake().is_some()
    }

    /// Sends packets that were queued for a session.
    fn flush(&mut self, to: Endpoint, outbox: &mut VecDeque<Transmit>) {
        self.has_waiting = false;
        let mut room = [0; SCRATCH];
        while let TunnResult::WriteToNetwork(bytes) = self.tunn.decapsulate(None, &[], &mut room) {
            self.sent_bytes += bytes.len() as u64;
            let bytes = bytes.to_vec();
            outbox.push_back(Transmit { to, bytes });
        }
    }
}

fn refusal(error: &WireGuardError) -> Refusal {
    match error {
        WireGuardError::DuplicateCounter
        | WireGuardError::InvalidCounter
        | WireGuardError::WrongTai64nTimestamp => Refusal::Replayed,
        WireGuardError::InvalidPacket | WireGuardError::IncorrectPacketLength => Refusal::Malformed,
        WireGuardError::DestinationBufferTooSmall
        | WireGuardError::UnexpectedPacket
        | WireGuardError::WrongPacketType
        | WireGuardError::WrongIndex
        | WireGuardError::WrongKey
        | WireGuardError::InvalidTai64nTimestamp
        | WireGuardError::InvalidMac
        | WireGuardError::InvalidAeadTag
        | WireGuardError::NoCurrentSession
        | WireGuardError::LockFailed
        | WireGuardError::ConnectionExpired
        | WireGuardError::UnderLoad => Refusal::Forged,
    }
}

#[cfg(test)]
mod tests;
