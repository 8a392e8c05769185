//! Constant-rate traffic over UDP (section V-B): tables II to IV, figure 7.
//!
//! Values that the paper does not state, chosen here:
//! - Packets of 512 bytes with 4 bytes of framing for equal channels; 160 bytes with an RTP header
//!   of 12 bytes, a common voice packet, for unequal channels. The two tables fit different shares
//!   of payload (0.992 and 0.92), so sizes must have differed.
//! - The packets between which Table IV measures jitter. Over all channels it cannot be 2 ms,
//!   because one packet needs 11 ms on the fastest channel and 86 ms on the slowest. Here it is
//!   measured between consecutive packets of each channel; the jitter of figure 7, which reaches
//!   425 ms, is measured over all arrivals. Means replace the final smoothed value, which depends
//!   only on some last 16 packets.
//! - A turn of the weighted round robin: one packet of the slowest channel where channels are
//!   unequal.
//! - Queues of 50 packets (ns-2's default), runs of 200 s: Table III's losses decrease slightly
//!   towards the slow links, by the packets in such a queue at the end of such a run.

use hawser_proto::scheduler;
use hawser_units::{Duration, Instant, Rate};

use super::reception::mean_change;
use super::topology::{Channel, Piconet, Plan};
use crate::reproduce::{Curve, Experiment, ExperimentError, Findings, Plot, Quantity, Unit};
use hawser_sim::app::{Cbr, DatagramSink};

/// Tables II and figure 7: a stream of 920 kb/s over 1 to 14 channels of 115.2 kb/s.
#[derive(Clone, Copy, Debug)]
pub struct Members;

/// Tables III and IV: a stream of 256 kb/s over channels of 128, 64, 32 and 16 kb/s.
#[derive(Clone, Copy, Debug)]
pub struct UnequalConstant;

/// Section V-B, last paragraph: the streams over table II's channels while channels join and leave.
#[derive(Clone, Copy, Debug)]
pub struct JoiningConstant;

/// Disciplines, with the paper's names and the names used here.
pub(super) const DISCIPLINES: [(&str, &str); 3] = [
    ("random", "random"),
    ("rr", "round-robin"),
    ("wrr", "surplus-round-robin"),
];

/// Duration of a run. Source: our choice, by the losses of Table III (start of this file).
const LENGTH: Duration = Duration::from_secs(200);
/// Queue of a channel. Source: the default of ns-2 (start of this file). Units: packets.
const QUEUE: u16 = 50;

struct Stream {
    loss: f64,
    /// Mean change of the transit time from one arrival to the next. Units: milliseconds.
    jitter: f64,
    /// Mean change of the transit time between consecutive packets of a channel. Units:
    /// milliseconds.
    channel_jitter: f64,
    /// Loss of each channel.
    channels: Vec<f64>,
}

struct Stated {
    channels: Vec<u64>,
    kbps: u64,
    payload: u16,
    framing: u16,
    /// Quantum of the slowest channel. Units: bytes.
    turn: u16,
    discipline: &'static str,
}

fn plan(stated: &Stated, seed: u64) -> Piconet {
    let channel = |&bps: &u64| Channel {
        bps,
        loss: 0.0,
        delay: Duration::from_millis(45),
    };
    Plan {
        seed,
        channels: stated.channels.iter().map(channel).collect(),
        framing: stated.framing,
        payload: stated.payload,
        queue: QUEUE,
        scheduler: scheduler::by_name(stated.discipline, seed).expect("a scheduler of the list"),
        is_datagram: true,
        mtu: stated.turn,
    }
    .build()
}

fn stream(stated: &Stated, seed: u64, prepare: impl FnOnce(&mut Piconet)) -> Stream {
    let mut piconet = plan(stated, seed);
    prepare(&mut piconet);
    let end = Instant::ZERO + LENGTH;
    let cbr = Cbr::new(
        Rate::from_bps(stated.kbps * 1_000),
        stated.payload,
        (Instant::ZERO, end),
    );
    let (source, sink) = piconet.join(0, cbr, DatagramSink::keeping_arrivals());
    piconet.network.run(end + Duration::from_secs(30));
    let sent = piconet.at_source::<Cbr>(source).sent();
    let sink: &DatagramSink = piconet.at_receiver(sink);
    let transits: Vec<f64> = sink.delays().iter().map(|&nanos| nanos as f64 / 1e6).collect();
    Stream {
        loss: 100.0 * (1.0 - sink.received() as f64 / sent as f64),
        jitter: mean_change(&transits),
        channel_jitter: piconet.change_on_channels(),
        channels: (0..piconet.channels.len())
            .map(|channel| piconet.lost_on(channel))
            .collect(),
    }
}

fn equal(count: usize, discipline: &'static str) -> Stated {
    Stated {
        channels: vec![115_200; count],
        kbps: 920,
        payload: 512,
        framing: 4,
        turn: 1500,
        discipline,
    }
}

impl Experiment for Members {
    fn setups(&self) -> &'static [&'static str] {
        &["H-tab2", "H-fig7"]
    }

    fn claims(&self) -> Vec<String> {
        let cells = [2, 4, 6, 8, 10]
            .iter()
            .flat_map(|n| DISCIPLINES.map(|(name, _)| format!("H.tab2.n{n}.{name}")));
        let rest = [
            "H.tab2.noproxy",
            "H.tab2.n8order",
            "H.fig7.max",
            "H.fig7.peak",
            "H.fig7.flat",
        ];
        cells.chain(rest.map(str::to_owned)).collect()
    }

    fn run(&self, seed: u64) -> Result<Findings, ExperimentError> {
        let mut findings = Findings::default();
        findings.value(
            "H.tab2.noproxy",
            stream(&equal(1, "round-robin"), seed, |_| ()).loss,
            Unit::Percent,
        );
        let mut losses = Vec::new();
        let mut jitters = Vec::new();
        for (name, discipline) in DISCIPLINES {
            let runs: Vec<(usize, Stream)> = (2..=14)
                .step_by(2)
                .map(|n| (n, stream(&equal(n, discipline), seed, |_| ())))
                .collect();
            for (n, stream) in &runs {
                if *n < 10 {
                    findings.value(format!("H.tab2.n{n}.{name}"), stream.loss, Unit::Percent);
                }
            }
            let most = runs
                .iter()
                .filter(|(n, _)| *n >= 10)
                .map(|(_, stream)| stream.loss)
                .fold(0.0, f64::max);
            findings.value(format!("H.tab2.n10.{name}"), most, Unit::Percent);
            let points = |of: fn(&Stream) -> f64| {
                runs.iter()
                    .map(|(n, stream)| (*n as f64, of(stream)))
                    .collect::<Vec<_>>()
            };
            losses.push(Curve::new(name, points(|stream| stream.loss)));
            jitters.push(Curve::new(name, points(|stream| stream.jitter)));
        }
        judge_members(&mut findings, &losses, &jitters);
        findings.plots = vec![
            Plot::new(
                "H-tab2",
                "Loss",
                ("links", Unit::Links),
                ("loss", Unit::Percent),
                losses,
            ),
            Plot::new(
                "H-fig7",
                "Jitter",
                ("links", Unit::Links),
                ("jitter", Unit::Millis),
                jitters,
            ),
        ];
        Ok(findings)
    }
}

fn judge_members(findings: &mut Findings, losses: &[Curve], jitters: &[Curve]) {
    let at = |curve: &Curve, n: f64| {
        curve
            .points
            .iter()
            .find(|(x, _)| *x == n)
            .map_or(f64::NAN, |(_, y)| *y)
    };
    let (random, rr) = (at(&losses[0], 8.0), at(&losses[1], 8.0));
    let percent = |name: &str, value| (name.to_owned(), Quantity::new(value, Unit::Percent));
    findings.shape(
        "H.tab2.n8order",
        random > rr,
        vec![percent("random", random), percent("rr", rr)],
    );
    let ms = |name: &str, value| (name.to_owned(), Quantity::new(value, Unit::Millis));
    let points = &jitters[0].points;
    let peak = points
        .iter()
        .copied()
        .reduce(|best, next| if next.1 > best.1 { next } else { best });
    let (peak_at, largest) = peak.unwrap_or_default();
    findings.value("H.fig7.max", largest, Unit::Millis);
    let falls = points.iter().filter(|(n, _)| *n > 8.0).all(|(_, y)| *y < largest);
    let links = ("peak".to_owned(), Quantity::new(peak_at, Unit::Links));
    findings.shape("H.fig7.peak", peak_at == 8.0 && falls, vec![links]);
    let range = |curve: &Curve| {
        let values = curve.points.iter().map(|(_, y)| *y);
        (
            values.clone().fold(f64::INFINITY, f64::min),
            values.fold(0.0, f64::max),
        )
    };
    let (rr, wrr) = (range(&jitters[1]), range(&jitters[2]));
    let flat = [rr, wrr].iter().all(|(_, most)| *most < 0.25 * largest);
    findings.shape(
        "H.fig7.flat",
        flat,
        vec![
            ms("rr least", rr.0),
            ms("rr most", rr.1),
            ms("wrr least", wrr.0),
            ms("wrr most", wrr.1),
        ],
    );
}

impl Experiment for UnequalConstant {
    fn setups(&self) -> &'static [&'static str] {
        &["H-tab3", "H-tab4"]
    }

    fn claims(&self) -> Vec<String> {
        let cells = ["128", "64", "32", "16", "total"]
            .iter()
            .flat_map(|link| DISCIPLINES.map(|(name, _)| format!("H.tab3.{link}.{name}")));
        let jitters = DISCIPLINES.map(|(name, _)| format!("H.tab4.{name}"));
        let orders = ["H.tab3.order", "H.tab4.order"].map(str::to_owned);
        cells.chain(jitters).chain(orders).collect()
    }

    fn run(&self, seed: u64) -> Result<Findings, ExperimentError> {
        let mut findings = Findings::default();
        let runs = DISCIPLINES.map(|(_, discipline)| {
            let stated = Stated {
                channels: vec![128_000, 64_000, 32_000, 16_000],
                kbps: 256,
                payload: 160,
                framing: 12,
                turn: 172,
                discipline,
            };
            stream(&stated, seed, |_| ())
        });
        for ((name, _), stream) in DISCIPLINES.iter().zip(&runs) {
            for (link, loss) in ["128", "64", "32", "16"].iter().zip(&stream.channels) {
                findings.value(format!("H.tab3.{link}.{name}"), *loss, Unit::Percent);
            }
            findings.value(format!("H.tab3.total.{name}"), stream.loss, Unit::Percent);
            findings.value(format!("H.tab4.{name}"), stream.channel_jitter, Unit::Millis);
        }
        let [random, rr, wrr] = &runs;
        let most = wrr.channels.iter().copied().fold(0.0, f64::max);
        let least = wrr.channels.iter().copied().fold(f64::INFINITY, f64::min);
        let percent = |name: &str, value| (name.to_owned(), Quantity::new(value, Unit::Percent));
        findings.shape(
            "H.tab3.order",
            wrr.loss < 0.5 * rr.loss && most - least <= 4.0,
            vec![
                percent("rr", rr.loss),
                percent("wrr", wrr.loss),
                percent("wrr spread", most - least),
            ],
        );
        let ms = |name: &str, value| (name.to_owned(), Quantity::new(value, Unit::Millis));
        findings.shape(
            "H.tab4.order",
            rr.channel_jitter < random.channel_jitter && random.channel_jitter < wrr.channel_jitter,
            vec![
                ms("rr", rr.channel_jitter),
                ms("random", random.channel_jitter),
                ms("wrr", wrr.channel_jitter),
            ],
        );
        Ok(findings)
    }
}

impl Experiment for JoiningConstant {
    fn setups(&self) -> &'static [&'static str] {
        &["H-cbrdyn"]
    }

    fn claims(&self) -> Vec<String> {
        vec!["H.cbrdyn.mono".to_owned()]
    }

    fn run(&self, seed: u64) -> Result<Findings, ExperimentError> {
        let mut findings = Findings::default();
        let mut correlations = Vec::new();
        let mut curves = Vec::new();
        for (persistent, transient) in [(3, 1), (2, 2)] {
            let losses: Vec<f64> = DUTIES
                .iter()
                .map(|&duty| {
                    let stated = Stated {
                        kbps: 400,
                        ..equal(persistent + transient, "round-robin")
                    };
                    let channels: Vec<usize> = (persistent..persistent + transient).collect();
                    stream(&stated, seed, |piconet| {
                        piconet.alternate(&channels, periods(duty), Instant::ZERO + LENGTH);
                    })
                    .loss
                })
                .collect();
            correlations.push(spearman(&DUTIES, &losses));
            let points = DUTIES.iter().copied().zip(losses).collect();
            curves.push(Curve::new(&format!("{transient} transient"), points));
        }
        let worst = correlations.iter().copied().fold(-1.0, f64::max);
        let evidence = vec![("spearman".to_owned(), Quantity::new(worst, Unit::Ratio))];
        findings.shape("H.cbrdyn.mono", worst <= -0.9, evidence);
        let axes = (("duty cycle", Unit::Percent), ("loss", Unit::Percent));
        findings.plots = vec![Plot::new("H-cbrdyn", "Loss", axes.0, axes.1, curves)];
        Ok(findings)
    }
}

/// Duty cycles of figures 4 and 5, in percent. Source: Piconet section V-A; Table X has the same.
pub(super) const DUTIES: [f64; 5] = [0.0, 25.0, 50.0, 75.0, 100.0];

/// Returns the times for which a channel is up and down in each 20 s.
pub(super) fn periods(duty: f64) -> (Duration, Duration) {
    let up = Duration::from_millis((200.0 * duty) as u64);
    (up, Duration::from_secs(20) - up)
}

/// Returns Spearman's rank correlation; equal values share a rank.
pub(super) fn spearman(x: &[f64], y: &[f64]) -> f64 {
    let ranks = |values: &[f64]| -> Vec<f64> {
        let rank = |value: &f64| {
            let below = values.iter().filter(|other| *other < value).count() as f64;
            let same = values.iter().filter(|other| *other == value).count() as f64;
            below + (same - 1.0) / 2.0
        };
        values.iter().map(rank).collect()
    };
    let (x, y) = (ranks(x), ranks(y));
    let mean = (x.len() as f64 - 1.0) / 2.0;
    let product = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| (a - mean) * (b - mean)).sum::<f64>();
    product(&x, &y) / (product(&x, &x) * product(&y, &y)).sqrt()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_share_ties() {
        assert_eq!(spearman(&[1.0, 2.0, 3.0], &[5.0, 6.0, 9.0]), 1.0);
        assert_eq!(spearman(&[1.0, 2.0, 3.0], &[5.0, 4.0, 1.0]), -1.0);
        assert!(spearman(&[1.0, 2.0, 3.0], &[5.0, 5.0, 9.0]) > 0.8);
    }
}
