use super::*;
use proptest::prelude::*;

const TIMEOUT: Duration = Duration::from_millis(500);
const OVERHEAD: u16 = 68;

/// A search over a network that transfers packets of `real` bytes at most.
struct Driven {
    pmtu: Pmtu,
    real: u16,
    now: Instant,
    token: u64,
    probes: u32,
}

impl Driven {
    fn new(link: u16, real: u16) -> Self {
        Self {
            pmtu: Pmtu::new(link, OVERHEAD, Instant::ZERO),
            real,
            now: Instant::ZERO,
            token: 0,
            probes: 0,
        }
    }

    /// Lets the next due probe meet the network. Returns its size.
    fn step(&mut self) -> Option<u16> {
        self.now = self.now.max(self.pmtu.due());
        self.token += 1;
        let size = self.pmtu.poll(self.token, TIMEOUT, self.now)?;
        self.probes += 1;
        if size <= self.real {
            self.pmtu.handle_reply(self.token, self.now);
        }
        Some(size)
    }

    /// Lets `time` pass.
    fn run(&mut self, time: Duration) -> &mut Self {
        let until = self.now + time;
        while self.pmtu.due() <= until {
            self.step();
            assert!(self.probes < 10_000, "probes without end");
        }
        self.now = until;
        self
    }

    /// Lets the search end; a raise does not count.
    fn settle(&mut self) -> &mut Self {
        while !self.pmtu.is_settled() || self.pmtu.due() <= self.now {
            self.step();
        }
        self
    }

    fn is_near(&self) -> bool {
        let outer = self.pmtu.outer();
        outer <= self.real && outer + STEP >= self.real.min(self.pmtu.link())
    }
}

#[test]
fn finds_every_size_within_a_step() {
    for link in [1280, 1400, 1492, 1500, 9000] {
        for real in 1280..=9000 {
            let mut driven = Driven::new(link, real);
            driven.settle();
            assert!(
                driven.is_near(),
                "link {link} real {real} found {}",
                driven.pmtu.outer()
            );
            assert!(
                driven.probes <= 50,
                "link {link} real {real}: {} probes",
                driven.probes
            );
            assert_eq!(driven.pmtu.phase(), Phase::Complete);
        }
    }
}

#[test]
fn finds_what_passes_below_the_base() {
    for real in MIN..1280 {
        let mut driven = Driven::new(1500, real);
        driven.settle();
        assert!(driven.is_near(), "real {real} found {}", driven.pmtu.outer());
        assert_eq!(driven.pmtu.phase(), Phase::Error, "real {real}");
    }
    assert_eq!(
        Driven::new(1500, 100).settle().pmtu.outer(),
        MIN,
        "assumed to pass"
    );
    assert_eq!(Driven::new(1200, 1200).settle().pmtu.outer(), 1200);
    assert_eq!(Driven::new(0, 0).settle().pmtu.outer(), 0);
    assert_eq!(Driven::new(u16::MAX, u16::MAX).settle().pmtu.outer(), LARGEST);
}

#[test]
fn finds_the_size_of_pppoe_with_its_first_guess() {
    let mut driven = Driven::new(1500, 1492);
    let sizes: Vec<_> = (0..5).map(|_| driven.step()).collect();
    assert_eq!(sizes, [1500, 1500, 1500, 1280, 1492].map(Some));
    assert!(driven.pmtu.is_settled());
    assert_eq!(driven.pmtu.outer(), 1492);
}

/// The defect of 1492 bytes: when the search had ended, the link's own size was hoped for again.
#[test]
fn hopes_for_nothing_once_the_size_of_the_link_has_failed() {
    for real in 576..1500 {
        let mut driven = Driven::new(1500, real);
        assert_eq!(driven.pmtu.hoped(), Some(1500 - OVERHEAD));
        driven.step();
        assert_eq!(
            driven.pmtu.hoped(),
            Some(1500 - OVERHEAD),
            "the answer is a round trip away"
        );
        for _ in 0..60 {
            driven.step();
            assert_eq!(driven.pmtu.hoped(), None, "real {real}");
        }
    }
}

#[test]
fn takes_the_link_size_after_one_reply() {
    let mut pmtu = Pmtu::new(1500, OVERHEAD, Instant::ZERO);
    assert_eq!((pmtu.inner(), pmtu.is_settled()), (1212, false));
    assert_eq!(pmtu.poll(5, TIMEOUT, Instant::ZERO), Some(1500));
    assert!(!pmtu.handle_reply(6, Instant::ZERO));
    assert_eq!(pmtu.outer(), 1280);
    assert!(pmtu.handle_reply(5, Instant::ZERO));
    assert_eq!((pmtu.inner(), pmtu.is_settled()), (1432, true));
    assert_eq!((pmtu.hoped(), pmtu.due()), (None, Instant::FAR_FUTURE));
}

#[test]
fn an_answer_after_its_probe_was_given_up_still_counts() {
    let mut pmtu = Pmtu::new(1500, OVERHEAD, Instant::ZERO);
    for token in 1..=4 {
        pmtu.poll(token, TIMEOUT, pmtu.due());
    }
    assert_eq!(pmtu.outer(), 1280);
    assert!(pmtu.handle_reply(1, pmtu.due()));
    assert_eq!((pmtu.outer(), pmtu.phase()), (1500, Phase::Complete));
}

#[test]
fn large_packets_stop_at_once_when_they_get_lost() {
    let mut driven = Driven::new(1500, 1500);
    driven.settle();
    driven.pmtu.suspect(driven.now);
    assert_eq!(
        (driven.pmtu.phase(), driven.pmtu.outer()),
        (Phase::Confirming, 1280)
    );
    assert_eq!(driven.step(), Some(1500));
    assert_eq!(
        (driven.pmtu.phase(), driven.pmtu.outer()),
        (Phase::Complete, 1500)
    );
    assert_eq!(
        driven.pmtu.doubted_after(driven.now),
        2 * DOUBTED_AFTER,
        "it was chance"
    );
}

#[test]
fn follows_a_size_that_shrinks_and_grows_again() {
    let mut driven = Driven::new(1500, 1500);
    driven.settle();
    for real in [1492, 1400, 1280, 1100, 1500, 576, 1400, 1500] {
        let shrinks = real < driven.pmtu.outer();
        driven.real = real;
        while shrinks && real < driven.pmtu.outer() {
            driven.pmtu.suspect(driven.now);
            driven.step();
        }
        driven.run(if shrinks {
            Duration::from_secs(40)
        } else {
            RAISE_MAX
        });
        assert!(driven.is_near(), "real {real} found {}", driven.pmtu.outer());
    }
}

#[test]
fn tries_larger_sizes_ever_more_rarely() {
    let mut driven = Driven::new(1500, 1400);
    driven.settle();
    let probes = driven.probes;
    driven.run(Duration::from_secs(3_600));
    let more = driven.probes - probes;
    assert!((12..=26).contains(&more), "{more} probes in an hour");
    driven.real = 1500;
    driven.run(RAISE_MAX);
    assert_eq!(driven.pmtu.outer(), 1500);
    driven.run(Duration::from_secs(3_600));
    assert_eq!(driven.probes - probes - more, 1, "there is nothing larger");
}

#[test]
fn an_outage_right_after_a_probe_bars_its_size() {
    let mut driven = Driven::new(1500, 1500);
    assert_eq!(driven.pmtu.poll(1, TIMEOUT, driven.now), Some(1500));
    let delay = Duration::from_millis(100);
    let heard = driven.now + Duration::from_millis(30);
    driven.now += Duration::from_secs(60);
    driven.pmtu.handle_outage(heard, delay, driven.now);
    assert_eq!(driven.pmtu.barred().map(|barred| barred.size()), Some(1500));
    for hours in [1, 2, 4] {
        driven.pmtu.restart(driven.now);
        driven.settle();
        assert_eq!(driven.pmtu.outer(), 1280);
        driven.run(Duration::from_secs(hours * 3_600 - 1));
        assert_eq!(driven.pmtu.outer(), 1280, "nothing larger is tried");
        driven.now += Duration::from_secs(1);
        assert_eq!(
            driven.pmtu.poll(1, TIMEOUT, driven.now),
            Some(1500),
            "after {hours} hours"
        );
        driven.pmtu.handle_outage(driven.now, delay, driven.now + delay);
        driven.now += delay;
    }
}

#[test]
fn an_outage_at_another_time_bars_nothing() {
    let mut driven = Driven::new(1500, 1400);
    driven.settle();
    let later = driven.now + Duration::from_secs(5);
    driven
        .pmtu
        .handle_outage(later, Duration::from_millis(100), later + Duration::from_secs(2));
    assert_eq!(driven.pmtu.barred(), None);
    let mut driven = Driven::new(1500, 1500);
    driven.settle();
    driven
        .pmtu
        .handle_outage(driven.now, Duration::from_millis(100), driven.now + TIMEOUT);
    assert_eq!(driven.pmtu.barred(), None, "the probe had returned");
}

/// Inputs of a machine in a phase.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Input {
    Passes,
    Fails,
    Suspect,
    Due,
}

/// A machine in a phase, on a link of 1500 bytes; packets of `real` bytes pass.
fn machine_in(phase: Phase, real: u16) -> Driven {
    let mut driven = Driven::new(1500, real);
    match phase {
        Phase::Base => {}
        Phase::Searching => (0..4).for_each(|_| {
            driven.step();
        }),
        Phase::Complete | Phase::Error => {
            driven.settle();
        }
        Phase::Raising => {
            driven.settle();
            driven.now = driven.pmtu.due();
            driven.token += 1;
            driven.pmtu.poll(driven.token, TIMEOUT, driven.now);
        }
        Phase::Confirming => {
            driven.settle();
            driven.pmtu.suspect(driven.now);
        }
    }
    assert_eq!(driven.pmtu.phase(), phase);
    driven
}

#[test]
fn transitions() {
    use Input::{Due, Fails, Passes, Suspect};
    use Phase::{Base, Complete, Confirming, Error, Raising, Searching};
    // From, what passes before, input, to.
    let table = [
        (Base, 1400, Passes, Complete),
        (Base, 1400, Fails, Base),
        (Base, 1400, Suspect, Confirming),
        (Searching, 1400, Passes, Complete),
        (Searching, 1400, Fails, Searching),
        (Searching, 1400, Suspect, Confirming),
        (Complete, 1400, Due, Raising),
        (Complete, 1400, Suspect, Confirming),
        (Complete, 1500, Due, Complete),
        (Raising, 1400, Passes, Complete),
        (Raising, 1400, Fails, Raising),
        (Raising, 1400, Suspect, Confirming),
        (Confirming, 1400, Passes, Complete),
        (Confirming, 1400, Fails, Base),
        (Confirming, 1400, Suspect, Confirming),
        (Error, 1000, Due, Raising),
        (Error, 1000, Suspect, Confirming),
        (Error, 576, Suspect, Error),
    ];
    for (from, real, input, to) in table {
        let mut driven = machine_in(from, real);
        match input {
            Passes => {
                driven.real = 1500;
                if from == Raising {
                    driven.pmtu.handle_reply(driven.token, driven.now);
                } else {
                    driven.step();
                }
                if from == Searching {
                    driven.real = 1400;
                    driven.settle();
                }
            }
            Fails => {
                driven.real = 0;
                let tries = if from == Raising { 1 } else { MAX_PROBES + 1 };
                (0..tries).for_each(|_| {
                    driven.step();
                });
            }
            Suspect => driven.pmtu.suspect(driven.now),
            Due if driven.pmtu.due() == Instant::FAR_FUTURE => {}
            Due => {
                driven.step();
            }
        }
        assert_eq!(driven.pmtu.phase(), to, "{from:?} ({real}) {input:?}");
    }
}

#[derive(Clone, Debug)]
enum Op {
    Poll,
    Reply(usize),
    Wait(u64),
    Suspect,
    Outage(u64),
    Restart,
    Restore(u16),
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        6 => Just(Op::Poll),
        4 => (0_usize..10).prop_map(Op::Reply),
        2 => (0_u64..700_000).prop_map(Op::Wait),
        1 => Just(Op::Suspect),
        1 => (0_u64..2_000).prop_map(Op::Outage),
        1 => Just(Op::Restart),
        1 => any::<u16>().prop_map(Op::Restore),
    ]
}

proptest! {
    /// Whatever happens: sizes stay within their bounds, nothing above the ceiling is probed, and
    /// in the end the search finds what passes.
    #[test]
    fn random_operations_keep_the_bounds(link in 0_u16..=9_000, real in 576_u16..=9_000,
                                         ops in proptest::collection::vec(op(), 0..120)) {
        let mut driven = Driven::new(link, real);
        let mut sent: Vec<(u64, u16)> = Vec::new();
        for op in ops {
            match op {
                Op::Poll => {
                    driven.now = driven.now.max(driven.pmtu.due().min(driven.now + RAISE_MAX));
                    driven.token += 1;
                    if let Some(size) = driven.pmtu.poll(driven.token, TIMEOUT, driven.now) {
                        prop_assert!(size <= link);
                        let barred = driven.pmtu.barred().and_then(|barred| barred.ceiling(driven.now));
                        prop_assert!(barred.is_none_or(|ceiling| size <= ceiling.max(driven.pmtu.outer())));
                        prop_assert!(driven.pmtu.due() > driven.now);
                        sent.insert(0, (driven.token, size));
                    }
                }
                Op::Reply(back) => {
                    if let Some((token, _)) = sent.get(back).filter(|(_, size)| *size <= real) {
                        driven.pmtu.handle_reply(*token, driven.now);
                    }
                }
                Op::Wait(ms) => driven.now += Duration::from_millis(ms),
                Op::Suspect => driven.pmtu.suspect(driven.now),
                Op::Outage(ms) => {
                    let heard = driven.now;
                    driven.now += Duration::from_millis(ms);
                    driven.pmtu.handle_outage(heard, Duration::from_millis(100), driven.now);
                    driven.pmtu.restart(driven.now);
                }
                Op::Restart => driven.pmtu.restart(driven.now),
                Op::Restore(outer) => driven.pmtu.restore(outer.min(real), driven.now),
            }
            let pmtu = &driven.pmtu;
            prop_assert!(pmtu.outer() <= link);
            prop_assert!(pmtu.fallback().is_none_or(|size| size < pmtu.outer()));
            prop_assert!(pmtu.hoped().is_none_or(|size| size <= link));
            prop_assert!(pmtu.is_settled() || pmtu.due() < Instant::FAR_FUTURE);
        }
        let barred = driven.pmtu.barred().is_some();
        driven.run(Duration::from_secs(25 * 3_600));
        while driven.pmtu.outer() > real && driven.pmtu.fallback().is_some() {
            driven.pmtu.suspect(driven.now);
            driven.settle();
        }
        driven.run(RAISE_MAX * 2);
        prop_assert!(barred || driven.is_near() || link < real.min(MIN), "found {}", driven.pmtu.outer());
    }
}
