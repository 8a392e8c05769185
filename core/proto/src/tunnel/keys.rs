//! The keys of both halves: which one protects what is sent, and which ones open what arrives.

use hawser_units::{Duration, Instant};

use super::Role;

/// How long the key before the current one still opens packets.
pub const OLD_KEY: Duration = Duration::from_secs(60);
/// Datagrams that one key protects, over all paths, before another is asked for: half of what
/// AES-GCM allows where no packet is larger than [`SMALL_PACKET`].
///
/// Source: RFC 9001 section 6.6 and appendix B.1 (2^28).
pub(super) const REKEY_AFTER: u64 = 1 << 27;
/// Packets up to this many bytes count once; of larger ones the same appendix allows 2^23, so each
/// counts as [`LARGE_PACKET_WEIGHT`].
pub(super) const SMALL_PACKET: u16 = 1 << 11;
const LARGE_PACKET_WEIGHT: u64 = 1 << 5;
/// Datagrams that fail to open under one key before it opens no more. Source: RFC 9001 section 6.6,
/// the smaller of both ciphers' limits (2^36 of ChaCha20-Poly1305, 2^52 of AES-GCM).
pub(super) const MAX_FORGERIES: u64 = 1 << 36;
/// Keys that open packets at once: two epochs are in use, and a third means that the oldest had its
/// minute long ago.
const RECEIVING_KEYS: usize = 3;

/// The keys that protect what one side sends.
///
/// A client sends with a new key at once. A hub sends with it once the client has used it, so that
/// no packet of the hub reaches a client that cannot open it yet.
#[derive(Debug)]
pub(super) struct SendingKeys<K> {
    pub(super) current: Option<(u8, K)>,
    pub(super) next: Option<(u8, K)>,
    /// The newest epoch that the client has used, as far as is known.
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

    /// The client has used a key: from now on so does the hub.
    pub(super) fn confirm(&mut self, epoch: u8) {
        self.heard_epoch = Some(epoch);
        if let Some((_, key)) = self.next.take_if(|(next, _)| *next == epoch) {
            self.take(epoch, key);
        }
    }

    /// Takes note of datagrams on a path whose largest packet has `mtu` bytes; says whether a new
    /// key is wanted, once for each key.
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
    /// Counts datagrams on a path whose largest packet has `mtu` bytes; says whether to ask for a
    /// new key, once for each key.
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

/// A key of one epoch, and until when it opens packets.
#[derive(Debug)]
pub struct ReceivingKey<K> {
    /// Its epoch.
    pub epoch: u8,
    /// The key.
    pub key: K,
    /// Until when it opens packets; [`Instant::FAR_FUTURE`] for the newest.
    pub until: Instant,
    /// Datagrams that failed to open under it.
    pub forgeries: u64,
}

/// The keys that open what the peer sends.
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

    /// Adds the key of a new epoch: those before it open packets for [`OLD_KEY`] more, and are
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

    /// The key of an epoch, while its time and its limit of forgeries allow it.
    pub(super) fn of(&mut self, epoch: u8, now: Instant) -> Option<&mut ReceivingKey<K>> {
        let is_it = |key: &&mut ReceivingKey<K>| {
            key.epoch == epoch && now < key.until && key.forgeries < MAX_FORGERIES
        };
        self.all.iter_mut().find(is_it)
    }

    /// Drops the keys whose time is over.
    pub(super) fn forget(&mut self, now: Instant) {
        self.all.retain(|key| key.until > now);
    }

    /// When the next key is to be dropped.
    pub(super) fn due(&self) -> Option<Instant> {
        self.all.iter().map(|key| key.until).min()
    }

    /// Takes note of the epoch of the peer's newest packet.
    pub(super) fn on_newest(&mut self, epoch: u8) {
        let is_newest = self.all.last().is_some_and(|key| key.epoch == epoch);
        if is_newest && self.used.is_none_or(|(used, _)| used != epoch) {
            self.used = Some((epoch, false));
        }
    }
}
