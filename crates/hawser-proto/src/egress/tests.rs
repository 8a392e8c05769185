use hawser_units::{Duration, Instant, PathId};
use hawser_wire::inner::{self, protocol, tcp_flag};
use hawser_wire::offload::{Offload, Segmenter};

use super::*;
use crate::flow::Run;

/// An open path whose first probes are on their way.
fn client(start: Instant) -> Egress<u32> {
    let mut egress = Egress::new(1, start);
    let config = path::Config {
        id: PathId(0),
        probing: path::Probing::Eager,
        cap: None,
        mtu: 1500,
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
fn segment(flags: u8, payload: usize) -> Vec<u8> {
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
            Body::Report(_) | Body::Probe(_) | Body::Reply(_) | Body::Parity { .. } => None,
        })
        .collect();
    let [(false, first), (true, _), (false, second), (false, third)] = sent[..] else {
        panic!("{sent:?}")
    };
    assert_eq!((second, third), (first + 1, first + 2));
}

/// An open path that has answered its first probe now, and no more.
fn active(start: Instant, now: Instant) -> Egress<u32> {
    let mut egress = client(start);
    let path = &mut egress.lanes[0].path;
    let token = path.poll_probe(start, now).map_or(0, |probe| probe.token);
    egress.handle_probe_reply(PathId(0), token, now);
    assert_eq!(egress.lanes[0].path.state(), State::Active);
    egress
}

fn packets_of(sent: &[Transmit<u32>]) -> usize {
    let is_packet = |transmit: &&Transmit<u32>| matches!(transmit.body, Body::Packets { .. });
    sent.iter().filter(is_packet).count()
}

/// The first packet of a QUIC connection is larger than what every network passes: thrown away, it is sent again a second later.
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
            Body::Packets { .. } | Body::Report(_) | Body::Reply(_) | Body::Parity { .. } => None,
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
        run: Run {
            buffer,
            cut,
            next: 0,
            context: None,
            checksum_partial: false,
            ecn_capable: false,
            mark: false,
            order_free: false,
            layer: None,
            since: now,
        },
        flow: 0,
        class: Class::Bulk,
        sequence: hawser_units::Sequence(buffer),
    }
}

#[test]
fn what_a_silent_path_has_not_reported_is_wanted_once() {
    let now = Instant::from_nanos(1_000_000_000);
    let mut kept = Kept::new();
    for counter in 10..14 {
        let parcel = parcel(counter as u32, now);
        kept.keep(
            PathId(0),
            counter..counter + 1,
            parcel,
            now + Duration::from_secs(1),
        );
    }
    kept.on_missing(PathId(0), 13, now);
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
        let mut kept = Kept::new();
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
    assert_eq!(freed, []);
}
