//! The testbed (section VI): figures 10, 11 and 13 to 16, and table X.

use hawser_experiments::papers::piconet::{CAPACITIES, LATE, Reception, TERMINATED};
use hawser_netem::QueueBound;
use hawser_units::{Bytes, Duration};

use super::super::Evaluation;
use super::super::found::Measured;
use super::super::lab::{Carrier, Lab, Load, Received, Stated, undeliverable_share};
use super::{DUTIES, FILE, RANDOM, ROUND_ROBIN, claims};

pub(super) const EVALUATIONS: &[Evaluation] = &[
    Evaluation {
        setup: "H-fig10",
        claims: || claims("H.fig10.", &["noproxy", "proxy", "ratio", "trend"]),
        run: counts,
    },
    Evaluation {
        setup: "H-fig11",
        claims: || claims("H.fig11.", &["mono"]),
        run: one_slow,
    },
    Evaluation {
        setup: "H-tab10",
        claims: || {
            let cells = ["one", "two"].into_iter();
            let cells = cells.flat_map(|count| DUTIES.map(|duty| format!("H.tab10.{count}.d{duty}")));
            cells.chain(claims("H.tab10.", &["trend"])).collect()
        },
        run: transient,
    },
    Evaluation {
        setup: "H-fig13",
        claims: || {
            let losses = ["one64", "onehigh", "two128", "two175", "four256", "max"];
            let jitters = claims("H.fig14.", &["typ", "max"]);
            claims("H.fig13.", &losses).into_iter().chain(jitters).collect()
        },
        run: streaming,
    },
    Evaluation {
        setup: "H-fig15",
        claims: || claims("H.", &["fig15.low", "fig15.high", "fig15.step", "fig16.hump"]),
        run: one_late,
    },
];

/// Figure 10: one to four lines, and one without Hawser.
fn counts(lab: &mut Lab<'_>) -> anyhow::Result<Vec<Measured>> {
    let plain = lab.transfer(&lines(1).by(Carrier::Kernel), FILE)?;
    let (mut rates, mut numbers, mut framing) = (Vec::new(), Vec::new(), 0.0);
    for count in 1..=4 {
        let transfer = lab.transfer(&lines(count), FILE)?;
        framing = if count == 1 { transfer.framing } else { framing };
        numbers.push((format!("n={count}"), transfer.kbps));
        rates.push(transfer.kbps);
    }
    let mut is_above = true;
    for count in 2..=4 {
        let transfer = lab.transfer(&lines(count).by(RANDOM), FILE)?;
        is_above &= rates.get(count - 1).is_some_and(|own| *own >= transfer.kbps);
        numbers.push((format!("random n={count}"), transfer.kbps));
    }
    let grows = rates.windows(2).all(|pair| pair[0] < pair[1]);
    let one = rates.first().copied().unwrap_or(f64::NAN);
    Ok(vec![
        Measured::rate("H.fig10.noproxy", plain.kbps, plain.framing, PLAIN_SHARE),
        Measured::rate("H.fig10.proxy", one, framing, LINE_SHARE),
        // Required rate: the paper's ratio, corrected by the payload shares of its tunnel and of
        // ours.
        Measured::rate(
            "H.fig10.ratio",
            one / plain.kbps,
            framing / plain.framing,
            LINE_SHARE / PLAIN_SHARE,
        ),
        Measured::holds("H.fig10.trend", grows && is_above, framing, numbers).of_own_settings(),
    ])
}

/// Figure 11: the delay of one of four lines is larger by up to 100 ms. The paper's throughput
/// falls with that delay; a smaller decrease is as good.
fn one_slow(lab: &mut Lab<'_>) -> anyhow::Result<Vec<Measured>> {
    let mut numbers = Vec::new();
    let mut framing = 0.0;
    for extra in [0, 50, 100] {
        let transfer = lab.transfer(&last_slower(extra), FILE)?;
        framing = transfer.framing;
        numbers.push((format!("{extra} ms"), transfer.kbps));
    }
    let rates: Vec<f64> = numbers.iter().map(|(_, rate)| *rate).collect();
    let holds = rates.last() >= rates.first().map(|first| first * 0.9).as_ref();
    Ok(vec![Measured::holds("H.fig11.mono", holds, framing, numbers)])
}

/// Table X: four lines, of which one or two are intermittent.
fn transient(lab: &mut Lab<'_>) -> anyhow::Result<Vec<Measured>> {
    let (mut all, mut numbers) = (Vec::new(), Vec::new());
    let (mut series, mut framing) = (Vec::new(), 0.0);
    for (name, count) in [("one", 1), ("two", 2)] {
        let mut rates = Vec::new();
        for duty in DUTIES {
            let transfer = lab.transfer(&lines(4).at_duty(count, duty), FILE)?;
            let claim = format!("H.tab10.{name}.d{duty}");
            framing = transfer.framing;
            let measured = Measured::rate(claim, transfer.kbps, framing, LINE_SHARE);
            all.push(measured.with(transfer.evidence()));
            rates.push(transfer.kbps);
            numbers.push((format!("{name} {duty} %"), transfer.kbps));
        }
        series.push(rates);
    }
    let of = |at: usize| series.get(at).map_or(&[][..], Vec::as_slice);
    let grows = of(0).first() < of(0).last() && of(1).windows(2).all(|pair| pair[0] < pair[1]);
    all.push(Measured::holds("H.tab10.trend", grows, framing, numbers));
    Ok(all)
}

/// Figures 13 and 14: media streams over one to four lines.
fn streaming(lab: &mut Lab<'_>) -> anyhow::Result<Vec<Measured>> {
    let mut all = Vec::new();
    let (mut striped, mut jitters) = ((0.0f64, 0.0f64, 0.0), Vec::new());
    let mut most_jitter = 0.0f64;
    for (count, kbps) in CAPACITIES {
        let (media, received) = media(lab, &lines(count), kbps)?;
        let framing = received.framing;
        let floor = undeliverable_share(LINE * count as f64, kbps as f64, framing);
        let claim = match (count, kbps) {
            (1, 64) => Some("one64"),
            (2, 128) => Some("two128"),
            (4, 256) => Some("four256"),
            _ => None,
        };
        all.extend(claim.map(|claim| {
            Measured::loss(format!("H.fig13.{claim}"), media.loss, framing, floor).with(received.evidence())
        }));
        if count > 1 {
            striped = (striped.0.max(media.loss), striped.1.max(floor), framing);
        }
        most_jitter = most_jitter.max(media.most_jitter);
        jitters.push(media.jitter);
    }
    all.push(Measured::loss("H.fig13.max", striped.0, striped.2, striped.1));
    jitters.sort_by(f64::total_cmp);
    let typical = jitters.get(jitters.len() / 2).copied().unwrap_or(f64::NAN);
    all.push(Measured::loss("H.fig14.typ", typical, striped.2, 0.0));
    all.push(Measured::loss("H.fig14.max", most_jitter, striped.2, 0.0));

    let (mut least, mut numbers, mut floor) = (f64::INFINITY, Vec::new(), 0.0);
    let mut framing = 0.0;
    for kbps in [128, 175, 256] {
        let (media, received) = media(lab, &lines(1), kbps)?;
        if media.loss < least {
            (least, framing) = (media.loss, received.framing);
            floor = undeliverable_share(LINE, kbps as f64, framing);
        }
        numbers.push((format!("{kbps} kb/s"), media.loss));
    }
    all.push(Measured::loss("H.fig13.onehigh", least, framing, floor).with(numbers));
    let (failed, received) = media(lab, &lines(2), 175)?;
    all.push(Measured::ranking(
        "H.fig13.two175",
        failed.loss > TERMINATED,
        framing,
        [vec![("loss in %".to_owned(), failed.loss)], received.evidence()].concat(),
    ));
    Ok(all)
}

/// Figures 15 and 16: 200 kb/s over four lines, one with a larger delay, by round robin as in the
/// paper. The loss with Hawser's default schedulers is part of the evidence.
fn one_late(lab: &mut Lab<'_>) -> anyhow::Result<Vec<Measured>> {
    let (mut received, mut framing) = (Vec::new(), 0.0);
    for extra in (0..=140).step_by(20) {
        let (media, stream) = media(lab, &last_slower(extra).by(ROUND_ROBIN), 200)?;
        framing = stream.framing;
        received.push((extra, media));
    }
    let mut own = Vec::new();
    for extra in [40, 100] {
        let (media, _) = media(lab, &last_slower(extra), 200)?;
        own.push((format!("own, {extra} ms"), media.loss));
    }
    let at = |ms: u64| received.iter().find(|(extra, _)| *extra == ms);
    let loss = |ms| at(ms).map_or(f64::NAN, |(_, media)| media.loss);
    let jitter = |ms| at(ms).map_or(f64::NAN, |(_, media)| media.jitter);
    let numbers = |of: fn(&Reception) -> f64| {
        let named = received
            .iter()
            .map(|(extra, media)| (format!("{extra} ms"), of(media)));
        named.collect::<Vec<_>>()
    };
    let far = [80, 100, 120, 140].map(loss);
    let floor = undeliverable_share(LINE * 4.0, 200.0, framing);
    Ok(vec![
        Measured::loss("H.fig15.low", loss(20).max(loss(40)), framing, floor).with(own),
        Measured::loss(
            "H.fig15.high",
            far.iter().sum::<f64>() / far.len() as f64,
            framing,
            floor,
        ),
        Measured::ranking(
            "H.fig15.step",
            loss(60) < loss(80) && (loss(140) - loss(80)).abs() <= 3.0,
            framing,
            numbers(|media| media.loss),
        ),
        Measured::ranking(
            "H.fig16.hump",
            jitter(40) > jitter(20) && jitter(140) < jitter(40),
            framing,
            numbers(|media| media.jitter),
        ),
    ])
}

/// Runs a media stream, and returns its useful part and all arrivals.
fn media(lab: &mut Lab<'_>, lines: &Stated, kbps: u64) -> anyhow::Result<(Reception, Received)> {
    let load = Load {
        kbps,
        payload: 1_000,
        layers: 0,
        duration: STREAM,
    };
    let stream = lab.stream(lines, load)?;
    Ok((Reception::of(stream.sent, &stream.delays, LATE), stream))
}

/// Returns the paper's serial lines, with ten bits per byte.
pub(super) fn lines(count: usize) -> Stated {
    // Queue of a PPP device in Linux 2.2.
    let queue = QueueBound::Bytes(Bytes(3 * 1_514));
    Stated::equal(count, 92_160, Duration::from_millis(35), queue)
}

/// Returns four lines, of which the last has `extra` ms more delay.
fn last_slower(extra: u64) -> Stated {
    let mut stated = lines(4);
    if let Some(link) = stated.links.last_mut() {
        link.delay += Duration::from_millis(extra);
    }
    stated
}

/// Rate of a line. Source: Piconet section VI-A, 115.2 kb/s with ten bits per byte. Units: kb/s.
const LINE: f64 = 92.16;
/// Duration of a stream. Source: our choice; a longer one changes the means by less than their
/// deviation.
const STREAM: Duration = Duration::from_secs(30);
/// Payload share with GRE. Source: segments of 1,460 bytes, with 40 of headers, 24 of GRE and 8 of
/// PPP (`papers/piconet/testbed.rs` of `hawser-experiments`).
const LINE_SHARE: f64 = 1_460.0 / 1_532.0;
/// Payload share without GRE. Source: as with GRE, less 24 bytes.
const PLAIN_SHARE: f64 = 1_460.0 / 1_508.0;
