//! A video as datagrams, each marked with the layer of its picture.

use std::net::{SocketAddr, UdpSocket};

use hawser_linux::clock;
use hawser_netem::video::Video;
use hawser_units::Instant;

use super::datagrams::{HEADER, LEAST_SLEEP, Source, Tally, mark, stamp};
use super::{Context, Finding};

impl Source for Video {
    fn send(&mut self, context: &Context, socket: &UdpSocket, to: SocketAddr) -> anyhow::Result<()> {
        let mut buffer = vec![0; 2048];
        let mut layer = None;
        while let Some(due) = self.poll_timeout() {
            let now = clock::now();
            if context.period.is_over() {
                break;
            }
            if due > now {
                std::thread::sleep(due.since(now).max(LEAST_SLEEP));
                continue;
            }
            while let Some(part) = self.poll_transmit(now) {
                if layer != Some(part.layer) {
                    mark(socket, part.layer)?;
                    layer = Some(part.layer);
                }
                let datagram = &mut buffer[..HEADER.max(part.bytes as usize)];
                stamp(datagram, part.number, now);
                // A full buffer or an unreachable network loses the datagram, as it would for an
                // application.
                let _ = socket.send_to(datagram, to);
            }
        }
        Ok(())
    }

    fn finding(&self, tally: Tally, end: Instant) -> Finding {
        Finding::of_video(self.shown(&tally.into_arrivals(), end))
    }
}
