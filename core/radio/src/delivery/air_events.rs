//! Access points of two channels, received by one radio, under random events of the air.

use proptest::prelude::*;

use super::*;

#[derive(Clone, Debug)]
enum Op {
    Join,
    /// The association with one ends, whether the client or the access point ended it.
    Leave(usize),
    Rejoin(usize),
    /// An access point sends frames. Each is lost at first with this probability, and then received
    /// with a retry bit, or not at all.
    Send {
        ap: usize,
        frames: u8,
        loss: f64,
        mbps: u8,
    },
    /// Overflow of its buffer: this many sequence numbers are never sent.
    Overflow {
        ap: usize,
        frames: u8,
    },
    /// Restart: its sequence numbers continue from another value.
    Restart {
        ap: usize,
        sequence: u16,
    },
    RoundTrip(usize, u16),
    /// The radio tunes to another channel, and receives nothing of the previous one.
    Tune(u16),
    /// Advances the time; the machine's own timer is late by this amount.
    Wait {
        ms: u16,
        late: u16,
    },
}

fn op() -> impl Strategy<Value = Op> {
    let ap = || 0..6_usize;
    prop_oneof![
        2 => Just(Op::Join),
        1 => ap().prop_map(Op::Leave),
        1 => ap().prop_map(Op::Rejoin),
        12 => (ap(), 1..60_u8, 0.0..1.0, 1..60_u8)
            .prop_map(|(ap, frames, loss, mbps)| Op::Send { ap, frames, loss, mbps }),
        2 => (ap(), any::<u8>()).prop_map(|(ap, frames)| Op::Overflow { ap, frames }),
        1 => (ap(), any::<u16>()).prop_map(|(ap, sequence)| Op::Restart { ap, sequence }),
        4 => (ap(), 1..500_u16).prop_map(|(ap, ms)| Op::RoundTrip(ap, ms)),
        2 => (0..2_u16).prop_map(Op::Tune),
        5 => (0..300_u16, 0..700_u16).prop_map(|(ms, late)| Op::Wait { ms, late }),
        1 => (0..8_000_u16).prop_map(|ms| Op::Wait { ms, late: 0 }),
    ]
}

/// Access point with its real state, and the results of the packets that it sent.
#[derive(Default)]
struct Truth {
    sequence: u16,
    is_gone: bool,
    is_backup: bool,
    heard: Option<Instant>,
    read: u64,
    marked: u64,
}

struct World {
    points: AccessPoints,
    truths: Vec<Truth>,
    tuned: u16,
    random: Random,
    timer: Instant,
    now: Instant,
}

impl World {
    fn new() -> Self {
        Self {
            points: AccessPoints::new(Config::default(), 1),
            truths: Vec::new(),
            tuned: 0,
            random: Random::new(2, "the air"),
            timer: Instant::ZERO + WINDOW,
            now: Instant::ZERO,
        }
    }

    fn apply(&mut self, op: &Op) {
        let known = self.truths.len();
        match *op {
            Op::Join if known < 6 => self.join(),
            Op::Leave(ap) if ap < known => {
                self.points.leave(ap);
                self.truths[ap].is_gone = true;
            }
            Op::Rejoin(ap) if ap < known => self.rejoin(ap),
            Op::Send {
                ap,
                frames,
                loss,
                mbps,
            } if ap < known => {
                for _ in 0..frames {
                    self.send(ap, loss, f64::from(mbps) * 1e6);
                }
            }
            Op::Overflow { ap, frames } if ap < known => {
                self.truths[ap].sequence = self.truths[ap].sequence.wrapping_add(u16::from(frames));
            }
            Op::Restart { ap, sequence } if ap < known => self.truths[ap].sequence = sequence,
            Op::RoundTrip(ap, ms) if ap < known => {
                self.points
                    .handle_round_trip(ap, Duration::from_millis(u64::from(ms)));
            }
            Op::Tune(channel) => self.tuned = channel,
            Op::Wait { ms, late } => {
                self.wait(
                    Duration::from_millis(u64::from(ms)),
                    Duration::from_millis(u64::from(late)),
                );
            }
            Op::Join
            | Op::Leave(_)
            | Op::Rejoin(_)
            | Op::Send { .. }
            | Op::Overflow { .. }
            | Op::Restart { .. }
            | Op::RoundTrip(..) => {}
        }
        self.check();
    }

    fn join(&mut self) {
        assert_eq!(self.points.join(), self.truths.len());
        self.truths.push(Truth::default());
    }

    fn rejoin(&mut self, ap: usize) {
        self.points.rejoin(ap);
        let truth = &mut self.truths[ap];
        if std::mem::take(&mut truth.is_gone) {
            truth.heard = None;
        }
    }

    /// Sends one frame with two attempts. The packet arrives if one is received, which requires
    /// that the radio is on the access point's channel.
    fn send(&mut self, ap: usize, loss: f64, rate: f64) {
        let truth = &mut self.truths[ap];
        truth.sequence = truth.sequence.wrapping_add(1);
        let is_repeated = self.random.chance(loss);
        let is_read = !is_repeated || !self.random.chance(loss);
        if !is_read || self.tuned != channel(ap) {
            return;
        }
        let sequence = truth.sequence;
        if !truth.is_gone {
            truth.heard = Some(self.now);
        }
        truth.read += 1;
        self.points
            .handle_frame(ap, sequence, is_repeated, rate, self.now);
        self.truths[ap].marked += u64::from(self.points.handle_packet(ap, self.now));
    }

    fn wait(&mut self, time: Duration, late: Duration) {
        let end = self.now + time;
        while self.timer <= end {
            self.now = self.now.max(self.timer + late);
            self.points.handle_timeout(self.now);
            self.timer = self.now + WINDOW;
            while let Some(Event::Backup {
                access_point,
                is_backup,
            }) = self.points.poll_event()
            {
                let truth = &mut self.truths[access_point];
                assert!(!truth.is_gone, "a departed access point is selected");
                assert_ne!(
                    std::mem::replace(&mut truth.is_backup, is_backup),
                    is_backup,
                    "told twice"
                );
            }
            let present = self.truths.iter().filter(|truth| !truth.is_gone);
            let regular = present.clone().filter(|truth| !truth.is_backup).count();
            assert_eq!(
                regular,
                present.count().min(Config::default().regular),
                "as many carry data as may"
            );
        }
        self.now = self.now.max(end);
    }

    fn check(&self) {
        for (ap, truth) in self.truths.iter().enumerate() {
            let counters = self.points.counters(ap);
            assert_eq!(
                (counters.passed, counters.marked),
                (truth.read, truth.marked),
                "a packet passes uncounted"
            );
            assert_eq!(
                self.points.is_backup(ap),
                truth.is_backup,
                "a change was not told"
            );
            let capacity = estimator::Config::default().capacity;
            assert!(self.points.delivery(ap).memory() <= capacity * estimator::RECORD_BYTES);
            let share = self.points.marking_rate(ap, self.now);
            assert!((0.0..=efficiency::MARKING_CAP).contains(&share));
            let is_heard = truth
                .heard
                .is_some_and(|heard| self.now.since(heard) <= Config::default().memory);
            assert!(
                share == 0.0 || is_heard && !truth.is_gone,
                "marked, and not heard"
            );
        }
    }

    /// Lets every access point return and send in turn; the first one loses half of its first
    /// attempts while `is_first_bad`.
    fn settle(&mut self, is_first_bad: bool) {
        for ap in 0..self.truths.len() {
            self.rejoin(ap);
            self.points.handle_round_trip(ap, Duration::from_millis(5));
        }
        for _ in 0..30 {
            for ap in 0..self.truths.len() {
                self.tuned = channel(ap);
                for frame in 0..60 {
                    let truth = &mut self.truths[ap];
                    truth.sequence = truth.sequence.wrapping_add(1);
                    (truth.heard, truth.read) = (Some(self.now), truth.read + 1);
                    let retry = is_first_bad && ap == 0 && frame % 2 == 0;
                    self.points
                        .handle_frame(ap, self.truths[ap].sequence, retry, 54e6, self.now);
                    self.truths[ap].marked += u64::from(self.points.handle_packet(ap, self.now));
                }
            }
            self.wait(Duration::from_millis(200), Duration::ZERO);
            self.check();
        }
    }

    fn are_marked(&self) -> Vec<bool> {
        (0..self.truths.len())
            .map(|ap| self.points.marking_rate(ap, self.now) > 0.0)
            .collect()
    }
}

/// Every other access point is on the second channel.
fn channel(ap: usize) -> u16 {
    (ap % 2) as u16
}

/// Window of the estimator. Source: All-APs section 5.1.
const WINDOW: Duration = Duration::from_millis(500);

proptest! {
    /// Checks that under any events every arriving packet is counted, no access point without a
    /// received frame is marked or preferred, and no state is final.
    #[test]
    fn every_packet_is_counted_and_every_state_is_left(ops in prop::collection::vec(op(), 1..250)) {
        let mut world = World::new();
        world.join();
        world.join();
        for op in &ops {
            world.apply(op);
        }
        world.settle(false);
        prop_assert!(!world.are_marked().contains(&true), "all are alike");
        world.settle(true);
        let marked = world.are_marked();
        prop_assert!(marked[0] && !marked[1..].contains(&true), "only the first is worse: {marked:?}");
        world.settle(false);
        prop_assert!(!world.are_marked().contains(&true), "all are alike again");
        world.wait(Duration::from_secs(10), Duration::ZERO);
        let is_unknown = |ap| world.points.packet_time(ap).is_none();
        prop_assert!((0..world.truths.len()).all(is_unknown), "estimates expire");
    }
}
