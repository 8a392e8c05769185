//! A link in virtual time, for every controller.

use hawser_units::{Bytes, Duration, Instant, Rate};

use super::*;
use crate::path::model::{Model, Pacer};

pub(super) fn new(control: Control, cap: Option<Rate>) -> Model {
    Model::new(control, cap, Instant::ZERO)
}

pub(super) fn measured(round_trip: Duration) -> Measured {
    Measured {
        size: 1_472,
        forward_us: round_trip.as_micros() as i32,
        reverse_us: 0,
        spread_us: 0,
        packets: 1,
        is_lone: false,
    }
}

/// A first-in-first-out link in virtual time, reporting every packet.
pub(super) struct Link<'a> {
    /// By second.
    pub(super) rate_at: &'a dyn Fn(u64) -> Rate,
    pub(super) delay: Duration,
    /// Packets that a competing sender keeps in flight, by second.
    pub(super) rival_at: &'a dyn Fn(u64) -> usize,
    /// Maximum queue; packets beyond it are dropped.
    pub(super) queue: Duration,
    /// One packet of this number is lost at random; 0 means none.
    pub(super) loses_one_in: u64,
}

/// Results of a run.
pub(super) struct Ran {
    /// Delivered in the last second.
    pub(super) rate: Rate,
    /// Longest queue in the last second.
    pub(super) queue: Duration,
    /// All states that the controller had.
    pub(super) states: Vec<&'static str>,
}

pub(super) fn run(
    model: &mut Model,
    rate_at: impl Fn(u64) -> Rate,
    delay: Duration,
    seconds: u64,
) -> (Rate, Duration) {
    run_with_client(model, rate_at, |_| 0, delay, seconds)
}

pub(super) fn run_with_client(
    model: &mut Model,
    rate_at: impl Fn(u64) -> Rate,
    rival_at: impl Fn(u64) -> usize,
    delay: Duration,
    seconds: u64,
) -> (Rate, Duration) {
    let link = Link {
        rate_at: &rate_at,
        delay,
        rival_at: &rival_at,
        queue: Duration::MAX,
        loses_one_in: 0,
    };
    let ran = link.run(model, seconds);
    (ran.rate, ran.queue)
}

impl Link<'_> {
    pub(super) fn run(&self, model: &mut Model, seconds: u64) -> Ran {
        const PACKET: u64 = FULL_PACKET;
        let mut now = Instant::from_nanos(1);
        let mut pacer = Pacer::default();
        let mut link_free = now;
        let mut sent = Vec::<(Instant, u64, Instant)>::new();
        let mut delivered = 0u64;
        let mut delivered_at = now;
        let mut pending = std::collections::VecDeque::<(Instant, u64)>::new();
        let mut rivals = std::collections::VecDeque::new();
        let mut reported = 0u64;
        let mut ran = Ran {
            rate: Rate::ZERO,
            queue: Duration::ZERO,
            states: vec![model.state()],
        };
        let mut bytes_last_second = 0;
        let end = now + Duration::from_secs(seconds);
        while now < end {
            while let Some(&(at, packet_number)) = pending.front() {
                if at > now {
                    break;
                }
                pending.pop_front();
                let (sent_at, delivered_then, delivered_at_then): (Instant, u64, Instant) =
                    sent[packet_number as usize];
                delivered += PACKET;
                let interval = at.since(delivered_at);
                delivered_at = at;
                let elapsed = at.since(delivered_at_then);
                let sample = Sample {
                    delay: measured(at.since(sent_at)),
                    rate: Rate::of(Bytes(delivered - delivered_then), elapsed),
                    delivered: delivered - delivered_then,
                    reported: PACKET,
                    interval,
                    lost: packet_number - reported,
                    app_limited: false,
                    newest: packet_number,
                    next_packet_number: sent.len() as u64,
                    in_flight: (sent.len() as u64 - packet_number) * PACKET,
                };
                reported = packet_number + 1;
                model.on_sample(&sample, now);
                if ran.states.last() != Some(&model.state()) {
                    ran.states.push(model.state());
                }
                if now + Duration::from_secs(1) > end {
                    bytes_last_second += PACKET;
                    ran.queue = ran.queue.max(at.since(sent_at).saturating_sub(self.delay));
                }
            }
            let second = now.as_nanos() / 1_000_000_000;
            let time = (self.rate_at)(second).time_for(Bytes(PACKET));
            while rivals.front().is_some_and(|at| *at <= now) {
                rivals.pop_front();
            }
            if rivals.len() < (self.rival_at)(second) {
                link_free = link_free.max(now) + time;
                rivals.push_back(link_free + self.delay);
            }
            let in_flight = sent.len() as u64 - reported;
            let rate = model.pacing();
            if (in_flight + 1) * PACKET <= model.window() && pacer.credit(rate, PACKET, now) >= PACKET {
                let number = sent.len() as u64;
                let is_lost = self.loses_one_in > 0 && number % self.loses_one_in == self.loses_one_in / 2;
                if !is_lost && link_free.since(now) <= self.queue {
                    link_free = link_free.max(now) + time;
                    pending.push_back((link_free + self.delay, number));
                }
                sent.push((now, delivered, delivered_at));
                pacer.on_sent(rate, PACKET, now);
            } else {
                if pending.is_empty() {
                    // All were lost: the next packets reveal it.
                    reported = sent.len() as u64;
                }
                now += Duration::from_micros(50);
            }
        }
        ran.rate = Rate::of(Bytes(bytes_last_second), Duration::from_secs(1)).expect("a second");
        ran
    }
}

#[test]
fn names_are_those_of_controllers() {
    let found = Control::NAMES.map(|name| Control::by_name(name).expect(name));
    assert_eq!(found, [Control::ShortQueue, Control::Cubic, Control::Bbr]);
    assert_eq!(found[0], Control::default());
    let said = Control::by_name("reno").expect_err("unknown").to_string();
    assert_eq!(
        said,
        "unknown controller \"reno\": expected one of short-queue, cubic, bbr"
    );
}

#[test]
fn each_fills_a_link_with_a_queue_of_a_round_trip() {
    for name in Control::NAMES {
        for (mbps, delay) in [(5, 20), (20, 40), (100, 30)] {
            let control = Control::by_name(name).expect(name);
            let (rate, delay) = (Rate::from_mbps(mbps), Duration::from_millis(delay));
            let link = Link {
                rate_at: &|_| rate,
                delay,
                rival_at: &|_| 0,
                queue: delay,
                loses_one_in: 0,
            };
            let ran = link.run(&mut new(control, None), 12);
            let share = ran.rate.as_bps() as f64 / rate.as_bps() as f64;
            assert!(
                share > 0.93,
                "{name} {mbps} Mbit/s {delay:?}: share {share}, {:?}",
                ran.states
            );
        }
    }
}

#[test]
fn each_obeys_a_cap_and_begins_with_half_of_what_it_had() {
    for name in Control::NAMES {
        let control = Control::by_name(name).expect(name);
        let mut model = new(control, Some(Rate::from_mbps(3)));
        let (rate, _) = run(&mut model, |_| Rate::from_mbps(20), Duration::from_millis(20), 4);
        assert!(rate <= Rate::from_bps(3_100_000), "{name}: {rate}");

        let mut model = new(control, None);
        assert_eq!(model.window(), INITIAL_WINDOW, "{name}");
        model.resume(Duration::from_millis(100), Rate::from_mbps(80));
        assert_eq!(model.window(), 500_000, "{name}");
    }
}

#[test]
fn a_path_that_pauses_is_filled_for_the_pause_up_to_what_access_points_keep() {
    let carried = |mbits: u64, pause: Duration| {
        let mut model = new(Control::default(), None);
        run(
            &mut model,
            |_| Rate::from_bps(mbits * 1_000_000),
            Duration::from_millis(20),
            5,
        );
        let before = model.window();
        model.set_pause(pause);
        (before, model.window() - before, model.rate().rate())
    };
    let pause = Duration::from_millis(100);
    let (_, more, rate) = carried(4, pause);
    assert_eq!(more, rate.bytes_in(pause).0, "what comes during the pause");
    // More than 60 full packets are kept nowhere.
    let most = 60 * 1_472;
    let (before, more, _) = carried(12, pause);
    assert!(before > most / 2 && more > 0, "{before} {more}");
    assert_eq!(before + more, most);
    let (before, more, _) = carried(100, pause);
    assert!(before > most);
    assert_eq!(more, 0);
    // Nothing waits for so long that the others would wait for it.
    assert_eq!(carried(4, Duration::from_secs(2)).1, 0);
}
