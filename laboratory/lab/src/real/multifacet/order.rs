//! Effect of order and of buffering, with the client on the repeater's wire: figure 13 and Table 5.
//!
//! Set-ups are those of `hawser_experiments`. The arm without order is `hawser repeat join
//! --any-order`, with which the joining box delivers packets as they arrive; lost packets are still
//! retransmitted. The access point's buffer is `hawser repeat ap --buffer`: 200 packets, or one
//! packet of the kernel at a time, which may be one of 64 KiB that is segmented later. Deviates:
//! three runs of each row of Table 5, which differ by the random numbers of the medium.

use hawser_experiments::papers::multifacet::{Hop, buffering_hops, mean_and_deviation, order_hops, variable};

use super::super::air::Lab;
use super::super::found::Measured;
use super::links::alike;
use super::{CHANNELS, Carrier, framed, mean};

/// Figure 13, without the typical wait, which no counter measures.
pub(super) fn order(lab: &mut Lab<'_>) -> anyhow::Result<Vec<Measured>> {
    let (mut all, mut gains) = (Vec::new(), Vec::new());
    for (name, hop) in order_hops() {
        let mut floor = alike(hop);
        let with = floor.tcp(lab, Carrier::Multifacet)?;
        floor.more.joining = vec!["--any-order"];
        let without = floor.tcp(lab, Carrier::Multifacet)?;
        let evidence = vec![("without".to_owned(), without), ("with".to_owned(), with)];
        let lost = 100.0 * (1.0 - without / with);
        let measured = Measured::within(format!("M.fig13.{name}"), lost).with(evidence);
        all.push(measured.of_own_settings());
        gains.push(100.0 * (with / without - 1.0));
    }
    all.push(Measured::within("M.fig13.tab1", mean(&gains)).of_own_settings());
    Ok(all)
}

/// Table 5.
pub(super) fn buffer(lab: &mut Lab<'_>) -> anyhow::Result<Vec<Measured>> {
    let (mut all, mut gains, mut variable) = (Vec::new(), Vec::new(), Vec::new());
    let (mut is_steadier, mut deviations) = (true, Vec::new());
    for (name, hop) in buffering_hops() {
        let without = runs(lab, &hop, WITHOUT, false)?;
        let with = runs(lab, &hop, WITH, false)?;
        gains.push(100.0 * (mean(&with) / mean(&without) - 1.0));
        let [less, more] = [&with, &without].map(|rates| mean_and_deviation(rates).1);
        is_steadier &= less < more;
        deviations.push((format!("{name} without"), more));
        deviations.push((format!("{name} with"), less));
        all.push(Measured::within(format!("M.tab5.{name}.without"), mean(&without)));
        all.push(framed(format!("M.tab5.{name}.with"), mean(&with)));
        let without = mean(&runs(lab, &hop, WITHOUT, true)?);
        let with = mean(&runs(lab, &hop, WITH, true)?);
        variable.push((name, without, with));
    }
    let evidence = variable.iter().flat_map(|(name, without, with)| {
        [
            (format!("{name} without"), *without),
            (format!("{name} with"), *with),
        ]
    });
    let evidence = evidence.collect();
    let of_variable = variable
        .iter()
        .map(|(_, without, with)| 100.0 * (with / without - 1.0));
    let of_variable = mean(&of_variable.collect::<Vec<_>>());
    let compared = [
        Measured::within("M.tab5.gain", mean(&gains)),
        Measured::within("M.tab5.gainvar", of_variable).with(evidence),
        Measured::ranking("M.tab5.sd", is_steadier, 1.0, deviations),
    ];
    all.extend(compared.map(Measured::of_own_settings));
    Ok(all)
}

/// Returns the rate of TCP in each run. Units: Mbit/s.
fn runs(lab: &mut Lab<'_>, hop: &Hop, buffer: &'static str, is_variable: bool) -> anyhow::Result<Vec<f64>> {
    let mut floor = alike(hop.clone());
    floor.more.arguments = vec!["--buffer", buffer];
    if is_variable {
        floor.competitors = CHANNELS.map(variable).into();
    }
    let mut all = Vec::new();
    for seed in 1..=RUNS {
        floor.seed = seed;
        all.push(floor.tcp(lab, Carrier::Multifacet)?);
    }
    Ok(all)
}

/// Size of the access point's buffer in the arm without one. Units: packets.
const WITHOUT: &str = "0";
const WITH: &str = "200";
/// Number of runs of each row. Source: docs/notebook/real-packets.md, "Multifacet".
const RUNS: u64 = 3;

#[cfg(test)]
mod tests {
    use super::*;
    use hawser_experiments::papers::multifacet::BUFFER_PACKETS;

    #[test]
    fn the_buffer_is_the_papers() {
        assert_eq!(WITH.parse(), Ok(BUFFER_PACKETS));
    }

    #[test]
    fn runs_that_are_alike_do_not_deviate() {
        assert_eq!(mean_and_deviation(&[3.0, 3.0]).1, 0.0);
        assert!((mean_and_deviation(&[1.0, 3.0]).1 - 1.0).abs() < 1e-9);
    }
}
