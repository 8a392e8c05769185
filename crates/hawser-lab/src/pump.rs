//! Threads that carry real packets through emulated links.
//!
//! One thread per direction of a network reads packets from the device at one end, lets a [`Link`] decide, and writes them
//! to the device at the other end when their time has come. It starts with the run and ends when its handle is dropped.

use std::io;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use hawser_linux::clock;
use hawser_linux::lab_link::{LabDevice, Wake};
use hawser_netem::{Change, Counters, Link, LinkConfig};
use hawser_units::Duration;

/// A running direction of a network.
#[derive(Debug)]
pub(crate) struct Pump {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    wake: Wake,
    is_over: AtomicBool,
    changes: Mutex<Vec<Change>>,
    counters: SharedCounters,
}

/// The counters of the link, for whoever looks from another thread.
#[derive(Debug, Default)]
struct SharedCounters {
    bytes: AtomicU64,
    packets: AtomicU64,
    lost_queue: AtomicU64,
    lost_random: AtomicU64,
    lost_outage: AtomicU64,
}

struct Packet {
    bytes: Box<[u8; MTU]>,
    len: usize,
}

impl Pump {
    /// Starts to carry packets from one device to the other.
    pub(crate) fn start(
        name: &str,
        (from, to): (Arc<LabDevice>, Arc<LabDevice>),
        config: LinkConfig,
        seed: u64,
    ) -> io::Result<Self> {
        let shared = Arc::new(Shared {
            wake: Wake::new()?,
            is_over: AtomicBool::new(false),
            changes: Mutex::new(Vec::new()),
            counters: SharedCounters::default(),
        });
        let worker = Worker {
            from,
            to,
            link: Link::new(config, seed, clock::now()),
            pool: Vec::new(),
            shared: Arc::clone(&shared),
        };
        let thread = std::thread::Builder::new()
            .name(format!("link-{name}"))
            .spawn(|| worker.run())?;
        Ok(Self {
            shared,
            thread: Some(thread),
        })
    }

    /// Changes the link at once.
    pub(crate) fn change(&self, change: Change) {
        self.shared
            .changes
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(change);
        self.shared.wake.ring();
    }

    pub(crate) fn counters(&self) -> Counters {
        let counters = &self.shared.counters;
        Counters {
            bytes: counters.bytes.load(Ordering::Relaxed),
            packets: counters.packets.load(Ordering::Relaxed),
            lost_queue: counters.lost_queue.load(Ordering::Relaxed),
            lost_random: counters.lost_random.load(Ordering::Relaxed),
            lost_outage: counters.lost_outage.load(Ordering::Relaxed),
        }
    }
}

impl Drop for Pump {
    fn drop(&mut self) {
        self.shared.is_over.store(true, Ordering::Relaxed);
        self.shared.wake.ring();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

struct Worker {
    from: Arc<LabDevice>,
    to: Arc<LabDevice>,
    link: Link<Packet>,
    pool: Vec<Packet>,
    shared: Arc<Shared>,
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

    /// Reads a batch; says whether the device had no more.
    fn take_in(&mut self) -> bool {
        let now = clock::now();
        for _ in 0..BATCH {
            let mut packet = self.pool.pop().unwrap_or_else(|| Packet {
                bytes: Box::new([0; MTU]),
                len: 0,
            });
            // Any error means that there is no packet: the device is empty, or down.
            let Ok(len) = self.from.read(&mut packet.bytes[..]) else {
                self.pool.push(packet);
                return true;
            };
            packet.len = len;
            self.pool.extend(self.link.handle_packet(packet, len as u64, now));
        }
        false
    }

    fn give_out(&mut self) {
        let now = clock::now();
        while let Some(packet) = self.link.poll_transmit(now) {
            // A device that is down refuses: the packet is lost, as on a wire that is cut at that end.
            let _ = self.to.write(&packet.bytes[..packet.len]);
            self.pool.push(packet);
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
    }

    fn wait(&mut self) -> io::Result<()> {
        let now = clock::now();
        let timeout = self.link.poll_timeout().map(|at| at.since(now).max(GRAIN));
        let [_, is_rung] = clock::wait_readable([self.from.as_fd(), self.shared.wake.as_fd()], timeout)?;
        if is_rung {
            self.shared.wake.reset();
            let changes =
                std::mem::take(&mut *self.shared.changes.lock().unwrap_or_else(PoisonError::into_inner));
            for change in changes {
                self.link.set(change, clock::now());
            }
        }
        Ok(())
    }
}

/// Larger than any packet of the devices, whose MTU is 1500.
const MTU: usize = 1536;
/// How many packets are read before those that are due are written.
const BATCH: usize = 32;
/// A thread that sleeps less gets nothing else done: at 1 Gbit/s a packet is due every 12 us.
const GRAIN: Duration = Duration::from_micros(20);
