//! Over how many pairs of threads a hub spreads its sessions, and by what they find their pair.

use std::net::{SocketAddr, UdpSocket};

use anyhow::Context;
use hawser_config::HubConfig;
use hawser_control::handover;
use hawser_dataplane::Pairs;
use hawser_linux::bpf::QueueChoice;
use hawser_linux::tun::Tun;
use hawser_linux::udp::open_group;
use hawser_wire::pairs::MOST_PAIRS;

/// The pairs of threads of a hub.
pub struct Spread {
    pairs: Pairs,
    /// By this the kernel puts what is for a client into the queue of its pair.
    choice: Option<QueueChoice>,
}

impl Spread {
    /// As the configuration says, or else as the process before had it, or else a pair for every
    /// two processors; one where the kernel lets no program choose. To be called while this process
    /// has all its rights.
    #[must_use]
    pub fn prepare(config: &HubConfig) -> Self {
        let chosen = config.thread_pairs.map(|chosen| chosen.0);
        let count = chosen.or_else(handover::kept_pairs).unwrap_or_else(by_processors);
        let one = Self {
            pairs: Pairs::ONE,
            choice: None,
        };
        if count == 1 {
            return one;
        }
        let pairs = Pairs::new(count, config.pool.1);
        match QueueChoice::new(pairs.count(), pairs.hosts()) {
            Ok(choice) => Self {
                pairs,
                choice: Some(choice),
            },
            Err(error) => {
                let said =
                    "one pair of threads carries all: no right to spread packets by a program (CAP_BPF)";
                if chosen.is_some() {
                    tracing::warn!(%error, count, "{said}");
                } else {
                    tracing::info!(%error, "{said}");
                }
                one
            }
        }
    }

    /// How sessions are spread.
    #[must_use]
    pub fn pairs(&self) -> Pairs {
        self.pairs
    }

    /// Goes on with the queues of the process before, or makes the interface anew.
    pub(super) fn queues(&self, config: &HubConfig, kept: Vec<Tun>) -> anyhow::Result<Vec<Tun>> {
        let queues = if kept.is_empty() {
            Tun::create_queues(&config.interface.0, config.mtu.0, self.pairs.count())?
        } else {
            kept
        };
        if let Some(choice) = &self.choice {
            let chooses = queues[0].choose_queues(choice);
            chooses
                .context("the kernel lets no program choose the queue of a packet: set thread_pairs = 1")?;
        }
        Ok(queues)
    }

    /// Goes on with the sockets of the process before, or opens others.
    pub(super) fn sockets(&self, listen: SocketAddr, kept: Vec<UdpSocket>) -> anyhow::Result<Vec<UdpSocket>> {
        if !kept.is_empty() {
            return Ok(kept);
        }
        open_group(listen, self.pairs.count()).with_context(|| format!("cannot listen on UDP {listen}"))
    }
}

/// A pair has two threads, which are busy at the same time.
fn by_processors() -> u32 {
    let processors = std::thread::available_parallelism().map_or(1, |count| count.get() as u32);
    (processors / 2).clamp(1, MOST_PAIRS)
}
