//! Queues of peers with a rate limit in one direction.

use std::collections::{BTreeMap, BTreeSet};

use hawser_proto::limit::Gate;
use hawser_units::{Instant, Rate};

use crate::peers::PeerId;

/// A gate, and the time when its next packet may pass.
type Due = (Gate<Box<[u8]>>, Instant);

/// Gates of one direction. Peers without a limit have none; their packets are not copied.
#[derive(Default)]
pub(crate) struct Gates {
    all: BTreeMap<PeerId, Due>,
    due: BTreeSet<(Instant, PeerId)>,
    dropped: u64,
}

impl Gates {
    /// Sets the limits of all peers that have one. Packets that wait at gates that are removed are
    /// dropped.
    pub(crate) fn set(&mut self, limits: impl Iterator<Item = (PeerId, Rate)>) {
        let mut before = std::mem::take(&mut self.all);
        self.due.clear();
        for (peer, rate) in limits {
            let existing = before.remove(&peer).map(|(gate, _)| gate);
            let mut gate = existing.unwrap_or_else(|| Gate::new(rate));
            gate.set_rate(rate);
            self.all.insert(peer, (gate, Instant::FAR_FUTURE));
            self.note_due(peer);
        }
        self.dropped += before.values().map(|(gate, _)| gate.dropped()).sum::<u64>();
    }

    /// Queues a packet of a peer, if the peer has a limit; returns false otherwise. `len` is the
    /// length that counts against the limit.
    pub(crate) fn handle_packet(&mut self, peer: PeerId, packet: &[u8], len: usize) -> bool {
        let Some((gate, due)) = self.all.get_mut(&peer) else {
            return false;
        };
        let is_first = *due == Instant::FAR_FUTURE;
        let _dropped = gate.handle_packet(packet.into(), len as u64);
        if is_first {
            self.note_due(peer);
        }
        true
    }

    /// Returns the next packet that may pass now.
    pub(crate) fn poll_packet(&mut self, now: Instant) -> Option<(PeerId, Box<[u8]>)> {
        while let Some((due, peer)) = self.due.first().copied().filter(|(due, _)| *due <= now) {
            let gate = self.all.get_mut(&peer);
            let packet = gate.and_then(|(gate, _)| gate.poll_packet(now));
            self.note_due(peer);
            if let Some(packet) = packet {
                return Some((peer, packet));
            }
            debug_assert!(!self.due.contains(&(due, peer)), "later than now");
        }
        None
    }

    /// Returns when a packet may pass.
    pub(crate) fn due(&self) -> Instant {
        self.due.first().map_or(Instant::FAR_FUTURE, |(due, _)| *due)
    }

    /// Returns the number of packets dropped because of a limit.
    pub(crate) fn dropped(&self) -> u64 {
        self.dropped + self.all.values().map(|(gate, _)| gate.dropped()).sum::<u64>()
    }

    fn note_due(&mut self, peer: PeerId) {
        let Some((gate, due)) = self.all.get_mut(&peer) else {
            return;
        };
        let next = gate.poll_timeout();
        if next == *due {
            return;
        }
        self.due.remove(&(*due, peer));
        *due = next;
        if next != Instant::FAR_FUTURE {
            self.due.insert((next, peer));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hawser_units::Duration;

    #[test]
    fn packets_of_a_peer_with_a_limit_wait_and_those_of_others_do_not() {
        let mut gates = Gates::default();
        let rate = Rate::from_mbps(1);
        gates.set([(1, rate), (2, Rate::ZERO)].into_iter());
        assert!(!gates.handle_packet(3, &[0; 1000], 1000), "no limit");
        for number in 0..40 {
            assert!(gates.handle_packet(1, &[number; 1000], 1000));
            assert!(gates.handle_packet(2, &[number; 1000], 1000));
        }
        assert_eq!(gates.dropped(), 40, "a rate of zero shuts");
        let (mut now, mut passed) = (Instant::from_nanos(1_000_000_000), 0);
        let begun = now;
        while gates.due() != Instant::FAR_FUTURE {
            now = now.max(gates.due());
            while let Some((peer, packet)) = gates.poll_packet(now) {
                assert_eq!((peer, packet[0]), (1, passed));
                passed += 1;
            }
        }
        assert_eq!(passed, 40);
        // 320,000 bits at 1 Mbit/s, less the permitted burst.
        assert!(
            now.since(begun) > Duration::from_millis(200),
            "{:?}",
            now.since(begun)
        );
        gates.set([(1, rate)].into_iter());
        assert_eq!(gates.dropped(), 40);
    }
}
