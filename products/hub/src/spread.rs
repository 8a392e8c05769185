//! Distribution of a hub's sessions over pairs of threads.

use std::net::{SocketAddr, UdpSocket};

use anyhow::Context;
use hawser_config::HubConfig;
use hawser_control::handover;
use hawser_dataplane::Pairs;
use hawser_linux::bpf::QueueChoice;
use hawser_linux::tun::Tun;
use hawser_linux::udp::open_group;
use hawser_wire::pairs::MAX_PAIRS;

/// Thread pairs of a hub.
pub struct Spread {
    pairs: Pairs,
    /// Program by which the kernel assigns packets for a client to the queue of its pair.
    choice: Option<QueueChoice>,
}

impl Spread {
    /// Determines the number of pairs: the configured one, otherwise that of the previous process,
    /// otherwise a pair for every two processors; a single pair if the kernel permits no program
    /// for the assignment. Must be called while this process has all its privileges.
    #[must_use]
    pub fn prepare(config: &HubConfig) -> Self {
        let chosen = config.thread_pairs.map(|chosen| chosen.0);
        let count = chosen
            .or_else(handover::inherited_pairs)
            .unwrap_or_else(by_processors);
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
                let said = "using one pair of threads: the right to distribute packets by an eBPF program is missing (CAP_BPF)";
                if chosen.is_some() {
                    tracing::warn!(%error, count, "{said}");
                } else {
                    tracing::info!(%error, "{said}");
                }
                one
            }
        }
    }

    /// Returns the assignment of sessions.
    #[must_use]
    pub fn pairs(&self) -> Pairs {
        self.pairs
    }

    /// Continues with the queues of the previous process, or creates the interface.
    pub(super) fn queues(&self, config: &HubConfig, kept: Vec<Tun>) -> anyhow::Result<Vec<Tun>> {
        let queues = if kept.is_empty() {
            Tun::create_queues(&config.interface.0, config.mtu.0, self.pairs.count())?
        } else {
            kept
        };
        if let Some(choice) = &self.choice {
            let chooses = queues[0].choose_queues(choice);
            chooses
                .context("the kernel does not permit a program that selects the queue of a packet: set thread_pairs = 1 in hub.toml")?;
        }
        Ok(queues)
    }

    /// Continues with the sockets of the previous process, or opens others.
    pub(super) fn sockets(&self, listen: SocketAddr, kept: Vec<UdpSocket>) -> anyhow::Result<Vec<UdpSocket>> {
        if !kept.is_empty() {
            return Ok(kept);
        }
        open_group(listen, self.pairs.count()).with_context(|| format!("cannot listen on UDP {listen}"))
    }
}

/// Returns the number of pairs by processors: the two threads of a pair are busy at the same time.
fn by_processors() -> u32 {
    let processors = std::thread::available_parallelism().map_or(1, |count| count.get() as u32);
    (processors / 2).clamp(1, MAX_PAIRS)
}
