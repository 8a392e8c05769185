//! A repeater's shared channel by packets: figures 6 and 12, Table 3.
//!
//! The access point's shared link and the repeater contend for one channel, packet by packet with equal chances; the other link has a channel of its
//! own. Throttle, feedback and optimum are the machines of [`hawser_radio::multifacet`]; feedback arrives at once. Does not model: TCP, whose
//! senders are taken to keep the access point's buffer filled; the clients' acknowledgements.
//!
//! What the paper does not state, and what was taken:
//! - An access point that may have t packets unanswered is ready at t/(t+4) of the times when the channel is free; the naive one always is.
//! - Figure 6: the link of its own carries 10 to 45 Mb/s, the hops on the shared channel 30 to 60, drawn evenly. The naive repeater sends in turn
//!   and never waits for feedback; both lose what finds 200 packets at the repeater.
//! - Figure 12: 20, 45 and 60 Mb/s; the interferer takes 30 Mb/s of the repeater's air. A reaction is the first reduction after its onset.
//! - Table 3: 19.1, 30 and 60 Mb/s, the first from its traditional row and the others from figure 2's range; clients have equal shares of the queue.

use hawser_netem::Random;
use hawser_netem::report::Spread;
use hawser_radio::multifacet::throttle::{Monitor, MonitorConfig, Throttle, ThrottleConfig};
use hawser_radio::multifacet::{BUFFER_PACKETS, Hops};
use hawser_units::{Duration, Instant};

use crate::reproduce::{Experiment, ExperimentError, Findings, Quantity, Unit};

/// Figures 6b and 6c: 30 placements.
#[derive(Clone, Copy, Debug)]
pub struct Placements;

/// Figure 12: an interferer that comes and goes.
#[derive(Clone, Copy, Debug)]
pub struct Reaction;

/// Table 3: one to four clients.
#[derive(Clone, Copy, Debug)]
pub struct SeveralClients;

/// How the access point uses the shared channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    Traditional,
    /// In turn, without feedback.
    Naive,
    Multifacet,
}

/// Mbit in a packet.
const PACKET: f64 = 0.012;

struct Repeater {
    hops: Hops,
    mode: Mode,
    throttle: Throttle,
    monitor: Monitor,
    /// Of the client that each waiting packet is for.
    queue: std::collections::VecDeque<usize>,
    clients: usize,
    arrived: usize,
    delivered: Vec<u64>,
    /// When the link of its own is done with its packet.
    own_ends: f64,
    /// Packets that the naive one has sent on its own link and not yet on the shared one.
    owed: u64,
    /// When the threshold fell.
    reductions: Vec<f64>,
    random: Random,
}

fn instant(seconds: f64) -> Instant {
    Instant::ZERO + Duration::from_secs_f64(seconds)
}

impl Repeater {
    fn new(hops: Hops, mode: Mode, clients: usize, seed: u64) -> Self {
        Self {
            hops,
            mode,
            throttle: Throttle::new(ThrottleConfig::default(), Instant::ZERO),
            monitor: Monitor::new(MonitorConfig::default(), Instant::ZERO),
            queue: std::collections::VecDeque::new(),
            clients,
            arrived: 0,
            delivered: vec![0; clients],
            own_ends: PACKET / hops.own,
            owed: 0,
            reductions: Vec::new(),
            random: Random::new(seed, "contention"),
        }
    }

    fn arrive(&mut self) {
        if self.queue.len() < BUFFER_PACKETS {
            self.queue.push_back(self.arrived % self.clients);
            self.arrived += 1;
        }
    }

    /// Own link and feedback up to `now`.
    fn catch_up(&mut self, now: f64) {
        while self.own_ends <= now {
            self.arrive();
            self.owed += 1;
            // In turn: a packet on one link waits for one on the other, but for what fits into its buffer.
            let waits = self.mode == Mode::Naive && self.owed > BUFFER_PACKETS as u64;
            self.own_ends = if waits { now } else { self.own_ends } + PACKET / self.hops.own;
        }
        self.monitor.handle_queue(self.queue.len());
        self.monitor.handle_timeout(instant(now));
        while let Some(feedback) = self.monitor.poll_transmit() {
            let before = self.throttle.threshold();
            self.throttle.handle_feedback(feedback, instant(now));
            if self.throttle.threshold() < before {
                self.reductions.push(now);
            }
        }
        self.throttle.handle_timeout(instant(now));
    }

    /// Runs for `length` seconds; the interferer takes `interference` Mb/s of the repeater's hop while `is_on`.
    fn run(&mut self, length: f64, interference: f64, is_on: impl Fn(f64) -> bool) {
        let mut now = 0.0;
        while now < length {
            self.catch_up(now);
            let threshold = self.throttle.threshold() as f64;
            let wants = match self.mode {
                Mode::Traditional => false,
                Mode::Naive => true,
                Mode::Multifacet => threshold > 0.0,
            };
            // With few packets unanswered the access point is not always ready when the channel is free.
            let readiness = if self.mode == Mode::Naive {
                1.0
            } else {
                threshold / (threshold + 4.0)
            };
            let is_ready = wants && self.random.chance(readiness);
            let down = if is_on(now) {
                (self.hops.down - interference).max(1.0)
            } else {
                self.hops.down
            };
            let has_waiting = !self.queue.is_empty();
            if is_ready && (!has_waiting || self.random.chance(0.5)) {
                now += PACKET / self.hops.shared;
                self.owed = self.owed.saturating_sub(1);
                self.arrive();
            } else if let Some(client) = self.queue.pop_front() {
                now += PACKET / down;
                self.delivered[client] += 1;
            } else {
                now += IDLE;
            }
        }
    }

    fn rate(&self, client: usize, length: f64) -> f64 {
        self.delivered[client] as f64 * PACKET / length
    }
}

/// A pause on an idle channel. Units: seconds.
const IDLE: f64 = 1e-4;
const LENGTH: f64 = 10.0;

fn throughput(hops: Hops, mode: Mode, seed: u64) -> f64 {
    let mut repeater = Repeater::new(hops, mode, 1, seed);
    repeater.run(LENGTH, 0.0, |_| false);
    repeater.rate(0, LENGTH)
}

/// Of at least one value.
fn median(values: Vec<f64>) -> f64 {
    Spread::of(values).map_or(f64::NAN, |spread| spread.median)
}

impl Experiment for Placements {
    fn setups(&self) -> &'static [&'static str] {
        &["M-fig6"]
    }

    fn claims(&self) -> Vec<String> {
        [
            "fig6b.median",
            "fig6b.same",
            "fig6b.max",
            "fig6b.naive",
            "fig6c.15",
            "fig6c.worst",
        ]
        .map(|claim| format!("M.{claim}"))
        .to_vec()
    }

    fn run(&self, seed: u64) -> Result<Findings, ExperimentError> {
        let mut random = Random::new(seed, "placements");
        let (mut gains, mut naive, mut deficits) = (Vec::new(), Vec::new(), Vec::new());
        for place in 0..30 {
            let mut draw = |low: f64, high: f64| low + (high - low) * random.uniform();
            let hops = Hops {
                own: draw(10.0, 45.0),
                shared: draw(30.0, 60.0),
                down: draw(30.0, 60.0),
            };
            let seed = seed.wrapping_mul(30).wrapping_add(place);
            let traditional = throughput(hops, Mode::Traditional, seed);
            let multifacet = throughput(hops, Mode::Multifacet, seed);
            gains.push(multifacet / traditional);
            naive.push(throughput(hops, Mode::Naive, seed) / traditional);
            deficits.push(100.0 * (1.0 - multifacet / hops.optimum()));
        }
        let share = |count: usize| 100.0 * count as f64 / gains.len() as f64;
        let same = share(gains.iter().filter(|gain| **gain < 1.02).count());
        let near = share(deficits.iter().filter(|deficit| **deficit <= 15.0).count());
        let worst = deficits.iter().copied().fold(0.0, f64::max);
        let most = gains.iter().copied().fold(0.0, f64::max);
        let mut findings = Findings::default();
        findings.value("M.fig6b.median", median(gains.clone()), Unit::Times);
        findings.value("M.fig6b.same", same, Unit::Percent);
        findings.value("M.fig6b.max", most, Unit::Times);
        let naive = median(naive);
        let evidence = vec![("median".to_owned(), Quantity::new(naive, Unit::Times))];
        findings.shape("M.fig6b.naive", naive < 1.0, evidence);
        findings.value("M.fig6c.15", near, Unit::Percent);
        findings.value("M.fig6c.worst", worst, Unit::Percent);
        Ok(findings)
    }
}

impl Experiment for Reaction {
    fn setups(&self) -> &'static [&'static str] {
        &["M-fig12"]
    }

    fn claims(&self) -> Vec<String> {
        ["200", "now", "max"]
            .map(|claim| format!("M.fig12.{claim}"))
            .to_vec()
    }

    fn run(&self, seed: u64) -> Result<Findings, ExperimentError> {
        let hops = Hops {
            own: 20.0,
            shared: 45.0,
            down: 60.0,
        };
        let mut repeater = Repeater::new(hops, Mode::Multifacet, 1, seed);
        // Half a second on, half a second off, for 200 s.
        repeater.run(200.0, 30.0, |now| now % 1.0 >= 0.5);
        let reactions: Vec<f64> = (0..200)
            .filter_map(|second| {
                let onset = f64::from(second) + 0.5;
                let first = repeater.reductions.iter().find(|at| **at >= onset)?;
                Some((first - onset) * 1e3).filter(|took| *took < 500.0)
            })
            .collect();
        let within = |ms: f64| 100.0 * reactions.iter().filter(|took| **took <= ms).count() as f64 / 200.0;
        let mut findings = Findings::default();
        findings.value("M.fig12.200", within(200.0), Unit::Percent);
        // At once: within one period of feedback.
        findings.value("M.fig12.now", within(20.0), Unit::Percent);
        findings.value(
            "M.fig12.max",
            reactions.iter().copied().fold(0.0, f64::max),
            Unit::Millis,
        );
        Ok(findings)
    }
}

impl Experiment for SeveralClients {
    fn setups(&self) -> &'static [&'static str] {
        &["M-tab3"]
    }

    fn claims(&self) -> Vec<String> {
        let rows = (1..=4).flat_map(|count| [format!("M.tab3.mf{count}"), format!("M.tab3.tr{count}")]);
        rows.chain(["M.tab3.flat".to_owned(), "M.tab3.ratio".to_owned()])
            .collect()
    }

    fn run(&self, seed: u64) -> Result<Findings, ExperimentError> {
        let hops = Hops {
            own: 19.1,
            shared: 30.0,
            down: 60.0,
        };
        let mut findings = Findings::default();
        let (mut totals, mut ratios, mut least) = (Vec::new(), Vec::new(), f64::INFINITY);
        for clients in 1..=4usize {
            let rates = |mode| -> Vec<f64> {
                let mut repeater = Repeater::new(hops, mode, clients, seed.wrapping_add(clients as u64));
                repeater.run(LENGTH, 0.0, |_| false);
                (0..clients).map(|client| repeater.rate(client, LENGTH)).collect()
            };
            let (multifacet, traditional) = (rates(Mode::Multifacet), rates(Mode::Traditional));
            let (total, plain) = (multifacet.iter().sum::<f64>(), traditional.iter().sum::<f64>());
            findings.value(format!("M.tab3.mf{clients}"), total, Unit::Mbps);
            findings.value(format!("M.tab3.tr{clients}"), plain, Unit::Mbps);
            let fair = total / clients as f64;
            least = multifacet
                .iter()
                .fold(least, |least, rate| least.min(rate / fair));
            totals.push(total);
            ratios.push(total / plain);
        }
        let spread =
            totals.iter().copied().fold(0.0, f64::max) / totals.iter().copied().fold(f64::INFINITY, f64::min);
        let number = |name: &str, value| (name.to_owned(), Quantity::new(value, Unit::Ratio));
        findings.shape(
            "M.tab3.flat",
            spread <= 1.08 && least >= 0.8,
            vec![number("spread", spread), number("least share", least)],
        );
        findings.value("M.tab3.ratio", ratios.iter().sum::<f64>() / 4.0, Unit::Times);
        Ok(findings)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shared_link_stays_closed_when_the_last_hop_is_the_bottleneck() {
        let hops = Hops {
            own: 50.0,
            shared: 60.0,
            down: 30.0,
        };
        let rate = throughput(hops, Mode::Multifacet, 1);
        assert!((rate / hops.optimum() - 1.0).abs() < 0.03, "{rate}");
    }
}
