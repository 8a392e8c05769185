//! Queue from eBPF programs to this process, in shared memory.
//!
//! Reading needs no system call, so a process that has dropped the permission for `bpf` can
//! continue to use it.
//!
//! Source: Documentation/bpf/ringbuf.rst of Linux (5.8 and later).

use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

use super::kernel::make_map;

/// Reading end of the queue. The kernel serialises the records of programs.
#[derive(Debug)]
pub(super) struct Ring {
    fd: OwnedFd,
    /// First page, with the position up to which records were read. This process writes it.
    consumed: Mapping,
    /// A page with the position up to which records are written, followed by the records, mapped
    /// twice in a row.
    produced: Mapping,
    page: usize,
}

impl Ring {
    /// Creates a queue of one page: about 50 records of 64 bytes.
    pub(super) fn new() -> io::Result<Self> {
        // SAFETY: no memory is involved.
        let page = usize::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).unwrap_or(4096);
        let fd = make_map(RING, 0, 0, u32::try_from(page).unwrap_or(4096))?;
        let writable = libc::PROT_READ | libc::PROT_WRITE;
        Ok(Self {
            consumed: Mapping::new(&fd, 0, page, writable)?,
            produced: Mapping::new(&fd, page, 3 * page, libc::PROT_READ)?,
            fd,
            page,
        })
    }

    pub(super) fn number(&self) -> i32 {
        self.fd.as_raw_fd()
    }

    /// Removes the oldest record, truncated to `N` bytes; `None` if none is complete.
    pub(super) fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        // SAFETY: both mappings begin with a word that is aligned, as pages are, and live as long
        // as `self`; the kernel and this process change them by atomic operations alone.
        let consumed = unsafe { self.consumed.start.cast::<AtomicUsize>().as_ref() };
        // SAFETY: as above.
        let produced = unsafe { self.produced.start.cast::<AtomicUsize>().as_ref() };
        let at = consumed.load(Ordering::Relaxed);
        if at == produced.load(Ordering::Acquire) {
            return None;
        }
        // SAFETY: records begin behind the first page, at multiples of eight bytes below the length
        // of a page, and the mapping has two more pages.
        let record = unsafe { self.produced.start.byte_add(self.page + (at & (self.page - 1))) };
        // SAFETY: as above; a record begins with a word that the kernel writes as one.
        let header = unsafe { record.cast::<AtomicU32>().as_ref() }.load(Ordering::Acquire);
        if header & BUSY != 0 {
            return None;
        }
        let length = ((header & !DISCARDED) as usize).min(self.page - HEADER);
        let mut bytes = [0; N];
        // SAFETY: a record is shorter than a page, the records are mapped twice in a row, and the
        // kernel does not change this one before it is notified that it was read.
        let written = unsafe {
            std::slice::from_raw_parts(record.byte_add(HEADER).cast::<u8>().as_ptr(), length.min(N))
        };
        bytes[..written.len()].copy_from_slice(written);
        consumed.store(
            at.wrapping_add(HEADER + length.next_multiple_of(8)),
            Ordering::Release,
        );
        Some(bytes)
    }
}

// SAFETY: memory that is mapped is there for all threads, and reading a record takes `&mut`.
unsafe impl Send for Ring {}

impl AsRawFd for Ring {
    fn as_raw_fd(&self) -> RawFd {
        self.fd.as_raw_fd()
    }
}

/// Memory that is shared with the kernel.
#[derive(Debug)]
struct Mapping {
    start: NonNull<u64>,
    length: usize,
}

impl Mapping {
    fn new(fd: &OwnedFd, offset: usize, length: usize, protection: i32) -> io::Result<Self> {
        let offset = libc::off_t::try_from(offset).map_err(io::Error::other)?;
        // SAFETY: the kernel chooses where, so nothing that is there is replaced.
        let start = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                length,
                protection,
                libc::MAP_SHARED,
                fd.as_raw_fd(),
                offset,
            )
        };
        match NonNull::new(start.cast::<u64>()) {
            Some(place) if start != libc::MAP_FAILED => Ok(Self { start: place, length }),
            _ => Err(io::Error::last_os_error()),
        }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: it was mapped with this length, and no reference into it remains.
        unsafe { libc::munmap(self.start.as_ptr().cast(), self.length) };
    }
}

// linux/bpf.h
const RING: u32 = 27;
/// Size of the header before each record: `BPF_RINGBUF_HDR_SZ` of linux/bpf.h.
const HEADER: usize = 8;
/// Flag of a record that is being written: `BPF_RINGBUF_BUSY_BIT` of linux/bpf.h.
const BUSY: u32 = 1 << 31;
/// Flag of a record to be skipped: `BPF_RINGBUF_DISCARD_BIT` of linux/bpf.h. Only reserved records
/// can have it, and our programs submit complete records.
const DISCARDED: u32 = 1 << 30;
