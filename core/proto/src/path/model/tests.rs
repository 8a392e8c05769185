use proptest::prelude::*;

use super::super::delay::Measured;
use super::*;

const LINK: Rate = Rate::from_mbps(50);

/// A model that is shown the reports of a link of [`LINK`].
struct Driven {
    model: Model,
    now: Instant,
    number: u64,
}

impl Driven {
    fn new(control: Control) -> Self {
        let now = Instant::from_nanos(1_000_000_000);
        Self {
            model: Model::new(control, None, now),
            now,
            number: 0,
        }
    }

    /// One report after `interval`, of packets that took `delay` one way.
    fn report(
        &mut self,
        interval: Duration,
        delay: Duration,
        (packets, size): (u32, u64),
        app_limited: bool,
    ) {
        self.now += interval;
        self.number += u64::from(packets);
        let bytes = u64::from(packets) * size;
        let sample = Sample {
            delay: Measured {
                forward_us: delay.as_micros() as i32,
                reverse_us: 20_000,
                spread_us: 0,
                packets,
                size: size as u32,
                is_lone: packets == 1,
            },
            rate: Rate::of(Bytes(bytes), interval),
            delivered: bytes,
            reported: bytes,
            interval,
            lost: 0,
            app_limited,
            newest: self.number,
            next_packet_number: self.number + 1,
            in_flight: 0,
        };
        self.model.on_sample(&sample, self.now);
    }

    /// As much as the link carries, for a second.
    fn carry(&mut self, delay: Duration) {
        let interval = Duration::from_millis(10);
        let packets = LINK.bytes_in(interval).0 / FULL_PACKET;
        for _ in 0..100 {
            self.report(interval, delay, (packets as u32, FULL_PACKET), false);
        }
    }

    /// A few packets in each round trip, for `rounds`.
    fn trickle(&mut self, delay: Duration, packets: u32, rounds: u32) {
        for _ in 0..rounds {
            self.report(Duration::from_millis(90), delay, (packets, FULL_PACKET), true);
        }
    }

    /// Simulates a path that no scheduler uses: one probe per second.
    fn is_unused(&mut self, delay: Duration, seconds: u32) {
        for _ in 0..seconds {
            self.report(Duration::from_secs(1), delay, (1, 48), true);
        }
    }

    /// Whether a scheduler gives it data: its rate is not known, or worth its while.
    fn is_worth_data(&self) -> bool {
        let rate = self.model.rate().rate();
        rate == Rate::ZERO || rate >= LINK.scale(DOUBTED)
    }
}

/// A queue that seems to stand, because the delay has permanently risen, while little is sent.
#[test]
fn a_path_whose_rate_fell_while_its_delay_changed_is_given_data_again() {
    let mut driven = Driven::new(Control::ShortQueue);
    driven.carry(Duration::from_millis(20));
    driven.trickle(Duration::from_millis(70), 4, 40);
    assert!(!driven.is_worth_data(), "{}", driven.model.rate().rate());
    driven.is_unused(Duration::from_millis(70), 8);
    assert!(driven.is_worth_data(), "{}", driven.model.rate().rate());
    assert!(driven.model.window() > MIN_WINDOW);
}

#[test]
fn a_link_that_became_slow_is_tried_ever_less_often() {
    let mut driven = Driven::new(Control::ShortQueue);
    let delay = Duration::from_millis(20);
    driven.carry(delay);
    let mut tries = 0;
    for _ in 0..8 {
        // Tried, it carries 1 Mbit/s with a queue.
        driven.trickle(delay + Duration::from_millis(50), 8, 40);
        let before = driven.model.stale_after;
        driven.is_unused(delay, 10);
        tries += u32::from(driven.model.stale_after > before);
    }
    assert!((1..=4).contains(&tries), "{tries}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    /// Whatever delays and loads came before, a path that nobody uses is worth data again in less
    /// than two of the longest times.
    #[test]
    fn no_path_is_left_without_data_for_good(
        control in prop_oneof![Just(Control::ShortQueue), Just(Control::Cubic), Just(Control::Bbr)],
        phases in prop::collection::vec((5u64..150, 0u32..12, 1u32..60), 1..12),
    ) {
        let mut driven = Driven::new(control);
        let mut delay = Duration::from_millis(20);
        driven.carry(delay);
        for (ms, packets, rounds) in phases {
            delay = Duration::from_millis(ms);
            match packets {
                0 => driven.carry(delay),
                packets => driven.trickle(delay, packets, rounds),
            }
        }
        let mut seconds = 0..MAX_STALE.as_secs() * 2;
        let is_worth_data = seconds.any(|_| {
            driven.is_unused(delay, 1);
            driven.is_worth_data()
        });
        prop_assert!(is_worth_data, "{}", driven.model.rate().rate());
    }
}
