//! Writes packets to the TUN: consecutive packets of a flow are joined without copying their
//! payload.

use std::io::IoSlice;

use hawser_linux::tun::Tun;
use hawser_wire::frame::Format;
use hawser_wire::offload::{Coalescer, Join};

/// Pieces of one vectored write. Source: half of what the kernel takes (`UIO_MAXIOV` of
/// linux/include/uapi/linux/uio.h, 1,024).
const MAX_PIECES: usize = 512;

/// A packet for the TUN.
#[derive(Clone, Copy, Debug)]
pub struct Outgoing<'a> {
    /// Headers at the beginning of the packet.
    pub headers: &'a [u8],
    /// Number of bytes of the headers that are not in `bytes`.
    pub skip: usize,
    /// The packet, without `skip` bytes at its beginning.
    pub bytes: &'a [u8],
}

/// Joins packets and writes them to the TUN without copying their payload.
#[derive(Debug)]
pub struct Writer<'a> {
    tun: &'a Tun,
    coalescer: Coalescer,
    pieces: Vec<&'a [u8]>,
}

impl<'a> Writer<'a> {
    /// Creates a writer of packets in a format.
    #[must_use]
    pub fn new(tun: &'a Tun, format: Format) -> Self {
        Self {
            tun,
            coalescer: Coalescer::new(format, tun.takes_coalesced_udp()),
            pieces: Vec::new(),
        }
    }

    /// Adds the next packet. `partial` means that its transport checksum covers only the
    /// pseudo-header, or is known to be correct; only such packets are joined. `refused` counts
    /// packets that the TUN refuses. Returns the number of writes.
    pub fn push(&mut self, packet: Outgoing<'a>, partial: bool, refused: &mut u64) -> u64 {
        let mut writes = 0;
        if self.pieces.len() >= MAX_PIECES {
            writes += self.flush(refused);
        }
        loop {
            let len = packet.skip + packet.bytes.len();
            match self.coalescer.push(packet.headers, len, partial) {
                Join::Append(at) | Join::Open(at) => {
                    self.pieces.push(&packet.bytes[at - packet.skip..]);
                    return writes;
                }
                Join::Flush => writes += self.flush(refused),
            }
        }
    }

    /// Writes the packets joined so far. Returns the number of writes.
    pub fn flush(&mut self, refused: &mut u64) -> u64 {
        let Some((virtio, headers)) = self.coalescer.finish() else {
            return 0;
        };
        let mut slices = [IoSlice::new(&[]); MAX_PIECES + 2];
        slices[0] = IoSlice::new(&virtio);
        slices[1] = IoSlice::new(headers);
        for (slice, piece) in slices[2..].iter_mut().zip(&self.pieces) {
            *slice = IoSlice::new(piece);
        }
        let result = self.tun.write(&slices[..self.pieces.len() + 2]);
        if !matches!(result, Ok(true)) {
            *refused += self.pieces.len() as u64;
            tracing::trace!(?result, "TUN refused a packet");
        }
        self.pieces.clear();
        1
    }
}
