use std::net::{IpAddr, Ipv4Addr};

use hawser_units::Net;
use hawser_wire::deadline::DeadlineRule;
use hawser_wire::inner::{Ecn, Signature};
use hawser_wire::offload::{Offload, Segmenter};

use super::codel::INTERVAL;
use super::*;

const MS: Duration = Duration::from_millis(1);
const TARGET: Duration = Duration::from_millis(20);
const LIMIT: u64 = 1 << 20;
const BEGIN: Instant = Instant::from_nanos(1_000_000_000);

fn summary(protocol: u8, source_port: u16, destination_port: u16, dscp: u8) -> Summary {
    let address = |last| IpAddr::V4(Ipv4Addr::new(10, 0, 0, last));
    Summary {
        key: FlowKey {
            source: address(1),
            destination: address(2),
            protocol,
            source_port,
            destination_port,
        },
        ip_at: 0,
        ip_len: 20,
        headers_len: 40,
        tcp_flags: 0,
        dscp,
        ecn: Ecn::NotEct,
        signature: None,
    }
}

fn tcp(port: u16) -> Summary {
    summary(protocol::TCP, port, 80, 0)
}

/// A run of `segments` packets of 1,240 bytes.
fn run(buffer: u32, segments: u16, since: Instant) -> Run<u32> {
    let packet = vec![0; 40 + 1200 * usize::from(segments)];
    let offload = Offload {
        checksum_partial: true,
        segment: 1200,
    };
    Run {
        buffer,
        cut: Segmenter::new(&packet, &tcp(1), offload).expect("a plain packet"),
        next: 0,
        context: None,
        checksum_partial: true,
        ecn_capable: false,
        mark: false,
        begun: None,
        order_free: false,
        layer: None,
        shape: None,
        since,
    }
}

fn flows() -> Flows<u32> {
    Flows::new(7, BEGIN)
}

/// Sends what the flow whose turn it is may send in one go; returns its slot and bytes.
fn send(flows: &mut Flows<u32>, most: u16, now: Instant) -> Option<(u16, u64)> {
    loop {
        let slot = flows.turn(0)?;
        let Some(head) = flows
            .get(slot)
            .and_then(Flow::head)
            .filter(|_| !flows.is_in_debt(slot))
        else {
            flows.end_turn(0);
            continue;
        };
        let count = head.left().min(most);
        let bytes = u64::from(count) * 1240;
        flows.on_sent(slot, (count, false), bytes, 1, now);
        flows.advance(slot, count);
        flows.end_turn(0);
        return Some((slot, bytes));
    }
}

#[test]
fn classes_by_the_first_packet() {
    use Class::{Bulk, Interactive, Realtime};
    let table = [
        (protocol::TCP, 40_000, 80, 0, Interactive, false),
        (protocol::TCP, 40_000, 80, 8, Bulk, false),
        (protocol::TCP, 40_000, 80, 1, Bulk, false),
        (protocol::UDP, 40_000, 443, 0, Bulk, false),
        (protocol::UDP, 443, 40_000, 0, Bulk, false),
        (protocol::UDP, 40_000, 443, 46, Realtime, false),
        (protocol::UDP, 40_000, 53, 0, Interactive, true),
        (protocol::UDP, 40_000, 5004, 0, Realtime, true),
        (protocol::UDP, 40_000, 5004, 34, Realtime, true),
        (protocol::UDP, 40_000, 5004, 44, Realtime, true),
        (protocol::ICMP, 0, 0, 0, Interactive, true),
        (50, 0, 0, 0, Interactive, true),
    ];
    for (protocol, source, destination, dscp, class, free) in table {
        let summary = summary(protocol, source, destination, dscp);
        assert_eq!(classify(&summary).0, class, "{summary:?}");
        assert_eq!(order_is_free(&summary), free, "{summary:?}");
    }
    let quic = Summary {
        signature: Some(Signature::Quic),
        ..summary(protocol::UDP, 40_000, 5004, 0)
    };
    assert_eq!((classify(&quic).0, order_is_free(&quic)), (Bulk, false));
}

#[test]
fn a_tcp_flow_becomes_bulk_by_what_it_sends() {
    let mut flows = flows();
    flows
        .enqueue(&tcp(1), run(1, 1, BEGIN), LIMIT, BEGIN)
        .expect("room");
    flows.on_sent(0, (1, false), BULK_AFTER, 1, BEGIN);
    assert_eq!(flows.get(0).expect("known").class, Class::Interactive);
    flows.on_sent(0, (1, false), 1, 1, BEGIN);
    assert_eq!(flows.get(0).expect("known").class, Class::Bulk);
}

#[test]
fn backlogged_flows_share_equally_whatever_their_runs() {
    let mut flows = flows();
    let sizes = [50, 1, 7, 2];
    let mut sent = [0u64; 4];
    for _ in 0..4_000 {
        for (flow, segments) in sizes.into_iter().enumerate() {
            let waits = flows.get(flow as u16).map_or(0, Flow::backlog);
            if waits < 200_000 {
                let _ = flows.enqueue(&tcp(flow as u16), run(0, segments, BEGIN), LIMIT, BEGIN);
            }
        }
        let (slot, bytes) = send(&mut flows, 64, BEGIN).expect("all wait");
        sent[usize::from(slot)] += bytes;
    }
    let mean = sent.iter().sum::<u64>() / 4;
    for share in sent {
        assert!(share.abs_diff(mean) < mean / 10 + 64 * 1240, "{sent:?}");
    }
}

#[test]
fn what_goes_until_a_flow_has_gone_is_what_flows_that_take_turns_send_meanwhile() {
    let mut flows = flows();
    for (port, segments) in [(1, 10), (2, 10), (3, 40)] {
        flows
            .enqueue(&tcp(port), run(0, segments, BEGIN), u64::MAX, BEGIN)
            .expect("room");
    }
    // The third flow's last thirty packets go when the others have gone.
    let [first, _, third] = [0, 1, 2].map(|slot| flows.backlog_until(slot));
    let mut sent = [0; 3];
    let mut total = 0;
    while let Some((slot, bytes)) = send(&mut flows, 1, BEGIN) {
        total += bytes;
        sent[usize::from(slot)] = total;
    }
    assert!(sent[0].abs_diff(first) <= 8 * 1240, "{} {first}", sent[0]);
    assert_eq!(sent[2], third);
}

#[test]
fn a_flow_alone_is_not_held_back_by_its_debt() {
    let mut flows = flows();
    for _ in 0..3 {
        flows
            .enqueue(&tcp(1), run(0, 50, BEGIN), LIMIT, BEGIN)
            .expect("room");
    }
    for _ in 0..3 {
        assert_eq!(send(&mut flows, 64, BEGIN), Some((0, 50 * 1240)));
    }
    assert_eq!(send(&mut flows, 64, BEGIN), None);
    assert_eq!(flows.waiting(), 0);
    assert_eq!(flows.backlog(), 0);
}

#[test]
fn a_new_flow_goes_first_but_only_for_its_first_share() {
    let mut flows = flows();
    for _ in 0..10 {
        flows
            .enqueue(&tcp(1), run(0, 10, BEGIN), LIMIT, BEGIN)
            .expect("room");
    }
    assert_eq!(send(&mut flows, 2, BEGIN).expect("waits").0, 0);
    assert_eq!(send(&mut flows, 2, BEGIN).expect("waits").0, 0);
    for _ in 0..2 {
        flows
            .enqueue(&tcp(2), run(0, 10, BEGIN), LIMIT, BEGIN)
            .expect("room");
    }
    assert_eq!(send(&mut flows, 3, BEGIN).expect("waits").0, 1, "new flows first");
    assert_eq!(send(&mut flows, 1, BEGIN).expect("waits").0, 0, "then in turn");
}

#[test]
fn an_emptied_new_flow_does_not_starve_the_others() {
    let mut flows = flows();
    for _ in 0..10 {
        flows
            .enqueue(&tcp(1), run(0, 10, BEGIN), LIMIT, BEGIN)
            .expect("room");
    }
    send(&mut flows, 10, BEGIN);
    let mut turns = [0; 2];
    for _ in 0..20 {
        if flows.get(1).is_none_or(|flow| flow.backlog() == 0) {
            flows
                .enqueue(&tcp(2), run(0, 2, BEGIN), LIMIT, BEGIN)
                .expect("room");
        }
        turns[usize::from(send(&mut flows, 2, BEGIN).expect("waits").0)] += 1;
    }
    assert!(turns[0] >= 8, "{turns:?}");
}

/// Serves one packet a millisecond from a queue that always holds `depth`; returns drops and marks
/// in 2 s.
fn serve(depth: u32, ecn_capable: bool) -> (u32, u32) {
    let mut flows = flows();
    let (mut drops, mut marks) = (0, 0);
    for step in 0..2_000u32 {
        let now = BEGIN + MS * step;
        while flows.get(0).map_or(0, Flow::backlog) < u64::from(depth) * 1240 {
            let run = Run {
                ecn_capable,
                ..run(0, 1, now)
            };
            flows.enqueue(&tcp(1), run, LIMIT, now).expect("room");
        }
        // A head that waits for its path is asked more than once.
        for _ in 0..3 {
            let (freed, dropped) = flows.police(0, TARGET, false, now);
            assert_eq!(freed.is_some(), dropped);
            drops += u32::from(dropped);
        }
        marks += u32::from(flows.get(0).and_then(Flow::head).is_some_and(|head| head.mark));
        send(&mut flows, 1, now);
    }
    (drops, marks)
}

#[test]
fn a_standing_queue_is_told_of_by_drops_or_marks() {
    assert_eq!(serve(10, false), (0, 0), "10 ms are below the target");
    assert_eq!(serve(10, true), (0, 0));
    let (drops, marks) = serve(60, false);
    assert!((10..200).contains(&drops) && marks == 0, "{drops} {marks}");
    let (dropped, marked) = serve(60, true);
    assert_eq!(dropped, 0);
    assert!(
        marked.abs_diff(drops) <= drops / 4,
        "{marked} marks where {drops} drops"
    );
}

/// A flow with so many packets that came in at the beginning.
fn with_backlog(packets: u32) -> Flows<u32> {
    let mut flows = flows();
    for _ in 0..packets {
        flows
            .enqueue(&tcp(1), run(0, 1, BEGIN), LIMIT, BEGIN)
            .expect("room");
    }
    flows
}

#[test]
fn one_interval_above_the_target_is_allowed() {
    let mut flows = with_backlog(50);
    let late = BEGIN + TARGET * 2;
    assert!(!flows.police(0, TARGET, false, late).1);
    assert!(!flows.police(0, TARGET, false, late + INTERVAL).1);
    assert!(flows.police(0, TARGET, false, late + INTERVAL + TARGET).1);
}

#[test]
fn a_queue_that_was_exempt_is_given_an_interval_again() {
    let mut flows = with_backlog(200);
    let mut drops = |from: u32, to: u32, is_exempt| {
        let at = |step| BEGIN + TARGET + MS * step;
        (from..to)
            .filter(|step| flows.police(0, TARGET, is_exempt, at(*step)).1)
            .count()
    };
    assert!(drops(0, 500, false) > 2);
    assert_eq!(drops(500, 2_000, true), 0);
    assert_eq!(drops(2_000, 2_100, false), 0);
    assert_eq!(drops(2_100, 2_150, false), 1, "one after the other");
}

#[test]
fn the_last_packet_of_a_queue_is_never_dropped() {
    let mut flows = flows();
    flows
        .enqueue(&tcp(1), run(5, 1, BEGIN), LIMIT, BEGIN)
        .expect("room");
    for second in 0..100 {
        assert_eq!(
            flows.police(0, TARGET, false, BEGIN + Duration::from_secs(second)),
            (None, false)
        );
    }
}

#[test]
fn a_full_queue_refuses_and_changes_nothing() {
    let mut flows = flows();
    let limit = 5_000;
    flows
        .enqueue(&tcp(1), run(0, 10, BEGIN), limit, BEGIN)
        .expect("an empty queue takes anything");
    let before = (flows.backlog(), flows.waiting());
    assert_eq!(
        flows.enqueue(&tcp(1), run(1, 1, BEGIN), limit, BEGIN),
        Err(Refusal::QueueFull)
    );
    assert_eq!((flows.backlog(), flows.waiting()), before);
    flows
        .enqueue(&tcp(2), run(2, 1, BEGIN), limit, BEGIN)
        .expect("another flow has its own bound");
    assert_eq!(flows.drain(), [0, 2]);
    assert_eq!((flows.backlog(), flows.waiting()), (0, 0));
    flows
        .enqueue(&tcp(1), run(3, 1, BEGIN), limit, BEGIN)
        .expect("drained");
    assert!(send(&mut flows, 1, BEGIN).is_some());
}

#[test]
fn a_full_table_refuses_new_flows_while_all_wait() {
    let mut flows = flows();
    for flow in 0..MAX_FLOWS {
        let summary = summary(protocol::TCP, (flow % 50_000) as u16, (flow / 50_000) as u16, 0);
        flows
            .enqueue(&summary, run(0, 1, BEGIN), LIMIT, BEGIN)
            .expect("a slot");
    }
    let one_more = summary(protocol::TCP, 1, 9, 0);
    assert_eq!(
        flows.enqueue(&one_more, run(0, 1, BEGIN), LIMIT, BEGIN),
        Err(Refusal::TableFull)
    );
    let known = summary(protocol::TCP, 0, 0, 0);
    flows
        .enqueue(&known, run(0, 1, BEGIN), LIMIT, BEGIN)
        .expect("a known flow goes on");

    // One that has nothing waiting gives way, the longest quiet one first, and its slot's sequence
    // goes on.
    while send(&mut flows, 1, BEGIN).is_some() {}
    let active = BEGIN + MS;
    for port in 0..REPLACE_AMONG as u16 - 1 {
        let busy = summary(protocol::TCP, port, 0, 0);
        flows
            .enqueue(&busy, run(0, 1, active), LIMIT, active)
            .expect("known");
    }
    while send(&mut flows, 1, active).is_some() {}
    let later = BEGIN + MS * 2;
    flows
        .enqueue(&one_more, run(0, 1, later), LIMIT, later)
        .expect("the quiet one gives way");
    let slot = REPLACE_AMONG as u16 - 1;
    let flow = flows.get(slot).expect("its slot");
    assert_eq!((flow.key, flow.next), (one_more.key, Sequence(1)));
    assert_eq!(flows.iter().count(), MAX_FLOWS);
    // A flow that was thrown out is a new one when it returns.
    let gone = summary(protocol::TCP, slot, 0, 0);
    flows
        .enqueue(&gone, run(0, 1, later), LIMIT, later)
        .expect("another gives way");

    let much_later = later + IDLE + Duration::from_secs(2);
    while send(&mut flows, 1, later).is_some() {}
    flows.sweep(false, much_later);
    assert_eq!(flows.iter().count(), 0);
}

#[test]
fn a_slot_that_is_used_again_continues_its_sequence() {
    let mut flows = flows();
    flows
        .enqueue(&tcp(1), run(0, 9, BEGIN), LIMIT, BEGIN)
        .expect("room");
    send(&mut flows, 9, BEGIN);
    let later = BEGIN + IDLE + Duration::from_secs(2);
    flows.end_turn(0);
    flows.sweep(false, later);
    assert!(flows.get(0).is_none(), "an idle flow gives up its slot");
    flows
        .enqueue(&tcp(2), run(0, 1, later), LIMIT, later)
        .expect("room");
    let flow = flows.get(0).expect("the slot is used again");
    assert_eq!((flow.key.source_port, flow.next), (2, Sequence(9)));
}

#[test]
fn a_waiting_flow_is_never_swept() {
    let mut flows = flows();
    flows
        .enqueue(&tcp(1), run(0, 1, BEGIN), LIMIT, BEGIN)
        .expect("room");
    flows.sweep(false, BEGIN + IDLE * 10);
    assert_eq!(flows.drain(), [0]);
}

#[test]
fn a_layer_that_waits_lets_the_others_pass_in_their_order() {
    let mut flows = flows();
    let stream = summary(protocol::UDP, 1, 5004, 0);
    for (buffer, layer) in [0, 0, 1, 2, 1].into_iter().enumerate() {
        let run = Run {
            layer: Some(Layer(layer)),
            ..run(buffer as u32, 1, BEGIN + MS * buffer as u32)
        };
        flows.enqueue(&stream, run, LIMIT, BEGIN).expect("there is room");
    }
    let slot = flows.turn(0).expect("it waits");
    let head = |flows: &Flows<u32>| flows.get(slot).and_then(Flow::head).expect("one").buffer;
    let backlog = flows.backlog();
    assert!(flows.bring_forward(slot, layer_bit(Layer(0))));
    assert_eq!(head(&flows), 2);
    assert!(flows.bring_forward(slot, layer_bit(Layer(0)) | layer_bit(Layer(1))));
    assert_eq!(head(&flows), 3);
    assert!(!flows.bring_forward(slot, 0b111));
    assert_eq!(flows.backlog(), backlog);
    assert_eq!(flows.skip(slot, 1), Some(3));
    flows.bring_oldest_forward(slot);
    let order: Vec<u32> = (0..5).filter_map(|_| flows.skip(slot, 1)).collect();
    assert_eq!(order, [0, 2, 1, 4]);
}

#[test]
fn a_layer_passes_no_other_where_the_order_matters() {
    let mut flows = flows();
    for layer in [0, 1] {
        let run = Run {
            layer: Some(Layer(layer)),
            ..run(0, 1, BEGIN)
        };
        flows.enqueue(&tcp(1), run, LIMIT, BEGIN).expect("there is room");
    }
    let slot = flows.turn(0).expect("it waits");
    assert!(!flows.bring_forward(slot, layer_bit(Layer(0))));
}

#[test]
fn packets_without_a_layer_pass_nothing() {
    let mut flows = flows();
    let stream = summary(protocol::UDP, 1, 5004, 0);
    for buffer in [0, 1] {
        flows
            .enqueue(&stream, run(buffer, 1, BEGIN), LIMIT, BEGIN)
            .expect("there is room");
    }
    let slot = flows.turn(0).expect("it waits");
    assert!(!flows.bring_forward(slot, 0));
}

#[test]
fn connections_go_on_until_this_side_ends_them() {
    let start = Instant::from_nanos(1_000_000_000);
    let mut flows = Flows::new(1, start);
    let mut send = |summary: &Summary, flags: u8, at: Instant| {
        let summary = Summary {
            tcp_flags: flags,
            ..*summary
        };
        flows.enqueue(&summary, run(0, 1, at), u64::MAX, at).unwrap();
        flows.open_since(at - Duration::from_secs(30))
    };
    let (first, second) = (tcp(1), tcp(2));
    assert_eq!(send(&first, tcp_flag::SYN, start), 1);
    assert_eq!(send(&second, tcp_flag::SYN, start), 2);
    // A ping is no connection, and a call is one while it says something.
    assert_eq!(send(&summary(protocol::ICMP, 0, 0, 0), 0, start), 2);
    assert_eq!(send(&summary(protocol::UDP, 5, 6, 0), 0, start), 3);
    let later = start + Duration::from_secs(40);
    assert_eq!(send(&first, tcp_flag::ACK, later), 2);
    assert_eq!(send(&first, tcp_flag::FIN | tcp_flag::ACK, later), 1);
    assert_eq!(
        send(&first, tcp_flag::ACK, later),
        1,
        "the answer to the other side's end"
    );
    assert_eq!(send(&second, tcp_flag::RST, later), 0);
    assert_eq!(send(&first, tcp_flag::SYN, later), 1, "the same ports again");
    assert!(flows.slot(&first.key).is_some() && flows.slot(&tcp(9).key).is_none());
}

/// Forty flows with twenty packets each, after every one has had its first turn.
fn forty_transfers() -> Flows<u32> {
    let mut flows = flows();
    for port in 0..40 {
        for _ in 0..20 {
            flows
                .enqueue(&tcp(port), run(0, 1, BEGIN), LIMIT, BEGIN)
                .expect("room");
        }
    }
    for _ in 0..40 * 3 {
        send(&mut flows, 1, BEGIN).expect("all have packets");
    }
    flows
}

#[test]
fn a_flow_that_sends_less_than_its_share_never_waits_for_a_round() {
    let mut flows = forty_transfers();
    for packet in 0..2 {
        flows
            .enqueue(&tcp(99), run(0, 1, BEGIN), LIMIT, BEGIN)
            .expect("room");
        let slot = flows.slot(&tcp(99).key).expect("it has its place");
        let next = send(&mut flows, 1, BEGIN).map(|(sent, _)| sent);
        assert_eq!(next, Some(slot), "packet {packet}");
        // A few others, far less than a round.
        for _ in 0..5 {
            assert_ne!(send(&mut flows, 1, BEGIN).map(|(sent, _)| sent), Some(slot));
        }
    }
}

#[test]
fn a_flow_that_always_has_one_more_packet_gets_its_share_and_no_more() {
    let mut flows = forty_transfers();
    let mut own = 0;
    for _ in 0..400 {
        let empty = flows.slot(&tcp(99).key).and_then(|slot| flows.get(slot));
        if empty.is_none_or(|flow| flow.backlog() == 0) {
            flows
                .enqueue(&tcp(99), run(0, 1, BEGIN), LIMIT, BEGIN)
                .expect("room");
        }
        let sent = send(&mut flows, 1, BEGIN).map(|(slot, _)| slot);
        own += usize::from(sent == flows.slot(&tcp(99).key));
    }
    // The 41st part of 400 packets, or less: it never has two that wait.
    assert!((5..=12).contains(&own), "{own}");
}

/// A rule for all flows of a port.
fn deadline_rule(port: u16, deadline: Option<u64>) -> DeadlineRule {
    DeadlineRule {
        protocol: None,
        ports: Some((port, port)),
        near: None,
        far: None,
        dscp: None,
        deadline: deadline.map(Duration::from_millis),
    }
}

#[test]
fn the_first_rule_that_fits_sets_the_deadline_of_datagrams_and_tcp_has_none() {
    let mut flows = flows();
    let rules = vec![
        deadline_rule(5005, None),
        deadline_rule(443, Some(150)),
        deadline_rule(5005, Some(80)),
    ];
    flows.set_deadlines(rules, true);
    let quic = summary(protocol::UDP, 40_000, 443, 0);
    let excepted = summary(protocol::UDP, 40_000, 5005, 0);
    let mut deadline = |summary: &Summary| {
        flows
            .enqueue(summary, run(1, 1, BEGIN), LIMIT, BEGIN)
            .expect("room");
        let flow = flows.get(flows.slot(&summary.key).expect("known"));
        flow.map(|flow| (flow.class, flow.unordered, flow.deadline()))
            .expect("known")
    };
    let in_time = (Class::Realtime, true, Some(MS * 150));
    assert_eq!(deadline(&quic), in_time, "datagrams of any protocol");
    assert_eq!(deadline(&summary(protocol::TCP, 40_000, 443, 0)).2, None);
    assert_eq!(deadline(&excepted).2, None, "an exception");
    flows.set_deadlines(vec![deadline_rule(5005, Some(80))], true);
    let mut deadline = |summary: &Summary| {
        flows
            .enqueue(summary, run(1, 1, BEGIN), LIMIT, BEGIN)
            .expect("room");
        flows
            .get(flows.slot(&summary.key).expect("known"))
            .and_then(Flow::deadline)
    };
    assert_eq!(
        deadline(&excepted),
        Some(MS * 80),
        "flows that are there heed new rules"
    );
    assert_eq!(deadline(&quic), None);
}

#[test]
fn sides_of_a_rule_are_the_client_s_and_the_far_one_in_both_directions() {
    let near = summary(protocol::UDP, 40_000, 5004, 0);
    let rule = DeadlineRule {
        near: Some(Net::host(near.key.source)),
        far: Some(Net::host(near.key.destination)),
        ..deadline_rule(5004, Some(150))
    };
    let back = Summary {
        key: FlowKey {
            source: near.key.destination,
            destination: near.key.source,
            source_port: near.key.destination_port,
            destination_port: near.key.source_port,
            ..near.key
        },
        ..near
    };
    assert!(rule.matches(&near, true) && rule.matches(&back, false));
    assert!(!rule.matches(&near, false) && !rule.matches(&back, true));
}
