//! Keys of both halves: the one that encrypts outgoing packets, and those that decrypt incoming
//! ones.

use hawser_units::{Duration, Instant};

use super::Role;

/// Time for which the previous key still opens packets. Source: our choice, longer than a packet
/// can wait in queues of both ends (`LONGEST_WAIT`, 10 s) and in a network; a longer one only keeps
/// an old key in memory. RFC 9001 section 6.5 has three probe timeouts for packets that were
/// reordered only.
pub const OLD_KEY: Duration = Duration::from_secs(60);
/// Datagrams that one key protects, over all paths, before another is asked for: half of what
/// AES-GCM allows where no packet is larger than [`SMALL_PACKET`].
///
/// Source: RFC 9001 section 6.6 and appendix B.1 (2^28).
pub(super) const REKEY_AFTER: u64 = 1 << 27;
/// Packets up to this many bytes count once; of packets of up to 64 KB the same appendix allows
/// 2^23, so each counts as [`LARGE_PACKET_WEIGHT`]. Source: RFC 9001 appendix B.1.
pub(super) const SMALL_PACKET: u16 = 1 << 11;
const LARGE_PACKET_WEIGHT: u64 = 1 << 5;
/// Datagrams that fail to open under one key before it opens no more. Source: RFC 9001 section 6.6,
/// the smaller of both ciphers' limits (2^36 of ChaCha20-Poly1305, 2^52 of AES-GCM).
pub(super) const MAX_FORGERIES: u64 = 1 << 36;
/// Number of keys that open packets at once. Source: two epochs are in use, and when a third
/// begins, [`OLD_KEY`] of the oldest one is over.
const RECEIVING_KEYS: usize = 3;

/// The keys that protect what one side sends.
///
/// A client sends with a new key at once. A hub sends with it once the client has used it, so that
/// no packet of the hub reaches a client that cannot open it yet.
#[derive(Debug)]
pub(super) struct SendingKeys<K> {
    pub(super) current: Option<(u8, K)>,
    pub(super) next: Option<(u8, K)>,
    /// The newest epoch that the client is known to have used.
    pub(super) heard_epoch: Option<u8>,
    rekey: Rekey,
}

impl<K> SendingKeys<K> {
    pub(super) fn new() -> Self {
        Self {
            current: None,
            next: None,
            heard_epoch: None,
            rekey: Rekey::default(),
        }
    }

    pub(super) fn install(&mut self, role: Role, epoch: u8, key: K) {
        let is_for_now = match role {
            Role::Client => true,
            Role::Hub => self.current.is_none() || self.heard_epoch == Some(epoch),
        };
        if is_for_now {
            self.take(epoch, key);
        } else {
            self.next = Some((epoch, key));
        }
    }

    fn take(&mut self, epoch: u8, key: K) {
        self.current = Some((epoch, key));
        self.next = None;
        self.rekey = Rekey::default();
    }

    /// Handles that the client has used a key: the hub uses it from now on.
    pub(super) fn confirm(&mut self, epoch: u8) {
        self.heard_epoch = Some(epoch);
        if let Some((_, key)) = self.next.take_if(|(next, _)| *next == epoch) {
            self.take(epoch, key);
        }
    }

    /// Records datagrams on a path whose largest packet has `mtu` bytes; returns whether a new key
    /// is wanted, once for each key.
    pub(super) fn on_sent(&mut self, datagrams: u64, mtu: u16) -> bool {
        self.rekey.is_due(datagrams, mtu)
    }
}

/// The count of datagrams that a key has protected.
#[derive(Debug, Default)]
pub(super) struct Rekey {
    /// Datagrams of all paths, large ones several times.
    protected: u64,
    is_told: bool,
}

impl Rekey {
    /// Counts datagrams on a path whose largest packet has `mtu` bytes; returns whether to ask for
    /// a new key, once for each key.
    pub(super) fn is_due(&mut self, datagrams: u64, mtu: u16) -> bool {
        let weight = if mtu > SMALL_PACKET {
            LARGE_PACKET_WEIGHT
        } else {
            1
        };
        self.protected += datagrams * weight;
        let is_due = self.protected >= REKEY_AFTER && !self.is_told;
        self.is_told |= is_due;
        is_due
    }
}

/// A key of one epoch, and the time until which it decrypts packets.
#[derive(Debug)]
pub struct ReceivingKey<K> {
    /// Epoch of the key.
    pub epoch: u8,
    /// The key.
    pub key: K,
    /// Time until which the key opens packets; [`Instant::FAR_FUTURE`] for the newest.
    pub until: Instant,
    /// Datagrams whose authentication with this key failed.
    pub forgeries: u64,
}

/// The keys that decrypt the peer's datagrams.
#[derive(Debug)]
pub(super) struct ReceivingKeys<K> {
    /// The newest last.
    pub(super) all: Vec<ReceivingKey<K>>,
    /// The newest epoch that the peer has used, and whether the sending half knows.
    pub(super) used: Option<(u8, bool)>,
}

impl<K> ReceivingKeys<K> {
    pub(super) fn new() -> Self {
        Self {
            all: Vec::new(),
            used: None,
        }
    }

    /// Adds the key of a new epoch; older keys decrypt packets for another [`OLD_KEY`] and are
    /// dropped then.
    pub(super) fn install(&mut self, epoch: u8, key: K, now: Instant) {
        for old in &mut self.all {
            old.until = old.until.min(now + OLD_KEY);
        }
        self.all.retain(|old| old.epoch != epoch);
        self.all.push(ReceivingKey {
            epoch,
            key,
            until: Instant::FAR_FUTURE,
            forgeries: 0,
        });
        let surplus = self.all.len().saturating_sub(RECEIVING_KEYS);
        self.all.drain(..surplus);
    }

    /// Returns the key of an epoch, unless it has expired or too many forgeries were received.
    pub(super) fn of(&mut self, epoch: u8, now: Instant) -> Option<&mut ReceivingKey<K>> {
        let is_it = |key: &&mut ReceivingKey<K>| {
            key.epoch == epoch && now < key.until && key.forgeries < MAX_FORGERIES
        };
        self.all.iter_mut().find(is_it)
    }

    /// Drops expired keys.
    pub(super) fn forget(&mut self, now: Instant) {
        self.all.retain(|key| key.until > now);
    }

    /// Returns when the next key is to be dropped.
    pub(super) fn due(&self) -> Option<Instant> {
        self.all.iter().map(|key| key.until).min()
    }

    /// Records the epoch of the peer's newest packet.
    pub(super) fn on_newest(&mut self, epoch: u8) {
        let is_newest = self.all.last().is_some_and(|key| key.epoch == epoch);
        if is_newest && self.used.is_none_or(|(used, _)| used != epoch) {
            self.used = Some((epoch, false));
        }
    }
}
