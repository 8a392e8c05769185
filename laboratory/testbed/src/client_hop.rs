//! The hop between the joining box of a repeater and the client behind it, on air that a network
//! may share.
//!
//! The hop is a cable whose end in the box's bridge has a queue that the kernel shapes (HTB), so
//! that it is seen there as a radio's is. A thread looks a hundred times a second how much of the
//! air the hop and the shared network have used, and gives each what the other leaves.
//!
//! Scope: a fluid model of two senders that have equally many bytes when both want more, as two
//! stations of equal frames under CSMA. Limitations: neither collisions nor aggregates; air that is
//! claimed anew is lent for one look (10 ms); what the client sends uses air, and is never held
//! back.

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

/// The hop's end in the bridge.
pub(crate) const CLIENTS: &str = "clients";

/// A running hop.
#[derive(Debug)]
pub(crate) struct Hop {
    place: Namespace,
    index: u32,
    queues: Queues,
    /// Shares the air out, where a network shares it.
    sharing: Option<Sharing>,
}

#[derive(Debug)]
struct Sharing {
    is_over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
    shaper: Child,
}

/// Both directions of the shared network, with what they carry alone.
type Shared = [(Remote, Rate); 2];

impl Hop {
    /// Leads a cable from `bridge` in the first of two places to the second, shapes it there, and
    /// shares its air with a network.
    ///
    /// # Errors
    /// `ip` or `tc` is missing or refuses.
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
        let queues = || place.run(Queues::open).context("cannot ask for queues");
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
            stdin: shaper.stdin.take().context("tc takes no commands")?,
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

    /// What it has carried to the client.
    ///
    /// # Errors
    /// Its thread has ended.
    pub(crate) fn carried(&self) -> anyhow::Result<Traffic> {
        let thread = self.sharing.as_ref().and_then(|sharing| sharing.thread.as_ref());
        if thread.is_some_and(JoinHandle::is_finished) {
            bail!("the air of the client's hop is not shared out any more: `tc` has ended");
        }
        let queue = self.queues.of(self.index).context("the client's hop is gone")?;
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
        // Its input has ended with the thread.
        let _ = self.shaper.wait();
    }
}

struct Worker {
    stdin: ChildStdin,
    /// What the hop carries alone.
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
        let (mut before, mut at) = (self.look(), clock::now());
        let (mut hop, mut network) = (0.0, 0.0);
        let mut shaped = self.rate;
        while !self.is_over.load(Ordering::Relaxed) {
            std::thread::sleep(LOOK);
            let (looked, now) = (self.look(), clock::now());
            let passed = now.since(at).as_secs_f64();
            at = now;
            let used = |n: usize, rate: Rate| {
                let bytes = looked[n].saturating_sub(before[n]);
                bytes as f64 * 8.0 / (rate.as_bps() as f64 * passed)
            };
            // A look is a few frames long: half of the one before evens them out.
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

    /// Bytes that have used the air: of the hop, both ways, and of each way of the network.
    fn look(&self) -> [u64; 3] {
        let sent = self.queues.of(self.index).map_or(0, |queue| queue.sent);
        let received = self.queues.received(self.index).unwrap_or(0);
        let [down, up] = &self.shared;
        [sent + received, down.0.counters().bytes, up.0.counters().bytes]
    }
}

/// What the hop and the network may carry: each what the other leaves, but not less than when both
/// have equally many bytes. Given is what each carries alone, and the share of the air that it has
/// used.
fn left((hop, hop_used): (Rate, f64), (network, network_used): (Rate, f64)) -> (Rate, Rate) {
    let (alone, others) = (hop.as_bps() as f64, network.as_bps() as f64);
    let even = 1.0 / (1.0 / alone + 1.0 / others);
    let rate = |alone: f64, used: f64| Rate::from_bps(even.max(alone * (1.0 - used)) as u64);
    (rate(alone, network_used), rate(others, hop_used))
}

/// The index of the hop's end.
fn index_of(place: &Namespace) -> anyhow::Result<u32> {
    let mut command = place.command("ip");
    command.args(["-o", "link", "show", "dev", CLIENTS]);
    let said = run(command, "").context("`ip` failed")?;
    let number = said
        .split(':')
        .next()
        .and_then(|number| number.trim().parse().ok());
    number.with_context(|| format!("`ip` says no index but {said:?}"))
}

fn class(what: &str, rate: Rate) -> String {
    let bps = rate.as_bps();
    format!(
        "class {what} dev {CLIENTS} parent 1: classid 1:1 htb rate {bps}bit burst {LARGEST} cburst {LARGEST} quantum {LARGEST}\n"
    )
}

/// A whole frame.
const LARGEST: u64 = 1_600;
/// Between two looks at the air: some ten frames of what radios carry.
const LOOK: Duration = Duration::from_millis(10);

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
