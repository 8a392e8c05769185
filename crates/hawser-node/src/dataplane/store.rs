//! Where received packets lie until they are delivered.
//!
//! The kernel fills buffers of 64 KB with up to 44 datagrams each. Packets in order leave from there without a copy. What the resequencer
//! holds back either keeps its buffer, if it is a large part of it, or moves to a small one, so that a few late packets cannot pin much memory.

use std::ops::Range;

use hawser_wire::data::Inner;
use hawser_wire::inner::Ecn;

use super::SessionId;

/// Bytes of a receive buffer: the most that the kernel joins.
pub(super) const BUFFER: usize = 65_536;
/// Held packets that together are smaller than this leave their buffer.
const WORTH_KEEPING: usize = 16 * 1024;
/// A packet larger than this keeps its buffer.
const SMALL: usize = 2_048;

/// One packet.
#[derive(Clone, Copy, Debug)]
pub(super) struct Packet {
    buffer: u32,
    from: u32,
    len: u32,
    /// Of which session.
    pub(super) session: SessionId,
    /// Its inner header.
    pub(super) inner: Inner,
    /// What its outer packet was marked with.
    pub(super) outer_ecn: Ecn,
    held: bool,
}

/// Buffers and the packets in them.
pub(super) struct Store {
    large: Vec<(Box<[u8]>, u32)>,
    free_large: Vec<u32>,
    small: Vec<Box<[u8]>>,
    free_small: Vec<u32>,
    packets: Vec<Packet>,
    free_packets: Vec<u32>,
    fresh: Vec<u32>,
}

/// Marks a buffer number as that of a small buffer.
const IS_SMALL: u32 = 1 << 31;

impl Store {
    pub(super) fn new() -> Self {
        Self {
            large: Vec::new(),
            free_large: Vec::new(),
            small: Vec::new(),
            free_small: Vec::new(),
            packets: Vec::new(),
            free_packets: Vec::new(),
            fresh: Vec::new(),
        }
    }

    /// Takes a large buffer for the kernel to fill.
    pub(super) fn take(&mut self) -> u32 {
        self.free_large.pop().unwrap_or_else(|| {
            self.large.push((vec![0; BUFFER].into_boxed_slice(), 0));
            self.large.len() as u32 - 1
        })
    }

    /// The bytes of a large buffer.
    pub(super) fn large(&mut self, buffer: u32) -> &mut [u8] {
        &mut self.large[buffer as usize].0
    }

    /// Several large buffers at once, which must differ and be in ascending order.
    pub(super) fn large_many<'a>(&'a mut self, wanted: &'a [u32]) -> impl Iterator<Item = &'a mut [u8]> {
        let mut rest = self.large.as_mut_slice();
        let mut start = 0;
        wanted.iter().map(move |number| {
            let (_, tail) = std::mem::take(&mut rest).split_at_mut(*number as usize - start);
            let (first, tail) = tail.split_first_mut().expect("the buffer exists");
            start = *number as usize + 1;
            rest = tail;
            &mut *first.0
        })
    }

    /// Notes a packet in a large buffer.
    pub(super) fn add(
        &mut self,
        buffer: u32,
        range: Range<usize>,
        (session, inner): (SessionId, Inner),
        outer_ecn: Ecn,
    ) -> u32 {
        self.large[buffer as usize].1 += 1;
        let id = self.note(Packet {
            buffer,
            from: range.start as u32,
            len: range.len() as u32,
            session,
            inner,
            outer_ecn,
            held: true,
        });
        self.fresh.push(id);
        id
    }

    /// Notes a copy of a packet that came in no buffer; at most [`hawser_wire::parity::MAX_SYMBOL`] bytes.
    pub(super) fn add_copy(&mut self, bytes: &[u8], (session, inner): (SessionId, Inner)) -> u32 {
        let number = self.take_small();
        self.small[number as usize][..bytes.len()].copy_from_slice(bytes);
        self.note(Packet {
            buffer: number | IS_SMALL,
            from: 0,
            len: bytes.len() as u32,
            session,
            inner,
            outer_ecn: Ecn::NotEct,
            held: true,
        })
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
            0 => &self.large[packet.buffer as usize].0[from..to],
            _ => &self.small[(packet.buffer & !IS_SMALL) as usize][from..to],
        }
    }

    pub(super) fn bytes_mut(&mut self, id: u32) -> &mut [u8] {
        let packet = self.packets[id as usize];
        let (from, to) = (packet.from as usize, (packet.from + packet.len) as usize);
        match packet.buffer & IS_SMALL {
            0 => &mut self.large[packet.buffer as usize].0[from..to],
            _ => &mut self.small[(packet.buffer & !IS_SMALL) as usize][from..to],
        }
    }

    /// Frees a delivered or refused packet.
    pub(super) fn free(&mut self, id: u32) {
        let packet = &mut self.packets[id as usize];
        packet.held = false;
        let buffer = packet.buffer;
        self.free_packets.push(id);
        self.leave(buffer);
    }

    fn leave(&mut self, buffer: u32) {
        if buffer & IS_SMALL != 0 {
            self.free_small.push(buffer & !IS_SMALL);
        } else {
            self.large[buffer as usize].1 -= 1;
        }
    }

    /// Ends a batch that used the large buffers `used`: moves or keeps what is held, and gives each buffer that is free back (to `used`, in
    /// ascending order); kept ones are replaced.
    pub(super) fn settle(&mut self, used: &mut [u32]) {
        if !self.fresh.is_empty() {
            let fresh = std::mem::take(&mut self.fresh);
            for buffer in used.iter_mut() {
                self.settle_one(buffer, &fresh);
            }
            self.fresh = fresh;
            self.fresh.clear();
            used.sort_unstable();
        }
        // Kept buffers come back to the free list once their last packet is gone: looked for only when new ones are needed.
        if self.free_large.is_empty() && self.large.len() > used.len() {
            let free = |number: &u32| self.large[*number as usize].1 == 0 && !used.contains(number);
            self.free_large = (0..self.large.len() as u32).filter(free).collect();
        }
    }

    fn settle_one(&mut self, buffer: &mut u32, fresh: &[u32]) {
        if self.large[*buffer as usize].1 == 0 {
            return;
        }
        let here = |packet: &Packet| packet.held && packet.buffer == *buffer;
        let mut held: Vec<u32> = fresh
            .iter()
            .copied()
            .filter(|id| here(&self.packets[*id as usize]))
            .collect();
        // A number that was freed and given out again within the batch stands there twice.
        held.sort_unstable();
        held.dedup();
        let bytes: usize = held
            .iter()
            .map(|id| self.packets[*id as usize].len as usize)
            .sum();
        let fits = held
            .iter()
            .all(|id| self.packets[*id as usize].len as usize <= SMALL);
        if bytes >= WORTH_KEEPING || !fits {
            *buffer = self.take();
            return;
        }
        for id in held {
            self.move_to_small(id);
        }
    }

    fn take_small(&mut self) -> u32 {
        self.free_small.pop().unwrap_or_else(|| {
            self.small.push(vec![0; SMALL].into_boxed_slice());
            self.small.len() as u32 - 1
        })
    }

    fn move_to_small(&mut self, id: u32) {
        let number = self.take_small();
        let packet = &mut self.packets[id as usize];
        let (from, to) = (packet.from as usize, (packet.from + packet.len) as usize);
        let old = packet.buffer;
        self.small[number as usize][..to - from].copy_from_slice(&self.large[old as usize].0[from..to]);
        packet.buffer = number | IS_SMALL;
        packet.from = 0;
        self.leave(old);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hawser_wire::data::Kind;

    const ANY: (SessionId, Inner) = (SessionId(1), Inner::plain(Kind::Packet));

    #[test]
    fn a_few_held_packets_move_and_their_buffer_is_used_again() {
        let mut store = Store::new();
        let mut used = [store.take(), store.take()];
        store.large(used[0])[10..14].copy_from_slice(b"held");
        let id = store.add(used[0], 10..14, ANY, Ecn::NotEct);
        let gone = store.add(used[1], 0..4, ANY, Ecn::NotEct);
        store.free(gone);
        let before = used;
        store.settle(&mut used);
        assert_eq!(used, before);
        store.large(used[0]).fill(0);
        assert_eq!(store.bytes(id), b"held");
        store.free(id);
    }

    #[test]
    fn a_buffer_full_of_held_packets_is_kept_and_replaced() {
        let mut store = Store::new();
        let mut used = [store.take()];
        let kept = used[0];
        let ids: Vec<u32> = (0..20)
            .map(|i| store.add(kept, i * 1400..(i + 1) * 1400, ANY, Ecn::NotEct))
            .collect();
        store.settle(&mut used);
        assert_ne!(used[0], kept);
        ids.into_iter().for_each(|id| store.free(id));
        store.settle(&mut used);
        assert_eq!(store.take(), kept, "comes back once its packets are gone");
    }
}
