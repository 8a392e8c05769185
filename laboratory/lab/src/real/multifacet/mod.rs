//! Multifacet's evaluation on real 802.11 stacks: an access point's box and a repeater with two
//! radio links between them, and clients on the channel of one of these links.
//!
//! Scope: figures 2, 6, 7, 8a and 9 to 16 without the typical wait of figure 13, and tables 3 to 5
//! without ROMA, with the hops, placements and competitors of `hawser_experiments`. The traditional
//! repeater is the kernel's forwarding over the own link; Multifacet is `hawser repeat` on both
//! boxes; multipath TCP is the kernel's, uncoupled, with an address of the client on each link.
//! Cards stop their queues at two aggregates, as ath9k does, and the queueing discipline above is
//! the kernel's.
//!
//! Limitations: cards send at the rate of the hop, which the medium chooses, as in the simulator;
//! the repeater's card of the shared link has one rate for both sides. Headers of the boxes'
//! session count as framing: the required rate is the paper's times the payload share here.

use std::fmt::Display;

use anyhow::Context;
use hawser_experiments::papers::multifacet::{
    COMPETING_LEN, Case, Competitor, FAR, Hop, Hops, OWN, PARTS, SHARED, Who, five, forty_five, nineteen,
    placements, sixty, thirty, twenty,
};
use hawser_netem::air::channel::frequency;
use hawser_netem::air::{Signal, Stranger};
use hawser_netem::report::{Report, Spread};
use hawser_netem::scenario::{Direction, Network, Usage, Via, Wifi, Workload};
use hawser_testbed::{Clients, OnAir, card_address};
use hawser_units::{Bytes, Duration, Rate};
use hawser_wire::data::FRAMING;

use super::Group;
use super::air::{Evaluation, Inside, Lab, scenario};
use super::found::Measured;

mod in_turn;
mod links;
mod logs;
mod order;
mod searching;
mod throttling;

pub(super) const GROUP: Group<Evaluation> = Group {
    evaluations: EVALUATIONS,
    sources: &[
        include_str!("../air.rs"),
        include_str!("mod.rs"),
        include_str!("in_turn.rs"),
        include_str!("links.rs"),
        include_str!("logs.rs"),
        include_str!("order.rs"),
        include_str!("searching.rs"),
        include_str!("throttling.rs"),
    ],
};

const EVALUATIONS: &[Evaluation] = &[
    Evaluation {
        setup: "M-fig2",
        claims: &[
            "M.fig2.a_links",
            "M.fig2.a_trad",
            "M.fig2.b_trad",
            "M.fig2.a64_waste",
        ],
        kernel: CARDS,
        run: estimate,
    },
    Evaluation {
        setup: "M-fig6",
        claims: &[
            "M.fig6b.median",
            "M.fig6b.same",
            "M.fig6b.max",
            "M.fig6c.15",
            "M.fig6c.worst",
        ],
        kernel: CARDS,
        run: uncontrolled,
    },
    Evaluation {
        setup: "M-fig7",
        claims: &["M.fig7.c1", "M.fig7.c2", "M.fig7.c3", "M.fig7.c3udp"],
        kernel: CARDS,
        run: bottlenecks,
    },
    Evaluation {
        setup: "M-tab3",
        claims: &[
            "M.tab3.mf1",
            "M.tab3.tr1",
            "M.tab3.mf2",
            "M.tab3.tr2",
            "M.tab3.mf3",
            "M.tab3.tr3",
            "M.tab3.mf4",
            "M.tab3.tr4",
            "M.tab3.flat",
            "M.tab3.ratio",
        ],
        kernel: Inside::DriversCards(8),
        run: several_clients,
    },
    Evaluation {
        setup: "M-fig8a",
        claims: &["M.fig8a.d0", "M.fig8a.d100", "M.fig8a.mono"],
        kernel: CARDS,
        run: multipath,
    },
    Evaluation {
        setup: "M-fig9",
        claims: &["M.fig9.over", "M.fig9.mf"],
        kernel: CARDS,
        run: overhearing,
    },
    Evaluation {
        setup: "M-fig10",
        claims: &["M.fig10.tcp", "M.fig10.udp", "M.fig10.sum"],
        kernel: CARDS,
        run: fastest,
    },
    Evaluation {
        setup: "M-fig14",
        claims: &["M.fig14.shift"],
        kernel: CARDS,
        run: interference,
    },
    Evaluation {
        setup: "M-tab4",
        claims: &["M.tab4.mf"],
        kernel: CARDS,
        run: against_routing,
    },
    Evaluation {
        setup: "M-fig6, in turn",
        claims: &["M.fig6b.naive"],
        kernel: CARDS,
        run: in_turn::uncontrolled,
    },
    Evaluation {
        setup: "M-fig7, in turn",
        claims: &["M.fig7.naive"],
        kernel: CARDS,
        run: in_turn::bottlenecks,
    },
    Evaluation {
        setup: "M-fig14, in turn",
        claims: &["M.fig14.rr"],
        kernel: CARDS,
        run: in_turn::interference,
    },
    Evaluation {
        setup: "M-fig12",
        claims: &["M.fig12.200", "M.fig12.now", "M.fig12.max"],
        kernel: CARDS,
        run: throttling::reactions,
    },
    Evaluation {
        setup: "M-fig13",
        claims: &["M.fig13.ag", "M.fig13.n", "M.fig13.tab1"],
        kernel: CARDS,
        run: order::order,
    },
    Evaluation {
        setup: "M-tab5",
        claims: &[
            "M.tab5.ag.without",
            "M.tab5.ag.with",
            "M.tab5.n.without",
            "M.tab5.n.with",
            "M.tab5.gain",
            "M.tab5.gainvar",
            "M.tab5.sd",
        ],
        kernel: CARDS,
        run: order::buffer,
    },
    Evaluation {
        setup: "M-fig15",
        claims: &["M.fig15.step", "M.fig15.adeq", "M.fig15.best"],
        kernel: CARDS,
        run: searching::searches,
    },
    Evaluation {
        setup: "M-fig16",
        claims: &["M.fig16.low", "M.fig16.high"],
        kernel: CARDS,
        run: links::wide_channel,
    },
    Evaluation {
        setup: "M-fig11",
        claims: &["M.fig11.agg", "M.fig11.d0", "M.fig11.d15", "M.fig11.d120"],
        kernel: CARDS,
        run: links::over_the_air,
    },
];

/// Cards of two links and one client. Source: two at each box, and one.
const CARDS: Inside = Inside::DriversCards(5);

/// Set-up of the floor.
#[derive(Clone)]
struct Floor {
    /// The own link and the shared link.
    links: [Hop; 2],
    /// Hop from the repeater to clients; `None`: the client is the repeater itself.
    down: Option<Hop>,
    clients: usize,
    /// Delay of the wire to the server, one way.
    wire: Duration,
    competitors: Vec<Competitor>,
    channels: [u16; 2],
    warmup: Duration,
    length: Duration,
    /// Seed of the medium.
    seed: u64,
    /// Further settings of the medium and of the boxes.
    more: OnAir,
}

/// System that transfers frames between the two boxes.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Carrier {
    Multifacet,
    /// Single link, by index, with the kernel's forwarding.
    Only(usize),
    /// The kernel's multipath TCP, with an address on each link.
    Mptcp,
    /// The kernel's forwarding over both links, packet by packet in turn, without reordering or
    /// feedback. Packets from the client use the own link.
    InTurn,
}

/// Traditional repeater, over the own link.
const TRADITIONAL: Carrier = Carrier::Only(OWN);

impl Floor {
    fn new([own, shared, down]: [Hop; 3]) -> Self {
        Self {
            links: [own, shared],
            down: Some(down),
            clients: 1,
            wire: Duration::from_millis(5),
            competitors: Vec::new(),
            channels: CHANNELS,
            warmup: Duration::from_secs(3),
            length: Duration::from_secs(7),
            seed: 1,
            more: OnAir::default(),
        }
    }

    /// Creates a set-up for the rate of one hop alone.
    fn of_one(hop: Hop) -> Self {
        Self {
            down: None,
            warmup: Duration::from_secs(1),
            length: Duration::from_secs(4),
            ..Self::new([hop, five(), five()])
        }
    }

    fn with_competitor(mut self, competitor: Competitor) -> Self {
        self.competitors.push(competitor);
        self
    }

    /// Returns the rate of one client's TCP download. Units: Mbit/s.
    fn tcp(&self, lab: &mut Lab<'_>, carrier: Carrier) -> anyhow::Result<f64> {
        Ok(self.run(lab, carrier, &tcp())?.goodput_bps.total / 1e6)
    }

    /// Runs the workload for each client.
    fn run(&self, lab: &mut Lab<'_>, carrier: Carrier, workload: &Workload) -> anyhow::Result<Report> {
        let via = match carrier {
            Carrier::Multifacet => Via::Repeater,
            Carrier::Only(link) => Via::Single(NAMES[link].to_owned()),
            Carrier::Mptcp => Via::Mptcp,
            Carrier::InTurn => Via::Single(NAMES[OWN].to_owned()),
        };
        let cards = [OWN, SHARED].map(|link| self.links[link].station(0));
        let clients = self.down.as_ref().map(|hop| Clients {
            count: self.clients,
            network: SHARED,
            card: hop.station(0),
            signal: hop.signal.clone(),
            far: Signal {
                power: FAR,
                ..Signal::clear()
            },
        });
        let on_air = OnAir {
            cards: cards.to_vec(),
            clients,
            strangers: self.competitors.iter().map(|one| self.stranger(one)).collect(),
            wire: self.wire,
            in_turn_with: (carrier == Carrier::InTurn).then_some(SHARED),
            ..self.more.clone()
        };
        let networks = [OWN, SHARED].map(|link| self.network(link));
        let workloads = vec![workload.clone(); self.clients];
        let mut scenario = scenario(via, networks, workloads, (self.warmup, self.length));
        scenario.seed = self.seed;
        lab.run(&scenario.name, &scenario, &on_air)
    }

    fn network(&self, link: usize) -> Network {
        Network {
            name: NAMES[link].to_owned(),
            links: None,
            wifi: Some(Wifi {
                standard: self.links[link].standard,
                channel: self.channels[link],
                rate: None,
                signal: self.links[link].signal.clone(),
                neighbours: Vec::new(),
                marks: false,
                tells: false,
                slots: None,
            }),
            member: None,
            shares: None,
            blocks_udp: false,
            nat: None,
            usage: Usage::default(),
        }
    }

    /// Converts a competitor to an interfering station among the cards of this floor.
    fn stranger(&self, competitor: &Competitor) -> Stranger {
        let cards = |who| match who {
            Who::AccessPoint => vec![2 * OWN, 2 * SHARED],
            Who::Repeater => vec![2 * OWN + 1, 2 * SHARED + 1],
            Who::Clients => (4..4 + self.clients).collect(),
        };
        let heard_by = competitor.near.iter().flat_map(|(who, power)| {
            let signal = Signal {
                power: *power,
                ..Signal::clear()
            };
            let by = |card| (card_address(card), signal.clone());
            cards(*who).into_iter().map(by).collect::<Vec<_>>()
        });
        Stranger {
            station: competitor.station(),
            frequency: frequency(competitor.channel.into()),
            every: competitor.gap(),
            len: COMPETING_LEN,
            period: competitor.period,
            heard_by: heard_by.collect(),
        }
    }
}

/// Returns the rate of each hop alone. Units: Mbit/s.
fn alone(lab: &mut Lab<'_>, hops: [Hop; 3]) -> anyhow::Result<[f64; 3]> {
    let mut rates = [0.0; 3];
    for (rate, hop) in rates.iter_mut().zip(hops) {
        *rate = Floor::of_one(hop).tcp(lab, TRADITIONAL)?;
    }
    Ok(rates)
}

/// Figure 2, without its computed values.
fn estimate(lab: &mut Lab<'_>) -> anyhow::Result<Vec<Measured>> {
    let alone = alone(lab, [twenty(), forty_five(), sixty()])?;
    let mut through = |own, down| Floor::new([own, five(), down]).tcp(lab, TRADITIONAL);
    let places = [
        through(twenty(), forty_five())?,
        through(thirty(), thirty())?,
        through(five(), sixty())?,
    ];
    Ok(vec![
        Measured::within("M.fig2.a_links", mean(&alone)),
        Measured::within("M.fig2.a_trad", mean(&places[..2])),
        Measured::within("M.fig2.b_trad", places[2]),
        Measured::within("M.fig2.a64_waste", alone[1] - alone[0]),
    ])
}

/// Figures 6b and 6c, at the first placements of the simulator's run with this seed.
fn uncontrolled(lab: &mut Lab<'_>) -> anyhow::Result<Vec<Measured>> {
    let (mut gains, mut deficits, mut evidence) = (Vec::new(), Vec::new(), Vec::new());
    for (place, hops) in placements(PLACEMENTS, lab.seed().into()).into_iter().enumerate() {
        let [own, shared, down] = alone(lab, hops.clone())?;
        let optimum = Hops { own, shared, down }.optimum();
        let floor = Floor::new(hops);
        let traditional = floor.tcp(lab, TRADITIONAL)?;
        let multifacet = floor.tcp(lab, Carrier::Multifacet)?;
        gains.push(multifacet / traditional);
        deficits.push(100.0 * (1.0 - multifacet / FRAMED / optimum));
        for (what, value) in [
            ("by equation 2", optimum),
            ("traditional", traditional),
            ("Hawser", multifacet),
        ] {
            evidence.push((format!("place {}: {what}", place + 1), value));
        }
    }
    let share = |count: usize| 100.0 * count as f64 / gains.len() as f64;
    let same = share(gains.iter().filter(|gain| **gain < 1.02).count());
    let near = share(deficits.iter().filter(|deficit| **deficit <= 15.0).count());
    let (gains, deficits) = (spread(gains)?, spread(deficits)?);
    Ok(vec![
        framed("M.fig6b.median", gains.median).with(evidence.clone()),
        Measured::maximum("M.fig6b.same", same),
        framed("M.fig6b.max", gains.max),
        Measured::minimum("M.fig6c.15", near).with(evidence),
        Measured::maximum("M.fig6c.worst", deficits.max.max(0.0)),
    ])
}

/// Figure 7.
fn bottlenecks(lab: &mut Lab<'_>) -> anyhow::Result<Vec<Measured>> {
    let loads = [
        (Case::C1, "c1", tcp()),
        (Case::C2, "c2", tcp()),
        (Case::C3, "c3", tcp()),
        (Case::C3, "c3udp", udp(60)),
    ];
    let mut all = Vec::new();
    for (case, name, load) in loads {
        let (mut gains, mut evidence) = (Vec::new(), Vec::new());
        for part in PARTS {
            let floor = Floor::new(case.hops()).with_competitor(case.competitor(part, CHANNELS));
            let mut rate = |carrier| anyhow::Ok(floor.run(lab, carrier, &load)?.goodput_bps.total);
            let gain = rate(Carrier::Multifacet)? / rate(TRADITIONAL)?;
            evidence.push((format!("of {:.0} % taken", 100.0 * part), gain));
            gains.push(gain);
        }
        all.push(framed(format!("M.fig7.{name}"), mean(&gains)).with(evidence));
    }
    Ok(all)
}

/// Table 3.
fn several_clients(lab: &mut Lab<'_>) -> anyhow::Result<Vec<Measured>> {
    let (mut all, mut totals, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
    let mut least = f64::INFINITY;
    for clients in 1..=4 {
        let mut floor = Floor::new([nineteen(), thirty(), sixty()]);
        floor.clients = clients;
        let report = floor.run(lab, Carrier::Multifacet, &tcp())?;
        let plain = floor.run(lab, TRADITIONAL, &tcp())?.goodput_bps.total / 1e6;
        let total = report.goodput_bps.total / 1e6;
        let fair = total * 1e6 / clients as f64;
        let each = report.goodput_bps.workloads.iter();
        least = each.fold(least, |least, rate| least.min(rate / fair));
        all.push(framed(format!("M.tab3.mf{clients}"), total));
        all.push(Measured::within(format!("M.tab3.tr{clients}"), plain));
        totals.push(total);
        ratios.push(total / plain);
    }
    let totals = spread(totals)?;
    let ratio = totals.max / totals.min;
    let evidence = vec![("spread".to_owned(), ratio), ("least share".to_owned(), least)];
    let is_flat = ratio <= 1.08 && least >= 0.8;
    all.push(Measured::holds("M.tab3.flat", is_flat, 1.0, evidence));
    all.push(framed("M.tab3.ratio", mean(&ratios)));
    Ok(all)
}

/// Figure 8a: ten seconds from the start, as in the paper.
fn multipath(lab: &mut Lab<'_>) -> anyhow::Result<Vec<Measured>> {
    let (mut ratios, mut evidence) = (Vec::new(), Vec::new());
    for there_and_back in [0, 25, 50, 75, 100] {
        let mut floor = Floor::new([twenty(), thirty(), sixty()]);
        floor.wire = Duration::from_millis(there_and_back) / 2;
        (floor.warmup, floor.length) = (Duration::ZERO, Duration::from_secs(10));
        let (mptcp, hawser) = (
            floor.tcp(lab, Carrier::Mptcp)?,
            floor.tcp(lab, Carrier::Multifacet)?,
        );
        evidence.push((format!("{there_and_back} ms: multipath TCP"), mptcp));
        evidence.push((format!("{there_and_back} ms: Hawser"), hawser));
        ratios.push(mptcp / hawser);
    }
    let grows = ratios.windows(2).all(|pair| pair[1] <= pair[0] + 0.1 * ratios[0]);
    Ok(vec![
        Measured::maximum("M.fig8a.d0", ratios[0]).with(evidence.clone()),
        Measured::maximum("M.fig8a.d100", ratios[4]).with(evidence.clone()),
        Measured::holds("M.fig8a.mono", grows, 1.0, evidence),
    ])
}

/// Figure 9. A client that overhears receives, in addition to the rate of a repeater on one
/// channel, the rate of the direct link alone.
fn overhearing(lab: &mut Lab<'_>) -> anyhow::Result<Vec<Measured>> {
    let floor = Floor::new([Hop::fixed(2, 1, true), twenty(), forty_five()]);
    let one = floor.tcp(lab, Carrier::Only(SHARED))?;
    let direct = Floor::of_one(five().lossy(1.0 / 3.0)).tcp(lab, TRADITIONAL)?;
    let multifacet = floor.tcp(lab, Carrier::Multifacet)?;
    let overhearing = one + direct;
    let evidence = vec![
        ("one channel".to_owned(), one),
        ("direct link".to_owned(), direct),
        ("Hawser".to_owned(), multifacet),
    ];
    Ok(vec![
        Measured::within("M.fig9.over", overhearing / one),
        framed("M.fig9.mf", multifacet / overhearing).with(evidence),
    ])
}

/// Figure 10: the paper's fastest radios, with the client on the repeater's wire.
fn fastest(lab: &mut Lab<'_>) -> anyhow::Result<Vec<Measured>> {
    let floor = |wide| {
        let hop = Hop::fixed(7, 3, wide);
        Floor {
            links: [hop.clone(), hop.clone()],
            wire: Duration::ZERO,
            ..Floor::of_one(hop)
        }
    };
    let (mut shares, mut evidence, mut wide) = (Vec::new(), Vec::new(), [0.0; 2]);
    for is_wide in [false, true] {
        for (kind, load) in [tcp(), udp(500)].into_iter().enumerate() {
            let floor = floor(is_wide);
            let mut rate = |carrier| anyhow::Ok(floor.run(lab, carrier, &load)?.goodput_bps.total / 1e6);
            let (one, both) = (rate(TRADITIONAL)?, rate(Carrier::Multifacet)?);
            let width = if is_wide { 40 } else { 20 };
            let name = ["TCP", "UDP"][kind];
            evidence.push((format!("{width} MHz, {name}: one link"), one));
            evidence.push((format!("{width} MHz, {name}: both"), both));
            shares.push(both / (2.0 * one));
            if is_wide {
                wide[kind] = both;
            }
        }
    }
    let is_sum = shares.iter().all(|share| *share >= 0.9);
    Ok(vec![
        framed("M.fig10.tcp", wide[0]),
        framed("M.fig10.udp", wide[1]),
        Measured::holds("M.fig10.sum", is_sum, FRAMED, evidence),
    ])
}

/// Figure 14: traffic that a link loses to an interferer moves to the other link at once.
fn interference(lab: &mut Lab<'_>) -> anyhow::Result<Vec<Measured>> {
    let report = interfered().run(lab, Carrier::Multifacet, &udp(LOAD))?;
    let rates = link_rates(&report, 1_000);
    // The interferer follows the kernel's clock; its onset is where the rate of the link drops.
    let seconds = rates[OWN].len().min(rates[SHARED].len());
    let fall = |second: &usize| rates[OWN][second - 1] - rates[OWN][*second];
    let onset = (2..seconds.saturating_sub(1)).max_by(|a, b| fall(a).total_cmp(&fall(b)));
    let onset = onset.unwrap_or(2);
    let [before, after] = [onset - 2, onset + 1].map(|second| [OWN, SHARED].map(|link| rates[link][second]));
    let holds =
        after[0] < before[0] && after[1] > before[1] && after[0] + after[1] >= 0.85 * (before[0] + before[1]);
    let evidence = vec![
        ("interfered before".to_owned(), before[0]),
        ("interfered after".to_owned(), after[0]),
        ("other before".to_owned(), before[1]),
        ("other after".to_owned(), after[1]),
    ];
    Ok(vec![Measured::holds("M.fig14.shift", holds, 1.0, evidence)])
}

/// Returns the links of figure 14; an interferer uses part of the own link for half of each period.
fn interfered() -> Floor {
    let period = Duration::from_secs(10);
    let mut floor = Floor {
        links: [thirty(), thirty()],
        warmup: Duration::ZERO,
        length: period * 2,
        ..Floor::of_one(thirty())
    };
    floor.competitors.push(Competitor {
        period: Some(period),
        load: 20.0,
        ..Case::C3.competitor(1.0, CHANNELS)
    });
    floor
}

/// Returns the rate of each link in each interval of `length` ms. Units: Mbit/s.
fn link_rates(report: &Report, length: u64) -> [Vec<f64>; 2] {
    let bins = (length / report.series.networks_bin_ms.max(1)).max(1) as usize;
    NAMES.map(|name| {
        let all = report.series.networks.get(name).map_or(&[][..], Vec::as_slice);
        let times = all.chunks_exact(bins);
        let mbps = |bins: &[u64]| bins.iter().sum::<u64>() as f64 * 8.0 / 1e3 / length as f64;
        times.map(mbps).collect()
    })
}

/// Table 4, without ROMA's logic.
fn against_routing(lab: &mut Lab<'_>) -> anyhow::Result<Vec<Measured>> {
    let mut floor = Floor::new(Case::C3.hops()).with_competitor(Case::C3.competitor(1.0, CHANNELS));
    floor.length *= 2;
    let (multifacet, traditional) = (floor.tcp(lab, Carrier::Multifacet)?, floor.tcp(lab, TRADITIONAL)?);
    let evidence = vec![
        ("Hawser".to_owned(), multifacet),
        ("traditional".to_owned(), traditional),
    ];
    Ok(vec![framed("M.tab4.mf", multifacet / traditional).with(evidence)])
}

/// Creates the result of a rate within a session; more is better.
fn framed(claim: impl Display, value: f64) -> Measured {
    Measured::rate(claim, value, FRAMED, 1.0)
}

fn tcp() -> Workload {
    Workload::Tcp {
        direction: Direction::Down,
        streams: 1,
        congestion: "cubic".to_owned(),
    }
}

fn udp(mbps: u64) -> Workload {
    Workload::Udp {
        direction: Direction::Down,
        rate: Rate::from_mbps(mbps),
        size: Bytes(DATAGRAM),
        layers: 0,
    }
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}

fn spread(values: Vec<f64>) -> anyhow::Result<Spread> {
    Spread::of(values).context("nothing was measured")
}

const NAMES: [&str; 2] = ["own", "shared"];
/// Channels of the own link and the shared link: 5 GHz, without radar detection. Source: ETSI EN
/// 301 893 requires it from 5,250 MHz on.
const CHANNELS: [u16; 2] = [44, 36];
/// Number of placements, of the paper's thirty. Source: docs/notebook/real-packets.md,
/// "Multifacet".
const PLACEMENTS: u64 = 10;
/// Payload share with the headers of the boxes' session. Source: IPv6 (RFC 8200 section 3), UDP
/// (RFC 768) and its own header around Ethernet.
const FRAMED: f64 = 1.0 - (40.0 + 8.0 + FRAMING as f64) / 1500.0;
/// Offered rate of figure 14. Source: that of the simulated evaluation
/// (`papers/multifacet/striping.rs` of `hawser-experiments`). Units: Mbit/s.
const LOAD: u64 = 35;
/// Datagram that fits into a frame of the session. Source: 1,500 bytes less 48 of IPv6 and UDP, the
/// framing of 40, 14 of Ethernet, and 28 of IPv4 and UDP. Units: bytes of UDP payload.
const DATAGRAM: u64 = 1_370;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_competitor_is_heard_where_the_paper_has_it() {
        let case = Case::C1;
        let mut floor = Floor::new(case.hops());
        floor.clients = 2;
        let stranger = floor.stranger(&case.competitor(0.5, CHANNELS));
        let heard: Vec<_> = stranger.heard_by.iter().map(|(address, _)| *address).collect();
        // The repeater's two cards and the clients', not the access point's.
        assert_eq!(heard, [1, 3, 4, 5].map(card_address));
        assert_eq!(stranger.frequency, 5180);
    }
}
