use hawser_units::{Duration, Instant, PathId};
use hawser_wire::inner::{self, protocol, tcp_flag};
use hawser_wire::offload::{Offload, Segmenter};
use hawser_wire::stream::{Open, StreamId};

use super::retransmission_buffer::Parcel;
use super::*;
use crate::flow::Run;
use crate::path;
use crate::scheduler::{Choice, Demand, PathView, Scheduler};

/// An open path whose first probes are on their way.
pub(super) fn client(start: Instant) -> Egress<u32> {
    client_over(1500, start)
}

/// The same over a device with this MTU.
fn client_over(mtu: u16, start: Instant) -> Egress<u32> {
    let mut egress = Egress::new(1, start);
    let config = path::Config {
        id: PathId(0),
        probing: path::Probing::Eager,
        cap: None,
        mtu,
        overhead: 68,
    };
    egress.open_path(config, true, start);
    assert!(probes(&mut egress, start) > 0);
    egress
}

fn probes(egress: &mut Egress<u32>, at: Instant) -> usize {
    egress.handle_timeout(at);
    let sent: Vec<_> = std::iter::from_fn(|| egress.poll_transmit(at)).collect();
    sent.iter()
        .filter(|transmit| matches!(transmit.body, Body::Probe(_)))
        .count()
}

/// A TCP segment of one flow.
pub(super) fn segment(flags: u8, payload: usize) -> Vec<u8> {
    let mut packet = vec![0; 40 + payload];
    let len = packet.len() as u16;
    packet[0] = 0x45;
    packet[2..4].copy_from_slice(&len.to_be_bytes());
    packet[9] = protocol::TCP;
    packet[32] = 5 << 4;
    packet[33] = flags;
    packet
}

#[test]
fn a_bare_acknowledgement_has_no_place_in_its_flow() {
    let start = Instant::from_nanos(1_000_000_000);
    let now = start + Duration::from_millis(150);
    let mut egress = active(start, now);
    let flags = [
        tcp_flag::ACK,
        tcp_flag::ACK,
        tcp_flag::ACK,
        tcp_flag::ACK | tcp_flag::FIN,
    ];
    for (buffer, (flags, payload)) in flags.into_iter().zip([10, 0, 10, 0]).enumerate() {
        let offload = Offload::default();
        egress
            .enqueue(&mut segment(flags, payload), offload, buffer as u32, now)
            .expect("there is room");
    }
    let sent: Vec<_> = std::iter::from_fn(|| egress.poll_transmit(now))
        .filter_map(|transmit| match transmit.body {
            Body::Packets {
                unordered, sequence, ..
            } => Some((unordered, sequence.0)),
            Body::Stream { .. }
            | Body::StreamFrames
            | Body::Bundle { .. }
            | Body::Report(_)
            | Body::Probe(_)
            | Body::Reply(_)
            | Body::Parity { .. } => None,
        })
        .collect();
    let [(false, first), (true, _), (false, second), (false, third)] = sent[..] else {
        panic!("{sent:?}")
    };
    assert_eq!((second, third), (first + 1, first + 2));
}

/// An open path that has answered its first probe now, and no more.
pub(super) fn active(start: Instant, now: Instant) -> Egress<u32> {
    activate(client(start), start, now)
}

fn activate(mut egress: Egress<u32>, start: Instant, now: Instant) -> Egress<u32> {
    let path = &mut egress.lanes[0].path;
    let token = path.poll_probe(start, now).map_or(0, |probe| probe.token);
    egress.handle_probe_reply(PathId(0), token, now);
    assert_eq!(egress.lanes[0].path.state(), State::Active);
    egress
}

#[test]
fn frames_of_streams_fit_the_smallest_path() {
    let start = Instant::from_nanos(1_000_000_000);
    let now = start + Duration::from_millis(150);
    for mtu in [576, 700, 1_000, 1_168, 1_280, 1_500, 9_000] {
        let mut egress = activate(client_over(mtu, start), start, now);
        let room = usize::from(egress.lanes[0].path.mtu());
        let mut frames = 0;
        for number in 0..40 {
            let address = ([192, 0, 2, 1], 9_000).into();
            let open = Open {
                id: StreamId::new(2 * number).expect("even numbers are those of clients"),
                source: address,
                destination: address,
                dscp: 0,
                credit: 1 << 20,
            };
            egress.open_stream(open, now);
        }
        while let Some(transmit) = egress.poll_transmit(now) {
            if matches!(transmit.body, Body::StreamFrames) {
                let len = egress.stream_frames().len();
                assert!((1..=room).contains(&len), "{len} bytes, {room} fit");
                frames += hawser_wire::stream::frames(egress.stream_frames()).count();
            }
        }
        assert_eq!(frames, 40, "MTU {mtu}");
    }
}

fn packets_of(sent: &[Transmit<u32>]) -> usize {
    let is_packet = |transmit: &&Transmit<u32>| matches!(transmit.body, Body::Packets { .. });
    sent.iter().filter(is_packet).count()
}

#[test]
fn a_limit_holds_what_the_paths_would_carry() {
    let start = Instant::from_nanos(1_000_000_000);
    let now = start + Duration::from_millis(150);
    let sent = |limit: Option<u64>| {
        let mut egress = active(start, now);
        egress.set_limit(limit.map(Rate::from_bps));
        for buffer in 0..8 {
            let packet = &mut segment(tcp_flag::ACK, 1_000);
            let result = egress.enqueue(packet, Offload::default(), buffer, now);
            assert_eq!(
                result,
                if limit == Some(0) {
                    Err(Refused::Stopped)
                } else {
                    Ok(())
                }
            );
        }
        let first: Vec<_> = std::iter::from_fn(|| egress.poll_transmit(now)).collect();
        let due = egress.poll_timeout(now);
        // Nothing is lost that waits, and the same limit again changes nothing.
        egress.set_limit(limit.map(Rate::from_bps));
        let mut all = packets_of(&first);
        for ms in 1..200 {
            let now = now + Duration::from_millis(ms);
            let more: Vec<_> = std::iter::from_fn(|| egress.poll_transmit(now)).collect();
            all += packets_of(&more);
        }
        (packets_of(&first), all, due)
    };
    let (at_once, all, _) = sent(None);
    assert_eq!((at_once, all), (8, 8));
    let (at_once, all, due) = sent(Some(1_000_000));
    // 25 ms at the rate, which a driver may be late, and no more.
    assert_eq!((at_once, all), (3, 8));
    assert!(due > now && due < now + Duration::from_millis(20), "{due:?}");
    assert_eq!(sent(Some(0)).1, 0);
}

/// The first packet of a QUIC connection is larger than what every network passes: thrown away, it
/// is sent again a second later.
#[test]
fn a_packet_waits_the_round_trip_that_tells_whether_it_fits() {
    let start = Instant::from_nanos(1_000_000_000);
    let now = start + Duration::from_millis(150);
    for passes in [true, false] {
        let mut egress = active(start, now);
        let offer = |egress: &mut Egress<u32>, payload| {
            egress.enqueue(&mut segment(tcp_flag::ACK, payload), Offload::default(), 0, now)
        };
        assert_eq!(offer(&mut egress, 1_188), Ok(()));
        assert_eq!(
            offer(&mut egress, 1_393),
            Err(Refused::TooSoon),
            "larger than the network's own size"
        );
        let sent: Vec<_> = std::iter::from_fn(|| egress.poll_transmit(now)).collect();
        assert_eq!(packets_of(&sent), 0);
        let large = sent.iter().find_map(|transmit| match transmit.body {
            Body::Probe(probe) => (probe.outer_len == 1_500).then_some(probe.token),
            Body::Packets { .. }
            | Body::Stream { .. }
            | Body::StreamFrames
            | Body::Bundle { .. }
            | Body::Report(_)
            | Body::Reply(_)
            | Body::Parity { .. } => None,
        });
        let token = large.expect("a probe of the network's own size");
        let mut later = now + Duration::from_millis(40);
        if passes {
            egress.handle_probe_reply(PathId(0), token, later);
        } else {
            later += Duration::from_secs(1);
            egress.handle_timeout(later);
        }
        let sent: Vec<_> = std::iter::from_fn(|| egress.poll_transmit(later)).collect();
        assert_eq!(packets_of(&sent), usize::from(passes));
        assert_eq!(egress.counters().too_large, u64::from(!passes));
        assert_eq!(egress.flows().backlog(), 0);
    }
}

#[test]
fn a_path_that_moved_on_this_side_is_probed_at_once() {
    let start = Instant::from_nanos(1_000_000_000);
    let mut egress = client(start);
    let moved = start + Duration::from_millis(1);
    egress.handle_moved(PathId(0), 68, moved);
    assert!(probes(&mut egress, moved) > 0);
}

/// A segment of 100 bytes in a buffer, with the buffer's number as its place.
fn parcel(buffer: u32, now: Instant) -> Parcel<u32> {
    let packet = segment(tcp_flag::ACK, 100);
    let summary = inner::parse(&packet).expect("a packet");
    let cut = Segmenter::new(&packet, &summary, Offload::default()).expect("a segment");
    Parcel {
        piece: None,
        run: Run {
            buffer,
            cut,
            next: 0,
            context: None,
            checksum_partial: false,
            ecn_capable: false,
            mark: false,
            begun: None,
            order_free: false,
            layer: None,
            shape: None,
            since: now,
        },
        flow: 0,
        class: Class::Bulk,
        unordered: false,
        sequence: hawser_units::Sequence(buffer),
    }
}

#[test]
fn what_a_silent_path_has_not_reported_is_wanted_once() {
    let now = Instant::from_nanos(1_000_000_000);
    let mut kept = RetransmissionBuffer::new();
    for packet_number in 10..14 {
        let parcel = parcel(packet_number as u32, now);
        kept.keep(
            PathId(0),
            packet_number..packet_number + 1,
            parcel,
            now + Duration::from_secs(1),
        );
    }
    kept.on_missing(PathId(0), 13..14, now, |_| {});
    kept.on_silence(PathId(0), 11, Duration::ZERO, now);
    kept.on_silence(PathId(1), 0, Duration::ZERO, now);
    let buffers: Vec<u32> = std::iter::from_fn(|| kept.next(now))
        .map(|wanted| wanted.parcel.run.buffer)
        .collect();
    assert_eq!(buffers, [13, 12], "each once, and nothing that was reported");
}

#[test]
fn what_a_silent_path_swallowed_is_kept_until_others_have_carried_it() {
    let (now, mut freed) = (Instant::from_nanos(1_000_000_000), Vec::new());
    let until = now + Duration::from_millis(200);
    let kept_at = |time: Duration, freed: &mut Vec<u32>| {
        let mut kept = RetransmissionBuffer::new();
        kept.keep(PathId(0), 10..11, parcel(10, now), until);
        assert_eq!(kept.retire(10, now), None);
        kept.on_silence(PathId(0), 9, time, now + Duration::from_millis(100));
        kept.release(now + Duration::from_secs(1), freed);
        kept.next(now + Duration::from_secs(1))
    };
    assert!(kept_at(Duration::ZERO, &mut freed).is_none());
    assert_eq!(std::mem::take(&mut freed), [10]);
    let wanted = kept_at(Duration::from_secs(2), &mut freed).expect("it is there");
    assert_eq!(wanted.silent, Some(PathId(0)), "and not for the path that has it");
    assert!(freed.is_empty());
}

/// A report of what arrived by a path.
fn report(highest: u64, ranges: &[(u16, u16)]) -> Feedback {
    let mut missing = hawser_wire::data::Missing::default();
    for (back, count) in ranges {
        missing.push(*back, *count);
    }
    Feedback {
        path: PathId(0),
        highest,
        missing,
        ..Feedback::default()
    }
}

#[test]
fn a_report_of_everything_missing_costs_no_more_than_one_of_what_was_sent() {
    let start = Instant::from_nanos(1_000_000_000);
    let now = start + Duration::from_millis(150);
    let mut egress = active(start, now);
    for buffer in 0..8 {
        let offered = egress.enqueue(&mut segment(tcp_flag::ACK, 500), Offload::default(), buffer, now);
        assert_eq!(offered, Ok(()));
    }
    let sent: Vec<_> = std::iter::from_fn(|| egress.poll_transmit(now)).collect();
    assert_eq!(packets_of(&sent), 8);
    let before = egress.counters().steps;
    for highest in [1, 5, 1 << 20, u64::MAX >> 16] {
        egress.handle_feedback(PathId(0), &report(highest, &[(u16::MAX, u16::MAX); 16]), now);
    }
    let steps = egress.counters().steps - before;
    assert!(
        steps <= 4 * 16 * 8,
        "{steps} steps for what eight packets may be missing"
    );
    assert!(egress.kept.wanted() <= 8);
}

#[test]
fn a_path_whose_numbers_are_used_up_sends_nothing_more_and_dies() {
    let start = Instant::from_nanos(1_000_000_000);
    let now = start + Duration::from_millis(150);
    let last = hawser_wire::data::MAX_PACKET_NUMBER;
    let mut egress = active(start, now);
    egress.lanes[0].path.skip_to(last - 80);
    let mut highest = 0;
    for round in 0..200_u32 {
        let at = now + Duration::from_millis(20) * round;
        egress.handle_timeout(at);
        let _ = egress.enqueue(&mut segment(tcp_flag::ACK, 100), Offload::default(), round, at);
        while let Some(transmit) = egress.poll_transmit(at) {
            assert!(transmit.packet_number > highest && transmit.packet_number <= last);
            highest = transmit.packet_number;
        }
        egress.handle_probe(PathId(0), 7);
        assert!(egress.poll_timeout(at) > at || highest < last, "it does not spin");
    }
    assert!(highest > last - 80 && highest <= last - 63, "{highest:x}");
    assert_eq!(egress.lanes[0].path.state(), State::Dead);
}

#[test]
fn what_waits_of_a_flow_is_bounded_where_that_is_asked_for() {
    let start = Instant::from_nanos(1_000_000_000);
    let now = start + Duration::from_millis(150);
    let waiting = |buffer| {
        let mut egress = active(start, now);
        egress.set_buffer(buffer);
        let mut offer = |number: u32| {
            let taken = egress.enqueue(
                &mut segment(tcp_flag::ACK, 1_000),
                Offload::default(),
                number,
                now,
            );
            while egress.poll_transmit(now).is_some() {}
            taken
        };
        let refused = (0..400).filter(|number| offer(*number) == Err(Refused::QueueFull));
        (refused.count(), egress.flows().backlog())
    };
    let (refused, backlog) = waiting(Some(Bytes(10_000)));
    assert!(
        refused > 0 && (9_000..=10_000).contains(&backlog),
        "{refused}, {backlog}"
    );
    let (refused, backlog) = waiting(Some(Bytes(0)));
    assert!(
        refused > 0 && (1..2_000).contains(&backlog),
        "{refused}, {backlog}"
    );
    assert_eq!(waiting(None).0, 0);
}

#[test]
fn thousands_of_flows_that_wait_cost_a_packet_no_more_than_some() {
    let start = Instant::from_nanos(1_000_000_000);
    let now = start + Duration::from_millis(150);
    let mut egress = active(start, now);
    let offer = |egress: &mut Egress<u32>, flow: u32| {
        let mut packet = segment(tcp_flag::ACK, 1_000);
        packet[20..24].copy_from_slice(&flow.to_be_bytes());
        egress.enqueue(&mut packet, Offload::default(), flow, now).is_ok()
    };
    assert!((0..5_000).all(|flow| offer(&mut egress, flow)));
    while egress.poll_transmit(now).is_some() {}
    assert!(egress.flows().waiting() > 4_000, "the window is full");
    let before = egress.counters().steps;
    for _ in 0..100 {
        assert!(egress.poll_transmit(now).is_none());
    }
    let steps = egress.counters().steps - before;
    assert!(steps <= 100 * 128, "{steps}");
    // Without any way none is looked at.
    egress.close_path(PathId(0), now);
    let before = egress.counters().steps;
    assert!(egress.poll_transmit(now).is_none());
    assert_eq!(egress.counters().steps, before);
}

#[test]
fn a_flow_remembers_no_path_that_is_closed() {
    let start = Instant::from_nanos(1_000_000_000);
    let now = start + Duration::from_millis(150);
    let mut egress = active(start, now);
    egress
        .enqueue(&mut segment(tcp_flag::ACK, 100), Offload::default(), 0, now)
        .expect("there is room");
    while egress.poll_transmit(now).is_some() {}
    let known = |egress: &Egress<u32>| {
        egress
            .flows()
            .iter()
            .map(|(_, flow)| flow.by_path.len())
            .sum::<usize>()
    };
    assert_eq!(known(&egress), 1);
    egress.close_path(PathId(0), now);
    assert_eq!(known(&egress), 0);
}

#[test]
fn what_waits_too_long_goes_by_a_timer_and_the_oldest_is_shed_first() {
    let start = Instant::from_nanos(1_000_000_000);
    let mut egress = Egress::new(1, start);
    let at = |n: u32| start + Duration::from_millis(100) * n;
    for n in 0..50 {
        let mut packet = segment(tcp_flag::ACK, 100);
        packet[20] = (n % 7) as u8;
        let offered = egress.enqueue(&mut packet, Offload::default(), n, at(n));
        assert_eq!(offered, Ok(()));
    }
    let now = at(50);
    assert_eq!([0; 3].map(|_| egress.shed(now)), [Some(0), Some(1), Some(2)]);
    assert_eq!(egress.counters().shed, 3);
    // Nothing happens but that its timer comes.
    let mut now = now;
    let mut freed = Vec::new();
    while freed.len() < 47 {
        let due = egress.poll_timeout(now);
        assert!(due > now && due < start + Duration::from_secs(16));
        now = due;
        egress.handle_timeout(now);
        while let Some(buffer) = egress.poll_freed() {
            assert_eq!(now, at(buffer) + crate::flow::LONGEST_WAIT);
            freed.push(buffer);
        }
    }
    assert_eq!(egress.counters().expired, 47);
    assert_eq!((egress.flows().backlog(), egress.shed(now)), (0, None));
}

/// Keeps every base layer waiting.
#[derive(Debug)]
struct UpperOnly;

impl Scheduler for UpperOnly {
    fn name(&self) -> &'static str {
        "upper-only"
    }

    fn choose(&mut self, demand: &Demand, _: &[PathView], now: Instant) -> Choice {
        match demand.layer {
            Some(layer::Layer(0)) => Choice::Wait(now + Duration::from_millis(3)),
            _ => Choice::Send { path: 0, packets: 1 },
        }
    }
}

#[test]
fn a_layer_whose_paths_are_busy_holds_no_other_up() {
    let start = Instant::from_nanos(1_000_000_000);
    let now = start + Duration::from_millis(150);
    let mut egress = active(start, now);
    egress.schedulers[Class::Layered as usize] = Box::new(UpperOnly);
    let rule = |dscp, layer| layer::Rule {
        pattern: layer::Pattern {
            dscp: Some(dscp),
            ..layer::Pattern::default()
        },
        reading: layer::Reading::Fixed(layer::Layer(layer)),
    };
    egress.set_layer_rules(vec![rule(34, 0), rule(36, 1)]);
    for (buffer, dscp) in [34, 34, 36, 34, 36].into_iter().enumerate() {
        let mut packet = segment(0, 100);
        packet[1] = dscp << 2;
        packet[9] = protocol::UDP;
        packet[24..26].copy_from_slice(&120_u16.to_be_bytes());
        egress
            .enqueue(&mut packet, Offload::default(), buffer as u32, now)
            .expect("there is room");
    }
    let sent: Vec<_> = std::iter::from_fn(|| egress.poll_transmit(now))
        .filter_map(|transmit| match transmit.body {
            Body::Packets { run, .. } => Some(run.buffer),
            Body::Stream { .. }
            | Body::StreamFrames
            | Body::Bundle { .. }
            | Body::Report(_)
            | Body::Probe(_)
            | Body::Reply(_)
            | Body::Parity { .. } => None,
        })
        .collect();
    assert_eq!(sent, [2, 4]);
    let oldest = egress.flows().iter().filter_map(|(_, flow)| flow.head()).next();
    assert_eq!(oldest.map(|run| run.buffer), Some(0));
    assert_eq!(egress.poll_timeout(now), now + Duration::from_millis(3));
}
