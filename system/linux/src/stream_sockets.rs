//! TCP sockets at both ends of a stream: non-blocking sockets, and a poller for many.
//!
//! A client listens on its own tunnel interface only; a hub connects with a mark by which its
//! firewall recognises the connection. A socket is shared by the reading and the writing thread,
//! each with its own [`Poller`]; it is closed when both have dropped it.

use std::io::{self, IoSlice, IoSliceMut, Read};
use std::net::{Ipv4Addr, Ipv6Addr, Shutdown, SocketAddr};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::time::Duration;

use socket2::{Domain, Socket, Type};

use crate::check;

/// Mark of the connections that a hub opens for clients: "HS" and a number.
///
/// Source: as [`crate::udp::OUTER_MARK`], any that no other program uses.
pub const STREAM_MARK: u32 = 0x4853_0001;
/// Connections of a listener that wait to be accepted.
///
/// Source: `net.core.somaxconn`, which bounds it anyway.
const BACKLOG: i32 = 4096;
/// Bytes that wait in a new socket and have not been sent.
///
/// Source: `SOCKET_BUFFER`, `laboratory/sim/src/run/split.rs`; 100 ms at 20 Mbit/s.
pub const NOT_SENT: u32 = 256 << 10;
/// Events taken in one call.
///
/// Source: any will do; what is left is reported by the next call.
const EVENTS: usize = 64;

/// End of a TCP connection.
#[derive(Debug)]
pub struct Connection(Socket);

impl Connection {
    /// Starts connecting, with the DSCP `dscp`; [`Self::outcome`] returns the result once the
    /// socket is writable.
    ///
    /// # Errors
    /// The kernel's error, if it refuses at once.
    pub fn open(to: SocketAddr, dscp: u8) -> io::Result<Self> {
        let socket = Socket::new(Domain::for_address(to), Type::STREAM.nonblocking(), None)?;
        socket.set_cloexec(true)?;
        socket.set_mark(STREAM_MARK)?;
        socket.set_keepalive(true)?;
        let class = u32::from(dscp) << 2;
        if to.is_ipv6() {
            socket.set_only_v6(true)?;
            socket.set_tclass_v6(class)?;
        } else {
            socket.set_tos_v4(class)?;
        }
        match socket.connect(&to.into()) {
            Err(error) if error.raw_os_error() != Some(libc::EINPROGRESS) => Err(error),
            Ok(()) | Err(_) => Self::prepare(socket),
        }
    }

    /// Continues with the socket of the previous process, whose options are unchanged.
    ///
    /// # Errors
    /// The descriptor is not a socket.
    pub fn adopt(descriptor: OwnedFd) -> io::Result<Self> {
        let socket = Socket::from(descriptor);
        socket.set_cloexec(true)?;
        socket.set_nonblocking(true)?;
        Ok(Self(socket))
    }

    fn prepare(socket: Socket) -> io::Result<Self> {
        socket.set_tcp_nodelay(true)?;
        socket.set_tcp_notsent_lowat(NOT_SENT)?;
        // Reset the connection on close, even if the process is killed: an interrupted connection
        // must not look complete.
        socket.set_linger(Some(Duration::ZERO))?;
        Ok(Self(socket))
    }

    /// Returns the result of connecting.
    ///
    /// # Errors
    /// The kernel's error: refused, unreachable, timed out.
    pub fn outcome(&self) -> io::Result<()> {
        self.0.take_error()?.map_or(Ok(()), Err)
    }

    /// Reads arrived bytes; returns `None` if none are available, and zero at the end.
    ///
    /// # Errors
    /// The connection was reset, or has timed out.
    pub fn receive(&self, pieces: &mut [IoSliceMut<'_>]) -> io::Result<Option<usize>> {
        crate::tun::would_block((&self.0).read_vectored(pieces))
    }

    /// Passes bytes to the kernel; returns `None` if its buffer is full.
    ///
    /// # Errors
    /// The connection was reset, or has timed out.
    pub fn send(&self, pieces: &[IoSlice<'_>]) -> io::Result<Option<usize>> {
        crate::tun::would_block(self.0.send_vectored_with_flags(pieces, libc::MSG_NOSIGNAL))
    }

    /// Limits the unsent bytes in the socket.
    pub fn set_not_sent(&self, bytes: u32) {
        // Fails if the peer has reset the connection, which sending reports too.
        let _ = self.0.set_tcp_notsent_lowat(bytes);
    }

    /// Ends the sending direction after the bytes passed so far.
    pub fn finish(&self) {
        // Fails if the peer has reset the connection, which reading reports too.
        let _ = self.0.shutdown(Shutdown::Write);
    }

    /// Makes the connection close without a reset, because both directions have ended.
    pub fn close_in_order(&self) {
        let _ = self.0.set_linger(None);
    }
}

impl AsFd for Connection {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Accepts connections that arrive on one interface.
#[derive(Debug)]
pub struct Listener {
    socket: Socket,
    port: u16,
}

impl Listener {
    /// Listens at a port that the kernel chooses, for IPv4, and for IPv6 if the machine supports
    /// it.
    ///
    /// # Errors
    /// The interface does not exist, or privileges are missing.
    pub fn on_interface(name: &str) -> io::Result<Self> {
        let any = [
            SocketAddr::from((Ipv6Addr::UNSPECIFIED, 0)),
            SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0)),
        ];
        Self::at(any[0], name).or_else(|_| Self::at(any[1], name))
    }

    /// Continues with the listener of the previous process.
    ///
    /// # Errors
    /// The descriptor is not a listening socket.
    pub fn adopt(descriptor: OwnedFd) -> io::Result<Self> {
        let socket = Socket::from(descriptor);
        if !socket.is_listener()? {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        socket.set_cloexec(true)?;
        Self::of(socket)
    }

    fn at(address: SocketAddr, interface: &str) -> io::Result<Self> {
        let socket = Socket::new(Domain::for_address(address), Type::STREAM.nonblocking(), None)?;
        socket.set_cloexec(true)?;
        socket.bind_device(Some(interface.as_bytes()))?;
        if address.is_ipv6() {
            socket.set_only_v6(false)?;
        }
        socket.bind(&address.into())?;
        socket.listen(BACKLOG)?;
        Self::of(socket)
    }

    fn of(socket: Socket) -> io::Result<Self> {
        let local = socket.local_addr()?.as_socket();
        let port = local.ok_or(io::ErrorKind::AddrNotAvailable)?.port();
        Ok(Self { socket, port })
    }

    /// Returns the port.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Accepts a connection, and returns it with its source address; `None` if none is pending.
    ///
    /// # Errors
    /// No descriptor is left.
    pub fn accept(&self) -> io::Result<Option<(Connection, SocketAddr)>> {
        let (socket, from) = match self.socket.accept() {
            Ok(accepted) => accepted,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(None),
            Err(error) => return Err(error),
        };
        socket.set_nonblocking(true)?;
        let from = from.as_socket().ok_or(io::ErrorKind::AddrNotAvailable)?;
        let from = SocketAddr::new(from.ip().to_canonical(), from.port());
        Ok(Some((Connection::prepare(socket)?, from)))
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// Events of a socket that a [`Poller`] reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Interest {
    /// Bytes, connections or the end have arrived.
    Read,
    /// The buffer is writable again, or connecting has ended.
    Write,
}

/// Reports which of many sockets are ready. Each change is reported once (edge-triggered): after a
/// report, a socket must be used until it would block.
#[derive(Debug)]
pub struct Poller(OwnedFd);

impl Poller {
    /// Creates a poller without sockets.
    ///
    /// # Errors
    /// No descriptor is left.
    pub fn new() -> io::Result<Self> {
        // SAFETY: no pointers; a non-negative result is a descriptor without another owner.
        let poller = unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) };
        check(poller)?;
        // SAFETY: as above.
        Ok(Self(unsafe { OwnedFd::from_raw_fd(poller) }))
    }

    /// Adds a socket, which is reported as `name` until it is closed.
    ///
    /// # Errors
    /// The kernel has no memory for it.
    pub fn add(&self, socket: BorrowedFd<'_>, interest: Interest, name: u64) -> io::Result<()> {
        let events = match interest {
            Interest::Read => libc::EPOLLIN | libc::EPOLLRDHUP,
            Interest::Write => libc::EPOLLOUT,
        };
        let mut event = libc::epoll_event {
            events: (events | libc::EPOLLET).cast_unsigned(),
            u64: name,
        };
        // SAFETY: the event lives through the call.
        check(unsafe {
            libc::epoll_ctl(
                self.0.as_raw_fd(),
                libc::EPOLL_CTL_ADD,
                socket.as_raw_fd(),
                &raw mut event,
            )
        })
    }

    /// Appends the names of ready sockets to `ready`, without waiting.
    pub fn poll(&self, ready: &mut Vec<u64>) {
        let mut events = [libc::epoll_event { events: 0, u64: 0 }; EVENTS];
        loop {
            // SAFETY: the array holds as many events as the kernel is allowed to write.
            let count = unsafe {
                libc::epoll_wait(self.0.as_raw_fd(), events.as_mut_ptr(), EVENTS as libc::c_int, 0)
            };
            let count = usize::try_from(count).unwrap_or(0);
            ready.extend(events[..count].iter().map(|event| event.u64));
            if count < EVENTS {
                return;
            }
        }
    }
}

impl AsFd for Poller {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Raises the soft limit of open files to the hard limit.
///
/// Each stream needs a descriptor, and the default soft limit is 1,024 (`systemd.exec`, "Process
/// properties").
pub fn raise_file_limit() {
    // SAFETY: plain data for which all zeroes is a valid value.
    let mut limit: libc::rlimit = unsafe { std::mem::zeroed() };
    // SAFETY: the limit lives through both calls.
    unsafe {
        if libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) == 0 {
            limit.rlim_cur = limit.rlim_max;
            libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::netns::Namespace;

    fn poll(poller: &Poller) -> Vec<u64> {
        let mut readable = [false];
        let _ = crate::wait::wait_readable(&[poller.as_fd()], Some(Duration::from_secs(20)), &mut readable);
        let mut ready = Vec::new();
        poller.poll(&mut ready);
        ready
    }

    fn read(connection: &Connection) -> io::Result<Option<Vec<u8>>> {
        let mut buffer = [0; 16];
        let len = connection.receive(&mut [IoSliceMut::new(&mut buffer)])?;
        Ok(len.map(|len| buffer[..len].to_vec()))
    }

    #[test]
    fn both_ends_transfer_end_and_reset_without_waiting() {
        let Ok(namespace) = Namespace::new() else {
            hawser_testing::skip("no namespaces");
            return;
        };
        let up = namespace.command("ip").args(["link", "set", "lo", "up"]).status();
        assert!(up.unwrap().success());
        let (listener, refused) = namespace
            .run(|| {
                let listener = Listener::on_interface("lo")?;
                assert!(listener.accept()?.is_none());
                let refused = Connection::open("127.0.0.1:9".parse().unwrap(), 0)?;
                Ok::<_, io::Error>((listener, refused))
            })
            .unwrap();
        let (reading, writing) = (Poller::new().unwrap(), Poller::new().unwrap());
        reading.add(listener.as_fd(), Interest::Read, 1).unwrap();
        writing.add(refused.as_fd(), Interest::Write, 2).unwrap();
        assert_eq!(poll(&writing), [2]);
        assert_eq!(
            refused.outcome().unwrap_err().kind(),
            io::ErrorKind::ConnectionRefused
        );
        let to = SocketAddr::from((Ipv4Addr::LOCALHOST, listener.port()));
        let near = namespace.run(|| Connection::open(to, 46)).unwrap();
        assert_eq!(poll(&reading), [1]);
        let (far, from) = listener.accept().unwrap().unwrap();
        assert_eq!(from.ip(), to.ip(), "as IPv4, though the listener is for both");
        writing.add(near.as_fd(), Interest::Write, 3).unwrap();
        assert_eq!(poll(&writing), [3]);
        near.outcome().unwrap();
        reading.add(far.as_fd(), Interest::Read, 4).unwrap();
        assert_eq!(
            near.send(&[IoSlice::new(b"so"), IoSlice::new(b"me")]).unwrap(),
            Some(4)
        );
        near.finish();
        assert_eq!(poll(&reading), [4]);
        assert_eq!(read(&far).unwrap().unwrap(), b"some");
        assert_eq!(read(&far).unwrap().unwrap(), b"", "the end");
        assert_eq!(read(&near).unwrap(), None, "half of it is open");
        drop(far);
        writing.add(near.as_fd(), Interest::Read, 5).unwrap_err();
        assert_eq!(read(&near).unwrap_err().kind(), io::ErrorKind::ConnectionReset);
    }
}
