//! Threads that transfer real packets through emulated links.
//!
//! One thread per direction of a network reads packets from the device at one end, passes them to a
//! [`Link`], and writes each to the device at the other end when it is due. It starts with the run
//! and ends when its handle is dropped.
//!
//! Both devices have segmentation offload, as network cards do: a large packet of the kernel is
//! segmented into the packets of a wire, each of which the link queues, delays or drops separately;
//! packets of one flow that are delivered in the same instant are joined for the kernel.

use std::io::{self, IoSlice};
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use hawser_linux::clock;
use hawser_linux::tun::{READ_LEN, Tun};
use hawser_linux::wait::{Waker, wait_readable};
use hawser_netem::{Change, Codepoint, Counters, Header, Link, LinkConfig, Verdict};
use hawser_units::{Duration, Instant};
use hawser_wire::frame::Format;
use hawser_wire::icmp;
use hawser_wire::inner::{self, Ecn, protocol};
use hawser_wire::offload::{Coalescer, Join, Offload, Segmenter, VIRTIO_LEN};

/// A running direction of a network.
#[derive(Debug)]
pub(crate) struct Pump {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    wake: Waker,
    is_over: AtomicBool,
    changes: Mutex<Vec<Change>>,
    counters: SharedCounters,
}

/// Counters of the link, readable from other threads.
#[derive(Debug, Default)]
struct SharedCounters {
    bytes: AtomicU64,
    packets: AtomicU64,
    lost_queue: AtomicU64,
    lost_random: AtomicU64,
    lost_outage: AtomicU64,
    lost_middlebox: AtomicU64,
}

struct Packet {
    bytes: Box<[u8; MTU]>,
    len: usize,
    /// Set if the transport checksum covers only the pseudo-header, because the kernel left the
    /// rest to the device.
    is_partial: bool,
}

impl Packet {
    fn empty() -> Self {
        Self {
            bytes: Box::new([0; MTU]),
            len: 0,
            is_partial: false,
        }
    }

    fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

impl Pump {
    /// Starts to transfer packets from one device to the other. `remotes`: the pump's own, and that
    /// of the opposite direction, which stops when this one hangs.
    pub(crate) fn start(
        name: &str,
        (from, to): (Arc<Tun>, Arc<Tun>),
        config: LinkConfig,
        seed: u64,
        remotes: [&Remote; 2],
    ) -> io::Result<Self> {
        let [Remote(shared), opposite] = remotes;
        let shared = Arc::clone(shared);
        let worker = Worker {
            coalescer: Coalescer::new(Format::Ip, to.takes_coalesced_udp()),
            from,
            to,
            link: Link::new(config, seed, clock::now()),
            pool: Vec::new(),
            scratch: vec![0; READ_LEN],
            due: Vec::with_capacity(MAX_DUE),
            shared: Arc::clone(&shared),
            opposite: opposite.clone(),
        };
        let thread = std::thread::Builder::new()
            .name(format!("link-{name}"))
            .spawn(|| worker.run())?;
        Ok(Self {
            shared,
            thread: Some(thread),
        })
    }

    /// Returns the control of the link.
    pub(crate) fn remote(&self) -> Remote {
        Remote(Arc::clone(&self.shared))
    }

    /// Changes the link at once.
    pub(crate) fn change(&self, change: Change) {
        self.remote().change(change);
    }

    pub(crate) fn counters(&self) -> Counters {
        self.remote().counters()
    }
}

/// Control of the link of a [`Pump`].
#[derive(Clone, Debug)]
pub(crate) struct Remote(Arc<Shared>);

impl Remote {
    /// Creates the control of a link for [`Pump::start`].
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Self(Arc::new(Shared {
            wake: Waker::new()?,
            is_over: AtomicBool::new(false),
            changes: Mutex::new(Vec::new()),
            counters: SharedCounters::default(),
        })))
    }

    pub(crate) fn change(&self, change: Change) {
        let Self(shared) = self;
        shared
            .changes
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(change);
        shared.wake.wake();
    }

    pub(crate) fn counters(&self) -> Counters {
        let counters = &self.0.counters;
        Counters {
            bytes: counters.bytes.load(Ordering::Relaxed),
            packets: counters.packets.load(Ordering::Relaxed),
            lost_queue: counters.lost_queue.load(Ordering::Relaxed),
            lost_random: counters.lost_random.load(Ordering::Relaxed),
            lost_outage: counters.lost_outage.load(Ordering::Relaxed),
            lost_middlebox: counters.lost_middlebox.load(Ordering::Relaxed),
        }
    }
}

impl Drop for Pump {
    fn drop(&mut self) {
        self.shared.is_over.store(true, Ordering::Relaxed);
        self.shared.wake.wake();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

struct Worker {
    from: Arc<Tun>,
    to: Arc<Tun>,
    link: Link<Packet>,
    pool: Vec<Packet>,
    /// Buffer of one read.
    scratch: Vec<u8>,
    /// Due packets that are not yet written.
    due: Vec<Packet>,
    coalescer: Coalescer,
    shared: Arc<Shared>,
    opposite: Remote,
}

impl Worker {
    fn run(mut self) {
        clock::use_precise_timers();
        while !self.shared.is_over.load(Ordering::Relaxed) {
            let is_drained = self.take_in();
            self.give_out();
            self.publish();
            if is_drained && self.wait().is_err() {
                return;
            }
        }
    }

    /// Reads a batch; returns whether the device had no more packets.
    fn take_in(&mut self) -> bool {
        let now = clock::now();
        for _ in 0..BATCH {
            // Any error means that there is no packet, because the device is down.
            let Ok(Some(len)) = self.from.read(&mut self.scratch) else {
                return true;
            };
            self.cut(len, now);
        }
        false
    }

    /// Passes the packets of one read to the link.
    fn cut(&mut self, len: usize, now: Instant) {
        let Some((virtio, packet)) = self.scratch[..len].split_first_chunk::<VIRTIO_LEN>() else {
            return;
        };
        let Some(offload) = Offload::parse(virtio) else {
            return;
        };
        let segmenter = inner::parse(packet).and_then(|summary| Segmenter::new(packet, &summary, offload));
        for index in 0..segmenter.map_or(1, |segmenter| segmenter.count()) {
            let mut piece = self.pool.pop().unwrap_or_else(Packet::empty);
            piece.len = segmenter.map_or(packet.len(), |segmenter| segmenter.len_of(index));
            piece.is_partial = offload.checksum_partial;
            let Some(space) = piece.bytes.get_mut(..piece.len) else {
                continue;
            };
            match segmenter {
                Some(segmenter) => segmenter.emit(packet, index, space),
                None => space.copy_from_slice(packet),
            }
            let len = piece.len as u64;
            if self.link.has_middlebox()
                && !pass(&mut self.link, &mut piece, (&self.from, &self.opposite), now)
            {
                self.pool.push(piece);
                continue;
            }
            self.pool.extend(self.link.handle_packet(piece, len, now));
        }
    }

    fn give_out(&mut self) {
        let now = clock::now();
        loop {
            while self.due.len() < MAX_DUE
                && let Some(packet) = self.link.poll_transmit(now)
            {
                self.due.push(packet);
            }
            if self.due.is_empty() {
                break;
            }
            write_coalesced(&self.to, &mut self.coalescer, &self.due);
            self.pool.append(&mut self.due);
        }
        while let Some(packet) = self.link.poll_lost() {
            self.pool.push(packet);
        }
    }

    fn publish(&self) {
        let (counters, shared) = (self.link.counters(), &self.shared.counters);
        shared.bytes.store(counters.bytes, Ordering::Relaxed);
        shared.packets.store(counters.packets, Ordering::Relaxed);
        shared.lost_queue.store(counters.lost_queue, Ordering::Relaxed);
        shared.lost_random.store(counters.lost_random, Ordering::Relaxed);
        shared.lost_outage.store(counters.lost_outage, Ordering::Relaxed);
        shared
            .lost_middlebox
            .store(counters.lost_middlebox, Ordering::Relaxed);
    }

    fn wait(&mut self) -> io::Result<()> {
        let now = clock::now();
        let timeout = self.link.poll_timeout().map(|at| at.since(now).max(GRAIN));
        let mut ready = [false; 2];
        wait_readable(
            &[self.from.as_fd(), self.shared.wake.as_fd()],
            timeout,
            &mut ready,
        )?;
        if ready[1] {
            self.shared.wake.clear();
            let changes =
                std::mem::take(&mut *self.shared.changes.lock().unwrap_or_else(PoisonError::into_inner));
            for change in changes {
                self.link.set(change, clock::now());
            }
        }
        Ok(())
    }
}

/// Applies the middlebox's verdict on a packet from the device `from`; returns whether the link may
/// accept the packet.
fn pass(
    link: &mut Link<Packet>,
    packet: &mut Packet,
    (from, opposite): (&Tun, &Remote),
    now: Instant,
) -> bool {
    match link.inspect(header_of(packet.as_bytes()), now) {
        Verdict::Forward => true,
        Verdict::Rewrite(codepoint) => {
            let ecn = match codepoint {
                Codepoint::NotEct => Ecn::NotEct,
                Codepoint::Ect => Ecn::Ect0,
                Codepoint::Ce => Ecn::Ce,
            };
            inner::set_ecn(&mut packet.bytes[..packet.len], ecn);
            true
        }
        Verdict::Drop => false,
        Verdict::TooBig(mtu) => {
            // A packet that may be fragmented gets no ICMP message (RFC 1191 section 4).
            if is_unfragmentable(packet.as_bytes())
                && let Some(answer) = icmp::too_large(packet.as_bytes(), mtu)
            {
                // A device that is down accepts no packets.
                let _ = from.write(&[IoSlice::new(&[0; VIRTIO_LEN]), IoSlice::new(&answer)]);
            }
            false
        }
        Verdict::Hang(until) => {
            opposite.change(Change {
                stop_until: Some(until),
                ..Change::default()
            });
            false
        }
    }
}

/// Returns the fields that a middlebox reads; only the length if this is no IP packet.
fn header_of(packet: &[u8]) -> Header {
    let summary = inner::parse(packet);
    let codepoint = |ecn| match ecn {
        Ecn::NotEct => Codepoint::NotEct,
        Ecn::Ect0 | Ecn::Ect1 => Codepoint::Ect,
        Ecn::Ce => Codepoint::Ce,
    };
    Header {
        ip_len: packet.len() as u64,
        is_udp: summary
            .as_ref()
            .is_some_and(|summary| summary.key.protocol == protocol::UDP),
        ecn: summary.map_or(Codepoint::NotEct, |summary| codepoint(summary.ecn)),
    }
}

/// Returns whether no router may fragment a packet: IPv6, or IPv4 with the flag "don't fragment".
fn is_unfragmentable(packet: &[u8]) -> bool {
    // Source: RFC 791 section 3.1.
    const DONT_FRAGMENT: u8 = 0x40;
    let is_v4 = packet.first().is_some_and(|first| first >> 4 == 4);
    !is_v4 || packet.get(6).is_some_and(|flags| flags & DONT_FRAGMENT != 0)
}

/// Writes packets in order; consecutive packets of one flow share a call.
fn write_coalesced(device: &Tun, coalescer: &mut Coalescer, packets: &[Packet]) {
    let mut pieces: [&[u8]; MAX_DUE] = [&[]; MAX_DUE];
    let mut count = 0;
    for packet in packets {
        loop {
            match coalescer.push(packet.as_bytes(), packet.as_bytes().len(), packet.is_partial) {
                Join::Append(at) | Join::Open(at) => {
                    pieces[count] = &packet.as_bytes()[at..];
                    count += 1;
                    break;
                }
                Join::Flush => {
                    write_pieces(device, coalescer, &pieces[..count]);
                    count = 0;
                }
            }
        }
    }
    write_pieces(device, coalescer, &pieces[..count]);
}

fn write_pieces(device: &Tun, coalescer: &mut Coalescer, pieces: &[&[u8]]) {
    let Some((virtio, headers)) = coalescer.finish() else {
        return;
    };
    let mut slices = [IoSlice::new(&[]); MAX_DUE + 2];
    slices[0] = IoSlice::new(&virtio);
    slices[1] = IoSlice::new(headers);
    for (slice, piece) in slices[2..].iter_mut().zip(pieces) {
        *slice = IoSlice::new(piece);
    }
    // A device that is down refuses the packets: they are lost, as on a cut cable.
    let _ = device.write(&slices[..pieces.len() + 2]);
}

/// Size of a buffer, larger than any packet of the devices, whose MTU is 1500. Source: 1,500 bytes
/// (RFC 894), with the header of the device, rounded up.
const MTU: usize = 1536;
/// Maximum number of reads before due packets are written. Source: our choice; more delay due
/// packets, fewer cost a look at the clock for each packet.
const BATCH: usize = 16;
/// Maximum number of joined packets. Source: 64 KB of segments of 1,448 bytes.
const MAX_DUE: usize = 45;
/// Minimum sleep of a thread; shorter ones would use the whole processor: at 1 Gbit/s a packet is
/// due every 12 us. Source: our choice; half of it uses a whole processor, twice of it delays
/// packets by as much.
const GRAIN: Duration = Duration::from_micros(50);

#[cfg(test)]
mod tests;
