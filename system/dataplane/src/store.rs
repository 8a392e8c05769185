//! Storage of received packets until they are delivered.
//!
//! The kernel fills buffers of 64 KB with up to 44 datagrams each. Packets in order are delivered
//! from there without a copy. Packets that the resequencer delays either keep their buffer, if they
//! fill a large part of it, or move to a small one, so that a few late packets cannot pin much
//! memory.
//!
//! The memory of sessions is counted in bytes of buffers, for each session in an account:
//! [`Store::over`] returns those that use more than [`QUOTA`], or the largest one when all together
//! use more than [`CAPACITY`]. They must release their oldest packets.

use std::ops::Range;

use hawser_linux::memory::give_back;
use hawser_units::Instant;
use hawser_wire::data::Inner;
use hawser_wire::inner::Ecn;

use super::SessionId;
use super::pool::{SPARE, Shelf, TRIM_EVERY};
use super::share::Share;

/// Bytes of a receive buffer: the most that the kernel joins. Source: `GRO_LEGACY_MAX_SIZE` of
/// linux/include/linux/netdevice.h.
pub(super) const BUFFER: usize = 65_536;
/// Size below which the stored packets of one buffer are copied out of it. Units: bytes. Source:
/// our choice, a quarter of [`BUFFER`]; copying more takes as long as receiving it, and copying
/// less leaves four times the memory unused.
const WORTH_KEEPING: usize = 16 * 1024;
/// Maximum size of a packet that is copied into a small buffer; a larger one keeps its buffer.
/// Units: bytes. Source: our choice, a full packet (1,500 bytes, RFC 894) with its headers, rounded
/// up to a power of two.
const SMALL: usize = 2_048;
/// Bytes of buffers that one session's held packets may take. Source: all that a resequencer holds
/// (16,384 packets) in small buffers of [`SMALL`] bytes, and half as much in kept ones.
const QUOTA: u64 = 48 << 20;
/// Maximum size of the buffers that stored packets of all sessions may take, over all pairs of
/// threads. Units: bytes. Source: our choice, five sessions of [`QUOTA`]; more takes memory of
/// small machines, less loses the order of flows when more sessions have gaps.
pub(super) const CAPACITY: u64 = 256 << 20;

/// Account of a session's buffers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Account(u32);

/// Owner of a packet.
#[derive(Clone, Copy, Debug)]
pub(super) struct Owner {
    pub(super) session: SessionId,
    pub(super) account: Account,
}

/// Stored packet.
#[derive(Clone, Copy, Debug)]
pub(super) struct Packet {
    buffer: u32,
    from: u32,
    len: u32,
    /// Owner of the packet.
    pub(super) owner: Owner,
    /// Inner header.
    pub(super) inner: Inner,
    /// ECN field of its outer packet.
    pub(super) outer_ecn: Ecn,
    held: bool,
}

/// Packets in a large buffer.
#[derive(Clone, Copy, Default)]
struct Large {
    count: u32,
    /// Account that pays for the buffer, after another one has replaced it in the kernel's ring.
    kept_for: Option<Account>,
}

/// Buffers and the packets in them.
pub(super) struct Store {
    large: Shelf,
    /// States by number.
    states: Vec<Large>,
    small: Shelf,
    packets: Vec<Packet>,
    free_packets: Vec<u32>,
    fresh: Vec<u32>,
    /// Bytes by account.
    accounts: Vec<u64>,
    free_accounts: Vec<Account>,
    share: Share,
    over: Vec<Account>,
    trimmed: Instant,
}

/// Marks a buffer number as that of a small buffer. Source: the highest of its 32 bits.
const IS_SMALL: u32 = 1 << 31;

impl Store {
    /// Creates the store; `share` limits the bytes of buffered packets.
    pub(super) fn new(share: Share, now: Instant) -> Self {
        Self {
            large: Shelf::default(),
            states: Vec::new(),
            small: Shelf::default(),
            packets: Vec::new(),
            free_packets: Vec::new(),
            fresh: Vec::new(),
            accounts: Vec::new(),
            free_accounts: Vec::new(),
            share,
            over: Vec::new(),
            trimmed: now,
        }
    }

    /// Opens an account for a session; it is closed once all its packets are free.
    pub(super) fn open_account(&mut self) -> Account {
        self.free_accounts.pop().unwrap_or_else(|| {
            self.accounts.push(0);
            Account(self.accounts.len() as u32 - 1)
        })
    }

    pub(super) fn close_account(&mut self, account: Account) {
        debug_assert_eq!(self.buffered_bytes(account), 0, "its packets are free");
        self.free_accounts.push(account);
    }

    /// Returns the bytes of buffers that a session uses.
    pub(super) fn buffered_bytes(&self, account: Account) -> u64 {
        self.accounts[account.0 as usize]
    }

    /// Returns the bytes of buffers that all sessions use.
    pub(super) fn used(&self) -> u64 {
        self.share.used()
    }

    /// Returns a session that must release packets; must be called again afterwards.
    pub(super) fn over(&mut self) -> Option<Account> {
        while let Some(account) = self.over.last().copied() {
            if self.buffered_bytes(account) > QUOTA {
                return Some(account);
            }
            self.over.pop();
        }
        if !self.share.is_over() {
            return None;
        }
        let most = (0..self.accounts.len()).max_by_key(|at| self.accounts[*at])?;
        Some(Account(most as u32))
    }

    fn charge(&mut self, account: Account, bytes: usize) {
        self.share.take(bytes as u64);
        let held = &mut self.accounts[account.0 as usize];
        let before = *held;
        *held += bytes as u64;
        if before <= QUOTA && *held > QUOTA {
            self.over.push(account);
        }
    }

    fn discharge(&mut self, account: Account, bytes: usize) {
        self.share.give_back(bytes as u64);
        self.accounts[account.0 as usize] -= bytes as u64;
    }

    /// Takes a large buffer for the kernel to fill.
    pub(super) fn take(&mut self) -> u32 {
        let number = self.large.take(BUFFER);
        if self.states.len() <= number as usize {
            self.states.resize(number as usize + 1, Large::default());
        }
        number
    }

    /// Returns the bytes of a large buffer.
    pub(super) fn large(&mut self, buffer: u32) -> &mut [u8] {
        &mut self.large.buffers[buffer as usize]
    }

    /// Returns several large buffers, which must be different and in ascending order.
    pub(super) fn large_buffers<'a>(&'a mut self, wanted: &'a [u32]) -> impl Iterator<Item = &'a mut [u8]> {
        let mut rest = self.large.buffers.as_mut_slice();
        let mut start = 0;
        wanted.iter().map(move |number| {
            let (_, tail) = std::mem::take(&mut rest).split_at_mut(*number as usize - start);
            let (first, tail) = tail.split_first_mut().expect("the buffer exists");
            start = *number as usize + 1;
            rest = tail;
            &mut **first
        })
    }

    /// Records a packet in a large buffer.
    pub(super) fn add(
        &mut self,
        buffer: u32,
        range: Range<usize>,
        (owner, inner): (Owner, Inner),
        outer_ecn: Ecn,
    ) -> u32 {
        self.states[buffer as usize].count += 1;
        let id = self.note(Packet {
            buffer,
            from: range.start as u32,
            len: range.len() as u32,
            owner,
            inner,
            outer_ecn,
            held: true,
        });
        self.fresh.push(id);
        id
    }

    /// Stores a copy of a packet that arrived without a buffer; at most [`BUFFER`] bytes.
    pub(super) fn add_copy(&mut self, bytes: &[u8], (owner, inner): (Owner, Inner), outer_ecn: Ecn) -> u32 {
        let buffer = self.copy(bytes, owner.account);
        self.note(Packet {
            buffer,
            from: 0,
            len: bytes.len() as u32,
            owner,
            inner,
            outer_ecn,
            held: true,
        })
    }

    /// Copies a packet to its own buffer, a small one if it fits.
    fn copy(&mut self, bytes: &[u8], account: Account) -> u32 {
        if bytes.len() <= SMALL {
            let number = self.small.take(SMALL);
            self.small.buffers[number as usize][..bytes.len()].copy_from_slice(bytes);
            self.charge(account, SMALL);
            return number | IS_SMALL;
        }
        let number = self.take();
        self.large.buffers[number as usize][..bytes.len()].copy_from_slice(bytes);
        self.charge(account, BUFFER);
        self.states[number as usize] = Large {
            count: 1,
            kept_for: Some(account),
        };
        number
    }

    fn note(&mut self, packet: Packet) -> u32 {
        match self.free_packets.pop() {
            Some(id) => {
                self.packets[id as usize] = packet;
                id
            }
            None => {
                self.packets.push(packet);
                self.packets.len() as u32 - 1
            }
        }
    }

    pub(super) fn packet(&self, id: u32) -> &Packet {
        &self.packets[id as usize]
    }

    pub(super) fn bytes(&self, id: u32) -> &[u8] {
        let packet = self.packets[id as usize];
        let (from, to) = (packet.from as usize, (packet.from + packet.len) as usize);
        match packet.buffer & IS_SMALL {
            0 => &self.large.buffers[packet.buffer as usize][from..to],
            _ => &self.small.buffers[(packet.buffer & !IS_SMALL) as usize][from..to],
        }
    }

    pub(super) fn bytes_mut(&mut self, id: u32) -> &mut [u8] {
        let packet = self.packets[id as usize];
        let (from, to) = (packet.from as usize, (packet.from + packet.len) as usize);
        match packet.buffer & IS_SMALL {
            0 => &mut self.large.buffers[packet.buffer as usize][from..to],
            _ => &mut self.small.buffers[(packet.buffer & !IS_SMALL) as usize][from..to],
        }
    }

    /// Frees a delivered or refused packet.
    pub(super) fn free(&mut self, id: u32) {
        let packet = &mut self.packets[id as usize];
        packet.held = false;
        let (buffer, account) = (packet.buffer, packet.owner.account);
        self.free_packets.push(id);
        if buffer & IS_SMALL != 0 {
            self.small.release(buffer & !IS_SMALL);
            self.discharge(account, SMALL);
        } else {
            self.leave(buffer);
        }
    }

    fn leave(&mut self, buffer: u32) {
        let state = &mut self.states[buffer as usize];
        state.count -= 1;
        if state.count == 0
            && let Some(account) = state.kept_for.take()
        {
            self.large.release(buffer);
            self.discharge(account, BUFFER);
        }
    }

    /// Ends a batch that used the large buffers `used`: moves delayed packets or keeps their
    /// buffers, and returns each free buffer to `used`, in ascending order; kept buffers are
    /// replaced.
    pub(super) fn settle(&mut self, used: &mut [u32]) {
        if self.fresh.is_empty() {
            return;
        }
        let mut fresh = std::mem::take(&mut self.fresh);
        for buffer in used.iter_mut() {
            self.settle_one(buffer, &fresh);
        }
        fresh.clear();
        self.fresh = fresh;
        used.sort_unstable();
    }

    fn settle_one(&mut self, buffer: &mut u32, fresh: &[u32]) {
        if self.states[*buffer as usize].count == 0 {
            return;
        }
        let here = |packet: &Packet| packet.held && packet.buffer == *buffer;
        let mut held: Vec<u32> = fresh
            .iter()
            .copied()
            .filter(|id| here(&self.packets[*id as usize]))
            .collect();
        // A number that was freed and reused within the batch occurs twice.
        held.sort_unstable();
        held.dedup();
        let lens = || held.iter().map(|id| self.packets[*id as usize].len as usize);
        let account = self.packets[held[0] as usize].owner.account;
        // A session with much memory pays for its packets, not for the rest of its buffers.
        let is_worth_keeping =
            lens().sum::<usize>() >= WORTH_KEEPING && self.buffered_bytes(account) < QUOTA / 2;
        if is_worth_keeping || lens().any(|len| len > SMALL) {
            self.states[*buffer as usize].kept_for = Some(account);
            self.charge(account, BUFFER);
            *buffer = self.take();
            return;
        }
        for id in held {
            self.move_to_small(id);
        }
    }

    fn move_to_small(&mut self, id: u32) {
        let number = self.small.take(SMALL);
        let packet = &mut self.packets[id as usize];
        let (from, to) = (packet.from as usize, (packet.from + packet.len) as usize);
        let (old, account) = (packet.buffer, packet.owner.account);
        self.small.buffers[number as usize][..to - from]
            .copy_from_slice(&self.large.buffers[old as usize][from..to]);
        packet.buffer = number | IS_SMALL;
        packet.from = 0;
        self.charge(account, SMALL);
        self.leave(old);
    }

    /// Returns when memory may be released.
    pub(super) fn due(&self) -> Instant {
        let spare = self.large.spare() * BUFFER + self.small.spare() * SMALL;
        if spare as u64 <= SPARE {
            return Instant::FAR_FUTURE;
        }
        self.trimmed + TRIM_EVERY
    }

    /// Releases memory that has been unused since the last call.
    pub(super) fn trim(&mut self, now: Instant) {
        if now >= self.due() {
            self.trimmed = now;
            self.large.trim();
            self.small.trim();
            give_back();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hawser_wire::data::Kind;

    fn owner(store: &mut Store) -> (Owner, Inner) {
        let account = store.open_account();
        let session = SessionId(1);
        (Owner { session, account }, Inner::plain(Kind::Packet))
    }

    #[test]
    fn a_few_held_packets_move_and_their_buffer_is_used_again() {
        let mut store = Store::new(Share::whole(CAPACITY), Instant::ZERO);
        let any = owner(&mut store);
        let mut used = [store.take(), store.take()];
        store.large(used[0])[10..14].copy_from_slice(b"held");
        let id = store.add(used[0], 10..14, any, Ecn::NotEct);
        let gone = store.add(used[1], 0..4, any, Ecn::NotEct);
        store.free(gone);
        let before = used;
        store.settle(&mut used);
        assert_eq!(used, before);
        store.large(used[0]).fill(0);
        assert_eq!(store.bytes(id), b"held");
        assert_eq!(store.buffered_bytes(any.0.account), SMALL as u64);
        store.free(id);
        assert_eq!(store.used(), 0);
    }

    #[test]
    fn a_buffer_full_of_held_packets_is_kept_and_replaced() {
        let mut store = Store::new(Share::whole(CAPACITY), Instant::ZERO);
        let any = owner(&mut store);
        let mut used = [store.take()];
        let kept = used[0];
        let ids: Vec<u32> = (0..20)
            .map(|i| store.add(kept, i * 1400..(i + 1) * 1400, any, Ecn::NotEct))
            .collect();
        store.settle(&mut used);
        assert_ne!(used[0], kept);
        assert_eq!(store.buffered_bytes(any.0.account), BUFFER as u64);
        ids.into_iter().for_each(|id| store.free(id));
        assert_eq!(store.used(), 0);
        assert_eq!(store.take(), kept, "comes back once its packets are gone");
    }

    /// Fills a buffer with packets of a session and delivers all except the first.
    fn pin(store: &mut Store, used: &mut [u32], any: (Owner, Inner)) -> u32 {
        let ids: Vec<u32> = (0..44)
            .map(|i| store.add(used[0], i * 1400..(i + 1) * 1400, any, Ecn::NotEct))
            .collect();
        store.settle(used);
        ids[1..].iter().for_each(|id| store.free(*id));
        ids[0]
    }

    #[test]
    fn a_session_that_pins_buffers_with_single_packets_runs_out_of_its_own_quota() {
        let mut store = Store::new(Share::whole(CAPACITY), Instant::ZERO);
        let hostile = owner(&mut store);
        let mut used = [store.take()];
        let mut held = std::collections::VecDeque::new();
        for _ in 0..16_384 {
            held.push_back(pin(&mut store, &mut used, hostile));
            while let Some(account) = store.over() {
                assert_eq!(account, hostile.0.account);
                store.free(held.pop_front().expect("it holds something"));
            }
            assert!(store.used() <= QUOTA, "{} bytes are pinned", store.used());
        }
        let memory = store.large.buffers.iter().chain(&store.small.buffers);
        let memory: usize = memory.map(|buffer| buffer.len()).sum();
        assert!(memory as u64 <= 2 * QUOTA, "{memory}");
        held.into_iter().for_each(|id| store.free(id));
        assert_eq!(store.used(), 0);
        let mut now = Instant::ZERO;
        for _ in 0..40 {
            now += TRIM_EVERY;
            store.trim(now);
        }
        assert_eq!(
            store.due(),
            Instant::FAR_FUTURE,
            "what is not needed is given back"
        );
    }

    #[test]
    fn when_all_hold_too_much_it_is_the_one_that_holds_most() {
        let mut store = Store::new(Share::whole(CAPACITY), Instant::ZERO);
        let accounts: Vec<_> = (0..6).map(|_| store.open_account()).collect();
        for account in &accounts {
            store.charge(*account, 42 << 20);
        }
        assert_eq!(store.over(), None, "there is room");
        store.charge(accounts[4], 5 << 20);
        assert_eq!(store.over(), Some(accounts[4]));
        store.discharge(accounts[4], 10 << 20);
        assert_eq!(store.over(), None);
        store.charge(accounts[2], 7 << 20);
        assert_eq!(store.over(), Some(accounts[2]), "more than one may have");
    }
}
