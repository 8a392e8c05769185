//! TUN interface for applications, or TAP interface for a bridge, with segmentation offload.
//!
//! One read or write transfers up to 64 KB of one flow after a virtio header, so there is one
//! system call for about 40 packets.

use std::fs::{File, OpenOptions};
use std::io::{self, IoSlice, Read, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;

use libc::{c_int, c_short, c_uint};

use crate::bpf::QueueChoice;
use crate::{check, ioctl_request};

// Source: linux/if_tun.h; the number of a call holds direction and size of its argument.
const TUNSETIFF: libc::Ioctl = ioctl_request(0x4004_54ca);
const TUNGETIFF: libc::Ioctl = ioctl_request(0x8004_54d2);
const TUNSETOFFLOAD: libc::Ioctl = ioctl_request(0x4004_54d0);
const TUNSETVNETHDRSZ: libc::Ioctl = ioctl_request(0x4004_54d8);
const TUNSETSTEERINGEBPF: libc::Ioctl = ioctl_request(0x8004_54e0);
const SIOCSIFMTU: libc::Ioctl = ioctl_request(libc::SIOCSIFMTU as u32);
const TUN_F_CSUM: c_uint = 0x01;
const TUN_F_TSO4: c_uint = 0x02;
const TUN_F_TSO6: c_uint = 0x04;
const TUN_F_TSO_ECN: c_uint = 0x08;
const TUN_F_USO4: c_uint = 0x20;
const TUN_F_USO6: c_uint = 0x40;
const VIRTIO_LEN: c_int = 10;

/// Bytes that a read may need: the virtio header and the largest packet. Source: `struct
/// virtio_net_hdr` of linux/virtio_net.h has 10 bytes, and a packet has at most 64 KiB.
pub const READ_LEN: usize = 10 + 65_536;

/// An open TUN interface; it is removed when the last handle is closed.
#[derive(Debug)]
pub struct Tun {
    file: File,
    name: String,
    takes_coalesced_udp: bool,
}

/// Reason why a TUN interface could not be created.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TunError {
    /// The kernel has no TUN devices, or this user may not use them.
    #[error("cannot open /dev/net/tun: check that the tun module is loaded, and run as root")]
    Open(#[source] io::Error),
    /// The name is empty or longer than 15 bytes.
    #[error("`{0}` is not an interface name: 1 to 15 bytes")]
    Name(String),
    /// The interface could not be created: the name is taken, or privileges are missing.
    #[error("cannot create interface `{0}`: another hawser may be running, or rights are missing")]
    Create(String, #[source] io::Error),
    /// The kernel refuses an option.
    #[error("interface `{0}` does not support the option {1}")]
    Option(String, &'static str, #[source] io::Error),
    /// An inherited descriptor is not an interface of the kind that [`Tun::create`] creates.
    #[error("not a TUN interface of Hawser")]
    Foreign,
    /// TUN interface of another name.
    #[error("the interface is called {0}")]
    OtherName(String),
}

impl Tun {
    /// Creates an interface named `name` (down, without addresses) with an MTU of `mtu` bytes of IP
    /// packet.
    ///
    /// # Errors
    /// [`TunError`]: no interface is left behind.
    pub fn create(name: &str, mtu: u16) -> Result<Self, TunError> {
        Self::create_as(name, mtu, libc::IFF_TUN)
    }

    /// Creates an Ethernet interface named `name` (down, with a random address) with an MTU of
    /// `mtu` bytes. Reads and writes are frames after their virtio headers.
    ///
    /// # Errors
    /// [`TunError`]: no interface is left behind.
    pub fn create_ethernet(name: &str, mtu: u16) -> Result<Self, TunError> {
        Self::create_as(name, mtu, libc::IFF_TAP)
    }

    /// Creates the interface like [`Self::create`], with `count` queues, each with its own handle.
    /// With a single queue it is equivalent to [`Self::create`].
    ///
    /// # Errors
    /// [`TunError`]: no interface is left behind.
    pub fn create_queues(name: &str, mtu: u16, count: u32) -> Result<Vec<Self>, TunError> {
        let kind = libc::IFF_TUN | several(count);
        (0..count).map(|_| Self::create_as(name, mtu, kind)).collect()
    }

    fn create_as(name: &str, mtu: u16, kind: c_int) -> Result<Self, TunError> {
        let file = open(name, kind | libc::IFF_NO_PI | libc::IFF_VNET_HDR)?;
        Self::prepare(file, name.to_owned(), mtu)
    }

    /// Continues with a queue of the interface `wanted`, which another process created with
    /// [`Self::create_queues`] of `count` queues, with an MTU of `mtu` bytes.
    ///
    /// # Errors
    /// [`TunError`]: the descriptor is of another kind, or does not accept the MTU; it is closed.
    pub fn adopt(descriptor: OwnedFd, wanted: &str, mtu: u16, count: u32) -> Result<Self, TunError> {
        let file = File::from(descriptor);
        let request = attached(&file).map_err(|_| TunError::Foreign)?;
        // SAFETY: the kernel has filled in the flags; any bits are valid.
        let flags = unsafe { request.ifr_ifru.ifru_flags };
        let kind = (libc::IFF_TUN | libc::IFF_NO_PI | libc::IFF_VNET_HDR) as c_short;
        let name = request.ifr_name.iter().take_while(|byte| **byte != 0);
        let name = String::from_utf8(name.map(|byte| byte.to_ne_bytes()[0]).collect());
        let name = name.map_err(|_| TunError::Foreign)?;
        let has_several = c_int::from(flags) & libc::IFF_MULTI_QUEUE != 0;
        if flags & kind != kind || has_several != (several(count) != 0) {
            return Err(TunError::Foreign);
        }
        if name != wanted {
            return Err(TunError::OtherName(name));
        }
        Self::prepare(file, name, mtu)
    }

    /// Sets the options of an interface.
    fn prepare(file: File, name: String, mtu: u16) -> Result<Self, TunError> {
        let mut tun = Self {
            file,
            name,
            takes_coalesced_udp: false,
        };
        tun.set_offloads()?;
        tun.set_mtu(mtu)?;
        Ok(tun)
    }

    fn set_offloads(&mut self) -> Result<(), TunError> {
        let option = |what, error| TunError::Option(self.name.clone(), what, error);
        let len = VIRTIO_LEN;
        // SAFETY: the argument points to an int that outlives the call.
        let result = unsafe { libc::ioctl(self.file.as_raw_fd(), TUNSETVNETHDRSZ, &raw const len) };
        check(result).map_err(|error| option("virtio header size", error))?;
        let tcp = TUN_F_CSUM | TUN_F_TSO4 | TUN_F_TSO6 | TUN_F_TSO_ECN;
        // UDP segmentation needs Linux 6.2; without it, such packets are transferred one by one.
        self.takes_coalesced_udp = self.offload(tcp | TUN_F_USO4 | TUN_F_USO6).is_ok();
        if !self.takes_coalesced_udp {
            let set = self.offload(tcp);
            set.map_err(|error| option("segmentation offload", error))?;
        }
        Ok(())
    }

    /// Returns whether several UDP packets of one flow can be written as one. A kernel before Linux
    /// 6.2 refuses such a write.
    #[must_use]
    pub fn takes_coalesced_udp(&self) -> bool {
        self.takes_coalesced_udp
    }

    fn offload(&self, flags: c_uint) -> io::Result<()> {
        // SAFETY: this request takes its argument by value.
        check(unsafe { libc::ioctl(self.file.as_raw_fd(), TUNSETOFFLOAD, libc::c_ulong::from(flags)) })
    }

    /// Attaches an eBPF program that chooses the queue of each packet.
    ///
    /// # Errors
    /// The kernel is older than Linux 4.16.
    pub fn choose_queues(&self, choice: &QueueChoice) -> io::Result<()> {
        let program = choice.as_fd().as_raw_fd();
        // SAFETY: the argument points to an int that outlives the call.
        check(unsafe { libc::ioctl(self.file.as_raw_fd(), TUNSETSTEERINGEBPF, &raw const program) })
    }

    /// Changes the interface's MTU.
    ///
    /// # Errors
    /// [`TunError::Option`]: the MTU is unchanged.
    pub fn set_mtu(&self, mtu: u16) -> Result<(), TunError> {
        let error = |error| TunError::Option(self.name.clone(), "MTU", error);
        let socket =
            socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::DGRAM, None).map_err(error)?;
        let mut request = interface_request(&self.name);
        request.ifr_ifru.ifru_mtu = c_int::from(mtu);
        // SAFETY: the request is a valid `ifreq` that outlives the call.
        let set = unsafe { libc::ioctl(socket.as_raw_fd(), SIOCSIFMTU, &raw mut request) };
        check(set).map_err(error)
    }

    /// Returns the interface's name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns whether another program has removed the interface, without reading a packet.
    #[must_use]
    pub fn is_detached(&self) -> bool {
        attached(&self.file).is_err_and(|error| is_removed(&error))
    }

    /// Reads one packet after its virtio header; `None` if none is available. `buffer` should have
    /// [`READ_LEN`] bytes.
    ///
    /// # Errors
    /// The interface is down (`EIO`), or was removed ([`is_removed`]).
    pub fn read(&self, buffer: &mut [u8]) -> io::Result<Option<usize>> {
        would_block((&self.file).read(buffer))
    }

    /// Writes one packet: virtio header, headers and payload pieces. Returns false if the kernel's
    /// queue is full.
    ///
    /// # Errors
    /// The interface was removed, or the kernel refuses the packet.
    pub fn write(&self, pieces: &[IoSlice<'_>]) -> io::Result<bool> {
        Ok(would_block((&self.file).write_vectored(pieces))?.is_some())
    }

    /// Returns a second handle to the same interface and queue, for another thread.
    ///
    /// # Errors
    /// No file descriptor is left.
    pub fn try_clone(&self) -> io::Result<Self> {
        Ok(Self {
            file: self.file.try_clone()?,
            name: self.name.clone(),
            takes_coalesced_udp: self.takes_coalesced_udp,
        })
    }
}

impl AsFd for Tun {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

/// Returns name and flags of the interface of a descriptor.
fn attached(file: &File) -> io::Result<libc::ifreq> {
    let mut request = interface_request("");
    // SAFETY: the request is a valid `ifreq` that outlives the call; the kernel writes only within
    // it.
    let result = unsafe { libc::ioctl(file.as_raw_fd(), TUNGETIFF, &raw mut request) };
    check(result)?;
    Ok(request)
}

/// Returns whether an error of [`Tun::read`] means that another program has removed the interface.
///
/// Source: Linux, `tun_chr_read_iter`: `EBADFD` without an interface.
#[must_use]
pub fn is_removed(error: &io::Error) -> bool {
    error.raw_os_error() == Some(libc::EBADFD)
}

/// Returns the flag of an interface with several queues.
fn several(count: u32) -> c_int {
    if count > 1 { libc::IFF_MULTI_QUEUE } else { 0 }
}

/// Creates a TUN or TAP interface named `name` with `flags` of linux/if_tun.h; reads do not block.
pub(crate) fn open(name: &str, flags: c_int) -> Result<File, TunError> {
    if name.is_empty() || name.len() >= libc::IFNAMSIZ {
        return Err(TunError::Name(name.to_owned()));
    }
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .custom_flags(libc::O_NONBLOCK | libc::O_CLOEXEC)
        .open("/dev/net/tun")
        .map_err(TunError::Open)?;
    let mut request = interface_request(name);
    request.ifr_ifru.ifru_flags = flags as c_short;
    // SAFETY: the request is a valid `ifreq` that outlives the call; the kernel reads and writes
    // only within it.
    let result = unsafe { libc::ioctl(file.as_raw_fd(), TUNSETIFF, &raw mut request) };
    check(result).map_err(|error| TunError::Create(name.to_owned(), error))?;
    Ok(file)
}

pub(crate) fn interface_request(name: &str) -> libc::ifreq {
    // SAFETY: `ifreq` is plain data for which all zeroes is a valid value.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    for (to, from) in request.ifr_name.iter_mut().zip(name.bytes()) {
        *to = libc::c_char::from_ne_bytes([from]);
    }
    request
}

pub(crate) fn would_block(result: io::Result<usize>) -> io::Result<Option<usize>> {
    match result {
        Ok(len) => Ok(Some(len)),
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(None),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interface_passes_from_one_process_to_another_and_nothing_else_does() {
        let Ok(namespace) = crate::netns::Namespace::new() else {
            hawser_testing::skip("no namespaces");
            return;
        };
        let adopted = namespace.run(|| {
            let made = Tun::create("given", 1400).expect("an interface");
            let renamed = Tun::adopt(made.file.try_clone()?.into(), "other", 1400, 1);
            assert!(matches!(renamed, Err(TunError::OtherName(name)) if name == "given"));
            let of_two = Tun::adopt(made.file.try_clone()?.into(), "given", 1400, 2);
            assert!(matches!(of_two, Err(TunError::Foreign)), "it has one queue");
            let adopted = Tun::adopt(made.file.try_clone()?.into(), "given", 1400, 1);
            drop(made);
            let devices = std::fs::read_to_string("/proc/thread-self/net/dev")?;
            assert!(devices.contains("given:"), "it lives on: {devices}");
            Ok::<_, io::Error>(adopted)
        });
        assert_eq!(adopted.unwrap().unwrap().name(), "given");
        let other = File::open("/dev/null").unwrap();
        assert!(matches!(
            Tun::adopt(other.into(), "given", 1400, 1),
            Err(TunError::Foreign)
        ));
    }

    /// Returns the last byte of each packet in a queue, which is the sender's packet number.
    fn numbers(queue: &Tun) -> Vec<u8> {
        let mut buffer = vec![0; READ_LEN];
        let mut found = Vec::new();
        while let Ok(Some(len)) = queue.read(&mut buffer) {
            // The kernel itself sends IPv6 multicast packets.
            if buffer[..len].ends_with(b"to you") {
                let is_v6 = buffer[10] >> 4 == 6;
                found.push(buffer[if is_v6 { 10 + 39 } else { 10 + 19 }]);
            }
        }
        found
    }

    #[test]
    fn packets_come_out_of_the_queue_that_their_destination_chooses() {
        for count in [2, 3, 5] {
            // Another test that starts a program may keep the last interface open for a moment.
            let Ok(namespace) = crate::netns::Namespace::new() else {
                hawser_testing::skip("no namespaces");
                return;
            };
            let run = |arguments: &str| {
                let output = namespace
                    .command("ip")
                    .args(arguments.split(' '))
                    .output()
                    .unwrap();
                let said = String::from_utf8_lossy(&output.stderr).into_owned();
                assert!(output.status.success(), "{said}");
            };
            let queues = namespace.run(|| {
                let choice = QueueChoice::new(count, 0x0f)?;
                let queues = Tun::create_queues("several", 1400, count).expect("an interface");
                queues[0].choose_queues(&choice)?;
                let other = Tun::adopt(queues[1].file.try_clone()?.into(), "several", 1400, count);
                assert!(other.is_ok(), "{other:?}");
                Ok::<_, io::Error>(queues)
            });
            let queues = match queues {
                Ok(queues) => queues,
                Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                    hawser_testing::skip(format!("no right to load eBPF programs: {error}"));
                    return;
                }
                Err(error) => panic!("{error}"),
            };
            run("link set several up");
            // The network's address is not a multiple of any count: only the host's bits decide.
            run("addr add 10.9.7.16/24 dev several");
            run("addr add fd00::7:0/64 dev several nodad");
            namespace
                .run(|| {
                    let (v4, v6) = (
                        std::net::UdpSocket::bind("0.0.0.0:0")?,
                        std::net::UdpSocket::bind("[::]:0")?,
                    );
                    for host in 1..15_u8 {
                        v4.send_to(b"to you", (std::net::Ipv4Addr::new(10, 9, 7, 0x10 + host), 9))?;
                        let to = std::net::Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 7, u16::from(host));
                        v6.send_to(b"to you", (to, 9))?;
                    }
                    Ok::<_, io::Error>(())
                })
                .unwrap();
            for (at, queue) in queues.iter().enumerate() {
                let mut hosts = numbers(queue);
                hosts.iter_mut().for_each(|host| *host &= 0x0f);
                let wanted = (1..15_u8).filter(|host| u32::from(*host) % count == at as u32);
                let mut wanted: Vec<_> = wanted.flat_map(|host| [host, host]).collect();
                hosts.sort_unstable();
                wanted.sort_unstable();
                assert_eq!(hosts, wanted, "queue {at} of {count}");
            }
            for marked in 0..count as u8 {
                namespace
                    .run(|| {
                        let socket = std::net::UdpSocket::bind("0.0.0.0:0")?;
                        socket2::SockRef::from(&socket).set_mark(crate::bpf::queue_mark(marked))?;
                        (1..15_u8).try_for_each(|host| {
                            let to = (std::net::Ipv4Addr::new(10, 9, 7, 0x10 + host), 9);
                            socket.send_to(b"to you", to).map(drop)
                        })
                    })
                    .unwrap();
                for (at, queue) in queues.iter().enumerate() {
                    let wanted = if at == usize::from(marked) { 14 } else { 0 };
                    assert_eq!(
                        numbers(queue).len(),
                        wanted,
                        "marked for {marked}: queue {at} of {count}"
                    );
                }
            }
        }
    }
}
