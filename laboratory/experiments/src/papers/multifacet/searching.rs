//! Constants of sections 3 and 4, and the duration of a search for a better channel: figure 15.
//!
//! Values that the paper does not state, chosen here: the throughputs of the channels are drawn
//! independently from a uniform distribution, and a search begins when the present throughput is
//! below three quarters of the largest possible. These throughputs replace the simulated air; the
//! tests search on the simulated air.

use hawser_netem::Random;
use hawser_netem::air::phy::{ACK_LEN, DATA_OVERHEAD, PhyRate, Standard};
use hawser_radio::striping::migration::{Config, Migration, Search, Step};
use hawser_radio::striping::{BUFFER_PACKETS, REORDER_HOLD, REORDER_PACKETS};
use hawser_units::{Duration, Instant};

use crate::reproduce::{Experiment, ExperimentError, Findings, Unit};

/// Constants of the machines, compared with sections 3 and 4.
#[derive(Clone, Copy, Debug)]
pub struct Constants;

/// Figure 15.
#[derive(Clone, Copy, Debug)]
pub struct Searching;

/// Source: Multifacet section 5.4.
const CANDIDATES: u16 = 10;
const POOR: f64 = 0.75;
const SEARCHES: usize = 400;

/// Returns the number of tried channels, and the time until the end of the last test.
fn search(kind: Search, random: &mut Random) -> (usize, Duration) {
    let qualities: Vec<f64> = (0..=CANDIDATES).map(|_| random.uniform()).collect();
    let present = POOR * random.uniform();
    let mut migration = Migration::new(Config::new(kind), 0);
    let candidates: Vec<u16> = (1..=CANDIDATES).collect();
    let mut step = migration.start(&candidates, present, Instant::ZERO);
    let (mut now, mut last) = (Instant::ZERO, Instant::ZERO);
    while let Some(due) = migration.poll_timeout() {
        now = now.max(due);
        let measured = match step {
            Some(Step::Probe(channel)) => {
                last = now;
                Some(qualities[usize::from(channel)])
            }
            Some(Step::Announce(_) | Step::Resume(_)) | None => None,
        };
        step = migration.handle_timeout(measured, now);
    }
    (migration.channel().1, last.since(Instant::ZERO))
}

impl Experiment for Searching {
    fn setups(&self) -> &'static [&'static str] {
        &["M-fig15"]
    }

    fn claims(&self) -> Vec<String> {
        ["step", "adeq", "best"]
            .map(|claim| format!("M.fig15.{claim}"))
            .to_vec()
    }

    fn run(&self, seed: u64) -> Result<Findings, ExperimentError> {
        let mut random = Random::new(seed, "channels");
        let adequate: Vec<_> = (0..SEARCHES)
            .map(|_| search(Search::Adequate, &mut random))
            .collect();
        let best: Vec<_> = (0..SEARCHES).map(|_| search(Search::Best, &mut random)).collect();
        let mut findings = Findings::default();
        let seconds = |all: &[(usize, Duration)]| all.iter().map(|(_, took)| took.as_secs_f64()).sum::<f64>();
        let tried: usize = adequate.iter().map(|(tried, _)| tried).sum();
        findings.value("M.fig15.step", seconds(&adequate) / tried as f64, Unit::Seconds);
        let soon = adequate.iter().filter(|(tried, _)| *tried <= 3).count();
        findings.value(
            "M.fig15.adeq",
            100.0 * soon as f64 / SEARCHES as f64,
            Unit::Percent,
        );
        findings.value("M.fig15.best", seconds(&best) / SEARCHES as f64, Unit::Seconds);
        Ok(findings)
    }
}

impl Experiment for Constants {
    fn unshipped(&self, _: &str) -> Option<&'static str> {
        Some("backpressure striping")
    }

    fn setups(&self) -> &'static [&'static str] {
        &["M-consts"]
    }

    fn claims(&self) -> Vec<String> {
        ["reorder_size", "reorder_hold", "buf", "csa", "probe", "loop"]
            .map(|claim| format!("M.{claim}"))
            .to_vec()
    }

    fn run(&self, _seed: u64) -> Result<Findings, ExperimentError> {
        let mut findings = Findings::default();
        let ms = |duration: Duration| duration.as_secs_f64() * 1e3;
        let config = Config::new(Search::Adequate);
        findings.value("M.reorder_size", REORDER_PACKETS as f64, Unit::Packets);
        findings.value("M.reorder_hold", ms(REORDER_HOLD), Unit::Millis);
        findings.value("M.buf", BUFFER_PACKETS as f64, Unit::Packets);
        findings.value("M.csa", ms(config.announcement), Unit::Millis);
        findings.value("M.probe", ms(config.probe), Unit::Millis);
        // Striping follows the time from a packet's transmission to its acknowledgement: 1500 bytes
        // at 54 Mb/s.
        let (standard, rate) = (Standard::A, PhyRate::Ofdm(54));
        let answer = rate.response().airtime(standard, ACK_LEN);
        let backoff = standard.slot() * standard.cw_min() / 2;
        let frame = rate.airtime(standard, 1500 + DATA_OVERHEAD);
        findings.value(
            "M.loop",
            ms(standard.difs() + backoff + frame + standard.sifs() + answer),
            Unit::Millis,
        );
        Ok(findings)
    }
}

/// Tests the search on the simulated air: announced in beacons, followed by a repeater, measured
/// with frames.
#[cfg(test)]
mod tests {
    use hawser_netem::air::Signal;
    use hawser_radio::striping::access_point::OWN;

    use super::super::floor::{Floor, Flow, Load, START, Scheme, Setup, ht};
    use super::super::hops::{forty_five, sixty, twenty};
    use super::super::others::{Competitor, NEAR, Who};
    use super::*;
    use hawser_sim::radio::{Radio, SearchPlan};

    /// Returns a floor whose own link begins on a channel with a competing load of `home` Mb/s; on
    /// the channels of `busy` competitors take as much as they can get.
    fn floor(kind: Search, home: f64, busy: &[u16], poor: f64) -> (Floor, Flow) {
        let mut setup = Setup::new(forty_five(), twenty(), Some(sixty()), Scheme::Multifacet);
        let crowd = |(channel, mcs, load): (u16, u8, f64)| Competitor {
            channel,
            rate: ht(mcs, 1, false),
            aggregate: 8,
            load,
            near: vec![(Who::AccessPoint, NEAR), (Who::Repeater, NEAR)],
            period: None,
        };
        let home = (setup.channels[OWN], 1, home);
        let busy = busy.iter().map(|channel| (*channel, 0, 40.0));
        setup.competitors = std::iter::once(home).chain(busy).map(crowd).collect();
        let plan = SearchPlan {
            candidates: vec![40, 44, 48],
            poor,
        };
        setup.search = Some((kind, plan));
        let mut floor = Floor::new(&setup, 1);
        let flow = floor.download(0, Load::Tcp);
        (floor, flow)
    }

    fn secs(secs: u64) -> Duration {
        Duration::from_secs(secs)
    }

    /// Returns the channel of the own link at both ends, as their machines know it and as their
    /// radios are tuned.
    fn channels(floor: &Floor) -> [u16; 4] {
        let believed = floor.access_point().inner().migration().channel().0;
        let followed = floor.repeater().follower().unwrap().channel();
        let [ap, repeater] = floor.own_stations();
        let radio: &Radio = floor.network.node(floor.air).unwrap();
        [
            believed,
            followed,
            radio.air().channel(ap),
            radio.air().channel(repeater),
        ]
    }

    #[test]
    fn both_ends_move_to_a_free_channel_and_the_connection_goes_on() {
        for (kind, ends_on) in [(Search::Adequate, 44), (Search::Best, 44)] {
            let (mut floor, flow) = floor(kind, 4.0, &[40, 48], 30.0);
            floor.network.run(START + secs(8));
            assert_eq!(channels(&floor), [ends_on; 4], "{kind:?}");
            let moves = floor.access_point().moves();
            let tried = if kind == Search::Adequate { 2 } else { 4 };
            assert_eq!(moves.len(), tried, "{moves:?}");
            assert_eq!(floor.repeater().follower().unwrap().searches(), 0, "{kind:?}");
            let (before, after) = (
                floor.rate(flow, Duration::from_millis(300), secs(1)),
                floor.rate(flow, secs(5), secs(8)),
            );
            assert!(after > 1.5 * before && after > 38.0, "{kind:?}: {before} {after}");
            let gaps = floor
                .meter(flow)
                .gaps()
                .iter()
                .filter(|gap| gap.from > START + secs(1));
            let longest = gaps.map(|gap| gap.length).max().unwrap_or_default();
            assert!(longest < Duration::from_millis(300), "{kind:?}: {longest:?}");
        }
    }

    #[test]
    fn it_comes_home_where_nothing_is_better() {
        let (mut floor, _) = floor(Search::Adequate, 0.1, &[40, 44, 48], 100.0);
        floor.network.run(START + Duration::from_millis(2_050));
        assert_eq!(channels(&floor), [36; 4]);
        assert_eq!(floor.access_point().moves().len(), 4);
    }

    #[test]
    fn a_repeater_that_missed_the_announcement_finds_its_access_point_again() {
        let (mut floor, flow) = floor(Search::Adequate, 4.0, &[40, 48], 30.0);
        // After the first move it receives nothing for a time, while the access point continues to
        // the next channel.
        while floor.access_point().moves().is_empty() {
            let next = floor.network.now() + Duration::from_millis(1);
            floor.network.run(next);
        }
        let own = floor.own_stations();
        let hear = |floor: &mut Floor, signal: &Signal| {
            floor.network.with_node(floor.air, |radio: &mut Radio, _| {
                radio.set_signals(own[0], own[1], signal);
            });
        };
        let deaf = Signal::of_power(-120.0);
        hear(&mut floor, &deaf);
        let next = floor.network.now() + Duration::from_millis(400);
        floor.network.run(next);
        hear(&mut floor, &Signal::clear());
        floor.network.run(START + secs(12));
        let [believed, followed, ap, repeater] = channels(&floor);
        assert!(floor.repeater().follower().unwrap().searches() > 0, "it was lost");
        assert_eq!([believed, followed, ap], [repeater; 3]);
        assert!(floor.rate(flow, secs(10), secs(12)) > 38.0);
        let counters = floor.access_point().inner().counters();
        let ap = floor.access_point().inner();
        let known = counters.delivered + counters.lost + counters.overflowed;
        let waiting = (0..2).map(|link| ap.unanswered(link)).sum::<usize>() + ap.waiting();
        assert_eq!(
            counters.offered,
            known + waiting as u64,
            "every packet is somewhere"
        );
    }
}
