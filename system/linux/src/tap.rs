//! Captures received and sent packets, and sends packets without a socket of their flow, as needed
//! to open routes.
//!
//! The tap captures all SYNs and all UDP packets that open routes, and one in [`ONE_IN`] of the
//! other TCP packets, which is enough to know the approximate sequence numbers of a connection. It
//! captures packets as they are on the wire: before this machine's rules for received packets,
//! after its rules for sent ones. The filter is classic BPF; a packet that it rejects costs a few
//! instructions.

use std::ffi::CStr;
use std::io;
use std::mem::MaybeUninit;
use std::net::{IpAddr, SocketAddr};

use socket2::{Domain, Protocol, SockAddr, SockAddrStorage, SockFilter, Socket, Type};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use crate::udp::{grow, keep_outside};

/// Beginning of a packet.
#[derive(Clone, Debug)]
pub struct Tapped {
    bytes: [u8; FRONT],
    len: usize,
    /// Set if this machine sent it.
    pub is_outgoing: bool,
    /// The device's index.
    pub interface: u32,
}

impl Tapped {
    /// Returns the bytes from the IP header; the payload may be truncated.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

/// Socket that captures packets of all devices.
#[derive(Debug)]
pub struct Tap {
    socket: AsyncFd<Socket>,
}

impl Tap {
    /// Starts capturing packets. Must be called within a tokio runtime.
    ///
    /// # Errors
    /// Privileges (`CAP_NET_RAW`) are missing.
    pub fn open() -> io::Result<Self> {
        // Without a protocol, no packets arrive before the filter is installed.
        let socket = Socket::new(Domain::PACKET, Type::DGRAM, None)?;
        socket.set_nonblocking(true)?;
        socket.attach_filter(&filter())?;
        // A packet occupies the buffer with its full size, up to 64 KB.
        grow(&socket);
        socket.bind(&packets_of(EVERY_DEVICE)?)?;
        // SAFETY: the socket is open, and stays so and the same until the `AsyncFd` that owns it is
        // dropped.
        let socket = unsafe { AsyncFd::register_with_interest(socket, Interest::READABLE)? };
        Ok(Self { socket })
    }

    /// Waits for the next packet. Cancel safe.
    ///
    /// # Errors
    /// The socket has failed.
    pub async fn next(&self) -> io::Result<Tapped> {
        loop {
            let mut ready = self.socket.readable().await?;
            if let Ok(result) = ready.try_io(|socket| receive(socket.get_ref())) {
                return result;
            }
        }
    }
}

fn receive(socket: &Socket) -> io::Result<Tapped> {
    let mut buffer = [MaybeUninit::<u8>::uninit(); FRONT];
    let (len, from) = socket.recv_from(&mut buffer)?;
    let mut bytes = [0; FRONT];
    for (byte, filled) in bytes.iter_mut().zip(&buffer[..len]) {
        // SAFETY: the kernel has written the first `len` bytes.
        *byte = unsafe { filled.assume_init() };
    }
    // SAFETY: a packet socket's addresses are `sockaddr_ll`, for which the storage has room and
    // alignment.
    let link = unsafe { &*from.as_ptr().cast::<libc::sockaddr_ll>() };
    Ok(Tapped {
        bytes,
        len,
        is_outgoing: link.sll_pkttype == libc::PACKET_OUTGOING,
        interface: u32::try_from(link.sll_ifindex).unwrap_or(0),
    })
}

/// Returns the address that binds to all packets of a device, by its index; 0 means all devices.
pub(crate) fn packets_of(interface: u32) -> io::Result<SockAddr> {
    let mut storage = SockAddrStorage::zeroed();
    let link = libc::sockaddr_ll {
        sll_family: libc::AF_PACKET as u16,
        sll_protocol: (libc::ETH_P_ALL as u16).to_be(),
        sll_ifindex: interface.try_into().map_err(|_| io::ErrorKind::InvalidInput)?,
        sll_hatype: 0,
        sll_pkttype: 0,
        sll_halen: 0,
        sll_addr: [0; 8],
    };
    // SAFETY: the storage is as large as any address and is aligned for it.
    unsafe { (&raw mut storage).cast::<libc::sockaddr_ll>().write(link) };
    let len = u32::try_from(size_of::<libc::sockaddr_ll>()).expect("an address is short");
    // SAFETY: the storage holds an address of the family it names, `len` bytes long.
    Ok(unsafe { SockAddr::new(storage, len) })
}

/// Sends a complete IP packet over a device, or by the routes, bypassing connections, marks and
/// rules for flows.
///
/// # Errors
/// The device was removed, or has no route to the destination.
pub fn send_packet(device: Option<&str>, destination: IpAddr, packet: &[u8]) -> io::Result<()> {
    let domain = if destination.is_ipv6() {
        Domain::IPV6
    } else {
        Domain::IPV4
    };
    // With this protocol, the caller supplies the IP header.
    let socket = Socket::new(domain, Type::RAW, Some(Protocol::from(libc::IPPROTO_RAW)))?;
    keep_outside(&socket, device)?;
    socket.set_nonblocking(true)?;
    socket
        .send_to(packet, &SocketAddr::new(destination, 0).into())
        .map(drop)
}

/// Returns the name of the device with that index.
#[must_use]
pub fn device_name(index: u32) -> Option<String> {
    let mut name = [0; libc::IF_NAMESIZE];
    // SAFETY: the buffer has the size that the call demands.
    let found = unsafe { libc::if_indextoname(index, name.as_mut_ptr()) };
    if found.is_null() {
        return None;
    }
    // SAFETY: the call has written a terminated string into the buffer.
    let name = unsafe { CStr::from_ptr(name.as_ptr()) };
    name.to_str().ok().map(ToOwned::to_owned)
}

/// Returns a classic BPF filter of IP packets: it accepts SYNs, openings over UDP, and a sample of
/// the other TCP packets.
fn filter() -> Vec<SockFilter> {
    let op = |code: u32, k: u32, jt: u8, jf: u8| SockFilter::new(code as u16, jt, jf, k);
    const LOAD_BYTE: u32 = libc::BPF_LD | libc::BPF_B | libc::BPF_ABS;
    const LOAD_WORD: u32 = libc::BPF_LD | libc::BPF_W | libc::BPF_ABS;
    const LOAD_BYTE_X: u32 = libc::BPF_LD | libc::BPF_B | libc::BPF_IND;
    const LOAD_WORD_X: u32 = libc::BPF_LD | libc::BPF_W | libc::BPF_IND;
    const IS: u32 = libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K;
    const HAS: u32 = libc::BPF_JMP | libc::BPF_JSET | libc::BPF_K;
    const RETURN: u32 = libc::BPF_RET | libc::BPF_K;
    let tcp = libc::IPPROTO_TCP as u32;
    let udp = libc::IPPROTO_UDP as u32;
    vec![
        // 0: which version of IP?
        op(LOAD_BYTE, 0, 0, 0),
        op(libc::BPF_ALU | libc::BPF_AND | libc::BPF_K, 0xf0, 0, 0),
        op(IS, 0x40, 0, 4),
        // 3: version 4: the header's length to X, the protocol to A
        op(libc::BPF_LDX | libc::BPF_B | libc::BPF_MSH, 0, 0, 0),
        op(LOAD_BYTE, 9, 0, 0),
        op(IS, tcp, 5, 0),
        op(IS, udp, 9, 11),
        // 7: version 6, or nothing of ours
        op(IS, 0x60, 0, 10),
        op(libc::BPF_LDX | libc::BPF_W | libc::BPF_IMM, 40, 0, 0),
        op(LOAD_BYTE, 6, 0, 0),
        op(IS, tcp, 0, 4),
        // 11: TCP: a beginning, or a sampled segment
        op(LOAD_BYTE_X, 13, 0, 0),
        op(HAS, 2, 6, 0),
        op(LOAD_WORD, RANDOM, 0, 0),
        op(HAS, ONE_IN - 1, 3, 4),
        // 15: UDP: what openings begin with
        op(IS, udp, 0, 2),
        op(LOAD_WORD_X, 8, 0, 0),
        op(IS, OPENING, 1, 0),
        op(RETURN, 0, 0, 0),
        op(RETURN, FRONT as u32, 0, 0),
    ]
}

/// Interface index that stands for all devices (packet(7)).
const EVERY_DEVICE: u32 = 0;
/// Sampling interval of TCP packets. A power of two. Source: our choice; a copy of each packet
/// takes as long as its forwarding, and with rarer ones a flow that starts is detected later.
pub const ONE_IN: u32 = 16;
/// Bytes of a packet that are captured. Source: the headers of IPv6 (40 bytes, RFC 8200 section 3)
/// and of TCP with all options (60 bytes, RFC 9293 section 3.1), and a whole opening.
const FRONT: usize = 128;
/// The kernel's random number, as a place to load from (`SKF_AD_OFF + SKF_AD_RANDOM` in
/// linux/filter.h).
const RANDOM: u32 = (-0x1000_i32 + 56) as u32;
/// The first bytes of a UDP opening (`hawser_wire::opening`).
const OPENING: u32 = u32::from_be_bytes(*b"hwsr");

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{TcpStream, UdpSocket};
    use std::time::Duration;

    #[tokio::test]
    async fn beginnings_and_openings_are_seen_and_other_datagrams_are_not() {
        let Ok(namespace) = crate::netns::Namespace::new() else {
            hawser_testing::skip("no namespaces");
            return;
        };
        let up = namespace.command("ip").args(["link", "set", "lo", "up"]).status();
        assert!(up.unwrap().success());
        for host in ["127.0.0.1", "::1"] {
            // The socket is created in the namespace and used here.
            let raw = namespace.run(|| {
                let runtime = tokio::runtime::Builder::new_current_thread()
                    .enable_all()
                    .build()?;
                let _guard = runtime.enter();
                let tap = Tap::open()?;
                let socket = UdpSocket::bind((host, 0))?;
                socket.send_to(b"anything else", (host, 9))?;
                socket.send_to(b"hwsrOpen....", (host, 9))?;
                assert!(TcpStream::connect((host, 9)).is_err(), "nobody listens");
                let (mut datagrams, mut beginnings) = (0, 0);
                runtime.block_on(async {
                    while let Ok(Ok(seen)) =
                        tokio::time::timeout(Duration::from_millis(200), tap.next()).await
                    {
                        let bytes = seen.bytes();
                        let (protocol, at) = if host == "::1" {
                            (bytes[6], 40)
                        } else {
                            (bytes[9], 20)
                        };
                        if i32::from(protocol) == libc::IPPROTO_UDP {
                            assert!(bytes[at + 8..].starts_with(b"hwsr"), "{bytes:?}");
                            datagrams += 1;
                        } else if bytes[at + 13] & 2 != 0 {
                            beginnings += 1;
                        }
                    }
                });
                Ok((datagrams, beginnings))
            });
            // Each is captured once when sent and once when received.
            assert_eq!(raw.unwrap(), (2, 2), "{host}");
        }
    }
}
