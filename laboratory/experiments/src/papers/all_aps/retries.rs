//! Hidden senders and the retry limit: figure 2c.
//!
//! Values that the paper does not state, chosen here: 1500-byte packets at 54 Mb/s, and for each
//! limit 200 episodes 60 ms apart. A loss of the first sender counts for the current or the last
//! episode, since its frames have no other cause of loss.

use hawser_netem::Random;
use hawser_netem::air::phy::{DATA_OVERHEAD, PhyRate, Standard};
use hawser_netem::air::{Air, AirEvent, Outgoing, Signal, StationConfig, StationId};
use hawser_units::{Duration, Instant};

use super::percent;
use crate::reproduce::{Curve, Experiment, ExperimentError, Findings, Plot, Unit};

/// Figure 2c.
#[derive(Clone, Copy, Debug)]
pub struct RetryLimits;

/// Number of episodes for each limit, and their distance. Source: our choice (start of this file).
const EPISODES: usize = 200;
const APART: Duration = Duration::from_millis(60);

fn send(air: &mut Air<u32>, from: StationId, to: StationId, now: Instant) {
    let frame = Outgoing {
        to: Some(to),
        body: 0,
        len: 1500 + DATA_OVERHEAD,
        urgent: false,
    };
    // The queue has room for these few frames.
    let _ = air.handle_packet(from, frame, now);
}

/// Returns the percentages of episodes in which the saturated sender and the single sender lose a
/// packet.
fn losses(retries: u8, seed: u64) -> [f64; 2] {
    let mut air = Air::new(seed, Instant::ZERO);
    let config = StationConfig {
        attempts: retries + 1,
        ..StationConfig::fixed(Standard::A, 36, PhyRate::Ofdm(54))
    };
    let [first, second, client] = [0; 3].map(|_| air.add_station(config.clone()));
    air.set_signals(first, client, &Signal::clear());
    air.set_signals(second, client, &Signal::clear());
    let mut random = Random::new(seed, "episodes");
    let mut now = Instant::ZERO;
    (0..3).for_each(|_| send(&mut air, first, client, now));
    let mut counts = [0usize; 2];
    for _ in 0..EPISODES {
        let begins = now + APART.mul_f64(0.5 * random.uniform());
        let ends = now + APART;
        let (mut has_begun, mut has_lost) = (false, [false; 2]);
        while now < ends {
            let until = if has_begun { ends } else { begins };
            now = air.poll_timeout().map_or(until, |due| due.min(until)).max(now);
            air.handle_timeout(now);
            if !has_begun && now >= begins {
                has_begun = true;
                send(&mut air, second, client, now);
            }
            while let Some(event) = air.poll_event() {
                let AirEvent::Finished { by, acknowledged, .. } = event else {
                    continue;
                };
                has_lost[usize::from(by == second)] |= !acknowledged;
                if by == first {
                    send(&mut air, first, client, now);
                }
            }
        }
        for (count, has_lost) in counts.iter_mut().zip(has_lost) {
            *count += usize::from(has_lost);
        }
    }
    counts.map(|count| 100.0 * count as f64 / EPISODES as f64)
}

impl Experiment for RetryLimits {
    fn setups(&self) -> &'static [&'static str] {
        &["N-fig2c"]
    }

    fn claims(&self) -> Vec<String> {
        ["s1", "s2", "few"]
            .map(|claim| format!("N.fig2c.{claim}"))
            .to_vec()
    }

    fn run(&self, seed: u64) -> Result<Findings, ExperimentError> {
        let all: Vec<[f64; 2]> = (0..=10).map(|retries| losses(retries, seed)).collect();
        let mean = |of: usize| all[6..].iter().map(|losses| losses[of]).sum::<f64>() / 5.0;
        let mut findings = Findings::default();
        findings.value("N.fig2c.s1", mean(0), Unit::Percent);
        findings.value("N.fig2c.s2", mean(1), Unit::Percent);
        let is_high = all[..2].iter().flatten().all(|loss| *loss >= 80.0);
        let falls = |of: usize| all[0][of] > all[3][of] && all[3][of] > all[6][of];
        let (least, most) = all[6..].iter().fold((100.0f64, 0.0f64), |(least, most), losses| {
            (least.min(losses[1]), most.max(losses[1]))
        });
        let is_flat = most - least <= 15.0;
        let number = |retries: usize| percent(&format!("second at {retries}"), all[retries][1]);
        findings.shape(
            "N.fig2c.few",
            is_high && falls(0) && falls(1) && is_flat,
            vec![
                percent("first at 1", all[1][0]),
                number(1),
                number(3),
                number(6),
                number(10),
            ],
        );
        let points = |of: usize| {
            all.iter()
                .enumerate()
                .map(|(x, losses)| (x as f64, losses[of]))
                .collect()
        };
        findings.plots.push(Plot::new(
            "N-fig2c",
            "Episodes with a loss",
            ("retries", Unit::Count),
            ("episodes", Unit::Percent),
            vec![Curve::new("first", points(0)), Curve::new("second", points(1))],
        ));
        Ok(findings)
    }
}
