//! Datagrams at a constant rate.

use std::net::{SocketAddr, UdpSocket};

use hawser_linux::clock;
use hawser_units::{Bytes, Duration, Instant};

use super::datagrams::{MIN_SLEEP, Source, Tally, mark, stamp};
use super::{Context, Finding};

/// Parameters of the stream.
#[derive(Clone, Copy, Debug)]
pub(super) struct Stream {
    /// Interval between datagrams.
    pub(super) gap: Duration,
    /// UDP payload of each datagram. Units: bytes.
    pub(super) size: Bytes,
    /// Number of layers to which datagrams belong in turn; 0 for datagrams without marks.
    pub(super) layers: u8,
    /// Number of datagrams that count.
    pub(super) asked_for: u64,
}

impl Source for Stream {
    fn send(&mut self, context: &Context, socket: &UdpSocket, to: SocketAddr) -> anyhow::Result<()> {
        let mut datagram = vec![0; usize::try_from(self.size.0)?];
        let mut sent = 0u64;
        let mut due = clock::now();
        while !context.period.is_over() {
            let now = clock::now();
            if due > now {
                std::thread::sleep(due.since(now).max(MIN_SLEEP));
                continue;
            }
            stamp(&mut datagram, sent, now);
            if self.layers > 0 {
                mark(socket, u8::try_from(sent % u64::from(self.layers))?)?;
            }
            // A full buffer or an unreachable network drops the datagram, as it would for an
            // application.
            let _ = socket.send_to(&datagram, to);
            sent += 1;
            if now < context.period.settled {
                self.asked_for = sent;
            }
            due += self.gap;
        }
        Ok(())
    }

    fn finding(&self, tally: Tally, _end: Instant) -> Finding {
        Finding::of_datagrams(self.asked_for, tally.into_delays(), self.layers)
    }
}
