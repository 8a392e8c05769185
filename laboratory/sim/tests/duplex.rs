//! TCP connection with concurrent data in both directions.

mod wire;

use hawser_netem::LinkConfig;
use hawser_netem::air::phy::{PhyRate, Standard};
use hawser_netem::air::{AccessPointConfig, Signal, StationConfig};
use hawser_sim::app::{TcpDuplex, TcpSink, TcpSource};
use hawser_sim::host::{Application, End, Host, Route, join};
use hawser_sim::radio::{Radio, wire};
use hawser_sim::tcp::{Config, Recovery};
use hawser_sim::{FlowId, Network};
use hawser_units::{Duration, Instant};
use wire::{Pair, at, jittery, link, lossy, ms};

/// Opens a connection from the client. Returns the sockets of both ends.
fn connect(
    pair: &mut Pair,
    config: Config,
    bytes: [Option<u64>; 2],
) -> (hawser_sim::host::SocketId, hawser_sim::host::SocketId) {
    let server = TcpDuplex::answering(config, bytes[0]);
    let client = TcpDuplex::asking(config, bytes[1], Instant::ZERO);
    pair.join(server, client, 0..1)
}

#[test]
fn both_ends_get_every_byte_over_links_that_lose_and_shuffle() {
    for recovery in [
        Recovery::NewReno,
        Recovery::Sack,
        Recovery::SackAdaptive,
        Recovery::Rack,
    ] {
        let config = Config {
            recovery,
            ..Config::linux()
        };
        let way = || jittery(lossy(link(20.0, ms(10)), 0.02), ms(2));
        let mut pair = Pair::new(3, &[(way(), way())]);
        let (server, client) = connect(&mut pair, config, [Some(3_000_000), Some(1_000_000)]);
        pair.run(60.0);
        let (server, client): (&TcpDuplex, &TcpDuplex) = (pair.at_server(server), pair.at_client(client));
        assert!(server.is_done() && client.is_done(), "{recovery:?}");
        assert_eq!(client.meter().total(), 3_000_000, "{recovery:?}");
        assert_eq!(server.meter().total(), 1_000_000, "{recovery:?}");
        assert!(server.sender().statistics().retransmitted > 0, "{recovery:?}");
    }
}

#[test]
fn data_carry_acknowledgements_and_both_links_are_full() {
    let mut pair = Pair::new(1, &[(link(20.0, ms(10)), link(20.0, ms(10)))]);
    let (server, client) = connect(&mut pair, Config::linux(), [None, None]);
    pair.run(20.0);
    let full = 20.0 * 1448.0 / 1514.0;
    for (end, name) in [
        (pair.at_server::<TcpDuplex>(server), "server"),
        (pair.at_client::<TcpDuplex>(client), "client"),
    ] {
        let rate = end.meter().rate(at(5.0), at(20.0)) / 1e6;
        // Acknowledgements wait behind data and arrive in bursts, so that queues are sometimes
        // empty (Zhang, Shenker and Clark 1991).
        assert!(
            rate > 0.93 * full && rate <= full * 1.001,
            "{name}: {rate} {:?}",
            end.sender().statistics()
        );
        let (alone, segments) = (end.acks_alone(), end.sender().statistics().segments);
        // A separate connection in each direction needs one acknowledgement for every two segments.
        assert!(
            (alone as f64) < 0.4 * segments as f64,
            "{name}: {alone} beside {segments}"
        );
        assert_eq!(end.sender().statistics().timeouts, 0, "{name}");
    }
}

#[test]
fn an_end_without_data_acknowledges_as_a_plain_receiver_does() {
    let mut pair = Pair::new(1, &[(link(20.0, ms(10)), link(20.0, ms(10)))]);
    let (server, client) = connect(&mut pair, Config::linux(), [Some(2_000_000), Some(0)]);
    pair.run(10.0);
    let (server, client): (&TcpDuplex, &TcpDuplex) = (pair.at_server(server), pair.at_client(client));
    assert!(server.is_done());
    let segments = server.sender().statistics().segments;
    assert_eq!(client.meter().total(), 2_000_000);
    assert!(
        client.acks_alone() * 2 < segments + 100,
        "{}",
        client.acks_alone()
    );
}

#[test]
fn an_opening_that_is_lost_is_repeated() {
    for seed in 1..=20 {
        let way = || lossy(link(20.0, ms(10)), 0.4);
        let mut pair = Pair::new(seed, &[(way(), way())]);
        let (server, client) = connect(&mut pair, Config::linux(), [Some(5_000), Some(5_000)]);
        pair.run(600.0);
        assert_eq!(
            pair.at_client::<TcpDuplex>(client).meter().total(),
            5_000,
            "{seed}"
        );
        assert_eq!(
            pair.at_server::<TcpDuplex>(server).meter().total(),
            5_000,
            "{seed}"
        );
    }
}

/// Returns the rates of both directions between a station and a server behind its access point, on
/// one connection or two. Units: Mbit/s.
fn on_the_air(is_one: bool) -> (f64, f64) {
    let mut network = Network::new(1);
    let mut radio = Radio::new(network.streams().seed("air"));
    let config = StationConfig::fixed(Standard::A, 36, PhyRate::Ofdm(54));
    let access_point = radio.add_access_point(config.clone(), AccessPointConfig::default());
    let station = radio.add_client(config, access_point);
    radio.set_signals(access_point, station, &Signal::clear());
    let (server, laptop) = (network.add(Host::default()), network.add(Host::default()));
    let (far, near) = (network.address(server), network.address(laptop));
    radio.assign(near, station);
    let air = network.add(radio);
    let backhaul = wire(
        &mut network,
        "backhaul",
        air,
        access_point,
        server,
        LinkConfig::default(),
    );
    let bus = wire(&mut network, "bus", air, station, laptop, LinkConfig::default());
    let ways = (
        [Route {
            link: backhaul.to_radio,
            local: far,
            remote: near,
        }],
        [Route {
            link: bus.to_radio,
            local: near,
            remote: far,
        }],
    );
    let mut flows = 0;
    let mut join_both = |far: Box<dyn Application>, near: Box<dyn Application>| {
        flows += 1;
        let far = End {
            host: server,
            application: far,
            routes: &ways.0,
        };
        let near = End {
            host: laptop,
            application: near,
            routes: &ways.1,
        };
        join(&mut network, FlowId(flows), far, near)
    };
    let start = Instant::ZERO + Duration::from_millis(100);
    let tcp = Config::linux();
    let (from, to) = (at(2.0), at(12.0));
    let sink = || Box::new(TcpSink::new(tcp, None, start));
    let source = || Box::new(TcpSource::new(tcp, None, start));
    let sockets = if is_one {
        let ends = join_both(
            Box::new(TcpDuplex::answering(tcp, None)),
            Box::new(TcpDuplex::asking(tcp, None, start)),
        );
        (ends.0, ends.1)
    } else {
        let (_, down) = join_both(source(), sink());
        let (up, _) = join_both(sink(), source());
        (up, down)
    };
    network.run(to);
    let host = |node| -> &Host { network.node(node).expect("a host") };
    let rate = |host: &Host, socket| {
        let duplex = || host.application(socket).map(TcpDuplex::meter);
        let plain = host.application(socket).map(TcpSink::meter);
        plain.or_else(duplex).expect("it takes bytes").rate(from, to) / 1e6
    };
    (rate(host(server), sockets.0), rate(host(laptop), sockets.1))
}

#[test]
fn one_connection_both_ways_gets_more_of_the_air_than_two() {
    let (two_up, two_down) = on_the_air(false);
    let (up, down) = on_the_air(true);
    // Frames with only an acknowledgement take nearly half as long as data frames, and two
    // connections need one for every two segments.
    let gain = (up + down) / (two_up + two_down);
    assert!(
        (1.1..1.4).contains(&gain),
        "{up} + {down} of {two_up} + {two_down}"
    );
    assert!(up > 0.3 * (up + down) && down > 0.3 * (up + down), "{up} {down}");
}
