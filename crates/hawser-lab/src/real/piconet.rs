//! Piconet's evaluation with the daemons: every link is a neighbour's modem, the receiver has none
//! of its own.
//!
//! Scope: sections V-A and V-B (ns-2) and VI (testbed), with the paper's rates, delays, queues and
//! sizes. Hawser's own scheduler stands in the place of the paper's best discipline. Limitations:
//! one run of each; the testbed's background traffic of unknown amount is left out, and its PPP has
//! an Ethernet header's 14 bytes here. A member whose way out goes says so here, as the paper's
//! members do; members that leave without a word are `hawser-lab demo --neighbours`.

use std::collections::BTreeMap;

use anyhow::{Context, bail};
use hawser_netem::report::{Finding, Report};
use hawser_netem::scenario::{Direction, Event, Hop, Links, Member, Network, Scenario, Via, Workload};
use hawser_netem::{Capacity, Change, LinkConfig, QueueBound, State};
use hawser_testbed::{Options, Progress};
use hawser_units::{Bytes, Duration, Rate};

use super::Measured;

/// An evaluation of the paper.
pub(super) struct Evaluation {
    /// Its name in the claims.
    pub(super) setup: &'static str,
    /// What it measures.
    pub(super) claims: &'static [&'static str],
    pub(super) run: fn(&mut Lab<'_>) -> anyhow::Result<Vec<Measured>>,
}

/// Runs scenarios.
pub(super) struct Lab<'a> {
    setup: &'static str,
    options: &'a Options,
    on_progress: &'a mut dyn FnMut(&str, &Progress<'_>),
}

/// The links of a run, and what happens to them.
#[derive(Clone)]
struct Stated {
    /// Units: bit/s, and time one way.
    links: Vec<(u64, Duration)>,
    queue: QueueBound,
    /// Links by number that are there for the first time and gone for the second, in turn.
    transient: (Vec<usize>, Duration, Duration),
}

/// What a transfer reached.
struct Transfer {
    kbps: f64,
    /// The part of the frames of all links that was payload.
    framing: f64,
}

/// What became of a stream.
struct Stream {
    /// Units: percent.
    loss: f64,
    /// Between the median and the 99th percentile of the delay. Units: milliseconds.
    spread: f64,
    framing: f64,
}

pub(super) const EVALUATIONS: &[Evaluation] = &[
    Evaluation {
        setup: "H-fig3",
        claims: &["H.fig3.single", "H.fig3.linear", "H.fig3.window"],
        run: sizes,
    },
    Evaluation {
        setup: "H-hettcp",
        claims: &["H.hettcp.wrr", "H.hettcp.order"],
        run: unequal,
    },
    Evaluation {
        setup: "H-fig4",
        claims: &["H.fig4.mono"],
        run: |lab| joining(lab, "H.fig4.mono", (3, 1)),
    },
    Evaluation {
        setup: "H-fig5",
        claims: &["H.fig5.mono"],
        run: |lab| joining(lab, "H.fig5.mono", (2, 2)),
    },
    Evaluation {
        setup: "H-fig6",
        claims: &["H.fig6.mono"],
        run: |lab| intervals(lab, "H.fig6.mono", &simulated),
    },
    Evaluation {
        setup: "H-tab2",
        claims: &[
            "H.tab2.n2.wrr",
            "H.tab2.n4.wrr",
            "H.tab2.n6.wrr",
            "H.tab2.n8.wrr",
            "H.tab2.n10.wrr",
        ],
        run: constant,
    },
    Evaluation {
        setup: "H-tab3",
        claims: &["H.tab3.total.wrr"],
        run: unequal_constant,
    },
    Evaluation {
        setup: "H-fig10",
        claims: &["H.fig10.proxy", "H.fig10.trend"],
        run: testbed,
    },
    Evaluation {
        setup: "H-fig11",
        claims: &["H.fig11.mono"],
        run: one_slow,
    },
    Evaluation {
        setup: "H-tab10",
        claims: &[
            "H.tab10.one.d0",
            "H.tab10.one.d25",
            "H.tab10.one.d50",
            "H.tab10.one.d75",
            "H.tab10.one.d100",
            "H.tab10.two.d0",
            "H.tab10.two.d25",
            "H.tab10.two.d50",
            "H.tab10.two.d75",
            "H.tab10.two.d100",
        ],
        run: transient,
    },
    Evaluation {
        setup: "H-fig12",
        claims: &["H.fig12.mono"],
        run: |lab| intervals(lab, "H.fig12.mono", &lines),
    },
    Evaluation {
        setup: "H-fig13",
        claims: &["H.fig13.one64", "H.fig13.two128", "H.fig13.four256"],
        run: streaming,
    },
];

/// Figure 3. The window of the paper's receiver is not set here: it is what the claim `window`
/// takes away.
fn sizes(lab: &mut Lab<'_>) -> anyhow::Result<Vec<Measured>> {
    let mut rates = Vec::new();
    let mut framing = 0.0;
    for count in SIZES {
        let transfer = lab.transfer(&simulated(count))?;
        framing = if count == 1 { transfer.framing } else { framing };
        rates.push((count, transfer.kbps));
    }
    let single = rates.first().map_or(f64::NAN, |(_, rate)| *rate);
    let share = |(count, rate): &(usize, f64)| rate / (*count as f64 * single);
    let few = rates.iter().filter(|(count, _)| *count <= 5).map(share);
    let least = rates.iter().map(share).fold(f64::INFINITY, f64::min);
    let numbers = || {
        rates
            .iter()
            .map(|(count, rate)| (format!("n={count}"), *rate))
            .collect()
    };
    Ok(vec![
        Measured::rate("H.fig3.single", single, framing, SEGMENT_SHARE),
        Measured::holds(
            "H.fig3.linear",
            few.fold(f64::INFINITY, f64::min) >= 0.85,
            framing,
            numbers(),
        ),
        Measured::holds("H.fig3.window", least >= 0.75, framing, numbers()),
    ])
}

fn unequal(lab: &mut Lab<'_>) -> anyhow::Result<Vec<Measured>> {
    let transfer = lab.transfer(&simulated_unequal())?;
    // The paper stays below its fastest link. To be above it is better.
    let order = vec![("kb/s".to_owned(), transfer.kbps)];
    Ok(vec![
        Measured::rate("H.hettcp.wrr", transfer.kbps, transfer.framing, SEGMENT_SHARE),
        Measured::holds(
            "H.hettcp.order",
            transfer.kbps > PAPERS_WRR,
            transfer.framing,
            order,
        ),
    ])
}

/// Figures 4 and 5: throughput grows with the time that transient links are there.
fn joining(
    lab: &mut Lab<'_>,
    claim: &str,
    (persistent, transient): (usize, usize),
) -> anyhow::Result<Vec<Measured>> {
    let mut numbers = Vec::new();
    let mut framing = 0.0;
    for duty in DUTIES {
        let transfer = lab.transfer(&at_duty(simulated(persistent + transient), transient, duty))?;
        framing = transfer.framing;
        numbers.push((format!("{duty} %"), transfer.kbps));
    }
    let rates: Vec<f64> = numbers.iter().map(|(_, rate)| *rate).collect();
    // Five points: a rank correlation of 0.9 lets one pair of neighbours be the other way round.
    let falls = rates.windows(2).filter(|pair| pair[0] >= pair[1]).count();
    let grows = falls <= 1 && rates.first() < rates.last();
    Ok(vec![Measured::holds(claim, grows, framing, numbers)])
}

/// Figures 6 and 12: one link stays, one comes and goes as often.
fn intervals(
    lab: &mut Lab<'_>,
    claim: &str,
    links: &dyn Fn(usize) -> Stated,
) -> anyhow::Result<Vec<Measured>> {
    let mut numbers = Vec::new();
    let mut framing = 0.0;
    for seconds in [1, 3, 5] {
        let time = Duration::from_secs(seconds);
        let mut stated = links(2);
        stated.transient = (vec![1], time, time);
        let transfer = lab.transfer(&stated)?;
        framing = transfer.framing;
        numbers.push((format!("{seconds} s"), transfer.kbps));
    }
    let rate = |at: usize| numbers.get(at).map_or(f64::NAN, |(_, rate)| *rate);
    // As good: not less where it comes and goes more often than the paper allows.
    let holds = rate(0) >= 0.8 * rate(2);
    Ok(vec![Measured::holds(claim, holds, framing, numbers)])
}

/// Table II: 920 kb/s over 2 to 10 links.
fn constant(lab: &mut Lab<'_>) -> anyhow::Result<Vec<Measured>> {
    let mut all = Vec::new();
    for count in [2, 4, 6, 8, 10] {
        let stream = lab.stream(&simulated(count), 920, 512)?;
        let floor = not_carried(115.2 * count as f64, 920.0, stream.framing);
        all.push(stream.measured(format!("H.tab2.n{count}.wrr"), floor));
    }
    Ok(all)
}

/// Table III: 256 kb/s over links of 128 to 16.
fn unequal_constant(lab: &mut Lab<'_>) -> anyhow::Result<Vec<Measured>> {
    let stream = lab.stream(&simulated_unequal(), 256, 160)?;
    let floor = not_carried(UNEQUAL.iter().sum::<u64>() as f64, 256.0, stream.framing);
    Ok(vec![stream.measured("H.tab3.total.wrr".to_owned(), floor)])
}

/// Figure 10: one to four lines.
fn testbed(lab: &mut Lab<'_>) -> anyhow::Result<Vec<Measured>> {
    let mut numbers = Vec::new();
    let mut framing = 0.0;
    for count in 1..=4 {
        let transfer = lab.transfer(&lines(count))?;
        framing = transfer.framing;
        numbers.push((format!("n={count}"), transfer.kbps));
    }
    let rates: Vec<f64> = numbers.iter().map(|(_, rate)| *rate).collect();
    let grows = rates.windows(2).all(|pair| pair[0] < pair[1]);
    let one = rates.first().copied().unwrap_or(f64::NAN);
    Ok(vec![
        Measured::rate("H.fig10.proxy", one, framing, LINE_SHARE),
        Measured::holds("H.fig10.trend", grows, framing, numbers),
    ])
}

/// Figure 11: one of four lines is slower by up to 100 ms. In the paper throughput falls with it;
/// as good is what falls less.
fn one_slow(lab: &mut Lab<'_>) -> anyhow::Result<Vec<Measured>> {
    let mut numbers = Vec::new();
    let mut framing = 0.0;
    for extra in [0, 50, 100] {
        let mut stated = lines(4);
        if let Some(link) = stated.links.last_mut() {
            link.1 += Duration::from_millis(extra);
        }
        let transfer = lab.transfer(&stated)?;
        framing = transfer.framing;
        numbers.push((format!("{extra} ms"), transfer.kbps));
    }
    let rates: Vec<f64> = numbers.iter().map(|(_, rate)| *rate).collect();
    let holds = rates.last() >= rates.first().map(|first| first * 0.9).as_ref();
    Ok(vec![Measured::holds("H.fig11.mono", holds, framing, numbers)])
}

/// Table X: four lines, of which one or two come and go.
fn transient(lab: &mut Lab<'_>) -> anyhow::Result<Vec<Measured>> {
    let mut all = Vec::new();
    for (name, count) in [("one", 1), ("two", 2)] {
        for duty in DUTIES {
            let transfer = lab.transfer(&at_duty(lines(4), count, duty))?;
            let claim = format!("H.tab10.{name}.d{duty}");
            all.push(Measured::rate(claim, transfer.kbps, transfer.framing, LINE_SHARE));
        }
    }
    Ok(all)
}

/// Figure 13: what the lines can carry.
fn streaming(lab: &mut Lab<'_>) -> anyhow::Result<Vec<Measured>> {
    let mut all = Vec::new();
    for (claim, count, kbps) in [("one64", 1, 64), ("two128", 2, 128), ("four256", 4, 256)] {
        let stream = lab.stream(&lines(count), kbps, 1000)?;
        let floor = not_carried(92.16 * count as f64, kbps as f64, stream.framing);
        all.push(stream.measured(format!("H.fig13.{claim}"), floor));
    }
    Ok(all)
}

/// What links cannot carry of a stream with these headers. Units: kb/s, percent.
fn not_carried(links: f64, stream: f64, framing: f64) -> f64 {
    (100.0 * (1.0 - links * framing / stream)).max(0.0)
}

/// The paper's simulated links, equal ones.
fn simulated(count: usize) -> Stated {
    Stated {
        links: vec![(115_200, Duration::from_millis(45)); count],
        // ns-2's default, of the paper's packets.
        queue: QueueBound::Bytes(Bytes(50 * 570)),
        transient: (Vec::new(), Duration::ZERO, Duration::ZERO),
    }
}

/// The paper's simulated links of different rates.
fn simulated_unequal() -> Stated {
    let mut stated = simulated(UNEQUAL.len());
    for (link, kbps) in stated.links.iter_mut().zip(UNEQUAL) {
        link.0 = kbps * 1_000;
    }
    stated
}

/// The paper's serial lines: ten bits for a byte.
fn lines(count: usize) -> Stated {
    Stated {
        links: vec![(92_160, Duration::from_millis(35)); count],
        // What Linux 2.2 kept in a PPP device.
        queue: QueueBound::Bytes(Bytes(3 * 1_514)),
        transient: (Vec::new(), Duration::ZERO, Duration::ZERO),
    }
}

/// The last `count` links are there for a part of every 20 s.
fn at_duty(mut stated: Stated, count: usize, duty: u32) -> Stated {
    let up = PERIOD * duty / 100;
    let first = stated.links.len().saturating_sub(count);
    match duty {
        0 => stated.links.truncate(first),
        100 => {}
        _ => stated.transient = ((first..stated.links.len()).collect(), up, PERIOD - up),
    }
    stated
}

impl Stream {
    fn measured(self, claim: String, floor: f64) -> Measured {
        let mut measured = Measured::loss(claim, self.loss, self.framing, floor);
        measured.evidence = vec![("p99 above median, ms".to_owned(), self.spread)];
        measured
    }
}

impl<'a> Lab<'a> {
    pub(super) fn new(
        setup: &'static str,
        options: &'a Options,
        on_progress: &'a mut dyn FnMut(&str, &Progress<'_>),
    ) -> Self {
        Self {
            setup,
            options,
            on_progress,
        }
    }

    /// One file, by TCP.
    fn transfer(&mut self, stated: &Stated) -> anyhow::Result<Transfer> {
        let report = self.run(stated, Workload::Http { size: Bytes(FILE) }, LIMIT)?;
        let [Finding::Http { completed_s, bytes }] = report.workloads.as_slice() else {
            bail!("{}: a transfer reported something else", self.setup)
        };
        let limit = LIMIT.as_secs();
        let seconds = completed_s
            .with_context(|| format!("{}: {bytes} of {FILE} bytes within {limit} s", self.setup))?;
        Ok(Transfer {
            kbps: FILE as f64 * 8.0 / 1e3 / seconds,
            framing: FILE as f64 / carried(&report).max(1.0),
        })
    }

    /// Datagrams of `payload` bytes at a constant rate.
    fn stream(&mut self, stated: &Stated, kbps: u64, payload: u64) -> anyhow::Result<Stream> {
        let workload = Workload::Udp {
            direction: Direction::Down,
            rate: Rate::from_bps(kbps * 1_000),
            size: Bytes(payload),
        };
        let report = self.run(stated, workload, STREAM)?;
        let [
            Finding::Udp {
                loss,
                received,
                delay_p50_ms,
                delay_p99_ms,
                ..
            },
        ] = report.workloads.as_slice()
        else {
            bail!("{}: a stream reported something else", self.setup)
        };
        Ok(Stream {
            loss: loss * 100.0,
            spread: delay_p99_ms - delay_p50_ms,
            framing: (received * payload) as f64 / carried(&report).max(1.0),
        })
    }

    fn run(&mut self, stated: &Stated, workload: Workload, duration: Duration) -> anyhow::Result<Report> {
        let scenario = stated.scenario(self.setup, workload, duration);
        let what = format!("{} over {} links", self.setup, stated.links.len());
        let on_progress = &mut *self.on_progress;
        let mut report = |progress: &Progress<'_>| on_progress(&what, progress);
        hawser_testbed::run(&scenario, &Via::Hub, self.options, &mut report).context(what.clone())
    }
}

impl Stated {
    fn scenario(&self, name: &str, workload: Workload, duration: Duration) -> Scenario {
        let network = |(number, (bps, delay)): (usize, &(u64, Duration))| {
            let link = |capacity| LinkConfig {
                capacity,
                delay: *delay,
                queue: self.queue,
                ..LinkConfig::default()
            };
            let lan = LinkConfig {
                capacity: Capacity::Rate(LAN),
                delay: Duration::from_millis(1),
                ..LinkConfig::default()
            };
            Network {
                name: format!("member{number}"),
                links: Some(Links {
                    down: link(Capacity::Rate(Rate::from_bps(*bps))),
                    up: link(Capacity::Rate(Rate::from_bps(*bps))),
                }),
                wifi: None,
                member: Some(Member {
                    local: Links {
                        down: lan.clone(),
                        up: lan,
                    },
                    ..Member::default()
                }),
                shares: None,
                blocks_udp: false,
            }
        };
        Scenario {
            name: name.to_owned(),
            seed: 1,
            duration,
            warmup: Duration::ZERO,
            via: Via::Hub,
            schedulers: Vec::new(),
            controller: None,
            networks: self.links.iter().enumerate().map(network).collect(),
            workloads: vec![workload],
            client_hop: None,
            beside: BTreeMap::new(),
            events: self.events(duration),
        }
    }

    /// The modems of transient members go and come back; their owners' devices see it.
    fn events(&self, until: Duration) -> Vec<Event> {
        let (transient, up, down) = &self.transient;
        let mut events = Vec::new();
        let mut at = *up;
        while !transient.is_empty() && at < until {
            for (at, state) in [(at, State::Down), (at + *down, State::Up)] {
                events.extend(transient.iter().map(|&network| Event {
                    at,
                    network,
                    hop: Hop::WayOut,
                    direction: None,
                    change: Change {
                        state: Some(state),
                        ..Change::default()
                    },
                }));
            }
            at += *up + *down;
        }
        events
    }
}

/// Bytes of frames towards the receiver, over all links.
fn carried(report: &Report) -> f64 {
    report
        .networks
        .values()
        .map(|network| network.down.bytes as f64)
        .sum()
}

/// What the paper transfers by TCP (section V-A). Units: bytes.
const FILE: u64 = 1_000_000;
/// Sizes of figure 3 that are measured.
const SIZES: [usize; 6] = [1, 2, 4, 6, 10, 14];
const UNEQUAL: [u64; 4] = [128, 64, 32, 16];
const DUTIES: [u32; 5] = [0, 25, 50, 75, 100];
/// Of links that come and go.
const PERIOD: Duration = Duration::from_secs(20);
/// The wireless LAN of the paper.
const LAN: Rate = Rate::from_mbps(11);
/// Three times what one line needs.
const LIMIT: Duration = Duration::from_secs(300);
const STREAM: Duration = Duration::from_secs(20);
/// The paper's segments of 512 bytes, with 40 of headers and 18 of framing.
const SEGMENT_SHARE: f64 = 512.0 / 570.0;
/// Segments of 1460 bytes, with 40 of headers, 24 of GRE and 8 of PPP.
const LINE_SHARE: f64 = 1_460.0 / 1_532.0;
/// What the paper's best discipline reaches over unequal links (`H.hettcp.wrr`), in kb/s.
const PAPERS_WRR: f64 = 55.6;
