//! Multipath TCP: published formulas and their effects.

mod wire;

use hawser_netem::{Change, State};
use hawser_sim::app::{Jitter, TcpSink, TcpSource};
use hawser_sim::mptcp::{Config, Coupling, MptcpSink, MptcpSource, Scheduler, View, lia_alpha, olia_alpha};
use hawser_sim::tcp::{self, Congestion};
use hawser_units::Instant;
use serde_json::Value;
use wire::{Pair, at, link, ms, queue};

fn numbers(value: &Value) -> Vec<f64> {
    let list = value.as_array().expect("an array");
    list.iter().map(|n| n.as_f64().expect("a number")).collect()
}

fn is_near(found: f64, expected: f64) -> bool {
    (found - expected).abs() <= 1e-9 * expected.abs().max(1e-3)
}

#[test]
fn windows_grow_and_shrink_by_the_published_formulas() {
    let file: Value = serde_json::from_str(include_str!("data/mptcp_cc.json")).expect("JSON");
    let cases = file["vectors"].as_array().expect("an array");
    assert!(cases.len() >= 10);
    for case in cases {
        let (windows, trips, distances) = (numbers(&case["w"]), numbers(&case["rtt"]), numbers(&case["l"]));
        let views: Vec<View> = (0..windows.len())
            .map(|n| View {
                window: windows[n],
                round_trip: trips[n],
                loss_distance: distances[n],
            })
            .collect();
        assert!(is_near(
            lia_alpha(&views),
            case["lia_alpha"].as_f64().expect("a number")
        ));
        for (n, view) in views.iter().enumerate() {
            let expect = |name: &str, found: f64| {
                let expected = numbers(&case[name])[n];
                assert!(is_near(found, expected), "{name} {n} of {case}: {found}");
            };
            expect("lia_inc", Coupling::Lia.response(&views, n).increase);
            expect("olia_alpha", olia_alpha(&views, n));
            expect("olia_inc", Coupling::Olia.response(&views, n).increase);
            let balia = Coupling::Balia.response(&views, n);
            expect("balia_inc", balia.increase);
            expect("balia_dec", view.window * (1.0 - balia.left));
        }
    }
}

#[test]
fn jitter_is_that_of_the_standard() {
    let file: Value = serde_json::from_str(include_str!("data/rtp_jitter.json")).expect("JSON");
    for case in file["vectors"].as_array().expect("an array") {
        let mut arrivals: Vec<(f64, f64)> = numbers(&case["recv_ms"])
            .into_iter()
            .zip(numbers(&case["send_ms"]))
            .collect();
        arrivals.sort_by(|a, b| a.0.total_cmp(&b.0));
        let mut jitter = Jitter::default();
        let mut found = Vec::new();
        for (received, sent) in arrivals {
            jitter.record(at(sent / 1e3), at(received / 1e3));
            found.push(jitter.value().as_secs_f64() * 1e3);
        }
        for (found, expected) in found[1..].iter().zip(numbers(&case["jitter_after_each_ms"])) {
            assert!((found - expected).abs() < 1e-5, "{case}: {found} for {expected}");
        }
    }
}

struct Connection {
    source: hawser_sim::host::SocketId,
    sink: hawser_sim::host::SocketId,
}

fn connect(pair: &mut Pair, config: Config, ways: usize, total: Option<u64>) -> Connection {
    let start = Instant::ZERO;
    let (source, sink) = pair.join(
        MptcpSource::new(config, ways, total, start),
        MptcpSink::new(config, ways, total, start),
        0..ways,
    );
    Connection { source, sink }
}

fn rate(pair: &Pair, connection: &Connection, from: f64, to: f64) -> f64 {
    let sink: &MptcpSink = pair.at_client(connection.sink);
    sink.meter().rate(at(from), at(to)) / 1e6
}

fn two_links() -> [(hawser_netem::LinkConfig, hawser_netem::LinkConfig); 2] {
    [
        (link(20.0, ms(10)), link(20.0, ms(10))),
        (link(10.0, ms(40)), link(10.0, ms(40))),
    ]
}

#[test]
fn adds_the_rates_of_its_links() {
    for coupling in [
        Coupling::Uncoupled(Congestion::Cubic),
        Coupling::Lia,
        Coupling::Olia,
        Coupling::Balia,
    ] {
        for scheduler in [Scheduler::MinRtt, Scheduler::RoundRobin] {
            let config = Config {
                scheduler,
                ..Config::coupled(coupling)
            };
            let mut pair = Pair::new(1, &two_links());
            let connection = connect(&mut pair, config, 2, None);
            pair.run(40.0);
            let rate = rate(&pair, &connection, 10.0, 40.0);
            let full = 30.0 * 1428.0 / 1514.0;
            assert!(
                rate > 0.9 * full && rate <= 1.001 * full,
                "{} {scheduler:?}: {rate} of {full}",
                coupling.name()
            );
        }
    }
}

#[test]
fn outages_move_what_a_subflow_owes() {
    for state in [State::Blackhole, State::Down] {
        let mut pair = Pair::new(1, &two_links());
        let connection = connect(&mut pair, Config::linux(), 2, None);
        let set = |state| Change {
            state: Some(state),
            ..Change::default()
        };
        for id in [pair.down[0], pair.up[0]] {
            pair.network.change_at(at(5.0), id, set(state));
            pair.network.change_at(at(10.0), id, set(State::Up));
        }
        pair.run(30.0);
        let during = rate(&pair, &connection, 7.0, 10.0);
        let after = rate(&pair, &connection, 20.0, 30.0);
        assert!((8.5..10.0).contains(&during), "{state:?}: {during}");
        assert!(after > 26.0, "{state:?}: {after}");
        let sink: &MptcpSink = pair.at_client(connection.sink);
        let longest = sink.meter().gaps().iter().map(|gap| gap.length).max();
        let limit = if state == State::Down { ms(500) } else { ms(1500) };
        assert!(longest < Some(limit), "{state:?}: {longest:?}");
    }
}

#[test]
fn a_backup_carries_only_while_the_other_fails() {
    let mut pair = Pair::new(1, &two_links());
    let mut source = MptcpSource::new(Config::linux(), 2, None, Instant::ZERO);
    source.set_backup(1, true);
    let sink = MptcpSink::new(Config::linux(), 2, None, Instant::ZERO);
    let (source, sink) = pair.join(source, sink, 0..2);
    let connection = Connection { source, sink };
    pair.run(5.0);
    let backup = pair.down[1];
    assert!(pair.network.counters(backup).packets < 5);
    let dead = Change {
        state: Some(State::Blackhole),
        ..Change::default()
    };
    pair.network.change_at(at(5.0), pair.down[0], dead);
    pair.run(15.0);
    assert!(rate(&pair, &connection, 8.0, 15.0) > 8.5);
}

#[test]
fn a_download_is_whole() {
    let mut pair = Pair::new(9, &two_links());
    let config = Config {
        tcp: tcp::Config {
            opening: tcp::Opening::ByReceiver,
            ..Config::linux().tcp
        },
        ..Config::linux()
    };
    let connection = connect(&mut pair, config, 2, Some(5_000_001));
    pair.run(10.0);
    let sink: &MptcpSink = pair.at_client(connection.sink);
    assert_eq!(sink.meter().total(), 5_000_001);
    assert!(sink.done().expect("it is done") < at(3.0));
    assert!(pair.at_server::<MptcpSource>(connection.source).is_done());
    assert!(sink.out_of_order().0 > 0, "two delays mix the order of data");
}

/// Two subflows over one bottleneck together take the same share as one competing TCP connection.
/// Source: RFC 6356 section 2, goal 2.
#[test]
fn coupled_subflows_share_a_bottleneck_like_one_connection() {
    let share = |coupling| {
        let down = queue(link(20.0, ms(20)), 100_000);
        let mut pair = Pair::new(3, &[(down, link(20.0, ms(20)))]);
        let config = Config {
            tcp: tcp::Config {
                hystart: false,
                ..Config::coupled(coupling).tcp
            },
            ..Config::coupled(coupling)
        };
        let source = MptcpSource::new(config, 2, None, Instant::ZERO);
        let sink = MptcpSink::new(config, 2, None, Instant::ZERO);
        let (_, multi) = pair.join_doubled(source, sink);
        let reno = tcp::Config {
            congestion: Congestion::NewReno,
            hystart: false,
            ..tcp::Config::linux()
        };
        let (_, single) = pair.join(
            TcpSource::new(reno, None, Instant::ZERO),
            TcpSink::new(reno, None, Instant::ZERO),
            0..1,
        );
        pair.run(200.0);
        let of = |meter: &hawser_sim::app::Meter| meter.rate(at(20.0), at(200.0));
        let multi = of(pair.at_client::<MptcpSink>(multi).meter());
        multi / (multi + of(pair.at_client::<TcpSink>(single).meter()))
    };
    let (lia, uncoupled) = (
        share(Coupling::Lia),
        share(Coupling::Uncoupled(Congestion::NewReno)),
    );
    assert!((0.38..0.60).contains(&lia), "{lia}");
    assert!((0.60..0.74).contains(&uncoupled), "{uncoupled}");
}

#[test]
fn before_linux_had_it_a_timeout_moved_everything_at_once() {
    let longest = |config: Config| {
        let mut pair = Pair::new(1, &two_links());
        let connection = connect(&mut pair, config, 2, None);
        let dead = Change {
            state: Some(State::Blackhole),
            ..Change::default()
        };
        for id in [pair.down[0], pair.up[0]] {
            pair.network.change_at(at(5.0), id, dead.clone());
        }
        pair.run(10.0);
        let sink: &MptcpSink = pair.at_client(connection.sink);
        sink.meter().gaps().iter().map(|gap| gap.length).max()
    };
    let uncoupled = Coupling::Uncoupled(Congestion::NewReno);
    let (then, now) = (
        longest(Config::v0_89(uncoupled)),
        longest(Config::coupled(uncoupled)),
    );
    // Delivery resumes after a retransmission timeout and a round trip.
    assert!(then < Some(ms(600)) && then < now, "{then:?} {now:?}");
}
