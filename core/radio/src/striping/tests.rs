use hawser_units::{Duration, Instant};
use proptest::prelude::*;
use serde_json::Value;

use super::access_point::{self, AccessPoint, Discipline};
use super::migration::{Config, Migration, Search, Step};
use super::reorder::{self, Reorder};
use super::throttle::{Feedback, Monitor, MonitorConfig, Throttle, ThrottleConfig};
use super::*;

#[test]
fn the_optimum_is_that_of_equations_1_and_2() {
    let all: Value = serde_json::from_str(include_str!("../../tests/data/multifacet.json")).unwrap();
    for vector in all["multifacet_eq1_eq2"]["vectors"].as_array().unwrap() {
        let number = |field: &str| vector[field].as_f64().unwrap();
        let hops = Hops {
            own: number("U_NS"),
            shared: number("U_S"),
            down: number("D_S"),
        };
        assert!((hops.spare() - number("K_clamped")).abs() < 1e-9, "{vector}");
        assert!((hops.optimum() - number("total")).abs() < 1e-9, "{vector}");
        assert!(
            (hops.traditional() - number("traditional")).abs() < 1e-9,
            "{vector}"
        );
    }
}

fn at(ms: u64) -> Instant {
    Instant::from_nanos(ms * 1_000_000)
}

#[test]
fn a_repeater_asks_for_less_at_once_and_for_more_in_time() {
    let mut monitor = Monitor::new(MonitorConfig::default(), at(0));
    monitor.handle_queue(101);
    assert_eq!(monitor.poll_transmit(), Some(Feedback::Less));
    monitor.handle_queue(102);
    assert_eq!(monitor.poll_transmit(), None);
    for (queue, said) in [(101, Feedback::Less), (50, Feedback::Keep), (3, Feedback::More)] {
        monitor.handle_queue(queue);
        monitor.handle_timeout(monitor.poll_timeout());
        assert_eq!(monitor.poll_transmit(), Some(said));
    }
}

#[test]
fn a_throttle_starts_closed_and_closes_in_silence() {
    let mut throttle = Throttle::new(ThrottleConfig::default(), at(0));
    assert_eq!(throttle.threshold(), 0);
    for _ in 0..100 {
        throttle.handle_feedback(Feedback::More, at(0));
    }
    assert_eq!(throttle.threshold(), 8);
    throttle.handle_feedback(Feedback::Less, at(0));
    assert_eq!(throttle.threshold(), 6);
    for _ in 0..10 {
        throttle.handle_timeout(throttle.poll_timeout());
    }
    assert_eq!(throttle.threshold(), 0);
}

/// Follows a search over `qualities` by channel; returns the channel where it ended, and the time.
fn search(search: Search, qualities: &[f64]) -> (u16, u64) {
    let mut migration = Migration::new(Config::new(search), 0);
    let candidates: Vec<u16> = (0..qualities.len() as u16).collect();
    let mut step = migration.start(&candidates, qualities[0], at(0));
    let mut now = at(0);
    let mut probed = None;
    while let Some(last) = step {
        probed = match last {
            Step::Probe(channel) => Some(qualities[usize::from(channel)]),
            Step::Announce(_) => None,
            Step::Resume(channel) => return (channel, now.as_nanos() / 1_000_000),
        };
        now = migration.poll_timeout().unwrap();
        step = migration.handle_timeout(probed, now);
    }
    (migration.channel().0, u64::from(probed.is_some()))
}

#[test]
fn adequate_takes_the_first_better_and_best_the_best() {
    let qualities = [5.0, 3.0, 9.0, 20.0];
    assert_eq!(search(Search::Adequate, &qualities), (2, 440));
    assert_eq!(search(Search::Best, &qualities), (3, 660));
    assert_eq!(search(Search::Adequate, &[5.0, 1.0, 1.0]), (0, 640), "back home");
}

#[test]
fn striping_bootstraps_in_turn_then_follows_answers() {
    let mut striping = Striping::new(&[4, 4]);
    let first: Vec<_> = (0..8).map(|_| striping.choose()).collect();
    assert_eq!(first, [0, 1, 0, 1, 0, 1, 0, 1].map(Some));
    assert_eq!(striping.choose(), None);
    assert_eq!(striping.phase(), Phase::Steady);
    striping.handle_answer(1);
    assert_eq!(striping.choose(), Some(1), "the faster link gets more");
    for link in [0, 1] {
        (0..4).for_each(|_| striping.handle_answer(link));
    }
    striping.choose();
    assert_eq!(striping.phase(), Phase::LowDemand);
}

proptest! {
    #[test]
    fn no_link_has_more_unanswered_than_it_may(
        ops in proptest::collection::vec((0u8..4, 0usize..3, 0usize..20), 1..300),
    ) {
        let mut striping = Striping::new(&[4, 8, 1]);
        let (mut given, mut answered) = ([0usize; 3], [0usize; 3]);
        for (kind, link, threshold) in ops {
            match kind {
                0 | 1 => {
                    let before: Vec<usize> = (0..3).map(|link| striping.unanswered(link)).collect();
                    if let Some(link) = striping.choose() {
                        prop_assert_eq!(striping.unanswered(link), before[link] + 1);
                        given[link] += 1;
                    }
                }
                2 if answered[link] < given[link] => { striping.handle_answer(link); answered[link] += 1; }
                _ => striping.set_threshold(link, threshold),
            }
            for link in 0..3 {
                prop_assert_eq!(striping.unanswered(link), given[link] - answered[link]);
            }
        }
    }

    #[test]
    fn every_search_ends_with_data_on_the_best_channel_that_was_tried(
        qualities in proptest::collection::vec(0.1f64..50.0, 2..12), is_best in any::<bool>(),
    ) {
        let kind = if is_best { Search::Best } else { Search::Adequate };
        let (channel, took) = search(kind, &qualities);
        prop_assert!(qualities[usize::from(channel)] >= qualities[0]);
        if is_best {
            let best = qualities.iter().copied().fold(0.0, f64::max);
            prop_assert!((qualities[usize::from(channel)] - best).abs() < 1e-12);
        }
        let limit = Duration::from_millis(220 * qualities.len() as u64);
        prop_assert!(u128::from(took) <= limit.as_millis());
    }
}

#[test]
fn a_repeater_waits_for_what_is_missing_but_not_long() {
    let mut order = Reorder::new(reorder::Config::default());
    let mut out = Vec::new();
    for (number, time) in [(0, 0), (2, 1), (3, 4)] {
        order.handle_packet(number, number, at(time), &mut out);
    }
    assert_eq!(out, [0]);
    assert_eq!(order.poll_timeout(), Some(at(11)));
    order.handle_timeout(at(11), &mut out);
    assert_eq!(out, [0, 2, 3], "number 1 is given up");
    order.handle_packet(1, 1, at(12), &mut out);
    order.handle_packet(4, 4, at(12), &mut out);
    assert_eq!(out, [0, 2, 3, 1, 4], "number 1 is delivered late");
    let counters = order.counters();
    assert_eq!((counters.waited, counters.late, order.buffered()), (2, 1, 0));
    let median = counters.median_wait().expect("two waited, 10 and 7 ms");
    assert!((4..9).contains(&median.as_millis()), "{median:?}");
    assert_eq!(reorder::Counters::default().median_wait(), None);
}

#[test]
fn fixed_shares_ignore_answers_and_lose_what_a_driver_cannot_keep() {
    let config = access_point::Config {
        discipline: Discipline::Shares([3.0, 1.0]),
        buffer: 10,
        threshold: 6,
        throttle: ThrottleConfig::default(),
    };
    let migration = Migration::new(Config::new(Search::Best), 36);
    let mut ap = AccessPoint::new(config, migration, at(0));
    let mut sent = [0; 2];
    for packet in 0..16 {
        ap.handle_packet(packet);
        while let Some(striped) = ap.poll_transmit() {
            sent[striped.link] += 1;
        }
    }
    assert_eq!(
        sent,
        [6, 4],
        "three of four to the first until its driver is full"
    );
    assert_eq!(ap.counters().overflowed, 6);
}
