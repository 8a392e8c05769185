use hawser_wire::data::Feedback;
use proptest::prelude::*;

use super::*;

const MS: Duration = Duration::from_millis(1);
const BEGIN: Instant = Instant::from_nanos(1_000_000_000);

fn config(probing: Probing) -> Config {
    Config {
        id: PathId(1),
        probing,
        cap: None,
        mtu: 1500,
        overhead: 68,
    }
}

/// A path with a clock, driven as by a session in use.
struct Driven {
    path: Path,
    now: Instant,
}

impl Driven {
    fn new(probing: Probing) -> Self {
        Self {
            path: Path::new(config(probing), 9, BEGIN),
            now: BEGIN,
        }
    }

    fn wait(&mut self, time: Duration) {
        self.now += time;
    }

    /// Waits until a small probe is due and sends it.
    fn probe(&mut self) -> u64 {
        for _ in 0..150 {
            if let Some(probe) = self.path.poll_probe(self.now, self.now) {
                self.path.on_sent(48, probe.outer_len == 0, self.now);
                if probe.outer_len == 0 {
                    return probe.token;
                }
            }
            self.wait(10 * MS);
        }
        panic!("no probe within 1.5 s")
    }

    fn report(&self) -> Feedback {
        Feedback {
            highest: self.path.next_packet_number - 1,
            packets: self.path.next_packet_number as u32 - 1,
            bytes: self.path.cumulative,
            received_us: self.now.as_micros_wrapping(),
            delay_us: 20_000,
            ..Feedback::default()
        }
    }

    fn in_state(state: State, probing: Probing) -> Self {
        let mut driven = Self::new(probing);
        if state == State::Validating {
            return driven;
        }
        for _ in 0..3 {
            if driven.path.state() == State::Active {
                break;
            }
            let token = driven.probe();
            driven.wait(20 * MS);
            driven.path.handle_probe_reply(token, driven.now);
        }
        if state != State::Active {
            driven.path.on_sent(1000, true, driven.now);
            driven.wait(400 * MS);
            assert!(driven.path.handle_timeout(driven.now));
        }
        if state == State::Dead {
            driven.wait(800 * MS);
            assert!(driven.path.handle_timeout(driven.now));
        }
        assert_eq!(driven.path.state(), state);
        driven
    }
}

#[test]
fn a_path_that_does_not_answer_is_probed_ever_less_often() {
    let mut driven = Driven::new(Probing::Eager);
    let mut probed = Vec::new();
    for _ in 0..290 {
        if driven.path.poll_probe(driven.now, driven.now).is_some() {
            probed.push(driven.now.since(BEGIN).as_millis());
        }
        driven.wait(10 * MS);
    }
    assert_eq!(probed, [0, 100, 300, 700, 1500, 2300]);
}

/// The end of a burst is probed; between the packets of a slow path there is none.
#[test]
fn the_pauses_between_packets_of_a_slow_path_are_not_the_end_of_a_burst() {
    let is_probed = |cap| {
        let mut driven = Driven::new(Probing::Eager);
        driven.path = Path::new(
            Config {
                cap,
                ..config(Probing::Eager)
            },
            9,
            BEGIN,
        );
        let token = driven.probe();
        driven.wait(20 * MS);
        assert!(driven.path.handle_probe_reply(token, driven.now));
        for _ in 0..BURST {
            driven.path.on_sent(1472, true, driven.now);
        }
        driven.wait(2 * TAIL_QUIET);
        let mut probes = std::iter::from_fn(|| driven.path.poll_probe(driven.now, driven.now));
        probes.any(|probe| probe.outer_len == 0)
    };
    assert!(is_probed(None));
    assert!(is_probed(Some(Rate::from_mbps(10))));
    assert!(!is_probed(Some(Rate::from_bps(28_000))));
}

#[derive(Clone, Copy, Debug)]
enum Input {
    Report,
    StaleReport,
    Reply,
    ThreeReplies,
    FourReplies,
    OldReply,
    Forged,
    Heard,
    Moved,
    Silence,
    Quiet,
}

fn apply(driven: &mut Driven, input: Input) -> bool {
    match input {
        Input::Report => {
            driven.path.on_sent(1000, true, driven.now);
            driven.wait(20 * MS);
            driven.path.handle_feedback(&driven.report(), driven.now)
        }
        Input::StaleReport => {
            let report = Feedback {
                highest: driven.path.reported.unwrap_or(0),
                ..driven.report()
            };
            driven.path.handle_feedback(&report, driven.now)
        }
        Input::Reply => {
            let token = driven.probe();
            driven.wait(20 * MS);
            driven.path.handle_probe_reply(token, driven.now)
        }
        Input::ThreeReplies => (0..3).fold(false, |told, _| told | apply(driven, Input::Reply)),
        Input::FourReplies => (0..4).fold(false, |told, _| told | apply(driven, Input::Reply)),
        // Sent before the state was entered.
        Input::OldReply => {
            driven.path.tokens[0] = (77, driven.path.since - MS);
            driven.path.handle_probe_reply(77, driven.now)
        }
        Input::Forged => {
            driven.path.handle_probe_reply(0, driven.now) | driven.path.handle_probe_reply(5, driven.now)
        }
        Input::Heard => driven.path.handle_heard(driven.now),
        Input::Moved => {
            driven.path.handle_moved(88, driven.now);
            false
        }
        Input::Silence => {
            driven.path.on_sent(1000, true, driven.now);
            driven.wait(Duration::from_secs(4));
            driven.path.handle_timeout(driven.now)
        }
        Input::Quiet => {
            driven.wait(Duration::from_secs(4));
            driven.path.handle_timeout(driven.now)
        }
    }
}

#[test]
fn transitions() {
    use Input::{
        Forged, FourReplies, Heard, Moved, OldReply, Quiet, Reply, Report, Silence, StaleReport, ThreeReplies,
    };
    use State::{Active, Dead, Suspect, Validating};
    let table = [
        (Validating, Report, Validating),
        (Validating, StaleReport, Validating),
        (Validating, Reply, Active),
        (Validating, ThreeReplies, Active),
        (Validating, Forged, Validating),
        (Validating, Heard, Validating),
        (Validating, Moved, Validating),
        (Validating, Silence, Dead),
        (Validating, Quiet, Dead),
        (Active, Report, Active),
        (Active, StaleReport, Active),
        (Active, Reply, Active),
        (Active, OldReply, Active),
        (Active, Forged, Active),
        (Active, Heard, Active),
        (Active, Moved, Validating),
        (Active, Silence, Suspect),
        (Active, Quiet, Active),
        (Suspect, Report, Active),
        (Suspect, StaleReport, Suspect),
        (Suspect, Reply, Active),
        (Suspect, OldReply, Suspect),
        (Suspect, Forged, Suspect),
        (Suspect, Heard, Suspect),
        (Suspect, Moved, Validating),
        (Suspect, Silence, Dead),
        (Suspect, Quiet, Dead),
        (Dead, Report, Dead),
        (Dead, StaleReport, Dead),
        (Dead, OldReply, Validating),
        (Dead, Forged, Dead),
        (Dead, Moved, Validating),
        (Dead, Silence, Dead),
        (Dead, Quiet, Dead),
    ];
    for probing in [Probing::Eager, Probing::OnHearing] {
        for (from, input, to) in table {
            check(from, probing, input, to);
        }
    }
    check(Dead, Probing::Eager, Heard, Dead);
    check(Dead, Probing::Eager, Reply, Validating);
    check(Dead, Probing::Eager, ThreeReplies, Validating);
    check(Dead, Probing::Eager, FourReplies, Active);
    check(Dead, Probing::OnHearing, Heard, Validating);
}

fn check(from: State, probing: Probing, input: Input, to: State) {
    let mut driven = Driven::in_state(from, probing);
    let told = apply(&mut driven, input);
    assert_eq!(driven.path.state(), to, "{probing:?} {from:?} {input:?}");
    if !matches!(input, Input::Moved) {
        assert_eq!(told, from != to, "{probing:?} {from:?} {input:?} is told");
    }
}

#[test]
fn an_answer_from_the_old_address_proves_nothing_of_the_new_one() {
    let mut driven = Driven::new(Probing::OnHearing);
    let tokens = [driven.probe(), driven.probe(), driven.probe()];
    driven.path.handle_moved(68, driven.now);
    for token in tokens {
        driven.path.handle_probe_reply(token, driven.now);
    }
    assert_eq!(driven.path.state(), State::Validating);
}

#[test]
fn a_returned_path_knows_nothing_of_its_rate() {
    let mut driven = Driven::in_state(State::Active, Probing::Eager);
    for _ in 0..50 {
        for _ in 0..20 {
            driven.path.on_sent(FULL_PACKET, true, driven.now);
        }
        driven.wait(20 * MS);
        driven.path.handle_feedback(&driven.report(), driven.now);
    }
    assert!(driven.path.model().rate().rate() > Rate::from_mbps(5));
    driven.path.on_sent(FULL_PACKET, true, driven.now);
    for _ in 0..2 {
        driven.wait(Duration::from_secs(2));
        driven.path.handle_timeout(driven.now);
    }
    assert_eq!(driven.path.state(), State::Dead);
    assert_eq!(driven.path.in_flight(), 0, "what it swallowed is not waited for");
    let peak_in = |path: &Path, time| path.recent_peak(driven.now + time);
    assert!(
        peak_in(&driven.path, MS) > Rate::from_mbps(5),
        "it may be back at once"
    );
    assert_eq!(peak_in(&driven.path, MAY_BE_BACK), Rate::ZERO);
    for _ in 0..4 {
        apply(&mut driven, Input::Reply);
    }
    assert_eq!(driven.path.state(), State::Active);
    assert_eq!(driven.path.model().rate().rate(), Rate::ZERO);
    let peak_in = |time| driven.path.recent_peak(driven.now + time);
    assert!(peak_in(MS) > Rate::from_mbps(5), "it is back");
    assert_eq!(peak_in(MAY_BE_BACK), Rate::ZERO, "but carries nothing");
}

#[test]
fn what_a_crawling_path_holds_is_late_once_and_counts_as_its_queue() {
    let mut driven = Driven::in_state(State::Active, Probing::Eager);
    for _ in 0..40 {
        driven.path.on_sent(1_000, true, driven.now);
        driven.wait(40 * MS);
        let report = driven.report();
        driven.path.handle_feedback(&report, driven.now);
    }
    let timeout = driven.path.model().timeout();
    let first = driven.path.on_sent(1_000, true, driven.now);
    driven.path.on_sent(1_000, true, driven.now);
    let at_first = driven.path.queueing(driven.now);
    assert!(driven.path.poll_late(driven.now + timeout / 2).is_empty());
    let begin = driven.now;
    driven.wait(timeout + MS);
    assert!(driven.path.poll_timeout(driven.now, driven.now) <= driven.now);
    assert_eq!(driven.path.poll_late(driven.now), first..first + 2);
    assert!(driven.path.poll_late(driven.now + timeout).is_empty(), "once");
    driven.wait(1_000 * MS);
    let stood = driven.now.since(begin) - times::BUSY_REPORT_DELAY - driven.path.model().base_round_trip();
    assert_eq!(driven.path.queueing(driven.now), stood);
    assert!(stood > at_first);
}

/// Eighty microseconds for each byte: packets of a slow link wait for each other, whatever is known
/// of its rate.
#[test]
fn each_packet_on_a_slow_link_waits_for_those_before_it() {
    let mut driven = Driven::in_state(State::Active, Probing::Eager);
    let send = |driven: &mut Driven, bytes: u64| {
        let sent = driven.now;
        driven.path.on_sent(bytes, true, sent);
        driven.wait((80 * bytes / 1_000) as u32 * MS + 70 * MS);
        let report = Feedback {
            received_us: (driven.now - 35 * MS).as_micros_wrapping(),
            delay_us: 35_000 + 80 * bytes as u32,
            ..driven.report()
        };
        driven.path.handle_feedback(&report, driven.now);
    };
    for _ in 0..2 {
        send(&mut driven, 48);
        send(&mut driven, 1_000);
    }
    assert_eq!(driven.path.queueing(driven.now), Duration::ZERO);
    driven.path.on_sent(1_000, true, driven.now);
    driven.path.on_sent(1_000, true, driven.now);
    let queue = driven.path.queueing(driven.now).as_millis();
    assert!((150..170).contains(&queue), "{queue}");
    driven.wait(100 * MS);
    let queue = driven.path.queueing(driven.now).as_millis();
    assert!((50..70).contains(&queue), "{queue}");
    driven.wait(80 * MS);
    assert_eq!(driven.path.queueing(driven.now), Duration::ZERO);
}

#[test]
fn losses_among_what_was_reported_before_say_nothing_of_sizes() {
    let mut driven = Driven::in_state(State::Active, Probing::Eager);
    apply(&mut driven, Input::Report);
    let mtu = driven.path.mtu();
    for _ in 0..30 {
        driven.path.on_sent(FULL_PACKET, true, driven.now);
    }
    driven.wait(20 * MS);
    let open = Feedback {
        highest: driven.path.next_packet_number - 1,
        packets: driven.path.next_packet_number as u32 - 30,
        bytes: driven.path.delivered + FULL_PACKET,
        open: 29,
        ..driven.report()
    };
    driven.path.handle_feedback(&open, driven.now);
    driven.path.on_sent(FULL_PACKET, true, driven.now);
    driven.path.on_sent(FULL_PACKET * 40, true, driven.now);
    let lost = Feedback {
        highest: driven.path.next_packet_number - 1,
        packets: open.packets + 1,
        bytes: open.bytes + 40,
        ..open
    };
    driven
        .path
        .handle_feedback(&Feedback { open: 0, ..lost }, driven.now);
    assert_eq!(driven.path.mtu(), mtu);
}

#[test]
fn what_should_have_come_during_a_silence_is_late_once() {
    let mut driven = Driven::in_state(State::Active, Probing::Eager);
    let first = driven.path.on_sent(1_000, true, driven.now);
    for _ in 0..5 {
        driven.wait(10 * MS);
        driven.path.on_sent(1_000, true, driven.now);
    }
    let report = driven.report();
    let silent = |highest, ms: u32| Feedback {
        highest,
        hold_us: ms * 1_000,
        ..report
    };
    let path = &mut driven.path;
    assert_eq!(path.handle_silence(&silent(first + 1, 0)), first + 2..first + 2);
    assert_eq!(path.handle_silence(&silent(first + 1, 25)), first + 2..first + 3);
    assert!(path.handle_silence(&silent(first + 1, 25)).is_empty(), "once");
    assert!(
        path.handle_silence(&silent(first, 100)).is_empty(),
        "older than what is known"
    );
    assert!(
        path.handle_silence(&silent(first + 90, 100)).is_empty(),
        "never sent"
    );
    assert_eq!(path.handle_silence(&silent(first + 1, 100)), first + 3..first + 6);
    assert_eq!(path.heard_of(), first + 1);
    assert!(path.reported() < first, "it says nothing of rates and delays");
}

#[test]
fn a_dead_path_is_probed_ever_less_often() {
    let mut driven = Driven::in_state(State::Dead, Probing::Eager);
    let mut gap = |until: u64| {
        while driven.now.since(BEGIN) < Duration::from_secs(until) {
            driven.now = driven.path.poll_timeout(BEGIN, driven.now).max(driven.now);
            assert!(driven.path.poll_probe(BEGIN, driven.now).is_some());
        }
        driven.path.poll_timeout(BEGIN, driven.now).since(driven.now)
    };
    assert_eq!(gap(30), PROBE_INTERVAL);
    assert!(gap(150) > 20 * PROBE_INTERVAL);
    assert_eq!(gap(600), DEAD_INTERVAL_MAX);
    let mut hub = Driven::in_state(State::Dead, Probing::OnHearing);
    assert_eq!(hub.path.poll_timeout(BEGIN, hub.now), Instant::FAR_FUTURE);
    hub.wait(Duration::from_secs(1));
    assert_eq!(hub.path.poll_probe(BEGIN, hub.now), None);
}

#[derive(Clone, Debug)]
enum Op {
    Send(u16, bool),
    Idle,
    TrueReport,
    Report(Feedback),
    Reply(usize),
    ForgedReply(u64),
    Heard,
    Moved,
    Cap(Option<u64>),
    Wait(u64),
    Timeout,
    Back(u64),
}

fn hostile_report() -> impl Strategy<Value = Feedback> {
    let small_or_any = prop_oneof![0u64..200, any::<u64>().prop_map(|n| n & ((1 << 48) - 1))];
    (small_or_any, any::<[u32; 5]>(), any::<u64>(), any::<u16>()).prop_map(
        |(highest, [packets, received_us, hold_us, delay_us, spread_us], bytes, open)| Feedback {
            highest,
            packets,
            bytes: bytes & ((1 << 48) - 1),
            received_us,
            hold_us,
            delay_us,
            spread_us,
            open,
            ..Feedback::default()
        },
    )
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        6 => (40u16..9000, any::<bool>()).prop_map(|(bytes, eliciting)| Op::Send(bytes, eliciting)),
        1 => Just(Op::Idle),
        4 => Just(Op::TrueReport),
        3 => hostile_report().prop_map(Op::Report),
        4 => (0usize..4).prop_map(Op::Reply),
        1 => any::<u64>().prop_map(Op::ForgedReply),
        1 => Just(Op::Heard),
        1 => Just(Op::Moved),
        1 => proptest::option::of(any::<u64>()).prop_map(Op::Cap),
        4 => (0u64..100_000_000).prop_map(Op::Wait),
        1 => (0u64..100_000_000_000).prop_map(Op::Wait),
        4 => Just(Op::Timeout),
        1 => (0u64..2_000_000_000).prop_map(Op::Back),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn keeps_its_invariants_whatever_comes(hub: bool, ops in prop::collection::vec(op(), 1..200)) {
        let mut driven = Driven::new(if hub { Probing::OnHearing } else { Probing::Eager });
        let mut tokens = Vec::new();
        let mut last = 0;
        let mut back = Duration::from_secs(2);
        for op in ops {
            match op {
                Op::Send(bytes, eliciting) => {
                    let packet_number = driven.path.on_sent(u64::from(bytes), eliciting, driven.now);
                    prop_assert_eq!(packet_number, last + 1);
                    last = packet_number;
                }
                Op::Idle => driven.path.on_idle(),
                Op::TrueReport => drop(driven.path.handle_feedback(&driven.report(), driven.now)),
                Op::Report(report) => drop(driven.path.handle_feedback(&report, driven.now)),
                Op::Reply(back) => if let Some(token) = tokens.iter().rev().nth(back) {
                    driven.path.handle_probe_reply(*token, driven.now);
                },
                Op::ForgedReply(token) => drop(driven.path.handle_probe_reply(token, driven.now)),
                Op::Heard => drop(driven.path.handle_heard(driven.now)),
                Op::Moved => driven.path.handle_moved(88, driven.now),
                Op::Cap(cap) => driven.path.set_cap(cap.map(Rate::from_bps)),
                Op::Wait(nanos) => driven.now += Duration::from_nanos(nanos),
                Op::Timeout => {
                    let due = driven.path.poll_timeout(BEGIN, driven.now);
                    if due != Instant::FAR_FUTURE {
                        driven.now = driven.now.max(due);
                    }
                }
                Op::Back(nanos) => {
                    driven.now = driven.now - Duration::from_nanos(nanos);
                    back += Duration::from_nanos(nanos);
                }
            }
            let now = driven.now;
            for round in 0.. {
                if driven.path.poll_timeout(BEGIN, now) > now {
                    break;
                }
                prop_assert!(round < 50, "spins in {:?}", driven.path.state());
                let changed = driven.path.handle_timeout(now) || !driven.path.poll_late(now).is_empty();
                let probe = driven.path.poll_probe(BEGIN, now);
                if let Some(probe) = probe {
                    tokens.push(probe.token);
                    last = driven.path.on_sent(48, probe.outer_len == 0, now);
                }
                // The search for a packet size may end at its timer without a probe.
                let is_over = driven.path.poll_timeout(BEGIN, now) > now;
                prop_assert!(changed || probe.is_some() || is_over, "a timer in {:?} has nothing to do", driven.path.state());
            }
            let path = &driven.path;
            let (sent, delivered) = path.totals();
            prop_assert!(path.in_flight() <= sent);
            prop_assert!(delivered <= sent, "{delivered} of {sent}");
            prop_assert!((0.0..=1.0).contains(&path.loss()));
            prop_assert!(path.model().delay().trend().is_finite());
            prop_assert!(u64::from(path.packets_in_flight()) < path.next_packet_number);
            let credit = path.credit(FULL_PACKET, now);
            prop_assert!(credit == 0 || credit >= FULL_PACKET);
            if path.packets_in_flight() == 0 {
                let ready = path.ready_at(FULL_PACKET, now);
                prop_assert!(ready < now + back, "an idle path may send soon, not in {:?}", ready.since(now));
            }
            prop_assert!(path.mtu() <= 1500);
        }
    }
}

#[test]
fn what_is_lost_right_after_activation_is_counted() {
    let mut driven = Driven::new(Probing::Eager);
    // Two probes are under way when the reply to the first activates the path; the second one's
    // report comes later.
    let token = driven.probe();
    driven.wait(100 * MS);
    driven.probe();
    driven.path.handle_probe_reply(token, driven.now);
    assert_eq!(driven.path.state(), State::Active);
    for _ in 0..40 {
        driven.path.on_sent(1400, true, driven.now);
    }
    driven.wait(30 * MS);
    let report = driven.report();
    driven.path.handle_feedback(&report, driven.now);
    for _ in 0..40 {
        driven.path.on_sent(1400, true, driven.now);
    }
    driven.wait(30 * MS);
    let report = Feedback {
        packets: report.packets + 36,
        ..driven.report()
    };
    driven.path.handle_feedback(&report, driven.now);
    let expected = 0.1 * 40.0 / 78.0;
    assert!(
        (driven.path.loss() - expected).abs() < 0.02,
        "{}",
        driven.path.loss()
    );
}
