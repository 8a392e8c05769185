//! The `bpf` system call: maps, programs, links.

use std::ffi::CStr;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

/// Attachment of a program in the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AttachPoint {
    /// Reception of a packet: `BPF_PROG_TYPE_SOCKET_FILTER`.
    Packet,
    /// Before a socket is created: `BPF_PROG_TYPE_CGROUP_SOCK`, `BPF_CGROUP_INET_SOCK_CREATE`.
    SocketMade,
    /// Before `setsockopt`: `BPF_PROG_TYPE_CGROUP_SOCKOPT`, `BPF_CGROUP_SETSOCKOPT`.
    SetOption,
    /// Before a socket connects: `BPF_PROG_TYPE_CGROUP_SOCK_ADDR`, `BPF_CGROUP_INET4_CONNECT`.
    Connect4,
    /// `BPF_CGROUP_INET6_CONNECT`: a connect of an IPv6 socket.
    Connect6,
}

impl AttachPoint {
    fn program_type(self) -> u32 {
        match self {
            Self::Packet => 1,
            Self::SocketMade => 9,
            Self::Connect4 | Self::Connect6 => 18,
            Self::SetOption => 25,
        }
    }

    fn attach_type(self) -> u32 {
        match self {
            // It has only one attach point.
            Self::Packet => 0,
            Self::SocketMade => 2,
            Self::Connect4 => 10,
            Self::Connect6 => 11,
            Self::SetOption => 22,
        }
    }
}

/// A hash table that programs read.
#[derive(Debug)]
pub(super) struct Map {
    fd: OwnedFd,
    key: usize,
}

impl Map {
    /// Creates a table of four-byte values with keys of `key` bytes.
    pub(super) fn new(key: usize, entries: u32) -> io::Result<Self> {
        let fd = make_map(HASH, u32::try_from(key).unwrap_or(u32::MAX), 4, entries)?;
        Ok(Self { fd, key })
    }

    pub(super) fn number(&self) -> i32 {
        self.fd.as_raw_fd()
    }

    pub(super) fn insert(&self, key: &[u8], value: u32) -> io::Result<()> {
        assert_eq!(key.len(), self.key, "keys have the length of the map's");
        let value = value.to_ne_bytes();
        let attributes = [self.fd.as_raw_fd() as u64, address(key), address(&value), 0];
        call(MAP_UPDATE, &attributes).map(drop)
    }

    pub(super) fn remove(&self, key: &[u8]) -> io::Result<()> {
        assert_eq!(key.len(), self.key, "keys have the length of the map's");
        let attributes = [self.fd.as_raw_fd() as u64, address(key), 0, 0];
        call(MAP_DELETE, &attributes).map(drop)
    }
}

/// Creates a map of a kind, with these sizes of keys and values.
pub(super) fn make_map(kind: u32, key: u32, value: u32, entries: u32) -> io::Result<OwnedFd> {
    let mut attributes = [0_u32; 18];
    attributes[..4].copy_from_slice(&[kind, key, value, entries]);
    open(MAP_CREATE, &attributes)
}

/// Loads a program; the error contains the verifier's message.
pub(super) fn load(place: AttachPoint, code: &[u64]) -> io::Result<OwnedFd> {
    let license: &CStr = c"Apache-2.0";
    let mut log = vec![0_u8; LOG];
    let instructions = u32::try_from(code.len()).unwrap_or(u32::MAX);
    // Fields of four bytes, of which pointers take two.
    let mut attributes = [0_u32; 18];
    attributes[0] = place.program_type();
    attributes[1] = instructions;
    put(&mut attributes, 2, code.as_ptr() as u64);
    put(&mut attributes, 4, license.as_ptr() as u64);
    attributes[17] = place.attach_type();
    let silent = open(PROGRAM_LOAD, &attributes);
    if !matches!(&silent, Err(error) if [libc::EACCES, libc::EINVAL].contains(&error.raw_os_error().unwrap_or(0)))
    {
        return silent;
    }
    (attributes[6], attributes[7]) = (1, log.len() as u32);
    put(&mut attributes, 8, log.as_mut_ptr() as u64);
    open(PROGRAM_LOAD, &attributes).map_err(|error| {
        let end = log.iter().position(|byte| *byte == 0).unwrap_or(0);
        let said = String::from_utf8_lossy(&log[..end]);
        let last = said.lines().rev().take(3).collect::<Vec<_>>().join("; ");
        io::Error::new(error.kind(), format!("{error} ({last})"))
    })
}

/// Attaches a program to the control group whose open directory is `group`, in addition to existing
/// programs. It stays attached for the lifetime of the link.
pub(super) fn attach(place: AttachPoint, program: &OwnedFd, group: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    let mut attributes = [0_u32; 18];
    attributes[0] = program.as_raw_fd() as u32;
    attributes[1] = group.as_raw_fd() as u32;
    attributes[2] = place.attach_type();
    open(LINK_CREATE, &attributes)
}

fn put(attributes: &mut [u32; 18], at: usize, pointer: u64) {
    let bytes = pointer.to_ne_bytes();
    for (slot, half) in attributes[at..at + 2].iter_mut().zip(bytes.chunks_exact(4)) {
        *slot = u32::from_ne_bytes(half.try_into().expect("four bytes"));
    }
}

fn address(bytes: &[u8]) -> u64 {
    bytes.as_ptr() as u64
}

fn open<T: Copy>(command: libc::c_int, attributes: &[T]) -> io::Result<OwnedFd> {
    let fd = call(command, attributes)?;
    // SAFETY: the call has created this descriptor, and no other code knows it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Calls `bpf`. `attributes` is a prefix of `union bpf_attr`; the kernel treats the rest as zero.
/// Pointers in it must outlive the call.
fn call<T: Copy>(command: libc::c_int, attributes: &[T]) -> io::Result<i32> {
    let length = size_of_val(attributes) as libc::c_uint;
    // SAFETY: the kernel reads `length` bytes of attributes; every pointer in them is to a live
    // buffer of the length that the kernel takes from the attributes or, for keys and values, from
    // the map, which `Map` checks.
    let result = unsafe { libc::syscall(libc::SYS_bpf, command, attributes.as_ptr(), length) };
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(result as i32)
}

// linux/bpf.h
/// Offset of the mark in `struct bpf_sock`.
pub(super) const MARK: i16 = 16;
const MAP_CREATE: libc::c_int = 0;
const MAP_UPDATE: libc::c_int = 2;
const MAP_DELETE: libc::c_int = 3;
const PROGRAM_LOAD: libc::c_int = 5;
const LINK_CREATE: libc::c_int = 28;
const HASH: u32 = 1;
/// Size of the log: enough for the messages of the verifier about a few hundred instructions.
/// Source: our choice; the kernel accepts less than 1 GB (`UINT_MAX >> 2`, linux/kernel/bpf/log.c),
/// and if the log is too small, loading fails with ENOSPC.
const LOG: usize = 1 << 20;
