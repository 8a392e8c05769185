//! Layered streams over links with errors (section V-C): tables V to IX.
//!
//! The links are faster than the paper's by the ratio of packet sizes, so that they transfer as
//! many packets; otherwise the headers alone would decide which layers fit. Packets belong to the
//! layers in turn, and both ends identify the layers by code points. Unlike the paper, Hawser
//! retransmits lost packets and measures the loss of links. Table IX runs with losses of 1 % and 5
//! %, which fit its numbers.

use hawser_netem::QueueBound;
use hawser_units::{Bytes, Duration};

use super::super::Evaluation;
use super::super::found::Measured;
use super::super::lab::{Carrier, Lab, Load, Stated};
use super::{DISCIPLINES, claims};

pub(super) const EVALUATIONS: &[Evaluation] = &[
    Evaluation {
        setup: "H-tab5",
        claims: || striped().map(|(name, _)| format!("H.tab5.{name}")).collect(),
        run: spare,
    },
    Evaluation {
        setup: "H-tab6",
        claims: || cells("tab6").chain(claims("H.tab6.", &["lps", "rr"])).collect(),
        run: enough,
    },
    Evaluation {
        setup: "H-tab7",
        claims: || cells("tab7").collect(),
        run: |lab| Ok(table(lab, "tab7", &errors(&[0.01, 0.05]))?.0),
    },
    Evaluation {
        setup: "H-tab8",
        claims: || cells("tab8").collect(),
        run: |lab| Ok(table(lab, "tab8", &in_turn(3, 0.1))?.0),
    },
    Evaluation {
        setup: "H-tab9",
        claims: || cells("tab9").collect(),
        run: |lab| Ok(table(lab, "tab9", &in_turn(2, 0.05))?.0),
    },
];

/// Table V: 30 kb/s over ten links that lose 1 to 10 %.
fn spare(lab: &mut Lab<'_>) -> anyhow::Result<Vec<Measured>> {
    let losses: Vec<f64> = (1..=10).map(|percent| f64::from(percent) / 100.0).collect();
    let mut all = Vec::new();
    for (name, carrier) in striped() {
        let load = Load {
            kbps: 30,
            payload: PAYLOAD,
            layers: 1,
            duration: STATIC,
        };
        let stream = lab.stream(&errors(&losses).by(carrier), load)?;
        let claim = format!("H.tab5.{name}");
        let measured = Measured::loss(claim, stream.loss, stream.framing, 0.0);
        all.push(measured.with(stream.evidence()));
    }
    Ok(all)
}

/// Table VI: three layers over three links.
fn enough(lab: &mut Lab<'_>) -> anyhow::Result<Vec<Measured>> {
    let (mut all, losses, framing) = table(lab, "tab6", &errors(&[0.01, 0.05, 0.1]))?;
    let of = |wanted: &str| {
        let all = losses.iter().zip(striped());
        let mut of = all.filter(|(_, (name, _))| *name == wanted);
        of.next().map_or(Vec::new(), |(losses, _)| losses.clone())
    };
    let numbers = |losses: &[f64]| {
        let named = losses.iter().enumerate();
        named.map(|(layer, loss)| (format!("l{layer}"), *loss)).collect()
    };
    let (lps, rr) = (of("lps"), of("rr"));
    let holds = protects_the_base(&lps);
    all.push(Measured::holds("H.tab6.lps", holds, framing, numbers(&lps)));
    all.push(Measured::ranking(
        "H.tab6.rr",
        is_a_link_each(&rr),
        framing,
        numbers(&rr),
    ));
    Ok(all)
}

/// Returns whether no layer loses more than those above it, and the base layer at most about as
/// much as the best link.
fn protects_the_base(losses: &[f64]) -> bool {
    let is_in_order = losses.windows(2).all(|pair| pair[0] <= pair[1]);
    is_in_order && losses.first().is_some_and(|base| *base <= 1.5)
}

/// Returns whether each layer's loss equals that of one of the links of table VI.
fn is_a_link_each(losses: &[f64]) -> bool {
    let mut losses = losses.to_vec();
    losses.sort_by(f64::total_cmp);
    let errors = [1.0, 5.0, 10.0];
    losses.len() == errors.len()
        && losses
            .iter()
            .zip(errors)
            .all(|(loss, error)| (loss - error).abs() <= 1.0)
}

/// Measures all schedulers of one table: the layers' losses by scheduler, and the framing.
fn table(
    lab: &mut Lab<'_>,
    table: &str,
    links: &Stated,
) -> anyhow::Result<(Vec<Measured>, Vec<Vec<f64>>, f64)> {
    let (mut all, mut losses, mut framing) = (Vec::new(), Vec::new(), 0.0);
    for (name, carrier) in striped() {
        let load = Load {
            kbps: 15 * u64::from(LAYERS),
            payload: PAYLOAD,
            layers: LAYERS,
            duration: if links.losses.is_empty() {
                STATIC
            } else {
                TURN * links.links.len() as u32
            },
        };
        let stream = lab.stream(&links.clone().by(carrier), load)?;
        framing = stream.framing;
        for (layer, loss) in stream.layer_loss.iter().enumerate() {
            let claim = format!("H.{table}.l{layer}.{name}");
            all.push(Measured::loss(claim, *loss, framing, 0.0).with(stream.evidence()));
        }
        losses.push(stream.layer_loss);
    }
    Ok((all, losses, framing))
}

/// Returns the schedulers of these tables.
fn striped() -> impl Iterator<Item = (&'static str, Carrier)> {
    let layer_priority = Carrier::Discipline("layer-priority");
    DISCIPLINES.into_iter().chain([("lps", layer_priority)])
}

fn cells(table: &str) -> impl Iterator<Item = String> {
    let of_layer = move |layer| striped().map(move |(name, _)| format!("H.{table}.l{layer}.{name}"));
    (0..LAYERS).flat_map(of_layer)
}

/// Returns links with these loss probabilities.
fn errors(losses: &[f64]) -> Stated {
    let queue = QueueBound::Bytes(Bytes(50 * frame_here()));
    let bps = LINK * frame_here() / FRAME_THERE;
    let mut stated = Stated::equal(losses.len(), bps, Duration::from_millis(45), queue);
    for (link, loss) in stated.links.iter_mut().zip(losses) {
        link.loss = *loss;
    }
    stated
}

/// Returns the size of the same packet on a link here, with the headers of Hawser and of the link.
fn frame_here() -> u64 {
    PAYLOAD + 28 + Carrier::Own.headers()
}

/// Returns links of which one loses more than the others, each in turn for one [`TURN`].
fn in_turn(count: usize, bad: f64) -> Stated {
    let losses = |turn: usize| -> Vec<f64> {
        let is_bad = |link: usize| (link + turn + 1).is_multiple_of(count);
        let loss = |link| if is_bad(link) { bad } else { 0.01 };
        (0..count).map(loss).collect()
    };
    let mut stated = errors(&losses(0));
    stated.losses = (1..count)
        .map(|turn| (TURN * turn as u32, losses(turn)))
        .collect();
    stated
}

/// Number of layers. Source: Piconet section V-C.
const LAYERS: u8 = 3;
/// Payload of a packet. Source: `papers/piconet/layered.rs` of `hawser-experiments`. Units: bytes.
const PAYLOAD: u64 = 210;
/// Size of the paper's packet on a link. Source: 18 bytes of framing, as for [`PAYLOAD`]. Units:
/// bytes.
const FRAME_THERE: u64 = PAYLOAD + 18;
/// Rate of the paper's links. Source: Piconet section V-C. Units: bit/s.
const LINK: u64 = 20_000;
/// Duration of a run. Source: five hundred packets of [`PAYLOAD`] of each layer take 56 s at 15
/// kb/s (Piconet section V-C).
const STATIC: Duration = Duration::from_secs(56);
/// Time for which a link has the higher error rate. Source: our choice, so that a run takes less
/// time; Piconet has 50 s.
const TURN: Duration = Duration::from_secs(30);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_link_at_a_time_is_bad() {
        for count in [2, 3] {
            let stated = in_turn(count, 0.1);
            let first = stated.links.iter().map(|link| link.loss).collect();
            let turns: Vec<&Vec<f64>> = [&first]
                .into_iter()
                .chain(stated.losses.iter().map(|(_, losses)| losses))
                .collect();
            assert_eq!(turns.len(), count);
            for pair in turns.windows(2) {
                assert_ne!(pair[0], pair[1]);
            }
            for losses in turns {
                assert_eq!(losses.iter().filter(|loss| **loss == 0.1).count(), 1);
            }
        }
    }

    #[test]
    fn links_carry_as_many_packets_as_the_papers() {
        let packets = |bps: u64, frame: u64| bps as f64 / frame as f64;
        let here = packets(errors(&[0.0]).links[0].bps, frame_here());
        assert!((here / packets(LINK, FRAME_THERE) - 1.0).abs() < 0.001, "{here}");
    }

    #[test]
    fn a_base_that_loses_more_than_another_layer_is_not_protected() {
        assert!(protects_the_base(&[0.9, 5.0, 9.0]));
        assert!(protects_the_base(&[0.0, 0.0, 0.0]));
        assert!(!protects_the_base(&[1.0, 0.5, 9.0]));
        assert!(!protects_the_base(&[2.0, 5.0, 9.0]));
        assert!(!protects_the_base(&[]));
    }

    #[test]
    fn round_robin_ties_each_layer_to_a_link_in_any_order() {
        assert!(is_a_link_each(&[9.5, 1.2, 5.3]));
        assert!(!is_a_link_each(&[5.3, 5.2, 5.3]));
        assert!(!is_a_link_each(&[0.0, 0.0, 0.0]));
    }
}
