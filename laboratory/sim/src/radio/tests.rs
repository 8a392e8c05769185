use hawser_netem::LinkConfig;
use hawser_netem::air::phy::{PhyRate, Standard};
use hawser_netem::air::{AccessPointConfig, Kind, Signal, StationConfig, StationId};
use hawser_units::{Duration, Instant};

use super::{ApMachine, ClientMachine, Gate, HopSample, Radio, wire};
use crate::app::{TcpSink, TcpSource};
use crate::host::{End, Host, Route, SocketId, join};
use crate::packet::{Ecn, Packet};
use crate::tcp::Config;
use crate::{FlowId, Network, NodeId};

struct World {
    network: Network,
    air: NodeId,
    access_points: Vec<StationId>,
    hosts: Vec<(NodeId, SocketId)>,
}

/// Creates a download to a client of each access point, all on one channel; each access point sends
/// at one rate.
fn downloads(rates: &[u16], seed: u64, tcp: Config) -> World {
    let mut network = Network::new(seed);
    let mut radio = Radio::new(network.streams().seed("air"));
    let (mut access_points, mut clients) = (Vec::new(), Vec::new());
    for mbps in rates {
        let config = StationConfig::fixed(Standard::A, 36, PhyRate::Ofdm(*mbps));
        access_points.push(radio.add_access_point(config.clone(), AccessPointConfig::default()));
        clients.push(radio.add_client(config, *access_points.last().unwrap()));
    }
    let all: Vec<_> = access_points.iter().chain(&clients).copied().collect();
    radio.set_all_signals(&all, &Signal::clear());
    let air = network.add(radio);
    let mut hosts = Vec::new();
    for (index, (ap, client)) in access_points.iter().zip(&clients).enumerate() {
        let (server, laptop) = (network.add(Host::default()), network.add(Host::default()));
        let (far, near) = (network.address(server), network.address(laptop));
        network.node_mut::<Radio>(air).unwrap().assign(near, *client);
        let link = LinkConfig {
            delay: Duration::from_millis(1),
            ..LinkConfig::default()
        };
        let backhaul = wire(&mut network, &format!("backhaul{index}"), air, *ap, server, link);
        let bus = wire(
            &mut network,
            &format!("bus{index}"),
            air,
            *client,
            laptop,
            LinkConfig::default(),
        );
        let source = TcpSource::new(tcp, None, Instant::ZERO);
        let sink = TcpSink::new(tcp, None, Instant::ZERO);
        let (_, socket) = join(
            &mut network,
            FlowId(index as u32),
            End {
                host: server,
                application: Box::new(source),
                routes: &[Route {
                    link: backhaul.to_radio,
                    local: far,
                    remote: near,
                }],
            },
            End {
                host: laptop,
                application: Box::new(sink),
                routes: &[Route {
                    link: bus.to_radio,
                    local: near,
                    remote: far,
                }],
            },
        );
        hosts.push((laptop, socket));
    }
    World {
        network,
        air,
        access_points,
        hosts,
    }
}

/// Returns the rate of each download after a warm-up of one second. Units: Mbit/s.
fn rates(world: &mut World, seconds: u64) -> Vec<f64> {
    let (start, end) = (1_000_000_000, (1 + seconds) * 1_000_000_000);
    let (start, end) = (Instant::from_nanos(start), Instant::from_nanos(end));
    world.network.run(end);
    let rate = |(host, socket): &(NodeId, SocketId)| {
        let host: &Host = world.network.node(*host).unwrap();
        let sink: &TcpSink = host.application(*socket).unwrap();
        sink.meter().rate(start, end) / 1e6
    };
    world.hosts.iter().map(rate).collect()
}

/// Row `tcp,a,54` of the reference: 24.449 Mbit/s.
#[test]
fn one_access_point_carries_tcp_as_the_reference_does() {
    let rate = rates(&mut downloads(&[54], 1, Config::linux()), 10)[0];
    assert!((rate / 24.449 - 1.0).abs() < 0.03, "{rate}");
}

/// Row `tcp,a,6`: 4.687 Mbit/s.
#[test]
fn a_slow_one_too() {
    let rate = rates(&mut downloads(&[6], 1, Config::linux()), 10)[0];
    assert!((rate / 4.6869 - 1.0).abs() < 0.03, "{rate}");
}

/// Row `tcp,a,"54,6"`: 3.758 and 3.541, 7.299 Mbit/s in all.
#[test]
fn two_share_the_air_by_frames() {
    let runs: Vec<_> = (1..=3)
        .map(|seed| rates(&mut downloads(&[54, 6], seed, Config::linux()), 10))
        .collect();
    let total = runs.iter().flatten().sum::<f64>() / runs.len() as f64;
    assert!((total / 7.2988 - 1.0).abs() < 0.05, "{runs:?}");
}

#[test]
fn a_picture_shows_every_transmission() {
    let mut world = downloads(&[54], 1, Config::linux());
    let radio: &mut Radio = world.network.node_mut(world.air).unwrap();
    radio.record();
    world.network.run(Instant::from_nanos(200_000_000));
    let radio: &Radio = world.network.node(world.air).unwrap();
    let page = radio.timeline("a download", vec!["access point".into(), "client".into()]);
    let (data, queues) = (radio.log().len(), radio.queues.as_ref().unwrap().len());
    assert!(data > 50 && queues > 10, "{data} {queues}");
    assert!(page.len() > 20 * data);
}

/// Gate that marks packets that arrive while more than 20 frames wait.
struct Early {
    marked: u64,
}

impl Gate for Early {
    fn handle_packet(&mut self, packet: &mut Packet, sample: HopSample) -> bool {
        if sample.queued > 20 && packet.ecn == Ecn::Capable {
            packet.ecn = Ecn::Marked;
            self.marked += 1;
        }
        true
    }
}

#[test]
fn marks_at_the_access_point_slow_the_sender_without_loss() {
    let tcp = Config {
        ecn: true,
        ..Config::linux()
    };
    let mut world = downloads(&[54], 1, tcp);
    let ap = world.access_points[0];
    let radio: &mut Radio = world.network.node_mut(world.air).unwrap();
    radio
        .machine_mut::<ApMachine>(ap)
        .unwrap()
        .set_gate(Early { marked: 0 });
    let rate = rates(&mut world, 5)[0];
    let radio: &Radio = world.network.node(world.air).unwrap();
    let machine: &ApMachine = radio.machine(ap).unwrap();
    assert!(machine.gate::<Early>().unwrap().marked > 0);
    assert_eq!(machine.counters().0.refused, 0);
    assert!(rate > 22.0, "{rate}");
}

#[test]
fn a_client_that_walks_away_hears_nothing_until_it_is_back() {
    let mut world = downloads(&[54], 1, Config::linux());
    let ap = world.access_points[0];
    let client = StationId(ap.0 + 1);
    let radio: &mut Radio = world.network.node_mut(world.air).unwrap();
    radio.set_motion(Duration::from_millis(100), move |now, air| {
        let seconds = now.as_nanos() / 1_000_000_000;
        let power = if seconds == 2 { -100.0 } else { -50.0 };
        air.set_signals(ap, client, &Signal::of_power(power));
    });
    rates(&mut world, 5);
    let (host, socket) = world.hosts[0];
    let host: &Host = world.network.node(host).unwrap();
    let meter = host.application::<TcpSink>(socket).unwrap().meter();
    let between = |a: u64, b: u64| {
        meter.rate(
            Instant::from_nanos(a * 1_000_000_000),
            Instant::from_nanos(b * 1_000_000_000),
        )
    };
    assert!(between(1, 2) > 20e6, "{}", between(1, 2));
    assert!(between(2, 3) < 1e6, "{}", between(2, 3));
    assert!(between(5, 6) > 20e6, "{}", between(5, 6));
}

#[test]
fn a_client_of_two_access_points_answers_each_through_its_own_with_one_radio() {
    let mut network = Network::new(1);
    let mut radio = Radio::new(network.streams().seed("air"));
    let config = StationConfig::fixed(Standard::A, 36, PhyRate::Ofdm(54));
    let points = [0, 1].map(|_| radio.add_access_point(config.clone(), AccessPointConfig::default()));
    let client = radio.add_client(config, points[0]);
    radio.set_all_signals(&[points[0], points[1], client], &Signal::clear());
    radio.machine_mut::<ClientMachine>(client).unwrap().add(points[1]);
    radio.record();
    let air = network.add(radio);
    let (server, laptop) = (network.add(Host::default()), network.add(Host::default()));
    let bus = wire(&mut network, "bus", air, client, laptop, LinkConfig::default());
    let mut sinks = Vec::new();
    for (index, point) in points.into_iter().enumerate() {
        let (far, near) = (network.address(server), network.address(laptop));
        let radio: &mut Radio = network.node_mut(air).unwrap();
        radio.assign(near, client);
        radio
            .machine_mut::<ClientMachine>(client)
            .unwrap()
            .assign(near, index);
        let name = format!("backhaul{index}");
        let backhaul = wire(&mut network, &name, air, point, server, LinkConfig::default());
        let start = Instant::from_nanos(100_000_000);
        let [there, here] = [(backhaul, far, near), (bus, near, far)].map(|(wire, local, remote)| {
            let link = wire.to_radio;
            [Route { link, local, remote }]
        });
        let source = End {
            host: server,
            application: Box::new(TcpSource::new(Config::linux(), None, start)),
            routes: &there,
        };
        let sink = End {
            host: laptop,
            application: Box::new(TcpSink::new(Config::linux(), None, start)),
            routes: &here,
        };
        sinks.push(join(&mut network, FlowId(index as u32), source, sink).1);
    }
    network.run(Instant::from_nanos(2_100_000_000));
    let host: &Host = network.node(laptop).unwrap();
    let total = |sink: &SocketId| host.application::<TcpSink>(*sink).unwrap().meter().total();
    let bytes: Vec<u64> = sinks.iter().map(total).collect();
    assert!(bytes.iter().all(|bytes| *bytes > 1 << 20), "{bytes:?}");
    let radio: &Radio = network.node(air).unwrap();
    let machine: &ClientMachine = radio.machine(client).unwrap();
    assert!(machine.is_associated());
    assert!(
        machine.beacons().iter().all(|beacons| *beacons > 10),
        "{:?}",
        machine.beacons()
    );
    let own: Vec<_> = radio.log().iter().filter(|sent| sent.from == client).collect();
    for point in points {
        let answers = own
            .iter()
            .filter(|sent| sent.to == Some(point) && sent.kind == Kind::Data);
        assert!(
            answers.count() > 300,
            "acknowledgements of each download go to its access point"
        );
    }
    assert!(
        own.windows(2).all(|pair| pair[1].start >= pair[0].end),
        "one radio sends one frame"
    );
}
