//! Custom nodes: queues with known waiting times, a LAN, and a proxy with links that fail and
//! recover.

mod wire;

use hawser_netem::{Change, LinkConfig, QueueBound, Random, State};
use hawser_sim::app::{Cbr, DatagramSink};
use hawser_sim::host::{End, Host, Route, join};
use hawser_sim::packet::{Body, Datagram, Ecn};
use hawser_sim::{Address, Context, FlowId, LinkId, Network, Node, Packet, Router};
use hawser_units::{Bytes, Duration, Instant, Rate};
use serde_json::Value;
use wire::{at, link, ms, queue};

/// Source of packets of one size at random times, which measures their waiting times.
struct Poisson {
    link: Option<LinkId>,
    mean: Duration,
    random: Random,
    waited: f64,
    received: u64,
}

impl Poisson {
    fn schedule(&mut self, context: &mut Context<'_>) {
        let gap = -(1.0 - self.random.uniform()).ln() * self.mean.as_secs_f64();
        context.after(Duration::from_secs_f64(gap), 0);
    }
}

fn packet(now: Instant) -> Packet {
    Packet {
        source: Address(0),
        destination: Address(0),
        source_port: 0,
        destination_port: 0,
        flow: FlowId(0),
        size: 1236,
        ecn: Ecn::NotCapable,
        sent: now,
        body: Body::Datagram(Datagram::default()),
    }
}

impl Node for Poisson {
    fn handle_start(&mut self, context: &mut Context<'_>) {
        self.schedule(context);
    }

    fn handle_packet(&mut self, packet: Packet, _link: LinkId, context: &mut Context<'_>) {
        self.waited += context.now().since(packet.sent).as_secs_f64();
        self.received += 1;
    }

    fn handle_timer(&mut self, _tag: u32, context: &mut Context<'_>) {
        if let Some(link) = self.link {
            context.send(link, packet(context.now()));
        }
        self.schedule(context);
    }
}

/// Source: Pollaczek and Khinchine, M/D/1: W/S = rho / (2 (1 - rho)).
#[test]
fn random_arrivals_wait_as_queueing_theory_says() {
    let file: Value = serde_json::from_str(include_str!("data/md1.json")).expect("JSON");
    for case in file["vectors"].as_array().expect("an array") {
        let number = |name: &str| case[name].as_f64().expect("a number");
        let rho = number("rho");
        let mut network = Network::new(11);
        let node = network.add(Poisson {
            link: None,
            mean: ms(1).div_f64(rho),
            random: network.streams().get("arrivals"),
            waited: 0.0,
            received: 0,
        });
        // A frame of 1250 bytes takes 1 ms.
        let config = LinkConfig {
            queue: QueueBound::Bytes(Bytes(u64::MAX / 2)),
            ..link(10.0, Duration::ZERO)
        };
        let id = network.connect("queue", node, node, config);
        network.node_mut::<Poisson>(node).expect("it is one").link = Some(id);
        network.run(at(2_000.0));
        let node: &Poisson = network.node(node).expect("it is one");
        let service = 1e-3;
        let waited = node.waited / node.received as f64 / service - 1.0;
        let expected = number("W_over_S");
        let tolerance = if rho > 0.8 { 0.08 } else { 0.03 };
        assert!(
            (waited - expected).abs() < tolerance * expected + 0.002,
            "rho {rho}: {waited} for {expected}"
        );
    }
}

/// Proxy that sends each packet on the next working link.
#[derive(Default)]
struct Proxy {
    links: Vec<(LinkId, bool)>,
    next: usize,
}

impl Node for Proxy {
    fn handle_packet(&mut self, packet: Packet, _link: LinkId, context: &mut Context<'_>) {
        for _ in 0..self.links.len() {
            let (link, is_up) = self.links[self.next % self.links.len()];
            self.next += 1;
            if is_up {
                context.send(link, packet);
                return;
            }
        }
    }

    fn handle_link(&mut self, link: LinkId, is_up: bool, _context: &mut Context<'_>) {
        for known in self.links.iter_mut().filter(|(known, _)| *known == link) {
            known.1 = is_up;
        }
    }
}

/// source -> proxy -> n links -> members -> shared LAN -> receiver
#[test]
fn a_proxy_stripes_over_members_that_share_a_lan() {
    let mut network = Network::new(1);
    let (source, receiver) = (network.add(Host::default()), network.add(Host::default()));
    let proxy = network.add(Proxy::default());
    let (from, to) = (network.address(source), network.address(receiver));
    let out = network.connect("source", source, proxy, link(100.0, ms(1)));
    let lan = network.connect_shared("lan", receiver, link(11.0, Duration::ZERO));
    let back = network.connect("acks", receiver, source, link(11.0, ms(10)));
    let mut wan = Vec::new();
    for member in 0..4 {
        let mut forwards = Router::default();
        forwards.route(to, lan);
        let forwards = network.add(forwards);
        let id = network.connect(
            &format!("wan{member}"),
            proxy,
            forwards,
            queue(link(0.1, ms(20)), 10_000),
        );
        wan.push(id);
        let known: &mut Proxy = network.node_mut(proxy).expect("it is one");
        known.links.push((id, true));
    }
    for (time, state) in [(50.0, State::Down), (100.0, State::Up)] {
        let change = Change {
            state: Some(state),
            ..Change::default()
        };
        network.change_at(at(time), wan[3], change);
    }
    // A load of 350 kbit/s; the links carry 400 kbit/s less headers, 300 kbit/s from 50 to 100 s.
    let rate = Rate::from_bps(350_000);
    let (_, sink) = join(
        &mut network,
        FlowId(1),
        End {
            host: source,
            application: Box::new(Cbr::new(rate, 972, (Instant::ZERO, at(150.0)))),
            routes: &[Route {
                link: out,
                local: from,
                remote: to,
            }],
        },
        End {
            host: receiver,
            application: Box::new(DatagramSink::default()),
            routes: &[Route {
                link: back,
                local: to,
                remote: from,
            }],
        },
    );
    network.run(at(151.0));
    let receiver: &Host = network.node(receiver).expect("it is one");
    let meter = receiver
        .application::<DatagramSink>(sink)
        .expect("it is one")
        .meter();
    let share = 972.0 / 1014.0;
    let rate = |from: f64, to: f64| meter.rate(at(from), at(to)) / 1e3;
    assert!((rate(10.0, 50.0) - 350.0).abs() < 4.0, "{}", rate(10.0, 50.0));
    assert!(
        (rate(60.0, 100.0) - 300.0 * share).abs() < 4.0,
        "{}",
        rate(60.0, 100.0)
    );
    assert!((rate(110.0, 150.0) - 350.0).abs() < 4.0, "{}", rate(110.0, 150.0));
}
