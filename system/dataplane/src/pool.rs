//! Buffers of the sending side: what applications sent, until it has gone and need not be kept any
//! more.
//!
//! Buffers are of a few sizes, so that a small packet takes little: a packet is read into one
//! place, and moves to a buffer that suits it. Only those that need the largest one stay where they
//! were read. What sessions hold is counted in bytes of buffers; who has to give some up is decided
//! in [`super::sessions`].
//!
//! Cost: O(1) a packet and a copy of those below 16 KB; nothing is allocated while as many buffers
//! are in use as a moment ago. Memory that was not needed for ten seconds is given back by half.

use hawser_linux::memory::give_back;
use hawser_linux::tun::READ_LEN;
use hawser_units::{Duration, Instant};

use super::share::Share;

/// Bytes of the buffers of each size: a small packet, one of a network's size, some joined ones,
/// and the most that one call reads.
const SIZES: [usize; 4] = [256, 2_048, 16_384, READ_LEN];
/// The upper bits of a buffer's number are its size.
const NUMBER_BITS: u32 = 30;
/// Between two looks for memory that is not needed.
pub(super) const TRIM_EVERY: Duration = Duration::from_secs(10);
/// So much unused memory is not worth a look: eight of the largest buffers. Whatever is left unused
/// here becomes resident bit by bit, as larger packets come to lie in it. Units: bytes.
pub(super) const SPARE: u64 = 512 << 10;

/// Names a buffer.
pub(super) type BufferId = u32;

/// Buffers of one size.
#[derive(Default)]
pub(super) struct Shelf {
    /// By number; empty boxes have no memory.
    pub(super) buffers: Vec<Box<[u8]>>,
    free: Vec<u32>,
    /// Numbers without memory.
    bare: Vec<u32>,
    /// The fewest that were free since the last look.
    least_free: usize,
}

/// All buffers of the sending side.
pub(super) struct Pool {
    shelves: [Shelf; SIZES.len()],
    /// Where the next packet is read to.
    reading: Box<[u8]>,
    share: Share,
    trimmed: Instant,
}

impl Pool {
    /// `share`: bytes that may be in use.
    pub(super) fn new(share: Share, now: Instant) -> Self {
        Self {
            shelves: Default::default(),
            reading: vec![0; READ_LEN].into_boxed_slice(),
            share,
            trimmed: now,
        }
    }

    /// The place that the next packet is read to.
    pub(super) fn reading(&mut self) -> &mut [u8] {
        &mut self.reading
    }

    /// Bytes that a packet of `len` bytes takes.
    pub(super) fn cost_of(len: usize) -> u64 {
        SIZES[shelf_for(len)] as u64
    }

    /// Bytes that a buffer takes.
    pub(super) fn cost(id: BufferId) -> u64 {
        SIZES[shelf_of(id)] as u64
    }

    /// Whether so many bytes more are too much.
    pub(super) fn lacks(&self, cost: u64) -> bool {
        self.share.lacks(cost)
    }

    /// Bytes in use.
    pub(super) fn used(&self) -> u64 {
        self.share.used()
    }

    /// Takes a buffer for the packet that was read, of `len` bytes: [`Self::fill`] puts it there.
    pub(super) fn reserve(&mut self, len: usize) -> BufferId {
        let at = shelf_for(len);
        let number = self.shelves[at].take(SIZES[at]);
        self.share.take(SIZES[at] as u64);
        (at as u32) << NUMBER_BITS | number
    }

    /// Moves the packet that was read, of `len` bytes, to the buffer that was reserved for it.
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

    /// When memory may be given back.
    pub(super) fn due(&self) -> Instant {
        if self.spare() <= SPARE {
            return Instant::FAR_FUTURE;
        }
        self.trimmed + TRIM_EVERY
    }

    /// Gives memory back that was not needed of late.
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

    /// Bytes of memory that nobody uses.
    pub(super) fn spare(&self) -> u64 {
        let spare = |(shelf, size): (&Shelf, usize)| (shelf.spare() * size) as u64;
        self.shelves.iter().zip(SIZES).map(spare).sum()
    }
}

impl Shelf {
    /// Takes a buffer, which must always be asked for with the same size.
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

    /// Buffers that nobody uses.
    pub(super) fn spare(&self) -> usize {
        self.free.len()
    }

    /// Gives the memory of half of the buffers back that were not needed since the last call.
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

    /// A packet of `len` bytes that are all `byte`.
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
        // It ends, and its memory is not needed either.
        for _ in 0..10 {
            now += TRIM_EVERY;
            pool.trim(now);
        }
        assert!(memory(&pool) <= SPARE, "{}", memory(&pool));
        assert_eq!(pool.due(), Instant::FAR_FUTURE);
    }
}
