//! The hop between the joining box of a repeater and the client behind it, on a channel that a
//! network may share.
//!
//! The hop is a veth pair whose end in the box's bridge has a queue that the kernel shapes (HTB),
//! so that the box sees a queue as of a radio. A thread measures a hundred times per second the
//! airtime that the hop and the shared network have used, and sets the rate of each to the capacity
//! that the other leaves.
//!
//! Scope: a fluid model of two senders that transfer equally many bytes when both have more to
//! send, as two stations with equal frames under CSMA. Limitations: neither collisions nor
//! aggregates; capacity that a sender claims again is available after one sample (10 ms); packets
//! from the client use airtime, but are never delayed.

use std::io::Write;
use std::process::{Child, ChildStdin, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use anyhow::{Context, bail};
use hawser_linux::clock;
use hawser_linux::netns::Namespace;
use hawser_linux::queues::Queues;
use hawser_netem::report::Traffic;
use hawser_netem::scenario::ClientHop;
use hawser_netem::{Capacity, Change};
use hawser_units::{Duration, Rate};

use crate::command::{ip, run};
use crate::pump::Remote;

/// Name of the hop's end in the bridge.
pub(crate) const CLIENTS: &str = "clients";

/// A running hop.
#[derive(Debug)]
pub(crate) struct Hop {
    place: Namespace,
    index: u32,
    queues: Queues,
    /// Sharing of the channel, if a network shares it.
    sharing: Option<Sharing>,
}

#[derive(Debug)]
struct Sharing {
    is_over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
    shaper: Child,
}

/// Both directions of the shared network, with their rates without the hop.
type Shared = [(Remote, Rate); 2];

impl Hop {
    /// Creates a veth pair from `bridge` in the first of two namespaces to the second, shapes it
    /// there, and shares its channel with a network.
    ///
    /// # Errors
    /// When `ip` or `tc` is missing or fails.
    pub(crate) fn start(
        (place, bridge, to): (&Namespace, &str, &Namespace),
        described: &ClientHop,
        shared: Option<Shared>,
    ) -> anyhow::Result<Self> {
        let near = format!(
            "link add name {CLIENTS} type veth peer name eth0 netns {}\n\
             link set dev {CLIENTS} master {bridge}\n\
             link set dev {CLIENTS} up\n",
            to.path()
        );
        ip(place, &[], &near)?;
        let bytes = described.rate.bytes_in(described.queue).0.max(LARGEST);
        let commands = format!(
            "qdisc add dev {CLIENTS} root handle 1: htb default 1\n\
             {}\
             qdisc add dev {CLIENTS} parent 1:1 bfifo limit {bytes}\n",
            class("add", described.rate)
        );
        let mut tc = place.command("tc");
        tc.args(["-batch", "-"]);
        run(tc, &commands).context("`tc` failed")?;
        let queues = || place.run(Queues::open).context("cannot query the queues");
        let index = index_of(place)?;
        let mut hop = Self {
            place: place.clone(),
            index,
            queues: queues()?,
            sharing: None,
        };
        if let Some(shared) = shared {
            hop.sharing = Some(hop.share(described.rate, shared, queues()?)?);
        }
        Ok(hop)
    }

    fn share(&self, rate: Rate, shared: Shared, queues: Queues) -> anyhow::Result<Sharing> {
        let mut tc = self.place.command("tc");
        tc.args(["-batch", "-"]).stdin(Stdio::piped());
        let mut shaper = tc.spawn().context("cannot run tc")?;
        let is_over = Arc::new(AtomicBool::new(false));
        let worker = Worker {
            stdin: shaper.stdin.take().context("cannot write commands to tc")?,
            rate,
            shared,
            queues,
            index: self.index,
            is_over: Arc::clone(&is_over),
        };
        let thread = std::thread::Builder::new().name("client-hop".to_owned());
        Ok(Sharing {
            is_over,
            thread: Some(thread.spawn(|| worker.run())?),
            shaper,
        })
    }

    /// Returns the bytes transferred to the client.
    ///
    /// # Errors
    /// When the hop's thread has ended.
    pub(crate) fn traffic(&self) -> anyhow::Result<Traffic> {
        let thread = self.sharing.as_ref().and_then(|sharing| sharing.thread.as_ref());
        if thread.is_some_and(JoinHandle::is_finished) {
            bail!("the rates of the client's hop are no longer adjusted: `tc` has ended");
        }
        let queue = self
            .queues
            .of(self.index)
            .context("the client's hop no longer exists")?;
        Ok(Traffic {
            bytes: queue.sent,
            packets: 0,
            lost: queue.lost,
        })
    }
}

impl Drop for Sharing {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
        // The end of the thread has closed its standard input.
        let _ = self.shaper.wait();
    }
}

struct Worker {
    stdin: ChildStdin,
    /// Rate of the hop without the network.
    rate: Rate,
    shared: Shared,
    queues: Queues,
    index: u32,
    is_over: Arc<AtomicBool>,
}

impl Worker {
    fn run(mut self) {
        clock::use_precise_timers();
        let alone = self.shared[0].1;
        let (mut before, mut at) = (self.channel_bytes(), clock::now());
        let (mut hop, mut network) = (0.0, 0.0);
        let mut shaped = self.rate;
        while !self.is_over.load(Ordering::Relaxed) {
            std::thread::sleep(SAMPLE_INTERVAL);
            let (looked, now) = (self.channel_bytes(), clock::now());
            let passed = now.since(at).as_secs_f64();
            at = now;
            let used = |n: usize, rate: Rate| {
                let bytes = looked[n].saturating_sub(before[n]);
                bytes as f64 * 8.0 / (rate.as_bps() as f64 * passed)
            };
            // A sample is a few frames long: averaging with the previous one smooths it.
            hop = (hop + used(0, self.rate)) / 2.0;
            network = (network + used(1, alone) + used(2, self.shared[1].1)) / 2.0;
            before = looked;
            let rates = left((self.rate, hop), (alone, network));
            self.shared[0].0.change(Change {
                capacity: Some(Capacity::Rate(rates.1)),
                ..Change::default()
            });
            let is_other = rates.0.as_bps().abs_diff(shaped.as_bps()) * 50 > shaped.as_bps();
            if is_other {
                shaped = rates.0;
                if self.stdin.write_all(class("change", shaped).as_bytes()).is_err() {
                    return;
                }
            }
        }
    }

    /// Returns the bytes that have used the channel: of the hop in both directions, and of each
    /// direction of the network.
    fn channel_bytes(&self) -> [u64; 3] {
        let sent = self.queues.of(self.index).map_or(0, |queue| queue.sent);
        let received = self.queues.received(self.index).unwrap_or(0);
        let [down, up] = &self.shared;
        [sent + received, down.0.counters().bytes, up.0.counters().bytes]
    }
}

/// Returns the rates of hop and network: the capacity that the other leaves, but at least the rate
/// at which both have equally many bytes. Inputs are the rate of each alone, and the share of
/// airtime that it has used.
fn left((hop, hop_used): (Rate, f64), (network, network_used): (Rate, f64)) -> (Rate, Rate) {
    let (alone, others) = (hop.as_bps() as f64, network.as_bps() as f64);
    let even = 1.0 / (1.0 / alone + 1.0 / others);
    let rate = |alone: f64, used: f64| Rate::from_bps(even.max(alone * (1.0 - used)) as u64);
    (rate(alone, network_used), rate(others, hop_used))
}

/// Returns the interface index of the hop's end.
fn index_of(place: &Namespace) -> anyhow::Result<u32> {
    let mut command = place.command("ip");
    command.args(["-o", "link", "show", "dev", CLIENTS]);
    let said = run(command, "").context("`ip` failed")?;
    let number = said
        .split(':')
        .next()
        .and_then(|number| number.trim().parse().ok());
    number.with_context(|| format!("`ip` printed no interface index: {said:?}"))
}

fn class(what: &str, rate: Rate) -> String {
    let bps = rate.as_bps();
    format!(
        "class {what} dev {CLIENTS} parent 1: classid 1:1 htb rate {bps}bit burst {LARGEST} cburst {LARGEST} quantum {LARGEST}\n"
    )
}

/// Size of a full frame. Units: bytes. Source: our choice, 1,500 bytes (RFC 894) with the headers
/// of Ethernet, rounded up.
const LARGEST: u64 = 1_600;
/// Sampling interval of the airtime: some ten frames at a radio's rate. Source: `POLL_INTERVAL` of
/// `core/radio/src/striping/client_hop.rs`.
const SAMPLE_INTERVAL: Duration = Duration::from_millis(10);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_has_what_the_other_leaves_and_both_the_same_when_both_want_more() {
        let (hop, network) = (Rate::from_mbps(30), Rate::from_mbps(60));
        let mbps = |used| {
            let (hop, network) = left((hop, used), (network, 0.0));
            (hop.as_bps() / 1_000_000, network.as_bps() / 1_000_000)
        };
        assert_eq!(mbps(0.0), (30, 60));
        assert_eq!(mbps(0.5), (30, 30));
        // 1 / (1/30 + 1/60)
        assert_eq!(mbps(1.0), (30, 20));
        // Where each uses what it may, that stays so.
        let both = left((hop, 20.0 / 30.0), (network, 20.0 / 60.0));
        assert_eq!(both.0.as_bps() / 1_000, 20_000);
        assert_eq!(both.1.as_bps() / 1_000, 20_000);
    }
}
