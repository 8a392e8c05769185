//! Schedulers: which path carries the next packet.
//!
//! A scheduler sees the paths as [`PathView`]s and one [`Demand`], and answers with a [`Choice`].
//! It keeps whatever state its discipline needs and nothing of the paths' own: those are measured
//! elsewhere and handed in, so that one scheduler serves the daemon, the lab and the simulator.

//!
//! A path is *ready* when its window is open and its pacing lets a packet go. Most disciplines are
//! work conserving: while a path is ready, something is sent. `earliest-delivery`, `backpressure`,
//! `layer-priority` and `independent-path` may wait for a better one.

mod backpressure;
mod earliest_delivery;
mod independent_path;
mod layer_priority;
mod min_rtt;
mod random;
mod redundant;
mod round_robin;
mod selective_redundant;
mod surplus_round_robin;
#[cfg(test)]
pub(crate) mod tests;
mod weighted_fair;

use hawser_units::{Bytes, Duration, InnerBytes, Instant, PathId, PredictedRate, Rate, UdpBytes};
use hawser_wire::data::Class;
use hawser_wire::layer::Layer;

use crate::pool::allocation::Channel;

pub use backpressure::Backpressure;
pub use earliest_delivery::EarliestDelivery;
pub use independent_path::IndependentPath;
pub use layer_priority::LayerPriority;
pub use min_rtt::MinRtt;
pub use random::Random;
pub use redundant::Redundant;
pub use round_robin::RoundRobin;
pub use selective_redundant::SelectiveRedundant;
pub use surplus_round_robin::SurplusRoundRobin;
pub use weighted_fair::WeightedFair;

pub use hawser_wire::control::SCHEDULERS as NAMES;

/// The scheduler of a class for which nothing else is configured.
#[must_use]
pub const fn default_of(class: Class) -> &'static str {
    match class {
        Class::Realtime => "selective-redundant",
        Class::Bulk | Class::Interactive => "earliest-delivery",
        Class::Layered => "layer-priority",
    }
}

/// A name that is no scheduler's.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unknown scheduler {name:?}: expected one of {}", NAMES.join(", "))]
pub struct UnknownScheduler {
    /// The name that was asked for.
    pub name: String,
}

/// Makes the scheduler called `name`; `seed` feeds those that draw lots.
///
/// # Errors
/// [`UnknownScheduler`] when `name` is not in [`NAMES`]; its message lists them.
pub fn by_name(name: &str, seed: u64) -> Result<Box<dyn Scheduler>, UnknownScheduler> {
    Ok(match name {
        "random" => Box::new(Random::new(seed)),
        "round-robin" => Box::new(RoundRobin::new()),
        "surplus-round-robin" => Box::new(SurplusRoundRobin::new()),
        "weighted-fair" => Box::new(WeightedFair::new()),
        "min-rtt" => Box::new(MinRtt::new()),
        "earliest-delivery" => Box::new(EarliestDelivery::new()),
        "backpressure" => Box::new(Backpressure::new()),
        "redundant" => Box::new(Redundant::new()),
        "selective-redundant" => Box::new(SelectiveRedundant::new()),
        "layer-priority" => Box::new(LayerPriority::new()),
        "independent-path" => Box::new(IndependentPath::new()),
        _ => {
            return Err(UnknownScheduler {
                name: name.to_owned(),
            });
        }
    })
}

/// What a scheduler sees of a usable path at the moment of decision.
#[derive(Clone, Copy, Debug)]
pub struct PathView {
    /// Which path.
    pub id: PathId,
    /// What the path may take now under its window and pacing; 0 when it must wait.
    pub window: InnerBytes,
    /// When pacing lets the next packet go; `now` or earlier when it may go at once.
    pub ready_at: Instant,
    /// What the path is expected to carry in two round trips: the measured rate, or four times as
    /// much while it grows. What weighted disciplines share by: by the measured rate instead, they
    /// lose up to 40 % over paths that shuffle.
    pub soon: PredictedRate,
    /// The same in four round trips: sixteen times the measured rate while it grows. What earliest
    /// delivery reckons with, so that a transfer leaves a young fast path to grow: with `soon` or
    /// the measured rate instead, it loses up to 32 % where a path is far and shuffles or loses.
    pub later: PredictedRate,
    /// Packets sent and not yet reported as received or lost.
    pub packets_in_flight: u32,
    /// Time from sending now to arrival at the far end, its standing queue included (half the
    /// smoothed round trip where one-way delay is not known).
    pub delay: Duration,
    /// The smoothed round trip.
    pub round_trip: Duration,
    /// The largest inner packet that fits, in bytes.
    pub mtu: u16,
    /// Share of packets lost, 0 to 1.
    pub loss: f64,
    /// Share of time in which its packets arrived too late for a call, 0 to 1.
    pub late: f64,
    /// From sending a packet that is lost until its retransmission is sent.
    pub retransmitted_after: Duration,
    /// Its capacity is still being found, and doubles each round trip: `soon` and `later` are more
    /// than was measured.
    pub is_growing: bool,
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
    /// The flow has shown that it takes all it can get: its throughput counts, not when its next
    /// packet arrives.
    pub sustained: bool,
    /// What goes until the last of the flow that waits has gone, the head included: flows take
    /// turns.
    pub backlog: InnerBytes,
    /// What all paths together have carried of late (UDP payload), smoothed over a tenth of a
    /// second.
    pub throughput: Rate,
    /// The head's place in a layered stream, or which of several descriptions it belongs to; `None`
    /// where there is no such mark.
    pub layer: Option<Layer>,
    /// The flow is a call: all of it may be sent twice, and late packets are lost to it.
    pub is_call: bool,
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
    /// Let the head go: what it needs is not there for it, and it would only delay what matters
    /// more.
    Drop,
    /// Send nothing until a path's state changes or the instant comes.
    Wait(Instant),
}

/// A discipline for choosing paths.
pub trait Scheduler: Send {
    /// The name in configuration, status and logs.
    fn name(&self) -> &'static str;

    /// Chooses for the head of a queue. `paths` holds only usable paths (at most 64) whose `mtu`
    /// fits, in a stable order by id, and may be empty.
    fn choose(&mut self, demand: &Demand, paths: &[PathView], now: Instant) -> Choice;
}

impl PathView {
    /// Whether the path may take a packet now.
    #[must_use]
    pub fn is_ready(&self, now: Instant) -> bool {
        self.window > InnerBytes(0) && self.ready_at <= now
    }

    /// When a packet that is sent as soon as pacing permits arrives, whatever the window says.
    #[must_use]
    pub fn arrival(&self, now: Instant) -> Instant {
        self.ready_at.max(now) + self.delay
    }

    /// How long inner packets take at the rate of `later`; zero when no rate is known.
    #[must_use]
    pub fn transmission(&self, inner: InnerBytes) -> Duration {
        let UdpBytes(bytes) = inner.unframed();
        if self.later.is_known() {
            self.later.rate().time_for(Bytes(bytes))
        } else {
            Duration::ZERO
        }
    }

    /// The longest run of the demand's packets that the window holds; at least 1.
    #[must_use]
    pub fn run(&self, demand: &Demand) -> u16 {
        let fit = self.window.0 / u64::from(demand.len.max(1));
        u16::try_from(fit)
            .unwrap_or(u16::MAX)
            .clamp(1, demand.packets.max(1))
    }
}

/// Waits until pacing lets a path go; for a path with a closed window there is no such time, its
/// feedback wakes the caller.
fn wait(paths: &[PathView], now: Instant) -> Choice {
    let paced = paths.iter().map(|path| path.ready_at).filter(|&at| at > now);
    Choice::Wait(paced.min().unwrap_or(Instant::FAR_FUTURE))
}

/// The paths as channels that may be given away.
pub(crate) fn channels(paths: &[PathView]) -> Vec<Channel> {
    let lowest = lowest_rate(paths);
    let channel = |path: &PathView| Channel {
        id: path.id,
        rate: if path.soon.is_known() {
            path.soon.rate()
        } else {
            lowest
        },
        loss: path.loss,
        delay: path.delay,
    };
    paths.iter().map(channel).collect()
}

/// The lowest known rate: what a path of unknown rate counts as in a weighted discipline.
fn lowest_rate(paths: &[PathView]) -> Rate {
    let known = paths
        .iter()
        .map(|path| path.soon.rate())
        .filter(|&rate| rate != Rate::ZERO);
    known.min().unwrap_or(Rate::from_mbps(1))
}
