//! Both halves of two ends over a network that loses, delays, repeats and reorders datagrams.

mod ends;

use std::collections::BTreeMap;

use hawser_units::{Duration, Instant, PathId};
use hawser_wire::data::{Inner, Kind};
use hawser_wire::stream::{Ack, Frame, Outcome, Position, STREAM_LEN, StreamId, reason};
use proptest::prelude::*;

use super::admission::{ConnectRate, Reserve};
use super::receiving::{Config, Notice, Receiving};
use super::sending::{Sending, SendingNotice};
use ends::{Datagram, End, Lots, STEP, TIMEOUT, at, byte, id, joined, pass, request, small};

/// Runs two ends until both have read all of `sizes` in both directions; returns the time it took.
/// Each end is restarted in `restarts` of a thousand steps.
fn exchange(
    seed: u64,
    config: Config,
    sizes: &[u64],
    (loss, unreported): (u64, u64),
    restarts: u64,
) -> Option<Duration> {
    let mut lots = Lots(seed);
    let mut ends = [End::new(config), End::new(config)];
    let streams: Vec<StreamId> = (0..sizes.len() as u32).map(|at| id(2 * at)).collect();
    let mut now = at(0);
    for stream in &streams {
        ends[0].open(request(stream.number()), now);
    }
    let mut left = [sizes.to_vec(), sizes.to_vec()];
    let mut flying: Vec<(Instant, usize, Datagram)> = Vec::new();
    for _ in 0..60_000 {
        now += STEP;
        for from in 0..2 {
            for (index, stream) in streams.iter().enumerate() {
                if ends[from].open.contains(stream) {
                    let more = left[from][index].min(lots.below(4_000));
                    ends[from].sending.write(*stream, more);
                    left[from][index] -= more;
                    if left[from][index] == 0 {
                        ends[from].sending.finish(*stream);
                    }
                }
                ends[from].read(*stream, 1 + lots.below(6_000) as usize, now);
            }
            ends[from].settle(now);
            for datagram in ends[from].transmit(&streams, now) {
                let copies = 1 + u64::from(lots.below(20) == 0);
                let number = datagram.number;
                if lots.below(100) < loss {
                    if lots.below(100) >= unreported {
                        ends[from]
                            .sending
                            .on_missing(PathId(0), number..number + 1, |_| {});
                    }
                    continue;
                }
                for _ in 0..copies {
                    let due = now + Duration::from_millis(lots.below(60));
                    flying.push((due, 1 - from, datagram.clone()));
                }
            }
            ends[from].sending.handle_timeout(TIMEOUT, now);
            if lots.below(1_000) < restarts {
                ends[from].restart(config, now);
            }
        }
        let mut waiting = Vec::new();
        for (due, to, datagram) in flying.drain(..) {
            if due <= now {
                ends[to].receive(&datagram, now);
            } else {
                waiting.push((due, to, datagram));
            }
        }
        flying = waiting;
        let is_done = |end: &End| {
            streams.iter().zip(sizes).all(|(stream, size)| {
                end.read.get(stream).map_or(0, Vec::len) as u64 == *size && end.ended.contains_key(stream)
            }) && end
                .told
                .iter()
                .filter(|told| matches!(told, SendingNotice::Delivered(_)))
                .count()
                == streams.len()
        };
        if ends.iter().all(is_done) {
            for end in &ends {
                for stream in &streams {
                    let read = end.read.get(stream).map_or(&[][..], |read| read);
                    assert!(
                        read.iter()
                            .enumerate()
                            .all(|(at, found)| *found == byte(*stream, at as u64))
                    );
                }
                let counters = end.receiving.counters();
                assert_eq!((counters.beyond_credit, counters.contradicting), (0, 0));
            }
            return Some(now.since(at(0)));
        }
    }
    None
}

#[test]
fn a_window_in_which_every_second_packet_is_missing_is_stored_whole() {
    const EACH: usize = 1_400;
    let config = Config {
        window: Config::default().max_window,
        ..Config::default()
    };
    let mut receiving = Receiving::new(config);
    receiving.open(id(0), at(0));
    let packets = config.window / EACH as u64;
    let mut stored = 0;
    for packet in (1..packets).step_by(2) {
        let offset = packet * EACH as u64;
        let (inner, body) = datagram(id(0), offset, EACH);
        stored += u64::from(receiving.handle_bytes(&inner, &body, at(1)).is_some());
    }
    assert_eq!((stored, receiving.counters().too_scattered), (packets / 2, 0));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn all_bytes_arrive_once_and_in_order(
        seed: u64,
        sizes in proptest::collection::vec(0..60_000u64, 1..4),
        loss in 0..30u64,
        unreported in 0..40u64,
    ) {
        let faults = (loss, unreported);
        prop_assert!(exchange(seed, small(), &sizes, faults, 0).is_some(), "all arrives");
    }

    #[test]
    fn all_bytes_arrive_once_and_in_order_while_either_end_restarts(
        seed: u64,
        sizes in proptest::collection::vec(0..60_000u64, 1..4),
        loss in 0..30u64,
        restarts in 1..60u64,
    ) {
        prop_assert!(exchange(seed, small(), &sizes, (loss, 20), restarts).is_some(), "all arrives");
    }

    #[test]
    fn a_hostile_peer_makes_no_more_be_stored_than_was_granted(
        steps in proptest::collection::vec((any::<u8>(), any::<u16>(), any::<u32>(), 0..1500usize), 0..400)
    ) {
        let config = small();
        let mut receiving = Receiving::new(config);
        let mut now = at(0);
        let mut highest: BTreeMap<StreamId, u64> = BTreeMap::new();
        for (kind, flow, number, len) in steps {
            now += STEP;
            let stream = id(u32::from(flow % 24));
            match kind % 8 {
                0 => receiving.handle_frame(&Frame::Open(request(stream.number())), now),
                1 => receiving.handle_frame(&Frame::Reset { id: stream, code: 1, sent: u64::from(number) }, now),
                2 => receiving.handle_frame(&Frame::Blocked { id: stream, credit: u64::from(number) }, now),
                3 => receiving.stop(stream, 3, now),
                4 => receiving.consume(stream, u64::from(number % 3_000), now),
                _ => {
                    let offset = u64::from(number % 30_000);
                    let position = Position::new(stream, offset, number % 97 == 0);
                    let mut head = [0; STREAM_LEN];
                    position.emit(&mut head);
                    let body: Vec<u8> = head.into_iter().chain((0..len).map(|_| 0)).collect();
                    let (flow, sequence) = position.fields();
                    let inner = Inner { flow, sequence, ..Inner::plain(Kind::Stream) };
                    if let Some(accepted) = receiving.handle_bytes(&inner, &body, now) {
                        prop_assert_eq!(accepted.skip + accepted.len, body.len());
                        let end = accepted.offset + accepted.len as u64;
                        let known = highest.entry(stream).or_default();
                        *known = (*known).max(end);
                        let readable = receiving.readable(stream).unwrap_or(0);
                        prop_assert!(end <= readable + config.max_window * 2);
                    }
                }
            }
            receiving.flush(now);
            while receiving.poll_event().is_some() {}
            while receiving.poll_notice().is_some() {}
            prop_assert!(receiving.len() <= config.max_streams);
            prop_assert!(receiving.stored() <= config.capacity, "{}", receiving.stored());
        }
    }
}

#[test]
fn a_request_that_is_lost_is_sent_again() {
    let (mut near, mut far) = (End::new(small()), End::new(small()));
    near.open(request(0), at(0));
    assert_eq!(near.transmit(&[], at(0)).len(), 1, "lost, and no report says so");
    near.sending.handle_timeout(TIMEOUT, at(100));
    assert!(near.transmit(&[], at(100)).is_empty());
    near.sending.handle_timeout(TIMEOUT, at(250));
    pass(&mut near, &mut far, at(250));
    assert_eq!(far.notices, [Notice::Open(request(0))]);
    // The answer is lost, with a report.
    let answer = far.transmit(&[], at(251));
    let number = answer.last().expect("an answer").number;
    far.sending.on_missing(PathId(0), 1..number + 1, |_| {});
    pass(&mut far, &mut near, at(300));
    assert_eq!(near.told, [SendingNotice::Answered(id(0), Outcome::Connected)]);
}

#[test]
fn an_answer_that_is_lost_is_sent_again_although_bytes_behind_it_have_arrived() {
    let (mut near, mut far) = (End::new(small()), End::new(small()));
    near.open(request(0), at(0));
    pass(&mut near, &mut far, at(0));
    // The server writes first. The answer is lost, and no report says so.
    far.sending.write(id(0), 500);
    let (answer, bytes): (Vec<_>, Vec<_>) = far
        .transmit(&[id(0)], at(10))
        .into_iter()
        .partition(|datagram| datagram.inner.kind == Kind::StreamControl);
    assert!(!answer.is_empty() && !bytes.is_empty());
    for datagram in &bytes {
        near.receive(datagram, at(20));
    }
    near.settle(at(40));
    for step in 2..12 {
        let now = at(step * 50);
        pass(&mut near, &mut far, now);
        far.sending.handle_timeout(TIMEOUT, now);
        pass(&mut far, &mut near, now);
    }
    assert_eq!(near.told, [SendingNotice::Answered(id(0), Outcome::Connected)]);
    near.settle(at(700));
    pass(&mut near, &mut far, at(700));
    assert_eq!(
        far.sending.stored(id(0)),
        0,
        "the bytes are acknowledged after the answer"
    );
}

#[test]
fn requests_may_overtake_each_other_and_are_opened_once() {
    let mut receiving = Receiving::new(small());
    for number in [4, 0, 4, 2, 0] {
        receiving.handle_frame(&Frame::Open(request(number)), at(0));
    }
    let opened: Vec<u32> = std::iter::from_fn(|| receiving.poll_notice())
        .filter_map(|notice| match notice {
            Notice::Open(open) => Some(open.id.number()),
            Notice::Readable(_) | Notice::Ended(_) | Notice::Reset(..) => None,
        })
        .collect();
    assert_eq!(opened, [4, 0, 2]);
}

/// The sending half of an open stream that has written 100 packets of 100 bytes.
fn writing() -> Sending {
    let mut sending = Sending::default();
    sending.open(request(0), at(0));
    for frame in [
        Frame::Answer {
            id: id(0),
            outcome: Outcome::Connected,
            credit: 100_000,
        },
        Frame::Session(100_000),
    ] {
        sending.handle_event(super::Event::Heard(frame), at(0));
    }
    sending.write(id(0), 10_000);
    sending
}

/// Sends the next 100 bytes as one packet of a path, which delivers it at `arrival`.
fn send(sending: &mut Sending, path: u16, number: u64, arrival: u64) -> std::ops::Range<u64> {
    let chunk = sending.next(id(0), 100).expect("there is more");
    let times = (at(arrival), at(0));
    sending.on_sent(&chunk, (PathId(path), number, 1), 100, times);
    chunk.range
}

#[test]
fn bytes_that_a_path_has_not_delivered_in_time_are_sent_again_where_others_wait_for_them() {
    let mut sending = writing();
    assert_eq!(send(&mut sending, 0, 0, 100), 0..100);
    assert_eq!(send(&mut sending, 1, 0, 10), 100..200);
    assert_eq!(send(&mut sending, 0, 1, 110), 200..300);
    let mut ack = Ack::new(id(0), 0, 100_000, false);
    ack.push(100, 200);
    sending.handle_event(super::Event::Heard(Frame::Ack(ack)), at(20));
    sending.handle_overdue(PathId(0), at(99));
    assert_eq!(send(&mut sending, 1, 1, 130), 300..400, "nothing is overdue");
    sending.handle_overdue(PathId(1), at(200));
    sending.handle_overdue(PathId(0), at(200));
    assert_eq!(
        send(&mut sending, 1, 2, 230),
        0..100,
        "those that block the reader"
    );
    assert_eq!(send(&mut sending, 1, 3, 230), 400..500, "and no others");
    sending.handle_overdue(PathId(0), at(300));
    // A report that comes late repeats nothing of them.
    sending.on_missing(PathId(0), 0..1, |_| {});
    assert_eq!(send(&mut sending, 1, 4, 240), 500..600, "once");
    sending.on_missing(PathId(0), 1..2, |_| {});
    assert_eq!(send(&mut sending, 1, 5, 240), 200..300, "what is lost goes again");
}

/// Answers that a receiving half has for the peer.
fn answers(receiving: &mut Receiving) -> Vec<(u32, Outcome)> {
    std::iter::from_fn(|| receiving.poll_event())
        .filter_map(|event| match event {
            super::Event::Send(Frame::Answer { id, outcome, .. }) => Some((id.number(), outcome)),
            super::Event::Send(_) | super::Event::Heard(_) => None,
        })
        .collect()
}

#[test]
fn connections_that_come_too_fast_are_refused_until_the_bucket_fills() {
    let mut receiving = Receiving::new(Config {
        connects: Some(ConnectRate {
            per_second: 2,
            burst: 3,
        }),
        ..small()
    });
    for number in 0..5 {
        receiving.handle_frame(&Frame::Open(request(2 * number)), at(0));
    }
    assert_eq!((receiving.len(), receiving.counters().too_fast), (3, 2));
    assert_eq!(
        answers(&mut receiving),
        [(6, Outcome::Exhausted), (8, Outcome::Exhausted)]
    );
    receiving.handle_frame(&Frame::Open(request(6)), at(500));
    receiving.handle_frame(&Frame::Open(request(8)), at(500));
    assert_eq!((receiving.len(), receiving.counters().too_fast), (4, 3));
}

#[test]
fn a_session_for_which_the_hub_has_no_memory_is_refused_until_another_ends() {
    let config = small();
    let reserve = Reserve::new(2 * config.first_capacity);
    let mut sessions = [0; 3].map(|_| Receiving::with_reserve(config, reserve.clone()));
    for session in &mut sessions {
        session.handle_frame(&Frame::Open(request(0)), at(0));
    }
    assert_eq!(sessions.each_ref().map(Receiving::len), [1, 1, 0]);
    assert_eq!(answers(&mut sessions[2]), [(0, Outcome::Exhausted)]);
    assert_eq!(sessions[2].counters().no_memory, 1);
    assert_eq!(reserve.free(), 0);
    // Another stream of the same session shares what it has.
    sessions[0].handle_frame(&Frame::Open(request(2)), at(1));
    assert_eq!(sessions[0].len(), 2);
    sessions[0].forget(id(0));
    assert_eq!(reserve.free(), 0);
    sessions[0].forget(id(2));
    sessions[2].handle_frame(&Frame::Open(request(2)), at(2));
    assert_eq!(sessions[2].len(), 1);
    drop(sessions);
    assert_eq!(reserve.free(), 2 * config.first_capacity);
}

/// Bytes of a stream as a datagram.
fn datagram(stream: StreamId, offset: u64, len: usize) -> (Inner, Vec<u8>) {
    let position = Position::new(stream, offset, false);
    let mut head = [0; STREAM_LEN];
    position.emit(&mut head);
    let body = head.into_iter().chain((0..len).map(|_| 0)).collect();
    let (flow, sequence) = position.fields();
    let inner = Inner {
        flow,
        sequence,
        ..Inner::plain(Kind::Stream)
    };
    (inner, body)
}

/// Bytes that a peer may send at last, whose stream always asks for more and is read at once.
fn granted(config: Config, reserve: u64) -> u64 {
    let mut receiving = Receiving::with_reserve(config, Reserve::new(reserve));
    receiving.handle_frame(&Frame::Open(request(0)), at(0));
    let (mut credit, mut of_stream, mut sent) = (0, config.window, 0);
    for round in (10..300).step_by(10) {
        while let Some(event) = receiving.poll_event() {
            match event {
                super::Event::Send(Frame::Session(granted)) => credit = granted,
                super::Event::Send(Frame::Ack(ack)) => of_stream = ack.credit,
                super::Event::Send(_) | super::Event::Heard(_) => {}
            }
        }
        if round == 290 {
            break;
        }
        while sent < credit.min(of_stream) {
            let len = (credit.min(of_stream) - sent).min(1_000);
            let (inner, body) = datagram(id(0), sent, len as usize);
            let accepted = receiving.handle_bytes(&inner, &body, at(round));
            assert!(accepted.is_some(), "within credit");
            receiving.consume(id(0), len, at(round));
            sent += len;
        }
        let blocked = Frame::Blocked {
            id: id(0),
            credit: of_stream,
        };
        receiving.handle_frame(&blocked, at(round));
        receiving.flush(at(round));
    }
    credit - sent
}

#[test]
fn the_window_of_a_session_grows_with_its_streams_while_the_reserve_has_room() {
    let config = Config {
        first_capacity: 10_000,
        capacity: 80_000,
        window: 5_000,
        max_window: 40_000,
        ..small()
    };
    let near = |found: u64, expected: u64| {
        let least = expected / 4;
        assert!((least..=expected).contains(&found), "{found} of {expected}");
    };
    // Credit is announced by quarters, and the stream has used some of it.
    near(granted(config, 1_000_000), 80_000);
    near(granted(config, 45_000), 40_000);
    near(granted(config, 10_000), 10_000);
    assert!(granted(config, 1_000_000) > granted(config, 45_000));
}

#[test]
fn a_stream_beyond_the_bound_is_refused() {
    let mut receiving = Receiving::new(Config {
        max_streams: 1,
        ..small()
    });
    receiving.handle_frame(&Frame::Open(request(0)), at(0));
    receiving.handle_frame(&Frame::Open(request(2)), at(0));
    assert_eq!(receiving.len(), 1);
    let events: Vec<_> = std::iter::from_fn(|| receiving.poll_event()).collect();
    let refusal = Frame::Answer {
        id: id(2),
        outcome: Outcome::Exhausted,
        credit: 0,
    };
    assert!(events.contains(&super::Event::Send(refusal)), "{events:?}");
}

#[test]
fn a_sender_waits_for_credit_and_a_reader_that_stops_gets_no_larger_window() {
    let (mut near, mut far) = joined();
    near.sending.write(id(0), 50_000);
    for step in 0..20 {
        pass(&mut near, &mut far, at(10 + 10 * step));
        pass(&mut far, &mut near, at(15 + 10 * step));
    }
    assert_eq!(near.sending.sent(id(0)), 4_000, "the first window");
    assert_eq!(far.receiving.readable(id(0)), Some(4_000));
    for step in 0..60 {
        far.read(id(0), 10_000, at(300 + 10 * step));
        pass(&mut near, &mut far, at(300 + 10 * step));
        pass(&mut far, &mut near, at(305 + 10 * step));
        near.sending.handle_timeout(TIMEOUT, at(309 + 10 * step));
    }
    assert_eq!(far.read.get(&id(0)).map(Vec::len), Some(50_000));
}

#[test]
fn a_byte_whose_loss_nobody_reports_is_sent_again_ever_less_often() {
    let (mut near, _) = joined();
    near.sending.write(id(0), 100);
    assert_eq!(near.transmit(&[id(0)], at(10)).len(), 1);
    let mut sent_at = Vec::new();
    for millis in (10..3_300).step_by(5) {
        near.sending.handle_timeout(TIMEOUT, at(millis));
        if !near.transmit(&[id(0)], at(millis)).is_empty() {
            sent_at.push(millis);
        }
    }
    let waits: Vec<u64> = sent_at.windows(2).map(|pair| pair[1] - pair[0]).collect();
    assert_eq!(waits.len(), 3, "{sent_at:?}");
    assert!(
        waits.windows(2).all(|pair| pair[1] > pair[0] * 3 / 2),
        "{waits:?}"
    );
}

#[test]
fn gaps_that_no_report_names_are_all_sent_again_after_one_stall() {
    let (mut near, mut far) = joined();
    near.sending.write(id(0), 4_000);
    near.settle(at(10));
    let sent = near.transmit(&[id(0)], at(10));
    // More gaps than an acknowledgement has ranges.
    for datagram in sent.iter().skip(1).step_by(2) {
        far.receive(datagram, at(11));
    }
    pass(&mut far, &mut near, at(20));
    let stalled = (30..2_000).step_by(10).find(|millis| {
        near.sending.handle_timeout(TIMEOUT, at(*millis));
        pass(&mut near, &mut far, at(*millis));
        far.receiving.readable(id(0)) > Some(0)
    });
    // No timer is needed.
    let mut now = stalled.expect("it stalls once");
    for _ in 0..8 {
        now += 10;
        pass(&mut far, &mut near, at(now));
        pass(&mut near, &mut far, at(now));
    }
    let read = far.receiving.readable(id(0));
    assert_eq!(read, Some(4_000), "all gaps of the first burst, and the rest");
}

#[test]
fn a_half_of_a_stream_may_end_before_the_other() {
    let (mut near, mut far) = joined();
    near.sending.finish(id(0));
    pass(&mut near, &mut far, at(10));
    assert_eq!(far.ended.get(&id(0)), Some(&true));
    pass(&mut far, &mut near, at(20));
    assert!(near.told.contains(&SendingNotice::Delivered(id(0))));
    far.sending.write(id(0), 500);
    pass(&mut far, &mut near, at(30));
    near.read(id(0), 500, at(31));
    assert_eq!(near.read.get(&id(0)).map(Vec::len), Some(500));
}

#[test]
fn a_reset_ends_a_stream_with_bytes_in_flight_and_gives_its_credit_back() {
    let (mut near, mut far) = joined();
    near.sending.write(id(0), 3_000);
    assert!(!near.transmit(&[id(0)], at(10)).is_empty(), "lost");
    near.sending.reset(id(0), 7, at(20));
    pass(&mut near, &mut far, at(20));
    assert!(far.notices.contains(&Notice::Reset(id(0), 7)));
    assert_eq!(far.receiving.stored(), 0);
    pass(&mut far, &mut near, at(30));
    assert!(
        near.told.contains(&SendingNotice::Delivered(id(0))),
        "the peer knows of it"
    );
    for millis in (30..2_000).step_by(50) {
        near.sending.handle_timeout(TIMEOUT, at(millis));
    }
    assert!(
        near.transmit(&[id(0)], at(2_000)).is_empty(),
        "nothing is sent again"
    );
}

#[test]
fn a_reader_that_wants_no_more_stops_the_sender() {
    let (mut near, mut far) = joined();
    near.sending.write(id(0), 9_000);
    pass(&mut near, &mut far, at(10));
    far.receiving.stop(id(0), 5, at(11));
    pass(&mut far, &mut near, at(12));
    assert!(near.told.contains(&SendingNotice::Stopped(id(0), 5)));
    pass(&mut near, &mut far, at(13));
    assert_eq!(far.receiving.stored(), 0);
}

#[test]
fn a_process_that_does_not_know_a_stream_ends_it() {
    let (mut near, _) = joined();
    let mut far = End::new(small());
    near.sending.write(id(0), 3_000);
    pass(&mut near, &mut far, at(10));
    pass(&mut far, &mut near, at(11));
    assert!(
        near.told
            .contains(&SendingNotice::Stopped(id(0), reason::UNKNOWN))
    );
    assert!(near.notices.contains(&Notice::Reset(id(0), reason::UNKNOWN)));
    // Both say so for good, and no more.
    pass(&mut near, &mut far, at(20));
    pass(&mut far, &mut near, at(21));
    assert!(near.told.contains(&SendingNotice::Delivered(id(0))));
    for millis in [30, 40] {
        pass(&mut near, &mut far, at(millis));
        pass(&mut far, &mut near, at(millis));
    }
    assert_eq!(pass(&mut near, &mut far, at(50)), 0);
}

#[test]
fn a_stream_that_is_forgotten_gives_its_credit_back() {
    let (mut near, mut far) = joined();
    near.sending.write(id(0), 2_400);
    pass(&mut near, &mut far, at(10));
    assert_eq!(far.receiving.stored(), 2_400);
    far.receiving.forget(id(0));
    assert_eq!((far.receiving.stored(), far.receiving.len()), (0, 0));
    near.sending.finish(id(0));
    pass(&mut near, &mut far, at(20));
    pass(&mut far, &mut near, at(21));
    assert!(
        near.told.contains(&SendingNotice::Delivered(id(0))),
        "late bytes are acknowledged"
    );
}

#[test]
fn bytes_of_a_closed_stream_are_acknowledged_whole() {
    let (mut near, mut far) = joined();
    near.sending.write(id(0), 50);
    near.sending.finish(id(0));
    near.settle(at(10));
    let datagrams = near.transmit(&[id(0)], at(10));
    for datagram in &datagrams {
        far.receive(datagram, at(11));
    }
    far.read(id(0), 50, at(12));
    far.settle(at(20));
    let lost = far.transmit(&[], at(21));
    assert!(!lost.is_empty(), "the acknowledgement, which is lost");
    assert!(far.receiving.is_empty(), "closed");
    far.receive(datagrams.last().expect("the bytes"), at(400));
    pass(&mut far, &mut near, at(400));
    assert!(near.told.contains(&SendingNotice::Delivered(id(0))));
}

#[test]
fn a_reset_and_the_end_of_a_half_keep_their_meaning_over_restarts() {
    let (mut near, mut far) = joined();
    near.sending.write(id(0), 500);
    near.sending.finish(id(0));
    near.restart(small(), at(2));
    pass(&mut near, &mut far, at(3));
    far.restart(small(), at(4));
    assert_eq!(far.ended.get(&id(0)), Some(&true));
    far.read(id(0), 500, at(4));
    pass(&mut far, &mut near, at(5));
    assert!(near.told.contains(&SendingNotice::Delivered(id(0))));
    // The other direction continues, and ends by a reset, which is lost with the process.
    far.sending.write(id(0), 300);
    pass(&mut far, &mut near, at(6));
    near.restart(small(), at(7));
    near.read(id(0), 100, at(7));
    far.sending.write(id(0), 300);
    far.sending.reset(id(0), reason::RESET, at(8));
    assert!(!far.transmit(&[id(0)], at(8)).is_empty(), "lost");
    far.restart(small(), at(9));
    pass(&mut far, &mut near, at(10));
    assert!(near.notices.contains(&Notice::Reset(id(0), reason::RESET)));
    // So is the acknowledgement of it: the reset is repeated until one comes.
    near.restart(small(), at(20));
    far.sending.handle_timeout(TIMEOUT, at(300));
    pass(&mut far, &mut near, at(301));
    pass(&mut near, &mut far, at(302));
    assert!(far.told.contains(&SendingNotice::Delivered(id(0))));
}

#[test]
fn a_damaged_checkpoint_of_streams_is_refused() {
    let (mut near, mut far) = joined();
    near.sending.write(id(0), 1_000);
    pass(&mut near, &mut far, at(2));
    let address = request(0).source;
    let sound = near.sending.checkpoint(|_| Some((address, address)));
    let is_sound = |saved: &crate::checkpoint::SendingStreams| Sending::restore(saved, at(3)).is_ok();
    assert!(is_sound(&sound));
    let damage: [fn(&mut crate::checkpoint::SendingStreams); 7] = [
        |saved| saved.all.push(saved.all[0].clone()),
        |saved| saved.all[0].id = u32::MAX,
        |saved| saved.all[0].answer = Some((99, 0)),
        |saved| saved.all[0].bytes.highest = 1_001,
        |saved| saved.all[0].bytes.acknowledged = 1_001,
        |saved| saved.all[0].bytes.unsent = vec![(500, 1_001)],
        |saved| saved.session_credit = u64::MAX,
    ];
    for (at, damage) in damage.into_iter().enumerate() {
        let mut damaged = sound.clone();
        damage(&mut damaged);
        assert!(!is_sound(&damaged), "{at}");
    }
    let sound = far.receiving.checkpoint();
    let is_sound = |saved: &crate::checkpoint::ReceivingStreams| {
        Receiving::restore(small(), Reserve::unbounded(), saved, at(3)).is_ok()
    };
    assert!(is_sound(&sound));
    let damage: [fn(&mut crate::checkpoint::ReceivingStreams); 7] = [
        |saved| saved.all.push(saved.all[0].clone()),
        |saved| saved.all[0].id = u32::MAX,
        |saved| saved.all[0].next = saved.all[0].highest + 1,
        |saved| saved.all[0].beyond = vec![(0, 10)],
        |saved| saved.all[0].end = Some(0),
        |saved| saved.opened = [1, 1],
        |saved| saved.consumed = saved.received + 1,
    ];
    for (at, damage) in damage.into_iter().enumerate() {
        let mut damaged = sound.clone();
        damage(&mut damaged);
        assert!(!is_sound(&damaged), "{at}");
    }
}
