//! Random operations on an egress: every buffer is returned once, no unvalidated address gets more
//! than its budget, and no call loops forever.

use std::collections::{BTreeMap, BTreeSet};

use hawser_proto::egress::{Body, Declaration, Egress};
use hawser_proto::flow::Run;
use hawser_proto::path::{self, Probing, State};
use hawser_proto::pool::allocation::Need;
use hawser_proto::pool::requirement::Requirement;
use hawser_proto::scheduler;
use hawser_units::{Bytes, Duration, Instant, PathId, Rate};
use hawser_wire::compression::Form;
use hawser_wire::data::{Class, FRAMING, Feedback, Marks, Missing};
use hawser_wire::layer::{Layer, Pattern, Reading, Rule};
use hawser_wire::offload::Offload;
use hawser_wire::parity::PARITY_LEN;
use proptest::prelude::*;

#[derive(Clone, Debug)]
enum Op {
    Open {
        path: u16,
        hub: bool,
        reachable: bool,
        mtu: u16,
    },
    Close(u16),
    Enqueue {
        flow: u16,
        tcp: bool,
        ecn: bool,
        payload: u16,
        segment: u16,
    },
    Garbage(Vec<u8>),
    Report {
        path: u16,
        all: bool,
        report: Feedback,
    },
    Reply {
        path: u16,
        back: usize,
    },
    Probe(u16),
    SendReport(u16),
    Heard(u16, u64),
    Moved(u16),
    Schedule(usize, usize),
    Cap(u16, Option<u64>),
    Declare(Vec<(u16, bool, u32, u32, u64)>),
    Wait(u64),
    Timeout,
}

fn op() -> impl Strategy<Value = Op> {
    let path = || 0u16..4;
    prop_oneof![
        2 => (path(), any::<bool>(), any::<bool>(), 600u16..9000)
            .prop_map(|(path, hub, reachable, mtu)| Op::Open { path, hub, reachable, mtu }),
        1 => path().prop_map(Op::Close),
        8 => (0u16..6, any::<bool>(), any::<bool>(), 0u16..20_000, 0u16..3_000)
            .prop_map(|(flow, tcp, ecn, payload, segment)| Op::Enqueue { flow, tcp, ecn, payload, segment }),
        1 => prop::collection::vec(any::<u8>(), 0..80).prop_map(Op::Garbage),
        4 => (path(), any::<bool>(), any::<u64>(), any::<[u32; 6]>(), any::<u64>(),
            prop::collection::vec((0u16..40, 1u16..80), 0..4)).prop_map(
            |(path, all, highest, [packets, more, received_us, hold_us, delay_us, spread_us], bytes, ranges)| {
                let mut missing = Missing::default();
                for (back, count) in ranges {
                    missing.push(back, count);
                }
                let highest = if highest % 2 == 0 { highest % 64 } else { highest >> 16 };
                let report = Feedback { highest, packets, bytes: bytes >> 16, received_us, hold_us, delay_us, spread_us, open: more as u16, missing, takes_parity: more % 2 == 0, takes_fragments: more % 3 == 0, marks: (more % 5 != 0).then_some(Marks { ect: more as u16, ce: packets as u16 }), is_policed: more % 7 == 0, takes_streams: more % 11 == 0, takes_bundles: more % 13 == 0, path: PathId(if packets % 5 == 0 { path ^ 1 } else { path }) };
                Op::Report { path, all, report }
            }
        ),
        8 => (path(), 0usize..3).prop_map(|(path, back)| Op::Reply { path, back }),
        1 => path().prop_map(Op::Probe),
        1 => path().prop_map(Op::SendReport),
        4 => (path(), 40u64..1500).prop_map(|(path, bytes)| Op::Heard(path, bytes)),
        1 => path().prop_map(Op::Moved),
        2 => (0usize..4, 0usize..scheduler::NAMES.len()).prop_map(|(class, name)| Op::Schedule(class, name)),
        1 => (path(), proptest::option::of(any::<u64>())).prop_map(|(path, cap)| Op::Cap(path, cap)),
        2 => prop::collection::vec((0u16..6, any::<bool>(), any::<u32>(), any::<u32>(), 0u64..300), 0..4)
            .prop_map(Op::Declare),
        4 => (0u64..100_000_000).prop_map(Op::Wait),
        1 => (0u64..20_000_000_000).prop_map(Op::Wait),
        4 => Just(Op::Timeout),
    ]
}

fn packet(flow: u16, tcp: bool, ecn: bool, payload: u16) -> Vec<u8> {
    let len = (if tcp { 40 } else { 28 }) + usize::from(payload);
    let mut packet = vec![0; len];
    packet[0] = 0x45;
    packet[1] = u8::from(ecn);
    packet[2..4].copy_from_slice(&(len as u16).to_be_bytes());
    packet[9] = if tcp { 6 } else { 17 };
    packet[20..22].copy_from_slice(&flow.to_be_bytes());
    if tcp {
        packet[32] = 5 << 4;
    }
    packet
}

fn declaration((flow, tcp, bps, burst, ms): (u16, bool, u32, u32, u64)) -> Declaration {
    let key = hawser_wire::inner::parse(&packet(flow, tcp, false, 0))
        .expect("valid")
        .key;
    let traffic = Requirement::TokenBucket {
        rate: Rate::from_bps(bps.into()),
        burst: Bytes(burst.into()),
    };
    let deadline = (ms > 0).then(|| Duration::from_millis(ms));
    Declaration {
        key,
        need: Need { traffic, deadline },
    }
}

/// Returns an egress in which three of the flows carry one layer each.
fn layered(mut egress: Egress<usize>) -> Egress<usize> {
    let rule = |layer: u8| Rule {
        pattern: Pattern {
            port: Some(3 + u16::from(layer)),
            ..Pattern::default()
        },
        reading: Reading::Fixed(Layer(layer)),
    };
    egress.set_layer_rules(vec![rule(0), rule(1), rule(2)]);
    egress
}

struct Driver {
    egress: Egress<usize>,
    now: Instant,
    next: usize,
    lent: BTreeMap<usize, Vec<u8>>,
    tokens: BTreeMap<u16, Vec<u64>>,
    sent: BTreeMap<u16, (u64, u64)>,
    /// By path: bytes received from and sent to an unvalidated address.
    unproven: BTreeMap<u16, (u64, u64)>,
    /// Sequence numbers by flow slot and path: a place in a flow is sent once on each path at most.
    places: BTreeSet<(u16, bool, u32, u16)>,
    /// Buffer and place of the context that each flow sent last.
    contexts: BTreeMap<u16, (usize, u32)>,
}

impl Driver {
    /// A compressed packet refers to the context that its flow sent last, by its place as well as
    /// by its segment.
    fn check_context(&mut self, run: &Run<usize>, step: u16, flow: u16, place: u32) {
        let index = run.next + step;
        match run.form(index) {
            Form::Whole => {}
            Form::Context => {
                self.contexts.insert(flow, (run.buffer, place));
            }
            Form::Compressed => {
                let back = u32::from(index - run.context.expect("it is compressed"));
                let expected = (run.buffer, place.wrapping_sub(back));
                assert_eq!(self.contexts.get(&flow), Some(&expected), "flow {flow}");
            }
        }
    }

    fn apply(&mut self, op: Op) {
        let now = self.now;
        match op {
            Op::Open {
                path,
                hub,
                reachable,
                mtu,
            } => {
                if self.egress.paths().any(|open| open.id == PathId(path)) {
                    return;
                }
                let probing = if hub { Probing::OnHearing } else { Probing::Eager };
                let config = path::Config {
                    id: PathId(path),
                    probing,
                    cap: None,
                    mtu,
                    overhead: 68,
                };
                self.egress.open_path(config, reachable, now);
                self.sent.insert(path, (0, 0));
                self.tokens.remove(&path);
                self.unproven.remove(&path);
                if hub {
                    self.unproven.insert(path, (0, 0));
                }
                self.places.retain(|(_, _, _, on)| *on != path);
            }
            Op::Close(path) => self.egress.close_path(PathId(path), self.now),
            Op::Enqueue {
                flow,
                tcp,
                ecn,
                payload,
                segment,
            } => {
                let mut packet = packet(flow, tcp, ecn, payload);
                let offload = Offload {
                    checksum_partial: true,
                    segment,
                };
                self.next += 1;
                if self.egress.enqueue(&mut packet, offload, self.next, now).is_ok() {
                    self.lent.insert(self.next, packet);
                }
            }
            Op::Garbage(mut bytes) => {
                self.next += 1;
                if self
                    .egress
                    .enqueue(&mut bytes, Offload::default(), self.next, now)
                    .is_ok()
                {
                    self.lent.insert(self.next, bytes);
                }
            }
            Op::Report { path, all, report } => {
                let (packet_number, bytes) = self.sent.get(&path).copied().unwrap_or_default();
                let truth = Feedback {
                    path: PathId(path),
                    highest: packet_number,
                    packets: packet_number as u32,
                    bytes,
                    ..report
                };
                self.egress
                    .handle_feedback(PathId(path), if all { &truth } else { &report }, now);
            }
            Op::Reply { path, back } => {
                let token = self
                    .tokens
                    .get(&path)
                    .and_then(|tokens| tokens.iter().rev().nth(back))
                    .copied();
                self.egress
                    .handle_probe_reply(PathId(path), token.unwrap_or(9), now);
            }
            Op::Probe(path) => self.egress.handle_probe(PathId(path), 4),
            Op::SendReport(path) => {
                let mut missing = Missing::default();
                missing.push(1, 1);
                self.egress.send_report(Feedback {
                    path: PathId(path),
                    missing,
                    ..Feedback::default()
                });
            }
            Op::Heard(path, bytes) => {
                self.egress.handle_heard(PathId(path), (1, bytes), now);
                if let Some((heard, _)) = self.unproven.get_mut(&path) {
                    *heard += bytes;
                }
            }
            Op::Moved(path) => {
                self.egress.handle_moved(PathId(path), 88, now);
                let hub =
                    |open: &&path::Path| open.id == PathId(path) && open.probing() == Probing::OnHearing;
                if self.egress.paths().find(hub).is_some() {
                    self.unproven.insert(path, (0, 0));
                }
            }
            Op::Schedule(class, name) => {
                let class = Class::ALL[class];
                self.egress
                    .set_scheduler(class, scheduler::NAMES[name])
                    .expect("it is known");
            }
            Op::Declare(flows) => {
                let flows: Vec<_> = flows.into_iter().map(declaration).collect();
                self.egress.set_declared(&flows, now);
            }
            Op::Cap(path, cap) => self.egress.set_cap(PathId(path), cap.map(Rate::from_bps)),
            Op::Wait(nanos) => self.now += Duration::from_nanos(nanos),
            Op::Timeout => {
                let due = self.egress.poll_timeout(now);
                if due != Instant::FAR_FUTURE {
                    self.now = now.max(due);
                }
            }
        }
    }

    fn give_back(&mut self, buffer: usize) {
        assert!(
            self.lent.remove(&buffer).is_some(),
            "buffer {buffer} is given back and was not lent"
        );
    }

    /// Executes the daemon's actions after each change. Returns whether anything was sent or
    /// changed.
    fn service(&mut self) -> bool {
        let now = self.now;
        self.egress.handle_timeout(now);
        let mut progress = false;
        while let Some((path, _)) = self.egress.poll_change() {
            progress = true;
            if self
                .egress
                .paths()
                .any(|open| open.id == path && open.state() == State::Active)
            {
                self.unproven.remove(&path.0);
            }
        }
        for count in 0.. {
            let Some(transmit) = self.egress.poll_transmit(now) else {
                break;
            };
            progress = true;
            assert!(count < 20_000, "sends without end");
            let path = transmit.path.0;
            let (packets, bytes) = match transmit.body {
                Body::Packets {
                    run,
                    count,
                    flow,
                    sequence,
                    last,
                    retransmission,
                    covered,
                    unordered,
                    piece,
                    ..
                } => {
                    assert!(
                        self.lent.contains_key(&run.buffer),
                        "sends a buffer that was given back"
                    );
                    assert!(count > 0 && run.next + piece.map_or(count, |_| 1) <= run.cut.count());
                    let fits = self.egress.paths().find(|open| open.id == transmit.path);
                    let mtu = usize::from(fits.expect("it sends").mtu());
                    let state = self
                        .egress
                        .paths()
                        .find(|open| open.id == transmit.path)
                        .map(path::Path::state);
                    assert!(matches!(state, Some(State::Active | State::Suspect)), "{state:?}");
                    let len = |step| match piece {
                        Some(piece) => piece.body_len(step),
                        None => run.len_of(run.next + step),
                    };
                    assert!(
                        (0..count).all(|step| len(step) <= mtu),
                        "larger than its path takes"
                    );
                    let bytes = (0..count).map(|step| len(step) + FRAMING).sum::<usize>();
                    for step in 0..piece.map_or(count, |_| 1) {
                        let place = (flow, unordered, sequence.add(u32::from(step)).0, path);
                        assert!(
                            self.places.insert(place) || retransmission,
                            "{place:?} was sent before"
                        );
                        if !retransmission {
                            self.check_context(&run, step, flow, place.2);
                        }
                    }
                    if covered {
                        let packet = &self.lent[&run.buffer];
                        self.egress.cover(&transmit, &packet[..run.cut.total()], now);
                    }
                    if last {
                        self.give_back(run.buffer);
                    }
                    (u64::from(count), bytes as u64)
                }
                Body::Stream { .. } | Body::StreamFrames => unreachable!("no stream was opened"),
                Body::Report(report) => (1, (FRAMING + report.emitted_len()) as u64),
                Body::Probe(probe) => {
                    self.tokens.entry(path).or_default().push(probe.token);
                    (1, u64::from(probe.outer_len.max(48)))
                }
                Body::Reply(_) => (1, 48),
                Body::Bundle { len, .. } => (1, (FRAMING + len) as u64),
                Body::Parity { .. } => (1, (FRAMING + PARITY_LEN + self.egress.symbol().len()) as u64),
            };
            let (packet_number, total) = self.sent.get_mut(&path).expect("an open path");
            assert_eq!(transmit.packet_number, *packet_number + 1, "counters have no gap");
            *packet_number += packets;
            *total += bytes;
            if let Some((heard, sent)) = self.unproven.get_mut(&path) {
                *sent += bytes;
                assert!(
                    *sent <= 3 * *heard,
                    "{sent} bytes to an unproven address that sent {heard}"
                );
            }
        }
        while let Some(buffer) = self.egress.poll_freed() {
            self.give_back(buffer);
        }
        progress
    }

    fn settle(&mut self) {
        for round in 0.. {
            self.service();
            let due = self.egress.poll_timeout(self.now);
            if due > self.now {
                return;
            }
            assert!(round < 20, "spins: due {due:?} at {:?}", self.now);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(250) })]

    #[test]
    fn every_buffer_comes_back_and_nothing_spins(ops in prop::collection::vec(op(), 1..250)) {
        let now = Instant::from_nanos(1_000_000_000);
        let mut driver = Driver {
            egress: layered(Egress::new(1, now)),
            now,
            next: 0,
            lent: BTreeMap::new(),
            tokens: BTreeMap::new(),
            sent: BTreeMap::new(),
            unproven: BTreeMap::new(),
            places: BTreeSet::new(),
            contexts: BTreeMap::new(),
        };
        for op in ops {
            driver.apply(op);
            driver.settle();
        }
        let backlog = driver.egress.flows().backlog();
        prop_assert!(backlog == 0 || !driver.lent.is_empty(), "{backlog} bytes in {:?}", driver.lent);
        if backlog == 0 {
            // Sent packets are stored for at most 1 s, and for 3 s more while packets lost on a
            // silent path are retransmitted over others.
            driver.apply(Op::Wait(4_100_000_000));
            driver.settle();
            prop_assert!(driver.lent.is_empty(), "{:?} are kept for ever", driver.lent);
        }
        for buffer in driver.egress.close() {
            driver.give_back(buffer);
        }
        prop_assert!(driver.lent.is_empty(), "{:?} were not given back", driver.lent);
    }
}
