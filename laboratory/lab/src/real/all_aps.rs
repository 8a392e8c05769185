//! Evaluation of All-APs on real 802.11 stacks: one client at two access points on one channel.
//!
//! Scope: figures 2, 3 and 7 and tables 1 to 3, with the signals, buffers and retry limits of
//! `hawser_experiments`. Hawser's client and hub, with airtime reports (`share_air`), replace the
//! paper's MPTCP with marking; the kernel's uncoupled MPTCP replaces MPTCP without marking and
//! uncoupled TCP. The server's TCP is NewReno, as in the paper.
//!
//! Limitations: each station of the client has a card of its own, so its acknowledgements contend
//! with each other; the medium chooses rates, as in the simulator. A tunnel's headers count as
//! framing: the required rate is the paper's, times the payload share here over the payload share
//! of plain TCP.

use hawser_experiments::papers::all_aps::{
    FAR, NEAR, POSITIONS, apart, between, card, hidden, minstrel, minstrel_ht,
};
use hawser_netem::air::phy::{PhyRate, Standard};
use hawser_netem::air::{Signal, StationConfig};
use hawser_netem::report::Report;
use hawser_netem::scenario::{Direction, Links, Network, Usage, Via, Wifi, Workload};
use hawser_netem::{Capacity, LinkConfig};
use hawser_testbed::{Guest, OnAir};
use hawser_units::{Bytes, Duration, Rate};

use super::Group;
use super::air::{Evaluation, Inside, Lab, scenario};
use super::found::Measured;

pub(super) const GROUP: Group<Evaluation> = Group {
    evaluations: EVALUATIONS,
    sources: &[include_str!("air.rs"), include_str!("all_aps.rs")],
};

const EVALUATIONS: &[Evaluation] = &[
    Evaluation {
        setup: "N-fig2",
        claims: &["N.fig2.ends", "N.fig2.udp_mid", "N.fig2.mptcp_mid", "N.fig2.mono"],
        kernel: Inside::Cards(6),
        run: hidden_access_points,
    },
    Evaluation {
        setup: "N-fig3",
        claims: &["N.fig3a.best", "N.fig3a.mid"],
        kernel: Inside::Cards(4),
        run: carrier_sense,
    },
    Evaluation {
        setup: "N-fig3, rates",
        claims: &["N.sec4.samerate", "N.sec4.lowrate"],
        kernel: Inside::Cards(6),
        run: fixed_rates,
    },
    Evaluation {
        setup: "N-fig7",
        claims: &["N.sec4.11n", "N.fig7.share", "N.fig7.gain"],
        kernel: Inside::Cards(4),
        run: nomadic,
    },
    Evaluation {
        setup: "N-tab1",
        claims: &[
            "N.tab1.ap1.C1",
            "N.tab1.ap1.C2",
            "N.tab1.ap1.C",
            "N.tab1.ap2.C1",
            "N.tab1.ap2.C2",
            "N.tab1.ap2.C",
            "N.tab1.both.C1",
            "N.tab1.both.C2",
            "N.tab1.both.C",
            "N.tab1.uncoupled.C",
            "N.tab1.uncoupled.C12",
        ],
        kernel: Inside::Cards(6),
        run: all_close,
    },
    Evaluation {
        setup: "N-tab2",
        claims: &[
            "N.tab2.ap1.C1",
            "N.tab2.ap1.C2",
            "N.tab2.ap1.C",
            "N.tab2.ap2.C1",
            "N.tab2.ap2.C2",
            "N.tab2.ap2.C",
            "N.tab2.both.C1",
            "N.tab2.both.C2",
            "N.tab2.both.C",
        ],
        kernel: Inside::Cards(6),
        run: |lab| Ok(table(lab, "tab2", [FAR, NEAR])?.0),
    },
    Evaluation {
        setup: "N-tab3",
        claims: &[
            "N.tab3.ap1.C1",
            "N.tab3.ap1.C2",
            "N.tab3.ap1.C",
            "N.tab3.ap2.C1",
            "N.tab3.ap2.C2",
            "N.tab3.ap2.C",
            "N.tab3.both.C1",
            "N.tab3.both.C2",
            "N.tab3.both.C",
            "N.tab3.jain",
        ],
        kernel: Inside::Cards(6),
        run: in_between,
    },
];

/// Two access points on one channel, and a client of both.
#[derive(Clone)]
struct Setup {
    standard: Standard,
    cards: [StationConfig; 2],
    /// Signals between the client and each access point.
    signals: [Signal; 2],
    /// Signals between the access points, and of the client to them, where they differ from the
    /// good ones and from `signals`.
    between: Option<Signal>,
    back: Option<Signal>,
    /// Delay to the server, one way.
    delay: Duration,
    warmup: Duration,
    length: Duration,
}

/// System that transfers the client's download.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Carrier {
    Only(usize),
    Hawser,
    /// The kernel's multipath TCP.
    Mptcp,
}

/// Download of another client: its workload, its access point by index, and its signals.
struct Other(Workload, usize, [Signal; 2]);

impl Setup {
    fn new(cards: [StationConfig; 2], signals: [Signal; 2], delay_ms: u64) -> Self {
        Self {
            standard: cards[0].standard,
            cards,
            signals,
            between: None,
            back: None,
            delay: Duration::from_millis(delay_ms),
            warmup: Duration::from_secs(3),
            length: Duration::from_secs(8),
        }
    }

    /// Runs a TCP download of the client and the workloads of `others`. `what` describes the run.
    fn download(&self, lab: &mut Lab<'_>, carrier: Carrier, others: &[Other]) -> anyhow::Result<Report> {
        self.run(lab, carrier, Some(tcp()), others)
    }

    /// Runs the workloads of the other clients only.
    fn others(&self, lab: &mut Lab<'_>, others: &[Other]) -> anyhow::Result<Report> {
        self.run(lab, Carrier::Only(0), None, others)
    }

    fn run(
        &self,
        lab: &mut Lab<'_>,
        carrier: Carrier,
        own: Option<Workload>,
        others: &[Other],
    ) -> anyhow::Result<Report> {
        let via = match carrier {
            Carrier::Only(access_point) => Via::Single(NAMES[access_point].to_owned()),
            Carrier::Hawser => Via::Hub,
            Carrier::Mptcp => Via::Mptcp,
        };
        let first = usize::from(own.is_some());
        let guest = |(index, other): (usize, &Other)| {
            let guest = Guest {
                network: other.1,
                signals: other.2.to_vec(),
            };
            (first + index, guest)
        };
        let on_air = OnAir {
            cards: self.cards.to_vec(),
            between: self.between.clone(),
            back: self.back.clone(),
            guests: others.iter().enumerate().map(guest).collect(),
            ..OnAir::default()
        };
        let workloads = own.into_iter().chain(others.iter().map(|other| other.0.clone()));
        let networks = [0, 1].map(|network| self.network(network));
        let scenario = scenario(via, networks, workloads.collect(), (self.warmup, self.length));
        lab.run(&scenario.name, &scenario, &on_air)
    }

    fn network(&self, number: usize) -> Network {
        let cable = LinkConfig {
            capacity: Capacity::Rate(CABLE),
            delay: self.delay,
            ..LinkConfig::default()
        };
        Network {
            name: NAMES[number].to_owned(),
            links: Some(Links {
                down: cable.clone(),
                up: cable,
            }),
            wifi: Some(Wifi {
                standard: self.standard,
                channel: CHANNEL,
                rate: None,
                signal: self.signals[number].clone(),
                neighbours: Vec::new(),
                marks: false,
                tells: true,
                slots: None,
            }),
            member: None,
            shares: None,
            blocks_udp: false,
            nat: None,
            usage: Usage::default(),
        }
    }
}

/// Throughputs at a position. Units: Mbit/s.
struct Totals {
    alone: [f64; 2],
    hawser: f64,
    /// Payload share of a frame, with Hawser.
    framing: f64,
}

impl Totals {
    fn of(lab: &mut Lab<'_>, setup: &Setup) -> anyhow::Result<Self> {
        let mut alone = [0.0; 2];
        for (access_point, rate) in alone.iter_mut().enumerate() {
            *rate = mbps(&setup.download(lab, Carrier::Only(access_point), &[])?, 0);
        }
        let both = setup.download(lab, Carrier::Hawser, &[])?;
        Ok(Self {
            alone,
            hawser: mbps(&both, 0),
            framing: framing(&both, 0),
        })
    }

    fn best(&self) -> f64 {
        self.alone[0].max(self.alone[1])
    }

    /// Returns Hawser's rate over that of the better access point, corrected to headers of plain
    /// TCP.
    fn share(&self) -> f64 {
        self.hawser * PLAIN_SHARE / self.framing / self.best()
    }
}

/// Figure 2: access points that do not hear each other.
fn hidden_access_points(lab: &mut Lab<'_>) -> anyhow::Result<Vec<Measured>> {
    let mut evidence = Vec::new();
    let mut all = Vec::new();
    for at in [0, POSITIONS / 2, POSITIONS - 1] {
        let mut setup = Setup::new([minstrel(), minstrel()].map(anywhere), hidden(at), 10);
        setup.between = Some(apart());
        let totals = Totals::of(lab, &setup)?;
        let load = |access_point| Other(udp(30_000, 1472), access_point, setup.signals.clone());
        let datagrams = setup.others(lab, &[load(0), load(1)])?.goodput_bps.total / 1e6;
        let mut alone = 0.0_f64;
        for access_point in 0..2 {
            alone = alone.max(mbps(&setup.others(lab, &[load(access_point)])?, 0));
        }
        for (name, value) in [
            ("TCP 1", totals.alone[0]),
            ("TCP 2", totals.alone[1]),
            ("Hawser", totals.hawser),
            ("UDP on both", datagrams),
            ("UDP on one", alone),
        ] {
            evidence.push((format!("place {}: {name}", at + 1), value));
        }
        all.push((setup, totals, datagrams / alone));
    }
    let least = [&all[0], &all[2]].map(|(_, totals, datagrams)| totals.share().min(*datagrams));
    let (setup, middle, datagrams) = &all[1];
    let subflows = setup.download(lab, Carrier::Mptcp, &[])?;
    let larger = monopoly(&subflows, setup.warmup);
    Ok(vec![
        Measured::holds(
            "N.fig2.ends",
            least[0].min(least[1]) >= 0.9,
            middle.framing,
            evidence.clone(),
        ),
        Measured::holds("N.fig2.udp_mid", *datagrams < 0.75, 1.0, evidence.clone()),
        Measured::holds(
            "N.fig2.mptcp_mid",
            middle.share() >= 0.8,
            middle.framing,
            evidence,
        ),
        Measured::holds(
            "N.fig2.mono",
            larger > 0.8,
            1.0,
            vec![("larger share of a second, the kernel's MPTCP".to_owned(), larger)],
        ),
    ])
}

/// Figure 3: access points that hear each other.
fn carrier_sense(lab: &mut Lab<'_>) -> anyhow::Result<Vec<Measured>> {
    let mut shares = Vec::new();
    let mut evidence = Vec::new();
    let mut framing = 1.0;
    for at in 0..POSITIONS {
        let setup = Setup::new([minstrel(), minstrel()].map(anywhere), between(at), 10);
        let totals = Totals::of(lab, &setup)?;
        framing = totals.framing;
        evidence.push((format!("place {}: the better alone", at + 1), totals.best()));
        evidence.push((format!("place {}: Hawser", at + 1), totals.hawser));
        shares.push(totals.share());
    }
    let least = shares.iter().copied().fold(f64::INFINITY, f64::min);
    let gain = 100.0 * (shares[POSITIONS / 2] - 1.0);
    Ok(vec![
        Measured::holds("N.fig3a.best", least >= 0.95, framing, evidence.clone()),
        Measured::minimum("N.fig3a.mid", gain).with(evidence),
    ])
}

/// Measures the results of section 4 at fixed rates, with datagrams and without Hawser.
fn fixed_rates(lab: &mut Lab<'_>) -> anyhow::Result<Vec<Measured>> {
    let fixed = |rate| StationConfig::fixed(Standard::A, 0, PhyRate::Ofdm(rate));
    let mut pair = |cards: [StationConfig; 2], losses: [f64; 2], used: &[usize]| -> anyhow::Result<_> {
        let signals = losses.map(Signal::lossy);
        let mut setup = Setup::new(cards, signals.clone(), 1);
        (setup.warmup, setup.length) = (Duration::from_secs(1), Duration::from_secs(5));
        let loads: Vec<_> = used
            .iter()
            .map(|one| Other(udp(40_000, 1472), *one, signals.clone()))
            .collect();
        let report = setup.others(lab, &loads)?;
        anyhow::Ok(
            report
                .goodput_bps
                .workloads
                .iter()
                .map(|bps| bps / 1e6)
                .collect::<Vec<_>>(),
        )
    };
    let mut evidence = Vec::new();
    let mut is_ordered = true;
    for attempts in [1, 3, 7, 11] {
        let card = StationConfig {
            attempts,
            ..fixed(54)
        };
        let rates = pair([card.clone(), card], [0.0, 0.3], &[0, 1])?;
        is_ordered &= rates[0] > rates[1];
        evidence.push((format!("better with {attempts} attempts"), rates[0]));
        evidence.push((format!("worse with {attempts} attempts"), rates[1]));
    }
    let mixed: f64 = pair([fixed(54), fixed(6)], [0.0, 0.0], &[0, 1])?.iter().sum();
    let single: f64 = pair([fixed(54), fixed(6)], [0.0, 0.0], &[0])?.iter().sum();
    Ok(vec![
        Measured::holds("N.sec4.samerate", is_ordered, 1.0, evidence),
        Measured::within("N.sec4.lowrate", mixed / single).with(vec![
            ("both".to_owned(), mixed),
            ("the better".to_owned(), single),
        ]),
    ])
}

/// Figure 7 and section 4.2's last experiment: 802.11n.
fn nomadic(lab: &mut Lab<'_>) -> anyhow::Result<Vec<Measured>> {
    let mut evidence = Vec::new();
    let (mut shares, mut near, mut gains) = (Vec::new(), Vec::new(), Vec::new());
    let (mut framings, mut plain) = (Vec::new(), Vec::new());
    for at in 0..POSITIONS {
        let signals = between(at).map(|signal| signal.fading(1.0, Duration::from_secs(1)));
        let cards = [CHANNEL, CHANNEL].map(minstrel_ht).map(anywhere);
        let mut setup = Setup::new(cards, signals, 5);
        (setup.warmup, setup.length) = (Duration::from_secs(5), Duration::from_secs(10));
        let totals = Totals::of(lab, &setup)?;
        evidence.push((format!("place {}: the better alone", at + 1), totals.best()));
        evidence.push((format!("place {}: Hawser", at + 1), totals.hawser));
        if at == 0 || at == POSITIONS - 1 {
            let mptcp = mbps(&setup.download(lab, Carrier::Mptcp, &[])?, 0);
            evidence.push((format!("place {}: the kernel's MPTCP", at + 1), mptcp));
            near.push(mptcp / totals.best());
            gains.push(totals.share() * totals.best() / mptcp);
            plain.push(mptcp);
        }
        framings.push(totals.framing);
        shares.push(totals.share());
    }
    let mean = |all: &[f64]| all.iter().sum::<f64>() / all.len() as f64;
    let framing = mean(&framings);
    let holds = gains.iter().all(|gain| *gain > 1.5);
    Ok(vec![
        Measured::within("N.sec4.11n", mean(&near)).with(evidence.clone()),
        Measured::minimum("N.fig7.share", 100.0 * mean(&shares)).with(evidence.clone()),
        Measured::holds("N.fig7.gain", holds, framing, evidence),
    ])
}

/// Table 1, with uncoupled TCP for client C.
fn all_close(lab: &mut Lab<'_>) -> anyhow::Result<Vec<Measured>> {
    let (mut all, _) = table(lab, "tab1", [NEAR, NEAR])?;
    let setup = at_table([NEAR, NEAR]);
    let report = setup.download(lab, Carrier::Mptcp, &table_others())?;
    let [c, first, second] = [0, 1, 2].map(|workload| mbps(&report, workload));
    let others = f64::midpoint(first, second);
    all.push(Measured::rate("N.tab1.uncoupled.C", c, PLAIN_SHARE, PLAIN_SHARE));
    all.push(Measured::rate(
        "N.tab1.uncoupled.C12",
        others,
        PLAIN_SHARE,
        PLAIN_SHARE,
    ));
    Ok(all)
}

/// Table 3, with Jain's index.
fn in_between(lab: &mut Lab<'_>) -> anyhow::Result<Vec<Measured>> {
    let (mut all, rows) = table(lab, "tab3", [FAR, FAR])?;
    let indices: Vec<f64> = rows.iter().copied().map(jain).collect();
    let holds = indices[2] > indices[0] && indices[2] > indices[1];
    let evidence = ROWS
        .iter()
        .zip(&indices)
        .map(|(row, index)| ((*row).to_owned(), *index));
    all.push(Measured::holds("N.tab3.jain", holds, 1.0, evidence.collect()));
    Ok(all)
}

/// Returns the rows of a table: C uses the first access point, the second, or both, with these loss
/// probabilities. Also returns the rates of C1, C2 and C. Units: Mbit/s.
fn table(lab: &mut Lab<'_>, name: &str, loss: [f64; 2]) -> anyhow::Result<(Vec<Measured>, Vec<[f64; 3]>)> {
    let setup = at_table(loss);
    let (mut all, mut rows) = (Vec::new(), Vec::new());
    for (row, carrier) in ROWS
        .iter()
        .zip([Carrier::Only(0), Carrier::Only(1), Carrier::Hawser])
    {
        let report = setup.download(lab, carrier, &table_others())?;
        let [c, first, second] = [0, 1, 2].map(|workload| mbps(&report, workload));
        let share = if carrier == Carrier::Hawser {
            framing(&report, 0)
        } else {
            PLAIN_SHARE
        };
        for (client, rate, share) in [
            ("C1", first, PLAIN_SHARE),
            ("C2", second, PLAIN_SHARE),
            ("C", c, share),
        ] {
            all.push(Measured::rate(
                format!("N.{name}.{row}.{client}"),
                rate,
                share,
                PLAIN_SHARE,
            ));
        }
        rows.push([first, second, c]);
    }
    Ok((all, rows))
}

fn at_table(loss: [f64; 2]) -> Setup {
    let mut setup = Setup::new([card(), card()].map(anywhere), loss.map(Signal::lossy), 10);
    // Frames from C have no additional loss.
    setup.back = Some(Signal::lossy(NEAR));
    (setup.warmup, setup.length) = (Duration::from_secs(5), Duration::from_secs(60));
    setup
}

/// Returns the downloads of C1 and C2.
fn table_others() -> [Other; 2] {
    [0, 1].map(|access_point| Other(tcp(), access_point, [NEAR, NEAR].map(Signal::lossy)))
}

/// Returns a card of the simulator's experiments without a fixed channel.
fn anywhere(card: StationConfig) -> StationConfig {
    StationConfig { channel: 0, ..card }
}

fn tcp() -> Workload {
    Workload::Tcp {
        direction: Direction::Down,
        streams: 1,
        congestion: "reno".to_owned(),
    }
}

fn udp(kbps: u64, size: u64) -> Workload {
    Workload::Udp {
        direction: Direction::Down,
        rate: Rate::from_bps(kbps * 1000),
        size: Bytes(size),
        layers: 0,
    }
}

/// Returns the throughput of a workload. Units: Mbit/s.
fn mbps(report: &Report, workload: usize) -> f64 {
    report
        .goodput_bps
        .workloads
        .get(workload)
        .copied()
        .unwrap_or_default()
        / 1e6
}

/// Returns the payload share of a workload's frames, if all other workloads are plain TCP.
fn framing(report: &Report, workload: usize) -> f64 {
    let bytes = |bins: &Vec<u64>| bins.iter().sum::<u64>() as f64;
    let own = report.series.workloads.get(workload).map_or(0.0, bytes);
    let others = report.series.bytes.iter().sum::<u64>() as f64 - own;
    let frames: f64 = report
        .networks
        .values()
        .map(|network| network.down.bytes as f64)
        .sum();
    own / (frames - others / PLAIN_SHARE).max(1.0)
}

/// Returns the larger network's share of each second's bytes, averaged over seconds.
fn monopoly(report: &Report, warmup: Duration) -> f64 {
    let in_second = (1000 / report.series.networks_bin_ms.max(1)) as usize;
    let skipped = warmup.as_secs() as usize * in_second;
    let series: Vec<&[u64]> = report
        .series
        .networks
        .values()
        .map(|bins| bins.get(skipped..).unwrap_or_default())
        .collect();
    let seconds = series
        .iter()
        .map(|bins| bins.len() / in_second.max(1))
        .min()
        .unwrap_or(0);
    let share = |second: usize| {
        let range = second * in_second..(second + 1) * in_second;
        let carried = series
            .iter()
            .map(|bins| bins[range.clone()].iter().sum::<u64>() as f64);
        let (most, all) = carried.fold((0.0_f64, 0.0), |(most, all), one| (most.max(one), all + one));
        most / all.max(1.0)
    };
    (0..seconds).map(share).sum::<f64>() / (seconds as f64).max(1.0)
}

/// Returns Jain's fairness index; 1 for equal rates.
fn jain(rates: [f64; 3]) -> f64 {
    let squares: f64 = rates.iter().map(|rate| rate * rate).sum();
    rates.iter().sum::<f64>().powi(2) / (3.0 * squares)
}

const NAMES: [&str; 2] = ["ap1", "ap2"];
const ROWS: [&str; 3] = ["ap1", "ap2", "both"];
/// Channel of the 5 GHz band without radar detection. Source: ETSI EN 301 893 requires it from
/// 5,250 MHz on.
const CHANNEL: u16 = 36;
/// Rate of the wire behind each access point, never the bottleneck. Source: our choice, ten times
/// the rate of IEEE 802.11g.
const CABLE: Rate = Rate::from_mbps(1_000);
/// Payload share of plain TCP. Source: segments of 1,448 bytes (RFC 9293 section 3.7.1, less
/// 12 bytes of timestamps, RFC 7323) in Ethernet frames of 1,514.
const PLAIN_SHARE: f64 = 1448.0 / 1514.0;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_rates_are_fair_and_one_alone_is_not() {
        assert!((jain([5.0, 5.0, 5.0]) - 1.0).abs() < 1e-9);
        assert!((jain([9.0, 0.0, 0.0]) - 1.0 / 3.0).abs() < 1e-9);
    }
}
