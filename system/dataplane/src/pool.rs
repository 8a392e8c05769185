//! Buffers of the sending side, which store packets of applications until they are sent and no
//! longer needed for retransmission.
//!
//! Buffers have a few sizes, so that a small packet takes little memory: a packet is read into a
//! common buffer, and moved to one of suitable size. Only packets that need the largest size remain
//! where they were read. The memory of sessions is counted in bytes of buffers; [`super::sessions`]
//! decides which session must release some.
//!
//! Cost: O(1) per packet and a copy of those below 16 KB; nothing is allocated while the number of
//! used buffers does not grow. Half of the memory that was unused for 10 s is released.

use hawser_linux::memory::give_back;
use hawser_linux::tun::READ_LEN;
use hawser_units::{Duration, Instant};

use super::share::Share;

/// Bytes of the buffers of each size: a small packet, one of a network's size, some joined ones,
/// and the most that one call reads. Source: our choice, each eight times the one before as far as
/// possible; with fewer sizes, small packets take more memory, with more, memory is left unused in
/// more of them.
const SIZES: [usize; 4] = [256, 2_048, 16_384, READ_LEN];
/// Bits of a buffer's number below those of its size. Source: [`SIZES`] has four sizes, which take
/// two bits of 32.
const NUMBER_BITS: u32 = 30;
/// Interval between searches for unused memory. Source: our choice; more frequent releases let the
/// kernel zero the same pages again for each burst.
pub(super) const TRIM_EVERY: Duration = Duration::from_secs(10);
/// Amount of unused memory that is not released. Unused memory becomes resident gradually, as
/// larger packets are stored in it. Source: eight buffers of 64 KiB. Units: bytes.
pub(super) const SPARE: u64 = 512 << 10;

/// Number of a buffer.
pub(super) type BufferId = u32;

/// Buffers of one size.
#[derive(Default)]
pub(super) struct Shelf {
    /// Buffers by number; empty boxes have no memory.
    pub(super) buffers: Vec<Box<[u8]>>,
    free: Vec<u32>,
    /// Numbers of buffers without memory.
    bare: Vec<u32>,
    /// Minimum number of free buffers since the last sample.
    least_free: usize,
}

/// Buffers of the sending side.
pub(super) struct Pool {
    shelves: [Shelf; SIZES.len()],
    /// Buffer into which the next packet is read.
    reading: Box<[u8]>,
    share: Share,
    trimmed: Instant,
}

impl Pool {
    /// Creates the pool; `share` limits the bytes in use.
    pub(super) fn new(share: Share, now: Instant) -> Self {
        Self {
            shelves: Default::default(),
            reading: vec![0; READ_LEN].into_boxed_slice(),
            share,
            trimmed: now,
        }
    }

    /// Returns the buffer into which the next packet is read.
    pub(super) fn reading(&mut self) -> &mut [u8] {
        &mut self.reading
    }

    /// Returns the bytes of memory that a packet of `len` bytes uses.
    pub(super) fn cost_of(len: usize) -> u64 {
        SIZES[shelf_for(len)] as u64
    }

    /// Returns the bytes of memory that a buffer uses.
    pub(super) fn cost(id: BufferId) -> u64 {
        SIZES[shelf_of(id)] as u64
    }

    /// Returns whether `cost` bytes more would exceed the limit.
    pub(super) fn lacks(&self, cost: u64) -> bool {
        self.share.lacks(cost)
    }

    /// Returns the bytes in use.
    pub(super) fn used(&self) -> u64 {
        self.share.used()
    }

    /// Reserves a buffer for the read packet of `len` bytes; [`Self::fill`] stores the packet.
    pub(super) fn reserve(&mut self, len: usize) -> BufferId {
        let at = shelf_for(len);
        let number = self.shelves[at].take(SIZES[at]);
        self.share.take(SIZES[at] as u64);
        (at as u32) << NUMBER_BITS | number
    }

    /// Moves the read packet of `len` bytes to its reserved buffer.
    pub(super) fn fill(&mut self, id: BufferId, len: usize) {
        let at = shelf_of(id);
        let buffer = &mut self.shelves[at].buffers[number_of(id)];
        if at == SIZES.len() - 1 {
            std::mem::swap(buffer, &mut self.reading);
        } else {
            buffer[..len].copy_from_slice(&self.reading[..len]);
        }
    }

    pub(super) fn bytes(&self, id: BufferId) -> &[u8] {
        &self.shelves[shelf_of(id)].buffers[number_of(id)]
    }

    /// Takes a buffer back.
    pub(super) fn release(&mut self, id: BufferId) {
        self.shelves[shelf_of(id)].release(number_of(id) as u32);
        self.share.give_back(Self::cost(id));
    }

    /// Returns when memory may be released.
    pub(super) fn due(&self) -> Instant {
        if self.spare() <= SPARE {
            return Instant::FAR_FUTURE;
        }
        self.trimmed + TRIM_EVERY
    }

    /// Releases buffers that have been unused since the last call.
    pub(super) fn trim(&mut self, now: Instant) {
        if now < self.due() {
            return;
        }
        self.trimmed = now;
        for shelf in &mut self.shelves {
            shelf.trim();
        }
        give_back();
    }

    /// Returns the bytes of unused memory.
    pub(super) fn spare(&self) -> u64 {
        let spare = |(shelf, size): (&Shelf, usize)| (shelf.spare() * size) as u64;
        self.shelves.iter().zip(SIZES).map(spare).sum()
    }
}

impl Shelf {
    /// Takes a buffer; the size must be the same in all calls.
    pub(super) fn take(&mut self, size: usize) -> u32 {
        if let Some(number) = self.free.pop() {
            self.least_free = self.least_free.min(self.free.len());
            return number;
        }
        let memory = vec![0; size].into_boxed_slice();
        match self.bare.pop() {
            Some(number) => {
                self.buffers[number as usize] = memory;
                number
            }
            None => {
                self.buffers.push(memory);
                self.buffers.len() as u32 - 1
            }
        }
    }

    /// Takes a buffer back.
    pub(super) fn release(&mut self, number: u32) {
        self.free.push(number);
    }

    /// Returns the number of unused buffers.
    pub(super) fn spare(&self) -> usize {
        self.free.len()
    }

    /// Releases the memory of half of the buffers that were not needed since the last call.
    pub(super) fn trim(&mut self) {
        let surplus = self.least_free.min(self.free.len()).div_ceil(2);
        for number in self.free.drain(..surplus) {
            self.buffers[number as usize] = Box::default();
            self.bare.push(number);
        }
        self.least_free = self.free.len();
    }
}

fn shelf_for(len: usize) -> usize {
    SIZES[..SIZES.len() - 1].partition_point(|size| *size < len)
}

fn shelf_of(id: BufferId) -> usize {
    (id >> NUMBER_BITS) as usize
}

fn number_of(id: BufferId) -> usize {
    (id & ((1 << NUMBER_BITS) - 1)) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    const BEGIN: Instant = Instant::from_nanos(1_000_000_000);

    fn pool() -> Pool {
        Pool::new(Share::whole(1 << 20), BEGIN)
    }

    /// Stores a packet of `len` bytes that are all `byte`.
    fn put(pool: &mut Pool, len: usize, byte: u8) -> BufferId {
        pool.reading()[..len].fill(byte);
        let id = pool.reserve(len);
        pool.fill(id, len);
        id
    }

    #[test]
    fn a_packet_takes_a_buffer_of_its_size() {
        let mut pool = pool();
        for (len, cost) in [
            (60, 256),
            (256, 256),
            (257, 2_048),
            (1_510, 2_048),
            (9_000, 16_384),
            (60_000, READ_LEN as u64),
            (READ_LEN, READ_LEN as u64),
        ] {
            let before = pool.used();
            let id = put(&mut pool, len, len as u8);
            assert_eq!(pool.used() - before, cost);
            assert_eq!((Pool::cost(id), Pool::cost_of(len)), (cost, cost));
            assert!(pool.bytes(id)[..len].iter().all(|byte| *byte == len as u8));
            pool.release(id);
            assert_eq!(pool.used(), before);
        }
    }

    #[test]
    fn what_is_in_use_keeps_its_bytes() {
        let mut pool = pool();
        let ids: Vec<_> = (0..40_u8)
            .map(|n| {
                let len = [40, 1_400, 10_000, 40_000][usize::from(n % 4)];
                (n, len, put(&mut pool, len, n))
            })
            .collect();
        for (n, len, id) in ids {
            assert!(pool.bytes(id)[..len].iter().all(|byte| *byte == n), "{n}");
            pool.release(id);
        }
        assert_eq!(pool.used(), 0);
    }

    #[test]
    fn a_steady_stream_allocates_nothing_and_a_burst_is_forgotten() {
        let mut pool = Pool::new(Share::whole(1 << 30), BEGIN);
        let burst: Vec<_> = (0..1_000).map(|_| put(&mut pool, 60_000, 1)).collect();
        burst.into_iter().for_each(|id| pool.release(id));
        let memory = |pool: &Pool| pool.spare() + pool.used();
        assert!(memory(&pool) > 60_000_000);
        let mut now = BEGIN;
        for _ in 0..30 {
            now += TRIM_EVERY;
            let few: Vec<_> = (0..10).map(|_| put(&mut pool, 60_000, 1)).collect();
            let during = memory(&pool);
            few.into_iter().for_each(|id| pool.release(id));
            assert_eq!(memory(&pool), during);
            pool.trim(now);
        }
        assert!(memory(&pool) <= 10 * READ_LEN as u64, "{}", memory(&pool));
        // The flow ends, and its memory is no longer needed.
        for _ in 0..10 {
            now += TRIM_EVERY;
            pool.trim(now);
        }
        assert!(memory(&pool) <= SPARE, "{}", memory(&pool));
        assert_eq!(pool.due(), Instant::FAR_FUTURE);
    }
}
