use hawser_units::Sequence;
use hawser_wire::data::FEEDBACK_LEN;

use super::*;

const MS: Duration = Duration::from_millis(1);
const BEGIN: Instant = Instant::from_nanos(1_000_000_000);
const PATH: PathId = PathId(3);
const LEN: usize = 1000;

fn ingress() -> Ingress<u32> {
    let mut ingress = Ingress::default();
    ingress.open_path(PATH, BEGIN);
    ingress
}

fn inner(kind: Kind, packet_number: u64, unordered: bool) -> Inner {
    Inner {
        unordered,
        sequence: Sequence(packet_number.saturating_sub(1) as u32),
        ..Inner::plain(kind)
    }
}

fn take(
    ingress: &mut Ingress<u32>,
    packet_number: u64,
    inner: Inner,
    body: &[u8],
    now: Instant,
) -> (Freshness, Option<u32>, Vec<u32>) {
    take_by(PATH, ingress, packet_number, inner, body, now)
}

fn take_by(
    path: PathId,
    ingress: &mut Ingress<u32>,
    packet_number: u64,
    inner: Inner,
    body: &[u8],
    now: Instant,
) -> (Freshness, Option<u32>, Vec<u32>) {
    let packet = Authentic {
        outer: Outer {
            epoch: 0,
            index: 77,
            packet_number,
        },
        inner,
        body,
        udp_len: LEN,
        ecn: Ecn::NotEct,
        item: packet_number as u32,
    };
    let mut out = Vec::new();
    let (freshness, back) = ingress.handle_packet(path, packet, now, &mut out);
    (freshness, back, out)
}

fn packets(ingress: &mut Ingress<u32>, counters: std::ops::RangeInclusive<u64>, now: Instant) {
    for packet_number in counters {
        let (freshness, back, out) = take(
            ingress,
            packet_number,
            inner(Kind::Packet, packet_number, false),
            &[],
            now,
        );
        assert_eq!(
            (freshness, back, out),
            (Freshness::Newest, None, vec![packet_number as u32])
        );
    }
}

fn flush(ingress: &mut Ingress<u32>, now: Instant) -> Vec<Event> {
    ingress.flush(now, now, &mut Vec::new());
    std::iter::from_fn(|| ingress.poll_event()).collect()
}

fn report_due(ingress: &Ingress<u32>) -> Option<Duration> {
    let due = ingress.receivers.iter().find_map(Receiver::report_due)?;
    Some(due.since(BEGIN))
}

#[test]
fn a_lone_packet_waits_for_its_report() {
    let mut ingress = ingress();
    assert_eq!(report_due(&ingress), None);
    packets(&mut ingress, 1..=1, BEGIN);
    assert_eq!(report_due(&ingress), Some(LONE_REPORT_DELAY));
    assert_eq!(ingress.poll_timeout(), Some(BEGIN + LONE_REPORT_DELAY));
    assert_eq!(flush(&mut ingress, BEGIN + 24 * MS), []);
    let report = Feedback {
        path: PATH,
        highest: 1,
        packets: 1,
        bytes: LEN as u64,
        received_us: BEGIN.as_micros_wrapping(),
        hold_us: 25_000,
        delay_us: BEGIN.as_micros_wrapping(),
        takes_parity: true,
        takes_fragments: true,
        takes_bundles: true,
        marks: Some(Marks::default()),
        ..Feedback::default()
    };
    assert_eq!(flush(&mut ingress, BEGIN + 25 * MS), [Event::Report(report)]);
    assert_eq!(report_due(&ingress), None, "once");
}

#[test]
fn a_few_packets_are_reported_at_intervals() {
    let mut ingress = ingress();
    let first = BEGIN + 100 * MS;
    packets(&mut ingress, 1..=2, first);
    assert_eq!(flush(&mut ingress, first).len(), 1, "the last report is long ago");
    packets(&mut ingress, 3..=5, first + MS / 2);
    assert_eq!(flush(&mut ingress, first + MS / 2), []);
    assert_eq!(
        report_due(&ingress),
        Some(101 * MS),
        "a young path is reported on soon"
    );
    assert_eq!(flush(&mut ingress, first + MS).len(), 1);
    let young = u64::from(YOUNG);
    let now = first + 10 * MS;
    packets(&mut ingress, 6..=young, now);
    assert_eq!(flush(&mut ingress, now).len(), 1);
    packets(&mut ingress, young + 1..=young + 2, now + MS);
    assert_eq!(flush(&mut ingress, now + MS), []);
    assert_eq!(report_due(&ingress), Some(115 * MS));
    assert_eq!(flush(&mut ingress, now + 5 * MS).len(), 1);
}

#[test]
fn many_packets_are_reported_with_their_batch() {
    let mut ingress = ingress();
    let count = u64::from(REPORT_PACKETS);
    packets(&mut ingress, 1..=count, BEGIN);
    let events = flush(&mut ingress, BEGIN);
    let [Event::Report(report)] = events[..] else {
        panic!("{events:?}")
    };
    assert_eq!(
        (report.highest, report.packets, report.bytes),
        (count, REPORT_PACKETS, count * LEN as u64)
    );
    assert_eq!(report.hold_us, 0);
}

#[test]
fn a_report_is_cumulative_and_about_the_newest() {
    let mut ingress = ingress();
    packets(&mut ingress, 1..=1, BEGIN);
    take(&mut ingress, 5, inner(Kind::Packet, 5, true), &[], BEGIN + MS)
        .2
        .clear();
    let late = take(&mut ingress, 3, inner(Kind::Packet, 3, true), &[], BEGIN + 2 * MS);
    assert_eq!((late.0, late.1), (Freshness::Late, None));
    let events = flush(&mut ingress, BEGIN + 10 * MS);
    let [Event::Report(report)] = events[..] else {
        panic!("{events:?}")
    };
    assert_eq!((report.highest, report.packets, report.hold_us), (5, 3, 8_000));
    assert_eq!(report.received_us, (BEGIN + 2 * MS).as_micros_wrapping());
}

#[test]
fn reports_and_answers_are_not_reported() {
    let mut ingress = ingress();
    let report = Feedback {
        path: PATH,
        highest: 9,
        ..Feedback::default()
    };
    let mut body = [0; FEEDBACK_LEN];
    report.emit(&mut body);
    let taken = take(&mut ingress, 1, inner(Kind::Feedback, 0, false), &body, BEGIN);
    assert_eq!(taken, (Freshness::Newest, Some(1), vec![]));
    take(
        &mut ingress,
        2,
        inner(Kind::ProbeReply, 0, false),
        &6_u64.to_be_bytes(),
        BEGIN,
    );
    assert_eq!(report_due(&ingress), None);
    let events = flush(&mut ingress, BEGIN);
    assert_eq!(
        events,
        [Event::Feedback(PATH, report), Event::ProbeReply(PATH, 6)]
    );
    take(
        &mut ingress,
        3,
        inner(Kind::Probe, 0, false),
        &[0, 0, 0, 0, 0, 0, 0, 8, 0, 0],
        BEGIN,
    );
    assert_eq!(flush(&mut ingress, BEGIN), [Event::Probe(PATH, 8)]);
    assert!(report_due(&ingress).is_some());
}

#[test]
fn a_body_cut_short_says_nothing() {
    let mut ingress = ingress();
    for (packet_number, kind) in [(1, Kind::Feedback), (2, Kind::Probe), (3, Kind::ProbeReply)] {
        let taken = take(&mut ingress, packet_number, inner(kind, 0, false), &[1; 7], BEGIN);
        assert_eq!(taken.1, Some(packet_number as u32), "the buffer is given back");
    }
    assert_eq!(ingress.poll_event(), None);
}

#[test]
fn a_replayed_packet_changes_nothing() {
    let mut ingress = ingress();
    packets(&mut ingress, 1..=1, BEGIN);
    assert!(!ingress.accepts(PATH, 1) && ingress.accepts(PATH, 2));
    let again = take(&mut ingress, 1, inner(Kind::Packet, 1, false), &[], BEGIN);
    assert_eq!(again, (Freshness::Replayed, Some(1), vec![]));
    assert_eq!(ingress.received(PATH), Some((1, LEN as u64)));
}

#[test]
fn a_closed_path_takes_and_reports_nothing() {
    let mut ingress = ingress();
    let count = u64::from(REPORT_PACKETS);
    packets(&mut ingress, 1..=count, BEGIN);
    ingress.close_path(PATH);
    assert!(!ingress.accepts(PATH, count + 1));
    let taken = take(
        &mut ingress,
        count + 1,
        inner(Kind::Packet, count + 1, false),
        &[],
        BEGIN,
    );
    assert_eq!(taken.1, Some(count as u32 + 1));
    assert_eq!(flush(&mut ingress, BEGIN), []);
}

#[test]
fn an_unordered_flow_is_delivered_as_it_comes_and_an_ordered_one_in_order() {
    let mut ingress = ingress();
    ingress.open_path(PathId(4), BEGIN);
    packets(&mut ingress, 1..=1, BEGIN);
    let (_, back, out) = take(&mut ingress, 2, inner(Kind::Packet, 9, true), &[], BEGIN);
    assert_eq!((back, out), (None, vec![2]));
    let (_, back, out) = take(&mut ingress, 3, inner(Kind::Packet, 3, false), &[], BEGIN);
    assert_eq!((back, out), (None, vec![]), "waits for its predecessor");
    let (_, back, out) = take(&mut ingress, 4, inner(Kind::Packet, 2, false), &[], BEGIN);
    assert_eq!((back, out), (None, vec![4, 3]));
}

#[test]
fn a_packet_that_was_jumped_over_is_named_though_the_path_brings_nothing_more() {
    let mut ingress = ingress();
    let mut arrive = |packet_number: u64, sent: u64, now: u64| {
        let inner = Inner {
            sent_us: (sent * 1_000) as u32,
            backed: true,
            ..inner(Kind::Packet, packet_number, false)
        };
        let now = BEGIN + MS * now as u32;
        let _ = take(&mut ingress, packet_number, inner, &[], now);
        flush(&mut ingress, now)
    };
    // A packet each millisecond; the tenth comes ten later than its place: so much does this path
    // reorder.
    for packet_number in (1..=20).filter(|packet_number| *packet_number != 10) {
        arrive(packet_number, packet_number, packet_number + 5);
    }
    arrive(10, 10, 25);
    arrive(21, 21, 26);
    arrive(23, 23, 28);
    let named = |events: &[Event]| {
        events
            .iter()
            .any(|event| matches!(event, Event::Report(report) if report.missing.ranges(23).next().is_some()))
    };
    let mut now = BEGIN + 28 * MS;
    let mut is_named = false;
    while let Some(due) = ingress.poll_timeout().filter(|due| *due < BEGIN + 100 * MS) {
        now = due.max(now);
        let events = flush(&mut ingress, now);
        is_named |= named(&events);
        if is_named {
            break;
        }
    }
    assert!(is_named, "not named by {:?}", now.since(BEGIN));
    assert!(now > BEGIN + 36 * MS, "too early: {:?}", now.since(BEGIN));
}

/// Uses two paths, of which the first delivers nothing after 60 ms. Returns the times since then at
/// which its reports are sent by the other path.
fn told_of_silence(is_waited_for: bool) -> Vec<Duration> {
    let mut ingress = ingress();
    let other = PathId(4);
    ingress.open_path(other, BEGIN);
    let quiet_from = BEGIN + 60 * MS;
    let mut told = Vec::new();
    for ms in 1..=900 {
        let now = BEGIN + MS * ms;
        let mut arrive = |path, packet_number: u64, place: u64| {
            let inner = Inner {
                sent_us: ms * 1_000,
                class: Class::Bulk,
                ..inner(Kind::Packet, place, false)
            };
            let _ = take_by(path, &mut ingress, packet_number, inner, &[], now);
        };
        if now <= quiet_from {
            arrive(PATH, u64::from(ms), u64::from(ms) * 2 - 1);
        }
        let place = if is_waited_for {
            u64::from(ms) * 2
        } else {
            (u64::from(ms) * 2).min(120 + u64::from(ms.saturating_sub(60)))
        };
        arrive(other, u64::from(ms), place);
        for event in flush(&mut ingress, now) {
            if let Event::Silence(report) = event {
                assert_eq!((report.path, report.highest), (PATH, 60));
                assert_eq!(
                    Duration::from_micros(u64::from(report.hold_us)),
                    now.since(quiet_from)
                );
                told.push(now.since(quiet_from));
            }
        }
    }
    told
}

#[test]
fn a_silent_path_is_reported_on_by_another_while_packets_wait_for_it() {
    let told = told_of_silence(true);
    let [first, second, .., last] = told[..] else {
        panic!("{told:?}")
    };
    assert!(first >= 20 * MS && first < 30 * MS, "{first:?}");
    assert!(second - first >= SILENCE_INTERVAL, "{told:?}");
    assert!(last <= SILENCE_FOR, "{last:?}");
    assert_eq!(told_of_silence(false), [], "nothing waits");
}
