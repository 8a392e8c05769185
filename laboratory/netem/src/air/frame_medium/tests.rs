use super::*;
use crate::air::phy::Standard;

const ACCESS_POINT: Address = [0x42, 0, 0, 0, 0, 0];
const CARD: Address = [0x42, 0, 0, 0, 1, 0];
const BYSTANDER: Address = [0x42, 0, 0, 0, 2, 0];

/// A radio's first interface has its name without this bit.
fn interface(radio: Address) -> Address {
    [radio[0] & !0x40, radio[1], radio[2], radio[3], radio[4], radio[5]]
}

fn medium(signal: Signal, overhear: bool) -> FrameMedium {
    let station = StationConfig::fixed(Standard::G, 0, PhyRate::Ofdm(54));
    let config = MediumConfig {
        station,
        stations: BTreeMap::new(),
        signal,
        signals: Vec::new(),
        towards: Vec::new(),
        overhear,
        strangers: Vec::new(),
        overlaps: Vec::new(),
    };
    FrameMedium::new(config, 1, Instant::ZERO)
}

fn frame(control: u8, from: Address, to: Address, cookie: u64, len: usize) -> StackFrame {
    let mut bytes = vec![0; len];
    bytes[0] = control;
    bytes[4..10].copy_from_slice(&to);
    bytes[10..16].copy_from_slice(&interface(from));
    StackFrame {
        radio: from,
        frequency: 2412,
        bytes,
        cookie,
        wants_ack: true,
    }
}

/// All that happens until nothing happens by itself, with the time at the end.
fn run(medium: &mut FrameMedium) -> (Vec<MediumEvent>, Instant) {
    let mut now = Instant::ZERO;
    let mut events = Vec::new();
    loop {
        events.extend(std::iter::from_fn(|| medium.poll_event()));
        let Some(next) = medium.poll_timeout() else {
            return (events, now);
        };
        now = now.max(next);
        medium.handle_timeout(now);
    }
}

fn done(events: &[MediumEvent]) -> Vec<(u64, u8, bool)> {
    let of = |event: &MediumEvent| match event {
        MediumEvent::Done {
            cookie,
            attempts,
            acknowledged,
            ..
        } => Some((*cookie, *attempts, *acknowledged)),
        MediumEvent::Read { .. } => None,
    };
    events.iter().filter_map(of).collect()
}

/// Whoever reads, the frame's second byte, and whether it is thought to be elsewhere.
fn reads(events: &[MediumEvent]) -> Vec<(Address, u8, bool)> {
    let of = |event: &MediumEvent| match event {
        MediumEvent::Read {
            radio,
            bytes,
            is_elsewhere,
            ..
        } => Some((*radio, bytes[1], *is_elsewhere)),
        MediumEvent::Done { .. } => None,
    };
    events.iter().filter_map(of).collect()
}

/// Three radios that have been heard of, on one channel.
fn introduced(signal: Signal, overhear: bool) -> FrameMedium {
    let mut medium = medium(signal, overhear);
    for radio in [ACCESS_POINT, CARD, BYSTANDER] {
        medium.handle_address(radio, interface(radio));
        medium.handle_tuned(radio, 2412, Instant::ZERO);
    }
    medium
}

const BEACON: u8 = 0x80;

#[test]
fn a_frame_reaches_its_receiver_alone_and_is_acknowledged() {
    let mut medium = introduced(Signal::clear(), false);
    medium.handle_frame(frame(0x08, ACCESS_POINT, interface(CARD), 7, 1000), Instant::ZERO);
    let (events, end) = run(&mut medium);
    assert_eq!(reads(&events), [(CARD, 0, false)]);
    assert_eq!(done(&events), [(7, 1, true)]);
    let airtime = PhyRate::Ofdm(54).airtime(Standard::G, 1004);
    let least = airtime + Standard::G.difs() + Standard::G.sifs();
    assert!(
        (least..least + Duration::from_micros(300)).contains(&end.since(Instant::ZERO)),
        "{end:?}"
    );
}

#[test]
fn a_lost_attempt_is_repeated_with_the_retry_bit_and_delivered_once() {
    let mut medium = introduced(Signal::lossy(0.5), true);
    for cookie in 0..200 {
        medium.handle_frame(
            frame(0x08, ACCESS_POINT, interface(CARD), cookie, 500),
            Instant::ZERO,
        );
    }
    let (events, _) = run(&mut medium);
    let done = done(&events);
    assert_eq!(done.len(), 200);
    let attempts: u32 = done.iter().map(|(_, attempts, _)| u32::from(*attempts)).sum();
    assert!((330..470).contains(&attempts), "two for each frame: {attempts}");
    let at_card = reads(&events).into_iter().filter(|(radio, ..)| *radio == CARD);
    let at_card: Vec<_> = at_card.collect();
    let given_up = done.iter().filter(|(_, _, acknowledged)| !acknowledged).count();
    assert_eq!(at_card.len() + given_up, 200, "a frame is read once");
    assert!(
        at_card
            .iter()
            .filter(|(_, control, _)| control & RETRY != 0)
            .count()
            > 50
    );
    assert!(
        reads(&events).iter().any(|(radio, ..)| *radio == BYSTANDER),
        "overheard"
    );
}

#[test]
fn management_does_not_wait_behind_data() {
    let mut medium = introduced(Signal::clear(), false);
    for cookie in 0..20 {
        let data = frame(0x08, ACCESS_POINT, interface(CARD), cookie, 1000);
        medium.handle_frame(data, Instant::ZERO);
    }
    // An action frame, such as the announcement of a channel.
    medium.handle_frame(frame(0xd0, ACCESS_POINT, interface(CARD), 99, 60), Instant::ZERO);
    let (events, _) = run(&mut medium);
    let done = done(&events);
    let at = done.iter().position(|(cookie, ..)| *cookie == 99);
    assert!(at.is_some_and(|at| at <= 1), "{done:?}");
}

#[test]
fn a_frame_to_nobody_is_given_up_after_all_attempts() {
    let mut medium = introduced(Signal::clear(), false);
    medium.handle_frame(frame(0x08, CARD, [2, 9, 9, 9, 9, 9], 1, 100), Instant::ZERO);
    let (events, _) = run(&mut medium);
    assert_eq!((reads(&events), done(&events)), (vec![], vec![(1, 7, false)]));
}

#[test]
fn a_beacon_finds_radios_whose_channel_is_not_known() {
    let mut medium = introduced(Signal::clear(), false);
    medium.handle_tuned(BYSTANDER, 2437, Instant::ZERO);
    medium.handle_frame(frame(BEACON, ACCESS_POINT, [0xff; 6], 1, 100), Instant::ZERO);
    let (events, _) = run(&mut medium);
    let mut reads = reads(&events);
    reads.sort();
    assert_eq!(reads, [(CARD, 0, false), (BYSTANDER, 0, true)]);
    assert_eq!(done(&events), [(1, 1, true)]);
    // No radio on its own channel receives it.
    medium.handle_frame(
        frame(0x08, ACCESS_POINT, interface(BYSTANDER), 2, 100),
        Instant::ZERO,
    );
    assert_eq!(done(&run(&mut medium).0), [(2, 7, false)]);
}

#[test]
fn what_is_no_frame_and_what_the_queue_does_not_hold_is_done_at_once() {
    let mut medium = introduced(Signal::clear(), false);
    let mut short = frame(0x08, CARD, interface(ACCESS_POINT), 9, 100);
    short.bytes.truncate(6);
    medium.handle_frame(short, Instant::ZERO);
    assert_eq!(done(&run(&mut medium).0), [(9, 0, false)]);
    for cookie in 0..500 {
        medium.handle_frame(
            frame(0x08, CARD, interface(ACCESS_POINT), cookie, 100),
            Instant::ZERO,
        );
    }
    let done = done(&run(&mut medium).0);
    assert_eq!(done.len(), 500);
    let refused = done.iter().filter(|(_, attempts, _)| *attempts == 0).count();
    assert!((90..110).contains(&refused), "{refused}");
}

#[test]
fn a_radio_that_comes_while_a_frame_is_on_the_air_hears_the_next_one() {
    let mut medium = medium(Signal::clear(), false);
    medium.handle_frame(frame(BEACON, ACCESS_POINT, [0xff; 6], 1, 1000), Instant::ZERO);
    let start = medium.poll_timeout().expect("it is sent");
    medium.handle_timeout(start);
    medium.handle_tuned(CARD, 2412, start);
    let (events, _) = run(&mut medium);
    assert_eq!((reads(&events), done(&events)), (vec![], vec![(1, 1, true)]));
    medium.handle_frame(frame(BEACON, ACCESS_POINT, [0xff; 6], 2, 1000), start);
    assert_eq!(reads(&run(&mut medium).0), [(CARD, 0, false)]);
}

#[test]
fn strangers_take_their_share_of_the_air_and_no_stack_reads_them() {
    let saturated = |strangers: Vec<Stranger>| {
        let mut medium = introduced(Signal::clear(), true);
        for stranger in strangers {
            medium.add_stranger(stranger, Instant::ZERO);
        }
        for cookie in 0..400 {
            medium.handle_frame(
                frame(0x08, ACCESS_POINT, interface(CARD), cookie, 1500),
                Instant::ZERO,
            );
        }
        let mut now = Instant::ZERO;
        let mut told = Vec::new();
        while done(&told).len() < 400 {
            now = medium.poll_timeout().expect("frames wait");
            medium.handle_timeout(now);
            told.extend(std::iter::from_fn(|| medium.poll_event()));
        }
        assert_eq!(
            reads(&told).iter().filter(|(radio, ..)| *radio == CARD).count(),
            400
        );
        now.since(Instant::ZERO)
    };
    let stranger = Stranger {
        station: StationConfig::fixed(Standard::G, 0, PhyRate::Ofdm(54)),
        frequency: 2412,
        every: Duration::from_micros(50),
        len: 1504,
        period: None,
        heard_by: Vec::new(),
    };
    let alone = saturated(Vec::new());
    let beside = saturated(vec![stranger.clone()]);
    let elsewhere = saturated(vec![Stranger {
        frequency: 2462,
        ..stranger.clone()
    }]);
    let out_of_range = saturated(vec![Stranger {
        heard_by: vec![([2; 6], Signal::clear())],
        ..stranger.clone()
    }]);
    // Now and then, so that nothing of its waits.
    let seldom = Stranger {
        every: Duration::from_millis(1),
        ..stranger
    };
    let all_the_time = saturated(vec![seldom.clone()]);
    let half_of_the_time = saturated(vec![Stranger {
        period: Some(Duration::from_millis(20)),
        ..seldom
    }]);
    let share = beside.as_secs_f64() / alone.as_secs_f64();
    assert!((1.8..2.2).contains(&share), "{share}");
    for unheard in [elsewhere, out_of_range] {
        let share = unheard.as_secs_f64() / alone.as_secs_f64();
        assert!((0.95..1.05).contains(&share), "{share}");
    }
    let taken = |time: Duration| time.as_secs_f64() - alone.as_secs_f64();
    let share = taken(half_of_the_time) / taken(all_the_time);
    assert!((0.2..0.7).contains(&share), "{share}");
}

#[test]
fn a_radio_that_is_thought_to_be_elsewhere_is_asked_where_it_is_and_reads_what_is_for_it() {
    for is_there in [true, false] {
        let mut medium = introduced(Signal::clear(), false);
        let mut sent = frame(0x08, ACCESS_POINT, interface(CARD), 7, 1000);
        sent.frequency = 2437;
        medium.handle_frame(sent, Instant::ZERO);
        let asked = medium.poll_event();
        let Some(MediumEvent::Read {
            radio,
            frequency,
            is_elsewhere,
            ..
        }) = asked
        else {
            panic!("nobody was asked: {asked:?}");
        };
        assert_eq!((radio, frequency, is_elsewhere), (CARD, 2437, true));
        if is_there {
            medium.handle_tuned(CARD, 2437, Instant::ZERO);
        }
        let (events, _) = run(&mut medium);
        assert_eq!(reads(&events).contains(&(CARD, 0, false)), is_there, "{events:?}");
        assert_eq!(done(&events)[0].2, is_there);
    }
}
