use hawser_units::PathId;
use hawser_wire::inner::tcp_flag;
use hawser_wire::offload::Offload;

use super::super::Body;
use super::super::tests::{active, segment};
use super::*;

const START: Instant = Instant::from_nanos(1_000_000_000);
const NOW: Instant = Instant::from_nanos(1_150_000_000);

/// A segment of TCP of the flow of that number.
fn packet(flow: u16, payload: usize) -> Vec<u8> {
    let mut packet = segment(tcp_flag::ACK, payload);
    packet[20..22].copy_from_slice(&flow.to_be_bytes());
    packet
}

fn declaration(flow: u16, kbps: u64, burst: u64, deadline: Option<u64>) -> Declaration {
    Declaration {
        key: FlowKey {
            source: [0, 0, 0, 0].into(),
            destination: [0, 0, 0, 0].into(),
            protocol: protocol::TCP,
            source_port: flow,
            destination_port: 0,
        },
        need: Need {
            traffic: Requirement::TokenBucket {
                rate: Rate::from_bps(kbps * 1_000),
                burst: Bytes(burst),
            },
            deadline: deadline.map(Duration::from_millis),
        },
    }
}

/// An end with one path, where these flows offer as many packets of 1000 bytes each.
fn offered(flows: &[(u16, usize)], declarations: &[Declaration]) -> Egress<u32> {
    let mut egress = active(START, NOW);
    egress.set_declared(declarations, NOW);
    for (flow, count) in flows {
        for _ in 0..*count {
            egress
                .enqueue(&mut packet(*flow, 1_000), Offload::default(), (*flow).into(), NOW)
                .expect("there is room");
        }
    }
    egress
}

/// Of which flow each packet is that goes at once.
fn sent(egress: &mut Egress<u32>, at: Instant) -> Vec<u32> {
    std::iter::from_fn(|| egress.poll_transmit(at))
        .filter_map(|transmit| match transmit.body {
            Body::Packets { run, count, .. } => Some(vec![run.buffer; count.into()]),
            Body::Stream { .. }
            | Body::StreamFrames
            | Body::Bundle { .. }
            | Body::Report(_)
            | Body::Probe(_)
            | Body::Reply(_)
            | Body::Parity { .. } => None,
        })
        .flatten()
        .collect()
}

#[test]
fn what_keeps_to_a_declaration_goes_ahead_and_the_rest_waits_its_turn() {
    let flows = [(1, 8), (2, 8), (3, 8)];
    let all = sent(&mut offered(&flows, &[]), NOW);
    assert_eq!(all[..3], [1, 1, 1], "in turn: {all:?}");
    let declared = [declaration(3, 8_000, 4_000, None)];
    let all = sent(&mut offered(&flows, &declared), NOW);
    assert_eq!(all[..4], [3, 3, 3, 3], "{all:?}");
    // Nothing is taken from its share for what it has sent ahead.
    let first = |flow| all[4..].iter().position(|one| *one == flow);
    assert!(first(1) < first(2) && first(2) < first(3), "{all:?}");
    assert!(first(3).is_some_and(|at| at <= 8), "{all:?}");
}

#[test]
fn others_of_the_same_address_and_flows_beyond_the_bound_are_not_declared() {
    let flows = [(1, 8), (2, 8)];
    let other = declaration(7, 8_000, 4_000, None);
    assert_eq!(sent(&mut offered(&flows, &[other]), NOW)[0], 1);
    let mut many = vec![other; MAX_DECLARED];
    many.push(declaration(2, 8_000, 4_000, None));
    assert_eq!(sent(&mut offered(&flows, &many), NOW)[0], 1);
    many.remove(0);
    assert_eq!(sent(&mut offered(&flows, &many), NOW)[0], 2);
}

#[test]
fn what_is_declared_again_keeps_its_bucket() {
    let flows = [(1, 60), (2, 60)];
    let declared = [declaration(2, 80, 4_000, None)];
    let ahead = |is_said_again: bool| {
        let mut egress = offered(&flows, &declared);
        let first = sent(&mut egress, NOW);
        assert_eq!(first[..4], [2, 2, 2, 2], "{first:?}");
        if is_said_again {
            egress.set_declared(&declared, NOW);
        } else {
            egress.set_declared(&[], NOW);
            egress.set_declared(&declared, NOW);
        }
        assert!(egress.poll_declared(Duration::ZERO, NOW).is_none() || !is_said_again);
        egress.keeps_to_declared(1, NOW).is_some()
    };
    assert!(!ahead(true));
    assert!(ahead(false));
}

/// Where flows of such needs go, by path, and what of their rate is ahead, with so many kbit/s
/// carried.
fn planned(declarations: &[Declaration], channels: &[Channel], kbps: u64) -> (Vec<Vec<u16>>, Vec<u64>) {
    let flows: Vec<_> = declarations.iter().map(|one| (one.key.source_port, 1)).collect();
    let mut egress = offered(&flows, declarations);
    let capacity = Capacity {
        carried: Rate::from_bps(kbps * 1_000),
        is_measured: true,
    };
    let Egress { declared, flows, .. } = &mut egress;
    declared.plan(flows, channels, capacity, NOW);
    let ahead = |entry: &Entry| {
        let mut policer = entry.policer;
        while policer.handle_packet(100, NOW) {}
        (0..100_u64)
            .filter(|step| policer.handle_packet(100, NOW + Duration::from_millis(10) * (*step as u32)))
            .count() as u64
            * 800
            / 1_000
    };
    let paths = |entry: &Entry| entry.paths.iter().map(|path| path.0).collect();
    let entries = &egress.declared.entries;
    (
        entries.iter().map(paths).collect(),
        entries.iter().map(ahead).collect(),
    )
}

fn channel(id: u16, kbps: u64, loss: f64, delay: u64) -> Channel {
    Channel {
        id: PathId(id),
        rate: Rate::from_bps(kbps * 1_000),
        loss,
        delay: Duration::from_millis(delay),
    }
}

#[test]
fn the_most_reliable_paths_that_hold_the_rate_are_taken_and_those_that_lose_no_more() {
    let channels = [
        channel(1, 8_000, 0.02, 10),
        channel(2, 5_000, 0.0, 20),
        channel(3, 3_000, 0.0, 40),
        channel(4, 3_000, 0.05, 5),
    ];
    let taken = |kbps, deadline| planned(&[declaration(1, kbps, 0, deadline)], &channels, 20_000).0;
    assert_eq!(taken(1_000, None), [[2, 3]]);
    assert_eq!(taken(7_000, None), [[2, 3]]);
    assert_eq!(taken(9_000, None), [[1, 2, 3]]);
    assert_eq!(
        taken(90_000, None),
        [[1, 2, 3]],
        "of three quarters of what is carried"
    );
    // A declaration that does not fit gets all channels, except those that deliver too late.
    assert_eq!(
        planned(&[declaration(1, 90_000, 0, None)], &channels, 40_000).0,
        [[1, 2, 3, 4]]
    );
    assert_eq!(taken(1_000, Some(30)), [[2]]);
    assert_eq!(taken(15_500, Some(30)), [[1, 2, 4]]);
    assert_eq!(taken(1_000, Some(3)), [[0; 0]]);
    // Two flows that fit together, and one that does not fit beside them.
    let two = [declaration(1, 4_000, 0, None), declaration(2, 3_000, 0, None)];
    assert_eq!(planned(&two, &channels, 20_000).0, [[2, 3], [2, 3]]);
}

#[test]
fn a_quarter_is_left_to_everybody_whatever_is_declared() {
    let channels = [channel(1, 1_600, 0.0, 10)];
    let ahead = |each: &[u64], carried| {
        let all: Vec<_> = each
            .iter()
            .enumerate()
            .map(|(flow, kbps)| declaration(flow as u16 + 1, *kbps, 0, None))
            .collect();
        planned(&all, &channels, carried).1
    };
    let near = |got: Vec<u64>, expected: &[u64]| {
        assert_eq!(got.len(), expected.len());
        for (got, expected) in got.iter().zip(expected) {
            assert!(got.abs_diff(*expected) <= 2, "{got} of {expected}");
        }
    };
    near(ahead(&[40], 1_600), &[40]);
    near(ahead(&[400], 80), &[60]);
    // Nobody loses by what another one declares.
    near(ahead(&[400, 20], 80), &[40, 20]);
    near(ahead(&[400, 4_000_000, 20], 80), &[20, 20, 20]);
    // Flows keep all of their rate against later ones.
    near(ahead(&[30, 20, 40], 80), &[30, 20, 10]);
    // Before anything is known of paths.
    near(ahead(&[40], 0), &[40]);
}

#[test]
fn a_flow_is_admitted_once_it_sends_and_fits_and_is_not_displaced() {
    let declarations = [1, 2, 3].map(|flow| declaration(flow, 400, 0, None));
    let mut egress = offered(&[(1, 1), (2, 1)], &declarations);
    let channels = [channel(1, 1_000, 0.0, 10)];
    let names = |egress: &mut Egress<u32>, seconds: u64, is_measured| {
        let capacity = Capacity {
            carried: Rate::from_mbps(1),
            is_measured,
        };
        let Egress { declared, flows, .. } = egress;
        declared.plan(flows, &channels, capacity, NOW + Duration::from_secs(seconds));
        let verdicts = egress.admissions().map(|(_, verdict)| verdict.name());
        verdicts.collect::<Vec<_>>()
    };
    assert_eq!(
        names(&mut egress, 0, false),
        ["admitted", "undecided", "undecided"]
    );
    assert_eq!(names(&mut egress, 1, true), ["admitted", "rejected", "undecided"]);
    // The first one withdraws its declaration.
    egress.set_declared(&declarations[1..], NOW);
    assert_eq!(names(&mut egress, 2, true), ["admitted", "undecided"]);
}

#[test]
fn a_burst_is_no_more_than_half_a_second_at_the_flows_rate() {
    let bucket = |kbps, burst, part| declaration(1, kbps, burst, None).bucket(part);
    assert_eq!(bucket(800, 1 << 30, 1.0).burst(), Bytes(50_000));
    assert_eq!(bucket(800, 1 << 30, 0.5).burst(), Bytes(25_000));
    assert_eq!(bucket(800, 3_000, 1.0).burst(), Bytes(3_000));
    assert_eq!(bucket(800, 0, 1.0).burst(), Bytes(FULL_PACKET));
    assert_eq!(bucket(0, 1 << 30, 1.0).burst(), Bytes(FULL_PACKET));
}
