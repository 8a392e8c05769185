//! A video and a replayed capture over a socket.

use std::net::{SocketAddr, UdpSocket};

use hawser_linux::clock;
use hawser_netem::capture::{Origin, Replay};
use hawser_netem::sender::Sender;
use hawser_netem::video::Video;
use hawser_units::Instant;

use super::datagrams::{HEADER, MIN_SLEEP, Source, Tally, mark, stamp};
use super::{Context, Finding, TIMEOUT};

impl Source for Video {
    fn send(&mut self, context: &Context, socket: &UdpSocket, to: SocketAddr) -> anyhow::Result<()> {
        send(self, context, socket, to)
    }

    fn finding(&self, tally: Tally, end: Instant) -> Finding {
        Finding::of_video(self.playback(&tally.into_arrivals(), end))
    }
}

/// A replay with the origin of its datagrams.
pub(super) struct Captured {
    pub(super) replay: Replay,
    pub(super) origin: Origin,
    /// End of the datagrams that count.
    pub(super) settled: Instant,
}

impl Source for Captured {
    fn send(&mut self, context: &Context, socket: &UdpSocket, to: SocketAddr) -> anyhow::Result<()> {
        // A server's side starts when it knows the client's address, and keeps the intervals.
        self.replay.start_at(clock::now());
        send(&mut self.replay, context, socket, to)
    }

    fn finding(&self, tally: Tally, _end: Instant) -> Finding {
        let sent = self.replay.count_before(self.settled);
        Finding::of_capture(&self.origin, sent, tally.into_delays())
    }
}

/// Sends each datagram when it is due, until the last one or the end of the run.
fn send(
    sender: &mut impl Sender,
    context: &Context,
    socket: &UdpSocket,
    to: SocketAddr,
) -> anyhow::Result<()> {
    let mut buffer = vec![0; 2048];
    let mut marked = None;
    while let Some(due) = sender.poll_timeout() {
        let now = clock::now();
        if context.period.is_over() {
            break;
        }
        if due > now {
            // In steps, because a run may end during a pause of a capture.
            std::thread::sleep(due.since(now).clamp(MIN_SLEEP, TIMEOUT));
            continue;
        }
        while let Some(part) = sender.poll_transmit(now) {
            if let Some(layer) = part.layer.filter(|layer| marked != Some(*layer)) {
                mark(socket, layer)?;
                marked = Some(layer);
            }
            let datagram = &mut buffer[..HEADER.max(part.bytes as usize)];
            stamp(datagram, part.number, now);
            // A full buffer or an unreachable network drops the datagram, as it would for an
            // application.
            let _ = socket.send_to(datagram, to);
        }
    }
    Ok(())
}
