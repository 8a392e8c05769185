//! Constant-rate streams over UDP (section V-B): tables II to IV and figure 7.

use hawser_experiments::papers::piconet::mean_change;
use hawser_units::Duration;

use super::super::Evaluation;
use super::super::found::Measured;
use super::super::lab::{Carrier, Lab, Load, Received, undeliverable_share};
use super::{DISCIPLINES, DUTIES, ROUND_ROBIN, UNEQUAL, claims, grows, simulated, simulated_unequal};

pub(super) const EVALUATIONS: &[Evaluation] = &[
    Evaluation {
        setup: "H-tab2",
        claims: || {
            let cells = SIZES
                .iter()
                .flat_map(|n| DISCIPLINES.map(|(name, _)| format!("H.tab2.n{n}.{name}")));
            let rest = [
                "tab2.noproxy",
                "tab2.n8order",
                "fig7.max",
                "fig7.peak",
                "fig7.flat",
            ];
            cells.chain(claims("H.", &rest)).collect()
        },
        run: members,
    },
    Evaluation {
        setup: "H-tab3",
        claims: || {
            let links = UNEQUAL.map(|kbps| kbps.to_string());
            let cells = links.iter().map(String::as_str).chain(["total"]);
            let cells = cells.flat_map(|link| DISCIPLINES.map(|(name, _)| format!("H.tab3.{link}.{name}")));
            let rest = ["tab3.order", "tab4.random", "tab4.rr", "tab4.wrr", "tab4.order"];
            cells.chain(claims("H.", &rest)).collect()
        },
        run: unequal,
    },
    Evaluation {
        setup: "H-cbrdyn",
        claims: || claims("H.cbrdyn.", &["mono"]),
        run: joining,
    },
];

/// Table II and figure 7: 920 kb/s over 2 to 10 links.
fn members(lab: &mut Lab<'_>) -> anyhow::Result<Vec<Measured>> {
    let mut all = Vec::new();
    let load = Load {
        kbps: 920,
        payload: 512,
        layers: 0,
        duration: STREAM,
    };
    let alone = lab.stream(&simulated(1).by(Carrier::Kernel), load)?;
    let floor = undeliverable_share(115.2, 920.0, alone.framing);
    all.push(Measured::loss("H.tab2.noproxy", alone.loss, alone.framing, floor));
    let (mut jitters, mut at_the_edge) = (Vec::new(), Vec::new());
    let mut framing = 0.0;
    for (name, carrier) in DISCIPLINES {
        let mut of_discipline = Vec::new();
        for count in SIZES {
            let stream = lab.stream(&simulated(count).by(carrier), load)?;
            of_discipline.push(mean_change(&stream.delays));
            framing = stream.framing;
            if count == EDGE {
                at_the_edge.push((name.to_owned(), stream.loss));
            }
            let floor = undeliverable_share(115.2 * count as f64, 920.0, stream.framing);
            all.push(cell(format!("H.tab2.n{count}.{name}"), &stream, floor));
        }
        jitters.push(of_discipline);
    }
    let loss = |at: usize| at_the_edge.get(at).map_or(f64::NAN, |(_, loss)| *loss);
    let is_worse = loss(0) > loss(1);
    all.push(Measured::ranking("H.tab2.n8order", is_worse, framing, at_the_edge).of_own_settings());
    all.extend(jitter_over_sizes(&jitters, framing));
    Ok(all)
}

/// Figure 7: jitter by scheduler and number of links.
fn jitter_over_sizes(jitters: &[Vec<f64>], framing: f64) -> [Measured; 3] {
    let named = |at: usize| {
        let jitters = SIZES.iter().zip(&jitters[at]);
        jitters.map(move |(count, jitter)| (format!("{} n={count}", DISCIPLINES[at].0), *jitter))
    };
    let most = |at: usize| jitters[at].iter().copied().fold(0.0, f64::max);
    let random = most(0);
    let peak = jitters[0].iter().position(|jitter| *jitter == random);
    let is_at_edge = peak.is_some_and(|at| SIZES[at] == EDGE);
    let is_flat = [1, 2].into_iter().all(|at| most(at) < 0.25 * random);
    [
        Measured::loss("H.fig7.max", random, framing, 0.0),
        Measured::ranking("H.fig7.peak", is_at_edge, framing, named(0).collect()),
        Measured::ranking(
            "H.fig7.flat",
            is_flat,
            framing,
            named(1)
                .chain(named(2))
                .chain([("random's most".to_owned(), random)])
                .collect(),
        )
        .of_own_settings(),
    ]
}

/// Tables III and IV: 256 kb/s over links of 128 to 16 kb/s. The loss of a link is the share that
/// the link drops of the packets sent on it; packets that Hawser drops before sending are in the
/// loss of the stream only. The jitter is that of all arrivals at the receiver.
fn unequal(lab: &mut Lab<'_>) -> anyhow::Result<Vec<Measured>> {
    let mut all = Vec::new();
    let (mut losses, mut jitters) = (Vec::new(), Vec::new());
    let (mut framing, mut spread) = (0.0, f64::NAN);
    for (name, carrier) in DISCIPLINES {
        let load = Load {
            kbps: 256,
            payload: 160,
            layers: 0,
            duration: STREAM * 2,
        };
        let stream = lab.stream(&simulated_unequal().by(carrier), load)?;
        framing = stream.framing;
        let floor = undeliverable_share(UNEQUAL.iter().sum::<u64>() as f64, 256.0, framing);
        for (kbps, loss) in UNEQUAL.iter().zip(&stream.link_loss) {
            let of_link = Measured::loss(format!("H.tab3.{kbps}.{name}"), *loss, framing, 0.0);
            all.push(of_link.with(vec![("stream's loss in %".to_owned(), stream.loss)]));
        }
        all.push(cell(format!("H.tab3.total.{name}"), &stream, floor));
        let jitter = mean_change(&stream.delays);
        all.push(Measured::loss(format!("H.tab4.{name}"), jitter, framing, 0.0));
        losses.push((name.to_owned(), stream.loss));
        jitters.push((name.to_owned(), jitter));
        let most = stream.link_loss.iter().copied().fold(0.0, f64::max);
        let least = stream.link_loss.iter().copied().fold(f64::INFINITY, f64::min);
        // The last scheduler is the weighted one.
        spread = most - least;
    }
    let at = |numbers: &[(String, f64)], at: usize| numbers.get(at).map_or(f64::NAN, |(_, value)| *value);
    let is_even = at(&losses, 2) < 0.5 * at(&losses, 1) && spread <= 4.0;
    losses.push(("links of wrr apart in points".to_owned(), spread));
    let is_ordered = at(&jitters, 1) < at(&jitters, 0) && at(&jitters, 0) < at(&jitters, 2);
    let orders = [
        Measured::ranking("H.tab3.order", is_even, framing, losses),
        Measured::ranking("H.tab4.order", is_ordered, framing, jitters),
    ];
    all.extend(orders.map(Measured::of_own_settings));
    Ok(all)
}

/// Section V-B, last paragraph: 400 kb/s over intermittent links, by round robin as in figures 4 to
/// 6. The loss with Hawser's default schedulers is part of the evidence.
fn joining(lab: &mut Lab<'_>) -> anyhow::Result<Vec<Measured>> {
    let (mut numbers, mut is_falling, mut framing) = (Vec::new(), true, 0.0);
    for (persistent, transient) in [(3, 1), (2, 2)] {
        let mut received = Vec::new();
        for duty in DUTIES {
            let load = Load {
                kbps: 400,
                payload: 512,
                layers: 0,
                // Two periods of an intermittent link.
                duration: Duration::from_secs(40),
            };
            let stated = simulated(persistent + transient).at_duty(transient, duty);
            let stream = lab.stream(&stated.clone().by(ROUND_ROBIN), load)?;
            if duty == 100 {
                let own = lab.stream(&stated, load)?;
                numbers.push((format!("own, {transient} transient, {duty} %"), own.loss));
            }
            framing = stream.framing;
            received.push(-stream.loss);
            numbers.push((format!("{transient} transient, {duty} %"), stream.loss));
        }
        is_falling &= grows(&received);
    }
    Ok(vec![Measured::holds(
        "H.cbrdyn.mono",
        is_falling,
        framing,
        numbers,
    )])
}

/// Creates the result of a loss, with delays and payload shares as evidence.
fn cell(claim: String, stream: &Received, floor: f64) -> Measured {
    Measured::loss(claim, stream.loss, stream.framing, floor).with(stream.evidence())
}

/// Sizes that are measured.
const SIZES: [usize; 5] = [2, 4, 6, 8, 10];
/// Number of links that can just transfer the paper's stream. Source: Piconet section V-B, 8 x 115
/// kb/s.
const EDGE: usize = 8;
const STREAM: Duration = Duration::from_secs(20);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::real::found::Outcome;

    fn is_so(measured: &Measured) -> bool {
        match measured.outcome {
            Outcome::Ranking(is_so) => is_so,
            Outcome::Rate { .. }
            | Outcome::Loss { .. }
            | Outcome::AtLeast(_)
            | Outcome::AtMost(_)
            | Outcome::Within(_)
            | Outcome::Holds(_) => false,
        }
    }

    #[test]
    fn randoms_jitter_peaks_where_the_links_just_carry_the_stream() {
        let flat = vec![5.0; 5];
        let peaked = vec![20.0, 40.0, 60.0, 400.0, 80.0];
        let [max, peak, even] = jitter_over_sizes(&[peaked, flat.clone(), flat.clone()], 0.8);
        assert!(matches!(max.outcome, Outcome::Loss { value, .. } if value == 400.0));
        assert!(is_so(&peak) && is_so(&even));
        let [_, peak, even] = jitter_over_sizes(&[flat.clone(), flat.clone(), flat], 0.8);
        assert!(!is_so(&peak) && !is_so(&even));
    }
}
