//! The keys of both halves: which one protects what is sent, and which ones open what arrives.

use hawser_units::{Duration, Instant, PathId};

use super::Role;

/// How long the key before the current one still opens packets.
pub const OLD_KEY: Duration = Duration::from_secs(60);
/// A key is replaced long before its packet numbers end.
pub(super) const REKEY_AFTER: u64 = 1 << 40;
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

    /// Takes note of a packet number; says whether a new key is wanted, once for each key.
    pub(super) fn on_sent(&mut self, path: PathId, number: u64) -> bool {
        self.rekey.is_due(path, number)
    }
}

/// When a key has protected so much that another is wanted.
///
/// A path's packet number goes on from key to key, so that it never repeats: what counts is how far
/// it has come since the key was first used there.
#[derive(Debug, Default)]
pub(super) struct Rekey {
    /// By path: the first packet number under this key.
    begins: Vec<(PathId, u64)>,
    is_told: bool,
}

impl Rekey {
    /// Whether to ask for a new key, at what is sent on a path as `number`: once for each key.
    pub(super) fn is_due(&mut self, path: PathId, number: u64) -> bool {
        let begin = match self.begins.iter().find(|(known, _)| *known == path) {
            Some((_, begin)) => *begin,
            None => {
                self.begins.push((path, number));
                number
            }
        };
        let is_due = number - begin > REKEY_AFTER && !self.is_told;
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
        });
        let surplus = self.all.len().saturating_sub(RECEIVING_KEYS);
        self.all.drain(..surplus);
    }

    pub(super) fn of(&self, epoch: u8, now: Instant) -> Option<&K> {
        let mut valid = self.all.iter();
        valid
            .find(|key| key.epoch == epoch && now < key.until)
            .map(|key| &key.key)
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
