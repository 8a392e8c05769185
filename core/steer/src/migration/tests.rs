use hawser_wire::inner::{Ecn, FlowKey, Summary, protocol};
use proptest::prelude::*;

use super::*;
use crate::flow_table::FlowTable;

fn at(ms: u64) -> Instant {
    Instant::from_nanos(ms * 1_000_000)
}

fn address(last: u8, port: u16) -> SocketAddr {
    SocketAddr::from(([10, 0, 0, last], port))
}

/// Returns the route from our network `network` to the only peer.
fn route(network: u8) -> Route {
    Route {
        near: address(network, 5_000),
        far: address(99, 80),
    }
}

fn stable() -> (Mover, Follower) {
    (
        Mover::new(route(1), route(1).turned()),
        Follower::new(route(1).turned()),
    )
}

fn begin(mover: &mut Mover, network: u8, now: Instant) {
    mover
        .migrate(route(network), route(network).turned(), now)
        .expect("not busy");
}

fn events(mover: &mut Mover) -> Vec<Event> {
    std::iter::from_fn(|| mover.poll_event()).collect()
}

/// Exchanges messages until neither end has output at `now`.
fn talk(mover: &mut Mover, follower: &mut Follower, now: Instant) {
    while let Some((order, _)) = mover.poll_transmit(now) {
        if let Some(answer) = follower.handle_order(&order, now) {
            mover.handle_answer(answer, now);
        }
    }
}

#[test]
fn moves_in_one_exchange_and_forgets_the_old_route_later() {
    let (mut mover, mut follower) = stable();
    begin(&mut mover, 2, at(0));
    assert_eq!(mover.migrate(route(3), route(3).turned(), at(0)), Err(Busy));
    talk(&mut mover, &mut follower, at(0));
    assert_eq!((mover.route(), follower.route()), (route(2), route(2).turned()));
    assert_eq!(events(&mut mover), [Event::Rerouted, Event::Moved]);
    assert_eq!(mover.accepted(), [route(1), route(2)]);
    let later = mover.poll_timeout().expect("the old route ends");
    mover.handle_timeout(later);
    assert_eq!((mover.accepted(), mover.poll_timeout()), (vec![route(2)], None));
    begin(&mut mover, 1, later);
    talk(&mut mover, &mut follower, later);
    assert_eq!(follower.route(), route(1).turned());
}

#[test]
fn a_flow_that_never_rests_still_forgets_its_old_routes() {
    let (mut mover, mut follower) = stable();
    for number in 0..1_000_u64 {
        let now = at(number * 500);
        mover.handle_timeout(now);
        follower.handle_timeout(now);
        begin(
            &mut mover,
            if number % 2 == 0 {
                2
            } else {
                1 + (number % 200) as u8
            },
            now,
        );
        // Time also passes during a migration.
        mover.handle_timeout(now + Duration::from_millis(100));
        talk(&mut mover, &mut follower, now + Duration::from_millis(200));
        assert_eq!(mover.phase, Phase::Stable);
    }
    // Two routes per second for ten seconds, and the present one.
    assert!(mover.accepted().len() <= 22, "{}", mover.accepted().len());
    assert!(follower.accepted().len() <= 22, "{}", follower.accepted().len());
}

#[test]
fn a_follower_that_never_answers_changes_nothing() {
    let (mut mover, _) = stable();
    begin(&mut mover, 2, at(0));
    let mut by = Vec::new();
    while let Some(due) = mover.poll_timeout().filter(|_| mover.phase != Phase::Stable) {
        by.extend(mover.poll_transmit(due).map(|(_, by)| by));
    }
    assert_eq!(by.len(), TRIES as usize);
    assert!(by.contains(&route(1)) && by.contains(&route(2)));
    assert_eq!(
        (mover.route(), events(&mut mover)),
        (route(1), vec![Event::Failed])
    );
}

#[test]
fn goes_back_when_the_switch_is_never_confirmed() {
    let (mut mover, mut follower) = stable();
    begin(&mut mover, 2, at(0));
    let (prepare, _) = mover.poll_transmit(at(0)).expect("an order");
    mover.handle_answer(follower.handle_order(&prepare, at(0)).expect("an answer"), at(0));
    let (switch, _) = mover.poll_transmit(at(0)).expect("an order");
    follower
        .handle_order(&switch, at(0))
        .expect("an answer that is lost");
    assert_eq!((mover.route(), follower.route()), (route(2), route(2).turned()));
    while mover.phase == Phase::Switching {
        let now = mover.poll_timeout().expect("tries again");
        mover.poll_transmit(now);
    }
    assert_eq!(
        (mover.route(), events(&mut mover)),
        (route(1), vec![Event::Rerouted, Event::Failed, Event::Rerouted])
    );
    assert!(
        mover.accepted().contains(&route(2)),
        "the follower still sends there"
    );
    let now = mover.poll_timeout().expect("tries again");
    talk(&mut mover, &mut follower, now);
    assert_eq!(
        (mover.phase, follower.route()),
        (Phase::Stable, route(1).turned())
    );
}

#[test]
fn a_packet_on_the_prepared_route_is_as_good_as_a_switch() {
    let (mut mover, mut follower) = stable();
    begin(&mut mover, 2, at(0));
    let (prepare, _) = mover.poll_transmit(at(0)).expect("an order");
    follower.handle_order(&prepare, at(0));
    assert!(!follower.handle_packet(route(1).turned(), at(1)));
    assert!(follower.handle_packet(route(2).turned(), at(1)));
    assert_eq!(follower.route(), route(2).turned());
    mover.handle_answer(
        Answer {
            generation: 1,
            is_switch: false,
        },
        at(2),
    );
    talk(&mut mover, &mut follower, at(2));
    assert_eq!(mover.phase, Phase::Stable);
}

#[test]
fn every_answer_in_every_phase() {
    let make = |phase| {
        let (mut mover, _) = stable();
        if phase != Phase::Stable {
            begin(&mut mover, 2, at(0));
        }
        if matches!(phase, Phase::Switching | Phase::Returning) {
            mover.handle_answer(
                Answer {
                    generation: 1,
                    is_switch: false,
                },
                at(0),
            );
        }
        if phase == Phase::Returning {
            mover.fail(at(0));
        }
        assert_eq!(mover.phase, phase);
        mover
    };
    use Phase::{Preparing, Returning, Stable, Switching};
    let table = [
        (Stable, [Stable, Stable, Stable]),
        (Preparing, [Switching, Preparing, Preparing]),
        (Switching, [Switching, Stable, Switching]),
        (Returning, [Returning, Stable, Returning]),
    ];
    for (before, row) in table {
        for (number, after) in row.into_iter().enumerate() {
            let mut mover = make(before);
            let answer = Answer {
                generation: mover.generation + u32::from(number == 2),
                is_switch: number > 0,
            };
            mover.handle_answer(answer, at(1));
            assert_eq!(mover.phase, after, "{before:?} {answer:?}");
        }
    }
}

#[test]
fn the_application_sees_the_same_addresses_before_and_after_and_by_a_waypoint() {
    let network = NetworkId(7);
    let view = View {
        route: route(1),
        protocol: protocol::TCP,
    };
    let packet = |from: SocketAddr, to: SocketAddr| Summary {
        key: FlowKey {
            source: from.ip(),
            destination: to.ip(),
            protocol: protocol::TCP,
            source_port: from.port(),
            destination_port: to.port(),
        },
        ip_at: 0,
        ip_len: 20,
        headers_len: 40,
        tcp_flags: 0,
        dscp: 0,
        ecn: Ecn::NotEct,
        signature: None,
    };
    let pass = |rules: &[Rule], packet: &Summary| {
        let mut table = FlowTable::new();
        for rule in rules {
            table.insert(*rule, at(0)).expect("room");
        }
        let (_, action) = table.handle_packet(packet, None, 1, at(0)).expect("a rule");
        (action.rewrite.expect("rewrites").outcome(packet), action.output)
    };
    let ours = rules(view, route(2), network, &[route(1), route(2)], 9);
    let (out, output) = pass(&ours, &packet(route(1).near, route(1).far));
    assert_eq!(
        (out, output),
        ((route(2).near, route(2).far), Output::Direct(network))
    );
    for accepted in [route(1), route(2)] {
        let (inward, output) = pass(&ours, &packet(accepted.far, accepted.near));
        assert_eq!((inward, output), ((route(1).far, route(1).near), Output::Local));
    }
    let near = Route {
        near: address(2, 5_000),
        far: address(50, 1),
    };
    let far = Route {
        near: address(99, 80),
        far: address(50, 2),
    };
    let through = waypoint(protocol::TCP, [near, far], [NetworkId(1), NetworkId(2)], 1);
    let ((source, destination), output) = pass(&through, &packet(near.near, near.far));
    assert_eq!(
        (source, destination, output),
        (far.far, far.near, Output::Direct(NetworkId(2)))
    );
    let ((source, destination), output) = pass(&through, &packet(far.near, far.far));
    assert_eq!(
        (source, destination, output),
        (near.far, near.near, Output::Direct(NetworkId(1)))
    );
}

#[derive(Clone, Debug)]
enum Op {
    Migrate(u8),
    Wait(u64),
    /// Loss, repetition and delay of the messages that follow.
    Weather(u8),
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        1 => (1u8..5).prop_map(Op::Migrate),
        6 => (1u64..3_000).prop_map(Op::Wait),
        1 => (0u8..101).prop_map(Op::Weather),
    ]
}

/// Both ends, a network that loses, repeats and delays by up to 1 s, and a packet of the flow in
/// each direction in every step.
struct World {
    mover: Mover,
    follower: Follower,
    now: Instant,
    random: u64,
    loss: u64,
    orders: Vec<(Instant, Order)>,
    answers: Vec<(Instant, Answer)>,
    packets: Vec<(Instant, bool, Route)>,
}

impl World {
    fn draw(&mut self, below: u64) -> u64 {
        self.random = self
            .random
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.random >> 33) % below
    }

    /// Returns the arrival times of a message that is sent now: one, two or none.
    fn arrivals(&mut self) -> Vec<Instant> {
        let copies = match self.draw(100) {
            lot if lot < self.loss => 0,
            lot if lot > 95 => 2,
            _ => 1,
        };
        (0..copies)
            .map(|_| self.now + Duration::from_millis(self.draw(1_000)))
            .collect()
    }

    fn step(&mut self) -> Result<(), TestCaseError> {
        let now = self.now;
        self.mover.handle_timeout(now);
        self.follower.handle_timeout(now);
        while let Some((order, _)) = self.mover.poll_transmit(now) {
            for arrival in self.arrivals() {
                self.orders.push((arrival, order));
            }
        }
        let (ours, theirs) = (self.mover.route(), self.follower.route());
        let delay = Duration::from_millis(self.draw(1_000));
        self.packets.push((now + delay, true, ours));
        self.packets.push((now + delay, false, theirs));
        let due: Vec<_> = self.orders.extract_if(.., |(at, _)| *at <= now).collect();
        for (_, order) in due {
            if let Some(answer) = self.follower.handle_order(&order, now) {
                for arrival in self.arrivals() {
                    self.answers.push((arrival, answer));
                }
            }
        }
        let due: Vec<_> = self.answers.extract_if(.., |(at, _)| *at <= now).collect();
        for (_, answer) in due {
            self.mover.handle_answer(answer, now);
        }
        let due: Vec<_> = self.packets.extract_if(.., |(at, ..)| *at <= now).collect();
        for (_, to_follower, route) in due {
            let seen = route.turned();
            if to_follower {
                prop_assert!(
                    self.follower.accepted().contains(&seen),
                    "the follower refuses {route:?}"
                );
                self.follower.handle_packet(seen, now);
            } else {
                prop_assert!(
                    self.mover.accepted().contains(&seen),
                    "the mover refuses {route:?}"
                );
            }
        }
        prop_assert!(
            self.mover.accepted().len() <= 6 && self.follower.accepted().len() <= 8,
            "grows without end"
        );
        Ok(())
    }
}

proptest! {
    #[test]
    fn no_packet_of_the_flow_is_ever_refused(seed: u64, ops in prop::collection::vec(op(), 1..60)) {
        let (mover, follower) = stable();
        let mut world = World { mover, follower, now: at(0), random: seed, loss: 20, orders: vec![], answers: vec![], packets: vec![] };
        for op in ops {
            match op {
                Op::Migrate(network) => drop(world.mover.migrate(route(network), route(network).turned(), world.now)),
                Op::Weather(loss) => world.loss = u64::from(loss),
                Op::Wait(ms) => {
                    for _ in 0..ms.div_ceil(100) {
                        world.now += Duration::from_millis(100);
                        world.step()?;
                    }
                }
            }
        }
        // Without loss, both ends settle on the same route.
        world.loss = 0;
        for _ in 0..1_000 {
            world.now += Duration::from_millis(100);
            world.step()?;
        }
        prop_assert_eq!(world.mover.phase, Phase::Stable);
        prop_assert_eq!(world.follower.route(), world.mover.route().turned());
        prop_assert_eq!(world.mover.accepted().len(), 1);
    }
}
