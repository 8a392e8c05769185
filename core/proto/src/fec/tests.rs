use hawser_units::{Instant, PathId, Sequence};
use hawser_wire::data::{Class, Inner, Kind};
use hawser_wire::parity::{MAX_COVERED, MAX_PACKET, MAX_PARITY, PARITY_LEN};
use proptest::collection::vec;
use proptest::prelude::*;

use super::*;

const BEGIN: Instant = Instant::from_nanos(1_000_000_000);
const FIRST: u32 = u32::MAX - 20;

fn header(place: u32) -> Inner {
    Inner {
        class: Class::Realtime,
        unordered: true,
        flow: 7,
        sequence: Sequence(FIRST).add(place),
        ..Inner::plain(Kind::Packet)
    }
}

/// A UDP packet with so much payload, all of one byte.
fn packet(fill: u8, payload: usize) -> Vec<u8> {
    let mut packet = vec![fill; 28 + payload];
    packet[..28].fill(0);
    packet[0] = 0x45;
    packet[9] = 17;
    let len = packet.len() as u16;
    packet[2..4].copy_from_slice(&len.to_be_bytes());
    packet
}

fn body(outgoing: &Outgoing) -> Vec<u8> {
    let mut head = [0; PARITY_LEN];
    outgoing.parity.emit(&mut head);
    [&head[..], &outgoing.symbol].concat()
}

/// Sends packets that lie `gap` apart, and returns the parity packets with the times at which they
/// may go.
fn send(packets: &[Vec<u8>], gap: Duration, loss: f64) -> Vec<(Instant, Outgoing)> {
    let mut encoder = Encoder::default();
    let cover = Cover {
        loss,
        path: PathId(1),
    };
    let mut now = BEGIN;
    let mut sent = Vec::new();
    let mut until = |encoder: &mut Encoder, end: Instant| {
        loop {
            let at = encoder.due().min(encoder.next_at());
            if at > end {
                return;
            }
            encoder.handle_timeout(at);
            while encoder.peek(at).is_some() {
                sent.extend(encoder.pop().map(|outgoing| (at, outgoing)));
            }
        }
    };
    for (place, packet) in packets.iter().enumerate() {
        until(&mut encoder, now);
        assert!(encoder.plan(7, cover, 1, now));
        encoder.push(&header(place as u32), packet, now);
        now += gap;
    }
    until(&mut encoder, now + SPAN * 4);
    assert_eq!(
        (encoder.due(), encoder.next_at()),
        (Instant::FAR_FUTURE, Instant::FAR_FUTURE)
    );
    sent
}

fn all(decoder: &mut Decoder) -> Vec<Rebuilt> {
    std::iter::from_fn(|| decoder.poll_rebuilt()).collect()
}

/// A decoder that has seen parity of the flow and packets, for places before [`FIRST`].
fn watching() -> Decoder {
    let mut decoder = Decoder::default();
    let before = |kind| Inner {
        kind,
        sequence: Sequence(FIRST - 8),
        ..header(0)
    };
    assert!(decoder.handle_parity(&before(Kind::Parity), &[1, 1, 0, 0, 0, 0, 0], BEGIN));
    assert!(decoder.handle_packet(&before(Kind::Packet), &packet(0, 10), BEGIN));
    assert_eq!(all(&mut decoder), []);
    decoder
}

#[test]
fn parity_follows_the_loss() {
    assert_eq!(parity_for(8, 0.0), 0);
    assert_eq!(parity_for(8, TOLERATED), 0);
    assert_eq!(parity_for(1, 0.02), 1);
    assert_eq!(parity_for(8, 0.02), 2);
    assert_eq!(parity_for(20, 0.02), 3);
    assert_eq!(parity_for(8, 0.04), 3);
    assert_eq!(parity_for(8, 0.002), 1);
    assert_eq!(parity_for(1, 0.5), 3);
    assert_eq!(parity_for(32, 1.0), MAX_PARITY);
    assert_eq!(parity_for(0, 0.5), 0);
    assert_eq!(parity_for(8, f64::NAN), 0);
}

/// The share that stays lost, counted over all patterns of loss.
#[test]
fn the_residual_loss_is_that_of_all_patterns_of_loss() {
    for (covered, parity, loss) in [(1, 1, 0.1), (3, 1, 0.05), (4, 2, 0.2), (8, 3, 0.02)] {
        let total = u32::from(covered + parity);
        let expected: f64 = (0..1_u32 << total)
            .filter(|pattern| pattern & 1 != 0 && pattern.count_ones() > u32::from(parity))
            .map(|pattern| {
                let lost = pattern.count_ones();
                f64::powi(loss, lost.cast_signed()) * f64::powi(1.0 - loss, (total - lost).cast_signed())
            })
            .sum();
        let found = residual(covered, parity, loss);
        assert!(
            (found - expected).abs() < 1e-12,
            "{covered} {parity}: {found} {expected}"
        );
    }
}

#[test]
fn a_slow_flow_gets_copies_a_little_later() {
    let packets: Vec<_> = (0..10).map(|n| packet(n, 200)).collect();
    let sent = send(&packets, Duration::from_millis(20), 0.02);
    assert_eq!(sent.len(), 10);
    for (n, (at, outgoing)) in sent.iter().enumerate() {
        assert_eq!((outgoing.parity.covered, outgoing.parity.parity), (1, 1));
        assert_eq!(at.since(BEGIN), Duration::from_millis(20 * n as u64 + 10));
    }
}

#[test]
fn the_group_of_a_fast_flow_ends_within_its_span() {
    let packets: Vec<_> = (0..200).map(|n| packet(n, 1200)).collect();
    let gap = Duration::from_micros(2_400);
    let sent = send(&packets, gap, 0.02);
    // Behind the last full group its rest follows.
    let settled = &sent[sent.len() / 2..sent.len() - 4];
    for (at, outgoing) in settled {
        assert_eq!((outgoing.parity.covered, outgoing.parity.parity), (8, 2));
        let place = outgoing.inner.sequence.distance_from(Sequence(FIRST));
        let first = BEGIN + gap * place.unsigned_abs();
        assert!(at.since(first) <= SPAN, "{:?}", at.since(first));
    }
    // At most a third more packets, the first groups included.
    assert!(sent.len() <= 66, "{}", sent.len());
}

#[test]
fn a_flow_faster_than_any_video_is_not_covered() {
    let mut encoder = Encoder::default();
    let cover = Cover {
        loss: 0.02,
        path: PathId(1),
    };
    let covered = (0..100).map(|n| encoder.plan(7, cover, 1, BEGIN + Duration::from_micros(100) * n));
    assert!(covered.last().is_some_and(|covered| !covered));
}

#[test]
fn many_flows_are_forgotten_once_they_are_silent() {
    let mut encoder = Encoder::default();
    let cover = Cover {
        loss: 0.02,
        path: PathId(1),
    };
    assert!((0..32).all(|flow| encoder.plan(flow, cover, 1, BEGIN)));
    assert!(!encoder.plan(32, cover, 1, BEGIN));
    assert!(encoder.plan(32, cover, 1, BEGIN + Duration::from_secs(2)));
}

#[test]
fn what_was_rebuilt_is_not_new_when_it_comes() {
    let mut decoder = watching();
    let packets = [packet(1, 100)];
    let sent = send(&packets, Duration::from_millis(20), 0.02);
    let (at, copy) = &sent[0];
    assert!(decoder.handle_parity(&copy.inner, &body(copy), *at));
    assert_eq!(all(&mut decoder).len(), 1);
    assert!(!decoder.handle_packet(&header(0), &packets[0], *at));
    assert!(decoder.handle_parity(&copy.inner, &body(copy), *at));
    assert_eq!(all(&mut decoder), [], "nor rebuilt twice");
}

#[test]
fn groups_whose_packets_may_have_come_unseen_are_not_judged() {
    let packets: Vec<_> = (0..20).map(|n| packet(n, 100)).collect();
    let sent = send(&packets, Duration::from_millis(20), 0.02);
    let mut decoder = Decoder::default();
    let copy = |decoder: &mut Decoder, at: usize| {
        decoder.handle_parity(&sent[at].1.inner, &body(&sent[at].1), BEGIN);
        all(decoder).len()
    };
    assert_eq!(copy(&mut decoder, 0), 0, "from before");
    assert_eq!(copy(&mut decoder, 5), 0, "no packet is remembered yet");
    decoder.handle_packet(&header(3), &packets[3], BEGIN);
    assert_eq!(copy(&mut decoder, 10), 0, "may have overtaken the first");
    assert_eq!(copy(&mut decoder, 11), 1);
}

#[test]
fn a_resent_packet_of_another_form_is_not_taken_for_a_symbol() {
    let mut decoder = watching();
    let packets: Vec<_> = (0..40).map(|n| packet(n, 100)).collect();
    let sent = send(&packets, Duration::from_millis(5), 0.05);
    let (_, last) = sent.last().expect("parity");
    let base = last.inner.sequence.distance_from(Sequence(FIRST)).unsigned_abs();
    assert!(last.parity.covered > 1);
    for place in base + 1..base + u32::from(last.parity.covered) {
        let again = Inner {
            retransmission: place == base + 1,
            ..header(place)
        };
        decoder.handle_packet(&again, &packets[place as usize], BEGIN);
    }
    let of_group: Vec<_> = sent
        .iter()
        .filter(|(_, parity)| parity.inner.sequence == last.inner.sequence)
        .collect();
    assert_eq!(of_group.len(), 2);
    for (_, parity) in of_group {
        decoder.handle_parity(&parity.inner, &body(parity), BEGIN);
    }
    let rebuilt = all(&mut decoder);
    assert_eq!(rebuilt.len(), 1);
    assert_eq!(rebuilt[0].packet, packets[base as usize]);
}

#[test]
fn a_flood_of_groups_is_decoded_at_a_bounded_rate() {
    let mut decoder = watching();
    let mut encoder = Encoder::default();
    let cover = Cover {
        loss: 0.02,
        path: PathId(1),
    };
    let mut rebuilt = 0;
    for round in 0..400_u32 {
        for place in round * 8..round * 8 + 8 {
            let now = BEGIN + Duration::from_micros(300) * place;
            encoder.plan(7, cover, 1, now);
            let packet = packet(place as u8, 100);
            encoder.push(&header(place), &packet, now);
            if place % 8 != 0 {
                decoder.handle_packet(&header(place), &packet, now);
            }
        }
        let now = BEGIN + Duration::from_micros(2_400) * (round + 1);
        encoder.handle_timeout(now + SPAN);
        while let Some(outgoing) = encoder.pop() {
            decoder.handle_parity(&outgoing.inner, &body(&outgoing), now);
        }
        rebuilt += all(&mut decoder).len();
    }
    // 960 ms: what may be done at once and in a second. Places behind the remembered ones are not
    // rebuilt at all.
    assert!((1..=250).contains(&rebuilt), "{rebuilt}");
}

proptest! {
    #[test]
    fn as_many_losses_as_there_is_parity_are_rebuilt_byte_for_byte(
        sizes in vec(0..MAX_PACKET - 28, 1..=MAX_COVERED as usize),
        parity in 1..=MAX_PARITY,
        order in any::<prop::sample::Index>().prop_flat_map(|_| Just((0..40_usize).collect::<Vec<_>>()).prop_shuffle()),
    ) {
        let packets: Vec<_> = sizes.iter().enumerate().map(|(n, size)| packet(n as u8 + 1, *size)).collect();
        let headers: Vec<_> = (0..packets.len() as u32).map(header).collect();
        let len = packets.iter().map(|packet| hawser_wire::parity::symbol_len(packet.len())).max().expect("one");
        let symbols: Vec<_> = packets.iter().zip(&headers).map(|(packet, inner)| {
            let mut symbol = vec![0; len];
            hawser_wire::parity::emit_symbol(inner, packet, &mut symbol);
            symbol
        }).collect();
        let code = code::Code::default().encode(&symbols, parity);
        prop_assert_eq!(code.len(), usize::from(parity));
        // All that is sent, in any order; the last ones are lost.
        let total = packets.len() + usize::from(parity);
        let order: Vec<_> = order.into_iter().filter(|at| *at < total).collect();
        let (kept, lost) = order.split_at(packets.len());
        let mut decoder = watching();
        for at in kept {
            if let Some(packet) = packets.get(*at) {
                prop_assert!(decoder.handle_packet(&headers[*at], packet, BEGIN));
            } else {
                let index = at - packets.len();
                let head = [packets.len() as u8, parity, index as u8];
                let inner = Inner { kind: Kind::Parity, ..headers[0] };
                let taken = decoder.handle_parity(&inner, &[&head[..], &code[index]].concat(), BEGIN);
                prop_assert!(taken);
            }
        }
        let mut rebuilt = all(&mut decoder);
        rebuilt.sort_by_key(|rebuilt| rebuilt.inner.sequence.distance_from(Sequence(FIRST)));
        let mut expected: Vec<_> = lost.iter().copied().filter(|at| *at < packets.len()).collect();
        expected.sort_unstable();
        let found: Vec<_> = rebuilt.iter().map(|rebuilt| (rebuilt.inner, &rebuilt.packet)).collect();
        let wanted: Vec<_> = expected.iter().map(|at| (headers[*at], &packets[*at])).collect();
        prop_assert_eq!(found, wanted);
    }

    #[test]
    fn whatever_a_peer_sends_memory_and_work_stay_bounded(
        operations in vec((any::<bool>(), 0..40_u16, 0..200_u32, vec(any::<u8>(), 0..20), 0..50_u64), 1..300),
    ) {
        let mut decoder = Decoder::default();
        let mut now = BEGIN;
        for (is_parity, flow, place, bytes, pause) in operations {
            now += Duration::from_millis(pause);
            let inner = Inner { flow, ..header(place) };
            if is_parity {
                let head = [bytes.first().map_or(1, |byte| byte % 33), 2, bytes.len() as u8 % 2];
                decoder.handle_parity(&inner, &[&head[..], &bytes].concat(), now);
            } else {
                decoder.handle_packet(&inner, &bytes, now);
            }
            let symbols = decoder.symbols();
            prop_assert!(symbols <= 16 * (64 + 4 * 8), "{symbols}");
            all(&mut decoder);
        }
    }
}
