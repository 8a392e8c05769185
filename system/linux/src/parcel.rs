//! Bytes and file descriptors that are handed to the next process in the queue of a Unix socket.
//!
//! A service manager can store descriptors, but compares each new one with all others, and lists
//! each in the environment: for thousands of sockets this takes longer than a restart. The queue of
//! one Unix socket holds all of them, and only this socket is passed to the manager. The kernel
//! closes the descriptors in the queue when the last end of the socket is closed.
//!
//! Source: unix(7), "SCM_RIGHTS"; the kernel takes at most 253 descriptors in one message, and as
//! many in the queues of a user as a process may have open.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::path::Path;
use std::time::Duration;

use socket2::{Domain, SockAddr, Socket, Type};

use crate::service::{memory_file, read_memory_file};
use crate::wait::wait_readable;

/// Descriptors in one message. Source: `SCM_MAX_FD`, 253, in the kernel.
const MAX_IN_MESSAGE: usize = 250;
/// Descriptors of a parcel. Source: `LimitNOFILE=` of the units.
const MAX_SOCKETS: usize = 65_536;
/// Bytes of the queue. Source: each message takes some 1 KB of it, and the default takes 200.
const QUEUE: usize = 1 << 20;
/// Time in which a process that holds a parcel answers. Source: it does nothing else.
const ANSWERS: Duration = Duration::from_secs(2);
/// Length of the control data of a message with [`MAX_IN_MESSAGE`] descriptors. Source: cmsg(3), a
/// header of 16 bytes and 4 bytes for each descriptor, twice as much.
const CONTROL: usize = 32 + 8 * MAX_IN_MESSAGE;

#[repr(align(16))]
struct Control([u8; CONTROL]);

/// Puts bytes and descriptors into the queue of a new socket pair, and returns the end that
/// receives them, and the other end. The holder of the first end must also hold the second, because
/// a service manager closes a descriptor whose peer is closed.
///
/// # Errors
/// The kernel refuses, or there are too many.
pub fn pack(bytes: &[u8], descriptors: &[BorrowedFd<'_>]) -> io::Result<(OwnedFd, OwnedFd)> {
    if descriptors.len() > MAX_SOCKETS {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let (keeps, fills) = Socket::pair(Domain::UNIX, Type::SEQPACKET, None)?;
    // The kernel limits the size for an unprivileged process.
    fills.set_send_buffer_size(QUEUE)?;
    fills.set_nonblocking(true)?;
    let content = memory_file(c"hawser streams", bytes)?;
    let first = [content.as_fd()];
    send(&fills, &first)?;
    for group in descriptors.chunks(MAX_IN_MESSAGE) {
        send(&fills, group)?;
    }
    Ok((keeps.into(), fills.into()))
}

/// Returns the contents stored by [`pack`]: at most `limit` bytes, and the descriptors in order.
///
/// # Errors
/// The socket was not created by [`pack`].
pub fn unpack(parcel: OwnedFd, limit: u64) -> io::Result<(Vec<u8>, Vec<OwnedFd>)> {
    let socket = Socket::from(parcel);
    socket.set_nonblocking(true)?;
    let mut descriptors = Vec::new();
    while descriptors.len() <= MAX_SOCKETS {
        if !receive(&socket, &mut descriptors)? {
            break;
        }
    }
    if descriptors.is_empty() {
        return Err(io::ErrorKind::InvalidData.into());
    }
    let content = descriptors.remove(0);
    Ok((read_memory_file(content, limit)?, descriptors))
}

/// Waits for a process that connects to `listener`, and passes it both ends of a parcel. The parcel
/// is lost if no process connects within `timeout`.
///
/// # Errors
/// The kernel refuses.
pub fn hold(listener: OwnedFd, parcel: [OwnedFd; 2], timeout: Duration) -> io::Result<()> {
    let mut ready = [false];
    wait_readable(&[listener.as_fd()], Some(timeout), &mut ready)?;
    if !ready[0] {
        return Ok(());
    }
    let (taker, _) = Socket::from(listener).accept()?;
    let ends = parcel.each_ref().map(OwnedFd::as_fd);
    send(&taker, &ends)
}

/// Receives the parcel from a process that runs [`hold`] and listens at a path.
///
/// # Errors
/// There is no such process.
pub fn fetch(path: &Path) -> io::Result<OwnedFd> {
    let socket = Socket::new(Domain::UNIX, Type::SEQPACKET, None)?;
    socket.connect(&SockAddr::unix(path)?)?;
    let mut ready = [false];
    wait_readable(&[socket.as_fd()], Some(ANSWERS), &mut ready)?;
    let mut ends = Vec::new();
    receive(&socket, &mut ends)?;
    let mut ends = ends.into_iter();
    ends.next().ok_or_else(|| io::ErrorKind::InvalidData.into())
}

/// Listens at a path for the process that receives a parcel.
///
/// # Errors
/// The directory cannot be written.
pub fn listen(path: &Path) -> io::Result<OwnedFd> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        Ok(()) | Err(_) => {}
    }
    let socket = Socket::new(Domain::UNIX, Type::SEQPACKET, None)?;
    socket.bind(&SockAddr::unix(path)?)?;
    socket.listen(1)?;
    Ok(socket.into())
}

fn send(socket: &Socket, descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
    let mut mark = [0_u8; 1];
    let mut part = libc::iovec {
        iov_base: mark.as_mut_ptr().cast(),
        iov_len: mark.len(),
    };
    let mut control = Control([0; CONTROL]);
    let size = u32::try_from(size_of_val(descriptors)).map_err(|_| io::ErrorKind::InvalidInput)?;
    // SAFETY: plain data for which all zeroes is a valid value.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = &raw mut part;
    message.msg_iovlen = 1;
    message.msg_control = control.0.as_mut_ptr().cast();
    // SAFETY: computes a number.
    message.msg_controllen = unsafe { libc::CMSG_SPACE(size) } as _;
    // SAFETY: `control` is aligned and larger than `msg_controllen`, so the header and the numbers
    // behind it lie within; both live through the call.
    let sent = unsafe {
        let header = libc::CMSG_FIRSTHDR(&raw const message);
        (*header).cmsg_level = libc::SOL_SOCKET;
        (*header).cmsg_type = libc::SCM_RIGHTS;
        (*header).cmsg_len = libc::CMSG_LEN(size) as _;
        let numbers = libc::CMSG_DATA(header).cast::<libc::c_int>();
        for (at, descriptor) in descriptors.iter().enumerate() {
            numbers.add(at).write_unaligned(descriptor.as_raw_fd());
        }
        libc::sendmsg(socket.as_raw_fd(), &raw const message, libc::MSG_NOSIGNAL)
    };
    if sent < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

/// Receives one message; returns false if none is left.
fn receive(socket: &Socket, descriptors: &mut Vec<OwnedFd>) -> io::Result<bool> {
    let mut mark = [0_u8; 1];
    let mut part = libc::iovec {
        iov_base: mark.as_mut_ptr().cast(),
        iov_len: mark.len(),
    };
    let mut control = MaybeUninit::<Control>::zeroed();
    // SAFETY: plain data for which all zeroes is a valid value.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = &raw mut part;
    message.msg_iovlen = 1;
    message.msg_control = control.as_mut_ptr().cast();
    message.msg_controllen = CONTROL as _;
    // SAFETY: all that the message points to lives through the call and is as large as it says.
    let received = unsafe { libc::recvmsg(socket.as_raw_fd(), &raw mut message, libc::MSG_CMSG_CLOEXEC) };
    if received < 0 {
        let error = io::Error::last_os_error();
        if error.kind() == io::ErrorKind::WouldBlock {
            return Ok(false);
        }
        return Err(error);
    }
    // SAFETY: the kernel has written as many bytes of control data as `msg_controllen` says; each
    // number is a new descriptor without another owner.
    unsafe {
        let mut header = libc::CMSG_FIRSTHDR(&raw const message);
        while !header.is_null() {
            if (*header).cmsg_level == libc::SOL_SOCKET && (*header).cmsg_type == libc::SCM_RIGHTS {
                let len = (*header).cmsg_len as usize - libc::CMSG_LEN(0) as usize;
                let numbers = libc::CMSG_DATA(header).cast::<libc::c_int>();
                for at in 0..len / size_of::<libc::c_int>() {
                    descriptors.push(OwnedFd::from_raw_fd(numbers.add(at).read_unaligned()));
                }
            }
            header = libc::CMSG_NXTHDR(&raw const message, header);
        }
    }
    if message.msg_flags & libc::MSG_CTRUNC != 0 {
        return Err(io::Error::other("no descriptor is left"));
    }
    Ok(received > 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::io::{Read, Write};

    #[test]
    fn a_parcel_is_unpacked_as_it_was_packed_also_through_another_descriptor() {
        let pairs: Vec<_> = (0..600).map(|_| std::io::pipe().unwrap()).collect();
        let writers: Vec<_> = pairs.iter().map(|(_, writer)| writer.as_fd()).collect();
        let (parcel, other) = pack(b"bytes", &writers).unwrap();
        let mut readers: Vec<_> = pairs.into_iter().map(|(reader, _)| reader).collect();
        let kept = parcel.try_clone().unwrap();
        drop((parcel, other));
        let (bytes, descriptors) = unpack(kept, 5).unwrap();
        assert_eq!((&bytes[..], descriptors.len()), (&b"bytes"[..], 600));
        for (at, descriptor) in descriptors.into_iter().enumerate() {
            File::from(descriptor).write_all(&[at as u8]).unwrap();
        }
        for (at, reader) in readers.iter_mut().enumerate() {
            let mut byte = Vec::new();
            reader.read_to_end(&mut byte).unwrap();
            assert_eq!(byte, [at as u8], "in their order");
        }
    }

    #[test]
    fn a_parcel_is_fetched_once_from_whoever_holds_it() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("streams");
        let listener = listen(&path).unwrap();
        let (parcel, end) = pack(b"bytes", &[]).unwrap();
        let timeout = Duration::from_secs(20);
        let holding = std::thread::spawn(move || hold(listener, [parcel, end], timeout));
        let fetched = fetch(&path).unwrap();
        holding.join().unwrap().unwrap();
        assert_eq!(unpack(fetched, 5).unwrap().0, b"bytes");
        assert!(fetch(&path).is_err(), "it is over");
    }

    #[test]
    fn what_is_no_parcel_is_refused() {
        let (one, _other) = Socket::pair(Domain::UNIX, Type::SEQPACKET, None).unwrap();
        assert!(unpack(one.into(), 5).is_err(), "empty");
        assert!(
            unpack(pack(b"longer", &[]).unwrap().0, 5).is_err(),
            "more than may be"
        );
    }
}
