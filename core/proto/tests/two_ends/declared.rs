//! A flow that has declared its rate beside downloads: both ends over emulated links.

use hawser_proto::egress::Declaration;
use hawser_proto::pool::allocation::Need;
use hawser_proto::pool::requirement::Requirement;
use hawser_units::{Bytes, Duration, Rate};
use hawser_wire::inner::{FlowKey, protocol};

use crate::harness::{CLIENT, HUB, Net, Work, World, ms, net};

/// Flow that may have declared its rate.
const FLOW: u16 = 1;
/// Bytes of a packet of its payload, and with headers.
const PAYLOAD: u64 = 1172;
const LEN: u64 = 1200;
const FROM: Duration = Duration::from_secs(3);
const TO: Duration = Duration::from_secs(18);

/// Modems of 8, 5 and 3 Mbit/s; the fastest and nearest loses two packets in a hundred.
const MODEMS: [Net; 3] = [lossy(8.0, 15), net(5.0, 20), net(3.0, 25)];

/// A flow of 1 Mbit/s beside one upload.
const UPLOAD: Case = Case {
    nets: MODEMS,
    kind: protocol::UDP,
    mbps: 1.0,
    uploads: 1,
    others: 0,
};

const fn lossy(mbps: f64, delay_ms: u64) -> Net {
    Net {
        loss: 0.02,
        ..net(mbps, delay_ms)
    }
}

fn declaration(kind: u8, mbps: f64, deadline: Option<u64>) -> Declaration {
    Declaration {
        key: FlowKey {
            source: [10, 0, 0, 1].into(),
            destination: [10, 0, 0, 2].into(),
            protocol: kind,
            source_port: FLOW,
            destination_port: 9,
        },
        need: Need {
            traffic: Requirement::TokenBucket {
                rate: Rate::from_bps((mbps * 1e6) as u64),
                burst: Bytes(2 * PAYLOAD),
            },
            deadline: deadline.map(ms),
        },
    }
}

/// A flow with this rate of payload, Mbit/s, beside uploads.
struct Case {
    nets: [Net; 3],
    kind: u8,
    mbps: f64,
    uploads: u16,
    /// Number of similar flows without a declaration.
    others: u16,
}

/// Result of the flow.
struct Seen {
    /// Share of its packets that were lost.
    lost: f64,
    median: Duration,
    /// 99th percentile of the delay.
    late: Duration,
    /// Mbit/s of all uploads.
    uploads: f64,
    /// Its bytes by path.
    by_path: [u64; 3],
}

impl Case {
    fn run(&self, declaration: Option<Declaration>) -> Seen {
        let mut world = World::new(&self.nets, 7);
        let mbps = self.mbps * LEN as f64 / PAYLOAD as f64;
        let steady = Work::Open {
            mbps,
            len: LEN,
            kind: self.kind,
        };
        let now = world.now;
        let own = world.ends[CLIENT].egress_mut();
        own.set_declared(declaration.as_slice(), now);
        world.start(CLIENT, FLOW, steady, ms(500), TO);
        for upload in 0..self.uploads {
            world.start(
                CLIENT,
                10 + upload,
                Work::Bulk,
                ms(600 + 50 * u64::from(upload)),
                TO,
            );
        }
        for other in 0..self.others {
            world.start(CLIENT, 50 + other, steady, ms(600), TO);
        }
        world.run(FROM);
        let first = world.ends[CLIENT].offered[&FLOW];
        world.run(TO + ms(3_000));
        let counted = first..world.ends[CLIENT].offered[&FLOW];
        let offered = counted.end - counted.start;
        let sink = world.ends[HUB].sink(FLOW);
        let arrived = sink.seen.range(counted).count();
        let sinks = (0..self.uploads).filter_map(|upload| world.ends[HUB].sinks.get(&(10 + upload)));
        let flows = world.ends[CLIENT].egress().flows();
        let key = self::declaration(self.kind, 1.0, None).key;
        let flow = flows
            .slot(&key)
            .and_then(|slot| flows.get(slot))
            .expect("it sends");
        let bytes = |path: u16| {
            flow.by_path
                .iter()
                .find(|(id, _)| *id == path)
                .map_or(0, |(_, n)| *n)
        };
        Seen {
            lost: 1.0 - arrived as f64 / offered as f64,
            median: sink.delay(0.5, FROM, TO),
            late: sink.delay(0.99, FROM, TO),
            uploads: sinks.map(|sink| sink.mbps(FROM, TO)).sum(),
            by_path: [0, 1, 2].map(bytes),
        }
    }
}

/// Returns the results of the flow without and with a declaration.
#[allow(clippy::print_stdout, reason = "the figures of docs/manual/schedulers.md")]
fn compare(name: &str, case: &Case, deadline: Option<u64>) -> [Seen; 2] {
    let declared = declaration(case.kind, case.mbps, deadline);
    let seen = [None, Some(declared)].map(|declaration| case.run(declaration));
    for (seen, how) in seen.iter().zip(["undeclared", "declared"]) {
        println!(
            "{name}, {how}: lost {:.2} %, delay {:.0} ms, of 1 % above {:.0} ms, uploads {:.2} Mbit/s, by path {:?}",
            seen.lost * 100.0,
            seen.median.as_secs_f64() * 1e3,
            seen.late.as_secs_f64() * 1e3,
            seen.uploads,
            seen.by_path
        );
    }
    seen
}

#[test]
fn what_is_declared_takes_the_networks_that_lose_nothing_and_no_copies() {
    for (kbps, is_lossy) in [(1_000, false), (4_000, true)] {
        let case = Case {
            mbps: f64::from(kbps) / 1e3,
            ..UPLOAD
        };
        let [undeclared, declared] = compare(&format!("{kbps} kbit/s"), &case, None);
        assert!(!is_lossy || undeclared.lost > 0.0005);
        assert!(declared.lost < 0.0002);
        let all: u64 = declared.by_path.iter().sum();
        assert!(declared.by_path[0] * 20 < all && undeclared.by_path[0] * 3 > all);
        assert!(declared.uploads > undeclared.uploads * 1.02);
        assert!(declared.late < undeclared.late + ms(15));
    }
}

#[test]
fn a_stream_in_order_goes_ahead_of_uploads() {
    let case = Case {
        kind: protocol::TCP,
        mbps: 4.0,
        uploads: 8,
        ..UPLOAD
    };
    let [undeclared, declared] = compare("in order beside eight uploads", &case, None);
    assert!(declared.lost == 0.0);
    assert!(declared.late < undeclared.late * 2 / 3);
    assert!(declared.uploads > undeclared.uploads * 0.98);
}

#[test]
fn a_stream_goes_ahead_of_others_that_are_more_than_there_is_together() {
    for kind in [protocol::UDP, protocol::TCP] {
        let case = Case {
            kind,
            mbps: 4.0,
            uploads: 0,
            others: 8,
            ..UPLOAD
        };
        let [undeclared, declared] = compare("one of nine streams of 4 Mbit/s", &case, None);
        assert!(
            undeclared.lost > 0.4,
            "a ninth of what there is is less than half"
        );
        assert!(declared.lost < 0.0005);
        assert!(declared.late < undeclared.late / 4);
    }
}

#[test]
fn a_flow_that_declares_more_than_there_is_leaves_a_quarter_to_others() {
    let case = Case {
        mbps: 30.0,
        uploads: 4,
        ..UPLOAD
    };
    let [undeclared, declared] = compare("30 Mbit/s beside four uploads", &case, None);
    let fifth = (declared.uploads * 5.0).min(16.0);
    assert!(
        fifth > 0.8 * 16.0 * 0.8,
        "four fifths of a quarter: {}",
        declared.uploads
    );
    assert!(1.0 - declared.lost > (1.0 - undeclared.lost) * 3.0);
}

#[test]
fn networks_that_are_too_far_for_a_deadline_are_not_taken() {
    let nets = [lossy(8.0, 20), net(5.0, 200), lossy(3.0, 25)];
    let case = Case { nets, ..UPLOAD };
    let [_, reliable] = compare("a far network that loses nothing", &case, None);
    assert!(reliable.median > ms(190));
    let [_, timely] = compare("the same, of use for 150 ms", &case, Some(150));
    assert!(timely.late < ms(150));
    assert!(timely.lost < 0.01, "copies are sent: {}", timely.lost);
}
