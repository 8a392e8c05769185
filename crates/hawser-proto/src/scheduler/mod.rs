//! Schedulers: which path carries the next packet.
//!
//! A scheduler sees the paths as [`PathView`]s and one [`Demand`], and answers with a [`Choice`]. It keeps whatever state
//! its discipline needs and nothing of the paths' own: those are measured elsewhere and handed in, so that one
//! scheduler serves the daemon, the lab and the simulator.

use hawser_units::{Duration, Instant, PathId, Rate};

/// What a scheduler sees of a usable path at the moment of decision.
#[derive(Clone, Copy, Debug)]
pub struct PathView {
    /// Which path.
    pub id: PathId,
    /// Inner packet bytes that the path may take now under its window and pacing; 0 when it must wait.
    pub window: u64,
    /// When pacing lets the next packet go; `now` or earlier when it may go at once.
    pub ready_at: Instant,
    /// The measured delivery rate (inner bytes); [`Rate::ZERO`] when nothing is known yet.
    pub rate: Rate,
    /// Bytes sent and not yet reported as received or lost.
    pub in_flight: u64,
    /// Packets sent and not yet reported as received or lost.
    pub packets_in_flight: u32,
    /// Time from sending now to arrival at the far end, its standing queue included (half the smoothed round trip where one-way delay
    /// is not known).
    pub delay: Duration,
    /// The smoothed round trip.
    pub round_trip: Duration,
    /// The largest inner packet that fits, in bytes.
    pub mtu: u16,
}

/// What waits to be sent: the head of one flow's queue.
#[derive(Clone, Copy, Debug)]
pub struct Demand {
    /// The flow's slot.
    pub flow: u16,
    /// Bytes of the head packet (inner IP packet).
    pub len: u32,
    /// Packets of that same size that stand ready behind each other, the head included; at least 1.
    pub packets: u16,
    /// Bytes waiting in the queue that this scheduler serves, the head included.
    pub backlog: u64,
}

/// What to do with the head of the queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Choice {
    /// Send up to `packets` packets on `paths[path]`; the caller cuts the run to the path's window.
    Send {
        /// Index into the slice of views.
        path: usize,
        /// Longest run to send before asking again; at least 1.
        packets: u16,
    },
    /// Send one packet on each path whose bit is set (bit i is `paths[i]`).
    Duplicate(u64),
    /// Send nothing until a path's state changes or the instant comes.
    Wait(Instant),
}

/// A discipline for choosing paths.
pub trait Scheduler: Send {
    /// The name in configuration, status and logs.
    fn name(&self) -> &'static str;

    /// Chooses for the head of a queue. `paths` holds only usable paths (at most 64) whose `mtu` fits, in a stable
    /// order by id, and may be empty.
    fn choose(&mut self, demand: &Demand, paths: &[PathView], now: Instant) -> Choice;
}
