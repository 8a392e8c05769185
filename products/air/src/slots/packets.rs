//! Buffers of packets that wait for their slots.

/// Origin of a kernel station's frame that waits for its slot.
#[derive(Clone, Copy, Debug)]
pub(super) struct Origin {
    /// Number that the station assigned to the frame.
    pub(super) cookie: u64,
    /// Index in `hwsim::RATES`.
    pub(super) rate: usize,
}

/// A packet in one of the driver's buffers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Packet(u32);

/// Buffers by number: an Ethernet frame, or a complete frame of a station with its origin.
#[derive(Default)]
pub(super) struct Packets {
    all: Vec<(Vec<u8>, Option<Origin>)>,
    free: Vec<u32>,
}

impl Packets {
    pub(super) fn put(&mut self, bytes: &[u8]) -> Packet {
        let number = self.free.pop().unwrap_or_else(|| {
            self.all.push((Vec::new(), None));
            u32::try_from(self.all.len() - 1).expect("queues have bounds")
        });
        let (buffer, origin) = &mut self.all[number as usize];
        buffer.clear();
        buffer.extend_from_slice(bytes);
        *origin = None;
        Packet(number)
    }

    pub(super) fn put_from(&mut self, bytes: &[u8], origin: Origin) -> Packet {
        let packet = self.put(bytes);
        self.all[packet.0 as usize].1 = Some(origin);
        packet
    }

    pub(super) fn get(&self, packet: Packet) -> &[u8] {
        &self.all[packet.0 as usize].0
    }

    pub(super) fn origin(&self, packet: Packet) -> Option<Origin> {
        self.all[packet.0 as usize].1
    }

    pub(super) fn release(&mut self, packet: Packet) {
        self.free.push(packet.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_are_used_again() {
        let mut packets = Packets::default();
        let first = packets.put(b"one");
        packets.release(first);
        let second = packets.put(b"two");
        assert_eq!((first, packets.get(second)), (second, &b"two"[..]));
        assert_eq!(packets.all.len(), 1);
    }
}
