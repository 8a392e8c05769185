//! Which queue of a TUN interface a packet goes to.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use super::assembly::{Assembly, If, Register, Width};
use super::kernel::{Place, load};

/// Chooses a queue by the destination of an IP packet: its last bits, modulo the count of queues.
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
    use Register::{R0, R1, R6};
    let mut code = Assembly::default();
    code.copy(R6, R1)
        .load_packet(Width::Byte, 0)
        .and(R0, 0xf0)
        .jump_if(If::Equal, R0, 0x60, "version 6")
        .load_packet(Width::Word, DESTINATION_V4)
        .jump("choose");
    code.label("version 6")
        .load_packet(Width::Word, LAST_OF_DESTINATION_V6);
    code.label("choose")
        .and(R0, hosts.cast_signed())
        .modulo(R0, queues.max(1).cast_signed())
        .leave();
    code.finish()
}

/// RFC 791 section 3.1.
const DESTINATION_V4: i32 = 16;
/// RFC 8200 section 3: the last four bytes of the header.
const LAST_OF_DESTINATION_V6: i32 = 36;
