//! Chooses the queue of a TUN interface for each packet.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use super::assembly::{Assembly, If, Register, Width};
use super::kernel::{AttachPoint, load};

/// Chooses a queue by the destination of an IP packet: its last bits modulo the number of queues;
/// or by its mark, if that is a [`queue_mark`].
///
/// By default the kernel distributes flows by a hash of their addresses and ports, and by the
/// queues that have sent recently.
#[derive(Debug)]
pub struct QueueChoice {
    program: OwnedFd,
}

impl QueueChoice {
    /// Creates a choice among this number of queues by the bits `hosts` of the destination; for
    /// IPv6, its last 32 bits are used.
    ///
    /// # Errors
    /// Privileges (`CAP_BPF`) are missing, or the kernel lacks such programs.
    pub fn new(queues: u32, hosts: u32) -> io::Result<Self> {
        let program = load(AttachPoint::Packet, &program(queues, hosts))?;
        Ok(Self { program })
    }
}

impl AsFd for QueueChoice {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.program.as_fd()
    }
}

fn program(queues: u32, hosts: u32) -> Vec<u64> {
    use Register::{R0, R1, R6, R7};
    let mut code = Assembly::default();
    code.copy(R6, R1)
        .load(Width::Word, R7, R6, MARK_OF_PACKET)
        .copy(R0, R7)
        .and(R0, !0xff)
        .jump_if(If::NotEqual, R0, queue_mark(0).cast_signed(), "unmarked")
        .copy(R0, R7)
        .and(R0, 0xff)
        .jump("modulo");
    code.label("unmarked")
        .load_packet(Width::Byte, 0)
        .and(R0, 0xf0)
        .jump_if(If::Equal, R0, 0x60, "version 6")
        .load_packet(Width::Word, DESTINATION_V4)
        .jump("choose");
    code.label("version 6")
        .load_packet(Width::Word, LAST_OF_DESTINATION_V6);
    code.label("choose").and(R0, hosts.cast_signed());
    code.label("modulo")
        .modulo(R0, queues.max(1).cast_signed())
        .leave();
    code.finish()
}

/// Returns the mark of packets for a queue other than that of their destination. Its upper half
/// differs from all other marks of Hawser.
#[must_use]
pub const fn queue_mark(queue: u8) -> u32 {
    0x4851_0000 | queue as u32
}

/// Offset in `struct __sk_buff` (linux/bpf.h).
const MARK_OF_PACKET: i16 = 8;
/// RFC 791 section 3.1.
const DESTINATION_V4: i32 = 16;
/// RFC 8200 section 3: the last four bytes of the header.
const LAST_OF_DESTINATION_V6: i32 = 36;
