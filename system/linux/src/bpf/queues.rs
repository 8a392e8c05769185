//! Which queue of a TUN interface a packet goes to.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use super::assembly::{Assembly, If, Register, Width};
use super::kernel::{Place, load};

/// Chooses a queue by the destination of an IP packet: its last bits, modulo the count of queues;
/// or by its mark, where that is a [`queue_mark`].
///
/// Without it the kernel spreads flows by a hash of their addresses and ports, and by what queues
/// have written of late.
#[derive(Debug)]
pub struct QueueChoice {
    program: OwnedFd,
}

impl QueueChoice {
    /// Prepares to choose among so many queues by the bits `hosts` of the destination: of IPv6, the
    /// last 32 count.
    ///
    /// # Errors
    /// Rights (`CAP_BPF`) are missing, or the kernel has no such programs.
    pub fn new(queues: u32, hosts: u32) -> io::Result<Self> {
        let program = load(Place::Packet, &program(queues, hosts))?;
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

/// The mark of packets for a queue whose destination does not tell it. The upper half is like no
/// other mark of Hawser.
#[must_use]
pub const fn queue_mark(queue: u8) -> u32 {
    0x4851_0000 | queue as u32
}

/// Of `struct __sk_buff` (linux/bpf.h).
const MARK_OF_PACKET: i16 = 8;
/// RFC 791 section 3.1.
const DESTINATION_V4: i32 = 16;
/// RFC 8200 section 3: the last four bytes of the header.
const LAST_OF_DESTINATION_V6: i32 = 36;
