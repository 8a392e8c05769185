//! Bounded queue of a connection that accepts no more data now; the oldest datagram is dropped
//! first.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// Datagrams in order of arrival.
///
/// A datagram that has waited long is worth less than the next one, because the tunnel has already
/// retransmitted its contents, or has started to. Cost: O(1) per datagram; memory bounded by
/// [`MAX`] and one datagram.
#[derive(Debug, Default)]
pub(super) struct Queue {
    waiting: VecDeque<(Instant, Vec<u8>)>,
    bytes: usize,
    dropped: u64,
}

impl Queue {
    /// Adds a datagram, and drops the oldest ones if there is no room.
    pub(super) fn push(&mut self, now: Instant, datagram: &[u8]) {
        self.bytes += datagram.len();
        self.waiting.push_back((now, datagram.to_vec()));
        while self.bytes > MAX {
            self.drop_oldest();
        }
    }

    /// Returns the oldest datagram that is not stale.
    pub(super) fn pop(&mut self, now: Instant) -> Option<Vec<u8>> {
        while let Some((since, _)) = self.waiting.front() {
            if now.saturating_duration_since(*since) <= STALE {
                let (_, datagram) = self.waiting.pop_front()?;
                self.bytes -= datagram.len();
                return Some(datagram);
            }
            self.drop_oldest();
        }
        None
    }

    /// Returns the number of dropped datagrams.
    pub(super) fn dropped(&self) -> u64 {
        self.dropped
    }

    fn drop_oldest(&mut self) {
        if let Some((_, datagram)) = self.waiting.pop_front() {
            self.bytes -= datagram.len();
            self.dropped += 1;
        }
    }
}

/// Maximum size of the queue; faster connections shorten the queue. Source: [`STALE`] at 32 Mbit/s.
/// Units: bytes.
const MAX: usize = 1 << 20;
/// Maximum wait of a datagram. TCP delivers nothing for a round trip when it retransmits a loss; a
/// datagram that has waited for a few of them is being retransmitted on another path. Source: our
/// choice, a few round trips of a cellular network; a longer one sends packets that another path
/// has already delivered, a shorter one drops what the connection would still deliver.
const STALE: Duration = Duration::from_millis(250);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn drops_the_oldest_where_there_is_no_room() {
        let (mut queue, now) = (Queue::default(), Instant::now());
        for number in 0..2_000_u32 {
            let mut datagram = vec![0; 1_024];
            datagram[..4].copy_from_slice(&number.to_be_bytes());
            queue.push(now, &datagram);
        }
        assert_eq!(queue.dropped(), 2_000 - 1_024);
        let first = queue.pop(now).unwrap();
        assert_eq!(first[..4], (2_000_u32 - 1_024).to_be_bytes());
        assert_eq!(queue.bytes, 1_023 * 1_024);
    }

    #[test]
    fn what_has_waited_long_is_not_sent() {
        let (mut queue, now) = (Queue::default(), Instant::now());
        queue.push(now, b"old");
        queue.push(now + STALE, b"new");
        let later = now + STALE + Duration::from_millis(1);
        assert_eq!(queue.pop(later).as_deref(), Some(&b"new"[..]));
        assert_eq!(queue.pop(later), None);
        assert_eq!((queue.dropped(), queue.bytes), (1, 0));
    }
}
