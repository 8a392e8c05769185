//! Declarations of programs about connected sockets: the eBPF part that reports them, and their
//! reception.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::AsFd;

use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use super::assembly::{Assembly, If, Register, Width};
use super::ring::Ring;
use super::setting::{LENGTH, SOCKET, VALUE, VALUE_END, set};

/// Option that declares a socket's future traffic: [`Rate`]. Source: `HAWSER_RATE` of
/// `include/hawser.h`.
pub const RATE: i32 = 3;

/// Declared traffic of a socket, as `struct hawser_rate` of `include/hawser.h`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rate {
    /// Average payload rate of TCP or UDP. Units: bit/s. Zero withdraws a declaration.
    pub bits_per_second: u32,
    /// Maximum burst. Units: bytes of payload.
    pub burst_bytes: u32,
    /// Time after sending during which a packet is useful; zero if unknown. Units: ms.
    pub longest_wait_ms: u32,
}

/// Declaration, and the flow to which it applies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Declared {
    /// The protocol's number: 6 for TCP, 17 for UDP.
    pub protocol: u8,
    /// The socket's own address.
    pub from: SocketAddr,
    /// Address to which it is connected.
    pub to: SocketAddr,
    /// Declared traffic.
    pub rate: Rate,
}

/// Receives declarations of programs.
#[derive(Debug)]
pub struct Declarations {
    ring: AsyncFd<Ring>,
}

impl Declarations {
    /// Starts listening. Must be called within a tokio runtime.
    pub(super) fn new(ring: Ring) -> io::Result<Self> {
        // SAFETY: the descriptor is open, and stays so and the same until the `AsyncFd` that owns
        // it is dropped.
        let ring = unsafe { AsyncFd::register_with_interest(ring, Interest::READABLE)? };
        Ok(Self { ring })
    }

    /// Waits for the next declaration. Cancel safe.
    ///
    /// # Errors
    /// The kernel no longer reports declarations.
    pub async fn next(&mut self) -> io::Result<Declared> {
        loop {
            let mut ready = self.ring.readable_mut().await?;
            match ready.get_inner_mut().take().map(read) {
                Some(Some(declared)) => return Ok(declared),
                Some(None) => {}
                None => ready.clear_ready(),
            }
        }
    }
}

/// Declares the future traffic of a connected socket, as any program can.
///
/// # Errors
/// `ENOPROTOOPT`: no `hawser up` with a hub is running here, or it cannot handle the option.
/// `ENOTCONN`: the socket is not connected. `EINVAL`: it is neither a TCP nor a UDP socket.
/// `EAGAIN`: the queue of declarations is full.
pub fn declare(socket: &impl AsFd, rate: Rate) -> io::Result<()> {
    let mut value = [0; VALUE_LEN];
    let fields = [rate.bits_per_second, rate.burst_bytes, rate.longest_wait_ms];
    for (place, field) in value.chunks_exact_mut(4).zip(fields) {
        place.copy_from_slice(&field.to_ne_bytes());
    }
    set(socket, RATE, &value)
}

/// Emits the code that handles [`RATE`], at the label "rate" of the program of [`super::options`],
/// with the context in `R6`; it jumps to the labels "pass", "refuse" with the error in `R1`, and
/// "done".
pub(super) fn answer(code: &mut Assembly, ring: &Ring) {
    use Register::{R0, R1, R2, R3, R4, R6, R7, R8, R10};
    // The kernel's buffer has at least 16 bytes, independent of the length.
    code.label("rate")
        .set(R1, -libc::EINVAL)
        .load(Width::Word, R2, R6, LENGTH)
        .set(R3, VALUE_LEN as i32)
        .jump_if_both(If::Greater, R3, R2, "refuse")
        .load(Width::Double, R7, R6, VALUE)
        .load(Width::Double, R8, R6, VALUE_END)
        .copy(R2, R7)
        .add(R2, VALUE_LEN as i32)
        .jump_if_both(If::Greater, R2, R8, "refuse");
    code.set(R2, 0);
    for offset in (0..RECORD as i16).step_by(8) {
        code.store(Width::Double, R10, RECORD_AT + offset, R2);
    }
    // Copy byte by byte, because the alignment of the value is unknown.
    for offset in 0..VALUE_LEN as i16 {
        code.load(Width::Byte, R2, R7, offset).store(
            Width::Byte,
            R10,
            RECORD_AT + RATE_AT as i16 + offset,
            R2,
        );
    }
    let tell = |code: &mut Assembly, from: i16, to: usize| {
        code.load(Width::Word, R2, R8, from)
            .store(Width::Word, R10, RECORD_AT + to as i16, R2);
    };
    code.load(Width::Double, R8, R6, SOCKET);
    tell(code, SOURCE_PORT, FROM_PORT_AT);
    tell(code, FAMILY, FAMILY_AT);
    code.jump_if(If::Equal, R2, libc::AF_INET, "of version 4")
        .jump_if(If::NotEqual, R2, libc::AF_INET6, "pass");
    for word in 0..4 {
        tell(code, SOURCE_V6 + 4 * word, FROM_AT + 4 * word as usize);
        tell(code, DESTINATION_V6 + 4 * word, TO_AT + 4 * word as usize);
    }
    code.jump("of a protocol").label("of version 4");
    tell(code, SOURCE_V4, FROM_AT);
    tell(code, DESTINATION_V4, TO_AT);
    code.label("of a protocol");
    tell(code, PROTOCOL, PROTOCOL_AT);
    code.jump_if(If::Equal, R2, libc::IPPROTO_UDP, "connected")
        .jump_if(If::NotEqual, R2, libc::IPPROTO_TCP, "refuse")
        .label("connected")
        .set(R1, -libc::ENOTCONN)
        .load(Width::Half, R2, R8, DESTINATION_PORT)
        .jump_if(If::Equal, R2, 0, "refuse")
        .store(Width::Half, R10, RECORD_AT + TO_PORT_AT as i16, R2)
        .set_map(R1, ring.number())
        .copy(R2, R10)
        .add(R2, i32::from(RECORD_AT))
        .set(R3, RECORD as i32)
        .set(R4, FORCE_WAKEUP)
        .call(RING_OUTPUT)
        .set(R1, -libc::EAGAIN)
        .jump_if(If::NotEqual, R0, 0, "refuse")
        .jump("done");
}

/// Parses a record; `None` if its socket is of no supported kind.
fn read(record: [u8; RECORD]) -> Option<Declared> {
    let word = |at: usize| record[at..].first_chunk().map(|word| u32::from_ne_bytes(*word));
    let address = |at: usize| -> Option<IpAddr> {
        Some(if word(FAMILY_AT)? == libc::AF_INET as u32 {
            Ipv4Addr::from(*record[at..].first_chunk::<4>()?).into()
        } else {
            Ipv6Addr::from(*record[at..].first_chunk::<16>()?).to_canonical()
        })
    };
    let from_port = u16::try_from(word(FROM_PORT_AT)?).ok()?;
    let to_port = u16::from_be_bytes(*record[TO_PORT_AT..].first_chunk()?);
    Some(Declared {
        protocol: u8::try_from(word(PROTOCOL_AT)?).ok()?,
        from: SocketAddr::new(address(FROM_AT)?, from_port),
        to: SocketAddr::new(address(TO_AT)?, to_port),
        rate: Rate {
            bits_per_second: word(RATE_AT)?,
            burst_bytes: word(RATE_AT + 4)?,
            longest_wait_ms: word(RATE_AT + 8)?,
        },
    })
}

/// Bytes of `struct hawser_rate` of `include/hawser.h`. Source: three fields of 32 bits.
const VALUE_LEN: usize = 12;
// Offsets of the fields of a record, in bytes. Source: each field follows the one before: four of
// 32 bits, two addresses of 128 bits, a `Rate` and 4 bytes of padding.
const PROTOCOL_AT: usize = 0;
const FAMILY_AT: usize = 4;
/// Offset of the source port, in the byte order of this machine. Source: the third field of a
/// record.
const FROM_PORT_AT: usize = 8;
/// Offset of the destination port, in network byte order. Source: the fourth field of a record.
const TO_PORT_AT: usize = 12;
const FROM_AT: usize = 16;
const TO_AT: usize = 32;
const RATE_AT: usize = 48;
const RECORD: usize = 64;
/// Offset of the record on the stack. Source: below the 48 bytes that the other options use
/// (`NUMBER_AT` of `options.rs`).
const RECORD_AT: i16 = -48 - RECORD as i16;
// Source: linux/bpf.h, `struct bpf_sock`.
const FAMILY: i16 = 4;
const PROTOCOL: i16 = 12;
const SOURCE_V4: i16 = 24;
const SOURCE_V6: i16 = 28;
const SOURCE_PORT: i16 = 44;
const DESTINATION_PORT: i16 = 48;
const DESTINATION_V4: i16 = 52;
const DESTINATION_V6: i16 = 56;
// Helpers and flags (linux/bpf.h).
const RING_OUTPUT: i32 = 130;
/// Flag that wakes the reader for each record: `BPF_RB_FORCE_WAKEUP` of linux/bpf.h.
const FORCE_WAKEUP: i32 = 2;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bpf::{Becomes, SocketOptions};
    use crate::netns::Namespace;
    use std::net::{TcpListener, TcpStream, UdpSocket};

    const ONE: Rate = Rate {
        bits_per_second: 1_000_000,
        burst_bytes: 3_000,
        longest_wait_ms: 150,
    };

    /// Starts handling options inside a namespace; returns `None`, and records the test as skipped,
    /// without the privileges.
    fn begun(becomes: Becomes) -> Option<(Namespace, SocketOptions)> {
        let Ok(inside) = Namespace::new() else {
            hawser_testing::skip("no namespaces");
            return None;
        };
        assert!(
            inside
                .command("ip")
                .args(["link", "set", "lo", "up"])
                .status()
                .unwrap()
                .success()
        );
        match inside.run(|| SocketOptions::new(becomes)) {
            Ok(options) => Some((inside, options)),
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                hawser_testing::skip(format!("no right to load eBPF programs: {error}"));
                None
            }
            Err(error) => panic!("{error}"),
        }
    }

    fn listening(options: &mut SocketOptions) -> (tokio::runtime::Runtime, Declarations) {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_io()
            .build()
            .unwrap();
        let kernel = runtime.block_on(async { options.listen() }).unwrap();
        (runtime, kernel.expect("it answers"))
    }

    fn refused(result: io::Result<()>) -> Option<i32> {
        result.unwrap_err().raw_os_error()
    }

    #[test]
    fn what_is_declared_is_heard_with_both_ends_of_the_socket() {
        let Some((inside, mut options)) = begun(Becomes::TrafficClass) else {
            return;
        };
        let (runtime, mut kernel) = listening(&mut options);
        for address in ["127.0.0.1:0", "[::1]:0"] {
            inside
                .run(|| {
                    let (one, other) = (UdpSocket::bind(address)?, UdpSocket::bind(address)?);
                    assert_eq!(refused(declare(&one, ONE)), Some(libc::ENOTCONN));
                    assert_eq!(refused(set(&one, RATE, &[0; VALUE_LEN - 1])), Some(libc::EINVAL));
                    one.connect(other.local_addr()?)?;
                    declare(&one, ONE)?;
                    let listener = TcpListener::bind(address)?;
                    let stream = TcpStream::connect(listener.local_addr()?)?;
                    declare(&stream, Rate::default())?;
                    let heard = runtime.block_on(async { [kernel.next().await, kernel.next().await] });
                    let expected = |protocol, from: io::Result<SocketAddr>, to, rate| Declared {
                        protocol,
                        from: from.unwrap(),
                        to,
                        rate,
                    };
                    let [first, second] = heard.map(Result::unwrap);
                    assert_eq!(first, expected(17, one.local_addr(), other.local_addr()?, ONE));
                    let peer = listener.local_addr()?;
                    assert_eq!(second, expected(6, stream.local_addr(), peer, Rate::default()));
                    Ok(())
                })
                .unwrap();
        }
    }

    #[test]
    fn more_than_there_is_room_for_is_refused_until_it_is_read() {
        let Some((inside, mut options)) = begun(Becomes::TrafficClass) else {
            return;
        };
        let (runtime, mut kernel) = listening(&mut options);
        inside
            .run(|| {
                let socket = UdpSocket::bind("127.0.0.1:0")?;
                socket.connect("127.0.0.1:9")?;
                // Wraps around several times, and splits records at the end of the memory.
                for round in 0..5 {
                    let rate = |number| Rate {
                        burst_bytes: number,
                        ..ONE
                    };
                    let count = (0..100_000)
                        .take_while(|number| match declare(&socket, rate(*number)) {
                            Ok(()) => true,
                            Err(error) => {
                                assert_eq!(error.raw_os_error(), Some(libc::EAGAIN));
                                false
                            }
                        })
                        .count();
                    assert!((10..10_000).contains(&count), "round {round}: {count}");
                    for number in 0..count as u32 {
                        let heard = runtime.block_on(kernel.next())?;
                        assert_eq!(heard.rate, rate(number), "round {round}");
                    }
                }
                Ok(())
            })
            .unwrap();
    }

    #[test]
    fn nothing_is_declared_where_networks_are_not_joined() {
        let Some((inside, mut options)) = begun(Becomes::Mark) else {
            return;
        };
        assert!(options.listen().unwrap().is_none());
        inside
            .run(|| {
                let socket = UdpSocket::bind("127.0.0.1:0")?;
                socket.connect("127.0.0.1:9")?;
                assert_eq!(refused(declare(&socket, ONE)), Some(libc::ENOPROTOOPT));
                Ok(())
            })
            .unwrap();
    }
}
