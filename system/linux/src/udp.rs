//! UDP sockets of the data plane: bound to a network's device, with large kernel buffers and
//! segmentation offload.

use std::io::{self, IoSliceMut};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::sync::Arc;

use quinn_udp::{EcnCodepoint, RecvMeta, Transmit, UdpSocketState};
use socket2::{Domain, Protocol, SockRef, Socket, Type};

/// Mark of outer packets, with which routing rules keep them out of the tunnel. Source: "HW" in the
/// upper half (`direct.rs`), with a number that no network has.
pub const OUTER_MARK: u32 = 0x4857_0001;
/// Kernel buffer in each direction: 8 ms at 8 Gbit/s, or a second at 60 Mbit/s. Source: our choice;
/// less loses packets while a thread waits for its turn at a high rate, more takes memory of the
/// kernel for each network.
const BUFFER: usize = 8 << 20;
/// Datagrams of one size that a single call may send. Source: 44 of 1,472 bytes are 64,768 bytes,
/// and the kernel accepts 65,507 (65,535 less the headers of IPv4 and UDP).
pub const MAX_SEGMENTS: usize = 44;

/// Keeps a socket outside the tunnel: bound to `device`, or routed by the networks' own routes.
///
/// # Errors
/// The device was removed, or privileges (`CAP_NET_ADMIN`) are missing.
pub fn keep_outside(socket: &Socket, device: Option<&str>) -> io::Result<()> {
    socket.bind_device(device.map(str::as_bytes))?;
    socket.set_mark(OUTER_MARK)
}

/// Opens the data socket of a network: bound to `device`, marked, on any port.
///
/// # Errors
/// The device was removed, or privileges (`CAP_NET_ADMIN`) are missing.
pub fn open_bound(device: &str, ipv6: bool) -> io::Result<UdpSocket> {
    let domain = if ipv6 { Domain::IPV6 } else { Domain::IPV4 };
    let socket = Socket::new(domain, Type::DGRAM, Some(Protocol::UDP))?;
    keep_outside(&socket, Some(device))?;
    let any: SocketAddr = if ipv6 {
        ([0_u16; 8], 0).into()
    } else {
        ([0_u8; 4], 0).into()
    };
    socket.bind(&any.into())?;
    Ok(socket.into())
}

/// Opens a listening socket for both families, or for IPv4 only if there is no IPv6.
///
/// # Errors
/// The address is not to be had.
pub fn open_listening(address: SocketAddr) -> io::Result<UdpSocket> {
    let bind = |address: SocketAddr| -> io::Result<UdpSocket> {
        let socket = Socket::new(Domain::for_address(address), Type::DGRAM, Some(Protocol::UDP))?;
        if address.is_ipv6() {
            socket.set_only_v6(false)?;
        }
        socket.bind(&address.into())?;
        Ok(socket.into())
    };
    match bind(address) {
        Err(error) if address.ip() == Ipv6Addr::UNSPECIFIED && error.kind() != io::ErrorKind::AddrInUse => {
            bind((Ipv4Addr::UNSPECIFIED, address.port()).into())
        }
        other => other,
    }
}

/// Opens a group of sockets that listen on one address, like [`open_listening`]: data packets are
/// delivered to the socket that their receiver index chooses, modulo the count, and all other
/// datagrams to the first.
///
/// # Errors
/// The address is not to be had, or the kernel is older than Linux 4.5.
pub fn open_group(address: SocketAddr, count: u32) -> io::Result<Vec<UdpSocket>> {
    // The first is opened without address sharing, so that another program's socket is an error.
    let first = open_listening(address)?;
    if count <= 1 {
        return Ok(vec![first]);
    }
    let address = first.local_addr()?;
    drop(first);
    let member = |_| {
        let socket = Socket::new(Domain::for_address(address), Type::DGRAM, Some(Protocol::UDP))?;
        if address.is_ipv6() {
            socket.set_only_v6(false)?;
        }
        socket.set_reuse_port(true)?;
        socket.bind(&address.into())?;
        Ok(UdpSocket::from(socket))
    };
    let sockets = (0..count).map(member).collect::<io::Result<Vec<_>>>()?;
    choose_by_index(&sockets[0], count)?;
    Ok(sockets)
}

/// Attaches a program that chooses the socket of a group by the receiver index of data packets.
fn choose_by_index(socket: &UdpSocket, count: u32) -> io::Result<()> {
    let instruction = |code: u32, jf, k| libc::sock_filter {
        code: code as u16,
        jt: 0,
        jf,
        k,
    };
    // Classic BPF over the UDP payload, like `is_data` and `Outer` of hawser_wire::data; a short
    // packet yields 0.
    let mut code = [
        instruction(libc::BPF_LD | libc::BPF_B | libc::BPF_ABS, 0, 0),
        instruction(libc::BPF_ALU | libc::BPF_AND | libc::BPF_K, 0, 0xc0),
        instruction(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, 3, 0),
        instruction(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 2),
        instruction(libc::BPF_ALU | libc::BPF_MOD | libc::BPF_K, 0, count),
        instruction(libc::BPF_RET | BPF_A, 0, 0),
        instruction(libc::BPF_RET | libc::BPF_K, 0, 0),
    ];
    let program = libc::sock_fprog {
        len: code.len() as u16,
        filter: code.as_mut_ptr(),
    };
    // SAFETY: the option takes a `sock_fprog`, whose instructions outlive the call.
    let result = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_ATTACH_REUSEPORT_CBPF,
            (&raw const program).cast(),
            size_of::<libc::sock_fprog>() as libc::socklen_t,
        )
    };
    crate::check(result)
}

/// Returns what is in the accumulator (linux/filter.h).
const BPF_A: u32 = 0x10;

/// Opens a socket outside the tunnel that uses the routes of the local networks.
///
/// # Errors
/// No descriptor is left, or the kernel refuses.
pub fn open_near(is_ipv6: bool) -> io::Result<UdpSocket> {
    let any: IpAddr = if is_ipv6 {
        Ipv6Addr::UNSPECIFIED.into()
    } else {
        Ipv4Addr::UNSPECIFIED.into()
    };
    let any = SocketAddr::new(any, 0);
    let socket = Socket::new(Domain::for_address(any), Type::DGRAM, Some(Protocol::UDP))?;
    keep_outside(&socket, None)?;
    socket.bind(&any.into())?;
    Ok(socket.into())
}

/// Marks a socket's packets as lower effort (RFC 8622), with the lowest priority in the kernel's
/// queues. Datagrams sent with an ECN codepoint carry only that.
///
/// # Errors
/// The kernel refuses.
pub fn lower_effort(socket: &UdpSocket, ipv6: bool) -> io::Result<()> {
    let socket = socket2::SockRef::from(socket);
    if ipv6 {
        socket.set_tclass_v6(LOWER_EFFORT)?;
    } else {
        socket.set_tos_v4(LOWER_EFFORT)?;
    }
    // The field above sets it too.
    socket.set_priority(FILLER)
}

/// DSCP 000001 in the upper six bits (RFC 8622 section 2).
const LOWER_EFFORT: u32 = 0b0000_0100;
/// `TC_PRIO_FILLER` (linux/pkt_sched.h): the last band of pfifo_fast.
const FILLER: u32 = 1;

/// Socket of the data plane, shared by the sending and the receiving thread.
#[derive(Debug)]
pub struct DataSocket {
    socket: Arc<UdpSocket>,
    state: UdpSocketState,
    ipv4_mapped: bool,
}

impl DataSocket {
    /// Prepares a socket: non-blocking, large buffers (beyond the system's limit if privileges
    /// allow), GSO, GRO, ECN, no fragmentation.
    ///
    /// # Errors
    /// The socket is not a UDP socket, or is closed.
    pub fn new(socket: Arc<UdpSocket>) -> io::Result<Self> {
        let state = UdpSocketState::new((&*socket).into())?;
        let reference = SockRef::from(&*socket);
        grow(&socket);
        let ipv4_mapped = socket.local_addr()?.is_ipv6() && !reference.only_v6().unwrap_or(true);
        Ok(Self {
            socket,
            state,
            ipv4_mapped,
        })
    }

    /// Sends datagrams of `segment` bytes each (the last may be shorter) to one address in one
    /// call.
    ///
    /// `from` is the source address; the kernel chooses one if it is `None`.
    ///
    /// # Errors
    /// `WouldBlock` if the kernel's buffer is full; otherwise an error of the network, or `from` is
    /// not an address of this machine.
    pub fn send(
        &self,
        from: Option<IpAddr>,
        to: SocketAddr,
        bytes: &[u8],
        segment: usize,
        ecn: u8,
    ) -> io::Result<()> {
        let destination = match to {
            SocketAddr::V4(v4) if self.ipv4_mapped => (v4.ip().to_ipv6_mapped(), v4.port()).into(),
            SocketAddr::V4(_) | SocketAddr::V6(_) => to,
        };
        let source = from.map(|address| match address {
            IpAddr::V4(v4) if self.ipv4_mapped => v4.to_ipv6_mapped().into(),
            IpAddr::V4(_) | IpAddr::V6(_) => address,
        });
        let transmit = Transmit {
            destination,
            ecn: EcnCodepoint::from_bits(ecn),
            contents: bytes,
            segment_size: (segment < bytes.len()).then_some(segment),
            src_ip: source,
        };
        self.state.try_send((&*self.socket).into(), &transmit)
    }

    /// Receives into `buffers`; returns how many of `meta` were filled, 0 if no datagrams are
    /// available.
    ///
    /// # Errors
    /// An error of the network; a later call may succeed.
    pub fn receive(&self, buffers: &mut [IoSliceMut<'_>], meta: &mut [RecvMeta]) -> io::Result<usize> {
        match self.state.recv((&*self.socket).into(), buffers, meta) {
            Ok(count) => Ok(count),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(0),
            Err(error) => Err(error),
        }
    }

    /// Returns how many equal datagrams one [`send`](Self::send) may contain on this kernel.
    #[must_use]
    pub fn max_segments(&self) -> usize {
        self.state.max_gso_segments().min(MAX_SEGMENTS)
    }
}

impl AsFd for DataSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// Converts an IPv4-mapped IPv6 address to IPv4. Other addresses keep their scope, which link-local
/// addresses need.
#[must_use]
pub fn plain(address: SocketAddr) -> SocketAddr {
    match address.ip().to_canonical() {
        IpAddr::V4(v4) => SocketAddr::new(v4.into(), address.port()),
        IpAddr::V6(_) => address,
    }
}

pub(crate) fn grow(socket: &(impl AsFd + AsRawFd)) {
    for option in [libc::SO_RCVBUFFORCE, libc::SO_SNDBUFFORCE] {
        let size = BUFFER as libc::c_int;
        let len = size_of::<libc::c_int>() as libc::socklen_t;
        let fd = socket.as_raw_fd();
        // SAFETY: the option takes an int, which outlives the call.
        unsafe { libc::setsockopt(fd, libc::SOL_SOCKET, option, (&raw const size).cast(), len) };
    }
    let socket = SockRef::from(socket);
    // Without privileges the system's limit applies; a second request sets the permitted maximum.
    if socket.recv_buffer_size().is_ok_and(|size| size < BUFFER) {
        let _ = socket.set_recv_buffer_size(BUFFER);
        let _ = socket.set_send_buffer_size(BUFFER);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A datagram to `spoken_to` is answered from it, although the kernel would choose 127.0.0.1.
    fn answers_from(listen: &str, spoken_to: &str) {
        let hub = DataSocket::new(Arc::new(UdpSocket::bind(listen).unwrap())).unwrap();
        let port = hub.socket.local_addr().unwrap().port();
        let client = UdpSocket::bind("127.0.0.1:0").unwrap();
        client
            .set_read_timeout(Some(std::time::Duration::from_secs(5)))
            .unwrap();
        client.send_to(b"question", (spoken_to, port)).unwrap();
        let (mut buffer, mut meta) = ([0; 2048], [RecvMeta::default()]);
        crate::wait::wait_readable(
            &[hub.as_fd()],
            Some(std::time::Duration::from_secs(5)),
            &mut [false],
        )
        .unwrap();
        let heard = hub.receive(&mut [IoSliceMut::new(&mut buffer)], &mut meta);
        assert_eq!(heard.unwrap(), 1);
        let to = meta[0].dst_ip.unwrap().to_canonical();
        assert_eq!(to, spoken_to.parse::<IpAddr>().unwrap());
        hub.send(Some(to), plain(meta[0].addr), b"answer", 6, 0).unwrap();
        let (_, from) = client.recv_from(&mut [0; 16]).unwrap();
        assert_eq!(from, SocketAddr::new(to, port));
    }

    #[test]
    fn answers_leave_from_the_address_that_was_spoken_to() {
        answers_from("0.0.0.0:0", "127.0.0.5");
    }

    #[test]
    fn a_socket_of_both_families_answers_ipv4_from_the_right_address() {
        if UdpSocket::bind("[::]:0").is_ok() {
            answers_from("[::]:0", "127.0.0.5");
        }
    }

    /// Returns the first bytes of a data packet with that receiver index.
    fn data(index: u32) -> Vec<u8> {
        let mut datagram = vec![0; 40];
        datagram[1] = 3;
        datagram[2..6].copy_from_slice(&index.to_be_bytes());
        datagram
    }

    fn who_gets_what(listen: &str, count: u32) {
        let sockets = open_group(listen.parse().unwrap(), count).unwrap();
        let to = sockets[0].local_addr().unwrap().port();
        assert!(
            open_listening(SocketAddr::new(listen.parse::<SocketAddr>().unwrap().ip(), to)).is_err(),
            "nobody else can have the port"
        );
        let client = UdpSocket::bind("127.0.0.1:0").unwrap();
        let other = UdpSocket::bind("127.0.0.1:0").unwrap();
        let indices = [0, 1, 2, 5, 1_000, 1_001, 0x8000_0000, u32::MAX - 1, u32::MAX];
        let mut wanted = vec![Vec::new(); count as usize];
        // Send from two ports: the source does not matter.
        for from in [&client, &other] {
            for index in indices {
                from.send_to(&data(index), ("127.0.0.1", to)).unwrap();
                wanted[(index % count) as usize].push(data(index));
            }
            for control in [
                &[0xc0, 0, 0, 0, 0, 1][..],
                &[0x40, 0, 0, 0, 0, 1],
                &[0x80],
                &[0],
                &[0; 5],
                &[],
            ] {
                from.send_to(control, ("127.0.0.1", to)).unwrap();
                wanted[0].push(control.to_vec());
            }
        }
        for (at, (socket, mut wanted)) in sockets.iter().zip(wanted).enumerate() {
            socket.set_nonblocking(true).unwrap();
            let mut buffer = [0; 100];
            let mut got: Vec<_> = std::iter::from_fn(|| {
                let (len, _) = socket.recv_from(&mut buffer).ok()?;
                Some(buffer[..len].to_vec())
            })
            .collect();
            got.sort_unstable();
            wanted.sort_unstable();
            assert_eq!(got, wanted, "socket {at} of {count}");
        }
    }

    #[test]
    fn the_receiver_index_chooses_the_socket_and_all_else_comes_to_the_first() {
        for count in [1, 2, 3, 7, 16] {
            who_gets_what("127.0.0.1:0", count);
            if UdpSocket::bind("[::]:0").is_ok() {
                who_gets_what("[::]:0", count);
            }
        }
    }

    #[test]
    fn a_group_takes_no_port_that_somebody_has() {
        let taken = UdpSocket::bind("127.0.0.1:0").unwrap();
        let address = taken.local_addr().unwrap();
        assert!(open_group(address, 2).is_err());
        let group = open_group("127.0.0.1:0".parse().unwrap(), 2).unwrap();
        let address = group[0].local_addr().unwrap();
        assert!(open_group(address, 2).is_err(), "not even another group");
    }
}
