//! Duration of a search for a better channel: figure 15.
//!
//! `hawser repeat ap --migrate` moves hostapd's access point, and the station's kernel follows. As
//! in the paper, a search has ten candidates, so the regulatory domain is that of a country in
//! which the whole lowest part of the 5 GHz band is permitted without radar detection. The free
//! share of each channel is drawn uniformly, and for the initial channel below three quarters, as
//! in `hawser_experiments`; here, three pairs of stations use each channel. Each search is a run of
//! its own, and starts on request. Its duration is read from the log of the access point's box.

use anyhow::{Context, ensure};
use hawser_experiments::papers::multifacet::{Competitor, OWN, Who, ht, thirty};
use hawser_netem::Random;
use hawser_testbed::Asked;
use hawser_units::Duration;

use super::super::air::Lab;
use super::super::found::Measured;
use super::logs;
use super::{CHANNELS, Carrier, Floor, mean, udp};

/// A completed search.
struct Searched {
    /// Number of tested channels.
    tried: usize,
    /// Time from the start of the first test to the end of the last one. Units: seconds.
    took: f64,
    /// Set if the link ended on another channel.
    is_moved: bool,
}

/// Figure 15.
pub(super) fn searches(lab: &mut Lab<'_>) -> anyhow::Result<Vec<Measured>> {
    let mut random = Random::new(lab.seed().into(), "channels");
    let mut all = |argument, count| -> anyhow::Result<Vec<Searched>> {
        (0..count).map(|_| search(lab, argument, &mut random)).collect()
    };
    let adequate = all("--migrate=adequate", ADEQUATE)?;
    let best = all("--migrate=best", BEST)?;
    let took = |all: &[Searched]| all.iter().map(|one| one.took).collect::<Vec<f64>>();
    let tried: usize = adequate.iter().map(|one| one.tried).sum();
    let step = took(&adequate).iter().sum::<f64>() / tried as f64;
    let share = |count: usize| 100.0 * count as f64 / adequate.len() as f64;
    let soon = share(adequate.iter().filter(|one| one.tried <= 3).count());
    let moved = |all: &[Searched]| all.iter().filter(|one| one.is_moved).count() as f64;
    let evidence = vec![
        ("searches".to_owned(), adequate.len() as f64),
        ("found a better one".to_owned(), moved(&adequate)),
        ("channels tried".to_owned(), tried as f64),
    ];
    let tried: Vec<f64> = best.iter().map(|one| one.tried as f64).collect();
    Ok(vec![
        Measured::maximum("M.fig15.step", step).with(evidence.clone()),
        Measured::minimum("M.fig15.adeq", soon).with(evidence),
        Measured::maximum("M.fig15.best", mean(&took(&best))).with(vec![
            ("searches".to_owned(), best.len() as f64),
            ("found a better one".to_owned(), moved(&best)),
            ("channels tried, mean".to_owned(), mean(&tried)),
        ]),
    ])
}

/// Runs one search, among random channels.
fn search(lab: &mut Lab<'_>, argument: &'static str, random: &mut Random) -> anyhow::Result<Searched> {
    let mut floor = Floor {
        links: [thirty(), thirty()],
        warmup: Duration::ZERO,
        length: LENGTH,
        ..Floor::of_one(thirty())
    };
    let candidates = OPEN.into_iter().filter(|channel| !CHANNELS.contains(channel));
    let mut crowds: Vec<(u16, f64)> = candidates.map(|channel| (channel, random.uniform())).collect();
    crowds.push((CHANNELS[OWN], POOR * random.uniform()));
    let crowd = |(channel, left): (u16, f64)| {
        let pair = Competitor {
            channel,
            rate: ht(0, 1, false),
            aggregate: 1,
            load: (1.0 - left) / PAIRS as f64 * MAX,
            near: vec![(Who::AccessPoint, NEAR), (Who::Repeater, NEAR)],
            period: None,
        };
        vec![pair; PAIRS]
    };
    floor.competitors = crowds.into_iter().flat_map(crowd).collect();
    floor.more.country = Some(COUNTRY);
    floor.more.hostapd = Some(CONTROL);
    let own = "gw1";
    floor.more.arguments = vec![
        argument,
        "--hostapd",
        CONTROL,
        "--log",
        "info,hawser_repeater=debug",
        "--log-format",
        "json",
    ];
    floor.more.asked = vec![Asked {
        at: ASKED,
        words: vec!["repeat", "migrate", own, "--json"],
    }];
    floor.run(lab, Carrier::Multifacet, &udp(1))?;
    let log = logs::of_access_point(lab)?;
    let of_own = |said: &str| {
        let said = said.to_owned();
        log.iter()
            .filter(move |entry| entry.said == said && entry.fields["link"] == own)
    };
    let over = of_own("the channel was poor")
        .next_back()
        .context("the log contains no search")?;
    let begun = of_own("tested").rfind(|entry| entry.at < over.at);
    let begun = begun.context("the first channel was not tested")?.at;
    let tests: Vec<f64> = of_own("tried")
        .map(|entry| entry.at)
        .filter(|at| *at > begun)
        .collect();
    let last = tests.last().context("no channel was tried")?;
    let tried = over.fields["tried"].as_u64().unwrap_or_default() as usize;
    ensure!(
        tried == tests.len(),
        "{tried} channels were tried, by {} tests",
        tests.len()
    );
    Ok(Searched {
        tried,
        took: last - begun,
        is_moved: over.fields["from"] != over.fields["to"],
    })
}

/// Number of searches of each kind. Each search is a run of its own. A search for the best channel
/// tries all ten, so two of these suffice for its duration. Source: our choice; a run takes a
/// quarter of a minute.
const ADEQUATE: usize = 12;
const BEST: usize = 2;
/// Channels without radar detection in [`COUNTRY`]. Source: the two of the boxes, and ten
/// candidates (Multifacet section 5.4).
const OPEN: [u16; 12] = [36, 40, 44, 48, 52, 56, 60, 64, 149, 153, 157, 161];
const COUNTRY: &str = "ID";
const CONTROL: &str = "/run/hostapd";
/// A channel with a smaller free share is poor. Source: as in `hawser_experiments`.
const POOR: f64 = 0.75;
/// Number of pairs on each channel, so that several contenders share it. Source:
/// docs/notebook/real-packets.md, "Multifacet".
const PAIRS: usize = 3;
/// Rate of a pair alone with such frames. Units: Mbit/s. Source: a frame of `COMPETING_LEN` bytes
/// at 6.5 Mbit/s (MCS 0 of IEEE 802.11-2016 clause 19), with its preamble, backoff and
/// acknowledgement.
const MAX: f64 = 5.8;
/// Signal of the competing pairs at the boxes. Source: that of the simulated evaluation
/// (`papers/multifacet/others.rs` of `hawser-experiments`). Units: dBm.
const NEAR: f32 = -50.0;
/// Time of the request, when the boxes have detected that both links work. Source: our choice; the
/// search of 2.2 s (Multifacet section 5.4) ends before [`LENGTH`].
const ASKED: Duration = Duration::from_secs(2);
const LENGTH: Duration = Duration::from_secs(5);

#[cfg(test)]
mod tests {
    use hawser_experiments::papers::multifacet::{COMPETING_LEN, SHARED};
    use hawser_netem::air::channel::frequency;

    use super::*;

    #[test]
    fn ten_channels_are_left_to_try() {
        let left = OPEN.iter().filter(|channel| !CHANNELS.contains(channel));
        assert_eq!(left.count(), 10);
        assert!(OPEN.contains(&CHANNELS[OWN]) && OPEN.contains(&CHANNELS[SHARED]));
        assert_eq!(frequency(OPEN[11].into()), 5805);
        assert!(f64::from(COMPETING_LEN) * 8.0 / MAX > 2_000.0, "two ms each");
    }
}
