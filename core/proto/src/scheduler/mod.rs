//! Schedulers: selection of the path of the next packet.
//!
//! A scheduler receives the paths as [`PathView`]s and one [`Demand`], and answers with a
//! [`Choice`]. It stores the state of its discipline, and nothing about the paths: these are
//! measured elsewhere and passed as arguments, so that the daemon, the laboratory and the simulator
//! use the same scheduler.

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
pub(crate) use layer_priority::PLAN_AGAIN;
pub use min_rtt::MinRtt;
pub use random::Random;
pub use redundant::Redundant;
pub use round_robin::RoundRobin;
pub(crate) use selective_redundant::LOSS_DETECTION;
pub use selective_redundant::SelectiveRedundant;
pub use surplus_round_robin::SurplusRoundRobin;
pub use weighted_fair::WeightedFair;

pub use hawser_wire::control::SCHEDULERS as NAMES;

/// Returns the default scheduler of a class.
#[must_use]
pub const fn default_of(class: Class) -> &'static str {
    match class {
        Class::Realtime => "selective-redundant",
        Class::Bulk | Class::Interactive => "earliest-delivery",
        Class::Layered => "layer-priority",
    }
}

/// An unknown name of a scheduler.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unknown scheduler {name:?}: expected one of {}", NAMES.join(", "))]
pub struct UnknownScheduler {
    /// The requested name.
    pub name: String,
}

/// Creates the scheduler called `name`; `seed` is the seed of randomised schedulers.
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

/// View of a usable path at the moment of a decision.
#[derive(Clone, Copy, Debug)]
pub struct PathView {
    /// Id of the path.
    pub id: PathId,
    /// Bytes that the path may send now within its window and pacing; 0 if it must wait.
    pub window: InnerBytes,
    /// Time at which pacing permits the next packet; `now` or earlier if it may be sent at once.
    pub ready_at: Instant,
    /// Predicted transfer in two round trips: the measured rate, or four times as much while it
    /// grows. Weighted disciplines share by it: by the measured rate instead, they lose up to 40 %
    /// over paths that reorder.
    pub soon: PredictedRate,
    /// Predicted rate in four round trips: sixteen times the measured rate while the path grows.
    /// Earliest delivery uses it, so that a transfer leaves a young fast path room to grow. With
    /// `soon` or the measured rate instead, it loses up to 32 % where a path has a long delay and
    /// reorders or loses.
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
    /// Time from sending a packet that is lost to sending its retransmission.
    pub retransmitted_after: Duration,
    /// Marks a path whose capacity is still being searched and doubles each round trip: `soon` and
    /// `later` exceed the measured rate.
    pub is_growing: bool,
}

/// Demand of the head of one flow's queue.
#[derive(Clone, Copy, Debug)]
pub struct Demand {
    /// The flow's slot.
    pub flow: u16,
    /// Bytes of the head packet (inner IP packet).
    pub len: u32,
    /// Number of consecutive packets of this size that are ready, including the head; at least 1.
    pub packets: u16,
    /// Set if the flow uses all available capacity, so that its throughput matters, not the arrival
    /// of its next packet.
    pub sustained: bool,
    /// Bytes that are sent until the last packet of the waiting flow has been sent, the head
    /// included: flows take turns.
    pub backlog: InnerBytes,
    /// Throughput of all paths together (UDP payload), smoothed over 0.1 s.
    pub throughput: Rate,
    /// Layer of the head in a layered flow, or the description that it belongs to; `None` without
    /// such a mark.
    pub layer: Option<Layer>,
    /// Set if the flow is a call: all its packets may be sent twice, and late packets are useless
    /// to it.
    pub is_call: bool,
}

/// Decision about the head of the queue.
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
    /// Drop the first packet: the capacity that it needs is not available, and it would only delay
    /// what matters more.
    Drop,
    /// Send nothing until a path's state changes or the instant comes.
    Wait(Instant),
}

/// An algorithm that chooses paths.
pub trait Scheduler: Send {
    /// The name in configuration, status and logs.
    fn name(&self) -> &'static str;

    /// Chooses for the head of a queue. `paths` holds only usable paths (at most 64) whose `mtu`
    /// fits, in a stable order by id, and may be empty.
    fn choose(&mut self, demand: &Demand, paths: &[PathView], now: Instant) -> Choice;
}

impl PathView {
    /// Returns whether the path may take a packet now.
    #[must_use]
    pub fn is_ready(&self, now: Instant) -> bool {
        self.window > InnerBytes(0) && self.ready_at <= now
    }

    /// Returns when a packet arrives that is sent as soon as pacing permits, regardless of the
    /// window.
    #[must_use]
    pub fn arrival(&self, now: Instant) -> Instant {
        self.ready_at.max(now) + self.delay
    }

    /// Returns the transmission time of inner packets at the rate of `later`; zero if no rate is
    /// known.
    #[must_use]
    pub fn transmission(&self, inner: InnerBytes) -> Duration {
        let UdpBytes(bytes) = inner.unframed();
        if self.later.is_known() {
            self.later.rate().time_for(Bytes(bytes))
        } else {
            Duration::ZERO
        }
    }

    /// Returns the largest number of the demand's packets that fits in the window; at least 1.
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

/// Returns the paths as channels for allocation.
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
